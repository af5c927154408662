"""The cases of v3/: the Hadamard rotation, alone and around PN, and weights beyond fp16. Never changed, as cases_v2.py.

Where a case exists because of one common mistake, the mistake is made here too, and the case must show it.
"""
import struct

from arithmetic import (HADAMARD, TYPES, Random, decoded_anyhow, f32, f32_bits, fp64_bits_to_bf16, half_value, pn_block,
                        quantize, rotated, rotated_activations, rounded_to, signed_half, to_half)

LETTER = {"fp16": "H", "bf16": "H", "fp32": "f", "fp32_bits": "I", "fp64_bits": "Q"}
OK, BAD_LENGTH = {"result": "ok"}, {"result": "bad_length"}


def not_finite(element):
    return {"result": "not_finite", "element": element}


def bits_of(v):
    return struct.unpack("<I", struct.pack("<f", v))[0]


class Kit:
    """The kit of cases_v2.py, with files in v3/ and `b`, the Hadamard block, in the tests."""

    def __init__(self, kit):
        self.kit = kit

    def file(self, name, dtype, values):
        values = list(values)
        data = b"".join(values) if dtype == "pn_block" else struct.pack("<%d%s" % (len(values), LETTER[dtype]), *values)
        return self.kit.known("v3/%s.bin" % name, dtype.replace("_bits", ""), data)

    def test(self, name, proves, inputs, expected, k=None, b=None):
        form, operation = name.split(".")[:2]
        self.kit.test(name, proves, form, operation, inputs, expected, k)
        if b is not None:
            entry = self.kit.tests[-1]
            self.kit.tests[-1] = {**{n: v for n, v in entry.items() if n not in ("inputs", "expected")}, "b": b,
                                  "inputs": inputs, "expected": expected}


# The rotation alone ---------------------------------------------------------------------------------------------------

def rows_to_rotate(random, b, k):
    """Rows of several kinds, none of which overflows."""
    bell = lambda: [f32(0.02 * random.bell()) for _ in range(k)]
    one = [0.0] * k
    one[random.below(b)] = 1.0
    one[k - 1] = -3.0
    outliers = bell()
    for _ in range(3):
        outliers[random.below(k)] = f32(20 * random.sign() * (1 + random.uniform()))
    # Pairs that cancel early in one order of the butterflies and late in the other, among small values.
    wide = [f32(random.sign() * (1 + random.uniform()) * 2.0 ** random.between(-30, 4)) for _ in range(k)]
    for distance in (1, 2, b // 4, b // 2):
        at = random.below(k) & ~distance
        wide[at] = 2.0 ** random.between(55, 60)
        wide[at + distance] = -wide[at]
    tiny = [f32_bits(random.bits(23) | random.bits(1) << 31) for _ in range(k)]
    for e in range(k - b, k) if k > b else ():
        tiny[e] = -0.0
    return {"one": one, "bell": bell(), "outliers": outliers, "wide": wide, "tiny": tiny}


def add_rotation(kit):
    for b in HADAMARD:
        random = Random(0x4ADA000000000000 + b)
        k = 2 * b if b < 512 else b
        rows = rows_to_rotate(random, b, k)
        if b >= 512:
            rows = {kind: rows[kind] for kind in ("outliers", "wide", "tiny")}
        values = lambda row, *fault: [rounded_to("fp32", v) for v in rotated(row, b, *fault)]
        result = {kind: values(row) for kind, row in rows.items()}
        for kind, fault in (("outliers", "fp32 butterflies"), ("wide", "largest h first"), ("outliers", "c in fp32"),
                            ("tiny", "sums from +0.0")):
            same = fault == "c in fp32" and HADAMARD[b] == f32(HADAMARD[b]) or fault == "sums from +0.0" and k == b
            assert same == (values(rows[kind], fault) == result[kind]), (b, kind, fault)
        weights = kit.file("hadamard-%d-weights" % b, "fp32", (v for row in rows.values() for v in row))
        path = kit.file("hadamard-%d-rotated" % b, "fp32_bits", (v for r in result.values() for v in r))
        also = ("one 1, bell curves, ", " and -0.0") if b < 512 else ("", "")
        kit.test("hadamard.rotate.b%d" % b, "Butterflies from h = 1 on and the constant in double, rounded once to "
                 "fp32: %soutliers, pairs that cancel, subnormals%s." % also, {"weights": weights}, {"weights": path},
                 k, b)
        result = {kind: rotated_activations(row, b) for kind, row in rows.items()}
        for fault in ("double butterflies", "largest h first", "c in double"):
            same = fault == "c in double" and HADAMARD[b] == f32(HADAMARD[b])
            assert same == (rotated_activations(rows["outliers"], b, fault) == result["outliers"]), (b, fault)
        x = kit.file("hadamard-%d-x" % b, "fp32", (v for r in result.values() for v in r))
        kit.test("hadamard.rotate_activations.b%d" % b, "The weights of hadamard.rotate.b%d as activations: the same "
                 "butterflies and the constant, every step rounded to fp32." % b, {"x": weights}, {"x": x}, k, b)

    k, b = 192, 64
    row = lambda changes: [changes.get(e, bits_of(0.01 * (e % 7 - 3))) for e in range(k)]
    rows = [(row({e: bad}), not_finite(e)) for e, bad in (
        (0, 0x7FC00000), (k - 1, 0xFFC00000), (1, 0x7F800000), (63, 0xFF800000), (64, 0x7F800001), (130, 0xFFFFFFFF))]
    rows.append((row({66: 0x7F800000, 67: 0x7FC00000, 191: 0xFF800000}), not_finite(66)))
    # 64 equal values v come together as 8 * v; those of column 5 of the matrix at element 5.
    equal = lambda v, start, place=0: {start + e: bits_of(-v if bin(e & place).count("1") % 2 else v)
                                       for e in range(64)}
    most = f32_bits(0x7F7FFFFF)
    rows += [(row(equal(most / 8, 64)), OK), (row(equal(-most / 8, 0)), OK),
             (row(equal(f32_bits(bits_of(most / 8) + 1), 64)), not_finite(64)),
             (row(equal(-f32_bits(bits_of(most / 8) + 1), 128)), not_finite(128)),
             (row(equal(most, 64, 5)), not_finite(69)),
             (row({**equal(most, 64), 128: 0x7FC00000}), not_finite(64)),  # the first segment with a fault
             (row({**equal(most, 64), 127: 0x7FC00000}), not_finite(127))]  # in it, a weight before a result
    kit.test("hadamard.rotate.refused", "A NaN or an infinity among the weights is refused, and a result beyond fp32: "
             "the first segment with a fault is named, in it a weight before a result.",
             {"weights": kit.file("hadamard-refused-weights", "fp32_bits", (v for r, _ in rows for v in r))},
             {"rows": [result for _, result in rows]}, k, b)
    for k, b in ((96, 64), (64, 32), (192, 192), (2048, 2048)):
        path = kit.file("hadamard-refused-length-%d-%d-weights" % (k, b), "fp32", [1.0] * k)
        proves = "K = %d is not a multiple of b = %d." if b in HADAMARD else "K = %d; %d is no Hadamard block."
        for operation, name in (("rotate", "weights"), ("rotate_activations", "x")):
            kit.test("hadamard.%s.refused-length-%d-%d" % (operation, k, b), proves % (k, b), {name: path},
                     {"rows": [BAD_LENGTH]}, k, b)


# Around PN ------------------------------------------------------------------------------------------------------------

# Seeds at which a rotated value lies so close to the middle of two neighbours that it matters whether it was rounded to
# fp32 before; found by a search.
TWICE = {("pn3t", "fp16"): (98, 112), ("pn3t", "bf16"): (66, 406), ("pn4t", "fp16"): (40, 213),
         ("pn4t", "bf16"): (4603, 5829)}


class PnCases:
    def __init__(self, kit, name):
        self.kit, self.name = kit, name
        self.bits, self.per_word = TYPES[name]
        self.size, self.zero = 8 * self.per_word, 2 ** (self.bits - 1)
        self.random = Random(0x4ADA00000000F000 + self.bits)

    def shortest(self, b):
        """The shortest row that takes both."""
        return next(k for k in range(b, 6000, b) if k % self.size == 0)

    def block(self, scale, codes):
        return pn_block(scale, codes, self.bits, self.per_word)

    def quantized(self, row):
        """(scale, codes) of each block of a row."""
        return [quantize(row[at:at + self.size], self.bits) for at in range(0, len(row), self.size)]

    def decoded(self, blocks):
        return [signed_half(d) * float(n - self.zero) for d, codes in blocks for n in codes]

    def add(self):
        self.add_round_trips()
        self.add_one_rounding()
        self.add_signs_of_zero()
        self.add_refused()
        self.add_beyond_fp16()

    def add_round_trips(self):
        for b in HADAMARD:
            k = self.shortest(b)
            rows = [f32(0.02 * self.random.bell()) for _ in range(k)]
            for _ in range(k // 64):
                rows[self.random.below(k)] = f32(self.random.sign() * (1 + self.random.uniform()))
            turned = [f32(v) for v in rotated(rows, b)]
            blocks = self.quantized(turned)
            assert blocks[:1] != self.quantized(rows[:self.size])
            prefix = "%s-rotated-%d-" % (self.name, b)
            path = self.kit.file(prefix + "blocks", "pn_block", (self.block(*v) for v in blocks))
            self.kit.test("%s.quantize_rotated.b%d" % (self.name, b), "Rotated and rounded to fp32, then the reference "
                          "search; b = %d." % b, {"weights": self.kit.file(prefix + "weights", "fp32", rows)},
                          {"blocks": path}, k, b)
            back = rotated(self.decoded(blocks), b)
            # About as close as quantizing without a rotation comes.
            assert sum((v - w) ** 2 for v, w in zip(back, rows)) < 0.06 * sum(w * w for w in rows)
            self.decode(prefix, "b%d" % b, "Decoded, rotated back in double, rounded once to %%s; b = %d." % b, path,
                        back, k, b, ["fp32", "fp16", "bf16"] if b < 256 else ["fp32"])

    def decode(self, prefix, label, proves, blocks, values, k, b, dtypes):
        for dtype in dtypes:
            operation = "decode_rotated" + ("" if dtype == "fp32" else "_to_" + dtype)
            bits = [rounded_to(dtype, v) for v in values]
            assert 0x7C00 not in bits and 0xFC00 not in bits or dtype != "fp16"
            out = self.kit.file(prefix + dtype, dtype.replace("fp32", "fp32_bits"), bits)
            self.kit.test("%s.%s.%s" % (self.name, operation, label), proves % dtype if "%s" in proves else proves,
                          {"blocks": blocks}, {"weights": out}, k, b)

    def near_midpoint(self, seed, k):
        """Blocks at random."""
        random = Random(seed * 0x9E3779B97F4A7C15 % 2**64)
        return [(to_half(random.sign() * (1 + random.uniform()) * 2.0 ** random.between(-9, 0)),
                 [random.bits(self.bits) for _ in range(self.size)]) for _ in range(k // self.size)]

    def halfway(self, dtype, sign, k):
        """One weight of 16 (b = 256) times the middle of two neighbours, one of 2^-24, and zeros."""
        zeros, d = [self.zero] * self.size, 683 * 2.0**6 if dtype == "fp16" else 257 * 2.0**5
        first = (to_half(sign * d), [self.zero - (3 if dtype == "fp16" else 1)] + zeros[1:])
        return [first, (1, [self.zero + 1] + zeros[1:])] + [(1, zeros)] * (k // self.size - 2)

    def add_one_rounding(self):
        for dtype in ("fp16", "bf16"):
            for b in (128, 256):
                k = self.shortest(b)
                rows = ([self.near_midpoint(seed, k) for seed in TWICE[self.name, dtype]] if b == 128
                        else [self.halfway(dtype, sign, k) for sign in (1, -1)])
                values = [rotated(self.decoded(row), b) for row in rows]
                for row in values:
                    assert any(rounded_to(dtype, v) != rounded_to(dtype, f32(v)) for v in row)
                prefix = "%s-once-%d-%s-" % (self.name, b, dtype)
                path = self.kit.file(prefix + "blocks", "pn_block", (self.block(*v) for row in rows for v in row))
                self.decode(prefix, "once-b%d" % b, "Rounded once from double to %s: by way of fp32 each row differs.",
                            path, [v for row in values for v in row], k, b, [dtype])

    def add_signs_of_zero(self):
        b = 64
        k, zeros = self.shortest(b), [self.zero] * self.size
        rows = [[(d, zeros)] * (k // self.size) for d in (0x8001, 0x0000, 0xBC00)]
        rows.append([(d, [self.zero - e % 2 for e in range(self.size)])
                     for d, _ in zip([0x8000, 0x0000, 0x3C00, 0xBC00] * k, range(k // self.size))])
        values = [v for row in rows for v in rotated(self.decoded(row), b)]
        bits = [rounded_to("fp32", v) for v in values]
        assert bits.count(0x80000000) > 1 and bits.count(0) > 1
        assert bits != [rounded_to("fp32", v) for row in rows for v in rotated(self.decoded(row), b, "sums from +0.0")]
        path = self.kit.file(self.name + "-rotated-zeros-blocks", "pn_block", (self.block(*v) for r in rows for v in r))
        self.decode(self.name + "-rotated-zeros-", "signs-of-zero", "Sums of zeros keep the signs that their "
                    "butterflies give them: -0.0 + -0.0 is -0.0, and a matrix that adds to +0.0 differs.", path, values,
                    k, b, ["fp32"])

    def add_refused(self):
        b = 64
        k = 2 * self.shortest(b)
        row = lambda changes: [changes.get(e, bits_of(0.01 * (e % 7 - 3))) for e in range(k)]
        equal = {64 + e: bits_of(2.0e5) for e in range(64)}  # 1.6e6 at element 64
        assert quantize([f32(2.0e5)] * self.size, self.bits) is not None
        alone = {70: bits_of(2.0e6)}  # too large for a block, but the rotation spreads it
        assert quantize([f32_bits(v) for v in row(alone)][64:64 + self.size], self.bits) is None
        rows = [(row({0: 0x7FC00000}), not_finite(0)), (row({k - 1: 0xFF800000}), not_finite(k - 1)),
                (row({65: 0x7F800001}), not_finite(65)),
                (row(equal), {"result": "scale_overflow", "element": 64 // self.size * self.size}), (row(alone), OK),
                (row({}), OK)]
        for values, result in rows:
            if "not_finite" not in result["result"]:
                turned = [f32(v) for v in rotated([f32_bits(v) for v in values], b)]
                failed = [i for i, v in enumerate(self.quantized(turned)) if v is None]
                assert [i * self.size for i in failed[:1]] == ([result["element"]] if "element" in result else [])
        path = self.kit.file(self.name + "-rotated-refused-weights", "fp32_bits", (v for r, _ in rows for v in r))
        self.kit.test(self.name + ".quantize_rotated.refused", "A NaN or an infinity is named where it is; a scale "
                      "overflows by what the rotated weights are, so that one large weight alone is spread and fits.",
                      {"weights": path}, {"rows": [result for _, result in rows]}, k, b)
        for k, b in (((128, 128), (80, 64), (320, 128)) if self.size == 80 else ((192, 128), (64, 128), (64, 32))):
            path = self.kit.file("%s-rotated-refused-%d-%d-weights" % (self.name, k, b), "fp32", [1.0] * k)
            self.kit.test("%s.quantize_rotated.refused-length-%d-%d" % (self.name, k, b), "K = %d is not a multiple of "
                          "both blocks, or b = %d is none." % (k, b), {"weights": path}, {"rows": [BAD_LENGTH]}, k, b)

    def add_beyond_fp16(self):
        """65520 and more has no fp16; a d times a level comes to 65520 exactly, or stays at 65504 and below."""
        size, zero = self.size, self.zero
        k = 2 * size
        half = lambda v: to_half(float(v))
        plain = [zero + (e + 1) % 2 for e in range(size)]

        def code(place, level, elsewhere=plain):
            return [zero + level if e == place else n for e, n in enumerate(elsewhere)]

        levels = [(65504, 1, False), (65504, -1, False), (32752, 2, False), (32768, 2, True), (16376, -4, False),
                  (16384, -4, True), (21840, 3, True), (21824, 3, False), (21840, -3, True)]
        if zero == 8:
            levels += [(9360, 7, True), (9352, 7, False), (13104, 5, True), (13096, -5, False), (10920, -6, True),
                       (8188, -8, False), (8192, -8, True)]
        rows = []
        for i, (d, level, beyond) in enumerate(levels):
            for sign in (1, -1):
                assert half_value(half(d)) == d and (abs(d * level) >= 65520) == beyond
                place = (0, size - 1, 7, size // 2)[i % 4]
                first = (half(sign * d), code(place, level, [zero] * size))
                other = (0x3C00, plain)
                element = place + size * (i % 2)
                rows.append(([other, first] if i % 2 else [first, other], not_finite(element) if beyond else OK))
        rows.append(([(half(32768), code(9, 2, code(4, -3))), (half(32768), code(0, -4))], not_finite(4)))
        for blocks, result in rows:
            bits = [rounded_to("fp16", v) & 0x7FFF for v in self.decoded(blocks)]
            assert result == (not_finite(bits.index(0x7C00)) if 0x7C00 in bits else OK)
        path = self.kit.file(self.name + "-beyond-fp16-blocks", "pn_block",
                             (self.block(*v) for r, _ in rows for v in r))
        self.kit.test(self.name + ".decode_to_fp16.beyond", "A weight that rounds to infinity in fp16 (65520 and more) "
                      "is refused; the first is named.", {"blocks": path}, {"rows": [r for _, r in rows]}, k)
        out = self.kit.file(self.name + "-beyond-fp16-bf16", "bf16", (
            rounded_to("bf16", v) for blocks, _ in rows for v in self.decoded(blocks)))
        self.kit.test(self.name + ".decode_to_bf16.beyond-fp16", "No PN weight is beyond bf16.", {"blocks": path},
                      {"weights": out}, k)

        b = 64
        k = self.shortest(b)
        equal = lambda d, level: [(half(d), [zero + level] * size)] * (k // size)
        rows = [(equal(2730, 3), not_finite(0)), (equal(2728, 3), OK), (equal(-2730, 3), not_finite(0)),
                (equal(8190 // 2, 2), not_finite(0)), (equal(4094, 2), OK), (equal(4094, -2), OK)]
        if size == 80:  # equal weights in a whole segment only behind the others
            rows.append(([(0x3C00, plain)] * 3 + equal(2730, 3)[:1], not_finite(256)))
        for blocks, result in rows:
            bits = [rounded_to("fp16", v) & 0x7FFF for v in rotated(self.decoded(blocks), b)]
            assert result == (not_finite(bits.index(0x7C00)) if 0x7C00 in bits else OK)
        path = self.kit.file(self.name + "-rotated-beyond-fp16-blocks", "pn_block",
                             (self.block(*v) for r, _ in rows for v in r))
        self.kit.test(self.name + ".decode_rotated_to_fp16.beyond", "Decoded weights within fp16, of which one rotated "
                      "back is beyond it, are refused.", {"blocks": path}, {"rows": [r for _, r in rows]}, k, b)


# Numbers --------------------------------------------------------------------------------------------------------------

def add_numbers(kit):
    long = lambda v: struct.unpack("<Q", struct.pack("<d", v))[0]
    both = lambda values: [v for x in values for v in (x, x | 2**63)]

    def test(label, proves, inputs):
        kit.test("numbers.fp64_to_bf16." + label, proves,
                 {"values": kit.file("numbers-fp64-to-bf16-%s-in" % label, "fp64_bits", inputs)},
                 {"values": kit.file("numbers-fp64-to-bf16-%s-out" % label, "bf16", map(fp64_bits_to_bf16, inputs))})

    once = [1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 2.0**-134, 2.0**-135, 2.0**-133, 2.0**-126, 0.0,
            5e-324, 1.7976931348623157e308, (2 - 2.0**-8) * 2.0**127, (2 - 2.0**-7) * 2.0**127]
    assert [fp64_bits_to_bf16(long(v)) for v in once[:2]] == [0x3F81, 0x3F80]
    inputs = [long(v) for v in once] + [long(2.0**-134) + 1, long((2 - 2.0**-8) * 2.0**127) - 1]
    inputs += [0x7FF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0x7FF01FFFFFFFFFFF,
               0x7FF0200000000000]
    test("listed", "One rounding, not two: 1 + 2^-8 + 2^-40 becomes 3F81. Overflow, subnormals, NaN.", both(inputs))
    middles = []
    for e in (0, 1, 2, 0x3F, 0x7E, 0x7F, 0x80, 0xC0, 0xFD, 0xFE):
        for m in (0, 1, 2, 0x3F, 0x40, 0x7E, 0x7F):
            low = e << 7 | m
            above = f32_bits(low + 1 << 16) if low < 0x7F7F else 2.0**128
            middles.append((f32_bits(low << 16) + above) / 2)
    test("midpoints", "At midpoints of bf16 neighbours, and one and two double steps either side.",
         both(long(v) + step for v in middles for step in (-2, -1, 0, 1, 2)))


def add(kit):
    kit = Kit(kit)
    add_rotation(kit)
    for name in TYPES:
        PnCases(kit, name).add()
    add_numbers(kit)
