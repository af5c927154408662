// A second implementation of BF16_P12, written from the format's text without any code of the library: every one of
// the 241 bases is tried, and codes are placed bit by bit.
#ifndef P12_TESTS_SECOND_PACKER_HPP
#define P12_TESTS_SECOND_PACKER_HPP

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace second {

using Weights = std::array<std::uint16_t, 256>;
using Bytes = std::array<std::uint8_t, 392>;

inline int exponent(unsigned weight) { return static_cast<int>(weight / 128 % 256); }

// Weights whose exponent a base does not reach.
inline int outside(const Weights& weights, int base) {
  int count = 0;
  for (const std::uint16_t weight : weights) count += exponent(weight) < base || exponent(weight) > base + 15 ? 1 : 0;
  return count;
}

struct Choice {
  int base = 0;
  int listed = 257;
};

// From the largest base down, so that only a strictly better one replaces it.
inline Choice choose(const Weights& weights) {
  Choice best;
  for (int base = 240; base >= 0; --base) {
    const int listed = outside(weights, base);
    if (listed < best.listed) best = {base, listed};
  }
  return best;
}

// Bit of the block at which the code of a weight begins.
inline int first_bit(int place) {
  const int t = place % 8;
  return 8 * 8 + 32 * (place / 8) + (t % 2 == 1 ? 16 : 0) + 4 * (t / 2);
}

// False when the weights do not fit.
inline bool pack(const Weights& weights, Bytes& out) {
  const Choice best = choose(weights);
  if (best.listed > 3) return false;
  out.fill(0);
  out[0] = static_cast<std::uint8_t>(best.base);
  out[1] = static_cast<std::uint8_t>(best.listed);
  std::size_t slot = 0;
  for (int place = 0; place < 256; ++place) {
    const unsigned weight = weights[static_cast<std::size_t>(place)];
    out[static_cast<std::size_t>(136 + place)] = static_cast<std::uint8_t>(weight / 32768 * 128 + weight % 128);
    const int code = exponent(weight) - best.base;
    if (code < 0 || code > 15) {
      out[2 + slot] = static_cast<std::uint8_t>(place);
      out[5 + slot] = static_cast<std::uint8_t>(exponent(weight));
      ++slot;
      continue;
    }
    const int bit = first_bit(place);
    auto& byte = out[static_cast<std::size_t>(bit / 8)];
    byte = static_cast<std::uint8_t>(byte + code * (bit % 8 == 4 ? 16 : 1));
  }
  return true;
}

// Any bytes: a count beyond 3 is 3, exponents wrap, later places win.
inline Weights unpack(const Bytes& in) {
  Weights out;
  for (int place = 0; place < 256; ++place) {
    const int bit = first_bit(place);
    const int byte = in[static_cast<std::size_t>(bit / 8)];
    const int code = bit % 8 == 4 ? byte / 16 : byte % 16;
    int e = (in[0] + code) % 256;
    for (std::size_t slot = 0; slot < 3; ++slot)
      if (slot < in[1] && in[2 + slot] == place) e = in[5 + slot];
    const int sm = in[static_cast<std::size_t>(136 + place)];
    out[static_cast<std::size_t>(place)] = static_cast<std::uint16_t>(sm / 128 * 32768 + e * 128 + sm % 128);
  }
  return out;
}

inline bool is_canonical(const Bytes& bytes) {
  Bytes again;
  return pack(unpack(bytes), again) && again == bytes;
}

}  // namespace second

#endif  // P12_TESTS_SECOND_PACKER_HPP
