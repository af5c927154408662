"""usage: test_shared.py SOURCE WORK GENERATOR CXX
Builds libpn_cpu as a shared library, installs it, and looks at it: it exports pn:: and p12:: only, runs nothing before
main, has an SONAME with the version, and programs that link it run.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

source, work = map(pathlib.Path, sys.argv[1:3])
generator, compiler = sys.argv[3:5]
prefix = work / "prefix"


def run(*command, **more):
    return subprocess.run([str(c) for c in command], text=True, check=True, stdout=subprocess.PIPE, **more).stdout


def configure(project, build, *options):
    run("cmake", "-S", project, "-B", build, "-G", generator, f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_BUILD_TYPE=Release", *options)
    run("cmake", "--build", build)


version = ".".join(re.findall(r"#define PN_VERSION_\w+ (\d+)", (source / "include/pn/version.hpp").read_text()))
abi = version.rsplit(".", 1)[0]
configure(source, work / "build", "-DBUILD_SHARED_LIBS=ON", "-DPN_TOOL=OFF", "-DPN_TESTS=OFF", "-DPN_BENCH=OFF",
          "-DPN_CUDA=OFF", "-DCMAKE_INSTALL_LIBDIR=lib")
shutil.rmtree(prefix, ignore_errors=True)
run("cmake", "--install", work / "build", "--prefix", prefix)

library = prefix / "lib/libpn_cpu.so"
assert os.readlink(library) == f"libpn_cpu.so.{abi}", os.readlink(library)
assert library.resolve().name == f"libpn_cpu.so.{version}", library.resolve()
dynamic = run("readelf", "-d", library)
assert f"soname: [libpn_cpu.so.{abi}]" in dynamic, dynamic
needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
assert all(re.match(r"lib(c|m|stdc\+\+|gcc_s|c\+\+|c\+\+abi)\.so|ld-linux", name) for name in needed), needed

exported = [line.rsplit(" ", 3)[0] for line in
            run("nm", "-D", "--defined-only", "--format=posix", "-C", library).splitlines()]
foreign = [name for name in exported if not re.match(r"([^(<]*[ *&])?(pn|p12)::", name)]
assert not foreign, foreign
for name in ("pn::cpu::isas(", "pn::cpu::quantize_rows<", "pn::cpu::multiply_batch<", "p12::cpu::multiply("):
    assert any(name in e for e in exported), name
assert len(exported) > 30, exported

# What runs before main: nothing but what the C runtime puts into every library.
arrays = re.findall(r"\.init_array\s+INIT_ARRAY\s+\S+\s+\S+\s+([0-9a-f]+)", run("readelf", "-SW", library))
assert all(int(size, 16) <= 8 for size in arrays), "constructors: " + str(arrays)

consumer = work / "consumer"
configure(source / "tests/consumers/find_package", consumer, f"-DCMAKE_PREFIX_PATH={prefix}",
          f"-Dexpect_below={prefix}", "-Dcomponents=cpu")
print(run(consumer / "consumer"))
