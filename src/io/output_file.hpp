// A file that appears under its name complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "input_file.hpp"

namespace pn::io {

// Where an output goes, checked before any work is done.
class OutputTarget {
 public:
  // Throws Error: Fault::usage when `path` is one of `inputs`, also through links; Fault::output when it exists and
  // `replace` is false, is not a regular file (such a thing is never replaced), or its folder cannot be written. A link
  // to a regular file stays a link: the file that it names is replaced.
  OutputTarget(std::string path, bool replace, const std::vector<FileIdentity>& inputs);

  const std::string& path() const noexcept { return path_; }  // as the user gave it

 private:
  friend class OutputFile;
  std::string path_;
  std::string resolved_;  // links followed
  bool replace_ = false;
  bool exists_ = false;
  unsigned mode_ = 0;  // permission bits of the file that is replaced
};

// Bytes are written to a hidden temporary file in the target's folder. commit() flushes it to the disk and renames it.
// Without commit() the temporary file is removed, after handle_signals() also when a signal ends the process.
class OutputFile {
 public:
  explicit OutputFile(const OutputTarget& target);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::uint64_t size() const noexcept { return size_; }

  // Each throws Error (Fault::output).
  void append(const void* bytes, std::size_t length);
  void append_zeros(std::uint64_t length);
  void overwrite(std::uint64_t offset, const void* bytes, std::size_t length);  // inside what is already there
  void truncate(std::uint64_t size);                                            // to no more than size()
  void commit();

 private:
  void write_at(std::uint64_t offset, const void* bytes, std::size_t length);
  [[noreturn]] void fail(int error) const;

  const OutputTarget target_;
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// Installs handlers that remove the temporary file of the OutputFile at work when a signal that asks a process to end
// (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2, SIGABRT) or SIGBUS does so, and makes writes
// to closed pipes or beyond the size limit return an error instead of a signal. For the main function of a program;
// call it once.
void handle_signals();

// What to say, and where, when SIGBUS ends the process with status 3: a mapped input became shorter, or its disk
// failed.
void set_bus_error_message(const std::string& message, int descriptor);

}  // namespace pn::io
