// Importance matrices of llama.cpp, read-only: for each tensor how much each column of its input matters.
//
// Two forms, told apart by their content:
// - GGUF of general.type "imatrix": for each tensor NAME the F32 tensors NAME.in_sum2, ne = [K, matrices], sums of
//   squared activations, and NAME.counts, ne = [1, matrices], the number of activations in each sum. Other tensors
//   (NAME.in_sum) are passed over.
// - The older form, all little-endian: i32 number of entries; for each an i32 length and a name, i32 calls, i32 number
//   of values, fp32 values; then, in later files, i32 number of chunks, i32 length and name of the data set.
//
// The importance g of a column is its sum / its count, or value / calls, as doubles, and 0 where the count is 0.
// (llama.cpp takes 1 there; a search in which all weights are equal finds the same blocks.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "input_file.hpp"

namespace pn::io {

// What a file has for one tensor; the numbers stay in the file.
struct ImatrixEntry {
  std::string name;             // of the model's tensor
  std::uint64_t values = 0;     // K * matrices
  std::uint64_t counts = 0;     // one per matrix, or 1 for all of them (always in the older form)
  std::uint64_t values_at = 0;  // offset of the values, fp32
  std::uint64_t counts_at = 0;  // offset of the counts: fp32, in the older form i32
};

class Imatrix {
 public:
  // Reads the structure of `file`, which must outlive this, and checks all of it but the numbers. Throws Error
  // (Fault::input) naming the tensor and the offset. Takes memory in proportion to the entries, not to the values.
  explicit Imatrix(const InputFile& file);
  explicit Imatrix(InputFile&&) = delete;

  // In file order; no name appears twice.
  const std::vector<ImatrixEntry>& entries() const noexcept { return entries_; }
  // The entry for a tensor, or null.
  const ImatrixEntry* find(const std::string& name) const;

  // Throws Error (Fault::input) unless `entry` fits a tensor of `matrices` matrices (experts) with rows of `k`.
  void require_shape(const ImatrixEntry& entry, std::uint64_t k, std::uint64_t matrices) const;

  // The importance of the k columns of matrix `matrix` (< matrices). Throws as require_shape does, and when a count or
  // an importance is negative, infinite or not a number, naming the column. Several threads may read at once.
  std::vector<double> read(const ImatrixEntry& entry, std::uint64_t matrix, std::uint64_t k,
                           std::uint64_t matrices) const;

 private:
  void read_gguf_form();
  void read_older_form();
  double read_count(const ImatrixEntry& entry, std::uint64_t index, const std::string& place) const;
  [[noreturn]] void fail(const std::string& name, const std::string& message, std::uint64_t offset) const;

  const InputFile& file_;
  bool older_form_ = false;
  std::vector<ImatrixEntry> entries_;
  std::vector<std::size_t> by_name_;  // indices of entries_
};

}  // namespace pn::io
