// p12: the 392-byte BF16_P12 block. Normative text: FORMAT.md in this folder.
//
// Weights are bf16 BIT PATTERNS in std::uint16_t throughout: bit 15 sign, bits 14..7 exponent, bits 6..0 mantissa.
// They are never treated as floats, so every NaN payload, infinity, subnormal and -0.0 survives. Arrays of weights are
// aligned to 2 bytes, as their type asks; blocks may lie at any address.
#ifndef P12_BLOCK392_HPP
#define P12_BLOCK392_HPP

#include <pn/config.hpp>

// The format BF16_P12.
namespace p12 {

// Version of the BF16_P12 format that this code implements, written to files as `p12.version`.
inline constexpr unsigned format_version = 1;
// Type id in GGUF files unless `p12.type_id` says another.
inline constexpr std::uint32_t default_ggml_type = 126;

inline constexpr std::size_t block_size = 256;  // weights per block, all of one row
inline constexpr int max_base = 240;            // base exponent: 0..240
inline constexpr int max_listed = 3;            // weights per block that may keep their exponent in the list
inline constexpr int window = 16;               // exponents that a 4-bit code reaches: base .. base + 15

// One block as it lies in memory and in files. Alignment 1: any address is accepted.
struct Block392 {
  std::uint8_t base;                // base exponent
  std::uint8_t listed;              // n, how many weights are listed
  std::uint8_t position[3];         // their places in the block, strictly ascending; unused slots 0
  std::uint8_t exponent[3];         // their exponents; unused slots 0
  std::uint8_t codes[128];          // 32 little-endian u32 words of 4-bit codes; word i: weights 8i .. 8i + 7
  std::uint8_t sign_mantissa[256];  // bit 7 sign, bits 6..0 mantissa
};
static_assert(sizeof(Block392) == 392 && alignof(Block392) == 1, "a P12 block is 392 bytes at any address");

// Where the code of a weight begins in its word, for t = place mod 8: even codes fill the low 16 bits, odd ones the
// high 16 bits (the bit order of pn4t).
PN_HOST_DEVICE constexpr int code_shift(std::size_t t) noexcept {
  return 4 * static_cast<int>(t >> 1) + 16 * static_cast<int>(t & 1);
}

// The 4-bit code of the weight at `place` (0..255).
PN_HOST_DEVICE constexpr int load_code(const Block392& block, std::size_t place) noexcept {
  const std::uint32_t word = pn::detail::load_le32(block.codes + 4 * (place / 8));
  return static_cast<int>((word >> code_shift(place % 8)) & 15u);
}

// The eight bits of a bf16 weight's exponent.
PN_HOST_DEVICE constexpr int exponent_of(std::uint16_t weight) noexcept { return (weight >> 7) & 0xFF; }

// Blocks of k weights, a multiple of 256.
PN_HOST_DEVICE constexpr std::size_t block_count(std::size_t k) noexcept { return k / block_size; }
// Bytes of k weights, a multiple of 256.
PN_HOST_DEVICE constexpr std::size_t row_bytes(std::size_t k) noexcept { return block_count(k) * sizeof(Block392); }

}  // namespace p12

#endif  // P12_BLOCK392_HPP
