#!/usr/bin/env bash
# Builds the library and its Catch2 tests for AArch64 and runs them in an emulator: every instruction set of that
# machine (NEON and the baseline) against the core, with a tenth of the random blocks.
#
# usage: tests/cpu/run_neon.sh [FOLDER [ARGUMENTS...]]
#   FOLDER      where to build; what is up to date there is not built again (default: a new one, removed afterwards)
#   ARGUMENTS   for the test program, such as the name of a test case
#
# Exits with 77, and says why, when the cross compiler, the emulator or Catch2 2 is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
compiler=aarch64-linux-gnu-g++
emulator=qemu-aarch64-static

skip() { echo "skipped: $1 is not installed"; exit 77; }
command -v $compiler >/dev/null || skip $compiler
command -v $emulator >/dev/null || skip $emulator
[[ -f /usr/include/catch2/catch.hpp ]] || skip "Catch2 2 (/usr/include/catch2/catch.hpp)"

if (($# > 0)); then
  work=$1
  shift
  mkdir -p "$work"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/include"
ln -sfn /usr/include/catch2 "$work/include/catch2"

flags=(-std=c++17 -O2 -ffp-contract=off -Wall -Wextra -Werror -I"$root/include" -I"$root/tests"
  -isystem "$work/include" -DPN_CPU_ISA_FROM_ENVIRONMENT -DCATCH_CONFIG_FAST_COMPILE)
library=()
for source in "$root"/src/cpu/*.cpp; do
  case $source in
    */avx*.cpp) ;;
    */neon.cpp) flags+=(-DPN_CPU_AARCH64); library+=("$source") ;;
    *) library+=("$source") ;;
  esac
done
tests=("$here"/test_*.cpp "$root/tests/catch_main.cpp")

# What never changes is compiled once.
mkdir -p "$work/precompiled"
if [[ ! -e $work/precompiled/first.hpp.gch || $(cat "$work/precompiled/flags" 2>/dev/null) != "${flags[*]}" ]]; then
  echo '#include <catch.hpp>' >"$work/precompiled/first.hpp"
  $compiler "${flags[@]}" -O1 -x c++-header "$work/precompiled/first.hpp" -o "$work/precompiled/first.hpp.gch"
  echo "${flags[*]}" >"$work/precompiled/flags"
fi

objects=()
for source in "${library[@]}" "${tests[@]}"; do
  [[ $source == */test_random_blocks.cpp ]] && continue  # the long ones
  object="$work/$(basename "$source").o"
  objects+=("$object")
  # Built again when the flags or any header is newer; Catch2's own main needs none of ours.
  if [[ -e $object && $(cat "$object.flags" 2>/dev/null) == "${flags[*]}" ]]; then
    if [[ $source == */catch_main.cpp ]]; then continue; fi
    newer=$(find "$root/include" "$root/src/cpu" "$root/tests" \( -name '*.hpp' -o -path "$source" \) -newer "$object" -print -quit)
    [[ -z $newer ]] && continue
  fi
  echo "compiling ${source#"$root/"}"
  first=()
  if [[ $source == "$here"/* ]]; then first=(-O1 -include "$work/precompiled/first.hpp"); fi
  $compiler "${flags[@]}" "${first[@]}" -c "$source" -o "$object"
  echo "${flags[*]}" >"$object.flags"
done
$compiler -static -pthread "${objects[@]}" -o "$work/tests" -Wl,--whole-archive -lpthread -Wl,--no-whole-archive

PN_BLOCKS=${PN_BLOCKS:-10000} $emulator "$work/tests" "$@"
