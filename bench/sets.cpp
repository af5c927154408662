// Working sets and the weights in them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <random>
#include <string>

#include "bench.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace bench {
namespace {

constexpr std::align_val_t huge_page{std::size_t{2} << 20};

std::size_t last_level_cache() {
  std::size_t largest = 0;
  for (const auto& cache : benchmark::CPUInfo::Get().caches)
    largest = std::max(largest, static_cast<std::size_t>(cache.size));
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (level3 > 0) largest = std::max(largest, static_cast<std::size_t>(level3));
#endif
  return largest == 0 ? std::size_t{64} << 20 : largest;
}

std::size_t free_memory() {
  unsigned long long kib = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string word; kib == 0 && file >> word;)
    if (word == "MemAvailable:") file >> kib;
  return kib == 0 ? std::size_t{8} << 30 : static_cast<std::size_t>(kib) << 10;
}

// How many sets there are at the same time.
#if defined(PN_BENCH_GGML)
constexpr std::size_t set_count = 7 + 8;
#else
constexpr std::size_t set_count = 7;
#endif

template <class Item>
std::vector<std::uint8_t> bytes_of(const std::vector<Item>& items) {
  std::vector<std::uint8_t> bytes(items.size() * sizeof(Item));
  std::memcpy(bytes.data(), items.data(), bytes.size());
  return bytes;
}

template <class Function>
std::vector<std::uint16_t> converted(Function function) {
  std::vector<std::uint16_t> items(pattern_weights);
  std::transform(pattern().begin(), pattern().end(), items.begin(), function);
  return items;
}

std::vector<std::uint16_t> bf16_pattern() { return converted(pn::float_to_bf16); }

std::vector<p12::Block392> p12_pattern() {
  std::vector<p12::Block392> blocks(p12::block_count(pattern_weights));
  require(p12::pack_row(bf16_pattern().data(), pattern_weights, blocks.data()));
  return blocks;
}

template <class T>
std::vector<pn::Block34> pn_pattern() {
  std::vector<pn::Block34> blocks(pn::block_count<T>(pattern_weights));
  require(pn::quantize_row<T>(pattern().data(), pattern_weights, blocks.data()));
  return blocks;
}

}  // namespace

const Sizes& sizes() {
  static const Sizes found = [] {
    const std::size_t cache = last_level_cache();
    const std::size_t wanted = std::max(2 * cache + cache / 16, std::size_t{256} << 20);
    const std::size_t allowed = free_memory() / set_count / 4 * 3;
    return Sizes{cache, std::min(wanted, allowed), allowed < wanted};
  }();
  return found;
}

void Free::operator()(void* memory) const noexcept { ::operator delete(memory, huge_page); }

Memory allocate(std::size_t bytes) {
  void* memory = ::operator new(bytes, huge_page, std::nothrow);
  if (memory == nullptr) fail("not enough memory for a working set");
#if defined(__linux__)
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0, bytes);
  return Memory(static_cast<std::uint8_t*>(memory));
}

Set::Set(const std::vector<std::uint8_t>& pattern)
    : bytes_(sizes().set / pattern.size() * pattern.size()), alignment_(1), data_(allocate(bytes_)) {
  for (std::size_t at = 0; at < bytes_; at += pattern.size())
    std::memcpy(data_.get() + at, pattern.data(), pattern.size());
}

Set::Set() : bytes_(sizes().set), alignment_(64), data_(allocate(bytes_)) {}

std::uint8_t* Set::take(std::size_t bytes) {
  if (bytes > bytes_) fail("too little memory is free: a working set does not hold one call");
  at_ = (at_ + alignment_ - 1) / alignment_ * alignment_;
  if (at_ + bytes > bytes_) at_ = 0;
  std::uint8_t* const taken = data_.get() + at_;
  at_ += bytes;
  return taken;
}

const std::vector<float>& pattern() {
  static const std::vector<float> weights = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> made(pattern_weights);
    for (float& w : made) w = normal(random);
    for (std::size_t i = 77; i < made.size(); i += 50 * p12::block_size) made[i] = 0x1p-30f;
    return made;
  }();
  return weights;
}

std::vector<float> activations(std::size_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

Set& f32_set() {
  static Set set(bytes_of(pattern()));
  return set;
}
Set& f16_set() {
  static Set set(bytes_of(converted(pn::float_to_half)));
  return set;
}
Set& bf16_set() {
  static Set set(bytes_of(bf16_pattern()));
  return set;
}
Set& p12_set() {
  static Set set(bytes_of(p12_pattern()));
  return set;
}
template <class T>
Set& pn_set() {
  static Set set(bytes_of(pn_pattern<T>()));
  return set;
}
template Set& pn_set<pn::pn3t>();
template Set& pn_set<pn::pn4t>();
Set& result_set() {
  static Set set;
  return set;
}

}  // namespace bench
