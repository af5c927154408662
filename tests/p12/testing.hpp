// Blocks of weights that the P12 tests share.
#ifndef P12_TESTS_TESTING_HPP
#define P12_TESTS_TESTING_HPP

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <p12/p12.hpp>

#include "../pn/testing.hpp"
#include "second_packer.hpp"

namespace testing {

// Of rounds that are thousands of a kind every every()-th runs: all by default, fewer under sanitizers (CMakeLists.txt).
inline int every() {
  static const int value = std::getenv("PN_TEST_EVERY") != nullptr ? std::max(1, std::atoi(std::getenv("PN_TEST_EVERY"))) : 1;
  return value;
}

using second::Bytes;
using second::Weights;

inline std::uint16_t weight_of(int exponent, unsigned sign_mantissa) {
  return static_cast<std::uint16_t>((sign_mantissa & 0x80u) << 8 | static_cast<unsigned>(exponent) << 7 |
                                    (sign_mantissa & 0x7Fu));
}

// Exponents low..high, everything else random.
inline Weights weights_between(Random& random, int low, int high) {
  Weights weights;
  for (auto& weight : weights) weight = weight_of(random.between(low, high), random.byte());
  return weights;
}

// 256 weights with `outliers` of them at given places, which no base can cover together with the rest.
inline Weights weights_with_outliers(Random& random, const std::vector<int>& places) {
  const int low = random.between(20, 200);
  Weights weights = weights_between(random, low, low + 15);
  for (std::size_t i = 0; i < 256; i += 2) weights[i] = weight_of(i % 4 == 0 ? low : low + 15, random.byte());
  for (const int place : places)
    weights[static_cast<std::size_t>(place)] =
        weight_of(random.coin() ? random.between(0, low - 1) : random.between(low + 16, 255), random.byte());
  return weights;
}

inline Bytes bytes_of(const p12::Block392& block) {
  Bytes bytes;
  std::memcpy(bytes.data(), &block, sizeof block);
  return bytes;
}
inline p12::Block392 block_of(const Bytes& bytes) {
  p12::Block392 block;
  std::memcpy(&block, bytes.data(), sizeof block);
  return block;
}
inline Weights unpacked(const p12::Block392& block) {
  Weights weights;
  p12::unpack_block(block, weights.data());
  return weights;
}

// Weights of one of many kinds; about half of the blocks that come out can be packed.
inline Weights random_weights(Random& random) {
  switch (random.below(8)) {
    case 0: {  // like trained weights
      Weights weights;
      for (auto& weight : weights)
        weight = static_cast<std::uint16_t>(bits_of(static_cast<float>(0.02 * random.gauss())) >> 16);
      return weights;
    }
    case 1: {
      const int low = random.between(0, 255);
      return weights_between(random, low, std::min(255, low + random.between(0, 20)));
    }
    case 2: {  // a few outliers
      std::vector<int> places;
      for (int n = random.between(0, 5); n > 0; --n) places.push_back(random.between(0, 255));
      return weights_with_outliers(random, places);
    }
    case 3: {  // few exponents, far apart or near: ties
      const int low = random.between(0, 240);
      Weights weights = weights_between(random, low, low);
      for (int n = random.between(0, 4); n > 0; --n)
        weights[random.below(256)] =
            weight_of(std::max(0, std::min(255, low + random.between(-20, 20))), random.byte());
      return weights;
    }
    case 4: {  // two crowds
      const int low = random.between(0, 255), high = random.between(0, 255);
      Weights weights = weights_between(random, low, low);
      for (int n = random.between(1, 255); n > 0; --n) weights[random.below(256)] = weight_of(high, random.byte());
      return weights;
    }
    case 5: {  // near the top: bases up to 240
      const int low = random.between(232, 255);
      Weights weights = weights_between(random, low, 255);
      for (int n = random.between(0, 3); n > 0; --n)
        weights[random.below(256)] = weight_of(random.between(0, 255), random.byte());
      return weights;
    }
    case 6: {  // 15 and 16 apart
      const int low = random.between(0, 239);
      Weights weights = weights_between(random, low, low + 15);
      weights[random.below(256)] = weight_of(low, random.byte());
      weights[random.below(256)] = weight_of(low + 15 + random.between(0, 1), random.byte());
      return weights;
    }
    default: {
      Weights weights;
      for (auto& weight : weights) weight = static_cast<std::uint16_t>(random.next32());
      return weights;
    }
  }
}

// A packed block with exactly n listed weights.
inline p12::Block392 packed_with(Random& random, int n) {
  std::vector<int> places;
  while (static_cast<int>(places.size()) < n) {
    const int place = random.between(0, 255);
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  Bytes bytes;
  if (!second::pack(weights_with_outliers(random, places), bytes)) return {};
  return block_of(bytes);
}

}  // namespace testing

#endif  // P12_TESTS_TESTING_HPP
