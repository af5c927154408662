// What the fuzz targets share: a property that fails loudly, and a reader of the fuzzer's bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

using Text = std::vector<std::uint8_t>;

[[noreturn]] inline void property_failed(const char* property, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: property failed: %s\n", file, line, property);
  std::abort();
}

// Takes an input apart from the front. Beyond the end everything reads as 0, so that any prefix is an input.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::size_t left() const { return left_; }
  bool empty() const { return left_ == 0; }
  const std::uint8_t* rest() const { return data_; }

  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // 0 .. count - 1.
  std::uint32_t below(std::uint32_t count) { return byte() % count; }
  bool one_in(std::uint32_t count) { return byte() % count == 1; }  // false beyond the end
  template <class T>
  T integer() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(T{byte()} << (8 * i)));
    return value;
  }
  // Copies up to `length` bytes; the rest becomes 0.
  void copy(void* out, std::size_t length) {
    const std::size_t here = std::min(length, left_);
    if (here != 0) std::memcpy(out, data_, here);
    if (length > here) std::memset(static_cast<std::uint8_t*>(out) + here, 0, length - here);
    data_ += here;
    left_ -= here;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace fuzz

#define FUZZ_REQUIRE(property) \
  ((property) ? static_cast<void>(0) : ::fuzz::property_failed(#property, __FILE__, __LINE__))
