"""Compiles each of pncuda's public headers by itself and twice, warnings as errors.

usage: headers.py c99|cxx|nvcc|host [NVCC]

c99: .h as C99 without extensions. cxx: .h as C++17 and 20. nvcc: all for host and device. host: .cuh by a C++ compiler
alone, with CUDA's headers. Ends with 77 where a compiler or CUDA's headers are missing.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror".split()


def skip(text):
    print(f"skipped: {text}")
    sys.exit(77)


def headers(*suffixes):
    return sorted(str(p.relative_to(INCLUDE)) for p in (INCLUDE / "pncuda").iterdir() if p.suffix in suffixes)


def jobs(what, nvcc):
    nvcc = shutil.which(nvcc)
    cuda = None
    if nvcc is not None:
        top = pathlib.Path(os.path.realpath(nvcc)).parents[1]
        found = [p for p in (top / "include", *top.glob("targets/*/include"), pathlib.Path("/usr/include"))
                 if (p / "cuda_fp16.h").is_file()]
        cuda = found[0] if found else None
    if what == "c99":
        compilers = [c for c in ("gcc", "clang", "cc") if shutil.which(c)][:2] or skip("no C compiler")
        for header in headers(".h"):
            for compiler in compilers:
                yield header, [compiler, "-std=c99", "-pedantic", "-Wstrict-prototypes", *WARNINGS, "-x", "c"]
    elif what == "cxx":
        compilers = [c for c in ("g++", "clang++") if shutil.which(c)] or skip("no C++ compiler")
        for header in headers(".h"):
            for compiler in compilers:
                for standard in ("c++17", "c++20"):
                    yield header, [compiler, f"-std={standard}", "-Wpedantic", "-Wold-style-cast", *WARNINGS,
                                   "-fno-exceptions", "-fno-rtti", "-x", "c++"]
    elif what == "nvcc":
        if nvcc is None:
            skip("no nvcc")
        for header in headers(".h", ".cuh"):
            yield header, [nvcc, "-std=c++17", "-arch=sm_75", "-Werror", "all-warnings",
                           "-Xcompiler=-Wall,-Wextra,-Wshadow"]
    else:
        compilers = [c for c in ("g++", "clang++") if shutil.which(c)] or skip("no C++ compiler")
        if cuda is None:
            skip("no headers of CUDA")
        for header in headers(".cuh"):
            for compiler in compilers:
                yield header, [compiler, "-std=c++17", *WARNINGS, "-Wno-unknown-pragmas", "-isystem", str(cuda), "-x",
                               "c++"]


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("c99", "cxx", "nvcc", "host"):
        sys.exit(__doc__)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cu")
        for header, command in jobs(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "nvcc"):
            source.write_text(f"#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n")
            output = ["-c", "-o", f"{folder}/alone.o"]
            result = subprocess.run([*command, "-I", str(INCLUDE), *output, str(source)], capture_output=True,
                                    text=True)
            print("ok" if result.returncode == 0 else "FAILED", header, " ".join(command))
            if result.returncode != 0:
                failed = 1
                print((result.stdout + result.stderr)[:4000])
    return failed


if __name__ == "__main__":
    sys.exit(main())
