#include "input_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "error.hpp"

namespace pn::io {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(Fault::input, path, std::generic_category().message(error));
}

void require_regular(const std::string& path, const struct stat& info) {
  if (S_ISDIR(info.st_mode)) throw Error(Fault::input, path, "is a directory, not a file");
  if (!S_ISREG(info.st_mode)) throw Error(Fault::input, path, "is not a regular file");
}

std::array<std::int64_t, 4> times_of(const struct stat& info) {
  return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec};
}

}  // namespace

InputFile::InputFile(std::string path, Access access) : path_(std::move(path)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) fail(path_, errno);
  require_regular(path_, info);
  // O_NONBLOCK: if the file became a FIFO meanwhile, opening it must not wait.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) fail(path_, errno);
  try {
    if (::fstat(fd_, &info) != 0) fail(path_, errno);
    require_regular(path_, info);
  } catch (...) {
    ::close(fd_);
    throw;
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
  identity_ = {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
  times_ = times_of(info);

  if (access == Access::automatic && size_ > 0 && size_ <= std::numeric_limits<std::size_t>::max()) {
    void* map = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, fd_, 0);
    if (map != MAP_FAILED) {
      ::madvise(map, static_cast<std::size_t>(size_), MADV_SEQUENTIAL);
      map_ = static_cast<const std::uint8_t*>(map);
      ::close(fd_);  // a model may have more files than a process may keep open
      fd_ = -1;
    }
  }
}

InputFile::~InputFile() {
  if (map_ != nullptr) ::munmap(const_cast<std::uint8_t*>(map_), static_cast<std::size_t>(size_));
  if (fd_ >= 0) ::close(fd_);
}

const std::uint8_t* InputFile::read(std::uint64_t offset, std::size_t length,
                                    std::vector<std::uint8_t>& scratch) const {
  if (offset > size_ || length > size_ - offset) throw Error(Fault::input, path_, "the file is too short").at(offset);
  if (map_ != nullptr) return map_ + offset;
  if (scratch.size() < length) scratch.resize(length);
  std::size_t done = 0;
  while (done < length) {
    const ssize_t got = ::pread(fd_, scratch.data() + done, length - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, errno);
    if (got == 0) throw Error(Fault::input, path_, "the file became shorter while it was read").at(offset + done);
    done += static_cast<std::size_t>(got);
  }
  return scratch.data();
}

void InputFile::require_unchanged() const {
  struct stat info {};
  if ((fd_ >= 0 ? ::fstat(fd_, &info) : ::stat(path_.c_str(), &info)) != 0) fail(path_, errno);
  if (static_cast<std::uint64_t>(info.st_size) != size_ || times_of(info) != times_ ||
      static_cast<std::uint64_t>(info.st_ino) != identity_.inode)
    throw Error(Fault::input, path_, "was changed while it was read");
}

void InputFile::release(std::uint64_t offset, std::size_t length) const noexcept {
  if (map_ == nullptr || offset > size_ || length > size_ - offset) return;
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = (offset + page - 1) / page * page;  // whole pages only: the others may be in use
  const std::uint64_t end = (offset + length) / page * page;
  if (first < end)
    ::madvise(const_cast<std::uint8_t*>(map_) + first, static_cast<std::size_t>(end - first), MADV_DONTNEED);
}

}  // namespace pn::io
