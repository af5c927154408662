// What the tests of both formats share: bits of floats, a seeded generator, files, and the fenced blocks of a page.
#ifndef PN_TESTS_TESTING_HPP
#define PN_TESTS_TESTING_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace testing {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline std::uint64_t bits_of(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline double double_of(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The value of an fp16 that is not a NaN, from the definition.
inline double half_value(unsigned half) {
  const int exponent = static_cast<int>((half >> 10) & 31u);
  const int mantissa = static_cast<int>(half & 0x3FFu);
  const double magnitude = exponent == 31  ? HUGE_VAL
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(mantissa + 1024, exponent - 25);
  return (half & 0x8000u) != 0 ? -magnitude : magnitude;
}
inline bool half_is_nan(unsigned half) { return (half & 0x7FFFu) > 0x7C00u; }

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t next32() { return static_cast<std::uint32_t>(next() >> 32); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  int between(int low, int high) { return low + static_cast<int>(below(static_cast<std::size_t>(high - low + 1))); }
  bool coin() { return (next() >> 63) != 0; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double gauss() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(next() >> 56); }

 private:
  std::uint64_t state_;
};

// The whole file; empty when it cannot be read.
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// A file of little-endian values of an unsigned type.
template <class T>
std::vector<T> read_little_endian(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t value = 0;
    for (std::size_t b = 0; b < sizeof(T); ++b)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i * sizeof(T) + b])) << (8 * b);
    values[i] = static_cast<T>(value);
  }
  return values;
}

// The words inside the fenced code blocks whose info string is `info`, in the section of a Markdown page that starts
// with the line `heading` and ends at the next "## " line. Empty when the section or the fence is missing.
inline std::vector<std::string> fenced_words(const std::string& page, const std::string& heading,
                                             const std::string& info) {
  std::istringstream lines(page);
  std::vector<std::string> words;
  std::string line;
  std::string fence;  // info string of the block we are in, with its ticks
  bool in_section = false;
  while (std::getline(lines, line)) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    const bool is_fence = line.rfind("```", 0) == 0;
    if (!fence.empty()) {
      if (is_fence) {
        fence.clear();
      } else if (in_section && fence == "```" + info) {
        std::istringstream in_line(line);
        for (std::string word; in_line >> word;) words.push_back(word);
      }
    } else if (is_fence) {
      fence = line;
    } else if (line.rfind("## ", 0) == 0) {
      in_section = line == heading;
    }
  }
  return words;
}

}  // namespace testing

#endif  // PN_TESTS_TESTING_HPP
