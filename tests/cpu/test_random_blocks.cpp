// Ten million random blocks through every codec function and every instruction set. Each run says its seed; PN_SEED and
// PN_BLOCKS in the environment set another.
#include "random_blocks.hpp"

using namespace testing;

namespace {

constexpr std::uint64_t ten_million = 10000000;

template <class Piece>
void run_all(const char* what, std::uint64_t seed, Piece&& piece_of) {
  const RandomRun run(what, seed, ten_million);
  Failures failures;
  Met met;
  exhaustive::in_parallel(run.pieces, [&](std::uint64_t piece) { piece_of(run, piece, failures, met); });
  std::cout << "  rows: " << met.good << " good, " << met.refused << " refused, " << met.special << " special"
            << std::endl;
  INFO(failures.text());
  CHECK(failures.empty());
  if (run.pieces < 100) return;
  CHECK(met.good > 0);
  CHECK(met.refused > 0);
}

}  // namespace

TEST_CASE("quantize_rows: millions of random blocks of pn3t") {
  run_all("pn3t quantized", 20260111, quantize_piece<pn::pn3t>);
}
TEST_CASE("quantize_rows: millions of random blocks of pn4t") {
  run_all("pn4t quantized", 20260112, quantize_piece<pn::pn4t>);
}
TEST_CASE("dequantize_rows, validate_rows: millions of random blocks of pn3t") {
  run_all("pn3t decoded", 20260113, decode_piece<pn::pn3t>);
}
TEST_CASE("dequantize_rows, validate_rows: millions of random blocks of pn4t") {
  run_all("pn4t decoded", 20260114, decode_piece<pn::pn4t>);
}
TEST_CASE("BF16_P12: millions of random blocks") { run_all("BF16_P12", 20260115, p12_piece); }
