// GGUF, versions 2 and 3, little-endian: reading a header that nobody vouches for, and writing one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "input_file.hpp"
#include "tensor.hpp"

namespace pn::io {

// One key with its value, which stays in the file: the entry's bytes are copied as they are.
struct GgufKey {
  std::string name;
  std::uint32_t type = 0;    // GGUF value type
  std::uint64_t offset = 0;  // of the entry (the length of its name), in the file
  std::uint64_t bytes = 0;   // of the entry
  std::uint64_t number = 0;  // the value, for the integer types
  std::string text;          // the value, for keys of ours that are strings
};

struct Gguf {
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // general.alignment
  std::vector<GgufKey> keys;     // in file order
  std::vector<Tensor> tensors;   // in file order
  // Indices of tensors by offset, equal offsets in file order. Usually 0, 1, 2, ..
  std::vector<std::size_t> data_order;

  std::uint64_t header_end = 0;  // end of the tensor descriptions
  std::uint64_t data_start = 0;  // header_end, aligned; the file may end before it when no tensor has bytes
  std::uint64_t data_end = 0;    // end of the last tensor's bytes
  std::uint64_t tail_start = 0;  // bytes after the padded data run from here to the end of the file; usually none
  // The data is followed by padding up to the alignment, or needs none.
  bool padded = true;

  std::optional<std::uint32_t> p12_type_id;  // p12.type_id, when the file has P12 keys
  bool has_pn_keys = false;
  std::uint32_t hadamard_block = 0;  // pn.hadamard.block_size
  bool weighted_search = false;      // pn.search is "weighted"

  const GgufKey* find(const std::string& name) const;
};

// Reads and checks a header: every size is bounded by the file before anything is allocated, and no tensor lies
// outside the data or on another. Throws Error (Fault::input) naming the key or the tensor, and the offset.
Gguf read_gguf(const InputFile& file);

// True for keys that pn writes and removes again: p12.* and pn.*.
bool is_own_key(const std::string& name);

// A header to write: keys of the input that stay, keys that are added after them, and tensors, whose offsets count
// from the beginning of the data here.
struct GgufHeader {
  using Value = std::variant<std::uint32_t, std::string>;

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::vector<GgufKey> kept;
  std::vector<std::pair<std::string, Value>> added;
  std::vector<Tensor> tensors;

  // The header's bytes, padding up to the data included. `source` holds the kept keys.
  std::vector<std::uint8_t> serialize(const InputFile& source) const;
};

// `value` rounded up to a multiple of `alignment`, a power of two.
inline std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace pn::io
