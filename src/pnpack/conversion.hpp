// What can be done to the bytes of a tensor. A conversion works on units: the smallest run of elements that both types
// can hold in whole blocks. Units are independent, so any number of threads may convert disjoint runs of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <p12/scan.hpp>
#include <pn/status.hpp>
#include <vector>

#include "io/tensor.hpp"
#include "scan_statistics.hpp"

namespace pnpack {

// Sums over weights w that became v: of (w - v)^2 and of w^2.
struct ErrorSums {
  double squared_error = 0;
  double squared_weight = 0;

  void add(const ErrorSums& other) {
    squared_error += other.squared_error;
    squared_weight += other.squared_weight;
  }
  // sqrt(squared_error / squared_weight); 0 when both are 0.
  double nrmse() const;
};

// What happened to a run of units.
struct Outcome {
  pn::Status status = pn::Status::ok;  // the first failure, if any; the output is then worthless
  std::uint64_t element = 0;           // where it happened, counted from the first element of the run
  p12::RowScan scan;                   // BF16_P12 blocks seen
  ErrorSums error;                     // quantizing
  ErrorSums weighted_error;            // the same, each term times the importance of its column

  // Adds the outcome of the run that follows; `elements` is the length of the run so far.
  void append(const Outcome& next, std::uint64_t elements);
};

class Conversion {
 public:
  Conversion(pn::io::TensorType from, pn::io::TensorType to, std::uint64_t unit_elements);
  virtual ~Conversion() = default;
  Conversion(const Conversion&) = delete;
  Conversion& operator=(const Conversion&) = delete;

  const pn::io::TensorType& from() const noexcept { return from_; }
  const pn::io::TensorType& to() const noexcept { return to_; }
  std::uint64_t unit_elements() const noexcept { return unit_elements_; }
  std::size_t unit_bytes_in() const noexcept { return unit_bytes_in_; }
  std::size_t unit_bytes_out() const noexcept { return unit_bytes_out_; }  // 0: only validates

  // Converts `units` units, of which the first is number `first` of the tensor. `in` and `out` may have any alignment
  // and do not overlap.
  virtual Outcome run(const std::uint8_t* in, std::uint64_t first, std::size_t units, std::uint8_t* out) const = 0;

 protected:
  pn::io::TensorType from_;
  pn::io::TensorType to_;
  std::uint64_t unit_elements_;
  std::size_t unit_bytes_in_;
  std::size_t unit_bytes_out_;
};

// F32, F16 or BF16 -> BF16, rounded to nearest even; a finite weight that becomes infinite is a failure.
std::unique_ptr<Conversion> make_rounder(const pn::io::TensorType& from);

// BF16 -> BF16_P12, and F32 and F16 by way of BF16. Each block is unpacked again and compared with its weights. Blocks
// that do not fit are counted in `scan` and are no failure: the caller decides by scan.blocks_that_do_not_fit() whether
// the output can be used.
std::unique_ptr<Conversion> make_p12_packer(const pn::io::TensorType& from, const pn::io::TensorType& p12);

// BF16_P12 -> BF16, refusing blocks that are not canonical.
std::unique_ptr<Conversion> make_p12_unpacker(const pn::io::TensorType& p12);

// How much each column of a tensor matters.
struct Importance {
  std::vector<double> values;         // of the columns of the first matrix, then the second, ..
  std::uint64_t k = 0;                // columns
  std::uint64_t matrix_elements = 0;  // elements of a matrix; a mixture of experts has several

  const double* at(std::uint64_t element) const { return values.data() + element / matrix_elements * k + element % k; }
};

struct PnSettings {
  std::uint32_t rotation = 0;              // Hadamard block, 0: none
  const Importance* importance = nullptr;  // for the error that is reported, and
  bool weighted_search = false;            // for the search
};

// F32, F16, BF16 or BF16_P12 -> pn3t or pn4t by the reference quantizer, with the error that it makes.
std::unique_ptr<Conversion> make_pn_quantizer(const pn::io::TensorType& from, const pn::io::TensorType& to,
                                              const PnSettings& settings);

// F32, F16, BF16 or BF16_P12 -> Q8_0 as ggml's reference quantizer does it, with the error that it makes.
std::unique_ptr<Conversion> make_q8_0_quantizer(const pn::io::TensorType& from, const Importance* importance);

// pn3t or pn4t -> F32, F16 or BF16, undoing a rotation, refusing invalid blocks and values beyond the target's range.
std::unique_ptr<Conversion> make_pn_decoder(const pn::io::TensorType& from, const pn::io::TensorType& to,
                                            std::uint32_t rotation);

// Looks at BF16 weights, or F32 and F16 rounded to BF16, and gives no output: the scan of their blocks when rows are
// whole blocks, and statistics.
class Scanner : public Conversion {
 public:
  using Conversion::Conversion;
  virtual TensorStatistics statistics() const = 0;  // of all runs so far
};
std::unique_ptr<Scanner> make_scanner(const pn::io::TensorType& from, std::uint64_t row_length);

// Checks the blocks of a BF16_P12, pn3t or pn4t tensor and gives no output.
std::unique_ptr<Conversion> make_validator(const pn::io::TensorType& type);

// True for F32, F16, BF16 and BF16_P12.
bool can_quantize_from(const pn::io::TensorType& type);

// The smallest number of elements that are whole blocks of both types.
std::uint64_t common_block(const pn::io::TensorType& a, const pn::io::TensorType& b);

}  // namespace pnpack
