#include "conversion.hpp"

#include <array>
#include <cstring>
#include <numeric>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <stdexcept>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pnpack reads model files in place and needs a little-endian machine; the core headers do not"
#endif

namespace pnpack {

using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

// Weights are copied out of the file's bytes, which may lie at any address.
using P12Weights = std::array<std::uint16_t, p12::block_size>;

template <class Block>
Block load_block(const std::uint8_t* bytes) {
  Block block;
  std::memcpy(&block, bytes, sizeof block);
  return block;
}

void add_to_scan(const p12::Block392& block, p12::RowScan& scan) { p12::add_block({block.base, block.listed}, scan); }

class P12Packer final : public Conversion {
 public:
  explicit P12Packer(const TensorType& p12) : Conversion(types::bf16(), p12, p12::block_size) {}

  Outcome run(const std::uint8_t* in, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    P12Weights weights;
    P12Weights unpacked;
    p12::Block392 block;
    for (std::size_t u = 0; u < units; ++u) {
      std::memcpy(weights.data(), in + u * sizeof weights, sizeof weights);
      p12::BlockScan scan{};
      const pn::Status status = p12::pack_block(weights.data(), block, &scan);
      p12::add_block(scan, outcome.scan);
      if (status != pn::Status::ok) continue;
      std::uint8_t* const packed = out + u * sizeof block;
      std::memcpy(packed, &block, sizeof block);
      p12::unpack_block(load_block<p12::Block392>(packed), unpacked.data());
      if (unpacked != weights)
        throw std::logic_error("a packed block does not unpack to its weights: faulty memory, or a mistake in pnpack");
    }
    return outcome;
  }
};

class P12Unpacker final : public Conversion {
 public:
  explicit P12Unpacker(const TensorType& p12) : Conversion(p12, types::bf16(), p12::block_size) {}

  Outcome run(const std::uint8_t* in, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    P12Weights weights;
    for (std::size_t u = 0; u < units; ++u) {
      const auto block = load_block<p12::Block392>(in + u * sizeof(p12::Block392));
      outcome.status = p12::validate_block(block);
      if (outcome.status != pn::Status::ok) {
        outcome.element = u * p12::block_size;
        break;
      }
      add_to_scan(block, outcome.scan);
      p12::unpack_block(block, weights.data());
      std::memcpy(out + u * sizeof weights, weights.data(), sizeof weights);
    }
    return outcome;
  }
};

// Elements of F32, F16, BF16 or BF16_P12 as floats; whole blocks.
pn::Status to_floats(const TensorType& type, const std::uint8_t* in, std::size_t count, float* out,
                     std::uint64_t& bad) {
  if (type == types::f32()) {
    std::memcpy(out, in, count * sizeof(float));
  } else if (types::is_p12(type)) {
    P12Weights weights;
    for (std::size_t b = 0; b < count / p12::block_size; ++b) {
      const auto block = load_block<p12::Block392>(in + b * sizeof(p12::Block392));
      const pn::Status status = p12::validate_block(block);
      if (status != pn::Status::ok) {
        bad = b * p12::block_size;
        return status;
      }
      p12::unpack_block(block, weights.data());
      for (std::size_t i = 0; i < p12::block_size; ++i) out[b * p12::block_size + i] = pn::bf16_to_float(weights[i]);
    }
  } else {
    const bool bf16 = type == types::bf16();
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, in + 2 * i, sizeof bits);
      out[i] = bf16 ? pn::bf16_to_float(bits) : pn::half_to_float(bits);
    }
  }
  return pn::Status::ok;
}

template <class T>
class PnQuantizer final : public Conversion {
 public:
  PnQuantizer(const TensorType& from, const TensorType& to) : Conversion(from, to, common_block(from, to)) {}

  Outcome run(const std::uint8_t* in, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    const std::size_t count = static_cast<std::size_t>(unit_elements_);
    std::vector<float> weights(count);
    std::vector<pn::Block34> blocks(pn::block_count<T>(count));
    for (std::size_t u = 0; u < units; ++u) {
      std::uint64_t bad = 0;
      outcome.status = to_floats(from_, in + u * unit_bytes_in_, count, weights.data(), bad);
      if (outcome.status == pn::Status::ok) {
        std::size_t bad_weight = 0;
        outcome.status = pn::quantize_row<T>(weights.data(), count, blocks.data(), &bad_weight);
        bad = bad_weight;
      }
      if (outcome.status != pn::Status::ok) {
        outcome.element = u * unit_elements_ + bad;
        break;
      }
      std::memcpy(out + u * unit_bytes_out_, blocks.data(), unit_bytes_out_);
      add_error(weights, blocks, outcome);
    }
    return outcome;
  }

 private:
  static void add_error(const std::vector<float>& weights, const std::vector<pn::Block34>& blocks, Outcome& outcome) {
    std::array<float, T::block_size> decoded{};
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      pn::decode_block<T>(blocks[b], decoded.data());
      for (std::size_t e = 0; e < T::block_size; ++e) {
        const double w = static_cast<double>(weights[b * T::block_size + e]);
        const double r = w - static_cast<double>(decoded[e]);
        outcome.squared_error += r * r;
        outcome.squared_weight += w * w;
      }
    }
  }
};

template <class T>
class PnDecoder final : public Conversion {
 public:
  PnDecoder(const TensorType& from, const TensorType& to) : Conversion(from, to, T::block_size) {}

  Outcome run(const std::uint8_t* in, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    std::array<float, T::block_size> weights{};
    for (std::size_t u = 0; u < units && outcome.status == pn::Status::ok; ++u) {
      const auto block = load_block<pn::Block34>(in + u * sizeof(pn::Block34));
      outcome.status = pn::validate_block<T>(block);
      outcome.element = u * T::block_size;
      if (outcome.status != pn::Status::ok) break;
      pn::decode_block<T>(block, weights.data());
      store(weights, out + u * unit_bytes_out_, outcome);
    }
    return outcome;
  }

 private:
  void store(const std::array<float, T::block_size>& weights, std::uint8_t* out, Outcome& outcome) const {
    if (to_ == types::f32()) {
      std::memcpy(out, weights.data(), sizeof weights);
      return;
    }
    const bool bf16 = to_ == types::bf16();
    for (std::size_t e = 0; e < T::block_size; ++e) {
      const std::uint16_t bits = bf16 ? pn::float_to_bf16(weights[e]) : pn::float_to_half(weights[e]);
      if (!bf16 && (bits & 0x7C00u) == 0x7C00u) {
        outcome.status = pn::Status::not_finite;  // finite before the conversion: beyond fp16's range
        outcome.element += e;
        return;
      }
      std::memcpy(out + 2 * e, &bits, sizeof bits);
    }
  }
};

// The blocks of one type, looked at one by one.
template <class Block>
class Validator final : public Conversion {
 public:
  using Check = pn::Status (*)(const Block&);
  Validator(const TensorType& type, Check check) : Conversion(type, type, type.block), check_(check) {
    unit_bytes_out_ = 0;
  }

  Outcome run(const std::uint8_t* in, std::size_t units, std::uint8_t*) const override {
    Outcome outcome;
    for (std::size_t u = 0; u < units; ++u) {
      const Block block = load_block<Block>(in + u * sizeof(Block));
      outcome.status = check_(block);
      if (outcome.status != pn::Status::ok) {
        outcome.element = u * unit_elements_;
        break;
      }
      if constexpr (sizeof(Block) == sizeof(p12::Block392)) add_to_scan(block, outcome.scan);
    }
    return outcome;
  }

 private:
  Check check_;
};

}  // namespace

void Outcome::append(const Outcome& next, std::uint64_t elements) {
  if (status == pn::Status::ok && next.status != pn::Status::ok) {
    status = next.status;
    element = elements + next.element;
  }
  if (next.scan.worst_listed > scan.worst_listed) {
    scan.worst_listed = next.scan.worst_listed;
    scan.worst_block = scan.blocks + next.scan.worst_block;
  }
  scan.blocks += next.scan.blocks;
  for (std::size_t i = 0; i < 4; ++i) scan.by_listed[i] += next.scan.by_listed[i];
  squared_error += next.squared_error;
  squared_weight += next.squared_weight;
}

Conversion::Conversion(TensorType from, TensorType to, std::uint64_t unit_elements)
    : from_(std::move(from)),
      to_(std::move(to)),
      unit_elements_(unit_elements),
      unit_bytes_in_(static_cast<std::size_t>(unit_elements / from_.block * from_.block_bytes)),
      unit_bytes_out_(static_cast<std::size_t>(unit_elements / to_.block * to_.block_bytes)) {}

std::unique_ptr<Conversion> make_p12_packer(const TensorType& p12) { return std::make_unique<P12Packer>(p12); }

std::unique_ptr<Conversion> make_p12_unpacker(const TensorType& p12) { return std::make_unique<P12Unpacker>(p12); }

std::unique_ptr<Conversion> make_pn_quantizer(const TensorType& from, const TensorType& to) {
  if (to == types::pn3t()) return std::make_unique<PnQuantizer<pn::pn3t>>(from, to);
  return std::make_unique<PnQuantizer<pn::pn4t>>(from, to);
}

std::unique_ptr<Conversion> make_pn_decoder(const TensorType& from, const TensorType& to) {
  if (from == types::pn3t()) return std::make_unique<PnDecoder<pn::pn3t>>(from, to);
  return std::make_unique<PnDecoder<pn::pn4t>>(from, to);
}

std::unique_ptr<Conversion> make_validator(const TensorType& type) {
  if (types::is_p12(type)) return std::make_unique<Validator<p12::Block392>>(type, p12::validate_block);
  if (type == types::pn3t()) return std::make_unique<Validator<pn::Block34>>(type, pn::validate_block<pn::pn3t>);
  return std::make_unique<Validator<pn::Block34>>(type, pn::validate_block<pn::pn4t>);
}

bool can_quantize_from(const TensorType& type) {
  return type == types::f32() || type == types::f16() || type == types::bf16() || types::is_p12(type);
}

std::uint64_t common_block(const TensorType& a, const TensorType& b) {
  return std::lcm(std::uint64_t{a.block}, std::uint64_t{b.block});
}

}  // namespace pnpack
