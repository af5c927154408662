// What a verb did, as a table for people or as one JSON document for programs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <p12/scan.hpp>
#include <string>
#include <vector>

#include "io/error.hpp"
#include "io/tensor.hpp"
#include "scan_statistics.hpp"

namespace pnpack {

// A place in a tensor, for example the first where it is not what it should be.
struct Place {
  std::optional<std::uint64_t> element;  // of the tensor, or
  std::optional<std::uint64_t> block;    // of the tensor, or neither when the tensor as a whole is meant
  std::optional<std::uint64_t> offset;   // in its file
};

struct TensorReport {
  explicit TensorReport(const pn::io::Tensor& tensor);

  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::string type_in;
  std::string type_out;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::optional<std::uint32_t> type_id;
  std::uint64_t offset = 0;
  std::string file;  // of a model in several files

  bool converted = false;
  bool rounded = false;               // to BF16, but not packed
  bool fallback = false;              // of the verb's source type and at least 2-D, but stays as it was
  std::optional<std::string> reason;  // why it is not converted, not equal or not valid
  std::optional<p12::RowScan> p12;
  std::shared_ptr<const StatisticsSummary> statistics;  // scan
  std::optional<double> nrmse;
  std::optional<double> weighted_nrmse;    // by importance
  std::optional<std::string> rule;         // of a mix
  std::optional<bool> good;                // verify, diff: equal; check: valid
  std::optional<std::uint64_t> different;  // diff: elements, or blocks of a type that is not decoded
  std::optional<Place> first;
};

struct Report {
  std::string verb;
  std::string input;
  std::optional<std::string> output;
  std::optional<std::string> original;  // verify
  std::optional<std::string> other;     // diff
  std::vector<TensorReport> tensors;
  std::optional<StatisticsSummary> statistics;  // scan: of all tensors that have some
  std::optional<bool> restores_identical;
  std::vector<std::string> warnings;
  std::string summary;  // the closing sentence of the table
  bool ok = true;
  bool dry_run = false;

  std::uint64_t converted() const;
  std::uint64_t fallbacks() const;
  std::uint64_t bad() const;  // verify, diff, check: tensors that are not good
  std::uint64_t bytes_in() const;
  std::uint64_t bytes_out() const;
  double bits_per_weight() const;  // of the output, for verify of the packed file; over all tensors
};

std::string to_table(const Report& report);
std::string to_json(const Report& report);
std::string error_to_json(const std::string& file, const std::optional<std::string>& subject,
                          const std::optional<std::uint64_t>& offset, const std::string& message);

// "file: tensor x: message (offset 123)".
std::string describe(const pn::io::Error& error);

// Text from a file, safe for a terminal: control characters and bytes that are not UTF-8 become \xNN.
std::string printable(const std::string& text);

// "3,456,000".
std::string grouped(std::uint64_t number);

// "element 1026 (row 2, column 2)" and "block 5 (row 1, weights 256..511)"; rows are those of a tensor's flattened
// outer dimensions.
std::string element_text(const pn::io::Tensor& tensor, std::uint64_t element);
std::string block_text(const pn::io::Tensor& tensor, std::uint64_t block, std::uint64_t block_size);

}  // namespace pnpack
