// pncuda_p12_pack: the bytes of p12::pack_row; pncuda_decode and pncuda_get_rows: the bits of p12::unpack_row.
#include "p12_testing.hpp"

using namespace testing;

namespace {

// ---- Packing ----

using Block = std::array<uint16_t, 256>;

uint16_t weight_of(Random& random, int exponent) {
  return static_cast<uint16_t>((random.next32() & 0x807Fu) | static_cast<unsigned>(exponent) << 7);
}
Block between(Random& random, int low, int high) {
  Block block;
  for (uint16_t& weight : block) weight = weight_of(random, random.between(low, high));
  return block;
}

// One of many kinds; more than half of them can be packed.
Block random_weights(Random& random) {
  const int low = random.between(0, 255), a = random.between(0, 240);
  Block block = between(random, a, a);
  const auto some = [&](int count, int from, int to) {
    for (int i = 0; i < count; ++i)
      block[random.below(256)] = weight_of(random, std::max(0, std::min(255, random.between(from, to))));
  };
  switch (random.below(12)) {
    case 0:
      for (uint16_t& weight : block) weight = bf16_of(static_cast<float>(0.02 * random.gauss()));
      return block;
    case 1: return between(random, low, std::min(255, low + random.between(0, 20)));
    case 2:  // a window and up to five outside
      block = between(random, a, a + 15);
      some(random.between(0, 5), 0, 255);
      return block;
    case 3: some(random.between(0, 4), a - 20, a + 20); return block;  // ties
    case 4: some(random.between(1, 255), low, low); return block;      // two crowds
    case 5:                                                            // near the top: bases up to 240
      block = between(random, std::max(low, 232), 255);
      some(random.between(0, 3), 0, 255);
      return block;
    case 6:  // near the bottom
      block = between(random, 0, low % 20);
      some(random.between(0, 4), 10, 40);
      return block;
    case 7:  // 15 and 16 apart
      block = between(random, a, std::min(255, a + 15));
      some(1, a, a);
      some(1, a + 15, a + 16);
      return block;
    case 8:  // every exponent once: all windows are as good
      for (int i = 0; i < 256; ++i) block[size((i * 77 + low) % 256)] = weight_of(random, i);
      return block;
    case 9:  // exactly three or four above, below or on both sides
      for (int i = random.between(3, 4); i > 0; --i)
        block[size((i * 61 + low) % 256)] = weight_of(random, (a + random.between(16, 240)) % 256);
      return block;
    case 10:  // two halves that tie, or nearly
      for (std::size_t i = 0; i < 128 + random.below(3) - 1; ++i) block[2 * i % 256 + i / 128] = weight_of(random, low);
      return block;
    default:
      for (uint16_t& weight : block) weight = static_cast<uint16_t>(random.next32());
      return block;
  }
}

// An int64_t in device memory between fences. (The layer's cudaMemset wants memory of cudaMalloc.)
class FirstBad {
 public:
  FirstBad() {
    REQUIRE(cudaMalloc(&memory_, 3 * sizeof(int64_t)) == cudaSuccess);
    std::fill_n(memory_, 3, fence);
  }
  ~FirstBad() { cudaFree(memory_); }
  FirstBad(const FirstBad&) = delete;
  FirstBad& operator=(const FirstBad&) = delete;
  int64_t* get() const { return memory_ + 1; }
  int64_t value() const {
    REQUIRE((memory_[0] == fence && memory_[2] == fence));
    return memory_[1];
  }

 private:
  static constexpr int64_t fence = 0x1234567890ABCDEF;
  int64_t* memory_ = nullptr;
};

// Packs rows on the device and compares every byte; what does not fit must not be written. How many did not fit.
int64_t check_pack(const std::vector<Block>& blocks, int64_t rows, int64_t pad = 0, int64_t shift = 0) {
  const int64_t of_row = rows == 0 ? 1 : int64_t(blocks.size()) / rows, stride = of_row * 512 + pad * 16;
  Input plain(rows == 0 ? 0 : (rows - 1) * stride + of_row * 512);
  for (int64_t n = 0; n < rows; ++n)
    std::memcpy(plain.data() + n * stride, &blocks[size(n * of_row)], size(of_row * 512));
  plain.freeze();
  const pncuda_weights from{sizeof from, PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, plain.data(), rows, of_row * 256, stride};
  const Output out(rows, of_row * 392, of_row * 392 + pad * 8, shift);
  const FirstBad first_bad;
  CAPTURE(rows, of_row, pad, shift);
  REQUIRE(pncuda_p12_pack(&from, out.data(), out.stride(), first_bad.get(), nullptr) == PNCUDA_OK);
  REQUIRE(out.intact());
  REQUIRE(plain.unchanged());
  int64_t lowest = -1, bad = 0;
  for (int64_t i = 0; i < int64_t(blocks.size()); ++i) {
    p12::Block392 want;
    std::memset(&want, Output::canary, sizeof want);
    if (p12::pack_block(blocks[size(i)].data(), want) != pn::Status::ok) {
      if (lowest < 0) lowest = i;
      ++bad;
    }
    const uint8_t* const got = out.row(i / of_row) + i % of_row * 392;
    if (std::memcmp(got, &want, sizeof want) == 0) continue;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&want);
    const auto at = std::mismatch(got, got + sizeof want, bytes).first - got;
    CAPTURE(i, at, int(got[at]), int(bytes[at]), int(got[0]), int(want.base), int(got[1]), int(want.listed));
    REQUIRE(got[at] == bytes[at]);
  }
  REQUIRE(first_bad.value() == lowest);
  return bad;
}

TEST_CASE("pack: the bytes of p12::pack_row, weights of many kinds", "[p12_pack]") {
  const Restore restore;
  Random random(1);
  for (int turn = 0; turn < 60; ++turn) {
    if (left_out()) continue;
    use(turn % 3 == 0 ? host_cuda::p100() : turn % 3 == 1 ? host_cuda::h100() : host_cuda::a10());
    const int64_t rows = random.between(1, 9), of_row = random.between(1, turn % 8 == 0 ? 40 : 11);
    std::vector<Block> blocks;
    for (int64_t i = 0; i < rows * of_row; ++i) blocks.push_back(random_weights(random));
    check_pack(blocks, rows, turn % 3, turn % 2 == 0 ? 0 : 8);
  }
}

TEST_CASE("pack: all fit, some do not, the first of them, none", "[p12_pack]") {
  const Restore restore;
  Random random(2);
  use(host_cuda::h100());
  Block bad;
  for (std::size_t i = 0; i < 256; ++i) bad[i] = weight_of(random, static_cast<int>(i));
  for (const auto& [rows, of_row] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {7, 9}, {33, 2}}) {
    std::vector<Block> blocks;
    for (int64_t i = 0; i < rows * of_row; ++i) blocks.push_back(between(random, 100, 115));
    REQUIRE(check_pack(blocks, rows) == 0);
    for (int turn = 0; turn < 6; ++turn) {
      if (left_out()) continue;
      std::vector<Block> some = blocks;
      const auto count = int64_t(some.size());
      if (turn == 0) some[size(count - 1)] = bad;
      if (turn == 1) some[0] = bad;
      if (turn >= 2)
        for (int i = 0; i < turn; ++i) some[random.below(some.size())] = bad;
      REQUIRE(check_pack(some, rows, turn % 2) > 0);
      const host_cuda::Order orders[] = {order_of("reverse"), order_of("5"), order_of("forward")};
      host_cuda::set_block_order(orders[turn % 3]);
      check_pack(some, rows);
      host_cuda::set_block_order({});
    }
    REQUIRE(check_pack(std::vector<Block>(size(rows * of_row), bad), rows) == rows * of_row);
  }
  REQUIRE(check_pack({}, 0) == 0);  // 0 rows: -1
  // k = 0, too.
  const pncuda_weights empty{sizeof empty, PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, nullptr, 5, 0, 0};
  const FirstBad first_bad;
  REQUIRE(pncuda_p12_pack(&empty, nullptr, 0, first_bad.get(), nullptr) == PNCUDA_OK);
  REQUIRE(first_bad.value() == -1);
}

// Windows at every exponent, both edges of them, with none to four outside.
TEST_CASE("pack: windows at every base, three and four outside", "[p12_pack]") {
  const Restore restore;
  Random random(3);
  use(host_cuda::p100());
  for (int outside = 0; outside <= 4; ++outside) {
    if (left_out()) continue;
    std::vector<Block> blocks;
    for (int low = 0; low < 256; ++low) {
      Block block = between(random, low, std::min(255, low + 15));
      block[0] = weight_of(random, low);
      block[255] = weight_of(random, std::min(255, low + 15));
      for (int i = 0; i < outside; ++i)
        block[size((low * 7 + i * (1 + low % 50)) % 254 + 1)] =
            weight_of(random, (low + (low % 2 == 0 ? 16 + i : 255 - i)) % 256);
      blocks.push_back(block);
    }
    check_pack(blocks, 64);
    // One exponent in the whole block, and a few others: which of 16 windows?
    blocks.clear();
    for (int e = 0; e < 256; ++e) {
      Block block = between(random, e, e);
      for (int i = 0; i < outside; ++i)
        block[size((e * 11 + i) % 256)] =
            weight_of(random, std::max(0, std::min(255, e + (i % 2 == 0 ? 15 + i : -i - e % 16))));
      blocks.push_back(block);
    }
    check_pack(blocks, 32, 1, 8);
  }
}

TEST_CASE("pack: what is packed unpacks to the same bits", "[p12_pack]") {
  const Restore restore;
  Random random(4);
  use(host_cuda::h100());
  const int64_t rows = 13, blocks = 7, k = blocks * 256;
  const Bf16Weights weights(gauss_blocks(random, rows * blocks), rows);
  const Output packed(rows, blocks * 392, blocks * 392), plain(rows, k * 2, k * 2);
  const pncuda_weights from = weights.plain();
  const FirstBad first_bad;
  REQUIRE(pncuda_p12_pack(&from, packed.data(), packed.stride(), first_bad.get(), nullptr) == PNCUDA_OK);
  REQUIRE(first_bad.value() == -1);
  pncuda_weights view = weights.packed();
  REQUIRE(std::memcmp(packed.data(), view.data, size(rows * blocks * 392)) == 0);  // they are canonical
  view.data = packed.data();
  view.row_stride = packed.stride();
  const pncuda_decode_args args{sizeof args, &view, 0, rows, 0, k, plain.data(), plain.stride(), PNCUDA_BF16, 0};
  REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
  REQUIRE(plain.intact());
  REQUIRE(std::memcmp(plain.data(), from.data, size(rows * k * 2)) == 0);
}

// ---- Decoding ----

// Row n of the weights from a column on: bf16 and fp32 keep every bit.
void check_row(const Bf16Weights& weights, int64_t n, int64_t first, int64_t columns, int type, const uint8_t* got) {
  for (int64_t i = 0; i < columns; ++i) {
    const uint16_t weight = weights.row(n)[first + i];
    const std::uint32_t bits = load_bits(type, got, i);
    const float value = pn::bf16_to_float(weight);
    const std::uint32_t want = type == PNCUDA_BF16  ? weight
                               : type == PNCUDA_F32 ? std::uint32_t{weight} << 16
                                                    : pn::float_to_half(value);
    if (bits == want || (type == PNCUDA_F16 && same_element(type, bits, want))) continue;
    CAPTURE(n, first, columns, i, name_of(type), bits, want);
    REQUIRE(bits == want);
  }
}
pncuda_decode_args decode_args(const pncuda_weights& weights, int64_t first_row, int64_t rows, int64_t first_column,
                               int64_t columns, const Output& out, int type) {
  return {
      sizeof(pncuda_decode_args), &weights, first_row, rows, first_column, columns, out.data(), out.stride(), type, 0};
}

TEST_CASE("p12 decode: every first column of a block, every width", "[p12_decode]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(5);
  const Bf16Weights weights(hostile_blocks(random, 9), 3);
  for (const int type : bf16_types) {
    const pncuda_weights w = weights.as(type);
    for (int64_t first = 0; first < 256; ++first)
      for (const int64_t columns : {int64_t{1}, 1 + first % 17, 256 - first, 512 - first, int64_t{512}}) {
        if (left_out()) continue;
        const int out_type = element_types[(first + columns) % 3];
        const int64_t element = bytes_of(out_type);
        const Output out(2, columns * element, columns * element + element * (first % 5), element * (columns % 9));
        const auto args = decode_args(w, 1, 2, first, columns, out, out_type);
        REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
        REQUIRE(out.intact());
        for (int64_t n = 0; n < 2; ++n) check_row(weights, 1 + n, first, columns, out_type, out.row(n));
      }
    REQUIRE(weights.unchanged());
  }
}

TEST_CASE("p12 decode: whole matrices, canonical and any bytes, all types", "[p12_decode]") {
  const Restore restore;
  Random random(6);
  for (const int64_t rows : {1, 16, 35})
    for (const int64_t blocks : {1, 3, 9}) {
      if (left_out()) continue;
      use(blocks == 3 ? host_cuda::p100() : host_cuda::h100());
      for (int how = 0; how < 3; ++how) {
        const Bf16Weights weights(how == 0   ? gauss_blocks(random, rows * blocks)
                                  : how == 1 ? random_blocks(random, rows * blocks)
                                             : hostile_blocks(random, rows * blocks),
                                  rows, blocks % 2, how == 1 ? 8 : 0);
        for (const int type : bf16_types)
          for (const int out_type : element_types) {
            const pncuda_weights w = weights.as(type);
            const int64_t row = weights.k() * bytes_of(out_type);
            const Output out(rows, row, row + (blocks % 2) * 8);
            const auto args = decode_args(w, 0, rows, 0, weights.k(), out, out_type);
            CAPTURE(type, rows, blocks, how);
            REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
            REQUIRE(out.intact());
            for (int64_t n = 0; n < rows; ++n) check_row(weights, n, 0, weights.k(), out_type, out.row(n));
          }
        REQUIRE(weights.unchanged());
      }
    }
}

TEST_CASE("p12 decode: tiles at any place", "[p12_decode]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(7);
  const Bf16Weights weights(hostile_blocks(random, 40 * 11), 40, 2, 8);
  for (int turn = 0; turn < 120; ++turn) {
    if (left_out()) continue;
    const int type = bf16_types[turn % 2], out_type = element_types[turn % 3];
    const int64_t first_row = int64_t(random.below(41)), rows = int64_t(random.below(size(41 - first_row)));
    const int64_t first = int64_t(random.below(size(weights.k() + 1)));
    const int64_t columns = int64_t(random.below(size(weights.k() + 1 - first)));
    const int64_t element = bytes_of(out_type);
    const Output out(rows, columns * element, (columns + int64_t(random.below(3))) * element,
                     element * int64_t(random.below(8)));
    const pncuda_weights w = weights.as(type);
    const auto args = decode_args(w, first_row, rows, first, columns, out, out_type);
    CAPTURE(type, first_row, rows, first, columns);
    host_cuda::reset_calls();
    REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
    REQUIRE(host_cuda::calls().count("launch") == (rows == 0 || columns == 0 ? 0 : 1));
    REQUIRE(out.intact());
    for (int64_t n = 0; n < rows; ++n) check_row(weights, first_row + n, first, columns, out_type, out.row(n));
  }
}

// All 65536 bf16 patterns, listed or not.
TEST_CASE("p12 decode: every weight there is", "[p12_decode]") {
  const Restore restore;
  use(host_cuda::h100());
  std::vector<p12::Block392> blocks;
  for (int b = 0; b < 256; ++b) {  // sign and mantissa are the place, the exponent is b
    p12::Block392 block{};
    block.base = static_cast<uint8_t>(b);
    for (int i = 0; i < 256; ++i) block.sign_mantissa[i] = static_cast<uint8_t>(i);
    if (b % 3 == 1) {  // one of them by the list, from another base
      block.listed = 1;
      block.position[0] = static_cast<uint8_t>(b * 5);
      block.exponent[0] = static_cast<uint8_t>(b);
    }
    blocks.push_back(block);
  }
  const Bf16Weights weights(blocks, 4);
  for (const int type : bf16_types)
    for (const int out_type : element_types) {
      const int64_t row = weights.k() * bytes_of(out_type);
      const Output out(4, row, row);
      const pncuda_weights w = weights.as(type);
      const auto args = decode_args(w, 0, 4, 0, weights.k(), out, out_type);
      REQUIRE(pncuda_decode(&args, nullptr) == PNCUDA_OK);
      for (int64_t n = 0; n < 4; ++n) check_row(weights, n, 0, weights.k(), out_type, out.row(n));
    }
}

TEST_CASE("p12 get_rows: ids of both widths, twice, out of range", "[p12_decode]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(8);
  for (const int64_t blocks : {1, 5}) {
    const int64_t rows = 37;
    const Bf16Weights weights(hostile_blocks(random, rows * blocks), rows, 1, 8);
    for (const int type : bf16_types)
      for (const int out_type : element_types)
        for (const int id_bytes : {4, 8}) {
          if (left_out()) continue;
          check_get_rows(weights.as(type), id_bytes, out_type, [&](int64_t id, const uint8_t* row) {
            check_row(weights, id, 0, weights.k(), out_type, row);
          });
        }
    REQUIRE(weights.unchanged());
  }
}

// In the first order only: 16 million threads.
TEST_CASE("pack: more rows than a grid has", "[p12_pack]") {
  if (std::getenv("PN_TEST_EVERY") != nullptr && std::atoi(std::getenv("PN_TEST_EVERY")) > 1) return;
  const Restore restore;
  use(host_cuda::h100());
  host_cuda::set_host_threads(2);
  Random random(9);
  const int64_t rows = 65535 + 3;
  const Block one = between(random, 90, 105), two = between(random, 200, 215);
  std::vector<Block> blocks;
  for (int64_t n = 0; n < rows; ++n) blocks.push_back(n % 3 == 0 ? one : two);
  for (std::size_t i = 0; i < 256; ++i) blocks.back()[i] = weight_of(random, static_cast<int>(i));
  REQUIRE(check_pack(blocks, rows) == 1);
}

}  // namespace
