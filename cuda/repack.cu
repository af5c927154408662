// libpncuda: native blocks to the repacked layout and back (decode_pn.cuh).
#include <pncuda/decode_pn.cuh>

#include "device.cuh"
#include "kernels.hpp"

namespace pncuda {

namespace {

constexpr int items_per_block = 9;  // eight words and the scale
constexpr int threads = 256;

__device__ __forceinline__ void store_u32(std::uint8_t* p, std::uint32_t v) {
  if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(p) = v;
  } else {
    reinterpret_cast<std::uint16_t*>(p)[0] = static_cast<std::uint16_t>(v & 0xFFFFu);
    reinterpret_cast<std::uint16_t*>(p)[1] = static_cast<std::uint16_t>(v >> 16);
  }
}

__global__ void __launch_bounds__(threads) repack(const Matrix from, const Matrix to) {
  const std::int64_t items = static_cast<std::int64_t>(from.blocks) * items_per_block;  // of a row
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t row = blockIdx.y; row < from.rows; row += gridDim.y)
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < items; i += step) {
      const std::int32_t block = static_cast<std::int32_t>(i / items_per_block);
      const int item = static_cast<int>(i % items_per_block);
      const BlockPlace source = block_place(from, row, block);
      const BlockPlace target = block_place(to, row, block);
      std::uint8_t* const out = const_cast<std::uint8_t*>(to.data);
      if (item == 0)
        *reinterpret_cast<std::uint16_t*>(out + target.scale) = load_scale(from.data + source.scale);
      else
        store_u32(out + target.word(item - 1), load_u32(from.data + source.word(item - 1)));
    }
}

}  // namespace

cudaError_t prepare_repack() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, repack);
}

cudaError_t launch_repack(const Matrix& from, const Matrix& to, cudaStream_t stream) {
  const std::int64_t items = static_cast<std::int64_t>(from.blocks) * items_per_block;
  return launch(repack, dim3(grid_of((items + threads - 1) / threads), grid_of(from.rows, 65535)), dim3(threads), 0,
                stream, from, to);
}

}  // namespace pncuda
