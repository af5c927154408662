// Proves that an input is read the same mapped or not, that only regular files are read or replaced, and that an
// output appears complete or not at all.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "catch.hpp"
#include "io/error.hpp"
#include "io/output_file.hpp"
#include "temp_dir.hpp"

using pn::io::Error;
using pn::io::Fault;
using pn::io::InputFile;
using pn::io::OutputFile;
using pn::io::OutputFolder;
using pn::io::OutputTarget;

namespace {

Fault fault_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK_FALSE(error.file().empty());
    CHECK(std::string(error.what()).size() > 5);
    return error.fault();
  }
  FAIL("no error was thrown");
  return Fault::usage;
}

std::string numbers(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 251));
  return bytes;
}

}  // namespace

TEST_CASE("mapped and plain reading give the same bytes") {
  const TempDir dir;
  const std::string bytes = numbers(100001);
  const std::string path = dir.write("in", bytes);
  const InputFile mapped(path);
  const InputFile plain(path, InputFile::Access::plain_read);
  CHECK(mapped.mapped());
  CHECK_FALSE(plain.mapped());
  CHECK(mapped.identity() == plain.identity());
  std::vector<std::uint8_t> scratch;
  for (const std::size_t offset : {0u, 1u, 4095u, 99990u, 100001u}) {
    for (const std::size_t length : {0u, 1u, 11u}) {
      if (offset + length > bytes.size()) continue;
      for (const InputFile* file : {&mapped, &plain}) {
        REQUIRE(file->size() == bytes.size());
        const std::uint8_t* got = file->read(offset, length, scratch);
        CHECK(std::string(reinterpret_cast<const char*>(got), length) == bytes.substr(offset, length));
      }
    }
  }
}

TEST_CASE("what was released can be read again") {
  const TempDir dir;
  const std::string bytes = numbers(100001);
  const InputFile file(dir.write("in", bytes));
  std::vector<std::uint8_t> scratch;
  const std::uint8_t* all = file.read(0, bytes.size(), scratch);
  file.release(0, bytes.size());
  file.release(4095, 4098);
  file.release(100000, 2);
  file.release(~std::uint64_t{0}, 1);
  CHECK(std::string(reinterpret_cast<const char*>(all), bytes.size()) == bytes);
}

TEST_CASE("reading beyond the end is an error, also where the sum wraps") {
  const TempDir dir;
  const std::string path = dir.write("in", "0123456789");
  for (const auto access : {InputFile::Access::automatic, InputFile::Access::plain_read}) {
    const InputFile file(path, access);
    std::vector<std::uint8_t> scratch;
    CHECK(fault_of([&] { file.read(0, 11, scratch); }) == Fault::input);
    CHECK(fault_of([&] { file.read(10, 1, scratch); }) == Fault::input);
    CHECK(fault_of([&] { file.read(~std::uint64_t{0}, 2, scratch); }) == Fault::input);
    CHECK(fault_of([&] { file.read(1, ~std::size_t{0}, scratch); }) == Fault::input);
    CHECK(scratch.size() <= 16);
  }
}

TEST_CASE("a file that shrinks under a plain reader is an error") {
  const TempDir dir;
  const std::string path = dir.write("in", numbers(10000));
  const InputFile file(path, InputFile::Access::plain_read);
  REQUIRE(::truncate(path.c_str(), 5000) == 0);
  std::vector<std::uint8_t> scratch;
  CHECK(fault_of([&] { file.read(4000, 2000, scratch); }) == Fault::input);
}

TEST_CASE("only regular files are read, and a FIFO is refused without waiting") {
  const TempDir dir;
  CHECK(fault_of([&] { InputFile file(dir.file("missing")); }) == Fault::input);
  CHECK(fault_of([&] { InputFile file(dir.file("")); }) == Fault::input);
  CHECK(fault_of([&] { InputFile file("/dev/zero"); }) == Fault::input);
  REQUIRE(::mkfifo(dir.file("fifo").c_str(), 0600) == 0);
  CHECK(fault_of([&] { InputFile file(dir.file("fifo")); }) == Fault::input);
  CHECK(InputFile(dir.write("empty", "")).size() == 0);
}

TEST_CASE("the output appears with commit and not before") {
  const TempDir dir;
  const std::string path = dir.file("out");
  {
    OutputFile out(OutputTarget(path, false, {}));
    out.append("hello ", 6);
    out.append_zeros(5000);
    out.append("world", 5);
    out.overwrite(0, "J", 1);
    CHECK(out.size() == 5011);
    CHECK_FALSE(std::filesystem::exists(path));
    out.truncate(5006);
    out.append("!", 1);
    out.commit();
    CHECK(dir.entries() == 1);
  }
  CHECK(TempDir::read(path) == "Jello " + std::string(5000, '\0') + "!");
}

TEST_CASE("without commit nothing stays behind") {
  const TempDir dir;
  {
    OutputFile out(OutputTarget(dir.file("out"), false, {}));
    out.append("x", 1);
    CHECK(dir.entries() == 1);
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("an existing file is replaced only on request, whole, and keeps its permissions") {
  const TempDir dir;
  const std::string path = dir.write("out", "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  CHECK(fault_of([&] { OutputTarget target(path, false, {}); }) == Fault::output);
  {
    OutputFile out(OutputTarget(path, true, {}));
    out.append("ne", 2);
    CHECK(TempDir::read(path) == "old");
  }
  CHECK(TempDir::read(path) == "old");
  OutputFile out(OutputTarget(path, true, {}));
  out.append("new", 3);
  out.commit();
  CHECK(TempDir::read(path) == "new");
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777u) == 0640u);
  CHECK(dir.entries() == 1);
}

TEST_CASE("a file that appears meanwhile is not replaced without the request") {
  const TempDir dir;
  const std::string path = dir.file("out");
  {
    OutputFile out(OutputTarget(path, false, {}));
    out.append("ours", 4);
    dir.write("out", "theirs");
    CHECK(fault_of([&] { out.commit(); }) == Fault::output);
  }
  CHECK(TempDir::read(path) == "theirs");
  CHECK(dir.entries() == 1);
}

TEST_CASE("the output may not be an input, by any name") {
  const TempDir dir;
  const std::string path = dir.write("in", "data");
  const InputFile input(path);
  std::filesystem::create_symlink("in", dir.file("soft"));
  std::filesystem::create_hard_link(path, dir.file("hard"));
  for (const char* name : {"in", "./in", "soft", "hard"})
    for (const bool replace : {false, true})
      CHECK(fault_of([&] { OutputTarget target(dir.file(name), replace, {input.identity()}); }) == Fault::usage);
  CHECK(TempDir::read(path) == "data");
}

TEST_CASE("what is not a regular file is never replaced") {
  const TempDir dir;
  std::filesystem::create_directory(dir.file("folder"));
  std::filesystem::create_symlink("nowhere", dir.file("dangling"));
  for (const std::string& path : {std::string("/dev/null"), std::string("/dev/full"), dir.file("folder"),
                                  dir.file("dangling"), dir.file("no/such/folder/out")})
    CHECK(fault_of([&] { OutputFile out(OutputTarget(path, true, {})); }) == Fault::output);
  CHECK(std::filesystem::is_symlink(dir.file("dangling")));
}

TEST_CASE("a link to a file stays a link, and its target is replaced") {
  const TempDir dir;
  std::filesystem::create_directory(dir.file("elsewhere"));
  dir.write("elsewhere/target", "old");
  std::filesystem::create_symlink("elsewhere/target", dir.file("link"));
  OutputFile out(OutputTarget(dir.file("link"), true, {}));
  out.append("new", 3);
  out.commit();
  CHECK(std::filesystem::is_symlink(dir.file("link")));
  CHECK(TempDir::read(dir.file("elsewhere/target")) == "new");
  CHECK(dir.entries() == 2);
}

TEST_CASE("names as long as the file system allows work") {
  const TempDir dir;
  const std::string path = dir.file(std::string(255, 'n'));
  OutputFile out(OutputTarget(path, false, {}));
  out.append("x", 1);
  out.commit();
  CHECK(TempDir::read(path) == "x");
}

TEST_CASE("a write that fails is an error and leaves nothing") {
  const TempDir dir;
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 8192;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  {
    OutputFile out(OutputTarget(dir.file("out"), false, {}));
    CHECK(fault_of([&] { out.append_zeros(20000); }) == Fault::output);
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(dir.entries() == 0);
}

TEST_CASE("an input that was changed is noticed") {
  const TempDir dir;
  const std::string path = dir.write("in", numbers(10000));
  const InputFile file(path);
  file.require_unchanged();
  SECTION("longer") { std::ofstream(path, std::ios::app) << "more"; }
  SECTION("overwritten in place, its modification time set back") {
    struct stat before {};
    REQUIRE(::stat(path.c_str(), &before) == 0);
    ::usleep(20000);
    std::fstream(path, std::ios::in | std::ios::out) << "other";
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }
  CHECK(fault_of([&] { file.require_unchanged(); }) == Fault::input);
}

TEST_CASE("a folder appears with all its files or not at all") {
  const TempDir dir;
  {
    OutputFolder folder(OutputTarget(dir.file("out"), false, {}));
    for (const char* name : {"a", "b"}) {
      const auto file = folder.create(name);
      file->append(name, 1);
      file->commit();
    }
    const auto unfinished = folder.create("c");
    CHECK_FALSE(std::filesystem::exists(dir.file("out")));
  }
  CHECK(dir.entries() == 0);
  OutputFolder folder(OutputTarget(dir.file("out/"), false, {}));
  folder.create("gone")->commit();
  folder.clear();
  folder.create("a")->commit();
  folder.commit();
  CHECK(dir.entries() == 1);
  CHECK(std::filesystem::exists(dir.file("out/a")));
  CHECK_FALSE(std::filesystem::exists(dir.file("out/gone")));
}

TEST_CASE("a folder is replaced only by a folder, and with no file that came later") {
  const TempDir dir;
  dir.write("file", "x");
  CHECK(fault_of([&] { OutputFolder out(OutputTarget(dir.file("file"), true, {})); }) == Fault::output);
  std::filesystem::create_directory(dir.file("out"));
  dir.write("out/old", "old");
  CHECK(fault_of([&] { OutputFile out(OutputTarget(dir.file("out"), true, {})); }) == Fault::output);
  const InputFile old(dir.file("out/old"));
  CHECK(fault_of([&] { OutputTarget(dir.file("out"), true, {}).require_none_inside({old.identity()}); }) ==
        Fault::usage);

  {
    OutputFolder out(OutputTarget(dir.file("out"), true, {}));
    out.create("new")->commit();
    dir.write("out/later", "precious");
    CHECK(fault_of([&] { out.commit(); }) == Fault::output);
  }
  CHECK(TempDir::read(dir.file("out/old")) == "old");
  CHECK(TempDir::read(dir.file("out/later")) == "precious");
  CHECK(dir.entries() == 2);

  OutputFolder out(OutputTarget(dir.file("out"), true, {}));
  out.create("new")->commit();
  out.commit();
  CHECK(std::filesystem::exists(dir.file("out/new")));
  CHECK_FALSE(std::filesystem::exists(dir.file("out/old")));
  CHECK(dir.entries() == 2);
}

TEST_CASE("a target without room for the output is refused before anything is written") {
  const TempDir dir;
  const OutputTarget target(dir.file("out"), false, {});
  target.require_space(1);
  CHECK(fault_of([&] { target.require_space(std::uint64_t{1} << 60); }) == Fault::output);
}

TEST_CASE("more mapped inputs than a process may keep open") {
  const TempDir dir;
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 40;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &small) == 0);
  std::vector<std::unique_ptr<InputFile>> files;
  for (int i = 0; i < 100; ++i) files.push_back(std::make_unique<InputFile>(dir.write("in" + std::to_string(i), "x")));
  for (const auto& file : files) file->require_unchanged();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
