// unpack: BF16_P12 -> BF16, and PN -> F32, F16 or BF16. Removes the keys that packing and quantizing added.
#include <fmt/format.h>

#include <algorithm>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

const TensorType& target_type(const std::string& to) {
  return to == "f16" ? types::f16() : to == "bf16" ? types::bf16() : types::f32();
}

std::unique_ptr<Conversion> conversion_for(const Tensor& tensor, const TensorType& to) {
  if (tensor.elements == 0) return nullptr;
  if (types::is_p12(tensor.type)) return make_p12_unpacker(tensor.type);
  if (types::is_pn(tensor.type)) return make_pn_decoder(tensor.type, to);
  return nullptr;
}

// A tensor without elements has no bytes to convert, but packed types must not stay behind.
const TensorType* empty_type_out(const Tensor& tensor, const TensorType& to) {
  if (tensor.elements != 0) return nullptr;
  if (types::is_p12(tensor.type)) return &types::bf16();
  return types::is_pn(tensor.type) ? &to : nullptr;
}

[[noreturn]] void fail(const Model& model, const Tensor& tensor, const TensorType& to, const Outcome& outcome) {
  const std::uint64_t block = outcome.element / tensor.type.block;
  const std::uint64_t offset = tensor.offset + block * tensor.type.block_bytes;
  const std::string message =
      outcome.status == pn::Status::not_finite
          ? fmt::format("{} is beyond the range of {}", element_text(tensor, outcome.element), to.name)
          : fmt::format("{} is not valid: {}", block_text(tensor, block, tensor.type.block),
                        pn::status_text(outcome.status));
  throw Error(Fault::input, model.file.path(), message).about("tensor " + tensor.name).at(offset);
}

void refuse_rotated(const Model& model) {
  const auto& tensors = model.gguf.tensors;
  const bool has_pn = std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return types::is_pn(t.type); });
  if (model.gguf.hadamard_block != 0 && has_pn)
    throw Error(Fault::input, model.file.path(), "its PN tensors are rotated, which this version cannot undo")
        .about("key pn.hadamard.block_size");
}

}  // namespace

Report unpack(const Options& options) {
  const Model model(options);
  refuse_rotated(model);
  Workers workers(options.threads);
  Progress progress("unpacking", model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  Rewrite rewrite(options, engine, model);
  std::vector<pn::io::GgufKey> kept = model.gguf.keys;
  kept.erase(std::remove_if(kept.begin(), kept.end(), [](const auto& key) { return pn::io::is_own_key(key.name); }),
             kept.end());
  const bool drops_keys = kept.size() != model.gguf.keys.size();
  rewrite.begin(std::move(kept), {});

  Report report;
  const TensorType& to = target_type(options.to);
  for (const Tensor& tensor : model.gguf.tensors) report.tensors.emplace_back(tensor);
  for (const std::size_t i : model.gguf.data_order) {
    const Tensor& tensor = model.gguf.tensors[i];
    TensorReport& entry = report.tensors[i];
    if (const auto conversion = conversion_for(tensor, to)) {
      const Outcome outcome = rewrite.convert(i, *conversion);
      if (outcome.status != pn::Status::ok) fail(model, tensor, to, outcome);
      entry.converted = true;
      entry.type_out = conversion->to().name;
      entry.bytes_out = tensor.elements * conversion->to().block_bytes;
      if (types::is_p12(tensor.type)) entry.p12 = outcome.scan;
    } else if (const TensorType* type = empty_type_out(tensor, to)) {
      rewrite.copy_as(i, *type);
      entry.converted = true;
      entry.type_out = type->name;
    } else {
      rewrite.copy(i);
      entry.reason = "not packed";
    }
  }

  const std::uint64_t converted = report.converted();
  if (converted == 0 && !drops_keys) {
    rewrite.copy_file();
    report.summary = fmt::format("nothing to unpack: 0 of {} tensors", report.tensors.size());
  } else {
    rewrite.end();
    report.summary = fmt::format("unpacked {} of {} tensors: {} -> {} bytes of tensors", converted,
                                 report.tensors.size(), grouped(report.bytes_in()), grouped(report.bytes_out()));
  }
  report.ok = !options.strict || converted > 0;
  if (report.ok) rewrite.commit();
  add_fate(options, report);
  return report;
}

}  // namespace pnpack
