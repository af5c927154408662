"""clang-tidy (with .clang-tidy), or cppcheck, has nothing to complain of; and it would complain.

usage: static_analysis.py clang-tidy BUILD [--in-full] [--times] [NAME...]
       static_analysis.py cppcheck

BUILD is a build folder with compile_commands.json, of any compiler. clang-tidy looks at src/ and examples/, and its
analyzer takes few of the steps that it would; --in-full: at bench/ and tests/ too, in all steps. NAME: only files
whose name in the project begins so. --times tells the processor's seconds for each file. Ends with 77 where the tool
is missing, or another version than Debian 12's, which would find other things, or where the list of commands is.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("src/", "examples/")
FOLDERS_IN_FULL = ("src/", "examples/", "bench/", "tests/")
VERSIONS = {"clang-tidy": "14", "cppcheck": "2.10"}
# What makes a run short: without the two checks that take longest and the group that finds no faults, and with few
# steps of the analyzer in a function.
SHORT = ["--checks=-bugprone-stringview-nullptr,-performance-unnecessary-value-param,-modernize-*",
         *(f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=10000"))]

# Of each group of checks one fault, by the check that must find it; `faulty.hpp` lies in a folder include/pn.
FAULTY_HEADER = """
namespace {
int in_every_file = 1;  // google-build-namespaces
}
struct FromInt {
  FromInt(int n) : value(n) {}  // google-explicit-constructor
  int value;
};
"""
FAULTY = """
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include "include/pn/faulty.hpp"
const std::string early = std::string(3, 'x');  // cert-err58-cpp
struct Owner {  // cppcoreguidelines-special-member-functions
  ~Owner() { delete p; }
  int* p = nullptr;
};
struct Base {
  virtual int kind() { return in_every_file; }
  virtual ~Base() = default;
};
struct Derived : Base {
  int kind() override { return n; }
  int n = 0;
};
int sliced(const Derived& d) { return Base(d).kind(); }  // cppcoreguidelines-slicing
std::size_t moved(std::string a) {
  const std::string b = std::move(a);
  return a.size() + b.size();  // bugprone-use-after-move
}
std::size_t bytes(int rows, int k) { return rows * k; }  // bugprone-implicit-widening-of-multiplication-result
int unset(bool known) {
  int n;
  if (known) n = 1;
  return 2 * n;  // clang-analyzer-core.UndefinedBinaryOperatorResult
}
int twice(int n) { return n > 1 || n > 1 ? 1 : 0; }  // misc-redundant-expression
std::size_t letters(const std::vector<std::string>& words) {
  std::size_t n = 0;
  for (const std::string word : words) n += word.size();  // performance-for-range-copy
  return n;
}
bool none(const std::vector<int>& v) { return v.size() == 0; }  // readability-container-size-empty
void caught() {
  try {
    moved("a");
  } catch (std::runtime_error error) {  // misc-throw-by-value-catch-by-reference
    std::puts(error.what());
  }
}
void written(std::FILE* file) { std::fclose(file); }  // bugprone-unused-return-value
int summed() {
  int n = 0;
  for (float f = 0; f < 1; f += 0.1f) ++n;  // cert-flp30-c
  return n;
}
const char* name_of(int code) { return std::getenv(code == 0 ? "A" : "B"); }  // concurrency-mt-unsafe
"""
FAULTY_TO_CPPCHECK = """
int beyond(int i) {
  int some[4] = {1, 2, 3, 4};
  if (i == 4) return some[i];  // arrayIndexOutOfBoundsCond
  return some[3];
}
struct Member {
  Member() {}  // uninitMemberVar
  int value;
};
int value_of(const Member& m) { return m.value; }
"""
CORRECT = "int right(int n) { return n + 1; }\n"


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


@functools.lru_cache(maxsize=None)
def the_tool(name):
    """Its command; the program ends where it is not the version that .clang-tidy and the suppressions are made for."""
    version = VERSIONS[name]
    for command in (name + "-" + version, name):
        if shutil.which(command) is not None:
            output = subprocess.run([command, "--version"], text=True, capture_output=True).stdout
            if not re.search(rf"\b{re.escape(version)}(\.|\b)", output):
                skip(f"{command} is not {version} but: {' '.join(output.split()[:6])}")
            return command
    skip(f"{name} is not installed")


def run(command):
    """Exit status, output and seconds of processor time."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        output.seek(0)
        return process.returncode, output.read(), used.ru_utime + used.ru_stime


def expect(faulty, status, output):
    """Ends the program unless all faults that comments in `faulty` name were found."""
    wanted = {name for name in re.findall(r"// ([a-zA-Z0-9.-]+)$", faulty, re.M)}
    found = set(re.findall(r"\[([a-zA-Z0-9.-]+)(?:,[^\]]*)?\]$", output, re.M))
    if status == 0 or not wanted <= found:
        print(output)
        sys.exit(f"of faults made for it, it did not see {sorted(wanted - found)}; status {status}")


# ---- clang-tidy -----------------------------------------------------------------------------------------------------


def language_flags(command):
    """Those words of a compiler's command that tell what the source means, and that g++ and clang++ share."""
    words = shlex.split(command)
    flags = ["-std=gnu++17"]  # which CMake does not say to a g++ that takes it unasked
    for i, word in enumerate(words):
        if word == "-isystem":
            flags += words[i:i + 2]
        elif re.match(r"-([DIm]|std=|fno-exceptions|fno-rtti)", word):
            flags.append(word)
    return flags


def sources(build, folders, names):
    """The project's files with their flags; of several targets that compile a file the first."""
    path = build / "compile_commands.json"
    if not path.is_file():
        skip(f"the build has no {path.name} (-DCMAKE_EXPORT_COMPILE_COMMANDS=ON)")
    found = {}
    for entry in json.loads(path.read_text()):
        file = pathlib.Path(os.path.normpath(os.path.join(entry["directory"], entry["file"])))
        if file.suffix == ".cpp" and ROOT in file.parents:
            name = file.relative_to(ROOT).as_posix()
            if name.startswith(folders) and name.startswith(names):
                found.setdefault(name, language_flags(entry["command"]))
    # Built by a script for GPUs, and for the CPU as here (bench/gpu.sh --host).
    for file in ROOT.glob("bench/gpu/*.cpp"):
        name = file.relative_to(ROOT).as_posix()
        if name.startswith(folders) and name.startswith(names):
            found.setdefault(name, ["-std=c++17", "-DPN_HOST_CUDA", "-DPN_GPU_BENCH_BLAS",
                                    *(f"-I{ROOT / f}" for f in ("tests/host_cuda/include", "include", "cuda"))])
    return found


def tidy(file, flags, *options):
    return run([the_tool("clang-tidy"), "--quiet", "--use-color=0", *options, str(file), "--", *flags])


def tidy_would_complain(options):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        (folder / "include/pn").mkdir(parents=True)
        (folder / "include/pn/faulty.hpp").write_text(FAULTY_HEADER)
        (folder / "faulty.cpp").write_text(FAULTY)
        (folder / "correct.cpp").write_text(CORRECT)
        options = [f"--config-file={ROOT / '.clang-tidy'}", *options]
        status, output, _ = tidy(folder / "faulty.cpp", ["-std=c++17", f"-I{folder}"], *options)
        expect(FAULTY_HEADER + FAULTY, status, output.replace(",-warnings-as-errors", ""))
        status, output, _ = tidy(folder / "correct.cpp", ["-std=c++17"], *options)
        if status != 0:
            print(output)
            sys.exit("it complains of a correct file")


def checks_exist():
    """A misspelt check is no error to clang-tidy."""
    known = run([the_tool("clang-tidy"), "--list-checks", "--checks=*"])[1].split()
    for config in (".clang-tidy", "bench/.clang-tidy", "tests/.clang-tidy"):
        text = re.search(r"^Checks:(.*?)^(?=\w)|^Checks:(.*)", (ROOT / config).read_text() + "\n", re.M | re.S)[0]
        for name in re.findall(r"[a-z]+-[a-zA-Z0-9.*-]+", text):
            if not any(re.fullmatch(re.escape(name).replace(r"\*", ".*"), check) for check in known):
                sys.exit(f"{config}: clang-tidy knows no check {name}")


def clang_tidy(build, in_full, times, names):
    files = sources(build.resolve(), FOLDERS_IN_FULL if in_full else FOLDERS, tuple(names) or "")
    if not files:
        sys.exit("there are no such files")
    checks_exist()
    options = [] if in_full else SHORT
    tidy_would_complain(options)
    order = sorted(files)
    findings = set()  # those in headers are found once for each file
    failed = False
    seconds = 0.0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, (status, output, used) in zip(order, pool.map(lambda f: tidy(f, files[f], *options), order)):
            seconds += used
            if times:
                print(f"{used:6.1f} s  {name}", flush=True)
            if status == 0:
                continue
            failed = True
            for finding in re.split(r"\n(?=/[^\n]*: (?:warning|error): )", "\n" + output):
                if ": error: " in finding and finding not in findings:
                    findings.add(finding)
                    print(finding.strip(), flush=True)
            if not re.search(r": error: ", output):
                print(f"{name}: status {status}\n{output}")
    print(f"clang-tidy: {len(files)} files, {len(findings)} findings, {seconds:.0f} s of processor time")
    return failed


# ---- cppcheck -------------------------------------------------------------------------------------------------------


def cppcheck_run(files, *options):
    # The compiler's macros are given, so that one configuration is looked at instead of a dozen.
    macros = ["__cplusplus=201703L", "__GNUC__=12", "__SSE2__=1", "__linux__=1", "__x86_64__=1", "PN_CPU_X86=1",
              "PN_HOST_CUDA=1"]
    folders = ["include", "src", "cuda", "tests/host_cuda/include"]
    return run([the_tool("cppcheck"), "--quiet", "--enable=warning,performance,portability", "--inline-suppr",
                "--error-exitcode=1", "--std=c++17", "--language=c++", "--platform=unix64",
                "--template={file}:{line}: {severity}: {message} [{id}]", "--template-location=",
                *(f"-D{m}" for m in macros), *(f"-I{f}" for f in folders), *options, *files])


def cppcheck():
    suppressions = pathlib.Path(__file__).with_name("cppcheck_suppressions.txt")
    places = ("src/*/*.cpp", "examples/*.cpp", "bench/**/*.cpp", "cuda/*.cu")
    files = sorted(str(p.relative_to(ROOT)) for place in places for p in ROOT.glob(place))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        (folder / "faulty.cpp").write_text(FAULTY_TO_CPPCHECK)
        (folder / "headers.cpp").write_text("".join(
            f"#include <{p.relative_to(ROOT / 'include').as_posix()}>\n"
            for p in sorted((ROOT / "include").rglob("*.h*"))) + CORRECT)
        status, output, _ = cppcheck_run([str(folder / "faulty.cpp")], f"--suppressions-list={suppressions}")
        expect(FAULTY_TO_CPPCHECK, status, output)
        # `information`: of suppressions that nothing needs any more; it also tells of headers of third parties
        status, output, seconds = cppcheck_run([*files, str(folder / "headers.cpp")], "--enable=information",
                                               f"--suppressions-list={suppressions}")
    findings = [line for line in output.splitlines() if "[missingInclude" not in line]
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"cppcheck: {len(files)} files and the public headers, {seconds:.0f} s of processor time")
    return bool(findings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=("clang-tidy", "cppcheck"))
    parser.add_argument("build", type=pathlib.Path, nargs="?", default=".")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--in-full", action="store_true")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_intermixed_args()
    the_tool(arguments.tool)
    if arguments.tool == "cppcheck":
        sys.exit(cppcheck())
    sys.exit(clang_tidy(arguments.build, arguments.in_full, arguments.times, arguments.names))
