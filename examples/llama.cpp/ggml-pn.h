// The types pn3t, pn4t and bf16_p12 in ggml: what the lines that patch.py inserts into the engine call.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows of k weights to fp32: exact.
void ggml_pn3t_to_float(const void* blocks, float* out, int64_t k);
void ggml_pn4t_to_float(const void* blocks, float* out, int64_t k);
void ggml_p12_to_float(const void* blocks, float* out, int64_t k);

// One weight row times one fp32 row, summed in double: what an operation that knows only vec_dot uses.
void ggml_pn3t_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int);
void ggml_pn4t_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int);
void ggml_p12_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int);

// --check-tensors: is every block one that a quantizer or packer writes? Tells which is not.
bool ggml_pn_validate(enum ggml_type type, const void* data, size_t bytes);

// The segments in which x is rotated before it meets this weight (FORMAT.md, "Hadamard rotation"); 0: it is not.
int ggml_pn_rotation(const struct ggml_tensor* weight);

// Is a switch on in the environment: neither empty nor 0?
bool ggml_pn_is_set(const char* name);

static inline bool ggml_pn_is_type(enum ggml_type type) {
  return type == GGML_TYPE_PN3T || type == GGML_TYPE_PN4T || type == GGML_TYPE_BF16_P12;
}

#define GGML_PN_TRAITS(NAME, BLOCK, BYTES, TO_FLOAT) \
  { .type_name = NAME, .blck_size = BLOCK, .type_size = BYTES, .is_quantized = true, .to_float = TO_FLOAT, }
#define GGML_PN_CPU_TRAITS(VEC_DOT) \
  { .vec_dot = VEC_DOT, .vec_dot_type = GGML_TYPE_F32, .nrows = 1 }

#ifdef __cplusplus
}

struct ggml_backend_buffer_type;
struct gguf_context;

// Called once for each weight of a model: keeps with the tensor what the file says of its rotation. Throws
// std::runtime_error when the file's keys are none that FORMAT.md allows.
void ggml_pn_bind(ggml_tensor* weight, const gguf_context* file);

// An "extra buffer type" of the CPU backend. It holds nothing: weights stay in the mapped file. The backend asks it for
// every operation whether it wants to compute it, and it wants those on the three types.
ggml_backend_buffer_type* ggml_pn_cpu_buffer_type();
#endif
