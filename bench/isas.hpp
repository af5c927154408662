// Which instruction sets a kernel is measured with, and how numbers are named.
#pragma once

#include <pn/cpu.hpp>
#include <pn/half.hpp>
#include <string>

#include "bench.hpp"

namespace bench {

using pn::cpu::Element;
using pn::cpu::Isa;

// Calls with the best instruction set and no suffix, then with every lesser one and its name: "@avx2".
template <class Function>
void for_each_isa(Function function) {
  const pn::cpu::IsaList list = pn::cpu::isas();
  for (std::size_t i = 0; i < list.size(); ++i)
    function(list.items[i], i == 0 ? "" : std::string("@") + pn::cpu::isa_name(list.items[i]));
}

inline std::string element_name(Element element) {
  return element == Element::f32 ? "f32" : (element == Element::f16 ? "f16" : "bf16");
}

inline Set& element_set(Element element) {
  return element == Element::f32 ? f32_set() : (element == Element::f16 ? f16_set() : bf16_set());
}

// A number of a row as fp32.
inline float load_element(const std::uint8_t* row, Element element, std::size_t i) {
  if (element == Element::f32) {
    const auto* const bytes = row + 4 * i;
    return pn::detail::bit_cast<float>(pn::detail::load_le32(bytes));
  }
  const std::uint16_t bits = pn::detail::load_le16(row + 2 * i);
  return element == Element::f16 ? pn::half_to_float(bits) : pn::bf16_to_float(bits);
}

// Does a row of results hold these numbers, rounded to what it holds?
inline bool holds(const std::uint8_t* row, Element element, const float* expected, std::size_t k) {
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t bits = pn::detail::bit_cast<std::uint32_t>(expected[i]);
    if (element == Element::f32 && pn::detail::load_le32(row + 4 * i) != bits) return false;
    if (element == Element::f16 && pn::detail::load_le16(row + 2 * i) != pn::float_to_half(expected[i])) return false;
    if (element == Element::bf16 && pn::detail::load_le16(row + 2 * i) != pn::float_to_bf16(expected[i])) return false;
  }
  return true;
}

}  // namespace bench
