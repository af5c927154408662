// ggml, as a peer: the products of rows that its CPU backend computes, through its public type traits and with our
// loop over rows and threads; its multiplication of repacked weights, with its own threads; its quantizers.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "isas.hpp"

namespace bench {
namespace {

struct Type {
  ggml_type type;
  const char* name;
};
constexpr Type types[] = {{GGML_TYPE_BF16, "bf16"},
                          {GGML_TYPE_Q3_K, "q3_K"},
                          {GGML_TYPE_Q4_0, "q4_0"},
                          {GGML_TYPE_Q4_K, "q4_K"},
                          {GGML_TYPE_Q8_0, "q8_0"}};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::int64_t count(std::size_t n) { return static_cast<std::int64_t>(n); }

std::vector<std::uint8_t> quantized_pattern(ggml_type type) {
  const std::size_t k = row_lengths[0];
  const std::size_t rows = pattern_weights / k;
  std::vector<std::uint8_t> bytes(rows * ggml_row_size(type, count(k)));
  ggml_quantize_chunk(type, pattern().data(), bytes.data(), 0, count(rows), count(k), nullptr);
  return bytes;
}

Set& set_of(ggml_type type) {
  if (type == GGML_TYPE_BF16) return bf16_set();
  static std::map<ggml_type, Set> sets;
  return sets.try_emplace(type, quantized_pattern(type)).first->second;
}

// ggml rounds activations to 8 bits with one scale for 32 or 256 of them, or to bf16.
constexpr double x_error = 1.0 / 128;

Job gemv(ggml_type type, std::size_t k) {
  const ggml_type_traits_cpu* const traits = ggml_get_type_traits_cpu(type);
  const ggml_type_traits_cpu* const x_traits = ggml_get_type_traits_cpu(traits->vec_dot_type);
  const std::size_t row_bytes = ggml_row_size(type, count(k));
  Gemv g;
  g.k = k;
  g.row_bytes = row_bytes;
  g.set = &set_of(type);
  g.prepared_bytes = ggml_row_size(traits->vec_dot_type, count(k));
  g.prepare = [=](const float* x, void* prepared) { x_traits->from_float(x, prepared, count(k)); };
  g.multiply = [=](const std::uint8_t* w, std::size_t rows, const void* x, float* y, std::size_t) {
    for (std::size_t n = 0; n < rows; ++n)
      traits->vec_dot(static_cast<int>(k), y + n, 0, w + n * row_bytes, 0, x, 0, 1);
  };
  g.decode = [=](const std::uint8_t* row, float* out) { ggml_get_type_traits(type)->to_float(row, out, count(k)); };
  g.x_error = x_error;
  return gemv_job(g);
}

Job quantize(ggml_type type) {
  const std::size_t k = row_lengths[0];
  const std::size_t row_bytes = ggml_row_size(type, count(k));
  Stream s;
  s.k = k;
  s.weights = slow_weights;
  s.set = &f32_set();
  s.in_bytes = 4 * k;
  s.out_bytes = row_bytes;
  s.run = [=](const std::uint8_t* in, std::size_t rows, std::uint8_t* out) {
    ggml_quantize_chunk(type, reinterpret_cast<const float*>(in), out, 0, count(rows), count(k), nullptr);
  };
  s.agrees = [=](const std::uint8_t* in, const std::uint8_t* out) {
    std::vector<float> weights(k);
    ggml_get_type_traits(type)->to_float(out, weights.data(), count(k));
    for (std::size_t i = 0; i < k; ++i) {
      const float distance = weights[i] - load_element(in, Element::f32, i);
      if (distance > 0.05f || distance < -0.05f) return false;
    }
    return true;
  };
  return stream_job(s);
}

// ---- Weights in one of the layouts that ggml's CPU backend brings them into when it loads a model ----

std::vector<ggml_backend_buffer_type_t> layouts() {
  ggml_backend_reg_t registry = ggml_backend_cpu_reg();
  const auto list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  std::vector<ggml_backend_buffer_type_t> found;
  if (list == nullptr) return found;
  for (auto* next = list(ggml_backend_reg_dev_get(registry, 0)); next != nullptr && *next != nullptr; ++next)
    found.push_back(*next);
  return found;
}

// "CPU_REPACK" -> "repack"
std::string layout_name(ggml_backend_buffer_type_t layout) {
  std::string name = ggml_backend_buft_name(layout);
  if (name.rfind("CPU_", 0) == 0) name.erase(0, 4);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// ggml's own threads. They wait for work in a busy loop: unless they are told to pause, they disturb what comes next.
ggml_threadpool* threads_of_ggml(unsigned threads) {
  static std::map<unsigned, ggml_threadpool*> pools;
  ggml_threadpool*& pool = pools[threads];
  if (pool == nullptr) {
    ggml_threadpool_params parameters = ggml_threadpool_params_default(static_cast<int>(threads));
    pool = ggml_threadpool_new(&parameters);
  }
  return pool;
}

// As many matrices as fill a working set, each with a graph that multiplies it by x.
class Repacked {
 public:
  Repacked(ggml_type type, ggml_backend_buffer_type_t layout, std::size_t k, std::size_t rows)
      : type_(type), k_(k), rows_(rows), backend_(ggml_backend_cpu_init()) {
    const std::size_t bytes = rows * ggml_row_size(type, count(k));
    const std::size_t copies = std::max<std::size_t>(2, sizes().set / bytes);
    weights_ = context(copies);
    others_ = context(2 * copies + 1);
    graphs_context_ = context(copies * 4, copies * ggml_graph_overhead_custom(8, false));
    x_ = ggml_new_tensor_2d(others_, GGML_TYPE_F32, count(k), 1);
    for (std::size_t i = 0; i < copies; ++i) {
      ggml_tensor* const w = ggml_new_tensor_2d(weights_, type, count(k), count(rows));
      ggml_tensor* const y = ggml_mul_mat(others_, w, x_);
      ggml_cgraph* const graph = ggml_new_graph_custom(graphs_context_, 8, false);
      ggml_build_forward_expand(graph, y);
      graphs_.push_back(graph);
      results_.push_back(y);
      matrices_.push_back(w);
    }
    ggml_backend_alloc_ctx_tensors_from_buft(others_, ggml_backend_cpu_buffer_type());
    if (ggml_backend_alloc_ctx_tensors_from_buft(weights_, layout) == nullptr) fail("ggml: not enough memory");
    const std::vector<float> x = activations(k);
    ggml_backend_tensor_set(x_, x.data(), 0, 4 * k);
    std::vector<std::uint8_t> rows_of_pattern = quantized_pattern(type);
    std::vector<std::uint8_t> matrix(bytes);
    for (std::size_t at = 0; at < bytes; at += rows_of_pattern.size())
      std::memcpy(matrix.data() + at, rows_of_pattern.data(), std::min(rows_of_pattern.size(), bytes - at));
    for (ggml_tensor* w : matrices_) ggml_backend_tensor_set(w, matrix.data(), 0, bytes);
    first_row_.assign(matrix.begin(), matrix.begin() + static_cast<std::ptrdiff_t>(ggml_row_size(type, count(k))));
  }

  // Can the layout hold this type?
  static bool fits(ggml_type type, ggml_backend_buffer_type_t layout, std::size_t k, std::size_t rows) {
    ggml_context* const all = context(4);
    ggml_tensor* const w = ggml_new_tensor_2d(all, type, count(k), count(rows));
    ggml_tensor* const x = ggml_new_tensor_2d(all, GGML_TYPE_F32, count(k), 1);
    ggml_tensor* const y = ggml_mul_mat(all, w, x);
    w->buffer = ggml_backend_buft_alloc_buffer(layout, 0);
    const bool yes = ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), y);
    ggml_backend_buffer_free(w->buffer);
    ggml_free(all);
    return yes;
  }

  void multiply(unsigned threads) {
    ggml_backend_cpu_set_n_threads(backend_, static_cast<int>(threads));
    ggml_backend_cpu_set_threadpool(backend_, threads_of_ggml(threads));
    at_ = (at_ + 1) % graphs_.size();
    if (ggml_backend_graph_compute(backend_, graphs_[at_]) != GGML_STATUS_SUCCESS)
      fail("ggml: a multiplication failed");
  }

  bool agrees() const {
    std::vector<float> row(k_), y(rows_);
    ggml_get_type_traits(type_)->to_float(first_row_.data(), row.data(), count(k_));
    ggml_backend_tensor_get(results_[at_], y.data(), 0, 4 * rows_);
    const std::vector<float> x = activations(k_);
    double exact = 0, weights = 0, largest = 0;
    for (std::size_t i = 0; i < k_; ++i) {
      exact += static_cast<double>(row[i]) * static_cast<double>(x[i]);
      weights += std::abs(static_cast<double>(row[i]));
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
    }
    return std::abs(static_cast<double>(y[0]) - exact) <= x_error * largest * weights;
  }

 private:
  static ggml_context* context(std::size_t tensors, std::size_t more = 0) {
    return ggml_init({tensors * ggml_tensor_overhead() + more, nullptr, true});
  }

  ggml_type type_;
  std::size_t k_;
  std::size_t rows_;
  ggml_backend_t backend_;
  ggml_context* weights_ = nullptr;
  ggml_context* others_ = nullptr;
  ggml_context* graphs_context_ = nullptr;
  ggml_tensor* x_ = nullptr;
  std::vector<ggml_tensor*> matrices_;
  std::vector<ggml_tensor*> results_;
  std::vector<ggml_cgraph*> graphs_;
  std::vector<std::uint8_t> first_row_;
  std::size_t at_ = 0;
};

void add_repacked(const Type& type, ggml_backend_buffer_type_t layout) {
  const std::size_t k = row_lengths[0];
  const std::size_t rows = matrix_weights / k;
  if (!Repacked::fits(type.type, layout, k, rows)) return;
  const auto matrices = std::make_shared<std::unique_ptr<Repacked>>();
  for (const bool all : {false, true}) {
    const unsigned threads = all ? thread_count() : 1;
    add(std::string("ggml_") + type.name + "_gemv_" + layout_name(layout) + (all ? "@all" : ""), [=] {
      if (*matrices == nullptr) *matrices = std::make_unique<Repacked>(type.type, layout, k, rows);
      Job job;
      job.weights = rows * k;
      job.read = rows * ggml_row_size(type.type, count(k));
      job.begin = [=] { (*matrices)->multiply(threads); };
      job.run = [](std::size_t, std::size_t) {};
      job.rest = [=] { ggml_threadpool_pause(threads_of_ggml(threads)); };
      job.agrees = [=] { return (*matrices)->agrees(); };
      return job;
    });
  }
}

}  // namespace

void add_ggml() {
  ggml_cpu_init();
  ggml_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  for (const Type& type : types) {
    const std::string name = std::string("ggml_") + type.name;
    for (const std::size_t k : row_lengths)
      if (size(ggml_blck_size(type.type)) <= k && k % size(ggml_blck_size(type.type)) == 0)
        add(
            name + "_gemv" + shape_suffix(k), [=] { return gemv(type.type, k); }, Threads::one_and_all);
    if (type.type == GGML_TYPE_BF16) continue;
    add(name + "_quantize", [=] { return quantize(type.type); });
  }
  for (ggml_backend_buffer_type_t layout : layouts())
    for (const Type& type : types)
      if (type.type == GGML_TYPE_Q4_0 || type.type == GGML_TYPE_Q4_K) add_repacked(type, layout);
}

}  // namespace bench
