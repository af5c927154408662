"""Proves that the golden files are a whole that cannot be damaged unseen, and that they tell wrong decoders.

Everything happens on copies: the manifest, each file and single lines of examples/conformance.py are deleted or broken,
and each time conformance.py, where it can, and pn's own core must fail.

PN_TEST_EVERY=N in the environment: of the places in a file or a list every N-th only; each file is damaged in one way,
not in all.

usage: test_kit.py PROGRAM [BUILD_FOLDER]     (PROGRAM: core.cpp, built; BUILD_FOLDER: to install from)
"""
import ast
import contextlib
import hashlib
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import run_kit

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "conformance.py"
GOLDEN = ROOT / "tests" / "golden"
PROGRAM, BUILD = (sys.argv[1:] + [None, None])[:2]
EVERY = int(os.environ.get("PN_TEST_EVERY", "1"))
RUN_BY_SCRIPT = ("decode", "decode_rotated", "rotate_activations", "validate", "unpack", "pack")


def script_passes(folder, text=None):
    """Runs conformance.py, or the text of a changed one, in this process; an exception is a failure too."""
    names = {"__name__": "conformance", "__file__": str(SCRIPT)}
    argv, sys.argv = sys.argv, [str(SCRIPT), str(folder)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text or SCRIPT.read_text(), str(SCRIPT), "exec"), names)
            names["main"]()
    except SystemExit as end:
        return not end.code
    except Exception:
        return False
    finally:
        sys.argv = argv
    return False  # it always ends by sys.exit


def core_passes(folder):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return run_kit.main(PROGRAM, folder) == 0
        except Exception:
            return False


def seal(manifest):
    manifest.pop("sha256", None)
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return manifest


class Copy(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()) if hasattr(self, "enterContext")
                                   else self.temporary())
        self.kit = self.folder / "kit"
        shutil.copytree(GOLDEN, self.kit, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        self.manifest = json.loads((self.kit / "manifest.json").read_text())
        self.random = random.Random(20250304)

    def temporary(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name


class Kit(Copy):
    def test_the_whole_kit_passes(self):
        self.assertTrue(script_passes(self.kit))
        self.assertTrue(core_passes(self.kit))

    def test_it_is_small_and_complete(self):
        sizes = [p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        self.assertLess(sum(sizes), 2300000)
        for test in self.manifest["tests"]:
            self.assertRegex(test["id"], r"^%s\.%s(\.[a-z0-9-]+)?$" % (test["format"], test["operation"]))
            self.assertTrue(test["proves"].endswith("."))
        said = {row["result"] for t in self.manifest["tests"] for row in t["expected"].get("rows", ())}
        self.assertEqual(said, set(self.manifest["results"]), "every result is expected somewhere")
        self.assertEqual({p.suffix for p in GOLDEN.glob("v*/*")}, {".bin"})

    def test_deleted_or_cut_manifest(self):
        path = self.kit / "manifest.json"
        text = path.read_bytes()
        for length in [*range(0, len(text) - 2, 997 * EVERY), len(text) - 2]:
            path.write_bytes(text[:length])
            self.assertFalse(script_passes(self.kit), length)
        path.unlink()
        self.assertFalse(script_passes(self.kit))

    def test_damaged_manifest(self):
        path = self.kit / "manifest.json"
        text = path.read_bytes()
        for at in sorted(self.random.sample(range(len(text) - 1), 150 // EVERY)):
            changed = bytearray(text)
            changed[at] ^= 1
            path.write_bytes(changed)
            self.assertFalse(script_passes(self.kit), "byte %d" % at)
        lines = text.splitlines(keepends=True)
        for at in range(0, len(lines), 13 * EVERY):
            path.write_bytes(b"".join(lines[:at] + lines[at + 1:]))
            self.assertFalse(script_passes(self.kit), "without line %d" % (at + 1))

    def test_each_file_deleted(self):
        for name in list(self.manifest["files"])[::EVERY]:
            (self.kit / name).rename(self.folder / "away")
            self.assertFalse(script_passes(self.kit), name)
            (self.folder / "away").rename(self.kit / name)
        self.assertTrue(script_passes(self.kit))

    def test_each_file_with_a_byte_flipped(self):
        for number, name in enumerate(self.manifest["files"]):
            path = self.kit / name
            data = path.read_bytes()
            places = [0, self.random.randrange(len(data)), len(data)]  # the last: a byte more
            for at in places if EVERY == 1 else places[number % 3:][:1]:
                if at == len(data):
                    path.write_bytes(data + b"\0")
                    self.assertFalse(script_passes(self.kit), name)
                    continue
                changed = bytearray(data)
                changed[at] ^= 1 << self.random.randrange(8)
                path.write_bytes(changed)
                self.assertFalse(script_passes(self.kit), "%s byte %d" % (name, at))
            path.write_bytes(data)
        self.assertTrue(script_passes(self.kit))

    def test_file_that_is_not_listed(self):
        for name in ("more.bin", "v1/more.bin", "v2/deep/more.bin", "v9/pn3t-blocks.bin"):
            (self.kit / name).parent.mkdir(exist_ok=True)
            (self.kit / name).write_bytes(b"" if name == "more.bin" else b"1234")
            self.assertFalse(script_passes(self.kit), name)
            (self.kit / name).unlink()
        self.assertTrue(script_passes(self.kit))

    def only(self, test):
        """Makes the kit a correct one with a single test."""
        shutil.rmtree(self.kit)
        files = [p for part in ("inputs", "expected") for p in test[part].values() if isinstance(p, str)]
        for name in files:
            (self.kit / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(GOLDEN / name, self.kit / name)
        return {**self.manifest, "files": {n: dict(self.manifest["files"][n]) for n in files}, "tests": [test]}

    def write(self, manifest):
        for name, entry in manifest["files"].items():
            entry["sha256"] = hashlib.sha256((self.kit / name).read_bytes()).hexdigest()
        (self.kit / "manifest.json").write_text(json.dumps(seal(manifest)))

    def verdicts(self, test):
        passes = [core_passes(self.kit)]
        if test["operation"] in RUN_BY_SCRIPT:
            passes.append(script_passes(self.kit))
        return passes

    def test_each_expectation_is_compared(self):
        """A wrong expectation under a right sum: only running the test can tell."""
        for test in self.manifest["tests"]:
            manifest = self.only(test)
            self.write(manifest)
            self.assertTrue(all(self.verdicts(test)), test["id"])
            (kind, want), = test["expected"].items()
            if kind == "rows":
                for at in range(0, len(want), EVERY):
                    wrong = [dict(row) for row in want]
                    wrong[at] = {"result": "ok" if want[at]["result"] != "ok" else "base_not_canonical"}
                    self.write({**manifest, "tests": [{**test, "expected": {"rows": wrong}}]})
                    self.assertFalse(any(self.verdicts(test)), "%s row %d" % (test["id"], at))
                    place = next((p for p in ("block", "element") if p in want[at]), None)
                    if place:
                        wrong[at] = {**want[at], place: want[at][place] + 1}
                        self.write({**manifest, "tests": [{**test, "expected": {"rows": wrong}}]})
                        self.assertFalse(any(self.verdicts(test)), "%s row %d" % (test["id"], at))
                continue
            path = self.kit / want
            data = path.read_bytes()
            for at in [0, len(data) - 1, self.random.randrange(len(data)), self.random.randrange(len(data))][::min(EVERY, 2)]:
                changed = bytearray(data)
                changed[at] ^= 1 << self.random.randrange(8)
                free = test["operation"] == "decode"
                if free and run_kit.canonical(bytes(changed), "fp32") == run_kit.canonical(data, "fp32"):
                    continue  # another NaN, which is as good
                path.write_bytes(changed)
                self.write(manifest)
                self.assertFalse(any(self.verdicts(test)), "%s byte %d" % (test["id"], at))


# Lines of conformance.py and what to make of them: the mistakes of decoders and validators.
BREAKS = [
    ("shifts = [bits * (t >> 1) + 16 * (t & 1) for", "shifts = [bits * t for"),
    ("shifts = [bits * (t >> 1) + 16 * (t & 1) for", "shifts = [bits * (t >> 1) + 16 * (~t & 1) for"),
    ("- 2**(bits - 1)) for w", "- 2**(bits - 1) + 1) for w"),
    ("d * float((w >> shift & 2**bits - 1)", "0.0 + d * float((w >> shift & 2**bits - 1)"),
    ('struct.unpack("<e8I", block)', 'struct.unpack(">e8I", block)'),
    ('struct.unpack("<f", struct.pack("<f", x))[0]', "x"),
    ("rounded(float.fromhex(HADAMARD[b]))", "fp32(float.fromhex(HADAMARD[b]))"),
    ("1, rounded(float.fromhex(HADAMARD[b]))", "1, float.fromhex(HADAMARD[b])"),
    ("distance < b", "distance < b // 2"),
    ("distance < b", "distance < 64"),
    ("x[j ^ distance] - v if", "v - x[j ^ distance] if"),
    ("if j & distance else", "if not j & distance else"),
    ("[rounded(x[j ^ distance]", "[float(x[j ^ distance]"),
    ("[fp32(w) for w in rotate(weights, b, float)]", "rotate(weights, b, fp32)"),
    ("[fp32(w) for w in rotate(weights, b, float)]", "weights"),
    ("b in HADAMARD and k % b == 0", "b in HADAMARD"),
    ("b in HADAMARD and k % b == 0", "k % b == 0"),
    ("block[1] & 0x7C == 0x7C", "block[1] & 0xFC == 0x7C"),
    ("b & 0x80 for b in block[3::2]", "b & 0x80 for b in block[3::4]"),
    ('if form == "pn3t" and any', "if any"),
    ("w >> 4 * (t >> 1) + 16 * (t & 1) & 15", "w >> 4 * t & 15"),
    ("(block[0] + code) % 256", "min(block[0] + code, 255)"),
    ("range(min(block[1], 3))", "range(min(block[1], 2))"),
    ("range(min(block[1], 3))", "reversed(range(min(block[1], 3)))"),
    ("(sm & 0x80) << 8", "(sm & 0x80) << 7"),
    ("range(241), key", "range(256), key"),
    ("range(241), key", "range(240), key"),
    ("sum(count[b:b + 16]), b)", "sum(count[b:b + 16]), -b)"),
    ("count[b:b + 16]", "count[b:b + 15]"),
    ("if len(listed) > 3:", "if len(listed) > 4:"),
    ("0 if i in listed else e - base", "e - base & 15"),
    ("base > 240)", "base > 241)"),
    ("a >= b for a, b", "a > b for a, b"),
    ("any(places[n:] + exponents[n:])", "any(places[n:])"),
    ("any(places[n:] + exponents[n:])", "any(exponents[n:])"),
    ("codes[p] for p in places[:n]", "codes[p] for p in places[:1]"),
    ("base <= e <= base + 15 for e in exponents[:n]", "base <= e < base + 15 for e in exponents[:n]"),
    ("pack(unpack(block)) != block", "False"),
    ("row[0] if row", "row[-1] if row"),
]


class Script(Copy):
    def setUp(self):
        """A smaller kit, for speed: the files of v2 suffice."""
        super().setUp()
        self.installed = list(self.manifest["files"])
        tests = [t for t in self.manifest["tests"] if not t["id"].endswith(".kinds")]
        used = {p for t in tests for part in ("inputs", "expected") for p in t[part].values() if isinstance(p, str)}
        for name in self.manifest["files"].keys() - used:
            (self.kit / name).unlink()
        files = {name: entry for name, entry in self.manifest["files"].items() if name in used}
        (self.kit / "manifest.json").write_text(json.dumps(seal({**self.manifest, "files": files, "tests": tests})))

    def test_it_is_plain(self):
        text = SCRIPT.read_text()
        self.assertLess(len(text.splitlines()), 150)
        imported = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node,
                                                                                   ast.Import) for alias in node.names}
        self.assertEqual(imported, {"hashlib", "json", "pathlib", "struct", "sys"})
        self.assertFalse([n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)])
        self.assertNotIn("exec", text)

    def test_each_broken_line_is_seen(self):
        text = SCRIPT.read_text()
        self.assertTrue(script_passes(self.kit, text))
        for line, broken in BREAKS[::min(EVERY, 2)]:
            self.assertEqual(text.count(line), 1, line)
            self.assertFalse(script_passes(self.kit, text.replace(line, broken)), "%s -> %s" % (line, broken))

    def test_each_deleted_line_is_seen(self):
        lines = SCRIPT.read_text().splitlines(keepends=True)
        start, end = (next(i for i, line in enumerate(lines) if line.startswith(mark)) for mark in ("TYPES",
                                                                                                    "def rows"))
        deleted = 0
        for at in range(start, end, min(EVERY, 4)):
            if lines[at].strip() and not lines[at].strip().startswith(("#", '"""')):
                self.assertFalse(script_passes(self.kit, "".join(lines[:at] + lines[at + 1:])), lines[at])
                deleted += 1
        self.assertGreater(deleted, 35 // EVERY)

    def test_from_outside(self):
        """As a user calls it: by its exit status and its lines."""
        call = [sys.executable, "-B", str(SCRIPT)]
        good = subprocess.run(call, capture_output=True, text=True)
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        ran = sum(t["operation"] in RUN_BY_SCRIPT for t in self.manifest["tests"])
        lines = good.stdout.splitlines()
        self.assertEqual(sum(line.startswith("ok ") for line in lines), ran)
        self.assertIn("%d of %d tests: 0 failed. Not run here: quantize" % (ran, len(self.manifest["tests"])),
                      lines[-1])
        (self.kit / "v2/p12-places-blocks.bin").unlink()
        bad = subprocess.run(call + [str(self.kit)], capture_output=True, text=True)
        self.assertEqual(bad.returncode, 1)
        self.assertIn("v2/p12-places-blocks.bin: missing, or not listed", bad.stderr)
        self.assertNotEqual(subprocess.run(call + [str(self.folder / "nowhere")], capture_output=True).returncode, 0)

    @unittest.skipUnless(BUILD, "no build folder given")
    def test_installed(self):
        prefix = self.folder / "prefix"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", str(prefix), "--component", "golden"], check=True,
                       capture_output=True)
        script = next(prefix.rglob("conformance.py"))
        names = {p.relative_to(script.parent).as_posix() for p in prefix.rglob("*") if p.is_file()}
        wanted = {"golden/" + name for name in [*self.installed, "manifest.json", "README.md"]}
        self.assertEqual(names, wanted | {"conformance.py"})
        run = subprocess.run([sys.executable, "-B", str(script)], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
