// The verbs of the command line. Each reads options, does its work and returns what it did; report.ok says whether the
// answer is yes. Errors are thrown as pn::io::Error.
#pragma once

#include "options.hpp"
#include "report.hpp"

namespace pnpack {

Report pack(const Options& options);
Report unpack(const Options& options);
Report quantize(const Options& options);
Report verify(const Options& options);
Report check(const Options& options);
Report inspect(const Options& options);
Report scan(const Options& options);
Report diff(const Options& options);

}  // namespace pnpack
