// What the user asked for.
#pragma once

#include <cstdint>
#include <string>

namespace pnpack {

struct Options {
  std::string verb;
  std::string input;
  std::string second;  // OUT, ORIGINAL for verify, B for diff; may be empty with --dry-run

  bool json = false;
  bool quiet = false;
  bool force = false;
  bool dry_run = false;
  bool strict = false;
  unsigned threads = 1;

  std::string format;                // of the output: gguf or safetensors; empty: the input's
  std::string as;                    // pack, verify, scan: bf16 (round first) or empty
  std::string type;                  // quantize: pn3t or pn4t
  std::string mix;                   // quantize, verify: a file of rules instead of a type, and
  std::string promote;               // the names that @promoted stands for
  std::string donor;                 // quantize, verify: a GGUF file from which tensors are copied
  std::string imatrix;               // quantize, verify: importances
  std::string search;                // quantize: reference or weighted; empty: weighted where there are importances
  std::uint32_t rotate = 0;          // quantize, verify: Hadamard block; 0: none
  std::uint32_t assume_rotated = 0;  // unpack, verify: the same for files that do not say it
  std::string to = "f32";            // unpack: f32, f16 or bf16 for PN tensors
  std::uint32_t type_id = 126;       // pack: the id of BF16_P12 in GGUF files
  std::string html;                  // scan: the page to write
};

}  // namespace pnpack
