// p12::cpu: SIMD kernels for BF16_P12 and for plain BF16, in the compiled library libpn_cpu (CMake target pn::cpu). The
// contract that all functions share, and the words Isa, Element, Fault, Order and Stores, are in pn/cpu.hpp.
#ifndef P12_CPU_HPP
#define P12_CPU_HPP

#include <p12/block392.hpp>
#include <p12/scan.hpp>
#include <pn/cpu.hpp>

// Kernels of libpn_cpu for BF16_P12 and plain BF16.
namespace p12::cpu {

using pn::Status;
using pn::cpu::Element;
using pn::cpu::Fault;
using pn::cpu::Isa;
using pn::cpu::max_tokens;
using pn::cpu::Order;
using pn::cpu::Stores;

// ---- Packing, unpacking, validating ----

// `rows` rows of k bf16 weights to their canonical blocks: the bytes of p12::pack_row. too_many_listed when a block
// does not fit; fault: the first such row and block. Blocks that do not fit are left unwritten, all others are written.
// *tally (when given) has all blocks of these rows added, in row order.
PN_CPU_API Status pack_rows(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k,
                            void* blocks, std::size_t block_stride, RowScan* tally = nullptr, Fault* fault = nullptr,
                            Isa isa = Isa::best) noexcept;

// Adds all blocks of the rows to `tally`, as p12::scan_row does: what packing would meet.
PN_CPU_API Status scan_rows(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k,
                            RowScan& tally, Isa isa = Isa::best) noexcept;

// Rows of blocks to bf16 (the bits of p12::unpack_row), to f32 (the same values), or to f16 (rounded to nearest even,
// beyond f16's range infinite). Stores::streaming writes past the caches where rows of the result allow it (their
// addresses are multiples of 64).
PN_CPU_API Status unpack_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k, void* out,
                              Element element, std::size_t out_stride, Stores stores = Stores::cached,
                              Isa isa = Isa::best) noexcept;

// A tile: columns first .. first + columns - 1 of each row, which need not begin or end at a block. `blocks` is the
// beginning of a row; a row holds at least first + columns weights.
PN_CPU_API Status unpack_tile(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t first,
                              std::size_t columns, void* out, Element element, std::size_t out_stride,
                              Isa isa = Isa::best) noexcept;

// Are all blocks canonical? The verdict and the reason of p12::validate_row; fault: the first row and block that is
// not.
PN_CPU_API Status validate_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k,
                                Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// Embedding look-up: row ids[i] of a matrix of `rows` rows becomes row i of `out`. out_of_range when an id is negative
// or not below `rows`: fault->row is its place in `ids`, and nothing has been written.
PN_CPU_API Status get_rows(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k,
                           const std::int64_t* ids, std::size_t count, void* out, Element element,
                           std::size_t out_stride, Fault* fault = nullptr, Isa isa = Isa::best) noexcept;

// ---- Multiplying: y[m][n] = sum over k of x[m][k] * w[n][k], m < tokens <= 16 ----
//
// As in pn/cpu.hpp: prepare x once, then multiply ranges of rows from any number of threads. Packed and unpacked
// weights give the same bits, whatever they are (a NaN in place of a NaN): the packed kernel rebuilds each bf16 and
// then does what the BF16 kernel does.
//
// The order: 64 partial sums from +0, where s[j] takes the products of k = j, j + 64, j + 128, .. in this order; then
// u[i] = s[2i] + s[2i+1] for i < 32, and u[i] += u[i + h] for i < h, with h = 16, 8, 4, 2, 1; y = u[0]. All in fp32.
// Order::fast: s = fma(w, x, s) on avx2, avx512, avx512_icl and neon, which thus agree to the last bit, and as portable
// on baseline. Order::portable: s = s + w * x, the product rounded first, which gives the same bits everywhere.
// With exact = the sum without rounding, |y - exact| <= (k / 64 + 7) * 2^-24 * sum over k of |w * x|, and one more
// 2^-24 in Order::portable (as long as no product is subnormal).

// Bytes of prepared activations, the same for every instruction set; a multiple of 64. 0 when the arguments are not
// ones that prepare_activations takes.
PN_CPU_API std::size_t activations_bytes(std::size_t tokens, std::size_t k) noexcept;

// x: `tokens` rows of k floats, k a multiple of 256. `prepared` is aligned to 64 bytes, and good for multiplies by this
// library, on this machine, by the same instruction set. Returns too_many_tokens; misaligned.
PN_CPU_API Status prepare_activations(const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k,
                                      void* prepared, Isa isa = Isa::best) noexcept;

// y[m][n] for n < rows and every token m that was prepared; y_stride is the distance in bytes between tokens. Returns
// not_prepared when `prepared` was not made by prepare_activations with this k.
PN_CPU_API Status multiply(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k,
                           const void* prepared, float* y, std::size_t y_stride, Order order = Order::fast) noexcept;

// The same from plain BF16 rows.
PN_CPU_API Status multiply_bf16(const void* weights, std::size_t weight_stride, std::size_t rows, std::size_t k,
                                const void* prepared, float* y, std::size_t y_stride,
                                Order order = Order::fast) noexcept;

// Proof mode: every row is unpacked into the workspace by the core and then goes through multiply_bf16: what this gives
// is by construction what the unpacked model gives. Its bits are those of multiply. `workspace`:
// proof_workspace_bytes(k) bytes, any address. Otherwise as multiply.
PN_CPU_API Status multiply_unpacked(const void* blocks, std::size_t block_stride, std::size_t rows, std::size_t k,
                                    const void* prepared, float* y, std::size_t y_stride, void* workspace,
                                    Order order = Order::fast) noexcept;

// Bytes of multiply_unpacked's workspace.
PN_CPU_API std::size_t proof_workspace_bytes(std::size_t k) noexcept;

}  // namespace p12::cpu

#endif  // P12_CPU_HPP
