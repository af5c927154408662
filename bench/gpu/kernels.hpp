// gpu_bench: kernels of its own. All other code is C++ without kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace gpu_bench {

// d[16][8] = a[16][K] * b[K][8] of fp16 or bf16, K = 16 * steps, by mma.m16n8k16, one after another onto the same sums,
// from 0. b is given as [column][k].
cudaError_t launch_multiply(bool bf16, const std::uint16_t* a, const std::uint16_t* b, int steps, float* d);

// 32 fp32 numbers as bits: d = a * b + 0. As pairs of fp16: the same, and behind the 32 d = a * b.
cudaError_t launch_multiply_add(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d);
cudaError_t launch_multiply_add_half2(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d);

// Vectorised copies and reads; the latter writes nothing, but the compiler cannot know.
cudaError_t launch_copy(unsigned blocks, cudaStream_t stream, const uint4* from, uint4* to, std::int64_t count);
cudaError_t launch_read(unsigned blocks, cudaStream_t stream, const uint4* from, std::int64_t count,
                        std::uint32_t* out);

}  // namespace gpu_bench
