#include "safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "error.hpp"
#include "json_reader.hpp"

namespace pn::io {
namespace {

constexpr std::uint64_t text_start = 8;
constexpr const char* metadata_name = "__metadata__";

using Texts = std::vector<std::pair<std::string, std::string>>;

class HeaderEvents final : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;

  SafetensorsHeader take() {
    if (depth_ == 0 && !seen_) fail("is empty");
    return std::move(header_);
  }

  void on_start_object() override {
    ++depth_;
    seen_ = true;
    if (depth_ == 1) return;
    if (depth_ > 2) unexpected("an object");
    if (in_metadata_) {
      expected_ = "a string";
      return;
    }
    header_.entries.emplace_back();
    header_.entries.back().name = name_;
    header_.entries.back().place = position;
    has_dtype_ = has_shape_ = has_offsets_ = false;
  }

  void on_key(std::string&& key) override {
    if (depth_ == 1) {
      name_ = std::move(key);
      in_metadata_ = name_ == metadata_name;
      about(in_metadata_ ? "key __metadata__" : "tensor " + name_);
      if (!names_.insert(name_).second) fail("appears twice");
      if (in_metadata_) header_.metadata_place = header_.entries.size();
      expected_ = "an object";
    } else if (in_metadata_) {
      about("key " + key);
      if (!metadata_names_.insert(key).second) fail("appears twice");
      key_ = std::move(key);
    } else {
      begin_field(key);
    }
  }

  void on_end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      if (!has_dtype_) fail("has no dtype");
      if (!has_shape_) fail("has no shape");
      if (!has_offsets_) fail("has no data_offsets");
    }
    about("");
    expected_ = "nothing";
  }

  void on_string(std::string&& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata.emplace_back(std::move(key_), std::move(value));
    } else if (depth_ == 2 && field_ == Field::dtype) {
      header_.entries.back().dtype = std::move(value);
    } else {
      unexpected("a string");
    }
  }

  void on_start_array() override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == Field::dtype) unexpected("an array");
    in_array_ = true;
    count_ = 0;
    expected_ = "a non-negative integer";
  }

  void on_number(std::uint64_t value) override {
    if (!in_array_) unexpected("a number");
    SafetensorsEntry& entry = header_.entries.back();
    if (field_ == Field::shape) {
      entry.shape.push_back(value);
    } else if (++count_ <= 2) {
      (count_ == 1 ? entry.begin : entry.end) = value;
    }
  }

  void on_other(const char* what) override {
    if (depth_ != 1 || !in_metadata_ || std::string(what) != "null") unexpected(what);
    about("");
  }

  void on_end_array() override {
    in_array_ = false;
    if (field_ == Field::offsets && count_ != 2) fail("data_offsets are not two numbers");
  }

 private:
  enum class Field { dtype, shape, offsets };

  void begin_field(const std::string& key) {
    const auto begin = [&](Field field, bool& has, const char* expected) {
      if (has) fail(key + " appears twice");
      has = true;
      field_ = field;
      expected_ = expected;
    };
    if (key == "dtype") {
      begin(Field::dtype, has_dtype_, "a string");
    } else if (key == "shape") {
      begin(Field::shape, has_shape_, "an array");
    } else if (key == "data_offsets") {
      begin(Field::offsets, has_offsets_, "an array");
    } else {
      fail("has the unknown field " + key);
    }
  }

  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_names_;
  std::string name_;
  std::string key_;
  int depth_ = 0;
  bool seen_ = false;
  bool in_metadata_ = false;
  bool in_array_ = false;
  Field field_ = Field::dtype;
  int count_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

// A JSON array of strings: p12.tensors, pn.hadamard.exclude.
class NamesEvents final : public JsonEvents {
 public:
  NamesEvents(const std::string& file, const std::string& what) : JsonEvents(file, what, {}) { expected_ = "an array"; }

  std::vector<std::string> names;

  void on_start_array() override {
    if (started_) unexpected("an array");
    started_ = true;
    expected_ = "a string";
  }
  void on_start_object() override { unexpected("an object"); }
  void on_string(std::string&& name) override {
    if (!started_) unexpected("a string");
    names.push_back(std::move(name));
  }

 private:
  bool started_ = false;
};

struct PnTensor {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::string dtype;
};

// pn.tensors: {name: [type, original shape, original dtype]}.
class PnTensorsEvents final : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  std::vector<PnTensor> tensors;

  void on_start_object() override {
    if (started_) unexpected("an object");
    started_ = true;
    expected_ = "an array";
  }
  void on_key(std::string&& key) override {
    if (!names_.insert(key).second) fail("names tensor " + key + " twice");
    tensors.push_back({std::move(key), {}, {}, {}});
    item_ = 0;
  }
  void on_start_array() override {
    if (!started_ || depth_ == 2 || (depth_ == 1 && item_ != 1)) unexpected("an array");
    ++depth_;
    expected_ = depth_ == 2 ? "a non-negative integer" : "[type, shape, dtype]";
  }
  void on_end_array() override {
    if (--depth_ == 1) {
      ++item_;
      expected_ = "[type, shape, dtype]";
    } else if (item_ != 3) {
      fail("describes tensor " + tensors.back().name + " by other than [type, shape, dtype]");
    }
  }
  void on_string(std::string&& text) override {
    if (depth_ != 1 || (item_ != 0 && item_ != 2)) unexpected("a string");
    (item_ == 0 ? tensors.back().type : tensors.back().dtype) = std::move(text);
    ++item_;
  }
  void on_number(std::uint64_t number) override {
    if (depth_ != 2) unexpected("a number");
    tensors.back().shape.push_back(number);
  }

 private:
  std::unordered_set<std::string> names_;
  bool started_ = false;
  int depth_ = 0;
  int item_ = 0;
};

class IndexEvents final : public JsonEvents {
 public:
  IndexEvents(const std::string& file, const std::string& text) : JsonEvents(file, "the index", 0), text_(text) {}

  SafetensorsIndex index;

  void finish() {
    about("");
    if (!has_map_) fail("has no weight_map");
  }

  void on_start_object() override {
    if (depth_ == 1 && section_ == Section::other) return enter();
    if (depth_ == 2 && section_ == Section::map) unexpected("an object");
    enter();
  }
  void on_end_object() override { leave(); }
  void on_start_array() override {
    if (depth_ == 0 || section_ == Section::map || (section_ == Section::metadata && depth_ == 1))
      unexpected("an array");
    enter();
  }
  void on_end_array() override { leave(); }

  void on_key(std::string&& key) override {
    if (depth_ == 1) {
      section_ = key == "weight_map" ? Section::map : key == "metadata" ? Section::metadata : Section::other;
      if (section_ == Section::other) return;
      bool& has = section_ == Section::map ? has_map_ : has_metadata_;
      if (has) fail("has " + key + " twice");
      has = true;
      expected_ = "an object";
    } else if (depth_ == 2 && section_ == Section::map) {
      about("tensor " + key);
      if (!names_.insert(key).second) fail("appears twice");
      name_ = std::move(key);
      expected_ = "the name of a file";
    } else if (depth_ == 2 && section_ == Section::metadata) {
      is_total_size_ = key == "total_size";
      if (is_total_size_ && index.total_size) fail("has total_size twice");
    }
  }

  void on_string(std::string&& text) override {
    if (depth_ < 2 && section_ != Section::other) unexpected("a string");
    if (section_ != Section::map || depth_ != 2) return on_scalar();
    if (text.empty() || text == "." || text == ".." || text.find_first_of(std::string("/\\\0", 3)) != std::string::npos)
      fail("is said to be in \"" + text + "\", which is not the name of a file beside the index");
    index.files.emplace_back(std::move(name_), std::move(text));
  }
  void on_number(std::uint64_t) override { on_number_text(); }
  void on_other_number(const char*) override { on_number_text(); }
  void on_other(const char* what) override {
    if ((depth_ < 2 && section_ != Section::other) || section_ == Section::map) unexpected(what);
    on_scalar();
  }

 private:
  enum class Section { none, map, metadata, other };

  void enter() {
    ++depth_;
    is_total_size_ = false;
  }
  void leave() {
    --depth_;
    if (depth_ <= 1) about("");
  }
  void on_scalar() { is_total_size_ = false; }

  void on_number_text() {
    if ((depth_ < 2 && section_ != Section::other) || section_ == Section::map) unexpected("a number");
    if (section_ == Section::metadata && depth_ == 2 && is_total_size_) {
      constexpr const char* characters = "0123456789+-.eE";
      const std::size_t last = text_.find_last_of(characters, position - 1);
      const std::size_t before = text_.find_last_not_of(characters, last);
      index.total_size = {before + 1, last - before};
    }
    on_scalar();
  }

  const std::string& text_;
  std::unordered_set<std::string> names_;
  std::string name_;
  int depth_ = 0;
  Section section_ = Section::none;
  bool has_map_ = false;
  bool has_metadata_ = false;
  bool is_total_size_ = false;
};

[[noreturn]] void fail(const InputFile& file, const std::string& subject, const std::string& message,
                       std::optional<std::uint64_t> offset = {}) {
  Error error = Error(Fault::input, file.path(), message).about(subject);
  if (offset) throw std::move(error).at(*offset);
  throw error;
}

// Sizes and places, as the reference library has them: the data without holes or overlaps, from its first byte to the
// end of the file.
void place_tensors(const InputFile& file, std::vector<SafetensorsEntry>& entries, Safetensors& out) {
  const std::uint64_t available = file.size() - out.data_start;
  out.tensors.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    const std::string subject = "tensor " + entry.name;
    const std::uint64_t at = text_start + entry.place;
    const std::string offsets = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
    if (entry.begin > entry.end) fail(file, subject, "its data_offsets " + offsets + " run backwards", at);
    if (entry.end > available)
      fail(file, subject,
           "its data_offsets " + offsets + " go beyond the end of the file (" + std::to_string(available) +
               " bytes of data)",
           at);
    Tensor tensor;
    tensor.type = types::from_dtype(entry.dtype);
    tensor.offset = out.data_start + entry.begin;
    tensor.bytes = entry.end - entry.begin;
    const std::optional<std::uint64_t> elements = element_count(entry.shape);
    if (!elements) fail(file, subject, "its shape has more than 2^64 elements", at);
    tensor.elements = *elements;
    if (tensor.type.known() &&
        (tensor.bytes % tensor.type.block_bytes != 0 || tensor.bytes / tensor.type.block_bytes != tensor.elements))
      fail(file, subject,
           "its data_offsets " + offsets + " do not hold " + std::to_string(tensor.elements) + " elements of " +
               tensor.type.name,
           at);
    tensor.name = std::move(entry.name);
    tensor.shape = std::move(entry.shape);
    out.tensors.push_back(std::move(tensor));
  }
  out.data_order.resize(entries.size());
  std::iota(out.data_order.begin(), out.data_order.end(), std::size_t{0});
  std::stable_sort(out.data_order.begin(), out.data_order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(entries[a].begin, entries[a].end) < std::pair(entries[b].begin, entries[b].end);
  });
  std::uint64_t expected = 0;
  for (const std::size_t i : out.data_order) {
    const SafetensorsEntry& entry = entries[i];
    if (entry.begin != expected)
      fail(file, "tensor " + out.tensors[i].name,
           entry.begin < expected
               ? "its data overlaps that of another tensor"
               : "there is a hole of " + std::to_string(entry.begin - expected) + " bytes before its data",
           out.data_start + expected);
    expected = entry.end;
  }
  if (expected != available)
    throw Error(Fault::input, file.path(),
                std::to_string(available - expected) + " bytes at the end belong to no tensor")
        .at(out.data_start + expected);
}

// Reads our entries of __metadata__ and gives packed tensors their types and shapes.
class OwnEntries {
 public:
  OwnEntries(const InputFile& file, Safetensors& out, Texts&& metadata) : file_(file), out_(out) {
    for (auto& [key, value] : metadata) {
      if (is_own_key(key)) {
        if (out_.record.first_key.empty()) out_.record.first_key = key;
        if (out_.record.pn_key.empty() && is_pn_key(key)) out_.record.pn_key = key;
        own_.emplace(key, std::move(value));
      } else {
        out_.metadata.emplace_back(std::move(key), std::move(value));
      }
    }
    for (std::size_t i = 0; i < out_.tensors.size(); ++i) tensors_.emplace(out_.tensors[i].name, i);
  }

  void apply() {
    PackRecord& record = out_.record;
    if (const std::string* header = find("p12.header")) {
      record.has_header = true;
      out_.original_header = *header;
    }
    if (const std::string* size = find("p12.total_size")) {
      // It is written into an index again, so it must be a number and nothing else.
      if (size->find_first_not_of("0123456789+-.eE") != std::string::npos || !nlohmann::json::accept(*size))
        fail(file_, "key p12.total_size", "must be a number");
      record.total_size = *size;
    }
    record.p12 = find("p12.version") != nullptr || find("p12.tensors") != nullptr;
    record.pn = !record.pn_key.empty();
    if (record.p12) p12();
    if (find("pn.version") != nullptr || find("pn.tensors") != nullptr) pn();
  }

 private:
  const std::string* find(const char* key) const {
    const auto found = own_.find(key);
    return found == own_.end() ? nullptr : &found->second;
  }
  const std::string& require(const char* key) const {
    const std::string* value = find(key);
    if (value == nullptr) fail(file_, std::string("key ") + key, "is missing from __metadata__");
    return *value;
  }

  void p12() {
    if (require("p12.version") != "1")
      fail(file_, "key p12.version", "BF16_P12 version " + require("p12.version") + " is not supported");
    for (const std::string& name : names("p12.tensors")) {
      Tensor& tensor = packed(name, "p12.tensors", types::p12());
      tensor.shape.back() = tensor.shape.back() / tensor.type.block_bytes * tensor.type.block;
    }
    if (const std::string* from = find("p12.rounded_from")) {
      if (*from != "F32" && *from != "F16" && *from != "mixed")
        fail(file_, "key p12.rounded_from", "must be F32, F16 or mixed");
      out_.record.rounded_from = *from;
    }
  }

  void pn() {
    if (require("pn.version") != "0")
      fail(file_, "key pn.version", "PN version " + require("pn.version") + " is not supported");
    PnTensorsEvents events(file_.path(), "pn.tensors in its __metadata__", {});
    const std::string& text = require("pn.tensors");
    parse_json(text.data(), text.size(), events);
    for (const PnTensor& described : events.tensors) {
      const TensorType& type = described.type == types::pn3t().name ? types::pn3t() : types::pn4t();
      if (described.type != type.name)
        fail(file_, "key pn.tensors", "tensor " + described.name + " has the unknown type " + described.type);
      Tensor& tensor = packed(described.name, "pn.tensors", type);
      tensor.shape.back() = tensor.shape.back() / type.block_bytes * type.block;
      if (tensor.shape != described.shape)
        fail(file_, "tensor " + tensor.name, "its shape does not fit the one in pn.tensors");
    }
    if (const std::string* search = find("pn.search")) {
      if (*search != "reference" && *search != "weighted")
        fail(file_, "key pn.search", "must be reference or weighted");
      out_.record.weighted_search = *search == "weighted";
    }
    if (const std::string* block = find("pn.hadamard.block_size")) {
      const bool digits = !block->empty() && block->find_first_not_of("0123456789") == std::string::npos;
      if (!digits || block->size() > 9) fail(file_, "key pn.hadamard.block_size", "must be a number");
      out_.record.hadamard_block = static_cast<std::uint32_t>(std::stoul(*block));
    }
    if (find("pn.hadamard.exclude") != nullptr)
      for (std::string& name : names("pn.hadamard.exclude")) out_.record.exclude(std::move(name));
  }

  std::vector<std::string> names(const char* key) const {
    NamesEvents events(file_.path(), std::string(key) + " in its __metadata__");
    const std::string& text = require(key);
    parse_json(text.data(), text.size(), events);
    return std::move(events.names);
  }

  // The tensor of a name in one of our lists, given its packed type; the caller makes its shape fit.
  Tensor& packed(const std::string& name, const char* key, const TensorType& type) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      fail(file_, std::string("key ") + key, "names the tensor " + name + ", which is not there");
    Tensor& tensor = out_.tensors[found->second];
    if (tensor.type.name != "U8" || tensor.shape.size() < 2 || tensor.elements == 0 ||
        tensor.shape.back() % type.block_bytes != 0)
      fail(file_, "tensor " + name,
           "is in " + std::string(key) + " but is not U8 with rows of whole " + std::to_string(type.block_bytes) +
               "-byte blocks",
           tensor.offset);
    tensor.type = type;
    tensor.elements = tensor.bytes / type.block_bytes * type.block;
    return tensor;
  }

  const InputFile& file_;
  Safetensors& out_;
  std::unordered_map<std::string, std::string> own_;
  std::unordered_map<std::string, std::size_t> tensors_;
};

std::string shape_json(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

std::string names_json(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) {
    if (text.size() > 1) text += ",";
    append_json_quoted(text, name);
  }
  return text + "]";
}

std::string p12_tensors(const std::vector<Tensor>& tensors) {
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors)
    if (types::is_p12(tensor.type)) names.push_back(tensor.name);
  return names_json(names);
}

std::string pn_tensors(const std::vector<Tensor>& tensors, const std::vector<Tensor>& sources) {
  std::string text = "{";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!types::is_pn(tensors[i].type)) continue;
    const TensorType& original = types::is_p12(sources[i].type) ? types::bf16() : sources[i].type;
    if (text.size() > 1) text += ",";
    append_json_quoted(text, tensors[i].name);
    text += ":[\"" + tensors[i].type.name + "\"," + shape_json(sources[i].shape) + ",\"" + types::dtype_of(original) +
            "\"]";
  }
  return text + "}";
}

std::string value_text(const KeyValue& value) {
  if (const auto* number = std::get_if<std::uint32_t>(&value)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return names_json(std::get<std::vector<std::string>>(value));
}

// The shape that the file has.
std::vector<std::uint64_t> stored_shape(const Tensor& tensor) {
  std::vector<std::uint64_t> shape = tensor.shape;
  if (types::is_packed(tensor.type) && tensor.elements != 0) shape.back() = bytes_of(tensor.type, shape.back());
  return shape;
}

}  // namespace

bool looks_like_safetensors(const InputFile& file) {
  if (file.size() < text_start + 1 || looks_like_json(file)) return false;
  std::vector<std::uint8_t> scratch;
  return file.read(text_start, 1, scratch)[0] == '{';
}

bool looks_like_json(const InputFile& file) {
  std::vector<std::uint8_t> scratch;
  const std::size_t length = static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 4096));
  const std::string bytes(reinterpret_cast<const char*>(file.read(0, length, scratch)), length);
  // JSON text has no zero bytes; the u64 with which a safetensors file begins always has.
  if (bytes.substr(0, text_start).find('\0') != std::string::npos) return false;
  const std::string byte_order_mark = "\xEF\xBB\xBF";
  const std::size_t start = bytes.rfind(byte_order_mark, 0) == 0 ? byte_order_mark.size() : 0;
  const std::size_t first = bytes.find_first_not_of(" \t\r\n", start);
  return first != std::string::npos && bytes[first] == '{';
}

SafetensorsHeader parse_safetensors_header(const char* text, std::size_t length, const std::string& file,
                                           const std::string& what, std::optional<std::uint64_t> origin) {
  HeaderEvents events(file, what, origin);
  parse_json(text, length, events);
  return events.take();
}

Safetensors read_safetensors(const InputFile& file) {
  if (file.size() < text_start) throw Error(Fault::input, file.path(), "is too short to be a safetensors file").at(0);
  std::vector<std::uint8_t> scratch;
  const std::uint8_t* length_bytes = file.read(0, text_start, scratch);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(length_bytes[i]) << (8 * i);
  if (length > file.size() - text_start)
    throw Error(Fault::input, file.path(),
                "its header of " + std::to_string(length) + " bytes goes beyond the end of the file")
        .at(0);
  if (length == 0) throw Error(Fault::input, file.path(), "its header is empty").at(0);

  Safetensors out;
  out.header_bytes = length;
  out.header_end = text_start + length;
  out.data_start = out.header_end;
  out.data_end = file.size();
  out.tail_start = file.size();
  const std::uint8_t* bytes = file.read(text_start, static_cast<std::size_t>(length), scratch);
  if (bytes[0] != '{') throw Error(Fault::input, file.path(), "its header does not begin with {").at(text_start);
  SafetensorsHeader header = parse_safetensors_header(
      reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length), file.path(), "its header", text_start);
  scratch = {};
  out.metadata_place = header.metadata_place;
  place_tensors(file, header.entries, out);
  OwnEntries(file, out, std::move(header.metadata)).apply();
  require_rotation_fits(file, out);
  return out;
}

std::string SafetensorsOutput::serialize(const std::vector<Tensor>& tensors, std::uint64_t text_bytes) const {
  Texts own;
  const auto add = [&](const Keys& keys, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < std::min(last, keys.size()); ++i)
      own.emplace_back(keys[i].first, value_text(keys[i].second));
  };
  // Each list of tensors follows its version.
  const Keys p12 = p12_keys(record);
  add(p12, 0, 1);
  if (record.p12) own.emplace_back("p12.tensors", p12_tensors(tensors));
  add(p12, 1, p12.size());
  const Keys pn = pn_keys(record);
  add(pn, 0, 1);
  if (record.pn) own.emplace_back("pn.tensors", pn_tensors(tensors, *sources));
  add(pn, 1, pn.size());

  std::string text(text_start, '\0');
  text += "{";
  const auto separate = [&] {
    if (text.size() > text_start + 1) text += ",";
  };
  const auto put_entry = [&](const std::string& key, const std::string& value) {
    if (text.back() != '{') text += ",";
    append_json_quoted(text, key);
    text += ":";
    append_json_quoted(text, value);
  };
  const bool has_metadata = metadata_place.has_value() || !metadata.empty() || record.any();
  const auto put_metadata = [&] {
    separate();
    append_json_quoted(text, metadata_name);
    text += ":{";
    for (const auto& [key, value] : metadata) put_entry(key, value);
    for (const auto& [key, value] : own) put_entry(key, value);
    if (record.has_header) put_entry("p12.header", original_header);
    if (record.total_size) put_entry("p12.total_size", *record.total_size);
    text += "}";
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (has_metadata && i == metadata_place.value_or(0)) put_metadata();
    const Tensor& tensor = tensors[i];
    separate();
    append_json_quoted(text, tensor.name);
    text += ":{\"dtype\":";
    append_json_quoted(text, types::dtype_of(tensor.type));
    text += ",\"shape\":" + shape_json(stored_shape(tensor)) + ",\"data_offsets\":[" + std::to_string(tensor.offset) +
            "," + std::to_string(tensor.offset + tensor.bytes) + "]}";
  }
  if (has_metadata && metadata_place.value_or(0) >= tensors.size()) put_metadata();
  text += "}";

  const std::uint64_t length = text_bytes != 0 ? text_bytes : align_up(text.size() - text_start, 8);
  text.append(static_cast<std::size_t>(length - (text.size() - text_start)), ' ');
  for (std::size_t i = 0; i < text_start; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xFFu);
  return text;
}

std::string SafetensorsIndex::total_size_text() const {
  return total_size ? text.substr(total_size->first, total_size->second) : std::string();
}

std::string SafetensorsIndex::with_total_size(const std::string& number) const {
  std::string changed = text;
  if (total_size) changed.replace(total_size->first, total_size->second, number);
  return changed;
}

SafetensorsIndex read_safetensors_index(const InputFile& file) {
  std::vector<std::uint8_t> scratch;
  const std::uint8_t* bytes = file.read(0, static_cast<std::size_t>(file.size()), scratch);
  const std::string text(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(file.size()));
  IndexEvents events(file.path(), text);
  parse_json(text.data(), text.size(), events);
  events.finish();
  events.index.text = text;
  return std::move(events.index);
}

}  // namespace pn::io
