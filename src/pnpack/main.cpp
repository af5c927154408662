// pnpack: the command line. Reads the options, runs a verb, prints what it did and turns errors into exit statuses.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

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

int run_command_line(int argc, char** argv) {
  Options options;
  const pnpack::CommandLine asked = pnpack::parse_command_line(argc, argv, options);
  if (!asked.text.empty()) {
    print(asked.text);
    return exit_done;
  }
  if (!asked.error.empty()) {
    const bool json = std::find(argv, argv + argc, std::string("--json")) != argv + argc;
    if (json) return fail(true, exit_usage, Error(Fault::usage, options.input, asked.error));
    std::fputs(
        fmt::format("pnpack: {}\nRun pnpack --help for how to use it.\n", pnpack::printable(asked.error)).c_str(),
        stderr);
    return exit_usage;
  }

  try {
    return run(*asked.verb, options);
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
