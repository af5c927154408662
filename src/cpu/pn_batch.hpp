// y = x W^T for PN and many tokens. Written in the words of simd_*.hpp.
//
// Lanes are rows. The codes of a panel of rows, a piece of their length at a time, are brought into the order of x's
// steps (layout.hpp), few enough for the first-level cache; then all tokens pass. The integers of i16 and q8_0 are
// exact and every other operation is rounded by itself, in an order that does not depend on the lanes: these two have
// the same bits on every instruction set.
#pragma once

#include "pn_multiply.hpp"

namespace pn::cpu::PN_CPU_ISA {

inline constexpr std::size_t batch_vectors = 2;
inline constexpr std::size_t batch_rows = batch_vectors * f32_lanes;
inline constexpr std::size_t panel_bytes = 24576;  // of codes
// Tokens whose sums are in registers.
inline constexpr std::size_t tokens_at_once = vector_registers == 32 ? batch_tokens : batch_tokens / 2;

// Lanes of 32-bit sums. Bits would do, but sums that stay in registers all along a loop must have the type that the
// instructions' intrinsics are made of, or g++ 12 copies every one of them before and after each instruction.
using Int32s = std::int32_t __attribute__((vector_size(4 * f32_lanes)));

// The 4 bytes at p in every lane.
PN_CPU_INLINE Bits set_word(const Bytes* p) {
  std::uint32_t v = 0;
  __builtin_memcpy(&v, p, sizeof v);
  return set_u32(v);
}
PN_CPU_INLINE F32 set_float(const Bytes* p) {
  float v = 0;
  __builtin_memcpy(&v, p, sizeof v);
  return set_f32(v);
}

// What a segment's integers stand for.
PN_CPU_INLINE F32 product(Int32s sum, F32 d, const Bytes* scale) {
  return to_f32(reinterpret_cast<Bits>(sum)) * (d * set_float(scale));
}

// What is different from kind to kind: the vectors of codes that two words become, how `steps_at_once` of them are
// multiplied by x, and how the sum of a segment begins and ends.
template <class T, Activations Kind>
struct Batch;

template <class T>
struct Batch<T, Activations::f32> {
  using Codes = F32;
  using Sum = F32;
  static constexpr std::size_t steps_at_once = 1;

  PN_CPU_INLINE void unpack(const Pairs<T> (&words)[2], Bytes* to) {
    for (const Pairs<T>& pairs : words)
      for (const Bits pair : pairs.at) {
        store_f32(to, to_f32(bits_and(pair, set_u32(T::max_code))) - set_f32(T::zero_point));
        store_f32(to + 4 * batch_rows, to_f32(shift_right_u32<16>(pair)) - set_f32(T::zero_point));
        to += 8 * batch_rows;
      }
  }
  PN_CPU_INLINE Codes load(const Bytes* p) { return load_f32(p); }
  PN_CPU_INLINE Sum begin(const Bytes*) { return zero_f32(); }
  PN_CPU_INLINE Sum add(Sum sum, const Codes (&codes)[1], const Bytes* x) { return fma(codes[0], set_float(x), sum); }
  PN_CPU_INLINE F32 add_segment(F32 total, Sum sum, F32 d, const Bytes*) { return fma(sum, d, total); }
};

template <class T>
struct Batch<T, Activations::i16> {
  using Codes = Bits;
  using Sum = Int32s;
  static constexpr std::size_t steps_at_once = 1;

  PN_CPU_INLINE void unpack(const Pairs<T> (&words)[2], Bytes* to) {
    for (const Pairs<T>& pairs : words)
      for (const Bits pair : pairs.at) {
        store_bits(to, subtract_u16(pair, set_u16(T::zero_point)));
        to += 4 * batch_rows;
      }
  }
  PN_CPU_INLINE Codes load(const Bytes* p) { return load_bits(p); }
  PN_CPU_INLINE Sum begin(const Bytes*) { return Int32s{}; }
  PN_CPU_INLINE Sum add(Sum sum, const Codes (&codes)[1], const Bytes* x) {
    return reinterpret_cast<Int32s>(dot_i16(reinterpret_cast<Bits>(sum), codes[0], set_word(x)));
  }
};

template <class T>
struct Batch<T, Activations::q8_0> {
  using Codes = Bits;
  using Sum = Int32s;
  static constexpr std::size_t steps_at_once = 2;

  PN_CPU_INLINE void unpack(const Pairs<T> (&words)[2], Bytes* to) {
    constexpr std::size_t count = Pairs<T>::count;
    for (std::size_t i = 0; i < 2 * count; i += 2) {
      const Bits even = words[i / count].at[i % count];
      const Bits odd = words[(i + 1) / count].at[(i + 1) % count];
      store_bits(to, bits_or(even, shift_left_u16<8>(odd)));
      to += 4 * batch_rows;
    }
  }
  PN_CPU_INLINE Codes load(const Bytes* p) { return load_bits(p); }
  PN_CPU_INLINE Sum begin(const Bytes* sums) { return reinterpret_cast<Int32s>(set_word(sums)); }
  PN_CPU_INLINE Sum add(Sum sum, const Codes (&codes)[2], const Bytes* x) {
    return reinterpret_cast<Int32s>(
        dot_u8(reinterpret_cast<Bits>(sum), codes[0], set_word(x), codes[1], set_word(x + 4 * batch_tokens)));
  }
  PN_CPU_INLINE F32 add_segment(F32 total, Sum sum, F32 d, const Bytes* scale) {
    return total + product(sum, d, scale);
  }
};

template <class T, Activations Kind>
struct Panel {
  using With = Batch<T, Kind>;
  using Layout = BatchLayout<T, Kind>;
  static constexpr std::size_t blocks_at_once = Kind == Activations::i16 ? 4 : 1;
  static constexpr std::size_t block_bytes = Layout::steps * 4 * batch_rows;
  static constexpr std::size_t blocks = panel_bytes / block_bytes / blocks_at_once * blocks_at_once;

  alignas(64) Bytes codes[blocks * block_bytes];  // [block][step][row] of 4 bytes
  alignas(64) float d[blocks * batch_rows];       // [block][row]

  // Blocks first .. first + count - 1 of `rows` rows from row n on; the lanes of other rows repeat the last. Asks for
  // the memory that comes next.
  PN_CPU_INLINE void fill(Panel& panel, const Multiply& job, std::size_t n, std::size_t rows, std::size_t first,
                          std::size_t count) {
    const Bytes* at[batch_vectors][f32_lanes];
    for (std::size_t r = 0; r < batch_rows; ++r)
      at[r / f32_lanes][r % f32_lanes] = job.row(n + (r < rows ? r : rows - 1)) + first * sizeof(Block34);
    // As numbers, which may wrap: what is asked for need not be there.
    const bool last = (first + count) * T::block_size == job.k;
    const std::uintptr_t ahead = last ? batch_rows * job.stride - first * sizeof(Block34) : count * sizeof(Block34);
    for (std::size_t b = 0; b < count; ++b)
      for (std::size_t v = 0; v < batch_vectors; ++v) {
        alignas(64) std::uint16_t halves[f32_lanes];
        for (std::size_t i = 0; i < f32_lanes; ++i) {
          __builtin_memcpy(&halves[i], at[v][i], 2);
          const std::uintptr_t next = reinterpret_cast<std::uintptr_t>(at[v][i]) + ahead;
          __builtin_prefetch(reinterpret_cast<const void*>(next));  // NOLINT(performance-no-int-to-ptr)
        }
        store_f32(panel.d + b * batch_rows + v * f32_lanes, load_f16(halves));
        Bits words[words_per_block];
        load_each_word(at[v], words);
        for (std::size_t w = 0; w < words_per_block; w += 2) {
          const Pairs<T> two[2] = {Pairs<T>::of(words[w]), Pairs<T>::of(words[w + 1])};
          With::unpack(two, panel.codes + b * block_bytes + w * block_bytes / words_per_block + 4 * v * f32_lanes);
        }
        for (const Bytes*& block : at[v]) block += sizeof(Block34);
      }
  }

  // Block b, which is block `at` of the panel, times M tokens; x: the first of these in a group. `take` gets every
  // segment's sum: (token, vector of rows, sum, d, where the scale of x lies).
  template <std::size_t M, class Take>
  PN_CPU_INLINE void multiply_block(const Panel& panel, const Layout& layout, std::size_t b, std::size_t at,
                                    const Bytes* x, const Take& take) {
    const Bytes* codes = panel.codes + at * block_bytes;
    const Bytes* xb = x + b * Layout::steps * Layout::step_bytes;
    for (std::size_t s = 0; s < Layout::segments; ++s) {
      const std::size_t segment_at = (b * Layout::segments + s) * Layout::step_bytes;
      typename With::Sum sums[M][batch_vectors];
      for (std::size_t m = 0; m < M; ++m)
        for (auto& sum : sums[m]) sum = With::begin(x + layout.sums_at + segment_at + 4 * m);
      const std::size_t end = Layout::first_step(b, s + 1);
      for (std::size_t step = Layout::first_step(b, s); step < end; step += With::steps_at_once) {
        typename With::Codes vectors[batch_vectors][With::steps_at_once];
        for (std::size_t v = 0; v < batch_vectors; ++v)
          for (std::size_t i = 0; i < With::steps_at_once; ++i)
            vectors[v][i] = With::load(codes + 4 * ((step + i) * batch_rows + v * f32_lanes));
        for (std::size_t m = 0; m < M; ++m)
          for (std::size_t v = 0; v < batch_vectors; ++v)
            sums[m][v] = With::add(sums[m][v], vectors[v], xb + step * Layout::step_bytes + 4 * m);
      }
      for (std::size_t m = 0; m < M; ++m)
        for (std::size_t v = 0; v < batch_vectors; ++v)
          take(m, v, sums[m][v], load_f32(panel.d + at * batch_rows + v * f32_lanes),
               x + layout.scale_at + segment_at + 4 * m);
    }
  }

  // Adds blocks first .. first + count - 1, which the panel holds.
  template <std::size_t M>
  PN_CPU_INLINE void multiply(const Panel& panel, const Layout& layout, std::size_t first, std::size_t count,
                              const Bytes* x, F32 (&totals)[M][batch_vectors]) {
    if constexpr (Kind == Activations::i16) {
      for (std::size_t b = 0; b < count; b += 4) {
        Four<M> four;
        add_to_four<0, M>(panel, layout, first, b, count, x, four, totals);
        add_to_four<1, M>(panel, layout, first, b, count, x, four, totals);
        add_to_four<2, M>(panel, layout, first, b, count, x, four, totals);
        add_to_four<3, M>(panel, layout, first, b, count, x, four, totals);
      }
    } else {
      for (std::size_t b = 0; b < count; ++b)
        multiply_block<M>(
            panel, layout, first + b, b, x,
            [&](std::size_t m, std::size_t v, typename With::Sum sum, F32 w_scale, const Bytes* x_scale)
                PN_CPU_INLINED { totals[m][v] = With::add_segment(totals[m][v], sum, w_scale, x_scale); });
    }
  }

  // The order of pn_multiply.hpp for Activations::i16: products of four blocks, of which this one is I.
  template <std::size_t M>
  struct Four {
    F32 even[M][batch_vectors], odd[M][batch_vectors];
  };
  template <std::size_t I, std::size_t M>
  PN_CPU_INLINE void add_to_four(const Panel& panel, const Layout& layout, std::size_t first, std::size_t b,
                                 std::size_t count, const Bytes* x, Four<M>& four, F32 (&totals)[M][batch_vectors]) {
    const auto take = [&](std::size_t m, std::size_t v, F32 product) PN_CPU_INLINED {
      if constexpr (I == 0) four.even[m][v] = product;
      if constexpr (I == 1) four.odd[m][v] = product;
      if constexpr (I == 2) four.even[m][v] = four.even[m][v] + product;
      if constexpr (I == 3) totals[m][v] = totals[m][v] + (four.even[m][v] + (four.odd[m][v] + product));
    };
    if (b + I < count)
      multiply_block<M>(panel, layout, first + b + I, b + I, x,
                        [&](std::size_t m, std::size_t v, typename With::Sum sum, F32 w_scale, const Bytes* x_scale)
                            PN_CPU_INLINED { take(m, v, product(sum, w_scale, x_scale)); });
    else
      for (std::size_t m = 0; m < M; ++m)
        for (std::size_t v = 0; v < batch_vectors; ++v) take(m, v, zero_f32());
  }
};

// Results of one token for the rows of a panel, of which `rows` are there.
PN_CPU_INLINE void load_results(const Bytes* y, std::size_t rows, F32 (&results)[batch_vectors]) {
  alignas(64) float all[batch_rows];
  if (rows < batch_rows) {
    __builtin_memset(all, 0, sizeof all);
    __builtin_memcpy(all, y, rows * sizeof *all);
    y = reinterpret_cast<const Bytes*>(all);
  }
  for (std::size_t v = 0; v < batch_vectors; ++v) results[v] = load_f32(y + 4 * v * f32_lanes);
}
PN_CPU_INLINE void store_results(Bytes* y, std::size_t rows, const F32 (&results)[batch_vectors]) {
  alignas(64) float all[batch_rows];
  Bytes* to = rows < batch_rows ? reinterpret_cast<Bytes*>(all) : y;
  for (std::size_t v = 0; v < batch_vectors; ++v) store_f32(to + 4 * v * f32_lanes, results[v]);
  if (rows < batch_rows) __builtin_memcpy(y, all, rows * sizeof *all);
}

// Adds what the panel holds to the results of M tokens from token m on, of which `tokens` are there.
template <std::size_t M, class P>
PN_CPU_INLINE void add_panel(const P& panel, const typename P::Layout& layout, const Multiply& job, std::size_t n,
                             std::size_t rows, std::size_t first, std::size_t count, std::size_t m,
                             std::size_t tokens) {
  F32 totals[M][batch_vectors];
  for (auto& token : totals)
    for (F32& v : token) v = zero_f32();
  if (first > 0)
    for (std::size_t i = 0; i < tokens; ++i) load_results(job.result(m + i, n), rows, totals[i]);
  P::multiply(panel, layout, first, count, job.group(m / batch_tokens) + 4 * (m % batch_tokens), totals);
  for (std::size_t i = 0; i < tokens; ++i) store_results(job.result(m + i, n), rows, totals[i]);
}

// Rows n .. n + rows - 1, at most batch_rows.
template <class T, Activations Kind>
static void multiply_rows_of_batch(const Multiply& job, std::size_t tokens, std::size_t n, std::size_t rows) {
  using P = Panel<T, Kind>;
  constexpr std::size_t few = tokens_at_once / 2;
  const std::size_t blocks = job.k / T::block_size;
  const typename P::Layout layout(blocks);
  P panel;
  std::size_t first = 0;
  do {
    const std::size_t count = blocks - first < P::blocks ? blocks - first : P::blocks;
    P::fill(panel, job, n, rows, first, count);
    for (std::size_t m = 0; m < tokens; m += tokens_at_once) {
      const std::size_t here = tokens - m < tokens_at_once ? tokens - m : tokens_at_once;
      if (here > few)
        add_panel<tokens_at_once>(panel, layout, job, n, rows, first, count, m, here);
      else
        add_panel<few>(panel, layout, job, n, rows, first, count, m, here);
    }
    first += count;
  } while (first < blocks);
}

template <class T, Activations Kind>
static void multiply_panels(const Multiply& job, std::size_t tokens) {
  for (std::size_t n = 0; n < job.rows; n += batch_rows)
    multiply_rows_of_batch<T, Kind>(job, tokens, n, job.rows - n < batch_rows ? job.rows - n : batch_rows);
}

template <class T>
static void multiply_batch(const Multiply& job, std::size_t tokens) {
  switch (static_cast<Activations>(job.x->kind)) {
    case Activations::f32: return multiply_panels<T, Activations::f32>(job, tokens);
    case Activations::i16: return multiply_panels<T, Activations::i16>(job, tokens);
    case Activations::q8_0: return multiply_panels<T, Activations::q8_0>(job, tokens);
  }
}

}  // namespace pn::cpu::PN_CPU_ISA
