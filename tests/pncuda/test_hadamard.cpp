// pncuda_hadamard: the bits of pn::hadamard_activations, then one rounding.
#include "testing.hpp"

using namespace testing;

namespace {

pncuda_hadamard_args hadamard_args(const Activations& x, const Output& out, int out_type, int block) {
  return {sizeof(pncuda_hadamard_args),
          x.data(),
          x.stride(),
          out.data(),
          out.stride(),
          x.type(),
          out_type,
          x.tokens(),
          x.k(),
          block,
          0};
}

std::vector<float> rotated(const Activations& x, int block) {
  std::vector<float> values = x.values();
  REQUIRE(pn::hadamard_activations(values.data(), values.size(), size(block)) == pn::Status::ok);
  return values;
}

void check(const Output& out, int out_type, const std::vector<float>& want, int64_t tokens, int64_t k) {
  REQUIRE(out.intact());
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t i = 0; i < k; ++i) {
      const std::uint32_t got = load_bits(out_type, out.row(m), i);
      if (!same_element(out_type, got, bits_as(out_type, want[size(m * k + i)]))) {
        CAPTURE(m, i, got, want[size(m * k + i)]);
        REQUIRE(got == bits_as(out_type, want[size(m * k + i)]));
      }
    }
}

TEST_CASE("hadamard: the numbers of the core, every block, all types", "[hadamard]") {
  const Restore restore;
  use(host_cuda::p100());
  Random random(1);
  for (const int block : hadamard_blocks)
    for (const int64_t segments : {1, 2, 3, 5, 17}) {
      const int64_t k = block * segments;
      for (const int x_type : element_types)
        for (const int out_type : element_types) {
          const int64_t tokens = int64_t(1 + random.below(3));
          const Activations x(x_type, tokens, k, random, int64_t(random.below(3)), bytes_of(x_type));
          const int64_t element = bytes_of(out_type);
          const Output out(tokens, k * element, (k + int64_t(random.below(3))) * element, element);
          CAPTURE(block, segments, name_of(x_type), name_of(out_type), tokens);
          const auto args = hadamard_args(x, out, out_type, block);
          REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
          REQUIRE(x.unchanged());
          check(out, out_type, rotated(x, block), tokens, k);
        }
    }
}

TEST_CASE("hadamard: in place", "[hadamard]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(2);
  for (const int block : hadamard_blocks)
    for (const int type : element_types) {
      const int64_t k = 3 * block, element = bytes_of(type);
      const Activations x(type, 3, k, random);
      const Output out(3, k * element, k * element + element);
      for (int64_t m = 0; m < 3; ++m) std::memcpy(out.row(m), x.data() + m * x.stride(), size(k * element));
      pncuda_hadamard_args args = hadamard_args(x, out, type, block);
      args.x = out.data();
      args.x_stride = out.stride();
      REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
      CAPTURE(block, name_of(type));
      check(out, type, rotated(x, block), 3, k);
    }
}

TEST_CASE("hadamard: infinities, NaN, subnormal and huge numbers run through", "[hadamard]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(3);
  for (const int block : hadamard_blocks)
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<float> values(size(2 * block));
      for (float& value : values)
        value = static_cast<float>(random.gauss()) * (turn == 0 ? 1e-39f : turn == 1 ? 3e37f : 1.0f);
      if (turn == 2) values[size(block / 3)] = HUGE_VALF;
      if (turn == 3) values[size(block + 5)] = std::nanf("");
      const Activations x(PNCUDA_F32, 1, 2 * block, values);
      const Output out(1, 8 * block, 8 * block);
      const auto args = hadamard_args(x, out, PNCUDA_F32, block);
      REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
      CAPTURE(block, turn);
      check(out, PNCUDA_F32, rotated(x, block), 1, 2 * block);
    }
}

TEST_CASE("hadamard: bits in any order", "[hadamard]") {
  const Restore restore;
  use(host_cuda::h100());
  Random random(4);
  for (const int block : hadamard_blocks) {
    const Activations x(PNCUDA_F16, 3, 6 * block, random);
    const std::vector<float> want = rotated(x, block);
    for (const char* const order : {"forward", "reverse", "1", "2", "3"}) {
      host_cuda::set_thread_order(order_of(order));
      host_cuda::set_block_order(order_of(order));
      const Output out(3, 24 * block, 24 * block);
      const auto args = hadamard_args(x, out, PNCUDA_F32, block);
      REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
      CAPTURE(block, order);
      check(out, PNCUDA_F32, want, 3, 6 * block);
    }
  }
}

TEST_CASE("hadamard: no tokens, no columns", "[hadamard]") {
  const Restore restore;
  use(host_cuda::h100());
  const Output out(1, 256, 256);
  for (const bool tokens : {false, true}) {
    const pncuda_hadamard_args args{sizeof args, nullptr,        0, nullptr, 0, PNCUDA_F32,
                                    PNCUDA_F32,  tokens ? 3 : 0, 0, 64,      0};
    host_cuda::reset_calls();
    REQUIRE(pncuda_hadamard(&args, nullptr) == PNCUDA_OK);
    REQUIRE(host_cuda::calls().count("launch") == 0);
  }
}

}  // namespace
