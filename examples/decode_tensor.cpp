// A loader that knows the three types of blocks: bytes of a tensor, as a file has them, to fp32 rows. Headers only, no
// allocation, no exceptions; copy what you need.
//
//   g++ -std=c++17 -O2 -Iinclude examples/decode_tensor.cpp -o build/decode_tensor && build/decode_tensor
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <p12/p12.hpp>
#include <pn/pn.hpp>

namespace {

// Type ids in GGUF files. That of BF16_P12 is what the file's key p12.type_id says; this is the usual one.
enum : std::uint32_t { type_pn3t = 124, type_pn4t = 125, type_p12 = p12::default_ggml_type };

// Bytes of a row of k weights; 0 when the type is another or k does not fit it.
std::size_t row_bytes(std::uint32_t type, std::size_t k) {
  switch (type) {
    case type_pn3t: return k % pn::pn3t::block_size == 0 ? pn::row_bytes<pn::pn3t>(k) : 0;
    case type_pn4t: return k % pn::pn4t::block_size == 0 ? pn::row_bytes<pn::pn4t>(k) : 0;
    case type_p12: return k % p12::block_size == 0 ? p12::row_bytes(k) : 0;
    default: return 0;
  }
}

template <class T>
pn::Status decode_pn(const std::uint8_t* bytes, std::size_t k, float* out) {
  for (std::size_t b = 0; b < pn::block_count<T>(k); ++b) {
    pn::Block34 block;  // bytes of a file may lie anywhere
    std::memcpy(&block, bytes + b * sizeof block, sizeof block);
    if (const pn::Status status = pn::validate_block<T>(block); status != pn::Status::ok) return status;
    pn::decode_block<T>(block, out + b * T::block_size);
  }
  return pn::Status::ok;
}

pn::Status decode_p12(const std::uint8_t* bytes, std::size_t k, float* out) {
  for (std::size_t b = 0; b < p12::block_count(k); ++b) {
    p12::Block392 block;
    std::memcpy(&block, bytes + b * sizeof block, sizeof block);
    if (const pn::Status status = p12::validate_block(block); status != pn::Status::ok) return status;
    std::uint16_t weights[p12::block_size];
    p12::unpack_block(block, weights);
    for (std::size_t i = 0; i < p12::block_size; ++i) out[b * p12::block_size + i] = pn::bf16_to_float(weights[i]);
  }
  return pn::Status::ok;
}

// One row: k weights from row_bytes(type, k) bytes, each block validated first.
pn::Status decode_row(std::uint32_t type, const std::uint8_t* bytes, std::size_t k, float* out) {
  if (row_bytes(type, k) == 0) return pn::Status::bad_length;
  switch (type) {
    case type_pn3t: return decode_pn<pn::pn3t>(bytes, k, out);
    case type_pn4t: return decode_pn<pn::pn4t>(bytes, k, out);
    default: return decode_p12(bytes, k, out);
  }
}

}  // namespace

int main() {
  // "Files" of one row each: weights that all three types hold exactly.
  constexpr std::size_t k = 1280;
  static float weights[k], decoded[k];
  static std::uint16_t bf16[k];
  static std::uint8_t file[k * 2 + 1];
  for (std::size_t i = 0; i < k; ++i) {
    const int n = static_cast<int>(i * 7 % 8) - 4;  // no zeros: BF16_P12 would have to list them
    weights[i] = static_cast<float>(n == 0 ? 3 : n) / 8;
    bf16[i] = pn::float_to_bf16(weights[i]);
  }
  constexpr std::uint32_t types[] = {type_pn3t, type_pn4t, type_p12};
  for (const std::uint32_t type : types) {
    static pn::Block34 pn_blocks[k / 64];
    static p12::Block392 p12_blocks[k / 256];
    pn::Status status = pn::Status::ok;
    const void* blocks = pn_blocks;
    if (type == type_pn3t) {
      status = pn::quantize_row<pn::pn3t>(weights, k, pn_blocks);
    } else if (type == type_pn4t) {
      status = pn::quantize_row<pn::pn4t>(weights, k, pn_blocks);
    } else {
      status = p12::pack_row(bf16, k, p12_blocks);
      blocks = p12_blocks;
    }
    if (status != pn::Status::ok) return 1;
    std::uint8_t* const bytes = file + 1;  // an odd address
    std::memcpy(bytes, blocks, row_bytes(type, k));
    if (decode_row(type, bytes, k, decoded) != pn::Status::ok) return 2;
    std::size_t same = 0;
    for (std::size_t i = 0; i < k; ++i) same += weights[i] == decoded[i];
    std::printf("type %u: %zu bytes, %zu of %zu weights as they were\n", type, row_bytes(type, k), same, k);
    if (type == type_p12 && same != k) return 3;

    bytes[1] = 0xFF;  // an fp16 scale that is no number; more listed weights than there may be
    status = decode_row(type, bytes, k, decoded);
    std::printf("          damaged: %s\n", pn::status_text(status));
    if (status == pn::Status::ok) return 4;
  }
  return 0;
}
