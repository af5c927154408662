// Proves that BF16_P12 blocks are packed, scanned, validated and unpacked as the core does it: random weights, all
// 65,536 patterns, any bytes, rows at any address and stride, tiles, look-ups, every broken rule.
#include "random_blocks.hpp"

using namespace testing;

namespace {

void store_weights(std::uint8_t* row, std::size_t block, const Weights& weights) {
  for (std::size_t i = 0; i < 256; ++i) store_bits(row, Element::bf16, 256 * block + i, weights[i]);
}

std::uint32_t bits_from_bf16(Element element, std::uint16_t weight) { return unpacked_as(element, {weight})[0]; }
bool same_unpacked(Element element, std::uint32_t a, std::uint32_t b) {
  return element == Element::f16 ? same_half(a, b) : a == b;
}

}  // namespace

TEST_CASE("BF16_P12: 100,000 random blocks pack, scan, validate and unpack as the core does it") {
  const RandomRun run("BF16_P12", 20260103, 100000);
  Failures failures;
  Met met;
  for (std::uint64_t piece = 0; piece < run.pieces; ++piece) p12_piece(run, piece, failures, met);
  INFO(failures.text());
  CHECK(failures.empty());
  CHECK(met.good > 0);
  CHECK(met.refused > 0);
  CHECK(met.special > 0);  // invalid blocks
}

TEST_CASE("BF16_P12: all 65,536 patterns come back, and reach every kind of element") {
  // 16 exponents to a block, so that each block fits: 256 blocks.
  std::vector<std::uint16_t> weights;
  for (unsigned window = 0; window < 16; ++window)
    for (unsigned sm = 0; sm < 256; ++sm)
      for (unsigned code = 0; code < 16; ++code) weights.push_back(weight_of(static_cast<int>(16 * window + code), sm));
  std::vector<std::uint16_t> sorted = weights;
  std::sort(sorted.begin(), sorted.end());
  REQUIRE(std::unique(sorted.begin(), sorted.end()) == sorted.end());
  REQUIRE(weights.size() == 65536);
  std::vector<p12::Block392> want(256);
  REQUIRE(p12::pack_row(weights.data(), weights.size(), want.data()) == Status::ok);
  for_each_isa([&](Isa isa) {
    std::vector<p12::Block392> blocks(256);
    REQUIRE(p12::cpu::pack_rows(weights.data(), 0, 1, 65536, blocks.data(), 0, nullptr, nullptr, isa) == Status::ok);
    CHECK(std::memcmp(blocks.data(), want.data(), 392 * 256) == 0);
    CHECK(p12::cpu::validate_rows(blocks.data(), 0, 1, 65536, nullptr, isa) == Status::ok);
    for (const Stores stores : {Stores::cached, Stores::streaming})
      for (const Element element : elements) {
        const Fenced out(65536 * element_bytes(element));
        REQUIRE(p12::cpu::unpack_rows(want.data(), 0, 1, 65536, out.data(), element, 0, stores, isa) == Status::ok);
        for (std::size_t e = 0; e < 65536; ++e)
          if (!same_unpacked(element, load_bits(out.data(), element, e), bits_from_bf16(element, weights[e])))
            FAIL("pattern " << std::hex << weights[e] << " to " << name_of(element));
      }
  });
}

TEST_CASE("BF16_P12: every place can be listed, alone and beside others, and comes back") {
  Random random(51);
  for (int place = 0; place < 256; ++place)
    for (int more = 0; more < 4; ++more) {
      std::vector<int> places = {place};
      for (int i = 0; i < more; ++i) places.push_back(random.between(0, 255));
      const Weights weights = weights_with_outliers(random, places);
      p12::Block392 want;
      std::memset(&want, 0x11, sizeof want);
      const Status fits = p12::pack_block(weights.data(), want);
      for_each_isa([&](Isa isa) {
        p12::Block392 got;
        std::memset(&got, 0x11, sizeof got);
        if (p12::cpu::pack_rows(weights.data(), 0, 1, 256, &got, 0, nullptr, nullptr, isa) != fits)
          FAIL("place " << place << ": another status");
        if (std::memcmp(&got, &want, sizeof got) != 0) FAIL("place " << place << ": other bytes");
        if (fits != Status::ok) return;
        Weights back;
        REQUIRE(p12::cpu::unpack_rows(&want, 0, 1, 256, back.data(), Element::bf16, 0, Stores::cached, isa) ==
                Status::ok);
        if (back != weights) FAIL("place " << place << ": unpacks otherwise");
      });
    }
}

TEST_CASE("pack_rows, scan_rows: any address and stride, what does not fit is left alone and told, tallies go on") {
  Random random(52);
  for (int i = 0; i < 250; ++i) {
    const std::size_t blocks = random.below(4), rows = random.below(6), k = 256 * blocks;
    const std::size_t gap = random.below(2) * random.below(67);
    const Fenced in(rows, 2 * k, 2 * k + gap, At::end, random.below(64));
    const p12::RowScan before = {7, {1, 2, 0, 1}, 3, random.between(0, 4)};
    p12::RowScan want_tally = before;
    std::vector<p12::Block392> want(rows * blocks);
    Fault want_fault = {77, 77};
    Status want_status = Status::ok;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < blocks; ++b) {
        const Weights weights = random.coin() ? weights_between(random, 110, 125) : random_weights(random);
        store_weights(in.row(r), b, weights);
        p12::Block392& block = want[r * blocks + b];
        std::memset(&block, Fenced::canary, sizeof block);
        p12::BlockScan scan = {};
        const Status status = p12::pack_block(weights.data(), block, &scan);
        p12::add_block(scan, want_tally);
        if (status == Status::ok || want_status != Status::ok) continue;
        want_status = status;
        want_fault = {r, b};
      }
    for_each_isa([&](Isa isa) {
      const Fenced out(rows, 392 * blocks, 392 * blocks + random.below(2) * random.below(67), At::begin,
                       random.below(64));
      p12::RowScan tally = before, scan = before;
      Fault fault = {77, 77};
      CHECK(p12::cpu::pack_rows(in.data(), in.stride(), rows, k, out.data(), out.stride(), &tally, &fault, isa) ==
            want_status);
      CHECK(fault.row == want_fault.row);
      CHECK(fault.index == want_fault.index);
      CHECK(same_tally(tally, want_tally));
      for (std::size_t r = 0; r < rows; ++r)
        if (blocks > 0 && std::memcmp(out.row(r), &want[r * blocks], 392 * blocks) != 0) FAIL("row " << r);
      CHECK(out.intact());
      CHECK(in.intact());
      CHECK(p12::cpu::pack_rows(in.data(), in.stride(), rows, k, out.data(), out.stride(), nullptr, nullptr, isa) ==
            want_status);
      CHECK(p12::cpu::scan_rows(in.data(), in.stride(), rows, k, scan, isa) == Status::ok);
      CHECK(same_tally(scan, want_tally));
    });
  }
}

TEST_CASE("unpack_rows: any address and stride, cached and streaming") {
  Random random(53);
  for (int i = 0; i < 300; ++i) {
    const std::size_t blocks = random.below(4), rows = random.below(5), k = 256 * blocks;
    const Fenced in(rows, 392 * blocks, 392 * blocks + random.below(2) * random.below(67), At::end, random.below(64));
    std::vector<std::uint16_t> want(rows * k);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < blocks; ++b) {
        const p12::Block392 block = packed_with(random, random.between(0, 3));
        std::memcpy(in.row(r) + 392 * b, &block, 392);
        p12::unpack_block(block, &want[r * k + 256 * b]);
      }
    const Element element = elements[random.below(3)];
    const Stores stores = random.coin() ? Stores::streaming : Stores::cached;
    const std::size_t bytes = k * element_bytes(element);
    // Aligned to 64 with and without a stride that keeps it so, or anywhere.
    const std::size_t shift = random.coin() ? 0 : random.below(64);
    const std::size_t gap = random.below(3) == 0 ? 64 : random.below(2) * random.below(67);
    for_each_isa([&](Isa isa) {
      const Fenced out(rows, bytes, bytes + gap, random.coin() ? At::begin : At::end, shift);
      REQUIRE(p12::cpu::unpack_rows(in.data(), in.stride(), rows, k, out.data(), element, out.stride(), stores, isa) ==
              Status::ok);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t e = 0; e < k; ++e)
          if (!same_unpacked(element, load_bits(out.row(r), element, e), bits_from_bf16(element, want[r * k + e])))
            FAIL("row " << r << " column " << e << " to " << name_of(element));
      REQUIRE(out.intact());
    });
  }
}

TEST_CASE("unpack_tile: tiles that begin and end anywhere, at any address") {
  Random random(54);
  for (int i = 0; i < 400; ++i) {
    const std::size_t blocks = 1 + random.below(3), rows = random.below(4), k = 256 * blocks;
    const std::size_t first = random.below(k + 1);
    const std::size_t columns = random.below(4) == 0 ? k - first : random.below(k - first + 1);
    const std::size_t used = columns == 0 ? 0 : (first + columns + 255) / 256 * 392;
    const Fenced in(rows, used, 392 * blocks + random.below(9), At::end, random.below(2) * random.below(64));
    std::vector<std::uint16_t> want(rows * k);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < used / 392; ++b) {
        const p12::Block392 block = packed_with(random, random.between(0, 3));
        std::memcpy(in.row(r) + 392 * b, &block, 392);
        p12::unpack_block(block, &want[r * k + 256 * b]);
      }
    const Element element = elements[random.below(3)];
    const std::size_t bytes = columns * element_bytes(element);
    for_each_isa([&](Isa isa) {
      const Fenced out(rows, bytes, bytes + random.below(2) * random.below(66), random.coin() ? At::begin : At::end,
                       random.below(2) * random.below(64));
      REQUIRE(p12::cpu::unpack_tile(in.data(), in.stride(), rows, first, columns, out.data(), element, out.stride(),
                                    isa) == Status::ok);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t e = 0; e < columns; ++e)
          if (!same_unpacked(element, load_bits(out.row(r), element, e),
                             bits_from_bf16(element, want[r * k + first + e])))
            FAIL("row " << r << " column " << first + e << " to " << name_of(element));
      REQUIRE(out.intact());
    });
  }
}

TEST_CASE("validate_rows of BF16_P12: the first broken rule, its row and its block") {
  Random random(55);
  std::vector<bool> seen(64);
  for (int i = 0; i < 1200; ++i) {
    const std::size_t blocks = 1 + random.below(3), rows = 1 + random.below(4);
    const Fenced in(rows, 392 * blocks, 392 * blocks + random.below(2) * random.below(50), At::end);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < blocks; ++b) {
        Bytes bytes = bytes_of(packed_with(random, random.between(0, 3)));
        if (random.below(rows * blocks * 4) == 0) {  // weights that another base than the lowest reaches
          const int low = random.between(1, 240);
          REQUIRE(second::pack(weights_between(random, low, low + 8), bytes));
          --bytes[0];
          for (std::size_t at = 8; at < 136; ++at) bytes[at] = static_cast<std::uint8_t>(bytes[at] + 0x11);
        }
        if (random.below(rows * blocks) == 0) {
          change(random, bytes);
          if (random.below(4) == 0) bytes[0] = static_cast<std::uint8_t>(random.between(238, 255));
          if (random.below(4) == 0) bytes[1] = static_cast<std::uint8_t>(random.between(2, 5));
        }
        std::memcpy(in.row(r) + 392 * b, bytes.data(), 392);
      }
    Status want = Status::ok;
    Fault want_fault = {77, 77};
    for (std::size_t r = 0; r < rows && want == Status::ok; ++r) {
      std::vector<p12::Block392> row(blocks);
      std::memcpy(row.data(), in.row(r), 392 * blocks);
      want = p12::validate_row(row.data(), 256 * blocks, &want_fault.index);
      if (want != Status::ok) want_fault.row = r;
    }
    seen[static_cast<std::size_t>(want)] = true;
    for_each_isa([&](Isa isa) {
      Fault fault = {77, 77};
      CHECK(p12::cpu::validate_rows(in.data(), in.stride(), rows, 256 * blocks, &fault, isa) == want);
      CHECK(fault.row == want_fault.row);
      CHECK(fault.index == want_fault.index);
      CHECK(p12::cpu::validate_rows(in.data(), in.stride(), rows, 256 * blocks, nullptr, isa) == want);
    });
  }
  CHECK(seen[0]);
  for (auto rule = static_cast<std::size_t>(Status::base_out_of_range);
       rule <= static_cast<std::size_t>(Status::base_not_canonical); ++rule) {
    INFO("rule " << rule);
    CHECK(seen[rule]);
  }
}

TEST_CASE("get_rows of BF16_P12: rows by their ids, and an id beyond the matrix writes nothing") {
  constexpr std::size_t blocks = 2, rows = 9, k = 256 * blocks;
  Random random(56);
  const Fenced in(rows, 392 * blocks, 392 * blocks + 3, At::end);
  std::vector<std::uint16_t> want(rows * k);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t b = 0; b < blocks; ++b) {
      const p12::Block392 block = packed_with(random, random.between(0, 3));
      std::memcpy(in.row(r) + 392 * b, &block, 392);
      p12::unpack_block(block, &want[r * k + 256 * b]);
    }
  for (const Element element : elements)
    for (std::size_t count = 0; count < 6; ++count) {
      std::vector<std::int64_t> ids(count);
      for (auto& id : ids) id = random.between(0, rows - 1);
      const std::size_t bytes = k * element_bytes(element);
      for_each_isa([&](Isa isa) {
        const Fenced out(count, bytes, bytes + random.below(2) * random.below(66), At::end, random.below(64));
        Fault fault = {77, 77};
        REQUIRE(p12::cpu::get_rows(in.data(), in.stride(), rows, k, ids.data(), count, out.data(), element,
                                   out.stride(), &fault, isa) == Status::ok);
        for (std::size_t i = 0; i < count; ++i)
          for (std::size_t e = 0; e < k; ++e)
            if (!same_unpacked(element, load_bits(out.row(i), element, e),
                               bits_from_bf16(element, want[static_cast<std::size_t>(ids[i]) * k + e])))
              FAIL("place " << i << ", column " << e);
        CHECK(out.intact());
        CHECK(fault.row == 77);
        for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{rows}, INT64_MIN, INT64_MAX}) {
          if (count == 0) continue;
          std::vector<std::int64_t> wrong = ids;
          const std::size_t place = random.below(count);
          wrong[place] = bad;
          const Fenced nothing(count, bytes, bytes, At::end);
          CHECK(p12::cpu::get_rows(in.data(), in.stride(), rows, k, wrong.data(), count, nothing.data(), element, bytes,
                                   &fault, isa) == Status::out_of_range);
          CHECK(fault.row == place);
          CHECK(nothing.untouched());
          fault = {77, 77};
        }
      });
    }
}

TEST_CASE("BF16_P12 codecs: lengths that are not multiples of 256 are refused") {
  const std::vector<std::uint16_t> weights(512, 0x3F80);
  const std::vector<p12::Block392> blocks(2);
  const std::int64_t id = 0;
  for_each_isa([&](Isa isa) {
    for (const std::size_t k : {1u, 128u, 255u, 257u}) {
      const Fenced out(4096);
      p12::RowScan tally;
      const Status bad = Status::bad_length;
      CHECK(p12::cpu::pack_rows(weights.data(), 0, 1, k, out.data(), 0, &tally, nullptr, isa) == bad);
      CHECK(p12::cpu::scan_rows(weights.data(), 0, 1, k, tally, isa) == bad);
      CHECK(p12::cpu::unpack_rows(blocks.data(), 0, 1, k, out.data(), Element::f32, 0, Stores::cached, isa) == bad);
      CHECK(p12::cpu::validate_rows(blocks.data(), 0, 1, k, nullptr, isa) == bad);
      CHECK(p12::cpu::get_rows(blocks.data(), 0, 1, k, &id, 1, out.data(), Element::f32, 0, nullptr, isa) == bad);
      CHECK(tally.blocks == 0);
      CHECK(out.untouched());
    }
  });
}
