"""cmake/Doxyfile makes a reference of the public headers without a complaint; and it would complain. Ends with 77 where
doxygen is missing."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Reference(unittest.TestCase):
    def make(self, **settings):
        with tempfile.TemporaryDirectory() as folder:
            settings["OUTPUT_DIRECTORY"] = folder
            lines = "".join("\n%s = %s" % item for item in settings.items())
            done = subprocess.run(["doxygen", "-"], cwd=ROOT, input=(ROOT / "cmake/Doxyfile").read_text() + lines,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.returncode, done.stdout, {p.name for p in pathlib.Path(folder).glob("html/*.html")}

    def test_everything_public_has_a_comment(self):
        status, output, pages = self.make()
        self.assertEqual((status, output.strip()), (0, ""))
        self.assertLessEqual({"structpncuda__weights.html", "structpn_1_1Block34.html", "namespacep12_1_1cpu.html"}, pages)

    def test_what_has_none_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "header.hpp"
            header.write_text("// A file.\n#pragma once\n\n// Documented.\ninline int one() { return 1; }\n"
                              "inline int two() {\n  // Not of two's own.\n  return 2;\n}\n")
            status, output, _ = self.make(INPUT=folder)
        self.assertNotEqual(status, 0)
        self.assertIn("header.hpp:6: error: Member two()", output)
        self.assertNotIn("one()", output)


if __name__ == "__main__":
    if shutil.which("doxygen") is None:
        print("skipped: doxygen is not installed")
        sys.exit(77)
    unittest.main()
