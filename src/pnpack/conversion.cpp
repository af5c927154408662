#include "conversion.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <pn/cpu.hpp>
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

using pn::cpu::Element;
using pn::cpu::Fault;

// What is converted at a time where it must rest in between: a multiple of every block, and it stays in the cache.
constexpr std::size_t piece_elements = 8 * std::size_t{5120};

// F32, F16 or BF16.
Element element_of(const TensorType& type) {
  return type == types::f32() ? Element::f32 : (type == types::f16() ? Element::f16 : Element::bf16);
}

// For calls that cannot fail: all lengths are whole blocks.
void must(pn::Status status) {
  if (status != pn::Status::ok) throw std::logic_error(pn::status_text(status));
}

// Adds packed blocks to a scan.
void add_to_scan(const std::uint8_t* blocks, std::size_t count, p12::RowScan& scan) {
  for (std::size_t b = 0; b < count; ++b) {
    const std::uint8_t* block = blocks + b * sizeof(p12::Block392);
    p12::add_block({block[0], block[1]}, scan);
  }
}

// The first element of F32, F16 or BF16 that is finite although it became an infinity of bf16; `count` if none.
std::size_t find_overflow(const TensorType& type, const std::uint8_t* in, const std::uint8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, out + 2 * i, sizeof bits);
    if ((bits & 0x7FFFu) != 0x7F80u) continue;
    float value = 0;
    must(pn::cpu::convert(in + i * type.block_bytes, element_of(type), 1, &value, Element::f32));
    if (std::isfinite(value)) return i;
  }
  return count;
}

// Elements of F32, F16 or BF16 as bf16, rounded to nearest even. not_finite, and which, when a finite one is too large.
pn::Status to_bf16(const TensorType& type, const std::uint8_t* in, std::size_t count, std::uint8_t* out,
                   std::size_t& bad) {
  must(pn::cpu::convert(in, element_of(type), count, out, Element::bf16));
  if (type == types::bf16()) return pn::Status::ok;
  bad = find_overflow(type, in, out, count);
  return bad == count ? pn::Status::ok : pn::Status::not_finite;
}

class Rounder final : public Conversion {
 public:
  explicit Rounder(const TensorType& from) : Conversion(from, types::bf16(), 1) {}

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
    Outcome outcome;
    std::size_t bad = 0;
    outcome.status = to_bf16(from_, in, units, out, bad);
    if (outcome.status != pn::Status::ok) outcome.element = bad;
    return outcome;
  }
};

class P12Packer final : public Conversion {
 public:
  P12Packer(const TensorType& from, const TensorType& p12) : Conversion(from, p12, p12::block_size) {}

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t* out) const override {
    constexpr std::size_t most = piece_elements / p12::block_size;
    Outcome outcome;
    std::vector<std::uint8_t> rounded(from_ == types::bf16() ? 0 : 2 * piece_elements);
    std::vector<std::uint8_t> unpacked(2 * piece_elements);
    for (std::size_t done = 0; done < units && outcome.status == pn::Status::ok; done += most) {
      std::size_t count = std::min(most, units - done);
      const std::uint8_t* weights = in + done * unit_bytes_in_;
      if (!rounded.empty()) {
        std::size_t bad = 0;
        outcome.status = to_bf16(from_, weights, count * p12::block_size, rounded.data(), bad);
        if (outcome.status != pn::Status::ok) {
          outcome.element = done * p12::block_size + bad;
          count = bad / p12::block_size;
        }
        weights = rounded.data();
      }
      const std::size_t k = count * p12::block_size;
      std::uint8_t* packed = out + done * unit_bytes_out_;
      if (p12::cpu::pack_rows(weights, 0, 1, k, packed, 0, &outcome.scan) != pn::Status::ok) continue;
      must(p12::cpu::unpack_rows(packed, 0, 1, k, unpacked.data(), Element::bf16, 0));
      if (std::memcmp(unpacked.data(), weights, 2 * k) != 0)
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
    Fault fault{0, units};
    outcome.status = p12::cpu::validate_rows(in, 0, 1, units * p12::block_size, &fault);
    if (outcome.status != pn::Status::ok) outcome.element = fault.index * p12::block_size;
    add_to_scan(in, fault.index, outcome.scan);
    must(p12::cpu::unpack_rows(in, 0, 1, fault.index * p12::block_size, out, Element::bf16, 0));
    return outcome;
  }
};

// Elements of F32, F16, BF16 or BF16_P12 as floats; whole blocks.
pn::Status to_floats(const TensorType& type, const std::uint8_t* in, std::size_t count, float* out,
                     std::uint64_t& bad) {
  if (!types::is_p12(type)) {
    must(pn::cpu::convert(in, element_of(type), count, out, Element::f32));
    return pn::Status::ok;
  }
  Fault fault{};
  const pn::Status status = p12::cpu::validate_rows(in, 0, 1, count, &fault);
  bad = fault.index * p12::block_size;
  if (status == pn::Status::ok) must(p12::cpu::unpack_rows(in, 0, 1, count, out, Element::f32, 0));
  return status;
}

ErrorSums sums_of(const pn::cpu::ErrorSums& sums) { return {sums.squared_error, sums.squared_weight}; }

// What quantizers share: pieces within a row, and what comes before a fault.
class Quantizer : public Conversion {
 public:
  Quantizer(const TensorType& from, const TensorType& to, std::uint64_t unit_elements, const Importance* importance)
      : Conversion(from, to, unit_elements), importance_(importance) {}

  Outcome run(const std::uint8_t* in, std::uint64_t first, std::size_t units, std::uint8_t* out) const override {
    const std::size_t unit = static_cast<std::size_t>(unit_elements_);
    const std::size_t most = std::max<std::size_t>(1, piece_elements / 8 / unit);
    std::vector<float> room(most * unit);
    Outcome outcome;
    for (std::size_t done = 0; done < units && outcome.status == pn::Status::ok;) {
      const std::uint64_t at = (first + done) * unit_elements_;
      std::size_t count = std::min(most, units - done);
      const double* importance = nullptr;
      if (importance_ != nullptr) {  // the importances of one row lie one behind the other
        importance = importance_->at(at);
        count = static_cast<std::size_t>(std::min<std::uint64_t>(count, (importance_->k - at % importance_->k) / unit));
      }
      const std::uint8_t* from = in + done * unit_bytes_in_;
      std::uint8_t* to = out + done * unit_bytes_out_;
      Outcome part = quantize(from, count * unit, importance, room.data(), to);
      // What comes before a fault counts; and in it there may be one of another kind, which is looked for later.
      for (Outcome before; part.status != pn::Status::ok; part = before) {
        const std::size_t good = static_cast<std::size_t>(part.element / unit_elements_);
        before = quantize(from, good * unit, importance, room.data(), to);
        if (before.status != pn::Status::ok) continue;
        before.status = part.status;
        before.element = part.element;
        part = before;
        break;
      }
      outcome.append(part, done * unit_elements_);
      done += count;
    }
    return outcome;
  }

 private:
  // Quantizes k weights. room: k floats. On a failure the element is set and nothing else counts.
  virtual Outcome quantize(const std::uint8_t* in, std::size_t k, const double* importance, float* room,
                           std::uint8_t* out) const = 0;

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
  Outcome quantize(const std::uint8_t* in, std::size_t k, const double* importance, float* room,
                   std::uint8_t* out) const override {
    Outcome outcome;
    const void* weights = in;
    Element element = element_of(from_);
    if (rotation_ != 0 || types::is_p12(from_)) {
      outcome.status = to_floats(from_, in, k, room, outcome.element);
      std::size_t bad = 0;
      if (outcome.status == pn::Status::ok && rotation_ != 0) {
        outcome.status = pn::hadamard_weights(room, room, k, rotation_, &bad);
        outcome.element = bad;
      }
      if (outcome.status != pn::Status::ok) return outcome;
      weights = room;
      element = Element::f32;
    }
    Fault fault{};
    outcome.status =
        pn::cpu::quantize_rows<T>(weights, element, 0, 1, k, weighted_search_ ? importance : nullptr, out, 0, &fault);
    outcome.element = fault.index;
    if (outcome.status != pn::Status::ok) return outcome;
    pn::cpu::ErrorSums error;
    must(pn::cpu::add_error<T>(weights, element, 0, 1, k, nullptr, out, 0, error));
    outcome.error = sums_of(error);
    if (importance != nullptr) {
      pn::cpu::ErrorSums weighted;
      must(pn::cpu::add_error<T>(weights, element, 0, 1, k, importance, out, 0, weighted));
      outcome.weighted_error = sums_of(weighted);
    }
    return outcome;
  }

  std::uint32_t rotation_;
  bool weighted_search_;
};

class Q8Quantizer final : public Quantizer {
 public:
  Q8Quantizer(const TensorType& from, const Importance* importance)
      : Quantizer(from, types::q8_0(), common_block(from, types::q8_0()), importance) {}

 private:
  Outcome quantize(const std::uint8_t* in, std::size_t k, const double* importance, float* room,
                   std::uint8_t* out) const override {
    constexpr std::size_t size = pn::q8_0_block_size;
    Outcome outcome;
    outcome.status = to_floats(from_, in, k, room, outcome.element);
    if (outcome.status != pn::Status::ok) return outcome;
    std::size_t bad = 0;
    auto* blocks = reinterpret_cast<pn::BlockQ8_0*>(out);  // which has no alignment
    outcome.status = pn::quantize_row_q8_0(room, k, blocks, &bad);
    outcome.element = bad;
    if (outcome.status != pn::Status::ok) return outcome;
    for (std::size_t b = 0; b < k / size; ++b) {
      const pn::BlockQ8_0& block = blocks[b];
      std::uint16_t d = 0;
      std::memcpy(&d, block.d, sizeof d);
      const double scale = static_cast<double>(pn::half_to_float(d));
      if (!std::isfinite(scale)) {
        outcome.status = pn::Status::scale_overflow;
        outcome.element = b * size;
        return outcome;
      }
      for (std::size_t e = 0; e < size; ++e) {
        const double w = static_cast<double>(room[b * size + e]);
        const double r = w - scale * block.qs[e];
        outcome.error.add({r * r, w * w});
        if (importance == nullptr) continue;
        const double g = importance[b * size + e];
        outcome.weighted_error.add({g * (r * r), g * (w * w)});
      }
    }
    return outcome;
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
    const std::size_t unit = static_cast<std::size_t>(unit_elements_);
    const std::size_t most = std::max<std::size_t>(1, piece_elements / 8 / unit);
    std::vector<float> weights(most * unit);
    std::vector<std::uint16_t> bits(to_ == types::f32() ? 0 : most * unit);
    for (std::size_t done = 0; done < units && outcome.status == pn::Status::ok; done += most) {
      std::size_t k = std::min(most, units - done) * unit;
      const std::uint8_t* blocks = in + done * unit_bytes_in_;
      Fault fault{};
      outcome.status = pn::cpu::validate_rows<T>(blocks, 0, 1, k, &fault);
      if (outcome.status != pn::Status::ok) {
        outcome.element = done * unit + fault.index * T::block_size;
        k = fault.index * T::block_size / unit * unit;
      }
      std::size_t bad = 0;
      const pn::Status stored = rotation_ == 0
                                    ? store(blocks, k, bits, out + done * unit_bytes_out_, bad)
                                    : store_rotated(blocks, k, weights, bits, out + done * unit_bytes_out_, bad);
      if (stored != pn::Status::ok) {
        outcome.status = stored;
        outcome.element = done * unit + bad;
      }
    }
    return outcome;
  }

 private:
  // not_finite: finite before the conversion, beyond the target's range after it. What comes before is stored.
  pn::Status store(const std::uint8_t* blocks, std::size_t k, std::vector<std::uint16_t>& bits, std::uint8_t* out,
                   std::size_t& bad) const {
    if (to_ == types::f32()) {
      must(pn::cpu::dequantize_rows<T>(blocks, 0, 1, 0, k, out, Element::f32, 0));
      return pn::Status::ok;
    }
    const std::uint16_t infinity = to_ == types::bf16() ? 0x7F80 : 0x7C00;
    must(pn::cpu::dequantize_rows<T>(blocks, 0, 1, 0, k, bits.data(), element_of(to_), 0));
    bad = 0;
    while (bad < k && (bits[bad] & infinity) != infinity) ++bad;
    std::memcpy(out, bits.data(), bad * sizeof(std::uint16_t));
    return bad == k ? pn::Status::ok : pn::Status::not_finite;
  }

  pn::Status store_rotated(const std::uint8_t* blocks, std::size_t k, std::vector<float>& weights,
                           std::vector<std::uint16_t>& bits, std::uint8_t* out, std::size_t& bad) const {
    must(pn::cpu::dequantize_rows<T>(blocks, 0, 1, 0, k, weights.data(), Element::f32, 0));
    pn::Status status = pn::Status::ok;
    if (to_ == types::f32()) {
      status = pn::hadamard_weights(weights.data(), weights.data(), k, rotation_, &bad);
      std::memcpy(out, weights.data(), k * sizeof(float));
      return status;
    }
    status = to_ == types::bf16() ? pn::hadamard_weights_to_bf16(weights.data(), bits.data(), k, rotation_, &bad)
                                  : pn::hadamard_weights_to_half(weights.data(), bits.data(), k, rotation_, &bad);
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
      outcome.status =
          to_bf16(from_, in + done * from_.block_bytes, count, reinterpret_cast<std::uint8_t*>(weights.data()), bad);
      if (outcome.status != pn::Status::ok) {
        outcome.element = done + bad;
        break;
      }
      seen.add(weights.data(), count);
      if (has_blocks_) must(p12::cpu::scan_rows(weights.data(), 0, 1, count, outcome.scan));
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

// Looks at the blocks of a type.
class Validator final : public Conversion {
 public:
  explicit Validator(const TensorType& type) : Conversion(type, type, type.block) { unit_bytes_out_ = 0; }

  Outcome run(const std::uint8_t* in, std::uint64_t, std::size_t units, std::uint8_t*) const override {
    Outcome outcome;
    Fault fault{0, units};
    const std::size_t k = units * static_cast<std::size_t>(unit_elements_);
    if (types::is_p12(from_)) {
      outcome.status = p12::cpu::validate_rows(in, 0, 1, k, &fault);
      add_to_scan(in, fault.index, outcome.scan);
    } else if (from_ == types::pn3t()) {
      outcome.status = pn::cpu::validate_rows<pn::pn3t>(in, 0, 1, k, &fault);
    } else {
      outcome.status = pn::cpu::validate_rows<pn::pn4t>(in, 0, 1, k, &fault);
    }
    if (outcome.status != pn::Status::ok) outcome.element = fault.index * unit_elements_;
    return outcome;
  }
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

std::unique_ptr<Conversion> make_validator(const TensorType& type) { return std::make_unique<Validator>(type); }

bool can_quantize_from(const TensorType& type) {
  return type == types::f32() || type == types::f16() || type == types::bf16() || types::is_p12(type);
}

std::uint64_t common_block(const TensorType& a, const TensorType& b) {
  return std::lcm(std::uint64_t{a.block}, std::uint64_t{b.block});
}

}  // namespace pnpack
