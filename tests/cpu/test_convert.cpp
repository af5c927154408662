// Proves that convert gives the bits of pn/half.hpp on every instruction set: every pattern of f16 and bf16 to every
// type, f32 at and around every edge, any number of elements at any address, nothing read or written beyond them,
// whatever rounding the caller has set.
#include <cfenv>

#include "testing.hpp"

using namespace testing;

namespace {

// What the core makes of the bits of one number.
std::uint32_t converted(Element from, std::uint32_t bits, Element to) {
  if (from == to) return bits;
  const auto half = static_cast<std::uint16_t>(bits);
  const std::uint32_t wide = from == Element::f32   ? bits
                             : from == Element::f16 ? pn::half_to_float_bits(half)
                                                    : static_cast<std::uint32_t>(half) << 16;
  if (to == Element::f32) return wide;
  return to == Element::f16 ? pn::float_bits_to_half(wide) : pn::float_bits_to_bf16(wide);
}

// All of `in` from one type to another, on every instruction set.
void check_all(Element from, const std::vector<std::uint32_t>& in, Element to) {
  std::vector<std::uint8_t> bytes(in.size() * element_bytes(from)), out(in.size() * element_bytes(to));
  for (std::size_t e = 0; e < in.size(); ++e) store_bits(bytes.data(), from, e, in[e]);
  for_each_isa([&](Isa isa) {
    std::fill(out.begin(), out.end(), std::uint8_t{0xA5});
    REQUIRE(pn::cpu::convert(bytes.data(), from, in.size(), out.data(), to, isa) == Status::ok);
    for (std::size_t e = 0; e < in.size(); ++e)
      if (load_bits(out.data(), to, e) != converted(from, in[e], to))
        FAIL(name_of(from) << " " << std::hex << in[e] << " to " << name_of(to) << ": "
                           << load_bits(out.data(), to, e));
  });
}

// Bits of f32 at which something changes on the way to f16 or bf16, and their neighbours, of either sign.
std::vector<std::uint32_t> edges() {
  std::vector<std::uint32_t> bits;
  const auto around = [&](std::uint32_t at) {
    for (int i = -2; i <= 2; ++i)
      for (const std::uint32_t sign : {0u, 0x80000000u}) bits.push_back((at + static_cast<std::uint32_t>(i)) ^ sign);
  };
  // Halfway between two bf16, below an even one and below an odd one, for every exponent.
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const std::uint32_t mantissa : {0x000000u, 0x008000u, 0x018000u, 0x7E8000u, 0x7F8000u, 0x400000u, 0x010000u})
      around(exponent << 23 | mantissa);
  // The same of f16: normal ones, and subnormal ones, whose last bit moves up.
  for (std::uint32_t exponent = 127 - 26; exponent <= 127 + 16; ++exponent)
    for (std::uint32_t bit = 0; bit < 23; ++bit)
      for (const std::uint32_t mantissa : {1u << bit, 3u << bit & 0x7FFFFFu, 0x7FFFFFu << bit & 0x7FFFFFu,
                                           0x7FFFFFu >> bit, 0x555555u << bit & 0x7FFFFFu})
        around(exponent << 23 | mantissa);
  // 65504, 65520, 2^-14, 2^-24, 2^-25, 1.5 * 2^-25, 2^128 - 2^119.
  for (const std::uint32_t at : {0x477FE000u, 0x477FF000u, 0x38800000u, 0x33800000u, 0x33000000u, 0x33400000u,
                                 0x7F7F8000u, 0x00000000u, 0x00800000u})
    around(at);
  // NaN: each bit of the payload alone, and all others.
  for (std::uint32_t bit = 0; bit < 23; ++bit)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      bits.push_back(sign | 0x7F800000u | 1u << bit);
      bits.push_back(sign | (0x7FFFFFFFu ^ 1u << bit));
    }
  return bits;
}

}  // namespace

TEST_CASE("convert: every f16 and every bf16 to every type") {
  std::vector<std::uint32_t> all(65536);
  for (std::uint32_t bits = 0; bits < all.size(); ++bits) all[bits] = bits;
  for (const Element from : {Element::f16, Element::bf16})
    for (const Element to : elements) check_all(from, all, to);
}

TEST_CASE("convert: f32 where rounding, overflow, subnormal numbers and NaN begin and end") {
  const std::vector<std::uint32_t> in = edges();
  for (const Element to : elements) check_all(Element::f32, in, to);
}

TEST_CASE("convert: random f32") {
  Random random(51);
  std::vector<std::uint32_t> in(200000);
  for (std::uint32_t& bits : in) {
    bits = random.next32();
    switch (random.below(8)) {
      case 0: bits |= 0x7F800000u; break;  // NaN
      case 1: bits &= 0x807FFFFFu; break;  // subnormal
      case 2: bits = (bits & 0x80FFFFFFu) | static_cast<std::uint32_t>(random.between(50, 71)) << 24; break;  // fp16
      case 3: bits = (bits & 0xFFFF0000u) | 0x8000u; break;  // ties of bf16
      case 4: bits = (bits & 0xFFFFE000u) | 0x1000u; break;  // ties of f16
      default: break;
    }
  }
  for (const Element to : elements) check_all(Element::f32, in, to);
}

TEST_CASE("convert: any number of elements at any address, and nothing beyond them") {
  Random random(52);
  for (const Element from : elements)
    for (const Element to : elements)
      for (std::size_t count = 0; count <= 40; ++count)
        for (const At at : {At::begin, At::end}) {
          const Fenced in(count * element_bytes(from), at, random.below(2) * random.below(64));
          for (std::size_t e = 0; e < count; ++e) store_bits(in.data(), from, e, random.next32());
          for_each_isa([&](Isa isa) {
            const Fenced out(count * element_bytes(to), at, random.below(2) * random.below(64));
            REQUIRE(pn::cpu::convert(in.data(), from, count, out.data(), to, isa) == Status::ok);
            for (std::size_t e = 0; e < count; ++e)
              if (load_bits(out.data(), to, e) != converted(from, load_bits(in.data(), from, e), to))
                FAIL(name_of(from) << " to " << name_of(to) << ", " << e << " of " << count);
            CHECK(out.intact());
            CHECK(in.intact());
          });
        }
}

TEST_CASE("convert: the caller's rounding has no influence and is given back") {
  const std::vector<std::uint32_t> in = edges();
  const int before = std::fegetround();
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    REQUIRE(std::fesetround(rounding) == 0);
    for (const Element to : elements) check_all(Element::f32, in, to);
    const int after = std::fegetround();
    REQUIRE(std::fesetround(before) == 0);
    CHECK(after == rounding);
  }
}

TEST_CASE("convert: Isa::best; no elements at no address; types that are none") {
  const std::uint8_t in[] = {0x00, 0x3C, 0x00, 0xC0};  // fp16 1 and -2
  float out[2] = {};
  CHECK(pn::cpu::convert(in, Element::f16, 2, out, Element::f32) == Status::ok);
  CHECK(out[0] == 1.0f);
  CHECK(out[1] == -2.0f);
  for_each_isa([&](Isa isa) {
    for (const Element from : elements)
      for (const Element to : elements) CHECK(pn::cpu::convert(nullptr, from, 0, nullptr, to, isa) == Status::ok);
    const Fenced nothing(8);
    CHECK(pn::cpu::convert(in, static_cast<Element>(3), 2, nothing.data(), Element::f32, isa) != Status::ok);
    CHECK(pn::cpu::convert(in, Element::f16, 2, nothing.data(), static_cast<Element>(255), isa) != Status::ok);
    CHECK(nothing.untouched());
  });
  const Fenced nothing(8);
  CHECK(pn::cpu::convert(in, Element::f16, 2, nothing.data(), Element::f32, static_cast<Isa>(6)) ==
        Status::isa_not_available);
  CHECK(pn::cpu::convert(in, Element::f16, 2, nothing.data(), Element::f32, static_cast<Isa>(255)) ==
        Status::isa_not_available);
  CHECK(nothing.untouched());
}
