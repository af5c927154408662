// What the targets mix and imatrix start from, by name.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include "gguf_builder.hpp"

namespace fuzz {

using Seeds = std::map<std::string, Text>;

// Parts as fuzz_mix.cpp tells. `source` is the project's folder.
inline Seeds mix_seeds(const std::filesystem::path& source) {
  std::ifstream file(source / "examples/mixes/p0k19.txt", std::ios::binary);
  const std::string example{std::istreambuf_iterator<char>(file), {}};
  if (example.empty()) throw std::runtime_error("examples/mixes/p0k19.txt cannot be read");
  const std::string next = "\x1E";
  const std::string names = next + "token_embd.weight" + next + "blk.3.attn_q.weight" + next + "blk.0.ssm_out.weight";
  const std::map<std::string, std::string> texts{
      {"example", example + next + "blk.3.attn_q.weight # one\n\nblk.0.ffn_up.weight\n" + names},
      {"example-not-promoted", example},
      {"short", "*.weight K=5120,64 pn3t # comment\r\n\t?lk.* pn4t\n" + next + next + "a.weight" + next + "blk.1"},
      {"types", "a pn3t\nb pn4t\nc q8_0\nd keep\ne donor"},
      {"promoted", "@promoted K=5 pn4t\n* keep" + next + "a\nb c\n"},
      {"byte-order-mark", "\xEF\xBB\xBF* keep"},
      {"utf-16", std::string("\xFF\xFE*\0", 4)},
      {"characters", "\xC3\xA9?\xE8\xAA\x9E*\xF0\x9F\x98\x80 keep" + next + next + "\xC3\xA9\xC3\xE8\xAA\x9E\xF0"},
      {"stars", "*a*a*a*a*a*b keep\n*?*?a?*a keep" + next + next + std::string(150, 'a')},
      {"missing-type", "a K=5"},
      {"bad-lengths", "a K=5,,6 pn4t"},
      {"zero-length", "a K=00 pn4t"},
      {"largest-length", "a K=18446744073709551615 pn4t\nb K=18446744073709551616 pn4t"},
      {"too-many-words", "a pn4t K=5"},
      {"unknown-at", "@other pn4t"},
      {"carriage-return", "# old\ra pn4t"},
      {"control", "a\x1B pn4t"},
      {"zero", std::string("a\0 pn4t", 7)}};
  Seeds seeds;
  for (const auto& [name, text] : texts) seeds[name] = Text(text.begin(), text.end());
  return seeds;
}

namespace seed {

inline BuiltTensor floats(const std::string& name, std::vector<std::uint64_t> dimensions,
                          const std::vector<float>& values) {
  BuiltTensor tensor;
  tensor.name = name;
  tensor.type = 0;
  tensor.dimensions = std::move(dimensions);
  append(tensor.data, values);
  return tensor;
}

inline BuiltFile matrix_file() {
  BuiltFile file;
  file.keys = {key_string("general.type", "imatrix"), key_u32("imatrix.chunk_count", 3)};
  file.tensors = {floats("blk.0.a.in_sum2", {4, 1}, {1, 2, 3, 4}), floats("blk.0.a.counts", {1}, {2}),
                  floats("blk.0.e.in_sum2", {2, 3}, {1, 2, 3, 4, 5, 6}), floats("blk.0.e.counts", {1, 3}, {2, 0, 7}),
                  floats("blk.0.a.in_sum", {4, 1}, {-1, 2, -3, 4})};
  return file;
}

inline Text older_file(std::uint32_t count, bool tail) {
  Text out;
  put(out, count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string name = "blk." + std::to_string(i) + ".weight";
    put(out, static_cast<std::uint32_t>(name.size()));
    out.insert(out.end(), name.begin(), name.end());
    put<std::uint32_t>(out, 3 * i);
    put<std::uint32_t>(out, i + 1);
    append(out, std::vector<float>(i + 1, static_cast<float>(i)));
  }
  if (tail) {
    put<std::uint32_t>(out, 17);
    put<std::uint32_t>(out, 4);
    for (const char c : {'w', 'i', 'k', 'i'}) out.push_back(static_cast<std::uint8_t>(c));
  }
  return out;
}

}  // namespace seed

inline Seeds imatrix_seeds() {
  Seeds seeds;
  seeds["gguf"] = seed::matrix_file().bytes();
  for (const std::size_t removed : {0u, 1u}) {
    BuiltFile file = seed::matrix_file();
    file.tensors.erase(file.tensors.begin() + static_cast<std::ptrdiff_t>(removed));
    seeds["gguf-without-" + std::to_string(removed)] = file.bytes();
  }
  BuiltFile other = seed::matrix_file();
  other.keys[0] = key_string("general.type", "model");
  seeds["gguf-model"] = other.bytes();
  other = seed::matrix_file();
  other.tensors[3].dimensions = {3};
  seeds["gguf-counts"] = other.bytes();
  other.tensors[3].type = 1;
  seeds["gguf-type"] = other.bytes();
  other = seed::matrix_file();
  other.tail = {0};
  seeds["gguf-tail"] = other.bytes();
  seeds["older"] = seed::older_file(3, false);
  seeds["older-tail"] = seed::older_file(2, true);
  seeds["older-long"] = seed::older_file(60, true);
  seeds["older-cut"] = seed::older_file(2, true);
  seeds["older-cut"].resize(30);
  Text more = seed::older_file(1, true);
  more.push_back(0);
  seeds["older-more"] = more;
  // Plans, by a generator of numbers.
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u, static_cast<std::uint8_t>(state >> 24); };
  for (int i = 0; i < 60; ++i) {
    Text plan{0x80, static_cast<std::uint8_t>(i % 4)};
    for (int b = 16 + next() / 2; b > 0; --b) plan.push_back(next());
    seeds["plan-" + std::to_string(i)] = plan;
  }
  return seeds;
}

}  // namespace fuzz
