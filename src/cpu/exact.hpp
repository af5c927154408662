// What the SIMD quantizers leave to the core: blocks whose result hangs on the last bits of a sum, and faults. Compiled
// once, for any processor, so that files for one instruction set may call it.
#pragma once

#include "layout.hpp"

namespace pn::cpu {

// `count` weights at any address as floats.
void load_floats(const Bytes* weights, Element element, std::size_t count, float* out) noexcept;

// One block of weights as floats.
template <class T>
void load_block(const Bytes* weights, Element element, float* out) noexcept {
  load_floats(weights, element, T::block_size, out);
}

// Block b of a row at any address.
inline Block34 load_block34(const Bytes* row, std::size_t b) noexcept {
  Block34 block;
  std::memcpy(&block, row + b * sizeof block, sizeof block);
  return block;
}

// The candidate (0..35) that the reference search takes among those with their bit in `candidates` set, each of which
// has a usable scale. importance: null, or not all 0. The float environment is the default one, the weights are finite.
template <class T>
int search_among(const float* weights, const double* importance, std::uint64_t candidates) noexcept;

// The block under candidate i, with codes found by division.
template <class T>
void store_candidate(const float* weights, int candidate, Bytes* out) noexcept;

// The bits of the largest magnitude of n floats at any address; 0x7F800000 or more when one is not finite.
std::uint32_t largest_magnitude(const Bytes* x, std::size_t n) noexcept;

// Are all of k floats finite (i16), and is each scale an fp16 (q8_0)? not_finite or scale_overflow; `bad`: the element,
// or the first element of the 32.
Status check_activations(Activations kind, const Bytes* x, std::size_t k, std::size_t& bad) noexcept;

}  // namespace pn::cpu
