// PN: any bytes as blocks, any bits as weights, importances and doubles.
//
// Input: one byte that chooses the kind, then
//   0  blocks: rows of 34-byte blocks, read as pn3t and as pn4t
//   1  fp32 weights, quantized to both types
//   2  fp32 weights (first half) with an fp64 importance each (second half)
//   3  doubles, converted
//   4  weights in units of a scale, as they come from models: scale fp32, then int8 each (x / 16 units), so that the
//      search has something to decide; with importances i / 8 when the first byte says so
// Further bits of the first byte choose the rounding mode of the caller, which must not matter.
#include <cfenv>
#include <cmath>
#include <limits>
#include <optional>
#include <pn/pn.hpp>
#include <vector>

#include "fuzz.hpp"

namespace {

std::uint32_t bits(float x) { return pn::detail::bit_cast<std::uint32_t>(x); }
std::uint64_t bits(double x) { return pn::detail::bit_cast<std::uint64_t>(x); }

// Equal to the last bit, or both NaN.
bool same(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }

// ---- A second implementation, from FORMAT.md, by other means: the C library's floating point instead of integers.

double half_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  return half & 0x8000 ? -value : value;
}

// Rounds to `precision` bits above the smallest unit 2^lowest, ties to even; infinity from 2^limit on.
double round_to(double x, int precision, int lowest, int limit) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x) - (precision - 1), lowest);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(rounded) >= std::ldexp(1.0, limit) ? std::copysign(HUGE_VAL, x) : rounded;
}
double round_to_half(double x) { return round_to(x, 11, -24, 16); }
double round_to_bf16(double x) { return round_to(x, 8, -133, 128); }

template <class T>
int code_by_the_text(const std::uint8_t* block, std::size_t e) {
  const std::uint8_t* half = block + 2 + 4 * (e / T::codes_per_word) + 2 * (e % T::codes_per_word % 2);
  const int half_bits = half[0] + 256 * half[1];
  return (half_bits >> (T::bits * static_cast<int>(e % T::codes_per_word / 2))) % (1 << T::bits);
}

template <class T>
double level_by_the_text(float weight, double scale) {
  const double level = std::nearbyint(static_cast<double>(weight) / scale);
  return std::fmin(std::fmax(level, -T::zero_point), T::zero_point - 1);
}

// The bytes of one block, by the text; nullopt: every scale overflows.
template <class T>
std::optional<pn::Block34> quantize_by_the_text(const float* weights, const double* importance) {
  constexpr int z = T::zero_point;
  double amax = 0;
  double max = static_cast<double>(weights[0]);
  double min = max;
  bool weighted = false;
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double w = static_cast<double>(weights[e]);
    amax = std::fmax(amax, std::fabs(w));
    max = std::fmax(max, w);
    min = std::fmin(min, w);
    weighted = weighted || (importance != nullptr && importance[e] != 0);
  }
  const double sigma = std::fabs(min) > max ? 1 : -1;
  std::optional<double> best;
  double least = 0;
  bool overflow = false;
  for (int i = 35; i >= 0; --i) {
    const double s = round_to_half(sigma * ((50 + 2 * i) / 100.0) * amax / z);
    if (std::isinf(s)) overflow = true;
    if (s == 0 || std::isinf(s)) continue;
    double error = 0;
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const double r = static_cast<double>(weights[e]) - s * level_by_the_text<T>(weights[e], s);
      volatile double squared = r * r;
      if (weighted) squared = importance[e] * squared;
      error += squared;
    }
    if (!best || error < least) {
      best = s;
      least = error;
    }
  }
  if (!best && overflow) return std::nullopt;

  pn::Block34 block{};
  if (best) {
    // The fp16 bits of the scale, by bisection: positive ones are in order.
    unsigned half = 0;
    for (unsigned step = 0x4000; step != 0; step /= 2)
      if (half + step < 0x7C00u && half_value(static_cast<std::uint16_t>(half + step)) <= std::fabs(*best))
        half += step;
    if (*best < 0) half += 0x8000u;
    block.d[0] = static_cast<std::uint8_t>(half & 255u);
    block.d[1] = static_cast<std::uint8_t>(half >> 8);
  }
  for (std::size_t e = 0; e < T::block_size; ++e) {
    int n = z;
    if (best) n += static_cast<int>(level_by_the_text<T>(weights[e], *best));
    const std::size_t t = e % T::codes_per_word;
    const unsigned shifted = static_cast<unsigned>(n) << (T::bits * static_cast<int>(t / 2));
    std::uint8_t* half = block.qs + 4 * (e / T::codes_per_word) + 2 * (t % 2);
    half[0] = static_cast<std::uint8_t>(half[0] | (shifted & 255u));
    half[1] = static_cast<std::uint8_t>(half[1] | (shifted >> 8));
  }
  return block;
}

bool same(const pn::Block34& a, const pn::Block34& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The caller's rounding mode during a call into the library, which must leave it as it is.
class Rounding {
 public:
  explicit Rounding(int mode) : mode_(mode) { std::fesetround(mode); }
  ~Rounding() {
    const bool kept = std::fegetround() == mode_;
    std::fesetround(FE_TONEAREST);
    FUZZ_REQUIRE(kept);
  }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  int mode_;
};

// ---- Properties

template <class T>
void check_dots(const pn::Block34* row, const std::vector<float>& decoded, const std::uint8_t* bytes, int rounding) {
  const std::size_t k = decoded.size();
  std::vector<float> x(k);
  for (std::size_t i = 0; i < k; ++i) x[i] = static_cast<float>(bytes[i % (k / T::block_size * 34)]) / 16.0f - 8.0f;
  float y = 0;
  {
    const Rounding mode(rounding);
    FUZZ_REQUIRE(pn::dot_f32<T>(row, x.data(), k, &y) == pn::Status::ok);
  }
  double sum = 0;
  for (std::size_t i = 0; i < k; ++i) sum += static_cast<double>(decoded[i]) * static_cast<double>(x[i]);
  FUZZ_REQUIRE(same(y, static_cast<float>(sum)));

  const std::size_t k32 = k - k % (T::block_size * 2);  // a multiple of 32 for both types
  if (k32 == 0) return;
  std::vector<pn::BlockQ8_0> q(k32 / 32);
  {
    const Rounding mode(rounding);
    FUZZ_REQUIRE(pn::quantize_row_q8_0(x.data(), k32, q.data()) == pn::Status::ok);
  }
  {
    const Rounding mode(rounding);
    FUZZ_REQUIRE(pn::dot_q8_0<T>(row, q.data(), k32, &y) == pn::Status::ok);
  }
  sum = 0;
  for (std::size_t i = 0; i < k32; ++i) {
    const pn::BlockQ8_0& block = q[i / 32];
    const double d = half_value(static_cast<std::uint16_t>(block.d[0] + 256 * block.d[1]));
    const double value = d * block.qs[i % 32];
    // Off by half a step at most, and a little for the rounding of d, which is far above fp16's subnormals here.
    FUZZ_REQUIRE(std::fabs(value - static_cast<double>(x[i])) <= d * 0.57);
    sum += static_cast<double>(decoded[i]) * value;
  }
  FUZZ_REQUIRE(same(y, static_cast<float>(sum)));
  if (k32 > T::block_size) FUZZ_REQUIRE(pn::dot_q8_0<T>(row, q.data(), k32 - 16, &y) == pn::Status::bad_length);
}

// Any activations to Q8_0.
void check_q8_0(const std::vector<float>& x, int rounding) {
  const std::size_t k = x.size() - x.size() % 32;
  std::size_t first_bad = k;
  for (std::size_t i = k; i-- > 0;)
    if (!std::isfinite(x[i])) first_bad = i;
  double amax = 0;
  for (std::size_t i = 0; i < k; ++i) amax = std::fmax(amax, std::fabs(static_cast<double>(x[i])));
  std::vector<pn::BlockQ8_0> q(k / 32);
  std::size_t bad = k;
  pn::Status status = pn::Status::ok;
  bool defined = true;  // see FORMAT.md: outside, 1 / d overflows
  for (std::size_t b = 0; b < k / 32; ++b) {
    float largest = 0;
    for (std::size_t i = 32 * b; i < 32 * b + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    if (largest != 0 && largest <= std::ldexp(127.0f, -128)) defined = false;
  }
  if (first_bad == k && !defined) return;
  {
    const Rounding mode(rounding);
    status = pn::quantize_row_q8_0(x.data(), k, q.data(), &bad);
  }
  FUZZ_REQUIRE(bad == first_bad);
  FUZZ_REQUIRE(status == (first_bad == k ? pn::Status::ok : pn::Status::not_finite));
}

template <class T>
void check_blocks(const std::uint8_t* bytes, std::size_t size, int rounding) {
  const std::size_t blocks = size / sizeof(pn::Block34);
  const std::size_t k = blocks * T::block_size;
  // The fuzzer's own bytes: the first beyond them, at any address, is guarded.
  const std::uint8_t* start = bytes + size % sizeof(pn::Block34);
  const pn::Block34* row = reinterpret_cast<const pn::Block34*>(start);
  std::vector<float> decoded(k);
  FUZZ_REQUIRE(pn::decode_row<T>(row, k, decoded.data()) == pn::Status::ok);
  if (k != 0) FUZZ_REQUIRE(pn::decode_row<T>(row, k - 1, nullptr) == pn::Status::bad_length);

  std::size_t first_bad = blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint8_t* block = start + b * sizeof(pn::Block34);
    const auto half = static_cast<std::uint16_t>(block[0] + 256 * block[1]);
    const double d = half_value(half);
    FUZZ_REQUIRE(pn::load_scale(row[b]) == half);
    float one[T::block_size];
    pn::decode_block<T>(row[b], one);
    std::uint8_t codes[T::block_size];
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const int n = code_by_the_text<T>(block, e);
      FUZZ_REQUIRE(pn::load_code<T>(row[b], e) == n);
      codes[e] = static_cast<std::uint8_t>(n);
      const float expected = static_cast<float>(d * (n - T::zero_point));
      FUZZ_REQUIRE(same(decoded[b * T::block_size + e], expected));
      FUZZ_REQUIRE(same(one[e], expected));
      FUZZ_REQUIRE(same(pn::decode_element<T>(row[b], e), expected));
      FUZZ_REQUIRE(same(pn::decode_element<T>(row, b * T::block_size + e), expected));
    }
    // The same bytes from scale and codes, but for reserved bits, which are cleared.
    pn::Block34 cleared = row[b];
    bool reserved = false;
    if (T::bits == 3) {
      for (std::size_t i = 1; i < 32; i += 2) {
        reserved = reserved || cleared.qs[i] > 127;
        cleared.qs[i] = cleared.qs[i] & 127u;
      }
    }
    pn::Block34 stored{};
    pn::store_block<T>(half, codes, stored);
    FUZZ_REQUIRE(same(stored, cleared));
    const pn::Status expected = !std::isfinite(d) ? pn::Status::scale_not_finite
                                : reserved        ? pn::Status::reserved_bits_set
                                                  : pn::Status::ok;
    FUZZ_REQUIRE(pn::validate_block<T>(row[b]) == expected);
    if (expected != pn::Status::ok && first_bad == blocks) first_bad = b;
  }
  std::size_t bad = blocks;
  const pn::Status status = pn::validate_row<T>(row, k, &bad);
  FUZZ_REQUIRE(bad == first_bad);
  FUZZ_REQUIRE(status == (bad == blocks ? pn::Status::ok : pn::validate_block<T>(row[bad])));
  if (k != 0) FUZZ_REQUIRE(pn::validate_row<T>(row, k + 1) == pn::Status::bad_length);
  if (blocks != 0) check_dots<T>(row, decoded, start, rounding);
}

template <class T>
double error_of(const float* weights, const double* importance, const float* decoded) {
  double error = 0;
  for (std::size_t e = 0; e < T::block_size; ++e) {
    const double r = static_cast<double>(weights[e]) - static_cast<double>(decoded[e]);
    volatile double squared = r * r;
    if (importance != nullptr) squared = importance[e] * squared;
    error += squared;
  }
  return error;
}

template <class T>
void check_quantizer(const std::vector<float>& weights, const std::vector<double>& importances, int rounding) {
  const double* importance = importances.empty() ? nullptr : importances.data();
  const std::size_t blocks = weights.size() / T::block_size;
  const std::size_t k = blocks * T::block_size;
  pn::Block34 pattern{};
  std::memset(&pattern, 0xA5, sizeof pattern);
  std::vector<pn::Block34> out(blocks, pattern);
  const std::size_t none = weights.size() + 1;
  std::size_t bad = none;
  if (k != weights.size()) {
    FUZZ_REQUIRE(pn::quantize_row<T>(weights.data(), importance, weights.size(), out.data(), &bad) ==
                 pn::Status::bad_length);
    FUZZ_REQUIRE(bad == none);
    for (const pn::Block34& block : out) FUZZ_REQUIRE(same(block, pattern));
  }

  // What has to come out.
  pn::Status expected = pn::Status::ok;
  std::size_t expected_bad = none;
  std::vector<pn::Block34> expected_blocks;
  for (std::size_t b = 0; b < blocks && expected == pn::Status::ok; ++b) {
    const std::size_t start = b * T::block_size;
    for (std::size_t e = start; e < start + T::block_size && expected == pn::Status::ok; ++e) {
      if (!std::isfinite(weights[e]))
        expected = pn::Status::not_finite;
      else if (importance != nullptr && !(std::isfinite(importance[e]) && importance[e] >= 0))
        expected = pn::Status::bad_importance;
      if (expected != pn::Status::ok) expected_bad = e;
    }
    if (expected != pn::Status::ok) break;
    const auto block =
        quantize_by_the_text<T>(weights.data() + start, importance != nullptr ? importance + start : nullptr);
    if (block) {
      expected_blocks.push_back(*block);
    } else {
      expected = pn::Status::scale_overflow;
      expected_bad = start;
    }
  }

  pn::Status status = pn::Status::ok;
  {
    const Rounding mode(rounding);
    status = pn::quantize_row<T>(weights.data(), importance, k, out.data(), &bad);
  }
  FUZZ_REQUIRE(status == expected);
  FUZZ_REQUIRE(bad == expected_bad);
  if (status != pn::Status::ok) {
    for (const pn::Block34& block : out) FUZZ_REQUIRE(same(block, pattern));
    return;
  }
  FUZZ_REQUIRE(pn::validate_row<T>(out.data(), k) == pn::Status::ok);
  for (std::size_t b = 0; b < blocks; ++b) {
    FUZZ_REQUIRE(same(out[b], expected_blocks[b]));
    // No worse than the plain choice m = 1, which has nothing to do with the search; a zero block excepted, and
    // importances that are all 0, which stand for none.
    const float* w = weights.data() + b * T::block_size;
    const double* g = importance != nullptr ? importance + b * T::block_size : nullptr;
    if (g != nullptr && std::all_of(g, g + T::block_size, [](double x) { return x == 0; })) g = nullptr;
    double amax = 0;
    double max = static_cast<double>(w[0]);
    double min = max;
    for (std::size_t e = 0; e < T::block_size; ++e) {
      amax = std::fmax(amax, std::fabs(static_cast<double>(w[e])));
      max = std::fmax(max, static_cast<double>(w[e]));
      min = std::fmin(min, static_cast<double>(w[e]));
    }
    const double s = round_to_half((std::fabs(min) > max ? amax : -amax) / T::zero_point);
    if (s == 0 || std::isinf(s)) continue;
    float decoded[T::block_size];
    pn::decode_block<T>(out[b], decoded);
    float plain[T::block_size];
    for (std::size_t e = 0; e < T::block_size; ++e) plain[e] = static_cast<float>(s * level_by_the_text<T>(w[e], s));
    FUZZ_REQUIRE(error_of<T>(w, g, decoded) <= error_of<T>(w, g, plain));
  }
}

void check_conversions(double x) {
  const std::uint16_t half = pn::double_to_half(x);
  const double back = half_value(half);
  if (std::isnan(x)) {
    FUZZ_REQUIRE(half == ((bits(x) >> 48 & 0x8000u) | 0x7E00u | (bits(x) >> 42 & 0x3FFu)));
  } else {
    FUZZ_REQUIRE(bits(back) == bits(round_to_half(x)));
  }

  const float y = pn::detail::bit_cast<float>(static_cast<std::uint32_t>(bits(x) >> 32));
  const std::uint16_t half_y = pn::float_to_half(y);
  const std::uint16_t bf16_y = pn::float_to_bf16(y);
  if (std::isnan(y)) {
    FUZZ_REQUIRE(half_y == ((bits(y) >> 16 & 0x8000u) | 0x7E00u | (bits(y) >> 13 & 0x3FFu)));
    FUZZ_REQUIRE(bf16_y == ((bits(y) >> 16) | 0x40u));
  } else {
    FUZZ_REQUIRE(bits(half_value(half_y)) == bits(round_to_half(static_cast<double>(y))));
    FUZZ_REQUIRE(bits(static_cast<double>(pn::bf16_to_float(bf16_y))) == bits(round_to_bf16(static_cast<double>(y))));
  }

  const auto any = static_cast<std::uint16_t>(bits(x) & 0xFFFFu);
  const float widened = pn::half_to_float(any);
  FUZZ_REQUIRE(same(widened, static_cast<float>(half_value(any))));
  FUZZ_REQUIRE(std::signbit(widened) == ((any & 0x8000u) != 0));
  const std::uint16_t quiet = std::isnan(widened) ? 0x200 : 0;
  FUZZ_REQUIRE(pn::float_to_half(widened) == (any | quiet));
  FUZZ_REQUIRE(bits(pn::bf16_to_float(any)) == static_cast<std::uint32_t>(any) << 16);
  FUZZ_REQUIRE(pn::float_to_bf16(pn::bf16_to_float(any)) == (std::isnan(pn::bf16_to_float(any)) ? any | 0x40 : any));
}

template <class Number>
std::vector<Number> numbers(fuzz::Bytes& input, std::size_t count) {
  std::vector<Number> values(count);
  input.copy(values.data(), count * sizeof(Number));
  return values;
}

void check_quantizers(const std::vector<float>& weights, const std::vector<double>& importances, int rounding) {
  check_quantizer<pn::pn3t>(weights, importances, rounding);
  check_quantizer<pn::pn4t>(weights, importances, rounding);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Bytes input(data, size);
  const std::uint8_t choice = input.byte();
  constexpr int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  const int rounding = modes[choice >> 6];
  switch (choice % 8) {
    case 0:
      check_blocks<pn::pn3t>(input.rest(), input.left(), rounding);
      check_blocks<pn::pn4t>(input.rest(), input.left(), rounding);
      break;
    case 1: {
      const std::vector<float> weights = numbers<float>(input, input.left() / sizeof(float));
      check_quantizers(weights, {}, rounding);
      check_q8_0(weights, rounding);
      break;
    }
    case 2: {
      const std::size_t count = input.left() / (sizeof(float) + sizeof(double));
      const std::vector<float> weights = numbers<float>(input, count);
      check_quantizers(weights, numbers<double>(input, count), rounding);
      break;
    }
    case 3:
      while (!input.empty()) check_conversions(pn::detail::bit_cast<double>(input.integer<std::uint64_t>()));
      break;
    default: {
      const bool weighted = (choice & 1) != 0;
      const float scale = pn::detail::bit_cast<float>(input.integer<std::uint32_t>());
      const std::size_t count = weighted ? input.left() / 2 : input.left();
      std::vector<float> weights;
      for (std::size_t i = 0; i < count; ++i)
        weights.push_back(scale * static_cast<float>(static_cast<std::int8_t>(input.byte())) / 16.0f);
      std::vector<double> importances;
      for (std::size_t i = 0; weighted && i < count; ++i) importances.push_back(input.byte() / 8.0);
      check_quantizers(weights, importances, rounding);
    }
  }
  return 0;
}
