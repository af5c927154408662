// Proves that no bit of a result depends on what it must not depend on: how many tokens share a call and which, how
// rows are shared out, to how many threads, at what address the activations lie, and the caller's floating-point
// environment, which is given back as it was. And that arguments which make no sense are refused.
#include <thread>

#include "../pn/environment.hpp"
#include "testing.hpp"

using namespace testing;

namespace {

std::vector<std::uint32_t> bits_of_all(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), [](float value) { return bits_of(value); });
  return bits;
}

// The multiplies of this library, as one: a matrix that is prepared for and multiplied with in one of seven ways.
class Case {
 public:
  virtual ~Case() = default;
  virtual std::string name() const = 0;
  std::size_t k = 0, rows = 0;
  // x: rows of k floats `x_stride` bytes apart. The result is [token][row].
  std::vector<float> multiply(const float* x, std::size_t x_stride, std::size_t tokens, Isa isa) const {
    Fenced prepared(bytes(tokens));
    REQUIRE(prepare(x, x_stride, tokens, prepared.data(), isa) == Status::ok);
    std::vector<float> y(tokens * rows);
    REQUIRE(multiply_rows(prepared.data(), 0, rows, y.data(), 4 * rows) == Status::ok);
    return y;
  }
  virtual std::size_t bytes(std::size_t tokens) const = 0;
  virtual Status prepare(const float* x, std::size_t x_stride, std::size_t tokens, void* out, Isa isa) const = 0;
  // Rows first .. last - 1; y points to the result of row `first`.
  virtual Status multiply_rows(const void* prepared, std::size_t first, std::size_t last, float* y,
                               std::size_t y_stride) const = 0;
};

template <class T>
class PnCase : public Case {
 public:
  PnCase(Random& random, Activations kind, std::size_t row_count, std::size_t columns) : kind_(kind) {
    k = columns;
    rows = row_count;
    for (std::size_t b = 0; b < rows * k / T::block_size; ++b)
      blocks_.push_back(block_with<T>(random, random_scale(random, 0, 30)));
  }
  std::string name() const override { return std::string(T::name) + " with " + name_of(kind_); }
  std::size_t bytes(std::size_t tokens) const override { return pn::cpu::activations_bytes<T>(kind_, tokens, k); }
  Status prepare(const float* x, std::size_t x_stride, std::size_t tokens, void* out, Isa isa) const override {
    return pn::cpu::prepare_activations<T>(kind_, x, x_stride, tokens, k, out, nullptr, isa);
  }
  Status multiply_rows(const void* prepared, std::size_t first, std::size_t last, float* y,
                       std::size_t y_stride) const override {
    const std::size_t row_bytes = k / T::block_size * 34;
    return pn::cpu::multiply<T>(reinterpret_cast<const std::uint8_t*>(blocks_.data()) + first * row_bytes, row_bytes,
                                last - first, k, prepared, y, y_stride);
  }

 private:
  Activations kind_;
  std::vector<Block34> blocks_;
};

class P12Case : public Case {
 public:
  P12Case(Random& random, bool packed, Order order, std::size_t row_count, std::size_t columns)
      : packed_(packed), order_(order) {
    k = columns;
    rows = row_count;
    for (std::size_t b = 0; b < rows * k / 256; ++b) {
      // Subnormal products too: what flushes them is noticed.
      const int low = b % 4 == 0 ? 0 : 105;
      Weights weights = weights_between(random, low, low + 15);
      weights[random.below(256)] = weight_of(low + 17, random.byte());
      p12::Block392 block;
      REQUIRE(p12::pack_block(weights.data(), block) == Status::ok);
      blocks_.push_back(block);
      weights_.insert(weights_.end(), weights.begin(), weights.end());
    }
  }
  std::string name() const override {
    return std::string(packed_ ? "BF16_P12" : "BF16") + (order_ == Order::fast ? ", fast" : ", portable");
  }
  std::size_t bytes(std::size_t tokens) const override { return p12::cpu::activations_bytes(tokens, k); }
  Status prepare(const float* x, std::size_t x_stride, std::size_t tokens, void* out, Isa isa) const override {
    return p12::cpu::prepare_activations(x, x_stride, tokens, k, out, isa);
  }
  Status multiply_rows(const void* prepared, std::size_t first, std::size_t last, float* y,
                       std::size_t y_stride) const override {
    if (packed_)
      return p12::cpu::multiply(&blocks_[first * k / 256], k / 256 * 392, last - first, k, prepared, y, y_stride,
                                order_);
    return p12::cpu::multiply_bf16(&weights_[first * k], 2 * k, last - first, k, prepared, y, y_stride, order_);
  }

 private:
  bool packed_;
  Order order_;
  std::vector<p12::Block392> blocks_;
  std::vector<std::uint16_t> weights_;
};

// Every way to multiply, `rows` rows of about `size` weights.
std::vector<std::unique_ptr<Case>> cases(std::size_t rows, std::size_t size) {
  Random random(91);
  std::vector<std::unique_ptr<Case>> list;
  for (const Activations kind : activation_kinds) {
    list.push_back(std::make_unique<PnCase<pn::pn3t>>(random, kind, rows, size / 160 * 160 + 160));
    list.push_back(std::make_unique<PnCase<pn::pn4t>>(random, kind, rows, size / 64 * 64 + 64));
  }
  for (const bool packed : {true, false})
    for (const Order order : {Order::fast, Order::portable})
      list.push_back(std::make_unique<P12Case>(random, packed, order, rows, size / 256 * 256 + 256));
  return list;
}

// Calls body(case, isa) for each of them and every instruction set.
template <class Body>
void for_each_case(std::size_t rows, std::size_t size, Body&& body) {
  for (const auto& one : cases(rows, size)) {
    INFO(one->name() << ", k " << one->k);
    for_each_isa([&](Isa isa) { body(*one, isa); });
  }
}

}  // namespace

TEST_CASE("a token's result does not depend on the tokens that share its call") {
  Random random(92);
  for_each_case(9, 300, [&](const Case& one, Isa isa) {
    const std::vector<float> x = random_activations(random, 16 * one.k);
    std::vector<std::vector<std::uint32_t>> alone;
    for (std::size_t m = 0; m < 16; ++m) alone.push_back(bits_of_all(one.multiply(&x[m * one.k], 0, 1, isa)));
    for (std::size_t tokens = 1; tokens <= 16; ++tokens) {
      const std::size_t first = random.below(17 - tokens);
      const auto together = bits_of_all(one.multiply(&x[first * one.k], 4 * one.k, tokens, isa));
      for (std::size_t m = 0; m < tokens; ++m)
        if (!std::equal(alone[first + m].begin(), alone[first + m].end(),
                        together.begin() + static_cast<std::ptrdiff_t>(m * one.rows)))
          FAIL("token " << m << " of " << tokens);
    }
    // The same token 16 times, by a stride of 0.
    const auto copies = bits_of_all(one.multiply(x.data(), 0, 16, isa));
    for (std::size_t m = 0; m < 16; ++m)
      if (!std::equal(alone[0].begin(), alone[0].end(), copies.begin() + static_cast<std::ptrdiff_t>(m * one.rows)))
        FAIL("copy " << m);
  });
}

TEST_CASE("a row's result does not depend on the range of rows it is in") {
  Random random(93);
  for_each_case(23, 200, [&](const Case& one, Isa isa) {
    const std::size_t tokens = 1 + random.below(16);
    const std::vector<float> x = random_activations(random, tokens * one.k);
    const auto whole = bits_of_all(one.multiply(x.data(), 4 * one.k, tokens, isa));
    const Fenced prepared(one.bytes(tokens));
    REQUIRE(one.prepare(x.data(), 4 * one.k, tokens, prepared.data(), isa) == Status::ok);
    for (int i = 0; i < 8; ++i) {
      std::vector<float> y(tokens * one.rows);
      for (std::size_t first = 0, last; first < one.rows; first = last) {
        last = i == 0 ? first + 1 : std::min(one.rows, first + 1 + random.below(9));
        REQUIRE(one.multiply_rows(prepared.data(), first, last, y.data() + first, 4 * one.rows) == Status::ok);
      }
      if (bits_of_all(y) != whole) FAIL("split " << i);
    }
  });
}

TEST_CASE("threads that share out the rows give the bits of one call") {
  Random random(94);
  for_each_case(64, 600, [&](const Case& one, Isa isa) {
    const std::size_t tokens = 5;
    const std::vector<float> x = random_activations(random, tokens * one.k);
    const auto whole = bits_of_all(one.multiply(x.data(), 4 * one.k, tokens, isa));
    const Fenced prepared(one.bytes(tokens));
    REQUIRE(one.prepare(x.data(), 4 * one.k, tokens, prepared.data(), isa) == Status::ok);
    std::vector<float> y(tokens * one.rows);
    std::vector<std::thread> threads;
    Status status[4] = {};
    for (std::size_t i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        const std::size_t first = i * 17, last = std::min(one.rows, first + 17);
        status[i] = one.multiply_rows(prepared.data(), first, last, y.data() + first, 4 * one.rows);
      });
    for (std::thread& thread : threads) thread.join();
    for (const Status told : status) CHECK(told == Status::ok);
    CHECK(bits_of_all(y) == whole);
  });
}

TEST_CASE("activations and results lie at any address") {
  Random random(95);
  for_each_case(5, 200, [&](const Case& one, Isa isa) {
    const std::size_t tokens = 3;
    const std::vector<float> x = random_activations(random, tokens * one.k);
    const auto whole = bits_of_all(one.multiply(x.data(), 4 * one.k, tokens, isa));
    for (std::size_t shift = 1; shift < 64; shift += 1 + random.below(9)) {
      const Fenced moved(tokens, 4 * one.k, 4 * one.k + random.below(2) * random.below(20), At::end, shift);
      for (std::size_t m = 0; m < tokens; ++m) std::memcpy(moved.row(m), &x[m * one.k], 4 * one.k);
      const Fenced prepared(one.bytes(tokens));
      REQUIRE(one.prepare(moved.floats(), moved.stride(), tokens, prepared.data(), isa) == Status::ok);
      const Fenced y(tokens, 4 * one.rows, 4 * one.rows + random.below(2) * random.below(20), At::end,
                     (shift * 3) % 64);
      REQUIRE(one.multiply_rows(prepared.data(), 0, one.rows, y.floats(), y.stride()) == Status::ok);
      for (std::size_t m = 0; m < tokens; ++m)
        for (std::size_t n = 0; n < one.rows; ++n)
          if (bits_of(y.value(m, n)) != whole[m * one.rows + n]) FAIL("shift " << shift);
      CHECK(y.intact());
      CHECK(moved.intact());
    }
  });
}

TEST_CASE("the caller's floating-point environment changes no multiply and is given back") {
  Random random(96);
  for_each_case(5, 300, [&](const Case& one, Isa isa) {
    const std::size_t tokens = 3;
    std::vector<float> x = random_activations(random, tokens * one.k);
    for (std::size_t e = 0; e < one.k; ++e) x[one.k + e] *= 0x1p-125f;  // subnormals, and products that are
    const auto whole = bits_of_all(one.multiply(x.data(), 4 * one.k, tokens, isa));
    const Fenced prepared(one.bytes(tokens));
    REQUIRE(one.prepare(x.data(), 4 * one.k, tokens, prepared.data(), isa) == Status::ok);
    for (const environment::Setting& setting : environment::settings()) {
      INFO("under " << setting.name);
      const Fenced again(one.bytes(tokens));
      Status status = Status::ok;
      CHECK(environment::run_under(setting,
                                   [&] { status = one.prepare(x.data(), 4 * one.k, tokens, again.data(), isa); }));
      CHECK(status == Status::ok);
      CHECK(std::memcmp(again.data(), prepared.data(), one.bytes(tokens)) == 0);
      std::vector<float> y(tokens * one.rows);
      CHECK(environment::run_under(
          setting, [&] { status = one.multiply_rows(prepared.data(), 0, one.rows, y.data(), 4 * one.rows); }));
      CHECK(status == Status::ok);
      CHECK(bits_of_all(y) == whole);
    }
  });
}

TEMPLATE_TEST_CASE("the caller's floating-point environment changes no PN codec and is given back", "", pn::pn3t,
                   pn::pn4t) {
  using T = TestType;
  constexpr std::size_t blocks = 40, k = blocks * T::block_size;
  Random random(97);
  std::vector<float> w(k);
  std::vector<double> g(k);
  for (std::size_t e = 0; e < k; ++e) {
    w[e] = static_cast<float>(random.gauss()) * std::ldexp(1.0f, -static_cast<int>(e / T::block_size));
    g[e] = std::ldexp(random.uniform(), -1000 - static_cast<int>(e % 60));
  }
  for_each_isa([&](Isa isa) {
    for (const environment::Setting& setting : environment::settings()) {
      INFO("under " << setting.name);
      for (const double* importance : {static_cast<const double*>(nullptr), static_cast<const double*>(g.data())}) {
        std::vector<Block34> want(blocks), got(blocks);
        REQUIRE(pn::quantize_row<T>(w.data(), importance, k, want.data()) == Status::ok);
        Status status = Status::ok;
        CHECK(environment::run_under(setting, [&] {
          status = pn::cpu::quantize_rows<T>(w.data(), Element::f32, 0, 1, k, importance, got.data(), 0, nullptr, isa);
        }));
        CHECK(status == Status::ok);
        CHECK(std::memcmp(got.data(), want.data(), 34 * blocks) == 0);
        CHECK(environment::run_under(setting,
                                     [&] { status = pn::cpu::validate_rows<T>(want.data(), 0, 1, k, nullptr, isa); }));
        std::vector<float> decoded(k);
        REQUIRE(pn::decode_row<T>(want.data(), k, decoded.data()) == Status::ok);
        for (const Element element : elements) {
          std::vector<std::uint8_t> out(4 * k);
          CHECK(environment::run_under(setting, [&] {
            status = pn::cpu::dequantize_rows<T>(want.data(), 0, 1, 0, k, out.data(), element, 0, isa);
          }));
          for (std::size_t e = 0; e < k; ++e)
            if (load_bits(out.data(), element, e) != bits_as(element, decoded[e]))
              FAIL(name_of(element) << ", element " << e);
        }
      }
    }
  });
}

TEST_CASE("the caller's floating-point environment changes no BF16_P12 codec and is given back") {
  Random random(98);
  for_each_isa([&](Isa isa) {
    for (int i = 0; i < 20; ++i) {
      const int low = random.between(0, 200);
      const Weights weights = weights_between(random, i == 0 ? 0 : low, i == 0 ? 15 : low + 15);
      p12::Block392 want;
      REQUIRE(p12::pack_block(weights.data(), want) == Status::ok);
      for (const environment::Setting& setting : environment::settings()) {
        INFO("under " << setting.name);
        p12::Block392 got = {};
        p12::RowScan tally;
        Status packed = Status::ok, valid = Status::ok;
        CHECK(environment::run_under(setting, [&] {
          packed = p12::cpu::pack_rows(weights.data(), 0, 1, 256, &got, 0, &tally, nullptr, isa);
          valid = p12::cpu::validate_rows(&want, 0, 1, 256, nullptr, isa);
        }));
        CHECK(packed == Status::ok);
        CHECK(valid == Status::ok);
        CHECK(std::memcmp(&got, &want, 392) == 0);
        for (const Element element : elements) {
          std::uint8_t out[1024];
          Status status = Status::ok;
          CHECK(environment::run_under(setting, [&] {
            status = p12::cpu::unpack_rows(&want, 0, 1, 256, out, element, 0, Stores::cached, isa);
          }));
          CHECK(status == Status::ok);
          for (std::size_t e = 0; e < 256; ++e) {
            const std::uint32_t expect = element == Element::bf16
                                             ? weights[e]
                                             : bits_as(element, float_of(static_cast<std::uint32_t>(weights[e]) << 16));
            if (load_bits(out, element, e) != expect) FAIL(name_of(element) << ", element " << e);
          }
        }
      }
    }
  });
}

TEST_CASE("no rows and no tokens are no fault, and no weights make a sum of 0") {
  for_each_case(2, 100, [&](const Case& one, Isa isa) {
    const std::vector<float> x(2 * one.k, 1.0f);
    const Fenced none(one.bytes(0)), two(one.bytes(2)), nothing(8);
    REQUIRE(one.bytes(0) > 0);
    CHECK(one.prepare(x.data(), 0, 0, none.data(), isa) == Status::ok);
    CHECK(one.multiply_rows(none.data(), 0, 2, nothing.floats(), 8) == Status::ok);
    CHECK(nothing.untouched());
    CHECK(one.prepare(x.data(), 4 * one.k, 2, two.data(), isa) == Status::ok);
    CHECK(one.multiply_rows(two.data(), 0, 0, nothing.floats(), 8) == Status::ok);
    CHECK(nothing.untouched());
  });
  for_each_isa([&](Isa isa) {
    const Fenced nothing(0), y(2, 12, 12, At::end);
    const float* no_floats = nothing.floats();
    const Prepared<pn::pn3t> three(Activations::f32, no_floats, 0, 2, 0, isa);
    for (const Activations kind : activation_kinds) {
      const Prepared<pn::pn4t> four(kind, no_floats, 0, 2, 0, isa);
      y.floats()[0] = 7;
      REQUIRE(pn::cpu::multiply<pn::pn4t>(nothing.data(), 0, 3, 0, four.data(), y.floats(), 12) == Status::ok);
      for (std::size_t i = 0; i < 6; ++i) CHECK(y.floats()[i] == 0.0f);
    }
    y.floats()[5] = 7;
    REQUIRE(pn::cpu::multiply<pn::pn3t>(nothing.data(), 0, 3, 0, three.data(), y.floats(), 12) == Status::ok);
    for (std::size_t i = 0; i < 6; ++i) CHECK(y.floats()[i] == 0.0f);
    const PreparedP12 p12(no_floats, 0, 2, 0, isa);
    for (const Order order : {Order::fast, Order::portable}) {
      y.floats()[2] = 7;
      REQUIRE(p12::cpu::multiply(nothing.data(), 0, 3, 0, p12.data(), y.floats(), 12, order) == Status::ok);
      for (std::size_t i = 0; i < 6; ++i) CHECK(bits_of(y.floats()[i]) == 0);
      y.floats()[3] = 7;
      REQUIRE(p12::cpu::multiply_bf16(nothing.data(), 0, 3, 0, p12.data(), y.floats(), 12, order) == Status::ok);
      for (std::size_t i = 0; i < 6; ++i) CHECK(bits_of(y.floats()[i]) == 0);
      y.floats()[4] = 7;
      REQUIRE(p12::cpu::multiply_unpacked(nothing.data(), 0, 3, 0, p12.data(), y.floats(), 12, nothing.data(), order) ==
              Status::ok);
      for (std::size_t i = 0; i < 6; ++i) CHECK(bits_of(y.floats()[i]) == 0);
    }
  });
}

TEST_CASE("sizes of prepared activations: multiples of 64, the same for all instruction sets, 0 for what is refused") {
  for (const Activations kind : activation_kinds)
    for (std::size_t tokens = 0; tokens <= 20; ++tokens)
      for (const std::size_t k : {0u, 16u, 32u, 64u, 80u, 160u, 240u, 256u, 320u, 5120u}) {
        INFO(name_of(kind) << ", " << tokens << " tokens, k " << k);
        const bool q8_fits = kind != Activations::q8_0 || k % 32 == 0;
        const std::size_t three = pn::cpu::activations_bytes<pn::pn3t>(kind, tokens, k);
        const std::size_t four = pn::cpu::activations_bytes<pn::pn4t>(kind, tokens, k);
        const std::size_t p12 = p12::cpu::activations_bytes(tokens, k);
        CHECK((three != 0) == (tokens <= 16 && k % 80 == 0 && q8_fits));
        CHECK((four != 0) == (tokens <= 16 && k % 64 == 0));
        CHECK((p12 != 0) == (tokens <= 16 && k % 256 == 0));
        CHECK((three % 64 == 0 && four % 64 == 0 && p12 % 64 == 0));
        if (tokens > 0 && tokens <= 16) {  // memory for more tokens does for fewer
          CHECK(three >= pn::cpu::activations_bytes<pn::pn3t>(kind, tokens - 1, k));
          CHECK(four >= pn::cpu::activations_bytes<pn::pn4t>(kind, tokens - 1, k));
          CHECK(p12 >= p12::cpu::activations_bytes(tokens - 1, k));
        }
      }
  const std::size_t huge = static_cast<std::size_t>(-1) / 5120 * 5120;  // sizes that do not fit std::size_t
  for (const Activations kind : activation_kinds) {
    CHECK(pn::cpu::activations_bytes<pn::pn3t>(kind, 16, huge) == 0);
    CHECK(pn::cpu::activations_bytes<pn::pn4t>(kind, 1, huge) == 0);
  }
  CHECK(p12::cpu::activations_bytes(16, huge) == 0);
  CHECK(p12::cpu::proof_workspace_bytes(512) >= 1024);
}

TEST_CASE("prepare_activations refuses too many tokens, other lengths and memory that is not aligned") {
  const std::vector<float> x(17 * 320, 1.0f);
  for_each_isa([&](Isa isa) {
    const Fenced memory(1 << 18);
    for (const Activations kind : activation_kinds) {
      CHECK(pn::cpu::prepare_activations<pn::pn4t>(kind, x.data(), 0, 17, 320, memory.data(), nullptr, isa) ==
            Status::too_many_tokens);
      CHECK(pn::cpu::prepare_activations<pn::pn3t>(kind, x.data(), 0, 1000, 320, memory.data(), nullptr, isa) ==
            Status::too_many_tokens);
      CHECK(pn::cpu::prepare_activations<pn::pn4t>(kind, x.data(), 0, 1, 80, memory.data(), nullptr, isa) ==
            Status::bad_length);
      CHECK(pn::cpu::prepare_activations<pn::pn3t>(kind, x.data(), 0, 1, 64, memory.data(), nullptr, isa) ==
            Status::bad_length);
      for (const std::size_t off : {1u, 4u, 16u, 32u, 63u})
        CHECK(pn::cpu::prepare_activations<pn::pn4t>(kind, x.data(), 0, 1, 320, memory.data() + off, nullptr, isa) ==
              Status::misaligned);
    }
    CHECK(pn::cpu::prepare_activations<pn::pn3t>(Activations::q8_0, x.data(), 0, 1, 80, memory.data(), nullptr, isa) ==
          Status::bad_length);
    CHECK(p12::cpu::prepare_activations(x.data(), 0, 17, 256, memory.data(), isa) == Status::too_many_tokens);
    CHECK(p12::cpu::prepare_activations(x.data(), 0, 1, 320, memory.data(), isa) == Status::bad_length);
    CHECK(p12::cpu::prepare_activations(x.data(), 0, 1, 256, memory.data() + 32, isa) == Status::misaligned);
    CHECK(memory.untouched());
  });
}

TEST_CASE("multiplies refuse what was not prepared for them") {
  const std::vector<float> x(1280, 1.0f);
  const std::vector<std::uint8_t> weights(1280 * 2);
  const Status no = Status::not_prepared;
  for_each_isa([&](Isa isa) {
    float y[4];
    const auto three = [&](const void* prepared, std::size_t k) {
      return pn::cpu::multiply<pn::pn3t>(weights.data(), 0, 1, k, prepared, y, 4);
    };
    const auto four = [&](const void* prepared, std::size_t k) {
      return pn::cpu::multiply<pn::pn4t>(weights.data(), 0, 1, k, prepared, y, 4);
    };
    const Fenced workspace(2 * 1280);
    const auto p12_all = [&](const void* prepared, std::size_t k, Status want) {
      CHECK(p12::cpu::multiply(weights.data(), 0, 1, k, prepared, y, 4) == want);
      CHECK(p12::cpu::multiply_bf16(weights.data(), 0, 1, k, prepared, y, 4) == want);
      CHECK(p12::cpu::multiply_unpacked(weights.data(), 0, 1, k, prepared, y, 4, workspace.data()) == want);
    };
    for (const Activations kind : activation_kinds) {
      const Prepared<pn::pn3t> of_three(kind, x.data(), 0, 1, 1280, isa);
      const Prepared<pn::pn4t> of_four(kind, x.data(), 0, 1, 1280, isa);
      CHECK(three(of_three.data(), 1280) == Status::ok);
      CHECK(four(of_four.data(), 1280) == Status::ok);
      CHECK(three(of_four.data(), 1280) == no);
      CHECK(four(of_three.data(), 1280) == no);
      CHECK(three(of_three.data(), 320) == no);
      CHECK(four(of_four.data(), 640) == no);
      CHECK(three(of_three.data(), 1281) == Status::bad_length);
      CHECK(four(of_four.data(), 1281) == Status::bad_length);
      p12_all(of_four.data(), 1280, no);
    }
    const PreparedP12 p12(x.data(), 0, 1, 1280, isa);
    p12_all(p12.data(), 1280, Status::ok);
    p12_all(p12.data(), 512, no);
    p12_all(p12.data(), 1281, Status::bad_length);
    CHECK(three(p12.data(), 1280) == no);
    CHECK(four(p12.data(), 1280) == no);

    const Fenced other(1 << 16);  // a canary, then zeros, then whatever
    Random random(99);
    for (int i = 0; i < 20; ++i) {
      CHECK(three(other.data(), 1280) == no);
      CHECK(four(other.data(), 1280) == no);
      p12_all(other.data(), 1280, no);
      for (std::size_t e = 0; e < 64; ++e) other.data()[e] = i == 0 ? 0 : random.byte();
    }
    CHECK(three(other.data() + 8, 1280) == Status::misaligned);
    CHECK(four(other.data() + 32, 1280) == Status::misaligned);
    p12_all(other.data() + 16, 1280, Status::misaligned);
  });
}

TEST_CASE("Isa::best prepares and multiplies like the first of the list, or the one that PN_CPU_ISA names") {
  Random random(100);
  for (const auto& one : cases(4, 300)) {
    const std::vector<float> x = random_activations(random, 2 * one->k);
    const auto best = bits_of_all(one->multiply(x.data(), 4 * one->k, 2, Isa::best));
    bool one_of_them = false;
    for (const Isa isa : pn::cpu::isas())
      one_of_them = one_of_them || bits_of_all(one->multiply(x.data(), 4 * one->k, 2, isa)) == best;
    INFO(one->name());
    CHECK(one_of_them);
    if (std::getenv("PN_CPU_ISA") == nullptr)
      CHECK(bits_of_all(one->multiply(x.data(), 4 * one->k, 2, *pn::cpu::isas().begin())) == best);
  }
}
