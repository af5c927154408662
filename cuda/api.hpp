// libpncuda: what api.cu and api_p12.cu share: checks of arguments, and the calls from one to the other.
#ifndef PNCUDA_API_HPP
#define PNCUDA_API_HPP

#include <pncuda/pncuda.h>

#include <pncuda/decode_p12.cuh>
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

// Blocks of a type of weights.
struct BlockLayout {
  std::int64_t weights, bytes, alignment;  // of addresses and strides
};
inline bool is_bf16_type(int type) { return type == PNCUDA_BF16_P12 || type == PNCUDA_BF16_PLAIN; }
inline bool is_weights_type(int type) { return type == PNCUDA_PN3T || type == PNCUDA_PN4T || is_bf16_type(type); }
inline BlockLayout layout_of(int type) {
  if (type == PNCUDA_BF16_P12) return {p12_block_weights, p12_block_bytes, 8};
  if (type == PNCUDA_BF16_PLAIN) return {p12_block_weights, p12_block_weights * 2, 16};
  return {static_cast<std::int64_t>(type == PNCUDA_PN3T ? pn::pn3t::block_size : pn::pn4t::block_size), block_bytes, 2};
}

// Whether rows * stride (both not negative) and a bit more fit an address.
inline bool fits(std::int64_t rows, std::int64_t stride) { return stride == 0 || rows <= (INT64_MAX >> 4) / stride; }

// The current device, prepared.
pncuda_status current_device(const Device*& device);

// Weights without (`shape_only`) or with their data; gives them as kernels take them.
pncuda_status check_weights(const pncuda_weights* weights, bool shape_only, Matrix& matrix);

// A matrix of elements: `rows` rows of `columns` numbers at p.
pncuda_status check_elements(const void* p, std::int64_t stride, int type, std::int64_t rows, std::int64_t columns,
                             bool shape_only);

pncuda_status check_hadamard_block(int block, std::int64_t k);

// api_p12.cu: BF16_P12 and plain BF16. The arguments and their weights are there and have their sizes, no more.
cudaError_t prepare_p12(const Device& device);
pncuda_status gemv_p12(const pncuda_gemv_args& args, pncuda_stream stream);
pncuda_status gemv_p12_query(const pncuda_gemv_args& args, pncuda_gemv_plan& plan);

}  // namespace pncuda

#endif  // PNCUDA_API_HPP
