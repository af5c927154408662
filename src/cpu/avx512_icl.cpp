// Kernels for AVX-512 with VBMI and VNNI. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx512_icl
#include "simd_avx512.hpp"
#include "table.hpp"

namespace pn::cpu {

constexpr Kernels avx512_icl_kernels = PN_CPU_ISA::all_kernels(Isa::avx512_icl);

}  // namespace pn::cpu
