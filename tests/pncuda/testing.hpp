// What the tests of libpncuda share: device memory with fences, random weights and activations, exact results, calls.
#ifndef PN_TESTS_PNCUDA_TESTING_HPP
#define PN_TESTS_PNCUDA_TESTING_HPP

#include <cuda_runtime.h>
#include <pncuda/pncuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch.hpp>
#include <cstdlib>
#include <host_cuda/host_cuda.hpp>
#include <memory>
#include <pn/pn.hpp>
#include <string>
#include <thread>
#include <vector>

#include "../pn/testing.hpp"

namespace testing {

// For cases that are one of many of a kind: true where this one is left out. Every PN_TEST_EVERY-th of them runs, all
// by default; fewer in the second and third order of threads and under sanitizers (CMakeLists.txt).
inline bool left_out() {
  static const int every = std::getenv("PN_TEST_EVERY") != nullptr ? std::atoi(std::getenv("PN_TEST_EVERY")) : 1;
  static int count = 0;
  return every > 1 && count++ % every != 0;
}

using std::int64_t;
using std::uint8_t;

constexpr int block_types[] = {PNCUDA_PN3T, PNCUDA_PN4T};
constexpr int element_types[] = {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16};
constexpr int layouts[] = {PNCUDA_NATIVE, PNCUDA_REPACKED};
constexpr int hadamard_blocks[] = {64, 128, 256, 512, 1024};

template <class Body>
auto with_block_type(int type, Body&& body) {
  if (type == PNCUDA_PN3T) return body(pn::pn3t{});
  return body(pn::pn4t{});
}
inline int64_t block_size_of(int type) { return type == PNCUDA_PN3T ? 80 : 64; }
inline const char* name_of(int type) {
  return type == PNCUDA_PN3T   ? "pn3t"
         : type == PNCUDA_PN4T ? "pn4t"
         : type == PNCUDA_F32  ? "f32"
         : type == PNCUDA_F16  ? "f16"
                               : "bf16";
}

inline std::size_t size(int64_t n) { return static_cast<std::size_t>(n); }

// ---- Elements ----

inline int64_t bytes_of(int element_type) { return element_type == PNCUDA_F32 ? 4 : 2; }
// A float as the bits of an element, rounded once by the core.
inline std::uint32_t bits_as(int type, float value) {
  if (type == PNCUDA_F32) return bits_of(value);
  return type == PNCUDA_F16 ? pn::float_to_half(value) : pn::float_to_bf16(value);
}
inline float value_of(int type, std::uint32_t bits) {
  if (type == PNCUDA_F32) return float_of(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return type == PNCUDA_F16 ? pn::half_to_float(half) : pn::bf16_to_float(half);
}
inline std::uint32_t load_bits(int type, const uint8_t* row, int64_t i) {
  return type == PNCUDA_F32 ? pn::detail::load_le32(row + 4 * i) : pn::detail::load_le16(row + 2 * i);
}
inline void store_bits(int type, uint8_t* row, int64_t i, std::uint32_t bits) {
  if (type == PNCUDA_F32)
    pn::detail::store_le32(row + 4 * i, bits);
  else
    pn::detail::store_le16(row + 2 * i, static_cast<std::uint16_t>(bits));
}
// The same bits, or a NaN in place of a NaN.
inline bool same_element(int type, std::uint32_t a, std::uint32_t b) {
  return a == b || (std::isnan(value_of(type, a)) && std::isnan(value_of(type, b)));
}

// ---- Device memory: any memory of the host is, on the layer. Tests read and write it directly. ----

// `bytes` bytes, `shift` bytes behind a multiple of 16, that end at a page which nobody may touch, or up to 15 bytes
// before it. With AddressSanitizer they end with their allocation, which it watches to the byte.
#if defined(__SANITIZE_ADDRESS__)
#define PN_TESTS_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PN_TESTS_ADDRESS_SANITIZER
#endif
#endif
class Memory {
 public:
  explicit Memory(int64_t bytes, int64_t shift = 0) : bytes_(size(bytes)) {
    const std::size_t end = bytes_ + size(shift);
    if (end == 0) return;
#if defined(PN_TESTS_ADDRESS_SANITIZER)
    uint8_t* block = nullptr;
    REQUIRE(cudaMalloc(&block, end) == cudaSuccess);
    block_ = block;
    data_ = block + shift;
#else
    const std::size_t page = size(::sysconf(_SC_PAGESIZE));
    const std::size_t inside = (end + 15 + page - 1) / page * page;
    mapped_ = inside + page;
    block_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(block_ != MAP_FAILED);
    uint8_t* const fence = static_cast<uint8_t*>(block_) + inside;
    REQUIRE(::mprotect(fence, page, PROT_NONE) == 0);
    data_ = fence - (end + 15) / 16 * 16 + shift;
    std::memset(block_, 0xFF, inside);  // NaN, as the layer's
#endif
  }
#if defined(PN_TESTS_ADDRESS_SANITIZER)
  ~Memory() { cudaFree(block_); }
#else
  ~Memory() {
    if (block_ != nullptr) ::munmap(block_, mapped_);
  }
#endif
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* block_ = nullptr;
  uint8_t* data_ = nullptr;
  std::size_t bytes_, mapped_ = 0;
};

// What a launch may read only.
class Input : public Memory {
 public:
  using Memory::Memory;
  explicit Input(const std::vector<uint8_t>& bytes, int64_t shift = 0) : Memory(int64_t(bytes.size()), shift) {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
    freeze();
  }
  void freeze() { copy_.assign(data(), data() + bytes()); }
  bool unchanged() const { return bytes() == 0 || std::memcmp(data(), copy_.data(), bytes()) == 0; }

 private:
  std::vector<uint8_t> copy_;
};

// Rows of `row_bytes` bytes, `stride` apart, with fences in front, between and behind; `shift` bytes behind a multiple
// of 256.
class Output {
 public:
  Output(int64_t rows, int64_t row_bytes, int64_t stride, int64_t shift = 0)
      : rows_(rows),
        row_bytes_(row_bytes),
        stride_(stride),
        memory_(3 * fence + shift + (rows == 0 ? 0 : (rows - 1) * stride + row_bytes)),
        begin_(2 * fence - int64_t(reinterpret_cast<std::uintptr_t>(memory_.data()) % size(fence)) + shift) {
    clear();
  }
  uint8_t* data() const { return memory_.data() + begin_; }
  void clear() const { std::memset(memory_.data(), canary, memory_.bytes()); }
  std::vector<uint8_t> everything() const { return {memory_.data(), memory_.data() + memory_.bytes()}; }
  uint8_t* row(int64_t n) const { return data() + n * stride_; }
  int64_t stride() const { return stride_; }
  bool intact() const {
    const uint8_t* at = memory_.data();
    for (int64_t n = 0; n < rows_; ++n) {
      for (; at < row(n); ++at)
        if (*at != canary) return false;
      at = row(n) + row_bytes_;
    }
    for (; at < memory_.data() + memory_.bytes(); ++at)
      if (*at != canary) return false;
    return true;
  }
  bool untouched() const {
    return std::all_of(memory_.data(), memory_.data() + memory_.bytes(), [](uint8_t byte) { return byte == canary; });
  }

  static constexpr uint8_t canary = 0xC9;
  static constexpr int64_t fence = 256;

 private:
  int64_t rows_, row_bytes_, stride_;
  Memory memory_;
  int64_t begin_;
};

// ---- Devices and orders ----

inline host_cuda::Device with_multiprocessors(host_cuda::Device device, int count) {
  device.name += " with " + std::to_string(count) + " multiprocessors";
  device.multiprocessors = count;
  return device;
}

// Makes it the current device and prepares it.
inline void use(const host_cuda::Device& device) {
  host_cuda::set_device(device);
  REQUIRE(pncuda_prepare(0) == PNCUDA_OK);
}

// An order as HOST_CUDA_ORDER names it.
inline host_cuda::Order order_of(const std::string& name) {
  using host_cuda::Order;
  if (name.empty() || name == "forward") return {Order::forward, 0};
  if (name == "reverse") return {Order::reverse, 0};
  return {Order::shuffled, std::strtoull(name.c_str(), nullptr, 10)};
}
inline host_cuda::Order order_of_environment() {
  const char* const name = std::getenv("HOST_CUDA_ORDER");
  return order_of(name == nullptr ? "" : name);
}

// What a test changes of the layer is changed back at its end.
struct Restore {
  Restore() = default;
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  ~Restore() {
    host_cuda::set_device(host_cuda::h100());
    host_cuda::set_thread_order(order_of_environment());
    host_cuda::set_block_order({});
    host_cuda::set_host_threads(1);
    cudaGetLastError();
  }
};

// ---- Weights ----

// A random fp16 of 2^-7 .. 2^-1, either sign; sometimes 0, -0 or subnormal.
inline unsigned random_scale(Random& random) {
  const unsigned sign = random.coin() ? 0x8000u : 0u;
  const std::size_t how = random.below(32);
  if (how == 0) return sign;
  if (how == 1) return sign | static_cast<unsigned>(random.below(1024));
  return sign | static_cast<unsigned>(random.between(8, 14)) << 10 | static_cast<unsigned>(random.below(1024));
}

// Rows of blocks with random codes and scales. Reserved bits are random, too: they must not matter.
class Weights {
 public:
  Weights(int type, int64_t rows, int64_t blocks, Random& random, int64_t pad = 0, int64_t shift = 0)
      : Weights(type, rows, blocks, pad, shift) {
    for (std::size_t i = 0; i < memory_.bytes(); ++i) memory_.data()[i] = random.byte();
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t b = 0; b < blocks; ++b) set_scale(n, b, random_scale(random));
    memory_.freeze();
  }
  int type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t blocks() const { return blocks_; }
  int64_t k() const { return blocks_ * block_size_of(type_); }
  int64_t stride() const { return stride_; }
  const pn::Block34* row(int64_t n) const { return reinterpret_cast<const pn::Block34*>(memory_.data() + n * stride_); }
  void set_scale(int64_t n, int64_t b, unsigned bits) {
    pn::detail::store_le16(memory_.data() + n * stride_ + b * 34, static_cast<std::uint16_t>(bits));
  }
  void set_codes(int64_t n, int64_t b, const uint8_t* codes) {
    pn::Block34 block;
    with_block_type(type_, [&](auto t) { pn::store_block<decltype(t)>(pn::load_scale(row(n)[b]), codes, block); });
    std::memcpy(memory_.data() + n * stride_ + b * 34, &block, 34);
  }
  void freeze() {
    memory_.freeze();
    decoded_.clear();
    repacked_ = nullptr;
  }

  pncuda_weights native() const {
    return {sizeof(pncuda_weights), type_, PNCUDA_NATIVE, memory_.data(), rows_, k(), stride_};
  }
  // Needs a prepared device.
  pncuda_weights repacked() const {
    if (repacked_ == nullptr) {
      auto memory = std::make_unique<Input>(rows_ * blocks_ * 34);
      const pncuda_weights from = native();
      REQUIRE(pncuda_repack(&from, memory->data(), nullptr) == PNCUDA_OK);
      memory->freeze();
      repacked_ = std::move(memory);
    }
    return {sizeof(pncuda_weights), type_, PNCUDA_REPACKED, repacked_->data(), rows_, k(), 0};
  }
  pncuda_weights as(int layout) const { return layout == PNCUDA_NATIVE ? native() : repacked(); }
  bool unchanged() const { return memory_.unchanged() && (repacked_ == nullptr || repacked_->unchanged()); }

  // Row n as the core decodes it.
  const float* decoded(int64_t n) const {
    if (decoded_.empty()) {
      decoded_.resize(size(rows_ * k()));
      with_block_type(type_, [&](auto t) {
        for (int64_t i = 0; i < rows_; ++i)
          REQUIRE(pn::decode_row<decltype(t)>(row(i), size(k()), &decoded_[size(i * k())]) == pn::Status::ok);
      });
    }
    return &decoded_[size(n * k())];
  }
  // |d| * z of a block.
  double largest_weight(int64_t n, int64_t b) const {
    const double d = static_cast<double>(pn::half_to_float(pn::load_scale(row(n)[b])));
    return std::fabs(d) * (type_ == PNCUDA_PN3T ? 4 : 8);
  }

 private:
  Weights(int type, int64_t rows, int64_t blocks, int64_t pad, int64_t shift)
      : type_(type),
        rows_(rows),
        blocks_(blocks),
        stride_(blocks * 34 + pad),
        memory_(rows == 0 ? 0 : (rows - 1) * stride_ + blocks * 34, shift) {}

  int type_;
  int64_t rows_, blocks_, stride_;
  Input memory_;
  mutable std::unique_ptr<Input> repacked_;
  mutable std::vector<float> decoded_;
};

// ---- Activations ----

// A bell curve with some zeros and some that are much larger.
inline std::vector<float> random_values(Random& random, int64_t count) {
  std::vector<float> values(size(count));
  for (float& value : values) {
    value = static_cast<float>(random.gauss());
    const std::size_t how = random.below(128);
    if (how == 0) value *= 300.0f;
    if (how == 1) value = 0.0f;
    if (how == 2) value = -0.0f;
    if (how == 3) value *= 1e-4f;
  }
  return values;
}

// Tokens of k numbers of a type, `pad` elements between them.
class Activations {
 public:
  Activations(int type, int64_t tokens, int64_t k, const std::vector<float>& values, int64_t pad = 0, int64_t shift = 0)
      : type_(type),
        tokens_(tokens),
        k_(k),
        stride_((k + pad) * bytes_of(type)),
        values_(values),
        memory_(tokens == 0 ? 0 : (tokens - 1) * stride_ + k * bytes_of(type), shift) {
    REQUIRE(int64_t(values.size()) == tokens * k);
    for (int64_t m = 0; m < tokens; ++m)
      for (int64_t i = 0; i < k; ++i) {
        const std::uint32_t bits = bits_as(type, values[size(m * k + i)]);
        store_bits(type, memory_.data() + m * stride_, i, bits);
        values_[size(m * k + i)] = value_of(type, bits);
      }
    memory_.freeze();
  }
  Activations(int type, int64_t tokens, int64_t k, Random& random, int64_t pad = 0, int64_t shift = 0)
      : Activations(type, tokens, k, random_values(random, tokens * k), pad, shift) {}
  int type() const { return type_; }
  int64_t tokens() const { return tokens_; }
  int64_t k() const { return k_; }
  int64_t stride() const { return stride_; }
  const uint8_t* data() const { return memory_.data(); }
  // As they are after rounding to the type.
  const float* token(int64_t m) const { return values_.data() + m * k_; }
  const std::vector<float>& values() const { return values_; }
  bool unchanged() const { return memory_.unchanged(); }

 private:
  int type_;
  int64_t tokens_, k_, stride_;
  std::vector<float> values_;
  Input memory_;
};

// The tokens at these places, in this order.
inline Activations pick(const Activations& from, const std::vector<int64_t>& tokens, int64_t pad = 0) {
  std::vector<float> values;
  for (const int64_t m : tokens) values.insert(values.end(), from.token(m), from.token(m) + from.k());
  return Activations(from.type(), int64_t(tokens.size()), from.k(), values, pad);
}

// ---- Results ----

// [tokens][rows]: the exact sums and what bounds are measured by: S of pncuda.h, and T, the same with the largest
// activation of 16 blocks in place of each.
struct Exact {
  std::vector<double> y, s, t;
};
inline Exact multiply_exactly(const Weights& weights, const float* x, int64_t tokens) {
  Exact exact;
  const int64_t block_size = block_size_of(weights.type());
  for (int64_t m = 0; m < tokens; ++m) {
    const float* const token = x + m * weights.k();
    std::vector<double> magnitude, largest;  // of the activations of a block, of those of 16
    for (int64_t b = 0; b < weights.blocks(); ++b) {
      double sum = 0;
      if (b % 16 == 0) largest.push_back(0);
      for (int64_t i = 0; i < block_size; ++i) {
        const double x_i = std::fabs(static_cast<double>(token[b * block_size + i]));
        sum += x_i;
        largest.back() = std::max(largest.back(), x_i);
      }
      magnitude.push_back(sum);
    }
    for (int64_t n = 0; n < weights.rows(); ++n) {
      const float* const w = weights.decoded(n);
      double y = 0, s = 0, t = 0;
      for (int64_t i = 0; i < weights.k(); ++i) y += static_cast<double>(w[i]) * static_cast<double>(token[i]);
      for (int64_t b = 0; b < weights.blocks(); ++b) {
        s += weights.largest_weight(n, b) * magnitude[size(b)];
        t += weights.largest_weight(n, b) * static_cast<double>(block_size) * largest[size(b / 16)];
      }
      exact.y.push_back(y);
      exact.s.push_back(s);
      exact.t.push_back(t);
    }
  }
  return exact;
}

struct GemvOptions {
  int y_type = PNCUDA_F32;
  int mode = PNCUDA_ACCURATE;
  int hadamard = 0;
  int64_t y_pad = 0;    // elements
  int64_t y_shift = 0;  // bytes
  pncuda_stream stream = nullptr;
};

inline pncuda_gemv_args gemv_args(const pncuda_weights& weights, const Activations& x, const Output& y,
                                  const GemvOptions& options) {
  pncuda_gemv_args args{};
  args.struct_size = sizeof args;
  args.weights = &weights;
  args.x = x.data();
  args.x_stride = x.stride();
  args.x_type = x.type();
  args.y_type = options.y_type;
  args.y = y.data();
  args.y_stride = y.stride();
  args.tokens = x.tokens();
  args.mode = options.mode;
  args.hadamard_block = options.hadamard;
  return args;
}

// The results' bits, [tokens][rows].
inline std::vector<std::uint32_t> gemv(const pncuda_weights& weights, const Activations& x,
                                       const GemvOptions& options = {}) {
  const int64_t element = bytes_of(options.y_type);
  const Output y(x.tokens(), weights.rows * element, (weights.rows + options.y_pad) * element, options.y_shift);
  const pncuda_gemv_args args = gemv_args(weights, x, y, options);
  REQUIRE(pncuda_gemv(&args, options.stream) == PNCUDA_OK);
  REQUIRE(y.intact());
  REQUIRE(x.unchanged());
  std::vector<std::uint32_t> bits;
  for (int64_t m = 0; m < x.tokens(); ++m)
    for (int64_t n = 0; n < weights.rows; ++n) bits.push_back(load_bits(options.y_type, y.row(m), n));
  return bits;
}

// The call gives these bits of fp32 from two host threads at once, again and again; its results lie without gaps.
inline void check_from_several_threads(const pncuda_gemv_args& call, const std::vector<std::uint32_t>& want) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(2, 0);
  for (std::size_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] {
      std::vector<float> y(want.size());
      for (int turn = 0; turn < 5; ++turn) {
        pncuda_gemv_args args = call;
        args.y = y.data();
        wrong[i] += pncuda_gemv(&args, nullptr) != PNCUDA_OK;
        for (std::size_t n = 0; n < y.size(); ++n) wrong[i] += bits_of(y[n]) != want[n];
      }
    });
  for (auto& thread : threads) thread.join();
  for (const int count : wrong) REQUIRE(count == 0);
}

// ---- Looking rows up ----

// Ids in and out of range of 37 rows, some twice, as 4 or 8 bytes each: check_row(id, bytes of the result) for those
// that exist, NaN for the others.
template <class CheckRow>
void check_get_rows(const pncuda_weights& weights, int id_bytes, int out_type, CheckRow&& check_row) {
  REQUIRE(weights.rows == 37);
  std::vector<int64_t> ids = {36, 0, 5, 5, 16, 15, -1, 37, 31, 32, 33, INT32_MIN, INT32_MAX, 7};
  if (id_bytes == 8) ids.insert(ids.end(), {INT64_MIN, INT64_MAX, (int64_t{1} << 32) + 3, -(int64_t{1} << 32) + 3});
  std::vector<uint8_t> bytes;
  for (const int64_t id : ids)
    for (int i = 0; i < id_bytes; ++i) bytes.push_back(static_cast<uint8_t>(id >> (8 * i)));
  const Input id_memory(bytes, id_bytes);
  const int64_t count = int64_t(ids.size()), row = weights.k * bytes_of(out_type);
  const Output out(count, row, row + bytes_of(out_type), bytes_of(out_type));
  const pncuda_get_rows_args args{sizeof args, &weights, id_memory.data(), count,
                                  id_bytes,    out_type, out.data(),       out.stride()};
  CAPTURE(weights.type, weights.layout, weights.k, name_of(out_type), id_bytes);
  REQUIRE(pncuda_get_rows(&args, nullptr) == PNCUDA_OK);
  REQUIRE(out.intact());
  for (int64_t i = 0; i < count; ++i) {
    if (ids[size(i)] >= 0 && ids[size(i)] < weights.rows) {
      check_row(ids[size(i)], out.row(i));
    } else {
      for (int64_t e = 0; e < weights.k; ++e)
        REQUIRE(std::isnan(value_of(out_type, load_bits(out_type, out.row(i), e))));
    }
  }
  REQUIRE(id_memory.unchanged());
}

}  // namespace testing

#endif  // PN_TESTS_PNCUDA_TESTING_HPP
