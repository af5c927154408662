# `cmake --install`: headers with their FORMAT.md, the libraries, the tool with its manual page, a CMake package `pn`
# and pkg-config files; `cpack`: the same as Debian packages (PnPackage.cmake).
include(CMakePackageConfigHelpers)

set(pn_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pn)
set(pn_pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# pn_install_component(name target): what the package calls pn::<name>, installed, and in the build tree for those who
# point pn_DIR at it.
function(pn_install_component name target)
  install(TARGETS ${target} EXPORT pn-${name}
    RUNTIME COMPONENT runtime
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
    ARCHIVE COMPONENT development)
  install(EXPORT pn-${name} NAMESPACE pn:: FILE pn-${name}.cmake DESTINATION ${pn_cmake_dir} COMPONENT development)
  export(EXPORT pn-${name} NAMESPACE pn:: FILE ${PROJECT_BINARY_DIR}/pn-${name}.cmake)
endfunction()

# From where the .pc files lie to the prefix, so that an installed tree can be moved; a folder outside of the prefix is
# named as it is.
set(pn_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pn_prefix /${pn_pkgconfig_dir} /)
  string(REGEX REPLACE "/$" "" pn_prefix "\${pcfiledir}/${pn_prefix}")
endif()
foreach(kind IN ITEMS INCLUDE LIB)
  set(pn_pc_${kind}DIR "${CMAKE_INSTALL_${kind}DIR}")
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_${kind}DIR}")
    string(PREPEND pn_pc_${kind}DIR "\${prefix}/")
  endif()
endforeach()

# pn_install_pc(name description [REQUIRES names] [LIBS library] [PRIVATE flags]): pn-<name>.pc. PRIVATE is what those
# who link the static library (pkg-config --static) must link as well.
function(pn_install_pc name description)
  cmake_parse_arguments(pc "" "REQUIRES;LIBS;PRIVATE" "" ${ARGN})
  set(text "prefix=${pn_prefix}\nincludedir=${pn_pc_INCLUDEDIR}\n")
  if(pc_LIBS)
    string(APPEND text "libdir=${pn_pc_LIBDIR}\n")
  endif()
  string(APPEND text "\nName: pn-${name}\nDescription: ${description}\nVersion: ${PROJECT_VERSION}\n")
  if(pc_REQUIRES)
    string(APPEND text "Requires: ${pc_REQUIRES} = ${PROJECT_VERSION}\n")
  endif()
  if(pc_LIBS)
    string(APPEND text "Libs: -L\${libdir} -l${pc_LIBS}\n")
  endif()
  if(pc_PRIVATE)
    string(APPEND text "Libs.private: ${pc_PRIVATE}\n")
  endif()
  string(APPEND text "Cflags: -I\${includedir}\n")
  file(WRITE ${PROJECT_BINARY_DIR}/pkgconfig/pn-${name}.pc "${text}")
  install(FILES ${PROJECT_BINARY_DIR}/pkgconfig/pn-${name}.pc DESTINATION ${pn_pkgconfig_dir} COMPONENT development)
endfunction()

pn_install_component(core pn_core)
pn_install_pc(core "${PROJECT_DESCRIPTION}: headers")
install(DIRECTORY include/pn include/p12 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.hpp" PATTERN "FORMAT.md")

if(PN_CPU)
  pn_install_component(cpu pn_cpu)
  # The C++ runtime, for linkers of other languages.
  set(pn_runtime "")
  foreach(library IN ITEMS stdc++ c++)
    if(library IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
      set(pn_runtime PRIVATE -l${library})
    endif()
  endforeach()
  pn_install_pc(cpu "SIMD kernels for PN and BF16_P12 weights, chosen at run time" REQUIRES pn-core LIBS pn_cpu
    ${pn_runtime})
endif()

# What pn::cuda and pn::cuda_blas leave to link to those who link them, as targets of CMake's CUDAToolkit.
set(pn_cuda_needs_toolkit OFF)
set(pn_cuda_blas_needs_toolkit ON)
if(PN_BUILD_CUDA)
  get_target_property(pn_cuda_type pncuda TYPE)
  if(NOT pn_cuda_type STREQUAL "SHARED_LIBRARY" OR CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
    set(pn_cuda_needs_toolkit ON)
  endif()
  set(pn_cudart "-lcudart_static -lrt -lpthread -ldl")
  if(CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
    set(pn_cudart -lcudart)
  endif()
  pn_install_component(cuda pncuda)
  pn_install_pc(cuda "CUDA kernels for PN and BF16_P12 weights, C interface" REQUIRES pn-core LIBS pncuda
    PRIVATE "${pn_cudart} -lstdc++")
  install(DIRECTORY include/pncuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN "pncuda_blas.h" EXCLUDE)
endif()
if(PN_BUILD_CUDA_BLAS)
  pn_install_component(cuda_blas pncuda_blas)
  pn_install_pc(cuda_blas "PN and BF16_P12 weights times many tokens, through cuBLAS" REQUIRES pn-cuda LIBS pncuda_blas
    PRIVATE -lcublas)
  install(FILES include/pncuda/pncuda_blas.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pncuda COMPONENT development)
endif()

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
# What other implementations check themselves against: a component of its own, as it needs nothing else.
install(DIRECTORY tests/golden/ DESTINATION ${CMAKE_INSTALL_DATADIR}/pn/golden COMPONENT golden
  FILES_MATCHING PATTERN "*.bin" PATTERN "manifest.json" PATTERN "README.md" PATTERN "__pycache__" EXCLUDE)
install(PROGRAMS examples/conformance.py DESTINATION ${CMAKE_INSTALL_DATADIR}/pn COMPONENT golden)
if(PN_BUILD_TOOL)
  install(TARGETS pnpack RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
  # Not there when the program could not be run.
  install(FILES ${PROJECT_BINARY_DIR}/src/pnpack/pnpack.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tool
    OPTIONAL)
endif()

configure_package_config_file(cmake/pn-config.cmake.in ${PROJECT_BINARY_DIR}/pn-config.cmake
  INSTALL_DESTINATION ${pn_cmake_dir})
# Before 1.0 a minor version may break, so only the same minor version matches.
set(pn_any_architecture ARCH_INDEPENDENT)
if(PN_CPU OR PN_BUILD_CUDA)
  set(pn_any_architecture "")
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pn-config-version.cmake
  COMPATIBILITY SameMinorVersion ${pn_any_architecture})
install(FILES ${PROJECT_BINARY_DIR}/pn-config.cmake ${PROJECT_BINARY_DIR}/pn-config-version.cmake
  DESTINATION ${pn_cmake_dir} COMPONENT development)

if(PROJECT_IS_TOP_LEVEL)
  include(PnPackage)
endif()
