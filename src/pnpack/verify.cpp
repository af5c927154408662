// verify: is PACKED what packing or quantizing ORIGINAL gives? Every tensor is compared, bit for bit.
#include <fmt/format.h>

#include <algorithm>

#include "comparison.hpp"
#include "recipe.hpp"
#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

class Verifier {
 public:
  Verifier(const Options& options, const Engine& engine, Recipe& recipe)
      : options_(options), engine_(engine), recipe_(recipe) {}

  void compare(const TensorIn& packed, const TensorIn& original, TensorReport& report) const {
    const TensorType& here = packed.tensor->type;
    const TensorType& there = original.tensor->type;
    report.type_out = there.name;
    report.bytes_out = original.tensor->bytes;
    report.good = true;
    TensorPlan plan;
    if (recipe_.has_rules()) {
      plan = recipe_.plan(*original.tensor);
      if (plan.type != here)
        return differ(report, fmt::format("is {}, but by the rules {}", here.name, plan.type.name));
    } else if (here != there && !types::is_packed(here) && recipe_.donor_has(packed.tensor->name)) {
      recipe_.take_from_donor(*original.tensor, plan);
    }
    report.converted = here != there;
    if (packed.tensor->shape != original.tensor->shape) {
      report.converted = false;
      differ(report, "has another shape in the original");
    } else if (plan.treatment == Treatment::donor) {
      compare_bytes(engine_, packed, plan.donor, report);
    } else if (here == there) {
      compare_bytes(engine_, packed, original, report);
    } else if (packed.tensor->elements == 0 && types::is_packed(here)) {
      // no weights that could differ
    } else if (types::is_p12(here) && can_become_bf16(there)) {
      compare_p12(packed, original, report);
    } else if (here == types::bf16() && can_become_bf16(there)) {
      compare_rounded(packed, original, report);
    } else if ((types::is_pn(here) || here == types::q8_0()) && can_quantize_from(there)) {
      compare_quantized(packed, original, report);
    } else {
      report.converted = false;
      const bool as_bf16 =
          (types::is_p12(here) || here == types::bf16()) && (there == types::f32() || there == types::f16());
      differ(report, fmt::format("is {} here and {} in the original{}", here.name, there.name,
                                 as_bf16 ? " (rounded first? --as bf16)" : ""));
    }
  }

 private:
  bool can_become_bf16(const TensorType& type) const {
    return type == types::bf16() || (options_.as == "bf16" && (type == types::f32() || type == types::f16()));
  }

  void compare_p12(const TensorIn& packed, const TensorIn& original, TensorReport& report) const {
    const Tensor& tensor = *packed.tensor;
    const auto rounder = make_rounder(original.tensor->type);
    Comparison comparison(original, rounder.get());
    const auto unpacker = make_p12_unpacker(tensor.type);
    const Outcome outcome =
        stream(engine_, *packed.file->file, tensor, *unpacker,
               [&](const std::uint8_t* bytes, std::size_t length, const Outcome&) { comparison.add(bytes, length); });
    // What comes before an invalid block has been compared, so the earlier place wins.
    if (comparison.difference()) {
      const std::uint64_t element = *comparison.difference() / sizeof(std::uint16_t);
      const std::uint64_t block = element / tensor.type.block;
      differ(report, "differs first at " + element_text(tensor, element), element, {},
             tensor.offset + block * tensor.type.block_bytes);
    } else if (outcome.status != pn::Status::ok) {
      const std::uint64_t block = outcome.element / tensor.type.block;
      differ(report, block_text(tensor, block, tensor.type.block) + " is not valid: " + pn::status_text(outcome.status),
             {}, block, tensor.offset + block * tensor.type.block_bytes);
    } else {
      report.p12 = outcome.scan;
    }
  }

  void compare_rounded(const TensorIn& packed, const TensorIn& original, TensorReport& report) const {
    const auto rounder = make_rounder(original.tensor->type);
    Comparison comparison(original, rounder.get());
    const Tensor& tensor = *packed.tensor;
    stream_bytes(engine_, *packed.file->file, tensor.offset, tensor.bytes,
                 [&](const std::uint8_t* bytes, std::size_t length) { comparison.add(bytes, length); });
    if (!comparison.difference()) return;
    const std::uint64_t element = *comparison.difference() / sizeof(std::uint16_t);
    differ(report, "differs first at " + element_text(tensor, element), element, {},
           tensor.offset + element * sizeof(std::uint16_t));
  }

  void compare_quantized(const TensorIn& packed, const TensorIn& original, TensorReport& report) const {
    const Tensor& tensor = *packed.tensor;
    const pn::io::PackRecord& record = packed.file->record();
    const bool weighted = types::is_pn(tensor.type) && record.weighted_search;
    if (weighted && !recipe_.has_importances())
      throw Error(Fault::usage, packed.file->path(), "was quantized with importances: --imatrix FILE is needed")
          .about("key pn.search");
    const std::uint32_t rotation = !types::is_pn(tensor.type) ? 0
                                   : options_.rotate != 0     ? recipe_.rotation_of(tensor.name)
                                                              : record.rotation_of(tensor.name);
    if (rotation != 0 && tensor.row_length() % rotation != 0)
      throw Error(Fault::usage, packed.file->path(),
                  fmt::format("its K = {} is not a multiple of --rotate {}", tensor.row_length(), rotation))
          .about("tensor " + tensor.name);
    const std::optional<Importance> importance = recipe_.importance_of(*original.tensor);
    const auto quantizer =
        recipe_.conversion(*original.tensor, tensor.type, rotation, weighted, importance ? &*importance : nullptr);
    Comparison comparison(packed);
    const Outcome outcome =
        stream(engine_, *original.file->file, *original.tensor, *quantizer,
               [&](const std::uint8_t* bytes, std::size_t length, const Outcome&) { comparison.add(bytes, length); });
    if (outcome.status != pn::Status::ok) throw conversion_error(*original.file, *original.tensor, *quantizer, outcome);
    if (comparison.difference()) {
      const std::uint64_t block = *comparison.difference() / tensor.type.block_bytes;
      differ(report, "differs first in " + block_text(tensor, block, tensor.type.block), {}, block,
             tensor.offset + block * tensor.type.block_bytes);
    } else {
      report.nrmse = outcome.error.nrmse();
      if (importance) report.weighted_nrmse = outcome.weighted_error.nrmse();
    }
  }

  const Options& options_;
  const Engine& engine_;
  Recipe& recipe_;
};

}  // namespace

Report verify(const Options& options) {
  Recipe recipe(options);
  const pn::io::Model packed(options.input);
  const pn::io::Model original(options.second);
  Workers workers(options.threads);
  Progress progress("verifying", packed.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  const Verifier verifier(options, engine, recipe);

  Report report = start_report(packed);
  compare_tensors(
      packed, original, {"is not in the original", "is only in the original"},
      [&](const TensorIn& a, const TensorIn& b, TensorReport& entry) { verifier.compare(a, b, entry); }, report);
  packed.require_unchanged();
  original.require_unchanged();
  recipe.require_unchanged();
  for (const std::string& difference : compare_keys(packed, original, "the original"))
    report.warnings.push_back(difference);
  if (!packed.has_packed_tensors() && original.has_packed_tensors())
    report.warnings.push_back("only the second file has packed tensors: the order is verify PACKED ORIGINAL");

  const std::uint64_t bad = report.bad();
  report.ok = bad == 0;
  report.summary = report.ok ? fmt::format("verified: all {} tensors match the original", report.tensors.size())
                             : fmt::format("NOT the same: {} of {} tensors differ", bad, report.tensors.size());
  return report;
}

}  // namespace pnpack
