// Proves the scan: the base and the count of every block against all bases tried, and the tally of rows.
#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

TEST_CASE("scan_block finds the canonical base, whether the block fits or not") {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const Weights weights = random_weights(random);
    const second::Choice want = second::choose(weights);
    const p12::BlockScan got = p12::scan_block(weights.data());
    if (got.base != want.base || got.listed != want.listed)
      FAIL("round " << i << ": " << got.base << ", " << got.listed << " not " << want.base << ", " << want.listed);
  }
}

TEST_CASE("best_base works from counts of exponents") {
  Random random(2);
  for (int i = 0; i < 5000; ++i) {
    const Weights weights = random_weights(random);
    std::uint16_t count[256] = {};
    for (const std::uint16_t weight : weights) ++count[second::exponent(weight)];
    const second::Choice want = second::choose(weights);
    const p12::BlockScan got = p12::best_base(count);
    if (got.base != want.base || got.listed != want.listed) FAIL("round " << i);
  }
}

TEST_CASE("scan_row: the tally and the worst block, the first of equals") {
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const std::size_t blocks = 1 + random.below(12);
    std::vector<std::uint16_t> row;
    std::uint64_t by_listed[5] = {};
    std::uint64_t worst_block = 0;
    int worst_listed = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
      const Weights weights = random_weights(random);
      row.insert(row.end(), weights.begin(), weights.end());
      const int listed = second::choose(weights).listed;
      ++by_listed[std::min(listed, 4)];
      if (listed > worst_listed) {
        worst_listed = listed;
        worst_block = b;
      }
    }
    const std::size_t cut = 256 * random.below(blocks + 1);  // in one go, or as two rows
    p12::RowScan tally;
    REQUIRE(p12::scan_row(row.data(), cut, tally) == Status::ok);
    REQUIRE(p12::scan_row(row.data() + cut, row.size() - cut, tally) == Status::ok);
    CHECK(tally.blocks == blocks);
    for (std::size_t n = 0; n < 4; ++n) CHECK(tally.by_listed[n] == by_listed[n]);
    CHECK(tally.blocks_that_do_not_fit() == by_listed[4]);
    CHECK(tally.worst_block == worst_block);
    CHECK(tally.worst_listed == worst_listed);
  }
}

TEST_CASE("scan_row: equals, nothing listed, lengths") {
  Random random(4);
  std::vector<std::uint16_t> row;
  const auto add = [&](const std::vector<int>& places) {
    const Weights weights = weights_with_outliers(random, places);
    row.insert(row.end(), weights.begin(), weights.end());
  };
  add({});
  add({3});
  add({5, 200});
  add({6, 7});
  add({0});
  p12::RowScan tally;
  REQUIRE(p12::scan_row(row.data(), row.size(), tally) == Status::ok);
  CHECK(tally.worst_block == 2);
  CHECK(tally.worst_listed == 2);
  CHECK(tally.by_listed[0] == 1);
  CHECK(tally.by_listed[1] == 2);
  CHECK(tally.by_listed[2] == 2);
  CHECK(tally.by_listed[3] == 0);
  REQUIRE(p12::scan_row(row.data(), row.size(), tally) == Status::ok);  // the same row again
  CHECK(tally.blocks == 10);
  CHECK(tally.worst_block == 2);
  row.clear();
  add({1, 2, 3, 4});
  REQUIRE(p12::scan_row(row.data(), 256, tally) == Status::ok);
  CHECK(tally.worst_block == 10);
  CHECK(tally.worst_listed == 4);
  CHECK(tally.blocks_that_do_not_fit() == 1);

  p12::RowScan none;
  for (const std::size_t k : {std::size_t{1}, std::size_t{255}})
    CHECK(p12::scan_row(row.data(), k, none) == Status::bad_length);
  CHECK(none.blocks == 0);
  CHECK(p12::scan_row(nullptr, 0, none) == Status::ok);
  CHECK(none.blocks == 0);
  CHECK(none.worst_listed == 0);
  CHECK(none.blocks_that_do_not_fit() == 0);
}
