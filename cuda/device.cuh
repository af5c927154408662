// libpncuda: what kernels need beyond CUDA's headers. The one include that differs when the kernels are compiled by a
// C++ compiler to run on the CPU (tests/host_cuda): there <cuda_runtime.h> and the others are small stand-ins, too.
#ifndef PNCUDA_DEVICE_CUH
#define PNCUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <tuple>
#include <utility>

#if defined(PN_HOST_CUDA)
#include <host_cuda/device.hpp>
#else

// The block's dynamic shared memory as an array of T, aligned to 16 bytes. The only shared memory that kernels here
// use, so that its size is one number.
#define PNCUDA_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char pncuda_shared[]; \
  T* const name = reinterpret_cast<T*>(pncuda_shared)

namespace pncuda {

// 16 bytes of weights, which are read once: they need not stay in the caches.
__device__ __forceinline__ uint4 load_streaming(const uint4* p) {
#if __CUDA_ARCH__ >= 700
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#else
  return __ldcg(p);
#endif
}

// 4 or 8 bytes of weights, which are read once, but whose 32-byte sectors neighbouring loads share: the L1 cache keeps
// them for a while.
template <class V>
__device__ __forceinline__ V load_shared_lines(const std::uint8_t* p) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8, "unsigned int or uint2");
#if __CUDA_ARCH__ >= 700
  V v;
  if constexpr (sizeof(V) == 8)
    asm("ld.global.nc.L1::evict_first.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  else
    asm("ld.global.nc.L1::evict_first.u32 %0,[%1];" : "=r"(v) : "l"(p));
  return v;
#else
  return __ldg(reinterpret_cast<const V*>(p));
#endif
}

// d[16][8] += a[16][16] * b[16][8], fp16 factors, fp32 sums; the fragments are those of mma.m16n8k16 in the PTX manual:
// lane = 4 * g + t holds a[g][2t..] a[g + 8][2t..] a[g][2t + 8..] a[g + 8][2t + 8..], b[2t..][g] b[2t + 8..][g] and
// d[g][2t..] d[g + 8][2t..], two values each.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  (void)d, (void)a, (void)b0, (void)b1;
#endif
}

// The same with bf16 factors.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                  std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  (void)d, (void)a, (void)b0, (void)b1;
#endif
}

// Launches kernel<<<grid, block, shared, stream>>>(arguments...). The error is the caller's only: it does not stay
// behind for cudaGetLastError.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
                   Arguments&&... arguments) {
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t error = std::apply(
      [&](Parameters&... parameters) {
        void* pointers[] = {&parameters...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared, stream);
      },
      values);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace pncuda

#endif

#endif  // PNCUDA_DEVICE_CUH
