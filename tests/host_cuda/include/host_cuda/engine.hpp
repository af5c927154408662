// host_cuda: between the functions that kernels call and the engine (engine.cpp), which runs every CUDA thread as a
// fiber.
#ifndef HOST_CUDA_ENGINE_HPP
#define HOST_CUDA_ENGINE_HPP

#include <cstddef>
#include <functional>
#include <host_cuda/runtime.hpp>
#include <string>

// The running thread's, as in CUDA. The engine sets them whenever it switches.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace host_cuda {

// A place in a kernel's source; as a default argument, the caller's.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// A kernel with its arguments; `body` runs one thread of it.
struct Launch {
  const void* kernel;
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
  std::function<void()> body;
};

// Checks, logs and runs a launch, or records it while its stream captures (runtime.cpp).
cudaError_t launch(Launch&& request);

// Other work of a stream, logged as `name`: done at once, or recorded while the stream captures (runtime.cpp).
cudaError_t enqueue(const char* name, cudaStream_t stream, std::function<cudaError_t()> work);

namespace engine {

// Runs all blocks. False after a fault that was recorded; the rest of the grid is not run then.
bool run(const Launch& launch, int compute_capability);

// True in device code.
bool in_kernel();

// Switches between fibers since the process began.
std::uint64_t switches();

// Device code did what CUDA forbids: reports it with block and thread, and ends the launch or the process.
[[noreturn]] void fault(const std::string& what, Site site);

// The block's dynamic shared memory.
void* shared_memory();

// The running thread's place in its warp.
unsigned lane();

enum class Barrier { plain, any, all, count };
// __syncthreads and its variants: returns what the kind says of the predicates of the block's threads.
int barrier(Barrier kind, bool predicate, Site site);

// One collective operation of a warp: the constructor publishes the lane's value and waits until every lane of `mask`
// that has not exited is in the same operation; then the values of all can be read.
class Exchange {
 public:
  static constexpr std::size_t max_bytes = 48;
  // `operation` is a string literal that names the operation in reports. Memory is ordered for ThreadSanitizer only.
  Exchange(const char* operation, unsigned mask, const void* value, std::size_t bytes, Site site,
           bool orders_memory = false);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  unsigned lanes() const { return lanes_; }  // that took part
  void read(unsigned lane, void* value, std::size_t bytes) const;

 private:
  struct Collective* collective_;
  unsigned lanes_;
};

// A shuffle's value from lane `source`: poison, and a fault in strict mode, when that lane does not take part.
void shuffle(const char* operation, unsigned mask, void* value, std::size_t bytes, unsigned source, Site site);

// Lanes of `mask` whose predicate holds, in `held`; returns those that took part.
unsigned vote(const char* operation, unsigned mask, bool predicate, unsigned& held, Site site);

// pncuda::mma_m16n8k16 and mma_m16n8k16_bf16.
enum class Factors { f16, bf16 };
void mma_m16n8k16(Factors factors, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  Site site);

}  // namespace engine
}  // namespace host_cuda

#endif  // HOST_CUDA_ENGINE_HPP
