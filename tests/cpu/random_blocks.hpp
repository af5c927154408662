// Random blocks through every codec function of pn::cpu and of the core: one piece of a run, for the ordinary tests
// and, a hundred times longer, for the long ones. What the core says is computed once for all instruction sets.
#ifndef PN_TESTS_CPU_RANDOM_BLOCKS_HPP
#define PN_TESTS_CPU_RANDOM_BLOCKS_HPP

#include "../exhaustive/parallel.hpp"
#include "recipes.hpp"

namespace testing {

using exhaustive::Failures;
using exhaustive::RandomRun;

// What a run met; shows that the recipes reach what they are for.
struct Met {
  std::atomic<std::uint64_t> good{0}, refused{0}, special{0};
};

// Bytes at a random address modulo 64, with room on both sides in which a canary shows what is written there.
class Unaligned {
 public:
  Unaligned(Random& random, std::size_t bytes) : bytes_(bytes), buffer_(bytes + 192, canary) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
    at_ = 64 + (64 - address % 64 + random.below(64)) % 64;
  }
  std::uint8_t* data() { return buffer_.data() + at_; }
  void reset() { std::fill(buffer_.begin(), buffer_.end(), canary); }
  bool intact() const {
    const auto is_canary = [](std::uint8_t byte) { return byte == canary; };
    const auto first = buffer_.begin() + static_cast<std::ptrdiff_t>(at_);
    return std::all_of(buffer_.begin(), first, is_canary) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(bytes_), buffer_.end(), is_canary);
  }
  static constexpr std::uint8_t canary = 0xC9;

 private:
  std::size_t bytes_, at_;
  std::vector<std::uint8_t> buffer_;
};

inline bool same_tally(const p12::RowScan& a, const p12::RowScan& b) {
  return a.blocks == b.blocks && std::equal(a.by_listed, a.by_listed + 4, b.by_listed) &&
         a.worst_block == b.worst_block && a.worst_listed == b.worst_listed;
}

inline std::string where(Isa isa, std::uint64_t piece, std::uint64_t block, const std::string& what) {
  return std::string(pn::cpu::isa_name(isa)) + ", piece " + std::to_string(piece) + ", row at block " +
         std::to_string(block) + ": " + what;
}

// Rows of 1 to 5 blocks, quantized.
template <class T>
void quantize_piece(const RandomRun& run, std::uint64_t piece, Failures& failures, Met& met) {
  constexpr std::size_t n = T::block_size;
  Random random(run.seed_of(piece));
  for (std::uint64_t done = 0; done < RandomRun::piece_size;) {
    const std::size_t blocks = 1 + random.below(5);
    const std::size_t k = blocks * n;
    std::vector<float> w(k);
    std::vector<double> g(k);
    for (std::size_t b = 0; b < blocks; ++b) random_block(random, static_cast<int>(n), T::zero_point, &w[b * n]);
    const bool weighted = random.below(3) == 0;
    for (std::size_t b = 0; b < blocks && weighted; ++b)
      random_importance(random, static_cast<int>(n), &w[b * n], &g[b * n]);
    if (random.below(64) == 0) w[random.below(k)] = random.coin() ? std::nanf("") : HUGE_VALF;
    if (weighted && random.below(64) == 0) g[random.below(k)] = random.coin() ? -1e-300 : HUGE_VAL;
    const Element element = random.coin() ? Element::f32 : elements[1 + random.below(2)];
    Unaligned in(random, k * element_bytes(element));
    for (std::size_t e = 0; e < k; ++e) {
      const std::uint32_t bits = bits_as(element, w[e]);
      store_bits(in.data(), element, e, bits);
      w[e] = value_of(element, bits);
    }

    std::vector<Block34> want(blocks);
    std::size_t want_bad = 0;
    const double* importance = weighted ? g.data() : nullptr;
    const Status want_status = pn::quantize_row<T>(w.data(), importance, k, want.data(), &want_bad);
    ++(want_status == Status::ok ? met.good : met.refused);
    for (const Block34& block : want) met.special += want_status == Status::ok && pn::load_scale(block) == 0 ? 1u : 0u;

    for (const Isa isa : pn::cpu::isas()) {
      Unaligned out(random, blocks * sizeof(Block34));
      Fault fault = {77, 77};
      const Status status =
          pn::cpu::quantize_rows<T>(in.data(), element, 0, 1, k, importance, out.data(), 0, &fault, isa);
      const char* wrong = nullptr;
      if (status != want_status)
        wrong = "another status";
      else if (status != Status::ok && (fault.row != 0 || fault.index != want_bad))
        wrong = "another fault";
      else if (status == Status::ok && std::memcmp(out.data(), want.data(), blocks * sizeof(Block34)) != 0)
        wrong = "other bytes";
      else if (!out.intact())
        wrong = "wrote beyond the row";
      if (wrong == nullptr) continue;
      std::ostringstream text;
      text << wrong << ", " << T::name << " from " << name_of(element) << (weighted ? ", weighted" : "");
      for (std::size_t b = 0; b < blocks; ++b)
        if (status == Status::ok && std::memcmp(out.data() + 34 * b, &want[b], 34) != 0) {
          text << "; block " << b << std::hexfloat;
          for (std::size_t e = b * n; e < b * n + n; ++e) {
            text << ' ' << w[e];
            if (weighted) text << '*' << g[e];
          }
          break;
        }
      failures.add(where(isa, piece, done, text.str()));
    }
    done += blocks;
  }
}

// Any bytes, decoded to every kind of element, and valid or not as the core says.
template <class T>
void decode_piece(const RandomRun& run, std::uint64_t piece, Failures& failures, Met& met) {
  Random random(run.seed_of(piece));
  for (std::uint64_t done = 0; done < RandomRun::piece_size;) {
    const std::size_t blocks = 1 + random.below(5);
    const std::size_t k = blocks * T::block_size;
    Unaligned in(random, blocks * sizeof(Block34));
    for (std::size_t b = 0; b < blocks; ++b) {
      Block34 block = block_with<T>(random, random_scale(random, 0, 30));
      if (random.below(8) == 0)
        for (std::size_t i = 0; i < sizeof block; ++i) reinterpret_cast<std::uint8_t*>(&block)[i] = random.byte();
      if (random.below(8) == 0) pn::detail::store_le16(block.d, static_cast<std::uint16_t>(random.next32()));
      if (random.below(8) == 0) block.qs[random.below(32)] |= 0x80u;
      std::memcpy(in.data() + b * sizeof block, &block, sizeof block);
    }
    std::vector<Block34> row(blocks);
    std::memcpy(row.data(), in.data(), blocks * sizeof(Block34));
    std::vector<float> decoded(k);
    static_cast<void>(pn::decode_row<T>(row.data(), k, decoded.data()));
    std::size_t want_bad = 0;
    const Status valid = pn::validate_row<T>(row.data(), k, &want_bad);
    ++(valid == Status::ok ? met.good : met.refused);

    const std::size_t first = random.coin() ? 0 : random.below(k);
    const std::size_t columns = random.coin() ? k - first : random.below(k - first + 1);
    const Element element = elements[random.below(3)];
    for (const Isa isa : pn::cpu::isas()) {
      Fault fault = {77, 77};
      const Status status = pn::cpu::validate_rows<T>(in.data(), 0, 1, k, &fault, isa);
      if (status != valid || (status != Status::ok && (fault.row != 0 || fault.index != want_bad)))
        failures.add(where(isa, piece, done, std::string("another verdict, ") + T::name));
      Unaligned out(random, columns * element_bytes(element));
      const Status told = pn::cpu::dequantize_rows<T>(in.data(), 0, 1, first, columns, out.data(), element, 0, isa);
      bool same = told == Status::ok && out.intact();
      for (std::size_t e = 0; e < columns; ++e)
        same = same && same_element(element, load_bits(out.data(), element, e), bits_as(element, decoded[first + e]));
      if (!same) failures.add(where(isa, piece, done, std::string("decodes otherwise, ") + T::name));
    }
    done += blocks;
  }
}

// One change to a packed block; most of them break a rule of BF16_P12.
inline void change(Random& random, Bytes& bytes) {
  switch (random.below(8)) {
    case 0: bytes[random.below(392)] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
    case 1: bytes[random.below(8)] = random.byte(); break;
    case 2: bytes[0] = static_cast<std::uint8_t>(bytes[0] + random.between(-3, 3)); break;
    case 3: bytes[1] = static_cast<std::uint8_t>(random.below(5)); break;
    case 4: std::swap(bytes[2 + random.below(3)], bytes[2 + random.below(3)]); break;
    case 5: bytes[5 + random.below(3)] = static_cast<std::uint8_t>(bytes[0] + random.between(-1, 16)); break;
    case 6: bytes[8 + random.below(128)] = random.byte(); break;
    default:
      for (std::uint8_t& byte : bytes) byte = random.byte();
      break;
  }
}

// What a row of blocks unpacks to as one kind of element.
inline std::vector<std::uint32_t> unpacked_as(Element element, const std::vector<std::uint16_t>& weights) {
  std::vector<std::uint32_t> bits(weights.size());
  for (std::size_t e = 0; e < bits.size(); ++e) {
    const std::uint32_t wide = static_cast<std::uint32_t>(weights[e]) << 16;
    bits[e] = element == Element::bf16 ? weights[e] : element == Element::f32 ? wide : pn::float_bits_to_half(wide);
  }
  return bits;
}

// Rows of 1 to 4 blocks, packed and scanned; then blocks of any bytes, validated and unpacked.
inline void p12_piece(const RandomRun& run, std::uint64_t piece, Failures& failures, Met& met) {
  Random random(run.seed_of(piece));
  for (std::uint64_t done = 0; done < RandomRun::piece_size;) {
    const std::size_t blocks = 1 + random.below(4);
    const std::size_t k = 256 * blocks;
    Unaligned in(random, 2 * k);
    std::vector<Bytes> want(blocks);
    p12::RowScan want_tally;
    std::size_t want_bad = blocks;
    for (std::size_t b = 0; b < blocks; ++b) {
      const Weights weights = random_weights(random);
      for (std::size_t i = 0; i < 256; ++i) store_bits(in.data(), Element::bf16, 256 * b + i, weights[i]);
      p12::Block392 block;
      std::memset(&block, Unaligned::canary, sizeof block);
      p12::BlockScan scan = {};
      if (p12::pack_block(weights.data(), block, &scan) != Status::ok && want_bad == blocks) want_bad = b;
      p12::add_block(scan, want_tally);
      want[b] = bytes_of(block);
    }
    const Status want_status = want_bad == blocks ? Status::ok : Status::too_many_listed;
    ++(want_status == Status::ok ? met.good : met.refused);

    // The packed blocks, some of them changed, and what they must be taken for.
    Unaligned other(random, 392 * blocks);
    std::vector<std::uint16_t> weights(k);
    std::size_t wrong_block = blocks;
    Status want_valid = Status::ok;
    for (std::size_t b = 0; b < blocks; ++b) {
      Bytes bytes = want[b];
      if (random.coin()) change(random, bytes);
      std::memcpy(other.data() + 392 * b, bytes.data(), 392);
      const p12::Block392 block = block_of(bytes);
      p12::unpack_block(block, weights.data() + 256 * b);
      const Status valid = p12::validate_block(block);
      if (valid != Status::ok && wrong_block == blocks) {
        wrong_block = b;
        want_valid = valid;
      }
    }
    met.special += want_valid == Status::ok ? 0 : 1;
    const Element element = elements[random.below(3)];
    const Stores stores = random.coin() ? Stores::streaming : Stores::cached;
    const std::size_t first = random.coin() ? 0 : random.below(k);
    const std::size_t columns = random.coin() ? k - first : random.below(k - first + 1);
    const std::vector<std::uint32_t> want_bits = unpacked_as(element, weights);

    for (const Isa isa : pn::cpu::isas()) {
      const auto check = [&](bool good, const char* what) {
        if (!good) failures.add(where(isa, piece, done, what));
      };
      Unaligned out(random, 392 * blocks);
      p12::RowScan tally, scan;
      Fault fault = {77, 77};
      const Status status = p12::cpu::pack_rows(in.data(), 0, 1, k, out.data(), 0, &tally, &fault, isa);
      check(status == want_status, "another status");
      check(status == Status::ok || (fault.row == 0 && fault.index == want_bad), "another fault");
      check(std::memcmp(out.data(), want.data(), 392 * blocks) == 0, "packs to other bytes");
      check(out.intact(), "packs beyond the row");
      check(same_tally(tally, want_tally), "another tally");
      check(p12::cpu::scan_rows(in.data(), 0, 1, k, scan, isa) == Status::ok, "does not scan");
      check(same_tally(scan, want_tally), "scans otherwise");

      fault = {77, 77};
      const Status valid = p12::cpu::validate_rows(other.data(), 0, 1, k, &fault, isa);
      check(valid == want_valid, "another verdict");
      check(valid == Status::ok || (fault.row == 0 && fault.index == wrong_block), "another block is wrong");
      const auto compare = [&](Unaligned& got, std::size_t from, std::size_t count, const char* what) {
        bool same = got.intact();
        for (std::size_t e = 0; e < count; ++e) {
          const std::uint32_t bits = load_bits(got.data(), element, e);
          // Only fp16 is converted; a NaN may become another one there.
          same = same && (element == Element::f16 ? same_half(bits, want_bits[from + e]) : bits == want_bits[from + e]);
        }
        check(same, what);
      };
      Unaligned all(random, k * element_bytes(element));
      check(p12::cpu::unpack_rows(other.data(), 0, 1, k, all.data(), element, 0, stores, isa) == Status::ok,
            "does not unpack");
      compare(all, 0, k, "unpacks otherwise");
      Unaligned tile(random, columns * element_bytes(element));
      check(p12::cpu::unpack_tile(other.data(), 0, 1, first, columns, tile.data(), element, 0, isa) == Status::ok,
            "does not unpack a tile");
      compare(tile, first, columns, "unpacks a tile otherwise");
    }
    done += blocks;
  }
}

}  // namespace testing

#endif  // PN_TESTS_CPU_RANDOM_BLOCKS_HPP
