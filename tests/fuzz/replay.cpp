// A main function for a fuzz target without a fuzzer: runs the files it is given, and all files of folders.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace {

void replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(2);
  }
  // Told before it runs, so that the last line names the culprit. Memory of exactly its size guards the end.
  std::printf("%s\n", path.c_str());
  static_cast<void>(std::fflush(stdout));
  const std::unique_ptr<std::uint8_t[]> data(new std::uint8_t[bytes.size()]);
  if (!bytes.empty()) std::memcpy(data.get(), bytes.data(), bytes.size());
  LLVMFuzzerTestOneInput(data.get(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerTestOneInput(nullptr, 0);
  std::vector<std::filesystem::path> inputs;
  std::string prefix;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--prefix=", 0) == 0) {  // of the names of files that count in the folders that follow
      prefix = argument.substr(9);
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argument))
        if (entry.is_regular_file() && entry.path().filename().string().rfind(prefix, 0) == 0)
          inputs.push_back(entry.path());
    } else {
      inputs.emplace_back(argument);
    }
  }
  std::sort(inputs.begin(), inputs.end());
  for (const auto& path : inputs) replay(path);
  std::printf("%zu inputs, no finding\n", inputs.size());
  return 0;
}
