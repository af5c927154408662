// Some columns matter more: an importance matrix says so (the mean square of each column's activations, as llama.cpp's
// llama-imatrix writes it). Quantizes rows with and without, through pn::cpu, and compares what the error costs.
//
//   g++ -std=c++17 -O2 examples/importance.cpp $(pkg-config --cflags --libs pn-cpu) -o build/importance
//   build/importance
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <pn/cpu.hpp>
#include <random>
#include <vector>

namespace {

using T = pn::pn4t;
constexpr std::size_t rows = 64, k = 1024, stride = pn::row_bytes<T>(k);

// Of all rows: the sum of importance * error^2, relative to that of importance * weight^2, per weight.
double cost(const std::vector<float>& weights, const std::vector<double>& importance,
            const std::vector<std::uint8_t>& blocks) {
  std::vector<float> decoded(rows * k);
  if (pn::cpu::dequantize_rows<T>(blocks.data(), stride, rows, 0, k, decoded.data(), pn::cpu::Element::f32,
                                  k * sizeof(float)) != pn::Status::ok)
    return NAN;
  double error = 0, power = 0;
  for (std::size_t i = 0; i < rows * k; ++i) {
    const double w = static_cast<double>(weights[i]), difference = w - static_cast<double>(decoded[i]);
    error += importance[i % k] * difference * difference;
    power += importance[i % k] * w * w;
  }
  return error / power;
}

std::vector<std::uint8_t> quantize(const std::vector<float>& weights, const double* importance) {
  std::vector<std::uint8_t> blocks(rows * stride);
  pn::cpu::Fault fault;
  const pn::Status status = pn::cpu::quantize_rows<T>(weights.data(), pn::cpu::Element::f32, k * sizeof(float), rows, k,
                                                      importance, blocks.data(), stride, &fault);
  if (status != pn::Status::ok) {
    std::fprintf(stderr, "row %zu, column %zu: %s\n", fault.row, fault.index, pn::status_text(status));
    blocks.clear();
  }
  return blocks;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> weights(rows * k);
  for (float& w : weights) w = normal(random);
  // A few columns see activations a hundred times as large as the others do.
  std::vector<double> importance(k);
  for (std::size_t i = 0; i < k; ++i) importance[i] = i % 37 == 0 ? 1e4 : 1.0;

  const std::vector<std::uint8_t> plain = quantize(weights, nullptr), weighted = quantize(weights, importance.data());
  if (plain.empty() || weighted.empty()) return 1;
  const double without = cost(weights, importance, plain), with = cost(weights, importance, weighted);
  std::printf("weighted error of %s: %.2e without importance, %.2e with it: %.1f times less\n", T::name, without, with,
              without / with);
  return with < without ? 0 : 1;
}
