// What `pnpack scan` found, as one HTML document that needs nothing but a browser.
#pragma once

#include <cstdint>
#include <optional>
#include <p12/scan.hpp>
#include <string>
#include <vector>

#include "scan_statistics.hpp"

namespace pnpack {

// Text may be anything that a file contains: it is escaped here.
struct ScanRow {
  std::string name;
  std::string file;  // the shard; may be empty
  std::string type;
  std::vector<std::uint64_t> shape;  // outermost first
  std::uint64_t elements = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  bool candidate = false;  // BF16 with two or more dimensions
  bool fits = false;
  std::string reason;  // why it stays what it is
  p12::RowScan p12;    // of a tensor that has blocks
  std::string worst;   // the place of the worst block
  std::optional<StatisticsSummary> statistics;
};

struct ScanPage {
  std::string model;
  std::vector<ScanRow> rows;
  std::optional<StatisticsSummary> statistics;  // of all tensors that have some, merged
  std::vector<std::string> warnings;

  std::uint64_t elements() const;
  std::uint64_t bytes_in() const;
  std::uint64_t bytes_out() const;
  std::uint64_t candidates() const;
  std::uint64_t fitting() const;        // of the candidates
  p12::RowScan candidates_p12() const;  // blocks of all candidates; without a worst one
};

// The same bytes for the same scan. Everything that the page shows is also in it as JSON, in the element with the id
// "scan".
std::string scan_page(const ScanPage& page);

}  // namespace pnpack
