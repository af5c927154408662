// What the header of a model file says, whatever the kind of file: where the tensors are, and what pn recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "input_file.hpp"
#include "tensor.hpp"

namespace pn::io {

enum class FileKind { gguf, safetensors };
const char* kind_name(FileKind kind);  // "GGUF", "safetensors"

// What packing and quantizing write into a file beside the tensors: the p12.* and pn.* keys of a GGUF file or entries
// of a safetensors file's __metadata__. FORMAT.md says what each means.
struct PackRecord {
  // Of the file that was read: the first of these keys, and the first pn.* key; empty: there is none.
  std::string first_key;
  std::string pn_key;

  bool p12 = false;                          // has p12.* keys about its tensors
  std::optional<std::uint32_t> p12_type_id;  // GGUF only
  std::string rounded_from;                  // "F32", "F16" or "mixed": what was rounded to BF16 before packing

  bool pn = false;                            // has pn.* keys
  bool weighted_search = false;               // pn.search is "weighted"
  std::uint32_t hadamard_block = 0;           // pn.hadamard.block_size; 0: nothing is rotated
  std::vector<std::string> hadamard_exclude;  // PN tensors that are not rotated; see exclude()

  // safetensors only
  bool has_header = false;                // p12.header: the header text of the file that was packed; see Safetensors
  std::optional<std::string> total_size;  // p12.total_size: the index's text, where it was not the true sum

  bool any() const { return p12 || pn || has_header || total_size; }
  void exclude(std::string tensor);  // adds to hadamard_exclude
  // The Hadamard block by which the rows of a PN tensor were rotated; 0: not rotated.
  std::uint32_t rotation_of(const std::string& tensor) const;

 private:
  std::unordered_set<std::string> excluded_;  // hadamard_exclude
};

// A key that is written: the kinds of value that ours have.
using KeyValue = std::variant<std::uint32_t, std::string, std::vector<std::string>>;
using Keys = std::vector<std::pair<std::string, KeyValue>>;

// The keys of a record that both kinds of file have, in the order in which they are written: those of BF16_P12, and
// those of PN.
Keys p12_keys(const PackRecord& record);
Keys pn_keys(const PackRecord& record);

// True for keys that pn writes and removes again: p12.* and pn.*.
bool is_own_key(const std::string& name);
bool is_p12_key(const std::string& name);
bool is_pn_key(const std::string& name);

struct Layout {
  virtual ~Layout() = default;

  std::vector<Tensor> tensors;  // in the order of the header
  // Indices of tensors by offset, equal offsets in file order. Usually 0, 1, 2, ..
  std::vector<std::size_t> data_order;

  std::uint64_t alignment = 1;   // each tensor's data begins at a multiple of it
  std::uint64_t header_end = 0;  // end of the tensor descriptions
  std::uint64_t data_start = 0;  // header_end, aligned; the file may end before it when no tensor has bytes
  std::uint64_t data_end = 0;    // end of the last tensor's bytes
  std::uint64_t tail_start = 0;  // bytes after the padded data run from here to the end of the file; usually none
  // The data is followed by padding up to the alignment, or needs none.
  bool padded = true;

  PackRecord record;
};

// Throws Error (Fault::input) when the recorded rotation does not fit the tensors.
void require_rotation_fits(const InputFile& file, const Layout& layout);

// `value` rounded up to a multiple of `alignment`, a power of two.
inline std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace pn::io
