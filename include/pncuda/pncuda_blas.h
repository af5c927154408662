/* libpncuda_blas: multiplying many tokens with PN weights through cuBLAS. C99. A library of its own (CMake target
 * pn::cuda_blas), so that libpncuda needs no cuBLAS. The contract of pncuda.h holds, but that cuBLAS itself may do what
 * it does inside a call (give the handle a workspace, cublasSetWorkspace, where it must not allocate).
 *
 * Few tokens are multiplied as pncuda_gemv does, up to 8 at a time. From `switch_tokens` on, slices of rows are decoded
 * into the caller's workspace, small enough to stay in the L2 cache, and multiplied by cuBLAS with fp32 sums.
 */
#ifndef PNCUDA_BLAS_H
#define PNCUDA_BLAS_H

#include <pncuda/pncuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cublasHandle_t of the current device. */
struct cublasContext;
typedef struct cublasContext* pncuda_blas_handle;

/* y[m][n] = sum over k of x[m][k] * w[n][k] for any number of tokens.
 *
 * Through cuBLAS weights are rounded to the type that it multiplies, and so are rotated activations: fp16 for fp16 x;
 * bf16 for bf16 x (sm_80 and later); fp32, without rounding, for fp32 x and for bf16 x on older devices. (d * (n - z)
 * has up to 14 significant bits, fp16 keeps 11, bf16 8.) So the results of the two ways differ in the last digits of
 * those types, and a token's result depends on which way it took. */
typedef struct pncuda_matmul_args {
  size_t struct_size;
  const pncuda_weights* weights; /* W[n][k] */
  const void* x;                 /* [tokens][k]; for cuBLAS best aligned to 16 */
  int64_t x_stride;
  int32_t x_type;
  int32_t y_type;
  void* y; /* [tokens][n] */
  int64_t y_stride;
  int64_t tokens; /* any number up to 2^31 - 1 */
  int32_t mode;   /* of the GEMV: PNCUDA_ACCURATE, PNCUDA_FAST_HALF2 */
  int32_t hadamard_block;
  int64_t switch_tokens; /* this many tokens and more go through cuBLAS; 0: what pncuda_matmul_query says */
  void* workspace;       /* device memory, a multiple of 256 */
  size_t workspace_size;
} pncuda_matmul_args;

enum { PNCUDA_MATMUL_NONE = 0, PNCUDA_MATMUL_GEMV = 1, PNCUDA_MATMUL_BLAS = 2 };

typedef struct pncuda_matmul_plan {
  size_t struct_size;
  int32_t way; /* PNCUDA_MATMUL_GEMV, ... */
  int32_t reserved;
  int64_t switch_tokens;       /* where it changes: the caller's number, or the device's default */
  int64_t slice_rows;          /* rows decoded at a time, with workspace_size_best */
  size_t workspace_size_least; /* 16 rows at a time; 0 for GEMV */
  size_t workspace_size_best;  /* a slice of a third of the L2 cache, or all rows if they are fewer */
} pncuda_matmul_plan;

/* Checks the arguments but for x, y, data and workspace, which may be null. */
PNCUDA_API pncuda_status pncuda_matmul_query(const pncuda_matmul_args* args, pncuda_matmul_plan* plan);

/* Uses what the workspace holds, at least workspace_size_least. An error of cuBLAS is PNCUDA_BLAS_ERROR + its own.
 * The handle's stream and pointer mode are those of before afterwards; a handle whose stream is `stream` already keeps
 * its workspace. */
PNCUDA_API pncuda_status pncuda_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle, pncuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* PNCUDA_BLAS_H */
