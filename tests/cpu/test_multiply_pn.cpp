// Proves that PN blocks are multiplied with all three kinds of activations within the bounds that pn/cpu.hpp states,
// that every code meets the activation of its own element, and that q8_0 rounds as pn::quantize_row_q8_0 does.
#include <map>

#include "testing.hpp"

using namespace testing;

namespace {

constexpr double unit = 0x1p-24;

// The largest errors measured, to be quoted.
struct Largest {
  double summing = 0;   // |y - exact for the rounded x| / sum of |w * x|
  double rounding = 0;  // |rounded x - x| / largest |x| of the block or of the 32
  double both = 0;      // |y - exact for x itself| / sum of |w * x| of x itself
};
std::map<std::string, Largest>& measured() {
  static std::map<std::string, Largest> all;
  return all;
}
void tell_measured() {
  for (const auto& entry : measured()) {
    const Largest& largest = entry.second;
    if (largest.summing > 0)
      WARN(entry.first << ": summing is off by at most " << largest.summing
                       << " of sum |w * x|, with the rounding of x by " << largest.both);
    if (largest.rounding > 0)
      WARN(entry.first << ": x is rounded by at most " << largest.rounding << " of the largest |x|");
  }
}

template <class T>
struct Matrix {
  std::size_t rows, k;
  Fenced blocks;
  std::vector<float> weights;

  Matrix(std::size_t row_count, std::size_t columns)
      : rows(row_count),
        k(columns),
        blocks(rows, k / T::block_size * 34, k / T::block_size * 34 + 7, At::end),
        weights(rows * k) {}
  void set(std::size_t r, std::size_t b, const Block34& block) {
    std::memcpy(blocks.row(r) + 34 * b, &block, 34);
    pn::decode_block<T>(block, &weights[r * k + b * T::block_size]);
  }
  std::size_t block_count() const { return k / T::block_size; }
};

// Every weight is 0, but for those of `element`, which is 1.
template <class T>
Block34 only(std::size_t element) {
  std::uint8_t codes[T::block_size];
  std::fill(codes, codes + T::block_size, static_cast<std::uint8_t>(T::zero_point));
  codes[element] = static_cast<std::uint8_t>(T::zero_point + 1);
  Block34 block;
  pn::store_block<T>(0x3C00, codes, block);
  return block;
}

// What k activations are rounded to. q8_0: from the core. i16: each block's elements are asked for one by one, by
// multiplying with a weight of 1; that answer is rounded to fp32 once or twice.
template <class T>
std::vector<double> rounded(Activations kind, const float* x, std::size_t k, Isa isa) {
  std::vector<double> out(x, x + k);
  if (kind == Activations::q8_0) {
    std::vector<pn::BlockQ8_0> q8(k / 32);
    REQUIRE(pn::quantize_row_q8_0(x, k, q8.data()) == Status::ok);
    for (std::size_t e = 0; e < k; ++e) {
      const pn::BlockQ8_0& block = q8[e / 32];
      out[e] = half_value(pn::detail::load_le16(block.d)) * block.qs[e % 32];
    }
  } else if (kind == Activations::i16) {
    constexpr std::size_t n = T::block_size;
    std::vector<Block34> ones(n);
    for (std::size_t e = 0; e < n; ++e) ones[e] = only<T>(e);
    for (std::size_t start = 0; start < k; start += n) {
      const Prepared<T> prepared(kind, x + start, 0, 1, n, isa);
      float y[n];
      REQUIRE(pn::cpu::multiply<T>(ones.data(), 34, n, n, prepared.data(), y, 0) == Status::ok);
      std::copy(y, y + n, out.begin() + static_cast<std::ptrdiff_t>(start));
    }
  }
  return out;
}

// Multiplies, and holds every result against the stated bound.
template <class T>
void check(const Matrix<T>& matrix, const std::vector<float>& x, std::size_t tokens, Activations kind, Isa isa) {
  const std::size_t k = matrix.k;
  const Prepared<T> prepared(kind, x.data(), 4 * k, tokens, k, isa);
  const Fenced y(tokens, 4 * matrix.rows, 4 * matrix.rows + 20, At::end);
  REQUIRE(pn::cpu::multiply<T>(matrix.blocks.data(), matrix.blocks.stride(), matrix.rows, k, prepared.data(),
                               y.floats(), y.stride()) == Status::ok);
  REQUIRE(y.intact());
  Largest& largest = measured()[name_of(kind)];
  // Two more for i16: how well `rounded` knows what x was rounded to.
  const double bound = (static_cast<double>(k) / 16 + 64 + (kind == Activations::i16 ? 2 : 0)) * unit;
  for (std::size_t m = 0; m < tokens; ++m) {
    const std::vector<double> used = rounded<T>(kind, &x[m * k], k, isa);
    for (std::size_t n = 0; n < matrix.rows; ++n) {
      double exact = 0, sum = 0, unrounded = 0, unrounded_sum = 0;
      for (std::size_t e = 0; e < k; ++e) {
        const double w = static_cast<double>(matrix.weights[n * k + e]);
        exact += w * used[e];
        sum += std::fabs(w * used[e]);
        unrounded += w * static_cast<double>(x[m * k + e]);
        unrounded_sum += std::fabs(w * static_cast<double>(x[m * k + e]));
      }
      const double error = std::fabs(static_cast<double>(y.value(m, n)) - exact);
      if (!(error <= bound * sum))
        FAIL(name_of(kind) << " k " << k << " token " << m << " of " << tokens << " row " << n << ": " << y.value(m, n)
                           << ", not " << exact << "; error / bound " << error / (bound * sum));
      if (sum == 0) continue;
      largest.summing = std::max(largest.summing, error / sum);
      largest.both = std::max(largest.both, std::fabs(static_cast<double>(y.value(m, n)) - unrounded) / unrounded_sum);
    }
  }
}

template <class T>
std::vector<std::size_t> lengths(Activations kind) {
  std::vector<std::size_t> list;
  for (const std::size_t k : {64u, 80u, 128u, 160u, 240u, 256u, 320u, 1280u, 5120u})
    if (k % T::block_size == 0 && (kind != Activations::q8_0 || k % 32 == 0)) list.push_back(k);
  return list;
}

}  // namespace

TEMPLATE_TEST_CASE("PN multiply: results lie within the stated bound of the exact sum", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  for (const Activations kind : activation_kinds)
    for (const std::size_t k : lengths<T>(kind)) {
      Random random(71 + k);
      const std::size_t rows = k > 1000 ? 5 : 9;
      Matrix<T> matrix(rows, k);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t b = 0; b < matrix.block_count(); ++b)
          matrix.set(r, b, block_with<T>(random, random_scale(random, 4, 12)));
      for (const std::size_t tokens : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 16u}) {
        if (k > 1000 && tokens > 3) continue;
        const std::vector<float> x = random_activations(random, tokens * k);
        for_each_isa([&](Isa isa) { check(matrix, x, tokens, kind, isa); });
      }
    }
  tell_measured();
}

TEMPLATE_TEST_CASE("PN multiply: the bound holds where sizes differ wildly and where nearly all weights are 0", "",
                   pn::pn3t, pn::pn4t) {
  using T = TestType;
  Random random(72);
  for (const Activations kind : activation_kinds)
    for (int i = 0; i < 12; ++i) {
      constexpr std::size_t k = 320;
      Matrix<T> matrix(7, k);
      std::vector<float> x = random_activations(random, 2 * k);
      for (std::size_t e = 0; e < x.size(); ++e)
        x[e] *= std::ldexp(1.0f, i % 3 == 0 ? random.between(-10, 10) : static_cast<int>(e / 32 % 10) * 2 - 9);
      for (std::size_t r = 0; r < 7; ++r)
        for (std::size_t b = 0; b < matrix.block_count(); ++b) {
          // Rows of nothing but code z, which must give exactly 0; rows in which large x meet code z; extremes.
          std::uint8_t codes[T::block_size];
          for (std::size_t e = 0; e < T::block_size; ++e) {
            const bool large = std::fabs(x[b * T::block_size + e]) > 0x1p-2f;
            const int any = random.between(0, T::max_code);
            codes[e] = static_cast<std::uint8_t>(r == 0 || (r < 4 && large) ? T::zero_point
                                                 : r == 4                   ? 0
                                                 : r == 5                   ? T::max_code
                                                                            : any);
          }
          Block34 block;
          pn::store_block<T>(static_cast<std::uint16_t>(random_scale(random, 0, 30)), codes, block);
          matrix.set(r, b, block);
        }
      for_each_isa([&](Isa isa) { check(matrix, x, 2, kind, isa); });
    }
}

TEMPLATE_TEST_CASE("PN multiply: the largest codes and activations all along a long row", "", pn::pn3t, pn::pn4t) {
  // Integer sums are at their largest: nothing may overflow.
  using T = TestType;
  constexpr std::size_t k = 5120;
  Matrix<T> matrix(4, k);
  Random random(73);
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t b = 0; b < matrix.block_count(); ++b) {
      std::uint8_t codes[T::block_size];
      for (std::size_t e = 0; e < T::block_size; ++e)
        codes[e] = static_cast<std::uint8_t>(r == 0   ? 0
                                             : r == 1 ? T::max_code
                                             : r == 2 ? (e % 2) * T::max_code
                                                      : T::zero_point);
      Block34 block;
      pn::store_block<T>(0x3C00, codes, block);
      matrix.set(r, b, block);
    }
  std::vector<float> x(4 * k);
  for (std::size_t e = 0; e < k; ++e) {
    x[e] = 1.0f;
    x[k + e] = -1.0f;
    x[2 * k + e] = e % 2 == 0 ? 1.0f : -1.0f;
    x[3 * k + e] = random.coin() ? 1.0f : -1.0f;
  }
  for (const Activations kind : activation_kinds) for_each_isa([&](Isa isa) { check(matrix, x, 4, kind, isa); });
}

TEMPLATE_TEST_CASE("PN multiply: every code meets the activation of its own element", "", pn::pn3t, pn::pn4t) {
  // A single activation that is not 0 gives back one weight. Codes shifted by element instead of pair, or halves of a
  // word exchanged, give another one.
  using T = TestType;
  constexpr std::size_t n = T::block_size, blocks = 4, k = n * blocks, rows = 8;
  Random random(74);
  Matrix<T> matrix(rows, k);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t b = 0; b < blocks; ++b) matrix.set(r, b, block_with<T>(random, 0x3C00));
  for (const Activations kind : activation_kinds)
    for_each_isa([&](Isa isa) {
      std::vector<float> x(k);
      for (std::size_t e = 0; e < k; ++e) {
        x[e] = 1.0f;
        const Prepared<T> prepared(kind, x.data(), 0, 1, k, isa);
        x[e] = 0.0f;
        float y[rows];
        REQUIRE(pn::cpu::multiply<T>(matrix.blocks.data(), matrix.blocks.stride(), rows, k, prepared.data(), y, 0) ==
                Status::ok);
        for (std::size_t r = 0; r < rows; ++r) {
          const float weight = matrix.weights[r * k + e];
          const float slack = kind == Activations::f32 ? 0.0f : 0.01f;
          if (!(std::fabs(y[r] - weight) <= slack))
            FAIL(name_of(kind) << " row " << r << " element " << e << ": " << y[r] << ", not " << weight);
        }
      }
    });
}

TEMPLATE_TEST_CASE("PN multiply: activations are rounded as little as stated", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  Random random(75);
  for (int i = 0; i < 60; ++i) {
    constexpr std::size_t k = 320, n = T::block_size;
    // Scales must be normal numbers: the largest of a group is kept above 2^-6.
    std::vector<float> x = random_activations(random, k);
    const float size = std::ldexp(1.0f, random.between(0, 12));
    for (float& value : x) value *= size;
    if (i % 2 == 0)  // halfway between two steps
      for (std::size_t e = 0; e < k; ++e) {
        const double steps = i % 4 == 0 ? 32767 : 127;
        x[e] = e % 16 == 0 ? size
                           : static_cast<float>((random.between(-126, 126) + 0.5) / steps * static_cast<double>(size));
      }
    for_each_isa([&](Isa isa) {
      for (const Activations kind : {Activations::i16, Activations::q8_0}) {
        const std::size_t group = kind == Activations::i16 ? n : 32;
        const std::vector<double> used = rounded<T>(kind, x.data(), k, isa);
        for (std::size_t e = 0; e < k; ++e) {
          const auto* first = &x[e / group * group];
          float largest = 0;
          for (std::size_t j = 0; j < group; ++j) largest = std::max(largest, std::fabs(first[j]));
          const double error = std::fabs(used[e] - static_cast<double>(x[e])) / static_cast<double>(largest);
          // i16: 0.5 / 32767 for the step, and a little for the fp32 scale.
          const double bound = kind == Activations::i16 ? 1.0 / 65000 : 1.0 / 254 + 0x1p-11;
          if (!(error <= bound)) FAIL(name_of(kind) << " element " << e << ": " << error / bound << " of the bound");
          Largest& all = measured()[name_of(kind)];
          all.rounding = std::max(all.rounding, error);
        }
      }
    });
  }
  tell_measured();
}

TEMPLATE_TEST_CASE("PN multiply: activations whose scales are subnormal in fp16 are rounded as little as that allows",
                   "", pn::pn3t, pn::pn4t) {
  // The scale is off by at most half of 2^-24, which the largest code multiplies by 127, and x by half a step beyond.
  using T = TestType;
  constexpr std::size_t k = 320;
  Random random(79);
  double most = 0;  // of the error, relative to what 1/254 of the largest alone or 127 * 2^-25 alone would allow
  for (int i = 0; i < 60; ++i) {
    std::vector<float> x(k);
    for (std::size_t e = 0; e < k; e += 32) {
      const double scale = (random.between(0, 1022) + 0.5) * 0x1p-24;  // halfway between two of them
      x[e] = static_cast<float>(127 * scale);
      for (std::size_t j = 1; j < 32; ++j) x[e + j] = static_cast<float>((random.between(-127, 126) + 0.49) * scale);
    }
    for_each_isa([&](Isa isa) {
      const std::vector<double> used = rounded<T>(Activations::q8_0, x.data(), k, isa);
      for (std::size_t e = 0; e < k; ++e) {
        const double largest = static_cast<double>(x[e / 32 * 32]);
        const double error = std::fabs(used[e] - static_cast<double>(x[e]));
        const double bound = largest / 254 + std::max(largest * 0x1p-11, 127 * 0x1p-25);
        if (!(error <= bound)) FAIL("element " << e << ": " << error / bound << " of the bound");
        most = std::max(most, error / std::max(largest * (1.0 / 254 + 0x1p-11), 127 * 0x1p-25));
      }
    });
  }
  CHECK(most > 1);  // the two do add up
}

TEMPLATE_TEST_CASE("PN multiply: q8_0 is pn::dot_q8_0, but for the order of the sum", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  for (const std::size_t k : lengths<T>(Activations::q8_0)) {
    Random random(76 + k);
    const std::size_t rows = 6, tokens = 3;
    Matrix<T> matrix(rows, k);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < matrix.block_count(); ++b)
        matrix.set(r, b, block_with<T>(random, random_scale(random, 0, 30)));
    std::vector<float> x = random_activations(random, tokens * k);
    // Scales of 0, subnormal, large; x halfway between two steps.
    for (std::size_t e = 0; e < k; ++e) {
      x[e] *= std::ldexp(1.0f, static_cast<int>(e / 32 % 5) * 9 - 20);
      x[k + e] = e % 32 == 5 ? 127.0f : static_cast<float>(random.between(-126, 126)) + 0.5f;
      x[2 * k + e] *= e / 32 % 3 == 0 ? 0.0f : 1e-3f;
    }
    for_each_isa([&](Isa isa) {
      const Prepared<T> prepared(Activations::q8_0, x.data(), 4 * k, tokens, k, isa);
      const Fenced y(tokens, 4 * rows, 4 * rows, At::end);
      REQUIRE(pn::cpu::multiply<T>(matrix.blocks.data(), matrix.blocks.stride(), rows, k, prepared.data(), y.floats(),
                                   y.stride()) == Status::ok);
      for (std::size_t m = 0; m < tokens; ++m) {
        std::vector<pn::BlockQ8_0> q8(k / 32);
        REQUIRE(pn::quantize_row_q8_0(&x[m * k], k, q8.data()) == Status::ok);
        const std::vector<double> used = rounded<T>(Activations::q8_0, &x[m * k], k, isa);
        for (std::size_t r = 0; r < rows; ++r) {
          std::vector<Block34> row(matrix.block_count());
          std::memcpy(row.data(), matrix.blocks.row(r), 34 * row.size());
          float dot = 0;
          REQUIRE(pn::dot_q8_0<T>(row.data(), q8.data(), k, &dot) == Status::ok);
          double sum = 0;
          for (std::size_t e = 0; e < k; ++e)
            sum += std::fabs(static_cast<double>(matrix.weights[r * k + e]) * used[e]);
          const double error = std::fabs(static_cast<double>(y.value(m, r)) - static_cast<double>(dot));
          if (!(error <= (static_cast<double>(k) / 16 + 64 + 1) * unit * sum))
            FAIL("k " << k << " token " << m << " row " << r << ": " << y.value(m, r) << ", not " << dot);
        }
      }
    });
  }
}

TEMPLATE_TEST_CASE("PN multiply: activations that cannot be rounded are told, and are not multiplied with", "",
                   pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 320, tokens = 3;
  Random random(77);
  const std::vector<Block34> row(k / T::block_size);
  for (int i = 0; i < 40; ++i) {
    std::vector<float> x = random_activations(random, tokens * k);
    const std::size_t at = random.below(x.size());
    const bool large = i % 2 == 0;
    // 127 * 65520 is the first amax whose scale is beyond fp16.
    x[at] = large ? (random.coin() ? 127.0f * 65520.0f : -3e38f) : random.coin() ? std::nanf("") : -HUGE_VALF;
    if (random.coin()) x[at + random.below(x.size() - at)] = large ? 1e30f : HUGE_VALF;
    for_each_isa([&](Isa isa) {
      for (const Activations kind : activation_kinds) {
        const Fenced memory(pn::cpu::activations_bytes<T>(kind, tokens, k));
        Fault fault = {77, 77};
        const Status status =
            pn::cpu::prepare_activations<T>(kind, x.data(), 4 * k, tokens, k, memory.data(), &fault, isa);
        float y[tokens];
        const Status multiplied = pn::cpu::multiply<T>(row.data(), 0, 1, k, memory.data(), y, 4);
        if (kind == Activations::f32 || (kind == Activations::i16 && large)) {
          CHECK(status == Status::ok);
          CHECK(multiplied == Status::ok);
          CHECK(fault.row == 77);
          continue;
        }
        CHECK(status == (large ? Status::scale_overflow : Status::not_finite));
        CHECK(fault.row == at / k);
        CHECK(fault.index == (large ? at % k / 32 * 32 : at % k));
        CHECK(multiplied == Status::not_prepared);
        CHECK(pn::cpu::prepare_activations<T>(kind, x.data(), 4 * k, tokens, k, memory.data(), nullptr, isa) == status);
      }
    });
  }
  for_each_isa([&](Isa isa) {  // just below the edge
    std::vector<float> x(k, 0.0f);
    x[37] = std::nextafter(127.0f * 65520.0f, 0.0f);
    const Prepared<T> prepared(Activations::q8_0, x.data(), 0, 1, k, isa);
    CHECK(prepared.memory.intact());
  });
}
