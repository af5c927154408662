#include "command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <pn/hadamard.hpp>
#include <pn/version.hpp>
#include <thread>
#include <utility>

#include "io/tensor.hpp"
#include "verbs.hpp"

namespace pnpack {

namespace {

constexpr const char* description =
    "Packs the weights of neural networks: BF16_P12 (lossless BF16 in 12.25 bits) and PN (pn3t, pn4t).";
constexpr const char* about_models =
    "A model is a GGUF or safetensors file, or several files that belong together: a folder with one\n"
    "*.safetensors.index.json or one split GGUF model, the index itself, or the first file of a split\n"
    "model. A model in several files is written as a folder.";
constexpr const char* about_exit =
    "Exit status: 0 done; 1 the answer is no (verify, diff, check, --strict); 2 wrong use; 3 bad input;\n"
    "4 output failed.";
constexpr const char* about_options = "Options follow the verb. -- ends them, for names that begin with a dash.";

// Text for numbers and names that an option accepts.
CLI::Validator only(const std::vector<std::string>& values) { return CLI::IsMember(values).description(""); }

CLI::Validator hadamard_block() {
  return {[](const std::string& text) -> std::string {
            std::uint32_t block = 0;
            if (!CLI::detail::lexical_cast(text, block) || !pn::is_hadamard_block(block))
              return "takes 64, 128, 256, 512 or 1024";
            return {};
          },
          "", "Hadamard block"};
}

CLI::Validator free_type_id() {
  return {[](const std::string& text) -> std::string {
            std::uint32_t id = 0;
            if (!CLI::detail::lexical_cast(text, id)) return "takes a number";
            if (pn::io::types::is_reserved_id(id)) return text + " belongs to another type";
            return {};
          },
          "", "type id"};
}

void add_files(CLI::App& app, const Verb& verb, Options& options) {
  const std::string name = verb.name;
  if (name == "verify") {
    app.add_option("PACKED", options.input, "the packed or quantized model")->required()->type_name("");
    app.add_option("ORIGINAL", options.second, "the model that it was made from")->required()->type_name("");
  } else if (name == "diff") {
    app.add_option("A", options.input, "a model")->required()->type_name("");
    app.add_option("B", options.second, "another")->required()->type_name("");
  } else {
    app.add_option(verb.writes ? "IN" : "MODEL", options.input, "file, index or folder")->required()->type_name("");
    if (verb.writes)
      app.add_option("OUT", options.second, "the file or folder to write (not needed with --dry-run)")->type_name("");
  }
}

void add_quantizing_options(CLI::App& app, bool quantizes, Options& options) {
  if (quantizes)
    app.add_option("--type", options.type, "pn3t (3.40 bits per weight) or pn4t (4.25), where it fits; this or --mix")
        ->check(only({"pn3t", "pn4t"}))
        ->type_name("TYPE");
  app.add_option("--mix", options.mix,
                 "rules, one a line; the first that matches a tensor decides:\n"
                 "GLOB [K=N[,N...]] pn3t|pn4t|q8_0|keep|donor\n"
                 "@promoted as GLOB: the names of --promote")
      ->type_name("RULES");
  app.add_option("--promote", options.promote, "names of tensors, one a line")->type_name("FILE");
  app.add_option("--donor", options.donor, "a GGUF model from which rules take tensors as they are")->type_name("FILE");
  app.add_option("--imatrix", options.imatrix, "importances of columns, from llama.cpp (GGUF or the older form)")
      ->type_name("FILE");
  if (quantizes)
    app.add_option("--search", options.search, "weighted (default with --imatrix) or reference (default without)")
        ->check(only({"reference", "weighted"}))
        ->type_name("HOW");
  app.add_option("--rotate", options.rotate,
                 quantizes ? "rotate rows by a Hadamard matrix first: 64, 128, 256, 512 or 1024"
                           : "the rotation to repeat, for files that do not record it")
      ->check(hadamard_block())
      ->type_name("B");
}

void add_own_options(CLI::App& app, const Verb& verb, Options& options) {
  const std::string name = verb.name;
  if (name == "pack" || name == "verify" || name == "scan")
    app.add_option("--as", options.as,
                   name == "pack"   ? "bf16: round F32 and F16 tensors to BF16 first, which is LOSSY"
                   : name == "scan" ? "bf16: look at F32 and F16 tensors as if they were rounded to BF16"
                                    : "bf16: F32 and F16 tensors were rounded to BF16 first")
        ->check(only({"bf16"}))
        ->type_name("TYPE");
  if (name == "pack")
    app.add_option("--type-id", options.type_id, "GGUF type id of BF16_P12 (default 126)")
        ->check(free_type_id())
        ->type_name("ID");
  if (name == "quantize" || name == "verify") add_quantizing_options(app, name == "quantize", options);
  if (name == "unpack") {
    app.add_option("--to", options.to, "type of unpacked PN tensors: f32, f16 or bf16 (default f32)")
        ->check(only({"f32", "f16", "bf16"}))
        ->type_name("TYPE");
    app.add_option("--assume-rotated", options.assume_rotated,
                   "undo this rotation of PN tensors whose file says nothing")
        ->check(hadamard_block())
        ->type_name("B");
  }
  if (name == "scan") app.add_option("--html", options.html, "also write a page for browsers")->type_name("OUT");
  if (verb.writes)
    app.add_option("--format", options.format, "gguf or safetensors (default: as IN); refused if anything is lost")
        ->check(only({"gguf", "safetensors"}))
        ->type_name("KIND");
}

void add_common_options(CLI::App& app, const Verb& verb, Options& options) {
  const bool scans = std::string(verb.name) == "scan";
  app.add_option("--threads", options.threads, "threads to use (default: one per processor)")
      ->check(CLI::Range(1u, 1024u).description(""))
      ->type_name("N");
  app.add_flag("--json", options.json, "print one JSON document instead of a table");
  app.add_flag("--quiet", options.quiet, "print nothing but errors and warnings (and the JSON document)");
  // Every verb takes these, so that scripts can; help shows them where they do something.
  const auto shown = [](bool has_effect) { return has_effect ? "Options" : ""; };
  app.add_flag("--force", options.force, "replace OUT when it exists")->group(shown(verb.writes || scans));
  app.add_flag("--dry-run", options.dry_run,
               std::string(verb.name) == "quantize" ? "only tell what would become of each tensor, and the size"
                                                    : "do everything but write OUT")
      ->group(shown(verb.writes));
  app.add_flag("--strict", options.strict,
               std::string(verb.name) == "unpack" ? "nothing to do is an answer no"
                                                  : "a tensor that had to stay, or nothing to do, is an answer no")
      ->group(shown(verb.writes || scans));
}

// Text between roff requests: backslashes, and dots and quotes that begin a line, would be taken for some.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

// An option with its argument, or the name of an argument without a dash.
std::string option_text(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_positional()) return "\\fI" + roff(option.get_name(true)) + "\\fR";
  return "\\fB" + roff(option.get_name()) + "\\fR" +
         (option.get_items_expected_max() == 0 || type.empty() ? "" : " \\fI" + roff(type) + "\\fR");
}

// "pnpack pack [OPTIONS] IN [OUT]"
std::string synopsis(const CLI::App& verb) {
  std::string text = "\\fBpnpack " + roff(verb.get_name()) + "\\fR [\\fIOPTIONS\\fR]";
  for (const CLI::Option* option : verb.get_options())
    if (option->get_positional())
      text += option->get_required() ? " " + option_text(*option) : " [" + option_text(*option) + "]";
  return text;
}

// A text of several lines, which stay lines.
std::string roff_lines(const std::string& text) {
  std::string out = roff(text);
  for (std::size_t at = 0; (at = out.find('\n', at)) != std::string::npos; at += 5) out.replace(at, 1, "\n.br\n");
  return out;
}

// The manual page, in roff.
std::string manual_page(const CLI::App& app) {
  std::string page = fmt::format(".TH PNPACK 1 \"\" \"pn {}.{}.{}\" \"User Commands\"\n.nh\n.ad l\n", PN_VERSION_MAJOR,
                                 PN_VERSION_MINOR, PN_VERSION_PATCH);
  page += ".SH NAME\npnpack \\- pack the weights of neural networks\n.SH SYNOPSIS\n";
  for (const CLI::App* verb : app.get_subcommands({})) page += synopsis(*verb) + "\n.br\n";
  page += "\\fBpnpack\\fR \\fB\\-\\-help\\fR | \\fB\\-\\-version\\fR | \\fB\\-\\-man\\fR\n";
  page +=
      ".SH DESCRIPTION\n" + roff(description) + "\n.PP\n" + roff(about_models) + "\n.PP\n" + roff(about_options) + "\n";
  page += ".SH VERBS\n";
  for (const CLI::App* verb : app.get_subcommands({})) {
    page += ".SS " + synopsis(*verb) + "\n" + roff(verb->get_description()) + "\n";
    for (const CLI::Option* option : verb->get_options()) {
      if (option->get_name() == "--help" || option->get_group().empty()) continue;
      page += ".TP\n" + option_text(*option) + "\n" + roff_lines(option->get_description()) + "\n";
    }
  }
  page += ".SH EXIT STATUS\n";
  const std::pair<int, const char*> statuses[] = {
      {0, "done"},
      {1, "the answer is no: a difference (verify, diff), an invalid block (check), or --strict"},
      {2, "the command line is wrong"},
      {3, "the input is bad"},
      {4, "the output cannot be written, or exists already (without --force)"}};
  for (const auto& [status, text] : statuses) page += fmt::format(".TP\n{}\n{}\n", status, roff(text));
  page += ".SH EXAMPLES\n.EX\n";
  for (const char* line :
       {"pnpack pack model.gguf model.p12.gguf", "pnpack verify model.p12.gguf model.gguf",
        "pnpack unpack model.p12.gguf restored.gguf", "pnpack quantize model model-pn4t --type pn4t"})
    page += roff(line) + "\n";
  return page + ".EE\n";
}

// An application that fills `options` and sets `chosen` to the verb. Both must outlive it.
std::unique_ptr<CLI::App> make_command_line(Options& options, const Verb*& chosen) {
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  auto app = std::make_unique<CLI::App>(description, "pnpack");
  app->footer(fmt::format("{}\n{}\n{}", about_models, about_exit, about_options));
  app->require_subcommand(1);
  app->get_formatter()->column_width(26);
  app->get_formatter()->label("SUBCOMMAND", "VERB");
  app->get_formatter()->label("Positionals", "Arguments");
  app->get_formatter()->label("REQUIRED", "");
  app->set_help_flag("-h,--help", "print this text");
  app->set_version_flag("--version",
                        fmt::format("pnpack {}.{}.{}", PN_VERSION_MAJOR, PN_VERSION_MINOR, PN_VERSION_PATCH),
                        "print the version");
  app->add_flag_callback(
         "--man", [page = app.get()] { throw CLI::CallForVersion(manual_page(*page), 0); },
         "print the manual page (roff: pnpack --man | man -l -)")
      ->trigger_on_parse();
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app->add_subcommand(verb.name, verb.text);
    sub->group("Verbs");
    add_files(*sub, verb, options);
    add_own_options(*sub, verb, options);
    add_common_options(*sub, verb, options);
    sub->callback([&chosen, &verb] { chosen = &verb; });
  }
  return app;
}

// CLI11 says what is missing; for the first word, say what was found instead.
std::string what_is_wrong(int argc, char** argv, const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) names.emplace_back(verb.name);
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  if (argc < 2) return "a verb is missing: " + list;
  const std::string first = argv[1];
  if (std::find(names.begin(), names.end(), first) != names.end()) return error.what();
  if (first.rfind('-', 0) == 0)
    return fmt::format("options follow the verb, but {} comes first (verbs: {})", first, list);
  return fmt::format("there is no verb {} (verbs: {})", first, list);
}

}  // namespace

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all{
      {"pack", "BF16 -> BF16_P12, lossless; each tensor is unpacked and compared first", pack, true},
      {"unpack", "BF16_P12 -> BF16: the files that were packed; PN -> F32, F16 or BF16", unpack, true},
      {"quantize", "F32, F16, BF16, BF16_P12 -> PN (pn3t, pn4t), by rules also Q8_0", quantize, true},
      {"verify", "compare every tensor of a packed model with the original", verify, false},
      {"check", "validate the structure and every packed block of a model", check, false},
      {"inspect", "list the tensors of a model", inspect, false},
      {"scan", "tell which tensors would fit BF16_P12, why not, and how full they are", scan, false},
      {"diff", "tell which tensors of two models differ, in how many weights, and where", diff, false},
  };
  return all;
}

CommandLine parse_command_line(int argc, char** argv, Options& options) {
  CommandLine asked;
  const std::unique_ptr<CLI::App> app = make_command_line(options, asked.verb);
  try {
    app->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> used = app->get_subcommands();
    asked.text = used.empty() ? app->help() : used.front()->help("pnpack");
  } catch (const CLI::CallForVersion& version) {
    asked.text = std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    asked.error = what_is_wrong(argc, argv, error);
  }
  return asked;
}

}  // namespace pnpack
