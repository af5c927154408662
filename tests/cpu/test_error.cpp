// Proves that add_error adds up in the stated order: the bits of a plain loop, on every instruction set, with and
// without importance, for every kind of element, at any address and stride, and from sums that are not zero.
#include <cfenv>

#include "recipes.hpp"

using namespace testing;

namespace {

// Rounded by itself, whatever the compiler may fuse.
double rounded(double value) {
  volatile double kept = value;
  return kept;
}

// The order that pn/cpu.hpp states, from the core's decoder.
template <class T>
void add_plainly(const Fenced& weights, Element element, std::size_t rows, std::size_t k, const double* importance,
                 const Fenced& blocks, pn::cpu::ErrorSums& sums) {
  std::vector<Block34> row(k / T::block_size);
  std::vector<float> v(k);
  for (std::size_t r = 0; r < rows; ++r) {
    if (k != 0) std::memcpy(row.data(), blocks.row(r), 34 * row.size());
    REQUIRE(pn::decode_row<T>(row.data(), k, v.data()) == Status::ok);
    double errors[16] = {}, squares[16] = {};
    for (std::size_t e = 0; e < k; ++e) {
      const double w = static_cast<double>(value_of(element, load_bits(weights.row(r), element, e)));
      const double difference = rounded(w - static_cast<double>(v[e]));
      const double g = importance == nullptr ? 1.0 : importance[e];
      errors[e % 16] = rounded(errors[e % 16] + rounded(g * rounded(difference * difference)));
      squares[e % 16] = rounded(squares[e % 16] + rounded(g * rounded(w * w)));
    }
    for (std::size_t i = 0; i < 16; ++i) {
      sums.squared_error = rounded(sums.squared_error + errors[i]);
      sums.squared_weight = rounded(sums.squared_weight + squares[i]);
    }
  }
}

bool same_double(double a, double b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
bool same_sums(const pn::cpu::ErrorSums& a, const pn::cpu::ErrorSums& b) {
  return same_double(a.squared_error, b.squared_error) && same_double(a.squared_weight, b.squared_weight);
}

// Rows of weights, and of blocks that are theirs or any.
template <class T>
void fill_rows(Random& random, Element element, std::size_t rows, std::size_t k, const Fenced& weights,
               const Fenced& blocks, bool theirs) {
  constexpr std::size_t n = T::block_size;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t b = 0; b < k / n; ++b) {
      float w[n];
      const Recipe recipe = random.coin() ? Recipe::trained : Recipe::outlier;
      random_block(random, recipe, static_cast<int>(n), T::zero_point, w);
      for (std::size_t e = 0; e < n; ++e) {
        const std::uint32_t bits = bits_as(element, w[e]);
        store_bits(weights.row(r), element, b * n + e, bits);
        w[e] = value_of(element, bits);
      }
      Block34 block;
      if (!theirs || pn::quantize_row<T>(w, n, &block) != Status::ok)
        block = block_with<T>(random, random_scale(random, 0, 30));
      std::memcpy(blocks.row(r) + 34 * b, &block, 34);
    }
}

}  // namespace

TEMPLATE_TEST_CASE("add_error: the bits of a plain loop, at any address and stride", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  Random random(61);
  for (int i = 0; i < 400; ++i) {
    const Element element = elements[i % 3];
    const std::size_t rows = random.below(4), k = n * (i % 7 == 0 ? random.below(2) : random.below(9));
    const std::size_t bytes = k * element_bytes(element);
    const At at = random.coin() ? At::begin : At::end;
    const Fenced weights(rows, bytes, bytes + random.below(2) * random.below(70), at,
                         random.below(2) * random.below(64));
    const Fenced blocks(rows, k / n * 34, k / n * 34 + random.below(2) * random.below(70), at,
                        random.below(2) * random.below(64));
    fill_rows<TestType>(random, element, rows, k, weights, blocks, random.coin());
    // Importances end at a page that may not be touched, at an address that doubles have.
    const Fenced columns(k * sizeof(double));
    double* g = reinterpret_cast<double*>(columns.data());
    for (std::size_t e = 0; e < k; ++e)
      g[e] = random.below(8) == 0 ? 0.0 : std::ldexp(random.uniform(), random.between(-40, 40));
    for (const double* importance : {static_cast<const double*>(nullptr), static_cast<const double*>(g)}) {
      pn::cpu::ErrorSums start;
      if (random.coin()) start = {random.uniform() * 1e3, random.uniform() * 1e-3};
      pn::cpu::ErrorSums want = start;
      add_plainly<TestType>(weights, element, rows, k, importance, blocks, want);
      for_each_isa([&](Isa isa) {
        pn::cpu::ErrorSums sums = start;
        REQUIRE(pn::cpu::add_error<TestType>(weights.data(), element, weights.stride(), rows, k, importance,
                                             blocks.data(), blocks.stride(), sums, isa) == Status::ok);
        if (!same_sums(sums, want))
          FAIL(name_of(element) << ", " << rows << " rows of " << k << (importance ? ", weighted: " : ": ")
                                << sums.squared_error << " " << sums.squared_weight << ", not " << want.squared_error
                                << " " << want.squared_weight);
      });
    }
    CHECK(weights.intact());
    CHECK(blocks.intact());
  }
}

TEMPLATE_TEST_CASE("add_error: hostile blocks and weights, and importances that overflow", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size, k = 3 * n;
  Random random(62);
  for (int i = 0; i < 300; ++i) {
    const Element element = elements[i % 3];
    const Fenced weights(k * element_bytes(element)), blocks(34 * 3);
    for (std::size_t e = 0; e < k; ++e) store_bits(weights.data(), element, e, random.next32());
    for (std::size_t e = 0; e < 34 * 3; ++e) blocks.data()[e] = static_cast<std::uint8_t>(random.next32());
    std::vector<double> g(k);
    for (double& value : g) value = double_of(random.next() >> 1);
    for (const double* importance : {static_cast<const double*>(nullptr), static_cast<const double*>(g.data())}) {
      pn::cpu::ErrorSums want;
      add_plainly<TestType>(weights, element, 1, k, importance, blocks, want);
      for_each_isa([&](Isa isa) {
        pn::cpu::ErrorSums sums;
        REQUIRE(pn::cpu::add_error<TestType>(weights.data(), element, 0, 1, k, importance, blocks.data(), 0, sums,
                                             isa) == Status::ok);
        CHECK(same_sums(sums, want));
      });
    }
  }
}

TEMPLATE_TEST_CASE("add_error: rows one by one and all at once give the same bits", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size, rows = 5, k = 4 * n;
  Random random(63);
  const Fenced weights(rows, 4 * k, 4 * k, At::end), blocks(rows, 34 * 4, 34 * 4, At::end);
  fill_rows<TestType>(random, Element::f32, rows, k, weights, blocks, true);
  for_each_isa([&](Isa isa) {
    pn::cpu::ErrorSums all, each;
    REQUIRE(pn::cpu::add_error<TestType>(weights.data(), Element::f32, 4 * k, rows, k, nullptr, blocks.data(), 34 * 4,
                                         all, isa) == Status::ok);
    for (std::size_t r = 0; r < rows; ++r)
      REQUIRE(pn::cpu::add_error<TestType>(weights.row(r), Element::f32, 0, 1, k, nullptr, blocks.row(r), 0, each,
                                           isa) == Status::ok);
    CHECK(same_sums(all, each));
    CHECK(all.squared_error > 0);
    CHECK(all.squared_weight > all.squared_error);
  });
}

TEMPLATE_TEST_CASE("add_error: the caller's rounding has no influence and is given back", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size, k = 8 * n;
  Random random(64);
  const Fenced weights(4 * k), blocks(34 * 8);
  fill_rows<TestType>(random, Element::f32, 1, k, weights, blocks, true);
  pn::cpu::ErrorSums want;
  add_plainly<TestType>(weights, Element::f32, 1, k, nullptr, blocks, want);
  for_each_isa([&](Isa isa) {
    for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      const int before = std::fegetround();
      REQUIRE(std::fesetround(rounding) == 0);
      pn::cpu::ErrorSums sums;
      const Status status =
          pn::cpu::add_error<TestType>(weights.data(), Element::f32, 0, 1, k, nullptr, blocks.data(), 0, sums, isa);
      const int after = std::fegetround();
      REQUIRE(std::fesetround(before) == 0);
      CHECK(status == Status::ok);
      CHECK(after == rounding);
      CHECK(same_sums(sums, want));
    }
  });
}

TEMPLATE_TEST_CASE("add_error: what it refuses leaves the sums as they are", "", pn::pn3t, pn::pn4t) {
  const std::vector<float> w(400, 1.0f);
  const std::vector<Block34> blocks(8);
  pn::cpu::ErrorSums sums = {3, 4};
  for_each_isa([&](Isa isa) {
    for (const std::size_t k : {std::size_t{1}, TestType::block_size - 1, TestType::block_size + 16})
      CHECK(pn::cpu::add_error<TestType>(w.data(), Element::f32, 0, 1, k, nullptr, blocks.data(), 0, sums, isa) ==
            Status::bad_length);
    CHECK(pn::cpu::add_error<TestType>(w.data(), static_cast<Element>(3), 0, 1, TestType::block_size, nullptr,
                                       blocks.data(), 0, sums, isa) != Status::ok);
  });
  CHECK(pn::cpu::add_error<TestType>(w.data(), Element::f32, 0, 1, TestType::block_size, nullptr, blocks.data(), 0,
                                     sums, static_cast<Isa>(77)) == Status::isa_not_available);
  CHECK(sums.squared_error == 3);
  CHECK(sums.squared_weight == 4);
}
