// y = x W^T for PN, against the three kinds of prepared activations (layout.hpp). Written in the words of simd_*.hpp.
//
// Everywhere: the codes of a block times x are added up lane by lane (a lane is a word of the block), for q8_0 and i16
// exactly in integers; then times the block's d, added to the lane's sum over blocks in fp32.
#pragma once

#include "exact.hpp"

namespace pn::cpu::PN_CPU_ISA {

// Scales are converted this many blocks at a time. Reading them also brings the blocks closer.
inline constexpr std::size_t chunk_blocks = 64;

struct Scales {
  alignas(64) float d[chunk_blocks + 2];

  PN_CPU_INLINE void load(Scales& s, const Bytes* row, std::size_t count) {
    alignas(64) std::uint16_t halves[chunk_blocks];
    for (std::size_t b = 0; b < count; ++b) __builtin_memcpy(halves + b, row + b * sizeof(Block34), 2);
    for (std::size_t b = count; b % f32_lanes != 0; ++b) halves[b] = 0;
    for (std::size_t b = 0; b < count; b += f32_lanes) store_f32(s.d + b, load_f16(halves + b));
    s.d[count] = 0;  // a missing second block
  }
};

// ---- Activations::f32 ----

template <class T>
struct WithF32 {
  static constexpr std::size_t codes = T::codes_per_word / codes_at_once;

  template <std::size_t M>
  PN_CPU_INLINE void add_chunk(const Bytes* row, const Scales& scales, std::size_t first, std::size_t count, std::size_t,
                               const Bytes* x, std::size_t token_bytes, F32 (&sums)[M]) {
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t part = 0; part < vectors_per_block; ++part) {
        const Words words = load_words(row + b * sizeof(Block34), part);
        const Bytes* xb = x + (first + b) * 4 * T::block_size + part * 4 * f32_lanes;
        F32 block[M];
        for (std::size_t i = 0; i < codes; ++i) {
          const F32 level = levels<T>(words, static_cast<int>(i));
          for (std::size_t m = 0; m < M; ++m) {
            const F32 xs = load_f32(xb + m * token_bytes + i * codes_at_once * 4 * words_per_block);
            block[m] = i == 0 ? level * xs : fma(level, xs, block[m]);
          }
        }
        for (std::size_t m = 0; m < M; ++m) sums[m] = fma(block[m], set_f32(scales.d[b]), sums[m]);
      }
  }
};

// ---- Activations::i16 ----

template <class T>
struct WithI16 {
  using Layout = I16Layout<T>;
  static constexpr std::size_t steps = Layout::pairs / codes_at_once;

  template <std::size_t M>
  PN_CPU_INLINE void add_chunk(const Bytes* row, const Scales& scales, std::size_t first, std::size_t count,
                               std::size_t blocks, const Bytes* x, std::size_t token_bytes, F32 (&sums)[M]) {
    const Layout layout(blocks);
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t part = 0; part < vectors_per_block; ++part) {
        const Words words = load_words(row + b * sizeof(Block34), part);
        const Bytes* xb = x + (first + b) * Layout::block_bytes + part * 4 * f32_lanes;
        Bits block[M];
        for (std::size_t m = 0; m < M; ++m)
          block[m] = load_sums(x + m * token_bytes + layout.sums_at + (first + b) * Layout::sums_bytes +
                               part * 4 * f32_lanes);
        for (std::size_t i = 0; i < steps; ++i) {
          const Words pairs = code_pairs<T>(words, static_cast<int>(i));
          for (std::size_t m = 0; m < M; ++m)
            block[m] = dot_i16(block[m], pairs,
                               load_bits(xb + m * token_bytes + i * codes_at_once * 4 * words_per_block));
        }
        for (std::size_t m = 0; m < M; ++m) {
          float scale = 0;
          __builtin_memcpy(&scale, x + m * token_bytes + layout.scale_at + (first + b) * 4, sizeof scale);
          sums[m] = fma(to_f32(block[m]), set_f32(scale * scales.d[b]), sums[m]);
        }
      }
  }
};

// ---- Activations::q8_0 ----

#if defined(PN_CPU_BY_FOUR)
// For every byte of a vector: the bit of its 64-bit word at which its code begins, for array A of the layout by_four.
template <std::size_t Array>
struct FoursBits {
  alignas(64) std::uint8_t at[64];
  constexpr FoursBits() : at() {
    for (std::size_t i = 0; i < 64; ++i) {
      const int four = four_of_lane(Array, i / 8, i % 8 / 4);
      const std::size_t e = four < 0 ? 0 : 4 * static_cast<std::size_t>(four) + i % 4;  // of 20 in two words
      at[i] = static_cast<std::uint8_t>(32 * (e / 10) + 3 * (e % 10 / 2) + 16 * (e % 2));
    }
  }
};
template <std::size_t Array>
inline constexpr FoursBits<Array> fours_bits;
#endif

template <class T>
struct WithQ8 {
  using Record = Q8Record<T>;
#if defined(PN_CPU_BY_FOUR)
  static constexpr Q8Layout layout = T::bits == 3 ? Q8Layout::by_four : Q8Layout::by_word;
#else
  static constexpr Q8Layout layout = Q8Layout::by_word;
#endif

  // The codes of a step, array by array.
  struct Codes {
    Bits v[3];
  };
  PN_CPU_INLINE Codes codes_of(Words words) {
    if constexpr (T::bits == 4) {
      const Bits nibble = set_u8(0x0F);
      return {{bits_and(words, nibble), bits_and(shift_right_u16<4>(words), nibble), set_u32(0)}};
    }
#if defined(PN_CPU_BY_FOUR)
    const Bits three = set_u8(0x07);
    return {{bits_and(pick_bits(load_bits(fours_bits<0>.at), words), three),
             bits_and(pick_bits(load_bits(fours_bits<1>.at), words), three),
             bits_and(pick_bits(load_bits(fours_bits<2>.at), words), three)}};
#else
    const Bits low = set_u32(0x00070007u);
    const Bits high = set_u32(0x07000700u);
    return {{and_or(high, shift_right_u32<1>(words), bits_and(words, low)),
             and_or(high, shift_right_u32<4>(words), bits_and(shift_right_u32<3>(words), low)),
             bits_and(shift_right_u32<6>(words), low)}};
#endif
  }

  // What the codes of a step give with one token: x, sums and scales of its record from the step on.
  PN_CPU_INLINE F32 dot(const Codes& codes, const Bytes* x) {
    const auto array = [x](std::size_t a) __attribute__((always_inline)) { return load_bits(x + a * 64); };
    const Bytes* sums = x + Record::sums_at(layout);
    const Bytes* scales = x + Record::scale_at(layout);
    if constexpr (T::bits == 4)
      return to_f32(dot_u8(load_bits(sums), codes.v[0], array(0), codes.v[1], array(1))) * load_f32(scales);
#if defined(PN_CPU_BY_FOUR)
    const F32 f = to_f32(dot_u8(load_bits(sums), codes.v[0], array(0), codes.v[1], array(1))) * load_f32(scales);
    return fma(to_f32(dot_u8(load_bits(sums + 64), codes.v[2], array(2))), load_f32(scales + 64), f);
#else
    const F32 f = to_f32(dot_u8(load_bits(sums), codes.v[0], array(0), codes.v[1], array(1), codes.v[2], array(2))) *
                  load_f32(scales);
    const Bits second =
        dot_u8(load_bits(sums + 64), codes.v[0], array(3), codes.v[1], array(4), codes.v[2], array(5));
    return fma(to_f32(second), load_f32(scales + 64), f);
#endif
  }

  template <std::size_t M>
  PN_CPU_INLINE void add_chunk(const Bytes* row, const Scales& scales, std::size_t first, std::size_t count, std::size_t,
                               const Bytes* x, std::size_t token_bytes, F32 (&sums)[M]) {
    const Bytes* xr = x + first / 2 * Record::bytes(layout);
    std::size_t b = 0;
    for (; b + 2 <= count; b += 2, xr += Record::bytes(layout))
      for (std::size_t step = 0; step < steps_per_record; ++step)
        add_step(row + b * sizeof(Block34), scales.d + b, step, true, xr, token_bytes, sums);
    if (b < count)
      for (std::size_t step = 0; step < (steps_per_record + 1) / 2; ++step)
        add_step(row + b * sizeof(Block34), scales.d + b, step, false, xr, token_bytes, sums);
  }

  template <std::size_t M>
  PN_CPU_INLINE void add_step(const Bytes* blocks, const float* d, std::size_t step, bool whole, const Bytes* xr,
                              std::size_t token_bytes, F32 (&sums)[M]) {
    const Codes codes = codes_of(load_step(blocks, step, whole));
    const F32 scale = scales_of_step(d, step);
    for (std::size_t m = 0; m < M; ++m)
      sums[m] = fma(dot(codes, xr + m * token_bytes + step * 4 * f32_lanes), scale, sums[m]);
  }
};

// All rows for M tokens from token `at` on.
template <class T, class With, std::size_t M>
static void multiply_tokens(const Multiply& job, std::size_t at) {
  const std::size_t blocks = job.k / T::block_size;
  const Bytes* x = job.token(at);
  Scales scales;
  for (std::size_t n = 0; n < job.rows; ++n) {
    const Bytes* row = job.row(n);
    F32 sums[M];
    for (F32& s : sums) s = zero_f32();
    for (std::size_t b = 0; b < blocks; b += chunk_blocks) {
      const std::size_t count = blocks - b < chunk_blocks ? blocks - b : chunk_blocks;
      Scales::load(scales, row + b * sizeof(Block34), count);
      With::add_chunk(row + b * sizeof(Block34), scales, b, count, blocks, x, job.x->token_bytes, sums);
    }
    for (std::size_t m = 0; m < M; ++m) job.result(at + m, n) = sum_by_halves(sums[m]);
  }
}

template <class T, class With>
static void multiply_with(const Multiply& job) {
  const std::size_t tokens = job.x->tokens;
  std::size_t m = 0;
  for (; tokens - m >= 4; m += 4) multiply_tokens<T, With, 4>(job, m);
  switch (tokens - m) {
    case 1: multiply_tokens<T, With, 1>(job, m); break;
    case 2: multiply_tokens<T, With, 2>(job, m); break;
    case 3: multiply_tokens<T, With, 3>(job, m); break;
    default: break;
  }
}

template <class T>
static void multiply_pn(const Multiply& job) {
  switch (static_cast<Activations>(job.x->kind)) {
    case Activations::f32: return multiply_with<T, WithF32<T>>(job);
    case Activations::i16: return multiply_with<T, WithI16<T>>(job);
    case Activations::q8_0: return multiply_with<T, WithQ8<T>>(job);
  }
}

}  // namespace pn::cpu::PN_CPU_ISA
