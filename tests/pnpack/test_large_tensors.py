"""Tensors larger than what the tool converts at a time: bytes and places must not depend on pieces and threads.

Proves that blocks, elements and the worst block are counted from the start of the tensor, that of two faults the first
is named, and that the number of threads changes nothing. The rows are mostly one row repeated, so that the expected
bytes are cheap.
"""

import math
import os
import re
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import BF16, F32, P12, PN4T, U32, Key, Tensor  # noqa: E402
from tool import NO, ToolTest, main, mentions_element  # noqa: E402

P12_KEYS = [Key("p12.version", U32, 1), Key("p12.type_id", U32, 126)]
ROWS = 16384  # of 256 weights: 8 MiB of BF16, 6.1 MiB packed
THREADS = (1, 2, 7, 64)
ROW = oracle.u16_bytes([0x3F80] * 256)
OTHER = oracle.u16_bytes([0x3F80] * 100 + [0x4049] * 156)
PLAIN, OTHER_BLOCK = oracle.p12_pack(ROW), oracle.p12_pack(OTHER)
INVALID = PLAIN[:1] + b"\4" + PLAIN[2:]


def rows(usual, changes, count=ROWS):
    """`count` times the bytes `usual`, but for {row: bytes}."""
    out = bytearray(usual * count)
    for row, data in changes.items():
        out[row * len(usual):(row + 1) * len(usual)] = data
    return bytes(out)


class LargeTensors(ToolTest):
    def bf16(self, changes):
        return Tensor("w", (256, ROWS), BF16, rows(ROW, changes))

    def p12(self, changes):
        return Tensor("w", (256, ROWS), P12, rows(PLAIN, changes))

    def test_bytes(self):
        changes = {0: OTHER, 5000: OTHER, ROWS - 1: OTHER}
        tail = Tensor("n", (3,), F32, b"n" * 12)
        original = gguf.build([self.bf16(changes), tail])
        packed = gguf.build([self.p12({row: OTHER_BLOCK for row in changes}), tail], P12_KEYS)
        source, out, back = self.write("in.gguf", original), self.path("out.gguf"), self.path("back.gguf")
        for threads in THREADS:
            self.done("pack", source, out, "--force", "--threads", threads)
            self.same_bytes(out, packed, "%d threads" % threads)
            self.done("unpack", out, back, "--force", "--threads", threads)
            self.same_bytes(back, original, "%d threads" % threads)
            self.done("verify", out, source, "--threads", threads)

    def test_the_worst_block(self):
        def listing(count):
            return oracle.u16_bytes([0] * count + [0x3F80] * (256 - count))

        source = self.write("in.gguf", gguf.build([self.bf16({900: listing(4), 9001: listing(9), 12000: listing(9),
                                                              15000: listing(5)}), Tensor("v", (256, 1), BF16, ROW)]))
        wanted = gguf.build([self.bf16({900: listing(4), 9001: listing(9), 12000: listing(9), 15000: listing(5)}),
                             Tensor("v", (256, 1), P12, PLAIN)], P12_KEYS)
        reasons = set()
        for threads in THREADS:
            document = self.done_json("pack", source, self.path("out.gguf"), "--force", "--threads", threads)
            self.same_bytes(self.path("out.gguf"), wanted)
            reasons.add(document["tensors"][0]["reason"])
        self.assertEqual(len(reasons), 1, reasons)
        numbers = {int(n) for n in re.findall(r"\d+", reasons.pop())}
        self.assertLessEqual({9, 9001}, numbers)

    def test_a_block_that_does_not_fit_late(self):
        # what was packed before it was met leaves no trace
        late = self.bf16({15000: oracle.u16_bytes([0] * 4 + [0x3F80] * 252)})
        tail = Tensor("v", (256, 1), BF16, ROW)
        source = self.write("in.gguf", gguf.build([late, tail]))
        wanted = gguf.build([late, Tensor("v", (256, 1), P12, PLAIN)], P12_KEYS)
        for threads in THREADS:
            self.done("pack", source, self.path("out.gguf"), "--force", "--threads", threads)
            self.same_bytes(self.path("out.gguf"), wanted, "%d threads" % threads)

    def test_check_names_the_first_bad_block(self):
        packed = self.write("p.gguf", gguf.build([self.p12({11000: INVALID, 11001: INVALID, 15000: INVALID})], P12_KEYS))
        start = gguf.parse(packed.read_bytes()).start("w")
        for threads in THREADS:
            found = self.expect(NO, "check", packed, "--json", "--threads", threads).json["first"]
            self.assertEqual((found["block"], found["offset"]), (11000, start + 11000 * 392))

    def test_verify_names_the_first_difference(self):
        original = self.write("o.gguf", gguf.build([self.bf16({})]))
        # other weights before an invalid block, near and far: the place of the weights comes first
        for row, invalid in ((0, 1), (0, 3000), (9000, 9001), (5, ROWS - 1), (15000, 16000)):
            packed = self.write("p.gguf", gguf.build([self.p12({row: OTHER_BLOCK, invalid: INVALID})], P12_KEYS))
            for threads in THREADS:
                found = self.expect(NO, "verify", packed, original, "--json", "--threads", threads).json["first"]
                self.assertEqual(found.get("element"), row * 256 + 100, (row, invalid, threads, found))
        packed = self.write("p.gguf", gguf.build([self.p12({9000: INVALID, 9001: OTHER_BLOCK})], P12_KEYS))
        for threads in THREADS:
            found = self.expect(NO, "verify", packed, original, "--json", "--threads", threads).json["first"]
            self.assertEqual(found.get("block"), 9000)

    def test_quantize_names_the_first_bad_weight(self):
        zeros = b"\0" * 256
        bad = [struct.pack("<64f", *([0.0] * column + [value] + [0.0] * (63 - column)))
               for column, value in ((41, math.nan), (7, math.inf), (3, 3e38))]
        source = self.write("in.gguf", gguf.build(
            [Tensor("w", (64, 2 * ROWS), F32, rows(zeros, {31000: bad[0], 31001: bad[1], 32000: bad[2]}, 2 * ROWS))]))
        for threads in THREADS:
            error = self.rejected(source, "quantize", "--type", "pn4t", "--threads", str(threads), names=("w",))
            self.assertTrue(mentions_element(error["message"], 31000 * 64 + 41, 31000, 41), error)

    def test_quantize_and_unpack(self):
        usual, other = oracle.gaussian(64, 1), oracle.gaussian(64, 2)
        count = 2 * ROWS
        tensor = Tensor("w", (64, count), F32, rows(oracle.f32_bytes(usual), {20000: oracle.f32_bytes(other)}, count))
        quantized = rows(oracle.pn_quantize(oracle.PN4T, usual), {20000: oracle.pn_quantize(oracle.PN4T, other)}, count)
        source, out, back = self.write("in.gguf", gguf.build([tensor])), self.path("out.gguf"), self.path("back.gguf")
        wanted = gguf.build([Tensor("w", (64, count), PN4T, quantized)],
                            [Key("pn.version", U32, 0), Key("pn.search", gguf.STRING, "reference")])
        decoded = {part: expected.decoded_bytes(oracle.PN4T, oracle.pn_quantize(oracle.PN4T, part_weights), "bf16")
                   for part, part_weights in (("usual", usual), ("other", other))}
        restored = gguf.build([Tensor("w", (64, count), BF16, rows(decoded["usual"], {20000: decoded["other"]}, count))])
        documents = []
        for threads in THREADS:
            documents.append(self.done_json("quantize", source, out, "--type", "pn4t", "--force", "--threads", threads))
            self.same_bytes(out, wanted, "%d threads" % threads)
            self.done("unpack", out, back, "--to", "bf16", "--force", "--threads", threads)
            self.same_bytes(back, restored, "%d threads" % threads)
        self.assertEqual(documents, [documents[0]] * len(documents))

    def test_the_error_is_that_of_all_pieces(self):
        # small errors everywhere but in one row near the beginning, which decides
        usual, other, count = [0.5, -0.5] * 32, oracle.gaussian(64, 2, 100.0), 2 * ROWS
        source = self.write("in.gguf", gguf.build([Tensor("w", (64, count), F32, rows(
            oracle.f32_bytes(usual), {20: oracle.f32_bytes(other)}, count))]))
        error = weight = 0.0
        for weights, times in ((usual, count - 1), (other, 1)):
            weights = [oracle.f32_from_bits(oracle.f32_bits(w)) for w in weights]
            decoded = oracle.pn_decode(oracle.PN4T, oracle.pn_quantize(oracle.PN4T, weights))
            error += times * sum((w - d) ** 2 for w, d in zip(weights, decoded))
            weight += times * sum(w * w for w in weights)
        wanted = math.sqrt(error / weight)
        self.assertGreater(wanted, 0)
        for threads in THREADS:
            document = self.done_json("quantize", source, self.path("out.gguf"), "--type", "pn4t", "--force", "--threads", threads)
            self.assertAlmostEqual(document["tensors"][0]["nrmse"] / wanted, 1, delta=1e-4)

    def test_unpack_names_the_first_overflow(self):
        fine = oracle.pn_block_bytes(oracle.PN4T, 0x3C00, [3] * 64)
        high = oracle.pn_block_bytes(oracle.PN4T, 0x7BFF, [8] * 50 + [0] * 14)
        invalid = oracle.pn_block_bytes(oracle.PN4T, 0x7C00, [8] * 64)
        source = self.write("in.gguf", gguf.build(
            [Tensor("w", (64, 2 * ROWS), PN4T, rows(fine, {29000: high, 29001: invalid, 30000: high}, 2 * ROWS))]))
        for threads in THREADS:
            error = self.rejected(source, "unpack", "--to", "f16", "--threads", str(threads), names=("w",))
            self.assertTrue(mentions_element(error["message"], 29000 * 64 + 50, 29000, 50), error)


if __name__ == "__main__":
    main()
