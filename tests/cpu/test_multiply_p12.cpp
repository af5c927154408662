// Proves that BF16_P12 and BF16 are multiplied in the order that p12/cpu.hpp states, to the last bit, whatever the
// weights and activations are, and packed, unpacked and in proof mode alike; and that the stated error bound holds.
// Since one scalar loop is what every instruction set has to match, Order::portable gives the same bits on all of them,
// and Order::fast on all that have fused multiply-adds.
#include "testing.hpp"

using namespace testing;

namespace {

// The order of p12/cpu.hpp, from its text.
float in_stated_order(const std::uint16_t* weights, const float* x, std::size_t k, bool fused) {
  float s[64] = {};
  for (std::size_t e = 0; e < k; ++e) {
    const float w = pn::bf16_to_float(weights[e]);
    float& sum = s[e % 64];
    sum = fused ? std::fma(w, x[e], sum) : sum + w * x[e];
  }
  float u[32];
  for (std::size_t i = 0; i < 32; ++i) u[i] = s[2 * i] + s[2 * i + 1];
  for (std::size_t h = 16; h >= 1; h /= 2)
    for (std::size_t i = 0; i < h; ++i) u[i] += u[i + h];
  return u[0];
}

// Rows of weights that fit BF16_P12, as bf16 and packed, both with gaps between the rows and ending at a fence.
struct Matrix {
  std::size_t rows, k;
  Fenced weights, packed;
  std::vector<std::uint16_t> values;

  Matrix(std::size_t row_count, std::size_t blocks)
      : rows(row_count),
        k(256 * blocks),
        weights(rows, 2 * k, 2 * k + 6, At::end),
        packed(rows, 392 * blocks, 392 * blocks + 5, At::end),
        values(rows * k) {}

  void set_block(std::size_t r, std::size_t b, const Weights& block) {
    p12::Block392 out;
    REQUIRE(p12::pack_block(block.data(), out) == Status::ok);
    std::memcpy(packed.row(r) + 392 * b, &out, 392);
    for (std::size_t i = 0; i < 256; ++i) {
      store_bits(weights.row(r), Element::bf16, 256 * b + i, block[i]);
      values[r * k + 256 * b + i] = block[i];
    }
  }
};

// Weights near 0.02, up to three of them listed.
Weights trained(Random& random) {
  Weights weights = weights_between(random, 108, 123);
  weights[random.below(256)] = weight_of(108, random.byte());
  weights[random.below(256)] = weight_of(123, random.byte());
  for (std::size_t n = random.below(4); n > 0; --n)
    weights[random.below(256)] =
        weight_of(random.coin() ? random.between(90, 107) : random.between(124, 132), random.byte());
  return weights;
}

// Everything that is not an ordinary number, listed or in the window. Few of each, so that not every sum is a NaN.
Weights special(Random& random) {
  switch (random.below(6)) {
    case 0: {  // subnormals, zeros, small ones
      return weights_between(random, 0, 15);
    }
    case 1: {  // -0.0 and subnormals, listed
      Weights weights = trained(random);
      for (auto& weight : weights)
        if (p12::exponent_of(weight) < 108 || p12::exponent_of(weight) > 123) weight = weight_of(115, random.byte());
      weights[random.below(256)] = 0x8000;
      weights[random.below(256)] = weight_of(0, random.byte());
      return weights;
    }
    case 2: {  // one infinity, listed
      Weights weights = weights_between(random, 110, 120);
      weights[random.below(256)] = random.coin() ? 0x7F80 : 0xFF80;
      return weights;
    }
    case 3: {  // NaNs, listed
      Weights weights = weights_between(random, 110, 120);
      weights[random.below(256)] = weight_of(255, random.byte() | 1u);
      return weights;
    }
    case 4: return weights_between(random, 239, 254);  // sums that overflow
    default: return weights_between(random, 241, 255);
  }
}

std::vector<float> special_tokens(Random& random, std::size_t tokens, std::size_t k) {
  std::vector<float> x = random_activations(random, tokens * k);
  for (std::size_t m = 0; m < tokens; ++m) {
    float* row = &x[m * k];
    switch (m % 8) {
      case 1: row[random.below(k)] = random.coin() ? HUGE_VALF : -HUGE_VALF; break;
      case 3: row[random.below(k)] = std::nanf(""); break;
      case 5:
        for (std::size_t e = 0; e < k; ++e) row[e] = float_of(random.next32() & 0x807FFFFFu);
        break;
      case 6:
        for (std::size_t e = 0; e < k; ++e) row[e] = -0.0f;
        break;
      case 7:
        for (std::size_t e = 0; e < k; ++e) row[e] *= 0x1p-120f;
        break;
      default: break;
    }
  }
  return x;
}

// All three ways to multiply give `want` on every shape of up to the given rows and tokens.
void check_shapes(const Matrix& matrix, const std::vector<float>& x) {
  const std::size_t k = matrix.k;
  // [order][token][row], once for fused and once for plain arithmetic.
  std::vector<float> want[2];
  for (const bool fused : {false, true})
    for (std::size_t m = 0; m < 16; ++m)
      for (std::size_t n = 0; n < matrix.rows; ++n)
        want[fused].push_back(in_stated_order(&matrix.values[n * k], &x[m * k], k, fused));

  for_each_isa([&](Isa isa) {
    for (std::size_t tokens = 1; tokens <= 16; ++tokens) {
      const PreparedP12 prepared(x.data(), 4 * k, tokens, k, isa);
      for (const std::size_t rows : {1u, 3u, 5u, 7u, 17u})
        for (const Order order : {Order::fast, Order::portable}) {
          const std::vector<float>& expected = want[order == Order::fast && has_fma(isa)];
          const Fenced y(tokens, 4 * rows, 4 * rows + 12, At::end), y_bf16(tokens, 4 * rows, 4 * rows, At::end),
              y_proof(tokens, 4 * rows, 4 * rows + 4, At::begin), workspace(p12::cpu::proof_workspace_bytes(k));
          REQUIRE(p12::cpu::multiply(matrix.packed.data(), matrix.packed.stride(), rows, k, prepared.data(), y.floats(),
                                     y.stride(), order) == Status::ok);
          REQUIRE(p12::cpu::multiply_bf16(matrix.weights.data(), matrix.weights.stride(), rows, k, prepared.data(),
                                          y_bf16.floats(), y_bf16.stride(), order) == Status::ok);
          REQUIRE(p12::cpu::multiply_unpacked(matrix.packed.data(), matrix.packed.stride(), rows, k, prepared.data(),
                                              y_proof.floats(), y_proof.stride(), workspace.data(),
                                              order) == Status::ok);
          for (std::size_t m = 0; m < tokens; ++m)
            for (std::size_t n = 0; n < rows; ++n) {
              const float expect = expected[m * matrix.rows + n];
              const bool packed = same_number(y.value(m, n), expect), plain = same_number(y_bf16.value(m, n), expect),
                         proof = same_number(y_proof.value(m, n), expect);
              if (!packed || !plain || !proof)
                FAIL((packed ? "" : "multiply ")
                     << (plain ? "" : "multiply_bf16 ") << (proof ? "" : "multiply_unpacked ") << "token " << m
                     << " of " << tokens << ", row " << n << " of " << rows << ", k " << k
                     << (order == Order::fast ? ", fast: " : ", portable: ") << std::hexfloat << y.value(m, n) << ' '
                     << y_bf16.value(m, n) << ' ' << y_proof.value(m, n) << ", not " << expect);
            }
          REQUIRE((y.intact() && y_bf16.intact() && y_proof.intact() && workspace.intact()));
        }
    }
  });
}

}  // namespace

TEST_CASE("BF16_P12 and BF16 multiply in the stated order, on every shape") {
  Random random(61);
  for (const std::size_t blocks : {1u, 2u, 3u}) {
    Matrix matrix(17, blocks);
    for (std::size_t r = 0; r < 17; ++r)
      for (std::size_t b = 0; b < blocks; ++b) matrix.set_block(r, b, trained(random));
    check_shapes(matrix, random_activations(random, 16 * matrix.k));
  }
}

TEST_CASE("BF16_P12 and BF16 multiply in the stated order, with NaN, infinities, subnormals and -0.0") {
  Random random(62);
  for (const std::size_t blocks : {1u, 2u, 3u}) {
    Matrix matrix(17, blocks);
    const std::size_t special_block = random.below(blocks);
    for (std::size_t r = 0; r < 17; ++r)
      for (std::size_t b = 0; b < blocks; ++b)
        matrix.set_block(r, b, b == special_block || random.coin() ? special(random) : trained(random));
    check_shapes(matrix, special_tokens(random, 16, matrix.k));
  }
}

TEST_CASE("BF16_P12 keeps to the stated order where x does not fit the first-level cache") {
  // One token: such rows go two at a time on some instruction sets, so an odd one is left. A page that may not be
  // touched lies behind the last.
  Random random(65);
  for (const std::size_t blocks : {47u, 48u, 49u}) {
    Matrix matrix(5, blocks);
    for (std::size_t r = 0; r < 5; ++r)
      for (std::size_t b = 0; b < blocks; ++b) matrix.set_block(r, b, trained(random));
    const std::vector<float> x = random_activations(random, matrix.k);
    for_each_isa([&](Isa isa) {
      const PreparedP12 prepared(x.data(), 0, 1, matrix.k, isa);
      for (const std::size_t first : {0u, 1u, 2u, 3u, 4u})
        for (const Order order : {Order::fast, Order::portable}) {
          const std::size_t rows = 5 - first;
          const Fenced y(4 * rows);
          REQUIRE(p12::cpu::multiply(matrix.packed.row(first), matrix.packed.stride(), rows, matrix.k, prepared.data(),
                                     y.floats(), 0, order) == Status::ok);
          for (std::size_t n = 0; n < rows; ++n) {
            const float expect = in_stated_order(&matrix.values[(first + n) * matrix.k], x.data(), matrix.k,
                                                 order == Order::fast && has_fma(isa));
            if (!same_number(y.value(0, n), expect)) FAIL(blocks << " blocks, row " << n << " of " << rows);
          }
        }
    });
  }
}

TEST_CASE("BF16_P12 multiplies with a weight listed in every place") {
  // One token whose only value beside 0 is at the listed place: the result is that product.
  Random random(63);
  Matrix matrix(256, 1);
  std::vector<float> x(256);
  for (std::size_t place = 0; place < 256; ++place)
    matrix.set_block(place, 0, weights_with_outliers(random, {static_cast<int>(place)}));
  for_each_isa([&](Isa isa) {
    for (std::size_t place = 0; place < 256; ++place) {
      std::fill(x.begin(), x.end(), 0.0f);
      x[place] = 0.5f;
      const PreparedP12 prepared(x.data(), 0, 1, 256, isa);
      const Fenced y(4);
      REQUIRE(p12::cpu::multiply(matrix.packed.row(place), 0, 1, 256, prepared.data(), y.floats(), 0) == Status::ok);
      const float expect = in_stated_order(&matrix.values[256 * place], x.data(), 256, has_fma(isa));
      if (!same_number(y.value(0, 0), expect)) FAIL("place " << place);
    }
  });
}

TEST_CASE("BF16_P12 keeps to the stated order for long rows and all kinds of numbers") {
  Random random(64);
  for (const std::size_t blocks : {5u, 20u}) {
    Matrix matrix(4, blocks);
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t b = 0; b < blocks; ++b) matrix.set_block(r, b, trained(random));
    const std::vector<float> x = random_activations(random, 3 * matrix.k);
    for_each_isa([&](Isa isa) {
      const PreparedP12 prepared(x.data(), 4 * matrix.k, 3, matrix.k, isa);
      for (const Order order : {Order::fast, Order::portable}) {
        const Fenced y(3, 16, 16, At::end);
        REQUIRE(p12::cpu::multiply(matrix.packed.data(), matrix.packed.stride(), 4, matrix.k, prepared.data(),
                                   y.floats(), 16, order) == Status::ok);
        for (std::size_t m = 0; m < 3; ++m)
          for (std::size_t n = 0; n < 4; ++n) {
            const float want = in_stated_order(&matrix.values[n * matrix.k], &x[m * matrix.k], matrix.k,
                                               order == Order::fast && has_fma(isa));
            if (bits_of(y.value(m, n)) != bits_of(want)) FAIL("k " << matrix.k << " token " << m << " row " << n);
          }
      }
    });
  }
}

TEST_CASE("BF16_P12 results lie within the stated bound of the exact sum") {
  Random random(65);
  double largest[2] = {};
  for (const std::size_t blocks : {1u, 5u, 20u}) {
    Matrix matrix(8, blocks);
    for (std::size_t r = 0; r < 8; ++r)
      for (std::size_t b = 0; b < blocks; ++b) matrix.set_block(r, b, trained(random));
    const std::size_t k = matrix.k;
    std::vector<float> x = random_activations(random, 4 * k);
    for (std::size_t e = 0; e < k; ++e) x[k + e] = std::fabs(x[k + e]);  // sums that grow
    for (std::size_t e = 0; e < k; ++e) x[2 * k + e] *= std::ldexp(1.0f, random.between(-30, 30));
    for_each_isa([&](Isa isa) {
      const PreparedP12 prepared(x.data(), 4 * k, 4, k, isa);
      for (const Order order : {Order::fast, Order::portable}) {
        const Fenced y(4, 32, 32, At::end);
        REQUIRE(p12::cpu::multiply(matrix.packed.data(), matrix.packed.stride(), 8, k, prepared.data(), y.floats(), 32,
                                   order) == Status::ok);
        for (std::size_t m = 0; m < 4; ++m)
          for (std::size_t n = 0; n < 8; ++n) {
            long double exact = 0, sum = 0;  // the products are exact even in double
            for (std::size_t e = 0; e < k; ++e) {
              const long double product = static_cast<long double>(pn::bf16_to_float(matrix.values[n * k + e])) *
                                          static_cast<long double>(x[m * k + e]);
              exact += product;
              sum += std::fabs(product);
            }
            const double error = static_cast<double>(std::fabs(static_cast<long double>(y.value(m, n)) - exact) / sum);
            const double units = static_cast<double>(k) / 64 + 7 + (order == Order::portable ? 1 : 0);
            CHECK(error <= units * 0x1p-24);
            double& most = largest[order == Order::portable];
            most = std::max(most, error);
          }
      }
    });
  }
  WARN("largest |y - exact| / sum of |w * x|: fast " << largest[0] << ", portable " << largest[1] << "; 2^-24 is "
                                                     << 0x1p-24);
}
