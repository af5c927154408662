// libpncuda: the Hadamard rotation of activations, by a block of threads, in shared memory.
#ifndef PNCUDA_HADAMARD_CUH
#define PNCUDA_HADAMARD_CUH

#include <pn/hadamard.hpp>

#include "elements.cuh"

namespace pncuda {

// `count` numbers of x, from `first` on, into `out` and there rotated in segments of b; count is a multiple of b. The
// butterflies in the order of pn::hadamard_activations (h = 1, 2, 4, ...), two at a time, every sum rounded; then the
// scale. All threads of the block; ends with a barrier. `written`: the launch may write x.
template <bool written = false>
__device__ __forceinline__ void rotate(const void* x, int type, std::int64_t first, int count, int b, float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int i = thread; i < count; i += threads)
    out[i] = written ? load_written_element(x, type, first + i) : load_element(x, type, first + i);
  __syncthreads();
  const float scale = static_cast<float>(pn::hadamard_scale(static_cast<std::size_t>(b)));
#pragma unroll 1
  for (int h = 1; h < b; h *= 4) {
    const bool last = 4 * h >= b;
    if (2 * h < b) {
#pragma unroll 1
      for (int i = thread; i < count / 4; i += threads) {
        float* const v = out + (i / h * 4 * h + i % h);
        const float a0 = __fadd_rn(v[0], v[h]);
        const float a1 = __fsub_rn(v[0], v[h]);
        const float a2 = __fadd_rn(v[2 * h], v[3 * h]);
        const float a3 = __fsub_rn(v[2 * h], v[3 * h]);
        const float c = last ? scale : 1.0f;
        v[0] = __fmul_rn(__fadd_rn(a0, a2), c);
        v[h] = __fmul_rn(__fadd_rn(a1, a3), c);
        v[2 * h] = __fmul_rn(__fsub_rn(a0, a2), c);
        v[3 * h] = __fmul_rn(__fsub_rn(a1, a3), c);
      }
    } else {
#pragma unroll 1
      for (int i = thread; i < count / 2; i += threads) {
        float* const v = out + (i / h * 2 * h + i % h);
        const float a0 = __fadd_rn(v[0], v[h]);
        const float a1 = __fsub_rn(v[0], v[h]);
        v[0] = __fmul_rn(a0, scale);
        v[h] = __fmul_rn(a1, scale);
      }
    }
    __syncthreads();
  }
}

}  // namespace pncuda

#endif  // PNCUDA_HADAMARD_CUH
