#include "prepare.hpp"

#include <pn/dot.hpp>
#include <pn/quantize.hpp>

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

// One block as the table's instruction set rounds it: the codes, and the scale.
template <class T>
float round_i16(const Kernels& table, const std::uint8_t* x, std::int16_t* q) noexcept {
  std::int32_t wide[T::block_size];
  const float scale = kernels_of<T>(table).round_i16(x, wide);
  if (!detail::is_finite(scale)) return scale;
  for (std::size_t e = 0; e < T::block_size; ++e) q[e] = static_cast<std::int16_t>(wide[e]);
  return scale;
}

// The same of 32.
float round_q8_0(const Kernels& table, const std::uint8_t* x, std::int8_t* q) noexcept {
  std::int32_t wide[q8_0_block_size];
  const float scale = table.round_q8_0(x, wide);
  if (!detail::is_finite(scale)) return scale;
  for (std::size_t e = 0; e < q8_0_block_size; ++e) q[e] = static_cast<std::int8_t>(wide[e]);
  return scale;
}

template <class T>
bool prepare_i16(const Kernels& table, const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  using Layout = I16Layout<T>;
  const std::size_t blocks = k / T::block_size;
  const Layout layout(blocks);
  std::memset(token, 0, layout.bytes);
  auto* sums = reinterpret_cast<std::int32_t*>(token + layout.sums_at);
  auto* scales = reinterpret_cast<float*>(token + layout.scale_at);
  for (std::size_t b = 0; b < blocks; ++b) {
    std::int16_t q[T::block_size];
    scales[b] = round_i16<T>(table, x + 4 * b * T::block_size, q);
    if (!detail::is_finite(scales[b])) return false;
    for (std::size_t w = 0; w < words; ++w)
      for (std::size_t pair = 0; pair < T::codes_per_word / 2; ++pair) {
        const std::int16_t* two = q + w * T::codes_per_word + 2 * pair;
        std::memcpy(token + b / 2 * Layout::record_bytes + pair * Layout::pair_bytes + (b % 2 * words + w) * 4, two, 4);
        sums[b] -= T::zero_point * (two[0] + two[1]);
      }
  }
  return true;
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
bool prepare_q8_0(const Kernels& table, const std::uint8_t* x, std::size_t k, std::uint8_t* token) noexcept {
  const Q8Layout layout = kernels_of<T>(table).q8_layout;
  constexpr std::size_t pair = 2 * T::block_size;
  for (std::size_t start = 0; start < k; start += pair) {
    const std::size_t count = k - start < pair ? k - start : pair;
    std::int8_t q[pair];
    float scale[pair / q8_0_block_size + 1] = {};
    for (std::size_t e = 0; e < count; e += q8_0_block_size) {
      scale[e / q8_0_block_size] = round_q8_0(table, x + 4 * (start + e), q + e);
      if (!detail::is_finite(scale[e / q8_0_block_size])) return false;
    }
    prepare_record<T>(layout, q, scale, count / T::block_size, token);
    token += Q8Record<T>::bytes(layout);
  }
  return true;
}

// ---- One token of a group of a batch: `place` is its place among the eight ----

void batch_f32(const std::uint8_t* x, std::size_t k, std::size_t place, std::uint8_t* group) noexcept {
  for (std::size_t e = 0; e < k; ++e) std::memcpy(group + (e * batch_tokens + place) * 4, x + 4 * e, 4);
}

template <class T>
bool batch_i16(const Kernels& table, const std::uint8_t* x, std::size_t k, std::size_t place,
               std::uint8_t* group) noexcept {
  using Layout = BatchLayout<T, Activations::i16>;
  const std::size_t blocks = k / T::block_size;
  const Layout layout(blocks);
  auto* scales = reinterpret_cast<float*>(group + layout.scale_at) + place;
  group += 4 * place;
  for (std::size_t b = 0; b < blocks; ++b) {
    std::int16_t q[T::block_size];
    scales[b * batch_tokens] = round_i16<T>(table, x + 4 * b * T::block_size, q);
    if (!detail::is_finite(scales[b * batch_tokens])) return false;
    for (std::size_t step = 0; step < Layout::steps; ++step, group += Layout::step_bytes)
      std::memcpy(group, q + 2 * step, 4);
  }
  return true;
}

template <class T>
bool batch_q8_0(const Kernels& table, const std::uint8_t* x, std::size_t k, std::size_t place,
                std::uint8_t* group) noexcept {
  using Layout = BatchLayout<T, Activations::q8_0>;
  const Layout layout(k / T::block_size);
  auto* scales = reinterpret_cast<float*>(group + layout.scale_at) + place;
  auto* sums = reinterpret_cast<std::int32_t*>(group + layout.sums_at) + place;
  group += 4 * place;
  for (std::size_t i = 0; i < k / q8_0_block_size; ++i) {
    std::int8_t q[q8_0_block_size];
    const float scale = round_q8_0(table, x + 4 * i * q8_0_block_size, q);
    if (!detail::is_finite(scale)) return false;
    for (std::size_t e = 0; e < q8_0_block_size; e += 4, group += Layout::step_bytes) {
      const std::int8_t step[4] = {q[e], q[e + 2], q[e + 1], q[e + 3]};
      std::memcpy(group, step, 4);
    }
    for (std::size_t e = i * q8_0_block_size, end; e < (i + 1) * q8_0_block_size; e = end) {
      const std::size_t b = e / T::block_size;
      end = (b + 1) * T::block_size < (i + 1) * q8_0_block_size ? (b + 1) * T::block_size : (i + 1) * q8_0_block_size;
      const std::size_t segment = b * Layout::segments + i - b * T::block_size / q8_0_block_size;
      std::int32_t sum = 0;
      for (std::size_t j = e; j < end; ++j) sum += q[j - i * q8_0_block_size];
      scales[segment * batch_tokens] = scale;
      sums[segment * batch_tokens] = -T::zero_point * sum;
    }
  }
  return true;
}

}  // namespace

template <class T>
bool prepare_batch_token(const Kernels& table, Activations kind, const std::uint8_t* x, std::size_t k,
                         std::size_t place, std::uint8_t* group) noexcept {
  switch (kind) {
    case Activations::f32: batch_f32(x, k, place, group); return true;
    case Activations::i16: return batch_i16<T>(table, x, k, place, group);
    case Activations::q8_0: return batch_q8_0<T>(table, x, k, place, group);
  }
  return false;
}

template bool prepare_batch_token<pn3t>(const Kernels&, Activations, const std::uint8_t*, std::size_t, std::size_t,
                                        std::uint8_t*) noexcept;
template bool prepare_batch_token<pn4t>(const Kernels&, Activations, const std::uint8_t*, std::size_t, std::size_t,
                                        std::uint8_t*) noexcept;

template <class T>
bool prepare_token(const Kernels& table, Activations kind, const std::uint8_t* x, std::size_t k,
                   std::uint8_t* token) noexcept {
  switch (kind) {
    case Activations::f32: prepare_f32<T>(x, k, reinterpret_cast<float*>(token)); return true;
    case Activations::i16: return prepare_i16<T>(table, x, k, token);
    case Activations::q8_0: return prepare_q8_0<T>(table, x, k, token);
  }
  return false;
}

template bool prepare_token<pn3t>(const Kernels&, Activations, const std::uint8_t*, std::size_t,
                                  std::uint8_t*) noexcept;
template bool prepare_token<pn4t>(const Kernels&, Activations, const std::uint8_t*, std::size_t,
                                  std::uint8_t*) noexcept;

}  // namespace pn::cpu
