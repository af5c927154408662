// pack: BF16 -> BF16_P12, lossless. What does not fit stays as it is.
#include <fmt/format.h>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
namespace types = pn::io::types;

namespace {

bool fits(const Outcome& so_far) { return so_far.scan.blocks_that_do_not_fit() == 0; }

// Why a tensor is not even tried; null when it is.
const char* obstacle(const Tensor& tensor, TensorReport& report) {
  if (tensor.shape.size() < 2) return "1-D";
  if (tensor.type != types::bf16()) return "not BF16";
  if (tensor.elements == 0) return "no elements";
  if (tensor.row_length() % p12::block_size == 0) return nullptr;
  report.fallback = true;
  return "K is not a multiple of 256";
}

void require_packable(const Model& model, std::uint32_t type_id) {
  for (const pn::io::GgufKey& key : model.gguf.keys)
    if (pn::io::is_own_key(key.name))
      throw Error(Fault::input, model.file.path(), "was already packed or quantized by pnpack")
          .about("key " + key.name);
  for (const Tensor& tensor : model.gguf.tensors)
    if (tensor.type.id == type_id)
      throw Error(Fault::input, model.file.path(),
                  fmt::format("has the type id {} already; choose another for BF16_P12 with --type-id", type_id))
          .about("tensor " + tensor.name);
}

std::string worst_block_text(const Tensor& tensor, const p12::RowScan& scan) {
  return fmt::format("{} of {} blocks list more than 3 weights; the worst lists {}: {}", scan.blocks_that_do_not_fit(),
                     scan.blocks, scan.worst_listed, block_text(tensor, scan.worst_block, p12::block_size));
}

}  // namespace

Report pack(const Options& options) {
  const Model model(options);
  require_packable(model, options.type_id);
  Workers workers(options.threads);
  Progress progress("packing", model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  Rewrite rewrite(options, engine, model);
  rewrite.begin(model.gguf.keys,
                {{"p12.version", std::uint32_t{p12::format_version}}, {"p12.type_id", options.type_id}});

  Report report;
  const auto packer = make_p12_packer(types::p12(options.type_id));
  bool has_pn = false;
  for (const Tensor& tensor : model.gguf.tensors) {
    report.tensors.emplace_back(tensor);
    has_pn = has_pn || types::is_pn(tensor.type);
  }
  for (const std::size_t i : model.gguf.data_order) {
    const Tensor& tensor = model.gguf.tensors[i];
    TensorReport& entry = report.tensors[i];
    if (const char* reason = obstacle(tensor, entry)) {
      entry.reason = reason;
      rewrite.copy(i);
    } else {
      const Outcome outcome = rewrite.convert(i, *packer, fits);
      entry.p12 = outcome.scan;
      entry.converted = fits(outcome);
      entry.fallback = !entry.converted;
      if (entry.converted) {
        entry.type_out = packer->to().name;
        entry.bytes_out = outcome.scan.blocks * sizeof(p12::Block392);
      } else {
        entry.reason = worst_block_text(tensor, outcome.scan);
      }
    }
  }

  const std::size_t count = report.tensors.size();
  const std::uint64_t converted = report.converted();
  bool same_layout = true;
  if (converted == 0) {
    rewrite.copy_file();
    report.summary = fmt::format("nothing to pack: 0 of {} tensors", count);
  } else {
    rewrite.end();
    same_layout = has_standard_layout(model);
    report.summary = fmt::format(
        "packed {} of {} tensors, each verified: {} -> {} bytes of tensors ({:.2f} bits per weight)", converted, count,
        grouped(report.bytes_in()), grouped(report.bytes_out()), report.bits_per_weight());
  }
  report.restores_identical = same_layout && !has_pn;
  if (has_pn) {
    report.warnings.push_back("unpacking will decode the PN tensors too and not give this identical file back");
  } else if (!same_layout) {
    report.warnings.push_back(
        "the input has an unusual layout: unpacking will give all keys and weights back, but not the identical file");
  }
  report.ok = !options.strict || (converted > 0 && report.fallbacks() == 0);
  if (report.ok) rewrite.commit();
  add_fate(options, report);
  return report;
}

}  // namespace pnpack
