"""The tool writes the same bytes and says the same words whatever instruction set and however many threads it has.

Proves it for every verb on a small model of hard weights, and for faults in the first, in the last and in a later unit
of what is converted at once: all name the element that tests put there.

PNPACK names the tool, of a build that obeys PN_CPU_ISA.
"""

import array
import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pnpack"))
import gguf_files as gguf  # noqa: E402
import imatrix_files as imatrix  # noqa: E402
import oracle  # noqa: E402
import tool  # noqa: E402
from gguf_files import BF16, F16, F32, P12, PN3T, PN4T, Key, Tensor  # noqa: E402
from tool import BAD_INPUT, DONE, NO, ToolTest, contents, main, mentions_element  # noqa: E402

PN_KEYS = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference")]
P12_KEYS = [Key("p12.version", gguf.U32, 1), Key("p12.type_id", gguf.U32, P12)]


def environment(isa):
    return dict(tool.ENVIRONMENT, PN_CPU_ISA=isa)


def runs(isa):
    return subprocess.run([tool.PNPACK, "scan", str(tool.SAMPLE)], env=environment(isa), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


ISAS = [isa for isa in ("baseline", "neon", "avx2", "avx512", "avx512_icl") if runs(isa)]
WAYS = list(itertools.product(ISAS, (1, 3)))


def f32_bytes(bits):
    return array.array("I", bits).tobytes()


def bits_of(values):
    return list(array.array("I", array.array("f", values).tobytes()))


def as_f16(bits):
    return oracle.fp16_bits(oracle.f32_from_bits(bits))


def hard_rows(k, rows, seed):
    """Bits of f32 for quantizing: rows of different kinds, all finite and none too large."""
    draw = random.Random(seed)
    some = bits_of([draw.gauss(0, 0.02) for _ in range(4096)])
    out = []
    for r in range(rows):
        kind = r % 8
        row = [some[(e * 7 + r * 131 + (e >> 11)) & 4095] for e in range(k)]
        if kind == 1:
            row = [0x80000000 * (e & 1) for e in range(k)]  # zeros
        elif kind == 2:
            row = [draw.getrandbits(23) | (draw.getrandbits(1) << 31) for _ in range(k)]  # subnormal
        elif kind == 3:
            row = bits_of([(draw.randint(-7, 7) + 0.5) / 4 for _ in range(k)])  # halfway between codes
        elif kind == 4:
            row = bits_of([float(draw.randint(-3, 3)) * 2.0 ** -24 for _ in range(k)])  # scales at fp16's smallest
        elif kind == 5:
            row = [bits if e % 97 else 0x48C35000 for e, bits in enumerate(row)]  # 400000: an outlier
        elif kind == 6:
            row = bits_of([1.5] * k)
        elif kind == 7:
            row = bits_of([0.0 if draw.random() < 0.9 else draw.gauss(0, 1) for _ in range(k)])
        out += row
    return out


def bf16_rows(k, rows, seed):
    """Patterns of bf16 for packing: listed weights, NaN with payloads, infinities, zeros, subnormals."""
    draw = random.Random(seed)
    some = [bits >> 16 for bits in bits_of([draw.gauss(0, 0.02) for _ in range(4096)])]
    out = [some[(e * 5 + (e >> 12)) & 4095] for e in range(k * rows)]
    out = [w if 0x38 << 7 < (w & 0x7FFF) else 0x3C80 | (w & 0x807F) for w in out]  # close together
    for block in range(0, k * rows, 256):
        for place in draw.sample(range(256), block // 256 % 4):
            out[block + place] = draw.choice([0x7FC1, 0xFF81, 0x7F80, 0xFF80, 0, 0x8000, 1, 0x807F, draw.getrandbits(16)])
        if block // 256 % 11 == 10:  # all zero
            out[block:block + 256] = [0x8000 * (e % 2) for e in range(256)]
        if block // 256 % 11 == 9:  # the largest base
            out[block:block + 256] = [0x7800 | draw.getrandbits(11) | draw.getrandbits(1) << 15 for _ in range(256)]
    return out


def models():
    """A model to quantize, with importances; one to pack."""
    f16 = [as_f16(bits) if abs(oracle.f32_from_bits(bits)) < 65000 else 0x7BFF for bits in hard_rows(1280, 17, 2)]
    bf16 = [bits >> 16 for bits in hard_rows(2560, 71, 3)]
    tensors = [
        Tensor("f32", (5120, 61), F32, f32_bytes(hard_rows(5120, 61, 1))),
        Tensor("f16", (1280, 17), F16, oracle.u16_bytes(f16)),
        Tensor("experts", (2560, 35, 2), BF16, oracle.u16_bytes(bf16[:2560 * 70])),
        Tensor("short", (320, 1), BF16, oracle.u16_bytes(bf16[:320])),
        Tensor("norm", (64,), F32, f32_bytes(bits_of([1.0] * 64))),
    ]
    draw = random.Random(4)
    entries = []
    for tensor, experts in zip(tensors[:3], (1, 1, 2)):
        values = [draw.random() ** 4 * 10.0 ** draw.randint(-12, 6) for _ in range(tensor.dims[0] * experts)]
        values[:80] = [0.0] * 80
        entries.append(imatrix.Entry(tensor.name, tensor.dims[0], values, [100, 3][:experts]))
    weights = bf16_rows(2560, 260, 5)
    packable = [
        Tensor("a", (2560, 260), BF16, oracle.u16_bytes(weights)),
        Tensor("b", (256, 3), BF16, oracle.u16_bytes(weights[-768:])),
        Tensor("never", (512, 40), BF16, random.Random(6).randbytes(2 * 512 * 40)),
        Tensor("f32", (512, 41), F32, f32_bytes([w << 16 | 0x8000 for w in weights[:512 * 41]])),  # ties
        Tensor("norm", (64,), BF16, oracle.u16_bytes(weights[:64])),
    ]
    return gguf.build(tensors), imatrix.gguf_form(entries), gguf.build(packable)


# Files by their names in the folder of one way to run.
COMMANDS = [
    ("scan", "packable.gguf", "--html", "scan.html"),
    ("scan", "weights.gguf", "--as", "bf16"),
    ("pack", "packable.gguf", "packed.gguf"),
    ("pack", "packable.gguf", "rounded.gguf", "--as", "bf16"),
    ("pack", "weights.gguf", "weights-p12.gguf", "--as", "bf16"),
    ("check", "packed.gguf"),
    ("verify", "packed.gguf", "packable.gguf"),
    ("unpack", "packed.gguf", "unpacked.gguf"),
    ("diff", "unpacked.gguf", "packable.gguf"),
    ("diff", "rounded.gguf", "packable.gguf"),
] + [command for to in ("pn3t", "pn4t") for command in (
    ("quantize", "weights.gguf", to + ".gguf", "--type", to),
    ("quantize", "weights.gguf", to + "-i.gguf", "--type", to, "--imatrix", "imatrix"),
    ("quantize", "weights.gguf", to + "-r.gguf", "--type", to, "--rotate", "64"),
    ("quantize", "weights-p12.gguf", to + "-p.gguf", "--type", to),
    ("check", to + "-r.gguf"),
    ("verify", to + "-i.gguf", "weights.gguf", "--imatrix", "imatrix"),
    ("verify", to + ".gguf", "weights-p12.gguf"),
    ("unpack", to + ".gguf", to + "-f32.gguf"),
    ("unpack", to + "-i.gguf", to + "-bf16.gguf", "--to", "bf16"),
    ("unpack", to + "-r.gguf", to + "-r-bf16.gguf", "--to", "bf16"),
    ("unpack", to + "-p.gguf", to + "-f16.gguf", "--to", "f16"),
)]


class Isas(ToolTest):
    def test_the_variable_is_obeyed(self):
        self.assertIn("baseline", ISAS)
        done = subprocess.run([tool.PNPACK, "scan", str(tool.SAMPLE)], env=environment("none"), capture_output=True)
        self.assertEqual(done.returncode, -signal.SIGABRT, "this build does not read PN_CPU_ISA: nothing is proved here")

    def test_same_bytes_and_same_words(self):
        weights, importances, packable = models()
        wanted = None
        for isa, threads in WAYS:
            folder = self.path("%s-%d" % (isa, threads))
            folder.mkdir()
            (folder / "weights.gguf").write_bytes(weights)
            (folder / "imatrix").write_bytes(importances)
            (folder / "packable.gguf").write_bytes(packable)
            said = []
            for command in COMMANDS:
                result = tool.run(*command, "--json", "--threads", threads, env=environment(isa), cwd=folder)
                # 400000 is beyond f16
                self.assertIn(result.code, (BAD_INPUT,) if command[-1] == "f16" else (DONE, NO), str(result))
                said.append((command, result.code, result.out, result.err))
            got = contents(folder)
            self.assertEqual(got["unpacked.gguf"], packable)
            if wanted is None:
                wanted = (said, got)
                continue
            for a, b in zip(wanted[0], said):
                self.assertEqual(a, b, "%s, %d threads" % (isa, threads))
            self.assertEqual(sorted(wanted[1]), sorted(got))
            for name in got:
                self.assertTrue(wanted[1][name] == got[name], "%s differs: %s, %d threads" % (name, isa, threads))
            for path in folder.iterdir():
                path.unlink()


class Faults(ToolTest):
    # What is converted at once: 5120 weights for PN, 40960 for BF16_P12, 512 KiB for a thread.
    K, ROWS = 2560, 80
    PLACES = (0, 79, 80, 2559, 2560, 5119, 5120, 40959, 40960, 131071, 131072, K * ROWS - 1)

    def said(self, data, code, *command):
        """What the tool says, the same in all ways to run."""
        wanted = None
        source = self.write("in.gguf", data)
        for isa, threads in WAYS:
            words = [command[0], source] + ([self.path("out.gguf")] if command[0] not in ("check", "scan") else [])
            result = tool.run(*words, *command[1:], "--threads", threads, "--json", env=environment(isa))
            self.assertEqual(result.code, code, "%s, %d: %s" % (isa, threads, result))
            self.assertFalse(self.path("out.gguf").exists())
            said = (result.out, result.err)
            self.assertEqual(said, wanted or said, "%s, %d threads" % (isa, threads))
            wanted = said
        return result.text + result.out.decode()

    def write(self, name, data):
        self.path(name).write_bytes(data)
        return self.path(name)

    def names(self, text, flat, k=K):
        self.assertTrue(mentions_element(text, flat, flat // k, flat % k), "%d: %s" % (flat, text))

    def bad(self, form, good, *faults):
        """A tensor of `good` with other bits in some places."""
        weights = [good] * (self.K * self.ROWS)
        for at, bits in faults:
            weights[at] = bits
        return array.array("I" if form == F32 else "H", weights).tobytes()

    def tensor(self, form, good, *faults):
        return gguf.build([Tensor("w", (self.K, self.ROWS), form, self.bad(form, good, *faults))])

    def test_quantize_names_the_first_weight_that_it_refuses(self):
        for n, at in enumerate(self.PLACES):
            later = [(e, 0x7FC00000) for e in self.PLACES if e > at][:n % 3]
            bits = (0x7FC00000, 0xFF800000, 0x49800000)[n % 3]  # NaN, an infinity, 2^20
            to = ("pn3t", "pn4t")[n % 2]
            if bits == 0x49800000 and to == "pn4t":
                bits = 0x4A000000
            self.names(self.said(self.tensor(F32, 0x3C000000, (at, bits), *later), BAD_INPUT, "quantize", "--type", to), at)
        for at in self.PLACES[::3]:
            self.names(self.said(self.tensor(F16, 0x3C00, (at, 0xFC00)), BAD_INPUT, "quantize", "--type", "pn4t"), at)
            self.names(self.said(self.tensor(BF16, 0x3F80, (at, 0x7FC0)), BAD_INPUT, "quantize", "--type", "pn3t"), at)

    def test_pack_and_scan_name_the_first_weight_that_rounds_to_infinity(self):
        for n, at in enumerate(self.PLACES):
            later = [(e, 0x7F7FFFFF) for e in self.PLACES if e > at][:n % 3]
            before = [(e, 0x7F800000) for e in self.PLACES if e < at][-2:]  # infinities themselves are none
            data = self.tensor(F32, 0x3F800000, (at, 0xFF7F8000), *before, *later)
            self.names(self.said(data, BAD_INPUT, "pack", "--as", "bf16"), at)
            if n % 3 == 0:
                self.names(self.said(data, BAD_INPUT, "scan", "--as", "bf16"), at)

    def test_unpack_names_the_first_weight_beyond_the_target(self):
        for form, block, to_bits, kind in ((PN3T, 80, "pn3t", oracle.PN3T), (PN4T, 64, "pn4t", oracle.PN4T)):
            zero = oracle.pn_block_bytes(kind, 0, [kind.zero] * block)
            k, rows = 2560, 40
            for at in (0, block - 1, block, 5119, 5120, k, k * rows - 1):
                blocks = [zero] * (k * rows // block)
                codes = [kind.zero] * block
                codes[at % block] = 0  # -z times the largest fp16
                blocks[at // block] = oracle.pn_block_bytes(kind, 0x7BFF, codes)
                if at // block + 1 < len(blocks):  # invalid, but later
                    blocks[at // block + 1] = struct.pack("<H", 0x7C00) + bytes(32)
                data = gguf.build([Tensor("w", (k, rows), form, b"".join(blocks))], PN_KEYS)
                self.names(self.said(data, BAD_INPUT, "unpack", "--to", "f16"), at, k)

    def test_check_names_the_block(self):
        k, rows = 2560, 300
        good = oracle.p12_pack(oracle.u16_bytes([0x3F80] * 256))
        for form, block, good in ((PN3T, 80, bytes(34)), (PN4T, 64, bytes(34)), (P12, 256, good)):
            count = k * rows // block
            for at in (0, 1, k // block - 1, k // block, 1337, 1338, count - 1):
                blocks = [good] * count
                for b in {at, min(at + 1, count - 1), count - 1}:
                    blocks[b] = b"\xFF" * len(good)
                data = gguf.build([Tensor("w", (k, rows), form, b"".join(blocks))], P12_KEYS if form == P12 else PN_KEYS)
                source = self.write("in.gguf", data)
                start = gguf.parse(data).start("w")
                wanted = None
                for isa, threads in WAYS:
                    result = tool.run("check", source, "--json", "--threads", threads, env=environment(isa))
                    self.assertEqual(result.code, NO, str(result))
                    self.assertEqual(wanted or result.out, result.out)
                    wanted = result.out
                self.assertIn(str(start + at * len(good)), wanted.decode())

    def test_the_first_of_two_kinds_of_faults_is_told(self):
        blocks = [oracle.p12_pack(oracle.u16_bytes([0x3F80] * 256))] * 20
        blocks[2] = oracle.p12_pack(oracle.u16_bytes([0x7F00] * 256))  # 2^127: too large for a scale
        blocks[5] = b"\xFF" * 392
        data = gguf.build([Tensor("w", (5120, 1), P12, b"".join(blocks))], P12_KEYS)
        self.names(self.said(data, BAD_INPUT, "quantize", "--type", "pn4t"), 512, 5120)
        self.names(self.said(data, BAD_INPUT, "quantize", "--type", "pn4t", "--rotate", "64"), 512, 5120)


if __name__ == "__main__":
    main()
