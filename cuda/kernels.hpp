// libpncuda: the host side of the kernels, one file each, behind api.cu, which has checked all arguments.
#ifndef PNCUDA_KERNELS_HPP
#define PNCUDA_KERNELS_HPP

#include <cuda_runtime.h>

#include <cstdint>

namespace pncuda {

struct Matrix;
struct GemvArgs;
struct P12Args;

// What is known of a device.
struct Device {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_per_block = 0;           // bytes of dynamic shared memory that a block may ask for
  int shared_per_multiprocessor = 0;  // bytes
  bool tensor = false;                // the tensor path: device and compiled kernels both have it
  bool operator==(const Device& b) const {
    return major == b.major && minor == b.minor && multiprocessors == b.multiprocessors &&
           shared_per_block == b.shared_per_block && shared_per_multiprocessor == b.shared_per_multiprocessor &&
           tensor == b.tensor;
  }
};

// How a multiply is cut into launches. What it decides has no influence on any bit of a result.
struct GemvPlan {
  int tokens = 0;        // of a launch
  int threads = 0;       // of a block
  unsigned grid = 0;     // blocks
  int shared_bytes = 0;  // of a block
};

// gemv_ffma.cuh. `prepare` allows the kernels the shared memory that a device has.
template <class T>
cudaError_t prepare_ffma(const Device& device);
// Fills what GemvArgs says about the launch; its weights, types, tokens and rotation are given.
template <class T>
GemvPlan plan_ffma(const Device& device, bool half2, GemvArgs& args);
template <class T>
cudaError_t launch_ffma(const GemvPlan& plan, bool half2, const GemvArgs& args, cudaStream_t stream);

// gemv_tensor.cuh
template <class T>
cudaError_t prepare_tensor(const Device& device);
// Whether the current device has the tensor path in this build; an error where it has no kernels at all.
cudaError_t has_tensor_path(bool& tensor);
template <class T>
GemvPlan plan_tensor(const Device& device, GemvArgs& args);
template <class T>
cudaError_t launch_tensor(const GemvPlan& plan, const GemvArgs& args, cudaStream_t stream);

// p12_ffma.cu, p12_tensor.cu: BF16_P12 (`packed`) or plain BF16. The plans fill what P12Args says about the launch, and
// have no tokens where a device has too little shared memory for one.
cudaError_t prepare_p12_ffma(const Device& device);
GemvPlan plan_p12_ffma(const Device& device, P12Args& args);
cudaError_t launch_p12_ffma(const GemvPlan& plan, bool packed, const P12Args& args, cudaStream_t stream);
cudaError_t prepare_p12_tensor(const Device& device);
GemvPlan plan_p12_tensor(const Device& device, P12Args& args);
cudaError_t launch_p12_tensor(const GemvPlan& plan, bool packed, const P12Args& args, cudaStream_t stream);

// p12_pack.cu: bf16 rows to blocks; *first_bad as pncuda_p12_pack says.
cudaError_t prepare_p12_pack();
cudaError_t launch_p12_pack(const Matrix& plain, std::uint8_t* out, std::int64_t out_stride, std::int64_t* first_bad,
                            cudaStream_t stream);

// low_rank.cu: y = base + scales * b (a x); see pncuda_low_rank_args. `products` has room for tokens * rank floats.
struct LowRank {
  const void* a;
  const void* b;
  std::int64_t a_stride, b_stride;
  const void* x;
  std::int64_t x_stride;
  void* y;
  std::int64_t y_stride;
  const void* base;  // or null
  std::int64_t base_stride;
  const float* scales;
  float* products;
  std::int64_t k, n;
  std::int32_t tokens, rank, factor_type, x_type, y_type;
};
cudaError_t prepare_low_rank();
cudaError_t launch_low_rank(const LowRank& what, cudaStream_t stream);

// repack.cu: between native and repacked blocks of one shape, from `from` to `to`.
cudaError_t launch_repack(const Matrix& from, const Matrix& to, cudaStream_t stream);

// decode.cu: rows first_row .. of `weights`, or those that `ids` names (id_bytes 4 or 8), columns first_column ..
struct DecodeRows {
  std::int64_t rows;
  std::int64_t first_row;
  const void* ids;  // or null
  int id_bytes;
  std::int64_t first_column, columns;
  void* out;
  std::int64_t out_stride;
  int out_type;
};
template <class T>
cudaError_t launch_decode(const Device& device, const Matrix& weights, const DecodeRows& what, cudaStream_t stream);
// p12_decode.cu: the same of BF16_P12 (`packed`) or plain BF16.
cudaError_t prepare_p12_decode();
cudaError_t launch_p12_decode(const Device& device, bool packed, const Matrix& weights, const DecodeRows& what,
                              cudaStream_t stream);

// hadamard.cu; block 0 converts without a rotation.
struct HadamardRows {
  const void* x;
  std::int64_t x_stride;
  void* out;
  std::int64_t out_stride;
  int x_type, out_type;
  std::int64_t tokens, k;
  int block;
};
cudaError_t launch_hadamard(const HadamardRows& what, cudaStream_t stream);

// Loads kernels of repack.cu, decode.cu and hadamard.cu.
cudaError_t prepare_repack();
cudaError_t prepare_decode();
cudaError_t prepare_hadamard();

// Blocks of a grid for `items` pieces of work; what is beyond the limit of a grid is a loop in the kernel.
constexpr unsigned grid_of(std::int64_t items, std::int64_t limit = 0x7FFFFFFF) {
  return static_cast<unsigned>(items < limit ? items : limit);
}

// A grid for rows of `columns` blocks of threads each: no more than the device runs in two waves of `resident` blocks
// on a multiprocessor, since starting a block takes as long as such a block works; the kernel takes rows gridDim.y
// apart.
inline dim3 grid_of_rows(const Device& device, int resident, std::int64_t columns, std::int64_t rows) {
  const unsigned x = grid_of(columns);
  const std::int64_t enough = std::int64_t{2} * resident * device.multiprocessors / x + 1;
  return dim3(x, grid_of(rows, enough < 65535 ? enough : 65535));
}

}  // namespace pncuda

#endif  // PNCUDA_KERNELS_HPP
