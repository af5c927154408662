// inspect: what is in a model? Reads the headers only.
#include <fmt/format.h>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::FileKind;
using pn::io::ModelFile;

namespace {

std::string what_it_is(const pn::io::Model& model) {
  const ModelFile& file = model.files().front();
  if (model.in_folder())
    return fmt::format("{}, {} files{}", kind_name(model.kind()), model.files().size(),
                       model.index() ? " and " + model.index_name() : "");
  if (model.kind() == FileKind::safetensors) return kind_name(model.kind());
  const pn::io::Gguf& gguf = file.gguf();
  return fmt::format("GGUF version {}, {} keys, alignment {}", gguf.version, gguf.keys.size(), gguf.alignment);
}

}  // namespace

Report inspect(const Options& options) {
  const pn::io::Model model(options.input);
  Report report = start_report(model);
  const pn::io::PackRecord& record = model.files().front().record();
  report.summary = fmt::format("{}, {} tensors: {} bytes of tensors, {:.2f} bits per weight", what_it_is(model),
                               report.tensors.size(), grouped(report.bytes_in()), report.bits_per_weight());
  if (!record.rounded_from.empty())
    report.summary += fmt::format("; rounded from {} before packing", record.rounded_from);
  if (record.pn)
    report.summary += fmt::format(
        "; PN by the {} search{}", record.weighted_search ? "weighted" : "reference",
        record.hadamard_block == 0 ? "" : fmt::format(", rows rotated by blocks of {}", record.hadamard_block));
  return report;
}

}  // namespace pnpack
