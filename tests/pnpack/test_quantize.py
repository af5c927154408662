"""quantize and unpack --to: bytes of pn3t and pn4t files against the tests' own quantizer, and what cannot be quantized.

Proves whole output files for FP32, FP16, BF16 and P12 input, the keys that come and go, the edges of the scale, errors
that name tensor and element, and that verify quantizes the original again.
"""

import dataclasses
import math
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import BF16, F16, F32, P12, PN3T, PN4T, Key, Tensor  # noqa: E402
from oracle import KINDS  # noqa: E402
from tool import BAD_INPUT, SAMPLE, USAGE, ToolTest, main, mentions_element, run  # noqa: E402

P12_KEYS = [Key("p12.version", gguf.U32, 1), Key("p12.type_id", gguf.U32, 126)]


def f32(name, dims, weights):
    return Tensor(name, tuple(dims), F32, oracle.f32_bytes(weights))


def floats(count, seed=1, sigma=0.05):
    return oracle.gaussian(count, seed, sigma)


def f16(name, dims, seed=1):
    return Tensor(name, dims, F16, oracle.u16_bytes([oracle.fp16_bits(w) for w in floats(math.prod(dims), seed)]))


def bf16(name, dims, seed=1):
    return Tensor(name, dims, BF16, oracle.gaussian_bf16(math.prod(dims), seed, 0.05))


def p12(name, dims, seed=1):
    tensor = bf16(name, dims, seed)
    return Tensor(name, dims, P12, oracle.p12_pack(tensor.data))


def step(value, count):
    """The positive fp32 value `count` steps further."""
    return oracle.f32_from_bits(oracle.f32_bits(value) + count)


class QuantizeTest(ToolTest):
    def quantizes_to(self, tensors, kind, keys=(), **layout):
        """quantize gives the file of the tests' own quantizer; check and verify say yes. Returns the document."""
        source, out = self.write("in.gguf", gguf.build(tensors, keys, **layout)), self.path("out.gguf")
        document = self.done_json("quantize", source, out, "--type", kind, "--force")
        self.same_bytes(out, expected.quantized_file(tensors, KINDS[kind], keys, **layout), kind)
        self.done("check", out)
        self.done("verify", out, source)
        return document

    def unpacks(self, data, kind, rows=1):
        """The three --to of raw PN blocks against the tests' own decoder."""
        k = len(data) // 34 // rows * KINDS[kind].block
        blob = gguf.build([Tensor("w", (k, rows), KINDS[kind].type_id, data)])
        source = self.write("pn.gguf", blob)
        for to, type_id in (("f32", F32), ("f16", F16), ("bf16", BF16)):
            out = self.path("out." + to)
            self.done("unpack", source, out, "--to", to, "--force")
            wanted = Tensor("w", (k, rows), type_id, expected.decoded_bytes(KINDS[kind], data, to))
            self.same_bytes(out, gguf.build([wanted]), to)


class Files(QuantizeTest):
    def test_every_source_type(self):
        for kind, k in (("pn3t", 160), ("pn4t", 128)):
            tensors = [f32("f32", (k, 3), floats(3 * k)), f16("f16", (k, 2)), bf16("bf16", (k, 2, 2)), f32("norm", (k,), floats(k)),
                       f32("four", (k, 1, 2, 1), floats(2 * k, 5)), f32("odd", (k + 1, 2), floats(2 * k + 2)),
                       Tensor("q8", (32, 2), gguf.Q8_0, b"q" * 68), Tensor("mystery", (k, 1), 42, b"m" * 64),
                       Tensor("empty", (k, 0), F32), f32("scalar", (), [1.0])]
            keys = [Key("general.file_type", gguf.U32, 0), Key("list", gguf.ARRAY, (gguf.STRING, ["a", ""]))]
            document = self.quantizes_to(tensors, kind, keys)
            after = [expected.quantized_tensor(tensor, KINDS[kind]) for tensor in tensors]
            types = [kind if a is not b else None for a, b in zip(after, tensors)]
            self.assertEqual([t is not None for t in types], [True, True, True, False, True] + [False] * 5)
            for shown, tensor, quantized, to in zip(document["tensors"], tensors, after, types):
                self.assertEqual((shown["name"], shown["shape"]), (tensor.name, tensor.shape))
                self.assertEqual((shown["bytes_in"], shown["bytes_out"]), (len(tensor.data), len(quantized.data)))
                self.assertEqual(shown["type_out"], to or shown["type_in"])
                if to:
                    weights = expected.weights_of(tensor)
                    wanted = oracle.nrmse(weights, oracle.pn_decode(KINDS[kind], quantized.data))
                    self.assertAlmostEqual(shown["nrmse"] / wanted, 1, delta=1e-4)
            self.assertTrue(document["tensors"][5]["reason"])
            self.assertEqual((document["totals"]["tensors"], document["totals"]["converted"]), (10, 4))
            for layout in (dict(version=2), dict(final_padding=False)):
                self.quantizes_to(tensors, kind, [Key("general.alignment", gguf.U32, 64)] + keys, **layout)

    def test_keys(self):
        source = self.write("in.gguf", gguf.build([f32("w", (320, 2), floats(640))], [Key("z", gguf.U8, 1)]))
        for kind in KINDS:
            self.done("quantize", source, self.path(kind), "--type", kind)
            parsed = gguf.parse(self.path(kind).read_bytes())
            self.assertEqual(parsed.names(), ["z", "pn.version", "pn.search"])
            self.assertEqual(parsed.key("pn.version"), (gguf.U32, b"\0\0\0\0"))
            self.assertEqual(parsed.key("pn.search"), (gguf.STRING, gguf.string("reference")))
            self.rejected(self.path(kind), "quantize", "--type", kind)

    def test_one_key_of_ours_is_enough_to_refuse(self):
        for key in (Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference"), Key("pn.x", gguf.U8, 1)):
            source = self.write("in.gguf", gguf.build([f32("w", (320, 2), floats(640))], [key]))
            self.rejected(source, "quantize", "--type", "pn4t", names=(key.name,))

    def test_p12_input(self):
        tensors = [p12("both", (1280, 1)), p12("four", (256, 2)), f32("n", (3,), [1.0, 2.0, 3.0]), bf16("bf16", (320, 2))]
        self.quantizes_to(tensors, "pn3t", P12_KEYS)  # "four" stays packed and so do the keys
        self.assertEqual(gguf.parse(self.path("out.gguf").read_bytes()).names(),
                         ["p12.version", "p12.type_id", "pn.version", "pn.search"])
        self.quantizes_to(tensors, "pn4t", P12_KEYS)  # nothing stays packed
        self.assertEqual(gguf.parse(self.path("out.gguf").read_bytes()).names(), ["pn.version", "pn.search"])
        other_id = [dataclasses.replace(t, type=200) if t.type == P12 else t for t in tensors]
        source = self.write("other.gguf", gguf.build(other_id, [P12_KEYS[0], Key("p12.type_id", gguf.U32, 200)]))
        self.done("quantize", source, self.path("other.out"), "--type", "pn4t")
        self.same_bytes(self.path("other.out"), self.path("out.gguf").read_bytes())

    def test_p12_and_bf16_give_the_same_blocks(self):
        before, packed = self.write("bf16.gguf", gguf.build([bf16("w", (1280, 2))])), self.path("packed.gguf")
        self.done("pack", before, packed)
        for kind in KINDS:
            for source in (before, packed):
                self.done("quantize", source, self.path("%s.%s" % (kind, source.name)), "--type", kind)
            first = self.path(kind + ".bf16.gguf")
            self.same_bytes(first, self.path(kind + ".packed.gguf").read_bytes())
            self.done("verify", first, before)
            self.done("verify", first, packed)

    def test_both_kinds_are_unpacked(self):
        tensors = [p12("both", (1280, 1)), p12("four", (256, 2)), f32("n", (3,), [1.0, 2.0, 3.0])]
        self.quantizes_to(tensors, "pn3t", P12_KEYS)
        blocks = expected.quantized_tensor(tensors[0], oracle.PN3T).data
        for to, type_id in (("f32", F32), ("f16", F16), ("bf16", BF16), (None, F32)):
            out = self.path("back")
            self.done("unpack", self.path("out.gguf"), out, "--force", *(["--to", to] if to else []))
            self.same_bytes(out, gguf.build([
                Tensor("both", (1280, 1), type_id, expected.decoded_bytes(oracle.PN3T, blocks, to or "f32")),
                Tensor("four", (256, 2), BF16, oracle.p12_unpack(tensors[1].data)), tensors[2]]))

    def test_sample(self):
        source, out = SAMPLE, self.path("out.gguf")
        for threads in (1, 2, 7, 64):
            document = self.done_json("quantize", source, out, "--type", "pn4t", "--force", "--threads", threads)
            if threads == 1:
                first = out.read_bytes()
            self.same_bytes(out, first, "%d threads" % threads)
        self.assertEqual(document["totals"]["converted"], 3)
        self.done("verify", out, source)
        before, after = gguf.parse(source.read_bytes()), gguf.parse(first)
        for tensor in after.tensors:
            if tensor.type == PN4T:
                k = tensor.dims[0]
                row = before.tensor(tensor.name).data[-2 * k:]
                wanted = oracle.pn_quantize(oracle.PN4T, [oracle.bf16_value(bits) for bits in oracle.u16s(row)])
                self.same_bytes(tensor.data[-len(wanted):], wanted, tensor.name)
        self.says_no("quantize", source, self.path("none"), "--type", "pn3t", "--strict")
        self.assertFalse(self.path("none").exists())
        document = self.done_json("quantize", source, out, "--type", "pn3t", "--force")
        self.assertEqual(document["totals"]["converted"], 0)
        self.same_bytes(out, source.read_bytes())

    def test_row_lengths(self):
        for kind, fits in (("pn3t", {320, 80}), ("pn4t", {896, 4096, 4544, 128, 320})):
            tensors = [f32("k%d" % k, (k, 2), floats(2 * k, k)) for k in (1, 80, 128, 288, 320, 896, 4096, 4544)]
            document = self.quantizes_to(tensors, kind)
            converted = {t["shape"][1] for t in document["tensors"] if t["type_out"] == kind}
            self.assertEqual(converted, fits)
            for tensor in document["tensors"]:
                if tensor["type_out"] != kind:
                    self.assertTrue(tensor["reason"])
                    self.assertNotIn("nrmse", tensor)
            self.says_no("quantize", self.path("in.gguf"), self.path("none"), "--type", kind, "--strict")
            self.assertFalse(self.path("none").exists())

    def test_strict_is_content_with_norms(self):
        source = self.write("in.gguf", gguf.build([f32("w", (64, 2), floats(128)), f32("n", (5,), floats(5)),
                                                   Tensor("q8", (32, 2), gguf.Q8_0, b"q" * 68), Tensor("e", (3, 0), F32)]))
        document = self.done_json("quantize", source, self.path("out"), "--type", "pn4t", "--strict")
        self.assertEqual([t["type_out"] for t in document["tensors"]], ["pn4t", "F32", "Q8_0", "F32"])


class Blocks(QuantizeTest):
    """Blocks that are hard to get right, all in one tensor: one row per case."""

    def cases(self, kind):
        z, size = kind.zero, kind.block
        noise = floats(size, 7, 0.01)
        rows = [[0.0] * size, [-0.0] * size, [0.0, -0.0] * (size // 2), floats(size, 8, 1.0), floats(size, 9, 1e4)]
        rows += [[1000.0] + noise[1:], [-1000.0] + noise[1:], noise[1:] + [1000.0], noise[1:] + [-1000.0]]
        rows += [[c] * size for c in (1.0, -1.0, 0.1, -0.1, 3e-5)]
        amaxes = [1e-6, 6e-8, 2.9e-8, z / 1.2 * 2**-25, z / 0.5 * 2**-25, 65504.0 * z, 218400.0 * z / 4, 524160.0 * z / 4]
        for amax in [oracle.f32_from_bits(oracle.f32_bits(a)) for a in amaxes]:
            for edge in (step(amax, -1), amax, step(amax, 1)):
                if edge < 524160.0 * z / 4:  # from there on every scale overflows
                    rows.append([edge * (i - size / 2) / (size / 2) for i in range(size)])
                    rows.append([edge * (size / 2 - i) / (size / 2) for i in range(size)])
        # halfway codes: multiples of half a scale; ties of max and -min; two scales that err the same
        rows.append([(i % (4 * z) - 2 * z) / 2 for i in range(size)])
        rows.append([(1 if i % 2 else -1) * (1 + i % 5) * 0.25 for i in range(size)])
        rows.append([1.0] + [0.0] * (size - 1))
        rows.append([-1.0] + [0.0] * (size - 1))
        rows.append([(i % 3 - 1) * 2.0**-149 for i in range(size)])
        rows.append([math.ldexp(1 if i % 2 else -3, -20 + i % 24) for i in range(size)])
        rows += self.scales_at_ties(kind)
        return [[oracle.f32_from_bits(oracle.f32_bits(w)) for w in row] for row in rows]

    @staticmethod
    def scales_at_ties(kind):
        """For each m, blocks where m * amax / z is halfway between two fp16 or next to it, and where that scale wins:
        one unit in the last place of m, or a detour over fp32, would give another scale."""
        rows = []
        for i in range(36):
            odd = 25 + i  # m = odd / 50
            while odd % 2 == 0:
                odd //= 2
            exact = (2049 // odd | 1) * odd  # an odd multiple of the divisor: amax is exact
            while exact < 2049:
                exact += 2 * odd
            for tie in (exact, exact + 2 * odd, 2049 + 2 * i, 4095 - 14 * i):
                amax = oracle.f32_from_bits(oracle.f32_bits(math.ldexp(tie * 50 * kind.zero / (25 + i), -15)))
                scale = oracle.fp16_value(oracle.fp16_bits(-oracle.MULTIPLIERS[i] * amax / kind.zero))
                # most weights at the largest level below amax, where another scale errs most
                top = min(kind.zero, 50 * kind.zero // (25 + i))
                rows.append([amax] + [(n % 4 - 1 if n % 8 == 0 else -top) * scale for n in range(kind.block - 1)])
        return rows

    def test_hard_blocks(self):
        for name, kind in KINDS.items():
            rows = self.cases(kind)
            tensors = [f32("w", (kind.block, len(rows)), [w for row in rows for w in row])]
            document = self.quantizes_to(tensors, name)
            data = expected.quantized_tensor(tensors[0], kind).data
            wanted = oracle.nrmse([w for row in rows for w in row], oracle.pn_decode(kind, data))
            self.assertAlmostEqual(document["tensors"][0]["nrmse"] / wanted, 1, delta=1e-4)

    def test_all_zero_tensor(self):
        for name, kind in KINDS.items():
            tensors = [f32("w", (kind.block, 2), [0.0, -0.0] * kind.block)]
            document = self.quantizes_to(tensors, name)
            self.assertEqual(document["tensors"][0].get("nrmse", 0), 0)

    def test_fp16_weights_of_every_size(self):
        # every finite fp16 exponent, subnormals included
        patterns = [sign << 15 | bits for sign in (0, 1) for bits in range(0, 0x7C00, 397)]
        patterns = (patterns * 3)[:320]
        for name in KINDS:
            self.quantizes_to([Tensor("w", (320, 1), F16, oracle.u16_bytes(patterns))], name)


class Errors(QuantizeTest):
    def names_element(self, tensor, kind, row, column):
        source = self.write("bad.gguf", gguf.build([f32("fine", (320, 1), floats(320)), tensor]))
        error = self.rejected(source, "quantize", "--type", kind, names=("evil",))
        flat = row * tensor.dims[0] + column
        self.assertTrue(mentions_element(error["message"], flat, row, column), (flat, row, column, error))

    def test_nan_and_infinity(self):
        specials = {F32: (0x7FC00000, 0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000), F16: (0x7E00, 0x7C01, 0xFE00, 0x7C00, 0xFC00),
                    BF16: (0x7FC0, 0x7F81, 0xFFFF, 0x7F80, 0xFF80)}
        for type_id, patterns in specials.items():
            size = gguf.BLOCKS[type_id][1]
            for i, bits in enumerate(patterns):
                for row, column in ((0, 0), (2, 319), (1, 317)):
                    data = bytearray(3 * 320 * size)
                    at = (row * 320 + column) * size
                    data[at:at + size] = bits.to_bytes(size, "little")
                    kind = "pn3t" if i % 2 else "pn4t"
                    self.names_element(Tensor("evil", (320, 3), type_id, bytes(data)), kind, row, column)

    def test_nan_in_p12(self):
        weights = [0x3C00] * 1280
        weights[1270] = 0x7FC1
        packed = oracle.p12_pack(oracle.u16_bytes(weights))
        source = self.write("bad.gguf", gguf.build([Tensor("evil", (1280, 1), P12, packed)], P12_KEYS))
        error = self.rejected(source, "quantize", "--type", "pn3t", names=("evil",))
        self.assertTrue(mentions_element(error["message"], 1270, 0, 1270), error)

    def test_nan_where_nothing_is_quantized(self):
        tensors = [f32("w", (320, 1), floats(320)), f32("norm", (3,), [math.nan, math.inf, 0.0]),
                   f32("odd", (321, 1), [math.nan] * 321)]
        self.quantizes_to(tensors, "pn3t")

    def test_an_overflow_names_the_block_and_not_its_first_weight(self):
        weights = [1.0] * 192
        weights[101] = 2e6
        source = self.write("in.gguf", gguf.build([f32("w", (64, 3), weights)]))
        message = self.rejected(source, "quantize", "--type", "pn4t", names=("w",))["message"]
        self.assertIn("block 1 (row 1, columns 0..63)", message)

    def test_blocks_of_another_program_are_not_quantized_beside(self):
        # nobody knows whether they are rotated, and the keys would say that they are not
        blocks = oracle.pn_quantize(KINDS["pn4t"], [0.5] * 64)
        tensors = [Tensor("old", (64, 1), PN4T, blocks), f32("new", (64, 1), [0.25] * 64)]
        self.rejected(self.write("in.gguf", gguf.build(tensors)), "quantize", "--type", "pn4t", names=("old",))

    def test_every_scale_overflows(self):
        for kind in KINDS.values():
            limit = 524160.0 * kind.zero / 4
            values = [0.0] * (3 * kind.block)
            values[2 * kind.block + 5] = -limit
            self.rejected(self.write("bad.gguf", gguf.build([f32("evil", (3 * kind.block, 1), values)])),
                          "quantize", "--type", kind.name, names=("evil",))
        huge = Tensor("evil", (320, 1), BF16, oracle.u16_bytes([0x7F7F] * 320))
        self.rejected(self.write("bad.gguf", gguf.build([huge])), "quantize", "--type", "pn3t", names=("evil",))

    def test_an_invalid_p12_block(self):
        block = bytearray(oracle.p12_pack(bf16("w", (1280, 1)).data))
        block[393] = 4  # the second block claims 4 listed weights
        source = self.write("bad.gguf", gguf.build([Tensor("evil", (1280, 1), P12, bytes(block))], P12_KEYS))
        self.rejected(source, "quantize", "--type", "pn4t", names=("evil",))

    def test_the_place_of_an_invalid_p12_block(self):
        for bad in (0, 1, 4, 6):
            block = bytearray(oracle.p12_pack(bf16("w", (1280, 2)).data))
            block[392 * bad + 1] = 4
            source = self.write("bad.gguf", gguf.build([Tensor("evil", (1280, 2), P12, bytes(block))], P12_KEYS))
            error = self.rejected(source, "quantize", "--type", "pn3t", names=("evil", "block %d" % bad))
            self.assertEqual(error["offset"], gguf.parse(source.read_bytes()).start("evil") + 392 * bad)

    def test_usage(self):
        source = self.write("in.gguf", gguf.build([f32("w", (320, 1), floats(320))]))
        for words in ((), ("--type", "pn5t"), ("--type", "q4_0"), ("--type",)):
            self.fails(USAGE, "quantize", source, self.path("out"), *words)
        self.assertEqual(os.listdir(self.folder), ["in.gguf"])


class UnpackTo(QuantizeTest):
    def test_all_codes_and_scales(self):
        for name, kind in KINDS.items():
            blocks = []
            for bits in (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x2E66, 0xAE66, 0x3C00, 0xBC01, 0x6FFF, 0xEFFF):
                blocks.append(oracle.pn_block_bytes(kind, bits, [i % (2 * kind.zero) for i in range(kind.block)]))
            self.unpacks(b"".join(blocks), name, rows=3)

    def test_bf16_ties(self):
        # d = 1.rrrrrrrr times odd codes: halfway between two bf16 values
        blocks = [oracle.pn_block_bytes(oracle.PN4T, bits, [i % 16 for i in range(64)])
                  for bits in range(0x3C00, 0x3C00 + 64)]
        self.unpacks(b"".join(blocks), "pn4t")

    def test_f16_overflow_names_the_element(self):
        for name, kind in KINDS.items():
            codes = [kind.zero] * kind.block
            fine = oracle.pn_block_bytes(kind, 0x7BFF, [kind.zero + 1] * kind.block)  # 65504 is the largest
            codes[37] = kind.zero - 2
            data = fine + oracle.pn_block_bytes(kind, 0x7BFF, codes)
            source = self.write("bad.gguf", gguf.build([Tensor("evil", (kind.block, 2), kind.type_id, data)]))
            error = self.rejected(source, "unpack", "--to", "f16", names=("evil",))
            self.assertTrue(mentions_element(error["message"], kind.block + 37, 1, 37), error)
            for to in ("f32", "bf16"):
                self.done("unpack", source, self.path(to), "--to", to, "--force")
            self.unpacks(fine * 2, name)
        # 65520 is the first value that rounds to infinity, 65504 the last fp16
        for scale, code, status in ((9360.0, 1, BAD_INPUT), (-9360.0, 1, BAD_INPUT), (8188.0, 0, 0), (8192.0, 0, BAD_INPUT),
                                    (9352.0, 1, 0)):
            data = oracle.pn_block_bytes(oracle.PN4T, oracle.fp16_bits(scale), [code] * 64)
            source = self.write("edge.gguf", gguf.build([Tensor("w", (64, 1), PN4T, data)]))
            self.expect(status, "unpack", source, self.path("edge.out"), "--to", "f16", "--force")

    def test_invalid_scales_are_refused(self):
        for bits in (0x7C00, 0xFC00, 0x7E00):
            for name, kind in KINDS.items():
                data = oracle.pn_block_bytes(kind, 0x3C00, [0] * kind.block) + oracle.pn_block_bytes(
                    kind, bits, [0] * kind.block)
                source = self.write("bad.gguf", gguf.build([Tensor("evil", (kind.block, 2), kind.type_id, data)]))
                for to in ("f32", "f16", "bf16"):
                    self.rejected(source, "unpack", "--to", to, names=("evil",))

    def test_rotation_is_undone(self):
        weights = floats(256, 11)
        data = oracle.pn_quantize(oracle.PN4T, weights)
        tensors = [Tensor("w", (256, 1), PN4T, data)]
        for size in (0, 64, 128, 256):
            keys = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference"),
                    Key("pn.hadamard.block_size", gguf.U32, size), Key("pn.hadamard.exclude", gguf.ARRAY, (gguf.STRING, []))]
            source, out = self.write("rotated.gguf", gguf.build(tensors, keys)), self.path("out")
            values = oracle.pn_decode(oracle.PN4T, data)
            wanted = gguf.build([f32("w", (256, 1), oracle.unrotate(values, size) if size else values)])
            self.done("unpack", source, out, "--force")
            self.same_bytes(out, wanted, "block size %d" % size)


class Verify(QuantizeTest):
    def test_a_flipped_byte(self):
        for name, kind in KINDS.items():
            tensors = [f32("a", (320, 1), floats(320)), f32("b", (320, 4), floats(1280, 2))]
            self.quantizes_to(tensors, name)
            source, out = self.path("in.gguf"), self.path("out.gguf")
            document = self.done_json("verify", out, source)
            self.assertEqual([t["equal"] for t in document["tensors"]], [True, True])
            blob = bytearray(out.read_bytes())
            blocks = 320 // kind.block
            block = 2 * blocks + 1  # row 2
            start = gguf.parse(bytes(blob)).start("b") + 34 * block
            blob[start + 20] ^= 1
            document = self.says_no("verify", self.write("flipped.gguf", bytes(blob)), source)
            self.assertEqual([t["equal"] for t in document["tensors"]], [True, False])
            self.assertEqual(document["first"]["tensor"], "b")
            self.assertEqual(document["first"].get("block"), block)
            self.assertIn(document["first"]["offset"], range(start, start + 34))

    def test_another_original(self):
        self.quantizes_to([f32("w", (320, 4), floats(1280, 2))], "pn4t")
        weights = floats(1280, 2)
        weights[3 * 320 + 70] = 3.0
        other = self.write("other.gguf", gguf.build([f32("w", (320, 4), weights)]))
        document = self.says_no("verify", self.path("out.gguf"), other)
        self.assertEqual(document["first"]["tensor"], "w")
        self.assertEqual(document["first"].get("block"), 3 * 5 + 1)

    def test_importances_are_needed_to_repeat_a_weighted_search(self):
        weights = f32("w", (320, 4), floats(1280, 2))
        blocks = expected.quantized_tensor(weights, oracle.PN4T)
        source = self.write("in.gguf", gguf.build([weights]))
        keys = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "weighted")]
        self.fails(USAGE, "verify", self.write("weighted.gguf", gguf.build([blocks], keys)), source,
                   names=("weighted.gguf", "--imatrix"))

    def test_an_original_that_cannot_be_quantized(self):
        self.quantizes_to([f32("w", (320, 4), floats(1280, 2))], "pn4t")
        weights = floats(1280, 2)
        weights[5] = math.nan
        source = self.write("nan.gguf", gguf.build([f32("w", (320, 4), weights)]))
        self.fails(BAD_INPUT, "verify", self.path("out.gguf"), source, names=("w", "nan.gguf"))


if __name__ == "__main__":
    main()
