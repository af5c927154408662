#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace pnpack {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t longest_name = 56;

template <class Count>
std::uint64_t sum(const std::vector<TensorReport>& tensors, Count count) {
  std::uint64_t total = 0;
  for (const TensorReport& tensor : tensors) total += count(tensor);
  return total;
}

double bits(std::uint64_t bytes, std::uint64_t elements) {
  return elements == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

// Length of the UTF-8 character that begins at `at`, 0 when the bytes are no valid character.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0u) != 0x80u) return 0;
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  return overlong || beyond ? 0 : length;
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return "scalar";
  return fmt::format("{}", fmt::join(shape, " x "));
}

std::string short_name(const std::string& name) {
  if (name.size() <= longest_name) return printable(name);
  const std::size_t half = (longest_name - 3) / 2;
  return printable(name.substr(0, half)) + "..." + printable(name.substr(name.size() - half));
}

struct Column {
  std::string title;
  bool right = false;
};

std::string layout(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t width = columns[c].title.size();
    for (const auto& row : rows) width = std::max(width, characters(row[c]));
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](const auto& cell) {
    std::string text;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string& value = cell(c);
      const std::string space(widths[c] - characters(value), ' ');
      if (c > 0) text += "  ";
      text += columns[c].right ? space + value : value + space;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) -> const std::string& { return columns[c].title; });
  const std::size_t gaps = 2 * (columns.size() - 1);
  std::size_t total = gaps;
  for (const std::size_t width : widths) total += width;
  out += std::string(std::min<std::size_t>(total, 120), '-') + "\n";
  for (const auto& row : rows) line([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

std::string note(const TensorReport& tensor) {
  std::vector<std::string> parts;
  if (tensor.good) parts.emplace_back(*tensor.good ? "ok" : "NO");
  if (tensor.reason) parts.push_back(printable(*tensor.reason));
  if (tensor.nrmse) parts.push_back(fmt::format("NRMSE {:.4f}", *tensor.nrmse));
  if (tensor.p12 && !tensor.reason)
    parts.push_back(fmt::format("blocks listing 0/1/2/3 weights: {}", fmt::join(tensor.p12->by_listed, "/")));
  return fmt::format("{}", fmt::join(parts, ": "));
}

Json place_json(const Place& place) {
  Json json;
  json["tensor"] = place.tensor;
  if (place.element) json["element"] = *place.element;
  if (place.block) json["block"] = *place.block;
  if (place.offset) json["offset"] = *place.offset;
  return json;
}

Json tensor_json(const Report& report, const TensorReport& tensor) {
  Json json;
  json["name"] = tensor.name;
  if (report.verb == "inspect") {
    json["type"] = tensor.type_in;
    json["type_id"] = tensor.type_id;
    json["shape"] = tensor.shape;
    json["offset"] = tensor.offset;
    json["bytes"] = tensor.bytes_in;
    return json;
  }
  json["shape"] = tensor.shape;
  json["type_in"] = tensor.type_in;
  json["type_out"] = tensor.type_out;
  json["bytes_in"] = tensor.bytes_in;
  json["bytes_out"] = tensor.bytes_out;
  if (tensor.reason) json["reason"] = *tensor.reason;
  if (tensor.p12) json["p12"] = {{"blocks", tensor.p12->blocks}, {"listed", tensor.p12->by_listed}};
  if (tensor.nrmse) json["nrmse"] = *tensor.nrmse;
  if (tensor.good) json[report.verb == "check" ? "valid" : "equal"] = *tensor.good;
  if (tensor.first) json["first"] = place_json(*tensor.first);
  return json;
}

// Compact. Names are bytes from a file: what is not UTF-8 is replaced, so that the document always parses.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A document with one line for each entry, and one for each tensor.
std::string document(const Json& json) {
  std::string out = "{";
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    out += separator + ("  " + dump(key)) + ": ";
    if (key == "tensors" && !value.empty()) {
      const char* next = "[\n";
      for (const Json& tensor : value) {
        out += next + ("    " + dump(tensor));
        next = ",\n";
      }
      out += "\n  ]";
    } else {
      out += dump(value);
    }
    separator = ",\n";
  }
  return out + "\n}\n";
}

}  // namespace

TensorReport::TensorReport(const pn::io::Tensor& tensor)
    : name(tensor.name),
      shape(tensor.shape),
      elements(tensor.elements),
      type_in(tensor.type.name),
      type_out(tensor.type.name),
      bytes_in(tensor.bytes),
      bytes_out(tensor.bytes),
      type_id(tensor.type.id),
      offset(tensor.offset) {}

std::uint64_t Report::converted() const {
  return sum(tensors, [](const TensorReport& t) { return t.converted ? 1u : 0u; });
}
std::uint64_t Report::fallbacks() const {
  return sum(tensors, [](const TensorReport& t) { return t.fallback ? 1u : 0u; });
}
std::uint64_t Report::bytes_in() const {
  return sum(tensors, [](const TensorReport& t) { return t.bytes_in; });
}
std::uint64_t Report::bytes_out() const {
  return sum(tensors, [](const TensorReport& t) { return t.bytes_out; });
}
double Report::bits_per_weight() const {
  return bits(verb == "verify" ? bytes_in() : bytes_out(),
              sum(tensors, [](const TensorReport& t) { return t.elements; }));
}

double nrmse(double squared_error, double squared_weight) {
  return squared_weight == 0 ? 0.0 : std::sqrt(squared_error / squared_weight);
}

std::string to_table(const Report& report) {
  const bool one_type = report.verb == "inspect" || report.verb == "check";
  const bool is_inspect = report.verb == "inspect";
  std::vector<Column> columns{{"tensor"}, {"shape"}};
  if (one_type) {
    columns.push_back({"type"});
  } else {
    columns.push_back({report.verb == "verify" ? "packed" : "from"});
    columns.push_back({report.verb == "verify" ? "original" : "to"});
  }
  if (is_inspect) columns.push_back({"offset", true});
  columns.push_back({"bytes", true});
  columns.push_back({"bits/weight", true});
  if (!is_inspect) columns.push_back({"note"});

  std::vector<std::vector<std::string>> rows;
  for (const TensorReport& tensor : report.tensors) {
    const std::uint64_t bytes = report.verb == "verify" ? tensor.bytes_in : tensor.bytes_out;
    std::vector<std::string> row{short_name(tensor.name), shape_text(tensor.shape), tensor.type_in};
    if (!one_type) row.push_back(tensor.type_out);
    if (is_inspect) row.push_back(grouped(tensor.offset));
    row.push_back(grouped(bytes));
    row.push_back(tensor.elements == 0 ? "-" : fmt::format("{:.2f}", bits(bytes, tensor.elements)));
    if (!is_inspect) row.push_back(note(tensor));
    rows.push_back(std::move(row));
  }
  std::string out = layout(columns, rows);
  out += "\n" + report.summary + "\n";
  return out;
}

std::string to_json(const Report& report) {
  Json json;
  json["verb"] = report.verb;
  json["input"] = report.input;
  if (report.output) json["output"] = *report.output;
  if (report.original) json["original"] = *report.original;
  if (report.dry_run) json["dry_run"] = true;
  json["tensors"] = Json::array();
  for (const TensorReport& tensor : report.tensors) json["tensors"].push_back(tensor_json(report, tensor));
  json["totals"] = {{"tensors", report.tensors.size()},
                    {"converted", report.converted()},
                    {"bytes_in", report.bytes_in()},
                    {"bytes_out", report.bytes_out()},
                    {"bits_per_weight", report.bits_per_weight()}};
  if (report.restores_identical) json["restores_identical"] = *report.restores_identical;
  const auto first = std::find_if(report.tensors.begin(), report.tensors.end(),
                                  [](const TensorReport& tensor) { return tensor.first.has_value(); });
  if (first != report.tensors.end()) json["first"] = place_json(*first->first);
  if (!report.warnings.empty()) json["warnings"] = report.warnings;
  json["ok"] = report.ok;
  return document(json);
}

std::string error_to_json(const std::string& file, const std::optional<std::string>& subject,
                          const std::optional<std::uint64_t>& offset, const std::string& message) {
  Json error;
  error["file"] = file;
  if (subject) {
    // A subject reads "tensor NAME" or "key NAME".
    const std::size_t space = subject->find(' ');
    error[subject->substr(0, space)] = subject->substr(space + 1);
  }
  if (offset) error["offset"] = *offset;
  error["message"] = message;
  Json json;
  json["ok"] = false;
  json["error"] = std::move(error);
  return document(json);
}

std::string describe(const pn::io::Error& error) {
  std::string text = printable(error.file()) + ": ";
  if (error.subject()) text += printable(*error.subject()) + ": ";
  text += printable(error.what());
  if (error.offset()) text += fmt::format(" (offset {})", *error.offset());
  return text;
}

std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    const unsigned char c = static_cast<unsigned char>(text[i]);
    // U+0080..U+009F are control characters too.
    const bool control =
        c < 0x20 || c == 0x7F || (c == 0xC2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xA0);
    if (length == 0 || control) {
      out += fmt::format("\\x{:02x}", c);
      i += 1;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, ",");
  return text;
}

std::string element_text(const pn::io::Tensor& tensor, std::uint64_t element) {
  const std::uint64_t k = tensor.row_length();
  return fmt::format("element {} (row {}, column {})", element, element / k, element % k);
}

std::string block_text(const pn::io::Tensor& tensor, std::uint64_t block, std::uint64_t block_size) {
  const std::uint64_t first = block * block_size;
  const std::uint64_t column = first % tensor.row_length();
  return fmt::format("block {} (row {}, columns {}..{})", block, first / tensor.row_length(), column,
                     column + block_size - 1);
}

}  // namespace pnpack
