// host_cuda: products of matrices in stream order.
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

namespace {

double load(const void* p, cudaDataType_t type, std::size_t i, bool tf32 = false) {
  if (type == CUDA_R_16F) return static_cast<double>(__half2float(static_cast<const __half*>(p)[i]));
  if (type == CUDA_R_16BF) return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]));
  const float value = static_cast<const float*>(p)[i];
  return static_cast<double>(tf32 ? __uint_as_float(__float_as_uint(value) & ~0x1FFFu) : value);
}

void store(void* p, cudaDataType_t type, std::size_t i, double v) {
  if (type == CUDA_R_16F) {
    static_cast<__half*>(p)[i] = host_cuda::round_to_half(v);
  } else if (type == CUDA_R_16BF) {
    static_cast<__nv_bfloat16*>(p)[i] = host_cuda::add_to_bf16(v, 0.0);
  } else {
    static_cast<float*>(p)[i] = static_cast<float>(v);
  }
}

struct Matrix {
  const void* data;
  cudaDataType_t type;
  int stride;  // from column to column
  bool transposed;
  bool tf32;
  double at(int row, int column) const {
    if (transposed) std::swap(row, column);
    return load(data, type,
                static_cast<std::size_t>(column) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row),
                tf32);
  }
};

// Each element once, with what is multiplied side by side: rows, or columns, of k.
std::vector<double> elements(Matrix matrix, int lines, int k, bool rows) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(lines) * static_cast<std::size_t>(k));
  for (int line = 0; line < lines; ++line)
    for (int i = 0; i < k; ++i) values.push_back(rows ? matrix.at(line, i) : matrix.at(i, line));
  return values;
}

double rounded(double v, cudaDataType_t type) {
  float room;
  store(&room, type, 0, v);
  return load(&room, type, 0);
}

// `split`: in two halves of k, each rounded to C's type.
void multiply(int m, int n, int k, double alpha, Matrix a, Matrix b, double beta, void* c, cudaDataType_t c_type,
              int ldc, bool split) {
  const std::vector<double> left = elements(a, m, k, true), right = elements(b, n, k, false);
  for (int column = 0; column < n; ++column) {
    for (int row = 0; row < m; ++row) {
      const auto sum_over = [&](int first, int last) {
        const auto row_of_a = left.begin() + std::ptrdiff_t{row} * k;
        return std::inner_product(row_of_a + first, row_of_a + last, right.begin() + std::ptrdiff_t{column} * k + first,
                                  0.0);
      };
      const double sum =
          split ? rounded(sum_over(0, k / 2), c_type) + rounded(sum_over(k / 2, k), c_type) : sum_over(0, k);
      const auto place =
          static_cast<std::size_t>(column) * static_cast<std::size_t>(ldc) + static_cast<std::size_t>(row);
      const double old = beta == 0 ? 0 : beta * load(c, c_type, place);  // beta = 0: C is not read, NaN or not
      store(c, c_type, place, alpha * sum + old);
    }
  }
}

bool is_type(cudaDataType_t type) { return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F; }

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = new cublasContext, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *mode = handle->mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "an error of cuBLAS";
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t a_type, int lda, const void* b,
                            cudaDataType_t b_type, int ldb, const void* beta, void* c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int a_rows = transa == CUBLAS_OP_N ? m : k, b_rows = transb == CUBLAS_OP_N ? k : n;
  if (m < 0 || n < 0 || k < 0 || lda < std::max(1, a_rows) || ldb < std::max(1, b_rows) || ldc < std::max(1, m) ||
      alpha == nullptr || beta == nullptr || handle->pointer_mode != CUBLAS_POINTER_MODE_HOST) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool results = c_type == a_type || c_type == CUDA_R_32F;
  const bool sums = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC;
  if (!is_type(a_type) || a_type != b_type || !results || !sums) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  constexpr int whole_sums = CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  const bool tf32 = (handle->mode & ~whole_sums) == CUBLAS_TF32_TENSOR_OP_MATH && compute == CUBLAS_COMPUTE_32F;
  const bool split = c_type != CUDA_R_32F && (handle->mode & whole_sums) == 0 && compute == CUBLAS_COMPUTE_32F;
  const Matrix left{a, a_type, lda, transa != CUBLAS_OP_N, tf32}, right{b, b_type, ldb, transb != CUBLAS_OP_N, tf32};
  const auto scale = static_cast<double>(*static_cast<const float*>(alpha));
  const auto keep = static_cast<double>(*static_cast<const float*>(beta));
  const cudaError_t error = host_cuda::enqueue("cublasGemmEx", handle->stream, [=] {
    multiply(m, n, k, scale, left, right, keep, c, c_type, ldc, split);
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                           const float* beta, float* c, int ldc) {
  return cublasGemmEx(handle, transa, transb, m, n, k, alpha, a, CUDA_R_32F, lda, b, CUDA_R_32F, ldb, beta, c,
                      CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
