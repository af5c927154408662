// Running the verbs of pnpack on files in the scratch folder, and what holds whatever the files are.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "fuzz.hpp"
#include "io/error.hpp"
#include "pnpack/report.hpp"
#include "pnpack/verbs.hpp"
#include "scratch_folder.hpp"

namespace fuzz {

// ---- What people and programs read

// UTF-8 without control characters, whatever names the file holds.
inline void require_printable(const std::string& text, bool lines) {
  for (const char c : text) FUZZ_REQUIRE((static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) || (lines && c == '\n'));
  nlohmann::json(text).dump();  // throws when it is not UTF-8
}

inline void require_json(const std::string& text, bool ok) {
  const auto json = nlohmann::json::parse(text);
  FUZZ_REQUIRE(json.at("ok") == ok);
}

// ---- What is done with a file

struct Choice {
  unsigned threads = 1;
  bool quantize = false;  // instead of pack
  bool dry_run = false;   // also
  bool pn3t = false;
  std::string to = "f32";
  bool strict = false;
  bool force = false;
  std::uint32_t type_id = 126;
  std::uint32_t rotate = 0;
  std::optional<std::string> mix;  // rules instead of a type
  bool as_bf16 = false;
  bool convert = false;     // also to the other kind of file
  bool page = false;        // scan with --html
  std::string shows;        // the verb whose tables and documents are looked at; they take longer than the verb
  std::uint32_t place = 0;  // of a byte to damage, in some file,
  std::uint8_t damage = 1;  // and its bits
};

inline Choice choose(std::uint32_t bits) {
  static constexpr std::array<std::uint32_t, 16> rotations{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 64, 128, 256, 1024};
  static constexpr std::array<const char*, 6> mixes{"* q8_0\n",
                                                    "*.0.* q8_0\n*.1.* pn3t # a comment\n* pn4t\n",
                                                    "* K=256,512,160 q8_0\n* K=320,640 pn3t",
                                                    "* keep\n",
                                                    "*.1.* donor\n*.2.* keep\n* pn4t\n",
                                                    "nothing q8_0\nblk.?.weight pn4t\n"};
  Choice choice;
  choice.threads = std::array<unsigned, 8>{1, 1, 1, 1, 1, 2, 3, 2}[bits & 7u];
  choice.quantize = (bits & 8u) != 0;
  choice.pn3t = (bits & 0x10u) != 0;
  choice.dry_run = (bits & 0x60u) == 0x20u;
  choice.to = (bits & 0x80u) == 0 ? "f32" : bits & 0x100u ? "f16" : "bf16";
  choice.strict = (bits & 0xE00u) == 0xE00u;
  choice.force = (bits & 0x600u) == 0x400u;
  choice.type_id = (bits & 0x600u) == 0x200u ? 200 : 126;
  choice.rotate = rotations[bits >> 12 & 15u];
  if ((bits >> 16 & 7u) < mixes.size() && (bits & 0x80000u) != 0) choice.mix = mixes[bits >> 16 & 7u];
  choice.as_bf16 = (bits & 0x300000u) == 0x300000u;
  choice.convert = (bits & 0xC00000u) == 0xC00000u;
  choice.page = (bits & 0x7000000u) == 0x7000000u;
  choice.shows = std::array<const char*, 8>{
      "pack", "unpack", "quantize", "verify", "check", "inspect", "scan", "diff"}[bits >> 27 & 7u];
  return choice;
}

// The file of choice.mix.
inline const char* rules_name() { return "rules"; }

// `second` is OUT or what is compared with; empty: none.
inline pnpack::Options options_for(const Choice& choice, const std::string& verb, const std::string& in,
                                   const std::string& second = "") {
  pnpack::Options options;
  options.verb = verb;
  options.input = folder().path(in);
  if (!second.empty()) options.second = folder().path(second);
  options.quiet = true;
  options.json = verb == choice.shows;
  options.threads = choice.threads;
  if (verb == "unpack") options.to = choice.to;
  if (verb == "pack") options.type_id = choice.type_id;
  if ((verb == "pack" || verb == "verify" || verb == "scan") && choice.as_bf16) options.as = "bf16";
  if (verb == "quantize") {
    options.rotate = choice.rotate;
    if (choice.mix) {
      options.mix = folder().path(rules_name());
      if (choice.mix->find("donor") != std::string::npos) options.donor = options.input;
    } else {
      options.type = choice.pn3t ? "pn3t" : "pn4t";
    }
  }
  return options;
}

// ---- Running a verb

struct Attempt {
  std::optional<pnpack::Report> report;
  std::optional<pn::io::Error> error;
  bool ok() const { return report && report->ok; }
};

inline bool same_error(const pn::io::Error& a, const pn::io::Error& b) {
  return a.fault() == b.fault() && std::string(a.what()) == b.what() && a.subject() == b.subject() &&
         a.offset() == b.offset();
}

inline pnpack::Report run(const pnpack::Options& options) {
  using Verb = pnpack::Report (*)(const pnpack::Options&);
  static constexpr std::array<std::pair<const char*, Verb>, 8> verbs{{{"pack", pnpack::pack},
                                                                      {"unpack", pnpack::unpack},
                                                                      {"quantize", pnpack::quantize},
                                                                      {"verify", pnpack::verify},
                                                                      {"check", pnpack::check},
                                                                      {"inspect", pnpack::inspect},
                                                                      {"scan", pnpack::scan},
                                                                      {"diff", pnpack::diff}}};
  for (const auto& [name, verb] : verbs)
    if (options.verb == name) return verb(options);
  FUZZ_REQUIRE(false);
  return {};
}

// What is in the folder but not `out`, nor in it.
inline std::set<std::string> names_beside(const std::string& out) {
  std::set<std::string> names = folder().names();
  for (auto name = names.begin(); name != names.end();)
    name = *name == out || name->rfind(out + "/", 0) == 0 ? names.erase(name) : std::next(name);
  return names;
}

// Runs a verb and looks at its report or error. Nothing but io::Error may be thrown, and nothing is different in the
// folder but `out`, which is there if the report is ok, or was there before.
inline Attempt attempt(const pnpack::Options& options, const std::string& out = "") {
  const std::set<std::string> before = names_beside(out);
  const bool had_out = !out.empty() && folder().has(out);
  Attempt result;
  try {
    result.report = run(options);
  } catch (const pn::io::Error& error) {
    result.error = error;
  }
  FUZZ_REQUIRE(names_beside(out) == before);
  if (!out.empty()) FUZZ_REQUIRE(folder().has(out) == (had_out || result.ok()));
  if (result.report) {
    pnpack::Report& report = *result.report;
    report.verb = options.verb;
    report.input = options.input;
    if (options.json) {
      require_json(to_json(report), report.ok);
      require_printable(to_table(report), true);
      for (const std::string& warning : report.warnings) require_printable(pnpack::printable(warning), false);
    }
  } else {
    const pn::io::Error& error = *result.error;
    FUZZ_REQUIRE(error.file().rfind(folder().path(""), 0) == 0);
    FUZZ_REQUIRE(error.what()[0] != '\0');
    if (options.json) {
      require_json(pnpack::error_to_json(error.file(), error.subject(), error.offset(), error.what()), false);
      require_printable(pnpack::describe(error), false);
    }
  }
  return result;
}

// What --force replaces: a file, or a folder with a model in one file.
inline void write_old(const std::string& out, bool in_folder) {
  const auto text = [](const std::string& characters) { return Text(characters.begin(), characters.end()); };
  if (!in_folder) return folder().write(out, text("old"));
  folder().make_folder(out);
  Text old = text("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}=");
  const std::vector<std::uint8_t> length{static_cast<std::uint8_t>(old.size() - 1), 0, 0, 0, 0, 0, 0, 0};
  old.insert(old.begin(), length.begin(), length.end());
  folder().write(out + "/old", old);
  folder().write(out + "/old.safetensors.index.json", text("{\"weight_map\":{\"a\":\"old\"}}"));
}

// Runs a verb that writes OUT, "out". OUT is there afterwards exactly when the report is ok; what was there before
// stays otherwise. A dry run has the same result and writes nothing; that of quantize tells only the plan.
inline Attempt write_attempt(pnpack::Options options, const Choice& choice, bool in_folder = false) {
  const std::string out = "out";
  options.second = folder().path(out);
  options.strict = choice.strict;
  std::optional<Attempt> dry;
  if (choice.dry_run) {
    options.dry_run = true;
    dry = attempt(options);
    options.dry_run = false;
  }
  options.force = choice.force;
  if (choice.force) write_old(out, in_folder);
  const auto old = choice.force ? folder().contents(out) : Folder::Contents();
  Attempt result = attempt(options, out);
  if (dry && options.verb != "quantize") {
    FUZZ_REQUIRE(dry->report.has_value() == result.report.has_value());
    if (result.error) FUZZ_REQUIRE(same_error(*result.error, *dry->error));
    if (result.report) FUZZ_REQUIRE(pnpack::to_json(*result.report) == pnpack::to_json(*dry->report));
  } else if (dry && dry->error) {
    FUZZ_REQUIRE(result.error && same_error(*result.error, *dry->error));
  } else if (dry && result.report) {
    FUZZ_REQUIRE(dry->report->ok == result.report->ok && dry->report->bytes_out() == result.report->bytes_out());
    for (std::size_t t = 0; t < result.report->tensors.size(); ++t) {
      FUZZ_REQUIRE(dry->report->tensors[t].converted == result.report->tensors[t].converted);
      FUZZ_REQUIRE(dry->report->tensors[t].type_out == result.report->tensors[t].type_out);
    }
  }
  if (choice.force && !result.ok()) {
    FUZZ_REQUIRE(folder().contents(out) == old);
    folder().remove(out);
  }
  if (result.report)
    FUZZ_REQUIRE(result.report->ok ==
                 (!choice.strict ||
                  (result.report->converted() > 0 && (options.verb == "unpack" || result.report->fallbacks() == 0))));
  return result;
}

// The number of threads changes nothing: the same verb again.
inline void require_same_with_other_threads(pnpack::Options options, const Choice& choice) {
  const auto before = folder().contents("out");
  options.second = folder().path("out");
  options.threads = choice.threads % 3 + 1;
  folder().remove("out");
  FUZZ_REQUIRE(attempt(options, "out").ok());
  FUZZ_REQUIRE(folder().contents("out") == before);
}

}  // namespace fuzz
