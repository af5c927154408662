// What the tests of pn::cpu share: every instruction set in turn, memory between pages that nobody may touch, numbers
// as the three kinds of elements, prepared activations.
#ifndef PN_TESTS_CPU_TESTING_HPP
#define PN_TESTS_CPU_TESTING_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <pn/cpu.hpp>
#include <pn/pn.hpp>

#include "../p12/testing.hpp"
#include "../pn/testing.hpp"
#include "catch.hpp"

namespace testing {

using pn::Block34;
using pn::Status;
using pn::cpu::Activations;
using pn::cpu::Element;
using pn::cpu::element_bytes;
using pn::cpu::Fault;
using pn::cpu::Isa;
using pn::cpu::Order;
using pn::cpu::Stores;

constexpr Element elements[] = {Element::f32, Element::f16, Element::bf16};
constexpr Activations activation_kinds[] = {Activations::f32, Activations::i16, Activations::q8_0};

inline const char* name_of(Element element) {
  return element == Element::f32 ? "f32" : element == Element::f16 ? "f16" : "bf16";
}
inline const char* name_of(Activations kind) {
  return kind == Activations::f32 ? "f32" : kind == Activations::i16 ? "i16" : "q8_0";
}

// Calls body(isa) for every instruction set that runs here; what fails in it says which.
template <class Body>
void for_each_isa(Body&& body) {
  for (const Isa isa : pn::cpu::isas()) {
    INFO("instruction set: " << pn::cpu::isa_name(isa));
    body(isa);
  }
}

// Whether Order::fast means fused multiply-adds.
inline bool has_fma(Isa isa) { return isa != Isa::baseline; }

// The same bits, or a NaN in place of a NaN.
inline bool same_number(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
inline bool same_half(unsigned a, unsigned b) { return a == b || (half_is_nan(a) && half_is_nan(b)); }
inline bool same_bf16(unsigned a, unsigned b) { return a == b || ((a & 0x7FFFu) > 0x7F80u && (b & 0x7FFFu) > 0x7F80u); }

// Number `e` of a row of numbers at any address, as its bits.
inline std::uint32_t load_bits(const std::uint8_t* row, Element element, std::size_t e) {
  return element == Element::f32 ? pn::detail::load_le32(row + 4 * e) : pn::detail::load_le16(row + 2 * e);
}
inline bool same_element(Element element, std::uint32_t a, std::uint32_t b) {
  if (element == Element::f32) return same_number(float_of(a), float_of(b));
  return element == Element::f16 ? same_half(a, b) : same_bf16(a, b);
}
// A float as the bits of an element, rounded once.
inline std::uint32_t bits_as(Element element, float value) {
  if (element == Element::f32) return bits_of(value);
  return element == Element::f16 ? pn::float_to_half(value) : pn::float_to_bf16(value);
}
inline float value_of(Element element, std::uint32_t bits) {
  if (element == Element::f32) return float_of(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return element == Element::f16 ? pn::half_to_float(half) : pn::bf16_to_float(half);
}
inline void store_bits(std::uint8_t* row, Element element, std::size_t e, std::uint32_t bits) {
  if (element == Element::f32)
    pn::detail::store_le32(row + 4 * e, bits);
  else
    pn::detail::store_le16(row + 2 * e, static_cast<std::uint16_t>(bits));
}

// Rows of `row_bytes` bytes, `stride` apart, in memory of its own between two pages that may not be touched: directly
// before the second (At::end) or directly behind the first (At::begin), or `shift` bytes away from there. Everything
// between and around the rows holds a canary.
enum class At { begin, end };

class Fenced {
 public:
  Fenced(std::size_t rows, std::size_t row_bytes, std::size_t stride, At at, std::size_t shift = 0)
      : rows_(rows), row_bytes_(row_bytes), stride_(stride) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t size = rows == 0 ? 0 : (rows - 1) * stride + row_bytes;
    inside_bytes_ = (size + shift + page) / page * page;
    mapped_bytes_ = inside_bytes_ + 2 * page;
    mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) std::abort();
    inside_ = static_cast<std::uint8_t*>(mapped_) + page;
    if (::mprotect(inside_, inside_bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
    std::memset(inside_, canary, inside_bytes_);
    data_ = at == At::begin ? inside_ + shift : inside_ + inside_bytes_ - shift - size;
  }
  // One row.
  explicit Fenced(std::size_t bytes, At at = At::end, std::size_t shift = 0) : Fenced(1, bytes, bytes, at, shift) {}
  ~Fenced() { ::munmap(mapped_, mapped_bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  std::uint8_t* data() const { return data_; }
  std::uint8_t* row(std::size_t n) const { return data_ + n * stride_; }
  std::size_t stride() const { return stride_; }
  std::size_t row_bytes() const { return row_bytes_; }
  // For functions whose parameters are floats but lie at any address.
  float* floats() const { return reinterpret_cast<float*>(data_); }
  float value(std::size_t n, std::size_t e) const { return float_of(pn::detail::load_le32(row(n) + 4 * e)); }
  void set(std::size_t n, std::size_t e, float value) { pn::detail::store_le32(row(n) + 4 * e, bits_of(value)); }
  void fill(int byte) {
    for (std::size_t n = 0; n < rows_; ++n) std::memset(row(n), byte, row_bytes_);
  }

  // Whether nothing outside of the rows has been written.
  bool intact() const {
    const std::uint8_t* at = inside_;
    for (std::size_t n = 0; n < rows_; ++n) {
      for (; at < row(n); ++at)
        if (*at != canary) return false;
      at = row(n) + row_bytes_;
    }
    for (; at < inside_ + inside_bytes_; ++at)
      if (*at != canary) return false;
    return true;
  }
  // Whether the rows hold nothing but the canary: nothing has been written at all.
  bool untouched() const {
    return intact() && std::all_of(inside_, inside_ + inside_bytes_, [](std::uint8_t byte) { return byte == canary; });
  }

  static constexpr std::uint8_t canary = 0xC9;

 private:
  std::size_t rows_, row_bytes_, stride_;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0, inside_bytes_ = 0;
  std::uint8_t* inside_ = nullptr;
  std::uint8_t* data_ = nullptr;
};

// x, `tokens` rows of k floats, prepared for multiplies of PN. The memory ends at a page that may not be touched.
template <class T>
struct Prepared {
  Fenced memory;
  Prepared(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k, Isa isa)
      : memory(pn::cpu::activations_bytes<T>(kind, tokens, k)) {
    memory.fill(0x3C);
    REQUIRE(pn::cpu::prepare_activations<T>(kind, x, x_stride, tokens, k, memory.data(), nullptr, isa) == Status::ok);
    REQUIRE(memory.intact());
  }
  const void* data() const { return memory.data(); }
};

// The same for BF16 and BF16_P12.
struct PreparedP12 {
  Fenced memory;
  PreparedP12(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k, Isa isa)
      : memory(p12::cpu::activations_bytes(tokens, k)) {
    memory.fill(0x3C);
    REQUIRE(p12::cpu::prepare_activations(x, x_stride, tokens, k, memory.data(), isa) == Status::ok);
    REQUIRE(memory.intact());
  }
  const void* data() const { return memory.data(); }
};

// A valid PN block with random codes; `scale` holds the bits of a finite fp16.
template <class T>
Block34 block_with(Random& random, unsigned scale) {
  std::uint8_t codes[T::block_size];
  for (auto& code : codes) code = static_cast<std::uint8_t>(random.below(static_cast<std::size_t>(T::max_code) + 1));
  Block34 block;
  pn::store_block<T>(static_cast<std::uint16_t>(scale), codes, block);
  return block;
}

// The bits of a random finite fp16 with an exponent field in [low, high], either sign.
inline unsigned random_scale(Random& random, int low, int high) {
  return static_cast<unsigned>(random.between(low, high)) << 10 | static_cast<unsigned>(random.below(1024)) |
         (random.coin() ? 0x8000u : 0u);
}

// `count` floats like activations: a bell curve, some larger, some zero.
inline std::vector<float> random_activations(Random& random, std::size_t count) {
  std::vector<float> x(count);
  for (float& value : x) {
    value = static_cast<float>(random.gauss());
    const std::size_t how = random.below(64);
    if (how == 0) value *= 50.0f;
    if (how == 1) value = 0.0f;
    if (how == 2) value = -0.0f;
  }
  return x;
}

}  // namespace testing

#endif  // PN_TESTS_CPU_TESTING_HPP
