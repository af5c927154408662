#!/usr/bin/env bash
# Builds everything with g++, with clang++ and with sanitizers, and runs all tests. `tests/run.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--all]

Installs what is missing (Debian packages), then for each of the presets gcc, clang and sanitize (g++ with ASan and
UBSan): configures, builds with warnings as errors, runs ctest. Before that, fuzzes for 15 seconds. Stops at the
first failure. Build folders are build/<preset> and build/fuzz-quick; what is up to date is not built again.

Not everything runs everywhere. By ctest's labels:
  blackbox    the tests of pnpack from outside: with sanitizers only
  many        those of them that have hundreds or thousands of cases of a kind: all with g++, a part with sanitizers
  once        what says the same whoever compiled: with g++ only
  long        only with --all
  engine      only with --all, or when build/llama.cpp holds the engine that it once built
The tool is built with clang++ for the fuzzers; the preset clang leaves it out, and gcc the replays of what fuzzers
found, as they have just been replayed. With --all both are there.
tests/README.md says of which tests a part runs.

  --all       run the long tests too, all of them with g++ and all but `once` with sanitizers, and leave no case out
  -h, --help  this text
TEXT
}

all=OFF
for argument in "$@"; do
  case $argument in
    --all) all=ON ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "tests/run.sh: unknown argument $argument" >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
exec </dev/null

# shellcheck source=../cmake/debian_packages.sh
source cmake/debian_packages.sh
need g++ g++ "first compiler"
need clang clang++ "second compiler"
need cmake cmake "configures the build"
need ninja-build 'ninja|make' "runs the build"
need libfmt-dev fmt/core.h "text output of pnpack"
need libcli11-dev CLI/CLI.hpp "command line of pnpack"
need nlohmann-json3-dev nlohmann/json.hpp "JSON output of pnpack"
need catch2 'catch2/catch_all.hpp|catch2/catch.hpp' "unit tests"
need libbenchmark-dev benchmark/benchmark.h "microbenchmarks (built here, not run)"
need python3 python3 "tests of pnpack and the second implementation that they compare with"
need pkg-config pkg-config "how projects without CMake find pn"
need make make "builds such a project"
need doxygen doxygen "API reference, in which nothing public may be missing"
need clang-tidy 'clang-tidy|clang-tidy-14' "finds mistakes in the sources"
need cppcheck cppcheck "finds others"
if [[ $(uname -m) == x86_64 ]]; then
  need g++-aarch64-linux-gnu aarch64-linux-gnu-g++ "the SIMD kernels of AArch64"
  need qemu-user-static qemu-aarch64-static "runs them"
fi
install_needed

jobs=$(nproc 2>/dev/null || echo 2)
if command -v ninja >/dev/null 2>&1; then export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}; fi
export CTEST_OUTPUT_ON_FAILURE=1
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# Leak detection needs ptrace, which debuggers and some containers keep from us; everything else in ASan does not.
probe=build/leak-probe
mkdir -p build
echo 'int main() { return 0; }' >$probe.cpp
g++ -fsanitize=address $probe.cpp -o $probe
if ! ASAN_OPTIONS=detect_leaks=1 ./$probe >/dev/null 2>&1; then
  echo "Leak detection cannot run here (no ptrace): it is left out, the rest of ASan and UBSan stays on."
  export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
fi
rm -f $probe $probe.cpp

# step WHAT COMMAND...: runs the command with a heading. The seconds of a step are told when the next one begins, so
# that the very last lines of a success are ctest's own.
seconds=
step() {
  local started=$SECONDS
  if [[ -n $seconds ]]; then echo "-- $seconds s"; fi
  printf '\n== %s\n' "$1"
  shift
  "$@" || { echo "tests/run.sh: failed after $((SECONDS - started)) s: $*" >&2; exit 1; }
  seconds=$((SECONDS - started))
}

# Fetching and building an engine takes ten minutes.
without_engine="|engine"
if [[ $all == ON || -x build/llama.cpp/engine/compare ]]; then without_engine=; fi

step "fuzz: 3 s for each target" tests/fuzz/run.sh --quick 3
for preset in gcc clang sanitize; do
  case $preset-$all in
    gcc-OFF) skipped="long|blackbox$without_engine" ;;
    clang-OFF) skipped="long|blackbox|many|once" ;;
    sanitize-OFF) skipped="long|once" ;;
    gcc-ON) skipped=none ;;
    clang-ON) skipped="blackbox|many|once" ;;
    sanitize-ON) skipped=once ;;
  esac
  options=(-DPN_TESTS_IN_FULL="$all")
  case $preset in
    gcc) options+=(-DPN_FUZZ_REPLAYS="$all") ;;
    clang) options+=(-DPN_TOOL="$all") ;;
  esac
  step "$preset: configure" cmake --preset "$preset" "${options[@]}"
  step "$preset: build" cmake --build --preset "$preset" --parallel "$jobs"
  step "$preset: test" ctest --preset "$preset" -j "$jobs" -LE "^($skipped)$"
done
