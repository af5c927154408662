// Proves that each field of a BF16_P12 block means what the format says, for every value that it can have: every
// (base, code, sign, mantissa) through packing and unpacking, every base byte in hostile blocks, one and two listed
// weights at all places. (Three of them: test_all_places.cpp.)
#include "../p12/testing.hpp"
#include "catch.hpp"
#include "list_template.hpp"

using namespace testing;
using pn::Status;

TEST_CASE("every base, code, sign and mantissa through packing and unpacking") {
  std::uint64_t combinations = 0;
  for (int base = 0; base <= 240; ++base)
    for (int code = 0; code < 16; ++code) {
      std::array<bool, 256> seen = {};
      for (std::size_t turn = 0; turn < 2; ++turn) {
        // 255 weights of one exponent with all signs and mantissas but one, and a weight that pins the base.
        const std::size_t pin = (static_cast<std::size_t>(base + 16 * code) + 128 * turn) % 256;
        Weights weights;
        Bytes want = {};
        want[0] = static_cast<std::uint8_t>(base);
        for (std::size_t place = 0; place < 256; ++place) {
          const auto sm = static_cast<unsigned>((place + turn) % 256);
          const int c = place == pin ? 0 : code;
          weights[place] = weight_of(base + c, sm);
          const int bit = second::first_bit(static_cast<int>(place));
          auto& byte = want[static_cast<std::size_t>(bit / 8)];
          byte = static_cast<std::uint8_t>(byte | c << (bit % 8));
          want[136 + place] = static_cast<std::uint8_t>(sm);
          if (c == code) seen[sm] = true;
        }
        p12::Block392 block;
        if (p12::pack_block(weights.data(), block) != Status::ok || bytes_of(block) != want)
          FAIL("packing base " << base << " code " << code);
        if (p12::validate_block(block) != Status::ok || unpacked(block) != weights)
          FAIL("unpacking base " << base << " code " << code);
        for (std::size_t place = 0; place < 256; ++place)
          if (p12::unpack_element(block, place) != weights[place]) FAIL("element of base " << base << " code " << code);
      }
      for (const bool s : seen) combinations += s ? 1 : 0;
    }
  CHECK(combinations == 241u * 16 * 256);
}

TEST_CASE("every base byte, code, sign and mantissa in unpacking, valid or not") {
  for (int base = 0; base < 256; ++base)
    for (int code = 0; code < 16; ++code) {
      Bytes bytes = {};
      bytes[0] = static_cast<std::uint8_t>(base);
      for (std::size_t i = 8; i < 136; ++i) bytes[i] = static_cast<std::uint8_t>(code * 0x11);
      for (std::size_t i = 0; i < 256; ++i) bytes[136 + i] = static_cast<std::uint8_t>(i);
      const p12::Block392 block = block_of(bytes);
      for (unsigned i = 0; i < 256; ++i)
        if (p12::unpack_element(block, i) != weight_of((base + code) % 256, i))
          FAIL("base " << base << " code " << code << " sign and mantissa " << i);
      if (unpacked(block) != second::unpack(bytes)) FAIL("base " << base << " code " << code);
      // All exponents equal: canonical when the code is 0, or at the top, where a base of 241 or more cannot follow.
      const Status want = base > 240                 ? Status::base_out_of_range
                          : code == 0 || base == 240 ? Status::ok
                                                     : Status::base_not_canonical;
      if (p12::validate_block(block) != want) FAIL("validating base " << base << " code " << code);
    }
}

TEST_CASE("one and two listed weights at all places") {
  const exhaustive::ListTemplate plain;
  std::uint64_t blocks = 0;
  for (int a = 0; a < 256; ++a) {
    const std::string wrong = plain.check({a});
    if (!wrong.empty()) FAIL(wrong);
    ++blocks;
    for (int b = a + 1; b < 256; ++b, ++blocks) {
      const std::string also_wrong = plain.check({a, b});
      if (!also_wrong.empty()) FAIL(also_wrong);
    }
  }
  CHECK(blocks == 256 + 32640);
}
