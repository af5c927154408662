#!/usr/bin/env bash
# Gets what the benchmarks compare with: ggml and zipnn. `bench/peers.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/peers.sh [FOLDER]

Downloads two packages with pip, as pip is configured here, each pinned to one version:
  llama-cpp-python (source)  its SHA-256 too; its copy of ggml is built for this processor: FOLDER/ggml, FOLDER/build
  zipnn                      goes into FOLDER/zipnn
Nothing is written outside FOLDER, and what is there already is not made again. `bench/run.sh --peers` runs this script
by itself. FOLDER: the environment variable PN_PEERS, or pn-peers in ${XDG_CACHE_HOME:-~/.cache}.
TEXT
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; echo "peers.sh: unknown option $1" >&2; exit 2 ;;
esac
folder=${1:-${PN_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/pn-peers}}

llama_version=0.3.36
llama_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
zipnn_version=0.5.4

mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd)
cd -- "$folder"
exec </dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1

# done_once NAME COMMAND...: runs the command unless it has succeeded here before.
done_once() {
  local stamp=.done-$1
  shift
  if [[ ! -e $stamp ]]; then
    "$@"
    touch "$stamp"
  fi
}

# pip asks the source package for its metadata, and for that wants its build backend.
fetch_ggml() {
  local package=llama_cpp_python-$llama_version
  python3 -m venv venv
  venv/bin/python -m pip install -q scikit-build-core
  echo "llama-cpp-python==$llama_version --hash=sha256:$llama_sha256" >requirements.txt
  venv/bin/python -m pip download -q --no-deps --no-binary :all: --no-build-isolation --require-hashes \
    -r requirements.txt -d download
  rm -rf ggml
  mkdir ggml
  tar -xzf "download/$package.tar.gz" -C ggml --strip-components=4 "$package/vendor/llama.cpp/ggml"
  rm -rf download
}

# Within a project of ours: built by itself ggml asks for a file that this package leaves out.
build_ggml() {
  printf '%s\n' 'cmake_minimum_required(VERSION 3.21)' 'project(peers C CXX)' 'add_subdirectory(ggml)' >CMakeLists.txt
  cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF \
    -DGGML_CCACHE=OFF >build.log
  cmake --build build --target ggml-cpu --parallel "$(nproc 2>/dev/null || echo 2)" >>build.log
}

# Without its dependencies: it compresses bytes without PyTorch, which is some gigabytes (bench/zipnn_bench.py).
fetch_zipnn() {
  python3 -m venv zipnn
  zipnn/bin/python -m pip install -q numpy
  zipnn/bin/python -m pip install -q --no-deps "zipnn==$zipnn_version"
}

done_once "fetch-$llama_version" fetch_ggml
done_once "build-$llama_version" build_ggml
done_once "zipnn-$zipnn_version" fetch_zipnn
