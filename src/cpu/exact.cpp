#include "exact.hpp"

#include <pn/dot.hpp>
#include <pn/half.hpp>
#include <pn/quantize.hpp>

namespace pn::cpu {

void load_floats(const Bytes* weights, Element element, std::size_t count, float* out) noexcept {
  if (element == Element::f32) {
    std::memcpy(out, weights, count * sizeof *out);
    return;
  }
  for (std::size_t e = 0; e < count; ++e) {
    const std::uint16_t bits = detail::load_le16(weights + 2 * e);
    out[e] = element == Element::bf16 ? bf16_to_float(bits) : half_to_float(bits);
  }
}

namespace {

// The fp16 scale of candidate i of a block.
template <class T>
class Candidates {
 public:
  explicit Candidates(const float* weights) noexcept {
    double highest = static_cast<double>(weights[0]);
    double lowest = highest;
    for (std::size_t e = 1; e < T::block_size; ++e) {
      const double w = static_cast<double>(weights[e]);
      highest = w > highest ? w : highest;
      lowest = w < lowest ? w : lowest;
    }
    sigma_ = detail::magnitude(lowest) > highest ? 1.0 : -1.0;
    amax_ =
        detail::magnitude(lowest) > detail::magnitude(highest) ? detail::magnitude(lowest) : detail::magnitude(highest);
  }
  std::uint16_t scale(int i) const noexcept { return detail::candidate_scale(i, sigma_, amax_, T::zero_point); }

 private:
  double sigma_;
  double amax_;
};

}  // namespace

template <class T>
int search_among(const float* weights, const double* importance, std::uint64_t candidates) noexcept {
  const Candidates<T> scales(weights);
  int best = -1;
  double best_error = 0;
  for (int i = 0; i < candidate_count; ++i) {
    if ((candidates >> i & 1u) == 0) continue;
    const double scale = static_cast<double>(half_to_float(scales.scale(i)));
    const double error = detail::block_error<T>(weights, importance, scale);
    if (best < 0 || error <= best_error) {
      best = i;
      best_error = error;
    }
  }
  return best;
}

template <class T>
void store_candidate(const float* weights, int candidate, Bytes* out) noexcept {
  const std::uint16_t scale = Candidates<T>(weights).scale(candidate);
  const double s = static_cast<double>(half_to_float(scale));
  std::uint8_t codes[T::block_size];
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double level = detail::nearest_level<T>(static_cast<double>(weights[e]), s);
    codes[e] = static_cast<std::uint8_t>(static_cast<int>(level) + T::zero_point);
  }
  Block34 block;
  pn::store_block<T>(scale, codes, block);
  std::memcpy(out, &block, sizeof block);
}

template int search_among<pn3t>(const float*, const double*, std::uint64_t) noexcept;
template int search_among<pn4t>(const float*, const double*, std::uint64_t) noexcept;
template void store_candidate<pn3t>(const float*, int, Bytes*) noexcept;
template void store_candidate<pn4t>(const float*, int, Bytes*) noexcept;

// Compared as integers, which compilers turn into vectors.
std::uint32_t largest_magnitude(const Bytes* x, std::size_t n) noexcept {
  constexpr std::size_t piece = 32;
  std::int32_t largest = 0;
  for (std::size_t start = 0; start < n; start += piece) {
    std::int32_t bits[piece] = {};
    const std::size_t count = n - start < piece ? n - start : piece;
    std::memcpy(bits, x + 4 * start, 4 * count);
    for (const std::int32_t v : bits) {
      const std::int32_t magnitude = v & 0x7FFFFFFF;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return static_cast<std::uint32_t>(largest);
}

Status check_activations(Activations kind, const Bytes* x, std::size_t k, std::size_t& bad) noexcept {
  for (std::size_t start = 0; start < k; start += q8_0_block_size) {
    const std::size_t count = k - start < q8_0_block_size ? k - start : q8_0_block_size;
    const std::uint32_t largest = largest_magnitude(x + 4 * start, count);
    bad = start;
    if (largest >= 0x7F800000u) {
      while ((detail::load_le32(x + 4 * bad) & 0x7FFFFFFFu) < 0x7F800000u) ++bad;
      return Status::not_finite;
    }
    if (kind == Activations::q8_0 && detail::bit_cast<float>(largest) / 127.0f >= 65520.0f)
      return Status::scale_overflow;
  }
  return Status::ok;
}

}  // namespace pn::cpu
