"""Compiles CUDA sources of pn to cubins, warnings as errors, and looks at what ptxas says about each kernel.

usage: cubin.py --nvcc NVCC --arch sm_75 --folder FOLDER FILE.cu...

Fails when a source does not compile or when a kernel has spills, a stack frame or local memory. Ends with 77 and a line
that says why when there is no such compiler, or when it does not know the architecture. FOLDER gets
<version of the compiler>/<arch>/FILE.cubin, .ptx and .json (registers and so on); what is up to date there is not
compiled again. bench/sass.py imports this.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED = 77


class Skip(Exception):
    """The machine lacks something; the text says what."""


class Failure(Exception):
    """The source is at fault; the text says why."""


class Compiler:
    def __init__(self, nvcc):
        found = shutil.which(nvcc) if nvcc else None
        if found is None:
            raise Skip(f"no CUDA compiler {nvcc or 'nvcc'}")
        self.nvcc = os.path.abspath(found)
        result = subprocess.run([self.nvcc, "--version"], capture_output=True, text=True)
        found = re.search(r"release [\d.]+, V([\d.]+)", result.stdout)
        if result.returncode != 0 or not found:
            raise Skip(f"{self.nvcc} --version does not work")
        self.version = found.group(1)
        self.name = f"nvcc {self.version}"
        self.flags = ["-std=c++17", "-O3", "-Werror", "all-warnings", "-Wno-deprecated-gpu-targets", "-Xptxas", "-v"]
        if self.version.startswith("11."):
            # Officially the last host compiler is g++ 11; with cubins 12 does as well.
            host = next((h for h in ("g++-11", "g++-12") if shutil.which(h)), None)
            if host is None:
                raise Skip(f"{self.name} needs g++-11 or g++-12")
            self.flags += ["-ccbin", host, "-allow-unsupported-compiler"]

    def knows(self, arch):
        result = subprocess.run([self.nvcc, "--list-gpu-code"], capture_output=True, text=True)
        return arch in result.stdout.split()


def sources_digest():
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for top in ("cuda", "include"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".cu", ".cuh", ".h", ".hpp"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def parse_ptxas(text):
    """{mangled name: figures} from the output of ptxas -v"""
    kernels = {}
    current = {}
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)'", line):
            current = kernels.setdefault(found.group(1), {"registers": None, "stack": 0, "spills": 0, "local": 0,
                                                          "shared": 0})
        if found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, stores, loads = map(int, found.groups())
            # Functions that are called have lines of their own; they count for the kernel before them.
            current["stack"] = max(current.get("stack", 0), stack)
            current["spills"] = current.get("spills", 0) + stores + loads
        if found := re.search(r"Used (\d+) registers", line):
            current["registers"] = int(found.group(1))
            for key, word in (("shared", "smem"), ("local", "lmem")):
                if size := re.search(rf"(\d+) bytes {word}", line):
                    current[key] = int(size.group(1))
    return kernels


def add_launch_bounds(kernels, ptx):
    """Threads of a block and the least blocks of a multiprocessor, as __launch_bounds__ gives them."""
    for entry in re.split(r"\.entry\s+", ptx)[1:]:
        name = re.match(r"[\w$]+", entry).group(0)
        head = entry.split("{", 1)[0]
        if name in kernels:
            bound = re.search(r"\.(?:max|req)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
            if bound:
                x, y, z = (int(n or 1) for n in bound.groups())
                kernels[name]["threads"] = x * y * z
            if least := re.search(r"\.minnctapersm\s+(\d+)", head):
                kernels[name]["min_blocks"] = int(least.group(1))


def build(compiler, arch, source, folder):
    """The figures of `source` compiled for `arch`, a dictionary; "cubin" is where that lies."""
    source = pathlib.Path(source).resolve()
    folder = pathlib.Path(folder).resolve() / compiler.version / arch
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / source.stem
    command = [compiler.nvcc, *compiler.flags, f"-arch={arch}", "-I", str(ROOT / "include"), "-cubin"]
    inputs = [compiler.version, str(source), sources_digest(), *command[1:]]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    report = base.with_suffix(".json")
    if report.is_file():
        known = json.loads(report.read_text())
        if known.get("key") == key and base.with_suffix(".cubin").is_file():
            return known
    with tempfile.TemporaryDirectory(dir=folder) as work:
        result = subprocess.run([*command, "-keep", "-keep-dir", work, str(source), "-o", f"{work}/out.cubin"],
                                capture_output=True, text=True, cwd=work)
        output = result.stdout + result.stderr
        if result.returncode != 0:
            shown = "\n".join(line for line in output.splitlines() if not line.startswith("ptxas info"))
            raise Failure(f"{source.name} does not compile for {arch} with {compiler.name}:\n{shown[:8000]}")
        ptx = pathlib.Path(work, source.stem + ".ptx")
        figures = {"key": key, "source": source.name, "arch": arch, "compiler": compiler.name,
                   "cubin": str(base.with_suffix(".cubin")), "kernels": parse_ptxas(output)}
        add_launch_bounds(figures["kernels"], ptx.read_text())
        os.replace(f"{work}/out.cubin", base.with_suffix(".cubin"))
        os.replace(ptx, base.with_suffix(".ptx"))
    report.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def demangle(names):
    names = list(names)
    if not names:
        return {}
    program = shutil.which("c++filt") or shutil.which("cu++filt")
    if program is None:
        return {name: name for name in names}
    result = subprocess.run([program], input="\n".join(names) + "\n", capture_output=True, text=True, check=True)
    return dict(zip(names, result.stdout.splitlines()))


def complaints(figures):
    """Sentences about kernels that use local memory."""
    bad = {name: k for name, k in figures["kernels"].items() if k["stack"] or k["spills"] or k["local"]}
    names = demangle(bad)
    where = f"{figures['source']}, {figures['arch']}, {figures['compiler']}"
    return [f"{where}: {names[name]}: {k['stack']} bytes of stack frame, {k['spills']} bytes of spills, "
            f"{k['local']} bytes of local memory" for name, k in bad.items()]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("sources", nargs="+")
    arguments = parser.parse_args()
    bad = []
    try:
        compiler = Compiler(arguments.nvcc)
        if not compiler.knows(arguments.arch):
            raise Skip(f"{compiler.name} does not compile for {arguments.arch}")
        for source in arguments.sources:
            figures = build(compiler, arguments.arch, source, arguments.folder)
            most = max((k["registers"] for k in figures["kernels"].values()), default=0)
            print(f"{figures['source']}, {arguments.arch}, {compiler.name}: {len(figures['kernels'])} kernels, at most "
                  f"{most} registers")
            bad += complaints(figures)
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except Failure as reason:
        print(reason)
        return 1
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
