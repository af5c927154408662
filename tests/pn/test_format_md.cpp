// Proves that the worked block of include/pn/FORMAT.md is what it says: the page is read, not copied.
#include <cstdlib>
#include <pn/decode.hpp>
#include <pn/quantize.hpp>
#include <pn/validate.hpp>

#include "catch.hpp"
#include "testing.hpp"

using namespace testing;

TEST_CASE("the worked block of FORMAT.md") {
  const std::string page = read_file(PN_SOURCE_DIR "/include/pn/FORMAT.md");
  REQUIRE_FALSE(page.empty());
  const std::vector<std::string> hex = fenced_words(page, "## Worked block", "hex");
  const std::vector<std::string> values = fenced_words(page, "## Worked block", "values");
  REQUIRE(hex.size() == sizeof(pn::Block34));
  REQUIRE(values.size() == pn::pn4t::block_size);

  pn::Block34 block;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    REQUIRE(hex[i].size() == 2);
    char* end = nullptr;
    const unsigned long byte = std::strtoul(hex[i].c_str(), &end, 16);
    REQUIRE(*end == '\0');
    reinterpret_cast<std::uint8_t*>(&block)[i] = static_cast<std::uint8_t>(byte);
  }
  CHECK(pn::validate_block<pn::pn4t>(block) == pn::Status::ok);

  float decoded[pn::pn4t::block_size];
  pn::decode_block<pn::pn4t>(block, decoded);
  float stated[pn::pn4t::block_size];
  std::uint8_t codes[pn::pn4t::block_size];
  for (std::size_t e = 0; e < values.size(); ++e) {
    char* end = nullptr;
    stated[e] = std::strtof(values[e].c_str(), &end);
    INFO("element " << e << ": " << values[e]);
    REQUIRE(*end == '\0');
    CHECK(bits_of(decoded[e]) == bits_of(stated[e]));
    codes[e] = static_cast<std::uint8_t>(pn::load_code<pn::pn4t>(block, e));
  }

  pn::Block34 again;
  pn::store_block<pn::pn4t>(pn::load_scale(block), codes, again);
  CHECK(std::memcmp(&again, &block, sizeof block) == 0);
  REQUIRE(pn::quantize_block<pn::pn4t>(stated, again) == pn::Status::ok);
  CHECK(std::memcmp(&again, &block, sizeof block) == 0);
}

TEST_CASE("fenced blocks are found by section and name only") {
  const std::string page =
      "# T\n```hex\n01\n```\n## Worked block\nhex 02\n```hex\n03 04\n05\n```\n```values\n1.0\n```\n```\n06\n```\n"
      "## Next\n```hex\n07\n```\n";
  CHECK(fenced_words(page, "## Worked block", "hex") == std::vector<std::string>{"03", "04", "05"});
  CHECK(fenced_words(page, "## Worked block", "values") == std::vector<std::string>{"1.0"});
  CHECK(fenced_words(page, "## Next", "hex") == std::vector<std::string>{"07"});
  CHECK(fenced_words(page, "## Next", "values").empty());
  CHECK(fenced_words(page, "## Missing", "hex").empty());
  CHECK(fenced_words("", "## Worked block", "hex").empty());
}
