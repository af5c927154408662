// PN: pn3t and pn4t, and the low-rank add-on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <pn/cpu.hpp>
#include <pn/pn.hpp>
#include <random>

#include "isas.hpp"

namespace bench {
namespace {

using pn::cpu::Activations;

template <class T>
void decode(const std::uint8_t* row, std::size_t k, float* out) {
  require(pn::decode_row<T>(reinterpret_cast<const pn::Block34*>(row), k, out));
}

template <class T>
bool decoded(const std::uint8_t* row, std::size_t k, const std::uint8_t* out, Element element) {
  std::vector<float> weights(k);
  decode<T>(row, k, weights.data());
  return holds(out, element, weights.data(), k);
}

struct Kind {
  Activations activations;
  const char* name;
  double x_error;  // what pn/cpu.hpp promises
};
constexpr Kind kinds[] = {
    {Activations::f32, "f32", 0}, {Activations::i16, "i16", 0x1p-16}, {Activations::q8_0, "q8_0", 1.0 / 254 + 0x1p-11}};

// By multiply, or by multiply_batch.
enum class By { few, batch };

template <class T>
Job gemv(std::size_t k, std::size_t tokens, const Kind& kind, Isa isa, By by = By::few) {
  const Activations activations = kind.activations;
  Gemv g;
  g.k = k;
  g.row_bytes = pn::row_bytes<T>(k);
  g.tokens = tokens;
  g.set = &pn_set<T>();
  g.decode = [=](const std::uint8_t* row, float* out) { decode<T>(row, k, out); };
  g.x_error = kind.x_error;
  if (by == By::few) {
    g.prepared_bytes = pn::cpu::activations_bytes<T>(activations, tokens, k);
    g.prepare = [=](const float* x, void* prepared) {
      require(pn::cpu::prepare_activations<T>(activations, x, 4 * k, tokens, k, prepared, nullptr, isa));
    };
    g.multiply = [=](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t stride) {
      require(pn::cpu::multiply<T>(w, pn::row_bytes<T>(k), rows, k, x, y, 4 * stride));
    };
  } else {
    g.prepared_bytes = pn::cpu::batch_bytes<T>(activations, tokens, k);
    g.prepare = [=](const float* x, void* prepared) {
      require(pn::cpu::prepare_batch<T>(activations, x, 4 * k, tokens, k, prepared, nullptr, isa));
    };
    g.multiply = [=](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t stride) {
      require(pn::cpu::multiply_batch<T>(w, pn::row_bytes<T>(k), rows, k, x, tokens, y, 4 * stride));
    };
  }
  return gemv_job(g);
}

template <class T>
Job quantize(std::size_t k, Element element, bool weighted, Isa isa) {
  const std::size_t in_bytes = k * pn::cpu::element_bytes(element);
  auto importance = std::make_shared<std::vector<double>>();
  if (weighted)
    for (std::size_t i = 0; i < k; ++i) importance->push_back(0.5 + static_cast<double>(i * 37 % 101) / 50);
  const double* const columns = weighted ? importance->data() : nullptr;
  Stream s;
  s.k = k;
  s.weights = slow_weights;
  s.set = &element_set(element);
  s.in_bytes = in_bytes;
  s.out_bytes = pn::row_bytes<T>(k);
  s.run = [=, keep = importance](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
    require(pn::cpu::quantize_rows<T>(in, element, in_bytes, rows, k, columns, out, pn::row_bytes<T>(k), nullptr, isa));
  };
  s.agrees = [=, keep = importance](const std::uint8_t* in, const std::uint8_t* out) {
    std::vector<float> weights(k);
    for (std::size_t i = 0; i < k; ++i) weights[i] = load_element(in, element, i);
    std::vector<pn::Block34> blocks(pn::block_count<T>(k));
    require(pn::quantize_row<T>(weights.data(), columns, k, blocks.data()));
    return std::memcmp(out, blocks.data(), pn::row_bytes<T>(k)) == 0;
  };
  return stream_job(s);
}

template <class T>
Job validate(std::size_t k, Isa isa) {
  Stream s;
  s.k = k;
  s.set = &pn_set<T>();
  s.in_bytes = pn::row_bytes<T>(k);
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t*) {
    require(pn::cpu::validate_rows<T>(in, pn::row_bytes<T>(k), rows, k, nullptr, isa));
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t*) {
    std::vector<std::uint8_t> row(in, in + pn::row_bytes<T>(k));
    row[3 * sizeof(pn::Block34) + 1] = 0x7C;  // a scale that is not finite
    pn::cpu::Fault fault = {};
    return pn::cpu::validate_rows<T>(row.data(), row.size(), 1, k, &fault, isa) == pn::Status::scale_not_finite &&
           fault.index == 3;
  };
  return stream_job(s);
}

template <class T>
Job dequantize(std::size_t k, Element element, Isa isa) {
  const std::size_t out_bytes = k * pn::cpu::element_bytes(element);
  Stream s;
  s.k = k;
  s.set = &pn_set<T>();
  s.in_bytes = pn::row_bytes<T>(k);
  s.out_bytes = out_bytes;
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
    require(pn::cpu::dequantize_rows<T>(in, pn::row_bytes<T>(k), rows, 0, k, out, element, out_bytes, isa));
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) { return decoded<T>(in, k, out, element); };
  return stream_job(s);
}

template <class T>
Job get_rows(std::size_t k) {
  const std::size_t row_bytes = pn::row_bytes<T>(k);
  LookUp l;
  l.k = k;
  l.set = &pn_set<T>();
  l.in_bytes = row_bytes;
  l.out_bytes = 4 * k;
  l.run = [=](const std::uint8_t* in, std::size_t rows, const std::int64_t* ids, std::size_t count, std::uint8_t* out) {
    require(pn::cpu::get_rows<T>(in, row_bytes, rows, k, ids, count, out, Element::f32, 4 * k));
  };
  l.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) { return decoded<T>(in, k, out, Element::f32); };
  return look_up_job(l);
}

template <class T>
void add_type() {
  const std::string type = T::name;
  const std::size_t k = row_lengths[0];
  const auto both = Threads::one_and_all;
  for (const std::size_t length : row_lengths) {
    if (length % T::block_size != 0) continue;
    const std::string suffix = shape_suffix(length);
    for (const Kind& kind : kinds)
      add(
          type + "_gemv_" + kind.name + suffix, [=] { return gemv<T>(length, 1, kind, Isa::best); }, both);
    add(
        type + "_quantize_f32" + suffix, [=] { return quantize<T>(length, Element::f32, false, Isa::best); }, both);
    add(
        type + "_validate" + suffix, [=] { return validate<T>(length, Isa::best); }, both);
  }
  for (const Kind& kind : kinds)
    for (std::size_t tokens = 2; tokens <= most_tokens; tokens *= 2)
      add(type + "_gemv_" + kind.name + "@M" + std::to_string(tokens),
          [=] { return gemv<T>(k, tokens, kind, Isa::best); });
  const std::string prompt = "@M" + std::to_string(prompt_tokens);
  for (const Kind& kind : kinds)
    add(
        type + "_batch_" + kind.name + prompt, [=] { return gemv<T>(k, prompt_tokens, kind, Isa::best, By::batch); },
        both);
  add(type + "_quantize_f16", [=] { return quantize<T>(k, Element::f16, false, Isa::best); });
  add(type + "_quantize_bf16", [=] { return quantize<T>(k, Element::bf16, false, Isa::best); });
  add(type + "_quantize_weighted", [=] { return quantize<T>(k, Element::f32, true, Isa::best); });
  add(
      type + "_dequantize_f32", [=] { return dequantize<T>(k, Element::f32, Isa::best); }, both);
  add(type + "_dequantize_f16", [=] { return dequantize<T>(k, Element::f16, Isa::best); });
  add(type + "_dequantize_bf16", [=] { return dequantize<T>(k, Element::bf16, Isa::best); });
  add(type + "_get_rows", [=] { return get_rows<T>(k); });
  for_each_isa([&](Isa isa, const std::string& suffix) {
    if (suffix.empty()) return;
    for (const Kind& kind : kinds) add(type + "_gemv_" + kind.name + suffix, [=] { return gemv<T>(k, 1, kind, isa); });
    if (isa != Isa::baseline)
      for (const Kind& kind : kinds)
        add(type + "_batch_" + kind.name + prompt + suffix,
            [=] { return gemv<T>(k, prompt_tokens, kind, isa, By::batch); });
    add(type + "_quantize_f32" + suffix, [=] { return quantize<T>(k, Element::f32, false, isa); });
    add(type + "_validate" + suffix, [=] { return validate<T>(k, isa); });
    add(type + "_dequantize_f32" + suffix, [=] { return dequantize<T>(k, Element::f32, isa); });
  });
}

// One adapter behind the other, as an engine meets them layer by layer.
enum class Half { down, up };
Job low_rank(Half half) {
  constexpr std::size_t k = 5120, n = 4096, rank = 16;
  struct State {
    pn::cpu::LowRank adapter = {};
    std::vector<float> x = activations(k);
    std::vector<float> t = activations(rank);
    std::vector<float> y = std::vector<float>(n);
  };
  auto state = std::make_shared<State>();
  state->adapter = {nullptr, 2 * k, nullptr, 2 * rank, rank, Element::bf16, 1.0f};
  const bool down = half == Half::down;
  Job job;
  job.rows = down ? 1 : n;
  job.weights = rank * (down ? k : n);
  job.read = 2 * job.weights;
  job.begin = [=, bytes = job.read] {
    (down ? state->adapter.a : state->adapter.b) = bf16_set().take(bytes);
    if (!down) std::fill(state->y.begin(), state->y.end(), 0.0f);
  };
  job.run = [=](std::size_t first, std::size_t last) {
    if (down)
      require(pn::cpu::low_rank_down(state->adapter, k, state->x.data(), 4 * k, 1, state->t.data(), 4 * rank));
    else
      require(pn::cpu::low_rank_up(state->adapter, first, last - first, state->t.data(), 4 * rank, 1, nullptr,
                                   state->y.data() + first, 4 * n));
  };
  job.agrees = [=] {
    const std::size_t length = down ? k : rank;
    const auto* const row = static_cast<const std::uint8_t*>(down ? state->adapter.a : state->adapter.b);
    const std::vector<float>& x = down ? state->x : state->t;
    double exact = 0, products = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const double product =
          static_cast<double>(load_element(row + 2 * length, Element::bf16, i)) * static_cast<double>(x[i]);  // row 1
      exact += product;
      products += std::abs(product);
    }
    return std::abs(static_cast<double>((down ? state->t : state->y)[1]) - exact) <= 1e-5 * products;
  };
  return job;
}

}  // namespace

void add_pn() {
  add_type<pn::pn3t>();
  add_type<pn::pn4t>();
  add("low_rank_down", [] { return low_rank(Half::down); });
  add("low_rank_up", [] { return low_rank(Half::up); });
}

}  // namespace bench
