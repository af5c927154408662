// Proves that the rules of `pnpack quantize --mix` mean what mix.hpp says, that names are matched as a second, plain
// matcher does, and that mistakes in the files are told with their place.
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "io/error.hpp"
#include "io/input_file.hpp"
#include "io/temp_dir.hpp"
#include "pnpack/mix.hpp"

using pn::io::Error;
using pn::io::Fault;
using pn::io::InputFile;
using pnpack::glob_matches;
using pnpack::Mix;
using pnpack::Rule;
using pnpack::Treatment;

namespace {

Mix read(const std::string& rules, const std::optional<std::string>& promoted = {}) {
  const TempDir dir;
  const std::string rules_path = dir.write("rules.txt", rules);
  const std::string promoted_path = dir.write("promoted.txt", promoted.value_or(""));
  const InputFile names(promoted_path);
  const Mix plain = Mix::read(InputFile(rules_path, InputFile::Access::plain_read), promoted ? &names : nullptr);
  Mix mapped = Mix::read(InputFile(rules_path), promoted ? &names : nullptr);
  CHECK(plain.rules().size() == mapped.rules().size());
  return mapped;
}

// What `mix` makes of a tensor: a type, or "none".
std::string treatment(const Mix& mix, const std::string& name, std::uint64_t k) {
  const Rule* rule = mix.match(name, k);
  return rule == nullptr ? "none" : to_text(rule->treatment);
}

void check_refused(const std::string& rules, const std::string& subject, std::optional<std::uint64_t> offset,
                   const std::string& part_of_message, const std::optional<std::string>& promoted = {},
                   const std::string& file = "rules.txt", Fault fault = Fault::input) {
  INFO(rules.substr(0, 200));
  try {
    static_cast<void>(read(rules, promoted));
    FAIL_CHECK("accepted, but should say: " << part_of_message);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.fault() == fault);
    CHECK(error.file().substr(error.file().rfind('/') + 1) == file);
    CHECK(error.subject().value_or("") == subject);
    CHECK(error.offset() == offset);
    CHECK(std::string(error.what()).find(part_of_message) != std::string::npos);
    CHECK(std::string(error.what()).size() < 300);
  }
}

// ---- A second matcher: characters first, then plain recursion

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < text.size();) {
    // These tests use no other long characters than é, 語 and 😀.
    std::size_t length = 1;
    for (const char* known : {"é", "語", "😀"})
      if (text.compare(i, std::char_traits<char>::length(known), known) == 0)
        length = std::char_traits<char>::length(known);
    list.push_back(text.substr(i, length));
    i += length;
  }
  return list;
}

using Characters = std::vector<std::string>;

bool slow_match(const Characters& glob, std::size_t g, const Characters& name, std::size_t n) {
  if (g == glob.size()) return n == name.size();
  if (glob[g] == "*") {
    for (std::size_t next = n; next <= name.size(); ++next)
      if (slow_match(glob, g + 1, name, next)) return true;
    return false;
  }
  return n < name.size() && (glob[g] == "?" || glob[g] == name[n]) && slow_match(glob, g + 1, name, n + 1);
}

}  // namespace

TEST_CASE("the first rule that matches decides") {
  const Mix mix = read(
      "a.weight keep\n"
      "a.* pn3t\n"
      "*.weight K=64,128 pn4t\n"
      "*.weight\tK=7   q8_0\n"
      "b donor");
  REQUIRE(mix.rules().size() == 5);
  CHECK(treatment(mix, "a.weight", 64) == "keep");
  CHECK(treatment(mix, "a.bias", 64) == "pn3t");
  CHECK(treatment(mix, "b.weight", 64) == "pn4t");
  CHECK(treatment(mix, "b.weight", 128) == "pn4t");
  CHECK(treatment(mix, "b.weight", 7) == "q8_0");
  CHECK(treatment(mix, "b.weight", 65) == "none");
  CHECK(treatment(mix, "b", 65) == "donor");
  CHECK(treatment(mix, "bb", 65) == "none");
  CHECK(mix.match("a.bias", 1) == &mix.rules()[1]);
  CHECK_FALSE(mix.uses_promoted());
}

TEST_CASE("comments, blank lines, tabs, CRLF and a byte order mark") {
  const Mix mix = read(
      "\xEF\xBB\xBF# rules\r\n"
      "\r\n"
      "  \t a.*\t K=1,22\t  pn3t \t# because\r\n"
      "   # nothing\r\n"
      "b pn4t#at once\n"
      "\n"
      "\xC3\xBC K=5 keep\r\n"
      "c q8_0\r");
  REQUIRE(mix.rules().size() == 4);
  CHECK(mix.rules()[0].text == "a.*\t K=1,22\t  pn3t");
  CHECK(mix.rules()[0].line == 3);
  CHECK(mix.rules()[0].glob == "a.*");
  CHECK(mix.rules()[0].lengths == std::vector<std::uint64_t>{1, 22});
  CHECK(mix.rules()[0].treatment == Treatment::pn3t);
  CHECK(mix.rules()[1].text == "b pn4t");
  CHECK(mix.rules()[1].line == 5);
  CHECK(mix.rules()[2].glob == "ü");
  CHECK(mix.rules()[2].line == 7);
  CHECK(mix.rules()[3].text == "c q8_0");
  CHECK(mix.rules()[3].line == 8);
}

TEST_CASE("row lengths: any order, any number, up to 64 bits") {
  const Mix mix = read("* K=30,10,0020,10,18446744073709551615 pn4t");
  CHECK(mix.rules()[0].lengths == std::vector<std::uint64_t>{10, 20, 30, 18446744073709551615u});
  for (const std::uint64_t k : {10u, 20u, 30u}) CHECK(treatment(mix, "x", k) == "pn4t");
  CHECK(treatment(mix, "x", 18446744073709551615u) == "pn4t");
  for (const std::uint64_t k : {0u, 1u, 11u, 40u}) CHECK(treatment(mix, "x", k) == "none");
}

TEST_CASE("promoted names") {
  const Mix mix = read("@promoted K=5 pn4t\nx keep\n@promoted q8_0", "a.b # why\r\n\n#c\n*\nx\na.b\n  y\t\n");
  CHECK(mix.uses_promoted());
  std::vector<std::string> names;
  for (const auto& promoted : mix.promoted()) names.push_back(promoted.name);
  CHECK(names == std::vector<std::string>{"a.b", "*", "x", "y"});
  CHECK(mix.promoted()[0].line == 1);
  CHECK(mix.promoted()[3].line == 7);
  CHECK(treatment(mix, "a.b", 5) == "pn4t");
  CHECK(treatment(mix, "x", 5) == "pn4t");
  CHECK(treatment(mix, "x", 6) == "keep");
  CHECK(treatment(mix, "y", 6) == "q8_0");
  CHECK(treatment(mix, "*", 6) == "q8_0");
  CHECK(treatment(mix, "z", 6) == "none");  // a name is no pattern
  CHECK(treatment(mix, "c", 6) == "none");
  CHECK(mix.rules()[0].promoted);
  CHECK(mix.rules()[0].glob.empty());
  CHECK(treatment(mix, "", 5) == "none");

  CHECK(read("@promoted pn4t", "").promoted().empty());
  const Mix unused = read("* pn4t", "a\n");
  CHECK_FALSE(unused.uses_promoted());
  CHECK(unused.promoted().size() == 1);
}

TEST_CASE("one rule for --type") {
  for (const char* text : {"pn3t", "pn4t", "q8_0", "keep", "donor"}) {
    const Treatment type = read(std::string("* ") + text).rules()[0].treatment;
    CHECK(std::string(to_text(type)) == text);
    const Mix mix = Mix::of_type(type);
    REQUIRE(mix.rules().size() == 1);
    CHECK(mix.rules()[0].text == std::string("* ") + text);
    CHECK(mix.rules()[0].line == 0);
    CHECK(treatment(mix, "anything.weight", 1) == text);
    CHECK(treatment(mix, "", 0) == text);
    CHECK_FALSE(mix.uses_promoted());
  }
}

TEST_CASE("mistakes are told with line and place") {
  check_refused("", "", {}, "has no rules");
  check_refused("# only\n\n", "", {}, "has no rules");
  check_refused("a pn4t\nb\n", "line 2", 8, "the type is missing: pn3t, pn4t, q8_0, keep or donor");
  check_refused("a K=5", "line 1", 5, "the type is missing");
  check_refused("a K=5 # pn4t", "line 1", 5, "the type is missing");
  check_refused("pn4t", "line 1", 0, "no tensor names");
  check_refused("\n\r\n  a   pn5t", "line 3", 9, "unknown type \"pn5t\"; it may be pn3t");
  check_refused("a PN4T", "line 1", 2, "unknown type");
  check_refused(
      "\xEF\xBB\xBF"
      "a PN4T",
      "line 1", 5, "unknown type");
  check_refused("a b pn4t", "line 1", 2, "unknown type \"b\"");
  check_refused("a k=5 pn4t", "line 1", 2, "unknown type \"k=5\"");
  check_refused("a pn4t pn3t", "line 1", 7, "too many words: \"pn3t\" follows");
  check_refused("a pn4t K=5", "line 1", 7, "\"K=5\" belongs before the type");
  check_refused("a K=5 K=6 pn4t", "line 1", 6, "unknown type \"K=6\"");
  check_refused("a K=5, 6 pn4t", "line 1", 6, "row length is missing");
  check_refused("a K= pn4t", "line 1", 4, "row length is missing");
  check_refused("a K=, pn4t", "line 1", 4, "row length is missing");
  check_refused("a K=5,,6 pn4t", "line 1", 6, "row length is missing");
  check_refused("a K=,5 pn4t", "line 1", 4, "row length is missing");
  check_refused("a K=5,x pn4t", "line 1", 6, "not a list of row lengths");
  check_refused("a K=-5 pn4t", "line 1", 4, "not a list of row lengths");
  check_refused("a K=5k pn4t", "line 1", 5, "not a list of row lengths");
  check_refused("a K=0x10 pn4t", "line 1", 5, "not a list of row lengths");
  check_refused("a K=6,0 pn4t", "line 1", 6, "is 0");
  check_refused("a K=18446744073709551616 pn4t", "line 1", 4, "larger than 2^64");
  check_refused("a K=1," + std::string(5000, '9') + " pn4t", "line 1", 6, "larger than 2^64");
  check_refused("@promote pn4t", "line 1", 0, "unknown \"@promote\"; only @promoted");
  check_refused("@ pn4t", "line 1", 0, "unknown \"@\"");
  check_refused("@promotedx pn4t", "line 1", 0, "unknown", "a");
  check_refused("a keep\n @promoted pn4t", "line 2", 8, "--promote FILE", {}, "rules.txt", Fault::usage);
  check_refused(std::string("a\0 pn4t", 7), "line 1", 1, "not a text file");
  check_refused(std::string("# \0", 3), "line 1", 2, "not a text file");
  check_refused("# old Macs\ra pn4t\r", "line 1", 10, "carriage return");
  check_refused("a\x1B pn4t", "line 1", 1, "control character");
  check_refused("a\x7F pn4t", "line 1", 1, "control character");
  check_refused("a\fpn4t", "line 1", 1, "control character");
  check_refused(std::string("\xFF\xFE"
                            "a\0",
                            4),
                "", 0, "UTF-16");
  check_refused(std::string("\xFE\xFF\0a", 4), "", 0, "UTF-16");
  check_refused(std::string(1025, '*') + " pn4t", "line 1", 0, "1025 bytes");
  CHECK(read(std::string(1024, '*') + " pn4t").rules().size() == 1);
  check_refused("a " + std::string(100000, 'x'), "line 1", 2, "unknown type");
  check_refused(std::string((1 << 20) + 1, '\n'), "", {}, "1048577 bytes");
  CHECK(read("* keep" + std::string((1 << 20) - 6, '\n')).rules().size() == 1);
}

TEST_CASE("mistakes in the list of promoted names") {
  check_refused("* keep", "line 2", 4, "too many words: \"pn4t\"", "x\na pn4t", "promoted.txt");
  check_refused("* keep", "line 1", 1, "not a text file", std::string("a\0b", 3), "promoted.txt");
  check_refused("* keep", "", {}, "bytes", std::string((1 << 20) + 1, '\n'), "promoted.txt");
  check_refused("* keep", "", 0, "UTF-16",
                std::string("\xFF\xFE"
                            "a\0",
                            4),
                "promoted.txt");
}

TEST_CASE("patterns stand for whole names") {
  CHECK(glob_matches("", ""));
  CHECK_FALSE(glob_matches("", "a"));
  CHECK(glob_matches("*", ""));
  CHECK(glob_matches("***", ""));
  CHECK_FALSE(glob_matches("?", ""));
  CHECK_FALSE(glob_matches("a", ""));
  CHECK(glob_matches("blk.*.attn_k.weight", "blk.31.attn_k.weight"));
  CHECK_FALSE(glob_matches("blk.*.attn_k.weight", "blk.31.attn_k_norm.weight"));
  CHECK_FALSE(glob_matches("blk.*.attn_k.weight", "blk.31.attn_k.weights"));
  CHECK_FALSE(glob_matches("blk.*.attn_k.weight", "xblk.31.attn_k.weight"));
  CHECK(glob_matches("blk.?.*", "blk.3.a.b"));
  CHECK_FALSE(glob_matches("blk.?.*", "blk.31.a.b"));
  CHECK(glob_matches("*a*b*", "xxaxxbxx"));
  CHECK_FALSE(glob_matches("*a*b*", "xxbxxaxx"));
  CHECK(glob_matches("*aab", "aaaaaab"));
  CHECK_FALSE(glob_matches("A", "a"));
  for (const char* literal : {"[a]", "a\\", "{a,b}", "a+", "^a$", "(a|b)", ".", "!a", "~"}) {
    CHECK(glob_matches(literal, literal));
    CHECK_FALSE(glob_matches(literal, "a"));
  }
  CHECK(glob_matches("a*", "a*"));
  CHECK(glob_matches("\\*", "\\x"));  // no escapes
}

TEST_CASE("a question mark is one character, however many bytes") {
  for (const char* one : {"a", "é", "語", "😀", "\x80", "\xFF", "\xC3", "\xED"}) {
    CHECK(glob_matches("?", one));
    CHECK(glob_matches("x?y", "x" + std::string(one) + "y"));
    CHECK_FALSE(glob_matches("??", one));
    CHECK(glob_matches("*?", one));
    CHECK(glob_matches("?*", one));
    CHECK_FALSE(glob_matches("*??*", one));
    CHECK(glob_matches(one, one));
  }
  // Not UTF-8: surrogates, longer than needed, beyond Unicode, cut off. Every byte counts.
  for (const char* bytes : {"\xED\xA0\x80", "\xE0\x9F\xBF", "\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF", "\xC0\x80",
                            "\xC1\xBF", "\xF5\x80\x80\x80", "\xE8\xAA", "\xF0\x9F\x98", "\x80\x80"}) {
    const std::string text = bytes;
    CHECK(glob_matches(std::string(text.size(), '?'), text));
    CHECK_FALSE(glob_matches(std::string(text.size() - 1, '?'), text));
  }
  CHECK_FALSE(glob_matches("\xC3*", "é"));  // half a character is none
  CHECK_FALSE(glob_matches("*\xA9", "é"));
  CHECK(glob_matches("\xC3*", "\xC3x"));
  CHECK(glob_matches("?\xED\x9F\xBF?",
                     "a\xED\x9F\xBF"
                     "b"));
}

TEST_CASE("random patterns match as plain recursion says") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t count) { return std::size_t{random()} % count; };
  const char* const alphabet[] = {"a", "b", ".", "é", "語", "😀", "\xC3", "\xA9", "*", "?", "*", "?"};
  const auto text = [&](std::size_t most, std::size_t letters, std::size_t first) {
    std::string result;
    for (std::size_t length = below(most + 1); length > 0; --length) result += alphabet[first + below(letters)];
    return result;
  };
  int matches = 0;
  for (int i = 0; i < 60000; ++i) {
    // Few letters now and then, so that many match.
    const bool few = i % 2 == 0;
    const std::string name = few ? text(9, 2, 0) : text(7, 12, 0);
    std::string glob;
    for (std::size_t length = below(9); length > 0; --length)
      glob += below(2) == 0 ? alphabet[8 + below(4)] : alphabet[below(few ? 2 : 12)];
    const bool expected = slow_match(characters(glob), 0, characters(name), 0);
    matches += expected ? 1 : 0;
    INFO("glob " << glob << " name " << name);
    REQUIRE(glob_matches(glob, name) == expected);
  }
  CHECK(matches > 10000);
}

TEST_CASE("patterns made to take long do not") {
  const auto start = std::chrono::steady_clock::now();
  std::string stars;
  for (int i = 0; i < 256; ++i) stars += "*a?a";
  const std::string name(20000, 'a');
  CHECK(glob_matches(stars + "*", name));
  CHECK_FALSE(glob_matches(stars.substr(4) + "*b", name));
  CHECK_FALSE(glob_matches("*" + std::string(1000, 'a') + "b", name));
  CHECK_FALSE(glob_matches("*" + std::string(1000, '?') + "b", name));
  CHECK_FALSE(glob_matches(std::string(1023, '*') + "b", name));
  // As many lines, words or rules as a file can have, and a long list of lengths.
  std::string rules;
  while (rules.size() < (1u << 20) - 7) rules += "a pn4t\n";
  const Mix many = read(rules);
  for (int i = 0; i < 100; ++i) CHECK(many.match("b", 1) == nullptr);
  std::string words = "a";
  while (words.size() < (1u << 20) - 2) words += " a";
  CHECK_THROWS_AS(read(words), Error);
  std::string lengths = "* K=1";
  while (lengths.size() < (1u << 20) - 20) lengths += ",2";
  CHECK(read(lengths + " keep").rules()[0].lengths.size() == 2);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("the mix that comes as an example does what it says") {
  const InputFile rules(std::string(PN_SOURCE_DIR) + "/examples/mixes/p0k19.txt");
  const TempDir dir;
  const InputFile promoted(dir.write("promoted.txt", "blk.0.ffn_up.weight\nblk.3.attn_q.weight # the 19, here 2\n"));
  const Mix mix = Mix::read(rules, &promoted);
  CHECK(mix.uses_promoted());
  const struct {
    const char* name;
    std::uint64_t k;
    const char* expected;
  } tensors[] = {
      {"token_embd.weight", 5120, "donor"},
      {"output.weight", 5120, "donor"},
      {"output_norm.weight", 5120, "keep"},
      {"blk.0.attn_norm.weight", 5120, "keep"},
      {"blk.0.post_attention_norm.weight", 5120, "keep"},
      {"blk.0.attn_qkv.weight", 5120, "pn3t"},
      {"blk.0.attn_gate.weight", 5120, "pn3t"},
      {"blk.0.ssm_alpha.weight", 5120, "q8_0"},
      {"blk.63.ssm_beta.weight", 5120, "q8_0"},
      {"blk.0.ssm_a", 48, "keep"},
      {"blk.0.ssm_dt.bias", 48, "keep"},
      {"blk.0.ssm_conv1d.weight", 4, "keep"},
      {"blk.0.ssm_norm.weight", 128, "keep"},
      {"blk.0.ssm_out.weight", 6144, "pn4t"},
      {"blk.0.ffn_gate.weight", 5120, "pn3t"},
      {"blk.0.ffn_up.weight", 5120, "pn4t"},  // promoted
      {"blk.1.ffn_up.weight", 5120, "pn3t"},
      {"blk.0.ffn_down.weight", 17408, "pn4t"},
      {"blk.3.attn_q.weight", 5120, "pn4t"},  // promoted
      {"blk.7.attn_q.weight", 5120, "pn3t"},
      {"blk.3.attn_k.weight", 5120, "pn4t"},
      {"blk.3.attn_v.weight", 5120, "pn4t"},
      {"blk.3.attn_q_norm.weight", 256, "keep"},
      {"blk.3.attn_k_norm.weight", 256, "keep"},
      {"blk.3.attn_output.weight", 6144, "pn4t"},
      {"rope_freqs.weight", 64, "keep"},
  };
  std::map<std::size_t, int> uses;
  for (const auto& tensor : tensors) {
    INFO(tensor.name);
    CHECK(treatment(mix, tensor.name, tensor.k) == tensor.expected);
    const Rule* rule = mix.match(tensor.name, tensor.k);
    if (rule != nullptr) ++uses[static_cast<std::size_t>(rule - mix.rules().data())];
  }
  CHECK(uses.size() == mix.rules().size());  // none is there in vain
  CHECK_THROWS_AS(Mix::read(rules, nullptr), Error);
}
