// Tensor parallelism with BF16_P12 weights: h = U x, y = D h on two devices, or as two ranks on one. A rank has half of
// the rows of U, which give it half of h, and the columns of D that h meets there: both are views into the packed rows.
// What it gets of y is a partial sum; an all-reduce adds them.
//   nvcc -std=c++17 -Iinclude examples/tensor_parallel_p12.cpp -o tensor_parallel_p12 -L<where it is> -lpncuda
//
// With -DPN_EXAMPLE_NCCL and -lnccl, and two devices, NCCL adds the partial sums; else the host does.
#include <cuda_runtime.h>
#include <pncuda/pncuda.h>
#if defined(PN_EXAMPLE_NCCL)
#include <nccl.h>
#endif

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::size_t tokens = 3, k = 2048, inner = 1536, share = inner / 2, rows = 40;
constexpr int ranks = 2;
using Bf16s = std::vector<std::uint16_t>;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}
void require(cudaError_t error) { require(error == cudaSuccess, cudaGetErrorString(error)); }
void require(pncuda_status status) { require(status == PNCUDA_OK, pncuda_status_text(status)); }

Bf16s normal_numbers(std::size_t count, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Bf16s made(count);
  for (std::uint16_t& v : made) v = pn::float_to_bf16(normal(random));
  return made;
}

std::vector<void*> allocated;  // by on_device; the end of main() frees it

// Memory of the current device, with a copy of what `host` holds, if anything.
template <class T>
T* on_device(std::size_t count, const T* host = nullptr) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, count * sizeof(T)));
  allocated.push_back(memory);
  if (host != nullptr) require(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}
template <class T>
std::vector<T> on_host(const T* device, std::size_t count) {
  std::vector<T> values(count);
  require(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

// Packed rows on the current device. (An engine loads what its rank needs, and no more.)
pncuda_weights packed_on_device(const Bf16s& plain, std::size_t columns) {
  std::vector<p12::Block392> blocks(plain.size() / p12::block_size);
  require(p12::pack_row(plain.data(), plain.size(), blocks.data()) == pn::Status::ok, "a block does not fit");
  const auto n = static_cast<std::int64_t>(plain.size() / columns);
  const auto columns_of_row = static_cast<std::int64_t>(columns), stride = columns_of_row / 256 * 392;
  const void* const data = on_device(blocks.size(), blocks.data());
  return {sizeof(pncuda_weights), PNCUDA_BF16_P12, PNCUDA_NATIVE, data, n, columns_of_row, stride};
}

// y[tokens][rows of w], bf16 or fp32, on the current device and its default stream.
void multiply(const pncuda_weights& w, const std::uint16_t* x, void* y, int y_type) {
  const std::int64_t y_stride = w.rows * (y_type == PNCUDA_F32 ? 4 : 2);
  // PNCUDA_PORTABLE: the same bits on any two devices; PNCUDA_ACCURATE is faster where they are alike.
  const pncuda_gemv_args a = {sizeof a, &w, x, w.k * 2, PNCUDA_BF16, y_type, y, y_stride, tokens, PNCUDA_PORTABLE, 0};
  require(pncuda_gemv(&a, nullptr));
}

// The sum of what both devices have at y; with NCCL they have it, too.
std::vector<float> all_reduce(const int (&devices)[ranks], float* const (&y)[ranks], std::size_t count) {
#if defined(PN_EXAMPLE_NCCL)
  const auto require_nccl = [](ncclResult_t result) { require(result == ncclSuccess, ncclGetErrorString(result)); };
  ncclComm_t communicators[ranks];
  if (devices[0] != devices[1]) {
    require_nccl(ncclCommInitAll(communicators, ranks, devices));
    require_nccl(ncclGroupStart());
    for (int r = 0; r < ranks; ++r)
      require_nccl(ncclAllReduce(y[r], y[r], count, ncclFloat, ncclSum, communicators[r], nullptr));
    require_nccl(ncclGroupEnd());
  }
#endif
  std::vector<float> sum(count, 0.0f);
  for (int r = 0; r < ranks; ++r) {
    require(cudaSetDevice(devices[r]));
    require(cudaStreamSynchronize(nullptr));
    const std::vector<float> part = on_host(y[r], count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
#if defined(PN_EXAMPLE_NCCL)
    if (devices[0] == devices[1]) continue;
    sum = part;
    require_nccl(ncclCommDestroy(communicators[r]));
#endif
  }
  return sum;
}

}  // namespace

int main() {
  const Bf16s up = normal_numbers(inner * k, 0.02f, 1), down = normal_numbers(rows * inner, 0.02f, 2);
  const Bf16s x = normal_numbers(tokens * k, 1.0f, 3);
  int count = 0;
  require(cudaGetDeviceCount(&count));
  const int devices[ranks] = {0, count > 1 ? 1 : 0};
  Bf16s halves[ranks];  // of h
  float* y[ranks];      // partial sums
  for (int r = 0; r < ranks; ++r) {
    require(cudaSetDevice(devices[r]));
    require(pncuda_prepare(devices[r]));
    const pncuda_weights all_of_up = packed_on_device(up, k), all_of_down = packed_on_device(down, inner);
    pncuda_weights my_up, my_down;
    require(pncuda_row_shard(&all_of_up, r * std::int64_t{share}, share, &my_up));
    require(pncuda_column_shard(&all_of_down, r * std::int64_t{share}, share, &my_down));
    std::uint16_t* const h = on_device<std::uint16_t>(tokens * share);
    y[r] = on_device<float>(tokens * rows);
    multiply(my_up, on_device(x.size(), x.data()), h, PNCUDA_BF16);
    multiply(my_down, h, y[r], PNCUDA_F32);
    halves[r] = on_host(h, tokens * share);  // for the checks below
  }
  const std::vector<float> sum = all_reduce(devices, y, tokens * rows);

  // Both matrices whole, in one call each. The halves of h have the same bits, since a row's result depends on nothing
  // else. y, numbers about 0.7, is a sum in another order.
  require(cudaSetDevice(0));
  std::uint16_t* const whole_h = on_device<std::uint16_t>(tokens * inner);
  float* const whole_y = on_device<float>(tokens * rows);
  multiply(packed_on_device(up, k), on_device(x.size(), x.data()), whole_h, PNCUDA_BF16);
  multiply(packed_on_device(down, inner), whole_h, whole_y, PNCUDA_F32);
  const Bf16s h = on_host(whole_h, tokens * inner);
  const std::vector<float> expected = on_host(whole_y, tokens * rows);
  bool same = true, close = true;
  for (std::size_t i = 0; i < h.size(); ++i)
    same = same && halves[i % inner / share][i / inner * share + i % share] == h[i];
  for (std::size_t i = 0; i < sum.size(); ++i) close = close && std::fabs(sum[i] - expected[i]) < 1e-5f;
  for (void* const memory : allocated) require(cudaFree(memory));
  std::printf("%d device(s); halves of h are %s; y is %s\n", devices[1] + 1, same ? "the whole" : "NOT the whole",
              close ? "the whole's" : "NOT the whole's");
  return same && close ? 0 : 1;
}
