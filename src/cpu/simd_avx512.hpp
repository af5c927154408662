// The vectors of AVX-512 in the words that the kernels are written in. Included by one file for each instruction set,
// which defines PN_CPU_ISA; simd_avx2.hpp and simd_neon.hpp have the same names.
#pragma once

#include <immintrin.h>

#include "kernels.hpp"

#define PN_CPU_INLINE static inline __attribute__((always_inline))

namespace pn::cpu::PN_CPU_ISA {

// ---- Floats ----

using F32 = __m512;
inline constexpr std::size_t vector_registers = 32;
inline constexpr std::size_t f32_lanes = 16;

PN_CPU_INLINE F32 zero_f32() { return _mm512_setzero_ps(); }
PN_CPU_INLINE F32 set_f32(float v) { return _mm512_set1_ps(v); }
PN_CPU_INLINE F32 load_f32(const void* p) { return _mm512_loadu_ps(p); }
PN_CPU_INLINE void store_f32(void* p, F32 v) { _mm512_storeu_ps(p, v); }
PN_CPU_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }         // a * b + c, one rounding
PN_CPU_INLINE F32 minus_fma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b, one rounding
PN_CPU_INLINE F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
PN_CPU_INLINE F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
PN_CPU_INLINE F32 absolute(F32 v) { return _mm512_abs_ps(v); }
// Lane i of the result is lane i ^ N of v; N = 1, 2, 4 .. below f32_lanes.
template <int N>
PN_CPU_INLINE F32 exchange_lanes(F32 v) {
  if constexpr (N == 1) return _mm512_permute_ps(v, 0xB1);
  if constexpr (N == 2) return _mm512_permute_ps(v, 0x4E);
  if constexpr (N == 4) return _mm512_shuffle_f32x4(v, v, 0xB1);
  return _mm512_shuffle_f32x4(v, v, 0x4E);
}
// Lanes of v in two halves, added.
PN_CPU_INLINE __m256 add_halves(F32 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
// Sum of all lanes of two vectors; in every 128 bits lanes are four of a's, and four of b's come after them. Lane i
// with lane i + 16 of these 32, then i + 8, i + 4 (which is a with b), i + 2, i + 1.
PN_CPU_INLINE float sum_zipped(F32 a, F32 b) {
  const __m256 a8 = add_halves(a), b8 = add_halves(b);
  const __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
  const __m128 b4 = _mm_add_ps(_mm256_castps256_ps128(b8), _mm256_extractf128_ps(b8, 1));
  const __m128 c = _mm_add_ps(a4, b4);
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
// Sum of the lanes: lane i with lane i + 8, then i + 4, i + 2, i + 1.
PN_CPU_INLINE float sum_by_halves(F32 v) {
  const __m256 a = add_halves(v);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
// Lane i: the sum of the lanes of v[i].
PN_CPU_INLINE F32 sum_each(const F32 (&v)[16]) {
  F32 a[8], b[4], c[2];
  for (std::size_t i = 0; i < 8; ++i)
    a[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512d even = _mm512_castps_pd(a[2 * i]), odd = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)) + _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd));
  }
  for (std::size_t i = 0; i < 2; ++i)
    c[i] = _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88) + _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xDD);
  return _mm512_shuffle_f32x4(c[0], c[1], 0x88) + _mm512_shuffle_f32x4(c[0], c[1], 0xDD);
}
PN_CPU_INLINE float largest_lane(F32 v) { return _mm512_reduce_max_ps(v); }
PN_CPU_INLINE float smallest_lane(F32 v) { return _mm512_reduce_min_ps(v); }
// Lanes of a that are not below b, as bits.
PN_CPU_INLINE std::uint32_t not_below(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }

// 16 numbers at any address.
PN_CPU_INLINE F32 load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
PN_CPU_INLINE F32 load_bf16(const void* p) {
  const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// The fp16 at p in every lane.
PN_CPU_INLINE F32 set_half(const Bytes* p) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(bits)));
}
PN_CPU_INLINE void store_f16(void* p, F32 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
// To nearest even. A NaN stays one: its sign and top bits, made quiet.
PN_CPU_INLINE void store_bf16(void* p, F32 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// ---- Doubles ----

using F64 = __m512d;  // half as many

PN_CPU_INLINE F64 load_f64(const double* p) { return _mm512_loadu_pd(p); }
PN_CPU_INLINE void store_f64(double* p, F64 v) { _mm512_storeu_pd(p, v); }
PN_CPU_INLINE F64 first_f64(F32 v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
PN_CPU_INLINE F64 second_f64(F32 v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
PN_CPU_INLINE F64 set_f64(double v) { return _mm512_set1_pd(v); }

// ---- Integers of any width ----

using Bits = __m512i;
inline constexpr std::size_t byte_lanes = 64;

PN_CPU_INLINE Bits load_bits(const void* p) { return _mm512_loadu_si512(p); }
PN_CPU_INLINE void store_bits(void* p, Bits v) { _mm512_storeu_si512(p, v); }
PN_CPU_INLINE void stream_bits(void* p, Bits v) { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
PN_CPU_INLINE void end_of_stream() { _mm_sfence(); }
PN_CPU_INLINE Bits set_u8(std::uint8_t v) { return _mm512_set1_epi8(static_cast<char>(v)); }
PN_CPU_INLINE Bits set_u16(std::uint16_t v) { return _mm512_set1_epi16(static_cast<short>(v)); }
PN_CPU_INLINE Bits set_u32(std::uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
PN_CPU_INLINE Bits set_per_16(const std::uint8_t (&bytes)[16]) {  // the same 16 bytes in every 128 bits
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}
PN_CPU_INLINE Bits bits_and(Bits a, Bits b) { return _mm512_and_si512(a, b); }
PN_CPU_INLINE Bits bits_or(Bits a, Bits b) { return _mm512_or_si512(a, b); }
PN_CPU_INLINE Bits bits_xor(Bits a, Bits b) { return _mm512_xor_si512(a, b); }
// (mask & a) | (~mask & b)
PN_CPU_INLINE Bits select(Bits mask, Bits a, Bits b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xCA); }
// (mask & a) | b
PN_CPU_INLINE Bits and_or(Bits mask, Bits a, Bits b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xEA); }
PN_CPU_INLINE Bits add_u8(Bits a, Bits b) { return _mm512_add_epi8(a, b); }
PN_CPU_INLINE Bits subtract_u8(Bits a, Bits b) { return _mm512_sub_epi8(a, b); }
PN_CPU_INLINE Bits subtract_u16(Bits a, Bits b) { return _mm512_sub_epi16(a, b); }
PN_CPU_INLINE Bits add_u32(Bits a, Bits b) { return _mm512_add_epi32(a, b); }
template <int N>
PN_CPU_INLINE Bits shift_left_u16(Bits v) {
  return _mm512_slli_epi16(v, N);
}
template <int N>
PN_CPU_INLINE Bits shift_right_u16(Bits v) {
  return _mm512_srli_epi16(v, N);
}
PN_CPU_INLINE Bits min_u16(Bits a, Bits b) { return _mm512_min_epu16(a, b); }
PN_CPU_INLINE Bits max_u16(Bits a, Bits b) { return _mm512_max_epu16(a, b); }
PN_CPU_INLINE unsigned smallest_u16(Bits v) {  // SSE4.1 has it for eight
  const __m256i a = _mm256_min_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  const __m128i b = _mm_min_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  return static_cast<unsigned>(_mm_cvtsi128_si32(_mm_minpos_epu16(b))) & 0xFFFFu;
}
PN_CPU_INLINE unsigned largest_u16(Bits v) { return 0xFFFFu - smallest_u16(_mm512_xor_si512(v, set_u32(0xFFFFFFFFu))); }
PN_CPU_INLINE bool has_zero_u8(Bits v) { return _mm512_testn_epi8_mask(v, v) != 0; }
PN_CPU_INLINE Bits as_bits(F32 v) { return _mm512_castps_si512(v); }
PN_CPU_INLINE F32 as_floats(Bits v) { return _mm512_castsi512_ps(v); }
// In every 64 bits: low | high << 16 of the two 32-bit halves, in the low half.
PN_CPU_INLINE Bits join_pairs(Bits v) { return _mm512_or_si512(v, _mm512_srli_epi64(v, 16)); }
// Whether any bit of `mask` is set in v.
PN_CPU_INLINE bool any_bit(Bits v, Bits mask) { return _mm512_test_epi64_mask(v, mask) != 0; }

// In every 128 bits: bytes of `table` taken by the low four bits of `at`, whose high bits are 0.
PN_CPU_INLINE Bits look_up(Bits table, Bits at) { return _mm512_shuffle_epi8(table, at); }
PN_CPU_INLINE Bits zip_low_u8(Bits a, Bits b) { return _mm512_unpacklo_epi8(a, b); }
PN_CPU_INLINE Bits zip_high_u8(Bits a, Bits b) { return _mm512_unpackhi_epi8(a, b); }
PN_CPU_INLINE Bits zip_low_u16(Bits a, Bits b) { return _mm512_unpacklo_epi16(a, b); }
PN_CPU_INLINE Bits zip_high_u16(Bits a, Bits b) { return _mm512_unpackhi_epi16(a, b); }
PN_CPU_INLINE Bits narrow_u16(Bits a, Bits b) { return _mm512_packus_epi16(a, b); }
// c0 c1 of every two bytes, each below 16, to the 16-bit number c0 + 16 * c1.
PN_CPU_INLINE Bits join_nibbles(Bits v) { return _mm512_maddubs_epi16(v, _mm512_set1_epi16(0x1001)); }

// Orders that make up for instructions working on 128 bits for themselves. spread: before zips, so that what comes out
// is in the order of memory; gather: after narrow. Of 32-bit words (w) and of 64-bit ones (q).
PN_CPU_INLINE Bits spread_w(Bits v) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
}
PN_CPU_INLINE Bits gather_w(Bits v) { return spread_w(v); }
// Before zips by twos: so that every 128 bits get the words that follow each other, two and two.
PN_CPU_INLINE Bits spread_ww(Bits v) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15), v);
}
PN_CPU_INLINE Bits spread_q(Bits v) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), v); }
PN_CPU_INLINE Bits gather_q(Bits v) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v); }

// bf16 in a vector as floats: the even ones, the odd ones; the first half, the second half.
PN_CPU_INLINE F32 even_bf16(Bits v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
PN_CPU_INLINE F32 odd_bf16(Bits v) { return _mm512_castsi512_ps(_mm512_and_si512(v, set_u32(0xFFFF0000u))); }
PN_CPU_INLINE F32 first_bf16(Bits v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16));
}
PN_CPU_INLINE F32 second_bf16(Bits v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16));
}
// A vector of floats to its even lanes in the first half and its odd lanes in the second: two vectors, even and odd.
PN_CPU_INLINE void split_even_odd(F32 a, F32 b, F32& even, F32& odd) {
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i o = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  even = _mm512_permutex2var_ps(a, e, b);
  odd = _mm512_permutex2var_ps(a, o, b);
}

// ---- The eight words of a PN block ----

using Words = __m512i;  // of one block twice, or of two blocks

// Words of one block for codes 2i (low half) and 2i + 1 (high half).
inline constexpr std::size_t codes_at_once = 2;
inline constexpr std::size_t vectors_per_block = 1;
PN_CPU_INLINE Words load_words(const Bytes* block, std::size_t) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2)));
}
// n - z for what the low four bits of a lane say, of which pn3t's code is the low three.
template <class T>
PN_CPU_INLINE F32 level_table() {
  return T::bits == 4 ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
                      : _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
}
// The floats n - z of codes 2i and 2i + 1.
template <class T>
PN_CPU_INLINE F32 levels(Words words, int i) {
  const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi32(T::bits * i), _mm256_set1_epi32(T::bits * i + 16), 1);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), level_table<T>());
}
// The weights of 16 elements of a block with scale d in every lane: `word` and `bit` say where their codes are. Exact.
using BlockWords = __m512i;
PN_CPU_INLINE BlockWords load_block_words(const Bytes* block) { return load_words(block, 0); }
template <class T>
PN_CPU_INLINE F32 weights_at(BlockWords words, F32 d, const std::int32_t* word, const std::int32_t* bit) {
  const __m512i at = _mm512_permutexvar_epi32(_mm512_load_si512(word), words);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(at, _mm512_load_si512(bit)), d * level_table<T>());
}

// The eight words of 16 blocks: of each word a vector, with the blocks in its lanes.
PN_CPU_INLINE void load_each_word(const Bytes* const (&blocks)[16], Bits (&words)[words_per_block]) {
  const auto load_two = [&blocks](std::size_t i) PN_CPU_INLINED {
    return _mm512_inserti64x4(load_words(blocks[i], 0),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks[i + 4] + 2)), 1);
  };
  for (std::size_t four = 0; four < 4; ++four) words[four] = load_two(four);
  for (std::size_t four = 0; four < 4; ++four) words[4 + four] = load_two(8 + four);
  __m512i quads[2][4];  // [blocks 0..7 or 8..15][word in 128 bits] of four blocks
  for (std::size_t i = 0; i < 2; ++i) {
    const __m512i* v = words + 4 * i;
    const __m512i low01 = _mm512_unpacklo_epi32(v[0], v[1]), low23 = _mm512_unpacklo_epi32(v[2], v[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(v[0], v[1]), high23 = _mm512_unpackhi_epi32(v[2], v[3]);
    quads[i][0] = _mm512_unpacklo_epi64(low01, low23);
    quads[i][1] = _mm512_unpackhi_epi64(low01, low23);
    quads[i][2] = _mm512_unpacklo_epi64(high01, high23);
    quads[i][3] = _mm512_unpackhi_epi64(high01, high23);
  }
  for (std::size_t w = 0; w < 4; ++w) {
    words[w] = _mm512_shuffle_i32x4(quads[0][w], quads[1][w], 0x88);
    words[4 + w] = _mm512_shuffle_i32x4(quads[0][w], quads[1][w], 0xDD);
  }
}

// The words of one or two blocks from block b on, as the records of Activations::q8_0 pair them.
inline constexpr std::size_t steps_per_record = 1;
PN_CPU_INLINE Words load_step(const Bytes* record, std::size_t, bool whole) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + 2));
  if (!whole) return _mm512_zextsi256_si512(first);
  return _mm512_inserti64x4(_mm512_castsi256_si512(first),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + sizeof(Block34) + 2)), 1);
}
// d[0] for the words of the first block, d[1] for those of the second.
PN_CPU_INLINE F32 scales_of_step(const float* d, std::size_t) {
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(d[0]), 0xFF00, _mm_load_ss(d + 1));
}
template <int N>
PN_CPU_INLINE Bits shift_right_u32(Bits v) {
  return _mm512_srli_epi32(v, N);
}
PN_CPU_INLINE F32 to_f32(Bits v) { return _mm512_cvtepi32_ps(v); }
PN_CPU_INLINE Bits truncate(F32 v) { return _mm512_cvttps_epi32(v); }
// To nearest even.
PN_CPU_INLINE Bits to_nearest_i32(F64 first, F64 second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtpd_epi32(first)), _mm512_cvtpd_epi32(second), 1);
}
// The sums of 16 blocks' lanes; v[i] holds blocks 2i and 2i + 1, as load_step does.
inline constexpr std::size_t vectors_of_sums = 8;
PN_CPU_INLINE Bits sum_blocks(const Bits (&v)[8]) {
  __m512i a[4], b[2];
  for (std::size_t i = 0; i < 4; ++i)
    a[i] =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  for (std::size_t i = 0; i < 2; ++i)
    b[i] =
        _mm512_add_epi32(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
  const __m512i c = _mm512_add_epi32(_mm512_shuffle_i32x4(b[0], b[1], 0x88), _mm512_shuffle_i32x4(b[0], b[1], 0xDD));
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), c);
}

// The products of 16-bit numbers, two by two added.
PN_CPU_INLINE Bits multiply_i16(Bits u, Bits x) { return _mm512_madd_epi16(u, x); }
// sum + the products of unsigned bytes u (at most 15) and signed bytes x, four by four; of two or three vectors.
// sum + the products of 16-bit numbers, two by two.
#if defined(__AVX512VNNI__)
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u, Bits x) { return _mm512_dpbusd_epi32(sum, u, x); }
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1) { return dot_u8(dot_u8(sum, u0, x0), u1, x1); }
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1, Bits u2, Bits x2) {
  return dot_u8(dot_u8(dot_u8(sum, u0, x0), u1, x1), u2, x2);
}
PN_CPU_INLINE Bits dot_i16(Bits sum, Bits u, Bits x) { return _mm512_dpwssd_epi32(sum, u, x); }
#else
PN_CPU_INLINE Bits sum_pairs(Bits sum, Bits v) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1) {  // at most 4 * 15 * 127 in 16 bits
  return sum_pairs(sum, _mm512_add_epi16(_mm512_maddubs_epi16(u0, x0), _mm512_maddubs_epi16(u1, x1)));
}
PN_CPU_INLINE Bits dot_u8(Bits sum, Bits u0, Bits x0, Bits u1, Bits x1, Bits u2, Bits x2) {
  return sum_pairs(sum, _mm512_add_epi16(_mm512_add_epi16(_mm512_maddubs_epi16(u0, x0), _mm512_maddubs_epi16(u1, x1)),
                                         _mm512_maddubs_epi16(u2, x2)));
}
PN_CPU_INLINE Bits dot_i16(Bits sum, Bits u, Bits x) { return _mm512_add_epi32(sum, _mm512_madd_epi16(u, x)); }
#endif

#if defined(__AVX512VBMI__)
#define PN_CPU_PICK_BITS 1
// In every 64 bits: the 8 bytes that begin at the bits that the bytes of `at` name.
PN_CPU_INLINE Bits pick_bits(Bits at, Bits v) { return _mm512_multishift_epi64_epi8(at, v); }
// The 64 nibbles of 8 words of BF16_P12 at p in the low bits of bytes; 64-bit words spread (spread_q) or as they come.
// Reads 64 bytes, of which the last 32 are of the same block.
template <bool Spread>
PN_CPU_INLINE Bits pick_nibbles(const Bytes* p) {
  const __m512i order = Spread ? _mm512_setr_epi32(0, 0, 4, 0, 1, 0, 5, 0, 2, 0, 6, 0, 3, 0, 7, 0)
                               : _mm512_setr_epi32(0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0);
  const __m512i places =
      _mm512_set1_epi64(0x1C0C180814041000);  // code t of a word begins at 4 * (t / 2) + 16 * (t % 2)
  return _mm512_multishift_epi64_epi8(places, _mm512_permutexvar_epi32(order, load_bits(p)));
}
// As look_up, but whatever the high bits of `at` are.
PN_CPU_INLINE Bits look_up_low(Bits table, Bits at) { return _mm512_permutexvar_epi8(at, table); }
#else
PN_CPU_INLINE Bits look_up_low(Bits table, Bits at) { return look_up(table, at); }
#endif

}  // namespace pn::cpu::PN_CPU_ISA
