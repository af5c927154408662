// Proves that quantize_rows gives the bytes, the status and the place of a fault that pn::quantize_row gives: random
// blocks made to be hard, rows at any address and stride, every kind of fault.
#include "random_blocks.hpp"

using namespace testing;

TEMPLATE_TEST_CASE("quantize_rows: 100,000 random blocks become the bytes of the core", "", pn::pn3t, pn::pn4t) {
  const RandomRun run(TestType::name, 20260101, 50000);  // both types together
  Failures failures;
  Met met;
  for (std::uint64_t piece = 0; piece < run.pieces; ++piece) quantize_piece<TestType>(run, piece, failures, met);
  INFO(failures.text());
  CHECK(failures.empty());
  CHECK(met.good > met.refused);
  CHECK(met.refused > 0);
  CHECK(met.special > 0);  // zero blocks
}

TEMPLATE_TEST_CASE("quantize_rows: any address, any stride, any number of rows", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  Random random(31);
  for (const std::size_t blocks : {0u, 1u, 2u, 3u})
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 7u})
      for (std::size_t shift = 0; shift < 64; shift += 1 + random.below(7)) {
        const std::size_t k = blocks * n;
        const Element element = elements[random.below(3)];
        const std::size_t gap = random.below(3) == 0 ? 0 : random.below(40);
        const Fenced in(rows, k * element_bytes(element), k * element_bytes(element) + gap, At::end, shift);
        std::vector<float> w(k);
        std::vector<Block34> want(rows * blocks);
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t b = 0; b < blocks; ++b)
            random_block(random, Recipe::trained, static_cast<int>(n), TestType::zero_point, &w[b * n]);
          for (std::size_t e = 0; e < k; ++e) {
            const std::uint32_t bits = bits_as(element, w[e]);
            store_bits(in.row(r), element, e, bits);
            w[e] = value_of(element, bits);
          }
          REQUIRE(pn::quantize_row<TestType>(w.data(), k, want.data() + r * blocks) == Status::ok);
        }
        for_each_isa([&](Isa isa) {
          const std::size_t out_gap = random.below(2) * random.below(70);
          const Fenced out(rows, blocks * 34, blocks * 34 + out_gap, At::begin, (shift * 5 + 1) % 64);
          REQUIRE(pn::cpu::quantize_rows<TestType>(in.data(), element, in.stride(), rows, k, nullptr, out.data(),
                                                   out.stride(), nullptr, isa) == Status::ok);
          for (std::size_t r = 0; r < rows; ++r)
            if (blocks > 0 && std::memcmp(out.row(r), &want[r * blocks], blocks * 34) != 0) FAIL("row " << r);
          REQUIRE(out.intact());
          REQUIRE(in.intact());
        });
      }
}

TEMPLATE_TEST_CASE("quantize_rows: a fault names its row and element, and rows before it are written", "", pn::pn3t,
                   pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t blocks = 5, rows = 4, k = blocks * n;
  Random random(32);
  for (int i = 0; i < 400; ++i) {
    const Element element = elements[i % 3];
    const std::size_t bytes = element_bytes(element);
    std::vector<float> w(rows * k);
    for (float& value : w) value = value_of(element, bits_as(element, static_cast<float>(random.gauss())));
    std::vector<double> g(k, 1.0);
    for (int faults = random.between(1, 3); faults > 0; --faults) {
      float& at = w[random.below(rows * k)];
      switch (random.below(element == Element::f16 ? 3 : 4)) {
        case 0: at = std::nanf(""); break;
        case 1: at = -HUGE_VALF; break;
        case 2:
          if (random.coin()) g[random.below(k)] = random.coin() ? -5e-324 : std::nan("");
          at = HUGE_VALF;
          break;
        default: at = 0x1p21f; break;
      }
    }
    const double* importance = random.coin() ? g.data() : nullptr;
    std::vector<std::uint8_t> in(rows * k * bytes);
    for (std::size_t e = 0; e < w.size(); ++e) store_bits(in.data(), element, e, bits_as(element, w[e]));

    std::vector<Block34> want(rows * blocks);
    Status want_status = Status::ok;
    Fault want_fault = {77, 77};
    for (std::size_t r = 0; r < rows && want_status == Status::ok; ++r) {
      want_status = pn::quantize_row<TestType>(&w[r * k], importance, k, &want[r * blocks], &want_fault.index);
      want_fault.row = r;
    }
    REQUIRE(want_status != Status::ok);
    for_each_isa([&](Isa isa) {
      const Fenced out(rows, blocks * 34, blocks * 34, At::end);
      Fault fault = {77, 77};
      CHECK(pn::cpu::quantize_rows<TestType>(in.data(), element, k * bytes, rows, k, importance, out.data(),
                                             out.stride(), &fault, isa) == want_status);
      CHECK(fault.row == want_fault.row);
      CHECK(fault.index == want_fault.index);
      for (std::size_t r = 0; r < want_fault.row; ++r)
        CHECK(std::memcmp(out.row(r), &want[r * blocks], blocks * 34) == 0);
      CHECK(out.intact());
      CHECK(pn::cpu::quantize_rows<TestType>(in.data(), element, k * bytes, rows, k, importance, out.data(),
                                             out.stride(), nullptr, isa) == want_status);
    });
  }
}

TEMPLATE_TEST_CASE("quantize_rows: importances of which none is one", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  const std::vector<float> w(2 * n, 1.0f);
  for (const double bad : {-1.0, -5e-324, HUGE_VAL, std::nan("")}) {
    const std::vector<double> g(2 * n, bad);
    for_each_isa([&](Isa isa) {
      const Fenced out(68);
      Fault fault = {77, 77};
      CHECK(pn::cpu::quantize_rows<TestType>(w.data(), Element::f32, 0, 1, 2 * n, g.data(), out.data(), 0, &fault,
                                             isa) == Status::bad_importance);
      CHECK(fault.row == 0);
      CHECK(fault.index == 0);
      CHECK(out.intact());
    });
  }
}

TEMPLATE_TEST_CASE("quantize_rows: a length that is not a multiple of the block is refused", "", pn::pn3t, pn::pn4t) {
  const std::vector<float> w(400, 1.0f);
  for_each_isa([&](Isa isa) {
    for (const std::size_t k : {std::size_t{1}, TestType::block_size - 1, TestType::block_size + 16}) {
      const Fenced out(340);
      CHECK(pn::cpu::quantize_rows<TestType>(w.data(), Element::f32, 0, 1, k, nullptr, out.data(), 0, nullptr, isa) ==
            Status::bad_length);
      CHECK(out.untouched());
    }
  });
}

TEMPLATE_TEST_CASE("quantize_rows: the column's importance is the same for all rows", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t blocks = 4, rows = 5, k = blocks * n;
  Random random(33);
  for (int i = 0; i < 50; ++i) {
    std::vector<float> w(rows * k);
    std::vector<double> g(k);
    for (std::size_t b = 0; b < rows * blocks; ++b)
      random_block(random, Recipe::integers, static_cast<int>(n), TestType::zero_point, &w[b * n]);
    for (std::size_t b = 0; b < blocks; ++b) random_importance(random, static_cast<int>(n), &w[b * n], &g[b * n]);
    std::vector<Block34> want(rows * blocks), got(rows * blocks);
    for (std::size_t r = 0; r < rows; ++r)
      REQUIRE(pn::quantize_row<TestType>(&w[r * k], g.data(), k, &want[r * blocks]) == Status::ok);
    for_each_isa([&](Isa isa) {
      REQUIRE(pn::cpu::quantize_rows<TestType>(w.data(), Element::f32, 4 * k, rows, k, g.data(), got.data(),
                                               34 * blocks, nullptr, isa) == Status::ok);
      CHECK(std::memcmp(got.data(), want.data(), 34 * want.size()) == 0);
    });
  }
}

TEMPLATE_TEST_CASE("quantize_rows: Isa::best gives the same bytes", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t k = 8 * TestType::block_size;
  Random random(34);
  std::vector<float> w(k);
  for (float& value : w) value = static_cast<float>(random.gauss());
  Block34 want[8], got[8];
  REQUIRE(pn::quantize_row<TestType>(w.data(), k, want) == Status::ok);
  REQUIRE(pn::cpu::quantize_rows<TestType>(w.data(), Element::f32, 0, 1, k, nullptr, got, 0) == Status::ok);
  CHECK(std::memcmp(want, got, sizeof want) == 0);
}

TEMPLATE_TEST_CASE("quantize_rows: what weighs most has no error, and the rest is near fp32's smallest numbers", "",
                   pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size, blocks = 2000, k = n * blocks;
  Random random(35);
  std::vector<float> w(k);
  std::vector<double> g(k);
  for (std::size_t b = 0; b < blocks; ++b) {
    random_block(random, b % 2 == 0 ? Recipe::trained : Recipe::one_sided, static_cast<int>(n), TestType::zero_point,
                 &w[b * n]);
    double square = 0;
    for (std::size_t e = 0; e < n; ++e) square = std::max(square, std::pow(static_cast<double>(w[b * n + e]), 2));
    const double level = std::ldexp(1 / square, random.between(-150, -80));
    for (std::size_t e = 0; e < n; ++e) g[b * n + e] = level * (1 + random.uniform());
    w[b * n + random.below(n)] = 0;
    for (std::size_t e = 0; e < n; ++e)
      if (w[b * n + e] == 0) g[b * n + e] = 1;
  }
  std::vector<Block34> want(blocks), got(blocks);
  REQUIRE(pn::quantize_row<TestType>(w.data(), g.data(), k, want.data()) == Status::ok);
  for_each_isa([&](Isa isa) {
    REQUIRE(pn::cpu::quantize_rows<TestType>(w.data(), Element::f32, 0, 1, k, g.data(), got.data(), 0, nullptr, isa) ==
            Status::ok);
    for (std::size_t b = 0; b < blocks; ++b)
      if (std::memcmp(&got[b], &want[b], 34) != 0) FAIL("block " << b);
  });
}
