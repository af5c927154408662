#!/usr/bin/env bash
# usage: test_deb.sh SOURCE WORK
# Builds the Debian packages, installs them with apt into a Debian of their own (debootstrap), and there builds and runs
# programs against them, with CMake and with pkg-config, and the tool on the sample. Needs root and debootstrap; exits
# with 77, and says why, where one is missing.
set -euo pipefail
source=$1 work=$2

skip() { echo "skipped: $1"; exit 77; }
[[ $(id -u) == 0 ]] || skip "not root, which chroot asks for"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
command -v dpkg-shlibdeps >/dev/null || skip "dpkg-shlibdeps is not installed (dpkg-dev)"

mkdir -p "$work"
cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DBUILD_SHARED_LIBS=ON \
  -DPN_TOOL=ON -DPN_TESTS=OFF -DPN_BENCH=OFF -DPN_CUDA=OFF
cmake --build "$work/build" --parallel "$(nproc)"
rm -f "$work"/build/*.deb
(cd "$work/build" && cpack -G DEB)
for package in "$work"/build/*.deb; do
  dpkg-deb --info "$package"
  dpkg-deb --contents "$package"
done

# The same release and mirror as this machine's.
# shellcheck source=/dev/null
release=$(source /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016  # that is apt-get's
mirror=$(apt-get indextargets --format '$(SITE)' | grep -m 1 -v security)
root=$work/root
trap 'rm -rf "$root"' EXIT
rm -rf "$root"
debootstrap --variant=minbase "$release" "$root" "$mirror"
cp /etc/resolv.conf "$root/etc/resolv.conf"
if [[ -d /etc/apt/apt.conf.d ]]; then cp -n /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/"; fi
mkdir "$root/pn"
cp "$work"/build/*.deb "$root/pn/"
cp -r "$source/tests/consumers" "$source/examples/data" "$root/pn/"

chroot "$root" bash -euc '
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  apt-get install -y --no-install-recommends /pn/*.deb
  pnpack --version
  ldd /usr/bin/pnpack | grep libpn_cpu
  test -s /usr/share/man/man1/pnpack.1.gz || test -s /usr/share/man/man1/pnpack.1
  pnpack pack /pn/data/*.gguf /tmp/packed.gguf
  pnpack verify /tmp/packed.gguf /pn/data/*.gguf
  apt-get install -y --no-install-recommends g++ cmake make pkg-config python3-minimal
  python3 /usr/share/pn/conformance.py
  cmake -S /pn/consumers/find_package -B /tmp/consumer -Dcomponents= -Dexpect_below=/usr
  cmake --build /tmp/consumer
  /tmp/consumer/consumer
  mkdir /tmp/make
  make -C /tmp/make -f /pn/consumers/pkg_config/Makefile
  apt-get purge -y libpn0.1 libpn-dev pnpack pn-golden
  ! find /usr -name "*pn_cpu*" -o -name "pn-c*" -path "*cmake*" | grep .
'
