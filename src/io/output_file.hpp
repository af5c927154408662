// Outputs that appear under their name complete or not at all: a file, or a folder of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "input_file.hpp"
#include "signals.hpp"

namespace pn::io {

// Where an output goes, checked before any work is done.
class OutputTarget {
 public:
  // Throws Error: Fault::usage when `path` is one of `inputs`, also through links; Fault::output when it exists and
  // `replace` is false, is neither a regular file nor a folder (such a thing is never replaced), or its folder cannot
  // be written. A link stays a link: what it names is replaced.
  OutputTarget(std::string path, bool replace, const std::vector<FileIdentity>& inputs);

  const std::string& path() const noexcept { return path_; }  // as the user gave it
  bool is_existing_folder() const noexcept { return exists_ && is_folder_; }

  // The same checks again, for inputs that were found later.
  void require_not_one_of(const std::vector<FileIdentity>& inputs) const;
  // Throws Error (Fault::usage) when one of them lies in the folder that would be replaced.
  void require_none_inside(const std::vector<FileIdentity>& inputs) const;
  // Throws Error (Fault::output) when what exists cannot be replaced by a file or by a folder.
  void require_file() const;
  void require_folder() const;
  // Throws Error (Fault::output) when `bytes` bytes are surely more than its disk has left.
  void require_space(std::uint64_t bytes) const;

 private:
  friend class OutputFile;
  friend class OutputFolder;

  std::string path_;
  std::string resolved_;  // links followed, no slash at the end
  bool ends_with_slash_ = false;
  bool replace_ = false;
  bool exists_ = false;
  bool is_folder_ = false;
  FileIdentity identity_;
  unsigned mode_ = 0;                // permission bits of what is replaced
  std::vector<std::string> inside_;  // what a folder that is replaced held when it was checked
};

class OutputFolder;

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
  friend class OutputFolder;
  OutputFile(OutputFolder& folder, const std::string& name);
  void write_at(std::uint64_t offset, const void* bytes, std::size_t length);
  [[noreturn]] void fail(int error) const;

  const OutputTarget target_;
  OutputFolder* folder_ = nullptr;  // the file is one of a folder's: it appears with the folder
  std::string temporary_;
  std::unique_ptr<Pending> pending_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// The same for a folder of files: they are written into a hidden temporary folder beside the target, which commit()
// renames. Of a folder that is replaced exactly those files are removed that were in it when the target was checked.
class OutputFolder {
 public:
  explicit OutputFolder(const OutputTarget& target);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // A new file; its commit() only finishes it. At most one is unfinished at a time.
  std::unique_ptr<OutputFile> create(const std::string& name);
  // Removes all files, finished or not.
  void clear();
  void commit();

 private:
  friend class OutputFile;
  [[noreturn]] void fail(int error) const;
  void replace_existing();
  void forget();  // what is there stays

  const OutputTarget target_;
  std::string temporary_;
  std::unique_ptr<Pending> pending_;
  std::vector<std::unique_ptr<Pending>> files_;
};

}  // namespace pn::io
