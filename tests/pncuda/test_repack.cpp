// pncuda_repack, pncuda_unrepack: the bytes, any shape, any place.
#include <pncuda/decode_pn.cuh>

#include "testing.hpp"

using namespace testing;

namespace {

// The layout as decode_pn.cuh tells it, byte after byte.
std::vector<uint8_t> repacked_by_hand(const Weights& weights) {
  const int64_t rows = weights.rows(), blocks = weights.blocks();
  const auto bytes_of_block = [&](int64_t n, int64_t b) {
    return reinterpret_cast<const uint8_t*>(weights.row(n) + b);
  };
  std::vector<uint8_t> out;
  const auto put = [&](const uint8_t* bytes, int count) { out.insert(out.end(), bytes, bytes + count); };
  int64_t n = 0;
  for (; n + 16 <= rows; n += 16) {
    int64_t b = 0;
    for (; b + 16 <= blocks; b += 16) {
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t p = 0; p < 8; ++p)
          for (int64_t t = 0; t < 4; ++t)
            for (int64_t half = 0; half < 2; ++half) put(bytes_of_block(n + r, b + 2 * p + half) + 2 + 8 * t, 8);
      for (int64_t p = 0; p < 8; ++p)
        for (int64_t r = 0; r < 16; ++r)
          for (int64_t half = 0; half < 2; ++half) put(bytes_of_block(n + r, b + 2 * p + half), 2);
    }
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t rest = b; rest < blocks; ++rest) put(bytes_of_block(n + r, rest), 34);
  }
  for (; n < rows; ++n)
    for (int64_t b = 0; b < blocks; ++b) put(bytes_of_block(n, b), 34);
  return out;
}

TEST_CASE("repack: every shape, there and back", "[repack]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(1);
  std::size_t turn = 0;
  for (const int type : block_types)
    for (const int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 48})
      for (const int64_t blocks : {1, 2, 7, 15, 16, 17, 31, 32, 33, 64}) {
        const int64_t pads[] = {0, 2, 34, 100}, shifts[] = {0, 2, 8, 14};
        const Weights weights(type, rows, blocks, random, pads[turn % 4], shifts[turn / 4 % 4]);
        ++turn;
        CAPTURE(name_of(type), rows, blocks);
        const pncuda_weights native = weights.native();
        REQUIRE(pncuda_weights_size(&native) == size(rows * blocks * 34));
        const Output out(1, rows * blocks * 34, rows * blocks * 34);
        REQUIRE(pncuda_repack(&native, out.data(), nullptr) == PNCUDA_OK);
        REQUIRE(out.intact());
        const std::vector<uint8_t> want = repacked_by_hand(weights);
        REQUIRE(std::memcmp(out.data(), want.data(), want.size()) == 0);

        const Input packed(want);
        pncuda_weights repacked = native;
        repacked.layout = PNCUDA_REPACKED;
        repacked.data = packed.data();
        repacked.row_stride = 0;
        REQUIRE(pncuda_weights_size(&repacked) == want.size());
        for (const int64_t pad : {0, 2, 40})
          for (const int64_t shift : {0, 2}) {
            const Output back(rows, blocks * 34, blocks * 34 + pad, shift);
            REQUIRE(pncuda_unrepack(&repacked, back.data(), back.stride(), nullptr) == PNCUDA_OK);
            REQUIRE(back.intact());
            for (int64_t n = 0; n < rows; ++n)
              REQUIRE(std::memcmp(back.row(n), weights.row(n), size(blocks * 34)) == 0);
          }
        REQUIRE(weights.unchanged());
        REQUIRE(packed.unchanged());
      }
}

TEST_CASE("repack: one row may have any stride, none must be a row", "[repack]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(2);
  const Weights weights(PNCUDA_PN4T, 1, 5, random);
  pncuda_weights native = weights.native();
  native.row_stride = 0;
  const Output out(1, 5 * 34, 5 * 34);
  REQUIRE(pncuda_repack(&native, out.data(), nullptr) == PNCUDA_OK);
  REQUIRE(std::memcmp(out.data(), weights.row(0), 5 * 34) == 0);
}

TEST_CASE("repack: shapes without a block", "[repack]") {
  const Restore restore;
  use(host_cuda::h100());
  for (const int type : block_types)
    for (const bool rows : {false, true}) {
      const pncuda_weights native{sizeof native, type, PNCUDA_NATIVE, nullptr, rows ? 20 : 0, rows ? 0 : 640, 640};
      pncuda_weights repacked = native;
      repacked.layout = PNCUDA_REPACKED;
      repacked.row_stride = 0;
      host_cuda::reset_calls();
      REQUIRE(pncuda_weights_size(&native) == 0);
      REQUIRE(pncuda_repack(&native, nullptr, nullptr) == PNCUDA_OK);
      REQUIRE(pncuda_unrepack(&repacked, nullptr, 640, nullptr) == PNCUDA_OK);
      REQUIRE(host_cuda::calls().count("launch") == 0);
    }
}

// More rows than a grid has in y: the kernel goes on by itself.
TEST_CASE("repack: more rows than a grid has", "[repack]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(3);
  const int64_t rows = 65535 + 40;
  const Weights weights(PNCUDA_PN4T, rows, 1, random);
  const pncuda_weights native = weights.native();
  const Memory out(rows * 34);
  host_cuda::set_host_threads(2);
  REQUIRE(pncuda_repack(&native, out.data(), nullptr) == PNCUDA_OK);
  const std::vector<uint8_t> want = repacked_by_hand(weights);
  REQUIRE(std::memcmp(out.data(), want.data(), want.size()) == 0);
}

}  // namespace
