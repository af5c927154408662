// Proves where every code of a block lies and what it stands for, against a decoder written here from the format's
// text. A decoder that shifts by ELEMENT index instead of pair index, the mistake made elsewhere, fails here: every
// test that compares with mini_decode or mini_code would see it, and the test of that name shows that the data used
// here tells the two apart.
#include <algorithm>
#include <pn/decode.hpp>

#include "catch.hpp"
#include "environment.hpp"
#include "testing.hpp"

using namespace testing;

namespace {

// The two types, in the numbers of the text.
struct Text {
  int bits, per_word, weights, zero;
};
template <class T>
Text text();
template <>
Text text<pn::pn3t>() {
  return {3, 10, 80, 4};
}
template <>
Text text<pn::pn4t>() {
  return {4, 8, 64, 8};
}

// Code of element e: pair t / 2 of the low 16-bit half of its word when t is even, of the high half when t is odd.
int mini_code(const Text& type, const std::uint8_t* block, int e) {
  const int t = e % type.per_word;
  const std::uint8_t* half = block + 2 + 4 * (e / type.per_word) + (t % 2 == 1 ? 2 : 0);
  int value = half[0] + 256 * half[1];
  for (int skipped = 0; skipped < t / 2; ++skipped) value /= 2 * type.zero;
  return value % (2 * type.zero);
}

// Weight of code n under an fp16 scale that is not a NaN: the product has at most 15 bits, exact in double.
float mini_weight(const Text& type, unsigned scale, int n) {
  return static_cast<float>(half_value(scale) * static_cast<double>(n - type.zero));
}

unsigned mini_scale(const std::uint8_t* block) { return block[0] + 256u * block[1]; }

float mini_decode(const Text& type, const std::uint8_t* block, int e) {
  return mini_weight(type, mini_scale(block), mini_code(type, block, e));
}

void mini_set_code(const Text& type, std::uint8_t* block, int e, int n) {
  const int t = e % type.per_word;
  const int first = 8 * (2 + 4 * (e / type.per_word)) + (t % 2) * 16 + (t / 2) * type.bits;
  for (int b = 0; b < type.bits; ++b) {
    const int at = first + b;
    const auto mask = static_cast<std::uint8_t>(1 << (at % 8));
    block[at / 8] = static_cast<std::uint8_t>((block[at / 8] & ~mask) | (((n >> b) & 1) != 0 ? mask : 0));
  }
}

// Random bytes under a finite scale.
pn::Block34 random_block(Random& random) {
  pn::Block34 block;
  unsigned scale = random.next32() & 0xFFFFu;
  if ((scale & 0x7C00u) == 0x7C00u) scale ^= 0x4000u;
  block.d[0] = static_cast<std::uint8_t>(scale & 0xFFu);
  block.d[1] = static_cast<std::uint8_t>(scale >> 8);
  for (auto& byte : block.qs) byte = random.byte();
  return block;
}

const std::uint8_t* bytes_of(const pn::Block34& block) { return reinterpret_cast<const std::uint8_t*>(&block); }

}  // namespace

TEST_CASE("the two types are what the format says") {
  CHECK(pn::pn3t::bits == 3);
  CHECK(pn::pn3t::zero_point == 4);
  CHECK(pn::pn3t::max_code == 7);
  CHECK(pn::pn3t::codes_per_word == 10);
  CHECK(pn::pn3t::block_size == 80);
  CHECK(pn::pn3t::reserved_mask == 0x80008000u);
  CHECK(pn::pn3t::ggml_type == 124);
  CHECK(std::string(pn::pn3t::name) == "pn3t");
  CHECK(pn::pn4t::bits == 4);
  CHECK(pn::pn4t::zero_point == 8);
  CHECK(pn::pn4t::max_code == 15);
  CHECK(pn::pn4t::codes_per_word == 8);
  CHECK(pn::pn4t::block_size == 64);
  CHECK(pn::pn4t::reserved_mask == 0u);
  CHECK(pn::pn4t::ggml_type == 125);
  CHECK(std::string(pn::pn4t::name) == "pn4t");
  CHECK(pn::block_count<pn::pn3t>(5120) == 64);
  CHECK(pn::row_bytes<pn::pn3t>(5120) == 2176);
  CHECK(pn::block_count<pn::pn4t>(5120) == 80);
  CHECK(pn::row_bytes<pn::pn4t>(5120) == 2720);
  CHECK(pn::row_bytes<pn::pn4t>(0) == 0);
}

TEMPLATE_TEST_CASE("every code at every position", "", pn::pn3t, pn::pn4t) {
  const Text type = text<TestType>();
  Random random(2);
  for (const int fill : {0, type.zero, 2 * type.zero - 1, -1}) {  // -1: random codes around it
    for (int e = 0; e < type.weights; ++e)
      for (int n = 0; n < 2 * type.zero; ++n) {
        pn::Block34 want = {};
        std::uint8_t codes[TestType::block_size];
        auto* bytes = reinterpret_cast<std::uint8_t*>(&want);
        bytes[0] = 0x55;
        bytes[1] = 0xB5;  // d = -0x1.554p-2
        for (int i = 0; i < type.weights; ++i) {
          const int code = i == e ? n : fill >= 0 ? fill : random.between(0, 2 * type.zero - 1);
          codes[i] = static_cast<std::uint8_t>(code);
          mini_set_code(type, bytes, i, code);
        }
        pn::Block34 built;
        std::memset(&built, 0xFF, sizeof built);
        pn::store_block<TestType>(0xB555, codes, built);
        float decoded[TestType::block_size];
        pn::decode_block<TestType>(want, decoded);

        bool good = std::memcmp(&built, &want, sizeof built) == 0;
        for (int i = 0; i < type.weights; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const std::uint32_t weight = bits_of(mini_weight(type, 0xB555, codes[i]));
          good = good && mini_code(type, bytes, i) == codes[i];
          good = good && pn::load_code<TestType>(want, at) == codes[i];
          good = good && bits_of(decoded[i]) == weight;
          good = good && bits_of(pn::decode_element<TestType>(want, at)) == weight;
        }
        if (!good) FAIL("code " << n << " at " << e << " among codes " << fill);
      }
  }
}

TEMPLATE_TEST_CASE("a shift by element index instead of pair index is seen", "", pn::pn3t, pn::pn4t) {
  const Text type = text<TestType>();
  Random random(3);
  int right = 0, wrong_low = 0, wrong_halves = 0;
  for (int i = 0; i < 500; ++i) {
    const pn::Block34 block = random_block(random);
    float decoded[TestType::block_size];
    pn::decode_block<TestType>(block, decoded);
    for (int e = 0; e < type.weights; ++e) {
      const std::uint32_t word = pn::load_word(block, static_cast<std::size_t>(e / type.per_word));
      const int t = e % type.per_word;
      // The two wrong decoders: codes laid out one after the other, and the same within halves that do not exist.
      const int packed_in_order = static_cast<int>(word >> (type.bits * t)) & (2 * type.zero - 1);
      const int by_element =
          static_cast<int>((std::uint64_t{word} << 32 | word) >> ((type.bits * t + 16 * (t & 1)) % 32)) &
          (2 * type.zero - 1);
      const std::uint32_t got = bits_of(decoded[e]);
      right += got == bits_of(mini_decode(type, bytes_of(block), e));
      wrong_low += got == bits_of(mini_weight(type, mini_scale(bytes_of(block)), packed_in_order));
      wrong_halves += got == bits_of(mini_weight(type, mini_scale(bytes_of(block)), by_element));
    }
  }
  const int all = 500 * type.weights;
  CHECK(right == all);
  CHECK(wrong_low < all / 3);  // the data can tell: the wrong decoders get most weights wrong
  CHECK(wrong_halves < all / 3);
}

TEMPLATE_TEST_CASE("every fp16 scale times every code is the exact product", "", pn::pn3t, pn::pn4t) {
  const Text type = text<TestType>();
  std::uint8_t codes[TestType::block_size];
  for (int e = 0; e < type.weights; ++e) codes[e] = static_cast<std::uint8_t>(e % (2 * type.zero));
  for (unsigned scale = 0; scale < 0x10000; ++scale) {
    pn::Block34 block;
    pn::store_block<TestType>(static_cast<std::uint16_t>(scale), codes, block);
    float decoded[TestType::block_size];
    pn::decode_block<TestType>(block, decoded);
    for (int e = 0; e < type.weights; ++e) {
      const int n = codes[e];
      const float single = pn::decode_code<TestType>(pn::half_to_float(static_cast<std::uint16_t>(scale)), n);
      const bool nan = half_is_nan(scale) || ((scale & 0x7FFFu) == 0x7C00u && n == type.zero);
      if (nan) {
        if (!std::isnan(decoded[e]) || !std::isnan(single)) FAIL("scale " << std::hex << scale << " code " << n);
        continue;
      }
      const std::uint32_t want = bits_of(mini_weight(type, scale, n));
      if (bits_of(decoded[e]) != want || bits_of(single) != want) FAIL("scale " << std::hex << scale << " code " << n);
    }
  }
}

TEMPLATE_TEST_CASE("signs of zero follow the product rule", "", pn::pn3t, pn::pn4t) {
  const Text type = text<TestType>();
  const auto sign_at = [&](std::uint16_t scale, int n) {
    std::uint8_t codes[TestType::block_size];
    for (auto& code : codes) code = static_cast<std::uint8_t>(n);
    pn::Block34 block;
    pn::store_block<TestType>(scale, codes, block);
    float decoded[TestType::block_size];
    pn::decode_block<TestType>(block, decoded);
    for (const float value : decoded) REQUIRE(bits_of(value) == bits_of(decoded[0]));
    REQUIRE(bits_of(pn::decode_element<TestType>(block, 1)) == bits_of(decoded[0]));
    return bits_of(decoded[0]);
  };
  CHECK(sign_at(0xBC00, type.zero) == 0x80000000u);  // -1 * +0
  CHECK(sign_at(0x3C00, type.zero) == 0x00000000u);
  CHECK(sign_at(0x8001, type.zero) == 0x80000000u);
  CHECK(sign_at(0x0000, 0) == 0x80000000u);  // +0.0 * -z
  CHECK(sign_at(0x0000, type.zero) == 0x00000000u);
  CHECK(sign_at(0x0000, 2 * type.zero - 1) == 0x00000000u);
  CHECK(sign_at(0x8000, 0) == 0x00000000u);  // -0.0 * -z
  CHECK(sign_at(0x8000, type.zero) == 0x80000000u);
  CHECK(sign_at(0x8000, 2 * type.zero - 1) == 0x80000000u);
}

TEMPLATE_TEST_CASE("block, row and element agree, at any address", "", pn::pn3t, pn::pn4t) {
  const Text type = text<TestType>();
  Random random(4);
  constexpr std::size_t blocks = 7;
  constexpr std::size_t k = blocks * TestType::block_size;
  for (std::size_t offset = 0; offset < 4; ++offset) {
    std::vector<std::uint8_t> storage(offset + 34 * blocks);
    for (std::size_t b = 0; b < blocks; ++b) {
      const pn::Block34 block = random_block(random);
      std::memcpy(storage.data() + offset + 34 * b, &block, 34);
    }
    const auto* row = reinterpret_cast<const pn::Block34*>(storage.data() + offset);
    std::vector<float> out(k + 1, 7.0f);
    REQUIRE(pn::decode_row<TestType>(row, k, out.data()) == pn::Status::ok);
    CHECK(out[k] == 7.0f);
    for (std::size_t e = 0; e < k; ++e) {
      const auto in_block = static_cast<int>(e % TestType::block_size);
      const std::uint8_t* bytes = storage.data() + offset + 34 * (e / TestType::block_size);
      const std::uint32_t want = bits_of(mini_decode(type, bytes, in_block));
      if (bits_of(out[e]) != want) FAIL("decode_row at " << e);
      if (bits_of(pn::decode_element<TestType>(row, e)) != want) FAIL("decode_element at " << e);
    }
  }
}

TEMPLATE_TEST_CASE("decode_row refuses a length that is not whole blocks and writes nothing", "", pn::pn3t, pn::pn4t) {
  const pn::Block34 row[2] = {};
  float out[200];
  for (float& value : out) value = 7.0f;
  const std::size_t n = TestType::block_size;
  for (const std::size_t k : {std::size_t{1}, n - 1, n + 1, 2 * n - 1, std::size_t{72}}) {
    CHECK(pn::decode_row<TestType>(row, k, out) == pn::Status::bad_length);
  }
  CHECK(pn::decode_row<TestType>(row, 0, out) == pn::Status::ok);
  CHECK(pn::decode_row<TestType>(nullptr, 0, nullptr) == pn::Status::ok);
  for (const float value : out) REQUIRE(value == 7.0f);
}

TEST_CASE("decode ignores reserved bits") {
  Random random(5);
  for (int i = 0; i < 50; ++i) {
    const pn::Block34 clean = random_block(random);
    float want[80];
    pn::decode_block<pn::pn3t>(clean, want);
    for (std::size_t half = 0; half < 16; ++half) {
      pn::Block34 changed = clean;
      changed.qs[2 * half + 1] ^= 0x80u;
      float got[80];
      pn::decode_block<pn::pn3t>(changed, got);
      for (std::size_t e = 0; e < 80; ++e) {
        REQUIRE(bits_of(got[e]) == bits_of(want[e]));
        REQUIRE(pn::load_code<pn::pn3t>(changed, e) == pn::load_code<pn::pn3t>(clean, e));
      }
    }
  }
}

TEMPLATE_TEST_CASE("decoding: no rounding or flush mode changes a bit", "", pn::pn3t, pn::pn4t) {
  Random random(6);
  constexpr std::size_t blocks = 200;
  constexpr std::size_t k = blocks * TestType::block_size;
  std::vector<pn::Block34> row;
  for (std::size_t b = 0; b < blocks; ++b) {
    row.push_back(random_block(random));
    if (b % 2 == 0) row[b].d[1] &= 0x83u;  // a subnormal scale
  }
  std::vector<float> want(k), got(k);
  REQUIRE(pn::decode_row<TestType>(row.data(), k, want.data()) == pn::Status::ok);
  for (const environment::Setting& setting : environment::settings()) {
    std::fill(got.begin(), got.end(), 7.0f);
    pn::Status status = pn::Status::bad_length;
    const bool kept =
        environment::run_under(setting, [&] { status = pn::decode_row<TestType>(row.data(), k, got.data()); });
    INFO(setting.name);
    CHECK(status == pn::Status::ok);
    CHECK(kept);  // exact products raise nothing
    CHECK(std::memcmp(got.data(), want.data(), k * sizeof(float)) == 0);
  }
}

// Usable in constant expressions.
namespace {

constexpr pn::Block34 constant_block = [] {
  std::uint8_t codes[64] = {};
  for (std::size_t e = 0; e < 64; ++e) codes[e] = static_cast<std::uint8_t>(e % 16);
  pn::Block34 block = {};
  pn::store_block<pn::pn4t>(0xB800, codes, block);  // d = -0.5
  return block;
}();
static_assert(pn::load_scale(constant_block) == 0xB800);
static_assert(pn::load_word(constant_block, 0) == 0x75316420);
static_assert(pn::load_word(constant_block, 7) == 0xFDB9ECA8);
static_assert(pn::load_code<pn::pn4t>(constant_block, 13) == 13);
static_assert(pn::code_shift<pn::pn3t>(9) == 28 && pn::code_shift<pn::pn3t>(8) == 12);
static_assert(pn::code_shift<pn::pn4t>(7) == 28 && pn::code_shift<pn::pn4t>(6) == 12);
static_assert(pn::decode_code<pn::pn3t>(0.25f, 0) == -1.0f && pn::decode_code<pn::pn3t>(0.25f, 7) == 0.75f);
#if defined(PN_HAS_BIT_CAST)
static_assert(pn::decode_element<pn::pn4t>(constant_block, 0) == 4.0f);
static_assert(pn::decode_element<pn::pn4t>(&constant_block, 63) == -3.5f);
constexpr float constant_sum = [] {
  float out[64] = {};
  float sum = 0;
  if (pn::decode_row<pn::pn4t>(&constant_block, 64, out) != pn::Status::ok) return sum;
  for (const float value : out) sum += value;
  return sum;
}();
static_assert(constant_sum == 16.0f);
#endif

}  // namespace
