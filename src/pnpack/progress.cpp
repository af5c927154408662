#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace pnpack {

Progress::Progress(std::string what, std::uint64_t total, bool enabled)
    : what_(std::move(what)), total_(total), enabled_(enabled && total > 0 && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (enabled_) std::fputs("\r\x1b[K", stderr);
}

void Progress::add(std::uint64_t bytes) {
  done_ += bytes;
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  draw();
}

void Progress::draw() const {
  constexpr std::size_t width = 30;
  const double part = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(drawn_ - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  const double left = (static_cast<double>(total_) - static_cast<double>(done_)) / rate;
  const std::size_t filled = static_cast<std::size_t>(part * static_cast<double>(width));
  const std::string line =
      fmt::format("\r{} [{}{}] {:3.0f}%  {:.0f} MB/s  {:.0f} s left\x1b[K", what_, std::string(filled, '#'),
                  std::string(width - filled, '.'), 100 * part, rate / 1e6, std::max(0.0, left));
  std::fputs(line.c_str(), stderr);
}

}  // namespace pnpack
