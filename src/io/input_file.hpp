// A regular file opened for reading: mapped where the system allows it, else read piece by piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pn::io {

// What makes two paths the same file.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileIdentity& other) const noexcept { return device == other.device && inode == other.inode; }
};

class InputFile {
 public:
  enum class Access { automatic, plain_read };

  // Opens `path`. Throws Error (Fault::input) when it is missing or not a regular file; a FIFO or a device is refused
  // without being opened.
  explicit InputFile(std::string path, Access access = Access::automatic);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }
  FileIdentity identity() const noexcept { return identity_; }
  bool mapped() const noexcept { return map_ != nullptr; }

  // `length` bytes from `offset`: a pointer into the mapping, or into `scratch` after reading into it. Valid until
  // `scratch` changes. Throws Error (Fault::input) when the range is not inside the file or cannot be read.
  // Several threads may read at once, each with a scratch of its own.
  const std::uint8_t* read(std::uint64_t offset, std::size_t length, std::vector<std::uint8_t>& scratch) const;

  // Throws Error (Fault::input) when the file was changed since it was opened, as far as its size and times tell.
  void require_unchanged() const;

  // Says that these bytes are not needed soon: a mapping gives their memory back to the system. They can be read again.
  void release(std::uint64_t offset, std::size_t length) const noexcept;

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
  FileIdentity identity_;
  std::array<std::int64_t, 4> times_{};  // of the last change of its content and of its inode
  const std::uint8_t* map_ = nullptr;
};

}  // namespace pn::io
