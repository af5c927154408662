#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>

#include "error.hpp"

static_assert(sizeof(off_t) == 8, "files larger than 2 GiB need a 64-bit off_t (_FILE_OFFSET_BITS=64)");

namespace pn::io {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Calls create(path) with hidden names beside `target` until one is free. It returns 0 or an error number.
template <class Create>
int with_temporary_name(const std::string& target, Create create) {
  std::random_device random;
  const std::string name = name_of(target).substr(0, 200);  // leaves room below the usual limit of 255
  for (int attempt = 0;; ++attempt) {
    std::array<char, 16> suffix{};
    std::snprintf(suffix.data(), suffix.size(), "%08x", static_cast<unsigned>(random()));
    const int error = create(folder_of(target) + "/." + name + ".pnpack-" + suffix.data());
    if (error != EEXIST || attempt == 100) return error;
  }
}

// Creates `path` with `mode`; `pending` first, so that no signal comes between the file and its removal. -1: errno.
int create_pending(const std::string& path, std::unique_ptr<Pending>& pending) {
  pending = std::make_unique<Pending>(path, Pending::What::file);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    const int error = errno;
    pending.reset();
    errno = error;
  }
  return fd;
}

// A name reaches the disk with its folder; not every file system can do this, and the data is safe.
void flush_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  static_cast<void>(::fsync(folder));
  ::close(folder);
}

// Gives `from` the name `to`, which is replaced only if `replace`. Returns 0 or an error number.
int rename_to(const std::string& from, const std::string& to, bool replace) {
  int renamed = -1;
  errno = EINVAL;
#if defined(RENAME_NOREPLACE)
  // What appeared under the name meanwhile is not replaced.
  if (!replace) renamed = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
#endif
  if (renamed != 0 && (replace || errno == EINVAL || errno == ENOSYS)) renamed = ::rename(from.c_str(), to.c_str());
  return renamed == 0 ? 0 : errno;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

OutputTarget::OutputTarget(std::string path, bool replace, const std::vector<FileIdentity>& inputs)
    : path_(std::move(path)),
      resolved_(without_slashes_at_end(path_)),
      ends_with_slash_(resolved_ != path_),
      replace_(replace) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) {
    if (errno != ENOENT) throw Error(Fault::output, path_, std::generic_category().message(errno));
    if (::lstat(resolved_.c_str(), &info) == 0)
      throw Error(Fault::output, path_, "is a link to nothing; remove it or name its target");
    const std::string folder = folder_of(resolved_);
    if (::stat(folder.c_str(), &info) != 0 || ::access(folder.c_str(), W_OK | X_OK) != 0)
      throw Error(Fault::output, path_, std::generic_category().message(errno));
    return;
  }
  exists_ = true;
  identity_ = {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
  require_not_one_of(inputs);
  is_folder_ = S_ISDIR(info.st_mode);
  if (!S_ISREG(info.st_mode) && !is_folder_) throw Error(Fault::output, path_, "exists and is not a regular file");
  if (!replace_) throw Error(Fault::output, path_, "exists already (--force replaces it)");
  mode_ = info.st_mode & 07777u;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path_.c_str(), nullptr), &std::free);
  if (real == nullptr) throw Error(Fault::output, path_, std::generic_category().message(errno));
  resolved_ = real.get();
  if (is_folder_) inside_ = names_in(resolved_);
}

void OutputTarget::require_not_one_of(const std::vector<FileIdentity>& inputs) const {
  if (exists_ && std::find(inputs.begin(), inputs.end(), identity_) != inputs.end())
    throw Error(Fault::usage, path_, "the output is the input");
}

void OutputTarget::require_none_inside(const std::vector<FileIdentity>& inputs) const {
  for (const std::string& name : inside_) {
    struct stat info {};
    if (::stat((resolved_ + "/" + name).c_str(), &info) != 0) continue;
    const FileIdentity identity{static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
    if (std::find(inputs.begin(), inputs.end(), identity) != inputs.end())
      throw Error(Fault::usage, path_, "the output holds an input: " + name);
  }
}

void OutputTarget::require_file() const {
  if (exists_ && is_folder_)
    throw Error(Fault::output, path_, "exists and is not a regular file: it is a folder, and the output is one file");
  if (ends_with_slash_) throw Error(Fault::output, path_, "names a folder, and the output is one file");
}

void OutputTarget::require_folder() const {
  if (exists_ && !is_folder_)
    throw Error(Fault::output, path_, "exists and is a file; the output is a folder, like the input");
}

void OutputTarget::require_space(std::uint64_t bytes) const {
  struct statvfs info {};
  if (::statvfs(folder_of(resolved_).c_str(), &info) != 0) return;  // it will show
  const std::uint64_t free = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  if (bytes > free)
    throw Error(
        Fault::output, path_,
        "needs at least " + std::to_string(bytes) + " bytes, but its disk has " + std::to_string(free) + " left");
}

OutputFile::OutputFile(const OutputTarget& target) : target_(target) {
  target_.require_file();
  const int error = with_temporary_name(target_.resolved_, [this](const std::string& path) {
    fd_ = create_pending(path, pending_);
    temporary_ = path;
    return fd_ >= 0 ? 0 : errno;
  });
  if (error != 0) fail(error);
  if (target_.exists_) ::fchmod(fd_, target_.mode_);
}

OutputFile::OutputFile(OutputFolder& folder, const std::string& name)
    : target_(folder.target_), folder_(&folder), temporary_(folder.temporary_ + "/" + name) {
  fd_ = create_pending(temporary_, pending_);
  if (fd_ < 0) fail(errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (pending_) pending_->remove();
}

void OutputFile::fail(int error) const {
  throw Error(Fault::output, target_.path(), std::generic_category().message(error));
}

void OutputFile::write_at(std::uint64_t offset, const void* bytes, std::size_t length) {
  const char* next = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t wrote = ::pwrite(fd_, next, std::min(length, std::size_t{1} << 30), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(errno);
    next += wrote;
    offset += static_cast<std::uint64_t>(wrote);
    length -= static_cast<std::size_t>(wrote);
  }
}

void OutputFile::append(const void* bytes, std::size_t length) {
  write_at(size_, bytes, length);
  size_ += length;
}

void OutputFile::append_zeros(std::uint64_t length) {
  static constexpr std::array<char, 4096> zeros{};
  for (; length > 0; length -= std::min<std::uint64_t>(length, zeros.size()))
    append(zeros.data(), static_cast<std::size_t>(std::min<std::uint64_t>(length, zeros.size())));
}

void OutputFile::overwrite(std::uint64_t offset, const void* bytes, std::size_t length) {
  write_at(offset, bytes, length);
}

void OutputFile::truncate(std::uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) fail(errno);
  size_ = size;
}

void OutputFile::commit() {
  if (::fsync(fd_) != 0) fail(errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail(errno);
  if (folder_ != nullptr) {
    folder_->files_.push_back(std::move(pending_));
    return;
  }
  const int error = rename_to(temporary_, target_.resolved_, target_.replace_);
  if (error != 0) fail(error);
  pending_->disarm();
  flush_folder(folder_of(target_.resolved_));
}

OutputFolder::OutputFolder(const OutputTarget& target) : target_(target) {
  target_.require_folder();
  const int error = with_temporary_name(target_.resolved_, [this](const std::string& path) {
    pending_ = std::make_unique<Pending>(path, Pending::What::folder);
    temporary_ = path;
    if (::mkdir(path.c_str(), 0777) == 0) return 0;
    const int reason = errno;
    pending_.reset();
    return reason;
  });
  if (error != 0) fail(error);
}

OutputFolder::~OutputFolder() {
  clear();
  if (pending_) pending_->remove();
}

void OutputFolder::fail(int error) const {
  throw Error(Fault::output, target_.path(), std::generic_category().message(error));
}

std::unique_ptr<OutputFile> OutputFolder::create(const std::string& name) {
  return std::unique_ptr<OutputFile>(new OutputFile(*this, name));
}

void OutputFolder::clear() {
  for (const auto& file : files_) file->remove();
  files_.clear();
}

// The two folders change places, so that there is a complete one under the name at any time; then the old one goes.
// What is pending by the temporary name is from then on the old folder's.
void OutputFolder::replace_existing() {
  if (names_in(target_.resolved_) != target_.inside_)
    throw Error(Fault::output, target_.path(), "its files changed meanwhile: it is not replaced");
  std::string old = temporary_;
  bool exchanged = false;
#if defined(RENAME_EXCHANGE)
  exchanged = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.resolved_.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged && errno != EINVAL && errno != ENOSYS) fail(errno);
#endif
  if (!exchanged) {
    old = temporary_ + "-old";
    int error = rename_to(target_.resolved_, old, false);
    if (error != 0) fail(error);
    error = rename_to(temporary_, target_.resolved_, false);
    if (error != 0) {
      rename_to(old, target_.resolved_, false);
      fail(error);
    }
  }
  for (const std::string& name : target_.inside_) ::unlink((old + "/" + name).c_str());
  if (::rmdir(old.c_str()) != 0) {
    forget();
    throw Error(Fault::output, target_.path(),
                "is complete, but what stood there before could not be removed; the rest of it is in " + old);
  }
}

void OutputFolder::forget() {
  for (const auto& file : files_) file->disarm();
  files_.clear();
  pending_->disarm();
}

void OutputFolder::commit() {
  flush_folder(temporary_);
  if (target_.exists_) {
    ::chmod(temporary_.c_str(), target_.mode_);
    replace_existing();
  } else if (const int error = rename_to(temporary_, target_.resolved_, false); error != 0) {
    fail(error);
  }
  forget();
  flush_folder(folder_of(target_.resolved_));
}

}  // namespace pn::io
