// pn: the whole PN core, header-only. FORMAT.md in this folder is the normative text.
#ifndef PN_PN_HPP
#define PN_PN_HPP

#include <pn/block34.hpp>
#include <pn/decode.hpp>
#include <pn/dot.hpp>
#include <pn/hadamard.hpp>
#include <pn/half.hpp>
#include <pn/quantize.hpp>
#include <pn/status.hpp>
#include <pn/validate.hpp>
#include <pn/version.hpp>

#endif  // PN_PN_HPP
