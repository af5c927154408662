// The vectors of AVX2 in the words that the kernels are written in: see simd_avx512.hpp, which says what each does.
#pragma once

#include <immintrin.h>

#include "kernels.hpp"

#define PN_CPU_INLINE static inline __attribute__((always_inline))

namespace pn::cpu::PN_CPU_ISA {

// ---- Floats ----

using F32 = __m256;
inline constexpr std::size_t vector_registers = 16;
inline constexpr std::size_t f32_lanes = 8;

PN_CPU_INLINE F32 zero_f32() { return _mm256_setzero_ps(); }
PN_CPU_INLINE F32 set_f32(float v) { return _mm256_set1_ps(v); }
PN_CPU_INLINE F32 load_f32(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
PN_CPU_INLINE void store_f32(void* p, F32 v) { _mm256_storeu_ps(static_cast<float*>(p), v); }
PN_CPU_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
PN_CPU_INLINE F32 minus_fma(F32 a, F32 b, F32 c) { return _mm256_fnmadd_ps(a, b, c); }
PN_CPU_INLINE F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
PN_CPU_INLINE F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
PN_CPU_INLINE F32 absolute(F32 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
template <int N>
PN_CPU_INLINE F32 exchange_lanes(F32 v) {
  if constexpr (N == 1) return _mm256_permute_ps(v, 0xB1);
  if constexpr (N == 2) return _mm256_permute_ps(v, 0x4E);
  return _mm256_permute2f128_ps(v, v, 0x01);
}
PN_CPU_INLINE __m128 add_halves(F32 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }
PN_CPU_INLINE float sum_zipped(F32 a, F32 b) {
  const __m128 c = _mm_add_ps(add_halves(a), add_halves(b));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
// Sum of the lanes: lane i with lane i + 4, then i + 2, i + 1.
PN_CPU_INLINE float sum_by_halves(F32 v) {
  __m128 b = add_halves(v);
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
PN_CPU_INLINE F32 sum_each(const F32 (&v)[8]) {
  F32 a[4], b[2];
  for (std::size_t i = 0; i < 4; ++i)
    a[i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  for (std::size_t i = 0; i < 2; ++i) {
    const __m256d even = _mm256_castps_pd(a[2 * i]), odd = _mm256_castps_pd(a[2 * i + 1]);
    b[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)) + _mm256_castpd_ps(_mm256_unpackhi_pd(even, odd));
  }
  return _mm256_permute2f128_ps(b[0], b[1], 0x20) + _mm256_permute2f128_ps(b[0], b[1], 0x31);
}
PN_CPU_INLINE float largest_lane(F32 v) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
PN_CPU_INLINE float smallest_lane(F32 v) {
  __m128 b = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  b = _mm_min_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_min_ss(b, _mm_movehdup_ps(b)));
}
PN_CPU_INLINE std::uint32_t not_below(F32 a, F32 b) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ)));
}

PN_CPU_INLINE F32 load_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
PN_CPU_INLINE F32 load_bf16(const void* p) {
  const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
PN_CPU_INLINE F32 set_half(const Bytes* p) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(bits)));
}
PN_CPU_INLINE void store_f16(void* p, F32 v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
PN_CPU_INLINE void store_bf16(void* p, F32 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}

// ---- Doubles ----

using F64 = __m256d;  // half as many

PN_CPU_INLINE F64 load_f64(const double* p) { return _mm256_loadu_pd(p); }
PN_CPU_INLINE void store_f64(double* p, F64 v) { _mm256_storeu_pd(p, v); }
PN_CPU_INLINE F64 first_f64(F32 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
PN_CPU_INLINE F64 second_f64(F32 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
PN_CPU_INLINE F64 set_f64(double v) { return _mm256_set1_pd(v); }

// ---- Integers of any width ----

using Bits = __m256i;
inline constexpr std::size_t byte_lanes = 32;

PN_CPU_INLINE Bits load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PN_CPU_INLINE void store_bits(void* p, Bits v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
PN_CPU_INLINE void stream_bits(void* p, Bits v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
PN_CPU_INLINE void end_of_stream() { _mm_sfence(); }
PN_CPU_INLINE Bits set_u8(std::uint8_t v) { return _mm256_set1_epi8(static_cast<char>(v)); }
PN_CPU_INLINE Bits set_u16(std::uint16_t v) { return _mm256_set1_epi16(static_cast<short>(v)); }
PN_CPU_INLINE Bits set_u32(std::uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
PN_CPU_INLINE Bits set_per_16(const std::uint8_t (&bytes)[16]) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
PN_CPU_INLINE Bits bits_and(Bits a, Bits b) { return _mm256_and_si256(a, b); }
PN_CPU_INLINE Bits bits_or(Bits a, Bits b) { return _mm256_or_si256(a, b); }
PN_CPU_INLINE Bits bits_xor(Bits a, Bits b) { return _mm256_xor_si256(a, b); }
PN_CPU_INLINE Bits select(Bits mask, Bits a, Bits b) {
  return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
PN_CPU_INLINE Bits and_or(Bits mask, Bits a, Bits b) { return _mm256_or_si256(_mm256_and_si256(mask, a), b); }
PN_CPU_INLINE Bits add_u8(Bits a, Bits b) { return _mm256_add_epi8(a, b); }
PN_CPU_INLINE Bits subtract_u8(Bits a, Bits b) { return _mm256_sub_epi8(a, b); }
PN_CPU_INLINE Bits subtract_u16(Bits a, Bits b) { return _mm256_sub_epi16(a, b); }
PN_CPU_INLINE Bits add_u32(Bits a, Bits b) { return _mm256_add_epi32(a, b); }
template <int N>
PN_CPU_INLINE Bits shift_left_u16(Bits v) {
  return _mm256_slli_epi16(v, N);
}
template <int N>
PN_CPU_INLINE Bits shift_right_u16(Bits v) {
  return _mm256_srli_epi16(v, N);
}
PN_CPU_INLINE Bits min_u16(Bits a, Bits b) { return _mm256_min_epu16(a, b); }
PN_CPU_INLINE Bits max_u16(Bits a, Bits b) { return _mm256_max_epu16(a, b); }
PN_CPU_INLINE unsigned smallest_u16(Bits v) {
  const __m128i b = _mm_min_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return static_cast<unsigned>(_mm_cvtsi128_si32(_mm_minpos_epu16(b))) & 0xFFFFu;
}
PN_CPU_INLINE unsigned largest_u16(Bits v) { return 0xFFFFu - smallest_u16(_mm256_xor_si256(v, set_u32(0xFFFFFFFFu))); }
PN_CPU_INLINE bool has_zero_u8(Bits v) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_setzero_si256())) != 0;
}
PN_CPU_INLINE Bits as_bits(F32 v) { return _mm256_castps_si256(v); }
PN_CPU_INLINE F32 as_floats(Bits v) { return _mm256_castsi256_ps(v); }
PN_CPU_INLINE Bits join_pairs(Bits v) { return _mm256_or_si256(v, _mm256_srli_epi64(v, 16)); }
PN_CPU_INLINE bool any_bit(Bits v, Bits mask) { return _mm256_testz_si256(v, mask) == 0; }

PN_CPU_INLINE Bits look_up(Bits table, Bits at) { return _mm256_shuffle_epi8(table, at); }
PN_CPU_INLINE Bits look_up_low(Bits table, Bits at) { return look_up(table, at); }
PN_CPU_INLINE Bits zip_low_u8(Bits a, Bits b) { return _mm256_unpacklo_epi8(a, b); }
PN_CPU_INLINE Bits zip_high_u8(Bits a, Bits b) { return _mm256_unpackhi_epi8(a, b); }
PN_CPU_INLINE Bits zip_low_u16(Bits a, Bits b) { return _mm256_unpacklo_epi16(a, b); }
PN_CPU_INLINE Bits zip_high_u16(Bits a, Bits b) { return _mm256_unpackhi_epi16(a, b); }
PN_CPU_INLINE Bits narrow_u16(Bits a, Bits b) { return _mm256_packus_epi16(a, b); }
PN_CPU_INLINE Bits join_nibbles(Bits v) { return _mm256_maddubs_epi16(v, _mm256_set1_epi16(0x1001)); }

PN_CPU_INLINE Bits spread_w(Bits v) {
  return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}
PN_CPU_INLINE Bits spread_ww(Bits v) {
  return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
}
PN_CPU_INLINE Bits gather_w(Bits v) {
  return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
PN_CPU_INLINE Bits spread_q(Bits v) { return _mm256_permute4x64_epi64(v, 0xD8); }
PN_CPU_INLINE Bits gather_q(Bits v) { return _mm256_permute4x64_epi64(v, 0xD8); }

PN_CPU_INLINE F32 even_bf16(Bits v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
PN_CPU_INLINE F32 odd_bf16(Bits v) { return _mm256_castsi256_ps(_mm256_and_si256(v, set_u32(0xFFFF0000u))); }
PN_CPU_INLINE F32 first_bf16(Bits v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), 16));
}
PN_CPU_INLINE F32 second_bf16(Bits v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)), 16));
}
PN_CPU_INLINE void split_even_odd(F32 a, F32 b, F32& even, F32& odd) {
  const __m256 e = _mm256_shuffle_ps(a, b, 0x88);  // in every 128 bits: a0 a2 b0 b2
  const __m256 o = _mm256_shuffle_ps(a, b, 0xDD);
  even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xD8));
  odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xD8));
}

// ---- The eight words of a PN block ----

using Words = __m256i;

inline constexpr std::size_t codes_at_once = 1;
inline constexpr std::size_t vectors_per_block = 1;
PN_CPU_INLINE Words load_words(const Bytes* block, std::size_t) { return load_bits(block + 2); }

// Code n of every lane's low bits as the float n - z; bits above the code may be set.
template <class T>
PN_CPU_INLINE F32 level_of(Words v) {
  if constexpr (T::bits == 3) return _mm256_permutevar8x32_ps(_mm256_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3), v);
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(bits_and(v, set_u32(T::max_code)), set_u32(T::zero_point)));
}
template <class T>
PN_CPU_INLINE F32 levels(Words words, int t) {
  return level_of<T>(_mm256_srli_epi32(words, T::bits * (t / 2) + 16 * (t % 2)));
}
using BlockWords = __m256i;
PN_CPU_INLINE BlockWords load_block_words(const Bytes* block) { return load_words(block, 0); }
template <class T>
PN_CPU_INLINE F32 weights_at(BlockWords words, F32 d, const std::int32_t* word, const std::int32_t* bit) {
  const __m256i at = _mm256_permutevar8x32_epi32(words, load_bits(word));
  return d * level_of<T>(_mm256_srlv_epi32(at, load_bits(bit)));
}

PN_CPU_INLINE void load_each_word(const Bytes* const (&blocks)[8], Bits (&words)[words_per_block]) {
  __m256i quads[2][4];  // [blocks 0..3 or 4..7][word in 128 bits]
  for (std::size_t i = 0; i < 2; ++i) {
    __m256i v[4];
    for (std::size_t j = 0; j < 4; ++j) v[j] = load_words(blocks[4 * i + j], 0);
    const __m256i low01 = _mm256_unpacklo_epi32(v[0], v[1]), low23 = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i high01 = _mm256_unpackhi_epi32(v[0], v[1]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
    quads[i][0] = _mm256_unpacklo_epi64(low01, low23);
    quads[i][1] = _mm256_unpackhi_epi64(low01, low23);
    quads[i][2] = _mm256_unpacklo_epi64(high01, high23);
    quads[i][3] = _mm256_unpackhi_epi64(high01, high23);
  }
  for (std::size_t w = 0; w < 4; ++w) {
    words[w] = _mm256_permute2x128_si256(quads[0][w], quads[1][w], 0x20);
    words[4 + w] = _mm256_permute2x128_si256(quads[0][w], quads[1][w], 0x31);
  }
}

inline constexpr std::size_t steps_per_record = 2;
PN_CPU_INLINE Words load_step(const Bytes* record, std::size_t step, bool) {
  return load_bits(record + step * sizeof(Block34) + 2);
}
PN_CPU_INLINE F32 scales_of_step(const float* d, std::size_t step) { return _mm256_set1_ps(d[step]); }
template <int N>
PN_CPU_INLINE Bits shift_right_u32(Bits v) {
  return _mm256_srli_epi32(v, N);
}
PN_CPU_INLINE F32 to_f32(Bits v) { return _mm256_cvtepi32_ps(v); }
PN_CPU_INLINE Bits truncate(F32 v) { return _mm256_cvttps_epi32(v); }
PN_CPU_INLINE Bits to_nearest_i32(F64 first, F64 second) {
  return _mm256_set_m128i(_mm256_cvtpd_epi32(second), _mm256_cvtpd_epi32(first));
}
inline constexpr std::size_t vectors_of_sums = 8;
PN_CPU_INLINE Bits sum_blocks(const Bits (&v)[8]) {
  __m256i a[4], b[2];
  for (std::size_t i = 0; i < 4; ++i)
    a[i] =
        _mm256_add_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  for (std::size_t i = 0; i < 2; ++i)
    b[i] =
        _mm256_add_epi32(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(b[0], b[1], 0x20), _mm256_permute2x128_si256(b[0], b[1], 0x31));
}

PN_CPU_INLINE Bits sum_pairs(Bits sum, Bits v) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(v, _mm256_set1_epi16(1)));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1) {
  return sum_pairs(sum, _mm256_add_epi16(_mm256_maddubs_epi16(u0, x0), _mm256_maddubs_epi16(u1, x1)));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1, Bits u2, Bits x2) {
  return sum_pairs(sum, _mm256_add_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(u0, x0), _mm256_maddubs_epi16(u1, x1)),
                                         _mm256_maddubs_epi16(u2, x2)));
}
PN_CPU_INLINE Bits multiply_i16(Bits u, Bits x) { return _mm256_madd_epi16(u, x); }
PN_CPU_INLINE Bits dot_i16(Bits sum, Bits u, Bits x) { return _mm256_add_epi32(sum, _mm256_madd_epi16(u, x)); }

}  // namespace pn::cpu::PN_CPU_ISA
