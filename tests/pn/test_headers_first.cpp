// Proves that all headers may be included by two translation units of one program: it links, and what they declare
// exists once. (That each header compiles alone is shown by the sources that CMakeLists.txt generates.)
#include <p12/p12.hpp>
#include <pn/pn.hpp>
// Once more, in another order.
#include <p12/scan.hpp>
#include <p12/validate.hpp>
#include <pn/dot.hpp>
#include <pn/pn.hpp>

#include "catch.hpp"
#include "headers.hpp"
#include "headers_report.inc"

HeaderReport first_report() { return report(); }

TEST_CASE("two translation units see the same headers") {
  const HeaderReport first = first_report();
  const HeaderReport second = second_report();
  for (std::size_t i = 0; i < 12; ++i) {
    INFO("address " << i);
    CHECK(first.addresses[i] != nullptr);
    CHECK(first.addresses[i] == second.addresses[i]);
  }
  CHECK(std::memcmp(first.pn_bytes, second.pn_bytes, sizeof first.pn_bytes) == 0);
  CHECK(std::memcmp(first.p12_bytes, second.p12_bytes, sizeof first.p12_bytes) == 0);
  CHECK(std::memcmp(first.dots, second.dots, sizeof first.dots) == 0);
  CHECK(std::memcmp(first.rotated, second.rotated, sizeof first.rotated) == 0);
  CHECK(first.dots[0] > 0);
  CHECK(first.dots[1] > 0);
}

TEST_CASE("versions") {
  CHECK(pn::format_version == 0);
  CHECK(p12::format_version == 1);
  CHECK(p12::default_ggml_type == 126);
}
