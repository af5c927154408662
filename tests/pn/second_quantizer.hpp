// A second implementation of the PN quantizer, written from the format's text without any code of the library. Every
// decision (which fp16 a candidate is, which code a weight gets) is made in exact integers; only the error sums are
// double arithmetic, because the format defines them so, and each product there is kept apart through memory.
#ifndef PN_TESTS_SECOND_QUANTIZER_HPP
#define PN_TESTS_SECOND_QUANTIZER_HPP

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace second {

struct Type {
  int bits;
  int per_word;
  int weights;
  int zero;
};
constexpr Type pn3t = {3, 10, 80, 4};
constexpr Type pn4t = {4, 8, 64, 8};

enum class Result { done, overflow };

struct Encoded {
  Result result = Result::done;
  std::uint8_t bytes[34] = {};
  int distinct_best = 0;  // how many different scales reach the smallest error
  int usable = 0;         // candidates that are neither 0 nor infinite
};

// A number as sign * mantissa * 2^exponent.
struct Exact {
  bool negative = false;
  std::uint64_t mantissa = 0;
  int exponent = 0;
};

inline Exact exact(double x) {
  Exact out;
  out.negative = std::signbit(x);
  int power = 0;
  const double fraction = std::frexp(std::fabs(x), &power);
  out.mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  out.exponent = power - 53;
  return out;
}

// A positive quotient to the nearest integer, ties to even.
inline std::uint64_t nearest_quotient(std::uint64_t numerator, std::uint64_t denominator) {
  const std::uint64_t below = numerator / denominator;
  const std::uint64_t twice_rest = 2 * (numerator % denominator);
  if (twice_rest == denominator) return below + below % 2;
  return twice_rest > denominator ? below + 1 : below;
}

// An fp16 scale: its value is mantissa * 2^unit, mantissa 0..2047.
struct Scale {
  bool infinite = false;
  bool negative = false;
  int mantissa = 0;
  int unit = -24;

  double value() const { return std::ldexp(negative ? -mantissa : mantissa, unit); }
  unsigned bits() const {
    const unsigned sign = negative ? 0x8000u : 0u;
    if (mantissa < 1024) return sign | static_cast<unsigned>(mantissa);
    return sign | static_cast<unsigned>((unit + 25) * 1024 + (mantissa - 1024));
  }
};

// Nearest fp16 of a double, ties to even, in one rounding.
inline Scale nearest_scale(double x) {
  const Exact e = exact(x);
  Scale out;
  out.negative = e.negative;
  if (e.mantissa == 0) return out;
  // The unit in which the number has 11 digits, but not below fp16's smallest; 2^53 > mantissa >= 2^52.
  out.unit = e.exponent + 42 > -24 ? e.exponent + 42 : -24;
  const int down = out.unit - e.exponent;
  if (down > 60) return out;  // far below half of the smallest fp16
  std::uint64_t rounded = nearest_quotient(e.mantissa, std::uint64_t{1} << down);
  if (rounded == 2048) {
    rounded = 1024;
    ++out.unit;
  }
  out.mantissa = static_cast<int>(rounded);
  out.infinite = out.unit > 5;  // the largest fp16 is 2047 * 2^5
  return out;
}

// Candidate i of a block, before any is skipped.
inline Scale candidate(const Type& type, int i, double amax, bool towards_lowest) {
  const double m = (50 + 2 * i) / 100.0;
  return nearest_scale((towards_lowest ? m : -m) * amax / type.zero);
}

// rint(w / s) clamped to the codes, minus nothing: the level n - z. `w` has a mantissa of exactly 24 bits, or is 0.
inline int level(const Type& type, const Exact& w, const Scale& s) {
  if (w.mantissa == 0) return 0;
  const bool down = w.negative != s.negative;
  const int most = down ? type.zero : type.zero - 1;
  std::uint64_t sm = static_cast<std::uint64_t>(s.mantissa);
  int unit = s.unit;
  while (sm < 1024) {
    sm *= 2;
    --unit;
  }
  // w / s = (mantissa / sm) * 2^shift, the first factor between 2^12 and 2^14.
  const int shift = w.exponent - unit;
  int steps = 0;
  if (shift >= -8)
    steps = most + 1;
  else if (shift >= -16)
    steps = static_cast<int>(nearest_quotient(w.mantissa, sm << -shift));
  if (steps > most) steps = most;
  return down ? -steps : steps;
}

inline double kept_apart(double product) {
  volatile double memory = product;
  return memory;
}

// `importance` may be null.
inline Encoded quantize(const Type& type, const float* weights, const double* importance) {
  Encoded out;
  Exact split[80];
  double largest = static_cast<double>(weights[0]), smallest = largest;
  bool any_importance = false;
  for (int e = 0; e < type.weights; ++e) {
    const double w = static_cast<double>(weights[e]);
    split[e] = exact(w);
    split[e].mantissa >>= 29;  // 24 bits are all that an fp32 has
    split[e].exponent += 29;
    if (w > largest) largest = w;
    if (w < smallest) smallest = w;
    if (importance != nullptr && importance[e] > 0) any_importance = true;
  }
  const bool towards_lowest = std::fabs(smallest) > largest;
  const double amax = std::fmax(std::fabs(smallest), std::fabs(largest));

  // From the largest m to the smallest, so that only a strictly smaller error replaces the best.
  bool found = false, infinite = false;
  Scale best;
  double best_error = 0;
  Scale last;
  for (int i = 35; i >= 0 && amax > 0; --i) {
    const Scale s = candidate(type, i, amax, towards_lowest);
    infinite = infinite || s.infinite;
    if (s.infinite || s.mantissa == 0) continue;
    ++out.usable;
    if (found && s.bits() == last.bits()) continue;  // the same scale again has the same error
    last = s;
    const double value = s.value();
    double error = 0;
    for (int e = 0; e < type.weights; ++e) {
      const double r = static_cast<double>(weights[e]) - kept_apart(value * level(type, split[e], s));
      const double square = kept_apart(r * r);
      error += importance != nullptr && any_importance ? kept_apart(importance[e] * square) : square;
    }
    if (found && error == best_error) ++out.distinct_best;
    if (!found || error < best_error) {
      out.distinct_best = 1;
      best = s;
      best_error = error;
    }
    found = true;
  }
  if (!found && infinite) {
    out.result = Result::overflow;
    return out;
  }

  const unsigned d = found ? best.bits() : 0u;
  out.bytes[0] = static_cast<std::uint8_t>(d % 256);
  out.bytes[1] = static_cast<std::uint8_t>(d / 256);
  for (int e = 0; e < type.weights; ++e) {
    const int n = (found ? level(type, split[e], best) : 0) + type.zero;
    const int t = e % type.per_word;
    const int at = 8 * (2 + 4 * (e / type.per_word) + 2 * (t % 2)) + type.bits * (t / 2);
    for (int b = 0; b < type.bits; ++b)
      if (((n >> b) & 1) != 0) {
        auto& byte = out.bytes[(at + b) / 8];
        byte = static_cast<std::uint8_t>(byte + (1 << ((at + b) % 8)));
      }
  }
  return out;
}

}  // namespace second

#endif  // PN_TESTS_SECOND_QUANTIZER_HPP
