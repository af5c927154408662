// The low-rank add-on of pn/cpu.hpp.
#include <pn/half.hpp>

#include "arguments.hpp"

namespace pn::cpu {
namespace {

bool is_good(const LowRank& adapter) noexcept {
  return adapter.rank >= 1 && adapter.rank <= max_rank &&
         (adapter.element == Element::f32 || adapter.element == Element::bf16);
}

// Number e of row m of a matrix of floats at any address, whose rows lie `stride` bytes apart.
const Bytes* at(const float* base, std::size_t m, std::size_t stride, std::size_t e) noexcept {
  return reinterpret_cast<const Bytes*>(base) + m * stride + e * sizeof(float);
}
Bytes* at(float* base, std::size_t m, std::size_t stride, std::size_t e) noexcept {
  return reinterpret_cast<Bytes*>(base) + m * stride + e * sizeof(float);
}

}  // namespace

Status low_rank_down(const LowRank& adapter, std::size_t k, const float* x, std::size_t x_stride, std::size_t tokens,
                     float* t, std::size_t t_stride, Isa isa) noexcept {
  if (!is_good(adapter)) return Status::bad_rank;
  if (tokens > max_tokens) return Status::too_many_tokens;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t r = 0; r < adapter.rank; ++r)
    for (std::size_t m = 0; m < tokens; ++m) {
      const float sum =
          table->dot(bytes_of(adapter.a) + r * adapter.a_stride, adapter.element, at(x, m, x_stride, 0), k);
      std::memcpy(at(t, m, t_stride, r), &sum, sizeof sum);
    }
  return Status::ok;
}

Status low_rank_up(const LowRank& adapter, std::size_t first, std::size_t rows, const float* t, std::size_t t_stride,
                   std::size_t tokens, const bool* enabled, float* y, std::size_t y_stride, Isa isa) noexcept {
  if (!is_good(adapter)) return Status::bad_rank;
  if (tokens > max_tokens) return Status::too_many_tokens;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t n = 0; n < rows; ++n)
    for (std::size_t m = 0; m < tokens; ++m) {
      if (enabled != nullptr && !enabled[m]) continue;
      const float sum = table->dot(bytes_of(adapter.b) + (first + n) * adapter.b_stride, adapter.element,
                                   at(t, m, t_stride, 0), adapter.rank);
      float result = 0;
      std::memcpy(&result, at(y, m, y_stride, n), sizeof result);
      result += pn::detail::unfused_product(adapter.scale, sum);
      std::memcpy(at(y, m, y_stride, n), &result, sizeof result);
    }
  return Status::ok;
}

}  // namespace pn::cpu
