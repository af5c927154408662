#!/usr/bin/env bash
# Builds pnpack and shows what it does to a model file. `examples/quickstart.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/quickstart.sh [FILE] [--out DIR]

Installs what is missing (Debian packages), builds pnpack, and runs it on FILE, a GGUF file with BF16 weights; without
FILE on the small sample in examples/data. The input is only read.

  --out DIR   where the output files go (default: build/quickstart/out); those of an
              earlier run are replaced
  -h, --help  this text
TEXT
}

fail() {
  echo "quickstart: $*" >&2
  exit 1
}

wrong_use() {
  usage >&2
  echo "quickstart: $*" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/quickstart
out=$build/out
input=
options=yes
while (($# > 0)); do
  if [[ $options == yes ]]; then
    case $1 in
      -h | --help) usage; exit 0 ;;
      --out) (($# > 1)) || wrong_use "--out needs a folder"; out=$2; shift 2; continue ;;
      --out=*) out=${1#--out=}; shift; continue ;;
      --) options=no; shift; continue ;;
      -*) wrong_use "unknown option $1" ;;
    esac
  fi
  [[ -z $input ]] || wrong_use "one FILE at a time, please: '$input' and '$1' were given"
  input=$1
  shift
done
input=${input:-$root/examples/data/sample-bf16.gguf}
[[ -f $input && -r $input ]] || fail "cannot read the file '$input'"
[[ -n $out ]] || wrong_use "--out needs a folder"
mkdir -p -- "$out" || fail "cannot create the folder '$out'"
input=$(cd "$(dirname -- "$input")" && pwd)/$(basename -- "$input")
out=$(cd -- "$out" && pwd)

# shellcheck source=../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"
need g++ 'c++|g++|clang++' "C++17 compiler"
need cmake cmake "configures the build"
need make 'ninja|make' "runs the build"
need libfmt-dev fmt/core.h "text output of pnpack"
need libcli11-dev CLI/CLI.hpp "command line of pnpack"
need nlohmann-json3-dev nlohmann/json.hpp "JSON output of pnpack"
install_needed || fail "the packages above could not be installed"

step=0
heading() {
  step=$((step + 1))
  printf '\n[%d] %s\n' "$step" "$*"
}

heading "Build pnpack (Release) in ${build#"$root"/}"
mkdir -p "$build"
if [[ ! -e $build/CMakeCache.txt ]] && command -v ninja >/dev/null 2>&1; then
  export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}
fi
build_pnpack() {
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DPN_TOOL=ON -DPN_TESTS=OFF -DPN_BENCH=OFF -DPN_CUDA=OFF &&
    cmake --build "$build" --target pnpack --parallel "$(nproc 2>/dev/null || echo 2)"
}
started=$SECONDS
if ! build_pnpack >"$build/build.log" 2>&1; then
  cat "$build/build.log" >&2
  fail "the build failed; its output is above and in $build/build.log"
fi
echo "built in $((SECONDS - started)) s"
pnpack=$build/src/pnpack/pnpack

# last_line COMMAND...: its summary only, unless it fails.
last_line() {
  local status=0 output
  output=$("$@") || status=$?
  if ((status == 0)); then tail -n 1 <<<"$output"; else cat <<<"$output"; fi
  return "$status"
}

name=$(basename -- "$input")
ending=gguf
if [[ $name == *.safetensors ]]; then ending=safetensors; fi
name=${name%."$ending"}
packed=$out/$name.p12.$ending
restored=$out/$name.restored.$ending
pn4t=$out/$name.pn4t.$ending

heading "inspect: what is in the model file"
"$pnpack" inspect -- "$input"

heading "pack: BF16 -> BF16_P12, lossless; each tensor is unpacked and compared before it is written"
"$pnpack" pack --force -- "$input" "$packed"

heading "verify: compare every tensor of the packed file with the original once more, bit for bit"
last_line "$pnpack" verify -- "$packed" "$input"

heading "unpack: back to BF16; then cmp, which knows nothing of pnpack, compares the two files"
last_line "$pnpack" unpack --force -- "$packed" "$restored"
if cmp -s -- "$restored" "$input"; then
  echo "cmp: identical, byte for byte"
else
  json=$("$pnpack" pack --dry-run --json -- "$input" "$packed.dry-run")
  [[ $(tr -d ' \n' <<<"$json") == *'"restores_identical":false'* ]] || fail "the unpacked file differs from the original"
  echo "cmp: the weights are the same (see verify), but your file is laid out in an unusual way that is not kept"
fi

heading "quantize: -> pn4t, lossy, about a quarter of the size; for engines that multiply with PN weights"
"$pnpack" quantize --type pn4t --force -- "$input" "$pn4t"

heading "check: is every block of the new files valid? Needs no original"
last_line "$pnpack" check -- "$packed"
last_line "$pnpack" check -- "$pn4t"

# bits_per_weight FILE: all weights of the file, from the totals of `inspect --json`.
bits_per_weight() {
  "$pnpack" inspect --json -- "$1" | tr -d ' \n' |
    sed -n 's/.*"totals":{[^}]*"bits_per_weight":\([0-9.eE+-]*\).*/\1/p'
}
original_bytes=$(wc -c <"$input" | tr -d ' ')
row() {
  local bytes bits
  bytes=$(wc -c <"$2" | tr -d ' ')
  bits=$(bits_per_weight "$2")
  [[ -n $bits ]] || fail "no bits_per_weight in the JSON of $2"
  LC_ALL=C awk -v name="$1" -v bytes="$bytes" -v bits="$bits" -v all="$original_bytes" \
    'BEGIN { printf("  %-22s %14.0f %16.2f %11.1f%%\n", name, bytes, bits, 100 * bytes / all) }'
}

heading "What was saved (whole files; tensors that do not fit a format are counted as they are)"
printf '  %-22s %14s %16s %12s\n' file bytes "bits per weight" "of original"
row "original" "$input"
row "BF16_P12, lossless" "$packed"
row "pn4t, lossy" "$pn4t"
echo
echo "The files are in $out:"
for file in "$packed" "$restored" "$pn4t"; do echo "  $(basename -- "$file")"; done
echo "The tool is $pnpack; try it with --help."
