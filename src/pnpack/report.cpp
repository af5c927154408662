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

// A table of `count` rows, which row(i) gives: twice, so that not all of them are in memory at once.
template <class Row>
std::string layout(const std::vector<Column>& columns, std::size_t count, Row row) {
  std::vector<std::size_t> widths;
  std::vector<std::string> titles;
  for (const Column& column : columns) {
    widths.push_back(column.title.size());
    titles.push_back(column.title);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::string> cells = row(i);
    for (std::size_t c = 0; c < columns.size(); ++c) widths[c] = std::max(widths[c], characters(cells[c]));
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string space(widths[c] - characters(cells[c]), ' ');
      if (c > 0) text += "  ";
      text += columns[c].right ? space + cells[c] : cells[c] + space;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(titles);
  std::size_t total = 2 * (columns.size() - 1);
  for (const std::size_t width : widths) total += width;
  out += std::string(std::min<std::size_t>(total, 120), '-') + "\n";
  for (std::size_t i = 0; i < count; ++i) line(row(i));
  return out;
}

std::string note(const TensorReport& tensor) {
  std::vector<std::string> parts;
  if (tensor.good) parts.emplace_back(*tensor.good ? "ok" : "NO");
  if (tensor.reason) parts.push_back(printable(*tensor.reason));
  if (tensor.rounded) parts.emplace_back("only rounded to BF16");
  if (tensor.nrmse) parts.push_back(fmt::format("NRMSE {:.4f}", *tensor.nrmse));
  if (tensor.weighted_nrmse) parts.push_back(fmt::format("by importance {:.4f}", *tensor.weighted_nrmse));
  if (tensor.rule) parts.push_back(printable(*tensor.rule));
  if (tensor.p12 && !tensor.reason && !tensor.statistics)
    parts.push_back(fmt::format("blocks listing 0/1/2/3 weights: {}", fmt::join(tensor.p12->by_listed, "/")));
  return fmt::format("{}", fmt::join(parts, ": "));
}

Json place_json(const TensorReport& tensor, const Place& place) {
  Json json;
  json["tensor"] = tensor.name;
  if (!tensor.file.empty()) json["file"] = tensor.file;
  if (place.element) json["element"] = *place.element;
  if (place.block) json["block"] = *place.block;
  if (place.offset) json["offset"] = *place.offset;
  return json;
}

Json statistics_json(const StatisticsSummary& statistics) {
  return {{"count", statistics.count},
          {"entropy_low", statistics.entropy_low},
          {"entropy_high", statistics.entropy_high},
          {"window", {{"base", statistics.window.base}, {"outside", statistics.window.outside}}},
          {"exponents", {{"first", statistics.first_exponent}, {"counts", statistics.exponents}}}};
}

Json tensor_json(const Report& report, const TensorReport& tensor) {
  Json json;
  json["name"] = tensor.name;
  if (!tensor.file.empty()) json["file"] = tensor.file;
  if (report.verb == "inspect") {
    json["type"] = tensor.type_in;
    if (tensor.type_id) json["type_id"] = *tensor.type_id;
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
  if (tensor.rounded) json["rounded"] = true;
  if (tensor.p12) json["p12"] = {{"blocks", tensor.p12->blocks}, {"listed", tensor.p12->by_listed}};
  if (report.verb == "scan") json["fits"] = tensor.converted;
  if (report.verb == "scan" && tensor.p12) {
    const std::uint64_t block = tensor.p12->worst_block;
    json["worst"] = place_json(tensor, {{}, block, tensor.offset + block * (tensor.bytes_in / tensor.p12->blocks)});
    json["worst"]["listed"] = tensor.p12->worst_listed;
  }
  if (tensor.statistics) json["statistics"] = statistics_json(*tensor.statistics);
  if (tensor.nrmse) json["nrmse"] = *tensor.nrmse;
  if (tensor.weighted_nrmse) json["nrmse_weighted"] = *tensor.weighted_nrmse;
  if (tensor.rule) json["rule"] = *tensor.rule;
  if (tensor.different) json["different"] = *tensor.different;
  if (tensor.good) json[report.verb == "check" ? "valid" : "equal"] = *tensor.good;
  if (tensor.first) json["first"] = place_json(tensor, *tensor.first);
  return json;
}

// Compact. Names are bytes from a file: what is not UTF-8 is replaced, so that the document always parses.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A JSON object with one line for each entry. It is put together as text: one for 100,000 tensors would take several
// times its size as a tree.
class Document {
 public:
  void add(const char* key, const Json& value) { add_text(key, dump(value)); }

  // An array with one line for each tensor.
  void add_tensors(const Report& report) {
    std::string text = "[";
    for (const TensorReport& tensor : report.tensors)
      text += (text.size() == 1 ? "\n    " : ",\n    ") + dump(tensor_json(report, tensor));
    add_text("tensors", text + (text.size() == 1 ? "]" : "\n  ]"));
  }

  std::string finish() { return std::move(text_) + "\n}\n"; }

 private:
  void add_text(const char* key, const std::string& value) {
    text_ += text_.size() == 1 ? "\n  \"" : ",\n  \"";
    text_ += key;
    text_ += "\": ";
    text_ += value;
  }

  std::string text_ = "{";
};

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
std::uint64_t Report::bad() const {
  return sum(tensors, [](const TensorReport& t) { return t.good == false ? 1u : 0u; });
}
std::uint64_t Report::bytes_in() const {
  return sum(tensors, [](const TensorReport& t) { return t.bytes_in; });
}
std::uint64_t Report::bytes_out() const {
  return sum(tensors, [](const TensorReport& t) { return t.bytes_out; });
}
double Report::bits_per_weight() const {
  return bits(verb == "verify" || verb == "diff" ? bytes_in() : bytes_out(),
              sum(tensors, [](const TensorReport& t) { return t.elements; }));
}

namespace {

using Tensors = const TensorReport*;  // the first of those of a table

// What `scan` shows of a tensor: how its blocks fill the list, and how much its bytes say.
std::string scan_table(Tensors tensors, std::size_t count) {
  const std::vector<Column> columns{{"tensor"},
                                    {"shape"},
                                    {"type"},
                                    {"fits"},
                                    {"blocks listing 0/1/2/3/more", true},
                                    {"most", true},
                                    {"exponents", true},
                                    {"entropy low + high", true},
                                    {"note"}};
  return layout(columns, count, [&](std::size_t i) {
    const TensorReport& tensor = tensors[i];
    std::vector<std::string> row{short_name(tensor.name), shape_text(tensor.shape), printable(tensor.type_in)};
    row.emplace_back(tensor.converted ? "yes" : tensor.fallback ? "NO" : "-");
    row.push_back(
        tensor.p12 ? fmt::format("{}/{}", fmt::join(tensor.p12->by_listed, "/"), tensor.p12->blocks_that_do_not_fit())
                   : "-");
    row.push_back(tensor.p12 ? std::to_string(tensor.p12->worst_listed) : "-");
    const auto& statistics = tensor.statistics;
    row.push_back(statistics ? fmt::format("{}..{}", statistics->first_exponent,
                                           static_cast<std::size_t>(statistics->first_exponent) +
                                               statistics->exponents.size() - 1)
                             : "-");
    row.push_back(statistics ? fmt::format("{:.2f} + {:.2f}", statistics->entropy_low, statistics->entropy_high) : "-");
    row.push_back(note(tensor));
    return row;
  });
}

std::string tensor_table(const std::string& verb, Tensors tensors, std::size_t count) {
  const bool compares = verb == "verify" || verb == "diff";
  const bool one_type = verb == "inspect" || verb == "check";
  const bool is_inspect = verb == "inspect";
  std::vector<Column> columns{{"tensor"}, {"shape"}};
  if (one_type) {
    columns.push_back({"type"});
  } else {
    columns.push_back({verb == "verify" ? "packed" : verb == "diff" ? "first" : "from"});
    columns.push_back({verb == "verify" ? "original" : verb == "diff" ? "second" : "to"});
  }
  if (is_inspect) columns.push_back({"offset", true});
  columns.push_back({"bytes", true});
  columns.push_back({"bits/weight", true});
  if (!is_inspect) columns.push_back({"note"});

  return layout(columns, count, [&](std::size_t i) {
    const TensorReport& tensor = tensors[i];
    const std::uint64_t bytes = compares ? tensor.bytes_in : tensor.bytes_out;
    std::vector<std::string> row{short_name(tensor.name), shape_text(tensor.shape), printable(tensor.type_in)};
    if (!one_type) row.push_back(printable(tensor.type_out));
    if (is_inspect) row.push_back(grouped(tensor.offset));
    row.push_back(grouped(bytes));
    row.push_back(tensor.elements == 0 ? "-" : fmt::format("{:.2f}", bits(bytes, tensor.elements)));
    if (!is_inspect) row.push_back(note(tensor));
    return row;
  });
}

}  // namespace

// One table, or one for each file of a model.
std::string to_table(const Report& report) {
  const std::vector<TensorReport>& tensors = report.tensors;
  std::string out;
  for (std::size_t first = 0; first < tensors.size() || first == 0;) {
    std::size_t last = first;
    while (last < tensors.size() && tensors[last].file == tensors[first].file) ++last;
    if (last > first && !tensors[first].file.empty())
      out += (first == 0 ? "" : "\n") + printable(tensors[first].file) + ":\n";
    const std::size_t count = last - first;
    out += report.verb == "scan" ? scan_table(tensors.data() + first, count)
                                 : tensor_table(report.verb, tensors.data() + first, count);
    first = std::max(last, first + 1);
  }
  return out + "\n" + report.summary + "\n";
}

std::string to_json(const Report& report) {
  Document document;
  document.add("verb", report.verb);
  document.add("input", report.input);
  if (report.output) document.add("output", *report.output);
  if (report.original) document.add("original", *report.original);
  if (report.other) document.add("other", *report.other);
  if (report.dry_run) document.add("dry_run", true);
  document.add_tensors(report);
  document.add("totals", {{"tensors", report.tensors.size()},
                          {"converted", report.converted()},
                          {"bytes_in", report.bytes_in()},
                          {"bytes_out", report.bytes_out()},
                          {"bits_per_weight", report.bits_per_weight()}});
  if (report.statistics) document.add("statistics", statistics_json(*report.statistics));
  if (report.restores_identical) document.add("restores_identical", *report.restores_identical);
  const auto first = std::find_if(report.tensors.begin(), report.tensors.end(),
                                  [](const TensorReport& tensor) { return tensor.first.has_value(); });
  if (first != report.tensors.end()) document.add("first", place_json(*first, *first->first));
  if (!report.warnings.empty()) document.add("warnings", report.warnings);
  document.add("ok", report.ok);
  return document.finish();
}

std::string error_to_json(const std::string& file, const std::optional<std::string>& subject,
                          const std::optional<std::uint64_t>& offset, const std::string& message) {
  Json error;
  error["file"] = file;
  if (subject) {
    // A subject reads "tensor NAME", "key NAME" or "line NUMBER".
    const std::size_t space = subject->find(' ');
    error[subject->substr(0, space)] = subject->substr(space + 1);
  }
  if (offset) error["offset"] = *offset;
  error["message"] = message;
  Document document;
  document.add("ok", false);
  document.add("error", error);
  return document.finish();
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
