"""Holds the tests' own safetensors files, split sets, rotation and rounding to facts that can be checked without the
tool: written files read back, every rule of the format broken once, the rotation against the matrix itself.
"""

import json
import math
import os
import random
import struct
import sys
import unittest
from fractions import Fraction

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from safetensors_files import Tensor  # noqa: E402


def two():
    return [Tensor("a", "F32", (2, 3), bytes(range(24))), Tensor("b", "U8", (5,), b"12345")]


class Written(unittest.TestCase):
    def test_a_usual_file(self):
        blob = st.build(two(), {"format": "pt", "x": "y"})
        self.assertEqual(blob[8:].split(b"}}")[0] + b"}}",
                         b'{"__metadata__":{"format":"pt","x":"y"},"a":{"dtype":"F32",'
                         b'"shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[5],"data_offsets":[24,29]}}')
        parsed = st.parse(blob)
        self.assertEqual(parsed.data_start % 8, 0)
        self.assertEqual(parsed.metadata, [("format", "pt"), ("x", "y")])
        self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in parsed.tensors],
                         [(t.name, t.dtype, t.shape, t.data) for t in two()])
        self.assertEqual(blob, st.build(two(), [("format", "pt"), ("x", "y")]))

    def test_orders(self):
        tensors = two() + [Tensor("c", "U8", (0,)), Tensor("d", "U8", (), b"d")]
        for rank, tensor in zip((3, 1, 2, 0), tensors):
            tensor.rank = rank
        parsed = st.parse(st.build(tensors, {}, metadata_at=2))
        self.assertEqual(parsed.names, ["a", "b", "__metadata__", "c", "d"])
        self.assertEqual(parsed.data_order(), ["d", "b", "c", "a"])
        self.assertEqual(parsed.tensor("b").data, b"12345")
        self.assertEqual(parsed.start("b"), parsed.data_start + 1)

    def test_layouts_that_are_valid(self):
        usual = st.parse(st.build(two()))
        text = usual.header.rstrip()
        for header in (text, text + b" " * 5, json.dumps(json.loads(text), indent=2),
                       text.replace(b'"a"', b'"\\u0061"')):
            parsed = st.parse(st.build(two(), header=header))
            self.assertEqual([(t.name, t.data) for t in parsed.tensors], [(t.name, t.data) for t in usual.tensors])
        self.assertEqual(st.parse(st.build([])).tensors, [])

    def test_every_rule(self):
        text = st.parse(st.build(two())).header.rstrip().decode()
        bad = {"cut": st.build(two())[:-1], "trailing": st.build(two()) + b"\0", "empty": b"",
               "short": b"\1" + b"\0" * 6,
               "long header": st.build(two(), length=2**64 - 1), "a space first": st.build(two(), header=" " + text),
               "zeros after it": st.build(two(), header=text + "\0\0"), "an array": st.build(two(), header="[]"),
               "twice": st.build(two(), header=text.replace('"b"', '"a"')),
               "utf-8": st.build(two(), header=text.encode() + b"\xff"),
               "twice in an entry": st.build(two(), header=text.replace('"dtype"', '"shape":[1],"dtype"')),
               "a hole": st.build([two()[0], Tensor("b", "U8", (4,), b"2345", offsets=(25, 29))], data=bytes(29)),
               "an overlap": st.build([two()[0], Tensor("b", "U8", (6,), b"", offsets=(23, 29))], data=bytes(29)),
               "shape": st.build([Tensor("a", "F32", (2, 2), bytes(24))]), "metadata": st.build(two(), '{"a":1}')}
        for label, entry in {"negative": (-1, 3), "float": (0, 4.0), "huge": (0, 2**64), "true": (False, 4),
                             "back": (4, 0)}.items():
            bad[label] = st.build([Tensor("a", "U8", (4,), b"", offsets=entry)], data=b"1234")
        for gone in ("dtype", "shape", "data_offsets"):
            bad["no " + gone] = st.build(two(), header=text.replace('"%s"' % gone, '"other"', 1))
        for label, blob in bad.items():
            with self.subTest(label), self.assertRaises(ValueError):
                st.parse(blob)

    def test_models_in_several_files(self):
        files = st.sharded([two()[:1], two()[1:]], metadata={"format": "pt"})
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        self.assertEqual(sorted(files), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                         "model.safetensors.index.json"])
        self.assertEqual(json.loads(files["model.safetensors.index.json"]),
                         {"metadata": {"total_size": 29}, "weight_map": dict(zip("ab", names))})
        self.assertEqual([st.parse(files[name]).tensors[0].name for name in names], ["a", "b"])
        self.assertNotIn("total_size", st.index({}, None))
        self.assertIn('"total_size": 1e3', st.index({}, "1e3"))
        split = st.split_gguf([[gguf.Tensor("a", (1,), gguf.F32, b"abcd")], []], [gguf.Key("k", gguf.U8, 1)])
        self.assertEqual(sorted(split), ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"])
        first, second = (gguf.parse(split[name]) for name in sorted(split))
        self.assertEqual(first.names(), ["k", "split.no", "split.count", "split.tensors.count"])
        self.assertEqual(second.keys, [(b"split.no", gguf.U16, b"\1\0"), (b"split.count", gguf.U16, b"\2\0"),
                                       (b"split.tensors.count", gguf.I32, b"\1\0\0\0")])


class Arithmetic(unittest.TestCase):
    def test_rotation_against_the_matrix(self):
        rng = random.Random(5)
        for block in (64, 128, 256, 512, 1024):
            values = [float(rng.randint(-1000, 1000)) for _ in range(block)]
            rotated = oracle.rotate_exactly(values, block)
            for i in (0, 1, 2, block // 2, block - 1, rng.randrange(block)):
                exact = sum(Fraction(v) * (-1) ** bin(i & j).count("1") for j, v in enumerate(values))
                self.assertAlmostEqual(rotated[i], float(exact) / math.sqrt(block), delta=1e-9)
            for a, b in zip(oracle.rotate_exactly(rotated, block), values):
                self.assertAlmostEqual(a, b, delta=1e-9)
        self.assertEqual(oracle.rotate([8.0] + [0.0] * 127, 64), [1.0] * 64 + [0.0] * 64)

    def test_bf16_of_every_fp32_class(self):
        table = {0x7F800001: 0x7FC0, 0xFF800001: 0xFFC0, 0x7FC12345: 0x7FC1, 0xFFFFFFFF: 0xFFFF, 0x7F800000: 0x7F80,
                 0xFF800000: 0xFF80, 0x7F7F7FFF: 0x7F7F, 0x7F7F8000: 0x7F80, 0x3F808000: 0x3F80, 0x3F818000: 0x3F82,
                 0x00008000: 0x0000, 0x80008001: 0x8001, 0x80000000: 0x8000}
        for bits, wanted in table.items():
            self.assertEqual(oracle.bf16_from_f32_bits(bits), wanted, hex(bits))
        for bits, wanted in {0x7C01: 0x7FC0, 0xFDFF: 0xFFFF, 0x7E08: 0x7FC1, 0x7C00: 0x7F80, 0xFC00: 0xFF80,
                             0x8000: 0x8000,
                             0x3C00: 0x3F80, 0x3C04: 0x3F80, 0x3C0C: 0x3F82, 0x0001: 0x3380, 0x7BFF: 0x4780}.items():
            self.assertEqual(oracle.bf16_from_f16_bits(bits), wanted, hex(bits))

    def test_rounding_a_double_once(self):
        rng = random.Random(6)
        for _ in range(5000):
            value = oracle.f32_from_bits(rng.getrandbits(32) & 0xFF7FFFFF)
            self.assertEqual(oracle.bf16_bits_once(value), oracle.bf16_from_f32_bits(oracle.f32_bits(value)),
                             value.hex())
        # just above a tie, by less than an fp32 can hold
        self.assertEqual(oracle.bf16_bits_once(1 + 2**-8 + 2**-40), 0x3F81)
        self.assertEqual(oracle.bf16_bits_once(1 + 2**-8), 0x3F80)
        self.assertEqual(oracle.bf16_bits_once(-0.0), 0x8000)
        self.assertEqual(struct.unpack("<f", struct.pack("<I", oracle.bf16_bits_once(2.0**-133) << 16))[0], 2.0**-133)


if __name__ == "__main__":
    unittest.main()
