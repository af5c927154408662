#include "prepare.hpp"

#include <pn/dot.hpp>
#include <pn/half.hpp>

#include "exact.hpp"

namespace pn::cpu {
namespace {

constexpr std::size_t words = words_per_block;

template <class T>
void prepare_f32(const std::uint8_t* x, std::size_t k, float* out) noexcept {
  for (std::size_t b = 0; b < k / T::block_size; ++b) {
    float block[T::block_size];
    std::memcpy(block, x + b * sizeof block, sizeof block);
    for (std::size_t t = 0; t < T::codes_per_word; ++t)
      for (std::size_t w = 0; w < words; ++w) *out++ = block[w * T::codes_per_word + t];
  }
}

float largest(const float* x, std::size_t n) noexcept {
  return detail::bit_cast<float>(largest_magnitude(reinterpret_cast<const std::uint8_t*>(x), n));
}

// Loops are written so that compilers turn them into vectors.
template <class T>
void prepare_i16(const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  using Layout = I16Layout<T>;
  const std::size_t blocks = k / T::block_size;
  const Layout layout(blocks);
  std::memset(token, 0, layout.bytes);
  auto* sums = reinterpret_cast<std::int32_t*>(token + layout.sums_at);
  auto* scales = reinterpret_cast<float*>(token + layout.scale_at);
  for (std::size_t b = 0; b < blocks; ++b) {
    float block[T::block_size];
    std::int16_t q[T::block_size];
    std::memcpy(block, x + b * sizeof block, sizeof block);
    const double amax = static_cast<double>(largest(block, T::block_size));
    const double inverse = amax > 0 ? 32767.0 / amax : 0.0;
    scales[b] = static_cast<float>(amax / 32767.0);
    for (std::size_t e = 0; e < T::block_size; ++e) {
      constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52: to nearest even
      q[e] = static_cast<std::int16_t>(static_cast<int>((static_cast<double>(block[e]) * inverse + shifter) - shifter));
    }
    for (std::size_t w = 0; w < words; ++w)
      for (std::size_t pair = 0; pair < T::codes_per_word / 2; ++pair) {
        const std::int16_t* two = q + w * T::codes_per_word + 2 * pair;
        std::memcpy(token + b * Layout::block_bytes + (pair * words + w) * 4, two, 4);
        sums[(2 * b + pair % 2) * words + w] -= T::zero_point * (two[0] + two[1]);
      }
  }
}

// The arithmetic of pn::quantize_row_q8_0 for 32 floats: the scale, as its fp16 is in fp32, and the codes. This file is
// compiled with -ffp-contract=off.
float quantize_q8_0(const float* x, std::int8_t* q) noexcept {
  const float d = largest(x, q8_0_block_size) / 127.0f;
  const float inverse = d > 0x1p-128f ? 1.0f / d : 0.0f;
  for (std::size_t e = 0; e < q8_0_block_size; ++e) {
    const float scaled = x[e] * inverse;
    const int whole = static_cast<int>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    q[e] = static_cast<std::int8_t>(whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0));
  }
  return half_to_float(float_to_half(d));
}

// One pair of blocks, of which `blocks` are there: their codes, and the scales of each 32.
template <class T>
void prepare_record(Q8Layout layout, const std::int8_t* q, const float* scale, std::size_t blocks,
                    std::uint8_t* record) noexcept {
  using Record = Q8Record<T>;
  std::memset(record, 0, Record::bytes(layout));
  auto* sums = reinterpret_cast<std::int32_t*>(record + Record::sums_at(layout));
  auto* scales = reinterpret_cast<float*>(record + Record::scale_at(layout));
  if (layout == Q8Layout::by_four) {
    for (std::size_t array = 0; array < 3; ++array)
      for (std::size_t lane = 0; lane < 2 * words; ++lane) {
        const int four = four_of_lane(array, lane / 2, lane % 2);
        if (four < 0) continue;
        const std::size_t element = lane / 2 * 20 + 4 * static_cast<std::size_t>(four);
        const std::int8_t* from = q + element;
        std::memcpy(record + array * Record::array_bytes + lane * 4, from, 4);
        sums[array / 2 * 16 + lane] -= T::zero_point * (from[0] + from[1] + from[2] + from[3]);
        scales[array / 2 * 16 + lane] = scale[element / q8_0_block_size];
      }
    return;
  }
  constexpr std::size_t arrays = T::bits == 4 ? 2 : 3;
  for (std::size_t lane = 0; lane < blocks * words; ++lane) {
    const std::size_t first = lane * T::codes_per_word;
    const std::size_t group = first / q8_0_block_size;
    for (std::size_t set = 0; set < Record::sums; ++set)
      if (set == 0 || (first + T::codes_per_word - 1) / q8_0_block_size != group)
        scales[set * 16 + lane] = scale[group + set];
    for (std::size_t array = 0; array < arrays; ++array)
      for (std::size_t i = 0; i < 4; ++i) {
        const int code = code_of_byte<T>(array, i);
        if (code < 0) continue;
        const std::size_t element = first + static_cast<std::size_t>(code);
        const std::size_t set = element / q8_0_block_size != group ? 1 : 0;
        record[(set * arrays + array) * Record::array_bytes + lane * 4 + i] = static_cast<std::uint8_t>(q[element]);
        sums[set * 16 + lane] -= T::zero_point * q[element];
      }
  }
}

template <class T>
void prepare_q8_0(Q8Layout layout, const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  constexpr std::size_t pair = 2 * T::block_size;
  for (std::size_t start = 0; start < k; start += pair) {
    const std::size_t count = k - start < pair ? k - start : pair;
    float values[pair];
    std::int8_t q[pair];
    float scale[pair / q8_0_block_size + 1] = {};
    std::memcpy(values, x + 4 * start, 4 * count);
    for (std::size_t e = 0; e < count; e += q8_0_block_size)
      scale[e / q8_0_block_size] = quantize_q8_0(values + e, q + e);
    prepare_record<T>(layout, q, scale, count / T::block_size, token);
    token += Q8Record<T>::bytes(layout);
  }
}

}  // namespace

template <class T>
void prepare_token(Activations kind, Q8Layout layout, const std::uint8_t* x, std::size_t k,
                   std::uint8_t* token) noexcept {
  switch (kind) {
    case Activations::f32: return prepare_f32<T>(x, k, reinterpret_cast<float*>(token));
    case Activations::i16: return prepare_i16<T>(x, k, token);
    case Activations::q8_0: return prepare_q8_0<T>(layout, x, k, token);
  }
}

template void prepare_token<pn3t>(Activations, Q8Layout, const std::uint8_t*, std::size_t, std::uint8_t*) noexcept;
template void prepare_token<pn4t>(Activations, Q8Layout, const std::uint8_t*, std::size_t, std::uint8_t*) noexcept;

}  // namespace pn::cpu
