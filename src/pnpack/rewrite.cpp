#include "rewrite.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace pnpack {

using pn::io::align_up;
using pn::io::Error;
using pn::io::Fault;
using pn::io::FileKind;
using pn::io::Layout;
using pn::io::ModelFile;
using pn::io::Tensor;
using pn::io::TensorType;

namespace {

std::vector<pn::io::FileIdentity> identities_of(const Options& options, const std::vector<std::string>& others) {
  std::vector<pn::io::FileIdentity> inputs = pn::io::identities_at(options.input);
  for (const std::string& other : others) {
    const auto more = pn::io::identities_at(other);
    inputs.insert(inputs.end(), more.begin(), more.end());
  }
  return inputs;
}

std::optional<pn::io::OutputTarget> find_target(const Options& options, const std::vector<std::string>& others) {
  if (options.second.empty()) return {};
  return pn::io::OutputTarget(options.second, options.force, identities_of(options, others));
}

}  // namespace

Job::Job(const Options& options, const std::vector<std::string>& others)
    : target(find_target(options, others)), model(options.input), kind(model.kind()) {
  if (options.format == "gguf") kind = FileKind::gguf;
  if (options.format == "safetensors") kind = FileKind::safetensors;
  if (model.in_folder() && !same_kind())
    throw Error(Fault::input, model.path(), "a model in several files keeps its kind: --format does not apply");
  if (!target) return;
  target->require_not_one_of(model.identities());
  if (model.in_folder()) {
    target->require_folder();
  } else {
    target->require_file();
  }
  if (!target->is_existing_folder()) return;
  require_apart(model.identities());
  require_apart(identities_of(options, others));
  if (!pn::io::is_only_a_model(target->path()))
    throw Error(Fault::output, target->path(),
                "exists and holds more than a model's files and its index: such a folder is not replaced");
}

void Job::require_apart(const std::vector<pn::io::FileIdentity>& inputs) const {
  if (!target) return;
  target->require_not_one_of(inputs);
  target->require_none_inside(inputs);
}

Rewrite::Rewrite(const Options& options, const Engine& engine, const Job& job)
    : engine_(engine), job_(job), writes_(!options.dry_run) {
  if (writes_ && job.model.in_folder()) folder_ = std::make_unique<pn::io::OutputFolder>(job.target.value());
}

void Rewrite::start_file(const std::string& name) {
  position_ = 0;
  if (!writes_) return;
  out_.reset();
  out_ = folder_ ? folder_->create(name) : std::make_unique<pn::io::OutputFile>(job_.target.value());
}

void Rewrite::begin(const ModelFile& source, const pn::io::PackRecord& record, const std::vector<TensorType>& planned,
                    bool exact) {
  start_header(source, make_header_writer(source, job_.kind, pn::io::HeaderContent::record, record), planned, exact);
}

void Rewrite::begin_original(const ModelFile& source, const std::vector<TensorType>& planned) {
  start_header(source, make_header_writer(source, job_.kind, pn::io::HeaderContent::original, {}), planned, true);
}

void Rewrite::start_header(const ModelFile& source, std::unique_ptr<pn::io::HeaderWriter> header,
                           const std::vector<TensorType>& planned, bool exact) {
  source_ = &source;
  header_ = std::move(header);
  start_file(source.name);
  // A header of the final size: types and offsets are filled in as they become known, and written at the end.
  const std::string bytes = header_->plan(*source.layout, planned, exact);
  header_bytes_ = bytes.size();
  append(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < header_->tensors.size(); ++i) {
    header_->tensors[i].type = source.tensors()[i].type;
    header_->tensors[i].bytes = source.tensors()[i].bytes;
  }
}

void Rewrite::start_tensor(std::size_t i, bool has_elements) {
  const std::uint64_t start = align_up(position_, header_->alignment());
  // A tensor without elements has no bytes, so nothing needs padding on its account.
  if (has_elements) append_zeros(start - position_);
  header_->tensors[i].offset = start - align_up(header_bytes_, header_->alignment());
}

Outcome Rewrite::convert(std::size_t i, const Conversion& conversion, Keep keep) {
  const Tensor& tensor = source_->tensors()[i];
  start_tensor(i, true);
  const std::uint64_t start = position_;
  const Outcome outcome = stream(engine_, *source_->file, tensor, conversion,
                                 [&](const std::uint8_t* bytes, std::size_t length, const Outcome& so_far) {
                                   if (keep == nullptr || keep(so_far)) append(bytes, length);
                                 });
  if (outcome.status != pn::Status::ok) return outcome;
  if (keep != nullptr && !keep(outcome)) {
    truncate(start);
    return outcome;
  }
  header_->tensors[i].type = conversion.to();
  header_->tensors[i].bytes = position_ - start;
  total_size_ += position_ - start;
  return outcome;
}

void Rewrite::copy(std::size_t i) { copy_from(i, *source_->file, source_->tensors()[i]); }

void Rewrite::copy_as(std::size_t i, const TensorType& type) {
  copy(i);
  header_->tensors[i].type = type;
}

void Rewrite::copy_from(std::size_t i, const pn::io::InputFile& file, const Tensor& tensor) {
  start_tensor(i, tensor.elements != 0);
  stream_bytes(engine_, file, tensor.offset, tensor.bytes,
               [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
  header_->tensors[i].type = tensor.type;
  header_->tensors[i].bytes = tensor.bytes;
  total_size_ += tensor.bytes;
}

void Rewrite::end() {
  const Layout& layout = *source_->layout;
  const std::uint64_t padding = align_up(position_, header_->alignment()) - position_;
  if (layout.padded) append_zeros(padding);
  seems_padded_ = seems_padded_ || (!layout.padded && padding == 0);
  if (job_.same_kind())
    stream_bytes(engine_, *source_->file, layout.tail_start, source_->file->size() - layout.tail_start,
                 [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
  const std::string bytes = header_->bytes();
  if (bytes.size() != header_bytes_) throw std::logic_error("a header changed its size: a mistake in pnpack");
  if (out_) out_->overwrite(0, bytes.data(), bytes.size());
  if (out_ && folder_) out_->commit();
}

void Rewrite::append_index(const std::string& text) {
  start_file(job_.model.index_name());
  append(text.data(), text.size());
  if (out_) out_->commit();
}

void Rewrite::finish(const std::string& total_size) {
  const auto& index = job_.model.index();
  if (index) append_index(index->with_total_size(total_size.empty() ? std::to_string(total_size_) : total_size));
}

void Rewrite::copy_model(const pn::io::PackRecord& record) {
  out_.reset();
  if (folder_) folder_->clear();
  if (!job_.same_kind()) {
    const ModelFile& file = job_.model.files().front();
    std::vector<TensorType> types;
    for (const Tensor& tensor : file.tensors()) types.push_back(tensor.type);
    begin(file, record, types, true);
    for (const std::size_t i : file.layout->data_order) copy(i);
    return end();
  }
  for (const ModelFile& file : job_.model.files()) {
    start_file(file.name);
    stream_bytes(engine_, *file.file, 0, file.file->size(),
                 [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
    if (out_ && folder_) out_->commit();
  }
  if (job_.model.index()) append_index(job_.model.index()->text);
}

void Rewrite::commit() {
  job_.model.require_unchanged();
  if (folder_) {
    folder_->commit();
  } else if (out_) {
    out_->commit();
  }
}

void Rewrite::append(const void* bytes, std::size_t length) {
  try {
    if (out_) out_->append(bytes, length);
  } catch (const Error&) {
    job_.model.require_unchanged();  // a mapped input that became shorter cannot be written: that is the error then
    throw;
  }
  position_ += length;
}

void Rewrite::append_zeros(std::uint64_t length) {
  if (out_) out_->append_zeros(length);
  position_ += length;
}

void Rewrite::truncate(std::uint64_t size) {
  if (out_) out_->truncate(size);
  position_ = size;
}

Report start_report(const pn::io::Model& model) {
  Report report;
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) {
      report.tensors.emplace_back(tensor);
      if (model.in_folder()) report.tensors.back().file = file.name;
    }
  report.warnings = model.warnings();
  return report;
}

Error conversion_error(const ModelFile& file, const Tensor& tensor, const Conversion& conversion,
                       const Outcome& outcome) {
  // An element of a packed tensor has no address of its own: the offset is that of its block.
  const std::uint64_t offset = tensor.offset + outcome.element / tensor.type.block * tensor.type.block_bytes;
  const TensorType& to = conversion.to();
  std::string message;
  if (outcome.status == pn::Status::not_finite && to == pn::io::types::bf16()) {
    message = fmt::format("{} is beyond the range of {}", element_text(tensor, outcome.element), to.name);
  } else {
    std::string place = element_text(tensor, outcome.element);
    if (outcome.status == pn::Status::scale_overflow) {
      place = block_text(tensor, outcome.element / to.block, to.block);
    } else if (outcome.status != pn::Status::not_finite) {
      place = block_text(tensor, outcome.element / tensor.type.block, tensor.type.block);
    }
    message = place + ": " + pn::status_text(outcome.status);
  }
  return Error(Fault::input, file.path(), message).about("tensor " + tensor.name).at(offset);
}

void add_fate(const Options& options, Report& report) {
  if (!report.ok) {
    report.summary += "; nothing was written: --strict takes that for a no";
  } else if (options.dry_run) {
    report.summary += "; nothing was written: a dry run";
  }
}

bool has_standard_layout(const ModelFile& file) {
  const Layout& layout = *file.layout;
  std::vector<std::uint8_t> scratch;
  const auto zeros = [&](std::uint64_t from, std::uint64_t to) {
    while (from < to) {
      const std::size_t length = static_cast<std::size_t>(std::min<std::uint64_t>(to - from, 1 << 20));
      const std::uint8_t* bytes = file.file->read(from, length, scratch);
      if (!std::all_of(bytes, bytes + length, [](std::uint8_t b) { return b == 0; })) return false;
      file.file->release(from, length);
      from += length;
    }
    return true;
  };
  if (!zeros(layout.header_end, std::min(layout.data_start, file.file->size()))) return false;
  std::uint64_t expected = layout.data_start;
  std::uint64_t previous_end = layout.data_start;
  for (const std::size_t i : layout.data_order) {
    const Tensor& tensor = layout.tensors[i];
    if (tensor.offset != expected) return false;
    if (tensor.bytes != 0 && !zeros(previous_end, tensor.offset)) return false;
    if (tensor.bytes != 0) previous_end = tensor.offset + tensor.bytes;
    expected = align_up(expected + tensor.bytes, layout.alignment);
  }
  return zeros(layout.data_end, layout.tail_start);
}

}  // namespace pnpack
