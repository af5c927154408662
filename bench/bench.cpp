#include "bench.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

namespace bench {
namespace {

// Threads that live as long as one benchmark and run job after job with a barrier behind each.
class Team {
 public:
  explicit Team(unsigned threads) : threads_(threads) {
    for (unsigned t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  }
  ~Team() {
    job_ = nullptr;
    begun_.fetch_add(1, std::memory_order_release);
    for (std::thread& worker : workers_) worker.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(const Job& job) {
    job.begin();
    job_ = &job;
    left_.store(threads_ - 1, std::memory_order_relaxed);
    begun_.fetch_add(1, std::memory_order_release);
    share(job, 0);
    wait([&] { return left_.load(std::memory_order_acquire) == 0; });
  }

 private:
  void share(const Job& job, unsigned t) const {
    const std::size_t first = job.rows * t / threads_;
    const std::size_t last = job.rows * (t + 1) / threads_;
    if (first < last) job.run(first, last);
  }

  void work(unsigned t) {
    for (unsigned seen = 0;;) {
      wait([&] { return begun_.load(std::memory_order_acquire) != seen; });
      ++seen;
      if (job_ == nullptr) return;
      share(*job_, t);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  template <class Condition>
  static void wait(Condition condition) {
    for (int spins = 0; !condition(); ++spins)
      if (spins > 20000) std::this_thread::yield();
  }

  unsigned threads_;
  std::vector<std::thread> workers_;
  const Job* job_ = nullptr;
  std::atomic<unsigned> begun_{0};
  std::atomic<unsigned> left_{0};
};

struct Lazy {
  std::string name;
  MakeJob make;
  std::unique_ptr<Job> job;

  const Job& get() {
    if (job) return *job;
    job = std::make_unique<Job>(make());
    job->begin();
    job->run(0, job->rows);
    if (!job->agrees()) fail(name + ": the result differs from the reference");
    return *job;
  }
};

void time(benchmark::State& state, const Job& job, unsigned threads) {
  Team team(threads);
  for ([[maybe_unused]] auto _ : state) team.run(job);
  if (job.rest) job.rest();
  const auto rate = [&](std::size_t amount) {
    return benchmark::Counter(static_cast<double>(amount), benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["weights"] = rate(job.weights);
  state.counters["read"] = rate(job.read);
  state.counters["written"] = rate(job.written);
}

}  // namespace

void fail(const std::string& what) {
  std::fprintf(stderr, "bench: %s\n", what.c_str());
  std::_Exit(1);
}

void require(pn::Status status) {
  if (status != pn::Status::ok) fail(pn::status_text(status));
}

unsigned thread_count() { return std::max(1u, std::thread::hardware_concurrency()); }

void add(const std::string& name, MakeJob make, Threads threads) {
  auto lazy = std::make_shared<Lazy>(Lazy{name, std::move(make), nullptr});
  const auto with = [&](const std::string& as, unsigned count) {
    benchmark::RegisterBenchmark(as.c_str(),
                                 [lazy, count](benchmark::State& state) { time(state, lazy->get(), count); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  with(name, 1);
  if (threads == Threads::one_and_all) with(name + "@all", thread_count());
}

std::string shape_suffix(std::size_t k) { return k == row_lengths[0] ? "" : "@K" + std::to_string(k); }

Job gemv_job(const Gemv& gemv) {
  struct State {
    Gemv gemv;
    std::vector<float> x;
    Memory prepared;
    std::vector<float> y;
    const std::uint8_t* weights = nullptr;
  };
  auto state = std::make_shared<State>();
  state->gemv = gemv;
  state->x = activations(gemv.tokens * gemv.k);
  state->prepared = allocate(gemv.prepared_bytes);
  Job job;
  job.rows = gemv.weights / gemv.k;
  job.weights = job.rows * gemv.k * gemv.tokens;
  job.read = job.rows * gemv.row_bytes;
  state->y.resize(job.rows * gemv.tokens);
  job.begin = [state, bytes = job.read] {
    state->weights = state->gemv.set->take(bytes);
    state->gemv.prepare(state->x.data(), state->prepared.get());
  };
  job.run = [state, rows = job.rows](std::size_t first, std::size_t last) {
    const Gemv& g = state->gemv;
    g.multiply(state->weights + first * g.row_bytes, last - first, state->prepared.get(), state->y.data() + first,
               rows);
  };
  job.agrees = [state, rows = job.rows] {
    const Gemv& g = state->gemv;
    std::vector<float> row(g.k);
    for (const std::size_t n : {std::size_t{0}, rows / 2, rows - 1}) {
      g.decode(state->weights + n * g.row_bytes, row.data());
      for (std::size_t m = 0; m < g.tokens; ++m) {
        double exact = 0, products = 0, weights = 0, largest = 0;
        for (std::size_t i = 0; i < g.k; ++i) {
          const double w = static_cast<double>(row[i]);
          const double x = static_cast<double>(state->x[m * g.k + i]);
          exact += w * x;
          products += std::abs(w * x);
          weights += std::abs(w);
          largest = std::max(largest, std::abs(x));
        }
        const double slack = (static_cast<double>(g.k) / 16 + 64) * 0x1p-24 * products + g.x_error * largest * weights;
        const double y = static_cast<double>(state->y[m * rows + n]);
        if (!(std::abs(y - exact) <= slack)) return false;
      }
    }
    return true;
  };
  return job;
}

Job stream_job(const Stream& stream) {
  struct State {
    Stream stream;
    const std::uint8_t* in = nullptr;
    std::uint8_t* out = nullptr;
  };
  auto state = std::make_shared<State>(State{stream});
  Job job;
  job.rows = stream.weights / stream.k;
  job.weights = job.rows * stream.k;
  job.read = job.rows * stream.in_bytes;
  job.written = job.rows * stream.out_bytes;
  job.begin = [state, read = job.read, written = job.written] {
    state->in = state->stream.set->take(read);
    if (written != 0) state->out = result_set().take(written);
  };
  job.run = [state](std::size_t first, std::size_t last) {
    const Stream& s = state->stream;
    s.run(state->in + first * s.in_bytes, last - first, state->out + first * s.out_bytes);
  };
  job.agrees = [state, rows = job.rows] {
    const Stream& s = state->stream;
    for (const std::size_t n : {std::size_t{0}, rows / 2, rows - 1})
      if (!s.agrees(state->in + n * s.in_bytes, state->out + n * s.out_bytes)) return false;
    return true;
  };
  return job;
}

Job look_up_job(const LookUp& look_up) {
  struct State {
    LookUp look_up;
    std::size_t rows;
    std::vector<std::int64_t> ids;
    std::size_t at = 0;
    std::uint8_t* out = nullptr;
  };
  Job job;
  job.rows = 1024;
  job.weights = job.rows * look_up.k;
  job.read = job.rows * look_up.in_bytes;
  job.written = job.rows * look_up.out_bytes;
  const std::size_t rows = look_up.set->bytes() / look_up.in_bytes;
  auto state = std::make_shared<State>(State{look_up, rows, {}});
  state->ids.resize(rows / job.rows * job.rows);
  std::mt19937_64 random(3);
  std::uniform_int_distribution<std::int64_t> any(0, static_cast<std::int64_t>(rows) - 1);
  for (std::int64_t& id : state->ids) id = any(random);
  job.begin = [state, n = job.rows, bytes = job.written] {
    state->at = (state->at + n) % state->ids.size();
    state->out = result_set().take(bytes);
  };
  job.run = [state](std::size_t first, std::size_t last) {
    const LookUp& l = state->look_up;
    l.run(l.set->data(), state->rows, state->ids.data() + state->at + first, last - first,
          state->out + first * l.out_bytes);
  };
  job.agrees = [state] {
    const LookUp& l = state->look_up;
    const std::size_t id = static_cast<std::size_t>(state->ids[state->at + 5]);
    return l.agrees(l.set->data() + id * l.in_bytes, state->out + 5 * l.out_bytes);
  };
  return job;
}

}  // namespace bench
