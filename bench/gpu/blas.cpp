// gpu_bench: blas.hpp.
#include "blas.hpp"

#if defined(PN_GPU_BENCH_BLAS)
#include <cublas_v2.h>
#else
#include <dlfcn.h>
#endif

namespace gpu_bench {

namespace {

constexpr std::size_t workspace_bytes = std::size_t{64} << 20;

#if defined(PN_GPU_BENCH_BLAS)

int create(void** handle) { return cublasCreate(reinterpret_cast<cublasHandle_t*>(handle)); }
void destroy(void* handle) { cublasDestroy(static_cast<cublasHandle_t>(handle)); }
int use(void* handle, cudaStream_t stream, void* workspace) {
  const int status = cublasSetStream(static_cast<cublasHandle_t>(handle), stream);
#if !defined(PN_HOST_CUDA)
  if (status == 0) return cublasSetWorkspace(static_cast<cublasHandle_t>(handle), workspace, workspace_bytes);
#else
  (void)workspace;
#endif
  return status;
}
int multiply_matrices(void* handle, int m, int n, int k, const float* one, const void* a, const void* b,
                      const float* zero, void* c, bool bf16) {
  const cudaDataType_t type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
  return cublasGemmEx(static_cast<cublasHandle_t>(handle), CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, one, a, type, k, b, type,
                      k, zero, c, type, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

#else

// What the functions take, with numbers for the enums of cublas_api.h.
struct Library {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;
  int (*set_workspace)(void*, void*, std::size_t) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
              void*, int, int, int, int) = nullptr;
  bool complete = false;

  Library() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so", "libcublas.so.13", "libcublas.so.12", "libcublas.so.11"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)> >(dlsym(library, name));
      return function != nullptr;
    };
    complete = find(create, "cublasCreate_v2") && find(destroy, "cublasDestroy_v2") &&
               find(set_stream, "cublasSetStream_v2") && find(set_workspace, "cublasSetWorkspace_v2") &&
               find(gemm, "cublasGemmEx");
  }
};
const Library& library() {
  static const Library found;
  return found;
}

int create(void** handle) { return library().complete ? library().create(handle) : 1; }
void destroy(void* handle) { library().destroy(handle); }
int use(void* handle, cudaStream_t stream, void* workspace) {
  const int status = library().set_stream(handle, stream);
  return status != 0 ? status : library().set_workspace(handle, workspace, workspace_bytes);
}
int multiply_matrices(void* handle, int m, int n, int k, const float* one, const void* a, const void* b,
                      const float* zero, void* c, bool bf16) {
  constexpr int transposed = 1, plain = 0, fp32_sums = 68, default_algorithm = -1;
  const int type = bf16 ? 14 : 2;
  return library().gemm(handle, transposed, plain, m, n, k, one, a, type, k, b, type, k, zero, c, type, m, fp32_sums,
                        default_algorithm);
}

#endif

}  // namespace

Blas::Blas() {
  void* handle = nullptr;
  if (create(&handle) != 0) return;
  handle_ = handle;
  require(cudaMalloc(&workspace_, workspace_bytes), "workspace of cuBLAS");
}
Blas::~Blas() {
  if (handle_ != nullptr) destroy(handle_);
  cudaFree(workspace_);
}

void Blas::multiply(int type, Shape shape, const void* w, const void* x, std::int64_t tokens, void* y,
                    cudaStream_t stream) const {
  const float one = 1.0f, zero = 0.0f;
  int status = use(handle_, stream, workspace_);
  if (status == 0)
    status = multiply_matrices(handle_, static_cast<int>(shape.rows), static_cast<int>(tokens),
                               static_cast<int>(shape.k), &one, w, x, &zero, y, type == PNCUDA_BF16);
  if (status != 0) fail(format("cuBLAS: status %d", status));
}

}  // namespace gpu_bench
