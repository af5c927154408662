// Proves that importance matrices in both of llama.cpp's forms give the numbers that they hold, per expert too, and
// that any other file is refused with the place of the fault.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "io/error.hpp"
#include "io/imatrix.hpp"
#include "temp_dir.hpp"

using pn::io::Error;
using pn::io::Imatrix;
using pn::io::ImatrixEntry;
using pn::io::InputFile;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::string number(std::uint64_t value, std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}
std::string i32(std::int32_t value) { return number(static_cast<std::uint32_t>(value), 4); }
std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bytes += number(bits, 4);
  }
  return bytes;
}

// ---- The older form

std::string older_entry(const std::string& name, std::int32_t calls, const std::vector<float>& values) {
  return i32(static_cast<std::int32_t>(name.size())) + name + i32(calls) +
         i32(static_cast<std::int32_t>(values.size())) + floats(values);
}
std::string older_tail(const std::string& dataset) {
  return i32(42) + i32(static_cast<std::int32_t>(dataset.size())) + dataset;
}

// ---- GGUF

std::string string(const std::string& text) { return number(text.size(), 8) + text; }
std::string key_string(const std::string& name, const std::string& value) {
  return string(name) + number(8, 4) + string(value);
}
const std::string imatrix_type = key_string("general.type", "imatrix");

struct Part {
  std::string name;
  std::vector<std::uint64_t> ne;  // K first
  std::vector<float> values;
  std::uint32_t type = 0;  // F32; F16 (1) takes half of the bytes
};

std::string gguf(const std::vector<Part>& parts, const std::vector<std::string>& keys = {imatrix_type}) {
  std::string descriptions;
  std::string data;
  for (const Part& part : parts) {
    descriptions += string(part.name) + number(part.ne.size(), 4);
    for (const std::uint64_t n : part.ne) descriptions += number(n, 8);
    descriptions += number(part.type, 4) + number(data.size(), 8);
    const std::string bytes = floats(part.values);
    data += bytes.substr(0, part.type == 1 ? bytes.size() / 2 : bytes.size());
    data.resize((data.size() + 31) / 32 * 32);
  }
  std::string file = "GGUF" + number(3, 4) + number(parts.size(), 8) + number(keys.size(), 8);
  for (const std::string& key : keys) file += key;
  file += descriptions;
  file.resize((file.size() + 31) / 32 * 32);
  return file + data;
}

std::vector<Part> entry(const std::string& name, std::uint64_t k, const std::vector<float>& sums,
                        const std::vector<float>& counts) {
  return {{name + ".in_sum2", {k, counts.size()}, sums}, {name + ".counts", {1, counts.size()}, counts}};
}

// ---- Reading

// Calls `use` with the matrix in `bytes`, read in both ways; gives what the second call gave.
template <class Use>
auto with(const std::string& bytes, const Use& use) {
  const TempDir dir;
  const std::string path = dir.write("imatrix", bytes);
  const InputFile plain(path, InputFile::Access::plain_read);
  use(Imatrix(plain));
  const InputFile mapped(path);
  return use(Imatrix(mapped));
}

std::vector<double> read(const std::string& bytes, const std::string& name, std::uint64_t matrix, std::uint64_t k,
                         std::uint64_t matrices) {
  return with(bytes, [&](const Imatrix& imatrix) {
    const ImatrixEntry* found = imatrix.find(name);
    REQUIRE(found != nullptr);
    return imatrix.read(*found, matrix, k, matrices);
  });
}

void nothing(const Imatrix&) {}

// Checks that `use` fails, in the same way for both ways of reading.
void check_refused(const std::string& bytes, const std::string& subject, std::optional<std::uint64_t> offset,
                   const std::vector<std::string>& parts_of_message,
                   const std::function<void(const Imatrix&)>& use = nothing) {
  const TempDir dir;
  const std::string path = dir.write("imatrix", bytes);
  for (const auto access : {InputFile::Access::plain_read, InputFile::Access::automatic}) {
    try {
      const InputFile file(path, access);
      use(Imatrix(file));
      FAIL_CHECK("accepted, but should say: " << parts_of_message.front());
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.fault() == pn::io::Fault::input);
      CHECK(error.file() == path);
      CHECK(error.subject().value_or("") == subject);
      for (const std::string& part : parts_of_message) CHECK(std::string(error.what()).find(part) != std::string::npos);
      if (offset) CHECK(error.offset() == offset);
      if (error.offset()) CHECK(*error.offset() <= bytes.size());
    }
  }
}

std::function<void(const Imatrix&)> reading(std::uint64_t matrix, std::uint64_t k, std::uint64_t matrices) {
  return [=](const Imatrix& imatrix) { imatrix.read(imatrix.entries().front(), matrix, k, matrices); };
}

using Doubles = std::vector<double>;

}  // namespace

TEST_CASE("the GGUF form: sums over counts, in double") {
  std::vector<Part> parts = entry("blk.0.ffn_up.weight", 4, {1, 2, 0, 1e30f}, {3});
  const std::vector<Part> second = entry("output.weight", 2, {0.1f, 5}, {7});
  parts.insert(parts.end(), second.begin(), second.end());
  const std::string file = gguf(parts, {key_string("general.name", "x"), imatrix_type});
  CHECK(read(file, "blk.0.ffn_up.weight", 0, 4, 1) == Doubles{1.0 / 3, 2.0 / 3, 0, double{1e30f} / 3});
  CHECK(read(file, "output.weight", 0, 2, 1) == Doubles{double{0.1f} / 7, 5.0 / 7});
  with(file, [](const Imatrix& imatrix) {
    REQUIRE(imatrix.entries().size() == 2);
    CHECK(imatrix.entries()[0].name == "blk.0.ffn_up.weight");
    CHECK(imatrix.entries()[0].values == 4);
    CHECK(imatrix.entries()[0].counts == 1);
    CHECK(imatrix.find("output.weight") == &imatrix.entries()[1]);
    CHECK(imatrix.find("output") == nullptr);
    CHECK(imatrix.find("output.weight.in_sum2") == nullptr);
    CHECK(imatrix.find("zzz") == nullptr);
    CHECK(imatrix.find("") == nullptr);
  });
}

TEST_CASE("the GGUF form: every expert has a count of its own, and an unused one has no importance") {
  const std::string file = gguf(entry("e", 2, {2, 4, 7, 9, 10, 30}, {2, 0, 10}));
  CHECK(read(file, "e", 0, 2, 3) == Doubles{1, 2});
  CHECK(read(file, "e", 1, 2, 3) == Doubles{0, 0});
  CHECK(read(file, "e", 2, 2, 3) == Doubles{1, 3});
  with(file, [](const Imatrix& imatrix) { CHECK_THROWS_AS(reading(3, 2, 3)(imatrix), std::out_of_range); });
}

TEST_CASE("the GGUF form as llama.cpp writes it: no trailing dimensions of 1, one count for a dense 3-D tensor") {
  const std::string dropped = gguf({{"a.in_sum2", {3}, {3, 6, 9}}, {"a.counts", {1}, {3}}});
  CHECK(read(dropped, "a", 0, 3, 1) == Doubles{1, 2, 3});
  const std::string padded = gguf({{"a.in_sum2", {3, 1, 1, 1}, {3, 6, 9}}, {"a.counts", {1, 1, 1, 1}, {3}}});
  CHECK(read(padded, "a", 0, 3, 1) == Doubles{1, 2, 3});
  const std::string scalar = gguf({{"a.in_sum2", {}, {3}}, {"a.counts", {}, {2}}});
  CHECK(read(scalar, "a", 0, 1, 1) == Doubles{1.5});
  const std::string dense = gguf({{"a.in_sum2", {6}, {2, 4, 6, 8, 10, 12}}, {"a.counts", {1}, {2}}});
  CHECK(read(dense, "a", 0, 2, 3) == Doubles{1, 2});
  CHECK(read(dense, "a", 2, 2, 3) == Doubles{5, 6});
  // Columns of one row each.
  const std::string narrow = gguf(entry("a", 1, {2, 9}, {2, 3}));
  CHECK(read(narrow, "a", 1, 1, 2) == Doubles{3});
}

TEST_CASE("the GGUF form: counts may come first, and other tensors are passed over") {
  const std::string file = gguf({{"a.counts", {1, 1}, {2}},
                                 {"a.in_sum", {2, 1}, {-1, not_a_number}},
                                 {"a.stats", {3}, {1, 2, 3}},
                                 {"lonely.in_sum", {2, 1}, {1, 1}},
                                 {"a.in_sum2", {2, 1}, {4, 6}}});
  CHECK(read(file, "a", 0, 2, 1) == Doubles{2, 3});
  with(file, [](const Imatrix& imatrix) { CHECK(imatrix.entries().size() == 1); });
}

TEST_CASE("the GGUF form: what does not belong together is refused") {
  const std::string model_type = key_string("general.type", "model");
  const std::vector<Part> good = entry("a", 2, {1, 2}, {1});
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{},
        {model_type},
        {key_string("general.type", "imatrix2")},
        {key_string("general.type", "")},
        {string("general.type") + number(4, 4) + number(7, 4)},
        // An array of bytes that looks like the text.
        {string("general.type") + number(9, 4) + number(0, 4) + number(7, 8) + "imatrix"}})
    check_refused(gguf(good, keys), "", keys.empty() ? 0u : 24u, {"not an importance matrix", "general.type"});
  check_refused(gguf({}), "", 0, {"no importance", ".in_sum2"});
  check_refused(gguf({{"a", {1}, {1}}}), "", 0, {"no importance"});
  check_refused(gguf({good[0]}), "tensor a", {}, {"a.in_sum2 but no a.counts"});
  check_refused(gguf({good[1]}), "tensor a", {}, {"a.counts but no a.in_sum2"});
  check_refused(gguf({good[0], good[1], {"b.counts", {1}, {1}}}), "tensor b", {}, {"no b.in_sum2"});
  check_refused(gguf({good[0], {"a.counts", {1, 1}, {1, 0}, 1}}), "tensor a", {}, {"a.counts is F16, not F32"});
  check_refused(gguf({{"a.in_sum2", {2, 1}, {1, 2}, 1}, good[1]}), "tensor a", {}, {"a.in_sum2 is F16, not F32"});
  check_refused(gguf({good[0], {"a.counts", {1, 2}, {1, 1}}}), "tensor a", {}, {"[1, 2]", "[2, 1]", "[1, 1]"});
  check_refused(gguf({good[0], {"a.counts", {2}, {1, 1}}}), "tensor a", {}, {"[2]"});
  check_refused(gguf({{"a.in_sum2", {2, 2}, {1, 2, 3, 4}}, {"a.counts", {2, 1}, {1, 1}}}), "tensor a", {}, {"[2, 1]"});
  check_refused(gguf({{"a.in_sum2", {2, 2}, {1, 2, 3, 4}}, {"a.counts", {1}, {1}}}), "tensor a", {}, {"[1]"});
  check_refused(gguf({{"a.in_sum2", {1, 2, 2}, {1, 2, 3, 4}}, {"a.counts", {1, 4}, {1, 1, 1, 1}}}), "tensor a", {},
                {"[1, 2, 2]", "two dimensions"});
  check_refused(gguf({{"a.in_sum2", {0, 1}, {}}, good[1]}), "tensor a", {}, {"no elements"});
  check_refused(gguf({good[0], {"a.counts", {1, 0}, {}}}), "tensor a", {}, {"no elements"});
  check_refused(gguf({good[0], good[0], good[1]}), "tensor a.in_sum2", {}, {"appears twice"});
  const std::string file = gguf(good);
  check_refused(file + "x", "", file.size(), {"after its last tensor"});
}

TEST_CASE("the GGUF form ends nowhere else than at its end") {
  const std::string file = gguf(entry("blk.0.a", 3, {1, 2, 3, 4, 5, 6}, {1, 2}));
  for (std::size_t size = 0; size < file.size(); ++size) {
    if (size == file.size() - 24) continue;  // the padding after the last tensor may be missing
    const TempDir dir;
    const InputFile part(dir.write("imatrix", file.substr(0, size)));
    INFO(size);
    CHECK_THROWS_AS(Imatrix(part), Error);
  }
  CHECK(read(file.substr(0, file.size() - 24), "blk.0.a", 1, 3, 2) == Doubles{2, 2.5, 3});
}

TEST_CASE("the older form: values over calls, with and without a tail") {
  const std::string entries = i32(2) + older_entry("blk.0.a", 3, {1, 2, 0.1f}) + older_entry("b", 5, {4});
  for (const std::string& tail : {std::string(), i32(42), older_tail(""), older_tail("wiki.train.raw"), i32(-1)}) {
    CHECK(read(entries + tail, "blk.0.a", 0, 3, 1) == Doubles{1.0 / 3, 2.0 / 3, double{0.1f} / 3});
    CHECK(read(entries + tail, "b", 0, 1, 1) == Doubles{4.0 / 5});
  }
  CHECK(read(i32(1) + older_entry("a", 0, {4, not_a_number}), "a", 0, 2, 1) == Doubles{0, 0});
  CHECK(read(i32(1) + older_entry("", 2, {4}), "", 0, 1, 1) == Doubles{2});
  CHECK(read(i32(1) + older_entry("a", 0x7FFFFFFF, {1}), "a", 0, 1, 1) == Doubles{1.0 / 0x7FFFFFFF});
}

TEST_CASE("the older form: experts one after another") {
  const std::string file = i32(1) + older_entry("e", 2, {2, 4, 6, 8, 10, 12});
  CHECK(read(file, "e", 0, 2, 3) == Doubles{1, 2});
  CHECK(read(file, "e", 2, 2, 3) == Doubles{5, 6});
  CHECK(read(file, "e", 0, 6, 1).size() == 6);
}

TEST_CASE("the older form: every kind of damage has its message") {
  const std::string good = older_entry("aa", 3, {1, 2});
  check_refused("", "", 0, {"too short"});
  check_refused("GGU", "", 0, {"too short"});
  for (const std::int32_t count : {0, -1, 2, 0x7FFFFFFF, std::numeric_limits<std::int32_t>::min()})
    check_refused(i32(count) + good, "", 0, {"not an importance matrix", std::to_string(count) + " entries"});
  check_refused("# a text file, not a matrix, of some length", "", 0, {"neither GGUF nor the older form"});
  check_refused(i32(1) + i32(-1) + std::string(16, 'x'), "", 4, {"entry 1 of 1", "-1 bytes", "negative"});
  check_refused(i32(1) + i32(17) + std::string(16, 'x'), "", 4, {"17 bytes", "more than are left"});
  check_refused(i32(1) + i32(0x7FFFFFFF) + std::string(16, 'x'), "", 4, {"more than are left"});
  check_refused(i32(1) + older_entry("aa", -1, {1, 2}), "tensor aa", 10, {"-1 calls"});
  check_refused(i32(1) + i32(2) + "aa" + i32(3) + i32(-1) + floats({1}), "tensor aa", 14, {"-1 values"});
  check_refused(i32(1) + older_entry("aa", 3, {}) + "xx", "tensor aa", 14, {"0 values"});
  check_refused(i32(1) + i32(2) + "aa" + i32(3) + i32(3) + floats({1, 2}), "tensor aa", 14,
                {"3 values go beyond the end"});
  check_refused(i32(1) + i32(2) + "aa" + i32(3) + i32(0x7FFFFFFF) + floats({1, 2}), "tensor aa", 14,
                {"beyond the end"});
  const std::string entries = i32(2) + good + older_entry("b", 1, {1});
  check_refused(i32(2) + good + good, "tensor aa", 4 + 22 + 14, {"appears twice"});
  check_refused(entries + i32(1) + i32(-2), "", entries.size() + 4, {"-2 bytes", "negative"});
  check_refused(entries + i32(1) + i32(3) + "ab", "", entries.size() + 4, {"3 bytes", "more than are left"});
  check_refused(entries + i32(1) + i32(2) + "abc", "", entries.size() + 10, {"1 bytes after"});
  // Fewer entries than the file has: the next one is read as the tail.
  check_refused(i32(1) + good + older_entry("b", 1, {1}), "", {}, {"more than are left"});
  for (std::size_t size = 0; size < entries.size(); ++size) {
    const TempDir dir;
    const InputFile part(dir.write("imatrix", entries.substr(0, size)));
    INFO(size);
    CHECK_THROWS_AS(Imatrix(part), Error);
  }
  const std::string tail = older_tail("wiki");
  for (std::size_t size = 1; size < tail.size(); ++size)
    if (size != 4) check_refused(entries + tail.substr(0, size), "", {}, {size < 8 ? "the file ends inside" : "left"});
}

TEST_CASE("a shape that does not fit the tensor names both sides") {
  const std::string older = i32(1) + older_entry("a", 1, {1, 2, 3, 4, 5, 6});
  const std::string newer = gguf(entry("a", 3, {1, 2, 3, 4, 5, 6}, {1, 1}));
  for (const std::string& file : {older, newer}) {
    const auto check = [&](std::uint64_t k, std::uint64_t matrices, const std::vector<std::string>& parts) {
      check_refused(file, "tensor a", {}, parts, reading(0, k, matrices));
      check_refused(file, "tensor a", {}, parts,
                    [&](const Imatrix& imatrix) { imatrix.require_shape(imatrix.entries().front(), k, matrices); });
    };
    check(4, 1, {"6 values", "4 columns"});
    check(4, 2, {"6 values", "2 matrices of 4 columns"});
    check(1, 4, {"6 values", "4 matrices of 1 columns"});
    check(0, 6, {"6 values", "0 columns"});
    check(6, 0, {"6 values", "0 matrices"});
    check(0, 0, {"6 values"});
    check(std::uint64_t{1} << 63, 2, {"6 values"});
    check((std::uint64_t{1} << 63) + 3, 2, {"6 values"});  // 6, modulo 2^64
    CHECK(read(file, "a", 1, 3, 2) == Doubles{4, 5, 6});
  }
  check_refused(newer, "tensor a", {}, {"2 counts", "3 matrices of 2 columns"}, reading(0, 2, 3));
  check_refused(newer, "tensor a", {}, {"2 counts", "6 columns"}, reading(0, 6, 1));
}

TEST_CASE("an importance that is no weight is refused, with column and expert") {
  const struct {
    float value;
    const char* text;
  } bad[] = {{-0.5f, "is negative"},    {-infinity, "is negative"},
             {infinity, "is infinite"}, {not_a_number, "is not a number"},
             {-1e-45f, "is negative"},  {-not_a_number, "is not a number"}};
  for (const auto& [value, text] : bad) {
    const std::string older = i32(1) + older_entry("a", 3, {1, 2, value, 4});
    check_refused(older, "tensor a", older.size() - 8, {"column 2", text}, reading(0, 4, 1));
    check_refused(older, "tensor a", older.size() - 8, {"expert 1, column 0", text}, reading(1, 2, 2));
    CHECK(read(older, "a", 0, 2, 2) == Doubles{1.0 / 3, 2.0 / 3});

    const std::string newer = gguf(entry("a", 2, {1, 2, 4, value}, {3, 3}));
    check_refused(newer, "tensor a", newer.size() - 64 + 12, {"expert 1, column 1", text}, reading(1, 2, 2));
    CHECK(read(newer, "a", 0, 2, 2) == Doubles{1.0 / 3, 2.0 / 3});
    // Without activations the sum does not count.
    CHECK(read(gguf(entry("a", 2, {1, value}, {0})), "a", 0, 2, 1) == Doubles{0, 0});

    const std::string counts = gguf(entry("a", 1, {1, 2}, {1, value}));
    check_refused(counts, "tensor a", counts.size() - 32 + 4, {"expert 1, the count", text}, reading(1, 1, 2));
    CHECK(read(counts, "a", 0, 1, 2) == Doubles{1});
    check_refused(gguf(entry("a", 1, {1}, {value})), "tensor a", {}, {"the count of activations", text},
                  reading(0, 1, 1));
  }
}

TEST_CASE("the largest, the smallest and no importance") {
  constexpr float tiny = 1e-45f;
  constexpr float largest = std::numeric_limits<float>::max();
  CHECK(read(gguf(entry("a", 2, {largest, tiny}, {tiny})), "a", 0, 2, 1) == Doubles{double{largest} / double{tiny}, 1});
  const Doubles zeros = read(gguf(entry("a", 2, {-0.0f, 0.0f}, {3})), "a", 0, 2, 1);
  CHECK(zeros == Doubles{0, 0});
  CHECK_FALSE(std::signbit(zeros[0]));
  CHECK(read(gguf(entry("a", 1, {3}, {-0.0f})), "a", 0, 1, 1) == Doubles{0});
}

TEST_CASE("many small entries are found, also when names begin alike") {
  std::string file = i32(3000);
  for (int i = 0; i < 3000; ++i)
    file += older_entry("blk." + std::to_string(i * 7919 % 3000), 1, {static_cast<float>(i)});
  with(file, [](const Imatrix& imatrix) {
    REQUIRE(imatrix.entries().size() == 3000);
    for (int i = 0; i < 3000; ++i) {
      const ImatrixEntry* found = imatrix.find("blk." + std::to_string(i * 7919 % 3000));
      REQUIRE(found == &imatrix.entries()[static_cast<std::size_t>(i)]);
      if (i % 100 == 0) CHECK(imatrix.read(*found, 0, 1, 1) == Doubles{static_cast<double>(i)});
    }
    CHECK(imatrix.find("blk.") == nullptr);
    CHECK(imatrix.find("blk.3000") == nullptr);
  });
}
