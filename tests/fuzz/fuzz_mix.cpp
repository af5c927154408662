// The rules of `pnpack quantize --mix` and lists of promoted names, against a second reading and a second matcher.
//
// Input: text in parts with a byte 0x1E between them: the rules, the promoted names (missing: no such file), and names
// of tensors to match.
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include "io/error.hpp"
#include "io/input_file.hpp"
#include "pnpack/mix.hpp"
#include "scratch_file.hpp"

namespace {

namespace io = pn::io;
using pnpack::Mix;
using pnpack::Rule;

struct Reading {
  std::optional<Mix> mix;
  std::optional<io::Error> error;
};

void write(const fuzz::ScratchFile& file, const std::string& text) {
  file.write(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

const fuzz::ScratchFile& rules_file() {
  static const fuzz::ScratchFile file;
  return file;
}
const fuzz::ScratchFile& promoted_file() {
  static const fuzz::ScratchFile file;
  return file;
}

Reading read(bool promoted, io::InputFile::Access access) {
  Reading result;
  try {
    const io::InputFile rules(rules_file().path(), access);
    if (promoted) {
      const io::InputFile names(promoted_file().path(), access);
      result.mix = Mix::read(rules, &names);
    } else {
      result.mix = Mix::read(rules, nullptr);
    }
  } catch (const io::Error& error) {
    result.error = error;
  }
  return result;
}

bool same_rule(const Rule& a, const Rule& b) {
  return a.text == b.text && a.glob == b.glob && a.promoted == b.promoted && a.lengths == b.lengths &&
         a.treatment == b.treatment;
}

// The parts of `text` between the bytes `separator`; at least one.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

// ---- A second reading of a rule

void require_rule(const Rule& rule) {
  std::istringstream stream(rule.text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  FUZZ_REQUIRE(words.size() == 2 || words.size() == 3);
  FUZZ_REQUIRE(rule.promoted ? words[0] == "@promoted" && rule.glob.empty() : words[0] == rule.glob);
  FUZZ_REQUIRE(words.back() == to_text(rule.treatment));
  FUZZ_REQUIRE(rule.lengths.empty() == (words.size() == 2));
  if (words.size() == 3) {
    FUZZ_REQUIRE(words[1].substr(0, 2) == "K=");
    std::istringstream numbers(words[1].substr(2));
    std::size_t count = 0;
    for (std::string number; std::getline(numbers, number, ','); ++count) {
      bool found = false;
      for (const std::uint64_t length : rule.lengths) found = found || length == std::stoull(number);
      FUZZ_REQUIRE(found);
    }
    FUZZ_REQUIRE(count >= rule.lengths.size());
  }
  for (std::size_t i = 0; i < rule.lengths.size(); ++i)
    FUZZ_REQUIRE(rule.lengths[i] > (i == 0 ? 0 : rule.lengths[i - 1]));
}

// ---- A second matcher: a table over all pairs of beginnings

using Characters = std::vector<std::string>;

Characters characters(const std::string& text) {
  Characters list;
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    if (length > text.size() - i) length = 1;
    std::uint32_t code = length == 1 ? first : first & (0xFFu >> (length + 1));
    bool good = length == 1 || first < 0xF8;
    for (std::size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      good = good && (next & 0xC0) == 0x80;
      code = code << 6 | (next & 0x3Fu);
    }
    static constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (length > 1) good = good && code >= smallest[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    if (!good) length = 1;
    list.push_back(text.substr(i, length));
    i += length;
  }
  return list;
}

bool matches(const Characters& glob, const Characters& name) {
  std::vector<char> fits(name.size() + 1, 0);  // of the glob's beginning: which beginnings of the name
  fits[0] = 1;
  for (const std::string& c : glob) {
    if (c == "*") {
      for (std::size_t i = 1; i <= name.size(); ++i) fits[i] = fits[i] | fits[i - 1];
    } else {
      for (std::size_t i = name.size(); i > 0; --i)
        fits[i] = fits[i - 1] != 0 && (c == "?" || c == name[i - 1]) ? 1 : 0;
      fits[0] = 0;
    }
  }
  return fits[name.size()] != 0;
}

// One name with each of `lengths`.
void require_matches(const Mix& mix, const std::string& name, const std::vector<std::uint64_t>& lengths) {
  const Characters name_characters = characters(name);
  std::vector<const Rule*> rules;  // that match whatever the length
  for (const Rule& rule : mix.rules()) {
    bool fits = !rule.promoted && matches(characters(rule.glob), name_characters);
    if (rule.promoted)
      for (const auto& promoted : mix.promoted()) fits = fits || promoted.name == name;
    if (fits) rules.push_back(&rule);
    if (fits && rule.lengths.empty()) break;
  }
  for (const std::uint64_t k : lengths) {
    const Rule* expected = nullptr;
    for (const Rule* rule : rules) {
      bool fits = rule->lengths.empty();
      for (const std::uint64_t length : rule->lengths) fits = fits || length == k;
      if (fits && expected == nullptr) expected = rule;
    }
    FUZZ_REQUIRE(mix.match(name, k) == expected);
  }
}

void require_error(const io::Error& error, const std::string& rules, const std::optional<std::string>& promoted) {
  FUZZ_REQUIRE(error.what()[0] != '\0' && std::string(error.what()).size() < 400);
  FUZZ_REQUIRE(error.file() == rules_file().path() || (promoted && error.file() == promoted_file().path()));
  FUZZ_REQUIRE(error.fault() == io::Fault::input || (error.fault() == io::Fault::usage && !promoted));
  const std::string& text = error.file() == rules_file().path() ? rules : *promoted;
  FUZZ_REQUIRE(!error.offset() || *error.offset() <= text.size());
  if (!error.subject()) return;
  // The line is the one in which the offset lies.
  FUZZ_REQUIRE(error.offset());
  std::size_t line = 1;
  for (std::size_t i = 0; i < *error.offset(); ++i) line += text[i] == '\n' ? 1u : 0u;
  FUZZ_REQUIRE(*error.subject() == "line " + std::to_string(line));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> parts = split(std::string(data, data + size), '\x1E');
  const std::string& rules = parts[0];
  const std::optional<std::string> promoted = parts.size() > 1 ? std::make_optional(parts[1]) : std::nullopt;
  write(rules_file(), rules);
  if (promoted) write(promoted_file(), *promoted);

  const Reading reading = read(promoted.has_value(), io::InputFile::Access::automatic);
  const Reading plain = read(promoted.has_value(), io::InputFile::Access::plain_read);
  FUZZ_REQUIRE(reading.mix.has_value() == plain.mix.has_value());
  if (!reading.mix) {
    require_error(*reading.error, rules, promoted);
    FUZZ_REQUIRE(std::string(reading.error->what()) == plain.error->what());
    return 0;
  }

  const Mix& mix = *reading.mix;
  const std::vector<std::string> lines = split(rules, '\n');
  FUZZ_REQUIRE(!mix.rules().empty() && mix.rules().size() == plain.mix->rules().size());
  std::string again = "\xEF\xBB\xBF";
  for (std::size_t i = 0; i < mix.rules().size(); ++i) {
    const Rule& rule = mix.rules()[i];
    require_rule(rule);
    FUZZ_REQUIRE(same_rule(rule, plain.mix->rules()[i]));
    FUZZ_REQUIRE(rule.line > (i == 0 ? 0 : mix.rules()[i - 1].line) && rule.line <= lines.size());
    FUZZ_REQUIRE(lines[rule.line - 1].find(rule.text) != std::string::npos);
    again += " " + rule.text + " # again\r\n";
  }
  for (const auto& name : mix.promoted())
    FUZZ_REQUIRE(split(*promoted, '\n')[name.line - 1].find(name.name) != std::string::npos);

  std::vector<std::string> names{"", "blk.0.attn_k.weight"};
  for (std::size_t i = 2; i < parts.size(); ++i) names.push_back(parts[i]);
  for (const Rule& rule : mix.rules()) names.push_back(rule.glob);
  for (const auto& name : mix.promoted()) names.push_back(name.name);
  if (names.size() > 12) names.resize(12);
  std::vector<std::uint64_t> lengths{0, 5120};
  for (const Rule& rule : mix.rules())
    if (!rule.lengths.empty() && lengths.size() < 5) lengths.push_back(rule.lengths.back());
  for (std::string& name : names) {
    name.resize(std::min<std::size_t>(name.size(), 100));
    require_matches(mix, name, lengths);
  }

  // What was read, written again, is the same.
  write(rules_file(), again);
  const Reading second = read(promoted.has_value(), io::InputFile::Access::automatic);
  FUZZ_REQUIRE(second.mix && second.mix->rules().size() == mix.rules().size());
  for (std::size_t i = 0; i < mix.rules().size(); ++i)
    FUZZ_REQUIRE(same_rule(second.mix->rules()[i], mix.rules()[i]) && second.mix->rules()[i].line == i + 1);
  return 0;
}
