// host_cuda's own tests: device memory as vectors, and programs that must die.
#pragma once

#include <cuda_runtime.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <host_cuda/host_cuda.hpp>
#include <string>
#include <vector>

#include "../../cuda/device.cuh"

namespace host_cuda_testing {

// An array in device memory.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) { REQUIRE(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess); }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    REQUIRE(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> copy(count_);
    REQUIRE(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

// Back to the defaults at the end of a test.
struct Defaults {
  Defaults() { reset(); }
  ~Defaults() { reset(); }
  static void reset() {
    host_cuda::set_device(host_cuda::h100());
    host_cuda::set_thread_order({});
    host_cuda::set_block_order({});
    host_cuda::set_graph_order({});
    host_cuda::set_clock({});
    host_cuda::set_host_threads(1);
    host_cuda::set_strict(true);
    host_cuda::record_faults(false);
    host_cuda::take_fault();
    host_cuda::reset_calls();
    cudaGetLastError();
  }
};

// The fault of a launch; empty if it ran.
template <class... Parameters, class... Arguments>
std::string fault_of(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared,
                     Arguments&&... arguments) {
  host_cuda::record_faults(true);
  const cudaError_t error = pncuda::launch(kernel, grid, block, shared, nullptr, std::forward<Arguments>(arguments)...);
  host_cuda::record_faults(false);
  const std::string fault = host_cuda::take_fault();
  CHECK(error == (fault.empty() ? cudaSuccess : cudaErrorLaunchFailure));
  cudaGetLastError();
  return fault;
}

// What a process that does this writes to stderr before it dies; "survived" if it does not die.
inline std::string last_words(const std::function<void()>& deed) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(fileno(file), STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);  // not Catch2's
    deed();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::string text(65536, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "survived" : text;
}

inline bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  UNSCOPED_INFO("`" << part << "` is not in: " << text);
  return false;
}

}  // namespace host_cuda_testing
