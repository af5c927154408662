// Proves which bytes are a valid row of PN blocks: every scale, every bit of every word, and which block is reported.
#include <pn/validate.hpp>
#include <vector>

#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

void set_scale(pn::Block34& block, unsigned scale) {
  block.d[0] = static_cast<std::uint8_t>(scale & 0xFFu);
  block.d[1] = static_cast<std::uint8_t>(scale >> 8);
}

// Random codes, scale 1, no reserved bits.
template <class T>
pn::Block34 valid_block(Random& random) {
  pn::Block34 block = {};
  set_scale(block, 0x3C00);
  for (std::size_t i = 0; i < 32; ++i)
    block.qs[i] = static_cast<std::uint8_t>(random.byte() & (T::bits == 3 && i % 2 == 1 ? 0x7Fu : 0xFFu));
  return block;
}

}  // namespace

TEMPLATE_TEST_CASE("every scale: valid exactly when finite", "", pn::pn3t, pn::pn4t) {
  Random random(1);
  pn::Block34 block = valid_block<TestType>(random);
  int bad = 0;
  for (unsigned scale = 0; scale < 0x10000; ++scale) {
    set_scale(block, scale);
    const bool finite = std::isfinite(half_value(scale)) && !half_is_nan(scale);
    const Status want = finite ? Status::ok : Status::scale_not_finite;
    if (pn::validate_block<TestType>(block) != want) FAIL("scale " << std::hex << scale);
    std::size_t at = 99;
    if (pn::validate_row<TestType>(&block, TestType::block_size, &at) != want) FAIL("scale " << std::hex << scale);
    if (at != (finite ? 99u : 0u)) FAIL("bad block of scale " << std::hex << scale);
    bad += finite ? 0 : 1;
  }
  CHECK(bad == 2048);
}

TEMPLATE_TEST_CASE("every bit of every word: only pn3t's bits 15 and 31 are reserved", "", pn::pn3t, pn::pn4t) {
  for (const std::uint8_t fill : {std::uint8_t{0}, std::uint8_t{0x7F}}) {
    for (std::size_t word = 0; word < 8; ++word)
      for (std::size_t bit = 0; bit < 32; ++bit) {
        pn::Block34 block = {};
        set_scale(block, 0xFBFF);
        for (auto& byte : block.qs) byte = fill;
        block.qs[4 * word + bit / 8] = static_cast<std::uint8_t>(block.qs[4 * word + bit / 8] | (1u << (bit % 8)));
        const bool reserved = TestType::bits == 3 && (bit == 15 || bit == 31);
        INFO("word " << word << " bit " << bit);
        CHECK(pn::validate_block<TestType>(block) == (reserved ? Status::reserved_bits_set : Status::ok));
      }
  }
  pn::Block34 all_ones = {};
  std::memset(all_ones.qs, 0xFF, 32);
  CHECK(pn::validate_block<TestType>(all_ones) == (TestType::bits == 3 ? Status::reserved_bits_set : Status::ok));
  set_scale(all_ones, 0x7C00);
  CHECK(pn::validate_block<TestType>(all_ones) == Status::scale_not_finite);
}

TEMPLATE_TEST_CASE("a row reports its first bad block and why", "", pn::pn3t, pn::pn4t) {
  Random random(2);
  constexpr std::size_t blocks = 9;
  constexpr std::size_t k = blocks * TestType::block_size;
  std::vector<pn::Block34> row;
  for (std::size_t b = 0; b < blocks; ++b) row.push_back(valid_block<TestType>(random));
  std::size_t at = 99;
  CHECK(pn::validate_row<TestType>(row.data(), k, &at) == Status::ok);
  CHECK(at == 99);

  for (std::size_t first = 0; first < blocks; ++first) {
    for (std::size_t later = first; later < blocks; ++later) {
      std::vector<pn::Block34> broken = row;
      set_scale(broken[later], 0xFC00);
      set_scale(broken[first], 0x7E00);
      CHECK(pn::validate_row<TestType>(broken.data(), k, &at) == Status::scale_not_finite);
      CHECK(at == first);
      CHECK(pn::validate_row<TestType>(broken.data(), k) == Status::scale_not_finite);
      if (TestType::bits != 3) continue;
      broken[first] = row[first];
      broken[first].qs[31] |= 0x80u;
      CHECK(pn::validate_row<TestType>(broken.data(), k, &at) == Status::reserved_bits_set);
      CHECK(at == first);
      if (first == later) continue;
      set_scale(broken[first], 0x7C01);
      broken[later].qs[1] |= 0x80u;
      CHECK(pn::validate_row<TestType>(broken.data(), k, &at) == Status::scale_not_finite);
      CHECK(at == first);
    }
  }

  // A bad block beyond k is not looked at.
  std::vector<pn::Block34> last = row;
  set_scale(last[blocks - 1], 0x7C00);
  CHECK(pn::validate_row<TestType>(last.data(), k - TestType::block_size, &at) == Status::ok);
}

TEMPLATE_TEST_CASE("validate_row: lengths", "", pn::pn3t, pn::pn4t) {
  pn::Block34 row[3] = {};
  set_scale(row[0], 0x7C00);
  std::size_t at = 99;
  const std::size_t n = TestType::block_size;
  for (const std::size_t k : {std::size_t{1}, n - 1, n + 1, 3 * n - 1})
    CHECK(pn::validate_row<TestType>(row, k, &at) == Status::bad_length);
  CHECK(pn::validate_row<TestType>(row, 0, &at) == Status::ok);
  CHECK(pn::validate_row<TestType>(nullptr, 0) == Status::ok);
  CHECK(at == 99);
}

TEST_CASE("every status has a sentence, no two the same") {
  const int numbers[] = {0, 1, 2, 3, 4, 16, 17, 32, 48, 49, 50, 51, 52, 53, 54};
  std::vector<std::string> seen;
  for (const int number : numbers) {
    const char* text = pn::status_text(static_cast<Status>(number));
    REQUIRE(text != nullptr);
    const std::string sentence = text;
    CHECK(sentence.size() > 1);
    CHECK(sentence.back() != '.');
    CHECK(sentence != "unknown status");
    for (const std::string& other : seen) CHECK(sentence != other);
    seen.push_back(sentence);
  }
  CHECK(std::string(pn::status_text(static_cast<Status>(200))) == "unknown status");
}

// Usable in constant expressions.
static_assert(pn::validate_block<pn::pn3t>(pn::Block34{{0x00, 0x3C}, {0, 0x80}}) == Status::reserved_bits_set);
static_assert(pn::validate_block<pn::pn4t>(pn::Block34{{0x00, 0x3C}, {0, 0x80}}) == Status::ok);
static_assert(pn::validate_block<pn::pn4t>(pn::Block34{{0x00, 0x7C}, {}}) == Status::scale_not_finite);
