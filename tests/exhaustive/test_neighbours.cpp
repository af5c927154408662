// Proves double -> fp16 where it can go wrong: at every midpoint of two fp16 neighbours and at every fp16 value, and
// one and two double steps either side of both, against an exact rounding in integers.
#include <pn/half.hpp>

#include "../pn/second_quantizer.hpp"
#include "../pn/testing.hpp"
#include "catch.hpp"

using namespace testing;

namespace {

constexpr unsigned infinity = 0x7C00;

// In integers: the 53 bits of the mantissa divided by a power of two, to the nearest, ties to even.
unsigned rounded_in_integers(double x) {
  const second::Scale scale = second::nearest_scale(x);
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
  return scale.infinite ? sign | infinity : sign | (scale.bits() & 0x7FFFu);
}

}  // namespace

TEST_CASE("double to fp16: two steps around every midpoint and every value, against integers") {
  std::uint64_t inputs = 0;
  for (unsigned low = 0; low < infinity; ++low) {
    const double value = half_value(low);
    const double next = low + 1 == infinity ? 65536.0 : half_value(low + 1);
    const double middle = value + (next - value) / 2;
    for (const double centre : {value, middle})
      for (int step = -2; step <= 2; ++step)
        for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
          if (centre == 0 && step < 0) continue;
          const std::uint64_t bits = (bits_of(centre) + static_cast<std::uint64_t>(std::int64_t{step})) | sign;
          // By construction: nothing but the midpoint itself is a tie.
          unsigned want = low;
          if (centre == middle && (step > 0 || (step == 0 && low % 2 == 1))) want = low + 1;
          if (sign != 0) want |= 0x8000u;
          const unsigned got = pn::double_bits_to_half(bits);
          if (got != want || rounded_in_integers(double_of(bits)) != want)
            FAIL("double " << std::hex << bits << " became " << got << ", not " << want);
          ++inputs;
        }
  }
  CHECK(inputs == std::uint64_t{infinity} * 2 * 5 * 2 - 4);
}

TEST_CASE("double to fp16: every exponent of a double with every leading digit of its mantissa, against integers") {
  // 2048 exponents; the 12 leading bits of the mantissa decide all but ties, and the rest is 0, 1 or all ones.
  for (std::uint64_t field = 0; field < 2047; ++field)
    for (std::uint64_t lead = 0; lead < 4096; ++lead)
      for (const std::uint64_t rest : {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 40) - 1}) {
        const std::uint64_t bits = field << 52 | lead << 40 | rest;
        const bool tiny = field < 900;  // nothing but zeros; std::frexp is not asked about subnormals
        const unsigned want = tiny ? 0u : rounded_in_integers(double_of(bits));
        if (pn::double_bits_to_half(bits) != want) FAIL("double " << std::hex << bits);
        if (pn::double_bits_to_half(bits | std::uint64_t{1} << 63) != (want | 0x8000u))
          FAIL("double -" << std::hex << bits);
      }
}
