// Measures everything that bench/report.py makes a table of. Ends with an error only when something does not work.
#include <benchmark/benchmark.h>

#include <pn/cpu.hpp>

#include "bench.hpp"

namespace {

std::string isa_names() {
  std::string names;
  for (const pn::cpu::Isa isa : pn::cpu::isas()) names += (names.empty() ? "" : " ") + std::string(isa_name(isa));
  return names;
}

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
  return std::string("gcc ") + __VERSION__;
#else
  return "unknown";
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Sizes& sizes = bench::sizes();
  benchmark::AddCustomContext("isas", isa_names());
  benchmark::AddCustomContext("compiler", compiler());
  benchmark::AddCustomContext("threads", std::to_string(bench::thread_count()));
  benchmark::AddCustomContext("last_level_cache", std::to_string(sizes.last_level_cache));
  benchmark::AddCustomContext("working_set", std::to_string(sizes.set));
  benchmark::AddCustomContext("working_set_capped", sizes.capped ? "yes" : "no");
  bench::add_bandwidth();
  bench::add_p12();
  bench::add_pn();
  bench::add_core();
#if defined(PN_BENCH_GGML)
  bench::add_ggml();
#endif
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
