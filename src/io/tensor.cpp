#include "tensor.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <p12/block392.hpp>
#include <pn/block34.hpp>

namespace pn::io::types {
namespace {

struct Row {
  std::uint32_t id;
  const char* name;
  std::uint32_t block;
  std::uint32_t bytes;
};

// ggml's types: id, weights per block, bytes per block (facts of ggml.h and ggml-common.h, checked against the
// `gguf` Python package 0.19).
constexpr std::array<Row, 34> ggml_types{{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
}};

struct DtypeRow {
  const char* name;
  std::uint32_t bytes;
};

// safetensors' dtypes of whole bytes that GGUF does not have.
constexpr std::array<DtypeRow, 9> other_dtypes{{
    {"BOOL", 1},
    {"U8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"U16", 2},
    {"U32", 4},
    {"U64", 8},
    {"C64", 8},
}};
// Those that both kinds of file have, under the same names.
constexpr std::array<const char*, 8> common_dtypes{{"F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64"}};

constexpr const char* unknown_prefix = "unknown(";

constexpr std::uint32_t last_reserved_id = 41;  // see is_reserved_id: never changes

TensorType make(const Row& row) { return {row.id, row.name, row.block, row.bytes}; }

template <class T>
TensorType make_pn() {
  return {T::ggml_type, T::name, static_cast<std::uint32_t>(T::block_size), sizeof(Block34)};
}

}  // namespace

const TensorType& f32() {
  static const TensorType type = from_ggml_id(0);
  return type;
}
const TensorType& f16() {
  static const TensorType type = from_ggml_id(1);
  return type;
}
const TensorType& bf16() {
  static const TensorType type = from_ggml_id(30);
  return type;
}
const TensorType& q8_0() {
  static const TensorType type = from_ggml_id(8);
  return type;
}
const TensorType& pn3t() {
  static const TensorType type = make_pn<pn::pn3t>();
  return type;
}
const TensorType& pn4t() {
  static const TensorType type = make_pn<pn::pn4t>();
  return type;
}
TensorType p12(std::optional<std::uint32_t> id) {
  return {id, "BF16_P12", static_cast<std::uint32_t>(::p12::block_size), sizeof(::p12::Block392)};
}

TensorType from_ggml_id(std::uint32_t id) {
  const auto row = std::find_if(ggml_types.begin(), ggml_types.end(), [&](const Row& r) { return r.id == id; });
  if (row != ggml_types.end()) return make(*row);
  if (id == pn3t().id) return pn3t();
  if (id == pn4t().id) return pn4t();
  return {id, "unknown(" + std::to_string(id) + ")", 1, 0};
}

bool is_reserved_id(std::uint32_t id) { return id <= last_reserved_id || id == pn3t().id || id == pn4t().id; }

TensorType from_dtype(const std::string& dtype) {
  if (std::find(common_dtypes.begin(), common_dtypes.end(), dtype) != common_dtypes.end()) {
    const auto row = std::find_if(ggml_types.begin(), ggml_types.end(), [&](const Row& r) { return dtype == r.name; });
    return make(*row);
  }
  const auto row =
      std::find_if(other_dtypes.begin(), other_dtypes.end(), [&](const DtypeRow& r) { return dtype == r.name; });
  if (row != other_dtypes.end()) return {{}, row->name, 1, row->bytes};
  return {{}, unknown_prefix + dtype + ")", 1, 0};
}

std::string dtype_of(const TensorType& type) {
  if (is_packed(type)) return "U8";
  const auto has = [&](const auto& names, auto name) {
    return std::find_if(names.begin(), names.end(), name) != names.end();
  };
  if (has(common_dtypes, [&](const char* n) { return type.name == n; }) ||
      has(other_dtypes, [&](const DtypeRow& r) { return type.name == r.name; }))
    return type.name;
  const std::size_t prefix = std::char_traits<char>::length(unknown_prefix);
  if (!type.id && type.name.rfind(unknown_prefix, 0) == 0)
    return type.name.substr(prefix, type.name.size() - prefix - 1);
  return {};
}

}  // namespace pn::io::types

namespace pn::io {

std::optional<std::uint64_t> element_count(const std::vector<std::uint64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) {
    if (count > std::numeric_limits<std::uint64_t>::max() / n) return {};
    count *= n;
  }
  return count;
}

}  // namespace pn::io
