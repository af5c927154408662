// A second reader of GGUF headers: whether a file must be accepted, and where things lie. From the GGUF specification
// and FORMAT.md; it has the whole file in memory, and every step checks how much is left.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/tensor.hpp"

namespace fuzz {

inline bool begins_as_gguf(const std::vector<std::uint8_t>& bytes) {
  static constexpr std::uint8_t magic[4] = {'G', 'G', 'U', 'F'};
  return bytes.size() >= 4 && std::equal(magic, magic + 4, bytes.begin());
}

class GgufOracle {
 public:
  struct Extent {
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
  };

  explicit GgufOracle(const std::vector<std::uint8_t>& bytes) : bytes_(bytes) { accepted_ = header() && data(); }

  bool accepted() const { return accepted_; }
  // One of several files, by its keys: as a model of its own it is refused.
  bool is_split() const {
    const auto count = values_.find("split.count");
    if (count == values_.end()) return false;
    const std::uint64_t type = count->second.type;
    const bool integer = type <= 5 || type == 10 || type == 11;
    return !integer || count->second.number > 1;
  }
  const std::vector<Extent>& keys() const { return keys_; }        // in file order
  const std::vector<Extent>& tensors() const { return tensors_; }  // in file order

 private:
  struct Value {
    std::uint64_t type = 0;
    std::uint64_t number = 0;
    std::string text;
    std::uint64_t element_type = 0;  // of an array
    std::vector<std::string> texts;  // of an array of strings
  };

  bool number(std::size_t size, std::uint64_t& value) {
    if (bytes_.size() - at_ < size) return false;
    value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | bytes_[at_ + i];
    at_ += size;
    return true;
  }
  bool text(std::string& value) {
    std::uint64_t length = 0;
    if (!number(8, length) || length > bytes_.size() - at_) return false;
    value.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(at_),
                 bytes_.begin() + static_cast<std::ptrdiff_t>(at_ + length));
    at_ += static_cast<std::size_t>(length);
    return true;
  }
  bool value(std::uint64_t type, int depth, Value& out) {
    static constexpr std::size_t sizes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    out.type = type;
    if (type > 12) return false;
    if (type == 8) return text(out.text);
    if (type != 9) return number(sizes[type], out.number);
    std::uint64_t element = 0;
    std::uint64_t count = 0;
    if (depth == 16 || !number(4, element) || !number(8, count) || element > 12) return false;
    out.element_type = element;
    // Each element takes a byte at least, so this ends soon.
    for (std::uint64_t i = 0; i < count; ++i) {
      Value read;
      if (!value(element, depth + 1, read)) return false;
      if (element == 8) out.texts.push_back(read.text);
    }
    return true;
  }

  bool u32_key(const std::string& name, std::uint64_t& out) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return true;
    out = found->second.number;
    return found->second.type == 4;
  }
  bool string_key(const std::string& name, const std::set<std::string>& allowed) const {
    const auto found = values_.find(name);
    return found == values_.end() || (found->second.type == 8 && allowed.count(found->second.text) != 0);
  }
  bool rules() {
    bool p12 = false;
    bool pn = false;
    for (const auto& [name, value] : values_) {
      p12 = p12 || name.rfind("p12.", 0) == 0;
      pn = pn || name.rfind("pn.", 0) == 0;
    }
    if (!u32_key("general.alignment", alignment_)) return false;
    if (alignment_ < 8 || alignment_ > 65536 || (alignment_ & (alignment_ - 1)) != 0) return false;
    if (p12) {
      std::uint64_t version = 0;
      std::uint64_t id = 0;
      if (values_.count("p12.type_id") == 0) return false;
      if (!u32_key("p12.version", version) || version != 1 || !u32_key("p12.type_id", id)) return false;
      if (pn::io::types::is_reserved_id(static_cast<std::uint32_t>(id))) return false;
      p12_id_ = static_cast<std::uint32_t>(id);
      if (!string_key("p12.rounded_from", {"F32", "F16", "mixed"})) return false;
    }
    if (pn) {
      std::uint64_t version = 0;
      if (!u32_key("pn.version", version) || version != 0 || !u32_key("pn.hadamard.block_size", rotation_))
        return false;
      if (!string_key("pn.search", {"reference", "weighted"})) return false;
      const auto exclude = values_.find("pn.hadamard.exclude");
      if (exclude != values_.end()) {
        if (exclude->second.type != 9 || exclude->second.element_type != 8) return false;
        not_rotated_.insert(exclude->second.texts.begin(), exclude->second.texts.end());
      }
      if (rotation_ != 0 && std::set<std::uint64_t>{64, 128, 256, 512, 1024}.count(rotation_) == 0) return false;
    }
    return true;
  }

  bool header() {
    std::uint64_t magic = 0;
    std::uint64_t version = 0;
    std::uint64_t tensors = 0;
    std::uint64_t keys = 0;
    if (!number(4, magic) || magic != 0x46554747 || !number(4, version) || (version != 2 && version != 3)) return false;
    if (!number(8, tensors) || !number(8, keys)) return false;
    for (std::uint64_t i = 0; i < keys; ++i) {
      const std::size_t start = at_;
      std::string name;
      std::uint64_t type = 0;
      Value read;
      if (!text(name) || !number(4, type) || !value(type, 0, read) || !values_.emplace(name, read).second) return false;
      keys_.push_back({start, at_ - start});
    }
    if (!rules()) return false;

    std::set<std::string> names;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      std::string name;
      std::uint64_t dimensions = 0;
      std::uint64_t k = 1;
      std::uint64_t id = 0;
      Described tensor;
      if (!text(name) || !names.insert(name).second || !number(4, dimensions) || dimensions > 4) return false;
      std::vector<std::uint64_t> shape(static_cast<std::size_t>(dimensions));
      for (std::uint64_t& n : shape)
        if (!number(8, n)) return false;
      if (!shape.empty()) k = shape[0];
      if (!number(4, id) || !number(8, tensor.offset) || tensor.offset % alignment_ != 0) return false;
      const auto type = p12_id_ == id ? pn::io::types::p12(static_cast<std::uint32_t>(id))
                                      : pn::io::types::from_ggml_id(static_cast<std::uint32_t>(id));
      tensor.known = type.known();
      tensor.empty = std::find(shape.begin(), shape.end(), 0u) != shape.end();
      if (!tensor.empty) {
        std::uint64_t elements = 1;
        for (const std::uint64_t n : shape)
          if (__builtin_mul_overflow(elements, n, &elements)) return false;
        if (tensor.known &&
            (k % type.block != 0 ||
             __builtin_mul_overflow(elements / type.block, std::uint64_t{type.block_bytes}, &tensor.bytes)))
          return false;
      }
      if (rotation_ != 0 && (id == 124 || id == 125) && !tensor.empty && k % rotation_ != 0 &&
          not_rotated_.count(name) == 0)
        return false;
      described_.push_back(tensor);
    }
    return true;
  }

  // No tensor outside the data or on another, and the data padded or ending with its last byte.
  bool data() {
    const std::uint64_t size = bytes_.size();
    const std::uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    const std::uint64_t available = size > start ? size - start : 0;
    std::uint64_t end = 0;
    for (Described& tensor : described_) {
      if (tensor.empty) continue;
      if (tensor.offset >= available) return false;
      if (!tensor.known) {
        std::uint64_t next = available;
        for (const Described& other : described_)
          if (!other.empty && other.offset > tensor.offset) next = std::min(next, other.offset);
        tensor.bytes = next - tensor.offset;
      }
      if (tensor.bytes > available - tensor.offset) return false;
      end = std::max(end, tensor.offset + tensor.bytes);
    }
    for (std::size_t i = 0; i < described_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const Described& a = described_[i];
        const Described& b = described_[j];
        if (!a.empty && !b.empty && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) return false;
      }
    const std::uint64_t padded = (end + alignment_ - 1) / alignment_ * alignment_;
    for (const Described& tensor : described_) {
      if (tensor.empty && tensor.offset > padded) return false;
      tensors_.push_back({start + tensor.offset, tensor.bytes});
    }
    if (end == 0) return size == at_ || size >= start;
    return available == end || available >= padded;
  }

  struct Described {
    std::uint64_t offset = 0;  // in the data
    std::uint64_t bytes = 0;
    bool known = false;
    bool empty = false;
  };

  const std::vector<std::uint8_t>& bytes_;
  std::size_t at_ = 0;
  std::map<std::string, Value> values_;
  std::uint64_t alignment_ = 32;
  std::optional<std::uint32_t> p12_id_;
  std::uint64_t rotation_ = 0;
  std::set<std::string> not_rotated_;
  std::vector<Described> described_;
  std::vector<Extent> keys_;
  std::vector<Extent> tensors_;
  bool accepted_ = false;
};

}  // namespace fuzz
