#include "scan_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <p12/block392.hpp>

namespace pnpack {

namespace {

// Tables that are counted in turn: weights in a row mostly have few different exponents, and a counter must not wait
// for its own last store.
constexpr std::size_t lanes = 4;
struct Lane {
  std::array<std::uint32_t, 512> upper{};
  std::array<std::uint32_t, 256> low{};
};

constexpr std::size_t few = 4096;                   // clearing the lanes would cost more than counting
constexpr std::size_t many = std::size_t{1} << 30;  // no counter of a lane overflows

}  // namespace

ExponentWindow best_window(const Histogram& exponents) {
  const auto window = static_cast<std::ptrdiff_t>(p12::window);
  std::uint64_t inside = std::accumulate(exponents.begin(), exponents.begin() + window, std::uint64_t{0});
  std::uint64_t most = inside;
  int base = 0;
  for (std::size_t next = 1; next <= p12::max_base; ++next) {
    inside += exponents[next + p12::window - 1];
    inside -= exponents[next - 1];
    if (inside >= most) {
      most = inside;
      base = static_cast<int>(next);
    }
  }
  return {base, std::accumulate(exponents.begin(), exponents.end(), std::uint64_t{0}) - most};
}

double entropy(const Histogram& counts) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  double bits = 0;
  for (const std::uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / total;
    bits -= share * std::log2(share);
  }
  return bits;
}

void TensorStatistics::add(const std::uint16_t* weights, std::size_t n) {
  if (n < few) {
    for (std::size_t i = 0; i < n; ++i) {
      ++upper_[weights[i] >> 7];
      ++low_[weights[i] & 0xFFu];
    }
    return;
  }
  const auto table = std::make_unique<std::array<Lane, lanes>>();
  while (n > 0) {
    const std::size_t now = std::min(n, many);
    *table = {};
    std::size_t i = 0;
    for (; i + lanes <= now; i += lanes) {
      std::uint64_t four;
      std::memcpy(&four, weights + i, sizeof four);
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const auto weight = static_cast<std::uint16_t>(four >> (16 * lane));
        ++(*table)[lane].upper[weight >> 7];
        ++(*table)[lane].low[weight & 0xFFu];
      }
    }
    for (; i < now; ++i) {
      ++upper_[weights[i] >> 7];
      ++low_[weights[i] & 0xFFu];
    }
    for (const Lane& lane : *table) {
      for (std::size_t k = 0; k < upper_.size(); ++k) upper_[k] += lane.upper[k];
      for (std::size_t k = 0; k < low_.size(); ++k) low_[k] += lane.low[k];
    }
    weights += now;
    n -= now;
  }
}

void TensorStatistics::merge(const TensorStatistics& other) {
  for (std::size_t k = 0; k < upper_.size(); ++k) upper_[k] += other.upper_[k];
  for (std::size_t k = 0; k < low_.size(); ++k) low_[k] += other.low_[k];
}

std::uint64_t TensorStatistics::count() const { return std::accumulate(low_.begin(), low_.end(), std::uint64_t{0}); }

Histogram TensorStatistics::exponents() const {
  Histogram counts{};
  for (std::size_t k = 0; k < upper_.size(); ++k) counts[k & 0xFFu] += upper_[k];
  return counts;
}

Histogram TensorStatistics::high_bytes() const {
  Histogram counts{};
  for (std::size_t k = 0; k < upper_.size(); ++k) counts[k >> 1] += upper_[k];
  return counts;
}

StatisticsSummary TensorStatistics::summary() const {
  const Histogram counts = exponents();
  StatisticsSummary summary;
  summary.count = count();
  summary.entropy_low = entropy(low_);
  summary.entropy_high = entropy(high_bytes());
  summary.window = best_window(counts);
  const auto occurs = [](std::uint64_t count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), occurs);
  if (first == counts.end()) return summary;
  const auto last = std::find_if(counts.rbegin(), counts.rend(), occurs).base();
  summary.first_exponent = static_cast<int>(first - counts.begin());
  summary.exponents.assign(first, last);
  return summary;
}

}  // namespace pnpack
