// verify: is PACKED what packing or quantizing ORIGINAL gives? Every tensor is compared, bit for bit.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
namespace types = pn::io::types;

namespace {

// Compares bytes that arrive in pieces with those of a tensor in a file.
class Comparison {
 public:
  Comparison(const pn::io::InputFile& file, const Tensor& tensor) : file_(file), tensor_(tensor) {}

  void add(const std::uint8_t* bytes, std::size_t length) {
    if (!difference_) {
      const std::uint8_t* others = file_.read(tensor_.offset + done_, length, scratch_);
      if (std::memcmp(bytes, others, length) != 0)
        difference_ = done_ + static_cast<std::uint64_t>(std::mismatch(bytes, bytes + length, others).first - bytes);
      file_.release(tensor_.offset + done_, length);
    }
    done_ += length;
  }

  // Byte of the tensor at which the two differ first.
  const std::optional<std::uint64_t>& difference() const { return difference_; }

 private:
  const pn::io::InputFile& file_;
  const Tensor& tensor_;
  std::vector<std::uint8_t> scratch_;
  std::uint64_t done_ = 0;
  std::optional<std::uint64_t> difference_;
};

class Verifier {
 public:
  Verifier(const Engine& engine, const Model& packed, const Model& original)
      : engine_(engine), packed_(packed), original_(original) {}

  TensorReport compare(const Tensor& packed, const Tensor& original) const {
    TensorReport report(packed);
    report.type_out = original.type.name;
    report.bytes_out = original.bytes;
    report.good = true;
    if (packed.shape != original.shape) {
      differ(report, "has another shape in the original");
    } else if (packed.type == original.type) {
      compare_bytes(packed, original, report);
    } else if (types::is_p12(packed.type) && original.type == types::bf16()) {
      if (packed.elements != 0) compare_p12(packed, original, report);
      report.converted = true;
    } else if (types::is_pn(packed.type) && can_quantize_from(original.type)) {
      if (packed.elements != 0) compare_pn(packed, original, report);
      report.converted = true;
    } else {
      differ(report, fmt::format("is {} here and {} in the original", packed.type.name, original.type.name));
    }
    return report;
  }

  static void differ(TensorReport& report, std::string reason, std::optional<std::uint64_t> element = {},
                     std::optional<std::uint64_t> block = {}, std::optional<std::uint64_t> offset = {}) {
    report.good = false;
    report.reason = std::move(reason);
    report.first = Place{report.name, element, block, offset};
  }

 private:
  void compare_bytes(const Tensor& packed, const Tensor& original, TensorReport& report) const {
    const std::uint64_t common = std::min(packed.bytes, original.bytes);
    Comparison comparison(original_.file, original);
    stream_bytes(engine_, packed_.file, packed.offset, common,
                 [&](const std::uint8_t* bytes, std::size_t length) { comparison.add(bytes, length); });
    if (comparison.difference()) {
      const std::uint64_t at = *comparison.difference();
      const std::uint64_t unit = packed.type.known() ? at / packed.type.block_bytes : at;
      if (packed.type.known() && packed.type.block == 1) {
        differ(report, "differs first at " + element_text(packed, unit), unit, {},
               packed.offset + unit * packed.type.block_bytes);
      } else if (packed.type.known()) {
        differ(report, "differs first in " + block_text(packed, unit, packed.type.block), {}, unit,
               packed.offset + unit * packed.type.block_bytes);
      } else {
        differ(report, fmt::format("differs first at its byte {}", at), {}, {}, packed.offset + at);
      }
    } else if (packed.bytes != original.bytes) {  // only an unknown type can do this
      differ(report, fmt::format("has {} bytes here and {} in the original", packed.bytes, original.bytes), {}, {},
             packed.offset + common);
    }
  }

  void compare_p12(const Tensor& packed, const Tensor& original, TensorReport& report) const {
    Comparison comparison(original_.file, original);
    const auto unpacker = make_p12_unpacker(packed.type);
    const Outcome outcome =
        stream(engine_, packed_.file, packed, *unpacker,
               [&](const std::uint8_t* bytes, std::size_t length, const Outcome&) { comparison.add(bytes, length); });
    // What comes before an invalid block has been compared, so the earlier place wins.
    if (comparison.difference()) {
      const std::uint64_t element = *comparison.difference() / sizeof(std::uint16_t);
      const std::uint64_t block = element / packed.type.block;
      differ(report, "differs first at " + element_text(packed, element), element, {},
             packed.offset + block * packed.type.block_bytes);
    } else if (outcome.status != pn::Status::ok) {
      const std::uint64_t block = outcome.element / packed.type.block;
      differ(report, block_text(packed, block, packed.type.block) + " is not valid: " + pn::status_text(outcome.status),
             {}, block, packed.offset + block * packed.type.block_bytes);
    } else {
      report.p12 = outcome.scan;
    }
  }

  void compare_pn(const Tensor& packed, const Tensor& original, TensorReport& report) const {
    if (packed_.gguf.weighted_search || packed_.gguf.hadamard_block != 0)
      throw Error(Fault::input, packed_.file.path(),
                  "was quantized with importances or rotated, which this version cannot repeat");
    Comparison comparison(packed_.file, packed);
    const auto quantizer = make_pn_quantizer(original.type, packed.type);
    const Outcome outcome =
        stream(engine_, original_.file, original, *quantizer,
               [&](const std::uint8_t* bytes, std::size_t length, const Outcome&) { comparison.add(bytes, length); });
    if (outcome.status != pn::Status::ok) throw quantize_error(original_, original, packed.type, outcome);
    if (comparison.difference()) {
      const std::uint64_t block = *comparison.difference() / packed.type.block_bytes;
      differ(report, "differs first in " + block_text(packed, block, packed.type.block), {}, block,
             packed.offset + block * packed.type.block_bytes);
    } else {
      report.nrmse = nrmse(outcome.squared_error, outcome.squared_weight);
    }
  }

  const Engine& engine_;
  const Model& packed_;
  const Model& original_;
};

// The entries of a header as bytes, without the keys that pn adds.
std::unordered_map<std::string, std::string> foreign_keys(const Model& model) {
  std::unordered_map<std::string, std::string> keys;
  std::vector<std::uint8_t> scratch;
  for (const pn::io::GgufKey& key : model.gguf.keys) {
    if (pn::io::is_own_key(key.name)) continue;
    const std::uint8_t* bytes = model.file.read(key.offset, static_cast<std::size_t>(key.bytes), scratch);
    keys.emplace(key.name, std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(key.bytes)));
  }
  return keys;
}

void warn_about_keys(const Model& packed, const Model& original, Report& report) {
  const auto ours = foreign_keys(packed);
  const auto theirs = foreign_keys(original);
  for (const auto& [name, entry] : theirs) {
    const auto other = ours.find(name);
    if (other == ours.end())
      report.warnings.push_back("the key " + name + " of the original is missing");
    else if (other->second != entry)
      report.warnings.push_back("the key " + name + " has another value in the original");
  }
  for (const auto& [name, entry] : ours)
    if (theirs.find(name) == theirs.end()) report.warnings.push_back("the key " + name + " is not in the original");
  std::sort(report.warnings.begin(), report.warnings.end());
}

bool has_packed_tensors(const Model& model) {
  return std::any_of(model.gguf.tensors.begin(), model.gguf.tensors.end(),
                     [](const Tensor& tensor) { return types::is_p12(tensor.type) || types::is_pn(tensor.type); });
}

}  // namespace

Report verify(const Options& options) {
  const Model packed(options.input);
  const Model original(options.second);
  Workers workers(options.threads);
  Progress progress("verifying", packed.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  const Verifier verifier(engine, packed, original);

  std::unordered_map<std::string, const Tensor*> originals;
  for (const Tensor& tensor : original.gguf.tensors) originals.emplace(tensor.name, &tensor);

  Report report;
  for (const Tensor& tensor : packed.gguf.tensors) {
    const auto found = originals.find(tensor.name);
    if (found == originals.end()) {
      TensorReport entry(tensor);
      entry.type_out = "-";
      entry.bytes_out = 0;
      Verifier::differ(entry, "is not in the original", {}, {}, tensor.offset);
      report.tensors.push_back(std::move(entry));
      continue;
    }
    report.tensors.push_back(verifier.compare(tensor, *found->second));
    originals.erase(found);
  }
  for (const Tensor& tensor : original.gguf.tensors) {
    if (originals.find(tensor.name) == originals.end()) continue;
    TensorReport entry(tensor);
    entry.type_in = "-";
    entry.bytes_in = 0;
    Verifier::differ(entry, "is only in the original");
    report.tensors.push_back(std::move(entry));
  }
  warn_about_keys(packed, original, report);
  if (!has_packed_tensors(packed) && has_packed_tensors(original))
    report.warnings.push_back("only the second file has packed tensors: the order is verify PACKED ORIGINAL");

  const auto bad = std::count_if(report.tensors.begin(), report.tensors.end(),
                                 [](const TensorReport& tensor) { return tensor.good == false; });
  report.ok = bad == 0;
  report.summary = report.ok ? fmt::format("verified: all {} tensors match the original", report.tensors.size())
                             : fmt::format("NOT the same: {} of {} tensors differ", bad, report.tensors.size());
  return report;
}

}  // namespace pnpack
