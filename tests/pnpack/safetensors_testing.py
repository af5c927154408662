"""What the tests of safetensors files share: tensors to test with, and the judgement of a packed file."""

import math

import expected_models as models
import oracle
import safetensors_files as st
from safetensors_files import Tensor
from tool import SOURCE_DIR, ToolTest

SAMPLE = SOURCE_DIR / "examples" / "data" / "sample-bf16.safetensors"
THREADS = (1, 2, 7, 64)


def bf16(name, shape, seed=1, **fields):
    return Tensor(name, "BF16", tuple(shape), oracle.gaussian_bf16(math.prod(shape), seed), **fields)


def f32(name, shape, seed=2, **fields):
    return Tensor(name, "F32", tuple(shape), oracle.f32_bytes(oracle.gaussian(math.prod(shape), seed)), **fields)


def f16(name, shape, seed=3):
    return Tensor(name, "F16", tuple(shape),
                  oracle.u16_bytes([oracle.fp16_bits(w) for w in oracle.gaussian(math.prod(shape), seed)]))


class SafetensorsTest(ToolTest):
    def judge_pack(self, original, *options):
        """pack writes what it must for `original`; check and verify say yes; unpack gives it back. Returns pack's
        document."""
        before = st.parse(original).tensors
        after = [models.packed_tensor(tensor) for tensor in before]
        source, packed, back = self.write("in.safetensors", original), self.path("packed"), self.path("back")
        document = self.done_json("pack", source, packed, "--force", *options)
        keys = models.packed_keys(before, after, st.parse(original).header)
        models.is_made_from(self, packed.read_bytes(), original, after, keys)
        self.assertIs(document["restores_identical"], True)
        self.judge_document(document, before, after)
        self.done("check", packed)
        self.done("verify", packed, source)
        self.done("unpack", packed, back, "--force")
        self.same_bytes(back, original, "restored file")
        self.same_bytes(source, original, "input")
        return document

    def judge_document(self, document, before, after, to="BF16_P12"):
        self.assertEqual([t["name"] for t in document["tensors"]], [t.name for t in before])
        for shown, a, b in zip(document["tensors"], after, before):
            self.assertEqual(shown["shape"], list(b.shape))
            self.assertEqual((shown["bytes_in"], shown["bytes_out"]), (len(b.data), len(a.data)), b.name)
            if b.dtype in st.BITS and st.BITS[b.dtype] >= 8:
                self.assertIn(shown["type_in"], (b.dtype, "unknown(%s)" % b.dtype))
            self.assertEqual(shown["type_out"], to if a.dtype != b.dtype else shown["type_in"])
            self.assertNotIn("file", shown)
        self.assertEqual(document["totals"]["converted"], sum(a.dtype != b.dtype for a, b in zip(after, before)))

    def round_trip(self, tensors, metadata=None, **layout):
        return self.judge_pack(st.build(tensors, metadata, **layout))
