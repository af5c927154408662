// The Hadamard rotation of activations. Written in the words of simd_*.hpp; the bits of pn::hadamard_activations.
#pragma once

#include "kernels.hpp"

namespace pn::cpu::PN_CPU_ISA {

// -0 in the lanes whose number has bit N set, 0 in the others.
template <int N>
struct Signs {
  alignas(64) std::uint32_t at[f32_lanes];
  constexpr Signs() : at() {
    for (std::size_t i = 0; i < f32_lanes; ++i) at[i] = (i & N) != 0 ? 0x80000000u : 0;
  }
};
template <int N>
static constexpr Signs<N> signs;

// Butterflies between lanes that are N apart: the first a + b, the second a - b.
template <int N>
PN_CPU_INLINE F32 cross_lanes(F32 v) {
  return exchange_lanes<N>(v) + as_floats(bits_xor(as_bits(v), load_bits(signs<N>.at)));
}

// One segment of b floats; out may be x.
static void rotate(const Bytes* x, std::size_t b, float scale, Bytes* out) {
  for (std::size_t j = 0; j < b; j += f32_lanes) {
    F32 v = cross_lanes<2>(cross_lanes<1>(load_f32(x + 4 * j)));
    if constexpr (f32_lanes > 4) v = cross_lanes<4>(v);
    if constexpr (f32_lanes > 8) v = cross_lanes<8>(v);
    store_f32(out + 4 * j, v);
  }
  for (std::size_t h = f32_lanes; h < b; h *= 2)
    for (std::size_t run = 0; run < b; run += 2 * h)
      for (std::size_t j = run; j < run + h; j += f32_lanes) {
        const F32 first = load_f32(out + 4 * j);
        const F32 second = load_f32(out + 4 * (j + h));
        store_f32(out + 4 * j, first + second);
        store_f32(out + 4 * (j + h), first - second);
      }
  for (std::size_t j = 0; j < b; j += f32_lanes) store_f32(out + 4 * j, load_f32(out + 4 * j) * set_f32(scale));
}

}  // namespace pn::cpu::PN_CPU_ISA
