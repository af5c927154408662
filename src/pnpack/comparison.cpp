#include "comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace pnpack {

using pn::io::ModelFile;
using pn::io::Tensor;

void Comparison::add(const std::uint8_t* bytes, std::size_t length) {
  if (!stopped_ && (!difference_ || unit_ != 0)) {
    const pn::io::InputFile& file = *other_.file->file;
    if (conversion_ == nullptr) {
      compare(bytes, file.read(other_.tensor->offset + done_, length, scratch_), length);
      file.release(other_.tensor->offset + done_, length);
    } else {
      const std::uint64_t first = done_ / conversion_->unit_bytes_out();
      const std::size_t units = length / conversion_->unit_bytes_out();
      const std::uint64_t from = other_.tensor->offset + first * conversion_->unit_bytes_in();
      const std::uint8_t* others = file.read(from, units * conversion_->unit_bytes_in(), scratch_);
      converted_.resize(length);
      const Outcome outcome = conversion_->run(others, first, units, converted_.data());
      stopped_ = outcome.status != pn::Status::ok;
      const std::uint64_t good =
          stopped_ ? outcome.element * conversion_->unit_bytes_out() / conversion_->unit_elements() : length;
      compare(bytes, converted_.data(), static_cast<std::size_t>(good));
      if (stopped_ && !difference_) difference_ = done_ + good;  // what cannot be converted is equal to nothing
      file.release(from, units * conversion_->unit_bytes_in());
    }
  }
  done_ += length;
}

void Comparison::compare(const std::uint8_t* bytes, const std::uint8_t* others, std::size_t length) {
  if (length == 0 || std::memcmp(bytes, others, length) == 0) return;
  if (!difference_)
    difference_ = done_ + static_cast<std::uint64_t>(std::mismatch(bytes, bytes + length, others).first - bytes);
  for (std::size_t at = 0; unit_ != 0 && at < length; at += unit_)
    if (std::memcmp(bytes + at, others + at, std::min(unit_, length - at)) != 0) ++differing_units_;
}

void differ(TensorReport& report, std::string reason, std::optional<std::uint64_t> element,
            std::optional<std::uint64_t> block, std::optional<std::uint64_t> offset) {
  report.good = false;
  report.reason = std::move(reason);
  report.first = Place{element, block, offset};
}

void compare_tensors(const pn::io::Model& a, const pn::io::Model& b, const OnlyOne& only_one,
                     const std::function<void(const TensorIn& a, const TensorIn& b, TensorReport&)>& compare,
                     Report& report) {
  pn::io::TensorsByName others(b);
  std::size_t next = 0;
  for (const ModelFile& file : a.files())
    for (const Tensor& tensor : file.tensors()) {
      TensorReport& entry = report.tensors[next++];
      if (const auto other = others.take(tensor.name)) {
        compare({&file, &tensor}, *other, entry);
      } else {
        entry.type_out = "-";
        entry.bytes_out = 0;
        differ(entry, only_one.first, {}, {}, tensor.offset);
      }
    }
  for (const ModelFile& file : b.files())
    for (const Tensor& tensor : file.tensors()) {
      if (!others.has(tensor.name)) continue;
      report.tensors.emplace_back(tensor);
      TensorReport& entry = report.tensors.back();
      entry.type_in = "-";
      entry.bytes_in = 0;
      differ(entry, only_one.second);
    }
}

void compare_bytes(const Engine& engine, const TensorIn& a, const TensorIn& b, TensorReport& report) {
  const Tensor& tensor = *a.tensor;
  const std::uint64_t common = std::min(tensor.bytes, b.tensor->bytes);
  Comparison comparison(b);
  stream_bytes(engine, *a.file->file, tensor.offset, common,
               [&](const std::uint8_t* bytes, std::size_t length) { comparison.add(bytes, length); });
  if (comparison.difference()) {
    const std::uint64_t at = *comparison.difference();
    const std::uint64_t unit = tensor.type.known() ? at / tensor.type.block_bytes : at;
    const std::uint64_t offset = tensor.offset + unit * std::max(tensor.type.block_bytes, 1u);
    if (tensor.type.known() && tensor.type.block == 1) {
      differ(report, "differs first at " + element_text(tensor, unit), unit, {}, offset);
    } else if (tensor.type.known()) {
      differ(report, "differs first in " + block_text(tensor, unit, tensor.type.block), {}, unit, offset);
    } else {
      differ(report, fmt::format("differs first at its byte {}", at), {}, {}, offset);
    }
  } else if (tensor.bytes != b.tensor->bytes) {  // only an unknown type can do this
    differ(report, fmt::format("has {} bytes here and {} in the other", tensor.bytes, b.tensor->bytes), {}, {},
           tensor.offset + common);
  }
}

namespace {

// The entries of all files by name; of a name that means different things in different files, by name and file.
std::map<std::string, std::string> all_entries(const pn::io::Model& model) {
  std::map<std::string, std::string> entries;
  for (const ModelFile& file : model.files())
    for (auto& [name, entry] : foreign_entries(file)) {
      const auto [first, is_new] = entries.emplace(name, entry);
      if (!is_new && first->second != entry) entries.emplace(name + " of " + file.name, std::move(entry));
    }
  return entries;
}

}  // namespace

std::vector<std::string> compare_keys(const pn::io::Model& a, const pn::io::Model& b, const std::string& other) {
  std::vector<std::string> differences;
  if (a.kind() != b.kind()) return differences;
  const auto ours = all_entries(a);
  const auto theirs = all_entries(b);
  for (const auto& [name, entry] : theirs) {
    const auto found = ours.find(name);
    if (found == ours.end())
      differences.push_back("the key " + name + " of " + other + " is missing");
    else if (found->second != entry)
      differences.push_back("the key " + name + " has another value in " + other);
  }
  for (const auto& [name, entry] : ours)
    if (theirs.find(name) == theirs.end()) differences.push_back("the key " + name + " is not in " + other);
  std::sort(differences.begin(), differences.end());
  return differences;
}

}  // namespace pnpack
