"""Runs the pnpack binary named by the environment variable PNPACK and judges what every run must keep.

Whatever a test asks, a run fails it when the tool dies of a signal, hangs, exits with a status outside 0..4, or a
sanitizer speaks. A status other than 0 and 1 must come with words on stderr. With --json, stdout must be exactly one
JSON document, in UTF-8, without NaN and without a key twice.
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE_DIR = Path(os.environ.get("PN_SOURCE_DIR") or Path(__file__).resolve().parents[2])
SAMPLE = SOURCE_DIR / "examples" / "data" / "sample-bf16.gguf"

DONE, NO, USAGE, BAD_INPUT, OUTPUT = range(5)

if not os.environ.get("PNPACK"):
    sys.exit("error: set PNPACK to the pnpack binary")
PNPACK = os.path.abspath(os.environ["PNPACK"])
if not os.access(PNPACK, os.X_OK):
    sys.exit("error: PNPACK is not a program: " + PNPACK)

ENVIRONMENT = dict(os.environ)
ENVIRONMENT.setdefault("ASAN_OPTIONS", "exitcode=99")
ENVIRONMENT.setdefault("UBSAN_OPTIONS", "halt_on_error=1:exitcode=99:print_stacktrace=1")
# Cases that are one of thousands of a kind: every EVERY-th of them runs. More than 1 for a slow build of the program
# (sanitizers), where a faster one runs them all.
EVERY = int(os.environ.get("PN_TEST_EVERY", "1"))


def some(cases):
    """Of cases of one kind those that run: every EVERY-th of a list, or of the items of a dictionary."""
    return list(cases.items() if isinstance(cases, dict) else cases)[::EVERY]


def part_of(verbs, i):
    """Of the verbs that case i is for: all, or with EVERY > 1 two, others from case to case."""
    return verbs if EVERY == 1 else [verb for j, verb in enumerate(verbs) if (i + j) % len(verbs) < 2]


SANITIZER = re.compile(rb"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|runtime error:")


def unique_keys(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise AssertionError("a JSON key twice: %s" % names)
    return dict(pairs)


def not_json(text):
    raise AssertionError("not JSON: " + text)


class Result:
    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __str__(self):
        words = " ".join(str(word)[:200] for word in self.command[1:])
        return "pnpack %s\nexit %s\nstdout: %r\nstderr: %r" % (words, self.code, self.out[:2000], self.err[:2000])

    @property
    def json(self):
        try:
            return json.loads(self.out.decode("utf-8"), parse_constant=not_json, object_pairs_hook=unique_keys)
        except ValueError as error:
            raise AssertionError("stdout is not one JSON document: %s\n%s" % (error, self)) from error

    @property
    def text(self):
        return self.err.decode("utf-8", "replace")


def judge(result):
    if result.code is None:
        raise AssertionError("still running after the time limit: %s" % result)
    if SANITIZER.search(result.err):
        raise AssertionError("a sanitizer report: %s" % result)
    if result.code not in range(5):
        raise AssertionError("exit status not in 0..4: %s" % result)
    if result.code >= USAGE and not result.err.strip() and b"--json" not in [os.fsencode(w) for w in result.command]:
        raise AssertionError("an error without words on stderr: %s" % result)
    return result


def run(*words, timeout=60, **options):
    """Runs the tool; options go to subprocess.run (stdout=..., preexec_fn=...)."""
    command = [PNPACK] + [os.fspath(w) if not isinstance(w, int) else str(w) for w in words]
    settings = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    settings.update(options)
    try:
        done = subprocess.run(command, timeout=timeout, **settings)
        result = Result(command, done.returncode, done.stdout or b"", done.stderr or b"")
    except subprocess.TimeoutExpired as late:
        result = Result(command, None, late.stdout or b"", late.stderr or b"")
    return judge(result)


# Starts a program and tells its exit status, seconds of computing and peak resident KiB. A process of its own, and a
# small one: the peak of a child begins with what its parent held when it was started.
LAUNCHER = """
import os, signal, sys
pid = os.posix_spawn(sys.argv[3], sys.argv[3:], os.environ)
signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
signal.alarm(int(sys.argv[2]))
_, status, usage = os.wait4(pid, 0)
os.write(int(sys.argv[1]), b"%d %f %d" % (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss))
"""


def run_measured(*words, limit=30, **options):
    """Runs the tool; gives (result, seconds, peak resident MiB). Seconds are those of computing, so that a busy machine does
    not matter; a run is killed after `limit` seconds of any kind."""
    command = [PNPACK] + [os.fspath(w) if not isinstance(w, int) else str(w) for w in words]
    settings = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    settings.update(options)
    back, there = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", LAUNCHER, str(there), str(limit)] + command, pass_fds=(there,),
                              **settings)
        os.close(there)
        with open(back, "rb", closefd=False) as told:
            code, seconds, kib = told.read().split()
    finally:
        os.close(back)
    return judge(Result(command, int(code), done.stdout, done.stderr)), float(seconds), int(kib) / 1024


def each(function, items):
    """function(item) for every item on all cores; the results in order. The first exception is raised."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        return list(pool.map(function, items))


def contents(path):
    """What is at a path: the bytes of a file, {name: bytes} of a folder."""
    if path.is_dir():
        return {str(inner.relative_to(path)): inner.read_bytes() for inner in path.rglob("*") if inner.is_file()}
    return path.read_bytes()


def has_word(word, text):
    """A tuple of words: any of them will do."""
    return any(w in text for w in word) if isinstance(word, tuple) else word in text


def under_asan():
    return b"__asan_init" in Path(PNPACK).read_bytes()


def mentions_element(text, flat, row, column):
    """An element may be named by its index in the tensor, or by row and column."""
    numbers = {int(n) for n in re.findall(r"\d+", text)}
    return flat in numbers or {row, column} <= numbers


class ToolTest(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pnpack-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def path(self, name):
        return self.folder / name

    def write(self, name, data):
        path = self.path(name)
        path.write_bytes(data)
        return path

    def expect(self, code, *words, **options):
        result = run(*words, **options)
        self.assertEqual(result.code, code, str(result))
        return result

    def done(self, *words, **options):
        return self.expect(DONE, *words, **options)

    def done_json(self, *words, **options):
        document = self.done(*words, "--json", **options).json
        self.assertIs(document["ok"], True)
        self.assertNotIn("error", document)
        return document

    def says_no(self, *words):
        """The answer is no: status 1, with and without --json; gives the document."""
        self.expect(NO, *words)
        document = self.expect(NO, *words, "--json").json
        self.assertIs(document["ok"], False)
        self.assertNotIn("error", document)
        return document

    def fails(self, code, *words, names=(), **options):
        """An error: status, words on stderr that name things; the same in JSON. Gives the JSON's error."""
        result = self.expect(code, *words, **options)
        for name in names:
            self.assertTrue(has_word(name, result.text), "no %s in %s" % (name, result))
        result = self.expect(code, *words, "--json", **options)
        document = result.json
        self.assertIs(document["ok"], False)
        error = document["error"]
        self.assertTrue(error["message"], str(result))
        for name in names:
            self.assertTrue(has_word(name, json.dumps(error, ensure_ascii=False)), "no %s in %s" % (name, result))
        return error

    def rejected(self, source, *words, names=(), code=BAD_INPUT):
        """A verb that writes OUT fails on `source`: names the file, leaves no output and no temporary file, and the
        input as it was. `words` without IN and OUT."""
        before, listing = contents(source), sorted(os.listdir(self.folder))
        verb, rest = words[0], words[1:]
        out = self.path("rejected.out")
        target = [out] if verb in ("pack", "unpack", "quantize") else []
        try:
            error = self.fails(code, verb, source, *target, *rest, names=(source.name,) + tuple(names))
            self.assertIn("file", error)
            self.assertEqual(sorted(os.listdir(self.folder)), listing, "%s left something behind" % verb)
        finally:
            if out.is_dir():
                shutil.rmtree(out)
            elif out.exists():
                out.unlink()  # or the next verb would fail for it
        self.assertEqual(contents(source), before, "%s changed its input" % verb)
        return error

    def same_bytes(self, path, expected, message=""):
        data = path.read_bytes() if isinstance(path, Path) else path
        if data != expected:
            first = next((i for i, (a, b) in enumerate(zip(data, expected)) if a != b), min(len(data), len(expected)))
            self.fail("%s bytes differ from %s expected, first at byte %d: %r, expected %r %s" % (
                len(data), len(expected), first, data[first:first + 24], expected[first:first + 24], message))


main = unittest.main
