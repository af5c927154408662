// libpncuda: what api.cu and blas.cu ask of their arguments.
#ifndef PNCUDA_CHECKS_HPP
#define PNCUDA_CHECKS_HPP

#include <pncuda/pncuda.h>

#include <pncuda/decode_pn.cuh>

#include "kernels.hpp"

namespace pncuda {

#define PNCUDA_CHECK(call)                                                                         \
  do {                                                                                             \
    if (const pncuda_status check_status = (call); check_status != PNCUDA_OK) return check_status; \
  } while (false)

// A status from a call of CUDA's.
inline pncuda_status status_of(cudaError_t error) {
  return error == cudaSuccess ? PNCUDA_OK : static_cast<pncuda_status>(PNCUDA_CUDA_ERROR + static_cast<int>(error));
}

inline bool is_element_type(int type) { return type == PNCUDA_F32 || type == PNCUDA_F16 || type == PNCUDA_BF16; }
inline int bytes_of_element(int type) { return type == PNCUDA_F32 ? 4 : 2; }
inline bool is_aligned(const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

// Calls body(T{}) for the block type; is false for others.
template <class Body>
bool with_block_type(int type, Body&& body) {
  if (type == PNCUDA_PN3T)
    body(pn::pn3t{});
  else if (type == PNCUDA_PN4T)
    body(pn::pn4t{});
  else
    return false;
  return true;
}
inline std::int64_t block_size_of(int type) {
  return static_cast<std::int64_t>(type == PNCUDA_PN3T ? pn::pn3t::block_size : pn::pn4t::block_size);
}

// The current device, prepared.
pncuda_status current_device(const Device*& device);

// Weights without (`shape_only`) or with their data; gives them as kernels take them.
pncuda_status check_weights(const pncuda_weights* weights, bool shape_only, Matrix& matrix);

// A matrix of elements: `rows` rows of `columns` numbers at p.
pncuda_status check_elements(const void* p, std::int64_t stride, int type, std::int64_t rows, std::int64_t columns,
                             bool shape_only);

pncuda_status check_hadamard_block(int block, std::int64_t k);

}  // namespace pncuda

#endif  // PNCUDA_CHECKS_HPP
