// Behind p12/cpu.hpp: arguments are checked here, the work is done by the kernels of an instruction set.
#include <p12/codec.hpp>
#include <p12/validate.hpp>

#include "arguments.hpp"
#include "layout.hpp"

namespace p12::cpu {

using pn::cpu::Activations;
using pn::cpu::Bytes;
using pn::cpu::bytes_of;
using pn::cpu::check_ids;
using pn::cpu::convert_columns;
using pn::cpu::dense;
using pn::cpu::element_bytes;
using pn::cpu::is_aligned;
using pn::cpu::is_element;
using pn::cpu::Kernels;
using pn::cpu::kernels;
using pn::cpu::p12_token_bytes;
using pn::cpu::Prepared;
using pn::cpu::tell;

namespace {

constexpr std::uint8_t code_bits = 16;  // in Prepared: activations for BF16 and BF16_P12

// Rows that lie one behind the other are one row. Sets k and rows; to get a fault's row back, divide by blocks_per_row.
void join_rows(std::size_t& rows, std::size_t& k, bool all_dense) noexcept {
  if (!all_dense || rows <= 1) return;
  k *= rows;
  rows = 1;
}

// What all multiplies check, and the table to multiply with.
Status check_multiply(std::size_t k, const void* prepared, const Kernels*& table) noexcept {
  return k % block_size != 0 ? Status::bad_length : pn::cpu::find_table(prepared, k, code_bits, table);
}

}  // namespace

Status pack_rows(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k, void* blocks,
                 std::size_t block_stride, RowScan* tally, Fault* fault, Isa isa) noexcept {
  if (k % block_size != 0) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const std::size_t blocks_per_row = block_count(k);
  join_rows(rows, k, dense(rows, weight_stride, 2 * k) && dense(rows, block_stride, row_bytes(k)));
  Status status = Status::ok;
  for (std::size_t n = 0; n < rows; ++n) {
    const std::size_t bad = table->p12.pack(bytes_of(weights) + n * weight_stride, block_count(k),
                                            bytes_of(blocks) + n * block_stride, tally);
    if (bad == block_count(k) || status != Status::ok) continue;
    status = Status::too_many_listed;
    tell(fault, n + bad / blocks_per_row, bad % blocks_per_row);
  }
  return status;
}

Status scan_rows(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k, RowScan& tally,
                 Isa isa) noexcept {
  if (k % block_size != 0) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  join_rows(rows, k, dense(rows, weight_stride, 2 * k));
  for (std::size_t n = 0; n < rows; ++n) table->p12.scan(bytes_of(weights) + n * weight_stride, block_count(k), tally);
  return Status::ok;
}

Status unpack_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k, void* out,
                   Element element, std::size_t out_stride, Stores stores, Isa isa) noexcept {
  if (k % block_size != 0 || !is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  join_rows(rows, k, dense(rows, block_stride, row_bytes(k)) && dense(rows, out_stride, element_bytes(element) * k));
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t n = 0; n < rows; ++n)
    table->p12.unpack(bytes_of(blocks) + n * block_stride, block_count(k), bytes_of(out) + n * out_stride, element,
                      stores);
  return Status::ok;
}

Status unpack_tile(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t first,
                   std::size_t columns, void* out, Element element, std::size_t out_stride, Isa isa) noexcept {
  if (!is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t n = 0; n < rows; ++n)
    convert_columns<block_size, sizeof(Block392)>(bytes_of(blocks) + n * block_stride, first, columns,
                                                  bytes_of(out) + n * out_stride, element_bytes(element),
                                                  [=](const Bytes* from, std::size_t count, Bytes* to) {
                                                    table->p12.unpack(from, count, to, element, Stores::cached);
                                                  });
  return Status::ok;
}

Status validate_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k, Fault* fault,
                     Isa isa) noexcept {
  if (k % block_size != 0) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const std::size_t blocks_per_row = block_count(k);
  join_rows(rows, k, dense(rows, block_stride, row_bytes(k)));
  for (std::size_t n = 0; n < rows; ++n) {
    const Bytes* row = bytes_of(blocks) + n * block_stride;
    if (table->p12.valid(row, block_count(k))) continue;
    for (std::size_t b = 0; b < block_count(k); ++b) {
      Block392 block;
      std::memcpy(&block, row + b * sizeof block, sizeof block);
      const Status status = validate_block(block);
      if (status != Status::ok) {
        tell(fault, n + b / blocks_per_row, b % blocks_per_row);
        return status;
      }
    }
  }
  return Status::ok;
}

Status get_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k, const std::int64_t* ids,
                std::size_t count, void* out, Element element, std::size_t out_stride, Fault* fault, Isa isa) noexcept {
  if (k % block_size != 0 || !is_element(element)) return Status::bad_length;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const Status status = check_ids(ids, count, rows, fault);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < count; ++i)
    table->p12.unpack(bytes_of(blocks) + static_cast<std::size_t>(ids[i]) * block_stride, block_count(k),
                      bytes_of(out) + i * out_stride, element, Stores::cached);
  return Status::ok;
}

std::size_t activations_bytes(std::size_t tokens, std::size_t k) noexcept {
  if (k % block_size != 0 || tokens > max_tokens || k > static_cast<std::size_t>(-1) / 16) return 0;
  return pn::cpu::prepared_bytes(tokens, p12_token_bytes(k));
}

Status prepare_activations(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k, void* prepared,
                           Isa isa) noexcept {
  if (tokens > max_tokens) return Status::too_many_tokens;
  if (activations_bytes(tokens, k) == 0) return Status::bad_length;
  if (!is_aligned(prepared)) return Status::misaligned;
  const Kernels* table = kernels(isa);
  if (table == nullptr) return Status::isa_not_available;
  const Prepared header = pn::cpu::header_of(*table, tokens, k, p12_token_bytes(k), Activations::f32, code_bits);
  std::memcpy(prepared, &header, sizeof header);
  for (std::size_t m = 0; m < tokens; ++m)
    table->p12.prepare(reinterpret_cast<const Bytes*>(x) + m * x_stride, k,
                       bytes_of(prepared) + sizeof header + m * header.token_bytes);
  return Status::ok;
}

Status multiply(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k, const void* prepared,
                float* y, std::size_t y_stride, Order order) noexcept {
  const Kernels* table = nullptr;
  const Status status = check_multiply(k, prepared, table);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  table->p12.multiply({bytes_of(blocks), block_stride, rows, k, static_cast<const Prepared*>(prepared), y, y_stride},
                      order);
  return Status::ok;
}

Status multiply_bf16(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k,
                     const void* prepared, float* y, std::size_t y_stride, Order order) noexcept {
  const Kernels* table = nullptr;
  const Status status = check_multiply(k, prepared, table);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  table->p12.multiply_bf16(
      {bytes_of(weights), weight_stride, rows, k, static_cast<const Prepared*>(prepared), y, y_stride}, order);
  return Status::ok;
}

std::size_t proof_workspace_bytes(std::size_t k) noexcept {
  return k % block_size == 0 && k <= static_cast<std::size_t>(-1) / 16 ? 2 * k : 0;
}

Status multiply_unpacked(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k,
                         const void* prepared, float* y, std::size_t y_stride, void* workspace, Order order) noexcept {
  const Kernels* table = nullptr;
  const Status status = check_multiply(k, prepared, table);
  if (status != Status::ok) return status;
  const pn::detail::DefaultFloatEnvironment environment;
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t b = 0; b < block_count(k); ++b) {
      Block392 block;
      std::uint16_t unpacked[block_size];
      std::memcpy(&block, bytes_of(blocks) + n * block_stride + b * sizeof block, sizeof block);
      unpack_block(block, unpacked);
      std::memcpy(bytes_of(workspace) + b * sizeof unpacked, unpacked, sizeof unpacked);
    }
    table->p12.multiply_bf16({bytes_of(workspace), 0, 1, k, static_cast<const Prepared*>(prepared), y + n, y_stride},
                             order);
  }
  return Status::ok;
}

}  // namespace p12::cpu
