// The headers of files that are written: those of an input, with other types and other keys of ours.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layout.hpp"
#include "model.hpp"

namespace pn::io {

// What is in a header may change until its file is complete, but not its size: the file begins with reserve(), and
// bytes() takes its place in the end.
class HeaderWriter {
 public:
  virtual ~HeaderWriter() = default;

  // Tensors as they will be, in the order of the header; offsets count from the beginning of the data.
  std::vector<Tensor> tensors;

  virtual std::uint64_t alignment() const = 0;

  // Gives the tensors of `source` the types that are planned for them, lays them out, and returns a header of the final
  // size. With `exact` they will stay so; otherwise each may turn out to keep the type that it has.
  std::string plan(const Layout& source, const std::vector<TensorType>& types, bool exact);

  virtual std::string bytes() = 0;

 private:
  virtual std::string reserve(bool exact) = 0;
};

// What the header says about packing: what was packed (a record), or what the file was before that (unpack).
enum class HeaderContent { record, original };

// A header for a file that becomes `kind`. What the other kind cannot hold is an Error (Fault::input): nothing may be
// lost. With HeaderContent::original the record is not used.
std::unique_ptr<HeaderWriter> make_header_writer(const ModelFile& source, FileKind kind, HeaderContent content,
                                                 const PackRecord& record);

}  // namespace pn::io
