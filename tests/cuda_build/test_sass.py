"""Tests of bench/sass.py, with machine code that was written by hand (loops.sass)."""

import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))
import sass  # noqa: E402

CODE = sass.parse_listing((HERE / "loops.sass").read_text())

SOURCE = """
// Something else.
// sass: loop = LDG.128 + FFMA
// sass: step = 4 if wide else 1
// sass: weights = step * LDG.128
// sass: math = FFMA
template <class T, bool wide, int tokens = 1>
__global__ void __launch_bounds__(threads, 2) simple(const Args args) {
"""


def declaration(text=SOURCE):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "a.cuh").write_text(text)
        return sass.declarations(pathlib.Path(folder))


def measure(kernel, wide=True):
    ptxas = {"registers": 40, "threads": 256, "shared": 0, "spills": 0}
    arguments = {"T": sass.FORMATS["pn::pn3t"], "wide": wide, "tokens": 1}
    figure = sass.Figure("sm_60", "nvcc 0", "simple", arguments, "", ptxas)
    figure.measure(declaration()["simple"], *CODE[kernel])
    return figure


class Loops(unittest.TestCase):
    def test_rare_parts_are_left_out_and_loads_that_may_be_skipped_are_not(self):
        figure = measure("_Z6simple")
        # From .L_x_2: compare, branch, load, LOP3, branch, 4 FFMA, HFMA2, LDS, IADD3, compare, branch.
        self.assertEqual(figure.weights, 4)
        self.assertEqual(figure.instructions, 14 / 4)
        self.assertEqual(figure.memory, 2 / 4)

    def test_pascal(self):
        figure = measure("_Z6pascal")
        # Load, SSY, SYNC (taken), 4 FFMA, IADD, BRA.
        self.assertEqual((figure.weights, figure.instructions), (4, 9 / 4))

    def test_both_ways_of_counting_must_agree(self):
        with self.assertRaisesRegex(sass.SassError, "by loads 1, by arithmetic 4"):
            measure("_Z6simple", wide=False)

    def test_loops_and_calls_on_the_main_path(self):
        with self.assertRaisesRegex(sass.SassError, "a loop on the main path, at 0x40"):
            measure("_Z6nested")
        with self.assertRaisesRegex(sass.SassError, "a call on the main path, at 0x20"):
            measure("_Z6called")

    def test_a_loop_around_with_the_rest_of_the_main_loop_is_not_it(self):
        figure = measure("_Z6around")
        self.assertEqual((figure.weights, figure.instructions), (4, 7 / 4))

    def test_no_such_loop(self):
        with self.assertRaisesRegex(sass.SassError, "no loop"):
            sass.main_path(*CODE["_Z6simple"], lambda i: i.is_a("HMMA"))

    def test_opcodes(self):
        instruction = sass.Instruction(0, "@!P0 LDG.E.NA.128.CONSTANT R4, [R2.64] ;")
        self.assertTrue(instruction.is_a("LDG.128") and instruction.is_a("LDG.128.NA") and instruction.is_a("LDG"))
        self.assertFalse(instruction.is_a("LDG.64") or instruction.is_a("LD"))
        self.assertTrue(instruction.is_memory and instruction.is_conditional)
        self.assertFalse(sass.Instruction(0, "HFMA2.MMA R10, -RZ, RZ, 0, 0 ;").is_a("HFMA2"))
        self.assertFalse(sass.Instruction(0, "BRA `(.L_x_4);").is_conditional)
        self.assertTrue(sass.Instruction(0, "BRA P1, `(.L_x_4) ;").is_conditional)
        self.assertFalse(sass.Instruction(0, "LDC R1, c[0x0][0x28] ;").is_memory)


class Declarations(unittest.TestCase):
    def test_parameters_and_values(self):
        found = declaration()
        self.assertEqual(list(found), ["simple"])
        self.assertEqual(found["simple"].parameters, ["T", "wide", "tokens"])
        values = found["simple"].evaluate({"T": sass.FORMATS["pn::pn4t"], "wide": True, "tokens": 1},
                                          lambda op: {"LDG.128": 5, "FFMA": 7}[op])
        self.assertEqual((values["loop"], values["weights"], values["math"]), (12, 20, 7))

    def test_what_is_wrong_is_told_with_its_line(self):
        for old, new, text in (("// sass: math = FFMA\n", "", "a.cuh:3: no math"),
                               ("step = 4", "step is 4", "not NAME = EXPRESSION"),
                               ("__global__", "__device__", "no template of a kernel")):
            with self.assertRaisesRegex(sass.SassError, text):
                declaration(SOURCE.replace(old, new))
        with self.assertRaisesRegex(sass.SassError, "a.cuh:3: weights"):
            declaration(SOURCE.replace("step *", "stride *"))["simple"].evaluate({"wide": 1}, lambda op: 1)

    def test_names(self):
        self.assertEqual(sass.split_name("void pncuda::k<pn::pn3t, true, (int)4, (pncuda::Mode)1>(pncuda::Args)"),
                         ("k", [sass.FORMATS["pn::pn3t"], True, 4, 1]))
        self.assertEqual(sass.split_name("pncuda::k(unsigned long)"), ("k", []))
        self.assertEqual(sass.split_name("void pncuda::(anonymous namespace)::k<pncuda::P12Weights, 2>(pncuda::Args)"),
                         ("k", [sass.FORMATS["pncuda::P12Weights"], 2]))


class Numbers(unittest.TestCase):
    def test_occupancy(self):
        self.assertEqual(sass.occupancy("sm_60", 32, 256, 0), 1)
        self.assertEqual(sass.occupancy("sm_60", 128, 256, 0), 0.25)
        self.assertEqual(sass.occupancy("sm_60", 32, 256, 21000), 0.375)
        self.assertEqual(sass.occupancy("sm_75", 64, 256, 0), 1)
        self.assertEqual(sass.occupancy("sm_90", 64, 128, 113 << 10), 0.125)

    def test_cards(self):
        pn3t, pn4t, p12, bf16 = sass.FORMATS.values()
        self.assertAlmostEqual(sass.card_limit("sm_90", p12), 11.91, 2)
        self.assertAlmostEqual(sass.card_limit("sm_90", bf16), 15.56, 2)
        self.assertAlmostEqual(sass.card_limit("sm_60", pn3t), 3.68, 2)
        self.assertAlmostEqual(sass.card_limit("sm_60", pn4t), 4.60, 2)

    def test_check(self):
        figure = measure("_Z6simple")
        figure.name, figure.budget = "a kernel", 3.5
        recorded = [{"name": "a kernel", "arch": "sm_60", "compiler": "nvcc 0", **figure.record()}]
        self.assertEqual(sass.check([figure], recorded), ([], []))
        figure.budget = 3.4
        self.assertRegex(sass.check([figure], recorded)[0][0], "3.50 instructions for a weight, 3.4 allowed")
        figure.budget = None
        recorded[0]["instructions_per_weight"] = 3.1
        self.assertRegex(sass.check([figure], recorded)[0][0], "recorded 3.1")
        recorded[0]["compiler"] = "nvcc 1"
        self.assertEqual([len(texts) for texts in sass.check([figure], recorded)], [0, 1])


if __name__ == "__main__":
    unittest.main()
