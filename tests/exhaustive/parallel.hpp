// Work for all processors, and a place where it can report what went wrong: Catch2 is called from one thread only.
#ifndef PN_TESTS_EXHAUSTIVE_PARALLEL_HPP
#define PN_TESTS_EXHAUSTIVE_PARALLEL_HPP

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace exhaustive {

// Sanitizers make everything slower; what is drawn at random is then drawn less often.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t slowdown = 4;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::uint64_t slowdown = 4;
#else
constexpr std::uint64_t slowdown = 1;
#endif
#else
constexpr std::uint64_t slowdown = 1;
#endif

// Failures of all threads: the first few texts, and how many there were.
class Failures {
 public:
  void add(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++count_ <= 5) text_ += text + "\n";
  }
  bool empty() const { return count_ == 0; }
  std::string text() const { return std::to_string(count_) + " failures, the first of them:\n" + text_; }

 private:
  std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::string text_;
};

// Calls work(i) for every i below `pieces`, on all processors, in no particular order.
template <class Work>
void in_parallel(std::uint64_t pieces, Work&& work) {
  std::atomic<std::uint64_t> next{0};
  const auto loop = [&] {
    for (std::uint64_t i = next++; i < pieces; i = next++) work(i);
  };
  const unsigned processors = std::thread::hardware_concurrency();
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < processors; ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
}

// A number from the environment, or the given one.
inline std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

// A random run: `blocks` in pieces of 4096, whose numbers follow from the seed and the piece alone, not from the
// threads. PN_SEED and PN_BLOCKS in the environment replace both.
struct RandomRun {
  static constexpr std::uint64_t piece_size = 4096;
  std::uint64_t seed, pieces;

  RandomRun(const char* what, std::uint64_t default_seed, std::uint64_t blocks)
      : seed(setting("PN_SEED", default_seed)),
        pieces((setting("PN_BLOCKS", blocks / slowdown) + piece_size - 1) / piece_size) {
    std::cout << what << ": PN_SEED=" << seed << " PN_BLOCKS=" << pieces * piece_size << std::endl;
  }
  // Far apart for neighbouring pieces: the multiplier is odd, and the generator mixes what it is given.
  std::uint64_t seed_of(std::uint64_t piece) const { return (seed << 32) ^ (piece * 0xD6E8FEB86659FD93u); }
};

}  // namespace exhaustive

#endif  // PN_TESTS_EXHAUSTIVE_PARALLEL_HPP
