// Proves that three listed weights at any of the 2,763,520 triples of places pack to the bytes of the format, unpack
// and validate.
#include "catch.hpp"
#include "list_template.hpp"
#include "parallel.hpp"

TEST_CASE("three listed weights at all places") {
  const exhaustive::ListTemplate plain;
  exhaustive::Failures failures;
  std::atomic<std::uint64_t> blocks{0};
  exhaustive::in_parallel(256, [&](std::uint64_t first) {
    const int a = static_cast<int>(first);
    std::uint64_t seen = 0;
    for (int b = a + 1; b < 256; ++b)
      for (int c = b + 1; c < 256; ++c, ++seen) {
        const std::string wrong = plain.check({a, b, c});
        if (!wrong.empty()) failures.add(wrong);
      }
    blocks += seen;
  });
  INFO(failures.text());
  CHECK(failures.empty());
  CHECK(blocks == 2763520);
}
