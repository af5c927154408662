// safetensors files and their indexes to order: mostly sound ones with everything that the format allows, seldom with a
// fault.
#pragma once

#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fuzz.hpp"
#include "gguf_builder.hpp"

namespace fuzz {

using Entries = std::vector<std::pair<std::string, std::string>>;

// How JSON is written.
struct JsonStyle {
  bool spaces = false;     // between tokens
  bool escapes = false;    // letters as \u0061
  bool reordered = false;  // shape first, dtype last

  std::string quoted(const std::string& text) const {
    static constexpr const char* digits = "0123456789aBcDeF";
    std::string out = "\"";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || (escapes && byte < 0x80 && byte % 3 == 0)) {
        out += std::string("\\u00") + digits[byte >> 4] + digits[byte & 15];
      } else {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
      }
    }
    return out + '"';
  }
  std::string numbers(const std::vector<std::uint64_t>& values) const {
    std::string out = "[";
    for (std::size_t i = 0; i < values.size(); ++i) out += (i == 0 ? "" : comma()) + std::to_string(values[i]);
    return out + "]";
  }
  std::string object(const std::vector<std::string>& members) const {
    std::string out = "{";
    for (std::size_t i = 0; i < members.size(); ++i) out += (i == 0 ? "" : comma()) + members[i];
    return out + (spaces ? "\n}" : "}");
  }
  std::string member(const std::string& name, const std::string& value) const {
    return quoted(name) + (spaces ? " : " : ":") + value;
  }
  std::string comma() const { return spaces ? ",\n " : ","; }
};

inline Text with_length(const std::string& header, const Text& data) {
  Text out;
  put<std::uint64_t>(out, header.size());
  out.insert(out.end(), header.begin(), header.end());
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

struct BuiltArray {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  Text data;
  std::string packed;  // "BF16_P12", "pn3t", "pn4t" or nothing; then dtype and shape are those of the packed bytes,
  std::string original_dtype;  // and before packing they were
  std::vector<std::uint64_t> original_shape;
  std::uint64_t original_bytes = 0;
  std::uint64_t gap = 0;  // a hole before its data
};

struct BuiltSafetensors {
  std::vector<BuiltArray> tensors;
  bool reversed = false;  // data in the opposite order of the descriptions
  Entries metadata;
  std::optional<std::size_t> metadata_place;  // before that tensor; none: no __metadata__ without entries
  JsonStyle style;
  std::string header_tail;  // spaces, as a rule
  Text tail;                // bytes that belong to no tensor
  std::string odd_field;    // in the first tensor's description

  // The header of these tensors, or of what they were before packing, with other entries.
  std::string header(bool original, const Entries& entries, const std::string& end) const {
    std::vector<std::uint64_t> begins(tensors.size());
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t t = reversed ? tensors.size() - 1 - i : i;
      begins[t] = at += tensors[t].gap;
      at += bytes_of(tensors[t], original);
    }
    std::vector<std::string> members;
    const auto put_metadata = [&] {
      std::vector<std::string> texts;
      for (const auto& [key, value] : entries) texts.push_back(style.member(key, style.quoted(value)));
      members.push_back(style.member("__metadata__", style.object(texts)));
    };
    const bool has_metadata = metadata_place.has_value() || !entries.empty();
    const std::size_t place = std::min(metadata_place.value_or(0), tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (has_metadata && t == place) put_metadata();
      const bool before = original && !tensors[t].packed.empty();
      std::vector<std::string> fields{
          style.member("dtype", style.quoted(before ? tensors[t].original_dtype : tensors[t].dtype)),
          style.member("shape", style.numbers(before ? tensors[t].original_shape : tensors[t].shape)),
          style.member("data_offsets", style.numbers({begins[t], begins[t] + bytes_of(tensors[t], original)}))};
      if (style.reordered) std::swap(fields[0], fields[2]);
      if (t == 0 && !odd_field.empty()) fields.push_back(odd_field);
      members.push_back(style.member(tensors[t].name, style.object(fields)));
    }
    if (has_metadata && place == tensors.size()) put_metadata();
    return style.object(members) + end;
  }

  Text bytes() const {
    Text data;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const BuiltArray& tensor = tensors[reversed ? tensors.size() - 1 - i : i];
      data.resize(data.size() + tensor.gap);
      data.insert(data.end(), tensor.data.begin(), tensor.data.end());
    }
    data.insert(data.end(), tail.begin(), tail.end());
    return with_length(header(false, metadata, header_tail), data);
  }

 private:
  static std::uint64_t bytes_of(const BuiltArray& tensor, bool original) {
    return original && !tensor.packed.empty() ? tensor.original_bytes : tensor.data.size();
  }
};

// What the files of a model have in common.
struct Packed {
  bool p12 = false;
  bool pn = false;
  bool header = true;  // p12.header
  std::uint32_t rotation = 0;
  std::string rounded_from;
};

inline Packed any_packed(Bytes& plan) {
  static constexpr std::array<std::uint32_t, 8> rotations{0, 0, 0, 64, 64, 128, 256, 32};
  const std::uint32_t more = plan.byte();
  Packed packed;
  packed.p12 = more % 4 == 1 || more % 8 == 2;
  packed.pn = more % 4 == 2;
  packed.header = more % 16 < 12;
  if (packed.pn) packed.rotation = rotations[plan.below(8)];
  if (packed.p12 && more >= 0xC0) packed.rounded_from = more >= 0xF8 ? "F64" : "mixed";
  return packed;
}

inline std::string any_array_name(Bytes& plan, std::size_t number) {
  static constexpr std::array<const char*, 7> odd{"a \"quoted\" \\ name/",
                                                  "\xC3\xA9 \xE8\xAA\x9E \xF0\x9F\x98\x80",
                                                  "\x01\n\x7F \xC2\x9B",
                                                  "</script><h1>",
                                                  "",
                                                  "general.alignment",
                                                  "__metadata__"};
  const std::uint32_t choice = plan.below(32);
  if (choice == 1) return any_text(plan, 40);
  if (choice == 2) return "model.embed_tokens.weight";
  if (choice == 3) return odd[plan.below(7)];
  if (choice == 4) return odd[plan.below(6)] + std::to_string(number);
  return "model." + std::to_string(number) + ".weight";
}

inline BuiltArray any_array(Bytes& plan, std::size_t number, const Packed& packed) {
  static constexpr std::array<const char*, 24> dtypes{
      "BF16", "BF16", "BF16",    "BF16", "BF16", "BF16", "BF16", "BF16", "BF16", "F32", "F32", "F16",
      "F16",  "U8",   "F8_E4M3", "I64",  "BOOL", "C64",  "U16",  "F64",  "F4",   "X Y", "",    "F8_E8M0"};
  static constexpr std::array<std::uint64_t, 16> lengths{256, 512, 1280, 320, 640, 80, 64, 160,
                                                         128, 256, 256,  1,   7,   0,  32, 2560};
  BuiltArray array;
  array.name = any_array_name(plan, number);
  array.dtype = dtypes[plan.below(24)];
  const std::uint32_t shape = plan.byte();
  const std::uint32_t dimensions = shape % 8 < 5 ? 2 : shape % 8 == 5 ? plan.below(6) : shape % 8 - 6;  // 0, 1
  for (std::uint32_t i = 0; i < dimensions; ++i)
    array.shape.push_back(i + 1 == dimensions ? lengths[shape / 8 % 16]
                          : shape >= 240      ? plan.below(3)
                                              : 1 + plan.below(3));

  // Packed ones are U8 in the file.
  const std::uint32_t pack = plan.byte();
  const bool p12 = packed.p12 && pack % 2 == 1;
  const bool pn = packed.pn && !p12 && pack % 4 != 3;
  if ((p12 || pn) && array.shape.size() >= 2) {
    array.packed = p12 ? "BF16_P12" : pack % 8 < 4 ? "pn4t" : "pn3t";
    const std::uint64_t block = p12 ? 256 : array.packed == "pn4t" ? 64 : 80;
    if (array.shape.back() % block != 0 || array.shape.back() == 0)
      array.shape.back() = pn && pack >= 128 ? 1280 : block;
    array.original_dtype = p12 || pack % 16 != 0 ? "BF16" : "F32";
    array.original_shape = array.shape;
    array.shape.back() = array.shape.back() / block * (p12 ? 392u : 34u);
    array.dtype = "U8";
  }
  const auto product = [](const std::vector<std::uint64_t>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{1}, std::multiplies<>());
  };
  if (!array.packed.empty()) {
    const std::uint64_t elements = product(array.original_shape);
    array.original_bytes = elements * (array.original_dtype == "F32" ? 4u : 2u);
    array.data = any_data(plan, p12 ? 126u : array.packed == "pn4t" ? 125u : 124u, elements, p12);
  } else {
    const std::uint64_t elements = product(array.shape);
    const std::uint64_t size = array.dtype == "F64" || array.dtype == "I64" || array.dtype == "C64"    ? 8
                               : array.dtype == "F32"                                                  ? 4
                               : array.dtype == "F16" || array.dtype == "BF16" || array.dtype == "U16" ? 2
                                                                                                       : 1;
    if (array.dtype == "BF16" || array.dtype == "F16" || array.dtype == "F32") {
      array.data = any_data(plan, array.dtype == "BF16" ? 30 : array.dtype == "F16" ? 1 : 0, elements, false);
    } else {
      array.data.assign(static_cast<std::size_t>(elements * size), plan.byte());
    }
  }
  switch (plan.below(64)) {
    case 63: array.shape.assign(1 + plan.below(4), plan.integer<std::uint64_t>()); break;
    case 62: array.gap = 1 + plan.below(8); break;
    case 61: array.data.resize(array.data.size() + 1 + plan.below(4)); break;
    case 60: array.data.resize(array.data.size() / 2); break;
    case 59: array.dtype = any_text(plan, 8); break;
    case 58:  // enough for several threads; one such tensor in a file
      if (number != 0 || !array.packed.empty() || !plan.one_in(8)) break;
      array.dtype = "BF16";
      array.shape = {2304, 256};
      array.data.clear();
      append(array.data, model_like(plan, 256 * 2304, 0));
      break;
    default: break;
  }
  return array;
}

// p12.* and pn.* entries for what is packed, as they should be or not.
inline void add_own_entries(Bytes& plan, const Packed& packed, BuiltSafetensors& file,
                            const std::optional<std::string>& total_size) {
  if (!packed.p12 && !packed.pn) return;
  const Entries foreign = file.metadata;
  const std::uint32_t fault = plan.below(48);
  const JsonStyle compact;
  Entries& entries = file.metadata;
  std::string p12;
  std::string pn;
  for (const BuiltArray& tensor : file.tensors) {
    if (tensor.packed == "BF16_P12") p12 += (p12.empty() ? "" : ",") + compact.quoted(tensor.name);
    if (tensor.packed == "pn3t" || tensor.packed == "pn4t")
      pn += (pn.empty() ? "" : ",") + compact.quoted(tensor.name) + ":[\"" + (fault == 1 ? "pn5t" : tensor.packed) +
            "\"," + compact.numbers(tensor.original_shape) + ",\"" + tensor.original_dtype + "\"]";
  }
  if (fault == 2) p12 += (p12.empty() ? "" : ",") + std::string("\"nowhere\"");
  if (fault == 3) p12 += ",7";
  if (packed.p12) {
    if (fault != 4) entries.emplace_back("p12.version", fault == 5 ? "2" : "1");
    if (fault != 6) entries.emplace_back("p12.tensors", (fault == 7 ? " [" : "[") + p12 + "]");
    if (!packed.rounded_from.empty()) entries.emplace_back("p12.rounded_from", packed.rounded_from);
  }
  if (packed.pn) {
    if (fault != 8) entries.emplace_back("pn.version", fault == 9 ? "1" : "0");
    if (fault != 10) entries.emplace_back("pn.tensors", "{" + pn + (fault == 11 ? ",}" : "}"));
    if (fault != 12) entries.emplace_back("pn.search", fault == 13 ? "other" : fault == 14 ? "weighted" : "reference");
    if (packed.rotation != 0) {
      entries.emplace_back("pn.hadamard.block_size", (fault == 15 ? "0" : "") + std::to_string(packed.rotation));
      entries.emplace_back("pn.hadamard.exclude",
                           fault == 16 ? "{}" : "[\"model.embed_tokens.weight\",\"model.1.weight\"]");
    }
  }
  if (packed.header) {
    std::string header = file.header(true, foreign, std::string(plan.below(4), ' '));
    switch (fault) {
      case 17: header = " " + header; break;
      case 18: header += '\0'; break;
      case 19: header = "\xEF\xBB\xBF" + header; break;
      case 20: header = file.header(true, {{"another", "entry"}}, ""); break;
      case 21: header = file.header(false, entries, ""); break;
      case 22: header.clear(); break;
      case 23: header[plan.integer<std::uint16_t>() % header.size()] ^= static_cast<char>(plan.byte()); break;
      default: break;
    }
    entries.emplace_back("p12.header", header);
  }
  if (total_size) entries.emplace_back("p12.total_size", *total_size);
  if (fault == 24) entries.insert(entries.begin(), {"p12.note", "more"});
  if (fault == 25) std::reverse(entries.begin(), entries.end());
}

inline BuiltSafetensors any_safetensors(Bytes& plan, const Packed& packed, std::size_t first_number,
                                        const std::optional<std::string>& total_size) {
  BuiltSafetensors file;
  const std::uint32_t style = plan.byte();
  file.style.spaces = style % 4 == 3;
  file.style.escapes = style / 4 % 4 == 3;
  file.style.reordered = style / 16 % 4 == 3;
  file.reversed = style >= 224;
  const std::uint32_t layout = plan.byte();
  const std::uint32_t count = plan.below(6);
  for (std::uint32_t i = 0; i < count; ++i) file.tensors.push_back(any_array(plan, first_number + i, packed));
  if (layout % 4 == 1) file.metadata_place = plan.below(8);
  for (std::uint32_t i = plan.below(4); i > 0; --i) {
    static constexpr std::array<const char*, 8> names{
        "format",   "note",    "general.alignment", "split.count", "general.architecture",
        "p12.note", "pn.note", "p12.version"};
    const std::uint32_t name = plan.byte();
    file.metadata.emplace_back(name < 128   ? names[name % 2] + std::to_string(i)
                               : name < 160 ? names[name % 8]
                                            : any_text(plan, 16),
                               plan.one_in(4) ? any_text(plan, 16) : "pt");
  }
  const bool has_entries = !file.metadata.empty();
  if (!has_entries && !file.metadata_place && plan.one_in(2) && (packed.p12 || packed.pn)) file.metadata_place.reset();
  add_own_entries(plan, packed, file, total_size);
  file.header_tail.assign(layout / 4 % 8, ' ');
  switch (layout >= 224 ? plan.below(16) : 16) {
    case 0: file.header_tail += '\0'; break;
    case 1: file.header_tail += std::string("\0\xFFx", 3); break;
    case 2: file.header_tail += "\t\r\n"; break;
    case 3: file.header_tail += "{}"; break;
    case 4: file.tail.resize(1 + plan.below(8)); break;
    case 5: file.odd_field = "\"x\":0"; break;
    case 6: file.odd_field = "\"dtype\":\"F32\""; break;
    case 7: file.odd_field = any_text(plan, 12); break;
    default: break;
  }
  return file;
}

// What is left of a plan changes single bytes, most of them in the header.
inline void damage(Bytes& plan, Text& bytes) {
  for (int i = 0; i < 8 && plan.left() >= 3 && !bytes.empty(); ++i) {
    const std::uint16_t place = plan.integer<std::uint16_t>();
    bytes[place % std::min<std::size_t>(bytes.size(), 8192)] ^= plan.byte();
  }
}

inline Text any_safetensors_file(Bytes& plan) {
  const Packed packed = any_packed(plan);
  std::optional<std::string> total_size;
  if (plan.one_in(16)) total_size = plan.one_in(4) ? any_text(plan, 8) : "1e3";
  Text bytes = any_safetensors(plan, packed, 0, total_size).bytes();
  damage(plan, bytes);
  return bytes;
}

// ---- A model in several files

struct BuiltModel {
  std::string index_name;
  std::string index;
  std::map<std::string, Text> files;
};

inline std::string any_file_name(Bytes& plan, std::size_t number) {
  static constexpr std::array<const char*, 16> odd{
      "..",   ".",     "",         "a/b",  "/dev/null", "..\\a", "-x",      " ",
      "a\nb", "../in", "\xC3\xA9", "\xFF", "con",       "~",     ".hidden", "model.safetensors.index.json"};
  const std::uint32_t choice = plan.below(16);
  if (choice == 1) return odd[plan.below(16)];
  if (choice == 2) return any_text(plan, 12);
  if (choice == 3) return std::string(plan.byte() + std::size_t{1}, 'n');
  return "model-0000" + std::to_string(number) + "-of-00003.safetensors";
}

inline BuiltModel any_model(Bytes& plan) {
  BuiltModel model;
  const std::uint32_t style_bits = plan.byte();
  const JsonStyle style{style_bits % 2 == 1, style_bits % 8 == 6, false};
  model.index_name = style_bits >= 240 ? "index" : "model.safetensors.index.json";
  const Packed packed = any_packed(plan);
  const std::uint32_t count = 1 + plan.below(3);
  std::optional<std::string> odd_total;
  const std::uint32_t total_kind = plan.below(24);
  if ((packed.p12 || packed.pn) && plan.one_in(4))
    odd_total = plan.one_in(6) ? "} odd" : plan.one_in(3) ? "12.50" : "77";
  std::vector<std::string> map;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string name = any_file_name(plan, i + 1);
    Packed own = packed;
    if (plan.byte() == 255) own.p12 = !own.p12;
    const BuiltSafetensors file = any_safetensors(plan, own, 10 * i, i == 0 ? odd_total : std::nullopt);
    for (const BuiltArray& tensor : file.tensors) {
      total += tensor.data.size();
      const std::uint32_t fault = plan.byte();
      if (fault == 255) continue;
      map.push_back(style.member(tensor.name, fault == 254 ? "0" : style.quoted(fault == 253 ? "elsewhere" : name)));
      if (fault == 252) map.push_back(map.back());
    }
    model.files[name] = file.bytes();
  }
  if (plan.one_in(32)) map.push_back("\"nowhere\":\"nothing\"");
  const std::string sum = std::to_string(total);
  const std::array<std::string, 24> totals{sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           sum,
                                           "5",
                                           "1e3",
                                           "-1",
                                           "0",
                                           sum + ".0",
                                           "\"" + sum + "\"",
                                           "null",
                                           "[" + sum + "]",
                                           "{\"total_size\":3}",
                                           "1e999",
                                           "18446744073709551616",
                                           "+1",
                                           "01",
                                           "7,\"total_size\":8"};
  std::vector<std::string> members;
  std::vector<std::string> about;
  if (style_bits / 8 % 4 == 1) about.push_back(style.member("format", "\"pt\""));
  if (style_bits / 8 % 4 == 2) about.push_back(style.member("more", "[{\"total_size\":1},[[]],null]"));
  if (style_bits / 32 % 4 != 1) about.push_back(style.member("total_size", totals[total_kind]));
  if (style_bits / 32 % 8 != 2) members.push_back(style.member("metadata", style.object(about)));
  if (plan.one_in(16)) members.push_back(style.member("other", "{\"weight_map\":[1.5e3,\"x\"]}"));
  if (!plan.one_in(48)) members.push_back(style.member("weight_map", style.object(map)));
  if (style_bits / 16 % 4 == 1) std::reverse(members.begin(), members.end());
  model.index = style.object(members) + (style.spaces ? "\n" : "");
  if (plan.one_in(16)) {
    Text bytes(model.index.begin(), model.index.end());
    damage(plan, bytes);
    model.index.assign(bytes.begin(), bytes.end());
  } else {
    for (auto& [name, bytes] : model.files)
      if (plan.one_in(16)) damage(plan, bytes);
  }
  return model;
}

}  // namespace fuzz
