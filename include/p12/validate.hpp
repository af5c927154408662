// p12: is a block the canonical packed form of the weights that it unpacks to?
#ifndef P12_VALIDATE_HPP
#define P12_VALIDATE_HPP

#include <p12/block392.hpp>
#include <p12/codec.hpp>
#include <p12/scan.hpp>
#include <pn/status.hpp>

namespace p12 {

// ok exactly when packing what the block unpacks to gives the same 392 bytes; otherwise the first rule, in the order
// of pn::Status, that it breaks.
PN_HOST_DEVICE constexpr pn::Status validate_block(const Block392& block) noexcept {
  const int base = block.base;
  const int listed = block.listed;
  if (base > max_base) return pn::Status::base_out_of_range;
  if (listed > max_listed) return pn::Status::listed_count_out_of_range;
  for (int i = 1; i < listed; ++i)
    if (block.position[i] <= block.position[i - 1]) return pn::Status::positions_not_ascending;
  for (int i = listed; i < max_listed; ++i)
    if (block.position[i] != 0 || block.exponent[i] != 0) return pn::Status::unused_slot_not_zero;
  for (int i = 0; i < listed; ++i)
    if (load_code(block, block.position[i]) != 0) return pn::Status::listed_code_not_zero;
  for (int i = 0; i < listed; ++i)
    if (block.exponent[i] >= base && block.exponent[i] < base + window) return pn::Status::listed_exponent_in_range;

  std::uint16_t weights[block_size] = {};
  unpack_block(block, weights);
  return scan_block(weights).base == base ? pn::Status::ok : pn::Status::base_not_canonical;
}

// A row of k weights. On a failure other than bad_length, *bad_block (when given) is the index of the first block
// that is not valid, and the status says why.
PN_HOST_DEVICE constexpr pn::Status validate_row(const Block392* row, std::size_t k,
                                                 std::size_t* bad_block = nullptr) noexcept {
  if (k % block_size != 0) return pn::Status::bad_length;
  for (std::size_t b = 0; b < block_count(k); ++b) {
    const pn::Status status = validate_block(row[b]);
    if (status != pn::Status::ok) {
      if (bad_block != nullptr) *bad_block = b;
      return status;
    }
  }
  return pn::Status::ok;
}

}  // namespace p12

#endif  // P12_VALIDATE_HPP
