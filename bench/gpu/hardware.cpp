// gpu_bench: what the kernels take for granted and only a GPU can answer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench.hpp"
#include "kernels.hpp"

namespace gpu_bench {

namespace {

using Halves = std::vector<std::uint16_t>;

std::vector<float> product(const Halves& a, const Halves& b) {
  const Array<std::uint16_t> left(a), right(b);
  const Array<float> d(16 * 8);
  require(launch_multiply(left.get(), right.get(), d.get()), "a launch");
  require(cudaDeviceSynchronize(), "a kernel");
  return d.values();
}

bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

// Subnormal codes n * 2^-24 times whole numbers of `unit`: exact, and zero if such operands are flushed.
bool mma_is_exact(bool subnormal_a, bool subnormal_b) {
  Halves a(16 * 16), b(8 * 16);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = subnormal_a ? static_cast<std::uint16_t>(i * 7 % 1024) : pn::float_to_half(static_cast<float>(i * 7 % 64));
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = subnormal_b ? static_cast<std::uint16_t>(i * 5 % 64)
                       : pn::float_to_half(static_cast<float>(i * 5 % 64) - 31.0f);
  const auto d = product(a, b);
  bool exact = true;
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t column = 0; column < 8; ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < 16; ++k)
        sum += static_cast<double>(pn::half_to_float(a[row * 16 + k])) *
               static_cast<double>(pn::half_to_float(b[column * 16 + k]));
      exact &= d[row * 8 + column] == static_cast<float>(sum);
    }
  return exact;
}

Halves random_halves(std::size_t count, unsigned seed) {
  Halves made;
  for (const float v : normal_numbers(count, seed)) made.push_back(pn::float_to_half(v));
  return made;
}

bool columns_are_apart() {
  const Halves a = random_halves(16 * 16, 1);
  const Halves b = random_halves(8 * 16, 2);
  const auto clean = product(a, b);
  bool apart = true;
  for (std::size_t bad = 0; bad < 8; ++bad)
    for (const unsigned garbage : {0x7E00u, 0x7C00u, 0xFC00u, 0x7BFFu, 0x0001u}) {
      Halves dirty = b;
      for (std::size_t k = 0; k < 16; ++k) dirty[bad * 16 + k] = static_cast<std::uint16_t>(garbage);
      const auto d = product(a, dirty);
      for (std::size_t i = 0; i < d.size(); ++i) apart &= i % 8 == bad || same(d[i], clean[i]);
    }
  return apart;
}

bool columns_do_not_depend_on_place() {
  const Halves a = random_halves(16 * 16, 3);
  const Halves one = random_halves(16, 4);
  bool equal = true;
  float first[16];
  for (std::size_t place = 0; place < 8; ++place) {
    Halves b = random_halves(8 * 16, 5 + static_cast<unsigned>(place));
    std::copy(one.begin(), one.end(), b.begin() + static_cast<std::ptrdiff_t>(place * 16));
    const auto d = product(a, b);
    for (std::size_t row = 0; row < 16; ++row) {
      if (place == 0) first[row] = d[row * 8];
      equal &= same(d[row * 8 + place], first[row]);
    }
  }
  return equal;
}

// Subnormal numbers times a power of two, to normal results and to subnormal ones.
bool ffma_keeps_subnormals() {
  std::vector<std::uint32_t> a(32), b(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    a[i] = (i + 1) << i % 20;
    b[i] = (i % 2 == 0 ? 127u + 100u : 127u) << 23;
  }
  const Array<std::uint32_t> left(a), right(b), d(32);
  require(launch_multiply_add(left.get(), right.get(), d.get()), "a launch");
  const auto got = d.values();
  bool kept = true;
  for (std::size_t i = 0; i < 32; ++i) {
    const float exact = std::ldexp(pn::detail::bit_cast<float>(a[i]), i % 2 == 0 ? 100 : 0);
    kept &= got[i] == pn::detail::bit_cast<std::uint32_t>(exact);
  }
  return kept;
}

bool hfma2_keeps_subnormals() {
  std::vector<std::uint32_t> a(32), b(32);
  for (std::uint32_t i = 0; i < 32; ++i) {
    a[i] = (i + 1) | (1023 - i) << 16;
    b[i] = (i % 2 == 0 ? 0x6400u : 0x3C00u) * 0x00010001u;  // 1024 and 1
  }
  const Array<std::uint32_t> left(a), right(b), d(64);
  require(launch_multiply_add_half2(left.get(), right.get(), d.get()), "a launch");
  const auto got = d.values();
  bool kept = true;
  for (std::size_t i = 0; i < 64; ++i)
    for (const unsigned shift : {0u, 16u}) {
      const float times = i % 2 == 0 ? 1024.0f : 1.0f;
      const auto code = static_cast<std::uint16_t>(a[i % 32] >> shift & 0xFFFFu);
      kept &= (got[i] >> shift & 0xFFFFu) == pn::float_to_half(pn::half_to_float(code) * times);
    }
  return kept;
}

}  // namespace

void ask_hardware(const Machine& machine, Report& report) {
  const auto answer = [&](const char* question, bool yes) {
    report.line(std::string(yes ? "yes  " : "NO   ") + question);
    report.expect(yes, question);
  };
  answer("fp32 multiply-adds keep subnormal operands and results", ffma_keeps_subnormals());
  answer("fp16 products and multiply-adds keep subnormal operands and results", hfma2_keeps_subnormals());
  if (machine.major < 8) return;
  answer("mma.m16n8k16 keeps subnormal operands on the left: products are exact", mma_is_exact(true, false));
  answer("mma.m16n8k16 keeps subnormal operands on the right: products are exact", mma_is_exact(false, true));
  answer("mma.m16n8k16: NaN, infinities and garbage in a column leave the bits of the others alone",
         columns_are_apart());
  answer("mma.m16n8k16: a column's bits depend neither on its place nor on the others",
         columns_do_not_depend_on_place());
}

}  // namespace gpu_bench
