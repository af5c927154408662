// Proves that the worked block of include/p12/FORMAT.md is what it says: the page is read, not copied.
#include <cstdlib>

#include "catch.hpp"
#include "testing.hpp"

using namespace testing;

TEST_CASE("the worked block of FORMAT.md") {
  const std::string page = read_file(PN_SOURCE_DIR "/include/p12/FORMAT.md");
  REQUIRE_FALSE(page.empty());
  const std::vector<std::string> hex = fenced_words(page, "## Worked block", "hex");
  const std::vector<std::string> values = fenced_words(page, "## Worked block", "values");
  REQUIRE(hex.size() == sizeof(p12::Block392));
  REQUIRE(values.size() == p12::block_size);

  const auto number = [](const std::string& word, std::size_t digits) {
    REQUIRE(word.size() == digits);
    char* end = nullptr;
    const unsigned long value = std::strtoul(word.c_str(), &end, 16);
    REQUIRE(*end == '\0');
    return value;
  };
  Bytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(number(hex[i], 2));
  Weights stated;
  for (std::size_t i = 0; i < stated.size(); ++i) stated[i] = static_cast<std::uint16_t>(number(values[i], 4));

  const p12::Block392 block = block_of(bytes);
  CHECK(p12::validate_block(block) == pn::Status::ok);
  const Weights decoded = unpacked(block);
  for (std::size_t i = 0; i < stated.size(); ++i) {
    INFO("place " << i << ": " << values[i]);
    CHECK(decoded[i] == stated[i]);
    CHECK(p12::unpack_element(block, i) == stated[i]);
  }
  p12::Block392 again;
  REQUIRE(p12::pack_block(stated.data(), again) == pn::Status::ok);
  CHECK(bytes_of(again) == bytes);
}
