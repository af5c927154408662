#!/usr/bin/env bash
# Counts the instructions of libpncuda's kernels, without a device. `bench/sass.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/sass.sh [--quick] [--all] [--check] [--save]

Compiles the kernels for sm_60, 75, 80 and 90 with CUDA 11.8, and for sm_75 and sm_90 with the nvcc on the PATH as well;
prints registers, occupancy and instructions for each weight in the main loops. Needs no device. CUDA 11.8's compiler
(cmake/get_cuda118.sh) and, where the toolkit has no nvdisasm, the one from PyPI are downloaded into the build folder.

  --quick     only sm_60 with CUDA 11.8 and sm_90 with the other nvcc
  --all       every kernel that has a main loop, not only those that are listed
  --check     fails when a kernel spills, is over its budget or more than 10% worse than bench/results/sass.json
  --save      writes bench/results/sass.md and sass.json
  -h, --help  this text

PN_CUDA_CHECKS names another build folder than build/cuda_checks, PN_NVCC another nvcc than that on the PATH. Ends with
77 where there is no compiler.
TEXT
}

options=()
quick=
save=
archs118=sm_60,sm_75,sm_80,sm_90
archs=sm_75,sm_90
for argument in "$@"; do
  case $argument in
    --quick)
      quick=yes
      archs118=sm_60
      archs=sm_90
      ;;
    --save)
      save=yes
      options+=(--save)
      ;;
    --all | --check) options+=("$argument") ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "sass.sh: unknown argument $argument" >&2; exit 2 ;;
  esac
done
if [[ -n $quick && -n $save ]]; then
  usage >&2
  echo "sass.sh: --save needs all architectures, not --quick" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${PN_CUDA_CHECKS:-$root/build/cuda_checks}
nvcc=${PN_NVCC:-nvcc}
exec </dev/null
mkdir -p "$build"
build=$(cd "$build" && pwd)

compilers=()
if "$root/cmake/get_cuda118.sh" "$build/cuda118"; then
  compilers+=("$build/cuda118/bin/nvcc=$build/cuda118/bin/nvdisasm=$archs118")
fi

# nvdisasm of the toolkit, or PyPI's, which need not be of the same version but not older.
disassembler() {
  local beside python
  beside=$(dirname "$(command -v "$nvcc")")/nvdisasm
  if [[ -x $beside ]]; then
    echo "$beside"
    return
  fi
  python=$build/nvdisasm/bin/python
  if [[ ! -x $python ]] && ! python3 -m venv "$build/nvdisasm" >&2; then return 1; fi
  if ! "$python" -c 'import nvidia' 2>/dev/null; then
    "$python" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvdisasm >&2 || return 1
  fi
  find "$build/nvdisasm" -name nvdisasm -type f -perm -u+x | head -n1 | grep .
}
if command -v "$nvcc" >/dev/null; then
  if nvdisasm=$(disassembler); then
    compilers+=("$(command -v "$nvcc")=$nvdisasm=$archs")
  else
    echo "sass.sh: no nvdisasm for $nvcc, neither beside it nor from PyPI: left out" >&2
  fi
fi

status=0
python3 "$root/bench/sass.py" --folder "$build/cubins" "${options[@]}" "${compilers[@]}" || status=$?
if ((status == 77)); then echo "sass.sh: skipped: no CUDA compiler that it could use" >&2; fi
exit "$status"
