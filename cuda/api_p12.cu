// libpncuda: the C ABI of pncuda_p12.h, and of pncuda.h where weights are BF16_P12 or plain BF16.
#include "api.hpp"
#include "p12.cuh"

namespace pncuda {

namespace {

// A multiply that is ready; `args` says what is the same for all launches.
struct P12Multiply {
  P12Args args;
  std::int64_t tokens = 0;  // rows of results, with experts tokens * slots
  int path = PNCUDA_PATH_NONE;
  bool packed = false;
};

pncuda_status check_matrix(const pncuda_fused_matrix& from, const pncuda_fused_args& a, bool has_y, bool shape_only,
                           std::int64_t results, P12Matrix& to, Matrix& weights) {
  if (from.struct_size != sizeof(pncuda_fused_matrix)) return PNCUDA_STRUCT_SIZE;
  PNCUDA_CHECK(check_weights(from.weights, true, weights));
  if (!is_bf16_type(from.weights->type)) return PNCUDA_UNSUPPORTED;
  if (from.reserved != 0) return PNCUDA_BAD_ENUM;
  const bool nothing = shape_only || results == 0 || weights.rows == 0;
  PNCUDA_CHECK(check_weights(from.weights, nothing, weights));
  if (a.expert_ids != nullptr) {
    if (from.expert_stride < 0) return PNCUDA_BAD_STRIDE;
    if (from.expert_stride % layout_of(from.weights->type).alignment != 0) return PNCUDA_MISALIGNED;
    if (!fits(a.experts, from.expert_stride) || !fits(a.experts, 4 * weights.rows)) return PNCUDA_TOO_LARGE;
  } else if (a.tokens > 0 && from.expert_stride != 0) {
    return PNCUDA_BAD_STRIDE;
  }
  if (has_y) {
    PNCUDA_CHECK(check_elements(from.y, from.y_stride, from.y_type, results, weights.rows, nothing));
    if (from.residual != nullptr)
      PNCUDA_CHECK(
          check_elements(from.residual, from.residual_stride, from.residual_type, results, weights.rows, nothing));
    if (from.residual != nullptr && from.residual == from.y &&
        (from.residual_type != from.y_type || (results > 1 && from.residual_stride != from.y_stride)))
      return PNCUDA_BAD_STRIDE;
  } else if (from.y != nullptr || from.residual != nullptr) {
    return PNCUDA_SHAPE_MISMATCH;
  }
  if (from.bias != nullptr) PNCUDA_CHECK(check_elements(from.bias, 0, from.bias_type, 1, weights.rows, nothing));
  to = {};
  to.data = weights.data;
  to.row_stride = weights.row_stride;
  to.expert_stride = from.expert_stride;
  to.y = from.y;
  to.y_stride = from.y_stride;
  to.y_type = from.y_type;
  to.bias = from.bias;
  to.bias_type = from.bias_type;
  to.residual = from.residual;
  to.residual_stride = from.residual_stride;
  to.residual_type = from.residual_type;
  to.rows = weights.rows;
  return PNCUDA_OK;
}

pncuda_status check_fused(const pncuda_fused_args* args, bool shape_only, const Device*& device,
                          P12Multiply& multiply) {
  if (args == nullptr || args->matrices == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_fused_args& a = *args;
  if (a.struct_size != sizeof(pncuda_fused_args)) return PNCUDA_STRUCT_SIZE;
  if (a.count < 1 || a.count > PNCUDA_MAX_MATRICES) return PNCUDA_OUT_OF_RANGE;
  if (a.activation != PNCUDA_NO_ACTIVATION && a.activation != PNCUDA_SILU_MUL) return PNCUDA_BAD_ENUM;
  if (a.mode != PNCUDA_ACCURATE && a.mode != PNCUDA_FAST_HALF2 && a.mode != PNCUDA_PORTABLE) return PNCUDA_BAD_ENUM;
  if (!is_element_type(a.x_type) || a.reserved != 0 || a.x_per_slot < 0 || a.x_per_slot > 1) return PNCUDA_BAD_ENUM;
  const bool silu = a.activation == PNCUDA_SILU_MUL;
  if (silu && a.count != 2) return PNCUDA_SHAPE_MISMATCH;
  if (a.tokens < 0) return PNCUDA_NEGATIVE_SIZE;
  std::int64_t results = a.tokens;
  if (a.expert_ids != nullptr) {
    if (a.experts < 0 || a.slots < 0) return PNCUDA_NEGATIVE_SIZE;
    if (a.experts > INT32_MAX) return PNCUDA_TOO_LARGE;
    if (a.slots != 0 && a.tokens > PNCUDA_MAX_EXPERT_RESULTS / a.slots) return PNCUDA_TOO_MANY_TOKENS;
    if (!is_aligned(a.expert_ids, 4)) return PNCUDA_MISALIGNED;
    results = a.tokens * a.slots;
  } else if (a.tokens > PNCUDA_P12_MAX_TOKENS) {
    return PNCUDA_TOO_MANY_TOKENS;
  } else if (a.tokens > 0 && (a.experts != 0 || a.slots != 0 || a.x_per_slot != 0)) {
    return PNCUDA_SHAPE_MISMATCH;  // experts without their numbers
  }

  P12Args& to = multiply.args;
  to = {};
  std::int64_t rows = 0;
  for (int i = 0; i < a.count; ++i) {
    Matrix weights;
    PNCUDA_CHECK(check_matrix(a.matrices[i], a, !silu || i == 0, shape_only, results, to.matrices[i], weights));
    if (a.matrices[i].weights->type != a.matrices[0].weights->type ||
        a.matrices[i].weights->k != a.matrices[0].weights->k || (silu && weights.rows != to.matrices[0].rows))
      return PNCUDA_SHAPE_MISMATCH;
    to.blocks = weights.blocks;
    rows += weights.rows;
  }
  const bool nothing = results == 0 || rows == 0;
  const std::int64_t x_rows = a.expert_ids == nullptr || a.x_per_slot != 0 ? results : a.tokens;
  PNCUDA_CHECK(check_elements(a.x, a.x_stride, a.x_type, x_rows, a.matrices[0].weights->k, shape_only || nothing));
  PNCUDA_CHECK(current_device(device));

  to.x = a.x;
  to.x_stride = a.x_stride;
  to.x_type = a.x_type;
  to.count = a.count;
  to.silu = silu;
  to.expert_ids = a.expert_ids;
  to.experts = static_cast<std::int32_t>(a.experts);
  to.slots = static_cast<std::int32_t>(a.slots);
  to.x_per_slot = a.x_per_slot != 0;
  multiply.tokens = results;
  multiply.packed = a.matrices[0].weights->type == PNCUDA_BF16_P12;
  if (!nothing)
    multiply.path = device->tensor && a.mode != PNCUDA_PORTABLE && a.expert_ids == nullptr && to.blocks > 0
                        ? PNCUDA_PATH_TENSOR
                        : PNCUDA_PATH_FFMA;
  return PNCUDA_OK;
}

// To the tokens of the next launch; pointers may be null in a query.
void advance(const void*& p, std::int64_t bytes) {
  if (p != nullptr) p = static_cast<const unsigned char*>(p) + bytes;
}
void advance(void*& p, std::int64_t bytes) {
  if (p != nullptr) p = static_cast<unsigned char*>(p) + bytes;
}

// Calls body(plan, args) for every launch.
template <class Body>
pncuda_status for_each_launch(const Device& device, const P12Multiply& multiply, Body&& body) {
  P12Args args = multiply.args;
  for (std::int64_t token = 0; token < multiply.tokens;) {
    args.tokens = static_cast<std::int32_t>(multiply.tokens - token);
    const bool tensor = multiply.path == PNCUDA_PATH_TENSOR;
    const GemvPlan plan = tensor ? plan_p12_tensor(device, args) : plan_p12_ffma(device, args);
    if (plan.tokens == 0) return PNCUDA_UNSUPPORTED;
    if (args.expert_ids == nullptr && args.tokens > plan.tokens) args.tokens = plan.tokens;
    PNCUDA_CHECK(body(plan, args));
    token += args.tokens;
    advance(args.x, args.tokens * args.x_stride);
    for (P12Matrix& matrix : args.matrices) {
      advance(matrix.residual, args.tokens * matrix.residual_stride);
      advance(matrix.y, args.tokens * matrix.y_stride);
    }
  }
  return PNCUDA_OK;
}

pncuda_status launch_all(const Device& device, const P12Multiply& multiply, pncuda_stream stream) {
  if (multiply.path == PNCUDA_PATH_NONE) return PNCUDA_OK;
  return for_each_launch(device, multiply, [&](const GemvPlan& plan, const P12Args& args) {
    return status_of(multiply.path == PNCUDA_PATH_TENSOR ? launch_p12_tensor(plan, multiply.packed, args, stream)
                                                         : launch_p12_ffma(plan, multiply.packed, args, stream));
  });
}

// A GEMV is one matrix without anything else.
pncuda_status check_gemv_p12(const pncuda_gemv_args& a, bool shape_only, const Device*& device, P12Multiply& multiply) {
  if (a.hadamard_block != 0) {
    PNCUDA_CHECK(check_hadamard_block(a.hadamard_block, a.weights->k));
    return PNCUDA_UNSUPPORTED;
  }
  pncuda_fused_matrix matrix = {};
  matrix.struct_size = sizeof(matrix);
  matrix.weights = a.weights;
  matrix.y = a.y;
  matrix.y_stride = a.y_stride;
  matrix.y_type = a.y_type;
  pncuda_fused_args fused = {};
  fused.struct_size = sizeof(fused);
  fused.matrices = &matrix;
  fused.count = 1;
  fused.x = a.x;
  fused.x_stride = a.x_stride;
  fused.x_type = a.x_type;
  fused.mode = a.mode;
  fused.tokens = a.tokens;
  return check_fused(&fused, shape_only, device, multiply);
}

}  // namespace

cudaError_t prepare_p12(const Device& device) {
  cudaError_t error = prepare_p12_ffma(device);
  if (error == cudaSuccess && device.tensor) error = prepare_p12_tensor(device);
  if (error == cudaSuccess) error = prepare_p12_decode();
  if (error == cudaSuccess) error = prepare_p12_pack();
  if (error == cudaSuccess) error = prepare_low_rank();
  return error;
}

pncuda_status gemv_p12(const pncuda_gemv_args& args, pncuda_stream stream) {
  const Device* device = nullptr;
  P12Multiply multiply;
  PNCUDA_CHECK(check_gemv_p12(args, false, device, multiply));
  return launch_all(*device, multiply, stream);
}

pncuda_status gemv_p12_query(const pncuda_gemv_args& args, pncuda_gemv_plan& plan) {
  const Device* device = nullptr;
  P12Multiply multiply;
  PNCUDA_CHECK(check_gemv_p12(args, true, device, multiply));
  plan.path = multiply.path;
  if (multiply.path == PNCUDA_PATH_NONE) return PNCUDA_OK;
  return for_each_launch(*device, multiply, [&](const GemvPlan& one, const P12Args& part) {
    ++plan.launches;
    if (part.tokens > plan.tokens_per_launch) plan.tokens_per_launch = part.tokens;
    if (one.shared_bytes > plan.shared_bytes) plan.shared_bytes = one.shared_bytes;
    return PNCUDA_OK;
  });
}

}  // namespace pncuda

using namespace pncuda;

pncuda_status pncuda_p12_pack(const pncuda_weights* plain, void* out, int64_t out_row_stride, int64_t* first_bad,
                              pncuda_stream stream) {
  Matrix from;
  PNCUDA_CHECK(check_weights(plain, false, from));
  if (plain->type != PNCUDA_BF16_PLAIN) return PNCUDA_UNSUPPORTED;
  if (first_bad == nullptr) return PNCUDA_NULL_POINTER;
  if (!is_aligned(first_bad, sizeof(int64_t))) return PNCUDA_MISALIGNED;
  pncuda_weights packed = *plain;
  packed.type = PNCUDA_BF16_P12;
  packed.data = out;
  packed.row_stride = out_row_stride;
  Matrix to;
  PNCUDA_CHECK(check_weights(&packed, false, to));
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  return status_of(launch_p12_pack(from, static_cast<std::uint8_t*>(out), out_row_stride, first_bad, stream));
}

pncuda_status pncuda_fused(const pncuda_fused_args* args, pncuda_stream stream) {
  const Device* device = nullptr;
  P12Multiply multiply;
  PNCUDA_CHECK(check_fused(args, false, device, multiply));
  return launch_all(*device, multiply, stream);
}

namespace {

constexpr std::int64_t max_low_rank_tokens = 65535;

bool is_rank(int rank) { return rank >= 1 && rank <= PNCUDA_MAX_RANK; }

}  // namespace

size_t pncuda_low_rank_workspace(int64_t tokens, int32_t rank) {
  if (tokens < 0 || tokens > max_low_rank_tokens || !is_rank(rank)) return 0;
  return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(rank) * sizeof(float);
}

pncuda_status pncuda_low_rank(const pncuda_low_rank_args* args, pncuda_stream stream) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_low_rank_args& a = *args;
  if (a.struct_size != sizeof(pncuda_low_rank_args)) return PNCUDA_STRUCT_SIZE;
  if (a.tokens < 0 || a.k < 0 || a.n < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.tokens > max_low_rank_tokens) return PNCUDA_TOO_MANY_TOKENS;
  if (!is_rank(a.rank)) return PNCUDA_OUT_OF_RANGE;
  const bool nothing = a.tokens == 0 || a.n == 0;
  PNCUDA_CHECK(check_elements(a.a, a.a_stride, a.factor_type, a.rank, a.k, nothing));
  PNCUDA_CHECK(check_elements(a.b, a.b_stride, a.factor_type, a.n, a.rank, nothing));
  PNCUDA_CHECK(check_elements(a.x, a.x_stride, a.x_type, a.tokens, a.k, nothing));
  PNCUDA_CHECK(check_elements(a.y, a.y_stride, a.y_type, a.tokens, a.n, nothing));
  if (a.base != nullptr) PNCUDA_CHECK(check_elements(a.base, a.base_stride, a.y_type, a.tokens, a.n, nothing));
  if (a.base != nullptr && a.base == a.y && a.tokens > 1 && a.base_stride != a.y_stride) return PNCUDA_BAD_STRIDE;
  if (!nothing) {
    if (a.scales == nullptr || a.workspace == nullptr) return PNCUDA_NULL_POINTER;
    if (!is_aligned(a.scales, 4) || !is_aligned(a.workspace, 4)) return PNCUDA_MISALIGNED;
    if (a.workspace_size < pncuda_low_rank_workspace(a.tokens, a.rank)) return PNCUDA_WORKSPACE_TOO_SMALL;
  }
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  if (nothing) return PNCUDA_OK;
  LowRank what = {};
  what.a = a.a;
  what.b = a.b;
  what.a_stride = a.a_stride;
  what.b_stride = a.b_stride;
  what.x = a.x;
  what.x_stride = a.x_stride;
  what.y = a.y;
  what.y_stride = a.y_stride;
  what.base = a.base;
  what.base_stride = a.base_stride;
  what.scales = a.scales;
  what.products = static_cast<float*>(a.workspace);
  what.k = a.k;
  what.n = a.n;
  what.tokens = static_cast<std::int32_t>(a.tokens);
  what.rank = a.rank;
  what.factor_type = a.factor_type;
  what.x_type = a.x_type;
  what.y_type = a.y_type;
  return status_of(launch_low_rank(what, stream));
}
