"""check, verify, inspect: every damage to a packed block is seen, and the answers point at the right place.

Proves that each single-bit flip of a P12 block is either invalid (check says no) or other weights (verify says no, at the
right element), that bad PN scales and reserved bits are found with block and absolute offset, that unpack refuses what
check refuses, and that check and inspect do not read the tensors that they have no business with.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import BF16, F32, P12, PN3T, PN4T, U32, Key, Tensor  # noqa: E402
from oracle import KINDS  # noqa: E402
from tool import BAD_INPUT, DONE, NO, SAMPLE, ToolTest, main  # noqa: E402

P12_KEYS = [Key("p12.version", U32, 1), Key("p12.type_id", U32, 126)]


def first_difference(a, b):
    return next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)


class P12Blocks(ToolTest):
    def setUp(self):
        super().setUp()
        self.weights = oracle.u16s(oracle.gaussian_bf16(256, 3))
        self.weights[9], self.weights[200] = 0x0000, 0x7FC1
        self.block = oracle.p12_pack_block(self.weights)
        self.assertEqual(self.block[1], 2)

    def flips(self):
        for bit in range(8 * len(self.block)):
            changed = bytearray(self.block)
            changed[bit // 8] ^= 1 << bit % 8
            yield bit, bytes(changed)

    def test_every_flipped_bit(self):
        # one tensor per flip, so that one run judges them all
        tensors = [Tensor("bit.%d" % bit, (256, 1), P12, data) for bit, data in self.flips()]
        packed = self.write("flipped.gguf", gguf.build(tensors, P12_KEYS))
        document = self.expect(NO, "check", packed, "--json").json
        self.assertIs(document["ok"], False)
        self.assertNotIn("error", document)
        valid = [oracle.p12_valid(tensor.data) for tensor in tensors]
        self.assertEqual([(t["name"], t["valid"]) for t in document["tensors"]],
                         [(t.name, v) for t, v in zip(tensors, valid)])
        self.assertTrue(any(valid) and not all(valid))
        first = valid.index(False)
        self.assertEqual(document["first"]["tensor"], tensors[first].name)
        self.assertEqual(document["first"]["block"], 0)
        original = self.write("original.gguf", gguf.build(
            [Tensor(t.name, t.dims, BF16, oracle.u16_bytes(self.weights)) for t in tensors]))
        document = self.expect(NO, "verify", packed, original, "--json").json
        self.assertEqual([t["name"] for t in document["tensors"] if t["equal"]], [])

    def test_valid_flips_name_the_element(self):
        rows = 3
        fine = oracle.p12_pack_block([0x3F80] * 256)
        original = self.write("original.gguf", gguf.build([Tensor("w", (512, rows), BF16, oracle.u16_bytes(
            ([0x3F80] * 256 * 3 + self.weights + [0x3F80] * 512)))]))
        checked = 0
        for bit, changed in list(self.flips())[40::97]:
            packed = self.write("packed.gguf", gguf.build(
                [Tensor("w", (512, rows), P12, fine * 3 + changed + fine * 2)], P12_KEYS))
            document = self.says_no("verify", packed, original)
            self.assertEqual(document["first"]["tensor"], "w")
            if oracle.p12_valid(changed):
                self.done("check", packed)
                element = 768 + first_difference(oracle.p12_unpack_block(changed), self.weights)
                self.assertEqual(document["first"]["element"], element, "bit %d" % bit)
                checked += 1
            else:
                start = gguf.parse(packed.read_bytes()).start("w") + 3 * 392
                found = self.says_no("check", packed)["first"]
                self.assertEqual((found["tensor"], found["block"]), ("w", 3), "bit %d" % bit)
                self.assertEqual(found["offset"], start)
                self.rejected(packed, "unpack", names=("w",))
        self.assertGreater(checked, 10)

    def test_reserved_and_non_canonical_forms(self):
        plain = oracle.p12_pack_block([0x3F80] * 256)  # base 127, nothing listed
        one = oracle.p12_pack_block([0x3F80] * 255 + [0x7F80])
        two = oracle.p12_pack_block([0] + [0x3F80] * 254 + [0x7F80])
        set_byte = lambda block, at, value: block[:at] + bytes([value]) + block[at + 1:]  # noqa: E731
        bad = {"base 241": set_byte(plain, 0, 241), "base 255": set_byte(plain, 0, 255), "n = 4": set_byte(plain, 1, 4),
               "n = 255": set_byte(one, 1, 255),
               "n = 2 of 1": set_byte(one, 1, 2), "unused place": set_byte(plain, 4, 1), "unused exponent": set_byte(one, 7, 1),
               "a listed exponent inside": set_byte(one, 5, 130), "a listed code": set_byte(one, 135, one[135] | 0x10),
               "lower base": set_byte(plain[:8] + b"\x11" * 128 + plain[136:], 0, 126),
               "descending places": two[:2] + bytes([255, 0, 0, 255, 0, 0]) + two[8:],
               "the same place twice": two[:2] + bytes([255, 255, 0, 255, 255, 0]) + two[8:]}
        for label, block in bad.items():
            with self.subTest(label):
                self.assertFalse(oracle.p12_valid(block))
                packed = self.write("bad.gguf", gguf.build([Tensor("evil", (256, 2), P12, plain + block)], P12_KEYS))
                found = self.says_no("check", packed)["first"]
                self.assertEqual((found["tensor"], found["block"]), ("evil", 1))
                self.rejected(packed, "unpack", names=("evil",))
                # the words on stdout or stderr name the tensor too
                result = self.expect(NO, "check", packed)
                self.assertIn(b"evil", result.out + result.err)


class PnBlocks(ToolTest):
    def test_bad_scales_and_reserved_bits(self):
        for name, kind in KINDS.items():
            fine = oracle.pn_block_bytes(kind, 0x3C00, [i % (2 * kind.zero) for i in range(kind.block)])
            bad = [bits.to_bytes(2, "little") + fine[2:] for bits in (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF)]
            if kind is oracle.PN3T:
                for at in (2 + 1, 2 + 3, 2 + 4 * 7 + 1, 2 + 4 * 7 + 3):
                    changed = bytearray(fine)
                    changed[at] |= 0x80  # bit 15 or 31 of a word
                    bad.append(bytes(changed))
            for block in bad:
                self.assertFalse(oracle.pn_valid(kind, block))
                tensors = [Tensor("n", (3,), F32, b"x" * 12), Tensor("good", (kind.block, 1), kind.type_id, fine),
                           Tensor("evil", (kind.block * 2, 3), kind.type_id, fine * 3 + block + fine + block)]
                source = self.write("bad.gguf", gguf.build(tensors))
                document = self.says_no("check", source)
                self.assertEqual([t.get("valid") for t in document["tensors"][1:]], [True, False])
                start = gguf.parse(source.read_bytes()).start("evil") + 3 * 34
                found = document["first"]
                self.assertEqual((found["tensor"], found["block"], found["offset"]), ("evil", 3, start))
                self.rejected(source, "unpack", names=("evil",))
            for bits in (0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x0001):
                data = bits.to_bytes(2, "little") + fine[2:]
                source = self.write("fine.gguf", gguf.build([Tensor("w", (kind.block, 1), kind.type_id, data)]))
                document = self.done_json("check", source)
                self.assertIs(document["tensors"][0]["valid"], True)


class Verify(ToolTest):
    def tensors(self):
        return [Tensor("a", (256, 2), BF16, oracle.gaussian_bf16(512, 1)), Tensor("n", (5,), F32, b"n" * 20),
                Tensor("b", (512, 2), BF16, oracle.gaussian_bf16(1024, 2)), Tensor("odd", (3, 2), BF16, b"o" * 12)]

    def setUp(self):
        super().setUp()
        self.original = self.write("original.gguf", gguf.build(self.tensors()))
        self.packed = self.path("packed.gguf")
        self.done("pack", self.original, self.packed)

    def against(self, tensors):
        return self.says_no("verify", self.packed, self.write("other.gguf", gguf.build(tensors)))

    def test_equal(self):
        document = self.done_json("verify", self.packed, self.original)
        self.assertEqual(document["verb"], "verify")
        self.assertEqual([(t["name"], t["equal"]) for t in document["tensors"]],
                         [(t.name, True) for t in self.tensors()])
        self.assertNotIn("first", document)
        self.done("verify", self.original, self.original)
        self.done("verify", self.packed, self.packed)

    def test_one_changed_weight(self):
        for name, element in (("a", 0), ("a", 511), ("b", 700), ("odd", 4), ("n", 3)):
            tensors = self.tensors()
            tensor = next(t for t in tensors if t.name == name)
            size = gguf.BLOCKS[tensor.type][1]
            data = bytearray(tensor.data)
            data[element * size] ^= 1
            tensor.data = bytes(data)
            document = self.against(tensors)
            self.assertEqual(document["first"]["tensor"], name)
            self.assertEqual(document["first"].get("element"), element)
            self.assertEqual([t["name"] for t in document["tensors"] if not t["equal"]], [name])
            table = self.expect(NO, "verify", self.packed, self.path("other.gguf")).out.decode()
            self.assertRegex(table, r"\b%s\b.*\b%d\b" % (name, element))

    def test_minus_zero_and_nan_are_compared_as_bits(self):
        for one, other in ((0x0000, 0x8000), (0x7FC1, 0x7FC2)):
            a = self.write("a.gguf", gguf.build([Tensor("w", (256, 1), BF16, oracle.u16_bytes([one] * 256))]))
            b = self.write("b.gguf", gguf.build([Tensor("w", (256, 1), BF16, oracle.u16_bytes([one] * 200 + [other] * 56))]))
            packed = self.path("p.gguf")
            self.done("pack", a, packed, "--force")
            self.done("verify", packed, a)
            self.assertEqual(self.says_no("verify", packed, b)["first"]["element"], 200)

    def test_other_tensors(self):
        missing = self.tensors()
        del missing[2]
        extra = self.tensors() + [Tensor("extra", (3,), F32, b"x" * 12)]
        shape = self.tensors()
        shape[2].dims = (256, 4)
        kind = self.tensors()
        kind[1].type, kind[1].data = gguf.I32_TENSOR, b"n" * 20
        renamed = self.tensors()
        renamed[0].name = "z"
        for label, tensors, name in (("missing", missing, "b"), ("extra", extra, "extra"), ("shape", shape, "b"),
                                     ("type", kind, "n"), ("renamed", renamed, "a")):
            with self.subTest(label):
                document = self.against(tensors)
                self.assertIn('"%s"' % name, json.dumps(document))
                result = self.expect(NO, "verify", self.packed, self.path("other.gguf"))
                self.assertIn(name.encode(), result.out + result.err)
                self.expect(NO, "verify", self.path("other.gguf"), self.packed)

    def test_other_keys_are_worth_a_warning(self):
        original = self.write("keys.gguf", gguf.build(self.tensors(), [Key("same", U32, 5), Key("other", U32, 1), Key("gone", U32, 1)]))
        packed = self.path("keys.packed")
        self.done("pack", original, packed)
        self.assertNotIn("warnings", self.done_json("verify", packed, original))
        changed = self.write("changed.gguf", gguf.build(self.tensors(), [Key("same", U32, 5), Key("other", U32, 2), Key("new", U32, 1)]))
        warnings = self.done_json("verify", packed, changed)["warnings"]
        self.assertEqual(sorted(name for name in ("same", "other", "gone", "new", "p12.version")
                                if any(name in warning for warning in warnings)), ["gone", "new", "other"])
        self.assertEqual(len(warnings), 3)
        self.assertIn(b"other", self.done("verify", packed, changed, "--quiet").err)

    def test_the_wrong_order_of_files_is_worth_a_warning(self):
        for first, second, warned in ((self.packed, self.original, False), (self.original, self.packed, True),
                                      (self.packed, self.packed, False), (self.original, self.original, False)):
            document = self.expect(NO if warned else DONE, "verify", first, second, "--json").json
            self.assertEqual(len(document.get("warnings", [])), int(warned), document)

    def test_a_tensor_of_an_unknown_type_that_is_longer(self):
        short, long = (self.write(name, gguf.build([Tensor("odd", (3, 2), 42, b"x" * size)]))
                       for name, size in (("short.gguf", 64), ("long.gguf", 96)))
        self.done("verify", short, short)
        self.assertEqual(self.says_no("verify", short, long)["first"]["tensor"], "odd")
        self.assertEqual(self.says_no("verify", long, short)["first"]["tensor"], "odd")

    def test_another_order_is_no_difference_in_tensors(self):
        document = self.done_json("verify", self.packed, self.write("other.gguf", gguf.build(self.tensors()[::-1])))
        self.assertTrue(all(t["equal"] for t in document["tensors"]))


class Inspect(ToolTest):
    def test_fields(self):
        packed = self.path("packed.gguf")
        self.done("pack", SAMPLE, packed)
        for path in (SAMPLE, packed):
            parsed = gguf.parse(path.read_bytes())
            document = self.done_json("inspect", path)
            self.assertEqual((document["verb"], document["input"]), ("inspect", str(path)))
            names = {F32: "F32", BF16: "BF16", P12: "BF16_P12"}
            wanted = [(t.name.decode(), names[t.type], t.type, list(reversed(t.dims)), offset, len(t.data))
                      for t, offset in zip(parsed.tensors, parsed.offsets)]
            got = [tuple(t[key] for key in ("name", "type", "type_id", "shape", "offset", "bytes")) for t in document["tensors"]]
            self.assertEqual(got, wanted)
            table = self.done("inspect", path).out.decode()
            for name, kind, *_ in wanted:
                self.assertIn(name, table)
                self.assertIn(kind, table)

    def test_pn_and_126_need_no_and_some_keys(self):
        tensors = [Tensor("q3", (80, 2), PN3T, b"\0" * 68), Tensor("q4", (64, 3), PN4T, b"\0" * 102),
                   Tensor("p12", (256, 1), P12, oracle.p12_pack_block([0] * 256))]
        for keys, name, size in (([], "unknown(126)", 416), (P12_KEYS, "BF16_P12", 392)):
            document = self.done_json("inspect", self.write("in.gguf", gguf.build(tensors, keys)))
            self.assertEqual([(t["type"], t["bytes"]) for t in document["tensors"]],
                             [("pn3t", 68), ("pn4t", 102), (name, size)])
            self.done("check", self.path("in.gguf"))

    def test_other_tensors_are_not_read(self):
        # 256 GiB of holes: reading them would take minutes
        size = 1 << 38
        head = gguf.header([Tensor("huge", (1 << 18, 1 << 18), F32), Tensor("bf16", (1 << 18, 1 << 5), BF16),
                            Tensor("w", (256, 1), P12)], [0, size, size + (1 << 24)], P12_KEYS)
        head += b"\0" * gguf.padding(len(head), 32)
        path = self.path("huge.gguf")
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(len(head) + size + (1 << 24))
            file.seek(0, os.SEEK_END)
            file.write(oracle.p12_pack_block([0x3F80] * 256))
        for verb in ("inspect", "check"):
            begin = time.monotonic()
            document = self.done_json(verb, path, timeout=20)
            self.assertLess(time.monotonic() - begin, 5, verb)
            self.assertEqual(len(document["tensors"]), 3)
        self.assertIs(document["tensors"][2]["valid"], True)


class Check(ToolTest):
    def test_plain_and_packed_files_are_valid(self):
        packed = self.path("packed.gguf")
        self.done("pack", SAMPLE, packed)
        for path in (SAMPLE, packed):
            document = self.done_json("check", path)
            self.assertNotIn("first", document)
            self.assertNotIn(False, [t.get("valid") for t in document["tensors"]])

    def test_empty_packed_tensors(self):
        tensors = [Tensor("e", (256, 0), P12), Tensor("f", (64, 0), PN4T), Tensor("g", (0, 4), PN3T)]
        self.done("check", self.write("in.gguf", gguf.build(tensors, P12_KEYS)))
        self.done("unpack", self.path("in.gguf"), self.path("out.gguf"))
        parsed = gguf.parse(self.path("out.gguf").read_bytes())
        self.assertEqual([t.type for t in parsed.tensors], [BF16, F32, F32])
        self.assertEqual(parsed.keys, [])

    def test_a_cut_block_is_bad_input(self):
        packed = self.path("packed.gguf")
        self.done("pack", SAMPLE, packed)
        parsed = gguf.parse(packed.read_bytes())
        cut = self.write("cut.gguf", packed.read_bytes()[:max(parsed.offsets) + 10])
        self.fails(BAD_INPUT, "check", cut, names=("cut.gguf",))


if __name__ == "__main__":
    main()
