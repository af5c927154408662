// Proves that PN blocks are validated and decoded as the core does it: every code and scale, tiles that begin and end
// anywhere, every kind of result, look-ups.
#include "random_blocks.hpp"

using namespace testing;

TEMPLATE_TEST_CASE("dequantize_rows, validate_rows: 100,000 random blocks as the core takes them", "", pn::pn3t,
                   pn::pn4t) {
  const RandomRun run(TestType::name, 20260102, 50000);  // both types together
  Failures failures;
  Met met;
  for (std::uint64_t piece = 0; piece < run.pieces; ++piece) decode_piece<TestType>(run, piece, failures, met);
  INFO(failures.text());
  CHECK(failures.empty());
  CHECK(met.good > 0);
  CHECK(met.refused > 0);
}

TEMPLATE_TEST_CASE("dequantize_rows: every scale with every code, to every kind of element", "", pn::pn3t, pn::pn4t) {
  // 65,536 scales; the codes of a block run through all there are, in every place of a word.
  constexpr std::size_t n = TestType::block_size;
  std::vector<Block34> blocks(65536);
  for (unsigned d = 0; d < 65536; ++d) {
    std::uint8_t codes[n];
    for (std::size_t e = 0; e < n; ++e)
      codes[e] =
          static_cast<std::uint8_t>((e + e / TestType::codes_per_word + d) & static_cast<unsigned>(TestType::max_code));
    pn::store_block<TestType>(static_cast<std::uint16_t>(d), codes, blocks[d]);
  }
  std::vector<float> want(n * 65536);
  REQUIRE(pn::decode_row<TestType>(blocks.data(), want.size(), want.data()) == Status::ok);
  for_each_isa([&](Isa isa) {
    std::vector<std::uint8_t> out(4 * want.size());
    for (const Element element : elements) {
      REQUIRE(pn::cpu::dequantize_rows<TestType>(blocks.data(), 0, 1, 0, want.size(), out.data(), element, 0, isa) ==
              Status::ok);
      for (std::size_t e = 0; e < want.size(); ++e)
        if (!same_element(element, load_bits(out.data(), element, e), bits_as(element, want[e])))
          FAIL("scale " << std::hex << e / n << " element " << std::dec << e % n << " to " << name_of(element));
    }
  });
}

TEMPLATE_TEST_CASE("dequantize_rows: tiles that begin and end anywhere, at any address", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  Random random(41);
  for (int i = 0; i < 600; ++i) {
    const std::size_t blocks = 1 + random.below(4), rows = random.below(4), k = blocks * n;
    const std::size_t first = random.below(k + 1);
    const std::size_t columns = random.below(4) == 0 ? k - first : random.below(k - first + 1);
    // The last row ends where the tile's last block does, at the fence: a row need hold no more.
    const std::size_t used = columns == 0 ? 0 : (first + columns + n - 1) / n * 34;
    const Fenced in(rows, used, blocks * 34 + random.below(9), At::end, random.below(2) * random.below(64));
    std::vector<float> want(rows * k, 0.0f);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < used / 34; ++b) {
        const Block34 block = block_with<TestType>(random, random_scale(random, 0, 30));
        std::memcpy(in.row(r) + 34 * b, &block, 34);
        pn::decode_block<TestType>(block, &want[r * k + b * n]);
      }
    const Element element = elements[random.below(3)];
    const std::size_t bytes = columns * element_bytes(element);
    for_each_isa([&](Isa isa) {
      const Fenced out(rows, bytes, bytes + random.below(2) * random.below(66), random.coin() ? At::begin : At::end,
                       random.below(2) * random.below(64));
      REQUIRE(pn::cpu::dequantize_rows<TestType>(in.data(), in.stride(), rows, first, columns, out.data(), element,
                                                 out.stride(), isa) == Status::ok);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t e = 0; e < columns; ++e)
          if (load_bits(out.row(r), element, e) != bits_as(element, want[r * k + first + e]))
            FAIL("row " << r << ", column " << first + e << " to " << name_of(element));
      REQUIRE(out.intact());
    });
  }
}

TEMPLATE_TEST_CASE("validate_rows: the first fault of every kind, in every block and word", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  Random random(42);
  for (const std::size_t blocks : {1u, 2u, 3u, 9u, 40u})
    for (const std::size_t rows : {1u, 3u})
      for (int i = 0; i < 60; ++i) {
        const Fenced in(rows, 34 * blocks, 34 * blocks + random.below(2) * random.below(50), At::end);
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t b = 0; b < blocks; ++b) {
            const Block34 block = block_with<TestType>(random, random_scale(random, 0, 30));
            std::memcpy(in.row(r) + 34 * b, &block, 34);
          }
        for_each_isa([&](Isa isa) {
          Fault fault = {77, 77};
          CHECK(pn::cpu::validate_rows<TestType>(in.data(), in.stride(), rows, blocks * n, &fault, isa) == Status::ok);
          CHECK(fault.row == 77);
        });
        std::size_t bad_row = rows, bad_block = 0;
        for (int faults = random.between(1, 2); faults > 0; --faults) {
          const std::size_t r = random.below(rows), b = random.below(blocks);
          std::uint8_t* block = in.row(r) + 34 * b;
          if (TestType::bits == 4 || random.below(3) == 0)
            pn::detail::store_le16(block, static_cast<std::uint16_t>(0x7C00u | (random.next32() & 0x83FFu)));
          else  // bit 15 or 31 of a word
            block[2 + 4 * random.below(8) + (random.coin() ? 1 : 3)] |= 0x80u;
          if (r < bad_row || (r == bad_row && b < bad_block)) {
            bad_row = r;
            bad_block = b;
          }
        }
        std::vector<Block34> row(blocks);
        std::memcpy(row.data(), in.row(bad_row), 34 * blocks);
        std::size_t core_block = 0;
        const Status want = pn::validate_row<TestType>(row.data(), blocks * n, &core_block);
        REQUIRE(want != Status::ok);
        REQUIRE(core_block == bad_block);
        for_each_isa([&](Isa isa) {
          Fault fault = {77, 77};
          CHECK(pn::cpu::validate_rows<TestType>(in.data(), in.stride(), rows, blocks * n, &fault, isa) == want);
          CHECK(fault.row == bad_row);
          CHECK(fault.index == bad_block);
          CHECK(pn::cpu::validate_rows<TestType>(in.data(), in.stride(), rows, blocks * n, nullptr, isa) == want);
        });
      }
}

TEMPLATE_TEST_CASE("get_rows: rows by their ids, and an id beyond the matrix writes nothing", "", pn::pn3t, pn::pn4t) {
  constexpr std::size_t n = TestType::block_size;
  constexpr std::size_t blocks = 3, rows = 10, k = blocks * n;
  Random random(43);
  const Fenced in(rows, 34 * blocks, 34 * blocks + 5, At::end);
  std::vector<float> want(rows * k);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t b = 0; b < blocks; ++b) {
      const Block34 block = block_with<TestType>(random, random_scale(random, 0, 30));
      std::memcpy(in.row(r) + 34 * b, &block, 34);
      pn::decode_block<TestType>(block, &want[r * k + b * n]);
    }
  for (const Element element : elements)
    for (std::size_t count = 0; count < 6; ++count) {
      std::vector<std::int64_t> ids(count);
      for (auto& id : ids) id = random.between(0, rows - 1);  // one may occur twice
      const std::size_t bytes = k * element_bytes(element);
      for_each_isa([&](Isa isa) {
        const Fenced out(count, bytes, bytes + random.below(2) * random.below(66), At::end, random.below(64));
        Fault fault = {77, 77};
        REQUIRE(pn::cpu::get_rows<TestType>(in.data(), in.stride(), rows, k, ids.data(), count, out.data(), element,
                                            out.stride(), &fault, isa) == Status::ok);
        for (std::size_t i = 0; i < count; ++i)
          for (std::size_t e = 0; e < k; ++e)
            if (load_bits(out.row(i), element, e) != bits_as(element, want[static_cast<std::size_t>(ids[i]) * k + e]))
              FAIL("place " << i << ", column " << e);
        CHECK(out.intact());
        CHECK(fault.row == 77);

        for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{rows}, INT64_MIN, INT64_MAX}) {
          if (count == 0) continue;
          std::vector<std::int64_t> wrong = ids;
          const std::size_t place = random.below(count);
          wrong[place] = bad;
          const Fenced nothing(count, bytes, bytes, At::end);
          CHECK(pn::cpu::get_rows<TestType>(in.data(), in.stride(), rows, k, wrong.data(), count, nothing.data(),
                                            element, bytes, &fault, isa) == Status::out_of_range);
          CHECK(fault.row == place);
          CHECK(nothing.untouched());
          fault = {77, 77};
        }
      });
    }
}

TEMPLATE_TEST_CASE("PN codecs: lengths that are not multiples of the block are refused", "", pn::pn3t, pn::pn4t) {
  const std::vector<Block34> blocks(4);
  const std::int64_t id = 0;
  for_each_isa([&](Isa isa) {
    const std::size_t k = TestType::block_size + 8;
    const Fenced out(4096);
    CHECK(pn::cpu::validate_rows<TestType>(blocks.data(), 0, 1, k, nullptr, isa) == Status::bad_length);
    CHECK(pn::cpu::get_rows<TestType>(blocks.data(), 0, 1, k, &id, 1, out.data(), Element::f32, 0, nullptr, isa) ==
          Status::bad_length);
    CHECK(out.untouched());
  });
}
