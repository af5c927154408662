// Proves the conversions between fp16, bf16, fp32 and double: every fp16 and bf16 pattern, every midpoint and the
// source value on either side of it, every NaN payload that the target can hold, and no dependence on the rounding
// mode.
#include <algorithm>
#include <cfenv>
#include <limits>
#include <pn/half.hpp>

#include "catch.hpp"
#include "testing.hpp"

using namespace testing;

namespace {

constexpr unsigned infinity = 0x7C00;  // also: one past the largest finite fp16 in the order of values

// Values of the non-negative finite fp16, in order; [0x7C00] is what would follow 65504.
std::vector<double> ordered_values() {
  std::vector<double> values(infinity + 1);
  for (unsigned h = 0; h < infinity; ++h) values[h] = half_value(h);
  values[infinity] = 65536;
  return values;
}
const std::vector<double> values = ordered_values();

// The same of bf16, from the definition: 7 bits of mantissa, subnormals below 2^-126; 2^128 would follow the largest.
constexpr unsigned bf16_infinity = 0x7F80;
std::vector<double> ordered_bf16_values() {
  std::vector<double> list(bf16_infinity + 1);
  for (unsigned b = 0; b <= bf16_infinity; ++b) {
    const int exponent = static_cast<int>(b >> 7);
    const int mantissa = static_cast<int>(b & 0x7Fu);
    list[b] = exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(mantissa + 128, exponent - 134);
  }
  return list;
}
const std::vector<double> bf16_values = ordered_bf16_values();

// Nearest of a finite double, ties to even, by looking for its neighbours. Exact: midpoints are doubles.
unsigned nearest_in(const std::vector<double>& list, double x) {
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
  const double magnitude = std::fabs(x);
  if (magnitude >= list.back()) return sign | static_cast<unsigned>(list.size() - 1);
  const auto above = std::upper_bound(list.begin(), list.end(), magnitude);
  const unsigned low = static_cast<unsigned>(above - list.begin()) - 1;
  const double middle = (list[low] + list[low + 1]) / 2;
  if (magnitude < middle) return sign | low;
  if (magnitude > middle) return sign | (low + 1);
  return sign | (low % 2 == 0 ? low : low + 1);
}
unsigned nearest_half(double x) { return nearest_in(values, x); }
unsigned nearest_bf16(double x) { return nearest_in(bf16_values, x); }

}  // namespace

TEST_CASE("fp16 to fp32: all 65,536 patterns") {
  for (unsigned h = 0; h < 0x10000; ++h) {
    const std::uint32_t got = pn::half_to_float_bits(static_cast<std::uint16_t>(h));
    std::uint32_t want = 0;
    if (half_is_nan(h)) {
      want = ((h & 0x8000u) << 16) | 0x7FC00000u | ((h & 0x3FFu) << 13);
    } else {
      want = bits_of(static_cast<float>(half_value(h)));
    }
    if (got != want) FAIL("fp16 " << std::hex << h << " became " << got << ", not " << want);
    if (bits_of(pn::half_to_float(static_cast<std::uint16_t>(h))) != want) FAIL("half_to_float(" << h << ")");
  }
}

TEST_CASE("fp16 to fp32 or double and back: all 65,536 patterns") {
  for (unsigned h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const unsigned want = half_is_nan(h) ? h | 0x200u : h;  // signalling NaN come back quiet
    if (pn::float_bits_to_half(pn::half_to_float_bits(half)) != want) FAIL("through fp32 bits: " << std::hex << h);
    if (pn::float_to_half(pn::half_to_float(half)) != want) FAIL("through fp32: " << std::hex << h);
    if (!half_is_nan(h) && pn::double_to_half(half_value(h)) != want) FAIL("through double: " << std::hex << h);
  }
}

TEST_CASE("fp32 to fp16: the listed cases") {
  CHECK(pn::float_bits_to_half(0x40001000) == 0x4000);
  CHECK(pn::float_bits_to_half(0x34200000) == 0x0002);
  CHECK(pn::float_bits_to_half(0x34600000) == 0x0004);
  CHECK(pn::float_bits_to_half(0x387FE000) == 0x0400);
  CHECK(pn::float_bits_to_half(0x33000000) == 0x0000);
  CHECK(pn::float_bits_to_half(0x33000001) == 0x0001);
  CHECK(pn::float_to_half(65519.996f) == 0x7BFF);
  CHECK(pn::float_to_half(65520.0f) == 0x7C00);
  CHECK(pn::float_to_half(-65519.996f) == 0xFBFF);
  CHECK(pn::float_to_half(-65520.0f) == 0xFC00);
  CHECK(pn::float_to_half(0.0f) == 0x0000);
  CHECK(pn::float_to_half(-0.0f) == 0x8000);
  CHECK(pn::float_bits_to_half(0x00000001) == 0x0000);
  CHECK(pn::float_bits_to_half(0x807FFFFF) == 0x8000);
  CHECK(pn::float_bits_to_half(0x7F7FFFFF) == 0x7C00);
  CHECK(pn::float_bits_to_half(0xFF800000) == 0xFC00);
}

TEST_CASE("double to fp16: one rounding, not two") {
  CHECK(pn::double_to_half(1 + 0x1p-11 + 0x1p-40) == 0x3C01);  // by way of fp32 it would be 3C00
  CHECK(pn::double_to_half(1 + 0x1p-11) == 0x3C00);
  CHECK(pn::double_to_half(1 + 0x3p-11) == 0x3C02);
  CHECK(pn::double_to_half(1 + 0x3p-11 - 0x1p-50) == 0x3C01);
  CHECK(pn::double_to_half(0x1p-25) == 0x0000);
  CHECK(pn::double_to_half(0x1p-25 + 0x1p-77) == 0x0001);
  CHECK(pn::double_to_half(-0x1p-25 - 0x1p-77) == 0x8001);
  CHECK(pn::double_to_half(0x1p-26) == 0x0000);
  CHECK(pn::double_to_half(0x1.fffffffffffffp-26) == 0x0000);
  CHECK(pn::double_to_half(65519.99999999999) == 0x7BFF);
  CHECK(pn::double_to_half(65520.0) == 0x7C00);
  CHECK(pn::double_to_half(std::numeric_limits<double>::max()) == 0x7C00);
  CHECK(pn::double_to_half(std::numeric_limits<double>::denorm_min()) == 0x0000);
  CHECK(pn::double_to_half(-std::numeric_limits<double>::denorm_min()) == 0x8000);
  CHECK(pn::double_to_half(std::numeric_limits<double>::infinity()) == 0x7C00);
  CHECK(pn::double_to_half(-std::numeric_limits<double>::infinity()) == 0xFC00);
  CHECK(pn::double_to_half(0.0) == 0x0000);
  CHECK(pn::double_to_half(-0.0) == 0x8000);
}

TEST_CASE("to fp16: every midpoint, every value, and one step either side") {
  for (unsigned low = 0; low < infinity; ++low) {
    const double middle = (values[low] + values[low + 1]) / 2;
    const unsigned even = low % 2 == 0 ? low : low + 1;
    REQUIRE(static_cast<double>(static_cast<float>(middle)) == middle);
    for (const double sign : {1.0, -1.0}) {
      const unsigned s = sign < 0 ? 0x8000u : 0u;
      const double m = sign * middle;
      const double far = sign * HUGE_VAL;
      if (pn::double_to_half(m) != (s | even)) FAIL("double midpoint above " << std::hex << low);
      if (pn::double_to_half(std::nextafter(m, 0.0)) != (s | low)) FAIL("double below midpoint " << std::hex << low);
      if (pn::double_to_half(std::nextafter(m, far)) != (s | (low + 1)))
        FAIL("double above midpoint " << std::hex << low);
      const float f = static_cast<float>(m);
      const float farf = static_cast<float>(far);
      if (pn::float_to_half(f) != (s | even)) FAIL("float midpoint above " << std::hex << low);
      if (pn::float_to_half(std::nextafter(f, 0.0f)) != (s | low)) FAIL("float below midpoint " << std::hex << low);
      if (pn::float_to_half(std::nextafter(f, farf)) != (s | (low + 1)))
        FAIL("float above midpoint " << std::hex << low);

      const double v = sign * values[low];
      const float vf = static_cast<float>(v);
      if (pn::double_to_half(v) != (s | low)) FAIL("double value of " << std::hex << low);
      if (pn::double_to_half(std::nextafter(v, far)) != (s | low)) FAIL("double above " << std::hex << low);
      if (pn::float_to_half(std::nextafter(vf, farf)) != (s | low)) FAIL("float above " << std::hex << low);
      if (low == 0) continue;
      if (pn::double_to_half(std::nextafter(v, 0.0)) != (s | low)) FAIL("double below " << std::hex << low);
      if (pn::float_to_half(std::nextafter(vf, 0.0f)) != (s | low)) FAIL("float below " << std::hex << low);
    }
  }
}

TEST_CASE("to fp16: random values against their neighbours") {
  Random random(1);
  for (int i = 0; i < 1000000; ++i) {
    // Exponents around fp16's range; every bit of the mantissa random.
    const std::uint64_t exponent = 1023u - 30u + random.below(50);
    const double x = double_of((random.next() & 0x800FFFFFFFFFFFFFu) | (exponent << 52));
    if (pn::double_to_half(x) != nearest_half(x)) FAIL("double bits " << std::hex << bits_of(x));
    const std::uint32_t bits = random.next32();
    const float f = float_of(i % 2 == 0 ? bits : (bits & 0x80FFFFFFu) | (random.coin() ? 0x38000000u : 0x47000000u));
    if (std::isnan(f)) continue;
    if (pn::float_to_half(f) != nearest_half(static_cast<double>(f))) FAIL("float bits " << std::hex << bits_of(f));
  }
}

TEST_CASE("to fp16: a NaN keeps its sign and the top of its payload and becomes quiet") {
  for (unsigned sign = 0; sign < 2; ++sign)
    for (std::uint32_t top = 0; top < 0x400; ++top)
      for (std::uint32_t low = 0; low < 2; ++low) {
        if (top == 0 && low == 0) continue;  // an infinity
        const unsigned want = (sign << 15) | 0x7E00u | top;
        const std::uint32_t as_float = (sign << 31) | 0x7F800000u | (top << 13) | low;
        const std::uint64_t as_double =
            (std::uint64_t{sign} << 63) | 0x7FF0000000000000u | (std::uint64_t{top} << 42) | low;
        if (pn::float_bits_to_half(as_float) != want) FAIL("NaN " << std::hex << as_float);
        if (pn::double_bits_to_half(as_double) != want) FAIL("NaN " << std::hex << as_double);
      }
  CHECK(pn::float_bits_to_half(0x7F800000u | 0x1FFFu) == 0x7E00);
  CHECK(pn::double_bits_to_half(0xFFF0000000000000u | 0x3FFFFFFFFFFu) == 0xFE00);
}

TEST_CASE("bf16 to fp32 is a shift; and back: all 65,536 patterns") {
  for (unsigned b = 0; b < 0x10000; ++b) {
    const auto bf16 = static_cast<std::uint16_t>(b);
    const bool nan = (b & 0x7FFFu) > 0x7F80u;
    if (!nan || (b & 0x40u) != 0) {  // a signalling NaN may become quiet on its way through a float
      if (bits_of(pn::bf16_to_float(bf16)) != b << 16) FAIL("bf16 " << std::hex << b);
    }
    if (pn::float_bits_to_bf16(b << 16) != (nan ? b | 0x40u : b)) FAIL("bf16 and back: " << std::hex << b);
  }
}

TEST_CASE("fp32 to bf16: nearest, ties to even, around every bf16") {
  for (unsigned b = 0; b < 0x10000; ++b) {
    const bool infinite = (b & 0x7FFFu) == 0x7F80u;
    for (const std::uint32_t rest : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const std::uint32_t bits = (b << 16) | rest;
      std::uint32_t want = b;
      if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        want = b | 0x40u;
      } else if (!infinite) {
        const bool up = rest > 0x8000u || (rest == 0x8000u && b % 2 == 1);
        want = up ? b + 1 : b;  // the next in magnitude; after 7F7F comes infinity
      }
      if (pn::float_bits_to_bf16(bits) != want) FAIL("fp32 " << std::hex << bits << " to bf16");
    }
  }
  CHECK(pn::float_to_bf16(1.0f) == 0x3F80);
  CHECK(pn::float_to_bf16(-0.0f) == 0x8000);
  CHECK(pn::float_bits_to_bf16(0x7F7F7FFF) == 0x7F7F);
  CHECK(pn::float_bits_to_bf16(0x7F7F8000) == 0x7F80);
  CHECK(pn::float_bits_to_bf16(0x7F800001) == 0x7FC0);
  CHECK(pn::float_bits_to_bf16(0xFF8000FF) == 0xFFC0);
}

TEST_CASE("double to bf16: one rounding, not two; the listed cases") {
  CHECK(pn::double_to_bf16(1 + 0x1p-8 + 0x1p-40) == 0x3F81);  // by way of fp32 it would be 3F80
  CHECK(pn::double_to_bf16(1 + 0x1p-8) == 0x3F80);
  CHECK(pn::double_to_bf16(1 + 0x3p-8) == 0x3F82);
  CHECK(pn::double_to_bf16(1 + 0x3p-8 - 0x1p-50) == 0x3F81);
  CHECK(pn::double_to_bf16(0x1p-134) == 0x0000);
  CHECK(pn::double_to_bf16(0x1.0000000000001p-134) == 0x0001);
  CHECK(pn::double_to_bf16(-0x1.0000000000001p-134) == 0x8001);
  CHECK(pn::double_to_bf16(0x1.fffffffffffffp-135) == 0x0000);
  CHECK(pn::double_to_bf16(0x1p-133) == 0x0001);
  CHECK(pn::double_to_bf16(0x1.ffp-127) == 0x0080);  // the largest subnormal rounds up to the smallest normal
  CHECK(pn::double_to_bf16(0x1p-126) == 0x0080);
  CHECK(pn::double_to_bf16(0x1.fep127) == 0x7F7F);
  CHECK(pn::double_to_bf16(0x1.fefffffffffffp127) == 0x7F7F);
  CHECK(pn::double_to_bf16(0x1.ffp127) == 0x7F80);
  CHECK(pn::double_to_bf16(-0x1.ffp127) == 0xFF80);
  CHECK(pn::double_to_bf16(std::numeric_limits<double>::max()) == 0x7F80);
  CHECK(pn::double_to_bf16(std::numeric_limits<double>::denorm_min()) == 0x0000);
  CHECK(pn::double_to_bf16(-std::numeric_limits<double>::denorm_min()) == 0x8000);
  CHECK(pn::double_to_bf16(std::numeric_limits<double>::infinity()) == 0x7F80);
  CHECK(pn::double_to_bf16(-std::numeric_limits<double>::infinity()) == 0xFF80);
  CHECK(pn::double_to_bf16(0.0) == 0x0000);
  CHECK(pn::double_to_bf16(-0.0) == 0x8000);
}

TEST_CASE("double to bf16: every value, every midpoint, and one step either side") {
  for (unsigned low = 0; low < bf16_infinity; ++low) {
    const double middle = (bf16_values[low] + bf16_values[low + 1]) / 2;
    const unsigned even = low % 2 == 0 ? low : low + 1;
    for (const double sign : {1.0, -1.0}) {
      const unsigned s = sign < 0 ? 0x8000u : 0u;
      const double far = sign * HUGE_VAL;
      const double v = sign * bf16_values[low];
      if (pn::double_to_bf16(v) != (s | low)) FAIL("value of " << std::hex << low);
      if (pn::double_to_bf16(std::nextafter(v, far)) != (s | low)) FAIL("above " << std::hex << low);
      if (low != 0 && pn::double_to_bf16(std::nextafter(v, 0.0)) != (s | low)) FAIL("below " << std::hex << low);
      if (pn::double_to_bf16(sign * middle) != (s | even)) FAIL("midpoint above " << std::hex << low);
      if (pn::double_to_bf16(std::nextafter(sign * middle, 0.0)) != (s | low))
        FAIL("below midpoint " << std::hex << low);
      if (pn::double_to_bf16(std::nextafter(sign * middle, far)) != (s | (low + 1)))
        FAIL("above midpoint " << std::hex << low);
    }
  }
}

TEST_CASE("double to bf16: random values against their neighbours, and against fp32 where it is exact") {
  Random random(2);
  for (int i = 0; i < 1000000; ++i) {
    // All of bf16's exponents and some beyond; every bit of the mantissa random.
    const std::uint64_t exponent = 1023u - 136u + random.below(266);
    const double x = double_of((random.next() & 0x800FFFFFFFFFFFFFu) | (exponent << 52));
    if (pn::double_to_bf16(x) != nearest_bf16(x)) FAIL("double bits " << std::hex << bits_of(x));
    const std::uint32_t bits = random.next32();
    const float f = float_of(i % 2 == 0 ? bits : bits & 0x80FFFFFFu);
    if (!std::isnan(f) && pn::double_to_bf16(static_cast<double>(f)) != pn::float_to_bf16(f))
      FAIL("float bits " << std::hex << bits_of(f));
  }
}

TEST_CASE("double to bf16: a NaN keeps its sign and the top of its payload and becomes quiet") {
  for (unsigned sign = 0; sign < 2; ++sign)
    for (std::uint32_t top = 0; top < 0x80; ++top)
      for (const std::uint64_t low : {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 45) - 1}) {
        if (top == 0 && low == 0) continue;  // an infinity
        const std::uint64_t bits = (std::uint64_t{sign} << 63) | 0x7FF0000000000000u | (std::uint64_t{top} << 45) | low;
        if (pn::double_bits_to_bf16(bits) != ((sign << 15) | 0x7FC0u | top)) FAIL("NaN " << std::hex << bits);
        // As fp32 to bf16 of the same payload.
        const std::uint32_t as_float = (sign << 31) | 0x7F800000u | (top << 16) | (low != 0 ? 1u : 0u);
        if (pn::double_bits_to_bf16(bits) != pn::float_bits_to_bf16(as_float)) FAIL("NaN " << std::hex << as_float);
      }
}

TEST_CASE("conversions do not depend on the rounding mode") {
  const int before = std::fegetround();
  unsigned wrong = 0;
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    for (unsigned low = 0; low < infinity; ++low) {
      const std::uint32_t middle = (pn::half_to_float_bits(static_cast<std::uint16_t>(low)) + 0u) | 0x1000u;
      if (low >= 0x400 && pn::float_to_half(float_of(middle)) != low + low % 2) ++wrong;
      if (bits_of(pn::half_to_float(static_cast<std::uint16_t>(low))) != bits_of(static_cast<float>(values[low])))
        ++wrong;
    }
    if (pn::double_to_half(1 + 0x1p-11 + 0x1p-40) != 0x3C01) ++wrong;
    if (pn::float_to_bf16(float_of(0x3F808000)) != 0x3F80) ++wrong;
    if (pn::double_to_bf16(1 + 0x1p-8 + 0x1p-40) != 0x3F81) ++wrong;
  }
  std::fesetround(before);
  CHECK(wrong == 0);
}

// Usable in constant expressions.
static_assert(pn::half_to_float_bits(0x0001) == 0x33800000);
static_assert(pn::half_to_float_bits(0xFC00) == 0xFF800000);
static_assert(pn::float_bits_to_half(0x33000001) == 0x0001);
static_assert(pn::double_bits_to_half(0x3FF0020000000000) == 0x3C00);
static_assert(pn::float_bits_to_bf16(0x3F818000) == 0x3F82);
static_assert(pn::double_bits_to_bf16(0x3FF0300000000000) == 0x3F82);
#if defined(PN_HAS_BIT_CAST)
static_assert(pn::half_to_float(0xC400) == -4.0f);
static_assert(pn::double_to_half(65504.0) == 0x7BFF);
static_assert(pn::float_to_half(65520.0f) == 0x7C00);
static_assert(pn::bf16_to_float(0x3F80) == 1.0f);
static_assert(pn::float_to_bf16(-2.0f) == 0xC000);
static_assert(pn::double_to_bf16(-2.0) == 0xC000);
#endif
