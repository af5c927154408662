// Kernels for AVX2, FMA and F16C. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx2
#include "simd_avx2.hpp"
#include "table.hpp"

namespace pn::cpu {

constexpr Kernels avx2_kernels = PN_CPU_ISA::all_kernels(Isa::avx2);

}  // namespace pn::cpu
