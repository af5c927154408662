#include "conversion.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
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

// Elements of F32, F16 or BF16 as bf16, rounded to nearest even. not_finite, and which, when a finite one is too large.
pn::Status to_bf16(const TensorType& type, const std::uint8_t* in, std::size_t count, std::uint16_t* out,
                   std::size_t& bad) {
  if (type == types::bf16()) {
    std::memcpy(out, in, count * sizeof *out);
    return pn::Status::ok;
  }
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    if (type == types::f32()) {
      std::memcpy(&value, in + i * sizeof value, sizeof value);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, in + i * sizeof half, sizeof half);
      value = pn::half_to_float(half);
    }
    out[i] = pn::float_to_bf16(value);
    if ((out[i] & 0x7FFFu) == 0x7F80u && std::isfinite(value)) {
      bad = i;
      return pn::Status::not_finite;
    }
  }
  return pn::Status::ok;
}

class Rounder final : public Conversion {
 public:
  explicit Rounder(const TensorType& from) : Conversion(from, types::bf16(), 1) {}

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    std::array<std::uint16_t, 1024> rounded{};
    for (std::size_t done = 0; done < units; done += rounded.size()) {
      const std::size_t count = std::min(rounded.size(), units - done);
      std::size_t bad = 0;
      outcome.status = to_bf16(from_, in + done * unit_bytes_in_, count, rounded.data(), bad);
      if (outcome.status != pn::Status::ok) {
        std::memcpy(out + done * unit_bytes_out_, rounded.data(), bad * unit_bytes_out_);
        outcome.element = done + bad;
        break;
      }
      std::memcpy(out + done * unit_bytes_out_, rounded.data(), count * unit_bytes_out_);
    }
    return outcome;
  }
};

class P12Packer final : public Conversion {
 public:
  P12Packer(const TensorType& from, const TensorType& p12) : Conversion(from, p12, p12::block_size) {}

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    P12Weights weights;
    P12Weights unpacked;
    p12::Block392 block;
    for (std::size_t u = 0; u < units; ++u) {
      std::size_t bad = 0;
      outcome.status = to_bf16(from_, in + u * unit_bytes_in_, p12::block_size, weights.data(), bad);
      if (outcome.status != pn::Status::ok) {
        outcome.element = u * p12::block_size + bad;
        break;
      }
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

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
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

// What quantizers share: weights as floats, and the error of what they became.
class Quantizer : public Conversion {
 public:
  Quantizer(const TensorType& from, const TensorType& to, std::uint64_t unit_elements, const Importance* importance)
      : Conversion(from, to, unit_elements), importance_(importance) {}

  Outcome run(const std::uint8_t* in, std::uint64_t first, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    const std::size_t count = static_cast<std::size_t>(unit_elements_);
    std::vector<float> weights(count);
    std::vector<float> decoded(count);
    for (std::size_t u = 0; u < units; ++u) {
      const double* importance = importance_ != nullptr ? importance_->at((first + u) * unit_elements_) : nullptr;
      std::uint64_t bad = 0;
      outcome.status = to_floats(from_, in + u * unit_bytes_in_, count, weights.data(), bad);
      if (outcome.status == pn::Status::ok) {
        std::size_t bad_weight = 0;
        outcome.status = quantize(weights.data(), importance, out + u * unit_bytes_out_, decoded.data(), bad_weight);
        bad = bad_weight;
      }
      if (outcome.status != pn::Status::ok) {
        outcome.element = u * unit_elements_ + bad;
        break;
      }
      add_error(weights, decoded, importance, outcome);
    }
    return outcome;
  }

 protected:
  // Quantizes the weights of a unit, which may be changed to what is really stored, and decodes them again.
  virtual pn::Status quantize(float* weights, const double* importance, std::uint8_t* out, float* decoded,
                              std::size_t& bad) const = 0;

 private:
  static void add_error(const std::vector<float>& weights, const std::vector<float>& decoded, const double* importance,
                        Outcome& outcome) {
    for (std::size_t e = 0; e < weights.size(); ++e) {
      const double w = static_cast<double>(weights[e]);
      const double r = w - static_cast<double>(decoded[e]);
      outcome.error.add({r * r, w * w});
      if (importance != nullptr) outcome.weighted_error.add({importance[e] * (r * r), importance[e] * (w * w)});
    }
  }

  const Importance* importance_;
};

template <class T>
class PnQuantizer final : public Quantizer {
 public:
  PnQuantizer(const TensorType& from, const TensorType& to, const PnSettings& settings)
      : Quantizer(from, to, std::lcm(common_block(from, to), std::uint64_t{std::max(settings.rotation, 1u)}),
                  settings.importance),
        rotation_(settings.rotation),
        weighted_search_(settings.weighted_search) {}

 private:
  pn::Status quantize(float* weights, const double* importance, std::uint8_t* out, float* decoded,
                      std::size_t& bad) const override {
    const std::size_t k = static_cast<std::size_t>(unit_elements_);
    if (rotation_ != 0) {
      const pn::Status status = pn::hadamard_weights(weights, weights, k, rotation_, &bad);
      if (status != pn::Status::ok) return status;
    }
    auto* blocks = reinterpret_cast<pn::Block34*>(out);  // which has no alignment
    const pn::Status status = pn::quantize_row<T>(weights, weighted_search_ ? importance : nullptr, k, blocks, &bad);
    return status == pn::Status::ok ? pn::decode_row<T>(blocks, k, decoded) : status;
  }

  std::uint32_t rotation_;
  bool weighted_search_;
};

class Q8Quantizer final : public Quantizer {
 public:
  Q8Quantizer(const TensorType& from, const Importance* importance)
      : Quantizer(from, types::q8_0(), common_block(from, types::q8_0()), importance) {}

 private:
  pn::Status quantize(float* weights, const double*, std::uint8_t* out, float* decoded,
                      std::size_t& bad) const override {
    const std::size_t k = static_cast<std::size_t>(unit_elements_);
    auto* blocks = reinterpret_cast<pn::BlockQ8_0*>(out);  // which has no alignment
    const pn::Status status = pn::quantize_row_q8_0(weights, k, blocks, &bad);
    if (status != pn::Status::ok) return status;
    for (std::size_t b = 0; b < k / types::q8_0().block; ++b) {
      const pn::BlockQ8_0 block = load_block<pn::BlockQ8_0>(out + b * sizeof(pn::BlockQ8_0));
      std::uint16_t d = 0;
      std::memcpy(&d, block.d, sizeof d);
      const float scale = pn::half_to_float(d);
      bad = b * types::q8_0().block;
      if (!std::isfinite(scale)) return pn::Status::scale_overflow;
      for (std::size_t e = 0; e < types::q8_0().block; ++e) decoded[bad + e] = scale * static_cast<float>(block.qs[e]);
    }
    return pn::Status::ok;
  }
};

template <class T>
class PnDecoder final : public Conversion {
 public:
  PnDecoder(const TensorType& from, const TensorType& to, std::uint32_t rotation)
      : Conversion(from, to, std::lcm(std::uint64_t{T::block_size}, std::uint64_t{std::max(rotation, 1u)})),
        rotation_(rotation) {}

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    const std::size_t k = static_cast<std::size_t>(unit_elements_);
    std::vector<float> weights(k);
    for (std::size_t u = 0; u < units && outcome.status == pn::Status::ok; ++u) {
      outcome.element = u * unit_elements_;
      for (std::size_t b = 0; b < k / T::block_size; ++b) {
        const auto block = load_block<pn::Block34>(in + u * unit_bytes_in_ + b * sizeof(pn::Block34));
        outcome.status = pn::validate_block<T>(block);
        if (outcome.status != pn::Status::ok) {
          outcome.element += b * T::block_size;
          return outcome;
        }
        pn::decode_block<T>(block, weights.data() + b * T::block_size);
      }
      std::size_t bad = 0;
      outcome.status = store(weights, out + u * unit_bytes_out_, bad);
      outcome.element += bad;
    }
    return outcome;
  }

 private:
  // not_finite: finite before the conversion, beyond the target's range after it.
  pn::Status store(std::vector<float>& weights, std::uint8_t* out, std::size_t& bad) const {
    const std::size_t k = weights.size();
    if (to_ == types::f32()) {
      const pn::Status status =
          rotation_ == 0 ? pn::Status::ok : pn::hadamard_weights(weights.data(), weights.data(), k, rotation_, &bad);
      std::memcpy(out, weights.data(), k * sizeof(float));
      return status;
    }
    std::vector<std::uint16_t> bits(k);
    pn::Status status = pn::Status::ok;
    const bool bf16 = to_ == types::bf16();
    if (rotation_ != 0) {
      status = bf16 ? pn::hadamard_weights_to_bf16(weights.data(), bits.data(), k, rotation_, &bad)
                    : pn::hadamard_weights_to_half(weights.data(), bits.data(), k, rotation_, &bad);
    } else {
      const std::uint16_t infinity = bf16 ? 0x7F80 : 0x7C00;
      for (std::size_t e = 0; e < k && status == pn::Status::ok; ++e) {
        bits[e] = bf16 ? pn::float_to_bf16(weights[e]) : pn::float_to_half(weights[e]);
        bad = e;
        if ((bits[e] & infinity) == infinity) status = pn::Status::not_finite;
      }
      if (status == pn::Status::ok) bad = 0;
    }
    std::memcpy(out, bits.data(), k * sizeof(std::uint16_t));
    return status;
  }

  std::uint32_t rotation_;
};

class WeightScanner final : public Scanner {
 public:
  WeightScanner(const TensorType& from, std::uint64_t row_length)
      : Scanner(from, from, row_length % p12::block_size == 0 ? p12::block_size : 1),
        has_blocks_(row_length % p12::block_size == 0) {
    unit_bytes_out_ = 0;
  }

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t*) const override {
    Outcome outcome;
    TensorStatistics seen;
    std::array<std::uint16_t, 16 * p12::block_size> weights;
    const std::size_t elements = units * static_cast<std::size_t>(unit_elements_);
    for (std::size_t done = 0; done < elements; done += weights.size()) {
      const std::size_t count = std::min(weights.size(), elements - done);
      std::size_t bad = 0;
      outcome.status = to_bf16(from_, in + done * from_.block_bytes, count, weights.data(), bad);
      if (outcome.status != pn::Status::ok) {
        outcome.element = done + bad;
        break;
      }
      seen.add(weights.data(), count);
      for (std::size_t at = 0; has_blocks_ && at < count; at += p12::block_size)
        p12::add_block(p12::scan_block(weights.data() + at), outcome.scan);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    statistics_.merge(seen);
    return outcome;
  }

  TensorStatistics statistics() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return statistics_;
  }

 private:
  bool has_blocks_;
  mutable std::mutex mutex_;
  mutable TensorStatistics statistics_;
};

// The blocks of one type, looked at one by one.
template <class Block>
class Validator final : public Conversion {
 public:
  using Check = pn::Status (*)(const Block&);
  Validator(const TensorType& type, Check check) : Conversion(type, type, type.block), check_(check) {
    unit_bytes_out_ = 0;
  }

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t*) const override {
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
  error.add(next.error);
  weighted_error.add(next.weighted_error);
}

double ErrorSums::nrmse() const { return squared_weight == 0 ? 0.0 : std::sqrt(squared_error / squared_weight); }

Conversion::Conversion(TensorType from, TensorType to, std::uint64_t unit_elements)
    : from_(std::move(from)),
      to_(std::move(to)),
      unit_elements_(unit_elements),
      unit_bytes_in_(static_cast<std::size_t>(unit_elements / from_.block * from_.block_bytes)),
      unit_bytes_out_(static_cast<std::size_t>(unit_elements / to_.block * to_.block_bytes)) {}

std::unique_ptr<Conversion> make_rounder(const TensorType& from) { return std::make_unique<Rounder>(from); }

std::unique_ptr<Conversion> make_p12_packer(const TensorType& from, const TensorType& p12) {
  return std::make_unique<P12Packer>(from, p12);
}

std::unique_ptr<Conversion> make_p12_unpacker(const TensorType& p12) { return std::make_unique<P12Unpacker>(p12); }

std::unique_ptr<Conversion> make_pn_quantizer(const TensorType& from, const TensorType& to,
                                              const PnSettings& settings) {
  if (to == types::pn3t()) return std::make_unique<PnQuantizer<pn::pn3t>>(from, to, settings);
  return std::make_unique<PnQuantizer<pn::pn4t>>(from, to, settings);
}

std::unique_ptr<Conversion> make_q8_0_quantizer(const TensorType& from, const Importance* importance) {
  return std::make_unique<Q8Quantizer>(from, importance);
}

std::unique_ptr<Conversion> make_pn_decoder(const TensorType& from, const TensorType& to, std::uint32_t rotation) {
  if (from == types::pn3t()) return std::make_unique<PnDecoder<pn::pn3t>>(from, to, rotation);
  return std::make_unique<PnDecoder<pn::pn4t>>(from, to, rotation);
}

std::unique_ptr<Scanner> make_scanner(const TensorType& from, std::uint64_t row_length) {
  return std::make_unique<WeightScanner>(from, row_length);
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
