// Correct kernels give their results, in whatever order threads and blocks run.
#include <numeric>

#include "testing.hpp"

using namespace host_cuda_testing;
using host_cuda::Order;
using pncuda::launch;

namespace {

// Runs `check` with every kind of order and on several host threads.
template <class Check>
void in_all_orders(Check check) {
  const Defaults defaults;
  for (const Order order : {Order{}, Order{Order::reverse, 0}, Order{Order::shuffled, 1}, Order{Order::shuffled, 2}}) {
    for (const int threads : {1, 3}) {
      INFO("order " << order.kind << " seed " << order.seed << ", " << threads << " host threads");
      host_cuda::set_thread_order(order);
      host_cuda::set_block_order(order);
      host_cuda::set_host_threads(threads);
      check();
    }
  }
}

__global__ void where(uint4* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = make_uint4(block, threadIdx.x, threadIdx.y, threadIdx.z);
}

__global__ void __launch_bounds__(256) reverse_rows(const int* in, int* out) {
  PNCUDA_SHARED(int, row);
  const unsigned t = threadIdx.x, n = blockDim.x;
  for (int turn = 0; turn < 3; ++turn) {  // the buffer is used again: two barriers each time
    row[t] = in[blockIdx.x * n + t] + turn;
    __syncthreads();
    const int v = row[n - 1 - t];
    __syncthreads();
    out[blockIdx.x * n + t] = v;
  }
}

__global__ void fresh_shared_memory(unsigned* out) {
  PNCUDA_SHARED(unsigned, words);
  out[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x];
  __syncthreads();
  words[threadIdx.x] = 0;
}

__global__ void leave_early(int* out, unsigned n) {
  PNCUDA_SHARED(int, s);
  const unsigned t = threadIdx.x;
  if (t >= n) return;
  s[t] = static_cast<int>(t);
  __syncthreads();
  out[t] = s[n - 1 - t];
}

__global__ void shuffles(int* out) {
  const int t = static_cast<int>(threadIdx.x), lane = t % 32;
  const unsigned own = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  int v[9];
  v[0] = __shfl_sync(0xFFFFFFFFu, t, lane + 5);
  v[1] = __shfl_sync(0xFFFFFFFFu, t, 3, 8);
  v[2] = __shfl_xor_sync(0xFFFFFFFFu, t, 9);
  v[3] = __shfl_xor_sync(0xFFFFFFFFu, t, 8, 8);  // upwards out of the segment: the own value; downwards it is read
  v[4] = __shfl_down_sync(0xFFFFFFFFu, t, 3);
  v[5] = __shfl_up_sync(0xFFFFFFFFu, t, 2, 4);
  v[6] = __shfl_xor_sync(own, t, 1);
  v[7] = static_cast<int>(__shfl_down_sync(own, static_cast<float>(t), 1, 16));
  if (lane < 16) {  // the halves of a warp do different things, and then one thing together
    v[8] = __shfl_xor_sync(own, t, 3);
    v[8] += __shfl_xor_sync(own, v[8], 8);
  } else {
    v[8] = __shfl_xor_sync(own, t, 2);
  }
  v[8] += __shfl_xor_sync(0xFFFFFFFFu, v[8], 16);
  for (int i = 0; i < 9; ++i) out[t * 9 + i] = v[i];
}

__global__ void votes(unsigned* out) {
  const unsigned t = threadIdx.x, full = 0xFFFFFFFFu;
  unsigned* const o = out + t * 6;
  o[0] = __ballot_sync(full, t % 3 == 0);
  o[1] = static_cast<unsigned>(__any_sync(full, t == 77) * 2 + __all_sync(full, t < 64));
  o[2] = static_cast<unsigned>(__syncthreads_count(t % 5 == 0));
  o[3] = static_cast<unsigned>(__syncthreads_or(t == 9) * 2 + __syncthreads_or(t == 999));
  o[4] = static_cast<unsigned>(__syncthreads_and(t < 999) * 2 + __syncthreads_and(t != 9));
  __syncwarp();
  o[5] = __ballot_sync(full, 1);
}

template <bool bf16>
__global__ void multiply_tiles(const std::uint16_t* a, const std::uint16_t* b, float* d) {  // b[k][n]
  const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const auto pair = [](unsigned low, unsigned high) { return low | (high << 16); };
  const auto of_a = [&](unsigned row, unsigned k) { return pair(a[row * 16 + k], a[row * 16 + k + 1]); };
  const auto of_b = [&](unsigned k) { return pair(b[k * 8 + g], b[(k + 1) * 8 + g]); };
  const std::uint32_t fragment[4] = {of_a(g, 2 * t), of_a(g + 8, 2 * t), of_a(g, 2 * t + 8), of_a(g + 8, 2 * t + 8)};
  float sums[4];
  float* const places[4] = {&d[g * 8 + 2 * t], &d[g * 8 + 2 * t + 1], &d[(g + 8) * 8 + 2 * t],
                            &d[(g + 8) * 8 + 2 * t + 1]};
  for (int i = 0; i < 4; ++i) sums[i] = *places[i];
  if (bf16)
    pncuda::mma_m16n8k16_bf16(sums, fragment, of_b(2 * t), of_b(2 * t + 8));
  else
    pncuda::mma_m16n8k16(sums, fragment, of_b(2 * t), of_b(2 * t + 8));
  for (int i = 0; i < 4; ++i) *places[i] = sums[i];
}

// Histogram of the block's numbers, and the smallest of all.
__global__ void count_and_least(const unsigned* in, unsigned n, unsigned* counts, unsigned long long* least) {
  PNCUDA_SHARED(unsigned, mine);
  const unsigned t = threadIdx.x;
  for (unsigned i = t; i < 16; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(mine + in[i] % 16, 1u + in[i] % 2);
    atomicMin(least, in[i] + (1ull << 40));
  }
  __syncthreads();
  for (unsigned i = t; i < 16; i += blockDim.x) atomicAdd(counts + i, mine[i]);
}

}  // namespace

TEST_CASE("every thread of every block runs once and knows its place") {
  in_all_orders([] {
    const dim3 grid(2, 3, 2), block(5, 2, 4);
    const Array<uint4> out(12 * 40);
    REQUIRE(launch(where, grid, block, 0, nullptr, out.get()) == cudaSuccess);
    const auto values = out.values();
    for (unsigned i = 0; i < values.size(); ++i) {
      const unsigned t = i % 40;
      REQUIRE(values[i].x == i / 40);
      REQUIRE((values[i].y == t % 5 && values[i].z == t / 5 % 2 && values[i].w == t / 10));
    }
  });
}

TEST_CASE("barriers order a block's accesses to shared memory") {
  in_all_orders([] {
    for (const unsigned n : {1u, 20u, 32u, 96u, 1024u}) {
      std::vector<int> in(n * 7);
      std::iota(in.begin(), in.end(), 0);
      const Array<int> from(in), to(n * 7);
      REQUIRE(launch(reverse_rows, 7, n, n * 4, nullptr, from.get(), to.get()) == cudaSuccess);
      const auto values = to.values();
      for (unsigned i = 0; i < n * 7; ++i) REQUIRE(values[i] == static_cast<int>(i / n * n + n - 1 - i % n) + 2);
    }
  });
}

TEST_CASE("memory begins as NaN bytes: allocated, and shared for each block anew") {
  const Defaults defaults;
  CHECK(Array<unsigned>(3).values() == std::vector<unsigned>(3, 0xFFFFFFFFu));
  const Array<unsigned> out(64);
  REQUIRE(launch(fresh_shared_memory, 4, 16, 64, nullptr, out.get()) == cudaSuccess);
  CHECK(out.values() == std::vector<unsigned>(64, 0xFFFFFFFFu));
}

TEST_CASE("threads that have left are not waited for when faults are not strict") {
  in_all_orders([] {
    host_cuda::set_strict(false);
    const Array<int> out(40);
    REQUIRE(launch(leave_early, 2, 64, 256, nullptr, out.get(), 40u) == cudaSuccess);
    const auto values = out.values();
    for (int i = 0; i < 40; ++i) REQUIRE(values[static_cast<unsigned>(i)] == 39 - i);
  });
}

TEST_CASE("shuffles") {
  in_all_orders([] {
    const Array<int> out(64 * 9);
    REQUIRE(launch(shuffles, 1, 64, 0, nullptr, out.get()) == cudaSuccess);
    const auto values = out.values();
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32, warp = t - lane;
      const auto halves = [&](int l) { return l < 16 ? 2 * warp + (l ^ 3) + (l ^ 3 ^ 8) : warp + (l ^ 2); };
      const int expected[9] = {
          warp + (lane + 5) % 32,          warp + lane / 8 * 8 + 3,  t ^ 9, lane / 8 % 2 == 1 ? t ^ 8 : t,
          lane < 29 ? t + 3 : t,           lane % 4 < 2 ? t : t - 2, t ^ 1, lane % 16 == 15 ? t : t + 1,
          halves(lane) + halves(lane ^ 16)};
      for (int i = 0; i < 9; ++i) {
        INFO("thread " << t << " value " << i);
        REQUIRE(values[static_cast<unsigned>(t * 9 + i)] == expected[i]);
      }
    }
  });
}

TEST_CASE("votes, also of a warp that is not full") {
  in_all_orders([] {
    const unsigned n = 80;
    const Array<unsigned> out(n * 6);
    REQUIRE(launch(votes, 1, n, 0, nullptr, out.get()) == cudaSuccess);
    const auto values = out.values();
    for (unsigned t = 0; t < n; ++t) {
      const unsigned warp = t / 32 * 32, lanes = warp == 64 ? 16 : 32;
      unsigned thirds = 0;
      for (unsigned l = 0; l < lanes; ++l) thirds |= ((warp + l) % 3 == 0 ? 1u : 0u) << l;
      const unsigned expected[6] = {
          thirds, (warp == 64 ? 2u : 0u) + (warp < 64 ? 1u : 0u), 16, 2, 2, warp == 64 ? 0xFFFFu : 0xFFFFFFFFu};
      for (unsigned i = 0; i < 6; ++i) {
        INFO("thread " << t << " value " << i);
        REQUIRE(values[t * 6 + i] == expected[i]);
      }
    }
  });
}

namespace {

template <bool bf16>
void tensor_cores_multiply() {
  const Defaults defaults;
  const auto value = [](std::uint16_t bits) {
    return static_cast<double>(bf16 ? pn::bf16_to_float(bits) : pn::half_to_float(bits));
  };
  std::vector<std::uint16_t> a(16 * 16), b(16 * 8);
  std::vector<float> sums(16 * 8), expected(16 * 8);
  std::uint32_t random = 12345;
  const auto next = [&] { return (random = random * 1664525u + 1013904223u) >> 8; };
  for (const bool subnormal : {false, true}) {
    for (auto* factors : {&a, &b}) {
      for (auto& f : *factors)
        f = static_cast<std::uint16_t>(
            bf16 ? (next() & 0x807Fu) | (subnormal && factors == &a ? 0u : (next() % 20 + 120) << 7)
                 : (next() & 0x83FFu) | (subnormal ? 0u : (next() % 12 + 8) << 10));
    }
    for (unsigned i = 0; i < sums.size(); ++i) sums[i] = subnormal ? 0.0f : static_cast<float>(i) - 40.25f;
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned column = 0; column < 8; ++column) {
        auto sum = static_cast<double>(sums[row * 8 + column]);
        for (unsigned k = 0; k < 16; ++k) sum += value(a[row * 16 + k]) * value(b[k * 8 + column]);
        expected[row * 8 + column] = static_cast<float>(sum);
      }
    }
    const Array<std::uint16_t> da(a), db(b);
    const Array<float> d(sums);
    host_cuda::set_device(host_cuda::a10());
    REQUIRE(launch(multiply_tiles<bf16>, 1, 32, 0, nullptr, da.get(), db.get(), d.get()) == cudaSuccess);
    CHECK(d.values() == expected);
    CHECK(expected[5] != 0);
  }
  host_cuda::set_device(host_cuda::t4());
  const Array<std::uint16_t> da(a), db(b);
  const Array<float> d(sums);
  CHECK(contains(fault_of(multiply_tiles<bf16>, 1, 32, 0, da.get(), db.get(), d.get()), "older than 8.0"));
  host_cuda::set_device(host_cuda::h100());
  CHECK(contains(fault_of(multiply_tiles<bf16>, 1, 31, 0, da.get(), db.get(), d.get()), "without all lanes"));
}

}  // namespace

TEST_CASE("tensor cores multiply as a loop does, subnormal numbers and all") { tensor_cores_multiply<false>(); }
TEST_CASE("tensor cores multiply bf16 as a loop does, subnormal numbers and all") { tensor_cores_multiply<true>(); }

TEST_CASE("atomics") {
  in_all_orders([] {
    const unsigned n = 1000;
    std::vector<unsigned> in(n), expected(16, 0);
    unsigned least = ~0u;
    for (unsigned i = 0; i < n; ++i) {
      in[i] = (i + 7) * 2654435761u >> 4;
      expected[in[i] % 16] += 1 + in[i] % 2;
      least = std::min(least, in[i]);
    }
    const Array<unsigned> from(in), counts(std::vector<unsigned>(16, 0));
    const Array<unsigned long long> smallest(std::vector<unsigned long long>(1, ~0ull));
    REQUIRE(launch(count_and_least, 5, 96, 64, nullptr, from.get(), n, counts.get(), smallest.get()) == cudaSuccess);
    REQUIRE(counts.values() == expected);
    REQUIRE(smallest.values()[0] == least + (1ull << 40));
  });
}

TEST_CASE("functions on bits") {
  CHECK(__byte_perm(0x33221100, 0x77665544, 0x7250) == 0x77225500);
  CHECK(__funnelshift_r(0x89ABCDEF, 0x01234567, 8) == 0x6789ABCD);
  CHECK(__funnelshift_r(0x89ABCDEF, 0x01234567, 32) == 0x89ABCDEF);
  CHECK(__funnelshift_l(0x89ABCDEF, 0x01234567, 8) == 0x23456789);
  CHECK(__funnelshift_l(0x89ABCDEF, 0x01234567, 0) == 0x01234567);
  CHECK((__popc(0xF0F1) == 9 && __clz(1) == 31 && __clz(0) == 32 && __clz(-1) == 0 && __ffs(0) == 0 && __ffs(8) == 4));
  CHECK((__float_as_uint(1.0f) == 0x3F800000 && __uint_as_float(0xC0000000) == -2.0f &&
         __int_as_float(0x3F000000) == 0.5f));
  CHECK((min(2u, 3u) == 2u && max(-2, 3) == 3 && min(1.0f, NAN) == 1.0f));
  CHECK(__fmaf_rn(1 + 0x1p-12f, 1 + 0x1p-12f, -1.0f) == 0x1p-11f + 0x1p-24f);
  CHECK(__fsub_rn(__fmul_rn(1 + 0x1p-12f, 1 + 0x1p-12f), __fadd_rn(0.5f, 0.5f)) == 0x1p-11f);
}
