// Proves that the core gives the bytes of tests/golden, which a program that shares no code with it has written.
#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

TEST_CASE("golden files: packing and unpacking") {
  const std::string folder = PN_SOURCE_DIR "/tests/golden/v1/";
  const std::vector<std::uint16_t> weights = read_little_endian<std::uint16_t>(folder + "p12-weights.bin");
  const std::string bytes = read_file(folder + "p12-blocks.bin");
  const std::size_t blocks = bytes.size() / 392;
  REQUIRE(blocks >= 256);
  REQUIRE(bytes.size() % 392 == 0);
  REQUIRE(weights.size() == 256 * blocks);

  std::vector<p12::Block392> want(blocks), got(blocks);
  std::memcpy(want.data(), bytes.data(), bytes.size());
  REQUIRE(p12::pack_row(weights.data(), weights.size(), got.data()) == Status::ok);
  for (std::size_t b = 0; b < blocks; ++b)
    if (std::memcmp(&got[b], &want[b], 392) != 0) FAIL("block " << b);
  CHECK(p12::validate_row(want.data(), weights.size()) == Status::ok);
  std::vector<std::uint16_t> back(weights.size());
  REQUIRE(p12::unpack_row(want.data(), weights.size(), back.data()) == Status::ok);
  CHECK(back == weights);
}

TEST_CASE("golden files: weights that do not fit") {
  const std::string folder = PN_SOURCE_DIR "/tests/golden/v1/";
  const std::vector<std::uint16_t> weights = read_little_endian<std::uint16_t>(folder + "p12-unpackable-weights.bin");
  REQUIRE(weights.size() >= 256 * 8);
  REQUIRE(weights.size() % 256 == 0);
  for (std::size_t b = 0; b < weights.size() / 256; ++b) {
    p12::Block392 block;
    CHECK(p12::pack_block(weights.data() + 256 * b, block) == Status::too_many_listed);
  }
}
