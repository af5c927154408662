// Kernels for AVX2, FMA and F16C. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx2
#include "simd_avx2.hpp"
#include "table.hpp"

namespace pn::cpu {

const Kernels avx2_kernels = {Isa::avx2,
                              PN_CPU_ISA::pn_kernels<pn3t>(),
                              PN_CPU_ISA::pn_kernels<pn4t>(),
                              PN_CPU_ISA::p12_kernels,
                              PN_CPU_ISA::convert,
                              PN_CPU_ISA::dot};

}  // namespace pn::cpu
