// quantize: F32, F16, BF16 or BF16_P12 -> pn3t or pn4t with the reference quantizer.
#include <fmt/format.h>

#include <algorithm>
#include <pn/version.hpp>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

void require_quantizable(const Model& model) {
  for (const pn::io::GgufKey& key : model.gguf.keys)
    if (key.name.rfind("pn.", 0) == 0)
      throw Error(Fault::input, model.file.path(), "was already quantized by pnpack").about("key " + key.name);
  // Without keys nobody knows whether these are rotated, and the keys that are added would say that they are not.
  for (const Tensor& tensor : model.gguf.tensors)
    if (types::is_pn(tensor.type))
      throw Error(Fault::input, model.file.path(), "is " + tensor.type.name + " already, from another program")
          .about("tensor " + tensor.name)
          .at(tensor.offset);
}

// Why a tensor stays as it is; empty when it is quantized.
std::string obstacle(const Tensor& tensor, const TensorType& to, TensorReport& report) {
  if (tensor.shape.size() < 2) return "1-D";
  if (!can_quantize_from(tensor.type)) return "not F32, F16, BF16 or BF16_P12";
  if (tensor.elements == 0) return "no elements";
  if (tensor.row_length() % to.block == 0) return "";
  report.fallback = true;
  return fmt::format("K is not a multiple of {}", to.block);
}

}  // namespace

Report quantize(const Options& options) {
  const Model model(options);
  require_quantizable(model);
  const TensorType& to = options.type == types::pn3t().name ? types::pn3t() : types::pn4t();

  Report report;
  bool p12_stays = false;
  for (const Tensor& tensor : model.gguf.tensors) {
    TensorReport entry(tensor);
    const std::string reason = obstacle(tensor, to, entry);
    entry.converted = reason.empty();
    if (!entry.converted) entry.reason = reason;
    if (!entry.converted && types::is_p12(tensor.type)) p12_stays = true;
    report.tensors.push_back(std::move(entry));
  }

  Workers workers(options.threads);
  Progress progress("quantizing", model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  Rewrite rewrite(options, engine, model);
  std::vector<pn::io::GgufKey> kept = model.gguf.keys;
  if (!p12_stays)
    kept.erase(std::remove_if(kept.begin(), kept.end(), [](const auto& key) { return pn::io::is_own_key(key.name); }),
               kept.end());
  rewrite.begin(std::move(kept), {{"pn.version", std::uint32_t{pn::format_version}}, {"pn.search", "reference"}});

  for (const std::size_t i : model.gguf.data_order) {
    const Tensor& tensor = model.gguf.tensors[i];
    TensorReport& entry = report.tensors[i];
    if (!entry.converted) {
      rewrite.copy(i);
      continue;
    }
    const auto quantizer = make_pn_quantizer(tensor.type, to);
    const Outcome outcome = rewrite.convert(i, *quantizer);
    if (outcome.status != pn::Status::ok) throw quantize_error(model, tensor, to, outcome);
    entry.type_out = to.name;
    entry.bytes_out = tensor.elements / to.block * to.block_bytes;
    entry.nrmse = nrmse(outcome.squared_error, outcome.squared_weight);
  }

  const std::uint64_t converted = report.converted();
  if (converted == 0) {
    rewrite.copy_file();
    report.summary = fmt::format("nothing to quantize: 0 of {} tensors", report.tensors.size());
  } else {
    rewrite.end();
    report.summary = fmt::format("quantized {} of {} tensors to {}: {} -> {} bytes of tensors ({:.2f} bits per weight)",
                                 converted, report.tensors.size(), to.name, grouped(report.bytes_in()),
                                 grouped(report.bytes_out()), report.bits_per_weight());
  }
  report.ok = !options.strict || (converted > 0 && report.fallbacks() == 0);
  if (report.ok) rewrite.commit();
  add_fate(options, report);
  return report;
}

Error quantize_error(const Model& model, const Tensor& tensor, const TensorType& to, const Outcome& outcome) {
  // An element of a packed tensor has no address of its own: the offset is that of its block.
  const std::uint64_t offset = tensor.offset + outcome.element / tensor.type.block * tensor.type.block_bytes;
  std::string place = element_text(tensor, outcome.element);
  if (outcome.status == pn::Status::scale_overflow) {
    place = block_text(tensor, outcome.element / to.block, to.block);
  } else if (outcome.status != pn::Status::not_finite) {
    place = block_text(tensor, outcome.element / tensor.type.block, tensor.type.block);
  }
  return Error(Fault::input, model.file.path(), place + ": " + pn::status_text(outcome.status))
      .about("tensor " + tensor.name)
      .at(offset);
}

}  // namespace pnpack
