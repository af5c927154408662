// host_cuda: the runtime's functions. Streams do their work at once, on the calling thread; a capturing stream keeps
// it, with what it has to wait for.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <host_cuda/engine.hpp>
#include <host_cuda/host_cuda.hpp>
#include <memory>
#include <mutex>
#include <random>
#include <set>

using host_cuda::Calls;
using host_cuda::Device;
using Operation = std::function<cudaError_t()>;

// Places in the list of a graph's operations.
using Places = std::set<std::size_t>;

// An operation of a graph and those, earlier in the list, that it runs after.
struct Node {
  Operation run;
  Places after;
};

struct CUgraph_st {
  std::vector<Node> nodes;
};

struct CUgraphExec_st {
  std::vector<Node> nodes;
};

// A capture begins with one stream; those that wait for its events join it.
struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  std::vector<Node> nodes;
};

struct CUstream_st {
  int device = 0;
  std::shared_ptr<Capture> capture;  // null unless it takes part in one
  Places last;                       // what its next operation in the capture runs after
};

struct CUevent_st {
  bool timing = true;
  bool recorded = false;
  double time = 0;                   // milliseconds
  std::shared_ptr<Capture> capture;  // if it was recorded in one, which may have ended
  Places last;                       // what it stands for there
};

namespace {

// Guarded by its mutex.
struct Runtime {
  std::mutex mutex;
  std::vector<Device> devices{host_cuda::h100()};
  std::map<std::uintptr_t, std::size_t> memory;  // first address -> bytes
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  host_cuda::Order graph_order;
  std::function<double()> clock;
  std::map<std::pair<int, const void*>, int> shared_limits;  // (device, kernel) -> attribute
  std::map<std::string, cudaError_t> failures;               // of fail_next
  Calls calls;
  std::uint64_t switches_before = 0;
};

Runtime& runtime() {
  static Runtime one;
  return one;
}

struct Lock : std::lock_guard<std::mutex> {
  Lock() : lock_guard(runtime().mutex) {}
};

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

// The capture that goes on; null if none does. Needs the lock.
std::shared_ptr<Capture> capturing() {
  for (const cudaStream_t stream : runtime().streams) {
    if (stream->capture != nullptr) return stream->capture;
  }
  return nullptr;
}

cudaError_t break_capture(cudaError_t error) {
  capturing()->status = cudaStreamCaptureStatusInvalidated;
  return error;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

enum class InCapture { allowed, forbidden };

// What every call begins with: the log, failures that a test ordered, what capture forbids.
cudaError_t begin(const char* name, InCapture in_capture) {
  if (host_cuda::engine::in_kernel()) {
    host_cuda::engine::fault(std::string("device code calls ") + name, host_cuda::Site::here());
  }
  const Lock lock;
  Runtime& r = runtime();
  ++r.calls.counts[name];
  const bool captures = capturing() != nullptr;
  if (captures) r.calls.in_capture.push_back(name);
  if (const auto failure = r.failures.find(name); failure != r.failures.end()) {
    const cudaError_t error = failure->second;
    r.failures.erase(failure);
    return error;
  }
  if (r.devices.empty()) return cudaErrorNoDevice;
  if (captures && in_capture == InCapture::forbidden) return break_capture(cudaErrorStreamCaptureUnsupported);
  return cudaSuccess;
}

template <class Body>
cudaError_t call(const char* name, InCapture in_capture, Body body) {
  cudaError_t error = begin(name, in_capture);
  if (error == cudaSuccess) error = body();
  return remember(error);
}

// Whether the stream can be used by the calling thread now. Needs the lock.
cudaError_t check_stream(cudaStream_t stream) {
  if (stream == nullptr) return capturing() != nullptr ? break_capture(cudaErrorStreamCaptureImplicit) : cudaSuccess;
  if (runtime().streams.count(stream) == 0) return cudaErrorInvalidResourceHandle;
  if (stream->device != current_device) return cudaErrorInvalidResourceHandle;
  const bool broken = stream->capture != nullptr && stream->capture->status == cudaStreamCaptureStatusInvalidated;
  return broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

// Runs the operation, or keeps it when the stream captures.
cudaError_t schedule(const char* name, cudaStream_t stream, Operation operation, bool* captured = nullptr) {
  {
    const Lock lock;
    if (const cudaError_t error = check_stream(stream); error != cudaSuccess) return error;
    const bool captures = stream != nullptr && stream->capture != nullptr;
    runtime().calls.work.push_back({name, stream, nullptr, captures});
    if (captures) {
      std::vector<Node>& nodes = stream->capture->nodes;
      nodes.push_back({std::move(operation), stream->last});
      stream->last = {nodes.size() - 1};
      if (captured != nullptr) *captured = true;
      return cudaSuccess;
    }
  }
  return operation();
}

enum class Where { host, device, outside };

// Where the bytes lie; `outside`: partly outside the allocation that they begin in.
Where find(const void* p, std::size_t bytes) {
  const Lock lock;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  auto after = runtime().memory.upper_bound(address);
  if (after == runtime().memory.begin()) return Where::host;
  const auto& [first, size] = *--after;
  if (address - first >= size) return Where::host;
  return size - (address - first) >= bytes ? Where::device : Where::outside;
}

bool may_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return true;
  const Where target = find(to, bytes), source = find(from, bytes);
  if (target == Where::outside || source == Where::outside) return false;
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return (target == Where::device) == to_device && (source == Where::device) == from_device;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (!may_copy(to, from, bytes, kind)) return cudaErrorInvalidValue;
  if (bytes != 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t bytes) {
  if (bytes != 0 && find(to, bytes) != Where::device) return cudaErrorInvalidValue;
  if (bytes != 0) std::memset(to, value, bytes);
  return cudaSuccess;
}

bool valid_device(int device) {
  const Lock lock;
  return device >= 0 && static_cast<std::size_t>(device) < runtime().devices.size();
}

Device device_properties(int device) {
  const Lock lock;
  return runtime().devices[static_cast<std::size_t>(device)];
}

int shared_limit(int device, const void* kernel) {
  const int standard = device_properties(device).shared_per_block;
  const Lock lock;
  const auto found = runtime().shared_limits.find({device, kernel});
  return found == runtime().shared_limits.end() ? standard : std::max(standard, found->second);
}

bool valid_stream(cudaStream_t stream) {
  const Lock lock;
  return stream == nullptr || runtime().streams.count(stream) != 0;
}

cudaError_t check_launch(const host_cuda::Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  if (launch.kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0) return cudaErrorInvalidConfiguration;
  if (g.x > 0x7FFFFFFFu || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
  if (b.x > 1024 || b.y > 1024 || b.z > 64 || b.x * b.y * b.z > 1024) return cudaErrorInvalidConfiguration;
  if (!device_properties(current_device).has_kernels) return cudaErrorNoKernelImageForDevice;
  if (launch.shared > static_cast<std::size_t>(shared_limit(current_device, launch.kernel)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

// Runs a graph in the order that was set.
cudaError_t run_all(const std::vector<Node>& nodes) {
  host_cuda::Order order;
  {
    const Lock lock;
    order = runtime().graph_order;
  }
  std::mt19937_64 random(order.seed);
  std::vector<bool> done(nodes.size());
  const auto ready = [&](std::size_t i) {
    const Places& after = nodes[i].after;
    return !done[i] && std::all_of(after.begin(), after.end(), [&](std::size_t place) { return done[place]; });
  };
  for (std::size_t count = 0; count < nodes.size(); ++count) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (ready(i)) all.push_back(i);
    }
    std::size_t next = all.front();
    if (order.kind == host_cuda::Order::reverse) next = all.back();
    if (order.kind == host_cuda::Order::shuffled) next = all[random() % all.size()];
    if (const cudaError_t error = nodes[next].run(); error != cudaSuccess) return error;
    done[next] = true;
  }
  return cudaSuccess;
}

// Whether all of `places` come before or are among `last`.
bool covers(const std::vector<Node>& nodes, const Places& last, const Places& places) {
  std::vector<bool> before(nodes.size());
  std::vector<std::size_t> left(last.begin(), last.end());
  while (!left.empty()) {
    const std::size_t place = left.back();
    left.pop_back();
    if (before[place]) continue;
    before[place] = true;
    left.insert(left.end(), nodes[place].after.begin(), nodes[place].after.end());
  }
  return std::all_of(places.begin(), places.end(), [&](std::size_t place) { return before[place]; });
}

double now() {
  std::function<double()> clock;
  {
    const Lock lock;
    clock = runtime().clock;
  }
  if (clock) return clock();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// ---- host_cuda ----

namespace host_cuda {

constexpr int KiB = 1024, MiB = 1024 * KiB;
Device p100() { return {"P100", 6, 0, 56, 48 * KiB, 48 * KiB, 64 * KiB, 2048, 4 * MiB}; }
Device t4() { return {"T4", 7, 5, 40, 48 * KiB, 64 * KiB, 64 * KiB, 1024, 4 * MiB}; }
Device a10() { return {"A10", 8, 6, 72, 48 * KiB, 99 * KiB, 100 * KiB, 1536, 6 * MiB}; }
Device h100() { return {"H100", 9, 0, 132, 48 * KiB, 227 * KiB, 228 * KiB, 2048, 50 * MiB}; }
Device too_old() { return {"too old", 5, 2, 16, 48 * KiB, 48 * KiB, 96 * KiB, 2048, 2 * MiB, false}; }

void set_devices(std::vector<Device> devices) {
  const Lock lock;
  runtime().devices = std::move(devices);
  runtime().shared_limits.clear();
  current_device = 0;
}
void set_device(const Device& device) { set_devices({device}); }

cudaError_t launch(Launch&& request) {
  return call("launch", InCapture::allowed, [&] {
    if (const cudaError_t refused = check_launch(request); refused != cudaSuccess) return refused;
    const Device device = device_properties(current_device);
    LaunchRecord record{request.kernel, request.grid, request.block, request.shared, request.stream, false};
    const cudaStream_t stream = request.stream;
    const auto run = [request = std::move(request), capability = 10 * device.major + device.minor] {
      return engine::run(request, capability) ? cudaSuccess : cudaErrorLaunchFailure;
    };
    const cudaError_t result = schedule("launch", stream, run, &record.captured);
    const Lock lock;
    if (result == cudaSuccess) runtime().calls.launches.push_back(record);
    return result;
  });
}

cudaError_t enqueue(const char* name, cudaStream_t stream, std::function<cudaError_t()> work) {
  return call(name, InCapture::allowed, [&] { return schedule(name, stream, std::move(work)); });
}

Calls calls() {
  const Lock lock;
  Calls copy = runtime().calls;
  copy.switches = engine::switches() - runtime().switches_before;
  return copy;
}

void reset_calls() {
  const Lock lock;
  runtime().calls = {};
  runtime().switches_before = engine::switches();
}

void fail_next(const std::string& name, cudaError_t error) {
  const Lock lock;
  runtime().failures[name] = error;
}

std::size_t allocated_bytes() {
  const Lock lock;
  std::size_t sum = 0;
  for (const auto& [first, bytes] : runtime().memory) sum += bytes;
  return sum;
}

void begin_capture(cudaStream_t stream) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess) std::abort();
}

Graph end_capture() {
  cudaStream_t stream = nullptr;
  {
    const Lock lock;
    if (const auto capture = capturing(); capture != nullptr) stream = capture->origin;
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  return Graph(graph, error);
}

Graph::~Graph() { delete graph_; }
cudaError_t Graph::replay() const { return graph_ == nullptr ? error : run_all(graph_->nodes); }
std::size_t Graph::size() const { return graph_ == nullptr ? 0 : graph_->nodes.size(); }

void set_graph_order(Order order) {
  const Lock lock;
  runtime().graph_order = order;
}

void set_clock(std::function<double()> clock) {
  const Lock lock;
  runtime().clock = std::move(clock);
}

}  // namespace host_cuda

// ---- Errors ----

cudaError_t cudaGetLastError() {
  begin("cudaGetLastError", InCapture::allowed);
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  begin("cudaPeekAtLastError", InCapture::allowed);
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define HOST_CUDA_NAME(name) \
  case name: return #name
    HOST_CUDA_NAME(cudaSuccess);
    HOST_CUDA_NAME(cudaErrorInvalidValue);
    HOST_CUDA_NAME(cudaErrorMemoryAllocation);
    HOST_CUDA_NAME(cudaErrorInvalidConfiguration);
    HOST_CUDA_NAME(cudaErrorInvalidDeviceFunction);
    HOST_CUDA_NAME(cudaErrorNoDevice);
    HOST_CUDA_NAME(cudaErrorInvalidDevice);
    HOST_CUDA_NAME(cudaErrorNoKernelImageForDevice);
    HOST_CUDA_NAME(cudaErrorInvalidResourceHandle);
    HOST_CUDA_NAME(cudaErrorIllegalState);
    HOST_CUDA_NAME(cudaErrorNotReady);
    HOST_CUDA_NAME(cudaErrorLaunchFailure);
    HOST_CUDA_NAME(cudaErrorNotSupported);
    HOST_CUDA_NAME(cudaErrorStreamCaptureUnsupported);
    HOST_CUDA_NAME(cudaErrorStreamCaptureInvalidated);
    HOST_CUDA_NAME(cudaErrorStreamCaptureMerge);
    HOST_CUDA_NAME(cudaErrorStreamCaptureUnmatched);
    HOST_CUDA_NAME(cudaErrorStreamCaptureUnjoined);
    HOST_CUDA_NAME(cudaErrorStreamCaptureIsolation);
    HOST_CUDA_NAME(cudaErrorStreamCaptureImplicit);
    HOST_CUDA_NAME(cudaErrorCapturedEvent);
    HOST_CUDA_NAME(cudaErrorUnknown);
#undef HOST_CUDA_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// ---- Devices and functions ----

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", InCapture::allowed, [&] { return *device = current_device, cudaSuccess; });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", InCapture::allowed, [&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", InCapture::allowed, [&] {
    const Lock lock;
    *count = static_cast<int>(runtime().devices.size());
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", InCapture::allowed, [&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    const Device d = device_properties(device);
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock: *value = d.shared_per_block; return cudaSuccess;
      case cudaDevAttrWarpSize: *value = 32; return cudaSuccess;
      case cudaDevAttrMultiProcessorCount: *value = d.multiprocessors; return cudaSuccess;
      case cudaDevAttrL2CacheSize: *value = d.l2_bytes; return cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor: *value = d.threads_per_multiprocessor; return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor: *value = d.major; return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor: *value = d.minor; return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = d.shared_per_multiprocessor; return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = d.shared_per_block_optin; return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", InCapture::allowed, [&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    const Device d = device_properties(device);
    *properties = {};
    d.name.copy(properties->name, sizeof properties->name - 1);
    properties->totalGlobalMem = std::size_t{16} << 30;
    properties->sharedMemPerBlock = static_cast<std::size_t>(d.shared_per_block);
    properties->sharedMemPerBlockOptin = static_cast<std::size_t>(d.shared_per_block_optin);
    properties->sharedMemPerMultiprocessor = static_cast<std::size_t>(d.shared_per_multiprocessor);
    properties->major = d.major;
    properties->minor = d.minor;
    properties->multiProcessorCount = d.multiprocessors;
    properties->l2CacheSize = d.l2_bytes;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = d.threads_per_multiprocessor;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", InCapture::forbidden, [] { return cudaSuccess; });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", InCapture::allowed, [&] {
    const Device d = device_properties(current_device);
    if (!d.has_kernels) return cudaErrorNoKernelImageForDevice;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > d.shared_per_block_optin) return cudaErrorInvalidValue;
    const Lock lock;
    runtime().shared_limits[{current_device, kernel}] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call("cudaFuncGetAttributes", InCapture::allowed, [&] {
    const Device d = device_properties(current_device);
    if (!d.has_kernels) return cudaErrorNoKernelImageForDevice;
    const int version = 10 * d.major + d.minor;
    *attributes = {0, 0, 0, 1024, 32, version, version, shared_limit(current_device, kernel)};
    return cudaSuccess;
  });
}

// By threads and shared memory alone; registers are unknown here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                          std::size_t shared) {
  return call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", InCapture::allowed, [&] {
    const Device d = device_properties(current_device);
    if (threads < 1) return cudaErrorInvalidValue;
    const std::size_t reserved = d.major >= 8 ? 1024 : 0;  // by the system, for each block
    const bool fits = threads <= 1024 && shared <= static_cast<std::size_t>(shared_limit(current_device, kernel));
    *blocks = fits ? std::min(32, d.threads_per_multiprocessor / ((threads + 31) / 32 * 32)) : 0;
    if (shared + reserved != 0) {
      const std::size_t by_memory = static_cast<std::size_t>(d.shared_per_multiprocessor) / (shared + reserved);
      *blocks = static_cast<int>(std::min(static_cast<std::size_t>(*blocks), by_memory));
    }
    return cudaSuccess;
  });
}

// ---- Memory ----

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return call("cudaMalloc", InCapture::forbidden, [&] {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > std::size_t{16} << 30 || posix_memalign(pointer, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, 0xFF, bytes);
    const Lock lock;
    runtime().memory[reinterpret_cast<std::uintptr_t>(*pointer)] = bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* pointer) {
  return call("cudaFree", InCapture::forbidden, [&] {
    const Lock lock;
    if (pointer == nullptr) return cudaSuccess;
    if (runtime().memory.erase(reinterpret_cast<std::uintptr_t>(pointer)) == 0) return cudaErrorInvalidValue;
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", InCapture::forbidden, [&] { return copy(to, from, bytes, kind); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", InCapture::allowed,
              [&] { return schedule("cudaMemcpyAsync", stream, [=] { return copy(to, from, bytes, kind); }); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call("cudaMemset", InCapture::forbidden, [&] { return fill(to, value, bytes); });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", InCapture::allowed,
              [&] { return schedule("cudaMemsetAsync", stream, [=] { return fill(to, value, bytes); }); });
}

// ---- Streams and graphs ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreate", InCapture::allowed, [&] {
    *stream = new CUstream_st;
    (*stream)->device = current_device;
    const Lock lock;
    runtime().streams.insert(*stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return call("cudaDeviceGetStreamPriorityRange", InCapture::allowed,
              [&] { return *lowest = 0, *highest = -5, cudaSuccess; });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", InCapture::forbidden,
              [&] { return valid_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

// Work that is not captured is done when an event is recorded: there is nothing to wait for.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", InCapture::allowed, [&] {
    const Lock lock;
    if (runtime().events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_stream(stream); error != cudaSuccess) return error;
    const bool captures = stream != nullptr && stream->capture != nullptr;
    const std::shared_ptr<Capture>& from = event->capture;
    if (from != nullptr && from != capturing()) return cudaErrorCapturedEvent;
    if (from == nullptr && event->recorded && captures) return break_capture(cudaErrorStreamCaptureIsolation);
    if (from != nullptr && stream == nullptr) return break_capture(cudaErrorStreamCaptureImplicit);
    if (from != nullptr && !captures) {
      stream->capture = from;
      stream->last.clear();
    }
    if (from != nullptr) stream->last.insert(event->last.begin(), event->last.end());
    runtime().calls.work.push_back({"cudaStreamWaitEvent", stream, event, from != nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", InCapture::allowed, [&] {
    const Lock lock;
    if (runtime().streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    delete stream;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  return call("cudaStreamBeginCapture", InCapture::allowed, [&] {
    const Lock lock;
    if (runtime().streams.count(stream) == 0) return cudaErrorInvalidResourceHandle;
    if (capturing() != nullptr) return cudaErrorIllegalState;  // one at a time is enough here
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = stream;
    stream->last.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const Lock lock;
  if (runtime().streams.count(stream) == 0) return remember(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return remember(cudaErrorIllegalState);
  if (capture->origin != stream) return remember(break_capture(cudaErrorStreamCaptureUnmatched));
  bool joined = true;
  for (const cudaStream_t one : runtime().streams) {
    if (one->capture != capture) continue;
    joined = joined && covers(capture->nodes, stream->last, one->last);
    one->capture = nullptr;
  }
  if (capture->status == cudaStreamCaptureStatusInvalidated) return remember(cudaErrorStreamCaptureInvalidated);
  if (!joined) return remember(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", InCapture::allowed, [&] {
    if (!valid_stream(stream)) return cudaErrorInvalidResourceHandle;
    const Lock lock;
    if (stream == nullptr && capturing() != nullptr) return break_capture(cudaErrorStreamCaptureImplicit);
    *status = stream == nullptr || stream->capture == nullptr ? cudaStreamCaptureStatusNone : stream->capture->status;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", InCapture::allowed, [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call("cudaGraphLaunch", InCapture::allowed, [&] {
    if (executable == nullptr || !valid_stream(stream)) return cudaErrorInvalidValue;
    return schedule("cudaGraphLaunch", stream, [nodes = executable->nodes] { return run_all(nodes); });
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

// ---- Events: moments, or places in a capture ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreate", InCapture::allowed, [&] {
    *event = new CUevent_st;
    (*event)->timing = (flags & cudaEventDisableTiming) == 0;
    const Lock lock;
    runtime().events.insert(*event);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", InCapture::allowed, [&] {
    const double time = now();
    const Lock lock;
    if (runtime().events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_stream(stream); error != cudaSuccess) return error;
    const bool captures = stream != nullptr && stream->capture != nullptr;
    event->recorded = true;
    event->time = time;
    event->capture = captures ? stream->capture : nullptr;
    event->last = captures ? stream->last : Places();
    runtime().calls.work.push_back({"cudaEventRecord", stream, event, captures});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", InCapture::forbidden, [&] {
    const Lock lock;
    if (runtime().events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    return event->capture != nullptr ? cudaErrorCapturedEvent : cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin_event, cudaEvent_t end_event) {
  return call("cudaEventElapsedTime", InCapture::allowed, [&] {
    const Lock lock;
    for (const cudaEvent_t event : {begin_event, end_event}) {
      if (runtime().events.count(event) == 0 || !event->timing || !event->recorded || event->capture != nullptr)
        return cudaErrorInvalidResourceHandle;
    }
    *milliseconds = static_cast<float>(end_event->time - begin_event->time);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", InCapture::allowed, [&] {
    const Lock lock;
    if (runtime().events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}
