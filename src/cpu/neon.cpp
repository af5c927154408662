// Kernels for NEON, which belongs to every AArch64 (Armv8.0).
#define PN_CPU_ISA neon
#include "simd_neon.hpp"
#include "table.hpp"

namespace pn::cpu {

constexpr Kernels neon_kernels = PN_CPU_ISA::all_kernels(Isa::neon);

}  // namespace pn::cpu
