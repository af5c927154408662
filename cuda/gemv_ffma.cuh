// libpncuda: y[m][n] = sum over k of x[m][k] * w[n][k] without tensor cores, sm_60 to sm_75. A warp multiplies a few
// rows, 16 blocks at a time; codes go into multiply-adds as subnormal numbers, by one AND each (decode_pn.cuh).
#ifndef PNCUDA_GEMV_FFMA_CUH
#define PNCUDA_GEMV_FFMA_CUH

#include "gemv.cuh"
#include "kernels.hpp"

namespace pncuda {

// Rows of a warp: what it loads of x serves all of them.
template <int tokens>
inline constexpr int warp_rows = tokens == 1 ? 4 : 2;

// What a lane has of a tile of `rows` rows.
template <int rows>
struct TileRows {
  Quarters row[rows];
};

// Walks over the tiles of `rows` rows; rows beyond the last one of the matrix repeat it.
template <int rows, bool repacked>
class TileCursor {
 public:
  __device__ __forceinline__ TileCursor(const Matrix& m, std::int64_t first, int lane) : blocks_(m.blocks) {
    if constexpr (repacked) {
      row_in_tile_ = static_cast<int>(first % tile_rows);
      at_ = m.data + (first - row_in_tile_) * m.row_stride + row_in_tile_ * tile_row_bytes + lane * 16;
    } else {
      at_ = m.data + first * m.row_stride + (lane >> 2) * (2 * block_bytes);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        row_[r] = first + r < m.rows ? r * m.row_stride : (m.rows - 1 - first) * m.row_stride;
    }
  }

  // The next tile.
  __device__ __forceinline__ TileRows<rows> load(int lane) {
    TileRows<rows> tile;
    if constexpr (!repacked) {
      const int blocks = blocks_ - (lane >> 2) * 2;
#pragma unroll
      for (int r = 0; r < rows; ++r) tile.row[r] = load_quarters(at_ + row_[r], blocks, lane & 3);
      at_ += tile_blocks * block_bytes;
    } else if (blocks_ >= tile_blocks) {
      load_repacked(tile, lane);
      at_ += tile_bytes;
    } else {
      // What is left of each row lies in native form where the next tile would begin.
      const std::uint8_t* const rest = at_ - (row_in_tile_ * tile_row_bytes + lane * 16);
      const int blocks = blocks_ - (lane >> 2) * 2;
      const int before = row_in_tile_ * blocks_ + (lane >> 2) * 2;
#pragma unroll
      for (int r = 0; r < rows; ++r)
        tile.row[r] = load_quarters(rest + (before + r * blocks_) * block_bytes, blocks, lane & 3);
    }
    blocks_ -= tile_blocks;
    return tile;
  }

 private:
  __device__ __forceinline__ void load_repacked(TileRows<rows>& tile, int lane) const {
    const std::uint8_t* const at = at_ + (tile_scales + (lane >> 2) * (4 * tile_rows) + 4 * row_in_tile_ -
                                          row_in_tile_ * tile_row_bytes - lane * 16);
    std::uint32_t scales[rows];
    if constexpr (rows == 4) {
      const uint4 v = load_streaming(reinterpret_cast<const uint4*>(at));
      scales[0] = v.x;
      scales[1] = v.y;
      scales[2] = v.z;
      scales[3] = v.w;
    } else {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(at));
      scales[0] = v.x;
      scales[1] = v.y;
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const uint4 v = load_streaming(reinterpret_cast<const uint4*>(at_ + r * tile_row_bytes));
      tile.row[r] = Quarters{{v.x, v.y, v.z, v.w}, scales[r]};
    }
  }

  const std::uint8_t* at_;
  int blocks_;                             // from here to the end of the row
  int row_in_tile_ = 0;                    // repacked
  std::int64_t row_[repacked ? 1 : rows];  // native: from the first row to each
};

// ---- Staged activations of a token and a tile ----

// fp32: float4 [lane_values / 4][lane], then what a quarter's sum begins with, -z * sum of x, float2 [lane] for the two
// blocks. fp16: 8 halves for each float4.
template <class T, bool half2>
struct StagedTile {
  static constexpr int vectors = lane_values<T> / (half2 ? 8 : 4);  // of 16 bytes, for a lane
  static constexpr int bytes = warp_size * (16 * vectors + 8);
};

// Shared memory of a block of threads: for each token its tiles, then the scales of all tiles, then rotated
// activations.
template <class T, bool half2>
__host__ __device__ constexpr std::int64_t ffma_shared_bytes(int tokens, int tiles, int rotated_floats) {
  return static_cast<std::int64_t>(tokens) * tiles * (StagedTile<T, half2>::bytes + 4) + 12 + 4 * rotated_floats;
}

// What activations are multiplied by beside 2^-place, and the worth of a sum of products then: fp32 codes are
// n * 2^(place - 149), and x / 2^e < 4 stays finite up to 2^125.
inline constexpr int float_unit = 124;
inline constexpr float float_result = power_of_two(149 - float_unit);

template <class T, bool half2, class Load>
__device__ __forceinline__ void stage_lane(const LaneValues<T, Load>& values, unsigned char* staged, float* scale,
                                           int lane) {
  constexpr int per_word = static_cast<int>(T::codes_per_word);
  constexpr float zero_point = static_cast<float>(T::zero_point);
  const TileScale s = tile_scale(values);
  float begin[2] = {0.0f, 0.0f};
#pragma unroll 1
  for (int w = 0; w < 4; ++w) {
    float v[per_word];
    values.word(w, v);
    float sums[2] = {0.0f, 0.0f};  // of even and odd elements, in units of a product
#pragma unroll
    for (int e = 0; e < per_word; e += 2) {
      const int i = w * per_word + e;
      unsigned char* const at = staged + (i / (half2 ? 8 : 4) * warp_size + lane) * 16;
      if constexpr (half2) {
        const int place = half_place<T>(e / 2);
        std::uint32_t bits[2];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          bits[odd] = __half_as_ushort(__float2half_rn(v[e + odd] * s.down * power_of_two(half_unit - place)));
          sums[odd] = __fadd_rn(sums[odd], half_bits_to_float(bits[odd]) * power_of_two(place - 24));
        }
        *reinterpret_cast<std::uint32_t*>(at + i % 8 * 2) = bits[0] | bits[1] << 16;
      } else {
        const float x0 = v[e] * s.down;
        const float x1 = v[e + 1] * s.down;
        sums[0] = __fadd_rn(sums[0], x0 * power_of_two(float_unit - 149));
        sums[1] = __fadd_rn(sums[1], x1 * power_of_two(float_unit - 149));
        *reinterpret_cast<float2*>(at + i % 4 * 4) = make_float2(x0 * power_of_two(float_unit - float_place<T>(e)),
                                                                 x1 * power_of_two(float_unit - float_place<T>(e + 1)));
      }
    }
    const float sum = -zero_point * __fadd_rn(sums[0], sums[1]);
    if (w < 2)
      begin[0] = __fadd_rn(begin[0], sum);
    else
      begin[1] = __fadd_rn(begin[1], sum);
  }
  reinterpret_cast<float2*>(staged + warp_size * 16 * StagedTile<T, half2>::vectors)[lane] =
      make_float2(begin[0], begin[1]);
  if (lane == 0) *scale = s.up;
}

// ---- The multiply ----

__device__ __forceinline__ float component(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ std::uint32_t component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Adds the products of word `w` of the lane (half a quarter) to the sums of all rows and tokens. x: the staged tile of
// the first token, `next_token` bytes before that of the next.
template <class T, int w, int rows, int tokens>
__device__ __forceinline__ void multiply_word(const std::uint32_t (&words)[rows], const unsigned char* x,
                                              int next_token, int lane, float (&sum)[rows][tokens]) {
  constexpr int per_word = static_cast<int>(T::codes_per_word);
  float4 values[tokens] = {};
#pragma unroll
  for (int e = 0; e < per_word; ++e) {
    constexpr int begin = w * per_word;
    if ((begin + e) % 4 == 0 || e == 0) {
#pragma unroll
      for (int m = 0; m < tokens; ++m)
        values[m] = reinterpret_cast<const float4*>(x + m * next_token)[(begin + e) / 4 * warp_size + lane];
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float code = __uint_as_float(code_as_float<T>(words[r], words[r] >> 16, e));
#pragma unroll
      for (int m = 0; m < tokens; ++m) sum[r][m] = fmaf(code, component(values[m], (begin + e) % 4), sum[r][m]);
    }
  }
}

// The same in fp16, five (pn3t) or four pairs.
template <class T, int w, int rows, int tokens>
__device__ __forceinline__ void multiply_word(const std::uint32_t (&words)[rows], const unsigned char* x,
                                              int next_token, int lane, __half2 (&sum)[rows][tokens]) {
  constexpr int pairs = static_cast<int>(pairs_per_word<T>);
  std::uint32_t codes[rows][pairs_per_word<T>];
#pragma unroll
  for (int r = 0; r < rows; ++r) codes_as_half2<T>(words[r], codes[r]);
  uint4 values[tokens] = {};
#pragma unroll
  for (int j = 0; j < pairs; ++j) {
    constexpr int begin = w * pairs;
#pragma unroll
    for (int m = 0; m < tokens; ++m) {
      if ((begin + j) % 4 == 0 || j == 0)
        values[m] = reinterpret_cast<const uint4*>(x + m * next_token)[(begin + j) / 4 * warp_size + lane];
      const __half2 v = half2_of(component(values[m], (begin + j) % 4));
#pragma unroll
      for (int r = 0; r < rows; ++r)
        sum[r][m] = w % 2 == 0 && j == 0 ? __hmul2(half2_of(codes[r][j]), v)  // the first of a quarter
                                         : __hfma2(half2_of(codes[r][j]), v, sum[r][m]);
    }
  }
}

// weighted = (what it was, for the second half) + d * (begin + sum of the products of a quarter).
template <class T, int half, bool half2, int rows, int tokens>
__device__ __forceinline__ void multiply_quarter(const TileRows<rows>& tile, const unsigned char* x, int next_token,
                                                 int lane, float (&weighted)[rows][tokens]) {
  std::uint32_t first[rows], second[rows];
  float d[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    first[r] = tile.row[r].words[2 * half];
    second[r] = tile.row[r].words[2 * half + 1];
    d[r] = half_bits_to_float(half == 0 ? tile.row[r].scales & 0xFFFFu : tile.row[r].scales >> 16);
  }
  float begin[tokens];
#pragma unroll
  for (int m = 0; m < tokens; ++m) {
    constexpr int at = warp_size * 16 * StagedTile<T, half2>::vectors;
    begin[m] = reinterpret_cast<const float*>(x + m * next_token + at)[2 * lane + half];
  }
  float sum[rows][tokens];
  if constexpr (half2) {
    __half2 part[rows][tokens];
    multiply_word<T, 2 * half>(first, x, next_token, lane, part);
    multiply_word<T, 2 * half + 1>(second, x, next_token, lane, part);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int m = 0; m < tokens; ++m) sum[r][m] = begin[m] + (__low2float(part[r][m]) + __high2float(part[r][m]));
  } else {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int m = 0; m < tokens; ++m) sum[r][m] = begin[m];
    multiply_word<T, 2 * half>(first, x, next_token, lane, sum);
    multiply_word<T, 2 * half + 1>(second, x, next_token, lane, sum);
  }
#pragma unroll
  for (int r = 0; r < rows; ++r)
#pragma unroll
    for (int m = 0; m < tokens; ++m)
      weighted[r][m] = half == 0 ? __fmul_rn(d[r], sum[r][m]) : fmaf(d[r], sum[r][m], weighted[r][m]);
}

// Adds a tile to the results of all rows and tokens; its scales lie `next_scale` floats apart.
template <class T, bool half2, int rows, int tokens>
__device__ __forceinline__ void multiply_tile(const TileRows<rows>& tile, const unsigned char* x, int next_token,
                                              const float* scales, int next_scale, int lane,
                                              float (&result)[rows][tokens]) {
  float weighted[rows][tokens];
  multiply_quarter<T, 0, half2>(tile, x, next_token, lane, weighted);
  multiply_quarter<T, 1, half2>(tile, x, next_token, lane, weighted);
#pragma unroll
  for (int r = 0; r < rows; ++r)
#pragma unroll
    for (int m = 0; m < tokens; ++m) result[r][m] = fmaf(scales[m * next_scale], weighted[r][m], result[r][m]);
}

// Block of threads: any number of warps up to 8. Each takes warp_rows rows at a time ("pass"); the block does passes
// blockIdx.x, + gridDim.x, ... Tokens beyond args.tokens are multiplied with
// whatever lies in shared memory and not stored.
//
// Order of the sums of a row: element order in a quarter, on top of -z * (sum of x); the two blocks of a lane by their
// scales, blocks 2p then 2p + 1; times the tile's scale, tile after tile; at last the lanes, pairwise.
//
// sass: loop = (LDG.128 if repacked else LDG.U16) + (HFMA2 if half2 else FFMA)
// sass: loads = LDG.128 * (4 / 5 if tokens == 1 else 1) if repacked else LDG.U16 / 10
// sass: weights = 4 * T.per_word * loads
// sass: math = 2 * (HFMA2 + HMUL2) / tokens if half2 else FFMA / tokens
// sass: shared = tokens * K / (16 * T.block) * (32 * (16 * T.block / (16 if half2 else 8) + 8) + 4)
template <class T, bool repacked, int tokens, bool half2>
__global__ void __launch_bounds__(256, 2) gemv_ffma(const GemvArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800  // later devices have the tensor path
  constexpr int rows = warp_rows<tokens>;
  PNCUDA_SHARED(unsigned char, shared);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int pass_rows = static_cast<int>(blockDim.x) / warp_size * rows;
  const int tiles = tiles_of(args.weights.blocks);
  const int room = (tiles + args.chunks - 1) / args.chunks;  // tiles of the largest chunk
  constexpr int bytes = StagedTile<T, half2>::bytes;
  float* const scales = reinterpret_cast<float*>(shared + tokens * room * bytes);
  float* const rotated = scales + (tokens * room + 3) / 4 * 4;

  for (std::int64_t pass = blockIdx.x; pass * pass_rows < args.weights.rows; pass += gridDim.x) {
    const std::int64_t first = pass * pass_rows + warp * rows;
    const bool active = first < args.weights.rows;
    TileCursor<rows, repacked> cursor(args.weights, active ? first : 0, lane);
    float result[rows][tokens];
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int m = 0; m < tokens; ++m) result[r][m] = 0.0f;

    for (int c = 0; c < args.chunks; ++c) {
      const Chunk chunk = chunk_at(tiles, args.chunks, c);
      const int count = chunk.end - chunk.begin;
      TileRows<rows> even = {}, odd = {};
      if (count > 0) even = cursor.load(lane);  // on its way while x is staged
      if (args.chunks > 1 || pass == blockIdx.x) {
        __syncthreads();  // nobody reads the chunk before
        stage_chunk<T>(args, chunk, rotated, [&](int number, int token, const auto& values) {
          const int at = token * room + number - chunk.begin;
          stage_lane<T, half2>(values, shared + at * bytes, scales + at, lane);
        });
        __syncthreads();
      }
      // Two tiles in turn: one is on its way while the other is multiplied.
#pragma unroll 1
      for (int i = 0; i < count; i += 2) {
        if (i + 1 < count) odd = cursor.load(lane);
        multiply_tile<T, half2>(even, shared + i * bytes, room * bytes, scales + i, room, lane, result);
        if (i + 1 == count) break;
        if (i + 2 < count) even = cursor.load(lane);
        multiply_tile<T, half2>(odd, shared + (i + 1) * bytes, room * bytes, scales + i + 1, room, lane, result);
      }
    }

#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int m = 0; m < tokens; ++m) {
        const float value = add_lanes(result[r][m]);
        if (lane == 0 && active && first + r < args.weights.rows && m < args.tokens)
          store_element(row_at(args.y, args.y_stride, m), args.y_type, first + r,
                        value * (half2 ? half_result : float_result));
      }
  }
#endif
}

// ---- The host side ----

namespace detail {

template <class T>
using FfmaKernel = void (*)(GemvArgs);

template <class T, bool repacked, bool half2>
FfmaKernel<T> ffma_kernel(int tokens) {
  return tokens <= 1   ? gemv_ffma<T, repacked, 1, half2>
         : tokens <= 2 ? gemv_ffma<T, repacked, 2, half2>
                       : gemv_ffma<T, repacked, 4, half2>;
}
template <class T>
FfmaKernel<T> ffma_kernel(bool repacked, bool half2, int tokens) {
  if (repacked) return half2 ? ffma_kernel<T, true, true>(tokens) : ffma_kernel<T, true, false>(tokens);
  return half2 ? ffma_kernel<T, false, true>(tokens) : ffma_kernel<T, false, false>(tokens);
}

}  // namespace detail

template <class T>
cudaError_t prepare_ffma(const Device& device) {
  for (const int tokens : {1, 2, 4})
    for (const bool repacked : {false, true})
      for (const bool half2 : {false, true}) {
        const cudaError_t error =
            cudaFuncSetAttribute(detail::ffma_kernel<T>(repacked, half2, tokens),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_per_block);
        if (error != cudaSuccess) return error;
      }
  return cudaSuccess;
}

template <class T>
GemvPlan plan_ffma(const Device& device, bool half2, GemvArgs& args) {
  constexpr int registers = 128;  // of a thread, as launch_bounds asks
  GemvPlan plan;
  const int tiles = tiles_of(args.weights.blocks);
  const std::int64_t k = static_cast<std::int64_t>(args.weights.blocks) * static_cast<int>(T::block_size);
  // Two blocks of threads for a multiprocessor, which keeps some shared memory for itself.
  const int room_for_two = device.shared_per_multiprocessor / 2 - 1024;
  const std::int64_t limit = room_for_two < device.shared_per_block ? room_for_two : device.shared_per_block;
  std::int64_t bytes = 0;
  for (plan.tokens = args.tokens <= 1 ? 1 : args.tokens <= 2 ? 2 : 4;; plan.tokens /= 2) {
    const std::int64_t tile_cost = plan.tokens * static_cast<std::int64_t>(half2 ? StagedTile<T, true>::bytes + 4
                                                                                 : StagedTile<T, false>::bytes + 4);
    const std::int64_t fits = limit / tile_cost;
    int chunks = fits == 0 ? tiles : static_cast<int>((tiles + fits - 1) / fits);
    if (chunks == 0) chunks = 1;
    for (;; ++chunks) {
      const int room = (tiles + chunks - 1) / chunks;
      args.chunks = chunks;
      args.rotated_floats = rotated_floats(room, tile_values<T>, k, args.hadamard_block);
      bytes = half2 ? ffma_shared_bytes<T, true>(plan.tokens, room, args.rotated_floats)
                    : ffma_shared_bytes<T, false>(plan.tokens, room, args.rotated_floats);
      if (bytes <= limit || room <= 1) break;
    }
    if (bytes <= limit || plan.tokens == 1) break;
  }
  plan.shared_bytes = static_cast<int>(bytes);

  const int rows = plan.tokens == 1 ? warp_rows<1> : warp_rows<2>;
  static_assert(warp_rows<2> == warp_rows<4>, "");
  int warps = 8;
  while (warps > 2 && args.weights.rows / (warps * rows) < 2 * device.multiprocessors) warps /= 2;
  plan.threads = warps * warp_size;
  int resident = 65536 / (registers * plan.threads);
  const int by_shared = device.shared_per_multiprocessor / (plan.shared_bytes + 1024);
  if (resident > by_shared) resident = by_shared < 1 ? 1 : by_shared;
  const std::int64_t passes = (args.weights.rows + warps * rows - 1) / (warps * rows);
  plan.grid = grid_of(passes, static_cast<std::int64_t>(resident) * device.multiprocessors);
  return plan;
}

template <class T>
cudaError_t launch_ffma(const GemvPlan& plan, bool half2, const GemvArgs& args, cudaStream_t stream) {
  return launch(detail::ffma_kernel<T>(args.weights.repacked, half2, plan.tokens), dim3(plan.grid),
                dim3(static_cast<unsigned>(plan.threads)), static_cast<std::size_t>(plan.shared_bytes), stream, args);
}

}  // namespace pncuda

#endif  // PNCUDA_GEMV_FFMA_CUH
