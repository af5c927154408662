// Which instruction sets are there, and which table of kernels belongs to one.
#include "kernels.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(PN_CPU_ISA_FROM_ENVIRONMENT)
#include <cstdio>
#include <cstdlib>
#include <cstring>
#endif

namespace pn::cpu {
namespace {

// Every instruction set that this library was built with, the best first.
constexpr const Kernels* tables[] = {
#if defined(PN_CPU_X86)
    &avx512_icl_kernels,
    &avx512_kernels,
    &avx2_kernels,
#elif defined(PN_CPU_AARCH64)
    &neon_kernels,
#endif
    &baseline_kernels,
};

#if defined(PN_CPU_X86)

// What the processor has, as far as the operating system saves the registers. Bits: Intel SDM, volume 2, CPUID.
struct Features {
  bool avx2 = false;
  bool avx512 = false;
  bool avx512_icl = false;

  Features() noexcept {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return;
    const bool fma = bit(c, 12), xsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
    if (!xsave || !avx) return;
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const bool ymm = (low & 0x06u) == 0x06u;
    const bool zmm = (low & 0xE6u) == 0xE6u;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    avx2 = ymm && fma && f16c && bit(b, 5) && bit(b, 8);                           // AVX2, BMI2
    avx512 = avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F, DQ, BW, VL
    avx512_icl = avx512 && bit(c, 1) && bit(c, 11);                                // VBMI, VNNI
  }

 private:
  static bool bit(unsigned word, int n) noexcept { return (word >> n & 1u) != 0; }
};

bool runs_here(Isa isa) noexcept {
  static const Features features;
  switch (isa) {
    case Isa::avx2: return features.avx2;
    case Isa::avx512: return features.avx512;
    case Isa::avx512_icl: return features.avx512_icl;
    default: return isa == Isa::baseline;
  }
}

#else

bool runs_here(Isa) noexcept { return true; }  // NEON belongs to every AArch64

#endif

// The table that Isa::best stands for.
const Kernels* choose() noexcept {
#if defined(PN_CPU_ISA_FROM_ENVIRONMENT)
  // Builds for tests only. What cannot be obeyed must not go unnoticed.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment meanwhile
  if (const char* wanted = std::getenv("PN_CPU_ISA")) {
    for (const Kernels* table : tables)
      if (std::strcmp(wanted, isa_name(table->isa)) == 0 && runs_here(table->isa)) return table;
    std::fprintf(stderr, "pn: PN_CPU_ISA=%s is not an instruction set of this build and processor\n", wanted);
    std::abort();
  }
#endif
  for (const Kernels* table : tables)
    if (runs_here(table->isa)) return table;
  return &baseline_kernels;
}

}  // namespace

IsaList isas() noexcept {
  IsaList list = {};
  for (const Kernels* table : tables)
    if (runs_here(table->isa)) list.items[list.count++] = table->isa;
  return list;
}

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::best: return "best";
    case Isa::baseline: return "baseline";
    case Isa::neon: return "neon";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_icl: return "avx512_icl";
  }
  return "unknown";
}

const Kernels* kernels(Isa isa) noexcept {
  if (isa == Isa::best) {
    static const Kernels* const best = choose();
    return best;
  }
  for (const Kernels* table : tables)
    if (table->isa == isa && runs_here(isa)) return table;
  return nullptr;
}

}  // namespace pn::cpu
