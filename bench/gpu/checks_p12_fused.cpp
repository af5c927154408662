// gpu_bench: BF16_P12 beyond a GEMV: several matrices, experts, low-rank add-ons, and many tokens through cuBLAS.
#include <algorithm>
#include <cmath>
#include <random>

#include "checks_p12.hpp"

#if defined(PN_GPU_BENCH_BLAS)
#include <pncuda/pncuda_blas.h>
#endif

namespace gpu_bench {

namespace {

pncuda_weights rows_of(const pncuda_weights& weights, std::int64_t first, std::int64_t rows) {
  pncuda_weights shard = {};
  require(pncuda_row_shard(&weights, first, rows, &shard), "pncuda_row_shard");
  return shard;
}

// Results in fp32.
pncuda_fused_matrix make_matrix(const pncuda_weights& weights, float* y, std::int64_t y_stride, const float* bias) {
  pncuda_fused_matrix m = {};
  m.struct_size = sizeof m;
  m.weights = &weights;
  m.y = y;
  m.y_stride = y == nullptr ? 0 : y_stride;
  m.bias = bias;
  return m;
}

pncuda_fused_args make_fused(const std::vector<pncuda_fused_matrix>& matrices, const Bytes& x, int x_type,
                             std::int64_t tokens, int mode, int activation) {
  pncuda_fused_args f = {};
  f.struct_size = sizeof f;
  f.matrices = matrices.data();
  f.count = static_cast<std::int32_t>(matrices.size());
  f.activation = activation;
  f.x = x.get();
  f.x_stride = matrices[0].weights->k * static_cast<std::int64_t>(element_bytes(x_type));
  f.x_type = x_type;
  f.mode = mode;
  f.tokens = tokens;
  return f;
}

std::vector<float> run(const pncuda_fused_args& f, const Array<float>& y) {
  require(pncuda_fused(&f, nullptr), "pncuda_fused");
  require(cudaDeviceSynchronize(), "pncuda_fused");
  return y.values();
}
void clear(const Array<float>& y) { require(cudaMemset(y.get(), 0xFF, y.size() * 4), "cudaMemset"); }

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bytes_of = [](const std::vector<float>& v) { return to_elements(v, PNCUDA_F32); };
  return same_numbers(bytes_of(a), bytes_of(b), PNCUDA_F32);
}

// silu(gate) * up, in double.
double silu_times(float gate, float up) {
  const auto g = static_cast<double>(gate);
  return g / (1 + std::exp(-g)) * static_cast<double>(up);
}

// q, k and v; gate and up.
void check_fused_with(const Bf16Matrix& m, int x_type, int mode, std::int64_t tokens, Report& report) {
  const std::int64_t n = m.shape.rows, half = n / 2;
  const Bytes x(to_elements(p12_activations(m.shape.k, tokens), x_type));
  const auto count = static_cast<std::size_t>(tokens * n);
  const std::vector<float> bias = normal_numbers(static_cast<std::size_t>(n), 21);
  const auto residual_bytes = to_elements(normal_numbers(count, 22), PNCUDA_BF16);
  const std::vector<float> residual = from_elements(residual_bytes, PNCUDA_BF16);
  const Array<float> bias_on_device(bias), y(count);
  const Bytes residual_on_device(residual_bytes);
  const std::vector<float> sums = from_elements(multiply(m.packed, x, x_type, 0, tokens, PNCUDA_F32, mode), PNCUDA_F32);
  const std::string what =
      m.name() + format(" x %s %s, %d tokens", name_of_element(x_type), name_of_mode(mode), static_cast<int>(tokens));
  std::vector<float> first_silu;
  for (const int type : bf16_types) {
    // Uneven parts, as q, k and v have.
    const std::int64_t begins[] = {0, n / 2, n / 2 + n / 3, n};
    std::vector<pncuda_weights> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(rows_of(m.as(type), begins[i], begins[i + 1] - begins[i]));
    std::vector<pncuda_fused_matrix> matrices;
    for (std::size_t i = 0; i < 3; ++i) {
      matrices.push_back(make_matrix(parts[i], y.get() + begins[i], n * 4, bias_on_device.get() + begins[i]));
      matrices[i].residual = residual_on_device.get() + begins[i] * 2;
      matrices[i].residual_stride = n * 2;
      matrices[i].residual_type = PNCUDA_BF16;
    }
    std::vector<float> want(count);
    for (std::size_t i = 0; i < count; ++i) want[i] = (sums[i] + bias[i % static_cast<std::size_t>(n)]) + residual[i];
    clear(y);
    report.expect(same_floats(run(make_fused(matrices, x, x_type, tokens, mode, PNCUDA_NO_ACTIVATION), y), want),
                  what + ": q, k and v of " + name_of_type(type) + " are not three GEMVs with bias and residual");

    const pncuda_weights gate = rows_of(m.as(type), 0, half), up = rows_of(m.as(type), half, half);
    matrices = {make_matrix(gate, y.get(), half * 4, bias_on_device.get()),
                make_matrix(up, nullptr, 0, bias_on_device.get() + half)};
    clear(y);
    std::vector<float> got = run(make_fused(matrices, x, x_type, tokens, mode, PNCUDA_SILU_MUL), y);
    got.resize(static_cast<std::size_t>(tokens * half));
    bool close = true;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t r = 0; r < half; ++r) {
        const auto g = static_cast<std::size_t>(t * n + r), u = static_cast<std::size_t>(t * n + half + r);
        const double exact =
            silu_times(sums[g] + bias[static_cast<std::size_t>(r)], sums[u] + bias[static_cast<std::size_t>(half + r)]);
        const double error = std::abs(static_cast<double>(got[static_cast<std::size_t>(t * half + r)]) - exact);
        close &= error <= 2e-6 * std::abs(exact) + 1e-30;
      }
    report.expect(close, what + ": silu(gate) * up of " + name_of_type(type) + " is far from double");
    if (first_silu.empty())
      first_silu = got;
    else
      report.expect(same_floats(first_silu, got), what + ": silu(gate) * up: packed is not plain");
  }
}

}  // namespace

void check_fused(const Options& options, const Bf16Matrix& m, Report& report) {
  std::vector<std::int64_t> counts = {1, 4, 16, PNCUDA_P12_MAX_TOKENS};
  if (options.tiny) counts = {1, PNCUDA_P12_MAX_TOKENS};
  for (const int mode : p12_modes)
    for (const std::int64_t tokens : counts) check_fused_with(m, PNCUDA_BF16, mode, tokens, report);
  check_fused_with(m, PNCUDA_F16, PNCUDA_ACCURATE, 3, report);
  check_fused_with(m, PNCUDA_F32, PNCUDA_ACCURATE, 2, report);
}

// Experts are parts of the matrix; some that are asked for are not there.
void check_experts(const Options& options, const Bf16Matrix& m, Report& report) {
  const std::int64_t experts = options.tiny ? 3 : 8, n = m.shape.rows / experts, half = n / 2;
  constexpr std::int64_t tokens = 5, slots = 3, results = tokens * slots;
  std::mt19937 random(23);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < results; ++i)
    ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(experts)));
  ids[1] = -1;
  ids[7] = static_cast<std::int32_t>(experts);
  const Array<std::int32_t> ids_on_device(ids);
  const std::vector<float> bias = normal_numbers(static_cast<std::size_t>(experts * n), 24);
  const Array<float> bias_on_device(bias), y(static_cast<std::size_t>(results * n));
  const Bytes x(to_elements(p12_activations(m.shape.k, results), PNCUDA_BF16));
  // Every row of every expert times every row of x.
  const std::vector<float> sums =
      from_elements(multiply(m.packed, x, PNCUDA_BF16, 0, results, PNCUDA_F32, PNCUDA_PORTABLE), PNCUDA_F32);
  const auto sum_of = [&](std::int64_t x_row, std::int64_t expert, std::int64_t r) {
    return sums[static_cast<std::size_t>(x_row * m.shape.rows + expert * n + r)];
  };
  for (const int type : bf16_types)
    for (const bool per_slot : {false, true}) {
      const std::string what =
          m.name() + format(" experts of %s%s", name_of_type(type), per_slot ? ", x for each slot" : "");
      const auto with_experts = [&](std::vector<pncuda_fused_matrix>& matrices, int activation) {
        for (pncuda_fused_matrix& matrix : matrices) matrix.expert_stride = n * m.as(type).row_stride;
        pncuda_fused_args f = make_fused(matrices, x, PNCUDA_BF16, tokens, PNCUDA_ACCURATE, activation);
        f.expert_ids = ids_on_device.get();
        f.experts = experts;
        f.slots = slots;
        f.x_per_slot = per_slot ? 1 : 0;
        clear(y);
        return run(f, y);
      };
      const pncuda_weights first = rows_of(m.as(type), 0, n);
      std::vector<pncuda_fused_matrix> matrices = {make_matrix(first, y.get(), n * 4, bias_on_device.get())};
      std::vector<float> want;
      for (std::int64_t i = 0; i < results; ++i)
        for (std::int64_t r = 0; r < n; ++r) {
          const std::int64_t expert = ids[static_cast<std::size_t>(i)];
          const bool exists = expert >= 0 && expert < experts;
          want.push_back(exists ? sum_of(per_slot ? i : i / slots, expert, r) +
                                      bias[static_cast<std::size_t>(expert * n + r)]
                                : 0.0f);
        }
      report.expect(same_floats(with_experts(matrices, PNCUDA_NO_ACTIVATION), want), what + " are not GEMVs of each");

      const pncuda_weights gate = rows_of(m.as(type), 0, half), up = rows_of(m.as(type), half, half);
      matrices = {make_matrix(gate, y.get(), half * 4, nullptr), make_matrix(up, nullptr, 0, nullptr)};
      const std::vector<float> got = with_experts(matrices, PNCUDA_SILU_MUL);
      bool close = true;
      for (std::int64_t i = 0; i < results; ++i)
        for (std::int64_t r = 0; r < half; ++r) {
          const std::int64_t expert = ids[static_cast<std::size_t>(i)], x_row = per_slot ? i : i / slots;
          const bool exists = expert >= 0 && expert < experts;
          const double exact = exists ? silu_times(sum_of(x_row, expert, r), sum_of(x_row, expert, half + r)) : 0;
          const double error = std::abs(static_cast<double>(got[static_cast<std::size_t>(i * half + r)]) - exact);
          close &= error <= 2e-6 * std::abs(exact) + 1e-30 || !(std::abs(exact) < 1e38);
        }
      report.expect(close, what + ": silu(gate) * up is far from double");
    }
}

// Add-ons of rank 16 for three of five tokens, onto y itself.
void check_low_rank(const Bf16Matrix& m, Report& report) {
  constexpr std::int64_t tokens = 5, rank = 16;
  const std::int64_t n = m.shape.rows, k = m.shape.k;
  const std::vector<float> scales = {1.0f, 0.0f, 0.5f, 0.0f, -2.0f};
  const auto bf16 = [](std::int64_t count, unsigned seed) {
    return to_elements(normal_numbers(static_cast<std::size_t>(count), seed), PNCUDA_BF16);
  };
  const auto a = bf16(rank * k, 25), b = bf16(n * rank, 26), x = bf16(tokens * k, 27);
  const std::vector<float> base = normal_numbers(static_cast<std::size_t>(tokens * n), 28);
  const Bytes a_on_device(a), b_on_device(b), x_on_device(x);
  const Array<float> scales_on_device(scales), y(base);
  const Bytes workspace(pncuda_low_rank_workspace(tokens, rank));
  pncuda_low_rank_args l = {};
  l.struct_size = sizeof l;
  l.a = a_on_device.get();
  l.b = b_on_device.get();
  l.a_stride = k * 2;
  l.b_stride = rank * 2;
  l.factor_type = PNCUDA_BF16;
  l.rank = rank;
  l.k = k;
  l.n = n;
  l.x = x_on_device.get();
  l.x_stride = k * 2;
  l.x_type = PNCUDA_BF16;
  l.y_type = PNCUDA_F32;
  l.y = y.get();
  l.y_stride = l.base_stride = n * 4;
  l.base = y.get();
  l.tokens = tokens;
  l.scales = scales_on_device.get();
  l.workspace = workspace.get();
  l.workspace_size = workspace.size();
  require(pncuda_low_rank(&l, nullptr), "pncuda_low_rank");
  const std::vector<float> got = y.values();

  const auto factors_a = from_elements(a, PNCUDA_BF16), factors_b = from_elements(b, PNCUDA_BF16),
             values = from_elements(x, PNCUDA_BF16);
  const auto dot = [](const float* p, const auto* q, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(p[i]) * static_cast<double>(q[i]);
    return sum;
  };
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto row = static_cast<std::size_t>(n);
    if (scales[t] == 0.0f) {
      report.expect(same_bytes(&got[t * row], &base[t * row], row * 4),
                    m.name() + ": a low-rank add-on changes tokens that do not want it");
      continue;
    }
    double products[rank];
    for (std::int64_t r = 0; r < rank; ++r)
      products[r] = dot(&factors_a[static_cast<std::size_t>(r * k)], &values[t * static_cast<std::size_t>(k)], k);
    double squares = 0, all = 0;
    for (std::size_t r = 0; r < row; ++r) {
      const double exact = static_cast<double>(base[t * row + r]) +
                           static_cast<double>(scales[t]) * dot(&factors_b[r * rank], products, rank);
      const double error = static_cast<double>(got[t * row + r]) - exact;
      squares += error * error;
      all += exact * exact;
    }
    const double norm = std::sqrt(squares / all);
    report.largest("low rank, |errors| / |results|", norm);
    report.expect(norm <= 1e-6, m.name() + format(": low rank: |errors| / |results| = %.3g", norm));
  }
}

// Both ways, with a second stream and without, and as proof.
void check_prompts([[maybe_unused]] const Options& options, [[maybe_unused]] const Blas& blas,
                   [[maybe_unused]] const Bf16Matrix& m, [[maybe_unused]] Report& report) {
#if defined(PN_GPU_BENCH_BLAS)
  const std::int64_t tokens = options.tiny ? 18 : 70, n = m.shape.rows, k = m.shape.k;
  const auto rows = some_rows(n, options.tiny ? 30 : 60);
  pncuda_overlap overlap = {};
  overlap.struct_size = sizeof overlap;
  require(pncuda_overlap_create(&overlap), "pncuda_overlap_create");
  const Array<float> y(static_cast<std::size_t>(tokens * n));
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
    const auto elements = to_elements(p12_activations(k, tokens), x_type);
    const auto exact = exact_p12(m, rows, from_elements(elements, x_type), tokens);
    const Bytes x(elements);
    const auto run = [&](int type, std::int64_t from, const pncuda_overlap* two, int proof) {
      pncuda_matmul_args a = {};
      a.struct_size = sizeof a;
      a.weights = &m.as(type);
      a.x = x.get();
      a.x_stride = k * static_cast<std::int64_t>(element_bytes(x_type));
      a.x_type = x_type;
      a.y_type = PNCUDA_F32;
      a.y = y.get();
      a.y_stride = n * 4;
      a.tokens = tokens;
      a.proof = proof;
      a.switch_tokens = from;
      a.overlap = two;
      if (proof == 0 && type == PNCUDA_BF16_P12) a.slice_rows = std::max<std::int64_t>(16, n / 3 / 16 * 16);
      const pncuda_matmul_plan plan = plan_of(a);
      const Bytes workspace(plan.workspace_size_best);
      a.workspace = workspace.get();
      a.workspace_size = workspace.size();
      clear(y);
      require(pncuda_matmul(&a, static_cast<pncuda_blas_handle>(blas.handle()), nullptr), "pncuda_matmul");
      require(cudaDeviceSynchronize(), "pncuda_matmul");
      return y.values();
    };
    const std::string what = m.name() + format(" prompts, x %s", name_of_element(x_type));
    const auto by_blas = run(PNCUDA_BF16_P12, 1, nullptr, 0);
    const P12Errors errors = errors_of(m, rows, exact, by_blas, tokens);
    report.largest("p12 through cuBLAS, of S", errors.of_s);
    report.expect(errors.of_s <= 1e-5, what + format(": error %.3g * S", errors.of_s));
    report.expect(same_floats(run(PNCUDA_BF16_P12, 1, &overlap, 0), by_blas), what + ": a second stream changes bits");
    const auto by_gemv = run(PNCUDA_BF16_P12, tokens + 1, nullptr, 0);
    report.expect(same_floats(run(PNCUDA_BF16_PLAIN, tokens + 1, nullptr, 0), by_gemv),
                  what + ": by GEMVs packed is not plain");
    report.expect(errors_of(m, rows, exact, by_gemv, tokens).norm <= 1e-6, what + ": GEMVs are far from double");
    report.expect(same_floats(run(PNCUDA_BF16_P12, 1, nullptr, 1), run(PNCUDA_BF16_PLAIN, 1, nullptr, 0)) &&
                      same_floats(run(PNCUDA_BF16_P12, 1, &overlap, 1), run(PNCUDA_BF16_PLAIN, 1, &overlap, 0)),
                  what + ": proof is not what plain weights give");
  }
  require(pncuda_overlap_destroy(&overlap), "pncuda_overlap_destroy");
#endif
}

}  // namespace gpu_bench
