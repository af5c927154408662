#include "rewrite.hpp"

#include <algorithm>

namespace pnpack {

using pn::io::align_up;
using pn::io::Tensor;

Model::Model(const Options& options) : file(options.input) {
  if (!options.second.empty())
    target.emplace(options.second, options.force, std::vector<pn::io::FileIdentity>{file.identity()});
  gguf = pn::io::read_gguf(file);
}

std::uint64_t Model::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const Tensor& tensor : gguf.tensors) total += tensor.bytes;
  return total;
}

Rewrite::Rewrite(const Options& options, const Engine& engine, const Model& model) : engine_(engine), model_(model) {
  if (!options.dry_run) out_ = std::make_unique<pn::io::OutputFile>(model.target.value());
}

void Rewrite::begin(std::vector<pn::io::GgufKey> kept,
                    std::vector<std::pair<std::string, pn::io::GgufHeader::Value>> added) {
  header_.version = model_.gguf.version;
  header_.alignment = model_.gguf.alignment;
  header_.kept = std::move(kept);
  header_.added = std::move(added);
  // A header of the final size: types and offsets are filled in as they become known, and written at the end.
  header_.tensors = model_.gguf.tensors;
  const std::vector<std::uint8_t> bytes = header_.serialize(model_.file);
  header_bytes_ = bytes.size();
  append(bytes.data(), bytes.size());
}

const Tensor& Rewrite::start_tensor(std::size_t i) {
  const Tensor& tensor = model_.gguf.tensors[i];
  const std::uint64_t start = align_up(position_, header_.alignment);
  // A tensor without elements has no bytes, so nothing needs padding on its account.
  if (tensor.elements != 0) append_zeros(start - position_);
  header_.tensors[i].offset = start - header_bytes_;
  return tensor;
}

Outcome Rewrite::convert(std::size_t i, const Conversion& conversion, Keep keep) {
  const Tensor& tensor = start_tensor(i);
  const std::uint64_t start = position_;
  const Outcome outcome = stream(engine_, model_.file, tensor, conversion,
                                 [&](const std::uint8_t* bytes, std::size_t length, const Outcome& so_far) {
                                   if (keep == nullptr || keep(so_far)) append(bytes, length);
                                 });
  if (outcome.status != pn::Status::ok) return outcome;
  if (keep != nullptr && !keep(outcome)) {
    truncate(start);
    copy(i);
    return outcome;
  }
  header_.tensors[i].type = conversion.to();
  return outcome;
}

void Rewrite::copy(std::size_t i) {
  const Tensor& tensor = start_tensor(i);
  stream_bytes(engine_, model_.file, tensor.offset, tensor.bytes,
               [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
}

void Rewrite::copy_as(std::size_t i, const pn::io::TensorType& type) {
  copy(i);
  header_.tensors[i].type = type;
}

void Rewrite::end() {
  const pn::io::Gguf& gguf = model_.gguf;
  if (gguf.padded) append_zeros(align_up(position_, header_.alignment) - position_);
  stream_bytes(engine_, model_.file, gguf.tail_start, model_.file.size() - gguf.tail_start,
               [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
  const std::vector<std::uint8_t> bytes = header_.serialize(model_.file);
  if (out_) out_->overwrite(0, bytes.data(), bytes.size());
}

void Rewrite::copy_file() {
  truncate(0);
  stream_bytes(engine_, model_.file, 0, model_.file.size(),
               [&](const std::uint8_t* bytes, std::size_t length) { append(bytes, length); });
}

void Rewrite::commit() {
  model_.file.require_unchanged();
  if (out_) out_->commit();
}

void Rewrite::append(const void* bytes, std::size_t length) {
  if (out_) out_->append(bytes, length);
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

void add_fate(const Options& options, Report& report) {
  if (!report.ok) {
    report.summary += "; nothing was written: --strict takes that for a no";
  } else if (options.dry_run) {
    report.summary += "; nothing was written: a dry run";
  }
}

bool has_standard_layout(const Model& model) {
  const pn::io::Gguf& gguf = model.gguf;
  std::vector<std::uint8_t> scratch;
  const auto zeros = [&](std::uint64_t from, std::uint64_t to) {
    const std::uint8_t* bytes = model.file.read(from, static_cast<std::size_t>(to - from), scratch);
    return std::all_of(bytes, bytes + (to - from), [](std::uint8_t b) { return b == 0; });
  };
  if (!zeros(gguf.header_end, std::min(gguf.data_start, model.file.size()))) return false;
  std::uint64_t expected = gguf.data_start;
  std::uint64_t previous_end = gguf.data_start;
  for (const std::size_t i : gguf.data_order) {
    const Tensor& tensor = gguf.tensors[i];
    if (tensor.offset != expected) return false;
    if (tensor.elements != 0 && !zeros(previous_end, tensor.offset)) return false;
    if (tensor.elements != 0) previous_end = tensor.offset + tensor.bytes;
    expected = align_up(expected + tensor.bytes, gguf.alignment);
  }
  return zeros(gguf.data_end, gguf.tail_start);
}

}  // namespace pnpack
