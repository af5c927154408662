// safetensors: reading a header that nobody vouches for, and writing one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "input_file.hpp"
#include "layout.hpp"
#include "tensor.hpp"

namespace pn::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // data_offsets, from the beginning of the data
  std::uint64_t end = 0;
  std::uint64_t place = 0;  // of the entry in the header text
};

// A header text taken apart, before it is compared with any file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;                      // in the order of the text
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in the order of the text
  std::optional<std::size_t> metadata_place;                  // its place: before entries[*metadata_place]
};

struct Safetensors : Layout {
  std::uint64_t header_bytes = 0;                             // of the header text, which begins at offset 8
  std::vector<std::pair<std::string, std::string>> metadata;  // without ours
  std::optional<std::size_t> metadata_place;
  // p12.header, with p12.* and pn.* keys: not kept in memory twice where it is the larger half of a large header.
  std::string original_header;
};

// The u64 length of a header and the brace with which its text begins.
bool looks_like_safetensors(const InputFile& file);

// Reads and checks a header: the data has no holes and no overlaps, and each tensor as many bytes as its shape needs.
// Packed tensors, which the file holds as U8, get their own types and shapes. Throws Error (Fault::input).
Safetensors read_safetensors(const InputFile& file);

// Takes a header text apart. `file` and `what` are for errors, which have an offset only when `origin`, the place of
// the text in the file, is given.
SafetensorsHeader parse_safetensors_header(const char* text, std::size_t length, const std::string& file,
                                           const std::string& what, std::optional<std::uint64_t> origin);

// A header to write.
struct SafetensorsOutput {
  std::vector<std::pair<std::string, std::string>> metadata;  // foreign entries, which come first
  std::optional<std::size_t> metadata_place;                  // none: first, if anything is in it
  PackRecord record;
  std::string original_header;                   // p12.header, with record.has_header
  const std::vector<Tensor>* sources = nullptr;  // the tensors of the input: shapes and types before quantizing

  // The length of the header and its text, which spaces make `text_bytes` long; 0: up to a multiple of 8. `tensors` are
  // as they will be; offsets count from the beginning of the data.
  std::string serialize(const std::vector<Tensor>& tensors, std::uint64_t text_bytes) const;
};

// model.safetensors.index.json: which file has which tensor.
struct SafetensorsIndex {
  std::string text;
  std::vector<std::pair<std::string, std::string>> files;  // tensor, file; in the order of the text
  // metadata.total_size: where its number lies in the text.
  std::optional<std::pair<std::size_t, std::size_t>> total_size;  // first character, length

  std::string total_size_text() const;                           // empty when there is none
  std::string with_total_size(const std::string& number) const;  // the text with another number
};

// True when a file begins with a brace, as JSON does; and reading an index. Names of files with a path are refused.
bool looks_like_json(const InputFile& file);
SafetensorsIndex read_safetensors_index(const InputFile& file);

}  // namespace pn::io
