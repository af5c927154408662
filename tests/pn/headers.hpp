// What two translation units of one program report about the same headers.
#ifndef PN_TESTS_HEADERS_HPP
#define PN_TESTS_HEADERS_HPP

#include <cstddef>
#include <cstdint>

struct HeaderReport {
  const void* addresses[12];  // of variables and functions that the program must hold once
  std::uint8_t pn_bytes[2][34];
  std::uint8_t p12_bytes[392];
  float dots[2];
  float rotated[64];
};

HeaderReport first_report();
HeaderReport second_report();

#endif  // PN_TESTS_HEADERS_HPP
