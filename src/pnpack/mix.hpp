// Which tensor of a model becomes what: the rules of `pnpack quantize --mix RULES`.
//
// A text file of rules, one a line; the first rule that matches a tensor decides:
//
//   GLOB [K=N[,N...]] TYPE       # a comment
//
// GLOB stands for whole tensor names: `*` is any run of characters, dots too, `?` is one character, and all else is
// itself. `@promoted` in its place stands for the names in the file of `--promote`, one a line. With K=, only tensors
// whose rows have one of these lengths match. TYPE is pn3t, pn4t, q8_0, keep (as it is) or donor (taken from another
// file). Words are separated by spaces or tabs; `#` begins a comment, wherever it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "io/input_file.hpp"

namespace pnpack {

enum class Treatment { pn3t, pn4t, q8_0, keep, donor };

// As rules name it: "pn3t".
const char* to_text(Treatment treatment);

struct Rule {
  std::string text;                    // as it was written, without spaces around it and without a comment
  std::size_t line = 0;                // in the file, from 1; 0 for the rule of Mix::of_type
  std::string glob;                    // empty when promoted
  bool promoted = false;               // matches the promoted names instead of a glob
  std::vector<std::uint64_t> lengths;  // of rows that match, ascending; empty: all
  Treatment treatment = Treatment::keep;
};

// A line of the file of `--promote`.
struct PromotedName {
  std::string name;
  std::size_t line = 0;  // from 1
};

class Mix {
 public:
  // Reads rules, and the names for `@promoted` unless `promoted` is null. Throws Error about a line, at the offset of
  // the word that is wrong: Fault::input, but Fault::usage when a rule needs promoted names and there are none.
  static Mix read(const pn::io::InputFile& rules, const pn::io::InputFile* promoted);
  // One rule for all tensors.
  static Mix of_type(Treatment treatment);

  // In the order of the file. There is at least one.
  const std::vector<Rule>& rules() const noexcept { return rules_; }
  // The rule for a tensor whose rows have `k` weights, or null. Its index is `rule - rules().data()`.
  const Rule* match(const std::string& name, std::uint64_t k) const;

  // In the order of the file, each name once.
  const std::vector<PromotedName>& promoted() const noexcept { return promoted_; }
  // False when no rule asks for promoted names, so that a list of them would change nothing.
  bool uses_promoted() const noexcept;

 private:
  std::vector<Rule> rules_;
  std::vector<PromotedName> promoted_;
  std::unordered_set<std::string> promoted_names_;
};

// True when `glob` stands for all of `name`. A character is a UTF-8 sequence, or a byte that is part of none. Takes no
// more steps than the product of both lengths.
bool glob_matches(const std::string& glob, const std::string& name);

}  // namespace pnpack
