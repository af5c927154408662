// Proves that pn::cpu::hadamard_activations has the bits of the core's function on every instruction set, wherever rows
// lie and whatever they hold, and that it touches nothing but the rows of its result.
#include <cfloat>

#include "../pn/environment.hpp"
#include "testing.hpp"

using namespace testing;

namespace {

constexpr std::size_t segments[] = {64, 128, 256, 512, 1024};

// What the core makes of rows of k floats.
std::vector<float> rotated(std::vector<float> x, std::size_t k, std::size_t b) {
  for (std::size_t start = 0; start < x.size(); start += k)
    REQUIRE(pn::hadamard_activations(&x[start], k, b) == Status::ok);
  return x;
}

void store(const Fenced& rows, const std::vector<float>& x, std::size_t tokens) {
  for (std::size_t m = 0; m < tokens; ++m) std::memcpy(rows.row(m), &x[m * (rows.row_bytes() / 4)], rows.row_bytes());
}

bool hold(const Fenced& rows, const std::vector<float>& x, std::size_t tokens) {
  const std::size_t k = rows.row_bytes() / 4;
  for (std::size_t i = 0; i < tokens * k; ++i)
    if (!same_number(rows.value(i / k, i % k), x[i])) return false;
  return rows.intact();
}

// Floats of every kind.
std::vector<float> any_floats(Random& random, std::size_t count, int how) {
  std::vector<float> x = random_activations(random, count);
  for (float& value : x) {
    if (how == 1) value = float_of(random.next32() & 0x80000FFFu);  // subnormal: sums stay so
    if (how == 2) value = std::ldexp(value, random.between(-150, 60));
    if (how == 3) value = random.coin() ? -0.0f : (random.below(8) == 0 ? 0.0f : -0.0f);
    if (how == 4) value = -0.0f;
    if (how == 5) value = std::ldexp(value, 126);  // sums overflow, to infinities of both signs
    if (how == 6 && random.below(100) == 0) value = random.coin() ? HUGE_VALF : -HUGE_VALF;
    if (how == 7 && random.below(100) == 0) value = random.coin() ? std::nanf("") : float_of(0xFF800001u);
    if (how == 8) value = float_of(random.next32());                             // any bits
    if (how == 9) value = std::ldexp(1.0f, random.between(-126, -118)) * value;  // products that become subnormal
  }
  return x;
}

}  // namespace

TEST_CASE("rotation: the core's bits, out of place and in place, at any address and stride") {
  Random random(191);
  for (const std::size_t b : segments)
    for (const std::size_t count : {1u, 2u, 3u})
      for (int how = 0; how < 10; ++how) {
        const std::size_t k = count * b, tokens = 1 + random.below(3);
        const std::vector<float> x = any_floats(random, tokens * k, how), want = rotated(x, k, b);
        for_each_isa([&](Isa isa) {
          INFO("b " << b << ", k " << k << ", " << tokens << " tokens, floats of kind " << how);
          for (const At at : {At::begin, At::end}) {
            const std::size_t shift = random.below(2) * random.below(64);
            const Fenced in(tokens, 4 * k, 4 * k + random.below(2) * random.below(50), at, shift);
            const Fenced out(tokens, 4 * k, 4 * k + random.below(2) * random.below(50), at, shift * 5 % 64);
            store(in, x, tokens);
            REQUIRE(pn::cpu::hadamard_activations(in.floats(), in.stride(), tokens, k, b, out.floats(), out.stride(),
                                                  isa) == Status::ok);
            REQUIRE(hold(out, want, tokens));
            REQUIRE(in.intact());
            for (std::size_t m = 0; m < tokens; ++m) REQUIRE(std::memcmp(in.row(m), &x[m * k], 4 * k) == 0);
            REQUIRE(pn::cpu::hadamard_activations(in.floats(), in.stride(), tokens, k, b, in.floats(), in.stride(),
                                                  isa) == Status::ok);
            REQUIRE(hold(in, want, tokens));
          }
        });
      }
}

TEST_CASE("rotation: every element reaches every other with the sign of the Hadamard matrix") {
  for (const std::size_t b : segments)
    for_each_isa([&](Isa isa) {
      std::vector<float> x(b), y(b);
      for (std::size_t e = 0; e<b; e += b> 256 ? 7 : 1) {
        x[e] = 1.0f;
        REQUIRE(pn::cpu::hadamard_activations(x.data(), 0, 1, b, b, y.data(), 0, isa) == Status::ok);
        x[e] = 0.0f;
        for (std::size_t j = 0; j < b; ++j) {
          bool minus = false;
          for (std::size_t common = e & j; common != 0; common &= common - 1) minus = !minus;
          const float size = static_cast<float>(pn::hadamard_scale(b)), want = minus ? -size : size;
          if (!(y[j] == want)) FAIL("b " << b << ", from " << e << " to " << j << ": " << y[j] << ", not " << want);
        }
      }
    });
}

TEST_CASE("rotation: the caller's floating-point environment changes nothing and is given back") {
  Random random(192);
  for (const std::size_t b : segments)
    for (const int how : {0, 1, 2, 5, 7, 9}) {
      const std::size_t k = 2 * b, tokens = 2;
      const std::vector<float> x = any_floats(random, tokens * k, how), want = rotated(x, k, b);
      for_each_isa([&](Isa isa) {
        for (const environment::Setting& setting : environment::settings()) {
          INFO("b " << b << " under " << setting.name << ", floats of kind " << how);
          const Fenced out(tokens, 4 * k, 4 * k, At::end);
          Status status = Status::ok;
          CHECK(environment::run_under(setting, [&] {
            status = pn::cpu::hadamard_activations(x.data(), 4 * k, tokens, k, b, out.floats(), out.stride(), isa);
          }));
          CHECK(status == Status::ok);
          CHECK(hold(out, want, tokens));
        }
      });
    }
}

TEST_CASE("rotation: other segments and lengths are refused, no tokens and no floats are no fault") {
  const std::vector<float> x(4096, 1.0f);
  const Fenced out(4 * 4096);
  const auto rotate = [&](std::size_t tokens, std::size_t k, std::size_t b, Isa isa) {
    return pn::cpu::hadamard_activations(x.data(), 0, tokens, k, b, out.floats(), 0, isa);
  };
  for_each_isa([&](Isa isa) {
    for (const std::size_t b : {0u, 1u, 2u, 8u, 16u, 32u, 63u, 65u, 80u, 96u, 192u, 2048u, 4096u}) {
      CHECK(rotate(1, 4096, b, isa) == Status::bad_length);
      CHECK(rotate(1, b, b, isa) == Status::bad_length);
      CHECK(rotate(0, 0, b, isa) == Status::bad_length);
    }
    for (const std::size_t b : segments) {
      for (const std::size_t k : {std::size_t{1}, b - 1, b + 1, b / 2, b + b / 2, 3 * b + 32})
        CHECK(rotate(1, k, b, isa) == Status::bad_length);
      CHECK(rotate(0, b, b, isa) == Status::ok);
      CHECK(rotate(3, 0, b, isa) == Status::ok);
    }
  });
  const pn::cpu::IsaList list = pn::cpu::isas();
  for (unsigned i = 1; i < 256; ++i)
    if (std::find(list.begin(), list.end(), static_cast<Isa>(i)) == list.end())
      CHECK(rotate(1, 64, 64, static_cast<Isa>(i)) == Status::isa_not_available);
  CHECK(out.untouched());
  CHECK(rotate(1, 64, 64, Isa::best) == Status::ok);
  CHECK(out.value(0, 0) == 8.0f);
}
