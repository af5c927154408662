// Proves that the GGUF reader takes what the format allows, refuses what it does not, with the place of the fault, and
// that a header that is written again without a change is the same bytes.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

#include "catch.hpp"
#include "io/error.hpp"
#include "io/gguf.hpp"
#include "temp_dir.hpp"

using pn::io::Error;
using pn::io::Gguf;
using pn::io::InputFile;
using pn::io::read_gguf;

namespace {

// GGUF files field by field.
class Bytes {
 public:
  Bytes& number(std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) text_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  Bytes& u32(std::uint64_t value) { return number(value, 4); }
  Bytes& u64(std::uint64_t value) { return number(value, 8); }
  Bytes& string(const std::string& text) {
    u64(text.size());
    text_ += text;
    return *this;
  }
  Bytes& key(const std::string& name, std::uint32_t type) { return string(name).u32(type); }
  Bytes& tensor(const std::string& name, const std::vector<std::uint64_t>& ne, std::uint32_t type,
                std::uint64_t offset) {
    string(name).u32(ne.size());
    for (const std::uint64_t n : ne) u64(n);
    return u32(type).u64(offset);
  }
  Bytes& header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    text_ += "GGUF";
    return u32(version).u64(tensors).u64(keys);
  }
  Bytes& pad(std::size_t alignment, std::size_t more = 0) {
    text_.resize((text_.size() + alignment - 1) / alignment * alignment + more);
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor): it stands where the string that it builds is wanted
  operator const std::string&() const { return text_; }
  std::size_t size() const { return text_.size(); }

 private:
  std::string text_;
};

Gguf parse(const std::string& bytes) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", bytes);
  const Gguf plain = read_gguf(InputFile(path, InputFile::Access::plain_read));
  Gguf mapped = read_gguf(InputFile(path));
  CHECK(plain.data_start == mapped.data_start);
  CHECK(plain.tensors.size() == mapped.tensors.size());
  return mapped;
}

// The error of a file that must be refused, the same for both ways of reading.
Error refusal(const std::string& bytes) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", bytes);
  std::string plain;
  try {
    read_gguf(InputFile(path, InputFile::Access::plain_read));
  } catch (const Error& error) {
    plain = error.what();
  }
  try {
    read_gguf(InputFile(path));
  } catch (const Error& error) {
    CHECK(plain == error.what());
    CHECK(error.fault() == pn::io::Fault::input);
    CHECK(error.file() == path);
    return error;
  }
  FAIL("the file was accepted");
  return {pn::io::Fault::usage, "", ""};
}

void check_refused(const std::string& bytes, const std::string& subject, const std::string& part_of_message) {
  const Error error = refusal(bytes);
  INFO(error.what());
  CHECK(error.subject().value_or("") == subject);
  CHECK(std::string(error.what()).find(part_of_message) != std::string::npos);
}

Bytes one_tensor(const std::vector<std::uint64_t>& ne, std::uint32_t type, std::uint64_t offset = 0,
                 std::size_t data = 0) {
  return Bytes().header(1, 0).tensor("t", ne, type, offset).pad(32, data);
}

Bytes one_key(std::uint32_t type, const std::function<void(Bytes&)>& value) {
  Bytes bytes;
  bytes.header(0, 1).key("k", type);
  value(bytes);
  return bytes;
}

constexpr std::uint32_t u32_type = 4;
constexpr std::uint32_t string_type = 8;
constexpr std::uint32_t array_type = 9;
constexpr std::uint32_t u64_type = 10;

}  // namespace

TEST_CASE("a header of every value type is written again as the same bytes") {
  for (const std::uint32_t version : {2u, 3u}) {
    Bytes bytes;
    bytes.header(2, 16, version);
    const std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (std::uint32_t type = 0; type < 13; ++type)
      if (sizes[type] != 0) bytes.key("k" + std::to_string(type), type).number(0x8182838485868788u, sizes[type]);
    bytes.key("string", string_type).string(std::string("\0\xff text", 7));
    bytes.key("empty", string_type).string("");
    bytes.key("numbers", array_type).u32(2).u64(3).number(0x112233445566u, 6);
    bytes.key("strings", array_type).u32(string_type).u64(2).string("a").string("");
    bytes.key("nested", array_type).u32(array_type).u64(2).u32(0).u64(1).number(7, 1).u32(string_type).u64(0);
    bytes.tensor("a", {4, 2}, 0, 0).tensor("b", {3}, 0, 32).pad(32, 44);
    const TempDir dir;
    const InputFile file(dir.write("model.gguf", bytes));
    const Gguf gguf = read_gguf(file);
    CHECK(gguf.keys.size() == 16);
    REQUIRE(gguf.tensors.size() == 2);
    CHECK(gguf.tensors[0].shape == std::vector<std::uint64_t>{2, 4});
    CHECK(gguf.tensors[1].offset == gguf.data_start + 32);
    CHECK_FALSE(gguf.padded);
    pn::io::GgufHeader header;
    header.version = gguf.version;
    header.alignment = gguf.alignment;
    header.kept = gguf.keys;
    header.tensors = gguf.tensors;
    for (pn::io::Tensor& tensor : header.tensors) tensor.offset -= gguf.data_start;
    const std::vector<std::uint8_t> again = header.serialize(file);
    const std::string& original = bytes;
    REQUIRE(again.size() == gguf.data_start);
    CHECK(std::memcmp(again.data(), original.data(), again.size()) == 0);
  }
}

TEST_CASE("files that are no GGUF of version 2 or 3 have messages of their own") {
  check_refused("", "", "too short");
  check_refused("GGU", "", "too short");
  check_refused("GGML1234567890123456789012345678", "", "not a GGUF file");
  check_refused(Bytes().u64(20).number('{', 1).pad(32), "", "not a GGUF file");
  check_refused(Bytes().u64(2000).number('{', 1).pad(32), "", "not a GGUF file");
  check_refused(Bytes().header(0, 0, 0), "", "version 0");
  check_refused(Bytes().header(0, 0, 1), "", "version 1 is not supported");
  check_refused(Bytes().header(0, 0, 4), "", "newer");
  check_refused(Bytes().header(0, 0, 0x03000000), "", "big-endian");
  check_refused(Bytes().header(0, 0, 0x02000000), "", "big-endian");
}

TEST_CASE("counts and lengths that the file cannot hold are refused before anything is allocated") {
  check_refused(Bytes().header(0, 0xFFFFFFFFFFFFu), "", "keys");
  check_refused(Bytes().header(0xFFFFFFFFFFFFFFFFu, 0), "", "tensors");
  check_refused(Bytes().header(0xFFFFFFFFFFFFu, 0), "", "tensors");
  check_refused(Bytes().header(0, 1).u64(0xFFFFFFFFFFFFu).pad(32, 32), "", "the name of a key");
  check_refused(Bytes().header(0, 1).u64(0xFFFFFFFFFFFFu).pad(32, 32), "", "(in key 1 of 1)");
  check_refused(one_key(string_type, [](Bytes& b) { b.u64(0xFFFFFFFFFFFFFFFFu); }), "key k", "a string");
  check_refused(one_key(string_type, [](Bytes& b) { b.u64(4).number(0, 3); }), "key k", "a string of 4");
  check_refused(one_key(array_type, [](Bytes& b) { b.u32(0).u64(9).u64(0); }), "key k", "an array of 9");
  check_refused(one_key(array_type, [](Bytes& b) { b.u32(u64_type).u64(0x2000000000000000u).u64(0); }), "key k",
                "array");
  check_refused(one_key(array_type, [](Bytes& b) { b.u32(string_type).u64(2).u64(0); }), "key k", "array");
  check_refused(Bytes().header(1, 0).u64(1u << 20).pad(32, 64), "", "the name of a tensor");
  check_refused(Bytes().header(1, 0).u64(1u << 20).pad(32, 64), "", "(in tensor 1 of 1)");
}

TEST_CASE("value types: unknown ones and deep nesting are refused") {
  check_refused(one_key(13, [](Bytes& b) { b.u64(0); }), "key k", "unknown value type 13");
  check_refused(one_key(0xFFFFFFFFu, [](Bytes& b) { b.u64(0); }), "key k", "unknown value type");
  check_refused(one_key(array_type, [](Bytes& b) { b.u32(13).u64(0); }), "key k", "unknown value type 13");
  const auto nested = [](int depth) {
    return one_key(array_type, [&](Bytes& b) {
      for (int i = 1; i < depth; ++i) b.u32(array_type).u64(1);
      b.u32(0).u64(1).number(5, 1);
    });
  };
  CHECK(parse(nested(16)).keys.size() == 1);
  check_refused(nested(17), "key k", "nested");
  check_refused(nested(3000), "key k", "nested");
}

TEST_CASE("keys and tensors may not appear twice") {
  check_refused(Bytes().header(0, 2).key("a", 0).number(1, 1).key("a", u32_type).u32(1), "key a", "twice");
  check_refused(Bytes().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).pad(32, 64), "tensor t", "twice");
}

TEST_CASE("general.alignment is a u32 power of two from 8 to 65536 and places the data") {
  const auto aligned = [](std::uint64_t alignment, std::uint32_t type = u32_type, std::size_t size = 4) {
    return Bytes().header(1, 1).key("general.alignment", type).number(alignment, size).tensor("t", {2}, 0, 0);
  };
  for (const std::size_t alignment : {8u, 16u, 32u, 1024u, 65536u}) {
    const Gguf gguf = parse(aligned(alignment).pad(alignment, 8));
    CHECK(gguf.alignment == alignment);
    CHECK(gguf.data_start % alignment == 0);
    CHECK(gguf.padded == (alignment == 8));
  }
  for (const std::uint64_t alignment : {0u, 1u, 3u, 4u, 24u, 131072u, 0x80000000u})
    check_refused(aligned(alignment).pad(65536, 8), "key general.alignment", "power of two");
  check_refused(aligned(32, u64_type, 8).pad(32, 8), "key general.alignment", "u32");
  check_refused(aligned(32, 5, 4).pad(32, 8), "key general.alignment", "u32");
  check_refused(one_tensor({2}, 0, 16, 64), "tensor t", "not a multiple of the alignment");
}

TEST_CASE("shapes: up to four dimensions, no product that wraps, whole blocks, inside the file") {
  for (const std::uint32_t n : {5u, 9u, 0xFFFFFFFFu})
    check_refused(Bytes().header(1, 0).string("t").u32(n).pad(32, 256), "tensor t", "dimensions");
  check_refused(one_tensor({1152, (1ull << 42) + 1}, 30, 0, 64), "tensor t", "beyond the end");
  check_refused(one_tensor({1152, (1ull << 57) + 1}, 30, 0, 4096), "tensor t", "2^64 elements");
  check_refused(one_tensor({1ull << 62, 2}, 30, 0, 4096), "tensor t", "2^64 bytes");
  check_refused(one_tensor({4, 1073741823, 1073741825, 1}, 0, 0, 4096), "tensor t", "beyond the end");
  check_refused(one_tensor({1ull << 63, 1ull << 63, 4}, 42, 0, 4096), "tensor t", "2^64 elements");
  check_refused(one_tensor({48}, 2, 0, 64), "tensor t", "whole blocks of 32");
  check_refused(one_tensor({40, 4}, 2, 0, 96), "tensor t", "whole blocks of 32");  // as a whole they are 5
  check_refused(one_tensor({96, 2}, 124, 0, 128), "tensor t", "whole blocks of 80");
  check_refused(one_tensor({100, 2}, 125, 0, 128), "tensor t", "whole blocks of 64");
  check_refused(one_tensor({8}, 0, 0, 31), "tensor t", "beyond the end");
  check_refused(one_tensor({8}, 0, 32, 63), "tensor t", "beyond the end");
  check_refused(one_tensor({8}, 0, 0xFFFFFFFFFFFFFFE0u, 64), "tensor t", "beyond the end");

  CHECK(parse(one_tensor({}, 0, 0, 4)).tensors[0].elements == 1);
  CHECK(parse(one_tensor({2, 2, 2, 2}, 0, 0, 64)).tensors[0].shape.size() == 4);
  for (const std::vector<std::uint64_t>& ne :
       {std::vector<std::uint64_t>{0}, {5, 0}, {0, 1ull << 63, 1ull << 63}, {1ull << 63, 1ull << 63, 0}}) {
    const Gguf gguf = parse(one_tensor(ne, 0));
    CHECK(gguf.tensors[0].elements == 0);
    CHECK(gguf.tensors[0].bytes == 0);
  }
}

TEST_CASE("tensors may lie in any order but not on each other") {
  const auto two = [](std::uint64_t first, std::uint64_t second, std::uint32_t type = 0) {
    return Bytes().header(2, 0).tensor("a", {16}, type, first).tensor("b", {8}, 0, second).pad(32, 128);
  };
  CHECK(parse(two(0, 64)).tensors[1].bytes == 32);
  CHECK(parse(two(32, 0)).data_end == parse(two(32, 0)).data_start + 96);
  check_refused(two(0, 32), "tensor a", "overlaps that of tensor b");
  check_refused(two(0, 0), "tensor a", "overlaps that of tensor b");
  check_refused(two(32, 64), "tensor a", "overlaps that of tensor b");
  check_refused(two(0, 0, 42), "tensor a", "overlaps that of tensor b");
  // One without elements lies nowhere.
  CHECK(parse(Bytes().header(2, 0).tensor("a", {8}, 0, 0).tensor("b", {0}, 0, 0).pad(32, 32)).tensors.size() == 2);
  check_refused(Bytes().header(2, 0).tensor("a", {8}, 0, 0).tensor("b", {0}, 0, 64).pad(32, 32), "tensor b",
                "beyond the data");
}

TEST_CASE("an unknown type reaches to the next tensor or to the end of the file") {
  const Bytes file = Bytes()
                         .header(3, 0)
                         .tensor("last", {5}, 0xFFFFFFFFu, 96)
                         .tensor("first", {7, 7}, 36, 0)
                         .tensor("middle", {8}, 0, 64)
                         .pad(32, 96 + 13);
  const Gguf gguf = parse(file);
  CHECK(gguf.tensors[0].bytes == 13);
  CHECK(gguf.tensors[0].type.name == "unknown(4294967295)");
  CHECK(gguf.tensors[1].bytes == 64);
  CHECK(gguf.tensors[1].type.name == "unknown(36)");
  CHECK(gguf.data_end == file.size());
  CHECK_FALSE(gguf.padded);
  check_refused(one_tensor({1}, 42), "tensor t", "beyond the end");
}

TEST_CASE("the end of the file: unpadded, padded, or followed by more; never inside the padding") {
  const auto end = [](std::size_t data) { return parse(one_tensor({9}, 0, 0, data)); };
  CHECK_FALSE(end(36).padded);
  CHECK(end(64).padded);
  CHECK(end(64).tail_start == end(64).data_start + 64);
  CHECK(end(71).tail_start == end(71).data_start + 64);
  for (const std::size_t data : {37u, 48u, 63u}) check_refused(one_tensor({9}, 0, 0, data), "", "inside the padding");
  CHECK(parse(one_tensor({8}, 0, 0, 32)).padded);
  CHECK(parse(Bytes().header(0, 0)).data_end == 24);
  CHECK(parse(Bytes().header(0, 0).pad(32)).data_end == 32);
  check_refused(Bytes().header(0, 0).number(0, 3), "", "inside the padding");
}

TEST_CASE("every prefix of a file is refused") {
  Bytes file;
  file.header(2, 3).key("general.alignment", u32_type).u32(8).key("name", string_type).string("x");
  file.key("list", array_type).u32(string_type).u64(2).string("ab").string("c");
  file.tensor("a", {4, 2}, 30, 0).tensor("b", {3}, 0, 16).pad(8, 28);
  const std::string& bytes = file;
  parse(bytes);
  for (std::size_t length = 0; length < bytes.size(); ++length) refusal(bytes.substr(0, length));
}

TEST_CASE("type 126 is BF16_P12 only when the file says so") {
  const auto file = [](bool keys, std::uint64_t version, std::uint32_t id, std::uint32_t id_type = u32_type) {
    Bytes bytes;
    bytes.header(1, keys ? 2 : 0);
    if (keys) bytes.key("p12.version", u32_type).u32(version).key("p12.type_id", id_type).number(id, 4);
    return bytes.tensor("t", {256, 2}, 126, 0).pad(32, 784).pad(32);
  };
  CHECK(parse(file(false, 1, 126)).tensors[0].type.name == "unknown(126)");
  CHECK(parse(file(true, 1, 200)).tensors[0].type.name == "unknown(126)");
  const Gguf gguf = parse(file(true, 1, 126));
  CHECK(gguf.tensors[0].type.name == "BF16_P12");
  CHECK(gguf.tensors[0].bytes == 784);
  check_refused(file(true, 2, 126), "key p12.version", "version 2");
  check_refused(file(true, 1, 126, 5), "key p12.type_id", "u32");
  for (const std::uint32_t taken : {0u, 8u, 30u, 36u, 41u, 124u, 125u})
    check_refused(file(true, 1, taken), "key p12.type_id", "belongs to another type");
  check_refused(Bytes().header(0, 1).key("p12.version", u32_type).u32(1), "", "p12.type_id");
  check_refused(Bytes().header(0, 1).key("pn.version", u32_type).u32(1), "key pn.version", "version 1");
  check_refused(Bytes().header(0, 1).key("pn.search", string_type).string("best"), "key pn.search", "weighted");
}

TEST_CASE("keys, tensors and arrays may fill the file to its last byte") {
  CHECK(parse(Bytes().header(0, 1).string("").u32(0).number(7, 1)).keys.size() == 1);
  CHECK(parse(Bytes().header(0, 2).string("").u32(0).number(7, 1).string("a").u32(0).number(7, 1)).keys.size() == 2);
  CHECK(parse(one_key(array_type, [](Bytes& b) { b.u32(string_type).u64(2).string("").string(""); })).keys.size() == 1);
  CHECK(parse(one_key(array_type, [](Bytes& b) {
          b.u32(array_type).u64(2).u32(0).u64(0).u32(0).u64(0);
        })).keys.size() == 1);
  CHECK(parse(one_key(array_type, [](Bytes& b) { b.u32(u64_type).u64(2).u64(1).u64(2); })).keys.size() == 1);
  CHECK(parse(one_key(string_type, [](Bytes& b) { b.string("end"); })).keys.size() == 1);
  CHECK(parse(Bytes().header(1, 0).tensor("", {}, 24, 0).pad(32, 1)).tensors[0].bytes == 1);
}

TEST_CASE("a header that ends on a multiple of the alignment is not padded further") {
  const TempDir dir;
  const InputFile source(dir.write("empty", ""));
  pn::io::GgufHeader header;
  for (const std::uint64_t alignment : {8u, 16u, 32u}) {
    header.alignment = alignment;
    CHECK(header.serialize(source).size() == (alignment == 8 ? 24 : 32));
  }
}

TEST_CASE("tensors that share one byte overlap, neighbours do not") {
  const auto two = [](std::uint64_t first) {
    return Bytes().header(2, 0).tensor("a", {first}, 24, 0).tensor("b", {8}, 24, 32).pad(32, 64);
  };
  CHECK(parse(two(32)).tensors[0].bytes == 32);
  check_refused(two(33), "tensor a", "overlaps that of tensor b");
}

TEST_CASE("a tensor may be named like a key") {
  CHECK(parse(Bytes().header(1, 1).key("same", 0).number(1, 1).tensor("same", {8}, 24, 0).pad(32, 32)).tensors.size() ==
        1);
}

TEST_CASE("keys of ours begin with p12. or pn.") {
  for (const char* name : {"p12.version", "p12.", "pn.version", "pn.hadamard.exclude"}) CHECK(pn::io::is_own_key(name));
  for (const char* name : {"", "p12", "pn", "p12version", "pnx.version", "x.pn.version", "x.p12.version", "PN.version"})
    CHECK_FALSE(pn::io::is_own_key(name));
}

TEST_CASE("ggml's types: names, blocks and sizes; what ggml does not know is unknown") {
  struct Known {
    std::uint32_t id;
    const char* name;
    std::uint32_t block;
    std::uint32_t bytes;
  };
  // The sizes from the fields of ggml's blocks: halves are 2 bytes, codes as many bits as the name says.
  const Known all[] = {
      {0, "F32", 1, 4},
      {1, "F16", 1, 2},
      {2, "Q4_0", 32, 2 + 16},
      {3, "Q4_1", 32, 2 + 2 + 16},
      {6, "Q5_0", 32, 2 + 4 + 16},
      {7, "Q5_1", 32, 2 + 2 + 4 + 16},
      {8, "Q8_0", 32, 2 + 32},
      {9, "Q8_1", 32, 2 + 2 + 32},
      {10, "Q2_K", 256, 16 + 64 + 2 + 2},
      {11, "Q3_K", 256, 32 + 64 + 12 + 2},
      {12, "Q4_K", 256, 2 + 2 + 12 + 128},
      {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
      {14, "Q6_K", 256, 128 + 64 + 16 + 2},
      {15, "Q8_K", 256, 4 + 256 + 32},
      {16, "IQ2_XXS", 256, 2 + 64},
      {17, "IQ2_XS", 256, 2 + 64 + 8},
      {18, "IQ3_XXS", 256, 2 + 96},
      {19, "IQ1_S", 256, 2 + 32 + 16},
      {20, "IQ4_NL", 32, 2 + 16},
      {21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4},
      {22, "IQ2_S", 256, 2 + 64 + 8 + 8},
      {23, "IQ4_XS", 256, 2 + 2 + 4 + 128},
      {24, "I8", 1, 1},
      {25, "I16", 1, 2},
      {26, "I32", 1, 4},
      {27, "I64", 1, 8},
      {28, "F64", 1, 8},
      {29, "IQ1_M", 256, 32 + 16 + 8},
      {30, "BF16", 1, 2},
      {34, "TQ1_0", 256, 48 + 4 + 2},
      {35, "TQ2_0", 256, 64 + 2},
      {39, "MXFP4", 32, 1 + 16},
      {40, "NVFP4", 64, 4 + 32},
      {41, "Q1_0", 128, 2 + 16},
      {124, "pn3t", 80, 34},
      {125, "pn4t", 64, 34},
  };
  for (std::uint32_t id = 0; id < 300; ++id) {
    const auto known = std::find_if(std::begin(all), std::end(all), [&](const Known& k) { return k.id == id; });
    const pn::io::TensorType type = pn::io::types::from_ggml_id(id);
    INFO(id);
    CHECK(type.id == id);
    CHECK(pn::io::types::is_reserved_id(id) == (id <= 41 || id == 124 || id == 125));
    if (known == std::end(all)) {
      CHECK_FALSE(type.known());
      CHECK(type.name == "unknown(" + std::to_string(id) + ")");
    } else {
      CHECK(type.name == known->name);
      CHECK(type.block == known->block);
      CHECK(type.block_bytes == known->bytes);
    }
  }
}
