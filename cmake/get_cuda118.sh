#!/usr/bin/env bash
# Unpacks the compiler of CUDA 11.8, the last of Debian 12, beside the system. `cmake/get_cuda118.sh -h` tells more.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: cmake/get_cuda118.sh FOLDER

Puts nvcc 11.8 with ptxas, cuobjdump and nvdisasm into FOLDER, for what newer toolkits no longer compile and take apart:
sm_60 (Tesla P100), sm_61, sm_70. Nothing is installed. The package (84 MB) comes from the Debian mirror that this
machine is set up with, component non-free. CUDA's headers are those of the toolkit whose nvcc is on the PATH, so this
compiles (-cubin, -ptx, -fatbin) and does not link programs. A FOLDER that is complete is left as it is. PN_NVCC names
another nvcc than that on the PATH.

    FOLDER/bin/nvcc -ccbin g++-12 -allow-unsupported-compiler -cubin -arch=sm_60 -std=c++17 a.cu -o a.cubin

Ends with 77 and one line that says why when this machine cannot (no toolkit, no apt-get, no network, ...).
TEXT
}

cannot() {
  echo "get_cuda118.sh: $*" >&2
  exit 77
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
if (($# != 1)) || [[ -z $1 ]]; then
  usage >&2
  exit 2
fi

package=nvidia-cuda-toolkit
release=bookworm
version=11.8
destination=$(mkdir -p "$1" && cd "$1" && pwd)

# The mark is written last, after the compiler has run. It names the toolkit whose headers are used.
toolkit_include() {
  local nvcc folder
  nvcc=$(command -v "${PN_NVCC:-nvcc}") || return 1
  nvcc=$(readlink -f "$nvcc")
  nvcc=$(dirname "$nvcc")
  for folder in "$nvcc/../include" "$nvcc/../targets/$(uname -m)-linux/include" /usr/include; do
    if [[ -e $folder/cuda_runtime.h ]]; then
      (cd "$folder" && pwd)
      return 0
    fi
  done
  return 1
}
headers=$(toolkit_include) || cannot "no CUDA toolkit whose headers could be used: no ${PN_NVCC:-nvcc}"
mark=$destination/.complete
if [[ -e $mark && $(<"$mark") == "$headers" && -x $destination/bin/nvcc ]]; then exit 0; fi

[[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] || cannot "Debian has CUDA for x86-64 only"
for tool in apt-get dpkg dpkg-deb tar flock; do
  command -v "$tool" >/dev/null || cannot "no $tool: this needs Debian or a derivative of it"
done
work=$destination/.work
exec 9>"$destination/.lock"
flock 9
if [[ -e $mark && $(<"$mark") == "$headers" ]]; then exit 0; fi  # another run has just finished
rm -rf "$work" "$mark"
trap 'rm -rf "$work"' EXIT

# The first mirror in either form of apt's lists: `URIs: A B` or `deb [options] A suite ...`.
mirror=
shopt -s nullglob
for list in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [[ -r $list ]] || continue
  mirror=$(sed -nE -e 's/^URIs:[[:space:]]*([^[:space:]]+).*/\1/p' \
    -e 's/^deb[[:space:]]+(\[[^]]*\][[:space:]]*)?([^[:space:]]+).*/\2/p' "$list" | grep -m1 -E '/debian/?$') && break
done
[[ -n $mirror ]] || cannot "apt has no mirror of Debian in its lists"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -r $keys ]] || cannot "no keys of Debian's archive ($keys)"

# Lists, caches and sources of our own: apt needs no root for them, and the system's stay as they are. The .list form of
# sources is what every apt reads.
mkdir -p "$work"/{lists/partial,cache/archives/partial,parts,preferences,root}
echo "deb [signed-by=$keys] $mirror $release non-free" >"$work/sources.list"
touch "$work/status"
options=(-qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts="$work/parts"
  -o Dir::Etc::PreferencesParts="$work/preferences" -o Dir::Etc::Preferences="$work/none"
  -o Dir::State::Lists="$work/lists" -o Dir::State::Status="$work/status" -o Dir::Cache="$work/cache"
  -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::Languages=none
  -o APT::Update::Error-Mode=any -o Debug::NoLocking=true)
apt() {
  (cd "$work" && apt-get "${options[@]}" "$@" </dev/null >"$work/log" 2>&1) ||
    cannot "apt-get $1 failed: $(grep -m1 -E '^[EW]:' "$work/log" || tail -n1 "$work/log")"
}
echo "get_cuda118.sh: downloading $package (84 MB) from $mirror" >&2
apt update
apt download "$package"
deb=$(compgen -G "$work/${package}_${version}*.deb") || cannot "$mirror has no $package $version"

dpkg-deb --fsys-tarfile "$deb" | tar x -C "$work/root" --exclude='*sanitizer*' --exclude='*memcheck*'
from=$work/root/usr
rm -rf "${destination:?}"/{bin,nvvm,include}
mkdir -p "$destination"/{bin,nvvm/bin}
for program in bin2c cudafe++ cuobjdump fatbinary nvdisasm nvlink ptxas cu++filt; do
  mv "$from/bin/$program" "$destination/bin/"
done
mv "$from"/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$destination/bin/"
mv "$from/lib/nvidia-cuda-toolkit/bin/cicc" "$destination/nvvm/bin/"
mv "$from/lib/nvidia-cuda-toolkit/libdevice" "$destination/nvvm/"
ln -s "$headers" "$destination/include"
# nvcc looks for its parts as this file beside it says; Debian's names the system's folders.
cat >"$destination/bin/nvcc.profile" <<'PROFILE'
TOP                = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH              += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES          +=  "-I$(TOP)/include" $(_SPACE_)
PROFILE
"$destination/bin/nvcc" --version | grep -q "release $version" || cannot "the compiler that was unpacked does not run"
echo "$headers" >"$mark"
