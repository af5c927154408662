// host_cuda: the runtime's functions. Streams do their work at once, on the calling thread; a capturing stream keeps
// it.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <host_cuda/engine.hpp>
#include <host_cuda/host_cuda.hpp>
#include <mutex>
#include <set>

using host_cuda::Calls;
using host_cuda::Device;
using Operation = std::function<cudaError_t()>;

struct CUgraph_st {
  std::vector<Operation> operations;
};

struct CUgraphExec_st {
  std::vector<Operation> operations;
};

struct CUstream_st {
  int device = 0;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  std::vector<Operation> captured;
};

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace {

// Guarded by its mutex.
struct Runtime {
  std::mutex mutex;
  std::vector<Device> devices{host_cuda::h100()};
  std::map<std::uintptr_t, std::size_t> memory;  // first address -> bytes
  std::set<cudaStream_t> streams;
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

// The stream that captures; null if none does. Needs the lock.
cudaStream_t capturing() {
  for (const cudaStream_t stream : runtime().streams) {
    if (stream->capture != cudaStreamCaptureStatusNone) return stream;
  }
  return nullptr;
}

cudaError_t break_capture(cudaError_t error) {
  capturing()->capture = cudaStreamCaptureStatusInvalidated;
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

// Runs the operation, or keeps it when the stream captures.
cudaError_t schedule(cudaStream_t stream, Operation operation, bool* captured = nullptr) {
  {
    const Lock lock;
    if (stream != nullptr && runtime().streams.count(stream) == 0) return cudaErrorInvalidResourceHandle;
    if (stream != nullptr && stream->device != current_device) return cudaErrorInvalidResourceHandle;
    if (stream == nullptr && capturing() != nullptr) return break_capture(cudaErrorStreamCaptureImplicit);
    if (stream != nullptr && stream->capture == cudaStreamCaptureStatusInvalidated) {
      return cudaErrorStreamCaptureInvalidated;
    }
    if (stream != nullptr && stream->capture == cudaStreamCaptureStatusActive) {
      stream->captured.push_back(std::move(operation));
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

cudaError_t run_all(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    if (const cudaError_t error = operation(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
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
    const cudaError_t result = schedule(stream, run, &record.captured);
    const Lock lock;
    if (result == cudaSuccess) runtime().calls.launches.push_back(record);
    return result;
  });
}

cudaError_t enqueue(const char* name, cudaStream_t stream, std::function<cudaError_t()> work) {
  return call(name, InCapture::allowed, [&] { return schedule(stream, std::move(work)); });
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
    stream = capturing();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  return Graph(graph, error);
}

Graph::~Graph() { delete graph_; }
cudaError_t Graph::replay() const { return graph_ == nullptr ? error : run_all(graph_->operations); }
std::size_t Graph::size() const { return graph_ == nullptr ? 0 : graph_->operations.size(); }

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
    HOST_CUDA_NAME(cudaErrorStreamCaptureImplicit);
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
              [&] { return schedule(stream, [=] { return copy(to, from, bytes, kind); }); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call("cudaMemset", InCapture::forbidden, [&] { return fill(to, value, bytes); });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", InCapture::allowed,
              [&] { return schedule(stream, [=] { return fill(to, value, bytes); }); });
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

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", InCapture::forbidden,
              [&] { return valid_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) {
  return call("cudaStreamWaitEvent", InCapture::allowed,
              [&] { return valid_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
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
    stream->capture = cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const Lock lock;
  if (runtime().streams.count(stream) == 0) return remember(cudaErrorInvalidResourceHandle);
  const auto status = std::exchange(stream->capture, cudaStreamCaptureStatusNone);
  std::vector<Operation> operations = std::exchange(stream->captured, {});
  if (status == cudaStreamCaptureStatusNone) return remember(cudaErrorIllegalState);
  if (status == cudaStreamCaptureStatusInvalidated) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(operations)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", InCapture::allowed, [&] {
    if (!valid_stream(stream)) return cudaErrorInvalidResourceHandle;
    *status = stream == nullptr ? cudaStreamCaptureStatusNone : stream->capture;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", InCapture::allowed, [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{graph->operations};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call("cudaGraphLaunch", InCapture::allowed, [&] {
    if (executable == nullptr || !valid_stream(stream)) return cudaErrorInvalidValue;
    return schedule(stream, [operations = executable->operations] { return run_all(operations); });
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

// ---- Events: moments of wall time ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreate", InCapture::allowed, [&] { return *event = new CUevent_st, cudaSuccess; });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", InCapture::allowed, [&] {
    return schedule(stream, [=] { return event->time = std::chrono::steady_clock::now(), cudaSuccess; });
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return call("cudaEventSynchronize", InCapture::forbidden, [] { return cudaSuccess; });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin_event, cudaEvent_t end_event) {
  return call("cudaEventElapsedTime", InCapture::allowed, [&] {
    *milliseconds = std::chrono::duration<float, std::milli>(end_event->time - begin_event->time).count();
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", InCapture::allowed, [&] { return delete event, cudaSuccess; });
}
