// pncuda_low_rank: against sums in double, and rows that nobody asks for.
#include <sys/mman.h>
#include <unistd.h>

#include "p12_testing.hpp"

using namespace testing;

namespace {

struct LowRankShape {
  int64_t rank, k, n, tokens;
  int factor_type, x_type, y_type;
  enum Base { none, in_place, elsewhere } base;
  int64_t pad;
};

// Random numbers of one magnitude, so that bounds are simple.
Activations factors(int type, int64_t rows, int64_t columns, Random& random, int64_t pad, int64_t shift) {
  std::vector<float> values(size(rows * columns));
  for (float& value : values) value = static_cast<float>(random.gauss());
  return Activations(type, rows, columns, values, pad, shift);
}

// a[rank][k], b[n][rank], x[tokens][k], and y as its own base.
pncuda_low_rank_args args_in_place(const Activations& a, const Activations& b, const Activations& x,
                                   const Input& scales, const Output& workspace, void* y, int64_t y_stride,
                                   int y_type) {
  pncuda_low_rank_args args{};
  args.struct_size = sizeof args;
  args.a = a.data();
  args.b = b.data();
  args.a_stride = a.stride();
  args.b_stride = b.stride();
  args.factor_type = a.type();
  args.x_type = x.type();
  args.rank = static_cast<std::int32_t>(a.tokens());
  args.k = x.k();
  args.n = b.tokens();
  args.x = x.data();
  args.x_stride = x.stride();
  args.y_type = y_type;
  args.y = y;
  args.base = y;
  args.y_stride = args.base_stride = y_stride;
  args.tokens = x.tokens();
  args.scales = reinterpret_cast<const float*>(scales.data());
  args.workspace = workspace.data();
  args.workspace_size = size(args.tokens * args.rank * 4);
  return args;
}

class Case {
 public:
  Case(const LowRankShape& shape, const std::vector<float>& scales, Random& random)
      : s(shape),
        a(factors(s.factor_type, s.rank, s.k, random, s.pad, bytes_of(s.factor_type) * (s.pad % 3))),
        b(factors(s.factor_type, s.n, s.rank, random, s.pad, bytes_of(s.factor_type) * (s.pad % 5))),
        x(factors(s.x_type, s.tokens, s.k, random, s.pad, bytes_of(s.x_type) * (s.pad % 2))),
        base(factors(s.y_type, s.tokens, s.n, random, s.pad + 1, bytes_of(s.y_type))),
        scale(scales) {}

  // Of tokens `picked`, whose x may be replaced by NaN.
  std::vector<std::uint32_t> run(const std::vector<int64_t>& picked, bool poison = false) const {
    const auto tokens = int64_t(picked.size());
    std::vector<float> values;
    std::vector<uint8_t> scale_bytes;
    for (const int64_t m : picked) {
      const float of_token = scale[size(m)];
      for (int64_t i = 0; i < s.k; ++i) values.push_back(poison && of_token == 0.0f ? std::nanf("") : x.token(m)[i]);
      const std::uint32_t bits = bits_of(of_token);
      for (int i = 0; i < 4; ++i) scale_bytes.push_back(static_cast<uint8_t>(bits >> (8 * i)));
    }
    const Activations these(s.x_type, tokens, s.k, values, s.pad, bytes_of(s.x_type) * (s.pad % 2));
    const Input scales_of(scale_bytes, 4);
    const int64_t element = bytes_of(s.y_type);
    const Output y(tokens, s.n * element, (s.n + s.pad) * element, element * (s.pad % 4));
    const Activations base_of = pick(base, picked, s.pad + 1);
    if (s.base == LowRankShape::in_place)
      for (int64_t m = 0; m < tokens; ++m)
        for (int64_t n = 0; n < s.n; ++n) store_bits(s.y_type, y.row(m), n, bits_as(s.y_type, base_of.token(m)[n]));
    const Output workspace(1, tokens * s.rank * 4, tokens * s.rank * 4, 4);
    pncuda_low_rank_args args = args_in_place(a, b, these, scales_of, workspace, y.data(), y.stride(), s.y_type);
    if (s.base != LowRankShape::in_place) {
      args.base = s.base == LowRankShape::none ? nullptr : base_of.data();
      args.base_stride = base_of.stride();
    }
    REQUIRE(pncuda_low_rank_workspace(tokens, args.rank) == args.workspace_size);
    REQUIRE(pncuda_low_rank(&args, nullptr) == PNCUDA_OK);
    REQUIRE(y.intact());
    REQUIRE(workspace.intact());
    REQUIRE((a.unchanged() && b.unchanged() && these.unchanged() && base_of.unchanged() && scales_of.unchanged()));
    std::vector<std::uint32_t> bits;
    for (int64_t m = 0; m < tokens; ++m)
      for (int64_t n = 0; n < s.n; ++n) bits.push_back(load_bits(s.y_type, y.row(m), n));
    return bits;
  }

  float base_at(int64_t m, int64_t n) const { return s.base == LowRankShape::none ? 0.0f : base.token(m)[n]; }

  // The largest error beside what sums in fp32 and one rounding may lose.
  double worst(const std::vector<std::uint32_t>& bits) const {
    double worst = 0;
    for (int64_t m = 0; m < s.tokens; ++m) {
      std::vector<double> ax(size(s.rank)), ax_sizes(size(s.rank));
      if (scale[size(m)] != 0.0f)
        for (int64_t r = 0; r < s.rank; ++r)
          for (int64_t i = 0; i < s.k; ++i) {
            const double product = static_cast<double>(a.token(r)[i]) * static_cast<double>(x.token(m)[i]);
            ax[size(r)] += product;
            ax_sizes[size(r)] += std::fabs(product);
          }
      for (int64_t n = 0; n < s.n; ++n) {
        double sum = 0, sizes = 0;
        for (int64_t r = 0; r < s.rank; ++r) {
          sum += static_cast<double>(b.token(n)[r]) * ax[size(r)];
          sizes += std::fabs(static_cast<double>(b.token(n)[r])) * ax_sizes[size(r)];
        }
        const double of_scale = static_cast<double>(scale[size(m)]);
        const double y = static_cast<double>(base_at(m, n)) + of_scale * sum;
        const double got = static_cast<double>(value_of(s.y_type, bits[size(m * s.n + n)]));
        const double half_unit = s.y_type == PNCUDA_F32 ? 0x1p-24 : s.y_type == PNCUDA_F16 ? 0x1p-11 : 0x1p-8;
        // Longest chains of additions: of k / 2048 * 8 + 13 numbers, of rank / 8 + 3, and three more roundings.
        const double chain = static_cast<double>(s.k) / 256 + 8 + 13 + static_cast<double>(s.rank) / 8 + 3 + 3;
        const double allowed = chain * 0x1p-24 * (std::fabs(of_scale) * sizes + std::fabs(y)) +
                               half_unit * std::fabs(y) * 1.01 + (s.y_type == PNCUDA_F16 ? 0x1p-25 : 0x1p-140);
        const double error = std::fabs(got - y);
        CAPTURE(m, n, got, y, error, allowed);
        if (!(error <= allowed)) REQUIRE(error <= allowed);
        worst = std::max(worst, error / allowed);
      }
    }
    return worst;
  }

  LowRankShape s;
  Activations a, b, x, base;
  std::vector<float> scale;
};

TEST_CASE("low_rank: against double, all ranks, lengths and types", "[low_rank]") {
  const Restore restore;
  Random random(1);
  double worst = 0;
  for (std::size_t turn = 0; turn < 90; ++turn) {
    if (left_out()) continue;
    const auto device =
        std::array<host_cuda::Device, 3>{host_cuda::h100(), host_cuda::p100(), host_cuda::t4()}[turn % 3];
    use(device);
    LowRankShape shape{};
    shape.rank = std::array<int64_t, 9>{1, 7, 8, 9, 64, 3, 31, 33, 256}[turn % 9];
    shape.k = std::array<int64_t, 11>{1, 7, 8, 9, 256, 1023, 2048, 2049, 4100, 5120, 0}[turn % 11];
    shape.n = std::array<int64_t, 7>{1, 31, 32, 33, 100, 7, 64}[turn % 7];
    shape.tokens = std::array<int64_t, 5>{1, 2, 5, 3, 17}[turn % 5];
    if (shape.rank == 256) shape.tokens = std::min<int64_t>(shape.tokens, 2);
    shape.factor_type = element_types[turn % 3];
    shape.x_type = element_types[turn / 3 % 3];
    shape.y_type = element_types[turn / 2 % 3];
    shape.base = std::array<LowRankShape::Base, 3>{LowRankShape::none, LowRankShape::in_place,
                                                   LowRankShape::elsewhere}[turn / 4 % 3];
    shape.pad = std::array<int64_t, 4>{0, 1, 8, 3}[turn % 4];
    std::vector<float> scales;
    std::vector<int64_t> all;
    for (int64_t m = 0; m < shape.tokens; ++m) {
      scales.push_back(turn % 4 == 0 || random.coin() ? static_cast<float>(random.gauss()) : m % 2 == 0 ? 0.0f : -0.0f);
      all.push_back(m);
    }
    const Case one(shape, scales, random);
    CAPTURE(turn, device.name, shape.rank, shape.k, shape.n, shape.tokens, shape.factor_type, shape.x_type,
            shape.y_type, int(shape.base), shape.pad);
    const auto bits = one.run(all, true);
    worst = std::max(worst, one.worst(bits));
    // Rows of tokens with scale 0: the base's bits, or 0.
    for (int64_t m = 0; m < shape.tokens; ++m)
      if (scales[size(m)] == 0.0f)
        for (int64_t n = 0; n < shape.n; ++n)
          REQUIRE(bits[size(m * shape.n + n)] == bits_as(shape.y_type, one.base_at(m, n)));
    // The same bits for each token by itself, wherever it is.
    for (int64_t m = 0; m < shape.tokens; ++m) {
      const auto alone = one.run({m});
      REQUIRE(std::equal(alone.begin(), alone.end(), bits.begin() + m * shape.n));
    }
    std::vector<int64_t> turned(all.rbegin(), all.rend());
    const auto reversed = one.run(turned);
    for (int64_t m = 0; m < shape.tokens; ++m)
      REQUIRE(std::equal(reversed.begin() + m * shape.n, reversed.begin() + (m + 1) * shape.n,
                         bits.begin() + (shape.tokens - 1 - m) * shape.n));
  }
  if (std::getenv("PN_CUDA_ERRORS") != nullptr) std::printf("low_rank: largest |error| / allowed = %.3g\n", worst);
}

// y may hold anything where nothing is added: signalling NaN and all stays.
TEST_CASE("low_rank: rows without a scale keep their bits", "[low_rank]") {
  const Restore restore;
  Random random(2);
  use(host_cuda::h100());
  for (const int y_type : element_types) {
    const int64_t n = 37, tokens = 3, rank = 4, k = 16, element = bytes_of(y_type);
    const Activations a = factors(PNCUDA_BF16, rank, k, random, 0, 0), b = factors(PNCUDA_BF16, n, rank, random, 0, 0),
                      x = factors(PNCUDA_BF16, tokens, k, random, 0, 0);
    const std::vector<float> scales{0.0f, 1.0f, -0.0f};
    std::vector<uint8_t> scale_bytes(12);
    std::memcpy(scale_bytes.data(), scales.data(), 12);
    const Input scale_memory(scale_bytes);
    const Output y(tokens, n * element, n * element), workspace(1, tokens * rank * 4, tokens * rank * 4);
    for (int64_t m = 0; m < tokens; ++m)
      for (int64_t i = 0; i < n * element; ++i) y.row(m)[i] = random.coin() ? 0xFF : random.byte();
    std::vector<std::vector<uint8_t>> before;
    for (int64_t m = 0; m < tokens; ++m) before.emplace_back(y.row(m), y.row(m) + n * element);
    pncuda_low_rank_args args = args_in_place(a, b, x, scale_memory, workspace, y.data(), y.stride(), y_type);
    REQUIRE(pncuda_low_rank(&args, nullptr) == PNCUDA_OK);
    REQUIRE(y.intact());
    for (int64_t m = 0; m < tokens; ++m)
      REQUIRE(std::equal(before[size(m)].begin(), before[size(m)].end(), y.row(m)) == (m != 1));
    // Another base: its bits, of NaN, too.
    const Output other(tokens, n * element, n * element + 8);
    for (int64_t m = 0; m < tokens; ++m) std::copy(before[size(m)].begin(), before[size(m)].end(), other.row(m));
    args.base = other.data();
    args.base_stride = other.stride();
    REQUIRE(pncuda_low_rank(&args, nullptr) == PNCUDA_OK);
    REQUIRE(y.intact());
    for (const int64_t m : {int64_t{0}, int64_t{2}})
      for (int64_t i = 0; i < n; ++i) REQUIRE(load_bits(y_type, y.row(m), i) == load_bits(y_type, other.row(m), i));
  }
}

// In place a token without a scale may lie where nobody may go.
TEST_CASE("low_rank: rows without a scale are neither read nor written", "[low_rank]") {
  const Restore restore;
  Random random(4);
  use(host_cuda::h100());
  const int64_t n = 37, tokens = 3, rank = 4, k = 16;
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, size(tokens * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(mprotect(static_cast<uint8_t*>(pages) + page, size(page), PROT_NONE) == 0);
  const Activations a = factors(PNCUDA_BF16, rank, k, random, 0, 0), b = factors(PNCUDA_BF16, n, rank, random, 0, 0),
                    x = factors(PNCUDA_BF16, tokens, k, random, 0, 0);
  const float scales[] = {1.0f, 0.0f, 1.5f};
  std::vector<uint8_t> scale_bytes(sizeof scales);
  std::memcpy(scale_bytes.data(), scales, sizeof scales);
  const Input scale_memory(scale_bytes);
  const Output workspace(1, tokens * rank * 4, tokens * rank * 4);
  const pncuda_low_rank_args args = args_in_place(a, b, x, scale_memory, workspace, pages, page, PNCUDA_F32);
  REQUIRE(pncuda_low_rank(&args, nullptr) == PNCUDA_OK);
  for (const int64_t m : {int64_t{0}, int64_t{2}})
    for (int64_t i = 0; i < n; ++i)
      REQUIRE(load_bits(PNCUDA_F32, static_cast<const uint8_t*>(pages) + m * page, i) != 0);
  REQUIRE(munmap(pages, size(tokens * page)) == 0);
}

TEST_CASE("low_rank: many tokens, most without a scale", "[low_rank]") {
  const Restore restore;
  Random random(3);
  use(host_cuda::h100());
  LowRankShape shape{2, 24, 5, 300, PNCUDA_BF16, PNCUDA_BF16, PNCUDA_F32, LowRankShape::in_place, 0};
  std::vector<float> scales;
  std::vector<int64_t> all;
  for (int64_t m = 0; m < shape.tokens; ++m) {
    scales.push_back(m % 7 == 3 ? 0.5f : 0.0f);
    all.push_back(m);
  }
  const Case one(shape, scales, random);
  one.worst(one.run(all, true));
}

// An add-on rounded once: the residual of a multiply.
TEST_CASE("low_rank: as the residual of pncuda_fused", "[low_rank]") {
  const Restore restore;
  Random random(4);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    use(device);
    LowRankShape shape{8, 512, 33, 3, PNCUDA_BF16, PNCUDA_BF16, PNCUDA_F32, LowRankShape::none, 0};
    const Case one(shape, {1.0f, 0.0f, -0.25f}, random);
    const auto add_on = one.run({0, 1, 2});
    const Bf16Weights weights(gauss_blocks(random, 33 * 2), 33);
    const auto sums = gemv(weights.packed(), one.x);
    std::vector<float> values;
    for (const std::uint32_t bits : add_on) values.push_back(float_of(bits));
    const Activations residual(PNCUDA_F32, 3, 33, values);
    const Output y(3, 33 * 2, 33 * 2);
    const pncuda_weights view = weights.packed();
    pncuda_fused_matrix matrix{};
    matrix.struct_size = sizeof matrix;
    matrix.weights = &view;
    matrix.y = y.data();
    matrix.y_stride = y.stride();
    matrix.y_type = PNCUDA_BF16;
    matrix.residual = residual.data();
    matrix.residual_stride = residual.stride();
    matrix.residual_type = PNCUDA_F32;
    pncuda_fused_args args{};
    args.struct_size = sizeof args;
    args.matrices = &matrix;
    args.count = 1;
    args.x = one.x.data();
    args.x_stride = one.x.stride();
    args.x_type = PNCUDA_BF16;
    args.tokens = 3;
    REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
    REQUIRE(y.intact());
    for (int64_t m = 0; m < 3; ++m)
      for (int64_t n = 0; n < 33; ++n) {
        const std::size_t i = size(m * 33 + n);
        REQUIRE(load_bits(PNCUDA_BF16, y.row(m), n) == bits_as(PNCUDA_BF16, float_of(sums[i]) + values[i]));
      }
  }
}

}  // namespace
