// Proves fp32 -> fp16 and fp32 -> bf16, and double -> bf16 of the same values, for all 4,294,967,296 inputs. In the
// order of their magnitudes floats pass from one result to the next at known places: the midpoint itself goes to the
// even neighbour. No rounding is done here.
#include <algorithm>
#include <pn/half.hpp>

#include "../pn/testing.hpp"
#include "catch.hpp"
#include "parallel.hpp"

using namespace testing;

namespace {

constexpr std::uint32_t float_infinity = 0x7F800000u;

// first[r]: the first non-negative float, as bits, whose result is r or more; r = 1 .. the target's infinity.
std::vector<std::uint32_t> first_of_each_half() {
  std::vector<std::uint32_t> first(0x7C01, 0);
  for (unsigned r = 1; r <= 0x7C00; ++r) {
    const double above = r == 0x7C00 ? 65536.0 : half_value(r);
    const double middle = (half_value(r - 1) + above) / 2;  // exact, and a float
    first[r] = bits_of(static_cast<float>(middle)) + (r % 2 == 0 ? 0u : 1u);
  }
  return first;
}
std::vector<std::uint32_t> first_of_each_bf16() {
  std::vector<std::uint32_t> first(0x7F81, 0);
  for (std::uint32_t r = 1; r <= 0x7F80; ++r) first[r] = ((r - 1) * 0x10000u + 0x8000u) + (r % 2 == 0 ? 0u : 1u);
  return first;
}

// All floats against such a table; `nan` gives the magnitude of a NaN's result.
template <class Convert, class Nan>
void check_all(const std::vector<std::uint32_t>& first, Convert&& convert, Nan&& nan) {
  exhaustive::Failures failures;
  std::atomic<std::uint64_t> inputs{0};
  constexpr std::uint64_t piece = std::uint64_t{1} << 22;
  exhaustive::in_parallel((std::uint64_t{1} << 31) / piece, [&](std::uint64_t number) {
    const std::uint64_t begin = number * piece;
    auto r = static_cast<std::uint32_t>(
        std::upper_bound(first.begin() + 1, first.end(), static_cast<std::uint32_t>(begin)) - first.begin() - 1);
    std::uint64_t seen = 0;
    for (std::uint64_t i = begin; i < begin + piece; ++i, seen += 2) {
      const auto bits = static_cast<std::uint32_t>(i);
      while (r + 1 < first.size() && first[r + 1] <= bits) ++r;
      const std::uint32_t want = bits > float_infinity ? nan(bits) : r;
      const std::uint32_t got = convert(bits);
      const std::uint32_t got_negative = convert(bits | 0x80000000u);
      if (got != want || got_negative != (want | 0x8000u)) {
        std::ostringstream text;
        text << std::hex << "fp32 " << bits << " became " << got << ", its negative " << got_negative << "; not "
             << want;
        failures.add(text.str());
      }
    }
    inputs += seen;
  });
  INFO(failures.text());
  CHECK(failures.empty());
  CHECK(inputs == std::uint64_t{1} << 32);
}

}  // namespace

TEST_CASE("fp32 to fp16: all inputs") {
  check_all(
      first_of_each_half(), [](std::uint32_t bits) { return std::uint32_t{pn::float_bits_to_half(bits)}; },
      [](std::uint32_t bits) { return 0x7E00u + bits % 0x400000u / 0x2000u; });
}

TEST_CASE("fp32 to bf16: all inputs") {
  check_all(
      first_of_each_bf16(), [](std::uint32_t bits) { return std::uint32_t{pn::float_bits_to_bf16(bits)}; },
      [](std::uint32_t bits) { return 0x7FC0u + bits % 0x400000u / 0x10000u; });
}

TEST_CASE("double to bf16: all inputs of fp32") {
  check_all(
      first_of_each_bf16(),
      [](std::uint32_t bits) {
        // Widened by hand: a conversion would change a signalling NaN. Subnormals are normal doubles.
        if ((bits & 0x7F800000u) != 0x7F800000u)
          return std::uint32_t{pn::double_to_bf16(static_cast<double>(float_of(bits)))};
        const std::uint64_t wide = (std::uint64_t{bits & 0x80000000u} << 32) | 0x7FF0000000000000u;
        return std::uint32_t{pn::double_bits_to_bf16(wide | (std::uint64_t{bits & 0x7FFFFFu} << 29))};
      },
      [](std::uint32_t bits) { return 0x7FC0u + bits % 0x400000u / 0x10000u; });
}
