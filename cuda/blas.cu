// libpncuda_blas: pncuda_matmul, and the second stream that it unpacks on. Uses the C ABI of libpncuda only.
#include <cublas_v2.h>

#include <algorithm>

#include "blas.hpp"

namespace pncuda_blas {

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

namespace {

constexpr std::int64_t least_rows = PNCUDA_TILE_ROWS;
constexpr std::int64_t even_rows = 128;  // what the tiles of cuBLAS divide
constexpr std::size_t alignment = 256;

pncuda_status blas_status(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? PNCUDA_OK
                                         : static_cast<pncuda_status>(PNCUDA_BLAS_ERROR + static_cast<int>(status));
}
int bytes_of(int type) { return type == PNCUDA_F32 ? 4 : 2; }
bool is_bf16_type(int type) { return type == PNCUDA_BF16_P12 || type == PNCUDA_BF16_PLAIN; }
cudaDataType_t blas_type(int type) {
  return type == PNCUDA_F32 ? CUDA_R_32F : type == PNCUDA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}
std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
bool is_aligned(const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }
std::size_t alignment_of(const pncuda_weights& w) {
  if (w.type == PNCUDA_BF16_PLAIN) return 16;
  if (w.type == PNCUDA_BF16_P12) return 8;
  return w.layout == PNCUDA_REPACKED ? 16 : 2;
}

// Everything about a multiply that its arguments and the device decide.
struct Matmul {
  int way = PNCUDA_MATMUL_NONE;
  std::int64_t switch_tokens = 0;
  int type = 0;               // what cuBLAS multiplies
  bool direct = false;        // it multiplies the weights as they lie
  bool copy_x = false;        // converted or rotated first
  bool copy_y = false;        // cuBLAS cannot write this type of y: fp32 first
  std::size_t x_bytes = 0;    // of the copy
  std::size_t row_bytes = 0;  // of a row that cuBLAS multiplies
  std::int64_t tokens = 0;
  std::int64_t slice = 0;  // rows, if the workspace has room for them

  std::size_t slice_bytes(std::int64_t rows) const {
    return direct ? 0 : padded(static_cast<std::size_t>(rows) * row_bytes);
  }
  // x, slices of so many rows, the results of one.
  std::size_t bytes_for(std::int64_t rows, std::size_t slices) const {
    std::size_t bytes = x_bytes + slices * slice_bytes(rows);
    if (copy_y) bytes += padded(static_cast<std::size_t>(rows * tokens) * 4);
    return bytes;
  }
  std::size_t least_bytes() const {
    if (way != PNCUDA_MATMUL_BLAS) return 0;
    return bytes_for(direct ? slice : std::min(slice, least_rows), 1);
  }
  std::size_t best_bytes(std::int64_t rows, bool overlap) const {
    if (way != PNCUDA_MATMUL_BLAS) return 0;
    return bytes_for(slice, overlap && slice < rows ? 2 : 1);
  }
};

pncuda_status check_overlap(const pncuda_overlap* overlap) {
  if (overlap == nullptr) return PNCUDA_OK;
  if (overlap->struct_size != sizeof(pncuda_overlap)) return PNCUDA_STRUCT_SIZE;
  if (overlap->side == nullptr) return PNCUDA_NULL_POINTER;
  for (const pncuda_event event : overlap->events)
    if (event == nullptr) return PNCUDA_NULL_POINTER;
  return PNCUDA_OK;
}

// Arguments that have nothing to do with the device, and how the GEMV would run.
pncuda_status check_arguments(const pncuda_matmul_args* args, pncuda_gemv_plan& gemv) {
  if (args == nullptr) return PNCUDA_NULL_POINTER;
  const pncuda_matmul_args& a = *args;
  if (a.struct_size != sizeof(pncuda_matmul_args)) return PNCUDA_STRUCT_SIZE;
  if (a.weights == nullptr) return PNCUDA_NULL_POINTER;
  if (a.tokens < 0 || a.switch_tokens < 0 || a.slice_rows < 0) return PNCUDA_NEGATIVE_SIZE;
  if (a.tokens > INT32_MAX) return PNCUDA_TOO_LARGE;
  if (a.proof < 0 || a.proof > 1 || a.reserved != 0) return PNCUDA_BAD_ENUM;
  PNCUDA_CHECK(check_overlap(a.overlap));
  const pncuda_weights& w = *a.weights;
  if (w.struct_size != sizeof(pncuda_weights)) return PNCUDA_STRUCT_SIZE;
  // The rest of the checks are those of the GEMV.
  const pncuda_gemv_args g = gemv_args(a, 0, std::min(a.tokens, gemv_tokens(w.type)));
  gemv.struct_size = sizeof(gemv);
  PNCUDA_CHECK(pncuda_gemv_query(&g, &gemv));
  if (!is_slice(a.slice_rows, w.rows)) return PNCUDA_OUT_OF_RANGE;
  if (a.proof != 0 && !is_bf16_type(w.type)) return PNCUDA_UNSUPPORTED;
  const std::int64_t most = (INT64_MAX >> 4) / std::max<std::int64_t>(a.tokens, 1);
  return a.x_stride > most || a.y_stride > most || w.k > most / 4 || w.rows > most / 4 ? PNCUDA_TOO_LARGE : PNCUDA_OK;
}

// What the current device has.
struct Hardware {
  int major = 0, l2 = 0;
};
pncuda_status look_at(Hardware& hardware) {
  int device = 0;
  PNCUDA_CHECK(status_of(cudaGetDevice(&device)));
  PNCUDA_CHECK(status_of(cudaDeviceGetAttribute(&hardware.major, cudaDevAttrComputeCapabilityMajor, device)));
  return status_of(cudaDeviceGetAttribute(&hardware.l2, cudaDevAttrL2CacheSize, device));
}

// What cuBLAS multiplies.
int product_type(int weights_type, int x_type, bool has_bf16) {
  if (x_type == PNCUDA_BF16) return has_bf16 ? PNCUDA_BF16 : PNCUDA_F32;
  return is_bf16_type(weights_type) ? static_cast<int>(PNCUDA_F32) : x_type;
}

// A GEMV reads the packed weights once for 8 tokens, those of BF16 types on tensor cores once for 32 of bf16; cuBLAS
// lets them be written and read again unpacked, several times as many bytes, in L2, unless they are not packed. Tensor
// cores take those tokens at the cost of reading; without them every token costs. With fp32 products (of BF16 weights)
// cuBLAS has no tensor cores.
std::int64_t default_switch(int weights_type, const Matmul& m, bool tensor) {
  if (!tensor) return 17;
  if (!is_bf16_type(weights_type) || m.direct) return 33;
  return m.type == PNCUDA_F32 ? 129 : 65;
}

// Rows that take a quarter of the L2 cache.
std::int64_t default_slice(int l2, std::size_t row_bytes) {
  const auto in_cache = static_cast<std::int64_t>(static_cast<std::size_t>(l2) / 4 / row_bytes);
  const std::int64_t step = in_cache < even_rows ? least_rows : even_rows;
  return std::max(least_rows, in_cache / step * step);
}

// The sizes of a multiply through cuBLAS.
pncuda_status plan_products(const pncuda_matmul_args& a, int l2, Matmul& m) {
  const std::int64_t rows = a.weights->rows, k = a.weights->k;
  m.copy_x = a.hadamard_block != 0 || m.type != a.x_type;
  m.copy_y = a.y_type != m.type && a.y_type != PNCUDA_F32;
  if (k > INT32_MAX || a.x_stride / bytes_of(a.x_type) > INT32_MAX || a.y_stride / bytes_of(a.y_type) > INT32_MAX ||
      (m.direct && a.weights->row_stride / 2 > INT32_MAX))
    return PNCUDA_TOO_LARGE;
  m.row_bytes = static_cast<std::size_t>(k) * static_cast<std::size_t>(bytes_of(m.type));
  if (m.copy_x) m.x_bytes = padded(static_cast<std::size_t>(a.tokens) * m.row_bytes);
  const std::int64_t wanted = a.slice_rows != 0 ? a.slice_rows : default_slice(l2, m.row_bytes);
  m.slice = m.direct ? rows : std::min(rows, wanted);
  return m.slice > std::min<std::int64_t>(INT32_MAX, (INT64_MAX >> 2) / static_cast<std::int64_t>(m.row_bytes))
             ? PNCUDA_TOO_LARGE
             : PNCUDA_OK;
}

pncuda_status check(const pncuda_matmul_args* args, Matmul& m) {
  pncuda_gemv_plan gemv = {};
  PNCUDA_CHECK(check_arguments(args, gemv));
  Hardware hardware;
  PNCUDA_CHECK(look_at(hardware));
  const pncuda_matmul_args& a = *args;
  const int weights_type = a.weights->type;
  m.tokens = a.tokens;
  m.type = product_type(weights_type, a.x_type, hardware.major >= 8);
  m.direct = weights_type == PNCUDA_BF16_PLAIN && m.type == PNCUDA_BF16;
  const bool nothing = gemv.path == PNCUDA_PATH_NONE;
  const bool tensor = nothing ? hardware.major >= 8 && a.mode != PNCUDA_PORTABLE : gemv.path == PNCUDA_PATH_TENSOR;
  m.switch_tokens = a.switch_tokens != 0 ? a.switch_tokens : default_switch(weights_type, m, tensor);
  if (nothing) return PNCUDA_OK;
  m.way = a.weights->k == 0 || a.tokens < m.switch_tokens ? PNCUDA_MATMUL_GEMV : PNCUDA_MATMUL_BLAS;
  return m.way == PNCUDA_MATMUL_BLAS ? plan_products(a, hardware.l2, m) : PNCUDA_OK;
}

// What `check` leaves to look at where there is no proof.
pncuda_status check_memory(const pncuda_matmul_args& a, const Matmul& m, pncuda_blas_handle handle) {
  if (m.way == PNCUDA_MATMUL_NONE) return PNCUDA_OK;
  const bool has_k = a.weights->k != 0;
  if (a.y == nullptr || (has_k && (a.x == nullptr || a.weights->data == nullptr))) return PNCUDA_NULL_POINTER;
  if (!is_aligned(a.y, static_cast<std::size_t>(bytes_of(a.y_type))) || !is_aligned(a.workspace, alignment) ||
      (has_k && (!is_aligned(a.x, static_cast<std::size_t>(bytes_of(a.x_type))) ||
                 !is_aligned(a.weights->data, alignment_of(*a.weights)))))
    return PNCUDA_MISALIGNED;
  if (m.way == PNCUDA_MATMUL_GEMV) return PNCUDA_OK;
  if (handle == nullptr) return PNCUDA_NULL_POINTER;
  if (a.workspace_size < m.least_bytes()) return PNCUDA_WORKSPACE_TOO_SMALL;
  return a.workspace == nullptr && m.least_bytes() > 0 ? PNCUDA_NULL_POINTER : PNCUDA_OK;
}

// The stream and the modes that a multiply needs, and those of before when it ends.
class HandleState {
 public:
  HandleState(cublasHandle_t handle, cudaStream_t stream, int type) : handle_(handle) {
    status_ = cublasGetStream(handle, &stream_);
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    status_ = cublasGetPointerMode(handle, &pointers_);
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    status_ = cublasGetMathMode(handle, &math_);
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    other_stream_ = stream_ != stream;  // setting it would take the handle's workspace away
    if (other_stream_) status_ = cublasSetStream(handle, stream);
    other_pointers_ = pointers_ != CUBLAS_POINTER_MODE_HOST;
    if (status_ == CUBLAS_STATUS_SUCCESS && other_pointers_)
      status_ = cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST);
    // No TF32; and where cuBLAS splits k, no partial sums in 16 bits.
    const auto math = type == PNCUDA_F32
                          ? CUBLAS_DEFAULT_MATH
                          : static_cast<cublasMath_t>(math_ | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    other_math_ = math != math_;
    if (status_ == CUBLAS_STATUS_SUCCESS && other_math_) status_ = cublasSetMathMode(handle, math);
  }
  ~HandleState() {
    if (other_stream_) cublasSetStream(handle_, stream_);
    if (other_pointers_) cublasSetPointerMode(handle_, pointers_);
    if (other_math_) cublasSetMathMode(handle_, math_);
  }
  HandleState(const HandleState&) = delete;
  HandleState& operator=(const HandleState&) = delete;
  cublasStatus_t status() const { return status_; }

 private:
  cublasHandle_t handle_;
  cudaStream_t stream_ = nullptr;
  cublasPointerMode_t pointers_ = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_ = CUBLAS_DEFAULT_MATH;
  bool other_stream_ = false, other_pointers_ = false, other_math_ = false;
  cublasStatus_t status_;
};

pncuda_status multiply_by_gemv(const pncuda_matmul_args& a, pncuda_stream stream) {
  const std::int64_t most = gemv_tokens(a.weights->type);
  for (std::int64_t first = 0; first < a.tokens; first += most) {
    const pncuda_gemv_args g = gemv_args(a, first, std::min(a.tokens - first, most));
    PNCUDA_CHECK(pncuda_gemv(&g, stream));
  }
  return PNCUDA_OK;
}

// Elements to elements of another type, rotated in segments of `block` if that is not 0.
pncuda_status convert(const void* from, std::int64_t from_stride, int from_type, void* to, std::int64_t to_stride,
                      int to_type, std::int64_t tokens, std::int64_t k, int block, pncuda_stream stream) {
  pncuda_hadamard_args h = {};
  h.struct_size = sizeof(h);
  h.x = from;
  h.x_stride = from_stride;
  h.x_type = from_type;
  h.out = to;
  h.out_stride = to_stride;
  h.out_type = to_type;
  h.tokens = tokens;
  h.k = k;
  h.block = block;
  return pncuda_hadamard(&h, stream);
}

pncuda_status unpack(const pncuda_weights& weights, std::int64_t first, std::int64_t rows, int type, void* out,
                     pncuda_stream stream) {
  pncuda_decode_args d = {};
  d.struct_size = sizeof(d);
  d.weights = &weights;
  d.first_row = first;
  d.rows = rows;
  d.columns = weights.k;
  d.out = out;
  d.out_stride = weights.k * bytes_of(type);
  d.out_type = type;
  return pncuda_decode(&d, stream);
}

// Two buffers that the side stream fills and the caller's stream empties. empty_[b], recorded by the latter: what read
// buffer b has been given to it. full_[b], recorded by the former: so has what fills it. An event is waited for before
// it is recorded again, and what waits for an event waits for its last record before the wait.
class Overlap {
 public:
  Overlap(const pncuda_overlap& o, pncuda_stream stream)
      : side_(o.side), main_(stream), empty_{o.events[0], o.events[1]}, full_{o.events[2], o.events[3]} {}
  // Also after an error the caller's stream ends after what the side stream has been given.
  ~Overlap() {
    if (ahead_ && filled(0) == PNCUDA_OK) wait_until_full(0);
  }
  Overlap(const Overlap&) = delete;
  Overlap& operator=(const Overlap&) = delete;

  // The side stream goes on where the caller's stream is.
  pncuda_status fork() {
    PNCUDA_CHECK(emptied(0));
    PNCUDA_CHECK(wait(side_, empty_[0]));
    ahead_ = true;
    return PNCUDA_OK;
  }
  pncuda_stream side() const { return side_; }
  pncuda_status wait_until_empty(int b) { return wait(side_, empty_[b]); }
  pncuda_status filled(int b) { return status_of(cudaEventRecord(full_[b], side_)); }
  pncuda_status wait_until_full(int b) { return wait(main_, full_[b]); }
  pncuda_status emptied(int b) { return status_of(cudaEventRecord(empty_[b], main_)); }
  // The caller's stream has waited for the last buffer.
  void joined() { ahead_ = false; }

 private:
  static pncuda_status wait(pncuda_stream stream, cudaEvent_t event) {
    return status_of(cudaStreamWaitEvent(stream, event, 0));
  }
  pncuda_stream side_, main_;
  cudaEvent_t empty_[2], full_[2];
  bool ahead_ = false;
};

// A multiply through cuBLAS: x, and the places of everything in the workspace.
class Products {
 public:
  Products(const pncuda_matmul_args& a, const Matmul& m, cublasHandle_t handle, pncuda_stream stream)
      : a_(a), m_(m), w_(*a.weights), handle_(handle), stream_(stream), slice_(m.slice) {
    while (!m.direct && slice_ > least_rows && m.bytes_for(slice_, 1) > a.workspace_size)
      slice_ = std::max(least_rows, slice_ / 2 / least_rows * least_rows);
    two_ = a.overlap != nullptr && slice_ < w_.rows && m.bytes_for(slice_, 2) <= a.workspace_size;
    unsigned char* const base = static_cast<unsigned char*>(a.workspace);
    x_copy_ = base;
    buffers_[0] = base + m.x_bytes;
    buffers_[1] = two_ ? buffers_[0] + m.slice_bytes(slice_) : buffers_[0];
    results_ = buffers_[1] + m.slice_bytes(slice_);
  }

  pncuda_status run() const {
    if (two_) return overlapped();
    PNCUDA_CHECK(copy_x());
    if (m_.direct) return multiply(0, w_.rows, w_.data, std::max(w_.row_stride / 2, w_.k));
    for (std::int64_t first = 0; first < w_.rows; first += slice_) {
      PNCUDA_CHECK(unpack_slice(first, 0, stream_));
      PNCUDA_CHECK(multiply_slice(first, 0));
    }
    return PNCUDA_OK;
  }

 private:
  pncuda_status overlapped() const {
    Overlap overlap(*a_.overlap, stream_);
    PNCUDA_CHECK(overlap.fork());
    for (int b = 0; b < 2; ++b) {
      PNCUDA_CHECK(unpack_slice(b * slice_, b, overlap.side()));
      PNCUDA_CHECK(overlap.filled(b));
    }
    PNCUDA_CHECK(copy_x());
    int b = 0;
    for (std::int64_t first = 0; first < w_.rows; first += slice_, b ^= 1) {
      PNCUDA_CHECK(overlap.wait_until_full(b));
      if (first + slice_ >= w_.rows) overlap.joined();
      PNCUDA_CHECK(multiply_slice(first, b));
      if (const std::int64_t next = first + 2 * slice_; next < w_.rows) {
        PNCUDA_CHECK(overlap.emptied(b));
        PNCUDA_CHECK(overlap.wait_until_empty(b));
        PNCUDA_CHECK(unpack_slice(next, b, overlap.side()));
        PNCUDA_CHECK(overlap.filled(b));
      }
    }
    return PNCUDA_OK;
  }

  std::int64_t rows_from(std::int64_t first) const { return std::min(slice_, w_.rows - first); }
  std::int64_t x_stride() const { return m_.copy_x ? static_cast<std::int64_t>(m_.row_bytes) : a_.x_stride; }
  pncuda_status copy_x() const {
    if (!m_.copy_x) return PNCUDA_OK;
    return convert(a_.x, a_.x_stride, a_.x_type, x_copy_, x_stride(), m_.type, a_.tokens, w_.k, a_.hadamard_block,
                   stream_);
  }
  pncuda_status unpack_slice(std::int64_t first, int b, pncuda_stream stream) const {
    return unpack(w_, first, rows_from(first), m_.type, buffers_[b], stream);
  }
  pncuda_status multiply_slice(std::int64_t first, int b) const {
    return multiply(first, rows_from(first), buffers_[b], w_.k);
  }

  // Rows first .. of y, by weights that lie `w_stride` elements apart.
  pncuda_status multiply(std::int64_t first, std::int64_t count, const void* w, std::int64_t w_stride) const {
    // In the column-major words of cuBLAS: y^T = w x^T.
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType_t type = blas_type(m_.type);
    void* const y = static_cast<unsigned char*>(a_.y) + first * bytes_of(a_.y_type);
    const std::int64_t y_stride = std::max(a_.y_stride / bytes_of(a_.y_type), count);  // one token: it may be anything
    PNCUDA_CHECK(blas_status(
        cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(count), static_cast<int>(a_.tokens),
                     static_cast<int>(w_.k), &one, w, type, static_cast<int>(w_stride), m_.copy_x ? x_copy_ : a_.x,
                     type, static_cast<int>(std::max(x_stride() / bytes_of(m_.type), w_.k)), &zero,
                     m_.copy_y ? results_ : y, m_.copy_y ? CUDA_R_32F : blas_type(a_.y_type),
                     static_cast<int>(m_.copy_y ? count : y_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)));
    if (!m_.copy_y) return PNCUDA_OK;
    return convert(results_, count * 4, PNCUDA_F32, y, a_.y_stride, a_.y_type, a_.tokens, count, 0, stream_);
  }

  const pncuda_matmul_args& a_;
  const Matmul& m_;
  const pncuda_weights& w_;
  cublasHandle_t handle_;
  pncuda_stream stream_;
  std::int64_t slice_;      // rows, as the workspace allows
  bool two_ = false;        // two slices, one unpacked while the other is multiplied
  void* x_copy_ = nullptr;  // if x is copied
  unsigned char* buffers_[2] = {};
  void* results_ = nullptr;  // fp32, if y is copied
};

pncuda_status multiply_by_blas(const pncuda_matmul_args& a, const Matmul& m, cublasHandle_t handle,
                               pncuda_stream stream) {
  const HandleState state(handle, stream, m.type);
  PNCUDA_CHECK(blas_status(state.status()));
  return Products(a, m, handle, stream).run();
}

// Proof: the matrix that is unpacked into the workspace, and the multiply that goes on with it.
struct Proof {
  bool wanted = false;
  pncuda_weights plain = {};
  pncuda_matmul_args args = {};
  std::size_t bytes = 0;  // of the unpacked matrix
};

// Fills m: of the multiply that goes on, if there is a proof.
pncuda_status check_with_proof(const pncuda_matmul_args* args, Matmul& m, Proof& proof) {
  PNCUDA_CHECK(check(args, m));
  if (args->proof == 0 || args->weights->type != PNCUDA_BF16_P12) return PNCUDA_OK;
  const pncuda_weights& packed = *args->weights;
  proof.wanted = true;
  proof.bytes = padded(static_cast<std::size_t>(packed.rows) * static_cast<std::size_t>(packed.k) * 2);
  proof.plain = packed;
  proof.plain.type = PNCUDA_BF16_PLAIN;
  proof.plain.data = args->workspace;
  proof.plain.row_stride = packed.k * 2;
  proof.args = *args;
  proof.args.weights = &proof.plain;
  proof.args.proof = 0;
  proof.args.workspace = nullptr;
  proof.args.workspace_size = 0;
  if (args->workspace != nullptr && args->workspace_size >= proof.bytes) {
    proof.args.workspace = static_cast<unsigned char*>(args->workspace) + proof.bytes;
    proof.args.workspace_size = args->workspace_size - proof.bytes;
  }
  m = Matmul();
  return check(&proof.args, m);
}

// What is left to look at before something is launched.
pncuda_status check_memory(const pncuda_matmul_args& a, const Matmul& m, const Proof& proof,
                           pncuda_blas_handle handle) {
  if (!proof.wanted || m.way == PNCUDA_MATMUL_NONE) return check_memory(a, m, handle);
  const pncuda_weights& packed = *a.weights;
  if (packed.k != 0 && packed.data == nullptr) return PNCUDA_NULL_POINTER;
  if (!is_aligned(packed.data, alignment_of(packed)) || !is_aligned(a.workspace, alignment)) return PNCUDA_MISALIGNED;
  if (a.workspace_size < proof.bytes + m.least_bytes()) return PNCUDA_WORKSPACE_TOO_SMALL;
  return check_memory(proof.args, m, handle);
}

}  // namespace

pncuda_status check_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle) {
  Matmul m;
  Proof proof;
  PNCUDA_CHECK(check_with_proof(args, m, proof));
  return check_memory(*args, m, proof, handle);
}

}  // namespace pncuda_blas

using namespace pncuda_blas;

pncuda_status pncuda_matmul_query(const pncuda_matmul_args* args, pncuda_matmul_plan* plan) {
  if (plan == nullptr) return PNCUDA_NULL_POINTER;
  if (plan->struct_size != sizeof(pncuda_matmul_plan)) return PNCUDA_STRUCT_SIZE;
  Matmul m;
  Proof proof;
  PNCUDA_CHECK(check_with_proof(args, m, proof));
  pncuda_matmul_plan result = {};
  result.struct_size = sizeof(result);
  result.way = m.way;
  result.switch_tokens = m.switch_tokens;
  if (m.way == PNCUDA_MATMUL_BLAS) {
    result.blas_type = m.type;
    result.slice_rows = m.slice;
  }
  if (m.way != PNCUDA_MATMUL_NONE) {
    result.workspace_size_least = proof.bytes + m.least_bytes();
    result.workspace_size_best = proof.bytes + m.best_bytes(args->weights->rows, args->overlap != nullptr);
  }
  *plan = result;
  return PNCUDA_OK;
}

pncuda_status pncuda_matmul(const pncuda_matmul_args* args, pncuda_blas_handle handle, pncuda_stream stream) {
  Matmul m;
  Proof proof;
  PNCUDA_CHECK(check_with_proof(args, m, proof));
  PNCUDA_CHECK(check_memory(*args, m, proof, handle));
  if (m.way == PNCUDA_MATMUL_NONE) return PNCUDA_OK;
  if (proof.wanted) PNCUDA_CHECK(unpack(*args->weights, 0, args->weights->rows, PNCUDA_BF16, args->workspace, stream));
  const pncuda_matmul_args& a = proof.wanted ? proof.args : *args;
  return m.way == PNCUDA_MATMUL_GEMV ? multiply_by_gemv(a, stream) : multiply_by_blas(a, m, handle, stream);
}

// ---- The second stream and its events ----

pncuda_status pncuda_overlap_create(pncuda_overlap* overlap) {
  if (overlap == nullptr) return PNCUDA_NULL_POINTER;
  if (overlap->struct_size != sizeof(pncuda_overlap)) return PNCUDA_STRUCT_SIZE;
  pncuda_overlap made = {};
  made.struct_size = sizeof(made);
  int lowest = 0, highest = 0;
  PNCUDA_CHECK(status_of(cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
  pncuda_status status = status_of(cudaStreamCreateWithPriority(&made.side, cudaStreamNonBlocking, highest));
  for (pncuda_event& event : made.events)
    if (status == PNCUDA_OK) status = status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  if (status == PNCUDA_OK)
    *overlap = made;
  else
    pncuda_overlap_destroy(&made);
  return status;
}

pncuda_status pncuda_overlap_destroy(pncuda_overlap* overlap) {
  if (overlap == nullptr) return PNCUDA_NULL_POINTER;
  if (overlap->struct_size != sizeof(pncuda_overlap)) return PNCUDA_STRUCT_SIZE;
  pncuda_status status = PNCUDA_OK;
  const auto keep_first = [&](cudaError_t error) {
    const pncuda_status one = status_of(error);
    if (status == PNCUDA_OK) status = one;
  };
  for (pncuda_event& event : overlap->events) {
    if (event != nullptr) keep_first(cudaEventDestroy(event));
    event = nullptr;
  }
  if (overlap->side != nullptr) keep_first(cudaStreamDestroy(overlap->side));
  overlap->side = nullptr;
  return status;
}
