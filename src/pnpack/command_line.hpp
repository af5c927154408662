// The options of the program and the text that explains them: the only place for both. Help and manual come from here.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "report.hpp"

namespace pnpack {

struct Verb {
  const char* name;
  const char* text;
  Report (*run)(const Options&);
  bool writes;  // takes IN and OUT
};

const std::vector<Verb>& verbs();

// What a command line asks for: one of these.
struct CommandLine {
  const Verb* verb = nullptr;
  std::string text;   // to print: help, version, manual page (roff)
  std::string error;  // what is wrong with the command line
};

// Fills `options` as far as it comes.
CommandLine parse_command_line(int argc, char** argv, Options& options);

}  // namespace pnpack
