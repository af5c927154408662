// Proves the numbers of a scan: entropies worked out by hand, the window against the one of a block, and that neither
// the size of the pieces nor their order matters.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <p12/scan.hpp>
#include <random>

#include "catch.hpp"
#include "pnpack/scan_statistics.hpp"

using namespace pnpack;

namespace {

Histogram counts_of(std::initializer_list<std::pair<std::size_t, std::uint64_t>> pairs) {
  Histogram counts{};
  for (const auto& [value, count] : pairs) counts[value] = count;
  return counts;
}

std::vector<std::uint16_t> weights(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint16_t> all(n);
  // Half of them with few exponents, as in a model; the others anything.
  for (std::uint16_t& weight : all) {
    const std::uint64_t bits = random();
    weight = static_cast<std::uint16_t>((bits & 0x10000u) != 0 ? bits : (bits & 0x83FFu) | 0x3C00u);
  }
  return all;
}

TensorStatistics statistics_of(const std::vector<std::uint16_t>& all) {
  TensorStatistics statistics;
  statistics.add(all.data(), all.size());
  return statistics;
}

void require_same(const TensorStatistics& a, const TensorStatistics& b) {
  REQUIRE(a.count() == b.count());
  REQUIRE(a.exponents() == b.exponents());
  REQUIRE(a.low_bytes() == b.low_bytes());
  REQUIRE(a.high_bytes() == b.high_bytes());
  REQUIRE(a.summary().entropy_low == b.summary().entropy_low);
  REQUIRE(a.summary().entropy_high == b.summary().entropy_high);
}

}  // namespace

TEST_CASE("entropy: values worked out by hand") {
  CHECK(entropy({}) == 0);
  CHECK(entropy(counts_of({{7, 1000}})) == 0);
  CHECK_FALSE(std::signbit(entropy(counts_of({{7, 1000}}))));
  CHECK(entropy(counts_of({{0, 5}, {255, 5}})) == 1);
  CHECK(entropy(counts_of({{1, 1}, {2, 1}, {3, 2}})) == 1.5);
  CHECK(entropy(counts_of({{1, 8}, {2, 4}, {3, 2}, {4, 1}, {5, 1}})) == 1.875);
  // 3/4 and 1/4: 2 - 3/4 * log2(3)
  CHECK(std::abs(entropy(counts_of({{9, 3}, {200, 1}})) - 0.8112781244591328) < 1e-15);
  Histogram all;
  all.fill(123456789012345);
  CHECK(entropy(all) == 8);
}

TEST_CASE("the window holds the most weights; of equals it is the one with the largest base") {
  const auto window = [](const Histogram& counts) {
    const ExponentWindow best = best_window(counts);
    return std::make_pair(best.base, best.outside);
  };
  using Want = std::pair<int, std::uint64_t>;
  CHECK(window({}) == Want(240, 0));
  CHECK(window(counts_of({{0, 1}})) == Want(0, 0));
  CHECK(window(counts_of({{100, 9}})) == Want(100, 0));
  CHECK(window(counts_of({{255, 9}})) == Want(240, 0));
  CHECK(window(counts_of({{243, 9}})) == Want(240, 0));
  CHECK(window(counts_of({{100, 1}, {115, 1}})) == Want(100, 0));
  CHECK(window(counts_of({{100, 1}, {116, 1}})) == Want(116, 1));
  CHECK(window(counts_of({{100, 2}, {116, 1}})) == Want(100, 1));
  CHECK(window(counts_of({{0, 4}, {50, 3}, {60, 3}, {90, 5}})) == Want(50, 9));
  CHECK(window(counts_of({{3, std::uint64_t{1} << 40}, {4, 1}, {200, 1}})) == Want(3, 1));
}

TEST_CASE("the window of 256 weights is that of their block") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t spread = 1 + random() % 256;
    const std::uint64_t from = random() % (257 - spread);
    std::uint16_t block[256] = {};
    Histogram counts{};
    for (int i = 0; i < 256; ++i) {
      const std::uint64_t exponent = from + random() % spread;
      ++block[exponent];
      ++counts[exponent];
    }
    const p12::BlockScan want = p12::best_base(block);
    const ExponentWindow got = best_window(counts);
    if (got.base != want.base || got.outside != static_cast<std::uint64_t>(want.listed)) FAIL("round " << round);
  }
}

TEST_CASE("every pattern once") {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const TensorStatistics statistics = statistics_of(all);
  CHECK(statistics.count() == 65536);
  for (const std::uint64_t count : statistics.exponents()) REQUIRE(count == 256);
  for (const std::uint64_t count : statistics.high_bytes()) REQUIRE(count == 256);
  for (const std::uint64_t count : statistics.low_bytes()) REQUIRE(count == 256);
  const StatisticsSummary summary = statistics.summary();
  CHECK(summary.entropy_low == 8);
  CHECK(summary.entropy_high == 8);
  CHECK(summary.window.base == 240);
  CHECK(summary.window.outside == 240 * 256);
  CHECK(summary.first_exponent == 0);
  CHECK(summary.exponents.size() == 256);
}

TEST_CASE("bits go where they belong") {
  const std::uint16_t few[] = {0xBF80, 0xBF80, 0x3F01};  // exponents 127, 127, 126
  TensorStatistics statistics;
  statistics.add(few, 3);
  CHECK(statistics.exponents() == counts_of({{127, 2}, {126, 1}}));
  CHECK(statistics.high_bytes() == counts_of({{0xBF, 2}, {0x3F, 1}}));
  CHECK(statistics.low_bytes() == counts_of({{0x80, 2}, {0x01, 1}}));
  const StatisticsSummary summary = statistics.summary();
  CHECK(summary.count == 3);
  CHECK(summary.first_exponent == 126);
  CHECK(summary.exponents == std::vector<std::uint64_t>{1, 2});
  CHECK(summary.window.base == 126);
}

TEST_CASE("pieces of any size, in any order, give the same") {
  for (const std::size_t n : {0u, 1u, 3u, 4095u, 4096u, 4097u, 4099u, 50001u}) {
    const std::vector<std::uint16_t> all = weights(n, n);
    TensorStatistics one_by_one;
    for (const std::uint16_t& weight : all) one_by_one.add(&weight, 1);
    const TensorStatistics at_once = statistics_of(all);
    REQUIRE(at_once.count() == n);
    require_same(at_once, one_by_one);

    TensorStatistics forward;
    TensorStatistics backward;
    std::vector<TensorStatistics> parts;
    for (std::size_t from = 0; from < n; from += 4999) {
      parts.emplace_back();
      parts.back().add(all.data() + from, std::min<std::size_t>(4999, n - from));
    }
    for (const TensorStatistics& part : parts) forward.merge(part);
    std::for_each(parts.rbegin(), parts.rend(), [&](const TensorStatistics& part) { backward.merge(part); });
    require_same(at_once, forward);
    require_same(at_once, backward);
  }
}

TEST_CASE("a tensor without weights") {
  TensorStatistics statistics;
  statistics.add(nullptr, 0);
  const StatisticsSummary summary = statistics.summary();
  CHECK(summary.count == 0);
  CHECK(summary.entropy_low == 0);
  CHECK(summary.entropy_high == 0);
  CHECK(summary.window.outside == 0);
  CHECK(summary.exponents.empty());
}

TEST_CASE("a tensor of one value takes little memory") {
  const StatisticsSummary summary = statistics_of(std::vector<std::uint16_t>(10000, 0x0000)).summary();
  CHECK(summary.exponents == std::vector<std::uint64_t>{10000});
  CHECK(summary.first_exponent == 0);
  CHECK(summary.window.base == 0);
  CHECK(summary.entropy_low == 0);
}
