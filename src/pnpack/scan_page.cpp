#include "scan_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <pn/version.hpp>
#include <string_view>
#include <utility>

#include "report.hpp"

namespace pnpack {

// scan_page.html, which the build turns into an array.
extern const char scan_page_html[];

using Json = nlohmann::ordered_json;

namespace {

template <class Number>
std::uint64_t sum(const std::vector<ScanRow>& rows, Number number) {
  std::uint64_t total = 0;
  for (const ScanRow& row : rows) total += number(row);
  return total;
}

// Text from a file, for an element or a quoted attribute. What is no character, or a control character, becomes \xNN.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

// A name that may break after the marks that join its words, and cannot turn the text around it from right to left.
std::string name_html(const std::string& name) {
  std::string out = "<bdi>";
  for (const char c : escaped(name)) {
    out += c;
    if (c == '.' || c == '/') out += "<wbr>";
  }
  return out + "</bdi>";
}

std::string decimals(double number, int places) {
  return std::isfinite(number) ? fmt::format("{:.{}f}", number, places) : "–";
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string bits_text(std::uint64_t bytes, std::uint64_t elements) {
  return elements == 0 ? "–" : decimals(8 * ratio(bytes, elements), 2);
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "–";
  const double share = 100 * ratio(part, whole);
  if (part > 0 && share < 0.01) return "&lt; 0.01 %";
  if (part < whole && share > 99.99) return "&gt; 99.99 %";
  return decimals(share, 2) + " %";
}

// "54.33 GB"; below 1 kB in bytes.
std::string size_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double size = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (size >= 999.995 && unit + 1 < std::size(units)) {
    size /= 1000;
    ++unit;
  }
  return fmt::format("{:.2f} {}", size, units[unit]);
}

std::string plural(std::uint64_t number, const char* one, const char* more) {
  return grouped(number) + " " + (number == 1 ? one : more);
}

std::string figure(const std::string& label, const std::string& value, const std::string& note) {
  return fmt::format("<div><dt>{}</dt><dd><b>{}</b>{}</dd></div>\n", label, value, note);
}

std::string figures(const ScanPage& page) {
  const std::uint64_t before = page.bytes_in();
  const std::uint64_t after = page.bytes_out();
  const std::uint64_t elements = page.elements();
  std::string out = figure(
      "BF16 matrices that fit", fmt::format("{} of {}", grouped(page.fitting()), grouped(page.candidates())),
      fmt::format("{}, {}", plural(page.rows.size(), "tensor", "tensors"), plural(elements, "weight", "weights")));
  out +=
      figure("Bytes of tensors, before and after", fmt::format("{} → {}", size_text(before), size_text(after)),
             before == 0 ? "" : fmt::format("{} → {} ({})", grouped(before), grouped(after), percent(after, before)));
  out += figure("Bits per weight",
                elements == 0 ? "–" : fmt::format("{} → {}", bits_text(before, elements), bits_text(after, elements)),
                "over all tensors, packed or not");
  if (page.statistics && page.statistics->count > 0) {
    const StatisticsSummary& all = *page.statistics;
    out +=
        figure("Entropy of a weight’s two bytes", decimals(all.entropy_low + all.entropy_high, 2) + " bits",
               fmt::format("low byte {} + high byte {}", decimals(all.entropy_low, 2), decimals(all.entropy_high, 2)));
  }
  return out;
}

std::string blocks_table(const p12::RowScan& p12) {
  const auto line = [&](const char* listed, std::uint64_t blocks) {
    return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>\n", listed, grouped(blocks),
                       percent(blocks, p12.blocks));
  };
  return line("0", p12.by_listed[0]) + line("1", p12.by_listed[1]) + line("2", p12.by_listed[2]) +
         line("3", p12.by_listed[3]) + line("more: does not fit", p12.blocks_that_do_not_fit());
}

std::string warnings_html(const std::vector<std::string>& warnings) {
  if (warnings.empty()) return "";
  std::string out = "<ul class=\"warnings\" aria-label=\"Warnings\">\n";
  for (const std::string& warning : warnings) out += "<li>" + escaped(warning) + "</li>\n";
  return out + "</ul>\n";
}

std::string result_html(const ScanRow& row) {
  std::string reason = row.reason.empty() ? "" : "<small>" + escaped(row.reason) + "</small>";
  if (!row.candidate) return reason;
  return row.fits ? "<b class=\"fits\">fits</b>" : "<b class=\"stays\">does not fit</b>" + reason;
}

// One cell for each column of the template; empty where a number would mean nothing.
std::string row_html(const ScanRow& row) {
  std::string out = "<tr><th scope=\"row\">" + name_html(row.name);
  if (!row.file.empty()) out += "<small>" + name_html(row.file) + "</small>";
  out += fmt::format("</th><td>{}</td><td>{}</td><td>{}</td>",
                     row.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(row.shape, " × ")), escaped(row.type),
                     result_html(row));
  if (row.p12.blocks > 0) {
    for (const std::uint64_t blocks : row.p12.by_listed) out += "<td>" + grouped(blocks) + "</td>";
    out += fmt::format("<td>{}</td><td>{}", grouped(row.p12.blocks_that_do_not_fit()), row.p12.worst_listed);
    if (row.p12.worst_listed > 0 && !row.worst.empty()) out += "<small>" + escaped(row.worst) + "</small>";
    out += "</td>";
  } else {
    out += "<td></td><td></td><td></td><td></td><td></td><td></td>";
  }
  if (row.statistics && row.statistics->count > 0) {
    out += fmt::format("<td>{}</td><td>{}</td>", decimals(row.statistics->entropy_low, 2),
                       decimals(row.statistics->entropy_high, 2));
  } else {
    out += "<td></td><td></td>";
  }
  return out + fmt::format("<td>{}</td><td>{}</td><td></td></tr>\n", grouped(row.bytes_in), grouped(row.bytes_out));
}

// The widths of the columns that depend on the model, as custom properties of CSS.
std::string widths(const std::vector<ScanRow>& rows) {
  constexpr std::size_t longest_shape = 16;
  constexpr std::size_t longest_type = 12;
  std::size_t shape = 6;
  std::size_t type = 5;
  std::array<std::uint64_t, 5> blocks{};
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  for (const ScanRow& row : rows) {
    shape = std::max(shape, fmt::format("{}", fmt::join(row.shape, " x ")).size());
    type = std::max(type, row.type.size());
    for (std::size_t n = 0; n < 4; ++n) blocks[n] = std::max(blocks[n], row.p12.by_listed[n]);
    blocks[4] = std::max(blocks[4], row.p12.blocks_that_do_not_fit());
    before = std::max(before, row.bytes_in);
    after = std::max(after, row.bytes_out);
  }
  // A comma is half as wide as a digit.
  const auto width = [](std::uint64_t number, double least) {
    const std::string text = grouped(number);
    const auto commas = std::count(text.begin(), text.end(), ',');
    return std::max(least, static_cast<double>(text.size()) - 0.5 * static_cast<double>(commas));
  };
  return fmt::format(
      "--shape:{}ch;--type:{}ch;--listed0:{}ch;--listed1:{}ch;--listed2:{}ch;--listed3:{}ch;--more:{}ch;--before:{}ch;"
      "--after:{}ch",
      std::min(shape, longest_shape), std::min(type, longest_type), width(blocks[0], 2), width(blocks[1], 2),
      width(blocks[2], 2), width(blocks[3], 2), width(blocks[4], 4.5), width(before, 6), width(after, 6));
}

// With four decimals, to keep the page short.
Json rounded(double number) {
  if (!std::isfinite(number)) return nullptr;
  return std::round(number * 1e4) / 1e4;
}

Json statistics_json(const StatisticsSummary& statistics) {
  return {{"count", statistics.count},
          {"entropy_low", rounded(statistics.entropy_low)},
          {"entropy_high", rounded(statistics.entropy_high)},
          {"window", statistics.window.base},
          {"outside", statistics.window.outside},
          {"first", statistics.first_exponent},
          {"exponents", statistics.exponents}};
}

Json row_json(const ScanRow& row) {
  Json json;
  json["name"] = row.name;
  if (!row.file.empty()) json["file"] = row.file;
  json["shape"] = row.shape;
  json["type"] = row.type;
  json["elements"] = row.elements;
  json["bytes_in"] = row.bytes_in;
  json["bytes_out"] = row.bytes_out;
  json["candidate"] = row.candidate;
  json["fits"] = row.fits;
  if (!row.reason.empty()) json["reason"] = row.reason;
  if (row.p12.blocks > 0) {
    json["p12"] = {{"blocks", row.p12.blocks},
                   {"listed", row.p12.by_listed},
                   {"worst_listed", row.p12.worst_listed},
                   {"worst_block", row.p12.worst_block}};
    if (!row.worst.empty()) json["worst"] = row.worst;
  }
  if (row.statistics) json["statistics"] = statistics_json(*row.statistics);
  return json;
}

// JSON for a script element: nothing in it can end the element or is a line break to JavaScript.
std::string dump(const Json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    switch (c) {
      case '&': out += "\\u0026"; break;
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      default: out += c;
    }
  }
  return out;
}

std::string data_json(const ScanPage& page) {
  const p12::RowScan p12 = page.candidates_p12();
  const std::uint64_t elements = page.elements();
  const Json totals = {{"tensors", page.rows.size()},
                       {"elements", elements},
                       {"candidates", page.candidates()},
                       {"fit", page.fitting()},
                       {"bytes_in", page.bytes_in()},
                       {"bytes_out", page.bytes_out()},
                       {"bits_per_weight", rounded(8 * ratio(page.bytes_out(), elements))},
                       {"p12", {{"blocks", p12.blocks}, {"listed", p12.by_listed}}}};
  std::string out = "{\n\"model\": " + dump(page.model);
  if (!page.warnings.empty()) out += ",\n\"warnings\": " + dump(page.warnings);
  out += ",\n\"totals\": " + dump(totals);
  if (page.statistics) out += ",\n\"statistics\": " + dump(statistics_json(*page.statistics));
  out += ",\n\"tensors\": [";
  const char* separator = "\n";
  for (const ScanRow& row : page.rows) {
    out += separator + dump(row_json(row));
    separator = ",\n";
  }
  return out + "\n]\n}";
}

}  // namespace

std::uint64_t ScanPage::elements() const {
  return sum(rows, [](const ScanRow& row) { return row.elements; });
}
std::uint64_t ScanPage::bytes_in() const {
  return sum(rows, [](const ScanRow& row) { return row.bytes_in; });
}
std::uint64_t ScanPage::bytes_out() const {
  return sum(rows, [](const ScanRow& row) { return row.bytes_out; });
}
std::uint64_t ScanPage::candidates() const {
  return sum(rows, [](const ScanRow& row) { return row.candidate ? 1u : 0u; });
}
std::uint64_t ScanPage::fitting() const {
  return sum(rows, [](const ScanRow& row) { return row.candidate && row.fits ? 1u : 0u; });
}
p12::RowScan ScanPage::candidates_p12() const {
  p12::RowScan total;
  for (const ScanRow& row : rows) {
    if (!row.candidate) continue;
    total.blocks += row.p12.blocks;
    for (std::size_t n = 0; n < std::size(total.by_listed); ++n) total.by_listed[n] += row.p12.by_listed[n];
  }
  return total;
}

std::string scan_page(const ScanPage& page) {
  std::string rows;
  for (const ScanRow& row : page.rows) rows += row_html(row);
  const std::pair<std::string_view, std::string> parts[] = {
      {"version", fmt::format("{}.{}.{}", PN_VERSION_MAJOR, PN_VERSION_MINOR, PN_VERSION_PATCH)},
      {"model", escaped(page.model)},
      {"warnings", warnings_html(page.warnings)},
      {"figures", figures(page)},
      {"blocks", blocks_table(page.candidates_p12())},
      {"widths", widths(page.rows)},
      {"rows", std::move(rows)},
      {"data", data_json(page)},
  };
  // "@@name@@" in the template, never in what replaces it.
  std::string out;
  std::string_view rest = scan_page_html;
  for (std::size_t at; (at = rest.find("@@")) != std::string_view::npos;) {
    out += rest.substr(0, at);
    rest.remove_prefix(at + 2);
    const std::string_view name = rest.substr(0, rest.find("@@"));
    for (const auto& [key, text] : parts)
      if (key == name) out += text;
    rest.remove_prefix(name.size() + 2);
  }
  out += rest;
  return out;
}

}  // namespace pnpack
