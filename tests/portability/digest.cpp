// Prints a number for each part of what the core computes: the same from every compiler, at every optimisation level,
// on every machine, in every floating-point environment of the caller. Needs nothing but the headers; uses no
// function of the C library whose result may differ between systems.
//
// digest.txt has a line for each part, in the order of `parts` below. A line never changes, since the bytes that it
// stands for never do; when the core grows, a part is added behind the others, with numbers of its own, and its line at
// the end of digest.txt.
#include <cfenv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <p12/p12.hpp>
#include <pn/pn.hpp>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace {

// FNV-1a, 64 bits.
class Digest {
 public:
  void byte(std::uint8_t b) { state_ = (state_ ^ b) * 0x100000001B3u; }
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) byte(static_cast<std::uint8_t>((value >> (8 * i)) & 0xFFu));
  }
  void real(float value) {
    const auto bits = pn::detail::bit_cast<std::uint32_t>(value);
    // Which NaN an operation gives is up to the machine; that it is one is not.
    number((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits, 4);
  }
  template <class T>
  void object(const T& bytes) {
    for (std::size_t i = 0; i < sizeof(T); ++i) byte(reinterpret_cast<const std::uint8_t*>(&bytes)[i]);
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed = 1) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
  // A float with a random sign and mantissa and an exponent field of base - 0..spread, or a zero or subnormal.
  float real(int base, std::uint32_t spread) {
    const int field = base - static_cast<int>(below(spread));
    const std::uint32_t exponent = field > 0 ? static_cast<std::uint32_t>(field) : 0u;
    const std::uint32_t bits = static_cast<std::uint32_t>(next());
    return pn::detail::bit_cast<float>((bits & 0x807FFFFFu) | (exponent << 23));
  }

 private:
  std::uint64_t state_;
};

constexpr std::size_t row = 640;  // whole blocks of 80, 64 and 32

// Rows of many kinds: one magnitude, many magnitudes, few distinct values, edges of the fp16 scales.
void fill(Random& random, int kind, std::vector<float>& weights) {
  const int base = 20 + static_cast<int>(random.below(120));
  // Few mantissa bits, so that small multiples are exact whatever the rounding mode.
  const float step =
      pn::detail::bit_cast<float>(pn::detail::bit_cast<std::uint32_t>(random.real(127, 12)) & 0xFFFFF000u);
  const float scale = static_cast<float>(1025 + random.below(1000)) * 0x1p-16f;
  for (float& w : weights) {
    switch (kind % 6) {
      case 0: w = random.real(124, 4); break;
      case 1: w = random.real(base, 30); break;
      case 2: w = step * static_cast<float>(static_cast<int>(random.below(15)) - 7); break;
      case 5:  // multiples of a scale, with every tenth halfway between two codes: a reciprocal would move some
        w = scale * (static_cast<float>(static_cast<int>(random.below(7)) - 3) + (random.below(10) == 0 ? 0.5f : 0.0f));
        break;
      case 3: w = random.real(105, 3); break;   // around 2^-23: scales near the smallest subnormal
      default: w = random.real(145, 3); break;  // around 2^18: the largest candidates overflow
    }
  }
  // Every block of either type gets the end of the codes, so that m = 1.00 gives this very scale.
  if (kind % 6 == 5)
    for (std::size_t e = 0; e < row; e += 16) weights[e] = e % 32 == 0 ? scale * -4.0f : scale * 3.0f;
}

template <class T>
void add_pn(Random& random, int kind, Digest& digest) {
  std::vector<float> weights(row);
  std::vector<float> x(row);
  std::vector<float> decoded(row);
  std::vector<double> importance(row);
  std::vector<pn::Block34> blocks(pn::block_count<T>(row));
  std::vector<pn::BlockQ8_0> q8(row / pn::q8_0_block_size);
  fill(random, kind, weights);
  for (float& v : x) v = random.real(127, 8);
  for (double& g : importance) g = static_cast<double>(random.below(4) == 0 ? 0.0f : random.real(130, 6));
  for (double& g : importance) g = g < 0 ? -g : g;

  for (const double* g : {static_cast<const double*>(nullptr), static_cast<const double*>(importance.data())}) {
    digest.number(static_cast<std::uint64_t>(pn::quantize_row<T>(weights.data(), g, row, blocks.data())), 1);
    for (const pn::Block34& block : blocks) digest.object(block);
    digest.number(static_cast<std::uint64_t>(pn::decode_row<T>(blocks.data(), row, decoded.data())), 1);
    for (const float w : decoded) digest.real(w);
    digest.number(static_cast<std::uint64_t>(pn::quantize_row_q8_0(x.data(), row, q8.data())), 1);
    for (const pn::BlockQ8_0& block : q8) digest.object(block);
    float y = 0;
    digest.number(static_cast<std::uint64_t>(pn::dot_f32<T>(blocks.data(), x.data(), row, &y)), 1);
    digest.real(y);
    digest.number(static_cast<std::uint64_t>(pn::dot_q8_0<T>(blocks.data(), q8.data(), row, &y)), 1);
    digest.real(y);
  }

  // Arbitrary bytes.
  pn::Block34 any;
  for (std::uint8_t& b : any.d) b = static_cast<std::uint8_t>(random.next() & 0xFFu);
  for (std::uint8_t& b : any.qs) b = static_cast<std::uint8_t>(random.next() & 0xFFu);
  digest.number(static_cast<std::uint64_t>(pn::validate_block<T>(any)), 1);
  for (std::size_t e = 0; e < T::block_size; ++e) digest.real(pn::decode_element<T>(any, e));
}

// Blocks in which two scales tie but for the rounding of sums, found by a search: if a compiler fuses the product of
// importance and squared error into the sum, another scale wins. (Squared errors alone are exact: a residual has at
// most 25 significant bits.)
template <class T>
void add_near_ties(const std::vector<std::uint64_t>& seeds, Digest& digest) {
  for (const std::uint64_t seed : seeds) {
    Random random(seed);
    std::vector<float> weights(T::block_size);
    std::vector<double> importance(T::block_size, 1.0);
    constexpr int amax = 50 * T::zero_point;  // the candidate scales are 25, 26, .. 60
    for (std::size_t e = 0; e < 17; ++e) {
      if (e >= 1 && e <= 10) {
        weights[e] = static_cast<float>(static_cast<int>(random.next() >> 40) - (1 << 23)) * 0x1p-24f;
        importance[e] = static_cast<double>(1 + random.below(1u << 30)) * 0x1p-29;
      } else {
        weights[e] = static_cast<float>(static_cast<int>(random.below(2 * amax + 1)) - amax);
      }
    }
    weights[17] = static_cast<float>(-amax);
    pn::Block34 block{};
    digest.number(
        static_cast<std::uint64_t>(pn::quantize_row<T>(weights.data(), importance.data(), T::block_size, &block)), 1);
    digest.object(block);
  }
}

// Activations on a rounding edge, found by a search: fusing the product with the difference would move a code.
void add_q8_0_edges(const std::vector<std::uint64_t>& seeds, Digest& digest) {
  for (const std::uint64_t seed : seeds) {
    Random random(seed);
    float x[pn::q8_0_block_size];
    for (float& v : x) v = static_cast<float>(static_cast<int>(random.next() >> 40) - (1 << 23)) * 0x1p-24f;
    pn::BlockQ8_0 block{};
    digest.number(static_cast<std::uint64_t>(pn::quantize_row_q8_0(x, pn::q8_0_block_size, &block)), 1);
    digest.object(block);
  }
}

void add_p12(Random& random, int kind, Digest& digest) {
  std::uint16_t weights[p12::block_size];
  const std::uint32_t base = random.below(250);
  const std::uint32_t spread = 1 + random.below(18);
  for (std::uint16_t& w : weights) {
    const std::uint32_t exponent = (base + random.below(spread)) & 0xFFu;
    w = static_cast<std::uint16_t>((random.next() & 0x807Fu) | (exponent << 7));
  }
  for (std::uint32_t i = 0; i < random.below(6); ++i)
    weights[random.below(256)] = static_cast<std::uint16_t>(random.next() & 0xFFFFu);
  p12::Block392 block{};
  digest.number(static_cast<std::uint64_t>(p12::pack_block(weights, block)), 1);
  digest.object(block);
  // A block with a few bytes changed: packed forms, and forms that are not canonical.
  if (kind % 2 == 1)
    for (int i = 0; i < 3; ++i)
      reinterpret_cast<std::uint8_t*>(&block)[random.below(random.below(2) == 0 ? 8 : 392)] =
          static_cast<std::uint8_t>(random.next() & 0xFFu);
  digest.number(static_cast<std::uint64_t>(p12::validate_block(block)), 1);
  p12::unpack_block(block, weights);
  for (std::size_t i = 0; i < p12::block_size; ++i) {
    digest.number(weights[i], 2);
    digest.number(p12::unpack_element(block, i), 2);
  }
}

void add_conversions(Random& random, Digest& digest) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    digest.number(pn::half_to_float_bits(half), 4);
    digest.number(pn::float_bits_to_half(pn::half_to_float_bits(half)), 2);
  }
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t bits = random.next();
    digest.number(pn::double_bits_to_half(bits), 2);
    digest.number(pn::double_bits_to_half((bits & 0x800FFFFFFFFFFFFFu) | ((1023u - 26u + bits % 44u) << 52)), 2);
    digest.number(pn::float_bits_to_half(static_cast<std::uint32_t>(bits)), 2);
    digest.number(pn::float_bits_to_bf16(static_cast<std::uint32_t>(bits)), 2);
  }
}

// The two formats, the conversions, the dot products.
std::uint64_t formats() {
  Digest digest;
  Random random;
  add_conversions(random, digest);
  add_near_ties<pn::pn3t>({20758, 105154, 903986, 1153068, 1376811, 1624891}, digest);
  add_near_ties<pn::pn4t>({1086712, 1256582, 1320198, 1797787}, digest);
  add_q8_0_edges({13543, 33027, 37232, 79051, 94454, 98818, 100013, 105315}, digest);
  for (int kind = 0; kind < 250; ++kind) {
    add_pn<pn::pn3t>(random, kind, digest);
    add_pn<pn::pn4t>(random, kind, digest);
    for (int i = 0; i < 8; ++i) add_p12(random, kind, digest);
  }
  return digest.value();
}

// One row of b * 2 values through all that rotates.
void add_rotation(Random& random, int kind, std::size_t b, Digest& digest) {
  const std::size_t k = 2 * b;
  std::vector<float> in(k), out(k);
  std::vector<double> doubles(k);
  std::vector<std::uint16_t> bits(k);
  const int base = 20 + static_cast<int>(random.below(200));
  for (float& w : in) {
    switch (kind % 6) {
      case 0: w = random.real(124, 4); break;
      case 1: w = random.real(base, 70); break;  // so far apart that sums of doubles round
      case 2: w = static_cast<float>(static_cast<int>(random.below(15)) - 7); break;
      case 3: w = random.real(2, 4); break;  // subnormals and zeros
      case 4: w = random.below(2) == 0 ? 0.0f : -0.0f; break;
      default: w = random.real(249, 3); break;  // around 2^122: some results overflow
    }
  }
  if (kind % 6 == 1)  // what is large cancels, early or late
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::size_t at = random.below(static_cast<std::uint32_t>(k));
      const std::size_t other = at ^ (std::size_t{1} << random.below(6));
      in[at] = random.real(base, 1);
      in[other] = -in[at];
    }
  std::size_t bad = 0;
  const auto add_status = [&](pn::Status status) {
    digest.number(static_cast<std::uint64_t>(status), 1);
    digest.number(bad, 4);
    return status == pn::Status::ok;
  };
  if (add_status(pn::hadamard_weights(in.data(), doubles.data(), k, b, &bad)))
    for (const double v : doubles) digest.number(pn::detail::bit_cast<std::uint64_t>(v), 8);
  if (add_status(pn::hadamard_weights(in.data(), out.data(), k, b, &bad)))
    for (const float v : out) digest.real(v);
  if (add_status(pn::hadamard_weights_to_half(in.data(), bits.data(), k, b, &bad)))
    for (const std::uint16_t v : bits) digest.number(v, 2);
  if (add_status(pn::hadamard_weights_to_bf16(in.data(), bits.data(), k, b, &bad)))
    for (const std::uint16_t v : bits) digest.number(v, 2);
  // Twice, so that the products of the first meet the sums of the second.
  if (add_status(pn::hadamard_activations(in.data(), k, b)) && add_status(pn::hadamard_activations(in.data(), k, b)))
    for (const float v : in) digest.real(v);
}

// The Hadamard rotation, and double to bf16.
std::uint64_t rotation() {
  Digest digest;
  Random random(2);
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t bits = random.next();
    digest.number(pn::double_bits_to_bf16(bits), 2);
    digest.number(pn::double_bits_to_bf16((bits & 0x800FFFFFFFFFFFFFu) | ((1023u - 136u + bits % 268u) << 52)), 2);
  }
  for (int kind = 0; kind < 60; ++kind)
    for (const std::size_t b : std::vector<std::size_t>{64, 128, 256, 512, 1024, 96})
      add_rotation(random, kind, b, digest);
  return digest.value();
}

const std::vector<std::uint64_t (*)()> parts = {formats, rotation};

std::vector<std::uint64_t> compute() {
  std::vector<std::uint64_t> digests;
  for (const auto& part : parts) digests.push_back(part());
  return digests;
}

void print(const std::vector<std::uint64_t>& digests) {
  for (std::size_t i = 0; i < digests.size(); ++i) std::printf("%s%016" PRIx64, i == 0 ? "" : " ", digests[i]);
  std::printf("\n");
}

// compute() under environments that would change its sums if the core let them, in a form that can say so.
bool same_in_every_environment(const std::vector<std::uint64_t>& expected) {
  bool same = true;
  const auto report = [&](const char* name, const std::vector<std::uint64_t>& value, bool kept) {
    if (value != expected) {
      std::printf("under %s the digest is ", name);
      print(value);
    }
    if (!kept) std::printf("under %s the caller's environment was changed\n", name);
    same = same && value == expected && kept;
  };
#if defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
  const struct {
    int mode;
    const char* name;
  } modes[] = {{FE_UPWARD, "FE_UPWARD"}, {FE_DOWNWARD, "FE_DOWNWARD"}, {FE_TOWARDZERO, "FE_TOWARDZERO"}};
  for (const auto& [mode, name] : modes) {
    // The inputs are the same in all modes: they are made of bits and of exact products.
    std::fesetround(mode);
    const std::vector<std::uint64_t> value = compute();
    const bool kept = std::fegetround() == mode;
    std::fesetround(FE_TONEAREST);
    report(name, value, kept);
  }
#endif
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  const unsigned flushing = (before & ~0x3Fu) | 0x8040u;  // flush to zero, denormals are zero, no exception flags
  _mm_setcsr(flushing);
  pn::Block34 block;
  float weights[64];
  for (int i = 0; i < 64; ++i) weights[i] = pn::detail::bit_cast<float>(0x33000001u + static_cast<unsigned>(i) * 77u);
  static_cast<void>(pn::quantize_block<pn::pn4t>(weights, block));
  const bool kept = _mm_getcsr() == flushing;
  const std::vector<std::uint64_t> value = compute();
  _mm_setcsr(before);
  report("flush to zero", value, kept);
#endif
  return same;
}

}  // namespace

// With arguments, the lines of digest.txt, fails unless they are the digests in hexadecimal.
int main(int argc, char** argv) {
  const std::vector<std::uint64_t> digests = compute();
  print(digests);
  if (!same_in_every_environment(digests)) return 1;
  if (argc == 1) return 0;
  std::vector<std::uint64_t> expected;
  for (int i = 1; i < argc; ++i)
    for (char* at = argv[i]; *at != '\0';) {
      char* end = at;
      expected.push_back(std::strtoull(at, &end, 16));
      if (end == at) {
        std::printf("not a digest: %s\n", at);
        return 1;
      }
      while (*end == ' ' || *end == '\n' || *end == '\r') ++end;
      at = end;
    }
  if (expected == digests) return 0;
  std::printf("expected ");
  print(expected);
  return 1;
}
