"""Every example can be read in one go: less than 150 lines, a comment that says what it is for, and a place in
examples/README.md."""

import pathlib
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples"
SOURCES = sorted(p for p in FOLDER.iterdir() if p.is_file() and p.suffix in (".cpp", ".cu", ".py"))


class Examples(unittest.TestCase):
    def test_there_are_some(self):
        self.assertGreater(len(SOURCES), 8)

    def test_each(self):
        readme = (FOLDER / "README.md").read_text()
        for source in SOURCES:
            with self.subTest(source.name):
                lines = source.read_text().splitlines()
                self.assertLess(len(lines), 150)
                self.assertRegex(lines[0] + lines[1], r'^// |^#!.*"""')
                self.assertIn("`%s" % source.name, readme)
                if source.suffix != ".py":
                    self.assertTrue(any(l.startswith(("//   g++", "//   nvcc")) for l in lines), "how it is built")


if __name__ == "__main__":
    unittest.main()
