// fp16 and bf16: every operation against exact integers, rounded once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <catch.hpp>

namespace {

using Wide = __int128;

struct Format {
  int digits;  // of the significand, the implicit one among them
  int least;   // the smallest positive number is 2^least
  std::uint16_t infinity;
  int fraction() const { return digits - 1; }
};
constexpr Format fp16{11, -24, 0x7C00}, bf16{8, -133, 0x7F80};

// significand * 2^exponent
struct Exact {
  Wide significand;
  int exponent;
  bool negative;  // also of a zero
};

bool is_finite(Format f, std::uint16_t bits) { return (bits & 0x7FFF) < f.infinity; }

Exact exact(Format f, std::uint16_t bits) {
  const int field = (bits & 0x7FFF) >> f.fraction();
  int significand = bits & ((1 << f.fraction()) - 1);
  if (field != 0) significand += 1 << f.fraction();
  const bool negative = bits >= 0x8000;
  return {negative ? -significand : significand, f.least + (field == 0 ? 0 : field - 1), negative};
}

Exact product(Exact a, Exact b) {
  return {a.significand * b.significand, a.exponent + b.exponent, a.negative != b.negative};
}

Exact sum(Exact a, Exact b) {
  if (a.significand == 0 && b.significand == 0) return {0, 0, a.negative && b.negative};
  if (a.significand == 0) return b;
  if (b.significand == 0) return a;
  if (a.exponent < b.exponent) std::swap(a, b);
  constexpr int far = 90;  // then only the sign of the smaller one matters
  if (a.exponent - b.exponent > far) b = {b.negative ? -1 : 1, a.exponent - far, b.negative};
  const Wide total = a.significand * (Wide{1} << (a.exponent - b.exponent)) + b.significand;
  return {total, b.exponent, total < 0};
}

std::uint16_t rounded(Format f, Exact v) {
  const auto sign = static_cast<std::uint16_t>(v.negative ? 0x8000 : 0);
  if (v.significand == 0) return sign;
  const Wide magnitude = v.negative ? -v.significand : v.significand;
  int top = 0;
  while ((magnitude >> top) > 1) ++top;
  const int unit = std::max(top + v.exponent - f.fraction(), f.least), drop = unit - v.exponent;
  if (drop > 125) return sign;
  Wide kept = drop <= 0 ? magnitude << -drop : magnitude >> drop;
  if (drop > 0) {
    const Wide rest = magnitude & ((Wide{1} << drop) - 1), tie = Wide{1} << (drop - 1);
    if (rest > tie || (rest == tie && kept % 2 == 1)) ++kept;
  }
  // As in the format, the implicit digit and a carry out of the fraction add to the exponent's field.
  const Wide bits = kept + (Wide{unit - f.least} << f.fraction());
  return static_cast<std::uint16_t>(sign | (bits < f.infinity ? static_cast<int>(bits) : f.infinity));
}

std::uint64_t state = 1;
std::uint64_t random_bits() {  // xorshift64*
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return state * 0x2545F4914F6CDD1Du;
}

struct Operands {
  std::uint16_t a, b, c;
};

// Any bits; every other time c is near the product's last digits, where roundings are decided.
Operands random_operands(Format f) {
  const std::uint64_t r = random_bits();
  Operands o{static_cast<std::uint16_t>(r), static_cast<std::uint16_t>(r >> 16), static_cast<std::uint16_t>(r >> 32)};
  if ((r >> 48) % 2 == 0 || !is_finite(f, o.a) || !is_finite(f, o.b)) return o;
  const std::uint16_t close = rounded(f, product(exact(f, o.a), exact(f, o.b)));
  const int away = static_cast<int>((r >> 49) % 32) - 16;
  const int field = std::max(0, ((close & 0x7FFF) >> f.fraction()) + away);
  const int bits = (field << f.fraction()) | (o.c & ((1 << f.fraction()) - 1));
  o.c = static_cast<std::uint16_t>((o.c & 0x8000) | (bits & 0x7FFF));
  return o;
}

// Runs check(operands) on operands that are numbers.
template <class Check>
void on_random_numbers(Format f, Check check) {
  for (int i = 0; i < 2'000'000; ++i) {
    const Operands o = random_operands(f);
    if (is_finite(f, o.a) && is_finite(f, o.b) && is_finite(f, o.c)) check(o);
  }
}

std::uint16_t bits(__half h) { return __half_as_ushort(h); }
std::uint16_t bits(__nv_bfloat16 b) { return __bfloat16_as_ushort(b); }

Exact negated(Exact v) { return {-v.significand, v.exponent, !v.negative}; }

}  // namespace

TEST_CASE("fp16 arithmetic rounds once") {
  std::size_t wrong[4] = {}, wrong_if_naive = 0;
  on_random_numbers(fp16, [&](Operands o) {
    const __half a = __ushort_as_half(o.a), b = __ushort_as_half(o.b), c = __ushort_as_half(o.c);
    const Exact x = exact(fp16, o.a), y = exact(fp16, o.b), z = exact(fp16, o.c);
    const std::uint16_t fused = rounded(fp16, sum(product(x, y), z));
    wrong[0] += bits(__hadd(a, c)) != rounded(fp16, sum(x, z));
    wrong[1] += bits(__hsub(a, c)) != rounded(fp16, sum(x, negated(z)));
    wrong[2] += bits(__hmul(a, b)) != rounded(fp16, product(x, y));
    wrong[3] += bits(__hfma(a, b, c)) != fused;
    wrong_if_naive += bits(__float2half_rn(fmaf(__half2float(a), __half2float(b), __half2float(c)))) != fused;
  });
  for (const std::size_t count : wrong) CHECK(count == 0);
  CHECK(wrong_if_naive > 0);  // the operands find double rounding
}

TEST_CASE("bf16 arithmetic rounds once") {
  std::size_t wrong[3] = {}, wrong_if_naive = 0;
  on_random_numbers(bf16, [&](Operands o) {
    const __nv_bfloat16 a = __ushort_as_bfloat16(o.a), b = __ushort_as_bfloat16(o.b), c = __ushort_as_bfloat16(o.c);
    const Exact x = exact(bf16, o.a), y = exact(bf16, o.b), z = exact(bf16, o.c);
    const std::uint16_t fused = rounded(bf16, sum(product(x, y), z));
    wrong[0] += bits(__hadd(a, c)) != rounded(bf16, sum(x, z));
    wrong[1] += bits(__hmul(a, b)) != rounded(bf16, product(x, y));
    wrong[2] += bits(__hfma(a, b, c)) != fused;
    const auto wide = [](__nv_bfloat16 v) { return static_cast<double>(__bfloat162float(v)); };
    wrong_if_naive += pn::double_to_bf16(wide(a) * wide(b) + wide(c)) != fused;
  });
  for (const std::size_t count : wrong) CHECK(count == 0);
  CHECK(wrong_if_naive > 0);
}

TEST_CASE("conversions are the core's; NaNs are the device's") {
  for (unsigned i = 0; i < 65536; ++i) {
    const auto u = static_cast<std::uint16_t>(i);
    const __half h = __ushort_as_half(u);
    const __nv_bfloat16 b = __ushort_as_bfloat16(u);
    const bool is_nan = (u & 0x7FFF) > 0x7C00;
    REQUIRE(__float_as_uint(__half2float(h)) == (is_nan ? 0x7FFFFFFFu : pn::half_to_float_bits(u)));
    REQUIRE(bits(__float2half_rn(__half2float(h))) == (is_nan ? 0x7FFF : u));
    REQUIRE(__float_as_uint(__bfloat162float(b)) == i << 16);
    REQUIRE(bits(__float2bfloat16_rn(__bfloat162float(b))) == ((u & 0x7FFF) > 0x7F80 ? 0x7FFF : u));
  }
  const __half inf = __ushort_as_half(0x7C00), zero = __ushort_as_half(0), one = __float2half(1.0f);
  CHECK(bits(__hmul(inf, zero)) == 0x7FFF);
  CHECK(bits(__hfma(inf, one, __hneg(inf))) == 0x7FFF);
  CHECK(bits(__hadd(inf, one)) == 0x7C00);
  CHECK(bits(__float2half_rn(65520.0f)) == 0x7C00);
  CHECK(bits(__hsub(one, one)) == 0);
  CHECK(bits(__hfma(__hneg(zero), one, __hneg(zero))) == 0x8000);
  const __nv_bfloat16 huge = __ushort_as_bfloat16(0x7F80), unit = __float2bfloat16_rn(1.0f);
  CHECK(bits(__hmul(huge, __ushort_as_bfloat16(0))) == 0x7FFF);
  CHECK(bits(__hadd(huge, __ushort_as_bfloat16(0xFF80))) == 0x7FFF);
  CHECK(bits(__hadd(huge, unit)) == 0x7F80);
}

TEST_CASE("pairs hold the low half first") {
  const __half2 v = __floats2half2_rn(1.0f, -2.0f);
  std::uint32_t word = 0;
  std::memcpy(&word, &v, sizeof word);
  CHECK(word == 0xC0003C00u);
  CHECK((__low2float(v) == 1.0f && __high2float(v) == -2.0f));
  CHECK((bits(__low2half(v)) == 0x3C00 && bits(__high2half(v)) == 0xC000));
  CHECK((__half22float2(v).x == 1.0f && __half22float2(v).y == -2.0f));
  const __half2 w = __hfma2(v, __float2half2_rn(3.0f), __halves2half2(__high2half(v), __low2half(v)));
  CHECK((__low2float(w) == 1.0f && __high2float(w) == -5.0f));
  CHECK(__low2float(__hadd2(v, w)) == 2.0f);
  CHECK(__high2float(__hsub2(v, w)) == 3.0f);
  CHECK(__high2float(__hmul2(v, w)) == 10.0f);
  CHECK(__bfloat1622float2(__floats2bfloat162_rn(1.5f, 2.5f)).y == 2.5f);
  CHECK(__low2float(__halves2bfloat162(__float2bfloat16_rn(0.5f), __float2bfloat16_rn(4.0f))) == 0.5f);
}
