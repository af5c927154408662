/* libpncuda_blas: multiplying many tokens with PN, BF16_P12 and plain BF16 weights through cuBLAS. C99. A library of
 * its own (CMake target pn::cuda_blas), so that libpncuda needs no cuBLAS. The contract of pncuda.h holds, but that
 * cuBLAS itself may do what it does inside a call (give the handle a workspace, cublasSetWorkspace, where it must not
 * allocate), and that what says so allocates or synchronises.
 *
 * Few tokens are multiplied as pncuda_gemv does, up to 8 at a time (BF16_P12 and plain BF16: 32). From `switch_tokens`
 * on, slices of rows are unpacked into the caller's workspace, small enough to stay in the L2 cache, and multiplied by
 * cuBLAS with fp32 sums; with a second stream the next slice is unpacked meanwhile. Where that begins to pay, and with
 * slices of how many rows, pncuda_matmul_tune measures.
 */
#ifndef PNCUDA_BLAS_H
#define PNCUDA_BLAS_H

#include <pncuda/pncuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cublasHandle_t of the current device. */
typedef struct cublasContext* pncuda_blas_handle;
/* A cudaEvent_t. */
typedef struct CUevent_st* pncuda_event;

/* ---- Unpacking beside multiplying ---- */

/* A second stream for unpacking, and what orders it and the caller's. Made once, outside of launches, by the caller (a
 * stream that is not the caller's, made with cudaStreamNonBlocking; events with cudaEventDisableTiming) or by
 * pncuda_overlap_create. All of them belong to the current device.
 *
 * A call waits on the second stream for what the caller's stream has been given before, and the caller's stream ends
 * after all that the call does, also when the call returns an error. So it is captured as one launch is: the second
 * stream joins the capture and leaves it within the call. The events keep nothing from call to call. Calls that share
 * a pncuda_overlap come from one host thread at a time; while a stream captures, those of other streams do not use it.
 */
typedef struct pncuda_overlap {
  size_t struct_size;     /* sizeof this struct */
  pncuda_stream side;     /* where unpacking runs */
  pncuda_event events[4]; /* of the same device */
} pncuda_overlap;

/* Fills all but struct_size: a stream of the highest priority, so that unpacking starts wherever a multiply leaves
 * room, and four events. Allocates; not while a stream captures. On an error nothing is left behind. */
PNCUDA_API pncuda_status pncuda_overlap_create(pncuda_overlap* overlap);
/* Gives them back and makes them null; null ones are left out. Work that uses them may still run. */
PNCUDA_API pncuda_status pncuda_overlap_destroy(pncuda_overlap* overlap);

/* ---- Multiplying: y[m][n] = sum over k of x[m][k] * w[n][k] for any number of tokens ----
 *
 * What cuBLAS multiplies, always with fp32 sums (`blas_type` of the plan):
 *   pn3t, pn4t            weights, and rotated activations, are rounded to it: fp16 for fp16 x; bf16 for bf16 x (sm_80
 *                         and later); fp32, without rounding, for fp32 x and for bf16 x on older devices. (d * (n - z)
 *                         has up to 14 significant bits, fp16 keeps 11, bf16 8.)
 *   BF16_P12, plain BF16  nothing is rounded: bf16 for bf16 x (sm_80 and later), else fp32, which holds bf16 weights
 *                         and x of any type. fp32 products cost a multiple of bf16 ones: who can round x to bf16 does
 *                         so first (pncuda_hadamard with block 0).
 * fp32 is multiplied as fp32, not as TF32, whatever the handle says. The GEMV and cuBLAS add in different orders, so a
 * token's last digits depend on which way it took; those of cuBLAS on its version, on the number of tokens and on the
 * rows of a slice, too, which are `slice_rows` or what the workspace holds, whatever `overlap` is.
 *
 * Plain BF16 that cuBLAS multiplies as bf16 is not copied: one call over all rows, no slices.
 *
 * Proof: with `proof` BF16_P12 weights are unpacked to bf16 as a whole, in front of the workspace, and what follows is
 * pncuda_matmul of the unpacked matrix (PNCUDA_BF16_PLAIN, rows 2 * k bytes apart, at a multiple of 256) with the rest
 * of the workspace: the same way, the same calls of cuBLAS, the same bits, for any number of tokens. (Where plain BF16
 * has slices both calls must have room for the best, or the same room; cuBLAS must not be allowed atomics.) Slow, and
 * it needs the memory that packing saves: to compare a packed with an unpacked model. Without it the two agree bit for
 * bit below switch_tokens. */
typedef struct pncuda_matmul_args {
  size_t struct_size;            /* sizeof this struct */
  const pncuda_weights* weights; /* W[n][k] */
  const void* x;                 /* [tokens][k]; for cuBLAS best aligned to 16 */
  int64_t x_stride;              /* bytes from token to token */
  int32_t x_type;                /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t y_type;                /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  void* y;                       /* [tokens][n] */
  int64_t y_stride;              /* bytes from token to token */
  int64_t tokens;                /* any number up to 2^31 - 1 */
  int32_t mode;           /* of the GEMV: PNCUDA_ACCURATE, ... (PNCUDA_PORTABLE promises nothing of what cuBLAS adds) */
  int32_t hadamard_block; /* as of the GEMV */
  int32_t proof;          /* 0, or 1 for BF16_P12; plain BF16 ignores it; PNCUDA_UNSUPPORTED for pn3t and pn4t */
  int32_t reserved;       /* 0 */
  int64_t switch_tokens;  /* this many tokens and more go through cuBLAS; 0: what pncuda_matmul_query says */
  int64_t slice_rows;     /* rows unpacked and multiplied at a time: a multiple of 16, or as many as W has or more: all,
                             by one call of cuBLAS; 0: what pncuda_matmul_query says. Plain BF16 that is not copied
                             ignores it */
  const pncuda_overlap* overlap; /* or null: slices one after another */
  void* workspace;               /* device memory, a multiple of 256; null if none is needed */
  size_t workspace_size;         /* bytes */
} pncuda_matmul_args;

enum { PNCUDA_MATMUL_NONE = 0, PNCUDA_MATMUL_GEMV = 1, PNCUDA_MATMUL_BLAS = 2 };

/* How pncuda_matmul would run on the current device. */
typedef struct pncuda_matmul_plan {
  size_t struct_size;          /* sizeof this struct */
  int32_t way;                 /* PNCUDA_MATMUL_GEMV, ... */
  int32_t blas_type;           /* through cuBLAS: PNCUDA_BF16, ..., what it multiplies */
  int64_t switch_tokens;       /* where it changes: the caller's number, or the device's default */
  int64_t slice_rows;          /* rows multiplied at a time, with workspace_size_best: the caller's number, or those of
                                  a quarter of the L2 cache; at most all rows */
  size_t workspace_size_least; /* slices of 16 rows, no overlap; 0 for GEMV. With `proof` the unpacked matrix on top */
  size_t workspace_size_best;  /* slices of slice_rows, with `overlap` two unless one is all. With less than two they
                                  are unpacked one after another, with less than one they have fewer rows */
} pncuda_matmul_plan;

/* Checks the arguments but for x, y, data and workspace, which may be null. */
PNCUDA_API pncuda_status pncuda_matmul_query(const pncuda_matmul_args* args, pncuda_matmul_plan* plan);

/* Uses what the workspace holds, at least workspace_size_least. An error of cuBLAS is PNCUDA_BLAS_ERROR + its own.
 * The handle's stream and modes are those of before afterwards; a handle whose stream is `stream` already keeps its
 * workspace. */
PNCUDA_API pncuda_status pncuda_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle, pncuda_stream stream);

/* ---- Where it pays: measured once for each device, kept as text ---- */

/* What is best for matrices of these types and this shape. */
typedef struct pncuda_tuning_entry {
  int32_t type;          /* of the weights */
  int32_t x_type;        /* of the activations */
  int64_t n;             /* rows */
  int64_t k;             /* weights in a row */
  int64_t switch_tokens; /* INT64_MAX: cuBLAS was never faster */
  int64_t slice_rows;    /* 0: the default of pncuda_matmul */
} pncuda_tuning_entry;

/* A table in the caller's memory; no two entries have the same types and shape. */
typedef struct pncuda_tuning {
  size_t struct_size;           /* sizeof this struct */
  pncuda_tuning_entry* entries; /* [room] */
  size_t room;                  /* entries that there is memory for */
  size_t count;                 /* entries that there are */
  int32_t version;              /* pncuda_version() */
  int32_t major;                /* compute capability */
  int32_t minor;                /* its second number */
  int32_t reserved;             /* 0 */
  char device[256];             /* its name */
} pncuda_tuning;

/* An empty table for the current device: fills the struct but for struct_size. */
PNCUDA_API pncuda_status pncuda_tuning_init(pncuda_tuning* tuning, pncuda_tuning_entry* entries, size_t room);

/* What to give pncuda_matmul for these types and this shape. Both become 0, its defaults, when they are not in the
 * table, and on an error. */
PNCUDA_API pncuda_status pncuda_tuning_find(const pncuda_tuning* tuning, int32_t type, int32_t x_type, int64_t n,
                                            int64_t k, int64_t* switch_tokens, int64_t* slice_rows);

/* Multiplies as `args` says, through cuBLAS with slices of several sizes, then with both ways, and puts into the table,
 * in place of an entry for these types and this shape, if there is one:
 *   slice_rows     of the default, twice and four times as many and all rows, as far as the workspace has room
 *                  (workspace_size_best) for more than the default, the one that took the least time for the two
 *                  largest token counts together. Other than 0 in args it is used as it is.
 *   switch_tokens  with those slices the first of the token counts from which on cuBLAS was not slower.
 *
 * args->tokens is the largest number of tokens there is room for in x, y and the workspace; switch_tokens is ignored,
 * `overlap` and mode are used as they are, `proof` is PNCUDA_UNSUPPORTED. token_counts: `count` rising numbers from 1
 * to args->tokens. Null: the first counts that need one more pass of a GEMV, as far as there is room: 33, 65, 97, 129,
 * 161, 193, 225 and 257 where it takes more than 16 tokens at a time (BF16 weights and bf16 x on tensor cores),
 * elsewhere 17 and 49, too. (A count between two of the list goes the way of the one before. Slices matter up to some
 * thousand tokens: a list of one's own may go on.)
 *
 * Not a launch: synchronises `stream`, allocates four times the L2 cache while it runs (memory that is written between
 * runs, so that weights come from where they come from in a model), makes and destroys events; not while a stream
 * captures. y is overwritten. Every time is the median of five; what else the device does meanwhile disturbs. Launches
 * are timed one by one, so small matrices in a graph may switch earlier than it says. */
PNCUDA_API pncuda_status pncuda_matmul_tune(const pncuda_matmul_args* args, const int64_t* token_counts, size_t count,
                                            pncuda_blas_handle handle, pncuda_stream stream, pncuda_tuning* tuning);

/* The table as lines of ASCII, without a 0 at the end. *size: in, the bytes at `text`; out, those that the text takes.
 * With text null only that; PNCUDA_WORKSPACE_TOO_SMALL, and nothing written, when it does not fit. */
PNCUDA_API pncuda_status pncuda_tuning_to_text(const pncuda_tuning* tuning, char* text, size_t* size);

/* Replaces the entries by those of a text of the same device and version as the table's (pncuda_tuning_init); reads
 * `size` bytes, no more. PNCUDA_FOREIGN_TUNING for a text of others, PNCUDA_BAD_TUNING for anything that is not a whole
 * text, PNCUDA_WORKSPACE_TOO_SMALL when there is no room; the table is empty then. Any bytes are safe. */
PNCUDA_API pncuda_status pncuda_tuning_from_text(const char* text, size_t size, pncuda_tuning* tuning);

#ifdef __cplusplus
}
#endif

#endif /* PNCUDA_BLAS_H */
