// pncuda_decode and pncuda_get_rows: the numbers of pn::decode_row, any tile, both layouts, all types.
#include <sys/mman.h>

#include "testing.hpp"

using namespace testing;

namespace {

pncuda_decode_args decode_args(const pncuda_weights& weights, int64_t first_row, int64_t rows, int64_t first_column,
                               int64_t columns, const Output& out, int type) {
  return {
      sizeof(pncuda_decode_args), &weights, first_row, rows, first_column, columns, out.data(), out.stride(), type, 0};
}

// Row n of the weights from a column on, rounded by the core.
void check_row(const Weights& weights, int64_t n, int64_t first, int64_t columns, int type, const uint8_t* got) {
  const float* const want = weights.decoded(n);
  for (int64_t i = 0; i < columns; ++i)
    if (!same_element(type, load_bits(type, got, i), bits_as(type, want[first + i]))) {
      CAPTURE(n, first, columns, i, name_of(type), load_bits(type, got, i));
      REQUIRE(load_bits(type, got, i) == bits_as(type, want[first + i]));
    }
}

// Scales of every kind.
void set_all_scales(Weights& weights) {
  const unsigned special[] = {0x7C00u, 0xFC00u, 0x7E00u, 0xFD55u, 0x0000u, 0x8000u, 0x0001u, 0x83FFu, 0x7BFFu, 0xFBFFu};
  for (int64_t n = 0; n < weights.rows(); n += 2) weights.set_scale(n, (n * 7) % weights.blocks(), special[n / 2 % 10]);
  weights.freeze();
}

TEST_CASE("decode: every first column of a block, every width to two blocks", "[decode]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(1);
  for (const int type : block_types) {
    const Weights weights(type, 3, 3, random);
    const int64_t block = block_size_of(type);
    for (const int layout : layouts) {
      const pncuda_weights w = weights.as(layout);
      for (int64_t first = 0; first < block; ++first)
        for (const int64_t columns :
             {int64_t{1}, int64_t{2}, int64_t{3}, block - 1, block, 2 * block - first, 2 * block}) {
          const int out_type = element_types[(first + columns) % 3];
          const int64_t element = bytes_of(out_type);
          const Output out(2, columns * element, columns * element + element * (first % 5), element * (columns % 4));
          const auto args = decode_args(w, 1, 2, first, columns, out, out_type);
          REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
          REQUIRE(out.intact());
          for (int64_t n = 0; n < 2; ++n) check_row(weights, 1 + n, first, columns, out_type, out.row(n));
        }
    }
    REQUIRE(weights.unchanged());
  }
}

TEST_CASE("decode: whole matrices, all kinds of scales, all types", "[decode]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(2);
  for (const int type : block_types)
    for (const int64_t rows : {1, 16, 17, 35})
      for (const int64_t blocks : {1, 15, 16, 17, 33}) {
        Weights weights(type, rows, blocks, random, 2);
        set_all_scales(weights);
        for (const int layout : layouts)
          for (const int out_type : element_types) {
            const pncuda_weights w = weights.as(layout);
            const int64_t row = weights.k() * bytes_of(out_type);
            const Output out(rows, row, row + (blocks % 2) * 8);
            const auto args = decode_args(w, 0, rows, 0, weights.k(), out, out_type);
            CAPTURE(name_of(type), rows, blocks, layout);
            REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
            REQUIRE(out.intact());
            for (int64_t n = 0; n < rows; ++n) check_row(weights, n, 0, weights.k(), out_type, out.row(n));
          }
        REQUIRE(weights.unchanged());
      }
}

TEST_CASE("decode: tiles at any place", "[decode]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(3);
  for (const int type : block_types) {
    Weights weights(type, 40, 35, random, 2);
    set_all_scales(weights);
    for (int turn = 0; turn < 60; ++turn) {
      const int layout = layouts[turn % 2], out_type = element_types[turn % 3];
      const int64_t first_row = int64_t(random.below(41)), rows = int64_t(random.below(size(41 - first_row)));
      const int64_t first = int64_t(random.below(size(weights.k() + 1)));
      const int64_t columns = int64_t(random.below(size(weights.k() + 1 - first)));
      const int64_t element = bytes_of(out_type);
      const Output out(rows, columns * element, (columns + int64_t(random.below(3))) * element,
                       element * int64_t(random.below(4)));
      const pncuda_weights w = weights.as(layout);
      const auto args = decode_args(w, first_row, rows, first, columns, out, out_type);
      CAPTURE(name_of(type), layout, first_row, rows, first, columns);
      host_cuda::reset_calls();
      REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
      REQUIRE(host_cuda::calls().count("launch") == (rows == 0 || columns == 0 ? 0 : 1));
      REQUIRE(out.intact());
      for (int64_t n = 0; n < rows; ++n) check_row(weights, first_row + n, first, columns, out_type, out.row(n));
    }
  }
}

TEST_CASE("decode: every code under every scale's exponent", "[decode]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(4);
  for (const int type : block_types) {
    Weights weights(type, 1, 64, random);
    const int64_t block = block_size_of(type);
    for (int64_t b = 0; b < 64; ++b) {
      std::vector<uint8_t> codes;
      for (int64_t e = 0; e < block; ++e)
        codes.push_back(static_cast<uint8_t>((e + e / 16) % (type == PNCUDA_PN3T ? 8 : 16)));
      weights.set_scale(0, b, static_cast<unsigned>(b) << 10 | static_cast<unsigned>(random.below(1024)));
      weights.set_codes(0, b, codes.data());
    }
    weights.freeze();
    for (const int out_type : element_types) {
      const Output out(1, weights.k() * bytes_of(out_type), weights.k() * bytes_of(out_type));
      const pncuda_weights w = weights.native();
      const auto args = decode_args(w, 0, 1, 0, weights.k(), out, out_type);
      REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
      check_row(weights, 0, 0, weights.k(), out_type, out.row(0));
    }
  }
}

TEST_CASE("decode: more rows than a grid has", "[decode]") {
  const Restore restore;
  use(host_cuda::h100());
  host_cuda::set_host_threads(2);
  Random random(5);
  const int64_t rows = 65535 + 3;
  const Weights weights(PNCUDA_PN4T, 2, 1, random);
  pncuda_weights w = weights.native();
  w.rows = rows;  // the same row again and again
  w.k = 64;
  std::vector<uint8_t> bytes;
  for (int64_t n = 0; n < rows; ++n)
    bytes.insert(bytes.end(), reinterpret_cast<const uint8_t*>(weights.row(n % 2)),
                 reinterpret_cast<const uint8_t*>(weights.row(n % 2)) + 34);
  const Input many(bytes);
  w.data = many.data();
  const Output out(rows, 2 * 2, 2 * 2);
  const auto args = decode_args(w, 0, rows, 13, 2, out, PNCUDA_F16);
  REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
  REQUIRE(out.intact());
  for (int64_t n = 0; n < rows; ++n) check_row(weights, n % 2, 13, 2, PNCUDA_F16, out.row(n));
}

TEST_CASE("get_rows: ids of both widths, twice, out of range", "[get_rows]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(6);
  for (const int type : block_types)
    for (const int64_t blocks : {1, 5, 17}) {
      const int64_t rows = 37;
      Weights weights(type, rows, blocks, random, 2);
      set_all_scales(weights);
      for (const int layout : layouts)
        for (const int out_type : element_types)
          for (const int id_bytes : {4, 8})
            check_get_rows(weights.as(layout), id_bytes, out_type, [&](int64_t id, const uint8_t* row) {
              check_row(weights, id, 0, weights.k(), out_type, row);
            });
      REQUIRE(weights.unchanged());
    }
}

TEST_CASE("get_rows: no ids, no rows, no columns", "[get_rows]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(7);
  const Weights weights(PNCUDA_PN3T, 4, 1, random);
  pncuda_weights w = weights.native();
  const Output out(3, 320, 320);
  const Input ids(std::vector<uint8_t>(12, 0));
  pncuda_get_rows_args args{sizeof args, &w, ids.data(), 0, 4, PNCUDA_F32, out.data(), out.stride()};
  host_cuda::reset_calls();
  REQUIRE(pncuda_get_rows(&args, nullptr) == PNCUDA_OK);
  args.ids = nullptr;
  args.out = nullptr;
  REQUIRE(pncuda_get_rows(&args, nullptr) == PNCUDA_OK);
  REQUIRE(host_cuda::calls().count("launch") == 0);
  // A matrix without rows has none to give.
  args.ids = ids.data();
  args.out = out.data();
  args.count = 3;
  w.rows = 0;
  REQUIRE(pncuda_get_rows(&args, nullptr) == PNCUDA_OK);
  REQUIRE(out.intact());
  for (int64_t i = 0; i < 3 * 80; ++i) REQUIRE(std::isnan(float_of(load_bits(PNCUDA_F32, out.data(), i))));
}

// A few rows that lie gigabytes apart, in memory of which only what is used exists.
TEST_CASE("strides beyond 2^32 bytes", "[decode]") {
  const Restore restore;
  const int64_t gap = int64_t{3} << 30, rows = 4, blocks = 18;
  void* const sparse =
      mmap(nullptr, size(rows * gap), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (sparse == MAP_FAILED) {
    WARN("no room for 12 GiB of addresses");
    return;
  }
  uint8_t* const base = static_cast<uint8_t*>(sparse);
  Random random(8);
  for (const int type : block_types) {
    const Weights weights(type, rows, blocks, random);
    for (int64_t n = 0; n < rows; ++n) std::memcpy(base + 2 + n * gap, weights.row(n), size(blocks * 34));
    pncuda_weights far = weights.native();
    far.data = base + 2;
    far.row_stride = gap;
    for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
      use(device);
      const Output out(rows, weights.k() * 4, weights.k() * 4);
      const auto args = decode_args(far, 0, rows, 0, weights.k(), out, PNCUDA_F32);
      REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
      REQUIRE(out.intact());
      for (int64_t n = 0; n < rows; ++n) check_row(weights, n, 0, weights.k(), PNCUDA_F32, out.row(n));

      const Output packed(1, rows * blocks * 34, rows * blocks * 34);
      REQUIRE(pncuda_repack(&far, packed.data(), nullptr) == PNCUDA_OK);
      for (int64_t n = 0; n < rows; ++n)
        REQUIRE(std::memcmp(packed.data() + n * blocks * 34, weights.row(n), size(blocks * 34)) == 0);

      // Tokens and their results as far apart.
      const Activations x(PNCUDA_F16, 4, weights.k(), random);
      for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2}) {
        GemvOptions options;
        options.mode = mode;
        const auto want = gemv(weights.native(), x, options);
        REQUIRE(gemv(far, x, options) == want);
        uint8_t* const x_far = base + (1 << 20);
        uint8_t* const y_far = base + (2 << 20);
        for (int64_t m = 0; m < 4; ++m) std::memcpy(x_far + m * gap, x.data() + m * x.stride(), size(weights.k() * 2));
        pncuda_gemv_args far_args = gemv_args(far, x, out, options);
        far_args.x = x_far;
        far_args.x_stride = gap;
        far_args.y = y_far;
        far_args.y_stride = gap;
        REQUIRE(pncuda_gemv(&far_args, nullptr) == PNCUDA_OK);
        for (int64_t m = 0; m < 4; ++m)
          for (int64_t n = 0; n < rows; ++n)
            REQUIRE(load_bits(PNCUDA_F32, y_far + m * gap, n) == want[size(m * rows + n)]);
      }
    }
  }
  munmap(sparse, size(rows * gap));
}

}  // namespace
