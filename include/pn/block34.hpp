// pn: the 34-byte PN block and the two types that give it meaning. Normative text: FORMAT.md in this folder.
#ifndef PN_BLOCK34_HPP
#define PN_BLOCK34_HPP

#include <pn/config.hpp>

// The formats pn3t and pn4t, and what both formats share.
namespace pn {

// One block as it lies in memory and in files. Alignment 1: any address is accepted.
struct Block34 {
  std::uint8_t d[2];    // signed scale, fp16, little-endian
  std::uint8_t qs[32];  // codes: eight little-endian u32 words
};
static_assert(sizeof(Block34) == 34 && alignof(Block34) == 1, "a PN block is 34 bytes at any address");

// Words of codes in a block.
inline constexpr std::size_t words_per_block = 8;

// A block type: how many bits a code has, and all that follows from it. Code n of a block with scale d stands for
// the weight d * (n - zero_point).
template <int Bits, std::size_t CodesPerWord, std::uint32_t ReservedMask, std::uint32_t GgmlType>
struct BlockType {
  static constexpr int bits = Bits;                                          // of a code
  static constexpr int zero_point = 1 << (Bits - 1);                         // the code of 0
  static constexpr int max_code = 2 * zero_point - 1;                        // the largest
  static constexpr std::size_t codes_per_word = CodesPerWord;                // of 32 bits
  static constexpr std::size_t block_size = CodesPerWord * words_per_block;  // weights per block
  static constexpr std::uint32_t reserved_mask = ReservedMask;               // bits of a word that must be 0
  static constexpr std::uint32_t ggml_type = GgmlType;                       // type id in GGUF files
};

// 80 weights of 3 bits, 3.40 bits per weight: -4d .. +3d.
struct pn3t : BlockType<3, 10, 0x80008000u, 124> {
  static constexpr const char* name = "pn3t";  // in messages and files
};
// 64 weights of 4 bits, 4.25 bits per weight: -8d .. +7d.
struct pn4t : BlockType<4, 8, 0u, 125> {
  static constexpr const char* name = "pn4t";  // in messages and files
};

// Where code t of a word (t = element mod codes_per_word) begins: PAIR t/2 of the half that t's parity names. Even
// codes fill the low 16 bits, odd codes the high 16 bits.
template <class T>
PN_HOST_DEVICE constexpr int code_shift(std::size_t t) noexcept {
  return T::bits * static_cast<int>(t >> 1) + 16 * static_cast<int>(t & 1);
}

// Word w (0..7) of a block.
PN_HOST_DEVICE constexpr std::uint32_t load_word(const Block34& block, std::size_t w) noexcept {
  return detail::load_le32(block.qs + 4 * w);
}

// The scale's fp16 bits.
PN_HOST_DEVICE constexpr std::uint16_t load_scale(const Block34& block) noexcept { return detail::load_le16(block.d); }

// Code of element e (0..block_size-1): 0..max_code.
template <class T>
PN_HOST_DEVICE constexpr int load_code(const Block34& block, std::size_t e) noexcept {
  const std::uint32_t word = load_word(block, e / T::codes_per_word);
  return static_cast<int>(word >> code_shift<T>(e % T::codes_per_word)) & T::max_code;
}

// Builds a block from a scale's fp16 bits and block_size codes (each 0..max_code); reserved bits become 0.
template <class T>
PN_HOST_DEVICE constexpr void store_block(std::uint16_t scale, const std::uint8_t* codes, Block34& block) noexcept {
  detail::store_le16(block.d, scale);
  for (std::size_t w = 0; w < words_per_block; ++w) {
    std::uint32_t word = 0;
    for (std::size_t t = 0; t < T::codes_per_word; ++t)
      word |= static_cast<std::uint32_t>(codes[w * T::codes_per_word + t]) << code_shift<T>(t);
    detail::store_le32(block.qs + 4 * w, word);
  }
}

// Blocks that k weights take; k is a multiple of block_size.
template <class T>
PN_HOST_DEVICE constexpr std::size_t block_count(std::size_t k) noexcept {
  return k / T::block_size;
}

// Bytes that k weights take; k is a multiple of block_size.
template <class T>
PN_HOST_DEVICE constexpr std::size_t row_bytes(std::size_t k) noexcept {
  return block_count<T>(k) * sizeof(Block34);
}

}  // namespace pn

#endif  // PN_BLOCK34_HPP
