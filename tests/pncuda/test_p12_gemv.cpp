// pncuda_gemv with BF16_P12 and plain BF16 on both paths: the same bits, and against sums in double.
#include "p12_testing.hpp"

using namespace testing;

namespace {

// A test case for each path; the tag chooses one.
#define EACH_PATH(text, function)                                            \
  TEST_CASE("p12_ffma: " text, "[p12_ffma]") { function(p12_ffma()); }       \
  TEST_CASE("p12_tensor: " text, "[p12_tensor]") { function(p12_tensor()); } \
  static_assert(true, "")

GemvOptions options_of(const Setting& setting, int y_type = PNCUDA_F32) {
  GemvOptions options;
  options.mode = setting.mode;
  options.y_type = y_type;
  return options;
}

pncuda_gemv_plan plan_of(const pncuda_weights& weights, const Activations& x, const GemvOptions& options) {
  const Output y(0, 0, 0);
  pncuda_gemv_args args = gemv_args(weights, x, y, options);
  args.y_stride = weights.rows * bytes_of(options.y_type);
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  REQUIRE(pncuda_gemv_query(&args, &plan) == PNCUDA_OK);
  return plan;
}

using Bits = std::vector<std::uint32_t>;

// The same bits; a NaN in place of a NaN (which of two NaN an addition keeps is the compiler's choice).
void require_same(const Bits& got, const Bits& want, int type) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!same_element(type, got[i], want[i])) {
      CAPTURE(i, got.size(), value_of(type, got[i]), value_of(type, want[i]));
      REQUIRE(got[i] == want[i]);
    }
}

// The largest |error| / S of fp32 results, and the length of the errors beside that of the results.
struct Errors {
  double worst = 0, norm = 0;
};
Errors errors_of(const P12Exact& exact, const Bits& bits) {
  REQUIRE(bits.size() == exact.y.size());
  Errors errors;
  double of_errors = 0, of_results = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const double error = std::fabs(static_cast<double>(float_of(bits[i])) - exact.y[i]);
    if (!(error <= 1e300)) return {HUGE_VAL, HUGE_VAL};
    of_errors += error * error;
    of_results += exact.y[i] * exact.y[i];
    if (error > 0) errors.worst = std::max(errors.worst, exact.s[i] == 0 ? HUGE_VAL : error / exact.s[i]);
  }
  errors.norm = of_results == 0 ? 0 : std::sqrt(of_errors / of_results);
  return errors;
}

void print(const P12Path& path, const std::string& what, double worst, const char* of = "|error| / S") {
  if (std::getenv("PN_CUDA_ERRORS") != nullptr)
    std::printf("%s %s: largest %s = %.3g\n", path.name, what.c_str(), of, worst);
}

// ---- Packed is plain, and both are right ----

void packed_is_plain(const P12Path& path) {
  const Restore restore;
  Random random(1);
  const int64_t row_counts[] = {1, 2, 7, 8, 15, 16, 17, 33, 40};
  std::size_t turn = 0;
  for (const int x_type : element_types) {
    double worst = 0;
    for (const int64_t blocks : {1, 2, 3, 5, 8, 20})
      for (const int64_t tokens : token_counts) {
        const int64_t rows = row_counts[turn % 9];
        const std::size_t here = turn++;
        if (left_out()) continue;
        const Setting& setting = path.settings[here / 3 % path.settings.size()];
        use(setting.device);
        const Bf16Weights weights(random_blocks(random, rows * blocks), rows, int64_t(here % 4), here % 2 == 0 ? 8 : 0);
        const Activations x(x_type, tokens, weights.k(), random, int64_t(here % 5),
                            here % 3 == 0 ? 0 : bytes_of(x_type) * int64_t(here % 7));
        GemvOptions options = options_of(setting);
        options.y_pad = int64_t(here % 3);
        options.y_shift = 4 * int64_t(here % 2);
        CAPTURE(path.name, setting.device.name, setting.mode, name_of(x_type), rows, blocks, tokens, here);
        REQUIRE(plan_of(weights.packed(), x, options).path == path.number);
        const Bits bits = gemv(weights.packed(), x, options);
        require_same(bits, gemv(weights.plain(), x, options), PNCUDA_F32);
        const Errors errors = errors_of(multiply_exactly(weights, x.values().data(), tokens), bits);
        CAPTURE(errors.worst);
        REQUIRE(errors.worst <= p12_bound(path.number, weights.k()));
        worst = std::max(worst, errors.worst / p12_bound(path.number, weights.k()));
        // Other types of results are those, rounded once.
        for (const int y_type : {PNCUDA_F16, PNCUDA_BF16}) {
          options.y_type = y_type;
          options.y_shift = 2 * int64_t(here % 4);
          const int type = bf16_types[(here + static_cast<std::size_t>(y_type)) % 2];
          Bits want;
          for (const std::uint32_t one : bits) want.push_back(bits_as(y_type, float_of(one)));
          require_same(gemv(weights.as(type), x, options), want, y_type);
        }
        REQUIRE(weights.unchanged());
      }
    print(path, name_of(x_type), worst, "|error| / bound");
  }
}
EACH_PATH("packed is plain, 1 to 20 blocks, 1 to 40 rows, 1 to 32 tokens, all types, any place", packed_is_plain);

// Rows as those of models.
void long_rows(const P12Path& path) {
  const Restore restore;
  Random random(2);
  std::size_t turn = 0;
  for (const int64_t k : {5120, 6144, 17408}) {
    if (left_out()) continue;
    const int64_t rows = k == 17408 ? 17 : 33;
    const Bf16Weights weights(gauss_blocks(random, rows * k / 256), rows);
    for (const int x_type : element_types) {
      const int64_t tokens = x_type == PNCUDA_BF16 ? 32 : 3;
      std::vector<float> values(size(tokens * k));
      for (float& value : values) value = static_cast<float>(random.gauss());
      const Activations x(x_type, tokens, k, values);
      const P12Exact exact = multiply_exactly(weights, x.values().data(), tokens);
      Bits first;
      for (std::size_t i = 0; i < (x_type == PNCUDA_BF16 ? path.settings.size() : 1); ++i) {
        const Setting& setting = path.settings[(turn + i) % path.settings.size()];
        use(setting.device);
        CAPTURE(path.name, setting.device.name, k, name_of(x_type));
        const Bits bits = gemv(weights.packed(), x, options_of(setting));
        REQUIRE(bits == gemv(weights.plain(), x, options_of(setting)));
        if (first.empty()) first = bits;
        REQUIRE(bits == first);
      }
      ++turn;
      const Errors errors = errors_of(exact, first);
      CAPTURE(path.name, k, name_of(x_type), errors.worst, errors.norm);
      REQUIRE(errors.worst <= p12_bound(path.number, k));
      REQUIRE(errors.norm <= 1e-6);
      const std::string what = std::string(name_of(x_type)) + " K = " + std::to_string(k);
      print(path, what, errors.worst);
      print(path, what, errors.worst / p12_bound(path.number, k), "|error| / bound");
      print(path, what, errors.norm, "|errors| / |results|");
    }
  }
}
EACH_PATH("long rows: packed is plain, against double", long_rows);

// More rows than the device takes at once; one device goes over its rows again and again.
void many_rows(const P12Path& path) {
  const Restore restore;
  Random random(3);
  for (const int64_t blocks : {1, 9}) {
    const int64_t rows = blocks == 1 ? 1203 : 403;
    const Bf16Weights weights(random_blocks(random, rows * blocks), rows);
    for (const int64_t tokens : {1, 32}) {
      if (left_out()) continue;
      const Activations x(PNCUDA_BF16, tokens, weights.k(), random);
      const P12Exact exact = multiply_exactly(weights, x.values().data(), tokens);
      Bits first;
      for (const Setting& setting : path.settings) {
        if (tokens == 32 && setting.device.multiprocessors > 2 && !first.empty()) continue;
        use(setting.device);
        CAPTURE(path.name, setting.device.name, blocks, tokens);
        const Bits bits = gemv(weights.packed(), x, options_of(setting));
        if (first.empty()) {
          first = bits;
          REQUIRE(errors_of(exact, bits).worst <= p12_bound(path.number, weights.k()));
        }
        REQUIRE(bits == first);
        if (setting.device.multiprocessors == 1) REQUIRE(gemv(weights.plain(), x, options_of(setting)) == first);
      }
    }
  }
}
EACH_PATH("more rows than the device takes at once", many_rows);

// One activation that is not 0, a power of two: every weight alone, exactly.
void every_weight_counts(const P12Path& path) {
  const Restore restore;
  Random random(4);
  const int64_t rows = 18, blocks = 9;
  // Every place of a block is listed somewhere: blocks 0 .. 85 of 162 list three each.
  std::vector<p12::Block392> all = random_blocks(random, rows * blocks);
  for (int place = 0; place < 258; ++place) {
    p12::Block392& block = all[size(place / 3 * 53 % (rows * blocks))];
    block.listed = 3;
    block.position[place % 3] = static_cast<uint8_t>((place % 3 * 86 + place / 3) % 256);
    block.exponent[place % 3] = static_cast<uint8_t>(random.between(1, 254));
  }
  const Bf16Weights weights(all, rows);
  const int64_t k = weights.k();
  std::size_t turn = 0;
  for (int64_t first = 0; first < k; first += 32) {
    if (left_out()) continue;
    const Setting& setting = path.settings[turn % path.settings.size()];
    const int x_type = element_types[turn / 2 % 3];
    if (turn % 8 == 0 || path.settings.size() > 1) use(setting.device);
    std::vector<float> values(size(32 * k), 0.0f);
    // Columns in another order for each call.
    for (int64_t m = 0; m < 32; ++m)
      values[size(m * k + first + (5 * m + first / 32) % 32)] = m % 2 == 0 ? 2.0f : -1.0f;
    const Activations x(x_type, 32, k, values);
    const Bits bits = gemv(weights.as(bf16_types[turn / 3 % 2]), x, options_of(setting));
    for (int64_t m = 0; m < 32; ++m)
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t column = first + (5 * m + first / 32) % 32;
        const float want = pn::bf16_to_float(weights.row(n)[column]) * (m % 2 == 0 ? 2.0f : -1.0f);
        const float got = float_of(bits[size(m * rows + n)]);
        if (!(got == want)) {  // 0 and -0 are one
          CAPTURE(path.name, setting.device.name, name_of(x_type), turn, column, m, n, got, want);
          REQUIRE(got == want);
        }
      }
    ++turn;
  }
}
EACH_PATH("every weight counts where it should, exactly", every_weight_counts);

// Listed weights at every place of a block, alone and in twos and threes, larger than all others together.
void every_listed_place(const P12Path& path) {
  const Restore restore;
  Random random(5);
  const int64_t rows = 32, blocks = 8;
  for (int listed = 1; listed <= 3; ++listed)
    for (const bool codes : {false, true}) {  // codes of listed weights that are not 0
      if (left_out()) continue;
      std::vector<p12::Block392> all;
      for (int64_t i = 0; i < rows * blocks; ++i) {
        p12::Block392 block = random_block(random, listed, 110);
        for (int j = 0; j < 3; ++j) {
          // Ascending; the first of them is every place once. Neighbours, too: in one pair, in one word.
          block.position[j] = static_cast<uint8_t>(std::min<int64_t>(255, i + j * (i % 5)));
          block.exponent[j] = static_cast<uint8_t>(130 + j + i % 3);
          const int at = block.position[j];
          if (!codes) {
            const std::uint32_t word = pn::detail::load_le32(block.codes + at / 8 * 4);
            pn::detail::store_le32(block.codes + at / 8 * 4, word & ~(15u << p12::code_shift(size(at % 8))));
          }
        }
        all.push_back(block);
      }
      const Bf16Weights weights(all, rows, 1, 8);
      for (std::size_t i = 0; i < path.settings.size(); ++i) {
        const Setting& setting = path.settings[i];
        if (i > 1 && listed != 2) continue;
        use(setting.device);
        const Activations x(element_types[i % 3], 4, weights.k(), random);
        CAPTURE(path.name, setting.device.name, listed, codes);
        const Bits bits = gemv(weights.packed(), x, options_of(setting));
        REQUIRE(bits == gemv(weights.plain(), x, options_of(setting)));
        REQUIRE(errors_of(multiply_exactly(weights, x.values().data(), 4), bits).worst <=
                p12_bound(path.number, weights.k()));
      }
    }
}
EACH_PATH("one to three listed weights at every place", every_listed_place);

// ---- Special numbers, any bytes ----

void special_weights(const P12Path& path) {
  const Restore restore;
  Random random(6);
  const int64_t rows = 19, blocks = 5, k = blocks * 256;
  const uint16_t special[] = {0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x7FC0, 0x0001, 0x8001, 0x007F, 0x8000, 0x0000, 0x7F7F};
  // A row of each special number; the others stay as they are.
  std::vector<uint16_t> bits(size(rows * k));
  for (uint16_t& weight : bits) weight = bf16_of(static_cast<float>(random.gauss() * 0.02 + 0.5));
  for (int64_t n = 0; n < rows; n += 2) {
    for (int64_t i = 0; i < k; ++i)
      if (random.below(200) == 0 && n / 2 >= 5) bits[size(n * k + i)] = special[n / 2 % 11];
    bits[size(n * k + (n * 131) % k)] = special[n / 2 % 11];
  }
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t b = 0; b < blocks; ++b) {  // no more than three in a block
      int found = 0;
      for (int64_t i = 0; i < 256; ++i) {
        uint16_t& weight = bits[size(n * k + b * 256 + i)];
        const int exponent = p12::exponent_of(weight);
        if ((exponent < 112 || exponent > 127) && ++found > 3) weight = 0x3F00;
      }
    }
  const Bf16Weights weights(packed_blocks(bits), rows);
  REQUIRE(std::equal(bits.begin(), bits.end(), weights.row(0)));
  for (const Setting& setting : path.settings)
    for (const int x_type : element_types) {
      if (left_out()) continue;
      use(setting.device);
      std::vector<float> values(size(2 * k));
      for (float& value : values) value = static_cast<float>(0.25 + random.uniform());
      const Activations x(x_type, 2, k, values);
      CAPTURE(path.name, setting.device.name, name_of(x_type));
      const Bits got = gemv(weights.packed(), x, options_of(setting));
      require_same(got, gemv(weights.plain(), x, options_of(setting)), PNCUDA_F32);
      const P12Exact exact = multiply_exactly(weights, x.values().data(), 2);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float y = float_of(got[i]);
        CAPTURE(i, y, exact.y[i]);
        if (std::isnan(exact.y[i]))
          REQUIRE(std::isnan(y));
        else if (std::isinf(exact.y[i]))  // on tensor cores NaN where x has parts
          REQUIRE((static_cast<double>(y) == exact.y[i] ||
                   (std::isnan(y) && path.number == PNCUDA_PATH_TENSOR && x_type != PNCUDA_BF16)));
        else if (std::fabs(exact.y[i]) < 3e38)
          REQUIRE(std::fabs(static_cast<double>(y) - exact.y[i]) <= p12_bound(path.number, k) * exact.s[i]);
      }
    }
}
EACH_PATH("weights that are NaN, infinite, subnormal or -0", special_weights);

// All weights of a block the same, whatever it is: every exponent, each as base or code.
void every_exponent(const P12Path& path) {
  const Restore restore;
  Random random(7);
  const int64_t rows = 64, blocks = 4;
  std::vector<p12::Block392> all;
  for (int e = 0; e < 256; ++e) {
    p12::Block392 block = random_block(random, e % 4, e);
    if (e > 240) block.listed = static_cast<uint8_t>(e % 2);  // invalid, safe
    all.push_back(block);
  }
  const Bf16Weights weights(all, rows);
  for (const Setting& setting : path.settings) {
    if (left_out()) continue;
    use(setting.device);
    const Activations x(PNCUDA_BF16, 3, blocks * 256, random);
    CAPTURE(path.name, setting.device.name);
    require_same(gemv(weights.packed(), x, options_of(setting)), gemv(weights.plain(), x, options_of(setting)),
                 PNCUDA_F32);
  }
}
EACH_PATH("every base exponent", every_exponent);

void any_bytes(const P12Path& path) {
  const Restore restore;
  Random random(8);
  for (int turn = 0; turn < 24; ++turn) {
    if (left_out()) continue;
    const Setting& setting = path.settings[size(turn) % path.settings.size()];
    use(setting.device);
    const int64_t rows = 18, blocks = turn % 3 + 3;
    const Bf16Weights weights(hostile_blocks(random, rows * blocks), rows, turn % 2, turn % 4 == 0 ? 8 : 0);
    std::vector<float> values(size(3 * weights.k()));
    // Random bytes make nearly every sum NaN; so the other tokens see one block only, or one weight.
    for (int64_t i = 0; i < weights.k(); ++i) values[size(i)] = float_of(random.next32());
    for (int64_t m = 1; m < 3; ++m)
      for (int64_t i = 0; i < (m == 1 ? 16 : 1); ++i)
        values[size(m * weights.k()) + random.below(size(weights.k()))] = static_cast<float>(random.gauss());
    const Activations x(element_types[turn % 3], 3, weights.k(), values);
    CAPTURE(path.name, setting.device.name, turn);
    require_same(gemv(weights.packed(), x, options_of(setting)), gemv(weights.plain(), x, options_of(setting)),
                 PNCUDA_F32);
    REQUIRE(weights.unchanged());
  }
}
EACH_PATH("any bytes are safe, and the weights of p12::unpack_block", any_bytes);

// The same bytes, every weight by itself: what random sums would hide behind NaN.
void any_bytes_weight_by_weight(const P12Path& path) {
  const Restore restore;
  Random random(9);
  const int64_t rows = 16;
  std::vector<p12::Block392> all = hostile_blocks(random, rows);
  for (p12::Block392& block : all) {  // finite weights only: 0 * infinity
    if (block.base > 230) block.base = static_cast<uint8_t>(241 + block.base % 15);
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint32_t word = pn::detail::load_le32(block.codes + 4 * i);
      if (block.base >= 240) {
        std::uint32_t changed = 0;
        for (std::size_t t = 0; t < 8; ++t) {
          std::uint32_t code = word >> p12::code_shift(t) & 15u;
          if (block.base + code == 255) code = 15u;
          if (block.base + code == 255) code = 14u;
          changed |= code << p12::code_shift(t);
        }
        pn::detail::store_le32(block.codes + 4 * i, changed);
      }
    }
    for (uint8_t& exponent : block.exponent) exponent = std::min<uint8_t>(exponent, 250);
  }
  const Bf16Weights weights(all, rows);
  use(path.settings[0].device);
  for (int64_t first = 0; first < 256; first += 16) {
    if (left_out()) continue;
    std::vector<float> values(size(16 * 256), 0.0f);
    for (int64_t m = 0; m < 16; ++m) values[size(m * 256 + first + m)] = 1.0f;
    const Bits bits = gemv(weights.packed(), Activations(PNCUDA_BF16, 16, 256, values), options_of(path.settings[0]));
    for (int64_t m = 0; m < 16; ++m)
      for (int64_t n = 0; n < rows; ++n) {
        const float want = pn::bf16_to_float(weights.row(n)[first + m]), got = float_of(bits[size(m * rows + n)]);
        CAPTURE(path.name, n, first + m, want, got);
        REQUIRE(got == want);
      }
  }
}
EACH_PATH("any bytes, weight by weight", any_bytes_weight_by_weight);

void special_activations(const P12Path& path) {
  const Restore restore;
  Random random(10);
  const int64_t rows = 19;
  const Bf16Weights weights(random_blocks(random, rows * 9), rows);
  const int64_t k = weights.k();
  std::size_t turn = 0;
  for (const int x_type : element_types) {
    const std::vector<float> ordinary = random_values(random, 5 * k);
    // NaN: quiet, signalling, two whose payloads are in the lower half of their fp32 only.
    const float bad[] = {
        HUGE_VALF, -HUGE_VALF, std::nanf(""), float_of(0x7F800001u), float_of(0xFFBFFFFFu), float_of(0x7F808000u)};
    for (std::size_t which = 0; which < std::size(bad); ++which)
      for (const int64_t place : {int64_t{0}, k / 2 + 7, k - 1}) {
        const Setting& setting = path.settings[turn++ % path.settings.size()];
        if (left_out()) continue;
        use(setting.device);
        const auto plain = gemv(weights.packed(), Activations(x_type, 5, k, ordinary), options_of(setting));
        // The activations' bits, not their values: a conversion might make a signalling NaN quiet.
        std::vector<float> values = ordinary;
        values[size(3 * k + place)] = 0.0f;
        const Activations zero(x_type, 5, k, values);
        Input memory(std::vector<uint8_t>(zero.data(), zero.data() + 5 * zero.stride()));
        std::uint32_t bits_of_bad = bits_of(bad[which]);
        if (x_type == PNCUDA_BF16) bits_of_bad = which == 3 || which == 5 ? 0x7F81u : bits_of_bad >> 16;
        if (x_type == PNCUDA_F16)
          bits_of_bad = which == 0 ? 0x7C00u : which == 1 ? 0xFC00u : which == 2 ? 0x7E00u : 0x7C01u;
        store_bits(x_type, memory.data() + 3 * zero.stride(), place, bits_of_bad);
        const Output y(5, rows * 4, rows * 4);
        const pncuda_weights w = weights.as(bf16_types[turn % 2]);
        pncuda_gemv_args args = gemv_args(w, zero, y, options_of(setting));
        args.x = memory.data();
        REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
        for (int64_t m = 0; m < 5; ++m)
          for (int64_t n = 0; n < rows; ++n) {
            const float got = float_of(load_bits(PNCUDA_F32, y.row(m), n));
            const float weight = pn::bf16_to_float(weights.row(n)[place]);
            CAPTURE(path.name, setting.device.name, name_of(x_type), which, place, m, n, got, weight);
            if (m != 3)
              REQUIRE(bits_of(got) == plain[size(m * rows + n)]);
            else if (which < 2 && weight != 0.0f)
              REQUIRE(got == (which == 0 ? 1.0f : -1.0f) * std::copysign(HUGE_VALF, weight));
            else
              REQUIRE(std::isnan(got));
          }
      }
  }
}
EACH_PATH("NaN and infinities among the activations", special_activations);

// Magnitudes over all that fp32 has. Products below the smallest fp32 are lost: `grain` for each.
void any_magnitude(const P12Path& path) {
  const Restore restore;
  Random random(11);
  const int64_t rows = 17, blocks = 5, k = blocks * 256;
  const double grain = path.number == PNCUDA_PATH_TENSOR ? 0x1p-126 : 0x1p-149;
  double worst = 0;
  std::size_t turn = 0;
  for (const int x_type : element_types)
    for (int e = -140; e <= 120; e += 20) {
      if (x_type == PNCUDA_F16 && (e < -20 || e > 0)) continue;
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      if (left_out()) continue;
      use(setting.device);
      const Bf16Weights weights(random_blocks(random, rows * blocks), rows);
      std::vector<float> values(size(2 * k));
      for (float& value : values)  // 14 powers of two, each with its own sign
        value = static_cast<float>(std::ldexp(random.gauss(), e - random.between(0, 13)));
      const Activations x(x_type, 2, k, values);
      const P12Exact exact = multiply_exactly(weights, x.values().data(), 2);
      const Bits bits = gemv(weights.packed(), x, options_of(setting));
      require_same(bits, gemv(weights.plain(), x, options_of(setting)), PNCUDA_F32);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const double y = static_cast<double>(float_of(bits[i]));
        CAPTURE(path.name, setting.device.name, name_of(x_type), e, i, y, exact.y[i], exact.s[i]);
        if (exact.s[i] >= 3e38) continue;
        const double error = std::fabs(y - exact.y[i]);
        REQUIRE(error <= p12_bound(path.number, k) * exact.s[i] + static_cast<double>(k) * grain);
        if (exact.s[i] > 1e-28) worst = std::max(worst, error / exact.s[i]);
      }
    }
  print(path, "any magnitude", worst);
}
EACH_PATH("activations of any magnitude", any_magnitude);

// fp16 and fp32 are multiplied with all their digits: by one weight that is a power of two, results are exact.
void all_digits_count(const P12Path& path) {
  const Restore restore;
  Random random(12);
  const int64_t rows = 16, k = 512;
  std::vector<uint16_t> bits(size(rows * k), 0);
  for (int64_t n = 0; n < rows; ++n) bits[size(n * k + (n * 37 + 5) % k)] = n % 2 == 0 ? 0x3F80 : 0xBE80;
  const Bf16Weights weights(packed_blocks(bits), rows);
  for (std::size_t turn = 0; turn < 60; ++turn) {
    const Setting& setting = path.settings[turn % path.settings.size()];
    if (left_out()) continue;
    use(setting.device);
    const int x_type = element_types[turn % 2];
    std::vector<float> values(size(5 * k));
    for (float& value : values)
      value =
          x_type == PNCUDA_F32
              ? float_of((random.next32() & 0x807FFFFFu) | static_cast<std::uint32_t>(random.between(17, 250)) << 23)
              : pn::half_to_float(static_cast<uint16_t>(random.next32() & 0xBFFFu));
    for (std::size_t i = 0; i < values.size(); i += 3)  // many zeros and ones in a row
      values[i] = x_type == PNCUDA_F32
                      ? float_of(0x3F800000u | (0x7FFFFFu >> random.below(23)))
                      : pn::half_to_float(static_cast<uint16_t>(0x3C00u | (0x3FFu >> random.below(10))));
    const Activations x(x_type, 5, k, values);
    const Bits got = gemv(weights.as(bf16_types[turn / 2 % 2]), x, options_of(setting));
    for (int64_t m = 0; m < 5; ++m)
      for (int64_t n = 0; n < rows; ++n) {
        const float want = x.token(m)[(n * 37 + 5) % k] * (n % 2 == 0 ? 1.0f : -0.25f);
        CAPTURE(path.name, setting.device.name, name_of(x_type), m, n);
        REQUIRE(float_of(got[size(m * rows + n)]) == want);
      }
  }
}
EACH_PATH("activations count with all their digits", all_digits_count);

// ---- The same bits ----

// The plain weights are gone before the packed ones are multiplied, and the other way round.
void reads_only_what_it_is_given(const P12Path& path) {
  const Restore restore;
  Random random(13);
  for (const bool packed : {false, true}) {
    const Setting& setting = path.settings[packed ? 1 : 0];
    use(setting.device);
    const int64_t rows = 33, blocks = 8;
    const std::vector<p12::Block392> all = gauss_blocks(random, rows * blocks);
    const Bf16Weights before(all, rows);
    Bf16Weights weights(all, rows);
    const Activations x(PNCUDA_F16, 9, weights.k(), random);
    const Bits want = gemv(before.plain(), x, options_of(setting));
    if (packed)
      weights.poison_plain();
    else
      weights.poison_packed();
    REQUIRE(gemv(packed ? weights.packed() : weights.plain(), x, options_of(setting)) == want);
    REQUIRE(weights.unchanged());
    for (const std::uint32_t bits : gemv(packed ? weights.plain() : weights.packed(), x, options_of(setting)))
      REQUIRE(std::isnan(float_of(bits)));
  }
}
EACH_PATH("reads only the weights it is given", reads_only_what_it_is_given);

// Everything that must not move a bit, against one token at a time on the first device.
void bits_are_the_same(const P12Path& path) {
  const Restore restore;
  Random random(14);
  struct Shape {
    int x_type;
    int64_t rows, blocks;
  };
  for (const Shape& shape : {Shape{PNCUDA_BF16, 35, 5}, Shape{PNCUDA_F16, 18, 9}, Shape{PNCUDA_F32, 19, 7},
                             Shape{PNCUDA_BF16, 100, 24}, Shape{PNCUDA_F32, 17, 43}, Shape{PNCUDA_F16, 66, 29}}) {
    if (left_out()) continue;
    host_cuda::set_thread_order(order_of_environment());
    use(path.settings[0].device);
    const Bf16Weights weights(random_blocks(random, shape.rows * shape.blocks), shape.rows);
    const int64_t tokens_at_most = PNCUDA_P12_MAX_TOKENS;
    const Activations x(shape.x_type, tokens_at_most, weights.k(), random);
    Bits alone;  // [tokens][rows]
    for (int64_t m = 0; m < tokens_at_most; ++m) {
      const Bits one = gemv(weights.packed(), pick(x, {m}), options_of(path.settings[0]));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    CAPTURE(path.name, name_of(shape.x_type), shape.rows, shape.blocks);
    const auto compare = [&](const std::vector<int64_t>& tokens, int type, const Setting& setting, int64_t pad = 0) {
      const Bits bits = gemv(weights.as(type), pick(x, tokens, pad), options_of(setting));
      for (std::size_t m = 0; m < tokens.size(); ++m)
        for (int64_t n = 0; n < shape.rows; ++n) {
          const std::uint32_t want = alone[size(tokens[m] * shape.rows + n)];
          if (bits[m * size(shape.rows) + size(n)] != want) {
            CAPTURE(m, n, type, tokens.size(), setting.device.name, setting.mode, pad);
            REQUIRE(bits[m * size(shape.rows) + size(n)] == want);
          }
        }
    };
    // Any number of tokens, any places, any device.
    for (const int64_t tokens : token_counts) {
      std::vector<int64_t> picked;
      for (int64_t m = 0; m < tokens; ++m) picked.push_back((7 * m + 3 * tokens) % 32);
      const std::size_t turn = size(tokens);
      const Setting& setting = path.settings[turn % path.settings.size()];
      use(setting.device);
      compare(picked, bf16_types[turn % 2], setting, tokens % 3);
      if (tokens == 4) compare({5, 5, 0, 5}, PNCUDA_BF16_P12, setting);
    }
    for (const Setting& setting : path.settings) {
      use(setting.device);
      compare({2}, PNCUDA_BF16_P12, setting);
      compare({15, 2, 0}, PNCUDA_BF16_P12, setting);
      compare({2, 0, 7, 1, 6, 5, 3, 4, 15, 14, 9, 31, 17, 16, 20, 30, 29, 8}, PNCUDA_BF16_P12, setting);
    }
    // Any order of threads and blocks.
    std::size_t turn = 0;
    for (const char* const order : {"forward", "reverse", "1", "2"}) {
      CAPTURE(order);
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      use(setting.device);
      host_cuda::set_thread_order(order_of(order));
      host_cuda::set_block_order(order_of(order));
      host_cuda::set_host_threads(order[0] == '2' ? 2 : 1);
      compare({3}, bf16_types[turn % 2], setting);
      compare({3, 4, 0, 1, 6}, bf16_types[turn % 2], setting);
    }
    host_cuda::set_host_threads(1);
    host_cuda::set_block_order({});
    host_cuda::set_thread_order(order_of_environment());
    // Neighbours that are NaN or infinite.
    for (const int64_t tokens : {2, 3, 4, 5, 8, 16, 32}) {
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      use(setting.device);
      const int64_t good = (tokens * 5 + 1) % tokens, k = weights.k();
      std::vector<float> values(size(tokens * k), tokens % 2 == 0 ? std::nanf("") : HUGE_VALF);
      std::copy(x.token(11), x.token(11) + k, values.begin() + good * k);
      const Bits bits = gemv(weights.packed(), Activations(shape.x_type, tokens, k, values), options_of(setting));
      for (int64_t n = 0; n < shape.rows; ++n) {
        CAPTURE(tokens, good, n, setting.device.name);
        REQUIRE(bits[size(good * shape.rows + n)] == alone[size(11 * shape.rows + n)]);
      }
    }
  }
}
EACH_PATH("bits: any number of tokens, place, device, order and neighbour", bits_are_the_same);

// Ranges of rows and of columns are views.
void shards(const P12Path& path) {
  const Restore restore;
  Random random(15);
  const int64_t rows = 45, blocks = 9;
  const std::vector<p12::Block392> all = random_blocks(random, rows * blocks);
  const Bf16Weights weights(all, rows, 1, 8);
  const Activations x(PNCUDA_F32, 3, weights.k(), random);
  std::size_t turn = 0;
  use(path.settings[0].device);
  const Bits whole = gemv(weights.packed(), x, options_of(path.settings[0]));
  for (const int type : bf16_types) {
    const pncuda_weights matrix = weights.as(type);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {1, 20}, {44, 1}, {7, 38}, {45, 0}, {3, 16}}) {
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      use(setting.device);
      pncuda_weights shard{};
      REQUIRE(pncuda_row_shard(&matrix, first, count, &shard) == PNCUDA_OK);
      const Bits bits = gemv(shard, x, options_of(setting));
      for (int64_t m = 0; m < 3; ++m)
        for (int64_t n = 0; n < count; ++n) {
          CAPTURE(path.name, type, first, count, m, n);
          REQUIRE(bits[size(m * count + n)] == whole[size(m * rows + first + n)]);
        }
    }
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 7}, {8, 1}, {3, 5}, {9, 0}}) {
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      use(setting.device);
      pncuda_weights shard{};
      REQUIRE(pncuda_column_shard(&matrix, first * 256, count * 256, &shard) == PNCUDA_OK);
      std::vector<p12::Block392> part;
      std::vector<float> values;
      for (int64_t n = 0; n < rows; ++n)
        for (int64_t b = 0; b < count; ++b) part.push_back(all[size(n * blocks + first + b)]);
      for (int64_t m = 0; m < 3; ++m)
        values.insert(values.end(), x.token(m) + first * 256, x.token(m) + (first + count) * 256);
      const Activations part_of_x(PNCUDA_F32, 3, count * 256, values);
      CAPTURE(path.name, type, first, count);
      const Bits bits = gemv(shard, part_of_x, options_of(setting));
      if (count == 0) {
        for (const std::uint32_t one : bits) REQUIRE(one == 0);
        continue;
      }
      REQUIRE(bits == gemv(Bf16Weights(part, rows).plain(), part_of_x, options_of(setting)));
    }
  }
}
EACH_PATH("shards are views", shards);

// The order of p12_ffma.cu, from its words alone.
TEST_CASE("p12_ffma: sums in the order that is written down, on every device", "[p12_ffma]") {
  const Restore restore;
  Random random(16);
  std::size_t turn = 0;
  for (const int64_t blocks : {1, 2, 3, 6, 7, 13, 20, 21, 68}) {
    const int64_t rows = blocks == 68 ? 5 : 9;
    const Bf16Weights weights(random_blocks(random, rows * blocks), rows);
    for (const int64_t tokens : {1, 2, 3, 6, 19}) {
      if (left_out()) continue;
      const Activations x(element_types[turn % 3], tokens, weights.k(), random);
      Bits want;
      for (int64_t m = 0; m < tokens; ++m)
        for (int64_t n = 0; n < rows; ++n) want.push_back(bits_of(ffma_sum(weights.row(n), x.token(m), weights.k())));
      for (const Setting& setting : p12_ffma().settings) {
        const int type = bf16_types[turn++ % 2];
        use(setting.device);
        CAPTURE(blocks, tokens, setting.device.name, type);
        require_same(gemv(weights.as(type), x, options_of(setting)), want, PNCUDA_F32);
      }
    }
  }
}

void nothing_to_do(const P12Path& path) {
  const Restore restore;
  Random random(17);
  std::size_t turn = 0;
  for (const int type : bf16_types)
    for (const int y_type : element_types) {
      const Setting& setting = path.settings[turn++ % path.settings.size()];
      use(setting.device);
      // k = 0: results are 0.
      for (const int64_t rows : {1, 16, 37})
        for (const int64_t tokens : {1, 3, 32}) {
          const Output y(tokens, rows * bytes_of(y_type), rows * bytes_of(y_type) + 8);
          const pncuda_weights w{sizeof w, type, PNCUDA_NATIVE, nullptr, rows, 0, 0};
          const pncuda_gemv_args args{sizeof args, &w,     nullptr,      0, PNCUDA_F16, y_type, y.data(),
                                      y.stride(),  tokens, setting.mode, 0};
          REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
          REQUIRE(y.intact());
          for (int64_t m = 0; m < tokens; ++m)
            for (int64_t n = 0; n < rows; ++n) REQUIRE(load_bits(y_type, y.row(m), n) == 0);
        }
      // No tokens or no rows: nothing is launched.
      const Bf16Weights weights(random_blocks(random, 17 * 2), 17);
      const Activations x(PNCUDA_F16, 1, weights.k(), random);
      const Output y(1, 17 * bytes_of(y_type), 17 * bytes_of(y_type));
      for (const bool no_tokens : {true, false}) {
        pncuda_weights w = weights.as(type);
        pncuda_gemv_args args = gemv_args(w, x, y, options_of(setting, y_type));
        if (no_tokens)
          args.tokens = 0;
        else
          w.rows = 0;
        for (const bool null : {false, true}) {
          if (null) {
            args.x = nullptr;
            args.y = nullptr;
            w.data = nullptr;
          }
          host_cuda::reset_calls();
          REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
          REQUIRE(host_cuda::calls().count("launch") == 0);
          REQUIRE(y.untouched());
          pncuda_gemv_plan plan{};
          plan.struct_size = sizeof plan;
          REQUIRE(pncuda_gemv_query(&args, &plan) == PNCUDA_OK);
          REQUIRE(plan.path == PNCUDA_PATH_NONE);
        }
      }
    }
}
EACH_PATH("no tokens, no rows, no columns", nothing_to_do);

}  // namespace
