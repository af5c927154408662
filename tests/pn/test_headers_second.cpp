// The second translation unit of test_headers_first.cpp: the same headers in the opposite order, one by one.
#include <p12/block392.hpp>
#include <p12/codec.hpp>
#include <p12/scan.hpp>
#include <p12/validate.hpp>
#include <pn/block34.hpp>
#include <pn/config.hpp>
#include <pn/decode.hpp>
#include <pn/dot.hpp>
#include <pn/hadamard.hpp>
#include <pn/half.hpp>
#include <pn/quantize.hpp>
#include <pn/status.hpp>
#include <pn/validate.hpp>
#include <pn/version.hpp>

#include "headers.hpp"
#include "headers_report.inc"

HeaderReport second_report() { return report(); }
