// The reference quantizer of PN on vectors: the same bytes, by another road. Written in the words of simd_*.hpp.
//
// The reference adds up the squared error of each of 36 candidate scales in double, one term after the other. Here the
// sums are made in fp32, in any order; every such sum is within a known distance of the reference's, so a candidate
// whose sum is clearly not the smallest cannot win. Mostly one candidate is left. Where several are (ties among them),
// the core's own code decides between these (exact.hpp).
//
// How far off an fp32 sum A is from the reference's double sum E, relative, with u = 2^-24:
//   the code: 1/s is rounded, so q = w/s is off by |q| u <= 8.5 u when it lies between two codes, and a wrong neighbour
//             is taken only when |q - n| = 1/2 within that; then r^2 is off by less than 8 * 8.5 u = 68 u;
//   r = w - s * n is one fused operation: r^2 off by 2 u; its product and the sums: one u for each of at most 5 + 4
//   additions; a weight g: rounded, and one product: 2 u; the reference's own error is far below. In all less than
//   100 u < 2^-17. A candidate is kept when A <= smallest * (1 + 2^-14) + 2^-90, the last for sums of terms that
//   underflow (r^2 below 2^-126, and g scaled to at most 1).
#pragma once

#include "elements.hpp"
#include "exact.hpp"

namespace pn::cpu::PN_CPU_ISA {

inline constexpr int candidates = 36;
inline constexpr float rint_shifter = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits

// m / 100 of candidate i, as the reference computes it; padded to a multiple of 8.
struct CandidateTable {
  double m[40];
  constexpr CandidateTable() : m() {
    for (int i = 0; i < 40; ++i) m[i] = i < candidates ? (50 + 2 * i) / 100.0 : 1.0;
  }
};
static constexpr CandidateTable candidate_table;

using Doubles = double __attribute__((vector_size(64)));
using Longs = long long __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));

// The magnitudes of the 36 scales, fp16 values: m * amax / z rounded once from double, to nearest even. Beyond fp16
// they are larger than 65504.
template <class T>
PN_CPU_INLINE void candidate_scales(double amax, float* scales) {
  const double unit = amax / T::zero_point;  // exact, so m * unit is rounded as (m * amax) / z is
  for (int i = 0; i < 40; i += 8) {
    Doubles m;
    __builtin_memcpy(&m, candidate_table.m + i, sizeof m);
    const Doubles s = m * unit;
    // The unit in the last place of an fp16 is 2^-10 of the power of two below it, and 2^-24 at least. Adding 1.5 *
    // 2^52 of these leaves no bits below it.
    const Longs least = Longs{} + 0x3F10000000000000;  // 2^-14
    Longs power = reinterpret_cast<Longs>(s) & 0x7FF0000000000000;
    power = power > least ? power : least;
    const Doubles shifter = reinterpret_cast<Doubles>(power + (42ll << 52)) * 1.5;
    const Doubles rounded = (s + shifter) - shifter;
    const Floats narrow = __builtin_convertvector(rounded, Floats);
    __builtin_memcpy(scales + i, &narrow, sizeof narrow);
  }
}

// The bits of an fp16 value given as float, not negative, finite.
PN_CPU_INLINE std::uint16_t half_bits(float value) {
  if (value < 0x1p-14f) return static_cast<std::uint16_t>(static_cast<int>(value * 0x1p24f));
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits >> 13) - (112u << 10));
}

template <class T>
PN_CPU_INLINE void store_zero_block(Bytes* out) {
  std::uint32_t word = 0;
  for (std::size_t t = 0; t < T::codes_per_word; ++t)
    word |= std::uint32_t{T::zero_point} << (T::bits * static_cast<int>(t / 2) + 16 * static_cast<int>(t % 2));
  out[0] = out[1] = 0;
  for (std::size_t w = 0; w < words_per_block; ++w) __builtin_memcpy(out + 2 + 4 * w, &word, sizeof word);
}

// Where the block's weights are while it is searched.
template <class T>
struct SearchBlock {
  static constexpr std::size_t vectors = T::block_size / f32_lanes;
  alignas(64) float weights[T::block_size];
  alignas(64) float importance[T::block_size];  // scaled to at most 1

  PN_CPU_INLINE F32 w_at(const SearchBlock& b, std::size_t i) { return load_f32(b.weights + i * f32_lanes); }
  PN_CPU_INLINE F32 g_at(const SearchBlock& b, std::size_t i) { return load_f32(b.importance + i * f32_lanes); }
};

// The lanes of the error of one scale.
template <class T, bool Weighted>
PN_CPU_INLINE F32 scale_error(const SearchBlock<T>& block, float scale, float inverse) {
  const F32 s = set_f32(scale);
  const F32 q = set_f32(inverse);
  const F32 shifter = set_f32(rint_shifter);
  const F32 lowest = set_f32(rint_shifter - T::zero_point);
  const F32 highest = set_f32(rint_shifter + T::zero_point - 1);
  F32 sum = zero_f32();
  for (std::size_t i = 0; i < block.vectors; ++i) {
    const F32 w = block.w_at(block, i);
    const F32 n = min(max(fma(w, q, shifter), lowest), highest) - shifter;
    const F32 r = minus_fma(n, s, w);
    if constexpr (Weighted)
      sum = fma(block.g_at(block, i) * r, r, sum);
    else
      sum = fma(r, r, sum);
  }
  return sum;
}

// The candidates that may be the reference's, as bits: those in first .. last whose error is about the smallest.
template <class T, bool Weighted>
PN_CPU_INLINE std::uint64_t promising(const SearchBlock<T>& block, const float* scales, const float* inverses,
                                      int first, int last) {
  alignas(64) float errors[48];
  for (int i = 0; i < 48; i += static_cast<int>(f32_lanes)) store_f32(errors + i, set_f32(3e38f));
  int i = first;
  for (; last + 1 - i >= static_cast<int>(f32_lanes); i += static_cast<int>(f32_lanes)) {
    F32 sums[f32_lanes];
    for (std::size_t j = 0; j < f32_lanes; ++j)
      sums[j] = scale_error<T, Weighted>(block, scales[i + static_cast<int>(j)], inverses[i + static_cast<int>(j)]);
    store_f32(errors + i, sum_each(sums));
  }
  for (; i <= last; ++i) errors[i] = sum_by_halves(scale_error<T, Weighted>(block, scales[i], inverses[i]));

  F32 smallest = load_f32(errors);
  for (std::size_t j = 1; j < 48 / f32_lanes; ++j) smallest = min(smallest, load_f32(errors + j * f32_lanes));
  const F32 limit = set_f32(smallest_lane(smallest) * (1.0f + 0x1p-14f) + 0x1p-90f);
  std::uint64_t kept = 0;
  for (std::size_t j = 0; j < 48 / f32_lanes; ++j)
    kept |= std::uint64_t{not_below(limit, load_f32(errors + j * f32_lanes))} << (j * f32_lanes);
  return kept;
}

// The codes under one scale. False, with `out` unwritten, when a weight lies so near the middle between two codes that
// fp32 cannot tell. For any other, n is right: r = w - s * n is rounded once, so |r| < |s| / 2 in fp32 is |r| < |s|
// / 2.
template <class T>
PN_CPU_INLINE bool store_codes(const SearchBlock<T>& block, float scale, std::uint16_t scale_bits, Bytes* out) {
  const F32 s = set_f32(scale);
  const F32 q = set_f32(1.0f / scale);
  const F32 half = set_f32((scale < 0 ? -scale : scale) * 0.5f);
  const F32 shifter = set_f32(rint_shifter);
  const F32 lowest = set_f32(rint_shifter - T::zero_point);
  const F32 highest = set_f32(rint_shifter + T::zero_point - 1);
  alignas(64) std::uint64_t pairs[T::block_size / 2];  // low 32 bits: an even code and, from bit 16, the odd one
  std::uint32_t near = 0;
  for (std::size_t i = 0; i < block.vectors; ++i) {
    const F32 w = block.w_at(block, i);
    const F32 n = fma(w, q, shifter);
    near |= not_below(absolute(minus_fma(n - shifter, s, w)), half);
    const F32 code = min(max(n, lowest), highest) + set_f32(T::zero_point);
    store_bits(reinterpret_cast<Bytes*>(pairs) + i * byte_lanes,
               join_pairs(bits_and(as_bits(code), set_u32(T::max_code))));
  }
  if (near != 0) return false;
  __builtin_memcpy(out, &scale_bits, 2);
  constexpr std::size_t per_word = T::codes_per_word / 2;
  for (std::size_t w = 0; w < words_per_block; ++w) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < per_word; ++j)
      word |= static_cast<std::uint32_t>(pairs[w * per_word + j]) << (T::bits * static_cast<int>(j));
    __builtin_memcpy(out + 2 + 4 * w, &word, sizeof word);
  }
  return true;
}

template <class T>
PN_CPU_INLINE void quantize_block(SearchBlock<T>& block, float lowest, float highest, const double* importance,
                                  Bytes* out) {
  const bool positive = -lowest > highest;  // the largest magnitude gets code 0
  const float amax = positive ? -lowest : (highest > 0 ? highest : 0.0f);
  if (amax == 0.0f) return store_zero_block<T>(out);
  alignas(64) float scales[40];
  candidate_scales<T>(static_cast<double>(amax), scales);
  // Scales grow with i: those that are 0 come first, those beyond fp16 last. That not all overflow was checked before.
  int first = 0;
  int last = candidates - 1;
  while (first < candidates && scales[first] == 0.0f) ++first;
  while (last >= 0 && scales[last] > 65504.0f) --last;
  if (first > last) return store_zero_block<T>(out);

  bool weighted = false;
  bool plain = true;  // whether fp32 can tell
  if (importance != nullptr) {
    double largest = 0;
    for (std::size_t e = 0; e < T::block_size; ++e) largest = importance[e] > largest ? importance[e] : largest;
    weighted = largest > 0;
    plain = !weighted || (largest > 0x1p-900 && largest < 0x1p900);
    const double scale = plain && weighted ? 1.0 / largest : 0.0;
    for (std::size_t e = 0; e < T::block_size; ++e) block.importance[e] = static_cast<float>(importance[e] * scale);
  }

  alignas(64) float inverses[40];
  for (std::size_t i = 0; i < 40; i += 8) {
    Floats s;
    __builtin_memcpy(&s, scales + i, sizeof s);
    if (!positive) s = -s;
    __builtin_memcpy(scales + i, &s, sizeof s);
    s = 1.0f / s;
    __builtin_memcpy(inverses + i, &s, sizeof s);
  }
  std::uint64_t kept = ((std::uint64_t{2} << last) - 1) & ~((std::uint64_t{1} << first) - 1);
  if (plain) {
    kept = weighted ? promising<T, true>(block, scales, inverses, first, last)
                    : promising<T, false>(block, scales, inverses, first, last);
  }
  int chosen = __builtin_ctzll(kept);
  if ((kept & (kept - 1)) != 0) chosen = search_among<T>(block.weights, weighted ? importance : nullptr, kept);
  const float scale = scales[chosen];
  const std::uint16_t bits = static_cast<std::uint16_t>(half_bits(positive ? scale : -scale) | (positive ? 0 : 0x8000));
  if (!store_codes<T>(block, scale, bits, out)) store_candidate<T>(block.weights, chosen, out);
}

template <class T>
static void quantize(const Bytes* weights, Element element, std::size_t blocks, const double* importance, Bytes* out) {
  SearchBlock<T> block;
  for (std::size_t b = 0; b < blocks; ++b) {
    F32 low = load_weights(weights, element, b * T::block_size);
    F32 high = low;
    for (std::size_t i = 0; i < T::block_size; i += f32_lanes) {
      const F32 w = load_weights(weights, element, b * T::block_size + i);
      low = min(low, w);
      high = max(high, w);
      store_f32(block.weights + i, w);
    }
    quantize_block<T>(block, smallest_lane(low), largest_lane(high),
                      importance == nullptr ? nullptr : importance + b * T::block_size, out + b * sizeof(Block34));
  }
}

// Whether a row has nothing that the quantizer refuses: weights are finite, and a block's smallest scale, amax / (2 z),
// is below 65520, from where on fp16 is infinite.
template <class T>
static bool inspect(const Bytes* weights, Element element, std::size_t blocks) {
  const F32 limit = set_f32(131040.0f * T::zero_point);
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < blocks * T::block_size; i += f32_lanes)
    bad |= not_below(absolute(load_weights(weights, element, i)), limit);
  return bad == 0;
}

}  // namespace pn::cpu::PN_CPU_ISA
