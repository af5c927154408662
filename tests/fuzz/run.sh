#!/usr/bin/env bash
# Builds the fuzz targets with libFuzzer and runs them. `tests/fuzz/run.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/fuzz/run.sh [--quick] SECONDS [TARGET]
       tests/fuzz/run.sh --coverage [TARGET]

Installs what is missing (Debian packages), builds with clang++, libFuzzer, ASan and UBSan into build/fuzz, writes the
seeds and runs each target for SECONDS, p12, mix and imatrix for half of that; or the one named, for SECONDS. Prints
runs and runs per second. When a run ends with a finding, prints how it ended and the file that reproduces it, and the
exit status is 1.

  pn           blocks and rows of pn3t and pn4t, the quantizer, conversions, against a second implementation
  p12          blocks and rows of BF16_P12
  mix          rules of quantize --mix and lists of promoted names, against a second reading
  imatrix      importance matrices in both forms, against numbers taken from the bytes
  gguf         GGUF files through the reader and all verbs, against a second reader and the core alone
  safetensors  the same for safetensors files, alone and in models by an index

  --quick      builds without optimisation, into build/fuzz-quick: for a few seconds that is less in all; and builds
               pnpack too, so that clang++ has judged all of it
  --coverage   runs nothing: replays all inputs that were gathered and tells which lines of pn they reach
               (full listing: build/fuzz-coverage/TARGET.txt)

What the fuzzer gathers stays in build/fuzz/corpus and is where the next run begins. A finding lies in
build/fuzz/findings; `build/fuzz/fuzz_TARGET FILE` shows it again. Once it is understood, the file goes to
tests/fuzz/regressions/TARGET-WHAT.bin, which ctest replays on every build, with any compiler and without a fuzzer.
TEXT
}

coverage=false
work=build/fuzz
build_type=RelWithDebInfo
also=()
if [[ ${1:-} == --quick ]]; then
  work=build/fuzz-quick
  build_type=Debug
  also=(pnpack)
  shift
fi
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  --coverage) coverage=true ;;
  '' | *[!0-9]* | 0) usage >&2; exit 2 ;;
esac
time_limit=$1
targets=(pn p12 mix imatrix gguf safetensors)
if (($# >= 2)); then
  case ${2#fuzz_} in
    pn | p12 | mix | imatrix | gguf | safetensors) targets=("${2#fuzz_}") ;;
    *) usage >&2; echo "tests/fuzz/run.sh: unknown target $2" >&2; exit 2 ;;
  esac
fi
if (($# > 2)); then usage >&2; exit 2; fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
exec </dev/null

# shellcheck source=../../cmake/debian_packages.sh
source cmake/debian_packages.sh
need clang clang++ "compiler with libFuzzer"
need cmake cmake "configures the build"
need ninja-build 'ninja|make' "runs the build"
need libfmt-dev fmt/core.h "text output of pnpack"
need libcli11-dev CLI/CLI.hpp "command line of pnpack"
need nlohmann-json3-dev nlohmann/json.hpp "JSON output of pnpack"
if $coverage; then need llvm llvm-cov "coverage report"; fi
install_needed

# libFuzzer and the sanitizers come in a package of their own, named after clang's version: Debian 12 and later call it
# libclang-rt-14-dev, earlier ones have it in libclang-common-11-dev.
mkdir -p $work
links() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >$work/probe.cpp
  clang++ -fsanitize=fuzzer,address,undefined -fprofile-instr-generate $work/probe.cpp -o $work/probe 2>$work/probe.log
}
if ! links; then
  major=$(clang++ -dumpversion | cut -d. -f1)
  package=libclang-rt-$major-dev
  for candidate in "libclang-rt-$major-dev" "libclang-common-$major-dev"; do
    if apt-cache show "$candidate" >/dev/null 2>&1; then package=$candidate; break; fi
  done
  needed_packages=("$package")
  needed_reasons=("libFuzzer and sanitizers of clang $major")
  install_needed
  links || { cat $work/probe.log >&2; echo "tests/fuzz/run.sh: clang++ cannot build with libFuzzer" >&2; exit 1; }
fi

jobs=$(nproc 2>/dev/null || echo 2)
if command -v ninja >/dev/null 2>&1; then export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}; fi
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# Short stacks of allocations: a third more runs per second.
export ASAN_OPTIONS=malloc_context_size=3${ASAN_OPTIONS:+:$ASAN_OPTIONS}
# Leak detection needs ptrace, which some containers keep from us.
if ! LLVM_PROFILE_FILE=$work/probe.raw ./$work/probe -runs=1 >/dev/null 2>&1; then ASAN_OPTIONS+=:detect_leaks=0; fi
rm -f $work/probe $work/probe.cpp $work/probe.log $work/probe.raw

# The files that targets write: in memory where possible, and gone in the end even after a crash.
scratch=$(mktemp -d -p "$(if [[ -d /dev/shm && -w /dev/shm ]]; then echo /dev/shm; else echo "${TMPDIR:-/tmp}"; fi)" pn-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

build() {  # FOLDER TARGET... [-- OPTION...]
  local folder=$1
  shift
  local -a names=() options=()
  while (($# > 0)) && [[ $1 != -- ]]; do names+=("$1"); shift; done
  if (($# > 0)); then options=("${@:2}"); fi
  cmake -S tests/fuzz -B "$folder" -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=$build_type \
    -DPN_WERROR=ON "${options[@]}" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; return 1; }
  cmake --build "$folder" --parallel "$jobs" --target "${names[@]}" >"$folder/build.log" 2>&1 ||
    { cat "$folder/build.log" >&2; return 1; }
}

echo "Building"
build $work fuzz_seeds "${targets[@]/#/fuzz_}" "${also[@]}"
./$work/fuzz_seeds $work/seeds

if $coverage; then
  work=build/fuzz-coverage
  mkdir -p $work
  names=("${targets[@]/#/fuzz_}")
  build $work "${names[@]/%/_replay}" -- -DPN_FUZZ_COVERAGE=ON
  for target in "${targets[@]}"; do
    mkdir -p "build/fuzz/corpus/$target"
    LLVM_PROFILE_FILE=$work/$target.raw TMPDIR=$scratch ./$work/fuzz_"$target"_replay --prefix="$target"- \
      tests/fuzz/regressions --prefix= "build/fuzz/seeds/$target" "build/fuzz/corpus/$target" | tail -n 1
    llvm-profdata merge "$work/$target.raw" -o "$work/$target.profile"
    sources=(include)
    case $target in mix | imatrix | gguf | safetensors) sources+=(src) ;; esac
    llvm-cov show $work/fuzz_"$target"_replay -instr-profile="$work/$target.profile" "${sources[@]}" >"$work/$target.txt"
    llvm-cov report $work/fuzz_"$target"_replay -instr-profile="$work/$target.profile" "${sources[@]}"
  done
  exit 0
fi

status=0
for target in "${targets[@]}"; do
  corpus=$work/corpus/$target
  findings=$work/findings
  log=$work/$target.log
  mkdir -p "$corpus" $findings
  seconds=$time_limit
  if ((${#targets[@]} > 1)); then
    case $target in p12 | mix | imatrix) seconds=$(((time_limit + 1) / 2)) ;; esac
  fi
  options=(-max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024
    -print_final_stats=1 -artifact_prefix="$findings/$target-")
  case $target in
    gguf | safetensors) options+=(-dict="tests/fuzz/$target.dict" -entropic=0) ;;
    imatrix) options+=(-dict=tests/fuzz/gguf.dict) ;;
  esac
  # Inputs that once were findings come first.
  mkdir -p "$scratch/$target" "$scratch/regressions-$target"
  for file in tests/fuzz/regressions/"$target"-*; do
    if [[ -e $file ]]; then cp "$file" "$scratch/regressions-$target/"; fi
  done
  touch "$scratch/started"
  result=0
  TMPDIR=$scratch/$target ./$work/fuzz_"$target" "${options[@]}" "$corpus" "$work/seeds/$target" \
    "$scratch/regressions-$target" >"$log" 2>&1 || result=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  reached=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  printf '%-11s %9s runs  %6s per second  %6s edges reached\n' "$target" "${runs:-?}" "${speed:-?}" "${reached:-?}"
  if ((result != 0)); then
    status=1
    echo
    grep -m 1 -A 12 -E 'property failed|ERROR: |runtime error|terminate called' "$log" || tail -n 20 "$log"
    echo
    echo "tests/fuzz/run.sh: finding in $target. All of the log: $log"
    find $findings -name "$target-*" -newer "$scratch/started" -exec echo "To see it again: $work/fuzz_$target {}" \;
  fi
done
exit $status
