// gpu_bench: kernels.hpp. Few includes: old versions of nvcc do not understand all of the standard library.
#include "../../cuda/device.cuh"
#include "kernels.hpp"

namespace gpu_bench {

namespace {

template <bool bf16>
__global__ void multiply(const std::uint16_t* a, const std::uint16_t* b, int steps, float* d) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4, row = 16 * static_cast<unsigned>(steps);
  const auto pair = [](const std::uint16_t* p) { return p[0] | static_cast<std::uint32_t>(p[1]) << 16; };
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int step = 0; step < steps; ++step) {
    const std::uint16_t* const upper = a + g * row + 16 * step + 2 * t;
    const std::uint16_t* const lower = upper + 8 * row;
    const std::uint16_t* const right = b + g * row + 16 * step + 2 * t;
    const std::uint32_t of_a[4] = {pair(upper), pair(lower), pair(upper + 8), pair(lower + 8)};
    if (bf16)
      pncuda::mma_m16n8k16_bf16(sum, of_a, pair(right), pair(right + 8));
    else
      pncuda::mma_m16n8k16(sum, of_a, pair(right), pair(right + 8));
  }
  for (unsigned i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

constexpr unsigned copy_threads = 256;

__device__ __forceinline__ __half2 half2_of(std::uint32_t bits) {
  return __halves2half2(__ushort_as_half(static_cast<unsigned short>(bits & 0xFFFFu)),
                        __ushort_as_half(static_cast<unsigned short>(bits >> 16)));
}
__device__ __forceinline__ std::uint32_t bits_of(__half2 v) {
  return __half_as_ushort(__low2half(v)) | static_cast<std::uint32_t>(__half_as_ushort(__high2half(v))) << 16;
}

__global__ void multiply_add(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d) {
  const unsigned i = threadIdx.x;
  d[i] = __float_as_uint(fmaf(__uint_as_float(a[i]), __uint_as_float(b[i]), 0.0f));
}
__global__ void multiply_add_half2(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d) {
  const unsigned i = threadIdx.x;
  d[i] = bits_of(__hfma2(half2_of(a[i]), half2_of(b[i]), half2_of(0)));
  d[32 + i] = bits_of(__hmul2(half2_of(a[i]), half2_of(b[i])));
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * copy_threads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * copy_threads + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < count; i += step) to[i] = from[i];
}

// Writes only what is masked by `never`, which is 0: nothing, but the compiler cannot know.
__global__ void read_kernel(const uint4* from, std::int64_t count, std::uint32_t never, std::uint32_t* out) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * copy_threads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * copy_threads + threadIdx.x;
  std::uint32_t all = 0;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = pncuda::load_streaming(from + i), b = pncuda::load_streaming(from + i + step),
                c = pncuda::load_streaming(from + i + 2 * step), d = pncuda::load_streaming(from + i + 3 * step);
    all |= (a.x ^ b.y ^ c.z ^ d.w) | (a.y ^ b.z ^ c.w ^ d.x) | (a.z ^ b.w ^ c.x ^ d.y) | (a.w ^ b.x ^ c.y ^ d.z);
  }
  if ((all & never) != 0) *out = all;
}

}  // namespace

cudaError_t launch_multiply(bool bf16, const std::uint16_t* a, const std::uint16_t* b, int steps, float* d) {
  return pncuda::launch(bf16 ? multiply<true> : multiply<false>, dim3(1), dim3(32), 0, nullptr, a, b, steps, d);
}
cudaError_t launch_multiply_add(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d) {
  return pncuda::launch(multiply_add, dim3(1), dim3(32), 0, nullptr, a, b, d);
}
cudaError_t launch_multiply_add_half2(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* d) {
  return pncuda::launch(multiply_add_half2, dim3(1), dim3(32), 0, nullptr, a, b, d);
}
cudaError_t launch_copy(unsigned blocks, cudaStream_t stream, const uint4* from, uint4* to, std::int64_t count) {
  return pncuda::launch(copy_kernel, dim3(blocks), dim3(copy_threads), 0, stream, from, to, count);
}
cudaError_t launch_read(unsigned blocks, cudaStream_t stream, const uint4* from, std::int64_t count,
                        std::uint32_t* out) {
  return pncuda::launch(read_kernel, dim3(blocks), dim3(copy_threads), 0, stream, from, count, 0u, out);
}

}  // namespace gpu_bench
