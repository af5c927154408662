// How prepared activations lie in memory: the one place that both sides, prepare.cpp and the kernels, take it from. A
// PN block is eight words; its codes come out of a kernel word by word, so x is laid out in the order
// "all words' first code, all words' second code, ..". All parts of a token are aligned to 64 bytes.
#pragma once

#include <pn/cpu.hpp>

// Of every function here and in kernels.hpp that kernels call: files compiled for an instruction set must not give the
// linker a copy of it to choose, not even without optimisation.
#define PN_CPU_INLINED __attribute__((always_inline))

namespace pn::cpu {

using Bytes = std::uint8_t;

PN_CPU_INLINED constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept { return (n + to - 1) / to * to; }

// Activations::f32, PN: float [block][code of the word][word].

// Activations::i16, PN: three arrays one behind the other, each of so many blocks that a vector of them can be loaded;
// what is not there is 0.
//   x     int16 [two blocks][pair of the word][block][word][2]
//   sums  int32 [block]: -z * the sum of the block's x
//   scale float [block]
template <class T>
struct I16Layout {
  static constexpr std::size_t pairs = T::codes_per_word / 2;
  static constexpr std::size_t pair_bytes = 2 * words_per_block * 2 * sizeof(std::int16_t);  // of two blocks
  static constexpr std::size_t record_bytes = pairs * pair_bytes;
  std::size_t sums_at;
  std::size_t scale_at;
  std::size_t bytes;
  PN_CPU_INLINED constexpr explicit I16Layout(std::size_t blocks) noexcept
      : sums_at((blocks + 1) / 2 * record_bytes),
        scale_at(sums_at + round_up(blocks, 16) * sizeof(std::int32_t)),
        bytes(scale_at + round_up(blocks, 16) * sizeof(float)) {}
};

// Activations::q8_0, PN: one record for every pair of blocks (a missing second block is 0). In it each array has the
// eight words of the first block before those of the second, 4 bytes for each word:
//   x     int8 [array][16 words][4]
//   sums  int32 [array of sums][16 words]: -z * the sum of the x that the accumulator takes
//   scale float [array of sums][16 words]: d of the Q8_0 block that these x are from
// by_word, pn4t: two arrays, the low and the high nibbles of a word's bytes: codes 0 4 1 5 and 2 6 3 7; one sum.
// by_word, pn3t: A, B, C: codes 0 6 1 7, 2 8 3 9 and 4 - 5 -. A word may lie in two Q8_0 blocks, so there are two sets
// of arrays: of the first Q8_0 block (x of the other are 0) and of the second; two sums. by_four, pn3t: words come in
// twos, 20 codes in five fours, each inside one Q8_0 block; see Fours. Three arrays, and two sums: of the first two
// arrays and of the third.
enum class Q8Layout : std::uint8_t { by_word, by_four };

template <class T>
struct Q8Record {
  static constexpr std::size_t array_bytes = 64;
  PN_CPU_INLINED static constexpr std::size_t arrays(Q8Layout layout) {
    return T::bits == 4 ? 2 : (layout == Q8Layout::by_word ? 6 : 3);
  }
  static constexpr std::size_t sums = T::bits == 4 ? 1 : 2;
  PN_CPU_INLINED static constexpr std::size_t sums_at(Q8Layout layout) { return arrays(layout) * array_bytes; }
  PN_CPU_INLINED static constexpr std::size_t scale_at(Q8Layout layout) { return sums_at(layout) + sums * 64; }
  PN_CPU_INLINED static constexpr std::size_t bytes(Q8Layout layout) { return scale_at(layout) + sums * 64; }
};

// by_word: which code of its word byte i of a 4-byte lane holds; -1: none. Arrays: pn4t low, high; pn3t A, B, C.
template <class T>
constexpr int code_of_byte(std::size_t array, std::size_t i) noexcept {
  constexpr int of_pn4t[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}};
  constexpr int of_pn3t[3][4] = {{0, 6, 1, 7}, {2, 8, 3, 9}, {4, -1, 5, -1}};
  if constexpr (T::bits == 4)
    return of_pn4t[array][i];
  else
    return of_pn3t[array][i];
}

// by_four: which of the five fours of word pair q (0..7 of two blocks) lies in lane `half` (0, 1) of an array; -1:
// none. Arrays 0 and 1 go to one accumulator, so what they have in one lane is of one Q8_0 block.
constexpr int four_of_lane(std::size_t array, std::size_t q, std::size_t half) noexcept {
  // First four of the second Q8_0 block that 20 * q .. 20 * q + 19 reaches into, 5 when there is none.
  const std::size_t boundary = (32 - 20 * q % 32) / 4;
  const std::size_t first = boundary > 5 ? 5 : boundary;
  if (array == 2) {
    if (half == 1) return -1;
    return first == 3 ? 2 : (first == 1 ? 0 : 4);
  }
  if (first == 3) return static_cast<int>(half == 0 ? array : 3 + array);
  if (first == 1) return static_cast<int>(half == 0 ? 1 + array : 3 + array);
  return static_cast<int>(2 * half + array);
}

// Bytes of one token against PN blocks: the largest of what the instruction sets want.
template <class T>
constexpr std::size_t pn_token_bytes(Activations kind, std::size_t k) noexcept {
  const std::size_t blocks = k / T::block_size;
  switch (kind) {
    case Activations::f32: return round_up(4 * k, 64);
    case Activations::i16: return I16Layout<T>(blocks).bytes;
    case Activations::q8_0: return round_up(blocks, 2) / 2 * Q8Record<T>::bytes(Q8Layout::by_word);
  }
  return 0;
}

// A batch, PN: groups of 8 tokens, each a Prepared and behind it three arrays that hold the numbers of the 8 side by
// side (those of tokens that are not there are 0). Everything is in the order of the elements.
//   x     4 bytes [step][8]: a step is 1 float, 2 int16 or, in the order 0 2 1 3, 4 int8
//   scale float [segment][8], not for f32
//   sums  int32 [segment][8], q8_0 only: -z * the sum of the segment's x
// A segment is what shares one scale of x in a PN block: the whole block, but for q8_0 what lies in one Q8_0 block.
template <class T, Activations Kind>
struct BatchLayout {
  static constexpr std::size_t step_elements = Kind == Activations::f32 ? 1 : (Kind == Activations::i16 ? 2 : 4);
  static constexpr std::size_t steps = T::block_size / step_elements;  // of a block
  static constexpr std::size_t segments = Kind != Activations::q8_0 ? 1 : (T::bits == 4 ? 2 : 3);
  static constexpr std::size_t step_bytes = batch_tokens * 4;
  std::size_t scale_at;  // from the beginning of x
  std::size_t sums_at;
  std::size_t bytes;
  PN_CPU_INLINED constexpr explicit BatchLayout(std::size_t blocks) noexcept
      : scale_at(blocks * steps * step_bytes),
        sums_at(scale_at + (Kind == Activations::f32 ? 0 : blocks * segments * step_bytes)),
        bytes(round_up(sums_at + (Kind == Activations::q8_0 ? blocks * segments * step_bytes : 0), 64)) {}

  // The first step of segment `s` of block `b`; s == segments: the end.
  PN_CPU_INLINED static constexpr std::size_t first_step(std::size_t b, std::size_t s) noexcept {
    if (s == segments) return steps;
    // 80 weights begin at a multiple of 32 or 16 behind one: 32 + 32 + 16 or 16 + 32 + 32.
    return s * 8 - (s > 0 && T::bits == 3 && b % 2 != 0 ? 4 : 0);
  }
};

// Bytes of a group of a batch without its header.
template <class T>
constexpr std::size_t batch_group_bytes(Activations kind, std::size_t k) noexcept {
  const std::size_t blocks = k / T::block_size;
  switch (kind) {
    case Activations::f32: return BatchLayout<T, Activations::f32>(blocks).bytes;
    case Activations::i16: return BatchLayout<T, Activations::i16>(blocks).bytes;
    case Activations::q8_0: return BatchLayout<T, Activations::q8_0>(blocks).bytes;
  }
  return 0;
}

// BF16 and BF16_P12: x for the order of plain weights, and again for the order in which unpacked ones come out of a
// kernel: see p12_multiply.hpp. 64 more bytes, or what a tile reads of several tokens would share a few sets of the
// first-level cache.
constexpr std::size_t p12_token_bytes(std::size_t k) noexcept { return 8 * k + 64; }

}  // namespace pn::cpu
