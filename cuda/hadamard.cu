// libpncuda: the rotation of activations by itself.
#include "hadamard.cuh"
#include "kernels.hpp"

namespace pncuda {

namespace {

constexpr int threads = 256;
constexpr int columns_of_block = static_cast<int>(pn::max_hadamard_block);  // of a block of threads: whole segments

// `out` may be x.
__global__ void __launch_bounds__(threads) hadamard(const HadamardRows what) {
  PNCUDA_SHARED(float, values);
  for (std::int64_t token = blockIdx.y; token < what.tokens; token += gridDim.y) {
    const void* const x = row_at(what.x, what.x_stride, token);
    void* const out = row_at(what.out, what.out_stride, token);
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * columns_of_block; first < what.k;
         first += static_cast<std::int64_t>(gridDim.x) * columns_of_block) {
      const std::int64_t left = what.k - first;
      const int count = left < columns_of_block ? static_cast<int>(left) : columns_of_block;
      if (what.block != 0) {
        rotate<true>(x, what.x_type, first, count, what.block, values);
        for (int i = static_cast<int>(threadIdx.x); i < count; i += threads)
          store_element(out, what.out_type, first + i, values[i]);
        __syncthreads();
      } else {
        for (int i = static_cast<int>(threadIdx.x); i < count; i += threads)
          store_element(out, what.out_type, first + i, load_written_element(x, what.x_type, first + i));
      }
    }
  }
}

}  // namespace

cudaError_t prepare_hadamard() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, hadamard);
}

cudaError_t launch_hadamard(const HadamardRows& what, cudaStream_t stream) {
  const dim3 grid(grid_of((what.k + columns_of_block - 1) / columns_of_block), grid_of(what.tokens, 65535));
  return launch(hadamard, grid, dim3(threads), columns_of_block * sizeof(float), stream, what);
}

}  // namespace pncuda
