// Proves that the core gives the bytes of tests/golden, which a program that shares no code with it has written.
#include <pn/decode.hpp>
#include <pn/quantize.hpp>
#include <pn/validate.hpp>

#include "catch.hpp"
#include "testing.hpp"

using namespace testing;
using pn::Status;

namespace {

const std::string folder = PN_SOURCE_DIR "/tests/golden/v1/";

std::vector<float> floats(const std::string& name) {
  std::vector<float> out;
  for (const std::uint32_t bits : read_little_endian<std::uint32_t>(folder + name)) out.push_back(float_of(bits));
  return out;
}

std::vector<pn::Block34> blocks(const std::string& name) {
  const std::string bytes = read_file(folder + name);
  REQUIRE(bytes.size() % sizeof(pn::Block34) == 0);
  std::vector<pn::Block34> out(bytes.size() / sizeof(pn::Block34));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

bool same(const pn::Block34& a, const pn::Block34& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T>
void check_decoded(const std::vector<pn::Block34>& row, const std::string& name) {
  const std::vector<std::uint32_t> want = read_little_endian<std::uint32_t>(folder + name);
  REQUIRE(want.size() == row.size() * T::block_size);
  std::vector<float> got(want.size());
  REQUIRE(pn::decode_row<T>(row.data(), got.size(), got.data()) == Status::ok);
  for (std::size_t i = 0; i < want.size(); ++i)
    if (bits_of(got[i]) != want[i]) FAIL(name << ": element " << i << " of " << std::hex << bits_of(got[i]));
}

}  // namespace

TEMPLATE_TEST_CASE("golden files: quantizing", "", pn::pn3t, pn::pn4t) {
  const std::string type = TestType::name;
  const std::vector<float> weights = floats(type + "-weights.bin");
  const std::vector<pn::Block34> want = blocks(type + "-blocks.bin");
  REQUIRE(want.size() >= 200);
  REQUIRE(weights.size() == want.size() * TestType::block_size);
  std::vector<pn::Block34> got(want.size());
  REQUIRE(pn::quantize_row<TestType>(weights.data(), weights.size(), got.data()) == Status::ok);
  for (std::size_t b = 0; b < want.size(); ++b)
    if (!same(got[b], want[b])) FAIL("block " << b);
  CHECK(pn::validate_row<TestType>(want.data(), weights.size()) == Status::ok);
  check_decoded<TestType>(want, type + "-decoded.bin");
}

TEMPLATE_TEST_CASE("golden files: the weighted search", "", pn::pn3t, pn::pn4t) {
  const std::string type = TestType::name;
  const std::vector<float> weights = floats(type + "-weighted-weights.bin");
  std::vector<double> importance;
  for (const std::uint64_t bits : read_little_endian<std::uint64_t>(folder + type + "-weighted-importance.bin"))
    importance.push_back(double_of(bits));
  const std::vector<pn::Block34> want = blocks(type + "-weighted-blocks.bin");
  REQUIRE(want.size() >= 50);
  REQUIRE(weights.size() == want.size() * TestType::block_size);
  REQUIRE(importance.size() == weights.size());
  std::vector<pn::Block34> got(want.size());
  REQUIRE(pn::quantize_row<TestType>(weights.data(), importance.data(), weights.size(), got.data()) == Status::ok);
  for (std::size_t b = 0; b < want.size(); ++b)
    if (!same(got[b], want[b])) FAIL("block " << b);
}

TEMPLATE_TEST_CASE("golden files: decoding blocks that no quantizer writes", "", pn::pn3t, pn::pn4t) {
  const std::string type = TestType::name;
  const std::vector<pn::Block34> row = blocks(type + "-raw-blocks.bin");
  REQUIRE(row.size() >= 50);
  check_decoded<TestType>(row, type + "-raw-decoded.bin");
}
