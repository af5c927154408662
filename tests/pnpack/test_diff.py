"""diff: in which tensors two models differ, in how many weights, and where first.

Proves counts and first places against differences that the tests made, for every type that is decoded and for those that
are not, across packed and unpacked tensors, files and shards, GGUF and safetensors; that keys count; and exit statuses.
"""

import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import gguf_testing as testing  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import BF16, F16, F32, F64, P12, PN3T, PN4T, Q8_0, Key, Tensor  # noqa: E402
from gguf_testing import P12_KEYS, bf16, f16, f32, p12  # noqa: E402
from tool import BAD_INPUT, SAMPLE, USAGE, ToolTest, contents, main, some  # noqa: E402

ST_SAMPLE = SAMPLE.with_suffix(".safetensors")
PN_KEYS = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference")]
FLIP = 0x40


def changed(tensor, at, mask=FLIP):
    """The tensor with bits flipped in the bytes at these places."""
    data = bytearray(tensor.data)
    for place in [at] if isinstance(at, int) else at:
        data[place] ^= mask
    return Tensor(tensor.name, tensor.dims, tensor.type, bytes(data))


def packed(tensor):
    return Tensor(tensor.name, tensor.dims, P12, oracle.p12_pack(tensor.data))


class DiffTest(ToolTest):
    def model(self, name, tensors, keys=(), **layout):
        return self.write(name, tensors if isinstance(tensors, bytes) else gguf.build(tensors, keys, **layout))

    def same(self, a, b):
        for first, second in ((a, b), (b, a)):
            document = self.done_json("diff", first, second)
            self.assertTrue(all(t["equal"] for t in document["tensors"]))
            self.assertFalse(any({"first", "different", "reason"} & t.keys() for t in document["tensors"]), document)
            self.assertNotIn("first", document)
            self.assertNotIn("warnings", document)
            self.assertIn("no difference", self.done("diff", first, second).out.decode())
        return document

    def differ(self, a, b):
        """{name: entry} of the tensors that differ, from the first's side; the other side names the same."""
        document = self.says_no("diff", a, b)
        shown = {t["name"]: t for t in document["tensors"] if not t["equal"]}
        other = self.says_no("diff", b, a)
        self.assertEqual({t["name"] for t in other["tensors"] if not t["equal"]}, set(shown))
        for t in other["tensors"]:
            if not t["equal"] and t["type_in"] != "-" and t["type_out"] != "-":
                self.assertEqual(t.get("different"), shown[t["name"]].get("different"))
        for entry in shown.values():
            self.assertTrue(entry["reason"])
            self.assertEqual(entry["first"]["tensor"], entry["name"])
        if shown:
            self.assertEqual(document["first"], next(t["first"] for t in document["tensors"] if not t["equal"]))
        return shown

    def counts(self, a, b, blob, name, different, element=None, block=None, unit=None):
        """Tensor `name` differs in so many weights, first at this element (or block) of the first model, whose file is `blob`;
        unit: (weights, bytes) that lie together in the file."""
        shown = self.differ(a, b)[name]
        self.assertEqual(shown["different"], different)
        self.assertEqual((shown["first"].get("element"), shown["first"].get("block")), (element, block))
        weights, size = unit
        step = element // weights if element is not None else block
        self.assertEqual(shown["first"]["offset"], gguf.parse(blob).start(name) + step * size)
        return shown


class Equal(DiffTest):
    def tensors(self):
        return [f32("f32", (320, 2)), f16("f16", (320, 1)), bf16("bf16", (256, 2)), f32("norm", (5,)),
                Tensor("q8", (32, 2), Q8_0, b"q" * 68), Tensor("empty", (0, 3), F32), Tensor("mystery", (64, 1), 42, b"m" * 64),
                testing.quantized(f32("pn3t", (320, 1)), "pn3t"), testing.quantized(f32("pn4t", (320, 1)), "pn4t"),
                f32("scalar", (), weights=[1.0]), p12("p12", (256, 2))]

    def test_equal_files(self):
        keys = [Key("general.name", gguf.STRING, "x")] + P12_KEYS + PN_KEYS
        a = self.model("a.gguf", self.tensors(), keys)
        self.same(a, a)
        self.same(a, self.model("b.gguf", self.tensors(), keys))
        before = contents(self.folder)
        self.done("diff", a, self.path("b.gguf"), "--threads", 1, "--quiet")
        self.assertEqual(contents(self.folder), before)

    def test_what_makes_no_difference(self):
        tensors = self.tensors()[:6]
        keys = [Key("general.name", gguf.STRING, "x"), Key("z", gguf.U8, 1)]
        a = self.model("a.gguf", tensors, keys)
        self.same(a, self.model("v2.gguf", tensors, keys, version=2))
        self.same(a, self.model("unpadded.gguf", tensors, keys, final_padding=False))
        self.same(a, self.model("order.gguf", tensors[::-1], keys[::-1]))
        self.same(a, self.model("wide.gguf", tensors, keys, alignment=32, fill=b"\xAA"))

    def test_sample(self):
        self.same(SAMPLE, SAMPLE)
        self.same(ST_SAMPLE, ST_SAMPLE)

    def test_models_without_tensors(self):
        self.same(self.model("a.gguf", []), self.model("b.gguf", []))


class Weights(DiffTest):
    PLAIN = {F32: 4, F16: 2, BF16: 2, F64: 8, gguf.I8_TENSOR: 1, gguf.I32_TENSOR: 4}

    def test_one_weight(self):
        for type_id, size in self.PLAIN.items():
            tensor = Tensor("w", (37, 5), type_id, random.Random(type_id).randbytes(185 * size))
            other = [f32("before", (3, 2)), tensor, f32("after", (3,))]
            blob = gguf.build(other)
            a = self.model("a.gguf", blob)
            for element in some((0, 36, 37, 100, 184)):
                for byte in (0, size - 1):
                    b = self.model("b.gguf", [other[0], changed(tensor, element * size + byte, 1), other[2]])
                    shown = self.counts(a, b, blob, "w", 1, element, unit=(1, size))
                    self.assertIn("element %d (row %d, column %d)" % (element, element // 37, element % 37), shown["reason"])
                    self.assertEqual(list(self.differ(a, b)), ["w"])

    def test_many_weights(self):
        for type_id, size in self.PLAIN.items():
            tensor = Tensor("w", (100, 100), type_id, random.Random(type_id).randbytes(10000 * size))
            places = sorted(random.Random(1).sample(range(77, 10000), 1234))
            blob = gguf.build([tensor])
            flipped = changed(tensor, [p * size + p % size for p in places])
            self.counts(self.model("a.gguf", blob), self.model("b.gguf", [flipped]), blob, "w", 1234, places[0], unit=(1, size))
            every = Tensor("w", (100, 100), type_id, bytes(b ^ 1 for b in tensor.data))
            self.counts(self.path("a.gguf"), self.model("b.gguf", [every]), blob, "w", 10000, 0, unit=(1, size))

    def test_bits_count_and_not_numbers(self):
        for a, b in ((0x00000000, 0x80000000), (0x7FC00000, 0x7FC00001), (0x7FC00000, 0xFFC00000)):
            one, two = (Tensor("w", (3, 1), F32, struct.pack("<3I", 1, bits, 2)) for bits in (a, b))
            blob = gguf.build([one])
            self.counts(self.model("a.gguf", blob), self.model("b.gguf", [two]), blob, "w", 1, 1, unit=(1, 4))
        self.same(self.path("a.gguf"), self.path("a.gguf"))  # a NaN is equal to itself

    def test_1d_and_scalar_tensors(self):
        tensors = [f32("norm", (300,)), f32("scalar", (), weights=[3.0])]
        blob = gguf.build(tensors)
        a = self.model("a.gguf", blob)
        self.counts(a, self.model("b.gguf", [changed(tensors[0], 4 * 299), tensors[1]]), blob, "norm", 1, 299, unit=(1, 4))
        self.counts(a, self.model("b.gguf", [tensors[0], changed(tensors[1], 0)]), blob, "scalar", 1, 0, unit=(1, 4))

    def test_several_tensors(self):
        tensors = [bf16(name, (256, 2), i) for i, name in enumerate("abcd")]
        a = self.model("a.gguf", tensors)
        b = self.model("b.gguf", [tensors[0], changed(tensors[1], [5, 9]), tensors[2], changed(tensors[3], [0, 2, 1000])])
        shown = self.differ(a, b)
        self.assertEqual({name: (t["different"], t["first"]["element"]) for name, t in shown.items()}, {"b": (2, 2), "d": (3, 0)})
        self.assertIn("2 of 4 tensors and 0 keys differ", self.expect(1, "diff", a, b).out.decode())

    def test_a_large_tensor_and_threads(self):
        # longer than what is read at a time
        data = oracle.gaussian_bf16(256 * 64, 1) * 400
        tensor = Tensor("w", (256, 64 * 400), BF16, data)
        places = [5_000_000, 5_000_001, 6_553_599]
        blob = gguf.build([tensor])
        a, b = self.model("a.gguf", blob), self.model("b.gguf", [changed(tensor, [2 * p for p in places], 1)])
        for threads in (1, 2, 7, 64):
            shown = self.says_no("diff", a, b, "--threads", threads)["tensors"][0]
            self.assertEqual((shown["different"], shown["first"]["element"]), (3, places[0]))


class Blocks(DiffTest):
    """Types with blocks: packed ones are compared by the weights that they decode to, others by block."""

    def test_p12(self):
        tensor = bf16("w", (512, 3), 1)
        weights = oracle.u16s(tensor.data)
        a, b = packed(tensor), None
        places = [3, 300, 301, 900, 1535]
        for place in places:
            weights[place] ^= 1
        b = packed(Tensor("w", (512, 3), BF16, oracle.u16_bytes(weights)))
        blob = gguf.build([a], P12_KEYS)
        self.counts(self.model("a.gguf", blob), self.model("b.gguf", [b], P12_KEYS), blob, "w", 5, 3, unit=(256, 392))

    def test_p12_with_another_base(self):
        # one weight far away: another base and other codes, but one weight that differs
        weights = [(120 + i % 16) << 7 for i in range(256)]
        other = list(weights)
        other[77] = 9 << 7
        blob = gguf.build([packed(Tensor("w", (256, 1), BF16, oracle.u16_bytes(weights)))], P12_KEYS)
        b = [packed(Tensor("w", (256, 1), BF16, oracle.u16_bytes(other)))]
        self.counts(self.model("a.gguf", blob), self.model("b.gguf", b, P12_KEYS), blob, "w", 1, 77, unit=(256, 392))

    def test_p12_against_bf16(self):
        tensor, norm = bf16("w", (512, 3), 1), f32("norm", (5,))
        a = self.model("a.gguf", [tensor, norm])
        blob = gguf.build([packed(tensor), norm], P12_KEYS)
        b = self.model("b.gguf", blob)
        for first, second in ((a, b), (b, a)):
            shown = self.differ(first, second)
            self.assertEqual(list(shown), ["w"])
            self.assertEqual(shown["w"]["different"], 0)
            self.assertIn("all weights are equal", shown["w"]["reason"])
            self.assertIn("BF16_P12", shown["w"]["reason"])
        # and with weights that changed
        places = [255, 256, 700, 1535]
        other = self.model("other.gguf", [changed(tensor, [2 * p for p in places], 1), norm])
        self.counts(b, other, blob, "w", 4, 255, unit=(256, 392))
        self.counts(other, b, other.read_bytes(), "w", 4, 255, unit=(1, 2))
        self.assertNotIn("all weights", self.differ(b, other)["w"]["reason"])

    def test_pack_then_diff(self):
        self.done("pack", SAMPLE, self.path("packed.gguf"))
        shown = self.differ(SAMPLE, self.path("packed.gguf"))
        self.assertEqual({name: t["different"] for name, t in shown.items()}, {"blk.0.ffn_down.weight": 0, "blk.5.ffn_down.weight": 0})
        self.done("unpack", self.path("packed.gguf"), self.path("back.gguf"))
        self.same(SAMPLE, self.path("back.gguf"))

    def test_pn(self):
        for to, block in (("pn3t", 80), ("pn4t", 64)):
            kind = oracle.KINDS[to]
            tensor = testing.quantized(f32("w", (320, 4), 1), to)
            blob = gguf.build([tensor], PN_KEYS)
            a = self.model("a.gguf", blob)
            codes = oracle.pn_codes(kind, tensor.data[34 * 7:34 * 8])
            for change, places in (("codes", [5, 6, block - 1]), ("scale", None)):
                scale = struct.unpack("<H", tensor.data[34 * 7:34 * 7 + 2])[0]
                own = list(codes)
                if change == "codes":
                    for place in places:
                        own[place] = (own[place] + 1) % (2 * kind.zero)
                else:
                    scale ^= 1
                data = tensor.data[:34 * 7] + oracle.pn_block_bytes(kind, scale, own) + tensor.data[34 * 8:]
                before, after = (oracle.f32_bytes(oracle.pn_decode(kind, d)) for d in (tensor.data, data))
                differing = [i for i in range(1280) if before[4 * i:4 * i + 4] != after[4 * i:4 * i + 4]]
                self.assertTrue(places is None or [p + 7 * block for p in places] == differing)
                b = self.model("b.gguf", [Tensor("w", (320, 4), tensor.type, data)], PN_KEYS)
                self.counts(a, b, blob, "w", len(differing), differing[0], unit=(block, 34))

    def test_pn_blocks_that_mean_the_same(self):
        kind = oracle.PN4T
        one = oracle.pn_block_bytes(kind, oracle.fp16_bits(1.0), [8 + 2 * (i % 4) for i in range(64)])
        two = oracle.pn_block_bytes(kind, oracle.fp16_bits(2.0), [8 + i % 4 for i in range(64)])
        a = self.model("a.gguf", [Tensor("w", (64, 2), PN4T, one + one)])
        b = self.model("b.gguf", [Tensor("w", (64, 2), PN4T, one + two)])
        shown = self.differ(a, b)["w"]
        self.assertEqual((shown["different"], shown["first"].get("block")), (0, 1))
        self.assertEqual(shown["first"]["offset"], gguf.parse(a.read_bytes()).start("w") + 34)

    def test_blocks_that_are_not_valid(self):
        # nothing can be counted, but the block that differs is named
        tensor = p12("w", (256, 3))
        bad = changed(tensor, 392 + 1, 7)
        a, b = self.model("a.gguf", [tensor], P12_KEYS), self.model("b.gguf", [bad], P12_KEYS)
        shown = self.differ(a, b)["w"]
        self.assertNotIn("different", shown)
        self.assertEqual(shown["first"].get("block"), 1)
        self.same(b, self.model("c.gguf", [bad], P12_KEYS))
        tensor = testing.quantized(f32("w", (320, 2)), "pn3t")
        bad = Tensor("w", (320, 2), PN3T, tensor.data[:34 * 5] + b"\x00\x7c" + tensor.data[34 * 5 + 2:])
        a, b = self.model("a.gguf", [tensor]), self.model("b.gguf", [bad])
        shown = self.differ(a, b)["w"]
        self.assertNotIn("different", shown)
        self.assertEqual(shown["first"].get("block"), 5)

    def test_an_invalid_p12_block_against_bf16(self):
        tensor = bf16("w", (256, 3))
        a, b = self.model("a.gguf", [tensor]), self.model("b.gguf", [changed(packed(tensor), 392 + 1, 7)], P12_KEYS)
        for first, second in ((a, b), (b, a)):
            shown = self.differ(first, second)["w"]
            self.assertNotIn("different", shown)
            self.assertNotIn("all weights are equal", shown["reason"])

    def test_types_that_are_not_decoded(self):
        tensor = Tensor("w", (64, 4), Q8_0, random.Random(1).randbytes(8 * 34))
        blob = gguf.build([tensor])
        a, b = self.model("a.gguf", blob), self.model("b.gguf", [changed(tensor, [34 * 3, 34 * 3 + 33, 34 * 4, 34 * 7 + 5])])
        shown = self.counts(a, b, blob, "w", 3, block=3, unit=(32, 34))
        self.assertIn("3 of 8 blocks", shown["reason"])

    def test_blocks_far_inside_a_large_tensor(self):
        # what is read at a time is no multiple of 34 bytes
        for blocks, places in ((125000, [123360, 123361, 124999]), (260000, [246721, 246722, 259999])):
            tensor = Tensor("w", (32, blocks), Q8_0, bytes(34 * blocks))
            flipped = changed(tensor, [34 * p + byte for p in places for byte in range(34)])
            blob = gguf.build([tensor])
            self.counts(self.model("a.gguf", blob), self.model("b.gguf", [flipped]), blob, "w", len(places),
                        block=places[0], unit=(32, 34))

    def test_unknown_types(self):
        def unknown(data):
            return [Tensor("m", (64, 1), 42, data), f32("after", (3,))]

        a = self.model("a.gguf", unknown(b"m" * 64))
        start = gguf.parse(a.read_bytes()).start("m")
        self.same(a, self.model("b.gguf", unknown(b"m" * 64)))
        shown = self.differ(a, self.model("b.gguf", unknown(b"m" * 37 + b"n" + b"m" * 26)))["m"]
        self.assertEqual(shown["first"]["offset"], start + 37)
        self.assertIn("37", shown["reason"])
        self.assertNotIn("different", shown)
        shown = self.differ(a, self.model("b.gguf", unknown(b"m" * 96)))["m"]
        self.assertEqual(shown["first"]["offset"], start + 64)
        self.assertIn("64", shown["reason"])
        self.assertIn("96", shown["reason"])
        self.assertNotIn("original", shown["reason"], "none of the two is an original")
        shown = self.differ(a, self.model("b.gguf", [Tensor("m", (64, 1), 43, b"m" * 64), f32("after", (3,))]))["m"]
        self.assertIn("unknown(42)", shown["reason"])
        self.assertIn("unknown(43)", shown["reason"])


class Tensors(DiffTest):
    def test_another_shape(self):
        tensors = [f32("w", (320, 2), 1), f32("v", (64, 1), 2)]
        a = self.model("a.gguf", tensors)
        for dims in ((640, 1), (640,), (2, 320), (320, 2, 1), (320, 1, 2)):
            shown = self.differ(a, self.model("b.gguf", [Tensor("w", dims, F32, tensors[0].data), tensors[1]]))
            self.assertEqual(list(shown), ["w"])
            self.assertIn("shape", shown["w"]["reason"])
            self.assertNotIn("different", shown["w"])
        self.assertIn("shape", self.differ(a, self.model("b.gguf", [f32("w", (320, 3), 1), tensors[1]]))["w"]["reason"])

    def test_another_type(self):
        tensors = [bf16("w", (320, 2), 1), f32("v", (64, 1), 2)]
        a = self.model("a.gguf", tensors)
        others = [Tensor("w", (320, 2), F16, tensors[0].data), f32("w", (320, 2)), testing.quantized(tensors[0], "pn4t"),
                  testing.quantized(tensors[0], "q8_0")]
        for other in others:
            shown = self.differ(a, self.model("b.gguf", [other, tensors[1]]))
            self.assertEqual(list(shown), ["w"])
            self.assertEqual((shown["w"]["type_in"], shown["w"]["type_out"]), ("BF16", testing.TYPE_NAMES[other.type]))
            self.assertEqual((shown["w"]["bytes_in"], shown["w"]["bytes_out"]), (1280, len(other.data)))
            for word in ("BF16", testing.TYPE_NAMES[other.type]):
                self.assertIn(word, shown["w"]["reason"])
            self.assertNotIn("different", shown["w"])

    def test_empty_tensors(self):
        a = self.model("a.gguf", [Tensor("e", (256, 0), BF16)])
        self.assertIn("F32", self.differ(a, self.model("b.gguf", [Tensor("e", (256, 0), F32)]))["e"]["reason"])
        self.assertEqual(list(self.differ(a, self.model("b.gguf", [Tensor("e", (256, 0), P12)], P12_KEYS))), ["e"])

    def test_tensors_that_only_one_has(self):
        tensors = [f32(name, (8, 2), i) for i, name in enumerate("abcd")]
        a, b = self.model("a.gguf", tensors[:3]), self.model("b.gguf", tensors[1:])
        shown = self.differ(a, b)
        self.assertEqual(list(shown), ["a", "d"])
        self.assertEqual((shown["a"]["type_in"], shown["a"]["type_out"], shown["a"]["bytes_out"]), ("F32", "-", 0))
        self.assertEqual((shown["d"]["type_in"], shown["d"]["type_out"], shown["d"]["bytes_in"]), ("-", "F32", 0))
        self.assertIn("first", shown["a"]["reason"])
        self.assertIn("second", shown["d"]["reason"])
        document = self.says_no("diff", a, b)
        self.assertEqual([t["name"] for t in document["tensors"]], ["a", "b", "c", "d"])
        start = gguf.parse(a.read_bytes()).start("a")
        self.assertEqual(document["first"], {"tensor": "a", "offset": start})
        shown = self.differ(self.model("none.gguf", []), b)
        self.assertEqual(list(shown), ["b", "c", "d"])


class Keys(DiffTest):
    def warned(self, a, b, names):
        document = self.says_no("diff", a, b)
        self.assertTrue(all(t["equal"] for t in document["tensors"]))
        self.assertEqual(len(document["warnings"]), len(names))
        for name, text in zip(names, document["warnings"]):
            self.assertIn(name, text)
        result = self.expect(1, "diff", a, b)
        self.assertEqual([line for line in result.text.splitlines()], ["pnpack: warning: " + text for text in document["warnings"]])
        self.assertIn("%d keys differ" % len(names), result.out.decode())

    def test_gguf(self):
        tensors = [f32("w", (64, 1))]
        one, text, some = Key("a", gguf.U32, 1), Key("b", gguf.STRING, "x"), Key("list", gguf.ARRAY, (gguf.U8, [1, 2]))
        a = self.model("a.gguf", tensors, [one, text, some])
        for keys, names in (([Key("a", gguf.U32, 2), text, some], ["a"]), ([Key("a", gguf.I32, 1), text, some], ["a"]),
                            ([one, text, Key("list", gguf.ARRAY, (gguf.U8, [1, 3]))], ["list"]), ([one, some], ["b"]),
                            ([one, text, some, Key("new", gguf.U8, 1)], ["new"]), ([], ["a", "b", "list"])):
            b = self.model("b.gguf", tensors, keys)
            self.warned(a, b, names)
            self.warned(b, a, names)

    def test_safetensors(self):
        tensors = [st.Tensor("w", "F32", (1, 64), bytes(256))]
        a = self.write("a.safetensors", st.build(tensors, {"format": "pt", "x": "1"}))
        self.same(a, self.write("b.safetensors", st.build(tensors, {"x": "1", "format": "pt"}, separators=(", ", ": "))))
        for metadata, names in (({"format": "pt", "x": "2"}, ["x"]), ({"format": "pt"}, ["x"]),
                                ({"format": "pt", "x": "1", "y": ""}, ["y"]), (None, ["format", "x"])):
            b = self.write("b.safetensors", st.build(tensors, metadata))
            self.warned(a, b, names)
            self.warned(b, a, names)
        self.same(self.write("a.safetensors", st.build(tensors)), self.write("b.safetensors", st.build(tensors, {})))

    def test_keys_of_ours_do_not_count(self):
        # what they say shows in the tensors
        tensors = [testing.quantized(f32("w", (64, 1)), "pn4t")]
        a = self.model("a.gguf", tensors, PN_KEYS)
        self.same(a, self.model("b.gguf", tensors))

    def test_keys_and_tensors(self):
        tensor = f32("w", (64, 1))
        a = self.model("a.gguf", [tensor], [Key("a", gguf.U32, 1)])
        b = self.model("b.gguf", [changed(tensor, 8)], [Key("a", gguf.U32, 2)])
        document = self.says_no("diff", a, b)
        self.assertEqual((document["tensors"][0]["different"], len(document["warnings"])), (1, 1))


class SeveralFiles(DiffTest):
    def setUp(self):
        super().setUp()
        self.shards = [[bf16("a", (256, 2), 1), f32("n", (5,), 2)], [bf16("b", (256, 3), 3)]]
        self.st_shards = [[st.Tensor(t.name, testing.TYPE_NAMES[t.type], tuple(t.shape), t.data) for t in tensors]
                          for tensors in self.shards]

    def test_against_each_other(self):
        one = st.write_model(self.path("one"), st.split_gguf(self.shards))
        self.same(one, st.write_model(self.path("two"), st.split_gguf(self.shards)))
        self.same(self.path("one"), self.path("two") / st.shard_name("model", 1, 2, "gguf"))
        one = st.write_model(self.path("st1"), st.sharded(self.st_shards, metadata={"format": "pt"}))
        self.same(one, st.write_model(self.path("st2"), st.sharded(self.st_shards, metadata={"format": "pt"})))
        self.same(one, self.path("st2") / "model.safetensors.index.json")

    def test_a_weight(self):
        one = st.write_model(self.path("one"), st.split_gguf(self.shards))
        other = [self.shards[0], [changed(self.shards[1][0], [600, 602], 1)]]
        shown = self.differ(one, st.write_model(self.path("two"), st.split_gguf(other)))
        self.assertEqual(list(shown), ["b"])
        name = st.shard_name("model", 2, 2, "gguf")
        self.assertEqual(shown["b"]["file"], name)
        offset = gguf.parse((one / name).read_bytes()).start("b") + 600
        self.assertEqual(shown["b"]["different"], 2)
        self.assertEqual(shown["b"]["first"], {"tensor": "b", "file": name, "element": 300, "offset": offset})

    def test_against_one_file(self):
        # the tensors count, wherever they lie
        whole = self.write("whole.safetensors", st.build([t for tensors in self.st_shards for t in tensors]))
        self.same(st.write_model(self.path("sharded"), st.sharded(self.st_shards)), whole)
        self.same(st.write_model(self.path("three"), st.sharded([self.st_shards[1], self.st_shards[0][:1], self.st_shards[0][1:]])), whole)
        other = [self.st_shards[0], [st.Tensor("b", "BF16", (3, 256), changed(self.shards[1][0], 600, 1).data)]]
        shown = self.differ(st.write_model(self.path("other"), st.sharded(other)), whole)
        self.assertEqual({name: (t["different"], t["first"]["element"]) for name, t in shown.items()}, {"b": (1, 300)})

    def test_gguf_against_one_file(self):
        # a split model has keys that say so; its tensors are equal
        whole = self.model("whole.gguf", [t for tensors in self.shards for t in tensors])
        document = self.says_no("diff", st.write_model(self.path("split"), st.split_gguf(self.shards)), whole)
        self.assertEqual([t["equal"] for t in document["tensors"]], [True] * 3)
        self.assertTrue(all("split." in text for text in document["warnings"]), document["warnings"])

    def test_the_same_metadata_in_shards_and_in_one_file(self):
        whole = self.write("whole.safetensors", st.build([t for tensors in self.st_shards for t in tensors], {"format": "pt"}))
        self.same(st.write_model(self.path("sharded"), st.sharded(self.st_shards, metadata={"format": "pt"})), whole)


class Kinds(DiffTest):
    def test_gguf_against_safetensors(self):
        # keys are of different kinds and not compared
        tensors = [bf16("w", (256, 2), 1), f32("n", (5,), 2), f16("h", (4, 3, 2), 3)]
        a = self.model("a.gguf", tensors, [Key("general.name", gguf.STRING, "x")])
        other = [st.Tensor(t.name, testing.TYPE_NAMES[t.type], tuple(t.shape), t.data) for t in tensors]
        self.same(a, self.write("b.safetensors", st.build(other, {"format": "pt"})))
        other[0] = st.Tensor("w", "BF16", (2, 256), changed(tensors[0], [18, 400], 1).data)
        b = self.write("b.safetensors", st.build(other))
        self.counts(a, b, a.read_bytes(), "w", 2, 9, unit=(1, 2))
        shown = self.differ(b, a)["w"]
        self.assertEqual(shown["first"]["offset"], st.parse(b.read_bytes()).start("w") + 18)

    def test_packed_tensors_in_both_kinds(self):
        weights = bf16("w", (256, 2), 1)
        one = self.model("one.gguf", [weights])
        two = self.write("two.safetensors", st.build([st.Tensor("w", "BF16", (2, 256), weights.data)]))
        for verb in (("pack",), ("quantize", "--type", "pn4t")):
            for source in (one, two):
                self.done(verb[0], source, self.path(source.name + ".out"), *verb[1:], "--force")
            self.same(self.path("one.gguf.out"), self.path("two.safetensors.out"))

    def test_rotated_models(self):
        tensors = [f32("w", (256, 2), 1), f32("token_embd.weight", (256, 1), 2)]
        source = self.model("in.gguf", tensors)
        self.done("quantize", source, self.path("plain"), "--type", "pn4t")
        for size in (64, 128):
            self.done("quantize", source, self.path("rotated-%d" % size), "--type", "pn4t", "--rotate", size)
        self.same(self.path("rotated-64"), self.path("rotated-64"))
        # what is rotated has other weights, whatever its blocks; embeddings are not
        for a, b, sizes in (("plain", "rotated-64", (0, 64)), ("rotated-64", "rotated-128", (64, 128))):
            shown = self.differ(self.path(a), self.path(b))
            self.assertEqual(list(shown), ["w"])
            for size in sizes:
                self.assertIn("by %d" % size, shown["w"]["reason"])
            self.assertNotIn("different", shown["w"])
        keys = PN_KEYS + [Key("pn.hadamard.block_size", gguf.U32, 64),
                          Key("pn.hadamard.exclude", gguf.ARRAY, (gguf.STRING, ["token_embd.weight"]))]
        blocks = [testing.quantized(tensor, "pn4t") for tensor in tensors]
        self.same_bytes(self.path("plain"), gguf.build(blocks, PN_KEYS))
        self.assertEqual(list(self.differ(self.path("plain"), self.model("claims.gguf", blocks, keys))), ["w"])


class Usage(DiffTest):
    def test_statuses(self):
        good = self.model("good.gguf", [f32("w", (64, 1))])
        for words in ((), (good,), (good, good, good)):
            self.fails(USAGE, "diff", *words)
        bad = self.write("bad.gguf", good.read_bytes()[:-9])
        none = self.path("none.gguf")
        for path in (bad, none, self.write("text", b"hello world"), self.write("nothing", b"")):
            self.fails(BAD_INPUT, "diff", good, path, names=(path.name,))
            self.fails(BAD_INPUT, "diff", path, good, names=(path.name,))
        self.path("folder").mkdir()
        self.fails(BAD_INPUT, "diff", self.path("folder"), good, names=("folder",))

    def test_keys_of_the_document(self):
        tensors = [f32("a", (64, 1), 1), f32("b", (64, 2), 2)]
        a, b = self.model("a.gguf", tensors), self.model("b.gguf", [tensors[0], changed(tensors[1], 4 * 70)])
        document = self.says_no("diff", a, b)
        self.assertEqual(list(document), ["verb", "input", "other", "tensors", "totals", "first", "ok"])
        self.assertEqual((document["verb"], document["input"], document["other"]), ("diff", str(a), str(b)))
        always = {"name", "shape", "type_in", "type_out", "bytes_in", "bytes_out", "equal"}
        self.assertEqual(set(document["tensors"][0]), always)
        self.assertEqual(set(document["tensors"][1]), always | {"reason", "different", "first"})
        self.assertEqual((document["totals"]["tensors"], document["totals"]["bytes_in"]), (2, 768))
        offset = gguf.parse(a.read_bytes()).start("b") + 280
        self.assertEqual(document["first"], {"tensor": "b", "element": 70, "offset": offset})

    def test_the_table(self):
        tensors = [f32("a", (64, 1), 1), f32("b", (64, 2), 2)]
        a, b = self.model("a.gguf", tensors), self.model("b.gguf", [tensors[0], changed(tensors[1], [280, 300])])
        text = self.expect(1, "diff", a, b).out.decode()
        self.assertRegex(text, r"(?m)^a .* ok$")
        self.assertRegex(text, r"(?m)^b .* NO: 2 of 128 weights differ, the first is element 70 \(row 1, column 6\)$")
        self.assertIn("1 of 2 tensors and 0 keys differ", text)
        self.assertEqual(self.expect(1, "diff", a, b, "--quiet").out, b"")


if __name__ == "__main__":
    main()
