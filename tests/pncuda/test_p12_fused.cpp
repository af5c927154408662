// pncuda_fused: several matrices, bias, residual and SiLU, experts, against pncuda_gemv and the formulas.
#include "p12_testing.hpp"

using namespace testing;

namespace {

constexpr int none = -1;

// What becomes of the sums of one matrix; types are `none` where there is no bias or residual.
struct Ending {
  int y_type = PNCUDA_F32, bias_type = none, residual_type = none;
  bool in_place = false;       // the residual is y
  int64_t pad = 0, shift = 0;  // elements, of results and residual
};
Ending random_ending(Random& random) {
  Ending ending;
  const auto type = [&] { return element_types[random.below(3)]; };
  ending.y_type = type();
  if (random.coin()) ending.bias_type = type();
  if (random.coin()) ending.residual_type = type();
  ending.in_place = ending.residual_type != none && random.below(3) == 0;
  if (ending.in_place) ending.residual_type = ending.y_type;
  ending.pad = int64_t(random.below(4));
  ending.shift = int64_t(random.below(4));
  return ending;
}

// A matrix of a call, its bias, residual and results, [results][rows].
class Target {
 public:
  Target(const Ending& ending, int64_t results, int64_t rows, int64_t experts, Random& random)
      : ending_(ending),
        results_(results),
        rows_(rows),
        bias_(ending.bias_type == none ? PNCUDA_F32 : ending.bias_type, 1, experts * rows, random, 0,
              bytes_of(ending.bias_type) * int64_t(random.below(4))),
        residual_(ending.residual_type == none ? PNCUDA_F32 : ending.residual_type, results, rows, random, ending.pad,
                  bytes_of(ending.residual_type) * ending.shift),
        y_(results, rows * bytes_of(ending.y_type), (rows + ending.pad) * bytes_of(ending.y_type),
           bytes_of(ending.y_type) * ending.shift) {
    if (ending.in_place)
      for (int64_t i = 0; i < results; ++i)
        for (int64_t n = 0; n < rows; ++n)
          store_bits(ending.y_type, y_.row(i), n, bits_as(ending.y_type, residual_.token(i)[n]));
  }
  void set(pncuda_fused_matrix& matrix) const {
    matrix.y = y_.data();
    matrix.y_stride = y_.stride();
    matrix.y_type = ending_.y_type;
    set_bias(matrix);
    if (ending_.residual_type != none) {
      matrix.residual = ending_.in_place ? y_.data() : residual_.data();
      matrix.residual_stride = ending_.in_place ? y_.stride() : residual_.stride();
      matrix.residual_type = ending_.residual_type;
    }
  }
  void set_bias(pncuda_fused_matrix& matrix) const {
    if (ending_.bias_type == none) return;
    matrix.bias = bias_.data();
    matrix.bias_type = ending_.bias_type;
  }
  float with_bias(float sum, int64_t expert, int64_t n) const {
    return ending_.bias_type == none ? sum : sum + bias_.values()[size(expert * rows_ + n)];
  }
  // Compares a result with what it must be before the residual is added; `zero`: no more than 0.
  void check(int64_t i, int64_t n, float value, bool zero = false) const {
    if (ending_.residual_type != none && !zero) value = value + residual_.token(i)[n];
    const std::uint32_t want = bits_as(ending_.y_type, value), got = load_bits(ending_.y_type, y_.row(i), n);
    if (same_element(ending_.y_type, got, want)) return;
    CAPTURE(i, n, rows_, results_, ending_.y_type, ending_.bias_type, ending_.residual_type, ending_.in_place);
    CAPTURE(value_of(ending_.y_type, got), value_of(ending_.y_type, want));
    REQUIRE(got == want);
  }
  bool intact() const { return y_.intact() && bias_.unchanged() && residual_.unchanged(); }
  const Output& y() const { return y_; }

 private:
  Ending ending_;
  int64_t results_, rows_;
  Activations bias_, residual_;
  Output y_;
};

pncuda_fused_matrix matrix_of(const pncuda_weights& weights, int64_t expert_stride = 0) {
  pncuda_fused_matrix matrix{};
  matrix.struct_size = sizeof matrix;
  matrix.weights = &weights;
  matrix.expert_stride = expert_stride;
  return matrix;
}
pncuda_fused_args fused_args(const std::vector<pncuda_fused_matrix>& matrices, const Activations& x, int mode) {
  pncuda_fused_args args{};
  args.struct_size = sizeof args;
  args.matrices = matrices.data();
  args.count = static_cast<std::int32_t>(matrices.size());
  args.x = x.data();
  args.x_stride = x.stride();
  args.x_type = x.type();
  args.mode = mode;
  args.tokens = x.tokens();
  return args;
}

// The formula of pncuda_p12.h, in fp32.
float silu_times(float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; }

// ---- Several matrices ----

struct Shape {
  std::vector<int64_t> rows;
  int64_t blocks, tokens;
  bool silu;
};

// One call, against pncuda_gemv on the first device of the path and the formulas.
void check_fused(const P12Path& path, std::size_t turn, const Shape& shape, const std::vector<Ending>& endings,
                 int x_type, int type, Random& random) {
  const Setting& setting = path.settings[turn % path.settings.size()];
  CAPTURE(path.name, turn, setting.device.name, shape.rows.size(), shape.blocks, shape.tokens, shape.silu, x_type,
          type);
  const std::size_t count = shape.rows.size();
  std::vector<std::unique_ptr<Bf16Weights>> weights;
  std::vector<std::unique_ptr<Target>> targets;
  std::vector<pncuda_weights> views(count);
  std::vector<pncuda_fused_matrix> matrices;
  const Activations x(x_type, shape.tokens, shape.blocks * 256, random, int64_t(turn % 3),
                      bytes_of(x_type) * int64_t(turn % 5));
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<p12::Block392> blocks = random_blocks(random, shape.rows[i] * shape.blocks);
    weights.push_back(std::make_unique<Bf16Weights>(blocks, shape.rows[i], int64_t(turn % 2), turn % 4 == 0 ? 8 : 0));
    views[i] = weights[i]->as(type);
    views[i].k = shape.blocks * 256;
    if (shape.rows[i] == 0) views[i].row_stride = shape.blocks * 512;
    targets.push_back(std::make_unique<Target>(endings[i], shape.tokens, shape.rows[i], 1, random));
    matrices.push_back(matrix_of(views[i]));
    if (!shape.silu || i == 0)
      targets[i]->set(matrices[i]);
    else
      targets[i]->set_bias(matrices[i]);
  }
  use(path.settings[0].device);
  std::vector<std::vector<std::uint32_t>> sums;
  for (std::size_t i = 0; i < count; ++i) {
    GemvOptions options;
    options.mode = path.settings[0].mode;
    sums.push_back(gemv(views[i], x, options));
  }
  use(setting.device);
  pncuda_fused_args args = fused_args(matrices, x, setting.mode);
  args.activation = shape.silu ? PNCUDA_SILU_MUL : PNCUDA_NO_ACTIVATION;
  host_cuda::reset_calls();
  REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
  REQUIRE(host_cuda::calls().count("launch") <= size(shape.tokens));
  for (std::size_t i = 0; i < count; ++i) {
    REQUIRE(targets[i]->intact());
    REQUIRE(weights[i]->unchanged());
    for (int64_t m = 0; m < shape.tokens; ++m)
      for (int64_t n = 0; n < shape.rows[i]; ++n) {
        const auto sum = [&](std::size_t of) {
          return targets[of]->with_bias(float_of(sums[of][size(m * shape.rows[of] + n)]), 0, n);
        };
        if (!shape.silu)
          targets[i]->check(m, n, sum(i));
        else if (i == 0)
          targets[0]->check(m, n, silu_times(sum(0), sum(1)));
      }
    if (shape.silu && i == 1 && !endings[1].in_place) REQUIRE(targets[1]->y().untouched());
  }
  REQUIRE(x.unchanged());
}

void several_matrices(const P12Path& path) {
  const Restore restore;
  Random random(1);
  const std::vector<int64_t> row_counts[] = {
      {1},         {33},   {16, 16},     {33, 7, 16}, {0, 5, 40}, {5, 0, 3},     {17, 0, 0}, {0, 0, 9}, {1, 1, 1},
      {15, 17, 2}, {0, 6}, {100, 2, 31}, {8, 16, 0},  {2, 31},    {160, 16, 16}, {0, 0, 0},  {0},       {24, 8, 7}};
  for (std::size_t turn = 0; turn < 180; ++turn) {
    if (left_out()) continue;
    const std::vector<int64_t>& rows = row_counts[turn % 18];
    std::vector<Ending> endings;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      // First without bias or residual: nothing but the bits of separate calls.
      endings.push_back(turn < 36 ? Ending{} : random_ending(random));
      if (turn < 36) endings.back().y_type = element_types[(turn + i) % 3];
    }
    check_fused(path, turn, {rows, int64_t(1 + turn * 7 % 11), int64_t(turn * 5 % 33), false}, endings,
                element_types[turn / 2 % 3], bf16_types[turn % 2], random);
  }
}
TEST_CASE("fused: several matrices are as many calls, on tensor cores", "[p12_fused]") {
  several_matrices(p12_tensor());
}
TEST_CASE("fused: several matrices are as many calls, by fp32", "[p12_fused]") { several_matrices(p12_ffma()); }

void silu(const P12Path& path) {
  const Restore restore;
  Random random(2);
  for (std::size_t turn = 0; turn < 90; ++turn) {
    if (left_out()) continue;
    const int64_t rows = std::array<int64_t, 9>{1, 7, 8, 9, 15, 16, 17, 40, 75}[turn % 9];
    std::vector<Ending> endings{random_ending(random), random_ending(random)};
    if (turn < 9) endings = {Ending{}, Ending{}};
    check_fused(path, turn, {{rows, rows}, int64_t(1 + turn * 5 % 9), int64_t(turn * 3 % 33), true}, endings,
                element_types[turn % 3], bf16_types[turn / 3 % 2], random);
  }
}
TEST_CASE("fused: SiLU and multiply, on tensor cores", "[p12_fused]") { silu(p12_tensor()); }
TEST_CASE("fused: SiLU and multiply, by fp32", "[p12_fused]") { silu(p12_ffma()); }

// Gates of every size, by way of the bias: weights are 0.
TEST_CASE("fused: SiLU of any number", "[p12_fused]") {
  const Restore restore;
  Random random(3);
  std::vector<float> gates = {0.0f,   -0.0f,  1.0f,   -1.0f,  20.0f,   -20.0f, 88.0f,     -88.0f,
                              -89.0f, -104.f, 200.0f, -1e30f, 3.4e38f, 1e-38f, HUGE_VALF, std::nanf("")};
  while (gates.size() < 64) gates.push_back(static_cast<float>(random.gauss() * 10));
  const auto rows = int64_t(gates.size());
  std::vector<float> ups(size(rows));
  for (float& up : ups) up = static_cast<float>(random.gauss());
  const Bf16Weights zeros(packed_blocks(std::vector<uint16_t>(size(rows * 256))), rows);
  const Activations gate(PNCUDA_F32, 1, rows, gates), up(PNCUDA_F32, 1, rows, ups), x(PNCUDA_BF16, 2, 256, random);
  for (const P12Path* const path : {&p12_ffma(), &p12_tensor()}) {
    use(path->settings[0].device);
    const Output y(2, rows * 4, rows * 4);
    const pncuda_weights view = zeros.packed();
    std::vector<pncuda_fused_matrix> matrices{matrix_of(view), matrix_of(view)};
    matrices[0].bias = gate.data();
    matrices[1].bias = up.data();
    matrices[0].y = y.data();
    matrices[0].y_stride = y.stride();
    pncuda_fused_args args = fused_args(matrices, x, path->settings[0].mode);
    args.activation = PNCUDA_SILU_MUL;
    REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
    REQUIRE(y.intact());
    for (int64_t m = 0; m < 2; ++m)
      for (int64_t n = 0; n < rows; ++n) {
        const std::uint32_t got = load_bits(PNCUDA_F32, y.row(m), n);
        const float g = 0.0f + gates[size(n)], want = silu_times(g, ups[size(n)]);
        CAPTURE(path->name, g, ups[size(n)], float_of(got), want);
        REQUIRE(same_element(PNCUDA_F32, got, bits_of(want)));
        const double exact =
            static_cast<double>(g) / (1 + std::exp(-static_cast<double>(g))) * static_cast<double>(ups[size(n)]);
        if (std::fabs(g) < 80)
          REQUIRE(std::fabs(static_cast<double>(float_of(got)) - exact) <= 3e-7 * std::fabs(exact));
      }
  }
}

// A bias or residual that is NaN or infinite; k = 0: only they are left.
TEST_CASE("fused: bias and residual alone, in their order", "[p12_fused]") {
  const Restore restore;
  for (const auto& device : {host_cuda::h100(), host_cuda::p100()})
    for (const int type : bf16_types) {
      use(device);
      // 1 + 2^-24 rounds to 1; so does the other order not: (bias + residual) would be 1 + 2^-23.
      const std::vector<float> biases = {0x1p-24f, HUGE_VALF, std::nanf(""), 5.0f, 1e38f};
      const std::vector<float> residuals = {0x1p-24f, -HUGE_VALF, 1.0f, -5.0f, 3e38f};
      const Activations bias(PNCUDA_F32, 1, 5, biases), residual(PNCUDA_F32, 1, 5, residuals);
      std::vector<uint16_t> bits(5 * 256, 0);
      for (std::size_t n = 0; n < 5; ++n) bits[n * 256 + 77] = 0x3F80;
      const Bf16Weights weights(packed_blocks(bits), 5);
      for (const int64_t k : {0, 256}) {
        pncuda_weights view = weights.as(type);
        view.k = k;
        std::vector<float> values(size(k), 0.0f);
        if (k != 0) values[77] = 1.0f;
        const Activations x(PNCUDA_F16, 1, k, values);
        const Output y(1, 20, 20);
        std::vector<pncuda_fused_matrix> matrices{matrix_of(view)};
        matrices[0].y = y.data();
        matrices[0].y_stride = 20;
        matrices[0].bias = bias.data();
        matrices[0].residual = residual.data();
        matrices[0].residual_stride = 20;
        const pncuda_fused_args args = fused_args(matrices, x, PNCUDA_ACCURATE);
        REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
        REQUIRE(y.intact());
        for (int64_t n = 0; n < 5; ++n) {
          const float sum = k == 0 ? 0.0f : 1.0f, want = (sum + biases[size(n)]) + residuals[size(n)];
          CAPTURE(device.name, type, k, n);
          REQUIRE(same_element(PNCUDA_F32, load_bits(PNCUDA_F32, y.row(0), n), bits_of(want)));
        }
      }
    }
}

// ---- Experts ----

struct ExpertShape {
  std::vector<int64_t> rows;
  int64_t blocks, tokens, slots, experts, gap;  // rows between experts
  bool silu, x_per_slot;
};

void check_experts(std::size_t turn, const ExpertShape& shape, const std::vector<Ending>& endings, int x_type, int type,
                   const std::vector<std::int32_t>& ids, Random& random) {
  static const std::vector<Setting> settings = [] {
    std::vector<Setting> all = p12_ffma().settings;
    all.push_back({host_cuda::h100(), PNCUDA_ACCURATE});
    all.push_back({host_cuda::a10(), PNCUDA_FAST_HALF2});
    return all;
  }();
  const Setting& setting = settings[turn % settings.size()];
  const int64_t results = shape.tokens * shape.slots, k = shape.blocks * 256;
  CAPTURE(turn, setting.device.name, shape.rows.size(), shape.blocks, shape.tokens, shape.slots, shape.experts,
          shape.silu, shape.x_per_slot, x_type, type);
  const std::size_t count = shape.rows.size();
  std::vector<std::unique_ptr<Bf16Weights>> weights;
  std::vector<std::unique_ptr<Target>> targets;
  std::vector<pncuda_weights> views(count);
  std::vector<pncuda_fused_matrix> matrices;
  const Activations x(x_type, shape.x_per_slot ? results : shape.tokens, k, random, int64_t(turn % 3),
                      bytes_of(x_type) * int64_t(turn % 5));
  for (std::size_t i = 0; i < count; ++i) {
    const int64_t of_expert = shape.rows[i] + shape.gap;
    weights.push_back(std::make_unique<Bf16Weights>(random_blocks(random, shape.experts * of_expert * shape.blocks),
                                                    shape.experts * of_expert, int64_t(turn % 2)));
    views[i] = weights[i]->as(type);
    views[i].rows = shape.rows[i];
    views[i].k = k;
    if (weights[i]->rows() == 0) views[i].row_stride = shape.blocks * 512;
    targets.push_back(std::make_unique<Target>(endings[i], results, shape.rows[i], shape.experts, random));
    matrices.push_back(matrix_of(views[i], of_expert * views[i].row_stride));
    if (!shape.silu || i == 0)
      targets[i]->set(matrices[i]);
    else
      targets[i]->set_bias(matrices[i]);
  }
  // Every result by pncuda_gemv, up to 16 of an expert at a time: [matrix][result][n].
  use(host_cuda::h100());
  GemvOptions portable;
  portable.mode = PNCUDA_PORTABLE;
  std::vector<std::vector<std::vector<std::uint32_t>>> sums(count);
  for (auto& of_matrix : sums) of_matrix.resize(size(results));
  for (int64_t e = 0; e < shape.experts; ++e) {
    std::vector<int64_t> asking, x_rows;
    for (int64_t r = 0; r < results; ++r) {
      if (ids[size(r)] == e) {
        asking.push_back(r);
        x_rows.push_back(shape.x_per_slot ? r : r / shape.slots);
      }
      if (asking.empty() || (asking.size() < 16 && r + 1 < results)) continue;
      for (std::size_t i = 0; i < count; ++i) {
        pncuda_weights one = views[i];
        one.data = static_cast<const uint8_t*>(one.data) + e * matrices[i].expert_stride;
        const auto bits = gemv(one, pick(x, x_rows), portable);
        for (std::size_t j = 0; j < asking.size(); ++j)
          sums[i][size(asking[j])].assign(bits.begin() + int64_t(j) * shape.rows[i],
                                          bits.begin() + int64_t(j + 1) * shape.rows[i]);
      }
      asking.clear();
      x_rows.clear();
    }
  }
  std::vector<uint8_t> id_bytes(ids.size() * 4);
  if (!ids.empty()) std::memcpy(id_bytes.data(), ids.data(), id_bytes.size());
  const Input id_memory(id_bytes, 4 * int64_t(turn % 4));
  const std::int32_t no_ids = 0;  // null would say that there are no experts

  use(setting.device);
  pncuda_fused_args args = fused_args(matrices, x, setting.mode);
  args.activation = shape.silu ? PNCUDA_SILU_MUL : PNCUDA_NO_ACTIVATION;
  args.tokens = shape.tokens;
  args.expert_ids = ids.empty() ? &no_ids : reinterpret_cast<const std::int32_t*>(id_memory.data());
  args.experts = shape.experts;
  args.slots = shape.slots;
  args.x_per_slot = shape.x_per_slot ? 1 : 0;
  host_cuda::reset_calls();
  REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
  REQUIRE(host_cuda::calls().count("launch") <= 1);
  for (std::size_t i = 0; i < count; ++i) {
    REQUIRE(targets[i]->intact());
    REQUIRE(weights[i]->unchanged());
    for (int64_t r = 0; r < results; ++r)
      for (int64_t n = 0; n < shape.rows[i]; ++n) {
        const int64_t expert = ids[size(r)];
        const bool here = expert >= 0 && expert < shape.experts;
        const auto sum = [&](std::size_t of) {
          return targets[of]->with_bias(float_of(sums[of][size(r)][size(n)]), expert, n);
        };
        CAPTURE(r, expert);
        if (shape.silu && i == 1) continue;
        if (!here)
          targets[i]->check(r, n, 0.0f, true);
        else
          targets[i]->check(r, n, shape.silu ? silu_times(sum(0), sum(1)) : sum(i));
      }
    if (shape.silu && i == 1 && !endings[1].in_place) REQUIRE(targets[1]->y().untouched());
  }
  REQUIRE(id_memory.unchanged());
  REQUIRE(x.unchanged());
}

std::vector<std::int32_t> random_ids(Random& random, int64_t count, int64_t experts, int how) {
  const std::int32_t strange[] = {-1, INT32_MIN, INT32_MAX, static_cast<std::int32_t>(experts), -100};
  std::vector<std::int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    auto id = experts == 0 ? 0 : static_cast<std::int32_t>(random.below(size(experts)));
    if (how == 1) id = experts > 0 ? static_cast<std::int32_t>(experts - 1) : 0;  // all the same
    if (how == 2 && random.below(3) == 0) id = strange[random.below(5)];
    if (how == 3) id = strange[random.below(5)];
    ids.push_back(id);
  }
  return ids;
}

TEST_CASE("experts: results are those of pncuda_gemv with the expert's weights", "[p12_experts]") {
  const Restore restore;
  Random random(4);
  for (std::size_t turn = 0; turn < 160; ++turn) {
    if (left_out()) continue;
    ExpertShape shape;
    shape.silu = turn % 3 == 0;
    const auto some_rows = [&] { return int64_t(random.below(4) == 0 ? random.below(40) : random.below(7)); };
    const std::size_t count = shape.silu ? 2 : 1 + turn % 4 % 3;
    for (std::size_t i = 0; i < count; ++i) shape.rows.push_back(shape.silu && i == 1 ? shape.rows[0] : some_rows());
    shape.blocks = random.between(1, 9);
    shape.tokens = random.between(0, turn % 5 == 0 ? 12 : 4);
    shape.slots = random.between(turn % 20 == 7 ? 0 : 1, 8);
    shape.experts = random.between(turn % 20 == 9 ? 0 : 1, 9);
    shape.gap = random.between(0, 2);
    shape.x_per_slot = random.coin();
    std::vector<Ending> endings;
    for (std::size_t i = 0; i < count; ++i) endings.push_back(turn < 12 ? Ending{} : random_ending(random));
    check_experts(turn, shape, endings, element_types[turn % 3], bf16_types[turn / 2 % 2],
                  random_ids(random, shape.tokens * shape.slots, shape.experts, static_cast<int>(turn / 2 % 4)),
                  random);
  }
}

TEST_CASE("experts: as many results as there may be", "[p12_experts]") {
  const Restore restore;
  Random random(5);
  std::size_t turn = 0;
  for (const auto& [tokens, slots] : {std::pair<int64_t, int64_t>{128, 8}, {1, 1024}, {1024, 1}, {31, 33}})
    for (const bool x_per_slot : {false, true}) {
      ++turn;
      if (left_out()) continue;
      const ExpertShape shape{{3}, 1, tokens, slots, 40, 0, false, x_per_slot};
      check_experts(turn, shape, {random_ending(random)}, PNCUDA_BF16, bf16_types[turn % 2],
                    random_ids(random, tokens * slots, 40,
                               x_per_slot      ? 2
                               : turn % 4 == 0 ? 1
                                               : 0),
                    random);
    }
}

// Chunks of K, where results of one expert come in several fours.
TEST_CASE("experts: long rows and many results of one expert", "[p12_experts]") {
  const Restore restore;
  Random random(6);
  for (std::size_t turn = 0; turn < 9; ++turn) {
    if (left_out()) continue;
    const ExpertShape shape{{5, 5}, 29, 7, 3, 3, 1, turn % 2 == 0, turn % 4 < 2};
    check_experts(turn, shape, {random_ending(random), random_ending(random)}, element_types[turn % 3],
                  bf16_types[turn % 2], random_ids(random, 21, 3, turn < 4 ? 1 : 2), random);
  }
}

// Weights of experts that nobody asks for are not read: their memory does not exist.
TEST_CASE("experts: only weights that are asked for are read", "[p12_experts]") {
  const Restore restore;
  Random random(7);
  const int64_t rows = 6;
  const Bf16Weights weights(random_blocks(random, rows * 3), rows);
  const Activations x(PNCUDA_BF16, 4, 768, random);
  GemvOptions portable;
  portable.mode = PNCUDA_PORTABLE;
  for (const int type : bf16_types)
    for (const auto& device : {host_cuda::p100(), host_cuda::h100()}) {
      use(device);
      // Expert 5 of 1000 is there; expert 0 would lie before it, expert 6 behind the end.
      pncuda_weights view = weights.as(type);
      const auto want = gemv(view, x, portable);
      const int64_t stride = int64_t{1} << 33;
      view.data = reinterpret_cast<const uint8_t*>(reinterpret_cast<std::uintptr_t>(view.data) -
                                                   static_cast<std::uintptr_t>(5 * stride));
      const std::int32_t ids[] = {5, -1, 1000, 5};
      const Output y(4, rows * 4, rows * 4);
      std::vector<pncuda_fused_matrix> matrices{matrix_of(view, stride)};
      matrices[0].y = y.data();
      matrices[0].y_stride = y.stride();
      pncuda_fused_args args = fused_args(matrices, x, PNCUDA_ACCURATE);
      args.expert_ids = ids;
      args.experts = 1000;
      args.slots = 1;
      REQUIRE(pncuda_fused(&args, nullptr) == PNCUDA_OK);
      REQUIRE(y.intact());
      for (int64_t m = 0; m < 4; ++m)
        for (int64_t n = 0; n < rows; ++n)
          REQUIRE(load_bits(PNCUDA_F32, y.row(m), n) == (ids[m] == 5 ? want[size(m * rows + n)] : 0u));
    }
}

}  // namespace
