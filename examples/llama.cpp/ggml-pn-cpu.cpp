// The three types in ggml's CPU backend: multiplying and embedding look-up through pn::cpu, from the bytes of the file.
//
// Few tokens go through pn::cpu's multiply, where no bit of a token's result depends on the others. More, as a prompt
// has them, through multiply_batch (pn3t, pn4t; with activations in i16 the same bits again), or slices of rows are
// decoded to BF16 in the work buffer and the engine multiplies them as it does with such weights anyway (bf16_p12).
// Activations that integers cannot hold, a NaN for one, take what is multiplied beside them along to fp32.
//
// Settings, from the environment:
//   GGML_PN_PROOF=1       bf16_p12: decode the whole matrix and leave the rest to the engine, for any number of tokens:
//                         the numbers of the unpacked model, bit for bit
//   GGML_PN_BF16=1        plain BF16 weights go through pn::cpu too: without proof mode the same numbers as bf16_p12
//   GGML_PN_ACTIVATIONS   what the kernels multiply. For pn3t and pn4t i16 (the default), q8_0 or f32 (pn/cpu.hpp,
//                         Activations). For bf16_p12 activations are rounded to BF16, as the engine does it for BF16
//                         weights; f32 leaves them as they are, which is more exact, but not what BF16 gives
//   GGML_PN_PROMPT=N      how many tokens are more than few; by default 17 (pn3t, pn4t) and 33 (bf16_p12)
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <p12/cpu.hpp>
#include <p12/p12.hpp>
#include <pn/cpu.hpp>
#include <pn/pn.hpp>

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-pn.h"
#include "ops.h"
#include "traits.h"

namespace {

using pn::Status;
using pn::cpu::Activations;
using pn::cpu::Element;

struct Settings {
  bool proof = ggml_pn_is_set("GGML_PN_PROOF");
  bool bf16 = ggml_pn_is_set("GGML_PN_BF16");
  Activations activations = Activations::i16;
  int64_t prompt = 0;  // 0: the codec's

  Settings() {
    if (const char* kind = std::getenv("GGML_PN_ACTIVATIONS")) {
      if (std::strcmp(kind, "f32") == 0) {
        activations = Activations::f32;
      } else if (std::strcmp(kind, "q8_0") == 0) {
        activations = Activations::q8_0;
      } else if (std::strcmp(kind, "i16") != 0) {
        GGML_ABORT("GGML_PN_ACTIVATIONS=%s: f32, i16 or q8_0 expected", kind);
      }
    }
    const char* tokens = std::getenv("GGML_PN_PROMPT");
    if (tokens != nullptr && *tokens != 0) {
      char* end = nullptr;
      prompt = std::strtol(tokens, &end, 10);
      if (*end != 0 || prompt < 1) GGML_ABORT("GGML_PN_PROMPT=%s: a number of tokens expected", tokens);
    }
  }
};

const Settings& settings() {
  static const Settings all;
  return all;
}

void check(Status status, const ggml_tensor* weight) {
  if (status != Status::ok) GGML_ABORT("%s: %s", weight->name, pn::status_text(status));
}

// ---- What is different from type to type ----

template <class T>
struct Pn {
  static constexpr bool has_batch = true;
  static constexpr int64_t prompt = pn::cpu::max_tokens + 1;

  // What x of k elements becomes.
  static Activations kind(size_t k) {
    return settings().activations == Activations::q8_0 && k % 32 != 0 ? Activations::i16  // K = 80
                                                                      : settings().activations;
  }

  static size_t prepared_bytes(size_t tokens, size_t k) {
    return std::max(pn::cpu::activations_bytes<T>(kind(k), tokens, k),
                    pn::cpu::activations_bytes<T>(Activations::f32, tokens, k));
  }

  static bool rounds() { return false; }

  // Can integers not hold x, because of a NaN for one? Then it goes through as it is.
  static bool refused(Status status) { return status == Status::not_finite || status == Status::scale_overflow; }

  static Status prepare(const float* x, size_t x_stride, size_t tokens, size_t k, void* prepared) {
    const Status status = pn::cpu::prepare_activations<T>(kind(k), x, x_stride, tokens, k, prepared);
    return refused(status) ? pn::cpu::prepare_activations<T>(Activations::f32, x, x_stride, tokens, k, prepared)
                           : status;
  }

  static Status multiply(const void* rows, size_t stride, size_t count, size_t k, const void* prepared, float* y,
                         size_t y_stride) {
    return pn::cpu::multiply<T>(rows, stride, count, k, prepared, y, y_stride);
  }

  static size_t batch_bytes(Activations kind, size_t tokens, size_t k) {
    return pn::cpu::batch_bytes<T>(kind, tokens, k);
  }

  static Status prepare_batch(Activations kind, const float* x, size_t x_stride, size_t tokens, size_t k,
                              void* prepared) {
    return pn::cpu::prepare_batch<T>(kind, x, x_stride, tokens, k, prepared);
  }

  static Status multiply_batch(const void* rows, size_t stride, size_t count, size_t k, const void* prepared,
                               size_t tokens, float* y, size_t y_stride) {
    return pn::cpu::multiply_batch<T>(rows, stride, count, k, prepared, tokens, y, y_stride);
  }

  static Status decode(const void* rows, size_t stride, size_t count, size_t k, Element element, void* out,
                       size_t out_stride) {
    return pn::cpu::dequantize_rows<T>(rows, stride, count, 0, k, out, element, out_stride);
  }
};

struct P12 {
  static constexpr bool has_batch = false;
  static constexpr int64_t prompt = 2 * pn::cpu::max_tokens + 1;

  static size_t prepared_bytes(size_t tokens, size_t k) { return p12::cpu::activations_bytes(tokens, k); }

  // Are activations rounded to BF16?
  static bool rounds() { return settings().activations != Activations::f32; }

  static Status prepare(const float* x, size_t x_stride, size_t tokens, size_t k, void* prepared) {
    return p12::cpu::prepare_activations(x, x_stride, tokens, k, prepared);
  }

  static Status multiply(const void* rows, size_t stride, size_t count, size_t k, const void* prepared, float* y,
                         size_t y_stride) {
    return p12::cpu::multiply(rows, stride, count, k, prepared, y, y_stride);
  }

  static Status decode(const void* rows, size_t stride, size_t count, size_t k, Element element, void* out,
                       size_t out_stride) {
    return p12::cpu::unpack_rows(rows, stride, count, k, out, element, out_stride);
  }
};

// Plain BF16 in the order of bf16_p12.
struct Bf16 : P12 {
  static Status multiply(const void* rows, size_t stride, size_t count, size_t k, const void* prepared, float* y,
                         size_t y_stride) {
    return p12::cpu::multiply_bf16(rows, stride, count, k, prepared, y, y_stride);
  }
};

// ---- Multiplying ----

constexpr size_t alignment = 64;
size_t padded(size_t bytes) { return GGML_PAD(bytes, alignment); }

// The work buffer from its first aligned address on.
char* work_of(const ggml_compute_params* params) {
  return reinterpret_cast<char*>(padded(reinterpret_cast<uintptr_t>(params->wdata)));
}

// How an operation is computed, and where in the work buffer everything lies.
enum class Way { few, batch, slices };
struct Plan {
  int64_t k, rows, tokens;
  int rotation;  // segments in which x is rotated first; 0: not at all
  bool changes;  // x is rotated, or rounded for the kernels
  Way way;
  int64_t chunks;      // few: of up to max_tokens tokens; batch: of batch_tokens
  int64_t slice_rows;  // slices: rows that are decoded at a time
  // Where in the work buffer, behind x as fp32 when it is changed: x as it is multiplied; batch: a flag for each chunk;
  // slices: decoded weights; and the end.
  size_t x, flags, slice, end;
};

constexpr int64_t max_tokens = pn::cpu::max_tokens;
constexpr int64_t batch_tokens = pn::cpu::batch_tokens;
constexpr int64_t range_bytes = int64_t{2} << 20;  // of weights that a thread takes at a time, about
constexpr size_t slice_bytes = size_t{2} << 20;    // of decoded weights that stay in the caches

template <class Codec>
Plan plan_of(const ggml_tensor* op) {
  const ggml_tensor* weight = op->src[0];
  Plan plan = {};
  plan.k = weight->ne[0];
  plan.rows = weight->ne[1];
  plan.tokens = op->src[1]->ne[1];
  plan.rotation = ggml_pn_rotation(weight);
  const size_t k = static_cast<size_t>(plan.k);
  const size_t tokens = static_cast<size_t>(plan.tokens);
  const bool proof = !Codec::has_batch && settings().proof;
  const bool is_prompt = plan.tokens >= (settings().prompt != 0 ? settings().prompt : Codec::prompt);
  plan.way = !proof && !is_prompt ? Way::few : (Codec::has_batch ? Way::batch : Way::slices);
  plan.changes = plan.rotation != 0 || (plan.way == Way::few && Codec::rounds());
  plan.x = plan.changes ? padded(sizeof(float) * k * tokens) : 0;
  if (plan.way == Way::few) {
    plan.chunks = (plan.tokens + max_tokens - 1) / max_tokens;
    plan.end = plan.x + static_cast<size_t>(plan.chunks) * Codec::prepared_bytes(pn::cpu::max_tokens, k);
  } else if constexpr (Codec::has_batch) {
    plan.chunks = (plan.tokens + batch_tokens - 1) / batch_tokens;
    plan.flags = plan.x + std::max(Codec::batch_bytes(Codec::kind(k), tokens, k),
                                   Codec::batch_bytes(Activations::f32, tokens, k));
    plan.end = plan.flags + padded(static_cast<size_t>(plan.chunks));
  } else {
    const size_t row_bytes = ggml_row_size(GGML_TYPE_BF16, plan.k);
    const int64_t fitting = static_cast<int64_t>(slice_bytes / row_bytes) / 64 * 64;
    plan.slice_rows = proof ? plan.rows : std::min(plan.rows, std::max<int64_t>(64, fitting));
    plan.slice = plan.x + padded(row_bytes * tokens);
    plan.end = plan.slice + padded(row_bytes * static_cast<size_t>(plan.slice_rows));
  }
  return plan;
}

// One matrix of a batch.
struct Matrices {
  const char* weight;
  size_t weight_stride;
  const char* x;  // fp32
  size_t x_stride;
  char* y;
  size_t y_stride;
};

// Every thread its part of 0 .. count - 1.
template <class Body>
void share_out(const ggml_compute_params* params, int64_t count, const Body& body) {
  for (int64_t i = params->ith; i < count; i += params->nth) body(i);
}

// Rotates x, or rounds it to BF16, into the work buffer.
template <class Codec>
void change(const ggml_compute_params* params, const Plan& plan, Matrices& m, const ggml_tensor* weight) {
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(plan.k);
  char* changed = work_of(params);
  const size_t piece = static_cast<size_t>(plan.rotation != 0 ? plan.rotation : plan.k);
  const int64_t pieces = plan.k / static_cast<int64_t>(piece);
  share_out(params, plan.tokens * pieces, [&](int64_t i) {
    const size_t token = static_cast<size_t>(i / pieces);
    const size_t first = static_cast<size_t>(i % pieces) * piece * sizeof(float);
    float* out = reinterpret_cast<float*>(changed + token * row_bytes + first);
    const auto* x = reinterpret_cast<const float*>(m.x + token * m.x_stride + first);
    if (plan.rotation != 0) {
      check(pn::cpu::hadamard_activations(x, 0, 1, piece, piece, out, 0), weight);
    } else {
      std::memcpy(out, x, piece * sizeof(float));
    }
    if (Codec::rounds()) {
      for (size_t j = 0; j < piece; ++j) out[j] = pn::bf16_to_float(pn::float_to_bf16(out[j]));
    }
  });
  m.x = changed;
  m.x_stride = row_bytes;
}

// Ranges of rows, multiples of `grain`: who is done takes the next one. `ranges` for each thread; the counter has been
// set.
template <class Body>
void share_out_rows(const ggml_compute_params* params, int64_t rows, int64_t grain, int64_t ranges, const Body& body) {
  const int64_t all = grain * ranges * params->nth;
  const int64_t step = (rows + all - 1) / all * grain;
  for (int64_t i = params->ith; i * step < rows; i = ggml_threadpool_chunk_add(params->threadpool, 1))
    body(static_cast<size_t>(i * step), static_cast<size_t>(std::min(step, rows - i * step)));
}

template <class Codec>
void multiply_few(const ggml_compute_params* params, const Plan& plan, const Matrices& m, const ggml_tensor* weight) {
  const size_t k = static_cast<size_t>(plan.k);
  char* prepared = work_of(params) + plan.x;
  const size_t chunk_bytes = Codec::prepared_bytes(pn::cpu::max_tokens, k);
  if (params->ith == 0) ggml_threadpool_chunk_set(params->threadpool, params->nth);
  share_out(params, plan.chunks, [&](int64_t chunk) {
    const int64_t first = chunk * max_tokens;
    check(Codec::prepare(reinterpret_cast<const float*>(m.x + static_cast<size_t>(first) * m.x_stride), m.x_stride,
                         static_cast<size_t>(std::min(max_tokens, plan.tokens - first)), k,
                         prepared + static_cast<size_t>(chunk) * chunk_bytes),
          weight);
  });
  ggml_barrier(params->threadpool);
  // Ranges are large, as memory comes slowly at the beginning of each.
  const int64_t ranges =
      std::clamp<int64_t>(plan.rows * static_cast<int64_t>(m.weight_stride) / (params->nth * range_bytes), 1, 8);
  share_out_rows(params, plan.rows, 16, ranges, [&](size_t first, size_t rows) {
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      char* y = m.y + static_cast<size_t>(chunk * max_tokens) * m.y_stride + first * sizeof(float);
      check(
          Codec::multiply(m.weight + first * m.weight_stride, m.weight_stride, rows, k,
                          prepared + static_cast<size_t>(chunk) * chunk_bytes, reinterpret_cast<float*>(y), m.y_stride),
          weight);
    }
  });
}

template <class Codec>
void multiply_batch(const ggml_compute_params* params, const Plan& plan, const Matrices& m, const ggml_tensor* weight) {
  const size_t k = static_cast<size_t>(plan.k);
  char* prepared = work_of(params) + plan.x;
  char* refused = work_of(params) + plan.flags;
  const auto prepare = [&](Activations kind) {
    const size_t chunk_bytes = Codec::batch_bytes(kind, pn::cpu::batch_tokens, k);
    share_out(params, plan.chunks, [&](int64_t chunk) {
      const int64_t first = chunk * batch_tokens;
      const Status status =
          Codec::prepare_batch(kind, reinterpret_cast<const float*>(m.x + static_cast<size_t>(first) * m.x_stride),
                               m.x_stride, static_cast<size_t>(std::min(batch_tokens, plan.tokens - first)), k,
                               prepared + static_cast<size_t>(chunk) * chunk_bytes);
      refused[chunk] = Codec::refused(status);
      if (refused[chunk] == 0) check(status, weight);
    });
    ggml_barrier(params->threadpool);
  };
  if (params->ith == 0) ggml_threadpool_chunk_set(params->threadpool, params->nth);
  prepare(Codec::kind(k));
  if (std::find(refused, refused + plan.chunks, 1) != refused + plan.chunks) {
    ggml_barrier(params->threadpool);  // all have seen it
    prepare(Activations::f32);
  }
  share_out_rows(params, plan.rows, 32, 8, [&](size_t first, size_t rows) {
    check(Codec::multiply_batch(m.weight + first * m.weight_stride, m.weight_stride, rows, k, prepared,
                                static_cast<size_t>(plan.tokens), reinterpret_cast<float*>(m.y + first * sizeof(float)),
                                m.y_stride),
          weight);
  });
}

// A matrix [rows][k] of the engine's, in memory of ours.
ggml_tensor matrix(ggml_type type, int64_t k, int64_t rows, const void* data, size_t stride) {
  ggml_tensor t = {};
  t.type = type;
  t.ne[0] = k;
  t.ne[1] = rows;
  t.ne[2] = t.ne[3] = 1;
  t.nb[0] = ggml_type_size(type);
  t.nb[1] = stride;
  t.nb[2] = t.nb[3] = stride * static_cast<size_t>(rows);
  t.data = const_cast<void*>(data);
  return t;
}

template <class Codec>
void multiply_slices(ggml_compute_params* params, const Plan& plan, const Matrices& m, const ggml_tensor* weight) {
  const size_t k = static_cast<size_t>(plan.k);
  const size_t row_bytes = ggml_row_size(GGML_TYPE_BF16, plan.k);
  char* work = work_of(params);
  // The engine multiplies weights in BF16 by activations in BF16.
  ggml_tensor x = matrix(GGML_TYPE_BF16, plan.k, plan.tokens, work + plan.x, row_bytes);
  share_out(params, plan.tokens, [&](int64_t token) {
    ggml_get_type_traits_cpu(GGML_TYPE_BF16)
        ->from_float(reinterpret_cast<const float*>(m.x + static_cast<size_t>(token) * m.x_stride),
                     static_cast<char*>(x.data) + static_cast<size_t>(token) * row_bytes, plan.k);
  });
  ggml_compute_params rest = *params;
  rest.wdata = work + plan.end;
  rest.wsize = 0;  // all it needs has been made
  for (int64_t first = 0; first < plan.rows; first += plan.slice_rows) {
    const int64_t rows = std::min(plan.slice_rows, plan.rows - first);
    ggml_barrier(params->threadpool);  // the last slice has been multiplied, and x is ready
    share_out(params, (rows + 15) / 16, [&](int64_t part) {
      const int64_t begin = part * 16;
      check(Codec::decode(m.weight + static_cast<size_t>(first + begin) * m.weight_stride, m.weight_stride,
                          static_cast<size_t>(std::min<int64_t>(16, rows - begin)), k, Element::bf16,
                          work + plan.slice + static_cast<size_t>(begin) * row_bytes, row_bytes),
            weight);
    });
    ggml_barrier(params->threadpool);
    ggml_tensor slice = matrix(GGML_TYPE_BF16, plan.k, rows, work + plan.slice, row_bytes);
    ggml_tensor y =
        matrix(GGML_TYPE_F32, rows, plan.tokens, m.y + static_cast<size_t>(first) * sizeof(float), m.y_stride);
    y.op = GGML_OP_MUL_MAT;
    y.src[0] = &slice;
    y.src[1] = &x;
    ggml_compute_forward_mul_mat(&rest, &y);
  }
}

template <class Codec>
void mul_mat(ggml_compute_params* params, ggml_tensor* op) {
  const ggml_tensor* weight = op->src[0];
  const ggml_tensor* x = op->src[1];
  const Plan plan = plan_of<Codec>(op);
  GGML_ASSERT(params->wsize >= plan.end + alignment);
  const int64_t r2 = x->ne[2] / weight->ne[2];
  const int64_t r3 = x->ne[3] / weight->ne[3];
  for (int64_t i = 0; i < x->ne[2] * x->ne[3]; ++i) {
    const int64_t i2 = i % x->ne[2];
    const int64_t i3 = i / x->ne[2];
    const auto at = [](const ggml_tensor* t, int64_t second, int64_t third) {
      return static_cast<char*>(t->data) + static_cast<size_t>(second) * t->nb[2] +
             static_cast<size_t>(third) * t->nb[3];
    };
    Matrices m = {at(weight, i2 / r2, i3 / r3), weight->nb[1], at(x, i2, i3), x->nb[1], at(op, i2, i3), op->nb[1]};
    if (i > 0) ggml_barrier(params->threadpool);  // the last one is done
    if (plan.changes) {
      change<Codec>(params, plan, m, weight);
      ggml_barrier(params->threadpool);
    }
    if (plan.way == Way::few) {
      multiply_few<Codec>(params, plan, m, weight);
    } else if constexpr (Codec::has_batch) {
      multiply_batch<Codec>(params, plan, m, weight);
    } else {
      multiply_slices<Codec>(params, plan, m, weight);
    }
  }
}

// ---- Embedding look-up ----

template <class Codec>
void get_rows(const ggml_compute_params* params, ggml_tensor* op) {
  const ggml_tensor* weight = op->src[0];
  const ggml_tensor* ids = op->src[1];
  const size_t k = static_cast<size_t>(weight->ne[0]);
  const int64_t count = ggml_nelements(ids);
  for (int64_t i = params->ith; i < count; i += params->nth) {
    const size_t i0 = static_cast<size_t>(i % ids->ne[0]);
    const size_t i1 = static_cast<size_t>(i / ids->ne[0] % ids->ne[1]);
    const size_t i2 = static_cast<size_t>(i / ids->ne[0] / ids->ne[1]);
    int32_t id;
    std::memcpy(&id, static_cast<char*>(ids->data) + i0 * ids->nb[0] + i1 * ids->nb[1] + i2 * ids->nb[2], sizeof id);
    GGML_ASSERT(id >= 0 && id < weight->ne[1]);
    auto* out =
        reinterpret_cast<float*>(static_cast<char*>(op->data) + i0 * op->nb[1] + i1 * op->nb[2] + i2 * op->nb[3]);
    check(Codec::decode(static_cast<char*>(weight->data) + static_cast<size_t>(id) * weight->nb[1] +
                            i1 * weight->nb[2] + i2 * weight->nb[3],
                        weight->nb[1], 1, k, Element::f32, out, sizeof(float) * k),
          weight);
    const int rotation = ggml_pn_rotation(weight);
    if (rotation != 0) check(pn::hadamard_weights(out, out, k, static_cast<size_t>(rotation)), weight);
  }
}

// ---- What the backend asks ----

template <class Codec>
class Traits final : public ggml::cpu::tensor_traits {
 public:
  bool work_size(int, const ggml_tensor* op, size_t& size) override {
    size = op->op == GGML_OP_MUL_MAT ? plan_of<Codec>(op).end + alignment : 0;
    return true;
  }

  bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
    if (op->op == GGML_OP_MUL_MAT) {
      mul_mat<Codec>(params, op);
    } else {
      get_rows<Codec>(params, op);
    }
    return true;
  }
};

template <class Codec>
ggml::cpu::tensor_traits* traits() {
  static Traits<Codec> one;
  return &one;
}

class Types final : public ggml::cpu::extra_buffer_type {
 public:
  bool supports_op(ggml_backend_dev_t, const ggml_tensor*) override { return false; }  // nothing lies in our buffers

  ggml::cpu::tensor_traits* get_tensor_traits(const ggml_tensor* op) override {
    const ggml_tensor* weight = op->src[0];
    if (op->op == GGML_OP_MUL_MAT) {
      if (op->src[1]->type != GGML_TYPE_F32 || !ggml_is_contiguous_1(op->src[1])) return unsupported(weight);
    } else if (op->op != GGML_OP_GET_ROWS) {
      return nullptr;
    }
    switch (weight->type) {
      case GGML_TYPE_PN3T: return traits<Pn<pn::pn3t>>();
      case GGML_TYPE_PN4T: return traits<Pn<pn::pn4t>>();
      case GGML_TYPE_BF16_P12: return traits<P12>();
      case GGML_TYPE_BF16:
        // Only what is multiplied by the kernels; the rest is the engine's.
        return settings().bf16 && op->op == GGML_OP_MUL_MAT && weight->nb[0] == 2 &&
                       weight->ne[0] % static_cast<int64_t>(p12::block_size) == 0 && plan_of<Bf16>(op).way == Way::few
                   ? traits<Bf16>()
                   : nullptr;
      default: return nullptr;
    }
  }

 private:
  // The engine's general way, through vec_dot, knows nothing of rotations.
  static ggml::cpu::tensor_traits* unsupported(const ggml_tensor* weight) {
    if (ggml_pn_is_type(weight->type) && ggml_pn_rotation(weight) != 0)
      GGML_ABORT("%s: rotated weights times activations that are not contiguous rows of fp32", weight->name);
    return nullptr;
  }
};

const char* buffer_name(ggml_backend_buffer_type_t) { return "CPU_PN"; }

// The engine makes an empty one to ask whether weights may lie in it.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
  if (buffer != nullptr) buffer->buft = type;
  return buffer;
}

size_t get_alignment(ggml_backend_buffer_type_t) { return alignment; }

}  // namespace

ggml_backend_buffer_type* ggml_pn_cpu_buffer_type() {
  static Types types;
  static ggml_backend_buffer_type type = {
      {buffer_name, alloc_buffer, get_alignment, nullptr, nullptr, nullptr},
      ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
      &types,
  };
  return &type;
}

// ---- vec_dot ----

namespace {

template <class T>
void pn_vec_dot(int k, float* y, const void* w, const void* x) {
  const Status status =
      pn::dot_f32<T>(static_cast<const pn::Block34*>(w), static_cast<const float*>(x), static_cast<size_t>(k), y);
  if (status != Status::ok) GGML_ABORT("vec_dot of %d weights: %s", k, pn::status_text(status));
}

}  // namespace

void ggml_pn3t_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int) {
  pn_vec_dot<pn::pn3t>(k, y, w, x);
}

void ggml_pn4t_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int) {
  pn_vec_dot<pn::pn4t>(k, y, w, x);
}

void ggml_p12_vec_dot(int k, float* y, size_t, const void* w, size_t, const void* x, size_t, int) {
  const auto* activation = static_cast<const float*>(x);
  double sum = 0;
  for (int block = 0; block < k / static_cast<int>(p12::block_size); ++block) {
    float weights[p12::block_size];
    ggml_p12_to_float(static_cast<const p12::Block392*>(w) + block, weights, p12::block_size);
    for (const float weight : weights) sum += static_cast<double>(weight) * *activation++;
  }
  *y = static_cast<float>(sum);
}
