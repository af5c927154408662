// Prints which instruction set Isa::best is: prepared activations say which one they are for, and the ones that
// Isa::best makes are equal to those of one in the list. With an argument, prints the list instead.
#include <cstdio>
#include <cstring>
#include <p12/cpu.hpp>

int main(int argc, char**) {
  if (argc > 1) {
    for (const pn::cpu::Isa isa : pn::cpu::isas()) std::printf("%s\n", pn::cpu::isa_name(isa));
    return 0;
  }
  alignas(64) unsigned char best[64], other[64];
  if (p12::cpu::activations_bytes(0, 0) != sizeof best) return 3;
  if (p12::cpu::prepare_activations(nullptr, 0, 0, 0, best) != pn::Status::ok) return 4;
  for (const pn::cpu::Isa isa : pn::cpu::isas()) {
    if (p12::cpu::prepare_activations(nullptr, 0, 0, 0, other, isa) != pn::Status::ok) return 5;
    if (std::memcmp(best, other, sizeof best) == 0) std::printf("%s\n", pn::cpu::isa_name(isa));
  }
  return 0;
}
