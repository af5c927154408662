#!/usr/bin/env python3
"""Applies deliberate one-line faults to a copy of the sources and reports which test catches each.

The faults are those of mutants.txt and MADE_COUNT more, made by OPERATORS on lines that SEED chooses. README.md tells how
to read the table and what to do about a survivor. Exit status: 0 when every fault is caught or argued to be equivalent
(and none of those is caught), 1 otherwise, 2 when the list or the build is broken.
"""

import argparse
import collections
import hashlib
import html
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIST = HERE / "mutants.txt"

SEED = 1
MADE_COUNT = 30
MADE_IN = [
    "include/pn/block34.hpp", "include/pn/config.hpp", "include/pn/decode.hpp", "include/pn/dot.hpp",
    "include/pn/float_env.hpp", "include/pn/hadamard.hpp", "include/pn/half.hpp", "include/pn/quantize.hpp",
    "include/pn/validate.hpp",
    "include/p12/block392.hpp", "include/p12/codec.hpp", "include/p12/scan.hpp", "include/p12/validate.hpp",
    "src/cpu/arguments.hpp", "src/cpu/baseline.cpp", "src/cpu/exact.cpp", "src/cpu/exact_p12.cpp", "src/cpu/low_rank.cpp",
    "src/cpu/p12.cpp", "src/cpu/p12_codec.hpp", "src/cpu/p12_multiply.hpp", "src/cpu/pn.cpp", "src/cpu/pn_batch.hpp",
    "src/cpu/pn_codec.hpp", "src/cpu/pn_multiply.hpp", "src/cpu/pn_quantize.hpp", "src/cpu/pn_rotate.hpp",
    "src/cpu/pn_round.hpp", "src/cpu/prepare.cpp", "src/cpu/table.hpp",
    "src/io/gguf.cpp", "src/io/header_writer.cpp", "src/io/imatrix.cpp", "src/io/input_file.cpp", "src/io/layout.cpp",
    "src/io/model.cpp", "src/io/output_file.cpp", "src/io/safetensors.cpp", "src/io/signals.cpp", "src/io/tensor.cpp",
    "src/pnpack/check.cpp", "src/pnpack/comparison.cpp", "src/pnpack/conversion.cpp", "src/pnpack/diff.cpp",
    "src/pnpack/mix.cpp", "src/pnpack/pack.cpp", "src/pnpack/quantize.cpp", "src/pnpack/recipe.cpp",
    "src/pnpack/rewrite.cpp", "src/pnpack/scan_statistics.cpp", "src/pnpack/stream.cpp", "src/pnpack/unpack.cpp",
    "src/pnpack/verify.cpp"]

# Which test programs judge a file, the most likely one to notice a fault first. The headers have to be held by the tests
# of the cores alone.
CORES = "pn_quantize pn_decode pn_half pn_dot pn_validate pn_golden pn_format_md pn_headers p12_* pn_digest pn_contraction"
PN = "pn_golden pn_contraction pn_digest pn_format_md pn_headers"
P12 = "p12_codec p12_scan p12_validate p12_golden p12_format_md pn_headers pn_digest"
CPU = "cpu_isa cpu_convert cpu_error cpu_low_rank cpu_rotate cpu_invariance cpu_multiply_pn cpu_batch cpu_multiply_p12 " \
      "cpu_pn_codec cpu_p12_codec cpu_quantize cpu_memory"
TOOL = "test_roundtrip.py test_check_verify.py test_command_line.py test_quantize.py test_hostile.py test_large_tensors.py *.py"
P12_CUDA = "pncuda_p12_gemv pncuda_p12_fused pncuda_p12_pack pncuda_decode_p12 pncuda_p12_api pncuda_low_rank"
CUDA = "pncuda_gemv pncuda_decode pncuda_repack pncuda_hadamard pncuda_api pncuda_blas pncuda_decode_pn"
ORDER = {
    "cuda/api.cu": "pncuda_api " + CUDA,
    "cuda/api.hpp": "pncuda_api " + CUDA,
    "cuda/blas.cu": "pncuda_blas",
    "cuda/blas.hpp": "pncuda_blas",
    "cuda/tuning.cu": "pncuda_blas",
    "cuda/decode.cu": "pncuda_decode pncuda_api",
    "cuda/elements.cuh": "pncuda_decode pncuda_hadamard pncuda_gemv",
    "cuda/hadamard.cu": "pncuda_hadamard pncuda_api",
    "cuda/hadamard.cuh": "pncuda_hadamard pncuda_gemv",
    "cuda/api_p12.cu": "pncuda_p12_api " + P12_CUDA,
    "cuda/low_rank.cu": "pncuda_low_rank",
    "cuda/p12.cuh": P12_CUDA,
    "cuda/p12_decode.cu": "pncuda_p12_pack",
    "cuda/p12_ffma.cu": P12_CUDA,
    "cuda/p12_pack.cu": "pncuda_p12_pack",
    "cuda/p12_tensor.cu": P12_CUDA,
    "cuda/repack.cu": "pncuda_repack pncuda_api",
    "cuda/": CUDA,
    "include/pncuda/decode_p12.cuh": "pncuda_decode_p12 " + P12_CUDA,
    "include/pncuda/": "pncuda_decode_pn " + CUDA,
    "include/pn/block34.hpp": "pn_decode pn_validate " + CORES,
    "include/pn/config.hpp": "pn_decode p12_codec " + CORES,
    "include/pn/decode.hpp": "pn_decode pn_dot " + PN,
    "include/pn/dot.hpp": "pn_dot " + PN,
    "include/pn/float_env.hpp": "pn_quantize pn_dot pn_decode " + PN,
    "include/pn/hadamard.hpp": "pn_hadamard " + PN,
    "include/pn/half.hpp": "pn_half pn_quantize pn_decode pn_dot " + PN,
    "include/pn/quantize.hpp": "pn_quantize " + PN,
    "include/pn/validate.hpp": "pn_validate pn_headers pn_digest",
    "include/p12/block392.hpp": P12,
    "include/p12/codec.hpp": P12,
    "include/p12/scan.hpp": "p12_scan " + P12,
    "include/p12/validate.hpp": "p12_validate " + P12,
    "src/cpu/baseline.cpp": "cpu_pn_codec cpu_p12_codec cpu_multiply_p12 cpu_multiply_pn " + CPU,
    "src/cpu/exact.cpp": "cpu_quantize " + CPU,
    "src/cpu/exact_p12.cpp": "cpu_p12_codec " + CPU,
    "src/cpu/low_rank.cpp": "cpu_low_rank " + CPU,
    "src/cpu/p12.cpp": "cpu_p12_codec cpu_multiply_p12 " + CPU,
    "src/cpu/p12_codec.hpp": "cpu_p12_codec " + CPU,
    "src/cpu/p12_multiply.hpp": "cpu_multiply_p12 " + CPU,
    "src/cpu/pn.cpp": "cpu_pn_codec cpu_multiply_pn cpu_quantize " + CPU,
    "src/cpu/pn_codec.hpp": "cpu_pn_codec cpu_error " + CPU,
    "src/cpu/pn_batch.hpp": "cpu_batch " + CPU,
    "src/cpu/pn_multiply.hpp": "cpu_multiply_pn " + CPU,
    "src/cpu/pn_rotate.hpp": "cpu_rotate " + CPU,
    "src/cpu/pn_round.hpp": "cpu_multiply_pn cpu_batch " + CPU,
    "src/cpu/pn_quantize.hpp": "cpu_quantize " + CPU,
    "src/cpu/prepare.cpp": "cpu_multiply_pn " + CPU,
    "src/cpu/": CPU,
    "src/io/gguf.cpp": "io_gguf test_roundtrip.py test_hostile.py " + TOOL,
    "src/io/header_writer.cpp": "test_safetensors.py test_convert.py test_safety.py test_roundtrip.py test_shards.py " + TOOL,
    "src/io/imatrix.cpp": "io_imatrix test_importance.py " + TOOL,
    "src/io/input_file.cpp": "io_files io_gguf " + TOOL,
    "src/io/input_file.hpp": "io_files io_gguf test_command_line.py " + TOOL,
    "src/io/layout.cpp": "io_gguf test_roundtrip.py test_quantize.py test_safetensors.py " + TOOL,
    "src/io/model.cpp": "test_shards.py test_safety.py test_model_files.py " + TOOL,
    "src/io/output_file.cpp": "io_files test_command_line.py test_shards.py test_safety.py " + TOOL,
    "src/io/safetensors.cpp": "test_safetensors.py test_safetensors_hostile.py test_safetensors_pn.py test_shards.py " + TOOL,
    "src/io/signals.cpp": "io_files test_command_line.py test_shards.py " + TOOL,
    "src/io/tensor.cpp": "io_gguf " + TOOL,
    "src/io/": "io_gguf io_files io_imatrix test_safetensors.py " + TOOL,
    "src/pnpack/check.cpp": "test_check_verify.py test_large_tensors.py " + TOOL,
    "src/pnpack/command_line.cpp": "test_command_line.py " + TOOL,
    "src/pnpack/comparison.cpp": "test_check_verify.py test_diff.py test_large_tensors.py " + TOOL,
    "src/pnpack/conversion.cpp": "test_check_verify.py test_large_tensors.py test_quantize.py " + TOOL,
    "src/pnpack/diff.cpp": "test_diff.py " + TOOL,
    "src/pnpack/main.cpp": "test_command_line.py " + TOOL,
    "src/pnpack/mix.cpp": "units_mix test_mix.py " + TOOL,
    "src/pnpack/quantize.cpp": "test_quantize.py test_mix.py test_importance.py " + TOOL,
    "src/pnpack/recipe.cpp": "test_quantize.py test_mix.py test_importance.py " + TOOL,
    "src/pnpack/scan.cpp": "test_scan.py " + TOOL,
    "src/pnpack/scan_page.cpp": "units_scan_page test_scan.py " + TOOL,
    "src/pnpack/scan_statistics.cpp": "units_scan_statistics test_scan.py " + TOOL,
    "src/pnpack/stream.cpp": "test_large_tensors.py " + TOOL,
    "src/pnpack/verify.cpp": "test_check_verify.py test_large_tensors.py test_quantize.py " + TOOL,
    "src/pnpack/": TOOL,
}
ONLY_WITH_FMA = "pn_contraction"  # does not exist where it could not run

# Operators: what is done to one place of a line of code; strings and comments are no places.
OPERATORS = [(name, re.compile(pattern), replacement) for name, pattern, replacement in (
    ("< to <=", r" < ", " <= "), ("<= to <", r" <= ", " < "), ("> to >=", r" > ", " >= "), (">= to >", r" >= ", " > "),
    ("== to !=", r" == ", " != "), ("!= to ==", r" != ", " == "),
    ("+ to -", r" \+ ", " - "), ("- to +", r" - ", " + "), ("* to +", r"(?<=[\w\])]) \* ", " + "), ("/ to *", r" / ", " * "),
    ("% to /", r" % ", " / "), ("+= to -=", r" \+= ", " -= "), ("++ to --", r"\+\+", "--"),
    ("&& to ||", r" && ", " || "), ("|| to &&", r" \|\| ", " && "), ("drop a negation", r"!(?=[\w(*])", ""),
    ("<< to >>", r" << ", " >> "), (">> to <<", r" >> ", " << "), ("& to |", r" & ", " | "), ("| to &", r" \| ", " & "),
    ("true to false", r"\btrue\b", "false"), ("false to true", r"\bfalse\b", "true"),
    ("constant + 1", r"(?<![\w.])(?:0x[0-9A-F]+|\d+)(?=u?\b)(?![.xp])", None))]
STATEMENT = re.compile(r"\s*(?!(?:return|throw|using|else|case|break|delete)\b)[\w.\[\]>*:-]+(?: [+|-]?= |\().*;$")
DROP = "drop a statement"

Mutant = collections.namedtuple("Mutant", "id kind file old new fault first sample needs equivalent")


class Broken(Exception):
    """The list or the build is: no fault can be judged."""


def stop(message):
    raise Broken("tests/mutants/run.py: " + message)


# ---- the faults ------------------------------------------------------------------------------------------------------

def read_list(path):
    """[id] sections of `name: value` lines, with `- ` before the old text and `+ ` before the new; # starts a comment."""
    sections, current = [], None
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("[") and line.endswith("]"):
            current = {"id": line[1:-1], "at": "%s:%d" % (path.name, number)}
            sections.append(current)
        elif line[:2] in ("- ", "+ ") or line in ("-", "+"):
            current["old" if line[0] == "-" else "new"] = line[2:]
        elif line.strip() and not line.startswith("#"):
            name, colon, value = line.partition(":")
            if current is None or not colon or name not in ("fault", "in", "first", "sample", "needs", "nth", "equivalent"):
                stop("%s:%d: %r is not understood" % (path.name, number, line))
            current[name] = (current[name] + " " if name in current else "") + value.strip()
    return sections


def once(text, old, nth, where, problems):
    """The place of `old` in `text`, where it must occur exactly once: as a part of a line, or else as a whole line; or
    the whole line that `nth` says."""
    places = [match.start() for match in re.finditer(re.escape(old), text)]
    if len(places) > 1:
        whole = [match.start(1) for match in re.finditer("^[ ]*(%s)$" % re.escape(old), text, re.MULTILINE)]
        places = whole if len(whole) == 1 else whole[nth - 1:nth] if nth else places
    if not old or len(places) != 1:
        problems.append("%s: the old text occurs %d times, not once: %s" % (where, len(places), old))
        return 0
    return places[0]


def written(sections, sources):
    mutants, problems = [], []
    for section in sections:
        if section["id"] == "argument":
            continue
        for name in ("fault", "in", "old", "new"):
            if name not in section:
                stop("%s: no %r" % (section["at"], name))
        at = once(sources(section["in"]), section["old"], int(section.get("nth", 0)), section["at"], problems)
        line = sources(section["in"]).count("\n", 0, at) + 1
        mutants.append(Mutant(section["id"], "written", section["in"], (at, section["old"]), section["new"],
                              "%s:%d: %s" % (section["in"], line, section["fault"]), section.get("first"),
                              section.get("sample") == "yes", section.get("needs"), section.get("equivalent")))
    if problems:
        stop("the list does not fit the sources:\n" + "\n".join(problems))
    return mutants


def code_of(line):
    """The line with strings, characters and comments blanked, so that places keep their columns."""
    line = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'', lambda match: '"' * len(match.group()), line)
    return re.sub(r"//.*", lambda match: " " * len(match.group()), line)


def places(line, before):
    """(operator, column, length, replacement) for all that the operators can do to a line."""
    code = code_of(line)
    out = []
    for name, pattern, replacement in OPERATORS:
        for match in pattern.finditer(code):
            new = replacement
            if new is None:
                digits = match.group()
                new = "0x%X" % (int(digits, 16) + 1) if digits.startswith("0x") else str(int(digits) + 1)
            out.append((name, match.start(), len(match.group()), new))
    if STATEMENT.match(code.rstrip()) and before.endswith((";", "{", "}")):
        start = len(line) - len(line.lstrip())
        out.append((DROP, start, len(code.rstrip()) - start, ";  // " + line[start:len(code.rstrip())]))
    return out


def digest(*parts):
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def made(sources):
    """MADE_COUNT faults: the lines that come first when all are sorted by a hash of the seed and the line, and of each
    the place that comes first. A line that changes changes its own fault only. Lines inside #if are left out: which
    of them are compiled depends on the machine."""
    ranked = []
    for file in MADE_IN:
        depth, before, seen, offset = (0, "", collections.Counter(), 0)
        guarded = file.endswith(".hpp") and "#pragma once" not in sources(file)  # all of it lies inside an #if
        for number, line in enumerate(sources(file).splitlines(), 1):
            code = code_of(line).strip()
            if code.startswith("#"):
                depth += bool(re.match(r"#\s*if", code)) - bool(re.match(r"#\s*endif", code))
            elif depth <= guarded and not re.match(r"(using|namespace|static_assert|template|struct)\b", code):
                found = places(line, before)
                if found:
                    seen[line] += 1
                    key = digest(SEED, file, line, seen[line])
                    ranked.append((key, file, number, offset, line, found))
            if code:
                before = code
            offset += len(line) + 1
    mutants = []
    for key, file, number, offset, line, found in sorted(ranked)[:MADE_COUNT]:
        operator, column, length, new = min(found, key=lambda place: digest(key, *place))
        after = line[:column] + new + line[column + length:]
        mutants.append(Mutant("made-" + key[:6], "made", file, (offset + column, line[column:column + length]), new,
                              "%s:%d: %s: %s" % (file, number, operator, after.strip()), None, False, None, None))
    return mutants


def with_arguments(mutants, sections):
    """Arguments of made faults are found by the file and the line as the fault leaves it."""
    arguments = {(s["in"], s["new"].strip()): s["equivalent"] for s in sections if s["id"] == "argument"}
    return [m._replace(equivalent=arguments[m.file, m.fault.split(": ", 2)[2]])
            if m.kind == "made" and (m.file, m.fault.split(": ", 2)[2]) in arguments else m for m in mutants]


# ---- building and testing --------------------------------------------------------------------------------------------

Result = collections.namedtuple("Result", "caught by")


def copy_tree(target):
    """What the build and the tests need, into `target`; files that are the same stay untouched, so that what was built
    before stays valid."""
    wanted = set()
    for part in ("CMakeLists.txt", "LICENSE", "cmake", "include", "src", "cuda", "tests", "examples", "README.md"):
        top = ROOT / part
        for source in [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file()):
            if "__pycache__" in source.parts:
                continue
            path = target / source.relative_to(ROOT)
            wanted.add(path)
            data = source.read_bytes()
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod(source.stat().st_mode)
    for path in [p for p in target.rglob("*") if p.is_file() and p not in wanted]:
        path.unlink()


running = set()  # process groups


def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def execute(command, cwd, limit, environment=None):
    """(status, stdout and stderr); status None when the time or the disk ran out. Memory and processor time are limited
    too, so that nothing goes on for ever if the runner itself is killed."""
    limits = "ulimit -d 6000000; ulimit -t %d; exec \"$@\"" % (4 * limit)
    command = ["sh", "-c", limits, "sh"] + [str(word) for word in command]
    with subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as process:
        running.add(process.pid)
        chunks = []
        reader = threading.Thread(target=lambda: chunks.append(process.stdout.read()), daemon=True)
        reader.start()
        deadline, status = time.monotonic() + limit, None
        while time.monotonic() < deadline and shutil.disk_usage(cwd).free > 1 << 30:
            try:
                status = process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                pass
        kill(process.pid)  # and whatever it left running
        process.wait()
        reader.join()
        running.discard(process.pid)
    return status, b"".join(chunks).decode("utf-8", "replace")


class Baseline:
    """How long each test program takes on the unchanged sources, where it must pass. Shared by all jobs."""

    def __init__(self):
        self.lock = threading.Lock()
        self.seconds = {}

    def limit(self, name):
        return max(20.0, 8 * self.seconds[name])


class Job:
    """A copy of the tree with a build folder: one fault at a time."""

    def __init__(self, work, options, baseline):
        self.tree, self.build, self.tmp = work / "tree", work / "build", work / "tmp"
        self.options, self.baseline = options, baseline
        self.built = set()  # programs that were built from the unchanged sources

    def prepare(self):
        for folder in (self.tree, self.build, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        copy_tree(self.tree)
        command = ["cmake", "-S", self.tree / "tests/mutants", "-B", self.build]
        if not (self.build / "CMakeCache.txt").exists():
            if shutil.which("ninja"):
                command += ["-G", "Ninja"]
            if self.options.compiler:
                command += ["-DCMAKE_CXX_COMPILER=" + self.options.compiler]
        status, out = execute(command, self.tmp, 300)
        if status != 0:
            stop("cannot configure:\n" + out)
        self.programs = (self.build / "programs.txt").read_text().split()
        self.scripts = sorted(path.name for path in (self.tree / "tests/pnpack").glob("test_*.py")
                              if path.name != "test_oracle.py")  # which does not run the tool

    def order(self, mutant):
        """The test programs for a fault."""
        key = next((k for k in ORDER if mutant.file == k or k.endswith("/") and mutant.file.startswith(k)), None)
        if key is None:
            stop("run.py: ORDER says nothing about " + mutant.file)
        names = []
        for word in ([mutant.first] if mutant.first else []) + ORDER[key].split():
            if word == "*.py":
                found = self.scripts
            elif word.endswith("_*"):
                found = [name for name in self.programs if name.startswith(word[:-1])]
            elif word in self.programs or word in self.scripts:
                found = [word]
            elif word == ONLY_WITH_FMA:
                found = []
            else:
                stop("run.py: there is no test program " + word)
            names += [name for name in found if name not in names]
        return names

    def make(self, name):
        """(built, output) of the program that the test needs."""
        target = "pnpack" if name.endswith(".py") else name
        status, out = execute(["cmake", "--build", self.build, "--target", target, "--", "-j", self.options.build_jobs],
                              self.tmp, 900)
        return status == 0, out

    def test(self, name, limit):
        """(passed, what noticed, output)"""
        environment = dict(os.environ, TMPDIR=str(self.tmp), PN_SOURCE_DIR=str(self.tree),
                           PNPACK=str(self.build / "pn/src/pnpack/pnpack"))
        if name.endswith(".py"):
            command = [sys.executable, "-B", self.tree / "tests/pnpack" / name, "-f"]
        elif name == "pn_digest":
            command = [self.build / name, (self.tree / "tests/portability/digest.txt").read_text().strip()]
        else:
            command = [self.build / name, "--abort", "-r", "xml"]
        status, out = execute(command, self.tmp, limit, environment)
        if status == 0:
            return True, None, out
        if name.endswith(".py"):
            found = re.search(r"^(?:FAIL|ERROR): (\S+)", out, re.MULTILINE)
            case = found.group(1) if found else ""
        else:
            found = re.findall(r"<TestCase name=\"([^\"]*)\"", out)
            case = html.unescape(found[-1]) if found else ""
        case = name + (": " + case if case else "")
        return False, ("time limit: " if status is None else "") + case, out

    def baseline_passes(self, name):
        """Builds and runs a program on the unchanged sources, once."""
        if name not in self.built:
            built, out = self.make(name)
            if not built:
                stop("%s does not build on the unchanged sources:\n%s" % (name, out[-4000:]))
            self.built.add(name)
        with self.baseline.lock:
            if name not in self.baseline.seconds:
                begin = time.monotonic()
                passed, by, out = self.test(name, 900)
                if not passed:
                    passed, by, out = self.test(name, 900)
                if not passed:
                    stop("fails on the unchanged sources: %s\n%s" % (by, out[-4000:]))
                self.baseline.seconds[name] = time.monotonic() - begin

    def clean(self):
        for path in self.tmp.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()

    def run(self, mutant):
        path = self.tree / mutant.file
        original = path.read_text("utf-8")
        at, old = mutant.old
        if original[at:at + len(old)] != old:
            stop("%s changed while the run began: start it again" % mutant.file)
        changed = original[:at] + mutant.new + original[at + len(old):]
        data = {p: p.read_bytes() for p in (self.tree / "examples/data").iterdir()}
        try:
            for name in self.order(mutant):
                if name not in self.baseline.seconds or name not in self.built:
                    path.write_text(original, "utf-8")
                    self.baseline_passes(name)
                if path.read_text("utf-8") != changed:
                    path.write_text(changed, "utf-8")
                built, out = self.make(name)
                if not built:
                    error = re.search(r"error: (.*)", out)
                    return Result(True, "the compiler, in %s: %s" % (name, error.group(1)[:90] if error else "?"))
                passed, by, _ = self.test(name, self.baseline.limit(name))
                if not passed and mutant.equivalent:  # some tests depend on timing: an argument falls by two failures
                    passed, by, _ = self.test(name, self.baseline.limit(name))
                self.clean()
                if not passed:
                    return Result(True, by)
            return Result(False, "nothing")
        finally:
            path.write_text(original, "utf-8")
            for p, bytes_before in data.items():  # a fault may write where it should not
                if not p.is_file() or p.read_bytes() != bytes_before:
                    p.write_bytes(bytes_before)


class Queue:
    """Faults by file: a job stays with a file as long as it can, since changing files costs a build."""

    def __init__(self, mutants):
        self.lock = threading.Lock()
        self.files = collections.defaultdict(collections.deque)
        for mutant in mutants:
            self.files[mutant.file].append(mutant)
        self.busy = collections.Counter()

    def next(self, last):
        with self.lock:
            left = [file for file, waiting in self.files.items() if waiting]
            if not left:
                return None
            if last not in left:
                self.busy[last] -= 1
                last = max(left, key=lambda file: (-self.busy[file], len(self.files[file])))
                self.busy[last] += 1
            return self.files[last].popleft()


def supported(mutant):
    if mutant.needs == "x86":
        return platform.machine().lower() in ("x86_64", "amd64", "i686")
    return True


def main():
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description="Applies deliberate faults and reports which test catches each.")
    parser.add_argument("--sample", type=int, nargs="?", const=10, metavar="N",
                        help="only the ten that are marked `sample: yes`, or N of them from the first to the last")
    parser.add_argument("--only", nargs="+", metavar="ID", help="only these")
    parser.add_argument("--list", action="store_true", help="print the faults and do nothing")
    parser.add_argument("--jobs", type=int, metavar="N", help="copies of the tree to work in (default: one per processor; "
                        "1 with --sample)")
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants", metavar="FOLDER",
                        help="where the copies and builds go; kept, so that the next run is faster (default: build/mutants)")
    parser.add_argument("--compiler", metavar="CXX", help="C++ compiler (default: CMake's choice)")
    options = parser.parse_args()

    def end(number, _):
        for group in list(running):
            kill(group)
        os._exit(128 + number)

    # Also where they were ignored (nohup, background), which the tests would inherit: they send these signals.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)

    texts = {}

    def sources(file):
        if file not in texts:
            texts[file] = (ROOT / file).read_text("utf-8")
        return texts[file]

    sections = read_list(LIST)
    mutants = with_arguments(written(sections, sources) + made(sources), sections)
    doubled = [name for name, count in collections.Counter(m.id for m in mutants).items() if count > 1]
    if doubled:
        stop("an id twice: " + " ".join(doubled))
    if options.only:
        unknown = set(options.only) - {m.id for m in mutants}
        if unknown:
            stop("no such fault: " + " ".join(sorted(unknown)))
        mutants = [m for m in mutants if m.id in options.only]
    if options.sample:
        mutants = [m for m in mutants if m.sample]
        if not 1 <= options.sample <= len(mutants):
            stop("--sample takes 1 to %d" % len(mutants))
        mutants = [mutants[i * len(mutants) // options.sample] for i in range(options.sample)]
    if options.list:
        for mutant in mutants:
            print("%-30s %s%s" % (mutant.id, mutant.fault, "  [argued equivalent]" if mutant.equivalent else ""))
        print("%d faults (%d written, %d made with seed %d)" % (
            len(mutants), sum(m.kind == "written" for m in mutants), sum(m.kind == "made" for m in mutants), SEED))
        return 0

    left_out = [m for m in mutants if not supported(m)]
    mutants = [m for m in mutants if supported(m)]
    jobs = max(1, min(options.jobs or (1 if options.sample else cpus), len(mutants)))
    options.build_jobs = max(1, cpus // jobs)
    options.work.mkdir(parents=True, exist_ok=True)
    work = options.work.resolve()
    queue, baseline, results, printing, failures = Queue(mutants), Baseline(), {}, threading.Lock(), []
    begin = time.monotonic()

    def work_through(number):
        try:
            job = Job(work / ("job-%d" % number), options, baseline)
            job.prepare()
            fma = ONLY_WITH_FMA in job.programs
            mutant = None
            while not failures:
                mutant = queue.next(mutant.file if mutant else None)
                if mutant is None:
                    return
                start = time.monotonic()
                if mutant.needs == "fma" and not fma:
                    result = Result(None, "left out: it takes a machine with fused multiply-add")
                else:
                    result = job.run(mutant)
                seconds = time.monotonic() - start
                with printing:
                    results[mutant.id] = result
                    verdict = result.by if result.caught is not False else (
                        "argued equivalent" if mutant.equivalent else "SURVIVES")
                    if result.caught and mutant.equivalent:
                        verdict = "WAS ARGUED EQUIVALENT, but: " + verdict
                    print("%-30s | %s | %.1f | %s" % (mutant.id, verdict, seconds, mutant.fault), flush=True)
        except Exception as error:
            failures.append(error)

    print("%-30s | %s | %s | %s" % ("id", "caught by", "seconds", "fault"))
    threads = [threading.Thread(target=work_through, args=(n,)) for n in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

    survivors = [m.id for m in mutants if results[m.id].caught is False and not m.equivalent]
    refuted = [m.id for m in mutants if results[m.id].caught and m.equivalent]
    argued = [m.id for m in mutants if results[m.id].caught is False and m.equivalent]
    caught = sum(bool(results[m.id].caught) for m in mutants)
    print("\n%d faults: %d caught, %d argued equivalent, %d left out here, %d survive; %.0f s" % (
        len(mutants) + len(left_out), caught - len(refuted), len(argued),
        len(left_out) + sum(results[m.id].caught is None for m in mutants), len(survivors), time.monotonic() - begin))
    if survivors:
        print("Not caught, and no argument why not: " + " ".join(survivors))
    if refuted:
        print("Argued to be equivalent, but caught: " + " ".join(refuted))
    return 1 if survivors or refuted else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Broken as broken:
        print(broken, file=sys.stderr)
        sys.exit(2)
