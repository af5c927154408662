// libpncuda: activations and results of the three types, read and written as fp32.
#ifndef PNCUDA_ELEMENTS_CUH
#define PNCUDA_ELEMENTS_CUH

#include <pncuda/pncuda.h>

#include "device.cuh"

namespace pncuda {

__host__ __device__ constexpr int element_bytes(int type) { return type == PNCUDA_F32 ? 4 : 2; }

// Reads element i of p. The type is the same for all threads, and one copy of the code serves all three.
__device__ __forceinline__ float load_element(const void* p, int type, std::int64_t i) {
  if (type == PNCUDA_F32) return __ldg(static_cast<const float*>(p) + i);
  const unsigned short bits = __ldg(static_cast<const unsigned short*>(p) + i);
  return type == PNCUDA_F16 ? __half2float(__ushort_as_half(bits))
                            : __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
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

// Row `row` of a matrix of elements, `stride` bytes from row to row.
__device__ __forceinline__ const void* row_at(const void* p, std::int64_t stride, std::int64_t row) {
  return static_cast<const unsigned char*>(p) + row * stride;
}
__device__ __forceinline__ void* row_at(void* p, std::int64_t stride, std::int64_t row) {
  return static_cast<unsigned char*>(p) + row * stride;
}

}  // namespace pncuda

#endif  // PNCUDA_ELEMENTS_CUH
