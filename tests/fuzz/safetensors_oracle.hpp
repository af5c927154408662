// A second reader of safetensors files and their indexes: whether they must be accepted, and what is in them. From the
// format's description (a u64 length, a JSON object, data without holes or overlaps) and FORMAT.md.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "json_oracle.hpp"

namespace fuzz {

class SafetensorsOracle {
 public:
  using Texts = std::vector<std::pair<std::string, std::string>>;

  struct Tensor {
    std::string name;
    std::string dtype;                 // as the file has it
    std::vector<std::uint64_t> shape;  // of the weights
    std::vector<std::uint64_t> stored_shape;
    std::uint64_t begin = 0;  // data_offsets
    std::uint64_t end = 0;
    std::string type;  // dtype, or that of a packed tensor
  };

  // A header text, not compared with any file.
  struct Header {
    std::vector<Tensor> tensors;
    Texts metadata;
    std::optional<std::size_t> metadata_place;  // before that tensor
  };

  SafetensorsOracle() = default;
  explicit SafetensorsOracle(const std::vector<std::uint8_t>& bytes) { accepted_ = file(bytes) && own_entries(); }

  bool accepted() const { return accepted_; }
  // Whether a reader takes it is its own business.
  bool undecided() const { return undecided_; }
  const std::string& text() const { return text_; }
  const std::vector<Tensor>& tensors() const { return header_.tensors; }
  const Header& header() const { return header_; }
  std::uint64_t data_start() const { return 8 + text_.size(); }

  bool has_entry(const std::string& name) const { return find(name) != nullptr; }
  const std::string* find(const std::string& name) const {
    for (const auto& [key, value] : header_.metadata)
      if (key == name) return &value;
    return nullptr;
  }
  static bool is_own(const std::string& name) { return name.rfind("p12.", 0) == 0 || name.rfind("pn.", 0) == 0; }
  bool has_own_entries() const {
    return std::any_of(header_.metadata.begin(), header_.metadata.end(),
                       [](const auto& entry) { return is_own(entry.first); });
  }
  Texts foreign_entries() const {
    Texts entries;
    for (const auto& entry : header_.metadata)
      if (!is_own(entry.first)) entries.push_back(entry);
    return entries;
  }

  bool p12() const { return find("p12.version") != nullptr || find("p12.tensors") != nullptr; }
  bool pn() const { return pn_; }
  bool is_packed(const Tensor& tensor) const { return tensor.type != tensor.dtype; }
  std::uint32_t rotation() const { return rotation_; }
  const std::vector<std::string>& not_rotated() const { return not_rotated_; }

  static std::optional<Header> header_of(const std::string& text) {
    const auto json = text.empty() || text[0] != '{' ? std::nullopt : JsonOracle::read(text);
    if (!json) return std::nullopt;
    Header header;
    std::set<std::string> names;
    for (std::size_t i = 0; i < json->items.size(); ++i) {
      const Json& value = json->items[i];
      if (!names.insert(json->names[i]).second || value.kind != Json::Kind::object) return std::nullopt;
      if (json->names[i] == "__metadata__") {
        header.metadata_place = header.tensors.size();
        if (!strings(value, header.metadata)) return std::nullopt;
      } else {
        Tensor tensor;
        tensor.name = json->names[i];
        if (!describe(value, tensor)) return std::nullopt;
        header.tensors.push_back(tensor);
      }
    }
    return header;
  }

  // The header as FORMAT.md has it written, without the spaces at its end.
  std::string canonical_text() const {
    std::vector<std::string> members;
    const auto put_metadata = [&](std::size_t place) {
      if (header_.metadata_place != place) return;
      std::vector<std::string> entries;
      for (const auto& [key, value] : header_.metadata) entries.push_back(quoted(key) + ":" + quoted(value));
      members.push_back("\"__metadata__\":{" + joined(entries) + "}");
    };
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      put_metadata(t);
      const Tensor& tensor = tensors()[t];
      std::vector<std::string> shape;
      for (const std::uint64_t n : tensor.stored_shape) shape.push_back(std::to_string(n));
      members.push_back(quoted(tensor.name) + ":{\"dtype\":" + quoted(tensor.dtype) + ",\"shape\":[" + joined(shape) +
                        "],\"data_offsets\":[" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) +
                        "]}");
    }
    put_metadata(tensors().size());
    return "{" + joined(members) + "}";
  }

  // Bytes of an element; 0 for dtypes that are not whole bytes, or not known.
  static std::uint64_t element_bytes(const std::string& dtype) {
    static const std::map<std::string, std::uint64_t> bytes{
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
        {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
        {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
    const auto found = bytes.find(dtype);
    return found == bytes.end() ? 0 : found->second;
  }

 private:
  static std::string joined(const std::vector<std::string>& texts) {
    std::string out;
    for (const std::string& text : texts) out += (out.empty() ? "" : ",") + text;
    return out;
  }
  static std::string quoted(const std::string& text) {
    static constexpr const char* from = "\b\f\n\r\t\"\\";
    static constexpr const char* to = "bfnrt\"\\";
    static constexpr const char* digits = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
      const char* short_form = c == '\0' ? nullptr : std::strchr(from, c);
      const auto byte = static_cast<unsigned char>(c);
      if (short_form != nullptr) {
        out += {'\\', to[short_form - from]};
      } else if (byte < 0x20) {
        out += std::string("\\u00") + digits[byte >> 4] + digits[byte & 15];
      } else {
        out += c;
      }
    }
    return out + '"';
  }

  static bool strings(const Json& object, Texts& out) {
    std::set<std::string> names;
    for (std::size_t i = 0; i < object.items.size(); ++i) {
      if (object.items[i].kind != Json::Kind::string || !names.insert(object.names[i]).second) return false;
      out.emplace_back(object.names[i], object.items[i].text);
    }
    return true;
  }
  static bool integers(const Json& array, std::vector<std::uint64_t>& out) {
    if (array.kind != Json::Kind::array) return false;
    for (const Json& item : array.items) {
      const auto number = item.integer();
      if (!number) return false;
      out.push_back(*number);
    }
    return true;
  }
  static bool describe(const Json& value, Tensor& out) {
    std::set<std::string> seen;
    std::vector<std::uint64_t> offsets;
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const std::string& field = value.names[i];
      const Json& item = value.items[i];
      if (!seen.insert(field).second) return false;
      if (field == "dtype" && item.kind == Json::Kind::string) {
        out.dtype = out.type = item.text;
      } else if (field == "shape") {
        if (!integers(item, out.shape)) return false;
        out.stored_shape = out.shape;
      } else if (field == "data_offsets") {
        if (!integers(item, offsets) || offsets.size() != 2) return false;
        out.begin = offsets[0];
        out.end = offsets[1];
      } else {
        return false;
      }
    }
    return seen.size() == 3;
  }

  static std::optional<std::uint64_t> product(const std::vector<std::uint64_t>& shape) {
    std::uint64_t count = 1;
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
    for (const std::uint64_t n : shape)
      if (__builtin_mul_overflow(count, n, &count)) return std::nullopt;
    return count;
  }

  bool file(const std::vector<std::uint8_t>& bytes) {
    if (bytes.size() < 8) return false;
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | bytes[i];
    if (length > bytes.size() - 8) return false;
    text_.assign(bytes.begin() + 8, bytes.begin() + static_cast<std::ptrdiff_t>(8 + length));
    const auto header = header_of(text_);
    if (!header) return false;
    header_ = *header;
    const std::uint64_t available = bytes.size() - 8 - length;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
    for (const Tensor& tensor : header_.tensors) {
      const auto elements = product(tensor.shape);
      const std::uint64_t size = element_bytes(tensor.dtype);
      std::uint64_t expected = 0;
      if (!elements || tensor.begin > tensor.end || tensor.end > available) return false;
      if (size != 0 && (__builtin_mul_overflow(*elements, size, &expected) || tensor.end - tensor.begin != expected))
        return false;
      undecided_ = undecided_ || tensor.dtype.empty();
      extents.emplace_back(tensor.begin, tensor.end);
    }
    std::sort(extents.begin(), extents.end());
    std::uint64_t end = 0;
    for (const auto& [first, last] : extents) {
      if (first != end) return false;
      end = last;
    }
    return end == available;
  }

  std::optional<std::vector<std::string>> names(const std::string& entry) const {
    const std::string* text = find(entry);
    const auto json = text == nullptr ? std::nullopt : JsonOracle::read(*text);
    if (!json || json->kind != Json::Kind::array) return std::nullopt;
    std::vector<std::string> list;
    for (const Json& item : json->items) {
      if (item.kind != Json::Kind::string) return std::nullopt;
      list.push_back(item.text);
    }
    return list;
  }

  // Gives a U8 tensor the type and shape of what is packed in it.
  bool pack(const std::string& name, const std::string& type, std::uint64_t block_bytes, std::uint64_t block) {
    for (Tensor& tensor : header_.tensors) {
      if (tensor.name != name) continue;
      if (tensor.type != "U8" || tensor.shape.size() < 2 || tensor.begin == tensor.end) return false;
      if (tensor.shape.back() % block_bytes != 0) return false;
      tensor.type = type;
      tensor.shape.back() = tensor.shape.back() / block_bytes * block;
      return true;
    }
    return false;
  }

  bool is_text(const std::string& entry, const std::set<std::string>& values) const {
    const std::string* text = find(entry);
    return text == nullptr || values.count(*text) != 0;
  }

  bool own_entries() {
    const std::string* total = find("p12.total_size");
    if (total != nullptr) {
      const auto number = JsonOracle::read(*total);
      undecided_ = undecided_ || !number || number->kind != Json::Kind::number || number->text != *total;
    }
    for (const auto& entry : header_.metadata) pn_ = pn_ || entry.first.rfind("pn.", 0) == 0;
    if (p12()) {
      const auto list = names("p12.tensors");
      if (find("p12.version") == nullptr || *find("p12.version") != "1" || !list) return false;
      for (const std::string& name : *list)
        if (!pack(name, "BF16_P12", 392, 256)) return false;
      if (!is_text("p12.rounded_from", {"F32", "F16", "mixed"})) return false;
    }
    // Others of ours that mean nothing alone.
    if (pn_ && find("pn.version") == nullptr && find("pn.tensors") == nullptr) {
      undecided_ = true;
      return true;
    }
    return !pn_ || pn_entries();
  }

  bool pn_entries() {
    const std::string* list = find("pn.tensors");
    if (find("pn.version") == nullptr || *find("pn.version") != "0" || list == nullptr) return false;
    const auto json = JsonOracle::read(*list);
    if (!json || json->kind != Json::Kind::object) return false;
    for (std::size_t i = 0; i < json->items.size(); ++i) {
      const Json& item = json->items[i];
      std::vector<std::uint64_t> shape;
      if (item.kind != Json::Kind::array || item.items.size() != 3 || item.items[0].kind != Json::Kind::string ||
          !integers(item.items[1], shape) || item.items[2].kind != Json::Kind::string)
        return false;
      const std::string& type = item.items[0].text;
      if (type != "pn3t" && type != "pn4t") return false;
      if (!pack(json->names[i], type, 34, type == "pn3t" ? 80 : 64)) return false;
      for (const Tensor& tensor : header_.tensors)
        if (tensor.name == json->names[i] && tensor.shape != shape) return false;
    }
    return is_text("pn.search", {"reference", "weighted"}) && rotation_entries();
  }

  bool rotation_entries() {
    if (find("pn.hadamard.exclude") != nullptr) {
      const auto list = names("pn.hadamard.exclude");
      if (!list) return false;
      not_rotated_ = *list;
    }
    const std::string* text = find("pn.hadamard.block_size");
    if (text == nullptr) return true;
    if (text->empty() || text->size() > 9 || text->find_first_not_of("0123456789") != std::string::npos) return false;
    rotation_ = static_cast<std::uint32_t>(std::stoul(*text));
    if (rotation_ == 0) return true;
    if (std::set<std::uint32_t>{64, 128, 256, 512, 1024}.count(rotation_) == 0) return false;
    return std::all_of(header_.tensors.begin(), header_.tensors.end(), [&](const Tensor& tensor) {
      return (tensor.type != "pn3t" && tensor.type != "pn4t") || tensor.shape.back() % rotation_ == 0 ||
             std::find(not_rotated_.begin(), not_rotated_.end(), tensor.name) != not_rotated_.end();
    });
  }

  bool accepted_ = false;
  bool undecided_ = false;
  bool pn_ = false;
  std::string text_;
  Header header_;
  std::uint32_t rotation_ = 0;
  std::vector<std::string> not_rotated_;
};

// model.safetensors.index.json, `name`.
class IndexOracle {
 public:
  IndexOracle(const std::string& text, const std::string& name) : text_(text) { accepted_ = read(name); }

  bool accepted() const { return accepted_; }
  bool undecided() const { return undecided_; }
  const std::map<std::string, std::string>& files() const { return files_; }  // of the tensors
  std::set<std::string> file_names() const {
    std::set<std::string> names;
    for (const auto& [tensor, file] : files_) names.insert(file);
    return names;
  }
  // As it is written; empty: there is none, or it is no number.
  const std::string& total_size() const { return total_size_; }
  std::string with_total_size(const std::string& number) const {
    std::string text = text_;
    if (!total_size_.empty()) text.replace(total_size_at_, total_size_.size(), number);
    return text;
  }

 private:
  bool read(const std::string& name) {
    const auto json = JsonOracle::read(text_);
    if (!json || json->kind != Json::Kind::object) return false;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < json->items.size(); ++i) {
      const std::string& key = json->names[i];
      const Json& value = json->items[i];
      if (key != "weight_map" && key != "metadata") continue;
      if (!seen.insert(key).second || value.kind != Json::Kind::object) return false;
      if (key == "metadata") {
        metadata(value);
        continue;
      }
      for (std::size_t t = 0; t < value.items.size(); ++t) {
        const std::string& file = value.items[t].text;
        if (value.items[t].kind != Json::Kind::string || !files_.emplace(value.names[t], file).second) return false;
        if (file.empty() || file == "." || file == ".." || file == name) return false;
        if (file.find('/') != std::string::npos || file.find('\\') != std::string::npos ||
            file.find('\0') != std::string::npos)
          return false;
      }
    }
    return seen.count("weight_map") != 0 && !files_.empty();
  }

  void metadata(const Json& value) {
    for (std::size_t i = 0, found = 0; i < value.items.size(); ++i) {
      if (value.names[i] != "total_size") continue;
      undecided_ = undecided_ || ++found > 1;
      if (value.items[i].kind != Json::Kind::number) continue;
      total_size_ = value.items[i].text;
      total_size_at_ = value.items[i].begin;
    }
  }

  const std::string& text_;
  bool accepted_ = false;
  bool undecided_ = false;
  std::map<std::string, std::string> files_;
  std::string total_size_;
  std::size_t total_size_at_ = 0;
};

}  // namespace fuzz
