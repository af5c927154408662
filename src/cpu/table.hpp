// The last lines of every file for one instruction set: its table of kernels.
#pragma once

#include "p12_multiply.hpp"
#include "pn_batch.hpp"
#include "pn_codec.hpp"
#include "pn_multiply.hpp"
#include "pn_quantize.hpp"
#include "pn_rotate.hpp"
#include "pn_round.hpp"

namespace pn::cpu::PN_CPU_ISA {

static void convert(const Bytes* in, Element from, std::size_t count, Bytes* out, Element to) {
  const std::size_t in_bytes = bytes_of_one(from);
  const std::size_t out_bytes = bytes_of_one(to);
  std::size_t e = 0;
  for (; e + f32_lanes <= count; e += f32_lanes) store_as(out + e * out_bytes, load_weights(in, from, e), to);
  if (e == count) return;
  alignas(64) Bytes tail[2][4 * f32_lanes] = {};
  __builtin_memcpy(tail[0], in + e * in_bytes, (count - e) * in_bytes);
  store_as(tail[1], load_weights(tail[0], from, 0), to);
  __builtin_memcpy(out + e * out_bytes, tail[1], (count - e) * out_bytes);
}

// Numbers of a low-rank add-on's row times x: any k.
static float dot(const Bytes* a, Element element, const Bytes* x, std::size_t k) {
  const std::size_t bytes = bytes_of_one(element);
  F32 sum = zero_f32();
  std::size_t e = 0;
  for (; e + f32_lanes <= k; e += f32_lanes)
    sum = fma(load_weights(a + e * bytes, element, 0), load_f32(x + 4 * e), sum);
  if (e < k) {
    alignas(64) Bytes tail[2][4 * f32_lanes] = {};
    __builtin_memcpy(tail[0], a + e * bytes, (k - e) * bytes);
    __builtin_memcpy(tail[1], x + 4 * e, (k - e) * 4);
    sum = fma(load_weights(tail[0], element, 0), load_f32(tail[1]), sum);
  }
  return sum_by_halves(sum);
}

template <class T>
constexpr PnKernels pn_kernels() {
  return {quantize<T>,  inspect<T>,        error<T>,       valid<T>,         dequantize<T>,
          round_i16<T>, WithQ8<T>::layout, multiply_pn<T>, multiply_batch<T>};
}

constexpr Kernels all_kernels(Isa isa) {
  return {isa,
          round_q8_0,
          rotate,
          pn_kernels<pn3t>(),
          pn_kernels<pn4t>(),
          {pack, scan, unpack, valid_p12, prepare, multiply_p12<FromPacked>, multiply_p12<FromBf16>},
          convert,
          dot};
}

}  // namespace pn::cpu::PN_CPU_ISA
