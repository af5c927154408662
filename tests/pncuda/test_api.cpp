// The C ABI of pncuda.h: every status, what a launch does not do, devices, capture, threads.
#include <map>
#include <set>
#include <thread>

#include "testing.hpp"

using namespace testing;

namespace {

int cuda_status(cudaError_t error) { return PNCUDA_CUDA_ERROR + static_cast<int>(error); }

std::set<int> provoked;  // statuses, by all tests of this file

// Arguments that are right for everything; a test makes one of them wrong.
struct Setup {
  Restore restore;
  Random random{1};
  Weights matrix{PNCUDA_PN3T, 20, 8, random};
  Activations x{PNCUDA_F16, 3, 640, random};
  Output y{3, 20 * 4, 20 * 4};
  Output decoded{4, 640 * 2, 640 * 2};
  Output packed{1, 20 * 8 * 34, 20 * 8 * 34};
  Output unpacked{20, 8 * 34, 8 * 34};
  Output turned{3, 640 * 2, 640 * 2};
  Input ids{std::vector<uint8_t>(16, 0)};
  pncuda_weights weights, repacked;
  pncuda_gemv_args gemv;
  pncuda_decode_args decode;
  pncuda_get_rows_args get_rows;
  pncuda_hadamard_args hadamard;

  explicit Setup(const host_cuda::Device& device = host_cuda::h100()) {
    use(device);
    weights = matrix.native();
    repacked = matrix.repacked();
    gemv = gemv_args(weights, x, y, {});
    decode = {sizeof decode, &weights, 1, 4, 3, 640 - 3, decoded.data(), decoded.stride(), PNCUDA_F16, 0};
    get_rows = {sizeof get_rows, &weights, ids.data(), 4, 4, PNCUDA_F16, decoded.data(), decoded.stride()};
    hadamard = {
        sizeof hadamard, x.data(), x.stride(), turned.data(), turned.stride(), PNCUDA_F16, PNCUDA_F16, 3, 640, 128, 0};
    REQUIRE(pncuda_gemv(&gemv, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_decode(&decode, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_get_rows(&get_rows, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_hadamard(&hadamard, nullptr) == PNCUDA_OK);
    for (const Output* out : {&y, &decoded, &packed, &unpacked, &turned}) out->clear();
    host_cuda::reset_calls();
  }
  bool nothing_happened() const {
    return host_cuda::calls().count("launch") == 0 && y.untouched() && decoded.untouched() && packed.untouched() &&
           unpacked.untouched() && turned.untouched() && matrix.unchanged() && x.unchanged();
  }
};

#define REFUSED(setup, want, call)                            \
  do {                                                        \
    host_cuda::reset_calls();                                 \
    const pncuda_status got = (call);                         \
    provoked.insert(got);                                     \
    REQUIRE(static_cast<int>(got) == static_cast<int>(want)); \
    REQUIRE((setup).nothing_happened());                      \
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);            \
  } while (false)

// Makes one field wrong and asks every function that takes the arguments.
template <class Change>
void refused_gemv(pncuda_status want, Change&& change, bool query_too = true) {
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()}) {
    Setup s(device);
    change(s);
    REFUSED(s, want, pncuda_gemv(&s.gemv, nullptr));
    pncuda_gemv_plan plan{};
    plan.struct_size = sizeof plan;
    plan.path = 77;
    const pncuda_status query = pncuda_gemv_query(&s.gemv, &plan);
    REQUIRE(query == (query_too ? want : PNCUDA_OK));
    if (query_too) REQUIRE(plan.path == 77);
    REQUIRE(s.nothing_happened());
  }
}
template <class Change>
void refused_weights(pncuda_status want, Change&& change, bool query_too = true) {
  refused_gemv(
      want, [&](Setup& s) { change(s.weights); }, query_too);
  Setup s;
  change(s.weights);
  change(s.repacked);
  REFUSED(s, want, pncuda_decode(&s.decode, nullptr));
  REFUSED(s, want, pncuda_get_rows(&s.get_rows, nullptr));
  REFUSED(s, want, pncuda_repack(&s.weights, s.packed.data(), nullptr));
  REFUSED(s, want, pncuda_unrepack(&s.repacked, s.unpacked.data(), s.unpacked.stride(), nullptr));
  if (query_too) {
    pncuda_weights shard{};
    shard.rows = 77;
    REFUSED(s, want, pncuda_row_shard(&s.weights, 0, 1, &shard));
    REFUSED(s, want, pncuda_column_shard(&s.weights, 0, 80, &shard));
    REQUIRE(shard.rows == 77);
    REQUIRE(pncuda_weights_size(&s.weights) == 0);
    REQUIRE(pncuda_weights_size(&s.repacked) == 0);
  }
}

// ---- Statuses ----

TEST_CASE("api: null pointers", "[api]") {
  Setup s;
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_gemv(nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_gemv_query(nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_gemv_query(&s.gemv, nullptr));
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_gemv_query(nullptr, &plan));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_decode(nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_get_rows(nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_hadamard(nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_repack(nullptr, s.packed.data(), nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_repack(&s.weights, nullptr, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_unrepack(nullptr, s.unpacked.data(), 272, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_unrepack(&s.repacked, nullptr, 272, nullptr));
  pncuda_weights shard{};
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_row_shard(nullptr, 0, 1, &shard));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_row_shard(&s.weights, 0, 1, nullptr));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_column_shard(nullptr, 0, 80, &shard));
  REFUSED(s, PNCUDA_NULL_POINTER, pncuda_column_shard(&s.weights, 0, 80, nullptr));
  REQUIRE(pncuda_weights_size(nullptr) == 0);

  refused_gemv(PNCUDA_NULL_POINTER, [](Setup& t) { t.gemv.weights = nullptr; });
  refused_gemv(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.gemv.x = nullptr; }, false);
  refused_gemv(
      PNCUDA_NULL_POINTER, [](Setup& t) { t.gemv.y = nullptr; }, false);
  refused_weights(
      PNCUDA_NULL_POINTER, [](pncuda_weights& w) { w.data = nullptr; }, false);

  Setup t;
  t.decode.weights = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_decode(&t.decode, nullptr));
  t.decode.weights = &t.weights;
  t.decode.out = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_decode(&t.decode, nullptr));
  t.get_rows.weights = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_get_rows(&t.get_rows, nullptr));
  t.get_rows.weights = &t.weights;
  t.get_rows.ids = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_get_rows(&t.get_rows, nullptr));
  t.get_rows.ids = t.ids.data();
  t.get_rows.out = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_get_rows(&t.get_rows, nullptr));
  t.hadamard.x = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_hadamard(&t.hadamard, nullptr));
  t.hadamard.x = t.x.data();
  t.hadamard.out = nullptr;
  REFUSED(t, PNCUDA_NULL_POINTER, pncuda_hadamard(&t.hadamard, nullptr));
}

TEST_CASE("api: sizes of structs", "[api]") {
  for (const int by : {-8, -1, 1, 8, 1000}) {
    const auto wrong = [by](std::size_t& size) { size += static_cast<std::size_t>(by); };
    refused_gemv(PNCUDA_STRUCT_SIZE, [&](Setup& s) { wrong(s.gemv.struct_size); });
    refused_weights(PNCUDA_STRUCT_SIZE, [&](pncuda_weights& w) { wrong(w.struct_size); });
    Setup s;
    wrong(s.decode.struct_size);
    REFUSED(s, PNCUDA_STRUCT_SIZE, pncuda_decode(&s.decode, nullptr));
    wrong(s.get_rows.struct_size);
    REFUSED(s, PNCUDA_STRUCT_SIZE, pncuda_get_rows(&s.get_rows, nullptr));
    wrong(s.hadamard.struct_size);
    REFUSED(s, PNCUDA_STRUCT_SIZE, pncuda_hadamard(&s.hadamard, nullptr));
    pncuda_gemv_plan plan{};
    plan.struct_size = sizeof plan;
    wrong(plan.struct_size);
    REFUSED(s, PNCUDA_STRUCT_SIZE, pncuda_gemv_query(&s.gemv, &plan));
  }
}

TEST_CASE("api: types, layouts and modes that are none", "[api]") {
  for (const int bad : {-1, 3, 123, 127, 1 << 30}) {
    refused_gemv(PNCUDA_BAD_ENUM, [&](Setup& s) { s.gemv.x_type = bad; });
    refused_gemv(PNCUDA_BAD_ENUM, [&](Setup& s) { s.gemv.y_type = bad; });
    refused_gemv(PNCUDA_BAD_ENUM, [&](Setup& s) { s.gemv.mode = bad; });
    refused_weights(PNCUDA_BAD_ENUM, [&](pncuda_weights& w) { w.type = bad; });
    refused_weights(PNCUDA_BAD_ENUM, [&](pncuda_weights& w) { w.layout = bad; });
    Setup s;
    s.decode.out_type = bad;
    REFUSED(s, PNCUDA_BAD_ENUM, pncuda_decode(&s.decode, nullptr));
    s.get_rows.out_type = bad;
    REFUSED(s, PNCUDA_BAD_ENUM, pncuda_get_rows(&s.get_rows, nullptr));
    s.get_rows.out_type = PNCUDA_F16;
    s.get_rows.id_bytes = bad;
    REFUSED(s, PNCUDA_BAD_ENUM, pncuda_get_rows(&s.get_rows, nullptr));
    s.hadamard.x_type = bad;
    REFUSED(s, PNCUDA_BAD_ENUM, pncuda_hadamard(&s.hadamard, nullptr));
    s.hadamard.x_type = PNCUDA_F16;
    s.hadamard.out_type = bad;
    REFUSED(s, PNCUDA_BAD_ENUM, pncuda_hadamard(&s.hadamard, nullptr));
  }
  Setup s;
  s.decode.reserved = 1;
  REFUSED(s, PNCUDA_BAD_ENUM, pncuda_decode(&s.decode, nullptr));
  s.hadamard.reserved = 1;
  REFUSED(s, PNCUDA_BAD_ENUM, pncuda_hadamard(&s.hadamard, nullptr));
}

TEST_CASE("api: negative sizes", "[api]") {
  for (const int64_t bad : {int64_t{-1}, int64_t{-80}, INT64_MIN}) {
    refused_gemv(PNCUDA_NEGATIVE_SIZE, [&](Setup& s) { s.gemv.tokens = bad; });
    refused_weights(PNCUDA_NEGATIVE_SIZE, [&](pncuda_weights& w) { w.rows = bad; });
    refused_weights(PNCUDA_NEGATIVE_SIZE, [&](pncuda_weights& w) { w.k = bad; });
    for (int64_t pncuda_decode_args::*field : {&pncuda_decode_args::first_row, &pncuda_decode_args::rows,
                                               &pncuda_decode_args::first_column, &pncuda_decode_args::columns}) {
      Setup s;
      s.decode.*field = bad;
      REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_decode(&s.decode, nullptr));
    }
    Setup s;
    s.get_rows.count = bad;
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_get_rows(&s.get_rows, nullptr));
    s.hadamard.tokens = bad;
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_hadamard(&s.hadamard, nullptr));
    s.hadamard.tokens = 3;
    s.hadamard.k = bad;
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_hadamard(&s.hadamard, nullptr));
    pncuda_weights shard{};
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_row_shard(&s.weights, bad, 1, &shard));
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_row_shard(&s.weights, 0, bad, &shard));
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_column_shard(&s.weights, bad, 80, &shard));
    REFUSED(s, PNCUDA_NEGATIVE_SIZE, pncuda_column_shard(&s.weights, 0, bad, &shard));
  }
}

TEST_CASE("api: lengths, tokens, Hadamard blocks", "[api]") {
  for (const int64_t k : {1, 64, 79, 81, 639}) refused_weights(PNCUDA_BAD_LENGTH, [&](pncuda_weights& w) { w.k = k; });
  refused_weights(PNCUDA_BAD_LENGTH, [&](pncuda_weights& w) {
    w.type = PNCUDA_PN4T;
    w.k = 80;
  });
  for (const int64_t tokens : {int64_t{9}, int64_t{1} << 32, INT64_MAX})
    refused_gemv(PNCUDA_TOO_MANY_TOKENS, [&](Setup& s) { s.gemv.tokens = tokens; });
  for (const int block : {-64, -1, 1, 32, 63, 65, 96, 256, 512, 1024, 2048}) {  // k = 640
    refused_gemv(PNCUDA_BAD_HADAMARD_BLOCK, [&](Setup& s) { s.gemv.hadamard_block = block; });
    Setup s;
    s.hadamard.block = block;
    REFUSED(s, PNCUDA_BAD_HADAMARD_BLOCK, pncuda_hadamard(&s.hadamard, nullptr));
  }
}

TEST_CASE("api: alignment", "[api]") {
  const auto by = [](const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; };
  refused_gemv(
      PNCUDA_MISALIGNED, [&](Setup& s) { s.gemv.x = by(s.gemv.x, 1); }, false);
  refused_gemv(
      PNCUDA_MISALIGNED, [&](Setup& s) { s.gemv.y = const_cast<uint8_t*>(by(s.gemv.y, 2)); }, false);
  refused_gemv(PNCUDA_MISALIGNED, [&](Setup& s) { s.gemv.x_stride += 1; });
  refused_gemv(PNCUDA_MISALIGNED, [&](Setup& s) { s.gemv.y_stride += 2; });
  Setup s;
  for (const int64_t bytes : {1, 3}) {
    s.weights.data = by(s.matrix.row(0), bytes);
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_gemv(&s.gemv, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_decode(&s.decode, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_get_rows(&s.get_rows, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_repack(&s.weights, s.packed.data(), nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_unrepack(&s.repacked, s.unpacked.data() + bytes, 272, nullptr));
  }
  s.weights.data = s.matrix.row(0);
  s.weights.row_stride = 273;
  REFUSED(s, PNCUDA_MISALIGNED, pncuda_gemv(&s.gemv, nullptr));
  REFUSED(s, PNCUDA_MISALIGNED, pncuda_repack(&s.weights, s.packed.data(), nullptr));
  REFUSED(s, PNCUDA_MISALIGNED, pncuda_unrepack(&s.repacked, s.unpacked.data(), 273, nullptr));
  s.weights.row_stride = 272;
  for (const int64_t bytes : {1, 2, 4, 8}) {  // repacked: 16
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_repack(&s.weights, s.packed.data() + bytes, nullptr));
    pncuda_weights shifted = s.repacked;
    shifted.data = by(s.repacked.data, bytes);
    s.gemv.weights = &shifted;
    s.decode.weights = &shifted;
    s.get_rows.weights = &shifted;
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_gemv(&s.gemv, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_decode(&s.decode, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_get_rows(&s.get_rows, nullptr));
    REFUSED(s, PNCUDA_MISALIGNED, pncuda_unrepack(&shifted, s.unpacked.data(), 272, nullptr));
  }
  Setup t;
  t.decode.out = t.decoded.data() + 1;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_decode(&t.decode, nullptr));
  t.decode.out = t.decoded.data();
  t.decode.out_stride += 1;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_decode(&t.decode, nullptr));
  t.get_rows.ids = t.ids.data() + 2;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_get_rows(&t.get_rows, nullptr));
  t.get_rows.ids = t.ids.data() + 4;
  t.get_rows.id_bytes = 8;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_get_rows(&t.get_rows, nullptr));
  t.hadamard.x = by(t.x.data(), 1);
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_hadamard(&t.hadamard, nullptr));
  t.hadamard.x = t.x.data();
  t.hadamard.out = t.turned.data() + 1;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_hadamard(&t.hadamard, nullptr));
  t.hadamard.out = t.turned.data();
  t.hadamard.out_stride += 1;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_hadamard(&t.hadamard, nullptr));
  t.hadamard.out_stride -= 1;
  t.hadamard.x_stride += 1;
  REFUSED(t, PNCUDA_MISALIGNED, pncuda_hadamard(&t.hadamard, nullptr));
}

TEST_CASE("api: strides", "[api]") {
  for (const int64_t stride : {int64_t{0}, int64_t{1278}, int64_t{-1280}, INT64_MIN})
    refused_gemv(PNCUDA_BAD_STRIDE, [&](Setup& s) { s.gemv.x_stride = stride; });
  for (const int64_t stride : {int64_t{0}, int64_t{76}, int64_t{-80}})
    refused_gemv(PNCUDA_BAD_STRIDE, [&](Setup& s) { s.gemv.y_stride = stride; });
  for (const int64_t stride : {int64_t{0}, int64_t{270}, int64_t{-272}, INT64_MIN}) {
    refused_gemv(PNCUDA_BAD_STRIDE, [&](Setup& s) { s.weights.row_stride = stride; });
    Setup s;
    s.weights.row_stride = stride;
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_decode(&s.decode, nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_get_rows(&s.get_rows, nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_repack(&s.weights, s.packed.data(), nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_unrepack(&s.repacked, s.unpacked.data(), stride, nullptr));
  }
  Setup s;
  for (const int64_t stride : {int64_t{272}, int64_t{2}, int64_t{-2}}) {  // repacked: 0
    s.repacked.row_stride = stride;
    s.gemv.weights = s.decode.weights = s.get_rows.weights = &s.repacked;
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_gemv(&s.gemv, nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_decode(&s.decode, nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_get_rows(&s.get_rows, nullptr));
    REFUSED(s, PNCUDA_BAD_STRIDE, pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, nullptr));
  }
  Setup t;
  t.decode.out_stride = (640 - 3) * 2 - 2;
  REFUSED(t, PNCUDA_BAD_STRIDE, pncuda_decode(&t.decode, nullptr));
  t.get_rows.out_stride = 1278;
  REFUSED(t, PNCUDA_BAD_STRIDE, pncuda_get_rows(&t.get_rows, nullptr));
  t.hadamard.x_stride = 1278;
  REFUSED(t, PNCUDA_BAD_STRIDE, pncuda_hadamard(&t.hadamard, nullptr));
  t.hadamard.x_stride = 1280;
  t.hadamard.out_stride = -1280;
  REFUSED(t, PNCUDA_BAD_STRIDE, pncuda_hadamard(&t.hadamard, nullptr));
}

TEST_CASE("api: ranges", "[api]") {
  struct Range {
    int64_t first_row, rows, first_column, columns;
  };
  for (const Range& r :
       {Range{17, 4, 0, 1}, Range{21, 0, 0, 1}, Range{0, 21, 0, 1}, Range{0, 1, 1, 640}, Range{0, 1, 641, 0},
        Range{INT64_MAX, 1, 0, 1}, Range{1, INT64_MAX, 0, 1}, Range{0, 1, INT64_MAX, 1}, Range{0, 1, 1, INT64_MAX}}) {
    Setup s;
    s.decode.first_row = r.first_row;
    s.decode.rows = r.rows;
    s.decode.first_column = r.first_column;
    s.decode.columns = r.columns;
    REFUSED(s, PNCUDA_OUT_OF_RANGE, pncuda_decode(&s.decode, nullptr));
  }
  Setup s;
  pncuda_weights shard{};
  for (const auto& [first, rows] :
       {std::pair<int64_t, int64_t>{0, 21}, {20, 1}, {21, 0}, {INT64_MAX, 1}, {1, INT64_MAX}}) {
    REFUSED(s, PNCUDA_OUT_OF_RANGE, pncuda_row_shard(&s.weights, first, rows, &shard));
    REFUSED(s, PNCUDA_OUT_OF_RANGE, pncuda_row_shard(&s.repacked, first, rows, &shard));
  }
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{1, 16}, {8, 12}, {0, 15}, {0, 17}, {15, 5}})
    REFUSED(s, PNCUDA_OUT_OF_RANGE, pncuda_row_shard(&s.repacked, first, rows, &shard));
  for (const auto& [first, columns] :
       {std::pair<int64_t, int64_t>{0, 720}, {640, 80}, {720, 0}, {1, 80}, {0, 79}, {40, 80}, {INT64_MAX - 7, 80}})
    REFUSED(s, PNCUDA_OUT_OF_RANGE, pncuda_column_shard(&s.weights, first, columns, &shard));
  REQUIRE(shard.struct_size == 0);
}

TEST_CASE("api: what has no kernel", "[api]") {
  Setup s;
  pncuda_weights shard{};
  REFUSED(s, PNCUDA_UNSUPPORTED, pncuda_repack(&s.repacked, s.packed.data(), nullptr));
  REFUSED(s, PNCUDA_UNSUPPORTED, pncuda_unrepack(&s.weights, s.unpacked.data(), 272, nullptr));
  REFUSED(s, PNCUDA_UNSUPPORTED, pncuda_column_shard(&s.repacked, 0, 80, &shard));
}

// Sizes that no memory has: told by the arguments alone.
TEST_CASE("api: sizes that do not fit", "[api]") {
  Setup s;
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  const pncuda_weights before = s.weights;
  const auto query = [&](int64_t rows, int64_t k, int64_t stride) {
    s.weights = before;
    s.weights.rows = rows;
    s.weights.k = k;
    s.weights.row_stride = stride;
    s.gemv.x_stride = std::max<int64_t>(0, std::min(k, INT64_MAX / 4)) * 2;
    s.gemv.y_stride = std::max<int64_t>(0, std::min(rows, INT64_MAX / 8)) * 4;
    return pncuda_gemv_query(&s.gemv, &plan);
  };
  // Large, but not too large.
  REQUIRE(query(int64_t{1} << 31, 5120, 64 * 34) == PNCUDA_OK);
  REQUIRE(plan.path == PNCUDA_PATH_TENSOR);
  REQUIRE(query((int64_t{1} << 33) + 5, 80, 34) == PNCUDA_OK);
  REQUIRE(query(1 << 20, 17600, int64_t{1} << 38) == PNCUDA_OK);
  REQUIRE(pncuda_weights_size(&s.weights) == size_t{220 * 34} << 20);
  REQUIRE(query(16, int64_t{80} << 24, int64_t{34} << 24) == PNCUDA_OK);
  // Too large.
  REFUSED(s, PNCUDA_TOO_LARGE, query(1 << 20, 80, int64_t{1} << 43));
  REFUSED(s, PNCUDA_TOO_LARGE, query(INT64_MAX, 80, 34));
  REFUSED(s, PNCUDA_TOO_LARGE, query(INT64_MAX / 34, 80, 34));
  REFUSED(s, PNCUDA_TOO_LARGE, query(1, INT64_MAX / 80 * 80, INT64_MAX - 1));
  REFUSED(s, PNCUDA_TOO_LARGE, query(1, int64_t{80} << 32, int64_t{34} << 32));
  REFUSED(s, PNCUDA_TOO_LARGE, query(4, 80, INT64_MAX - 1));
  REQUIRE(pncuda_weights_size(&s.weights) == 0);
  s.weights = before;
  s.gemv.x_stride = INT64_MAX - 1;
  s.gemv.y_stride = 80;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_gemv(&s.gemv, nullptr));
  s.gemv.x_stride = 1280;
  s.gemv.y_stride = INT64_MAX - 3;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_gemv(&s.gemv, nullptr));
  s.decode.out_stride = INT64_MAX - 1;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_decode(&s.decode, nullptr));
  s.get_rows.out_stride = INT64_MAX - 1;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_get_rows(&s.get_rows, nullptr));
  s.hadamard.out_stride = INT64_MAX - 1;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_hadamard(&s.hadamard, nullptr));
  s.hadamard.out_stride = 1280;
  s.hadamard.k = INT64_MAX / 1024 * 1024;
  s.hadamard.x_stride = s.hadamard.out_stride = INT64_MAX - 1;
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_hadamard(&s.hadamard, nullptr));
  REFUSED(s, PNCUDA_TOO_LARGE, pncuda_unrepack(&s.repacked, s.unpacked.data(), INT64_MAX - 1, nullptr));
}

// ---- Queries ----

TEST_CASE("api: the plan of a GEMV", "[api]") {
  struct Want {
    host_cuda::Device device;
    int mode, path;
  };
  for (const Want& want : {Want{host_cuda::p100(), PNCUDA_ACCURATE, PNCUDA_PATH_FFMA},
                           Want{host_cuda::p100(), PNCUDA_FAST_HALF2, PNCUDA_PATH_HFMA2},
                           Want{host_cuda::t4(), PNCUDA_ACCURATE, PNCUDA_PATH_FFMA},
                           Want{host_cuda::t4(), PNCUDA_FAST_HALF2, PNCUDA_PATH_HFMA2},
                           Want{host_cuda::a10(), PNCUDA_ACCURATE, PNCUDA_PATH_TENSOR},
                           Want{host_cuda::a10(), PNCUDA_FAST_HALF2, PNCUDA_PATH_TENSOR},
                           Want{host_cuda::h100(), PNCUDA_ACCURATE, PNCUDA_PATH_TENSOR}}) {
    Setup s(want.device);
    for (const int type : block_types)
      for (const int x_type : element_types)
        for (const int64_t k : {int64_t{0}, int64_t{640}, int64_t{5120}, int64_t{17920}, int64_t{320} << 20})
          for (int64_t tokens = 0; tokens <= 8; ++tokens)
            for (const int hadamard : {0, 64}) {
              const int64_t rows = 37;
              s.weights = {sizeof s.weights, type, PNCUDA_NATIVE, nullptr, rows, k, k / block_size_of(type) * 34};
              s.gemv.x = nullptr;
              s.gemv.y = nullptr;
              s.gemv.x_type = x_type;
              s.gemv.x_stride = k * bytes_of(x_type);
              s.gemv.y_stride = rows * 4;
              s.gemv.mode = want.mode;
              s.gemv.tokens = tokens;
              s.gemv.hadamard_block = hadamard;
              pncuda_gemv_plan plan{};
              plan.struct_size = sizeof plan;
              CAPTURE(want.device.name, name_of(type), name_of(x_type), k, tokens, hadamard);
              REQUIRE(pncuda_gemv_query(&s.gemv, &plan) == PNCUDA_OK);
              REQUIRE(plan.struct_size == sizeof plan);
              REQUIRE(plan.path == (tokens == 0 ? PNCUDA_PATH_NONE : want.path));
              if (tokens == 0) {
                REQUIRE(plan.launches == 0);
                continue;
              }
              REQUIRE(plan.tokens_per_launch >= 1);
              REQUIRE(plan.tokens_per_launch <= tokens);
              REQUIRE(plan.launches == (tokens + plan.tokens_per_launch - 1) / plan.tokens_per_launch);
              REQUIRE(plan.shared_bytes > 0);
              REQUIRE(plan.shared_bytes <= want.device.shared_per_block_optin);
            }
    REQUIRE(s.nothing_happened());
  }
}

TEST_CASE("api: as many launches as the plan says", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()})
    for (const int layout : layouts)
      for (int64_t tokens = 1; tokens <= 8; ++tokens) {
        Setup s(device);
        const Activations x(PNCUDA_F32, tokens, 640, s.random);
        const Output y(tokens, 80, 80);
        const pncuda_weights w = s.matrix.as(layout);
        const pncuda_gemv_args args = gemv_args(w, x, y, {});
        pncuda_gemv_plan plan{};
        plan.struct_size = sizeof plan;
        REQUIRE(pncuda_gemv_query(&args, &plan) == PNCUDA_OK);
        host_cuda::reset_calls();
        REQUIRE(pncuda_gemv(&args, nullptr) == PNCUDA_OK);
        const host_cuda::Calls calls = host_cuda::calls();
        CAPTURE(device.name, layout, tokens);
        REQUIRE(int64_t(calls.launches.size()) == plan.launches);
        std::size_t most = 0;
        for (const auto& launch : calls.launches) most = std::max(most, launch.shared);
        REQUIRE(int64_t(most) == plan.shared_bytes);
      }
}

TEST_CASE("api: sizes and shards of weights", "[api]") {
  Setup s;
  REQUIRE(pncuda_weights_size(&s.weights) == 20 * 8 * 34);
  REQUIRE(pncuda_weights_size(&s.repacked) == 20 * 8 * 34);
  pncuda_weights shard{};
  REQUIRE(pncuda_row_shard(&s.weights, 3, 5, &shard) == PNCUDA_OK);
  REQUIRE(shard.data == s.matrix.row(3));
  REQUIRE(shard.rows == 5);
  REQUIRE(shard.k == 640);
  REQUIRE(shard.row_stride == 272);
  REQUIRE(shard.struct_size == sizeof shard);
  REQUIRE(pncuda_row_shard(&s.repacked, 16, 4, &shard) == PNCUDA_OK);
  REQUIRE(shard.data == static_cast<const uint8_t*>(s.repacked.data) + 16 * 272);
  REQUIRE(shard.layout == PNCUDA_REPACKED);
  REQUIRE(shard.row_stride == 0);
  REQUIRE(pncuda_column_shard(&s.weights, 160, 320, &shard) == PNCUDA_OK);
  REQUIRE(shard.data == reinterpret_cast<const uint8_t*>(s.matrix.row(0)) + 68);
  REQUIRE(shard.k == 320);
  REQUIRE(shard.rows == 20);
  REQUIRE(shard.row_stride == 272);
  // Onto itself, without data.
  s.weights.data = nullptr;
  REQUIRE(pncuda_row_shard(&s.weights, 3, 5, &s.weights) == PNCUDA_OK);
  REQUIRE(s.weights.data == nullptr);
  REQUIRE(s.weights.rows == 5);
  REQUIRE(pncuda_column_shard(&s.weights, 80, 0, &shard) == PNCUDA_OK);
  REQUIRE(shard.data == nullptr);
  REQUIRE(s.nothing_happened());
}

TEST_CASE("api: texts and the version", "[api]") {
  std::set<std::string> texts;
  for (int status = 0; status <= 15; ++status) {
    const char* const text = pncuda_status_text(static_cast<pncuda_status>(status));
    REQUIRE(text != nullptr);
    const std::string words = text;
    REQUIRE(!words.empty());
    REQUIRE(words.back() != '.');
    REQUIRE(words.find("unknown") == std::string::npos);
    texts.insert(words);
  }
  REQUIRE(texts.size() == 16);
  for (const int status : {-1, 16, 999, 1 << 30})
    REQUIRE(pncuda_status_text(static_cast<pncuda_status>(status)) != nullptr);
  REQUIRE(std::string(pncuda_status_text(static_cast<pncuda_status>(PNCUDA_CUDA_ERROR + 719))) ==
          cudaGetErrorString(cudaErrorLaunchFailure));
  REQUIRE(pncuda_version() == 10000 * PN_VERSION_MAJOR + 100 * PN_VERSION_MINOR + PN_VERSION_PATCH);
}

// ---- What a launch does ----

// Everything that a launch may call.
void check_calls(const host_cuda::Calls& calls) {
  for (const auto& [name, count] : calls.counts) {
    CAPTURE(name, count);
    REQUIRE((name == "launch" || name == "cudaGetDevice"));
  }
}

TEST_CASE("api: launches do not allocate, synchronise or ask", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    const std::size_t allocated = host_cuda::allocated_bytes();
    for (const int mode : {PNCUDA_ACCURATE, PNCUDA_FAST_HALF2})
      for (const int hadamard : {0, 128}) {
        s.gemv.mode = mode;
        s.gemv.hadamard_block = hadamard;
        REQUIRE(pncuda_gemv(&s.gemv, nullptr) == PNCUDA_OK);
      }
    REQUIRE(pncuda_decode(&s.decode, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_get_rows(&s.get_rows, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_hadamard(&s.hadamard, nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_repack(&s.weights, s.packed.data(), nullptr) == PNCUDA_OK);
    REQUIRE(pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, nullptr) == PNCUDA_OK);
    check_calls(host_cuda::calls());
    REQUIRE(host_cuda::allocated_bytes() == allocated);
  }
}

TEST_CASE("api: launches go to the stream given", "[api]") {
  Setup s;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  host_cuda::reset_calls();
  REQUIRE(pncuda_gemv(&s.gemv, stream) == PNCUDA_OK);
  REQUIRE(pncuda_decode(&s.decode, stream) == PNCUDA_OK);
  REQUIRE(pncuda_get_rows(&s.get_rows, stream) == PNCUDA_OK);
  REQUIRE(pncuda_hadamard(&s.hadamard, stream) == PNCUDA_OK);
  REQUIRE(pncuda_repack(&s.weights, s.packed.data(), stream) == PNCUDA_OK);
  REQUIRE(pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, stream) == PNCUDA_OK);
  const host_cuda::Calls calls = host_cuda::calls();
  REQUIRE(calls.launches.size() == 6);
  for (const auto& launch : calls.launches) REQUIRE(launch.stream == stream);
  cudaStreamDestroy(stream);
}

// The device gets a number that no test has used, so that its first launch is inside the capture.
TEST_CASE("api: the first launch of a device is captured and replayed", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    const auto run = [&](pncuda_stream stream) {
      REQUIRE(pncuda_gemv(&s.gemv, stream) == PNCUDA_OK);
      REQUIRE(pncuda_decode(&s.decode, stream) == PNCUDA_OK);
      REQUIRE(pncuda_hadamard(&s.hadamard, stream) == PNCUDA_OK);
      REQUIRE(pncuda_repack(&s.weights, s.packed.data(), stream) == PNCUDA_OK);
      REQUIRE(pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, stream) == PNCUDA_OK);
    };
    run(nullptr);
    const auto results = [&] {
      std::vector<uint8_t> all;
      for (const Output* out : {&s.y, &s.decoded, &s.packed, &s.unpacked, &s.turned}) {
        const auto bytes = out->everything();
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      return all;
    };
    const std::vector<uint8_t> want = results();

    const int number = device.major == 6 ? 40 : 41;
    host_cuda::set_devices(std::vector<host_cuda::Device>(42, device));
    REQUIRE(pncuda_prepare(number) == PNCUDA_OK);
    REQUIRE(cudaSetDevice(number) == cudaSuccess);
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    for (const Output* out : {&s.y, &s.decoded, &s.packed, &s.unpacked, &s.turned}) out->clear();
    host_cuda::reset_calls();
    host_cuda::begin_capture(stream);
    run(stream);
    const host_cuda::Graph graph = host_cuda::end_capture();
    REQUIRE(graph.error == cudaSuccess);
    REQUIRE(graph.size() == 5);
    for (const std::string& name : host_cuda::calls().in_capture)
      REQUIRE((name == "launch" || name == "cudaGetDevice"));
    REQUIRE(s.y.untouched());
    for (int turn = 0; turn < 2; ++turn) {
      REQUIRE(graph.replay() == cudaSuccess);
      REQUIRE(results() == want);
      for (const Output* out : {&s.y, &s.decoded, &s.packed, &s.unpacked, &s.turned}) out->clear();
    }
    cudaStreamDestroy(stream);
  }
}

// ---- Devices ----

TEST_CASE("api: a device that is not prepared", "[api]") {
  Setup s;
  const Weights& weights = s.matrix;
  host_cuda::set_devices(std::vector<host_cuda::Device>(4, host_cuda::h100()));
  REQUIRE(pncuda_prepare(2) == PNCUDA_OK);
  int current = -1;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  REQUIRE(current == 0);  // given back
  REQUIRE(cudaSetDevice(3) == cudaSuccess);
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_gemv(&s.gemv, nullptr));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_gemv_query(&s.gemv, &plan));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_decode(&s.decode, nullptr));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_get_rows(&s.get_rows, nullptr));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_hadamard(&s.hadamard, nullptr));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_repack(&s.weights, s.packed.data(), nullptr));
  REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, nullptr));
  REQUIRE(cudaSetDevice(2) == cudaSuccess);
  REQUIRE(pncuda_gemv(&s.gemv, nullptr) == PNCUDA_OK);
  REQUIRE(cudaSetDevice(3) == cudaSuccess);
  REQUIRE(pncuda_prepare(3) == PNCUDA_OK);
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  REQUIRE(current == 3);
  REQUIRE(pncuda_gemv(&s.gemv, nullptr) == PNCUDA_OK);
  REQUIRE(weights.unchanged());
}

TEST_CASE("api: devices side by side, each with its own path", "[api]") {
  Setup s;
  host_cuda::set_devices({host_cuda::p100(), host_cuda::h100(), host_cuda::t4()});
  for (const int device : {2, 0, 1}) REQUIRE(pncuda_prepare(device) == PNCUDA_OK);
  pncuda_gemv_plan plan{};
  plan.struct_size = sizeof plan;
  for (const int device : {1, 0, 2, 1}) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    REQUIRE(pncuda_gemv_query(&s.gemv, &plan) == PNCUDA_OK);
    REQUIRE(plan.path == (device == 1 ? PNCUDA_PATH_TENSOR : PNCUDA_PATH_FFMA));
    REQUIRE(pncuda_gemv(&s.gemv, nullptr) == PNCUDA_OK);
  }
}

TEST_CASE("api: devices that cannot be prepared", "[api]") {
  Setup s;
  // A number that no test prepares.
  std::vector<host_cuda::Device> devices(50, host_cuda::h100());
  devices[45] = host_cuda::too_old();
  devices[46].has_kernels = false;
  host_cuda::set_devices(devices);
  for (const int number : {45, 46}) {
    REFUSED(s, PNCUDA_UNSUPPORTED_DEVICE, pncuda_prepare(number));
    int current = -1;
    REQUIRE(cudaGetDevice(&current) == cudaSuccess);
    REQUIRE(current == 0);
    REQUIRE(cudaSetDevice(number) == cudaSuccess);
    REFUSED(s, PNCUDA_NOT_PREPARED, pncuda_gemv(&s.gemv, nullptr));
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
  for (const int number : {-1, 50, 63, 64, 1 << 30})
    REFUSED(s, cuda_status(cudaErrorInvalidDevice), pncuda_prepare(number));
  host_cuda::set_devices({});
  REFUSED(s, cuda_status(cudaErrorNoDevice), pncuda_prepare(0));
  // A number that exists but is beyond what the library keeps.
  host_cuda::set_devices(std::vector<host_cuda::Device>(70, host_cuda::h100()));
  const pncuda_status status = pncuda_prepare(69);
  REQUIRE((status == PNCUDA_OK || status == PNCUDA_UNSUPPORTED_DEVICE));
  REQUIRE(cudaSetDevice(69) == cudaSuccess);
  REQUIRE(pncuda_gemv(&s.gemv, nullptr) == (status == PNCUDA_OK ? PNCUDA_OK : PNCUDA_NOT_PREPARED));
}

TEST_CASE("api: errors of CUDA's are told and not left behind", "[api]") {
  for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
    Setup s(device);
    int number = 50;
    for (const char* const call : {"cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute", "cudaFuncSetAttribute",
                                   "cudaFuncGetAttributes"}) {
      host_cuda::set_devices(std::vector<host_cuda::Device>(60, device));
      host_cuda::fail_next(call, cudaErrorUnknown);
      CAPTURE(call, device.name);
      REFUSED(s, cuda_status(cudaErrorUnknown), pncuda_prepare(number));
      int current = -1;
      REQUIRE(cudaGetDevice(&current) == cudaSuccess);
      REQUIRE(current == 0);
      ++number;
    }
    use(device);
    host_cuda::fail_next("cudaGetDevice", cudaErrorUnknown);
    REFUSED(s, cuda_status(cudaErrorUnknown), pncuda_decode(&s.decode, nullptr));
    const auto fails = [&](auto&& call) {
      host_cuda::reset_calls();
      host_cuda::fail_next("launch", cudaErrorLaunchFailure);
      REQUIRE(static_cast<int>(call()) == cuda_status(cudaErrorLaunchFailure));
      REQUIRE(host_cuda::calls().launches.empty());
      REQUIRE(host_cuda::calls().count("launch") == 1);
      REQUIRE(cudaPeekAtLastError() == cudaSuccess);
      REQUIRE(call() == PNCUDA_OK);
    };
    fails([&] { return pncuda_gemv(&s.gemv, nullptr); });
    fails([&] { return pncuda_decode(&s.decode, nullptr); });
    fails([&] { return pncuda_get_rows(&s.get_rows, nullptr); });
    fails([&] { return pncuda_hadamard(&s.hadamard, nullptr); });
    fails([&] { return pncuda_repack(&s.weights, s.packed.data(), nullptr); });
    fails([&] { return pncuda_unrepack(&s.repacked, s.unpacked.data(), 272, nullptr); });
  }
}

TEST_CASE("api: prepare from several threads at once", "[api]") {
  const Restore restore;
  for (int turn = 0; turn < 5; ++turn) {
    host_cuda::set_devices({host_cuda::p100(), host_cuda::h100()});
    std::vector<std::thread> threads;
    std::vector<pncuda_status> statuses(8, PNCUDA_UNSUPPORTED);
    for (std::size_t i = 0; i < statuses.size(); ++i)
      threads.emplace_back([&statuses, i] { statuses[i] = pncuda_prepare(static_cast<int>(i % 2)); });
    for (auto& thread : threads) thread.join();
    for (const pncuda_status status : statuses) REQUIRE(status == PNCUDA_OK);
  }
}

// Launches from several host threads do not disturb each other.
TEST_CASE("api: launches from several threads at once", "[api]") {
  Setup s;
  check_from_several_threads(s.gemv, testing::gemv(s.weights, s.x));
}

// Last in this file, as it looks at what the others have seen; with a filter it says nothing.
TEST_CASE("api: every status was provoked", "[api]") {
  if (provoked.size() < 8) return;
  for (int status = PNCUDA_NULL_POINTER; status <= PNCUDA_UNSUPPORTED; ++status) {
    if (status == PNCUDA_WORKSPACE_TOO_SMALL) continue;  // of pncuda_blas.h
    CAPTURE(status);
    REQUIRE(provoked.count(status) == 1);
  }
  REQUIRE(*provoked.rbegin() > PNCUDA_CUDA_ERROR);
}

}  // namespace
