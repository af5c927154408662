// The runtime: what launches are refused, what capture forbids, what is logged; and the products of matrices.
#include <cublas_v2.h>

#include "testing.hpp"

using namespace host_cuda_testing;
using pncuda::launch;

namespace {

__global__ void add_one(int* data) { data[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void nothing() {}

struct Stream {
  Stream() { REQUIRE(cudaStreamCreate(&stream) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};

int attribute(cudaDeviceAttr name, int device = 0) {
  int value = -1;
  REQUIRE(cudaDeviceGetAttribute(&value, name, device) == cudaSuccess);
  return value;
}

}  // namespace

TEST_CASE("launches that no device takes") {
  const Defaults defaults;
  const auto result = [](dim3 grid, dim3 block, std::size_t shared) {
    const cudaError_t error = launch(nothing, grid, block, shared, nullptr);
    CHECK(cudaPeekAtLastError() == cudaSuccess);  // the launch's caller alone is told
    return error;
  };
  CHECK(result(dim3(3, 65535, 1), 1, 0) == cudaSuccess);
  CHECK(result(1, dim3(16, 16, 4), 48 * 1024) == cudaSuccess);
  for (const dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 65536), dim3(1, 1, 65536), dim3(0x80000000u)}) {
    CHECK(result(grid, 1, 0) == cudaErrorInvalidConfiguration);
  }
  for (const dim3 block : {dim3(0), dim3(1025), dim3(1, 1, 65), dim3(32, 33), dim3(0x10000, 0x10000)}) {
    CHECK(result(1, block, 0) == cudaErrorInvalidConfiguration);
  }
  CHECK(host_cuda::calls().launches.size() == 2);
  CHECK(host_cuda::calls().count("launch") == 12);
  const auto foreign = reinterpret_cast<cudaStream_t>(std::uintptr_t{64});
  CHECK(launch(nothing, 1, 1, 0, foreign) == cudaErrorInvalidResourceHandle);
  CHECK(launch(nothing, 1, 1, 0, nullptr) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("more shared memory than 48 KiB needs the attribute, of this kernel on this device") {
  const Defaults defaults;
  const auto result = [](std::size_t shared) {
    const cudaError_t error = launch(nothing, 1, 1, shared, nullptr);
    cudaGetLastError();
    return error;
  };
  const auto allow = [](auto kernel, int bytes) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaGetLastError();
    return error;
  };
  host_cuda::set_devices({host_cuda::h100(), host_cuda::t4(), host_cuda::p100()});
  CHECK(result(48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(allow(add_one, 227 * 1024) == cudaSuccess);
  CHECK(result(48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(allow(nothing, 227 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(allow(nothing, 227 * 1024) == cudaSuccess);
  CHECK(result(227 * 1024) == cudaSuccess);
  CHECK(result(227 * 1024 + 1) == cudaErrorInvalidValue);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(result(48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(allow(nothing, 64 * 1024) == cudaSuccess);
  CHECK(result(64 * 1024) == cudaSuccess);
  REQUIRE(cudaSetDevice(2) == cudaSuccess);
  CHECK(allow(nothing, 64 * 1024) == cudaErrorInvalidValue);
  CHECK(result(48 * 1024) == cudaSuccess);
}

TEST_CASE("devices") {
  const Defaults defaults;
  host_cuda::set_devices({host_cuda::p100(), host_cuda::a10()});
  int count = 0, device = -1;
  CHECK((cudaGetDeviceCount(&count) == cudaSuccess && count == 2));
  CHECK((cudaGetDevice(&device) == cudaSuccess && device == 0));
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  CHECK(attribute(cudaDevAttrComputeCapabilityMajor) * 10 + attribute(cudaDevAttrComputeCapabilityMinor) == 60);
  CHECK(attribute(cudaDevAttrMultiProcessorCount) == 56);
  CHECK(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, 1) == 99 * 1024);
  CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrWarpSize, 2) == cudaErrorInvalidDevice);
  const Stream of_first;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(launch(nothing, 1, 1, 0, of_first.stream) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  host_cuda::set_device(host_cuda::too_old());
  CHECK(launch(nothing, 1, 1, 0, nullptr) == cudaErrorNoKernelImageForDevice);
  cudaFuncAttributes attributes{};
  CHECK(cudaFuncGetAttributes(&attributes, nothing) == cudaErrorNoKernelImageForDevice);
  host_cuda::set_devices({});
  CHECK((cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0));
  CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
  host_cuda::set_device(host_cuda::p100());
}

TEST_CASE("copies and their bounds") {
  const Defaults defaults;
  const std::size_t before = host_cuda::allocated_bytes();
  {
    const Array<int> a(4), b(std::vector<int>{1, 2, 3, 4});
    CHECK(host_cuda::allocated_bytes() == before + 32);
    int host[5] = {};
    CHECK(cudaMemcpy(a.get(), b.get(), 16, cudaMemcpyDeviceToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(host, a.get() + 1, 12, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK((host[0] == 2 && host[2] == 4 && host[3] == 0));
    CHECK(cudaMemcpy(host, a.get(), 20, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(host, a.get(), 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemset(a.get(), 1, 17) == cudaErrorInvalidValue);
    CHECK(cudaFree(a.get() + 1) == cudaErrorInvalidValue);
    CHECK(cudaMemset(a.get(), 1, 16) == cudaSuccess);
    CHECK(a.values() == std::vector<int>(4, 0x01010101));
    void* p = nullptr;
    CHECK(cudaMalloc(&p, std::size_t{1} << 50) == cudaErrorMemoryAllocation);
    CHECK(cudaFree(nullptr) == cudaSuccess);
  }
  CHECK(host_cuda::allocated_bytes() == before);
}

TEST_CASE("a graph is recorded, runs when it is launched, and again") {
  const Defaults defaults;
  const Stream s, other;
  const Array<int> data(std::vector<int>(8, 0));
  host_cuda::begin_capture(s.stream);
  CHECK(launch(add_one, 2, 4, 0, s.stream, data.get()) == cudaSuccess);
  CHECK(launch(add_one, 1, 4, 16, s.stream, data.get()) == cudaSuccess);
  const host_cuda::Graph graph = host_cuda::end_capture();
  CHECK((graph.error == cudaSuccess && graph.size() == 2));
  CHECK(data.values() == std::vector<int>(8, 0));
  CHECK(graph.replay() == cudaSuccess);
  CHECK(graph.replay() == cudaSuccess);
  CHECK(data.values() == std::vector<int>{4, 4, 4, 4, 2, 2, 2, 2});
  const host_cuda::Calls calls = host_cuda::calls();
  CHECK(calls.in_capture == std::vector<std::string>{"launch", "launch"});
  REQUIRE(calls.launches.size() == 2);
  CHECK((calls.launches[0].grid.x == 2 && calls.launches[1].shared == 16 && calls.launches[1].captured));

  // The same with CUDA's functions.
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaMemsetAsync(data.get(), 0, 32, s.stream) == cudaSuccess);
  CHECK(launch(add_one, 2, 4, 0, s.stream, data.get()) == cudaSuccess);
  CHECK(launch(add_one, 2, 4, 0, other.stream, data.get()) == cudaSuccess);  // runs at once
  REQUIRE(cudaStreamEndCapture(s.stream, &recorded) == cudaSuccess);
  CHECK(data.values()[7] == 3);
  REQUIRE(cudaGraphInstantiate(&executable, recorded, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, s.stream) == cudaSuccess);
  CHECK(data.values() == std::vector<int>(8, 1));
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(recorded) == cudaSuccess);
}

namespace {

__global__ void set(int* data, int value) { *data = value; }
__global__ void add_to(int* data, const int* other) { *data += *other; }

struct Event {
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaEventCreateWithFlags(&event, flags) == cudaSuccess);
  }
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
};

}  // namespace

TEST_CASE("a second stream joins a capture by an event; the graph runs in any order that is allowed") {
  const Defaults defaults;
  const Stream main, side, other;
  const Event begun, done;
  const Array<int> a(std::vector<int>{0}), b(std::vector<int>{0});
  using host_cuda::Order;
  for (const bool waits : {true, false}) {
    host_cuda::reset_calls();
    host_cuda::begin_capture(main.stream);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CHECK(launch(set, 1, 1, 0, main.stream, a.get(), 5) == cudaSuccess);
    CHECK(cudaEventRecord(begun.event, main.stream) == cudaSuccess);
    CHECK((cudaStreamIsCapturing(side.stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone));
    CHECK(cudaStreamWaitEvent(side.stream, begun.event) == cudaSuccess);
    CHECK((cudaStreamIsCapturing(side.stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive));
    CHECK(launch(set, 1, 1, 0, side.stream, b.get(), 7) == cudaSuccess);
    CHECK(cudaEventRecord(done.event, side.stream) == cudaSuccess);
    if (waits) CHECK(cudaStreamWaitEvent(main.stream, done.event) == cudaSuccess);
    CHECK(launch(add_to, 1, 1, 0, main.stream, a.get(), b.get()) == cudaSuccess);
    if (!waits) CHECK(cudaStreamWaitEvent(main.stream, done.event) == cudaSuccess);  // too late
    const host_cuda::Graph graph = host_cuda::end_capture();
    CHECK((graph.error == cudaSuccess && graph.size() == 3));
    CHECK((cudaStreamIsCapturing(side.stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone));
    bool always = true;
    for (const Order order :
         {Order{Order::forward, 0}, {Order::reverse, 0}, {Order::shuffled, 1}, {Order::shuffled, 2}}) {
      host_cuda::set_graph_order(order);
      CHECK(cudaMemset(b.get(), 0, 4) == cudaSuccess);
      CHECK(graph.replay() == cudaSuccess);
      always = always && a.values()[0] == 12;
    }
    CHECK(always == waits);
    host_cuda::set_graph_order({});
    const auto work = host_cuda::calls().work;
    REQUIRE(work.size() == 7);
    CHECK((work[0].name == "launch" && work[0].stream == main.stream && work[0].event == nullptr && work[0].captured));
    CHECK((work[1].name == "cudaEventRecord" && work[1].event == begun.event));
    CHECK((work[2].name == "cudaStreamWaitEvent" && work[2].stream == side.stream && work[2].event == begun.event));
  }
  // An event of a capture that has ended stands for nothing; recorded again it does.
  CHECK(cudaStreamWaitEvent(side.stream, begun.event) == cudaErrorCapturedEvent);
  CHECK(cudaEventSynchronize(begun.event) == cudaErrorCapturedEvent);
  CHECK(cudaEventRecord(begun.event, main.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side.stream, begun.event) == cudaSuccess);
  cudaGetLastError();

  // Work of another stream that the first one does not wait for.
  host_cuda::begin_capture(main.stream);
  CHECK(cudaEventRecord(begun.event, main.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side.stream, begun.event) == cudaSuccess);
  CHECK(launch(set, 1, 1, 0, side.stream, b.get(), 7) == cudaSuccess);
  CHECK(host_cuda::end_capture().error == cudaErrorStreamCaptureUnjoined);
  // An event from outside; the end of a capture by a stream that has joined it.
  CHECK(cudaEventRecord(done.event, other.stream) == cudaSuccess);
  host_cuda::begin_capture(main.stream);
  CHECK(cudaStreamWaitEvent(main.stream, done.event) == cudaErrorStreamCaptureIsolation);
  CHECK(host_cuda::end_capture().error == cudaErrorStreamCaptureInvalidated);
  cudaGraph_t none = nullptr;
  host_cuda::begin_capture(main.stream);
  CHECK(cudaEventRecord(begun.event, main.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side.stream, begun.event) == cudaSuccess);
  CHECK(cudaStreamEndCapture(side.stream, &none) == cudaErrorStreamCaptureUnmatched);
  CHECK(host_cuda::end_capture().error == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamWaitEvent(main.stream, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(nullptr, main.stream) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("what capture forbids fails and breaks the capture") {
  const Defaults defaults;
  const Stream s;
  const Array<int> data(4);
  int host = 0;
  void* p = nullptr;
  const std::vector<std::function<cudaError_t()>> forbidden = {
      [&] { return cudaMalloc(&p, 4); },
      [&] { return cudaFree(data.get()); },
      [&] { return cudaMemcpy(&host, data.get(), 4, cudaMemcpyDeviceToHost); },
      [&] { return cudaMemset(data.get(), 0, 4); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaStreamSynchronize(s.stream); }};
  for (const auto& deed : forbidden) {
    host_cuda::begin_capture(s.stream);
    CHECK(deed() == cudaErrorStreamCaptureUnsupported);
    CHECK(launch(add_one, 1, 4, 0, s.stream, data.get()) == cudaErrorStreamCaptureInvalidated);
    const host_cuda::Graph graph = host_cuda::end_capture();
    CHECK(graph.error == cudaErrorStreamCaptureInvalidated);
    CHECK(graph.replay() != cudaSuccess);
    cudaGetLastError();
  }
  host_cuda::begin_capture(s.stream);
  CHECK(launch(add_one, 1, 4, 0, nullptr, data.get()) == cudaErrorStreamCaptureImplicit);
  CHECK(host_cuda::end_capture().error == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  CHECK(data.values() == std::vector<int>(4, -1));
  // Allowed, and seen.
  host_cuda::reset_calls();
  host_cuda::begin_capture(s.stream);
  CHECK(cudaFuncSetAttribute(add_one, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536) == cudaSuccess);
  CHECK(attribute(cudaDevAttrMultiProcessorCount) == 132);
  CHECK(host_cuda::end_capture().error == cudaSuccess);
  CHECK(host_cuda::calls().in_capture == std::vector<std::string>{"cudaFuncSetAttribute", "cudaDeviceGetAttribute"});
}

TEST_CASE("failures on demand") {
  const Defaults defaults;
  host_cuda::fail_next("launch", cudaErrorUnknown);
  CHECK(launch(nothing, 1, 1, 0, nullptr) == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaSuccess);
  int count = 0;
  host_cuda::fail_next("cudaGetDeviceCount", cudaErrorUnknown);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorUnknown);
  CHECK(cudaPeekAtLastError() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(launch(nothing, 1, 1, 0, nullptr) == cudaSuccess);
  CHECK(std::string(cudaGetErrorName(cudaErrorUnknown)) == "cudaErrorUnknown");
}

TEST_CASE("events measure time") {
  const Defaults defaults;
  cudaEvent_t begin = nullptr, end = nullptr;
  REQUIRE((cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess));
  CHECK(cudaEventRecord(begin) == cudaSuccess);
  usleep(2000);
  CHECK(cudaEventRecord(end) == cudaSuccess);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  float milliseconds = 0;
  CHECK((cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess && milliseconds >= 2));
  // Or what a test says.
  double seconds = 3;
  host_cuda::set_clock([&] { return seconds; });
  CHECK(cudaEventRecord(begin) == cudaSuccess);
  seconds = 5.5;
  CHECK(cudaEventRecord(end) == cudaSuccess);
  host_cuda::set_clock({});
  CHECK((cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess && milliseconds == 2.5f));
  CHECK((cudaEventDestroy(begin) == cudaSuccess && cudaEventDestroy(end) == cudaSuccess));
  CHECK(cudaEventDestroy(begin) == cudaErrorInvalidResourceHandle);
  const Event untimed;
  CHECK(cudaEventRecord(untimed.event) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, untimed.event, untimed.event) == cudaErrorInvalidResourceHandle);
  int lowest = 1, highest = 1;
  CHECK((cudaDeviceGetStreamPriorityRange(&lowest, &highest) == cudaSuccess && highest < lowest));
}

TEST_CASE("products of matrices, of every type and transposition") {
  const Defaults defaults;
  const int m = 3, n = 4, k = 5, lda = 7, ldb = 6, ldc = 4;
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  const Stream s;
  CHECK(cublasSetStream(handle, s.stream) == CUBLAS_STATUS_SUCCESS);
  const auto value = [](int i) { return static_cast<float>(i * 37 % 23 - 11) / 8; };  // exact in every type
  for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}) {
    const auto encode = [&](float v) -> std::uint32_t {
      return type == CUDA_R_16F    ? pn::float_to_half(v)
             : type == CUDA_R_16BF ? pn::float_to_bf16(v)
                                   : __float_as_uint(v);
    };
    const auto array = [&](int salt) {
      std::vector<unsigned char> bytes;
      for (int i = 0; i < 64; ++i) {
        const std::uint32_t bits = encode(value(i + salt));
        for (unsigned b = 0; b < (type == CUDA_R_32F ? 4u : 2u); ++b)
          bytes.push_back(static_cast<unsigned char>(bits >> (8 * b)));
      }
      return bytes;
    };
    const Array<unsigned char> a(array(0)), b(array(5));
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const Array<float> c(std::vector<float>(64, 2.0f));
        const float alpha = 0.5f, beta = 3.0f;
        REQUIRE(cublasGemmEx(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha,
                             a.get(), type, lda, b.get(), type, ldb, &beta, c.get(), CUDA_R_32F, ldc,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
        const auto values = c.values();
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int l = 0; l < k; ++l) {
              sum += value(ta ? i * lda + l : l * lda + i) * value(5 + (tb ? l * ldb + j : j * ldb + l));
            }
            REQUIRE(values[static_cast<unsigned>(j * ldc + i)] == sum / 2 + 6);
          }
        }
        REQUIRE(values[m] == 2.0f);
      }
    }
    if (type == CUDA_R_32F) continue;
    const Array<std::uint16_t> c(64);  // NaN at first: with beta = 0 it does not matter
    const float alpha = 1.0f, beta = 0.0f;
    REQUIRE(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a.get(), type, 1, b.get(), type, 1, &beta,
                         c.get(), type, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    CHECK(c.values()[0] == encode(value(0) * value(5)));
  }
  const float one = 1.0f;
  const Array<float> c(std::vector<float>{3.0f});
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, c.get(), 1, c.get(), 1, &one, c.get(), 1) ==
        CUBLAS_STATUS_SUCCESS);
  CHECK(c.values()[0] == 12.0f);
  // TF32 has 10 bits behind the point.
  const Array<float> third(std::vector<float>{1.0f + 0x1p-10f + 0x1p-11f});
  CHECK(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  const float zero = 0.0f;
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, third.get(), 1, third.get(), 1, &zero, c.get(),
                    1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.values()[0] == (1.0f + 0x1p-10f) * (1.0f + 0x1p-10f));
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 1, 1, &one, c.get(), 1, c.get(), 1, &one, c.get(), 2) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, c.get(), 1, c.get(), 1, &one, c.get(), 1) ==
        CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}
