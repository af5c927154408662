// pn: the reference quantizer. The bytes are defined by FORMAT.md; they are the same from every compiler, at every
// optimisation level and under any floating-point environment of the caller.
//
// Contract of the functions below
//   weights     block_size or k finite floats
//   importance  as many finite doubles >= 0 (one per column), or null: plain squared error, the reference search
//   out         one block, or k / block_size blocks; not written unless the status is ok
//   bad         optional; receives the index of the offending element (not_finite, bad_importance) or of the first
//               element of the offending block (scale_overflow)
//   returns     ok, bad_length (k is not a multiple of block_size), not_finite, bad_importance, scale_overflow
#ifndef PN_QUANTIZE_HPP
#define PN_QUANTIZE_HPP

#include <pn/block34.hpp>
#include <pn/float_env.hpp>
#include <pn/half.hpp>
#include <pn/status.hpp>

PN_EXACT_ARITHMETIC_BEGIN

namespace pn {

// The search tries this many scales per block: m = 0.50, 0.52, .. 1.20 times amax / zero_point.
inline constexpr int candidate_count = 36;

namespace detail {

PN_HOST_DEVICE inline double magnitude(double x) noexcept { return x < 0 ? -x : x; }

PN_HOST_DEVICE inline bool is_finite(float x) noexcept {
  return (bit_cast<std::uint32_t>(x) & 0x7F800000u) != 0x7F800000u;
}
PN_HOST_DEVICE inline bool is_importance(double g) noexcept {
  return (bit_cast<std::uint64_t>(g) & 0x7FF0000000000000u) != 0x7FF0000000000000u && g >= 0;
}

// The fp16 scale of candidate i (0..35), with one rounding from double.
PN_HOST_DEVICE inline std::uint16_t candidate_scale(int i, double sigma, double amax, int zero_point) noexcept {
  const double m = (50 + 2 * i) / 100.0;
  return double_to_half(sigma * m * amax / zero_point);
}

// rint(w / scale), ties to even, clamped to the codes of T; as code - zero_point.
template <class T>
PN_HOST_DEVICE inline double nearest_level(double w, double scale) noexcept {
  constexpr double lowest = -T::zero_point;
  constexpr double highest = T::zero_point - 1;
  double q = w / scale;
  q = q < lowest ? lowest : q;  // clamping first gives the same code: both ends are integers
  q = q > highest ? highest : q;
  constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves no fraction bits
  return (q + shifter) - shifter;
}

// Error of a block under one scale: squared errors, weighted where `importance` is given, summed in element order.
template <class T>
PN_HOST_DEVICE inline double block_error(const float* weights, const double* importance, double scale) noexcept {
  double error = 0;
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double w = static_cast<double>(weights[e]);
    const double r = w - scale * nearest_level<T>(w, scale);  // the product is exact
    const double squared = unfused_product(r, r);             // exact: r has at most 25 significant bits
    error += importance != nullptr ? unfused_product(importance[e], squared) : squared;
  }
  return error;
}

// The search, for a block that is known to have a usable candidate. Expects the default environment.
template <class T>
PN_HOST_DEVICE inline void search_block(const float* weights, const double* importance, Block34& out) noexcept {
  double highest = static_cast<double>(weights[0]);
  double lowest = highest;
  bool weighted = false;
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double w = static_cast<double>(weights[e]);
    highest = w > highest ? w : highest;
    lowest = w < lowest ? w : lowest;
    if (importance != nullptr && importance[e] > 0) weighted = true;
  }
  if (!weighted) importance = nullptr;                            // no column matters: searched as the reference does
  const double sigma = magnitude(lowest) > highest ? 1.0 : -1.0;  // the largest magnitude gets code 0
  const double amax = magnitude(lowest) > magnitude(highest) ? magnitude(lowest) : magnitude(highest);

  std::uint16_t best_scale = 0;
  double best_error = 0;
  for (int i = 0; amax != 0 && i < candidate_count; ++i) {
    const std::uint16_t scale = candidate_scale(i, sigma, amax, T::zero_point);
    if ((scale & 0x7FFFu) == 0 || (scale & 0x7C00u) == 0x7C00u) continue;
    const double error = block_error<T>(weights, importance, static_cast<double>(half_to_float(scale)));
    if (best_scale == 0 || error <= best_error) {  // on a tie the larger m, which comes later
      best_scale = scale;
      best_error = error;
    }
  }

  std::uint8_t codes[T::block_size] = {};
  const double scale = static_cast<double>(half_to_float(best_scale));
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double level = best_scale == 0 ? 0.0 : nearest_level<T>(static_cast<double>(weights[e]), scale);
    codes[e] = static_cast<std::uint8_t>(static_cast<int>(level) + T::zero_point);
  }
  store_block<T>(best_scale, codes, out);
}

// First pass over a row: everything that could fail, so that the second pass writes only rows that cannot.
template <class T>
PN_HOST_DEVICE inline Status inspect_row(const float* weights, const double* importance, std::size_t k,
                                         std::size_t* bad) noexcept {
  for (std::size_t start = 0; start < k; start += T::block_size) {
    double amax = 0;
    for (std::size_t e = start; e < start + T::block_size; ++e) {
      Status status = Status::ok;
      if (!is_finite(weights[e]))
        status = Status::not_finite;
      else if (importance != nullptr && !is_importance(importance[e]))
        status = Status::bad_importance;
      if (status != Status::ok) {
        if (bad != nullptr) *bad = e;
        return status;
      }
      const double w = magnitude(static_cast<double>(weights[e]));
      amax = w > amax ? w : amax;
    }
    // The smallest candidate overflows only when all do.
    if ((candidate_scale(0, 1.0, amax, T::zero_point) & 0x7C00u) == 0x7C00u) {
      if (bad != nullptr) *bad = start;
      return Status::scale_overflow;
    }
  }
  return Status::ok;
}

template <class T>
PN_HOST_DEVICE PN_NOINLINE Status quantize_in_default_environment(const float* weights, const double* importance,
                                                                  std::size_t k, Block34* out,
                                                                  std::size_t* bad) noexcept {
  const Status status = inspect_row<T>(weights, importance, k, bad);
  if (status != Status::ok) return status;
  for (std::size_t b = 0; b < block_count<T>(k); ++b) {
    const std::size_t start = b * T::block_size;
    search_block<T>(weights + start, importance != nullptr ? importance + start : nullptr, out[b]);
  }
  return Status::ok;
}

}  // namespace detail

// A row of k weights with an importance per column (null: none).
template <class T>
PN_HOST_DEVICE inline Status quantize_row(const float* weights, const double* importance, std::size_t k, Block34* out,
                                          std::size_t* bad = nullptr) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
#if !defined(__CUDA_ARCH__)
  const detail::DefaultFloatEnvironment environment;
#endif
  return detail::quantize_in_default_environment<T>(weights, importance, k, out, bad);
}

// A row of k weights.
template <class T>
PN_HOST_DEVICE inline Status quantize_row(const float* weights, std::size_t k, Block34* out,
                                          std::size_t* bad = nullptr) noexcept {
  return quantize_row<T>(weights, nullptr, k, out, bad);
}

// One block: a row of block_size weights.
template <class T>
PN_HOST_DEVICE inline Status quantize_block(const float* weights, Block34& out, std::size_t* bad = nullptr) noexcept {
  return quantize_row<T>(weights, nullptr, T::block_size, &out, bad);
}

}  // namespace pn

PN_EXACT_ARITHMETIC_END

#endif  // PN_QUANTIZE_HPP
