// libpncuda: gemv_ffma.cuh for pn4t. One file for each block type, as these kernels take long to compile.
#include "gemv_ffma.cuh"

namespace pncuda {

template cudaError_t prepare_ffma<pn::pn4t>(const Device&);
template GemvPlan plan_ffma<pn::pn4t>(const Device&, bool, GemvArgs&);
template cudaError_t launch_ffma<pn::pn4t>(const GemvPlan&, bool, const GemvArgs&, cudaStream_t);

}  // namespace pncuda
