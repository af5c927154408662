// p12: canonical packing and unpacking. Any 256 bf16 patterns have at most one packed form, and it unpacks to them.
#ifndef P12_CODEC_HPP
#define P12_CODEC_HPP

#include <p12/block392.hpp>
#include <p12/scan.hpp>
#include <pn/status.hpp>

namespace p12 {

// 256 weights to one block. too_many_listed, with `out` not written, when they do not fit. *scan (when given) receives
// the block's scan in either case. `weights` and `out` must not overlap.
PN_HOST_DEVICE constexpr pn::Status pack_block(const std::uint16_t* weights, Block392& out,
                                               BlockScan* scan = nullptr) noexcept {
  const BlockScan found = scan_block(weights);
  if (scan != nullptr) *scan = found;
  if (found.listed > max_listed) return pn::Status::too_many_listed;
  out = Block392{};
  out.base = static_cast<std::uint8_t>(found.base);
  for (std::size_t i = 0; i < block_size; ++i)
    out.sign_mantissa[i] = static_cast<std::uint8_t>(((weights[i] >> 8) & 0x80) | (weights[i] & 0x7F));
  for (std::size_t w = 0; w < block_size / 8; ++w) {
    std::uint32_t word = 0;
    for (std::size_t t = 0; t < 8; ++t) {
      const std::size_t place = 8 * w + t;
      const int exponent = exponent_of(weights[place]);
      const int code = exponent - found.base;
      if (code >= 0 && code < window) {
        word |= static_cast<std::uint32_t>(code) << code_shift(t);
      } else {
        out.position[out.listed] = static_cast<std::uint8_t>(place);
        out.exponent[out.listed] = static_cast<std::uint8_t>(exponent);
        ++out.listed;
      }
    }
    pn::detail::store_le32(out.codes + 4 * w, word);
  }
  return pn::Status::ok;
}

// A row of k weights to k / 256 blocks. bad_length when k is not a multiple of 256. too_many_listed at the first
// block that does not fit: *bad_block (when given) is its index, and the blocks before it have been written.
PN_HOST_DEVICE constexpr pn::Status pack_row(const std::uint16_t* weights, std::size_t k, Block392* out,
                                             std::size_t* bad_block = nullptr) noexcept {
  if (k % block_size != 0) return pn::Status::bad_length;
  for (std::size_t b = 0; b < block_count(k); ++b) {
    const pn::Status status = pack_block(weights + b * block_size, out[b]);
    if (status != pn::Status::ok) {
      if (bad_block != nullptr) *bad_block = b;
      return status;
    }
  }
  return pn::Status::ok;
}

// One block to 256 weights. Any 392 bytes are safe: a count beyond 3 is read as 3, exponents wrap modulo 256, later
// places win. Only what validate.hpp accepts is the packed form of its weights.
PN_HOST_DEVICE constexpr void unpack_block(const Block392& block, std::uint16_t* out) noexcept {
  for (std::size_t w = 0; w < block_size / 8; ++w) {
    const std::uint32_t word = pn::detail::load_le32(block.codes + 4 * w);
    for (std::size_t t = 0; t < 8; ++t) {
      const std::uint32_t sm = block.sign_mantissa[8 * w + t];
      const std::uint32_t exponent = (block.base + ((word >> code_shift(t)) & 15u)) & 0xFFu;
      out[8 * w + t] = static_cast<std::uint16_t>(((sm & 0x80u) << 8) | (exponent << 7) | (sm & 0x7Fu));
    }
  }
  for (int i = 0; i < block.listed && i < max_listed; ++i) {
    std::uint16_t& weight = out[block.position[i]];
    weight = static_cast<std::uint16_t>((weight & 0x807F) | (block.exponent[i] << 7));
  }
}

// A row of k weights. bad_length, with nothing written, when k is not a multiple of 256.
PN_HOST_DEVICE constexpr pn::Status unpack_row(const Block392* row, std::size_t k, std::uint16_t* out) noexcept {
  if (k % block_size != 0) return pn::Status::bad_length;
  for (std::size_t b = 0; b < block_count(k); ++b) unpack_block(row[b], out + b * block_size);
  return pn::Status::ok;
}

// The weight at `place` (0..255) of one block; the same value that unpack_block gives.
PN_HOST_DEVICE constexpr std::uint16_t unpack_element(const Block392& block, std::size_t place) noexcept {
  std::uint32_t exponent = static_cast<std::uint32_t>(block.base + load_code(block, place)) & 0xFFu;
  for (int i = 0; i < block.listed && i < max_listed; ++i)
    if (block.position[i] == place) exponent = block.exponent[i];
  const std::uint32_t sm = block.sign_mantissa[place];
  return static_cast<std::uint16_t>(((sm & 0x80u) << 8) | (exponent << 7) | (sm & 0x7Fu));
}

// Element e of a row of blocks.
PN_HOST_DEVICE constexpr std::uint16_t unpack_element(const Block392* row, std::size_t e) noexcept {
  return unpack_element(row[e / block_size], e % block_size);
}

}  // namespace p12

#endif  // P12_CODEC_HPP
