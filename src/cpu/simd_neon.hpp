// The vectors of NEON in the words that the kernels are written in: see simd_avx512.hpp, which says what each does.
// Only what Armv8.0 has: no dot products, no fp16 arithmetic.
#pragma once

#include <arm_neon.h>

#include "kernels.hpp"

#define PN_CPU_INLINE static inline __attribute__((always_inline))

namespace pn::cpu::PN_CPU_ISA {

// ---- Floats ----

using F32 = float32x4_t;
inline constexpr std::size_t vector_registers = 32;
inline constexpr std::size_t f32_lanes = 4;

PN_CPU_INLINE F32 zero_f32() { return vdupq_n_f32(0); }
PN_CPU_INLINE F32 set_f32(float v) { return vdupq_n_f32(v); }
PN_CPU_INLINE F32 load_f32(const void* p) {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PN_CPU_INLINE void store_f32(void* p, F32 v) { __builtin_memcpy(p, &v, sizeof v); }
PN_CPU_INLINE F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
PN_CPU_INLINE F32 minus_fma(F32 a, F32 b, F32 c) { return vfmsq_f32(c, a, b); }
PN_CPU_INLINE F32 min(F32 a, F32 b) { return vminq_f32(a, b); }
PN_CPU_INLINE F32 max(F32 a, F32 b) { return vmaxq_f32(a, b); }
PN_CPU_INLINE F32 absolute(F32 v) { return vabsq_f32(v); }
template <int N>
PN_CPU_INLINE F32 exchange_lanes(F32 v) {
  return N == 1 ? vrev64q_f32(v) : vextq_f32(v, v, 2);
}
// Sum of the lanes: lane i with lane i + 2, then i + 1.
PN_CPU_INLINE float sum_by_halves(F32 v) { return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v))); }
PN_CPU_INLINE float sum_zipped(F32 a, F32 b) { return sum_by_halves(a + b); }
PN_CPU_INLINE F32 sum_each(const F32 (&v)[4]) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }
PN_CPU_INLINE float largest_lane(F32 v) { return vmaxvq_f32(v); }
PN_CPU_INLINE float smallest_lane(F32 v) { return vminvq_f32(v); }
PN_CPU_INLINE std::uint32_t not_below(F32 a, F32 b) {
  return vaddvq_u32(vbicq_u32(uint32x4_t{1, 2, 4, 8}, vcltq_f32(a, b)));
}

PN_CPU_INLINE uint16x4_t load_4_u16(const void* p) {
  uint16x4_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PN_CPU_INLINE F32 load_f16(const void* p) { return vcvt_f32_f16(vreinterpret_f16_u16(load_4_u16(p))); }
PN_CPU_INLINE F32 load_bf16(const void* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(load_4_u16(p)), 16)); }
PN_CPU_INLINE F32 set_half(const Bytes* p) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, p, sizeof bits);
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)));
}
PN_CPU_INLINE void store_f16(void* p, F32 v) {
  const uint16x4_t bits = vreinterpret_u16_f16(vcvt_f16_f32(v));
  __builtin_memcpy(p, &bits, sizeof bits);
}
PN_CPU_INLINE void store_bf16(void* p, F32 v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  const uint16x4_t high = vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
  __builtin_memcpy(p, &high, sizeof high);
}

// ---- Doubles ----

using F64 = float64x2_t;

PN_CPU_INLINE F64 load_f64(const double* p) {
  F64 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PN_CPU_INLINE void store_f64(double* p, F64 v) { __builtin_memcpy(p, &v, sizeof v); }
PN_CPU_INLINE F64 first_f64(F32 v) { return vcvt_f64_f32(vget_low_f32(v)); }
PN_CPU_INLINE F64 second_f64(F32 v) { return vcvt_high_f64_f32(v); }
PN_CPU_INLINE F64 set_f64(double v) { return vdupq_n_f64(v); }

// ---- Integers of any width ----

using Bits = uint8x16_t;
inline constexpr std::size_t byte_lanes = 16;

PN_CPU_INLINE uint16x8_t as_u16(Bits v) { return vreinterpretq_u16_u8(v); }
PN_CPU_INLINE uint32x4_t as_u32(Bits v) { return vreinterpretq_u32_u8(v); }
PN_CPU_INLINE Bits of_u16(uint16x8_t v) { return vreinterpretq_u8_u16(v); }
PN_CPU_INLINE Bits of_u32(uint32x4_t v) { return vreinterpretq_u8_u32(v); }

PN_CPU_INLINE Bits load_bits(const void* p) {
  Bits v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PN_CPU_INLINE void store_bits(void* p, Bits v) { __builtin_memcpy(p, &v, sizeof v); }
PN_CPU_INLINE void stream_bits(void* p, Bits v) { store_bits(p, v); }  // there is no such store of one vector
PN_CPU_INLINE void end_of_stream() {}
PN_CPU_INLINE Bits set_u8(std::uint8_t v) { return vdupq_n_u8(v); }
PN_CPU_INLINE Bits set_u16(std::uint16_t v) { return of_u16(vdupq_n_u16(v)); }
PN_CPU_INLINE Bits set_u32(std::uint32_t v) { return of_u32(vdupq_n_u32(v)); }
PN_CPU_INLINE Bits set_per_16(const std::uint8_t (&bytes)[16]) { return load_bits(bytes); }
PN_CPU_INLINE Bits bits_and(Bits a, Bits b) { return vandq_u8(a, b); }
PN_CPU_INLINE Bits bits_or(Bits a, Bits b) { return vorrq_u8(a, b); }
PN_CPU_INLINE Bits bits_xor(Bits a, Bits b) { return veorq_u8(a, b); }
PN_CPU_INLINE Bits select(Bits mask, Bits a, Bits b) { return vbslq_u8(mask, a, b); }
PN_CPU_INLINE Bits and_or(Bits mask, Bits a, Bits b) { return vorrq_u8(vandq_u8(mask, a), b); }
PN_CPU_INLINE Bits add_u8(Bits a, Bits b) { return vaddq_u8(a, b); }
PN_CPU_INLINE Bits subtract_u8(Bits a, Bits b) { return vsubq_u8(a, b); }
PN_CPU_INLINE Bits subtract_u16(Bits a, Bits b) { return of_u16(vsubq_u16(as_u16(a), as_u16(b))); }
PN_CPU_INLINE Bits add_u32(Bits a, Bits b) { return of_u32(vaddq_u32(as_u32(a), as_u32(b))); }
template <int N>
PN_CPU_INLINE Bits shift_left_u16(Bits v) {
  return of_u16(vshlq_n_u16(as_u16(v), N));
}
template <int N>
PN_CPU_INLINE Bits shift_right_u16(Bits v) {
  return of_u16(vshrq_n_u16(as_u16(v), N));
}
PN_CPU_INLINE Bits min_u16(Bits a, Bits b) { return of_u16(vminq_u16(as_u16(a), as_u16(b))); }
PN_CPU_INLINE Bits max_u16(Bits a, Bits b) { return of_u16(vmaxq_u16(as_u16(a), as_u16(b))); }
PN_CPU_INLINE unsigned smallest_u16(Bits v) { return vminvq_u16(as_u16(v)); }
PN_CPU_INLINE unsigned largest_u16(Bits v) { return vmaxvq_u16(as_u16(v)); }
PN_CPU_INLINE bool has_zero_u8(Bits v) { return vminvq_u8(v) == 0; }
PN_CPU_INLINE Bits as_bits(F32 v) { return vreinterpretq_u8_f32(v); }
PN_CPU_INLINE F32 as_floats(Bits v) { return vreinterpretq_f32_u8(v); }
PN_CPU_INLINE Bits join_pairs(Bits v) {
  return vorrq_u8(v, vreinterpretq_u8_u64(vshrq_n_u64(vreinterpretq_u64_u8(v), 16)));
}
PN_CPU_INLINE bool any_bit(Bits v, Bits mask) { return vmaxvq_u32(as_u32(vandq_u8(v, mask))) != 0; }

PN_CPU_INLINE Bits look_up(Bits table, Bits at) { return vqtbl1q_u8(table, at); }
PN_CPU_INLINE Bits look_up_low(Bits table, Bits at) { return look_up(table, at); }
PN_CPU_INLINE Bits zip_low_u8(Bits a, Bits b) { return vzip1q_u8(a, b); }
PN_CPU_INLINE Bits zip_high_u8(Bits a, Bits b) { return vzip2q_u8(a, b); }
PN_CPU_INLINE Bits zip_low_u16(Bits a, Bits b) { return of_u16(vzip1q_u16(as_u16(a), as_u16(b))); }
PN_CPU_INLINE Bits zip_high_u16(Bits a, Bits b) { return of_u16(vzip2q_u16(as_u16(a), as_u16(b))); }
PN_CPU_INLINE Bits narrow_u16(Bits a, Bits b) { return vuzp1q_u8(a, b); }  // of numbers below 256
PN_CPU_INLINE Bits join_nibbles(Bits v) { return select(set_u16(0x000F), v, shift_right_u16<4>(v)); }

// A vector is 128 bits: there is nothing to spread or gather.
PN_CPU_INLINE Bits spread_w(Bits v) { return v; }
PN_CPU_INLINE Bits spread_ww(Bits v) { return v; }
PN_CPU_INLINE Bits gather_w(Bits v) { return v; }
PN_CPU_INLINE Bits spread_q(Bits v) { return v; }
PN_CPU_INLINE Bits gather_q(Bits v) { return v; }

PN_CPU_INLINE F32 even_bf16(Bits v) { return vreinterpretq_f32_u32(vshlq_n_u32(as_u32(v), 16)); }
PN_CPU_INLINE F32 odd_bf16(Bits v) { return vreinterpretq_f32_u8(vandq_u8(v, set_u32(0xFFFF0000u))); }
PN_CPU_INLINE F32 first_bf16(Bits v) { return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), as_u16(v))); }
PN_CPU_INLINE F32 second_bf16(Bits v) { return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), as_u16(v))); }
PN_CPU_INLINE void split_even_odd(F32 a, F32 b, F32& even, F32& odd) {
  even = vuzp1q_f32(a, b);
  odd = vuzp2q_f32(a, b);
}

// ---- The eight words of a PN block ----

using Words = Bits;  // half of a block

inline constexpr std::size_t codes_at_once = 1;
inline constexpr std::size_t vectors_per_block = 2;
PN_CPU_INLINE Words load_words(const Bytes* block, std::size_t part) { return load_bits(block + 2 + 16 * part); }

// Words with the highest bit of each code flipped, so that the code as a signed number is n - z.
template <class T>
PN_CPU_INLINE uint32x4_t with_signed_codes(Words words) {
  return as_u32(words) ^ (T::zero_point * (T::bits == 4 ? 0x11111111u : 0x12491249u));
}
// The signed number in every lane's highest bits as a float; bits below may be set.
template <class T>
PN_CPU_INLINE F32 level_of(uint32x4_t v) {
  return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v), 32 - T::bits));
}
template <class T>
PN_CPU_INLINE F32 levels(Words words, int t) {
  return level_of<T>(with_signed_codes<T>(words)
                     << static_cast<std::uint32_t>(32 - T::bits * (t / 2 + 1) - 16 * (t % 2)));
}
using BlockWords = uint8x16x2_t;
PN_CPU_INLINE BlockWords load_block_words(const Bytes* block) { return {{load_words(block, 0), load_words(block, 1)}}; }
template <class T>
PN_CPU_INLINE F32 weights_at(const BlockWords& words, F32 d, const std::int32_t* word, const std::int32_t* bit) {
  const uint8x16x2_t codes = {{of_u32(with_signed_codes<T>(words.val[0])), of_u32(with_signed_codes<T>(words.val[1]))}};
  // Bytes 4 * word .. 4 * word + 3 of a block's words.
  const uint32x4_t bytes = vmlaq_u32(vdupq_n_u32(0x03020100), as_u32(load_bits(word)), vdupq_n_u32(0x04040404));
  const int32x4_t shifts = vsubq_s32(vdupq_n_s32(32 - T::bits), vreinterpretq_s32_u8(load_bits(bit)));
  return d * level_of<T>(vshlq_u32(as_u32(vqtbl2q_u8(codes, of_u32(bytes))), shifts));
}

PN_CPU_INLINE void load_each_word(const Bytes* const (&blocks)[4], Bits (&words)[words_per_block]) {
  for (std::size_t part = 0; part < 2; ++part) {
    uint32x4_t v[4];
    for (std::size_t j = 0; j < 4; ++j) v[j] = as_u32(load_words(blocks[j], part));
    const uint64x2_t low01 = vreinterpretq_u64_u32(vzip1q_u32(v[0], v[1]));
    const uint64x2_t low23 = vreinterpretq_u64_u32(vzip1q_u32(v[2], v[3]));
    const uint64x2_t high01 = vreinterpretq_u64_u32(vzip2q_u32(v[0], v[1]));
    const uint64x2_t high23 = vreinterpretq_u64_u32(vzip2q_u32(v[2], v[3]));
    words[4 * part] = vreinterpretq_u8_u64(vzip1q_u64(low01, low23));
    words[4 * part + 1] = vreinterpretq_u8_u64(vzip2q_u64(low01, low23));
    words[4 * part + 2] = vreinterpretq_u8_u64(vzip1q_u64(high01, high23));
    words[4 * part + 3] = vreinterpretq_u8_u64(vzip2q_u64(high01, high23));
  }
}

inline constexpr std::size_t steps_per_record = 4;
PN_CPU_INLINE Words load_step(const Bytes* record, std::size_t step, bool) {
  return load_words(record + step / 2 * sizeof(Block34), step % 2);
}
PN_CPU_INLINE F32 scales_of_step(const float* d, std::size_t step) { return vdupq_n_f32(d[step / 2]); }
template <int N>
PN_CPU_INLINE Bits shift_right_u32(Bits v) {
  return of_u32(vshrq_n_u32(as_u32(v), N));
}
PN_CPU_INLINE F32 to_f32(Bits v) { return vcvtq_f32_s32(vreinterpretq_s32_u8(v)); }
PN_CPU_INLINE Bits truncate(F32 v) { return vreinterpretq_u8_s32(vcvtq_s32_f32(v)); }
PN_CPU_INLINE Bits to_nearest_i32(F64 first, F64 second) {
  return vreinterpretq_u8_s32(vcombine_s32(vmovn_s64(vcvtnq_s64_f64(first)), vmovn_s64(vcvtnq_s64_f64(second))));
}
inline constexpr std::size_t vectors_of_sums = 4;
PN_CPU_INLINE Bits sum_blocks(const Bits (&v)[4]) {
  return of_u32(vpaddq_u32(vpaddq_u32(as_u32(v[0]), as_u32(v[1])), vpaddq_u32(as_u32(v[2]), as_u32(v[3]))));
}

// Products of bytes, 16 bits each: of the first eight and of the others. At most 3 * 15 * 128 in the sum of three.
struct Products {
  int16x8_t low, high;
};
PN_CPU_INLINE Products multiply_u8(Bits u, Bits x) {
  const int8x16_t a = vreinterpretq_s8_u8(u), b = vreinterpretq_s8_u8(x);
  return {vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)};
}
PN_CPU_INLINE Products add_products(Products sum, Bits u, Bits x) {
  const int8x16_t a = vreinterpretq_s8_u8(u), b = vreinterpretq_s8_u8(x);
  return {vmlal_s8(sum.low, vget_low_s8(a), vget_low_s8(b)), vmlal_high_s8(sum.high, a, b)};
}
PN_CPU_INLINE Bits sum_fours(Bits sum, Products p) {
  return vreinterpretq_u8_s32(vpadalq_s16(vreinterpretq_s32_u8(sum), vpaddq_s16(p.low, p.high)));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1) {
  return sum_fours(sum, add_products(multiply_u8(u0, x0), u1, x1));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1, Bits u2, Bits x2) {
  return sum_fours(sum, add_products(add_products(multiply_u8(u0, x0), u1, x1), u2, x2));
}
PN_CPU_INLINE Bits multiply_i16(Bits u, Bits x) {
  const int16x8_t a = vreinterpretq_s16_u8(u), b = vreinterpretq_s16_u8(x);
  return vreinterpretq_u8_s32(vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
PN_CPU_INLINE Bits dot_i16(Bits sum, Bits u, Bits x) { return add_u32(sum, multiply_i16(u, x)); }

}  // namespace pn::cpu::PN_CPU_ISA
