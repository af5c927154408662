// gpu_bench: what its parts share. The same code runs on a GPU and on the CPU (tests/host_cuda).
#pragma once

#include <cuda_runtime.h>
#include <pncuda/pncuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gpu_bench {

// Ends the run; what was found until then is written.
[[noreturn]] void fail(const std::string& what);
void require(cudaError_t error, const char* what);
void require(pncuda_status status, const char* what);

// A text as printf makes it.
std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

struct Options {
  bool quick = false;
  bool tiny = false;      // small shapes, as the CPU needs them
  double seconds = 240;   // nothing new is timed after that
  std::string out = ".";  // folder
};

struct Machine {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0, driver = 0, runtime = 0;
  std::size_t memory = 0, l2 = 0;
  double peak = 0;      // bytes/s by clock and width of the memory, 0 where the driver does not tell
  double measured = 0;  // bytes/s, the best of copies and reads (timings.cpp)
  double copied = 0;    // bytes/s read and written, the best of copies
};
Machine machine();

// What is printed, and kept for the two files.
struct Report {
  std::string text;
  std::vector<std::string> figures;  // JSON objects
  int passed = 0, failed = 0;
  std::map<std::string, double> worst;  // errors

  void line(const std::string& what);
  void expect(bool ok, const std::string& what);  // a check; prints those that fail
  void largest(const std::string& what, double error) {
    double& so_far = worst[what];
    so_far = std::max(so_far, error);
  }
};

// ---- Memory ----

template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) {
    if (count > 0) require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { copy_from(values.data()); }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* get() const { return data_; }
  std::size_t size() const { return count_; }
  void copy_from(const T* values) {
    require(cudaMemcpy(data_, values, count_ * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  std::vector<T> values() const {
    std::vector<T> copy(count_);
    require(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};
using Bytes = Array<std::uint8_t>;

// ---- Weights ----

// Bytes that lie somewhere on the host, again and again.
struct Repeated {
  const void* data;
  std::size_t period;
  void fill(void* device, std::size_t bytes) const;
  bool lies_at(const void* device, std::size_t bytes) const;
};

// Blocks of pn3t or pn4t with random codes, reserved bits included, and ordinary scales; they repeat after a while.
class Pattern {
 public:
  explicit Pattern(std::size_t blocks);
  const pn::Block34& block(std::size_t i) const { return blocks_[i % blocks_.size()]; }
  Repeated bytes() const { return {blocks_.data(), blocks_.size() * sizeof(pn::Block34)}; }

 private:
  std::vector<pn::Block34> blocks_;
};

// Weights like those of models, plain and packed by the core: normal numbers times a scale, which changes every 20
// blocks, as bf16. One block in 80 or so lists a weight. They repeat, too.
class Bf16Pattern {
 public:
  explicit Bf16Pattern(std::size_t blocks);
  const std::uint16_t* weights(std::size_t block) const { return &weights_[block % blocks_.size() * p12::block_size]; }
  Repeated packed() const { return {blocks_.data(), blocks_.size() * sizeof(p12::Block392)}; }
  Repeated plain() const { return {weights_.data(), weights_.size() * 2}; }
  double listing() const { return listing_; }  // the part of the blocks that lists weights

 private:
  std::vector<p12::Block392> blocks_;
  std::vector<std::uint16_t> weights_;
  double listing_ = 0;
};

struct Shape {
  std::int64_t rows, k;
};
std::string name_of(Shape shape);
const char* name_of_type(int type);
inline const char* name_of_layout(int layout) { return layout == PNCUDA_NATIVE ? "native" : "repacked"; }
const char* name_of_element(int type);
const char* name_of_path(int path);
inline bool is_bf16(int type) { return type == PNCUDA_BF16_P12 || type == PNCUDA_BF16_PLAIN; }
inline std::int64_t block_of(int type) { return is_bf16(type) ? 256 : type == PNCUDA_PN3T ? 80 : 64; }
inline std::int64_t block_bytes_of(int type) {
  return type == PNCUDA_BF16_P12 ? 392 : type == PNCUDA_BF16_PLAIN ? 512 : 34;
}
inline std::size_t element_bytes(int type) { return type == PNCUDA_F32 ? 4 : 2; }
inline std::size_t weight_bytes(int type, Shape s) {
  return static_cast<std::size_t>(s.rows * (s.k / block_of(type)) * block_bytes_of(type));
}
pncuda_weights make_weights(int type, int layout, const void* data, Shape shape);
// Tokens lie one behind the other, results too.
pncuda_gemv_args make_gemv(const pncuda_weights& weights, const void* x, int x_type, std::int64_t tokens, void* y,
                           int y_type, int mode = PNCUDA_ACCURATE, int hadamard_block = 0);
// The largest block that divides k.
int hadamard_block_of(std::int64_t k);

// The shapes for a block type, those that fit the memory.
std::vector<Shape> shapes(const Options& options, const Machine& machine, int type);
// Those of BF16_P12 that are checked, and those that are timed, what matters most first.
std::vector<Shape> p12_shapes(const Options& options, const Machine& machine);
std::vector<Shape> p12_timed_shapes(const Options& options);

// ---- Numbers ----

// Normally distributed numbers, the same ones for the same seed.
std::vector<float> normal_numbers(std::size_t count, unsigned seed);
// Rounded to an element type: its bytes, and back.
std::vector<std::uint8_t> to_elements(const std::vector<float>& values, int type);
std::vector<float> from_elements(const std::vector<std::uint8_t>& bytes, int type);

// body(0 .. count - 1), on all cores.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body);

// Rows at both ends, and some between.
std::vector<std::int64_t> some_rows(std::int64_t rows, std::int64_t count);

inline bool same_bytes(const void* a, const void* b, std::size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

// ---- The parts ----

class Blas;

void ask_hardware(const Machine& machine, Report& report);                           // hardware.cpp
void check_kernels(const Options& options, const Machine& machine, Report& report);  // checks.cpp
// checks_p12.cpp; `blas` is null without pncuda_blas.h.
void check_p12(const Options& options, const Machine& machine, const Blas* blas, Report& report);
// timings.cpp; `begin` is when the program began.
void time_kernels(const Options& options, Machine& machine, std::chrono::steady_clock::time_point begin,
                  Report& report);

}  // namespace gpu_bench
