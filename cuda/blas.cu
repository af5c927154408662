// libpncuda_blas: pncuda_blas.h. Uses the C ABI of libpncuda only.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <pncuda/pncuda_blas.h>

#include <algorithm>
#include <cstdint>

namespace {

constexpr std::int64_t least_rows = PNCUDA_TILE_ROWS;
constexpr std::size_t alignment = 256;

#define PNCUDA_CHECK(call)                                                                         \
  do {                                                                                             \
    if (const pncuda_status check_status = (call); check_status != PNCUDA_OK) return check_status; \
  } while (false)

pncuda_status status_of(cudaError_t error) {
  if (error == cudaSuccess) return PNCUDA_OK;
  cudaGetLastError();
  return static_cast<pncuda_status>(PNCUDA_CUDA_ERROR + static_cast<int>(error));
}
pncuda_status status_of(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? PNCUDA_OK
                                         : static_cast<pncuda_status>(PNCUDA_BLAS_ERROR + static_cast<int>(status));
}

int bytes_of(int type) { return type == PNCUDA_F32 ? 4 : 2; }
cudaDataType_t blas_type(int type) {
  return type == PNCUDA_F32 ? CUDA_R_32F : type == PNCUDA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}
std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

pncuda_gemv_args gemv_args(const pncuda_matmul_args& a, std::int64_t first, std::int64_t tokens) {
  pncuda_gemv_args g = {};
  g.struct_size = sizeof(g);
  g.weights = a.weights;
  g.x = a.x == nullptr ? nullptr : static_cast<const unsigned char*>(a.x) + first * a.x_stride;
  g.x_stride = a.x_stride;
  g.x_type = a.x_type;
  g.y = a.y == nullptr ? nullptr : static_cast<unsigned char*>(a.y) + first * a.y_stride;
  g.y_stride = a.y_stride;
  g.y_type = a.y_type;
  g.tokens = tokens;
  g.mode = a.mode;
  g.hadamard_block = a.hadamard_block;
  return g;
}

// Everything about a multiply that its arguments and the device decide.
struct Matmul {
  int way = PNCUDA_MATMUL_NONE;
  std::int64_t switch_tokens = 0;
  int type = 0;               // what cuBLAS multiplies
  bool copy_x = false;        // converted or rotated first
  bool copy_y = false;        // cuBLAS cannot write this type of y: fp32 first
  std::size_t x_bytes = 0;    // of the copy
  std::size_t row_bytes = 0;  // of a decoded row, and of its results if they are copied
  std::int64_t slice = 0;     // rows at best
  std::size_t bytes_for(std::int64_t rows, std::int64_t tokens, std::int64_t k) const {
    std::size_t bytes = x_bytes + padded(static_cast<std::size_t>(rows * k) * static_cast<std::size_t>(bytes_of(type)));
    if (copy_y) bytes += padded(static_cast<std::size_t>(rows * tokens) * 4);
    return bytes;
  }
};

pncuda_status check(const pncuda_matmul_args* args, Matmul& m) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_matmul_args& a = *args;
  if (a.struct_size != sizeof(pncuda_matmul_args)) return PNCUDA_STRUCT_SIZE;
  if (a.tokens < 0 || a.switch_tokens < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.tokens > INT32_MAX) return PNCUDA_TOO_LARGE;
  // The rest of the checks are those of the GEMV.
  pncuda_gemv_args g = gemv_args(a, 0, std::min<std::int64_t>(a.tokens, PNCUDA_MAX_TOKENS));
  pncuda_gemv_plan gemv = {};
  gemv.struct_size = sizeof(gemv);
  PNCUDA_CHECK(pncuda_gemv_query(&g, &gemv));
  const std::int64_t rows = a.weights->rows;
  const std::int64_t k = a.weights->k;
  const std::int64_t most = (INT64_MAX >> 4) / std::max<std::int64_t>(a.tokens, 1);
  if (a.x_stride > most || a.y_stride > most || k > most / 4 || rows > most / 4) return PNCUDA_TOO_LARGE;

  int device = 0, major = 0, l2 = 0;
  PNCUDA_CHECK(status_of(cudaGetDevice(&device)));
  PNCUDA_CHECK(status_of(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
  PNCUDA_CHECK(status_of(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device)));

  // A GEMV reads the packed weights once for 8 tokens; cuBLAS lets them be written and read again decoded, ten times as
  // many bytes, in L2. Tensor cores take 8 tokens at the cost of reading; without them every token costs.
  const bool tensor = gemv.path == PNCUDA_PATH_NONE ? major >= 8 : gemv.path == PNCUDA_PATH_TENSOR;
  m.switch_tokens = a.switch_tokens != 0 ? a.switch_tokens : tensor ? 33 : 17;
  if (gemv.path == PNCUDA_PATH_NONE) return PNCUDA_OK;
  m.way = k == 0 || a.tokens < m.switch_tokens ? PNCUDA_MATMUL_GEMV : PNCUDA_MATMUL_BLAS;
  if (m.way == PNCUDA_MATMUL_GEMV) return PNCUDA_OK;

  m.type = a.x_type == PNCUDA_BF16 && major < 8 ? static_cast<int>(PNCUDA_F32) : a.x_type;
  m.copy_x = a.hadamard_block != 0 || m.type != a.x_type;
  m.copy_y = a.y_type != m.type && a.y_type != PNCUDA_F32;
  if (k > INT32_MAX || a.x_stride / bytes_of(a.x_type) > INT32_MAX || a.y_stride / bytes_of(a.y_type) > INT32_MAX)
    return PNCUDA_TOO_LARGE;
  if (m.copy_x) m.x_bytes = padded(static_cast<std::size_t>(a.tokens * k) * static_cast<std::size_t>(bytes_of(m.type)));
  m.row_bytes = static_cast<std::size_t>(k) * static_cast<std::size_t>(bytes_of(m.type));
  const std::int64_t in_cache = static_cast<std::int64_t>(static_cast<std::size_t>(l2) / 3 / m.row_bytes);
  m.slice = std::min(rows, std::max(least_rows, in_cache / least_rows * least_rows));
  return PNCUDA_OK;
}

// The stream and the pointer mode that a multiply needs, and those of before when it ends.
class HandleState {
 public:
  HandleState(cublasHandle_t handle, cudaStream_t stream) : handle_(handle) {
    status_ = cublasGetStream(handle, &stream_);
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    status_ = cublasGetPointerMode(handle, &mode_);
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    other_stream_ = stream_ != stream;  // setting it would take the handle's workspace away
    if (other_stream_) status_ = cublasSetStream(handle, stream);
    if (status_ == CUBLAS_STATUS_SUCCESS && mode_ != CUBLAS_POINTER_MODE_HOST)
      status_ = cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST);
  }
  ~HandleState() {
    if (other_stream_) cublasSetStream(handle_, stream_);
    if (mode_ != CUBLAS_POINTER_MODE_HOST) cublasSetPointerMode(handle_, mode_);
  }
  HandleState(const HandleState&) = delete;
  HandleState& operator=(const HandleState&) = delete;
  cublasStatus_t status() const { return status_; }

 private:
  cublasHandle_t handle_;
  cudaStream_t stream_ = nullptr;
  cublasPointerMode_t mode_ = CUBLAS_POINTER_MODE_HOST;
  bool other_stream_ = false;
  cublasStatus_t status_;
};

pncuda_status multiply_by_gemv(const pncuda_matmul_args& a, pncuda_stream stream) {
  for (std::int64_t first = 0; first < a.tokens; first += PNCUDA_MAX_TOKENS) {
    const pncuda_gemv_args g = gemv_args(a, first, std::min<std::int64_t>(a.tokens - first, PNCUDA_MAX_TOKENS));
    PNCUDA_CHECK(pncuda_gemv(&g, stream));
  }
  return PNCUDA_OK;
}

// x converted or rotated into the workspace.
pncuda_status copy_x(const pncuda_matmul_args& a, const Matmul& m, void* out, pncuda_stream stream) {
  pncuda_hadamard_args h = {};
  h.struct_size = sizeof(h);
  h.x = a.x;
  h.x_stride = a.x_stride;
  h.x_type = a.x_type;
  h.out = out;
  h.out_stride = static_cast<std::int64_t>(m.row_bytes);
  h.out_type = m.type;
  h.tokens = a.tokens;
  h.k = a.weights->k;
  h.block = a.hadamard_block;
  return pncuda_hadamard(&h, stream);
}

pncuda_status multiply_by_blas(const pncuda_matmul_args& a, const Matmul& m, cublasHandle_t handle,
                               pncuda_stream stream) {
  const std::int64_t rows = a.weights->rows;
  const std::int64_t k = a.weights->k;
  std::int64_t slice = m.slice;
  while (slice > least_rows && m.bytes_for(slice, a.tokens, k) > a.workspace_size)
    slice = std::max(least_rows, slice / 2 / least_rows * least_rows);
  unsigned char* at = static_cast<unsigned char*>(a.workspace);
  const void* x = a.x;
  std::int64_t x_stride = a.x_stride;
  if (m.copy_x) {
    PNCUDA_CHECK(copy_x(a, m, at, stream));
    x = at;
    x_stride = static_cast<std::int64_t>(m.row_bytes);
    at += m.x_bytes;
  }
  void* const decoded = at;
  void* const results = at + padded(static_cast<std::size_t>(slice) * m.row_bytes);

  const HandleState state(handle, stream);
  PNCUDA_CHECK(status_of(state.status()));
  for (std::int64_t first = 0; first < rows; first += slice) {
    const std::int64_t count = std::min(slice, rows - first);
    pncuda_decode_args d = {};
    d.struct_size = sizeof(d);
    d.weights = a.weights;
    d.first_row = first;
    d.rows = count;
    d.columns = k;
    d.out = decoded;
    d.out_stride = static_cast<std::int64_t>(m.row_bytes);
    d.out_type = m.type;
    PNCUDA_CHECK(pncuda_decode(&d, stream));
    // In the column-major words of cuBLAS: y^T = w x^T.
    const float one = 1.0f, zero = 0.0f;
    void* y = static_cast<unsigned char*>(a.y) + first * bytes_of(a.y_type);
    std::int64_t y_stride = std::max(a.y_stride / bytes_of(a.y_type), count);  // of one token it may be anything
    if (m.copy_y) {
      y = results;
      y_stride = count;
    }
    PNCUDA_CHECK(
        status_of(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(count), static_cast<int>(a.tokens),
                               static_cast<int>(k), &one, decoded, blas_type(m.type), static_cast<int>(k), x,
                               blas_type(m.type), static_cast<int>(std::max(x_stride / bytes_of(m.type), k)), &zero, y,
                               m.copy_y ? CUDA_R_32F : blas_type(a.y_type), static_cast<int>(y_stride),
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)));
    if (m.copy_y) {
      pncuda_hadamard_args h = {};
      h.struct_size = sizeof(h);
      h.x = results;
      h.x_stride = count * 4;
      h.x_type = PNCUDA_F32;
      h.out = static_cast<unsigned char*>(a.y) + first * bytes_of(a.y_type);
      h.out_stride = a.y_stride;
      h.out_type = a.y_type;
      h.tokens = a.tokens;
      h.k = count;
      PNCUDA_CHECK(pncuda_hadamard(&h, stream));
    }
  }
  return PNCUDA_OK;
}

}  // namespace

pncuda_status pncuda_matmul_query(const pncuda_matmul_args* args, pncuda_matmul_plan* plan) {
  if (plan == nullptr) return PNCUDA_NULL_POINTER;
  if (plan->struct_size != sizeof(pncuda_matmul_plan)) return PNCUDA_STRUCT_SIZE;
  Matmul m;
  PNCUDA_CHECK(check(args, m));
  pncuda_matmul_plan result = {};
  result.struct_size = sizeof(result);
  result.way = m.way;
  result.switch_tokens = m.switch_tokens;
  if (m.way == PNCUDA_MATMUL_BLAS) {
    result.slice_rows = m.slice;
    result.workspace_size_best = m.bytes_for(m.slice, args->tokens, args->weights->k);
    result.workspace_size_least = m.bytes_for(std::min(m.slice, least_rows), args->tokens, args->weights->k);
  }
  *plan = result;
  return PNCUDA_OK;
}

pncuda_status pncuda_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle, pncuda_stream stream) {
  Matmul m;
  PNCUDA_CHECK(check(args, m));
  if (m.way == PNCUDA_MATMUL_NONE) return PNCUDA_OK;
  if (m.way == PNCUDA_MATMUL_GEMV) return multiply_by_gemv(*args, stream);
  const pncuda_matmul_args& a = *args;
  if (handle == nullptr || a.x == nullptr || a.y == nullptr || a.weights->data == nullptr) return PNCUDA_NULL_POINTER;
  const auto aligned = [](const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; };
  if (!aligned(a.x, static_cast<std::size_t>(bytes_of(a.x_type))) ||
      !aligned(a.y, static_cast<std::size_t>(bytes_of(a.y_type))) || !aligned(a.workspace, alignment))
    return PNCUDA_MISALIGNED;
  if (a.workspace_size < m.bytes_for(std::min(m.slice, least_rows), a.tokens, a.weights->k))
    return PNCUDA_WORKSPACE_TOO_SMALL;
  if (a.workspace == nullptr) return PNCUDA_NULL_POINTER;
  return multiply_by_blas(a, m, handle, stream);
}
