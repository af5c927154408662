// libpncuda: tiles of weights, or rows by their ids, to fp32, fp16 or bf16.
#include <pncuda/decode_pn.cuh>

#include "elements.cuh"
#include "kernels.hpp"

namespace pncuda {

namespace {

constexpr int threads = 128;
constexpr int resident = 16;  // blocks of threads on a multiprocessor

// A thread has two neighbouring columns, the first one even: they are a pair of one word.
template <class T>
__global__ void __launch_bounds__(threads, 4) decode(const Matrix weights, const DecodeRows what) {
  constexpr int block_size = static_cast<int>(T::block_size);
  constexpr int per_word = static_cast<int>(T::codes_per_word);
  const std::int64_t begin = what.first_column / 2 * 2;
  const std::int64_t end = what.first_column + what.columns;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads * 2;
  for (std::int64_t i = blockIdx.y; i < what.rows; i += gridDim.y) {
    const std::int64_t row = what.ids == nullptr ? what.first_row + i : load_id(what.ids, what.id_bytes, i);
    const bool exists = row >= 0 && row < weights.rows;
    void* const out = row_at(what.out, what.out_stride, i);
    for (std::int64_t column = begin + (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * 2;
         column < end; column += step) {
      float value[2] = {__uint_as_float(0x7FC00000u), __uint_as_float(0x7FC00000u)};
      if (exists) {
        // Divisions of 64 bits take a GPU long.
        const std::int32_t block = static_cast<std::int32_t>(
            end <= 0xFFFFFFFF ? static_cast<std::uint32_t>(column) / static_cast<std::uint32_t>(block_size)
                              : column / block_size);
        const int element = static_cast<int>(column - static_cast<std::int64_t>(block) * block_size);
        const BlockPlace place = block_place(weights, row, block);
        const std::uint32_t word = load_u32(weights.data + place.word(element / per_word));
        const float d = __half2float(__ushort_as_half(load_scale(weights.data + place.scale)));
        value[0] = weight<T>(d, word, element % per_word);
        value[1] = weight<T>(d, word, element % per_word + 1);
      }
      const std::int64_t to = column - what.first_column;
      const bool both = to >= 0 && column + 1 < end;
      if (what.out_type == PNCUDA_F32) {
        float* const p = static_cast<float*>(out) + to;
        if (both && reinterpret_cast<std::uintptr_t>(p) % 8 == 0) {
          *reinterpret_cast<float2*>(p) = make_float2(value[0], value[1]);
          continue;
        }
      } else {
        unsigned short* const p = static_cast<unsigned short*>(out) + to;
        if (both && reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
          *reinterpret_cast<std::uint32_t*>(p) =
              what.out_type == PNCUDA_F16 ? to_16_bits<PNCUDA_F16>(value[0]) |
                                                static_cast<std::uint32_t>(to_16_bits<PNCUDA_F16>(value[1])) << 16
                                          : to_16_bits<PNCUDA_BF16>(value[0]) |
                                                static_cast<std::uint32_t>(to_16_bits<PNCUDA_BF16>(value[1])) << 16;
          continue;
        }
      }
      if (to >= 0) store_element(out, what.out_type, to, value[0]);
      if (column + 1 < end) store_element(out, what.out_type, to + 1, value[1]);
    }
  }
}

}  // namespace

cudaError_t prepare_decode() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, decode<pn::pn3t>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, decode<pn::pn4t>);
}

template <class T>
cudaError_t launch_decode(const Device& device, const Matrix& weights, const DecodeRows& what, cudaStream_t stream) {
  const std::int64_t pairs = (what.columns + 2) / 2;
  return launch(decode<T>, grid_of_rows(device, resident, (pairs + threads - 1) / threads, what.rows), dim3(threads), 0,
                stream, weights, what);
}
template cudaError_t launch_decode<pn::pn3t>(const Device&, const Matrix&, const DecodeRows&, cudaStream_t);
template cudaError_t launch_decode<pn::pn4t>(const Device&, const Matrix&, const DecodeRows&, cudaStream_t);

}  // namespace pncuda
