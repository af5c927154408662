// What readers and writers throw: a sentence that a person can act on, with the place it is about.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace pn::io {

enum class Fault {
  usage,   // the request itself: the output is the input
  input,   // a file that cannot be read or is not what it claims to be
  output,  // a file, or standard output, that cannot be written
};

class Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string file, const std::string& message)
      : std::runtime_error(message), fault_(fault), file_(std::move(file)) {}

  // Names the tensor, or the key, that the error is about.
  Error&& about(std::string tensor_or_key) && {
    subject_ = std::move(tensor_or_key);
    return std::move(*this);
  }
  // The place in the file, in bytes from its beginning.
  Error&& at(std::uint64_t offset) && {
    offset_ = offset;
    return std::move(*this);
  }

  Fault fault() const noexcept { return fault_; }
  const std::string& file() const noexcept { return file_; }
  const std::optional<std::string>& subject() const noexcept { return subject_; }
  const std::optional<std::uint64_t>& offset() const noexcept { return offset_; }

 private:
  Fault fault_;
  std::string file_;
  std::optional<std::string> subject_;
  std::optional<std::uint64_t> offset_;
};

}  // namespace pn::io
