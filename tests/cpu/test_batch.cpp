// Proves that multiply_batch, and multiply with i16, give the bits of a model written here (i16, q8_0: on every
// instruction set) and lie within the stated bound of the exact sum; that no bit depends on how tokens and rows are
// shared out, on addresses or on the caller's floating-point environment; that nothing is read or written beyond the
// rows; that what was not prepared for a call is refused; and that activations are rounded to the same numbers on every
// instruction set.
#include <pthread.h>

#include <cfloat>
#include <functional>
#include <thread>

#include "../pn/environment.hpp"
#include "testing.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define PN_TESTS_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PN_TESTS_SANITIZED
#endif
#endif

using namespace testing;

namespace {

// ---- A matrix, and activations prepared for it ----

template <class T>
struct Matrix {
  std::size_t rows, k;
  Fenced blocks;            // a page that may not be touched directly behind the last row, or before the first
  std::vector<int> levels;  // n - z of each weight
  std::vector<float> d;     // of each block

  Matrix(std::size_t row_count, std::size_t columns, std::size_t gap = 7, At at = At::end, std::size_t shift = 0)
      : rows(row_count),
        k(columns),
        blocks(rows, pn::row_bytes<T>(k), pn::row_bytes<T>(k) + gap, at, shift),
        levels(rows * k),
        d(rows * block_count()) {}
  // With random codes, and scales whose exponent fields lie in [low, high].
  Matrix(Random& random, std::size_t row_count, std::size_t columns, int low, int high) : Matrix(row_count, columns) {
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t b = 0; b < block_count(); ++b) set(r, b, block_with<T>(random, random_scale(random, low, high)));
  }
  std::size_t block_count() const { return k / T::block_size; }
  void set(std::size_t r, std::size_t b, const Block34& block) {
    std::memcpy(blocks.row(r) + 34 * b, &block, 34);
    d[r * block_count() + b] = pn::half_to_float(pn::load_scale(block));
    for (std::size_t e = 0; e < T::block_size; ++e)
      levels[r * k + b * T::block_size + e] = pn::load_code<T>(block, e) - T::zero_point;
  }
  double weight(std::size_t r, std::size_t e) const {
    return static_cast<double>(d[r * block_count() + e / T::block_size]) * levels[r * k + e];
  }
};

// x, prepared for many tokens. The memory ends at a page that may not be touched.
template <class T>
struct Batch {
  Fenced memory;
  Batch(Activations kind, const float* x, std::size_t x_stride, std::size_t tokens, std::size_t k, Isa isa)
      : memory(pn::cpu::batch_bytes<T>(kind, tokens, k)) {
    memory.fill(0x3C);
    REQUIRE(pn::cpu::prepare_batch<T>(kind, x, x_stride, tokens, k, memory.data(), nullptr, isa) == Status::ok);
    REQUIRE(memory.intact());
  }
  const void* data() const { return memory.data(); }
};

// Results as [token][row] of call(y, y_stride), which has them written to an odd address and with an odd stride.
template <class Call>
std::vector<float> results(std::size_t rows, std::size_t tokens, const Call& call) {
  const Fenced y(tokens, 4 * rows, 4 * rows + 5, At::end, 3);
  REQUIRE(call(y.floats(), y.stride()) == Status::ok);
  REQUIRE(y.intact());
  std::vector<float> out(tokens * rows);
  for (std::size_t m = 0; m < tokens && rows > 0; ++m) std::memcpy(&out[m * rows], y.row(m), 4 * rows);
  return out;
}

// Of rows first .. first + rows - 1.
template <class T>
std::vector<float> multiply(const Matrix<T>& matrix, std::size_t first, std::size_t rows, const void* prepared,
                            std::size_t tokens) {
  return results(rows, tokens, [&](float* y, std::size_t stride) {
    return pn::cpu::multiply_batch<T>(matrix.blocks.row(first), matrix.blocks.stride(), rows, matrix.k, prepared,
                                      tokens, y, stride);
  });
}

// The same by pn::cpu::multiply, for all tokens of what prepare_activations made.
template <class T>
std::vector<float> multiply_few(const Matrix<T>& matrix, std::size_t first, std::size_t rows, const void* prepared,
                                std::size_t tokens) {
  return results(rows, tokens, [&](float* y, std::size_t stride) {
    return pn::cpu::multiply<T>(matrix.blocks.row(first), matrix.blocks.stride(), rows, matrix.k, prepared, y, stride);
  });
}

// Results of rows first .. of `whole`, as many as `part` has, and tokens token .. token + tokens - 1, are those of
// `part`.
bool is_part(const std::vector<float>& part, std::size_t tokens, std::size_t token, std::size_t first,
             const std::vector<float>& whole, std::size_t whole_rows) {
  const std::size_t rows = part.size() / tokens;
  for (std::size_t m = 0; m < tokens; ++m)
    if (std::memcmp(&part[m * rows], &whole[(token + m) * whole_rows + first], 4 * rows) != 0) return false;
  return true;
}

// ---- What must come out ----

// One token's x after rounding: element e is q[e] * scale[e]. As the library documents it: q8_0 from the core; i16 one
// scale for each block, codes to nearest even.
struct Rounded {
  std::vector<double> q;
  std::vector<float> scale;
};
template <class T>
Rounded rounded(Activations kind, const float* x, std::size_t k) {
  Rounded out = {std::vector<double>(x, x + k), std::vector<float>(k, 1.0f)};
  if (kind == Activations::q8_0) {
    std::vector<pn::BlockQ8_0> q8(k / 32);
    REQUIRE(pn::quantize_row_q8_0(x, k, q8.data()) == Status::ok);
    for (std::size_t e = 0; e < k; ++e) {
      out.q[e] = q8[e / 32].qs[e % 32];
      out.scale[e] = static_cast<float>(half_value(pn::detail::load_le16(q8[e / 32].d)));
    }
  } else if (kind == Activations::i16) {
    for (std::size_t start = 0; start < k; start += T::block_size) {
      double amax = 0;
      for (std::size_t e = start; e < start + T::block_size; ++e)
        amax = std::max(amax, std::fabs(static_cast<double>(x[e])));
      for (std::size_t e = start; e < start + T::block_size; ++e) {
        out.q[e] = amax > 0 ? std::nearbyint(static_cast<double>(x[e]) * (32767.0 / amax)) : 0.0;
        out.scale[e] = static_cast<float>(amax / 32767.0);
      }
    }
  }
  return out;
}

// Results as [token][row]: the bits that i16 and q8_0 must have, and what the bound is stated with.
struct Expected {
  std::vector<float> bits;
  std::vector<double> exact, size;  // sums of w * x and of |w * x|
};

// Segments, the largest runs of a row that lie in one PN block and share a scale of x: the integers exactly, then two
// products, each rounded. These are added up from the first to the last, for i16 after four by four with one another;
// then those behind the end are 0. (Tests are compiled without contraction.)
template <class T>
Expected expected(const Matrix<T>& matrix, Activations kind, const float* x, std::size_t tokens) {
  const std::size_t k = matrix.k, segment = kind == Activations::q8_0 ? 32 : T::block_size;
  Expected out;
  for (std::size_t m = 0; m < tokens; ++m) {
    const Rounded used = rounded<T>(kind, x + m * k, k);
    for (std::size_t n = 0; n < matrix.rows; ++n) {
      std::vector<float> products;
      double exact = 0, size = 0;
      for (std::size_t e = 0, end; e < k; e = end) {
        end = std::min((e / T::block_size + 1) * T::block_size, (e / segment + 1) * segment);
        double dot = 0, magnitudes = 0;  // of numbers below 2^24, or of products of 28 bits at most: exact
        for (std::size_t i = e; i < end; ++i) {
          const double product = matrix.levels[n * k + i] * used.q[i];
          dot += product;
          magnitudes += std::fabs(product);
        }
        const float d = matrix.d[n * matrix.block_count() + e / T::block_size];
        const float scale = d * used.scale[e];
        products.push_back(static_cast<float>(dot) * scale);
        const double exact_scale = static_cast<double>(d) * static_cast<double>(used.scale[e]);
        exact += dot * exact_scale;
        size += magnitudes * std::fabs(exact_scale);
      }
      float sum = 0;
      if (kind == Activations::i16) {
        products.resize((products.size() + 3) / 4 * 4);
        for (const float* p = products.data(); p < products.data() + products.size(); p += 4) {
          const float even = p[0] + p[2], odd = p[1] + p[3], four = even + odd;
          sum += four;
        }
      } else {
        for (const float product : products) sum += product;
      }
      out.bits.push_back(sum);
      out.exact.push_back(exact);
      out.size.push_back(size);
    }
  }
  return out;
}

template <class T>
void check_bits(const std::vector<float>& y, const Expected& want, std::size_t rows) {
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!same_number(y[i], want.bits[i]))
      FAIL(T::name << " token " << i / rows << " row " << i % rows << ": " << y[i] << ", not " << want.bits[i]);
}

// The stated bound, and of i16 and q8_0 the bits.
template <class T>
void check(const std::vector<float>& y, const Expected& want, std::size_t rows, std::size_t k, Activations kind) {
  REQUIRE(y.size() == want.bits.size());
  const double bound = (static_cast<double>(k) / 16 + 96) * 0x1p-24;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double error = std::fabs(static_cast<double>(y[i]) - want.exact[i]);
    if (!(error <= bound * want.size[i]))
      FAIL("token " << i / rows << " row " << i % rows << ": " << y[i] << ", not " << want.exact[i]
                    << "; error / bound " << error / (bound * want.size[i]));
  }
  if (kind != Activations::f32) check_bits<T>(y, want, rows);
}

// Those of `list` that are lengths of rows for T and x of this kind.
template <class T>
std::vector<std::size_t> lengths(Activations kind, std::initializer_list<std::size_t> list) {
  std::vector<std::size_t> fit;
  for (const std::size_t k : list)
    if (k % T::block_size == 0 && (kind != Activations::q8_0 || k % 32 == 0)) fit.push_back(k);
  return fit;
}

// Makes the page behind (At::end) or before (At::begin) every row inaccessible, or accessible again. Rows end, or
// begin, at pages and have at least one page between them; the outermost of these pages are inaccessible anyway.
void protect_gaps(const Fenced& fenced, std::size_t rows, At at, int access) {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t n = 1; n < rows; ++n) {
    std::uint8_t* gap = at == At::begin ? fenced.row(n) - page : fenced.row(n - 1) + fenced.row_bytes();
    REQUIRE(::mprotect(gap, page, access) == 0);
  }
}

constexpr std::size_t usual_k = 640;
constexpr std::size_t token_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 25, 33};
constexpr std::size_t row_counts[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 65};

}  // namespace

// ---- Results ----

TEMPLATE_TEST_CASE("batch: results of every shape have the model's bits and lie within the bound", "", pn::pn3t,
                   pn::pn4t) {
  using T = TestType;
  constexpr std::size_t most_tokens = 33, most_rows = 65;
  for (const Activations kind : activation_kinds)
    for (const std::size_t k : lengths<T>(kind, {64, 80, 128, 160, 192, 240, 320, 448, 480})) {
      INFO(name_of(kind) << ", k " << k);
      Random random(171 + k);
      const Matrix<T> matrix(random, most_rows, k, 4, 12);
      const std::vector<float> x = random_activations(random, most_tokens * k);
      const Expected want = expected(matrix, kind, x.data(), most_tokens);
      for_each_isa([&](Isa isa) {
        const Batch<T> all(kind, x.data(), 4 * k, most_tokens, k, isa);
        const std::vector<float> whole = multiply(matrix, 0, most_rows, all.data(), most_tokens);
        check<T>(whole, want, most_rows, k, kind);
        // Tokens and rows from anywhere, so every one of them in every place of a group and of a panel.
        for (const std::size_t tokens : token_counts) {
          const std::size_t token = random.below(most_tokens + 1 - tokens);
          const Batch<T> some(kind, &x[token * k], 4 * k, tokens, k, isa);
          for (const std::size_t rows : row_counts) {
            const std::size_t first = random.below(most_rows + 1 - rows);
            if (!is_part(multiply(matrix, first, rows, some.data(), tokens), tokens, token, first, whole, most_rows))
              FAIL(tokens << " tokens from " << token << ", " << rows << " rows from " << first);
          }
          if (kind == Activations::i16 && tokens <= pn::cpu::max_tokens) {  // multiply gives the same bits
            const Prepared<T> few(kind, &x[token * k], 4 * k, tokens, k, isa);
            for (const std::size_t rows : row_counts) {
              const std::size_t first = random.below(most_rows + 1 - rows);
              if (!is_part(multiply_few(matrix, first, rows, few.data(), tokens), tokens, token, first, whole,
                           most_rows))
                FAIL("multiply: " << tokens << " tokens from " << token << ", " << rows << " rows from " << first);
            }
          }
          const std::size_t fewer = 1 + random.below(tokens);  // than were prepared
          if (!is_part(multiply(matrix, 0, 9, some.data(), fewer), fewer, token, 0, whole, most_rows))
            FAIL(fewer << " of " << tokens << " tokens from " << token);
        }
      });
    }
}

TEMPLATE_TEST_CASE("batch: long rows, whose codes pass in several pieces", "", pn::pn3t, pn::pn4t) {
  // Pieces end where panels of codes are full: after 2 to 24 blocks, odd numbers among them; the last may be short.
  using T = TestType;
  for (const Activations kind : activation_kinds)
    for (const std::size_t k : lengths<T>(kind, {1280, 1360, 1440, 1520, 1536, 1600, 2560, 3040, 3072, 5120})) {
      INFO(name_of(kind) << ", k " << k);
      Random random(172 + k);
      const std::size_t rows = k == 5120 ? 17 : 33, tokens = k == 5120 ? 5 : 9;
      const Matrix<T> matrix(random, rows, k, 4, 12);
      const std::vector<float> x = random_activations(random, tokens * k);
      const Expected want = expected(matrix, kind, x.data(), tokens);
      for_each_isa([&](Isa isa) {
        const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
        const std::vector<float> whole = multiply(matrix, 0, rows, all.data(), tokens);
        check<T>(whole, want, rows, k, kind);
        const std::size_t few = 1 + random.below(4), first = random.below(rows - 3);
        CHECK(is_part(multiply(matrix, first, 3, all.data(), few), few, 0, first, whole, rows));
        if (kind != Activations::i16) return;
        for (const std::size_t count : {std::size_t{1}, few, tokens}) {  // multiply gives the same bits
          const Prepared<T> prepared(kind, x.data(), 4 * k, count, k, isa);
          CHECK(is_part(multiply_few(matrix, 0, rows, prepared.data(), count), count, 0, 0, whole, rows));
        }
      });
    }
}

TEMPLATE_TEST_CASE("batch: sizes that differ wildly, subnormal and infinite ones among them", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 960, rows = 19, tokens = 11;
  Random random(173);
  for (int i = 0; i < 4; ++i) {
    Matrix<T> matrix(random, rows, k, i == 0 ? 1 : 0, 30);
    for (std::size_t b = 0; b < matrix.block_count(); ++b)  // nearly all weights 0
      if (b % 5 != 0) {
        std::uint8_t codes[T::block_size];
        std::fill(codes, codes + T::block_size, static_cast<std::uint8_t>(T::zero_point));
        Block34 block;
        pn::store_block<T>(0x3C00, codes, block);
        matrix.set(3, b, block);
      }
    for (const Activations kind : activation_kinds) {
      INFO(name_of(kind) << ", round " << i);
      std::vector<float> x = random_activations(random, tokens * k);
      // Where the bound is stated nothing is subnormal; then everything may be, up to the largest that can be rounded.
      for (std::size_t e = 0; e < x.size(); e += 16) {
        const int power = i == 0                      ? random.between(-6, 8)
                          : kind == Activations::q8_0 ? random.between(-149, 16)
                          : kind == Activations::i16  ? random.between(-149, 120)
                                                      : random.between(-149, 100);
        for (std::size_t j = e; j < e + 16; ++j) x[j] = std::ldexp(x[j], power);
      }
      const Expected want = expected(matrix, kind, x.data(), tokens);
      for_each_isa([&](Isa isa) {
        const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
        const std::vector<float> y = multiply(matrix, 0, rows, all.data(), tokens);
        if (i == 0)
          check<T>(y, want, rows, k, kind);
        else if (kind != Activations::f32)
          check_bits<T>(y, want, rows);
        if (kind != Activations::i16) return;
        for (const std::size_t count : {std::size_t{1}, std::size_t{3}, tokens}) {  // multiply gives the same bits
          const Prepared<T> prepared(kind, x.data(), 4 * k, count, k, isa);
          const std::vector<float> few = multiply_few(matrix, 0, rows, prepared.data(), count);
          for (std::size_t e = 0; e < few.size(); ++e) REQUIRE(same_number(few[e], y[e]));
        }
      });
    }
  }
}

TEMPLATE_TEST_CASE("batch: every code meets the activation of its own element", "", pn::pn3t, pn::pn4t) {
  // Token m is 0 but for element m, whose code is the largest and its scale 1: the result is one weight, exactly.
  using T = TestType;
  constexpr std::size_t k = 5 * 64, rows = 18, tokens = k;
  Random random(174);
  const Matrix<T> matrix(random, rows, k, 15, 15);
  for (const Activations kind : activation_kinds) {
    const float size = kind == Activations::f32 ? 1.0f : kind == Activations::i16 ? 32767.0f : 127.0f;
    std::vector<float> x(tokens * k);
    for (std::size_t m = 0; m < tokens; ++m) x[m * k + m] = m % 2 == 0 ? size : -size;
    const auto check_isa = [&](Isa isa) {
      const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
      const std::vector<float> y = multiply(matrix, 0, rows, all.data(), tokens);
      for (std::size_t m = 0; m < tokens; ++m)
        for (std::size_t n = 0; n < rows; ++n) {
          const float want = static_cast<float>(matrix.weight(n, m) * static_cast<double>(x[m * k + m]));
          if (!(y[m * rows + n] == want))
            FAIL(name_of(kind) << " row " << n << " element " << m << ": " << y[m * rows + n] << ", not " << want);
        }
    };
    for_each_isa(check_isa);
    check_isa(Isa::best);
  }
}

TEMPLATE_TEST_CASE("batch: the largest codes and activations all along a long row", "", pn::pn3t, pn::pn4t) {
  // Integer sums are at their largest: nothing may overflow.
  using T = TestType;
  constexpr std::size_t k = 5120, rows = 5, tokens = 9;
  Matrix<T> matrix(rows, k);
  Random random(175);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t b = 0; b < matrix.block_count(); ++b) {
      std::uint8_t codes[T::block_size];
      for (std::size_t e = 0; e < T::block_size; ++e)
        codes[e] = static_cast<std::uint8_t>(r == 0   ? 0
                                             : r == 1 ? T::max_code
                                             : r == 2 ? (e % 2) * T::max_code
                                             : r == 3 ? (e / 2 % 2) * T::max_code
                                                      : T::zero_point);
      Block34 block;
      pn::store_block<T>(0x3C00, codes, block);
      matrix.set(r, b, block);
    }
  std::vector<float> x(tokens * k);
  for (std::size_t m = 0; m < tokens; ++m)
    for (std::size_t e = 0; e < k; ++e) {
      const bool minus = m == 0   ? false
                         : m == 1 ? true
                         : m == 2 ? e % 2 != 0
                         : m == 3 ? e / 2 % 2 != 0
                         : m == 4 ? e / 16 % 2 != 0
                                  : random.coin();
      x[m * k + e] = minus ? -1.0f : 1.0f;
    }
  for (const Activations kind : activation_kinds) {
    INFO(name_of(kind));
    const Expected want = expected(matrix, kind, x.data(), tokens);
    for_each_isa([&](Isa isa) {
      const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
      check<T>(multiply(matrix, 0, rows, all.data(), tokens), want, rows, k, kind);
    });
  }
}

TEMPLATE_TEST_CASE("batch: NaN and infinities among f32 activations stay with their token", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 320, rows = 33, tokens = 17;
  Random random(176);
  const Matrix<T> matrix(random, rows, k, 4, 12);
  std::vector<float> x = random_activations(random, tokens * k);
  for_each_isa([&](Isa isa) {
    const Batch<T> clean(Activations::f32, x.data(), 4 * k, tokens, k, isa);
    const std::vector<float> whole = multiply(matrix, 0, rows, clean.data(), tokens);
    for (std::size_t bad = 0; bad < tokens; ++bad) {
      float& at = x[bad * k + random.below(k)];
      const float before = at;
      at = bad % 3 == 0 ? HUGE_VALF : std::nanf("");
      const Batch<T> all(Activations::f32, x.data(), 4 * k, tokens, k, isa);
      at = before;
      const std::vector<float> y = multiply(matrix, 0, rows, all.data(), tokens);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const bool good = i / rows == bad ? (bad % 3 == 0 ? !std::isfinite(y[i]) : std::isnan(y[i]))
                                          : bits_of(y[i]) == bits_of(whole[i]);
        if (!good) FAIL("token " << i / rows << " row " << i % rows << " beside token " << bad << ": " << y[i]);
      }
    }
  });
}

// ---- Shared out ----

TEMPLATE_TEST_CASE("batch: ranges prepared and multiplied by threads give the bytes and the bits of one call", "",
                   pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 640, rows = 70, tokens = 43;
  constexpr std::size_t token_ends[] = {0, 8, 24, 32, tokens}, row_ends[] = {0, 32, 33, 51, rows};
  Random random(177);
  for (const Activations kind : activation_kinds) {
    const Matrix<T> matrix(random, rows, k, 0, 30);
    const std::vector<float> x = random_activations(random, tokens * k);
    const std::size_t group = pn::cpu::batch_bytes<T>(kind, pn::cpu::batch_tokens, k);
    for_each_isa([&](Isa isa) {
      const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
      const std::vector<float> whole = multiply(matrix, 0, rows, all.data(), tokens);
      const Fenced memory(pn::cpu::batch_bytes<T>(kind, tokens, k));  // other bytes before than those of `all`
      std::vector<float> y(tokens * rows);
      Status status[4] = {};
      const auto run = [&](auto&& body) {
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { status[i] = body(i); });
        for (std::thread& thread : threads) thread.join();
        for (const Status told : status) CHECK(told == Status::ok);
      };
      run([&](std::size_t i) {
        const std::size_t first = token_ends[i];
        return pn::cpu::prepare_batch<T>(kind, &x[first * k], 4 * k, token_ends[i + 1] - first, k,
                                         memory.data() + first / pn::cpu::batch_tokens * group, nullptr, isa);
      });
      CHECK(memory.intact());
      CHECK(std::memcmp(memory.data(), all.data(), memory.row_bytes()) == 0);
      run([&](std::size_t i) {
        const std::size_t first = row_ends[i];
        return pn::cpu::multiply_batch<T>(matrix.blocks.row(first), matrix.blocks.stride(), row_ends[i + 1] - first, k,
                                          memory.data(), tokens, &y[first], 4 * rows);
      });
      CHECK(is_part(y, tokens, 0, 0, whole, rows));
      // Tokens from a multiple of 8 on are a batch of their own.
      CHECK(is_part(multiply(matrix, 0, rows, memory.data() + 2 * group, 9), 9, 16, 0, whole, rows));
    });
  }
}

TEMPLATE_TEST_CASE("batch: one token many times, one row many times", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 320, rows = 35, tokens = 19;
  Random random(178);
  const Matrix<T> matrix(random, 1, k, 0, 30);
  const std::vector<float> x = random_activations(random, k);
  for (const Activations kind : activation_kinds)
    for_each_isa([&](Isa isa) {
      const Batch<T> one(kind, x.data(), 12345, 1, k, isa), copies(kind, x.data(), 0, tokens, k, isa);
      const float alone = multiply(matrix, 0, 1, one.data(), 1)[0];
      std::vector<float> y(tokens * rows);
      REQUIRE(pn::cpu::multiply_batch<T>(matrix.blocks.data(), 0, rows, k, copies.data(), tokens, y.data(), 4 * rows) ==
              Status::ok);
      for (const float value : y) REQUIRE(bits_of(value) == bits_of(alone));
    });
}

TEMPLATE_TEST_CASE("batch: the caller's floating-point environment changes nothing and is given back", "", pn::pn3t,
                   pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 320, rows = 9, tokens = 10;
  Random random(179);
  const Matrix<T> matrix(random, rows, k, 0, 30);
  std::vector<float> x = random_activations(random, tokens * k);
  for (std::size_t e = 0; e < k; ++e) x[k + e] *= 0x1p-125f;  // subnormals, and products that are
  for (std::size_t e = 0; e < k; ++e) x[9 * k + e] = (static_cast<float>(random.between(-126, 126)) + 0.5f) * 0x1p-120f;
  for (const Activations kind : activation_kinds)
    for_each_isa([&](Isa isa) {
      const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
      const std::vector<float> whole = multiply(matrix, 0, rows, all.data(), tokens);
      for (const environment::Setting& setting : environment::settings()) {
        INFO(name_of(kind) << " under " << setting.name);
        const Fenced again(all.memory.row_bytes());
        std::vector<float> y(tokens * rows);
        Status status = Status::ok;
        CHECK(environment::run_under(setting, [&] {
          status = pn::cpu::prepare_batch<T>(kind, x.data(), 4 * k, tokens, k, again.data(), nullptr, isa);
        }));
        CHECK(status == Status::ok);
        CHECK(std::memcmp(again.data(), all.data(), again.row_bytes()) == 0);
        CHECK(environment::run_under(setting, [&] {
          status = pn::cpu::multiply_batch<T>(matrix.blocks.data(), matrix.blocks.stride(), rows, k, all.data(), tokens,
                                              y.data(), 4 * rows);
        }));
        CHECK(status == Status::ok);
        CHECK(is_part(y, tokens, 0, 0, whole, rows));
      }
    });
}

// ---- Memory ----

TEMPLATE_TEST_CASE("batch: rows at any address and stride, and nothing touched beyond them", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  Random random(180);
  for (const std::size_t blocks : {2u, 4u, 26u})
    for (const std::size_t rows : {1u, 2u, 7u, 17u, 33u}) {
      const std::size_t k = blocks * T::block_size, tokens = 1 + random.below(10);
      if (blocks == 26 && rows > 7) continue;
      const Matrix<T> matrix(random, rows, k, 4, 12);
      const std::vector<float> x = random_activations(random, tokens * k);
      for (const Activations kind : activation_kinds)
        for_each_isa([&](Isa isa) {
          const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
          const std::vector<float> whole = multiply(matrix, 0, rows, all.data(), tokens);
          for (const At at : {At::begin, At::end}) {
            // Every row of the blocks and of x between pages that may not be touched.
            const std::size_t row_pages = (4 * k + page - 1) / page * page;
            const Fenced in(rows, pn::row_bytes<T>(k), 2 * page, at), from(tokens, 4 * k, row_pages + page, at);
            for (std::size_t n = 0; n < rows; ++n) std::memcpy(in.row(n), matrix.blocks.row(n), in.row_bytes());
            for (std::size_t m = 0; m < tokens; ++m) std::memcpy(from.row(m), &x[m * k], 4 * k);
            protect_gaps(in, rows, at, PROT_NONE);
            protect_gaps(from, tokens, at, PROT_NONE);
            const Fenced y(tokens, 4 * rows, 4 * rows + 4 * random.below(9), at);
            const Batch<T> fenced(kind, from.floats(), from.stride(), tokens, k, isa);
            REQUIRE(pn::cpu::multiply_batch<T>(in.data(), in.stride(), rows, k, fenced.data(), tokens, y.floats(),
                                               y.stride()) == Status::ok);
            protect_gaps(in, rows, at, PROT_READ | PROT_WRITE);
            protect_gaps(from, tokens, at, PROT_READ | PROT_WRITE);
            REQUIRE((y.intact() && in.intact() && from.intact()));
            for (std::size_t m = 0; m < tokens; ++m) REQUIRE(std::memcmp(y.row(m), &whole[m * rows], 4 * rows) == 0);
          }
          const std::size_t shift = 1 + random.below(63);  // any address
          const Fenced in(rows, pn::row_bytes<T>(k), pn::row_bytes<T>(k) + random.below(2) * shift, At::end, shift);
          const Fenced from(tokens, 4 * k, 4 * k + random.below(2) * shift, At::begin, shift);
          const Fenced y(tokens, 4 * rows, 4 * rows + random.below(2) * shift, At::end, shift * 3 % 64);
          for (std::size_t n = 0; n < rows; ++n) std::memcpy(in.row(n), matrix.blocks.row(n), in.row_bytes());
          for (std::size_t m = 0; m < tokens; ++m) std::memcpy(from.row(m), &x[m * k], 4 * k);
          const Fenced memory(all.memory.row_bytes(), At::begin);
          REQUIRE(pn::cpu::prepare_batch<T>(kind, from.floats(), from.stride(), tokens, k, memory.data(), nullptr,
                                            isa) == Status::ok);
          REQUIRE(pn::cpu::multiply_batch<T>(in.data(), in.stride(), rows, k, memory.data(), tokens, y.floats(),
                                             y.stride()) == Status::ok);
          REQUIRE((y.intact() && in.intact() && from.intact() && memory.intact()));
          for (std::size_t m = 0; m < tokens; ++m) REQUIRE(std::memcmp(y.row(m), &whole[m * rows], 4 * rows) == 0);
        });
    }
}

TEMPLATE_TEST_CASE("batch: any bytes are safe as blocks", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  Random random(181);
  for (int i = 0; i < 20; ++i) {
    const std::size_t rows = 1 + random.below(40), tokens = 1 + random.below(20), k = 320 * (1 + random.below(3));
    const Matrix<T> matrix(rows, k, 0);
    for (std::size_t n = 0; n < rows; ++n)
      for (std::size_t at = 0; at < matrix.blocks.row_bytes(); ++at)
        matrix.blocks.row(n)[at] = i == 0 ? 0xFF : random.byte();
    const std::vector<float> x = random_activations(random, tokens * k);
    for (const Activations kind : activation_kinds)
      for_each_isa([&](Isa isa) {
        const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
        multiply(matrix, 0, rows, all.data(), tokens);
      });
  }
}

TEST_CASE("batch: no rows and no tokens are no fault, and no weights make a sum of 0") {
  Random random(182);
  const Matrix<pn::pn4t> matrix(random, 2, 320, 4, 12);
  const std::vector<float> x(9 * 320, 1.0f);
  for (const Activations kind : activation_kinds)
    for_each_isa([&](Isa isa) {
      const Fenced none(pn::cpu::batch_bytes<pn::pn4t>(kind, 0, 320)), nothing(40);
      CHECK(pn::cpu::prepare_batch<pn::pn4t>(kind, x.data(), 0, 0, 320, none.data(), nullptr, isa) == Status::ok);
      CHECK(none.intact());
      const auto multiply_some = [&](const void* prepared, std::size_t rows, std::size_t tokens) {
        return pn::cpu::multiply_batch<pn::pn4t>(matrix.blocks.data(), matrix.blocks.stride(), rows, 320, prepared,
                                                 tokens, nothing.floats(), 8);
      };
      CHECK(multiply_some(none.data(), 2, 0) == Status::ok);
      const Batch<pn::pn4t> nine(kind, x.data(), 0, 9, 320, isa);
      CHECK(multiply_some(nine.data(), 2, 0) == Status::ok);
      CHECK(multiply_some(nine.data(), 0, 9) == Status::ok);
      CHECK(nothing.untouched());
      const auto sums_of_nothing = [&](auto type) {
        using T = decltype(type);
        const Fenced empty(0), y(9, 4 * 35, 4 * 35 + 4, At::end);
        const Batch<T> no_floats(kind, empty.floats(), 0, 9, 0, isa);
        CHECK(pn::cpu::multiply_batch<T>(empty.data(), 0, 35, 0, no_floats.data(), 9, y.floats(), y.stride()) ==
              Status::ok);
        CHECK(y.intact());
        for (std::size_t m = 0; m < 9; ++m)
          for (std::size_t n = 0; n < 35; ++n) REQUIRE(bits_of(y.value(m, n)) == 0);
      };
      sums_of_nothing(pn::pn3t{});
      sums_of_nothing(pn::pn4t{});
    });
}

#if defined(__OPTIMIZE__) && !defined(PN_TESTS_SANITIZED)  // otherwise compilers make larger frames
TEMPLATE_TEST_CASE("batch: multiply_batch takes no more stack than stated", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 5120, rows = 33, tokens = 9, stack_bytes = 1 << 18;
  // How many bytes of its stack a thread touches in which `body` runs.
  const auto stack_of = [&](std::function<void()> body) {
    const Fenced stack(stack_bytes);
    pthread_attr_t attributes;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstack(&attributes, stack.data(), stack_bytes) == 0);
    const auto start = [](void* argument) -> void* {
      (*static_cast<std::function<void()>*>(argument))();
      return nullptr;
    };
    REQUIRE(pthread_create(&thread, &attributes, start, &body) == 0);
    REQUIRE(pthread_join(thread, nullptr) == 0);
    pthread_attr_destroy(&attributes);
    std::size_t untouched = 0;
    while (untouched < stack_bytes && stack.data()[untouched] == Fenced::canary) ++untouched;
    return stack_bytes - untouched;
  };
  Random random(183);
  const Matrix<T> matrix(random, rows, k, 4, 12);
  const std::vector<float> x = random_activations(random, tokens * k);
  std::vector<float> y(tokens * rows);
  Status status = Status::ok;
  for (const Activations kind : activation_kinds)
    for_each_isa([&](Isa isa) {
      const Batch<T> all(kind, x.data(), 4 * k, tokens, k, isa);
      const auto multiply_some = [&](std::size_t count, std::size_t row_count) {
        return stack_of([&] {
          status = pn::cpu::multiply_batch<T>(matrix.blocks.data(), matrix.blocks.stride(), row_count, k, all.data(),
                                              count, y.data(), 4 * rows);
        });
      };
      const std::size_t all_bytes = multiply_some(tokens, rows), nothing_bytes = multiply_some(0, 0);
      INFO(name_of(kind) << ": " << all_bytes << " bytes, without work " << nothing_bytes);
      CHECK(status == Status::ok);
      CHECK(all_bytes - nothing_bytes <= 32768);
    });
}
#endif

// ---- Refusals ----

TEMPLATE_TEST_CASE("batch: sizes are whole groups, multiples of 64, and 0 for what is refused", "", pn::pn3t,
                   pn::pn4t) {
  using T = TestType;
  constexpr std::size_t most = static_cast<std::size_t>(-1);
  for (const Activations kind : activation_kinds) {
    for (const std::size_t k : {0u, 16u, 32u, 64u, 80u, 96u, 160u, 240u, 320u, 5120u}) {
      INFO(name_of(kind) << ", k " << k);
      const bool fits = k % T::block_size == 0 && (kind != Activations::q8_0 || k % 32 == 0);
      const std::size_t group = pn::cpu::batch_bytes<T>(kind, 8, k);
      CHECK((group != 0) == fits);
      CHECK(group % 64 == 0);
      for (std::size_t tokens = 0; tokens <= 40; ++tokens)
        CHECK(pn::cpu::batch_bytes<T>(kind, tokens, k) == group * std::max<std::size_t>(1, (tokens + 7) / 8));
      CHECK(pn::cpu::batch_bytes<T>(static_cast<Activations>(3), 8, k) == 0);
      CHECK(pn::cpu::batch_bytes<T>(static_cast<Activations>(255), 8, k) == 0);
      if (!fits) continue;
      // The largest number of groups whose size can be told, and one more token.
      CHECK(pn::cpu::batch_bytes<T>(kind, most / group * 8, k) == most / group * group);
      CHECK(pn::cpu::batch_bytes<T>(kind, most / group * 8 + 1, k) == 0);
      CHECK(pn::cpu::batch_bytes<T>(kind, most, k) == 0);
    }
    for (std::size_t part = 1; part < 4096; part = part * 3 / 2 + 1) {  // lengths near which sizes could wrap
      const std::size_t k = most / part / 320 * 320, group = pn::cpu::batch_bytes<T>(kind, 8, k);
      INFO(name_of(kind) << ", the largest length / " << part);
      CHECK((group == 0 || group / 8 >= k));
      if (part >= 64) CHECK(group > 0);
      CHECK(pn::cpu::batch_bytes<T>(kind, most / 8, k) == 0);
    }
  }
}

TEMPLATE_TEST_CASE("batch: prepare_batch refuses other kinds, lengths, addresses and instruction sets", "", pn::pn3t,
                   pn::pn4t) {
  using T = TestType;
  const std::vector<float> x(9 * 320, 1.0f);
  const Fenced memory(1 << 17);
  const auto prepare = [&](Activations kind, std::size_t tokens, std::size_t k, std::size_t off, Isa isa) {
    return pn::cpu::prepare_batch<T>(kind, x.data(), 0, tokens, k, memory.data() + off, nullptr, isa);
  };
  for_each_isa([&](Isa isa) {
    for (const Activations kind : activation_kinds) {
      CHECK(prepare(kind, 9, T::block_size - 1, 0, isa) == Status::bad_length);
      CHECK(prepare(kind, 9, T::bits == 3 ? 64 : 80, 0, isa) == Status::bad_length);
      CHECK(prepare(kind, static_cast<std::size_t>(-1), 320, 0, isa) == Status::bad_length);
      CHECK(prepare(kind, 0, static_cast<std::size_t>(-1) / 320 * 320, 0, isa) == Status::bad_length);
      for (const std::size_t off : {1u, 4u, 16u, 32u, 63u}) {
        CHECK(prepare(kind, 9, 320, off, isa) == Status::misaligned);
        CHECK(prepare(kind, 0, 320, off, isa) == Status::misaligned);
      }
    }
    CHECK(prepare(static_cast<Activations>(3), 9, 320, 0, isa) == Status::bad_length);
    if (T::bits == 3) CHECK(prepare(Activations::q8_0, 9, 80, 0, isa) == Status::bad_length);
  });
  const pn::cpu::IsaList list = pn::cpu::isas();
  for (unsigned i = 1; i < 256; ++i)
    if (std::find(list.begin(), list.end(), static_cast<Isa>(i)) == list.end())
      CHECK(prepare(Activations::f32, 9, 320, 0, static_cast<Isa>(i)) == Status::isa_not_available);
  CHECK(memory.untouched());
}

TEMPLATE_TEST_CASE("batch: multiply_batch refuses what was not prepared for it", "", pn::pn3t, pn::pn4t) {
  using T = TestType;
  using Other = std::conditional_t<T::bits == 3, pn::pn4t, pn::pn3t>;
  constexpr std::size_t k = usual_k, tokens = 19;
  constexpr Status no = Status::not_prepared;
  Random random(184);
  const Matrix<T> matrix(random, 1, 2 * k, 4, 12);
  const std::vector<float> x(2 * k, 1.0f);
  const Fenced y(tokens, 4, 8, At::end);
  const auto multiply_some = [&](const void* prepared, std::size_t count, std::size_t columns = usual_k) {
    return pn::cpu::multiply_batch<T>(matrix.blocks.data(), 0, 1, columns, prepared, count, y.floats(), y.stride());
  };
  const auto refused = [&](const void* prepared, std::size_t count, std::size_t columns = usual_k) {
    const Status status = multiply_some(prepared, count, columns);
    return status == no && y.untouched();
  };
  for_each_isa([&](Isa isa) {
    for (const Activations kind : activation_kinds) {
      INFO(name_of(kind));
      const Batch<T> batch(kind, x.data(), 0, tokens, k, isa);
      const Batch<Other> other(kind, x.data(), 0, tokens, k, isa);
      const Prepared<T> few(kind, x.data(), 0, 8, k, isa);
      CHECK(refused(other.data(), 1));
      CHECK(refused(few.data(), 1));
      CHECK(refused(few.data(), 8));
      CHECK(pn::cpu::multiply<T>(matrix.blocks.data(), 0, 1, k, batch.data(), y.floats(), 8) == no);
      CHECK(refused(batch.data(), 1, 320));
      CHECK(refused(batch.data(), 1, 1280));
      CHECK(refused(batch.data(), tokens, 0));
      CHECK(multiply_some(batch.data(), 1, k + 1) == Status::bad_length);
      CHECK(multiply_some(batch.data(), 0, k + 1) == Status::bad_length);
      CHECK(refused(batch.data(), tokens + 1));
      for (const std::size_t off : {8u, 16u, 32u})
        CHECK(multiply_some(batch.memory.data() + off, 1) == Status::misaligned);
      CHECK(y.untouched());

      // One group of three is not what the others are, or has fewer tokens than the call wants of it.
      const std::size_t group = pn::cpu::batch_bytes<T>(kind, 8, k);
      Fenced memory(3 * std::max({group, pn::cpu::batch_bytes<Other>(kind, 8, k),
                                  pn::cpu::batch_bytes<T>(Activations::f32, 8, 2 * k)}) +
                    64);
      const auto restore = [&] { std::memcpy(memory.data(), batch.data(), 3 * group); };
      const auto place = [&](auto type, std::size_t at, Activations of_kind, std::size_t count, std::size_t columns,
                             Isa for_isa) {
        using Type = decltype(type);
        restore();
        REQUIRE(pn::cpu::prepare_batch<Type>(of_kind, x.data(), 0, count, columns, memory.data() + at * group, nullptr,
                                             for_isa) == Status::ok);
      };
      for (const std::size_t at : {1u, 2u}) {
        const std::size_t before = 8 * at;
        for (const Activations of_kind : activation_kinds) {
          if (of_kind == kind) continue;
          place(T{}, at, of_kind, 8, k, isa);
          CHECK(refused(memory.data(), before + 1));
        }
        place(Other{}, at, kind, 8, k, isa);
        CHECK(refused(memory.data(), before + 1));
        place(T{}, at, kind, 8, 2 * k, isa);
        CHECK(refused(memory.data(), before + 1));
        for (const Isa for_isa : pn::cpu::isas()) {
          if (for_isa == isa) continue;
          place(T{}, at, kind, 8, k, for_isa);
          CHECK(refused(memory.data(), before + 1));
        }
      }
      for (const std::size_t at : {0u, 1u}) {
        place(T{}, at, kind, 5, k, isa);
        CHECK(refused(memory.data(), 8 * at + 6));
        CHECK(refused(memory.data(), 8 * at + 8));
        CHECK(refused(memory.data(), 17));
        CHECK(multiply_some(memory.data(), 8 * at + 5) == Status::ok);
        for (std::size_t m = 0; m < tokens; ++m) std::memset(y.row(m), Fenced::canary, 4);
      }
      restore();
      CHECK(multiply_some(memory.data(), tokens) == Status::ok);
      for (std::size_t m = 0; m < tokens; ++m) std::memset(y.row(m), Fenced::canary, 4);
      std::memset(memory.data() + group, 0, 64);
      CHECK(refused(memory.data(), 9));
      CHECK(refused(memory.data(), tokens));
    }
    const Fenced memory(1 << 16);  // a canary, then zeros, then whatever
    for (int i = 0; i < 20; ++i) {
      CHECK(refused(memory.data(), 1));
      CHECK(refused(memory.data(), tokens));
      for (std::size_t e = 0; e < 64; ++e) memory.data()[e] = i == 0 ? 0 : random.byte();
    }
  });
}

TEMPLATE_TEST_CASE("batch: activations that cannot be rounded are told wherever they are, and not multiplied with", "",
                   pn::pn3t, pn::pn4t) {
  using T = TestType;
  constexpr std::size_t k = 320, tokens = 17;
  const float bad_values[] = {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF, float_of(0x7F800001)};
  const float large_values[] = {127.0f * 65520.0f, -127.0f * 65520.0f, FLT_MAX, -FLT_MAX};
  Random random(185);
  const Matrix<T> matrix(random, 1, k, 4, 12);
  std::vector<float> x = random_activations(random, tokens * k);
  const Fenced y(tokens, 4, 4, At::end);
  for_each_isa([&](Isa isa) {
    for (const Activations kind : {Activations::i16, Activations::q8_0}) {
      const Fenced memory(pn::cpu::batch_bytes<T>(kind, tokens, k));
      const Fenced few(pn::cpu::activations_bytes<T>(kind, 16, k));
      for (std::size_t e = 0; e < k; ++e)
        for (const bool large : {false, true}) {
          const std::size_t m = random.below(tokens), later = m * k + e + random.below((tokens - m) * k - e);
          INFO(name_of(kind) << (large ? ", too large" : ", not finite") << ", token " << m << ", element " << e);
          const std::vector<float> before = x;
          x[later] = large ? large_values[random.below(4)] : bad_values[random.below(5)];
          x[m * k + e] = large ? large_values[e % 4] : bad_values[e % 5];
          REQUIRE(pn::cpu::prepare_batch<T>(kind, before.data(), 4 * k, tokens, k, memory.data(), nullptr, isa) ==
                  Status::ok);
          Fault fault = {77, 77}, fault_of_few = {77, 77};
          const Status status = pn::cpu::prepare_batch<T>(kind, x.data(), 4 * k, tokens, k, memory.data(), &fault, isa);
          const std::size_t first = m < 16 ? 0 : 1;  // of 16 tokens for prepare_activations
          const Status status_of_few =
              pn::cpu::prepare_activations<T>(kind, &x[first * k], 4 * k, 16, k, few.data(), &fault_of_few, isa);
          x = before;
          const auto multiplied = [&](std::size_t count) {
            return pn::cpu::multiply_batch<T>(matrix.blocks.data(), 0, 1, k, memory.data(), count, y.floats(), 4);
          };
          REQUIRE(status == status_of_few);
          if (kind == Activations::i16 && large) {
            REQUIRE(status == Status::ok);
            REQUIRE((fault.row == 77 && fault.index == 77));
            REQUIRE(multiplied(tokens) == Status::ok);
            continue;
          }
          REQUIRE(status == (large ? Status::scale_overflow : Status::not_finite));
          REQUIRE((fault.row == m && fault.index == (large ? e / 32 * 32 : e)));
          REQUIRE((fault_of_few.row == m - first && fault_of_few.index == fault.index));
          REQUIRE(pn::cpu::multiply<T>(matrix.blocks.data(), 0, 1, k, few.data(), y.floats(), 4) ==
                  Status::not_prepared);
          REQUIRE(multiplied(m / 8 * 8 + 1) == Status::not_prepared);
          REQUIRE(multiplied(tokens) == Status::not_prepared);
        }
      REQUIRE(memory.intact());
      CHECK(pn::cpu::prepare_batch<T>(kind, x.data(), 4 * k, tokens, k, memory.data(), nullptr, isa) == Status::ok);
    }
    std::vector<float> edge(k, 0.0f);  // just below
    edge[37] = std::nextafter(127.0f * 65520.0f, 0.0f);
    const Batch<T> prepared(Activations::q8_0, edge.data(), 0, 1, k, isa);
    const float result = multiply(matrix, 0, 1, prepared.data(), 1)[0];
    CHECK(static_cast<double>(result) == static_cast<double>(static_cast<float>(matrix.weight(0, 37) * 127 * 65504)));
  });
}

// ---- Rounding ----

namespace {

// k floats whose rounding goes wrong easily; `round` tells in which way.
std::vector<float> hard_to_round(Random& random, Activations kind, std::size_t k, int round) {
  std::vector<float> x = random_activations(random, k);
  const auto sign = [&] { return random.coin() ? 1.0f : -1.0f; };
  const bool i16 = kind == Activations::i16;
  const int most = i16 ? 32767 : 127;
  const float size = std::ldexp(1.0f, round == 0 ? 0 : random.between(-12, i16 ? 100 : 15));
  float top = 0;
  for (std::size_t e = 0; e < k; ++e) {
    const float any_half = static_cast<float>(random.between(0, most - 1)) + 0.5f;
    const bool largest = e % 16 == static_cast<std::size_t>(round) % 16;  // of a block and of 32
    float& v = x[e];
    switch (round % 10) {
      // Halves exactly between two codes.
      case 0:
      case 1: v = sign() * size * (largest ? static_cast<float>(most) : random.below(8) == 0 ? 0.5f : any_half); break;
      // The floats beside them.
      case 2:
        v = sign() * size *
            (largest ? static_cast<float>(most) : std::nextafter(any_half, random.coin() ? 0.0f : 1e9f));
        break;
      // The float below 1/2, which becomes 1 when 1/2 is added.
      case 3: v = sign() * size * (largest ? static_cast<float>(most) : std::nextafter(0.5f, 0.0f)); break;
      // Subnormal ones, and a few of the smallest.
      case 4: v = float_of(random.next32() & 0x807FFFFFu); break;
      case 5: v = float_of(random.next32() & 0x80000FFFu); break;
      // Scales of Q8_0 around 2^-128, up to which all codes are 0.
      case 6: v = std::ldexp(v, -121 - static_cast<int>(e / 32 % 5)); break;
      // The largest there are.
      case 7:
        v = sign() * (i16 ? FLT_MAX : 127.0f * 65504.0f) / static_cast<float>(1 + (largest ? 0 : random.below(9)));
        break;
      // Nothing but zeros in a block.
      case 8: v = e / 80 % 2 == 0 ? sign() * 0.0f : v; break;
      // Scales of Q8_0 halfway between two fp16: subnormal ones, others, and others that x / 127 reaches from above,
      // but x times the float nearest to 1 / 127 does not.
      default:
        if (e % 32 == 0) {
          const int steps = round == 9    ? random.between(0, 1023)
                            : round == 19 ? 1024 + 2 * random.between(0, 3)
                                          : random.between(1024, 2046);
          top = std::ldexp(127 * (static_cast<float>(steps) + 0.5f), round == 9 ? -24 : random.between(-24, -4));
          if (round == 19) top = std::nextafter(top, 1e9f);
        }
        v = e % 32 == 0 ? top : static_cast<float>(2 * random.uniform() - 1) * top;
    }
  }
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("activations are rounded to the same numbers on every instruction set", "", pn::pn3t, pn::pn4t) {
  // Each is asked for by a row whose only weight that is not 0 is 1: a product of a code and a scale, rounded once.
  using T = TestType;
  constexpr std::size_t k = 320;
  Matrix<T> ones(k, k, 0);
  for (std::size_t r = 0; r < k; ++r)
    for (std::size_t b = 0; b < k / T::block_size; ++b) {
      std::uint8_t codes[T::block_size];
      std::fill(codes, codes + T::block_size, static_cast<std::uint8_t>(T::zero_point));
      if (r / T::block_size == b) codes[r % T::block_size] = static_cast<std::uint8_t>(T::zero_point + 1);
      Block34 block;
      pn::store_block<T>(0x3C00, codes, block);
      ones.set(r, b, block);
    }
  Random random(186);
  for (const Activations kind : {Activations::i16, Activations::q8_0}) {
    for (int round = 0; round < 40; ++round) {
      const std::vector<float> x = hard_to_round(random, kind, k, round);
      const Rounded want = rounded<T>(kind, x.data(), k);
      std::vector<std::uint8_t> bytes;
      for_each_isa([&](Isa isa) {
        const Prepared<T> prepared(kind, x.data(), 0, 1, k, isa);
        const Batch<T> batch(kind, x.data(), 0, 1, k, isa);
        std::vector<float> y(k);
        REQUIRE(pn::cpu::multiply<T>(ones.blocks.data(), ones.blocks.stride(), k, k, prepared.data(), y.data(), 0) ==
                Status::ok);
        const std::vector<float> of_batch = multiply(ones, 0, k, batch.data(), 1);
        for (std::size_t e = 0; e < k; ++e) {
          const float value = static_cast<float>(want.q[e]) * want.scale[e];
          if (!(y[e] == value && of_batch[e] == value))
            FAIL(name_of(kind) << " round " << round << ", element " << e << ", " << x[e] << ": " << y[e] << " and "
                               << of_batch[e] << ", not " << value);
        }
        // Behind the header, which names the instruction set, memory is alike everywhere; but not that of q8_0, where
        // it is not for many tokens.
        std::vector<std::uint8_t> these(batch.memory.data() + 64, batch.memory.data() + batch.memory.row_bytes());
        if (kind == Activations::i16)
          these.insert(these.end(), prepared.memory.data() + 64, prepared.memory.data() + prepared.memory.row_bytes());
        if (bytes.empty()) bytes = these;
        CHECK(these == bytes);
      });
    }
  }
}
