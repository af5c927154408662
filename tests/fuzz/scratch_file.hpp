// A file for code that reads files: written anew for each input, in /dev/shm or where TMPDIR says, and gone in the end.
#pragma once

#include <unistd.h>

#include <string>

#include "fuzz.hpp"

namespace fuzz {

class ScratchFile {
 public:
  ScratchFile() {
    const char* parent = std::getenv("TMPDIR");
    if (parent == nullptr) parent = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ = std::string(parent) + "/pn-fuzz-XXXXXX";
    file_ = ::mkstemp(path_.data());
    FUZZ_REQUIRE(file_ >= 0);
  }
  ~ScratchFile() {
    ::close(file_);
    ::unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& path() const { return path_; }

  void write(const std::uint8_t* bytes, std::size_t size) const {
    FUZZ_REQUIRE(::ftruncate(file_, 0) == 0);
    for (std::size_t done = 0; done < size;) {
      const ssize_t wrote = ::pwrite(file_, bytes + done, size - done, static_cast<off_t>(done));
      FUZZ_REQUIRE(wrote > 0);
      done += static_cast<std::size_t>(wrote);
    }
  }

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace fuzz
