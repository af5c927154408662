// Proves the Hadamard rotation: bit for bit what Sylvester's matrix gives in exact arithmetic, rounded once to each
// target type; the order of the butterflies; that a product survives and that rotating twice gives the row back; every
// error names its place and writes nothing; the caller's floating-point environment neither changes a bit nor is
// changed.
#include <algorithm>
#include <limits>
#include <pn/hadamard.hpp>

#include "catch.hpp"
#include "environment.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

struct Block {
  std::size_t b;
  double c;  // as FORMAT.md writes it
  int log2;
};
constexpr Block hadamard_blocks[] = {{64, 0.125, 6},
                                     {128, 0x1.6a09e667f3bcdp-4, 7},
                                     {256, 0.0625, 8},
                                     {512, 0x1.6a09e667f3bcdp-5, 9},
                                     {1024, 0.03125, 10}};

constexpr float not_written = -12345.0f;
constexpr std::uint16_t bits_not_written = 0xABCD;
constexpr std::size_t nowhere = 999999;

// (-1)^popcount(i & j).
bool negative(std::size_t i, std::size_t j) {
  bool odd = false;
  for (std::size_t both = i & j; both != 0; both >>= 1) odd ^= both % 2 == 1;
  return odd;
}

// The butterflies from the recursive definition of the matrix, [[H, H], [H, -H]]: halves first, then both together.
// volatile: one rounding per operation, nothing fused, no wider type.
template <class F>
std::vector<F> recursive(const std::vector<F>& x) {
  if (x.size() == 1) return x;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  const std::vector<F> left = recursive(std::vector<F>(x.begin(), middle));
  const std::vector<F> right = recursive(std::vector<F>(middle, x.end()));
  std::vector<F> out(x.size());
  for (std::size_t j = 0; j < left.size(); ++j) {
    volatile F sum = left[j] + right[j];
    volatile F difference = left[j] - right[j];
    out[j] = sum;
    out[j + left.size()] = difference;
  }
  return out;
}
template <class F>
std::vector<F> rotated_recursively(const std::vector<float>& row, std::size_t b, F c) {
  std::vector<F> out;
  for (std::size_t start = 0; start < row.size(); start += b) {
    std::vector<F> segment;
    for (std::size_t j = 0; j < b; ++j) segment.push_back(static_cast<F>(row[start + j]));
    for (const F x : recursive(segment)) {
      volatile F scaled = x * c;
      out.push_back(F{scaled});
    }
  }
  return out;
}

// The nearest of a type whose finite magnitudes are `mantissa` * 2^exponent, mantissa below 2^digits and exponent from
// `lowest`; ties to even. As a double; the caller looks for overflow. Shares nothing with the conversions of half.hpp.
double nearest(double x, int digits, int lowest) {
  if (x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - digits, lowest));
  const double quotient = x / unit;  // exact
  const double below = std::floor(quotient);
  const double rest = quotient - below;  // exact
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2) != 0);
  const double rounded = (below + (up ? 1 : 0)) * unit;
  return rounded == 0 ? std::copysign(0.0, x) : rounded;
}
double nearest_half(double x) { return nearest(x, 11, -24); }
double nearest_bf16(double x) { return nearest(x, 8, -133); }
double bf16_value(unsigned bits) { return static_cast<double>(float_of(static_cast<std::uint32_t>(bits) << 16)); }

enum Kind { gaussian, outlier, integers, wide, subnormal, zeros, cancelling, kinds };

void fill(Kind kind, Random& random, std::vector<float>& x) {
  const double size = std::ldexp(1 + random.uniform(), random.between(-12, 4));
  for (std::size_t j = 0; j < x.size(); ++j) {
    switch (kind) {
      case gaussian:
      case outlier: x[j] = static_cast<float>(size * random.gauss()); break;
      case integers: x[j] = static_cast<float>(random.between(-9, 9)); break;
      case subnormal: x[j] = float_of(random.next32() & 0x807FFFFFu); break;
      case zeros: x[j] = random.coin() ? 0.0f : -0.0f; break;
      default:  // exponents so far apart that sums round in double too
        x[j] = float_of((random.next32() & 0x807FFFFFu) |
                        (static_cast<std::uint32_t>(127 + random.between(-40, 40)) << 23));
    }
  }
  if (kind == outlier)
    for (int i = 0; i < 3; ++i) x[random.below(x.size())] = static_cast<float>(size * (random.coin() ? -1000 : 1000));
  // Large values in pairs whose sum is 0 early in one order of the butterflies and late in another.
  if (kind == cancelling)
    for (int i = 0; i < 4; ++i) {
      const std::size_t at = random.below(x.size());
      const std::size_t other = at ^ (std::size_t{1} << random.below(6));
      x[at] = std::ldexp(1.0f, random.between(50, 60));
      x[other] = -x[at];
    }
}

std::vector<float> row_of(Kind kind, Random& random, std::size_t k) {
  std::vector<float> x(k);
  fill(kind, random, x);
  return x;
}

double norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}
double largest(const std::vector<float>& x) {
  double most = 0;
  for (const float v : x) most = std::max(most, std::fabs(static_cast<double>(v)));
  return most;
}

std::vector<float> weights_of(const std::vector<float>& in, std::size_t b) {
  std::vector<float> out(in.size(), not_written);
  REQUIRE(pn::hadamard_weights(in.data(), out.data(), in.size(), b) == Status::ok);
  return out;
}
std::vector<float> activations_of(std::vector<float> x, std::size_t b) {
  REQUIRE(pn::hadamard_activations(x.data(), x.size(), b) == Status::ok);
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

static_assert(pn::is_hadamard_block(64) && pn::hadamard_scale(1024) == 0.03125, "both in constant expressions");

TEST_CASE("Hadamard blocks and their constants") {
  for (std::size_t b = 0; b <= 70000; ++b) {
    const bool is_one = std::any_of(std::begin(hadamard_blocks), std::end(hadamard_blocks),
                                    [&](const Block& block) { return block.b == b; });
    if (pn::is_hadamard_block(b) != is_one) FAIL("b = " << b);
    if (!is_one && pn::hadamard_scale(b) != 0) FAIL("the constant of b = " << b);
  }
  CHECK_FALSE(pn::is_hadamard_block(~std::size_t{0}));
  for (const auto& [b, c, log2] : hadamard_blocks) {
    CHECK(bits_of(pn::hadamard_scale(b)) == bits_of(c));
    CHECK(c == std::sqrt(1.0 / static_cast<double>(b)));  // correctly rounded, as IEEE 754 asks of sqrt
    CHECK(std::size_t{1} << log2 == b);
    CHECK(b <= pn::max_hadamard_block);
  }
  CHECK(pn::max_hadamard_block == 1024);
}

TEST_CASE("rotating one 1 gives a column of the matrix") {
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (std::size_t i = 0; i < b; i += 1 + b / 64) {
      std::vector<float> x(b, 0.0f);
      x[i] = 1.0f;
      const std::vector<float> weights = weights_of(x, b);
      const std::vector<float> activations = activations_of(x, b);
      for (std::size_t j = 0; j < b; ++j) {
        const float want = static_cast<float>(negative(i, j) ? -c : c);
        if (bits_of(weights[j]) != bits_of(want)) FAIL("weights: b = " << b << ", " << i << ", " << j);
        if (bits_of(activations[j]) != bits_of(want)) FAIL("activations: b = " << b << ", " << i << ", " << j);
      }
    }
  }
}

TEST_CASE("rotating equal values puts them all into the first; the signs of zeros are those of the sums") {
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (const float v : {3.0f, -0.375f, 0.0f, -0.0f}) {
      const std::vector<float> x(b, v);
      const double all = static_cast<double>(v) * static_cast<double>(b);
      const std::vector<float> weights = weights_of(x, b);
      const std::vector<float> activations = activations_of(x, b);
      CHECK(bits_of(weights[0]) == bits_of(static_cast<float>(all * c)));
      CHECK(bits_of(activations[0]) == bits_of(static_cast<float>(all) * static_cast<float>(c)));
      for (std::size_t j = 1; j < b; ++j) {  // v - v = +0.0, also of -0.0
        CHECK(bits_of(weights[j]) == 0u);
        CHECK(bits_of(activations[j]) == 0u);
      }
    }
  }
}

TEST_CASE("weights: the exact sum of each row of the matrix, times c in double, rounded once to each type") {
  Random random(1);
  std::size_t twice_half = 0, twice_bf16 = 0;  // values that a rounding to fp32 on the way would have changed
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (int round = 0; round < (b < 512 ? 60 : 12); ++round) {
      const std::size_t k = 2 * b;
      // Multiples of 2^unit below 2^23, whose sums are exact; or halfway between two bf16 or fp16, and next to nothing.
      const bool halfway = round % 3 == 0;
      const int unit = halfway ? -44 : random.between(-30, -14);
      std::vector<std::int64_t> counts(k);
      std::vector<float> in(k);
      for (std::size_t j = 0; j < k; ++j) {
        if (!halfway)
          counts[j] = random.between(-8388607, 8388607) >> random.between(0, 20);
        else if (j % b == 0)
          counts[j] = random.coin() ? std::int64_t{257} << 32 : -(std::int64_t{2049} << 29);
        else
          counts[j] = random.below(16) == 0 ? random.between(-3, 3) : 0;
        in[j] = static_cast<float>(std::ldexp(static_cast<double>(counts[j]), unit));
      }
      std::vector<float> to_float(k);
      std::vector<double> to_double(k);
      std::vector<std::uint16_t> to_half(k), to_bf16(k);
      REQUIRE(pn::hadamard_weights(in.data(), to_float.data(), k, b) == Status::ok);
      REQUIRE(pn::hadamard_weights(in.data(), to_double.data(), k, b) == Status::ok);
      REQUIRE(pn::hadamard_weights_to_half(in.data(), to_half.data(), k, b) == Status::ok);
      REQUIRE(pn::hadamard_weights_to_bf16(in.data(), to_bf16.data(), k, b) == Status::ok);
      for (std::size_t i = 0; i < k; ++i) {
        const std::size_t start = i / b * b;
        std::int64_t sum = 0;
        for (std::size_t j = 0; j < b; ++j) sum += negative(i - start, j) ? -counts[start + j] : counts[start + j];
        const volatile double want = std::ldexp(static_cast<double>(sum), unit) * c;
        INFO("b = " << b << ", element " << i);
        if (bits_of(to_double[i]) != bits_of(want)) FAIL("double");
        if (bits_of(to_float[i]) != bits_of(static_cast<float>(want))) FAIL("fp32");
        if (bits_of(half_value(to_half[i])) != bits_of(nearest_half(want))) FAIL("fp16");
        if (bits_of(bf16_value(to_bf16[i])) != bits_of(nearest_bf16(want))) FAIL("bf16");
        const double by_fp32 = static_cast<double>(static_cast<float>(want));
        twice_half += nearest_half(by_fp32) != nearest_half(want);
        twice_bf16 += nearest_bf16(by_fp32) != nearest_bf16(want);
      }
    }
  }
  CHECK(twice_half > 1000);
  CHECK(twice_bf16 > 1000);
}

TEST_CASE("the order of the butterflies, bit for bit, where sums round") {
  Random random(2);
  std::size_t ordered = 0;
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (int kind = 0; kind < kinds; ++kind) {
      for (int round = 0; round < 6; ++round) {
        const std::vector<float> in = row_of(static_cast<Kind>(kind), random, 3 * b);
        INFO("b = " << b << ", kind " << kind);
        const std::vector<double> want = rotated_recursively<double>(in, b, c);
        std::vector<double> got(in.size());
        REQUIRE(pn::hadamard_weights(in.data(), got.data(), in.size(), b) == Status::ok);
        CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(double)) == 0);
        const std::vector<float> as_float = weights_of(in, b);
        for (std::size_t i = 0; i < in.size(); ++i)
          if (bits_of(as_float[i]) != bits_of(static_cast<float>(want[i]))) FAIL("fp32, element " << i);
        CHECK(same_bits(activations_of(in, b), rotated_recursively<float>(in, b, static_cast<float>(c))));

        // Bit by bit the other way round: the same matrix, and other sums wherever they round.
        std::vector<float> turned(in.size());
        const auto reversed = [width = log2](std::size_t j) {
          std::size_t out = 0;
          for (int bit = 0; bit < width; ++bit) out |= ((j >> bit) & 1u) << (width - 1 - bit);
          return out;
        };
        for (std::size_t i = 0; i < in.size(); ++i) turned[i / b * b + reversed(i % b)] = in[i];
        const std::vector<double> other = rotated_recursively<double>(turned, b, c);
        for (std::size_t i = 0; i < in.size(); ++i) ordered += other[i / b * b + reversed(i % b)] != want[i];
      }
    }
  }
  CHECK(ordered > 1000);
}

TEST_CASE("close to the matrix in a wider type") {
  Random random(3);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (const Kind kind : {gaussian, outlier, wide}) {
      const std::vector<float> in = row_of(kind, random, b);
      const std::vector<float> weights = weights_of(in, b);
      const std::vector<float> activations = activations_of(in, b);
      const long double scale = 1 / std::sqrt(static_cast<long double>(b));
      for (std::size_t i = 0; i < b; ++i) {
        long double sum = 0;
        for (std::size_t j = 0; j < b; ++j) {
          const long double x = static_cast<long double>(in[j]);
          sum += negative(i, j) ? -x : x;
        }
        const long double want = sum * scale;
        const long double of_row = static_cast<long double>(norm(in));
        INFO("b = " << b << ", element " << i);
        CHECK(std::fabs(static_cast<long double>(weights[i]) - want) <=
              0x1.01p-24L * std::fabs(want) + 1e-13L * of_row);
        CHECK(std::fabs(static_cast<long double>(activations[i]) - want) <=
              static_cast<long double>(log2 + 2) * 0x1p-24L * of_row);
      }
    }
  }
}

TEST_CASE("rotated weights times rotated activations is what the product was") {
  Random random(4);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (const Kind kind : {gaussian, outlier}) {
      for (int round = 0; round < 20; ++round) {
        const std::size_t k = 2 * b;
        const std::vector<float> w = row_of(kind, random, k);
        const std::vector<float> x = row_of(random.coin() ? gaussian : outlier, random, k);
        const std::vector<float> rw = weights_of(w, b);
        const std::vector<float> rx = activations_of(x, b);
        long double before = 0, after = 0, crossed = 0;
        for (std::size_t j = 0; j < k; ++j) {
          before += static_cast<long double>(w[j]) * static_cast<long double>(x[j]);
          after += static_cast<long double>(rw[j]) * static_cast<long double>(rx[j]);
          crossed += static_cast<long double>(rw[j]) * static_cast<long double>(x[j]);
        }
        const long double bound = 1e-6L * static_cast<long double>(norm(w) * norm(x));
        CHECK(std::fabs(after - before) <= bound);
        CHECK(std::fabs(crossed - before) > bound);  // one of the two alone is something else
      }
    }
  }
}

TEST_CASE("rotating twice gives the row back") {
  Random random(5);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (const Kind kind : {gaussian, outlier, integers}) {
      for (int round = 0; round < 20; ++round) {
        const std::vector<float> in = row_of(kind, random, 2 * b);
        const std::vector<float> x = activations_of(activations_of(in, b), b);
        const std::vector<float> w = weights_of(weights_of(in, b), b);
        const double unit = 0x1p-24 * largest(in);
        for (std::size_t j = 0; j < in.size(); ++j) {
          const double want = static_cast<double>(in[j]);
          if (!(std::fabs(static_cast<double>(x[j]) - want) <= 4 * log2 * unit)) FAIL("activations, b = " << b);
          if (!(std::fabs(static_cast<double>(w[j]) - want) <= 4 * unit)) FAIL("weights, b = " << b);
        }
        CHECK_FALSE(same_bits(activations_of(in, b), in));
        // Small integers are rotated exactly where c is a power of two.
        if (kind == integers && log2 % 2 == 0) CHECK(same_bits(x, in));
      }
    }
  }
}

TEST_CASE("segments stand for themselves; in place; nothing is written behind a row") {
  Random random(6);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    const std::size_t k = 3 * b;
    std::vector<float> in = row_of(gaussian, random, k + 2);
    const std::vector<float> before = in;
    std::vector<float> out(k + 2, not_written);
    REQUIRE(pn::hadamard_weights(in.data() + 1, out.data() + 1, k, b) == Status::ok);
    CHECK(same_bits(in, before));
    CHECK((out.front() == not_written && out.back() == not_written));
    for (std::size_t s = 0; s < 3; ++s) {
      const auto first = static_cast<std::ptrdiff_t>(1 + s * b);
      const std::vector<float> alone(in.begin() + first, in.begin() + first + static_cast<std::ptrdiff_t>(b));
      const std::vector<float> rotated = weights_of(alone, b);
      CHECK(std::memcmp(rotated.data(), out.data() + first, b * sizeof(float)) == 0);
      const std::vector<float> x = activations_of(alone, b);
      std::vector<float> all = in;
      REQUIRE(pn::hadamard_activations(all.data() + 1, k, b) == Status::ok);
      CHECK(std::memcmp(x.data(), all.data() + first, b * sizeof(float)) == 0);
      CHECK((bits_of(all.front()) == bits_of(in.front()) && bits_of(all.back()) == bits_of(in.back())));
    }
    std::vector<float> in_place = in;
    REQUIRE(pn::hadamard_weights(in_place.data() + 1, in_place.data() + 1, k, b) == Status::ok);
    CHECK(std::memcmp(in_place.data() + 1, out.data() + 1, k * sizeof(float)) == 0);
    CHECK((bits_of(in_place.front()) == bits_of(in.front()) && bits_of(in_place.back()) == bits_of(in.back())));
    std::vector<double> doubles(k + 1, 7.0);
    std::vector<std::uint16_t> halves(k + 1, bits_not_written), bf16s(k + 1, bits_not_written);
    REQUIRE(pn::hadamard_weights(in.data() + 1, doubles.data(), k, b) == Status::ok);
    REQUIRE(pn::hadamard_weights_to_half(in.data() + 1, halves.data(), k, b) == Status::ok);
    REQUIRE(pn::hadamard_weights_to_bf16(in.data() + 1, bf16s.data(), k, b) == Status::ok);
    CHECK((doubles.back() == 7.0 && halves.back() == bits_not_written && bf16s.back() == bits_not_written));
  }
}

TEST_CASE("rotating: lengths") {
  std::vector<float> in(4096, 1.0f), out(4096, not_written);
  std::vector<double> doubles(4096, 7.0);
  std::vector<std::uint16_t> bits(4096, bits_not_written);
  std::size_t bad = nowhere;
  const auto refused = [&](std::size_t k, std::size_t b) {
    INFO("k = " << k << ", b = " << b);
    CHECK(pn::hadamard_weights(in.data(), out.data(), k, b, &bad) == Status::bad_length);
    CHECK(pn::hadamard_weights(in.data(), doubles.data(), k, b, &bad) == Status::bad_length);
    CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad) == Status::bad_length);
    CHECK(pn::hadamard_weights_to_bf16(in.data(), bits.data(), k, b, &bad) == Status::bad_length);
    CHECK(pn::hadamard_activations(in.data(), k, b) == Status::bad_length);
  };
  for (const std::size_t b :
       std::vector<std::size_t>{0, 1, 2, 16, 32, 63, 65, 80, 96, 127, 192, 320, 640, 768, 1023, 2048, 4096})
    for (const std::size_t k : {std::size_t{0}, b, 2 * b, std::size_t{4096}})
      if (k <= 4096) refused(k, b);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    for (const std::size_t k : {std::size_t{1}, b / 2, b - 1, b + 1, b + b / 2, 2 * b - 1, 4096 - b / 2}) refused(k, b);
    CHECK(pn::hadamard_weights(in.data(), out.data(), 0, b, &bad) == Status::ok);
    CHECK(pn::hadamard_weights(nullptr, static_cast<double*>(nullptr), 0, b, &bad) == Status::ok);
    CHECK(pn::hadamard_weights_to_half(nullptr, nullptr, 0, b, &bad) == Status::ok);
    CHECK(pn::hadamard_weights_to_bf16(nullptr, nullptr, 0, b, &bad) == Status::ok);
    CHECK(pn::hadamard_activations(nullptr, 0, b) == Status::ok);
  }
  CHECK(bad == nowhere);
  CHECK(std::all_of(in.begin(), in.end(), [](float v) { return v == 1.0f; }));
  CHECK(std::all_of(out.begin(), out.end(), [](float v) { return v == not_written; }));
  CHECK(std::all_of(doubles.begin(), doubles.end(), [](double v) { return v == 7.0; }));
  CHECK(std::all_of(bits.begin(), bits.end(), [](std::uint16_t v) { return v == bits_not_written; }));
}

TEST_CASE("rotating weights: what is not finite is named, and nothing is written") {
  for (const auto& [b, c, log2] : hadamard_blocks) {
    const std::size_t k = 3 * b;
    for (const std::uint32_t value : {0x7FC00000u, 0xFFC00001u, 0x7F800001u, 0x7F800000u, 0xFF800000u})
      for (const std::size_t at : {std::size_t{0}, b - 1, b, 2 * b + 5, k - 1}) {
        std::vector<float> in(k, 0.25f), out(k, not_written);
        in[at] = float_of(value);
        if (at + 1 < k) in[k - 1] = float_of(0x7F800000u);  // a later one is not what is reported
        const std::vector<float> before = in;
        std::vector<double> doubles(k, 7.0);
        std::vector<std::uint16_t> halves(k, bits_not_written), bf16s(k, bits_not_written);
        std::size_t bad[4] = {nowhere, nowhere, nowhere, nowhere};
        CHECK(pn::hadamard_weights(in.data(), out.data(), k, b, &bad[0]) == Status::not_finite);
        CHECK(pn::hadamard_weights(in.data(), doubles.data(), k, b, &bad[1]) == Status::not_finite);
        CHECK(pn::hadamard_weights_to_half(in.data(), halves.data(), k, b, &bad[2]) == Status::not_finite);
        CHECK(pn::hadamard_weights_to_bf16(in.data(), bf16s.data(), k, b, &bad[3]) == Status::not_finite);
        for (const std::size_t place : bad) CHECK(place == at);
        CHECK(pn::hadamard_weights(in.data(), in.data(), k, b) == Status::not_finite);
        CHECK(std::memcmp(in.data(), before.data(), k * sizeof(float)) == 0);
        CHECK(std::all_of(out.begin(), out.end(), [](float v) { return v == not_written; }));
        CHECK(std::all_of(doubles.begin(), doubles.end(), [](double v) { return v == 7.0; }));
        CHECK(std::all_of(halves.begin(), halves.end(), [](std::uint16_t v) { return v == bits_not_written; }));
        CHECK(std::all_of(bf16s.begin(), bf16s.end(), [](std::uint16_t v) { return v == bits_not_written; }));
      }
  }
}

TEST_CASE("rotating weights: a result beyond the type is named, one step below it is the largest there is") {
  for (const auto& [b, c, log2] : hadamard_blocks) {
    if (log2 % 2 == 1) continue;  // where c is a power of two the edges are exact
    const std::size_t k = 3 * b;
    const float gain = std::ldexp(1.0f, log2 / 2);
    for (const float sign : {1.0f, -1.0f}) {
      // b equal values v become one, gain * v, at the front of their segment.
      const auto middle = [sign, size = b](float v) {
        std::vector<float> in(3 * size, 0.25f);
        std::fill_n(in.begin() + static_cast<std::ptrdiff_t>(size), size, sign * v);
        return in;
      };
      INFO("b = " << b << ", sign " << sign);
      std::size_t bad = nowhere;
      std::vector<std::uint16_t> bits(k, bits_not_written);
      const unsigned minus = sign < 0 ? 0x8000u : 0u;

      const float half_edge = 65520.0f / gain;
      std::vector<float> in = middle(half_edge);
      CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad) == Status::not_finite);
      CHECK(bad == b);
      CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b) == Status::not_finite);
      CHECK(std::all_of(bits.begin(), bits.end(), [](std::uint16_t v) { return v == bits_not_written; }));
      in[2 * b - 1] = float_of(0x7FC00000u);  // of one segment a weight is named before a result
      CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad) == Status::not_finite);
      CHECK(bad == 2 * b - 1);
      in = middle(half_edge);
      in[2 * b] = float_of(0x7FC00000u);  // but an earlier segment before a later one
      CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad) == Status::not_finite);
      CHECK(bad == b);
      in = middle(std::nextafter(half_edge, 0.0f));
      REQUIRE(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad) == Status::ok);
      CHECK(bits[b] == (0x7BFFu | minus));
      CHECK((bits[b + 1] == 0 && bits[0] != 0));

      std::fill(bits.begin(), bits.end(), bits_not_written);
      const float bf16_edge = std::ldexp(2.0f - 0x1p-8f, 127 - log2 / 2);
      in = middle(bf16_edge);
      CHECK(pn::hadamard_weights_to_bf16(in.data(), bits.data(), k, b, &bad) == Status::not_finite);
      CHECK(bad == b);
      CHECK(std::all_of(bits.begin(), bits.end(), [](std::uint16_t v) { return v == bits_not_written; }));
      in = middle(std::nextafter(bf16_edge, 0.0f));
      REQUIRE(pn::hadamard_weights_to_bf16(in.data(), bits.data(), k, b, &bad) == Status::ok);
      CHECK(bits[b] == (0x7F7Fu | minus));

      std::vector<float> out(k, not_written);
      const float most = std::numeric_limits<float>::max();
      in = middle(std::nextafter(most / gain, most));
      CHECK(pn::hadamard_weights(in.data(), out.data(), k, b, &bad) == Status::not_finite);
      CHECK(bad == b);
      CHECK(std::all_of(out.begin(), out.end(), [](float v) { return v == not_written; }));
      in = middle(most / gain);
      REQUIRE(pn::hadamard_weights(in.data(), out.data(), k, b, &bad) == Status::ok);
      CHECK(out[b] == sign * most);

      std::vector<double> doubles(k, 7.0);
      in = middle(most);
      REQUIRE(pn::hadamard_weights(in.data(), doubles.data(), k, b, &bad) == Status::ok);
      CHECK(doubles[b] == static_cast<double>(sign * most) * static_cast<double>(gain));
    }
  }
  // Not at the front of a segment: a column of the matrix comes together in one place.
  std::vector<float> in(256);
  for (std::size_t j = 1; j < 255; ++j) in[j] = negative(77, j) ? -5000.0f : 5000.0f;
  std::vector<std::uint16_t> bits(256);
  std::size_t bad = nowhere;
  CHECK(pn::hadamard_weights_to_half(in.data(), bits.data(), 256, 256, &bad) == Status::not_finite);
  CHECK(bad == 77);
}

TEST_CASE("activations: infinities and NaN run through their segment and no other") {
  Random random(7);
  for (const auto& [b, c, log2] : hadamard_blocks) {
    const std::vector<float> in = row_of(gaussian, random, 3 * b);
    const std::vector<float> finite = activations_of(in, b);
    for (const std::uint32_t value : {0x7F800000u, 0xFF800000u, 0x7FC00000u}) {
      std::vector<float> x = in;
      x[b + 3] = float_of(value);
      x = activations_of(x, b);
      for (std::size_t j = 0; j < b; ++j) {
        CHECK(bits_of(x[j]) == bits_of(finite[j]));
        CHECK(bits_of(x[2 * b + j]) == bits_of(finite[2 * b + j]));
        if (value == 0x7FC00000u)
          CHECK(std::isnan(x[b + j]));
        else
          CHECK(x[b + j] == (negative(3, j) ? -1.0f : 1.0f) * float_of(value));
      }
    }
  }
}

TEST_CASE("rotating: the caller's floating-point environment changes nothing and is not changed") {
  Random random(8);
  for (const Block& block : hadamard_blocks) {
    const std::size_t b = block.b;
    for (int kind = 0; kind < kinds; ++kind) {
      const std::size_t k = 2 * b;
      std::vector<float> in = row_of(static_cast<Kind>(kind), random, k);
      if (kind == gaussian) in[k - 1] = std::numeric_limits<float>::max();  // overflow in some of the types
      std::vector<float> floats(k), x = in;
      std::vector<double> doubles(k);
      std::vector<std::uint16_t> halves(k), bf16s(k);
      const Status status[] = {
          pn::hadamard_weights(in.data(), floats.data(), k, b), pn::hadamard_weights(in.data(), doubles.data(), k, b),
          pn::hadamard_weights_to_half(in.data(), halves.data(), k, b),
          pn::hadamard_weights_to_bf16(in.data(), bf16s.data(), k, b), pn::hadamard_activations(x.data(), k, b)};
      CHECK((status[2] == Status::not_finite) == (kind == gaussian || kind == wide || kind == cancelling));
      for (const environment::Setting& setting : environment::settings()) {
        std::vector<float> floats_again(k), x_again = in;
        std::vector<double> doubles_again(k);
        std::vector<std::uint16_t> halves_again(k), bf16s_again(k);
        bool agreed = false;
        const bool kept = environment::run_under(setting, [&] {
          agreed = pn::hadamard_weights(in.data(), floats_again.data(), k, b) == status[0] &&
                   pn::hadamard_weights(in.data(), doubles_again.data(), k, b) == status[1] &&
                   pn::hadamard_weights_to_half(in.data(), halves_again.data(), k, b) == status[2] &&
                   pn::hadamard_weights_to_bf16(in.data(), bf16s_again.data(), k, b) == status[3] &&
                   pn::hadamard_activations(x_again.data(), k, b) == status[4];
        });
        INFO(setting.name << ", b = " << b << ", kind " << kind);
        CHECK(kept);
        CHECK(agreed);
        CHECK(same_bits(floats_again, floats));
        CHECK(same_bits(x_again, x));
        CHECK(std::memcmp(doubles_again.data(), doubles.data(), k * sizeof(double)) == 0);
        CHECK(halves_again == halves);
        CHECK(bf16s_again == bf16s);
      }
    }
  }
}
