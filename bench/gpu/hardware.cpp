// gpu_bench: what the kernels take for granted and only a GPU can answer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench.hpp"
#include "kernels.hpp"

namespace gpu_bench {

namespace {

using Codes = std::vector<std::uint16_t>;

bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

// mma.m16n8k16 with fp16 or bf16 factors.
class Mma {
 public:
  explicit Mma(bool bf16) : bf16_(bf16) {}

  const char* name() const { return bf16_ ? "mma.m16n8k16 bf16" : "mma.m16n8k16"; }
  float value(std::uint16_t code) const { return bf16_ ? pn::bf16_to_float(code) : pn::half_to_float(code); }
  std::uint16_t code(float value) const { return bf16_ ? pn::float_to_bf16(value) : pn::float_to_half(value); }
  Codes normal_codes(std::size_t count, unsigned seed) const {
    Codes made;
    for (const float v : normal_numbers(count, seed)) made.push_back(code(v));
    return made;
  }

  // [16][8] of [16][16 * steps] and [8][16 * steps].
  std::vector<float> product(const Codes& a, const Codes& b, int steps = 1) const {
    const Array<std::uint16_t> left(a), right(b);
    const Array<float> d(16 * 8);
    require(launch_multiply(bf16_, left.get(), right.get(), steps, d.get()), "a launch");
    require(cudaDeviceSynchronize(), "a kernel");
    return d.values();
  }
  double exact(const Codes& a, const Codes& b, std::size_t row, std::size_t column, std::size_t k,
               double* sizes = nullptr) const {
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i) {
      const double one = static_cast<double>(value(a[row * k + i])) * static_cast<double>(value(b[column * k + i]));
      sum += one;
      if (sizes != nullptr) *sizes += std::abs(one);
    }
    return sum;
  }
  // What one row and column of such numbers give.
  float sum_of(const std::vector<float>& a, const std::vector<float>& b) const {
    Codes left(16 * 16), right(8 * 16);
    for (std::size_t i = 0; i < a.size(); ++i) {
      left[i] = code(a[i]);
      right[i] = code(b[i]);
    }
    return product(left, right)[0];
  }
  float sum_of(const std::vector<float>& a) const { return sum_of(a, std::vector<float>(a.size(), 1.0f)); }

  // Subnormal codes n * 2^-24 (2^-133) times whole numbers (times 2^60): exact, and zero if such operands are flushed.
  bool is_exact(bool subnormal_a, bool subnormal_b) const {
    Codes a(16 * 16), b(8 * 16);
    const std::size_t codes = bf16_ ? 128 : 1024;
    const float scale = bf16_ ? 0x1p60f : 1.0f;
    for (std::size_t i = 0; i < a.size(); ++i)
      a[i] = subnormal_a ? static_cast<std::uint16_t>(i * 7 % codes) : code(scale * static_cast<float>(i * 7 % 64));
    for (std::size_t i = 0; i < b.size(); ++i)
      b[i] =
          subnormal_b ? static_cast<std::uint16_t>(i * 5 % 64) : code(scale * (static_cast<float>(i * 5 % 64) - 31.0f));
    const auto d = product(a, b);
    bool right = true;
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t column = 0; column < 8; ++column)
        right &= d[row * 8 + column] == static_cast<float>(exact(a, b, row, column, 16));
    return right;
  }

  bool columns_are_apart() const {
    const Codes a = normal_codes(16 * 16, 1), b = normal_codes(8 * 16, 2);
    const auto clean = product(a, b);
    bool apart = true;
    Codes garbage_codes = {0x7E00, 0x7C00, 0xFC00, 0x7BFF, 0x0001};
    if (bf16_) garbage_codes = {0x7FC0, 0x7F80, 0xFF80, 0x7F7F, 0x0001};
    for (std::size_t bad = 0; bad < 8; ++bad)
      for (const std::uint16_t garbage : garbage_codes) {
        Codes dirty = b;
        for (std::size_t k = 0; k < 16; ++k) dirty[bad * 16 + k] = garbage;
        const auto d = product(a, dirty);
        for (std::size_t i = 0; i < d.size(); ++i) apart &= i % 8 == bad || same(d[i], clean[i]);
      }
    return apart;
  }

  bool columns_do_not_depend_on_place() const {
    const Codes a = normal_codes(16 * 16, 3), one = normal_codes(16, 4);
    bool equal = true;
    float first[16];
    for (std::size_t place = 0; place < 8; ++place) {
      Codes b = normal_codes(8 * 16, 5 + static_cast<unsigned>(place));
      std::copy(one.begin(), one.end(), b.begin() + static_cast<std::ptrdiff_t>(place * 16));
      const auto d = product(a, b);
      for (std::size_t row = 0; row < 16; ++row) {
        if (place == 0) first[row] = d[row * 8];
        equal &= same(d[row * 8 + place], first[row]);
      }
    }
    return equal;
  }

  // ---- How it adds ----

  // Bits below those of fp32 that are kept of what is smaller: 1 + 2^-24 + .. + 2^-j + 2^-j = 1 + 2^-23 while they are.
  // Up to 6, so that all are among the first eight products, which a device may add apart from the rest.
  int bits_kept() const {
    int kept = 0;
    for (int j = 24; j <= 29; ++j) {
      std::vector<float> a = {1.0f};
      for (int i = 24; i <= j; ++i) a.push_back(std::ldexp(1.0f, -i));
      a.push_back(a.back());
      if (sum_of(a, with_factors(a)) == 1.0f + 0x1p-23f) kept = j - 23;
    }
    return kept;
  }
  // Products that are added before there is a rounding: those whose 2^-24 makes 2^-23 with another one's.
  int added_together() const {
    int count = 2;
    for (std::size_t i = 2; i < 16; ++i) {
      std::vector<float> a(16, 0.0f);
      a[0] = 1.0f;
      a[1] = a[i] = 0x1p-24f;
      if (sum_of(a, with_factors(a)) == 1.0f + 0x1p-23f) ++count;
    }
    return count;
  }
  // 1 + 1.5 * 2^-23, and that negated.
  const char* rounding() const {
    std::vector<float> a = {1.0f, 0x1p-23f, 0x1p-24f};
    const auto b = with_factors(a);
    const float up = sum_of(a, b);
    for (float& v : a) v = -v;
    const float down = sum_of(a, b);
    const float near_zero = 1.0f + 0x1p-23f, away = 1.0f + 0x1p-22f;
    if (up == near_zero && down == -near_zero) return "toward zero";
    if (up == away && down == -away) return "to nearest";
    if (up == near_zero && down == -away) return "down";
    return up == away && down == -near_zero ? "up" : "in some other way";
  }
  // |d - exact| / S of normal numbers, the largest, and the mean of what results are too near to zero by.
  struct Errors {
    double largest = 0, toward_zero = 0;
  };
  Errors errors(int steps, int tries) const {
    Errors found;
    const auto k = static_cast<std::size_t>(16 * steps);
    for (int i = 0; i < tries; ++i) {
      const Codes a = normal_codes(16 * k, 100 + static_cast<unsigned>(2 * i)),
                  b = normal_codes(8 * k, 101 + static_cast<unsigned>(2 * i));
      const auto d = product(a, b, steps);
      for (std::size_t row = 0; row < 16; ++row)
        for (std::size_t column = 0; column < 8; ++column) {
          double size = 0;
          const double right = exact(a, b, row, column, k, &size);
          const auto got = static_cast<double>(d[row * 8 + column]);
          const double error = std::abs(got - right) / size;
          found.largest = std::isnan(error) ? HUGE_VAL : std::max(found.largest, error);
          found.toward_zero += (std::abs(right) - std::abs(got)) / size / (128.0 * tries);
        }
    }
    return found;
  }

  // ---- What is not finite ----

  bool keeps_infinities_and_nan() const {
    constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    bool right = true;
    for (std::size_t at = 0; at < 15; ++at) {
      std::vector<float> a(16, 0.5f), b(16, 1.0f);
      a[at] = infinity;
      right &= sum_of(a, b) == infinity;
      b[at] = -1.0f;
      right &= sum_of(a, b) == -infinity;
      b[at] = 0.0f;
      right &= std::isnan(sum_of(a, b));  // infinity * 0
      b[at] = 1.0f;
      a[15] = -infinity;
      right &= std::isnan(sum_of(a, b));  // infinity - infinity
      a[15] = 0.5f;
      a[at] = nan;
      right &= std::isnan(sum_of(a, b));
    }
    return right;
  }

 private:
  // fp16 has no 2^-29: there b, else 1, takes a part of it. Changes a.
  std::vector<float> with_factors(std::vector<float>& a) const {
    std::vector<float> b(a.size(), 1.0f);
    for (std::size_t i = 0; i < a.size(); ++i)
      while (!bf16_ && a[i] != 0.0f && std::abs(a[i]) < 0x1p-12f) {
        a[i] *= 0x1p12f;
        b[i] *= 0x1p-12f;
      }
    return b;
  }

  bool bf16_;
};

// Subnormal numbers times a power of two, to normal results and to subnormal ones.
bool ffma_keeps_subnormals() {
  std::vector<std::uint32_t> a(32), b(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    a[i] = (i + 1) << i % 20;
    b[i] = (i % 2 == 0 ? 127u + 100u : 127u) << 23;
  }
  const Array<std::uint32_t> left(a), right(b), d(32);
  require(launch_multiply_add(left.get(), right.get(), d.get()), "a launch");
  const auto got = d.values();
  bool kept = true;
  for (std::size_t i = 0; i < 32; ++i) {
    const float exact = std::ldexp(pn::detail::bit_cast<float>(a[i]), i % 2 == 0 ? 100 : 0);
    kept &= got[i] == pn::detail::bit_cast<std::uint32_t>(exact);
  }
  return kept;
}

bool hfma2_keeps_subnormals() {
  std::vector<std::uint32_t> a(32), b(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    a[i] = (i + 1) | (1023 - i) << 16;
    b[i] = (i % 2 == 0 ? 0x6400u : 0x3C00u) * 0x00010001u;  // 1024 and 1
  }
  const Array<std::uint32_t> left(a), right(b), d(64);
  require(launch_multiply_add_half2(left.get(), right.get(), d.get()), "a launch");
  const auto got = d.values();
  bool kept = true;
  for (std::size_t i = 0; i < 64; ++i)
    for (const unsigned shift : {0u, 16u}) {
      const float times = i % 2 == 0 ? 1024.0f : 1.0f;
      const auto code = static_cast<std::uint16_t>(a[i % 32] >> shift & 0xFFFFu);
      kept &= (got[i] >> shift & 0xFFFFu) == pn::float_to_half(pn::half_to_float(code) * times);
    }
  return kept;
}

}  // namespace

void ask_hardware(const Machine& machine, Report& report) {
  const auto answer = [&](const char* question, bool yes) {
    report.line(std::string(yes ? "yes  " : "NO   ") + question);
    report.expect(yes, question);
  };
  answer("fp32 multiply-adds keep subnormal operands and results", ffma_keeps_subnormals());
  answer("fp16 products and multiply-adds keep subnormal operands and results", hfma2_keeps_subnormals());
  if (machine.major < 8) return;
  for (const bool bf16 : {false, true}) {
    const Mma mma(bf16);
    const auto ask = [&](const char* question, bool yes) { answer((std::string(mma.name()) + question).c_str(), yes); };
    ask(" keeps subnormal operands on the left: products are exact", mma.is_exact(true, false));
    ask(" keeps subnormal operands on the right: products are exact", mma.is_exact(false, true));
    ask(": NaN, infinities and garbage in a column leave the bits of the others alone", mma.columns_are_apart());
    ask(": a column's bits depend neither on its place nor on the others", mma.columns_do_not_depend_on_place());
    ask(": infinities and NaN among 16 products give what IEEE 754 says", mma.keeps_infinities_and_nan());
    const int bits = mma.bits_kept();
    report.line(format("     %s rounds sums %s, keeps %s%d bits below those of the largest, adds %d products at once",
                       mma.name(), bits == 0 ? "in a way that cannot be told" : mma.rounding(),
                       bits == 6 ? "at least " : "", bits, bits == 0 ? 0 : mma.added_together()));
    report.figures.push_back(
        format("{\"name\": \"%s\", \"value\": %d, \"unit\": \"bits kept\", \"rounds\": \"%s\", \"added_together\": %d}",
               mma.name(), bits, mma.rounding(), mma.added_together()));
    for (const int steps : {1, 8}) {
      const Mma::Errors errors = mma.errors(steps, 32);
      report.line(format("     %s, %d products: largest error %.2f * 2^-24 * S, on average %.3f * 2^-24 * S too small",
                         mma.name(), 16 * steps, errors.largest * 0x1p24, errors.toward_zero * 0x1p24));
      report.largest(format("%s, %d products, of S", mma.name(), 16 * steps), errors.largest);
      // The bound of PNCUDA_PATH_TENSOR in pncuda.h for K = 128, a unit of the kernel.
      if (bf16 && steps == 8)
        ask(": 128 products are within the bound of pncuda.h", errors.largest <= (128.0 / 512 + 16) * 0x1p-22);
    }
  }
  const Mma bf16(true);
  const std::vector<float> small(16, 0x1p-70f);
  report.line(
      format("     mma.m16n8k16 bf16: 16 * 2^-70 * 2^-75, a subnormal sum, is %s; 2^127 * 2 is %g; 2^127 + 2^127 "
             "- 2^127 is %g",
             bf16.sum_of(small, std::vector<float>(16, 0x1p-75f)) == 0x1p-141f ? "exact" : "not exact",
             static_cast<double>(bf16.sum_of({0x1p127f}, {2.0f})),
             static_cast<double>(bf16.sum_of({0x1p127f, 0x1p127f, -0x1p127f}))));
}

}  // namespace gpu_bench
