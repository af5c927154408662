// For ThreadSanitizer: it must see the races of some kernels, each in a process of its own, and none in the others.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <host_cuda/host_cuda.hpp>

#include "device.cuh"

namespace {

enum class Order { none, barrier, warp, shuffle };

// Each thread writes a word of shared memory and reads its neighbour's, ordered as `order` says.
__global__ void neighbours(Order order, unsigned distance, int* out) {
  PNCUDA_SHARED(int, s);
  const unsigned t = threadIdx.x;
  for (int turn = 0; turn < 3; ++turn) {
    s[t] = turn;
    if (order == Order::barrier) __syncthreads();
    if (order == Order::warp) __syncwarp();
    if (order == Order::shuffle) __shfl_xor_sync(0xFFFFFFFFu, turn, 1);
    const int v = s[t ^ distance];
    if (order == Order::barrier) __syncthreads();
    if (order == Order::warp) __syncwarp();
    out[blockIdx.x * blockDim.x + t] = v;
  }
}

__global__ void one_barrier_too_few(int* out) {
  PNCUDA_SHARED(int, s);
  const unsigned t = threadIdx.x;
  for (int turn = 0; turn < 3; ++turn) {
    s[t] = turn;  // while others may still read
    __syncthreads();
    out[blockIdx.x * blockDim.x + t] += s[t ^ 1];
  }
}

__global__ void all_blocks_write(int* out) { out[threadIdx.x] = 1; }
__global__ void read(const int* in, int* out) { out[threadIdx.x] = in[63 - threadIdx.x]; }

// True when ThreadSanitizer ends the process that does this.
template <class Deed>
bool races(Deed deed) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::fclose(stderr);
    close(STDERR_FILENO);
    deed();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  using pncuda::launch;
  int *out = nullptr, *other = nullptr;
  cudaMalloc(&out, 4096);
  cudaMalloc(&other, 4096);
  cudaMemset(out, 0, 4096);
  const auto run = [&](Order order, unsigned distance) {
    launch(neighbours, 4, 64, 256, nullptr, order, distance, out);
  };
  bool right = true;
  const auto expect = [&](const char* what, bool found, bool wanted) {
    std::printf("%s: %s\n", what, found ? "race" : "no race");
    right = right && found == wanted;
  };
  expect("nothing orders", races([&] { run(Order::none, 1); }), true);
  expect("a warp's barrier between warps", races([&] { run(Order::warp, 33); }), true);
  expect("a shuffle", races([&] { run(Order::shuffle, 1); }), true);
  expect("one barrier too few", races([&] { launch(one_barrier_too_few, 1, 64, 256, nullptr, out); }), true);
  expect("blocks write one word", races([&] { launch(all_blocks_write, 2, 32, 0, nullptr, out); }), true);
  for (const int threads : {1, 2}) {
    host_cuda::set_host_threads(threads);
    const auto clean = [&] {  // in this process: a race ends it
      run(Order::barrier, 33);
      run(Order::warp, 1);
      launch(read, 1, 64, 0, nullptr, out, other);
      cudaMemset(out, 0, 4096);
    };
    expect("ordered", races(clean), false);
    clean();
  }
  cudaFree(out);
  cudaFree(other);
  return right ? 0 : 1;
}
