/* libpncuda: what BF16_P12 weights (p12/FORMAT.md) have beyond pncuda.h: packing on the device, several matrices in one
 * launch with bias, residual and SiLU, mixtures of experts, low-rank add-ons. C99. The contract of pncuda.h holds.
 *
 * Everything here takes PNCUDA_BF16_P12 and PNCUDA_BF16_PLAIN weights alike, and gives the same bits for both.
 */
#ifndef PNCUDA_P12_H
#define PNCUDA_P12_H

#include <pncuda/pncuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Packing ---- */

/* Rows of bf16 bit patterns to canonical blocks, the bytes of p12::pack_row. `plain` is PNCUDA_BF16_PLAIN; `out` and
 * out_row_stride are multiples of 8. *first_bad, an int64_t in device memory, becomes the number of the first block
 * that needs more than three listed weights (row * blocks of a row + block), or -1 when all fit. What does not fit is
 * not written: then the matrix stays BF16. (Unpacking is pncuda_decode to PNCUDA_BF16.) */
PNCUDA_API pncuda_status pncuda_p12_pack(const pncuda_weights* plain, void* out, int64_t out_row_stride,
                                         int64_t* first_bad, pncuda_stream stream);

/* ---- Several matrices, what becomes of their results, experts ---- */

enum { PNCUDA_MAX_MATRICES = 3 };

/* One matrix W[n][k] of a call. Bias and residual are added in fp32, in this order, before y is rounded to its type.
 * y may be the residual itself (same address, type and stride). */
typedef struct pncuda_fused_matrix {
  size_t struct_size;            /* sizeof this struct */
  const pncuda_weights* weights; /* of expert 0, if there are experts */
  int64_t expert_stride;         /* bytes from expert to expert, aligned as a row is; 0 without experts */
  void* y;                       /* [tokens][n]; with experts [tokens][slots][n] */
  int64_t y_stride;              /* bytes from token to token; with experts from slot to slot */
  int32_t y_type;                /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t bias_type;             /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  const void* bias;              /* [n], with experts [experts][n], or null */
  const void* residual;          /* as y, or null */
  int64_t residual_stride;       /* as y_stride */
  int32_t residual_type;         /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t reserved;              /* 0 */
} pncuda_fused_matrix;

enum {
  PNCUDA_NO_ACTIVATION = 0,
  /* Two matrices of as many rows, gate and up: y = silu(W[0] x + bias[0]) * (W[1] x + bias[1]) + residual, where
   * silu(g) = g / (1 + exp(-g)). y and residual are those of matrices[0]; matrices[1] has none. */
  PNCUDA_SILU_MUL = 1
};

/* One to three matrices with the same type of weights and the same k multiply the same x in one launch (q, k and v;
 * gate and up), or in one for each set of tokens that pncuda_gemv_query names. Results have the bits of pncuda_gemv
 * with the same mode.
 *
 * Experts: expert_ids[token][slot] in device memory names the expert that multiplies, so that there are tokens * slots
 * results. x has a row for each token, or with x_per_slot one for each slot. An expert's weights are read once for up
 * to four results of different tokens. A number that is negative or not below `experts` (an expert of
 * another device) makes the result zero: bias and residual are not added. Experts are multiplied in the order of
 * PNCUDA_PORTABLE, in any mode. */
typedef struct pncuda_fused_args {
  size_t struct_size;                  /* sizeof this struct */
  const pncuda_fused_matrix* matrices; /* [count] */
  int32_t count;                       /* 1 .. PNCUDA_MAX_MATRICES */
  int32_t activation;                  /* PNCUDA_NO_ACTIVATION, PNCUDA_SILU_MUL */
  const void* x;                       /* [tokens][k], or [tokens][slots][k] */
  int64_t x_stride;                    /* bytes from row to row */
  int32_t x_type;                      /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t mode;                        /* PNCUDA_ACCURATE, PNCUDA_FAST_HALF2 (the same here), PNCUDA_PORTABLE */
  int64_t tokens; /* 0 .. PNCUDA_P12_MAX_TOKENS; with experts tokens * slots is at most PNCUDA_MAX_EXPERT_RESULTS */
  const int32_t* expert_ids; /* [tokens][slots] in device memory, or null */
  int64_t experts;           /* number of them; 0 without */
  int64_t slots;             /* experts of each token; 0 without */
  int32_t x_per_slot;        /* 0, 1 */
  int32_t reserved;          /* 0 */
} pncuda_fused_args;

enum { PNCUDA_MAX_EXPERT_RESULTS = 1024 };

/* Launches it on `stream`. */
PNCUDA_API pncuda_status pncuda_fused(const pncuda_fused_args* args, pncuda_stream stream);

/* ---- Low-rank add-ons (LoRA) beside weights of any type, whose bytes they do not touch ---- */

enum { PNCUDA_MAX_RANK = 256 };

/* y[m][n] = base[m][n] + scales[m] * (sum over r of b[n][r] * (sum over k of a[r][k] * x[m][k])) for the tokens whose
 * scale is not 0. The rows of other tokens are not read and not written when base is y; else they become base. Sums are
 * in fp32, in an order that only k and rank decide; the last addition, too, then one rounding to y_type. To have y
 * rounded once only, make this the residual of pncuda_fused, in fp32: base null. */
typedef struct pncuda_low_rank_args {
  size_t struct_size;    /* sizeof this struct */
  const void* a;         /* [rank][k], aligned to its elements, rows a_stride bytes apart */
  const void* b;         /* [n][rank], rows b_stride bytes apart */
  int64_t a_stride;      /* bytes */
  int64_t b_stride;      /* bytes */
  int32_t factor_type;   /* of a and b: PNCUDA_BF16, PNCUDA_F32, PNCUDA_F16 */
  int32_t rank;          /* 1 .. PNCUDA_MAX_RANK */
  int64_t k;             /* activations of a token */
  int64_t n;             /* results of a token */
  const void* x;         /* [tokens][k] */
  int64_t x_stride;      /* bytes from token to token */
  int32_t x_type;        /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t y_type;        /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  void* y;               /* [tokens][n] */
  int64_t y_stride;      /* bytes from token to token */
  const void* base;      /* [tokens][n] of y_type, y itself, or null: zeros */
  int64_t base_stride;   /* bytes from token to token */
  int64_t tokens;        /* any number up to 65535 */
  const float* scales;   /* [tokens] in device memory */
  void* workspace;       /* tokens * rank floats in device memory, aligned to 4 */
  size_t workspace_size; /* bytes */
} pncuda_low_rank_args;

/* Bytes of workspace: tokens * rank * 4; 0 for numbers that are out of range. */
PNCUDA_API size_t pncuda_low_rank_workspace(int64_t tokens, int32_t rank);
/* Launches it on `stream`. */
PNCUDA_API pncuda_status pncuda_low_rank(const pncuda_low_rank_args* args, pncuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* PNCUDA_P12_H */
