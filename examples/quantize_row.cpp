// How much does a row of weights lose in pn4t and pn3t, and are the blocks whole? Quantizes a row, validates it, reads
// it back. Headers only:
//
//   g++ -std=c++17 -O2 -Iinclude examples/quantize_row.cpp -o build/quantize_row && build/quantize_row
#include <cmath>
#include <cstdio>
#include <pn/pn.hpp>
#include <random>
#include <vector>

namespace {

// A multiple of the 80 weights of a pn3t block and of the 64 of a pn4t block: what K must be.
constexpr std::size_t k = 5120;

template <class T>
bool quantize(const std::vector<float>& row) {
  std::vector<pn::Block34> blocks(pn::block_count<T>(k));
  std::size_t bad = 0;
  const pn::Status status = pn::quantize_row<T>(row.data(), k, blocks.data(), &bad);
  if (status != pn::Status::ok) {
    std::fprintf(stderr, "%s: weight %zu: %s\n", T::name, bad, pn::status_text(status));
    return false;
  }

  // What a loader does with blocks from a file that it does not trust.
  if (pn::validate_row<T>(blocks.data(), k, &bad) != pn::Status::ok) return false;
  std::vector<float> decoded(k);
  if (pn::decode_row<T>(blocks.data(), k, decoded.data()) != pn::Status::ok) return false;

  double error = 0, power = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const double w = static_cast<double>(row[i]), difference = w - static_cast<double>(decoded[i]);
    error += difference * difference;
    power += w * w;
  }
  const double nrmse = std::sqrt(error / power);
  std::printf("%s: %zu bytes instead of %zu, NRMSE %.3f\n", T::name, pn::row_bytes<T>(k), k * sizeof(float), nrmse);
  return nrmse < (T::bits == 3 ? 0.20 : 0.10);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> row(k);
  for (float& w : row) w = normal(random);
  if (!quantize<pn::pn4t>(row) || !quantize<pn::pn3t>(row)) return 1;

  row[4000] = std::nanf("");  // is refused, and the place told
  return quantize<pn::pn4t>(row) ? 1 : 0;
}
