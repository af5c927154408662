// libpncuda: gemv_tensor.cuh for both block types.
#include "gemv_tensor.cuh"

namespace pncuda {

cudaError_t has_tensor_path(bool& tensor) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, gemv_tensor<pn::pn3t, true, false>);
  tensor = error == cudaSuccess && attributes.ptxVersion >= 80;  // compiled for it, not only run on it
  return error;
}

template cudaError_t prepare_tensor<pn::pn3t>(const Device&);
template GemvPlan plan_tensor<pn::pn3t>(const Device&, GemvArgs&);
template cudaError_t launch_tensor<pn::pn3t>(const GemvPlan&, const GemvArgs&, cudaStream_t);
template cudaError_t prepare_tensor<pn::pn4t>(const Device&);
template GemvPlan plan_tensor<pn::pn4t>(const Device&, GemvArgs&);
template cudaError_t launch_tensor<pn::pn4t>(const GemvPlan&, const GemvArgs&, cudaStream_t);

}  // namespace pncuda
