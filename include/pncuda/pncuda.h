/* libpncuda: kernels for PN (pn3t, pn4t) and BF16_P12 weights on NVIDIA GPUs, from the Tesla P100 (sm_60) on. C99.
 *
 * Contract of every function here
 *   device     the current one. `pncuda_prepare` is called once per device before anything is launched on it; after
 *              that every launch can be captured into a CUDA graph, the first one included.
 *   stream     last argument of what launches; 0 is the legacy default stream. Launches are asynchronous: device memory
 *              must stay valid until the stream has passed them; structs may go as soon as the function returns.
 *   launches   do not allocate, synchronise, print or read the environment, and keep no state between calls. They are
 *              safe from any number of host threads.
 *   pointers   `data`, `x`, `y`, `ids` and `out` are device memory. Results must not overlap what is read. Nothing is
 *              read outside the rows given, and nothing is written outside the results.
 *   strides    the distance in BYTES between the beginnings of two rows (or tokens): a range of rows or columns of a
 *              larger matrix is a view.
 *   sizes      64-bit; 0 rows, tokens, columns or ids are PNCUDA_OK and launch nothing, k = 0 makes results 0.
 *   structs    begin with their own size in bytes: struct_size = sizeof(the struct).
 *   hostile    any bytes are safe as blocks: what pn/validate.hpp refuses gives NaN or ordinary numbers, never a fault.
 *   returns    PNCUDA_OK, or a status with nothing launched (a status of CUDA's own: see PNCUDA_CUDA_ERROR).
 *
 * Blocks and block types: pn/FORMAT.md, p12/FORMAT.md. Kernels of one's own: decode_pn.cuh, decode_p12.cuh. BF16_P12
 * with several matrices at once, experts and add-ons, and packing: pncuda_p12.h. Many tokens: pncuda_blas.h.
 */
#ifndef PNCUDA_H
#define PNCUDA_H

#include <stddef.h>
#include <stdint.h>

/* What a shared libpncuda shows; a static one shows nothing. */
#if defined(__GNUC__) && defined(PNCUDA_BUILD)
#define PNCUDA_API __attribute__((visibility("default")))
#elif defined(_WIN32) && defined(PNCUDA_SHARED)
#if defined(PNCUDA_BUILD)
#define PNCUDA_API __declspec(dllexport)
#else
#define PNCUDA_API __declspec(dllimport)
#endif
#else
#define PNCUDA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t; named here so that this header needs nothing of CUDA. */
typedef struct CUstream_st* pncuda_stream;

/* ---- Status ---- */

/* Numbers are stable. */
typedef enum pncuda_status {
  PNCUDA_OK = 0,
  PNCUDA_NULL_POINTER = 1,    /* a pointer that is needed is null */
  PNCUDA_STRUCT_SIZE = 2,     /* struct_size is not that of this version of the library */
  PNCUDA_BAD_ENUM = 3,        /* a type, layout or mode is none of those declared */
  PNCUDA_NEGATIVE_SIZE = 4,   /* a number of rows, tokens, columns or ids is negative */
  PNCUDA_BAD_LENGTH = 5,      /* k is not a multiple of the block */
  PNCUDA_TOO_MANY_TOKENS = 6, /* more tokens than the function takes */
  PNCUDA_MISALIGNED = 7,      /* a pointer or a stride is not aligned as its function asks */
  PNCUDA_BAD_STRIDE = 8,      /* a stride is smaller than a row, or negative, or a repacked matrix has one */
  PNCUDA_OUT_OF_RANGE = 9,    /* a range of rows or columns leaves the matrix, or does not begin or end where it may */
  PNCUDA_BAD_HADAMARD_BLOCK = 10, /* not 64, 128, 256, 512 or 1024, or it does not divide k */
  PNCUDA_TOO_LARGE = 11,          /* a size in bytes does not fit 63 bits, or the grid does not fit a launch */
  PNCUDA_WORKSPACE_TOO_SMALL = 12,
  PNCUDA_NOT_PREPARED = 13,       /* pncuda_prepare was not called for the current device */
  PNCUDA_UNSUPPORTED_DEVICE = 14, /* older than sm_60, or none of the kernels in this build runs on it */
  PNCUDA_UNSUPPORTED = 15,        /* this combination of layout, types and device has no kernel */
  PNCUDA_SHAPE_MISMATCH = 16,     /* pncuda_p12.h: matrices of one call do not go together */
  PNCUDA_BAD_TUNING = 17,         /* pncuda_blas.h: not what pncuda_tuning_to_text writes, or not whole */
  PNCUDA_FOREIGN_TUNING = 18,     /* pncuda_blas.h: of another device or version of the library: measure again */
  PNCUDA_CUDA_ERROR = 1000,       /* status - 1000 is the cudaError_t of the call of CUDA's that failed */
  PNCUDA_BLAS_ERROR = 2000        /* pncuda_blas.h: status - 2000 is the cublasStatus_t */
} pncuda_status;

/* One sentence in English without a final stop; never null. For CUDA's own errors CUDA's text. */
PNCUDA_API const char* pncuda_status_text(pncuda_status status);

/* Version of the library: 10000 * major + 100 * minor + patch. */
PNCUDA_API int pncuda_version(void);

/* Finds out what the device can do and loads the kernels. Returns PNCUDA_UNSUPPORTED_DEVICE or CUDA's error. May be
 * called again, and from several threads; the current device of the thread is given back. Not while a stream captures.
 */
PNCUDA_API pncuda_status pncuda_prepare(int device);

/* ---- Weights ---- */

/* Types of weights: the type ids of GGUF files. Plain BF16 is here as the twin of BF16_P12: rows of k bf16 numbers, k a
 * multiple of 256, that are multiplied in the same order, so that results have the same bits. */
enum { PNCUDA_PN3T = 124, PNCUDA_PN4T = 125, PNCUDA_BF16_P12 = 126, PNCUDA_BF16_PLAIN = 30 };

/* Types of activations and results. */
enum { PNCUDA_F32 = 0, PNCUDA_F16 = 1, PNCUDA_BF16 = 2 };

enum {
  /* Rows of blocks as they lie in files; row_stride is at least the bytes of a row.
   *   pn3t, pn4t   34 bytes for 80 or 64 weights; `data` and row_stride are multiples of 2
   *   BF16_P12     392 bytes for 256 weights; multiples of 8
   *   plain BF16   512 bytes for 256 weights; multiples of 16 */
  PNCUDA_NATIVE = 0,
  /* What pncuda_repack makes of pn3t and pn4t: the same bytes in another order, for wide loads. A run-time layout,
   * never to be written to a file: it may change with the version of the library. `data` is a multiple of 16;
   * row_stride is 0. */
  PNCUDA_REPACKED = 1
};

/* Rows of a repacked matrix that lie together: a range of rows that begins at a multiple of it is a view. */
enum { PNCUDA_TILE_ROWS = 16 };

/* A matrix W[rows][k] in device memory. */
typedef struct pncuda_weights {
  size_t struct_size; /* sizeof this struct */
  int32_t type;       /* PNCUDA_PN3T, ... */
  int32_t layout;     /* PNCUDA_NATIVE, PNCUDA_REPACKED */
  const void* data;   /* of the first row; `layout` says how it is aligned */
  int64_t rows;       /* n */
  int64_t k;          /* weights in a row: a multiple of 80 (pn3t), 64 (pn4t), 256 (BF16_P12 and plain BF16) */
  int64_t row_stride; /* bytes from row to row; 0 when repacked */
} pncuda_weights;

/* Bytes of the blocks alone, without gaps between rows: what a repacked matrix takes. 0 when `weights` is not valid. */
PNCUDA_API size_t pncuda_weights_size(const pncuda_weights* weights);

/* Native blocks of pn3t or pn4t to the repacked layout at `out`: a multiple of 16, pncuda_weights_size bytes. */
PNCUDA_API pncuda_status pncuda_repack(const pncuda_weights* native, void* out, pncuda_stream stream);

/* And back, byte for byte: rows of native blocks at `out`, which and whose stride are multiples of 2. */
PNCUDA_API pncuda_status pncuda_unrepack(const pncuda_weights* repacked, void* out, int64_t out_row_stride,
                                         pncuda_stream stream);

/* Views for tensor parallelism; nothing is launched. Rows first .. first + rows - 1 of either layout; of a repacked
 * matrix `first` is a multiple of PNCUDA_TILE_ROWS, and so is `rows` unless the range ends with the matrix. */
PNCUDA_API pncuda_status pncuda_row_shard(const pncuda_weights* weights, int64_t first, int64_t rows,
                                          pncuda_weights* shard);
/* Columns first .. first + columns - 1 of native weights, both multiples of the block. (Repack each shard by itself.)
 */
PNCUDA_API pncuda_status pncuda_column_shard(const pncuda_weights* native, int64_t first, int64_t columns,
                                             pncuda_weights* shard);

/* ---- Multiplying: y[m][n] = sum over k of x[m][k] * w[n][k], m < tokens <= 8 (BF16_P12 and plain BF16: 32) ----
 *
 * Every token's result has the same bits whatever the number of tokens in the call, whatever their places in it, for
 * native and for repacked weights, and in every run; in a given mode, type of x and path. Sums are in fp32 (fast_half2:
 * up to ten products of two weights in fp16 first) in an order that only k decides.
 *
 * Errors, before y is rounded to its type, where z = 4 (pn3t) or 8 (pn4t), so that |w| <= |d| * z, and
 *   S = sum over k of |d| * z * |x[m][k]|
 *   T = sum over k of |d| * z * (the largest |x| of the 16 blocks that k lies in: blocks 16 i .. 16 i + 15 of the row)
 *   accurate, PNCUDA_PATH_FFMA     |y - exact| <= 4e-6 * S;              measured below 4e-7 * S
 *   accurate, PNCUDA_PATH_TENSOR   |y - exact| <= 4e-6 * S + 2^-31 * T;  measured below 4e-7 * S for x of one magnitude
 *   fast_half2, PNCUDA_PATH_HFMA2  |y - exact| <= 8e-3 * S + 2^-15 * T;  measured below 3e-3 * S, 5e-4 * S for K = 5120
 * T is there because the latter two keep x in fp16 (fp32 x in two parts on tensor cores) below the largest of its
 * blocks. To all of them add k * 2^-120, which matters only where x * d is below 1e-30. The sums of tensor cores are
 * measured as an emulation adds them; bench/gpu.sh measures a device. NaN and infinities among the activations make the
 * whole result of their token NaN; pn3t and pn4t with a NaN or infinite scale make that row's results NaN or infinite.
 *
 * BF16_P12 and plain BF16: exact products of bf16 weights and x, whatever its type, in fp32 sums; results of packed
 * and of unpacked weights have the same bits, on either path. With S = sum over k of |x[m][k] * w[n][k]|
 *   PNCUDA_PATH_FFMA     |y - exact| <= (k / 256 + 14) * 2^-24 * S
 *   PNCUDA_PATH_TENSOR   |y - exact| <= (k / 512 + 16) * 2^-22 * S
 * To both add k * 2^-149, which matters only where products are below 1e-37. On the tensor path fp16 x enters in two
 * bf16 parts and fp32 x in three, exactly from 2^-110 on (below it what lies under 2^-133 is lost); then an infinite
 * weight gives NaN. Otherwise NaN and infinities give what IEEE sums give.
 */

enum {
  PNCUDA_ACCURATE = 0,   /* fp32 sums, on the fastest path */
  PNCUDA_FAST_HALF2 = 1, /* pn3t, pn4t: fp16 products and short fp16 sums where the device adds fp16 at twice the rate
                            and has no tensor cores for this (sm_60 to sm_75); elsewhere the same as accurate */
  PNCUDA_PORTABLE = 2    /* BF16_P12, plain BF16: PNCUDA_PATH_FFMA on every device: the same bits on all of them. Best
                            for up to 4 tokens. For pn3t and pn4t PNCUDA_UNSUPPORTED */
};

/* Tokens of a call, for pn3t and pn4t, and for BF16_P12 and plain BF16. */
enum { PNCUDA_MAX_TOKENS = 8, PNCUDA_P12_MAX_TOKENS = 32 };

/* y = x W^T for a few tokens. */
typedef struct pncuda_gemv_args {
  size_t struct_size;            /* sizeof this struct */
  const pncuda_weights* weights; /* W[n][k] */
  const void* x;                 /* [tokens][k], aligned to its elements */
  int64_t x_stride;              /* bytes from token to token; a multiple of the element */
  int32_t x_type;                /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t y_type;                /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  void* y;                       /* [tokens][n] */
  int64_t y_stride;              /* bytes from token to token */
  int64_t tokens;                /* 0 .. PNCUDA_MAX_TOKENS, PNCUDA_P12_MAX_TOKENS */
  int32_t mode;                  /* PNCUDA_ACCURATE, ... */
  int32_t hadamard_block; /* 0, or for pn3t and pn4t rotate x in segments of 64 .. 1024 while it is loaded (k a multiple
                             of it): the numbers of pn::hadamard_activations */
} pncuda_gemv_args;

/* Launches it on `stream`; 0 tokens or rows are fine. */
PNCUDA_API pncuda_status pncuda_gemv(const pncuda_gemv_args* args, pncuda_stream stream);

enum {
  PNCUDA_PATH_NONE = 0,  /* nothing to launch */
  PNCUDA_PATH_FFMA = 1,  /* fp32 multiply-adds */
  PNCUDA_PATH_HFMA2 = 2, /* fast_half2 */
  PNCUDA_PATH_TENSOR = 3 /* tensor cores (sm_80 and later), fp32 sums. pn3t, pn4t: fp16 products, fp32 x in two parts.
                            BF16_P12, plain BF16: bf16 products, fp16 x in two parts, fp32 x in three */
};

/* How pncuda_gemv would run on the current device. */
typedef struct pncuda_gemv_plan {
  size_t struct_size;        /* sizeof this struct */
  int32_t path;              /* PNCUDA_PATH_FFMA, ... */
  int32_t launches;          /* kernels */
  int32_t tokens_per_launch; /* weights are read once for each */
  int32_t shared_bytes;      /* of shared memory for a block of threads */
} pncuda_gemv_plan;

/* Checks the arguments as pncuda_gemv does (x, y and data may be null here) and fills the plan; launches nothing. */
PNCUDA_API pncuda_status pncuda_gemv_query(const pncuda_gemv_args* args, pncuda_gemv_plan* plan);

/* ---- Decoding ---- */

/* A tile of either layout: rows first_row .. + rows - 1, columns first_column .. + columns - 1, which need not begin or
 * end at a block. To f32 exact, to f16 and bf16 rounded once to nearest even: the numbers of pn::decode_row. BF16_P12
 * and plain BF16 to bf16 and f32 keep every bit, NaN payloads included: the patterns of p12::unpack_row. */
typedef struct pncuda_decode_args {
  size_t struct_size;            /* sizeof this struct */
  const pncuda_weights* weights; /* of any type and layout */
  int64_t first_row;             /* of the tile */
  int64_t rows;                  /* of the tile */
  int64_t first_column;          /* of the tile */
  int64_t columns;               /* of the tile */
  void* out;                     /* aligned to its elements */
  int64_t out_stride;            /* bytes from row to row */
  int32_t out_type;              /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t reserved;              /* 0 */
} pncuda_decode_args;

/* Launches it on `stream`. */
PNCUDA_API pncuda_status pncuda_decode(const pncuda_decode_args* args, pncuda_stream stream);

/* Embedding look-up: row ids[i] becomes row i of `out`. An id that is negative or not below weights->rows gives a row
 * of NaN (the launch cannot tell the caller). */
typedef struct pncuda_get_rows_args {
  size_t struct_size;            /* sizeof this struct */
  const pncuda_weights* weights; /* of any type and layout */
  const void* ids;               /* [count] in device memory */
  int64_t count;                 /* rows of `out` */
  int32_t id_bytes;              /* 4 or 8: int32_t or int64_t */
  int32_t out_type;              /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  void* out;                     /* [count][k], aligned to its elements */
  int64_t out_stride;            /* bytes from row to row */
} pncuda_get_rows_args;

/* Launches it on `stream`. */
PNCUDA_API pncuda_status pncuda_get_rows(const pncuda_get_rows_args* args, pncuda_stream stream);

/* ---- Hadamard rotation of activations, its own inverse ---- */

/* Segments of `block` (64, 128, 256, 512, 1024) of every token, in fp32: the numbers of pn::hadamard_activations, then
 * rounded once to out_type. Block 0 only converts. `out` may be `x` when types and strides are the same. */
typedef struct pncuda_hadamard_args {
  size_t struct_size; /* sizeof this struct */
  const void* x;      /* [tokens][k] */
  int64_t x_stride;   /* bytes from token to token */
  void* out;          /* [tokens][k] */
  int64_t out_stride; /* bytes from token to token */
  int32_t x_type;     /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int32_t out_type;   /* PNCUDA_F32, PNCUDA_F16, PNCUDA_BF16 */
  int64_t tokens;     /* any number */
  int64_t k;          /* a multiple of `block` */
  int32_t block;      /* 0, 64, 128, 256, 512, 1024 */
  int32_t reserved;   /* 0 */
} pncuda_hadamard_args;

/* Launches it on `stream`. */
PNCUDA_API pncuda_status pncuda_hadamard(const pncuda_hadamard_args* args, pncuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* PNCUDA_H */
