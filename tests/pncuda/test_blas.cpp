// pncuda_matmul: where it changes to cuBLAS, workspaces, slices, types, rotation, the second stream, proof; against
// double and the GEMV. Tuning, and its text.
#include <cublas_v2.h>
#include <pncuda/pncuda_blas.h>

#include <functional>
#include <map>

#include "p12_testing.hpp"

using namespace testing;

namespace {

struct Handle {
  Handle() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Handle() { cublasDestroy(handle); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasHandle_t handle = nullptr;
};

struct Stream {
  Stream() { REQUIRE(cudaStreamCreate(&stream) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t stream = nullptr;
};

struct Side {
  Side() {
    overlap.struct_size = sizeof overlap;
    REQUIRE(pncuda_overlap_create(&overlap) == PNCUDA_OK);
  }
  ~Side() { pncuda_overlap_destroy(&overlap); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  pncuda_overlap overlap{};
};

struct Options {
  int y_type = PNCUDA_F32;
  int hadamard = 0;
  int64_t switch_tokens = 1;
  int64_t slice_rows = 0;
  int64_t workspace = -1;  // bytes; -1: the best
  int64_t y_pad = 0;
  int mode = PNCUDA_ACCURATE;
  bool proof = false;
  const pncuda_overlap* overlap = nullptr;
};

pncuda_matmul_args matmul_args(const pncuda_weights& weights, const Activations& x, const Output& y,
                               const Options& options) {
  pncuda_matmul_args args{};
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
  args.switch_tokens = options.switch_tokens;
  args.slice_rows = options.slice_rows;
  args.proof = options.proof ? 1 : 0;
  args.overlap = options.overlap;
  return args;
}

pncuda_matmul_plan plan_of(const pncuda_matmul_args& args) {
  pncuda_matmul_plan plan{};
  plan.struct_size = sizeof plan;
  REQUIRE(pncuda_matmul_query(&args, &plan) == PNCUDA_OK);
  return plan;
}

std::vector<std::uint32_t> bits_of_rows(const Output& y, int type, int64_t tokens, int64_t rows) {
  std::vector<std::uint32_t> bits;
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t n = 0; n < rows; ++n) bits.push_back(load_bits(type, y.row(m), n));
  return bits;
}

// The results' bits, [tokens][rows].
std::vector<std::uint32_t> matmul(const pncuda_weights& weights, const Activations& x, const Options& options,
                                  std::size_t* gemms = nullptr, host_cuda::Calls* made = nullptr) {
  const Handle handle;
  const int64_t element = bytes_of(options.y_type);
  const Output y(x.tokens(), weights.rows * element, (weights.rows + options.y_pad) * element);
  pncuda_matmul_args args = matmul_args(weights, x, y, options);
  const int64_t bytes = options.workspace >= 0 ? options.workspace : int64_t(plan_of(args).workspace_size_best);
  const Output workspace(1, bytes, bytes);
  args.workspace = workspace.data();
  args.workspace_size = size(bytes);
  host_cuda::reset_calls();
  REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
  const host_cuda::Calls calls = host_cuda::calls();
  for (const char* const name : {"cudaMalloc", "cudaFree", "cudaStreamCreate", "cudaEventCreate"})
    REQUIRE(calls.count(name) == 0);
  REQUIRE(calls.count("cudaDeviceSynchronize") + calls.count("cudaStreamSynchronize") == 0);
  if (gemms != nullptr) *gemms = calls.count("cublasGemmEx");
  if (made != nullptr) *made = calls;
  REQUIRE(y.intact());
  REQUIRE(workspace.intact());
  REQUIRE(x.unchanged());
  return bits_of_rows(y, options.y_type, x.tokens(), weights.rows);
}

// The sums that cuBLAS should give for weights w[rows][k]: factors of `type`, summed in double.
std::vector<std::uint32_t> products(const std::vector<float>& w, const std::vector<float>& x, int64_t k, int type,
                                    int y_type) {
  std::vector<std::uint32_t> bits;
  for (std::size_t token = 0; token < x.size(); token += size(k))
    for (std::size_t row = 0; row < w.size(); row += size(k)) {
      double sum = 0;
      for (std::size_t i = 0; i < size(k); ++i)
        sum += static_cast<double>(w[row + i]) * static_cast<double>(x[token + i]);
      // The stand-in rounds its sum once to the type that it writes: y's own when cuBLAS can, else fp32 first.
      if (y_type == PNCUDA_F32 || y_type != type)
        bits.push_back(bits_as(y_type, static_cast<float>(sum)));
      else
        bits.push_back(y_type == PNCUDA_F16 ? pn::double_to_half(sum) : pn::double_to_bf16(sum));
    }
  return bits;
}

// The same of PN weights: everything is rounded as the header says.
std::vector<std::uint32_t> expected(const Weights& weights, const Activations& x, const Options& options,
                                    bool has_bf16) {
  const int type = x.type() == PNCUDA_BF16 && !has_bf16 ? PNCUDA_F32 : x.type();
  std::vector<float> values = x.values();
  if (options.hadamard != 0) {
    REQUIRE(pn::hadamard_activations(values.data(), values.size(), size(options.hadamard)) == pn::Status::ok);
    for (float& value : values) value = value_of(type, bits_as(type, value));
  }
  std::vector<float> w(size(weights.rows() * weights.k()));
  for (int64_t n = 0; n < weights.rows(); ++n)
    for (int64_t i = 0; i < weights.k(); ++i)
      w[size(n * weights.k() + i)] = value_of(type, bits_as(type, weights.decoded(n)[i]));
  return products(w, values, weights.k(), type, options.y_type);
}

// And of BF16 weights: nothing is rounded.
std::vector<std::uint32_t> expected(const Bf16Weights& weights, const Activations& x, const Options& options,
                                    bool has_bf16) {
  std::vector<float> w;
  for (int64_t n = 0; n < weights.rows(); ++n)
    for (int64_t i = 0; i < weights.k(); ++i) w.push_back(pn::bf16_to_float(weights.row(n)[i]));
  const int type = x.type() == PNCUDA_BF16 && has_bf16 ? PNCUDA_BF16 : PNCUDA_F32;
  return products(w, x.values(), weights.k(), type, options.y_type);
}

host_cuda::Device with_l2(host_cuda::Device device, int64_t bytes) {
  device.l2_bytes = static_cast<int>(bytes);
  return device;
}

TEST_CASE("blas: the product of what it decodes, all types", "[blas]") {
  const Restore restore;
  Random random(1);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    use(device);
    for (const int type : block_types)
      for (const int64_t rows : {1, 15, 35}) {
        const Weights weights(type, rows, 16, random, 2);  // k = 1280 or 1024
        for (const int layout : layouts)
          for (const int x_type : element_types)
            for (const int y_type : element_types)
              for (const int hadamard : {0, 128}) {
                const int64_t tokens = int64_t(1 + random.below(19));
                const Activations x(x_type, tokens, weights.k(), random, tokens % 3);
                Options options;
                options.y_type = y_type;
                options.hadamard = hadamard;
                options.y_pad = tokens % 2;
                CAPTURE(device.name, name_of(type), rows, layout, name_of(x_type), name_of(y_type), hadamard, tokens);
                REQUIRE(matmul(weights.as(layout), x, options) == expected(weights, x, options, device.major >= 8));
              }
        REQUIRE(weights.unchanged());
      }
  }
}

TEST_CASE("blas: slices of rows, as the workspace allows", "[blas]") {
  const Restore restore;
  Random random(2);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    use(device);
    for (const int x_type : element_types)
      for (const int y_type : element_types)
        for (const int64_t rows : {7, 16, 100}) {
          const Weights weights(PNCUDA_PN4T, rows, 8, random);
          const Activations x(x_type, 5, weights.k(), random);
          Options options;
          options.y_type = y_type;
          const Output y(5, rows * bytes_of(y_type), rows * bytes_of(y_type));
          const pncuda_weights w = weights.repacked();
          const pncuda_matmul_plan plan = plan_of(matmul_args(w, x, y, options));
          REQUIRE(plan.way == PNCUDA_MATMUL_BLAS);
          REQUIRE(plan.switch_tokens == 1);
          REQUIRE(plan.slice_rows == rows);
          REQUIRE(plan.workspace_size_least <= plan.workspace_size_best);
          const auto want = expected(weights, x, options, device.major >= 8);
          std::size_t most = 0;
          for (const int64_t bytes : {int64_t(plan.workspace_size_least), int64_t(plan.workspace_size_least) + 1,
                                      int64_t(plan.workspace_size_least + plan.workspace_size_best) / 2,
                                      int64_t(plan.workspace_size_best), int64_t(plan.workspace_size_best) + 777}) {
            options.workspace = bytes;
            std::size_t gemms = 0;
            CAPTURE(device.name, name_of(x_type), name_of(y_type), rows, bytes);
            REQUIRE(matmul(w, x, options, &gemms) == want);
            REQUIRE(gemms >= 1);
            REQUIRE(gemms <= size((rows + 15) / 16));
            most = std::max(most, gemms);
            if (bytes >= int64_t(plan.workspace_size_best)) REQUIRE(gemms == 1);
          }
          REQUIRE(most == size((rows + 15) / 16));

          // A byte less than the least is refused before anything happens.
          const Handle handle;
          const Output workspace(1, int64_t(plan.workspace_size_best), int64_t(plan.workspace_size_best));
          pncuda_matmul_args args = matmul_args(w, x, y, options);
          args.workspace = workspace.data();
          args.workspace_size = plan.workspace_size_least - 1;
          host_cuda::reset_calls();
          REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_WORKSPACE_TOO_SMALL);
          args.workspace_size = 0;
          REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_WORKSPACE_TOO_SMALL);
          REQUIRE(host_cuda::calls().count("launch") == 0);
          REQUIRE(host_cuda::calls().count("cublasGemmEx") == 0);
          REQUIRE(y.untouched());
          REQUIRE(workspace.untouched());
        }
  }
}

// A small L2 cache: slices stay within a quarter of it, and two of them within a half; from 128 rows on they are whole
// tiles of cuBLAS.
TEST_CASE("blas: slices fit the L2 cache", "[blas]") {
  const Restore restore;
  Random random(3);
  const Weights weights(PNCUDA_PN4T, 300, 8, random);  // 512 columns, 1024 bytes a row in fp16
  const Activations x(PNCUDA_F16, 3, 512, random);
  const Output y(3, 1200, 1200);
  const pncuda_weights w = weights.native();
  const auto want = expected(weights, x, {}, true);
  for (const auto& [kilobytes, rows] : {std::pair<int, int64_t>{4 * 384, 300},
                                        {4 * 300, 256},
                                        {4 * 128, 128},
                                        {4 * 127, 112},
                                        {4 * 32, 32},
                                        {4 * 17, 16},
                                        {1, 16}}) {
    use(with_l2(host_cuda::h100(), kilobytes * 1024));
    const Side side;
    Options options;
    for (const bool overlap : {false, true}) {
      options.overlap = overlap ? &side.overlap : nullptr;
      const pncuda_matmul_plan plan = plan_of(matmul_args(w, x, y, options));
      CAPTURE(kilobytes, overlap);
      REQUIRE(plan.slice_rows == rows);
      REQUIRE(plan.blas_type == PNCUDA_F16);
      REQUIRE(plan.workspace_size_least == size(std::min<int64_t>(rows, 16)) * 1024);
      REQUIRE(plan.workspace_size_best == size(rows) * 1024 * (overlap && rows < 300 ? 2 : 1));
      std::size_t gemms = 0;
      REQUIRE(matmul(w, x, options, &gemms) == want);
      REQUIRE(gemms == size((300 + rows - 1) / rows));
    }
  }
}

TEST_CASE("blas: slices of the caller's rows", "[blas]") {
  const Restore restore;
  Random random(7);
  const Weights pn(PNCUDA_PN4T, 150, 4, random);  // 256 columns, as those of BF16
  const Bf16Weights bf16(random_blocks(random, 150), 150);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : {PNCUDA_PN4T, PNCUDA_BF16_P12, PNCUDA_BF16_PLAIN})
      for (const int x_type : {PNCUDA_BF16, PNCUDA_F32}) {
        use(with_l2(device, 4 * 64 * 1024));  // 128 or 64 rows by default
        const Side side;
        const bool is_pn = type == PNCUDA_PN4T, has_bf16 = device.major >= 8;
        const pncuda_weights w = is_pn ? pn.repacked() : bf16.as(type);
        const Activations x(x_type, 5, 256, random);
        const auto want = is_pn ? expected(pn, x, {}, has_bf16) : expected(bf16, x, {}, has_bf16);
        const bool direct = type == PNCUDA_BF16_PLAIN && x_type == PNCUDA_BF16 && has_bf16;
        const std::size_t row = x_type == PNCUDA_F32 || !has_bf16 ? 1024 : 512;
        const std::size_t copy = x_type == PNCUDA_BF16 && !has_bf16 ? 5 * 1024 : 0;
        const Output y(5, 600, 600);
        for (const int64_t rows : {int64_t{16}, int64_t{48}, int64_t{144}, int64_t{150}, int64_t{160}, INT64_MAX})
          for (const bool overlap : {false, true}) {
            if (left_out()) continue;
            Options options;
            options.slice_rows = rows;
            options.overlap = overlap ? &side.overlap : nullptr;
            const pncuda_matmul_plan plan = plan_of(matmul_args(w, x, y, options));
            const int64_t used = direct ? 150 : std::min<int64_t>(rows, 150);
            CAPTURE(device.name, type, name_of(x_type), rows, overlap);
            REQUIRE(plan.slice_rows == used);
            const std::size_t slice = direct ? 0 : (size(used) * row + 255) / 256 * 256;
            REQUIRE(plan.workspace_size_best == copy + slice * (overlap && used < 150 ? 2 : 1));
            REQUIRE(plan.workspace_size_least == copy + (direct ? 0 : 16 * row));
            std::size_t gemms = 0;
            host_cuda::Calls calls;
            REQUIRE(matmul(w, x, options, &gemms, &calls) == want);
            REQUIRE(gemms == size((150 + used - 1) / used));
            REQUIRE((calls.count("cudaStreamWaitEvent") > 0) == (overlap && used < 150));
            // A workspace that does not hold them has smaller ones.
            if (direct) continue;
            options.workspace = int64_t(plan.workspace_size_least);
            REQUIRE(matmul(w, x, options, &gemms) == want);
            REQUIRE(gemms == 10);
            options.workspace = int64_t(copy + slice) - 1;
            if (used == 16) continue;
            REQUIRE(matmul(w, x, options, &gemms) == want);
            const int64_t half = used / 2 / 16 * 16;
            REQUIRE(gemms == size((150 + half - 1) / half));
          }
      }
}

TEST_CASE("blas: few tokens are GEMVs, up to 8 at a time", "[blas]") {
  const Restore restore;
  Random random(4);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2}) {
      use(device);
      const Weights weights(PNCUDA_PN3T, 19, 8, random);
      for (const int64_t tokens : {1, 7, 8, 9, 16, 21}) {
        const Activations x(PNCUDA_F16, tokens, weights.k(), random);
        Options options;
        options.switch_tokens = 22;
        options.hadamard = 64;
        options.workspace = 0;
        options.mode = mode;
        std::size_t gemms = 1;
        const auto bits = matmul(weights.native(), x, options, &gemms);
        REQUIRE(gemms == 0);
        GemvOptions gemv_options;
        gemv_options.hadamard = 64;
        gemv_options.mode = mode;
        for (int64_t m = 0; m < tokens; ++m) {
          const auto one = gemv(weights.native(), pick(x, {m}), gemv_options);
          CAPTURE(device.name, mode, tokens, m);
          REQUIRE(std::equal(one.begin(), one.end(), bits.begin() + m * 19));
        }
      }
    }
}

TEST_CASE("blas: where it switches", "[blas]") {
  const Restore restore;
  Random random(5);
  const Weights weights(PNCUDA_PN4T, 16, 2, random);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    use(device);
    const pncuda_weights w = weights.native();
    const Output y(0, 0, 64);
    int64_t standard = 0;
    for (int64_t tokens = 0; tokens <= 70; ++tokens) {
      const Activations x(PNCUDA_F16, tokens, 128, random);
      Options options;
      options.switch_tokens = 0;
      pncuda_matmul_args args = matmul_args(w, x, y, options);
      args.x = nullptr;
      args.y = nullptr;
      const pncuda_matmul_plan plan = plan_of(args);
      REQUIRE(plan.switch_tokens >= 9);
      REQUIRE((standard == 0 || plan.switch_tokens == standard));
      standard = plan.switch_tokens;
      REQUIRE(plan.way == (tokens == 0          ? PNCUDA_MATMUL_NONE
                           : tokens >= standard ? PNCUDA_MATMUL_BLAS
                                                : PNCUDA_MATMUL_GEMV));
      REQUIRE((plan.workspace_size_best != 0) == (plan.way == PNCUDA_MATMUL_BLAS));
      for (const int64_t at : {int64_t{1}, tokens, tokens + 1, int64_t{1} << 40}) {
        if (tokens == 0 || at == 0) continue;
        args.switch_tokens = at;
        const pncuda_matmul_plan own = plan_of(args);
        REQUIRE(own.switch_tokens == at);
        REQUIRE(own.way == (tokens >= at ? PNCUDA_MATMUL_BLAS : PNCUDA_MATMUL_GEMV));
      }
    }
    REQUIRE(standard == (device.major >= 8 ? 33 : 17));
  }
}

TEST_CASE("blas: nothing to do, k = 0", "[blas]") {
  const Restore restore;
  use(host_cuda::h100());
  const Handle handle;
  const Output y(40, 20 * 2, 20 * 2 + 2);
  pncuda_weights w{sizeof w, PNCUDA_PN4T, PNCUDA_NATIVE, nullptr, 20, 0, 0};
  pncuda_matmul_args args{};
  args.struct_size = sizeof args;
  args.weights = &w;
  args.x_type = PNCUDA_F16;
  args.y_type = PNCUDA_BF16;
  args.y = y.data();
  args.y_stride = y.stride();
  args.tokens = 40;
  args.switch_tokens = 1;
  REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
  REQUIRE(y.intact());
  for (int64_t m = 0; m < 40; ++m)
    for (int64_t n = 0; n < 20; ++n) REQUIRE(load_bits(PNCUDA_BF16, y.row(m), n) == 0);
  y.clear();
  for (const bool tokens : {false, true}) {
    w.k = 64;
    w.row_stride = 34;
    w.rows = tokens ? 0 : 20;
    args.tokens = tokens ? 40 : 0;
    args.x_stride = 128;
    host_cuda::reset_calls();
    REQUIRE(pncuda_matmul(&args, nullptr, nullptr) == PNCUDA_OK);
    REQUIRE(host_cuda::calls().count("launch") + host_cuda::calls().count("cublasGemmEx") == 0);
    REQUIRE(y.untouched());
  }
}

// ---- BF16_P12 and plain BF16 ----

TEST_CASE("blas: BF16 weights, packed and plain, are multiplied without rounding", "[blas]") {
  const Restore restore;
  Random random(20);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    use(device);
    const Side side;
    for (const int64_t rows : {1, 15, 35})
      for (const int64_t blocks : {1, 3}) {
        const Bf16Weights weights(random_blocks(random, rows * blocks), rows, rows % 2, rows % 2 * 8);
        for (const int x_type : element_types)
          for (const int y_type : element_types) {
            const int64_t tokens = int64_t(1 + random.below(19));
            const Activations x(x_type, tokens, weights.k(), random, tokens % 3);
            Options options;
            options.y_type = y_type;
            options.y_pad = tokens % 2;
            const auto want = expected(weights, x, options, device.major >= 8);
            for (const int type : bf16_types)
              for (const bool overlap : {false, true}) {
                if (left_out()) continue;
                options.overlap = overlap ? &side.overlap : nullptr;
                CAPTURE(device.name, type, rows, blocks, name_of(x_type), name_of(y_type), tokens, overlap);
                REQUIRE(matmul(weights.as(type), x, options) == want);
              }
          }
        REQUIRE(weights.unchanged());
      }
  }
}

TEST_CASE("blas: special BF16 weights go through unchanged", "[blas]") {
  const Restore restore;
  Random random(21);
  use(host_cuda::h100());
  const Bf16Weights weights(hostile_blocks(random, 20), 20);
  for (const int x_type : element_types) {
    const Activations x(x_type, 3, 256, random);
    for (const bool proof : {false, true}) {
      Options options;
      options.proof = proof;
      const auto packed = matmul(weights.packed(), x, options), plain = matmul(weights.plain(), x, options);
      for (std::size_t i = 0; i < packed.size(); ++i) REQUIRE(same_element(PNCUDA_F32, packed[i], plain[i]));
    }
  }
}

TEST_CASE("blas: plain BF16 is not copied", "[blas]") {
  const Restore restore;
  Random random(22);
  use(with_l2(host_cuda::h100(), 4096));  // slices would be small
  const Bf16Weights weights(random_blocks(random, 100), 100, 3);
  const Activations x(PNCUDA_BF16, 18, 256, random);
  const Side side;
  for (const int y_type : element_types) {
    Options options;
    options.y_type = y_type;
    options.overlap = &side.overlap;
    const Output y(18, 100 * bytes_of(y_type), 100 * bytes_of(y_type));
    pncuda_weights w = weights.plain();
    pncuda_matmul_args args = matmul_args(w, x, y, options);
    const pncuda_matmul_plan plan = plan_of(args);
    REQUIRE(plan.slice_rows == 100);
    REQUIRE(plan.blas_type == PNCUDA_BF16);
    const std::size_t results = y_type == PNCUDA_F16 ? (18 * 100 * 4 + 255) / 256 * 256 : 0;
    REQUIRE(plan.workspace_size_least == results);
    REQUIRE(plan.workspace_size_best == results);
    if (results == 0) {
      const Handle handle;
      host_cuda::reset_calls();
      REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
      REQUIRE(host_cuda::calls().count("launch") == 0);
      REQUIRE(host_cuda::calls().count("cublasGemmEx") == 1);
      REQUIRE(bits_of_rows(y, y_type, 18, 100) == expected(weights, x, options, true));
      y.clear();
      // One row may say any stride.
      w.rows = 1;
      w.row_stride = 0;
      REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
      w.row_stride = int64_t{1} << 33;
      REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_TOO_LARGE);
    }
    std::size_t gemms = 0;
    REQUIRE(matmul(weights.plain(), x, options, &gemms) == expected(weights, x, options, true));
    REQUIRE(gemms == 1);
  }
}

TEST_CASE("blas: few tokens with BF16 weights are GEMVs, up to 32 at a time", "[blas]") {
  const Restore restore;
  Random random(23);
  const Bf16Weights weights(random_blocks(random, 2 * 19), 19);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_PORTABLE})
      for (const int x_type : element_types) {
        use(device);
        GemvOptions gemv_options;
        gemv_options.mode = mode;
        for (const int64_t tokens : {1, 17, 31, 32, 33, 65}) {
          if (left_out()) continue;
          const Activations x(x_type, tokens, weights.k(), random);
          Options options;
          options.switch_tokens = 66;
          options.workspace = 0;
          options.mode = mode;
          std::size_t gemms = 1;
          host_cuda::Calls calls;
          const auto bits = matmul(weights.packed(), x, options, &gemms, &calls);
          REQUIRE(gemms == 0);
          REQUIRE(matmul(weights.plain(), x, options) == bits);
          std::size_t launches = 0;
          for (int64_t first = 0; first < tokens; first += 32) {
            std::vector<int64_t> places;
            for (int64_t m = first; m < std::min<int64_t>(tokens, first + 32); ++m) places.push_back(m);
            const Activations part = pick(x, places);
            host_cuda::reset_calls();
            const auto some = gemv(weights.packed(), part, gemv_options);
            launches += host_cuda::calls().count("launch");
            CAPTURE(device.name, mode, name_of(x_type), tokens, first);
            REQUIRE(std::equal(some.begin(), some.end(), bits.begin() + first * 19));
          }
          REQUIRE(calls.count("launch") == launches);
          if (device.major >= 8 && mode == PNCUDA_ACCURATE && x_type == PNCUDA_BF16)
            REQUIRE(launches == size((tokens + 31) / 32));  // weights are read once for each
        }
      }
}

TEST_CASE("blas: where it switches with BF16 weights", "[blas]") {
  const Restore restore;
  Random random(24);
  const Bf16Weights weights(random_blocks(random, 16), 16);
  const Output y(0, 0, 64);
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : bf16_types)
      for (const int x_type : element_types)
        for (const int mode : {PNCUDA_ACCURATE, PNCUDA_PORTABLE}) {
          use(device);
          const bool tensor = device.major >= 8 && mode == PNCUDA_ACCURATE;
          const bool bf16 = device.major >= 8 && x_type == PNCUDA_BF16;
          const int64_t want = !tensor ? 17 : !bf16 ? 129 : type == PNCUDA_BF16_PLAIN ? 33 : 65;
          const pncuda_weights w = weights.as(type);
          for (const int64_t tokens : {int64_t{1}, want - 1, want, want + 100}) {
            const Activations x(x_type, tokens, 256, random);
            Options options;
            options.switch_tokens = 0;
            options.mode = mode;
            const pncuda_matmul_plan plan = plan_of(matmul_args(w, x, y, options));
            CAPTURE(device.name, type, name_of(x_type), mode, tokens);
            REQUIRE(plan.switch_tokens == want);
            REQUIRE(plan.way == (tokens >= want ? PNCUDA_MATMUL_BLAS : PNCUDA_MATMUL_GEMV));
            if (tokens >= want) REQUIRE(plan.blas_type == (bf16 ? PNCUDA_BF16 : PNCUDA_F32));
          }
        }
}

// The kernels and products of a call, each with its stream; without events.
std::vector<std::string> work_of(const host_cuda::Calls& calls) {
  std::vector<std::string> names;
  for (const auto& work : calls.work)
    if (work.event == nullptr) names.push_back(work.name);
  return names;
}

TEST_CASE("blas: proof is the unpacked model, bit for bit", "[blas]") {
  const Restore restore;
  Random random(25);
  const Bf16Weights weights(random_blocks(random, 2 * 70), 70, 5);
  const pncuda_weights packed = weights.packed(), plain = weights.plain();
  const std::size_t unpacked = 70 * 512 * 2;  // a multiple of 256
  for (const auto& device : {with_l2(host_cuda::h100(), 1 << 15), with_l2(host_cuda::p100(), 1 << 18)}) {
    use(device);
    const Side side;
    for (const int64_t tokens : {1, 16, 17, 64})
      for (const int x_type : element_types)
        for (const int64_t switch_tokens : {0, 1}) {
          if (left_out()) continue;
          const Activations x(x_type, tokens, 512, random);
          Options options;
          options.y_type = tokens % 2 == 0 ? PNCUDA_F32 : x_type;
          options.switch_tokens = switch_tokens;
          options.overlap = tokens % 2 == 0 ? &side.overlap : nullptr;
          const Output y(tokens, 280, 280);
          const pncuda_matmul_plan of_plain = plan_of(matmul_args(plain, x, y, options));
          host_cuda::Calls plain_calls, proof_calls;
          const auto want = matmul(plain, x, options, nullptr, &plain_calls);
          options.proof = true;
          CAPTURE(device.name, tokens, name_of(x_type), switch_tokens);
          REQUIRE(matmul(plain, x, options) == want);  // which ignores it
          const pncuda_matmul_args args = matmul_args(packed, x, y, options);
          const pncuda_matmul_plan plan = plan_of(args);
          REQUIRE(plan.way == of_plain.way);
          REQUIRE(plan.blas_type == of_plain.blas_type);
          REQUIRE(plan.switch_tokens == of_plain.switch_tokens);
          REQUIRE(plan.slice_rows == of_plain.slice_rows);
          REQUIRE(plan.workspace_size_least == unpacked + of_plain.workspace_size_least);
          REQUIRE(plan.workspace_size_best == unpacked + of_plain.workspace_size_best);
          for (const std::size_t bytes : {plan.workspace_size_best, plan.workspace_size_least}) {
            options.workspace = int64_t(bytes);
            REQUIRE(matmul(packed, x, options, nullptr, &proof_calls) == want);
            if (bytes != plan.workspace_size_best) continue;
            auto after = work_of(proof_calls);
            REQUIRE(after.front() == "launch");
            after.erase(after.begin());
            REQUIRE(after == work_of(plain_calls));
          }
        }
  }
  REQUIRE(weights.unchanged());
}

// What the products of plain weights are given is what those of unpacked ones are: the matrix in the workspace.
TEST_CASE("blas: proof unpacks the whole matrix first", "[blas]") {
  const Restore restore;
  Random random(26);
  use(host_cuda::h100());
  const Bf16Weights weights(random_blocks(random, 2 * 33), 33);
  const Handle handle;
  for (const int64_t tokens : {2, 40}) {
    const Activations x(PNCUDA_BF16, tokens, 512, random);
    const Output y(tokens, 132, 132);
    Options options;
    options.switch_tokens = 3;
    options.proof = true;
    const pncuda_weights packed = weights.packed();
    pncuda_matmul_args args = matmul_args(packed, x, y, options);
    const pncuda_matmul_plan plan = plan_of(args);
    const int64_t bytes = 33 * 1024;
    REQUIRE(int64_t(plan.workspace_size_least) == bytes);
    const Output workspace(1, bytes, bytes);
    args.workspace = workspace.data();
    args.workspace_size = size(bytes) - 1;
    host_cuda::reset_calls();
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_WORKSPACE_TOO_SMALL);
    args.workspace_size = size(bytes);
    args.workspace = nullptr;
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_NULL_POINTER);
    args.workspace = workspace.data() + 8;
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_MISALIGNED);
    args.workspace = workspace.data();
    args.x = nullptr;
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_NULL_POINTER);
    args.x = x.data() + 1;
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_MISALIGNED);
    args.x = x.data();
    if (tokens > 2) REQUIRE(pncuda_matmul(&args, nullptr, nullptr) == PNCUDA_NULL_POINTER);
    REQUIRE(host_cuda::calls().count("launch") == 0);
    REQUIRE(workspace.untouched());
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
    REQUIRE(workspace.intact());
    for (int64_t n = 0; n < 33; ++n) REQUIRE(std::memcmp(workspace.data() + n * 1024, weights.row(n), 1024) == 0);
    REQUIRE(host_cuda::calls().count("cublasGemmEx") == (tokens > 2 ? 1 : 0));
  }
}

// ---- The second stream ----

TEST_CASE("blas: slices and the second stream change no bit", "[blas]") {
  const Restore restore;
  Random random(30);
  const Bf16Weights bf16(random_blocks(random, 150), 150);
  const Weights pn(PNCUDA_PN3T, 150, 4, random);  // 320 columns
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : {PNCUDA_BF16_P12, PNCUDA_BF16_PLAIN, PNCUDA_PN3T})
      for (const int x_type : {PNCUDA_BF16, PNCUDA_F32}) {
        use(with_l2(device, 4 * 40 * 1024));  // a slice of bf16 has 80 or 64 rows, one of fp32 32
        const Side side;
        const bool is_pn = type == PNCUDA_PN3T;
        const pncuda_weights w = is_pn ? pn.repacked() : bf16.as(type);
        const Activations x(x_type, 6, w.k, random);
        for (const int y_type : {PNCUDA_F32, PNCUDA_F16}) {
          if (left_out()) continue;
          Options options;
          options.y_type = y_type;
          const bool has_bf16 = device.major >= 8;
          const auto want = is_pn ? expected(pn, x, options, has_bf16) : expected(bf16, x, options, has_bf16);
          const Output y(6, 150 * 4, 150 * 4);
          const pncuda_matmul_plan alone = plan_of(matmul_args(w, x, y, options));
          options.overlap = &side.overlap;
          const pncuda_matmul_plan both = plan_of(matmul_args(w, x, y, options));
          REQUIRE(both.slice_rows == alone.slice_rows);
          REQUIRE(both.workspace_size_least == alone.workspace_size_least);
          const bool slices = alone.slice_rows < 150;
          REQUIRE((both.workspace_size_best > alone.workspace_size_best) == slices);
          for (const std::size_t bytes :
               {alone.workspace_size_least, (alone.workspace_size_least + alone.workspace_size_best) / 2,
                alone.workspace_size_best, both.workspace_size_best - 1, both.workspace_size_best,
                both.workspace_size_best + 99999}) {
            if (bytes < alone.workspace_size_least) continue;
            std::size_t gemms[2] = {};
            host_cuda::Calls calls;
            options.workspace = int64_t(bytes);
            CAPTURE(device.name, type, name_of(x_type), name_of(y_type), bytes);
            options.overlap = nullptr;
            REQUIRE(matmul(w, x, options, &gemms[0]) == want);
            options.overlap = &side.overlap;
            REQUIRE(matmul(w, x, options, &gemms[1], &calls) == want);
            REQUIRE(gemms[0] == gemms[1]);  // the same slices
            if (bytes >= both.workspace_size_best) REQUIRE((calls.count("cudaStreamWaitEvent") > 0) == slices);
            if (bytes == alone.workspace_size_best) REQUIRE(calls.count("cudaStreamWaitEvent") == 0);
          }
        }
      }
}

// Which work comes before which, from streams and events alone: before[i][j] when j is done before i begins.
std::vector<std::vector<bool>> order_of_work(const std::vector<host_cuda::WorkRecord>& work) {
  std::vector<std::vector<bool>> before(work.size(), std::vector<bool>(work.size()));
  for (std::size_t i = 0; i < work.size(); ++i) {
    const auto add = [&](std::size_t j) {
      before[i][j] = true;
      for (std::size_t l = 0; l < j; ++l)
        if (before[j][l]) before[i][l] = true;
    };
    for (std::size_t j = i; j-- > 0;)
      if (work[j].stream == work[i].stream) {
        add(j);
        break;
      }
    if (work[i].name != "cudaStreamWaitEvent") continue;
    for (std::size_t j = i; j-- > 0;)
      if (work[j].name == "cudaEventRecord" && work[j].event == work[i].event) {
        add(j);
        break;
      }
  }
  return before;
}

TEST_CASE("blas: each buffer is filled after what read it and read after what filled it", "[blas]") {
  const Restore restore;
  Random random(31);
  const Bf16Weights weights(random_blocks(random, 100), 100);
  const pncuda_weights w = weights.packed();
  use(with_l2(host_cuda::h100(), 1));
  const Side side;
  const Stream stream;
  const Handle handle;
  for (const int x_type : {PNCUDA_BF16, PNCUDA_F16})
    for (const int64_t rows : {100, 32, 17}) {
      pncuda_weights some = w;
      some.rows = rows;
      const Activations x(x_type, 3, 256, random);
      const Output y(3, rows * 2, rows * 2);
      Options options;
      options.y_type = PNCUDA_BF16;
      options.overlap = &side.overlap;
      pncuda_matmul_args args = matmul_args(some, x, y, options);
      const int64_t bytes = int64_t(plan_of(args).workspace_size_best);
      const Output workspace(1, bytes, bytes);
      args.workspace = workspace.data();
      args.workspace_size = size(bytes);
      host_cuda::reset_calls();
      std::uint32_t word[1] = {};
      REQUIRE(cudaMemcpyAsync(word, word, 4, cudaMemcpyHostToHost, stream.stream) == cudaSuccess);  // work of before
      REQUIRE(pncuda_matmul(&args, handle.handle, stream.stream) == PNCUDA_OK);
      REQUIRE(cudaMemcpyAsync(word, word, 4, cudaMemcpyHostToHost, stream.stream) == cudaSuccess);  // and after
      const auto work = host_cuda::calls().work;
      const auto before = order_of_work(work);
      std::vector<std::size_t> fills, reads;
      std::vector<cudaEvent_t> waited;
      for (std::size_t i = 0; i < work.size(); ++i) {
        REQUIRE((work[i].stream == stream.stream || work[i].stream == side.overlap.side));
        if (work[i].name == "launch" && work[i].stream == side.overlap.side) fills.push_back(i);
        if (work[i].name == "cublasGemmEx") {
          REQUIRE(work[i].stream == stream.stream);
          reads.push_back(i);
        }
      }
      const std::size_t slices = size((rows + 15) / 16);
      CAPTURE(name_of(x_type), rows);
      REQUIRE(fills.size() == slices);
      REQUIRE(reads.size() == slices);
      for (std::size_t i = 0; i < slices; ++i) {
        REQUIRE(before[fills[i]][0]);  // the workspace was the caller's until then
        REQUIRE(before[reads[i]][fills[i]]);
        if (i + 2 < slices) REQUIRE(before[fills[i + 2]][reads[i]]);
        if (i + 1 < slices) REQUIRE(!before[fills[i + 1]][reads[i]]);  // they may run side by side
        if (i + 1 < slices) REQUIRE(!before[reads[i]][fills[i + 1]]);
      }
      for (std::size_t i = 0; i + 1 < work.size(); ++i)
        if (work[i].event == nullptr) REQUIRE(before[work.size() - 1][i]);
      y.clear();
    }
}

// A graph may run in any order that its streams and events allow: results tell what they do not forbid.
TEST_CASE("blas: captured with the second stream, in any order", "[blas]") {
  const Restore restore;
  Random random(32);
  const Bf16Weights bf16(random_blocks(random, 100), 100);
  const Weights pn(PNCUDA_PN4T, 100, 4, random);
  use(with_l2(host_cuda::h100(), 1));
  const Side side;
  const Stream stream;
  const Handle handle;
  for (const bool proof : {false, true})
    for (const int x_type : {PNCUDA_BF16, PNCUDA_F16})
      for (const bool is_pn : {false, true}) {
        if (is_pn && proof) continue;
        const pncuda_weights w = is_pn ? pn.native() : bf16.packed();
        const Activations x(x_type, 3, 256, random), x2(x_type, 3, 256, random);
        Options options;
        options.y_type = PNCUDA_BF16;
        options.proof = proof;
        const auto want = matmul(w, x, options), want2 = matmul(w, x2, options);
        options.overlap = &side.overlap;
        const Output y(3, 200, 200), y2(3, 200, 200);
        // Two calls that share everything.
        pncuda_matmul_args args = matmul_args(w, x, y, options), args2 = matmul_args(w, x2, y2, options);
        const int64_t bytes = int64_t(plan_of(args).workspace_size_best);
        const Output workspace(1, bytes, bytes);
        for (pncuda_matmul_args* const a : {&args, &args2}) {
          a->workspace = workspace.data();
          a->workspace_size = size(bytes);
        }
        host_cuda::reset_calls();
        host_cuda::begin_capture(stream.stream);
        REQUIRE(pncuda_matmul(&args, handle.handle, stream.stream) == PNCUDA_OK);
        REQUIRE(pncuda_matmul(&args2, handle.handle, stream.stream) == PNCUDA_OK);
        const host_cuda::Graph graph = host_cuda::end_capture();
        REQUIRE(graph.error == cudaSuccess);
        REQUIRE(y.untouched());
        REQUIRE(workspace.untouched());
        for (const auto& launch : host_cuda::calls().launches) REQUIRE(launch.captured);
        using host_cuda::Order;
        std::vector<Order> orders = {{Order::forward, 0}, {Order::reverse, 0}};
        for (std::uint64_t seed = 1; seed <= 8; ++seed) orders.push_back({Order::shuffled, seed});
        for (const Order order : orders) {
          host_cuda::set_graph_order(order);
          CAPTURE(proof, name_of(x_type), is_pn, static_cast<int>(order.kind), order.seed);
          REQUIRE(graph.replay() == cudaSuccess);
          REQUIRE(bits_of_rows(y, PNCUDA_BF16, 3, 100) == want);
          REQUIRE(bits_of_rows(y2, PNCUDA_BF16, 3, 100) == want2);
          REQUIRE(workspace.intact());
          y.clear();
          y2.clear();
          workspace.clear();
        }
        host_cuda::set_graph_order({});
        // Outside of a capture the same events serve again.
        REQUIRE(pncuda_matmul(&args, handle.handle, stream.stream) == PNCUDA_OK);
        REQUIRE(bits_of_rows(y, PNCUDA_BF16, 3, 100) == want);
      }
}

TEST_CASE("blas: after an error the caller's stream has the second one behind it", "[blas]") {
  const Restore restore;
  Random random(33);
  const Bf16Weights weights(random_blocks(random, 100), 100);
  const pncuda_weights w = weights.packed();
  use(with_l2(host_cuda::h100(), 1));
  const Side side;
  const Stream stream;
  const Handle handle;
  const Activations x(PNCUDA_F16, 3, 256, random);
  const Output y(3, 400, 400);
  Options options;
  options.overlap = &side.overlap;
  pncuda_matmul_args args = matmul_args(w, x, y, options);
  const int64_t bytes = int64_t(plan_of(args).workspace_size_best);
  const Output workspace(1, bytes, bytes);
  args.workspace = workspace.data();
  args.workspace_size = size(bytes);
  for (const char* const name : {"cublasGemmEx", "launch", "cudaEventRecord", "cudaStreamWaitEvent"}) {
    host_cuda::begin_capture(stream.stream);
    host_cuda::fail_next(name, cudaErrorUnknown);
    const pncuda_status status = pncuda_matmul(&args, handle.handle, stream.stream);
    CAPTURE(name);
    REQUIRE(static_cast<int>(status) == (std::string(name) == "cublasGemmEx"
                                             ? PNCUDA_BLAS_ERROR + int{CUBLAS_STATUS_EXECUTION_FAILED}
                                             : PNCUDA_CUDA_ERROR + int{cudaErrorUnknown}));
    if (std::string(name) == "cublasGemmEx") cudaGetLastError();  // what cuBLAS does with it is its own affair
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
    REQUIRE(host_cuda::end_capture().error == cudaSuccess);  // not cudaErrorStreamCaptureUnjoined
  }
  REQUIRE(pncuda_matmul(&args, handle.handle, stream.stream) == PNCUDA_OK);
}

TEST_CASE("blas: the second stream is made and given back", "[blas]") {
  const Restore restore;
  use(host_cuda::h100());
  pncuda_overlap overlap{};
  REQUIRE(pncuda_overlap_create(nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_overlap_destroy(nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_overlap_create(&overlap) == PNCUDA_STRUCT_SIZE);
  REQUIRE(pncuda_overlap_destroy(&overlap) == PNCUDA_STRUCT_SIZE);
  overlap.struct_size = sizeof overlap;
  host_cuda::reset_calls();
  REQUIRE(pncuda_overlap_create(&overlap) == PNCUDA_OK);
  REQUIRE(overlap.side != nullptr);
  for (const pncuda_event event : overlap.events) REQUIRE(event != nullptr);
  REQUIRE(pncuda_overlap_destroy(&overlap) == PNCUDA_OK);
  REQUIRE(overlap.side == nullptr);
  for (const pncuda_event event : overlap.events) REQUIRE(event == nullptr);
  REQUIRE(pncuda_overlap_destroy(&overlap) == PNCUDA_OK);
  for (const char* const name : {"cudaStreamCreate", "cudaEventCreate", "cudaDeviceGetStreamPriorityRange"}) {
    host_cuda::fail_next(name, cudaErrorMemoryAllocation);
    REQUIRE(static_cast<int>(pncuda_overlap_create(&overlap)) == PNCUDA_CUDA_ERROR + int{cudaErrorMemoryAllocation});
    REQUIRE(overlap.side == nullptr);
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
  const host_cuda::Calls calls = host_cuda::calls();
  REQUIRE(calls.count("cudaStreamDestroy") == 2);  // a stream whose first event failed, too
  REQUIRE(calls.count("cudaEventDestroy") == 4);
}

// Whatever mode the handle is in, x and y of one type give the sums that are promised, and the mode is kept.
void check_math_mode(const Weights& pn, const Bf16Weights& bf16, bool is_pn, int type, cublasMath_t before,
                     Random& random) {
  const Handle handle;
  REQUIRE(cublasSetMathMode(handle.handle, before) == CUBLAS_STATUS_SUCCESS);
  const Activations x(type, 3, 256, random);
  const int64_t row = 20 * bytes_of(type);
  const Output y(3, row, row), workspace(1, 1 << 16, 1 << 16);
  const pncuda_weights w = is_pn ? pn.native() : bf16.packed();
  Options options;
  options.y_type = type;
  pncuda_matmul_args args = matmul_args(w, x, y, options);
  args.workspace = workspace.data();
  args.workspace_size = 1 << 16;
  CAPTURE(before, name_of(type), is_pn);
  REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
  REQUIRE(bits_of_rows(y, type, 3, 20) == (is_pn ? expected(pn, x, options, true) : expected(bf16, x, options, true)));
  cublasMath_t mode = CUBLAS_PEDANTIC_MATH;
  REQUIRE(cublasGetMathMode(handle.handle, &mode) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(mode == before);
}

TEST_CASE("blas: fp32 is not multiplied as TF32", "[blas]") {
  const Restore restore;
  Random random(34);
  use(host_cuda::h100());
  const Weights pn(PNCUDA_PN4T, 20, 4, random);
  const Bf16Weights bf16(random_blocks(random, 20), 20);
  for (const bool is_pn : {false, true})
    check_math_mode(pn, bf16, is_pn, PNCUDA_F32, CUBLAS_TF32_TENSOR_OP_MATH, random);
}

TEST_CASE("blas: sums over parts of k are not rounded to y's type", "[blas]") {
  const Restore restore;
  Random random(35);
  use(host_cuda::h100());
  const Weights pn(PNCUDA_PN4T, 20, 4, random);
  const Bf16Weights bf16(random_blocks(random, 20), 20);
  for (const cublasMath_t before : {CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH})
    for (const int type : {PNCUDA_BF16, PNCUDA_F16})
      for (const bool is_pn : {false, true})
        if (is_pn || type == PNCUDA_BF16) check_math_mode(pn, bf16, is_pn, type, before, random);
}

// ---- Arguments ----

// Every wrong argument, and that nothing happens then.
struct Setup {
  Restore restore;
  Random random{6};
  Weights matrix{PNCUDA_PN3T, 20, 8, random};
  Activations x{PNCUDA_F16, 12, 640, random};
  Output y{12, 80, 80};
  Output workspace{1, 1 << 16, 1 << 16};
  Handle handle;
  pncuda_weights weights;
  pncuda_matmul_args args;
  explicit Setup(const host_cuda::Device& device = host_cuda::h100()) {
    use(device);
    weights = matrix.native();
    args = matmul_args(weights, x, y, {});
    args.workspace = workspace.data();
    args.workspace_size = 1 << 16;
    REQUIRE(pncuda_matmul(&args, handle.handle, nullptr) == PNCUDA_OK);
    y.clear();
    workspace.clear();
  }
  pncuda_status run() const { return pncuda_matmul(&args, handle.handle, nullptr); }
};

template <class Change>
void refused(pncuda_status want, Change&& change, bool query_too = true) {
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    Setup s(device);
    change(s);
    host_cuda::reset_calls();
    REQUIRE(s.run() == want);
    pncuda_matmul_plan plan{};
    plan.struct_size = sizeof plan;
    plan.way = 77;
    REQUIRE(pncuda_matmul_query(&s.args, &plan) == (query_too ? want : PNCUDA_OK));
    if (query_too) REQUIRE(plan.way == 77);
    REQUIRE(host_cuda::calls().count("launch") == 0);
    REQUIRE(host_cuda::calls().count("cublasGemmEx") == 0);
    REQUIRE(s.y.untouched());
    REQUIRE(s.workspace.untouched());
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
}

TEST_CASE("blas: arguments that are refused", "[blas]") {
  Setup s;
  pncuda_matmul_plan plan{};
  plan.struct_size = sizeof plan;
  REQUIRE(pncuda_matmul(nullptr, s.handle.handle, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_matmul_query(nullptr, &plan) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_matmul_query(&s.args, nullptr) == PNCUDA_NULL_POINTER);
  plan.struct_size += 8;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_STRUCT_SIZE);
  host_cuda::reset_calls();
  REQUIRE(pncuda_matmul(&s.args, nullptr, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(host_cuda::calls().count("launch") == 0);

  refused(PNCUDA_NULL_POINTER, [](Setup& t) { t.args.weights = nullptr; });
  refused(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.args.x = nullptr; }, false);
  refused(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.args.y = nullptr; }, false);
  refused(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.args.workspace = nullptr; }, false);
  refused(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.weights.data = nullptr; }, false);
  refused(PNCUDA_STRUCT_SIZE, [](Setup& t) { t.args.struct_size -= 8; });
  refused(PNCUDA_STRUCT_SIZE, [](Setup& t) { t.weights.struct_size += 8; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.x_type = 3; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.y_type = -1; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.mode = 3; });
  refused(PNCUDA_UNSUPPORTED, [](Setup& t) { t.args.mode = PNCUDA_PORTABLE; });
  refused(PNCUDA_UNSUPPORTED, [](Setup& t) { t.args.proof = 1; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.proof = 2; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.proof = -1; });
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.reserved = 1; });
  pncuda_overlap overlap{};
  refused(PNCUDA_STRUCT_SIZE, [&](Setup& t) { t.args.overlap = &overlap; });
  overlap.struct_size = sizeof overlap;
  refused(PNCUDA_NULL_POINTER, [&](Setup& t) { t.args.overlap = &overlap; });
  for (int missing = 0; missing < 5; ++missing) {
    const Side side;
    overlap = side.overlap;
    if (missing < 4)
      overlap.events[missing] = nullptr;
    else
      overlap.side = nullptr;
    Setup t;
    t.args.overlap = &overlap;
    REQUIRE(t.run() == PNCUDA_NULL_POINTER);
  }
  refused(PNCUDA_NEGATIVE_SIZE, [](Setup& t) { t.args.tokens = -1; });
  refused(PNCUDA_NEGATIVE_SIZE, [](Setup& t) { t.args.switch_tokens = -1; });
  refused(PNCUDA_NEGATIVE_SIZE, [](Setup& t) { t.args.slice_rows = -16; });
  for (const int64_t rows : {1, 8, 15, 17, 19})  // of 20
    refused(PNCUDA_OUT_OF_RANGE, [&](Setup& t) { t.args.slice_rows = rows; });
  refused(PNCUDA_OUT_OF_RANGE, [](Setup& t) {
    t.args.slice_rows = 8;
    t.args.tokens = 0;
  });
  refused(PNCUDA_BAD_LENGTH, [](Setup& t) { t.weights.k = 641; });
  refused(PNCUDA_BAD_HADAMARD_BLOCK, [](Setup& t) { t.args.hadamard_block = 256; });
  refused(PNCUDA_BAD_STRIDE, [](Setup& t) { t.args.x_stride = 1278; });
  refused(PNCUDA_BAD_STRIDE, [](Setup& t) { t.args.y_stride = 76; });
  refused(PNCUDA_MISALIGNED, [](Setup& t) { t.args.x_stride = 1281; });
  refused(
      PNCUDA_MISALIGNED, [](Setup& t) { t.args.x = t.x.data() + 1; }, false);
  refused(
      PNCUDA_MISALIGNED, [](Setup& t) { t.args.y = t.y.data() + 2; }, false);
  refused(
      PNCUDA_MISALIGNED, [](Setup& t) { t.args.workspace = t.workspace.data() + 128; }, false);
  refused(
      PNCUDA_MISALIGNED,
      [](Setup& t) {
        t.weights.data = static_cast<const uint8_t*>(t.weights.data) + 1;
        t.args.hadamard_block = 128;  // x would be copied first
      },
      false);
  refused(PNCUDA_TOO_LARGE, [](Setup& t) { t.args.tokens = int64_t{1} << 31; });
  refused(PNCUDA_TOO_LARGE, [](Setup& t) { t.args.x_stride = int64_t{1} << 61; });
  refused(PNCUDA_TOO_LARGE, [](Setup& t) { t.args.y_stride = int64_t{1} << 61; });
}

TEST_CASE("blas: large sizes are planned, too large ones refused", "[blas]") {
  Setup s;
  pncuda_matmul_plan plan{};
  plan.struct_size = sizeof plan;
  s.weights = {sizeof s.weights, PNCUDA_PN4T, PNCUDA_NATIVE, nullptr, 1 << 20, int64_t{64} << 10, int64_t{34} << 10};
  s.args.x_stride = int64_t{128} << 10;
  s.args.y_stride = int64_t{4} << 20;
  s.args.tokens = 1 << 20;
  s.args.x_type = PNCUDA_F16;
  s.args.hadamard_block = 1024;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  REQUIRE(plan.workspace_size_least == (std::size_t{128} << 30) + (std::size_t{16 * 128} << 10));
  s.args.tokens = INT32_MAX;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  s.weights.k = int64_t{64} << 26;
  s.weights.row_stride = int64_t{34} << 26;
  s.args.x_stride = int64_t{128} << 26;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_TOO_LARGE);
  s.args.tokens = 1 << 20;
  s.args.y_stride = int64_t{1} << 50;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_TOO_LARGE);

  // A head of 250000 rows, for proof: 2.5 GB unpacked; with fp16 x in slices of fp32.
  s.weights = {sizeof s.weights, PNCUDA_BF16_P12, PNCUDA_NATIVE, nullptr, 250000, 5120, 7840};
  s.args.hadamard_block = 0;
  s.args.x_stride = 10240;
  s.args.y_stride = int64_t{4} << 20;
  s.args.tokens = 4096;
  s.args.x_type = PNCUDA_BF16;
  s.args.proof = 1;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  REQUIRE(plan.workspace_size_least == size_t{250000} * 10240);
  REQUIRE(plan.workspace_size_best == plan.workspace_size_least);
  s.args.x_type = PNCUDA_F16;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  REQUIRE(plan.workspace_size_least == size_t{250000} * 10240 + size_t{4096} * 20480 + 16 * 20480);
  REQUIRE(plan.slice_rows == 640);  // a quarter of 50 MiB
  REQUIRE(plan.workspace_size_best == size_t{250000} * 10240 + size_t{4096} * 20480 + 640 * 20480);
  // All of it at a time.
  s.args.slice_rows = INT64_MAX;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  REQUIRE(plan.slice_rows == 250000);
  REQUIRE(plan.workspace_size_best == size_t{250000} * 10240 + size_t{4096} * 20480 + size_t{250000} * 20480);
  s.args.slice_rows = 0;
  // More rows than cuBLAS counts: with plain BF16, and where a slice would have them.
  s.weights = {sizeof s.weights, PNCUDA_BF16_PLAIN, PNCUDA_NATIVE, nullptr, int64_t{1} << 31, 256, 512};
  s.args.x_type = PNCUDA_BF16;
  s.args.tokens = 1;
  s.args.y_stride = 0;  // of one token
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_TOO_LARGE);
  --s.weights.rows;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  s.weights = {sizeof s.weights, PNCUDA_PN4T, PNCUDA_NATIVE, nullptr, 1 << 29, int64_t{1} << 30, int64_t{34} << 24};
  s.args.proof = 0;
  s.args.x_type = PNCUDA_F32;
  s.args.x_stride = int64_t{4} << 30;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  s.args.slice_rows = INT64_MAX;  // 2^61 bytes
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_TOO_LARGE);
  s.args.slice_rows = int64_t{1} << 28;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_OK);
  REQUIRE(plan.workspace_size_best == std::size_t{1} << 60);
  s.args.slice_rows = 0;
  s.args.proof = 1;
  s.weights.type = PNCUDA_BF16_P12;
  s.args.x_type = PNCUDA_F16;
  // Rows of 2^35 weights.
  s.weights.rows = 1;
  s.weights.k = int64_t{1} << 34;
  s.weights.row_stride = 0;
  s.args.x_stride = int64_t{1} << 35;
  s.args.tokens = 1;
  REQUIRE(pncuda_matmul_query(&s.args, &plan) == PNCUDA_TOO_LARGE);
}

TEST_CASE("blas: the handle is as before", "[blas]") {
  Setup s;
  cudaStream_t own = nullptr, other = nullptr;
  REQUIRE(cudaStreamCreate(&own) == cudaSuccess);
  REQUIRE(cudaStreamCreate(&other) == cudaSuccess);
  REQUIRE(cublasSetStream(s.handle.handle, own) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetPointerMode(s.handle.handle, CUBLAS_POINTER_MODE_DEVICE) == CUBLAS_STATUS_SUCCESS);
  for (const cudaStream_t stream : {own, other}) {
    host_cuda::reset_calls();
    REQUIRE(pncuda_matmul(&s.args, s.handle.handle, stream) == PNCUDA_OK);
    for (const auto& launch : host_cuda::calls().launches) REQUIRE(launch.stream == stream);
    cudaStream_t after = nullptr;
    cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
    REQUIRE(cublasGetStream(s.handle.handle, &after) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasGetPointerMode(s.handle.handle, &mode) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(after == own);
    REQUIRE(mode == CUBLAS_POINTER_MODE_DEVICE);
  }
  cudaStreamDestroy(own);
  cudaStreamDestroy(other);
}

TEST_CASE("blas: captured and replayed", "[blas]") {
  Setup s;
  s.args.hadamard_block = 128;
  s.args.y_type = PNCUDA_BF16;
  s.args.y_stride = 40;
  REQUIRE(s.run() == PNCUDA_OK);
  const auto want = s.y.everything();
  s.y.clear();
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  host_cuda::begin_capture(stream);
  REQUIRE(pncuda_matmul(&s.args, s.handle.handle, stream) == PNCUDA_OK);
  const host_cuda::Graph graph = host_cuda::end_capture();
  REQUIRE(graph.error == cudaSuccess);
  REQUIRE(s.y.untouched());
  for (int turn = 0; turn < 2; ++turn) {
    REQUIRE(graph.replay() == cudaSuccess);
    REQUIRE(s.y.everything() == want);
    s.y.clear();
    s.workspace.clear();
  }
  cudaStreamDestroy(stream);
}

TEST_CASE("blas: errors of cuBLAS and of launches are told", "[blas]") {
  Setup s;
  host_cuda::fail_next("cublasGemmEx", cudaErrorLaunchFailure);
  REQUIRE(static_cast<int>(s.run()) == PNCUDA_BLAS_ERROR + int{CUBLAS_STATUS_EXECUTION_FAILED});
  host_cuda::fail_next("launch", cudaErrorLaunchFailure);
  REQUIRE(static_cast<int>(s.run()) == PNCUDA_CUDA_ERROR + int{cudaErrorLaunchFailure});
  cudaGetLastError();
  REQUIRE(s.run() == PNCUDA_OK);
  REQUIRE(pncuda_status_text(static_cast<pncuda_status>(PNCUDA_BLAS_ERROR + 13)) != nullptr);
  // Not prepared.
  host_cuda::set_devices(std::vector<host_cuda::Device>(63, host_cuda::h100()));
  REQUIRE(cudaSetDevice(62) == cudaSuccess);
  REQUIRE(s.run() == PNCUDA_NOT_PREPARED);
}

// ---- Tuning ----

struct Table {
  explicit Table(std::size_t room = 8) : entries(room) {
    tuning.struct_size = sizeof tuning;
    REQUIRE(pncuda_tuning_init(&tuning, entries.data(), room) == PNCUDA_OK);
  }
  std::string text() const {
    std::size_t bytes = 0;
    REQUIRE(pncuda_tuning_to_text(&tuning, nullptr, &bytes) == PNCUDA_OK);
    std::string text(bytes, '#');
    REQUIRE(pncuda_tuning_to_text(&tuning, text.data(), &bytes) == PNCUDA_OK);
    REQUIRE(bytes == text.size());
    return text;
  }
  void add(const pncuda_tuning_entry& entry) { entries[tuning.count++] = entry; }
  std::vector<pncuda_tuning_entry> entries;
  pncuda_tuning tuning{};
};

// From memory that ends where the text does.
pncuda_status from_text(const std::string& text, pncuda_tuning& tuning) {
  const Input memory(std::vector<uint8_t>(text.begin(), text.end()), int64_t(16 - text.size() % 16) % 16);
  return pncuda_tuning_from_text(reinterpret_cast<const char*>(memory.data()), text.size(), &tuning);
}

bool same_entry(const pncuda_tuning_entry& a, const pncuda_tuning_entry& b) {
  return a.type == b.type && a.x_type == b.x_type && a.n == b.n && a.k == b.k && a.switch_tokens == b.switch_tokens &&
         a.slice_rows == b.slice_rows;
}

// What is found for a key.
struct Found {
  pncuda_status status;
  int64_t switch_tokens = -1, slice_rows = -1;
  bool operator==(const Found& o) const {
    return status == o.status && switch_tokens == o.switch_tokens && slice_rows == o.slice_rows;
  }
};
Found found(const pncuda_tuning* tuning, int type, int x_type, int64_t n, int64_t k) {
  Found f{PNCUDA_OK};
  f.status = pncuda_tuning_find(tuning, type, x_type, n, k, &f.switch_tokens, &f.slice_rows);
  return f;
}
const Found nothing_found{PNCUDA_OK, 0, 0};

const std::vector<pncuda_tuning_entry> some_entries = {
    {PNCUDA_BF16_P12, PNCUDA_BF16, 17408, 5120, 33, 1280}, {PNCUDA_BF16_P12, PNCUDA_F16, 17408, 5120, INT64_MAX, 17408},
    {PNCUDA_BF16_PLAIN, PNCUDA_F32, 1, 256, 1, 1},         {PNCUDA_PN3T, PNCUDA_F16, INT64_MAX, 80, 17, INT64_MAX},
    {PNCUDA_PN4T, PNCUDA_F16, 5120, 17408, 41, 0},
};

TEST_CASE("blas: a tuning is a text and a table again", "[blas]") {
  const Restore restore;
  use(host_cuda::h100());
  for (std::size_t count = 0; count <= some_entries.size(); ++count) {
    Table from, to(count);
    for (std::size_t i = 0; i < count; ++i) from.add(some_entries[i]);
    const std::string text = from.text();
    CAPTURE(text);
    REQUIRE(from_text(text, to.tuning) == PNCUDA_OK);
    REQUIRE(to.tuning.count == count);
    for (std::size_t i = 0; i < count; ++i) REQUIRE(same_entry(to.entries[i], some_entries[i]));
    REQUIRE(to.text() == text);
    if (count > 0) {
      Table small(count - 1);
      REQUIRE(from_text(text, small.tuning) == PNCUDA_WORKSPACE_TOO_SMALL);
      REQUIRE(small.tuning.count == 0);
    }
    // One byte less, and none is written.
    std::string room(text.size(), '#');
    std::size_t bytes = text.size() - 1;
    REQUIRE(pncuda_tuning_to_text(&from.tuning, room.data(), &bytes) == PNCUDA_WORKSPACE_TOO_SMALL);
    REQUIRE(bytes == text.size());
    REQUIRE(room == std::string(text.size(), '#'));
  }
  Table table;
  for (const auto& entry : some_entries) table.add(entry);
  REQUIRE(table.text() == "pncuda tuning 1\nversion " + std::to_string(pncuda_version()) +
                              "\ncapability 9.0\ndevice H100\n"
                              "bf16_p12 bf16 17408 5120 33 1280\n"
                              "bf16_p12 f16 17408 5120 9223372036854775807 17408\n"
                              "bf16_plain f32 1 256 1 1\n"
                              "pn3t f16 9223372036854775807 80 17 9223372036854775807\n"
                              "pn4t f16 5120 17408 41 0\n"
                              "end 5\n");
  for (const auto& e : some_entries) {
    REQUIRE(found(&table.tuning, e.type, e.x_type, e.n, e.k) == Found{PNCUDA_OK, e.switch_tokens, e.slice_rows});
    REQUIRE(found(&table.tuning, e.type, e.x_type, e.n, e.k - 1) == nothing_found);
    REQUIRE(found(&table.tuning, e.type, e.x_type, e.n - 1, e.k) == nothing_found);
    REQUIRE(found(&table.tuning, e.type + 100, e.x_type, e.n, e.k) == nothing_found);
    REQUIRE(found(&table.tuning, e.type, 3, e.n, e.k) == nothing_found);
  }
  REQUIRE(found(nullptr, PNCUDA_PN3T, PNCUDA_F16, 1, 80) == Found{PNCUDA_NULL_POINTER, 0, 0});
  int64_t one = 7;
  REQUIRE(pncuda_tuning_find(&table.tuning, PNCUDA_PN3T, PNCUDA_F16, 1, 80, &one, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_tuning_find(&table.tuning, PNCUDA_PN3T, PNCUDA_F16, 1, 80, nullptr, &one) == PNCUDA_NULL_POINTER);
  REQUIRE(one == 7);
}

TEST_CASE("blas: the text of a tuning that is not whole, or of others", "[blas]") {
  const Restore restore;
  use(host_cuda::h100());
  Table table;
  for (const auto& entry : some_entries) table.add(entry);
  const std::string text = table.text();
  Table to;
  const auto bad = [&](const std::string& what, pncuda_status want) {
    to.tuning.count = 1;
    CAPTURE(what);
    REQUIRE(from_text(what, to.tuning) == want);
    REQUIRE(to.tuning.count == 0);
  };
  const pncuda_status garbled = PNCUDA_BAD_TUNING, foreign = PNCUDA_FOREIGN_TUNING;
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) bad(text.substr(0, bytes), garbled);
  bad(text + "\n", garbled);
  bad(text + text, garbled);
  bad(text + std::string(1, '\0'), garbled);
  const auto changed = [&](const std::string& from, const std::string& with) {
    std::string copy = text;
    const std::size_t at = copy.find(from);
    REQUIRE(at != std::string::npos);
    return copy.replace(at, from.size(), with);
  };
  for (const auto& [from, with] :
       std::vector<std::pair<std::string, std::string>>{{"pncuda", "Pncuda"},
                                                        {"tuning 1\n", "tuning 2\n"},
                                                        {"tuning 1\n", "tuning 1 \n"},
                                                        {"version ", "version -"},
                                                        {"version ", "version 0"},
                                                        {"9.0", "9"},
                                                        {"9.0", "9.00"},
                                                        {"9.0", "09.0"},
                                                        {"9.0", ".0"},
                                                        {"9.0", "9. 0"},
                                                        {"\n", "\r\n"},
                                                        {"H100", "H\t100"},
                                                        {"bf16_p12", "BF16_P12"},
                                                        {"bf16_p12", "bf16"},
                                                        {"bf16_p12", ""},
                                                        {"p12 bf16", "p12  bf16"},
                                                        {"p12 bf16", "p12 bf16 bf16"},
                                                        {"p12 bf16", "p12 f64"},
                                                        {"5120 33 1280", "5120 0 1280"},
                                                        {"5120 33 1280", "5120 -1 1280"},
                                                        {"5120 33 1280", "5120 +33 1280"},
                                                        {"5120 33 1280", "5120 33  1280"},
                                                        {"5120 33 1280", "5120 33.0 1280"},
                                                        {"5120 33 1280", "5120 0x33 1280"},
                                                        {"5120 33 1280", "5120 9223372036854775808 1280"},
                                                        {"5120 33 1280", "5120 99999999999999999999999 1280"},
                                                        {"5120 33 1280", "5120 33"},
                                                        {"17408 5120 33", "0 5120 33"},
                                                        {"17408 5120 33", "17408 0 33"},
                                                        {"p12 f16", "p12 bf16"},  // twice
                                                        {"end 5", "end 4"},
                                                        {"end 5", "end 6"},
                                                        {"end 5", "end  5"},
                                                        {"end 5", "End 5"},
                                                        {"1280\n", "1280\n\n"},
                                                        {"33 1280", "33 1280 "},
                                                        {"33 1280", "33  1280"},
                                                        {"33 1280", "33 -1280"},
                                                        {"33 1280", "33 01280"},
                                                        {"33 1280", "33 1281"},
                                                        {"33 1280", "33 17407"},
                                                        {"33 1280", "33 1280 0"},
                                                        {"33 1280", "33 9223372036854775808"}})
    bad(changed(from, with), garbled);
  for (const auto& [from, with] : std::vector<std::pair<std::string, std::string>>{{"version ", "version 1"},
                                                                                   {"9.0", "9.1"},
                                                                                   {"9.0", "8.0"},
                                                                                   {"H100", "H200"},
                                                                                   {"H100", "H100 "},
                                                                                   {"H100", ""},
                                                                                   {"H100", "H10"}})
    bad(changed(from, with), foreign);
  bad("pncuda tuning 1\nversion 999999999999\nwhat that version writes", foreign);
  // Any bytes, most of them those of a text.
  Random random(40);
  for (int turn = 0; turn < 3000; ++turn) {
    std::string copy = text;
    for (int i = random.between(1, 4); i > 0; --i)
      copy[random.below(copy.size())] =
          static_cast<char>(random.coin() ? random.byte() : text[random.below(text.size())]);
    Table other;
    const int status = from_text(copy, other.tuning);
    if (copy == text) continue;
    CAPTURE(copy);
    if (status == PNCUDA_OK)
      REQUIRE(other.text() == copy);  // another number
    else
      REQUIRE((status == PNCUDA_BAD_TUNING || status == PNCUDA_FOREIGN_TUNING));
  }
  REQUIRE(pncuda_tuning_from_text(nullptr, 0, &to.tuning) == garbled);
  REQUIRE(pncuda_tuning_from_text(nullptr, 1, &to.tuning) == PNCUDA_NULL_POINTER);
  REQUIRE(from_text(text, to.tuning) == PNCUDA_OK);
}

TEST_CASE("blas: tables that are none", "[blas]") {
  const Restore restore;
  use(host_cuda::h100());
  std::size_t bytes = 0;
  const auto check = [&](pncuda_status want, const std::function<void(pncuda_tuning&)>& change) {
    Table table;
    table.add(some_entries[0]);
    const std::string text = table.text();
    change(table.tuning);
    REQUIRE(pncuda_tuning_to_text(&table.tuning, nullptr, &bytes) == want);
    if (want == PNCUDA_BAD_ENUM || want == PNCUDA_OUT_OF_RANGE) return;  // of an entry, or of the count
    REQUIRE(from_text(text, table.tuning) == want);
    REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 17408, 5120) == Found{want, 0, 0});
  };
  check(PNCUDA_STRUCT_SIZE, [](pncuda_tuning& t) { t.struct_size -= 8; });
  check(PNCUDA_NULL_POINTER, [](pncuda_tuning& t) { t.entries = nullptr; });
  check(PNCUDA_OUT_OF_RANGE, [](pncuda_tuning& t) { t.count = t.room + 1; });
  check(PNCUDA_BAD_ENUM, [](pncuda_tuning& t) { t.reserved = 1; });
  check(PNCUDA_BAD_ENUM, [](pncuda_tuning& t) { t.entries[0].type = 3; });
  check(PNCUDA_BAD_ENUM, [](pncuda_tuning& t) { t.entries[0].x_type = 3; });
  check(PNCUDA_OUT_OF_RANGE, [](pncuda_tuning& t) { t.entries[0].switch_tokens = 0; });
  check(PNCUDA_OUT_OF_RANGE, [](pncuda_tuning& t) { t.entries[0].slice_rows = -16; });
  check(PNCUDA_OUT_OF_RANGE, [](pncuda_tuning& t) { t.entries[0].slice_rows = 1281; });
  check(PNCUDA_OUT_OF_RANGE, [](pncuda_tuning& t) { t.version = -1; });
  {
    Table table;  // an entry that pncuda_matmul would not take
    table.add(some_entries[0]);
    table.entries[0].slice_rows = 8;
    REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 17408, 5120) == Found{PNCUDA_OUT_OF_RANGE, 0, 0});
  }
  const pncuda_status garbled = PNCUDA_BAD_TUNING;
  check(garbled, [](pncuda_tuning& t) { std::memset(t.device, 'x', sizeof t.device); });
  check(garbled, [](pncuda_tuning& t) { t.device[0] = '\n'; });
  Table twice;
  twice.add(some_entries[0]);
  twice.add(some_entries[0]);
  REQUIRE(pncuda_tuning_to_text(&twice.tuning, nullptr, &bytes) == garbled);
  REQUIRE(pncuda_tuning_to_text(nullptr, nullptr, &bytes) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_tuning_to_text(&twice.tuning, nullptr, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_tuning_from_text("", 0, nullptr) == PNCUDA_NULL_POINTER);
  pncuda_tuning tuning{};
  REQUIRE(pncuda_tuning_init(&tuning, nullptr, 0) == PNCUDA_STRUCT_SIZE);
  tuning.struct_size = sizeof tuning;
  REQUIRE(pncuda_tuning_init(&tuning, nullptr, 1) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_tuning_init(nullptr, nullptr, 0) == PNCUDA_NULL_POINTER);
  host_cuda::Device odd = host_cuda::h100();
  odd.name = "a\nb\xFF" + std::string(300, 'c');
  use(odd);
  REQUIRE(pncuda_tuning_init(&tuning, nullptr, 0) == PNCUDA_OK);
  REQUIRE(std::string(tuning.device) == "a?b?" + std::string(251, 'c'));
  Table own;
  REQUIRE(from_text(own.text(), tuning) == PNCUDA_OK);
}

// A clock by which a kernel takes a second and a product `product` seconds, so that it is known what is faster.
struct Clock {
  explicit Clock(double product) {
    host_cuda::set_clock([product] {
      const host_cuda::Calls calls = host_cuda::calls();
      return static_cast<double>(calls.count("launch")) + product * static_cast<double>(calls.count("cublasGemmEx"));
    });
  }
  ~Clock() { host_cuda::set_clock({}); }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
};

struct Tune {
  Restore restore;
  Random random{41};
  Bf16Weights matrix{random_blocks(random, 40), 40};
  Activations x{PNCUDA_BF16, 100, 256, random};
  Output y{100, 160, 160};
  Output workspace{1, 1 << 16, 1 << 16};
  Handle handle;
  Stream stream;
  pncuda_weights weights = matrix.packed();
  pncuda_matmul_args args;
  Tune() {
    use(with_l2(host_cuda::h100(), 1 << 17));
    args = matmul_args(weights, x, y, {});
    args.workspace = workspace.data();
    args.workspace_size = 1 << 16;
  }
  pncuda_status run(Table& table, const std::vector<int64_t>& counts) const {
    return pncuda_matmul_tune(&args, counts.empty() ? nullptr : counts.data(), counts.size(), handle.handle,
                              stream.stream, &table.tuning);
  }
};

TEST_CASE("blas: tuning measures both ways", "[blas][tuning]") {
  const Tune t;
  // A GEMV of up to 32 tokens is one kernel here; unpacking and multiplying one kernel and one product.
  REQUIRE(t.matrix.rows() == 40);
  const auto tuned = [&](double product, const std::vector<int64_t>& counts) {
    const Clock clock(product);
    Table table;
    const std::size_t memory = host_cuda::allocated_bytes();
    host_cuda::reset_calls();
    REQUIRE(t.run(table, counts) == PNCUDA_OK);
    REQUIRE(host_cuda::allocated_bytes() == memory);
    REQUIRE(host_cuda::calls().count("cudaEventCreate") == host_cuda::calls().count("cudaEventDestroy"));
    for (const auto& work : host_cuda::calls().work) REQUIRE(work.stream == t.stream.stream);
    REQUIRE(table.tuning.count == 1);
    REQUIRE(t.y.intact());
    REQUIRE(t.x.unchanged());
    REQUIRE(same_entry(table.entries[0], {PNCUDA_BF16_P12, PNCUDA_BF16, 40, 256, table.entries[0].switch_tokens, 40}));
    return table.entries[0].switch_tokens;
  };
  REQUIRE(tuned(0.5, {32, 33, 65, 97}) == 33);
  REQUIRE(tuned(1.5, {32, 33, 64, 65, 97}) == 65);
  REQUIRE(tuned(2.0, {32, 33, 64, 65, 97}) == 65);  // as fast is enough
  REQUIRE(tuned(2.5, {32, 33, 64, 65, 97}) == 97);
  REQUIRE(tuned(99, {32, 33, 64, 65, 97}) == INT64_MAX);
  REQUIRE(tuned(0.0, {1, 2}) == 1);
  REQUIRE(tuned(0.5, {}) == 33);  // of the usual ones, those up to 100 tokens
  REQUIRE(tuned(2.5, {}) == 97);
  REQUIRE(tuned(3.5, {}) == INT64_MAX);
}

TEST_CASE("blas: tuning goes by the tokens of a pass", "[blas][tuning]") {
  Tune t;
  const Weights pn(PNCUDA_PN4T, 40, 4, t.random);
  const Activations x16(PNCUDA_F16, 100, 256, t.random);
  const Clock clock(0);  // unpacking alone is one kernel, or two with x
  const auto first = [&](const pncuda_weights& weights, const Activations& x, const host_cuda::Device& device) {
    use(with_l2(device, 1 << 18));
    t.weights = weights;
    t.args.x = x.data();
    t.args.x_type = x.type();
    t.args.workspace_size = 1 << 16;
    Table table;
    REQUIRE(t.run(table, {}) == PNCUDA_OK);
    return table.entries[0].switch_tokens;
  };
  for (const auto& weights : {t.matrix.packed(), t.matrix.plain()})
    REQUIRE(first(weights, t.x, host_cuda::h100()) == 33);
  REQUIRE(first(pn.native(), x16, host_cuda::h100()) == 17);
  REQUIRE(first(pn.native(), x16, host_cuda::p100()) == 17);
}

// Slices of 16 rows by default, 32, 64 and 100: a clock that knows how long each takes.
TEST_CASE("blas: tuning takes the slices that are fastest", "[blas][tuning]") {
  const Restore restore;
  Random random(42);
  const Bf16Weights matrix(random_blocks(random, 100), 100);
  const pncuda_weights weights = matrix.packed();
  const Activations x(PNCUDA_BF16, 70, 256, random);
  const Output y(70, 400, 400), workspace(1, 1 << 17, 1 << 17);
  const Handle handle;
  const Stream stream;
  use(with_l2(host_cuda::h100(), 4 * 16 * 512));
  const Side side;
  pncuda_matmul_args args = matmul_args(weights, x, y, {});
  args.workspace = workspace.data();
  std::vector<std::size_t> measured;  // products of each run
  const std::vector<int64_t> counts = {1, 33, 65};
  // costs: of a multiply by the number of its products (7, 4, 2, 1).
  const auto tuned = [&](const std::map<std::size_t, double>& costs, std::size_t bytes) {
    args.workspace_size = bytes;
    args.overlap = nullptr;
    measured.clear();
    std::size_t calls = 0, before = 0;
    double time = 0;
    host_cuda::set_clock([&] {
      const std::size_t products = host_cuda::calls().count("cublasGemmEx");
      if (calls++ % 2 == 0) {
        before = products;
      } else {
        if (products != before) measured.push_back(products - before);
        time += products == before ? 3.0 : costs.at(products - before);
      }
      return time;
    });
    Table table;
    const pncuda_status status =
        pncuda_matmul_tune(&args, counts.data(), counts.size(), handle.handle, stream.stream, &table.tuning);
    host_cuda::set_clock({});
    REQUIRE(status == PNCUDA_OK);
    REQUIRE(workspace.intact());
    return found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 100, 256);
  };
  const auto runs_of = [&](std::size_t products) { return std::count(measured.begin(), measured.end(), products); };
  const std::size_t row = 512, all = 1 << 17;
  REQUIRE(tuned({{7, 1.0}, {4, 2.0}, {2, 3.0}, {1, 4.0}}, all) == Found{PNCUDA_OK, 1, 16});
  REQUIRE(runs_of(7) == 10 + 15);  // the two largest counts, then all of them
  REQUIRE(runs_of(4) == 10);
  REQUIRE(runs_of(2) == 10);
  REQUIRE(runs_of(1) == 10);
  REQUIRE(tuned({{7, 2.0}, {4, 1.0}, {2, 3.0}, {1, 4.0}}, all) == Found{PNCUDA_OK, 1, 32});
  REQUIRE(tuned({{7, 3.0}, {4, 2.0}, {2, 1.0}, {1, 4.0}}, all) == Found{PNCUDA_OK, 1, 64});
  REQUIRE(tuned({{7, 9.0}, {4, 9.0}, {2, 9.0}, {1, 4.0}}, all) == Found{PNCUDA_OK, INT64_MAX, 100});
  REQUIRE(tuned({{7, 2.0}, {4, 2.0}, {2, 2.0}, {1, 2.0}}, all) == Found{PNCUDA_OK, 1, 16});  // smaller ones first
  // What there is no room for is not measured; of the default what there is room for.
  REQUIRE(tuned({{7, 4.0}, {4, 3.0}, {2, 2.0}}, 100 * row - 1) == Found{PNCUDA_OK, 1, 64});
  REQUIRE(tuned({{7, 4.0}, {4, 3.0}}, 64 * row - 1) == Found{PNCUDA_OK, 1, 32});
  REQUIRE(tuned({{7, 2.0}}, 32 * row - 1) == Found{PNCUDA_OK, 1, 16});
  REQUIRE(runs_of(7) == 15);  // nothing to choose from
  // With overlap a size has room when two slices have; the clock knows less here, so all products are counted.
  for (const std::size_t bytes : {128 * row - 1, 128 * row}) {
    args.overlap = &side.overlap;
    args.workspace_size = bytes;
    host_cuda::set_clock([] { return 1.0; });
    host_cuda::reset_calls();
    Table table;
    REQUIRE(pncuda_matmul_tune(&args, counts.data(), 3, handle.handle, stream.stream, &table.tuning) == PNCUDA_OK);
    host_cuda::set_clock({});
    const std::size_t products = host_cuda::calls().count("cublasGemmEx");
    REQUIRE(products == 12 * (7 + 4 + (bytes == 128 * row ? 2 : 0) + 1) + 18 * 7);
  }
  // The caller's own are not chosen from.
  args.slice_rows = 32;
  REQUIRE(tuned({{4, 1.0}}, all) == Found{PNCUDA_OK, 1, 32});
  args.slice_rows = INT64_MAX;
  REQUIRE(tuned({{1, 1.0}}, all) == Found{PNCUDA_OK, 1, 100});
  args.slice_rows = 8;
  Table table;
  REQUIRE(pncuda_matmul_tune(&args, nullptr, 0, handle.handle, stream.stream, &table.tuning) == PNCUDA_OUT_OF_RANGE);
  // Plain BF16 has none.
  args.slice_rows = 0;
  const pncuda_weights plain = matrix.plain();
  args.weights = &plain;
  REQUIRE(pncuda_matmul_tune(&args, counts.data(), 2, handle.handle, stream.stream, &table.tuning) == PNCUDA_OK);
  REQUIRE(table.entries[0].slice_rows == 100);
}

// cuBLAS slower, faster, slower, faster; each the median of five.
TEST_CASE("blas: tuning takes the count from which on cuBLAS is not slower", "[blas][tuning]") {
  const Tune t;
  const std::vector<int64_t> counts = {16, 17, 33, 49, 50};
  const std::vector<bool> faster = {false, true, false, true, true};
  std::size_t calls = 0;
  double time = 0;
  host_cuda::set_clock([&] {
    if (calls++ % 2 == 0) return time;
    const std::size_t run = (calls - 1) / 2;
    const bool by_blas = run / 5 % 2 == 1;
    const double typical = by_blas == faster[run / 10] ? 10 : 11;
    const double times[] = {by_blas ? 200.0 : 100.0, typical, by_blas ? 1.0 : 2.0, typical / 2, typical * 3};
    return time += times[run % 5];
  });
  Table table;
  const pncuda_status status = t.run(table, counts);
  host_cuda::set_clock({});
  REQUIRE(status == PNCUDA_OK);
  REQUIRE(calls == counts.size() * 2 * 5 * 2);
  REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 40, 256) == Found{PNCUDA_OK, 49, 40});
}

TEST_CASE("blas: tuning fills a table", "[blas][tuning]") {
  Tune t;
  Table table(1);
  const std::vector<int64_t> counts = {33, 65};
  {
    const Clock clock(0.5);
    REQUIRE(t.run(table, counts) == PNCUDA_OK);
    REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 40, 256) == Found{PNCUDA_OK, 33, 40});
  }
  {
    const Clock clock(1.5);
    REQUIRE(t.run(table, counts) == PNCUDA_OK);  // in place of the other
    REQUIRE(table.tuning.count == 1);
    REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 40, 256) == Found{PNCUDA_OK, 65, 40});
  }
  Table again(1);
  REQUIRE(from_text(table.text(), again.tuning) == PNCUDA_OK);

  // Refused before anything is launched.
  host_cuda::reset_calls();
  t.weights.rows = 39;
  REQUIRE(t.run(table, counts) == PNCUDA_WORKSPACE_TOO_SMALL);  // no room in the table
  t.weights.rows = 40;
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{0}, {17, 17}, {33, 17}, {17, 101}, {-1, 17}})
    REQUIRE(t.run(table, bad) == PNCUDA_OUT_OF_RANGE);
  REQUIRE(pncuda_matmul_tune(&t.args, counts.data(), 0, t.handle.handle, nullptr, &table.tuning) ==
          PNCUDA_OUT_OF_RANGE);
  t.args.tokens = 16;
  REQUIRE(t.run(table, {}) == PNCUDA_OUT_OF_RANGE);
  t.args.tokens = 100;
  REQUIRE(pncuda_matmul_tune(&t.args, nullptr, 0, t.handle.handle, nullptr, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_matmul_tune(nullptr, nullptr, 0, t.handle.handle, nullptr, &table.tuning) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_matmul_tune(&t.args, nullptr, 0, nullptr, nullptr, &table.tuning) == PNCUDA_NULL_POINTER);
  t.args.proof = 1;
  REQUIRE(t.run(table, counts) == PNCUDA_UNSUPPORTED);
  t.args.proof = 0;
  t.args.workspace_size = 16 * 512 - 1;
  REQUIRE(t.run(table, counts) == PNCUDA_WORKSPACE_TOO_SMALL);
  t.args.workspace_size = 1 << 16;
  t.args.y = nullptr;
  REQUIRE(t.run(table, counts) == PNCUDA_NULL_POINTER);
  t.args.y = t.y.data();
  t.weights.rows = 0;
  REQUIRE(t.run(table, counts) == PNCUDA_OUT_OF_RANGE);
  t.weights.rows = 40;
  table.tuning.device[0] = 'h';
  REQUIRE(t.run(table, counts) == PNCUDA_FOREIGN_TUNING);
  table.tuning.device[0] = 'H';
  host_cuda::begin_capture(t.stream.stream);
  REQUIRE(static_cast<int>(t.run(table, counts)) == PNCUDA_CUDA_ERROR + int{cudaErrorStreamCaptureUnsupported});
  REQUIRE(host_cuda::end_capture().error == cudaSuccess);  // it has not been broken
  REQUIRE(host_cuda::calls().count("launch") + host_cuda::calls().count("cudaMalloc") == 0);
  REQUIRE(table.tuning.count == 1);
  const std::size_t memory = host_cuda::allocated_bytes();
  for (const char* const name : {"cudaMalloc", "cudaEventCreate", "cudaEventElapsedTime", "cudaMemsetAsync"}) {
    host_cuda::fail_next(name, cudaErrorUnknown);
    REQUIRE(static_cast<int>(t.run(table, counts)) == PNCUDA_CUDA_ERROR + int{cudaErrorUnknown});
    REQUIRE(host_cuda::allocated_bytes() == memory);
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
  REQUIRE(found(&table.tuning, PNCUDA_BF16_P12, PNCUDA_BF16, 40, 256) == Found{PNCUDA_OK, 65, 40});
}

}  // namespace
