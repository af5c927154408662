// pnpack: the command line. Reads the options, runs a verb, prints what it did and turns errors into exit statuses.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "io/error.hpp"
#include "io/signals.hpp"

namespace {

using pn::io::Error;
using pn::io::Fault;
using pnpack::Options;
using pnpack::Report;
using pnpack::Verb;

enum Exit : int { exit_done = 0, exit_no = 1, exit_usage = 2, exit_input = 3, exit_output = 4 };

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
  const bool two = options.verb == "verify" || options.verb == "diff";
  const std::string file = two ? options.input + " or " + options.second : options.input;
  if (options.json) {
    pn::io::set_bus_error_message(pnpack::error_to_json(file, {}, {}, text), STDOUT_FILENO);
  } else {
    pn::io::set_bus_error_message(fmt::format("pnpack: {}: {}\n", pnpack::printable(file), text), STDERR_FILENO);
  }
}

int run(const Verb& verb, Options& options) {
  options.verb = verb.name;
  prepare_for_bus_error(options);
  if (verb.writes && options.second.empty() && !options.dry_run)
    throw Error(Fault::usage, options.input, "OUT is missing: where shall the result go?");
  if (options.verb == "quantize" && options.type.empty() && options.mix.empty())
    throw Error(Fault::usage, options.input, "--type is missing: pn3t or pn4t? (or rules: --mix)");
  Report report = verb.run(options);
  report.verb = verb.name;
  report.input = options.input;
  report.dry_run = options.dry_run && verb.writes;
  if (options.verb == "verify") report.original = options.second;
  if (options.verb == "diff") report.other = options.second;
  if (verb.writes && !options.second.empty()) report.output = options.second;
  if (!options.html.empty()) report.output = options.html;
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
  for (const Verb& verb : pnpack::verbs()) names.emplace_back(verb.name);
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
  const Verb* chosen = nullptr;
  const std::unique_ptr<CLI::App> app = pnpack::make_command_line(options, chosen);

  try {
    app->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> used = app->get_subcommands();
    print(used.empty() ? app->help() : used.front()->help("pnpack"));
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
