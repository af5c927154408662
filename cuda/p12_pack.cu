// libpncuda: bf16 rows to canonical BF16_P12 blocks (p12/FORMAT.md), the bytes of p12::pack_row.
#include <p12/block392.hpp>
#include <pncuda/decode_pn.cuh>  // Matrix

#include "kernels.hpp"
#include "p12.cuh"

namespace pncuda {

namespace {

constexpr int warps = 8;
constexpr int exponents = 256;

__device__ __forceinline__ int exponent_of(std::uint32_t weight) { return static_cast<int>(weight >> 7 & 0xFFu); }

// The canonical base of a block whose exponents do not all lie in one window: the one with the most weights inside, of
// those the largest. Lane i decides among bases 8i .. 8i + 7; `counts` is the warp's.
__device__ __forceinline__ int best_base(const int (&exponent)[8], int lane, unsigned int* counts) {
#pragma unroll
  for (int j = 0; j < 8; ++j) counts[8 * lane + j] = 0;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 8; ++j) atomicAdd(counts + exponent[j], 1u);
  __syncwarp();
  unsigned int inside = 0;
  unsigned int best = 0;  // count above base
  for (int j = 0; j < p12::window; ++j) inside += 8 * lane + j < exponents ? counts[8 * lane + j] : 0;
  for (int j = 0; j < 8; ++j) {
    const int base = 8 * lane + j;
    if (base <= p12::max_base) {
      const unsigned int key = inside << 8 | static_cast<unsigned int>(base);
      best = max(best, key);
    }
    inside -= counts[base];
    inside += base + p12::window < exponents ? counts[base + p12::window] : 0;
  }
#pragma unroll
  for (int offset = warp_size / 2; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(all_lanes, best, offset));
  __syncwarp();  // the counts are read before the next block's
  return static_cast<int>(best & 0xFFu);
}

// A warp has one block at a time; lane i has weights 8i .. 8i + 7, a word.
__global__ void __launch_bounds__(warps* warp_size)
    p12_pack(const Matrix plain, std::uint8_t* out, std::int64_t out_stride, unsigned long long* first_bad) {
  PNCUDA_SHARED(unsigned int, shared);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  unsigned int* const counts = shared + warp * exponents;
  const std::int64_t blocks = plain.blocks;
  for (std::int64_t row = blockIdx.y; row < plain.rows; row += gridDim.y)
    for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * warps + warp; block < blocks;
         block += static_cast<std::int64_t>(gridDim.x) * warps) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(plain.data + row * plain.row_stride +
                                                           block * PlainWeights::block_bytes + 16 * lane));
      const std::uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
      int exponent[8];
      int lowest = 255, highest = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        exponent[j] = exponent_of((j & 1) != 0 ? pairs[j / 2] >> 16 : pairs[j / 2]);
        lowest = min(lowest, exponent[j]);
        highest = max(highest, exponent[j]);
      }
#pragma unroll
      for (int offset = warp_size / 2; offset > 0; offset /= 2) {
        lowest = min(lowest, __shfl_xor_sync(all_lanes, lowest, offset));
        highest = max(highest, __shfl_xor_sync(all_lanes, highest, offset));
      }
      // Nearly all blocks: no weight is listed, and the rule comes down to this.
      int base = min(lowest, p12::max_base);
      if (highest - lowest >= p12::window) base = best_base(exponent, lane, counts);

      // Codes, and who is listed: lanes have ascending places.
      std::uint32_t codes = 0;
      std::uint32_t outside = 0;  // one bit for each of the eight
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int code = exponent[j] - base;
        if (code >= 0 && code < p12::window)
          codes |= static_cast<std::uint32_t>(code) << p12::code_shift(static_cast<std::size_t>(j));
        else
          outside |= 1u << j;
      }
      std::uint64_t head = static_cast<std::uint64_t>(base);
      int listed = 0;
      for (unsigned lanes = __ballot_sync(all_lanes, outside != 0); lanes != 0 && listed <= p12::max_listed;
           lanes &= lanes - 1) {
        const int from = __ffs(static_cast<int>(lanes)) - 1;
        const std::uint32_t bits = __shfl_sync(all_lanes, outside, from);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if ((bits >> j & 1u) == 0) continue;
          const std::uint32_t true_exponent = static_cast<std::uint32_t>(__shfl_sync(all_lanes, exponent[j], from));
          if (listed < p12::max_listed)
            head |= static_cast<std::uint64_t>(8 * from + j) << (16 + 8 * listed) |
                    static_cast<std::uint64_t>(true_exponent) << (40 + 8 * listed);
          ++listed;
        }
      }
      if (listed > p12::max_listed) {
        if (lane == 0) atomicMin(first_bad, static_cast<unsigned long long>(row * blocks + block));
        continue;
      }
      head |= static_cast<std::uint64_t>(listed) << 8;
      std::uint8_t* const to = out + row * out_stride + block * p12_block_bytes;
      // Bytes 1 and 3 of two pairs are signs and exponents' upper bits, bytes 0 and 2 the rest.
      std::uint32_t remainder[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        remainder[half] = (__byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x7531) & 0x80808080u) |
                          (__byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x6420) & 0x7F7F7F7Fu);
      if (lane == 0)
        *reinterpret_cast<uint2*>(to) =
            make_uint2(static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(head >> 32));
      *reinterpret_cast<std::uint32_t*>(to + p12_codes_at + 4 * lane) = codes;
      *reinterpret_cast<uint2*>(to + p12_remainder_at + 8 * lane) = make_uint2(remainder[0], remainder[1]);
    }
}

}  // namespace

cudaError_t prepare_p12_pack() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, p12_pack);
}

cudaError_t launch_p12_pack(const Matrix& plain, std::uint8_t* out, std::int64_t out_stride, std::int64_t* first_bad,
                            cudaStream_t stream) {
  // All ones is -1, and the largest number for the kernel's minimum.
  if (const cudaError_t error = cudaMemsetAsync(first_bad, 0xFF, sizeof(std::int64_t), stream); error != cudaSuccess) {
    cudaGetLastError();
    return error;
  }
  if (plain.rows == 0 || plain.blocks == 0) return cudaSuccess;
  const dim3 grid(grid_of((std::int64_t{plain.blocks} + warps - 1) / warps), grid_of(plain.rows, 65535));
  return launch(p12_pack, grid, dim3(warps * warp_size), warps * exponents * sizeof(unsigned int), stream, plain, out,
                out_stride, reinterpret_cast<unsigned long long*>(first_bad));
}

}  // namespace pncuda
