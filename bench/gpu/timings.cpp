// gpu_bench: how long kernels take, beside copies of memory and cuBLAS.
//
// Weights rotate over copies that are together larger than twice the L2, so they come from memory. A time is the median
// of several, each of as many calls as take some milliseconds between two events: launched one by one ("us"), and as
// one graph ("graph us"), which hides what a launch costs on the host.
#include <algorithm>
#include <cmath>
#include <memory>

#include "blas.hpp"
#include "kernels.hpp"

#if defined(PN_GPU_BENCH_BLAS)
#include <pncuda/pncuda_blas.h>
#endif

namespace gpu_bench {

namespace {

// ---- Clocks ----

struct Event {
  cudaEvent_t event = nullptr;
  Event() { require(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};
struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

struct Time {
  double plain = 0, graph = 0;  // us of a call; graph is 0 if it was not measured
  double spread = 0;            // half of the repetitions lie within the median +- this, relative
  double best() const { return graph > 0 ? std::min(plain, graph) : plain; }
};

struct Median {
  double value, spread;
};
Median median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double middle = values[values.size() / 2];
  for (double& v : values) v = std::abs(v - middle) / middle;
  std::sort(values.begin(), values.end());
  return {middle, values[values.size() / 2]};
}

class Clock {
 public:
  explicit Clock(const Options& options)
      : repetitions_(options.tiny    ? 1
                     : options.quick ? 5
                                     : 9),
        sample_us_(options.tiny ? 1 : 4000),
        graph_below_us_(options.tiny ? 1e9 : 100) {}

  cudaStream_t stream() const { return stream_.stream; }

  // call(i) launches call i on stream(); i counts up, so that it can rotate over `copies` copies.
  Time measure(int copies, const std::function<void(int)>& call) {
    const auto calls = [&](int count) {
      for (int i = 0; i < count; ++i) call(i);
    };
    calls(copies);  // warm
    const double once = microseconds([&] { calls(copies); }) / copies;
    const int rounds = static_cast<int>(std::clamp(sample_us_ / (once * copies), 1.0, std::max(1.0, 1000.0 / copies)));
    const int count = rounds * copies;
    Time time;
    const Median plain = repeat([&] { calls(count); });
    time.plain = plain.value / count;
    time.spread = plain.spread;
    if (time.plain > graph_below_us_) return time;

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capture");
    calls(count);
    require(cudaStreamEndCapture(stream(), &graph), "capture");
#if defined(PN_HOST_CUDA) || CUDART_VERSION >= 12000
    require(cudaGraphInstantiate(&executable, graph, 0), "a graph");
#else
    require(cudaGraphInstantiateWithFlags(&executable, graph, 0), "a graph");
#endif
    const auto launch = [&] { require(cudaGraphLaunch(executable, stream()), "a graph"); };
    launch();
    const Median in_graph = repeat(launch);
    time.graph = in_graph.value / count;
    time.spread = in_graph.spread;
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    return time;
  }

 private:
  template <class Work>
  double microseconds(Work&& work) {
    require(cudaEventRecord(begin_.event, stream()), "an event");
    work();
    require(cudaEventRecord(end_.event, stream()), "an event");
    require(cudaEventSynchronize(end_.event), "a kernel");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin_.event, end_.event), "an event");
    return std::max(static_cast<double>(milliseconds) * 1e3, 1e-3);
  }
  template <class Work>
  Median repeat(Work&& work) {
    std::vector<double> times;
    for (int i = 0; i < repetitions_; ++i) times.push_back(microseconds(work));
    return median_of(times);
  }

  int repetitions_;
  double sample_us_;
  double graph_below_us_;
  Stream stream_;
  Event begin_, end_;
};

// ---- All of it ----

class Timings {
 public:
  Timings(const Options& options, Machine& machine, std::chrono::steady_clock::time_point begin, Report& report)
      : options_(options), machine_(machine), begin_(begin), report_(report), clock_(options) {}

  void run() {
    const std::size_t beyond_l2 = options_.tiny ? 0 : 2 * machine_.l2 + (std::size_t{1} << 20);
    std::size_t largest = 1, longest = 1;
    for (const int type : {PNCUDA_PN3T, PNCUDA_PN4T})
      for (const Shape s : shapes(options_, machine_, type)) {
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
    beyond_l2_ = beyond_l2;
    const Pattern pattern(options_.tiny ? 1009 : 1000003);
    pattern.fill(native_->get(), native_->size());
    require(cudaMemset(dense_->get(), 0, dense_->size()), "cudaMemset");

    time_memory();
    report_.line(format("%-18s %-9s %-13s %3s %9s %9s %7s %6s %6s %8s %7s %6s  %s", "kernel", "layout", "rows x k", "M",
                        "us", "graph us", "GB/s", "copy%", "peak%", "Gw/s", "cublas", "spread", "note"));
    for (const int type : {PNCUDA_PN4T, PNCUDA_PN3T})
      for (const Shape s : shapes(options_, machine_, type)) {
        time_shape(type, s);
        if (options_.tiny) break;
      }
    if (left_out_ > 0) report_.line(format("%d timings left out: no time left", left_out_));
  }

 private:
  // Copies begin at whole blocks and multiples of 256.
  static std::size_t rounded(std::size_t bytes) { return (bytes + 4351) / 4352 * 4352; }

  std::int64_t most_tokens() const { return options_.tiny ? 16 : 512; }

  bool out_of_time() {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    if (passed.count() < options_.seconds) return false;
    ++left_out_;
    return true;
  }
  // How many copies of this size rotate.
  int copies(std::size_t bytes, std::size_t available) const {
    const std::size_t wanted = beyond_l2_ / rounded(bytes) + 2;
    return static_cast<int>(std::max<std::size_t>(1, std::min(wanted, available / rounded(bytes))));
  }

  void time_memory() {
    const std::size_t half = dense_->size() / 32 * 16;
    std::uint8_t* const to = dense_->get() + half;
    const auto count = static_cast<std::int64_t>(half / 16);
    const auto blocks = static_cast<unsigned>(machine_.multiprocessors * (options_.tiny ? 1 : 16));
    const auto note = [&](const char* name, std::size_t bytes, const std::function<void(int)>& call) {
      const Time time = clock_.measure(1, call);
      const double rate = static_cast<double>(bytes) / time.best() * 1e6;
      machine_.measured = std::max(machine_.measured, rate);
      report_.line(format("%-22s %8.1f GB/s", name, rate / 1e9));
      report_.figures.push_back(format("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"GB/s\"}", name, rate / 1e9));
    };
    note("memory_memcpy", 2 * half, [&](int) {
      require(cudaMemcpyAsync(to, dense_->get(), half, cudaMemcpyDeviceToDevice, clock_.stream()), "cudaMemcpyAsync");
    });
    note("memory_copy", 2 * half, [&](int) {
      require(launch_copy(blocks, clock_.stream(), reinterpret_cast<const uint4*>(dense_->get()),
                          reinterpret_cast<uint4*>(to), count),
              "a launch");
    });
    note("memory_read", 2 * half, [&](int) {
      require(launch_read(blocks, clock_.stream(), reinterpret_cast<const uint4*>(dense_->get()), 2 * count,
                          reinterpret_cast<std::uint32_t*>(y_->get())),
              "a launch");
    });
    report_.line(format("%-22s %8.1f GB/s", "memory_peak", machine_.peak / 1e9));
  }

  // One line: `bytes` are those of the weights, or all that is read and written where there is no other measure.
  void add(const std::string& kernel, const char* layout, Shape shape, std::int64_t tokens, const Time& time,
           std::size_t bytes, double blas_us, const std::string& note) {
    const double rate = static_cast<double>(bytes) / time.best() * 1e6;
    const double weights = static_cast<double>(shape.rows) * static_cast<double>(shape.k) / time.best() * 1e6;
    const auto of = [&](double limit) { return limit > 0 ? 100 * rate / limit : 0; };
    const double ratio = blas_us > 0 ? blas_us / time.best() : 0;
    report_.line(format("%-18s %-9s %-13s %3d %9.2f %9.2f %7.1f %6.1f %6.1f %8.2f %7.2f %5.1f%%  %s", kernel.c_str(),
                        layout, name_of(shape).c_str(), static_cast<int>(tokens), time.plain, time.graph, rate / 1e9,
                        of(machine_.measured), of(machine_.peak), weights / 1e9, ratio, 100 * time.spread,
                        note.c_str()));
    report_.figures.push_back(
        format("{\"name\": \"%s%s%s@%s@M%d\", \"value\": %.2f, \"unit\": \"GB/s\", \"limit\": %.2f, \"note\": \"%s\", "
               "\"us\": %.3f, "
               "\"graph_us\": %.3f, \"weights_per_s\": %.5g, \"of_measured\": %.4f, \"of_peak\": %.4f, "
               "\"speed_over_cublas_fp16\": %.4f, \"spread\": %.4f}",
               kernel.c_str(), layout[0] != '\0' ? "_" : "", layout, name_of(shape).c_str(), static_cast<int>(tokens),
               rate / 1e9, machine_.measured / 1e9, note.c_str(), time.plain, time.graph, weights,
               of(machine_.measured) / 100, of(machine_.peak) / 100, ratio, time.spread));
  }

  // Looking rows up, and the rotation alone.
  template <class Weights>
  void time_small(int type, Shape shape, const Weights& weights) {
    constexpr std::int64_t tokens = 8;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 7919 % shape.rows));
    const Array<std::int32_t> on_device(ids);
    const auto get_rows = [&](int i) {
      const pncuda_weights w = weights(PNCUDA_REPACKED, i);
      pncuda_get_rows_args g = {};
      g.struct_size = sizeof g;
      g.weights = &w;
      g.ids = on_device.get();
      g.count = tokens;
      g.id_bytes = 4;
      g.out_type = PNCUDA_F16;
      g.out = y_->get();
      g.out_stride = shape.k * 2;
      require(pncuda_get_rows(&g, clock_.stream()), "pncuda_get_rows");
    };
    const Shape looked_up = {tokens, shape.k};
    add(std::string("get_rows_") + name_of_type(type), "repacked", looked_up, tokens, clock_.measure(1, get_rows),
        weight_bytes(type, looked_up) + static_cast<std::size_t>(tokens * shape.k) * 2, 0, "bytes read and written");
    const int block = hadamard_block_of(shape.k);
    if (type != PNCUDA_PN4T || block == 0) return;
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
        clock_.measure(1, [&](int) { require(pncuda_hadamard(&h, clock_.stream()), "pncuda_hadamard"); }),
        static_cast<std::size_t>(tokens * shape.k) * 4, 0, "bytes read and written, of the L2");
  }

  void time_shape(int type, Shape shape) {
    if (out_of_time()) return;
    const std::size_t bytes = weight_bytes(type, shape);
    const std::size_t dense_bytes = static_cast<std::size_t>(shape.rows * shape.k) * 2;
    const int count = copies(bytes, native_->size()), dense_count = copies(dense_bytes, dense_->size());
    const auto copy = [&](const Bytes& all, std::size_t size, int i, int of) {
      return all.get() + rounded(size) * static_cast<std::size_t>(i % of);
    };
    const auto weights = [&](int layout, int i) {
      return make_weights(type, layout, copy(layout == PNCUDA_NATIVE ? *native_ : *repacked_, bytes, i, count), shape);
    };
    const std::string block_type = name_of_type(type);

    // Repacking and decoding: every copy, so that what follows has its weights.
    const auto repack = [&](int i) {
      const pncuda_weights w = weights(PNCUDA_NATIVE, i);
      require(pncuda_repack(&w, copy(*repacked_, bytes, i, count), clock_.stream()), "pncuda_repack");
    };
    add("repack_" + block_type, "", shape, 0, clock_.measure(count, repack), 2 * bytes, 0, "bytes read and written");
    for (const int layout : {PNCUDA_NATIVE, PNCUDA_REPACKED}) {
      const auto decode = [&](int i) {
        const pncuda_weights w = weights(layout, i % count);
        pncuda_decode_args d = {};
        d.struct_size = sizeof d;
        d.weights = &w;
        d.rows = shape.rows;
        d.columns = shape.k;
        d.out = copy(*dense_, dense_bytes, i, dense_count);
        d.out_stride = shape.k * 2;
        d.out_type = PNCUDA_F16;
        require(pncuda_decode(&d, clock_.stream()), "pncuda_decode");
      };
      add("decode_" + block_type, name_of_layout(layout), shape, 0,
          clock_.measure(std::max(count, dense_count), decode), bytes + dense_bytes, 0,
          "bytes read and written; to fp16");
    }

    time_small(type, shape, weights);

    std::map<std::int64_t, double> blas_us;
    const auto time_blas = [&](int element, std::int64_t tokens) {
      if (!blas_.there() || out_of_time()) return;
      const Time time = clock_.measure(dense_count, [&](int i) {
        blas_.multiply(element, shape, copy(*dense_, dense_bytes, i, dense_count), x_->get(), tokens, y_->get(),
                       clock_.stream());
      });
      if (element == PNCUDA_F16) blas_us[tokens] = time.best();
      if (type == PNCUDA_PN4T)  // once is enough
        add(std::string("cublas_") + name_of_element(element), "", shape, tokens, time, dense_bytes, blas_us[tokens],
            "");
    };
    for (const std::int64_t tokens : {1, 2, 4, 8}) time_blas(PNCUDA_F16, tokens);
    if (machine_.major >= 8) time_blas(PNCUDA_BF16, 1);

    const auto time_gemv = [&](const char* name, int layout, std::int64_t tokens, int x_type, int mode, int hadamard) {
      if (out_of_time()) return;
      const auto arguments = [&](const pncuda_weights& w) {
        return make_gemv(w, x_type == PNCUDA_F32 ? x32_->get() : x_->get(), x_type, tokens, y_->get(), x_type, mode,
                         hadamard);
      };
      const pncuda_weights first = weights(layout, 0);
      const pncuda_gemv_args a = arguments(first);
      pncuda_gemv_plan plan = {};
      plan.struct_size = sizeof plan;
      require(pncuda_gemv_query(&a, &plan), "pncuda_gemv_query");
      const Time time = clock_.measure(count, [&](int i) {
        const pncuda_weights w = weights(layout, i);
        const pncuda_gemv_args one = arguments(w);
        require(pncuda_gemv(&one, clock_.stream()), "pncuda_gemv");
      });
      add(name + ("_" + block_type), name_of_layout(layout), shape, tokens, time, bytes, blas_us[tokens],
          format("%s, %d launches, %d bytes shared", name_of_path(plan.path), plan.launches, plan.shared_bytes));
    };
    for (const std::int64_t tokens : {1, 2, 4, 8})
      time_gemv("gemv", PNCUDA_REPACKED, tokens, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    if (machine_.major < 8)
      for (const std::int64_t tokens : {1, 2, 4, 8})
        time_gemv("gemv_half2", PNCUDA_REPACKED, tokens, PNCUDA_F16, PNCUDA_FAST_HALF2, 0);
    time_gemv("gemv", PNCUDA_NATIVE, 1, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    time_gemv("gemv", PNCUDA_NATIVE, 8, PNCUDA_F16, PNCUDA_ACCURATE, 0);
    time_gemv("gemv_f32", PNCUDA_REPACKED, 1, PNCUDA_F32, PNCUDA_ACCURATE, 0);
    time_gemv("gemv_f32", PNCUDA_REPACKED, 8, PNCUDA_F32, PNCUDA_ACCURATE, 0);
    if (const int block = hadamard_block_of(shape.k); block != 0)
      time_gemv("gemv_rotated", PNCUDA_REPACKED, 1, PNCUDA_F16, PNCUDA_ACCURATE, block);

#if defined(PN_GPU_BENCH_BLAS)
    if (shape.rows > 20000) return;
    for (const std::int64_t tokens : {16, 32, 64, 128, 512}) {
      if (tokens > most_tokens()) continue;
      time_blas(PNCUDA_F16, tokens);
      if (!blas_.there() || out_of_time()) continue;
      pncuda_matmul_args m = {};
      m.struct_size = sizeof m;
      m.x = x_->get();
      m.x_stride = shape.k * 2;
      m.x_type = PNCUDA_F16;
      m.y_type = PNCUDA_F16;
      m.y = y_->get();
      m.y_stride = shape.rows * 2;
      m.tokens = tokens;
      const pncuda_weights first = weights(PNCUDA_REPACKED, 0);
      m.weights = &first;
      pncuda_matmul_plan plan = {};
      plan.struct_size = sizeof plan;
      require(pncuda_matmul_query(&m, &plan), "pncuda_matmul_query");
      const Bytes workspace(plan.workspace_size_best);
      m.workspace = workspace.get();
      m.workspace_size = workspace.size();
      const Time time = clock_.measure(count, [&](int i) {
        const pncuda_weights w = weights(PNCUDA_REPACKED, i);
        m.weights = &w;
        require(pncuda_matmul(&m, static_cast<pncuda_blas_handle>(blas_.handle()), clock_.stream()), "pncuda_matmul");
      });
      add("matmul_" + block_type, "repacked", shape, tokens, time, bytes, blas_us[tokens],
          format("%s, slices of %d rows", plan.way == PNCUDA_MATMUL_BLAS ? "decoded for cuBLAS" : "gemv",
                 static_cast<int>(plan.slice_rows)));
    }
#endif
  }

  const Options& options_;
  Machine& machine_;
  std::chrono::steady_clock::time_point begin_;
  Report& report_;
  Clock clock_;
  Blas blas_;
  std::unique_ptr<Bytes> native_, repacked_, dense_, x_, x32_, y_;
  std::size_t beyond_l2_ = 0;
  int left_out_ = 0;
};

}  // namespace

void time_kernels(const Options& options, Machine& machine, std::chrono::steady_clock::time_point begin,
                  Report& report) {
  Timings(options, machine, begin, report).run();
}

}  // namespace gpu_bench
