// GGUF files through the reader and the whole of check, inspect, pack, unpack, quantize and verify.
//
// Input: a first byte below 0x80 begins a file that is used as it is ("GGUF..."); from 0x80 on it is followed by a plan
// from which gguf_builder.hpp makes a file, most of the time a sound one.
//
// Files lie in a folder of this process in /dev/shm, or where TMPDIR says.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <set>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include "gguf_builder.hpp"
#include "gguf_oracle.hpp"
#include "io/error.hpp"
#include "io/gguf.hpp"
#include "io/input_file.hpp"
#include "pnpack/rewrite.hpp"
#include "pnpack/verbs.hpp"

namespace {

namespace io = pn::io;
namespace types = pn::io::types;
using fuzz::Text;
using io::Fault;
using io::Gguf;
using io::Tensor;
using pnpack::Options;
using pnpack::Report;
using pnpack::TensorReport;

// ---- Files

class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TMPDIR");
    if (parent == nullptr) parent = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ = std::string(parent) + "/pn-fuzz-XXXXXX";
    FUZZ_REQUIRE(::mkdtemp(path_.data()) != nullptr);
    path_ += "/";
  }
  ~Folder() {
    clear();
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + name; }

  std::set<std::string> names() const {
    std::set<std::string> found;
    DIR* folder = ::opendir(path_.c_str());
    FUZZ_REQUIRE(folder != nullptr);
    while (const dirent* entry = ::readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") found.insert(name);
    }
    ::closedir(folder);
    return found;
  }

  void clear() const {
    for (const std::string& name : names()) ::unlink(path(name).c_str());
  }

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

 private:
  std::string path_;
};

const Folder& folder() {
  static const Folder the_folder;
  return the_folder;
}

// ---- What people and programs read

// UTF-8 without control characters, whatever names the file holds.
void require_printable(const std::string& text, bool lines) {
  for (const char c : text) FUZZ_REQUIRE((static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) || (lines && c == '\n'));
  nlohmann::json(text).dump();  // throws when it is not UTF-8
}

void require_json(const std::string& text, bool ok) {
  const auto json = nlohmann::json::parse(text);
  FUZZ_REQUIRE(json.at("ok") == ok);
}

// ---- Running a verb

struct Attempt {
  std::optional<Report> report;
  std::optional<io::Error> error;
  bool ok() const { return report && report->ok; }
};

using Verb = Report (*)(const Options&);

// Runs a verb and looks at its report or error. Nothing but io::Error may be thrown. In the folder there are then
// `names`, and `out` if the report is ok.
Attempt attempt(const char* name, Verb verb, const Options& options, std::set<std::string> names,
                const std::string& out = "") {
  Attempt result;
  try {
    result.report = verb(options);
  } catch (const io::Error& error) {
    result.error = error;
  }
  if (!out.empty() && result.ok()) names.insert(out);
  FUZZ_REQUIRE(folder().names() == names);
  if (result.report) {
    Report& report = *result.report;
    report.verb = name;
    report.input = options.input;
    require_json(to_json(report), report.ok);
    require_printable(to_table(report), true);
    for (const std::string& warning : report.warnings) require_printable(pnpack::printable(warning), false);
  } else {
    const io::Error& error = *result.error;
    FUZZ_REQUIRE(error.file() == options.input || error.file() == options.second);
    FUZZ_REQUIRE(error.what()[0] != '\0');
    require_json(pnpack::error_to_json(error.file(), error.subject(), error.offset(), error.what()), false);
    require_printable(pnpack::describe(error), false);
  }
  return result;
}

bool same_error(const io::Error& a, const io::Error& b) {
  return a.fault() == b.fault() && std::string(a.what()) == b.what() && a.subject() == b.subject() &&
         a.offset() == b.offset();
}

// ---- A file that was read

struct Model {
  Text bytes;
  Gguf gguf;

  const std::uint8_t* data(const Tensor& tensor) const { return bytes.data() + tensor.offset; }
};

struct Reading {
  std::optional<Gguf> gguf;
  std::optional<io::Error> error;
};

Reading read(const std::string& name, io::InputFile::Access access) {
  Reading result;
  try {
    const io::InputFile file(folder().path(name), access);
    FUZZ_REQUIRE(access == io::InputFile::Access::automatic || !file.mapped());
    result.gguf = io::read_gguf(file);
  } catch (const io::Error& error) {
    result.error = error;
  }
  return result;
}

void require_same(const Gguf& a, const Gguf& b) {
  FUZZ_REQUIRE(a.version == b.version && a.alignment == b.alignment);
  FUZZ_REQUIRE(a.keys.size() == b.keys.size() && a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.keys.size(); ++i) {
    FUZZ_REQUIRE(a.keys[i].name == b.keys[i].name && a.keys[i].type == b.keys[i].type);
    FUZZ_REQUIRE(a.keys[i].offset == b.keys[i].offset && a.keys[i].bytes == b.keys[i].bytes);
    FUZZ_REQUIRE(a.keys[i].number == b.keys[i].number && a.keys[i].text == b.keys[i].text);
  }
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    FUZZ_REQUIRE(a.tensors[i].name == b.tensors[i].name && a.tensors[i].shape == b.tensors[i].shape);
    FUZZ_REQUIRE(a.tensors[i].type == b.tensors[i].type && a.tensors[i].type.id == b.tensors[i].type.id);
    FUZZ_REQUIRE(a.tensors[i].offset == b.tensors[i].offset && a.tensors[i].bytes == b.tensors[i].bytes);
    FUZZ_REQUIRE(a.tensors[i].elements == b.tensors[i].elements);
  }
  FUZZ_REQUIRE(a.data_order == b.data_order);
  FUZZ_REQUIRE(a.header_end == b.header_end && a.data_start == b.data_start && a.data_end == b.data_end);
  FUZZ_REQUIRE(a.tail_start == b.tail_start && a.padded == b.padded && a.p12_type_id == b.p12_type_id);
  FUZZ_REQUIRE(a.has_pn_keys == b.has_pn_keys && a.hadamard_block == b.hadamard_block);
  FUZZ_REQUIRE(a.weighted_search == b.weighted_search);
}

// Everything that code behind the reader relies on.
void require_sound(const Model& model) {
  const Gguf& gguf = model.gguf;
  const std::uint64_t size = model.bytes.size();
  FUZZ_REQUIRE(gguf.version == 2 || gguf.version == 3);
  FUZZ_REQUIRE(gguf.alignment >= 8 && gguf.alignment <= 65536 && (gguf.alignment & (gguf.alignment - 1)) == 0);
  FUZZ_REQUIRE(gguf.header_end <= size && gguf.data_start >= gguf.header_end);
  FUZZ_REQUIRE(gguf.data_start % gguf.alignment == 0 && gguf.data_start - gguf.header_end < gguf.alignment);
  FUZZ_REQUIRE(gguf.data_end <= gguf.tail_start && gguf.tail_start <= size);
  FUZZ_REQUIRE(gguf.tail_start - gguf.data_end < gguf.alignment);

  std::set<std::string> names;
  std::uint64_t next = 24;
  for (const io::GgufKey& key : gguf.keys) {
    FUZZ_REQUIRE(key.offset == next && key.bytes >= 13 && key.bytes <= gguf.header_end - key.offset);
    FUZZ_REQUIRE(names.insert(key.name).second);
    next = key.offset + key.bytes;
  }
  names.clear();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
  for (const Tensor& tensor : gguf.tensors) {
    FUZZ_REQUIRE(names.insert(tensor.name).second);
    FUZZ_REQUIRE(tensor.shape.size() <= 4 && tensor.offset % gguf.alignment == 0);
    FUZZ_REQUIRE(tensor.offset >= gguf.data_start);
    const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0u) != tensor.shape.end();
    std::uint64_t elements = empty ? 0 : 1;
    for (const std::uint64_t n : tensor.shape) {
      FUZZ_REQUIRE(empty || elements <= std::numeric_limits<std::uint64_t>::max() / n);
      elements *= n;
    }
    FUZZ_REQUIRE(elements == tensor.elements);
    if (empty) FUZZ_REQUIRE(tensor.bytes == 0);
    if (empty) continue;
    FUZZ_REQUIRE(tensor.bytes > 0 && tensor.offset <= size && tensor.bytes <= size - tensor.offset);
    FUZZ_REQUIRE(tensor.offset + tensor.bytes <= gguf.data_end);
    if (tensor.type.known()) {
      FUZZ_REQUIRE(tensor.row_length() % tensor.type.block == 0);
      FUZZ_REQUIRE(elements / tensor.type.block * tensor.type.block_bytes == tensor.bytes);
    }
    extents.emplace_back(tensor.offset, tensor.bytes);
  }
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i)
    FUZZ_REQUIRE(extents[i].first - extents[i - 1].first >= extents[i - 1].second);
}

// Reads a file that a verb wrote, which must be sound.
Model reread(const std::string& name) {
  Model model;
  model.bytes = folder().read(name);
  const Reading reading = read(name, io::InputFile::Access::automatic);
  FUZZ_REQUIRE(reading.gguf.has_value());
  model.gguf = *reading.gguf;
  require_sound(model);
  return model;
}

// ---- What has to come out, tensor by tensor, by the core alone

bool is_packed(const Tensor& tensor) { return types::is_p12(tensor.type) || types::is_pn(tensor.type); }

// Index of the first invalid block.
std::optional<std::size_t> first_invalid(const Model& model, const Tensor& tensor) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  std::size_t bad = 0;
  pn::Status status = pn::Status::ok;
  if (k == 0 || !is_packed(tensor)) return std::nullopt;
  if (types::is_p12(tensor.type)) {
    status = p12::validate_row(reinterpret_cast<const p12::Block392*>(model.data(tensor)), k, &bad);
  } else {
    const auto* row = reinterpret_cast<const pn::Block34*>(model.data(tensor));
    status = tensor.type == types::pn3t() ? pn::validate_row<pn::pn3t>(row, k, &bad)
                                          : pn::validate_row<pn::pn4t>(row, k, &bad);
  }
  return status == pn::Status::ok ? std::optional<std::size_t>() : bad;
}

bool all_valid(const Model& model) {
  return std::none_of(model.gguf.tensors.begin(), model.gguf.tensors.end(),
                      [&](const Tensor& tensor) { return first_invalid(model, tensor).has_value(); });
}

bool has_pn(const Gguf& gguf) {
  return std::any_of(gguf.tensors.begin(), gguf.tensors.end(), [](const Tensor& t) { return types::is_pn(t.type); });
}
bool has_keys(const Gguf& gguf, const char* prefix) {
  return std::any_of(gguf.keys.begin(), gguf.keys.end(),
                     [&](const io::GgufKey& key) { return key.name.rfind(prefix, 0) == 0; });
}

// The bytes of a BF16 tensor packed; nullopt when it stays.
std::optional<Text> packed_bytes(const Model& model, const Tensor& tensor) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  if (tensor.type != types::bf16() || tensor.shape.size() < 2 || k == 0 || tensor.row_length() % 256 != 0)
    return std::nullopt;
  std::vector<std::uint16_t> weights(k);
  std::memcpy(weights.data(), model.data(tensor), 2 * k);
  std::vector<p12::Block392> blocks(k / 256);
  if (p12::pack_row(weights.data(), k, blocks.data()) != pn::Status::ok) return std::nullopt;
  Text out;
  fuzz::append(out, blocks);
  return out;
}

// The bytes of a packed tensor unpacked; nullopt when that must fail.
std::optional<Text> unpacked_bytes(const Model& model, const Tensor& tensor, const std::string& to) {
  if (first_invalid(model, tensor)) return std::nullopt;
  const auto k = static_cast<std::size_t>(tensor.elements);
  Text out;
  if (types::is_p12(tensor.type)) {
    std::vector<std::uint16_t> weights(k);
    FUZZ_REQUIRE(p12::unpack_row(reinterpret_cast<const p12::Block392*>(model.data(tensor)), k, weights.data()) ==
                 pn::Status::ok);
    fuzz::append(out, weights);
    return out;
  }
  std::vector<float> weights(k);
  const auto* row = reinterpret_cast<const pn::Block34*>(model.data(tensor));
  if (tensor.type == types::pn3t())
    FUZZ_REQUIRE(pn::decode_row<pn::pn3t>(row, k, weights.data()) == pn::Status::ok);
  else
    FUZZ_REQUIRE(pn::decode_row<pn::pn4t>(row, k, weights.data()) == pn::Status::ok);
  if (to == "f32") {
    fuzz::append(out, weights);
    return out;
  }
  std::vector<std::uint16_t> shorter;
  for (const float weight : weights) {
    shorter.push_back(to == "f16" ? pn::float_to_half(weight) : pn::float_to_bf16(weight));
    if (to == "f16" && (shorter.back() & 0x7C00u) == 0x7C00u) return std::nullopt;
  }
  fuzz::append(out, shorter);
  return out;
}

bool stays(const Tensor& tensor, std::uint64_t block) {
  return !pnpack::can_quantize_from(tensor.type) || tensor.shape.size() < 2 || tensor.elements == 0 ||
         tensor.row_length() % block != 0;
}

// The bytes of a tensor quantized; nullopt when that must fail.
template <class T>
std::optional<Text> quantized_bytes(const Model& model, const Tensor& tensor) {
  const auto k = static_cast<std::size_t>(tensor.elements);
  std::vector<float> weights;
  if (tensor.type == types::f32()) {
    weights.resize(k);
    std::memcpy(weights.data(), model.data(tensor), 4 * k);
  } else if (types::is_p12(tensor.type) && first_invalid(model, tensor)) {
    return std::nullopt;
  } else {
    std::vector<std::uint16_t> halves(k);
    if (types::is_p12(tensor.type))
      FUZZ_REQUIRE(p12::unpack_row(reinterpret_cast<const p12::Block392*>(model.data(tensor)), k, halves.data()) ==
                   pn::Status::ok);
    else
      std::memcpy(halves.data(), model.data(tensor), 2 * k);
    for (const std::uint16_t half : halves)
      weights.push_back(tensor.type == types::f16() ? pn::half_to_float(half) : pn::bf16_to_float(half));
  }
  std::vector<pn::Block34> blocks(k / T::block_size);
  if (pn::quantize_row<T>(weights.data(), k, blocks.data()) != pn::Status::ok) return std::nullopt;
  Text out;
  fuzz::append(out, blocks);
  return out;
}

bool holds(const Model& model, const Tensor& tensor, const Text& bytes) {
  return tensor.bytes == bytes.size() &&
         (bytes.empty() || std::memcmp(model.data(tensor), bytes.data(), bytes.size()) == 0);
}
// A tensor that was copied. The extent of an unknown type may grow or shrink by padding.
bool holds_copy(const Model& out, const Tensor& copy, const Model& in, const Tensor& tensor) {
  if (copy.type.id != tensor.type.id || copy.shape != tensor.shape) return false;
  if (tensor.type.known() && copy.bytes != tensor.bytes) return false;
  const auto common = static_cast<std::size_t>(std::min(copy.bytes, tensor.bytes));
  return common == 0 || std::memcmp(out.data(copy), in.data(tensor), common) == 0;
}

// Version, alignment, names and shapes stay; the first `kept` keys are those of `in` that `keep` accepts, byte for
// byte.
void require_same_frame(const Model& in, const Model& out, bool (*keep)(const io::GgufKey&), std::size_t added) {
  FUZZ_REQUIRE(in.gguf.version == out.gguf.version && in.gguf.alignment == out.gguf.alignment);
  FUZZ_REQUIRE(in.gguf.tensors.size() == out.gguf.tensors.size());
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    FUZZ_REQUIRE(in.gguf.tensors[t].name == out.gguf.tensors[t].name);
    FUZZ_REQUIRE(in.gguf.tensors[t].shape == out.gguf.tensors[t].shape);
  }
  std::size_t next = 0;
  for (const io::GgufKey& key : in.gguf.keys) {
    if (!keep(key)) continue;
    FUZZ_REQUIRE(next < out.gguf.keys.size());
    const io::GgufKey& copy = out.gguf.keys[next++];
    FUZZ_REQUIRE(key.bytes == copy.bytes);
    FUZZ_REQUIRE(std::memcmp(in.bytes.data() + key.offset, out.bytes.data() + copy.offset, key.bytes) == 0);
  }
  FUZZ_REQUIRE(out.gguf.keys.size() == next + added);
}

// What a verb wrote itself has no gaps, and zeros in all padding.
void require_compact(const Model& out) {
  std::uint64_t end = out.gguf.header_end;
  const auto pad = [&](std::uint64_t to) {
    while (end < to && end < out.bytes.size()) FUZZ_REQUIRE(out.bytes[end++] == 0);
  };
  for (const std::size_t t : out.gguf.data_order) {
    const Tensor& tensor = out.gguf.tensors[t];
    if (tensor.elements == 0) continue;  // at its place in the order of the input, or beside a tensor that has bytes
    FUZZ_REQUIRE(tensor.offset == std::max(out.gguf.data_start, io::align_up(end, out.gguf.alignment)));
    pad(tensor.offset);
    end = tensor.offset + tensor.bytes;
  }
  pad(out.gguf.tail_start);
}

bool is_any(const io::GgufKey&) { return true; }
bool is_foreign(const io::GgufKey& key) { return !io::is_own_key(key.name); }

// ---- The verbs

struct Choice {
  unsigned threads = 1;
  bool quantize = false;  // instead of pack
  bool dry_run = false;   // also
  bool pn3t = false;
  std::string to = "f32";
  bool strict = false;
  bool force = false;
  std::uint32_t type_id = 126;
  std::uint32_t place = 0;  // of a byte to damage, in some file,
  std::uint8_t damage = 1;  // and its bits
};

const std::set<std::string> input_only{"in", "other"};

std::set<std::string> with(std::set<std::string> names, const std::string& name) {
  names.insert(name);
  return names;
}

Options options_for(const Choice& choice, const std::string& in, const std::string& second) {
  Options options;
  options.input = folder().path(in);
  if (!second.empty()) options.second = folder().path(second);
  options.quiet = true;
  options.threads = choice.threads;
  options.to = choice.to;
  options.type = choice.pn3t ? "pn3t" : "pn4t";
  options.type_id = choice.type_id;
  return options;
}

const Text old_output{'o', 'l', 'd'};

// Runs a verb that writes OUT. OUT is there afterwards exactly when the report is ok; what was there before stays
// otherwise. A dry run has the same result and writes nothing.
Attempt write_attempt(const char* name, Verb verb, Options options, const Choice& choice, const std::string& out,
                      std::set<std::string> names) {
  options.strict = choice.strict;
  std::optional<Attempt> dry;
  if (choice.dry_run) {
    options.dry_run = true;
    dry = attempt(name, verb, options, names);
    options.dry_run = false;
  }
  options.force = choice.force;
  if (choice.force) {
    folder().write(out, old_output);
    names.insert(out);
  }
  const Attempt result = attempt(name, verb, options, names, out);
  if (result.error) FUZZ_REQUIRE(result.error->fault() == Fault::input);
  if (dry) {
    FUZZ_REQUIRE(dry->report.has_value() == result.report.has_value());
    if (result.error) FUZZ_REQUIRE(same_error(*result.error, *dry->error));
    if (result.report) FUZZ_REQUIRE(pnpack::to_json(*result.report) == pnpack::to_json(*dry->report));
  }
  if (choice.force && !result.ok()) {
    FUZZ_REQUIRE(folder().read(out) == old_output);
    ::unlink(folder().path(out).c_str());
  }
  if (result.report)
    FUZZ_REQUIRE(result.report->ok ==
                 (!choice.strict ||
                  (result.report->converted() > 0 && (options.verb == "unpack" || result.report->fallbacks() == 0))));
  return result;
}

void require_verified(const Choice& choice, const std::string& packed, const std::string& original,
                      const std::set<std::string>& names) {
  const Attempt verified = attempt("verify", pnpack::verify, options_for(choice, packed, original), names);
  FUZZ_REQUIRE(verified.ok());
}

void check_check(const Model& in, const std::string& name, const Choice& choice, const std::set<std::string>& names) {
  const Attempt checked = attempt("check", pnpack::check, options_for(choice, name, ""), names);
  FUZZ_REQUIRE(checked.report.has_value());
  FUZZ_REQUIRE(checked.report->ok == all_valid(in));
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    const TensorReport& report = checked.report->tensors[t];
    const auto bad = first_invalid(in, in.gguf.tensors[t]);
    FUZZ_REQUIRE(report.good == !bad.has_value());
    if (bad) FUZZ_REQUIRE(report.first->block == *bad);
    if (bad)
      FUZZ_REQUIRE(report.first->offset == in.gguf.tensors[t].offset + *bad * in.gguf.tensors[t].type.block_bytes);
  }
}

// unpack of the file `name`, whose contents are `in`.
void check_unpack(const Model& in, const std::string& name, const Choice& choice, const std::set<std::string>& names,
                  const Text* must_restore) {
  Options options = options_for(choice, name, "back");
  options.verb = "unpack";
  const Attempt unpacked = write_attempt("unpack", pnpack::unpack, options, choice, "back", names);
  bool must_fail = in.gguf.hadamard_block != 0 && has_pn(in.gguf);
  std::vector<std::optional<Text>> expected;
  for (const Tensor& tensor : in.gguf.tensors) {
    expected.emplace_back();
    if (!is_packed(tensor)) continue;
    expected.back() = unpacked_bytes(in, tensor, choice.to);
    if (!expected.back()) must_fail = true;
  }
  FUZZ_REQUIRE(unpacked.error.has_value() == must_fail);
  if (must_restore != nullptr) FUZZ_REQUIRE(unpacked.report.has_value());
  if (!unpacked.ok()) return;

  const Model back = reread("back");
  if (must_restore != nullptr) FUZZ_REQUIRE(back.bytes == *must_restore);
  require_same_frame(in, back, is_foreign, 0);
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    if (expected[t])
      FUZZ_REQUIRE(holds(back, back.gguf.tensors[t], *expected[t]) && !is_packed(back.gguf.tensors[t]));
    else
      FUZZ_REQUIRE(holds_copy(back, back.gguf.tensors[t], in, in.gguf.tensors[t]));
  }
  const bool nothing = !has_keys(in.gguf, "p12.") && !has_keys(in.gguf, "pn.") && unpacked.report->converted() == 0;
  if (nothing)
    FUZZ_REQUIRE(back.bytes == in.bytes);
  else
    require_compact(back);
  ::unlink(folder().path("back").c_str());
}

// One damaged byte in the data of an output never goes unnoticed: there is one packed form of any weights, and one
// quantized form of an original.
void check_damage(const Model& out, const Choice& choice, std::set<std::string> names) {
  if (out.bytes.size() <= out.gguf.data_start) return;
  const std::uint64_t place = out.gguf.data_start + choice.place % (out.bytes.size() - out.gguf.data_start);
  Model damaged = out;
  damaged.bytes[place] ^= choice.damage;
  folder().write("back", damaged.bytes);
  names.insert("back");
  check_check(damaged, "back", choice, names);
  const Attempt verified = attempt("verify", pnpack::verify, options_for(choice, "back", "in"), names);
  FUZZ_REQUIRE(verified.report.has_value());
  for (std::size_t t = 0; t < out.gguf.tensors.size(); ++t) {
    const Tensor& tensor = out.gguf.tensors[t];
    const bool hit = place >= tensor.offset && place - tensor.offset < tensor.bytes;
    FUZZ_REQUIRE(verified.report->tensors[t].good == !hit);
  }
  ::unlink(folder().path("back").c_str());
}

void check_pack(const Model& in, const Choice& choice) {
  Options options = options_for(choice, "in", "out");
  options.verb = "pack";
  const Attempt packed = write_attempt("pack", pnpack::pack, options, choice, "out", input_only);
  const bool id_is_used = std::any_of(in.gguf.tensors.begin(), in.gguf.tensors.end(),
                                      [&](const Tensor& tensor) { return tensor.type.id == choice.type_id; });
  FUZZ_REQUIRE(packed.error.has_value() == (id_is_used || has_keys(in.gguf, "p12.") || has_keys(in.gguf, "pn.")));
  if (!packed.ok()) return;

  const std::set<std::string> names = with(input_only, "out");
  const Model out = reread("out");
  std::uint64_t converted = 0;
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    const Tensor& tensor = in.gguf.tensors[t];
    const auto expected = packed_bytes(in, tensor);
    FUZZ_REQUIRE(packed.report->tensors[t].converted == expected.has_value());
    if (expected) {
      ++converted;
      FUZZ_REQUIRE(types::is_p12(out.gguf.tensors[t].type) && holds(out, out.gguf.tensors[t], *expected));
    } else {
      FUZZ_REQUIRE(holds_copy(out, out.gguf.tensors[t], in, tensor));
    }
  }
  if (converted == 0) {
    FUZZ_REQUIRE(out.bytes == in.bytes);
  } else {
    require_same_frame(in, out, is_any, 2);
    require_compact(out);
  }
  check_check(out, "out", choice, names);
  require_verified(choice, "out", "in", names);
  attempt("verify", pnpack::verify, options_for(choice, "in", "out"), names);
  attempt("verify", pnpack::verify, options_for(choice, "out", "other"), names);
  check_damage(out, choice, names);
  FUZZ_REQUIRE(packed.report->restores_identical.has_value());
  Choice plain = choice;
  plain.strict = false;
  check_unpack(out, "out", plain, names, *packed.report->restores_identical ? &in.bytes : nullptr);

  // The number of threads changes nothing.
  options.threads = choice.threads % 3 + 1;
  options.force = true;
  options.strict = false;
  FUZZ_REQUIRE(attempt("pack", pnpack::pack, options, names).ok());
  FUZZ_REQUIRE(folder().read("out") == out.bytes);
  ::unlink(folder().path("out").c_str());
}

void check_quantize(const Model& in, const Choice& choice) {
  const io::TensorType& to = choice.pn3t ? types::pn3t() : types::pn4t();
  Options options = options_for(choice, "in", "out");
  options.verb = "quantize";
  const Attempt quantized = write_attempt("quantize", pnpack::quantize, options, choice, "out", input_only);
  const bool refused = has_keys(in.gguf, "pn.") || has_pn(in.gguf);
  bool must_fail = refused;
  bool keeps_p12 = false;
  std::uint64_t converted = 0;
  std::vector<std::optional<Text>> expected(in.gguf.tensors.size());
  for (const std::size_t t : in.gguf.data_order) {  // the first failure in the order of the data is told
    const Tensor& tensor = in.gguf.tensors[t];
    if (refused) break;
    if (stays(tensor, to.block)) {
      keeps_p12 = keeps_p12 || types::is_p12(tensor.type);
      continue;
    }
    ++converted;
    expected[t] = choice.pn3t ? quantized_bytes<pn::pn3t>(in, tensor) : quantized_bytes<pn::pn4t>(in, tensor);
    if (!expected[t] && !must_fail && quantized.error)
      FUZZ_REQUIRE(quantized.error->subject() == "tensor " + tensor.name);
    must_fail = must_fail || !expected[t];
  }
  FUZZ_REQUIRE(quantized.error.has_value() == must_fail);
  if (!quantized.ok()) return;

  const std::set<std::string> names = with(input_only, "out");
  const Model out = reread("out");
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    FUZZ_REQUIRE(quantized.report->tensors[t].converted == expected[t].has_value());
    if (expected[t])
      FUZZ_REQUIRE(out.gguf.tensors[t].type == to && holds(out, out.gguf.tensors[t], *expected[t]));
    else
      FUZZ_REQUIRE(holds_copy(out, out.gguf.tensors[t], in, in.gguf.tensors[t]));
  }
  if (converted == 0) {
    FUZZ_REQUIRE(out.bytes == in.bytes);
  } else {
    require_same_frame(in, out, keeps_p12 ? is_any : is_foreign, 2);
    require_compact(out);
  }
  check_check(out, "out", choice, names);
  require_verified(choice, "out", "in", names);
  attempt("verify", pnpack::verify, options_for(choice, "out", "other"), names);
  check_damage(out, choice, names);
  Choice plain = choice;
  plain.strict = false;
  check_unpack(out, "out", plain, names, nullptr);
  ::unlink(folder().path("out").c_str());
}

// verify against a file that has little to do with it, or differs in one place.
void check_verify(const Model& in, const Choice& choice) {
  require_verified(choice, "in", "in", input_only);
  const Attempt verified = attempt("verify", pnpack::verify, options_for(choice, "in", "other"), input_only);
  attempt("verify", pnpack::verify, options_for(choice, "other", "in"), input_only);
  if (!verified.ok()) return;
  const Model other = reread("other");
  FUZZ_REQUIRE(in.gguf.tensors.size() == other.gguf.tensors.size());
  for (const Tensor& tensor : in.gguf.tensors) {
    const auto original = std::find_if(other.gguf.tensors.begin(), other.gguf.tensors.end(),
                                       [&](const Tensor& t) { return t.name == tensor.name; });
    FUZZ_REQUIRE(original != other.gguf.tensors.end() && original->shape == tensor.shape);
    if (original->type == tensor.type)
      FUZZ_REQUIRE(holds_copy(in, tensor, other, *original));
    else
      FUZZ_REQUIRE(is_packed(tensor));
  }
}

// A header written anew from what was read is the header that was read.
void check_header(const Model& in) {
  const pnpack::Model model(folder().path("in"));
  if (!pnpack::has_standard_layout(model) || in.bytes.size() < in.gguf.data_start) return;
  io::GgufHeader header;
  header.version = in.gguf.version;
  header.alignment = in.gguf.alignment;
  header.kept = in.gguf.keys;
  header.tensors = in.gguf.tensors;
  for (Tensor& tensor : header.tensors) tensor.offset -= in.gguf.data_start;
  const Text bytes = header.serialize(model.file);
  FUZZ_REQUIRE(bytes.size() == in.gguf.data_start);
  FUZZ_REQUIRE(std::equal(bytes.begin(), bytes.end(), in.bytes.begin()));
}

void check_file(const Text& bytes, const Text& other, const Choice& choice) {
  folder().clear();
  folder().write("in", bytes);
  folder().write("other", other);
  const Reading mapped = read("in", io::InputFile::Access::automatic);
  const Reading plain = read("in", io::InputFile::Access::plain_read);
  const fuzz::GgufOracle oracle(bytes);
  FUZZ_REQUIRE(mapped.gguf.has_value() == oracle.accepted());
  FUZZ_REQUIRE(mapped.gguf.has_value() == plain.gguf.has_value());
  const Attempt inspected = attempt("inspect", pnpack::inspect, options_for(choice, "in", ""), input_only);
  FUZZ_REQUIRE(inspected.report.has_value() == mapped.gguf.has_value());
  if (!mapped.gguf) {
    FUZZ_REQUIRE(same_error(*mapped.error, *plain.error) && same_error(*mapped.error, *inspected.error));
    FUZZ_REQUIRE(mapped.error->fault() == Fault::input);
    constexpr Verb verbs[] = {pnpack::pack, pnpack::unpack, pnpack::quantize, pnpack::check, pnpack::verify};
    const std::size_t which = bytes.size() % 5;
    const Attempt refused = attempt("a verb", verbs[which],
                                    options_for(choice, "in",
                                                which == 3   ? ""
                                                : which == 4 ? "other"
                                                             : "out"),
                                    input_only);
    FUZZ_REQUIRE(refused.error && same_error(*refused.error, *mapped.error));
    return;
  }
  require_same(*mapped.gguf, *plain.gguf);
  const Model in{bytes, *mapped.gguf};
  require_sound(in);
  for (std::size_t k = 0; k < in.gguf.keys.size(); ++k)
    FUZZ_REQUIRE(in.gguf.keys[k].offset == oracle.keys()[k].offset && in.gguf.keys[k].bytes == oracle.keys()[k].bytes);
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t)
    FUZZ_REQUIRE(in.gguf.tensors[t].offset == oracle.tensors()[t].offset &&
                 in.gguf.tensors[t].bytes == oracle.tensors()[t].bytes);
  check_header(in);
  check_check(in, "in", choice, input_only);
  check_verify(in, choice);
  check_unpack(in, "in", choice, input_only, nullptr);
  if (!choice.quantize)
    check_pack(in, choice);
  else if (bytes.size() < 300000)
    check_quantize(in, choice);
}

Choice choose(std::uint32_t bits) {
  Choice choice;
  choice.threads = std::array<unsigned, 8>{1, 1, 1, 1, 1, 2, 3, 2}[bits & 7u];
  choice.quantize = (bits & 8u) != 0;
  choice.pn3t = (bits & 0x10u) != 0;
  choice.dry_run = (bits & 0x60u) == 0x20u;
  choice.to = (bits & 0x80u) == 0 ? "f32" : bits & 0x100u ? "f16" : "bf16";
  choice.strict = (bits & 0xE00u) == 0xE00u;
  choice.force = (bits & 0x600u) == 0x400u;
  choice.type_id = (bits & 0x600u) == 0x200u ? 200 : 126;
  return choice;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Text bytes;
  Choice choice;
  if (data[0] < 0x80) {
    bytes.assign(data, data + size);
    const std::uint32_t options = static_cast<std::uint32_t>(size * 8 + data[size - 1] * 37u);
    choice = choose(options);
    choice.place = options * 2654435761u;
    choice.damage = static_cast<std::uint8_t>(1u << (options / 8 % 8));
  } else {
    fuzz::Bytes plan(data + 1, size - 1);
    choice = choose(plan.integer<std::uint16_t>());
    choice.place = plan.integer<std::uint16_t>();
    choice.damage = std::max<std::uint8_t>(1, plan.byte());
    bytes = fuzz::any_file(plan);
  }
  Text other = bytes;
  if (!other.empty()) other[choice.place % other.size()] ^= choice.damage;
  check_file(bytes, other, choice);
  return 0;
}
