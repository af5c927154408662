// gpu_bench: every kernel against the core, in double where sums are rounded, bit for bit elsewhere.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "blas.hpp"

namespace gpu_bench {

namespace {

constexpr std::int64_t max_tokens = PNCUDA_MAX_TOKENS;

// Calls body(T{}) for the block type.
template <class Body>
void with_type(int type, Body&& body) {
  if (type == PNCUDA_PN3T)
    body(pn::pn3t{});
  else
    body(pn::pn4t{});
}

// A matrix in both layouts.
struct Matrix {
  const Pattern& pattern;
  int type;
  Shape shape;
  Bytes native_bytes, repacked_bytes;
  pncuda_weights native, repacked;

  Matrix(const Pattern& blocks, int block_type, Shape s)
      : pattern(blocks),
        type(block_type),
        shape(s),
        native_bytes(weight_bytes(type, s)),
        repacked_bytes(weight_bytes(type, s)),
        native(make_weights(type, PNCUDA_NATIVE, native_bytes.get(), s)),
        repacked(make_weights(type, PNCUDA_REPACKED, repacked_bytes.get(), s)) {
    pattern.bytes().fill(native_bytes.get(), native_bytes.size());
    require(pncuda_repack(&native, repacked_bytes.get(), nullptr), "pncuda_repack");
  }
  std::int64_t blocks() const { return shape.k / block_of(type); }
  const pncuda_weights& in(int layout) const { return layout == PNCUDA_NATIVE ? native : repacked; }
  const pn::Block34& block(std::int64_t row, std::int64_t b) const {
    return pattern.block(static_cast<std::size_t>(row * blocks() + b));
  }
  std::vector<float> row(std::int64_t r) const {
    std::vector<float> w(static_cast<std::size_t>(shape.k));
    with_type(type, [&](auto t) {
      using T = decltype(t);
      for (std::int64_t b = 0; b < blocks(); ++b)
        pn::decode_block<T>(block(r, b), &w[static_cast<std::size_t>(b) * T::block_size]);
    });
    return w;
  }
};

void rotate(std::vector<float>& x, int block) {
  if (pn::hadamard_activations(x.data(), x.size(), static_cast<std::size_t>(block)) != pn::Status::ok)
    fail("pn::hadamard_activations");
}

// ---- Multiplying ----

struct Exact {
  double y, s, t;  // the sum, and S and T of pncuda.h
};

// What x must give on some rows: [row][token].
std::vector<Exact> exact_results(const Matrix& m, const std::vector<std::int64_t>& rows, const std::vector<float>& x) {
  const auto k = static_cast<std::size_t>(m.shape.k);
  const auto block = static_cast<std::size_t>(block_of(m.type));
  const double z = m.type == PNCUDA_PN3T ? 4 : 8;
  std::vector<Exact> results(rows.size() * max_tokens);
  in_parallel(rows.size(), [&](std::size_t i) {
    const std::vector<float> w = m.row(rows[i]);
    for (std::size_t token = 0; token < max_tokens; ++token) {
      const float* const values = &x[token * k];
      Exact e = {0, 0, 0};
      double largest = 0;  // |x| of 16 blocks
      for (std::size_t b = 0; b < k / block; ++b) {
        if (b % 16 == 0) {
          largest = 0;
          for (std::size_t c = b * block; c < std::min(k, (b + 16) * block); ++c)
            largest = std::max(largest, std::abs(static_cast<double>(values[c])));
        }
        double size = 0;
        for (std::size_t c = b * block; c < (b + 1) * block; ++c) {
          e.y += static_cast<double>(w[c]) * static_cast<double>(values[c]);
          size += std::abs(static_cast<double>(values[c]));
        }
        const float d = pn::half_to_float(pn::load_scale(m.block(rows[i], static_cast<std::int64_t>(b))));
        e.s += std::abs(static_cast<double>(d)) * z * size;
        e.t += std::abs(static_cast<double>(d)) * z * static_cast<double>(block) * largest;
      }
      results[i * max_tokens + token] = e;
    }
  });
  return results;
}

// Activations of eight tokens of different sizes, with outliers.
std::vector<float> activations(std::int64_t k) {
  std::vector<float> x = normal_numbers(static_cast<std::size_t>(k * max_tokens), 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(x[i], static_cast<int>(i / static_cast<std::size_t>(k)) * 2 - 8);
    if (i % 97 == 5) x[i] *= 32;
  }
  return x;
}

class GemvChecks {
 public:
  GemvChecks(const Options& options, const Matrix& m, Report& report)
      : options_(options), m_(m), report_(report), y_(static_cast<std::size_t>(max_tokens * m.shape.rows * 4)) {}

  void run() {
    const auto rows = some_rows(m_.shape.rows, options_.tiny ? 200 : 192);
    const int block = hadamard_block_of(m_.shape.k);
    for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
      const auto elements = to_elements(activations(m_.shape.k), x_type);
      check(elements, x_type, 0, rows);
      if (block != 0) check(elements, x_type, block, rows);
      check_not_finite(elements, x_type);
    }
  }

 private:
  std::vector<std::uint8_t> multiply(int layout, const Bytes& x, int x_type, std::int64_t first, std::int64_t tokens,
                                     int y_type, int mode, int hadamard) {
    const std::int64_t stride = m_.shape.k * static_cast<std::int64_t>(element_bytes(x_type));
    const pncuda_gemv_args a =
        make_gemv(m_.in(layout), x.get() + first * stride, x_type, tokens, y_.get(), y_type, mode, hadamard);
    const auto bytes = static_cast<std::size_t>(tokens * m_.shape.rows) * element_bytes(y_type);
    require(cudaMemset(y_.get(), 0xFF, bytes), "cudaMemset");
    require(pncuda_gemv(&a, nullptr), "pncuda_gemv");
    require(cudaDeviceSynchronize(), "pncuda_gemv");
    std::vector<std::uint8_t> y(bytes);
    require(cudaMemcpy(y.data(), y_.get(), bytes, cudaMemcpyDeviceToHost), "copy of results");
    return y;
  }

  std::vector<std::int64_t> numbers_of_tokens() const {
    if (options_.tiny) return {1, 3, 8};
    if (m_.shape.rows > 2000) return {1, 2, 4, 8};
    return {1, 2, 3, 4, 5, 6, 7, 8};
  }

  int path(int x_type, int mode, int hadamard) {
    const pncuda_gemv_args a = make_gemv(m_.native, nullptr, x_type, max_tokens, nullptr, PNCUDA_F32, mode, hadamard);
    pncuda_gemv_plan plan = {};
    plan.struct_size = sizeof plan;
    require(pncuda_gemv_query(&a, &plan), "pncuda_gemv_query");
    return plan.path;
  }

  void check(const std::vector<std::uint8_t>& elements, int x_type, int hadamard,
             const std::vector<std::int64_t>& rows) {
    const Bytes x(elements);
    std::vector<float> values = from_elements(elements, x_type);
    if (hadamard != 0) rotate(values, hadamard);
    const auto exact = exact_results(m_, rows, values);
    std::vector<std::uint8_t> accurate;
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2}) {
      const std::string what =
          format("%s %s x %s%s%s", name_of_type(m_.type), name_of(m_.shape).c_str(), name_of_element(x_type),
                 hadamard != 0 ? " rotated" : "", mode == PNCUDA_FAST_HALF2 ? " fast_half2" : "");
      const int way = path(x_type, mode, hadamard);
      const auto all = multiply(PNCUDA_NATIVE, x, x_type, 0, max_tokens, PNCUDA_F32, mode, hadamard);
      const std::vector<float> y = from_elements(all, PNCUDA_F32);
      const double of_s = way == PNCUDA_PATH_HFMA2 ? 8e-3 : 4e-6;
      const double of_t = way == PNCUDA_PATH_HFMA2 ? 0x1p-15 : way == PNCUDA_PATH_TENSOR ? 0x1p-31 : 0;
      double worst = 0;
      bool within = true;
      for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t token = 0; token < max_tokens; ++token) {
          const Exact& e = exact[i * max_tokens + token];
          const auto at = token * static_cast<std::size_t>(m_.shape.rows) + static_cast<std::size_t>(rows[i]);
          const double error = std::abs(static_cast<double>(y[at]) - e.y);
          within &= error <= of_s * e.s + of_t * e.t;
          worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error / (e.s > 0 ? e.s : 1));
        }
      report_.largest(format("pn, path %s, of S", name_of_path(way)), worst);
      report_.expect(within, what + format(": error %.3g * S", worst));

      report_.expect(all == multiply(PNCUDA_NATIVE, x, x_type, 0, max_tokens, PNCUDA_F32, mode, hadamard),
                     what + ": two runs differ");
      if (mode == PNCUDA_ACCURATE)
        accurate = all;
      else if (way != PNCUDA_PATH_HFMA2)
        report_.expect(all == accurate, what + ": is not what accurate gives");
      for (const int layout : {PNCUDA_NATIVE, PNCUDA_REPACKED})
        for (const std::int64_t tokens : numbers_of_tokens()) {
          // The last tokens, so that they have other places.
          const std::int64_t first = max_tokens - tokens;
          const auto some = multiply(layout, x, x_type, first, tokens, PNCUDA_F32, mode, hadamard);
          report_.expect(
              same_bytes(some.data(), &all[static_cast<std::size_t>(first * m_.shape.rows * 4)], some.size()),
              what + format(": %d tokens, %s, are not as native ones of eight", static_cast<int>(tokens),
                            name_of_layout(layout)));
        }
      for (const int y_type : {PNCUDA_F16, PNCUDA_BF16})
        report_.expect(
            multiply(PNCUDA_REPACKED, x, x_type, 0, max_tokens, y_type, mode, hadamard) == to_elements(y, y_type),
            what + ": " + name_of_element(y_type) + " results are not the rounded ones");
    }
  }

  // NaN and infinities stay with their token.
  void check_not_finite(const std::vector<std::uint8_t>& elements, int x_type) {
    const auto row = static_cast<std::size_t>(m_.shape.rows);
    const auto k = static_cast<std::size_t>(m_.shape.k);
    const Bytes good(elements);
    const auto expected = multiply(PNCUDA_REPACKED, good, x_type, 0, max_tokens, PNCUDA_F32, PNCUDA_ACCURATE, 0);
    std::vector<float> values = from_elements(elements, x_type);
    values[3 * k + k / 2] = std::numeric_limits<float>::quiet_NaN();
    values[6 * k + k - 1] = std::numeric_limits<float>::infinity();
    const Bytes bad(to_elements(values, x_type));
    for (const int layout : {PNCUDA_NATIVE, PNCUDA_REPACKED}) {
      const auto got = multiply(layout, bad, x_type, 0, max_tokens, PNCUDA_F32, PNCUDA_ACCURATE, 0);
      const std::vector<float> y = from_elements(got, PNCUDA_F32);
      bool ok = true;
      for (std::size_t token = 0; token < max_tokens; ++token)
        if (token == 3 || token == 6)
          ok &= std::all_of(&y[token * row], &y[token * row] + row, [](float v) { return std::isnan(v); });
        else
          ok &= same_bytes(&got[token * row * 4], &expected[token * row * 4], row * 4);
      report_.expect(ok, format("%s %s x %s %s: NaN or an infinity changes other tokens, or does not make its own NaN",
                                name_of_type(m_.type), name_of(m_.shape).c_str(), name_of_element(x_type),
                                name_of_layout(layout)));
    }
  }

  const Options& options_;
  const Matrix& m_;
  Report& report_;
  Bytes y_;
};

// ---- Layouts, decoding, look-up ----

void check_layouts(const Matrix& m, Report& report) {
  const std::string what = std::string(name_of_type(m.type)) + " " + name_of(m.shape);
  const Bytes back(m.native_bytes.size());
  require(cudaMemset(back.get(), 0, back.size()), "cudaMemset");
  require(pncuda_unrepack(&m.repacked, back.get(), m.native.row_stride, nullptr), "pncuda_unrepack");
  report.expect(m.pattern.bytes().lies_at(back.get(), back.size()), what + ": repacked and back is not the same");
}

void check_decoding(const Matrix& m, Report& report) {
  const std::int64_t rows = std::min<std::int64_t>(m.shape.rows, 37), first = (m.shape.rows - rows) / 2;
  const std::int64_t columns = m.shape.k - 5, first_column = 3;
  const std::vector<std::int64_t> ids = {0, m.shape.rows - 1, -1, m.shape.rows, m.shape.rows / 3, 0};
  std::vector<std::int32_t> short_ids;
  for (const std::int64_t id : ids) short_ids.push_back(static_cast<std::int32_t>(id));
  const Array<std::int64_t> long_on_device(ids);
  const Array<std::int32_t> short_on_device(short_ids);
  std::vector<float> tile, looked_up;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = m.row(first + r);
    tile.insert(tile.end(), row.begin() + first_column, row.begin() + first_column + columns);
  }
  for (const std::int64_t id : ids) {
    const bool exists = id >= 0 && id < m.shape.rows;
    const auto row = m.row(exists ? id : 0);
    for (const float v : row) looked_up.push_back(exists ? v : std::numeric_limits<float>::quiet_NaN());
  }
  for (const int layout : {PNCUDA_NATIVE, PNCUDA_REPACKED})
    for (const int out_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
      const std::string what = format("%s %s %s to %s", name_of_type(m.type), name_of(m.shape).c_str(),
                                      name_of_layout(layout), name_of_element(out_type));
      const auto bytes = static_cast<std::int64_t>(element_bytes(out_type));
      const Bytes out(tile.size() * element_bytes(out_type));
      pncuda_decode_args d = {};
      d.struct_size = sizeof d;
      d.weights = &m.in(layout);
      d.first_row = first;
      d.rows = rows;
      d.first_column = first_column;
      d.columns = columns;
      d.out = out.get();
      d.out_stride = columns * bytes;
      d.out_type = out_type;
      require(pncuda_decode(&d, nullptr), "pncuda_decode");
      report.expect(out.values() == to_elements(tile, out_type), what + ": a decoded tile is not the core's");

      const Bytes found(looked_up.size() * element_bytes(out_type));
      for (const int id_bytes : {4, 8}) {
        pncuda_get_rows_args g = {};
        g.struct_size = sizeof g;
        g.weights = &m.in(layout);
        g.ids = id_bytes == 4 ? static_cast<const void*>(short_on_device.get()) : long_on_device.get();
        g.count = static_cast<std::int64_t>(ids.size());
        g.id_bytes = id_bytes;
        g.out_type = out_type;
        g.out = found.get();
        g.out_stride = m.shape.k * bytes;
        require(pncuda_get_rows(&g, nullptr), "pncuda_get_rows");
        // Through floats, so that one NaN is as good as another.
        const auto got = from_elements(found.values(), out_type);
        const auto expected = from_elements(to_elements(looked_up, out_type), out_type);
        bool equal = true;
        for (std::size_t i = 0; i < got.size(); ++i)
          equal &= std::isnan(expected[i]) ? std::isnan(got[i]) : same_bytes(&got[i], &expected[i], 4);
        report.expect(equal, what + format(": rows by ids of %d bytes are not the core's", id_bytes));
      }
    }
}

// ---- Many tokens through cuBLAS ----

#if defined(PN_GPU_BENCH_BLAS)
void check_blas(const Blas& blas, const Matrix& m, Report& report) {
  constexpr std::int64_t tokens = 3 * max_tokens;  // the eight, three times
  const auto rows = some_rows(m.shape.rows, 60);
  const int block = hadamard_block_of(m.shape.k);
  const Array<float> y(static_cast<std::size_t>(tokens * m.shape.rows));
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16})
    for (const int hadamard : {0, block}) {
      std::vector<std::uint8_t> elements = to_elements(activations(m.shape.k), x_type);
      std::vector<float> values = from_elements(elements, x_type);
      if (hadamard != 0) rotate(values, hadamard);
      const auto exact = exact_results(m, rows, values);
      const std::size_t eight = elements.size();
      elements.resize(3 * eight);
      for (const std::size_t at : {eight, 2 * eight}) std::memcpy(&elements[at], elements.data(), eight);
      const Bytes x(elements);
      pncuda_matmul_args a = {};
      a.struct_size = sizeof a;
      a.weights = &m.repacked;
      a.x = x.get();
      a.x_stride = m.shape.k * static_cast<std::int64_t>(element_bytes(x_type));
      a.x_type = x_type;
      a.y_type = PNCUDA_F32;
      a.y = y.get();
      a.y_stride = m.shape.rows * 4;
      a.tokens = tokens;
      a.hadamard_block = hadamard;
      for (const std::int64_t from : {std::int64_t{1}, tokens + 1}) {  // through cuBLAS, and not
        a.switch_tokens = from;
        const pncuda_matmul_plan plan = plan_of(a);
        const Bytes workspace(plan.workspace_size_best);
        a.workspace = workspace.get();
        a.workspace_size = workspace.size();
        require(pncuda_matmul(&a, static_cast<pncuda_blas_handle>(blas.handle()), nullptr), "pncuda_matmul");
        const std::vector<float> got = y.values();
        double worst = 0;
        for (std::size_t i = 0; i < rows.size(); ++i)
          for (std::size_t token = 0; token < tokens; ++token) {
            const Exact& e = exact[i * max_tokens + token % max_tokens];
            const double error =
                std::abs(static_cast<double>(
                             got[token * static_cast<std::size_t>(m.shape.rows) + static_cast<std::size_t>(rows[i])]) -
                         e.y) /
                (e.s > 0 ? e.s : 1);
            worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error);
          }
        // Weights, and rotated activations, are rounded to what cuBLAS multiplies.
        const double bound = plan.way == PNCUDA_MATMUL_GEMV ? 4e-6
                             : x_type == PNCUDA_F32         ? 1e-5
                             : x_type == PNCUDA_F16         ? 0x1p-10
                                                            : 0x1p-7;
        report.expect(worst <= bound,
                      format("matmul %s %s x %s%s: error %.3g * S", name_of_type(m.type), name_of(m.shape).c_str(),
                             name_of_element(x_type), hadamard != 0 ? " rotated" : "", worst));
      }
      if (block == 0) break;
    }
}
#endif

void check_rotation(const Options& options, Report& report) {
  const std::int64_t k = options.tiny ? 1024 : 17408;
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
    const auto elements = to_elements(activations(k), x_type);
    const Bytes x(elements);
    for (const int out_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16})
      for (const int block : {64, 128, 256, 512, 1024}) {
        std::vector<float> values = from_elements(elements, x_type);
        rotate(values, block);
        const Bytes out(values.size() * element_bytes(out_type));
        pncuda_hadamard_args h = {};
        h.struct_size = sizeof h;
        h.x = x.get();
        h.x_stride = k * static_cast<std::int64_t>(element_bytes(x_type));
        h.out = out.get();
        h.out_stride = k * static_cast<std::int64_t>(element_bytes(out_type));
        h.x_type = x_type;
        h.out_type = out_type;
        h.tokens = max_tokens;
        h.k = k;
        h.block = block;
        require(pncuda_hadamard(&h, nullptr), "pncuda_hadamard");
        report.expect(out.values() == to_elements(values, out_type),
                      format("rotation in segments of %d from %s to %s is not the core's", block,
                             name_of_element(x_type), name_of_element(out_type)));
      }
  }
}

}  // namespace

void check_kernels(const Options& options, const Machine& machine, Report& report) {
  const Pattern pattern(options.tiny ? 1009 : 1000003);
  check_rotation(options, report);
#if defined(PN_GPU_BENCH_BLAS)
  const Blas blas;
  report.line(blas.there() ? "pncuda_blas.h is checked, too" : "cuBLAS does not start: pncuda_blas.h is left out");
#endif
  for (const int type : {PNCUDA_PN3T, PNCUDA_PN4T})
    for (const Shape shape : shapes(options, machine, type)) {
      const Matrix m(pattern, type, shape);
      check_layouts(m, report);
      check_decoding(m, report);
      GemvChecks(options, m, report).run();
#if defined(PN_GPU_BENCH_BLAS)
      if (blas.there() && shape.rows < 20000) check_blas(blas, m, report);
#endif
    }
#if defined(PN_GPU_BENCH_BLAS)
  check_p12(options, machine, blas.there() ? &blas : nullptr, report);
#else
  check_p12(options, machine, nullptr, report);
#endif
}

}  // namespace gpu_bench
