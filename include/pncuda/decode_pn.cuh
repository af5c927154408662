// pncuda: decoding PN blocks (pn/FORMAT.md) in device code: what libpncuda's own kernels are made of, for those who
// write their own. Nothing else in CUDA code knows where a code or a scale lies. Every function is for the host, too.
//
// T is pn::pn3t or pn::pn4t. All addresses of blocks are multiples of 2. Any bytes are safe: reserved bits are ignored,
// a scale that is not finite gives numbers that are not finite.
//
// Words
//   quarter   words 2t and 2t + 1 of a block, t = 0 .. 3: 20 (pn3t) or 16 (pn4t) consecutive weights. The kernels give
//             a lane the same quarter of two neighbouring blocks, 2p and 2p + 1: 16 bytes.
//   pair      elements 2j and 2j + 1 of a word, whose codes lie at the same place in its two halves
//   tile      16 rows x 16 blocks: the unit of the repacked layout, and 16 blocks of one row is what a warp takes at a
//             time (lane = 4 * p + t)
#ifndef PNCUDA_DECODE_PN_CUH
#define PNCUDA_DECODE_PN_CUH

#include <cuda_fp16.h>

#include <pn/block34.hpp>
#include <pn/decode.hpp>

namespace pncuda {

// ---- Loads ----

namespace detail {

template <class V>
PN_HOST_DEVICE inline V load_readonly(const void* p) noexcept {
#if defined(__CUDA_ARCH__)
  return __ldg(static_cast<const V*>(p));
#else
  return *static_cast<const V*>(p);
#endif
}

}  // namespace detail

// A pair of fp16 numbers from their bits.
PN_HOST_DEVICE inline __half2 half2_of(std::uint32_t bits) noexcept {
  __half2 pair;
  memcpy(static_cast<void*>(&pair), &bits, sizeof(pair));
  return pair;
}

// A little-endian u32 at a multiple of 2. Of constant memory, as the weights of a model are during a launch.
PN_HOST_DEVICE inline std::uint32_t load_u32(const std::uint8_t* p) noexcept {
  return detail::load_readonly<std::uint16_t>(p) |
         static_cast<std::uint32_t>(detail::load_readonly<std::uint16_t>(p + 2)) << 16;
}
// Word w (0 .. 7) of a block.
PN_HOST_DEVICE inline std::uint32_t load_word(const std::uint8_t* block, int w) noexcept {
  return load_u32(block + 2 + 4 * w);
}
// The fp16 bits of a block's scale.
PN_HOST_DEVICE inline std::uint16_t load_scale(const std::uint8_t* block) noexcept {
  return detail::load_readonly<std::uint16_t>(block);
}

// ---- Codes as floating-point numbers, by one AND each ----
//
// A code n that is left where it lies, its neighbours masked away, is the subnormal number n * 2^(place - 24) in fp16
// and n * 2^(place - 149) in fp32, which multiply-adds take at full speed and exactly. So the activation is multiplied
// by 2^-place beforehand, once for all rows, and the zero point is subtracted for a whole block at once:
//   sum of (n - z) * x = 2^24 * (sum of [n * 2^(place - 24)] * [x * 2^-place]) - z * sum of x

// Pairs of codes in a word: 5 (pn3t) or 4 (pn4t).
template <class T>
inline constexpr std::size_t pairs_per_word = T::codes_per_word / 2;

// The place of pair j among what `codes_as_half2` gives: both halves of pair j are n * 2^(half_place<T>(j) - 24).
template <class T>
PN_HOST_DEVICE constexpr int half_place(int j) noexcept {
  return T::bits == 3 ? (j == 4 ? 6 : 3 * (j & 1)) : 4 * (j & 1);
}
// All codes of a word as pairs of fp16 bits, the even element in the low half.
template <class T>
PN_HOST_DEVICE inline void codes_as_half2(std::uint32_t word, std::uint32_t (&pairs)[pairs_per_word<T>]) noexcept {
  const std::uint32_t upper = word >> (T::bits == 3 ? 6 : 8);  // pairs 2 and up
  for (std::size_t j = 0; j < pairs_per_word<T>; ++j)
    pairs[j] = (j < 2 ? word : upper) &
               (static_cast<std::uint32_t>(T::max_code) * 0x00010001u << half_place<T>(static_cast<int>(j)));
}

// The place of element e (0 .. codes_per_word - 1) as `code_as_float` gives it: n * 2^(float_place<T>(e) - 149).
template <class T>
PN_HOST_DEVICE constexpr int float_place(int e) noexcept {
  const int place = T::bits * (e >> 1);  // in its half of the word
  return (e & 1) != 0 && place + 16 + T::bits <= 23 ? place + 16 : place;
}
// Element e of a word as the bits of an fp32 number; `upper` is word >> 16. One AND.
template <class T>
PN_HOST_DEVICE inline std::uint32_t code_as_float(std::uint32_t word, std::uint32_t upper, int e) noexcept {
  const bool moved = (e & 1) != 0 && float_place<T>(e) < 16;
  return (moved ? upper : word) & (static_cast<std::uint32_t>(T::max_code) << float_place<T>(e));
}

// ---- Weights ----

// Pair j of a word without its scale: n - z of elements 2j and 2j + 1, exact in fp16. Three instructions or fewer.
template <class T>
PN_HOST_DEVICE inline __half2 centred_half2(std::uint32_t word, int j) noexcept {
  // With the exponent of 1024 above them the codes are 1024 + n * 2^place.
  const int place = half_place<T>(j);
  const std::uint32_t part = j < 2 ? word : word >> (T::bits == 3 ? 6 : 8);
  const std::uint32_t bits = (part & (static_cast<std::uint32_t>(T::max_code) * 0x00010001u << place)) | 0x64006400u;
  const float unit = 1.0f / static_cast<float>(1 << place);
  return __hadd2(__hmul2(half2_of(bits), __float2half2_rn(unit)),
                 __float2half2_rn(-1024.0f * unit - static_cast<float>(T::zero_point)));
}

// Element e of a word under scale d: exact in fp32, the number of pn::decode_code.
template <class T>
PN_HOST_DEVICE inline float weight(float d, std::uint32_t word, int e) noexcept {
  return pn::decode_code<T>(d, static_cast<int>(word >> pn::code_shift<T>(static_cast<std::size_t>(e))) & T::max_code);
}

// ---- The two layouts of a matrix (pncuda.h) ----

inline constexpr int tile_rows = 16;                                      // of a tile, and of a group
inline constexpr int tile_blocks = 16;                                    // of a row of a tile
inline constexpr int block_bytes = 34;                                    // of either type
inline constexpr int tile_bytes = tile_rows * tile_blocks * block_bytes;  // 8704
inline constexpr int tile_row_bytes = tile_blocks * 32;                   // words of one row of a tile
inline constexpr int tile_scales = tile_rows * tile_row_bytes;            // where a tile's scales begin

// A matrix of blocks in memory. Native: row r begins at data + r * row_stride.
//
// Repacked: 16 rows at a time ("group") take the bytes that they take in native form. First their full tiles, one after
// another: for each of the 16 rows 32 x 16 bytes, item lane = 4 * p + t holding words 2t and 2t + 1 of block 2p and
// then of block 2p + 1; after the rows the scales of blocks 2p and 2p + 1, four bytes, of row 0 .. 15, for p = 0 .. 7.
// Then the blocks that fill no tile, in native form, row after row. Rows that fill no group follow in native form.
struct Matrix {
  const std::uint8_t* data;  // a multiple of 2, of a repacked matrix of 16
  std::int64_t rows;         // n
  std::int64_t row_stride;   // bytes; of a repacked matrix blocks * 34
  std::int32_t blocks;       // of a row
  bool repacked;             // or native
};

// Words 2t, 2t + 1 of blocks 2p and 2p + 1 of a row, and the two scales (that of block 2p in the low half).
struct Quarters {
  std::uint32_t words[4];  // of block 2p, then of block 2p + 1
  std::uint32_t scales;    // two fp16
};

// From native blocks: `block` is block 2p; of it and those behind it in the row `blocks` (any number) exist. Those that
// do not give zeros.
PN_HOST_DEVICE inline Quarters load_quarters(const std::uint8_t* block, int blocks, int t) noexcept {
  Quarters q = {};
  const std::uint8_t* const words = block + 2 + 8 * t;
  if (blocks > 0) {
    q.words[0] = load_u32(words);
    q.words[1] = load_u32(words + 4);
    q.scales = load_scale(block);
  }
  if (blocks > 1) {
    q.words[2] = load_u32(words + block_bytes);
    q.words[3] = load_u32(words + block_bytes + 4);
    q.scales |= static_cast<std::uint32_t>(load_scale(block + block_bytes)) << 16;
  }
  return q;
}

// Where a block of a matrix lies: its scale (two bytes) and its words 0 .. 7. In a tile words 2t and 2t + 1 lie
// together, `step` bytes from quarter to quarter.
struct BlockPlace {
  std::int64_t scale;  // in bytes from the matrix
  std::int64_t words;  // word 0
  int step;            // bytes
  // Where word w lies.
  PN_HOST_DEVICE std::int64_t word(int w) const noexcept { return words + (w >> 1) * step + 4 * (w & 1); }
};
// Of a block of a row, in either layout.
PN_HOST_DEVICE inline BlockPlace block_place(const Matrix& m, std::int64_t row, std::int32_t block) noexcept {
  std::int64_t at = row * m.row_stride + static_cast<std::int64_t>(block) * block_bytes;
  if (m.repacked && row < m.rows / tile_rows * tile_rows) {
    const int r = static_cast<int>(row % tile_rows);
    const std::int32_t tile = block / tile_blocks;
    const std::int64_t group = (row - r) * m.row_stride;
    const std::int64_t tile_at = group + static_cast<std::int64_t>(tile) * tile_bytes;
    if (tile < m.blocks / tile_blocks) {
      const int b = block % tile_blocks;
      return {tile_at + tile_scales + (b >> 1) * (4 * tile_rows) + 4 * r + 2 * (b & 1),
              tile_at + r * tile_row_bytes + (b >> 1) * 64 + 8 * (b & 1), 16};
    }
    const int rest = m.blocks % tile_blocks;
    at = tile_at + static_cast<std::int64_t>(r * rest + block % tile_blocks) * block_bytes;
  }
  return {at, at + 2, 8};
}

}  // namespace pncuda

#endif  // PNCUDA_DECODE_PN_CUH
