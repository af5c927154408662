// libpncuda: y[m][n] = sum over k of x[m][k] * w[n][k] on tensor cores, sm_80 and later. Codes enter mma.m16n8k16 as
// fp16 subnormals, by one AND for two (decode_pn.cuh), so products and their fp32 sums are those of integers times x.
#ifndef PNCUDA_GEMV_TENSOR_CUH
#define PNCUDA_GEMV_TENSOR_CUH

#include "gemv.cuh"
#include "kernels.hpp"

namespace pncuda {

// A block of threads multiplies groups of 16 rows; its eight warps share the pairs of blocks of every tile.
inline constexpr int tensor_warps = tile_blocks / 2;
inline constexpr int tensor_threads = tensor_warps * warp_size;
// Blocks of threads that a multiprocessor has registers for. Weights on their way hide the latency of memory, so as
// many as there can be without a register spilled (sm_100 spills with three).
__host__ __device__ constexpr int tensor_resident(int major, bool repacked, bool two_parts) {
  return major >= 9 && major != 10 && (repacked || !two_parts) ? 3 : 2;
}
#if defined(__CUDA_ARCH__)
inline constexpr int tensor_major = __CUDA_ARCH__ / 100;
#else
inline constexpr int tensor_major = 9;
#endif
// Columns of the mma: tokens, or for fp32 activations their two parts, x = upper + lower / lower_unit.
inline constexpr int tensor_columns = 8;
inline constexpr int lower_unit_exponent = 11;
// The most tiles that are staged at once, for any number of tokens, so that sums have one order.
template <class T>
inline constexpr int tensor_chunk_tiles = T::bits == 3 ? 4 : 5;
// The most groups of rows that a block of threads takes.
inline constexpr int tensor_groups = 32;

__host__ __device__ constexpr bool has_two_parts(int x_type, int hadamard_block) {
  return x_type == PNCUDA_F32 || hadamard_block != 0;
}

// ---- Shared memory ----

// Warp p has pair p of the blocks of every tile, so what follows is a warp's own until the sums:
// x: for each tile and pair p vector q (8 halves of the 40 or 32 that a lane has), column c and quarter t: 16 bytes,
// number
// ((tile * 8 + p) * vectors + q) * 4 * columns + 4 * c + t. Then what the sums of each block begin with, -z * sum of x,
// as they begin the mma, [tile][block][4 pairs of columns][twice][2]; the scales [tile][pair][8 columns]. Sums of the
// warps, twice [warp][16 rows][8 columns]; results of the chunks before, [row][8 columns]; rotated activations.
template <class T>
struct TensorShared {
  static constexpr int vectors = lane_values<T> / 8;
  static constexpr int warp_sums = tensor_warps * tile_rows * tensor_columns;

  std::int64_t begins, scales, sums, results, rotated;  // bytes from the beginning
  __host__ __device__ TensorShared(int tiles, int columns, int chunks, int groups) {
    begins = static_cast<std::int64_t>(tiles) * tensor_warps * vectors * 4 * columns * 16;
    scales = begins + static_cast<std::int64_t>(tiles) * tile_blocks * tensor_columns * 2 * 4;
    sums = scales + static_cast<std::int64_t>(tiles) * tensor_warps * tensor_columns * 4;
    results = sums + 2 * warp_sums * 4;
    rotated = results + (chunks > 1 ? static_cast<std::int64_t>(groups) * tile_rows * tensor_columns * 4 : 0);
  }
};

// ---- Staging ----

// Columns `column` (even) and column + 1 of a token.
struct GlobalPairs {
  const void* x;
  int type;
  bool aligned;  // to two elements
  __device__ __forceinline__ float2 operator()(std::int64_t column) const {
    if (!aligned) return make_float2(load_element(x, type, column), load_element(x, type, column + 1));
    if (type == PNCUDA_F32) return __ldg(reinterpret_cast<const float2*>(static_cast<const float*>(x) + column));
    return pair_to_floats(__ldg(reinterpret_cast<const unsigned int*>(static_cast<const unsigned short*>(x) + column)),
                          type);
  }
};
struct RotatedPairs {
  const float* rotated;
  std::int64_t begin;
  __device__ __forceinline__ float2 operator()(std::int64_t column) const {
    return *reinterpret_cast<const float2*>(rotated + (column - begin));
  }
};

// Half a warp: the activations of pair p of the blocks of a tile and a token, a word's worth for each lane, as one
// column or two. `staged` counts the tile in its chunk, tile in the row; `exists` is false for a half that has nothing
// to do.
template <class T, bool two_parts, class Load>
__device__ __forceinline__ void stage_pair(const Load& load, bool exists, int tile, int staged, int p, int column,
                                           int columns, std::int64_t k, int lane, unsigned char* x, float* scales) {
  constexpr int per_word = static_cast<int>(T::codes_per_word);
  constexpr int block_size = static_cast<int>(T::block_size);
  constexpr int vectors = TensorShared<T>::vectors;
  constexpr int parts = two_parts ? 2 : 1;
  const int half = (lane >> 3) & 1;  // of the pair
  const int word = lane & 7;         // of the block
  const std::int64_t first =
      static_cast<std::int64_t>(tile) * tile_values<T> + (2 * p + half) * block_size + word * per_word;
  float v[per_word];
#pragma unroll
  for (int e = 0; e < per_word; e += 2) {
    const float2 pair = exists && first < k ? load(first + e) : make_float2(0.0f, 0.0f);
    v[e] = pair.x;
    v[e + 1] = pair.y;
  }
  std::uint32_t largest = 0;
#pragma unroll
  for (int e = 0; e < per_word; ++e) largest = max(largest, __float_as_uint(v[e]) & 0x7FFFFFFFu);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(all_lanes, largest, offset));
  const TileScale s = scale_of(largest);
  if (!exists) return;
  // Numbers i .. i + per_word - 1 of the lane that multiplies them, which has quarter word / 2 of both blocks.
  const int i = half * (block_size / 4) + (word & 1) * per_word;
  unsigned char* const at =
      x + (static_cast<std::int64_t>((staged * tensor_warps + p) * vectors) * columns + column) * 64 + (word >> 1) * 16;
#pragma unroll
  for (int e = 0; e < per_word; e += 2) {
    float rest[2] = {v[e] * s.down, v[e + 1] * s.down};
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) rest[odd] = __fmul_rn(rest[odd], power_of_two(half_unit - half_place<T>(e / 2)));
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      std::uint32_t bits[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        bits[odd] = __half_as_ushort(__float2half_rn(rest[odd]));
        rest[odd] = __fsub_rn(rest[odd], half_bits_to_float(bits[odd])) * power_of_two(lower_unit_exponent);
      }
      *reinterpret_cast<std::uint32_t*>(at + ((i + e) >> 3) * (columns * 64) + part * 64 + ((i + e) & 7) * 2) =
          bits[0] | bits[1] << 16;
    }
  }
  if ((lane & 15) == 0)
#pragma unroll
    for (int part = 0; part < parts; ++part)
      scales[(staged * tensor_warps + p) * tensor_columns + column + part] =
          s.up * power_of_two(-part * lower_unit_exponent);
}

// One warp: pair p of all tiles of a chunk, all tokens. All threads of the block when x is rotated.
template <class T, bool two_parts>
__device__ __forceinline__ void stage_columns(const GemvArgs& args, Chunk chunk, int p, int columns, int lane,
                                              unsigned char* x, float* scales, float* rotated) {
  constexpr int parts = two_parts ? 2 : 1;
  const std::int64_t k = static_cast<std::int64_t>(args.weights.blocks) * static_cast<int>(T::block_size);
  const int tiles = chunk.end - chunk.begin;
  const int second = lane >> 4;  // half of the warp
  if constexpr (two_parts) {     // only then can there be a rotation
    if (args.hadamard_block != 0) {
      const Columns range = rotated_columns(chunk, tile_values<T>, k, args.hadamard_block);
      for (int token = 0; token < args.tokens; ++token) {
        __syncthreads();  // nobody reads the token before
        rotate(row_at(args.x, args.x_stride, token), args.x_type, range.begin,
               static_cast<int>(range.end - range.begin), args.hadamard_block, rotated);
        for (int i = 0; i < tiles; i += 2) {
          const int staged = i + second;
          stage_pair<T, true>(RotatedPairs{rotated, range.begin}, staged < tiles, chunk.begin + staged, staged, p,
                              token * parts, columns, k, lane, x, scales);
        }
      }
      return;
    }
  }
  const std::uintptr_t places = reinterpret_cast<std::uintptr_t>(args.x) | static_cast<std::uintptr_t>(args.x_stride);
  const bool aligned = places % (2 * element_bytes(args.x_type)) == 0;
  for (int i = 0; i < tiles * args.tokens; i += 2) {
    const int token = (i + second) / tiles;
    const int staged = (i + second) % tiles;
    stage_pair<T, two_parts>(GlobalPairs{row_at(args.x, args.x_stride, token), args.x_type, aligned},
                             i + second < tiles * args.tokens, chunk.begin + staged, staged, p, token * parts, columns,
                             k, lane, x, scales);
  }
}

// ---- The multiply ----

// What lane 4 * g + t gives to the mma: quarter t of a pair of blocks of rows g and g + 8 of a group.
struct TensorRows {
  Quarters row[2];
};

// Walks over the tiles of a group of 16 rows, with pair `p` of the blocks of each. Rows beyond the matrix repeat its
// last.
template <bool repacked>
class TensorCursor {
 public:
  __device__ __forceinline__ TensorCursor(const Matrix& m, int p, int lane)
      : m_(m), p_(p), g_(lane >> 2), t_(lane & 3) {}

  // Goes to a tile; from there `load` takes one after another.
  __device__ __forceinline__ void seek(int group, int tile) {
    const std::int64_t first = static_cast<std::int64_t>(group) * tile_rows;
    blocks_ = m_.blocks - tile * tile_blocks - 2 * p_;
    if constexpr (repacked) {
      at_[0] = m_.data + first * m_.row_stride + static_cast<std::int64_t>(tile) * tile_bytes +
               (g_ * tile_row_bytes + p_ * 64 + t_ * 16);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t row = min(first + g_ + 8 * r, m_.rows - 1);
        at_[r] = m_.data + row * m_.row_stride + (tile * static_cast<std::int64_t>(tile_blocks) + 2 * p_) * block_bytes;
      }
    }
  }

  __device__ __forceinline__ TensorRows load() {
    TensorRows rows;
    if constexpr (!repacked) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.row[r] = load_quarters(at_[r], blocks_, t_);
        at_[r] += tile_blocks * block_bytes;
      }
    } else if (blocks_ + 2 * p_ >= tile_blocks) {
      const std::uint8_t* const scales =
          at_[0] + (tile_scales + p_ * (4 * tile_rows) + 4 * g_ - (g_ * tile_row_bytes + p_ * 64 + t_ * 16));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 v = load_streaming(reinterpret_cast<const uint4*>(at_[0] + 8 * r * tile_row_bytes));
        rows.row[r] = Quarters{{v.x, v.y, v.z, v.w}, __ldg(reinterpret_cast<const unsigned int*>(scales + 8 * r * 4))};
      }
      at_[0] += tile_bytes;
    } else {
      // What is left of each row lies in native form where the next tile would begin.
      const std::uint8_t* const rest = at_[0] - (g_ * tile_row_bytes + p_ * 64 + t_ * 16);
      const int left = blocks_ + 2 * p_;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        rows.row[r] = load_quarters(rest + ((g_ + 8 * r) * left + 2 * p_) * block_bytes, blocks_, t_);
    }
    blocks_ -= tile_blocks;
    return rows;
  }

 private:
  const Matrix& m_;
  int p_, g_, t_;
  int blocks_ = 0;  // from block 2p of the tile on
  const std::uint8_t* at_[repacked ? 1 : 2];
};

// sum[] += products of codes, two for each mma and row, with the activations of block 2p (half = 0) or 2p + 1, for rows
// g and g + 8 and columns 2t and 2t + 1.
template <class T, int half>
__device__ __forceinline__ void multiply_codes(const std::uint32_t (&codes)[2][2 * pairs_per_word<T>],
                                               const uint4 (&x)[TensorShared<T>::vectors], float (&sum)[4]) {
  constexpr int pairs = static_cast<int>(pairs_per_word<T>);
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int n = half * pairs + i;  // of the lane's pairs of pairs
    const std::uint32_t a[4] = {codes[0][2 * i], codes[1][2 * i], codes[0][2 * i + 1], codes[1][2 * i + 1]};
    mma_m16n8k16(sum, a, n % 2 == 0 ? x[n / 2].x : x[n / 2].z, n % 2 == 0 ? x[n / 2].y : x[n / 2].w);
  }
}

template <class T, int half>
__device__ __forceinline__ void multiply_block(const TensorRows& rows, const uint4 (&x)[TensorShared<T>::vectors],
                                               float (&sum)[4]) {
  constexpr int pairs = static_cast<int>(pairs_per_word<T>);
  std::uint32_t codes[2][2 * pairs_per_word<T>];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    std::uint32_t first[pairs_per_word<T>], second[pairs_per_word<T>];
    codes_as_half2<T>(rows.row[r].words[2 * half], first);
    codes_as_half2<T>(rows.row[r].words[2 * half + 1], second);
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      codes[r][j] = first[j];
      codes[r][pairs + j] = second[j];
    }
  }
  multiply_codes<T, half>(codes, x, sum);
}

// -z * (sum of x) of a block: the products with codes that all are -z.
template <class T, int half>
__device__ __forceinline__ void sum_block(const uint4 (&x)[TensorShared<T>::vectors], float (&sum)[4]) {
  constexpr int pairs = static_cast<int>(pairs_per_word<T>);
  std::uint32_t codes[2][2 * pairs_per_word<T>];
#pragma unroll
  for (int j = 0; j < 2 * pairs; ++j)
    codes[0][j] = codes[1][j] =
        (static_cast<std::uint32_t>(T::zero_point) << half_place<T>(j % pairs)) * 0x00010001u | 0x80008000u;
  sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
  multiply_codes<T, half>(codes, x, sum);
}

// Where a lane finds the activations of its pair of blocks of a tile, and goes on to those of the next tile.
struct StagedColumn {
  const uint4* x;   // vector 0
  int next_vector;  // in uint4s
  int next_tile;
  const float4* begin;  // of block 2p; that of block 2p + 1 follows after 4
  const float2* scale;
};

template <class T>
__device__ __forceinline__ void load_column(const StagedColumn& staged, uint4 (&x)[TensorShared<T>::vectors]) {
#pragma unroll
  for (int q = 0; q < TensorShared<T>::vectors; ++q) x[q] = staged.x[q * staged.next_vector];
}

// One warp: what the sums of its blocks begin with.
template <class T>
__device__ __forceinline__ void stage_begins(StagedColumn staged, int tiles, int lane, float4* begin) {
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    uint4 x[TensorShared<T>::vectors];
    load_column<T>(staged, x);
    float sum[2][4];
    sum_block<T, 0>(x, sum[0]);
    sum_block<T, 1>(x, sum[1]);
    if (lane < 4) {
      begin[0] = make_float4(sum[0][0], sum[0][1], sum[0][0], sum[0][1]);
      begin[4] = make_float4(sum[1][0], sum[1][1], sum[1][0], sum[1][1]);
    }
    staged.x += staged.next_tile;
    begin += tile_blocks * 4;
  }
}

// result += the pair of blocks of a tile.
template <class T>
__device__ __forceinline__ void multiply_pair(const TensorRows& rows, StagedColumn& staged, float (&result)[4]) {
  uint4 x[TensorShared<T>::vectors];
  load_column<T>(staged, x);
  float weighted[4];
  {
    const float4 begin = staged.begin[0];
    float sum[4] = {begin.x, begin.y, begin.z, begin.w};
    multiply_block<T, 0>(rows, x, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) weighted[j] = __fmul_rn(half_bits_to_float(rows.row[j / 2].scales & 0xFFFFu), sum[j]);
  }
  {
    const float4 begin = staged.begin[4];
    float sum[4] = {begin.x, begin.y, begin.z, begin.w};
    multiply_block<T, 1>(rows, x, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      weighted[j] = fmaf(half_bits_to_float(rows.row[j / 2].scales >> 16), sum[j], weighted[j]);
  }
  const float2 scale = *staged.scale;
#pragma unroll
  for (int j = 0; j < 4; ++j) result[j] = fmaf(j % 2 == 0 ? scale.x : scale.y, weighted[j], result[j]);
  staged.x += staged.next_tile;
  staged.begin += tile_blocks * 4;
  staged.scale += tensor_warps * tensor_columns / 2;
}

// Order of the sums of a row: those of the mma over a block, on top of -z * (sum of x); the two blocks of a pair by
// their scales; times the scale of its x, tile after tile of a chunk; the eight warps (pairs); the chunks; of fp32
// activations the two parts.
//
// sass: loop = (LDG.128 if repacked else LDG.U16) + HMMA
// sass: weights = 4 * T.per_word * (LDG.128 if repacked else LDG.U16 / 10)
// sass: math = 8 * HMMA
template <class T, bool repacked, bool two_parts>
__global__ void __launch_bounds__(tensor_threads, tensor_resident(tensor_major, repacked, two_parts))
    gemv_tensor(const GemvArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int vectors = TensorShared<T>::vectors;
  PNCUDA_SHARED(unsigned char, shared);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int tiles = tiles_of(args.weights.blocks);
  const int room = (tiles + args.chunks - 1) / args.chunks;
  const int columns = args.tokens * (two_parts ? 2 : 1);
  const TensorShared<T> places(room, columns, args.chunks, args.groups_per_block);
  float* const begins = reinterpret_cast<float*>(shared + places.begins);
  float* const scales = reinterpret_cast<float*>(shared + places.scales);
  float* const sums = reinterpret_cast<float*>(shared + places.sums);
  float* const results = reinterpret_cast<float*>(shared + places.results);
  float* const rotated = reinterpret_cast<float*>(shared + places.rotated);

  const int groups = static_cast<int>((args.weights.rows + tile_rows - 1) / tile_rows);
  const int first_group = static_cast<int>(blockIdx.x) * args.groups_per_block;
  const int count = min(args.groups_per_block, groups - first_group);
  TensorCursor<repacked> cursor(args.weights, warp, lane);
  TensorRows next;
  cursor.seek(first_group, 0);
  if (tiles > 0) next = cursor.load();

  int turn = 0;
  for (int c = 0; c < args.chunks; ++c) {
    const Chunk chunk = chunk_at(tiles, args.chunks, c);
    const int length = chunk.end - chunk.begin;
    __syncwarp();  // no lane reads the chunk before
    stage_columns<T, two_parts>(args, chunk, warp, columns, lane, shared, scales, rotated);
    __syncwarp();
    // Lanes of columns without a token repeat the last one: columns do not touch each other.
    StagedColumn first;
    first.x = reinterpret_cast<const uint4*>(shared) + (warp * vectors * columns + min(g, columns - 1)) * 4 + t;
    first.next_vector = columns * 4;
    first.next_tile = tensor_warps * vectors * columns * 4;
    float4* const begin = reinterpret_cast<float4*>(begins) + 2 * warp * 4 + t;
    first.begin = begin;
    first.scale = reinterpret_cast<const float2*>(scales) + warp * (tensor_columns / 2) + t;
    stage_begins<T>(first, length, lane, begin);
    __syncwarp();

    for (int i = 0; i < count; ++i) {
      StagedColumn staged = first;
      float result[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      bool more = true;
      // After the last tile of the chunk comes the next group, or the next chunk of the first one.
      const auto turn_over = [&] {
        if (i + 1 < count)
          cursor.seek(first_group + i + 1, chunk.begin);
        else if (chunk.end < tiles)
          cursor.seek(first_group, chunk.end);
        else
          more = false;
      };
      // The next tile is on its way while one is multiplied.
      int left = length;
      if constexpr (repacked) {  // two in turn
#pragma unroll 1
        for (; left > 2; left -= 2) {
          const TensorRows odd = cursor.load();
          multiply_pair<T>(next, staged, result);
          next = cursor.load();
          multiply_pair<T>(odd, staged, result);
        }
      }
#pragma unroll 1
      for (; left > 0; --left) {
        const TensorRows now = next;
        if (left == 1) turn_over();
        if (more) next = cursor.load();
        multiply_pair<T>(now, staged, result);
      }

      // The warps together. Two rooms in turn, so that one barrier is enough: who writes a room again has passed a
      // barrier that all readers of its last content have reached.
      float* const room_of = sums + turn * TensorShared<T>::warp_sums;
      turn ^= 1;
      float* const mine = room_of + (warp * tile_rows + g) * tensor_columns + 2 * t;
      mine[0] = result[0];
      mine[1] = result[1];
      mine[8 * tensor_columns] = result[2];
      mine[8 * tensor_columns + 1] = result[3];
      __syncthreads();
      const bool last = c + 1 == args.chunks;
      if (static_cast<int>(threadIdx.x) < tile_rows * args.tokens) {
        const int r = static_cast<int>(threadIdx.x) % tile_rows;
        const int token = static_cast<int>(threadIdx.x) / tile_rows;
        float value = 0.0f;
#pragma unroll
        for (int part = 0; part < (two_parts ? 2 : 1); ++part) {
          const int at = r * tensor_columns + token * (two_parts ? 2 : 1) + part;
          float sum = room_of[at];
#pragma unroll
          for (int w = 1; w < tensor_warps; ++w) sum = __fadd_rn(sum, room_of[w * tile_rows * tensor_columns + at]);
          if (args.chunks > 1) {
            float* const before = results + i * tile_rows * tensor_columns + at;
            if (c > 0) sum = __fadd_rn(*before, sum);
            *before = sum;
          }
          value = part == 0 ? sum : __fadd_rn(value, sum);
        }
        const std::int64_t row = static_cast<std::int64_t>(first_group + i) * tile_rows + r;
        if (last && row < args.weights.rows)
          store_element(row_at(args.y, args.y_stride, token), args.y_type, row, value * half_result);
      }
    }
  }
#endif
}

// ---- The host side ----

namespace detail {

using TensorKernel = void (*)(GemvArgs);

template <class T>
TensorKernel tensor_kernel(bool repacked, bool two_parts) {
  if (repacked) return two_parts ? gemv_tensor<T, true, true> : gemv_tensor<T, true, false>;
  return two_parts ? gemv_tensor<T, false, true> : gemv_tensor<T, false, false>;
}

}  // namespace detail

template <class T>
cudaError_t prepare_tensor(const Device& device) {
  for (const bool repacked : {false, true})
    for (const bool two_parts : {false, true}) {
      const cudaError_t error =
          cudaFuncSetAttribute(detail::tensor_kernel<T>(repacked, two_parts),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_per_block);
      if (error != cudaSuccess) return error;
    }
  return cudaSuccess;
}

template <class T>
GemvPlan plan_tensor(const Device& device, GemvArgs& args) {
  GemvPlan plan;
  plan.threads = tensor_threads;
  const int parts = has_two_parts(args.x_type, args.hadamard_block) ? 2 : 1;
  const int tiles = tiles_of(args.weights.blocks);
  const std::int64_t k = static_cast<std::int64_t>(args.weights.blocks) * static_cast<int>(T::block_size);
  const std::int64_t groups = (args.weights.rows + tile_rows - 1) / tile_rows;
  args.chunks = tiles <= tensor_chunk_tiles<T> ? 1 : (tiles + tensor_chunk_tiles<T> - 1) / tensor_chunk_tiles<T>;
  const int room = (tiles + args.chunks - 1) / args.chunks;
  args.rotated_floats = rotated_floats(room, tile_values<T>, k, args.hadamard_block);

  plan.tokens = args.tokens < tensor_columns / parts ? args.tokens : tensor_columns / parts;
  const auto bytes = [&](int columns, int for_groups) {
    return TensorShared<T>(room, columns, args.chunks, for_groups).rotated + 4 * args.rotated_floats;
  };
  while (plan.tokens > 1 && bytes(plan.tokens * parts, tensor_groups) > device.shared_per_block) --plan.tokens;
  const std::int64_t most = bytes(plan.tokens * parts, tensor_groups);
  int resident = static_cast<int>(device.shared_per_multiprocessor / (most + 1024));
  const int by_registers = tensor_resident(device.major, args.weights.repacked, parts == 2);
  resident = resident < 1 ? 1 : resident > by_registers ? by_registers : resident;
  const std::int64_t slots = static_cast<std::int64_t>(resident) * device.multiprocessors;
  std::int64_t per_block = (groups + slots - 1) / slots;
  if (args.chunks > 1 && per_block > tensor_groups) per_block = tensor_groups;
  args.groups_per_block = static_cast<int>(per_block);
  plan.shared_bytes = static_cast<int>(bytes(plan.tokens * parts, args.groups_per_block));
  plan.grid = static_cast<unsigned>((groups + per_block - 1) / per_block);
  return plan;
}

template <class T>
cudaError_t launch_tensor(const GemvPlan& plan, const GemvArgs& args, cudaStream_t stream) {
  return launch(detail::tensor_kernel<T>(args.weights.repacked, has_two_parts(args.x_type, args.hadamard_block)),
                dim3(plan.grid), dim3(tensor_threads), static_cast<std::size_t>(plan.shared_bytes), stream, args);
}

}  // namespace pncuda

#endif  // PNCUDA_GEMV_TENSOR_CUH
