// host_cuda: what cuda/device.cuh supplies on a GPU.
#ifndef HOST_CUDA_DEVICE_HPP
#define HOST_CUDA_DEVICE_HPP

#include <cuda_runtime.h>

#include <host_cuda/engine.hpp>
#include <tuple>
#include <utility>

#if !defined(HOST_CUDA_CUDA_RUNTIME_H)
#error "CUDA's own <cuda_runtime.h> was found before tests/host_cuda/include"
#endif

#define PNCUDA_SHARED(T, name) T* const name = static_cast<T*>(host_cuda::engine::shared_memory())

namespace pncuda {

inline uint4 load_streaming(const uint4* p, host_cuda::Site site = host_cuda::Site::here()) {
  return *host_cuda::aligned(p, site);
}

template <class V>
V load_shared_lines(const std::uint8_t* p, host_cuda::Site site = host_cuda::Site::here()) {
  return *host_cuda::aligned(reinterpret_cast<const V*>(p), site);
}

// Sums in double, k after k on top of d, rounded once. (A GPU's sums differ in their last bits.)
inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                         host_cuda::Site site = host_cuda::Site::here()) {
  host_cuda::engine::mma_m16n8k16(host_cuda::engine::Factors::f16, d, a, b0, b1, site);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                              host_cuda::Site site = host_cuda::Site::here()) {
  host_cuda::engine::mma_m16n8k16(host_cuda::engine::Factors::bf16, d, a, b0, b1, site);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
                   Arguments&&... arguments) {
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t error = host_cuda::launch({reinterpret_cast<const void*>(kernel), grid, block, shared, stream,
                                               [kernel, values] { std::apply(kernel, values); }});
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace pncuda

#endif  // HOST_CUDA_DEVICE_HPP
