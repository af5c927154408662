// libpncuda: multiplies with BF16_P12 or plain BF16 on tensor cores (sm_80 and later), 1 to 32 tokens.
//
// A block of threads has 16 rows at a time, a "group", and its eight warps share K in units of 128 weights, half a
// block: warp w takes units w, w + 8, ... Lane 4 * g + t has four words of the unit, 2t, 2t + 1, 2t + 8 and 2t + 9, of
// rows g and g + 8: just what eight mma.m16n8k16 want of it, if the activations come in the same order. They lie in
// shared memory as bf16, a column of the mma for each token: fp16 is the sum of two bf16 numbers and fp32 of three
// (exactly, from 2^-110 on), each a column of its own.
//
// Order of the sums of a row and a column, whatever the tokens, the chunks of K that are staged and the device: the
// mma's order over a unit, from 0; units of a warp one after another; the warps 0 .. 7; then the columns of a token.
#include "kernels.hpp"
#include "p12.cuh"

namespace pncuda {

// Not unnamed: compiled for older devices, nothing here is used.
namespace tensor_path {

constexpr int warps = 8;
constexpr int threads = warps * warp_size;
constexpr int group_rows = 16;
constexpr int units_of_block = 2;
constexpr int unit_weights = p12_block_weights / units_of_block;
constexpr int unit_words = p12_words / units_of_block;
constexpr int columns_of_tile = 8;
constexpr int max_columns = 32;
constexpr int groups_in_turn = 4;  // most groups of a block of threads where K is staged in chunks

// Blocks of threads that a multiprocessor has registers for.
__host__ __device__ constexpr int resident(int tiles) { return tiles <= 2 ? 2 : 1; }

__host__ __device__ constexpr int parts_of(int x_type) {
  return x_type == PNCUDA_BF16 ? 1 : x_type == PNCUDA_F16 ? 2 : 3;
}

// ---- Shared memory ----

// Activations of a unit and a column: a vector of eight for each word, 16 of them. Vector v of lanes t = 0 .. 3 lies in
// the four at 4 * (v ^ parity of the column), so that the lanes of a quarter of a warp find theirs in different banks.
// Sums of the warps, twice [warp][row][column]. Where K comes in chunks, the sums of each group so far
// [group][warp][tile][lane], four floats.
struct Shared {
  std::int64_t sums, saved, bytes;
  __host__ __device__ Shared(int units, int columns, int tiles, int saved_groups)
      : sums(std::int64_t{units} * unit_weights * 2 * columns),
        saved(sums + 2 * warps * group_rows * columns_of_tile * tiles * 4),
        bytes(saved + std::int64_t{saved_groups} * warps * tiles * warp_size * 16) {}
};

// Where vector v of lane t's four of a column lies, in 16 bytes.
__device__ __forceinline__ int vector_at(int unit, int columns, int column, int v, int t) {
  return (unit * columns + column) * unit_words + (v ^ (column & 1)) * 4 + t;
}

// ---- Staging ----

// The upper 8 bits of the significand as a bf16, and what is left, exactly. Of infinities and NaN nothing is left.
__device__ __forceinline__ std::uint32_t split(float& x) {
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t upper = bits & 0xFFFF0000u;
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    x = 0.0f;
    return (upper | ((bits & 0x007FFFFFu) != 0 ? 0x00400000u : 0)) >> 16;
  }
  x = __fsub_rn(x, __uint_as_float(upper));
  return upper >> 16;
}

// Units first .. first + count - 1 of all tokens. All threads of the block.
__device__ __forceinline__ void stage(const P12Args& args, int first, int count, int columns, uint4* staged) {
  const int parts = parts_of(args.x_type);
#pragma unroll 1
  for (int m = 0; m < args.tokens; ++m) {
    const void* const x = row_at(args.x, args.x_stride, m);
    const bool wide = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
    for (int i = static_cast<int>(threadIdx.x); i < count * unit_words; i += threads) {
      const std::int64_t at = static_cast<std::int64_t>(first) * unit_weights + 8 * i;
      const int unit = i / unit_words, word = i % unit_words;
      const int v = word / 8 * 2 + word % 2, t = word / 2 % 4;
      if (wide && args.x_type == PNCUDA_BF16) {
        staged[vector_at(unit, columns, m, v, t)] =
            __ldg(reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(x) + at));
        continue;
      }
      float values[8];
      load_eight(x, args.x_type, at, wide, true, values);
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t low = split(values[2 * j]);
          pairs[j] = low | split(values[2 * j + 1]) << 16;
        }
        staged[vector_at(unit, columns, m * parts + part, v, t)] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

// ---- The multiply ----

// A lane's words of a unit, of rows g and g + 8.
template <class W>
struct Held {
  typename W::template Words<4> rows[2];
};

// Where a warp is: in which group, at which of its units. A row that does not exist repeats the last.
template <class W>
class Cursor {
 public:
  __device__ __forceinline__ Cursor(const P12Args& args, int warp, int lane)
      : args_(args), warp_(warp), g_(lane >> 2), index_(warp % units_of_block * unit_words + (lane & 3) * 2) {}

  // To the warp's first unit from `unit` on, a multiple of 8.
  __device__ __forceinline__ void seek(std::int64_t group, int unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TaskRows rows = task_rows(args_, group, half, group_rows);
      const P12Matrix& matrix = args_.matrices[rows.matrix];
      const std::int64_t row = min(rows.first + g_, matrix.rows - 1);
      place_[half] = W::place(matrix.data + row * matrix.row_stride +
                                  static_cast<std::int64_t>((unit + warp_) / units_of_block) * W::block_bytes,
                              index_);
    }
  }
  // Words 0 and 1 of both rows; words 2 and 3, and what belongs to the block.
  __device__ __forceinline__ void load_first(Held<W>& held) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) W::load_two(place_[half], 0, 0, 0, held.rows[half]);
  }
  __device__ __forceinline__ void load_second(Held<W>& held) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      W::load_two(place_[half], 0, 8, 2, held.rows[half]);
      W::load_head(place_[half], 0, held.rows[half]);
    }
  }
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int half = 0; half < 2; ++half) place_[half].advance(warps / units_of_block);
  }
  // The place in its block of the lane's word i.
  __device__ __forceinline__ int index(int i) const { return index_ + i % 2 + i / 2 * 8; }

 private:
  const P12Args& args_;
  int warp_, g_;
  int index_;
  typename W::Place place_[2] = {};
};

// Where a lane finds its vectors of a unit: 0 and 2 behind `even`, 1 and 3 behind `odd`.
struct Column {
  const uint4* even;
  const uint4* odd;
};

// sum += a unit, whose registers then take what the cursor points to, if there is `more`: it is on its way while this
// unit is multiplied.
template <class W, int tiles>
__device__ __forceinline__ void multiply(Held<W>& held, const Cursor<W>& cursor, bool more,
                                         const Column (&column)[tiles], float (&sum)[tiles][4]) {
  bool plain = true;
  if constexpr (!W::always_plain)
    plain = __all_sync(all_lanes, W::all_plain(held.rows[0].mark() | held.rows[1].mark())) != 0;
  float d[tiles][4];
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) d[tile][i] = 0.0f;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    std::uint32_t pairs[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) held.rows[half].pairs(2 * part + i, pairs[half] + 4 * i);
    if (!plain) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          held.rows[half].patch(2 * part + i, cursor.index(2 * part + i), pairs[half] + 4 * i);
    }
    if (more) {
      if (part == 0)
        cursor.load_first(held);
      else
        cursor.load_second(held);
    }
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 v = (i == 0 ? column[tile].even : column[tile].odd)[8 * part];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int j = 4 * i + 2 * k;
          const std::uint32_t a[4] = {pairs[0][j], pairs[1][j], pairs[0][j + 1], pairs[1][j + 1]};
          mma_m16n8k16_bf16(d[tile], a, k == 0 ? v.x : v.z, k == 0 ? v.y : v.w);
        }
      }
  }
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[tile][i] = __fadd_rn(sum[tile][i], d[tile][i]);
}

// The sum of a row and a token of [warp][row][column].
__device__ __forceinline__ float sum_of(const float* sums, int width, int parts, int row, int token) {
  float value = 0.0f;
  for (int part = 0; part < parts; ++part) {
    const float* const at = sums + row * width + token * parts + part;
    float sum = at[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) sum = __fadd_rn(sum, at[w * group_rows * width]);
    value = part == 0 ? sum : __fadd_rn(value, sum);
  }
  return value;
}

// The sums of a group to its results.
__device__ __forceinline__ void finish(const P12Args& args, std::int64_t group, const float* sums, int width) {
  const int parts = parts_of(args.x_type);
  const int rows = args.silu ? group_rows / 2 : group_rows;
  const TaskRows of = task_rows(args, group, 0, group_rows);
  const P12Matrix& matrix = args.matrices[of.matrix];
  for (int i = static_cast<int>(threadIdx.x); i < rows * args.tokens; i += threads) {
    const int r = i % rows;
    const int token = i / rows;
    const std::int64_t row = of.first + r;
    if (row >= matrix.rows) continue;
    float value = with_bias(matrix, row, sum_of(sums, width, parts, r, token));
    if (args.silu)
      value = silu_times(value, with_bias(args.matrices[1], row, sum_of(sums, width, parts, r + rows, token)));
    store_result(matrix, token, row, value);
  }
}

// A block of threads takes groups blockIdx.x, + gridDim.x, ...
//
// sass: loop = LDG + HMMA
// sass: weights = 32 * LDG.64 / 7 if W == "p12" else 8 * LDG.128
// sass: math = 8 * HMMA / tiles
template <class W, int tiles>
__global__ void __launch_bounds__(threads, resident(tiles)) p12_tensor(const P12Args args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int width = columns_of_tile * tiles;
  PNCUDA_SHARED(uint4, staged);
  const int columns = args.tokens * parts_of(args.x_type);
  const Shared shared(args.chunk, columns, tiles, 0);
  float* const sums = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(staged) + shared.sums);
  float4* const saved = reinterpret_cast<float4*>(reinterpret_cast<unsigned char*>(staged) + shared.saved);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int g = lane >> 2, t = lane & 3;
  const int units = args.blocks * units_of_block;
  const std::int64_t groups = tasks_of(args);
  const int next_x = warps * columns * unit_words;

  Cursor<W> cursor(args, warp, lane);
  int turn = 0;
#pragma unroll 1
  for (int begin = 0; begin < units; begin += args.chunk) {
    const int count = min(args.chunk, units - begin);
    const int length = count > warp ? (count - warp + warps - 1) / warps : 0;  // units of this warp
    const bool last = begin + count == units;
    Held<W> held = {};
    if (length > 0) {  // on its way while x is staged
      cursor.seek(blockIdx.x, begin);
      cursor.load_first(held);
      cursor.load_second(held);
      cursor.advance();
    }
    __syncthreads();  // nobody reads the chunk before
    stage(args, begin, count, columns, staged);
    __syncthreads();

    float4* mine = saved + warp * (tiles * warp_size) + lane;
#pragma unroll 1
    for (std::int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
      float sum[tiles][4];
      Column column[tiles];
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        const float4 before = begin == 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : mine[tile * warp_size];
        sum[tile][0] = before.x;
        sum[tile][1] = before.y;
        sum[tile][2] = before.z;
        sum[tile][3] = before.w;
        // Columns that no token has repeat the last; nobody reads what comes of them.
        const int c = min(tile * columns_of_tile + g, columns - 1);
        column[tile] = {staged + vector_at(warp, columns, c, 0, t), staged + vector_at(warp, columns, c, 1, t)};
      }
#pragma unroll 1
      for (int left = length; left > 1; --left) {
        multiply<W, tiles>(held, cursor, true, column, sum);
        cursor.advance();
#pragma unroll
        for (int tile = 0; tile < tiles; ++tile) {
          column[tile].even += next_x;
          column[tile].odd += next_x;
        }
      }
      if (length > 0) {
        const bool more = group + gridDim.x < groups;
        if (more) cursor.seek(group + gridDim.x, begin);
        multiply<W, tiles>(held, cursor, more, column, sum);
        cursor.advance();
      }

      if (!last) {
#pragma unroll
        for (int tile = 0; tile < tiles; ++tile)
          mine[tile * warp_size] = make_float4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]);
        mine += warps * tiles * warp_size;
        continue;
      }
      mine += warps * tiles * warp_size;
      // The warps together. Two rooms in turn, so that one barrier is enough: who writes a room again has passed a
      // barrier that all readers of its last content have reached.
      float* const room = sums + turn * (warps * group_rows * width);
      turn ^= 1;
      float* const to = room + (warp * group_rows + g) * width + 2 * t;
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        *reinterpret_cast<float2*>(to + tile * columns_of_tile) = make_float2(sum[tile][0], sum[tile][1]);
        *reinterpret_cast<float2*>(to + tile * columns_of_tile + 8 * width) = make_float2(sum[tile][2], sum[tile][3]);
      }
      __syncthreads();
      finish(args, group, room, width);
    }
  }
#endif
}

// ---- The host side ----

using Kernel = void (*)(P12Args);

template <class W>
Kernel kernel_for(int tiles) {
  return tiles == 1 ? p12_tensor<W, 1> : tiles == 2 ? p12_tensor<W, 2> : p12_tensor<W, 4>;
}
Kernel kernel_for(bool packed, int tiles) {
  return packed ? kernel_for<P12Weights>(tiles) : kernel_for<PlainWeights>(tiles);
}
int tiles_for(int tokens, int x_type) {
  const int columns = tokens * parts_of(x_type);
  return columns <= columns_of_tile ? 1 : columns <= 2 * columns_of_tile ? 2 : 4;
}

}  // namespace tensor_path

using namespace tensor_path;

cudaError_t prepare_p12_tensor(const Device& device) {
  for (const bool packed : {false, true})
    for (const int tiles : {1, 2, 4}) {
      const cudaError_t error = cudaFuncSetAttribute(
          kernel_for(packed, tiles), cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_per_block);
      if (error != cudaSuccess) return error;
    }
  return cudaSuccess;
}

namespace {

// The launch of `tokens` tokens with `blocks` blocks of threads on a multiprocessor; false where its shared memory is
// too small for a part of K worth staging.
bool plan_launch(const Device& device, int tokens, int blocks, P12Args& args, GemvPlan& plan) {
  const int tiles = tiles_for(tokens, args.x_type);
  const int columns = tokens * parts_of(args.x_type);
  const int units = args.blocks * units_of_block;
  const std::int64_t groups = tasks_of(args);
  const int for_each = device.shared_per_multiprocessor / blocks - 1024;
  const std::int64_t limit = for_each < device.shared_per_block ? for_each : device.shared_per_block;
  const std::int64_t slots = std::int64_t{blocks} * device.multiprocessors;
  std::int64_t grid = groups < slots ? groups : slots;
  int chunk = units;
  int saved = 0;
  if (Shared(units, columns, tiles, 0).bytes > limit) {
    const std::int64_t least = (groups + groups_in_turn - 1) / groups_in_turn;
    if (grid < least) grid = least;
    saved = static_cast<int>((groups + grid - 1) / grid);
    const std::int64_t room = limit - Shared(0, columns, tiles, saved).bytes;
    const std::int64_t fits = room < 0 ? 0 : room / Shared(1, columns, 0, 0).sums / warps * warps;
    if (fits < (blocks > 1 ? 2 * warps : warps)) return false;
    const int chunks = static_cast<int>((units + fits - 1) / fits);
    chunk = (units + chunks - 1) / chunks;
    chunk = (chunk + warps - 1) / warps * warps;
  }
  args.chunk = chunk;
  plan.tokens = tokens;
  plan.threads = threads;
  plan.shared_bytes = static_cast<int>(Shared(chunk, columns, tiles, saved).bytes);
  plan.grid = static_cast<unsigned>(grid);
  return true;
}

}  // namespace

// As many tokens as shared memory has room for, with as many blocks of threads on a multiprocessor as registers allow.
GemvPlan plan_p12_tensor(const Device& device, P12Args& args) {
  set_tasks(args, group_rows);
  const int most = max_columns / parts_of(args.x_type);
  GemvPlan plan;
  for (int tokens = args.tokens < most ? args.tokens : most; tokens > 0; --tokens)
    for (int blocks = resident(tiles_for(tokens, args.x_type)); blocks > 0; --blocks)
      if (plan_launch(device, tokens, blocks, args, plan)) return plan;
  return plan;
}

cudaError_t launch_p12_tensor(const GemvPlan& plan, bool packed, const P12Args& args, cudaStream_t stream) {
  return launch(kernel_for(packed, tiles_for(args.tokens, args.x_type)), dim3(plan.grid), dim3(threads),
                static_cast<std::size_t>(plan.shared_bytes), stream, args);
}

}  // namespace pncuda
