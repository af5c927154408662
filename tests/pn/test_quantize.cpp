// Proves the reference quantizer: byte for byte the same as a second implementation (second_quantizer.hpp) on more
// than 200,000 blocks of every kind that has an edge in it, plain and weighted; every error names its place and
// writes nothing; the caller's floating-point environment neither changes a byte nor is changed.
#include <algorithm>
#include <limits>
#include <pn/decode.hpp>
#include <pn/quantize.hpp>

#include "catch.hpp"
#include "environment.hpp"
#include "second_quantizer.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

template <class T>
constexpr second::Type second_type = T::bits == 3 ? second::pn3t : second::pn4t;

float sign_of(Random& random) { return random.coin() ? 1.0f : -1.0f; }

float steps_from(float value, int steps) {
  for (; steps > 0; --steps) value = std::nextafter(value, HUGE_VALF);
  for (; steps < 0; ++steps) value = std::nextafter(value, -HUGE_VALF);
  return value;
}

// The amax at which something changes, z = 4 or 8. At each: candidate m comes to half of the smallest fp16, or to
// the point where fp16 overflows.
std::vector<float> amax_edges(int z) {
  std::vector<float> edges;
  for (int i = 0; i < 36; ++i) {
    const double m = (50 + 2 * i) / 100.0;
    edges.push_back(static_cast<float>(0x1p-25 * z / m));
    edges.push_back(static_cast<float>(65520.0 * z / m));
    edges.push_back(static_cast<float>(65504.0 * z / m));
  }
  for (const float fixed : {9.934e-8f, 1.987e-7f, 2.384e-7f, 4.768e-7f, 218400.0f, 436800.0f, 524160.0f, 1048320.0f,
                            1e-6f, 6e-8f, 2.9e-8f, 0x1p-149f, 0x1p-126f, 3.3895314e38f, 3.4028235e38f})
    edges.push_back(fixed);
  edges.push_back(65504.0f * static_cast<float>(z));
  return edges;
}

// Weights in [-amax, amax] with amax itself at a random place, positive or negative.
void fill_under(Random& random, float* w, int n, float amax) {
  for (int e = 0; e < n; ++e) w[e] = static_cast<float>((2 * random.uniform() - 1) * static_cast<double>(amax));
  w[random.below(static_cast<std::size_t>(n))] = sign_of(random) * amax;
}

enum Kind {
  gaussian,
  cubed,
  cauchy,
  one_outlier,
  constant,
  subnormal,
  edge_amax,
  halfway,
  tied_scales,
  signed_zeros,
  equal_extremes,
  one_sided,
  from_bf16,
  any_exponent,
  integers,
  near_halfway,
  kinds
};

void make_block(Kind kind, Random& random, int n, int z, float* w) {
  const double size = std::ldexp(1 + random.uniform(), random.between(-14, 8));
  const auto set = [&](int e, double value) { w[e] = static_cast<float>(value); };
  switch (kind) {
    case gaussian:
      for (int e = 0; e < n; ++e) set(e, size * random.gauss());
      break;
    case cubed:
      for (int e = 0; e < n; ++e) set(e, 0.01 * size * std::pow(random.gauss(), 3));
      break;
    case cauchy:
      for (int e = 0; e < n; ++e)
        set(e, 0.01 * size * std::max(-1e4, std::min(1e4, random.gauss() / (random.uniform() + 1e-12))));
      break;
    case one_outlier:
      for (int e = 0; e < n; ++e) set(e, 0.01 * random.gauss());
      set(random.between(0, n - 1), (random.coin() ? 1 : -1) * (random.coin() ? 1000 : 0.1 + size));
      break;
    case constant: {
      const int how = random.between(0, 3);  // all one sign, alternating, one different, two values
      const double second_value = how == 3 ? size * random.uniform() : -size;
      const float sign = sign_of(random);
      for (int e = 0; e < n; ++e)
        set(e, static_cast<double>(sign) * (how != 0 && (e % 2 == 1 || how == 2) ? second_value : size));
      if (how == 2) set(random.between(0, n - 1), size);
      break;
    }
    case subnormal: {
      const int shift = random.between(0, 23);
      for (int e = 0; e < n; ++e)
        w[e] = float_of(((random.next32() & 0x7FFFFFu) >> shift) | (random.next32() & 0x80000000u));
      if (random.coin())
        w[random.below(static_cast<std::size_t>(n))] = sign_of(random) * static_cast<float>(size) * 1e-6f;
      break;
    }
    case edge_amax: {
      const std::vector<float> edges = amax_edges(z);
      const float amax = steps_from(edges[random.below(edges.size())], random.between(-2, 2));
      fill_under(random, w, n, std::isfinite(amax) ? amax : 3.4028235e38f);
      break;
    }
    case halfway:
    case near_halfway: {  // codes exactly between two levels of one of the candidates, or one float step away
      const double amax = size;
      const second::Scale s = second::candidate({0, 0, 0, z}, random.between(0, 35), amax, true);
      for (int e = 0; e < n; ++e) {
        set(e, s.value() * (random.between(-z - 1, z) + 0.5));
        if (std::fabs(static_cast<double>(w[e])) > amax) set(e, 0.5 * s.value());
        if (kind == near_halfway) w[e] = steps_from(w[e], random.between(-1, 1));
      }
      w[random.below(static_cast<std::size_t>(n))] = static_cast<float>(-amax);
      break;
    }
    case tied_scales: {  // everything a small multiple of fp16's smallest: the error sums are small integers
      const int range = random.between(2, 6 * z);
      // Half of the time the rest is noise too small for any code: it adds the same to the error of every scale, but
      // the sums round, so that equal errors come out equal or not by the order of the additions alone.
      const bool noise = random.coin();
      for (int e = 0; e < n; ++e) set(e, noise ? 0x1p-27 * (2 * random.uniform() - 1) : random.coin() ? 0.0 : -0.0);
      for (int i = random.between(1, noise ? n / 4 : 4); i > 0; --i)
        set(random.between(0, n - 1), std::ldexp(random.between(-range, range), -24 - random.between(0, 1)));
      break;
    }
    case signed_zeros:
      for (int e = 0; e < n; ++e) w[e] = random.coin() ? 0.0f : -0.0f;
      for (int i = random.between(0, 3); i > 0; --i) set(random.between(0, n - 1), size * random.gauss());
      break;
    case equal_extremes:
      fill_under(random, w, n, static_cast<float>(size));
      set(0, size);
      set(random.between(1, n - 1), -size);
      if (random.coin()) std::swap(w[0], w[n - 1]);
      break;
    case one_sided: {
      const double sign = random.coin() ? 1 : -1;
      const double least = random.coin() ? 0 : size * random.uniform();
      for (int e = 0; e < n; ++e) set(e, sign * (least + size * std::fabs(random.gauss())));
      break;
    }
    case from_bf16:
      for (int e = 0; e < n; ++e) {
        set(e, 0.02 * random.gauss());
        w[e] = float_of(bits_of(w[e]) & 0xFFFF0000u);
      }
      break;
    case any_exponent:
      for (int e = 0; e < n; ++e)
        w[e] = float_of((random.next32() & 0x807FFFFFu) | (static_cast<std::uint32_t>(random.between(90, 145)) << 23));
      break;
    case integers: {
      const int range = random.between(1, 300);
      for (int e = 0; e < n; ++e) set(e, random.between(-range, range));
      break;
    }
    case kinds: break;
  }
}

struct Agreement {
  int blocks = 0, ties = 0, overflows = 0, zero_blocks = 0;
};

// Quantizes one block both ways, with an output that must stay as it was on an error.
template <class T>
void compare(const float* w, const double* g, Agreement& seen) {
  const second::Encoded want = second::quantize(second_type<T>, w, g);
  pn::Block34 got;
  std::memset(&got, 0xA5, sizeof got);
  const pn::Block34 untouched = got;
  std::size_t bad = 77;
  const Status status = pn::quantize_row<T>(w, g, T::block_size, &got, &bad);
  ++seen.blocks;
  if (want.result == second::Result::overflow) {
    ++seen.overflows;
    if (status != Status::scale_overflow || bad != 0) FAIL("overflow not reported");
    if (std::memcmp(&got, &untouched, sizeof got) != 0) FAIL("written in spite of an overflow");
    return;
  }
  seen.ties += want.distinct_best > 1 ? 1 : 0;
  seen.zero_blocks += want.usable == 0 ? 1 : 0;
  if (status != Status::ok || bad != 77) FAIL("status " << static_cast<int>(status) << " at block " << seen.blocks);
  if (std::memcmp(&got, want.bytes, sizeof got) != 0) {
    std::ostringstream text;
    for (std::size_t e = 0; e < T::block_size; ++e) text << std::hexfloat << w[e] << ' ';
    FAIL("block " << seen.blocks << " differs, d " << std::hex << pn::load_scale(got) << " not "
                  << want.bytes[0] + 256 * want.bytes[1] << ": " << text.str());
  }
}

template <class T>
Agreement compare_kinds(const std::vector<Kind>& which, int blocks_each) {
  Agreement seen;
  for (const Kind kind : which) {
    Random random(1000 + static_cast<std::uint64_t>(kind));
    for (int i = 0; i < blocks_each; ++i) {
      float w[T::block_size];
      make_block(kind, random, static_cast<int>(T::block_size), T::zero_point, w);
      INFO("kind " << kind);
      compare<T>(w, nullptr, seen);
    }
  }
  return seen;
}

constexpr int blocks_each = 6400;  // 16 kinds, two types: 204,800 blocks

}  // namespace

TEMPLATE_TEST_CASE("agrees with a second quantizer: bell curves and heavy tails", "", pn::pn3t, pn::pn4t) {
  CHECK(compare_kinds<TestType>({gaussian, cubed, cauchy, one_outlier}, blocks_each).blocks == 4 * blocks_each);
}

TEMPLATE_TEST_CASE("agrees with a second quantizer: constants, subnormals, edges of amax", "", pn::pn3t, pn::pn4t) {
  const Agreement seen = compare_kinds<TestType>({constant, subnormal, edge_amax, signed_zeros}, blocks_each);
  CHECK(seen.blocks == 4 * blocks_each);
  CHECK(seen.overflows > 50);
  CHECK(seen.zero_blocks > 1000);
}

TEMPLATE_TEST_CASE("agrees with a second quantizer: halfway codes and tied scales", "", pn::pn3t, pn::pn4t) {
  CHECK(compare_kinds<TestType>({halfway, near_halfway, integers}, blocks_each).blocks == 3 * blocks_each);
  const Agreement seen = compare_kinds<TestType>({tied_scales}, blocks_each);
  CHECK(seen.blocks == blocks_each);
  CHECK(seen.ties > 150);  // two different scales with the smallest error: the larger m must win
}

TEMPLATE_TEST_CASE("agrees with a second quantizer: signs, bf16 weights, any exponent", "", pn::pn3t, pn::pn4t) {
  CHECK(compare_kinds<TestType>({equal_extremes, one_sided, from_bf16, any_exponent}, blocks_each).blocks ==
        4 * blocks_each);
}

TEMPLATE_TEST_CASE("the weighted search agrees with a second one", "", pn::pn3t, pn::pn4t) {
  constexpr int n = static_cast<int>(TestType::block_size);
  Random random(7);
  Agreement seen;
  int changed_by_weights = 0;
  for (int i = 0; i < 8000; ++i) {
    float w[TestType::block_size];
    double g[TestType::block_size];
    make_block(static_cast<Kind>(i % kinds), random, n, TestType::zero_point, w);
    const int how = random.between(0, 6);
    for (double& column : g) {
      switch (how) {
        case 0: column = random.uniform(); break;
        case 1: column = random.below(4) == 0 ? random.uniform() * 100 : 0; break;
        case 2: column = std::ldexp(random.uniform(), random.between(-200, 200)); break;
        case 3: column = double_of(random.next() >> 12); break;  // subnormal
        case 4: column = random.coin() ? 1.7e308 : 0.0; break;   // the sums overflow
        case 5: column = std::pow(random.gauss(), 2); break;
        default: column = random.coin() ? 0.0 : -0.0; break;  // nothing matters: unweighted
      }
    }
    if (how == 1 && i % 2 == 0) {  // a single column matters
      std::fill(g, g + n, 0.0);
      g[random.below(TestType::block_size)] = 5e-324;
    }
    compare<TestType>(w, g, seen);
    if (seen.overflows > 0 && second::quantize(second_type<TestType>, w, g).result == second::Result::overflow)
      continue;
    const second::Encoded plain = second::quantize(second_type<TestType>, w, nullptr);
    const second::Encoded weighted = second::quantize(second_type<TestType>, w, g);
    changed_by_weights += std::memcmp(plain.bytes, weighted.bytes, 34) != 0 ? 1 : 0;
  }
  CHECK(changed_by_weights > 1000);
}

TEMPLATE_TEST_CASE("importance that is uniform or all zero is the unweighted search, per block", "", pn::pn3t,
                   pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t blocks = 6;
  Random random(8);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> w(n * blocks);
    for (std::size_t b = 0; b < blocks; ++b)
      make_block(static_cast<Kind>(random.between(gaussian, one_outlier)), random, static_cast<int>(n),
                 TestType::zero_point, w.data() + b * n);
    std::vector<double> g(n * blocks, 1.0);
    pn::Block34 plain[blocks], with[blocks];
    REQUIRE(pn::quantize_row<TestType>(w.data(), w.size(), plain) == Status::ok);
    REQUIRE(pn::quantize_row<TestType>(w.data(), nullptr, w.size(), with) == Status::ok);
    CHECK(std::memcmp(plain, with, sizeof plain) == 0);
    REQUIRE(pn::quantize_row<TestType>(w.data(), g.data(), w.size(), with) == Status::ok);
    CHECK(std::memcmp(plain, with, sizeof plain) == 0);
    // Zero in the odd blocks only; in the even ones random.
    for (std::size_t c = 0; c < g.size(); ++c) g[c] = (c / n) % 2 == 1 ? 0.0 : random.uniform() * random.uniform();
    REQUIRE(pn::quantize_row<TestType>(w.data(), g.data(), w.size(), with) == Status::ok);
    for (std::size_t b = 0; b < blocks; ++b) {
      const second::Encoded want = second::quantize(second_type<TestType>, w.data() + b * n, g.data() + b * n);
      CHECK(std::memcmp(&with[b], want.bytes, 34) == 0);
      if (b % 2 == 1) CHECK(std::memcmp(&with[b], &plain[b], 34) == 0);
    }
  }
}

TEMPLATE_TEST_CASE("a block of zeros is the canonical zero block", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  std::uint8_t codes[n];
  std::fill(codes, codes + n, static_cast<std::uint8_t>(TestType::zero_point));
  pn::Block34 zero;
  pn::store_block<TestType>(0x0000, codes, zero);
  // Weights too small for any scale are zeros too.
  for (const float value : {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 2.9e-8f, -6e-8f}) {
    float w[n];
    std::fill(w, w + n, value);
    pn::Block34 got;
    std::memset(&got, 0xFF, sizeof got);
    CHECK(pn::quantize_block<TestType>(w, got) == Status::ok);
    CHECK(std::memcmp(&got, &zero, sizeof got) == 0);
    w[3] = 0.0f;
    w[n - 1] = -0.0f;
    CHECK(pn::quantize_block<TestType>(w, got) == Status::ok);
    CHECK(std::memcmp(&got, &zero, sizeof got) == 0);
  }
}

TEMPLATE_TEST_CASE("the edges of amax are where the format says", "", pn::pn3t, pn::pn4t) {
  constexpr int z = TestType::zero_point;
  constexpr bool three = TestType::bits == 3;
  const second::Type type = second_type<TestType>;
  // The smallest float at which a statement about candidates becomes true.
  const auto first_float = [](auto&& is_true) {
    std::uint32_t low = 0, high = 0x7F7FFFFF;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (is_true(float_of(middle)))
        high = middle;
      else
        low = middle + 1;
    }
    return float_of(low);
  };
  const auto is_zero = [&](int i, float amax) {
    return second::candidate(type, i, static_cast<double>(amax), true).mantissa == 0;
  };
  const auto overflows = [&](int i, float amax) {
    return second::candidate(type, i, static_cast<double>(amax), true).infinite;
  };
  const float any_survives = first_float([&](float amax) { return !is_zero(35, amax); });
  const float all_survive = first_float([&](float amax) { return !is_zero(0, amax); });
  const float first_overflow = first_float([&](float amax) { return overflows(35, amax); });
  const float all_overflow = first_float([&](float amax) { return overflows(0, amax); });
  CHECK(std::fabs(any_survives - (three ? 9.934e-8f : 1.987e-7f)) < 1e-10f);
  CHECK(std::fabs(all_survive - (three ? 2.384e-7f : 4.768e-7f)) < 1e-10f);
  CHECK(std::fabs(first_overflow - (three ? 218400.0f : 436800.0f)) < 0.05f);
  CHECK(all_overflow == (three ? 524160.0f : 1048320.0f));

  Random random(9);
  Agreement seen;
  for (const float edge : {any_survives, all_survive, first_overflow, all_overflow, 65504.0f * z, 1e-6f, 6e-8f, 2.9e-8f,
                           float_of(0x7F7F0000)})
    for (int step = -1; step <= 1; ++step)
      for (int i = 0; i < 40; ++i) {
        float w[TestType::block_size] = {};
        const float amax = steps_from(edge, step);
        if (i >= 4) fill_under(random, w, static_cast<int>(TestType::block_size), amax);
        if (i < 2) w[i * 5] = i == 0 ? amax : -amax;
        if (i == 2 || i == 3) std::fill(std::begin(w), std::end(w), i == 2 ? amax : -amax);
        compare<TestType>(w, nullptr, seen);
      }
  CHECK(seen.overflows == 5 * 40);

  // Exactly representable: amax = 65504 * z is code 0 of d = +-65504.
  float w[TestType::block_size] = {};
  w[17] = 65504.0f * z;
  pn::Block34 block;
  REQUIRE(pn::quantize_block<TestType>(w, block) == Status::ok);
  CHECK(pn::load_scale(block) == 0xFBFF);
  CHECK(pn::load_code<TestType>(block, 17) == 0);
  w[17] = -w[17];
  REQUIRE(pn::quantize_block<TestType>(w, block) == Status::ok);
  CHECK(pn::load_scale(block) == 0x7BFF);
  CHECK(pn::decode_element<TestType>(block, 17) == w[17]);
}

TEMPLATE_TEST_CASE("a row is its blocks, at any address; lengths", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  Random random(10);
  constexpr std::size_t blocks = 5;
  std::vector<float> w(n * blocks);
  for (std::size_t b = 0; b < blocks; ++b)
    make_block(static_cast<Kind>(b), random, static_cast<int>(n), TestType::zero_point, w.data() + b * n);
  for (std::size_t offset = 0; offset < 4; ++offset) {
    std::vector<std::uint8_t> storage(34 * (blocks + 2), 0x5A);
    auto* row = reinterpret_cast<pn::Block34*>(storage.data() + offset);
    REQUIRE(pn::quantize_row<TestType>(w.data(), w.size(), row) == Status::ok);
    for (std::size_t b = 0; b < blocks; ++b) {
      pn::Block34 alone;
      REQUIRE(pn::quantize_block<TestType>(w.data() + b * n, alone) == Status::ok);
      CHECK(std::memcmp(&alone, storage.data() + offset + 34 * b, 34) == 0);
      const second::Encoded want = second::quantize(second_type<TestType>, w.data() + b * n, nullptr);
      CHECK(std::memcmp(&alone, want.bytes, 34) == 0);
    }
    CHECK(std::count(storage.begin() + static_cast<std::ptrdiff_t>(offset + 34 * blocks), storage.end(), 0x5A) ==
          static_cast<std::ptrdiff_t>(68 - offset));
  }

  pn::Block34 out[2];
  std::memset(out, 0x5A, sizeof out);
  std::size_t bad = 77;
  for (const std::size_t k : {std::size_t{1}, n - 1, n + 1, 2 * n - 1})
    CHECK(pn::quantize_row<TestType>(w.data(), k, out, &bad) == Status::bad_length);
  if (n == 80) {
    for (const std::size_t k : {std::size_t{288}, std::size_t{128}})
      CHECK(pn::quantize_row<TestType>(w.data(), k, out, &bad) == Status::bad_length);
  }
  CHECK(pn::quantize_row<TestType>(w.data(), 0, out, &bad) == Status::ok);
  CHECK(pn::quantize_row<TestType>(nullptr, 0, nullptr) == Status::ok);
  CHECK(bad == 77);
  for (const pn::Block34& block : out)
    for (const std::uint8_t byte : block.qs) REQUIRE(byte == 0x5A);
}

TEMPLATE_TEST_CASE("what is not finite is named, and nothing is written for the row", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t k = 3 * n;
  Random random(11);
  std::vector<float> w(k);
  for (float& value : w) value = static_cast<float>(random.gauss());
  pn::Block34 out[3];
  const auto expect = [&](Status want, std::size_t where, const double* g = nullptr) {
    std::memset(out, 0x5A, sizeof out);
    std::size_t bad = 7777;
    CHECK(pn::quantize_row<TestType>(w.data(), g, k, out, &bad) == want);
    CHECK(bad == where);
    CHECK(pn::quantize_row<TestType>(w.data(), g, k, out) == want);  // `bad` is optional
    for (std::size_t i = 0; i < sizeof out; ++i) REQUIRE(reinterpret_cast<const std::uint8_t*>(out)[i] == 0x5A);
  };
  const std::uint32_t not_finite[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF};
  for (std::size_t at = 0; at < k; at += at < 3 || at > k - 5 ? 1 : 7)
    for (const std::uint32_t bits : not_finite) {
      const float before = w[at];
      std::memcpy(&w[at], &bits, sizeof bits);
      expect(Status::not_finite, at);
      w[at] = before;
    }
  {  // the first of several, whatever comes later
    const std::vector<float> before = w;
    w[k - 1] = HUGE_VALF;
    w[n + 1] = std::numeric_limits<float>::quiet_NaN();
    expect(Status::not_finite, n + 1);
    w[n - 1] = -HUGE_VALF;
    expect(Status::not_finite, n - 1);
    w = before;
  }
  for (std::size_t block = 0; block < 3; ++block) {  // too large for any scale: the block's first element is named
    const float before = w[block * n + 5];
    w[block * n + 5] = -3e38f;
    expect(Status::scale_overflow, block * n);
    w[block * n + 5] = before;
  }
  std::vector<double> g(k, 1.0);
  const double bad_importance[] = {-1.0, -5e-324, HUGE_VAL, -HUGE_VAL, std::numeric_limits<double>::quiet_NaN()};
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, n - 1, n, k - 1})
    for (const double bad : bad_importance) {
      g[at] = bad;
      expect(Status::bad_importance, at, g.data());
      w[k - 1] = HUGE_VALF;
      expect(at == k - 1 ? Status::not_finite : Status::bad_importance, at, g.data());
      w[k - 1] = 1.0f;
      g[at] = 1.0;
    }
  w[2] = HUGE_VALF;
  g[3] = -1;
  expect(Status::not_finite, 2, g.data());

  pn::Block34 block;
  std::memset(&block, 0x5A, sizeof block);
  std::size_t bad = 7777;
  CHECK(pn::quantize_block<TestType>(w.data(), block, &bad) == Status::not_finite);
  CHECK(bad == 2);
  CHECK(block.d[0] == 0x5A);
}

TEMPLATE_TEST_CASE("quantizing: the caller's floating-point environment changes nothing and is not changed", "",
                   pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t blocks = 20 * kinds;
  Random random(12);
  std::vector<float> w(blocks * n);
  std::vector<double> g(blocks * n);
  for (std::size_t b = 0; b < blocks; ++b) {
    make_block(static_cast<Kind>(b % kinds), random, static_cast<int>(n), TestType::zero_point, w.data() + b * n);
    for (std::size_t e = 0; e < n; ++e) {
      // No block may overflow here, since that would stop the row.
      if (std::fabs(w[b * n + e]) > 1e5f) w[b * n + e] = 1.0f;
      g[b * n + e] = e % 5 == 0 ? double_of(random.next() >> 14) : random.uniform();
    }
  }
  std::vector<pn::Block34> want(blocks), want_weighted(blocks);
  REQUIRE(pn::quantize_row<TestType>(w.data(), w.size(), want.data()) == Status::ok);
  REQUIRE(pn::quantize_row<TestType>(w.data(), g.data(), w.size(), want_weighted.data()) == Status::ok);
  for (const environment::Setting& setting : environment::settings()) {
    std::vector<pn::Block34> got(blocks), got_weighted(blocks);
    Status plain = Status::ok, weighted = Status::ok, refused = Status::ok;
    const bool kept = environment::run_under(setting, [&] {
      plain = pn::quantize_row<TestType>(w.data(), w.size(), got.data());
      weighted = pn::quantize_row<TestType>(w.data(), g.data(), w.size(), got_weighted.data());
      pn::Block34 unused;
      const float bad[n] = {HUGE_VALF};
      refused = pn::quantize_block<TestType>(bad, unused);
    });
    INFO(setting.name);
    CHECK(kept);
    CHECK(plain == Status::ok);
    CHECK(weighted == Status::ok);
    CHECK(refused == Status::not_finite);
    CHECK(std::memcmp(got.data(), want.data(), 34 * blocks) == 0);
    CHECK(std::memcmp(got_weighted.data(), want_weighted.data(), 34 * blocks) == 0);
  }
}
