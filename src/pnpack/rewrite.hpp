// Writes a model that is another one with some tensors converted, and keys of ours added or removed.
#pragma once

#include <memory>
#include <optional>

#include "io/header_writer.hpp"
#include "io/model.hpp"
#include "io/output_file.hpp"
#include "options.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace pnpack {

// What a verb that writes works on: the model, and where the result goes. OUT is looked at before the model is read.
struct Job {
  // `others` are further files that are read: OUT must be none of them.
  explicit Job(const Options& options, const std::vector<std::string>& others = {});

  std::optional<pn::io::OutputTarget> target;  // none for a dry run without OUT
  pn::io::Model model;
  pn::io::FileKind kind;  // of the output

  bool same_kind() const { return kind == model.kind(); }
  // Throws Error (Fault::usage) when one of these files is the output, or lies in the folder that it would replace.
  void require_apart(const std::vector<pn::io::FileIdentity>& inputs) const;
};

// The output of a verb: files that appear when commit() has been called, or nothing for --dry-run.
class Rewrite {
 public:
  Rewrite(const Options& options, const Engine& engine, const Job& job);

  // Starts the next file of the model, with this record or as it was before it had one. `planned` are the types that
  // its tensors will have; without `exact` each may stay as it is instead. Then each tensor follows, by convert() or
  // copy(), in the data's order.
  void begin(const pn::io::ModelFile& source, const pn::io::PackRecord& record,
             const std::vector<pn::io::TensorType>& planned, bool exact);
  void begin_original(const pn::io::ModelFile& source, const std::vector<pn::io::TensorType>& planned);

  // Appends tensor i converted. A failure is returned, for the caller to report. `keep` is asked whether the output so
  // far is worth keeping; where it says no, nothing is appended, and the tensor has to follow in another way.
  using Keep = bool (*)(const Outcome& so_far);
  Outcome convert(std::size_t i, const Conversion& conversion, Keep keep = nullptr);
  // Appends tensor i as it is.
  void copy(std::size_t i);
  // Appends tensor i, which has no elements, under another type.
  void copy_as(std::size_t i, const pn::io::TensorType& type);
  // Appends in place of tensor i the one of another model.
  void copy_from(std::size_t i, const pn::io::InputFile& file, const pn::io::Tensor& tensor);

  // After a file's last tensor: the final padding as the input has it, the bytes after it, and the finished header.
  void end();
  // After the last file: the index, where there is one. `total_size` replaces its number; empty: the true sum.
  void finish(const std::string& total_size = {});
  // Instead of all that: the output becomes a byte copy of the input, or the same tensors in the other kind of file,
  // with this record.
  void copy_model(const pn::io::PackRecord& record = {});
  // True when a file of the input ends without padding, but its output where padding would end: what is read from it
  // again will be padded.
  bool seems_padded() const { return seems_padded_; }
  // Puts the output under its name.
  void commit();

 private:
  void start_file(const std::string& name);
  void start_header(const pn::io::ModelFile& source, std::unique_ptr<pn::io::HeaderWriter> header,
                    const std::vector<pn::io::TensorType>& planned, bool exact);
  void append(const void* bytes, std::size_t length);
  void append_zeros(std::uint64_t length);
  void truncate(std::uint64_t size);
  void start_tensor(std::size_t i, bool has_elements);
  void append_index(const std::string& text);

  const Engine& engine_;
  const Job& job_;
  bool writes_;
  std::unique_ptr<pn::io::OutputFolder> folder_;
  std::unique_ptr<pn::io::OutputFile> out_;
  const pn::io::ModelFile* source_ = nullptr;
  std::unique_ptr<pn::io::HeaderWriter> header_;
  std::uint64_t header_bytes_ = 0;
  std::uint64_t position_ = 0;    // in the file; also counted in a dry run
  std::uint64_t total_size_ = 0;  // of the tensors of all files
  bool seems_padded_ = false;
};

// A report with an entry for each tensor of the model, file by file in the order of the headers.
Report start_report(const pn::io::Model& model);

// The error for a failure of a quantizer or a rounder.
pn::io::Error conversion_error(const pn::io::ModelFile& file, const pn::io::Tensor& tensor,
                               const Conversion& conversion, const Outcome& outcome);

// Says in the summary when nothing was written, and why.
void add_fate(const Options& options, Report& report);

// True when unpacking what pack writes would give the input's bytes back: data without gaps and zeros in all padding.
// (Padding at the end: see FORMAT.md. A packed row ends on a multiple of the alignment only where the row did, so the
// packed file still shows whether the input was padded.)
bool has_standard_layout(const pn::io::ModelFile& file);

}  // namespace pnpack
