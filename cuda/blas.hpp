// libpncuda_blas: what blas.cu and tuning.cu share. No part of libpncuda includes it.
#ifndef PNCUDA_BLAS_HPP
#define PNCUDA_BLAS_HPP

#include <cuda_runtime.h>
#include <pncuda/pncuda_blas.h>

#include <cstdint>

#define PNCUDA_CHECK(call)                                                                         \
  do {                                                                                             \
    if (const pncuda_status check_status = (call); check_status != PNCUDA_OK) return check_status; \
  } while (false)

namespace pncuda_blas {

// A status from a call of CUDA's, which it has told then.
inline pncuda_status status_of(cudaError_t error) {
  if (error == cudaSuccess) return PNCUDA_OK;
  cudaGetLastError();
  return static_cast<pncuda_status>(PNCUDA_CUDA_ERROR + static_cast<int>(error));
}

// The tokens that a GEMV takes.
inline std::int64_t gemv_tokens(int type) {
  return type == PNCUDA_BF16_P12 || type == PNCUDA_BF16_PLAIN ? PNCUDA_P12_MAX_TOKENS : PNCUDA_MAX_TOKENS;
}

// Whether slice_rows (not negative) may be asked for: 0, the default; all rows; or slices that a view can begin with.
inline bool is_slice(std::int64_t slice_rows, std::int64_t rows) {
  return slice_rows >= rows || slice_rows % PNCUDA_TILE_ROWS == 0;
}

// blas.cu: the GEMV of some of the tokens; and all that pncuda_matmul looks at before it launches something.
pncuda_gemv_args gemv_args(const pncuda_matmul_args& args, std::int64_t first, std::int64_t tokens);
pncuda_status check_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle);

}  // namespace pncuda_blas

#endif  // PNCUDA_BLAS_HPP
