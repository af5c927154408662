// include/pncuda/decode_pn.cuh by itself, on the host: against the core's codes and weights.
#include <pncuda/decode_pn.cuh>

#include "testing.hpp"

using namespace testing;

namespace {

// Any word, words with one code that is not 0, all bits.
std::vector<std::uint32_t> words(Random& random) {
  std::vector<std::uint32_t> all = {0u, 0xFFFFFFFFu, 0x80008000u, 0x7FFF7FFFu};
  for (int bit = 0; bit < 32; ++bit) all.push_back(1u << bit);
  for (int i = 0; i < 3000; ++i) all.push_back(random.next32());
  return all;
}

template <class T>
int code_of(std::uint32_t word, std::size_t e) {
  pn::Block34 block{};
  pn::detail::store_le32(block.qs, word);
  return pn::load_code<T>(block, e);
}

float low(__half2 v) { return __low2float(v); }
float high(__half2 v) { return __high2float(v); }

template <class T>
void codes_and_weights() {
  Random random(1);
  for (const std::uint32_t word : words(random)) {
    std::uint32_t pairs[pncuda::pairs_per_word<T>];
    pncuda::codes_as_half2<T>(word, pairs);
    for (std::size_t e = 0; e < T::codes_per_word; ++e) {
      const int n = code_of<T>(word, e), i = static_cast<int>(e), j = i / 2;
      CAPTURE(T::name, word, e, n);
      const std::uint32_t half = pairs[j] >> (16 * (e % 2)) & 0xFFFFu;
      REQUIRE(static_cast<double>(pn::half_to_float(static_cast<std::uint16_t>(half))) ==
              std::ldexp(n, pncuda::half_place<T>(j) - 24));
      REQUIRE(static_cast<double>(float_of(pncuda::code_as_float<T>(word, word >> 16, i))) ==
              std::ldexp(n, pncuda::float_place<T>(i) - 149));
      const __half2 centred = pncuda::centred_half2<T>(word, j);
      REQUIRE((e % 2 == 0 ? low(centred) : high(centred)) == static_cast<float>(n - T::zero_point));
      const float d = value_of(PNCUDA_F16, random_scale(random));
      const float weight = pncuda::weight<T>(d, word, i);
      REQUIRE(bits_of(weight) == bits_of(pn::decode_code<T>(d, n)));
    }
  }
  // A code times a prescaled activation stays exact, and the largest activation finite: places are small.
  for (int j = 0; j < static_cast<int>(pncuda::pairs_per_word<T>); ++j) {
    REQUIRE(pncuda::half_place<T>(j) >= 0);
    REQUIRE(pncuda::half_place<T>(j) + T::bits <= 10);  // a subnormal fp16
  }
  for (int e = 0; e < static_cast<int>(T::codes_per_word); ++e) {
    REQUIRE(pncuda::float_place<T>(e) >= 0);
    REQUIRE(pncuda::float_place<T>(e) + T::bits <= 23);  // a subnormal fp32
  }
}

TEST_CASE("decode_pn: codes as numbers, weights", "[decode_pn]") {
  codes_and_weights<pn::pn3t>();
  codes_and_weights<pn::pn4t>();
}

TEST_CASE("decode_pn: loads at any multiple of 2", "[decode_pn]") {
  Random random(2);
  for (const int64_t shift : {0, 2, 4, 6}) {
    Input memory(2 * 34, shift);
    for (std::size_t i = 0; i < 68; ++i) memory.data()[i] = random.byte();
    const auto* const blocks = reinterpret_cast<const pn::Block34*>(memory.data());
    for (int b = 0; b < 2; ++b) {
      REQUIRE(pncuda::load_scale(memory.data() + 34 * b) == pn::load_scale(blocks[b]));
      for (int w = 0; w < 8; ++w)
        REQUIRE(pncuda::load_word(memory.data() + 34 * b, w) == pn::load_word(blocks[b], static_cast<std::size_t>(w)));
    }
  }
}

// Blocks that do not exist give zeros and are not read: the memory ends where they would begin.
TEST_CASE("decode_pn: quarters at the end of a row", "[decode_pn]") {
  Random random(3);
  for (int exist = -3; exist <= 3; ++exist) {
    const int there = std::max(0, std::min(exist, 2));
    Memory memory(34 * std::max(there, 1), 2);
    for (std::size_t i = 0; i < memory.bytes(); ++i) memory.data()[i] = random.byte();
    const uint8_t* const at = there > 0 ? memory.data() : memory.data() + memory.bytes();
    const auto* const blocks = reinterpret_cast<const pn::Block34*>(memory.data());
    for (int t = 0; t < 4; ++t) {
      const pncuda::Quarters q = pncuda::load_quarters(at, exist, t);
      for (int b = 0; b < 2; ++b) {
        const bool exists = b < there;
        CAPTURE(exist, t, b);
        for (int w = 0; w < 2; ++w)
          REQUIRE(q.words[2 * b + w] == (exists ? pn::load_word(blocks[b], static_cast<std::size_t>(2 * t + w)) : 0u));
        REQUIRE((q.scales >> (16 * b) & 0xFFFFu) == (exists ? pn::load_scale(blocks[b]) : 0u));
      }
    }
  }
}

// All scales and words of a matrix, at places that are different and fill its bytes.
TEST_CASE("decode_pn: block_place is one to one", "[decode_pn]") {
  for (const bool repacked : {false, true})
    for (const int64_t rows : {1, 3, 15, 16, 17, 32, 33, 49})
      for (const int32_t blocks : {1, 2, 3, 15, 16, 17, 31, 32, 33, 50}) {
        const pncuda::Matrix m{nullptr, rows, int64_t{34} * blocks, blocks, repacked};
        std::vector<int> seen(size(rows * blocks * 34), 0);
        bool inside = true, aligned = true;
        const auto take = [&](int64_t at, int count) {
          inside = inside && at >= 0 && at + count <= int64_t(seen.size());
          aligned = aligned && at % 2 == 0;
          for (int i = 0; inside && i < count; ++i) ++seen[size(at + i)];
        };
        for (int64_t row = 0; row < rows; ++row)
          for (int32_t block = 0; block < blocks; ++block) {
            const pncuda::BlockPlace place = pncuda::block_place(m, row, block);
            take(place.scale, 2);
            for (int w = 0; w < 8; ++w) take(place.word(w), 4);
            // Full tiles are made for loads of 16 bytes.
            if (repacked && row < rows / 16 * 16 && block < blocks / 16 * 16)
              for (int w = 0; w < 8; w += 2) aligned = aligned && place.word(w) % 8 == 0;
          }
        CAPTURE(repacked, rows, blocks);
        REQUIRE(inside);
        REQUIRE(aligned);
        REQUIRE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
      }
}

// Rows and strides whose product needs more than 32, or 31, bits: no memory is touched.
TEST_CASE("decode_pn: places beyond 2^31 and 2^32", "[decode_pn]") {
  static_assert(sizeof(pncuda::Matrix::rows) == 8 && sizeof(pncuda::Matrix::row_stride) == 8, "64-bit sizes");
  static_assert(sizeof(pncuda::BlockPlace::scale) == 8 && sizeof(pncuda::BlockPlace::words) == 8, "64-bit places");
  for (const int64_t row : {int64_t{1} << 20, (int64_t{1} << 31) + 16, (int64_t{1} << 33) + 32})
    for (const int32_t blocks : {1, 17, 80, 5000, 60000000}) {
      const int64_t stride = int64_t{34} * blocks;
      if (row > INT64_MAX / 4 / stride) continue;  // which the library refuses
      const pncuda::Matrix native{nullptr, row + 40, stride + 6, blocks, false};
      const int32_t last = blocks - 1;
      CAPTURE(row, blocks);
      REQUIRE(pncuda::block_place(native, row + 5, last).scale == (row + 5) * (stride + 6) + int64_t{34} * last);
      REQUIRE(pncuda::block_place(native, row + 5, last).word(3) == (row + 5) * (stride + 6) + int64_t{34} * last + 14);
      // Repacked: row + 5 lies in the group of 16 that begins at `row`.
      const pncuda::Matrix repacked{nullptr, row + 40, stride, blocks, true};
      const int64_t group = row * stride;
      if (blocks >= 16) {
        const int64_t tile = blocks / 16 - 1;  // the last full one
        const pncuda::BlockPlace place = pncuda::block_place(repacked, row + 5, static_cast<int32_t>(16 * tile + 3));
        REQUIRE(place.words == group + tile * 8704 + 5 * 512 + 64 + 8);
        REQUIRE(place.word(7) == place.words + 3 * 16 + 4);
        REQUIRE(place.scale == group + tile * 8704 + 8192 + 64 + 4 * 5 + 2);
      }
      if (blocks % 16 != 0) {
        const int64_t rest = blocks % 16;
        const pncuda::BlockPlace place = pncuda::block_place(repacked, row + 5, last);
        REQUIRE(place.scale == group + (blocks - rest) * (16 * 34) + (5 * rest + rest - 1) * 34);
        REQUIRE(place.words == place.scale + 2);
      }
    }
}

TEST_CASE("decode_pn: weights read through block_place", "[decode_pn]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(4);
  for (const int type : block_types)
    for (const int layout : layouts) {
      const Weights weights(type, 21, 19, random);
      const pncuda_weights w = weights.as(layout);
      const pncuda::Matrix m{static_cast<const uint8_t*>(w.data), 21, 19 * 34, 19, layout == PNCUDA_REPACKED};
      with_block_type(type, [&](auto t) {
        using T = decltype(t);
        for (int64_t n = 0; n < 21; ++n)
          for (int64_t column = 0; column < weights.k(); ++column) {
            const std::size_t e = size(column) % T::block_size;
            const pncuda::BlockPlace place =
                pncuda::block_place(m, n, static_cast<int32_t>(column / int64_t(T::block_size)));
            const std::uint32_t word = pncuda::load_u32(m.data + place.word(static_cast<int>(e / T::codes_per_word)));
            const float d = pn::half_to_float(pncuda::load_scale(m.data + place.scale));
            REQUIRE(bits_of(pncuda::weight<T>(d, word, static_cast<int>(e % T::codes_per_word))) ==
                    bits_of(weights.decoded(n)[column]));
          }
      });
    }
}

}  // namespace
