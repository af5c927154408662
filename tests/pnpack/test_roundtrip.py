"""pack, verify, unpack: whole files against files built by the tests' own writer, byte for byte.

Proves the facts of the sample, every shape and layout that a GGUF file may have, all key/value types, unknown tensor
types, blocks at the limit of three listed weights, and that restores_identical tells the truth.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import BF16, F16, F32, P12, Key, Tensor  # noqa: E402
from tool import BAD_INPUT, NO, SAMPLE, USAGE, ToolTest, main, run  # noqa: E402


def bf16(name, dims, seed=1):
    count = 1
    for dim in dims:
        count *= dim
    return Tensor(name, tuple(dims), BF16, oracle.gaussian_bf16(count, seed))


def f32(name, dims, seed=2):
    count = 1
    for dim in dims:
        count *= dim
    return Tensor(name, tuple(dims), F32, oracle.f32_bytes(oracle.gaussian(count, seed)))


class RoundTrip(ToolTest):
    def packs_to(self, original, wanted, *options, restores=True):
        """pack gives `wanted`, check and verify say yes, unpack gives `original`. Returns pack's document."""
        source, packed, back = self.write("in.gguf", original), self.path("packed.gguf"), self.path("back.gguf")
        document = self.done_json("pack", source, packed, "--force", *options)
        self.same_bytes(packed, wanted, "packed file")
        self.assertIs(document["restores_identical"], restores)
        self.done("check", packed)
        self.done("verify", packed, source)
        self.done("unpack", packed, back, "--force")
        if restores:
            self.same_bytes(back, original, "restored file")
        self.same_bytes(source, original, "input")
        return document

    def round_trip(self, tensors, keys=(), type_id=P12, options=(), **layout):
        return self.packs_to(gguf.build(tensors, keys, **layout),
                             expected.packed_file(tensors, keys, type_id, **layout), *options)


class Sample(RoundTrip):
    def test_facts(self):
        original = SAMPLE.read_bytes()
        parsed = gguf.parse(original)
        document = self.packs_to(original, self.sample_packed(parsed, original))
        self.assertEqual(document["verb"], "pack")
        facts = {tensor["name"]: tensor for tensor in document["tensors"]}
        self.assertEqual([tensor["name"] for tensor in document["tensors"]],
                         [tensor.name.decode() for tensor in parsed.tensors])
        for name, listed in (("blk.0.ffn_down.weight", [2273, 31, 0, 0]), ("blk.5.ffn_down.weight", [2262, 42, 0, 0])):
            tensor = facts.pop(name)
            self.assertEqual(tensor["shape"], [384, 1536])
            self.assertEqual((tensor["type_in"], tensor["type_out"]), ("BF16", "BF16_P12"))
            self.assertEqual((tensor["bytes_in"], tensor["bytes_out"]), (384 * 1536 * 2, 2304 * 392))
            self.assertEqual(tensor["p12"], {"blocks": 2304, "listed": listed})
        stays = facts.pop("blk.0.attn_q.weight")
        self.assertEqual((stays["type_in"], stays["type_out"], stays["shape"]), ("BF16", "BF16", [384, 384]))
        self.assertIn("256", stays["reason"])
        self.assertNotIn("p12", stays)
        norm = facts.pop("blk.0.layer_output_norm.weight")
        self.assertEqual((norm["type_in"], norm["type_out"], norm["shape"]), ("F32", "F32", [384]))
        self.assertEqual((norm["bytes_in"], norm["bytes_out"]), (1536, 1536))
        self.assertEqual(facts, {})
        bytes_in, bytes_out = 2 * 1179648 + 294912 + 1536, 2 * 903168 + 294912 + 1536
        totals = document["totals"]
        self.assertEqual((totals["tensors"], totals["converted"]), (4, 2))
        self.assertEqual((totals["bytes_in"], totals["bytes_out"]), (bytes_in, bytes_out))
        weights = 2 * 384 * 1536 + 384 * 384 + 384
        self.assertAlmostEqual(totals["bits_per_weight"], 8 * bytes_out / weights, places=3)

    @staticmethod
    def sample_packed(parsed, original):
        keys = [Key(name, value_type, raw=raw) for name, value_type, raw in parsed.keys]
        tensors = [Tensor(t.name, t.dims, t.type, t.data) for t in parsed.tensors]
        if gguf.build(tensors, keys, parsed.version) != original:
            raise AssertionError("the sample has not the layout that this test expects")
        return expected.packed_file(tensors, keys, version=parsed.version)

    def test_threads_do_not_change_the_bytes(self):
        for verb in ("pack", "unpack"):
            source = SAMPLE if verb == "pack" else self.path("pack-1.gguf")
            for threads in (1, 2, 7, 64):
                self.done(verb, source, self.path("%s-%d.gguf" % (verb, threads)), "--threads", threads)
            one = self.path(verb + "-1.gguf").read_bytes()
            for threads in (2, 7, 64):
                self.same_bytes(self.path("%s-%d.gguf" % (verb, threads)), one)


class Shapes(RoundTrip):
    def test_dimensions(self):
        shapes = [(256,), (512, 3), (256, 2, 3), (256, 2, 1, 2), (256, 1), (1, 256), (255, 2), (256, 2), (257, 2), (511, 1),
                  (512, 1), (1, 1), ()]
        tensors = [bf16("t%d" % i, dims, seed=i) for i, dims in enumerate(shapes)]
        tensors += [f32("scalar", ()), f32("f32", (256, 2))]
        document = self.round_trip(tensors)
        got = [(t["name"], t["shape"], t["type_out"] == "BF16_P12", t["bytes_in"], t["bytes_out"])
               for t in document["tensors"]]
        after = [expected.packed_tensor(t) for t in tensors]
        self.assertEqual(got, [(t.name, t.shape, a.type == P12, len(t.data), len(a.data))
                               for t, a in zip(tensors, after)])
        self.assertEqual([t.name for t, a in zip(tensors, after) if t is not a], ["t1", "t2", "t3", "t4", "t7", "t10"])
        stays = {t["name"]: t.get("reason") for t in document["tensors"] if t["type_out"] == "BF16"}
        for name in ("t5", "t6", "t8", "t9", "t11"):
            self.assertTrue(stays[name], "a fallback without a reason: " + name)

    def test_a_dimension_of_0(self):
        empty = [Tensor("e0", (256, 0), BF16), Tensor("e1", (0, 4), BF16), Tensor("e2", (0,), F32),
                 Tensor("e3", (256, 0, 7), BF16), Tensor("e4", (0, 0, 0, 0), BF16)]
        tensors = [empty[0], bf16("a", (256, 2)), empty[1], empty[2], f32("b", (5,)), empty[3], bf16("c", (512, 1)), empty[4]]
        document = self.round_trip(tensors)
        for tensor in document["tensors"]:
            if tensor["name"].startswith("e"):
                self.assertEqual(tensor["type_in"], tensor["type_out"])
                self.assertEqual((tensor["bytes_in"], tensor["bytes_out"]), (0, 0))
        # no fallback: even --strict is content
        self.done("pack", self.path("in.gguf"), self.path("strict.gguf"), "--strict")

    def test_versions_alignments_padding(self):
        for version in (2, 3):
            for alignment in (8, 16, 32, 64, 4096, 65536):
                for final_padding in (True, False):
                    with self.subTest(version=version, alignment=alignment, final_padding=final_padding):
                        keys = [Key("general.alignment", gguf.U32, alignment), Key("last", gguf.U8, 1)]
                        tensors = [f32("n", (3,)), bf16("w", (256, 3)), f32("m", (7,)), bf16("v", (512, 1))]
                        self.round_trip(tensors, keys, version=version, final_padding=final_padding)
                        self.round_trip(tensors + [f32("o", (3,))], keys, version=version, final_padding=final_padding)

    def test_no_tensors(self):
        for version in (2, 3):
            for keys in ([], [Key("a", gguf.STRING, "b")]):
                blob = gguf.build([], keys, version)
                result = self.nothing_to_pack(blob)
                self.assertIn(b"0 of 0 tensors", result.out + result.err)

    def nothing_to_pack(self, blob):
        source, out = self.write("in.gguf", blob), self.path("out.gguf")
        result = self.done("pack", source, out, "--force")
        self.assertIn(b"nothing to pack: 0 of ", result.out + result.err)
        self.same_bytes(out, blob)
        document = self.done_json("pack", source, out, "--force")
        self.assertEqual(document["totals"]["converted"], 0)
        self.same_bytes(out, blob)
        before = out.read_bytes()
        self.says_no("pack", source, self.path("strict.gguf"), "--strict")
        self.assertFalse(self.path("strict.gguf").exists())
        self.assertEqual(out.read_bytes(), before)
        return result

    def test_nothing_fits_is_a_byte_copy(self):
        self.nothing_to_pack(gguf.build([f32("a", (256, 2)), bf16("b", (256,)), bf16("c", (255, 2))]))
        # also when the layout is not the usual one
        self.nothing_to_pack(gguf.build([bf16("b", (8,)), bf16("c", (255, 2))], fill=b"\xa5", final_padding=False))
        gap = [Tensor("b", (8, 2), F32, b"x" * 64, offset=96), Tensor("c", (3,), F32, b"y" * 12, offset=32)]
        self.nothing_to_pack(gguf.build(gap, final_padding=False) + b"trailing")

    def test_strict_refuses_a_fallback(self):
        source = self.write("in.gguf", gguf.build([bf16("good", (256, 1)), bf16("odd", (257, 1))]))
        self.says_no("pack", source, self.path("out.gguf"), "--strict")
        self.assertEqual(os.listdir(self.folder), ["in.gguf"])

    def test_unpack_without_our_tensors(self):
        plain = gguf.build([f32("a", (5, 2))], [Key("a", gguf.U8, 1)])
        for name, extra in (("plain", []), ("p12", [Key("p12.version", gguf.U32, 1), Key("p12.type_id", gguf.U32, 126)]),
                            ("pn", [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference")])):
            source = self.write(name + ".gguf", gguf.build([f32("a", (5, 2))], [Key("a", gguf.U8, 1)] + extra))
            self.done("unpack", source, self.path(name + ".out"))
            self.same_bytes(self.path(name + ".out"), plain, name)
        self.says_no("unpack", self.path("plain.gguf"), self.path("strict.out"), "--strict")
        self.assertFalse(self.path("strict.out").exists())


class KeysAndNames(RoundTrip):
    def test_every_value_type(self):
        values = {gguf.U8: 200, gguf.I8: -100, gguf.U16: 60000, gguf.I16: -30000, gguf.U32: 4 * 10**9, gguf.I32: -2 * 10**9,
                  gguf.F32_VALUE: 1.5, gguf.BOOL: 1, gguf.STRING: "text", gguf.U64: 2**64 - 1, gguf.I64: -2**63,
                  gguf.F64_VALUE: 0.1}
        keys = []
        for value_type, value in values.items():
            keys += [Key("scalar.%d" % value_type, value_type, value),
                     Key("array.%d" % value_type, gguf.ARRAY, (value_type, [value, value, value])),
                     Key("empty.%d" % value_type, gguf.ARRAY, (value_type, [])),
                     Key("nested.%d" % value_type, gguf.ARRAY, (gguf.ARRAY, [(value_type, [value]), (value_type, [])]))]
        keys += [Key("empty.arrays", gguf.ARRAY, (gguf.ARRAY, [])), Key("false", gguf.BOOL, 0),
                 Key("nested.twice", gguf.ARRAY, (gguf.ARRAY, [(gguf.ARRAY, [(gguf.STRING, ["", "x"]), (gguf.U8, [])])])),
                 Key("nan", gguf.F32_VALUE, raw=b"\x01\x00\xa0\x7f"), Key("negative.zero", gguf.F64_VALUE, -0.0),
                 Key("general.file_type", gguf.U32, 32), Key("general.quantization_version", gguf.U32, 2)]
        for version in (2, 3):
            self.round_trip([bf16("w", (256, 2)), f32("n", (3,))], keys, version=version)

    def test_strings(self):
        keys = [Key("empty", gguf.STRING, ""), Key("nul", gguf.STRING, b"a\0b\0"), Key("invalid", gguf.STRING, b"\xff\xfe\x80"),
                Key("cl\u00e9.\u6771\u4eac", gguf.STRING, "\u00fc\U0001f600"), Key("long", gguf.STRING, b"z" * 300000),
                Key("tokens", gguf.ARRAY, (gguf.STRING, [b"", b"\0", b"\xc3", "\u2581the"])), Key("k" * 100000, gguf.U8, 7)]
        self.round_trip([bf16("w", (256, 2)), f32("n", (3,))], keys)

    def test_tensor_names(self):
        names = ["b" * 100000, "\u91cd\u307f.\U0001f600", " spaces and\ttab ", "quote\"back\\slash", "a" * 64, "%s%n{}{0}"]
        document = self.round_trip([bf16(name, (256, 1), seed=i) for i, name in enumerate(names)])
        self.assertEqual([tensor["name"] for tensor in document["tensors"]], names)

    def test_our_keys_are_last_and_typed(self):
        source, out = self.write("in.gguf", gguf.build([bf16("w", (256, 2))], [Key("z", gguf.U8, 1)])), self.path("out.gguf")
        self.done("pack", source, out)
        parsed = gguf.parse(out.read_bytes())
        self.assertEqual(parsed.names(), ["z", "p12.version", "p12.type_id"])
        self.assertEqual(parsed.key("p12.version"), (gguf.U32, b"\x01\0\0\0"))
        self.assertEqual(parsed.key("p12.type_id"), (gguf.U32, b"\x7e\0\0\0"))

    def test_keys_that_only_look_like_ours(self):
        names = ["p12", "pn", "x.p12.version", "x.pn.version", "pnx.version", "p12version", "PN.version", "w"]
        self.round_trip([bf16("w", (256, 2))], [Key(name, gguf.U32, 7) for name in names])

    def test_type_id(self):
        tensors = [bf16("w", (256, 2)), f32("n", (3,))]
        for type_id in (127, 200, 70000):
            document = self.round_trip(tensors, type_id=type_id, options=("--type-id", type_id))
            self.assertEqual(document["tensors"][0]["type_out"], "BF16_P12")
            inspected = self.done_json("inspect", self.path("packed.gguf"))["tensors"][0]
            self.assertEqual((inspected["type"], inspected["type_id"]), ("BF16_P12", type_id))
        for type_id in (0, 1, 2, 8, 14, 24, 30, 34, 124, 125, -1, 2**32, "x"):
            result = run("pack", self.path("in.gguf"), self.path("no.gguf"), "--type-id", type_id)
            self.assertEqual(result.code, USAGE, str(result))
            self.assertFalse(self.path("no.gguf").exists())

    def test_packed_input_is_refused(self):
        tensors = [bf16("w", (256, 2))]
        for key in (Key("p12.version", gguf.U32, 1), Key("p12.anything", gguf.U8, 1), Key("pn.version", gguf.U32, 0),
                    Key("pn.search", gguf.STRING, "reference")):
            self.rejected(self.write("in.gguf", gguf.build(tensors, [key])), "pack", names=(key.name.split(".")[0] + ".",))
        source, packed = self.write("plain.gguf", gguf.build(tensors)), self.path("packed.gguf")
        self.done("pack", source, packed)
        self.rejected(packed, "pack")


class OtherTypes(RoundTrip):
    def test_unknown_types_pass_through(self):
        for type_id in (36, 42, 0xFFFFFFFF):
            odd = Tensor("odd", (7, 5), type_id, bytes(range(96)))
            for place in range(3):
                with self.subTest(type_id=type_id, place=place):
                    tensors = [bf16("a", (256, 2)), bf16("b", (512, 1))]
                    tensors.insert(place, odd)
                    document = self.round_trip(tensors)
                    shown = document["tensors"][place]
                    self.assertEqual((shown["type_in"], shown["type_out"]), ("unknown(%d)" % type_id,) * 2)
                    self.assertEqual((shown["bytes_in"], shown["bytes_out"]), (96, 96))
                    inspected = self.done_json("inspect", self.path("in.gguf"))["tensors"][place]
                    self.assertEqual((inspected["type"], inspected["type_id"]), ("unknown(%d)" % type_id, type_id))

    def test_unknown_type_last_in_an_unpadded_file(self):
        for size in (1, 31, 32, 33, 100):
            self.round_trip([bf16("a", (256, 1)), Tensor("odd", (3,), 42, b"\xee" * size)], final_padding=False)

    def test_other_known_types_pass_through(self):
        tensors = [Tensor("f16", (256, 2), F16, oracle.gaussian_bf16(512, 9)), Tensor("q8", (256, 2), gguf.Q8_0, b"q" * 544),
                   Tensor("i32", (256, 2), gguf.I32_TENSOR, b"i" * 2048), Tensor("f64", (256, 1), gguf.F64, b"d" * 2048),
                   bf16("w", (256, 2))]
        document = self.round_trip(tensors)
        self.assertEqual([t["type_out"] for t in document["tensors"]], ["F16", "Q8_0", "I32", "F64", "BF16_P12"])
        self.assertEqual(document["totals"]["converted"], 1)

    def test_pn_tensors_without_keys_stay(self):
        tensors = [Tensor("q3", (80, 2), gguf.PN3T, b"\0" * 68), Tensor("q4", (64, 3), gguf.PN4T, b"\0" * 102),
                   bf16("w", (256, 2))]
        source, out = self.write("in.gguf", gguf.build(tensors)), self.path("out.gguf")
        document = self.done_json("pack", source, out)
        self.same_bytes(out, expected.packed_file(tensors))
        self.assertEqual([t["type_out"] for t in document["tensors"]], ["pn3t", "pn4t", "BF16_P12"])
        # unpack decodes them too, so the input does not come back
        self.assertIs(document["restores_identical"], False)

    def test_an_unknown_126_is_never_taken_for_p12(self):
        tensors = [Tensor("mystery", (256, 2), P12, b"m" * 96), bf16("w", (256, 2))]
        blob = gguf.build(tensors)
        source, packed, back = self.write("in.gguf", blob), self.path("packed.gguf"), self.path("back.gguf")
        self.assertEqual(self.done_json("inspect", source)["tensors"][0]["type"], "unknown(126)")
        result = run("pack", source, packed)
        if result.code:  # refusing is right: the key would turn the unknown tensor into a P12 tensor
            self.assertIn(result.code, (USAGE, BAD_INPUT), str(result))
            self.assertIn("mystery", result.text)
            self.assertFalse(packed.exists())
        else:
            self.done("unpack", packed, back)
            self.same_bytes(back, blob)
        self.round_trip(tensors, type_id=127, options=("--type-id", 127))


def block_of(pattern, **others):
    weights = [pattern] * 256
    for place, value in others.items():
        weights[int(place[1:])] = value
    return weights


class Lossless(RoundTrip):
    def one(self, rows, listed=None, k=256):
        """Rows of bf16 patterns as one tensor; `listed` are the expected counts, None: must stay BF16."""
        data = b"".join(oracle.u16_bytes(row) for row in rows)
        tensors = [Tensor("w", (k, len(rows)), BF16, data), bf16("other", (256, 1))]
        document = self.round_trip(tensors)
        tensor = document["tensors"][0]
        if listed is None:
            self.assertEqual(tensor["type_out"], "BF16")
            return tensor
        self.assertEqual(tensor["type_out"], "BF16_P12")
        self.assertEqual(tensor["p12"]["listed"], listed)
        return tensor

    def test_subnormals(self):
        row = list(range(0x0001, 0x0080)) + list(range(0x8001, 0x8080)) + [0, 0x8000]
        self.one([row], [1, 0, 0, 0])

    def test_one_infinity(self):
        for place in (0, 100, 255):
            self.one([block_of(0x3F80, **{"p%d" % place: 0x7F80})], [0, 1, 0, 0])

    def test_all_exponents_in_one_block(self):
        tensor = self.one([[exponent << 7 | exponent & 0x7F for exponent in range(256)]])
        self.assertIn("240", tensor["reason"])  # 16 fit in a window, 240 would be listed

    def test_all_patterns(self):
        self.one([[block << 8 | low for low in range(256)] for block in range(256)], [256, 0, 0, 0])
        rows = [[sign << 15 | exponent << 7 | mantissa for sign in (1, 0) for mantissa in range(128)]
                for exponent in range(256)]
        self.one(rows, [256, 0, 0, 0])

    def test_constant_and_alternating(self):
        self.one([[0x3F80] * 256, [0x3F80, 0x3F00] * 128, [0] * 256, [0x8000] * 256, [0xFFFF] * 256], [5, 0, 0, 0])

    def test_listed_weights_at_every_count_and_place(self):
        rows, listed = [], [0, 0, 0, 0]
        for places in ((0,), (255,), (7, 8), (0, 255), (0, 1, 2), (253, 254, 255), (31, 128, 200)):
            for odd in (0x0000, 0x7FC1, 0x8001, 0x4800, 0xFFFF):
                rows.append(block_of(0x3F80, **{"p%d" % place: odd for place in places}))
                listed[len(places)] += 1
        # exponents 0 and 255 in one block
        rows.append(block_of(0x3F80, p3=0x0001, p4=0x7F81))
        listed[2] += 1
        self.one(rows, listed)

    def test_window_ties(self):
        rows = [[100 << 7] * 255 + [110 << 7], [10 << 7] + [20 << 7] * 254 + [30 << 7], [250 << 7] * 256,
                [0] * 253 + [255 << 7] * 3, [240 << 7, 255 << 7] * 128, [239 << 7] * 3 + [255 << 7] * 253]
        self.one(rows, [3, 1, 0, 2])

    def test_four_listed_weights_keep_the_tensor_bf16(self):
        fits = block_of(0x3F80, p0=0, p1=0, p2=0)
        worst = block_of(0x3F80, **{"p%d" % (20 * i): 0 for i in range(9)})
        four = block_of(0x3F80, p5=0, p6=0, p7=0, p8=0)
        rows = [fits + fits, fits + four, fits + fits, four + worst, fits + four]
        tensor = self.one(rows, k=512)
        numbers = [int(n) for n in re.findall(r"\d+", tensor["reason"])]
        self.assertIn(9, numbers, "the worst block lists 9: " + tensor["reason"])
        self.assertTrue(7 in numbers or {3, 1} <= set(numbers), "row 3, block 1 of the row: " + tensor["reason"])
        result = self.done("pack", self.path("in.gguf"), self.path("packed.gguf"), "--force")
        self.assertRegex(result.out, rb"\b9\b")
        self.assertEqual(run("pack", self.path("in.gguf"), self.path("s.gguf"), "--strict").code, NO)


class Layouts(RoundTrip):
    """Files that no usual writer makes: either they come back byte for byte, or restores_identical is false and pack
    warns. The tensors' bytes are right in any case."""

    def truth(self, blob, expect=None):
        source, packed, back = self.write("in.gguf", blob), self.path("packed.gguf"), self.path("back.gguf")
        result = self.done("pack", source, packed, "--force", "--json")
        document = result.json
        self.done("check", packed)
        self.done("verify", packed, source)
        self.done("unpack", packed, back, "--force")
        same = back.read_bytes() == blob
        self.assertIs(document["restores_identical"], same)
        if expect is not None:
            self.assertIs(same, expect)
        if not same:
            self.assertIn(b"identical", self.done("pack", source, packed, "--force").err.lower(), "no warning")
        before, after = gguf.parse(blob), gguf.parse(back.read_bytes())
        self.assertEqual([(t.name, t.dims, t.type, t.data) for t in before.tensors],
                         [(t.name, t.dims, t.type, t.data) for t in after.tensors])
        self.done("verify", back, source)
        self.assertEqual(before.keys, after.keys)

    def tensors(self, offsets):
        out = [bf16("a", (256, 1)), bf16("b", (512, 1)), f32("c", (3,))]
        for tensor, offset in zip(out, offsets):
            tensor.offset = offset
        return out

    def test_usual_layout(self):
        self.truth(gguf.build(self.tensors([0, 512, 1536])), True)
        self.truth(gguf.build(self.tensors([0, 512, 1536]), final_padding=False), True)

    def test_gaps(self):
        self.truth(gguf.build(self.tensors([64, 576, 1600])))
        self.truth(gguf.build(self.tensors([0, 640, 1664])))
        self.truth(gguf.build(self.tensors([0, 640, 1664]), fill=b"\x5a"), False)

    def test_padding_that_is_not_zero(self):
        usual = gguf.build([bf16("a", (256, 1)), f32("b", (3,)), f32("c", (3,))])
        self.truth(usual, True)
        parsed = gguf.parse(usual)
        # the last byte of the padding after the header, between two tensors, and after the last one
        for at in (parsed.data_start - 1, parsed.start("c") - 1, len(usual) - 1):
            self.assertEqual(usual[at], 0)
            self.truth(usual[:at] + b"\x5a" + usual[at + 1:], False)

    def test_one_byte_of_padding_that_is_not_zero(self):
        blob = gguf.build([f32("n", (3,)), bf16("w", (256, 1)), f32("m", (7,))])
        parsed = gguf.parse(blob)
        self.truth(blob, True)
        for at in (parsed.data_start - 1, parsed.start("n") + 12, parsed.start("w") - 1, parsed.start("m") + 28, len(blob) - 1):
            self.assertEqual(blob[at], 0)
            self.truth(blob[:at] + b"\x01" + blob[at + 1:], False)

    def test_out_of_order(self):
        self.truth(gguf.build(self.tensors([1024, 0, 1536])))
        self.truth(gguf.build(self.tensors([1056, 32, 0])))

    def test_final_padding_that_is_too_long_or_too_short(self):
        usual = gguf.build(self.tensors([0, 512, 1536]), final_padding=False)
        for extra in (1, 19):
            self.rejected(self.write("cut.gguf", usual + b"\0" * extra), "pack")
        self.truth(usual + b"\0" * 20, True)
        for extra in (21, 52, 4096):
            self.truth(usual + b"\0" * extra)
        self.truth(usual + b"\0" * 19 + b"\x01", False)
        self.truth(usual + b"\0" * 20 + b"trailing bytes")

    def test_an_unknown_type_that_changes_its_place(self):
        # last in the header, not last in the data: its extent is padded, and must not swallow what follows the data
        for after in (b"", b"trailing bytes", b"\0" * 100):
            odd, weights = Tensor("odd", (3,), 42, b"\xee" * 73, offset=0), bf16("a", (256, 1))
            weights.offset = 96
            self.truth(gguf.build([weights, odd]) + after)
            # last in the data, first in the header
            odd, weights = Tensor("odd", (3,), 42, b"\xee" * 73, offset=512), bf16("a", (256, 1))
            weights.offset = 0
            for final_padding in (True, False):
                self.truth(gguf.build([odd, weights], final_padding=final_padding) + after)

    def test_unpadded_data_that_ends_up_on_a_multiple(self):
        # the last tensor in the data is packed; the sizes are multiples of the alignment before, after, or both
        for rows in (1, 2, 3, 4, 8, 64):
            for alignment in (8, 32, 64, 512):
                keys = [Key("general.alignment", gguf.U32, alignment)]
                for final_padding in (True, False):
                    self.truth(gguf.build([f32("n", (3,)), bf16("w", (256, rows))], keys, final_padding=final_padding))

    def test_an_empty_tensor_is_no_reason_for_padding(self):
        tensors = [bf16("a", (256, 1)), f32("c", (3,)), Tensor("none", (0, 3), F32, offset=544)]
        self.truth(gguf.build(tensors, final_padding=False), True)
        self.truth(gguf.build(tensors), True)

    def test_an_empty_tensor_past_the_data(self):
        for offset in (0, 32, 512):
            self.truth(gguf.build([bf16("a", (256, 1)), Tensor("none", (0, 3), F32, offset=offset)], final_padding=False))


if __name__ == "__main__":
    main()
