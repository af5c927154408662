// libpncuda: the host side of the kernels, one file each, behind api.cu, which has checked all arguments.
#ifndef PNCUDA_KERNELS_HPP
#define PNCUDA_KERNELS_HPP

#include <cuda_runtime.h>

#include <cstdint>

namespace pncuda {

struct Matrix;
struct GemvArgs;

// What is known of a device.
struct Device {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_per_block = 0;           // bytes of dynamic shared memory that a block may ask for
  int shared_per_multiprocessor = 0;  // bytes
  bool tensor = false;                // the tensor path: device and compiled kernels both have it
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
cudaError_t launch_decode(const Matrix& weights, const DecodeRows& what, cudaStream_t stream);

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

}  // namespace pncuda

#endif  // PNCUDA_KERNELS_HPP
