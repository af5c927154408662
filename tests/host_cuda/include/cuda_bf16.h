// Stand-in for CUDA's header of this name: bf16, every operation rounded once to nearest even. A NaN that an operation
// makes is the device's 0x7FFF.
#ifndef HOST_CUDA_CUDA_BF16_H
#define HOST_CUDA_CUDA_BF16_H

#include <cuda_runtime.h>

#include <pn/half.hpp>

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(__nv_bfloat16_raw raw) : bits_(raw.x) {}
  constexpr operator __nv_bfloat16_raw() const { return {bits_}; }

 private:
  unsigned short bits_;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  constexpr __nv_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) : x(low), y(high) {}
};

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return static_cast<__nv_bfloat16_raw>(b).x; }

inline float __bfloat162float(__nv_bfloat16 b) { return pn::bf16_to_float(__bfloat16_as_ushort(b)); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  return __ushort_as_bfloat16(v != v ? 0x7FFF : pn::float_to_bf16(v));
}
inline __nv_bfloat16 __float2bfloat16(float v) { return __float2bfloat16_rn(v); }

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

namespace host_cuda {

// a + b, rounded once to bf16. Double may not hold the sum; then it is made odd (in its last bit) between its
// neighbours, so that it is no tie and lies on the right side of every one.
inline __nv_bfloat16 add_to_bf16(double a, double b) {
  const double sum = a + b;
  if (sum != sum) return __ushort_as_bfloat16(0x7FFF);
  const double part_of_b = sum - a, error = (a - (sum - part_of_b)) + (b - part_of_b);  // sum + error is exact
  auto bits = pn::detail::bit_cast<std::uint64_t>(sum);
  if (std::isfinite(sum) && error != 0 && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1u : ~std::uint64_t{0};
  return __ushort_as_bfloat16(pn::double_bits_to_bf16(bits));
}

}  // namespace host_cuda

inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) {
  return host_cuda::add_to_bf16(static_cast<double>(__bfloat162float(a)), static_cast<double>(__bfloat162float(b)));
}
inline __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) {
  const double product = static_cast<double>(__bfloat162float(a)) * static_cast<double>(__bfloat162float(b));
  return __ushort_as_bfloat16(product != product ? 0x7FFF : pn::double_to_bf16(product));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  const double product = static_cast<double>(__bfloat162float(a)) * static_cast<double>(__bfloat162float(b));
  return host_cuda::add_to_bf16(product, static_cast<double>(__bfloat162float(c)));
}

#endif  // HOST_CUDA_CUDA_BF16_H
