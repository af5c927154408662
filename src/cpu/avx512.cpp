// Kernels for AVX-512 F, BW, DQ and VL. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx512
#include "simd_avx512.hpp"
#include "table.hpp"

namespace pn::cpu {

const Kernels avx512_kernels = {Isa::avx512,
                                PN_CPU_ISA::pn_kernels<pn3t>(),
                                PN_CPU_ISA::pn_kernels<pn4t>(),
                                PN_CPU_ISA::p12_kernels,
                                PN_CPU_ISA::convert,
                                PN_CPU_ISA::dot};

}  // namespace pn::cpu
