// gpu_bench: BF16_P12 and its plain twin: packing, unpacking and multiplying, against the core.
#include "checks_p12.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace gpu_bench {

Bf16Matrix::Bf16Matrix(Repeated packed_blocks, Repeated plain_blocks, Shape s)
    : packed_pattern(packed_blocks),
      plain_pattern(plain_blocks),
      shape(s),
      packed_bytes(weight_bytes(PNCUDA_BF16_P12, s)),
      plain_bytes(weight_bytes(PNCUDA_BF16_PLAIN, s)),
      packed(make_weights(PNCUDA_BF16_P12, PNCUDA_NATIVE, packed_bytes.get(), s)),
      plain(make_weights(PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, plain_bytes.get(), s)) {
  packed_pattern.fill(packed_bytes.get(), packed_bytes.size());
  plain_pattern.fill(plain_bytes.get(), plain_bytes.size());
}

std::vector<float> Bf16Matrix::row(std::int64_t r) const {
  std::vector<float> w;
  w.reserve(static_cast<std::size_t>(shape.k));
  for (std::int64_t b = 0; b < blocks(); ++b)
    for (std::size_t i = 0; i < p12::block_size; ++i) w.push_back(pn::bf16_to_float(block(r, b)[i]));
  return w;
}

std::vector<float> p12_activations(std::int64_t k, std::int64_t tokens) {
  std::vector<float> x = normal_numbers(static_cast<std::size_t>(k * tokens), 12);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(x[i], static_cast<int>(i / static_cast<std::size_t>(k)) % 16 - 8);
    if (i % 97 == 5) x[i] *= 16;
  }
  return x;
}

std::vector<std::uint8_t> multiply(const pncuda_weights& weights, const Bytes& x, int x_type, std::int64_t first,
                                   std::int64_t tokens, int y_type, int mode) {
  const Bytes y(static_cast<std::size_t>(tokens * weights.rows) * element_bytes(y_type));
  const std::int64_t stride = weights.k * static_cast<std::int64_t>(element_bytes(x_type));
  const pncuda_gemv_args a = make_gemv(weights, x.get() + first * stride, x_type, tokens, y.get(), y_type, mode);
  require(cudaMemset(y.get(), 0xFF, y.size()), "cudaMemset");
  require(pncuda_gemv(&a, nullptr), "pncuda_gemv");
  require(cudaDeviceSynchronize(), "pncuda_gemv");
  return y.values();
}

std::vector<P12Exact> exact_p12(const Bf16Matrix& m, const std::vector<std::int64_t>& rows, const std::vector<float>& x,
                                std::int64_t tokens) {
  const auto k = static_cast<std::size_t>(m.shape.k), count = static_cast<std::size_t>(tokens);
  std::vector<P12Exact> results(rows.size() * count);
  in_parallel(rows.size(), [&](std::size_t i) {
    const std::vector<float> w = m.row(rows[i]);
    for (std::size_t token = 0; token < count; ++token) {
      P12Exact e = {0, 0};
      for (std::size_t c = 0; c < k; ++c) {
        const double product = static_cast<double>(w[c]) * static_cast<double>(x[token * k + c]);
        e.y += product;
        e.s += std::abs(product);
      }
      results[i * count + token] = e;
    }
  });
  return results;
}

P12Errors errors_of(const Bf16Matrix& m, const std::vector<std::int64_t>& rows, const std::vector<P12Exact>& exact,
                    const std::vector<float>& y, std::int64_t tokens) {
  P12Errors worst = {0, 0};
  const auto count = static_cast<std::size_t>(tokens);
  for (std::size_t token = 0; token < count; ++token) {
    double squares = 0, all = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const P12Exact& e = exact[i * count + token];
      const auto at = token * static_cast<std::size_t>(m.shape.rows) + static_cast<std::size_t>(rows[i]);
      const double error = std::abs(static_cast<double>(y[at]) - e.y);
      worst.of_s = std::max(worst.of_s, std::isnan(error) ? HUGE_VAL : error / (e.s > 0 ? e.s : 1));
      squares += error * error;
      all += e.y * e.y;
    }
    worst.norm = std::max(worst.norm, std::isnan(squares) ? HUGE_VAL : std::sqrt(squares / all));
  }
  return worst;
}

// The same bits, but that one NaN is as good as another.
bool same_numbers(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b, int type) {
  const std::vector<float> left = from_elements(a, type), right = from_elements(b, type);
  bool equal = left.size() == right.size();
  for (std::size_t i = 0; equal && i < left.size(); ++i)
    equal = std::isnan(right[i]) ? std::isnan(left[i]) : same_bytes(&left[i], &right[i], 4);
  return equal;
}

namespace {

constexpr std::int64_t max_tokens = PNCUDA_P12_MAX_TOKENS;

// Of pncuda.h: |error| / S.
double bound_of(int path, std::int64_t k) {
  const auto length = static_cast<double>(k);
  return path == PNCUDA_PATH_TENSOR ? (length / 512 + 16) * 0x1p-22 : (length / 256 + 14) * 0x1p-24;
}
int path_of(const pncuda_weights& weights, int x_type, int mode) {
  const pncuda_gemv_args a = make_gemv(weights, nullptr, x_type, max_tokens, nullptr, PNCUDA_F32, mode);
  pncuda_gemv_plan plan = {};
  plan.struct_size = sizeof plan;
  require(pncuda_gemv_query(&a, &plan), "pncuda_gemv_query");
  return plan.path;
}

// ---- Packing and unpacking ----

pncuda_decode_args decode_args(const pncuda_weights& weights, void* out, int out_type) {
  pncuda_decode_args d = {};
  d.struct_size = sizeof d;
  d.weights = &weights;
  d.rows = weights.rows;
  d.columns = weights.k;
  d.out = out;
  d.out_stride = weights.k * static_cast<std::int64_t>(element_bytes(out_type));
  d.out_type = out_type;
  return d;
}

// The whole matrix packed, and unpacked.
void check_packing(const Bf16Matrix& m, Report& report) {
  const Bytes packed(m.packed_bytes.size());
  const Array<std::int64_t> first_bad(1);
  require(cudaMemset(packed.get(), 0xFF, packed.size()), "cudaMemset");
  require(pncuda_p12_pack(&m.plain, packed.get(), m.packed.row_stride, first_bad.get(), nullptr), "pncuda_p12_pack");
  report.expect(first_bad.values()[0] == -1, m.name() + ": a block is said not to fit");
  report.expect(m.packed_pattern.lies_at(packed.get(), packed.size()), m.name() + ": packed is not p12::pack_row");
  const Bytes plain(m.plain_bytes.size());
  for (const int type : bf16_types) {
    require(cudaMemset(plain.get(), 0x55, plain.size()), "cudaMemset");
    const pncuda_decode_args d = decode_args(m.as(type), plain.get(), PNCUDA_BF16);
    require(pncuda_decode(&d, nullptr), "pncuda_decode");
    report.expect(m.plain_pattern.lies_at(plain.get(), plain.size()),
                  m.name() + ": " + name_of_type(type) + " unpacked is not p12::unpack_row");
  }
}

// One block more and more does not fit: the first of them is told.
void check_first_bad(const Bf16Pattern& pattern, Report& report) {
  const Shape shape = {11, 1280};
  Bf16Matrix m(pattern.packed(), pattern.plain(), shape);
  const Array<std::int64_t> first_bad(1);
  const Bytes packed(m.packed_bytes.size());
  for (const std::int64_t bad : {54, 23, 4}) {
    std::vector<std::uint16_t> weights(m.block(0, 0) + bad * 256, m.block(0, 0) + (bad + 1) * 256);
    for (const std::size_t i : {3u, 100u, 101u, 255u}) weights[i] = 0x7F80;
    require(cudaMemcpy(m.plain_bytes.get() + bad * 512, weights.data(), 512, cudaMemcpyHostToDevice), "copy");
    require(pncuda_p12_pack(&m.plain, packed.get(), m.packed.row_stride, first_bad.get(), nullptr), "pncuda_p12_pack");
    report.expect(first_bad.values()[0] == bad, "p12: the first block that does not fit is another");
  }
}

// A tile that begins and ends within words, and rows by their numbers: exact to bf16 and f32, rounded once to f16.
void check_decoding(const Bf16Matrix& m, Report& report) {
  const std::int64_t rows = std::min<std::int64_t>(m.shape.rows, 37), first = (m.shape.rows - rows) / 2;
  const std::int64_t columns = m.shape.k - 5, first_column = 3;
  const std::vector<std::int64_t> ids = {0, m.shape.rows - 1, -1, m.shape.rows, m.shape.rows / 3, 0};
  const Array<std::int64_t> ids_on_device(ids);
  std::vector<float> tile, looked_up;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = m.row(first + r);
    tile.insert(tile.end(), row.begin() + first_column, row.begin() + first_column + columns);
  }
  for (const std::int64_t id : ids) {
    const bool exists = id >= 0 && id < m.shape.rows;
    for (const float v : m.row(exists ? id : 0))
      looked_up.push_back(exists ? v : std::numeric_limits<float>::quiet_NaN());
  }
  for (const int type : bf16_types)
    for (const int out_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
      const std::string what = m.name() + format(" as %s to %s", name_of_type(type), name_of_element(out_type));
      const auto bytes = static_cast<std::int64_t>(element_bytes(out_type));
      const Bytes out(tile.size() * element_bytes(out_type));
      pncuda_decode_args d = decode_args(m.as(type), out.get(), out_type);
      d.first_row = first;
      d.rows = rows;
      d.first_column = first_column;
      d.columns = columns;
      d.out_stride = columns * bytes;
      require(pncuda_decode(&d, nullptr), "pncuda_decode");
      report.expect(same_numbers(out.values(), to_elements(tile, out_type), out_type),
                    what + ": a tile is not the core's");

      const Bytes found(looked_up.size() * element_bytes(out_type));
      pncuda_get_rows_args g = {};
      g.struct_size = sizeof g;
      g.weights = &m.as(type);
      g.ids = ids_on_device.get();
      g.count = static_cast<std::int64_t>(ids.size());
      g.id_bytes = 8;
      g.out_type = out_type;
      g.out = found.get();
      g.out_stride = m.shape.k * bytes;
      require(pncuda_get_rows(&g, nullptr), "pncuda_get_rows");
      report.expect(same_numbers(found.values(), to_elements(looked_up, out_type), out_type),
                    what + ": rows by ids are not the core's");
    }
}

// ---- Multiplying ----

void check_gemv(const Options& options, const Bf16Matrix& m, Report& report) {
  const auto rows = some_rows(m.shape.rows, options.tiny ? 60 : 192);
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 1; tokens <= max_tokens; tokens += options.tiny && tokens > 4 ? 5 : 1)
    counts.push_back(tokens);
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
    const auto elements = to_elements(p12_activations(m.shape.k, max_tokens), x_type);
    const Bytes x(elements);
    const auto exact = exact_p12(m, rows, from_elements(elements, x_type), max_tokens);
    std::vector<float> values = from_elements(elements, x_type);
    values[3 * static_cast<std::size_t>(m.shape.k) + 17] = std::numeric_limits<float>::quiet_NaN();
    values[7 * static_cast<std::size_t>(m.shape.k) - 1] = std::numeric_limits<float>::infinity();  // of token 6
    const Bytes not_finite(to_elements(values, x_type));
    for (const int mode : p12_modes) {
      const int path = path_of(m.packed, x_type, mode);
      const std::string what = m.name() + format(" x %s %s", name_of_element(x_type), name_of_mode(mode));
      const auto all = multiply(m.packed, x, x_type, 0, max_tokens, PNCUDA_F32, mode);
      const std::vector<float> y = from_elements(all, PNCUDA_F32);
      const P12Errors errors = errors_of(m, rows, exact, y, max_tokens);
      const double bound = bound_of(path, m.shape.k);
      report.expect(errors.of_s <= bound, what + format(": error %.3g * S, bound %.3g", errors.of_s, bound));
      report.expect(errors.norm <= 1e-6, what + format(": |errors| / |results| = %.3g", errors.norm));
      const std::string of_path = format("p12, path %s", name_of_path(path));
      report.largest(of_path + ", of S", errors.of_s);
      report.largest(of_path + ", of the bound", errors.of_s / bound);
      report.largest(of_path + ", |errors| / |results|", errors.norm);

      report.expect(all == multiply(m.packed, x, x_type, 0, max_tokens, PNCUDA_F32, mode), what + ": two runs differ");
      for (const int type : bf16_types)
        for (const std::int64_t tokens : counts) {
          const std::int64_t first = max_tokens - tokens;  // the last tokens, so that they have other places
          const auto some = multiply(m.as(type), x, x_type, first, tokens, PNCUDA_F32, mode);
          report.expect(same_bytes(some.data(), &all[static_cast<std::size_t>(first * m.shape.rows * 4)], some.size()),
                        what + format(": %d tokens of %s are not as %d packed ones", static_cast<int>(tokens),
                                      name_of_type(type), static_cast<int>(max_tokens)));
        }
      for (const int y_type : {PNCUDA_F16, PNCUDA_BF16})
        report.expect(multiply(m.packed, x, x_type, 0, max_tokens, y_type, mode) == to_elements(y, y_type),
                      what + ": " + name_of_element(y_type) + " results are not the rounded ones");

      const auto got = multiply(m.packed, not_finite, x_type, 0, max_tokens, PNCUDA_F32, mode);
      const std::vector<float> odd = from_elements(got, PNCUDA_F32);
      const auto row = static_cast<std::size_t>(m.shape.rows);
      bool apart = true;
      for (std::size_t token = 0; token < max_tokens; ++token)
        apart &= token == 3 || token == 6 ? std::none_of(&odd[token * row], &odd[token * row] + row,
                                                         [](float v) { return std::isfinite(v); })
                                          : same_bytes(&got[token * row * 4], &all[token * row * 4], row * 4);
      report.expect(apart, what + ": NaN or an infinity changes other tokens, or its own stays finite");
    }
  }
}

// ---- Odd numbers, any bytes ----

std::vector<p12::Block392> packed(const std::vector<std::uint16_t>& weights) {
  std::vector<p12::Block392> blocks(weights.size() / p12::block_size);
  if (p12::pack_row(weights.data(), weights.size(), blocks.data()) != pn::Status::ok) fail("p12::pack_row");
  return blocks;
}
Repeated bytes_of(const std::vector<p12::Block392>& blocks) { return {blocks.data(), blocks.size() * 392}; }
Repeated bytes_of(const std::vector<std::uint16_t>& weights) { return {weights.data(), weights.size() * 2}; }

// Rows with NaN, infinities, subnormals, zeros of either sign and the largest number, each in a row of its own, up to
// three in a block; and rows of subnormals only.
void check_odd_weights(const Bf16Pattern& pattern, Report& report) {
  constexpr std::uint16_t odd[] = {0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x0001, 0x807F, 0x8000, 0x0000, 0x7F7F};
  constexpr std::int64_t kinds = std::size(odd);
  const Shape shape = {2 * kinds + 2, 1280};
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(shape.rows * shape.k));
  for (std::size_t b = 0; b < weights.size() / 256; ++b) std::copy_n(pattern.weights(b), 256, &weights[b * 256]);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(shape.k), kind = row / 2;
    // Not near zero, so that nothing else is listed.
    const int sign = weights[i] & 0x8000, exponent = p12::exponent_of(weights[i]);
    if (exponent < 112 || exponent > 127)
      weights[i] = static_cast<std::uint16_t>(sign | 120 << 7 | (weights[i] & 0x7F));
    if (kind >= kinds)
      weights[i] = static_cast<std::uint16_t>(weights[i] & 0x007F);
    else if (row % 2 == 0 && (i % 256 == 7 || i % 256 == 8 || i % 1280 == 1279))
      weights[i] = odd[kind];
  }
  const auto blocks = packed(weights);
  const Bf16Matrix m(bytes_of(blocks), bytes_of(weights), shape);
  check_packing(m, report);
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < shape.rows; ++r) rows.push_back(r);
  std::vector<float> values(static_cast<std::size_t>(3 * shape.k));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.25f + static_cast<float>(i * 37 % 64) / 64;
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16})
    for (const int mode : p12_modes) {
      const auto elements = to_elements(values, x_type);
      const Bytes x(elements);
      const auto exact = exact_p12(m, rows, from_elements(elements, x_type), 3);
      const auto bits = multiply(m.packed, x, x_type, 0, 3, PNCUDA_F32, mode);
      const std::string what = format("p12 odd weights, x %s %s", name_of_element(x_type), name_of_mode(mode));
      report.expect(same_numbers(bits, multiply(m.plain, x, x_type, 0, 3, PNCUDA_F32, mode), PNCUDA_F32),
                    what + ": packed is not plain");
      const std::vector<float> y = from_elements(bits, PNCUDA_F32);
      const int path = path_of(m.packed, x_type, mode);
      const bool parts = path == PNCUDA_PATH_TENSOR && x_type != PNCUDA_BF16;  // infinity times a part that is 0
      bool right = true;
      for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t token = 0; token < 3; ++token) {
          const P12Exact& e = exact[i * 3 + token];
          const auto got = static_cast<double>(y[token * rows.size() + i]);
          if (std::isnan(e.y))
            right &= std::isnan(got);
          else if (std::isinf(e.y))
            right &= got == e.y || (parts && std::isnan(got));
          else if (e.s < 3e38)  // else a part of the sum may have been infinite
            right &= std::abs(got - e.y) <= bound_of(path, shape.k) * e.s + 0x1p-120;
        }
      report.expect(right, what + ": a result is not what its row must give");
    }
}

void check_any_bytes(const Options& options, Report& report) {
  const Shape shape = {options.tiny ? 21 : 515, options.tiny ? 1280 : 5120};
  std::vector<p12::Block392> blocks(static_cast<std::size_t>(shape.rows * shape.k / 256));
  std::vector<std::uint16_t> weights(blocks.size() * 256);
  std::mt19937 random(13);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::uint8_t bytes[sizeof(p12::Block392)];
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() & 0xFFu);
    if (b % 3 == 0) bytes[1] &= 3u;
    if (b % 5 == 0) bytes[3] = bytes[2];  // a place twice
    if (b % 7 == 0) bytes[4] = bytes[3];
    std::memcpy(&blocks[b], bytes, sizeof bytes);
    p12::unpack_block(blocks[b], &weights[b * 256]);
  }
  const Bf16Matrix m(bytes_of(blocks), bytes_of(weights), shape);
  const Bytes out(weights.size() * 2);
  const pncuda_decode_args d = decode_args(m.packed, out.get(), PNCUDA_BF16);
  require(pncuda_decode(&d, nullptr), "pncuda_decode");
  report.expect(m.plain_pattern.lies_at(out.get(), out.size()), "p12: any bytes: unpacked is not p12::unpack_block");
  check_decoding(m, report);
  // Nearly every sum is NaN; so most tokens see one weight only.
  std::vector<float> values(static_cast<std::size_t>(max_tokens * shape.k));
  for (std::int64_t token = 0; token < max_tokens; ++token)
    for (std::int64_t i = 0; i < shape.k; ++i)
      if (token < 2 || i == token * 251 % shape.k) values[static_cast<std::size_t>(token * shape.k + i)] = 1.0f;
  for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16})
    for (const int mode : p12_modes) {
      const Bytes x(to_elements(values, x_type));
      report.expect(
          same_numbers(multiply(m.packed, x, x_type, 0, max_tokens, PNCUDA_F32, mode),
                       multiply(m.plain, x, x_type, 0, max_tokens, PNCUDA_F32, mode), PNCUDA_F32),
          format("p12: any bytes, x %s %s: packed is not plain", name_of_element(x_type), name_of_mode(mode)));
    }
  // What is not checked by its bits must not fault.
  check_experts(options, m, report);
  require(cudaDeviceSynchronize(), "any bytes");
}

}  // namespace

void check_p12(const Options& options, const Machine& machine, const Blas* blas, Report& report) {
  const Bf16Pattern pattern(options.tiny ? 1009 : 100003);
  report.line(format("BF16_P12: %.2f%% of the blocks list weights", 100 * pattern.listing()));
  check_first_bad(pattern, report);
  check_odd_weights(pattern, report);
  check_any_bytes(options, report);
  for (const Shape shape : p12_shapes(options, machine)) {
    const Bf16Matrix m(pattern.packed(), pattern.plain(), shape);
    check_packing(m, report);
    check_decoding(m, report);
    check_gemv(options, m, report);
    check_fused(options, m, report);
    check_experts(options, m, report);
    check_low_rank(m, report);
    if (blas != nullptr) check_prompts(options, *blas, m, report);
  }
}

}  // namespace gpu_bench
