"""pack --as bf16 and --format: files that do not come back as they were, because the user said so.

Proves the rounding of every class of F32 and F16, the key that tells of it, and that nothing is converted to another
kind of file when something would be lost.
"""

import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import expected_models as models  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from safetensors_testing import SafetensorsTest, bf16, f16, f32  # noqa: E402
from tool import NO, USAGE, main, mentions_element  # noqa: E402

SPECIAL_F32 = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFF800001, 0x7FC12345, 0xFFFFFFFF,
               0x7F7F7FFF,
               0x3F808000, 0x3F808001, 0x3F818000, 0xBF818000, 0x00008000, 0x00008001, 0x80018000, 0x007FFFFF,
               0x00000001]
SPECIAL_F16 = [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7E08, 0xFFFF, 0x3C00, 0x3C04, 0x3C0C, 0x0001, 0x83FF,
               0x0400, 0x7BFF,
               0xFBFF]


class AsBf16(SafetensorsTest):
    TENSORS = {"f32": f32("f32", (2, 256)), "f16": f16("f16", (2, 2, 256)), "bf16": bf16("bf16", (1, 256)),
               "norm": f32("norm", (256,)),
               "halfnorm": f16("halfnorm", (256,)), "odd": f32("odd", (3, 100)),
               "i8": Tensor("i8", "I8", (2, 256), b"i" * 512),
               "specials": Tensor("specials", "F32", (2, 9), struct.pack("<18I", *SPECIAL_F32)),
               "halves": Tensor("halves", "F16", (1, 16), oracle.u16_bytes(SPECIAL_F16))}

    def chosen(self, *names):
        return [self.TENSORS[name] for name in names]

    def rounded(self, tensors, rounded_from, metadata=None):
        original = st.build(tensors, metadata)
        source, packed, back = self.write("in.safetensors", original), self.path("packed"), self.path("back")
        document = self.done_json("pack", source, packed, "--as", "bf16", "--force")
        middle = [models.rounded_tensor(tensor) for tensor in tensors]
        after = [models.packed_tensor(tensor) for tensor in middle]
        keys = [("p12.version", "1"), ("p12.tensors", [a.name for a, m in zip(after, middle) if a is not m]),
                ("p12.rounded_from", rounded_from), ("p12.header", st.parse(original).header.decode())]
        models.is_made_from(self, packed.read_bytes(), original, after, keys)
        self.assertIs(document["restores_identical"], False)
        self.assertRegex(" ".join(document["warnings"]).lower(), "loss|lossy|round")
        for shown, tensor, m, a in zip(document["tensors"], tensors, middle, after):
            self.assertEqual((shown["type_in"], shown["type_out"]),
                             (tensor.dtype, "BF16_P12" if a is not m else m.dtype))
            self.assertEqual((shown["bytes_in"], shown["bytes_out"]), (len(tensor.data), len(a.data)))
        self.assertRegex(self.done("pack", source, packed, "--as", "bf16", "--force").text.lower(), "loss|lossy|round")
        self.done("check", packed)
        self.says_no("verify", packed, source)
        self.done_json("verify", packed, source, "--as", "bf16")
        # unpacking gives the rounded model, a valid file with the input's metadata
        self.done("unpack", packed, back, "--force")
        restored = st.parse(back.read_bytes())
        models.has_data(self, restored, st.parse(original), middle)
        self.assertEqual(restored.names, st.parse(original).names)
        self.assertEqual(restored.metadata or [], st.pairs_of(metadata or {}))
        return document

    def test_files(self):
        self.rounded(self.chosen("f32"), "F32")
        self.rounded(self.chosen("f16", "halfnorm", "norm", "halves"), "F16", {"format": "pt"})
        self.rounded(self.chosen("norm", "f32", "bf16", "i8", "specials", "odd"), "F32")
        self.rounded(self.chosen("halves", "f32", "bf16", "f16", "norm", "specials"), "mixed", {"a": "b", "c": "d"})

    def test_a_change_of_one_weight_is_seen(self):
        tensors = self.chosen("f32", "specials")
        source, packed = self.write("in.safetensors", st.build(tensors)), self.path("packed")
        self.done("pack", source, packed, "--as", "bf16")
        for name, element in (("f32", 300), ("specials", 12)):
            changed = [Tensor(t.name, t.dtype, t.shape, t.data) for t in tensors]
            tensor = next(t for t in changed if t.name == name)
            data = bytearray(tensor.data)
            data[4 * element + 2] ^= 1
            tensor.data = bytes(data)
            document = self.expect(NO, "verify", packed, self.write("other", st.build(changed)), "--as", "bf16",
                                   "--json").json
            self.assertEqual((document["first"]["tensor"], document["first"]["element"]), (name, element))

    def test_nothing_to_round(self):
        tensors = self.chosen("bf16", "norm", "i8")
        original = st.build(tensors)
        source, packed = self.write("in.safetensors", original), self.path("packed")
        document = self.done_json("pack", source, packed, "--as", "bf16")
        after = [models.packed_tensor(tensor) for tensor in tensors]
        models.is_made_from(self, packed.read_bytes(), original, after,
                            models.packed_keys(tensors, after, st.parse(original).header))
        self.assertIs(document["restores_identical"], True)
        self.done("unpack", packed, self.path("back"))
        self.same_bytes(self.path("back"), original)

    def test_without_it_nothing_is_rounded(self):
        blob = st.build(self.chosen("f32", "f16", "norm"))
        source, packed = self.write("in.safetensors", blob), self.path("packed")
        self.done("pack", source, packed)
        self.same_bytes(packed, blob)

    def test_a_finite_value_that_overflows(self):
        for bits in (0x7F7F8000, 0x7F7FFFFF, 0xFF7F8000):
            data = bytearray(self.TENSORS["f32"].data)
            data[4 * 300:4 * 301] = struct.pack("<I", bits)
            tensors = [Tensor("fine", "F32", (1, 256), self.TENSORS["f32"].data[:1024]),
                       Tensor("evil", "F32", (2, 256), bytes(data))]
            for blob in (st.build(tensors), gguf.build([gguf.Tensor("evil", (256, 2), gguf.F32, bytes(data))])):
                error = self.rejected(self.write("in.bad", blob), "pack", "--as", "bf16", names=("evil",))
                self.assertTrue(mentions_element(error["message"], 300, 1, 44), error)
        one = Tensor("norm", "F32", (2,), struct.pack("<2I", 0x7F7FFFFF, 0))  # 1-D tensors are not rounded
        self.done("pack", self.write("in.fine", st.build([one] + self.chosen("f32"))), self.path("out"), "--as", "bf16")

    def test_usage(self):
        source = self.write("in.safetensors", st.build(self.chosen("f32")))
        for words in (("--as", "f16"), ("--as", "f32"), ("--as",)):
            self.fails(USAGE, "pack", source, self.path("out"), *words)
        self.assertFalse(self.path("out").exists())

    def test_gguf(self):
        cases = {"F32": ("f32", "norm", "odd", "specials"), "F16": ("f16", "halves", "bf16"),
                 "mixed": ("halves", "f32", "bf16", "norm")}
        types = {"F32": gguf.F32, "F16": gguf.F16, "BF16": gguf.BF16}
        for rounded_from, names in cases.items():
            chosen, keys = self.chosen(*names), [gguf.Key("z", gguf.U8, 1)]
            original, middle = ([gguf.Tensor(t.name, tuple(reversed(t.shape)), types[t.dtype], t.data) for t in tensors]
                                for tensors in (chosen, [models.rounded_tensor(t) for t in chosen]))
            source, packed = self.write("in.gguf", gguf.build(original, keys)), self.path("packed")
            document = self.done_json("pack", source, packed, "--as", "bf16", "--force")
            ours = [gguf.Key("p12.version", gguf.U32, 1), gguf.Key("p12.type_id", gguf.U32, 126),
                    gguf.Key("p12.rounded_from", gguf.STRING, rounded_from)]
            self.same_bytes(packed, gguf.build([expected.packed_tensor(t) for t in middle], keys + ours), rounded_from)
            self.assertIs(document["restores_identical"], False)
            self.assertRegex(" ".join(document["warnings"]).lower(), "loss|lossy|round")
            self.says_no("verify", packed, source)
            self.done("verify", packed, source, "--as", "bf16")
            self.done("unpack", packed, self.path("back"), "--force")
            self.same_bytes(self.path("back"), gguf.build(middle, keys))


class OtherKind(SafetensorsTest):
    """Only what both kinds can say is converted."""

    def setUp(self):
        super().setUp()
        self.st = [f32("n", (3,)), bf16("w", (2, 256)), bf16("v", (1, 2, 2, 256), 4), f16("h", (2, 5)), f32("s", ()),
                   Tensor("i8", "I8", (2, 3), b"123456"), Tensor("i32", "I32", (3,), b"i" * 12),
                   Tensor("f64", "F64", (1,), b"d" * 8)]
        types = {"F32": gguf.F32, "F16": gguf.F16, "BF16": gguf.BF16, "I8": gguf.I8_TENSOR, "I32": gguf.I32_TENSOR,
                 "F64": gguf.F64}
        self.gguf = [gguf.Tensor(t.name, tuple(reversed(t.shape)), types[t.dtype], t.data) for t in self.st]
        self.pairs = [("general.architecture", "bert"), ("x", "\u00fc"), ("empty", "")]

    def test_safetensors_to_gguf(self):
        source, out = self.write("in.safetensors", st.build(self.st, self.pairs)), self.path("out.gguf")
        self.done("pack", source, out, "--format", "gguf")
        parsed = gguf.parse(out.read_bytes())
        self.assertEqual([(k, t, v) for k, t, v in parsed.keys],
                         [(key.encode(), gguf.STRING, gguf.string(value)) for key, value in self.pairs] +
                         [(b"p12.version", gguf.U32, b"\1\0\0\0"), (b"p12.type_id", gguf.U32, b"\x7e\0\0\0")])
        wanted = [expected.packed_tensor(t) for t in self.gguf]
        self.assertEqual([(t.name, t.dims, t.type, t.data) for t in parsed.tensors],
                         [(t.name.encode(), t.dims, t.type, t.data) for t in wanted])
        self.done("check", out)
        self.done("verify", out, source)
        self.done("unpack", out, self.path("back"))
        back = gguf.parse(self.path("back").read_bytes())
        self.assertEqual([(t.name, t.dims, t.type, t.data) for t in back.tensors],
                         [(t.name.encode(), t.dims, t.type, t.data) for t in self.gguf])

    def test_gguf_to_safetensors(self):
        keys = [gguf.Key(key, gguf.STRING, value) for key, value in self.pairs]
        source, out = self.write("in.gguf", gguf.build(self.gguf, keys)), self.path("out.safetensors")
        self.done("pack", source, out, "--format", "safetensors")
        parsed = st.parse(out.read_bytes())
        wanted = [models.packed_tensor(t) for t in self.st]
        self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in parsed.tensors],
                         [(t.name, t.dtype, tuple(t.shape), t.data) for t in wanted])
        self.assertEqual(parsed.metadata[:5], self.pairs + [("p12.version", "1"), ("p12.tensors", '["w","v"]')])
        self.done("check", out)
        self.done("verify", out, source)
        self.done("unpack", out, self.path("back"))
        back = st.parse(self.path("back").read_bytes())
        self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in back.tensors],
                         [(t.name, t.dtype, tuple(t.shape), t.data) for t in self.st])
        self.assertEqual(back.metadata, self.pairs)

    def test_quantized(self):
        source, out = self.write("in.safetensors", st.build(self.st)), self.path("out.gguf")
        self.done("quantize", source, out, "--type", "pn4t", "--format", "gguf")
        parsed = gguf.parse(out.read_bytes())
        self.assertEqual(parsed.names(), ["pn.version", "pn.search"])
        self.assertEqual([(t.type, t.data) for t in parsed.tensors],
                         [(t.type, t.data) for t in (expected.quantized_tensor(t, oracle.PN4T) for t in self.gguf)])
        self.done("verify", out, source)

    def test_the_same_kind_is_no_conversion(self):
        blob = st.build(self.st, self.pairs)
        source, out = self.write("in.safetensors", blob), self.path("out")
        self.done("pack", source, self.path("plain"))
        self.done("pack", source, out, "--format", "safetensors")
        self.same_bytes(out, self.path("plain").read_bytes())
        self.fails(USAGE, "pack", source, self.path("no"), "--format", "onnx")

    def test_what_would_be_lost_is_refused(self):
        wide, fine = Tensor("evil", "F32", (1, 1, 1, 1, 2), b"f" * 8), bf16("w", (2, 256))
        for tensor in (wide, Tensor("evil", "NEW", (2,), b"12"), Tensor("evil", "BOOL", (2,), b"\0\1"),
                       Tensor("evil", "F8_E4M3", (2,), b"12"), Tensor("evil", "U16", (2,), b"1234")):
            source = self.write("in.safetensors", st.build([fine, tensor]))
            self.rejected(source, "pack", "--format", "gguf", names=("evil",))
        for key in (gguf.Key("evil.key", gguf.U32, 1), gguf.Key("evil.key", gguf.ARRAY, (gguf.STRING, ["a"])),
                    gguf.Key("evil.key", gguf.BOOL, 1), gguf.Key("evil.key", gguf.STRING, b"\xff\xfe")):
            self.rejected(self.write("in.gguf", gguf.build(self.gguf, [key])), "pack", "--format", "safetensors",
                          names=("evil.key",))
        for tensor in (gguf.Tensor("evil", (32, 2), gguf.Q8_0, b"q" * 68), gguf.Tensor("evil", (4,), 42, b"m" * 32)):
            self.rejected(self.write("in.gguf", gguf.build(self.gguf + [tensor])), "pack", "--format", "safetensors",
                          names=("evil",))


if __name__ == "__main__":
    main()
