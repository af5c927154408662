"""Runs every case of make.py: the status that the manifest gives, words that name what is wrong, no output, nothing
left behind, in a few seconds and little memory. The files without a fault are accepted, so the others fail for their
fault.
"""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pnpack"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import make  # noqa: E402
from tool import DONE, each, has_word, main, run_measured, under_asan  # noqa: E402

SECONDS, MEBIBYTES = 5, 64
WRITTEN = "it-is-written-here"


def listing(folder):
    """Names, kinds and sizes of everything below a folder."""
    out = []
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        out.append((str(path.relative_to(folder)), info.st_mode, info.st_size if path.is_file() else 0,
                    info.st_mtime_ns))
    return out


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="pnpack-hostile-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.home = Path(cls.folder.name).resolve() / "cases"
        cls.manifest = make.write(cls.home)

    def test_there_are_enough(self):
        hostile = [case for case in self.manifest if not case["id"].startswith("fine-")]
        self.assertGreater(len(hostile), 200)
        self.assertEqual(json.loads((self.home / "manifest.json").read_text())["cases"], self.manifest)

    def test_the_files_are_always_the_same(self):
        again = Path(self.folder.name).resolve() / "again"
        make.write(again)
        for path in sorted(self.home.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self.assertEqual(path.read_bytes(), (again / path.relative_to(self.home)).read_bytes(), path)

    def judge(self, case):
        """What is wrong, as a text; None when all is well."""
        try:
            return self.problem(case)
        finally:
            out = self.home / case["id"] / WRITTEN
            if out.is_dir():
                shutil.rmtree(out)
            else:
                out.unlink(missing_ok=True)

    def problem(self, case):
        home = self.home / case["id"]
        command = [WRITTEN if word == "OUT" else word for word in case["command"]]
        before = listing(home)
        try:
            result, seconds, mebibytes = run_measured(*command, cwd=home)
            force = ("--force",) if result.code == DONE else ()
            again, _, _ = run_measured(*command, "--json", *force, cwd=home)
            error = again.json.get("error", {})
        except AssertionError as fault:
            return str(fault)
        problems = []
        if result.code not in case["exit"] or again.code != result.code:
            problems.append("status %d, with --json %d, wanted %s" % (result.code, again.code, case["exit"]))
        elif result.code != DONE:
            if listing(home) != before:
                problems.append("left behind: %s" % sorted(set(listing(home)) ^ set(before)))
            message = json.dumps(error, ensure_ascii=False)
            for words in case["words"]:
                if not has_word(tuple(words), result.text) or not has_word(tuple(words), message):
                    problems.append("none of %s in both messages" % words)
            if not error.get("message") or "file" not in error:
                problems.append("an error without a message or a file")
            if any(word in message for word in ("bad_alloc", "json.exception", "std::")):
                problems.append("a message for programmers")
        if seconds > SECONDS and not under_asan():
            problems.append("%.1f s" % seconds)
        if mebibytes > MEBIBYTES and not under_asan():
            problems.append("%.0f MiB" % mebibytes)
        return "; ".join(problems + [str(result), "JSON: %r" % again.out[:500]]) if problems else None

    def test_every_case(self):
        problems = each(self.judge, self.manifest)
        for case, problem in zip(self.manifest, problems):
            with self.subTest(case["id"], what=case["what"]):
                self.assertIsNone(problem, problem)


if __name__ == "__main__":
    main()
