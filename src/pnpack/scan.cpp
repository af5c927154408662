// scan: which tensors would fit BF16_P12, and what do their exponents look like?
#include <fmt/format.h>

#include "rewrite.hpp"
#include "scan_page.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::ModelFile;
using pn::io::Tensor;
namespace types = pn::io::types;

namespace {

bool can_be_scanned(const Options& options, const Tensor& tensor) {
  return tensor.elements != 0 &&
         (tensor.type == types::bf16() ||
          (options.as == "bf16" && (tensor.type == types::f32() || tensor.type == types::f16())));
}

void decide(const Tensor& tensor, TensorReport& entry) {
  const bool fits = entry.p12 && entry.p12->blocks_that_do_not_fit() == 0;
  if (tensor.shape.size() < 2) {
    entry.reason = "1-D";
  } else if (!entry.statistics) {
    entry.reason = tensor.elements == 0 ? "no elements" : "not BF16";
  } else if (tensor.row_length() % p12::block_size != 0) {
    entry.fallback = true;
    entry.reason = "K is not a multiple of 256";
  } else if (!fits) {
    entry.fallback = true;
    entry.reason =
        fmt::format("{} of {} blocks list more than 3 weights", entry.p12->blocks_that_do_not_fit(), entry.p12->blocks);
  } else {
    entry.converted = true;
    entry.type_out = types::p12().name;
    entry.bytes_out = bytes_of(types::p12(), tensor.elements);
  }
}

void scan_tensor(const Options& options, const Engine& engine, const ModelFile& file, const Tensor& tensor,
                 TensorReport& entry, TensorStatistics& all) {
  if (can_be_scanned(options, tensor)) {
    const auto scanner = make_scanner(tensor.type, tensor.shape.size() < 2 ? 1 : tensor.row_length());
    const Outcome outcome = stream(engine, *file.file, tensor, *scanner, {});
    if (outcome.status != pn::Status::ok) throw conversion_error(file, tensor, *make_rounder(tensor.type), outcome);
    const TensorStatistics statistics = scanner->statistics();
    all.merge(statistics);
    entry.statistics = std::make_shared<StatisticsSummary>(statistics.summary());
    if (outcome.scan.blocks != 0) entry.p12 = outcome.scan;
  }
  decide(tensor, entry);
}

ScanPage page_of(const pn::io::Model& model, const Report& report) {
  ScanPage page;
  page.model = model.path();
  page.statistics = report.statistics;
  page.warnings = report.warnings;
  std::size_t next = 0;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) {
      const TensorReport& entry = report.tensors[next++];
      ScanRow row;
      row.name = entry.name;
      row.file = entry.file;
      row.type = entry.type_in;
      row.shape = entry.shape;
      row.elements = entry.elements;
      row.bytes_in = entry.bytes_in;
      row.bytes_out = entry.bytes_out;
      row.candidate = entry.statistics && tensor.shape.size() >= 2;
      row.fits = entry.converted;
      row.reason = entry.reason.value_or("");
      if (entry.p12) row.p12 = *entry.p12;
      if (entry.p12) row.worst = block_text(tensor, entry.p12->worst_block, p12::block_size);
      if (entry.statistics) row.statistics = *entry.statistics;
      page.rows.push_back(std::move(row));
    }
  return page;
}

}  // namespace

Report scan(const Options& options) {
  std::optional<pn::io::OutputTarget> target;
  if (!options.html.empty()) target.emplace(options.html, options.force, pn::io::identities_at(options.input));
  const pn::io::Model model(options.input);
  if (target) {
    target->require_not_one_of(model.identities());
    target->require_file();
  }
  Workers workers(options.threads);
  Progress progress("scanning", model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};

  Report report = start_report(model);
  TensorStatistics all;
  std::size_t next = 0;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) scan_tensor(options, engine, file, tensor, report.tensors[next++], all);
  model.require_unchanged();
  if (all.count() != 0) report.statistics = all.summary();

  report.ok = !options.strict || (report.converted() > 0 && report.fallbacks() == 0);
  report.summary = fmt::format("{} of {} tensors would be packed: {} -> {} bytes of tensors ({:.2f} bits per weight)",
                               report.converted(), report.tensors.size(), grouped(report.bytes_in()),
                               grouped(report.bytes_out()), report.bits_per_weight());
  if (report.statistics)
    report.summary += fmt::format("\nentropy of the low byte {:.2f} bits, of the high byte {:.2f} bits",
                                  report.statistics->entropy_low, report.statistics->entropy_high);
  if (target) {
    const std::string html = scan_page(page_of(model, report));
    pn::io::OutputFile out(*target);
    out.append(html.data(), html.size());
    out.commit();
  }
  return report;
}

}  // namespace pnpack
