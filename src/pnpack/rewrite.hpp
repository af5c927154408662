// Writes a GGUF file that is another one with some tensors converted and some keys added or removed.
#pragma once

#include <memory>
#include <optional>

#include "io/gguf.hpp"
#include "io/output_file.hpp"
#include "options.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace pnpack {

// An opened model: the file and what its header says.
struct Model {
  explicit Model(const std::string& path) : file(path), gguf(pn::io::read_gguf(file)) {}
  // For a verb that writes: OUT is looked at before the model is read.
  explicit Model(const Options& options);

  std::uint64_t tensor_bytes() const;

  pn::io::InputFile file;
  std::optional<pn::io::OutputTarget> target;  // none for a dry run without OUT
  pn::io::Gguf gguf;
};

// The output of a verb: a file that appears when commit() has been called, or nothing for --dry-run.
class Rewrite {
 public:
  Rewrite(const Options& options, const Engine& engine, const Model& model);

  // Starts with a header of these keys. Then each tensor of the model follows, by convert() or copy(), in the order of
  // gguf.data_order: the output keeps the order of the descriptions and of the data.
  void begin(std::vector<pn::io::GgufKey> kept, std::vector<std::pair<std::string, pn::io::GgufHeader::Value>> added);

  // Appends tensor i converted. A failure is returned, for the caller to report. `keep` is asked whether the
  // output so far is worth keeping; once it says no, the tensor is copied as it is instead.
  using Keep = bool (*)(const Outcome& so_far);
  Outcome convert(std::size_t i, const Conversion& conversion, Keep keep = nullptr);
  // Appends tensor i as it is.
  void copy(std::size_t i);
  // Appends tensor i, which has no elements, under another type.
  void copy_as(std::size_t i, const pn::io::TensorType& type);

  // After the last tensor: the final padding as the input has it, the bytes after it, and the finished header.
  void end();
  // Instead of all that: OUT becomes a byte copy of the input.
  void copy_file();
  // Puts the file under its name.
  void commit();

 private:
  void append(const void* bytes, std::size_t length);
  void append_zeros(std::uint64_t length);
  void truncate(std::uint64_t size);
  const pn::io::Tensor& start_tensor(std::size_t i);

  const Engine& engine_;
  const Model& model_;
  std::unique_ptr<pn::io::OutputFile> out_;
  pn::io::GgufHeader header_;
  std::uint64_t header_bytes_ = 0;
  std::uint64_t position_ = 0;  // also counted in a dry run
};

// Says in the summary when nothing was written, and why.
void add_fate(const Options& options, Report& report);

// The error for a failure of the PN quantizer.
pn::io::Error quantize_error(const Model& model, const pn::io::Tensor& tensor, const pn::io::TensorType& to,
                             const Outcome& outcome);

// True when unpacking what pack writes would give the input's bytes back: data without gaps and zeros in all padding.
// (Padding at the end: see FORMAT.md. A packed row ends on a multiple of the alignment only where the row did, so the
// packed file still shows whether the input was padded.)
bool has_standard_layout(const Model& model);

}  // namespace pnpack
