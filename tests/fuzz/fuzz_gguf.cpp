// GGUF files through the reader and the whole of check, inspect, scan, diff, pack, unpack, quantize and verify.
//
// Input: a first byte below 0x80 begins a file that is used as it is ("GGUF..."); from 0x80 on it is followed by what
// is to be done and by a plan from which gguf_builder.hpp makes a file, most of the time a sound one.
#include <set>
#include <string>
#include <vector>

#include "attempt.hpp"
#include "core_bytes.hpp"
#include "fuzz.hpp"
#include "gguf_builder.hpp"
#include "gguf_oracle.hpp"
#include "io/error.hpp"
#include "io/gguf.hpp"
#include "io/input_file.hpp"
#include "io/model.hpp"
#include "pnpack/rewrite.hpp"
#include "safetensors_oracle.hpp"

namespace {

namespace io = pn::io;
namespace types = pn::io::types;
using fuzz::Attempt;
using fuzz::attempt;
using fuzz::Choice;
using fuzz::folder;
using fuzz::options_for;
using fuzz::same_error;
using fuzz::Text;
using io::Fault;
using io::Gguf;
using io::Tensor;
using pnpack::Options;
using pnpack::TensorReport;

// ---- A file that was read

struct Model {
  Text bytes;
  Gguf gguf;

  fuzz::View view() const {
    fuzz::View view{&bytes, &gguf, {}};
    for (const io::GgufKey& key : gguf.keys)
      if (!io::is_own_key(key.name)) view.entries.emplace_back(key.name, entry(key));
    return view;
  }
  std::string entry(const io::GgufKey& key) const {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(key.offset);
    return {from, from + static_cast<std::ptrdiff_t>(key.bytes)};
  }
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

void require_same(const io::PackRecord& a, const io::PackRecord& b) {
  FUZZ_REQUIRE(a.first_key == b.first_key && a.pn_key == b.pn_key && a.p12 == b.p12 && a.pn == b.pn);
  FUZZ_REQUIRE(a.p12_type_id == b.p12_type_id && a.rounded_from == b.rounded_from);
  FUZZ_REQUIRE(a.weighted_search == b.weighted_search && a.hadamard_block == b.hadamard_block);
  FUZZ_REQUIRE(a.hadamard_exclude == b.hadamard_exclude);
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
  FUZZ_REQUIRE(a.tail_start == b.tail_start && a.padded == b.padded);
  require_same(a.record, b.record);
}

// Everything that code behind the reader relies on.
void require_sound(const Model& model) {
  const Gguf& gguf = model.gguf;
  FUZZ_REQUIRE(gguf.version == 2 || gguf.version == 3);
  FUZZ_REQUIRE(gguf.alignment >= 8 && gguf.alignment <= 65536 && (gguf.alignment & (gguf.alignment - 1)) == 0);
  fuzz::require_sound(model.view());
  std::set<std::string> names;
  std::uint64_t next = 24;
  for (const io::GgufKey& key : gguf.keys) {
    FUZZ_REQUIRE(key.offset == next && key.bytes >= 13 && key.bytes <= gguf.header_end - key.offset);
    FUZZ_REQUIRE(names.insert(key.name).second);
    next = key.offset + key.bytes;
  }
  for (const Tensor& tensor : gguf.tensors) {
    FUZZ_REQUIRE(tensor.shape.size() <= 4);
    FUZZ_REQUIRE((tensor.elements == 0) == (tensor.bytes == 0));
  }
}

// Reads a file that a verb wrote, which must be sound.
Model reread(const std::string& name) {
  Model model;
  model.bytes = folder().read(name);
  const Reading reading = read(name, io::InputFile::Access::automatic);
  FUZZ_REQUIRE(reading.gguf.has_value());
  model.gguf = *reading.gguf;
  require_sound(model);
  FUZZ_REQUIRE(fuzz::GgufOracle(model.bytes).accepted());
  return model;
}

bool has_keys(const Gguf& gguf, const char* prefix) {
  return std::any_of(gguf.keys.begin(), gguf.keys.end(),
                     [&](const io::GgufKey& key) { return key.name.rfind(prefix, 0) == 0; });
}

// Version, alignment, names and shapes stay; the first keys are those of `in` that `keep` accepts, byte for byte, and
// `added` ones follow.
void require_same_frame(const Model& in, const Model& out, bool (*keep)(const io::GgufKey&),
                        const std::vector<std::string>& added) {
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
    FUZZ_REQUIRE(in.entry(key) == out.entry(out.gguf.keys[next++]));
  }
  FUZZ_REQUIRE(out.gguf.keys.size() == next + added.size());
  for (const std::string& name : added) FUZZ_REQUIRE(out.gguf.keys[next++].name == name);
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

Attempt check(const Choice& choice, const std::string& in) { return attempt(options_for(choice, "check", in)); }
Attempt verify(const Choice& choice, const std::string& packed, const std::string& original) {
  return attempt(options_for(choice, "verify", packed, original));
}
void require_verified(const Choice& choice, const std::string& packed, const std::string& original) {
  FUZZ_REQUIRE(verify(choice, packed, original).ok());
}

void check_check(const Model& in, const std::string& name, const Choice& choice) {
  const Attempt checked = check(choice, name);
  FUZZ_REQUIRE(checked.report.has_value());
  FUZZ_REQUIRE(checked.report->ok == fuzz::all_valid(in.view()));
  FUZZ_REQUIRE(checked.report->tensors.size() == in.gguf.tensors.size());
  fuzz::require_checked(*checked.report, in.view());
}

// unpack of the file `name`, whose contents are `in`, to "out"; its result stays there.
std::optional<Model> check_unpack(const Model& in, const std::string& name, const Choice& choice,
                                  const Text* must_restore) {
  const Attempt unpacked = fuzz::write_attempt(options_for(choice, "unpack", name), choice);
  bool must_fail = false;
  const fuzz::View view = in.view();
  std::vector<std::optional<Text>> expected;
  for (const Tensor& tensor : in.gguf.tensors) {
    expected.emplace_back();
    if (!types::is_packed(tensor.type)) continue;
    const std::uint32_t rotation = types::is_pn(tensor.type) ? in.gguf.record.rotation_of(tensor.name) : 0;
    expected.back() = fuzz::unpacked_bytes(view, tensor, choice.to, rotation);
    if (!expected.back()) must_fail = true;
  }
  FUZZ_REQUIRE(unpacked.error.has_value() == must_fail);
  if (unpacked.error) FUZZ_REQUIRE(unpacked.error->fault() == Fault::input);
  if (must_restore != nullptr) FUZZ_REQUIRE(unpacked.report.has_value());
  if (!unpacked.ok()) return std::nullopt;

  const Model back = reread("out");
  if (must_restore != nullptr) FUZZ_REQUIRE(back.bytes == *must_restore);
  require_same_frame(in, back, is_foreign, {});
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    const Tensor& tensor = back.gguf.tensors[t];
    if (expected[t]) {
      FUZZ_REQUIRE(fuzz::holds(back.view(), tensor, *expected[t]));
      FUZZ_REQUIRE(tensor.type ==
                   (types::is_p12(in.gguf.tensors[t].type) ? types::bf16() : fuzz::target_type(choice.to)));
    } else {
      FUZZ_REQUIRE(fuzz::holds_copy(back.view(), tensor, view, in.gguf.tensors[t]));
    }
  }
  const bool nothing = !has_keys(in.gguf, "p12.") && !has_keys(in.gguf, "pn.") && unpacked.report->converted() == 0;
  if (nothing) {
    FUZZ_REQUIRE(back.bytes == in.bytes);
  } else {
    require_compact(back);
  }
  return back;
}

void check_unpack_only(const Model& in, const std::string& name, const Choice& choice, const Text* must_restore) {
  check_unpack(in, name, choice, must_restore);
  folder().remove("out");
}

// One damaged byte in the data of an output never goes unnoticed: there is one packed form of any weights, and one
// quantized form of an original.
void check_damage(const Model& out, const Choice& choice) {
  if (out.bytes.size() <= out.gguf.data_start) return;
  const std::uint64_t place = out.gguf.data_start + choice.place % (out.bytes.size() - out.gguf.data_start);
  Model damaged = out;
  damaged.bytes[place] ^= choice.damage;
  folder().write("damaged", damaged.bytes);
  check_check(damaged, "damaged", choice);
  const Attempt verified = verify(choice, "damaged", "in");
  FUZZ_REQUIRE(verified.report.has_value());
  for (std::size_t t = 0; t < out.gguf.tensors.size(); ++t) {
    const Tensor& tensor = out.gguf.tensors[t];
    const bool hit = place >= tensor.offset && place - tensor.offset < tensor.bytes;
    FUZZ_REQUIRE(verified.report->tensors[t].good == !hit);
  }
  fuzz::check_diff("damaged", damaged.view(), "packed", out.view(), choice);
  folder().remove("damaged");
}

// What holds of an output, which is "out" and is "packed" from here on.
void check_output(const Model& out, const Choice& choice) {
  FUZZ_REQUIRE(::rename(folder().path("out").c_str(), folder().path("packed").c_str()) == 0);
  check_check(out, "packed", choice);
  require_verified(choice, "packed", "in");
  verify(choice, "in", "packed");
  verify(choice, "packed", "other");
  check_damage(out, choice);
}

void check_pack(const Model& in, const Choice& choice) {
  const Options options = options_for(choice, "pack", "in");
  const Attempt packed = fuzz::write_attempt(options, choice);
  bool must_fail = has_keys(in.gguf, "p12.") || has_keys(in.gguf, "pn.");
  std::vector<fuzz::Packing> expected;
  bool tried = false;
  bool fails = false;
  std::set<std::string> rounded;
  std::uint64_t converted = 0;
  for (const Tensor& tensor : in.gguf.tensors) {
    must_fail = must_fail || tensor.type.id == choice.type_id;
    expected.push_back(fuzz::packing(in.view(), tensor, choice.as_bf16));
    tried = tried || expected.back().candidate;
    fails = fails || expected.back().fails;
    if (expected.back().rounds) rounded.insert(tensor.type.name);
    converted += expected.back().packed ? 1u : 0u;
  }
  must_fail = must_fail || (tried && fails);
  FUZZ_REQUIRE(packed.error.has_value() == must_fail);
  if (packed.error) FUZZ_REQUIRE(packed.error->fault() == Fault::input);
  if (!packed.ok()) return;

  const Model out = reread("out");
  FUZZ_REQUIRE(packed.report->restores_identical.has_value());
  if (converted == 0) {
    FUZZ_REQUIRE(out.bytes == in.bytes && *packed.report->restores_identical == !fuzz::has_pn(in.view()));
  } else {
    std::vector<std::string> added{"p12.version", "p12.type_id"};
    if (!rounded.empty()) added.emplace_back("p12.rounded_from");
    require_same_frame(in, out, is_any, added);
    require_compact(out);
    FUZZ_REQUIRE(out.gguf.record.rounded_from == (rounded.empty()       ? ""
                                                  : rounded.size() == 2 ? "mixed"
                                                                        : *rounded.begin()));
  }
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    const Tensor& tensor = out.gguf.tensors[t];
    const TensorReport& report = packed.report->tensors[t];
    FUZZ_REQUIRE(report.converted == expected[t].packed);
    FUZZ_REQUIRE(report.type_out == tensor.type.name && (!tensor.type.known() || report.bytes_out == tensor.bytes));
    if (converted != 0 && expected[t].bytes) {
      FUZZ_REQUIRE(fuzz::holds(out.view(), tensor, *expected[t].bytes));
      FUZZ_REQUIRE(expected[t].packed ? types::is_p12(tensor.type) : tensor.type == types::bf16());
    } else {
      FUZZ_REQUIRE(fuzz::holds_copy(out.view(), tensor, in.view(), in.gguf.tensors[t]));
    }
  }
  fuzz::require_same_with_other_threads(options, choice);
  check_output(out, choice);
  Choice plain = choice;
  plain.strict = false;
  check_unpack_only(out, "packed", plain, *packed.report->restores_identical ? &in.bytes : nullptr);
  folder().remove("packed");
}

// What quantize must end with: a fault, and what it is about where that is certain.
struct Quantization {
  std::vector<fuzz::Planned> plans;
  std::vector<std::optional<fuzz::Quantized>> expected;
  std::optional<Fault> fault;
  std::optional<std::string> subject;
};

Quantization expect_quantize(const Model& in, const Choice& choice) {
  Quantization result;
  result.expected.resize(in.gguf.tensors.size());
  if (has_keys(in.gguf, "pn.") || fuzz::has_pn(in.view())) {
    result.fault = Fault::input;
    return result;
  }
  const pnpack::Mix mix = fuzz::mix_of(choice);
  const auto fail = [&](Fault fault, const Tensor& tensor) {
    if (result.fault) return;  // the first is told
    result.fault = fault;
    result.subject = "tensor " + tensor.name;
  };
  for (const Tensor& tensor : in.gguf.tensors) {
    result.plans.push_back(fuzz::planned(choice, mix, tensor));
    const fuzz::Planned& plan = result.plans.back();
    if (plan.donor_fails) fail(Fault::input, tensor);
    if (plan.rotation != 0 && tensor.row_length() % plan.rotation != 0) fail(Fault::usage, tensor);
  }
  for (const std::size_t t : in.gguf.data_order) {
    if (result.fault) break;
    const fuzz::Planned& plan = result.plans[t];
    if (!plan.becomes || plan.from_donor) continue;
    result.expected[t] = fuzz::quantized(in.view(), in.gguf.tensors[t], plan.type, plan.rotation);
    if (!result.expected[t]) fail(Fault::input, in.gguf.tensors[t]);
  }
  return result;
}

void check_quantize(const Model& in, const Choice& choice) {
  const Quantization expected = expect_quantize(in, choice);
  const Options options = options_for(choice, "quantize", "in");
  const Attempt quantized = fuzz::write_attempt(options, choice);
  FUZZ_REQUIRE(quantized.error.has_value() == (expected.fault.has_value() && !(quantized.report && !quantized.ok())));
  if (quantized.error) {
    FUZZ_REQUIRE(quantized.error->fault() == *expected.fault);
    if (expected.subject) FUZZ_REQUIRE(quantized.error->subject() == expected.subject);
  }
  if (!quantized.ok()) return;

  const Model out = reread("out");
  std::uint64_t converted = 0;
  bool becomes_pn = false;
  bool keeps_p12 = false;
  std::vector<std::string> excluded;
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
    const Tensor& tensor = out.gguf.tensors[t];
    const fuzz::Planned& plan = expected.plans[t];
    const TensorReport& report = quantized.report->tensors[t];
    converted += plan.becomes ? 1u : 0u;
    becomes_pn = becomes_pn || types::is_pn(plan.type);
    keeps_p12 = keeps_p12 || types::is_p12(plan.type);
    if (types::is_pn(plan.type) && plan.rotation == 0) excluded.push_back(tensor.name);
    FUZZ_REQUIRE(report.converted == plan.becomes && report.type_out == plan.type.name);
    if (plan.becomes && !plan.from_donor) {
      FUZZ_REQUIRE(tensor.type == plan.type && fuzz::holds(out.view(), tensor, expected.expected[t]->bytes));
      FUZZ_REQUIRE(report.bytes_out == tensor.bytes);
      FUZZ_REQUIRE(std::abs(*report.nrmse - expected.expected[t]->nrmse) <= 1e-9);
    } else {
      FUZZ_REQUIRE(fuzz::holds_copy(out.view(), tensor, in.view(), in.gguf.tensors[t]));
    }
  }
  if (converted == 0) {
    FUZZ_REQUIRE(out.bytes == in.bytes);
  } else {
    std::vector<std::string> added;
    if (becomes_pn) added = {"pn.version", "pn.search"};
    if (becomes_pn && choice.rotate != 0) added.insert(added.end(), {"pn.hadamard.block_size", "pn.hadamard.exclude"});
    require_same_frame(in, out, keeps_p12 ? is_any : is_foreign, added);
    require_compact(out);
    FUZZ_REQUIRE(out.gguf.record.pn == becomes_pn && !out.gguf.record.weighted_search);
    FUZZ_REQUIRE(out.gguf.record.hadamard_block == (becomes_pn ? choice.rotate : 0));
    FUZZ_REQUIRE(out.gguf.record.hadamard_exclude ==
                 (becomes_pn && choice.rotate != 0 ? excluded : std::vector<std::string>()));
  }
  fuzz::require_same_with_other_threads(options, choice);
  check_output(out, choice);
  Choice plain = choice;
  plain.strict = false;
  check_unpack_only(out, "packed", plain, nullptr);
  folder().remove("packed");
}

// verify against a file that has little to do with it, or differs in one place.
void check_verify(const Model& in, const Choice& choice) {
  require_verified(choice, "in", "in");
  const Attempt verified = verify(choice, "in", "other");
  verify(choice, "other", "in");
  if (!verified.ok()) return;
  const Model other = reread("other");
  FUZZ_REQUIRE(in.gguf.tensors.size() == other.gguf.tensors.size());
  for (const Tensor& tensor : in.gguf.tensors) {
    const auto original = std::find_if(other.gguf.tensors.begin(), other.gguf.tensors.end(),
                                       [&](const Tensor& t) { return t.name == tensor.name; });
    FUZZ_REQUIRE(original != other.gguf.tensors.end() && original->shape == tensor.shape);
    if (original->type == tensor.type) {
      FUZZ_REQUIRE(fuzz::holds_copy(in.view(), tensor, other.view(), *original));
    } else {
      FUZZ_REQUIRE(types::is_packed(tensor.type) || tensor.type == types::q8_0() ||
                   (choice.as_bf16 && tensor.type == types::bf16()));
    }
  }
}

void check_diff(const Model& in, const Choice& choice) {
  const Attempt self = attempt(options_for(choice, "diff", "in", "in"));
  FUZZ_REQUIRE(self.ok() && self.report->warnings.empty());
  const Attempt inspected = attempt(options_for(choice, "inspect", "other"));
  if (!inspected.report || !fuzz::begins_as_gguf(folder().read("other"))) return;
  const Model other = reread("other");
  fuzz::check_diff("in", in.view(), "other", other.view(), choice);
  fuzz::check_diff("other", other.view(), "in", in.view(), choice);
}

// pack, unpack and quantize to a safetensors file, where nothing is lost by it: what comes out holds the same tensors,
// and serves as an input like any other.
void check_convert(const Model& in, const Choice& choice) {
  for (const char* verb : {"unpack", "pack", "quantize"}) {
    if ((verb[0] == 'q') != choice.quantize && verb[0] != 'u') continue;
    if (choice.quantize) fuzz::mix_of(choice);
    Options options = options_for(choice, verb, "in", "converted");
    options.format = "safetensors";
    const Attempt converted = attempt(options, "converted");
    if (!converted.ok()) continue;
    const fuzz::SafetensorsOracle read(folder().read("converted"));
    FUZZ_REQUIRE(read.accepted() && read.tensors().size() == in.gguf.tensors.size());
    for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t) {
      FUZZ_REQUIRE(read.tensors()[t].name == in.gguf.tensors[t].name);
      FUZZ_REQUIRE(read.tensors()[t].type == converted.report->tensors[t].type_out);
      FUZZ_REQUIRE(read.tensors()[t].shape == in.gguf.tensors[t].shape);
    }
    for (const io::GgufKey& key : in.gguf.keys)
      if (is_foreign(key)) FUZZ_REQUIRE(read.has_entry(key.name));
    check(choice, "converted");
    if (verb[0] != 'u') require_verified(choice, "converted", "in");
    // Once more: quantized from there, and unpacked again.
    Choice second;
    second.pn3t = choice.pn3t;
    const Attempt again = attempt(options_for(second, "quantize", "converted", "again"), "again");
    if (again.ok()) {
      const bool valid = fuzz::all_valid(in.view());
      FUZZ_REQUIRE(check(choice, "again").ok() == valid);
      FUZZ_REQUIRE(attempt(options_for(second, "unpack", "again", "back"), "back").ok() == valid);
      folder().remove("back");
      folder().remove("again");
    }
    folder().remove("converted");
  }
}

// A header written anew from what was read is the header that was read.
void check_header(const Model& in) {
  const io::Model model(folder().path("in"));
  if (!pnpack::has_standard_layout(model.files()[0]) || in.bytes.size() < in.gguf.data_start) return;
  io::GgufHeader header;
  header.version = in.gguf.version;
  header.alignment = in.gguf.alignment;
  header.p12_type_id = in.gguf.record.p12_type_id;
  header.kept = in.gguf.keys;
  header.tensors = in.gguf.tensors;
  for (Tensor& tensor : header.tensors) tensor.offset -= in.gguf.data_start;
  const Text bytes = header.serialize(*model.files()[0].file);
  FUZZ_REQUIRE(bytes.size() == in.gguf.data_start);
  FUZZ_REQUIRE(std::equal(bytes.begin(), bytes.end(), in.bytes.begin()));
}

void check_refused(const Text& bytes, const Choice& choice, const io::Error& error) {
  FUZZ_REQUIRE(error.fault() == Fault::input);
  constexpr const char* verbs[] = {"pack", "unpack", "quantize", "check", "scan", "verify", "diff"};
  const std::size_t which = bytes.size() % 7;
  if (choice.quantize) fuzz::mix_of(choice);
  const std::string out = which < 3 ? "out" : "";
  const Attempt refused = attempt(options_for(choice, verbs[which], "in", which > 4 ? "other" : out), out);
  FUZZ_REQUIRE(refused.error && same_error(*refused.error, error));
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
  const Attempt inspected = attempt(options_for(choice, "inspect", "in"));
  if (!mapped.gguf) FUZZ_REQUIRE(same_error(*mapped.error, *plain.error) && mapped.error->fault() == Fault::input);
  // What does not begin like a GGUF file may be another kind of model.
  if (!fuzz::begins_as_gguf(bytes)) {
    FUZZ_REQUIRE(!mapped.gguf);
    if (inspected.error) check_refused(bytes, choice, *inspected.error);
    return;
  }
  // Several files are a model only when they are named so.
  FUZZ_REQUIRE(inspected.report.has_value() == (oracle.accepted() && !oracle.is_split()));
  if (mapped.gguf) require_same(*mapped.gguf, *plain.gguf);
  if (!inspected.report) {
    if (!mapped.gguf) FUZZ_REQUIRE(same_error(*mapped.error, *inspected.error));
    check_refused(bytes, choice, *inspected.error);
    return;
  }
  const Model in{bytes, *mapped.gguf};
  require_sound(in);
  for (std::size_t k = 0; k < in.gguf.keys.size(); ++k)
    FUZZ_REQUIRE(in.gguf.keys[k].offset == oracle.keys()[k].offset && in.gguf.keys[k].bytes == oracle.keys()[k].bytes);
  for (std::size_t t = 0; t < in.gguf.tensors.size(); ++t)
    FUZZ_REQUIRE(in.gguf.tensors[t].offset == oracle.tensors()[t].offset &&
                 in.gguf.tensors[t].bytes == oracle.tensors()[t].bytes);
  check_header(in);
  check_check(in, "in", choice);
  check_verify(in, choice);
  fuzz::check_scan("in", {in.view()}, choice);
  check_diff(in, choice);
  check_unpack_only(in, "in", choice, nullptr);
  const bool small = bytes.size() < 300000;
  if (choice.convert && small) check_convert(in, choice);
  if (!choice.quantize) {
    check_pack(in, choice);
  } else if (small) {
    check_quantize(in, choice);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Text bytes;
  Choice choice;
  if (data[0] < 0x80) {
    bytes.assign(data, data + size);
    const std::uint32_t options = static_cast<std::uint32_t>(size * 8 + data[size - 1] * 37u) * 2654435761u;
    choice = fuzz::choose(options);
    choice.place = options * 2654435761u;
    choice.damage = static_cast<std::uint8_t>(1u << (options / 8 % 8));
  } else {
    fuzz::Bytes plan(data + 1, size - 1);
    choice = fuzz::choose(plan.integer<std::uint32_t>());
    choice.place = plan.integer<std::uint16_t>();
    choice.damage = std::max<std::uint8_t>(1, plan.byte());
    bytes = fuzz::any_file(plan);
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
