# What to build. AUTO: built when pn is the top-level project and what it needs is there. ON: an error when it cannot
# be built. OFF: never. PnDependencies.cmake and PnCuda.cmake turn each PN_<PART> into PN_BUILD_<PART>.
set(PN_TOOL AUTO CACHE STRING "Build the command line tool pnpack (AUTO, ON, OFF)")
set(PN_TESTS AUTO CACHE STRING "Build the tests (AUTO, ON, OFF)")
set(PN_BENCH AUTO CACHE STRING "Build the microbenchmarks (AUTO, ON, OFF)")
set(PN_CUDA AUTO CACHE STRING "Build libpncuda; needs a CUDA compiler (AUTO, ON, OFF)")
set(PN_CUDA_BLAS AUTO CACHE STRING "Build libpncuda_blas; needs libpncuda and cuBLAS (AUTO, ON, OFF)")
set_property(CACHE PN_TOOL PN_TESTS PN_BENCH PN_CUDA PN_CUDA_BLAS PROPERTY STRINGS AUTO ON OFF)
option(PN_CPU "Build the SIMD kernels pn::cpu (the tool, the tests and the benchmarks need them)" ON)
option(PN_CPU_ISA_FROM_ENVIRONMENT "For tests: let the environment variable PN_CPU_ISA choose the instruction set" OFF)
mark_as_advanced(PN_CPU_ISA_FROM_ENVIRONMENT)
option(PN_INSTALL "Generate the install target" ${PROJECT_IS_TOP_LEVEL})
option(PN_FETCH_DEPENDENCIES "Download what find_package does not find (tool, tests and bench only)" OFF)
option(PN_WERROR "Turn warnings into errors in pn's own sources" OFF)
option(PN_SANITIZE "Build pn's own sources with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Flags of pn's own programs and libraries; nothing of this reaches those who link them.
add_library(pn_build_flags INTERFACE)
if(MSVC)
  target_compile_options(pn_build_flags INTERFACE /W4 /fp:precise $<$<BOOL:${PN_WERROR}>:/WX>)
else()
  target_compile_options(pn_build_flags INTERFACE
    -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast
    -ffp-contract=off $<$<BOOL:${PN_WERROR}>:-Werror>)
endif()
if(PN_SANITIZE)
  target_compile_options(pn_build_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(pn_build_flags INTERFACE -fsanitize=address,undefined)
endif()
