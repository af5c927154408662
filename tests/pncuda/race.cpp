// For ThreadSanitizer: kernels whose threads share memory, each on small shapes with one chunk and with several. The
// layer orders memory at barriers only, so a missing one is a race. Blocks run on two host threads.
#include <cuda_runtime.h>
#include <pncuda/pncuda_p12.h>

#include <atomic>
#include <cstdio>
#include <host_cuda/host_cuda.hpp>
#include <thread>
#include <vector>

#include "../pn/testing.hpp"

namespace {

void* allocate(std::int64_t bytes) {
  void* p = nullptr;
  cudaMalloc(&p, static_cast<std::size_t>(bytes));
  return p;
}

int failures = 0;
void check(pncuda_status status) { failures += status != PNCUDA_OK; }

void multiply(int type, std::int64_t rows, std::int64_t blocks, std::int64_t tokens, int x_type, int mode,
              int hadamard) {
  const std::int64_t k = blocks * (type == PNCUDA_PN3T ? 80 : 64);
  testing::Random random(1);
  auto* const w = static_cast<std::uint8_t*>(allocate(rows * blocks * 34));
  for (std::int64_t i = 0; i < rows * blocks * 34; ++i) w[i] = i % 34 == 1 ? 0x20 : random.byte();
  const std::int64_t element = x_type == PNCUDA_F32 ? 4 : 2;
  void* const x = allocate(tokens * k * element);
  cudaMemset(x, 0x3B, static_cast<std::size_t>(tokens * k * element));
  void* const turned = allocate(tokens * k * 4);
  void* const y = allocate(tokens * rows * 4);
  const pncuda_weights native{sizeof native, type, PNCUDA_NATIVE, w, rows, k, blocks * 34};
  const pncuda_weights repacked{sizeof repacked, type, PNCUDA_REPACKED, w, rows, k, 0};  // any bytes are safe
  for (const pncuda_weights* weights : {&native, &repacked}) {
    const pncuda_gemv_args args{sizeof args, weights,  x,      k * element, x_type,  PNCUDA_F32,
                                y,           rows * 4, tokens, mode,        hadamard};
    check(pncuda_gemv(&args, nullptr));
  }
  if (hadamard != 0) {
    const pncuda_hadamard_args args{sizeof args, x,      k * element, turned,   k * 4, x_type,
                                    PNCUDA_F32,  tokens, k,           hadamard, 0};
    check(pncuda_hadamard(&args, nullptr));
  }
  for (void* const p : {static_cast<void*>(w), x, turned, y}) cudaFree(p);
}

// BF16_P12 of any bytes, and the same as plain weights.
void multiply_p12(std::int64_t rows, std::int64_t blocks, std::int64_t tokens, int x_type, int mode) {
  const std::int64_t k = 256 * blocks, element = x_type == PNCUDA_F32 ? 4 : 2;
  testing::Random random(2);
  auto* const w = static_cast<std::uint8_t*>(allocate(rows * blocks * 512));
  for (std::int64_t i = 0; i < rows * blocks * 512; ++i) w[i] = random.byte();
  void* const x = allocate(tokens * k * element);
  cudaMemset(x, 0x3B, static_cast<std::size_t>(tokens * k * element));
  void* const y = allocate(tokens * rows * 4);
  void* const bias = allocate(rows * 4);
  cudaMemset(bias, 0, static_cast<std::size_t>(rows * 4));
  auto* const ids = static_cast<std::int32_t*>(allocate(tokens * 4));
  for (std::int64_t m = 0; m < tokens; ++m) ids[m] = static_cast<std::int32_t>(m % 2);
  for (const int type : {PNCUDA_BF16_P12, PNCUDA_BF16_PLAIN}) {
    const std::int64_t row = blocks * (type == PNCUDA_BF16_P12 ? 392 : 512);
    const pncuda_weights all{sizeof all, type, PNCUDA_NATIVE, w, rows, k, row};
    const pncuda_gemv_args gemv{sizeof gemv, &all, x, k * element, x_type, PNCUDA_F32, y, rows * 4, tokens, mode, 0};
    check(pncuda_gemv(&gemv, nullptr));
    // Gate and up: the two halves of the rows. Then they are two experts.
    const pncuda_weights half{sizeof half, type, PNCUDA_NATIVE, w, rows / 2, k, row};
    pncuda_weights other = half;
    other.data = w + rows / 2 * row;
    pncuda_fused_matrix matrices[2] = {};
    matrices[0].struct_size = matrices[1].struct_size = sizeof matrices[0];
    matrices[0].weights = &half;
    matrices[1].weights = &other;
    matrices[0].y = y;
    matrices[0].y_stride = rows * 4;
    matrices[0].y_type = PNCUDA_F32;
    matrices[0].bias = bias;
    matrices[0].bias_type = PNCUDA_F32;
    pncuda_fused_args fused{};
    fused.struct_size = sizeof fused;
    fused.matrices = matrices;
    fused.count = 2;
    fused.activation = PNCUDA_SILU_MUL;
    fused.x = x;
    fused.x_stride = k * element;
    fused.x_type = x_type;
    fused.mode = mode;
    fused.tokens = tokens;
    check(pncuda_fused(&fused, nullptr));
    matrices[0].expert_stride = rows / 2 * row;
    fused.count = 1;
    fused.activation = PNCUDA_NO_ACTIVATION;
    fused.expert_ids = ids;
    fused.experts = 2;
    fused.slots = 1;
    check(pncuda_fused(&fused, nullptr));
  }
  for (void* const p : {static_cast<void*>(w), x, y, bias, static_cast<void*>(ids)}) cudaFree(p);
}

// Preparing again while others plan.
void prepare_beside_queries() {
  std::atomic<int> failed{0};
  std::thread other([&] {
    for (int i = 0; i < 20; ++i) failed += pncuda_prepare(0) != PNCUDA_OK;
  });
  const pncuda_weights weights{sizeof weights, PNCUDA_BF16_P12, PNCUDA_NATIVE, nullptr, 16, 256, 392};
  const pncuda_gemv_args args{sizeof args, &weights, nullptr, 512, PNCUDA_BF16, PNCUDA_F32, nullptr, 64, 1, 0, 0};
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  for (int i = 0; i < 200; ++i) check(pncuda_gemv_query(&args, &plan));
  other.join();
  failures += failed;
}

void pack(std::int64_t rows, std::int64_t blocks) {
  const std::int64_t weights = rows * blocks * 256;
  void* const plain = allocate(2 * weights);
  cudaMemset(plain, 0x3B, static_cast<std::size_t>(2 * weights));
  static_cast<std::uint16_t*>(plain)[weights / 2] = 0;  // listed
  void* const out = allocate(rows * blocks * 392);
  auto* const first_bad = static_cast<std::int64_t*>(allocate(8));
  const pncuda_weights from{sizeof from, PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, plain, rows, 256 * blocks, 512 * blocks};
  check(pncuda_p12_pack(&from, out, 392 * blocks, first_bad, nullptr));
  for (void* const p : {plain, out, static_cast<void*>(first_bad)}) cudaFree(p);
}

void add_low_rank(std::int64_t n, std::int64_t k, int rank, std::int64_t tokens) {
  void* const factors = allocate(4 * rank * (k + n));
  void* const x = allocate(4 * tokens * k);
  void* const y = allocate(4 * tokens * n);
  auto* const scales = static_cast<float*>(allocate(4 * tokens));
  const std::size_t room = pncuda_low_rank_workspace(tokens, rank);
  void* const workspace = allocate(static_cast<std::int64_t>(room));
  cudaMemset(factors, 0, static_cast<std::size_t>(4 * rank * (k + n)));
  cudaMemset(x, 0, static_cast<std::size_t>(4 * tokens * k));
  cudaMemset(y, 0, static_cast<std::size_t>(4 * tokens * n));
  for (std::int64_t m = 0; m < tokens; ++m) scales[m] = static_cast<float>(m % 2);
  pncuda_low_rank_args args{};
  args.struct_size = sizeof args;
  args.a = factors;
  args.b = static_cast<float*>(factors) + rank * k;
  args.a_stride = 4 * k;
  args.b_stride = 4 * rank;
  args.factor_type = args.x_type = args.y_type = PNCUDA_F32;
  args.rank = rank;
  args.k = k;
  args.n = n;
  args.x = x;
  args.x_stride = 4 * k;
  args.y = y;
  args.base = y;
  args.y_stride = args.base_stride = 4 * n;
  args.tokens = tokens;
  args.scales = scales;
  args.workspace = workspace;
  args.workspace_size = room;
  check(pncuda_low_rank(&args, nullptr));
  for (void* const p : {factors, x, y, static_cast<void*>(scales), workspace}) cudaFree(p);
}

}  // namespace

int main() {
  host_cuda::set_host_threads(2);
  host_cuda::Device small = host_cuda::a10();
  small.multiprocessors = 1;  // several groups of rows for a block of threads
  for (const auto& device : {host_cuda::p100(), host_cuda::h100(), small})
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2}) {
      if (device.major >= 8 && mode != PNCUDA_ACCURATE) continue;
      host_cuda::set_device(device);
      check(pncuda_prepare(0));
      multiply(PNCUDA_PN3T, 18, 17, 2, PNCUDA_F16, mode, 0);
      multiply(PNCUDA_PN4T, 34, 81, 1, PNCUDA_F32, mode, 0);
      multiply(PNCUDA_PN3T, 17, 80, 1, PNCUDA_BF16, mode, 256);
      multiply(PNCUDA_PN4T, 10, 16, 3, PNCUDA_F16, mode, 64);
      for (const int order : {mode, static_cast<int>(PNCUDA_PORTABLE)}) {
        multiply_p12(18, 1, 1, PNCUDA_BF16, order);
        multiply_p12(34, 20, 2, PNCUDA_F32, order);
        multiply_p12(64, 3, 17, PNCUDA_F16, order);
        multiply_p12(16, 68, 32, PNCUDA_BF16, order);
      }
      prepare_beside_queries();
      pack(5, 3);
      add_low_rank(70, 300, 5, 3);
    }
  if (failures != 0) std::printf("%d calls failed\n", failures);
  return failures == 0 ? 0 : 1;
}
