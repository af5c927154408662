// An engine that reads a BF16_P12 tensor from a GGUF file and multiplies with it as it lies there: no BF16 copy exists.
//
//   pnpack pack model.gguf model.p12.gguf
//   g++ -std=c++17 -O2 examples/multiply_gguf.cpp $(pkg-config --cflags --libs pn-cpu) -o build/multiply_gguf
//   build/multiply_gguf model.p12.gguf blk.0.ffn_down.weight
//
// The reader is the least that works: GGUF version 3, little-endian, one file. Sizes in a header are not to be trusted,
// so each read is checked against the end of the file.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Bytes = std::vector<unsigned char>;

struct Reader {
  const Bytes& file;
  std::size_t at = 0;
  const unsigned char* take(std::uint64_t bytes) {
    if (bytes > file.size() - at) throw std::runtime_error("the file ends inside its header");
    at += static_cast<std::size_t>(bytes);
    return file.data() + at - bytes;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    return {reinterpret_cast<const char*>(take(size)), static_cast<std::size_t>(size)};
  }
  // Of a key; integers up to 32 bits are given back, all others are stepped over.
  // NOLINTNEXTLINE(misc-no-recursion): not deeper than four
  std::uint32_t value(std::uint32_t type, int depth = 0) {
    constexpr std::uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 4) return number<std::uint32_t>();
    if (type == 8) return text(), 0;
    if (type == 9) {
      const auto element = number<std::uint32_t>();
      const auto count = number<std::uint64_t>();
      if (depth > 3) throw std::runtime_error("arrays in arrays in arrays");
      for (std::uint64_t i = 0; i < count; ++i) value(element, depth + 1);
      return 0;
    }
    if (type >= std::size(sizes)) throw std::runtime_error("a key of an unknown type");
    take(sizes[type]);
    return 0;
  }
};

struct Tensor {
  std::uint64_t rows = 1, k = 0;
  const unsigned char* data = nullptr;
};

Tensor find(const Bytes& file, const std::string& name) {
  Reader reader{file};
  if (std::memcmp(reader.take(4), "GGUF", 4) != 0 || reader.number<std::uint32_t>() != 3)
    throw std::runtime_error("not a GGUF file of version 3");
  const auto tensors = reader.number<std::uint64_t>(), keys = reader.number<std::uint64_t>();
  std::uint32_t alignment = 32, p12_type = 0;
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = reader.text();
    const std::uint32_t value = reader.value(reader.number<std::uint32_t>());
    if (key == "general.alignment") alignment = value;
    if (key == "p12.type_id") p12_type = value;
  }
  if (p12_type == 0 || alignment == 0) throw std::runtime_error("no file that pnpack packed");
  Tensor found;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const bool wanted = reader.text() == name;
    Tensor tensor;
    const auto dimensions = reader.number<std::uint32_t>();
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto size = reader.number<std::uint64_t>();
      if (d == 0) {
        tensor.k = size;
        continue;
      }
      if (size == 0 || tensor.rows > file.size() / size) throw std::runtime_error("a tensor of no possible size");
      tensor.rows *= size;
    }
    const auto type = reader.number<std::uint32_t>();
    const auto place = reader.number<std::uint64_t>();
    if (!wanted) continue;
    if (type != p12_type) throw std::runtime_error(name + " is not packed: its type is " + std::to_string(type));
    found = tensor;
    found.data = file.data();
    offset = place;
  }
  if (found.data == nullptr) throw std::runtime_error("there is no tensor " + name);
  reader.take((alignment - reader.at % alignment) % alignment);
  reader.take(offset);
  if (found.k % p12::block_size != 0 || found.k > file.size()) throw std::runtime_error("no K of BF16_P12");
  found.data = reader.take(found.rows * p12::row_bytes(static_cast<std::size_t>(found.k)));
  return found;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: multiply_gguf FILE TENSOR");
  std::ifstream stream(argv[1], std::ios::binary);
  const Bytes file(std::istreambuf_iterator<char>(stream), {});
  const Tensor tensor = find(file, argv[2]);
  const auto k = static_cast<std::size_t>(tensor.k), rows = static_cast<std::size_t>(tensor.rows);
  const std::size_t stride = p12::row_bytes(k);

  std::vector<float> x(k), y(rows);
  for (std::size_t i = 0; i < k; ++i) x[i] = std::cos(static_cast<float>(i));
  const std::size_t bytes = p12::cpu::activations_bytes(1, k);
  std::vector<unsigned char> room(bytes + 64);
  void* prepared = room.data();
  std::size_t space = room.size();
  std::align(64, bytes, prepared, space);
  if (p12::cpu::prepare_activations(x.data(), 4 * k, 1, k, prepared) != pn::Status::ok ||
      p12::cpu::multiply(tensor.data, stride, rows, k, prepared, y.data(), 4 * rows) != pn::Status::ok)
    throw std::runtime_error("a multiply that should work did not");
  std::printf("%s: %zu x %zu, %.2f bits per weight; y = %g, %g, %g, ..\n", argv[2], rows, k,
              8.0 * static_cast<double>(stride) / static_cast<double>(k), static_cast<double>(y[0]),
              static_cast<double>(y[rows > 1]), static_cast<double>(y[rows > 2 ? 2 : 0]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
