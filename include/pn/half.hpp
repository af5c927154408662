// pn: conversions between fp16, bf16, fp32 and double. Integer arithmetic only, so the result does not depend on
// compiler flags, on the rounding mode or on flush-to-zero modes. fp16 and bf16 values travel as their 16 bits.
//
// Rounding is to nearest, ties to even, in ONE step from the source type. Values beyond the largest finite one
// become infinities (fp16: |x| >= 65520). A NaN keeps its sign and the top bits of its payload and becomes quiet.
#ifndef PN_HALF_HPP
#define PN_HALF_HPP

#include <pn/config.hpp>

namespace pn {

// fp16 -> fp32, exact.
PN_HOST_DEVICE constexpr std::uint32_t half_to_float_bits(std::uint16_t half) noexcept {
  const std::uint32_t sign = (static_cast<std::uint32_t>(half) & 0x8000u) << 16;
  std::uint32_t exponent = (static_cast<std::uint32_t>(half) >> 10) & 0x1Fu;
  std::uint32_t mantissa = static_cast<std::uint32_t>(half) & 0x3FFu;
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return sign | 0x7F800000u | quiet | (mantissa << 13);
  }
  if (exponent == 0) {
    if (mantissa == 0) return sign;
    exponent = 1;  // subnormal: normalise
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;  // wraps below 0; the sum below is right modulo 2^32
    }
    mantissa &= 0x3FFu;
  }
  return sign | ((exponent + (127u - 15u)) << 23) | (mantissa << 13);
}

// fp16 to fp32, exactly.
PN_HOST_DEVICE PN_CONSTEXPR_BITS float half_to_float(std::uint16_t half) noexcept {
  return detail::bit_cast<float>(half_to_float_bits(half));
}

// The bits of a double -> fp16.
PN_HOST_DEVICE constexpr std::uint16_t double_bits_to_half(std::uint64_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 48) & 0x8000u;
  const std::uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFu;
  if (magnitude > 0x7FF0000000000000u) {
    const std::uint32_t payload = static_cast<std::uint32_t>(magnitude >> 42) & 0x3FFu;
    return static_cast<std::uint16_t>(sign | 0x7E00u | payload);
  }
  if (magnitude >= 0x40EFFE0000000000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // >= 65520

  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent < -25) return static_cast<std::uint16_t>(sign);  // below half of the smallest subnormal
  const std::uint64_t significand = (magnitude & 0xFFFFFFFFFFFFFu) | 0x10000000000000u;  // value * 2^(52 - exponent)
  const bool normal = exponent >= -14;
  const int drop = normal ? 42 : 28 - exponent;  // bits below the last one kept; a subnormal's unit is 2^-24
  std::uint32_t kept = static_cast<std::uint32_t>(significand >> drop);
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  const std::uint64_t tie = std::uint64_t{1} << (drop - 1);
  if (rest > tie || (rest == tie && (kept & 1u) != 0)) ++kept;
  // `kept` holds the implicit bit of a normal number, which carries into the exponent field by addition.
  const std::uint32_t exponent_field = normal ? static_cast<std::uint32_t>(exponent + 14) << 10 : 0u;
  return static_cast<std::uint16_t>(sign | (exponent_field + kept));
}

// Rounded once to the nearest fp16, ties to even; beyond its range infinite.
PN_HOST_DEVICE PN_CONSTEXPR_BITS std::uint16_t double_to_half(double value) noexcept {
  return double_bits_to_half(detail::bit_cast<std::uint64_t>(value));
}

// The bits of an fp32 -> fp16.
PN_HOST_DEVICE constexpr std::uint16_t float_bits_to_half(std::uint32_t bits) noexcept {
  const std::uint64_t sign = static_cast<std::uint64_t>(bits & 0x80000000u) << 32;
  const std::uint64_t exponent = (bits >> 23) & 0xFFu;
  const std::uint64_t mantissa = static_cast<std::uint64_t>(bits & 0x7FFFFFu) << 29;
  if (exponent == 0) return double_bits_to_half(sign);  // zero, or too small for fp16 anyway
  const std::uint64_t wide = exponent == 255 ? 2047u : exponent + (1023u - 127u);
  return double_bits_to_half(sign | (wide << 52) | mantissa);
}

// Rounded once to the nearest fp16, ties to even; beyond its range infinite.
PN_HOST_DEVICE PN_CONSTEXPR_BITS std::uint16_t float_to_half(float value) noexcept {
  return float_bits_to_half(detail::bit_cast<std::uint32_t>(value));
}

// bf16 -> fp32, exact (bit 15..0 become bit 31..16); a signalling NaN stays as it is.
PN_HOST_DEVICE PN_CONSTEXPR_BITS float bf16_to_float(std::uint16_t bf16) noexcept {
  return detail::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

// The bits of an fp32 -> bf16.
PN_HOST_DEVICE constexpr std::uint16_t float_bits_to_bf16(std::uint32_t bits) noexcept {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Rounded to the nearest bf16, ties to even.
PN_HOST_DEVICE PN_CONSTEXPR_BITS std::uint16_t float_to_bf16(float value) noexcept {
  return float_bits_to_bf16(detail::bit_cast<std::uint32_t>(value));
}

// The bits of a double -> bf16.
PN_HOST_DEVICE constexpr std::uint16_t double_bits_to_bf16(std::uint64_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 48) & 0x8000u;
  const std::uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFu;
  if (magnitude > 0x7FF0000000000000u) {
    const std::uint32_t top = static_cast<std::uint32_t>(magnitude >> 45) & 0x7Fu;
    return static_cast<std::uint16_t>(sign | 0x7FC0u | top);
  }
  if (magnitude >= 0x47EFF00000000000u) return static_cast<std::uint16_t>(sign | 0x7F80u);  // >= 2^128 - 2^119

  // As double_bits_to_half, with 7 bits of mantissa and subnormals below 2^-126 in units of 2^-133.
  const int power = static_cast<int>(magnitude >> 52) - 1023;
  if (power < -134) return static_cast<std::uint16_t>(sign);
  const std::uint64_t digits = (magnitude & 0xFFFFFFFFFFFFFu) | 0x10000000000000u;
  const int cut = power >= -126 ? 45 : -81 - power;
  const std::uint64_t below = digits & ((std::uint64_t{1} << cut) - 1);
  const std::uint64_t half = std::uint64_t{1} << (cut - 1);
  std::uint32_t result = static_cast<std::uint32_t>(digits >> cut);
  if (below > half || (below == half && result % 2 == 1)) ++result;
  if (power >= -126) result += static_cast<std::uint32_t>(power + 126) << 7;
  return static_cast<std::uint16_t>(sign | result);
}

// Rounded once to the nearest bf16, ties to even.
PN_HOST_DEVICE PN_CONSTEXPR_BITS std::uint16_t double_to_bf16(double value) noexcept {
  return double_bits_to_bf16(detail::bit_cast<std::uint64_t>(value));
}

}  // namespace pn

#endif  // PN_HALF_HPP
