// include/pncuda/decode_p12.cuh by itself, on the host: against p12::unpack_block.
#include <pncuda/decode_p12.cuh>

#include "p12_testing.hpp"

using namespace testing;

namespace {

// A block at a multiple of 8 that ends with its memory.
struct Lies {
  Input memory{392, 8};
  explicit Lies(const p12::Block392& block) {
    std::memcpy(memory.data(), &block, 392);
    memory.freeze();
  }
  const uint8_t* data() const { return memory.data(); }
};

// Every weight by every way there is: whole words, words by hand, patched or not.
void check_block(const p12::Block392& block, const uint8_t* at) {
  uint16_t want[256];
  p12::unpack_block(block, want);
  const pncuda::P12Head head = pncuda::load_p12_head(at);
  const std::uint32_t base = pncuda::p12_base_of_pairs(head.low);
  const bool plain = pncuda::p12_all_plain(head.low);
  REQUIRE(head.base() == block.base);
  REQUIRE(head.listed() == std::min<std::uint32_t>(block.listed, 3));
  for (int i = 0; i < 3; ++i) {
    REQUIRE(head.place(i) == block.position[i]);
    REQUIRE(head.exponent(i) == block.exponent[i]);
  }
  REQUIRE(plain == (block.listed == 0 && block.base <= 240));
  for (int word = 0; word < pncuda::p12_words; ++word) {
    const pncuda::P12Word loaded = pncuda::load_p12_word(at, word);
    REQUIRE(loaded.codes == pn::detail::load_le32(block.codes + 4 * word));
    std::uint32_t whole[4], patched[4], fast[4];
    pncuda::unpack_p12_word(at, word, whole);
    pncuda::unpack_p12_word(loaded, base, patched);
    std::copy(patched, patched + 4, fast);
    pncuda::patch_p12_word(head, loaded, word, patched);  // harmless where it is not needed
    for (int t = 0; t < 8; ++t) {
      const std::uint32_t weight = want[8 * word + t];
      const auto of = [&](const std::uint32_t* pairs) { return pairs[t / 2] >> (16 * (t % 2)) & 0xFFFFu; };
      if (of(whole) != weight || of(patched) != weight || (plain && of(fast) != weight)) {
        CAPTURE(word, t, int(block.base), int(block.listed), of(whole), of(patched), of(fast), weight);
        REQUIRE(of(whole) == weight);
        REQUIRE(of(patched) == weight);
        REQUIRE(of(fast) == weight);
      }
      const std::uint32_t f32 =
          t % 2 == 0 ? pncuda::bf16_low_as_f32(whole[t / 2]) : pncuda::bf16_high_as_f32(whole[t / 2]);
      if (f32 != weight << 16) REQUIRE(f32 == weight << 16);
    }
  }
}
void check_block(const p12::Block392& block) {
  const Lies lies(block);
  check_block(block, lies.data());
}

TEST_CASE("decode_p12: every base and code, signs and mantissas", "[decode_p12]") {
  Random random(1);
  for (int base = 0; base < 256; ++base)
    for (int shift = 0; shift < 3; ++shift) {
      p12::Block392 block{};
      block.base = static_cast<uint8_t>(base);
      for (std::size_t w = 0; w < 32; ++w) {
        std::uint32_t word = 0;
        for (std::size_t t = 0; t < 8; ++t)
          word |= static_cast<std::uint32_t>((w * 8 + t * 3 + size(shift) * 5) % 16) << p12::code_shift(t);
        pn::detail::store_le32(block.codes + 4 * w, word);
      }
      for (uint8_t& byte : block.sign_mantissa) byte = shift == 0 ? 0xFF : shift == 1 ? 0x80 : random.byte();
      check_block(block);
    }
}

// One code that is not 0, one sign or one mantissa bit at every place.
TEST_CASE("decode_p12: every place alone", "[decode_p12]") {
  for (const int base : {0, 1, 127, 128, 239, 240, 241, 255})
    for (int place = 0; place < 256; ++place) {
      p12::Block392 block{};
      block.base = static_cast<uint8_t>(base);
      block.sign_mantissa[place] = static_cast<uint8_t>(1u << (place % 8));
      const int at = place * 7 % 256;
      const std::uint32_t code = 1u << (place % 4);
      pn::detail::store_le32(block.codes + at / 8 * 4, code << p12::code_shift(size(at % 8)));
      check_block(block);
    }
}

TEST_CASE("decode_p12: listed weights at every place, every exponent, one to three", "[decode_p12]") {
  Random random(2);
  for (int listed = 1; listed <= 3; ++listed)
    for (int place = 0; place < 256; ++place) {
      p12::Block392 block = random_block(random, listed, random.between(0, 240));
      block.position[0] = static_cast<uint8_t>(place);
      if (listed > 1) block.position[1] = static_cast<uint8_t>(place + 1 + place % 3);  // wraps: not ascending
      if (listed > 2) block.position[2] = static_cast<uint8_t>(place % 2 == 0 ? place : 255 - place);
      block.exponent[0] = static_cast<uint8_t>(255 - place);
      block.exponent[1] = static_cast<uint8_t>(place);
      check_block(block);
    }
}

TEST_CASE("decode_p12: any bytes", "[decode_p12]") {
  Random random(3);
  for (const p12::Block392& block : hostile_blocks(random, 2000)) check_block(block);
  for (const p12::Block392& block : gauss_blocks(random, 50)) check_block(block);
}

// The marks of several blocks, OR-ed, say `plain` only if all of them are.
TEST_CASE("decode_p12: blocks that are plain together", "[decode_p12]") {
  Random random(4);
  for (int turn = 0; turn < 20000; ++turn) {
    std::uint32_t lows = 0;
    bool all = true, all_usual = true;
    for (int i = 0; i < 1 + turn % 4; ++i) {
      const auto base = static_cast<std::uint32_t>(random.below(turn % 2 == 0 ? 256 : 128));
      const auto listed = static_cast<std::uint32_t>(random.below(8) == 0 ? random.below(256) : 0);
      lows |= (random.next32() & 0xFFFF0000u) | listed << 8 | base;
      all = all && listed == 0 && base <= 240;
      all_usual = all_usual && listed == 0 && base < 128;
    }
    if (pncuda::p12_all_plain(lows)) REQUIRE(all);
    if (all_usual) REQUIRE(pncuda::p12_all_plain(lows));  // trained weights: |w| below 2, at the fast path always
  }
}

}  // namespace
