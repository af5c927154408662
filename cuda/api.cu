// libpncuda: the C ABI of pncuda.h: checks its arguments, chooses kernels, launches them. Multiplies with BF16_P12 and
// all of pncuda_p12.h are in api_p12.cu.
#include <atomic>
#include <mutex>
#include <pn/hadamard.hpp>
#include <pn/version.hpp>

#include "api.hpp"
#include "gemv.cuh"

namespace pncuda {

// ---- Devices ----

namespace {

constexpr int max_devices = 64;

// `ready` is written last and read first.
struct PreparedDevice {
  Device device;
  std::atomic<bool> ready{false};
};
PreparedDevice prepared[max_devices];
std::mutex preparing;

cudaError_t load_kernels(Device& device) {
  cudaError_t error = has_tensor_path(device.tensor);
  if (error == cudaSuccess && device.tensor) error = prepare_tensor<pn::pn3t>(device);
  if (error == cudaSuccess && device.tensor) error = prepare_tensor<pn::pn4t>(device);
  if (error == cudaSuccess && !device.tensor) error = prepare_ffma<pn::pn3t>(device);
  if (error == cudaSuccess && !device.tensor) error = prepare_ffma<pn::pn4t>(device);
  if (error == cudaSuccess) error = prepare_repack();
  if (error == cudaSuccess) error = prepare_decode();
  if (error == cudaSuccess) error = prepare_hadamard();
  if (error == cudaSuccess) error = prepare_p12(device);
  return error;
}

pncuda_status prepare_current(int number) {
  Device device;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } wanted[] = {{cudaDevAttrComputeCapabilityMajor, &device.major},
                {cudaDevAttrComputeCapabilityMinor, &device.minor},
                {cudaDevAttrMultiProcessorCount, &device.multiprocessors},
                {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.shared_per_block},
                {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &device.shared_per_multiprocessor}};
  for (const auto& one : wanted)
    if (const cudaError_t error = cudaDeviceGetAttribute(one.value, one.attribute, number); error != cudaSuccess)
      return status_of(error);
  if (device.major < 6) return PNCUDA_UNSUPPORTED_DEVICE;
  const cudaError_t error = load_kernels(device);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
    return PNCUDA_UNSUPPORTED_DEVICE;
  if (error != cudaSuccess) return status_of(error);
  PreparedDevice& kept = prepared[number];
  // Again: other threads may be reading `device`, and it is the same. (It is not where a test changes the device.)
  if (kept.ready.load(std::memory_order_relaxed) && kept.device == device) return PNCUDA_OK;
  kept.device = device;
  kept.ready.store(true, std::memory_order_release);
  return PNCUDA_OK;
}

}  // namespace

pncuda_status current_device(const Device*& device) {
  int number = 0;
  if (const cudaError_t error = cudaGetDevice(&number); error != cudaSuccess) {
    cudaGetLastError();
    return status_of(error);
  }
  if (number >= max_devices || !prepared[number].ready.load(std::memory_order_acquire)) return PNCUDA_NOT_PREPARED;
  device = &prepared[number].device;
  return PNCUDA_OK;
}

// ---- Arguments ----

pncuda_status check_weights(const pncuda_weights* weights, bool shape_only, Matrix& matrix) {
  if (weights == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_weights& w = *weights;
  if (w.struct_size != sizeof(pncuda_weights)) return PNCUDA_STRUCT_SIZE;
  if (!is_weights_type(w.type)) return PNCUDA_BAD_ENUM;
  if (w.layout != PNCUDA_NATIVE && w.layout != PNCUDA_REPACKED) return PNCUDA_BAD_ENUM;
  const bool repacked = w.layout == PNCUDA_REPACKED;
  if (repacked && is_bf16_type(w.type)) return PNCUDA_UNSUPPORTED;
  if (w.rows < 0 || w.k < 0) return PNCUDA_NEGATIVE_SIZE;
  const BlockLayout block = layout_of(w.type);
  if (w.k % block.weights != 0) return PNCUDA_BAD_LENGTH;
  const std::int64_t blocks = w.k / block.weights;
  if (blocks > INT32_MAX / tile_blocks || w.rows > std::int64_t{INT32_MAX} * (is_bf16_type(w.type) ? 1 : tile_rows))
    return PNCUDA_TOO_LARGE;
  std::int64_t stride = w.row_stride;
  if (repacked) {
    if (stride != 0) return PNCUDA_BAD_STRIDE;
    stride = blocks * block.bytes;
  } else if (stride < 0 || (w.rows > 1 && stride < blocks * block.bytes)) {
    return PNCUDA_BAD_STRIDE;
  } else if (stride % block.alignment != 0) {
    return PNCUDA_MISALIGNED;
  }
  if (!fits(w.rows, stride)) return PNCUDA_TOO_LARGE;
  if (!shape_only && w.rows > 0 && w.k > 0) {
    if (w.data == nullptr) return PNCUDA_NULL_POINTER;
    if (!is_aligned(w.data, repacked ? 16 : static_cast<std::size_t>(block.alignment))) return PNCUDA_MISALIGNED;
  }
  matrix =
      Matrix{static_cast<const std::uint8_t*>(w.data), w.rows, stride, static_cast<std::int32_t>(blocks), repacked};
  return PNCUDA_OK;
}

pncuda_status check_elements(const void* p, std::int64_t stride, int type, std::int64_t rows, std::int64_t columns,
                             bool shape_only) {
  if (!is_element_type(type)) return PNCUDA_BAD_ENUM;
  const int bytes = bytes_of_element(type);
  if (columns > (INT64_MAX >> 4) / bytes) return PNCUDA_TOO_LARGE;
  if (stride < 0 || (rows > 1 && stride < columns * bytes)) return PNCUDA_BAD_STRIDE;
  if (stride % bytes != 0) return PNCUDA_MISALIGNED;
  if (!fits(rows, stride)) return PNCUDA_TOO_LARGE;
  if (!shape_only && rows > 0 && columns > 0) {
    if (p == nullptr) return PNCUDA_NULL_POINTER;
    if (!is_aligned(p, static_cast<std::size_t>(bytes))) return PNCUDA_MISALIGNED;
  }
  return PNCUDA_OK;
}

pncuda_status check_hadamard_block(int block, std::int64_t k) {
  if (block < 0 || !pn::is_hadamard_block(static_cast<std::size_t>(block)) || k % block != 0)
    return PNCUDA_BAD_HADAMARD_BLOCK;
  return PNCUDA_OK;
}

// ---- GEMV ----

namespace {

// A multiply that is ready: `part` says what is the same for all launches.
struct Gemv {
  GemvArgs args;
  std::int64_t tokens;
  int path = PNCUDA_PATH_NONE;
  int type = 0;
};

// Whether the weights are for api_p12.cu; checks what is needed to know.
pncuda_status is_p12_gemv(const pncuda_gemv_args* args, bool& p12) {
  if (args == nullptr || args->weights == nullptr) return PNCUDA_NULL_POINTER;
  if (args->struct_size != sizeof(pncuda_gemv_args) || args->weights->struct_size != sizeof(pncuda_weights))
    return PNCUDA_STRUCT_SIZE;
  p12 = is_bf16_type(args->weights->type);
  return PNCUDA_OK;
}

pncuda_status check_gemv(const pncuda_gemv_args* args, bool shape_only, const Device*& device, Gemv& gemv) {
  const pncuda_gemv_args& a = *args;
  Matrix weights;
  PNCUDA_CHECK(check_weights(a.weights, shape_only, weights));
  if (a.mode == PNCUDA_PORTABLE) return PNCUDA_UNSUPPORTED;
  if (a.mode != PNCUDA_ACCURATE && a.mode != PNCUDA_FAST_HALF2) return PNCUDA_BAD_ENUM;
  if (!is_element_type(a.x_type) || !is_element_type(a.y_type)) return PNCUDA_BAD_ENUM;
  if (a.tokens < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.tokens > PNCUDA_MAX_TOKENS) return PNCUDA_TOO_MANY_TOKENS;
  if (a.hadamard_block != 0) PNCUDA_CHECK(check_hadamard_block(a.hadamard_block, a.weights->k));
  const bool nothing = a.tokens == 0 || weights.rows == 0;
  PNCUDA_CHECK(check_elements(a.x, a.x_stride, a.x_type, a.tokens, a.weights->k, shape_only || nothing));
  PNCUDA_CHECK(check_elements(a.y, a.y_stride, a.y_type, a.tokens, weights.rows, shape_only || nothing));
  PNCUDA_CHECK(current_device(device));
  gemv.tokens = a.tokens;
  gemv.type = a.weights->type;
  if (!nothing)
    gemv.path = device->tensor                ? PNCUDA_PATH_TENSOR
                : a.mode == PNCUDA_FAST_HALF2 ? PNCUDA_PATH_HFMA2
                                              : PNCUDA_PATH_FFMA;
  GemvArgs& to = gemv.args;
  to = {};
  to.weights = weights;
  to.x = a.x;
  to.x_stride = a.x_stride;
  to.x_type = a.x_type;
  to.y = a.y;
  to.y_stride = a.y_stride;
  to.y_type = a.y_type;
  to.hadamard_block = weights.blocks == 0 ? 0 : a.hadamard_block;
  return PNCUDA_OK;
}

GemvPlan plan_gemv(const Device& device, const Gemv& gemv, GemvArgs& args) {
  GemvPlan plan;
  with_block_type(gemv.type, [&](auto type) {
    using T = decltype(type);
    plan = gemv.path == PNCUDA_PATH_TENSOR ? plan_tensor<T>(device, args)
                                           : plan_ffma<T>(device, gemv.path == PNCUDA_PATH_HFMA2, args);
  });
  return plan;
}

// Calls body(plan, args) for every launch. The rows of a repacked matrix that fill no group of 16 are native rows.
template <class Body>
pncuda_status for_each_launch(const Device& device, const Gemv& gemv, Body&& body) {
  const Matrix& all = gemv.args.weights;
  const std::int64_t grouped = all.repacked ? all.rows / tile_rows * tile_rows : all.rows;
  for (int part = 0; part < 2; ++part) {
    const std::int64_t begin = part == 0 ? 0 : grouped;
    const std::int64_t end = part == 0 ? grouped : all.rows;
    if (begin == end) continue;
    GemvArgs args = gemv.args;
    args.weights.rows = end - begin;
    args.weights.repacked = all.repacked && part == 0;
    if (begin > 0) {  // pointers may be null in a query
      args.weights.data += begin * all.row_stride;
      args.y = static_cast<unsigned char*>(gemv.args.y) + begin * element_bytes(args.y_type);
    }
    for (std::int64_t token = 0; token < gemv.tokens;) {
      args.tokens = static_cast<std::int32_t>(gemv.tokens - token);
      const GemvPlan plan = plan_gemv(device, gemv, args);
      if (args.tokens > plan.tokens) args.tokens = plan.tokens;
      PNCUDA_CHECK(body(plan, args));
      token += args.tokens;
      if (token < gemv.tokens) {
        args.x = static_cast<const unsigned char*>(args.x) + args.tokens * args.x_stride;
        args.y = static_cast<unsigned char*>(args.y) + args.tokens * args.y_stride;
      }
    }
  }
  return PNCUDA_OK;
}

}  // namespace

}  // namespace pncuda

using namespace pncuda;

const char* pncuda_status_text(pncuda_status status) {
  switch (status) {
    case PNCUDA_OK: return "ok";
    case PNCUDA_NULL_POINTER: return "a pointer that is needed is null";
    case PNCUDA_STRUCT_SIZE: return "struct_size is not that of this version of the library";
    case PNCUDA_BAD_ENUM: return "a type, layout or mode is none of those declared, or a reserved field is not 0";
    case PNCUDA_NEGATIVE_SIZE: return "a number of rows, tokens, columns or ids is negative";
    case PNCUDA_BAD_LENGTH: return "k is not a multiple of the block";
    case PNCUDA_TOO_MANY_TOKENS: return "more tokens than the function takes";
    case PNCUDA_MISALIGNED: return "a pointer or a stride is not aligned";
    case PNCUDA_BAD_STRIDE: return "a stride is smaller than a row, or negative, or a repacked matrix has one";
    case PNCUDA_OUT_OF_RANGE:
      return "a range of rows or columns leaves the matrix or does not begin or end where it may";
    case PNCUDA_BAD_HADAMARD_BLOCK: return "the Hadamard block is not 64, 128, 256, 512 or 1024, or does not divide k";
    case PNCUDA_TOO_LARGE: return "a size does not fit";
    case PNCUDA_WORKSPACE_TOO_SMALL: return "the workspace is too small";
    case PNCUDA_NOT_PREPARED: return "pncuda_prepare was not called for the current device";
    case PNCUDA_UNSUPPORTED_DEVICE: return "the device is older than sm_60, or this build has no kernels for it";
    case PNCUDA_UNSUPPORTED: return "there is no kernel for this combination of layout, types and device";
    case PNCUDA_SHAPE_MISMATCH:
      return "matrices of one call do not go together in type, k, rows or what is asked of them";
    case PNCUDA_BAD_TUNING: return "this is not the text of a tuning, or not the whole of it";
    case PNCUDA_FOREIGN_TUNING: return "the tuning is of another device or another version of the library";
    case PNCUDA_CUDA_ERROR:
    case PNCUDA_BLAS_ERROR: break;
  }
  if (status >= PNCUDA_BLAS_ERROR) return "cuBLAS failed: the status minus 2000 is its own";
  if (status >= PNCUDA_CUDA_ERROR) return cudaGetErrorString(static_cast<cudaError_t>(status - PNCUDA_CUDA_ERROR));
  return "unknown status";
}

int pncuda_version(void) { return 10000 * PN_VERSION_MAJOR + 100 * PN_VERSION_MINOR + PN_VERSION_PATCH; }

pncuda_status pncuda_prepare(int device) {
  const std::lock_guard<std::mutex> lock(preparing);
  int before = 0;
  pncuda_status status = status_of(cudaGetDevice(&before));
  if (status == PNCUDA_OK) status = status_of(cudaSetDevice(device));
  if (status == PNCUDA_OK) {
    status = device < max_devices ? prepare_current(device) : PNCUDA_UNSUPPORTED_DEVICE;
    const cudaError_t error = cudaSetDevice(before);
    if (status == PNCUDA_OK) status = status_of(error);
  }
  if (status != PNCUDA_OK) cudaGetLastError();  // told by the status
  return status;
}

size_t pncuda_weights_size(const pncuda_weights* weights) {
  Matrix matrix;
  if (check_weights(weights, true, matrix) != PNCUDA_OK) return 0;
  return static_cast<std::size_t>(matrix.rows) * static_cast<std::size_t>(matrix.blocks) *
         static_cast<std::size_t>(layout_of(weights->type).bytes);
}

pncuda_status pncuda_repack(const pncuda_weights* native, void* out, pncuda_stream stream) {
  Matrix from;
  PNCUDA_CHECK(check_weights(native, false, from));
  if (from.repacked || is_bf16_type(native->type)) return PNCUDA_UNSUPPORTED;
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  if (from.rows == 0 || from.blocks == 0) return PNCUDA_OK;
  if (out == nullptr) return PNCUDA_NULL_POINTER;
  if (!is_aligned(out, 16)) return PNCUDA_MISALIGNED;
  const Matrix to{static_cast<const std::uint8_t*>(out), from.rows, std::int64_t{from.blocks} * block_bytes,
                  from.blocks, true};
  return status_of(launch_repack(from, to, stream));
}

pncuda_status pncuda_unrepack(const pncuda_weights* repacked, void* out, int64_t out_row_stride, pncuda_stream stream) {
  Matrix from;
  PNCUDA_CHECK(check_weights(repacked, false, from));
  if (!from.repacked) return PNCUDA_UNSUPPORTED;
  pncuda_weights native = *repacked;
  native.layout = PNCUDA_NATIVE;
  native.data = out;
  native.row_stride = out_row_stride;
  Matrix to;
  PNCUDA_CHECK(check_weights(&native, false, to));
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  if (from.rows == 0 || from.blocks == 0) return PNCUDA_OK;
  return status_of(launch_repack(from, to, stream));
}

pncuda_status pncuda_row_shard(const pncuda_weights* weights, int64_t first, int64_t rows, pncuda_weights* shard) {
  Matrix matrix;
  PNCUDA_CHECK(check_weights(weights, true, matrix));
  if (shard == nullptr) return PNCUDA_NULL_POINTER;
  if (first < 0 || rows < 0) return PNCUDA_NEGATIVE_SIZE;
  if (first > matrix.rows || rows > matrix.rows - first) return PNCUDA_OUT_OF_RANGE;
  if (matrix.repacked && (first % tile_rows != 0 || (rows % tile_rows != 0 && first + rows != matrix.rows)))
    return PNCUDA_OUT_OF_RANGE;
  pncuda_weights view = *weights;
  view.rows = rows;
  if (view.data != nullptr) view.data = matrix.data + first * matrix.row_stride;
  *shard = view;
  return PNCUDA_OK;
}

pncuda_status pncuda_column_shard(const pncuda_weights* native, int64_t first, int64_t columns, pncuda_weights* shard) {
  Matrix matrix;
  PNCUDA_CHECK(check_weights(native, true, matrix));
  if (matrix.repacked) return PNCUDA_UNSUPPORTED;
  if (shard == nullptr) return PNCUDA_NULL_POINTER;
  if (first < 0 || columns < 0) return PNCUDA_NEGATIVE_SIZE;
  const BlockLayout block = layout_of(native->type);
  if (first > native->k || columns > native->k - first || first % block.weights != 0 || columns % block.weights != 0)
    return PNCUDA_OUT_OF_RANGE;
  pncuda_weights view = *native;
  view.k = columns;
  if (view.data != nullptr) view.data = matrix.data + first / block.weights * block.bytes;
  *shard = view;
  return PNCUDA_OK;
}

pncuda_status pncuda_gemv_query(const pncuda_gemv_args* args, pncuda_gemv_plan* plan) {
  if (plan == nullptr) return PNCUDA_NULL_POINTER;
  if (plan->struct_size != sizeof(pncuda_gemv_plan)) return PNCUDA_STRUCT_SIZE;
  pncuda_gemv_plan result = {};
  result.struct_size = sizeof(pncuda_gemv_plan);
  bool p12 = false;
  PNCUDA_CHECK(is_p12_gemv(args, p12));
  if (p12) {
    PNCUDA_CHECK(gemv_p12_query(*args, result));
    *plan = result;
    return PNCUDA_OK;
  }
  const Device* device = nullptr;
  Gemv gemv;
  PNCUDA_CHECK(check_gemv(args, true, device, gemv));
  result.path = gemv.path;
  if (gemv.path != PNCUDA_PATH_NONE)
    PNCUDA_CHECK(for_each_launch(*device, gemv, [&](const GemvPlan& one, const GemvArgs& part) {
      ++result.launches;
      if (part.tokens > result.tokens_per_launch) result.tokens_per_launch = part.tokens;
      if (one.shared_bytes > result.shared_bytes) result.shared_bytes = one.shared_bytes;
      return PNCUDA_OK;
    }));
  *plan = result;
  return PNCUDA_OK;
}

pncuda_status pncuda_gemv(const pncuda_gemv_args* args, pncuda_stream stream) {
  bool p12 = false;
  PNCUDA_CHECK(is_p12_gemv(args, p12));
  if (p12) return gemv_p12(*args, stream);
  const Device* device = nullptr;
  Gemv gemv;
  PNCUDA_CHECK(check_gemv(args, false, device, gemv));
  if (gemv.path == PNCUDA_PATH_NONE) return PNCUDA_OK;
  return for_each_launch(*device, gemv, [&](const GemvPlan& plan, const GemvArgs& part) {
    cudaError_t error = cudaSuccess;
    with_block_type(gemv.type, [&](auto type) {
      using T = decltype(type);
      error = gemv.path == PNCUDA_PATH_TENSOR ? launch_tensor<T>(plan, part, stream)
                                              : launch_ffma<T>(plan, gemv.path == PNCUDA_PATH_HFMA2, part, stream);
    });
    return status_of(error);
  });
}

namespace {

pncuda_status decode_rows(const pncuda_weights* weights, const Matrix& matrix, const DecodeRows& what,
                          pncuda_stream stream) {
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  if (what.rows == 0 || what.columns == 0) return PNCUDA_OK;
  if (is_bf16_type(weights->type))
    return status_of(launch_p12_decode(*device, weights->type == PNCUDA_BF16_P12, matrix, what, stream));
  cudaError_t error = cudaSuccess;
  with_block_type(weights->type,
                  [&](auto type) { error = launch_decode<decltype(type)>(*device, matrix, what, stream); });
  return status_of(error);
}

}  // namespace

pncuda_status pncuda_decode(const pncuda_decode_args* args, pncuda_stream stream) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_decode_args& a = *args;
  if (a.struct_size != sizeof(pncuda_decode_args)) return PNCUDA_STRUCT_SIZE;
  Matrix matrix;
  PNCUDA_CHECK(check_weights(a.weights, true, matrix));
  if (a.reserved != 0) return PNCUDA_BAD_ENUM;
  if (a.first_row < 0 || a.rows < 0 || a.first_column < 0 || a.columns < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.first_row > matrix.rows || a.rows > matrix.rows - a.first_row || a.first_column > a.weights->k ||
      a.columns > a.weights->k - a.first_column)
    return PNCUDA_OUT_OF_RANGE;
  if (a.rows > 0 && a.columns > 0) PNCUDA_CHECK(check_weights(a.weights, false, matrix));
  PNCUDA_CHECK(check_elements(a.out, a.out_stride, a.out_type, a.rows, a.columns, false));
  return decode_rows(a.weights, matrix,
                     {a.rows, a.first_row, nullptr, 0, a.first_column, a.columns, a.out, a.out_stride, a.out_type},
                     stream);
}

pncuda_status pncuda_get_rows(const pncuda_get_rows_args* args, pncuda_stream stream) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_get_rows_args& a = *args;
  if (a.struct_size != sizeof(pncuda_get_rows_args)) return PNCUDA_STRUCT_SIZE;
  Matrix matrix;
  PNCUDA_CHECK(check_weights(a.weights, a.count == 0, matrix));
  if (a.id_bytes != 4 && a.id_bytes != 8) return PNCUDA_BAD_ENUM;
  if (a.count < 0) return PNCUDA_NEGATIVE_SIZE;
  PNCUDA_CHECK(check_elements(a.out, a.out_stride, a.out_type, a.count, a.weights->k, false));
  if (a.count > 0 && a.ids == nullptr) return PNCUDA_NULL_POINTER;
  if (!is_aligned(a.ids, static_cast<std::size_t>(a.id_bytes))) return PNCUDA_MISALIGNED;
  return decode_rows(a.weights, matrix,
                     {a.count, 0, a.ids, a.id_bytes, 0, a.weights->k, a.out, a.out_stride, a.out_type}, stream);
}

pncuda_status pncuda_hadamard(const pncuda_hadamard_args* args, pncuda_stream stream) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_hadamard_args& a = *args;
  if (a.struct_size != sizeof(pncuda_hadamard_args)) return PNCUDA_STRUCT_SIZE;
  if (a.reserved != 0) return PNCUDA_BAD_ENUM;
  if (a.tokens < 0 || a.k < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.block != 0) PNCUDA_CHECK(check_hadamard_block(a.block, a.k));
  PNCUDA_CHECK(check_elements(a.x, a.x_stride, a.x_type, a.tokens, a.k, false));
  PNCUDA_CHECK(check_elements(a.out, a.out_stride, a.out_type, a.tokens, a.k, false));
  const Device* device = nullptr;
  PNCUDA_CHECK(current_device(device));
  if (a.tokens == 0 || a.k == 0) return PNCUDA_OK;
  return status_of(
      launch_hadamard({a.x, a.x_stride, a.out, a.out_stride, a.x_type, a.out_type, a.tokens, a.k, a.block}, stream));
}
