// Behind pn/cpu.hpp: arguments are checked here, the work is done by the kernels of an instruction set.
#include <pn/decode.hpp>
#include <pn/dot.hpp>
#include <pn/hadamard.hpp>
#include <pn/quantize.hpp>
#include <pn/validate.hpp>

#include "arguments.hpp"
#include "exact.hpp"
#include "layout.hpp"
#include "prepare.hpp"

namespace pn::cpu {
namespace {

// Finds the fault of a row that `inspect` did not like, or finds none: what the core says of its weights.
template <class T>
Status find_fault(const Bytes* weights, Element element, std::size_t k, const double* importance,
                  std::size_t& index) noexcept {
  float block[T::block_size];
  for (std::size_t start = 0; start < k; start += T::block_size) {
    load_block<T>(weights + start * element_bytes(element), element, block);
    const Status status =
        detail::inspect_row<T>(block, importance == nullptr ? nullptr : importance + start, T::block_size, &index);
    if (status != Status::ok) {
      index += start;
      return status;
    }
  }
  return Status::ok;
}

// Whether a kind may be asked for rows of k weights; then nothing overflows in the sizes of a token or of a group.
template <class T>
bool are_activations(Activations kind, std::size_t k) noexcept {
  return k % T::block_size == 0 && static_cast<unsigned>(kind) <= 2 &&
         (kind != Activations::q8_0 || k % q8_0_block_size == 0) && k <= static_cast<std::size_t>(-1) / 64;
}

// Whether the few tokens of prepare_activations lie as a batch does, behind their header: where that is faster, and the
// bits are the same.
constexpr bool lie_as_batch(Activations kind, std::size_t tokens) noexcept {
  return kind == Activations::i16 && tokens > batch_tokens / 2;
}

bool are_importances(const double* importance, std::size_t k) noexcept {
  for (std::size_t e = 0; importance != nullptr && e < k; ++e)
    if (!detail::is_importance(importance[e])) return false;
  return true;
}

}  // namespace

Status convert(const void* in, Element from, std::size_t count, void* out, Element to, Isa isa) noexcept {
  if (!is_element(from) || !is_element(to)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  if (from == to) {
    if (count > 0) std::memcpy(out, in, count * element_bytes(from));
    return Status::ok;
  }
  const pn::detail::DefaultFloatEnvironment environment;
  table->convert(bytes_of(in), from, count, bytes_of(out), to);
  return Status::ok;
}

template <class T>
Status quantize_rows(const void* weights, Element element, std::size_t weight_stride, std::size_t rows, std::size_t k,
                     const double* importance, void* blocks, std::size_t block_stride, Fault* fault, Isa isa) noexcept {
  if (k % T::block_size != 0 || !is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const PnKernels& kernel = kernels_of<T>(*table);
  const pn::detail::DefaultFloatEnvironment environment;
  const bool good_importance = are_importances(importance, k);
  for (std::size_t n = 0; n < rows; ++n) {
    const Bytes* row = bytes_of(weights) + n * weight_stride;
    if (!good_importance || !kernel.inspect(row, element, k / T::block_size)) {
      std::size_t index = 0;
      const Status status = find_fault<T>(row, element, k, importance, index);
      if (status != Status::ok) {
        tell(fault, n, index);
        return status;
      }
    }
    kernel.quantize(row, element, k / T::block_size, importance, bytes_of(blocks) + n * block_stride);
  }
  return Status::ok;
}

template <class T>
Status add_error(const void* weights, Element element, std::size_t weight_stride, std::size_t rows, std::size_t k,
                 const double* importance, const void* blocks, std::size_t block_stride, ErrorSums& sums,
                 Isa isa) noexcept {
  if (k % T::block_size != 0 || !is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t n = 0; n < rows; ++n) {
    double partial[32] = {};
    kernels_of<T>(*table).error(bytes_of(weights) + n * weight_stride, element, block_count<T>(k), importance,
                                bytes_of(blocks) + n * block_stride, partial);
    for (std::size_t i = 0; i < 16; ++i) {
      sums.squared_error += partial[i];
      sums.squared_weight += partial[16 + i];
    }
  }
  return Status::ok;
}

template <class T>
Status validate_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k, Fault* fault,
                     Isa isa) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const std::size_t count = block_count<T>(k);
  for (std::size_t n = 0; n < rows; ++n) {
    const Bytes* row = bytes_of(blocks) + n * stride;
    if (kernels_of<T>(*table).valid(row, count)) continue;
    for (std::size_t b = 0; b < count; ++b) {
      const Status status = validate_block<T>(load_block34(row, b));
      if (status != Status::ok) {
        tell(fault, n, b);
        return status;
      }
    }
  }
  return Status::ok;
}

template <class T>
Status dequantize_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t first, std::size_t columns,
                       void* out, Element element, std::size_t out_stride, Isa isa) noexcept {
  if (!is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  const auto dequantize = kernels_of<T>(*table).dequantize;
  for (std::size_t n = 0; n < rows; ++n)
    convert_columns<T::block_size, sizeof(Block34)>(
        bytes_of(blocks) + n * stride, first, columns, bytes_of(out) + n * out_stride, element_bytes(element),
        [=](const Bytes* from, std::size_t count, Bytes* to) { dequantize(from, count, to, element); });
  return Status::ok;
}

template <class T>
Status get_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k, const std::int64_t* ids,
                std::size_t count, void* out, Element element, std::size_t out_stride, Fault* fault, Isa isa) noexcept {
  if (k % T::block_size != 0 || !is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const Status status = check_ids(ids, count, rows, fault);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < count; ++i)
    kernels_of<T>(*table).dequantize(bytes_of(blocks) + static_cast<std::size_t>(ids[i]) * stride, block_count<T>(k),
                                     bytes_of(out) + i * out_stride, element);
  return Status::ok;
}

template <class T>
std::size_t activations_bytes(Activations kind, std::size_t tokens, std::size_t k) noexcept {
  if (tokens > max_tokens || !are_activations<T>(kind, k)) return 0;
  if (!lie_as_batch(kind, tokens)) return prepared_bytes(tokens, pn_token_bytes<T>(kind, k));
  const std::size_t most_of_few = prepared_bytes(batch_tokens / 2, pn_token_bytes<T>(kind, k));
  const std::size_t as_batch = sizeof(Prepared) + batch_bytes<T>(kind, tokens, k);
  return as_batch > most_of_few ? as_batch : most_of_few;
}

template <class T>
Status prepare_activations(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k,
                           void* prepared, Fault* fault, Isa isa) noexcept {
  if (tokens > max_tokens) return Status::too_many_tokens;
  if (activations_bytes<T>(kind, tokens, k) == 0) return Status::bad_length;
  if (!is_aligned(prepared)) return Status::misaligned;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  const Prepared header = header_of(*table, tokens, k, pn_token_bytes<T>(kind, k), kind, T::bits);
  std::memset(prepared, 0, sizeof header);
  if (lie_as_batch(kind, tokens)) {
    const Status status =
        prepare_batch<T>(kind, x, x_stride, tokens, k, bytes_of(prepared) + sizeof header, fault, isa);
    if (status != Status::ok) return status;
    std::memcpy(prepared, &header, sizeof header);
    return status;
  }
  for (std::size_t m = 0; m < tokens; ++m) {
    const Bytes* from = reinterpret_cast<const Bytes*>(x) + m * x_stride;
    if (!prepare_token<T>(*table, kind, from, k, bytes_of(prepared) + sizeof header + m * header.token_bytes)) {
      std::size_t bad = 0;
      const Status status = check_activations(kind, from, k, bad);
      tell(fault, m, bad);
      return status;
    }
  }
  std::memcpy(prepared, &header, sizeof header);
  return Status::ok;
}

template <class T>
Status multiply(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k, const void* prepared, float* y,
                std::size_t y_stride) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
  const Kernels* table = nullptr;
  const Status status = find_table(prepared, k, T::bits, table);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  const auto* header = static_cast<const Prepared*>(prepared);
  const PnKernels& kernel = kernels_of<T>(*table);
  if (lie_as_batch(static_cast<Activations>(header->kind), header->tokens))
    kernel.multiply_batch({bytes_of(blocks), stride, rows, k, header + 1, y, y_stride}, header->tokens);
  else
    kernel.multiply({bytes_of(blocks), stride, rows, k, header, y, y_stride});
  return Status::ok;
}

template <class T>
std::size_t batch_bytes(Activations kind, std::size_t tokens, std::size_t k) noexcept {
  if (!are_activations<T>(kind, k)) return 0;
  const std::size_t groups = tokens == 0 ? 1 : (tokens - 1) / batch_tokens + 1;
  const std::size_t bytes = sizeof(Prepared) + batch_group_bytes<T>(kind, k);
  return groups > static_cast<std::size_t>(-1) / bytes ? 0 : groups * bytes;
}

template <class T>
Status prepare_batch(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k,
                     void* prepared, Fault* fault, Isa isa) noexcept {
  if (batch_bytes<T>(kind, tokens, k) == 0) return Status::bad_length;
  if (!is_aligned(prepared)) return Status::misaligned;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  const std::size_t group_bytes = batch_group_bytes<T>(kind, k);
  Bytes* group = bytes_of(prepared);
  for (std::size_t first = 0; first < tokens; first += batch_tokens) {
    const std::size_t count = tokens - first < batch_tokens ? tokens - first : batch_tokens;
    std::memset(group, 0, sizeof(Prepared) + group_bytes);
    for (std::size_t place = 0; place < count; ++place) {
      const Bytes* from = reinterpret_cast<const Bytes*>(x) + (first + place) * x_stride;
      if (!prepare_batch_token<T>(*table, kind, from, k, place, group + sizeof(Prepared))) {
        std::size_t bad = 0;
        const Status status = check_activations(kind, from, k, bad);
        tell(fault, first + place, bad);
        return status;
      }
    }
    const Prepared header = header_of(*table, count, k, group_bytes, kind, T::bits, batch_magic);
    std::memcpy(group, &header, sizeof header);
    group += sizeof header + group_bytes;
  }
  return Status::ok;
}

template <class T>
Status multiply_batch(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k, const void* prepared,
                      std::size_t tokens, float* y, std::size_t y_stride) noexcept {
  if (k % T::block_size != 0) return Status::bad_length;
  const auto* first = static_cast<const Prepared*>(prepared);
  const Prepared* group = first;
  const Kernels* table = nullptr;
  for (std::size_t m = 0; m < tokens; m += batch_tokens) {
    const Status status = find_table(group, k, T::bits, table, batch_magic);
    if (status != Status::ok) return status;
    if (group->kind != first->kind || group->isa != first->isa ||
        (group->tokens < batch_tokens && group->tokens < tokens - m))
      return Status::not_prepared;
    group += 1 + group->token_bytes / sizeof *group;
  }
  if (table == nullptr) return Status::ok;  // no tokens
  const pn::detail::DefaultFloatEnvironment environment;
  kernels_of<T>(*table).multiply_batch({bytes_of(blocks), stride, rows, k, first, y, y_stride}, tokens);
  return Status::ok;
}

Status hadamard_activations(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k, std::size_t b,
                            float* out, std::size_t out_stride, Isa isa) noexcept {
  if (!pn::detail::whole_segments(k, b)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  const float scale = static_cast<float>(hadamard_scale(b));
  for (std::size_t m = 0; m < tokens; ++m)
    for (std::size_t start = 0; start < k; start += b)
      table->rotate(reinterpret_cast<const Bytes*>(x) + m * x_stride + 4 * start, b, scale,
                    reinterpret_cast<Bytes*>(out) + m * out_stride + 4 * start);
  return Status::ok;
}

#define PN_CPU_INSTANTIATE(T)                                                                                          \
  template PN_CPU_API Status quantize_rows<T>(const void*, Element, std::size_t, std::size_t, std::size_t,             \
                                              const double*, void*, std::size_t, Fault*, Isa) noexcept;                \
  template PN_CPU_API Status add_error<T>(const void*, Element, std::size_t, std::size_t, std::size_t, const double*,  \
                                          const void*, std::size_t, ErrorSums&, Isa) noexcept;                         \
  template PN_CPU_API Status validate_rows<T>(const void*, std::size_t, std::size_t, std::size_t, Fault*,              \
                                              Isa) noexcept;                                                           \
  template PN_CPU_API Status dequantize_rows<T>(const void*, std::size_t, std::size_t, std::size_t, std::size_t,       \
                                                void*, Element, std::size_t, Isa) noexcept;                            \
  template PN_CPU_API Status get_rows<T>(const void*, std::size_t, std::size_t, std::size_t, const std::int64_t*,      \
                                         std::size_t, void*, Element, std::size_t, Fault*, Isa) noexcept;              \
  template PN_CPU_API std::size_t activations_bytes<T>(Activations, std::size_t, std::size_t) noexcept;                \
  template PN_CPU_API Status prepare_activations<T>(Activations, const float*, std::size_t, std::size_t, std::size_t,  \
                                                    void*, Fault*, Isa) noexcept;                                      \
  template PN_CPU_API Status multiply<T>(const void*, std::size_t, std::size_t, std::size_t, const void*, float*,      \
                                         std::size_t) noexcept;                                                        \
  template PN_CPU_API std::size_t batch_bytes<T>(Activations, std::size_t, std::size_t) noexcept;                      \
  template PN_CPU_API Status prepare_batch<T>(Activations, const float*, std::size_t, std::size_t, std::size_t, void*, \
                                              Fault*, Isa) noexcept;                                                   \
  template PN_CPU_API Status multiply_batch<T>(const void*, std::size_t, std::size_t, std::size_t, const void*,        \
                                               std::size_t, float*, std::size_t) noexcept;
PN_CPU_INSTANTIATE(pn3t)
PN_CPU_INSTANTIATE(pn4t)

}  // namespace pn::cpu
