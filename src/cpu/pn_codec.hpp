// PN on vectors: dequantizing and validating. Written in the words of simd_*.hpp.
#pragma once

#include "exact.hpp"

namespace pn::cpu::PN_CPU_ISA {

template <class T>
static void dequantize(const Bytes* in, std::size_t blocks, Bytes* out, Element element) {
  constexpr int vectors = static_cast<int>(T::block_size / f32_lanes);
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* block = in + b * sizeof(Block34);
    const F32 d = set_half(block);
    for (int i = 0; i < vectors; ++i) {
      const F32 w = weights_in_order<T>(block, d, i);
      const std::size_t at = b * T::block_size + static_cast<std::size_t>(i) * f32_lanes;
      switch (element) {
        case Element::f32: store_f32(out + 4 * at, w); break;
        case Element::f16: store_f16(out + 2 * at, w); break;
        case Element::bf16: store_bf16(out + 2 * at, w); break;
      }
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
    std::uint16_t d = 0;
    __builtin_memcpy(&d, block, sizeof d);
    scales |= (d & 0x7C00u) + 0x0400u;
    if constexpr (T::reserved_mask != 0)
      for (std::size_t part = 0; part < vectors_per_block; ++part) seen = bits_or(seen, load_words(block, part));
  }
  return (scales & 0x8000u) == 0 && !any_bit(seen, reserved);
}

}  // namespace pn::cpu::PN_CPU_ISA
