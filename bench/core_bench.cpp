// Microbenchmarks of the scalar core on data in DRAM. Every iteration takes the next row of a matrix that no cache
// holds. Beside each benchmark stands memcpy/<name>: a copy that reads and writes as many bytes in all, the limit that
// the memory of this machine sets.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::size_t k = 5120;  // weights per row: a multiple of 64, 80 and 256
constexpr std::size_t matrix_bytes = std::size_t{128} << 20;
constexpr std::size_t distinct_rows = 64;  // made once and repeated to fill a matrix

// A matrix of about matrix_bytes, whose rows are taken in a circle.
template <class Item>
class Rows {
 public:
  explicit Rows(std::size_t row_items)
      : row_items_(row_items), rows_(matrix_bytes / (row_items * sizeof(Item))), items_(rows_ * row_items) {}
  Item* row(std::size_t r) { return items_.data() + r * row_items_; }
  Item* next() {
    at_ = at_ + 1 == rows_ ? 0 : at_ + 1;
    return row(at_);
  }
  // Copies the first distinct rows over the rest.
  void repeat() {
    for (std::size_t r = distinct_rows; r < rows_; ++r)
      std::memcpy(row(r), row(r % distinct_rows), row_items_ * sizeof(Item));
  }

 private:
  std::size_t row_items_;
  std::size_t rows_;
  std::vector<Item> items_;
  std::size_t at_ = 0;
};

std::vector<float> gaussian_row(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> row(k);
  for (float& w : row) w = normal(random);
  return row;
}

Rows<float> fp32_rows() {
  Rows<float> matrix(k);
  for (std::size_t r = 0; r < distinct_rows; ++r)
    std::memcpy(matrix.row(r), gaussian_row(static_cast<unsigned>(r)).data(), k * sizeof(float));
  matrix.repeat();
  return matrix;
}

// Gaussian rows always fit; a benchmark of rows that do not would mean nothing.
void require(pn::Status status) {
  if (status == pn::Status::ok) return;
  std::fprintf(stderr, "core_bench: %s\n", pn::status_text(status));
  std::exit(1);
}

Rows<std::uint16_t> bf16_rows() {
  Rows<std::uint16_t> matrix(k);
  for (std::size_t r = 0; r < distinct_rows; ++r) {
    const std::vector<float> row = gaussian_row(static_cast<unsigned>(r));
    for (std::size_t i = 0; i < k; ++i) matrix.row(r)[i] = pn::float_to_bf16(row[i]);
  }
  matrix.repeat();
  return matrix;
}

Rows<p12::Block392> p12_rows(Rows<std::uint16_t> weights) {
  Rows<p12::Block392> matrix(p12::block_count(k));
  for (std::size_t r = 0; r < distinct_rows; ++r) require(p12::pack_row(weights.row(r), k, matrix.row(r)));
  matrix.repeat();
  return matrix;
}

template <class T>
Rows<pn::Block34> pn_rows() {
  Rows<pn::Block34> matrix(pn::block_count<T>(k));
  for (std::size_t r = 0; r < distinct_rows; ++r)
    require(pn::quantize_row<T>(gaussian_row(static_cast<unsigned>(r)).data(), k, matrix.row(r)));
  matrix.repeat();
  return matrix;
}

void count(benchmark::State& state, std::size_t bytes_per_row) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes_per_row));
  state.counters["weights"] = benchmark::Counter(static_cast<double>(k), benchmark::Counter::kIsIterationInvariantRate);
}

void check(benchmark::State& state, pn::Status status) {
  if (status != pn::Status::ok) state.SkipWithError(pn::status_text(status));
}

// Runs `per_row` as benchmark `name` and a copy of the same traffic as its limit. per_row() handles one row that
// reads and writes bytes_per_row bytes of DRAM in all.
template <class Setup>
void add(const char* name, std::size_t bytes_per_row, Setup setup) {
  benchmark::RegisterBenchmark(name, [=](benchmark::State& state) {
    auto per_row = setup();
    for (auto _ : state) check(state, per_row());
    count(state, bytes_per_row);
  });
  benchmark::RegisterBenchmark((std::string("memcpy/") + name).c_str(), [=](benchmark::State& state) {
    const std::size_t half = bytes_per_row / 2;
    Rows<std::uint8_t> from(half);
    Rows<std::uint8_t> to(half);
    for (auto _ : state) {
      std::memcpy(to.next(), from.next(), half);
      benchmark::ClobberMemory();
    }
    count(state, 2 * half);
  });
}

template <class T>
void add_pn() {
  const std::string type = T::name;
  constexpr std::size_t bytes = pn::row_bytes<T>(k);
  add(("quantize_row/" + type).c_str(), 4 * k + bytes, [] {
    return [from = fp32_rows(), to = Rows<pn::Block34>(pn::block_count<T>(k))]() mutable {
      return pn::quantize_row<T>(from.next(), k, to.next());
    };
  });
  add(("decode_row/" + type).c_str(), bytes + 4 * k, [] {
    return
        [from = pn_rows<T>(), to = Rows<float>(k)]() mutable { return pn::decode_row<T>(from.next(), k, to.next()); };
  });
  add(("validate_row/" + type).c_str(), bytes,
      [] { return [from = pn_rows<T>()]() mutable { return pn::validate_row<T>(from.next(), k); }; });
  add(("dot_f32/" + type).c_str(), bytes, [] {
    return [from = pn_rows<T>(), x = gaussian_row(1000)]() mutable {
      float y = 0;
      const pn::Status status = pn::dot_f32<T>(from.next(), x.data(), k, &y);
      benchmark::DoNotOptimize(y);
      return status;
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t p12_bytes = p12::row_bytes(k);
  add("pack_row/p12", 2 * k + p12_bytes, [] {
    return [from = bf16_rows(), to = Rows<p12::Block392>(p12::block_count(k))]() mutable {
      return p12::pack_row(from.next(), k, to.next());
    };
  });
  add("unpack_row/p12", p12_bytes + 2 * k, [] {
    return [from = p12_rows(bf16_rows()), to = Rows<std::uint16_t>(k)]() mutable {
      return p12::unpack_row(from.next(), k, to.next());
    };
  });
  add("validate_row/p12", p12_bytes,
      [] { return [from = p12_rows(bf16_rows())]() mutable { return p12::validate_row(from.next(), k); }; });
  add_pn<pn::pn3t>();
  add_pn<pn::pn4t>();

  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
