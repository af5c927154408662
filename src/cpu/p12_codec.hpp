// BF16_P12 on vectors: packing, unpacking, validating. Written in the words of simd_*.hpp.
//
// A unit is what four vectors of bf16 hold: 2 * byte_lanes weights, whose codes fill one vector of bytes and whose
// sign|mantissa bytes fill two. Instructions that work on every 128 bits for themselves are why words are spread before
// zips and gathered after narrowing; what enters and leaves is in the order of memory.
#pragma once

#include "elements.hpp"
#include "exact_p12.hpp"

namespace pn::cpu::PN_CPU_ISA {

inline constexpr std::size_t unit_weights = 2 * byte_lanes;
inline constexpr std::size_t units_per_block = p12::block_size / unit_weights;
inline constexpr std::size_t codes_at = 8;
inline constexpr std::size_t sign_mantissa_at = 136;

struct Unit {
  Bits v[4];
};

// What exponent base + code puts into the two bytes of a bf16, for every code: 16 high bytes (exponent >> 1, below the
// sign) and 16 low ones (its last bit, above the mantissa), for every base.
struct ExponentTable {
  alignas(64) std::uint8_t bytes[256][2][16];
  constexpr ExponentTable() : bytes() {
    for (std::size_t base = 0; base < 256; ++base)
      for (std::size_t code = 0; code < 16; ++code) {
        const std::size_t exponent = (base + code) % 256;
        bytes[base][0][code] = static_cast<std::uint8_t>(exponent >> 1);
        bytes[base][1][code] = static_cast<std::uint8_t>((exponent & 1) << 7);
      }
  }
};
static constexpr ExponentTable exponent_table;

struct ExponentBytes {
  Bits high;
  Bits low;
};

PN_CPU_INLINE ExponentBytes exponent_bytes(std::uint8_t base) {
  return {set_per_16(exponent_table.bytes[base][0]), set_per_16(exponent_table.bytes[base][1])};
}

// Asks for the memory of a block `ahead` bytes further on: hardware does that less well in virtual machines, and not at
// all for lines that are skipped.
PN_CPU_INLINE void prefetch_lines(const Bytes* from, std::size_t ahead, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + ahead + i);
}
PN_CPU_INLINE void prefetch_lines_to_write(const Bytes* from, std::size_t ahead, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + ahead + i, 1);
}
inline constexpr std::size_t blocks_ahead = 5;

// The order of a unit's weights in its four vectors: as in memory, or as zips leave them, which saves an instruction
// for every vector of bytes: two vectors by two hold what 32 / 64 weights in a row are, the first of two the first
// eight of every sixteen, the second the others.
enum class Arranged { as_memory, as_zipped };

// Unit u of a block, as if nothing were listed.
template <Arranged How>
PN_CPU_INLINE Unit decode_unit(const Bytes* block, const ExponentBytes& exponents, std::size_t u) {
  const Bytes* packed = block + codes_at + u * byte_lanes;
#if defined(PN_CPU_PICK_BITS)
  const Bits codes[2] = {pick_nibbles<How == Arranged::as_memory>(packed),
                         pick_nibbles<How == Arranged::as_memory>(packed + byte_lanes / 2)};
#else
  // Bytes 0..3 of a word hold codes 0 2, 4 6, 1 3, 5 7. With bytes 1 and 2 exchanged the low nibbles are 0 1 4 5 and
  // the high ones 2 3 6 7, which zip by twos to 0 .. 7.
  static constexpr std::uint8_t exchange[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  const Bits words = load_bits(packed);
  const Bits bytes = look_up(How == Arranged::as_memory ? spread_w(words) : spread_ww(words), set_per_16(exchange));
  const Bits nibble = set_u8(0x0F);
  const Bits low = bits_and(bytes, nibble);
  const Bits high = bits_and(shift_right_u16<4>(bytes), nibble);
  const Bits codes[2] = {zip_low_u16(low, high), zip_high_u16(low, high)};
#endif
  Unit unit;
  for (std::size_t h = 0; h < 2; ++h) {
    const Bits loaded = load_bits(block + sign_mantissa_at + (2 * u + h) * byte_lanes);
    const Bits sm = How == Arranged::as_memory ? spread_q(loaded) : loaded;
    const Bits high_bytes = and_or(set_u8(0x80), sm, look_up_low(exponents.high, codes[h]));
    const Bits low_bytes = and_or(set_u8(0x7F), sm, look_up_low(exponents.low, codes[h]));
    unit.v[2 * h] = zip_low_u8(low_bytes, high_bytes);
    unit.v[2 * h + 1] = zip_high_u8(low_bytes, high_bytes);
  }
  return unit;
}

// Where the weight of a place comes to lie.
template <Arranged How>
PN_CPU_INLINE std::size_t arranged_place(std::size_t place) {
  constexpr std::size_t run = 4 * f32_lanes;  // what two vectors hold
  if constexpr (How == Arranged::as_memory) return place;
  return place / run * run + place / 8 % 2 * (run / 2) + place % run / 16 * 8 + place % 8;
}

// A block to 256 bf16 at any address, listed weights included.
template <Arranged How>
PN_CPU_INLINE void decode_block(const Bytes* block, const ExponentBytes& exponents, Bytes* out) {
  for (std::size_t u = 0; u < units_per_block; ++u) {
    const Unit unit = decode_unit<How>(block, exponents, u);
    for (std::size_t i = 0; i < 4; ++i) store_bits(out + (4 * u + i) * byte_lanes, unit.v[i]);
  }
  for (int i = 0; i < block[1] && i < p12::max_listed; ++i) {
    Bytes* weight = out + 2 * arranged_place<How>(block[2 + i]);
    weight[0] = static_cast<Bytes>((weight[0] & 0x7F) | (block[5 + i] << 7));
    weight[1] = static_cast<Bytes>((weight[1] & 0x80) | (block[5 + i] >> 1));
  }
}

PN_CPU_INLINE void decode_block(const Bytes* block, Bytes* out) {
  decode_block<Arranged::as_memory>(block, exponent_bytes(block[0]), out);
}

PN_CPU_INLINE void convert_block(const Bytes* weights, Bytes* out, Element element) {
  for (std::size_t i = 0; i < p12::block_size; i += 2 * f32_lanes) {
    const Bits v = load_bits(weights + 2 * i);
    if (element == Element::f32) {
      store_f32(out + 4 * i, first_bf16(v));
      store_f32(out + 4 * (i + f32_lanes), second_bf16(v));
    } else {
      store_f16(out + 2 * i, first_bf16(v));
      store_f16(out + 2 * (i + f32_lanes), second_bf16(v));
    }
  }
}

static void unpack(const Bytes* in, std::size_t blocks, Bytes* out, Element element, Stores stores) {
  constexpr std::size_t size = sizeof(p12::Block392);
  const std::size_t out_bytes = p12::block_size * bytes_of_one(element);
  const bool streaming = stores == Stores::streaming && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  if (element != Element::bf16) {
    alignas(64) Bytes weights[2 * p12::block_size];
    for (std::size_t b = 0; b < blocks; ++b) {
      prefetch_lines(in + b * size, blocks_ahead * size, size);
      decode_block(in + b * size, weights);
      convert_block(weights, out + b * out_bytes, element);
    }
  } else if (!streaming) {
    for (std::size_t b = 0; b < blocks; ++b) {
      prefetch_lines(in + b * size, blocks_ahead * size, size);
      prefetch_lines_to_write(out + b * out_bytes, blocks_ahead * out_bytes, out_bytes);
      decode_block(in + b * size, out + b * out_bytes);
    }
  } else {
    for (std::size_t b = 0; b < blocks; ++b) {
      const Bytes* block = in + b * size;
      Bytes* to = out + b * out_bytes;
      prefetch_lines(block, blocks_ahead * size, size);
      if (block[1] != 0) {
        alignas(64) Bytes weights[2 * p12::block_size];
        decode_block(block, weights);
        for (std::size_t i = 0; i < sizeof weights; i += byte_lanes) stream_bits(to + i, load_bits(weights + i));
        continue;
      }
      const ExponentBytes exponents = exponent_bytes(block[0]);
      for (std::size_t u = 0; u < units_per_block; ++u) {
        const Unit unit = decode_unit<Arranged::as_memory>(block, exponents, u);
        for (std::size_t i = 0; i < 4; ++i) stream_bits(to + (4 * u + i) * byte_lanes, unit.v[i]);
      }
    }
    end_of_stream();
  }
}

// ---- Packing ----

PN_CPU_INLINE Bits exponents_of(Bits weights) { return shift_right_u16<8>(shift_left_u16<1>(weights)); }

struct Range {
  unsigned lowest, highest;
};

PN_CPU_INLINE Range exponent_range(const Bytes* weights) {
  constexpr std::size_t vectors = 2 * p12::block_size / byte_lanes;
  Bits low = exponents_of(load_bits(weights));
  Bits high = low;
  for (std::size_t i = 1; i < vectors; ++i) {
    const Bits e = exponents_of(load_bits(weights + i * byte_lanes));
    low = min_u16(low, e);
    high = max_u16(high, e);
  }
  return {smallest_u16(low), largest_u16(high)};
}

// A block of which every exponent lies in base .. base + 15.
PN_CPU_INLINE void encode_block(const Bytes* weights, std::uint8_t base, Bytes* out) {
  static constexpr std::uint8_t exchange[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  const Bits bases = set_u8(base);
  const Bits order = set_per_16(exchange);
  out[0] = base;
  for (std::size_t i = 1; i < codes_at; ++i) out[i] = 0;
  for (std::size_t u = 0; u < units_per_block; ++u) {
    Bits joined[2];
    for (std::size_t h = 0; h < 2; ++h) {
      const Bits a = load_bits(weights + (4 * u + 2 * h) * byte_lanes);
      const Bits b = load_bits(weights + (4 * u + 2 * h + 1) * byte_lanes);
      const Bits codes = subtract_u8(narrow_u16(exponents_of(a), exponents_of(b)), bases);
      joined[h] = join_nibbles(look_up(codes, order));
      const Bits mantissa = set_u16(0x007F);
      const Bits sm = narrow_u16(select(mantissa, a, bits_and(shift_right_u16<8>(a), set_u16(0x0080))),
                                 select(mantissa, b, bits_and(shift_right_u16<8>(b), set_u16(0x0080))));
      store_bits(out + sign_mantissa_at + (2 * u + h) * byte_lanes, gather_q(sm));
    }
    store_bits(out + codes_at + u * byte_lanes, gather_w(narrow_u16(joined[0], joined[1])));
  }
}

static std::size_t pack(const Bytes* weights, std::size_t blocks, Bytes* out, p12::RowScan* tally) {
  std::size_t bad = blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* from = weights + b * 2 * p12::block_size;
    Bytes* to = out + b * sizeof(p12::Block392);
    prefetch_lines(from, blocks_ahead * 2 * p12::block_size, 2 * p12::block_size);
    prefetch_lines_to_write(to, blocks_ahead * sizeof(p12::Block392), sizeof(p12::Block392));
    const Range range = exponent_range(from);
    if (range.highest - range.lowest < p12::window) {
      encode_block(from, static_cast<std::uint8_t>(range.lowest < p12::max_base ? range.lowest : p12::max_base), to);
      if (tally == nullptr) continue;
      ++tally->by_listed[0];
      ++tally->blocks;
    } else if (!pack_by_core(from, to, tally) && bad == blocks) {
      bad = b;
    }
  }
  return bad;
}

static void scan(const Bytes* weights, std::size_t blocks, p12::RowScan& tally) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* from = weights + b * 2 * p12::block_size;
    prefetch_lines(from, blocks_ahead * 2 * p12::block_size, 2 * p12::block_size);
    const Range range = exponent_range(from);
    if (range.highest - range.lowest < p12::window) {
      ++tally.by_listed[0];
      ++tally.blocks;
    } else {
      scan_by_core(from, tally);
    }
  }
}

// ---- Validating ----

static bool valid_p12(const Bytes* in, std::size_t blocks) {
  const Bits nibble = set_u8(0x0F);
  for (std::size_t b = 0; b < blocks; ++b) {
    const Bytes* block = in + b * sizeof(p12::Block392);
    prefetch_lines(block, 3 * blocks_ahead * sizeof(p12::Block392), sign_mantissa_at);
    std::uint64_t head = 0;
    __builtin_memcpy(&head, block, sizeof head);
    if (head > p12::max_base) {  // something is listed, or wrong
      if (!valid_by_core(block)) return false;
      continue;
    }
    if (head == p12::max_base) continue;
    // Nothing listed: the base is canonical when it is the smallest exponent, so when some code is 0.
    bool found = false;
    for (std::size_t u = 0; u < units_per_block && !found; ++u) {
      const Bits codes = load_bits(block + codes_at + u * byte_lanes);
      found = has_zero_u8(bits_and(codes, nibble)) || has_zero_u8(bits_and(shift_right_u16<4>(codes), nibble));
    }
    if (!found) return false;
  }
  return true;
}

}  // namespace pn::cpu::PN_CPU_ISA
