// Proves the page of a scan: its numbers, and that no text from a file becomes markup or script.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "pnpack/report.hpp"
#include "pnpack/scan_page.hpp"

using namespace pnpack;
using Json = nlohmann::json;

namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t from = text.find(before);
  REQUIRE(from != std::string::npos);
  const std::size_t to = text.find(after, from + before.size());
  REQUIRE(to != std::string::npos);
  return text.substr(from + before.size(), to - from - before.size());
}

std::string data_of(const std::string& page) {
  return between(page, "<script type=\"application/json\" id=\"scan\">", "</script>");
}

std::string rows_of(const std::string& page) { return between(page, "<tbody class=\"rows\">", "</tbody>"); }

std::string page_source() {
  std::ifstream file(PN_SOURCE_DIR "/src/pnpack/scan_page.html", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ScanRow row(const std::string& name) {
  ScanRow made;
  made.name = name;
  made.type = "BF16";
  made.shape = {4, 512};
  made.elements = 2048;
  made.bytes_in = 4096;
  made.bytes_out = 3136;
  made.candidate = true;
  made.fits = true;
  made.p12.blocks = 8;
  made.p12.by_listed[0] = 5;
  made.p12.by_listed[1] = 3;
  made.p12.worst_listed = 1;
  made.p12.worst_block = 2;
  made.worst = "block 2 (row 1, columns 0..255)";
  made.statistics = StatisticsSummary{2048, 7.5, 2.25, {108, 3}, 107, {3, 2000, 45}};
  return made;
}

ScanRow norm() {
  ScanRow made;
  made.name = "norm";
  made.type = "F32";
  made.shape = {512};
  made.elements = 512;
  made.bytes_in = made.bytes_out = 2048;
  made.reason = "1-D";
  return made;
}

}  // namespace

TEST_CASE("what surrounds the data is scan_page.html") {
  const std::string source = page_source();
  REQUIRE(source.size() > 1000);
  const std::string page = scan_page({});
  std::size_t at = 0;
  for (std::size_t from = 0; from < source.size();) {
    const std::size_t to = std::min(source.find("@@", from), source.size());
    const std::string part = source.substr(from, to - from);
    const std::size_t found = page.find(part, at);
    REQUIRE(found != std::string::npos);
    at = found + part.size();
    if (to == source.size()) break;
    const std::size_t end = source.find("@@", to + 2);
    REQUIRE(end != std::string::npos);
    from = end + 2;
  }
  CHECK(at == page.size());
  CHECK(occurrences(page, "@@") == 0);
}

TEST_CASE("the page loads nothing") {
  const std::string source = page_source();
  CHECK(occurrences(source, "default-src 'none'") == 1);
  CHECK(occurrences(source, "src=") == 0);
  CHECK(occurrences(source, "@import") == 0);
  CHECK(occurrences(source, "url(") == 0);
  CHECK(occurrences(source, "http") ==
        occurrences(source, "http-equiv") + occurrences(source, "http://www.w3.org/2000/svg"));
}

TEST_CASE("no name becomes markup or script") {
  const std::vector<std::string> names = {"<script>alert(1)</script>",
                                          "</script><script>alert(2)</script>",
                                          "<!--<script>",
                                          "--><b>",
                                          "]]>",
                                          "\"' onload=alert(3) x='\"",
                                          "`${alert(4)}`",
                                          "&lt;b&gt;&amp;",
                                          "\\u003cb\\u003e",
                                          "\\",
                                          "@@data@@@@rows@@",
                                          "line\xE2\x80\xA8separator\xE2\x80\xA9",
                                          "a\nb\tc\x01\x7F",
                                          std::string("nul\0nul", 7),
                                          "\xE2\x80\xAErtl",
                                          "\xE6\x9D\x83\xE9\x87\x8D.\xF0\x9F\x99\x82",
                                          "",
                                          std::string(10240, '<')};
  ScanPage page;
  page.model = names[1];
  page.warnings = names;
  for (const std::string& name : names) {
    page.rows.push_back(row(name));
    page.rows.back().file = name;
    page.rows.back().type = name;
    page.rows.back().reason = name;
    page.rows.back().worst = name;
    page.rows.push_back(page.rows.back());
    page.rows.back().candidate = false;
  }
  const std::string html = scan_page(page);
  const std::string source = page_source();
  for (const char* mark : {"<script", "</script", "<!--", "-->"})
    CHECK(occurrences(html, mark) == occurrences(source, mark));
  CHECK(occurrences(html, "<b>") == 3);  // the figures
  CHECK(occurrences(rows_of(html), "&quot;&#39; onload=alert(3) x=&#39;&quot;") > 0);
  CHECK(rows_of(html).find('\'') == std::string::npos);

  const std::string data = data_of(html);
  CHECK(data.find_first_of("<>&") == std::string::npos);
  CHECK(std::all_of(data.begin(), data.end(), [](char c) { return c == '\n' || (c >= 0x20 && c < 0x7F); }));
  const Json json = Json::parse(data);
  CHECK(json["model"] == page.model);
  CHECK(json["warnings"] == page.warnings);
  REQUIRE(json["tensors"].size() == page.rows.size());
  for (std::size_t i = 0; i < page.rows.size(); ++i) {
    const Json& tensor = json["tensors"][i];
    CHECK(tensor["name"] == page.rows[i].name);
    CHECK(tensor["type"] == page.rows[i].type);
    CHECK(tensor.value("file", "") == page.rows[i].file);
    CHECK(tensor.value("reason", "") == page.rows[i].reason);
    CHECK(tensor.value("worst", "") == page.rows[i].worst);
  }
}

TEST_CASE("text that is not UTF-8 is replaced, and the page is UTF-8") {
  ScanPage page;
  page.model = "\xFFmodel";
  page.warnings = {"cut \xE2\x80"};
  page.rows = {row("bad\xC3(name\xED\xA0\x80"), row("fine")};
  const std::string html = scan_page(page);
  CHECK_NOTHROW(Json(html).dump());  // throws when it is not UTF-8
  const auto control = [](char c) { return c != '\n' && static_cast<unsigned char>(c) < 0x20; };
  CHECK(std::none_of(html.begin(), html.end(), control));
  const Json json = Json::parse(data_of(html));
  CHECK(json["model"] == "\xEF\xBF\xBDmodel");
  CHECK(json["tensors"][0]["name"].get<std::string>().find("bad\xEF\xBF\xBD(name\xEF\xBF\xBD") == 0);
  CHECK(json["tensors"][1]["name"] == "fine");
  CHECK(occurrences(html, "<bdi>bad\\xc3(name\\xed\\xa0\\x80</bdi>") == 1);
}

TEST_CASE("the numbers of rows and their sums") {
  ScanPage page;
  page.model = "model.gguf";
  page.rows = {row("fits"), row("stays"), norm()};
  page.rows[1].fits = false;
  page.rows[1].bytes_out = 4096;
  page.rows[1].reason = "2 of 8 blocks list more than 3 weights";
  page.rows[1].p12.by_listed[0] = 3;
  page.rows[1].p12.worst_listed = 77;
  page.statistics = StatisticsSummary{4096, 7.96875, 2.68, {108, 6}, 107, {6, 4000, 90}};
  CHECK(page.elements() == 4608);
  CHECK(page.candidates() == 2);
  CHECK(page.fitting() == 1);
  CHECK(page.candidates_p12().blocks_that_do_not_fit() == 2);

  const std::string html = scan_page(page);
  const Json json = Json::parse(data_of(html));
  const Json& totals = json["totals"];
  CHECK(totals["tensors"] == 3);
  CHECK(totals["elements"] == 4608);
  CHECK(totals["candidates"] == 2);
  CHECK(totals["fit"] == 1);
  CHECK(totals["bytes_in"] == 10240);
  CHECK(totals["bytes_out"] == 9280);
  CHECK(totals["bits_per_weight"] == 16.1111);
  CHECK(totals["p12"]["blocks"] == 16);
  CHECK(totals["p12"]["listed"] == Json({8, 6, 0, 0}));
  CHECK(json["statistics"]["entropy_low"] == 7.9688);
  const Json& first = json["tensors"][0];
  CHECK(first["shape"] == Json({4, 512}));
  CHECK(first["fits"] == true);
  CHECK(first["p12"] == Json({{"blocks", 8}, {"listed", {5, 3, 0, 0}}, {"worst_listed", 1}, {"worst_block", 2}}));
  CHECK(first["statistics"]["window"] == 108);
  CHECK(first["statistics"]["outside"] == 3);
  CHECK(first["statistics"]["first"] == 107);
  CHECK(first["statistics"]["exponents"] == Json({3, 2000, 45}));
  CHECK_FALSE(json["tensors"][2].contains("statistics"));
  CHECK_FALSE(json["tensors"][2].contains("p12"));

  CHECK(occurrences(html, "<b>1 of 2</b>3 tensors, 4,608 weights") == 1);
  CHECK(occurrences(html, "<b>10.24 kB → 9.28 kB</b>10,240 → 9,280 (90.62 %)") == 1);
  CHECK(occurrences(html, "<b>17.78 → 16.11</b>") == 1);
  CHECK(occurrences(html, "<b>10.65 bits</b>low byte 7.97 + high byte 2.68") == 1);
  CHECK(occurrences(html, "<tr><th scope=\"row\">more: does not fit</th><td>2</td><td>12.50 %</td></tr>") == 1);
  const std::string rows = rows_of(html);
  CHECK(occurrences(rows, "<tr>") == 3);
  CHECK(occurrences(rows, "<td>") == 3 * 14);
  CHECK(occurrences(rows,
                    "<td>4 × 512</td><td>BF16</td><td><b class=\"fits\">fits</b></td><td>5</td><td>3</td><td>0</td>"
                    "<td>0</td><td>0</td><td>1<small>block 2 (row 1, columns 0..255)</small></td><td>7.50</td>"
                    "<td>2.25</td><td>4,096</td><td>3,136</td><td></td></tr>") == 1);
  CHECK(occurrences(rows, "<b class=\"stays\">does not fit</b><small>2 of 8 blocks list more than 3 weights</small>") ==
        1);
}

TEST_CASE("a model without tensors, tensors without elements, scalars") {
  ScanPage page;
  const std::string nothing = scan_page(page);
  const Json json = Json::parse(data_of(nothing));
  CHECK(json["tensors"].empty());
  CHECK(json["totals"]["bits_per_weight"] == 0);
  CHECK(occurrences(rows_of(nothing), "<tr>") == 0);

  ScanRow empty;
  empty.name = "empty";
  empty.type = "BF16";
  empty.shape = {0, 512};
  empty.reason = "no elements";
  empty.statistics = TensorStatistics().summary();
  ScanRow scalar = norm();
  scalar.shape = {};
  scalar.elements = 1;
  page.rows = {empty, scalar};
  const std::string html = scan_page(page);
  const Json tensors = Json::parse(data_of(html))["tensors"];
  CHECK(tensors[0]["shape"] == Json({0, 512}));
  CHECK(tensors[0]["statistics"]["exponents"].empty());
  CHECK(tensors[1]["shape"] == Json::array());
  CHECK(occurrences(rows_of(html), "<td>0 × 512</td>") == 1);
  CHECK(occurrences(rows_of(html), "<td>scalar</td>") == 1);
}

TEST_CASE("a number that is none stays out of the page") {
  ScanPage page;
  page.rows = {row("odd")};
  page.rows[0].statistics->entropy_low = std::numeric_limits<double>::quiet_NaN();
  page.rows[0].statistics->entropy_high = std::numeric_limits<double>::infinity();
  page.statistics = page.rows[0].statistics;
  const std::string html = scan_page(page);
  const Json json = Json::parse(data_of(html));
  CHECK(json["tensors"][0]["statistics"]["entropy_low"].is_null());
  CHECK(json["tensors"][0]["statistics"]["entropy_high"].is_null());
  CHECK(occurrences(rows_of(html), "nan") == 0);
  CHECK(occurrences(rows_of(html), "inf") == 0);
}

TEST_CASE("largest numbers") {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  ScanPage page;
  page.rows = {row("large")};
  page.rows[0].elements = page.rows[0].bytes_in = page.rows[0].bytes_out = most;
  page.rows[0].shape = {most};
  const std::string html = scan_page(page);
  CHECK(Json::parse(data_of(html))["tensors"][0]["bytes_in"] == most);
  CHECK(occurrences(html, "18.45 EB") == 2);
  CHECK(occurrences(rows_of(html), "18,446,744,073,709,551,615") == 2);
}

TEST_CASE("the same scan gives the same page, and a large one is not large") {
  ScanPage page;
  page.model = "model";
  for (int i = 0; i < 1000; ++i) {
    page.rows.push_back(row(fmt::format("model.language_model.layers.{}.linear_attention.projection.weight", i)));
    page.rows.back().file = "model-00001-of-00012.safetensors";
    page.rows.back().statistics->exponents.assign(60, 1234567890);
  }
  const std::string html = scan_page(page);
  CHECK(html == scan_page(page));
  CHECK(html.size() < 3'000'000);
}
