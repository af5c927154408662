// A shared object with a C interface that has the static pn::cpu inside: what an engine loads at run time.
#include <cstddef>
#include <p12/cpu.hpp>

extern "C" __attribute__((visibility("default"))) int plugin_unpack_row(const void* packed, std::size_t k, void* bf16);

extern "C" int plugin_unpack_row(const void* packed, std::size_t k, void* bf16) {
  return p12::cpu::unpack_rows(packed, p12::row_bytes(k), 1, k, bf16, pn::cpu::Element::bf16, 2 * k) == pn::Status::ok;
}
