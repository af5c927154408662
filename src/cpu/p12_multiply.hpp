// y = x W^T for BF16 and BF16_P12. One piece of code for both, which differ only in where a unit of bf16 comes from: so
// packed and unpacked weights give the same bits.
//
// The order is the one that p12/cpu.hpp states. 32 partial sums lie in 32 / f32_lanes vectors: a vector of 2 * f32_lanes
// bf16 gives its even weights to one and its odd weights to the next, as bf16 come out of 32-bit words by a shift and a
// mask. Prepared x has the same order: in every 2 * f32_lanes values the even ones before the odd ones.
#pragma once

#include "p12_codec.hpp"

namespace pn::cpu::PN_CPU_ISA {

inline constexpr std::size_t partial_sums = 32;
inline constexpr std::size_t sum_vectors = partial_sums / f32_lanes;

static void prepare(const Bytes* x, std::size_t k, Bytes* token) {
  for (std::size_t i = 0; i < k; i += 2 * f32_lanes) {
    F32 even, odd;
    split_even_odd(load_f32(x + 4 * i), load_f32(x + 4 * (i + f32_lanes)), even, odd);
    store_f32(token + 4 * i, even);
    store_f32(token + 4 * (i + f32_lanes), odd);
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

PN_CPU_INLINE float total(const Sums& s) {
  // u[i] = s[2i] + s[2i+1], 16 of them, then halves.
  F32 u[sum_vectors / 2];
  for (std::size_t i = 0; i < sum_vectors / 2; ++i) u[i] = s.v[2 * i] + s.v[2 * i + 1];
  for (std::size_t h = sum_vectors / 4; h > 0; h /= 2)
    for (std::size_t i = 0; i < h; ++i) u[i] = u[i] + u[i + h];
  return sum_by_halves(u[0]);
}

// Adds the four vectors of unit u of a row to the sums of T tokens.
template <Order How, std::size_t T>
PN_CPU_INLINE void add_unit(const Unit& unit, const Bytes* x, std::size_t token_bytes, Sums (&sums)[T]) {
  for (std::size_t i = 0; i < 4; ++i) {
    const F32 even = even_bf16(unit.v[i]);
    const F32 odd = odd_bf16(unit.v[i]);
    const std::size_t at = 2 * i % sum_vectors;
    for (std::size_t m = 0; m < T; ++m) {
      const Bytes* xs = x + m * token_bytes + i * 8 * f32_lanes;
      sums[m].v[at] = add_product<How>(even, load_f32(xs), sums[m].v[at]);
      sums[m].v[at + 1] = add_product<How>(odd, load_f32(xs + 4 * f32_lanes), sums[m].v[at + 1]);
    }
  }
}

PN_CPU_INLINE Unit load_unit(const Bytes* weights) {
  Unit unit;
  for (std::size_t i = 0; i < 4; ++i) unit.v[i] = load_bits(weights + i * byte_lanes);
  return unit;
}

// How far ahead of the reads memory is asked for, in bytes.
inline constexpr std::size_t prefetch_distance = 2048;

PN_CPU_INLINE void prefetch(const Bytes* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + prefetch_distance + i);
}

struct FromBf16 {
  static constexpr std::size_t block_bytes = 2 * p12::block_size;
  template <Order How, std::size_t T>
  PN_CPU_INLINE void add_block(const Bytes* block, const Bytes* x, std::size_t token_bytes, Sums (&sums)[T]) {
    for (std::size_t u = 0; u < units_per_block; ++u)
      add_unit<How>(load_unit(block + u * 4 * byte_lanes), x + u * 4 * unit_weights, token_bytes, sums);
  }
};

struct FromPacked {
  static constexpr std::size_t block_bytes = sizeof(p12::Block392);
  template <Order How, std::size_t T>
  PN_CPU_INLINE void add_block(const Bytes* block, const Bytes* x, std::size_t token_bytes, Sums (&sums)[T]) {
    if (__builtin_expect(block[1] != 0, 0)) {
      alignas(64) Bytes weights[2 * p12::block_size];
      decode_block(block, weights);
      FromBf16::add_block<How>(weights, x, token_bytes, sums);
      return;
    }
    const ExponentBytes exponents = exponent_bytes(block[0]);
    for (std::size_t u = 0; u < units_per_block; ++u)
      add_unit<How>(decode_unit(block, exponents, u), x + u * 4 * unit_weights, token_bytes, sums);
  }
};

// Rows of T tokens from token m on.
template <class From, Order How, std::size_t T>
static void multiply_tokens(const Multiply& job, std::size_t m) {
  const std::size_t blocks = job.k / p12::block_size;
  const Bytes* x = job.token(m);
  for (std::size_t n = 0; n < job.rows; ++n) {
    const Bytes* row = job.row(n);
    Sums sums[T];
    for (Sums& s : sums)
      for (F32& v : s.v) v = zero_f32();
    for (std::size_t b = 0; b < blocks; ++b) {
      prefetch(row + b * From::block_bytes, From::block_bytes);
      From::template add_block<How>(row + b * From::block_bytes, x + b * 4 * p12::block_size, job.x->token_bytes, sums);
    }
    for (std::size_t i = 0; i < T; ++i) job.result(m + i, n) = total(sums[i]);
  }
}

template <class From, Order How>
static void multiply_in_order(const Multiply& job) {
  const std::size_t tokens = job.x->tokens;
  std::size_t m = 0;
  for (; tokens - m >= 4; m += 4) multiply_tokens<From, How, 4>(job, m);
  switch (tokens - m) {
    case 1: multiply_tokens<From, How, 1>(job, m); break;
    case 2: multiply_tokens<From, How, 2>(job, m); break;
    case 3: multiply_tokens<From, How, 3>(job, m); break;
    default: break;
  }
}

template <class From>
static void multiply_p12(const Multiply& job, Order order) {
  if (order == Order::fast)
    multiply_in_order<From, Order::fast>(job);
  else
    multiply_in_order<From, Order::portable>(job);
}

}  // namespace pn::cpu::PN_CPU_ISA
