// y = x W^T for PN, against the three kinds of prepared activations (layout.hpp). Written in the words of simd_*.hpp.
//
// The codes of a block times x are added up lane by lane (a lane is a word of the block), for q8_0 and i16 exactly in
// integers. With f32 and q8_0 a lane's sum, times the block's d, is added to the lane's sum over blocks in fp32; with
// i16 the lanes of a block are added up first.
#pragma once

#include "exact.hpp"

namespace pn::cpu::PN_CPU_ISA {

// Scales are converted this many blocks at a time.
inline constexpr std::size_t chunk_blocks = 64;

// Asks for memory that blocks will lie in: `near_bytes` on for the first-level cache, `far_bytes` on for the second.
// Called for every second block; the line that one of the two leaves out now and then is brought by the other. Shorter
// distances cost a third of the speed where one processor reads 40 GB/s.
inline constexpr std::size_t near_bytes = 12288;
inline constexpr std::size_t far_bytes = 24576;
PN_CPU_INLINE void prefetch_blocks(const Bytes* at) {
  __builtin_prefetch(at + far_bytes + sizeof(Block34), 0, 2);
  __builtin_prefetch(at + near_bytes);
}

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

// A chunk of R rows.
template <std::size_t R>
struct Rows {
  const Bytes* at[R];
  Scales scales[R];
};

// Code pairs of words: pair p holds code 2p in the low half of a lane and code 2p + 1 in the high half.
template <class T>
struct Pairs {
  static constexpr std::size_t count = T::codes_per_word / 2;
  Bits at[count];

  PN_CPU_INLINE Pairs of(Bits words) {
    Pairs pairs;
    for (Bits& pair : pairs.at) {
      pair = bits_and(words, set_u32(T::max_code * 0x00010001u));
      words = shift_right_u32<T::bits>(words);
    }
    return pairs;
  }
};

// ---- Activations::f32 ----

template <class T>
struct WithF32 {
  using Sum = F32;
  static constexpr std::size_t codes = T::codes_per_word / codes_at_once;

  PN_CPU_INLINE Sum zero() { return zero_f32(); }
  PN_CPU_INLINE float total(Sum sum) { return sum_by_halves(sum); }

  template <std::size_t R, std::size_t M>
  PN_CPU_INLINE void add_chunk(const Rows<R>& rows, std::size_t first, std::size_t count, std::size_t, const Bytes* x,
                               std::size_t token_bytes, F32 (&sums)[R][M]) {
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t part = 0; part < vectors_per_block; ++part) {
        const Bytes* xb = x + (first + b) * 4 * T::block_size + part * 4 * f32_lanes;
        Words words[R];
        F32 block[R][M];
        for (std::size_t r = 0; r < R; ++r) {
          const Bytes* at = rows.at[r] + b * sizeof(Block34);
          if ((b + part) % 2 == 0) prefetch_blocks(at);
          words[r] = load_words(at, part);
          for (std::size_t m = 0; m < M; ++m) block[r][m] = zero_f32();
        }
        for (std::size_t i = 0; i < codes; ++i) {
          F32 xs[M];
          for (std::size_t m = 0; m < M; ++m)
            xs[m] = load_f32(xb + m * token_bytes + i * codes_at_once * 4 * words_per_block);
          for (std::size_t r = 0; r < R; ++r) {
            const F32 level = levels<T>(words[r], static_cast<int>(i));
            for (std::size_t m = 0; m < M; ++m) block[r][m] = fma(level, xs[m], block[r][m]);
          }
        }
        for (std::size_t r = 0; r < R; ++r)
          for (std::size_t m = 0; m < M; ++m) sums[r][m] = fma(block[r][m], set_f32(rows.scales[r].d[b]), sums[r][m]);
      }
  }
};

// ---- Activations::i16 ----

// A block's dot product is an integer, and with its scales a product p. These are added up four and four, in the order
// (p0 + p2) + (p1 + p3), where those behind the end of the row are 0, and the sums of four one after the other.
// pn_batch.hpp and baseline.cpp have the same order.
template <class T>
struct WithI16 {
  using Layout = I16Layout<T>;
  using Sum = float;
  PN_CPU_INLINE Sum zero() { return 0; }
  PN_CPU_INLINE float total(Sum sum) { return sum; }

  // f32_lanes blocks at `row`, or, if not Whole, the first `count` of them.
  template <std::size_t M, bool Whole>
  PN_CPU_INLINE void add_blocks(const Bytes* row, const float* d, std::size_t count, const Bytes* x,
                                std::size_t token_bytes, std::size_t sums_at, std::size_t scale_at, Sum (&sums)[M]) {
    Bits dots[M][vectors_of_sums];
    if constexpr (!Whole)
      for (auto& token : dots)
        for (Bits& v : token) v = set_u32(0);
    for (std::size_t i = 0; i < f32_lanes; i += 2)
      for (std::size_t step = 0; step < steps_per_record; ++step) {
        if (!Whole && i + step / vectors_per_block >= count) continue;
        const Pairs<T> codes = Pairs<T>::of(load_step(row + i * sizeof(Block34), step, Whole || i + 1 < count));
        for (std::size_t m = 0; m < M; ++m) {
          Bits& dot = dots[m][(i / 2 * steps_per_record + step) / vectors_per_block];
          for (std::size_t p = 0; p < Layout::pairs; ++p) {
            const Bits xs = load_bits(x + m * token_bytes + i / 2 * Layout::record_bytes + p * Layout::pair_bytes +
                                      step * 4 * f32_lanes);
            dot =
                p == 0 && step % vectors_per_block == 0 ? multiply_i16(codes.at[p], xs) : dot_i16(dot, codes.at[p], xs);
          }
        }
      }
    for (std::size_t m = 0; m < M; ++m) {
      const Bits integers = add_u32(sum_blocks(dots[m]), load_bits(x + m * token_bytes + sums_at));
      const F32 products = to_f32(integers) * (load_f32(d) * load_f32(x + m * token_bytes + scale_at));
      const F32 pairs = products + exchange_lanes<2>(products);
      alignas(64) float fours[f32_lanes];
      store_f32(fours, pairs + exchange_lanes<1>(pairs));
      for (std::size_t i = 0; i < f32_lanes; i += 4) sums[m] += fours[i];
    }
  }

  template <std::size_t R, std::size_t M>
  PN_CPU_INLINE void add_chunk(const Rows<R>& rows, std::size_t first, std::size_t count, std::size_t blocks,
                               const Bytes* x, std::size_t token_bytes, Sum (&sums)[R][M]) {
    const Layout layout(blocks);
    for (std::size_t b = 0; b < count; b += f32_lanes) {
      // All of a token from the x of block first + b on.
      const std::size_t x_at = (first + b) / 2 * Layout::record_bytes;
      const std::size_t sums_at = layout.sums_at + (first + b) * 4 - x_at;
      const std::size_t scale_at = layout.scale_at + (first + b) * 4 - x_at;
      for (std::size_t r = 0; r < R; ++r) {
        const Bytes* at = rows.at[r] + b * sizeof(Block34);
        const float* d = rows.scales[r].d + b;
        for (std::size_t i = 0; i < f32_lanes; i += 2) prefetch_blocks(at + i * sizeof(Block34));
        if (count - b >= f32_lanes)
          add_blocks<M, true>(at, d, f32_lanes, x + x_at, token_bytes, sums_at, scale_at, sums[r]);
        else
          add_blocks<M, false>(at, d, count - b, x + x_at, token_bytes, sums_at, scale_at, sums[r]);
      }
    }
  }
};

// ---- Activations::q8_0 ----

#if defined(PN_CPU_PICK_BITS)
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
static constexpr FoursBits<Array> fours_bits;
#endif

template <class T>
struct WithQ8 {
  using Record = Q8Record<T>;
  using Sum = F32;
#if defined(PN_CPU_PICK_BITS)
  static constexpr Q8Layout layout = T::bits == 3 ? Q8Layout::by_four : Q8Layout::by_word;
#else
  static constexpr Q8Layout layout = Q8Layout::by_word;
#endif

  PN_CPU_INLINE Sum zero() { return zero_f32(); }
  PN_CPU_INLINE float total(Sum sum) { return sum_by_halves(sum); }

  // The codes of a step, array by array.
  struct Codes {
    Bits v[3];
  };
  PN_CPU_INLINE Codes codes_of(Words words) {
    if constexpr (T::bits == 4) {
      const Bits nibble = set_u8(0x0F);
      return {{bits_and(words, nibble), bits_and(shift_right_u16<4>(words), nibble), set_u32(0)}};
    }
#if defined(PN_CPU_PICK_BITS)
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

  // The x of a step, with sums and scales.
  struct Activation {
    Bits x[Record::arrays(layout)];
    Bits sums[Record::sums];
    F32 scale[Record::sums];
  };
  PN_CPU_INLINE Activation load_activation(const Bytes* record) {
    Activation a;
    for (std::size_t i = 0; i < Record::arrays(layout); ++i) a.x[i] = load_bits(record + i * Record::array_bytes);
    for (std::size_t i = 0; i < Record::sums; ++i) {
      a.sums[i] = load_bits(record + Record::sums_at(layout) + i * 64);
      a.scale[i] = load_f32(record + Record::scale_at(layout) + i * 64);
    }
    return a;
  }

  PN_CPU_INLINE F32 dot(const Codes& codes, const Activation& a) {
    if constexpr (T::bits == 4) {
      return to_f32(dot_u8(a.sums[0], codes.v[0], a.x[0], codes.v[1], a.x[1])) * a.scale[0];
    } else {
#if defined(PN_CPU_PICK_BITS)
      const F32 f = to_f32(dot_u8(a.sums[0], codes.v[0], a.x[0], codes.v[1], a.x[1])) * a.scale[0];
      return fma(to_f32(dot_u8(a.sums[1], codes.v[2], a.x[2])), a.scale[1], f);
#else
      const Bits first = dot_u8(a.sums[0], codes.v[0], a.x[0], codes.v[1], a.x[1], codes.v[2], a.x[2]);
      const Bits second = dot_u8(a.sums[1], codes.v[0], a.x[3], codes.v[1], a.x[4], codes.v[2], a.x[5]);
      return fma(to_f32(second), a.scale[1], to_f32(first) * a.scale[0]);
#endif
    }
  }

  template <std::size_t R, std::size_t M>
  PN_CPU_INLINE void add_chunk(const Rows<R>& rows, std::size_t first, std::size_t count, std::size_t, const Bytes* x,
                               std::size_t token_bytes, F32 (&sums)[R][M]) {
    const Bytes* record = x + first / 2 * Record::bytes(layout);
    std::size_t b = 0;
    for (; b + 2 <= count; b += 2, record += Record::bytes(layout))
      for (std::size_t step = 0; step < steps_per_record; ++step)
        add_step(rows, b, step, true, record, token_bytes, sums);
    if (b < count)
      for (std::size_t step = 0; step < (steps_per_record + 1) / 2; ++step)
        add_step(rows, b, step, false, record, token_bytes, sums);
  }

  template <std::size_t R, std::size_t M>
  PN_CPU_INLINE void add_step(const Rows<R>& rows, std::size_t b, std::size_t step, bool whole, const Bytes* record,
                              std::size_t token_bytes, F32 (&sums)[R][M]) {
    Codes codes[R];
    F32 scales[R];
    for (std::size_t r = 0; r < R; ++r) {
      const Bytes* at = rows.at[r] + b * sizeof(Block34);
      if (step == 0) prefetch_blocks(at);
      codes[r] = codes_of(load_step(at, step, whole));
      scales[r] = scales_of_step(rows.scales[r].d + b, step);
    }
    for (std::size_t m = 0; m < M; ++m) {
      const Activation a = load_activation(record + m * token_bytes + step * 4 * f32_lanes);
      for (std::size_t r = 0; r < R; ++r) sums[r][m] = fma(dot(codes[r], a), scales[r], sums[r][m]);
    }
  }
};

// R rows from row n on, M tokens from token `at` on.
template <class T, class With, std::size_t R, std::size_t M>
static void multiply_tile(const Multiply& job, std::size_t n, std::size_t at) {
  const std::size_t blocks = job.k / T::block_size;
  Rows<R> rows;
  typename With::Sum sums[R][M];
  for (auto& row : sums)
    for (auto& s : row) s = With::zero();
  for (std::size_t b = 0; b < blocks; b += chunk_blocks) {
    const std::size_t count = blocks - b < chunk_blocks ? blocks - b : chunk_blocks;
    for (std::size_t r = 0; r < R; ++r) {
      rows.at[r] = job.row(n + r) + b * sizeof(Block34);
      Scales::load(rows.scales[r], rows.at[r], count);
    }
    With::add_chunk(rows, b, count, blocks, job.token(at), job.x->token_bytes, sums);
  }
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t m = 0; m < M; ++m) job.store(at + m, n + r, With::total(sums[r][m]));
}

// R rows from row n on, all tokens. Several rows share the loads of x, and memory is read in several streams.
template <class T, class With, std::size_t R>
static void multiply_rows(const Multiply& job, std::size_t n) {
  const std::size_t tokens = job.x->tokens;
  std::size_t m = 0;
  for (; tokens - m >= 4; m += 4) multiply_tile<T, With, R, 4>(job, n, m);
  if (tokens - m >= 2) {
    multiply_tile<T, With, R, 2>(job, n, m);
    m += 2;
  }
  if (m < tokens) multiply_tile<T, With, R, 1>(job, n, m);
}

template <class T, class With>
static void multiply_with(const Multiply& job) {
  std::size_t n = 0;
  if (job.x->tokens == 1)
    for (; job.rows - n >= 4; n += 4) multiply_tile<T, With, 4, 1>(job, n, 0);
  for (; job.rows - n >= 2; n += 2) multiply_rows<T, With, 2>(job, n);
  for (; n < job.rows; ++n) multiply_rows<T, With, 1>(job, n);
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
