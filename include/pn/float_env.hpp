// pn: what keeps double arithmetic bit-exact. For the headers in which sums of doubles decide bits (quantize.hpp,
// dot.hpp); decoding and validation need none of this.
#ifndef PN_FLOAT_ENV_HPP
#define PN_FLOAT_ENV_HPP

#include <cfloat>
#include <pn/config.hpp>

// Flags under which a compiler may reorder or replace the arithmetic that the format fixes. Only translation units
// that include these headers are concerned: compile them without the flag.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(_M_FP_FAST)
#error "pn: -ffast-math (or a part of it) would change the bytes of quantized weights; compile without it"
#endif
#if !defined(__CUDA_ARCH__) && (FLT_EVAL_METHOD != 0)
#error "pn: double arithmetic must not be carried out in a wider type (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif

#if !defined(__CUDA_ARCH__) && !defined(__SSE2__) && !defined(_M_X64) && !defined(__aarch64__)
#include <cfenv>
#endif
#if defined(_MSC_VER) && defined(_M_X64)
#include <xmmintrin.h>
#endif
#if defined(_MSC_VER)
#include <atomic>
#endif

// clang tells of -ffast-math by a macro, but not of its parts (-fassociative-math, -freciprocal-math, ..): between
// these two, arithmetic means what is written whatever parts are given. (Only on targets where every clang knows the
// pragma; elsewhere do not give clang such parts.)
#if defined(__clang__) && !defined(__CUDACC__) && (defined(__x86_64__) || defined(__i386__) || defined(__s390x__))
#define PN_EXACT_ARITHMETIC_BEGIN _Pragma("float_control(push)") _Pragma("float_control(precise, on)")
#define PN_EXACT_ARITHMETIC_END _Pragma("float_control(pop)")
#else
#define PN_EXACT_ARITHMETIC_BEGIN
#define PN_EXACT_ARITHMETIC_END  // of what the other begins
#endif

PN_EXACT_ARITHMETIC_BEGIN

namespace pn::detail {

// The product a * b in F, float or double, rounded on its own: an addition that follows can never be fused with it,
// whatever -ffp-contract says (g++ fuses by default on AArch64).
template <class F>
PN_HOST_DEVICE inline F unfused_product(F a, F b) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(F) == sizeof(double))
    return __dmul_rn(a, b);
  else
    return __fmul_rn(a, b);
#else
  F product = a * b;
#if defined(__GNUC__) && defined(__SSE2__)
  __asm__("" : "+x"(product));
#elif defined(__GNUC__) && defined(__aarch64__)
  __asm__("" : "+w"(product));
#elif defined(__GNUC__)
  __asm__("" : "+m"(product));
#else
  volatile F kept = product;
  product = kept;
#endif
  return product;
#endif
}

#if !defined(__CUDA_ARCH__)
// Sets round-to-nearest, no flushing of subnormals, no traps; the destructor gives back the caller's environment,
// exception flags included. Arithmetic that relies on it belongs in a function that is not inlined into the scope
// of the guard, since compilers move arithmetic across such writes.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
#if defined(__GNUC__) && defined(__SSE2__)
    saved_ = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1F80u);
#elif defined(_MSC_VER) && defined(_M_X64)
    saved_ = _mm_getcsr();
    _mm_setcsr(0x1F80u);
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("mrs %0, fpsr" : "=r"(saved_flags_));
    __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
#else
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
#endif
    fence();
  }
  ~DefaultFloatEnvironment() {
    fence();
#if defined(__GNUC__) && defined(__SSE2__)
    __builtin_ia32_ldmxcsr(saved_);
#elif defined(_MSC_VER) && defined(_M_X64)
    _mm_setcsr(saved_);
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_));
    __asm__ volatile("msr fpsr, %0" : : "r"(saved_flags_));
#else
    fesetenv(&saved_);
#endif
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  static void fence() noexcept {
#if defined(__GNUC__)
    __asm__ volatile("" : : : "memory");
#elif defined(_MSC_VER)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
#if defined(__SSE2__) || (defined(_MSC_VER) && defined(_M_X64))
  unsigned saved_;
#elif defined(__aarch64__)
  std::uint64_t saved_;
  std::uint64_t saved_flags_;
#else
  std::fenv_t saved_;
#endif
};
#endif

}  // namespace pn::detail

PN_EXACT_ARITHMETIC_END

#endif  // PN_FLOAT_ENV_HPP
