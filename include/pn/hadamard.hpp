// pn: the Hadamard rotation of weights and of activations. The bits are defined by FORMAT.md; they are the same from
// every compiler, at every optimisation level and under any floating-point environment of the caller.
//
// Contract of the functions below
//   k, b        k values in segments of b, each rotated for itself. b is 64, 128, 256, 512 or 1024 and divides k. k is
//               the length of a row; or of several whole rows at once, when b divides the length of each.
//   in          k floats, weights or decoded weights, all finite; any alignment that a float has
//   out         k values of the target type, not written unless the status is ok. As floats it may be `in` itself;
//               otherwise the two must not overlap.
//   bad         optional; receives the index of the offending element (not_finite)
//   returns     ok, bad_length (b is no Hadamard block or does not divide k), or not_finite: a NaN or an infinity among
//               the weights, or a result that rounds to an infinity in the target type. The first segment with a fault
//               is reported, in it a weight before a result; in[*bad] tells which it was.
//
// The rotation is its own inverse: the same functions rotate and undo. The stack holds 8 KiB for a segment.
#ifndef PN_HADAMARD_HPP
#define PN_HADAMARD_HPP

#include <pn/float_env.hpp>
#include <pn/half.hpp>
#include <pn/status.hpp>

PN_EXACT_ARITHMETIC_BEGIN

namespace pn {

// The largest segment.
inline constexpr std::size_t max_hadamard_block = 1024;

// Whether b is a length of segments: 64, 128, 256, 512 or 1024.
PN_HOST_DEVICE constexpr bool is_hadamard_block(std::size_t b) noexcept {
  return b == 64 || b == 128 || b == 256 || b == 512 || b == 1024;
}

// The constant c that ends a rotation: 1/sqrt(b), rounded to double; 0 when b is no Hadamard block.
PN_HOST_DEVICE constexpr double hadamard_scale(std::size_t b) noexcept {
  switch (b) {
    case 64: return 0.125;
    case 128: return 0x1.6a09e667f3bcdp-4;
    case 256: return 0.0625;
    case 512: return 0x1.6a09e667f3bcdp-5;
    case 1024: return 0.03125;
    default: return 0.0;
  }
}

namespace detail {

// What the doubles of a rotation become. No result is larger than sqrt(1024) = 32 times the largest weight of its
// segment, so below the weight `overflow_from` (fp32 bits) none can overflow.
struct RotatedToDouble {
  using type = double;
  static constexpr std::uint32_t overflow_from = 0x7F800000u;  // never
  PN_HOST_DEVICE static type rounded(double x) noexcept { return x; }
  PN_HOST_DEVICE static bool is_finite(type) noexcept { return true; }
};
struct RotatedToFloat {
  using type = float;
  static constexpr std::uint32_t overflow_from = 0x7C800000u;  // 2^122
  PN_HOST_DEVICE static type rounded(double x) noexcept { return static_cast<float>(x); }
  PN_HOST_DEVICE static bool is_finite(type x) noexcept {
    return (bit_cast<std::uint32_t>(x) & 0x7F800000u) != 0x7F800000u;
  }
};
struct RotatedToHalf {
  using type = std::uint16_t;
  static constexpr std::uint32_t overflow_from = 0x44800000u;  // 2^10
  PN_HOST_DEVICE static type rounded(double x) noexcept { return double_to_half(x); }
  PN_HOST_DEVICE static bool is_finite(type x) noexcept { return (x & 0x7C00u) != 0x7C00u; }
};
struct RotatedToBf16 {
  using type = std::uint16_t;
  static constexpr std::uint32_t overflow_from = RotatedToFloat::overflow_from;
  PN_HOST_DEVICE static type rounded(double x) noexcept { return double_to_bf16(x); }
  PN_HOST_DEVICE static bool is_finite(type x) noexcept { return (x & 0x7F80u) != 0x7F80u; }
};

PN_HOST_DEVICE constexpr bool whole_segments(std::size_t k, std::size_t b) noexcept {
  return is_hadamard_block(b) && k % b == 0;
}

// The butterflies of one segment, in place; what is left to do is the scale.
template <class F>
PN_HOST_DEVICE inline void hadamard_butterflies(F* x, std::size_t b) noexcept {
  for (std::size_t h = 1; h < b; h *= 2)
    for (std::size_t run = 0; run < b; run += 2 * h)
      for (std::size_t j = run; j < run + h; ++j) {
        const F first = x[j];
        const F second = x[j + h];
        x[j] = first + second;
        x[j + h] = first - second;
      }
}

// One segment of floats, rotated in double.
PN_HOST_DEVICE inline void rotate_segment(const float* in, double* x, std::size_t b) noexcept {
  for (std::size_t j = 0; j < b; ++j) x[j] = static_cast<double>(in[j]);
  hadamard_butterflies(x, b);
  const double scale = hadamard_scale(b);
  for (std::size_t j = 0; j < b; ++j) x[j] *= scale;
}

// First everything that could fail, then the row. No addition follows a product, within the function or (as it is not
// inlined) behind it, so there is nothing that a compiler could fuse.
template <class Target>
PN_HOST_DEVICE PN_NOINLINE Status rotate_weights_in_default_environment(const float* in, typename Target::type* out,
                                                                        std::size_t k, std::size_t b,
                                                                        std::size_t* bad) noexcept {
  double x[max_hadamard_block];
  for (std::size_t start = 0; start < k; start += b) {
    std::uint32_t largest = 0;
    for (std::size_t j = 0; j < b; ++j) {
      const std::uint32_t magnitude = bit_cast<std::uint32_t>(in[start + j]) & 0x7FFFFFFFu;
      if (magnitude >= 0x7F800000u) {
        if (bad != nullptr) *bad = start + j;
        return Status::not_finite;
      }
      largest = magnitude > largest ? magnitude : largest;
    }
    if (largest < Target::overflow_from) continue;
    rotate_segment(in + start, x, b);
    for (std::size_t j = 0; j < b; ++j)
      if (!Target::is_finite(Target::rounded(x[j]))) {
        if (bad != nullptr) *bad = start + j;
        return Status::not_finite;
      }
  }
  for (std::size_t start = 0; start < k; start += b) {
    rotate_segment(in + start, x, b);
    for (std::size_t j = 0; j < b; ++j) out[start + j] = Target::rounded(x[j]);
  }
  return Status::ok;
}

template <class Target>
PN_HOST_DEVICE inline Status rotate_weights(const float* in, typename Target::type* out, std::size_t k, std::size_t b,
                                            std::size_t* bad) noexcept {
  if (!whole_segments(k, b)) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const DefaultFloatEnvironment environment;
#endif
  return rotate_weights_in_default_environment<Target>(in, out, k, b, bad);
}

PN_HOST_DEVICE PN_NOINLINE inline void rotate_activations_in_default_environment(float* x, std::size_t k,
                                                                                 std::size_t b) noexcept {
  const float scale = static_cast<float>(hadamard_scale(b));
  for (std::size_t start = 0; start < k; start += b) {
    hadamard_butterflies(x + start, b);
    for (std::size_t j = 0; j < b; ++j) x[start + j] *= scale;
  }
}

}  // namespace detail

// Weights, before they are quantized or after they were decoded: butterflies and scale in double, rounded once to fp32.
PN_HOST_DEVICE inline Status hadamard_weights(const float* in, float* out, std::size_t k, std::size_t b,
                                              std::size_t* bad = nullptr) noexcept {
  return detail::rotate_weights<detail::RotatedToFloat>(in, out, k, b, bad);
}
// The same, not rounded.
PN_HOST_DEVICE inline Status hadamard_weights(const float* in, double* out, std::size_t k, std::size_t b,
                                              std::size_t* bad = nullptr) noexcept {
  return detail::rotate_weights<detail::RotatedToDouble>(in, out, k, b, bad);
}
// The same, rounded once from double to fp16.
PN_HOST_DEVICE inline Status hadamard_weights_to_half(const float* in, std::uint16_t* out, std::size_t k, std::size_t b,
                                                      std::size_t* bad = nullptr) noexcept {
  return detail::rotate_weights<detail::RotatedToHalf>(in, out, k, b, bad);
}
// The same, rounded once from double to bf16.
PN_HOST_DEVICE inline Status hadamard_weights_to_bf16(const float* in, std::uint16_t* out, std::size_t k, std::size_t b,
                                                      std::size_t* bad = nullptr) noexcept {
  return detail::rotate_weights<detail::RotatedToBf16>(in, out, k, b, bad);
}

// Activations, in place, for engines: butterflies and scale in fp32, every operation rounded to fp32. Returns ok or
// bad_length. Whatever the values are: infinities, and NaN of whatever bits the machine makes, run through.
PN_HOST_DEVICE inline Status hadamard_activations(float* x, std::size_t k, std::size_t b) noexcept {
  if (!detail::whole_segments(k, b)) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const detail::DefaultFloatEnvironment environment;
#endif
  detail::rotate_activations_in_default_environment(x, k, b);
  return Status::ok;
}

}  // namespace pn

PN_EXACT_ARITHMETIC_END

#endif  // PN_HADAMARD_HPP
