// Proves the scalar dot products and the Q8_0 quantizer: bit for bit the sum of exact products in double, in element
// order, rounded once; close to a sum in a wider type; Q8_0 as ggml's reference has it, halves away from zero.
#include <algorithm>
#include <limits>
#include <pn/dot.hpp>
#include <utility>

#include "catch.hpp"
#include "environment.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

// A row with its weights as doubles, computed from the scales and codes that went into it.
template <class T>
struct Row {
  std::vector<pn::Block34> blocks;
  std::vector<double> weights;

  Row(Random& random, std::size_t block_count) : blocks(block_count) {
    for (pn::Block34& block : blocks) {
      unsigned scale = random.next32() & 0xFFFFu;
      if ((scale & 0x7C00u) == 0x7C00u) scale &= 0x83FFu;
      if (random.coin()) scale = (scale & 0x83FFu) | 0x2400u;
      std::uint8_t codes[T::block_size];
      for (auto& code : codes) {
        code = static_cast<std::uint8_t>(random.below(static_cast<std::size_t>(2 * T::zero_point)));
        weights.push_back(half_value(scale) * (code - T::zero_point));
      }
      pn::store_block<T>(static_cast<std::uint16_t>(scale), codes, block);
    }
  }
};

std::vector<float> activations(Random& random, std::size_t k) {
  std::vector<float> x(k);
  const int how = random.between(0, 3);
  for (float& value : x) {
    switch (how) {
      case 0: value = static_cast<float>(random.gauss()); break;
      case 1: value = float_of(random.next32() & 0x807FFFFFu); break;  // subnormal
      case 2:
        value = float_of((random.next32() & 0x807FFFFFu) | (static_cast<std::uint32_t>(random.between(1, 230)) << 23));
        break;
      default: value = random.coin() ? 0.0f : static_cast<float>(random.between(-9, 9)); break;
    }
  }
  return x;
}

struct Sums {
  float in_order;    // as the format defines it
  float reversed;    // the same in another order
  float in_float;    // accumulated in fp32
  long double wide;  // in the widest type there is
  long double size;  // sum of magnitudes
};

Sums sums(const std::vector<double>& weights, const std::vector<double>& x) {
  volatile double in_order = 0, reversed = 0;
  volatile float in_float = 0;
  Sums out = {};
  for (std::size_t i = 0; i < x.size(); ++i) {
    volatile double product = weights[i] * x[i];
    volatile double other = weights[x.size() - 1 - i] * x[x.size() - 1 - i];
    in_order = in_order + product;
    reversed = reversed + other;
    in_float = in_float + static_cast<float>(product);
    out.wide += static_cast<long double>(weights[i]) * static_cast<long double>(x[i]);
    out.size += std::fabs(static_cast<long double>(product));
  }
  out.in_order = static_cast<float>(in_order);
  out.reversed = static_cast<float>(reversed);
  out.in_float = in_float;
  return out;
}

bool within_rounding(float y, const Sums& s, std::size_t k) {
  if (std::isinf(y)) return std::fabs(s.wide) > 3.4e38L;
  const long double sum_error = static_cast<long double>(k) * 0x1p-52L * s.size;
  return std::fabs(static_cast<long double>(y) - s.wide) <=
         sum_error + 0x1p-24L * std::fabs(s.wide) * 1.001L + 0x1p-149L;
}

std::vector<double> q8_values(const std::vector<pn::BlockQ8_0>& blocks) {
  std::vector<double> x;
  for (const pn::BlockQ8_0& block : blocks)
    for (const std::int8_t q : block.qs) x.push_back(half_value(block.d[0] + 256u * block.d[1]) * q);
  return x;
}

std::vector<pn::BlockQ8_0> q8_activations(Random& random, std::size_t k) {
  std::vector<pn::BlockQ8_0> blocks(k / 32);
  for (pn::BlockQ8_0& block : blocks) {
    unsigned scale = random.next32() & 0xFFFFu;
    if ((scale & 0x7C00u) == 0x7C00u) scale &= 0x83FFu;
    if (random.coin()) scale = (scale & 0x83FFu) | 0x2400u;
    block.d[0] = static_cast<std::uint8_t>(scale & 0xFFu);
    block.d[1] = static_cast<std::uint8_t>(scale >> 8);
    for (std::int8_t& q : block.qs) q = static_cast<std::int8_t>(random.between(-128, 127));
  }
  return blocks;
}

// Q8_0 written from the facts: d = amax / 127, id = d != 0 ? 1 / d : 0, q = roundf(x * id), all in fp32. Where 1 / d
// is beyond fp32 every code is 0: d is far below fp16's smallest, so the block stands for zeros anyway.
pn::BlockQ8_0 second_q8_0(const float* x) {
  pn::BlockQ8_0 out = {};
  volatile float amax = 0;
  for (int i = 0; i < 32; ++i) amax = std::fmax(amax, std::fabs(x[i]));
  volatile float d = amax / 127.0f;
  volatile float id = d != 0 ? 1.0f / d : 0.0f;
  // d to fp16: the nearest of all, an even one on a tie.
  unsigned best = 0;  // the largest not above d
  for (unsigned step = 0x4000; step != 0; step /= 2)
    if (best + step <= 0x7C00 && half_value(best + step) <= static_cast<double>(d)) best += step;
  if (best < 0x7C00) {
    const double above = best == 0x7BFF ? 65536 : half_value(best + 1);
    const double middle = (half_value(best) + above) / 2;
    if (static_cast<double>(d) > middle || (static_cast<double>(d) == middle && best % 2 == 1)) ++best;
  }
  out.d[0] = static_cast<std::uint8_t>(best & 0xFFu);
  out.d[1] = static_cast<std::uint8_t>(best >> 8);
  if (std::isinf(id)) return out;
  for (int i = 0; i < 32; ++i) {
    volatile float scaled = x[i] * id;
    out.qs[i] = static_cast<std::int8_t>(static_cast<int>(std::round(scaled)));
  }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("dot_f32: double sums in element order, rounded once", "", pn::pn3t, pn::pn4t) {
  Random random(1);
  int order_matters = 0, float_differs = 0;
  for (int i = 0; i < 3000; ++i) {
    Row<TestType> row(random, 1 + random.below(12));
    const std::size_t k = row.weights.size();
    std::vector<float> x = activations(random, k);
    if (i % 3 == 0) {  // the second half takes away the first: what is left is rounding, in the order of the sums
      const std::size_t half = row.blocks.size() / 2;
      for (std::size_t b = 0; b < half; ++b) row.blocks[half + b] = row.blocks[b];
      for (std::size_t e = 0; e < half * TestType::block_size; ++e) {
        row.weights[half * TestType::block_size + e] = row.weights[e];
        x[half * TestType::block_size + e] = -x[e];
      }
    }
    const Sums want = sums(row.weights, std::vector<double>(x.begin(), x.end()));
    float y = 7;
    REQUIRE(pn::dot_f32<TestType>(row.blocks.data(), x.data(), k, &y) == Status::ok);
    if (bits_of(y) != bits_of(want.in_order)) FAIL("row " << i << ": " << y << " not " << want.in_order);
    if (!within_rounding(y, want, k)) FAIL("row " << i << " is far from the exact sum");
    order_matters += bits_of(want.in_order) != bits_of(want.reversed) ? 1 : 0;
    float_differs += bits_of(want.in_order) != bits_of(want.in_float) ? 1 : 0;
  }
  CHECK(order_matters > 100);  // the data can tell
  CHECK(float_differs > 1000);
}

TEMPLATE_TEST_CASE("dot_f32: cancellation shows the order", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  std::uint8_t codes[n];
  std::fill(codes, codes + n, static_cast<std::uint8_t>(TestType::zero_point + 1));
  pn::Block34 block;
  pn::store_block<TestType>(0x3C00, codes, block);  // every weight is 1
  for (std::size_t at = 0; at + 2 < n; ++at) {
    float x[n] = {};
    x[at] = 0x1p60f;
    x[at + 1] = 1;  // lost: 2^60 + 1 is no double
    x[at + 2] = -0x1p60f;
    float y = 7;
    REQUIRE(pn::dot_f32<TestType>(&block, x, n, &y) == Status::ok);
    CHECK(bits_of(y) == 0u);
    std::swap(x[at + 1], x[at + 2]);
    REQUIRE(pn::dot_f32<TestType>(&block, x, n, &y) == Status::ok);
    CHECK(y == 1.0f);
    x[at + 1] = -0x1p60f * (1 - 0x1p-24f);  // 2^36 is left: kept in double as in float
    x[at + 2] = 0x1p-10f;                   // kept in double only until the one rounding
    REQUIRE(pn::dot_f32<TestType>(&block, x, n, &y) == Status::ok);
    CHECK(y == 0x1p36f);
  }
}

TEMPLATE_TEST_CASE("dot_q8_0: double sums in element order, rounded once", "", pn::pn3t, pn::pn4t) {
  Random random(2);
  const std::size_t step = TestType::bits == 3 ? 2 : 1;  // 160 or 64 weights: whole blocks of both formats
  for (int i = 0; i < 3000; ++i) {
    const Row<TestType> row(random, step * (1 + random.below(6)));
    const std::size_t k = row.weights.size();
    const std::vector<pn::BlockQ8_0> x = q8_activations(random, k);
    const Sums want = sums(row.weights, q8_values(x));
    float y = 7;
    REQUIRE(pn::dot_q8_0<TestType>(row.blocks.data(), x.data(), k, &y) == Status::ok);
    if (bits_of(y) != bits_of(want.in_order)) FAIL("row " << i << ": " << y << " not " << want.in_order);
    if (!within_rounding(y, want, k)) FAIL("row " << i << " is far from the exact sum");
  }
}

TEMPLATE_TEST_CASE("dot products: lengths", "", pn::pn3t, pn::pn4t) {
  const std::vector<pn::Block34> row(4);
  const std::vector<float> x(400);
  const std::vector<pn::BlockQ8_0> q(16);
  const std::size_t n = TestType::block_size;
  float y = 7;
  for (const std::size_t k : {std::size_t{1}, n - 1, n + 1, 3 * n - 1, std::size_t{32}}) {
    CHECK(pn::dot_f32<TestType>(row.data(), x.data(), k, &y) == Status::bad_length);
    CHECK(pn::dot_q8_0<TestType>(row.data(), q.data(), k, &y) == Status::bad_length);
  }
  if (n == 80) {  // whole PN blocks, but not whole Q8_0 blocks
    CHECK(pn::dot_q8_0<TestType>(row.data(), q.data(), 80, &y) == Status::bad_length);
    CHECK(pn::dot_q8_0<TestType>(row.data(), q.data(), 240, &y) == Status::bad_length);
  }
  CHECK(y == 7.0f);
  CHECK(pn::dot_f32<TestType>(row.data(), x.data(), 0, &y) == Status::ok);
  CHECK(bits_of(y) == 0u);
  y = 7;
  CHECK(pn::dot_q8_0<TestType>(row.data(), q.data(), 0, &y) == Status::ok);
  CHECK(bits_of(y) == 0u);
}

TEST_CASE("Q8_0: agrees with a second quantizer") {
  Random random(3);
  for (int i = 0; i < 4000; ++i) {
    float x[64];
    const double size = std::ldexp(1 + random.uniform(), random.between(-30, 20));
    for (float& value : x) {
      switch (i % 5) {
        case 0: value = static_cast<float>(size * random.gauss()); break;
        case 1: value = static_cast<float>(random.between(-254, 254)) * 0.5f; break;
        case 2: value = static_cast<float>(size) * static_cast<float>(random.between(-254, 254)); break;
        case 3:
          value =
              float_of((random.next32() & 0x807FFFFFu) | (static_cast<std::uint32_t>(random.between(60, 140)) << 23));
          break;
        default: value = static_cast<float>(size * std::pow(random.gauss(), 5)); break;
      }
    }
    if (i % 5 == 1) x[random.below(32)] = random.coin() ? 127.0f : -127.0f;  // d = 1: halves stay halves
    pn::BlockQ8_0 got[2];
    std::memset(got, 0x5A, sizeof got);
    REQUIRE(pn::quantize_row_q8_0(x, 64, got) == Status::ok);
    for (int b = 0; b < 2; ++b) {
      const pn::BlockQ8_0 want = second_q8_0(x + 32 * b);
      if (std::memcmp(&got[b], &want, 34) != 0) FAIL("block " << b << " of round " << i);
    }
  }
}

TEST_CASE("Q8_0: halves go away from zero, and just below a half does not") {
  float x[32] = {127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 125.5f, -126.5f, 0.49999997f, -0.49999997f, 126.49999f};
  pn::BlockQ8_0 block;
  REQUIRE(pn::quantize_row_q8_0(x, 32, &block) == Status::ok);
  const int want[32] = {127, 1, -1, 2, -2, 3, -3, 126, -127, 0, 0, 126};
  CHECK((block.d[0] == 0x00 && block.d[1] == 0x3C));
  for (int i = 0; i < 32; ++i) CHECK(static_cast<int>(block.qs[i]) == want[i]);
}

TEST_CASE("Q8_0: the product is rounded before it is rounded to a code") {
  // Near a half, x * id rounded to fp32 and x * id kept exact give different codes; the format's is the former. Many
  // such values are tried, so that a fused multiply cannot pass by luck.
  Random random(4);
  int telling = 0;
  for (int i = 0; i < 20000; ++i) {
    float x[32];
    const float amax = static_cast<float>(1 + random.uniform());
    volatile float d = amax / 127.0f;
    volatile float id = 1.0f / d;
    for (float& value : x) {
      value = static_cast<float>((random.between(-120, 120) + 0.5) / static_cast<double>(id));
      volatile float rounded = value * id;
      const double whole = static_cast<double>(value) * static_cast<double>(id);
      telling += std::round(static_cast<double>(rounded)) != std::round(whole) ? 1 : 0;
    }
    x[random.below(32)] = amax;
    pn::BlockQ8_0 got;
    REQUIRE(pn::quantize_row_q8_0(x, 32, &got) == Status::ok);
    const pn::BlockQ8_0 want = second_q8_0(x);
    if (std::memcmp(&got, &want, 34) != 0) FAIL("round " << i);
  }
  CHECK(telling > 1000);
}

TEST_CASE("Q8_0: zeros, the smallest and the largest activations") {
  for (const float amax : {0.0f, 0x1p-149f, 0x1p-140f, 0x1p-126f, 3.7e-37f, 3.75e-37f, 1e-36f, 1e-9f, 3.78e-6f,
                           3.79e-6f, 127 * 65504.0f, 127 * 65519.0f, 127 * 65520.0f, 3.4028235e38f}) {
    INFO("amax " << amax);
    for (const float sign : {1.0f, -1.0f}) {
      float x[32] = {};
      x[3] = sign * amax;
      x[30] = -sign * amax / 2;
      x[31] = -0.0f;
      pn::BlockQ8_0 got;
      REQUIRE(pn::quantize_row_q8_0(x, 32, &got) == Status::ok);
      const pn::BlockQ8_0 want = second_q8_0(x);
      CHECK(std::memcmp(&got, &want, 34) == 0);
    }
  }
}

TEST_CASE("Q8_0: where 1 / d overflows, one step of d decides") {
  const float last = 0x1p-128f;  // the largest d whose inverse is beyond fp32
  for (const auto& [d, code] : {std::pair<float, int>{last, 0}, {last + 0x1p-149f, 127}, {last - 0x1p-149f, 0}}) {
    float x[32] = {};
    x[7] = 127 * d;
    x[8] = -127 * d;
    pn::BlockQ8_0 got;
    REQUIRE(pn::quantize_row_q8_0(x, 32, &got) == Status::ok);
    for (int i = 0; i < 32; ++i) CHECK(static_cast<int>(got.qs[i]) == (i == 7 ? code : i == 8 ? -code : 0));
    CHECK((got.d[0] == 0 && got.d[1] == 0));
  }
}

TEST_CASE("Q8_0: what is not finite is named, nothing is written; lengths") {
  std::vector<float> x(96, 1.0f);
  pn::BlockQ8_0 out[3];
  std::memset(out, 0x5A, sizeof out);
  for (const std::size_t at : {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{95}})
    for (const float bad_value : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
      x[at] = bad_value;
      std::size_t bad = 777;
      CHECK(pn::quantize_row_q8_0(x.data(), 96, out, &bad) == Status::not_finite);
      CHECK(bad == at);
      CHECK(pn::quantize_row_q8_0(x.data(), 96, out) == Status::not_finite);
      x[at] = 1.0f;
    }
  std::size_t bad = 777;
  for (const std::size_t k : {std::size_t{1}, std::size_t{31}, std::size_t{33}, std::size_t{80}})
    CHECK(pn::quantize_row_q8_0(x.data(), k, out, &bad) == Status::bad_length);
  CHECK(pn::quantize_row_q8_0(x.data(), 0, out, &bad) == Status::ok);
  CHECK(bad == 777);
  for (std::size_t i = 0; i < sizeof out; ++i) REQUIRE(reinterpret_cast<const std::uint8_t*>(out)[i] == 0x5A);
}

TEMPLATE_TEST_CASE("dot products: the caller's floating-point environment changes nothing and is not changed", "",
                   pn::pn3t, pn::pn4t) {
  Random random(5);
  for (int i = 0; i < 50; ++i) {
    const Row<TestType> row(random, 4);
    const std::size_t k = row.weights.size();
    std::vector<float> x = activations(random, k);
    for (float& value : x)
      if (random.below(3) == 0) value = float_of(random.next32() & 0x807FFFFFu);
    float want = 0, want_q = 0;
    std::vector<pn::BlockQ8_0> q(k / 32), q_again(k / 32);
    REQUIRE(pn::dot_f32<TestType>(row.blocks.data(), x.data(), k, &want) == Status::ok);
    REQUIRE(pn::quantize_row_q8_0(x.data(), k, q.data()) == Status::ok);
    for (pn::BlockQ8_0& block : q) {  // the scales of random activations may be infinite
      if ((block.d[1] & 0x7Cu) == 0x7Cu) block.d[1] = 0x3C;
    }
    REQUIRE(pn::dot_q8_0<TestType>(row.blocks.data(), q.data(), k, &want_q) == Status::ok);
    std::vector<pn::BlockQ8_0> q_want(k / 32);
    REQUIRE(pn::quantize_row_q8_0(x.data(), k, q_want.data()) == Status::ok);
    for (const environment::Setting& setting : environment::settings()) {
      float y = 7, y_q = 7;
      Status first = Status::bad_length, second = first, third = first;
      const bool kept = environment::run_under(setting, [&] {
        first = pn::dot_f32<TestType>(row.blocks.data(), x.data(), k, &y);
        second = pn::dot_q8_0<TestType>(row.blocks.data(), q.data(), k, &y_q);
        third = pn::quantize_row_q8_0(x.data(), k, q_again.data());
      });
      INFO(setting.name);
      CHECK(kept);
      CHECK((first == Status::ok && second == Status::ok && third == Status::ok));
      CHECK(bits_of(y) == bits_of(want));
      CHECK(bits_of(y_q) == bits_of(want_q));
      CHECK(std::memcmp(q_again.data(), q_want.data(), 34 * q.size()) == 0);
    }
  }
}
