// Proves that a block is valid exactly when packing what it unpacks to gives it back: on every single-bit change of
// packed blocks, on millions of other changes, on any bytes; and that every reason is the one that the block gives.
#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

bool packs_back(const p12::Block392& block) {
  std::uint16_t weights[256];
  p12::unpack_block(block, weights);
  p12::Block392 again;
  return p12::pack_block(weights, again) == Status::ok && std::memcmp(&again, &block, sizeof block) == 0;
}

// The first rule that a block breaks, in the order in which the reasons are listed.
Status first_reason(const Bytes& bytes) {
  const int base = bytes[0], n = bytes[1];
  if (base > 240) return Status::base_out_of_range;
  if (n > 3) return Status::listed_count_out_of_range;
  if (n >= 2 && bytes[3] <= bytes[2]) return Status::positions_not_ascending;
  if (n == 3 && bytes[4] <= bytes[3]) return Status::positions_not_ascending;
  for (int slot = n; slot < 3; ++slot)
    if (bytes[static_cast<std::size_t>(2 + slot)] != 0 || bytes[static_cast<std::size_t>(5 + slot)] != 0)
      return Status::unused_slot_not_zero;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(n); ++slot) {
    const int bit = second::first_bit(bytes[2 + slot]);
    if (((bytes[static_cast<std::size_t>(bit / 8)] >> (bit % 8)) & 15) != 0) return Status::listed_code_not_zero;
  }
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(n); ++slot) {
    const int apart = bytes[5 + slot] - base;
    if (apart >= 0 && apart <= 15) return Status::listed_exponent_in_range;
  }
  return second::choose(second::unpack(bytes)).base == base ? Status::ok : Status::base_not_canonical;
}

// One random change, of the kinds that a careless validator would let through.
void mutate(Random& random, Bytes& bytes) {
  switch (random.below(9)) {
    case 0: bytes[random.below(392)] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
    case 1: bytes[random.below(8)] = random.byte(); break;
    case 2: bytes[random.below(8)] = static_cast<std::uint8_t>(bytes[random.below(8)] + random.between(-2, 2)); break;
    case 3: bytes[0] = static_cast<std::uint8_t>(bytes[0] + random.between(-16, 16)); break;
    case 4: bytes[1] = static_cast<std::uint8_t>(random.below(5)); break;
    case 5: std::swap(bytes[2 + random.below(3)], bytes[2 + random.below(3)]); break;
    case 6: bytes[5 + random.below(3)] = static_cast<std::uint8_t>(bytes[0] + random.between(-2, 17)); break;
    case 7: {  // base and all codes moved together: the weights stay, the form does not
      const int by = random.coin() ? 1 : -1;
      bytes[0] = static_cast<std::uint8_t>(bytes[0] + by);
      for (std::size_t i = 8; i < 136; ++i) bytes[i] = static_cast<std::uint8_t>(bytes[i] - by * 0x11);
      break;
    }
    default: bytes[8 + random.below(128)] = random.byte(); break;
  }
}

}  // namespace

TEST_CASE("every single-bit change of a packed block is invalid or other weights") {
  Random random(1);
  int invalid = 0, other = 0;
  for (int n = 0; n <= 3; ++n)
    for (int round = 0; round < 3; ++round) {
      const p12::Block392 block = packed_with(random, n);
      REQUIRE(block.listed == n);
      REQUIRE(p12::validate_block(block) == Status::ok);
      const Weights weights = unpacked(block);
      for (std::size_t bit = static_cast<std::size_t>(round % every()); bit < 8 * 392;
           bit += static_cast<std::size_t>(every())) {
        Bytes bytes = bytes_of(block);
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
        const p12::Block392 changed = block_of(bytes);
        const Status status = p12::validate_block(changed);
        if (status != first_reason(bytes)) FAIL("bit " << bit << " of a block that lists " << n);
        if ((status == Status::ok) != second::is_canonical(bytes))
          FAIL("bit " << bit << " of a block that lists " << n);
        const bool same = unpacked(changed) == weights;
        if (status == Status::ok && same) FAIL("bit " << bit << " of a block that lists " << n << " is not seen");
        ++(status == Status::ok ? other : invalid);
      }
    }
  CHECK(invalid > 500 / every());
  CHECK(other > 3000 / every());
}

TEST_CASE("valid means that packing gives the block back: changed blocks, all bases tried") {
  Random random(2);
  int valid = 0, invalid = 0;
  for (int i = 0; i < 30000 / every(); ++i) {
    Bytes bytes = bytes_of(packed_with(random, random.between(0, 3)));
    for (int changes = random.between(1, 3); changes > 0; --changes) mutate(random, bytes);
    const Status status = p12::validate_block(block_of(bytes));
    if ((status == Status::ok) != second::is_canonical(bytes))
      FAIL("round " << i << " status " << static_cast<int>(status));
    if (status != first_reason(bytes)) FAIL("round " << i << " status " << static_cast<int>(status));
    ++(status == Status::ok ? valid : invalid);
  }
  CHECK(valid > 1000 / every());
  CHECK(invalid > 10000 / every());
}

TEST_CASE("valid means that packing gives the block back: two million changes") {
  Random random(3);
  int valid = 0;
  std::vector<Bytes> packed;
  for (int i = 0; i < 64; ++i) packed.push_back(bytes_of(packed_with(random, i % 4)));
  for (int i = 0; i < 2000000 / every(); ++i) {
    Bytes bytes = packed[static_cast<std::size_t>(i % 64)];
    mutate(random, bytes);
    if (i % 3 == 0) mutate(random, bytes);
    const p12::Block392 block = block_of(bytes);
    const bool ok = p12::validate_block(block) == Status::ok;
    if (ok != packs_back(block)) FAIL("round " << i);
    valid += ok ? 1 : 0;
  }
  CHECK(valid > 100000 / every());
}

TEST_CASE("valid means that packing gives the block back: any bytes") {
  Random random(4);
  int valid = 0;
  for (int i = 0; i < 30000 / every(); ++i) {
    Bytes bytes;
    for (auto& byte : bytes) byte = random.byte();
    if (i % 4 != 0) {  // plausible heads, so that the later rules are reached
      bytes[0] = static_cast<std::uint8_t>(random.below(243));
      const std::size_t n = random.below(4);
      bytes[1] = static_cast<std::uint8_t>(n);
      std::sort(bytes.begin() + 2, bytes.begin() + 2 + static_cast<std::ptrdiff_t>(n));
      for (std::size_t slot = 0; slot < 3; ++slot) {
        if (slot >= n) {
          bytes[2 + slot] = bytes[5 + slot] = 0;
        } else if (i % 4 != 1) {
          const int bit = second::first_bit(bytes[2 + slot]);
          bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<std::uint8_t>(bit % 8 == 4 ? 0x0F : 0xF0);
        }
      }
    }
    const Status status = p12::validate_block(block_of(bytes));
    if (status != first_reason(bytes)) FAIL("round " << i << " status " << static_cast<int>(status));
    if ((status == Status::ok) != second::is_canonical(bytes))
      FAIL("round " << i << " status " << static_cast<int>(status));
    valid += status == Status::ok ? 1 : 0;
  }
  CHECK(valid > 1000 / every());
}

TEST_CASE("each reason") {
  Random random(5);
  const p12::Block392 none = packed_with(random, 0);
  const p12::Block392 three = [&] {
    Weights weights = weights_between(random, 100, 115);
    weights[1] = weight_of(100, 1);
    weights[2] = weight_of(115, 2);
    weights[10] = weight_of(99, 3);
    weights[20] = weight_of(116, 4);
    weights[30] = weight_of(255, 5);
    p12::Block392 block;
    REQUIRE(p12::pack_block(weights.data(), block) == Status::ok);
    return block;
  }();
  REQUIRE(three.base == 100);
  REQUIRE(three.listed == 3);
  const auto reason = [](p12::Block392 block, auto&& change) {
    change(block);
    const Status status = p12::validate_block(block);
    CHECK(status == first_reason(bytes_of(block)));
    CHECK_FALSE(second::is_canonical(bytes_of(block)));
    return status;
  };
  using Block = p12::Block392;

  CHECK(reason(none, [](Block& b) { b.base = 241; }) == Status::base_out_of_range);
  CHECK(reason(none, [](Block& b) {
          b.base = 255;
          b.listed = 9;
        }) == Status::base_out_of_range);
  CHECK(reason(three, [](Block& b) { b.listed = 4; }) == Status::listed_count_out_of_range);
  CHECK(reason(three, [](Block& b) { b.listed = 255; }) == Status::listed_count_out_of_range);
  CHECK(reason(three, [](Block& b) { b.position[1] = b.position[0]; }) == Status::positions_not_ascending);
  CHECK(reason(three, [](Block& b) { std::swap(b.position[0], b.position[1]); }) == Status::positions_not_ascending);
  CHECK(reason(three, [](Block& b) { b.position[2] = b.position[1]; }) == Status::positions_not_ascending);
  CHECK(reason(three, [](Block& b) { std::swap(b.position[1], b.position[2]); }) == Status::positions_not_ascending);
  CHECK(reason(three, [](Block& b) { std::swap(b.position[0], b.position[2]); }) == Status::positions_not_ascending);
  CHECK(reason(three, [](Block& b) {  // the whole list in another order: the same weights
          std::swap(b.position[1], b.position[2]);
          std::swap(b.exponent[1], b.exponent[2]);
        }) == Status::positions_not_ascending);
  for (std::size_t slot = 0; slot < 3; ++slot) {
    CHECK(reason(none, [&](Block& b) { b.position[slot] = 1; }) == Status::unused_slot_not_zero);
    CHECK(reason(none, [&](Block& b) { b.exponent[slot] = 1; }) == Status::unused_slot_not_zero);
    CHECK(reason(none, [&](Block& b) { b.exponent[slot] = 0x80; }) == Status::unused_slot_not_zero);
  }
  CHECK(reason(three, [](Block& b) { b.listed = 2; }) == Status::unused_slot_not_zero);
  CHECK(reason(three, [](Block& b) {
          b.listed = 2;
          b.position[2] = 0;
        }) == Status::unused_slot_not_zero);
  CHECK(reason(three, [](Block& b) {
          b.listed = 2;
          b.exponent[2] = 0;
        }) == Status::unused_slot_not_zero);
  CHECK(reason(three, [](Block& b) { b.codes[4 * (10 / 8) + 0] |= 0x10; }) ==
        Status::listed_code_not_zero);  // place 10: t = 2, bit 4
  CHECK(reason(three, [](Block& b) { b.codes[4 * (20 / 8) + 1] |= 0x08; }) ==
        Status::listed_code_not_zero);  // place 20: t = 4, bit 8
  CHECK(reason(three, [](Block& b) { b.codes[4 * (30 / 8) + 1] |= 0x80; }) ==
        Status::listed_code_not_zero);  // place 30: t = 6, bit 12
  CHECK(reason(three, [](Block& b) { b.exponent[0] = 100; }) == Status::listed_exponent_in_range);
  CHECK(reason(three, [](Block& b) { b.exponent[1] = 115; }) == Status::listed_exponent_in_range);
  CHECK(reason(three, [](Block& b) { b.exponent[2] = 107; }) == Status::listed_exponent_in_range);
  CHECK(p12::validate_block(three) == Status::ok);

  // Another base would list fewer, or as many and is larger. Codes and base moved together: the same weights.
  Weights same;
  same.fill(0x3F80);
  p12::Block392 block;
  REQUIRE(p12::pack_block(same.data(), block) == Status::ok);
  for (int lower = 1; lower <= 15; ++lower) {
    p12::Block392 moved = block;
    moved.base = static_cast<std::uint8_t>(127 - lower);
    std::memset(moved.codes, lower * 0x11, sizeof moved.codes);
    REQUIRE(unpacked(moved) == same);
    CHECK(p12::validate_block(moved) == Status::base_not_canonical);
  }
  // Listed although no list is needed; here with the canonical base out of reach of one weight only.
  p12::Block392 needless = {};
  needless.base = 100;
  needless.listed = 1;
  needless.position[0] = 77;
  needless.exponent[0] = 99;
  std::memset(needless.codes, 0x11, sizeof needless.codes);
  needless.codes[4 * (77 / 8) + 3] &= 0x0F;
  needless.codes[4 * (77 / 8) + 3] &= 0xF0;
  CHECK(p12::validate_block(needless) != Status::ok);
  CHECK(p12::validate_block(needless) == first_reason(bytes_of(needless)));
  // Base 240 when every exponent is 250.
  p12::Block392 top = {};
  top.base = 240;
  std::memset(top.codes, 0xAA, sizeof top.codes);
  CHECK(p12::validate_block(top) == Status::ok);
  top.base = 239;
  std::memset(top.codes, 0xBB, sizeof top.codes);
  CHECK(p12::validate_block(top) == Status::base_not_canonical);
}

TEST_CASE("a row reports its first bad block and why") {
  Random random(6);
  constexpr std::size_t blocks = 7;
  std::vector<p12::Block392> row;
  for (std::size_t b = 0; b < blocks; ++b) row.push_back(packed_with(random, static_cast<int>(b % 4)));
  std::size_t bad = 77;
  CHECK(p12::validate_row(row.data(), 256 * blocks, &bad) == Status::ok);
  CHECK(bad == 77);
  for (std::size_t first = 0; first < blocks; ++first)
    for (std::size_t later = first + 1; later <= blocks; ++later) {
      std::vector<p12::Block392> broken = row;
      broken[first].base = 241;
      if (later < blocks) broken[later].listed = 9;
      CHECK(p12::validate_row(broken.data(), 256 * blocks, &bad) == Status::base_out_of_range);
      CHECK(bad == first);
      CHECK(p12::validate_row(broken.data(), 256 * blocks) == Status::base_out_of_range);
      CHECK(p12::validate_row(broken.data(), 256 * first, &bad) == Status::ok);
    }
  bad = 77;
  row[0].base = 255;
  for (const std::size_t k : {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{511}})
    CHECK(p12::validate_row(row.data(), k, &bad) == Status::bad_length);
  CHECK(p12::validate_row(row.data(), 0, &bad) == Status::ok);
  CHECK(p12::validate_row(nullptr, 0) == Status::ok);
  CHECK(bad == 77);
}
