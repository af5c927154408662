// libpncuda: low-rank add-ons (LoRA), y = base + scale * b (a x) for the tokens that want them.
#include "elements.cuh"
#include "kernels.hpp"

namespace pncuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;
constexpr int lanes_of_row = 8;  // of b
constexpr int rows_at_once = threads / lanes_of_row;

// products[m][r] = sum over k of a[r][k] * x[m][k], of tokens with a scale. A block of threads has row blockIdx.x of a;
// thread i sums numbers i, i + 256, ... in order; then the lanes of a warp, pairwise; then the warps.
__global__ void __launch_bounds__(threads) a_times_x(const LowRank what) {
  PNCUDA_SHARED(float, sums);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const void* const a = row_at(what.a, what.a_stride, blockIdx.x);
  const unsigned m = blockIdx.y;
  if (__ldg(what.scales + m) == 0.0f) return;
  const void* const x = row_at(what.x, what.x_stride, m);
  float sum = 0.0f;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < what.k; i += threads)
    sum = fmaf(load_element(a, what.factor_type, i), load_element(x, what.x_type, i), sum);
  sum = add_lanes(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float all = sums[0];
  for (int w = 1; w < warps; ++w) all = __fadd_rn(all, sums[w]);
  what.products[static_cast<std::int64_t>(m) * what.rank + blockIdx.x] = all;
}

// y of token blockIdx.y. Eight lanes have a row of b: lane i sums i, i + 8, ... in order; then the lanes, pairwise.
__global__ void __launch_bounds__(threads) add_b_times(const LowRank what) {
  const int part = static_cast<int>(threadIdx.x) % lanes_of_row;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_at_once + threadIdx.x / lanes_of_row;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_at_once;
  const std::int64_t all = (what.n + rows_at_once - 1) / rows_at_once * rows_at_once;  // whole warps go along
  const unsigned m = blockIdx.y;
  const float scale = __ldg(what.scales + m);
  void* const y = row_at(what.y, what.y_stride, m);
  const void* const base = what.base == nullptr ? nullptr : row_at(what.base, what.base_stride, m);
  if (scale == 0.0f && base == y) return;
  const float* const products = what.products + static_cast<std::int64_t>(m) * what.rank;
  for (std::int64_t n = first; n < all; n += step) {
    float sum = 0.0f;
    if (scale != 0.0f && n < what.n) {
      const void* const b = row_at(what.b, what.b_stride, n);
#pragma unroll 1
      for (int r = part; r < what.rank; r += lanes_of_row)
        sum = fmaf(load_element(b, what.factor_type, r), __ldg(products + r), sum);
    }
    sum = add_lanes<lanes_of_row>(sum);
    if (part != 0 || n >= what.n) continue;
    if (scale == 0.0f && base != nullptr) {
      copy_element(y, base, what.y_type, n);
      continue;
    }
    float value = base == nullptr ? 0.0f : load_written_element(base, what.y_type, n);
    if (scale != 0.0f) value = __fadd_rn(value, __fmul_rn(scale, sum));
    store_element(y, what.y_type, n, value);
  }
}

}  // namespace

cudaError_t prepare_low_rank() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, a_times_x);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, add_b_times);
}

cudaError_t launch_low_rank(const LowRank& what, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(what.tokens);  // at most 65535
  const cudaError_t error = launch(a_times_x, dim3(static_cast<unsigned>(what.rank), tokens), dim3(threads),
                                   warps * sizeof(float), stream, what);
  if (error != cudaSuccess) return error;
  return launch(add_b_times, dim3(grid_of((what.n + rows_at_once - 1) / rows_at_once), tokens), dim3(threads), 0,
                stream, what);
}

}  // namespace pncuda
