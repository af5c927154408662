// Vectors of floats from and to numbers of any type (Element) at any address. Written in the words of simd_*.hpp.
#pragma once

#include "kernels.hpp"

namespace pn::cpu::PN_CPU_ISA {

// pn::cpu::element_bytes, which files for one instruction set must not compile (see kernels.hpp).
PN_CPU_INLINE std::size_t bytes_of_one(Element element) { return element == Element::f32 ? 4 : 2; }

// Numbers from number i on.
PN_CPU_INLINE F32 load_weights(const Bytes* weights, Element element, std::size_t i) {
  switch (element) {
    case Element::f32: return load_f32(weights + 4 * i);
    case Element::f16: return load_f16(weights + 2 * i);
    case Element::bf16: break;
  }
  return load_bf16(weights + 2 * i);
}

PN_CPU_INLINE void store_as(Bytes* out, F32 v, Element element) {
  switch (element) {
    case Element::f32: return store_f32(out, v);
    case Element::f16: return store_f16(out, v);
    case Element::bf16: return store_bf16(out, v);
  }
}

}  // namespace pn::cpu::PN_CPU_ISA
