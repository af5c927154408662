// pncuda: unpacking BF16_P12 blocks (p12/FORMAT.md) in device code: what libpncuda's own kernels are made of, for those
// who write their own. Nothing else in CUDA code knows where a code or an exponent lies. Every function is for the
// host, too.
//
// Blocks lie at multiples of 8. Any bytes are safe, and give the weights that p12::unpack_block gives.
//
// Words
//   word    weights 8i .. 8i + 7 of a block, i = 0 .. 31: four bytes of codes, eight of signs and mantissas
//   pair    two neighbouring weights as bf16 bit patterns in one register, the even one in the low half
//   plain   a block that lists no weight and whose base is at most 240: nearly all of them. For these unpack_word is 14
//           instructions; the others go through patch_word
#ifndef PNCUDA_DECODE_P12_CUH
#define PNCUDA_DECODE_P12_CUH

#include <p12/block392.hpp>

// Device code for kernels on packed weights.
namespace pncuda {

inline constexpr int p12_block_bytes = 392;    // multiples of 8
inline constexpr int p12_block_weights = 256;  // all of one row
inline constexpr int p12_words = 32;           // of a block
inline constexpr int p12_codes_at = 8;         // 4 bytes for each word
inline constexpr int p12_remainder_at = 136;   // signs and mantissas: 8 bytes for each word

// ---- Loads, of constant memory, as the weights of a model are during a launch ----

namespace detail {

PN_HOST_DEVICE inline std::uint32_t load_p12_u32(const std::uint8_t* p) noexcept {
#if defined(__CUDA_ARCH__)
  return __ldg(reinterpret_cast<const unsigned int*>(p));
#else
  return pn::detail::load_le32(p);
#endif
}
PN_HOST_DEVICE inline std::uint64_t load_p12_u64(const std::uint8_t* p) noexcept {
#if defined(__CUDA_ARCH__)
  return __ldg(reinterpret_cast<const unsigned long long*>(p));
#else
  return pn::detail::load_le32(p) | static_cast<std::uint64_t>(pn::detail::load_le32(p + 4)) << 32;
#endif
}

PN_HOST_DEVICE inline std::uint32_t spread_bytes(std::uint32_t word, unsigned selector) noexcept {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, selector);
#else
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) result |= ((word >> (8 * (selector >> (4 * i) & 3u))) & 0xFFu) << (8 * i);
  return result;
#endif
}

}  // namespace detail

// The first eight bytes of a block: base exponent, number of listed weights, their three places, their three exponents.
struct P12Head {
  std::uint32_t low;   // bytes 0 .. 3
  std::uint32_t high;  // bytes 4 .. 7
  // The base exponent.
  PN_HOST_DEVICE std::uint32_t base() const noexcept { return low & 0xFFu; }
  // How many weights are listed, at most 3.
  PN_HOST_DEVICE std::uint32_t listed() const noexcept {
    const std::uint32_t n = low >> 8 & 0xFFu;
    return n < 3 ? n : 3;
  }
  // Of listed weight i = 0 .. 2.
  PN_HOST_DEVICE std::uint32_t place(int i) const noexcept { return (i < 2 ? low >> (8 * i + 16) : high) & 0xFFu; }
  // Of listed weight i.
  PN_HOST_DEVICE std::uint32_t exponent(int i) const noexcept { return high >> (8 * i + 8) & 0xFFu; }
};

// Whether all the blocks whose heads' `low` are OR-ed together are plain. (It may say no for some that are.)
PN_HOST_DEVICE inline bool p12_all_plain(std::uint32_t lows) noexcept {
  return (lows & 0xFFFFu) <= static_cast<std::uint32_t>(p12::max_base);
}

// What a word is made of.
struct P12Word {
  std::uint32_t codes;         // four bits for each weight
  std::uint32_t remainder[2];  // signs and mantissas of weights 0 .. 3 and 4 .. 7
};

// Of the block at a multiple of 8.
PN_HOST_DEVICE inline P12Head load_p12_head(const std::uint8_t* block) noexcept {
  const std::uint64_t v = detail::load_p12_u64(block);
  return {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32)};
}
// Word 0 .. 31 of the block at a multiple of 8.
PN_HOST_DEVICE inline P12Word load_p12_word(const std::uint8_t* block, int word) noexcept {
  const std::uint64_t v = detail::load_p12_u64(block + p12_remainder_at + 8 * word);
  return {detail::load_p12_u32(block + p12_codes_at + 4 * word),
          {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32)}};
}

// ---- Unpacking ----
//
// A bf16 is sign, 8 bits of exponent, 7 of mantissa. A byte of the remainder, doubled into both bytes of a half word,
// has sign and mantissa where they belong; between them goes the exponent, base + code. Codes of weights 0, 1, 4, 5 are
// the low nibbles of a word's bytes 0, 2, 1, 3, those of 2, 3, 6, 7 the high ones; so the exponents of a pair come
// from one AND, and one shift and addition for both halves, with room for 8 bits each. What else is in the registers
// falls under the mask at the end.

// What unpack_word adds to codes: the base where the exponents of both halves of a pair lie. One multiplication.
PN_HOST_DEVICE inline std::uint32_t p12_base_of_pairs(std::uint32_t head_low) noexcept {
  return (head_low & 0xFFu) * 0x00808080u;
}

namespace detail {

// Sign and mantissa from `remainder`, the exponent from `exponents`. One LOP3, which compilers do not find.
PN_HOST_DEVICE inline std::uint32_t p12_pair(std::uint32_t remainder, std::uint32_t exponents) noexcept {
  constexpr std::uint32_t mask = 0x807F807Fu;
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("lop3.b32 %0,%1,%2,%3,0xCA;" : "=r"(pair) : "r"(mask), "r"(remainder), "r"(exponents));
  return pair;
#else
  return (remainder & mask) | (exponents & ~mask);
#endif
}

// codes & mask, which compilers would join with the shifts that follow, and so do twice.
PN_HOST_DEVICE inline std::uint32_t p12_codes(std::uint32_t codes, std::uint32_t mask) noexcept {
  codes &= mask;
#if defined(__CUDA_ARCH__)
  asm("" : "+r"(codes));
#endif
  return codes;
}

}  // namespace detail

// pairs[0 .. 3] of a word of a plain block; of another one numbers that patch_word puts right.
PN_HOST_DEVICE inline void unpack_p12_word(const P12Word& word, std::uint32_t base_of_pairs,
                                           std::uint32_t* pairs) noexcept {
  const std::uint32_t low = detail::p12_codes(word.codes, 0x0F0F0F0Fu);
  const std::uint32_t high = detail::p12_codes(word.codes, 0xF0F0F0F0u);
  pairs[0] = detail::p12_pair(detail::spread_bytes(word.remainder[0], 0x1100), (low << 7) + base_of_pairs);
  pairs[1] = detail::p12_pair(detail::spread_bytes(word.remainder[0], 0x3322), (high << 3) + base_of_pairs);
  pairs[2] = detail::p12_pair(detail::spread_bytes(word.remainder[1], 0x1100), (low >> 1) + base_of_pairs);
  pairs[3] = detail::p12_pair(detail::spread_bytes(word.remainder[1], 0x3322), (high >> 5) + base_of_pairs);
}

// Word `index` of a block that is not plain: exponents modulo 256, then the listed weights that lie in it.
PN_HOST_DEVICE inline void patch_p12_word(const P12Head& head, const P12Word& word, int index,
                                          std::uint32_t* pairs) noexcept {
  const std::uint32_t low = word.codes & 0x0F0F0F0Fu, high = word.codes >> 4 & 0x0F0F0F0Fu;
  const std::uint32_t base = head.base() * 0x00010001u;
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t codes = (j & 1) != 0 ? high : low;
    const std::uint32_t exponents = ((j < 2 ? codes : codes >> 8) & 0x00FF00FFu) + base;  // 9 bits in each half
    pairs[j] = detail::p12_pair(pairs[j], exponents << 7);
  }
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // rare: few registers rather than speed
#endif
  for (int i = 0; i < static_cast<int>(head.listed()); ++i) {
    const std::uint32_t place = head.place(i);
    if (static_cast<int>(place >> 3) != index) continue;
    const int at = (place & 1u) != 0 ? 23 : 7;  // of the exponent in its pair
    for (int j = 0; j < 4; ++j)
      if (j == static_cast<int>(place >> 1 & 3u)) pairs[j] = (pairs[j] & ~(0xFFu << at)) | head.exponent(i) << at;
  }
}

// Word `index` of any block at `block`, a multiple of 8.
PN_HOST_DEVICE inline void unpack_p12_word(const std::uint8_t* block, int index, std::uint32_t* pairs) noexcept {
  const P12Head head = load_p12_head(block);
  const P12Word word = load_p12_word(block, index);
  unpack_p12_word(word, p12_base_of_pairs(head.low), pairs);
  if (!p12_all_plain(head.low)) patch_p12_word(head, word, index, pairs);
}

// The first weight of a pair as fp32 bits.
PN_HOST_DEVICE inline std::uint32_t bf16_low_as_f32(std::uint32_t pair) noexcept { return pair << 16; }
// The second weight of a pair as fp32 bits.
PN_HOST_DEVICE inline std::uint32_t bf16_high_as_f32(std::uint32_t pair) noexcept { return pair & 0xFFFF0000u; }

}  // namespace pncuda

#endif  // PNCUDA_DECODE_P12_CUH
