// check: is a file sound in itself? Its structure, and every packed block; other tensors' bytes are not read.
#include <fmt/format.h>

#include <algorithm>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Tensor;
namespace types = pn::io::types;

namespace {

bool has_blocks_to_check(const Tensor& tensor) {
  return tensor.elements != 0 && (types::is_p12(tensor.type) || types::is_pn(tensor.type));
}

TensorReport check_tensor(const Engine& engine, const Model& model, const Tensor& tensor) {
  TensorReport report(tensor);
  report.good = true;
  if (!has_blocks_to_check(tensor)) {
    report.reason = "not packed, only its place was checked";
    return report;
  }
  const Outcome outcome = stream(engine, model.file, tensor, *make_validator(tensor.type), {});
  if (outcome.status != pn::Status::ok) {
    const std::uint64_t block = outcome.element / tensor.type.block;
    report.good = false;
    report.reason = block_text(tensor, block, tensor.type.block) + ": " + pn::status_text(outcome.status);
    report.first = Place{tensor.name, {}, block, tensor.offset + block * tensor.type.block_bytes};
  } else if (types::is_p12(tensor.type)) {
    report.p12 = outcome.scan;
  }
  return report;
}

}  // namespace

Report check(const Options& options) {
  const Model model(options.input);
  std::uint64_t bytes = 0;
  std::uint64_t packed = 0;
  for (const Tensor& tensor : model.gguf.tensors) {
    if (!has_blocks_to_check(tensor)) continue;
    bytes += tensor.bytes;
    ++packed;
  }
  Workers workers(options.threads);
  Progress progress("checking", bytes, !options.quiet);
  const Engine engine{workers, progress};

  Report report;
  for (const Tensor& tensor : model.gguf.tensors) report.tensors.push_back(check_tensor(engine, model, tensor));

  const auto bad = std::count_if(report.tensors.begin(), report.tensors.end(),
                                 [](const TensorReport& tensor) { return tensor.good == false; });
  report.ok = bad == 0;
  report.summary = report.ok ? fmt::format("sound: {} tensors, every block of the {} packed ones is valid",
                                           report.tensors.size(), packed)
                             : fmt::format("NOT sound: {} of {} packed tensors have invalid blocks", bad, packed);
  return report;
}

}  // namespace pnpack
