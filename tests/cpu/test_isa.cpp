// Proves what pn/cpu.hpp says of instruction sets: the list ends with the baseline, names are known, and one that is
// not there is refused by every function with isa_not_available, never run.
#include "testing.hpp"

using namespace testing;

TEST_CASE("the list of instruction sets has no doubles and ends with the baseline") {
  const pn::cpu::IsaList list = pn::cpu::isas();
  REQUIRE(list.size() >= 1);
  REQUIRE(list.size() <= 5);
  CHECK(list.items[list.size() - 1] == Isa::baseline);
  for (std::size_t i = 0; i < list.size(); ++i) {
    CHECK(list.items[i] != Isa::best);
    CHECK(std::count(list.begin(), list.end(), list.items[i]) == 1);
    if (i > 0) CHECK(list.items[i - 1] > list.items[i]);  // the best first, as the numbers are given out
  }
  std::string names;
  for (const Isa isa : list) names += std::string(" ") + pn::cpu::isa_name(isa);
  WARN("instruction sets here:" << names);
}

TEST_CASE("every instruction set has its name, and no number is without one") {
  const char* names[] = {"best", "baseline", "neon", "avx2", "avx512", "avx512_icl"};
  for (unsigned i = 0; i < 6; ++i) CHECK(std::string(pn::cpu::isa_name(static_cast<Isa>(i))) == names[i]);
  for (unsigned i = 6; i < 256; ++i) {
    const char* name = pn::cpu::isa_name(static_cast<Isa>(i));
    REQUIRE(name != nullptr);
    for (const char* known : names) CHECK(std::string(name) != known);
  }
}

namespace {

template <class T>
void refused_by_pn(Isa isa) {
  constexpr std::size_t k = T::block_size;
  std::vector<float> x(k, 1.0f);
  std::vector<double> g(k, 1.0);
  Block34 block = {};
  const std::int64_t id = 0;
  alignas(64) std::uint8_t prepared[8192];
  const Status refused = Status::isa_not_available;
  CHECK(pn::cpu::quantize_rows<T>(x.data(), Element::f32, 0, 1, k, g.data(), &block, 0, nullptr, isa) == refused);
  CHECK(pn::cpu::validate_rows<T>(&block, 0, 1, k, nullptr, isa) == refused);
  CHECK(pn::cpu::dequantize_rows<T>(&block, 0, 1, 0, k, x.data(), Element::f32, 0, isa) == refused);
  CHECK(pn::cpu::get_rows<T>(&block, 0, 1, k, &id, 1, x.data(), Element::f32, 0, nullptr, isa) == refused);
  CHECK(pn::cpu::prepare_activations<T>(Activations::f32, x.data(), 0, 1, k, prepared, nullptr, isa) == refused);
}

void refused_by_p12(Isa isa) {
  std::vector<float> x(256, 1.0f);
  std::vector<std::uint16_t> weights(256, 0x3F80);
  p12::Block392 block = {};
  p12::RowScan tally;
  const std::int64_t id = 0;
  alignas(64) std::uint8_t prepared[2048];
  const Status refused = Status::isa_not_available;
  CHECK(p12::cpu::pack_rows(weights.data(), 0, 1, 256, &block, 0, &tally, nullptr, isa) == refused);
  CHECK(p12::cpu::scan_rows(weights.data(), 0, 1, 256, tally, isa) == refused);
  CHECK(p12::cpu::unpack_rows(&block, 0, 1, 256, x.data(), Element::f32, 0, Stores::cached, isa) == refused);
  CHECK(p12::cpu::unpack_tile(&block, 0, 1, 0, 256, x.data(), Element::f32, 0, isa) == refused);
  CHECK(p12::cpu::validate_rows(&block, 0, 1, 256, nullptr, isa) == refused);
  CHECK(p12::cpu::get_rows(&block, 0, 1, 256, &id, 1, x.data(), Element::f32, 0, nullptr, isa) == refused);
  CHECK(p12::cpu::prepare_activations(x.data(), 0, 1, 256, prepared, isa) == refused);
}

}  // namespace

TEST_CASE("an instruction set that is not there is refused by every function") {
  int tried = 0;
  const pn::cpu::IsaList list = pn::cpu::isas();
  for (unsigned i = 1; i < 256; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (std::find(list.begin(), list.end(), isa) != list.end()) continue;
    INFO(pn::cpu::isa_name(isa) << ", number " << i);
    refused_by_pn<pn::pn3t>(isa);
    refused_by_pn<pn::pn4t>(isa);
    refused_by_p12(isa);
    const float a[2] = {1, 1};
    float t = 0;
    const pn::cpu::LowRank adapter = {a, 8, a, 4, 1, Element::f32, 1.0f};
    CHECK(pn::cpu::low_rank_down(adapter, 2, a, 8, 1, &t, 4, isa) == Status::isa_not_available);
    CHECK(pn::cpu::low_rank_up(adapter, 0, 1, a, 4, 1, nullptr, &t, 4, isa) == Status::isa_not_available);
    ++tried;
  }
  CHECK(tried >= 251);  // no processor has both kinds
}
