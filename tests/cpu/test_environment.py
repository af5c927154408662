"""Proves that the environment variable PN_CPU_ISA chooses the instruction set in builds for tests: a known name is
obeyed, any other ends the program at once, and without it the first of the list is taken.

PN_CPU_SHOW_ISA names the program that tells.
"""

import os
import signal
import subprocess
import unittest

PROGRAM = os.environ.get("PN_CPU_SHOW_ISA", "")
ALL = ("avx512_icl", "avx512", "avx2", "neon", "baseline")


def show(wanted, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PN_CPU_ISA"}
    if wanted is not None:
        environment["PN_CPU_ISA"] = wanted
    return subprocess.run([PROGRAM, *arguments], text=True, capture_output=True, env=environment)


class Environment(unittest.TestCase):
    def setUp(self):
        self.there = show(None, "list").stdout.split()
        self.assertEqual(self.there[-1], "baseline")

    def test_without_it_the_best_is_taken(self):
        self.assertEqual(show(None).stdout.split(), self.there[:1])

    def test_a_known_name_is_obeyed(self):
        for name in self.there:
            result = show(name)
            self.assertEqual((result.returncode, result.stdout.split()), (0, [name]))

    def test_any_other_name_aborts(self):
        missing = [name for name in ALL if name not in self.there]
        self.assertTrue(missing)
        for name in [*missing, "", "best", "unknown", "AVX2", "baseline ", "baselin", "baseline2", "avx51"]:
            with self.subTest(name):
                result = show(name)
                self.assertEqual(result.returncode, -signal.SIGABRT)
                self.assertEqual(result.stdout, "")
                self.assertIn(f"PN_CPU_ISA={name} ", result.stderr)

    def test_the_list_does_not_depend_on_it(self):
        self.assertEqual(show("baseline", "list").stdout.split(), self.there)


if __name__ == "__main__":
    unittest.main()
