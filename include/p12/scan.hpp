// p12: would weights fit, and how well? The canonical base of a block, and the tally of a row.
#ifndef P12_SCAN_HPP
#define P12_SCAN_HPP

#include <p12/block392.hpp>
#include <pn/status.hpp>

namespace p12 {

// What packing a block would meet.
struct BlockScan {
  int base;    // canonical base exponent: the fewest weights outside [base, base + 15], a tie to the larger base
  int listed;  // weights outside it, 0..255; the block can be packed when this is at most max_listed
};

// The canonical base of a block whose exponents occur count[0..255] times. The only place that decides it.
PN_HOST_DEVICE constexpr BlockScan best_base(const std::uint16_t* count) noexcept {
  int inside = 0;
  for (int e = 0; e < window; ++e) inside += count[e];
  int best = 0;
  int most = inside;
  for (int base = 1; base <= max_base; ++base) {
    inside += count[base + window - 1] - count[base - 1];
    if (inside >= most) {
      most = inside;
      best = base;
    }
  }
  return {best, static_cast<int>(block_size) - most};
}

// Reads 256 weights.
PN_HOST_DEVICE constexpr BlockScan scan_block(const std::uint16_t* weights) noexcept {
  // Nearly every block lists nothing; then the rule comes down to min(smallest exponent, 240).
  int lowest = 255;
  int highest = 0;
  for (std::size_t i = 0; i < block_size; ++i) {
    const int e = exponent_of(weights[i]);
    lowest = e < lowest ? e : lowest;
    highest = e > highest ? e : highest;
  }
  if (highest - lowest < window) return {lowest < max_base ? lowest : max_base, 0};

  std::uint16_t count[256] = {};
  for (std::size_t i = 0; i < block_size; ++i) ++count[exponent_of(weights[i])];
  return best_base(count);
}

// Tally over blocks. Start from {} and add as many rows as you like; `worst_block` counts blocks in the order added.
struct RowScan {
  std::uint64_t blocks = 0;         // blocks seen
  std::uint64_t by_listed[4] = {};  // blocks that list 0, 1, 2, 3 weights; the rest does not fit
  std::uint64_t worst_block = 0;    // index of the first block with the most listed weights
  int worst_listed = 0;             // how many it lists

  // Blocks that would list more than three weights.
  PN_HOST_DEVICE constexpr std::uint64_t blocks_that_do_not_fit() const noexcept {
    return blocks - by_listed[0] - by_listed[1] - by_listed[2] - by_listed[3];
  }
};

// Counts one more block.
PN_HOST_DEVICE constexpr void add_block(const BlockScan& scan, RowScan& tally) noexcept {
  if (scan.listed <= max_listed) ++tally.by_listed[scan.listed];
  if (scan.listed > tally.worst_listed) {
    tally.worst_listed = scan.listed;
    tally.worst_block = tally.blocks;
  }
  ++tally.blocks;
}

// Adds a row of k weights to `tally`. bad_length, with nothing added, when k is not a multiple of 256.
PN_HOST_DEVICE constexpr pn::Status scan_row(const std::uint16_t* weights, std::size_t k, RowScan& tally) noexcept {
  if (k % block_size != 0) return pn::Status::bad_length;
  for (std::size_t b = 0; b < block_count(k); ++b) add_block(scan_block(weights + b * block_size), tally);
  return pn::Status::ok;
}

}  // namespace p12

#endif  // P12_SCAN_HPP
