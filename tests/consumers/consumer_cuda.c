/* What a program in C sees of libpncuda, with a GPU or without: version, texts, sizes, and an error that is told. Ends
 * with 0, or with the number of the step that went wrong. */
#include <pncuda/pncuda.h>
#include <pncuda/pncuda_p12.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  static unsigned char blocks[2 * 34];
  pncuda_weights weights;
  pncuda_status status;
  if (pncuda_version() <= 0) return 1;
  if (strcmp(pncuda_status_text(PNCUDA_OK), "ok") != 0) return 2;
  memset(&weights, 0, sizeof weights);
  weights.struct_size = sizeof weights;
  weights.type = PNCUDA_PN4T;
  weights.layout = PNCUDA_NATIVE;
  weights.data = blocks;
  weights.rows = 1;
  weights.k = 128;
  weights.row_stride = sizeof blocks;
  if (pncuda_weights_size(&weights) != sizeof blocks) return 3;
  if (pncuda_gemv(NULL, NULL) != PNCUDA_NULL_POINTER) return 4;
  if (pncuda_low_rank_workspace(3, 8) != 3 * 8 * sizeof(float)) return 5;
  status = pncuda_prepare(0);
  printf("device 0: %s\n", pncuda_status_text(status));
  return pncuda_status_text(status)[0] == 0 ? 6 : 0;
}
