// Floating-point environments that a caller may have, and a check that a call leaves them alone: rounding mode,
// raised exceptions and, on x86, the whole control register MXCSR with its flush modes.
#ifndef PN_TESTS_ENVIRONMENT_HPP
#define PN_TESTS_ENVIRONMENT_HPP

#include <cfenv>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace environment {

struct Setting {
  const char* name;
  int rounding;
  unsigned mxcsr_bits;  // x86 only: flush modes, exception flags already raised
  bool traps;           // x86 only: every exception would stop the program
};

constexpr unsigned flush = 0x8040;  // FTZ and DAZ
constexpr unsigned all_raised = 0x003F;
constexpr unsigned all_masked = 0x1F80;

inline std::vector<Setting> settings() {
  std::vector<Setting> list = {
      {"nearest", FE_TONEAREST, 0, false},
      {"upward", FE_UPWARD, 0, false},
      {"downward", FE_DOWNWARD, 0, false},
      {"towards zero", FE_TOWARDZERO, 0, false},
  };
#if defined(__SSE2__)
  list.push_back({"nearest, flush to zero", FE_TONEAREST, flush, false});
  list.push_back({"upward, flush to zero", FE_UPWARD, flush, false});
  list.push_back({"downward, exceptions raised before", FE_DOWNWARD, all_raised, false});
  list.push_back({"towards zero, flush to zero, exceptions raised before", FE_TOWARDZERO, flush | all_raised, false});
  list.push_back({"upward, exceptions trap", FE_UPWARD, 0, true});
#endif
  return list;
}

#if defined(__SSE2__)
__attribute__((noinline)) inline unsigned read_mxcsr() { return _mm_getcsr(); }
__attribute__((noinline)) inline void write_mxcsr(unsigned value) { _mm_setcsr(value); }
#endif

// Calls `body` under the setting; true when the environment was the same after the call as before.
template <class Body>
bool run_under(const Setting& setting, Body&& body) {
  std::fenv_t before;
  std::fegetenv(&before);
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fesetround(setting.rounding);
#if defined(__SSE2__)
  const unsigned set = (read_mxcsr() & ~all_raised & ~(setting.traps ? all_masked : 0u)) | setting.mxcsr_bits;
  write_mxcsr(set);
#endif
  body();
  bool kept = std::fegetround() == setting.rounding;
#if defined(__SSE2__)
  kept = kept && read_mxcsr() == set;
#else
  kept = kept && std::fetestexcept(FE_ALL_EXCEPT) == 0;
#endif
  std::fesetenv(&before);
  return kept;
}

}  // namespace environment

#endif  // PN_TESTS_ENVIRONMENT_HPP
