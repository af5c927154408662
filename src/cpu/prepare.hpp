// Brings one token's activations into the layouts of layout.hpp, for PN. Plain C++ for every instruction set: a token
// is prepared once for thousands of rows.
#pragma once

#include "layout.hpp"

namespace pn::cpu {

// x: k floats at any address, all finite for i16 and q8_0. token: pn_token_bytes<T>(kind, k) bytes aligned to 64. The
// float environment is the default one.
template <class T>
void prepare_token(Activations kind, Q8Layout layout, const std::uint8_t* x, std::size_t k,
                   std::uint8_t* token) noexcept;

}  // namespace pn::cpu
