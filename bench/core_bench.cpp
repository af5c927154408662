// The scalar core (include/pn, include/p12), as one more instruction set: @core. It is the reference that the kernels
// of pn::cpu are compared with, in speed here and in every bit in the tests.
#include <cstring>
#include <p12/p12.hpp>
#include <pn/pn.hpp>

#include "isas.hpp"

namespace bench {
namespace {

constexpr std::size_t k = row_lengths[0];

const p12::Block392* p12_blocks(const std::uint8_t* row) { return reinterpret_cast<const p12::Block392*>(row); }
const pn::Block34* pn_blocks(const std::uint8_t* row) { return reinterpret_cast<const pn::Block34*>(row); }

using PerRow = std::function<void(const std::uint8_t* in, std::uint8_t* out)>;
using Agrees = std::function<bool(const std::uint8_t* in, const std::uint8_t* out)>;

// The core is the reference of all others; what it does is compared with what undoes it.
void add_rows(const std::string& name, Set& (*set)(), std::size_t in_bytes, std::size_t out_bytes,
              const PerRow& per_row, const Agrees& agrees) {
  add(name + "@core", [=] {
    Stream s;
    s.k = k;
    s.weights = slow_weights;
    s.set = &set();
    s.in_bytes = in_bytes;
    s.out_bytes = out_bytes;
    s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
      for (std::size_t r = 0; r < rows; ++r) per_row(in + r * in_bytes, out + r * out_bytes);
    };
    s.agrees = agrees;
    return stream_job(s);
  });
}

template <class T>
void add_type() {
  const std::string type = T::name;
  constexpr std::size_t bytes = pn::row_bytes<T>(k);
  const auto decodes_to = [](const std::uint8_t* row, const std::uint8_t* floats, float slack) {
    std::vector<float> decoded(k);
    require(pn::decode_row<T>(pn_blocks(row), k, decoded.data()));
    for (std::size_t i = 0; i < k; ++i) {
      const float distance = decoded[i] - load_element(floats, Element::f32, i);
      if (distance > slack || distance < -slack) return false;
    }
    return true;
  };
  add_rows(
      type + "_quantize_f32", f32_set, 4 * k, bytes,
      [](const std::uint8_t* in, std::uint8_t* out) {
        require(pn::quantize_row<T>(reinterpret_cast<const float*>(in), k, reinterpret_cast<pn::Block34*>(out)));
      },
      [=](const std::uint8_t* in, const std::uint8_t* out) { return decodes_to(out, in, 0.05f); });
  add_rows(
      type + "_dequantize_f32", pn_set<T>, bytes, 4 * k,
      [](const std::uint8_t* in, std::uint8_t* out) {
        require(pn::decode_row<T>(pn_blocks(in), k, reinterpret_cast<float*>(out)));
      },
      [=](const std::uint8_t* in, const std::uint8_t* out) { return decodes_to(in, out, 0); });
  add_rows(
      type + "_validate", pn_set<T>, bytes, 0,
      [](const std::uint8_t* in, std::uint8_t*) { require(pn::validate_row<T>(pn_blocks(in), k)); },
      [](const std::uint8_t*, const std::uint8_t*) { return true; });
  add(type + "_gemv_f32@core", [] {
    Gemv g;
    g.k = k;
    g.row_bytes = bytes;
    g.weights = slow_weights;
    g.set = &pn_set<T>();
    g.prepared_bytes = 4 * k;
    g.prepare = [](const float* x, void* prepared) { std::memcpy(prepared, x, 4 * k); };
    g.multiply = [](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t) {
      for (std::size_t n = 0; n < rows; ++n)
        require(pn::dot_f32<T>(pn_blocks(w + n * bytes), static_cast<const float*>(x), k, y + n));
    };
    g.decode = [](const std::uint8_t* row, float* out) { require(pn::decode_row<T>(pn_blocks(row), k, out)); };
    g.x_error = 0;
    return gemv_job(g);
  });
}

}  // namespace

void add_core() {
  constexpr std::size_t bytes = p12::row_bytes(k);
  const auto unpacks_to = [](const std::uint8_t* row, const std::uint8_t* weights) {
    std::vector<std::uint16_t> unpacked(k);
    require(p12::unpack_row(p12_blocks(row), k, unpacked.data()));
    return std::memcmp(unpacked.data(), weights, 2 * k) == 0;
  };
  add_rows(
      "p12_pack", bf16_set, 2 * k, bytes,
      [](const std::uint8_t* in, std::uint8_t* out) {
        require(p12::pack_row(reinterpret_cast<const std::uint16_t*>(in), k, reinterpret_cast<p12::Block392*>(out)));
      },
      [=](const std::uint8_t* in, const std::uint8_t* out) { return unpacks_to(out, in); });
  add_rows(
      "p12_unpack_cached", p12_set, bytes, 2 * k,
      [](const std::uint8_t* in, std::uint8_t* out) {
        require(p12::unpack_row(p12_blocks(in), k, reinterpret_cast<std::uint16_t*>(out)));
      },
      unpacks_to);
  add_rows(
      "p12_validate", p12_set, bytes, 0,
      [](const std::uint8_t* in, std::uint8_t*) { require(p12::validate_row(p12_blocks(in), k)); },
      [](const std::uint8_t*, const std::uint8_t*) { return true; });
  add_type<pn::pn3t>();
  add_type<pn::pn4t>();
}

}  // namespace bench
