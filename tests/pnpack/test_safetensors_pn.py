"""quantize, unpack --to and --rotate: pn3t and pn4t in safetensors files, and rotated weights in both kinds of file,
against the tests' own quantizer and rotation.

Proves whole files, the texts of our metadata, when the input's header comes back verbatim, and that errors name
tensor and element.
"""

import dataclasses
import math
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import expected_models as models  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from oracle import KINDS  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from safetensors_testing import SAMPLE, THREADS, SafetensorsTest, bf16, f16, f32  # noqa: E402
from tool import NO, USAGE, main, mentions_element  # noqa: E402

K = {"pn3t": 320, "pn4t": 128}


class PnTest(SafetensorsTest):
    def quantizes(self, tensors, kind, metadata=None, rotation=0, **layout):
        """quantize writes what it must; check and verify say yes. Returns the document."""
        original = st.build(tensors, metadata, **layout)
        source, out = self.write("in.safetensors", original), self.path("out")
        rotate = ("--rotate", rotation) if rotation else ()
        document = self.done_json("quantize", source, out, "--type", kind, "--force", *rotate)
        before = st.parse(original).tensors
        after = [models.quantized_tensor(tensor, KINDS[kind], rotation) for tensor in before]
        models.is_made_from(self, out.read_bytes(), original, after,
                            models.quantized_keys(before, after, KINDS[kind], st.parse(original).header, rotation))
        self.judge_document(document, before, after, kind)
        self.done("check", out)
        self.done("verify", out, source)
        return document

    def unpacks(self, tensors, kind, to, metadata=None, rotation=0):
        """unpack of the file that quantizes() left: decoded tensors, the input's metadata, and its header verbatim if no
        type has changed."""
        out, back = self.path("out"), self.path("back")
        original = st.parse(self.path("in.safetensors").read_bytes())
        self.done("unpack", out, back, "--force", *(("--to", to) if to else ()))
        wanted, quantized = [], st.parse(out.read_bytes()).tensors
        for tensor, q in zip(tensors, quantized):
            if q.dtype != tensor.dtype:
                turned = rotation and not tensor.name.endswith("embed_tokens.weight")
                data = models.decoded_data(KINDS[kind], q.data, to or "f32", rotation if turned else 0)
                tensor = dataclasses.replace(tensor, dtype=(to or "f32").upper(), data=data)
            wanted.append(tensor)
        restored = st.parse(back.read_bytes())
        models.has_data(self, restored, original, wanted)
        self.assertEqual(restored.metadata or [], original.metadata or [])
        self.assertEqual(restored.names, original.names)
        if all(w.dtype == t.dtype for w, t in zip(wanted, tensors)):
            self.same_bytes(restored.header, original.header, "header")
        else:
            self.assertEqual(restored.data_start % 8, 0)


class Files(PnTest):
    def source_types(self, k):
        return [f32("f32", (3, k)), f16("f16", (2, k)), bf16("bf16", (2, 2, k)), f32("norm", (k,)),
                f32("four", (1, 2, 1, k), 5),
                f32("odd", (2, k + 1)), Tensor("i8", "I8", (2, k), b"i" * 2 * k),
                Tensor("new", "NEW", (1, k), b"m" * 9),
                Tensor("empty", "F32", (0, k)), f32("scalar", ())]

    def test_every_source_type(self):
        for kind, k in K.items():
            tensors = self.source_types(k)
            for metadata in (None, {"format": "pt", "z": "\u00fc"}):
                document = self.quantizes(tensors, kind, metadata)
                for to in (None, "f32", "f16", "bf16"):
                    self.unpacks(tensors, kind, to, metadata)
            self.assertEqual([t["name"] for t in document["tensors"] if t["type_out"] == kind],
                             ["f32", "f16", "bf16", "four"])
            for shown, tensor in list(zip(document["tensors"], tensors))[:3]:
                weights = models.weights_of(tensor)
                wanted = oracle.nrmse(weights,
                                      oracle.pn_decode(KINDS[kind], models.quantized_tensor(tensor, KINDS[kind]).data))
                self.assertAlmostEqual(shown["nrmse"] / wanted, 1, delta=1e-4)
            self.assertTrue(document["tensors"][5]["reason"])

    def test_the_header_comes_back_where_the_types_do(self):
        for dtype, make in (("f32", f32), ("f16", f16), ("bf16", bf16)):
            tensors = [make("a", (2, 128), 1), f32("norm", (5,)), make("b", (1, 64), 2)]
            text = st.header_text(tensors, st.layout(tensors)[0], {"k": "v"}, metadata_at=1,
                                  separators=(" ,\n ", " : ")) + " " * 77
            self.quantizes(tensors, "pn4t", header=text)
            for to in ("f32", "f16", "bf16"):
                self.unpacks(tensors, "pn4t", to)
                same = st.parse(self.path("back").read_bytes()).header.decode() == text
                self.assertEqual(same, to == dtype)

    def test_texts(self):
        tensors = [bf16("b", (2, 64)), f32("n", (3,)), f32("a", (1, 2, 128))]
        self.quantizes(tensors, "pn4t", {"mine": "1"})
        parsed = st.parse(self.path("out").read_bytes())
        self.assertEqual([key for key, _ in parsed.metadata],
                         ["mine", "pn.version", "pn.tensors", "pn.search", "p12.header"])
        self.assertEqual([parsed.value(key) for key in ("pn.version", "pn.search")], ["0", "reference"])
        self.assertEqual(parsed.value("pn.tensors"), '{"b":["pn4t",[2,64],"BF16"],"a":["pn4t",[1,2,128],"F32"]}')
        self.assertEqual(parsed.value("p12.header").encode(), st.parse(self.path("in.safetensors").read_bytes()).header)
        self.assertEqual([(t.dtype, t.shape) for t in parsed.tensors],
                         [("U8", (2, 34)), ("F32", (3,)), ("U8", (1, 2, 68))])

    def test_orders(self):
        tensors = [f32("a", (1, 64), rank=2), bf16("b", (2, 64), rank=0), f32("c", (3,), rank=1)]
        self.quantizes(tensors, "pn4t", {"k": "v"}, metadata_at=3)
        self.unpacks(tensors, "pn4t", "f16")
        self.quantizes([Tensor("x", "U8", (3,), b"xyz")] + tensors, "pn4t", pad=1)  # unaligned
        self.unpacks([Tensor("x", "U8", (3,), b"xyz")] + tensors, "pn4t", "bf16")

    def test_row_lengths(self):
        for kind, fits in (("pn3t", {320, 80}), ("pn4t", {896, 4096, 4544, 128, 320})):
            tensors = [f32("k%d" % k, (2, k), k) for k in (1, 80, 128, 288, 320, 896, 4096, 4544)]
            document = self.quantizes(tensors, kind)
            self.assertEqual({t["shape"][1] for t in document["tensors"] if t["type_out"] == kind}, fits)
            self.says_no("quantize", self.path("in.safetensors"), self.path("none"), "--type", kind, "--strict")
            self.assertFalse(self.path("none").exists())

    def test_nothing_to_quantize_is_a_byte_copy(self):
        blob = st.build([f32("n", (128,)), f32("odd", (2, 63)), Tensor("i", "I32", (1, 64), b"i" * 256)], {"a": "b"})
        source, out = self.write("in.safetensors", blob), self.path("out")
        self.assertEqual(self.done_json("quantize", source, out, "--type", "pn4t")["totals"]["converted"], 0)
        self.same_bytes(out, blob)
        self.says_no("quantize", source, self.path("strict"), "--type", "pn4t", "--strict")

    def test_sample(self):
        for threads in THREADS:
            out = self.path("q%d" % threads)
            document = self.done_json("quantize", SAMPLE, out, "--type", "pn4t", "--threads", threads)
            self.same_bytes(out, self.path("q1").read_bytes(), "%d threads" % threads)
        self.assertEqual(document["totals"]["converted"], 3)
        self.done("verify", out, SAMPLE)
        before = st.parse(SAMPLE.read_bytes())
        for tensor in st.parse(out.read_bytes()).tensors:
            if tensor.dtype == "U8":
                weights = [oracle.bf16_value(bits) for bits in oracle.u16s(before.tensor(tensor.name).data[-2 * 384:])]
                wanted = oracle.pn_quantize(oracle.PN4T, weights)
                self.same_bytes(tensor.data[-len(wanted):], wanted, tensor.name)
        self.assertEqual(self.done_json("quantize", SAMPLE, self.path("none"), "--type", "pn3t")["totals"]["converted"],
                         0)
        self.same_bytes(self.path("none"), SAMPLE.read_bytes())

    def test_quantized_input_is_refused(self):
        self.quantizes([f32("w", (2, 64))], "pn4t")
        self.rejected(self.path("out"), "quantize", "--type", "pn4t", names=("pn.",))
        self.rejected(self.path("out"), "pack", names=("pn.",))

    def test_inspect(self):
        self.quantizes([f32("w", (2, 64)), f32("n", (3,))], "pn4t")
        document = self.done_json("inspect", self.path("out"))
        self.assertEqual([(t["type"], t["shape"], t["bytes"]) for t in document["tensors"]],
                         [("pn4t", [2, 64], 68), ("F32", [3], 12)])

    def test_verify_finds_another_block(self):
        self.quantizes([f32("a", (1, 64)), bf16("b", (4, 320))], "pn4t")
        blob = bytearray(self.path("out").read_bytes())
        start = st.parse(bytes(blob)).start("b") + 34 * 11
        blob[start + 20] ^= 1
        document = self.says_no("verify", self.write("flipped", bytes(blob)), self.path("in.safetensors"))
        self.assertEqual([t["equal"] for t in document["tensors"]], [True, False])
        self.assertEqual([document["first"][key] for key in ("tensor", "block")], ["b", 11])
        self.assertIn(document["first"]["offset"], range(start, start + 34))


class Mix(PnTest):
    """Rules that give each tensor its type."""

    def test_two_types_in_one_file(self):
        tensors = [f32("keep.me", (2, 128)), bf16("x.big", (1, 320)), f16("y", (2, 64)), f32("norm", (5,)),
                   f32("z.big", (2, 640), 4)]
        rules = self.write("rules.txt", b"# exceptions first\nkeep.*  keep\n*.big  K=320  pn3t\n*  pn4t\n")
        original = st.build(tensors, {"format": "pt"})
        source, out, back = self.write("in.safetensors", original), self.path("out"), self.path("back")
        kinds = {"x.big": oracle.PN3T, "y": oracle.PN4T, "z.big": oracle.PN4T}
        after = [models.quantized_tensor(t, kinds[t.name]) if t.name in kinds else t for t in tensors]
        listed = {t.name: [kinds[t.name].name, list(t.shape), t.dtype] for t in tensors if t.name in kinds}
        keys = [("pn.version", "0"), ("pn.tensors", listed), ("pn.search", "reference"),
                ("p12.header", st.parse(original).header.decode())]
        for threads in THREADS:
            self.done("quantize", source, out, "--mix", rules, "--force", "--threads", threads)
            models.is_made_from(self, out.read_bytes(), original, after, keys)
        self.done("check", out)
        self.done("verify", out, source)
        self.done("unpack", out, back, "--to", "bf16")
        wanted = [dataclasses.replace(t, dtype="BF16", data=models.decoded_data(kinds[t.name], a.data, "bf16"))
                  if t.name in kinds else t
                  for t, a in zip(tensors, after)]
        models.has_data(self, st.parse(back.read_bytes()), st.parse(original), wanted)


class FromPacked(PnTest):
    """A packed file is quantized like the file that it was packed from."""

    def test_both_kinds_in_one_file(self):
        tensors = [bf16("both", (1, 1280)), bf16("four", (2, 256), 2), f32("n", (3,)), bf16("k320", (2, 320), 3)]
        original = st.build(tensors, {"format": "pt"})
        source, packed, out, back = self.write("in.safetensors",
                                               original), self.path("packed"), self.path("out"), self.path("back")
        self.done("pack", source, packed)
        for kind in ("pn3t", "pn4t"):
            self.done("quantize", packed, out, "--type", kind, "--force")
            after = [models.quantized_tensor(tensor, KINDS[kind]) for tensor in tensors]
            stays = [after[i] is tensors[i] and i == 1 for i in range(4)]
            after = [models.packed_tensor(t) if stay else t for t, stay in zip(after, stays)]
            parsed = st.parse(out.read_bytes())
            self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in parsed.tensors],
                             [(t.name, t.dtype, tuple(t.shape), t.data) for t in after])
            names = [key for key, _ in parsed.metadata]
            p12 = ["p12.version", "p12.tensors"] if any(stays) else []
            self.assertEqual(names, ["format"] + p12 + ["pn.version", "pn.tensors", "pn.search", "p12.header"])
            if p12:
                self.assertEqual(parsed.value("p12.tensors"), '["four"]')
            self.done("check", out)
            self.done("verify", out, source)
            # BF16 comes back under the header of the file before it was packed
            self.done("unpack", out, back, "--to", "bf16", "--force")
            restored = st.parse(back.read_bytes())
            self.same_bytes(restored.header, st.parse(original).header)
            wanted = [dataclasses.replace(t, data=models.decoded_data(KINDS[kind], a.data, "bf16"))
                      if a.dtype == "U8" and not stay else t for t, a, stay in zip(tensors, after, stays)]
            models.has_data(self, restored, st.parse(original), wanted)

    def test_the_same_blocks(self):
        source, packed = self.write("in.safetensors", st.build([bf16("w", (2, 1280))])), self.path("packed")
        self.done("pack", source, packed)
        for kind in KINDS:
            self.done("quantize", source, self.path("a"), "--type", kind, "--force")
            self.done("quantize", packed, self.path("b"), "--type", kind, "--force")
            a, b = (st.parse(self.path(name).read_bytes()) for name in "ab")
            self.assertEqual(a.tensors[0].data, b.tensors[0].data)
            self.assertEqual(a.value("pn.tensors"), b.value("pn.tensors"))


class Errors(PnTest):
    def test_nan_and_infinity(self):
        for dtype, size, patterns in (("F32", 4, (0x7FC00000, 0x7F800001, 0xFF800000)),
                                      ("F16", 2, (0x7E00, 0x7C01, 0xFC00)),
                                      ("BF16", 2, (0x7FC0, 0x7F81, 0xFF80))):
            for bits, (row, column) in zip(patterns, ((0, 0), (2, 319), (1, 317))):
                data = bytearray(3 * 320 * size)
                at = (row * 320 + column) * size
                data[at:at + size] = bits.to_bytes(size, "little")
                source = self.write("bad",
                                    st.build([f32("fine", (1, 320)), Tensor("evil", dtype, (3, 320), bytes(data))]))
                for kind in KINDS:
                    error = self.rejected(source, "quantize", "--type", kind, names=("evil",))
                    self.assertTrue(mentions_element(error["message"], row * 320 + column, row, column), error)

    def test_every_scale_overflows(self):
        weights = [1.0] * 192
        weights[101] = 2e6
        source = self.write("bad", st.build([Tensor("evil", "F32", (3, 64), oracle.f32_bytes(weights))]))
        self.assertIn("block 1", self.rejected(source, "quantize", "--type", "pn4t", names=("evil",))["message"])

    def test_f16_overflow_names_the_element(self):
        weights = [0.0] * 128
        weights[64 + 37] = 70000.0
        tensors = [Tensor("evil", "F32", (2, 64), oracle.f32_bytes(weights))]
        self.quantizes(tensors, "pn4t")
        error = self.rejected(self.path("out"), "unpack", "--to", "f16", names=("evil",))
        self.assertTrue(mentions_element(error["message"], 64 + 37, 1, 37), error)
        for to in ("f32", "bf16"):
            self.unpacks(tensors, "pn4t", to)

    def test_invalid_blocks(self):
        for kind, k in K.items():
            self.quantizes([f32("evil", (2, k))], kind)
            blob = self.path("out").read_bytes()
            start, block = st.parse(blob).start("evil") + 34, bytearray(34)
            block[1] = 0x7C
            damaged = self.write("damaged", blob[:start] + bytes(block) + blob[start + 34:])
            first = self.says_no("check", damaged)["first"]
            self.assertEqual([first[key] for key in ("tensor", "block", "offset")], ["evil", 1, start])
            self.rejected(damaged, "unpack", names=("evil",))


class Rotation(PnTest):
    """Hadamard: rotated blocks and keys in both kinds of file, and the way back."""

    def gguf_file(self, tensors, kind, rotation):
        after = []
        for tensor in tensors:
            q = expected.quantized_tensor(tensor, kind)
            if q is not tensor and tensor.name != "token_embd.weight":
                q = dataclasses.replace(q,
                                        data=oracle.pn_quantize(kind,
                                                                oracle.rotate(expected.weights_of(tensor), rotation)))
            after.append(q)
        excluded = [t.name for t, a in zip(tensors, after) if a is not t and t.name == "token_embd.weight"]
        keys = [gguf.Key("z", gguf.U8, 1), gguf.Key("pn.version", gguf.U32, 0),
                gguf.Key("pn.search", gguf.STRING, "reference"),
                gguf.Key("pn.hadamard.block_size", gguf.U32, rotation),
                gguf.Key("pn.hadamard.exclude", gguf.ARRAY, (gguf.STRING, excluded))]
        return after, excluded, gguf.build(after, keys)

    @staticmethod
    def gguf_f32(name, dims, seed):
        return gguf.Tensor(name, dims, gguf.F32, oracle.f32_bytes(oracle.gaussian(math.prod(dims), seed, 0.05)))

    def test_gguf(self):
        # token embeddings in the middle, at the end, absent, and of a K that does not fit
        for kind, rotation, k, embedding in (("pn4t", 64, 128, (128, 3)), ("pn4t", 256, 512, None),
                                             ("pn3t", 64, 320, (320, 2)),
                                             ("pn3t", 128, 640, (648, 1)), ("pn4t", 1024, 1024, (1024, 1)),
                                             ("pn4t", 512, 512, (512, 2)),
                                             ("pn4t", 128, 128, (128, 2))):
            tensors = [self.gguf_f32("a.weight", (k, 3), 1), self.gguf_f32("norm", (k,), 2),
                       self.gguf_f32("odd", (k + 1, 2), 3),
                       gguf.Tensor("b.weight", (k, 2, 1), gguf.BF16, oracle.gaussian_bf16(2 * k, 4, 0.05)),
                       self.gguf_f32("x.token_embd.weight", (k, 1), 6)]
            if embedding:
                tensors.insert(2, self.gguf_f32("token_embd.weight", embedding, 5))
            source, out = self.write("in.gguf", gguf.build(tensors, [gguf.Key("z", gguf.U8, 1)])), self.path("out")
            after, excluded, wanted = self.gguf_file(tensors, KINDS[kind], rotation)
            self.assertEqual(len(excluded), int(embedding is not None and embedding[0] == k))
            self.done("quantize", source, out, "--type", kind, "--rotate", rotation, "--force")
            self.same_bytes(out, wanted, "%s rotated by %d" % (kind, rotation))
            self.done("check", out)
            self.done("verify", out, source)
            for to, type_id in (("f32", gguf.F32), ("f16", gguf.F16), ("bf16", gguf.BF16)):
                self.done("unpack", out, self.path("back"), "--to", to, "--force")
                restored = [t if a is t else dataclasses.replace(
                    t, type=type_id, data=models.decoded_data(KINDS[kind], a.data, to,
                                                              0 if t.name in excluded else rotation))
                    for t, a in zip(tensors, after)]
                self.same_bytes(self.path("back"), gguf.build(restored, [gguf.Key("z", gguf.U8, 1)]), to)

    def test_safetensors(self):
        for kind, rotation, k in (("pn4t", 64, 128), ("pn4t", 128, 128), ("pn3t", 64, 320), ("pn4t", 256, 256)):
            tensors = [bf16("model.embed_tokens.weight", (2, k)), f32("a.weight", (2, k)), f32("norm", (k,)),
                       f16("b", (1, 2, k)),
                       f32("embed_tokens.weight", (1, k)), f32("embed_tokens.weight.x", (1, k))]
            self.quantizes(tensors, kind, {"format": "pt"}, rotation)
            parsed = st.parse(self.path("out").read_bytes())
            self.assertEqual([key for key, _ in parsed.metadata],
                             ["format", "pn.version", "pn.tensors", "pn.search", "pn.hadamard.block_size",
                              "pn.hadamard.exclude", "p12.header"])
            self.assertEqual(parsed.value("pn.hadamard.block_size"), str(rotation))
            self.assertEqual(parsed.value("pn.hadamard.exclude"), '["model.embed_tokens.weight","embed_tokens.weight"]')
            for to in ("f32", "f16", "bf16"):
                self.unpacks(tensors, kind, to, rotation=rotation)
        self.quantizes([f32("a.weight", (2, 64))], "pn4t", rotation=64)
        self.assertEqual(st.parse(self.path("out").read_bytes()).value("pn.hadamard.exclude"), "[]")

    def test_rotation_changes_blocks_and_threads_do_not(self):
        for threads in THREADS:
            self.done("quantize", SAMPLE, self.path("q%d" % threads), "--type", "pn4t", "--rotate", 128, "--threads",
                      threads)
            self.same_bytes(self.path("q%d" % threads), self.path("q1").read_bytes())
            self.done("unpack", self.path("q%d" % threads), self.path("u%d" % threads), "--to", "bf16", "--threads",
                      threads)
            self.same_bytes(self.path("u%d" % threads), self.path("u1").read_bytes())
        self.done("verify", self.path("q1"), SAMPLE)
        self.done("quantize", SAMPLE, self.path("plain"), "--type", "pn4t")
        rotated, plain = (st.parse(self.path(name).read_bytes()).tensors for name in ("q1", "plain"))
        for a, b in zip(rotated, plain):
            self.assertEqual(a.data != b.data, a.dtype == "U8", a.name)
        # and the weights come back as near as without
        row = slice(-2 * 384, None)
        name = "encoder.layer.0.attention.self.query.weight"
        before, after = ([oracle.bf16_value(bits)
                          for bits in oracle.u16s(st.parse(path.read_bytes()).tensor(name).data[row])]
                         for path in (SAMPLE, self.path("u1")))
        self.assertLess(oracle.nrmse(before, after), 0.12)

    def test_verify_reads_the_keys(self):
        weights = [self.gguf_f32("a.weight", (256, 2), 1)]
        source, out = self.write("in.gguf", gguf.build(weights)), self.path("out")
        self.done("quantize", source, out, "--type", "pn4t", "--rotate", 64)
        self.done("verify", out, source)
        key = gguf.string("pn.hadamard.block_size") + struct.pack("<II", gguf.U32, 64)
        blob = out.read_bytes()
        self.assertEqual(blob.count(key), 1)
        for size in (0, 128):
            self.expect(NO, "verify", self.write("other", blob.replace(key, key[:-4] + struct.pack("<I", size))),
                        source)
        other = self.write("other.gguf", gguf.build([self.gguf_f32("a.weight", (256, 2), 9)]))
        self.assertEqual(self.says_no("verify", out, other)["first"]["tensor"], "a.weight")

    def test_usage(self):
        fine, wide = f32("fine", (1, 128)), f32("evil", (1, 192))
        source = self.write("in.safetensors", st.build([fine, wide]))
        for words in (("--rotate", "63"), ("--rotate", "32"), ("--rotate", "96"), ("--rotate", "2048"),
                      ("--rotate", "x"), ("--rotate", "-64"),
                      ("--rotate",)):
            self.fails(USAGE, "quantize", source, self.path("out"), "--type", "pn4t", *words)
        # 128 does not divide 192, which pn4t takes
        self.fails(USAGE, "quantize", source, self.path("out"), "--type", "pn4t", "--rotate", 128, names=("evil",))
        tensors = [gguf.Tensor("evil", (192, 1), gguf.F32, wide.data)]
        self.fails(USAGE, "quantize", self.write("in.gguf", gguf.build(tensors)), self.path("out"), "--type", "pn4t",
                   "--rotate", 128,
                   names=("evil",))
        self.assertFalse(self.path("out").exists())
        # a tensor that stays as it is need not be divisible
        self.quantizes([fine, f32("odd", (1, 100))], "pn4t", rotation=128)
        imatrix = self.write("imatrix.dat", struct.pack("<ii4siii", 1, 4, b"fine", 1, 1, 0) + struct.pack("<ii", 1, 0))
        self.fails(USAGE, "quantize", source, self.path("no"), "--type", "pn4t", "--rotate", 64, "--imatrix", imatrix)
        self.assertFalse(self.path("no").exists())

    def test_nan_and_overflow(self):
        # an infinity would spread over its segment: the element named is the one in the file
        for value in (math.nan, math.inf):
            weights = [0.5] * 256
            weights[128 + 70] = value
            source = self.write("bad", st.build([Tensor("evil", "F32", (2, 128), oracle.f32_bytes(weights))]))
            error = self.rejected(source, "quantize", "--type", "pn4t", "--rotate", "64", names=("evil",))
            self.assertTrue(mentions_element(error["message"], 198, 1, 70), error)
        source = self.write("bad", st.build([Tensor("evil", "F32", (1, 64), oracle.f32_bytes([3e38] * 64))]))
        self.rejected(source, "quantize", "--type", "pn4t", "--rotate", "64", names=("evil",))


if __name__ == "__main__":
    main()
