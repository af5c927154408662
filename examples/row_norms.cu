// A kernel of your own on packed weights: the Euclidean norm of each row of a BF16_P12 matrix (which DoRA, for one,
// rescales by). pncuda/decode_p12.cuh is all that it needs of pn: the layout of a block stays behind two functions.
//
//   nvcc -std=c++17 -arch=native -Iinclude examples/row_norms.cu -o build/row_norms && build/row_norms
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <p12/p12.hpp>
#include <pn/half.hpp>
#include <pncuda/decode_p12.cuh>
#include <vector>

namespace {

constexpr int warp_size = 32;

__device__ float square(std::uint32_t f32_bits) {
  const float value = __uint_as_float(f32_bits);
  return value * value;
}

// One warp for a row; a lane takes the eight weights of one of the 32 words of each block, so that a warp reads a block
// in one go. Launch with (rows) blocks of 32 threads.
__global__ void row_norms(const std::uint8_t* packed, std::int64_t stride, std::int64_t blocks, float* norms) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::uint8_t* block = packed + blockIdx.x * stride;
  float sum = 0.0f;
  for (std::int64_t b = 0; b < blocks; ++b, block += pncuda::p12_block_bytes) {
    std::uint32_t pairs[4];  // of bf16, whatever the block lists
    pncuda::unpack_p12_word(block, lane, pairs);
    for (int j = 0; j < 4; ++j)
      sum += square(pncuda::bf16_low_as_f32(pairs[j])) + square(pncuda::bf16_high_as_f32(pairs[j]));
  }
  for (int offset = warp_size / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (lane == 0) norms[blockIdx.x] = sqrtf(sum);
}

bool ok(cudaError_t error) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return error == cudaSuccess;
}

}  // namespace

int main() {
  constexpr std::size_t rows = 48, k = 1024, stride = p12::row_bytes(k);
  std::vector<std::uint16_t> weights(rows * k);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = pn::float_to_bf16(0.02f * std::cos(0.37f * static_cast<float>(i * i % 977)));
  weights[3] = pn::float_to_bf16(1.5f);  // far from the others: listed
  std::vector<p12::Block392> blocks(rows * p12::block_count(k));
  if (p12::pack_row(weights.data(), rows * k, blocks.data()) != pn::Status::ok) return 1;

  void* packed = nullptr;
  void* device_norms = nullptr;
  std::vector<float> norms(rows);
  if (!ok(cudaMalloc(&packed, rows * stride)) || !ok(cudaMalloc(&device_norms, rows * sizeof(float)))) return 1;
  if (!ok(cudaMemcpy(packed, blocks.data(), rows * stride, cudaMemcpyHostToDevice))) return 1;
  std::int64_t row_stride = stride, row_blocks = p12::block_count(k);
  void* arguments[] = {&packed, &row_stride, &row_blocks, &device_norms};  // row_norms<<<rows, warp_size>>>(..)
  if (!ok(cudaLaunchKernel(row_norms, dim3(rows), dim3(warp_size), arguments)) ||
      !ok(cudaMemcpy(norms.data(), device_norms, rows * sizeof(float), cudaMemcpyDeviceToHost)))
    return 1;
  ok(cudaFree(packed));
  ok(cudaFree(device_norms));

  double worst = 0;
  for (std::size_t n = 0; n < rows; ++n) {
    double exact = 0;
    for (std::size_t i = 0; i < k; ++i) {
      const double w = static_cast<double>(pn::bf16_to_float(weights[n * k + i]));
      exact += w * w;
    }
    const double difference = std::fabs(static_cast<double>(norms[n]) / std::sqrt(exact) - 1);
    if (!(difference <= worst)) worst = difference;
  }
  std::printf("%zu rows; norms differ from sums in double by %.1e at most\n", rows, worst);
  return worst < 1e-6 ? 0 : 1;
}
