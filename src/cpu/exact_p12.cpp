#include "exact_p12.hpp"

#include <p12/p12.hpp>

namespace pn::cpu {
namespace {

void load_weights(const std::uint8_t* in, std::uint16_t* out) noexcept {
  for (std::size_t i = 0; i < p12::block_size; ++i) out[i] = detail::load_le16(in + 2 * i);
}

}  // namespace

bool pack_by_core(const std::uint8_t* weights, std::uint8_t* out, p12::RowScan* tally) noexcept {
  std::uint16_t values[p12::block_size];
  p12::Block392 block;
  p12::BlockScan scan = {};
  load_weights(weights, values);
  const Status status = p12::pack_block(values, block, &scan);
  if (tally != nullptr) p12::add_block(scan, *tally);
  if (status != Status::ok) return false;
  std::memcpy(out, &block, sizeof block);
  return true;
}

void scan_by_core(const std::uint8_t* weights, p12::RowScan& tally) noexcept {
  std::uint16_t values[p12::block_size];
  load_weights(weights, values);
  p12::add_block(p12::scan_block(values), tally);
}

bool valid_by_core(const std::uint8_t* block) noexcept {
  p12::Block392 copy;
  std::memcpy(&copy, block, sizeof copy);
  return p12::validate_block(copy) == Status::ok;
}

}  // namespace pn::cpu
