/* A program in C that includes the headers and links. On the layer device memory is the program's. */
#include <pncuda/pncuda.h>
#include <pncuda/pncuda_blas.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                           \
    }                                                                     \
  } while (0)

int main(void) {
  static union {
    unsigned char bytes[34];
    unsigned short halves[17];
  } block;
  static unsigned short x[64];
  static float y[1], decoded[64];
  pncuda_weights weights;
  pncuda_gemv_args gemv;
  pncuda_gemv_plan plan;
  pncuda_decode_args decode;
  pncuda_matmul_args matmul;
  int i;

  CHECK(pncuda_version() > 0);
  CHECK(strcmp(pncuda_status_text(PNCUDA_OK), "ok") == 0);
  CHECK(pncuda_gemv(NULL, NULL) == PNCUDA_NULL_POINTER);
  CHECK(pncuda_prepare(0) == PNCUDA_OK);

  /* d = 2, all codes 9: every weight is 2. */
  memset(block.bytes, 0x99, sizeof block.bytes);
  block.halves[0] = 0x4000u;
  for (i = 0; i < 64; ++i) x[i] = 0x3C00u;
  memset(&weights, 0, sizeof weights);
  weights.struct_size = sizeof weights;
  weights.type = PNCUDA_PN4T;
  weights.layout = PNCUDA_NATIVE;
  weights.data = block.bytes;
  weights.rows = 1;
  weights.k = 64;
  weights.row_stride = 34;
  CHECK(pncuda_weights_size(&weights) == 34);

  memset(&decode, 0, sizeof decode);
  decode.struct_size = sizeof decode;
  decode.weights = &weights;
  decode.rows = 1;
  decode.columns = 64;
  decode.out = decoded;
  decode.out_stride = sizeof decoded;
  decode.out_type = PNCUDA_F32;
  CHECK(pncuda_decode(&decode, NULL) == PNCUDA_OK);
  for (i = 0; i < 64; ++i) CHECK(decoded[i] == 2.0f);

  memset(&gemv, 0, sizeof gemv);
  gemv.struct_size = sizeof gemv;
  gemv.weights = &weights;
  gemv.x = x;
  gemv.x_stride = sizeof x;
  gemv.x_type = PNCUDA_F16;
  gemv.y = y;
  gemv.y_type = PNCUDA_F32;
  gemv.y_stride = sizeof y;
  gemv.tokens = 1;
  memset(&plan, 0, sizeof plan);
  plan.struct_size = sizeof plan;
  CHECK(pncuda_gemv_query(&gemv, &plan) == PNCUDA_OK);
  CHECK(plan.path == PNCUDA_PATH_TENSOR);
  CHECK(pncuda_gemv(&gemv, NULL) == PNCUDA_OK);
  CHECK(y[0] == 128.0f);

  memset(&matmul, 0, sizeof matmul);
  CHECK(pncuda_matmul(&matmul, NULL, NULL) == PNCUDA_STRUCT_SIZE);
  return 0;
}
