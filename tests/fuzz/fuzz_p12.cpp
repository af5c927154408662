// BF16_P12: any bytes as blocks, any bf16 patterns as weights.
//
// Input: one byte that chooses the kind, then
//   0  rows of 392-byte blocks
//   1  rows of bf16 weights
//   2  weights near one exponent, as most are: base, spread, 256 pairs of (sign and mantissa, exponent - base), then
//      patches (place u16, value) of the packed block, so that nearly valid blocks are met too
#include <array>
#include <p12/p12.hpp>
#include <vector>

#include "fuzz.hpp"

namespace {

using Weights = std::array<std::uint16_t, p12::block_size>;

// Unpacks by the text of FORMAT.md, one weight at a time, from the bytes.
std::uint16_t unpack_by_the_text(const std::uint8_t* block, unsigned place) {
  const unsigned pair = place % 8 / 2;
  const std::uint8_t* half = block + 8 + 4 * (place / 8) + 2 * (place % 2);
  const unsigned code = (half[pair / 2] >> (4 * (pair % 2))) & 15u;
  unsigned exponent = (block[0] + code) % 256;
  const unsigned listed = std::min<unsigned>(block[1], 3);
  for (unsigned i = 0; i < listed; ++i)
    if (block[2 + i] == place) exponent = block[5 + i];
  const unsigned sign_mantissa = block[136 + place];
  return static_cast<std::uint16_t>((sign_mantissa / 128) << 15 | exponent << 7 | (sign_mantissa % 128));
}

// The canonical base by trying all 241.
p12::BlockScan best_base_by_trying(const std::uint16_t* weights) {
  std::array<int, 256> count{};
  for (std::size_t i = 0; i < p12::block_size; ++i) ++count[(weights[i] >> 7) & 255u];
  p12::BlockScan best{-1, 257};
  for (int base = 240; base >= 0; --base) {
    int outside = 256;
    for (int e = base; e <= base + 15; ++e) outside -= count[static_cast<std::size_t>(e)];
    if (outside < best.listed) best = {base, outside};
  }
  return best;
}

bool same(const p12::Block392& a, const p12::Block392& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void check_blocks(const std::uint8_t* bytes, std::size_t size) {
  const std::size_t blocks = size / sizeof(p12::Block392);
  // The fuzzer's own bytes: the first beyond them, at any address, is guarded.
  const p12::Block392* row = reinterpret_cast<const p12::Block392*>(bytes + size % sizeof(p12::Block392));
  std::vector<std::uint16_t> weights(blocks * p12::block_size);
  FUZZ_REQUIRE(p12::unpack_row(row, weights.size(), weights.data()) == pn::Status::ok);

  std::size_t first_bad = blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint16_t* expected = weights.data() + b * p12::block_size;
    Weights unpacked{};
    p12::unpack_block(row[b], unpacked.data());
    FUZZ_REQUIRE(std::equal(unpacked.begin(), unpacked.end(), expected));
    for (unsigned i = 0; i < p12::block_size; ++i) {
      FUZZ_REQUIRE(p12::unpack_element(row[b], i) == expected[i]);
      FUZZ_REQUIRE(p12::unpack_element(row, b * p12::block_size + i) == expected[i]);
      FUZZ_REQUIRE(unpack_by_the_text(reinterpret_cast<const std::uint8_t*>(row + b), i) == expected[i]);
    }
    p12::Block392 again{};
    const bool canonical = p12::pack_block(expected, again) == pn::Status::ok && same(again, row[b]);
    const pn::Status status = p12::validate_block(row[b]);
    FUZZ_REQUIRE((status == pn::Status::ok) == canonical);
    if (status != pn::Status::ok && first_bad == blocks) first_bad = b;

    // What packing could write is never refused for its shape alone: only rules that it breaks are named.
    const std::uint8_t base = row[b].base;
    const std::uint8_t listed = row[b].listed;
    if (status == pn::Status::base_out_of_range) FUZZ_REQUIRE(base > 240);
    if (status == pn::Status::listed_count_out_of_range) FUZZ_REQUIRE(base <= 240 && listed > 3);
    if (status == pn::Status::base_not_canonical) FUZZ_REQUIRE(best_base_by_trying(expected).base != base);
  }
  std::size_t bad = blocks;
  const pn::Status status = p12::validate_row(row, blocks * p12::block_size, &bad);
  FUZZ_REQUIRE((status == pn::Status::ok) == (first_bad == blocks));
  FUZZ_REQUIRE(bad == first_bad);
  if (first_bad != blocks) FUZZ_REQUIRE(status == p12::validate_block(row[first_bad]));
}

void check_weights(const std::uint16_t* weights, std::size_t count) {
  const std::size_t k = count - count % p12::block_size;
  const std::size_t blocks = k / p12::block_size;
  std::vector<p12::Block392> packed(blocks);
  if (blocks != 0) std::memset(packed.data(), 0xA5, blocks * sizeof(p12::Block392));
  const std::vector<p12::Block392> untouched = packed;
  if (k != count) {
    FUZZ_REQUIRE(p12::pack_row(weights, count, packed.data()) == pn::Status::bad_length);
    if (blocks != 0) FUZZ_REQUIRE(same(packed[0], untouched[0]));
  }
  std::size_t bad = blocks;
  const pn::Status status = p12::pack_row(weights, k, packed.data(), &bad);
  FUZZ_REQUIRE(status == (bad == blocks ? pn::Status::ok : pn::Status::too_many_listed));

  p12::RowScan tally;
  FUZZ_REQUIRE(p12::scan_row(weights, k, tally) == pn::Status::ok);
  FUZZ_REQUIRE(tally.blocks == blocks);
  FUZZ_REQUIRE((tally.blocks_that_do_not_fit() == 0) == (bad == blocks));
  int worst = 0;
  std::array<std::uint64_t, 4> by_listed{};
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint16_t* source = weights + b * p12::block_size;
    const p12::BlockScan best = best_base_by_trying(source);
    const p12::BlockScan scan = p12::scan_block(source);
    FUZZ_REQUIRE(scan.base == best.base && scan.listed == best.listed);
    worst = std::max(worst, best.listed);
    if (best.listed <= 3) ++by_listed[static_cast<std::size_t>(best.listed)];

    p12::Block392 block = untouched.front();
    const pn::Status one = p12::pack_block(source, block);
    FUZZ_REQUIRE(one == (best.listed <= 3 ? pn::Status::ok : pn::Status::too_many_listed));
    if (b < bad) {
      FUZZ_REQUIRE(one == pn::Status::ok && same(block, packed[b]));
      FUZZ_REQUIRE(p12::validate_block(block) == pn::Status::ok);
      FUZZ_REQUIRE(block.base == best.base && block.listed == best.listed);
      Weights back{};
      p12::unpack_block(block, back.data());
      FUZZ_REQUIRE(std::equal(back.begin(), back.end(), source));
    } else {
      if (b == bad) FUZZ_REQUIRE(one == pn::Status::too_many_listed);
      if (one != pn::Status::ok) FUZZ_REQUIRE(same(block, untouched[b]));
      FUZZ_REQUIRE(same(packed[b], untouched[b]));
    }
  }
  FUZZ_REQUIRE(worst == tally.worst_listed);
  FUZZ_REQUIRE(std::equal(by_listed.begin(), by_listed.end(), tally.by_listed));
}

void check_near_one_exponent(fuzz::Bytes input) {
  const unsigned base = input.byte();
  const unsigned spread = input.below(18) + 1;
  Weights weights{};
  for (std::uint16_t& weight : weights) {
    const unsigned sign_mantissa = input.byte();
    const unsigned distance = input.byte();
    // Seldom an exponent from anywhere.
    const unsigned exponent = distance >= 0xFC ? sign_mantissa : (base + distance % spread) % 256;
    weight = static_cast<std::uint16_t>((sign_mantissa & 0x80u) << 8 | exponent << 7 | (sign_mantissa & 0x7Fu));
  }
  check_weights(weights.data(), weights.size());

  p12::Block392 block{};
  if (p12::pack_block(weights.data(), block) != pn::Status::ok) return;
  std::array<std::uint8_t, sizeof block> bytes{};
  std::memcpy(bytes.data(), &block, sizeof block);
  while (!input.empty()) {
    const std::uint16_t place = input.integer<std::uint16_t>();
    // Most of what can go wrong is in the first 8 bytes and in codes.
    const std::size_t at = place & 0x8000u ? place % 8u : place % bytes.size();
    bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ input.byte());
  }
  check_blocks(bytes.data(), bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Bytes input(data, size);
  switch (input.below(3)) {
    case 0: check_blocks(input.rest(), input.left()); break;
    case 1: {
      std::vector<std::uint16_t> weights(input.left() / 2);
      input.copy(weights.data(), 2 * weights.size());
      check_weights(weights.data(), weights.size());
      break;
    }
    default: check_near_one_exponent(input);
  }
  return 0;
}
