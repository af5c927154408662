// gpu_bench: BF16_P12 against BF16: the plain twin of every kernel, and cuBLAS, in the same run.
#include <pncuda/pncuda_p12.h>

#include <memory>

#include "timings.hpp"

#if defined(PN_GPU_BENCH_BLAS)
#include <pncuda/pncuda_blas.h>
#endif

namespace gpu_bench {

namespace {

class P12Timings {
 public:
  explicit P12Timings(Bench& bench)
      : bench_(bench),
        shapes_(p12_timed_shapes(bench.options)),
        // No bf16 in cuBLAS before sm_80: fp16 has as many bytes.
        blas_type_(bench.machine.major >= 8 ? PNCUDA_BF16 : PNCUDA_F16) {
    std::size_t packed = 0, plain = 0, results = 0, values = 0;
    for (const Shape s : shapes_) {
      packed = std::max(packed, rounded(weight_bytes(PNCUDA_BF16_P12, s)));
      plain = std::max(plain, rounded(weight_bytes(PNCUDA_BF16_PLAIN, s)));
      values = std::max(values, static_cast<std::size_t>(prompts().back() * s.k));
      results = std::max(results, static_cast<std::size_t>(prompts().back() * s.rows));
    }
    packed_ = std::make_unique<Bytes>(bench_.beyond_l2() + 2 * packed);
    plain_ = std::make_unique<Bytes>(bench_.beyond_l2() + 2 * plain);
    x_ = std::make_unique<Bytes>(values * 2);
    y_ = std::make_unique<Bytes>(results * 2);
    const Bf16Pattern pattern(bench_.options.tiny ? 1009 : 100003);
    pattern.packed().fill(packed_->get(), packed_->size());
    pattern.plain().fill(plain_->get(), plain_->size());
    const auto numbers = to_elements(normal_numbers(bench_.options.tiny ? 1 << 12 : 1 << 20, 31), blas_type_);
    Repeated{numbers.data(), numbers.size()}.fill(x_->get(), x_->size());
    // No more than half of the time that is left.
    const auto now = std::chrono::steady_clock::now();
    end_ = now + (bench_.end > now ? (bench_.end - now) / 2 : std::chrono::steady_clock::duration(0));
  }

  void run() {
    Report& report = bench_.report;
    report.line(
        format("P12 against BF16 (cublas, twin: how many times as fast as cuBLAS %s, as plain BF16; bytes of "
               "weights, x and y)",
               name_of_element(blas_type_)));
    report.line(format("%-20s %-13s %4s %9s %9s %7s %6s %6s %7s %7s %6s  %s", "kernel", "rows x k", "M", "us",
                       "graph us", "GB/s", "copy%", "peak%", "cublas", "twin", "spread", "note"));
    for (const Shape s : shapes_) time_gemv(s);
    for (const Shape s : shapes_) time_packing(s);
#if defined(PN_GPU_BENCH_BLAS)
    if (!bench_.blas.there()) return;
    report.line(
        "P12 prompts against BF16 (times in us; by GEMVs, unpacked in slices, in slices beside multiplying, as a "
        "whole; "
        "ratio: how many times as fast as cuBLAS)");
    report.line(format("%-13s %5s %10s %10s %10s %10s %10s %7s %8s %8s  %s", "rows x k", "M", "gemv", "slices",
                       "overlap", "whole", "cublas", "ratio", "overlap", "TFLOP/s", "by default"));
    for (const Shape s : shapes_) {
      for (const std::int64_t tokens : prompts()) time_prompt(s, tokens);
      find_switch(s);
    }
#endif
  }

 private:
  // Copies begin at whole blocks of either kind, and at multiples of 256.
  static std::size_t rounded(std::size_t bytes) {
    constexpr std::size_t unit = 392 * 512;
    return (bytes + unit - 1) / unit * unit;
  }
  bool out_of_time() {
    if (std::chrono::steady_clock::now() < end_) return false;
    ++bench_.left_out;
    return true;
  }
  bool is_most_important(Shape s) const { return s.rows == shapes_[0].rows && s.k == shapes_[0].k; }
  std::vector<std::int64_t> prompts() const {
    if (bench_.options.tiny) return {32};
    if (bench_.options.quick) return {32, 128, 512, 2048};
    return {32, 64, 128, 256, 512, 1024, 2048, 4096};
  }
  std::vector<std::int64_t> few_tokens(Shape s) const {
    if (bench_.options.tiny) return {1, 16};
    if (bench_.options.quick) return {1, 2, 4, 8, 16, 32};
    if (!is_most_important(s)) return {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 32};
  }

  // ---- Weights that rotate ----

  const Bytes& all_of(int type) const { return type == PNCUDA_BF16_P12 ? *packed_ : *plain_; }
  int copies(int type, Shape s) const {
    const std::size_t bytes = rounded(weight_bytes(type, s));
    return static_cast<int>(std::min(bench_.beyond_l2() / bytes + 2, all_of(type).size() / bytes));
  }
  std::uint8_t* copy(int type, Shape s, int i) const {
    return all_of(type).get() + rounded(weight_bytes(type, s)) * static_cast<std::size_t>(i % copies(type, s));
  }
  pncuda_weights weights(int type, Shape s, int i) const {
    return make_weights(type, PNCUDA_NATIVE, copy(type, s, i), s);
  }

  // ---- Few tokens ----

  void add(const std::string& kernel, Shape s, std::int64_t tokens, const Time& time, std::size_t bytes, double blas_us,
           double twin_us, const std::string& note) {
    const double rate = static_cast<double>(bytes) / time.best() * 1e6;
    const auto of = [&](double limit) { return limit > 0 ? rate / limit : 0; };
    const double over_blas = blas_us / time.best(), over_twin = twin_us / time.best();
    const Machine& m = bench_.machine;
    bench_.report.line(format("%-20s %-13s %4d %9.2f %9.2f %7.1f %6.1f %6.1f %7.3f %7.3f %5.1f%%  %s", kernel.c_str(),
                              name_of(s).c_str(), static_cast<int>(tokens), time.plain, time.graph, rate / 1e9,
                              100 * of(m.copied), 100 * of(m.peak), over_blas, over_twin, 100 * time.spread,
                              note.c_str()));
    bench_.report.figures.push_back(
        format("{\"name\": \"%s@%s@M%d\", \"value\": %.2f, \"unit\": \"GB/s\", \"limit\": %.2f, \"note\": \"%s\", "
               "\"us\": %.3f, \"graph_us\": %.3f, \"of_copy\": %.4f, \"of_peak\": %.4f, "
               "\"speed_over_cublas_%s\": %.4f, \"speed_over_twin\": %.4f, \"spread\": %.4f}",
               kernel.c_str(), name_of(s).c_str(), static_cast<int>(tokens), rate / 1e9, m.copied / 1e9, note.c_str(),
               time.plain, time.graph, of(m.copied), of(m.peak), name_of_element(blas_type_), over_blas, over_twin,
               time.spread));
  }

  std::size_t bytes_moved(int type, Shape s, std::int64_t tokens) const {
    return weight_bytes(type, s) + static_cast<std::size_t>(tokens * (s.k + s.rows)) * 2;
  }

  Time time_blas(Shape s, std::int64_t tokens) {
    return bench_.clock.measure(copies(PNCUDA_BF16_PLAIN, s), [&](int i) {
      bench_.blas.multiply(blas_type_, s, copy(PNCUDA_BF16_PLAIN, s, i), x_->get(), tokens, y_->get(),
                           bench_.clock.stream());
    });
  }

  pncuda_gemv_args gemv_args(const pncuda_weights& w, std::int64_t tokens, int mode) const {
    return make_gemv(w, x_->get(), PNCUDA_BF16, tokens, y_->get(), PNCUDA_BF16, mode);
  }

  void time_gemv(Shape s) {
    for (const std::int64_t tokens : few_tokens(s)) {
      if (out_of_time()) continue;
      double blas_us = 0;
      if (bench_.blas.there()) {
        const Time time = time_blas(s, tokens);
        blas_us = time.best();
        add(std::string("cublas_") + name_of_element(blas_type_), s, tokens, time,
            bytes_moved(PNCUDA_BF16_PLAIN, s, tokens), blas_us, 0, "");
      }
      int path_before = PNCUDA_PATH_NONE;
      for (const int mode : {PNCUDA_ACCURATE, PNCUDA_PORTABLE}) {
        const pncuda_weights first = weights(PNCUDA_BF16_P12, s, 0);
        const pncuda_gemv_args a = gemv_args(first, tokens, mode);
        pncuda_gemv_plan plan = {};
        plan.struct_size = sizeof plan;
        require(pncuda_gemv_query(&a, &plan), "pncuda_gemv_query");
        if (plan.path == path_before || out_of_time()) continue;  // both modes are one
        path_before = plan.path;
        double twin_us = 0;
        for (const int type : {PNCUDA_BF16_PLAIN, PNCUDA_BF16_P12}) {
          const Time time = bench_.clock.measure(copies(type, s), [&](int i) {
            const pncuda_weights w = weights(type, s, i);
            const pncuda_gemv_args one = gemv_args(w, tokens, mode);
            require(pncuda_gemv(&one, bench_.clock.stream()), "pncuda_gemv");
          });
          if (type == PNCUDA_BF16_PLAIN) twin_us = time.best();
          add(std::string(name_of_type(type)) + (mode == PNCUDA_PORTABLE ? "_portable" : ""), s, tokens, time,
              bytes_moved(type, s, tokens), blas_us, twin_us,
              format("%s, %d launches, %d bytes shared", name_of_path(plan.path), plan.launches, plan.shared_bytes));
        }
      }
    }
  }

  void time_packing(Shape s) {
    if (out_of_time()) return;
    const int count = std::max(copies(PNCUDA_BF16_P12, s), copies(PNCUDA_BF16_PLAIN, s));
    const std::size_t bytes = weight_bytes(PNCUDA_BF16_P12, s) + weight_bytes(PNCUDA_BF16_PLAIN, s);
    // As fast as a copy of as many bytes is 1.
    const double copy_us = static_cast<double>(bytes) / bench_.machine.copied * 1e6;
    const auto unpack = [&](int i) {
      const pncuda_weights w = weights(PNCUDA_BF16_P12, s, i);
      pncuda_decode_args d = {};
      d.struct_size = sizeof d;
      d.weights = &w;
      d.rows = s.rows;
      d.columns = s.k;
      d.out = copy(PNCUDA_BF16_PLAIN, s, i);
      d.out_stride = s.k * 2;
      d.out_type = PNCUDA_BF16;
      require(pncuda_decode(&d, bench_.clock.stream()), "pncuda_decode");
    };
    const Array<std::int64_t> first_bad(1);
    const auto pack = [&](int i) {
      const pncuda_weights w = weights(PNCUDA_BF16_PLAIN, s, i);
      require(pncuda_p12_pack(&w, copy(PNCUDA_BF16_P12, s, i), s.k / 256 * 392, first_bad.get(), bench_.clock.stream()),
              "pncuda_p12_pack");
    };
    const auto note = [&](const Time& time) {
      return format("bytes read and written; %.2f times as fast as a copy of them", copy_us / time.best());
    };
    const Time unpacking = bench_.clock.measure(count, unpack);
    add("p12_unpack", s, 0, unpacking, bytes, 0, 0, note(unpacking));
    const Time packing = bench_.clock.measure(count, pack);
    add("p12_pack", s, 0, packing, bytes, 0, 0, note(packing));
  }

  // ---- Prompts ----

#if defined(PN_GPU_BENCH_BLAS)
  struct Overlap {
    pncuda_overlap two = {};
    Overlap() {
      two.struct_size = sizeof two;
      require(pncuda_overlap_create(&two), "pncuda_overlap_create");
    }
    ~Overlap() { pncuda_overlap_destroy(&two); }
    Overlap(const Overlap&) = delete;
    Overlap& operator=(const Overlap&) = delete;
  };

  pncuda_matmul_args matmul_args(const pncuda_weights& w, std::int64_t tokens, std::int64_t from,
                                 const pncuda_overlap* two, std::int64_t slice_rows = 0) const {
    pncuda_matmul_args m = {};
    m.struct_size = sizeof m;
    m.weights = &w;
    m.x = x_->get();
    m.x_stride = w.k * 2;
    m.x_type = PNCUDA_BF16;
    m.y_type = PNCUDA_BF16;
    m.y = y_->get();
    m.y_stride = w.rows * 2;
    m.tokens = tokens;
    m.switch_tokens = from;
    m.slice_rows = slice_rows;
    m.overlap = two;
    return m;
  }
  pncuda_blas_handle handle() const { return static_cast<pncuda_blas_handle>(bench_.blas.handle()); }

  double time_matmul(Shape s, std::int64_t tokens, std::int64_t from, const pncuda_overlap* two,
                     std::int64_t slice_rows = 0) {
    const pncuda_weights first = weights(PNCUDA_BF16_P12, s, 0);
    const Bytes workspace(plan_of(matmul_args(first, tokens, from, two, slice_rows)).workspace_size_best);
    const Time time = bench_.clock.measure(copies(PNCUDA_BF16_P12, s), [&](int i) {
      const pncuda_weights w = weights(PNCUDA_BF16_P12, s, i);
      pncuda_matmul_args m = matmul_args(w, tokens, from, two, slice_rows);
      m.workspace = workspace.get();
      m.workspace_size = workspace.size();
      require(pncuda_matmul(&m, handle(), bench_.clock.stream()), "pncuda_matmul");
    });
    return time.best();
  }

  void time_prompt(Shape s, std::int64_t tokens) {
    if (out_of_time()) return;
    constexpr std::int64_t most_for_gemv = 256;
    const double blas_us = time_blas(s, tokens).best();  // first, so that the handle has its stream and its workspace
    const double gemv_us = tokens <= most_for_gemv ? time_matmul(s, tokens, tokens + 1, nullptr) : 0;
    const double slices_us = time_matmul(s, tokens, 1, nullptr);
    const double overlap_us = time_matmul(s, tokens, 1, &overlap_.two);
    const double whole_us = time_matmul(s, tokens, 1, nullptr, s.rows);
    const pncuda_weights first = weights(PNCUDA_BF16_P12, s, 0);
    const pncuda_matmul_plan usual = plan_of(matmul_args(first, tokens, 0, nullptr));
    const pncuda_matmul_plan plan = plan_of(matmul_args(first, tokens, 1, nullptr));
    double best = std::min({slices_us, overlap_us, whole_us});
    if (gemv_us > 0) best = std::min(best, gemv_us);
    const double flops =
        2.0 * static_cast<double>(s.rows) * static_cast<double>(s.k) * static_cast<double>(tokens) / (best * 1e-6);
    const std::string note =
        format("%s; %s products, slices of %d rows", usual.way == PNCUDA_MATMUL_BLAS ? "slices" : "gemv",
               name_of_element(plan.blas_type), static_cast<int>(plan.slice_rows));
    bench_.report.line(format("%-13s %5d %10.1f %10.1f %10.1f %10.1f %10.1f %7.3f %8.3f %8.1f  %s", name_of(s).c_str(),
                              static_cast<int>(tokens), gemv_us, slices_us, overlap_us, whole_us, blas_us,
                              blas_us / best, blas_us / overlap_us, flops / 1e12, note.c_str()));
    bench_.report.figures.push_back(format(
        "{\"name\": \"p12_prompt@%s@M%d\", \"value\": %.3f, \"unit\": \"TFLOP/s\", \"note\": \"%s\", \"gemv_us\": "
        "%.2f, "
        "\"slices_us\": %.2f, \"overlap_us\": %.2f, \"whole_us\": %.2f, \"cublas_%s_us\": %.2f, "
        "\"best_over_cublas\": %.4f, \"slices_over_cublas\": %.4f, \"overlap_over_cublas\": %.4f}",
        name_of(s).c_str(), static_cast<int>(tokens), flops / 1e12, note.c_str(), gemv_us, slices_us, overlap_us,
        whole_us, name_of_element(blas_type_), blas_us, blas_us / best, blas_us / slices_us, blas_us / overlap_us));
  }

  // What pncuda_matmul_tune finds.
  void find_switch(Shape s) {
    if (out_of_time()) return;
    const std::int64_t tokens = bench_.options.tiny ? 32 : 257;
    const pncuda_weights w = weights(PNCUDA_BF16_P12, s, 0);
    const std::int64_t few[] = {32};
    const std::int64_t* const counts = bench_.options.tiny ? few : nullptr;
    const std::size_t count = bench_.options.tiny ? 1 : 0;
    std::string found;
    for (const pncuda_overlap* two :
         {static_cast<const pncuda_overlap*>(nullptr), static_cast<const pncuda_overlap*>(&overlap_.two)}) {
      // Room for all rows at once, so that every size of slices is tried.
      const Bytes workspace(plan_of(matmul_args(w, tokens, 1, two, s.rows)).workspace_size_best);
      pncuda_matmul_args m = matmul_args(w, tokens, 1, two);
      m.workspace = workspace.get();
      m.workspace_size = workspace.size();
      pncuda_tuning_entry entry = {};
      pncuda_tuning tuning = {};
      tuning.struct_size = sizeof tuning;
      require(pncuda_tuning_init(&tuning, &entry, 1), "pncuda_tuning_init");
      require(pncuda_matmul_tune(&m, counts, count, handle(), bench_.clock.stream(), &tuning), "pncuda_matmul_tune");
      std::int64_t from = 0, slice_rows = 0;
      require(pncuda_tuning_find(&tuning, PNCUDA_BF16_P12, PNCUDA_BF16, s.rows, s.k, &from, &slice_rows),
              "pncuda_tuning_find");
      const bool never = from == INT64_MAX;
      const char* const how = two == nullptr ? "slices" : "overlap";
      found += std::string(two == nullptr ? " in slices " : ", overlapped ");
      found += never ? format("never up to %lld tokens", static_cast<long long>(tokens))
                     : format("from %lld tokens on", static_cast<long long>(from));
      if (slice_rows != 0) found += format(" (of %lld rows)", static_cast<long long>(slice_rows));
      bench_.report.figures.push_back(
          format("{\"name\": \"p12_switch_%s@%s\", \"value\": %lld, \"unit\": \"tokens\", \"slice_rows\": %lld}", how,
                 name_of(s).c_str(), never ? 0LL : static_cast<long long>(from), static_cast<long long>(slice_rows)));
    }
    const auto usual = plan_of(matmul_args(w, tokens, 0, nullptr)).switch_tokens;
    bench_.report.line(format("%-13s cuBLAS is faster%s; by default from %lld", name_of(s).c_str(), found.c_str(),
                              static_cast<long long>(usual)));
  }

  Overlap overlap_;
#endif

  Bench& bench_;
  std::vector<Shape> shapes_;
  int blas_type_;
  std::unique_ptr<Bytes> packed_, plain_, x_, y_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace

void time_p12(Bench& bench) { P12Timings(bench).run(); }

}  // namespace gpu_bench
