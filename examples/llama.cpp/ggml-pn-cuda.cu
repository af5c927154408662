// The three types in ggml's CUDA backend: multiplying through libpncuda.
//
// Few tokens are multiplied as fp32. For more, x is rounded (and rotated) to what cuBLAS multiplies fastest without
// losing weights' bits: bf16 for bf16_p12, fp16 for pn3t and pn4t. GGML_PN_PROOF=1 unpacks bf16_p12 first, for any
// number of tokens, and multiplies with cuBLAS what it unpacked.
#include <pncuda/pncuda.h>
#include <pncuda/pncuda_blas.h>

#include <mutex>

#include "common.cuh"
#include "ggml-pn-cuda.h"

namespace {

void check(pncuda_status status, const ggml_tensor* weight) {
  if (status != PNCUDA_OK) GGML_ABORT("%s: %s", weight->name, pncuda_status_text(status));
}

bool proof() {
  static const bool on = ggml_pn_is_set("GGML_PN_PROOF");
  return on;
}

bool is_prepared(int device) {
  static std::once_flag once[GGML_CUDA_MAX_DEVICES];
  static bool prepared[GGML_CUDA_MAX_DEVICES];
  std::call_once(once[device], [device] {
    const pncuda_status status = pncuda_prepare(device);
    prepared[device] = status == PNCUDA_OK;
    if (!prepared[device])
      GGML_LOG_WARN("CUDA%d does not run pn3t, pn4t and bf16_p12: %s\n", device, pncuda_status_text(status));
  });
  return prepared[device];
}

// One matrix of a batch.
void multiply(ggml_backend_cuda_context& ctx, const ggml_tensor* weight, const char* data, const char* x,
              int64_t x_stride, char* y, int64_t y_stride, int64_t tokens) {
  cudaStream_t stream = ctx.stream();
  const bool is_p12 = weight->type == GGML_TYPE_BF16_P12;
  pncuda_weights w = {};
  w.struct_size = sizeof w;
  w.type = weight->type;
  w.layout = PNCUDA_NATIVE;
  w.data = data;
  w.rows = weight->ne[1];
  w.k = weight->ne[0];
  w.row_stride = static_cast<int64_t>(weight->nb[1]);

  pncuda_matmul_args args = {};
  args.struct_size = sizeof args;
  args.weights = &w;
  args.x = x;
  args.x_stride = x_stride;
  args.x_type = PNCUDA_F32;
  args.y_type = PNCUDA_F32;
  args.y = y;
  args.y_stride = y_stride;
  args.tokens = tokens;
  args.hadamard_block = ggml_pn_rotation(weight);
  args.proof = is_p12 && proof();
  if (args.proof) args.switch_tokens = 1;

  pncuda_matmul_plan plan = {};
  plan.struct_size = sizeof plan;
  check(pncuda_matmul_query(&args, &plan), weight);
  ggml_cuda_pool_alloc<char> rounded(ctx.pool());
  if (plan.way == PNCUDA_MATMUL_BLAS) {
    pncuda_hadamard_args round = {};
    round.struct_size = sizeof round;
    round.x = x;
    round.x_stride = x_stride;
    round.x_type = PNCUDA_F32;
    round.out_stride = 2 * w.k;
    round.out_type = is_p12 ? PNCUDA_BF16 : PNCUDA_F16;
    round.tokens = tokens;
    round.k = w.k;
    round.block = args.hadamard_block;
    round.out = rounded.alloc(static_cast<size_t>(tokens * round.out_stride));
    check(pncuda_hadamard(&round, stream), weight);
    args.x = round.out;
    args.x_stride = round.out_stride;
    args.x_type = round.out_type;
    args.hadamard_block = 0;
    check(pncuda_matmul_query(&args, &plan), weight);
  }
  ggml_cuda_pool_alloc<char> workspace(ctx.pool());
  args.workspace_size = plan.workspace_size_best;
  if (args.workspace_size > 0) args.workspace = workspace.alloc(args.workspace_size);
  check(pncuda_matmul(&args, ctx.cublas_handle(), stream), weight);
}

}  // namespace

bool ggml_pn_cuda_supports(int device, const ggml_tensor* op) {
  // Embeddings stay on the host, as the engine wants them anyway; experts go through the CPU.
  return op->op == GGML_OP_MUL_MAT && op->src[1]->type == GGML_TYPE_F32 && op->src[1]->nb[0] == sizeof(float) &&
         op->src[0]->nb[0] == ggml_type_size(op->src[0]->type) && is_prepared(device);
}

bool ggml_pn_cuda_mul_mat(ggml_backend_cuda_context& ctx, const ggml_tensor* weight, const ggml_tensor* x,
                          ggml_tensor* y) {
  if (!ggml_pn_is_type(weight->type)) return false;
  const int64_t r2 = x->ne[2] / weight->ne[2];
  const int64_t r3 = x->ne[3] / weight->ne[3];
  const auto at = [](const ggml_tensor* t, int64_t i2, int64_t i3) {
    return static_cast<char*>(t->data) + i2 * t->nb[2] + i3 * t->nb[3];
  };
  for (int64_t i3 = 0; i3 < x->ne[3]; ++i3) {
    for (int64_t i2 = 0; i2 < x->ne[2]; ++i2) {
      multiply(ctx, weight, at(weight, i2 / r2, i3 / r3), at(x, i2, i3), static_cast<int64_t>(x->nb[1]), at(y, i2, i3),
               static_cast<int64_t>(y->nb[1]), x->ne[1]);
    }
  }
  return true;
}
