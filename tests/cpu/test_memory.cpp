// Proves that nothing is read or written beyond the rows given: every row of every argument ends at (or begins behind)
// a page that may not be touched, and the results are those that ordinary memory gives.
#include "testing.hpp"

using namespace testing;

namespace {

// Rows that each have pages of their own, with a page between them that may not be touched.
class Islands {
 public:
  Islands(std::size_t rows, std::size_t row_bytes, At at) : rows_(rows), row_bytes_(row_bytes) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    inside_ = (row_bytes + page - 1) / page * page;
    stride_ = inside_ + page;
    mapped_bytes_ = rows * stride_ + page;
    void* mapped = ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    mapped_ = static_cast<std::uint8_t*>(mapped);
    for (std::size_t n = 0; n < rows && inside_ > 0; ++n) {
      std::uint8_t* island = mapped_ + page + n * stride_;
      if (::mprotect(island, inside_, PROT_READ | PROT_WRITE) != 0) std::abort();
      std::memset(island, canary, inside_);
    }
    first_ = mapped_ + page + (at == At::end ? inside_ - row_bytes : 0);
  }
  // Rows that hold what lies in `from`, row behind row.
  Islands(std::size_t rows, std::size_t row_bytes, At at, const void* from) : Islands(rows, row_bytes, at) {
    for (std::size_t n = 0; n < rows && row_bytes > 0; ++n)
      std::memcpy(row(n), static_cast<const std::uint8_t*>(from) + n * row_bytes, row_bytes);
  }
  ~Islands() { ::munmap(mapped_, mapped_bytes_); }
  Islands(const Islands&) = delete;
  Islands& operator=(const Islands&) = delete;

  std::uint8_t* data() const { return first_; }
  std::uint8_t* row(std::size_t n) const { return first_ + n * stride_; }
  float* floats() const { return reinterpret_cast<float*>(first_); }
  std::size_t stride() const { return stride_; }

  // Whether the rows hold these bytes, and what is beside them on their pages the canary.
  bool hold(const void* bytes) const {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    for (std::size_t n = 0; n < rows_; ++n) {
      if (row_bytes_ > 0 &&
          std::memcmp(row(n), static_cast<const std::uint8_t*>(bytes) + n * row_bytes_, row_bytes_) != 0)
        return false;
      const std::uint8_t* island = mapped_ + page + n * stride_;
      for (const std::uint8_t* at = island; at < island + inside_; ++at)
        if ((at < row(n) || at >= row(n) + row_bytes_) && *at != canary) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint8_t canary = 0xC9;
  std::size_t rows_, row_bytes_, inside_, stride_, mapped_bytes_;
  std::uint8_t* mapped_;
  std::uint8_t* first_;
};

std::vector<std::uint8_t> random_bytes(Random& random, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = random.byte();
  return bytes;
}

// Every place of the arguments and of the results, every instruction set, several numbers of rows and blocks.
template <class Body>
void everywhere(Body&& body) {
  for (const std::size_t blocks : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u})
    for (const std::size_t rows : {1u, 2u, 7u})
      for (const At in : {At::begin, At::end})
        for (const At out : {At::begin, At::end}) {
          INFO(blocks << " blocks, " << rows << " rows, arguments at the " << (in == At::end ? "end" : "beginning")
                      << " of pages, results at the " << (out == At::end ? "end" : "beginning"));
          for_each_isa([&](Isa isa) { body(blocks, rows, in, out, isa); });
        }
}

template <class T>
std::vector<std::uint8_t> random_blocks(Random& random, std::size_t count) {
  std::vector<std::uint8_t> bytes(34 * count);
  for (std::size_t b = 0; b < count; ++b) {
    const Block34 block = block_with<T>(random, random_scale(random, 0, 30));
    std::memcpy(&bytes[34 * b], &block, 34);
  }
  return bytes;
}

std::vector<std::uint8_t> random_p12(Random& random, std::size_t count) {
  std::vector<std::uint8_t> bytes(392 * count);
  for (std::size_t b = 0; b < count; ++b) {
    const p12::Block392 block = packed_with(random, random.between(0, 3));
    std::memcpy(&bytes[392 * b], &block, 392);
  }
  return bytes;
}

// What the core unpacks blocks of BF16_P12 to.
std::vector<std::uint16_t> unpacked(const std::vector<std::uint8_t>& packed) {
  std::vector<std::uint16_t> weights(packed.size() / 392 * 256);
  for (std::size_t b = 0; b < packed.size() / 392; ++b) {
    p12::Block392 block;
    std::memcpy(&block, &packed[392 * b], 392);
    p12::unpack_block(block, &weights[256 * b]);
  }
  return weights;
}

}  // namespace

TEMPLATE_TEST_CASE("memory: quantize_rows, validate_rows, dequantize_rows, get_rows of PN", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t n = T::block_size;
  Random random(81);
  everywhere([&](std::size_t blocks, std::size_t rows, At in_at, At out_at, Isa isa) {
    const std::size_t k = blocks * n;
    for (const Element element : elements) {
      const std::size_t bytes = element_bytes(element);
      std::vector<std::uint8_t> weights(rows * k * bytes);
      for (std::size_t e = 0; e < rows * k; ++e)
        store_bits(weights.data(), element, e, bits_as(element, static_cast<float>(random.gauss())));
      std::vector<double> g(k);
      for (double& column : g) column = random.uniform();
      const Islands in(rows, k * bytes, in_at, weights.data()), importance(1, 8 * k, in_at, g.data());
      for (const bool weighted : {false, true}) {
        std::vector<std::uint8_t> want(rows * blocks * 34);
        REQUIRE(pn::cpu::quantize_rows<T>(weights.data(), element, k * bytes, rows, k, weighted ? g.data() : nullptr,
                                          want.data(), blocks * 34, nullptr, isa) == Status::ok);
        const Islands out(rows, blocks * 34, out_at);
        const auto* fenced = weighted ? reinterpret_cast<const double*>(importance.data()) : nullptr;
        REQUIRE(pn::cpu::quantize_rows<T>(in.data(), element, in.stride(), rows, k, fenced, out.data(), out.stride(),
                                          nullptr, isa) == Status::ok);
        REQUIRE(out.hold(want.data()));
      }
    }

    const std::vector<std::uint8_t> packed = random_blocks<T>(random, rows * blocks);
    const Islands in(rows, blocks * 34, in_at, packed.data());
    REQUIRE(pn::cpu::validate_rows<T>(in.data(), in.stride(), rows, k, nullptr, isa) == Status::ok);
    in.row(rows - 1)[blocks * 34 - 33] |= 0x7C;  // the last block's scale
    Fault fault = {77, 77};
    REQUIRE(pn::cpu::validate_rows<T>(in.data(), in.stride(), rows, k, &fault, isa) == Status::scale_not_finite);
    REQUIRE((fault.row == rows - 1 && fault.index == blocks - 1));
    std::memcpy(in.row(rows - 1), &packed[(rows - 1) * blocks * 34], blocks * 34);

    for (const Element element : elements) {
      const std::size_t bytes = element_bytes(element);
      const std::size_t tiles[][2] = {{0, k}, {1, k - 1}, {0, k - 1}, {k - 1, 1}, {n - 1, k - n + 1}};
      for (const auto& tile : tiles) {
        std::vector<std::uint8_t> want(rows * tile[1] * bytes);
        REQUIRE(pn::cpu::dequantize_rows<T>(packed.data(), blocks * 34, rows, tile[0], tile[1], want.data(), element,
                                            tile[1] * bytes, isa) == Status::ok);
        const Islands out(rows, tile[1] * bytes, out_at);
        REQUIRE(pn::cpu::dequantize_rows<T>(in.data(), in.stride(), rows, tile[0], tile[1], out.data(), element,
                                            out.stride(), isa) == Status::ok);
        REQUIRE(out.hold(want.data()));
      }
      std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(rows) - 1, 0};
      const Islands ids(1, 16, in_at, numbers.data()), out(2, k * bytes, out_at);
      std::vector<std::uint8_t> want(2 * k * bytes);
      REQUIRE(pn::cpu::get_rows<T>(packed.data(), blocks * 34, rows, k, numbers.data(), 2, want.data(), element,
                                   k * bytes, nullptr, isa) == Status::ok);
      REQUIRE(pn::cpu::get_rows<T>(in.data(), in.stride(), rows, k, reinterpret_cast<const std::int64_t*>(ids.data()),
                                   2, out.data(), element, out.stride(), nullptr, isa) == Status::ok);
      REQUIRE(out.hold(want.data()));
    }
  });
}

TEMPLATE_TEST_CASE("memory: prepare_activations and multiply of PN", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  Random random(82);
  everywhere([&](std::size_t blocks, std::size_t rows, At in_at, At out_at, Isa isa) {
    const std::size_t k = blocks * T::block_size;
    const std::vector<std::uint8_t> packed = random_blocks<T>(random, rows * blocks);
    const Islands in(rows, blocks * 34, in_at, packed.data());
    for (const Activations kind : activation_kinds) {
      if (kind == Activations::q8_0 && k % 32 != 0) continue;
      for (const std::size_t tokens : {1u, 2u, 3u, 5u, 16u}) {
        const std::vector<float> x = random_activations(random, tokens * k);
        const Islands x_rows(tokens, 4 * k, in_at, x.data());
        const Prepared<T> prepared(kind, x.data(), 4 * k, tokens, k, isa);
        const Prepared<T> from_islands(kind, x_rows.floats(), x_rows.stride(), tokens, k, isa);
        std::vector<float> want(tokens * rows);
        REQUIRE(pn::cpu::multiply<T>(packed.data(), blocks * 34, rows, k, prepared.data(), want.data(), 4 * rows) ==
                Status::ok);
        const Islands y(tokens, 4 * rows, out_at);
        REQUIRE(pn::cpu::multiply<T>(in.data(), in.stride(), rows, k, from_islands.data(), y.floats(), y.stride()) ==
                Status::ok);
        REQUIRE(y.hold(want.data()));
      }
    }
  });
}

TEST_CASE("memory: pack_rows, scan_rows, validate_rows, unpack_rows, unpack_tile, get_rows of BF16_P12") {
  Random random(83);
  everywhere([&](std::size_t blocks, std::size_t rows, At in_at, At out_at, Isa isa) {
    if (blocks > 4) return;
    const std::size_t k = 256 * blocks;
    const std::vector<std::uint8_t> packed = random_p12(random, rows * blocks);
    const std::vector<std::uint16_t> weights = unpacked(packed);
    const Islands in(rows, 2 * k, in_at, weights.data()), blocks_in(rows, 392 * blocks, in_at, packed.data()),
        out(rows, 392 * blocks, out_at);
    REQUIRE(p12::cpu::pack_rows(in.data(), in.stride(), rows, k, out.data(), out.stride(), nullptr, nullptr, isa) ==
            Status::ok);
    REQUIRE(out.hold(packed.data()));
    p12::RowScan tally;
    REQUIRE(p12::cpu::scan_rows(in.data(), in.stride(), rows, k, tally, isa) == Status::ok);
    REQUIRE(tally.blocks == rows * blocks);
    REQUIRE(p12::cpu::validate_rows(blocks_in.data(), blocks_in.stride(), rows, k, nullptr, isa) == Status::ok);

    for (const Element element : elements) {
      const std::size_t bytes = element_bytes(element);
      for (const Stores stores : {Stores::cached, Stores::streaming}) {
        std::vector<std::uint8_t> want(rows * k * bytes);
        REQUIRE(p12::cpu::unpack_rows(packed.data(), 392 * blocks, rows, k, want.data(), element, k * bytes,
                                      Stores::cached, isa) == Status::ok);
        const Islands all(rows, k * bytes, out_at);
        REQUIRE(p12::cpu::unpack_rows(blocks_in.data(), blocks_in.stride(), rows, k, all.data(), element, all.stride(),
                                      stores, isa) == Status::ok);
        REQUIRE(all.hold(want.data()));
      }
      const std::size_t tiles[][2] = {{0, k}, {1, k - 1}, {0, k - 1}, {k - 1, 1}, {255, k - 255}};
      for (const auto& tile : tiles) {
        std::vector<std::uint8_t> want(rows * tile[1] * bytes);
        REQUIRE(p12::cpu::unpack_tile(packed.data(), 392 * blocks, rows, tile[0], tile[1], want.data(), element,
                                      tile[1] * bytes, isa) == Status::ok);
        const Islands part(rows, tile[1] * bytes, out_at);
        REQUIRE(p12::cpu::unpack_tile(blocks_in.data(), blocks_in.stride(), rows, tile[0], tile[1], part.data(),
                                      element, part.stride(), isa) == Status::ok);
        REQUIRE(part.hold(want.data()));
      }
      std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(rows) - 1, 0};
      const Islands ids(1, 16, in_at, numbers.data()), looked_up(2, k * bytes, out_at);
      std::vector<std::uint8_t> want(2 * k * bytes);
      REQUIRE(p12::cpu::get_rows(packed.data(), 392 * blocks, rows, k, numbers.data(), 2, want.data(), element,
                                 k * bytes, nullptr, isa) == Status::ok);
      REQUIRE(p12::cpu::get_rows(blocks_in.data(), blocks_in.stride(), rows, k,
                                 reinterpret_cast<const std::int64_t*>(ids.data()), 2, looked_up.data(), element,
                                 looked_up.stride(), nullptr, isa) == Status::ok);
      REQUIRE(looked_up.hold(want.data()));
    }
  });
}

TEST_CASE("memory: prepare_activations and the multiplies of BF16_P12 and BF16") {
  Random random(84);
  everywhere([&](std::size_t blocks, std::size_t rows, At in_at, At out_at, Isa isa) {
    if (blocks > 4) return;
    const std::size_t k = 256 * blocks;
    const std::vector<std::uint8_t> packed = random_p12(random, rows * blocks);
    const std::vector<std::uint16_t> weights = unpacked(packed);
    const Islands in(rows, 2 * k, in_at, weights.data()), blocks_in(rows, 392 * blocks, in_at, packed.data());
    for (const std::size_t tokens : {1u, 2u, 3u, 5u, 16u})
      for (const Order order : {Order::fast, Order::portable}) {
        const std::vector<float> x = random_activations(random, tokens * k);
        const Islands x_rows(tokens, 4 * k, in_at, x.data()), y(tokens, 4 * rows, out_at),
            y_bf16(tokens, 4 * rows, out_at), y_proof(tokens, 4 * rows, out_at),
            workspace(1, p12::cpu::proof_workspace_bytes(k), in_at);
        const PreparedP12 prepared(x.data(), 4 * k, tokens, k, isa);
        const PreparedP12 from_islands(x_rows.floats(), x_rows.stride(), tokens, k, isa);
        std::vector<float> want(tokens * rows), want_proof(tokens * rows);
        REQUIRE(p12::cpu::multiply(packed.data(), 392 * blocks, rows, k, prepared.data(), want.data(), 4 * rows,
                                   order) == Status::ok);
        REQUIRE(p12::cpu::multiply(blocks_in.data(), blocks_in.stride(), rows, k, from_islands.data(), y.floats(),
                                   y.stride(), order) == Status::ok);
        REQUIRE(p12::cpu::multiply_bf16(in.data(), in.stride(), rows, k, from_islands.data(), y_bf16.floats(),
                                        y_bf16.stride(), order) == Status::ok);
        REQUIRE(p12::cpu::multiply_unpacked(blocks_in.data(), blocks_in.stride(), rows, k, from_islands.data(),
                                            y_proof.floats(), y_proof.stride(), workspace.data(), order) == Status::ok);
        for (std::size_t m = 0; m < tokens; ++m)
          for (std::size_t r = 0; r < rows; ++r) {  // infinite weights may be among them: NaN for NaN
            const float expect = want[m * rows + r];
            REQUIRE(same_number(float_of(pn::detail::load_le32(y.row(m) + 4 * r)), expect));
            REQUIRE(same_number(float_of(pn::detail::load_le32(y_bf16.row(m) + 4 * r)), expect));
            REQUIRE(same_number(float_of(pn::detail::load_le32(y_proof.row(m) + 4 * r)), expect));
            want[m * rows + r] = float_of(pn::detail::load_le32(y.row(m) + 4 * r));
          }
        REQUIRE(y.hold(want.data()));
      }
  });
}

TEST_CASE("memory: low_rank_down and low_rank_up") {
  Random random(85);
  for (const std::size_t k : {1u, 7u, 8u, 15u, 33u, 64u, 257u})
    for (const std::size_t rank : {1u, 3u, 8u, 17u, 64u})
      for (const Element element : {Element::f32, Element::bf16})
        for (const At at : {At::begin, At::end}) {
          const std::size_t rows = 5, tokens = 3, bytes = element_bytes(element);
          std::vector<std::uint8_t> a(rank * k * bytes), b(rows * rank * bytes);
          for (std::size_t e = 0; e < rank * k; ++e)
            store_bits(a.data(), element, e, bits_as(element, static_cast<float>(random.gauss())));
          for (std::size_t e = 0; e < rows * rank; ++e)
            store_bits(b.data(), element, e, bits_as(element, static_cast<float>(random.gauss())));
          const std::vector<float> x = random_activations(random, tokens * k);
          const Islands a_rows(rank, k * bytes, at, a.data()), b_rows(rows, rank * bytes, at, b.data()),
              x_rows(tokens, 4 * k, at, x.data());
          const pn::cpu::LowRank plain = {a.data(), k * bytes, b.data(), rank * bytes, rank, element, 0.5f};
          const pn::cpu::LowRank fenced = {a_rows.data(), a_rows.stride(), b_rows.data(), b_rows.stride(),
                                           rank,          element,         0.5f};
          const bool enabled[] = {true, false, true};
          const Islands enabled_row(1, sizeof enabled, at, enabled);
          for_each_isa([&](Isa isa) {
            std::vector<float> t(tokens * rank), y(tokens * rows, 1.0f);
            const Islands t_rows(tokens, 4 * rank, at), y_rows(tokens, 4 * rows, at, y.data());
            REQUIRE(pn::cpu::low_rank_down(plain, k, x.data(), 4 * k, tokens, t.data(), 4 * rank, isa) == Status::ok);
            REQUIRE(pn::cpu::low_rank_down(fenced, k, x_rows.floats(), x_rows.stride(), tokens, t_rows.floats(),
                                           t_rows.stride(), isa) == Status::ok);
            REQUIRE(t_rows.hold(t.data()));
            REQUIRE(pn::cpu::low_rank_up(plain, 0, rows, t.data(), 4 * rank, tokens, enabled, y.data(), 4 * rows,
                                         isa) == Status::ok);
            REQUIRE(pn::cpu::low_rank_up(fenced, 0, rows, t_rows.floats(), t_rows.stride(), tokens,
                                         reinterpret_cast<const bool*>(enabled_row.data()), y_rows.floats(),
                                         y_rows.stride(), isa) == Status::ok);
            REQUIRE(y_rows.hold(y.data()));
          });
        }
}

TEST_CASE("memory: any bytes are safe as blocks") {
  Random random(86);
  for (int i = 0; i < 100; ++i) {
    const std::size_t rows = 1 + random.below(4), tokens = 1 + random.below(16);
    const At at = random.coin() ? At::end : At::begin;
    const auto multiply_pn = [&](auto type) {
      using T = decltype(type);
      const std::size_t blocks = 2 * (1 + random.below(5)), k = blocks * T::block_size;
      const std::vector<float> x = random_activations(random, tokens * k);
      const Islands in(rows, 34 * blocks, at, random_bytes(random, rows * 34 * blocks).data());
      for_each_isa([&](Isa isa) {
        for (const Activations kind : activation_kinds) {
          const Prepared<T> prepared(kind, x.data(), 4 * k, tokens, k, isa);
          const Fenced y(tokens, 4 * rows, 4 * rows, at);
          CHECK(pn::cpu::multiply<T>(in.data(), in.stride(), rows, k, prepared.data(), y.floats(), y.stride()) ==
                Status::ok);
          CHECK(y.intact());
        }
      });
    };
    multiply_pn(pn::pn3t{});
    multiply_pn(pn::pn4t{});

    const std::size_t blocks = 1 + random.below(3), k = 256 * blocks;
    const std::vector<float> x = random_activations(random, tokens * k);
    const Islands in(rows, 392 * blocks, at, random_bytes(random, rows * 392 * blocks).data());
    for_each_isa([&](Isa isa) {
      const PreparedP12 prepared(x.data(), 4 * k, tokens, k, isa);
      for (const Order order : {Order::fast, Order::portable}) {
        const Fenced y(tokens, 4 * rows, 4 * rows, at), workspace(p12::cpu::proof_workspace_bytes(k));
        CHECK(p12::cpu::multiply(in.data(), in.stride(), rows, k, prepared.data(), y.floats(), y.stride(), order) ==
              Status::ok);
        CHECK(y.intact());
        CHECK(p12::cpu::multiply_unpacked(in.data(), in.stride(), rows, k, prepared.data(), y.floats(), y.stride(),
                                          workspace.data(), order) == Status::ok);
        CHECK(y.intact());
        CHECK(workspace.intact());
      }
    });
  }
}
