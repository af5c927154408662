// What every instruction set gives: a table of kernels. The functions behind the public headers check arguments, choose
// a table and call; kernels trust their arguments.
//
// A file that is compiled for one instruction set (avx2.cpp, ..) may include nothing whose inline functions others
// compile too: the linker keeps one copy of such a function, and it could be the one that needs AVX-512. Types and
// constants of the core are fine, its functions and std:: functions are not; tests/cpu/test_symbols.py holds to that.
#pragma once

#include <p12/cpu.hpp>
#include <pn/cpu.hpp>

#include "layout.hpp"

namespace pn::cpu {

// The beginning of prepared activations; token m follows at 64 + m * token_bytes. More than four tokens in i16 follow
// as a batch does. Of a group of a batch: token_bytes are those of all its tokens.
struct alignas(64) Prepared {
  std::uint64_t magic;
  std::uint64_t k;
  std::uint64_t token_bytes;  // a multiple of 64
  std::uint32_t tokens;
  std::uint8_t isa;
  std::uint8_t kind;  // Activations
  std::uint8_t bits;  // of a weight's code: 3 or 4; 16 for BF16 and BF16_P12
};
static_assert(sizeof(Prepared) == 64, "token 0 follows at 64");

// What to multiply: `rows` rows of k weights.
struct Multiply {
  const Bytes* weights;
  std::size_t stride;
  std::size_t rows;
  std::size_t k;
  const Prepared* x;
  float* y;
  std::size_t y_stride;  // bytes between tokens

  PN_CPU_INLINED const Bytes* row(std::size_t n) const { return weights + n * stride; }
  PN_CPU_INLINED const Bytes* token(std::size_t m) const {
    return reinterpret_cast<const Bytes*>(x) + sizeof(Prepared) + m * x->token_bytes;
  }
  // x of group g of a batch.
  PN_CPU_INLINED const Bytes* group(std::size_t g) const {
    return reinterpret_cast<const Bytes*>(x) + sizeof(Prepared) + g * (sizeof(Prepared) + x->token_bytes);
  }
  PN_CPU_INLINED Bytes* result(std::size_t m, std::size_t n) const {
    return reinterpret_cast<Bytes*>(y) + m * y_stride + n * sizeof *y;
  }
  PN_CPU_INLINED void store(std::size_t m, std::size_t n, float value) const {
    __builtin_memcpy(result(m, n), &value, sizeof value);
  }
};

struct PnKernels {
  // One row of `blocks` blocks, already known to be free of faults (see inspect).
  void (*quantize)(const Bytes* weights, Element element, std::size_t blocks, const double* importance, Bytes* out);
  // Whether a row has nothing that the quantizer refuses: a weight that is not finite, or too large for fp16 scales.
  bool (*inspect)(const Bytes* weights, Element element, std::size_t blocks);
  // One row: sixteen partial sums of g * (w - v)^2, then sixteen of g * w^2.
  void (*error)(const Bytes* weights, Element element, std::size_t blocks, const double* importance, const Bytes* in,
                double* sums);
  bool (*valid)(const Bytes* in, std::size_t blocks);
  void (*dequantize)(const Bytes* in, std::size_t blocks, Bytes* out, Element element);
  // A block of activations to the scale and the codes of Activations::i16. Not finite when one of them is not; then the
  // codes are unspecified.
  float (*round_i16)(const Bytes* x, std::int32_t* q);
  Q8Layout q8_layout;  // that multiply reads
  void (*multiply)(const Multiply& job);
  void (*multiply_batch)(const Multiply& job, std::size_t tokens);
};

struct P12Kernels {
  // Packs blocks and adds them to *tally (if not null); returns the index of the first that does not fit, or `blocks`.
  std::size_t (*pack)(const Bytes* weights, std::size_t blocks, Bytes* out, p12::RowScan* tally);
  void (*scan)(const Bytes* weights, std::size_t blocks, p12::RowScan& tally);
  void (*unpack)(const Bytes* in, std::size_t blocks, Bytes* out, Element element, Stores stores);
  bool (*valid)(const Bytes* in, std::size_t blocks);
  void (*prepare)(const Bytes* x, std::size_t k, Bytes* token);
  void (*multiply)(const Multiply& job, Order order);
  void (*multiply_bf16)(const Multiply& job, Order order);
};

struct Kernels {
  Isa isa;
  // As round_i16, for 32 activations and Q8_0; the scale is that of fp16, infinite when it is beyond.
  float (*round_q8_0)(const Bytes* x, std::int32_t* q);
  // One segment of b activations, rotated, with the scale that ends it; out may be x.
  void (*rotate)(const Bytes* x, std::size_t b, float scale, Bytes* out);
  PnKernels pn3t;
  PnKernels pn4t;
  P12Kernels p12;
  // Two different types.
  void (*convert)(const Bytes* in, Element from, std::size_t count, Bytes* out, Element to);
  // sum over k of a[k] * x[k]; a: f32 or bf16.
  float (*dot)(const Bytes* a, Element element, const Bytes* x, std::size_t k);
};

template <class T>
const PnKernels& kernels_of(const Kernels& table) {
  if constexpr (T::bits == 3)
    return table.pn3t;
  else
    return table.pn4t;
}

extern const Kernels baseline_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512_icl_kernels;
extern const Kernels neon_kernels;

// The table of an instruction set; null when there is none for this processor.
const Kernels* kernels(Isa isa) noexcept;

}  // namespace pn::cpu
