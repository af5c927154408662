"""The examples that read model files: what they print is what the files hold, by the other example and by pnpack.

PNPACK and PN_MULTIPLY_GGUF name the programs."""

import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
sys.dont_write_bytecode = True
import read_safetensors  # noqa: E402

SAMPLE = EXAMPLES / "data/sample-bf16"
TENSOR = "blk.0.ffn_down.weight"  # in the GGUF file; in the other:
NAME = "encoder.layer.0.output.dense.weight"


def run(*command, ok=True):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True)
    if ok != (done.returncode == 0):
        raise AssertionError("%s: %d\n%s%s" % (command, done.returncode, done.stdout, done.stderr))
    return done.stdout + done.stderr


def pnpack(*arguments):
    return run(os.environ["PNPACK"], *arguments)


def raw_tensor(path, name):
    """Bytes of a tensor, by a reader of its own."""
    blob = path.read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    entry = read_safetensors.json.loads(blob[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    return blob[8 + size + begin:8 + size + end]


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_read_safetensors_gives_the_weights_back(self):
        packed = self.folder / "packed.safetensors"
        pnpack("pack", f"{SAMPLE}.safetensors", packed)
        tensors = {t.name: t for t in read_safetensors.read(packed)}
        self.assertEqual(len(tensors), 2)
        original = raw_tensor(pathlib.Path(f"{SAMPLE}.safetensors"), NAME)
        self.assertEqual(tensors[NAME].shape, [384, 1536])
        got = b"".join(struct.pack("<%df" % len(row), *row) for row in tensors[NAME].rows())
        self.assertEqual(got, b"".join(b"\0\0" + original[i:i + 2] for i in range(0, len(original), 2)))

    def test_read_safetensors_decodes_pn(self):
        wide = self.folder / "wide.safetensors"  # rows of 320 weights, which fit both types
        numbers = [random.Random(1).gauss(0, 0.02) for _ in range(7 * 320)]
        header = b'{"w":{"dtype":"F32","shape":[7,320],"data_offsets":[0,8960]}}  '
        wide.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2240f", *numbers))
        for form in ("pn3t", "pn4t"):
            packed, plain = self.folder / f"{form}.safetensors", self.folder / f"{form}-f32.safetensors"
            pnpack("quantize", wide, packed, "--type", form)
            pnpack("unpack", packed, plain)
            tensors = list(read_safetensors.read(packed))
            self.assertTrue(tensors, form)
            for tensor in tensors:
                expected = raw_tensor(plain, tensor.name)
                got = b"".join(struct.pack("<%df" % len(row), *row) for row in tensor.rows())
                self.assertEqual(got, expected, tensor.name)

    def test_multiply_gguf(self):
        packed, twin = self.folder / "packed.gguf", self.folder / "packed.safetensors"
        pnpack("pack", f"{SAMPLE}.gguf", packed)
        pnpack("pack", f"{SAMPLE}.safetensors", twin)
        output = run(os.environ["PN_MULTIPLY_GGUF"], packed, TENSOR)
        self.assertIn("384 x 1536, 12.25 bits per weight", output)
        y = [float(v) for v in re.search(r"y = (\S+), (\S+), (\S+), ", output).groups()]
        rows = next(t for t in read_safetensors.read(twin) if t.name == NAME).rows()
        for got, row in zip(y, rows):
            products = [w * math.cos(i) for i, w in enumerate(row)]
            self.assertLess(abs(got - sum(products)), 2e-6 * sum(map(abs, products)) + 1e-5 * abs(got))

    def test_multiply_gguf_refuses(self):
        packed = self.folder / "packed.gguf"
        pnpack("pack", f"{SAMPLE}.gguf", packed)
        program = os.environ["PN_MULTIPLY_GGUF"]
        self.assertIn("there is no tensor nobody", run(program, packed, "nobody", ok=False))
        self.assertIn("is not packed", run(program, packed, "blk.0.attn_q.weight", ok=False))
        self.assertIn("no file that pnpack packed", run(program, f"{SAMPLE}.gguf", TENSOR, ok=False))
        blob = packed.read_bytes()
        for size in (0, 3, 20, 300, len(blob) - 2000000):
            short = self.folder / "short.gguf"
            short.write_bytes(blob[:size])
            run(program, short, TENSOR, ok=False)

    def test_read_safetensors_as_a_program(self):
        packed = self.folder / "packed.safetensors"
        pnpack("pack", f"{SAMPLE}.safetensors", packed)
        output = run(sys.executable, EXAMPLES / "read_safetensors.py", packed)
        self.assertRegex(output, r"encoder\.layer\.0\.output\.dense\.weight +BF16_P12 384 x 1536 ")


if __name__ == "__main__":
    unittest.main()
