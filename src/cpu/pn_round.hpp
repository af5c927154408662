// Rounding activations for PN. Written in the words of simd_*.hpp; the bits of baseline.cpp.
#pragma once

#include "kernels.hpp"

namespace pn::cpu::PN_CPU_ISA {

// The largest magnitude of n floats at any address, n a multiple of a vector; a NaN when one of them is not finite.
PN_CPU_INLINE float largest_of(const Bytes* x, std::size_t n) {
  F32 largest = zero_f32();
  F32 zero = zero_f32();
  for (std::size_t e = 0; e < n; e += f32_lanes) {
    const F32 v = load_f32(x + 4 * e);
    largest = max(largest, absolute(v));
    zero = fma(v, zero_f32(), zero);
  }
  return largest_lane(largest) + sum_by_halves(zero);
}

template <class T>
static float round_i16(const Bytes* x, std::int32_t* q) {
  const double amax = static_cast<double>(largest_of(x, T::block_size));
  const F64 inverse = set_f64(amax > 0 ? 32767.0 / amax : 0.0);
  for (std::size_t e = 0; e < T::block_size; e += f32_lanes) {
    const F32 v = load_f32(x + 4 * e);
    store_bits(q + e, to_nearest_i32(first_f64(v) * inverse, second_f64(v) * inverse));
  }
  return static_cast<float>(amax / 32767.0);
}

static float round_q8_0(const Bytes* x, std::int32_t* q) {
  const float d = largest_of(x, 32) / 127.0f;
  const F32 inverse = set_f32(d > 0x1p-128f ? 1.0f / d : 0.0f);
  for (std::size_t e = 0; e < 32; e += f32_lanes) {
    const F32 scaled = load_f32(x + 4 * e) * inverse;
    const Bits whole = truncate(scaled);
    const F32 rest = scaled - to_f32(whole);
    store_bits(q + e, add_u32(whole, truncate(rest + rest)));  // halves away from 0
  }
  alignas(64) Bytes half[2 * f32_lanes];
  alignas(64) float scale[f32_lanes];
  store_f16(half, set_f32(d));
  store_f32(scale, load_f16(half));
  return scale[0];
}

}  // namespace pn::cpu::PN_CPU_ISA
