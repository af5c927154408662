// What a program that links pn does first: quantize a row and read it back, pack a row and get it back.
// Ends with 0, or with the number of the step that went wrong. Needs neither exceptions nor RTTI.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <vector>

namespace {

constexpr std::size_t k = 1280;  // a multiple of 64, 80 and 256

template <class T>
bool quantize_and_decode(const std::vector<float>& row) {
  std::vector<pn::Block34> blocks(pn::block_count<T>(k));
  if (pn::quantize_row<T>(row.data(), k, blocks.data()) != pn::Status::ok) return false;
  if (pn::validate_row<T>(blocks.data(), k) != pn::Status::ok) return false;

  std::vector<float> decoded(k);
  if (pn::decode_row<T>(blocks.data(), k, decoded.data()) != pn::Status::ok) return false;
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < k; ++i) {
    if (decoded[i] != pn::decode_element<T>(blocks.data(), i)) return false;
    error += std::pow(static_cast<double>(row[i]) - static_cast<double>(decoded[i]), 2);
    power += std::pow(static_cast<double>(row[i]), 2);
  }
  const double nrmse = std::sqrt(error / power);
  std::printf("%s: %zu bytes, error %.3f of the weights' size\n", T::name, pn::row_bytes<T>(k), nrmse);
  return nrmse > 0 && nrmse < (T::bits == 3 ? 0.20 : 0.10);
}

bool pack_and_unpack(const std::vector<float>& row) {
  std::vector<std::uint16_t> weights(k);
  for (std::size_t i = 0; i < k; ++i) weights[i] = pn::float_to_bf16(row[i]);
  weights[7] = 0x7F80;  // an infinity, which lists one weight

  std::vector<p12::Block392> blocks(p12::block_count(k));
  if (p12::pack_row(weights.data(), k, blocks.data()) != pn::Status::ok) return false;
  if (p12::validate_row(blocks.data(), k) != pn::Status::ok) return false;
  if (blocks[0].listed == 0) return false;

  std::vector<std::uint16_t> unpacked(k);
  if (p12::unpack_row(blocks.data(), k, unpacked.data()) != pn::Status::ok) return false;
  std::printf("BF16_P12: %zu bytes for %zu\n", p12::row_bytes(k), 2 * k);
  return unpacked == weights;
}

}  // namespace

int main() {
  std::vector<float> row(k);
  for (std::size_t i = 0; i < k; ++i) row[i] = std::sin(0.37f * static_cast<float>(i) + 0.5f);

  if (!quantize_and_decode<pn::pn3t>(row)) return 1;
  if (!quantize_and_decode<pn::pn4t>(row)) return 2;
  if (!pack_and_unpack(row)) return 3;

  std::size_t bad = 0;
  row[1000] = HUGE_VALF;
  std::vector<pn::Block34> blocks(pn::block_count<pn::pn4t>(k));
  const pn::Status status = pn::quantize_row<pn::pn4t>(row.data(), k, blocks.data(), &bad);
  std::printf("an infinity: %s, at %zu\n", pn::status_text(status), bad);
  return status == pn::Status::not_finite && bad == 1000 ? 0 : 4;
}
