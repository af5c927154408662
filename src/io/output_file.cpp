#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// The temporary file to remove when a signal ends the process. The handler may run at any moment, so the path lies in
// memory that is never freed and `armed` says whether it is complete.
std::array<char, 8192> pending_path;
std::atomic<bool> pending_armed{false};

// What the handler of SIGBUS writes, also in memory that is never freed.
std::array<char, 16384> bus_error_text;
std::size_t bus_error_length = 0;
int bus_error_descriptor = STDERR_FILENO;

void set_pending(const std::string& path) {
  if (path.size() >= pending_path.size()) return;  // such a path cannot be opened anyway
  std::memcpy(pending_path.data(), path.c_str(), path.size() + 1);
  pending_armed = true;
}

void clear_pending() { pending_armed = false; }

extern "C" void on_signal(int signal) {
  if (pending_armed.exchange(false)) ::unlink(pending_path.data());
  if (signal == SIGBUS) {
    const ssize_t ignored = ::write(bus_error_descriptor, bus_error_text.data(), bus_error_length);
    static_cast<void>(ignored);
    ::_exit(3);
  }
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2, SIGABRT, SIGBUS}) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler == SIG_IGN) continue;  // for example under nohup
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void set_bus_error_message(const std::string& message, int descriptor) {
  bus_error_length = 0;
  const std::size_t length = std::min(message.size(), bus_error_text.size());
  std::memcpy(bus_error_text.data(), message.data(), length);
  bus_error_descriptor = descriptor;
  bus_error_length = length;
}

OutputTarget::OutputTarget(std::string path, bool replace, const std::vector<FileIdentity>& inputs)
    : path_(std::move(path)), resolved_(path_), replace_(replace) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) {
    if (errno != ENOENT) throw Error(Fault::output, path_, std::generic_category().message(errno));
    if (::lstat(path_.c_str(), &info) == 0)
      throw Error(Fault::output, path_, "is a link to nothing; remove it or name its target");
    const std::string folder = folder_of(path_);
    if (::stat(folder.c_str(), &info) != 0 || ::access(folder.c_str(), W_OK | X_OK) != 0)
      throw Error(Fault::output, path_, std::generic_category().message(errno));
    return;
  }
  const FileIdentity identity{static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
  if (std::find(inputs.begin(), inputs.end(), identity) != inputs.end())
    throw Error(Fault::usage, path_, "the output is the input");
  if (!S_ISREG(info.st_mode)) throw Error(Fault::output, path_, "exists and is not a regular file");
  if (!replace_) throw Error(Fault::output, path_, "exists already (--force replaces it)");
  exists_ = true;
  mode_ = info.st_mode & 07777u;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path_.c_str(), nullptr), &std::free);
  if (real == nullptr) throw Error(Fault::output, path_, std::generic_category().message(errno));
  resolved_ = real.get();
}

OutputFile::OutputFile(const OutputTarget& target) : target_(target) {
  std::random_device random;
  const std::string name = name_of(target_.resolved_).substr(0, 200);  // leaves room below the usual limit of 255
  for (int attempt = 0; fd_ < 0; ++attempt) {
    std::array<char, 16> suffix{};
    std::snprintf(suffix.data(), suffix.size(), "%08x", static_cast<unsigned>(random()));
    temporary_ = folder_of(target_.resolved_) + "/." + name + ".pnpack-" + suffix.data();
    set_pending(temporary_);  // first, so that no signal comes between the file and its removal
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    const int error = errno;
    clear_pending();
    if (error != EEXIST || attempt == 100) fail(error);
  }
  if (target_.exists_) ::fchmod(fd_, target_.mode_);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    clear_pending();
  }
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
  const char* from = temporary_.c_str();
  const char* to = target_.resolved_.c_str();
  int renamed = -1;
  errno = EINVAL;
#if defined(RENAME_NOREPLACE)
  // A file that appeared under the name meanwhile is not replaced unless --force was given.
  if (!target_.replace_) renamed = ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
#endif
  if (renamed != 0 && (target_.replace_ || errno == EINVAL || errno == ENOSYS)) renamed = ::rename(from, to);
  if (renamed != 0) fail(errno);
  temporary_.clear();
  clear_pending();
  // The name itself reaches the disk with its folder; not every file system can do this, and the data is safe.
  const int folder = ::open(folder_of(target_.resolved_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

}  // namespace pn::io
