// A progress bar on standard error, drawn only when it is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pnpack {

class Progress {
 public:
  // `total` bytes of input are expected. Draws nothing when `enabled` is false or standard error is no terminal.
  Progress(std::string what, std::uint64_t total, bool enabled);
  ~Progress();  // removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::uint64_t bytes);

 private:
  void draw() const;

  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  bool enabled_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
};

}  // namespace pnpack
