// Proves, on millions of random blocks, that the quantizers give the bytes of a second implementation in exact
// arithmetic, and that BF16_P12 packs, unpacks and validates as an independent reading of the format does. Each run
// says its seed; PN_SEED and PN_BLOCKS in the environment set another.
#include <pn/decode.hpp>
#include <pn/quantize.hpp>
#include <pn/validate.hpp>

#include "../p12/testing.hpp"
#include "../pn/second_quantizer.hpp"
#include "catch.hpp"
#include "parallel.hpp"

using namespace testing;
using exhaustive::RandomRun;
using pn::Status;

namespace {

// One block of weights after a random recipe: where its exponents lie and how far apart, how many bits a mantissa has
// (few: many ties), how many zeros, which signs, an outlier.
void random_block(Random& random, int n, int z, float* weights) {
  int top;
  switch (random.below(8)) {
    case 0: top = random.between(100, 106); break;   // scales near the smallest fp16
    case 1: top = random.between(142, 147); break;   // scales near the largest
    case 2: top = random.between(0, 254); break;     // anything
    default: top = random.between(108, 130); break;  // what weights look like
  }
  const int spread = random.coin() ? random.between(0, 3) : random.between(0, 40);
  const std::uint32_t mantissa = 0x7FFFFFu << random.between(random.coin() ? 0 : 16, 23) & 0x7FFFFFu;
  const std::size_t zeros = std::size_t{1} << random.between(0, 6);  // all but one in so many, or none
  const int sign = random.between(0, 5);                             // 0: positive, 1: negative, else either
  for (int e = 0; e < n; ++e) {
    const std::uint64_t bits = random.next();
    const int exponent = std::max(0, top - static_cast<int>(bits >> 33) % (spread + 1));
    std::uint32_t weight = (static_cast<std::uint32_t>(bits) & mantissa) | static_cast<std::uint32_t>(exponent) << 23;
    if (zeros > 8 && random.below(zeros) > 2) weight = 0;
    if (sign == 1 || (sign > 1 && (bits >> 63) != 0)) weight |= 0x80000000u;
    weights[e] = float_of(weight);
  }
  if (random.below(4) == 0) {  // weights halfway between two levels of a candidate scale
    const second::Type type = z == 4 ? second::pn3t : second::pn4t;
    const double amax = std::ldexp(1 + random.uniform(), random.between(-10, 3));
    const second::Scale scale = second::candidate(type, random.between(0, 35), amax, random.coin());
    for (int e = 0; e < n; ++e)
      if (random.below(3) != 0)
        weights[e] = static_cast<float>(scale.value() * (random.between(-2 * z, 2 * z - 1) * 0.5));
    weights[random.below(static_cast<std::size_t>(n))] = static_cast<float>(random.coin() ? amax : -amax);
  }
  if (random.below(16) == 0)
    weights[random.below(static_cast<std::size_t>(n))] =
        float_of((static_cast<std::uint32_t>(std::min(254, top + 4)) << 23) | (random.coin() ? 0x80000000u : 0u));
}

// One double per weight.
void random_importance(Random& random, int n, double* g) {
  const int how = random.between(0, 4);
  for (int e = 0; e < n; ++e) {
    switch (how) {
      case 0: g[e] = random.uniform(); break;
      case 1: g[e] = random.below(8) == 0 ? random.uniform() : 0.0; break;
      case 2: g[e] = double_of(random.next() >> 1 & 0x7FDFFFFFFFFFFFFFu); break;  // any finite double
      case 3: g[e] = static_cast<double>(random.below(4)) * 0x1p-1074; break;
      default: g[e] = random.coin() ? 0.0 : -0.0; break;
    }
  }
}

template <class T>
void quantize_run(const char* name, std::uint64_t seed, std::uint64_t blocks) {
  constexpr int n = static_cast<int>(T::block_size);
  const second::Type type = T::bits == 3 ? second::pn3t : second::pn4t;
  const RandomRun run(name, seed, blocks);
  exhaustive::Failures failures;
  std::atomic<std::uint64_t> overflows{0}, zero_blocks{0}, tied{0};
  exhaustive::in_parallel(run.pieces, [&](std::uint64_t piece) {
    Random random(run.seed_of(piece));
    std::uint64_t overflow = 0, zero = 0, tie = 0;
    for (std::uint64_t i = 0; i < RandomRun::piece_size; ++i) {
      float weights[T::block_size], decoded[T::block_size];
      double importance[T::block_size];
      random_block(random, n, T::zero_point, weights);
      const bool weighted = random.below(4) == 0;
      if (weighted) random_importance(random, n, importance);
      const double* g = weighted ? importance : nullptr;
      const second::Encoded want = second::quantize(type, weights, g);
      pn::Block34 got;
      std::memset(&got, 0x5A, sizeof got);
      const Status status = pn::quantize_row<T>(weights, g, T::block_size, &got);
      const char* wrong = nullptr;
      if (want.result == second::Result::overflow) {
        if (status != Status::scale_overflow) wrong = "overflows, which was not said";
        ++overflow;
      } else if (status != Status::ok) {
        wrong = "was refused";
      } else if (std::memcmp(&got, want.bytes, 34) != 0) {
        wrong = "has other bytes";
      } else if (pn::validate_block<T>(got) != Status::ok) {
        wrong = "is not valid";
      } else {
        pn::decode_block<T>(got, decoded);
        for (std::size_t e = 0; e < T::block_size; ++e) {
          const double value = half_value(pn::load_scale(got)) * (pn::load_code<T>(got, e) - T::zero_point);
          if (bits_of(decoded[e]) != bits_of(static_cast<float>(value))) wrong = "decodes to other weights";
        }
        zero += pn::load_scale(got) == 0 ? 1u : 0u;
        tie += want.distinct_best > 1 ? 1u : 0u;
      }
      if (wrong != nullptr)
        failures.add("piece " + std::to_string(piece) + " block " + std::to_string(i) + " " + wrong);
    }
    overflows += overflow;
    zero_blocks += zero;
    tied += tie;
  });
  std::cout << "  " << overflows << " overflow, " << zero_blocks << " become zero, in " << tied << " scales tie"
            << std::endl;
  INFO(failures.text());
  CHECK(failures.empty());
  if (run.pieces >= 100) {  // the recipes reach what they are for
    CHECK(overflows > 0);
    CHECK(zero_blocks > 0);
    CHECK(tied > 0);
  }
}

// The format's rules for a block, from counts: how many weights each base leaves outside.
struct Reading {
  int base, listed;
};
Reading read(const Weights& weights) {
  int below[257] = {};  // weights with a smaller exponent
  for (const std::uint16_t weight : weights) ++below[second::exponent(weight) + 1];
  for (std::size_t e = 1; e <= 256; ++e) below[e] += below[e - 1];
  Reading best = {0, 257};
  for (int base = 0; base <= 240; ++base) {
    const int outside = 256 - (below[base + 16] - below[base]);
    if (outside <= best.listed) best = {base, outside};
  }
  return best;
}

Bytes packed_by_reading(const Weights& weights, const Reading& reading) {
  Bytes out = {};
  out[0] = static_cast<std::uint8_t>(reading.base);
  for (int place = 0; place < 256; ++place) {
    const unsigned weight = weights[static_cast<std::size_t>(place)];
    const int code = second::exponent(weight) - reading.base;
    out[static_cast<std::size_t>(136 + place)] = static_cast<std::uint8_t>(weight / 256 / 128 * 128 + weight % 128);
    if (code < 0 || code > 15) {
      out[2u + out[1]] = static_cast<std::uint8_t>(place);
      out[5u + out[1]] = static_cast<std::uint8_t>(second::exponent(weight));
      ++out[1];
    } else {
      const int bit = second::first_bit(place);
      auto& byte = out[static_cast<std::size_t>(bit / 8)];
      byte = static_cast<std::uint8_t>(byte + (code << (bit % 8)));
    }
  }
  return out;
}

// The first rule, in the order of pn::Status, that a block breaks.
Status reason(const Bytes& bytes) {
  const std::size_t n = bytes[1];
  if (bytes[0] > 240) return Status::base_out_of_range;
  if (n > 3) return Status::listed_count_out_of_range;
  for (std::size_t slot = 1; slot < n; ++slot)
    if (bytes[2 + slot] <= bytes[1 + slot]) return Status::positions_not_ascending;
  for (std::size_t slot = n; slot < 3; ++slot)
    if (bytes[2 + slot] != 0 || bytes[5 + slot] != 0) return Status::unused_slot_not_zero;
  for (std::size_t slot = 0; slot < n; ++slot) {
    const int bit = second::first_bit(bytes[2 + slot]);
    if ((bytes[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 15) != 0) return Status::listed_code_not_zero;
  }
  for (std::size_t slot = 0; slot < n; ++slot)
    if (bytes[5 + slot] >= bytes[0] && bytes[5 + slot] <= bytes[0] + 15) return Status::listed_exponent_in_range;
  return read(second::unpack(bytes)).base == bytes[0] ? Status::ok : Status::base_not_canonical;
}

// One change to a packed block; most of them break a rule, some only make other weights of it.
void change(Random& random, Bytes& bytes) {
  switch (random.below(7)) {
    case 0: bytes[random.below(392)] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
    case 1: bytes[random.below(8)] = random.byte(); break;
    case 2: bytes[0] = static_cast<std::uint8_t>(bytes[0] + random.between(-3, 3)); break;
    case 3: bytes[1] = static_cast<std::uint8_t>(random.below(5)); break;
    case 4: std::swap(bytes[2 + random.below(3)], bytes[2 + random.below(3)]); break;
    case 5: bytes[5 + random.below(3)] = static_cast<std::uint8_t>(bytes[0] + random.between(-1, 16)); break;
    default: {  // the same weights under another base
      const int by = random.coin() ? 1 : -1;
      bytes[0] = static_cast<std::uint8_t>(bytes[0] + by);
      for (std::size_t i = 8; i < 136; ++i) bytes[i] = static_cast<std::uint8_t>(bytes[i] - by * 0x11);
      break;
    }
  }
}

}  // namespace

TEST_CASE("random blocks: pn3t against the second quantizer") { quantize_run<pn::pn3t>("pn3t", 20250301, 10000000); }

TEST_CASE("random blocks: pn4t against the second quantizer") { quantize_run<pn::pn4t>("pn4t", 20250302, 10000000); }

TEST_CASE("random blocks: BF16_P12 against an independent reading") {
  const RandomRun run("p12", 20250303, 10000000);
  exhaustive::Failures failures;
  std::atomic<std::uint64_t> packed{0}, invalid{0}, changed_valid{0};
  exhaustive::in_parallel(run.pieces, [&](std::uint64_t piece) {
    Random random(run.seed_of(piece));
    std::uint64_t fits = 0, broken = 0, whole = 0;
    for (std::uint64_t i = 0; i < RandomRun::piece_size; ++i) {
      const auto check = [&](bool good, const char* what) {
        if (!good) failures.add("piece " + std::to_string(piece) + " block " + std::to_string(i) + ": " + what);
      };
      const Weights weights = random_weights(random);
      const Reading want = read(weights);
      if (i == 0) {  // the counts above against the plainest search
        const second::Choice plain = second::choose(weights);
        check(plain.base == want.base && plain.listed == want.listed, "the two readings differ");
      }
      const p12::BlockScan scan = p12::scan_block(weights.data());
      check(scan.base == want.base && scan.listed == want.listed, "scan");
      p12::Block392 block;
      std::memset(&block, 0x5A, sizeof block);
      const Status status = p12::pack_block(weights.data(), block);
      if (want.listed > 3) {
        check(status == Status::too_many_listed && block.base == 0x5A && block.listed == 0x5A, "packed, but cannot be");
        continue;
      }
      ++fits;
      check(status == Status::ok, "not packed");
      Bytes bytes = packed_by_reading(weights, want);
      check(bytes_of(block) == bytes, "other bytes");
      check(unpacked(block) == weights, "other weights");
      check(p12::validate_block(block) == Status::ok, "not valid");

      for (std::uint64_t changes = 1 + random.below(2); changes > 0; --changes) change(random, bytes);
      const p12::Block392 other = block_of(bytes);
      const Status found = p12::validate_block(other);
      check(found == reason(bytes), "another reason");
      const Weights other_weights = unpacked(other);
      check(other_weights == second::unpack(bytes), "a changed block unpacks otherwise");
      p12::Block392 again;
      const bool same = p12::pack_block(other_weights.data(), again) == Status::ok && bytes_of(again) == bytes;
      check(same == (found == Status::ok), "valid is not the same as packing back");
      ++(found == Status::ok ? whole : broken);
    }
    packed += fits;
    invalid += broken;
    changed_valid += whole;
  });
  std::cout << "  " << packed << " fit; changed, " << invalid << " are invalid and " << changed_valid << " valid"
            << std::endl;
  INFO(failures.text());
  CHECK(failures.empty());
  if (run.pieces >= 100) {
    CHECK(packed > run.pieces * RandomRun::piece_size / 4);
    CHECK(invalid > 0);
    CHECK(changed_valid > 0);
  }
}
