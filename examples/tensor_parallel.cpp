// Tensor parallelism with libpncuda: y = W x, the columns of W split into two halves, one for each device (or both on
// one). A half is a view into native weights, repacked for itself; the two results are added, as an all-reduce would.
//
// K = 17408 makes halves of 136 blocks of pn4t, which do not fill the tiles of 16 of the repacked layout. It need not.
//
//   nvcc -std=c++17 -Iinclude examples/tensor_parallel.cpp -o tensor_parallel -L<where it is> -lpncuda
#include <cuda_runtime.h>
#include <pncuda/pncuda.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <pn/pn.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t rows = 40, k = 17408, half = k / 2;
constexpr std::int64_t block_bytes = sizeof(pn::Block34);
constexpr std::int64_t row_bytes = k / static_cast<std::int64_t>(pn::pn4t::block_size) * block_bytes;

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}
void require(pncuda_status status) {
  if (status == PNCUDA_OK) return;
  std::fprintf(stderr, "%s\n", pncuda_status_text(status));
  std::exit(1);
}

// Device memory of the current device, with a copy of `bytes` from `host` if there is one.
void* on_device(std::size_t bytes, const void* host = nullptr) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes));
  if (host != nullptr) require(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
  return memory;
}

// y = W[all rows][first .. first + columns - 1] * x, on the current device.
std::vector<float> multiply(const std::vector<pn::Block34>& blocks, const std::vector<float>& x, std::int64_t first,
                            std::int64_t columns) {
  // An engine keeps `repacked` and drops `native`.
  void* const native = on_device(blocks.size() * sizeof(pn::Block34), blocks.data());
  pncuda_weights all = {};
  all.struct_size = sizeof all;
  all.type = PNCUDA_PN4T;
  all.layout = PNCUDA_NATIVE;
  all.data = native;
  all.rows = rows;
  all.k = k;
  all.row_stride = row_bytes;
  pncuda_weights shard;
  require(pncuda_column_shard(&all, first, columns, &shard));

  void* const repacked = on_device(pncuda_weights_size(&shard));
  require(pncuda_repack(&shard, repacked, nullptr));
  shard.layout = PNCUDA_REPACKED;
  shard.data = repacked;
  shard.row_stride = 0;

  void* const part_of_x = on_device(static_cast<std::size_t>(columns) * sizeof(float), x.data() + first);
  void* const y = on_device(static_cast<std::size_t>(rows) * sizeof(float));
  pncuda_gemv_args a = {};
  a.struct_size = sizeof a;
  a.weights = &shard;
  a.x = part_of_x;
  a.x_stride = columns * 4;
  a.x_type = a.y_type = PNCUDA_F32;
  a.y = y;
  a.y_stride = rows * 4;
  a.tokens = 1;
  a.mode = PNCUDA_ACCURATE;
  require(pncuda_gemv(&a, nullptr));
  std::vector<float> result(static_cast<std::size_t>(rows));
  require(cudaMemcpy(result.data(), y, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (void* memory : {native, repacked, part_of_x, y}) require(cudaFree(memory));
  return result;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> w(static_cast<std::size_t>(rows * k)), x(static_cast<std::size_t>(k));
  for (float& v : w) v = 0.02f * normal(random);
  for (float& v : x) v = normal(random);
  std::vector<pn::Block34> blocks(static_cast<std::size_t>(rows * row_bytes / block_bytes));
  if (pn::quantize_row<pn::pn4t>(w.data(), w.size(), blocks.data()) != pn::Status::ok) return 1;
  if (pn::decode_row<pn::pn4t>(blocks.data(), w.size(), w.data()) != pn::Status::ok) return 1;

  int devices = 0;
  require(cudaGetDeviceCount(&devices));
  const int second = devices > 1 ? 1 : 0;
  for (int device = 0; device <= second; ++device) require(pncuda_prepare(device));

  require(cudaSetDevice(0));
  const std::vector<float> whole = multiply(blocks, x, 0, k);
  std::vector<float> sum = multiply(blocks, x, 0, half);
  require(cudaSetDevice(second));
  const std::vector<float> other = multiply(blocks, x, half, half);

  // Halves and whole have different orders of sums; both are within the bound of pncuda.h.
  double largest = 0;
  for (std::size_t r = 0; r < sum.size(); ++r) {
    sum[r] += other[r];
    double exact = 0, s = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto block = (r * x.size() + i) / pn::pn4t::block_size;
      exact += static_cast<double>(w[r * x.size() + i]) * static_cast<double>(x[i]);
      s += std::abs(static_cast<double>(pn::half_to_float(pn::load_scale(blocks[block])))) * 8 *
           std::abs(static_cast<double>(x[i]));
    }
    for (const float y : {whole[r], sum[r]}) {
      const double error = std::abs(static_cast<double>(y) - exact) / s;
      if (!(error <= largest)) largest = error;
    }
  }
  std::printf("%d device(s); largest error of the whole and of the sum of two halves: %.1e * S\n", second + 1, largest);
  return largest <= 4e-6 ? 0 : 1;
}
