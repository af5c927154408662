// GGUF files to order: mostly sound ones with everything that the format allows, seldom with a fault.
#pragma once

#include <array>
#include <optional>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace fuzz {

template <class T>
void put(Text& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}
inline void put(Text& out, const std::string& text) {
  put<std::uint64_t>(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

struct BuiltTensor {
  std::string name;
  std::vector<std::uint64_t> dimensions;  // K first, as in the file
  std::uint32_t type = 30;
  Text data;
  std::optional<std::uint64_t> offset;  // instead of the next multiple of the alignment
  std::uint64_t gap = 0;                // bytes before it, beyond padding
};

struct BuiltFile {
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the data; the key is one of `keys`
  std::vector<Text> keys;        // entries as they are in the file
  std::vector<BuiltTensor> tensors;
  bool reversed = false;  // data in the opposite order of the descriptions
  bool padded = true;     // up to the alignment, after the last tensor
  std::uint8_t padding = 0;
  std::uint8_t last_padding = 0;  // after the last tensor
  Text tail;

  Text bytes() const {
    std::vector<std::uint64_t> offsets(tensors.size());
    Text data;
    const auto pad_with = [&](std::uint8_t byte) {
      data.resize((data.size() + alignment - 1) / alignment * alignment, byte);
    };
    const auto pad = [&] { pad_with(padding); };
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t t = reversed ? tensors.size() - 1 - i : i;
      pad();
      data.resize(data.size() + tensors[t].gap, padding);
      pad();
      offsets[t] = data.size();
      data.insert(data.end(), tensors[t].data.begin(), tensors[t].data.end());
    }
    if (padded) pad_with(last_padding);

    Text out;
    put<std::uint32_t>(out, 0x46554747u);
    put<std::uint32_t>(out, version);
    put<std::uint64_t>(out, tensors.size());
    put<std::uint64_t>(out, keys.size());
    for (const Text& key : keys) out.insert(out.end(), key.begin(), key.end());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      put(out, tensors[t].name);
      put<std::uint32_t>(out, static_cast<std::uint32_t>(tensors[t].dimensions.size()));
      for (const std::uint64_t n : tensors[t].dimensions) put(out, n);
      put(out, tensors[t].type);
      put(out, tensors[t].offset.value_or(offsets[t]));
    }
    if (!data.empty() || padded) out.resize((out.size() + alignment - 1) / alignment * alignment, padding);
    out.insert(out.end(), data.begin(), data.end());
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
  }
};

// ---- Keys

inline Text key_u32(const std::string& name, std::uint32_t value) {
  Text out;
  put(out, name);
  put<std::uint32_t>(out, 4);
  put(out, value);
  return out;
}
inline Text key_string(const std::string& name, const std::string& value) {
  Text out;
  put(out, name);
  put<std::uint32_t>(out, 8);
  put(out, value);
  return out;
}
inline Text key_strings(const std::string& name, const std::vector<std::string>& values) {
  Text out;
  put(out, name);
  put<std::uint32_t>(out, 9);
  put<std::uint32_t>(out, 8);
  put<std::uint64_t>(out, values.size());
  for (const std::string& value : values) put(out, value);
  return out;
}

inline std::string any_text(Bytes& plan, std::uint32_t longest) {
  std::string text(plan.below(longest + 1), '\0');
  plan.copy(text.data(), text.size());
  return text;
}

// Bytes of a value of any type; 13 does not exist.
inline void put_any_value(Text& out, Bytes& plan, std::uint32_t type, int depth) {
  static constexpr std::array<std::size_t, 14> sizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8, 0};
  if (type == 8) {
    put(out, any_text(plan, 24));
  } else if (type == 9) {
    const std::uint32_t element = depth < 18 && plan.one_in(3) ? 9 : plan.below(14);
    const std::uint64_t count = plan.below(4);
    put(out, element);
    put(out, count);
    for (std::uint64_t i = 0; i < count && out.size() < 4096; ++i) put_any_value(out, plan, element, depth + 1);
  } else {
    for (std::size_t i = 0; i < sizes[type % sizes.size()]; ++i) out.push_back(plan.byte());
  }
}

inline Text any_key(Bytes& plan) {
  static constexpr std::array<const char*, 10> names{"general.name",
                                                     "general.architecture",
                                                     "tokenizer.ggml.tokens",
                                                     "general.file_type",
                                                     "x",
                                                     "",
                                                     "p12.note",
                                                     "pn.hadamard.exclude",
                                                     "pn.note",
                                                     "split.count"};
  const std::uint32_t choice = plan.below(16);
  Text out;
  put(out, choice < 6       ? "key." + any_text(plan, 12)
           : plan.one_in(2) ? std::string(names[choice - 6])
                            : std::string(names[choice % 5]));
  const std::uint32_t type = plan.below(32);
  const std::uint32_t small = type < 13 ? type : type == 31 ? 13u : type % 3 == 0 ? 9u : 8u;
  put(out, small);
  if (small == 8 && plan.one_in(8)) {  // longer than a reader would take at once
    put(out, std::string(2u * plan.integer<std::uint16_t>(), static_cast<char>(plan.byte())));
  } else if (small == 9 && plan.one_in(16)) {  // strings across the places where a reader reads on
    const std::uint64_t count = plan.integer<std::uint16_t>() % 20000;
    const std::size_t length = plan.below(3);
    put<std::uint32_t>(out, 8);
    put(out, count);
    for (std::uint64_t i = 0; i < count; ++i) put(out, std::string(length, 'a'));
  } else {
    put_any_value(out, plan, small, 1);
  }
  return out;
}

// ---- Data

// bf16 weights near one exponent; `wild` of them, per 256, from anywhere.
inline std::vector<std::uint16_t> model_like(Bytes& plan, std::size_t count, std::uint32_t wild) {
  std::uint32_t state = plan.integer<std::uint16_t>() * 2654435761u + 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 8; };
  std::vector<std::uint16_t> weights(count);
  for (std::uint16_t& weight : weights)
    weight = static_cast<std::uint16_t>((next() & 0x807Fu) | (0x70u + next() % 16) << 7);
  if (count != 0)
    for (std::size_t i = 0; i < wild * (count + 255) / 256; ++i)
      weights[next() % count] = static_cast<std::uint16_t>(next() & 0x7FFFu);
  return weights;
}

template <class T>
void append(Text& out, const std::vector<T>& values) {
  const std::size_t start = out.size();
  out.resize(start + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.data() + start, values.data(), values.size() * sizeof(T));
}

template <class T>
Text pn_data(Bytes& plan, std::size_t blocks) {
  const auto bits = model_like(plan, blocks * T::block_size, 0);
  std::vector<float> weights;
  for (const std::uint16_t b : bits) weights.push_back(pn::bf16_to_float(b));
  std::vector<pn::Block34> row(blocks);
  // Any valid blocks will do: scale and codes out of the weights' bits.
  for (std::size_t b = 0; b < blocks; ++b) {
    std::array<std::uint8_t, T::block_size> codes{};
    for (std::size_t e = 0; e < T::block_size; ++e)
      codes[e] = static_cast<std::uint8_t>(bits[b * T::block_size + e] & T::max_code);
    const auto scale = static_cast<std::uint16_t>((bits[b * T::block_size] & 0x83FFu) | 0x2400u);
    pn::store_block<T>(scale, codes.data(), row[b]);
  }
  Text out;
  append(out, row);
  return out;
}

// Data of `elements` elements (whole blocks); unknown types get as many bytes as they have elements.
inline Text any_data(Bytes& plan, std::uint32_t type, std::uint64_t elements, bool is_p12) {
  struct Known {
    std::uint32_t id, block, bytes;
  };
  static constexpr std::array<Known, 14> known{{{0, 1, 4},
                                                {1, 1, 2},
                                                {2, 32, 18},
                                                {8, 32, 34},
                                                {10, 256, 84},
                                                {12, 256, 144},
                                                {14, 256, 210},
                                                {24, 1, 1},
                                                {25, 1, 2},
                                                {27, 1, 8},
                                                {30, 1, 2},
                                                {39, 32, 17},
                                                {124, 80, 34},
                                                {125, 64, 34}}};
  Known of{type, 1, 1};
  for (const Known& k : known)
    if (k.id == type) of = k;
  if (is_p12) of = {type, 256, 392};
  const std::size_t count = static_cast<std::size_t>(elements);
  const std::size_t bytes = count / of.block * of.bytes;
  const std::uint32_t kind = plan.below(8);
  Text out;
  if (kind == 7) {  // the plan's own bytes, over and over
    std::array<std::uint8_t, 16> pattern{};
    plan.copy(pattern.data(), pattern.size());
    for (std::size_t i = 0; i < bytes; ++i) out.push_back(pattern[i % pattern.size()]);
  } else if (is_p12) {
    std::vector<p12::Block392> blocks(count / 256);
    const auto weights = model_like(plan, count, kind % 4);
    for (std::size_t b = 0; b < blocks.size(); ++b)
      if (p12::pack_block(weights.data() + 256 * b, blocks[b]) != pn::Status::ok)
        blocks[b] = p12::Block392{240, 0, {}, {}, {}, {}};
    append(out, blocks);
  } else if (type == 30) {
    append(out, model_like(plan, count, kind));
  } else if (type == 1) {
    auto halves = model_like(plan, count, 0);
    if (kind != 6)
      for (auto& half : halves) half = static_cast<std::uint16_t>(half & 0xBFFFu);
    append(out, halves);
  } else if (type == 0) {
    std::vector<float> floats;
    for (const std::uint16_t weight : model_like(plan, count, kind == 6 ? 1 : 0))
      floats.push_back(pn::bf16_to_float(weight));
    append(out, floats);
  } else if (type == 124) {
    out = pn_data<pn::pn3t>(plan, count / 80);
  } else if (type == 125) {
    out = pn_data<pn::pn4t>(plan, count / 64);
  } else {
    out.assign(bytes, kind % 2 == 0 ? std::uint8_t{0} : plan.byte());
  }
  return out;
}

// ---- A whole file

inline BuiltTensor any_tensor(Bytes& plan, std::size_t index, std::optional<std::uint32_t> p12_id) {
  static constexpr std::array<std::uint32_t, 32> types{30, 30,  30,  30,  30,  30,  30, 30,  0,   0,          1,
                                                       1,  124, 124, 125, 125, 8,   12, 14,  2,   10,         24,
                                                       25, 27,  42,  36,  126, 200, 39, 126, 200, 0xFFFFFFFFu};
  static constexpr std::array<std::uint32_t, 16> lengths{256, 512, 1280, 320, 640, 80,  64, 160,
                                                         128, 256, 256,  1,   7,   288, 32, 0};
  BuiltTensor tensor;
  const std::uint32_t name = plan.byte();
  tensor.name = name % 8 == 1   ? any_text(plan, 80)
                : name % 8 != 2 ? "blk." + std::to_string(index) + ".weight"
                : index == 0    ? "token_embd.weight"  // which is never rotated
                                : "model." + std::to_string(index) + ".embed_tokens.weight";
  if (plan.byte() == 255) tensor.name.resize(plan.integer<std::uint16_t>(), 'x');
  const std::uint32_t shape = plan.byte();
  tensor.type = types[plan.below(32)];
  if (p12_id && plan.below(4) == 3) tensor.type = *p12_id;
  const bool is_p12 = p12_id == tensor.type;
  const std::uint32_t dimensions = shape % 8 < 4 ? 2 : shape % 8 == 4 ? 3 : shape % 8 == 5 ? 4 : shape % 8 - 6;  // 0, 1
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const std::uint64_t length = i == 0 ? lengths[shape / 8 % 16] : shape >= 248 ? plan.below(3) : 1 + plan.below(3);
    tensor.dimensions.push_back(length);
    elements *= length;
  }
  const std::uint32_t block = is_p12 || tensor.type == 10 || tensor.type == 12 || tensor.type == 14 ? 256
                              : tensor.type == 124                                                  ? 80
                              : tensor.type == 125                                                  ? 64
                              : tensor.type == 8 || tensor.type == 2 || tensor.type == 39           ? 32
                                                                                                    : 1;
  // Rows of whole blocks, but for now and then.
  if (!tensor.dimensions.empty() && tensor.dimensions[0] % block != 0 && !plan.one_in(16)) {
    elements = elements / tensor.dimensions[0] * block;
    tensor.dimensions[0] = block;
  } else if (tensor.dimensions.empty() && block != 1) {
    tensor.type = 0;
  }
  tensor.data = any_data(plan, tensor.type, elements, p12_id == tensor.type);
  switch (plan.below(64)) {
    case 63: tensor.offset = plan.integer<std::uint64_t>(); break;
    case 62: tensor.offset = plan.integer<std::uint16_t>() / 8 * 32u; break;
    case 61: tensor.dimensions.assign(1 + plan.below(6), plan.integer<std::uint64_t>()); break;
    case 56: tensor.dimensions.resize(tensor.dimensions.size() + plan.below(5), 1); break;
    case 60: tensor.data.clear(); break;
    case 59: tensor.gap = plan.byte(); break;
    case 58: tensor.type = plan.integer<std::uint32_t>(); break;
    case 57:  // enough for several threads; one such tensor in a file
      if (index != 0 || !plan.one_in(8)) break;
      tensor.type = 30;
      tensor.dimensions = {256, 2304};
      tensor.data.clear();
      append(tensor.data, model_like(plan, 256 * 2304, 0));
      if (plan.one_in(2))  // the last block does not fit
        for (std::size_t b = 1; b < 512; b += 2) tensor.data[tensor.data.size() - b] = static_cast<std::uint8_t>(b);
      break;
    default: break;
  }
  return tensor;
}

// Bytes of a file by a plan. Byte by byte the plan decides less and less important things, so that cutting it short
// gives smaller files.
inline Text any_file(Bytes& plan) {
  BuiltFile file;
  const std::uint32_t style = plan.byte();
  file.version = style % 4 == 1 ? 2 : 3;
  if (style == 255) file.version = plan.integer<std::uint32_t>();
  const std::uint32_t more = plan.byte();
  std::optional<std::uint32_t> p12_id;
  if (more & 1) p12_id = more & 2 ? 200 : 126;
  const std::uint32_t layout = plan.byte();
  file.reversed = layout % 16 == 15;
  file.padded = layout / 16 % 4 != 1;

  const std::uint32_t alignment = plan.below(32);
  static constexpr std::array<std::uint32_t, 16> alignments{32,   8,  16,    32, 64, 128, 256,    8,
                                                            4096, 32, 65536, 0,  3,  4,   131072, 48};
  if (alignment >= 16) {
    file.keys.push_back(key_u32("general.alignment", alignments[alignment - 16]));
    if (alignment - 16 < 11) file.alignment = alignments[alignment - 16];
  }
  const std::uint32_t tensors = plan.below(7);
  for (std::uint32_t i = 0; i < tensors; ++i) file.tensors.push_back(any_tensor(plan, i, p12_id));
  const std::uint32_t keys = plan.below(6);
  for (std::uint32_t i = 0; i < keys; ++i) file.keys.push_back(any_key(plan));
  if (p12_id) {
    file.keys.push_back(key_u32("p12.version", more & 4 && plan.one_in(8) ? plan.byte() : 1));
    file.keys.push_back(key_u32("p12.type_id", more & 4 && plan.one_in(8) ? plan.byte() : *p12_id));
  }
  if ((more & 0x18u) == 0x18u) {
    file.keys.push_back(key_u32("pn.version", plan.one_in(8) ? plan.byte() : 0));
    if (more & 0x20u) file.keys.push_back(key_string("pn.search", plan.one_in(4) ? "weighted" : "reference"));
    static constexpr std::array<std::uint32_t, 8> rotations{0, 0, 64, 64, 128, 256, 1024, 32};
    if (more & 0x40u) file.keys.push_back(key_u32("pn.hadamard.block_size", rotations[plan.below(8)]));
    if (plan.one_in(4)) file.keys.push_back(key_strings("pn.hadamard.exclude", {"blk.0.weight", "blk.2.weight"}));
  }
  if (p12_id && plan.one_in(8)) file.keys.push_back(key_string("p12.rounded_from", plan.one_in(4) ? "F8" : "F32"));
  if ((more & 0x80u) && file.keys.size() > 1) std::swap(file.keys.front(), file.keys.back());
  if (layout >= 64 && layout < 80) {
    file.tail.resize(plan.below(64));
    plan.copy(file.tail.data(), file.tail.size());
  }
  if (layout >= 80 && layout < 88) file.padding = plan.byte();
  if (layout >= 80 && layout < 96) file.last_padding = plan.byte();

  Text bytes = file.bytes();
  if (layout >= 96 && layout < 112)
    bytes.resize(bytes.size() - std::min<std::size_t>(bytes.size(), plan.integer<std::uint16_t>() % 1024));
  // What is left of the plan changes single bytes, most of them in the header.
  for (int i = 0; i < 8 && plan.left() >= 3 && !bytes.empty(); ++i) {
    const std::uint16_t place = plan.integer<std::uint16_t>();
    bytes[place % std::min<std::size_t>(bytes.size(), 65536)] ^= plan.byte();
  }
  return bytes;
}

}  // namespace fuzz
