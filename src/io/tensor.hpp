// A tensor as a model file describes it, whatever the kind of file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pn::io {

// An element type. Known types have a name and a block: `block` elements of one row in `block_bytes` bytes.
struct TensorType {
  std::uint32_t id = 0;  // ggml type id in the file
  std::string name;      // "BF16", "Q4_K", "pn3t", "BF16_P12", "unknown(42)"
  std::uint32_t block = 0;
  std::uint32_t block_bytes = 0;  // 0: unknown

  bool known() const noexcept { return block_bytes != 0; }
  bool operator==(const TensorType& other) const noexcept { return name == other.name; }
  bool operator!=(const TensorType& other) const noexcept { return name != other.name; }
};

namespace types {
const TensorType& f32();
const TensorType& f16();
const TensorType& bf16();
const TensorType& pn3t();
const TensorType& pn4t();
TensorType p12(std::uint32_t id);  // BF16_P12 has the id that the file gives it
inline bool is_p12(const TensorType& type) { return type.name == "BF16_P12"; }
inline bool is_pn(const TensorType& type) { return type == pn3t() || type == pn4t(); }

// The type of an id in a GGUF file without BF16_P12: ggml's types, pn3t, pn4t or unknown(id).
TensorType from_ggml_id(std::uint32_t id);
// True for the ids that version 1 of BF16_P12 never has: 0..41, which ggml had given out when it was published, and
// those of PN. The list is part of the format: it must not grow with ggml's, or files that exist could no longer be
// read.
bool is_reserved_id(std::uint32_t id);
}  // namespace types

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> shape;  // outermost first: {rows, K}; empty for a scalar
  TensorType type;
  std::uint64_t elements = 0;
  std::uint64_t offset = 0;  // of its first byte, from the beginning of the file
  std::uint64_t bytes = 0;   // an unknown type's extent runs to the next tensor or to the end of the file

  std::uint64_t row_length() const noexcept { return shape.empty() ? 1 : shape.back(); }
};

}  // namespace pn::io
