// pncuda_matmul: where it changes to cuBLAS, workspaces, slices, types, rotation; against double and the GEMV.
#include <cublas_v2.h>
#include <pncuda/pncuda_blas.h>

#include "testing.hpp"

using namespace testing;

namespace {

struct Handle {
  Handle() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Handle() { cublasDestroy(handle); }
  cublasHandle_t handle = nullptr;
};

struct Options {
  int y_type = PNCUDA_F32;
  int hadamard = 0;
  int64_t switch_tokens = 1;
  int64_t workspace = -1;  // bytes; -1: the best
  int64_t y_pad = 0;
  int mode = PNCUDA_ACCURATE;
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
  return args;
}

pncuda_matmul_plan plan_of(const pncuda_matmul_args& args) {
  pncuda_matmul_plan plan{};
  plan.struct_size = sizeof plan;
  REQUIRE(pncuda_matmul_query(&args, &plan) == PNCUDA_OK);
  return plan;
}

// The results' bits, [tokens][rows].
std::vector<std::uint32_t> matmul(const pncuda_weights& weights, const Activations& x, const Options& options,
                                  std::size_t* gemms = nullptr) {
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
  REQUIRE(calls.count("cudaMalloc") == 0);
  REQUIRE(calls.count("cudaDeviceSynchronize") + calls.count("cudaStreamSynchronize") == 0);
  if (gemms != nullptr) *gemms = calls.count("cublasGemmEx");
  REQUIRE(y.intact());
  REQUIRE(workspace.intact());
  REQUIRE(x.unchanged());
  std::vector<std::uint32_t> bits;
  for (int64_t m = 0; m < x.tokens(); ++m)
    for (int64_t n = 0; n < weights.rows; ++n) bits.push_back(load_bits(options.y_type, y.row(m), n));
  return bits;
}

// The sums that cuBLAS should give: everything rounded as the header says, summed in double.
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
  std::vector<std::uint32_t> bits;
  for (int64_t m = 0; m < x.tokens(); ++m)
    for (int64_t n = 0; n < weights.rows(); ++n) {
      double sum = 0;
      for (int64_t i = 0; i < weights.k(); ++i)
        sum +=
            static_cast<double>(w[size(n * weights.k() + i)]) * static_cast<double>(values[size(m * weights.k() + i)]);
      // The stand-in rounds its sum once to the type that it writes: y's own when cuBLAS can, else fp32 first.
      const bool direct = options.y_type == type || options.y_type == PNCUDA_F32;
      std::uint32_t y = 0;
      if (options.y_type == PNCUDA_F32 || !direct)
        y = bits_as(options.y_type, static_cast<float>(sum));
      else
        y = options.y_type == PNCUDA_F16 ? pn::double_to_half(sum) : pn::double_to_bf16(sum);
      bits.push_back(y);
    }
  return bits;
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

// A small L2 cache: slices stay within a third of it.
TEST_CASE("blas: slices fit the L2 cache", "[blas]") {
  const Restore restore;
  host_cuda::Device device = host_cuda::h100();
  Random random(3);
  const Weights weights(PNCUDA_PN4T, 100, 8, random);  // 512 columns, 1024 bytes a row in fp16
  const Activations x(PNCUDA_F16, 3, 512, random);
  const Output y(3, 400, 400);
  const pncuda_weights w = weights.native();
  for (const auto& [bytes, rows] : {std::pair<int, int64_t>{3 * 112 * 1024, 100},
                                    {3 * 99 * 1024, 96},
                                    {3 * 32 * 1024, 32},
                                    {3 * 17 * 1024, 16},
                                    {1024, 16}}) {
    device.l2_bytes = bytes;
    use(device);
    const pncuda_matmul_plan plan = plan_of(matmul_args(w, x, y, {}));
    CAPTURE(bytes);
    REQUIRE(plan.slice_rows == rows);
    std::size_t gemms = 0;
    REQUIRE(matmul(w, x, {}, &gemms) == expected(weights, x, {}, true));
    REQUIRE(gemms == size((100 + rows - 1) / rows));
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
    REQUIRE(standard <= 70);
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
  refused(PNCUDA_BAD_ENUM, [](Setup& t) { t.args.mode = 2; });
  refused(PNCUDA_NEGATIVE_SIZE, [](Setup& t) { t.args.tokens = -1; });
  refused(PNCUDA_NEGATIVE_SIZE, [](Setup& t) { t.args.switch_tokens = -1; });
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

}  // namespace
