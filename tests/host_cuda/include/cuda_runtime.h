// Stand-in for CUDA's header of this name: what the kernels and their host code use of it, for a C++ compiler. See
// tests/host_cuda/README.md.
#ifndef HOST_CUDA_CUDA_RUNTIME_H
#define HOST_CUDA_CUDA_RUNTIME_H

#include <math.h>

#include <host_cuda/intrinsics.hpp>
#include <host_cuda/runtime.hpp>

#endif  // HOST_CUDA_CUDA_RUNTIME_H
