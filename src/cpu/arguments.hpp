// What the functions behind both public headers share: checks of arguments, loops over rows, faults.
#pragma once

#include <pn/float_env.hpp>

#include "kernels.hpp"

namespace pn::cpu {

// "pn::cpu\1" and "pn::cpu\2" as numbers: the marks of prepared activations and of each group of a batch.
inline constexpr std::uint64_t prepared_magic = 0x01757063'3A3A6E70u;
inline constexpr std::uint64_t batch_magic = 0x02757063'3A3A6E70u;

// Whether rows of k weights lie one behind the other, so that they can be taken for one long row.
constexpr bool dense(std::size_t rows, std::size_t stride, std::size_t row_bytes) noexcept {
  return rows <= 1 || stride == row_bytes;
}

inline void tell(Fault* fault, std::size_t row, std::size_t index) noexcept {
  if (fault != nullptr) *fault = {row, index};
}

inline Status check_ids(const std::int64_t* ids, std::size_t count, std::size_t rows, Fault* fault) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= rows) {
      tell(fault, i, 0);
      return Status::out_of_range;
    }
  return Status::ok;
}

inline bool is_aligned(const void* p) noexcept { return reinterpret_cast<std::uintptr_t>(p) % alignof(Prepared) == 0; }

// Size of prepared activations; 0 when it does not fit std::size_t.
constexpr std::size_t prepared_bytes(std::size_t tokens, std::size_t token_bytes) noexcept {
  const std::size_t most = static_cast<std::size_t>(-1) - sizeof(Prepared);
  return token_bytes != 0 && tokens > most / token_bytes ? 0 : sizeof(Prepared) + tokens * token_bytes;
}

inline bool is_element(Element element) noexcept { return static_cast<unsigned>(element) <= 2; }

// The header of prepared activations; bits: see Prepared.
inline Prepared header_of(const Kernels& table, std::size_t tokens, std::size_t k, std::size_t token_bytes,
                          Activations kind, std::uint8_t bits, std::uint64_t magic = prepared_magic) noexcept {
  Prepared header = {};
  header.magic = magic;
  header.k = k;
  header.token_bytes = token_bytes;
  header.tokens = static_cast<std::uint32_t>(tokens);
  header.isa = static_cast<std::uint8_t>(table.isa);
  header.kind = static_cast<std::uint8_t>(kind);
  header.bits = bits;
  return header;
}

// The table of the instruction set that activations were prepared for. misaligned; not_prepared when they were not, or
// for another k or other weights.
inline Status find_table(const void* prepared, std::size_t k, std::uint8_t bits, const Kernels*& table,
                         std::uint64_t magic = prepared_magic) noexcept {
  if (!is_aligned(prepared)) return Status::misaligned;
  const auto* header = static_cast<const Prepared*>(prepared);
  if (header->magic != magic || header->k != k || header->bits != bits || header->isa == 0) return Status::not_prepared;
  table = kernels(static_cast<Isa>(header->isa));
  return table == nullptr ? Status::not_prepared : Status::ok;
}

inline const Bytes* bytes_of(const void* p) noexcept { return static_cast<const Bytes*>(p); }
inline Bytes* bytes_of(void* p) noexcept { return static_cast<Bytes*>(p); }

// Columns first .. first + columns - 1 of a row of blocks, as numbers of `bytes` bytes, to `out`: whole blocks at once,
// parts of blocks by way of a buffer. convert(blocks, count, out) converts whole blocks.
template <std::size_t BlockSize, std::size_t BlockBytes, class Convert>
void convert_columns(const Bytes* row, std::size_t first, std::size_t columns, Bytes* out, std::size_t bytes,
                     Convert convert) noexcept {
  while (columns > 0) {
    const Bytes* from = row + first / BlockSize * BlockBytes;
    const std::size_t skipped = first % BlockSize;
    const std::size_t whole = skipped == 0 ? columns / BlockSize : 0;
    std::size_t done = whole * BlockSize;
    if (whole > 0) {
      convert(from, whole, out);
    } else {
      Bytes block[4 * BlockSize];
      convert(from, std::size_t{1}, block);
      done = BlockSize - skipped < columns ? BlockSize - skipped : columns;
      std::memcpy(out, block + skipped * bytes, done * bytes);
    }
    first += done;
    columns -= done;
    out += done * bytes;
  }
}

}  // namespace pn::cpu
