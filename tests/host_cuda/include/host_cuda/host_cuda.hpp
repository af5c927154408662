// host_cuda: what tests can set and ask. Everything is for the whole process unless it says otherwise.
#ifndef HOST_CUDA_HOST_CUDA_HPP
#define HOST_CUDA_HOST_CUDA_HPP

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace host_cuda {

// ---- Devices ----

struct Device {
  std::string name;
  int major, minor;
  int multiprocessors;
  int shared_per_block;        // bytes of dynamic shared memory without an attribute
  int shared_per_block_optin;  // with cudaFuncAttributeMaxDynamicSharedMemorySize
  int shared_per_multiprocessor;
  int threads_per_multiprocessor;
  int l2_bytes;
  bool has_kernels = true;  // false: no kernel of the program was compiled for it (cudaErrorNoKernelImageForDevice)
};

Device p100();     // 6.0
Device t4();       // 7.5
Device a10();      // 8.6
Device h100();     // 9.0, the device unless another one is set
Device too_old();  // 5.2, without kernels

// The devices from now on, numbered from 0; forgets attributes of kernels and makes device 0 the calling thread's
// current one. None: cudaErrorNoDevice.
void set_devices(std::vector<Device> devices);
void set_device(const Device& device);

// ---- Order ----

// In what order the threads of a block run between two barriers, or the blocks of a grid. A shuffled order differs
// after every barrier. HOST_CUDA_ORDER and HOST_CUDA_BLOCK_ORDER in the environment (forward, reverse or a seed) are
// the defaults.
struct Order {
  enum Kind { forward, reverse, shuffled } kind = forward;
  std::uint64_t seed = 0;
};
void set_thread_order(Order order);
void set_block_order(Order order);

// Blocks run on this many host threads; by default HOST_CUDA_THREADS in the environment, or 1.
void set_host_threads(int threads);

// ---- Faults: what CUDA forbids or leaves undefined ----

// Unless recorded, a fault is written to stderr and the process aborts. When recorded, the launch returns
// cudaErrorLaunchFailure; take_fault gives the first fault's text since the last call, empty if there was none.
void record_faults(bool record);
std::string take_fault();

// Strict, the default: a shuffle that reads a lane which does not take part is a fault, and so is a barrier that some
// threads of the block cannot reach because they have exited. Otherwise the former gives 0xFF bytes (NaN), and the
// latter waits for the others, as GPUs do.
void set_strict(bool strict);

// ---- Calls of the runtime ----

struct LaunchRecord {
  const void* kernel;
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
  bool captured;
};

// What a stream was given: a kernel ("launch"), a product of matrices ("cublasGemmEx"), a copy, the record of an event
// or the wait for one.
struct WorkRecord {
  std::string name;
  cudaStream_t stream;
  cudaEvent_t event;  // or null
  bool captured;
};

struct Calls {
  std::map<std::string, std::size_t> counts;  // by name: "cudaMalloc"; kernels are "launch"
  std::vector<std::string> in_capture;        // names of the calls made while a stream captured, in order
  std::vector<LaunchRecord> launches;         // those that were accepted
  std::vector<WorkRecord> work;               // of all streams, in the order of the calls; what was accepted
  std::uint64_t switches = 0;                 // between fibers
  std::size_t count(const std::string& name) const {
    const auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
  }
};
Calls calls();  // since the last reset
void reset_calls();

// The next call of that name ("launch" for a kernel) does nothing and returns `error`.
void fail_next(const std::string& name, cudaError_t error);

// Bytes of device memory that are allocated.
std::size_t allocated_bytes();

// What events take for the time, in milliseconds, when they are recorded; an empty function: wall time.
void set_clock(std::function<double()> clock);

// ---- Capture: shorter than CUDA's own functions, which work too ----

void begin_capture(cudaStream_t stream);  // not the default stream, as in CUDA

// In what order a graph's operations run, of all that its streams and events allow. forward: as they were recorded.
// reverse: each time the last recorded of those that need not wait, so that a stream that is given work later runs
// ahead as far as events let it. Whatever the order, results must be the same: if not, a wait for an event is missing.
void set_graph_order(Order order);

// What was recorded; nothing has run yet. `error` is what CUDA would say at the end of the capture.
class Graph {
 public:
  explicit Graph(cudaGraph_t graph, cudaError_t result) : error(result), graph_(graph) {}
  Graph(Graph&& other) noexcept : error(other.error), graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph();
  cudaError_t replay() const;  // as often as one likes
  std::size_t size() const;    // operations
  cudaError_t error;

 private:
  cudaGraph_t graph_;
};
Graph end_capture();

}  // namespace host_cuda

#endif  // HOST_CUDA_HOST_CUDA_HPP
