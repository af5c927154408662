// gpu_bench: how long kernels take, beside copies of memory and cuBLAS.
//
// Weights rotate over copies that are together larger than twice the L2, so they come from memory. A time is the median
// of several, each of as many calls as take some milliseconds between two events: launched one by one ("us"), and as
// one graph ("graph us"), which hides what a launch costs on the host.
#include "timings.hpp"

#include <algorithm>
#include <memory>

#include "kernels.hpp"

#if defined(PN_GPU_BENCH_BLAS)
#include <pncuda/pncuda_blas.h>
#endif

namespace gpu_bench {

namespace {

// ---- All of it ----

class Timings {
 public:
  explicit Timings(Bench& bench) : bench_(bench) {}

  void run() {
    const std::size_t beyond_l2 = bench_.beyond_l2();
    std::size_t largest = 1, longest = 1;
    for (const int type : {PNCUDA_PN3T, PNCUDA_PN4T})
      for (const Shape s : shapes(bench_.options, bench_.machine, type)) {
        largest = std::max(largest, static_cast<std::size_t>(s.rows * s.k));
        longest = std::max(longest, static_cast<std::size_t>(s.k));
      }
    // One matrix more than what lies beyond the L2; fp16 takes less than four times the bytes of pn4t.
    native_ = std::make_unique<Bytes>(beyond_l2 + 2 * rounded(largest * 34 / 64 + 34));
    repacked_ = std::make_unique<Bytes>(native_->size());
    dense_ = std::make_unique<Bytes>(beyond_l2 + 2 * rounded(largest * 2));
    const auto numbers = normal_numbers(longest * static_cast<std::size_t>(most_tokens()), 3);
    x_ = std::make_unique<Bytes>(to_elements(numbers, PNCUDA_F16));
    x32_ = std::make_unique<Bytes>(to_elements(numbers, PNCUDA_F32));
    y_ = std::make_unique<Bytes>(std::size_t{64} << 20);
    const Pattern pattern(bench_.options.tiny ? 1009 : 1000003);
    pattern.bytes().fill(native_->get(), native_->size());
    require(cudaMemset(dense_->get(), 0, dense_->size()), "cudaMemset");

    bench_.report.line(format("%-18s %-9s %-13s %3s %9s %9s %7s %6s %6s %8s %7s %6s  %s", "kernel", "layout",
                              "rows x k", "M", "us", "graph us", "GB/s", "copy%", "peak%", "Gw/s", "cublas", "spread",
                              "note"));
    for (const int type : {PNCUDA_PN4T, PNCUDA_PN3T})
      for (const Shape s : shapes(bench_.options, bench_.machine, type)) {
        time_shape(type, s);
        if (bench_.options.tiny) break;
      }
  }

 private:
  // Copies begin at whole blocks and multiples of 256.
  static std::size_t rounded(std::size_t bytes) { return (bytes + 4351) / 4352 * 4352; }

  std::int64_t most_tokens() const { return bench_.options.tiny ? 16 : 512; }

  // A matrix, of which copies rotate.
  struct Matrix {
    int type;
    Shape shape;
    std::size_t bytes, dense_bytes;          // of one copy: packed, as fp16
    int count, dense_count;                  // of copies
    std::map<std::int64_t, double> blas_us;  // what cuBLAS takes for so many tokens
  };

  static std::string name_of_kernel(const char* kernel, const Matrix& m) {
    return std::string(kernel) + "_" + name_of_type(m.type);
  }

  // How many copies of this size rotate.
  int copies(std::size_t bytes, std::size_t available) const {
    const std::size_t wanted = bench_.beyond_l2() / rounded(bytes) + 2;
    return static_cast<int>(std::max<std::size_t>(1, std::min(wanted, available / rounded(bytes))));
  }

  pncuda_weights weights(const Matrix& m, int layout, int i) const {
    return make_weights(m.type, layout, packed_copy(m, layout, i), m.shape);
  }
  unsigned char* packed_copy(const Matrix& m, int layout, int i) const {
    const Bytes& all = layout == PNCUDA_NATIVE ? *native_ : *repacked_;
    return all.get() + rounded(m.bytes) * static_cast<std::size_t>(i % m.count);
  }
  unsigned char* dense_copy(const Matrix& m, int i) const {
    return dense_->get() + rounded(m.dense_bytes) * static_cast<std::size_t>(i % m.dense_count);
  }

  // One line: `bytes` are those of the weights, or all that is read and written where there is no other measure.
  void add(const std::string& kernel, const char* layout, Shape shape, std::int64_t tokens, const Time& time,
           std::size_t bytes, double blas_us, const std::string& note) {
    const double rate = static_cast<double>(bytes) / time.best() * 1e6;
    const double weights = static_cast<double>(shape.rows) * static_cast<double>(shape.k) / time.best() * 1e6;
    const auto of = [&](double limit) { return limit > 0 ? 100 * rate / limit : 0; };
    const double ratio = blas_us > 0 ? blas_us / time.best() : 0;
    bench_.report.line(format("%-18s %-9s %-13s %3d %9.2f %9.2f %7.1f %6.1f %6.1f %8.2f %7.2f %5.1f%%  %s",
                              kernel.c_str(), layout, name_of(shape).c_str(), static_cast<int>(tokens), time.plain,
                              time.graph, rate / 1e9, of(bench_.machine.measured), of(bench_.machine.peak),
                              weights / 1e9, ratio, 100 * time.spread, note.c_str()));
    bench_.report.figures.push_back(
        format("{\"name\": \"%s%s%s@%s@M%d\", \"value\": %.2f, \"unit\": \"GB/s\", \"limit\": %.2f, \"note\": \"%s\", "
               "\"us\": %.3f, "
               "\"graph_us\": %.3f, \"weights_per_s\": %.5g, \"of_measured\": %.4f, \"of_peak\": %.4f, "
               "\"speed_over_cublas_fp16\": %.4f, \"spread\": %.4f}",
               kernel.c_str(), layout[0] != '\0' ? "_" : "", layout, name_of(shape).c_str(), static_cast<int>(tokens),
               rate / 1e9, bench_.machine.measured / 1e9, note.c_str(), time.plain, time.graph, weights,
               of(bench_.machine.measured) / 100, of(bench_.machine.peak) / 100, ratio, time.spread));
  }

  // Looking rows up, and the rotation alone.
  void time_small(const Matrix& m) {
    constexpr std::int64_t tokens = 8;
    const Shape shape = m.shape;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 7919 % shape.rows));
    const Array<std::int32_t> on_device(ids);
    const auto get_rows = [&](int i) {
      const pncuda_weights w = weights(m, PNCUDA_REPACKED, i);
      pncuda_get_rows_args g = {};
      g.struct_size = sizeof g;
      g.weights = &w;
      g.ids = on_device.get();
      g.count = tokens;
      g.id_bytes = 4;
      g.out_type = PNCUDA_F16;
      g.out = y_->get();
      g.out_stride = shape.k * 2;
      require(pncuda_get_rows(&g, bench_.clock.stream()), "pncuda_get_rows");
    };
    const Shape looked_up = {tokens, shape.k};
    add(name_of_kernel("get_rows", m), "repacked", looked_up, tokens, bench_.clock.measure(1, get_rows),
        weight_bytes(m.type, looked_up) + static_cast<std::size_t>(tokens * shape.k) * 2, 0, "bytes read and written");
    const int block = hadamard_block_of(shape.k);
    if (m.type != PNCUDA_PN4T || block == 0) return;
    pncuda_hadamard_args h = {};
    h.struct_size = sizeof h;
    h.x = x_->get();
    h.x_stride = h.out_stride = shape.k * 2;
    h.out = y_->get();
    h.x_type = h.out_type = PNCUDA_F16;
    h.tokens = tokens;
    h.k = shape.k;
    h.block = block;
    add("hadamard", "", looked_up, tokens,
        bench_.clock.measure(1, [&](int) { require(pncuda_hadamard(&h, bench_.clock.stream()), "pncuda_hadamard"); }),
        static_cast<std::size_t>(tokens * shape.k) * 4, 0, "bytes read and written, of the L2");
  }

  // Every copy, so that what follows has its weights.
  void time_repacking(const Matrix& m) {
    const auto repack = [&](int i) {
      const pncuda_weights w = weights(m, PNCUDA_NATIVE, i);
      require(pncuda_repack(&w, packed_copy(m, PNCUDA_REPACKED, i), bench_.clock.stream()), "pncuda_repack");
    };
    add(name_of_kernel("repack", m), "", m.shape, 0, bench_.clock.measure(m.count, repack), 2 * m.bytes, 0,
        "bytes read and written");
  }

  // Every copy, for cuBLAS.
  void time_decoding(const Matrix& m, int layout) {
    const auto decode = [&](int i) {
      const pncuda_weights w = weights(m, layout, i);
      pncuda_decode_args d = {};
      d.struct_size = sizeof d;
      d.weights = &w;
      d.rows = m.shape.rows;
      d.columns = m.shape.k;
      d.out = dense_copy(m, i);
      d.out_stride = m.shape.k * 2;
      d.out_type = PNCUDA_F16;
      require(pncuda_decode(&d, bench_.clock.stream()), "pncuda_decode");
    };
    add(name_of_kernel("decode", m), name_of_layout(layout), m.shape, 0,
        bench_.clock.measure(std::max(m.count, m.dense_count), decode), m.bytes + m.dense_bytes, 0,
        "bytes read and written; to fp16");
  }

  void time_blas(Matrix& m, int element, std::int64_t tokens) {
    if (!bench_.blas.there() || bench_.out_of_time()) return;
    const Time time = bench_.clock.measure(m.dense_count, [&](int i) {
      bench_.blas.multiply(element, m.shape, dense_copy(m, i), x_->get(), tokens, y_->get(), bench_.clock.stream());
    });
    if (element == PNCUDA_F16) m.blas_us[tokens] = time.best();
    if (m.type == PNCUDA_PN4T)  // once is enough
      add(std::string("cublas_") + name_of_element(element), "", m.shape, tokens, time, m.dense_bytes,
          m.blas_us[tokens], "");
  }

  void time_gemv(Matrix& m, const char* name, int layout, std::int64_t tokens, int x_type, int mode, int hadamard) {
    if (bench_.out_of_time()) return;
    const auto arguments = [&](const pncuda_weights& w) {
      return make_gemv(w, x_type == PNCUDA_F32 ? x32_->get() : x_->get(), x_type, tokens, y_->get(), x_type, mode,
                       hadamard);
    };
    const pncuda_weights first = weights(m, layout, 0);
    const pncuda_gemv_args a = arguments(first);
    pncuda_gemv_plan plan = {};
    plan.struct_size = sizeof plan;
    require(pncuda_gemv_query(&a, &plan), "pncuda_gemv_query");
    const Time time = bench_.clock.measure(m.count, [&](int i) {
      const pncuda_weights w = weights(m, layout, i);
      const pncuda_gemv_args one = arguments(w);
      require(pncuda_gemv(&one, bench_.clock.stream()), "pncuda_gemv");
    });
    add(name_of_kernel(name, m), name_of_layout(layout), m.shape, tokens, time, m.bytes, m.blas_us[tokens],
        format("%s, %d launches, %d bytes shared", name_of_path(plan.path), plan.launches, plan.shared_bytes));
  }

#if defined(PN_GPU_BENCH_BLAS)
  void time_matmul(Matrix& m, std::int64_t tokens) {
    if (!bench_.blas.there() || bench_.out_of_time()) return;
    pncuda_matmul_args a = {};
    a.struct_size = sizeof a;
    a.x = x_->get();
    a.x_stride = m.shape.k * 2;
    a.x_type = PNCUDA_F16;
    a.y_type = PNCUDA_F16;
    a.y = y_->get();
    a.y_stride = m.shape.rows * 2;
    a.tokens = tokens;
    const pncuda_weights first = weights(m, PNCUDA_REPACKED, 0);
    a.weights = &first;
    const pncuda_matmul_plan plan = plan_of(a);
    const Bytes workspace(plan.workspace_size_best);
    a.workspace = workspace.get();
    a.workspace_size = workspace.size();
    const Time time = bench_.clock.measure(m.count, [&](int i) {
      const pncuda_weights w = weights(m, PNCUDA_REPACKED, i);
      a.weights = &w;
      require(pncuda_matmul(&a, static_cast<pncuda_blas_handle>(bench_.blas.handle()), bench_.clock.stream()),
              "pncuda_matmul");
    });
    add(name_of_kernel("matmul", m), "repacked", m.shape, tokens, time, m.bytes, m.blas_us[tokens],
        format("%s, slices of %d rows", plan.way == PNCUDA_MATMUL_BLAS ? "decoded for cuBLAS" : "gemv",
               static_cast<int>(plan.slice_rows)));
  }
#endif

  void time_shape(int type, Shape shape) {
    if (bench_.out_of_time()) return;
    const std::size_t bytes = weight_bytes(type, shape);
    const std::size_t dense_bytes = static_cast<std::size_t>(shape.rows * shape.k) * 2;
    Matrix m = {type, shape, bytes, dense_bytes, copies(bytes, native_->size()), copies(dense_bytes, dense_->size()),
                {}};
    time_repacking(m);
    time_decoding(m, PNCUDA_NATIVE);
    time_decoding(m, PNCUDA_REPACKED);
    time_small(m);
    for (const std::int64_t tokens : {1, 2, 4, 8}) time_blas(m, PNCUDA_F16, tokens);
    if (bench_.machine.major >= 8) time_blas(m, PNCUDA_BF16, 1);

    for (const std::int64_t tokens : {1, 2, 4, 8})
      time_gemv(m, "gemv", PNCUDA_REPACKED, tokens, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    if (bench_.machine.major < 8)
      for (const std::int64_t tokens : {1, 2, 4, 8})
        time_gemv(m, "gemv_half2", PNCUDA_REPACKED, tokens, PNCUDA_F16, PNCUDA_FAST_HALF2, 0);
    time_gemv(m, "gemv", PNCUDA_NATIVE, 1, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    time_gemv(m, "gemv", PNCUDA_NATIVE, 8, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    time_gemv(m, "gemv_f32", PNCUDA_REPACKED, 1, PNCUDA_F32, PNCUDA_ACCURATE, 0);
    time_gemv(m, "gemv_f32", PNCUDA_REPACKED, 8, PNCUDA_F32, PNCUDA_ACCURATE, 0);
    if (const int block = hadamard_block_of(shape.k); block != 0)
      time_gemv(m, "gemv_rotated", PNCUDA_REPACKED, 1, PNCUDA_F16, PNCUDA_ACCURATE, block);

#if defined(PN_GPU_BENCH_BLAS)
    if (shape.rows > 20000) return;
    for (const std::int64_t tokens : {16, 32, 64, 128, 512}) {
      if (tokens > most_tokens()) continue;
      time_blas(m, PNCUDA_F16, tokens);
      time_matmul(m, tokens);
    }
#endif
  }

  Bench& bench_;
  std::unique_ptr<Bytes> native_, repacked_, dense_, x_, x32_, y_;
};

// Copies and reads of a buffer of its own, of several times the L2 and a few milliseconds.
void time_memory(Bench& bench) {
  const std::size_t half =
      bench.options.tiny ? std::size_t{1} << 16 : std::max(4 * bench.machine.l2, std::size_t{1} << 30);
  const Bytes all(2 * half);
  const Array<std::uint32_t> nowhere(1);
  require(cudaMemset(all.get(), 0x5A, all.size()), "cudaMemset");
  Clock& clock = bench.clock;
  const auto count = static_cast<std::int64_t>(half / 16);
  const auto blocks = static_cast<unsigned>(bench.machine.multiprocessors * (bench.options.tiny ? 1 : 16));
  const auto note = [&](const char* name, const std::function<void(int)>& call) {
    const double rate = static_cast<double>(2 * half) / clock.measure(1, call).best() * 1e6;
    bench.machine.measured = std::max(bench.machine.measured, rate);
    bench.report.line(format("%-22s %8.1f GB/s", name, rate / 1e9));
    bench.report.figures.push_back(format("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"GB/s\"}", name, rate / 1e9));
  };
  note("memory_memcpy", [&](int) {
    require(cudaMemcpyAsync(all.get() + half, all.get(), half, cudaMemcpyDeviceToDevice, clock.stream()),
            "cudaMemcpyAsync");
  });
  note("memory_copy", [&](int) {
    require(launch_copy(blocks, clock.stream(), reinterpret_cast<const uint4*>(all.get()),
                        reinterpret_cast<uint4*>(all.get() + half), count),
            "a launch");
  });
  bench.machine.copied = bench.machine.measured;
  note("memory_read", [&](int) {
    require(launch_read(blocks, clock.stream(), reinterpret_cast<const uint4*>(all.get()), 2 * count, nowhere.get()),
            "a launch");
  });
  bench.report.line(format("%-22s %8.1f GB/s", "memory_peak", bench.machine.peak / 1e9));
}

}  // namespace

void time_kernels(const Options& options, Machine& machine, std::chrono::steady_clock::time_point begin,
                  Report& report) {
  Bench bench(options, machine, begin, report);
  time_memory(bench);
  time_p12(bench);
  Timings(bench).run();
  if (bench.left_out > 0) report.line(format("%d timings left out: no time left", bench.left_out));
}

}  // namespace gpu_bench
