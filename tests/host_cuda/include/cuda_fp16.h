// Stand-in for CUDA's header of this name: fp16, every operation rounded once to nearest even, as the device does it. A
// NaN that an operation makes is the device's 0x7FFF (fp32: 0x7FFFFFFF), whatever NaN went in.
#ifndef HOST_CUDA_CUDA_FP16_H
#define HOST_CUDA_CUDA_FP16_H

#include <cuda_runtime.h>

#include <pn/half.hpp>

struct __half_raw {
  unsigned short x;
};

struct __half {
  __half() = default;
  constexpr __half(__half_raw raw) : bits_(raw.x) {}
  constexpr operator __half_raw() const { return {bits_}; }

 private:
  unsigned short bits_;
};

struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  constexpr __half2(__half low, __half high) : x(low), y(high) {}
};

using half = __half;
using half2 = __half2;

inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
inline unsigned short __half_as_ushort(__half h) { return static_cast<__half_raw>(h).x; }

// ---- Conversions ----

namespace host_cuda {
// A sum or product that double holds exactly, or one that fp16 and 40 more bits cannot tell from it.
inline __half round_to_half(double v) { return __ushort_as_half(v != v ? 0x7FFF : pn::double_to_half(v)); }
}  // namespace host_cuda

inline float __half2float(__half h) {
  const float v = pn::half_to_float(__half_as_ushort(h));
  return v != v ? __uint_as_float(0x7FFFFFFFu) : v;
}
inline __half __float2half_rn(float v) { return __ushort_as_half(v != v ? 0x7FFF : pn::float_to_half(v)); }
inline __half __float2half(float v) { return __float2half_rn(v); }

inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
inline __half2 __half2half2(__half h) { return {h, h}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline float __low2float(__half2 v) { return __half2float(v.x); }
inline float __high2float(__half2 v) { return __half2float(v.y); }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half2 __floats2half2_rn(float low, float high) { return {__float2half_rn(low), __float2half_rn(high)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }

// ---- Arithmetic ----

inline __half __hadd(__half a, __half b) {
  return host_cuda::round_to_half(static_cast<double>(__half2float(a)) + static_cast<double>(__half2float(b)));
}
inline __half __hsub(__half a, __half b) {
  return host_cuda::round_to_half(static_cast<double>(__half2float(a)) - static_cast<double>(__half2float(b)));
}
inline __half __hmul(__half a, __half b) {
  return host_cuda::round_to_half(static_cast<double>(__half2float(a)) * static_cast<double>(__half2float(b)));
}
// The product has 22 bits. If the sum does not fit double's 53, one operand is below 2^-31 of the other, too small to
// move it across the middle between two fp16 numbers: rounding twice cannot differ from rounding once.
inline __half __hfma(__half a, __half b, __half c) {
  const double product = static_cast<double>(__half2float(a)) * static_cast<double>(__half2float(b));
  return host_cuda::round_to_half(product + static_cast<double>(__half2float(c)));
}
inline __half __hneg(__half a) { return __ushort_as_half(static_cast<unsigned short>(__half_as_ushort(a) ^ 0x8000u)); }

inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __hneg2(__half2 a) { return {__hneg(a.x), __hneg(a.y)}; }

// CUDA lets ptxas fuse a product and a sum of the plain forms; the _rn forms it must leave alone. Here none are fused.
inline __half2 __hadd2_rn(__half2 a, __half2 b) { return __hadd2(a, b); }
inline __half2 __hsub2_rn(__half2 a, __half2 b) { return __hsub2(a, b); }
inline __half2 __hmul2_rn(__half2 a, __half2 b) { return __hmul2(a, b); }
inline __half __hadd_rn(__half a, __half b) { return __hadd(a, b); }
inline __half __hsub_rn(__half a, __half b) { return __hsub(a, b); }
inline __half __hmul_rn(__half a, __half b) { return __hmul(a, b); }

#endif  // HOST_CUDA_CUDA_FP16_H
