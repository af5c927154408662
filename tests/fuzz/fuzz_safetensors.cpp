// safetensors files, alone and by an index, through the reader and the whole of check, inspect, scan, diff, pack,
// unpack, quantize and verify.
//
// Input: a first byte below 0x80 is followed by a file that is used as it is; from 0x80 on by what is to be done and a
// plan from which safetensors_builder.hpp makes a file, and from 0xC0 on an index and the files that it names. Most of
// them are sound.
#include <set>
#include <string>
#include <vector>

#include "attempt.hpp"
#include "core_bytes.hpp"
#include "fuzz.hpp"
#include "gguf_oracle.hpp"
#include "io/error.hpp"
#include "io/gguf.hpp"
#include "io/input_file.hpp"
#include "io/model.hpp"
#include "io/safetensors.hpp"
#include "safetensors_builder.hpp"
#include "safetensors_oracle.hpp"

namespace {

namespace io = pn::io;
namespace types = pn::io::types;
using fuzz::Attempt;
using fuzz::attempt;
using fuzz::Choice;
using fuzz::folder;
using fuzz::IndexOracle;
using fuzz::options_for;
using fuzz::SafetensorsOracle;
using fuzz::same_error;
using fuzz::Text;
using io::Fault;
using io::Safetensors;
using io::Tensor;
using pnpack::Options;
using pnpack::TensorReport;

// ---- Files

struct Reading {
  std::optional<Safetensors> file;
  std::optional<io::Error> error;
};

Reading read(const std::string& name, io::InputFile::Access access) {
  Reading result;
  try {
    const io::InputFile file(folder().path(name), access);
    FUZZ_REQUIRE(access == io::InputFile::Access::automatic || !file.mapped());
    result.file = io::read_safetensors(file);
  } catch (const io::Error& error) {
    result.error = error;
  }
  return result;
}

struct Part {
  std::string name;  // of one of several files
  Text bytes;
  SafetensorsOracle oracle;
  Safetensors file;

  fuzz::View view() const { return {&bytes, &file, file.metadata}; }
  std::uint64_t tensor_bytes() const { return bytes.size() - oracle.data_start(); }
};

// What the reader gives, by the oracle.
void require_same(const Safetensors& file, const SafetensorsOracle& oracle) {
  FUZZ_REQUIRE(file.header_bytes == oracle.text().size() && file.data_start == oracle.data_start());
  FUZZ_REQUIRE(file.metadata == oracle.foreign_entries());
  FUZZ_REQUIRE(file.metadata_place == oracle.header().metadata_place);
  FUZZ_REQUIRE(file.tensors.size() == oracle.tensors().size());
  for (std::size_t t = 0; t < file.tensors.size(); ++t) {
    const Tensor& tensor = file.tensors[t];
    const SafetensorsOracle::Tensor& expected = oracle.tensors()[t];
    FUZZ_REQUIRE(tensor.name == expected.name && tensor.shape == expected.shape);
    FUZZ_REQUIRE(tensor.offset == oracle.data_start() + expected.begin);
    FUZZ_REQUIRE(tensor.bytes == expected.end - expected.begin);
    const bool known = oracle.is_packed(expected) || SafetensorsOracle::element_bytes(expected.dtype) != 0;
    FUZZ_REQUIRE(tensor.type.name == (known ? expected.type : "unknown(" + expected.dtype + ")"));
    FUZZ_REQUIRE(tensor.type.known() == known && types::dtype_of(tensor.type) == expected.dtype);
  }
  const io::PackRecord& record = file.record;
  FUZZ_REQUIRE(record.first_key.empty() != oracle.has_own_entries());
  FUZZ_REQUIRE(record.p12 == oracle.p12() && record.pn == oracle.pn());
  FUZZ_REQUIRE(record.hadamard_block == oracle.rotation() && record.hadamard_exclude == oracle.not_rotated());
  FUZZ_REQUIRE(record.has_header == oracle.has_entry("p12.header"));
}

void require_same(const Safetensors& a, const Safetensors& b) {
  FUZZ_REQUIRE(a.tensors.size() == b.tensors.size() && a.metadata == b.metadata && a.data_order == b.data_order);
  FUZZ_REQUIRE(a.header_bytes == b.header_bytes && a.original_header == b.original_header);
  FUZZ_REQUIRE(a.record.first_key == b.record.first_key && a.record.total_size == b.record.total_size);
  for (std::size_t t = 0; t < a.tensors.size(); ++t)
    FUZZ_REQUIRE(a.tensors[t].name == b.tensors[t].name && a.tensors[t].offset == b.tensors[t].offset);
}

// A file that must be sound.
Part open_part(const std::string& path, const std::string& name) {
  Part part;
  part.name = name;
  part.bytes = folder().read(path);
  part.oracle = SafetensorsOracle(part.bytes);
  FUZZ_REQUIRE(part.oracle.accepted());
  const Reading reading = read(path, io::InputFile::Access::automatic);
  FUZZ_REQUIRE(reading.file.has_value());
  part.file = *reading.file;
  require_same(part.file, part.oracle);
  fuzz::require_sound(part.view());
  return part;
}

// One file, or several by an index.
struct Model {
  std::vector<Part> parts;  // by name
  std::string index_name;   // empty: one file, without an index
  std::string index;

  bool in_folder() const { return !index_name.empty(); }
  std::vector<fuzz::View> views() const {
    std::vector<fuzz::View> views;
    for (const Part& part : parts) views.push_back(part.view());
    return views;
  }
  std::uint64_t total_size() const {
    std::uint64_t total = 0;
    for (const Part& part : parts) total += part.tensor_bytes();
    return total;
  }
  fuzz::Folder::Contents contents() const {
    fuzz::Folder::Contents all;
    for (const Part& part : parts) all[part.name] = part.bytes;
    if (in_folder()) all[index_name] = Text(index.begin(), index.end());
    return all;
  }
  bool has_own_entries() const {
    return std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.oracle.has_own_entries(); });
  }
  bool has_packed() const {
    return std::any_of(parts.begin(), parts.end(), [](const Part& part) {
      return std::any_of(part.file.tensors.begin(), part.file.tensors.end(),
                         [](const Tensor& tensor) { return types::is_packed(tensor.type); });
    });
  }
};

// What a verb wrote: a model in the same files, with this index.
Model reread(const std::string& path, const Model& like, const std::string& index) {
  Model model;
  model.index_name = like.index_name;
  model.index = index;
  for (const Part& part : like.parts)
    model.parts.push_back(open_part(like.in_folder() ? path + "/" + part.name : path, part.name));
  FUZZ_REQUIRE(folder().contents(path) == model.contents());
  if (like.in_folder()) FUZZ_REQUIRE(IndexOracle(index, like.index_name).accepted());
  return model;
}

// ---- The header of the file that was packed, which unpacking gives back

enum class Original { none, same, rebuilt, refused };

Original original_header(const Part& part, const std::string& to) {
  const std::string* text = part.oracle.find("p12.header");
  if (text == nullptr) return Original::none;
  const auto header = SafetensorsOracle::header_of(*text);
  if (!header || header->tensors.size() != part.file.tensors.size()) return Original::refused;
  if (header->metadata != part.oracle.foreign_entries()) return Original::refused;
  const bool may_differ = part.oracle.pn() || !part.file.record.rounded_from.empty();
  bool same = true;
  std::uint64_t offset = 0;
  for (const std::size_t t : part.file.data_order) {
    const SafetensorsOracle::Tensor& before = header->tensors[t];
    const Tensor& tensor = part.file.tensors[t];
    const io::TensorType& type = types::is_p12(tensor.type)  ? types::bf16()
                                 : types::is_pn(tensor.type) ? fuzz::target_type(to)
                                                             : tensor.type;
    const std::uint64_t bytes = types::is_packed(tensor.type) ? tensor.elements * type.block_bytes : tensor.bytes;
    if (before.name != tensor.name || before.shape != tensor.shape) return Original::refused;
    same = same && before.dtype == types::dtype_of(type) && before.begin == offset && before.end == offset + bytes;
    offset += bytes;
  }
  return same ? Original::same : may_differ ? Original::rebuilt : Original::refused;
}

// ---- The verbs

// The file or folder that `in` names; the index where it has to be named itself.
struct Input {
  std::string path;
  Model model;
};

void check_check(const Input& in, const Choice& choice) {
  const Attempt checked = attempt(options_for(choice, "check", in.path));
  bool refused = false;
  bool valid = true;
  for (const Part& part : in.model.parts) {
    refused = refused || original_header(part, "bf16") == Original::refused;
    valid = valid && fuzz::all_valid(part.view());
  }
  FUZZ_REQUIRE(checked.error.has_value() == refused);
  if (refused) {
    FUZZ_REQUIRE(checked.error->fault() == Fault::input);
    return;
  }
  FUZZ_REQUIRE(checked.report->ok == valid);
  std::size_t first = 0;
  for (const Part& part : in.model.parts) {
    fuzz::require_checked(*checked.report, part.view(), first);
    first += part.file.tensors.size();
    if (in.model.in_folder() && first != 0) FUZZ_REQUIRE(checked.report->tensors[0].file.empty() == false);
  }
  FUZZ_REQUIRE(checked.report->tensors.size() == first);
}

void check_inspect(const Input& in, const Choice& choice) {
  const Attempt inspected = attempt(options_for(choice, "inspect", in.path));
  FUZZ_REQUIRE(inspected.ok());
  std::size_t t = 0;
  for (const Part& part : in.model.parts)
    for (const Tensor& tensor : part.file.tensors) {
      const TensorReport& entry = inspected.report->tensors[t++];
      FUZZ_REQUIRE(entry.name == tensor.name && entry.type_in == tensor.type.name && entry.offset == tensor.offset);
      FUZZ_REQUIRE(entry.file == part.name && entry.bytes_in == tensor.bytes);
    }
}

// The metadata that a verb leaves: what is not ours, in order, and then `own`, by name.
void require_entries(const Part& in, const Part& out, const std::vector<std::string>& own) {
  const SafetensorsOracle::Texts before = in.oracle.foreign_entries();
  const SafetensorsOracle::Texts& after = out.oracle.header().metadata;
  FUZZ_REQUIRE(after.size() == before.size() + own.size());
  FUZZ_REQUIRE(std::equal(before.begin(), before.end(), after.begin()));
  for (std::size_t i = 0; i < own.size(); ++i) FUZZ_REQUIRE(after[before.size() + i].first == own[i]);
}

// Names, shapes and order stay; the header ends with spaces up to a multiple of 8.
void require_same_frame(const Part& in, const Part& out, bool written_anew) {
  FUZZ_REQUIRE(in.file.tensors.size() == out.file.tensors.size());
  for (std::size_t t = 0; t < in.file.tensors.size(); ++t) {
    FUZZ_REQUIRE(in.file.tensors[t].name == out.file.tensors[t].name);
    FUZZ_REQUIRE(in.file.tensors[t].shape == out.file.tensors[t].shape);
  }
  FUZZ_REQUIRE(in.file.data_order == out.file.data_order);
  if (written_anew) {
    const std::string expected = out.oracle.canonical_text();
    const std::string& text = out.oracle.text();
    FUZZ_REQUIRE(text.size() % 8 == 0 && text.compare(0, expected.size(), expected) == 0);
    FUZZ_REQUIRE(text.find_first_not_of(' ', expected.size()) == std::string::npos);
    const auto place = out.oracle.header().metadata_place;
    if (place) FUZZ_REQUIRE(*place == in.oracle.header().metadata_place.value_or(0));
  }
}

// unpack of `in` to "out", which stays there when the result is not nullopt.
std::optional<Model> check_unpack(const Input& in, const Choice& choice, const Model* must_restore) {
  const Options options = options_for(choice, "unpack", in.path);
  const Attempt unpacked = fuzz::write_attempt(options, choice, in.model.in_folder());
  const bool nothing = !in.model.has_own_entries() && !in.model.has_packed();
  bool must_fail = false;
  std::vector<std::vector<std::optional<Text>>> expected;
  for (const Part& part : in.model.parts) {
    must_fail = must_fail || original_header(part, choice.to) == Original::refused;
    expected.emplace_back();
    for (const Tensor& tensor : part.file.tensors) {
      expected.back().emplace_back();
      if (!types::is_packed(tensor.type)) continue;
      const std::uint32_t rotation = types::is_pn(tensor.type) ? part.file.record.rotation_of(tensor.name) : 0;
      expected.back().back() = fuzz::unpacked_bytes(part.view(), tensor, choice.to, rotation);
      must_fail = must_fail || !expected.back().back();
    }
  }
  const std::string* total_size = in.model.parts.empty() ? nullptr : in.model.parts[0].oracle.find("p12.total_size");
  const bool odd_total = total_size != nullptr && in.model.parts[0].oracle.undecided();
  if (!odd_total) FUZZ_REQUIRE(unpacked.error.has_value() == must_fail);
  if (unpacked.error) FUZZ_REQUIRE(unpacked.error->fault() == Fault::input);
  if (must_restore != nullptr) FUZZ_REQUIRE(unpacked.report.has_value());
  if (!unpacked.ok()) return std::nullopt;

  std::string index = in.model.index;
  if (!nothing && in.model.in_folder()) {
    std::uint64_t total = 0;
    for (std::size_t p = 0; p < expected.size(); ++p)
      for (std::size_t t = 0; t < expected[p].size(); ++t)
        total += expected[p][t] ? expected[p][t]->size() : in.model.parts[p].file.tensors[t].bytes;
    const IndexOracle before(in.model.index, in.model.index_name);
    index = before.with_total_size(total_size != nullptr && !total_size->empty() ? *total_size : std::to_string(total));
  }
  const Model back = reread("out", in.model, index);
  if (must_restore != nullptr) FUZZ_REQUIRE(back.contents() == must_restore->contents());
  if (nothing) {
    FUZZ_REQUIRE(back.contents() == in.model.contents());
    return back;
  }
  for (std::size_t p = 0; p < expected.size(); ++p) {
    const Part& before = in.model.parts[p];
    const Part& after = back.parts[p];
    const Original original = original_header(before, choice.to);
    require_same_frame(before, after, original != Original::same);
    if (original == Original::same) FUZZ_REQUIRE(after.oracle.text() == *before.oracle.find("p12.header"));
    require_entries(before, after, {});
    for (std::size_t t = 0; t < expected[p].size(); ++t) {
      const Tensor& tensor = after.file.tensors[t];
      if (expected[p][t]) {
        FUZZ_REQUIRE(fuzz::holds(after.view(), tensor, *expected[p][t]) && !types::is_packed(tensor.type));
      } else {
        FUZZ_REQUIRE(fuzz::holds_copy(after.view(), tensor, before.view(), before.file.tensors[t]));
      }
    }
  }
  return back;
}

// One damaged byte in the data of an output never goes unnoticed.
void check_damage(const Model& out, const Input& in, const Choice& choice) {
  const std::size_t which = choice.place % out.parts.size();
  const Part& part = out.parts[which];
  if (part.bytes.size() == part.file.data_start) return;
  const std::uint64_t place = part.file.data_start + choice.place % (part.bytes.size() - part.file.data_start);
  const std::string path = out.in_folder() ? "packed/" + part.name : "packed";
  Text damaged = part.bytes;
  damaged[place] ^= choice.damage;
  folder().write(path, damaged);
  const Attempt verified = attempt(options_for(choice, "verify", "packed", in.path));
  FUZZ_REQUIRE(verified.report.has_value());
  std::size_t next = 0;
  for (std::size_t p = 0; p < out.parts.size(); ++p)
    for (const Tensor& tensor : out.parts[p].file.tensors) {
      const bool hit = p == which && place >= tensor.offset && place - tensor.offset < tensor.bytes;
      FUZZ_REQUIRE(verified.report->tensors[next++].good == !hit);
    }
  attempt(options_for(choice, "check", "packed"));
  attempt(options_for(choice, "diff", "packed", in.path));
  folder().write(path, part.bytes);
}

// What holds of an output, which is "out" and is "packed" from here on. Returns its unpacked form, if any.
void check_output(const Model& out, const Input& in, const Choice& choice, const Model* must_restore) {
  FUZZ_REQUIRE(::rename(folder().path("out").c_str(), folder().path("packed").c_str()) == 0);
  const Input packed{out.in_folder() && in.path != "in" ? "packed/" + out.index_name : "packed", out};
  check_check(packed, choice);
  if (!in.model.has_own_entries())
    for (const Part& part : out.parts) FUZZ_REQUIRE(original_header(part, "bf16") != Original::refused);
  FUZZ_REQUIRE(attempt(options_for(choice, "verify", packed.path, in.path)).ok());
  attempt(options_for(choice, "verify", in.path, packed.path));
  if (packed.path == "packed") check_damage(out, in, choice);
  Choice plain = choice;
  plain.strict = false;
  if (check_unpack(packed, plain, must_restore)) folder().remove("out");
  folder().remove("packed");
}

std::vector<std::string> own_entry_names(const io::PackRecord& record, bool rounded, bool total_size) {
  std::vector<std::string> names;
  if (record.p12) names.insert(names.end(), {"p12.version", "p12.tensors"});
  if (rounded) names.emplace_back("p12.rounded_from");
  if (record.pn) names.insert(names.end(), {"pn.version", "pn.tensors", "pn.search"});
  if (record.hadamard_block != 0) names.insert(names.end(), {"pn.hadamard.block_size", "pn.hadamard.exclude"});
  if (record.has_header) names.emplace_back("p12.header");
  if (total_size) names.emplace_back("p12.total_size");
  return names;
}

// The index of an output whose tensors have so many bytes.
std::string index_with(const Model& in, std::uint64_t total) {
  return in.in_folder() ? IndexOracle(in.index, in.index_name).with_total_size(std::to_string(total)) : std::string();
}

bool has_odd_total(const Model& in) {
  if (!in.in_folder()) return false;
  const IndexOracle index(in.index, in.index_name);
  return !index.total_size().empty() && index.total_size() != std::to_string(in.total_size());
}

std::uint64_t bytes_in(const std::string& out, const Model& like) {
  std::uint64_t total = 0;
  for (const Part& part : like.parts)
    total += open_part(like.in_folder() ? out + "/" + part.name : out, part.name).tensor_bytes();
  return total;
}

void check_pack(const Input& in, const Choice& choice) {
  const Options options = options_for(choice, "pack", in.path);
  const Attempt packed = fuzz::write_attempt(options, choice, in.model.in_folder());
  std::vector<fuzz::Packing> expected;
  bool tried = false;
  bool fails = false;
  bool rounded = false;
  bool converts = false;
  for (const Part& part : in.model.parts)
    for (const Tensor& tensor : part.file.tensors) {
      expected.push_back(fuzz::packing(part.view(), tensor, choice.as_bf16));
      tried = tried || expected.back().candidate;
      fails = fails || expected.back().fails;
      rounded = rounded || expected.back().rounds;
      converts = converts || expected.back().packed;
    }
  FUZZ_REQUIRE(packed.error.has_value() == (in.model.has_own_entries() || (tried && fails)));
  if (packed.error) FUZZ_REQUIRE(packed.error->fault() == Fault::input);
  if (!packed.ok()) return;
  FUZZ_REQUIRE(packed.report->restores_identical == (!converts || !rounded));

  const Model out =
      reread("out", in.model, converts ? index_with(in.model, bytes_in("out", in.model)) : in.model.index);
  if (!converts) FUZZ_REQUIRE(out.contents() == in.model.contents());
  std::size_t next = 0;
  for (std::size_t p = 0; p < out.parts.size(); ++p) {
    const Part& before = in.model.parts[p];
    const Part& after = out.parts[p];
    require_same_frame(before, after, converts);
    if (converts) {
      require_entries(before, after, own_entry_names(after.file.record, rounded, p == 0 && has_odd_total(in.model)));
      FUZZ_REQUIRE(after.file.record.p12 && *after.oracle.find("p12.header") == before.oracle.text());
      if (p == 0 && has_odd_total(in.model))
        FUZZ_REQUIRE(*after.oracle.find("p12.total_size") ==
                     IndexOracle(in.model.index, in.model.index_name).total_size());
    }
    for (std::size_t t = 0; t < before.file.tensors.size(); ++t) {
      const fuzz::Packing& packing = expected[next];
      const Tensor& tensor = after.file.tensors[t];
      const TensorReport& report = packed.report->tensors[next++];
      FUZZ_REQUIRE(report.converted == packing.packed && report.type_out == tensor.type.name);
      FUZZ_REQUIRE(report.bytes_out == tensor.bytes);
      if (converts && packing.bytes) {
        FUZZ_REQUIRE(fuzz::holds(after.view(), tensor, *packing.bytes));
        FUZZ_REQUIRE(packing.packed ? types::is_p12(tensor.type) : tensor.type == types::bf16());
      } else {
        FUZZ_REQUIRE(fuzz::holds_copy(after.view(), tensor, before.view(), before.file.tensors[t]));
      }
    }
  }
  fuzz::require_same_with_other_threads(options, choice);
  check_output(out, in, choice, *packed.report->restores_identical ? &in.model : nullptr);
}

struct Quantization {
  std::vector<fuzz::Planned> plans;
  std::vector<std::optional<fuzz::Quantized>> expected;
  std::optional<Fault> fault;
};

Quantization expect_quantize(const Input& in, const Choice& choice) {
  Quantization result;
  const auto fail = [&](Fault fault) {
    if (!result.fault) result.fault = fault;
  };
  // A donor is a GGUF file.
  for (const Part& part : in.model.parts)
    if (part.oracle.pn()) fail(Fault::input);
  if (choice.mix && choice.mix->find("donor") != std::string::npos) fail(Fault::input);
  const pnpack::Mix mix = fuzz::mix_of(choice);
  for (const Part& part : in.model.parts)
    for (const Tensor& tensor : part.file.tensors) {
      result.plans.push_back(fuzz::planned(choice, mix, tensor));
      const fuzz::Planned& plan = result.plans.back();
      if (plan.type == types::q8_0()) fail(Fault::usage);
      if (plan.rotation != 0 && tensor.row_length() % plan.rotation != 0) fail(Fault::usage);
    }
  result.expected.resize(result.plans.size());
  std::size_t next = 0;
  for (const Part& part : in.model.parts)
    for (const Tensor& tensor : part.file.tensors) {
      const fuzz::Planned& plan = result.plans[next];
      if (!result.fault && plan.becomes)
        result.expected[next] = fuzz::quantized(part.view(), tensor, plan.type, plan.rotation);
      if (plan.becomes && !result.expected[next]) fail(Fault::input);
      ++next;
    }
  return result;
}

void check_quantize(const Input& in, const Choice& choice) {
  const Quantization expected = expect_quantize(in, choice);
  const Options options = options_for(choice, "quantize", in.path);
  const Attempt quantized = fuzz::write_attempt(options, choice, in.model.in_folder());
  FUZZ_REQUIRE(quantized.error.has_value() == (expected.fault.has_value() && !(quantized.report && !quantized.ok())));
  if (quantized.error) FUZZ_REQUIRE(quantized.error->fault() == *expected.fault);
  if (!quantized.ok()) return;

  const bool converts =
      std::any_of(expected.plans.begin(), expected.plans.end(), [](const fuzz::Planned& plan) { return plan.becomes; });
  const Model out =
      reread("out", in.model, converts ? index_with(in.model, bytes_in("out", in.model)) : in.model.index);
  if (!converts) FUZZ_REQUIRE(out.contents() == in.model.contents());
  const std::string* total_size = in.model.parts[0].oracle.find("p12.total_size");
  std::size_t next = 0;
  for (std::size_t p = 0; p < out.parts.size(); ++p) {
    const Part& before = in.model.parts[p];
    const Part& after = out.parts[p];
    const io::PackRecord& record = after.file.record;
    require_same_frame(before, after, converts);
    std::vector<std::string> excluded;
    for (std::size_t t = 0; t < before.file.tensors.size(); ++t) {
      const fuzz::Planned& plan = expected.plans[next];
      const Tensor& tensor = after.file.tensors[t];
      const TensorReport& report = quantized.report->tensors[next];
      FUZZ_REQUIRE(report.converted == plan.becomes && report.type_out == tensor.type.name);
      if (plan.becomes) {
        FUZZ_REQUIRE(tensor.type == plan.type && fuzz::holds(after.view(), tensor, expected.expected[next]->bytes));
        FUZZ_REQUIRE(std::abs(*report.nrmse - expected.expected[next]->nrmse) <= 1e-9);
        if (plan.rotation == 0) excluded.push_back(tensor.name);
      } else {
        FUZZ_REQUIRE(fuzz::holds_copy(after.view(), tensor, before.view(), before.file.tensors[t]));
      }
      ++next;
    }
    if (!converts) continue;
    // Without a header to give back there is no index to restore either.
    const bool has_total =
        p == 0 && (in.model.has_own_entries() ? total_size != nullptr && record.has_header : has_odd_total(in.model));
    require_entries(before, after, own_entry_names(record, !record.rounded_from.empty(), has_total));
    FUZZ_REQUIRE(record.pn && record.hadamard_block == choice.rotate);
    FUZZ_REQUIRE(record.hadamard_exclude == (choice.rotate != 0 ? excluded : std::vector<std::string>()));
    const bool packed_before = in.model.has_own_entries();
    FUZZ_REQUIRE(record.has_header == (before.file.record.has_header || !packed_before));
    if (before.file.record.has_header) {
      FUZZ_REQUIRE(after.file.original_header == before.file.original_header);
    } else if (!packed_before) {
      FUZZ_REQUIRE(after.file.original_header == before.oracle.text());
    }
  }
  fuzz::require_same_with_other_threads(options, choice);
  check_output(out, in, choice, nullptr);
}

// pack, unpack and quantize to a GGUF file, where nothing is lost by it: what comes out holds the same tensors, and
// serves as an input like any other.
void check_convert(const Input& in, const Choice& choice) {
  for (const char* verb : {"unpack", "pack", "quantize"}) {
    if ((verb[0] == 'q') != choice.quantize && verb[0] != 'u') continue;
    if (choice.quantize) fuzz::mix_of(choice);
    Options options = options_for(choice, verb, in.path, "converted");
    options.format = "gguf";
    const Attempt converted = attempt(options, "converted");
    if (in.model.in_folder()) FUZZ_REQUIRE(converted.error && converted.error->fault() == Fault::input);
    if (!converted.ok()) continue;
    const Text bytes = folder().read("converted");
    const Part& part = in.model.parts[0];
    FUZZ_REQUIRE(fuzz::GgufOracle(bytes).accepted());
    const io::InputFile file(folder().path("converted"));
    const io::Gguf gguf = io::read_gguf(file);
    fuzz::require_sound({&bytes, &gguf, {}});
    FUZZ_REQUIRE(gguf.tensors.size() == part.file.tensors.size());
    for (std::size_t t = 0; t < gguf.tensors.size(); ++t) {
      FUZZ_REQUIRE(gguf.tensors[t].name == part.file.tensors[t].name);
      FUZZ_REQUIRE(gguf.tensors[t].shape == part.file.tensors[t].shape);
      FUZZ_REQUIRE(gguf.tensors[t].type.name == converted.report->tensors[t].type_out);
    }
    for (const auto& [name, value] : part.file.metadata) {
      const io::GgufKey* key = gguf.find(name);
      FUZZ_REQUIRE(key != nullptr && io::is_string(*key) && io::string_value(file, *key) == value);
    }
    FUZZ_REQUIRE(attempt(options_for(choice, "check", "converted")).report.has_value());
    if (verb[0] != 'u') FUZZ_REQUIRE(attempt(options_for(choice, "verify", "converted", in.path)).ok());
    // And back.
    Options back = options_for(choice, "unpack", "converted", "back");
    back.format = "safetensors";
    const Attempt unpacked = attempt(back, "back");
    if (unpacked.ok()) {
      const Part again = open_part("back", "");
      FUZZ_REQUIRE(again.file.metadata == part.file.metadata);
      for (std::size_t t = 0; t < gguf.tensors.size(); ++t)
        if (verb[0] == 'p' && !choice.as_bf16)
          FUZZ_REQUIRE(fuzz::holds_copy(again.view(), again.file.tensors[t], part.view(), part.file.tensors[t]));
      folder().remove("back");
    }
    folder().remove("converted");
  }
}

void check_model(const Input& in, const Choice& choice) {
  check_inspect(in, choice);
  check_check(in, choice);
  fuzz::check_scan(in.path, in.model.views(), choice);
  const Attempt self = attempt(options_for(choice, "diff", in.path, in.path));
  FUZZ_REQUIRE(self.ok() && self.report->warnings.empty());
  FUZZ_REQUIRE(attempt(options_for(choice, "verify", in.path, in.path)).ok());
  if (check_unpack(in, choice, nullptr)) folder().remove("out");
  std::size_t size = 0;
  for (const Part& part : in.model.parts) size += part.bytes.size();
  const bool small = size < 300000;
  if (choice.convert && small) check_convert(in, choice);
  if (!choice.quantize) {
    check_pack(in, choice);
  } else if (small) {
    check_quantize(in, choice);
  }
}

void check_refused(const std::string& in, std::size_t number, const Choice& choice, const io::Error& error) {
  FUZZ_REQUIRE(error.fault() == Fault::input);
  constexpr const char* verbs[] = {"pack", "unpack", "quantize", "check", "scan", "verify", "diff"};
  const std::size_t which = number % 7;
  if (choice.quantize) fuzz::mix_of(choice);
  const std::string out = which < 3 ? "out" : "";
  const Attempt refused = attempt(options_for(choice, verbs[which], in, which > 4 ? in : out), out);
  FUZZ_REQUIRE(refused.error && same_error(*refused.error, error));
}

void require_place(const io::Error& error, const Text& bytes) {
  FUZZ_REQUIRE(!error.offset() || *error.offset() <= bytes.size());
}

void check_file(const Text& bytes, const Text& other, const Choice& choice) {
  folder().clear();
  folder().write("in", bytes);
  folder().write("other", other);
  const Reading mapped = read("in", io::InputFile::Access::automatic);
  const Reading plain = read("in", io::InputFile::Access::plain_read);
  const SafetensorsOracle oracle(bytes);
  if (!oracle.undecided()) FUZZ_REQUIRE(mapped.file.has_value() == oracle.accepted());
  FUZZ_REQUIRE(mapped.file.has_value() == plain.file.has_value());
  if (!mapped.file) {
    FUZZ_REQUIRE(same_error(*mapped.error, *plain.error) && mapped.error->fault() == Fault::input);
    require_place(*mapped.error, bytes);
    const Attempt inspected = attempt(options_for(choice, "inspect", "in"));
    // It may be another kind of model.
    if (inspected.error) check_refused("in", bytes.size(), choice, *inspected.error);
    return;
  }
  require_same(*mapped.file, *plain.file);
  const Input in{"in", {{open_part("in", "")}, "", ""}};
  check_model(in, choice);
  if (!SafetensorsOracle(other).accepted()) return;
  const Attempt compared = attempt(options_for(choice, "inspect", "other"));
  if (compared.error) return;  // undecided
  const Part second = open_part("other", "");
  fuzz::check_diff("in", in.model.parts[0].view(), "other", second.view(), choice);
  attempt(options_for(choice, "verify", "in", "other"));
  attempt(options_for(choice, "verify", "other", "in"));
}

// ---- By an index

bool can_be_a_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string("/\0", 2)) == std::string::npos;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Whether the model must be accepted; nullopt: that is up to the reader.
std::optional<bool> accepts(const fuzz::BuiltModel& built) {
  const IndexOracle index(built.index, built.index_name);
  if (!index.accepted()) return false;
  std::map<std::string, std::string> where;
  const SafetensorsOracle* first = nullptr;
  std::vector<SafetensorsOracle> files;
  files.reserve(built.files.size());
  bool undecided = index.undecided();
  for (const std::string& name : index.file_names()) {
    const auto found = built.files.find(name);
    if (found == built.files.end() || !can_be_a_name(name)) return false;
    files.emplace_back(found->second);
    const SafetensorsOracle& file = files.back();
    if (!file.accepted()) return false;
    undecided = undecided || file.undecided();
    for (const SafetensorsOracle::Tensor& tensor : file.tensors())
      if (!where.emplace(tensor.name, name).second) return false;
    if (first == nullptr) first = &file;
    const auto same = [&](const std::string& entry) {
      const std::string* a = first->find(entry);
      const std::string* b = file.find(entry);
      return (a == nullptr) == (b == nullptr) && (a == nullptr || *a == *b);
    };
    // They were packed or quantized together.
    if (first->p12() != file.p12() || first->pn() != file.pn() || first->rotation() != file.rotation()) return false;
    if (file.p12() && !same("p12.rounded_from")) return false;
    if (first->has_entry("p12.header") != file.has_entry("p12.header")) return false;
    const auto weighted = [](const SafetensorsOracle& f) {
      const std::string* search = f.find("pn.search");
      return search != nullptr && *search == "weighted";
    };
    if (weighted(*first) != weighted(file)) return false;
  }
  for (const auto& [tensor, name] : index.files()) {
    const auto found = where.find(tensor);
    if (found == where.end() || found->second != name) return false;
  }
  return undecided ? std::nullopt : std::optional<bool>(true);
}

void check_folder(const fuzz::BuiltModel& built, const Choice& choice) {
  folder().clear();
  folder().make_folder("in");
  bool one_model = ends_with(built.index_name, ".safetensors.index.json");
  for (const auto& [name, bytes] : built.files) {
    if (!can_be_a_name(name) || name == built.index_name) continue;
    folder().write("in/" + name, bytes);
    one_model = one_model && !ends_with(name, ".safetensors.index.json") && !ends_with(name, ".gguf");
  }
  folder().write("in/" + built.index_name, Text(built.index.begin(), built.index.end()));
  const std::string path = one_model && choice.place % 4 != 0 ? "in" : "in/" + built.index_name;
  const std::optional<bool> accepted = accepts(built);
  const Attempt inspected = attempt(options_for(choice, "inspect", path));
  if (accepted) FUZZ_REQUIRE(inspected.report.has_value() == *accepted);
  if (!inspected.report) {
    check_refused(path, built.index.size(), choice, *inspected.error);
    return;
  }
  if (!accepted) return;
  Input in{path, {}};
  in.model.index_name = built.index_name;
  in.model.index = built.index;
  for (const std::string& name : IndexOracle(built.index, built.index_name).file_names())
    in.model.parts.push_back(open_part("in/" + name, name));
  check_model(in, choice);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Choice choice;
  if (data[0] < 0x80) {
    const std::uint32_t options = static_cast<std::uint32_t>(size * 8 + data[0] * 37u) * 2654435761u;
    choice = fuzz::choose(options);
    choice.place = options * 2654435761u;
    choice.damage = static_cast<std::uint8_t>(1u << (options / 8 % 8));
  }
  fuzz::Bytes plan(data + 1, size - 1);
  Text bytes;
  if (data[0] >= 0x80) {
    choice = fuzz::choose(plan.integer<std::uint32_t>());
    choice.place = plan.integer<std::uint16_t>();
    choice.damage = std::max<std::uint8_t>(1, plan.byte());
    if (data[0] >= 0xC0) {
      check_folder(fuzz::any_model(plan), choice);
      return 0;
    }
    bytes = fuzz::any_safetensors_file(plan);
  } else {
    bytes.assign(data + 1, data + size);
  }
  Text other = bytes;
  if (!other.empty()) other[choice.place % other.size()] ^= choice.damage;
  check_file(bytes, other, choice);
  if (data[0] < 0x80) {  // no plan says which
    choice.quantize = !choice.quantize;
    check_file(bytes, other, choice);
  }
  return 0;
}
