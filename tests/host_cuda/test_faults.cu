// What a kernel must not do is caught, and the report says where.
#include <algorithm>

#include "testing.hpp"

using namespace host_cuda_testing;
using host_cuda::Order;
using pncuda::launch;

namespace {

constexpr bool has_asan =
#if defined(__SANITIZE_ADDRESS__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

__global__ void missing_barrier(int* out) {
  PNCUDA_SHARED(int, s);
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

__global__ void store_at(std::ptrdiff_t index, int value) {
  PNCUDA_SHARED(int, s);
  if (threadIdx.x == 3 && blockIdx.x == 1) s[index] = value;
}

__global__ void load_at(std::ptrdiff_t index, int* out) {
  PNCUDA_SHARED(int, s);
  out[threadIdx.x] = s[index];
}

__global__ void global_store_at(int* data, std::ptrdiff_t index) { data[index] = 1; }

constexpr int line_of_two_barriers = __LINE__;
__global__ void two_barriers() {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void two_kinds_of_barrier() { threadIdx.x == 0 ? __syncthreads() : static_cast<void>(__syncthreads_or(1)); }

__global__ void leave_before_barrier() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

__global__ void barrier_against_warp() {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void two_shuffles(int* out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  } else {
    out[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, 1, 1);
  }
}

__global__ void one_shuffle_in_two_places(int* out) {
  int v = 0;
  if (threadIdx.x % 2 == 0) {
    v = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  } else {
    v = __shfl_xor_sync(0xFFFFFFFFu, 2, 1);
  }
  out[threadIdx.x] = v;
}

__global__ void vote_with(unsigned mask) {
  if (threadIdx.x < 16) __ballot_sync(mask, 1);
}

__global__ void lanes_wait_for_each_other() { __syncwarp(threadIdx.x < 16 ? 0x0001FFFFu : 0xFFFF8000u); }

__global__ void shuffle_down(unsigned mask, float* out) {
  if ((mask >> threadIdx.x) & 1) out[threadIdx.x] = __shfl_down_sync(mask, 1.0f, 1);
}

__global__ void shuffle_in_width(int width) { __shfl_sync(0xFFFFFFFFu, 1, 0, width); }

__global__ void load_member(const unsigned char* p, unsigned* out) { *out = reinterpret_cast<const uint4*>(p)->z; }
__global__ void load_wide(const unsigned char* p, uint4* out) { *out = *reinterpret_cast<const uint4*>(p); }
__global__ void load_pair(const unsigned char* p, uint2* out) { *out = *reinterpret_cast<const uint2*>(p); }
__global__ void load_word(const unsigned char* p, unsigned* out) { *out = *reinterpret_cast<const unsigned*>(p); }
__global__ void load_wide_streaming(const unsigned char* p, uint4* out) {
  *out = pncuda::load_streaming(reinterpret_cast<const uint4*>(p));
}
__global__ void load_word_cached(const unsigned char* p, unsigned* out) {
  *out = __ldg(reinterpret_cast<const unsigned*>(p));
}

__global__ void allocate() {
  void* p = nullptr;
  cudaMalloc(&p, 16);
}

__global__ void recurse(int depth, volatile int* out) {
  volatile int frame[1024];
  frame[depth % 1024] = depth;
  if (depth > 0) recurse(depth - 1, out);
  *out = frame[depth % 1024];
}

}  // namespace

TEST_CASE("a missing barrier shows in some order of threads") {
  const Defaults defaults;
  const Array<int> out(64);
  std::vector<std::vector<int>> results;
  for (const Order order : {Order{}, Order{Order::reverse, 0}, Order{Order::shuffled, 7}, Order{Order::shuffled, 8},
                            Order{Order::shuffled, 9}, Order{Order::shuffled, 10}}) {
    host_cuda::set_thread_order(order);
    REQUIRE(launch(missing_barrier, 1, 64, 256, nullptr, out.get()) == cudaSuccess);
    results.push_back(out.values());
  }
  CHECK(results[0] != results[1]);
  CHECK(std::any_of(results.begin() + 2, results.end(), [&](const auto& one) { return one != results[0]; }));
  CHECK(results[0][0] == -1);  // not written yet: NaN bytes
  CHECK(results[1][63] == -1);
}

TEST_CASE("writes outside the dynamic shared memory") {
  const Defaults defaults;
  const auto store = [](std::ptrdiff_t index, int value) { launch(store_at, 3, 32, 100, nullptr, index, value); };
  CHECK(last_words([&] { store(24, -1); }) == "survived");
  for (const std::ptrdiff_t index : {25, 26, 31, -1, -5}) {
    const std::string text = last_words([&] { store(index, -1); });
    INFO("index " << index);
    if (has_asan) {
      CHECK(contains(text, "heap-buffer-overflow"));
    } else {
      CHECK(contains(text, "a write outside the dynamic shared memory"));
      CHECK(contains(text, index < 0 ? "bytes before its begin" : "bytes behind its end"));
      CHECK(contains(text, "block (1,0,0)"));
    }
  }
}

TEST_CASE("reads outside of shared memory and writes outside of global memory, with ASan") {
  if (!has_asan) return;
  const Defaults defaults;
  const Array<int> out(32);
  CHECK(contains(last_words([&] { launch(load_at, 1, 32, 100, nullptr, 25, out.get()); }), "heap-buffer-overflow"));
  CHECK(
      contains(last_words([&] { launch(global_store_at, 1, 1, 0, nullptr, out.get(), 32); }), "heap-buffer-overflow"));
  CHECK(
      contains(last_words([&] { launch(global_store_at, 1, 1, 0, nullptr, out.get(), -1); }), "heap-buffer-overflow"));
}

TEST_CASE("barriers that not all threads of a block reach") {
  const Defaults defaults;
  for (const Order order : {Order{}, Order{Order::reverse, 0}}) {
    host_cuda::set_thread_order(order);
    std::string text = fault_of(two_barriers, dim3(1, 2), dim3(8, 2), 0);
    CHECK(contains(text, "threads of a block at different barriers"));
    for (const int line : {3, 5})
      CHECK(contains(text, "test_faults.cu:" + std::to_string(line_of_two_barriers + line)));
    CHECK(contains(text, "block (0,0,0) thread ("));
    text = fault_of(two_kinds_of_barrier, 1, 2, 0);
    CHECK((contains(text, "threads of a block at different barriers") && contains(text, "__syncthreads_or")));
    CHECK(contains(fault_of(leave_before_barrier, 1, 64, 0), "1 exited threads cannot reach"));
    text = fault_of(barrier_against_warp, 1, 32, 0);
    CHECK(contains(text, "deadlock"));
    CHECK(contains(text, "1 from thread (0,0,0) on wait in __syncthreads at test_faults.cu"));
    CHECK(contains(text, "31 from thread (1,0,0) on wait in __syncwarp at test_faults.cu"));
  }
  CHECK(contains(last_words([] { launch(two_barriers, 1, 32, 0, nullptr); }),
                 "threads of a block at different barriers"));
}

TEST_CASE("operations of a warp that not all of its lanes join") {
  const Defaults defaults;
  const Array<int> out(32);
  std::string text = fault_of(two_shuffles, 1, 32, 0, out.get());
  CHECK(contains(text, "in different operations: some in __shfl_xor_sync"));
  CHECK(contains(text, "one in __shfl_down_sync"));
  CHECK(contains(fault_of(one_shuffle_in_two_places, 1, 32, 0, out.get()), "in different operations"));
  CHECK(contains(fault_of(vote_with, 1, 32, 0, 0xFFFF0000u), "the caller is not in the mask"));
  CHECK(fault_of(vote_with, 1, 32, 0, 0xFFFFFFFFu).empty());  // the others have exited, which CUDA allows
  CHECK(contains(fault_of(lanes_wait_for_each_other, 1, 32, 0), "deadlock"));
  CHECK(contains(fault_of(shuffle_in_width, 1, 32, 0, 12), "width"));
}

TEST_CASE("shuffles from lanes that do not take part") {
  const Defaults defaults;
  const Array<float> out(32);
  CHECK(contains(fault_of(shuffle_down, 1, 32, 0, 0x000000FFu, out.get()), "reads lane 8, which does not take part"));
  CHECK(contains(fault_of(shuffle_down, 1, 20, 0, 0xFFFFFFFFu, out.get()), "reads lane 20"));
  host_cuda::set_strict(false);
  REQUIRE(launch(shuffle_down, 1, 20, 0, nullptr, 0xFFFFFFFFu, out.get()) == cudaSuccess);
  CHECK(out.values()[18] == 1.0f);
  CHECK(__float_as_uint(out.values()[19]) == 0xFFFFFFFFu);
}

TEST_CASE("misaligned loads") {
  const Defaults defaults;
  const Array<unsigned char> in(64);
  const Array<uint4> out(1);
  const auto pair = reinterpret_cast<uint2*>(out.get());
  const auto word = reinterpret_cast<unsigned*>(out.get());
  CHECK(contains(fault_of(load_wide_streaming, 1, 1, 0, in.get() + 8, out.get()), "a misaligned access"));
  CHECK(contains(fault_of(load_word_cached, 1, 1, 0, in.get() + 2, word), "a misaligned access"));
  CHECK(fault_of(load_wide_streaming, 1, 1, 0, in.get() + 16, out.get()).empty());
#if defined(HOST_CUDA_TEST_UBSAN)
  const char* const message = "misaligned address";
  CHECK(contains(last_words([&] { launch(load_member, 1, 1, 0, nullptr, in.get() + 8, word); }), message));
#if !defined(__clang__)  // clang++ does not check copies of whole structs
  CHECK(contains(last_words([&] { launch(load_wide, 1, 1, 0, nullptr, in.get() + 8, out.get()); }), message));
  CHECK(contains(last_words([&] { launch(load_pair, 1, 1, 0, nullptr, in.get() + 4, pair); }), message));
#endif
  CHECK(contains(last_words([&] { launch(load_word, 1, 1, 0, nullptr, in.get() + 2, word); }), message));
#endif
  CHECK(last_words([&] {
          launch(load_member, 1, 1, 0, nullptr, in.get() + 16, word);
          launch(load_wide, 1, 1, 0, nullptr, in.get() + 16, out.get());
          launch(load_pair, 1, 1, 0, nullptr, in.get() + 8, pair);
          launch(load_word, 1, 1, 0, nullptr, in.get() + 4, word);
        }) == "survived");
}

TEST_CASE("calls of the runtime from device code, and too deep recursion") {
  const Defaults defaults;
  CHECK(contains(fault_of(allocate, 1, 1, 0), "device code calls cudaMalloc"));
  const Array<int> out(1);
  CHECK(last_words([&] { launch(recurse, 1, 1, 0, nullptr, 1000, out.get()); }) != "survived");
}

TEST_CASE("after a fault the layer goes on") {
  const Defaults defaults;
  const Array<int> out(32);
  for (int i = 0; i < 20; ++i) {
    host_cuda::set_host_threads(i % 3 + 1);
    CHECK_FALSE(fault_of(two_shuffles, 50, 32, 64, out.get()).empty());
    CHECK(fault_of(store_at, 2, 256, 1024, 255, 1).empty());
  }
}
