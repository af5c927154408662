// Kernels for NEON, which belongs to every AArch64 (Armv8.0).
#define PN_CPU_ISA neon
#include "simd_neon.hpp"
#include "table.hpp"

namespace pn::cpu {

const Kernels neon_kernels = {Isa::neon,
                              PN_CPU_ISA::pn_kernels<pn3t>(),
                              PN_CPU_ISA::pn_kernels<pn4t>(),
                              PN_CPU_ISA::p12_kernels,
                              PN_CPU_ISA::convert,
                              PN_CPU_ISA::dot};

}  // namespace pn::cpu
