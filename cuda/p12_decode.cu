// libpncuda: tiles of BF16_P12 or plain BF16 weights, or rows by their ids, to bf16, fp32 or fp16.
#include <pncuda/decode_pn.cuh>  // Matrix

#include "kernels.hpp"
#include "p12.cuh"

namespace pncuda {

namespace {

constexpr int threads = 128;
constexpr int resident = 16;  // blocks of threads on a multiprocessor

// The bits of a weight as an element; bf16 and fp32 keep every bit.
__device__ __forceinline__ unsigned short as_half(std::uint32_t f32_bits) {
  return to_16_bits<PNCUDA_F16>(__uint_as_float(f32_bits));
}

// Eight weights, those of them that lie in columns begin .. end - 1 of the output.
__device__ __forceinline__ void store_word(const std::uint32_t (&pairs)[4], void* out, int type, std::int64_t to,
                                           std::int64_t end) {
  std::uint32_t v[8];  // fp32 bits
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[2 * j] = bf16_low_as_f32(pairs[j]);
    v[2 * j + 1] = bf16_high_as_f32(pairs[j]);
  }
  std::uint32_t halves[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    halves[j] =
        type == PNCUDA_F16 ? as_half(v[2 * j]) | static_cast<std::uint32_t>(as_half(v[2 * j + 1])) << 16 : pairs[j];
  if (to >= 0 && to + 8 <= end) {
    unsigned char* const p = static_cast<unsigned char*>(out) + to * element_bytes(type);
    if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
      uint4* const wide = reinterpret_cast<uint4*>(p);
      if (type == PNCUDA_F32) {
        wide[0] = make_uint4(v[0], v[1], v[2], v[3]);
        wide[1] = make_uint4(v[4], v[5], v[6], v[7]);
      } else {
        wide[0] = make_uint4(halves[0], halves[1], halves[2], halves[3]);
      }
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (to + j < 0 || to + j >= end) continue;
    if (type == PNCUDA_F32)
      static_cast<std::uint32_t*>(out)[to + j] = v[j];
    else
      static_cast<unsigned short*>(out)[to + j] =
          static_cast<unsigned short>((j & 1) != 0 ? halves[j / 2] >> 16 : halves[j / 2] & 0xFFFFu);
  }
}

// A thread has one word of a block at a time.
template <class W>
__global__ void __launch_bounds__(threads) p12_decode(const Matrix weights, const DecodeRows what) {
  const std::int64_t first_word = what.first_column / 8;
  const std::int64_t words = (what.first_column + what.columns + 7) / 8 - first_word;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = blockIdx.y; i < what.rows; i += gridDim.y) {
    const std::int64_t row = what.ids == nullptr ? what.first_row + i : load_id(what.ids, what.id_bytes, i);
    const bool exists = row >= 0 && row < weights.rows;
    void* const out = row_at(what.out, what.out_stride, i);
    for (std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; word < words;
         word += step) {
      std::uint32_t pairs[4] = {0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u};
      const std::int64_t at = first_word + word;
      if (exists) {
        const std::uint8_t* const block = weights.data + row * weights.row_stride + at / p12_words * W::block_bytes;
        const int index = static_cast<int>(at % p12_words);
        const typename W::Place place = W::place(block, index);
        typename W::template Words<1> held;
        W::load_head(place, 0, held);
        W::load_word(place, 0, 0, 0, held);
        held.pairs(0, pairs);
        if (!W::all_plain(held.mark())) held.patch(0, index, pairs);
      }
      store_word(pairs, out, what.out_type, at * 8 - what.first_column, what.columns);
    }
  }
}

}  // namespace

cudaError_t prepare_p12_decode() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, p12_decode<P12Weights>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, p12_decode<PlainWeights>);
}

cudaError_t launch_p12_decode(const Device& device, bool packed, const Matrix& weights, const DecodeRows& what,
                              cudaStream_t stream) {
  const std::int64_t words = what.columns / 8 + 2;
  const dim3 grid = grid_of_rows(device, resident, (words + threads - 1) / threads, what.rows);
  return launch(packed ? p12_decode<P12Weights> : p12_decode<PlainWeights>, grid, dim3(threads), 0, stream, weights,
                what);
}

}  // namespace pncuda
