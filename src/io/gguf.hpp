// GGUF, versions 2 and 3, little-endian: reading a header that nobody vouches for, and writing one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "input_file.hpp"
#include "layout.hpp"
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

struct Gguf : Layout {
  Gguf() { alignment = 32; }  // general.alignment

  std::uint32_t version = 3;
  std::vector<GgufKey> keys;  // in file order

  const GgufKey* find(const std::string& name) const;
};

// Reads and checks a header: every size is bounded by the file before anything is allocated, and no tensor lies
// outside the data or on another. Throws Error (Fault::input) naming the key or the tensor, and the offset.
Gguf read_gguf(const InputFile& file);

// Does a file begin as a GGUF file does?
bool looks_like_gguf(const InputFile& file);

// The value of a key that is a string.
std::string string_value(const InputFile& file, const GgufKey& key);
bool is_string(const GgufKey& key);
bool is_integer(const GgufKey& key);

// A header to write: keys of the input that stay, keys that are added after them, and tensors, whose offsets count
// from the beginning of the data here.
struct GgufHeader {
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::optional<std::uint32_t> p12_type_id;  // the id of BF16_P12
  std::vector<GgufKey> kept;
  Keys added;
  std::vector<Tensor> tensors;
  bool padded = true;  // up to the data; a file without data may end with its header instead

  // The header's bytes. `source` holds the kept keys.
  std::vector<std::uint8_t> serialize(const InputFile& source) const;
};

}  // namespace pn::io
