// pn: the scalar reference dot products of a PN row, against fp32 and against Q8_0 activations. Every product is
// exact in double; the sum runs in double in element order and is rounded once to fp32.
#ifndef PN_DOT_HPP
#define PN_DOT_HPP

#include <pn/block34.hpp>
#include <pn/decode.hpp>
#include <pn/float_env.hpp>
#include <pn/half.hpp>
#include <pn/status.hpp>

PN_EXACT_ARITHMETIC_BEGIN

namespace pn {

// 32 activations as ggml's Q8_0 (type id 8) holds them: value = d * qs. Alignment 1.
struct BlockQ8_0 {
  std::uint8_t d[2];   // scale, fp16, little-endian
  std::int8_t qs[32];  // -127 .. 127 as ggml makes them
};
static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 1, "a Q8_0 block is 34 bytes at any address");

// Activations of a Q8_0 block.
inline constexpr std::size_t q8_0_block_size = 32;

namespace detail {

template <class T>
PN_HOST_DEVICE PN_NOINLINE float dot_f32_in_default_environment(const Block34* row, const float* x,
                                                                std::size_t k) noexcept {
  double sum = 0;
  for (std::size_t b = 0; b < block_count<T>(k); ++b) {
    float weights[T::block_size] = {};
    decode_block<T>(row[b], weights);
    for (std::size_t e = 0; e < T::block_size; ++e)
      sum += static_cast<double>(weights[e]) * static_cast<double>(x[b * T::block_size + e]);
  }
  return static_cast<float>(sum);
}

template <class T>
PN_HOST_DEVICE PN_NOINLINE float dot_q8_0_in_default_environment(const Block34* row, const BlockQ8_0* x,
                                                                 std::size_t k) noexcept {
  double sum = 0;
  for (std::size_t b = 0; b < block_count<T>(k); ++b) {
    float weights[T::block_size] = {};
    decode_block<T>(row[b], weights);
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const std::size_t i = b * T::block_size + e;
      const BlockQ8_0& xb = x[i / q8_0_block_size];
      const double activation = static_cast<double>(half_to_float(load_le16(xb.d))) * xb.qs[i % q8_0_block_size];
      sum += static_cast<double>(weights[e]) * activation;
    }
  }
  return static_cast<float>(sum);
}

PN_HOST_DEVICE PN_NOINLINE inline Status quantize_q8_0_in_default_environment(const float* x, std::size_t k,
                                                                              BlockQ8_0* out,
                                                                              std::size_t* bad) noexcept {
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t magnitude = bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u) {
      if (bad != nullptr) *bad = i;
      return Status::not_finite;
    }
  }
  for (std::size_t b = 0; b < k / q8_0_block_size; ++b) {
    const float* xb = x + b * q8_0_block_size;
    float amax = 0;
    for (std::size_t e = 0; e < q8_0_block_size; ++e) {
      const float a = xb[e] < 0 ? -xb[e] : xb[e];
      amax = a > amax ? a : amax;
    }
    const float d = amax / 127.0f;
    const float id = d > 0x1p-128f ? 1.0f / d : 0.0f;  // up to 2^-128, 1 / d is beyond fp32: every code is 0
    store_le16(out[b].d, float_to_half(d));
    for (std::size_t e = 0; e < q8_0_block_size; ++e) {
      const float scaled = unfused_product(xb[e], id);
      int q = static_cast<int>(scaled);
      const float rest = scaled - static_cast<float>(q);  // exact
      if (rest >= 0.5f) ++q;                              // halves away from zero
      if (rest <= -0.5f) --q;
      out[b].qs[e] = static_cast<std::int8_t>(q);
    }
  }
  return Status::ok;
}

}  // namespace detail

// *y = the dot product of a PN row with k floats. bad_length when k is not a multiple of block_size.
template <class T>
PN_HOST_DEVICE inline Status dot_f32(const Block34* row, const float* x, std::size_t k, float* y) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const detail::DefaultFloatEnvironment environment;
#endif
  *y = detail::dot_f32_in_default_environment<T>(row, x, k);
  return Status::ok;
}

// *y = the dot product of a PN row with k activations in k / 32 Q8_0 blocks. bad_length when k is not a multiple of
// both block_size and 32.
template <class T>
PN_HOST_DEVICE inline Status dot_q8_0(const Block34* row, const BlockQ8_0* x, std::size_t k, float* y) noexcept {
  if (k % T::block_size != 0 || k % q8_0_block_size != 0) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const detail::DefaultFloatEnvironment environment;
#endif
  *y = detail::dot_q8_0_in_default_environment<T>(row, x, k);
  return Status::ok;
}

// k floats to k / 32 Q8_0 blocks, the arithmetic of ggml's reference: d = amax / 127 and 1 / d in fp32, codes
// rounded to nearest with halves away from zero, d stored to nearest even. bad_length when k is not a multiple of 32;
// not_finite, with nothing written, when x[*bad] is a NaN or an infinity. A scale beyond fp16 becomes infinite, as in
// ggml: amax must stay below 127 * 65520.
PN_HOST_DEVICE inline Status quantize_row_q8_0(const float* x, std::size_t k, BlockQ8_0* out,
                                               std::size_t* bad = nullptr) noexcept {
  if (k % q8_0_block_size != 0) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const detail::DefaultFloatEnvironment environment;
#endif
  return detail::quantize_q8_0_in_default_environment(x, k, out, bad);
}

}  // namespace pn

PN_EXACT_ARITHMETIC_END

#endif  // PN_DOT_HPP
