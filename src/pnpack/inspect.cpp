// inspect: what is in a file? Reads the header only.
#include <fmt/format.h>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

Report inspect(const Options& options) {
  const Model model(options.input);
  Report report;
  for (const pn::io::Tensor& tensor : model.gguf.tensors) report.tensors.emplace_back(tensor);
  report.summary =
      fmt::format("GGUF version {}, {} keys, {} tensors, alignment {}: {} bytes of tensors, {:.2f} bits per weight",
                  model.gguf.version, model.gguf.keys.size(), report.tensors.size(), model.gguf.alignment,
                  grouped(report.bytes_in()), report.bits_per_weight());
  return report;
}

}  // namespace pnpack
