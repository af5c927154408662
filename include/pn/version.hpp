// pn: versions of the library and of the PN block format.
#ifndef PN_VERSION_HPP
#define PN_VERSION_HPP

// Version of this library (semantic versioning). CMakeLists.txt reads it from here.
#define PN_VERSION_MAJOR 0
// Before 1.0 a new one may break.
#define PN_VERSION_MINOR 1
// Repairs.
#define PN_VERSION_PATCH 0

namespace pn {

// Version of the PN format that this code implements: FORMAT.md, written to files as `pn.version`.
inline constexpr unsigned format_version = 0;

}  // namespace pn

#endif  // PN_VERSION_HPP
