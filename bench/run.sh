#!/usr/bin/env bash
# Builds the benchmarks, runs them and prints one table. `bench/run.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/run.sh [--quick] [--peers] [--json FILE] [--save FOLDER]

Builds pn (Release) in build/bench and measures it; takes about 20 minutes. Anything else that runs on the machine
disturbs. Prints a table; a figure that misses its target is no error.

  --quick        fewer and shorter repetitions: about 6 minutes
  --peers        measures ggml and zipnn too; bench/peers.sh gets them (to $PN_PEERS, or pn-peers in the cache folder)
  --json FILE    writes the figures there too
  --save FOLDER  writes table and figures to FOLDER/<date>-<processor>.txt and .json too
  -h, --help     this text

PN_BENCH_BUILD names another build folder.
TEXT
}

wrong_use() {
  usage >&2
  echo "run.sh: $*" >&2
  exit 2
}

quick=
peers=
json=
save=
while (($# > 0)); do
  case $1 in
    --quick) quick=yes ;;
    --peers) peers=yes ;;
    --json | --save)
      (($# > 1)) || wrong_use "$1 needs a name"
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) wrong_use "unknown argument $1" ;;
  esac
  shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${PN_BENCH_BUILD:-$root/build/bench}
exec </dev/null

# shellcheck source=../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"
need g++ 'c++|g++|clang++' "C++17 compiler"
need cmake cmake "configures the build"
need make 'ninja|make' "runs the build"
need libbenchmark-dev benchmark/benchmark.h "measures"
need python3 python3 "makes the table"
if [[ -n $peers ]] && ! python3 -c 'import ensurepip' 2>/dev/null; then
  need python3-venv /missing "gets ggml and zipnn"  # a probe that never succeeds
fi
install_needed >&2

target=pn_bench
options=(-DPN_BENCH_GGML=)
if [[ -n $peers ]]; then
  folder=${PN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/pn-peers}
  echo "Getting ggml and zipnn ..." >&2
  "$root/bench/peers.sh" "$folder" >&2
  folder=$(cd "$folder" && pwd)
  target=pn_bench_peers
  options=(-DPN_BENCH_GGML="$folder")
fi

mkdir -p "$build"
echo "Building $target ..." >&2
build_target() {
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DPN_TOOL=OFF -DPN_TESTS=OFF -DPN_BENCH=ON -DPN_CUDA=OFF "${options[@]}" &&
    cmake --build "$build" --target "$target" --parallel "$(nproc 2>/dev/null || echo 2)"
}
if ! build_target >"$build/build.log" 2>&1; then
  cat "$build/build.log" >&2
  echo "run.sh: the build failed" >&2
  exit 1
fi

repetitions=15
seconds=0.2
if [[ -n $quick ]]; then
  repetitions=7
  seconds=0.1
fi
echo "Measuring ..." >&2
"$build/bench/$target" --benchmark_enable_random_interleaving=true --benchmark_repetitions=$repetitions \
  --benchmark_min_time=$seconds --benchmark_out="$build/measured.json" --benchmark_out_format=json \
  >"$build/measured.txt" 2>"$build/measured.err" || { cat "$build/measured.err" >&2; exit 1; }

report=(python3 "$root/bench/report.py" "$build/measured.json")
if [[ -n $json ]]; then report+=(--json "$json"); fi
if [[ -n $save ]]; then report+=(--save "$save"); fi
if [[ -n $peers ]]; then
  "$folder/zipnn/bin/python" "$root/bench/zipnn_bench.py" 5 >"$build/zipnn.json"
  report+=(--zipnn "$build/zipnn.json")
fi
"${report[@]}"
