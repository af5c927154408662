// pn::cpu: SIMD kernels for PN blocks, in the compiled library libpn_cpu (CMake target pn::cpu). The kernels of
// BF16_P12 and BF16 are in p12/cpu.hpp; both headers share what the first half of this one declares.
//
// Contract of every function here and in p12/cpu.hpp
//   addresses  weights, blocks, activations and results may lie at any address. Nothing is read before or behind the
//              rows given, and nothing is written but the rows of the result.
//   strides    the distance in BYTES between the beginnings of two rows, so a range of rows, or a range of columns that
//              begins and ends at blocks, is a view: pointer and stride. Rows of results must not overlap each other or
//              the input.
//   threads    nothing here makes threads or keeps state: callers share out ranges of rows. No bit of a result depends
//              on how they do that, or on how many tokens share a call.
//   memory     nothing is allocated; workspaces are the caller's and their sizes come from a function.
//   numbers    the caller's floating-point environment (rounding, flush-to-zero) has no influence and is given back.
//   hostile    any bytes are safe as blocks; what validate_rows refuses gives unspecified numbers.
//   isa        Isa::best, or one of isas(): the instruction set to use.
//   T          pn::pn3t or pn::pn4t
//   returns    Status::ok; bad_length when k is not a multiple of the block, or when an Element or Activations is none
//              of those declared; isa_not_available; too_many_tokens beyond max_tokens, but where any number is taken;
//              and what is listed with each function. On a failure the results are unspecified unless said otherwise,
//              and *fault, where one is given, tells where. Zero rows, tokens or ids are ok. pn::status_text says a
//              status in words.
//   sizes      a row of k weights is pn::row_bytes<T>(k) bytes of blocks, p12::row_bytes(k) of BF16_P12's
#ifndef PN_CPU_HPP
#define PN_CPU_HPP

#include <pn/block34.hpp>
#include <pn/status.hpp>

// What a shared libpn_cpu shows. A static one shows nothing, so that a shared object that it becomes a part of can hold
// it beside another version elsewhere in the program.
#if defined(__GNUC__) && defined(PN_CPU_BUILD)
#define PN_CPU_API __attribute__((visibility("default")))
#else
#define PN_CPU_API
#endif

// SIMD kernels, chosen at run time: libpn_cpu.
namespace pn::cpu {

// ---- Instruction sets ----

// What kernels may be compiled for.
enum class Isa : std::uint8_t {
  best = 0,        // the first of isas(), found out once
  baseline = 1,    // any processor: plain C++ and the core's own code
  neon = 2,        // AArch64
  avx2 = 3,        // AVX2, FMA, F16C
  avx512 = 4,      // AVX-512 F, BW, DQ, VL (x86-64-v4)
  avx512_icl = 5,  // and VBMI, VNNI: Ice Lake, Zen 4 and later
};

// Instruction sets, as a range.
struct IsaList {
  Isa items[5];                                              // the best first
  std::size_t count;                                         // of the items that are set
  const Isa* begin() const noexcept { return items; }        // of the range
  const Isa* end() const noexcept { return items + count; }  // of the range
  std::size_t size() const noexcept { return count; }        // of the range
};

// The instruction sets that this library holds and this processor and its operating system run, the best first; the
// last is Isa::baseline.
PN_CPU_API IsaList isas() noexcept;

// "avx2" and so on; never null.
PN_CPU_API const char* isa_name(Isa isa) noexcept;

// ---- Words that the functions share ----

// What numbers lie in a row.
enum class Element : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

// Bytes of one number.
constexpr std::size_t element_bytes(Element element) noexcept { return element == Element::f32 ? 4 : 2; }

// Where something went wrong.
struct Fault {
  std::size_t row;    // row of the call, or place in a list of ids
  std::size_t index;  // element or block of the row: each function says which
};

// The most tokens in one call of a multiply.
inline constexpr std::size_t max_tokens = 16;

// How a multiply adds up.
enum class Order : std::uint8_t {
  fast = 0,      // fused multiply-adds where the instruction set has them
  portable = 1,  // every product and every sum rounded by itself: the same bits on every instruction set
};

// Whether results will be read soon or are too large for the caches. A hint: the bytes are the same.
enum class Stores : std::uint8_t { cached = 0, streaming = 1 };

// `count` numbers from one type to another: exact, or rounded once to nearest even (beyond the target's range
// infinite), the bits of pn/half.hpp. The same type: a copy.
PN_CPU_API Status convert(const void* in, Element from, std::size_t count, void* out, Element to,
                          Isa isa = Isa::best) noexcept;

// ---- Quantizing, validating, dequantizing PN ----

// `rows` rows of k weights to PN blocks: the bytes of pn::quantize_row.
//   weights     f32, f16 or bf16
//   importance  k doubles, one per column, for all rows; or null
//   fault       index: the element of the row; rows before it have been written
//   returns     as pn::quantize_row: not_finite, bad_importance, scale_overflow
template <class T>
PN_CPU_API Status quantize_rows(const void* weights, Element element, std::size_t weight_stride, std::size_t rows,
                                std::size_t k, const double* importance, void* blocks, std::size_t block_stride,
                                Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// What quantizing cost: sums over weights w and the v that their blocks stand for.
struct ErrorSums {
  double squared_error = 0;   // of g * (w - v)^2
  double squared_weight = 0;  // of g * w^2
};
// Adds rows of weights and of their blocks to `sums`; g: the importance of the column, 1 where `importance` is null. In
// double and in one order, so the same bits on every instruction set: sixteen partial sums over a row, of the columns
// that are equal modulo 16, added from the first to the last. (A NaN may be another NaN.)
template <class T>
PN_CPU_API Status add_error(const void* weights, Element element, std::size_t weight_stride, std::size_t rows,
                            std::size_t k, const double* importance, const void* blocks, std::size_t block_stride,
                            ErrorSums& sums, Isa isa = Isa::best) noexcept;

// Are all blocks valid? fault: the first row and block that is not. Returns scale_not_finite, reserved_bits_set.
template <class T>
PN_CPU_API Status validate_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k,
                                Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// A tile: columns first .. first + columns - 1 of each row, which need not begin or end at a block, to f32 (exact), or
// to f16 or bf16 (rounded once to nearest even; beyond f16's range infinite). `blocks` is the beginning of a row; a row
// holds at least first + columns weights. The bits of pn::decode_row, but that a NaN may have another payload.
template <class T>
PN_CPU_API Status dequantize_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t first,
                                  std::size_t columns, void* out, Element element, std::size_t out_stride,
                                  Isa isa = Isa::best) noexcept;

// Embedding look-up: row ids[i] of a matrix of `rows` rows becomes row i of `out`. out_of_range when an id is negative
// or not below `rows`: fault->row is its place in `ids`, and nothing has been written.
template <class T>
PN_CPU_API Status get_rows(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k,
                           const std::int64_t* ids, std::size_t count, void* out, Element element,
                           std::size_t out_stride, Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// ---- Rotating activations for rotated weights ----

// `tokens` rows of k floats in segments of b: pn::hadamard_activations of each row, bit for bit (but that a NaN may be
// another). b is 64, 128, 256, 512 or 1024 and divides k, or the status is bad_length. `out` may be x, with the same
// stride; otherwise they must not overlap.
PN_CPU_API Status hadamard_activations(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k,
                                       std::size_t b, float* out, std::size_t out_stride, Isa isa = Isa::best) noexcept;

// ---- Multiplying: y[m][n] = sum over k of x[m][k] * w[n][k], m < tokens <= 16 ----
//
// First `prepare_activations` brings x into the order that the kernels of one instruction set read; then any number of
// threads multiply ranges of rows with it:
//
//   void* x = aligned_to_64(activations_bytes<pn4t>(Activations::q8_0, tokens, k));
//   prepare_activations<pn4t>(Activations::q8_0, x_f32, x_stride, tokens, k, x);
//   multiply<pn4t>(blocks + first * stride, stride, last - first, k, x, y + first, y_stride);

// What x becomes. The weights are never rounded: d * (n - z) is exact everywhere. Error bounds: see multiply.
enum class Activations : std::uint8_t {
  f32 = 0,   // as they are
  i16 = 1,   // one fp32 scale per PN block, x / scale rounded to -32767 .. 32767
  q8_0 = 2,  // ggml's Q8_0: one fp16 scale per 32, the bytes of pn::quantize_row_q8_0; k a multiple of 32
};

// Bytes of prepared activations, the same for every instruction set, and never less for more tokens; a multiple of 64.
// 0 when the arguments are not ones that prepare_activations takes.
template <class T>
PN_CPU_API std::size_t activations_bytes(Activations kind, std::size_t tokens, std::size_t k) noexcept;

// x: `tokens` rows of k floats. `prepared` is aligned to 64 bytes. It is good for multiplies by this library, on this
// machine, with this T, and by the same instruction set. Returns too_many_tokens; misaligned; i16 and q8_0: not_finite
// (fault: token and element), scale_overflow (q8_0: a scale beyond fp16; fault: token and first element of the 32).
template <class T>
PN_CPU_API Status prepare_activations(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens,
                                      std::size_t k, void* prepared, Fault* fault = nullptr,
                                      Isa isa = Isa::best) noexcept;

// y[m][n] for n < rows and every token m that was prepared; y_stride is the distance in bytes between tokens. Returns
// misaligned; not_prepared when `prepared` was not made by prepare_activations with this T and k. Takes up to 32 KiB of
// stack (optimised).
//
// i16 has one order of additions everywhere. The integers of a PN block are added up exactly, the sum is rounded to
// fp32 and multiplied by d times the block's scale of x, each rounded. Four such products p are added up as (p0 + p2) +
// (p1 + p3), those behind the end of the row being 0, and these sums from the first to the last. So all instruction
// sets and multiply_batch give the same bits. f32 and q8_0 have an order for each instruction set.
//
// With exact = sum over k of w * x of what was prepared (for i16 and q8_0 the rounded x), computed without rounding,
// |y - exact| <= (k / 16 + 64) * 2^-24 * sum over k of |w * x|, as long as nothing is subnormal or overflows. Measured:
// below 1e-6 of that sum.
// Rounding x adds, for each k, |w| times: i16 at most 1/65000 of the largest |x| of the PN block (where that is above
// 2^-100); q8_0 at most 1/254 of the largest |x| of the 32, and on top of that 2^-11 of it or 127 * 2^-25, whichever is
// more (the latter for scales that are subnormal in fp16, which means all |x| below 0.0078).
template <class T>
PN_CPU_API Status multiply(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k,
                           const void* prepared, float* y, std::size_t y_stride) noexcept;

// ---- The same for any number of tokens, as a prompt has them ----
//
// Weights are decoded once for all tokens of a call, up to 32 rows at a time: rows in ranges of a multiple of 32, and
// all tokens in one call, are best. Tokens lie in groups of 8, that of token m at m / 8 * batch_bytes<T>(kind, 8, k).
// Threads can prepare ranges of tokens, each with a call of prepare_batch for the groups it consists of: all with one
// kind and one instruction set, and all but the last a multiple of 8 long. Faults tell the token of the call.
//
//   void* x = aligned_to_64(batch_bytes<pn4t>(Activations::q8_0, tokens, k));
//   prepare_batch<pn4t>(Activations::q8_0, x_f32, x_stride, tokens, k, x);
//   multiply_batch<pn4t>(blocks + first * stride, stride, last - first, k, x, tokens, y + first, y_stride);

// Tokens in a group.
inline constexpr std::size_t batch_tokens = 8;

// Bytes of a prepared batch, the same for every instruction set; a multiple of 64. 0 when the arguments are not ones
// that prepare_batch takes, or when it would not fit std::size_t.
template <class T>
PN_CPU_API std::size_t batch_bytes(Activations kind, std::size_t tokens, std::size_t k) noexcept;

// As prepare_activations, for any number of tokens; x is rounded in the same way.
template <class T>
PN_CPU_API Status prepare_batch(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens,
                                std::size_t k, void* prepared, Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// As multiply, for the first `tokens` tokens of a batch, which must not be more than were prepared. i16: the bits of
// multiply, which works in this way from 5 tokens on. f32 and q8_0: from about 8 tokens on 1.5 to 3.5 times as fast as
// multiply, but added up in another order, segment by segment (a block, or for q8_0 what lies in one Q8_0 block of it)
// from the first to the last. |y - exact| is up to (k / 16 + 96) * 2^-24 * sum over k of |w * x|; q8_0 has the same
// bits on every instruction set. Takes up to 32 KiB of stack (optimised).
template <class T>
PN_CPU_API Status multiply_batch(const void* blocks, std::size_t stride, std::size_t rows, std::size_t k,
                                 const void* prepared, std::size_t tokens, float* y, std::size_t y_stride) noexcept;

// ---- A low-rank add-on (LoRA) beside packed weights of any kind: y += scale * B (A x) ----

// The two factors.
struct LowRank {
  const void* a;         // [rank][k]
  std::size_t a_stride;  // bytes
  const void* b;         // [n][rank]
  std::size_t b_stride;  // bytes
  std::size_t rank;      // 1 .. 256
  Element element;       // of a and b: f32 or bf16
  float scale;           // of B (A x)
};

// The largest rank.
inline constexpr std::size_t max_rank = 256;

// t[m][r] = sum over k of a[r][k] * x[m][k]; any k. t_stride: bytes between tokens, t holds `rank` floats for each.
// |error| <= (k / 4 + 8) * 2^-24 * sum over k of |a * x|. Returns bad_rank (rank or element is not one of the above).
PN_CPU_API Status low_rank_down(const LowRank& adapter, std::size_t k, const float* x, std::size_t x_stride,
                                std::size_t tokens, float* t, std::size_t t_stride, Isa isa = Isa::best) noexcept;

// y[m][n] += scale * sum over r of b[n][r] * t[m][r] for the `rows` rows of b from `first` on, for every token with
// enabled[m] (null: all). y points to the result of row `first`. Other tokens of y are neither read nor written.
PN_CPU_API Status low_rank_up(const LowRank& adapter, std::size_t first, std::size_t rows, const float* t,
                              std::size_t t_stride, std::size_t tokens, const bool* enabled, float* y,
                              std::size_t y_stride, Isa isa = Isa::best) noexcept;

}  // namespace pn::cpu

#endif  // PN_CPU_HPP
