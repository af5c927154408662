"""Every command that a README shows is on one of the lists below, and works: it is run here, in a copy of the project,
or by another test; or the list says why not. Code in C++ and C compiles, code in CMake configures and builds.

In the READMEs `sh` stands above lines that are all commands, `console` above commands with `$ ` and their output.
PN_BUILD names the build folder, PNPACK the tool. `Long` builds and installs.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from test_structure import ROOT, tracked

VERBS = "inspect scan pack unpack quantize verify check diff".split()

# Command -> what is run, in this order; None: the same. Files have the names that stand in the READMEs.
SHORT = {
    "pnpack --man": None,
    "pnpack VERB --help": "for verb in %s; do pnpack $verb --help; done" % " ".join(VERBS),
    "pnpack VERB INPUT [OUTPUT]": "pnpack inspect INPUT && pnpack pack INPUT OUTPUT",
    "pnpack inspect MODEL": None,
    "pnpack scan MODEL": None,
    "pnpack scan --html": "pnpack scan --html OUT.html MODEL && grep '<html' OUT.html",
    "pnpack pack IN OUT": "pnpack pack IN OUT && cp OUT PACKED",
    "pnpack verify PACKED ORIGINAL": None,
    "pnpack check MODEL": "pnpack check PACKED",
    "pnpack unpack IN OUT": "pnpack unpack PACKED UNPACKED && cmp UNPACKED ORIGINAL",
    "pnpack diff A B": None,
    "pnpack quantize IN OUT": "pnpack quantize IN QUANTIZED --type pn4t",
    "pnpack pack --as bf16": "pnpack unpack QUANTIZED F32 --to f32 && pnpack pack --as bf16 F32 ROUNDED",
    "examples/conformance.py [FOLDER]": "examples/conformance.py && examples/conformance.py tests/golden",
    "tests/mutants/run.py --list": None,
    "tests/mutants/run.py --only gguf-overlap made-014671":
        "tests/mutants/run.py --list --only gguf-overlap made-014671 | grep '^2 faults'",
    "ctest --preset gcc -R 'quantize'": "ctest --test-dir \"$PN_BUILD\" -N -R 'quantize' | grep 'Total Tests: [1-9]'",
    "ctest -L long": "ctest --test-dir \"$PN_BUILD\" -N -L long | grep 'Total Tests: [1-9]'",
}
# A few of the benchmarks, in less time, by environment variables of Google Benchmark's.
FEW = "BENCHMARK_FILTER='^(read|p12_gemv)/' "
PART = ("build/bench/bench/pn_bench --benchmark_filter='^(read|p12_gemv)' --benchmark_enable_random_interleaving=true "
        "--benchmark_repetitions=9 --benchmark_out=part.json --benchmark_out_format=json")
LONG = {
    "examples/quickstart.sh": None,
    "examples/quickstart.sh model.gguf": None,
    "examples/quickstart.sh [FILE] [--out DIR]": "examples/quickstart.sh model.gguf --out out && ls out/model.*.gguf",
    "cmake -S . -B build && cmake --build build --target pnpack":
        "cmake -S . -B build && cmake --build build --target pnpack && cp build/src/pnpack/pnpack .",
    "cmake -LH -N build": "cmake -LH -N build | grep ^PN_CUDA_BLAS:",
    "cmake -S . -B build -DPN_TOOL=OFF -DPN_TESTS=OFF -DPN_BENCH=OFF -DPN_CUDA=OFF": None,
    "cmake --build build && cmake --install build --prefix DIR": None,
    "export PKG_CONFIG_PATH=DIR/lib/pkgconfig": None,
    "g++ -std=c++17 main.cpp $(pkg-config --cflags --libs pn-cpu)":
        "g++ -std=c++17 main.cpp $(pkg-config --cflags --libs pn-cpu) && ./a.out",
    "cmake -B build -DPN_CUDA=ON": "if command -v nvcc; then cmake -B build -DPN_CUDA=ON; fi",
    "doxygen cmake/Doxyfile": "doxygen cmake/Doxyfile && ls build/reference/html/index.html",
    "bench/run.sh": FEW + "bench/run.sh",
    "bench/run.sh --quick": FEW + "bench/run.sh --quick",
    "bench/run.sh --json FILE": FEW + "bench/run.sh --quick --json FILE && python3 -m json.tool FILE",
    "bench/run.sh --save bench/results": FEW + "bench/run.sh --quick --save bench/results",
    PART: "BENCHMARK_MIN_TIME=0.02 " + PART,
    "python3 bench/report.py part.json": "python3 bench/report.py part.json | grep p12_gemv",
}
# Command -> the test of ctest that runs it, and what its command line or script says.
ELSEWHERE = {
    "pnpack scan model --html scan.html": ("pnpack.readme", 'startswith("$ ")'),
    "pnpack pack model model-p12": ("pnpack.readme", 'startswith("$ ")'),
    "pnpack unpack model-p12 restored": ("pnpack.readme", 'startswith("$ ")'),
    "pnpack diff restored model": ("pnpack.readme", 'startswith("$ ")'),
    "pnpack quantize model-bf16.gguf --mix examples/mixes/p0k19.txt --promote promoted.txt --donor model-q3_k.gguf "
    "--dry-run": ("pnpack.readme", 'startswith("$ ")'),
    "pnpack quantize --mix": ("pnpack.mix", '"--mix"'),
    "PNPACK=build/gcc/src/pnpack/pnpack python3 tests/pnpack/test_shards.py":
        ("pnpack.shards", "tests/pnpack/test_shards.py"),
    "python3 tests/golden/generate.py --check":
        ("golden: generate.py writes the same files", "tests/golden/generate.py --check"),
    "tests/mutants/run.py --sample": ("mutants: a sample is caught", "tests/mutants/run.py --sample"),
    "cpack -G DEB": ("consumers.deb", "cpack -G DEB"),
    "conan create .": ("consumers.conan", "conan create"),
    "examples/llama.cpp/run.sh --small": ("engine.small", "examples/llama.cpp/run.sh --small"),
    "examples/llama.cpp/patch.py SOURCE": ("engine.small", "examples/llama.cpp/run.sh --small"),
    "bench/gpu.sh --host": ("host_cuda.gpu_script", "bench/gpu.sh --host"),
    "bench/sass.sh": ("cuda_build.sass_all", "bench/sass.sh"),
    "bench/sass.sh --check": ("cuda_build.sass_all", "bench/sass.sh --check"),
}
# Command -> why no test runs it.
NOT_RUN = {
    "tests/run.sh": "runs this",
    "tests/run.sh --all": "runs this",
    "cmake --preset gcc && cmake --build --preset gcc && ctest --preset gcc": "a third of tests/run.sh",
    "tests/mutants/run.py": "a quarter of an hour; its sample is a test",
    "bench/run.sh --peers": "downloads and builds what is not pn's",
    "bench/peers.sh": "downloads and builds what is not pn's",
    "bench/gpu.sh": "needs a GPU; --host is tested",
    "bench/sass.sh --save": "writes into the source; --check is tested",
    "examples/llama.cpp/run.sh": "an hour; with --small a test",
    "ctest -R '^engine'": "fetches and builds an engine; engine.small itself",
    "kill -9": "no command to try",
}

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
LANGUAGES = {"sh", "console", "text", "cpp", "c", "cmake", "hex", "values"}
PROGRAMS = set("apt apt-get bash cd clang++ cmake conan cpack ctest curl docker doxygen export g++ gcc git kill make ninja "
               "nvcc pip pip3 pkg-config pnpack python python3 sh source sudo wget".split())


def fences(text, *languages):
    """Their text, without the indentation that they have in lists."""
    for indentation, language, body in FENCE.findall(text):
        if language in languages:
            yield re.sub("^" + indentation, "", body, flags=re.M)


def is_command(words):
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words:
        return False
    script = words[0].endswith(".py") or re.match(r"\.?\.?/|build/", words[0])
    return words[0].endswith(".sh") or len(words) > 1 and bool(words[0] in PROGRAMS or words[0] in VERBS or script)


def commands(text, folder=pathlib.Path()):
    """The commands of a README in `folder`: on one line, scripts by their path, verbs with the tool's name."""
    found = []
    for body in fences(text, "sh"):
        lines = body.replace("\\\n", "").splitlines()
        found += [line for line in (re.sub(r"(^| +)#.*", "", line) for line in lines) if line]
    for body in fences(text, "console"):
        found += [line[2:] for line in body.replace("\\\n", "").splitlines() if line.startswith("$ ")]
    text = FENCE.sub("", text)
    found += [span for span in re.findall(r"`([^`]+)`", text) if is_command(span.split())]
    for block in re.findall(r"(?<=\n\n)(?: {4}.*\n)+", text):
        found += [line for line in block.splitlines() if line.split()[0] not in VERBS and is_command(line.split())]
    for command in found:
        words = [str(folder / w) if re.search(r"\.(sh|py)$", w) and (ROOT / folder / w).is_file() else w
                 for w in command.split()]
        if words[0] in VERBS:
            words = ["pnpack"] + words
        if not (len(words) == 2 and words[0] == "pnpack" and words[1] in VERBS):  # that is a name
            yield " ".join(words)


READMES = {name: (ROOT / name).read_text(encoding="utf-8") for name in tracked() if name.endswith(".md")}


class Lists(unittest.TestCase):
    def test_every_command_is_on_one(self):
        found = {command for name, text in READMES.items() for command in commands(text, pathlib.Path(name).parent)}
        listed = [*SHORT, *LONG, *ELSEWHERE, *NOT_RUN]
        self.assertEqual(found - set(listed), set(), "commands that no list has")
        self.assertEqual(set(listed) - found, set(), "commands that no README has")
        self.assertEqual(len(listed), len(set(listed)), "commands on two lists")

    def test_fences_say_what_they_hold(self):
        for name, text in READMES.items():
            self.assertEqual({language for _, language, _ in FENCE.findall(text)} - LANGUAGES, set(), name)

    def test_a_command_is_seen_wherever_it_stands(self):
        text = ("A `run.sh`, a `name.hpp`, `pack` and `pnpack pack`; `X=1 python3 generate.py\n--all`, `scan FILE`.\n\n"
                "    cmake nowhere\n\n```text\nmake it\n```\n- a list:\n\n"
                "  ```sh\n  # nothing\n  rm -r x \\\n    y  # all\n  ```\n\n```console\n$ true\nfalse\n```\n")
        self.assertEqual(list(commands(text, pathlib.Path("tests/golden"))),
                         ["rm -r x y", "true", "run.sh", "X=1 python3 tests/golden/generate.py --all",
                          "pnpack scan FILE", "cmake nowhere"])

    def test_those_of_other_tests(self):
        listing = subprocess.run(["ctest", "--test-dir", os.environ["PN_BUILD"], "--show-only=json-v1"], check=True,
                                 capture_output=True).stdout
        tests = {test["name"]: test.get("command", []) for test in json.loads(listing)["tests"]}
        for command, (test, words) in ELSEWHERE.items():
            self.assertIn(test, tests, command)
            scripts = [pathlib.Path(word).read_text() for word in tests[test]
                       if word.startswith(str(ROOT)) and os.path.isfile(word)]
            self.assertIn(words, " ".join(tests[test] + scripts), command)


class Copy(unittest.TestCase):
    """A copy of the project, with what the commands need."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "pn"
        for name in tracked("-c", "-o", "--exclude-standard"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)
        for name in ("model.gguf", "INPUT", "MODEL", "IN", "ORIGINAL", "A", "B"):
            (self.folder / name).symlink_to("examples/data/sample-bf16.gguf")
        (self.folder / "main.cpp").write_text(next(fences(READMES["README.md"], "cpp")))

    def run_all(self, table, more=""):
        """All in one shell; what each printed."""
        script = "set -eo pipefail\nexport PATH=$PWD:$PATH\n"
        script += "".join("echo; echo '=== %d'\n%s\n" % (i, table[c] or c) for i, c in enumerate(table))
        done = subprocess.run(["bash", "-c", script + more], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        outputs = re.split(r"^=== \d+\n", done.stdout, flags=re.M)[1:]
        self.assertEqual(done.returncode, 0, "%s:\n%s" % (list(table)[len(outputs) - 1], outputs[-1][-3000:]))
        return dict(zip(table, outputs))


class Short(Copy):
    def test_commands(self):
        (self.folder / "pnpack").symlink_to(os.environ["PNPACK"])
        self.run_all(SHORT)

    def test_a_wrong_command_is_noticed(self):
        with self.assertRaisesRegex(AssertionError, "examples/conformance.py nowhere"):
            self.run_all({"true": None, "examples/conformance.py nowhere": None, "echo": None})


class Long(Copy):
    def test_commands(self):
        # examples/README.md refers to their first comments. Those with nvcc need its library, too.
        examples = {}
        for name in (name for name in tracked() if re.fullmatch(r"examples/\w+\.cpp", name)):
            lines = re.findall(r"^//   (\S.*)", (ROOT / name).read_text(), re.M)
            if lines and not lines[0].startswith("nvcc"):
                examples[name] = "\n".join(lines)
        self.assertGreater(len(examples), 3)
        outputs = self.run_all({**LONG, **examples})
        (shown,) = [body for body in fences(READMES["README.md"], "text") if body.startswith("[3]")]
        lines = iter(outputs["examples/quickstart.sh"].splitlines())
        for line in shown.splitlines():
            self.assertTrue(line in ("", " ...") or any(line == other.rstrip() for other in lines), line)
        self.projects()

    def projects(self):
        """What README.md says for a CMakeLists.txt, in one."""
        bodies = list(fences(READMES["README.md"], "cmake"))
        self.assertGreater(len(bodies), 1)
        for i, body in enumerate(bodies):
            project = self.folder / ("project-%d" % i)
            (project / "third_party").mkdir(parents=True)
            (project / "third_party/pn").symlink_to(self.folder)
            (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.21)\nproject(engine CXX)\n"
                                                    "add_executable(engine ../main.cpp)\n" + body)
            self.run_all({"cmake -S {0} -B {0}/build -DCMAKE_PREFIX_PATH=$PWD/DIR && "
                          "cmake --build {0}/build --target engine && {0}/build/engine".format(project.name): None})


# What stands around code that is no program: by a word of its own.
AROUND = {
    "p12::cpu::multiply(": """
#include <cstdio>
#include <cstdlib>
#include <p12/cpu.hpp>
void f(const float* activations, std::size_t tokens, std::size_t k, const unsigned char* blocks, std::size_t stride,
       std::size_t first, std::size_t last, std::size_t rows, float* y) {
%s}
""",
    "pncuda_gemv(": """
#include <pncuda/pncuda.h>
pncuda_status f(const void* blocks, int64_t rows, int64_t k, const void* x, void* y, int32_t tokens, void* stream);
pncuda_status f(const void* blocks, int64_t rows, int64_t k, const void* x, void* y, int32_t tokens, void* stream) {
%sreturn status;
}
""",
}


class Code(unittest.TestCase):
    def test_it_compiles(self):
        count = 0
        for name, text in READMES.items():
            for language, standard in (("cpp", "-xc++ -std=c++17"), ("c", "-xc -std=c99")):
                for body in fences(text, language):
                    around = next((a for word, a in AROUND.items() if word in body), "%s")
                    command = ["g++", *standard.split(), "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I",
                               str(ROOT / "include"), "-"]
                    done = subprocess.run(command, input=around % body, text=True, capture_output=True)
                    self.assertEqual(done.returncode, 0, name + "\n" + body + done.stderr)
                    count += 1
        self.assertGreaterEqual(count, len(AROUND) + 1)


if __name__ == "__main__":
    unittest.main()
