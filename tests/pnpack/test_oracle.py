"""Holds the tests' own implementation (oracle.py, gguf_files.py) to facts that can be checked without the tool:
conversion tables, the edges of the quantizer, the tie rules of P12, struct's own half floats.
"""

import math
import os
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from oracle import PN3T, PN4T  # noqa: E402


def step(value, direction):
    """The next fp32 value up (+1) or down (-1) from a positive one."""
    return oracle.f32_from_bits(oracle.f32_bits(value) + direction)


class Numbers(unittest.TestCase):
    def test_fp32_to_fp16_table(self):
        table = {0x40001000: 0x4000, 0x34200000: 0x0002, 0x34600000: 0x0004, 0x387FE000: 0x0400, 0x33000000: 0x0000,
                 0x33000001: 0x0001}
        for bits, half in table.items():
            self.assertEqual(oracle.fp16_bits(oracle.f32_from_bits(bits)), half, hex(bits))
        self.assertEqual(oracle.fp16_bits(65519.996), 0x7BFF)
        self.assertEqual(oracle.fp16_bits(65520.0), 0x7C00)
        self.assertEqual(oracle.fp16_bits(-65520.0), 0xFC00)

    def test_double_to_fp16_rounds_once(self):
        self.assertEqual(oracle.fp16_bits(1 + 2**-11 + 2**-40), 0x3C01)
        self.assertEqual(oracle.fp16_bits(1 + 2**-11), 0x3C00)

    def test_all_finite_fp16_values(self):
        for bits in range(65536):
            if bits & 0x7C00 != 0x7C00:
                value = oracle.fp16_value(bits)
                self.assertEqual(value, struct.unpack("<e", struct.pack("<H", bits))[0])
                self.assertEqual(oracle.fp16_bits(value), bits)

    def test_fp16_against_struct(self):
        rng = random.Random(1)
        for _ in range(20000):
            value = math.ldexp(rng.uniform(-2, 2), rng.randint(-30, 14))
            self.assertEqual(oracle.fp16_bits(value), struct.unpack("<H", struct.pack("<e", value))[0], value)

    def test_bf16(self):
        for bits, half in {0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82, 0xBF818000: 0xBF82,
                           0x00008000: 0x0000, 0x00018000: 0x0002, 0x80000000: 0x8000}.items():
            self.assertEqual(oracle.bf16_bits(oracle.f32_from_bits(bits)), half, hex(bits))

    def test_round_half_even(self):
        self.assertEqual([oracle.round_half_even(n, 2) for n in range(-5, 6)], [-2, -2, -2, -1, 0, 0, 0, 1, 2, 2, 2])
        for n in range(-50, 50):
            self.assertEqual(oracle.round_half_even(n, 8), round(n / 8))


class Quantizer(unittest.TestCase):
    def test_multipliers(self):
        self.assertEqual(oracle.MULTIPLIERS[0], 0.5)
        self.assertEqual(oracle.MULTIPLIERS[35], 1.2)
        self.assertEqual(sum(m != 0.50 + 0.02 * i for i, m in enumerate(oracle.MULTIPLIERS)), 8)

    def test_edges_of_amax(self):
        for kind in (PN3T, PN4T):
            z = kind.zero
            count = lambda amax: sum(s is not None for s in oracle.pn_candidates(kind, amax, 1.0))  # noqa: E731
            vanish, half_survives = z / 1.2 * 2**-25, z / 0.5 * 2**-25
            self.assertAlmostEqual(vanish / (9.934e-8 if z == 4 else 1.987e-7), 1, delta=1e-3)
            self.assertAlmostEqual(half_survives / (2.384e-7 if z == 4 else 4.768e-7), 1, delta=1e-3)
            self.assertEqual(count(vanish * 0.9999), 0)
            self.assertEqual(count(vanish * 1.0001), 1)
            self.assertEqual(count(step(half_survives, -1)), 35)
            self.assertEqual(count(half_survives), 35)  # exactly half of the smallest fp16 goes to even: to 0
            self.assertEqual(count(step(half_survives, 1)), 36)
            first, last = (218400.0, 524160.0) if z == 4 else (436800.0, 1048320.0)
            self.assertEqual(count(step(first, -1)), 36)
            self.assertEqual(count(first), 35)
            self.assertEqual(count(step(last, -1)), 1)
            self.assertEqual(count(last), 0)
            with self.assertRaises(oracle.Overflow):
                oracle.pn_quantize(kind, [last] * kind.block)
            tiny = oracle.pn_quantize(kind, [vanish * 0.999] * kind.block)
            self.assertEqual(tiny, oracle.pn_quantize(kind, [-0.0] * kind.block))

    def test_zero_block(self):
        self.assertEqual(oracle.pn_quantize(PN4T, [0.0] * 64), b"\0\0" + b"\x88" * 32)
        # code 4 in every three bits of each half: 100 100 100 100 100 = 0x4924
        self.assertEqual(oracle.pn_quantize(PN3T, [-0.0] * 80), b"\0\0" + b"\x24\x49" * 16)

    def test_shifts_never_cross_the_halves(self):
        self.assertEqual([oracle.code_shift(t, 10, 3) for t in range(10)], [0, 16, 3, 19, 6, 22, 9, 25, 12, 28])
        self.assertEqual([oracle.code_shift(t, 8, 4) for t in range(8)], [0, 16, 4, 20, 8, 24, 12, 28])

    def test_codes_come_back(self):
        rng = random.Random(2)
        for kind in (PN3T, PN4T):
            codes = [rng.randrange(2 * kind.zero) for _ in range(kind.block)]
            block = oracle.pn_block_bytes(kind, 0xBC00, codes)
            self.assertEqual(len(block), 34)
            self.assertEqual(oracle.pn_codes(kind, block), codes)
            self.assertTrue(oracle.pn_valid(kind, block))
            self.assertEqual(oracle.pn_decode_block(kind, block), [-1.0 * (n - kind.zero) for n in codes])

    def test_signs_of_zero(self):
        for kind in (PN3T, PN4T):
            block = oracle.pn_block_bytes(kind, 0xBC00, [kind.zero] * kind.block)
            self.assertTrue(all(str(w) == "-0.0" for w in oracle.pn_decode_block(kind, block)))
            block = oracle.pn_block_bytes(kind, 0x0000, [0] * kind.block)
            self.assertTrue(all(str(w) == "-0.0" for w in oracle.pn_decode_block(kind, block)))

    def test_largest_magnitude_gets_code_0(self):
        for kind in (PN3T, PN4T):
            for sign in (1.0, -1.0):
                weights = [sign] + [sign * 0.01] * (kind.block - 1)
                block = oracle.pn_quantize(kind, weights)
                self.assertEqual(oracle.pn_codes(kind, block)[0], 0)
                self.assertEqual(block[1] >> 7, 1 if sign > 0 else 0)

    def test_exact_division_agrees_with_doubles(self):
        for seed, kind in enumerate((PN3T, PN4T)):
            weights = oracle.gaussian(kind.block, seed)
            ratios = [w.as_integer_ratio() for w in weights]
            for bits in oracle.pn_candidates(kind, max(map(abs, weights)), -1.0):
                scale = oracle.fp16_value(bits)
                doubles = [min(max(round(w / scale) + kind.zero, 0), 2 * kind.zero - 1) for w in weights]
                self.assertEqual(oracle.pn_choose_codes(kind, ratios, scale), doubles)

    def test_hadamard_is_its_own_inverse(self):
        values = oracle.gaussian(128, 3)
        twice = oracle.unrotate(oracle.unrotate(values, 64), 64)
        self.assertTrue(all(abs(a - b) < 1e-6 for a, b in zip(values, twice)))
        self.assertEqual(oracle.unrotate([1.0] + [0.0] * 63, 64), [0.125] * 64)


class P12(unittest.TestCase):
    def test_window_ties_go_to_the_larger_base(self):
        self.assertEqual(oracle.p12_best_base([100] * 256), (100, 0))
        self.assertEqual(oracle.p12_best_base([100] * 255 + [110]), (100, 0))
        self.assertEqual(oracle.p12_best_base([250] * 256), (240, 0))
        self.assertEqual(oracle.p12_best_base([0] * 253 + [255] * 3), (0, 3))
        self.assertEqual(oracle.p12_best_base([0] * 3 + [255] * 253), (240, 3))
        self.assertEqual(oracle.p12_best_base([10] + [20] * 254 + [30]), (20, 1))  # base 10 lists one as well

    def test_block_layout(self):
        weights = [0x3F80] * 256
        weights[7], weights[9] = 0xC2A5, 0x0001  # exponent 133, code 133 - 127 = 6; exponent 0 is listed
        block = oracle.p12_pack_block(weights)
        self.assertEqual(block[:8], bytes([127, 1, 9, 0, 0, 0, 0, 0]))
        self.assertEqual(struct.unpack("<I", block[8:12])[0], 6 << 28)
        self.assertEqual(block[136 + 7], 0xA5)
        self.assertEqual(block[136 + 9], 0x01)
        self.assertEqual(len(block), 392)
        self.assertEqual(oracle.p12_unpack_block(block), weights)

    def test_all_patterns_come_back(self):
        for exponent in range(256):
            weights = [sign << 15 | exponent << 7 | mantissa for sign in (0, 1) for mantissa in range(128)]
            self.assertEqual(oracle.p12_unpack_block(oracle.p12_pack_block(weights)), weights)

    def test_four_outside_do_not_fit(self):
        weights = [0x3F80] * 256
        for i in range(3):
            weights[i * 80] = 0
        self.assertIsNotNone(oracle.p12_pack_block(weights))
        weights[255] = 0
        self.assertIsNone(oracle.p12_pack_block(weights))

    def test_only_canonical_blocks_are_valid(self):
        block = oracle.p12_pack_block([0x3F80] * 256)
        self.assertTrue(oracle.p12_valid(block))
        lower = bytes([block[0] - 1]) + block[1:8] + b"\x11" * 128 + block[136:]
        self.assertEqual(oracle.p12_unpack_block(lower), [0x3F80] * 256)
        self.assertFalse(oracle.p12_valid(lower))

    def test_every_flip_is_seen(self):
        weights = oracle.u16s(oracle.gaussian_bf16(256, 4))
        weights[200] = 0
        block = oracle.p12_pack_block(weights)
        for bit in range(8 * 392):
            flipped = bytearray(block)
            flipped[bit // 8] ^= 1 << bit % 8
            if oracle.p12_valid(bytes(flipped)):
                self.assertNotEqual(oracle.p12_unpack_block(flipped), weights)


class Gguf(unittest.TestCase):
    def test_build_and_parse(self):
        keys = [gguf.Key("general.alignment", gguf.U32, 64),
                gguf.Key("list", gguf.ARRAY, (gguf.ARRAY, [(gguf.STRING, ["a", b"\xff"]), (gguf.U8, [])]))]
        tensors = [gguf.Tensor("a", (3,), gguf.F32, b"x" * 12), gguf.Tensor("b", (4, 2), gguf.BF16, b"y" * 16)]
        for version in (2, 3):
            blob = gguf.build(tensors, keys, version)
            parsed = gguf.parse(blob)
            self.assertEqual(parsed.version, version)
            self.assertEqual(parsed.data_start % 64, 0)
            self.assertEqual(parsed.size, parsed.data_start + 128)
            self.assertEqual([(t.name, t.dims, t.data) for t in parsed.tensors],
                             [(b"a", (3,), b"x" * 12), (b"b", (4, 2), b"y" * 16)])
            self.assertEqual([name for name, _, _ in parsed.keys], [b"general.alignment", b"list"])
            self.assertEqual(blob[parsed.start("b"):parsed.start("b") + 16], b"y" * 16)


if __name__ == "__main__":
    unittest.main()
