// libpncuda: what the GEMV kernels share: their arguments, and how activations come into shared memory ("staging").
//
// All kernels take K in tiles of 16 blocks (decode_pn.cuh). Lane 4 * p + t has quarter t of blocks 2p and 2p + 1 of a
// tile: 40 (pn3t) or 32 (pn4t) weights, and staging lays out the activations that go with them so that the lane reads
// them 16 bytes at a time without bank conflicts. The activations of a tile are divided by the power of two e of the
// largest of them and prescaled for codes that stay where they lie (decode_pn.cuh); what is left of the scale is one
// number for the tile, and a constant for all.
#ifndef PNCUDA_GEMV_CUH
#define PNCUDA_GEMV_CUH

#include <pncuda/decode_pn.cuh>

#include "elements.cuh"
#include "hadamard.cuh"

namespace pncuda {

// Activations that a lane has of a tile: half of them of block 2p, half of block 2p + 1.
template <class T>
inline constexpr int lane_values = static_cast<int>(T::block_size) / 2;
// Activations of a tile.
template <class T>
inline constexpr int tile_values = static_cast<int>(T::block_size) * tile_blocks;

struct GemvArgs {
  Matrix weights;
  const void* x;
  std::int64_t x_stride;
  void* y;
  std::int64_t y_stride;
  std::int32_t x_type, y_type;
  std::int32_t tokens;
  std::int32_t hadamard_block;    // 0: no rotation
  std::int32_t chunks;            // how many parts K is staged in
  std::int32_t rotated_floats;    // room for rotated activations at the end of shared memory
  std::int32_t groups_per_block;  // tensor path: groups of 16 rows for a block of threads
};

__host__ __device__ constexpr int tiles_of(int blocks) { return (blocks + tile_blocks - 1) / tile_blocks; }

// The tiles of chunk c of `chunks`: as even as can be.
struct Chunk {
  int begin, end;  // tiles
};
__host__ __device__ inline Chunk chunk_at(int tiles, int chunks, int c) {
  const auto bound = [&](int i) { return static_cast<int>(static_cast<std::int64_t>(tiles) * i / chunks); };
  return {bound(c), bound(c + 1)};
}

// The columns of x whose rotation gives the columns of a chunk.
struct Columns {
  std::int64_t begin, end;
};
__host__ __device__ inline Columns rotated_columns(Chunk chunk, int tile, std::int64_t k, int b) {
  const std::int64_t begin = static_cast<std::int64_t>(chunk.begin) * tile;
  const std::int64_t last = static_cast<std::int64_t>(chunk.end) * tile;
  const std::int64_t end = last < k ? last : k;
  return {begin / b * b, (end + b - 1) / b * b};
}

// Room that is enough for the rotated columns of any chunk of `room` tiles.
inline int rotated_floats(int room, int tile, std::int64_t k, int b) {
  if (b == 0) return 0;
  const std::int64_t most = static_cast<std::int64_t>(room) * tile + (tile % b != 0 ? 2 * b : 0);
  return static_cast<int>(most < k ? most : k);
}

// The lane's activations of a tile, word by word as their codes lie in memory: word w = 0 .. 3 is a half of a quarter
// of block 2p (0, 1) or 2p + 1 (2, 3). `load` gives a column of x; columns that do not exist are 0.
template <class T, class Load>
struct LaneValues {
  Load load;
  std::int64_t first;  // column of the quarter of block 2p
  std::int64_t k;

  __device__ __forceinline__ LaneValues(int tile, int lane, std::int64_t columns, Load loader)
      : load(loader),
        first(static_cast<std::int64_t>(tile) * tile_values<T> + (lane >> 2) * (2 * static_cast<int>(T::block_size)) +
              (lane & 3) * (lane_values<T> / 2)),
        k(columns) {}
  __device__ __forceinline__ void word(int w, float (&v)[T::codes_per_word]) const {
    constexpr int per_word = static_cast<int>(T::codes_per_word);
    const std::int64_t column = first + (w >> 1) * static_cast<int>(T::block_size) + (w & 1) * per_word;
    const bool exists = column < k;  // a block exists or not as a whole
#pragma unroll
    for (int e = 0; e < per_word; ++e) v[e] = exists ? load(column + e) : 0.0f;
  }
};
template <class T, class Load>
__device__ __forceinline__ LaneValues<T, Load> lane_values_of(int tile, int lane, std::int64_t k, Load load) {
  return {tile, lane, k, load};
}

// 2^e with |x| < 2 * 2^e for all activations of a tile (4 * 2^e beyond 2^127), e = -126 .. 126, and its reciprocal.
struct TileScale {
  float up, down;
};
__device__ __forceinline__ TileScale scale_of(std::uint32_t largest) {  // the bits of the largest magnitude
  const std::uint32_t exponent = min(max(largest >> 23, 1u), 253u);
  return {__uint_as_float(exponent << 23), __uint_as_float((254u - exponent) << 23)};
}
template <class T, class Load>
__device__ __forceinline__ TileScale tile_scale(const LaneValues<T, Load>& values) {
  std::uint32_t largest = 0;
#pragma unroll 1
  for (int w = 0; w < 4; ++w) {
    float v[T::codes_per_word];
    values.word(w, v);
#pragma unroll
    for (int e = 0; e < static_cast<int>(T::codes_per_word); ++e)
      largest = max(largest, __float_as_uint(v[e]) & 0x7FFFFFFFu);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(all_lanes, largest, offset));
  return scale_of(largest);
}

__host__ __device__ constexpr float power_of_two(int e) {  // by hand: constexpr in C++17
  float p = 1.0f;
  for (int i = 0; i < e; ++i) p *= 2.0f;
  for (int i = 0; i > e; --i) p *= 0.5f;
  return p;
}

// Calls stage(tile, token, values of the lane) for every tile of the chunk and every token, one warp each, with the
// activations of x or their rotation. All threads of the block; ends with a barrier when x is rotated, so that the room
// for rotated numbers can be used again. The caller's barrier makes what was staged visible.
template <class T, class Stage>
__device__ __forceinline__ void stage_chunk(const GemvArgs& args, Chunk chunk, float* rotated, Stage&& stage) {
  const std::int64_t k = static_cast<std::int64_t>(args.weights.blocks) * static_cast<int>(T::block_size);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  const int tiles = chunk.end - chunk.begin;
  if (args.hadamard_block == 0) {
    for (int i = warp; i < tiles * args.tokens; i += warps) {
      const int token = i / tiles;
      const int tile = chunk.begin + i % tiles;
      const void* const x = row_at(args.x, args.x_stride, token);
      const int type = args.x_type;
      stage(tile, token,
            lane_values_of<T>(tile, lane, k, [x, type](std::int64_t column) { return load_element(x, type, column); }));
    }
    return;
  }
  const Columns columns = rotated_columns(chunk, tile_values<T>, k, args.hadamard_block);
  for (int token = 0; token < args.tokens; ++token) {
    rotate(row_at(args.x, args.x_stride, token), args.x_type, columns.begin,
           static_cast<int>(columns.end - columns.begin), args.hadamard_block, rotated);
    for (int tile = chunk.begin + warp; tile < chunk.end; tile += warps) {
      const float* const x = rotated;
      const std::int64_t begin = columns.begin;
      stage(tile, token,
            lane_values_of<T>(tile, lane, k, [x, begin](std::int64_t column) { return x[column - begin]; }));
    }
    __syncthreads();
  }
}

// fp16 of activations: x / 2^e * 2^half_unit, then times 2^-place of the code. 2^e * half_result is what a sum of
// products with codes as fp16 subnormals is worth.
inline constexpr int half_unit = 13;
inline constexpr float half_result = power_of_two(24 - half_unit);

}  // namespace pncuda

#endif  // PNCUDA_GEMV_CUH
