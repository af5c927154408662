// gpu_bench: clocks, and what the timings share.
#pragma once

#include <algorithm>
#include <cmath>

#include "blas.hpp"

namespace gpu_bench {

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
inline Median median_of(std::vector<double> values) {
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
    const int repetitions = once * copies > 50e3 ? std::min(repetitions_, 3) : repetitions_;
    const int rounds = static_cast<int>(std::clamp(sample_us_ / (once * copies), 1.0, std::max(1.0, 1000.0 / copies)));
    const int count = rounds * copies;
    Time time;
    const Median plain = repeat(repetitions, [&] { calls(count); });
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
    const Median in_graph = repeat(repetitions, launch);
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
  Median repeat(int repetitions, Work&& work) {
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) times.push_back(microseconds(work));
    return median_of(times);
  }

  int repetitions_;
  double sample_us_;
  double graph_below_us_;
  Stream stream_;
  Event begin_, end_;
};

// What timings need.
struct Bench {
  const Options& options;
  Machine& machine;
  Report& report;
  Clock clock;
  Blas blas;
  std::chrono::steady_clock::time_point end;  // nothing new is timed after that
  int left_out = 0;                           // timings

  Bench(const Options& o, Machine& m, std::chrono::steady_clock::time_point begin, Report& r)
      : options(o),
        machine(m),
        report(r),
        clock(o),
        end(begin +
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(o.seconds))) {
  }
  bool out_of_time() {
    if (std::chrono::steady_clock::now() < end) return false;
    ++left_out;
    return true;
  }
  // Bytes that rotate, at least.
  std::size_t beyond_l2() const { return options.tiny ? 0 : 2 * machine.l2 + (std::size_t{1} << 20); }
};

// timings_p12.cpp: "P12 against BF16". Takes no more than half of the time that is left.
void time_p12(Bench& bench);

}  // namespace gpu_bench
