#include "layout.hpp"

#include <p12/block392.hpp>
#include <pn/version.hpp>
#include <utility>

#include "error.hpp"

namespace pn::io {

const char* kind_name(FileKind kind) { return kind == FileKind::gguf ? "GGUF" : "safetensors"; }

void PackRecord::exclude(std::string tensor) {
  excluded_.insert(tensor);
  hadamard_exclude.push_back(std::move(tensor));
}

std::uint32_t PackRecord::rotation_of(const std::string& tensor) const {
  return excluded_.count(tensor) != 0 ? 0 : hadamard_block;
}

Keys p12_keys(const PackRecord& record) {
  Keys keys;
  if (!record.p12) return keys;
  keys.emplace_back("p12.version", std::uint32_t{p12::format_version});
  if (record.p12_type_id) keys.emplace_back("p12.type_id", *record.p12_type_id);
  if (!record.rounded_from.empty()) keys.emplace_back("p12.rounded_from", record.rounded_from);
  return keys;
}

Keys pn_keys(const PackRecord& record) {
  Keys keys;
  if (!record.pn) return keys;
  keys.emplace_back("pn.version", std::uint32_t{pn::format_version});
  keys.emplace_back("pn.search", std::string(record.weighted_search ? "weighted" : "reference"));
  if (record.hadamard_block != 0) {
    keys.emplace_back("pn.hadamard.block_size", record.hadamard_block);
    keys.emplace_back("pn.hadamard.exclude", record.hadamard_exclude);
  }
  return keys;
}

bool is_p12_key(const std::string& name) { return name.rfind("p12.", 0) == 0; }
bool is_pn_key(const std::string& name) { return name.rfind("pn.", 0) == 0; }
bool is_own_key(const std::string& name) { return is_p12_key(name) || is_pn_key(name); }

void require_rotation_fits(const InputFile& file, const Layout& layout) {
  const std::uint32_t block = layout.record.hadamard_block;
  if (block == 0) return;
  const auto fail = [&](const std::string& message) {
    throw Error(Fault::input, file.path(), message).about("key pn.hadamard.block_size");
  };
  if (block < 64 || block > 1024 || (block & (block - 1)) != 0)
    fail("a rotation of " + std::to_string(block) + " is not supported: it is 64, 128, 256, 512 or 1024");
  for (const Tensor& tensor : layout.tensors)
    if (types::is_pn(tensor.type) && tensor.elements != 0 && tensor.row_length() % block != 0 &&
        layout.record.rotation_of(tensor.name) != 0)
      fail("the rotation of " + std::to_string(block) + " does not divide the rows of tensor " + tensor.name);
}

}  // namespace pn::io
