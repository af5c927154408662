// check: is a model sound in itself? Its structure, and every packed block; other tensors' bytes are not read.
#include <fmt/format.h>

#include "comparison.hpp"
#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::ModelFile;
using pn::io::Tensor;
namespace types = pn::io::types;

namespace {

bool has_blocks_to_check(const Tensor& tensor) { return tensor.elements != 0 && types::is_packed(tensor.type); }

void check_tensor(const Engine& engine, const ModelFile& file, const Tensor& tensor, TensorReport& report) {
  report.good = true;
  if (!has_blocks_to_check(tensor)) {
    report.reason = "not packed, only its place was checked";
    return;
  }
  const Outcome outcome = stream(engine, *file.file, tensor, *make_validator(tensor.type), {});
  if (outcome.status != pn::Status::ok) {
    const std::uint64_t block = outcome.element / tensor.type.block;
    differ(report, block_text(tensor, block, tensor.type.block) + ": " + pn::status_text(outcome.status), {}, block,
           tensor.offset + block * tensor.type.block_bytes);
  } else if (types::is_p12(tensor.type)) {
    report.p12 = outcome.scan;
  }
}

// The header text that unpacking writes back has to describe these tensors.
void check_original_header(const ModelFile& file) {
  if (!file.record().has_header) return;
  std::vector<pn::io::TensorType> unpacked;
  for (const Tensor& tensor : file.tensors())
    unpacked.push_back(types::is_packed(tensor.type) ? types::bf16() : tensor.type);
  make_header_writer(file, file.kind, pn::io::HeaderContent::original, {})->plan(*file.layout, unpacked, true);
}

}  // namespace

Report check(const Options& options) {
  const pn::io::Model model(options.input);
  std::uint64_t bytes = 0;
  std::uint64_t packed = 0;
  for (const ModelFile& file : model.files()) {
    check_original_header(file);
    for (const Tensor& tensor : file.tensors()) {
      if (!has_blocks_to_check(tensor)) continue;
      bytes += tensor.bytes;
      ++packed;
    }
  }
  Workers workers(options.threads);
  Progress progress("checking", bytes, !options.quiet);
  const Engine engine{workers, progress};

  Report report = start_report(model);
  std::size_t next = 0;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) check_tensor(engine, file, tensor, report.tensors[next++]);
  model.require_unchanged();

  const std::uint64_t bad = report.bad();
  report.ok = bad == 0;
  report.summary = report.ok ? fmt::format("sound: {} tensors, every block of the {} packed ones is valid",
                                           report.tensors.size(), packed)
                             : fmt::format("NOT sound: {} of {} packed tensors have invalid blocks", bad, packed);
  return report;
}

}  // namespace pnpack
