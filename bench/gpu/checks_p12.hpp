// gpu_bench: what the checks of BF16_P12 share.
#pragma once

#include <pncuda/pncuda_p12.h>

#include "blas.hpp"

namespace gpu_bench {

// A matrix packed and plain, rows without gaps.
struct Bf16Matrix {
  Repeated packed_pattern, plain_pattern;
  Shape shape;
  Bytes packed_bytes, plain_bytes;
  pncuda_weights packed, plain;

  Bf16Matrix(Repeated packed_blocks, Repeated plain_blocks, Shape s);
  const pncuda_weights& as(int type) const { return type == PNCUDA_BF16_P12 ? packed : plain; }
  std::int64_t blocks() const { return shape.k / block_of(PNCUDA_BF16_PLAIN); }
  const std::uint16_t* block(std::int64_t row, std::int64_t b) const {
    const std::size_t at = static_cast<std::size_t>(row * blocks() + b) * 512 % plain_pattern.period;
    return static_cast<const std::uint16_t*>(plain_pattern.data) + at / 2;
  }
  std::vector<float> row(std::int64_t r) const;
  std::string name() const { return "p12 " + name_of(shape); }
};

inline constexpr int bf16_types[] = {PNCUDA_BF16_P12, PNCUDA_BF16_PLAIN};
inline constexpr int p12_modes[] = {PNCUDA_ACCURATE, PNCUDA_PORTABLE};
inline const char* name_of_mode(int mode) { return mode == PNCUDA_PORTABLE ? "portable" : "accurate"; }

// Activations of tokens of different sizes, with outliers.
std::vector<float> p12_activations(std::int64_t k, std::int64_t tokens);

// The bytes of y by pncuda_gemv; x begins at token `first`.
std::vector<std::uint8_t> multiply(const pncuda_weights& weights, const Bytes& x, int x_type, std::int64_t first,
                                   std::int64_t tokens, int y_type, int mode);

// Sums in double, and S of pncuda.h: [row][token].
struct P12Exact {
  double y, s;
};
std::vector<P12Exact> exact_p12(const Bf16Matrix& m, const std::vector<std::int64_t>& rows, const std::vector<float>& x,
                                std::int64_t tokens);

// How far results [tokens][rows of the matrix] are from that: the largest |error| / S, and of the tokens the largest
// |errors|_2 / |y|_2. Infinite where something is NaN.
struct P12Errors {
  double of_s, norm;
};
P12Errors errors_of(const Bf16Matrix& m, const std::vector<std::int64_t>& rows, const std::vector<P12Exact>& exact,
                    const std::vector<float>& y, std::int64_t tokens);

// The same bits, but that one NaN is as good as another.
bool same_numbers(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b, int type);

// checks_p12_fused.cpp
void check_fused(const Options& options, const Bf16Matrix& m, Report& report);
void check_experts(const Options& options, const Bf16Matrix& m, Report& report);
void check_low_rank(const Bf16Matrix& m, Report& report);
void check_prompts(const Options& options, const Blas& blas, const Bf16Matrix& m, Report& report);

}  // namespace gpu_bench
