// pn: decoding PN blocks to fp32. Exact: every product d * (n - zero_point) fits fp32, so no rounding mode, flush
// mode or contraction can change a bit. Safe on any bytes: a scale that is not finite gives values that are not
// finite, reserved bits are ignored; use validate.hpp to refuse such blocks.
#ifndef PN_DECODE_HPP
#define PN_DECODE_HPP

#include <pn/block34.hpp>
#include <pn/half.hpp>
#include <pn/status.hpp>

namespace pn {

// The weight of code n under scale d: the fp32 product of d and n - zero_point. The product's sign rule holds: code
// zero_point under a negative d is -0.0.
template <class T>
PN_HOST_DEVICE constexpr float decode_code(float d, int n) noexcept {
  return d * static_cast<float>(n - T::zero_point);
}

// Element e (0..block_size-1) of one block.
template <class T>
PN_HOST_DEVICE PN_CONSTEXPR_BITS float decode_element(const Block34& block, std::size_t e) noexcept {
  return decode_code<T>(half_to_float(load_scale(block)), load_code<T>(block, e));
}

// Element e of a row of blocks.
template <class T>
PN_HOST_DEVICE PN_CONSTEXPR_BITS float decode_element(const Block34* row, std::size_t e) noexcept {
  return decode_element<T>(row[e / T::block_size], e % T::block_size);
}

// One block to block_size floats.
template <class T>
PN_HOST_DEVICE PN_CONSTEXPR_BITS void decode_block(const Block34& block, float* out) noexcept {
  const float d = half_to_float(load_scale(block));
  for (std::size_t w = 0; w < words_per_block; ++w) {
    const std::uint32_t word = load_word(block, w);
    for (std::size_t t = 0; t < T::codes_per_word; ++t)
      out[w * T::codes_per_word + t] = decode_code<T>(d, static_cast<int>(word >> code_shift<T>(t)) & T::max_code);
  }
}

// A row of k weights: reads row_bytes<T>(k) bytes, writes k floats. bad_length, with nothing written, when k is not a
// multiple of block_size.
template <class T>
PN_HOST_DEVICE PN_CONSTEXPR_BITS Status decode_row(const Block34* row, std::size_t k, float* out) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
  for (std::size_t b = 0; b < block_count<T>(k); ++b) decode_block<T>(row[b], out + b * T::block_size);
  return Status::ok;
}

}  // namespace pn

#endif  // PN_DECODE_HPP
