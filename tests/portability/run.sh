#!/usr/bin/env bash
# Builds digest.cpp with every compiler, optimisation level and target at hand, runs it (under emulation where the
# target is another machine), and prints a table of digests. Fails unless all are those in digest.txt (a line for each
# part of the core; lines are added, never changed), and unless builds that could not keep the bits are refused by the
# headers themselves.
#
# usage: tests/portability/run.sh [--install]
#   --install   install the cross compilers and the emulator first (Debian packages)
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
expected=$(cat "$here/digest.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ ${1:-} == --install ]]; then
  # shellcheck source=../../cmake/debian_packages.sh
  source "$root/cmake/debian_packages.sh"
  need clang clang++ "a second compiler"
  need g++-12-multilib /usr/lib/gcc/x86_64-linux-gnu/12/32/libstdc++.a "32-bit x86"
  need g++-aarch64-linux-gnu aarch64-linux-gnu-g++ "AArch64"
  need g++-s390x-linux-gnu s390x-linux-gnu-g++ "s390x, a big-endian machine"
  need qemu-user-static qemu-aarch64-static "runs programs of other machines"
  install_needed || exit 1
elif (($# > 0)); then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
fi

failures=0
row() { printf '%-33s  %s\n' "$1" "$2"; }

# is_here COMPILER FLAGS...: the compiler is installed, and has the headers of the target that the flags ask for.
is_here() {
  command -v "$1" >/dev/null || return
  [[ " $* " != *" -m32 "* ]] || echo '#include <cstdint>' | "$1" -m32 -fsyntax-only -x c++ - 2>/dev/null
}

# digest RUNNER COMPILER FLAGS...: one row of the table. RUNNER is "" or an emulator.
digest() {
  local runner=$1 compiler=$2
  shift 2
  local name="$compiler $*"
  if ! is_here "$compiler" "$@" || { [[ -n $runner ]] && ! command -v "$runner" >/dev/null; }; then
    row "not tried" "$name (not installed)"
    return
  fi
  if ! "$compiler" -std=c++17 "$@" -I"$root/include" "$here/digest.cpp" -o "$work/digest" 2>"$work/errors"; then
    row "DOES NOT COMPILE" "$name"
    sed 's/^/    /' "$work/errors" | head -5
    failures=$((failures + 1))
    return
  fi
  local output
  if output=$($runner "$work/digest" "$expected"); then
    row "$(head -1 <<<"$output")" "$name"
  else
    row "$(head -1 <<<"$output") WRONG" "$name"
    tail -n +2 <<<"$output" | sed 's/^/    /'
    failures=$((failures + 1))
  fi
}

# refused TEXT COMPILER FLAGS...: the headers must stop this build with an #error that says TEXT.
refused() {
  local text=$1 compiler=$2
  shift 2
  if ! is_here "$compiler" "$@"; then
    row "not tried" "$compiler $* (not installed)"
    return
  fi
  if "$compiler" -std=c++17 "$@" -I"$root/include" -fsyntax-only "$here/digest.cpp" 2>"$work/errors" ||
    ! grep -q "error.*$text" "$work/errors"; then
    row "NOT REFUSED" "$compiler $*"
    failures=$((failures + 1))
  else
    row "refused, as it must" "$compiler $*"
  fi
}

echo "expected: ${expected//$'\n'/ }"
for compiler in g++ clang++; do
  for flags in -O0 -O1 -O2 -O3 -Os "-O3 -march=native" "-O3 -march=native -ffp-contract=fast" "-O3 -frounding-math" \
    "-O2 -std=c++20" "-O2 -fsanitize=undefined -fno-sanitize-recover=all"; do
    # shellcheck disable=SC2086
    digest "" $compiler $flags
  done
done
for level in -O0 -O3; do
  digest "" g++ -m32 -msse2 -mfpmath=sse $level
  digest qemu-aarch64-static aarch64-linux-gnu-g++ -static $level
  digest qemu-s390x-static s390x-linux-gnu-g++ -static $level
done
digest qemu-aarch64-static aarch64-linux-gnu-g++ -static -O3 -ffp-contract=off
# clang does not tell the headers of these; they must not matter.
for flags in "-funsafe-math-optimizations" "-fassociative-math -fno-signed-zeros -fno-trapping-math" \
  "-freciprocal-math" "-ffp-model=precise -fno-math-errno"; do
  # shellcheck disable=SC2086
  digest "" clang++ -O3 $flags
done
for compiler in g++ clang++; do
  refused "ffast-math" $compiler -O2 -ffast-math
  refused "wider type" $compiler -O2 -m32 -mno-sse
done
refused "ffast-math" g++ -O2 -fassociative-math -fno-signed-zeros -fno-trapping-math -freciprocal-math

if ((failures > 0)); then
  echo "$failures of these are wrong"
  exit 1
fi
echo "all digests are equal"
