#!/usr/bin/env bash
# usage: test_pkg_config.sh PREFIX WORK CXX
# Builds with make and pkg-config against an installed tree, and against a copy of it that was moved elsewhere while
# the original is out of reach. Exits with 77, and says why, when make or pkg-config is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$1 work=$2
export CXX=$3

for tool in make pkg-config; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
rm -rf "$work"
mkdir -p "$work"
cp -a "$prefix" "$work/moved to here"
pc=$(find "$work/moved to here" -name pn-cpu.pc)
folder=$(dirname "$pc")
if grep -F "$prefix" "$folder"/*.pc; then
  echo "a .pc file names the folder that it was installed to"
  exit 1
fi
# pkg-config quotes blanks for the shell, which make passes on.
for file in "$folder"/pn-*.pc; do
  PKG_CONFIG_PATH=$folder pkg-config --validate "$(basename "$file" .pc)"
done
mkdir "$work/build"
PKG_CONFIG_PATH=$folder PN_STATIC=--static make -C "$work/build" -f "$here/pkg_config/Makefile"
flags=$(PKG_CONFIG_PATH=$folder pkg-config --cflags pn-cpu)
[[ $flags == *moved* ]] || { echo "the headers are not those of the moved tree: $flags"; exit 1; }
