// What the target safetensors starts from, by name; see fuzz_safetensors.cpp for the first byte.
#pragma once

#include <string>

#include "safetensors_builder.hpp"
#include "seeds_mix_imatrix.hpp"

namespace fuzz {

inline Seeds safetensors_seeds() {
  Seeds seeds;
  const auto raw = [&](const std::string& name, const std::string& header, std::size_t data) {
    for (const std::uint8_t first : {std::uint8_t{0}, std::uint8_t{41}, std::uint8_t{82}}) {  // other choices
      Text bytes = with_length(header, Text(data, 0x3C));
      bytes.insert(bytes.begin(), first);
      seeds["raw-" + name + "-" + std::to_string(first)] = bytes;
    }
  };
  const std::string tensor = "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,256],\"data_offsets\":[0,512]}";
  const std::string second = "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,256],\"data_offsets\":[4,516]}";
  raw("empty", "{}", 0);
  raw("one", "{" + tensor + "}", 512);
  raw("spaces", "{" + tensor + "}   ", 512);
  raw("zero-after", "{" + tensor + "}" + std::string("\0", 1), 512);
  raw("zero-and-more", "{" + tensor + "}" + std::string("\0\xFF", 2), 512);
  raw("metadata", "{\"__metadata__\":{\"format\":\"pt\"}," + tensor + "}", 512);
  raw("metadata-last", "{" + tensor + ",\"__metadata__\":{}}", 512);
  raw("metadata-number", "{\"__metadata__\":{\"format\":1}," + tensor + "}", 512);
  raw("twice", "{" + tensor + "," + tensor + "}", 512);
  raw("hole", "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}", 4);
  raw("scalar", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
  raw("no-elements", "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,18446744073709551615,9],\"data_offsets\":[0,0]}}", 0);
  raw("wraps", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4);
  raw("unknown", "{\"a\":{\"dtype\":\"F4\",\"shape\":[7],\"data_offsets\":[0,4]}}", 4);
  raw("no-dtype", "{\"a\":{\"dtype\":\"\",\"shape\":[7],\"data_offsets\":[0,4]}," + second + "}", 516);
  raw("control-dtype", "{\"a\":{\"dtype\":\"\\u001B[2J\",\"shape\":[7],\"data_offsets\":[0,4]}}", 4);
  raw("bytes-without-elements", "{\"a\":{\"dtype\":\"F4\",\"shape\":[0],\"data_offsets\":[0,4]}," + second + "}", 516);
  raw("numbers", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[-0,1e0]}}", 1);
  raw("escapes", "{\"\\u0061\\ud83d\\uDE00\\n\":{\"dtype\":\"U\\u0038\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  raw("surrogate", "{\"\\ud83d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  raw("packed",
      "{\"__metadata__\":{\"p12.version\":\"1\",\"p12.tensors\":\"[\\\"a\\\"]\"},\"a\":{\"dtype\":\"U8\","
      "\"shape\":[1,392],\"data_offsets\":[0,392]}}",
      392);
  raw("quantized",
      "{\"__metadata__\":{\"pn.version\":\"0\",\"pn.tensors\":\"{\\\"a\\\":[\\\"pn4t\\\",[1,64],"
      "\\\"BF16\\\"]}\",\"pn.hadamard.block_size\":\"64\",\"pn.hadamard.exclude\":\"[]\"},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[1,34],\"data_offsets\":[0,34]}}",
      34);
  Text index{0};
  for (const char c : std::string("{\"weight_map\":{\"a\":\"other\"}}")) index.push_back(static_cast<std::uint8_t>(c));
  seeds["raw-index"] = index;
  // Plans, by a generator of numbers.
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u, static_cast<std::uint8_t>(state >> 24); };
  for (int i = 0; i < 300; ++i) {
    Text plan{static_cast<std::uint8_t>(i % 2 == 0 ? 0x80 : 0xC0)};
    for (int b = 32 + next(); b > 0; --b) plan.push_back(next());
    seeds[(i % 2 == 0 ? "plan-" : "model-") + std::to_string(i)] = plan;
  }
  return seeds;
}

}  // namespace fuzz
