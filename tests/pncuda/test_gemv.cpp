// pncuda_gemv on each of its paths, against sums in double and against itself.
#include "testing.hpp"

using namespace testing;

namespace {

struct Path {
  const char* name;
  int number, mode;
  std::vector<host_cuda::Device> devices;  // the last one has so few multiprocessors that blocks of threads take more
  double bound, measured;                  // |error| / S: what pncuda.h says, and a little above what these tests see
  double flushed;  // |error| / T: activations that are small beside the largest of their 16 blocks
  double grain;    // error for each 16 columns when results are tiny
};
const Path& ffma() {
  static const Path path{"ffma",
                         PNCUDA_PATH_FFMA,
                         PNCUDA_ACCURATE,
                         {host_cuda::p100(), host_cuda::t4(), with_multiprocessors(host_cuda::p100(), 1)},
                         4e-6,
                         5e-7,
                         0,
                         0x1p-125};
  return path;
}
const Path& hfma2() {
  static const Path path{"hfma2",
                         PNCUDA_PATH_HFMA2,
                         PNCUDA_FAST_HALF2,
                         {host_cuda::p100(), host_cuda::t4(), with_multiprocessors(host_cuda::p100(), 1)},
                         8e-3,
                         3e-3,
                         0x1p-16,
                         0x1p-139};
  return path;
}
const Path& tensor() {
  static const Path path{"tensor",
                         PNCUDA_PATH_TENSOR,
                         PNCUDA_ACCURATE,
                         {host_cuda::h100(), host_cuda::a10(), with_multiprocessors(host_cuda::a10(), 1)},
                         4e-6,
                         5e-7,
                         0x1p-31,
                         0x1p-139};
  return path;
}

// A test case for each path; the tag chooses one.
#define EACH_PATH(text, function)                                          \
  TEST_CASE("gemv_ffma: " text, "[gemv_ffma]") { function(ffma()); }       \
  TEST_CASE("gemv_hfma2: " text, "[gemv_hfma2]") { function(hfma2()); }    \
  TEST_CASE("gemv_tensor: " text, "[gemv_tensor]") { function(tensor()); } \
  static_assert(true, "")

GemvOptions options_of(const Path& path, int y_type = PNCUDA_F32, int hadamard = 0) {
  GemvOptions options;
  options.mode = path.mode;
  options.y_type = y_type;
  options.hadamard = hadamard;
  return options;
}

int path_of(const pncuda_weights& weights, const Activations& x, const GemvOptions& options) {
  const Output y(0, 0, weights.rows * 4);
  const pncuda_gemv_args args = gemv_args(weights, x, y, options);
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  pncuda_gemv_args without = args;
  without.y_stride = weights.rows * bytes_of(options.y_type);
  REQUIRE(pncuda_gemv_query(&without, &plan) == PNCUDA_OK);
  return plan.path;
}

// The largest |error| / S of fp32 results; with `path` beyond what its small activations and results may lose.
double worst_error(const Weights& weights, const float* x, int64_t tokens, const std::vector<std::uint32_t>& bits,
                   const Path* path = nullptr) {
  const Exact exact = multiply_exactly(weights, x, tokens);
  REQUIRE(bits.size() == exact.y.size());
  double worst = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    double error = std::fabs(static_cast<double>(float_of(bits[i])) - exact.y[i]);
    if (!(error <= 1e300)) return HUGE_VAL;
    if (path != nullptr)
      error -= path->flushed * exact.t[i] + path->grain * (static_cast<double>(weights.k()) / 16 + 64);
    if (error <= 0) continue;
    worst = std::max(worst, exact.s[i] == 0 ? HUGE_VAL : error / exact.s[i]);
  }
  return worst;
}

void print(const Path& path, int type, const char* what, double worst) {
  if (std::getenv("PN_CUDA_ERRORS") != nullptr)
    std::printf("%s %s %s: largest |error| / S = %.3g\n", path.name, name_of(type), what, worst);
}

// ---- Against double ----

void agrees_with_double(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(1);
  const int64_t row_counts[] = {1, 15, 16, 17, 33, 40};
  std::size_t turn = 0;
  for (const int type : block_types)
    for (const int x_type : element_types) {
      double worst = 0;
      for (const int64_t blocks : {1, 2, 15, 16, 17, 33})
        for (int64_t tokens = 1 + int64_t(turn / 4 % 2); tokens <= PNCUDA_MAX_TOKENS; tokens += 2) {
          const int64_t rows = row_counts[turn++ % 6];
          if (left_out()) continue;
          const Weights weights(type, rows, blocks, random);
          const Activations x(x_type, tokens, weights.k(), random);
          CAPTURE(path.name, name_of(type), name_of(x_type), rows, blocks, tokens);
          for (const int layout : layouts) {
            const pncuda_weights w = weights.as(layout);
            REQUIRE(path_of(w, x, options_of(path)) == path.number);
            const double error = worst_error(weights, x.values().data(), tokens, gemv(w, x, options_of(path)));
            CAPTURE(layout, error);
            REQUIRE(error <= path.bound);
            REQUIRE(error <= path.measured);
            worst = std::max(worst, error);
          }
          REQUIRE(weights.unchanged());
        }
      print(path, type, name_of(x_type), worst);
    }
}
EACH_PATH("agrees with sums in double: 1 to 33 blocks, 1 to 40 rows, 1 to 8 tokens", agrees_with_double);

void long_rows_agree(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(2);
  struct Shape {
    int type;
    int64_t rows, k;
  };
  // Whole tiles, tiles and a part of one, one chunk, several, many.
  const Shape shapes[] = {{PNCUDA_PN3T, 33, 1280},  {PNCUDA_PN3T, 17, 5120}, {PNCUDA_PN3T, 20, 6400},
                          {PNCUDA_PN3T, 17, 15760}, {PNCUDA_PN4T, 40, 1280}, {PNCUDA_PN4T, 17, 5120},
                          {PNCUDA_PN4T, 33, 6400},  {PNCUDA_PN4T, 17, 17408}};
  int64_t tokens = 0;
  for (const Shape& shape : shapes) {
    const Weights weights(shape.type, shape.rows, shape.k / block_size_of(shape.type), random);
    double worst = 0;
    for (const int x_type : element_types)
      for (const int layout : layouts) {
        tokens = tokens % 8 + 1;
        if (left_out()) continue;
        const Activations x(x_type, tokens, weights.k(), random);
        CAPTURE(path.name, name_of(shape.type), shape.rows, shape.k, name_of(x_type), layout, tokens);
        const double error =
            worst_error(weights, x.values().data(), tokens, gemv(weights.as(layout), x, options_of(path)));
        CAPTURE(error);
        REQUIRE(error <= path.bound);
        REQUIRE(error <= path.measured);
        worst = std::max(worst, error);
      }
    print(path, shape.type, ("K = " + std::to_string(shape.k)).c_str(), worst);
  }
}
EACH_PATH("agrees with sums in double: long rows", long_rows_agree);

// One device has so few multiprocessors that a block of threads goes over its rows again and again.
void many_rows_agree(const Path& path) {
  const Restore restore;
  Random random(3);
  for (const int type : block_types) {
    // Two chunks on tensor cores, the second one ends early, and more groups of rows than one block of threads takes.
    const int64_t blocks = type == PNCUDA_PN3T ? 65 : 3;
    const Weights weights(type, 1070, blocks, random);
    const Activations x(PNCUDA_F16, 1, weights.k(), random);
    const Exact exact = multiply_exactly(weights, x.values().data(), 1);
    for (const auto& device : path.devices) {
      use(device);
      for (const int layout : layouts) {
        if (layout == PNCUDA_NATIVE && device.multiprocessors > 1) continue;
        CAPTURE(path.name, name_of(type), layout, device.name);
        const std::vector<std::uint32_t> bits = gemv(weights.as(layout), x, options_of(path));
        for (std::size_t i = 0; i < bits.size(); ++i)
          if (!(std::fabs(static_cast<double>(float_of(bits[i])) - exact.y[i]) <= path.measured * exact.s[i])) {
            CAPTURE(i);
            REQUIRE(static_cast<double>(float_of(bits[i])) == exact.y[i]);
          }
      }
    }
  }
}
EACH_PATH("agrees with sums in double: more rows than the device takes at once", many_rows_agree);

// Blocks whose codes are all but one at the zero point, and an activation that is not 0 for that one: every weight
// alone.
void every_weight_counts(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(4);
  for (const int type : block_types) {
    const int64_t block_size = block_size_of(type), blocks = 18;
    const int z = type == PNCUDA_PN3T ? 4 : 8;
    Weights weights(type, 16, blocks, random);
    for (int64_t n = 0; n < 16; ++n)
      for (int64_t b = 0; b < blocks; ++b) {
        std::vector<uint8_t> codes(size(block_size));
        for (int64_t e = 0; e < block_size; ++e) codes[size(e)] = static_cast<uint8_t>((e * 5 + n + 3 * b) % (2 * z));
        weights.set_codes(n, b, codes.data());
        weights.set_scale(n, b, 0x3C00u + static_cast<unsigned>((n * blocks + b) % 1024));  // 1 and a little more
      }
    weights.freeze();
    const int64_t k = weights.k();
    for (int64_t first = 0; first < k; first += 8 * 19) {
      if (left_out()) continue;
      std::vector<float> values(size(8 * k), 0.0f);
      for (int64_t m = 0; m < 8; ++m)
        if (first + 19 * m < k) values[size(m * k + first + 19 * m)] = 1.5f;
      const Activations x(PNCUDA_F16, 8, k, values);
      const auto bits =
          gemv(weights.as(first / (8 * 19) % 2 == 0 ? PNCUDA_NATIVE : PNCUDA_REPACKED), x, options_of(path));
      for (int64_t m = 0; m < 8; ++m)
        for (int64_t n = 0; n < 16; ++n) {
          const int64_t column = first + 19 * m;
          const float exact = column < k ? 1.5f * weights.decoded(n)[column] : 0.0f;
          const double error =
              std::fabs(static_cast<double>(float_of(bits[size(m * 16 + n)])) - static_cast<double>(exact));
          if (!(error <= path.measured * 16)) {
            CAPTURE(path.name, name_of(type), column, n, float_of(bits[size(m * 16 + n)]), exact);
            REQUIRE(error <= path.measured * 16);
          }
        }
    }
  }
}
EACH_PATH("every weight counts where it should", every_weight_counts);

// ---- The same bits ----

// Everything that must not move a bit, against one token at a time.
void bits_are_the_same(const Path& path) {
  const Restore restore;
  Random random(5);
  struct Shape {
    int type, x_type;
    int64_t rows, blocks;
  };
  const Shape shapes[] = {{PNCUDA_PN3T, PNCUDA_F32, 35, 3},   {PNCUDA_PN3T, PNCUDA_F16, 33, 17},
                          {PNCUDA_PN3T, PNCUDA_BF16, 18, 69}, {PNCUDA_PN4T, PNCUDA_BF16, 35, 3},
                          {PNCUDA_PN4T, PNCUDA_F16, 33, 17},  {PNCUDA_PN4T, PNCUDA_F32, 18, 82}};
  for (const Shape& shape : shapes) {
    if (left_out()) continue;
    host_cuda::set_thread_order(order_of_environment());
    use(path.devices[0]);
    const Weights weights(shape.type, shape.rows, shape.blocks, random);
    const Activations x(shape.x_type, 8, weights.k(), random);
    std::vector<std::uint32_t> alone;  // [8][rows]
    for (int64_t m = 0; m < 8; ++m) {
      const auto one = gemv(weights.native(), pick(x, {m}), options_of(path));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    CAPTURE(path.name, name_of(shape.type), name_of(shape.x_type), shape.rows, shape.blocks);
    const auto compare = [&](const std::vector<int64_t>& tokens, int layout, const GemvOptions& options, int64_t pad) {
      const auto bits = gemv(weights.as(layout), pick(x, tokens, pad), options);
      for (std::size_t m = 0; m < tokens.size(); ++m)
        for (int64_t n = 0; n < shape.rows; ++n) {
          const std::uint32_t before = alone[size(tokens[m] * shape.rows + n)];
          const std::uint32_t want = bits_as(options.y_type, float_of(before));
          if (bits[m * size(shape.rows) + size(n)] != want) {
            CAPTURE(m, n, layout, tokens.size(), options.y_type, pad);
            REQUIRE(bits[m * size(shape.rows) + size(n)] == want);
          }
        }
    };
    const GemvOptions plain = options_of(path);
    // Any number of tokens, any places.
    for (int64_t tokens = 1; tokens <= 8; ++tokens)
      for (const int layout : layouts) {
        std::vector<int64_t> picked;
        for (int64_t m = 0; m < tokens; ++m) picked.push_back((7 * m + 3 * tokens) % 8);
        compare(picked, layout, plain, tokens % 3);
        if (tokens == 4) compare({5, 5, 0, 5}, layout, plain, 0);
      }
    // Types and strides of results.
    for (const int y_type : element_types)
      for (const int layout : layouts) {
        GemvOptions other = options_of(path, y_type);
        other.y_pad = y_type == PNCUDA_F32 ? 3 : 5;
        other.y_shift = bytes_of(y_type);
        compare({6, 1, 4}, layout, other, 1);
      }
    // Any device of the path, any order.
    for (const auto& device : path.devices) {
      CAPTURE(device.name);
      use(device);
      for (const int layout : layouts) {
        compare({2}, layout, plain, 0);
        compare({2, 0, 7, 1, 6, 5, 3, 4}, layout, plain, 0);
      }
    }
    use(path.devices[0]);
    for (const char* const order : {"forward", "reverse", "1", "2"}) {
      CAPTURE(order);
      host_cuda::set_thread_order(order_of(order));
      host_cuda::set_block_order(order_of(order));
      host_cuda::set_host_threads(order[0] == '2' ? 2 : 1);
      for (const int layout : layouts) {
        compare({3}, layout, plain, 0);
        compare({3, 4, 0, 1, 6}, layout, plain, 0);
      }
    }
    host_cuda::set_host_threads(1);
    host_cuda::set_block_order({});
  }
}
EACH_PATH("bits: any number of tokens, place, layout, device and order", bits_are_the_same);

void shards_have_the_same_bits(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(6);
  for (const int type : block_types) {
    const int64_t rows = 45;
    const Weights weights(type, rows, 19, random);
    const Activations x(PNCUDA_F32, 3, weights.k(), random);
    const auto whole = gemv(weights.native(), x, options_of(path));
    struct Range {
      int layout;
      int64_t first, rows;
    };
    for (const Range& range : {Range{PNCUDA_NATIVE, 0, 1}, Range{PNCUDA_NATIVE, 1, 20}, Range{PNCUDA_NATIVE, 44, 1},
                               Range{PNCUDA_NATIVE, 7, 38}, Range{PNCUDA_NATIVE, 45, 0}, Range{PNCUDA_REPACKED, 0, 16},
                               Range{PNCUDA_REPACKED, 16, 16}, Range{PNCUDA_REPACKED, 16, 29},
                               Range{PNCUDA_REPACKED, 32, 13}, Range{PNCUDA_REPACKED, 0, 45}}) {
      const pncuda_weights all = weights.as(range.layout);
      pncuda_weights shard{};
      REQUIRE(pncuda_row_shard(&all, range.first, range.rows, &shard) == PNCUDA_OK);
      const auto bits = gemv(shard, x, options_of(path));
      REQUIRE(int64_t(bits.size()) == 3 * range.rows);
      for (int64_t m = 0; m < 3; ++m)
        for (int64_t n = 0; n < range.rows; ++n) {
          CAPTURE(path.name, name_of(type), range.layout, range.first, range.rows, m, n);
          REQUIRE(bits[size(m * range.rows + n)] == whole[size(m * rows + range.first + n)]);
        }
    }
  }
}
EACH_PATH("bits: a range of rows has those of the whole", shards_have_the_same_bits);

// Two halves of the columns, each repacked for itself; their sums are added by the caller.
void column_shards_add_up(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(7);
  for (const int type : block_types) {
    const int64_t k = type == PNCUDA_PN4T ? 17408 : 2 * 80 * 21;
    const int64_t rows = 18, half = k / 2;
    const Weights weights(type, rows, k / block_size_of(type), random);
    const Activations x(PNCUDA_F16, 2, k, random);
    const Exact exact = multiply_exactly(weights, x.values().data(), 2);
    const pncuda_weights all = weights.native();
    for (const int layout : layouts) {
      std::vector<double> sums(size(2 * rows), 0.0);
      for (const int64_t first : {int64_t{0}, half}) {
        pncuda_weights shard{};
        REQUIRE(pncuda_column_shard(&all, first, half, &shard) == PNCUDA_OK);
        REQUIRE(shard.row_stride == all.row_stride);
        Memory repacked(int64_t(pncuda_weights_size(&shard)));
        if (layout == PNCUDA_REPACKED) {
          REQUIRE(pncuda_repack(&shard, repacked.data(), nullptr) == PNCUDA_OK);
          shard.layout = PNCUDA_REPACKED;
          shard.data = repacked.data();
          shard.row_stride = 0;
        }
        std::vector<float> values;
        for (int64_t m = 0; m < 2; ++m) values.insert(values.end(), x.token(m) + first, x.token(m) + first + half);
        const auto bits = gemv(shard, Activations(PNCUDA_F16, 2, half, values), options_of(path));
        for (std::size_t i = 0; i < bits.size(); ++i) sums[i] += static_cast<double>(float_of(bits[i]));
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        CAPTURE(path.name, name_of(type), layout, i, sums[i], exact.y[i]);
        REQUIRE(std::fabs(sums[i] - exact.y[i]) <= path.measured * exact.s[i]);
      }
    }
  }
}
EACH_PATH("ranges of columns add up to the whole", column_shards_add_up);

// ---- Rotation ----

void rotation_is_that_of_hadamard(const Path& path) {
  const Restore restore;
  Random random(8);
  // Segments that begin and end with tiles, or anywhere in them; in one chunk, in several.
  struct Shape {
    int type;
    int64_t k;
    std::vector<int> blocks;
  };
  const Shape shapes[] = {{PNCUDA_PN3T, 320, {64}},        {PNCUDA_PN3T, 640, {64, 128}},
                          {PNCUDA_PN3T, 1280, {128, 256}}, {PNCUDA_PN3T, 7680, {64, 256, 512}},
                          {PNCUDA_PN3T, 15360, {1024}},    {PNCUDA_PN4T, 64, {64}},
                          {PNCUDA_PN4T, 1152, {128}},      {PNCUDA_PN4T, 6656, {128, 256, 512}},
                          {PNCUDA_PN4T, 8192, {64, 1024}}};
  std::size_t turn = 0;
  double worst = 0;
  for (const Shape& shape : shapes) {
    const Weights weights(shape.type, 18, shape.k / block_size_of(shape.type), random);
    for (const int b : shape.blocks) {
      if (left_out()) continue;
      const int x_type = element_types[turn % 3];
      const int64_t tokens = int64_t(1 + (turn * 3) % 8);
      const auto& device = path.devices[turn++ % path.devices.size()];
      use(device);
      CAPTURE(path.name, name_of(shape.type), shape.k, b, name_of(x_type), tokens, device.name);
      const Activations x(x_type, tokens, shape.k, random, 4);
      const Output rotated(tokens, shape.k * 4, shape.k * 4);
      const pncuda_hadamard_args args{sizeof args,      x.data(), x.stride(), rotated.data(),
                                      rotated.stride(), x_type,   PNCUDA_F32, tokens,
                                      shape.k,          b,        0};
      REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
      std::vector<float> values;
      for (int64_t i = 0; i < tokens * shape.k; ++i)
        values.push_back(float_of(load_bits(PNCUDA_F32, rotated.data(), i)));
      const Activations first(PNCUDA_F32, tokens, shape.k, values);
      const auto want = gemv(weights.native(), first, options_of(path));
      for (const int layout : layouts) REQUIRE(gemv(weights.as(layout), x, options_of(path, PNCUDA_F32, b)) == want);
      const double error = worst_error(weights, values.data(), tokens, want);
      REQUIRE(error <= path.measured);
      worst = std::max(worst, error);
    }
  }
  print(path, PNCUDA_PN3T, "and pn4t, rotated", worst);
}
EACH_PATH("the fused rotation is that of pncuda_hadamard", rotation_is_that_of_hadamard);

// The rotation, too, must not depend on the order of threads or on how many tokens and chunks there are.
void rotation_in_any_order(const Path& path) {
  const Restore restore;
  Random random(9);
  for (const int type : block_types) {
    const int64_t k = type == PNCUDA_PN3T ? 7680 : 6656;
    const Weights weights(type, 18, k / block_size_of(type), random);
    const Activations x(PNCUDA_BF16, 8, k, random);
    for (const int b : {64, 512}) {
      if (left_out()) continue;
      use(path.devices[0]);
      std::vector<std::uint32_t> alone;
      for (int64_t m = 0; m < 8; ++m) {
        const auto one = gemv(weights.native(), pick(x, {m}), options_of(path, PNCUDA_F32, b));
        alone.insert(alone.end(), one.begin(), one.end());
      }
      std::size_t turn = 0;
      for (const char* const order : {"forward", "reverse", "1", "2"})
        for (const int layout : layouts) {
          const auto& device = path.devices[turn++ % path.devices.size()];
          use(device);
          host_cuda::set_thread_order(order_of(order));
          CAPTURE(path.name, name_of(type), b, order, layout, device.name);
          REQUIRE(gemv(weights.as(layout), x, options_of(path, PNCUDA_F32, b)) == alone);
        }
      host_cuda::set_thread_order(order_of_environment());
    }
  }
}
EACH_PATH("bits: the fused rotation in any order", rotation_in_any_order);

// ---- Special numbers ----

void special_activations(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(10);
  for (const int type : block_types)
    for (const int x_type : element_types)
      for (const int layout : layouts) {
        const Weights weights(type, 19, 35, random);
        const int64_t k = weights.k();
        const std::vector<float> ordinary = random_values(random, 4 * k);
        CAPTURE(path.name, name_of(type), name_of(x_type), layout);
        const auto plain = gemv(weights.as(layout), Activations(x_type, 4, k, ordinary), options_of(path));
        // A NaN or an infinity makes its token NaN and leaves the others alone.
        for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")})
          for (const int64_t place : {int64_t{0}, k / 2 + 7, k - 1}) {
            if (left_out()) continue;
            std::vector<float> values = ordinary;
            values[size(2 * k + place)] = bad;
            const auto bits = gemv(weights.as(layout), Activations(x_type, 4, k, values), options_of(path));
            for (int64_t m = 0; m < 4; ++m)
              for (int64_t n = 0; n < 19; ++n) {
                CAPTURE(m, n, place, bad, float_of(bits[size(m * 19 + n)]));
                if (m == 2)
                  REQUIRE(std::isnan(float_of(bits[size(m * 19 + n)])));
                else
                  REQUIRE(bits[size(m * 19 + n)] == plain[size(m * 19 + n)]);
              }
          }
        // All zero: zero.
        for (const std::uint32_t bits :
             gemv(weights.as(layout), Activations(x_type, 1, k, std::vector<float>(size(k))), options_of(path)))
          REQUIRE((bits & 0x7FFFFFFFu) == 0);
      }
}
EACH_PATH("NaN and infinities among the activations, zeros", special_activations);

void any_magnitude(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(11);
  for (const int type : block_types)
    for (const int x_type : {PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16}) {
      Weights weights(type, 17, 20, random);
      const int64_t k = weights.k();
      const auto check = [&](const std::vector<float>& values, const char* what) {
        if (left_out()) return;
        const Activations x(x_type, 1, k, values);
        for (const int layout : layouts) {
          const double error =
              worst_error(weights, x.values().data(), 1, gemv(weights.as(layout), x, options_of(path)), &path);
          CAPTURE(path.name, name_of(type), name_of(x_type), layout, what, error);
          REQUIRE(error <= path.bound);
          REQUIRE(error <= path.measured);
        }
      };
      // One power of two after another, over all that the type has.
      const int low = x_type == PNCUDA_F16 ? -14 : -100, high = x_type == PNCUDA_F16 ? 12 : 120;
      for (int e = low; e <= high; e += x_type == PNCUDA_F16 ? 13 : 20) {
        std::vector<float> values = random_values(random, k);
        for (float& value : values) value = std::ldexp(value > 60000.0f ? 1.0f : value / 300.0f, e);
        check(values, ("2^" + std::to_string(e)).c_str());
      }
      std::vector<float> values(size(k));
      for (float& value : values) value = static_cast<float>(1e-3 * random.gauss());
      values[size(k / 3)] = 1e4f;
      check(values, "an outlier");
      // Every tile another size.
      for (int64_t i = 0; i < k; ++i)
        values[size(i)] = static_cast<float>(random.gauss()) * (i / block_size_of(type) < 16 ? 1e-3f : 1e3f);
      check(values, "another size for each tile");
      // Every activation another power of two: what is flushed is within the bound.
      for (int64_t i = 0; i < k; ++i)
        values[size(i)] = std::ldexp(1.0f + static_cast<float>(random.uniform()), int(i % 28) - 14);
      check(values, "all sizes");
      if (x_type != PNCUDA_F16) {
        for (int64_t n = 0; n < 17; ++n)
          for (int64_t b = 0; b < 20; ++b) weights.set_scale(n, b, 0x0400u + static_cast<unsigned>(random.below(512)));
        weights.freeze();
        for (float& value : values) value = static_cast<float>(3e38 * (2 * random.uniform() - 1));
        values[5] = 3.38e38f;
        check(values, "3e38");
      }
    }
}
EACH_PATH("activations of any magnitude", any_magnitude);

void tiny_activations(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(12);
  for (const int type : block_types) {
    Weights weights(type, 17, 20, random);
    const int64_t k = weights.k();
    for (const double unit : {1e-40, 1e-36, 1e-30}) {
      std::vector<float> values(size(k));
      for (float& value : values) value = static_cast<float>(unit * random.gauss());
      const Activations x(PNCUDA_F32, 1, k, values);
      for (const int layout : layouts) {
        const double error =
            worst_error(weights, values.data(), 1, gemv(weights.as(layout), x, options_of(path)), &path);
        CAPTURE(path.name, name_of(type), layout, unit, error);
        REQUIRE(error <= path.measured);
      }
    }
  }
}
EACH_PATH("tiny activations", tiny_activations);

void special_scales(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(13);
  for (const int type : block_types)
    for (const int layout : layouts) {
      const int64_t rows = 22, blocks = 35;
      Weights weights(type, rows, blocks, random);
      const Activations x(PNCUDA_F16, 3, weights.k(), random);
      const auto plain = gemv(weights.as(layout), x, options_of(path));
      // Row 3 n gets one scale that is not finite, rows 3 n + 1 scales that are finite but strange.
      const unsigned bad[] = {0x7C00u, 0xFC00u, 0x7C01u, 0x7E00u, 0xFFFFu};
      for (int64_t n = 0; n < rows; n += 3) weights.set_scale(n, (n * 11) % blocks, bad[n / 3 % 5]);
      const unsigned strange[] = {0x0001u, 0x8001u, 0x03FFu, 0x8000u, 0x0000u, 0x7BFFu, 0xFBFFu};
      for (int64_t n = 1; n < rows; n += 3)
        for (int64_t b = 0; b < blocks; ++b) weights.set_scale(n, b, strange[size(n + b) % 7]);
      weights.freeze();
      const auto bits = gemv(weights.as(layout), x, options_of(path));
      const Exact exact = multiply_exactly(weights, x.values().data(), 3);
      for (int64_t m = 0; m < 3; ++m)
        for (int64_t n = 0; n < rows; ++n) {
          const std::size_t i = size(m * rows + n);
          const float y = float_of(bits[i]);
          CAPTURE(path.name, name_of(type), layout, m, n, y, exact.y[i]);
          if (n % 3 == 0)
            REQUIRE(!std::isfinite(y));
          else if (n % 3 == 1)
            REQUIRE(std::fabs(static_cast<double>(y) - exact.y[i]) <=
                    path.measured * exact.s[i] + path.flushed * exact.t[i]);
          else
            REQUIRE(bits[i] == plain[i]);
        }
    }
}
EACH_PATH("scales that are NaN, infinite, subnormal or -0", special_scales);

// Any bytes at all are multiplied without a fault.
void any_bytes(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(14);
  for (const int type : block_types)
    for (int turn = 0; turn < 4; ++turn) {
      Weights weights(type, 18, 17, random);
      for (int64_t n = 0; n < 18; ++n)
        for (int64_t b = 0; b < 17; ++b) weights.set_scale(n, b, static_cast<unsigned>(random.next() & 0xFFFFu));
      weights.freeze();
      std::vector<float> values(size(2 * weights.k()));
      for (float& value : values) value = float_of(random.next32());
      const Activations x(PNCUDA_F32, 2, weights.k(), values);
      const auto native = gemv(weights.native(), x, options_of(path));
      const auto repacked = gemv(weights.repacked(), x, options_of(path));
      for (std::size_t i = 0; i < native.size(); ++i) REQUIRE(same_element(PNCUDA_F32, native[i], repacked[i]));
    }
}
EACH_PATH("any bytes are safe", any_bytes);

// ---- Places in memory ----

void strides_and_shifts(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(15);
  for (const int type : block_types)
    for (const int64_t blocks : {3, 17}) {
      const int64_t rows = 19, k = blocks * block_size_of(type);
      // The same bytes at other places.
      const Weights plain(type, rows, blocks, random);
      const std::vector<float> values = random_values(random, 3 * k);
      for (const int x_type : element_types) {
        const auto want = gemv(plain.native(), Activations(x_type, 3, k, values), options_of(path));
        for (const int64_t shift : {2, 8, 14})
          for (const int64_t pad : {0, 2, 6, 34}) {
            if (left_out()) continue;
            Input moved((rows - 1) * (blocks * 34 + pad) + blocks * 34, shift);
            std::memset(moved.data(), 0xEE, moved.bytes());
            for (int64_t n = 0; n < rows; ++n)
              std::memcpy(moved.data() + n * (blocks * 34 + pad), plain.row(n), size(blocks * 34));
            moved.freeze();
            pncuda_weights w = plain.native();
            w.data = moved.data();
            w.row_stride += pad;
            const int64_t element = bytes_of(x_type);
            const Activations x(x_type, 3, k, values, pad / 2, element * (1 + shift / 8));
            GemvOptions options = options_of(path);
            options.y_pad = pad;
            options.y_shift = 4 * (shift / 8);
            CAPTURE(path.name, name_of(type), blocks, name_of(x_type), shift, pad);
            REQUIRE(gemv(w, x, options) == want);
            REQUIRE(moved.unchanged());
          }
      }
    }
}
EACH_PATH("any alignment of 2, any stride", strides_and_shifts);

void nothing_to_do(const Path& path) {
  const Restore restore;
  use(path.devices[0]);
  Random random(16);
  for (const int type : block_types)
    for (const int layout : layouts)
      for (const int y_type : element_types) {
        // k = 0: results are 0.
        for (const int64_t rows : {1, 16, 37})
          for (const int64_t tokens : {1, 3, 8}) {
            const Output y(tokens, rows * bytes_of(y_type), rows * bytes_of(y_type) + 8);
            const pncuda_weights w{sizeof w, type, layout, nullptr, rows, 0, 0};
            pncuda_gemv_args args{sizeof args, &w,         nullptr, 0,         PNCUDA_F16, y_type,
                                  y.data(),    y.stride(), tokens,  path.mode, 0};
            REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
            REQUIRE(y.intact());
            for (int64_t m = 0; m < tokens; ++m)
              for (int64_t n = 0; n < rows; ++n) REQUIRE(load_bits(y_type, y.row(m), n) == 0);
          }
        // No tokens or no rows: nothing is launched.
        const Weights weights(type, 17, 2, random);
        const Activations x(PNCUDA_F16, 1, weights.k(), random);
        pncuda_weights w = weights.as(layout);
        const Output y(1, 17 * bytes_of(y_type), 17 * bytes_of(y_type));
        for (const bool no_tokens : {true, false}) {
          pncuda_gemv_args args = gemv_args(w, x, y, options_of(path, y_type));
          if (no_tokens)
            args.tokens = 0;
          else
            w.rows = 0;
          for (const bool null : {false, true}) {
            if (null) {
              args.x = nullptr;
              args.y = nullptr;
              w.data = no_tokens ? w.data : nullptr;
            }
            host_cuda::reset_calls();
            REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
            REQUIRE(host_cuda::calls().count("launch") == 0);
            REQUIRE(y.untouched());
          }
        }
      }
}
EACH_PATH("no tokens, no rows, no columns", nothing_to_do);

// fast_half2 is another path only where there are no tensor cores.
TEST_CASE("gemv_tensor: fast_half2 is accurate", "[gemv_tensor]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(17);
  for (const int type : block_types) {
    const Weights weights(type, 17, 18, random);
    const Activations x(PNCUDA_F16, 5, weights.k(), random);
    GemvOptions fast;
    fast.mode = PNCUDA_FAST_HALF2;
    REQUIRE(path_of(weights.native(), x, fast) == PNCUDA_PATH_TENSOR);
    REQUIRE(gemv(weights.native(), x, fast) == gemv(weights.native(), x));
  }
}

}  // namespace
