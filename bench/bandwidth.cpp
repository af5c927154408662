// What the memory allows: the denominators of all other figures. Each is measured in several ways, and the report takes
// the fastest, so that no slow loop of ours makes the kernels look good.
#include <cstring>

#include "bench.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

constexpr std::size_t chunk = std::size_t{40} << 20;

// ---- Reading: sums 64-bit words, as vectors of the widest kind there is ----

using Words16 [[gnu::vector_size(16)]] = std::uint64_t;
using Words32 [[gnu::vector_size(32)]] = std::uint64_t;
using Words64 [[gnu::vector_size(64)]] = std::uint64_t;

enum class Read { plain, prefetch, streams };

// Adds up `bytes`, a multiple of 64 * vectors * streams, in one loop or in several places at once.
template <class Vector, Read How>
[[gnu::always_inline]] inline std::uint64_t sum_words(const std::uint8_t* from, std::size_t bytes) {
  constexpr std::size_t streams = How == Read::streams ? 4 : 1;
  constexpr std::size_t vectors = 8 / streams;
  constexpr std::size_t step = vectors * sizeof(Vector);
  Vector sums[streams * vectors] = {};
  const std::size_t part = bytes / streams;
  for (std::size_t at = 0; at < part; at += step) {
    for (std::size_t s = 0; s < streams; ++s) {
      const std::uint8_t* const p = from + s * part + at;
      if constexpr (How == Read::prefetch)
        for (std::size_t line = 0; line < step; line += 64) __builtin_prefetch(p + 4096 + line);
      for (std::size_t v = 0; v < vectors; ++v) sums[s * vectors + v] += *(reinterpret_cast<const Vector*>(p) + v);
    }
  }
  std::uint64_t sum = 0;
  for (const Vector& vector : sums)
    for (std::size_t i = 0; i < sizeof(Vector) / 8; ++i) sum += vector[i];
  return sum;
}

template <Read How>
std::uint64_t sum_16(const std::uint8_t* from, std::size_t bytes) {
  return sum_words<Words16, How>(from, bytes);
}
#if defined(__x86_64__)
template <Read How>
[[gnu::target("avx2")]] std::uint64_t sum_32(const std::uint8_t* from, std::size_t bytes) {
  return sum_words<Words32, How>(from, bytes);
}
template <Read How>
[[gnu::target("avx512f")]] std::uint64_t sum_64(const std::uint8_t* from, std::size_t bytes) {
  return sum_words<Words64, How>(from, bytes);
}
#endif

template <Read How>
auto sum_for_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return sum_64<How>;
  if (__builtin_cpu_supports("avx2") != 0) return sum_32<How>;
#endif
  return sum_16<How>;
}

template <Read How>
Job read_job() {
  constexpr std::size_t piece = 4096;  // a row
  struct State {
    const std::uint8_t* from = nullptr;
    std::vector<std::uint64_t> sums = std::vector<std::uint64_t>(chunk / piece);  // at the first row of a range
  };
  auto state = std::make_shared<State>();
  Job job;
  job.rows = chunk / piece;
  job.read = chunk;
  job.begin = [state] { state->from = bf16_set().take(chunk); };
  job.run = [state, sum = sum_for_this_machine<How>()](std::size_t first, std::size_t last) {
    state->sums[first] = sum(state->from + first * piece, (last - first) * piece);
  };
  job.agrees = [state] {
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < chunk; at += sizeof sum) {
      std::uint64_t word = 0;
      std::memcpy(&word, state->from + at, sizeof word);
      sum += word;
    }
    return sum == state->sums[0];
  };
  return job;
}

// ---- Copying ----

using Copy = void (*)(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes);

void copy_libc(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

// Past the caches. Addresses and `bytes` are multiples of 64.
#if defined(__x86_64__)
void copy_streaming_16(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(from + at + 4096);
    for (std::size_t i = at; i < at + 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
}
[[gnu::target("avx512f")]] void copy_streaming_64(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(from + at + 4096);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_load_si512(from + at));
  }
  _mm_sfence();
}
#endif

Job copy_job(Copy copy) {
  constexpr std::size_t piece = 4096;
  struct State {
    const std::uint8_t* from = nullptr;
    std::uint8_t* to = nullptr;
  };
  auto state = std::make_shared<State>();
  Job job;
  job.rows = chunk / piece;
  job.read = chunk;
  job.written = chunk;
  job.begin = [state] {
    state->from = bf16_set().take(chunk);
    state->to = result_set().take(chunk);
  };
  job.run = [state, copy](std::size_t first, std::size_t last) {
    copy(state->to + first * piece, state->from + first * piece, (last - first) * piece);
  };
  job.agrees = [state] { return std::memcmp(state->to, state->from, chunk) == 0; };
  return job;
}

}  // namespace

void add_bandwidth() {
  add("read/plain", read_job<Read::plain>, Threads::one_and_all);
  add("read/prefetch", read_job<Read::prefetch>, Threads::one_and_all);
  add("read/streams", read_job<Read::streams>, Threads::one_and_all);
  add(
      "copy/memcpy", [] { return copy_job(copy_libc); }, Threads::one_and_all);
#if defined(__x86_64__)
  add(
      "copy/streaming_16", [] { return copy_job(copy_streaming_16); }, Threads::one_and_all);
  if (__builtin_cpu_supports("avx512f") != 0)
    add(
        "copy/streaming_64", [] { return copy_job(copy_streaming_64); }, Threads::one_and_all);
#endif
}

}  // namespace bench
