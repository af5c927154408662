// What the tests of BF16_P12 share: packed weights and their plain twins, exact results, the sums of PNCUDA_PATH_FFMA.
#ifndef PN_TESTS_PNCUDA_P12_TESTING_HPP
#define PN_TESTS_PNCUDA_P12_TESTING_HPP

#include <pncuda/pncuda_p12.h>

#include <array>
#include <p12/p12.hpp>

#include "testing.hpp"

namespace testing {

using std::uint16_t;

constexpr int bf16_types[] = {PNCUDA_BF16_P12, PNCUDA_BF16_PLAIN};
// Numbers of tokens: all that fill two tiles of tensor cores or less, and some beyond.
constexpr int64_t token_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 23, 24, 25, 31, 32};
static_assert(PNCUDA_P12_MAX_TOKENS == 32, "token_counts ends with it");

inline uint16_t bf16_of(float value) { return pn::float_to_bf16(value); }

// ---- Blocks ----

// Weights 2^-8 .. 2^7 times a power of two, `listed` of them at places of their own with exponents up to 4 above or
// below that window. What validate.hpp says about codes of listed weights does not hold: they must not matter.
inline p12::Block392 random_block(Random& random, int listed, int base = 119) {
  p12::Block392 block{};
  block.base = static_cast<uint8_t>(base);
  block.listed = static_cast<uint8_t>(listed);
  for (uint8_t& byte : block.codes) byte = random.byte();
  for (uint8_t& byte : block.sign_mantissa) byte = random.byte();
  std::array<int, 3> places{};
  do {
    for (int& place : places) place = random.between(0, 255);
    std::sort(places.begin(), places.end());
  } while (places[0] == places[1] || places[1] == places[2]);
  for (int i = 0; i < 3; ++i) {
    block.position[i] = static_cast<uint8_t>(places[size(i)]);
    block.exponent[i] =
        static_cast<uint8_t>(random.coin() ? base + 15 + random.between(1, 4) : random.between(0, base));
  }
  return block;  // slots that are not used hold something, too
}
inline std::vector<p12::Block392> random_blocks(Random& random, int64_t count) {
  std::vector<p12::Block392> blocks;
  for (int64_t i = 0; i < count; ++i)
    blocks.push_back(random_block(random, random.coin() ? 0 : random.between(1, 3), 119 - random.between(0, 5)));
  return blocks;
}
// Blocks like those of models, canonical: a bell curve.
inline std::vector<p12::Block392> gauss_blocks(Random& random, int64_t count, double sigma = 0.02) {
  std::vector<p12::Block392> blocks(size(count));
  for (p12::Block392& block : blocks) {
    uint16_t weights[256];
    do {
      for (uint16_t& weight : weights) weight = bf16_of(static_cast<float>(sigma * random.gauss()));
    } while (p12::pack_block(weights, block) != pn::Status::ok);
  }
  return blocks;
}
// Any bytes: NaN, infinities, bases above 240, counts above 3, places in any order or twice.
inline std::vector<p12::Block392> hostile_blocks(Random& random, int64_t count) {
  std::vector<p12::Block392> blocks(size(count));
  for (p12::Block392& block : blocks) {
    auto* const bytes = reinterpret_cast<uint8_t*>(&block);
    for (std::size_t i = 0; i < sizeof block; ++i) bytes[i] = random.byte();
    if (random.coin()) block.listed = static_cast<uint8_t>(random.below(5));
    if (random.below(4) == 0) block.position[1] = block.position[0];
    if (random.below(4) == 0) block.position[2] = block.position[0];
  }
  return blocks;
}
inline std::vector<p12::Block392> packed_blocks(const std::vector<uint16_t>& weights) {
  std::vector<p12::Block392> blocks(weights.size() / 256);
  REQUIRE(p12::pack_row(weights.data(), weights.size(), blocks.data()) == pn::Status::ok);
  return blocks;
}

// ---- Weights ----

// Rows of blocks, `pad` * 8 bytes between them, `shift` bytes (0 or 8) behind a multiple of 16; and what they unpack
// to, `pad` * 16 bytes between rows. Each kind lies by itself, its end at a page that nobody may touch.
class Bf16Weights {
 public:
  Bf16Weights(const std::vector<p12::Block392>& blocks, int64_t rows, int64_t pad = 0, int64_t shift = 0)
      : rows_(rows),
        blocks_(rows == 0 ? 1 : int64_t(blocks.size()) / rows),
        stride_(blocks_ * 392 + pad * 8),
        plain_stride_(blocks_ * 512 + pad * 16),
        bits_(size(rows * k())),
        packed_(rows == 0 ? 0 : (rows - 1) * stride_ + blocks_ * 392, shift),
        plain_(rows == 0 ? 0 : (rows - 1) * plain_stride_ + blocks_ * 512) {
    for (int64_t n = 0; n < rows; ++n) {
      const p12::Block392* const row = &blocks[size(n * blocks_)];
      REQUIRE(p12::unpack_row(row, size(k()), &bits_[size(n * k())]) == pn::Status::ok);
      std::memcpy(packed_.data() + n * stride_, row, size(blocks_ * 392));
      std::memcpy(plain_.data() + n * plain_stride_, &bits_[size(n * k())], size(blocks_ * 512));
    }
    packed_.freeze();
    plain_.freeze();
  }
  int64_t rows() const { return rows_; }
  int64_t k() const { return blocks_ * 256; }
  pncuda_weights packed() const {
    return {sizeof(pncuda_weights), PNCUDA_BF16_P12, PNCUDA_NATIVE, packed_.data(), rows_, k(), stride_};
  }
  pncuda_weights plain() const {
    return {sizeof(pncuda_weights), PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, plain_.data(), rows_, k(), plain_stride_};
  }
  pncuda_weights as(int type) const { return type == PNCUDA_BF16_P12 ? packed() : plain(); }
  const uint16_t* row(int64_t n) const { return &bits_[size(n * k())]; }
  bool unchanged() const { return packed_.unchanged() && plain_.unchanged(); }
  // From here on the plain weights are NaN.
  void poison_plain() {
    std::memset(plain_.data(), 0xFF, plain_.bytes());
    plain_.freeze();
  }
  void poison_packed() {
    std::memset(packed_.data(), 0xFF, packed_.bytes());
    packed_.freeze();
  }

 private:
  int64_t rows_, blocks_, stride_, plain_stride_;
  std::vector<uint16_t> bits_;
  Input packed_, plain_;
};

// ---- Results ----

// [tokens][rows]: the sums in double, and S of pncuda.h.
struct P12Exact {
  std::vector<double> y, s;
};
inline P12Exact multiply_exactly(const Bf16Weights& weights, const float* x, int64_t tokens) {
  P12Exact exact;
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t n = 0; n < weights.rows(); ++n) {
      double y = 0, s = 0;
      for (int64_t i = 0; i < weights.k(); ++i) {
        const double product =
            static_cast<double>(pn::bf16_to_float(weights.row(n)[i])) * static_cast<double>(x[m * weights.k() + i]);
        y += product;
        s += std::fabs(product);
      }
      exact.y.push_back(y);
      exact.s.push_back(s);
    }
  return exact;
}
// |error| / S, at most.
inline double p12_bound(int path, int64_t k) {
  const auto length = static_cast<double>(k);
  return path == PNCUDA_PATH_TENSOR ? (length / 512 + 16) * 0x1p-22 : (length / 256 + 14) * 0x1p-24;
}

// The sum of PNCUDA_PATH_FFMA, from what p12_ffma.cu says about its order: 32 lanes with eight weights of each block,
// one rounding for each product; the blocks one after another; and the lanes pairwise at last.
inline float ffma_sum(const uint16_t* weights, const float* x, int64_t k) {
  std::array<float, 32> lanes{};
  for (int64_t i = 0; i < k; i += 8) {
    float of_block = pn::bf16_to_float(weights[i]) * x[i];
    for (int64_t j = i + 1; j < i + 8; ++j) of_block = std::fmaf(pn::bf16_to_float(weights[j]), x[j], of_block);
    lanes[size(i / 8 % 32)] += of_block;
  }
  for (std::size_t offset = 16; offset > 0; offset /= 2) {
    const std::array<float, 32> before = lanes;
    for (std::size_t lane = 0; lane < 32; ++lane) lanes[lane] = before[lane] + before[lane ^ offset];
  }
  return lanes[0];
}

// ---- Paths ----

// A device and a mode that take a path.
struct Setting {
  host_cuda::Device device;
  int mode;
};
inline host_cuda::Device with_shared(host_cuda::Device device, int for_block, int for_multiprocessor) {
  device.name += " with " + std::to_string(for_block) + " bytes of shared memory";
  device.shared_per_block_optin = for_block;
  device.shared_per_multiprocessor = for_multiprocessor;
  return device;
}
struct P12Path {
  const char* name;
  int number;
  std::vector<Setting> settings;
};
inline const P12Path& p12_ffma() {
  static const P12Path path{"p12_ffma",
                            PNCUDA_PATH_FFMA,
                            {{host_cuda::p100(), PNCUDA_ACCURATE},
                             {host_cuda::t4(), PNCUDA_FAST_HALF2},
                             {host_cuda::h100(), PNCUDA_PORTABLE},
                             {host_cuda::a10(), PNCUDA_PORTABLE},
                             {with_multiprocessors(host_cuda::p100(), 1), PNCUDA_PORTABLE},
                             {with_shared(host_cuda::p100(), 12 << 10, 20 << 10), PNCUDA_ACCURATE}}};
  return path;
}
inline const P12Path& p12_tensor() {
  static const P12Path path{"p12_tensor",
                            PNCUDA_PATH_TENSOR,
                            {{host_cuda::h100(), PNCUDA_ACCURATE},
                             {host_cuda::a10(), PNCUDA_FAST_HALF2},
                             {with_multiprocessors(host_cuda::h100(), 2), PNCUDA_ACCURATE},
                             {with_multiprocessors(host_cuda::a10(), 1), PNCUDA_ACCURATE},
                             {with_shared(host_cuda::a10(), 84 << 10, 100 << 10), PNCUDA_ACCURATE}}};
  return path;
}

}  // namespace testing

#endif  // PN_TESTS_PNCUDA_P12_TESTING_HPP
