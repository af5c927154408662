// Brings one token's activations into the layouts of layout.hpp, for PN: rounded by the kernels of an instruction set,
// laid out by plain C++.
#pragma once

#include "kernels.hpp"

namespace pn::cpu {

// x: k floats at any address. token: pn_token_bytes<T>(kind, k) bytes aligned to 64. The float environment is the
// default one. False when check_activations finds a fault.
template <class T>
bool prepare_token(const Kernels& table, Activations kind, const std::uint8_t* x, std::size_t k,
                   std::uint8_t* token) noexcept;

// The same for place 0 .. 7 of a group of a batch, which is as long as batch_group_bytes says and 0 at first.
template <class T>
bool prepare_batch_token(const Kernels& table, Activations kind, const std::uint8_t* x, std::size_t k,
                         std::size_t place, std::uint8_t* group) noexcept;

}  // namespace pn::cpu
