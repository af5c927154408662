// A folder for the files that code under test reads and writes: in /dev/shm or where TMPDIR says, and gone in the end.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace fuzz {

class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TMPDIR");
    if (parent == nullptr) parent = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ = std::string(parent) + "/pn-fuzz-XXXXXX";
    FUZZ_REQUIRE(::mkdtemp(path_.data()) != nullptr);
    path_ += "/";
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + name; }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

  // All that is in it, in folders too: "out", "out/a".
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      found.insert(entry.path().string().substr(path_.size()));
    return found;
  }

  void clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) std::filesystem::remove_all(entry);
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(path(name)); }
  void make_folder(const std::string& name) const { FUZZ_REQUIRE(::mkdir(path(name).c_str(), 0700) == 0); }

  void write(const std::string& name, const Text& bytes) const {
    const int file = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_REQUIRE(file >= 0);
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
      FUZZ_REQUIRE(wrote > 0);
      done += static_cast<std::size_t>(wrote);
    }
    ::close(file);
  }

  Text read(const std::string& name) const {
    const int file = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
    FUZZ_REQUIRE(file >= 0);
    struct stat info {};
    FUZZ_REQUIRE(::fstat(file, &info) == 0);
    Text bytes(static_cast<std::size_t>(info.st_size));
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
      FUZZ_REQUIRE(got > 0);
      done += static_cast<std::size_t>(got);
    }
    ::close(file);
    return bytes;
  }

  // A file by the name "", or the files of a folder by theirs.
  using Contents = std::map<std::string, Text>;
  Contents contents(const std::string& name) const {
    if (!std::filesystem::is_directory(path(name))) return {{"", read(name)}};
    Contents files;
    for (const auto& entry : std::filesystem::directory_iterator(path(name))) {
      const std::string file = entry.path().filename().string();
      files[file] = read(name + "/" + file);
    }
    return files;
  }

 private:
  std::string path_;
};

inline const Folder& folder() {
  static const Folder the_folder;
  return the_folder;
}

}  // namespace fuzz
