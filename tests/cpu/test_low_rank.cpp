// Proves that a low-rank add-on is added within the errors of fp32 sums, for every rank and both kinds of elements,
// that tokens which do not want it are not touched, and that neither rows nor tokens nor the environment change a bit.
#include "../pn/environment.hpp"
#include "testing.hpp"

using namespace testing;
using pn::cpu::LowRank;

namespace {

// A and B with gaps between their rows, as their elements and as doubles.
struct Adapter {
  std::size_t k, rows, rank;
  Element element;
  Fenced a, b;
  std::vector<double> a_values, b_values;

  Adapter(Random& random, std::size_t columns, std::size_t row_count, std::size_t r, Element kind)
      : k(columns),
        rows(row_count),
        rank(r),
        element(kind),
        a(rank, k * element_bytes(kind), k * element_bytes(kind) + 10, At::end),
        b(rows, rank * element_bytes(kind), rank * element_bytes(kind) + 3, At::end),
        a_values(rank * k),
        b_values(rows * rank) {
    fill(random, a, rank, k, a_values);
    fill(random, b, rows, rank, b_values);
  }
  LowRank view(float scale) const { return {a.data(), a.stride(), b.data(), b.stride(), rank, element, scale}; }

 private:
  void fill(Random& random, const Fenced& to, std::size_t count, std::size_t columns, std::vector<double>& values) {
    for (std::size_t r = 0; r < count; ++r)
      for (std::size_t e = 0; e < columns; ++e) {
        const std::uint32_t bits = bits_as(element, static_cast<float>(random.gauss()));
        store_bits(to.row(r), element, e, bits);
        values[r * columns + e] = static_cast<double>(value_of(element, bits));
      }
  }
};

// What a sum of `count` products in fp32, in eight or more parts, may be off by, in units of the sum of magnitudes.
double slack(std::size_t count) { return (static_cast<double>(count) / 8 + 8) * 0x1p-24; }

}  // namespace

TEST_CASE("low_rank_down and low_rank_up against sums in double") {
  Random random(101);
  double largest_down = 0, largest_up = 0;
  for (const std::size_t rank : {1u, 3u, 8u, 16u, 255u, 256u})
    for (const std::size_t k : {0u, 1u, 13u, 64u, 320u, 1000u})
      for (const Element element : {Element::f32, Element::bf16}) {
        const std::size_t rows = 7, tokens = 1 + random.below(16);
        const Adapter adapter(random, k, rows, rank, element);
        const float scale = static_cast<float>(random.gauss());
        const std::vector<float> x = random_activations(random, tokens * k + 1);
        bool enabled[16];
        for (bool& wanted : enabled) wanted = random.coin();
        const bool* const choice = random.below(4) == 0 ? nullptr : enabled;
        for_each_isa([&](Isa isa) {
          const Fenced t(tokens, 4 * rank, 4 * rank + 8, At::end);
          REQUIRE(pn::cpu::low_rank_down(adapter.view(scale), k, x.data(), 4 * k, tokens, t.floats(), t.stride(),
                                         isa) == Status::ok);
          CHECK(t.intact());
          for (std::size_t m = 0; m < tokens; ++m)
            for (std::size_t r = 0; r < rank; ++r) {
              double exact = 0, sum = 0;
              for (std::size_t e = 0; e < k; ++e) {
                const double product = adapter.a_values[r * k + e] * static_cast<double>(x[m * k + e]);
                exact += product;
                sum += std::fabs(product);
              }
              const double error = std::fabs(static_cast<double>(t.value(m, r)) - exact);
              if (!(error <= slack(k) * sum))
                FAIL("down: token " << m << ", r " << r << ", rank " << rank << ", k " << k);
              if (sum > 0) largest_down = std::max(largest_down, error / sum);
            }

          // From row `first` of B on; y begins there, and tokens that are not enabled keep their canary.
          const std::size_t first = random.below(3);
          Fenced y(tokens, 4 * (rows - first), 4 * rows, At::end);
          std::vector<float> before(tokens * rows);
          for (std::size_t m = 0; m < tokens; ++m)
            for (std::size_t n = 0; n < rows - first && (choice == nullptr || choice[m]); ++n)
              y.set(m, n, before[m * rows + n] = static_cast<float>(random.gauss()));
          REQUIRE(pn::cpu::low_rank_up(adapter.view(scale), first, rows - first, t.floats(), t.stride(), tokens, choice,
                                       y.floats(), y.stride(), isa) == Status::ok);
          CHECK(y.intact());
          for (std::size_t m = 0; m < tokens; ++m)
            for (std::size_t n = 0; n < rows - first; ++n) {
              if (choice != nullptr && !choice[m]) {
                CHECK(pn::detail::load_le32(y.row(m) + 4 * n) == 0x01010101u * Fenced::canary);
                continue;
              }
              double exact = 0, sum = 0;
              for (std::size_t r = 0; r < rank; ++r) {
                const double product = adapter.b_values[(first + n) * rank + r] * static_cast<double>(t.value(m, r));
                exact += product;
                sum += std::fabs(product);
              }
              const double added = static_cast<double>(scale) * exact;
              const double result = static_cast<double>(before[m * rows + n]) + added;
              const double bound = slack(rank) * std::fabs(static_cast<double>(scale)) * sum +
                                   0x1p-24 * (std::fabs(result) + std::fabs(added));
              const double error = std::fabs(static_cast<double>(y.value(m, n)) - result);
              if (!(error <= 1.01 * bound))
                FAIL("up: token " << m << ", row " << n << ", rank " << rank << ": " << error / bound
                                  << " of the bound");
              largest_up = std::max(largest_up, bound > 0 ? error / bound : 0);
            }
        });
      }
  WARN("largest error: down " << largest_down << " of sum |a * x|, up " << largest_up << " of its bound");
}

TEST_CASE("low_rank: a rank or an element that is not one of those named is refused, and too many tokens are") {
  Random random(102);
  const Adapter adapter(random, 32, 2, 256, Element::f32);
  const std::vector<float> x(17 * 256, 1.0f);
  for_each_isa([&](Isa isa) {
    const Fenced out(1 << 16);
    LowRank bad[4] = {adapter.view(1), adapter.view(1), adapter.view(1), adapter.view(1)};
    bad[0].rank = 0;
    bad[1].rank = 257;
    bad[2].element = Element::f16;
    bad[3].element = static_cast<Element>(9);
    for (const LowRank& view : bad) {
      CHECK(pn::cpu::low_rank_down(view, 32, x.data(), 128, 1, out.floats(), 1024, isa) == Status::bad_rank);
      CHECK(pn::cpu::low_rank_up(view, 0, 1, x.data(), 1024, 1, nullptr, out.floats(), 4, isa) == Status::bad_rank);
    }
    CHECK(pn::cpu::low_rank_down(adapter.view(1), 32, x.data(), 128, 17, out.floats(), 1024, isa) ==
          Status::too_many_tokens);
    CHECK(pn::cpu::low_rank_up(adapter.view(1), 0, 1, x.data(), 1024, 17, nullptr, out.floats(), 4, isa) ==
          Status::too_many_tokens);
    CHECK(pn::cpu::low_rank_down(adapter.view(1), 32, x.data(), 128, 0, out.floats(), 1024, isa) == Status::ok);
    CHECK(pn::cpu::low_rank_up(adapter.view(1), 0, 0, x.data(), 1024, 1, nullptr, out.floats(), 4, isa) == Status::ok);
    CHECK(pn::cpu::low_rank_up(adapter.view(1), 0, 1, x.data(), 1024, 0, nullptr, out.floats(), 4, isa) == Status::ok);
    CHECK(out.untouched());
  });
}

TEST_CASE("low_rank: neither the tokens of a call, nor the rows, nor addresses, nor the environment change a bit") {
  Random random(103);
  const std::size_t k = 200, rows = 11, rank = 21, tokens = 16;
  for (const Element element : {Element::f32, Element::bf16}) {
    const Adapter adapter(random, k, rows, rank, element);
    const LowRank view = adapter.view(0.75f);
    std::vector<float> x = random_activations(random, tokens * k);
    for (std::size_t e = 0; e < k; ++e) x[k + e] *= 0x1p-130f;  // subnormal
    for_each_isa([&](Isa isa) {
      std::vector<float> t(tokens * rank), y(tokens * rows, 0.0f);
      REQUIRE(pn::cpu::low_rank_down(view, k, x.data(), 4 * k, tokens, t.data(), 4 * rank, isa) == Status::ok);
      REQUIRE(pn::cpu::low_rank_up(view, 0, rows, t.data(), 4 * rank, tokens, nullptr, y.data(), 4 * rows, isa) ==
              Status::ok);
      for (std::size_t m = 0; m < tokens; ++m) {
        const std::size_t some = 1 + random.below(tokens - m);
        const std::size_t shift = random.below(64);
        const Fenced moved_x(some, 4 * k, 4 * k + 2, At::end, shift),
            moved_t(some, 4 * rank, 4 * rank + 1, At::end, shift);
        for (std::size_t i = 0; i < some; ++i) std::memcpy(moved_x.row(i), &x[(m + i) * k], 4 * k);
        REQUIRE(pn::cpu::low_rank_down(view, k, moved_x.floats(), moved_x.stride(), some, moved_t.floats(),
                                       moved_t.stride(), isa) == Status::ok);
        Fenced moved_y(some, 4 * rows, 4 * rows + 3, At::end, 63 - shift);
        moved_y.fill(0);
        for (std::size_t first = 0, last; first < rows; first = last) {
          last = std::min(rows, first + 1 + random.below(6));
          REQUIRE(pn::cpu::low_rank_up(view, first, last - first, moved_t.floats(), moved_t.stride(), some, nullptr,
                                       reinterpret_cast<float*>(moved_y.data() + 4 * first), moved_y.stride(),
                                       isa) == Status::ok);
        }
        for (std::size_t i = 0; i < some; ++i) {
          if (std::memcmp(moved_t.row(i), &t[(m + i) * rank], 4 * rank) != 0) FAIL("down: token " << m + i);
          if (std::memcmp(moved_y.row(i), &y[(m + i) * rows], 4 * rows) != 0) FAIL("up: token " << m + i);
        }
        CHECK((moved_t.intact() && moved_y.intact()));
      }
      for (const environment::Setting& setting : environment::settings()) {
        INFO("under " << setting.name);
        std::vector<float> again_t(tokens * rank), again_y(tokens * rows, 0.0f);
        Status down = Status::ok, up = Status::ok;
        CHECK(environment::run_under(setting, [&] {
          down = pn::cpu::low_rank_down(view, k, x.data(), 4 * k, tokens, again_t.data(), 4 * rank, isa);
          up = pn::cpu::low_rank_up(view, 0, rows, again_t.data(), 4 * rank, tokens, nullptr, again_y.data(), 4 * rows,
                                    isa);
        }));
        CHECK((down == Status::ok && up == Status::ok));
        CHECK(std::memcmp(again_t.data(), t.data(), 4 * t.size()) == 0);
        CHECK(std::memcmp(again_y.data(), y.data(), 4 * y.size()) == 0);
      }
    });
  }
}
