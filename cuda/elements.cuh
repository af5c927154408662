// libpncuda: warps; activations and results of the three types, read and written as fp32.
#ifndef PNCUDA_ELEMENTS_CUH
#define PNCUDA_ELEMENTS_CUH

#include <pncuda/pncuda.h>

#include "device.cuh"

namespace pncuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xFFFFFFFFu;

__host__ __device__ constexpr int element_bytes(int type) { return type == PNCUDA_F32 ? 4 : 2; }

__device__ __forceinline__ float half_bits_to_float(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// The number that 16 bits are, as fp16 or bf16.
__device__ __forceinline__ float bits_to_float(unsigned short bits, int type) {
  return type == PNCUDA_F16 ? __half2float(__ushort_as_half(bits))
                            : __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

// The two numbers of a register, the one in its low half first.
__device__ __forceinline__ float2 pair_to_floats(std::uint32_t pair, int type) {
  if (type == PNCUDA_F16) return make_float2(half_bits_to_float(pair & 0xFFFFu), half_bits_to_float(pair >> 16));
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// Reads element i of p. The type is the same for all threads, and one copy of the code serves all three.
__device__ __forceinline__ float load_element(const void* p, int type, std::int64_t i) {
  if (type == PNCUDA_F32) return __ldg(static_cast<const float*>(p) + i);
  return bits_to_float(__ldg(static_cast<const unsigned short*>(p) + i), type);
}
// The same of memory that the launch may write, so not through the read-only cache.
__device__ __forceinline__ float load_written_element(const void* p, int type, std::int64_t i) {
  if (type == PNCUDA_F32) return static_cast<const float*>(p)[i];
  return bits_to_float(static_cast<const unsigned short*>(p)[i], type);
}

// The bits of `value`, rounded once to nearest even.
template <int type>
__device__ __forceinline__ unsigned short to_16_bits(float value) {
  if constexpr (type == PNCUDA_F16)
    return __half_as_ushort(__float2half_rn(value));
  else
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// Writes element i of p.
__device__ __forceinline__ void store_element(void* p, int type, std::int64_t i, float value) {
  if (type == PNCUDA_F32)
    static_cast<float*>(p)[i] = value;
  else
    static_cast<unsigned short*>(p)[i] =
        type == PNCUDA_F16 ? to_16_bits<PNCUDA_F16>(value) : to_16_bits<PNCUDA_BF16>(value);
}

// Copies element i, every bit of it.
__device__ __forceinline__ void copy_element(void* to, const void* from, int type, std::int64_t i) {
  if (type == PNCUDA_F32)
    static_cast<std::uint32_t*>(to)[i] = static_cast<const std::uint32_t*>(from)[i];
  else
    static_cast<unsigned short*>(to)[i] = static_cast<const unsigned short*>(from)[i];
}

// Number i of a list of int32_t or int64_t.
__device__ __forceinline__ std::int64_t load_id(const void* ids, int id_bytes, std::int64_t i) {
  return id_bytes == 4 ? __ldg(static_cast<const std::int32_t*>(ids) + i)
                       : static_cast<std::int64_t>(__ldg(static_cast<const long long*>(ids) + i));
}

// The sum over groups of `lanes` neighbouring lanes, pairwise, the farthest first. All lanes of the warp.
template <int lanes = warp_size>
__device__ __forceinline__ float add_lanes(float value) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value = __fadd_rn(value, __shfl_xor_sync(all_lanes, value, offset));
  return value;
}

// Row `row` of a matrix of elements, `stride` bytes from row to row.
__device__ __forceinline__ const void* row_at(const void* p, std::int64_t stride, std::int64_t row) {
  return static_cast<const unsigned char*>(p) + row * stride;
}
__device__ __forceinline__ void* row_at(void* p, std::int64_t stride, std::int64_t row) {
  return static_cast<unsigned char*>(p) + row * stride;
}

}  // namespace pncuda

#endif  // PNCUDA_ELEMENTS_CUH
