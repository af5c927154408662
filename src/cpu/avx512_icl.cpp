// Kernels for AVX-512 with VBMI and VNNI. CMakeLists.txt compiles this file for them.
#define PN_CPU_ISA avx512_icl
#include "simd_avx512.hpp"
#include "table.hpp"

namespace pn::cpu {

const Kernels avx512_icl_kernels = {Isa::avx512_icl,
                                    PN_CPU_ISA::pn_kernels<pn3t>(),
                                    PN_CPU_ISA::pn_kernels<pn4t>(),
                                    PN_CPU_ISA::p12_kernels,
                                    PN_CPU_ISA::convert,
                                    PN_CPU_ISA::dot};

}  // namespace pn::cpu
