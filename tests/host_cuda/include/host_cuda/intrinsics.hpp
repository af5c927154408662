// host_cuda: CUDA's functions for device code, as cuda_runtime.h declares them.
#ifndef HOST_CUDA_INTRINSICS_HPP
#define HOST_CUDA_INTRINSICS_HPP

#include <cmath>
#include <cstdint>
#include <host_cuda/engine.hpp>
#include <pn/config.hpp>
#include <type_traits>

// ---- Barriers and warps. The last argument is never given: it tells the engine where the call stands. ----

#define HOST_CUDA_SITE host_cuda::Site site = host_cuda::Site::here()

inline void __syncthreads(HOST_CUDA_SITE) { host_cuda::engine::barrier(host_cuda::engine::Barrier::plain, true, site); }
inline int __syncthreads_or(int predicate, HOST_CUDA_SITE) {
  return host_cuda::engine::barrier(host_cuda::engine::Barrier::any, predicate != 0, site);
}
inline int __syncthreads_and(int predicate, HOST_CUDA_SITE) {
  return host_cuda::engine::barrier(host_cuda::engine::Barrier::all, predicate != 0, site);
}
inline int __syncthreads_count(int predicate, HOST_CUDA_SITE) {
  return host_cuda::engine::barrier(host_cuda::engine::Barrier::count, predicate != 0, site);
}

void __syncwarp(unsigned mask = 0xFFFFFFFFu, HOST_CUDA_SITE);

inline unsigned __ballot_sync(unsigned mask, int predicate, HOST_CUDA_SITE) {
  unsigned held = 0;
  host_cuda::engine::vote("__ballot_sync", mask, predicate != 0, held, site);
  return held;
}
inline int __any_sync(unsigned mask, int predicate, HOST_CUDA_SITE) {
  unsigned held = 0;
  host_cuda::engine::vote("__any_sync", mask, predicate != 0, held, site);
  return held != 0;
}
inline int __all_sync(unsigned mask, int predicate, HOST_CUDA_SITE) {
  unsigned held = 0;
  return host_cuda::engine::vote("__all_sync", mask, predicate != 0, held, site) == held;
}

namespace host_cuda {

// First lane of the caller's segment of `width` lanes.
inline unsigned segment(int width, Site site) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0)
    engine::fault("a shuffle's width is not 1, 2, .. 32", site);
  return engine::lane() & ~(static_cast<unsigned>(width) - 1);
}

template <class T>
T shuffle(const char* operation, unsigned mask, T value, unsigned source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "not a type for shuffles");
  engine::shuffle(operation, mask, &value, sizeof value, source, site);
  return value;
}

}  // namespace host_cuda

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HOST_CUDA_SITE) {
  const unsigned from = host_cuda::segment(width, site) + static_cast<unsigned>(source & (width - 1));
  return host_cuda::shuffle("__shfl_sync", mask, value, from, site);
}
// A source outside the segment means the caller's own value; __shfl_xor_sync may reach segments below.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, HOST_CUDA_SITE) {
  const unsigned end = host_cuda::segment(width, site) + static_cast<unsigned>(width);
  const unsigned lane = host_cuda::engine::lane(), from = lane ^ static_cast<unsigned>(lane_mask);
  return host_cuda::shuffle("__shfl_xor_sync", mask, value, from < end ? from : lane, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HOST_CUDA_SITE) {
  const unsigned end = host_cuda::segment(width, site) + static_cast<unsigned>(width);
  const unsigned lane = host_cuda::engine::lane();
  return host_cuda::shuffle("__shfl_down_sync", mask, value, delta < end - lane ? lane + delta : lane, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, HOST_CUDA_SITE) {
  const unsigned begin = host_cuda::segment(width, site), lane = host_cuda::engine::lane();
  return host_cuda::shuffle("__shfl_up_sync", mask, value, delta <= lane - begin ? lane - delta : lane, site);
}

#undef HOST_CUDA_SITE

// ---- Loads and stores with cache hints: plain ones whose alignment is checked in every build ----

namespace host_cuda {
template <class T>
T* aligned(T* p, Site site) {
  if (reinterpret_cast<std::uintptr_t>(p) % alignof(T) != 0) engine::fault("a misaligned access", site);
  return p;
}
}  // namespace host_cuda

template <class T>
T __ldg(const T* p, host_cuda::Site site = host_cuda::Site::here()) {
  return *host_cuda::aligned(p, site);
}
template <class T>
T __ldcg(const T* p, host_cuda::Site site = host_cuda::Site::here()) {
  return *host_cuda::aligned(p, site);
}
template <class T>
T __ldcs(const T* p, host_cuda::Site site = host_cuda::Site::here()) {
  return *host_cuda::aligned(p, site);
}
template <class T>
void __stcs(T* p, T value, host_cuda::Site site = host_cuda::Site::here()) {
  *host_cuda::aligned(p, site) = value;
}

// ---- Atomics; no order but of the one place (relaxed), as on a device ----

inline unsigned atomicAdd(unsigned* p, unsigned value, host_cuda::Site site = host_cuda::Site::here()) {
  return __atomic_fetch_add(host_cuda::aligned(p, site), value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long value,
                                    host_cuda::Site site = host_cuda::Site::here()) {
  unsigned long long before = __atomic_load_n(host_cuda::aligned(p, site), __ATOMIC_RELAXED);
  while (value < before && !__atomic_compare_exchange_n(p, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

// ---- Bits ----

inline unsigned __float_as_uint(float v) { return pn::detail::bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return pn::detail::bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return pn::detail::bit_cast<float>(v); }
inline float __int_as_float(int v) { return pn::detail::bit_cast<float>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }

// 32 bits out of high:low, from the shift (modulo 32) on.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<std::uint64_t>(high) << 32) | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((((static_cast<std::uint64_t>(high) << 32) | low) << (shift & 31)) >> 32);
}

// Byte i of the result is the byte of y:x that bits 4 i .. 4 i + 2 of the selector name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = (static_cast<std::uint64_t>(y) << 32) | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = (selector >> (4 * i)) & 7;
    result |= (static_cast<unsigned>(bytes >> (8 * from)) & 0xFFu) << (8 * i);
  }
  return result;
}

// ---- Arithmetic, rounded to nearest even (the build must not contract a * b + c: -ffp-contract=off) ----

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

#endif  // HOST_CUDA_INTRINSICS_HPP
