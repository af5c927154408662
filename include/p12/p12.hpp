// p12: the whole BF16_P12 core, header-only. FORMAT.md in this folder is the normative text.
#ifndef P12_P12_HPP
#define P12_P12_HPP

#include <p12/block392.hpp>
#include <p12/codec.hpp>
#include <p12/scan.hpp>
#include <p12/validate.hpp>

#endif  // P12_P12_HPP
