// For ThreadSanitizer: several threads use the library for the first time at once, then share out the rows of
// multiplies with activations that were prepared once. Any data race ends the program; so does a result that is not
// that of one thread.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <pn/cpu.hpp>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t threads = 4, rows = 64, k = 1280, tokens = 3;

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "race: %s\n", what);
  std::_Exit(1);
}

// Calls body(i) on every thread, all at once.
void on_all(const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> ready{0};
  std::vector<std::thread> pool;
  for (std::size_t i = 0; i < threads; ++i)
    pool.emplace_back([&, i] {
      ++ready;
      while (ready < threads) std::this_thread::yield();
      body(i);
    });
  for (std::thread& thread : pool) thread.join();
}

struct alignas(64) Line {
  unsigned char bytes[64];
};

// Multiplies with one thread and with all; `multiply` takes prepared activations, a range of rows and its results.
void compare(std::size_t bytes, const std::function<pn::Status(void*)>& prepare,
             const std::function<pn::Status(const void*, std::size_t, std::size_t, float*)>& multiply) {
  std::vector<Line> prepared(bytes / 64);
  require(prepare(prepared.data()) == pn::Status::ok, "does not prepare");
  std::vector<float> alone(tokens * rows), shared(tokens * rows);
  require(multiply(prepared.data(), 0, rows, alone.data()) == pn::Status::ok, "does not multiply");
  on_all([&](std::size_t i) {
    const std::size_t first = i * rows / threads, last = (i + 1) * rows / threads;
    require(multiply(prepared.data(), first, last, shared.data() + first) == pn::Status::ok, "does not multiply");
  });
  require(std::memcmp(alone.data(), shared.data(), 4 * alone.size()) == 0, "threads give other results");
}

}  // namespace

int main() {
  std::vector<float> x(tokens * k), w(rows * k);
  std::uint32_t state = 1;
  for (auto* values : {&x, &w})
    for (float& value : *values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int>(state >> 16) - 32768) / 65536.0f;
    }

  // The first use of the library, from all threads at once.
  std::vector<pn::Block34> blocks(rows * k / 64);
  std::atomic<int> failed{0};
  on_all([&](std::size_t i) {
    const std::size_t first = i * rows / threads, count = rows / threads;
    if (pn::cpu::quantize_rows<pn::pn4t>(&w[first * k], pn::cpu::Element::f32, 4 * k, count, k, nullptr,
                                         &blocks[first * k / 64], k / 64 * 34) != pn::Status::ok)
      ++failed;
    if (pn::cpu::isas().size() == 0) ++failed;
  });
  require(failed == 0, "does not quantize");

  std::vector<std::uint16_t> weights(rows * k);
  for (std::size_t e = 0; e < weights.size(); ++e)
    weights[e] = static_cast<std::uint16_t>(0x3C00u | (e * 40503u & 0x83FFu));
  std::vector<p12::Block392> packed(rows * k / 256);
  on_all([&](std::size_t i) {
    const std::size_t first = i * rows / threads, count = rows / threads;
    if (p12::cpu::pack_rows(&weights[first * k], 2 * k, count, k, &packed[first * k / 256], k / 256 * 392) !=
        pn::Status::ok)
      ++failed;
  });
  require(failed == 0, "does not pack");

  for (const pn::cpu::Isa isa : pn::cpu::isas()) {
    for (const auto kind : {pn::cpu::Activations::f32, pn::cpu::Activations::i16, pn::cpu::Activations::q8_0})
      compare(
          pn::cpu::activations_bytes<pn::pn4t>(kind, tokens, k),
          [&](void* out) {
            return pn::cpu::prepare_activations<pn::pn4t>(kind, x.data(), 4 * k, tokens, k, out, nullptr, isa);
          },
          [&](const void* prepared, std::size_t first, std::size_t last, float* y) {
            return pn::cpu::multiply<pn::pn4t>(&blocks[first * k / 64], k / 64 * 34, last - first, k, prepared, y,
                                               4 * rows);
          });
    for (const auto kind : {pn::cpu::Activations::f32, pn::cpu::Activations::i16, pn::cpu::Activations::q8_0})
      compare(
          pn::cpu::batch_bytes<pn::pn4t>(kind, tokens, k),
          [&](void* out) {
            return pn::cpu::prepare_batch<pn::pn4t>(kind, x.data(), 4 * k, tokens, k, out, nullptr, isa);
          },
          [&](const void* prepared, std::size_t first, std::size_t last, float* y) {
            return pn::cpu::multiply_batch<pn::pn4t>(&blocks[first * k / 64], k / 64 * 34, last - first, k, prepared,
                                                     tokens, y, 4 * rows);
          });
    const auto prepare = [&](void* out) { return p12::cpu::prepare_activations(x.data(), 4 * k, tokens, k, out, isa); };
    compare(p12::cpu::activations_bytes(tokens, k), prepare,
            [&](const void* prepared, std::size_t first, std::size_t last, float* y) {
              return p12::cpu::multiply(&packed[first * k / 256], k / 256 * 392, last - first, k, prepared, y,
                                        4 * rows);
            });
    compare(p12::cpu::activations_bytes(tokens, k), prepare,
            [&](const void* prepared, std::size_t first, std::size_t last, float* y) {
              return p12::cpu::multiply_bf16(&weights[first * k], 2 * k, last - first, k, prepared, y, 4 * rows);
            });
  }
  std::puts("no data race");
  return 0;
}
