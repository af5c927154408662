#include "prepare.hpp"

#include <pn/dot.hpp>
#include <pn/half.hpp>

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

template <class T>
void prepare_i16(const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  using Layout = I16Layout<T>;
  const std::size_t blocks = k / T::block_size;
  const Layout layout(blocks);
  std::memset(token, 0, layout.bytes);
  auto* out = reinterpret_cast<std::int16_t*>(token);
  auto* sums = reinterpret_cast<std::int32_t*>(token + layout.sums_at);
  auto* scales = reinterpret_cast<float*>(token + layout.scale_at);
  for (std::size_t b = 0; b < blocks; ++b) {
    float block[T::block_size];
    std::memcpy(block, x + b * sizeof block, sizeof block);
    float amax = 0;
    for (const float v : block) {
      const float a = v < 0 ? -v : v;
      amax = a > amax ? a : amax;
    }
    const double inverse = amax > 0 ? 32767.0 / static_cast<double>(amax) : 0.0;
    scales[b] = static_cast<float>(static_cast<double>(amax) / 32767.0);
    for (std::size_t w = 0; w < words; ++w) {
      std::int32_t sum[2] = {};
      for (std::size_t t = 0; t < T::codes_per_word; ++t) {
        constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52: to nearest even
        const double scaled = static_cast<double>(block[w * T::codes_per_word + t]) * inverse;
        const auto q = static_cast<std::int16_t>((scaled + shifter) - shifter);
        sum[t / 2 % 2] += q;
        out[((b * Layout::pairs + t / 2) * words + w) * 2 + t % 2] = q;
      }
      for (std::size_t odd = 0; odd < 2; ++odd) sums[(2 * b + odd) * words + w] = -T::zero_point * sum[odd];
    }
  }
}

// One pair of blocks, of which `blocks` are there; q8: its Q8_0 blocks.
template <class T>
void prepare_record(Q8Layout layout, const BlockQ8_0* q8, std::size_t blocks, std::uint8_t* record) noexcept {
  using Record = Q8Record<T>;
  std::memset(record, 0, Record::bytes(layout));
  auto* codes = reinterpret_cast<std::int8_t*>(record);
  auto* sums = reinterpret_cast<std::int32_t*>(record + Record::sums_at(layout));
  auto* scales = reinterpret_cast<float*>(record + Record::scale_at(layout));
  const auto put = [&](std::size_t array, std::size_t sum, std::size_t lane, std::size_t byte, std::size_t element) {
    const BlockQ8_0& from = q8[element / q8_0_block_size];
    const std::int8_t q = from.qs[element % q8_0_block_size];
    codes[array * Record::array_bytes + lane * 4 + byte] = q;
    sums[sum * 16 + lane] -= T::zero_point * q;
    scales[sum * 16 + lane] = half_to_float(detail::load_le16(from.d));
  };
  if (layout == Q8Layout::by_four) {
    for (std::size_t q = 0; q < words; ++q)
      for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t array = 0; array < 3; ++array) {
          const int four = four_of_lane(array, q, half);
          for (std::size_t i = 0; four >= 0 && i < 4; ++i)
            put(array, array / 2, 2 * q + half, i, 20 * q + 4 * static_cast<std::size_t>(four) + i);
        }
    return;
  }
  constexpr std::size_t arrays = T::bits == 4 ? 2 : 3;
  for (std::size_t lane = 0; lane < blocks * words; ++lane) {
    const std::size_t first = lane * T::codes_per_word;
    for (std::size_t array = 0; array < arrays; ++array)
      for (std::size_t i = 0; i < 4; ++i) {
        const int code = code_of_byte<T>(array, i);
        if (code < 0) continue;
        const std::size_t element = first + static_cast<std::size_t>(code);
        const std::size_t second = element / q8_0_block_size != first / q8_0_block_size ? 1 : 0;
        put(second * arrays + array, second, lane, i, element);
      }
  }
}

template <class T>
void prepare_q8_0(Q8Layout layout, const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  constexpr std::size_t pair = 2 * T::block_size;
  for (std::size_t start = 0; start < k; start += pair) {
    const std::size_t count = k - start < pair ? k - start : pair;
    float values[pair];
    BlockQ8_0 q8[pair / q8_0_block_size];
    std::memcpy(values, x + 4 * start, 4 * count);
    static_cast<void>(quantize_row_q8_0(values, count, q8));  // cannot fail: the activations have been checked
    prepare_record<T>(layout, q8, count / T::block_size, token);
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
