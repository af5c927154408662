// What the benchmarks share: working sets larger than the caches, and jobs that Google Benchmark times on one thread
// and on all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <pn/status.hpp>
#include <string>
#include <vector>

namespace bench {

// Ends the program: a benchmark of something that does not work means nothing.
[[noreturn]] void fail(const std::string& what);
void require(pn::Status status);

// ---- Working sets ----

// The last-level cache as the machine reports it, the size of a working set (more than twice that, unless free memory
// does not allow it), and whether it was capped.
struct Sizes {
  std::size_t last_level_cache;
  std::size_t set;
  bool capped;
};
const Sizes& sizes();

struct Free {
  void operator()(void* memory) const noexcept;
};
using Memory = std::unique_ptr<std::uint8_t, Free>;

// Zeroed, at a multiple of 2 MiB, in huge pages where the system has them.
Memory allocate(std::size_t bytes);

// Bytes that are handed out in a circle, so that what comes next was last touched a whole set ago.
class Set {
 public:
  // Copies of `pattern`, one behind the other.
  explicit Set(const std::vector<std::uint8_t>& pattern);
  // Room for results, each at a multiple of 64.
  Set();
  std::uint8_t* take(std::size_t bytes);

  std::uint8_t* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::size_t alignment_;
  std::size_t at_ = 0;
  Memory data_;
};

// The weights of all sets: normally distributed; in one block of 50 a weight is so small that BF16_P12 lists it.
inline constexpr std::size_t pattern_weights = std::size_t{64} * 5120;  // whole blocks of every type
const std::vector<float>& pattern();

// Sets in each type, made when they are first asked for.
Set& f32_set();
Set& f16_set();
Set& bf16_set();
Set& p12_set();
template <class T>
Set& pn_set();
Set& result_set();

std::vector<float> activations(std::size_t count);
inline constexpr std::size_t most_tokens = 16;
inline constexpr std::size_t prompt_tokens = 128;

// ---- Jobs ----

// One call: `begin` takes the next parts of the sets and prepares activations, then threads share out `rows`. All is
// timed. Bytes are those that a call reads and writes in memory.
struct Job {
  std::size_t rows = 1;
  std::size_t weights = 0;  // times tokens
  std::size_t read = 0;
  std::size_t written = 0;
  std::function<void()> begin;
  std::function<void(std::size_t first, std::size_t last)> run;
  std::function<void()> rest;    // after a series of calls, not timed; may be empty
  std::function<bool()> agrees;  // after a call: is the result what the reference gives?
};
using MakeJob = std::function<Job()>;

enum class Threads { one, one_and_all };

unsigned thread_count();

// Registers NAME, and NAME@all when asked for. The job is made, and its result is checked, before it is first timed.
void add(const std::string& name, MakeJob make, Threads threads = Threads::one);

// Weights of one call: a matrix that is large, but not so large that a call takes long.
inline constexpr std::size_t matrix_weights = std::size_t{4096} * 5120;
// Where a weight takes so long that a smaller piece says the same.
inline constexpr std::size_t slow_weights = std::size_t{64} * 5120;

// Lengths of rows. The first one has names without a suffix.
inline constexpr std::size_t row_lengths[] = {5120, 4096, 6144, 17408};
std::string shape_suffix(std::size_t k);  // "" or "@K6144"

// ---- Multiplying rows of weights by activations, ours and others' ----

struct Gemv {
  std::size_t k;
  std::size_t row_bytes;
  std::size_t tokens = 1;
  std::size_t weights = matrix_weights;  // of one call
  Set* set;
  std::size_t prepared_bytes;
  // Activations to what multiply wants; rows of k floats.
  std::function<void(const float* x, void* prepared)> prepare;
  // y[m * y_stride + n] for `rows` rows.
  std::function<void(const std::uint8_t* rows_of_weights, std::size_t rows, const void* prepared, float* y,
                     std::size_t y_stride)>
      multiply;
  std::function<void(const std::uint8_t* row, float* out)> decode;
  double x_error;  // how far preparing may move an x, in parts of the largest one
};
Job gemv_job(const Gemv& gemv);

// ---- Turning rows into other rows (or, with out_bytes = 0, only reading them) ----

struct Stream {
  std::size_t k;
  std::size_t weights = matrix_weights;  // of one call
  Set* set;
  std::size_t in_bytes;  // of a row
  std::size_t out_bytes = 0;
  std::function<void(const std::uint8_t* in, std::size_t rows, std::uint8_t* out)> run;
  std::function<bool(const std::uint8_t* in, const std::uint8_t* out)> agrees;  // one row
};
Job stream_job(const Stream& stream);

// ---- Rows from all over a set, not one behind the other ----

struct LookUp {
  std::size_t k;
  Set* set;
  std::size_t in_bytes;  // of a row
  std::size_t out_bytes;
  // Rows `ids` of the `rows` rows at `in`.
  std::function<void(const std::uint8_t* in, std::size_t rows, const std::int64_t* ids, std::size_t count,
                     std::uint8_t* out)>
      run;
  std::function<bool(const std::uint8_t* in, const std::uint8_t* out)> agrees;  // one row
};
Job look_up_job(const LookUp& look_up);

// ---- What there is ----

void add_bandwidth();
void add_p12();
void add_pn();
void add_core();
void add_ggml();

}  // namespace bench
