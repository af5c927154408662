// Kernels for any processor: the core's own functions, and plain loops that add up in the stated orders.
#include <p12/p12.hpp>
#include <pn/decode.hpp>
#include <pn/dot.hpp>
#include <pn/hadamard.hpp>
#include <pn/quantize.hpp>
#include <pn/validate.hpp>
#include <type_traits>

#include "exact.hpp"
#include "exact_p12.hpp"
#include "kernels.hpp"

namespace pn::cpu {
namespace {

constexpr std::size_t words = words_per_block;

// Value e of an array of numbers at any address.
float load_float(const Bytes* x, std::size_t e) noexcept {
  return detail::bit_cast<float>(detail::load_le32(x + 4 * e));
}

float total(const float (&s)[8]) noexcept { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

// What numbers become in the target's type, at any address.
void store_floats(const float* values, std::size_t count, Bytes* out, Element element) noexcept {
  if (element == Element::f32) {
    std::memcpy(out, values, count * sizeof *values);
    return;
  }
  for (std::size_t e = 0; e < count; ++e)
    detail::store_le16(out + 2 * e, element == Element::f16 ? float_to_half(values[e]) : float_to_bf16(values[e]));
}

// ---- PN ----

template <class T>
bool inspect(const Bytes* weights, Element element, std::size_t blocks) {
  float block[T::block_size];
  for (std::size_t b = 0; b < blocks; ++b) {
    load_block<T>(weights + b * T::block_size * element_bytes(element), element, block);
    std::size_t index = 0;
    if (detail::inspect_row<T>(block, nullptr, T::block_size, &index) != Status::ok) return false;
  }
  return true;
}

template <class T>
void quantize(const Bytes* weights, Element element, std::size_t blocks, const double* importance, Bytes* out) {
  float values[T::block_size];
  for (std::size_t b = 0; b < blocks; ++b) {
    load_block<T>(weights + b * T::block_size * element_bytes(element), element, values);
    Block34 block;
    detail::search_block<T>(values, importance == nullptr ? nullptr : importance + b * T::block_size, block);
    std::memcpy(out + b * sizeof block, &block, sizeof block);
  }
}

template <class T>
void error(const Bytes* weights, Element element, std::size_t blocks, const double* importance, const Bytes* in,
           double* sums) {
  float w[T::block_size];
  float v[T::block_size];
  for (std::size_t b = 0; b < blocks; ++b) {
    load_block<T>(weights + b * T::block_size * element_bytes(element), element, w);
    decode_block<T>(load_block34(in, b), v);
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const double g = importance == nullptr ? 1.0 : importance[b * T::block_size + e];
      const double weight = static_cast<double>(w[e]);
      const double r = weight - static_cast<double>(v[e]);
      sums[e % 16] += g * (r * r);
      sums[16 + e % 16] += g * (weight * weight);
    }
  }
}

template <class T>
bool valid(const Bytes* in, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b)
    if (validate_block<T>(load_block34(in, b)) != Status::ok) return false;
  return true;
}

template <class T>
void dequantize(const Bytes* in, std::size_t blocks, Bytes* out, Element element) {
  float values[T::block_size];
  for (std::size_t b = 0; b < blocks; ++b) {
    decode_block<T>(load_block34(in, b), values);
    store_floats(values, T::block_size, out + b * T::block_size * element_bytes(element), element);
  }
}

float largest(const Bytes* x, std::size_t n) noexcept { return detail::bit_cast<float>(largest_magnitude(x, n)); }

// Loops are written so that compilers turn them into vectors.
template <class T>
float round_i16(const Bytes* x, std::int32_t* q) {
  float block[T::block_size];
  std::memcpy(block, x, sizeof block);
  const float most = largest(x, T::block_size);
  if (!detail::is_finite(most)) return most;
  const double amax = static_cast<double>(most);
  const double inverse = amax > 0 ? 32767.0 / amax : 0.0;
  for (std::size_t e = 0; e < T::block_size; ++e) {
    constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52: to nearest even
    q[e] = static_cast<std::int32_t>((static_cast<double>(block[e]) * inverse + shifter) - shifter);
  }
  return static_cast<float>(amax / 32767.0);
}

// The arithmetic of pn::quantize_row_q8_0. This file is compiled with -ffp-contract=off.
float round_q8_0(const Bytes* x, std::int32_t* q) {
  float block[q8_0_block_size];
  std::memcpy(block, x, sizeof block);
  const float d = largest(x, q8_0_block_size) / 127.0f;
  if (!detail::is_finite(d)) return d;
  const float inverse = d > 0x1p-128f ? 1.0f / d : 0.0f;
  for (std::size_t e = 0; e < q8_0_block_size; ++e) {
    const float scaled = block[e] * inverse;
    const int whole = static_cast<int>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    q[e] = whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
  }
  return half_to_float(float_to_half(d));
}

void rotate(const Bytes* x, std::size_t b, float, Bytes* out) {
  float segment[max_hadamard_block];
  std::memcpy(segment, x, 4 * b);
  detail::rotate_activations_in_default_environment(segment, b, b);
  std::memcpy(out, segment, 4 * b);
}

// One row and one token. Eight sums, one for each word's place in its block; a block's own sums come first.
template <class T>
float dot_f32(const Bytes* row, const Bytes* token, std::size_t blocks) {
  const auto* x = reinterpret_cast<const float*>(token);
  float sum[words] = {};
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block34 block = load_block34(row, b);
    const float d = half_to_float(load_scale(block));
    for (std::size_t w = 0; w < words; ++w) {
      const std::uint32_t word = load_word(block, w);
      float s = 0;
      for (std::size_t t = 0; t < T::codes_per_word; ++t) {
        const int level = (static_cast<int>(word >> code_shift<T>(t)) & T::max_code) - T::zero_point;
        s += static_cast<float>(level) * x[(b * T::codes_per_word + t) * words + w];
      }
      sum[w] += d * s;
    }
  }
  return total(sum);
}

// The order of pn_multiply.hpp for Activations::i16.
class Fours {
 public:
  void add(float product) noexcept {
    products_[count_++] = product;
    if (count_ == 4) end();
  }
  float total() noexcept {
    if (count_ > 0) end();
    return total_;
  }

 private:
  void end() noexcept {
    total_ += (products_[0] + products_[2]) + (products_[1] + products_[3]);
    count_ = 0;
    for (float& product : products_) product = 0;
  }
  float total_ = 0;
  float products_[4] = {};
  std::size_t count_ = 0;
};

class OneByOne {
 public:
  void add(float product) noexcept { total_ += product; }
  float total() const noexcept { return total_; }

 private:
  float total_ = 0;
};

template <class T>
float dot_i16(const Bytes* row, const Bytes* token, std::size_t blocks) {
  using Layout = I16Layout<T>;
  const Layout layout(blocks);
  Fours sum;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block34 block = load_block34(row, b);
    const Bytes* x = token + b / 2 * Layout::record_bytes + b % 2 * words * 4;
    std::int32_t dot = static_cast<std::int32_t>(detail::load_le32(token + layout.sums_at + 4 * b));
    for (std::size_t w = 0; w < words; ++w) {
      const std::uint32_t word = load_word(block, w);
      for (std::size_t t = 0; t < T::codes_per_word; ++t) {
        const Bytes* at = x + t / 2 * Layout::pair_bytes + w * 4 + t % 2 * 2;
        dot += (static_cast<int>(word >> code_shift<T>(t)) & T::max_code) *
               static_cast<std::int16_t>(detail::load_le16(at));
      }
    }
    sum.add(static_cast<float>(dot) * (half_to_float(load_scale(block)) * load_float(token + layout.scale_at, b)));
  }
  return sum.total();
}

template <class T>
float dot_q8_0(const Bytes* row, const Bytes* token, std::size_t blocks) {
  using Record = Q8Record<T>;
  constexpr Q8Layout layout = Q8Layout::by_word;
  constexpr std::size_t arrays = T::bits == 4 ? 2 : 3;  // for one sum
  float sum[words] = {};
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block34 block = load_block34(row, b);
    const float d = half_to_float(load_scale(block));
    const Bytes* record = token + b / 2 * Record::bytes(layout);
    const auto* x = reinterpret_cast<const std::int8_t*>(record);
    const auto* sums = reinterpret_cast<const std::int32_t*>(record + Record::sums_at(layout));
    const auto* scales = reinterpret_cast<const float*>(record + Record::scale_at(layout));
    for (std::size_t w = 0; w < words; ++w) {
      const std::uint32_t word = load_word(block, w);
      const std::size_t lane = b % 2 * words + w;
      float s = 0;
      for (std::size_t set = 0; set < Record::sums; ++set) {
        std::int32_t dot = sums[set * 16 + lane];
        for (std::size_t array = 0; array < arrays; ++array)
          for (std::size_t i = 0; i < 4; ++i) {
            const int t = code_of_byte<T>(array, i);
            if (t < 0) continue;
            dot += (static_cast<int>(word >> code_shift<T>(static_cast<std::size_t>(t))) & T::max_code) *
                   x[(set * arrays + array) * Record::array_bytes + lane * 4 + i];
          }
        s += static_cast<float>(dot) * scales[set * 16 + lane];
      }
      sum[w] += d * s;
    }
  }
  return total(sum);
}

template <class T>
void multiply(const Multiply& job) {
  const std::size_t blocks = block_count<T>(job.k);
  const auto kind = static_cast<Activations>(job.x->kind);
  const auto dot = kind == Activations::f32 ? dot_f32<T> : (kind == Activations::i16 ? dot_i16<T> : dot_q8_0<T>);
  for (std::size_t n = 0; n < job.rows; ++n)
    for (std::size_t m = 0; m < job.x->tokens; ++m) job.store(m, n, dot(job.row(n), job.token(m), blocks));
}

// Element i of a step of one token's x.
template <Activations Kind>
auto load_x(const Bytes* x, std::size_t i) noexcept {
  if constexpr (Kind == Activations::f32) return load_float(x, i);
  if constexpr (Kind == Activations::i16) return std::int32_t{static_cast<std::int16_t>(detail::load_le16(x + 2 * i))};
  if constexpr (Kind == Activations::q8_0) {
    constexpr std::size_t place[4] = {0, 2, 1, 3};
    return std::int32_t{static_cast<std::int8_t>(x[place[i]])};
  }
}

template <class T, Activations Kind>
void multiply_rows_of_batch(const Multiply& job, std::size_t tokens) {
  using Layout = BatchLayout<T, Kind>;
  using Number = decltype(load_x<Kind>(nullptr, 0));
  const std::size_t blocks = block_count<T>(job.k);
  const Layout layout(blocks);
  for (std::size_t n = 0; n < job.rows; ++n)
    for (std::size_t first = 0; first < tokens; first += batch_tokens) {
      const Bytes* x = job.group(first / batch_tokens);
      const Bytes* scales = x + layout.scale_at;
      std::conditional_t<Kind == Activations::i16, Fours, OneByOne> sum[batch_tokens];
      for (std::size_t b = 0; b < blocks; ++b, x += Layout::steps * Layout::step_bytes) {
        const Block34 block = load_block34(job.row(n), b);
        const float d = half_to_float(load_scale(block));
        Number levels[T::block_size];
        for (std::size_t e = 0; e < T::block_size; ++e)
          levels[e] = static_cast<Number>(load_code<T>(block, e) - T::zero_point);
        for (std::size_t s = 0; s < Layout::segments; ++s) {
          Number dots[batch_tokens] = {};
          for (std::size_t step = Layout::first_step(b, s); step < Layout::first_step(b, s + 1); ++step)
            for (std::size_t i = 0; i < Layout::step_elements; ++i)
              for (std::size_t m = 0; m < batch_tokens; ++m)
                dots[m] +=
                    levels[step * Layout::step_elements + i] * load_x<Kind>(x + step * Layout::step_bytes + 4 * m, i);
          for (std::size_t m = 0; m < batch_tokens; ++m) {
            const float scale =
                Kind == Activations::f32 ? 1.0f : load_float(scales, (b * Layout::segments + s) * batch_tokens + m);
            sum[m].add(static_cast<float>(dots[m]) * (d * scale));
          }
        }
      }
      for (std::size_t m = 0; m < batch_tokens && first + m < tokens; ++m) job.store(first + m, n, sum[m].total());
    }
}

template <class T>
void multiply_batch(const Multiply& job, std::size_t tokens) {
  switch (static_cast<Activations>(job.x->kind)) {
    case Activations::f32: return multiply_rows_of_batch<T, Activations::f32>(job, tokens);
    case Activations::i16: return multiply_rows_of_batch<T, Activations::i16>(job, tokens);
    case Activations::q8_0: return multiply_rows_of_batch<T, Activations::q8_0>(job, tokens);
  }
}

template <class T>
constexpr PnKernels pn_kernels() {
  return {quantize<T>,  inspect<T>,        error<T>,    valid<T>,         dequantize<T>,
          round_i16<T>, Q8Layout::by_word, multiply<T>, multiply_batch<T>};
}

// ---- BF16_P12 and BF16 ----

void load_weights(const Bytes* in, std::uint16_t* out) noexcept {
  for (std::size_t i = 0; i < p12::block_size; ++i) out[i] = detail::load_le16(in + 2 * i);
}

void load_packed(const Bytes* in, std::uint16_t* out) noexcept {
  p12::Block392 block;
  std::memcpy(&block, in, sizeof block);
  p12::unpack_block(block, out);
}

std::size_t pack(const Bytes* weights, std::size_t blocks, Bytes* out, p12::RowScan* tally) {
  std::size_t bad = blocks;
  for (std::size_t b = 0; b < blocks; ++b)
    if (!pack_by_core(weights + b * 2 * p12::block_size, out + b * sizeof(p12::Block392), tally) && bad == blocks)
      bad = b;
  return bad;
}

void scan(const Bytes* weights, std::size_t blocks, p12::RowScan& tally) {
  for (std::size_t b = 0; b < blocks; ++b) scan_by_core(weights + b * 2 * p12::block_size, tally);
}

void unpack(const Bytes* in, std::size_t blocks, Bytes* out, Element element, Stores) {
  for (std::size_t b = 0; b < blocks; ++b) {
    std::uint16_t values[p12::block_size];
    load_packed(in + b * sizeof(p12::Block392), values);
    Bytes* to = out + b * p12::block_size * element_bytes(element);
    for (std::size_t i = 0; i < p12::block_size; ++i) {
      switch (element) {
        case Element::f32: detail::store_le32(to + 4 * i, static_cast<std::uint32_t>(values[i]) << 16); break;
        case Element::f16: detail::store_le16(to + 2 * i, float_to_half(bf16_to_float(values[i]))); break;
        case Element::bf16: detail::store_le16(to + 2 * i, values[i]); break;
      }
    }
  }
}

bool valid_p12(const Bytes* in, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b)
    if (!valid_by_core(in + b * sizeof(p12::Block392))) return false;
  return true;
}

void prepare(const Bytes* x, std::size_t k, Bytes* token) { std::memcpy(token, x, 4 * k); }

// One row in the order that p12/cpu.hpp states; without fused multiply-adds both orders are one.
template <std::size_t BlockBytes, void (*Load)(const Bytes*, std::uint16_t*) noexcept>
void multiply_rows(const Multiply& job, Order) {
  for (std::size_t n = 0; n < job.rows; ++n)
    for (std::size_t m = 0; m < job.x->tokens; ++m) {
      const Bytes* x = job.token(m);
      float s[64] = {};
      for (std::size_t b = 0; b < job.k / p12::block_size; ++b) {
        std::uint16_t values[p12::block_size];
        Load(job.row(n) + b * BlockBytes, values);
        for (std::size_t i = 0; i < p12::block_size; ++i)
          s[i % 64] += bf16_to_float(values[i]) * load_float(x, b * p12::block_size + i);
      }
      for (std::size_t i = 0; i < 32; ++i) s[i] = s[2 * i] + s[2 * i + 1];
      for (std::size_t h = 16; h > 0; h /= 2)
        for (std::size_t i = 0; i < h; ++i) s[i] += s[i + h];
      job.store(m, n, s[0]);
    }
}

constexpr P12Kernels p12_kernels = {pack,
                                    scan,
                                    unpack,
                                    valid_p12,
                                    prepare,
                                    multiply_rows<sizeof(p12::Block392), load_packed>,
                                    multiply_rows<2 * p12::block_size, load_weights>};

void convert(const Bytes* in, Element from, std::size_t count, Bytes* out, Element to) {
  float values[256];
  while (count > 0) {
    const std::size_t n = count < 256 ? count : 256;
    load_floats(in, from, n, values);
    store_floats(values, n, out, to);
    in += n * element_bytes(from);
    out += n * element_bytes(to);
    count -= n;
  }
}

float dot(const Bytes* a, Element element, const Bytes* x, std::size_t k) {
  float s[8] = {};
  for (std::size_t e = 0; e < k; ++e)
    s[e % 8] +=
        (element == Element::f32 ? load_float(a, e) : bf16_to_float(detail::load_le16(a + 2 * e))) * load_float(x, e);
  return total(s);
}

}  // namespace

constexpr Kernels baseline_kernels = {Isa::baseline,      round_q8_0,  rotate,  pn_kernels<pn3t>(),
                                      pn_kernels<pn4t>(), p12_kernels, convert, dot};

}  // namespace pn::cpu
