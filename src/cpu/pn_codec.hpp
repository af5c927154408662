// PN on vectors: dequantizing and validating. Written in the words of simd_*.hpp.
#pragma once

#include "elements.hpp"

namespace pn::cpu::PN_CPU_ISA {

// Where the elements of a block are, in the order of memory: the word of each, and its bit in the word.
template <class T>
struct Places {
  alignas(64) std::int32_t word[T::block_size];
  alignas(64) std::int32_t bit[T::block_size];
  constexpr Places() : word(), bit() {
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const std::size_t t = e % T::codes_per_word;
      word[e] = static_cast<std::int32_t>(e / T::codes_per_word);
      bit[e] = static_cast<std::int32_t>(T::bits * (t / 2) + 16 * (t % 2));
    }
  }
};
template <class T>
static constexpr Places<T> places;

template <class T>
static void dequantize(const Bytes* in, std::size_t blocks, Bytes* out, Element element) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* block = in + b * sizeof(Block34);
    const F32 d = set_half(block);
    const BlockWords words = load_block_words(block);
    for (std::size_t e = 0; e < T::block_size; e += f32_lanes) {
      const F32 w = weights_at<T>(words, d, places<T>.word + e, places<T>.bit + e);
      store_as(out + (b * T::block_size + e) * bytes_of_one(element), w, element);
    }
  }
}

// Adds the squares of four or eight .. doubles, times g.
PN_CPU_INLINE void add_squares(double* sums, F64 v, const double* g) {
  const F64 square = v * v;
  store_f64(sums, load_f64(sums) + (g == nullptr ? square : load_f64(g) * square));
}

template <class T>
static void error(const Bytes* weights, Element element, std::size_t blocks, const double* importance, const Bytes* in,
                  double* sums) {
  constexpr std::size_t half = f32_lanes / 2;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* block = in + b * sizeof(Block34);
    const F32 d = set_half(block);
    const BlockWords words = load_block_words(block);
    for (std::size_t e = 0; e < T::block_size; e += f32_lanes) {
      const F32 w = load_weights(weights, element, b * T::block_size + e);
      const F32 v = weights_at<T>(words, d, places<T>.word + e, places<T>.bit + e);
      const double* g = importance == nullptr ? nullptr : importance + b * T::block_size + e;
      double* at = sums + e % 16;
      add_squares(at, first_f64(w) - first_f64(v), g);
      add_squares(at + half, second_f64(w) - second_f64(v), g == nullptr ? g : g + half);
      add_squares(at + 16, first_f64(w), g);
      add_squares(at + 16 + half, second_f64(w), g == nullptr ? g : g + half);
    }
  }
}

template <class T>
static bool valid(const Bytes* in, std::size_t blocks) {
  const Bits reserved = set_u32(T::reserved_mask);
  Bits seen = set_u32(0);
  unsigned scales = 0;  // bit 15 is set once an exponent is all ones
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* block = in + b * sizeof(Block34);
    __builtin_prefetch(block + 60 * sizeof(Block34));
    std::uint16_t d = 0;
    __builtin_memcpy(&d, block, sizeof d);
    scales |= (d & 0x7C00u) + 0x0400u;
    if constexpr (T::reserved_mask != 0)
      for (std::size_t part = 0; part < vectors_per_block; ++part) seen = bits_or(seen, load_words(block, part));
  }
  return (scales & 0x8000u) == 0 && !any_bit(seen, reserved);
}

}  // namespace pn::cpu::PN_CPU_ISA
