// Stand-in for CUDA's header of this name: what the kernels and their host code use of it, for a C++ compiler. See
// tests/host_cuda/README.md.
#ifndef HOST_CUDA_CUDA_RUNTIME_H
#define HOST_CUDA_CUDA_RUNTIME_H

#include <math.h>

#include <host_cuda/engine.hpp>
#include <host_cuda/intrinsics.hpp>
#include <host_cuda/runtime.hpp>
#include <tuple>
#include <utility>

namespace host_cuda {

template <class... Parameters, std::size_t... i>
std::tuple<Parameters...> values_at(void** arguments, std::index_sequence<i...>) {
  return {*static_cast<Parameters*>(arguments[i])...};
}

}  // namespace host_cuda

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared = 0, cudaStream_t stream = nullptr) {
  const std::tuple<Parameters...> values =
      host_cuda::values_at<Parameters...>(arguments, std::index_sequence_for<Parameters...>());
  return host_cuda::launch({reinterpret_cast<const void*>(kernel), grid, block, shared, stream,
                            [kernel, values] { std::apply(kernel, values); }});
}

#endif  // HOST_CUDA_CUDA_RUNTIME_H
