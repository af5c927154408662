// pn: which bytes are a valid row of PN blocks.
#ifndef PN_VALIDATE_HPP
#define PN_VALIDATE_HPP

#include <pn/block34.hpp>
#include <pn/status.hpp>

namespace pn {

// ok, scale_not_finite or (pn3t) reserved_bits_set.
template <class T>
PN_HOST_DEVICE constexpr Status validate_block(const Block34& block) noexcept {
  if ((load_scale(block) & 0x7C00u) == 0x7C00u) return Status::scale_not_finite;
  if (T::reserved_mask != 0) {
    std::uint32_t seen = 0;
    for (std::size_t w = 0; w < words_per_block; ++w) seen |= load_word(block, w);
    if ((seen & T::reserved_mask) != 0) return Status::reserved_bits_set;
  }
  return Status::ok;
}

// A row of k weights. On a failure other than bad_length, *bad_block (when given) is the index of the first block
// that is not valid, and the status says why.
template <class T>
PN_HOST_DEVICE constexpr Status validate_row(const Block34* row, std::size_t k,
                                             std::size_t* bad_block = nullptr) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
  for (std::size_t b = 0; b < block_count<T>(k); ++b) {
    const Status status = validate_block<T>(row[b]);
    if (status != Status::ok) {
      if (bad_block != nullptr) *bad_block = b;
      return status;
    }
  }
  return Status::ok;
}

}  // namespace pn

#endif  // PN_VALIDATE_HPP
