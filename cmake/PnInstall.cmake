# `cmake --install`: headers with their FORMAT.md, the tool with its manual page, and a CMake package `pn`.
include(CMakePackageConfigHelpers)

set(pn_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pn)

install(TARGETS pn_core EXPORT pn-core)
install(EXPORT pn-core NAMESPACE pn:: FILE pn-core.cmake DESTINATION ${pn_cmake_dir})
if(PN_CPU)
  install(TARGETS pn_cpu EXPORT pn-cpu)
  install(EXPORT pn-cpu NAMESPACE pn:: FILE pn-cpu.cmake DESTINATION ${pn_cmake_dir})
endif()
if(PN_BUILD_CUDA)
  install(TARGETS pncuda EXPORT pn-cuda)
  install(EXPORT pn-cuda NAMESPACE pn:: FILE pn-cuda.cmake DESTINATION ${pn_cmake_dir})
  install(DIRECTORY include/pncuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN "pncuda_blas.h" EXCLUDE)
endif()
if(PN_BUILD_CUDA_BLAS)
  install(TARGETS pncuda_blas EXPORT pn-cuda_blas)
  install(EXPORT pn-cuda_blas NAMESPACE pn:: FILE pn-cuda_blas.cmake DESTINATION ${pn_cmake_dir})
  install(FILES include/pncuda/pncuda_blas.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pncuda)
endif()
install(DIRECTORY include/pn include/p12 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "FORMAT.md")
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# What other implementations check themselves against.
install(DIRECTORY tests/golden/ DESTINATION ${CMAKE_INSTALL_DATADIR}/pn/golden COMPONENT golden
  FILES_MATCHING PATTERN "*.bin" PATTERN "manifest.json" PATTERN "README.md" PATTERN "__pycache__" EXCLUDE)
install(PROGRAMS examples/conformance.py DESTINATION ${CMAKE_INSTALL_DATADIR}/pn COMPONENT golden)
if(PN_BUILD_TOOL)
  install(TARGETS pnpack RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Not there when the program could not be run.
  install(FILES ${PROJECT_BINARY_DIR}/src/pnpack/pnpack.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
endif()

# What pn::cuda and pn::cuda_blas leave to link to those who link them, as targets of CMake's CUDAToolkit.
set(pn_cuda_needs_toolkit OFF)
set(pn_cuda_blas_needs_toolkit ON)
if(PN_BUILD_CUDA)
  get_target_property(pn_cuda_type pncuda TYPE)
  if(NOT pn_cuda_type STREQUAL "SHARED_LIBRARY" OR CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
    set(pn_cuda_needs_toolkit ON)
  endif()
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
  DESTINATION ${pn_cmake_dir})

# The same package from the build tree, for those who point pn_DIR at it.
export(EXPORT pn-core NAMESPACE pn:: FILE ${PROJECT_BINARY_DIR}/pn-core.cmake)
if(PN_CPU)
  export(EXPORT pn-cpu NAMESPACE pn:: FILE ${PROJECT_BINARY_DIR}/pn-cpu.cmake)
endif()
if(PN_BUILD_CUDA)
  export(EXPORT pn-cuda NAMESPACE pn:: FILE ${PROJECT_BINARY_DIR}/pn-cuda.cmake)
endif()
if(PN_BUILD_CUDA_BLAS)
  export(EXPORT pn-cuda_blas NAMESPACE pn:: FILE ${PROJECT_BINARY_DIR}/pn-cuda_blas.cmake)
endif()
