// libpncuda: what the multiplies with BF16_P12 share: their arguments, the two kinds of weights behind one interface,
// and what becomes of a sum.
//
// Every kernel is a template over the kind of weights, P12Weights or PlainWeights, that gives a lane the same weights
// as pairs of bf16 in registers; all that follows is the same code. So results of packed and of unpacked weights have
// the same bits.
#ifndef PNCUDA_P12_CUH
#define PNCUDA_P12_CUH

#include <pncuda/pncuda_p12.h>

#include <pncuda/decode_p12.cuh>

#include "elements.cuh"

namespace pncuda {

// One matrix of a call; see pncuda_fused_matrix.
struct P12Matrix {
  const std::uint8_t* data;
  std::int64_t row_stride, expert_stride;  // bytes
  void* y;
  std::int64_t y_stride;
  const void* bias;
  const void* residual;
  std::int64_t residual_stride;
  std::int64_t rows;
  std::int64_t tasks;  // how many times the rows that a warp (FFMA) or a block of threads (tensor) takes at once
  std::int32_t y_type, bias_type, residual_type;
};

struct P12Args {
  P12Matrix matrices[PNCUDA_MAX_MATRICES];
  const void* x;
  std::int64_t x_stride;
  std::int32_t x_type;
  std::int32_t tokens;  // results for each row: with experts tokens * slots
  std::int32_t blocks;  // of a row
  std::int32_t count;   // matrices
  bool silu;            // two matrices, whose tasks are shared: half of the rows of each
  std::int32_t chunk;   // tensor: units of K staged at once; FFMA: blocks
  // Experts.
  const std::int32_t* expert_ids;  // or null
  std::int32_t experts, slots;
  bool x_per_slot;
};

// ---- The two kinds of weights ----
//
// `Place` is where a lane finds its words of a block, and of the block that lies `blocks` behind. `Words` is what it
// loads of `count` words (8 weights each): `pairs` makes bf16 pairs of one; the marks of all that is at hand, OR-ed,
// tell whether `all_plain`, and where they do not, `patch` comes after `pairs`.

struct P12Weights {
  static constexpr int block_bytes = p12_block_bytes;
  static constexpr bool always_plain = false;
  template <int count>
  struct Words {
    P12Head head;
    P12Word words[count];
    __device__ __forceinline__ std::uint32_t mark() const { return head.low; }
    __device__ __forceinline__ void pairs(int i, std::uint32_t* to) const {
      unpack_p12_word(words[i], p12_base_of_pairs(head.low), to);
    }
    // `index` is the place of word i in its block.
    __device__ __forceinline__ void patch(int i, int index, std::uint32_t* to) const {
      patch_p12_word(head, words[i], index, to);
    }
  };
  static __device__ __forceinline__ bool all_plain(std::uint32_t marks) { return p12_all_plain(marks); }

  struct Place {
    const std::uint8_t* head;
    const std::uint8_t* codes;
    const std::uint8_t* remainder;
    __device__ __forceinline__ void advance(int blocks) {
      head += blocks * block_bytes;
      codes += blocks * block_bytes;
      remainder += blocks * block_bytes;
    }
  };
  static __device__ __forceinline__ Place place(const std::uint8_t* block, int index) {
    return {block, block + p12_codes_at + 4 * index, block + p12_remainder_at + 8 * index};
  }
  template <int count>
  static __device__ __forceinline__ void load_head(const Place& from, int blocks, Words<count>& to) {
    const uint2 head = load_shared_lines<uint2>(from.head + blocks * block_bytes);
    to.head = {head.x, head.y};
  }
  // The word `index` words behind the place as word i.
  template <int count>
  static __device__ __forceinline__ void load_word(const Place& from, int blocks, int index, int i, Words<count>& to) {
    to.words[i].codes = load_shared_lines<unsigned int>(from.codes + blocks * block_bytes + 4 * index);
    load_remainder(from, blocks, index, to.words[i]);
  }
  // That and the one behind it; the first has an even place in its block.
  template <int count>
  static __device__ __forceinline__ void load_two(const Place& from, int blocks, int index, int i, Words<count>& to) {
    const uint2 codes = load_shared_lines<uint2>(from.codes + blocks * block_bytes + 4 * index);
    to.words[i].codes = codes.x;
    to.words[i + 1].codes = codes.y;
    load_remainder(from, blocks, index, to.words[i]);
    load_remainder(from, blocks, index + 1, to.words[i + 1]);
  }

 private:
  static __device__ __forceinline__ void load_remainder(const Place& from, int blocks, int index, P12Word& to) {
    const uint2 remainder = load_shared_lines<uint2>(from.remainder + blocks * block_bytes + 8 * index);
    to.remainder[0] = remainder.x;
    to.remainder[1] = remainder.y;
  }
};

struct PlainWeights {
  static constexpr int block_bytes = p12_block_weights * 2;
  static constexpr bool always_plain = true;
  template <int count>
  struct Words {
    uint4 words[count];
    __device__ __forceinline__ std::uint32_t mark() const { return 0; }
    __device__ __forceinline__ void pairs(int i, std::uint32_t* to) const {
      to[0] = words[i].x;
      to[1] = words[i].y;
      to[2] = words[i].z;
      to[3] = words[i].w;
    }
    __device__ __forceinline__ void patch(int, int, std::uint32_t*) const {}
  };
  static __device__ __forceinline__ bool all_plain(std::uint32_t) { return true; }

  struct Place {
    const std::uint8_t* words;
    __device__ __forceinline__ void advance(int blocks) { words += blocks * block_bytes; }
  };
  static __device__ __forceinline__ Place place(const std::uint8_t* block, int index) { return {block + 16 * index}; }
  template <int count>
  static __device__ __forceinline__ void load_head(const Place&, int, Words<count>&) {}
  template <int count>
  static __device__ __forceinline__ void load_word(const Place& from, int blocks, int index, int i, Words<count>& to) {
    to.words[i] = load_streaming(reinterpret_cast<const uint4*>(from.words + blocks * block_bytes + 16 * index));
  }
  template <int count>
  static __device__ __forceinline__ void load_two(const Place& from, int blocks, int index, int i, Words<count>& to) {
    load_word(from, blocks, index, i, to);
    load_word(from, blocks, index + 1, i + 1, to);
  }
};

// ---- Activations ----

// Activations i .. i + 7 of a row, i a multiple of 8, as fp32; zeros where there is no row. `wide`: the row lies at a
// multiple of 16.
__device__ __forceinline__ void load_eight(const void* x, int type, std::int64_t i, bool wide, bool exists,
                                           float (&v)[8]) {
  if (!exists) {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = 0.0f;
  } else if (!wide) {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = load_element(x, type, i + j);
  } else if (type == PNCUDA_F32) {
    const float4* const p = reinterpret_cast<const float4*>(static_cast<const float*>(x) + i);
    const float4 first = __ldg(p), second = __ldg(p + 1);
    v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
    v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
  } else {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(x) + i));
    const std::uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = pair_to_floats(pairs[j], type);
      v[2 * j] = pair.x;
      v[2 * j + 1] = pair.y;
    }
  }
}

// ---- Results ----

// Rows of a task: `half` 0 and 1 are half of the rows each. Which matrix and where in it.
struct TaskRows {
  int matrix;
  std::int64_t first;  // row
};

// Tasks of `rows` rows for each matrix; with silu half of them are rows of the gate.
inline void set_tasks(P12Args& args, int rows) {
  if (args.silu) rows /= 2;
  for (int i = 0; i < args.count; ++i) args.matrices[i].tasks = (args.matrices[i].rows + rows - 1) / rows;
}
__host__ __device__ __forceinline__ std::int64_t tasks_of(const P12Args& args) {
  std::int64_t tasks = args.matrices[0].tasks;
  if (!args.silu) tasks += args.matrices[1].tasks + args.matrices[2].tasks;
  return tasks;
}

// Rows of half `half` (0, 1) of task `task` (over all matrices), which has `rows` rows in all.
__device__ __forceinline__ TaskRows task_rows(const P12Args& args, std::int64_t task, int half, int rows) {
  if (args.silu) return {half, task * (rows / 2)};
  int matrix = 0;
#pragma unroll
  for (int i = 0; i < PNCUDA_MAX_MATRICES - 1; ++i)
    if (matrix == i && i + 1 < args.count && task >= args.matrices[i].tasks) {
      task -= args.matrices[i].tasks;
      ++matrix;
    }
  return {matrix, task * rows + half * (rows / 2)};
}

__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// The sum of a row and a token to its result. `number` counts tokens, with experts results; `row` is a row of the
// matrix, `bias_row` with experts one of all experts.
__device__ __forceinline__ float with_bias(const P12Matrix& m, std::int64_t bias_row, float sum) {
  return m.bias == nullptr ? sum : __fadd_rn(sum, load_element(m.bias, m.bias_type, bias_row));
}
__device__ __forceinline__ void store_result(const P12Matrix& m, std::int64_t number, std::int64_t row, float value) {
  // Not through the read-only cache: y may be the residual.
  if (m.residual != nullptr) {
    const void* const residual = row_at(m.residual, m.residual_stride, number);
    value = __fadd_rn(value, load_written_element(residual, m.residual_type, row));
  }
  store_element(row_at(m.y, m.y_stride, number), m.y_type, row, value);
}

}  // namespace pncuda

#endif  // PNCUDA_P12_CUH
