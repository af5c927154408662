// pnpack: the command line. Reads the options, runs a verb, prints what it did and turns errors into exit statuses.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <pn/version.hpp>
#include <string>
#include <thread>
#include <vector>

#include "io/error.hpp"
#include "io/output_file.hpp"
#include "io/tensor.hpp"
#include "verbs.hpp"

namespace {

using pn::io::Error;
using pn::io::Fault;
using pnpack::Options;
using pnpack::Report;

enum Exit : int { exit_done = 0, exit_no = 1, exit_usage = 2, exit_input = 3, exit_output = 4 };

constexpr const char* description =
    "Packs the weights of neural networks: BF16_P12 (lossless BF16 in 12.25 bits) and PN (pn3t, pn4t).";
constexpr const char* footer =
    "Exit status: 0 done; 1 the answer is no (verify, check, --strict); 2 wrong use; 3 bad input; 4 output failed.\n"
    "Options follow the verb. `--` ends the options, for names that begin with a dash.";

int exit_status(Fault fault) {
  switch (fault) {
    case Fault::usage: return exit_usage;
    case Fault::input: return exit_input;
    case Fault::output: return exit_output;
  }
  return exit_output;
}

void print(const std::string& text) {
  const bool wrote = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!wrote || std::fflush(stdout) != 0) throw Error(Fault::output, "standard output", "cannot be written");
}

struct Verb {
  const char* name;
  const char* text;
  Report (*run)(const Options&);
};

constexpr Verb verbs[] = {
    {"pack", "BF16 -> BF16_P12, lossless; every tensor is unpacked and compared before it is written", pnpack::pack},
    {"unpack", "BF16_P12 -> BF16, giving back the file that was packed; PN -> F32, F16 or BF16", pnpack::unpack},
    {"quantize", "F32, F16, BF16 or BF16_P12 -> PN (pn3t or pn4t)", pnpack::quantize},
    {"verify", "compare every tensor of a packed file with the original", pnpack::verify},
    {"check", "validate the structure and every packed block of a file", pnpack::check},
    {"inspect", "list the tensors of a file", pnpack::inspect},
};

bool writes_file(const std::string& verb) { return verb == "pack" || verb == "unpack" || verb == "quantize"; }

void add_options(CLI::App& app, const std::string& verb, Options& options) {
  if (verb == "verify") {
    app.add_option("PACKED", options.input, "the packed or quantized file")->required();
    app.add_option("ORIGINAL", options.second, "the file that it was made from")->required();
  } else {
    app.add_option(writes_file(verb) ? "IN" : "FILE", options.input, "a GGUF file")->required();
    if (writes_file(verb)) app.add_option("OUT", options.second, "the file to write (may be left out with --dry-run)");
  }
  if (verb == "quantize")
    app.add_option("--type", options.type, "pn3t (3.40 bits per weight) or pn4t (4.25); required")
        ->check(CLI::IsMember({"pn3t", "pn4t"}));
  if (verb == "unpack")
    app.add_option("--to", options.to, "type of unpacked PN tensors: f32, f16 or bf16 (default f32)")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  if (verb == "pack")
    app.add_option("--type-id", options.type_id, "GGUF type id of BF16_P12 (default 126)")
        ->check([](const std::string& text) -> std::string {
          std::uint32_t id = 0;
          if (!CLI::detail::lexical_cast(text, id)) return "takes a number";
          if (pn::io::types::is_reserved_id(id)) return text + " belongs to another type";
          return {};
        })
        ->type_name("ID");
  app.add_option("--threads", options.threads, "threads to use (default: one per processor)")
      ->check(CLI::Range(1u, 1024u))
      ->type_name("N");
  app.add_flag("--json", options.json, "print one JSON document instead of a table");
  app.add_flag("--quiet", options.quiet, "print nothing but errors (and the JSON document)");
  app.add_flag("--force", options.force, "replace OUT when it exists");
  app.add_flag("--dry-run", options.dry_run, "do everything but write OUT");
  app.add_flag("--strict", options.strict, "a tensor that had to stay as it was, or nothing to do, is an answer no");
}

// Reports an error where the caller expects it, and gives the exit status back.
int fail(bool json, int status, const Error& error) {
  if (json) {
    try {
      print(pnpack::error_to_json(error.file(), error.subject(), error.offset(), error.what()));
      return status;
    } catch (const Error&) {
      // Standard output is gone: standard error remains.
    }
  }
  std::fputs(fmt::format("pnpack: {}\n", pnpack::describe(error)).c_str(), stderr);
  return status;
}

// A mapped input may vanish under us; the signal handler then says this.
void prepare_for_bus_error(const Options& options) {
  const std::string text = "an input file became shorter, or its disk failed, while it was read";
  const std::string file = options.verb == "verify" ? options.input + " or " + options.second : options.input;
  if (options.json) {
    pn::io::set_bus_error_message(pnpack::error_to_json(file, {}, {}, text), STDOUT_FILENO);
  } else {
    pn::io::set_bus_error_message(fmt::format("pnpack: {}: {}\n", pnpack::printable(file), text), STDERR_FILENO);
  }
}

int run(const Verb& verb, Options& options) {
  options.verb = verb.name;
  prepare_for_bus_error(options);
  if (writes_file(options.verb) && options.second.empty() && !options.dry_run)
    throw Error(Fault::usage, options.input, "OUT is missing: where shall the result go?");
  if (options.verb == "quantize" && options.type.empty())
    throw Error(Fault::usage, options.input, "--type is missing: pn3t or pn4t?");
  Report report = verb.run(options);
  report.verb = verb.name;
  report.input = options.input;
  report.dry_run = options.dry_run && writes_file(options.verb);
  if (options.verb == "verify") report.original = options.second;
  if (writes_file(options.verb) && !options.second.empty()) report.output = options.second;
  if (options.json) {
    print(pnpack::to_json(report));
  } else if (!options.quiet) {
    print(pnpack::to_table(report));
  }
  if (!options.json)
    for (const std::string& warning : report.warnings)
      std::fputs(fmt::format("pnpack: warning: {}\n", pnpack::printable(warning)).c_str(), stderr);
  return report.ok ? exit_done : exit_no;
}

// CLI11 says what is missing; for the first word, say what was found instead.
std::string what_is_wrong(int argc, char** argv, const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.emplace_back(verb.name);
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  if (argc < 2) return "a verb is missing: " + list;
  const std::string first = argv[1];
  if (std::find(names.begin(), names.end(), first) != names.end()) return error.what();
  if (first.rfind('-', 0) == 0)
    return fmt::format("options follow the verb, but {} comes first (verbs: {})", first, list);
  return fmt::format("there is no verb {} (verbs: {})", first, list);
}

int run_command_line(int argc, char** argv) {
  Options options;
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app(description, "pnpack");
  app.footer(footer);
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       fmt::format("pnpack {}.{}.{}", PN_VERSION_MAJOR, PN_VERSION_MINOR, PN_VERSION_PATCH));
  const Verb* chosen = nullptr;
  for (const Verb& verb : verbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.text);
    add_options(*sub, verb.name, options);
    sub->callback([&chosen, &verb] { chosen = &verb; });
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> used = app.get_subcommands();
    print(used.empty() ? app.help() : used.front()->help("pnpack"));
    return exit_done;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return exit_done;
  } catch (const CLI::ParseError& error) {
    const bool json = std::find(argv, argv + argc, std::string("--json")) != argv + argc;
    const std::string message = what_is_wrong(argc, argv, error);
    if (json) return fail(true, exit_usage, Error(Fault::usage, options.input, message));
    std::fputs(fmt::format("pnpack: {}\nRun pnpack --help for how to use it.\n", pnpack::printable(message)).c_str(),
               stderr);
    return exit_usage;
  }

  try {
    return run(*chosen, options);
  } catch (const Error& error) {
    return fail(options.json, exit_status(error.fault()), error);
  } catch (const std::bad_alloc&) {
    return fail(options.json, exit_output,
                Error(Fault::output, options.input, "not enough memory; nothing was written"));
  } catch (const std::exception& error) {
    return fail(options.json, exit_output, Error(Fault::output, options.input, error.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  pn::io::handle_signals();
  try {
    return run_command_line(argc, argv);
  } catch (const Error& error) {
    return fail(false, exit_status(error.fault()), error);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("pnpack: {}\n", error.what()).c_str(), stderr);
    return exit_output;
  }
}
