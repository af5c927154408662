// The three types in ggml-base, which knows files and single rows: the header-only core of pn.
#include "ggml-pn.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <stdexcept>
#include <string>

#include "gguf.h"

namespace {

template <class T>
void pn_to_float(const void* blocks, float* out, int64_t k) {
  if (pn::decode_row<T>(static_cast<const pn::Block34*>(blocks), static_cast<std::size_t>(k), out) != pn::Status::ok)
    GGML_ABORT("a row of %lld weights is no whole number of blocks", static_cast<long long>(k));
}

// The bytes of the rows of a tensor are whole blocks (the engine sees to that), and a block is valid by itself.
template <class Block, class Validate>
bool all_valid(const void* data, size_t bytes, const Validate& validate) {
  const auto* blocks = static_cast<const Block*>(data);
  for (std::size_t i = 0; i < bytes / sizeof(Block); ++i) {
    const pn::Status status = validate(blocks[i]);
    if (status != pn::Status::ok) {
      std::fprintf(stderr, "ggml_pn_validate: block %zu: %s\n", i, pn::status_text(status));
      return false;
    }
  }
  return true;
}

// Where the rotation of a weight is kept: weights are no results of an operation, so ggml leaves their op_params alone.
constexpr int rotation_slot = GGML_MAX_OP_PARAMS / sizeof(int32_t) - 1;

bool is_excluded(const gguf_context* file, const char* name) {
  const int64_t key = gguf_find_key(file, "pn.hadamard.exclude");
  if (key < 0 || gguf_get_kv_type(file, key) != GGUF_TYPE_ARRAY || gguf_get_arr_type(file, key) != GGUF_TYPE_STRING)
    throw std::runtime_error("pn.hadamard.block_size without pn.hadamard.exclude, a list of tensors");
  for (size_t i = 0; i < gguf_get_arr_n(file, key); ++i) {
    if (std::strcmp(gguf_get_arr_str(file, key, i), name) == 0) return true;
  }
  return false;
}

}  // namespace

void ggml_pn3t_to_float(const void* blocks, float* out, int64_t k) { pn_to_float<pn::pn3t>(blocks, out, k); }
void ggml_pn4t_to_float(const void* blocks, float* out, int64_t k) { pn_to_float<pn::pn4t>(blocks, out, k); }

void ggml_p12_to_float(const void* blocks, float* out, int64_t k) {
  GGML_ASSERT(k % static_cast<int64_t>(p12::block_size) == 0);
  for (int64_t i = 0; i < k / static_cast<int64_t>(p12::block_size); ++i) {
    std::uint16_t weights[p12::block_size];
    p12::unpack_block(static_cast<const p12::Block392*>(blocks)[i], weights);
    for (const std::uint16_t weight : weights) *out++ = pn::bf16_to_float(weight);
  }
}

bool ggml_pn_validate(ggml_type type, const void* data, size_t bytes) {
  switch (type) {
    case GGML_TYPE_PN3T: return all_valid<pn::Block34>(data, bytes, pn::validate_block<pn::pn3t>);
    case GGML_TYPE_PN4T: return all_valid<pn::Block34>(data, bytes, pn::validate_block<pn::pn4t>);
    default: return all_valid<p12::Block392>(data, bytes, p12::validate_block);
  }
}

bool ggml_pn_is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::strcmp(value, "") != 0 && std::strcmp(value, "0") != 0;
}

int ggml_pn_rotation(const ggml_tensor* weight) {
  return (weight->view_src != nullptr ? weight->view_src : weight)->op_params[rotation_slot];
}

void ggml_pn_bind(ggml_tensor* weight, const gguf_context* file) {
  if (weight->type != GGML_TYPE_PN3T && weight->type != GGML_TYPE_PN4T) return;
  const int64_t key = gguf_find_key(file, "pn.hadamard.block_size");
  if (key < 0) return;
  const std::string refused = std::string(weight->name) + ": pn.hadamard.block_size ";
  if (gguf_get_kv_type(file, key) != GGUF_TYPE_UINT32) throw std::runtime_error(refused + "is no 32-bit number");
  const uint32_t block = gguf_get_val_u32(file, key);
  if (block == 0 || is_excluded(file, weight->name)) return;
  if (!pn::is_hadamard_block(block) || weight->ne[0] % block != 0)
    throw std::runtime_error(refused + std::to_string(block) + " does not fit rows of " +
                             std::to_string(weight->ne[0]));
  // Each file of a split model has a list of its own, and the engine hands over the first file's only.
  const int64_t split = gguf_find_key(file, "split.count");
  if (split >= 0 && gguf_get_val_u16(file, split) > 1)
    throw std::runtime_error(refused + "in a model of several files is not supported");
  if (weight->ne[2] > 1) throw std::runtime_error(refused + "and experts together are not supported");
  weight->op_params[rotation_slot] = static_cast<int32_t>(block);
}
