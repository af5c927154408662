#include "gguf.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "error.hpp"

namespace pn::io {
namespace {

// GGUF value types.
enum ValueType : std::uint32_t {
  value_u8 = 0,
  value_i8 = 1,
  value_u16 = 2,
  value_i16 = 3,
  value_u32 = 4,
  value_i32 = 5,
  value_f32 = 6,
  value_bool = 7,
  value_string = 8,
  value_array = 9,
  value_u64 = 10,
  value_i64 = 11,
  value_f64 = 12,
};

// Bytes of a value of fixed size; 0 for strings, arrays and types that do not exist.
std::uint64_t fixed_size(std::uint32_t type) {
  switch (type) {
    case value_u8:
    case value_i8:
    case value_bool: return 1;
    case value_u16:
    case value_i16: return 2;
    case value_u32:
    case value_i32:
    case value_f32: return 4;
    case value_u64:
    case value_i64:
    case value_f64: return 8;
    default: return 0;
  }
}

constexpr std::uint32_t magic_number = 0x46554747;  // "GGUF"
constexpr int max_array_depth = 16;
constexpr std::uint32_t max_dimensions = 4;
constexpr std::uint64_t smallest_key = 8 + 4 + 1;         // name length, type, a u8
constexpr std::uint64_t smallest_tensor = 8 + 4 + 4 + 8;  // name length, dimensions, type, offset

// A position in the file that only moves forward and never beyond the end.
class Cursor {
 public:
  explicit Cursor(const InputFile& file, std::uint64_t position = 0) : file_(file), position_(position) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return file_.size() - position_; }

  // What errors are about from here on: a key or tensor by name, or while its name is not known, its number.
  void subject(std::string text) { subject_ = std::move(text), part_.clear(); }
  void part(const char* what, std::uint64_t number, std::uint64_t count) {
    subject_.clear();
    part_ = " (in " + std::string(what) + " " + std::to_string(number) + " of " + std::to_string(count) + ")";
  }

  [[noreturn]] void fail(const std::string& message, std::uint64_t offset) const {
    Error error(Fault::input, file_.path(), message + part_);
    if (!subject_.empty()) throw std::move(error).about(subject_).at(offset);
    throw std::move(error).at(offset);
  }

  std::uint32_t u32() { return static_cast<std::uint32_t>(integer(4)); }
  std::uint64_t u64() { return integer(8); }

  // A little-endian integer of 1..8 bytes.
  std::uint64_t integer(std::size_t size) {
    const std::uint8_t* bytes = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
  }

  // A length-prefixed string; `what` names it in the error.
  std::string string(const char* what) {
    const std::uint64_t at = position_;
    const std::uint64_t length = u64();
    require(length, what, at);
    std::string text;
    while (text.size() < length) {
      const std::size_t piece = static_cast<std::size_t>(std::min<std::uint64_t>(length - text.size(), window_size));
      const std::uint8_t* bytes = take(piece);
      text.append(reinterpret_cast<const char*>(bytes), piece);
    }
    return text;
  }

  void skip(std::uint64_t length) { position_ += length; }  // length <= remaining()

  // Fails unless `length` bytes of `what` are left.
  void require(std::uint64_t length, const char* what, std::uint64_t at) const {
    if (length > remaining())
      fail(std::string(what) + " of " + std::to_string(length) + " bytes goes beyond the end of the file", at);
  }

 private:
  static constexpr std::size_t window_size = 1 << 16;

  const std::uint8_t* take(std::size_t length) {
    if (length > remaining()) fail("the file ends inside its header", file_.size());
    if (position_ < window_start_ || position_ + length > window_start_ + window_length_) {
      window_start_ = position_;
      window_length_ = static_cast<std::size_t>(std::min<std::uint64_t>(window_size, remaining()));
      window_ = file_.read(window_start_, window_length_, scratch_);
    }
    const std::uint8_t* bytes = window_ + (position_ - window_start_);
    position_ += length;
    return bytes;
  }

  const InputFile& file_;
  std::uint64_t position_;
  std::string subject_;
  std::string part_;
  std::vector<std::uint8_t> scratch_;
  const std::uint8_t* window_ = nullptr;
  std::uint64_t window_start_ = 0;
  std::size_t window_length_ = 0;
};

void skip_string(Cursor& cursor) {
  const std::uint64_t at = cursor.position();
  const std::uint64_t length = cursor.u64();
  cursor.require(length, "a string", at);
  cursor.skip(length);
}

// NOLINTNEXTLINE(misc-no-recursion): not deeper than max_array_depth
void skip_array(Cursor& cursor, int depth) {
  const std::uint64_t at = cursor.position();
  if (depth > max_array_depth)
    cursor.fail("arrays are nested more than " + std::to_string(max_array_depth) + " deep", at);
  const std::uint32_t type = cursor.u32();
  const std::uint64_t count = cursor.u64();
  const std::uint64_t size = fixed_size(type);
  if (size == 0 && type != value_string && type != value_array)
    cursor.fail("an array of the unknown value type " + std::to_string(type), at);
  const std::uint64_t smallest = size != 0 ? size : type == value_string ? 8 : 12;
  if (count > cursor.remaining() / smallest)
    cursor.fail("an array of " + std::to_string(count) + " elements goes beyond the end of the file", at);
  if (size != 0) {
    cursor.skip(count * size);
  } else {
    for (std::uint64_t i = 0; i < count; ++i)
      type == value_string ? skip_string(cursor) : skip_array(cursor, depth + 1);
  }
}

GgufKey read_key(Cursor& cursor) {
  GgufKey key;
  key.offset = cursor.position();
  key.name = cursor.string("the name of a key");
  cursor.subject("key " + key.name);
  const std::uint64_t at = cursor.position();
  key.type = cursor.u32();
  const std::uint64_t size = fixed_size(key.type);
  if (size != 0) {
    key.number = cursor.integer(static_cast<std::size_t>(size));
  } else if (key.type == value_string) {
    if (is_own_key(key.name)) {
      key.text = cursor.string("the value");
    } else {
      skip_string(cursor);
    }
  } else if (key.type == value_array) {
    skip_array(cursor, 1);
  } else {
    cursor.fail("the unknown value type " + std::to_string(key.type), at);
  }
  key.bytes = cursor.position() - key.offset;
  return key;
}

std::uint32_t read_version(Cursor& cursor) {
  if (cursor.remaining() < 4) cursor.fail("is too short to be a GGUF file", 0);
  const std::uint32_t magic = cursor.u32();
  if (magic != magic_number) cursor.fail("is not a GGUF file (it does not begin with GGUF)", 0);
  const std::uint32_t version = cursor.u32();
  if (version == 2 || version == 3) return version;
  if (version == 0) cursor.fail("GGUF version 0 does not exist", 4);
  if (version == 1) cursor.fail("GGUF version 1 is not supported: convert the file to version 3 first", 4);
  if ((version & 0xFFFFu) == 0) cursor.fail("is a big-endian GGUF file; only little-endian ones are supported", 4);
  cursor.fail("GGUF version " + std::to_string(version) + " is newer than this program (it reads 2 and 3)", 4);
}

// Reads the keys that matter here and checks them.
class KeyRules {
 public:
  KeyRules(const InputFile& file, Gguf& gguf) : file_(file), gguf_(gguf) {}

  void apply() {
    if (const GgufKey* key = gguf_.find("general.alignment")) {
      gguf_.alignment = u32(*key);
      if (gguf_.alignment < 8 || gguf_.alignment > 65536 || (gguf_.alignment & (gguf_.alignment - 1)) != 0)
        fail(*key, "an alignment of " + std::to_string(gguf_.alignment) + " is not a power of two from 8 to 65536");
    }
    PackRecord& record = gguf_.record;
    for (const GgufKey& key : gguf_.keys) {
      if (record.first_key.empty() && is_own_key(key.name)) record.first_key = key.name;
      record.p12 = record.p12 || is_p12_key(key.name);
      record.pn = record.pn || is_pn_key(key.name);
      if (record.pn_key.empty() && is_pn_key(key.name)) record.pn_key = key.name;
    }
    if (record.p12) p12_keys();
    if (record.pn) pn_keys();
  }

 private:
  void p12_keys() {
    const GgufKey* version = gguf_.find("p12.version");
    const GgufKey* id = gguf_.find("p12.type_id");
    if (version == nullptr || id == nullptr)
      throw Error(Fault::input, file_.path(), "has p12.* keys but not both p12.version and p12.type_id");
    if (u32(*version) != 1) fail(*version, "BF16_P12 version " + std::to_string(version->number) + " is not supported");
    if (types::is_reserved_id(u32(*id)))
      fail(*id, "the type id " + std::to_string(id->number) + " belongs to another type");
    gguf_.record.p12_type_id = u32(*id);
    if (const GgufKey* key = gguf_.find("p12.rounded_from")) {
      if (key->type != value_string || (key->text != "F32" && key->text != "F16" && key->text != "mixed"))
        fail(*key, "must be the string \"F32\", \"F16\" or \"mixed\"");
      gguf_.record.rounded_from = key->text;
    }
  }

  void pn_keys() {
    if (const GgufKey* key = gguf_.find("pn.version"); key != nullptr && u32(*key) != 0)
      fail(*key, "PN version " + std::to_string(key->number) + " is not supported");
    if (const GgufKey* key = gguf_.find("pn.search")) {
      if (key->type != value_string || (key->text != "reference" && key->text != "weighted"))
        fail(*key, "must be the string \"reference\" or \"weighted\"");
      gguf_.record.weighted_search = key->text == "weighted";
    }
    if (const GgufKey* key = gguf_.find("pn.hadamard.block_size")) gguf_.record.hadamard_block = u32(*key);
    if (const GgufKey* key = gguf_.find("pn.hadamard.exclude"))
      for (std::string& name : strings(*key)) gguf_.record.exclude(std::move(name));
  }

  // The value of a key that is an array of strings; read_key has checked its extent.
  std::vector<std::string> strings(const GgufKey& key) const {
    Cursor cursor(file_, key.offset + 8 + key.name.size() + 4);
    std::vector<std::string> texts;
    if (key.type != value_array || cursor.u32() != value_string) fail(key, "must be an array of strings");
    for (std::uint64_t left = cursor.u64(); left > 0; --left) texts.push_back(cursor.string("a string"));
    return texts;
  }

  std::uint32_t u32(const GgufKey& key) const {
    if (key.type != value_u32) fail(key, "must be of the type u32");
    return static_cast<std::uint32_t>(key.number);
  }

  [[noreturn]] void fail(const GgufKey& key, const std::string& message) const {
    throw Error(Fault::input, file_.path(), message).about("key " + key.name).at(key.offset);
  }

  const InputFile& file_;
  Gguf& gguf_;
};

// Everything about one tensor that its description alone decides; `offset` stays relative to the data.
Tensor read_tensor(Cursor& cursor, const Gguf& gguf) {
  const std::uint64_t at = cursor.position();
  Tensor tensor;
  tensor.name = cursor.string("the name of a tensor");
  cursor.subject("tensor " + tensor.name);
  const std::uint64_t dimensions_at = cursor.position();
  const std::uint32_t dimensions = cursor.u32();
  if (dimensions > max_dimensions)
    cursor.fail("has " + std::to_string(dimensions) + " dimensions; GGUF allows " + std::to_string(max_dimensions),
                dimensions_at);
  for (std::uint32_t i = 0; i < dimensions; ++i) tensor.shape.push_back(cursor.u64());
  std::reverse(tensor.shape.begin(), tensor.shape.end());  // in the file K comes first

  const std::uint32_t id = cursor.u32();
  tensor.type = gguf.record.p12_type_id == id ? types::p12(id) : types::from_ggml_id(id);
  const std::uint64_t offset_at = cursor.position();
  tensor.offset = cursor.u64();
  if (tensor.offset % gguf.alignment != 0)
    cursor.fail("its data begins at " + std::to_string(tensor.offset) + ", not a multiple of the alignment " +
                    std::to_string(gguf.alignment),
                offset_at);

  const std::optional<std::uint64_t> elements = element_count(tensor.shape);
  if (!elements) cursor.fail("its shape has more than 2^64 elements", at);
  tensor.elements = *elements;
  if (tensor.elements != 0 && tensor.type.known()) {
    if (tensor.row_length() % tensor.type.block != 0)
      cursor.fail("its rows of " + std::to_string(tensor.row_length()) + " elements are not whole blocks of " +
                      std::to_string(tensor.type.block) + " (" + tensor.type.name + ")",
                  at);
    const std::uint64_t blocks = tensor.elements / tensor.type.block;
    if (blocks > std::numeric_limits<std::uint64_t>::max() / tensor.type.block_bytes)
      cursor.fail("its data is larger than 2^64 bytes", at);
    tensor.bytes = blocks * tensor.type.block_bytes;
  }
  cursor.subject("");
  return tensor;
}

[[noreturn]] void fail_tensor(const InputFile& file, const Tensor& tensor, const std::string& message,
                              std::uint64_t offset) {
  throw Error(Fault::input, file.path(), message).about("tensor " + tensor.name).at(offset);
}

// Gives unknown types their extent, checks that all data lies inside the file and nowhere twice, and makes the
// offsets absolute.
void place_tensors(const InputFile& file, Gguf& gguf) {
  const std::uint64_t available = file.size() > gguf.data_start ? file.size() - gguf.data_start : 0;
  std::vector<Tensor*> by_offset;  // those that have bytes
  for (const std::size_t i : gguf.data_order)
    if (gguf.tensors[i].elements != 0) by_offset.push_back(&gguf.tensors[i]);

  for (std::size_t i = 0; i < by_offset.size(); ++i) {
    Tensor& tensor = *by_offset[i];
    const bool last = i + 1 == by_offset.size();
    // What an unknown type that takes no bytes would be is not decided here: there has to be at least one.
    const std::uint64_t needed = tensor.type.known() ? tensor.bytes : 1;
    if (tensor.offset > available || needed > available - tensor.offset)
      fail_tensor(file, tensor,
                  "its " + (tensor.type.known() ? std::to_string(needed) + " bytes" : std::string("data")) +
                      " at data offset " + std::to_string(tensor.offset) + " go beyond the end of the file (" +
                      std::to_string(available) + " bytes of data)",
                  gguf.data_start + std::min(tensor.offset, available));
    if (!tensor.type.known())
      tensor.bytes = (last ? available : std::min(available, by_offset[i + 1]->offset)) - tensor.offset;
    if (!last && (tensor.bytes == 0 || tensor.bytes > by_offset[i + 1]->offset - tensor.offset))
      fail_tensor(file, tensor, "its data overlaps that of tensor " + by_offset[i + 1]->name,
                  gguf.data_start + by_offset[i + 1]->offset);
  }

  const std::uint64_t data_bytes = by_offset.empty() ? 0 : by_offset.back()->offset + by_offset.back()->bytes;
  const std::uint64_t padded_bytes = align_up(data_bytes, gguf.alignment);
  for (Tensor& tensor : gguf.tensors) {
    if (tensor.elements == 0 && tensor.offset > padded_bytes)
      fail_tensor(file, tensor, "begins at data offset " + std::to_string(tensor.offset) + ", beyond the data",
                  gguf.data_start);
    tensor.offset += gguf.data_start;
  }

  if (data_bytes == 0) {  // no data at all: the padding after the header may be there or not
    if (file.size() != gguf.header_end && file.size() < gguf.data_start)
      throw Error(Fault::input, file.path(), "the file ends inside the padding after its header").at(file.size());
    gguf.padded = file.size() >= gguf.data_start;
    gguf.data_end = std::min(file.size(), gguf.data_start);
    gguf.tail_start = gguf.data_end;
    return;
  }
  gguf.data_end = gguf.data_start + data_bytes;
  gguf.padded = padded_bytes == data_bytes || available != data_bytes;
  if (gguf.padded && available < padded_bytes)
    throw Error(Fault::input, file.path(), "the file ends inside the padding after the last tensor").at(file.size());
  gguf.tail_start = gguf.padded ? gguf.data_start + padded_bytes : gguf.data_end;
}

void put(std::vector<std::uint8_t>& out, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

void put(std::vector<std::uint8_t>& out, const std::string& text) {
  put(out, text.size(), 8);
  out.insert(out.end(), text.begin(), text.end());
}

}  // namespace

const GgufKey* Gguf::find(const std::string& name) const {
  const auto key = std::find_if(keys.begin(), keys.end(), [&](const GgufKey& k) { return k.name == name; });
  return key == keys.end() ? nullptr : &*key;
}

bool looks_like_gguf(const InputFile& file) {
  if (file.size() < 4) return false;
  std::vector<std::uint8_t> scratch;
  return std::memcmp(file.read(0, 4, scratch), "GGUF", 4) == 0;
}

bool is_string(const GgufKey& key) { return key.type == value_string; }

bool is_integer(const GgufKey& key) { return key.type <= value_i32 || key.type == value_u64 || key.type == value_i64; }

std::string string_value(const InputFile& file, const GgufKey& key) {
  return Cursor(file, key.offset + 8 + key.name.size() + 4).string("the value");
}

Gguf read_gguf(const InputFile& file) {
  Cursor cursor(file);
  Gguf gguf;
  gguf.version = read_version(cursor);
  const std::uint64_t tensor_count = cursor.u64();
  const std::uint64_t key_count = cursor.u64();
  if (key_count > cursor.remaining() / smallest_key)
    cursor.fail("claims " + std::to_string(key_count) + " keys, more than fit into the file", 16);
  if (tensor_count > cursor.remaining() / smallest_tensor)
    cursor.fail("claims " + std::to_string(tensor_count) + " tensors, more than fit into the file", 8);

  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < key_count; ++i) {
    cursor.part("key", i + 1, key_count);
    gguf.keys.push_back(read_key(cursor));
    if (!names.insert(gguf.keys.back().name).second) cursor.fail("appears twice", gguf.keys.back().offset);
  }
  KeyRules(file, gguf).apply();

  names.clear();
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    cursor.part("tensor", i + 1, tensor_count);
    const std::uint64_t at = cursor.position();
    gguf.tensors.push_back(read_tensor(cursor, gguf));
    if (!names.insert(gguf.tensors.back().name).second) fail_tensor(file, gguf.tensors.back(), "appears twice", at);
  }
  gguf.data_order.resize(gguf.tensors.size());
  std::iota(gguf.data_order.begin(), gguf.data_order.end(), std::size_t{0});
  std::stable_sort(gguf.data_order.begin(), gguf.data_order.end(),
                   [&](std::size_t a, std::size_t b) { return gguf.tensors[a].offset < gguf.tensors[b].offset; });
  gguf.header_end = cursor.position();
  gguf.data_start = align_up(gguf.header_end, gguf.alignment);
  place_tensors(file, gguf);
  require_rotation_fits(file, gguf);
  return gguf;
}

std::vector<std::uint8_t> GgufHeader::serialize(const InputFile& source) const {
  std::vector<std::uint8_t> out;
  put(out, magic_number, 4);
  put(out, version, 4);
  put(out, tensors.size(), 8);
  put(out, kept.size() + added.size(), 8);
  std::vector<std::uint8_t> scratch;
  for (const GgufKey& key : kept) {
    const std::uint8_t* bytes = source.read(key.offset, static_cast<std::size_t>(key.bytes), scratch);
    out.insert(out.end(), bytes, bytes + key.bytes);
  }
  for (const auto& [name, value] : added) {
    put(out, name);
    if (const auto* number = std::get_if<std::uint32_t>(&value)) {
      put(out, value_u32, 4);
      put(out, *number, 4);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      put(out, value_string, 4);
      put(out, *text);
    } else {
      const auto& texts = std::get<std::vector<std::string>>(value);
      put(out, value_array, 4);
      put(out, value_string, 4);
      put(out, texts.size(), 8);
      for (const std::string& entry : texts) put(out, entry);
    }
  }
  for (const Tensor& tensor : tensors) {
    put(out, tensor.name);
    put(out, tensor.shape.size(), 4);
    for (auto n = tensor.shape.rbegin(); n != tensor.shape.rend(); ++n) put(out, *n, 8);
    put(out, types::is_p12(tensor.type) ? p12_type_id.value() : tensor.type.id.value(), 4);
    put(out, tensor.offset, 8);
  }
  if (padded) out.resize(static_cast<std::size_t>(align_up(out.size(), alignment)));
  return out;
}

}  // namespace pn::io
