// Kernels for AVX-512 F, BW, DQ and VL. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx512
#include "simd_avx512.hpp"
#include "table.hpp"

namespace pn::cpu {

constexpr Kernels avx512_kernels = PN_CPU_ISA::all_kernels(Isa::avx512);

}  // namespace pn::cpu
