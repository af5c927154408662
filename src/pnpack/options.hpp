// What the user asked for.
#pragma once

#include <cstdint>
#include <string>

namespace pnpack {

struct Options {
  std::string verb;
  std::string input;
  std::string second;  // OUT, or ORIGINAL for verify; may be empty with --dry-run

  bool json = false;
  bool quiet = false;
  bool force = false;
  bool dry_run = false;
  bool strict = false;
  unsigned threads = 1;

  std::string type;             // quantize: pn3t or pn4t
  std::string to = "f32";       // unpack: f32, f16 or bf16 for PN tensors
  std::uint32_t type_id = 126;  // pack: the id of BF16_P12
};

}  // namespace pnpack
