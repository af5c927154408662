// Proves packing and unpacking: byte for byte the same as a packer that tries all bases (second_packer.hpp), every
// bf16 pattern, listed weights at every place, ties, the ends of the exponent range, and safety on any bytes.
#define CATCH_CONFIG_ENABLE_PAIR_STRINGMAKER
#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

// Packs both ways, compares, and unpacks again; true when the block fits.
bool check_block(const Weights& weights) {
  Bytes want;
  const bool fits = second::pack(weights, want);
  p12::Block392 got;
  std::memset(&got, 0x5A, sizeof got);
  const Bytes untouched = bytes_of(got);
  const Status status = p12::pack_block(weights.data(), got);
  if (!fits) {
    if (status != Status::too_many_listed) FAIL("packed what cannot be packed");
    if (bytes_of(got) != untouched) FAIL("written although it does not fit");
    p12::BlockScan met{-1, -1};
    if (p12::pack_block(weights.data(), got, &met) != Status::too_many_listed || met.listed <= 3)
      FAIL("the scan of a block that does not fit");
    return false;
  }
  if (status != Status::ok) FAIL("status " << static_cast<int>(status));
  if (bytes_of(got) != want) {
    std::size_t at = 0;
    while (bytes_of(got)[at] == want[at]) ++at;
    FAIL("byte " << at << " is " << static_cast<int>(bytes_of(got)[at]) << ", not " << static_cast<int>(want[at]));
  }
  if (unpacked(got) != weights) FAIL("unpacks to other weights");
  for (std::size_t place = 0; place < 256; ++place)
    if (p12::unpack_element(got, place) != weights[place]) FAIL("unpack_element at " << place);
  if (p12::validate_block(got) != Status::ok) FAIL("not valid: " << static_cast<int>(p12::validate_block(got)));
  const p12::BlockScan scan = p12::scan_block(weights.data());
  if (scan.base != want[0] || scan.listed != want[1]) FAIL("scan says " << scan.base << ", " << scan.listed);
  p12::Block392 again;
  p12::BlockScan met{-1, -1};
  if (p12::pack_block(weights.data(), again, &met) != Status::ok || bytes_of(again) != want) FAIL("packs otherwise");
  if (met.base != scan.base || met.listed != scan.listed) FAIL("packing met another scan");
  return true;
}

std::pair<int, int> base_and_listed(const Weights& weights) {
  REQUIRE(check_block(weights));
  p12::Block392 block;
  REQUIRE(p12::pack_block(weights.data(), block) == Status::ok);
  return {block.base, block.listed};
}

Weights all(int exponent) {
  Weights weights;
  for (std::size_t i = 0; i < 256; ++i) weights[i] = weight_of(exponent, static_cast<unsigned>(i));
  return weights;
}

}  // namespace

TEST_CASE("the block is what the format says") {
  CHECK(sizeof(p12::Block392) == 392);
  CHECK(p12::block_size == 256);
  CHECK(p12::max_base == 240);
  CHECK(p12::max_listed == 3);
  CHECK(p12::window == 16);
  CHECK(p12::block_count(5120) == 20);
  CHECK(p12::row_bytes(5120) == 7840);
  CHECK(offsetof(p12::Block392, listed) == 1);
  CHECK(offsetof(p12::Block392, position) == 2);
  CHECK(offsetof(p12::Block392, exponent) == 5);
  CHECK(offsetof(p12::Block392, codes) == 8);
  CHECK(offsetof(p12::Block392, sign_mantissa) == 136);
}

TEST_CASE("random blocks of many kinds") {
  Random random(1);
  int fit = 0, not_fit = 0;
  for (int i = 0; i < 20000; ++i) ++(check_block(random_weights(random)) ? fit : not_fit);
  CHECK(fit > 5000);
  CHECK(not_fit > 2000);
}

TEST_CASE("all 65,536 bf16 patterns in 256 blocks, each exponent its own block") {
  std::vector<std::uint8_t> seen(65536);
  for (int e = 0; e < 256; ++e) {
    const Weights weights = all(e);
    REQUIRE(base_and_listed(weights) == std::make_pair(std::min(e, 240), 0));
    for (const std::uint16_t weight : weights) seen[weight] = 1;
  }
  CHECK(std::count(seen.begin(), seen.end(), 1) == 65536);
}

TEST_CASE("all 65,536 bf16 patterns in 256 blocks, all codes mixed") {
  std::vector<std::uint16_t> row(65536), back(65536);
  std::vector<std::uint8_t> seen(65536);
  for (unsigned block = 0; block < 256; ++block)
    for (unsigned i = 0; i < 256; ++i) {
      // 16 exponents per block: i's low digit; the sign and mantissa from i's high digit and the block's low one.
      const unsigned exponent = block / 16 * 16 + (i * 7 + i / 16 + block) % 16;
      const unsigned sign_mantissa = (i / 16) * 16 + (block + i / 16) % 16;
      row[256 * block + i] = weight_of(static_cast<int>(exponent), sign_mantissa);
      seen[row[256 * block + i]] = 1;
    }
  REQUIRE(std::count(seen.begin(), seen.end(), 1) == 65536);
  std::vector<p12::Block392> packed(256);
  REQUIRE(p12::pack_row(row.data(), row.size(), packed.data()) == Status::ok);
  REQUIRE(p12::unpack_row(packed.data(), row.size(), back.data()) == Status::ok);
  CHECK(back == row);
  CHECK(p12::validate_row(packed.data(), row.size()) == Status::ok);
  for (std::size_t e = 0; e < row.size(); ++e)
    if (p12::unpack_element(packed.data(), e) != row[e]) FAIL("unpack_element at " << e);
  for (unsigned block = 0; block < 256; ++block) {
    CHECK(packed[block].base == block / 16 * 16);
    CHECK(packed[block].listed == 0);
    Weights weights;
    std::copy_n(row.begin() + 256 * block, 256, weights.begin());
    check_block(weights);
  }
}

TEST_CASE("every code at every place") {
  for (std::size_t place = 0; place < 256; ++place)
    for (int code = 0; code < 16; ++code) {
      Weights weights = all(100);
      weights[(place + 1) % 256] = weight_of(115, 0);  // keeps the base at 100
      weights[place] = weight_of(100 + code, 0xFF);
      REQUIRE(base_and_listed(weights) == std::make_pair(100, 0));
      Bytes bytes;
      second::pack(weights, bytes);
      REQUIRE(p12::load_code(block_of(bytes), place) == code);
    }
}

TEST_CASE("one listed weight at every place, below and above") {
  for (std::size_t place = 0; place < 256; ++place)
    for (const int exponent : {0, 99, 116, 255}) {
      Weights weights = all(100);
      weights[(place + 128) % 256] = weight_of(115, 0x55);
      weights[place] = weight_of(exponent, 0xAA);
      // 99 with 115 is as good as 100 with 115 but one: both list one weight, and the larger base wins.
      REQUIRE(base_and_listed(weights) == std::make_pair(100, 1));
      p12::Block392 block;
      REQUIRE(p12::pack_block(weights.data(), block) == Status::ok);
      CHECK(block.position[0] == place);
      CHECK(block.exponent[0] == exponent);
      CHECK(p12::load_code(block, place) == 0);
    }
}

TEST_CASE("0 to 4 listed weights at every class of places") {
  Random random(2);
  // First, last, both sides of words and of halves of words, adjacent, middle.
  const std::vector<int> places = {0, 1, 2, 7, 8, 9, 15, 16, 127, 128, 129, 200, 247, 248, 254, 255};
  const std::size_t n = places.size();
  const auto listed = [&](const std::vector<int>& at) {
    const Weights weights = weights_with_outliers(random, at);
    const auto found = base_and_listed(weights);
    REQUIRE(found.second == static_cast<int>(at.size()));
  };
  for (int i = 0; i < 200; ++i) listed({});
  for (std::size_t a = 0; a < n; ++a) {
    listed({places[a]});
    for (std::size_t b = a + 1; b < n; ++b) {
      listed({places[a], places[b]});
      for (std::size_t c = b + 1; c < n; ++c) {
        listed({places[a], places[b], places[c]});
        for (std::size_t d = c + 1; d < n; ++d)
          REQUIRE_FALSE(check_block(weights_with_outliers(random, {places[a], places[b], places[c], places[d]})));
      }
    }
  }
}

TEST_CASE("a tie between bases goes to the larger") {
  const auto with = [](int most, std::initializer_list<int> others) {
    Weights weights = all(most);
    std::size_t at = 10;
    for (const int exponent : others) weights[at += 20] = weight_of(exponent, 0x33);
    return base_and_listed(weights);
  };
  using Pair = std::pair<int, int>;
  CHECK(with(100, {}) == Pair(100, 0));
  CHECK(with(100, {116}) == Pair(100, 1));  // 85..100 all list one
  CHECK(with(100, {84}) == Pair(100, 1));   // 85..100 again
  CHECK(with(100, {85}) == Pair(85, 0));
  CHECK(with(100, {84, 116}) == Pair(100, 2));
  CHECK(with(100, {92, 115}) == Pair(100, 1));  // 92 keeps the one, 100 the other
  CHECK(with(100, {92, 108}) == Pair(100, 1));
  CHECK(with(100, {92, 107}) == Pair(92, 0));
  CHECK(with(100, {92, 93, 115}) == Pair(92, 1));
  CHECK(with(100, {92, 114, 115}) == Pair(100, 1));
  CHECK(with(100, {90, 95, 110, 112}) == Pair(100, 2));
  CHECK(with(5, {200}) == Pair(5, 1));
  CHECK(with(0, {200}) == Pair(0, 1));
  CHECK(with(0, {}) == Pair(0, 0));
  CHECK(with(255, {}) == Pair(240, 0));
  CHECK(with(250, {5}) == Pair(240, 1));  // 235..240, and never 241 or more
  CHECK(with(250, {239}) == Pair(239, 0));
  CHECK(with(255, {239}) == Pair(240, 1));
  CHECK(with(254, {239}) == Pair(239, 0));
  CHECK(with(240, {255}) == Pair(240, 0));
  CHECK(with(239, {255}) == Pair(239, 1));  // 224..239 all list one
  CHECK(with(239, {254}) == Pair(239, 0));
  CHECK(with(241, {255}) == Pair(240, 0));
  CHECK(with(247, {232, 255}) == Pair(240, 1));  // 232 and 240 list one each
  CHECK(with(240, {0, 255}) == Pair(240, 1));
  CHECK(with(15, {0, 255}) == Pair(0, 1));
  CHECK(with(16, {0, 255}) == Pair(16, 2));
}

TEST_CASE("15 exponents apart fit without a list, 16 do not") {
  for (int low = 0; low < 256; ++low)
    for (const int apart : {0, 1, 14, 15, 16}) {
      if (low + apart > 255) continue;
      Weights weights = all(low);
      for (std::size_t i = 1; i < 256; i += 2) weights[i] = weight_of(low + apart, 0x80);
      if (apart < 16) {
        REQUIRE(base_and_listed(weights) == std::make_pair(std::min(low, 240), 0));
      } else {
        REQUIRE_FALSE(check_block(weights));  // 128 on either side
        REQUIRE(p12::scan_block(weights.data()).listed == 128);
        REQUIRE(p12::scan_block(weights.data()).base == std::min(low + 16, 240));
      }
    }
}

TEST_CASE("the ends of the exponent range in one block") {
  Random random(3);
  for (const int middle : {0, 1, 15, 16, 100, 224, 239, 240, 241, 255}) {
    Weights weights = all(middle);
    weights[0] = weight_of(0, 0x00);
    weights[255] = weight_of(255, 0x80);
    REQUIRE(check_block(weights));
    weights[128] = weight_of(255, 0x01);
    REQUIRE(check_block(weights));
  }
  // 0 and 255 alone: no base has both, three of either kind can be listed, four cannot.
  for (int zeros = 0; zeros <= 256; ++zeros) {
    Weights weights = all(255);
    for (int i = 0; i < zeros; ++i) weights[static_cast<std::size_t>(i)] = weight_of(0, random.byte());
    REQUIRE(check_block(weights) == (zeros <= 3 || zeros >= 253));
  }
  Weights every_exponent;
  for (std::size_t i = 0; i < 256; ++i) every_exponent[i] = weight_of(static_cast<int>(i), 0);
  REQUIRE_FALSE(check_block(every_exponent));
  CHECK(p12::scan_block(every_exponent.data()).listed == 240);
  CHECK(p12::scan_block(every_exponent.data()).base == 240);
}

TEST_CASE("subnormals, one infinity, constants, alternating") {
  Weights weights;
  for (std::size_t i = 0; i < 256; ++i)
    weights[i] = static_cast<std::uint16_t>((i % 2 == 0 ? 0u : 0x8000u) | (1 + i % 0x7F));
  CHECK(base_and_listed(weights) == std::make_pair(0, 0));
  weights[0] = 0x0000;
  weights[1] = 0x8000;
  CHECK(base_and_listed(weights) == std::make_pair(0, 0));
  for (std::size_t place = 0; place < 256; ++place) {
    weights.fill(0x3C21);
    weights[place] = 0x7F80;
    REQUIRE(base_and_listed(weights) == std::make_pair(120, 1));
  }
  weights.fill(0x3F80);
  CHECK(base_and_listed(weights) == std::make_pair(127, 0));
  for (std::size_t i = 1; i < 256; i += 2) weights[i] = 0x3F00;
  CHECK(base_and_listed(weights) == std::make_pair(126, 0));
  weights.fill(0x7FFF);
  CHECK(base_and_listed(weights) == std::make_pair(240, 0));
}

TEST_CASE("rows: order, lengths, and the first block that does not fit") {
  Random random(4);
  constexpr std::size_t blocks = 6;
  std::vector<std::uint16_t> row;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Weights weights = weights_between(random, static_cast<int>(20 * b), static_cast<int>(20 * b + 15));
    row.insert(row.end(), weights.begin(), weights.end());
  }
  for (std::size_t offset = 0; offset < 4; ++offset) {  // at any address
    std::vector<std::uint8_t> storage(392 * blocks + 8, 0x5A);
    auto* packed = reinterpret_cast<p12::Block392*>(storage.data() + offset);
    std::size_t bad = 77;
    REQUIRE(p12::pack_row(row.data(), row.size(), packed, &bad) == Status::ok);
    CHECK(bad == 77);
    for (std::size_t b = 0; b < blocks; ++b) {
      Weights weights;
      std::copy_n(row.data() + 256 * b, 256, weights.begin());
      Bytes want;
      REQUIRE(second::pack(weights, want));
      CHECK(std::memcmp(storage.data() + offset + 392 * b, want.data(), 392) == 0);
    }
    CHECK(std::count(storage.begin() + static_cast<std::ptrdiff_t>(offset + 392 * blocks), storage.end(), 0x5A) ==
          static_cast<std::ptrdiff_t>(8 - offset));
    std::vector<std::uint16_t> back(row.size() + 1, 0x1234);
    REQUIRE(p12::unpack_row(packed, row.size(), back.data()) == Status::ok);
    CHECK(std::equal(row.begin(), row.end(), back.begin()));
    CHECK(back.back() == 0x1234);
    for (std::size_t e = 0; e < row.size(); ++e) REQUIRE(p12::unpack_element(packed, e) == row[e]);
  }

  for (std::size_t first = 0; first < blocks; ++first) {
    std::vector<std::uint16_t> wide = row;
    for (std::size_t b = first; b < blocks; b += 2)
      for (std::size_t i = 0; i < 256; ++i) wide[256 * b + i] = weight_of(static_cast<int>(i), 0);
    std::vector<p12::Block392> packed(blocks);
    std::memset(packed.data(), 0x5A, 392 * blocks);
    std::size_t bad = 77;
    CHECK(p12::pack_row(wide.data(), wide.size(), packed.data(), &bad) == Status::too_many_listed);
    CHECK(bad == first);
    CHECK(p12::pack_row(wide.data(), wide.size(), packed.data()) == Status::too_many_listed);
    for (std::size_t b = 0; b < first; ++b) CHECK(p12::validate_block(packed[b]) == Status::ok);
    for (std::size_t b = first; b < blocks; ++b) CHECK(packed[b].base == 0x5A);  // it and what follows is not written
  }

  p12::Block392 out[2];
  std::memset(out, 0x5A, sizeof out);
  std::uint16_t back[512];
  std::fill(std::begin(back), std::end(back), std::uint16_t{0x1234});
  std::size_t bad = 77;
  for (const std::size_t k : {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{511}}) {
    CHECK(p12::pack_row(row.data(), k, out, &bad) == Status::bad_length);
    CHECK(p12::unpack_row(out, k, back) == Status::bad_length);
  }
  CHECK(p12::pack_row(row.data(), 0, out, &bad) == Status::ok);
  CHECK(p12::pack_row(nullptr, 0, nullptr) == Status::ok);
  CHECK(p12::unpack_row(nullptr, 0, nullptr) == Status::ok);
  CHECK(bad == 77);
  CHECK(out[0].base == 0x5A);
  for (const std::uint16_t weight : back) REQUIRE(weight == 0x1234);
}

TEST_CASE("unpacking any bytes is safe and follows the rules") {
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes;
    for (auto& byte : bytes) byte = random.byte();
    if (i % 2 == 0) bytes[1] = static_cast<std::uint8_t>(random.below(6));  // counts around 3
    if (i % 3 == 0) bytes[3] = bytes[2];                                    // the same place twice or thrice
    if (i % 6 == 0) bytes[4] = bytes[3];
    if (i % 5 == 0) bytes[0] = static_cast<std::uint8_t>(241 + random.below(15));
    const Weights want = second::unpack(bytes);
    const p12::Block392 block = block_of(bytes);
    if (unpacked(block) != want) FAIL("unpack_block of round " << i);
    for (std::size_t place = 0; place < 256; ++place)
      if (p12::unpack_element(block, place) != want[place]) FAIL("unpack_element of round " << i << " at " << place);
  }
  p12::Block392 block = {};
  block.base = 250;
  block.listed = 255;
  std::memset(block.codes, 0xFF, sizeof block.codes);
  block.position[0] = block.position[1] = block.position[2] = 9;
  block.exponent[0] = 1;
  block.exponent[1] = 2;
  block.exponent[2] = 3;
  const Weights weights = unpacked(block);
  CHECK(weights[9] == weight_of(3, 0));  // the last one wins
  CHECK(weights[8] == weight_of(9, 0));  // 250 + 15 wraps to 9
  CHECK(p12::unpack_element(block, 9) == weights[9]);
  CHECK(p12::unpack_element(block, 8) == weights[8]);
}

// Usable in constant expressions.
namespace {

constexpr p12::Block392 constant_block = [] {
  std::uint16_t weights[256] = {};
  for (std::size_t i = 0; i < 256; ++i) weights[i] = 0x3F80;
  weights[1] = 0x4000;
  weights[9] = 0xFF80;
  p12::Block392 block = {};
  return p12::pack_block(weights, block) == Status::ok ? block : p12::Block392{};
}();
static_assert(constant_block.base == 127 && constant_block.listed == 1);
static_assert(constant_block.position[0] == 9 && constant_block.exponent[0] == 255);
static_assert(constant_block.codes[2] == 0x01 && constant_block.sign_mantissa[9] == 0x80);
static_assert(p12::unpack_element(constant_block, 1) == 0x4000 && p12::unpack_element(&constant_block, 9) == 0xFF80);
static_assert(p12::validate_block(constant_block) == Status::ok);
static_assert(p12::code_shift(0) == 0 && p12::code_shift(1) == 16 && p12::code_shift(6) == 12 &&
              p12::code_shift(7) == 28);

}  // namespace
