// libpncuda: multiplies with BF16_P12 or plain BF16 by fp32 multiply-adds, up to four tokens at a time: the path of
// devices without bf16 tensor cores, of PNCUDA_PORTABLE, and of experts.
//
// A warp has two rows and goes along K block by block; lane i has word i of every block, eight weights. Activations lie
// in shared memory as fp32, a chunk of K at a time. Order of the sums of a row, whatever the chunks: a lane adds its
// eight products of a block in element order, the first one rounded, the others by fma; then block after block; at last
// the 32 lanes, pairwise.
#include "kernels.hpp"
#include "p12.cuh"

namespace pncuda {

namespace {

constexpr int rows = 2;       // of a warp
constexpr int max_warps = 8;  // of a block of threads

// Blocks of threads that a multiprocessor has registers for.
constexpr int resident(int tokens) { return tokens <= 2 ? 3 : 2; }

// Up to four results by their numbers, 16 bits each, in one register pair.
class Results {
 public:
  static constexpr int none = 0xFFFF;
  __device__ __forceinline__ int operator[](int m) const { return static_cast<int>(numbers_ >> (16 * m) & 0xFFFFu); }
  __device__ __forceinline__ void set(int m, int number) {
    numbers_ = (numbers_ & ~(std::uint64_t{0xFFFF} << (16 * m))) | static_cast<std::uint64_t>(number) << (16 * m);
  }

 private:
  std::uint64_t numbers_ = ~std::uint64_t{0};
};
static_assert(PNCUDA_MAX_EXPERT_RESULTS < Results::none, "a number fits 16 bits");

// ---- Experts ----

// The first result from `from` on that `expert` is asked for; `tokens` if there is none. One warp.
__device__ __forceinline__ int next_result(const P12Args& args, int expert, int from, int lane) {
  for (; from < args.tokens; from += warp_size) {
    const bool same = from + lane < args.tokens && __ldg(args.expert_ids + from + lane) == expert;
    const unsigned found = __ballot_sync(all_lanes, same);
    if (found != 0) return from + __ffs(static_cast<int>(found)) - 1;
  }
  return args.tokens;
}

// ---- Staging ----

// Activations of blocks first .. first + count - 1 to fp32: for each token and block the first four of every lane's
// eight, then the second four. Threads of the block share the work. Where there is no result: zeros.
template <int tokens>
__device__ __forceinline__ void stage(const P12Args& args, Results results, int first, int count, float4* staged) {
#pragma unroll 1
  for (int m = 0; m < tokens; ++m) {
    const bool exists = results[m] != Results::none;
    int x_row = exists ? results[m] : 0;
    if (args.expert_ids != nullptr && !args.x_per_slot) x_row /= args.slots;
    const void* const x = row_at(args.x, args.x_stride, x_row);
    const bool wide = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
    for (int i = static_cast<int>(threadIdx.x); i < count * warp_size; i += static_cast<int>(blockDim.x)) {
      float v[8];
      load_eight(x, args.x_type, static_cast<std::int64_t>(first) * p12_block_weights + 8 * i, wide, exists, v);
      float4* const to = staged + (m * args.chunk + i / warp_size) * (2 * warp_size) + i % warp_size;
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[warp_size] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
}

// ---- The multiply ----

// A lane's words of a block of both rows.
template <class W>
struct Held {
  typename W::template Words<1> of[rows];
};

// The block that lies `blocks` behind.
template <class W>
__device__ __forceinline__ Held<W> load(const typename W::Place (&place)[rows], int blocks) {
  Held<W> held;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    W::load_head(place[r], blocks, held.of[r]);
    W::load_word(place[r], blocks, 0, 0, held.of[r]);
  }
  return held;
}

// sum += a block, whose registers then take the block `blocks` behind the place, if there are `more`: it is on its way
// while this one is multiplied.
template <class W, int tokens>
__device__ __forceinline__ void multiply(Held<W>& held, const float4* x, int next_token, int lane, bool more,
                                         const typename W::Place (&place)[rows], int blocks,
                                         float (&sum)[rows][tokens]) {
  std::uint32_t pairs[rows][4];
  std::uint32_t marks = 0;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    held.of[r].pairs(0, pairs[r]);
    marks |= held.of[r].mark();
  }
  if (!W::all_plain(marks)) {  // the same for the whole warp
#pragma unroll
    for (int r = 0; r < rows; ++r) held.of[r].patch(0, lane, pairs[r]);
  }
  if (more) held = load<W>(place, blocks);
#pragma unroll
  for (int m = 0; m < tokens; ++m) {
    const float4 first = x[m * next_token];
    const float4 second = x[m * next_token + warp_size];
    const float v[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float of_block = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float low = __uint_as_float(bf16_low_as_f32(pairs[r][j]));
        const float high = __uint_as_float(bf16_high_as_f32(pairs[r][j]));
        of_block = j == 0 ? __fmul_rn(low, v[0]) : fmaf(low, v[2 * j], of_block);
        of_block = fmaf(high, v[2 * j + 1], of_block);
      }
      sum[r][m] = __fadd_rn(sum[r][m], of_block);
    }
  }
}

// The sums of a task's rows, added over the warp, to their results.
template <int tokens>
__device__ __forceinline__ void finish(const P12Args& args, std::int64_t task, int expert, Results results, int lane,
                                       float (&sum)[rows][tokens]) {
#pragma unroll
  for (int m = 0; m < tokens; ++m)
#pragma unroll
    for (int r = 0; r < rows; ++r) sum[r][m] = add_lanes(sum[r][m]);
  if (lane != 0) return;
  TaskRows of[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) of[r] = task_rows(args, task, r, rows);
#pragma unroll
  for (int m = 0; m < tokens; ++m) {
    const int number = results[m];
    if (number == Results::none) continue;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const P12Matrix& matrix = args.matrices[of[r].matrix];
      if (of[r].first < matrix.rows)
        sum[r][m] = with_bias(matrix, static_cast<std::int64_t>(expert) * matrix.rows + of[r].first, sum[r][m]);
    }
    if (args.silu) {
      store_result(args.matrices[0], number, of[0].first, silu_times(sum[0][m], sum[1][m]));
      continue;
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (of[r].first < args.matrices[of[r].matrix].rows)
        store_result(args.matrices[of[r].matrix], number, of[r].first, sum[r][m]);
  }
}

// All threads of a block: a warp's two rows times the activations of the results. `task` is -1 for warps without rows.
template <class W, int tokens>
__device__ __forceinline__ void multiply_rows(const P12Args& args, std::int64_t task, int expert, Results results,
                                              int lane, float4* staged) {
  typename W::Place place[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const TaskRows of = task_rows(args, task < 0 ? 0 : task, r, rows);
    const P12Matrix& matrix = args.matrices[of.matrix];
    place[r] = W::place(
        matrix.data + expert * matrix.expert_stride + min(of.first, matrix.rows - 1) * matrix.row_stride, lane);
  }
  float sum[rows][tokens];
#pragma unroll
  for (int r = 0; r < rows; ++r)
#pragma unroll
    for (int m = 0; m < tokens; ++m) sum[r][m] = 0.0f;

  const int next_token = args.chunk * (2 * warp_size);
#pragma unroll 1
  for (int first = 0; first < args.blocks; first += args.chunk) {
    const int count = min(args.chunk, args.blocks - first);
    // Two blocks of each row are on their way at any time, the first ones while x is staged.
    Held<W> even = load<W>(place, 0);
    Held<W> odd = {};
    if (count > 1) odd = load<W>(place, 1);
    __syncthreads();  // nobody reads the chunk before
    stage<tokens>(args, results, first, count, staged);
    __syncthreads();
    if (task >= 0) {
      const float4* x = staged + lane;
#pragma unroll 1
      for (int left = count; left > 0; left -= 2) {
        multiply(even, x, next_token, lane, left > 2, place, 2, sum);
        if (left == 1) break;
        multiply(odd, x + 2 * warp_size, next_token, lane, left > 3, place, 3, sum);
        x += 2 * (2 * warp_size);
#pragma unroll
        for (int r = 0; r < rows; ++r) place[r].advance(2);
      }
    }
  }
  if (task >= 0) finish(args, task, expert, results, lane, sum);
}

// A warp takes task blockIdx.x * warps + its number; with experts blockIdx.y is a result, and the first of those that
// ask for the same expert takes all of them.
//
// sass: loop = LDG + FFMA + FMUL
// sass: weights = 8 * (LDG.64 / 2 if W == "p12" else LDG.128)
// sass: math = (FFMA + FMUL) / tokens
template <class W, int tokens>
__global__ void __launch_bounds__(max_warps* warp_size, resident(tokens)) p12_ffma(const P12Args args) {
  PNCUDA_SHARED(float4, staged);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / warp_size) + warp;
  if (task >= tasks_of(args)) task = -1;

  Results results;
  if (args.expert_ids == nullptr) {
#pragma unroll
    for (int m = 0; m < tokens; ++m)
      if (m < args.tokens) results.set(m, m);
    multiply_rows<W, tokens>(args, task, 0, results, lane, staged);
    return;
  }

  const int result = static_cast<int>(blockIdx.y);
  const int expert = __ldg(args.expert_ids + result);
  if (expert < 0 || expert >= args.experts) {
    if (task >= 0 && lane < (args.silu ? 1 : rows)) {
      const TaskRows of = task_rows(args, task, lane, rows);
      const P12Matrix& matrix = args.matrices[of.matrix];
      if (of.first < matrix.rows)
        store_element(row_at(matrix.y, matrix.y_stride, result), matrix.y_type, of.first, 0.0f);
    }
    return;
  }
  if (next_result(args, expert, 0, lane) != result) return;  // the same for the whole block
#pragma unroll 1
  for (int next = result; next < args.tokens;) {
    results = Results();
#pragma unroll 1
    for (int m = 0; m < tokens && next < args.tokens; ++m) {
      results.set(m, next);
      next = next_result(args, expert, next + 1, lane);
    }
    multiply_rows<W, tokens>(args, task, expert, results, lane, staged);
  }
}

// ---- The host side ----

using Kernel = void (*)(P12Args);

template <class W>
Kernel kernel_for(int tokens) {
  return tokens <= 1 ? p12_ffma<W, 1> : tokens <= 2 ? p12_ffma<W, 2> : p12_ffma<W, 4>;
}
Kernel kernel_for(bool packed, int tokens) {
  return packed ? kernel_for<P12Weights>(tokens) : kernel_for<PlainWeights>(tokens);
}

}  // namespace

cudaError_t prepare_p12_ffma(const Device& device) {
  for (const bool packed : {false, true})
    for (const int tokens : {1, 2, 4}) {
      const cudaError_t error = cudaFuncSetAttribute(
          kernel_for(packed, tokens), cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_per_block);
      if (error != cudaSuccess) return error;
    }
  return cudaSuccess;
}

GemvPlan plan_p12_ffma(const Device& device, P12Args& args) {
  GemvPlan plan;
  // With experts `tokens` counts all results; those of one expert go together.
  const int most = args.expert_ids != nullptr ? (args.tokens + args.slots - 1) / args.slots : args.tokens;
  int fits = 0;  // blocks of K
  int block_bytes = 0;
  for (plan.tokens = most <= 1 ? 1 : most <= 2 ? 2 : 4; plan.tokens > 0; plan.tokens /= 2) {
    const int for_each = device.shared_per_multiprocessor / resident(plan.tokens) - 1024;
    const int limit = for_each < device.shared_per_block ? for_each : device.shared_per_block;
    block_bytes = plan.tokens * p12_block_weights * 4;
    fits = limit / block_bytes / 2 * 2;
    if (fits > 0) break;
  }
  if (plan.tokens == 0) return plan;
  const int chunks = args.blocks <= fits ? 1 : (args.blocks + fits - 1) / fits;
  args.chunk = (args.blocks + chunks - 1) / chunks;
  if (chunks > 1) args.chunk = (args.chunk + 1) / 2 * 2;
  if (args.chunk < 1) args.chunk = 1;
  plan.shared_bytes = args.chunk * block_bytes;

  set_tasks(args, rows);
  const std::int64_t tasks = tasks_of(args);
  int warps = max_warps;
  while (warps > 2 && tasks / warps < 2 * device.multiprocessors) warps /= 2;
  plan.threads = warps * warp_size;
  plan.grid = static_cast<unsigned>((tasks + warps - 1) / warps);
  return plan;
}

cudaError_t launch_p12_ffma(const GemvPlan& plan, bool packed, const P12Args& args, cudaStream_t stream) {
  const unsigned results = args.expert_ids != nullptr ? static_cast<unsigned>(args.tokens) : 1;
  return launch(kernel_for(packed, plan.tokens), dim3(plan.grid, results), dim3(static_cast<unsigned>(plan.threads)),
                static_cast<std::size_t>(plan.shared_bytes), stream, args);
}

}  // namespace pncuda
