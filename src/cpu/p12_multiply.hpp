// y = x W^T for BF16 and BF16_P12. One piece of code for both, which differ only in where a unit of bf16 comes from and
// in the order of its weights: so packed and unpacked weights give the same bits.
//
// The order of additions is the one that p12/cpu.hpp states. 64 partial sums lie in 64 / f32_lanes vectors: a vector of
// bf16 gives its even weights to one and its odd weights to the next, as bf16 come out of 32-bit words by a shift and a
// mask. Prepared x lies in the same order, once for weights as in memory and once for weights as zipped
// (p12_codec.hpp).
#pragma once

#include "p12_codec.hpp"

namespace pn::cpu::PN_CPU_ISA {

inline constexpr std::size_t partial_sums = 64;
inline constexpr std::size_t sum_vectors = partial_sums / f32_lanes;
// Units that meet every sum once, or more often. Known places in the sums keep these in registers.
inline constexpr std::size_t units_at_once = sum_vectors > 8 ? sum_vectors / 8 : 1;

// x for weights as in memory, then for weights as zipped: what the even and the odd weights of each vector meet.
static void prepare(const Bytes* x, std::size_t k, Bytes* token) {
  F32 even, odd;
  Bytes* zipped = token + 4 * k;
  for (std::size_t i = 0; i < k; i += 2 * f32_lanes, token += 8 * f32_lanes) {
    split_even_odd(load_f32(x + 4 * i), load_f32(x + 4 * (i + f32_lanes)), even, odd);
    store_f32(token, even);
    store_f32(token + 4 * f32_lanes, odd);
  }
  for (std::size_t i = 0; i < k; i += 4 * f32_lanes)
    for (std::size_t h = 0; h < 2; ++h, zipped += 8 * f32_lanes) {
      alignas(64) Bytes eights[8 * f32_lanes];  // the first eight of every sixteen, or the second
      for (std::size_t g = 0; g < f32_lanes / 4; ++g)
        __builtin_memcpy(eights + 32 * g, x + 4 * (i + 16 * g + 8 * h), 32);
      split_even_odd(load_f32(eights), load_f32(eights + 4 * f32_lanes), even, odd);
      store_f32(zipped, even);
      store_f32(zipped + 4 * f32_lanes, odd);
    }
}

template <Order How>
PN_CPU_INLINE F32 add_product(F32 w, F32 x, F32 sum) {
  if constexpr (How == Order::fast)
    return fma(w, x, sum);
  else
    return sum + w * x;  // compiled with -ffp-contract=off
}

// The sums of one row and one token.
struct Sums {
  F32 v[sum_vectors];
};

// u[i] = s[2i] + s[2i+1], 32 of them; then the first half with the second, again and again.
template <Arranged How>
PN_CPU_INLINE float total(const Sums& s) {
  constexpr std::size_t vectors = sum_vectors / 2;
  F32 u[vectors];
  for (std::size_t i = 0; i < vectors; ++i) u[i] = s.v[2 * i] + s.v[2 * i + 1];
  if constexpr (How == Arranged::as_memory) {
    for (std::size_t h = vectors / 2; h > 0; h /= 2)
      for (std::size_t i = 0; i < h; ++i) u[i] = u[i] + u[i + h];
    return sum_by_halves(u[0]);
  }
  for (std::size_t h = vectors / 2; h > 1; h /= 2)
    for (std::size_t i = 0; i < h; ++i) u[i] = u[i] + u[i + h];
  return sum_zipped(u[0], u[1]);
}

// Adds a unit of each of R rows to the sums of T tokens: unit u, counted from any multiple of units_at_once on.
template <Order How, std::size_t R, std::size_t T>
PN_CPU_INLINE void add_units(const Unit (&units)[R], std::size_t u, const Bytes* x, std::size_t token_bytes,
                             Sums (&sums)[R][T]) {
  for (std::size_t i = 0; i < 4; ++i) {
    F32 even[R], odd[R];
    for (std::size_t r = 0; r < R; ++r) {
      even[r] = even_bf16(units[r].v[i]);
      odd[r] = odd_bf16(units[r].v[i]);
    }
    const std::size_t at = 2 * (4 * u + i) % sum_vectors;
    for (std::size_t m = 0; m < T; ++m) {
      const F32 x_even = load_f32(x + m * token_bytes + i * 8 * f32_lanes);
      const F32 x_odd = load_f32(x + m * token_bytes + i * 8 * f32_lanes + 4 * f32_lanes);
      for (std::size_t r = 0; r < R; ++r) {
        sums[r][m].v[at] = add_product<How>(even[r], x_even, sums[r][m].v[at]);
        sums[r][m].v[at + 1] = add_product<How>(odd[r], x_odd, sums[r][m].v[at + 1]);
      }
    }
  }
}

PN_CPU_INLINE Unit load_unit(const Bytes* weights) {
  Unit unit;
  for (std::size_t i = 0; i < 4; ++i) unit.v[i] = load_bits(weights + i * byte_lanes);
  return unit;
}

// Blocks of a row of plain BF16.
struct FromBf16 {
  static constexpr std::size_t block_bytes = 2 * p12::block_size;
  static constexpr Arranged arranged = Arranged::as_memory;
  // Two streams of memory are read faster than one, if the sums of two rows stay in registers.
  static constexpr std::size_t rows_of_one_token = sum_vectors > 8 ? 1 : 2;
  static constexpr std::size_t rows_of_long_token = rows_of_one_token;
  PN_CPU_INLINED static constexpr std::size_t near(std::size_t) { return 2048; }
  PN_CPU_INLINED static constexpr std::size_t far(std::size_t) { return 0; }
  const Bytes* block;
  PN_CPU_INLINE void open(FromBf16& from, const Bytes* block) { from.block = block; }
  PN_CPU_INLINE Unit unit(const FromBf16& from, std::size_t u) { return load_unit(from.block + u * 4 * byte_lanes); }
};

// Blocks of a row of BF16_P12. One that lists weights, as one in a hundred does, is unpacked as a whole first.
struct FromPacked {
  static constexpr std::size_t block_bytes = sizeof(p12::Block392);
  static constexpr Arranged arranged = Arranged::as_zipped;
  // Two rows at a time are read more slowly, but when x comes from the second-level cache they share it.
  static constexpr std::size_t rows_of_one_token = 1;
  static constexpr std::size_t rows_of_long_token = sum_vectors > 4 ? 1 : 2;
  PN_CPU_INLINED static constexpr std::size_t near(std::size_t rows) { return rows == 1 ? 4608 : 3072; }
  PN_CPU_INLINED static constexpr std::size_t far(std::size_t rows) { return 2 * near(rows); }
  const Bytes* block;
  ExponentBytes exponents;
  alignas(64) Bytes listed[2 * p12::block_size];
  PN_CPU_INLINE void open(FromPacked& from, const Bytes* block) {
    from.block = block;
    from.exponents = exponent_bytes(block[0]);
    if (__builtin_expect(block[1] != 0, 0)) decode_block<Arranged::as_zipped>(block, from.exponents, from.listed);
  }
  PN_CPU_INLINE Unit unit(const FromPacked& from, std::size_t u) {
    if (__builtin_expect(from.block[1] != 0, 0)) return load_unit(from.listed + u * 4 * byte_lanes);
    return decode_unit<Arranged::as_zipped>(from.block, from.exponents, u);
  }
};

// Asks for the memory that lies `near` bytes on, for the first-level cache, and `far` bytes on, for the second level:
// as much as unit u of a block has. R: rows at a time. Measured: unpacking keeps the core so busy that one distance
// does not fill the memory's queues; for plain BF16 it does.
template <class From, std::size_t R>
PN_CPU_INLINE void prefetch_unit(const Bytes* block, std::size_t u) {
  constexpr std::size_t bytes = From::block_bytes / units_per_block;
  constexpr std::size_t lines = (bytes + 63) / 64;
  for (std::size_t i = 0; i < lines; ++i) {
    const Bytes* at = block + u * bytes + i * bytes / lines;
    if (From::far(R) != 0) __builtin_prefetch(at + From::far(R), 0, 2);
    __builtin_prefetch(at + From::near(R));
  }
}

// Adds `blocks` blocks of R rows to the sums of T tokens.
template <class From, Order How, std::size_t R, std::size_t T>
PN_CPU_INLINE void add_blocks(const Bytes* const (&rows)[R], std::size_t blocks, const Bytes* x,
                              std::size_t token_bytes, Sums (&sums)[R][T]) {
  for (std::size_t b = 0; b < blocks; ++b, x += 4 * p12::block_size) {
    From from[R];
    for (std::size_t r = 0; r < R; ++r) From::open(from[r], rows[r] + b * From::block_bytes);
    for (std::size_t first = 0; first < units_per_block; first += units_at_once)
      for (std::size_t i = 0; i < units_at_once; ++i) {
        const std::size_t u = first + i;
        Unit units[R];
        for (std::size_t r = 0; r < R; ++r) {
          prefetch_unit<From, R>(from[r].block, u);
          units[r] = From::unit(from[r], u);
        }
        add_units<How>(units, i, x + u * 4 * unit_weights, token_bytes, sums);
      }
  }
}

template <class From>
PN_CPU_INLINE const Bytes* activations(const Multiply& job, std::size_t m) {
  return job.token(m) + (From::arranged == Arranged::as_zipped ? 4 * job.k : 0);
}

// From where on x had better be shared by two rows; measured with a first-level cache of 48 KiB.
inline constexpr std::size_t first_level_bytes = 48 << 10;

// ---- One token, or two: a row goes through as a whole, its sums stay in registers ----

template <class From, Order How, std::size_t R, std::size_t T>
PN_CPU_INLINE void multiply_row(const Multiply& job, std::size_t n) {
  Sums sums[R][T];
  const Bytes* rows[R];
  for (std::size_t r = 0; r < R; ++r) {
    rows[r] = job.row(n + r);
    for (Sums& s : sums[r])
      for (F32& v : s.v) v = zero_f32();
  }
  add_blocks<From, How>(rows, job.k / p12::block_size, activations<From>(job, 0), job.x->token_bytes, sums);
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t m = 0; m < T; ++m) job.store(m, n + r, total<From::arranged>(sums[r][m]));
}

template <class From, Order How, std::size_t R, std::size_t T>
PN_CPU_INLINE void multiply_rows_by(const Multiply& job) {
  std::size_t n = 0;
  for (; job.rows - n >= R; n += R) multiply_row<From, How, R, T>(job, n);
  for (; n < job.rows; ++n) multiply_row<From, How, 1, T>(job, n);
}

template <class From, Order How, std::size_t T>
static void multiply_rows(const Multiply& job) {
  if constexpr (T > 1)
    multiply_rows_by<From, How, 1, T>(job);
  else if (4 * job.k >= first_level_bytes)
    multiply_rows_by<From, How, From::rows_of_long_token, T>(job);
  else
    multiply_rows_by<From, How, From::rows_of_one_token, T>(job);
}

// ---- More tokens: a panel of rows goes through in pieces of K. A piece of each row is unpacked once; then one vector
// of sums after the other takes its products, in tiles of rows and tokens that share what they load of both ----

// A tile's sums, a vector of weights of each row and one of x fill the registers. With one vector of sums at a time the
// tile is large, and the larger it is, the less is loaded and taken out of bf16 for each product.
inline constexpr std::size_t tile_rows = vector_registers == 32 && f32_lanes > 4 ? 6 : 3;
inline constexpr std::size_t tile_tokens = 4;
inline constexpr std::size_t panel_rows = 6;
static_assert(panel_rows % tile_rows == 0, "tiles cover a panel");
// Longer pieces spend less on sums that come and go, but then x, weights and sums leave the first-level cache, and
// memory is asked for in longer bursts.
inline constexpr std::size_t piece_blocks = 4;

// Rows of a panel in a piece, and x for them. Rows that a panel lacks are the first one again.
struct Piece {
  const Bytes* rows[panel_rows];
  const Bytes* x;
  std::size_t token_bytes;
  std::size_t steps;  // of 64 weights, in which every vector of sums has its share
};

// Without this GCC loads v anew for every product that it is in, and loads become the limit.
PN_CPU_INLINE F32 in_register(F32 v) {
#if defined(__x86_64__)
  __asm__("" : "+v"(v));
#endif
  return v;
}

// Adds a piece to vector s of the sums of the rows from r on and T tokens from m on: sums[token][row] of the panel.
// Odd: is s?
template <Order How, bool Odd, std::size_t T>
static void add_tile(const Piece& piece, std::size_t s, std::size_t r, std::size_t m, F32 (*sums)[panel_rows]) {
  const Bytes* rows[tile_rows];
  F32 tile[tile_rows][T];  // not [T][tile_rows]: GCC would copy that as a block of memory, and leave it there
  for (std::size_t i = 0; i < tile_rows; ++i) {
    rows[i] = piece.rows[r + i] + s / 2 * byte_lanes;
    for (std::size_t t = 0; t < T; ++t) tile[i][t] = sums[m + t][r + i];
  }
  const Bytes* x = piece.x + m * piece.token_bytes + s * 4 * f32_lanes;
  std::size_t step = 0;
  do {
    F32 w[tile_rows];
    for (std::size_t i = 0; i < tile_rows; ++i) {
      const Bits weights = load_bits(rows[i] + step * 2 * partial_sums);
      w[i] = Odd ? odd_bf16(weights) : even_bf16(weights);
    }
    for (std::size_t t = 0; t < T; ++t) {
      const F32 of_token = in_register(load_f32(x + t * piece.token_bytes + step * 4 * partial_sums));
      for (std::size_t i = 0; i < tile_rows; ++i) tile[i][t] = add_product<How>(w[i], of_token, tile[i][t]);
    }
  } while (++step < piece.steps);
  for (std::size_t i = 0; i < tile_rows; ++i)
    for (std::size_t t = 0; t < T; ++t) sums[m + t][r + i] = tile[i][t];
}

// Memory to ask for while a piece is worked on, a little with every tile: where the next piece lies. All at once would
// take the buffers that also bring x and sums from the second-level cache.
struct Ahead {
  const Bytes* row;
  std::size_t stride;
  std::size_t rows;
  std::size_t bytes;  // of a row
  std::size_t done;   // bytes of the first row
  std::size_t lines_at_once;

  PN_CPU_INLINE void ask(Ahead& a) {
    for (std::size_t i = 0; i < a.lines_at_once && a.rows > 0; ++i) {
      __builtin_prefetch(a.row + a.done, 0, 2);
      a.done += 64;
      if (a.done < a.bytes) continue;
      a.row += a.stride;
      a.done = 0;
      --a.rows;
    }
  }
};

// From token m on, as long as there are T: the first `rows` rows of a panel, rounded up to tiles.
template <Order How, std::size_t T>
PN_CPU_INLINE void add_tiles(const Piece& piece, std::size_t s, std::size_t rows, std::size_t& m, std::size_t tokens,
                             F32 (*sums)[panel_rows], Ahead& ahead) {
  for (; tokens - m >= T; m += T)
    for (std::size_t r = 0; r < rows; r += tile_rows) {
      Ahead::ask(ahead);
      if (s % 2 == 0)
        add_tile<How, false, T>(piece, s, r, m, sums);
      else
        add_tile<How, true, T>(piece, s, r, m, sums);
    }
}

// Where `blocks` blocks of a row lie as bf16 that vectors load well: unpacked into `room`, or copied if not aligned.
PN_CPU_INLINE const Bytes* open_piece(FromBf16, const Bytes* row, std::size_t blocks, Bytes* room) {
  if (reinterpret_cast<std::uintptr_t>(row) % byte_lanes == 0) return row;
  for (std::size_t i = 0; i < blocks * FromBf16::block_bytes; i += byte_lanes) store_bits(room + i, load_bits(row + i));
  return room;
}
PN_CPU_INLINE const Bytes* open_piece(FromPacked, const Bytes* row, std::size_t blocks, Bytes* room) {
  for (std::size_t i = 0; i < blocks; ++i) {
    const Bytes* block = row + i * FromPacked::block_bytes;
    decode_block<Arranged::as_zipped>(block, exponent_bytes(block[0]), room + i * FromBf16::block_bytes);
  }
  return room;
}

template <class From, Order How>
static void multiply_panel(const Multiply& job, std::size_t n, std::size_t rows) {
  const std::size_t tokens = job.x->tokens;
  const std::size_t all = job.k / p12::block_size;
  const std::size_t pieces = (all + piece_blocks - 1) / piece_blocks;
  const std::size_t tiles =
      sum_vectors * ((rows + tile_rows - 1) / tile_rows) * ((tokens + tile_tokens - 1) / tile_tokens);
  const std::size_t rows_behind = job.rows - n - rows;
  alignas(64) Bytes room[panel_rows][piece_blocks * FromBf16::block_bytes + 64];  // rows not all in the same cache sets
  F32 sums[sum_vectors][max_tokens][panel_rows];
  for (std::size_t s = 0; s < sum_vectors; ++s)
    for (std::size_t m = 0; m < tokens; ++m)
      for (F32& v : sums[s][m]) v = zero_f32();
  Piece piece;
  piece.token_bytes = job.x->token_bytes;
  for (std::size_t b = 0, left = pieces; left > 0; --left) {
    const std::size_t blocks = (all - b) / left;
    for (std::size_t r = 0; r < rows; ++r)
      piece.rows[r] = open_piece(From{}, job.row(n + r) + b * From::block_bytes, blocks, room[r]);
    for (std::size_t r = rows; r < panel_rows; ++r) piece.rows[r] = piece.rows[0];
    piece.x = activations<From>(job, 0) + b * 4 * p12::block_size;
    piece.steps = blocks * p12::block_size / partial_sums;
    b += blocks;
    Ahead ahead = {job.row(n) + b * From::block_bytes, job.stride, rows, 0, 0, 0};
    if (left > 1) {
      ahead.bytes = (all - b) / (left - 1) * From::block_bytes;
    } else {
      ahead.row = job.row(n + rows);
      ahead.rows = rows_behind < panel_rows ? rows_behind : panel_rows;
      ahead.bytes = all / pieces * From::block_bytes;
    }
    ahead.lines_at_once = ahead.rows * ((ahead.bytes + 63) / 64) / tiles + 1;
    for (std::size_t s = 0; s < sum_vectors; ++s) {
      std::size_t m = 0;
      add_tiles<How, tile_tokens>(piece, s, rows, m, tokens, sums[s], ahead);
      add_tiles<How, 3>(piece, s, rows, m, tokens, sums[s], ahead);
      add_tiles<How, 2>(piece, s, rows, m, tokens, sums[s], ahead);
      add_tiles<How, 1>(piece, s, rows, m, tokens, sums[s], ahead);
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t m = 0; m < tokens; ++m) {
      Sums of_row;
      for (std::size_t s = 0; s < sum_vectors; ++s) of_row.v[s] = sums[s][m][r];
      job.store(m, n + r, total<From::arranged>(of_row));
    }
}

template <class From, Order How>
static void multiply_in_order(const Multiply& job) {
  const std::size_t tokens = job.x->tokens;
  if (tokens == 0) return;
  if (tokens == 1) return multiply_rows<From, How, 1>(job);
  if constexpr (sum_vectors <= 4) {  // where x stays in the first-level cache
    if (tokens == 2 && 8 * job.k <= first_level_bytes) return multiply_rows<From, How, 2>(job);
  }
  for (std::size_t n = 0; n < job.rows; n += panel_rows)
    multiply_panel<From, How>(job, n, job.rows - n < panel_rows ? job.rows - n : panel_rows);
}

template <class From>
static void multiply_p12(const Multiply& job, Order order) {
  if (order == Order::fast)
    multiply_in_order<From, Order::fast>(job);
  else
    multiply_in_order<From, Order::portable>(job);
}

}  // namespace pn::cpu::PN_CPU_ISA
