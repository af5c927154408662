// For ThreadSanitizer: kernels whose threads share memory, each on small shapes with one chunk and with several. The
// layer orders memory at barriers only, so a missing one is a race. Blocks run on two host threads.
#include <cuda_runtime.h>
#include <pncuda/pncuda.h>

#include <cstdio>
#include <host_cuda/host_cuda.hpp>
#include <vector>

#include "../pn/testing.hpp"

namespace {

void* allocate(std::int64_t bytes) {
  void* p = nullptr;
  cudaMalloc(&p, static_cast<std::size_t>(bytes));
  return p;
}

int failures = 0;
void check(pncuda_status status) { failures += status != PNCUDA_OK; }

void multiply(int type, std::int64_t rows, std::int64_t blocks, std::int64_t tokens, int x_type, int mode,
              int hadamard) {
  const std::int64_t k = blocks * (type == PNCUDA_PN3T ? 80 : 64);
  testing::Random random(1);
  auto* const w = static_cast<std::uint8_t*>(allocate(rows * blocks * 34));
  for (std::int64_t i = 0; i < rows * blocks * 34; ++i) w[i] = i % 34 == 1 ? 0x20 : random.byte();
  const std::int64_t element = x_type == PNCUDA_F32 ? 4 : 2;
  void* const x = allocate(tokens * k * element);
  cudaMemset(x, 0x3B, static_cast<std::size_t>(tokens * k * element));
  void* const turned = allocate(tokens * k * 4);
  void* const y = allocate(tokens * rows * 4);
  const pncuda_weights native{sizeof native, type, PNCUDA_NATIVE, w, rows, k, blocks * 34};
  const pncuda_weights repacked{sizeof repacked, type, PNCUDA_REPACKED, w, rows, k, 0};  // any bytes are safe
  for (const pncuda_weights* weights : {&native, &repacked}) {
    const pncuda_gemv_args args{sizeof args, weights,  x,      k * element, x_type,  PNCUDA_F32,
                                y,           rows * 4, tokens, mode,        hadamard};
    check(pncuda_gemv(&args, nullptr));
  }
  if (hadamard != 0) {
    const pncuda_hadamard_args args{sizeof args, x,      k * element, turned,   k * 4, x_type,
                                    PNCUDA_F32,  tokens, k,           hadamard, 0};
    check(pncuda_hadamard(&args, nullptr));
  }
  for (void* const p : {static_cast<void*>(w), x, turned, y}) cudaFree(p);
}

}  // namespace

int main() {
  host_cuda::set_host_threads(2);
  host_cuda::Device small = host_cuda::a10();
  small.multiprocessors = 1;  // several groups of rows for a block of threads
  for (const auto& device : {host_cuda::p100(), host_cuda::h100(), small})
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2}) {
      if (device.major >= 8 && mode != PNCUDA_ACCURATE) continue;
      host_cuda::set_device(device);
      check(pncuda_prepare(0));
      multiply(PNCUDA_PN3T, 18, 17, 2, PNCUDA_F16, mode, 0);
      multiply(PNCUDA_PN4T, 34, 81, 1, PNCUDA_F32, mode, 0);
      multiply(PNCUDA_PN3T, 17, 80, 1, PNCUDA_BF16, mode, 256);
      multiply(PNCUDA_PN4T, 10, 16, 3, PNCUDA_F16, mode, 64);
    }
  if (failures != 0) std::printf("%d calls failed\n", failures);
  return failures == 0 ? 0 : 1;
}
