#include "mix.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "io/error.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::InputFile;

namespace {

constexpr std::uint64_t largest_file = 1 << 20;
constexpr std::size_t longest_glob = 1024;  // names in GGUF files have 63 bytes at most, if ggml wrote them
constexpr const char* promoted_word = "@promoted";
constexpr const char* type_list = "pn3t, pn4t, q8_0, keep or donor";

constexpr std::pair<const char*, Treatment> treatments[] = {{"pn3t", Treatment::pn3t},
                                                            {"pn4t", Treatment::pn4t},
                                                            {"q8_0", Treatment::q8_0},
                                                            {"keep", Treatment::keep},
                                                            {"donor", Treatment::donor}};

std::optional<Treatment> treatment_of(const std::string& text) {
  for (const auto& [name, treatment] : treatments)
    if (text == name) return treatment;
  return {};
}

bool begins_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

struct Word {
  std::string text;
  std::uint64_t offset = 0;  // in the file
};

struct Line {
  std::size_t number = 0;  // from 1
  std::vector<Word> words;
  std::string text;  // from the first word to the last
};

[[noreturn]] void fail(const InputFile& file, std::size_t line, std::uint64_t offset, const std::string& message,
                       Fault fault = Fault::input) {
  throw Error(fault, file.path(), message).about("line " + std::to_string(line)).at(offset);
}

// A word in an error message.
std::string quoted(const std::string& word) {
  constexpr std::size_t most = 60;
  return "\"" + (word.size() <= most ? word : word.substr(0, most) + "...") + "\"";
}

std::string read_text(const InputFile& file) {
  if (file.size() > largest_file)
    throw Error(Fault::input, file.path(),
                "has " + std::to_string(file.size()) + " bytes; a list of rules or names has no more than " +
                    std::to_string(largest_file));
  const auto size = static_cast<std::size_t>(file.size());
  std::vector<std::uint8_t> scratch;
  const std::uint8_t* bytes = file.read(0, size, scratch);
  std::string text;
  if (size != 0) text.assign(reinterpret_cast<const char*>(bytes), size);
  return text;
}

// The words of a line that begins at `start`, up to a comment.
Line split(const InputFile& file, std::string text, std::uint64_t start, std::size_t number) {
  Line line;
  line.number = number;
  if (!text.empty() && text.back() == '\r') text.pop_back();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\0') fail(file, number, start + i, "has a zero byte: this is not a text file");
    if (text[i] == '\r') fail(file, number, start + i, "has a carriage return that does not end the line");
  }
  text.resize(std::min(text.size(), text.find('#')));
  constexpr const char* blanks = " \t";
  std::size_t end = 0;
  for (std::size_t i = 0; (i = text.find_first_not_of(blanks, end)) != std::string::npos;) {
    end = std::min(text.size(), text.find_first_of(blanks, i));
    for (std::size_t c = i; c < end; ++c)
      if (static_cast<unsigned char>(text[c]) < 0x20 || text[c] == 0x7F)
        fail(file, number, start + c, "has a control character outside of a comment");
    line.words.push_back({text.substr(i, end - i), start + i});
  }
  if (!line.words.empty()) {
    const auto first = static_cast<std::size_t>(line.words.front().offset - start);
    line.text = text.substr(first, end - first);
  }
  return line;
}

// The lines of a file that are not empty.
std::vector<Line> read_lines(const InputFile& file) {
  const std::string text = read_text(file);
  if (begins_with(text, "\xFF\xFE") || begins_with(text, "\xFE\xFF"))
    throw Error(Fault::input, file.path(), "seems to be UTF-16 text; save it as UTF-8").at(0);
  std::vector<Line> lines;
  std::size_t begin = begins_with(text, "\xEF\xBB\xBF") ? 3 : 0;
  for (std::size_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.size(), text.find('\n', begin));
    Line line = split(file, text.substr(begin, end - begin), begin, number);
    if (!line.words.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

// The N of K=N,N...
std::vector<std::uint64_t> read_lengths(const InputFile& file, const Line& line, const Word& word) {
  std::vector<std::uint64_t> lengths;
  for (std::size_t begin = 2; begin <= word.text.size();) {
    const std::size_t end = std::min(word.text.size(), word.text.find(',', begin));
    const std::uint64_t offset = word.offset + begin;
    if (begin == end) fail(file, line.number, offset, "a row length is missing in " + quoted(word.text));
    std::uint64_t length = 0;
    for (; begin < end; ++begin) {
      const char c = word.text[begin];
      if (c < '0' || c > '9')
        fail(file, line.number, word.offset + begin,
             quoted(word.text) + " is not a list of row lengths like K=5120 or K=6144,17408");
      const auto digit = static_cast<std::uint64_t>(c - '0');
      if (length > (std::numeric_limits<std::uint64_t>::max() - digit) / 10)
        fail(file, line.number, offset, "a row length in " + quoted(word.text) + " is larger than 2^64");
      length = 10 * length + digit;
    }
    if (length == 0) fail(file, line.number, offset, "a row length in " + quoted(word.text) + " is 0");
    lengths.push_back(length);
    ++begin;
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

Rule read_rule(const InputFile& file, const Line& line) {
  const std::vector<Word>& words = line.words;
  Rule rule;
  rule.text = line.text;
  rule.line = line.number;

  const Word& first = words.front();
  rule.promoted = first.text == promoted_word;
  if (!rule.promoted) {
    if (first.text[0] == '@')
      fail(file, line.number, first.offset, "unknown " + quoted(first.text) + "; only " + promoted_word + " exists");
    if (first.text.size() > longest_glob)
      fail(file, line.number, first.offset,
           "a pattern of " + std::to_string(first.text.size()) + " bytes; names have no more than " +
               std::to_string(longest_glob));
    rule.glob = first.text;
  }

  std::size_t next = 1;
  if (next < words.size() && begins_with(words[next].text, "K=")) {
    rule.lengths = read_lengths(file, line, words[next]);
    ++next;
  }
  if (next == words.size()) {
    if (next == 1 && treatment_of(first.text))
      fail(file, line.number, first.offset, "has a type but no tensor names before it (* means all)");
    const Word& last = words.back();
    fail(file, line.number, last.offset + last.text.size(), std::string("the type is missing: ") + type_list);
  }
  const Word& type = words[next];
  const std::optional<Treatment> treatment = treatment_of(type.text);
  if (!treatment)
    fail(file, line.number, type.offset, "unknown type " + quoted(type.text) + "; it may be " + type_list);
  rule.treatment = *treatment;
  if (++next < words.size()) {
    const Word& extra = words[next];
    fail(file, line.number, extra.offset,
         begins_with(extra.text, "K=") ? "too many words: " + quoted(extra.text) + " belongs before the type"
                                       : "too many words: " + quoted(extra.text) + " follows the type");
  }
  return rule;
}

// Bytes of the character at `at`: those of a well-formed UTF-8 sequence, else 1.
std::size_t character_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0xC2 || first > 0xF4) return 1;
  // The second byte also rules out longer forms than needed, surrogates and what lies beyond Unicode.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 1;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (std::size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 1;
  return length;
}

}  // namespace

const char* to_text(Treatment treatment) {
  for (const auto& [name, which] : treatments)
    if (which == treatment) return name;
  return "?";
}

bool glob_matches(const std::string& glob, const std::string& name) {
  std::size_t g = 0;
  std::size_t n = 0;
  // Where to go on when a literal part does not fit: behind the last star, which takes one character more. Earlier
  // stars need not be tried again: what they could take, this one takes.
  std::size_t after_star = std::string::npos;
  std::size_t star_end = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      after_star = ++g;
      star_end = n;
      continue;
    }
    const std::size_t length = character_length(name, n);
    if (g < glob.size()) {
      const std::size_t expected = character_length(glob, g);
      if (glob[g] == '?' || (expected == length && name.compare(n, length, glob, g, length) == 0)) {
        g += expected;
        n += length;
        continue;
      }
    }
    if (after_star == std::string::npos) return false;
    g = after_star;
    star_end += character_length(name, star_end);
    n = star_end;
  }
  return glob.find_first_not_of('*', g) == std::string::npos;
}

Mix Mix::read(const InputFile& rules, const InputFile* promoted) {
  Mix mix;
  for (const Line& line : read_lines(rules)) {
    mix.rules_.push_back(read_rule(rules, line));
    if (mix.rules_.back().promoted && promoted == nullptr)
      fail(rules, line.number, line.words.front().offset,
           std::string(promoted_word) + " needs a file of tensor names: --promote FILE", Fault::usage);
  }
  if (mix.rules_.empty()) throw Error(Fault::input, rules.path(), "has no rules");

  if (promoted == nullptr) return mix;
  for (const Line& line : read_lines(*promoted)) {
    if (line.words.size() > 1)
      fail(*promoted, line.number, line.words[1].offset,
           "too many words: " + quoted(line.words[1].text) + " follows the tensor name");
    const std::string& name = line.words.front().text;
    if (mix.promoted_names_.insert(name).second) mix.promoted_.push_back({name, line.number});
  }
  return mix;
}

Mix Mix::of_type(Treatment treatment) {
  Rule rule;
  rule.text = std::string("* ") + to_text(treatment);
  rule.glob = "*";
  rule.treatment = treatment;
  Mix mix;
  mix.rules_.push_back(std::move(rule));
  return mix;
}

const Rule* Mix::match(const std::string& name, std::uint64_t k) const {
  for (const Rule& rule : rules_) {
    if (!rule.lengths.empty() && !std::binary_search(rule.lengths.begin(), rule.lengths.end(), k)) continue;
    if (rule.promoted ? promoted_names_.count(name) != 0 : glob_matches(rule.glob, name)) return &rule;
  }
  return nullptr;
}

bool Mix::uses_promoted() const noexcept {
  return std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) { return rule.promoted; });
}

}  // namespace pnpack
