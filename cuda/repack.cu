// libpncuda: native blocks to the repacked layout and back (decode_pn.cuh).
#include <pncuda/decode_pn.cuh>

#include "device.cuh"
#include "kernels.hpp"

namespace pncuda {

namespace {

constexpr int items = 9;     // of a block: the scale and eight words
constexpr int at_once = 28;  // blocks that a block of threads takes at a time
constexpr int threads = at_once * items;

__device__ __forceinline__ void store_u32(std::uint8_t* p, std::uint32_t v) {
  if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(p) = v;
  } else {
    reinterpret_cast<std::uint16_t*>(p)[0] = static_cast<std::uint16_t>(v & 0xFFFFu);
    reinterpret_cast<std::uint16_t*>(p)[1] = static_cast<std::uint16_t>(v >> 16);
  }
}

__global__ void __launch_bounds__(threads, 4) repack(const Matrix from, const Matrix to) {
  const int item = static_cast<int>(threadIdx.x) % items;
  const int first = static_cast<int>(blockIdx.x) * at_once + static_cast<int>(threadIdx.x) / items;
  const int step = static_cast<int>(gridDim.x) * at_once;
  std::uint8_t* const out = const_cast<std::uint8_t*>(to.data);
  for (std::int64_t row = blockIdx.y; row < from.rows; row += gridDim.y)
    for (std::int64_t block = first; block < from.blocks; block += step) {
      const BlockPlace source = block_place(from, row, static_cast<std::int32_t>(block));
      const BlockPlace target = block_place(to, row, static_cast<std::int32_t>(block));
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
  const dim3 grid(grid_of((std::int64_t{from.blocks} + at_once - 1) / at_once, 65535), grid_of(from.rows, 65535));
  return launch(repack, grid, dim3(threads), 0, stream, from, to);
}

}  // namespace pncuda
