// The C ABI of pncuda_p12.h, and of pncuda.h with BF16_P12 and plain BF16: every bad argument, what a launch does not
// do, plans, capture.
#include <functional>
#include <thread>

#include "p12_testing.hpp"

using namespace testing;

namespace {

int cuda_status(cudaError_t error) { return PNCUDA_CUDA_ERROR + static_cast<int>(error); }

const uint8_t* by(const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; }
template <class T>
T* moved(T* p, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes));
}

// Arguments that are right for everything; a test makes one of them wrong. Three matrices of 20 rows, k = 512, 3
// tokens; 2 experts of 10 rows each, 2 slots.
struct Setup {
  static constexpr int64_t rows = 20, k = 512, tokens = 3, rank = 4;
  Restore restore;
  Random random{1};
  Bf16Weights matrix{gauss_blocks(random, rows * 2), rows};
  Activations x{PNCUDA_F16, tokens, k, random};
  Activations wide{PNCUDA_F32, 6, k, random};  // bias, residual, factors
  Output y[3] = {{6, rows * 4, rows * 4}, {6, rows * 4, rows * 4}, {6, rows * 4, rows * 4}};
  Output packed{rows, 2 * 392, 2 * 392};
  Output decoded{rows, k * 2, k * 2};
  Output workspace{1, tokens* rank * 4, tokens* rank * 4};
  Input ids{std::vector<uint8_t>(6 * 4, 0)};
  Input scales{std::vector<uint8_t>(3 * 4, 0x3F)};
  int64_t* first_bad = nullptr;
  pncuda_weights weights, second, third, plain;
  pncuda_fused_matrix matrices[3], expert_matrices[3];
  pncuda_gemv_args gemv{};
  pncuda_fused_args fused{}, silu{}, experts{};
  pncuda_low_rank_args low_rank{};
  pncuda_decode_args decode{};

  explicit Setup(const host_cuda::Device& device = host_cuda::h100(), int type = PNCUDA_BF16_P12) {
    use(device);
    REQUIRE(cudaMalloc(&first_bad, 16) == cudaSuccess);
    plain = matrix.plain();
    weights = second = third = matrix.as(type);
    gemv = gemv_args(weights, x, y[0], {});
    const pncuda_weights* const all[] = {&weights, &second, &third};
    for (int i = 0; i < 3; ++i) {
      matrices[i] = {sizeof(pncuda_fused_matrix),
                     all[i],
                     0,
                     y[i].data(),
                     y[i].stride(),
                     PNCUDA_F32,
                     PNCUDA_F32,
                     wide.data(),
                     wide.data(),
                     wide.stride(),
                     PNCUDA_F32,
                     0};
      expert_matrices[i] = matrices[i];
      expert_matrices[i].expert_stride = 10 * weights.row_stride;
    }
    fused.struct_size = sizeof fused;
    fused.matrices = matrices;
    fused.count = 3;
    fused.x = x.data();
    fused.x_stride = x.stride();
    fused.x_type = PNCUDA_F16;
    fused.tokens = tokens;
    silu = fused;
    silu.count = 2;
    silu.activation = PNCUDA_SILU_MUL;
    experts = fused;
    experts.matrices = expert_matrices;
    experts.expert_ids = reinterpret_cast<const std::int32_t*>(ids.data());
    experts.experts = 2;
    experts.slots = 2;
    low_rank.struct_size = sizeof low_rank;
    low_rank.a = low_rank.b = wide.data();
    low_rank.a_stride = low_rank.b_stride = wide.stride();
    low_rank.factor_type = PNCUDA_F32;
    low_rank.rank = rank;
    low_rank.k = k;
    low_rank.n = 6;
    low_rank.x = x.data();
    low_rank.x_stride = x.stride();
    low_rank.x_type = PNCUDA_F16;
    low_rank.y_type = PNCUDA_F32;
    low_rank.y = y[0].data();
    low_rank.y_stride = y[0].stride();
    low_rank.base = wide.data();
    low_rank.base_stride = wide.stride();
    low_rank.tokens = tokens;
    low_rank.scales = reinterpret_cast<const float*>(scales.data());
    low_rank.workspace = workspace.data();
    low_rank.workspace_size = size(tokens * rank * 4);
    decode = {sizeof decode, &weights, 0, rows, 0, k, decoded.data(), decoded.stride(), PNCUDA_BF16, 0};
  }
  ~Setup() { cudaFree(first_bad); }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  // gemv; fused, silu, experts; pack; low rank; decode.
  void right() {
    REQUIRE(pncuda_gemv(&gemv, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_fused(&fused, nullptr) == PNCUDA_OK);
    REQUIRE(run_silu() == PNCUDA_OK);
    REQUIRE(run_experts() == PNCUDA_OK);
    REQUIRE(pack() == PNCUDA_OK);
    REQUIRE(pncuda_low_rank(&low_rank, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_decode(&decode, nullptr) == PNCUDA_OK);
  }
  pncuda_status run_silu(pncuda_stream stream = nullptr) {
    pncuda_fused_matrix two[3] = {silu.matrices == nullptr ? matrices[0] : silu.matrices[0], matrices[1], matrices[2]};
    if (!keep_second) {
      two[1].y = nullptr;
      two[1].residual = nullptr;
    }
    pncuda_fused_args args = silu;
    args.matrices = two;
    return pncuda_fused(&args, stream);
  }
  // Experts have ten rows each of the twenty.
  pncuda_status run_experts(pncuda_stream stream = nullptr) {
    pncuda_weights ten[3];
    pncuda_fused_matrix these[3];
    pncuda_fused_args args = experts;
    for (int i = 0; i < 3; ++i) {
      these[i] = expert_matrices[i];
      if (these[i].weights == nullptr) continue;
      ten[i] = *these[i].weights;
      if (ten[i].rows == rows) ten[i].rows = 10;
      these[i].weights = &ten[i];
    }
    if (args.matrices != nullptr) args.matrices = these;
    return pncuda_fused(&args, stream);
  }
  pncuda_status pack(pncuda_stream stream = nullptr) {
    return pncuda_p12_pack(&plain, packed.data(), packed.stride(), first_bad, stream);
  }
  std::vector<const Output*> outputs() const { return {&y[0], &y[1], &y[2], &packed, &decoded, &workspace}; }
  void clear() {
    for (const Output* const out : outputs()) out->clear();
    first_bad[0] = 77;
  }
  bool nothing_happened() const {
    for (const Output* const out : outputs())
      if (!out->untouched()) return false;
    return host_cuda::calls().count("launch") == 0 && host_cuda::calls().count("cudaMemsetAsync") == 0 &&
           first_bad[0] == 77 && matrix.unchanged() && x.unchanged() && wide.unchanged();
  }
  bool keep_second = false;
};

using Change = std::function<void(Setup&)>;
using Call = std::function<pncuda_status(Setup&)>;

const Call gemv_call = [](Setup& s) { return pncuda_gemv(&s.gemv, nullptr); };
const Call query_call = [](Setup& s) {
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  plan.path = 77;
  const pncuda_status status = pncuda_gemv_query(&s.gemv, &plan);
  REQUIRE((plan.path == 77) == (status != PNCUDA_OK));
  return status;
};
const Call fused_call = [](Setup& s) { return pncuda_fused(&s.fused, nullptr); };
const Call silu_call = [](Setup& s) { return s.run_silu(); };
const Call experts_call = [](Setup& s) { return s.run_experts(); };
const Call pack_call = [](Setup& s) { return s.pack(); };
const Call low_rank_call = [](Setup& s) { return pncuda_low_rank(&s.low_rank, nullptr); };
const Call decode_call = [](Setup& s) { return pncuda_decode(&s.decode, nullptr); };

// The calls give this status when the change is made, and do nothing; on both paths, for both types.
void refused(int want, const Change& change, const std::vector<Call>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
      for (const int type : bf16_types) {
        Setup s(device, type);
        s.clear();
        change(s);
        host_cuda::reset_calls();
        CAPTURE(i, device.name, type, want);
        REQUIRE(static_cast<int>(calls[i](s)) == want);
        REQUIRE(s.nothing_happened());
        REQUIRE(cudaPeekAtLastError() == cudaSuccess);
      }
}

TEST_CASE("api: p12: arguments that are right", "[api]") {
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : bf16_types) {
      Setup s(device, type);
      s.right();
    }
}

TEST_CASE("api: p12: null pointers", "[api]") {
  REQUIRE(pncuda_fused(nullptr, nullptr) == PNCUDA_NULL_POINTER);
  REQUIRE(pncuda_low_rank(nullptr, nullptr) == PNCUDA_NULL_POINTER);
  const int want = PNCUDA_NULL_POINTER;
  refused(want, [](Setup& s) { s.weights.data = s.plain.data = nullptr; },
          {gemv_call, fused_call, silu_call, experts_call, decode_call, pack_call});
  refused(want, [](Setup& s) { s.gemv.x = s.fused.x = s.silu.x = s.experts.x = s.low_rank.x = nullptr; },
          {gemv_call, fused_call, silu_call, experts_call, low_rank_call});
  refused(want,
          [](Setup& s) { s.gemv.y = s.matrices[0].y = s.expert_matrices[0].y = s.low_rank.y = s.decode.out = nullptr; },
          {gemv_call, fused_call, silu_call, experts_call, low_rank_call, decode_call});
  refused(want, [](Setup& s) { s.matrices[2].y = s.expert_matrices[1].y = nullptr; }, {fused_call, experts_call});
  refused(want, [](Setup& s) { s.gemv.weights = s.matrices[1].weights = s.expert_matrices[2].weights = nullptr; },
          {gemv_call, query_call, fused_call, silu_call, experts_call});
  refused(want, [](Setup& s) { s.fused.matrices = s.experts.matrices = nullptr; }, {fused_call, experts_call});
  refused(want, [](Setup& s) { s.low_rank.a = nullptr; }, {low_rank_call});
  refused(want, [](Setup& s) { s.low_rank.b = nullptr; }, {low_rank_call});
  refused(want, [](Setup& s) { s.low_rank.scales = nullptr; }, {low_rank_call});
  refused(want, [](Setup& s) { s.low_rank.workspace = nullptr; }, {low_rank_call});
  refused(want, {[](Setup&) {}},
          {[](Setup& s) { return pncuda_p12_pack(nullptr, s.packed.data(), 784, s.first_bad, nullptr); },
           [](Setup& s) { return pncuda_p12_pack(&s.plain, nullptr, 784, s.first_bad, nullptr); },
           [](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data(), 784, nullptr, nullptr); }});
}

TEST_CASE("api: p12: sizes of structs", "[api]") {
  for (const int wrong : {-8, -1, 1, 8}) {
    const auto change = [wrong](std::size_t& size) { size += static_cast<std::size_t>(wrong); };
    refused(PNCUDA_STRUCT_SIZE, [&](Setup& s) { change(s.weights.struct_size), change(s.plain.struct_size); },
            {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call, decode_call});
    refused(PNCUDA_STRUCT_SIZE,
            [&](Setup& s) { change(s.matrices[1].struct_size), change(s.expert_matrices[1].struct_size); },
            {fused_call, silu_call, experts_call});
    refused(PNCUDA_STRUCT_SIZE,
            [&](Setup& s) {
              change(s.gemv.struct_size), change(s.fused.struct_size), change(s.silu.struct_size);
              change(s.experts.struct_size), change(s.low_rank.struct_size);
            },
            {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
  }
}

TEST_CASE("api: p12: numbers that are none of those declared", "[api]") {
  const int want = PNCUDA_BAD_ENUM;
  for (const int bad : {-1, 3, 30, 126, 1 << 30}) {
    refused(want,
            [bad](Setup& s) {
              s.gemv.x_type = s.fused.x_type = s.silu.x_type = s.experts.x_type = s.low_rank.x_type = bad;
            },
            {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
    refused(want,
            [bad](Setup& s) {
              s.gemv.y_type = s.matrices[0].y_type = s.expert_matrices[0].y_type = s.low_rank.y_type =
                  s.decode.out_type = bad;
            },
            {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call, decode_call});
    refused(want, [bad](Setup& s) { s.matrices[1].bias_type = s.expert_matrices[1].bias_type = bad; },
            {fused_call, silu_call, experts_call});
    refused(want, [bad](Setup& s) { s.matrices[0].residual_type = s.expert_matrices[0].residual_type = bad; },
            {fused_call, silu_call, experts_call});
    refused(want, [bad](Setup& s) { s.gemv.mode = s.fused.mode = s.silu.mode = s.experts.mode = bad; },
            {gemv_call, query_call, fused_call, silu_call, experts_call});
    refused(want, [bad](Setup& s) { s.low_rank.factor_type = bad; }, {low_rank_call});
    refused(want, [bad](Setup& s) { s.fused.activation = s.silu.activation = bad; }, {fused_call, silu_call});
    refused(want, [bad](Setup& s) { s.experts.x_per_slot = bad; }, {experts_call});
    refused(want, [bad](Setup& s) { s.weights.layout = s.plain.layout = bad; },
            {gemv_call, query_call, fused_call, decode_call, pack_call});
  }
  for (const int bad : {-1, 3, 123, 127})
    refused(want, [bad](Setup& s) { s.weights.type = s.plain.type = bad; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, decode_call, pack_call});
  refused(want, [](Setup& s) { s.fused.reserved = s.silu.reserved = s.experts.reserved = 1; },
          {fused_call, silu_call, experts_call});
  refused(want, [](Setup& s) { s.matrices[1].reserved = s.expert_matrices[1].reserved = 1; },
          {fused_call, silu_call, experts_call});
}

TEST_CASE("api: p12: negative sizes, lengths, tokens", "[api]") {
  for (const int64_t bad : {int64_t{-1}, int64_t{-256}, INT64_MIN}) {
    const int want = PNCUDA_NEGATIVE_SIZE;
    refused(want,
            [bad](Setup& s) {
              s.gemv.tokens = s.fused.tokens = s.silu.tokens = s.experts.tokens = s.low_rank.tokens = bad;
            },
            {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
    refused(want, [bad](Setup& s) { s.weights.rows = s.plain.rows = s.low_rank.n = bad; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call, low_rank_call});
    refused(want, [bad](Setup& s) { s.weights.k = s.plain.k = s.low_rank.k = bad; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call, low_rank_call});
    refused(want, [bad](Setup& s) { s.experts.experts = bad; }, {experts_call});
    refused(want, [bad](Setup& s) { s.experts.slots = bad; }, {experts_call});
  }
  for (const int64_t k : {1, 64, 80, 255, 257, 500})
    refused(PNCUDA_BAD_LENGTH, [k](Setup& s) { s.weights.k = s.plain.k = k; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call, decode_call});
  for (const int64_t tokens : {int64_t{PNCUDA_P12_MAX_TOKENS + 1}, int64_t{1} << 32, INT64_MAX})
    refused(PNCUDA_TOO_MANY_TOKENS, [tokens](Setup& s) { s.gemv.tokens = s.fused.tokens = s.silu.tokens = tokens; },
            {gemv_call, query_call, fused_call, silu_call});
  for (const auto& [tokens, slots] : {std::pair<int64_t, int64_t>{1025, 1},
                                      {1, 1025},
                                      {33, 32},
                                      {INT64_MAX, 2},
                                      {2, INT64_MAX},
                                      {INT64_MAX, INT64_MAX},
                                      {1 << 16, 1 << 16},
                                      {int64_t{1} << 32, int64_t{1} << 32}})
    refused(PNCUDA_TOO_MANY_TOKENS,
            [tokens = tokens, slots = slots](Setup& s) {
              s.experts.tokens = tokens;
              s.experts.slots = slots;
            },
            {experts_call});
  refused(PNCUDA_TOO_MANY_TOKENS, [](Setup& s) { s.low_rank.tokens = 65536; }, {low_rank_call});
  for (const int count : {0, 4, -1})
    refused(PNCUDA_OUT_OF_RANGE, [count](Setup& s) { s.fused.count = s.silu.count = s.experts.count = count; },
            {fused_call, silu_call, experts_call});
  for (const int rank : {0, -1, 257, INT32_MIN, INT32_MAX})
    refused(PNCUDA_OUT_OF_RANGE, [rank](Setup& s) { s.low_rank.rank = rank; }, {low_rank_call});
}

TEST_CASE("api: p12: alignment", "[api]") {
  const int want = PNCUDA_MISALIGNED;
  for (const int64_t bytes : {1, 2, 4, 7, 12})
    refused(want,
            [bytes](Setup& s) { s.weights.data = by(s.weights.data, bytes), s.plain.data = by(s.plain.data, bytes); },
            {gemv_call, fused_call, silu_call, experts_call, decode_call, pack_call});
  for (const int64_t bytes : {2, 4, 12}) {
    refused(want, [bytes](Setup& s) { s.weights.row_stride += bytes, s.plain.row_stride += bytes; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, decode_call, pack_call});
    refused(want, [bytes](Setup& s) { s.expert_matrices[1].expert_stride += bytes; }, {experts_call});
  }
  // Packed at 8, plain only at 16.
  Setup eight(host_cuda::h100(), PNCUDA_BF16_PLAIN);
  eight.clear();
  eight.weights.data = eight.plain.data = by(eight.plain.data, 8);
  for (const Call& call : {gemv_call, fused_call, silu_call, experts_call, decode_call, pack_call})
    REQUIRE(call(eight) == want);
  REQUIRE(eight.nothing_happened());
  refused(want, [](Setup& s) { s.gemv.x = s.fused.x = s.silu.x = s.experts.x = s.low_rank.x = by(s.x.data(), 1); },
          {gemv_call, fused_call, silu_call, experts_call, low_rank_call});
  refused(want,
          [](Setup& s) {
            s.gemv.x_stride += 1, s.fused.x_stride += 1, s.silu.x_stride += 1, s.experts.x_stride += 1;
            s.low_rank.x_stride += 1;
          },
          {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
  refused(want,
          [](Setup& s) {
            s.gemv.y = s.matrices[0].y = s.expert_matrices[0].y = s.low_rank.y = moved(s.gemv.y, 2);
            s.decode.out = moved(s.decode.out, 1);
          },
          {gemv_call, fused_call, silu_call, experts_call, low_rank_call, decode_call});
  refused(want,
          [](Setup& s) { s.matrices[0].y_stride += 2, s.expert_matrices[0].y_stride += 2, s.low_rank.y_stride += 2; },
          {fused_call, silu_call, experts_call, low_rank_call});
  refused(want, [](Setup& s) { s.matrices[1].bias = s.expert_matrices[1].bias = by(s.matrices[1].bias, 2); },
          {fused_call, silu_call, experts_call});
  refused(want,
          [](Setup& s) {
            s.matrices[0].residual = s.expert_matrices[0].residual = by(s.matrices[0].residual, 2);
            s.low_rank.base = by(s.low_rank.base, 2);
          },
          {fused_call, silu_call, experts_call, low_rank_call});
  refused(want,
          [](Setup& s) {
            s.matrices[0].residual_stride += 2, s.expert_matrices[0].residual_stride += 2, s.low_rank.base_stride += 2;
          },
          {fused_call, silu_call, experts_call, low_rank_call});
  refused(want, [](Setup& s) { s.experts.expert_ids = moved(s.experts.expert_ids, 2); }, {experts_call});
  for (const auto field : {&pncuda_low_rank_args::a, &pncuda_low_rank_args::b})
    refused(want, [field](Setup& s) { s.low_rank.*field = by(s.low_rank.*field, 2); }, {low_rank_call});
  for (const auto field : {&pncuda_low_rank_args::a_stride, &pncuda_low_rank_args::b_stride})
    refused(want, [field](Setup& s) { s.low_rank.*field += 2; }, {low_rank_call});
  refused(want, [](Setup& s) { s.low_rank.scales = moved(s.low_rank.scales, 2); }, {low_rank_call});
  refused(want, [](Setup& s) { s.low_rank.workspace = moved(s.workspace.data(), 2); }, {low_rank_call});
  refused(want, [](Setup&) {},
          {[](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data() + 4, 784, s.first_bad, nullptr); },
           [](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data(), 788, s.first_bad, nullptr); },
           [](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data(), 784, moved(s.first_bad, 4), nullptr); }});
}

TEST_CASE("api: p12: strides", "[api]") {
  const int want = PNCUDA_BAD_STRIDE;
  for (const int64_t stride : {int64_t{0}, int64_t{768}, int64_t{-1024}, INT64_MIN})
    refused(want, [stride](Setup& s) { s.weights.row_stride = s.plain.row_stride = stride; },
            {gemv_call, query_call, fused_call, silu_call, experts_call, decode_call, pack_call});
  for (const int64_t stride : {int64_t{0}, int64_t{1022}, int64_t{-1024}, INT64_MIN})
    refused(want,
            [stride](Setup& s) {
              s.gemv.x_stride = s.fused.x_stride = s.silu.x_stride = s.experts.x_stride = s.low_rank.x_stride = stride;
            },
            {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
  for (const int64_t stride : {int64_t{0}, int64_t{76}, int64_t{-80}}) {
    refused(want, [stride](Setup& s) { s.gemv.y_stride = s.matrices[0].y_stride = stride; },
            {gemv_call, query_call, fused_call, silu_call});
    refused(want, [stride](Setup& s) { s.matrices[0].residual_stride = stride; }, {fused_call, silu_call});
  }
  for (const int64_t stride : {int64_t{0}, int64_t{36}, int64_t{-40}}) {  // of ten rows
    refused(want, [stride](Setup& s) { s.expert_matrices[2].y_stride = stride; }, {experts_call});
    refused(want, [stride](Setup& s) { s.expert_matrices[2].residual_stride = stride; }, {experts_call});
  }
  refused(want, [](Setup& s) { s.expert_matrices[0].expert_stride = -16; }, {experts_call});
  refused(want, [](Setup& s) { s.matrices[1].expert_stride = 1024 * 16; }, {fused_call, silu_call});
  for (const int64_t stride : {int64_t{0}, int64_t{8}, int64_t{-2048}}) {
    refused(want, [stride](Setup& s) { s.low_rank.a_stride = stride; }, {low_rank_call});
    refused(want, [stride](Setup& s) { s.low_rank.b_stride = stride; }, {low_rank_call});
    refused(want, [stride](Setup& s) { s.low_rank.y_stride = stride; }, {low_rank_call});
    refused(want, [stride](Setup& s) { s.low_rank.base_stride = stride; }, {low_rank_call});
  }
  refused(  // y itself, but not its rows
      want, [](Setup& s) { s.low_rank.base = s.low_rank.y, s.low_rank.base_stride = 84; }, {low_rank_call});
  refused(  // y itself as the residual, but not its rows, or of another type
      want, [](Setup& s) { s.matrices[0].residual = s.matrices[0].y, s.matrices[0].residual_stride = 84; },
      {fused_call, silu_call});
  refused(want,
          [](Setup& s) {
            s.matrices[0].residual = s.matrices[0].y;
            s.matrices[0].residual_type = PNCUDA_F16;
            s.matrices[0].residual_stride = s.matrices[0].y_stride;
          },
          {fused_call, silu_call});
  refused(want, [](Setup&) {},
          {[](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data(), 776, s.first_bad, nullptr); },
           [](Setup& s) { return pncuda_p12_pack(&s.plain, s.packed.data(), -784, s.first_bad, nullptr); }});
}

TEST_CASE("api: p12: matrices that do not go together", "[api]") {
  const int want = PNCUDA_SHAPE_MISMATCH;
  refused(want, [](Setup& s) { s.second = s.second.type == PNCUDA_BF16_P12 ? s.matrix.plain() : s.matrix.packed(); },
          {fused_call, silu_call});
  refused(want, [](Setup& s) { s.second.k = 256; }, {fused_call, silu_call, experts_call});
  refused(want, [](Setup& s) { s.third.k = 256; }, {fused_call, experts_call});
  refused(want, [](Setup& s) { s.second.rows = 19; }, {silu_call});
  for (const int count : {1, 3}) refused(want, [count](Setup& s) { s.silu.count = count; }, {silu_call});
  refused(want, [](Setup& s) { s.keep_second = true; }, {silu_call});
  refused(want, [](Setup& s) { s.keep_second = true, s.matrices[1].y = nullptr; }, {silu_call});
  refused(want, [](Setup& s) { s.keep_second = true, s.matrices[1].residual = nullptr; }, {silu_call});
  // What belongs to experts, without their numbers.
  refused(want, [](Setup& s) { s.fused.experts = s.silu.experts = 2; }, {fused_call, silu_call});
  refused(want, [](Setup& s) { s.fused.slots = s.silu.slots = 1; }, {fused_call, silu_call});
  refused(want, [](Setup& s) { s.fused.x_per_slot = s.silu.x_per_slot = 1; }, {fused_call, silu_call});
  refused(want, [](Setup& s) { s.experts.expert_ids = nullptr; }, {experts_call});
}

TEST_CASE("api: p12: what has no kernel", "[api]") {
  const int want = PNCUDA_UNSUPPORTED;
  refused(want,
          [](Setup& s) {
            s.weights.layout = s.plain.layout = PNCUDA_REPACKED;
            s.weights.row_stride = s.plain.row_stride = 0;
          },
          {gemv_call, query_call, fused_call, silu_call, experts_call, decode_call, pack_call});
  refused(want, [](Setup&) {},
          {[](Setup& s) { return pncuda_repack(&s.weights, s.packed.data(), nullptr); },
           [](Setup& s) { return pncuda_unrepack(&s.weights, s.packed.data(), 784, nullptr); }});
  for (const int block : {64, 128, 256, 512})
    refused(want, [block](Setup& s) { s.gemv.hadamard_block = block; }, {gemv_call, query_call});
  for (const int block : {-64, 1, 63, 96, 1024})
    refused(PNCUDA_BAD_HADAMARD_BLOCK, [block](Setup& s) { s.gemv.hadamard_block = block; }, {gemv_call, query_call});
  refused(want,
          [](Setup& s) {
            s.weights.type = s.plain.type = PNCUDA_PN4T;
            s.weights.row_stride = s.plain.row_stride = 1024;
          },
          {fused_call, silu_call, experts_call, pack_call});
  refused(want,
          [](Setup& s) {
            s.weights.type = PNCUDA_PN4T;
            s.weights.row_stride = 1024;
            s.gemv.mode = PNCUDA_PORTABLE;
          },
          {gemv_call, query_call});
  refused(want, [](Setup& s) { s.plain = s.matrix.packed(); }, {pack_call});
}

TEST_CASE("api: p12: sizes that do not fit, workspaces", "[api]") {
  const int want = PNCUDA_TOO_LARGE;
  refused(want, [](Setup& s) { s.weights.rows = s.plain.rows = (int64_t{1} << 31); },
          {gemv_call, query_call, fused_call, silu_call, pack_call});
  refused(want, [](Setup& s) { s.weights.k = s.plain.k = INT64_MAX / 256 * 256; },
          {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call});
  refused(want, [](Setup& s) { s.weights.row_stride = s.plain.row_stride = INT64_MAX / 16 * 16; },
          {gemv_call, query_call, fused_call, silu_call, experts_call, pack_call, decode_call});
  refused(want, [](Setup& s) { s.experts.experts = int64_t{1} << 31; }, {experts_call});
  refused(want, [](Setup& s) { s.expert_matrices[2].expert_stride = INT64_MAX / 16 * 16; }, {experts_call});
  refused(want,
          [](Setup& s) {
            s.gemv.x_stride = s.fused.x_stride = s.silu.x_stride = s.experts.x_stride = s.low_rank.x_stride =
                INT64_MAX - 1;
          },
          {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
  refused(want,
          [](Setup& s) {
            s.gemv.y_stride = s.matrices[0].y_stride = s.expert_matrices[0].y_stride = s.low_rank.y_stride =
                INT64_MAX - 3;
          },
          {gemv_call, query_call, fused_call, silu_call, experts_call, low_rank_call});
  refused(PNCUDA_WORKSPACE_TOO_SMALL, [](Setup& s) { s.low_rank.workspace_size -= 1; }, {low_rank_call});
  REQUIRE(pncuda_low_rank_workspace(3, 4) == 48);
  REQUIRE(pncuda_low_rank_workspace(65535, 256) == size_t{65535} * 1024);
  REQUIRE(pncuda_low_rank_workspace(0, 4) == 0);
  for (const auto& [tokens, rank] :
       {std::pair<int64_t, int>{-1, 4}, {65536, 4}, {3, 0}, {3, 257}, {3, -1}, {INT64_MAX, 1}})
    REQUIRE(pncuda_low_rank_workspace(tokens, rank) == 0);
  Setup s;
  REQUIRE(pncuda_weights_size(&s.weights) == 20 * 784);
  REQUIRE(pncuda_weights_size(&s.plain) == 20 * 1024);
}

// Nothing to do is no error, whatever pointers are.
TEST_CASE("api: p12: no tokens and no pointers", "[api]") {
  Setup s;
  s.experts.tokens = 0;
  s.experts.expert_ids = nullptr;
  REQUIRE(s.run_experts() == PNCUDA_OK);
  s.low_rank.n = 0;
  s.low_rank.y = nullptr;
  s.low_rank.base = nullptr;
  REQUIRE(pncuda_low_rank(&s.low_rank, nullptr) == PNCUDA_OK);
}

TEST_CASE("api: p12: nothing to do", "[api]") {
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : bf16_types)
      for (int which = 0; which < 6; ++which) {
        Setup s(device, type);
        s.clear();
        const bool no_tokens = which % 2 == 0;
        if (no_tokens)
          s.fused.tokens = s.silu.tokens = s.experts.tokens = s.low_rank.tokens = 0;
        else
          s.weights.rows = s.second.rows = s.third.rows = s.low_rank.n = 0;
        if (which >= 2) {
          s.weights.data = s.second.data = s.third.data = nullptr;
          s.fused.x = s.silu.x = s.experts.x = s.low_rank.x = nullptr;
          for (auto* const matrix : {&s.matrices[0], &s.matrices[1], &s.matrices[2], &s.expert_matrices[0],
                                     &s.expert_matrices[1], &s.expert_matrices[2]})
            matrix->y = nullptr;
          s.low_rank.y = nullptr;
          s.low_rank.a = s.low_rank.b = nullptr;
          s.low_rank.base = nullptr;
          s.low_rank.workspace = nullptr;
          s.low_rank.scales = nullptr;
        }
        host_cuda::reset_calls();
        CAPTURE(device.name, type, which);
        REQUIRE(fused_call(s) == PNCUDA_OK);
        REQUIRE(silu_call(s) == PNCUDA_OK);
        REQUIRE(experts_call(s) == PNCUDA_OK);
        REQUIRE(low_rank_call(s) == PNCUDA_OK);
        REQUIRE(s.nothing_happened());
        s.experts.slots = 0;
        REQUIRE(experts_call(s) == PNCUDA_OK);
        REQUIRE(s.nothing_happened());
      }
}

// ---- Plans ----

TEST_CASE("api: p12: the plan of a GEMV", "[api]") {
  struct Want {
    host_cuda::Device device;
    int mode, path;
  };
  for (const Want& want : {Want{host_cuda::p100(), PNCUDA_ACCURATE, PNCUDA_PATH_FFMA},
                           Want{host_cuda::t4(), PNCUDA_FAST_HALF2, PNCUDA_PATH_FFMA},
                           Want{host_cuda::a10(), PNCUDA_ACCURATE, PNCUDA_PATH_TENSOR},
                           Want{host_cuda::a10(), PNCUDA_PORTABLE, PNCUDA_PATH_FFMA},
                           Want{host_cuda::h100(), PNCUDA_FAST_HALF2, PNCUDA_PATH_TENSOR},
                           Want{host_cuda::h100(), PNCUDA_ACCURATE, PNCUDA_PATH_TENSOR},
                           Want{host_cuda::h100(), PNCUDA_PORTABLE, PNCUDA_PATH_FFMA}}) {
    Setup s(want.device);
    s.clear();
    host_cuda::reset_calls();
    for (const int type : bf16_types)
      for (const int x_type : element_types)
        for (const int64_t k : {int64_t{256}, int64_t{5120}, int64_t{17408}, int64_t{256} << 20})
          for (const int64_t rows : {int64_t{37}, int64_t{5120}, int64_t{248320}, int64_t{0x7FFFFFFF}})
            for (int64_t tokens = 0; tokens <= PNCUDA_P12_MAX_TOKENS; ++tokens) {
              if (rows == 0x7FFFFFFF && k > 17408) continue;  // too large
              s.weights = {sizeof s.weights, type, PNCUDA_NATIVE, nullptr, rows, k, k * 2};
              s.gemv.x = nullptr;
              s.gemv.y = nullptr;
              s.gemv.x_type = x_type;
              s.gemv.x_stride = k * bytes_of(x_type);
              s.gemv.y_stride = rows * 4;
              s.gemv.mode = want.mode;
              s.gemv.tokens = tokens;
              pncuda_gemv_plan plan{};
              plan.struct_size = sizeof plan;
              CAPTURE(want.device.name, type, name_of(x_type), k, rows, tokens);
              REQUIRE(pncuda_gemv_query(&s.gemv, &plan) == PNCUDA_OK);
              REQUIRE(plan.path == (tokens == 0 ? PNCUDA_PATH_NONE : want.path));
              if (tokens == 0) {
                REQUIRE(plan.launches == 0);
                continue;
              }
              REQUIRE(plan.tokens_per_launch >= 1);
              REQUIRE(plan.tokens_per_launch <= tokens);
              REQUIRE(plan.launches >= (tokens + plan.tokens_per_launch - 1) / plan.tokens_per_launch);
              REQUIRE(plan.launches <= tokens);
              REQUIRE(plan.shared_bytes > 0);
              REQUIRE(plan.shared_bytes <= want.device.shared_per_block_optin);
            }
    REQUIRE(s.nothing_happened());
  }
}

TEST_CASE("api: p12: as many launches as the plan says", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()})
    for (const int type : bf16_types)
      for (int64_t tokens = 1; tokens <= PNCUDA_P12_MAX_TOKENS; ++tokens) {
        Setup s(device);
        const Activations x(element_types[tokens % 3], tokens, 512, s.random);
        const Output y(tokens, 80, 80);
        const pncuda_weights w = s.matrix.as(type);
        const pncuda_gemv_args args = gemv_args(w, x, y, {});
        pncuda_gemv_plan plan{};
        plan.struct_size = sizeof plan;
        REQUIRE(pncuda_gemv_query(&args, &plan) == PNCUDA_OK);
        host_cuda::reset_calls();
        REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
        const host_cuda::Calls calls = host_cuda::calls();
        CAPTURE(device.name, type, tokens);
        REQUIRE(int64_t(calls.launches.size()) == plan.launches);
        std::size_t most = 0;
        for (const auto& launch : calls.launches) most = std::max(most, launch.shared);
        REQUIRE(int64_t(most) == plan.shared_bytes);
      }
}

// ---- What a launch does ----

void run_all(Setup& s, pncuda_stream stream) {
  REQUIRE(pncuda_gemv(&s.gemv, stream) == PNCUDA_OK);
  REQUIRE(pncuda_fused(&s.fused, stream) == PNCUDA_OK);
  REQUIRE(s.run_silu(stream) == PNCUDA_OK);
  REQUIRE(s.run_experts(stream) == PNCUDA_OK);
  REQUIRE(s.pack(stream) == PNCUDA_OK);
  REQUIRE(pncuda_low_rank(&s.low_rank, stream) == PNCUDA_OK);
  REQUIRE(pncuda_decode(&s.decode, stream) == PNCUDA_OK);
}

TEST_CASE("api: p12: launches do not allocate, synchronise or ask, and go to their stream", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    const std::size_t allocated = host_cuda::allocated_bytes();
    host_cuda::reset_calls();
    run_all(s, stream);
    const host_cuda::Calls calls = host_cuda::calls();
    for (const auto& [name, count] : calls.counts) {
      CAPTURE(name, count);
      REQUIRE((name == "launch" || name == "cudaGetDevice" || name == "cudaMemsetAsync"));
    }
    for (const auto& launch : calls.launches) REQUIRE(launch.stream == stream);
    REQUIRE(calls.launches.size() == 8);
    REQUIRE(host_cuda::allocated_bytes() == allocated);
    cudaStreamDestroy(stream);
  }
}

TEST_CASE("api: p12: the first launch of a device is captured and replayed", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    s.matrices[0].residual = s.matrices[0].bias = nullptr;
    run_all(s, nullptr);
    const auto results = [&] {
      std::vector<uint8_t> all;
      for (const Output* const out : s.outputs()) {
        const auto bytes = out->everything();
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      all.push_back(static_cast<uint8_t>(s.first_bad[0]));
      return all;
    };
    const std::vector<uint8_t> want = results();
    const int number = device.major == 6 ? 36 : 37;
    host_cuda::set_devices(std::vector<host_cuda::Device>(38, device));
    REQUIRE(pncuda_prepare(number) == PNCUDA_OK);
    REQUIRE(cudaSetDevice(number) == cudaSuccess);
    // cudaMemset wants memory of the device that is current.
    REQUIRE(cudaFree(s.first_bad) == cudaSuccess);
    REQUIRE(cudaMalloc(&s.first_bad, 16) == cudaSuccess);
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    s.clear();
    host_cuda::reset_calls();
    host_cuda::begin_capture(stream);
    run_all(s, stream);
    const host_cuda::Graph graph = host_cuda::end_capture();
    REQUIRE(graph.error == cudaSuccess);
    REQUIRE(graph.size() == 9);
    for (const std::string& name : host_cuda::calls().in_capture)
      REQUIRE((name == "launch" || name == "cudaGetDevice" || name == "cudaMemsetAsync"));
    for (const Output* const out : s.outputs()) REQUIRE(out->untouched());
    for (int turn = 0; turn < 2; ++turn) {
      REQUIRE(graph.replay() == cudaSuccess);
      REQUIRE(results() == want);
      s.clear();
    }
    cudaStreamDestroy(stream);
  }
}

TEST_CASE("api: p12: a device that is not prepared, errors of CUDA's", "[api]") {
  const std::vector<Call> all = {gemv_call,    query_call, fused_call,    silu_call,
                                 experts_call, pack_call,  low_rank_call, decode_call};
  {
    Setup s;
    s.clear();
    host_cuda::set_devices(std::vector<host_cuda::Device>(39, host_cuda::h100()));
    REQUIRE(cudaSetDevice(38) == cudaSuccess);
    host_cuda::reset_calls();
    for (const Call& call : all) REQUIRE(call(s) == PNCUDA_NOT_PREPARED);
    REQUIRE(s.nothing_happened());
  }
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(i, device.name);
      s.clear();
      host_cuda::reset_calls();
      host_cuda::fail_next("cudaGetDevice", cudaErrorUnknown);
      REQUIRE(static_cast<int>(all[i](s)) == cuda_status(cudaErrorUnknown));
      REQUIRE(s.nothing_happened());
      REQUIRE(cudaPeekAtLastError() == cudaSuccess);
      if (i == 1) continue;
      host_cuda::reset_calls();
      host_cuda::fail_next("launch", cudaErrorLaunchFailure);
      REQUIRE(static_cast<int>(all[i](s)) == cuda_status(cudaErrorLaunchFailure));
      REQUIRE(host_cuda::calls().launches.empty());
      REQUIRE(host_cuda::calls().count("launch") == 1);
      REQUIRE(cudaPeekAtLastError() == cudaSuccess);
      REQUIRE(all[i](s) == PNCUDA_OK);
    }
    s.clear();
    host_cuda::reset_calls();
    host_cuda::fail_next("cudaMemsetAsync", cudaErrorUnknown);
    REQUIRE(static_cast<int>(pack_call(s)) == cuda_status(cudaErrorUnknown));
    REQUIRE(host_cuda::calls().count("launch") == 0);
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
}

TEST_CASE("api: p12: launches from several threads at once", "[api]") {
  Setup s;
  check_from_several_threads(s.gemv, testing::gemv(s.weights, s.x));
}

}  // namespace
