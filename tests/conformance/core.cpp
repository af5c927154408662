// Does with pn's core what the manifest of tests/golden asks for; run_kit.py feeds it and compares. Each line of
// standard input is one test, with tabs between: operation, format, k, b (the Hadamard block, or 0), the path for the
// output, the inputs' paths. Output files hold little-endian values, or, where rows end in a result, lines of text:
// result, its sentence, and a number or "-".
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace {

using pn::Status;
using Bytes = std::vector<std::uint8_t>;

const char* name_of(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::bad_length: return "bad_length";
    case Status::not_finite: return "not_finite";
    case Status::scale_overflow: return "scale_overflow";
    case Status::bad_importance: return "bad_importance";
    // Of the compiled kernels, never of the core.
    case Status::isa_not_available:
    case Status::too_many_tokens:
    case Status::misaligned:
    case Status::not_prepared:
    case Status::out_of_range:
    case Status::bad_rank: break;
    case Status::scale_not_finite: return "scale_not_finite";
    case Status::reserved_bits_set: return "reserved_bits_set";
    case Status::too_many_listed: return "too_many_listed";
    case Status::base_out_of_range: return "base_out_of_range";
    case Status::listed_count_out_of_range: return "listed_count_out_of_range";
    case Status::positions_not_ascending: return "positions_not_ascending";
    case Status::unused_slot_not_zero: return "unused_slot_not_zero";
    case Status::listed_code_not_zero: return "listed_code_not_zero";
    case Status::listed_exponent_in_range: return "listed_exponent_in_range";
    case Status::base_not_canonical: return "base_not_canonical";
  }
  return "?";
}

struct Test {
  std::string operation, format;
  std::size_t k = 0, b = 0;
  std::vector<Bytes> inputs;
  Bytes values;              // what goes to the output
  std::string rows;          // or this, once a row was not ok
  bool row_results = false;  // or was only judged

  void result(Status status, std::size_t at) {
    if (status != Status::ok) row_results = true;
    rows += std::string(name_of(status)) + "\t" + pn::status_text(status) + "\t" +
            (at == no_place ? "-" : std::to_string(at)) + "\n";
  }
  static constexpr std::size_t no_place = ~std::size_t{0};
};

// Little-endian values of an unsigned type, and back.
template <class U>
std::vector<U> load(const Bytes& bytes) {
  std::vector<U> values(bytes.size() / sizeof(U));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    values[i / sizeof(U)] = static_cast<U>(values[i / sizeof(U)] | static_cast<U>(bytes[i]) << (8 * (i % sizeof(U))));
  return values;
}
template <class F, class U>
std::vector<F> load_as(const Bytes& bytes) {
  std::vector<F> values;
  for (const U bits : load<U>(bytes)) values.push_back(pn::detail::bit_cast<F>(bits));
  return values;
}
template <class U>
void store(U value, Bytes& out) {
  for (std::size_t b = 0; b < sizeof(U); ++b)
    out.push_back(static_cast<std::uint8_t>((static_cast<std::uint64_t>(value) >> (8 * b)) & 0xFFu));
}
std::vector<float> floats(const Bytes& bytes) { return load_as<float, std::uint32_t>(bytes); }
void store_float(float value, Bytes& out) { store(pn::detail::bit_cast<std::uint32_t>(value), out); }

// Blocks: bytes at alignment 1.
template <class Block>
std::vector<Block> blocks(const Bytes& bytes) {
  std::vector<Block> out(bytes.size() / sizeof(Block));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(Block));
  return out;
}
template <class Block>
void store_blocks(const std::vector<Block>& from, Bytes& out) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(from.data());
  out.insert(out.end(), first, first + from.size() * sizeof(Block));
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A decoded row, rotated back where b is given, as the type that the operation ends in. False when there is none such.
bool store_decoded(const std::vector<float>& row, Test& test) {
  const std::size_t k = row.size();
  const bool rotated = test.b != 0;
  std::size_t bad = Test::no_place;
  if (ends_with(test.operation, "_to_fp16") || ends_with(test.operation, "_to_bf16")) {
    const bool half = ends_with(test.operation, "_to_fp16");
    std::vector<std::uint16_t> out(k);
    Status status = Status::ok;
    if (rotated) {
      status = half ? pn::hadamard_weights_to_half(row.data(), out.data(), k, test.b, &bad)
                    : pn::hadamard_weights_to_bf16(row.data(), out.data(), k, test.b, &bad);
    } else {
      for (std::size_t e = 0; e < k; ++e) {
        out[e] = half ? pn::float_to_half(row[e]) : pn::float_to_bf16(row[e]);
        if (half && (out[e] & 0x7C00u) == 0x7C00u && status == Status::ok) {
          status = Status::not_finite;
          bad = e;
        }
      }
    }
    test.result(status, bad);
    for (const std::uint16_t v : out) store(v, test.values);
    return true;
  }
  std::vector<float> out = row;
  Status status = Status::ok;
  if (rotated) status = pn::hadamard_weights(row.data(), out.data(), k, test.b, &bad);
  test.result(status, bad);
  for (const float v : out) store_float(v, test.values);
  return test.operation == (rotated ? "decode_rotated" : "decode");
}

template <class T>
bool run_pn(Test& test) {
  const std::size_t k = test.k;
  const std::size_t per_row = k / T::block_size;
  const std::string& what = test.operation;
  if (what == "quantize_rotated") {
    std::vector<float> weights = floats(test.inputs[0]);
    for (std::size_t row = 0; row < weights.size() / k; ++row) {
      float* w = weights.data() + row * k;
      std::vector<pn::Block34> out(per_row + 1);
      std::size_t bad = Test::no_place;
      Status status = pn::hadamard_weights(w, w, k, test.b, &bad);
      if (status == Status::ok) status = pn::quantize_row<T>(w, k, out.data(), &bad);
      test.result(status, bad);
      out.pop_back();
      store_blocks(out, test.values);
    }
    return true;
  }
  if (what == "quantize" || what == "quantize_weighted") {
    const std::vector<float> weights = floats(test.inputs[0]);
    std::vector<double> importance;
    if (what == "quantize_weighted") importance = load_as<double, std::uint64_t>(test.inputs.at(1));
    for (std::size_t row = 0; row < weights.size() / k; ++row) {
      std::vector<pn::Block34> out(per_row + 1);
      std::size_t bad = Test::no_place;
      const double* g = importance.empty() ? nullptr : importance.data() + row * k;
      const Status status = pn::quantize_row<T>(weights.data() + row * k, g, k, out.data(), &bad);
      test.result(status, bad);
      out.pop_back();
      store_blocks(out, test.values);
    }
    return true;
  }
  const std::vector<pn::Block34> all = blocks<pn::Block34>(test.inputs[0]);
  std::vector<float> out(k);
  for (std::size_t row = 0; row < all.size() / per_row; ++row) {
    const pn::Block34* first = all.data() + row * per_row;
    if (what == "validate") {
      std::size_t bad = Test::no_place;
      const Status status = pn::validate_row<T>(first, k, &bad);
      test.result(status, bad);
      test.row_results = true;
    } else if (what.rfind("decode", 0) == 0) {
      if (pn::decode_row<T>(first, k, out.data()) != Status::ok) return false;
      for (std::size_t e = 0; e < k; ++e) {
        // Element by element gives the same bits.
        if (pn::detail::bit_cast<std::uint32_t>(pn::decode_element<T>(first, e)) !=
            pn::detail::bit_cast<std::uint32_t>(out[e]))
          return false;
      }
      if (!store_decoded(out, test)) return false;
    } else if (what == "dot_f32") {
      const std::vector<float> x = floats(test.inputs.at(1));
      float y = 0;
      test.result(pn::dot_f32<T>(first, x.data() + row * k, k, &y), Test::no_place);
      store_float(y, test.values);
    } else if (what == "dot_q8_0") {
      const std::vector<pn::BlockQ8_0> x = blocks<pn::BlockQ8_0>(test.inputs.at(1));
      float y = 0;
      test.result(pn::dot_q8_0<T>(first, x.data() + row * (k / pn::q8_0_block_size), k, &y), Test::no_place);
      store_float(y, test.values);
    } else {
      return false;
    }
  }
  return true;
}

bool run_p12(Test& test) {
  const std::size_t k = test.k;
  const std::size_t per_row = k / p12::block_size;
  if (test.operation == "pack") {
    const auto weights = load<std::uint16_t>(test.inputs[0]);
    for (std::size_t row = 0; row < weights.size() / k; ++row) {
      std::vector<p12::Block392> out(per_row + 1);
      std::size_t bad = Test::no_place;
      const Status status = p12::pack_row(weights.data() + row * k, k, out.data(), &bad);
      test.result(status, bad);
      out.pop_back();
      store_blocks(out, test.values);
    }
    return true;
  }
  const std::vector<p12::Block392> all = blocks<p12::Block392>(test.inputs[0]);
  for (std::size_t row = 0; row < all.size() / per_row; ++row) {
    const p12::Block392* first = all.data() + row * per_row;
    if (test.operation == "validate") {
      std::size_t bad = Test::no_place;
      const Status status = p12::validate_row(first, k, &bad);
      test.result(status, bad);
      test.row_results = true;
    } else if (test.operation == "unpack") {
      std::vector<std::uint16_t> out(k);
      test.result(p12::unpack_row(first, k, out.data()), Test::no_place);
      for (std::size_t e = 0; e < k; ++e) {
        if (p12::unpack_element(first, e) != out[e]) return false;
        store(out[e], test.values);
      }
    } else {
      return false;
    }
  }
  return true;
}

bool run_q8_0(Test& test) {
  if (test.operation != "quantize_q8_0") return false;
  const std::vector<float> x = floats(test.inputs[0]);
  for (std::size_t row = 0; row < x.size() / test.k; ++row) {
    std::vector<pn::BlockQ8_0> out(test.k / pn::q8_0_block_size);
    std::size_t bad = Test::no_place;
    const Status status = pn::quantize_row_q8_0(x.data() + row * test.k, test.k, out.data(), &bad);
    test.result(status, bad);
    store_blocks(out, test.values);
  }
  return true;
}

bool run_hadamard(Test& test) {
  const std::vector<float> in = floats(test.inputs[0]);
  for (std::size_t row = 0; row < in.size() / test.k; ++row) {
    const float* first = in.data() + row * test.k;
    std::vector<float> out(first, first + test.k);
    std::size_t bad = Test::no_place;
    Status status = Status::ok;
    if (test.operation == "rotate")
      status = pn::hadamard_weights(first, out.data(), test.k, test.b, &bad);
    else if (test.operation == "rotate_activations")
      status = pn::hadamard_activations(out.data(), test.k, test.b);
    else
      return false;
    test.result(status, bad);
    for (const float v : out) store_float(v, test.values);
  }
  return true;
}

bool run_numbers(Test& test) {
  const Bytes& in = test.inputs[0];
  if (test.operation == "fp16_to_fp32") {
    for (const auto v : load<std::uint16_t>(in)) store(pn::half_to_float_bits(v), test.values);
  } else if (test.operation == "fp32_to_fp16") {
    for (const auto v : load<std::uint32_t>(in)) store(pn::float_bits_to_half(v), test.values);
  } else if (test.operation == "fp64_to_fp16") {
    for (const auto v : load<std::uint64_t>(in)) store(pn::double_bits_to_half(v), test.values);
  } else if (test.operation == "fp64_to_bf16") {
    for (const auto v : load<std::uint64_t>(in)) store(pn::double_bits_to_bf16(v), test.values);
  } else if (test.operation == "fp32_to_bf16") {
    for (const auto v : load<std::uint32_t>(in)) store(pn::float_bits_to_bf16(v), test.values);
  } else if (test.operation == "bf16_to_fp32") {
    for (const auto v : load<std::uint16_t>(in)) store_float(pn::bf16_to_float(v), test.values);
  } else {
    return false;
  }
  return true;
}

bool run(Test& test) {
  if (test.format == "pn3t") return run_pn<pn::pn3t>(test);
  if (test.format == "pn4t") return run_pn<pn::pn4t>(test);
  if (test.format == "bf16_p12") return run_p12(test);
  if (test.format == "q8_0") return run_q8_0(test);
  if (test.format == "hadamard") return run_hadamard(test);
  return test.format == "numbers" && run_numbers(test);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
    Test test;
    if (words.size() >= 6) {
      test.operation = words[0];
      test.format = words[1];
      test.k = std::stoul(words[2]);
      test.b = std::stoul(words[3]);
    }
    for (std::size_t i = 5; i < words.size(); ++i) {
      std::ifstream file(words[i], std::ios::binary);
      test.inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    if (test.inputs.empty() || !run(test)) {
      std::cerr << "cannot do: " << line << "\n";
      return 1;
    }
    std::ofstream out(words[4], std::ios::binary);
    if (test.row_results)
      out << test.rows;
    else
      out.write(reinterpret_cast<const char*>(test.values.data()), static_cast<std::streamsize>(test.values.size()));
    if (!out.flush()) {
      std::cerr << "cannot write " << words[4] << "\n";
      return 1;
    }
  }
  return 0;
}
