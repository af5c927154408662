// The three types in ggml's CUDA backend: what the lines that patch.py inserts into it call.
#pragma once

#include "ggml-pn.h"

struct ggml_backend_cuda_context;

// Does the operation read a weight of one of the three types?
static inline bool ggml_pn_cuda_concerns(const ggml_tensor* op) {
  return op->src[0] != nullptr && ggml_pn_is_type(op->src[0]->type);
}

// Can the device compute it? Prepares libpncuda for the device the first time.
bool ggml_pn_cuda_supports(int device, const ggml_tensor* op);

// Computes it if the weight is of one of the three types; otherwise false.
bool ggml_pn_cuda_mul_mat(ggml_backend_cuda_context& ctx, const ggml_tensor* weight, const ggml_tensor* x,
                          ggml_tensor* y);
