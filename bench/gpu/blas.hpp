// gpu_bench: cuBLAS, where there is one. With PN_GPU_BENCH_BLAS it is linked, and pncuda_blas.h is checked and timed;
// else it is loaded at run time, which needs no headers.
#pragma once

#if defined(PN_GPU_BENCH_BLAS)
#include <pncuda/pncuda_blas.h>
#endif

#include "bench.hpp"

namespace gpu_bench {

class Blas {
 public:
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  bool there() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }

  // y[tokens][rows] = x[tokens][k] * w[rows][k]; all of them fp16 or bf16, sums in fp32.
  void multiply(int type, Shape shape, const void* w, const void* x, std::int64_t tokens, void* y,
                cudaStream_t stream) const;

 private:
  void* handle_ = nullptr;
  void* workspace_ = nullptr;  // of its own, so that nothing is allocated while a stream is captured
};

#if defined(PN_GPU_BENCH_BLAS)
inline pncuda_matmul_plan plan_of(const pncuda_matmul_args& args) {
  pncuda_matmul_plan plan = {};
  plan.struct_size = sizeof plan;
  require(pncuda_matmul_query(&args, &plan), "pncuda_matmul_query");
  return plan;
}
#endif

}  // namespace gpu_bench
