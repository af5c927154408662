// Comparing the tensors of two models, whatever types and kinds of file they have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conversion.hpp"
#include "io/model.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace pnpack {

using pn::io::TensorIn;

// Compares bytes that arrive in pieces with those of a tensor, or with what they become by a conversion.
class Comparison {
 public:
  // With `unit` != 0 units of so many bytes are counted that differ; otherwise it is enough to know the first place.
  explicit Comparison(const TensorIn& other, const Conversion* conversion = nullptr, std::size_t unit = 0)
      : other_(other), conversion_(conversion), unit_(unit) {}

  // All `length` come from whole units, of the conversion too.
  void add(const std::uint8_t* bytes, std::size_t length);

  // The byte, of all that were added, at which the two differ first.
  const std::optional<std::uint64_t>& difference() const { return difference_; }
  std::uint64_t differing_units() const { return differing_units_; }
  // The other tensor has blocks that cannot be converted; nothing was compared from there on.
  bool stopped() const { return stopped_; }

 private:
  void compare(const std::uint8_t* bytes, const std::uint8_t* others, std::size_t length);

  TensorIn other_;
  const Conversion* conversion_;
  std::size_t unit_;
  std::vector<std::uint8_t> scratch_;
  std::vector<std::uint8_t> converted_;
  std::uint64_t done_ = 0;
  std::optional<std::uint64_t> difference_;
  std::uint64_t differing_units_ = 0;
  bool stopped_ = false;
};

// Records in a report that a tensor differs, and where first.
void differ(TensorReport& report, std::string reason, std::optional<std::uint64_t> element = {},
            std::optional<std::uint64_t> block = {}, std::optional<std::uint64_t> offset = {});

// What to say of a tensor that only one of two models has.
struct OnlyOne {
  const char* first;
  const char* second;
};

// Compares the tensors of two models by name. `report` has an entry for each tensor of `a`; those that only `b` has are
// added.
void compare_tensors(const pn::io::Model& a, const pn::io::Model& b, const OnlyOne& only_one,
                     const std::function<void(const TensorIn& a, const TensorIn& b, TensorReport&)>& compare,
                     Report& report);

// Compares two tensors of one type byte by byte.
void compare_bytes(const Engine& engine, const TensorIn& a, const TensorIn& b, TensorReport& report);

// Differences between the keys of two models, or entries of __metadata__, ours aside; sorted. Only within a kind of
// file.
std::vector<std::string> compare_keys(const pn::io::Model& a, const pn::io::Model& b, const std::string& other);

}  // namespace pnpack
