// fuzz_seeds OUT: writes what the fuzz targets start from, each to a folder of its name in OUT: pieces of the golden
// files, the small tensors of the example models, and model files with everything that the formats allow. Always the
// same files.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "gguf_builder.hpp"
#include "io/gguf.hpp"
#include "pnpack/verbs.hpp"
#include "seeds_mix_imatrix.hpp"
#include "seeds_safetensors.hpp"

namespace {

namespace fs = std::filesystem;
using fuzz::Text;

Text read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const fs::path& path, const Text& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error(path.string() + ": cannot be written");
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// ---- Golden files: rows of whole blocks without a header

// `count` pieces of `length` bytes, from all over `bytes`, each behind the byte that chooses what the target does with
// it; beside each the piece of the same number of `second`.
void write_pieces(const fs::path& out, const std::string& name, std::uint8_t kind, const Text& bytes,
                  std::size_t length, const Text& second = {}, std::size_t second_length = 0) {
  constexpr std::size_t most = 24;
  const std::size_t pieces = bytes.size() / length;
  const std::size_t step = pieces / most + 1;
  for (std::size_t p = 0; p < pieces; p += step) {
    Text piece{kind};
    const auto append = [&](const Text& from, std::size_t size) {
      if ((p + 1) * size > from.size()) return;
      const auto start = from.begin() + static_cast<std::ptrdiff_t>(p * size);
      piece.insert(piece.end(), start, start + static_cast<std::ptrdiff_t>(size));
    };
    append(bytes, length);
    append(second, second_length);
    write(out / (name + "-" + std::to_string(p)), piece);
  }
}

// Returns the number of golden files used.
int write_golden(const fs::path& golden, const fs::path& out) {
  int used = 0;
  for (const auto& entry : fs::recursive_directory_iterator(golden)) {
    const std::string file = entry.path().filename().string();
    const bool p12 = file.rfind("p12-", 0) == 0;
    const std::size_t block = file.rfind("pn3t-", 0) == 0 ? 80 : file.rfind("pn4t-", 0) == 0 ? 64 : 256;
    if (!entry.is_regular_file() || !ends_with(file, ".bin") || (!p12 && block == 256)) continue;
    const std::string name = entry.path().parent_path().filename().string() + "-" + entry.path().stem().string();
    const fs::path folder = out / (p12 ? "p12" : "pn");
    if (ends_with(file, "blocks.bin")) {
      write_pieces(folder, name, 0, read(entry.path()), p12 ? 2 * 392 : 3 * 34);
    } else if (ends_with(file, "weighted-weights.bin")) {
      fs::path importance = entry.path();
      importance.replace_filename(file.substr(0, file.size() - 11) + "importance.bin");
      write_pieces(folder, name, 2, read(entry.path()), 4 * block, read(importance), 8 * block);
    } else if (ends_with(file, "weights.bin")) {
      write_pieces(folder, name, 1, read(entry.path()), p12 ? 2 * 256 : 4 * block);
      if (!p12) write_pieces(folder, name + "-as-doubles", 3, read(entry.path()), 16 * block);
    } else {
      continue;
    }
    ++used;
  }
  return used;
}

// ---- GGUF

Text every_key_type() {
  Text out;
  std::array<std::uint8_t, 64> plan_bytes{};
  for (std::size_t i = 0; i < plan_bytes.size(); ++i) plan_bytes[i] = static_cast<std::uint8_t>(3 * i + 1);
  fuzz::BuiltFile file;
  for (std::uint32_t type = 0; type < 13; ++type) {
    fuzz::Bytes plan(plan_bytes.data(), plan_bytes.size());
    Text key;
    fuzz::put(key, "value." + std::to_string(type));
    fuzz::put(key, type);
    fuzz::put_any_value(key, plan, type, 1);
    file.keys.push_back(key);
    // An array of two of them, and an empty one.
    for (const std::uint64_t count : {std::uint64_t{2}, std::uint64_t{0}}) {
      Text array;
      fuzz::put(array, "array." + std::to_string(type) + "." + std::to_string(count));
      fuzz::put<std::uint32_t>(array, 9);
      fuzz::put(array, type);
      fuzz::put(array, count);
      for (std::uint64_t i = 0; i < count; ++i) fuzz::put_any_value(array, plan, type, 2);
      file.keys.push_back(array);
    }
  }
  return file.bytes();
}

fuzz::BuiltTensor tensor(const std::string& name, std::uint32_t type, std::vector<std::uint64_t> dimensions,
                         std::uint8_t kind = 0) {
  const std::array<std::uint8_t, 8> plan_bytes{kind, 7, 1, 5, 0x3C, 0x11, 0x3D, 0x80};
  fuzz::Bytes plan(plan_bytes.data(), plan_bytes.size());
  std::uint64_t elements = 1;
  for (const std::uint64_t n : dimensions) elements *= n;
  fuzz::BuiltTensor built;
  built.name = name;
  built.dimensions = std::move(dimensions);
  built.type = type;
  built.data = fuzz::any_data(plan, type, elements, false);
  return built;
}

fuzz::BuiltFile small_model(std::uint32_t version) {
  fuzz::BuiltFile file;
  file.version = version;
  file.keys = {fuzz::key_string("general.architecture", "llama"), fuzz::key_u32("general.alignment", 32)};
  file.tensors = {tensor("token_embd.weight", 30, {256, 2}), tensor("blk.0.attn_norm.weight", 0, {64}),
                  tensor("blk.0.ffn_up.weight", 30, {512, 1, 1}), tensor("blk.0.ffn_down.weight", 1, {320, 1}),
                  tensor("output.weight", 0, {320, 1})};
  return file;
}

fuzz::BuiltFile odd_model() {
  fuzz::BuiltFile file;
  file.alignment = 8;
  file.keys = {fuzz::key_u32("general.alignment", 8)};
  file.tensors = {tensor("scalar", 0, {}),           tensor("empty", 30, {256, 0}),
                  tensor("unknown", 42, {100}),      tensor("pn3t", 124, {80, 2}),
                  tensor("pn4t", 125, {64, 3}),      tensor("wild", 30, {256, 1}, 6),
                  tensor("listed", 30, {512, 1}, 1), tensor("short", 30, {100, 2}),
                  tensor("q8", 8, {32, 2}),          tensor("column", 30, {256, 1, 1, 1})};
  file.padded = false;
  return file;
}

// The keys and the small tensors of a model.
Text small_part(const fs::path& model) {
  const pn::io::InputFile file(model.string());
  pn::io::Gguf gguf = pn::io::read_gguf(file);
  pn::io::GgufHeader header;
  header.version = gguf.version;
  header.alignment = gguf.alignment;
  header.p12_type_id = gguf.record.p12_type_id;
  std::vector<std::uint8_t> scratch;
  for (const auto& key : gguf.keys)
    if (key.bytes <= 256) header.kept.push_back(key);
  Text data;
  for (pn::io::Tensor part : gguf.tensors) {
    // One row of what is large.
    if (part.bytes > 4096 && part.type.known() && part.shape.size() >= 2) {
      for (std::size_t i = 0; i + 1 < part.shape.size(); ++i) part.shape[i] = 1;
      part.elements = part.row_length();
      part.bytes = part.elements / part.type.block * part.type.block_bytes;
    }
    if (part.bytes > 4096) continue;
    const std::uint8_t* bytes = file.read(part.offset, static_cast<std::size_t>(part.bytes), scratch);
    data.resize(static_cast<std::size_t>(pn::io::align_up(data.size(), gguf.alignment)));
    part.offset = data.size();
    data.insert(data.end(), bytes, bytes + part.bytes);
    header.tensors.push_back(part);
    if (header.tensors.size() == 6) break;
  }
  data.resize(static_cast<std::size_t>(pn::io::align_up(data.size(), gguf.alignment)));
  Text out = header.serialize(file);
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

// A file of one key whose bytes after the name are `value`, beginning with the type.
Text one_key(const std::string& name, const Text& value) {
  fuzz::BuiltFile file;
  Text key;
  fuzz::put(key, name);
  key.insert(key.end(), value.begin(), value.end());
  file.keys = {key};
  file.padded = false;
  return file.bytes();
}

Text array(std::uint32_t type, std::uint64_t count, std::size_t bytes) {
  Text out;
  fuzz::put<std::uint32_t>(out, 9);
  fuzz::put(out, type);
  fuzz::put(out, count);
  out.resize(out.size() + bytes);
  return out;
}

// Files that break readers.
void write_hostile(const fs::path& out) {
  write(out / "array-wraps", one_key("k", array(10, (std::uint64_t{1} << 61) + 1, 64)));
  write(out / "array-of-strings-wraps", one_key("k", array(8, std::uint64_t{1} << 61, 64)));
  write(out / "array-too-long", one_key("k", array(0, 65, 64)));
  write(out / "array-just-fits", one_key("k", array(0, 64, 64)));
  Text nested;
  for (int depth = 0; depth < 17; ++depth) {
    const Text level = array(9, 1, 0);
    const auto from = level.begin() + (depth == 0 ? 0 : 4);
    nested.insert(nested.end(), from, level.end());
    Text closed = nested;
    const Text last = array(0, 0, 0);
    closed.insert(closed.end(), last.begin() + 4, last.end());
    if (depth >= 14) write(out / ("nested-" + std::to_string(depth)), one_key("k", closed));
  }
  for (const std::uint64_t more :
       {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{9}, std::uint64_t{0xFFFFFFFFFFF6}}) {
    Text value;
    fuzz::put<std::uint32_t>(value, 8);
    fuzz::put(value, 10 + more);
    value.resize(value.size() + 10, 'x');
    write(out / ("string-" + std::to_string(more)), one_key("k", value));
  }
  Text wide;
  fuzz::put<std::uint32_t>(wide, 10);
  fuzz::put<std::uint64_t>(wide, 32);
  write(out / "alignment-u64", one_key("general.alignment", wide));
  // Not one file, or not a number.
  static constexpr std::array<std::pair<std::uint32_t, std::size_t>, 7> sizes{
      {{0, 1}, {4, 4}, {6, 4}, {7, 1}, {8, 8}, {9, 12}, {10, 8}}};
  for (const auto& [type, size] : sizes)
    for (const std::uint8_t count : {std::uint8_t{0}, std::uint8_t{2}}) {
      Text value;
      fuzz::put(value, type);
      value.resize(4 + size);
      if (type != 8 && type != 9) value[4] = count;
      write(out / ("split-" + std::to_string(type) + "-" + std::to_string(count)), one_key("split.count", value));
    }
  // Numbers that lie across the places where a reader reads on.
  for (const std::size_t name : {1u, 4u, 7u}) {
    Text strings = array(8, 9000, 9000 * 8);
    write(out / ("long-header-" + std::to_string(name)), one_key(std::string(name, 'k'), strings));
  }
  for (const std::uint32_t version : {0u, 1u, 4u, 0x02000000u, 0x03000000u}) {
    fuzz::BuiltFile file = small_model(version);
    write(out / ("version-" + std::to_string(version)), file.bytes());
  }
  for (const std::uint32_t alignment : {0u, 3u, 4u, 131072u, 0x80000000u}) {
    fuzz::BuiltFile file = small_model(3);
    file.keys[1] = fuzz::key_u32("general.alignment", alignment);
    write(out / ("alignment-" + std::to_string(alignment)), file.bytes());
  }
  for (const std::size_t dimensions : {4u, 5u, 9u}) {
    fuzz::BuiltFile file = small_model(3);
    file.tensors[4].dimensions.resize(dimensions, 1);
    write(out / ("dimensions-" + std::to_string(dimensions)), file.bytes());
  }
  for (const std::uint64_t rows : {(std::uint64_t{1} << 42) + 1, (std::uint64_t{1} << 57) + 1, ~std::uint64_t{0}}) {
    fuzz::BuiltFile file = small_model(3);
    file.tensors[0].dimensions = {1152, rows};
    write(out / ("rows-" + std::to_string(rows)), file.bytes());
  }
  // Padding that is not zero: between tensors, and only after the last.
  fuzz::BuiltFile padding = small_model(3);
  padding.tensors.push_back(tensor("last", 0, {63}));
  padding.last_padding = 1;
  write(out / "padding-last", padding.bytes());
  padding.padding = 1;
  write(out / "padding-all", padding.bytes());
  padding.last_padding = 0;
  padding.padding = 0;
  padding.tail = {0};
  write(out / "tail", padding.bytes());
  padding.padded = false;
  write(out / "tail-inside-padding", padding.bytes());
  padding.tail.clear();
  write(out / "no-padding", padding.bytes());
  padding.reversed = true;
  write(out / "reversed", padding.bytes());
  padding.tensors[2].gap = 100;
  write(out / "gap", padding.bytes());
  padding.tensors[2].offset = 0;
  write(out / "overlap", padding.bytes());
  // Names that are no UTF-8, almost no UTF-8, and control characters.
  fuzz::BuiltFile names = small_model(3);
  const char* const texts[] = {"\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE0\x9F\xBF\xF0\x8F\xBF\xBF", "\xC2\x9B[31m\x1B",
                               "\xC3"};
  for (std::size_t i = 0; i < 5; ++i) names.tensors[i].name = texts[i];
  write(out / "names", names.bytes());
  names.tensors[0].name = names.tensors[1].name;
  write(out / "names-twice", names.bytes());
}

void write_gguf(const fs::path& source, const fs::path& out) {
  write(out / "v3", small_model(3).bytes());
  write(out / "v2", small_model(2).bytes());
  write(out / "odd", odd_model().bytes());
  write(out / "keys", every_key_type());
  write(out / "no-tensors", fuzz::BuiltFile{}.bytes());
  write_hostile(out);
  write(out / "example", small_part(source / "examples/data/sample-bf16.gguf"));

  // The same, packed and quantized.
  pnpack::Options options;
  options.quiet = true;
  options.force = true;
  for (const char* name : {"v3", "v2", "odd", "example"}) {
    options.input = (out / name).string();
    options.second = options.input + "-packed";
    pnpack::pack(options);
    if (std::string(name) == "odd") continue;  // has weights that are no numbers
    for (const char* type : {"pn3t", "pn4t"}) {
      options.input = (out / name).string();
      options.type = type;
      options.second = options.input + "-" + type;
      pnpack::quantize(options);
      options.input += "-packed";
      options.second = options.input + "-" + type;
      pnpack::quantize(options);
      options.type.clear();
    }
  }
  options.input = (out / "v3").string();
  options.second = options.input + "-rotated";
  options.type = "pn4t";
  options.rotate = 64;
  pnpack::quantize(options);
  // Plans (see fuzz_gguf.cpp): a tensor for three threads, and one for one thread that finds after writing a part of it
  // that the last block does not fit.
  for (const std::uint8_t fits : {std::uint8_t{1}, std::uint8_t{0}}) {
    Text plan(26);
    plan[0] = 0x80;
    plan[1] = fits != 0 ? 6 : 0;  // threads
    plan[7] = 1;                  // damage
    plan[12] = 2;                 // tensors
    plan[15] = 7;                 // shape of the first: one dimension
    plan[20] = 57;                // but large
    plan[21] = 1;
    plan[24] = static_cast<std::uint8_t>(1 - fits);
    write(out / (fits != 0 ? "plan-large" : "plan-large-stays"), plan);
  }
  // By a generator of numbers.
  std::uint32_t state = 1;
  for (int i = 0; i < 200; ++i) {
    const auto next = [&] { return state = state * 1664525u + 1013904223u, static_cast<std::uint8_t>(state >> 24); };
    Text plan{0x80};
    const int length = 16 + next();
    for (int b = 0; b < length; ++b) plan.push_back(next());
    write(out / ("plan-" + std::to_string(i)), plan);
  }
}

// What pack and quantize make of a small file; behind the first byte, which says that a file follows.
void write_safetensors(const fs::path& out) {
  pnpack::Options options;
  options.quiet = true;
  options.force = true;
  options.input = (out / "file").string();
  options.second = (out / "result").string();
  const auto take = [&](const std::string& name) {
    Text bytes = read(options.second);
    bytes.insert(bytes.begin(), 0);
    write(out / name, bytes);
  };
  for (const std::string name : {"raw-one-0", "raw-metadata-0"}) {
    Text file = read(out / name);
    file.erase(file.begin());
    write(options.input, file);
    pnpack::pack(options);
    take(name + "-packed");
    options.type = "pn4t";
    options.rotate = 64;
    pnpack::quantize(options);
    take(name + "-rotated");
    options.type.clear();
    options.rotate = 0;
  }
  fs::remove(out / "file");
  fs::remove(out / "result");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds OUT\n";
    return 2;
  }
  try {
    const fs::path source = PN_SOURCE_DIR;
    const fs::path out = argv[1];
    for (const char* target : {"pn", "p12", "mix", "imatrix", "gguf", "safetensors"}) {
      fs::remove_all(out / target);
      fs::create_directories(out / target);
    }
    if (write_golden(source / "tests/golden", out) == 0) throw std::runtime_error("no golden files");
    for (const auto& [name, bytes] : fuzz::mix_seeds(source)) write(out / "mix" / name, bytes);
    for (const auto& [name, bytes] : fuzz::imatrix_seeds()) write(out / "imatrix" / name, bytes);
    for (const auto& [name, bytes] : fuzz::safetensors_seeds()) write(out / "safetensors" / name, bytes);
    write_gguf(source, out / "gguf");
    write_safetensors(out / "safetensors");
  } catch (const std::exception& error) {
    std::cerr << "fuzz_seeds: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
