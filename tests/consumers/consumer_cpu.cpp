// What an engine does with pn::cpu: quantize rows, prepare activations, multiply; pack bf16 and multiply that. Ends
// with 0, or with the number of the step that went wrong.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <p12/cpu.hpp>
#include <pn/cpu.hpp>
#include <pn/half.hpp>
#include <vector>

namespace {

constexpr std::size_t k = 1280;
constexpr std::size_t rows = 3;

// 64-byte aligned room in a vector.
void* aligned(std::vector<unsigned char>& room, std::size_t bytes) {
  room.resize(bytes + 64);
  return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(room.data()) + 63) / 64 * 64);
}

}  // namespace

int main() {
  std::vector<float> w(rows * k), x(k), y(rows), z(rows);
  std::vector<std::uint16_t> bf16(rows * k);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = std::sin(0.37f * static_cast<float>(i) + 0.5f);
    bf16[i] = pn::float_to_bf16(w[i]);
  }
  for (std::size_t i = 0; i < k; ++i) x[i] = std::cos(0.11f * static_cast<float>(i * i % 977));
  std::printf("%s\n", pn::cpu::isa_name(*pn::cpu::isas().begin()));

  constexpr std::size_t stride = pn::row_bytes<pn::pn4t>(k);
  std::vector<unsigned char> blocks(rows * stride), room;
  if (pn::cpu::quantize_rows<pn::pn4t>(w.data(), pn::cpu::Element::f32, 4 * k, rows, k, nullptr, blocks.data(),
                                       stride) != pn::Status::ok)
    return 1;
  const auto kind = pn::cpu::Activations::f32;
  void* prepared = aligned(room, pn::cpu::activations_bytes<pn::pn4t>(kind, 1, k));
  if (pn::cpu::prepare_activations<pn::pn4t>(kind, x.data(), 4 * k, 1, k, prepared) != pn::Status::ok) return 2;
  if (pn::cpu::multiply<pn::pn4t>(blocks.data(), stride, rows, k, prepared, y.data(), 4 * rows) != pn::Status::ok)
    return 3;
  for (std::size_t n = 0; n < rows; ++n) {
    double exact = 0;
    for (std::size_t i = 0; i < k; ++i) exact += static_cast<double>(w[n * k + i]) * static_cast<double>(x[i]);
    if (std::fabs(exact - static_cast<double>(y[n])) > 5.0) return 4;
  }

  void* batch = aligned(room, pn::cpu::batch_bytes<pn::pn4t>(kind, 1, k));
  if (pn::cpu::prepare_batch<pn::pn4t>(kind, x.data(), 4 * k, 1, k, batch) != pn::Status::ok) return 10;
  if (pn::cpu::multiply_batch<pn::pn4t>(blocks.data(), stride, rows, k, batch, 1, z.data(), 4 * rows) != pn::Status::ok)
    return 11;
  for (std::size_t n = 0; n < rows; ++n)
    if (std::fabs(y[n] - z[n]) > 1e-3f) return 12;

  const std::size_t packed_stride = p12::row_bytes(k);
  std::vector<unsigned char> packed(rows * packed_stride);
  if (p12::cpu::pack_rows(bf16.data(), 2 * k, rows, k, packed.data(), packed_stride) != pn::Status::ok) return 5;
  prepared = aligned(room, p12::cpu::activations_bytes(1, k));
  if (p12::cpu::prepare_activations(x.data(), 4 * k, 1, k, prepared) != pn::Status::ok) return 6;
  if (p12::cpu::multiply(packed.data(), packed_stride, rows, k, prepared, y.data(), 4 * rows) != pn::Status::ok)
    return 7;
  if (p12::cpu::multiply_bf16(bf16.data(), 2 * k, rows, k, prepared, z.data(), 4 * rows) != pn::Status::ok) return 8;
  return y == z ? 0 : 9;
}
