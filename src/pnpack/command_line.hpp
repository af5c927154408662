// The options of the program and the text that explains them: the only place for both. Help and manual come from here.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
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

// An application that fills `options` and sets `chosen` to the verb. Both must outlive it.
std::unique_ptr<CLI::App> make_command_line(Options& options, const Verb*& chosen);

// The manual page, in roff.
std::string manual_page(const CLI::App& app);

}  // namespace pnpack
