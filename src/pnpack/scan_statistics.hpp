// What the bytes and exponents of a tensor's BF16 weights look like: the numbers behind `pnpack scan`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pnpack {

// The exponents base .. base + 15 that hold the most weights, a tie to the larger base, and how many weights lie
// elsewhere. As p12::best_base, but for any number of weights.
struct ExponentWindow {
  int base = 0;
  std::uint64_t outside = 0;
};

using Histogram = std::array<std::uint64_t, 256>;

ExponentWindow best_window(const Histogram& exponents);

// Shannon entropy in bits, 0 when nothing was counted.
double entropy(const Histogram& counts);

// What a report keeps of a tensor: small for a small tensor.
struct StatisticsSummary {
  std::uint64_t count = 0;
  double entropy_low = 0;   // bits of the low byte: last bit of the exponent and mantissa
  double entropy_high = 0;  // bits of the high byte: sign and the other bits of the exponent
  ExponentWindow window;
  int first_exponent = 0;                // the smallest that occurs
  std::vector<std::uint64_t> exponents;  // weights by exponent, from the first to the last that occurs
};

// Counts weights. The order of adding and merging makes no difference.
class TensorStatistics {
 public:
  // bf16 patterns.
  void add(const std::uint16_t* weights, std::size_t n);
  void merge(const TensorStatistics& other);

  std::uint64_t count() const;
  Histogram exponents() const;
  Histogram high_bytes() const;
  const Histogram& low_bytes() const { return low_; }
  StatisticsSummary summary() const;

 private:
  std::array<std::uint64_t, 512> upper_{};  // by sign and exponent, bits 15..7
  Histogram low_{};                         // by low byte, bits 7..0
};

}  // namespace pnpack
