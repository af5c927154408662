// What has to come out of the verbs, tensor by tensor, by the core alone.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <string>
#include <vector>

#include "attempt.hpp"
#include "gguf_builder.hpp"
#include "io/layout.hpp"
#include "pnpack/mix.hpp"
#include "pnpack/recipe.hpp"

namespace fuzz {

namespace types = pn::io::types;
using pn::io::Tensor;
using pn::io::TensorType;

// A file that was read.
struct View {
  const Text* bytes = nullptr;
  const pn::io::Layout* layout = nullptr;
  std::vector<std::pair<std::string, std::string>> entries;  // keys or entries of __metadata__ that are not ours

  const std::vector<Tensor>& tensors() const { return layout->tensors; }
  const std::uint8_t* data(const Tensor& tensor) const { return bytes->data() + tensor.offset; }
  Text bytes_of(const Tensor& tensor) const {
    const auto from =
        bytes->begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(tensor.offset, bytes->size()));
    return {from, from + static_cast<std::ptrdiff_t>(tensor.bytes)};
  }
};

// Everything that code behind the readers relies on, whatever the kind of file.
inline void require_sound(const View& file) {
  const pn::io::Layout& layout = *file.layout;
  const std::uint64_t size = file.bytes->size();
  FUZZ_REQUIRE(layout.header_end <= size && layout.data_start >= layout.header_end);
  FUZZ_REQUIRE(layout.data_start % layout.alignment == 0 && layout.data_start - layout.header_end < layout.alignment);
  FUZZ_REQUIRE(layout.data_end <= layout.tail_start && layout.tail_start <= size);
  FUZZ_REQUIRE(layout.tail_start - layout.data_end < layout.alignment);
  std::set<std::string> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
  for (const Tensor& tensor : layout.tensors) {
    FUZZ_REQUIRE(names.insert(tensor.name).second);
    FUZZ_REQUIRE(tensor.offset % layout.alignment == 0 && tensor.offset >= layout.data_start);
    const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0u) != tensor.shape.end();
    std::uint64_t elements = empty ? 0 : 1;
    for (const std::uint64_t n : tensor.shape) {
      FUZZ_REQUIRE(empty || elements <= std::numeric_limits<std::uint64_t>::max() / n);
      elements *= n;
    }
    FUZZ_REQUIRE(elements == tensor.elements);
    if (tensor.bytes == 0) continue;
    FUZZ_REQUIRE(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
    FUZZ_REQUIRE(tensor.offset + tensor.bytes <= layout.data_end);
    if (tensor.type.known()) {
      FUZZ_REQUIRE(tensor.row_length() % tensor.type.block == 0);
      FUZZ_REQUIRE(elements / tensor.type.block * tensor.type.block_bytes == tensor.bytes);
    }
    extents.emplace_back(tensor.offset, tensor.bytes);
  }
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i)
    FUZZ_REQUIRE(extents[i].first - extents[i - 1].first >= extents[i - 1].second);
}

inline bool holds(const View& file, const Tensor& tensor, const Text& bytes) {
  return tensor.bytes == bytes.size() &&
         (bytes.empty() || std::memcmp(file.data(tensor), bytes.data(), bytes.size()) == 0);
}

// A tensor that was copied. The extent of an unknown type may grow or shrink by padding where there is any.
inline bool holds_copy(const View& out, const Tensor& copy, const View& in, const Tensor& tensor) {
  if (copy.type != tensor.type || copy.shape != tensor.shape) return false;
  if ((tensor.type.known() || in.layout->alignment == 1) && copy.bytes != tensor.bytes) return false;
  const auto common = static_cast<std::size_t>(std::min(copy.bytes, tensor.bytes));
  return common == 0 || std::memcmp(out.data(copy), in.data(tensor), common) == 0;
}

// ---- Blocks

// Index of the first invalid block.
inline std::optional<std::size_t> first_invalid(const View& file, const Tensor& tensor) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  std::size_t bad = 0;
  pn::Status status = pn::Status::ok;
  if (k == 0 || !types::is_packed(tensor.type)) return std::nullopt;
  if (types::is_p12(tensor.type)) {
    status = p12::validate_row(reinterpret_cast<const p12::Block392*>(file.data(tensor)), k, &bad);
  } else {
    const auto* row = reinterpret_cast<const pn::Block34*>(file.data(tensor));
    status = tensor.type == types::pn3t() ? pn::validate_row<pn::pn3t>(row, k, &bad)
                                          : pn::validate_row<pn::pn4t>(row, k, &bad);
  }
  return status == pn::Status::ok ? std::optional<std::size_t>() : bad;
}

inline bool all_valid(const View& file) {
  return std::none_of(file.tensors().begin(), file.tensors().end(),
                      [&](const Tensor& tensor) { return first_invalid(file, tensor).has_value(); });
}

inline bool has_pn(const View& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [](const Tensor& t) { return types::is_pn(t.type); });
}

// ---- Packing

// F32, F16 or BF16 as BF16; nullopt when a finite weight becomes infinite.
inline std::optional<std::vector<std::uint16_t>> rounded(const View& file, const Tensor& tensor) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  std::vector<std::uint16_t> bits(k);
  if (k == 0) return bits;
  if (tensor.type != types::f32()) std::memcpy(bits.data(), file.data(tensor), 2 * k);
  if (tensor.type == types::bf16()) return bits;
  for (std::size_t i = 0; i < k; ++i) {
    float weight = pn::half_to_float(bits[i]);
    if (tensor.type == types::f32()) std::memcpy(&weight, file.data(tensor) + 4 * i, sizeof weight);
    bits[i] = pn::float_to_bf16(weight);
    if (std::isfinite(weight) && (bits[i] & 0x7FFFu) == 0x7F80u) return std::nullopt;
  }
  return bits;
}

struct Packing {
  bool candidate = false;  // tried
  bool rounds = false;     // F32 or F16, and --as bf16
  bool fails = false;      // the whole of pack does
  bool packed = false;
  std::optional<Text> bytes;  // nullopt: stays
};

inline Packing packing(const View& file, const Tensor& tensor, bool as_bf16) {
  Packing result;
  const auto k = static_cast<std::size_t>(tensor.elements);
  result.rounds = as_bf16 && (tensor.type == types::f32() || tensor.type == types::f16());
  if ((tensor.type != types::bf16() && !result.rounds) || tensor.shape.size() < 2 || k == 0) {
    result.rounds = false;
    return result;
  }
  result.candidate = tensor.row_length() % 256 == 0;
  const auto weights = rounded(file, tensor);
  if (!weights) {
    result.fails = true;
    return result;
  }
  std::vector<p12::Block392> blocks(k / 256);
  if (result.candidate && p12::pack_row(weights->data(), k, blocks.data()) == pn::Status::ok) {
    result.packed = true;
    append(result.bytes.emplace(), blocks);
  } else if (result.rounds) {
    append(result.bytes.emplace(), *weights);
  }
  return result;
}

// ---- Unpacking

// The bytes of a packed tensor unpacked; nullopt when that must fail.
inline std::optional<Text> unpacked_bytes(const View& file, const Tensor& tensor, const std::string& to,
                                          std::uint32_t rotation) {
  if (first_invalid(file, tensor)) return std::nullopt;
  const auto k = static_cast<std::size_t>(tensor.elements);
  Text out;
  if (k == 0) return out;
  if (types::is_p12(tensor.type)) {
    std::vector<std::uint16_t> weights(k);
    FUZZ_REQUIRE(p12::unpack_row(reinterpret_cast<const p12::Block392*>(file.data(tensor)), k, weights.data()) ==
                 pn::Status::ok);
    append(out, weights);
    return out;
  }
  std::vector<float> weights(k);
  const auto* row = reinterpret_cast<const pn::Block34*>(file.data(tensor));
  if (tensor.type == types::pn3t()) {
    FUZZ_REQUIRE(pn::decode_row<pn::pn3t>(row, k, weights.data()) == pn::Status::ok);
  } else {
    FUZZ_REQUIRE(pn::decode_row<pn::pn4t>(row, k, weights.data()) == pn::Status::ok);
  }
  std::vector<std::uint16_t> shorter(k);
  if (rotation != 0) {
    const pn::Status status = to == "f16"    ? pn::hadamard_weights_to_half(weights.data(), shorter.data(), k, rotation)
                              : to == "bf16" ? pn::hadamard_weights_to_bf16(weights.data(), shorter.data(), k, rotation)
                                             : pn::hadamard_weights(weights.data(), weights.data(), k, rotation);
    if (status != pn::Status::ok) return std::nullopt;
  } else {
    for (std::size_t i = 0; i < k && to != "f32"; ++i) {
      shorter[i] = to == "f16" ? pn::float_to_half(weights[i]) : pn::float_to_bf16(weights[i]);
      if (to == "f16" && (shorter[i] & 0x7C00u) == 0x7C00u) return std::nullopt;
    }
  }
  if (to == "f32") {
    append(out, weights);
  } else {
    append(out, shorter);
  }
  return out;
}

inline const TensorType& target_type(const std::string& to) {
  return to == "f16" ? types::f16() : to == "bf16" ? types::bf16() : types::f32();
}

// ---- Quantizing

struct Planned {
  TensorType type;       // afterwards
  bool becomes = false;  // quantized, or taken from the donor
  bool from_donor = false;
  bool donor_fails = false;
  std::uint32_t rotation = 0;
};

// What the rules of a choice, whose donor is the file itself, make of a tensor.
inline Planned planned(const Choice& choice, const pnpack::Mix& mix, const Tensor& tensor) {
  using pnpack::Treatment;
  Planned result;
  result.type = tensor.type;
  const pnpack::Rule* rule = mix.match(tensor.name, tensor.row_length());
  if (rule == nullptr || rule->treatment == Treatment::keep) return result;
  if (rule->treatment == Treatment::donor) {
    result.becomes = result.from_donor = true;
    result.donor_fails = !tensor.type.known() || types::is_packed(tensor.type);
    return result;
  }
  const TensorType& to = rule->treatment == Treatment::pn3t   ? types::pn3t()
                         : rule->treatment == Treatment::pn4t ? types::pn4t()
                                                              : types::q8_0();
  const bool numbers = tensor.type == types::f32() || tensor.type == types::f16() || tensor.type == types::bf16() ||
                       types::is_p12(tensor.type);
  if (!numbers || tensor.shape.size() < 2 || tensor.elements == 0 || tensor.row_length() % to.block != 0) return result;
  result.becomes = true;
  result.type = to;
  const std::string embedding = "embed_tokens.weight";
  const bool is_embedding =
      tensor.name == "token_embd.weight" ||
      (tensor.name.size() >= embedding.size() &&
       tensor.name.compare(tensor.name.size() - embedding.size(), embedding.size(), embedding) == 0);
  if (types::is_pn(to) && !is_embedding) result.rotation = choice.rotate;
  return result;
}

inline pnpack::Mix mix_of(const Choice& choice) {
  if (!choice.mix) return pnpack::Mix::of_type(choice.pn3t ? pnpack::Treatment::pn3t : pnpack::Treatment::pn4t);
  folder().write(rules_name(), Text(choice.mix->begin(), choice.mix->end()));
  return pnpack::Mix::read(pn::io::InputFile(folder().path(rules_name())), nullptr);
}

struct Quantized {
  Text bytes;
  double nrmse = 0;
};

// A tensor quantized; nullopt when that must fail.
inline std::optional<Quantized> quantized(const View& file, const Tensor& tensor, const TensorType& to,
                                          std::uint32_t rotation) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  std::vector<float> weights(k);
  if (tensor.type == types::f32()) {
    std::memcpy(weights.data(), file.data(tensor), 4 * k);
  } else if (types::is_p12(tensor.type) && first_invalid(file, tensor)) {
    return std::nullopt;
  } else {
    std::vector<std::uint16_t> halves(k);
    if (types::is_p12(tensor.type)) {
      FUZZ_REQUIRE(p12::unpack_row(reinterpret_cast<const p12::Block392*>(file.data(tensor)), k, halves.data()) ==
                   pn::Status::ok);
    } else {
      std::memcpy(halves.data(), file.data(tensor), 2 * k);
    }
    for (std::size_t i = 0; i < k; ++i)
      weights[i] = tensor.type == types::f16() ? pn::half_to_float(halves[i]) : pn::bf16_to_float(halves[i]);
  }
  if (rotation != 0 && pn::hadamard_weights(weights.data(), weights.data(), k, rotation) != pn::Status::ok)
    return std::nullopt;
  Quantized result;
  std::vector<float> decoded(k);
  if (to == types::q8_0()) {
    std::vector<pn::BlockQ8_0> blocks(k / 32);
    if (pn::quantize_row_q8_0(weights.data(), k, blocks.data()) != pn::Status::ok) return std::nullopt;
    for (std::size_t i = 0; i < k; ++i) {
      const pn::BlockQ8_0& block = blocks[i / 32];
      const float d = pn::half_to_float(static_cast<std::uint16_t>(block.d[0] | block.d[1] << 8));
      if (!std::isfinite(d)) return std::nullopt;
      decoded[i] = d * static_cast<float>(block.qs[i % 32]);
    }
    append(result.bytes, blocks);
  } else {
    std::vector<pn::Block34> blocks(k / to.block);
    const bool pn3t = to == types::pn3t();
    const pn::Status status = pn3t ? pn::quantize_row<pn::pn3t>(weights.data(), k, blocks.data())
                                   : pn::quantize_row<pn::pn4t>(weights.data(), k, blocks.data());
    if (status != pn::Status::ok) return std::nullopt;
    FUZZ_REQUIRE((pn3t ? pn::decode_row<pn::pn3t>(blocks.data(), k, decoded.data())
                       : pn::decode_row<pn::pn4t>(blocks.data(), k, decoded.data())) == pn::Status::ok);
    append(result.bytes, blocks);
  }
  double error = 0;
  double square = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const double w = static_cast<double>(weights[i]);
    const double r = w - static_cast<double>(decoded[i]);
    error += r * r;
    square += w * w;
  }
  if (square != 0) result.nrmse = std::sqrt(error / square);
  return result;
}

// ---- The verbs that only look

// check, of a file whose structure is sound.
inline void require_checked(const pnpack::Report& report, const View& file, std::size_t first = 0) {
  for (std::size_t t = 0; t < file.tensors().size(); ++t) {
    const Tensor& tensor = file.tensors()[t];
    const pnpack::TensorReport& entry = report.tensors[first + t];
    const auto bad = first_invalid(file, tensor);
    FUZZ_REQUIRE(entry.name == tensor.name && entry.good == !bad.has_value());
    if (!bad) continue;
    FUZZ_REQUIRE(entry.first->block == *bad);
    FUZZ_REQUIRE(entry.first->offset == tensor.offset + *bad * tensor.type.block_bytes);
  }
}

// Sums over the tensors that were scanned.
struct Scanned {
  std::uint64_t weights = 0;
  bool fails = false;
};

inline void require_scanned(const pnpack::Report* report, const View& file, const Choice& choice, Scanned& all,
                            std::size_t first = 0) {
  for (std::size_t t = 0; t < file.tensors().size(); ++t) {
    const Tensor& tensor = file.tensors()[t];
    const bool looks =
        tensor.elements != 0 && (tensor.type == types::bf16() ||
                                 (choice.as_bf16 && (tensor.type == types::f32() || tensor.type == types::f16())));
    const auto weights = looks ? rounded(file, tensor) : std::nullopt;
    if (looks && !weights) all.fails = true;
    if (report == nullptr) continue;
    const pnpack::TensorReport& entry = report->tensors[first + t];
    FUZZ_REQUIRE(entry.name == tensor.name && static_cast<bool>(entry.statistics) == looks);
    FUZZ_REQUIRE(entry.converted == packing(file, tensor, choice.as_bf16).packed);
    if (!weights) continue;
    all.weights += weights->size();
    const pnpack::StatisticsSummary& seen = *entry.statistics;
    FUZZ_REQUIRE(seen.count == weights->size());
    std::vector<std::uint64_t> exponents(256);
    for (const std::uint16_t weight : *weights) ++exponents[weight >> 7 & 0xFFu];
    for (std::size_t e = 0; e < 256; ++e) {
      const std::size_t at = e - static_cast<std::size_t>(seen.first_exponent);  // wraps below it
      FUZZ_REQUIRE(exponents[e] == (at < seen.exponents.size() ? seen.exponents[at] : 0));
    }
    FUZZ_REQUIRE(seen.entropy_low >= 0 && seen.entropy_low <= 8.000001);
    FUZZ_REQUIRE(seen.entropy_high >= 0 && seen.entropy_high <= 8.000001);
    const bool blocks = tensor.shape.size() >= 2 && tensor.row_length() % 256 == 0;
    FUZZ_REQUIRE(entry.p12.has_value() == blocks);
    if (!blocks) continue;
    p12::RowScan scan;
    FUZZ_REQUIRE(p12::scan_row(weights->data(), weights->size(), scan) == pn::Status::ok);
    FUZZ_REQUIRE(scan.blocks == entry.p12->blocks &&
                 std::equal(scan.by_listed, scan.by_listed + 4, entry.p12->by_listed));
    FUZZ_REQUIRE(scan.worst_listed == entry.p12->worst_listed && scan.worst_block == entry.p12->worst_block);
  }
}

inline std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// scan of `in`, which holds these files; with a page, whatever the names in it.
inline void check_scan(const std::string& in, const std::vector<View>& files, const Choice& choice) {
  pnpack::Options options = options_for(choice, "scan", in);
  if (choice.page) options.html = folder().path("page.html");
  const Attempt scanned = attempt(options, choice.page ? "page.html" : "");
  Scanned all;
  std::size_t first = 0;
  for (const View& file : files) {
    require_scanned(scanned.report ? &*scanned.report : nullptr, file, choice, all, first);
    first += file.tensors().size();
  }
  FUZZ_REQUIRE(scanned.error.has_value() == all.fails);
  if (scanned.error) {
    FUZZ_REQUIRE(scanned.error->fault() == pn::io::Fault::input);
    return;
  }
  FUZZ_REQUIRE(scanned.report->tensors.size() == first);
  FUZZ_REQUIRE(scanned.report->statistics.has_value() == (all.weights != 0));
  if (all.weights != 0) FUZZ_REQUIRE(scanned.report->statistics->count == all.weights);
  if (!choice.page) return;
  const Text bytes = folder().read("page.html");
  const std::string page(bytes.begin(), bytes.end());
  require_printable(page, true);
  FUZZ_REQUIRE(occurrences(page, "<script") == 2 && occurrences(page, "</script") == 2);
  FUZZ_REQUIRE(occurrences(page, "<h1") == 1 && occurrences(page, "</table>") == 2);
  folder().remove("page.html");
}

// In how many weights, or blocks of a type that is not decoded, two tensors of one type and shape differ; nullopt when
// one of them has an invalid block.
inline std::optional<std::uint64_t> differing(const View& a, const Tensor& here, const View& b, const Tensor& there) {
  if (first_invalid(a, here) || first_invalid(b, there)) return std::nullopt;
  const bool decodes = types::is_packed(here.type);
  const Text first = decodes ? *unpacked_bytes(a, here, "f32", 0) : a.bytes_of(here);
  const Text second = decodes ? *unpacked_bytes(b, there, "f32", 0) : b.bytes_of(there);
  const std::size_t unit = types::is_p12(here.type) ? 2 : decodes ? 4 : here.type.block_bytes;
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < first.size(); at += unit)
    if (std::memcmp(&first[at], &second[at], unit) != 0) ++count;
  return count;
}

// diff of two models of one kind of file, each in one file.
inline void check_diff(const std::string& first, const View& a, const std::string& second, const View& b,
                       const Choice& choice) {
  const Attempt compared = attempt(options_for(choice, "diff", first, second));
  FUZZ_REQUIRE(compared.report.has_value());
  const pnpack::Report& report = *compared.report;
  const auto find = [](const View& file, const std::string& name) {
    const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                    [&](const Tensor& tensor) { return tensor.name == name; });
    return found == file.tensors().end() ? nullptr : &*found;
  };
  const pn::io::PackRecord& ours = a.layout->record;
  const pn::io::PackRecord& theirs = b.layout->record;
  bool same = true;
  std::size_t next = 0;
  for (const Tensor& tensor : a.tensors()) {
    const pnpack::TensorReport& entry = report.tensors[next++];
    const Tensor* other = find(b, tensor.name);
    const bool comparable = other != nullptr && other->type == tensor.type && other->shape == tensor.shape;
    // The same bytes mean other weights where they are rotated in another way.
    const bool rotated =
        comparable && types::is_pn(tensor.type) && ours.rotation_of(tensor.name) != theirs.rotation_of(tensor.name);
    const bool equal = comparable && !rotated && a.bytes_of(tensor) == b.bytes_of(*other);
    same = same && equal;
    FUZZ_REQUIRE(entry.good == equal);
    if (!equal && comparable && !rotated && tensor.type.known())
      FUZZ_REQUIRE(entry.different == differing(a, tensor, b, *other));
  }
  for (const Tensor& tensor : b.tensors()) {
    if (find(a, tensor.name) != nullptr) continue;
    FUZZ_REQUIRE(report.tensors[next].name == tensor.name && report.tensors[next].good == false);
    ++next;
    same = false;
  }
  FUZZ_REQUIRE(next == report.tensors.size());
  const std::map<std::string, std::string> entries(a.entries.begin(), a.entries.end());
  const std::map<std::string, std::string> others(b.entries.begin(), b.entries.end());
  std::size_t different = 0;
  for (const auto& [name, value] : entries) {
    const auto found = others.find(name);
    different += found == others.end() || found->second != value ? 1u : 0u;
  }
  for (const auto& [name, value] : others) different += entries.count(name) == 0 ? 1u : 0u;
  if (ours.pn && theirs.pn && ours.weighted_search != theirs.weighted_search) ++different;
  if (ours.p12 && theirs.p12 && ours.rounded_from != theirs.rounded_from) ++different;
  FUZZ_REQUIRE(report.warnings.size() == different);
  FUZZ_REQUIRE(report.ok == (same && different == 0));
}

}  // namespace fuzz
