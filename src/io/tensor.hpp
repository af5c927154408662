// A tensor as a model file describes it, whatever the kind of file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pn::io {

// An element type. Known types have a name and a block: `block` elements of one row in `block_bytes` bytes.
struct TensorType {
  std::optional<std::uint32_t> id;  // ggml type id; none where ggml has no such type
  std::string name;                 // "BF16", "Q4_K", "pn3t", "BF16_P12", "F8_E4M3", "unknown(42)"
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
const TensorType& q8_0();
const TensorType& pn3t();
const TensorType& pn4t();
// BF16_P12 has the id that a GGUF file gives it, and none in other files.
TensorType p12(std::optional<std::uint32_t> id = {});
inline bool is_p12(const TensorType& type) { return type.name == "BF16_P12"; }
inline bool is_pn(const TensorType& type) { return type == pn3t() || type == pn4t(); }
// Packed by pn: BF16_P12, pn3t or pn4t.
inline bool is_packed(const TensorType& type) { return is_p12(type) || is_pn(type); }

// The type of an id in a GGUF file without BF16_P12: ggml's types, pn3t, pn4t or unknown(id).
TensorType from_ggml_id(std::uint32_t id);
// True for the ids that version 1 of BF16_P12 never has: 0..41, which ggml had given out when it was published, and
// those of PN. The list is part of the format: it must not grow with ggml's, or files that exist could no longer be
// read.
bool is_reserved_id(std::uint32_t id);

// The type of a dtype in a safetensors file, unknown(DTYPE) for those that are not whole bytes or not known; and back:
// empty for types that safetensors files do not have.
TensorType from_dtype(const std::string& dtype);
std::string dtype_of(const TensorType& type);
}  // namespace types

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> shape;  // outermost first: {rows, K}; empty for a scalar
  TensorType type;
  std::uint64_t elements = 0;
  std::uint64_t offset = 0;  // of its first byte, from the beginning of the file
  std::uint64_t bytes = 0;   // an unknown type's extent runs to the next tensor or to the end of the file

  std::uint64_t row_length() const noexcept { return shape.empty() ? 1 : shape.back(); }
  std::uint64_t rows() const noexcept { return elements == 0 ? 0 : elements / row_length(); }
};

// Bytes of `elements` elements, whole blocks, of a known type.
inline std::uint64_t bytes_of(const TensorType& type, std::uint64_t elements) {
  return elements / type.block * type.block_bytes;
}

// Elements of a shape: 1 for a scalar, 0 where a dimension is 0. No value when there are 2^64 or more.
std::optional<std::uint64_t> element_count(const std::vector<std::uint64_t>& shape);

}  // namespace pn::io
