// BF16_P12 and BF16.
#include <cstring>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <utility>

#include "isas.hpp"

namespace bench {
namespace {

using pn::cpu::Order;
using pn::cpu::Stores;

void unpack_row(const std::uint8_t* row, std::size_t k, std::uint16_t* out) {
  require(p12::unpack_row(reinterpret_cast<const p12::Block392*>(row), k, out));
}

void decode_p12(const std::uint8_t* row, std::size_t k, float* out) {
  std::vector<std::uint16_t> bits(k);
  unpack_row(row, k, bits.data());
  for (std::size_t i = 0; i < k; ++i) out[i] = pn::bf16_to_float(bits[i]);
}

bool unpacked(const std::uint8_t* row, std::size_t k, const std::uint8_t* out, Element element) {
  std::vector<float> weights(k);
  decode_p12(row, k, weights.data());
  return holds(out, element, weights.data(), k);
}

Job bf16_gemv(std::size_t k, std::size_t tokens, Order order, Isa isa) {
  Gemv g;
  g.k = k;
  g.row_bytes = 2 * k;
  g.tokens = tokens;
  g.set = &bf16_set();
  g.prepared_bytes = p12::cpu::activations_bytes(tokens, k);
  g.prepare = [=](const float* x, void* prepared) {
    require(p12::cpu::prepare_activations(x, 4 * k, tokens, k, prepared, isa));
  };
  g.multiply = [=](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t stride) {
    require(p12::cpu::multiply_bf16(w, 2 * k, rows, k, x, y, 4 * stride, order));
  };
  g.decode = [=](const std::uint8_t* row, float* out) {
    for (std::size_t i = 0; i < k; ++i) out[i] = load_element(row, Element::bf16, i);
  };
  g.x_error = 0;
  return gemv_job(g);
}

Job p12_gemv(std::size_t k, std::size_t tokens, Order order, Isa isa) {
  Gemv g;
  g.k = k;
  g.row_bytes = p12::row_bytes(k);
  g.tokens = tokens;
  g.set = &p12_set();
  g.prepared_bytes = p12::cpu::activations_bytes(tokens, k);
  g.prepare = [=](const float* x, void* prepared) {
    require(p12::cpu::prepare_activations(x, 4 * k, tokens, k, prepared, isa));
  };
  g.multiply = [=](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t stride) {
    require(p12::cpu::multiply(w, p12::row_bytes(k), rows, k, x, y, 4 * stride, order));
  };
  g.decode = [=](const std::uint8_t* row, float* out) { decode_p12(row, k, out); };
  g.x_error = 0;
  return gemv_job(g);
}

Job pack(std::size_t k, Isa isa) {
  Stream s;
  s.k = k;
  s.set = &bf16_set();
  s.in_bytes = 2 * k;
  s.out_bytes = p12::row_bytes(k);
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
    require(p12::cpu::pack_rows(in, 2 * k, rows, k, out, p12::row_bytes(k), nullptr, nullptr, isa));
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) {
    std::vector<std::uint16_t> weights(k);
    std::memcpy(weights.data(), in, 2 * k);
    std::vector<p12::Block392> blocks(p12::block_count(k));
    require(p12::pack_row(weights.data(), k, blocks.data()));
    return std::memcmp(out, blocks.data(), p12::row_bytes(k)) == 0;
  };
  return stream_job(s);
}

Job scan(std::size_t k, Isa isa) {
  Stream s;
  s.k = k;
  s.set = &bf16_set();
  s.in_bytes = 2 * k;
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t*) {
    p12::RowScan tally;
    require(p12::cpu::scan_rows(in, 2 * k, rows, k, tally, isa));
    if (tally.blocks != rows * p12::block_count(k)) fail("scan: a block was not counted");
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t*) {
    p12::RowScan ours, cores;
    std::vector<std::uint16_t> weights(k);
    std::memcpy(weights.data(), in, 2 * k);
    require(p12::cpu::scan_rows(in, 2 * k, 1, k, ours, isa));
    require(p12::scan_row(weights.data(), k, cores));
    return ours.by_listed[0] == cores.by_listed[0] && ours.by_listed[1] == cores.by_listed[1];
  };
  return stream_job(s);
}

Job unpack(std::size_t k, Element element, Stores stores, Isa isa) {
  const std::size_t out_bytes = k * pn::cpu::element_bytes(element);
  Stream s;
  s.k = k;
  s.set = &p12_set();
  s.in_bytes = p12::row_bytes(k);
  s.out_bytes = out_bytes;
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
    require(p12::cpu::unpack_rows(in, p12::row_bytes(k), rows, k, out, element, out_bytes, stores, isa));
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) { return unpacked(in, k, out, element); };
  return stream_job(s);
}

Job validate(std::size_t k, Isa isa) {
  Stream s;
  s.k = k;
  s.set = &p12_set();
  s.in_bytes = p12::row_bytes(k);
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t*) {
    require(p12::cpu::validate_rows(in, p12::row_bytes(k), rows, k, nullptr, isa));
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t*) {
    std::vector<std::uint8_t> row(in, in + p12::row_bytes(k));
    row[3 * sizeof(p12::Block392)] = 255;  // no base
    pn::cpu::Fault fault = {};
    return p12::cpu::validate_rows(row.data(), row.size(), 1, k, &fault, isa) == pn::Status::base_out_of_range &&
           fault.index == 3;
  };
  return stream_job(s);
}

Job get_rows(std::size_t k) {
  const std::size_t row_bytes = p12::row_bytes(k);
  LookUp l;
  l.k = k;
  l.set = &p12_set();
  l.in_bytes = row_bytes;
  l.out_bytes = 2 * k;
  l.run = [=](const std::uint8_t* in, std::size_t rows, const std::int64_t* ids, std::size_t count, std::uint8_t* out) {
    require(p12::cpu::get_rows(in, row_bytes, rows, k, ids, count, out, Element::bf16, 2 * k));
  };
  l.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) { return unpacked(in, k, out, Element::bf16); };
  return look_up_job(l);
}

}  // namespace

void add_p12() {
  const std::size_t k = row_lengths[0];
  const auto both = Threads::one_and_all;
  for (const std::size_t length : row_lengths) {
    const std::string suffix = shape_suffix(length);
    add(
        "bf16_gemv" + suffix, [=] { return bf16_gemv(length, 1, Order::fast, Isa::best); }, both);
    add(
        "p12_gemv" + suffix, [=] { return p12_gemv(length, 1, Order::fast, Isa::best); }, both);
    add(
        "p12_pack" + suffix, [=] { return pack(length, Isa::best); }, both);
    add(
        "p12_unpack_cached" + suffix, [=] { return unpack(length, Element::bf16, Stores::cached, Isa::best); }, both);
    add(
        "p12_unpack_streaming" + suffix, [=] { return unpack(length, Element::bf16, Stores::streaming, Isa::best); },
        both);
    add(
        "p12_validate" + suffix, [=] { return validate(length, Isa::best); }, both);
  }
  add(
      "bf16_gemv_portable", [=] { return bf16_gemv(k, 1, Order::portable, Isa::best); }, both);
  add(
      "p12_gemv_portable", [=] { return p12_gemv(k, 1, Order::portable, Isa::best); }, both);
  for (std::size_t tokens = 2; tokens <= most_tokens; tokens *= 2) {
    const std::string suffix = "@M" + std::to_string(tokens);
    add("bf16_gemv" + suffix, [=] { return bf16_gemv(k, tokens, Order::fast, Isa::best); });
    add("p12_gemv" + suffix, [=] { return p12_gemv(k, tokens, Order::fast, Isa::best); });
  }
  add("p12_scan", [=] { return scan(k, Isa::best); });
  add("p12_unpack_f32", [=] { return unpack(k, Element::f32, Stores::streaming, Isa::best); });
  add("p12_unpack_f16", [=] { return unpack(k, Element::f16, Stores::streaming, Isa::best); });
  add("p12_get_rows", [=] { return get_rows(k); });
  for_each_isa([&](Isa isa, const std::string& suffix) {
    if (suffix.empty()) return;
    add("bf16_gemv" + suffix, [=] { return bf16_gemv(k, 1, Order::fast, isa); });
    add("p12_gemv" + suffix, [=] { return p12_gemv(k, 1, Order::fast, isa); });
    add("p12_pack" + suffix, [=] { return pack(k, isa); });
    add("p12_unpack_cached" + suffix, [=] { return unpack(k, Element::bf16, Stores::cached, isa); });
    add("p12_unpack_streaming" + suffix, [=] { return unpack(k, Element::bf16, Stores::streaming, isa); });
    add("p12_validate" + suffix, [=] { return validate(k, isa); });
  });
}

}  // namespace bench
