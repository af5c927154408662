// One block of BF16_P12 by the core's own functions: for the baseline, and for blocks that list weights or do not fit.
// Compiled once, for any processor, so that files for one instruction set may call it.
#pragma once

#include <p12/cpu.hpp>

namespace pn::cpu {

// Packs 256 bf16 at any address and adds them to *tally (if not null). False, with `out` unwritten, when they do not
// fit.
bool pack_by_core(const std::uint8_t* weights, std::uint8_t* out, p12::RowScan* tally) noexcept;

void scan_by_core(const std::uint8_t* weights, p12::RowScan& tally) noexcept;

bool valid_by_core(const std::uint8_t* block) noexcept;

}  // namespace pn::cpu
