// pack: BF16 -> BF16_P12, lossless. What does not fit stays as it is. With --as bf16, F32 and F16 are rounded first.
#include <fmt/format.h>

#include <algorithm>

#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::FileKind;
using pn::io::ModelFile;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

bool fits(const Outcome& so_far) { return so_far.scan.blocks_that_do_not_fit() == 0; }

enum class Plan { copy, round, pack };

bool is_rounded(const Options& options, const Tensor& tensor) {
  return options.as == "bf16" && (tensor.type == types::f32() || tensor.type == types::f16());
}

// What to do with a tensor, and in `report` why it is not packed.
Plan plan_for(const Options& options, const Tensor& tensor, TensorReport& report) {
  const bool rounded = is_rounded(options, tensor);
  if (tensor.shape.size() < 2) {
    report.reason = "1-D";
  } else if (tensor.type != types::bf16() && !rounded) {
    report.reason = "not BF16";
  } else if (tensor.elements == 0) {
    report.reason = "no elements";
  } else if (tensor.row_length() % p12::block_size == 0) {
    return Plan::pack;
  } else {
    report.fallback = true;
    report.reason = "K is not a multiple of 256";
    if (rounded) return Plan::round;
  }
  return Plan::copy;
}

void require_packable(const Job& job, std::uint32_t type_id) {
  for (const ModelFile& file : job.model.files()) {
    if (!file.record().first_key.empty())
      throw Error(Fault::input, file.path(), "was already packed or quantized by pnpack")
          .about("key " + file.record().first_key);
    for (const Tensor& tensor : file.tensors())
      if (job.kind == FileKind::gguf && tensor.type.id == type_id)
        throw Error(Fault::input, file.path(),
                    fmt::format("has the type id {} already; choose another for BF16_P12 with --type-id", type_id))
            .about("tensor " + tensor.name);
  }
}

std::string worst_block_text(const Tensor& tensor, const p12::RowScan& scan) {
  return fmt::format("{} of {} blocks list more than 3 weights; the worst lists {}: {}", scan.blocks_that_do_not_fit(),
                     scan.blocks, scan.worst_listed, block_text(tensor, scan.worst_block, p12::block_size));
}

// p12.rounded_from: which types the tensors have that are rounded.
std::string rounded_from(const pn::io::Model& model, const std::vector<Plan>& plans, const Options& options) {
  bool f32 = false;
  bool f16 = false;
  std::size_t i = 0;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors())
      if (plans[i++] != Plan::copy && is_rounded(options, tensor)) (tensor.type == types::f32() ? f32 : f16) = true;
  return f32 && f16 ? "mixed" : f32 ? "F32" : f16 ? "F16" : "";
}

class Packer {
 public:
  Packer(const Options& options, const Job& job, Rewrite& rewrite, Report& report)
      : options_(options),
        rewrite_(rewrite),
        report_(report),
        type_(job.kind == FileKind::gguf ? types::p12(options.type_id) : types::p12()) {}

  void pack_file(const ModelFile& file, const pn::io::PackRecord& record, const Plan* plans, std::size_t first) {
    std::vector<TensorType> planned;
    for (std::size_t i = 0; i < file.tensors().size(); ++i)
      planned.push_back(plans[i] == Plan::pack    ? type_
                        : plans[i] == Plan::round ? types::bf16()
                                                  : file.tensors()[i].type);
    rewrite_.begin(file, record, planned, false);
    for (const std::size_t i : file.layout->data_order) {
      TensorReport& entry = report_.tensors[first + i];
      bool packed = false;
      if (plans[i] == Plan::pack) packed = pack_tensor(file, i, entry);
      if (packed) continue;
      if (is_rounded(options_, file.tensors()[i]) && plans[i] != Plan::copy) {
        round_tensor(file, i, entry);
      } else {
        rewrite_.copy(i);
      }
    }
    rewrite_.end();
  }

 private:
  bool pack_tensor(const ModelFile& file, std::size_t i, TensorReport& entry) {
    const Tensor& tensor = file.tensors()[i];
    const auto packer = make_p12_packer(tensor.type, type_);
    const Outcome outcome = rewrite_.convert(i, *packer, fits);
    if (outcome.status != pn::Status::ok) throw conversion_error(file, tensor, *make_rounder(tensor.type), outcome);
    entry.p12 = outcome.scan;
    entry.converted = fits(outcome);
    entry.fallback = !entry.converted;
    if (entry.converted) {
      entry.type_out = type_.name;
      entry.bytes_out = bytes_of(type_, tensor.elements);
    } else {
      entry.reason = worst_block_text(tensor, outcome.scan);
    }
    return entry.converted;
  }

  void round_tensor(const ModelFile& file, std::size_t i, TensorReport& entry) {
    const Tensor& tensor = file.tensors()[i];
    const auto rounder = make_rounder(tensor.type);
    const Outcome outcome = rewrite_.convert(i, *rounder);
    if (outcome.status != pn::Status::ok) throw conversion_error(file, tensor, *rounder, outcome);
    entry.type_out = types::bf16().name;
    entry.bytes_out = bytes_of(types::bf16(), tensor.elements);
    entry.rounded = true;
  }

  const Options& options_;
  Rewrite& rewrite_;
  Report& report_;
  TensorType type_;
};

// Says whether unpacking will give the identical files back, and if not, why.
void add_restores_identical(const Job& job, const pn::io::PackRecord& record, const Rewrite& rewrite, Report& report) {
  const auto& files = job.model.files();
  std::string reason;
  if (!record.rounded_from.empty()) {
    reason = "LOSSY: weights were rounded to BF16 first (--as bf16); unpacking will give the rounded ones back";
  } else if (!job.same_kind()) {
    reason = fmt::format("unpacking will give a {} file back, not the {} file that this was", kind_name(job.kind),
                         kind_name(job.model.kind()));
  } else if (job.model.has_pn_tensors()) {
    reason = "unpacking will decode the PN tensors too and not give this identical file back";
  } else if (rewrite.seems_padded() || !std::all_of(files.begin(), files.end(), has_standard_layout)) {
    reason =
        "the input has an unusual layout: unpacking will give all keys and weights back, but not the identical file";
  }
  report.restores_identical = reason.empty();
  if (!reason.empty()) report.warnings.push_back(reason);
}

// Nothing was packed, so the input is copied as it is: no tensor was rounded either.
void forget_rounding(const pn::io::Model& model, Report& report) {
  std::size_t next = 0;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) {
      TensorReport& entry = report.tensors[next++];
      entry.type_out = tensor.type.name;
      entry.bytes_out = tensor.bytes;
      entry.rounded = false;
    }
}

}  // namespace

Report pack(const Options& options) {
  const Job job(options);
  require_packable(job, options.type_id);
  Report report = start_report(job.model);
  std::vector<Plan> plans;
  std::uint64_t at_least = 0;
  std::size_t next = 0;
  for (const ModelFile& file : job.model.files())
    for (const Tensor& tensor : file.tensors()) {
      plans.push_back(plan_for(options, tensor, report.tensors[next++]));
      at_least += plans.back() == Plan::pack    ? bytes_of(types::p12(), tensor.elements)
                  : plans.back() == Plan::round ? bytes_of(types::bf16(), tensor.elements)
                                                : tensor.bytes;
    }
  if (job.target) job.target->require_space(at_least);

  pn::io::PackRecord record;
  record.p12 = true;
  if (job.kind == FileKind::gguf) record.p12_type_id = options.type_id;
  record.rounded_from = rounded_from(job.model, plans, options);
  record.has_header = job.kind == FileKind::safetensors && job.same_kind();

  Workers workers(options.threads);
  Progress progress("packing", job.model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  Rewrite rewrite(options, engine, job);
  const bool has_candidates = std::find(plans.begin(), plans.end(), Plan::pack) != plans.end();
  if (has_candidates) {
    Packer packer(options, job, rewrite, report);
    std::size_t first = 0;
    for (const ModelFile& file : job.model.files()) {
      pn::io::PackRecord own = record;
      if (&file == &job.model.files().front()) own.total_size = job.model.odd_total_size();
      packer.pack_file(file, own, plans.data() + first, first);
      first += file.tensors().size();
    }
  }

  const std::size_t count = report.tensors.size();
  const std::uint64_t converted = report.converted();
  if (converted == 0) {
    rewrite.copy_model();
    forget_rounding(job.model, report);
    report.restores_identical = job.same_kind() && !job.model.has_pn_tensors();
    report.summary = fmt::format("nothing to pack: 0 of {} tensors", count);
  } else {
    rewrite.finish();
    report.summary = fmt::format(
        "packed {} of {} tensors, each verified: {} -> {} bytes of tensors ({:.2f} bits per weight)", converted, count,
        grouped(report.bytes_in()), grouped(report.bytes_out()), report.bits_per_weight());
    add_restores_identical(job, record, rewrite, report);
  }
  report.ok = !options.strict || (converted > 0 && report.fallbacks() == 0);
  if (report.ok) rewrite.commit();
  add_fate(options, report);
  return report;
}

}  // namespace pnpack
