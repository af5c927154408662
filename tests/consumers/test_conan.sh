#!/usr/bin/env bash
# usage: test_conan.sh SOURCE WORK GENERATOR
# Makes Conan packages of pn: static, shared, headers only. With each builds and runs programs, by CMake and by make
# with pkg-config. Conan is the one in PATH, or is installed into WORK from PyPI; its cache is in WORK. Exits with 77,
# and says why, where that is not possible.
set -euo pipefail
source=$1 work=$2 generator=$3

skip() { echo "skipped: $1"; exit 77; }
for tool in make pkg-config; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
mkdir -p "$work"
cd "$work"
export CONAN_HOME=$work/home
PATH=$PATH:$work/venv/bin
if ! command -v conan >/dev/null; then
  python3 -m venv venv || skip "Conan is not installed, and python3 makes no environment for it"
  venv/bin/pip --disable-pip-version-check install --quiet 'conan>=2,<3' ||
    skip "Conan is not installed, and pip cannot download it"
fi
conan --version | grep 'version 2' || skip "this Conan is not version 2"

rm -rf "$CONAN_HOME" "$work"/build-*
conan profile detect
version=$(sed -n 's/^#define PN_VERSION_[A-Z]* //p' "$source/include/pn/version.hpp" | paste -sd.)

# try NAME LIBRARIES [options...]: a package with these files of libraries, and programs that use it.
try() {
  local build=$work/build-$1 libraries=$2 cpu=ON
  shift 2
  local options=(--no-remote -c "tools.cmake.cmaketoolchain:generator=$generator" "$@")
  conan create "$source" "${options[@]}"
  conan install --requires "pn/$version" --output-folder "$build/conan" --deployer full_deploy -g CMakeDeps \
    -g PkgConfigDeps "${options[@]}"

  local package
  package=$(dirname "$(find "$build/conan/full_deploy" -name licenses)")
  [[ $(find "$package" -name '*pn_cpu*' -printf '%P\n' | sort | paste -sd' ') == "$libraries" ]]
  [[ $(ls "$package/licenses") == LICENSE && -f $package/include/p12/FORMAT.md && ! -e $package/share ]]

  [[ $libraries ]] || cpu=OFF
  cmake -S "$source/tests/consumers/conan" -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$build/conan" -Dcpu=$cpu
  cmake --build "$build"
  [[ $cpu == ON ]] || return 0
  mkdir "$build/make"
  (
    set +u
    # shellcheck source=/dev/null
    source "$build/conan/conanrun.sh"
    PKG_CONFIG_PATH=$build/conan make -C "$build/make" -f "$source/tests/consumers/pkg_config/Makefile"
  )
}
so=lib/libpn_cpu.so
try static lib/libpn_cpu.a
try shared "$so $so.${version%.*} $so.$version" -o 'pn/*:shared=True'
try headers '' -o 'pn/*:cpu=False'
