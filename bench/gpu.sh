#!/usr/bin/env bash
# Checks and times libpncuda's kernels on this machine's GPU. `bench/gpu.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/gpu.sh [--quick] [--arch SM] [--seconds N] [--out FOLDER] [--build-only | --host]

Builds the kernels and bench/gpu with nvcc for this machine's GPU, checks every kernel against the core, asks the
hardware what the kernels take for granted, and times them beside copies of memory and cuBLAS, if it is there. Needs
bash, a C++ compiler and nvcc; no internet. Takes less than five minutes. Prints what it finds and writes it to
FOLDER/<date>-<card>.txt and .json. The exit status is 1 when a check fails; timings never change it.

  --quick        fewer shapes and repetitions: about a minute beside the build
  --arch SM      compile for sm_SM (60, 75, 90, ...) and not for what the GPU says
  --seconds N    nothing new is timed N seconds after the start (default 270)
  --out FOLDER   default: bench/results
  --build-only   builds everything; needs no GPU
  --host         builds it to run on the CPU (tests/host_cuda, no CUDA needed), checks small shapes, writes to FOLDER
                 only if --out is given
  -h, --help     this text

PN_GPU_BUILD names another build folder than build/gpu, PN_NVCC the nvcc, CXXFLAGS more flags for --host.
TEXT
}

wrong_use() {
  usage >&2
  echo "gpu.sh: $*" >&2
  exit 2
}
fail() {
  echo "gpu.sh: $*" >&2
  exit 1
}

mode=gpu
arch=
seconds=270
out=
options=()
while (($# > 0)); do
  case $1 in
    --quick) options+=(--quick) ;;
    --build-only) mode=build ;;
    --host) mode=host ;;
    --arch | --seconds | --out)
      (($# > 1)) || wrong_use "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) wrong_use "unknown argument $1" ;;
  esac
  shift
done
arch=${arch#sm_}
[[ $arch =~ ^[0-9]*$ ]] || wrong_use "--arch $arch is no number"
[[ $seconds =~ ^[0-9]+$ ]] || wrong_use "--seconds $seconds is no number"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${PN_GPU_BUILD:-$root/build/gpu}
exec </dev/null
mkdir -p "$build"
build=$(cd "$build" && pwd)

sources=("$root"/cuda/*.cu "$root"/bench/gpu/*.cu "$root"/bench/gpu/*.cpp)
includes=(-I"$root/include" -I"$root/cuda")

# compile_all FOLDER COMMAND...: sets `objects`, in FOLDER, one of every source, and compiles those that are older than
# any file that counts, as many at once as there are cores.
compile_all() {
  local folder=$1
  shift
  mkdir -p "$folder"
  objects=()
  local source object stale=()
  for source in "${sources[@]}"; do
    object=$folder/$(basename "$source").o
    objects+=("$object")
    if [[ ! -e $object || -n $(find "$root"/{cuda,include,bench/gpu,bench/gpu.sh,tests/host_cuda} -type f \
      -newer "$object" -print -quit) ]]; then
      stale+=("$source" "$object")
    fi
  done
  ((${#stale[@]} > 0)) || return 0
  # What a compiler leaves that dies must not count as built. xargs appends source and object to the command.
  # shellcheck disable=SC2016
  printf '%s\0' "${stale[@]}" | xargs -0 -n 2 -P "$(nproc 2>/dev/null || echo 2)" bash -c '
    object=${*: -1}
    "${@:1:$#-1}" -o "$object.tmp" && mv "$object.tmp" "$object"' compile "$@" || fail "the build failed"
}

if [[ $mode == host ]]; then
  compiler=${CXX:-g++}
  read -r -a more <<<"${CXXFLAGS:-}"
  sources+=("$root"/tests/host_cuda/{context,engine,runtime,cublas}.cpp)
  # The kernels count on loops that are unrolled, and nvcc's pragmas are unknown.
  compile_all "$build/host" "$compiler" -std=c++17 -O2 -Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas \
    -Wno-maybe-uninitialized -Wno-unknown-warning-option -ffp-contract=off -fno-strict-aliasing -DPN_HOST_CUDA \
    -DPN_GPU_BENCH_BLAS -I"$root/tests/host_cuda/include" "${includes[@]}" -pthread "${more[@]}" -x c++ -c
  "$compiler" "${more[@]}" -pthread "${objects[@]}" -o "$build/gpu_bench_host"
  if [[ -z $out ]]; then out=$build/host; fi
  mkdir -p "$out"
  HOST_CUDA_THREADS=${HOST_CUDA_THREADS:-$(nproc 2>/dev/null || echo 2)}
  export HOST_CUDA_THREADS
  "$build/gpu_bench_host" --tiny --out "$out"
  "$build/gpu_bench_host" --tiny --out "$out" --p100
  exit
fi

nvcc=${PN_NVCC:-}
for candidate in nvcc "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
  if [[ -z $nvcc ]] && command -v "$candidate" >/dev/null; then nvcc=$(command -v "$candidate"); fi
done
[[ -n $nvcc ]] || fail "no nvcc: put it on the PATH, or set PN_NVCC"
toolkit=$(cd "$(dirname "$(readlink -f "$(command -v "$nvcc")")")/.." && pwd)

# The GPU's compute capability without its point; nothing where there is no GPU.
capability() {
  local said
  said=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -dc 0-9) || true
  if [[ -z $said ]]; then  # an old driver does not tell
    cat >"$build/probe.cu" <<'CODE'
#include <cstdio>
int main() {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess)
    return 1;
  std::printf("%d%d", major, minor);
}
CODE
    if "$nvcc" -Wno-deprecated-gpu-targets "$build/probe.cu" -o "$build/probe" >"$build/probe.log" 2>&1; then
      said=$("$build/probe") || said=
    fi
  fi
  echo "$said"
}

has_gpu=$(capability)
if [[ -z $arch ]]; then arch=$has_gpu; fi
if [[ -z $has_gpu ]]; then
  echo "gpu.sh: there is no NVIDIA GPU here that CUDA can use" >&2
  [[ $mode == build ]] || fail "--build-only builds without one, --host runs the checks on the CPU"
fi
if [[ -z $arch ]]; then arch=90; fi
if "$nvcc" --list-gpu-code >"$build/codes" 2>/dev/null && ! grep -qx "sm_$arch" "$build/codes"; then
  fail "$nvcc compiles for $(tr '\n' ' ' <"$build/codes")and not for sm_$arch (CUDA 11.8 and 12 do for sm_60)"
fi

flags=(-std=c++17 -O3 "-gencode=arch=compute_$arch,code=sm_$arch" -Wno-deprecated-gpu-targets
  "-Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-unknown-pragmas,-ffp-contract=off")
libraries=(-ldl -lpthread)
folder=$build/sm_$arch
# pncuda_blas.h needs the headers and the library; without them the bench loads cuBLAS itself when it runs.
cat >"$build/blas_probe.cu" <<'CODE'
#include <cublas_v2.h>
int main() {
  cublasHandle_t handle;
  return cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS;
}
CODE
if "$nvcc" -Wno-deprecated-gpu-targets "$build/blas_probe.cu" -o "$build/blas_probe" -lcublas \
  >"$build/blas_probe.log" 2>&1; then
  flags+=(-DPN_GPU_BENCH_BLAS)
  libraries+=(-lcublas)
  folder+=_blas
else
  echo "gpu.sh: no cuBLAS to compile with: libpncuda_blas is left out" >&2
  all=("${sources[@]}")
  sources=()
  for source in "${all[@]}"; do
    # What needs cuBLAS includes its header, blas.hpp or pncuda_blas.h.
    if [[ $source == "$root"/bench/* ]] || ! grep -q 'blas\(_v2\)\?\.h' "$source"; then sources+=("$source"); fi
  done
fi
echo "Building for sm_$arch with $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p') ..." >&2
compile_all "$folder" "$nvcc" "${flags[@]}" "${includes[@]}" -c
"$nvcc" "-gencode=arch=compute_$arch,code=sm_$arch" -Wno-deprecated-gpu-targets "${objects[@]}" \
  -o "$build/gpu_bench_sm_$arch" "${libraries[@]}"
if [[ $mode == build ]]; then
  echo "$build/gpu_bench_sm_$arch"
  exit
fi

if [[ -z $out ]]; then out=$root/bench/results; fi
mkdir -p "$out"
left=$((seconds > SECONDS ? seconds - SECONDS : 0))
export LD_LIBRARY_PATH=$toolkit/lib64:$toolkit/targets/x86_64-linux/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$build/gpu_bench_sm_$arch" "${options[@]}" --seconds "$left" --out "$out"
