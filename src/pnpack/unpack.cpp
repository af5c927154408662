// unpack: BF16_P12 -> BF16, and PN -> F32, F16 or BF16. Removes the keys that packing and quantizing added.
#include <fmt/format.h>

#include <algorithm>

#include "recipe.hpp"
#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::ModelFile;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

const TensorType& target_type(const std::string& to) {
  return to == "f16" ? types::f16() : to == "bf16" ? types::bf16() : types::f32();
}

TensorType unpacked_type(const TensorType& type, const TensorType& to) {
  if (types::is_p12(type)) return types::bf16();
  return types::is_pn(type) ? to : type;
}

[[noreturn]] void fail(const ModelFile& file, const Tensor& tensor, const TensorType& to, const Outcome& outcome) {
  const std::uint64_t block = outcome.element / tensor.type.block;
  const std::uint64_t offset = tensor.offset + block * tensor.type.block_bytes;
  const std::string message =
      outcome.status == pn::Status::not_finite
          ? fmt::format("{} is beyond the range of {}", element_text(tensor, outcome.element), to.name)
          : fmt::format("{} is not valid: {}", block_text(tensor, block, tensor.type.block),
                        pn::status_text(outcome.status));
  throw Error(Fault::input, file.path(), message).about("tensor " + tensor.name).at(offset);
}

// The Hadamard block by which a tensor was rotated: as its file says, or for files that say nothing, as the user does.
std::uint32_t rotation_to_undo(const Options& options, const ModelFile& file, const Tensor& tensor) {
  if (options.assume_rotated == 0) return file.record().rotation_of(tensor.name);
  return is_embedding(tensor.name) ? 0 : options.assume_rotated;
}

void require_assumption_fits(const Options& options, const pn::io::Model& model) {
  if (options.assume_rotated == 0) return;
  for (const ModelFile& file : model.files()) {
    if (file.record().pn)
      throw Error(Fault::usage, file.path(), "says itself how it is rotated: --assume-rotated is for files that do not")
          .about("key pn.version");
    for (const Tensor& tensor : file.tensors())
      if (types::is_pn(tensor.type) && tensor.row_length() % options.assume_rotated != 0 &&
          rotation_to_undo(options, file, tensor) != 0)
        throw Error(Fault::usage, file.path(),
                    fmt::format("its K = {} is not a multiple of --assume-rotated {}", tensor.row_length(),
                                options.assume_rotated))
            .about("tensor " + tensor.name);
  }
}

class Unpacker {
 public:
  Unpacker(const Options& options, Rewrite& rewrite, Report& report)
      : options_(options), to_(target_type(options.to)), rewrite_(rewrite), report_(report) {}

  void unpack_file(const ModelFile& file, std::size_t first) {
    std::vector<TensorType> planned;
    for (const Tensor& tensor : file.tensors()) planned.push_back(unpacked_type(tensor.type, to_));
    rewrite_.begin_original(file, planned);
    for (const std::size_t i : file.layout->data_order) {
      const Tensor& tensor = file.tensors()[i];
      TensorReport& entry = report_.tensors[first + i];
      entry.converted = types::is_packed(tensor.type);
      entry.type_out = planned[i].name;
      if (!entry.converted) {
        rewrite_.copy(i);
        entry.reason = "not packed";
      } else if (tensor.elements == 0) {
        rewrite_.copy_as(i, planned[i]);  // nothing to convert, but packed types must not stay behind
      } else {
        unpack_tensor(file, i, entry);
        entry.bytes_out = bytes_of(planned[i], tensor.elements);
      }
    }
    rewrite_.end();
  }

 private:
  void unpack_tensor(const ModelFile& file, std::size_t i, TensorReport& entry) {
    const Tensor& tensor = file.tensors()[i];
    const bool p12 = types::is_p12(tensor.type);
    const auto conversion = p12 ? make_p12_unpacker(tensor.type)
                                : make_pn_decoder(tensor.type, to_, rotation_to_undo(options_, file, tensor));
    const Outcome outcome = rewrite_.convert(i, *conversion);
    if (outcome.status != pn::Status::ok) fail(file, tensor, conversion->to(), outcome);
    if (p12) entry.p12 = outcome.scan;
  }

  const Options& options_;
  const TensorType& to_;
  Rewrite& rewrite_;
  Report& report_;
};

}  // namespace

Report unpack(const Options& options) {
  const Job job(options);
  require_assumption_fits(options, job.model);
  const TensorType& to = target_type(options.to);
  std::uint64_t bytes = 0;
  bool has_records = false;
  for (const ModelFile& file : job.model.files()) {
    has_records = has_records || !file.record().first_key.empty();
    for (const Tensor& tensor : file.tensors())
      bytes += types::is_packed(tensor.type) ? bytes_of(unpacked_type(tensor.type, to), tensor.elements) : tensor.bytes;
  }
  if (job.target) job.target->require_space(bytes);

  Workers workers(options.threads);
  Progress progress("unpacking", job.model.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};
  Rewrite rewrite(options, engine, job);
  Report report = start_report(job.model);
  if (!has_records && !job.model.has_packed_tensors()) {
    rewrite.copy_model();
    for (TensorReport& entry : report.tensors) entry.reason = "not packed";
    report.summary = fmt::format("nothing to unpack: 0 of {} tensors", report.tensors.size());
  } else {
    Unpacker unpacker(options, rewrite, report);
    std::size_t first = 0;
    for (const ModelFile& file : job.model.files()) {
      unpacker.unpack_file(file, first);
      first += file.tensors().size();
    }
    rewrite.finish(job.model.files().front().record().total_size.value_or(""));
    report.summary = fmt::format("unpacked {} of {} tensors: {} -> {} bytes of tensors", report.converted(),
                                 report.tensors.size(), grouped(report.bytes_in()), grouped(report.bytes_out()));
  }
  report.ok = !options.strict || report.converted() > 0;
  if (report.ok) rewrite.commit();
  add_fate(options, report);
  return report;
}

}  // namespace pnpack
