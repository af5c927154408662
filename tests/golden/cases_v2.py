"""The cases of v2/, and what each of v1/ and v2/ proves. Never changed: what is missing goes into a folder of its own.

Where a case exists because of one common mistake, the mistake is made here too, and the case must show it.
"""
import struct

from arithmetic import (TYPES, Random, codes_of, decoded_anyhow, dot, f32, f32_bits, fp32_bits_to_bf16,
                        fp32_bits_to_half, fp64_bits_to_half, half_to_fp32_bits, half_value, p12_result, pack, pn_block,
                        pn_result, q8_0, q8_0_values, quantize, signed_half, to_half, unpack)

NAN, INFINITY = f32_bits(0x7FC00000), f32_bits(0x7F800000)


class Kit:
    """Files by name and tests in order."""

    def __init__(self):
        self.files, self.tests = {}, []

    def file(self, name, dtype, values):
        """A file of v2/; values of a block type are its bytes."""
        values = list(values)
        if dtype.endswith("block"):
            data = b"".join(values)
        else:
            letter = {"fp16": "H", "bf16": "H", "fp32": "f", "fp64": "d", "fp32_bits": "I", "fp64_bits": "Q"}[dtype]
            data = struct.pack("<%d%s" % (len(values), letter), *values)
        return self.known("v2/%s.bin" % name, dtype.replace("_bits", ""), data)

    def known(self, path, dtype, data):
        assert path not in self.files or self.files[path] == (dtype, data)
        self.files[path] = (dtype, data)
        return path

    def test(self, name, proves, form, operation, inputs, expected, k=None):
        assert all(name != t["id"] for t in self.tests)
        entry = {"id": name, "proves": proves, "format": form, "operation": operation}
        if k is not None:
            entry["k"] = k
        entry["inputs"], entry["expected"] = inputs, expected
        self.tests.append(entry)


# PN -----------------------------------------------------------------------------------------------------------------

def first_float(holds):
    """The first non-negative fp32 of which something holds, as bits; it holds of all later ones."""
    low, high = 0, 0x7F7FFFFF
    while low < high:
        middle = (low + high) // 2
        if holds(f32_bits(middle)):
            high = middle
        else:
            low = middle + 1
    return low


def amax_edges(zero):
    """fp32 bits at which the first and the last candidate begin to survive, and to overflow."""
    scale = lambda i, amax: to_half((50 + 2 * i) / 100 * amax / zero)
    return [first_float(lambda amax: scale(35, amax) != 0), first_float(lambda amax: scale(0, amax) != 0),
            first_float(lambda amax: scale(35, amax) == 0x7C00), first_float(lambda amax: scale(0, amax) == 0x7C00)]


def telling(fault, make, bits, count, seeds=range(1, 4000)):
    """Blocks (weights, importance) made from seeds, on which the fault gives other bytes."""
    found = []
    for seed in seeds:
        block = make(Random(seed * 0x9E3779B97F4A7C15 % 2**64))
        if block is not None and quantize(block[0], bits, block[1]) != quantize(block[0], bits, block[1], fault):
            found.append(block)
            if len(found) == count:
                return found
    raise AssertionError("%s: only %d blocks tell" % (fault, len(found)))


def favouring(random, i, size, zero, near_midpoint):
    """Weights that are best under candidate i, whose scale lies beside the middle of two fp16; or None, when there the
    common mistake makes no difference. The importance leaves out the largest weight."""
    m = (50 + 2 * i) / 100
    half = 0x2000 + random.between(0, 0x1FFE)
    middle = float(half_value(half) + half_value(half + 1)) / 2
    amax = f32(middle * zero / m)
    if near_midpoint:
        amax = f32(amax * (1 + (random.uniform() - 0.5) * 2.0**-23))
        wrong = to_half(f32(m * amax / zero))
    else:
        wrong = to_half((0.50 + 0.02 * i) * amax / zero)
    if to_half(m * amax / zero) == wrong:
        return None
    sign = random.sign()
    scale = float(half_value(half + random.bits(1)))
    values = []
    for _ in range(size):
        level = random.between(-zero, zero - 1)
        while abs(level * scale) > amax:
            level = random.between(-zero, zero - 1)
        values.append(f32(level * scale * -sign))
    place = random.below(size)
    values[place] = sign * amax
    return values, [0.0 if e == place else 1.0 for e in range(size)]


def noisy_ties(random, size, zero, noise):
    """Small multiples of the smallest scale: two scales with nearly or exactly the same error."""
    span = random.between(2, 6 * zero)
    values = [noise * (2 * random.uniform() - 1) for _ in range(size)]
    for _ in range(random.between(1, size // 4)):
        values[random.below(size)] = random.between(-span, span) * 2.0**-24
    return [f32(v) for v in values]


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = z = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def below(self, n):
        return (self.next() >> 32) * n >> 32


# Seeds at which a product fused into the sum lets another scale win; found by a long search.
FUSED = {"pn3t": (20758, 105154, 903986, 1153068, 1376811, 1624891), "pn4t": (1086712, 1256582, 1320198, 1797787)}


def fused_block(seed, size, zero):
    random = SplitMix64(seed)
    weights, importance = [0.0] * size, [1.0] * size
    amax = 50 * zero  # the candidate scales are 25, 26, .. 60
    for e in range(17):
        if 1 <= e <= 10:
            weights[e] = ((random.next() >> 40) - 2**23) * 2.0**-24
            importance[e] = (1 + random.below(2**30)) * 2.0**-29
        else:
            weights[e] = float(random.below(2 * amax + 1) - amax)
    weights[17] = float(-amax)
    return weights, importance


# Seeds at which the order or the precision of the sum lets another scale win; found in the same way.
SUM_ORDER = {"pn3t": (37, 87, 147, 241, 377, 721), "pn4t": (5, 51, 134, 204, 384, 423)}
SUM_IN_FP32 = {"pn3t": (37, 55, 241, 565, 577, 721), "pn4t": (5, 66, 134, 177, 240, 423)}

# Seeds at which the order of the factors lets another scale win; found by a search.
SQUARE_FIRST = {"pn3t": (1466, 6885), "pn4t": (26116, 28206)}

# The i, of the 8, at which a block can be best although its largest weight is clamped.
PLAIN_M = {"pn3t": (9, 16, 17, 21, 32, 33, 34, 35), "pn4t": (21, 32, 33, 34, 35)}


class PnCases:
    def __init__(self, kit, name):
        self.kit, self.name = kit, name
        self.bits, self.per_word = TYPES[name]
        self.size, self.zero = 8 * self.per_word, 2 ** (self.bits - 1)
        self.every = range(self.size)

    @staticmethod
    def plain(make):
        """The same blocks without importance."""
        def without(random):
            block = make(random)
            return None if block is None else (block[0], None)
        return without

    def block(self, scale, codes, reserved=0):
        return pn_block(scale, codes, self.bits, self.per_word, reserved)

    def quantize(self, label, proves, blocks, weighted=False):
        blocks = list(blocks)
        operation = "quantize_weighted" if weighted else "quantize"
        prefix = "%s-%s" % (self.name, label)
        inputs = {"weights": self.kit.file(prefix + "-weights", "fp32", (w for b, _ in blocks for w in b))}
        if weighted:
            inputs["importance"] = self.kit.file(prefix + "-importance", "fp64", (g for _, b in blocks for g in b))
        result = [self.block(*quantize(w, self.bits, g if weighted else None)) for w, g in blocks]
        expected = {"blocks": self.kit.file(prefix + "-blocks", "pn_block", result)}
        self.kit.test("%s.%s.%s" % (self.name, operation, label), proves, self.name, operation, inputs, expected,
                      self.size)

    def decode(self, label, proves, blocks):
        """blocks: (scale, codes, reserved bits)."""
        prefix = "%s-%s" % (self.name, label)
        values = [v for scale, codes, _ in blocks for v in decoded_anyhow(scale, codes, self.zero)]
        inputs = {"blocks": self.kit.file(prefix + "-blocks", "pn_block", (self.block(*b) for b in blocks))}
        expected = {"weights": self.kit.file(prefix + "-decoded", "fp32_bits", values)}
        self.kit.test("%s.decode.%s" % (self.name, label), proves, self.name, "decode", inputs, expected, self.size)
        return inputs["blocks"]

    def refuse(self, label, proves, rows, k, weighted=False):
        """rows: (weights, importance, result)."""
        operation = "quantize_weighted" if weighted else "quantize"
        prefix = "%s-%s" % (self.name, label)
        inputs = {"weights": self.kit.file(prefix + "-weights", "fp32_bits", (w for b, _, _ in rows for w in b))}
        if weighted:
            inputs["importance"] = self.kit.file(prefix + "-importance", "fp64", (g for _, b, _ in rows for g in b))
        self.kit.test("%s.%s.%s" % (self.name, operation, label), proves, self.name, operation, inputs,
                      {"rows": [result for _, _, result in rows]}, k)

    def add(self):
        name, size, zero, bits, every = self.name, self.size, self.zero, self.bits, self.every
        random = Random(0xC0FFEE0000000000 + bits)
        edges = amax_edges(zero)

        def under(amax, sign, alone):
            values = [0.0 if alone else f32(amax * (2 * random.uniform() - 1)) for _ in every]
            values[random.below(size)] = sign * amax
            return values

        blocks = []
        for edge in edges + [struct.unpack("<I", struct.pack("<f", 65504.0 * zero))[0]]:
            for amax in (f32_bits(edge - 1), f32_bits(edge), f32_bits(edge + 1)):
                for sign in (1.0, -1.0):
                    for alone in (True, False):
                        values = under(amax, sign, alone)
                        if quantize(values, bits) is not None:
                            blocks.append((values, None))
        self.quantize("amax-edges",
                      "At each edge of amax, and one fp32 step either side of it, the same scales survive.",
                      blocks)

        def beside(i, near_midpoint):
            return lambda random: favouring(random, i, size, zero, near_midpoint)

        proves = "m is (50 + 2*i) / 100: at %s i 0.50 + 0.02*i is another double and gives another block."
        blocks = [b for i in (9, 16, 17, 21, 32, 33, 34, 35)
                  for b in telling("m = 0.50 + 0.02*i", beside(i, False), bits, 2)]
        self.quantize("m-division", proves % "each of 8", blocks, True)
        blocks = [b for i in PLAIN_M[name] for b in telling("m = 0.50 + 0.02*i", self.plain(beside(i, False)), bits, 2)]
        self.quantize("m-division-plain", proves % "these", blocks)
        blocks = [b for i in (20, 30, 35)  # not at m = 0.5 and m = 1, where fp32 holds every quotient
                  for b in telling("scale by way of fp32", self.plain(beside(i, True)), bits, 4)]
        self.quantize("one-rounding",
                      "The scale is rounded once from double to fp16: by way of fp32 each block differs.",
                      blocks)

        plain = lambda make: lambda random: (make(random), None)

        def two_scales(random):
            return noisy_ties(random, size, zero, 0.0)

        self.quantize("scale-ties", "Of two scales with equal errors that of the larger m wins.",
                      telling("smaller m", plain(two_scales), bits, 8))

        def halves(random):
            scale = float(half_value(0x2C00 + random.between(0, 0x7FF)))
            values = [scale * random.between(1 - zero, zero - 1) for _ in every]
            for _ in range(4):
                values[random.below(size)] = scale * (random.between(1 - zero, zero - 2) + 0.5)
            values[random.below(size)] = -zero * scale * random.sign()
            return [f32(v) for v in values]

        self.quantize("code-ties", "A quotient halfway between two codes goes to the even one.",
                      telling("half away from zero", plain(halves), bits, 6)
                      + telling("half up", plain(halves), bits, 6))

        def noisy(random):
            return noisy_ties(random, size, zero, 2.0**-27)

        self.quantize("sum-order",
                      "Squared errors are summed in element order, in double: summed from the end or in fp32 "
                      "another scale wins.", telling("reversed sum", plain(noisy), bits, 6, SUM_ORDER[name])
                      + telling("fp32 sum", plain(noisy), bits, 6, SUM_IN_FP32[name]))

        def equal_ends(random):
            amax = f32(1 + random.uniform())
            values = [f32(amax * (2 * random.uniform() - 1)) for _ in every]
            values[random.below(size // 2)] = amax
            values[size - 1 - random.below(size // 2)] = -amax
            return values

        self.quantize("equal-ends",
                      "With |min| = max the scale is negative; the other end is clamped to the last code.",
                      telling("sigma of equal ends", plain(equal_ends), bits, 4)
                      + telling("clamp one short", plain(equal_ends), bits, 4))

        tiny = [f32_bits(random.bits(23) | random.bits(1) << 31) for _ in every]
        below = f32_bits(edges[0] - 1)
        zeros = [[0.0] * size, [-0.0] * size, [-0.0 if e % 2 else 0.0 for e in every], tiny, [below] * size,
                 [-below if e == 7 else 0.0 for e in every]]
        for values in zeros:
            assert quantize(values, bits) == (0, [zero] * size)
        self.quantize("zero-block", "+0.0, -0.0, subnormals and all that is too small for a scale: the zero block.",
                      ((values, None) for values in zeros))

        # Weighted.
        blocks = [fused_block(seed, size, zero) for seed in FUSED[name]]
        for weights, importance in blocks:
            assert quantize(weights, bits, importance) != quantize(weights, bits, importance, "fused")
        self.quantize("unfused", "g*(r*r) is rounded before it is added: fused into the sum another scale wins.",
                      blocks,
                      True)

        def bell(random):
            return [f32(0.02 * random.bell()) for _ in every]

        def one_importance(random):
            return noisy(random), [random.uniform()] * size

        def subnormal(random):
            return bell(random), [random.bits(48) * 5e-324 for _ in every]

        self.quantize("subnormal-importance", "Subnormal doubles are kept: flushed to zero, each block differs.",
                      telling("subnormals flushed", subnormal, bits, 4), True)
        self.quantize("square-first", "The error is g*(r*r), the square first: as (g*r)*r another scale wins.",
                      telling("(g*r)*r", one_importance, bits, 2, SQUARE_FIRST[name]), True)
        blocks = [(bell(random), [0.0 if b == 0 or (b == 2 and e % 2) else -0.0 if b < 3 else 5e-324 * (e == 3)
                                  for e in every]) for b in range(4)]
        for weights, importance in blocks[:3]:
            assert quantize(weights, bits, importance) == quantize(weights, bits)
        assert quantize(*blocks[3][:1], bits, blocks[3][1]) != quantize(blocks[3][0], bits)
        self.quantize("zero-importance", "A block whose importance is all 0 (or -0.0) is searched without weights; a "
                      "single 2^-1074 is enough to count.", blocks, True)

        # Refused.
        k, word = 3 * size, lambda v: struct.unpack("<I", struct.pack("<f", v))[0]
        row = lambda changes: [changes.get(e, word(0.01 * (e % 7 - 3))) for e in range(k)]
        rows = [(row({e: bad}), None, {"result": "not_finite", "element": e}) for e, bad in (
            (0, 0x7FC00000), (k - 1, 0xFFC00000), (1, 0x7F800000), (size - 1, 0xFF800000), (size, 0x7F800001),
            (2 * size + 5, 0xFFFFFFFF))]
        rows.append((row({size + 3: 0x7FC00000, size + 4: 0x7F800000, k - 1: 0xFF800000}), None,
                     {"result": "not_finite", "element": size + 3}))
        self.refuse("refused-not-finite", "A NaN or an infinity among the weights is refused; the first is named.",
                    rows, k)
        rows = [(row({e: bits_of_weight}), None, {"result": "scale_overflow", "element": e // size * size})
                for e, bits_of_weight in ((0, edges[3]), (size + 7, edges[3] | 0x80000000), (k - 1, edges[3] + 1),
                                          (2 * size, 0x7F7F0000), (5, 0xFF7FFFFF))]
        self.refuse("refused-overflow",
                    "A block whose every scale is infinite is refused: from the fourth edge of amax on. "
                    "`element` is the first of the block.", rows, k)
        for length in (size - 1, size + 1, 3 * size // 2):
            self.refuse("refused-length-%d" % length, "K = %d is not a multiple of the block." % length,
                        [(row({})[:length], None, {"result": "bad_length"})], length)
        rows = []
        for e, g in ((0, -1.0), (size - 1, -5e-324), (size, float("inf")), (k - 1, float("nan")), (3, float("-inf"))):
            rows.append((row({}), [g if i == e else 1.0 for i in range(k)], {"result": "bad_importance", "element": e}))
        self.refuse("refused-importance", "A negative, NaN or infinite importance is refused; its element is named.",
                    rows, k,
                    True)

        # Decoding.
        one = [(0x3C00, [2 * zero - 1 if i == e else zero for i in every], 0) for e in every]
        for place, (scale, codes, _) in enumerate(one):
            words = struct.unpack("<8I", self.block(scale, codes)[2:])
            by_element = [words[e // self.per_word] >> (bits * (e % self.per_word)) & (2 * zero - 1) for e in every]
            # A shift by element instead of pair is seen wherever it reads other bits.
            assert by_element != codes or place % self.per_word in (0, self.per_word - 1)
        self.decode("positions",
                    "Each element's code lies where the format says: block e has one odd code, at element e.",
                    one)
        self.decode("signs-of-zero", "The sign of a zero follows the product, under every kind of d.",
                    [(d, [(e + i) % (2 * zero) for e in every], 0)
                     for i, d in enumerate((0x0000, 0x8000, 0x0001, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF))])
        scales = [e << 10 | (0x3FF if e % 2 else 0x155 * (e % 3)) | s for e in range(31) for s in (0, 0x8000)]
        self.decode("scales", "Scales of every exponent, subnormal ones among them, times every code.",
                    [(d, [(e + d % 7) % (2 * zero) for e in every], 0) for d in scales])
        self.decode("invalid",
                    "An infinite d gives infinities and, at code z, a NaN; a NaN gives NaN; reserved bits are "
                    "ignored. A NaN in the expected file stands for any NaN.",
                    [(d, [(e * 3 + i) % (2 * zero) for e in every], (0, 0xFFFF, 0x0001)[i % 3] if bits == 3 else 0)
                     for i, d in enumerate((0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFFFF, 0x3C00, 0xBC00, 0x0000))])
        narrow = [(d, [(e + i) % (2 * zero) for e in every], 0) for i, d in enumerate(
            (0x3C01, 0xBD55, 0x03FF, 0x8001, 0x0000, 0x8000, 0x2FFF, 0x6FFF, 0xEFFF, 0x1155))]
        blocks = self.decode("narrow", "The decoded weights that the next two tests round.", narrow)
        values = [v for d, codes, _ in narrow for v in decoded_anyhow(d, codes, zero)]
        for dtype, convert in (("fp16", fp32_bits_to_half), ("bf16", fp32_bits_to_bf16)):
            out = self.kit.file("%s-narrow-%s" % (name, dtype), dtype, map(convert, values))
            self.kit.test("%s.decode_to_%s.narrow" % (name, dtype),
                          "Decoded to %s: the fp32 weight is rounded once." % dtype,
                          name, "decode_to_" + dtype, {"blocks": blocks}, {"weights": out}, size)

        # Validity.
        codes = [random.bits(bits) for _ in every]
        good = self.block(0x3C00, codes)
        blocks = [good, self.block(0x7BFF, codes), self.block(0xFBFF, codes), self.block(0x0001, codes),
                  self.block(0x8000, codes)]
        blocks += [self.block(d, codes) for d in (0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFC01, 0x7FFF, 0xFFFF)]
        flip = lambda block, bit: bytes(b ^ (1 << bit % 8 if i == bit // 8 else 0) for i, b in enumerate(block))
        blocks += [flip(good, 16 + 16 * half + 15) for half in range(16)]
        blocks += [flip(good, 16 + 16 * half + 14) for half in range(16)]
        path = self.kit.file(name + "-validate-blocks", "pn_block", blocks)
        text = ("Infinite and NaN scales and each of the 16 reserved bits make a block invalid, the bits below do not."
                if bits == 3 else "Infinite and NaN scales make a block invalid; pn4t has no reserved bits.")
        results = [pn_result(b, bits) for b in blocks]
        self.kit.test(name + ".validate.blocks", text, name, "validate", {"blocks": path},
                      {"rows": [{"result": r} if r == "ok" else {"result": r, "block": 0} for r in results]}, size)
        both = self.block(0x7C00, codes, 0x8000 if bits == 3 else 0)
        bad = flip(good, 16 + 31) if bits == 3 else self.block(0x7C01, codes)
        rows = [[good] * 3, [good, bad, both], [both, bad, good], [good, good, bad], [bad, both, both]]
        path = self.kit.file(name + "-validate-rows-blocks", "pn_block", (b for r in rows for b in r))
        self.kit.test(name + ".validate.rows",
                      "The first bad block of a row is reported; a bad scale before reserved bits.",
                      name, "validate", {"blocks": path},
                      {"rows": [first_bad([pn_result(b, bits) for b in r]) for r in rows]}, 3 * size)

        self.add_dots(random)

    def add_dots(self, random):
        name, size, zero, every = self.name, self.size, self.zero, self.every

        def row(count):
            blocks, weights = [], []
            for _ in range(count):
                d = 0x1C00 + random.between(0, 0x1FFF) | random.bits(1) << 15
                codes = [random.bits(self.bits) for _ in every]
                blocks.append(self.block(d, codes))
                weights += [signed_half(d) * (n - zero) for n in codes]
            return blocks, weights

        count = 4
        rows = []
        for _ in range(8):  # a small block, a large one, a small one, and what cancels the large one
            blocks, weights = row(count)
            blocks[3], weights[3 * size:] = blocks[1], weights[size:2 * size]
            x = [f32(random.bell() * 2.0 ** random.between(-3, 3)) for _ in weights]
            x[size:2 * size] = [f32(random.bell() * 2.0**45) for _ in every]
            x[3 * size:] = [-v for v in x[size:2 * size]]
            y = dot(weights, x)
            assert y != dot(weights, x, "fp32 sum") and y != dot(weights, x, "reversed sum")
            rows.append((blocks, x, y))
        blocks, weights = row(count)
        rows.append((blocks, [0.0, -0.0] * (count * size // 2), 0))
        top = [self.block(0x7BFF, [0] * size)] * count
        rows.append((top, [-3e38] + [0.0] * (count * size - 1), 0x7F800000))  # beyond fp32
        rows.append((top, [f32_bits(1)] + [0.0] * (count * size - 1), dot([-65504.0 * zero], [f32_bits(1)])))
        self.dots("dot_f32", rows, count, "fp32", lambda x: x)

        count = 2 if size == 80 else 3
        rows = []
        for i in range(8):
            blocks, weights = row(count)
            x = [struct.pack("<H32b", random.between(0, 0x3FFF) | random.bits(1) << 15,
                             *(random.between(-128, 127) for _ in range(32))) for _ in range(len(weights) // 32)]
            rows.append((blocks, x, dot(weights, [v for b in x for v in q8_0_values(b)])))
        self.dots("dot_q8_0", rows, count, "q8_0_block", list)

    def dots(self, operation, rows, count, dtype, values):
        prefix = "%s-%s" % (self.name, operation.replace("_", "-"))
        inputs = {"blocks": self.kit.file(prefix + "-blocks", "pn_block", (b for r in rows for b in r[0])),
                  "x": self.kit.file(prefix + "-x", dtype, (v for r in rows for v in values(r[1])))}
        expected = {"y": self.kit.file(prefix + "-y", "fp32_bits", (r[2] for r in rows))}
        proves = "Products in double, summed in double in element order from 0, rounded once to fp32%s." % (
            ": in another order or summed in fp32 the last bits differ" if operation == "dot_f32" else "; x is Q8_0")
        self.kit.test("%s.%s" % (self.name, operation), proves, self.name, operation, inputs, expected,
                      count * self.size)


def first_bad(results):
    for i, result in enumerate(results):
        if result != "ok":
            return {"result": result, "block": i}
    return {"result": "ok"}


# Q8_0 ---------------------------------------------------------------------------------------------------------------

# Activations on a rounding edge; found by a search.
Q8_0_FUSED = (13543, 33027, 37232, 79051, 94454, 98818, 100013, 105315)


def add_q8_0(kit):
    random = Random(0x5108000000000001)

    def test(label, proves, blocks, fault=None):
        blocks = [[f32(v) for v in b] for b in blocks]
        assert fault is None or all(q8_0(b) != q8_0(b, fault) for b in blocks)
        inputs = {"x": kit.file("q8_0-%s-x" % label, "fp32", (v for b in blocks for v in b))}
        expected = {"blocks": kit.file("q8_0-%s-blocks" % label, "q8_0_block", (q8_0(b) for b in blocks))}
        kit.test("q8_0.quantize_q8_0." + label, proves, "q8_0", "quantize_q8_0", inputs, expected, 32)

    fixed = [127.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 125.5, -126.5, 0.49999997, -0.49999997, 126.49999]
    halves = [fixed + [0.0] * 20, [-127.0] + [i - 15.5 for i in range(31)],
              [2.0**-9 * v for v in [127.0] + [4 * i - 61.5 for i in range(31)]]]
    test("halves", "Codes are rounded with halves away from zero; just below a half they are not.", halves,
         "ties to even")
    blocks = []
    while len(blocks) < 8:
        amax = f32(1 + random.uniform())
        inverse = 1 / (amax / 127)
        block = [f32((random.between(-120, 120) + 0.5) / inverse) for _ in range(32)]
        block[random.below(32)] = amax
        if q8_0(block) != q8_0(block, "exact product"):
            blocks.append(block)
    for seed in Q8_0_FUSED:
        numbers = SplitMix64(seed)
        blocks.append([((numbers.next() >> 40) - 2**23) * 2.0**-24 for _ in range(32)])
    test("product", "x * id is rounded to fp32 before it is rounded to a code.", blocks[:8], "exact product")
    test("edges", "Values on a rounding edge of x * id.", blocks[8:])
    blocks = []
    while len(blocks) < 4:
        block = [f32(10 * (random.uniform() - 0.5)) for _ in range(32)]
        if q8_0(block) != q8_0(block, "inverse of the rounded d"):
            blocks.append(block)
    test("inverse", "id comes from d before d is rounded to fp16.", blocks)
    blocks = []
    smallest = first_float(lambda amax: f32(amax / 127) > 2.0**-128)  # up to here 1 / d is beyond fp32
    half_unit = 127 * 2.0**-25  # here d is half of the smallest fp16
    for amax in [0.0, 2.0**-149, 2.0**-126] + [f32_bits(smallest + i) for i in (-1, 0, 1)] + [
            half_unit, half_unit * (1 + 2.0**-23), 127 * 65504.0, 127 * 65519.0, 127 * 65520.0, f32_bits(0x7F7FFFFF)]:
        for sign in (1.0, -1.0):
            block = [0.0] * 32
            block[3], block[30], block[31] = sign * amax, f32(-sign * amax / 2), -0.0
            blocks.append(block)
    test("amax", "Zeros; where 1/d overflows every q is 0; where d overflows fp16 it is stored as infinity.", blocks)
    rows, results = [], []
    for e, bad in ((0, NAN), (31, INFINITY), (32, -INFINITY), (63, NAN)):
        rows += [bad if i == e else 1.0 for i in range(64)]
        results.append({"result": "not_finite", "element": e})
    kit.test("q8_0.quantize_q8_0.refused", "A NaN or an infinity is refused; its element is named.", "q8_0",
             "quantize_q8_0",
             {"x": kit.file("q8_0-refused-x", "fp32", rows)}, {"rows": results}, 64)


# BF16_P12 -----------------------------------------------------------------------------------------------------------

def add_p12(kit):
    random = Random(0x9120000000000001)
    weight = lambda exponent: random.bits(1) << 15 | exponent << 7 | random.bits(7)

    def both_ways(label, proves, blocks):
        weights = kit.file("p12-%s-weights" % label, "bf16", (w for b in blocks for w in b))
        packed = kit.file("p12-%s-blocks" % label, "p12_block", map(pack, blocks))
        kit.test("bf16_p12.pack." + label, proves, "bf16_p12", "pack", {"weights": weights}, {"blocks": packed}, 256)
        kit.test("bf16_p12.unpack." + label, proves, "bf16_p12", "unpack", {"blocks": packed}, {"weights": weights},
                 256)

    blocks = []
    for first in range(86):  # places first, first + 86 and first + 172: every place once
        values = [weight(100 + 15 * (i % 2)) for i in range(256)]
        for slot, place in enumerate(p for p in (first, first + 86, first + 172) if p < 256):
            values[place] = weight((0, 99, 116, 255)[(first + slot) % 4])
        blocks.append(values)
    both_ways("places", "A listed weight at each of the 256 places.", blocks)

    blocks = []
    for most, *others in [(100, 116), (100, 84), (100, 92, 115), (100, 92, 114, 115), (0, 255), (5, 200), (255,),
                          (250, 5), (247, 232, 255), (240, 0, 255), (239, 255), (16, 0, 255), (100, 84, 116)]:
        values = [weight(most) for _ in range(256)]
        for i, exponent in enumerate(others):
            values[20 * i + 9] = weight(exponent)
        if pack(values) != pack(values, "tie to the smaller base") or pack(values) != pack(values, "bases to 255"):
            blocks.append(values)
    assert len(blocks) >= 10
    both_ways("base-ties", "Of several bases that list equally few, the largest, but never more than 240.", blocks)

    def row(*listed):
        values = []
        for n in listed:
            block = [weight(100 + 15 * (i % 2)) for i in range(256)]
            for i in range(n):
                block[(i * 50 + 3) % 256] = weight(200 + i)
            values.append(block)
        return values

    rows = [row(4, 0, 3), row(3, 4, 0), row(0, 3, 5), row(3, 0, 4), row(1, 128, 4)]
    results = [first_bad(["too_many_listed" if pack(b) is None else "ok" for b in r]) for r in rows]
    assert [r["block"] for r in results] == [0, 1, 2, 2, 1]
    kit.test("bf16_p12.pack.refused-rows", "3 listed weights fit and 4 do not; the first block that does not is named.",
             "bf16_p12", "pack",
             {"weights": kit.file("p12-refused-rows-weights", "bf16", (w for r in rows for b in r for w in b))},
             {"rows": results}, 768)
    for length in (255, 257):
        values = [weight(120) for _ in range(length)]
        kit.test("bf16_p12.pack.refused-length-%d" % length, "K = %d is not a multiple of 256." % length, "bf16_p12",
                 "pack",
                 {"weights": kit.file("p12-refused-length-%d-weights" % length, "bf16", values)},
                 {"rows": [{"result": "bad_length"}]}, length)

    # Blocks that no packer writes. Each is named by what was done to a valid one.
    def valid(n):
        values = [weight(100 + 15 * (i % 2)) for i in range(256)]
        for i in range(n):
            values[(3, 37, 200)[i]] = weight((99, 116, 255)[i])
        return bytearray(pack(values))

    def code(block, place, value):
        at, up = 8 + place // 8 * 4 + place % 2 * 2 + place % 8 // 4, place // 2 % 2 * 4
        block[at] = block[at] & 0xFF ^ (15 << up) & block[at] | value << up

    broken = []

    def breaking(n, reason, *changes):
        block = valid(n)
        for at, value in changes:
            block[at] = value
        assert p12_result(bytes(block)) == reason, (reason, p12_result(bytes(block)))
        broken.append(bytes(block))

    for n in range(4):
        breaking(n, "ok")
    for base in (241, 250, 255):
        breaking(0, "base_out_of_range", (0, base))
    for n in (4, 7, 128, 255):
        breaking(3, "listed_count_out_of_range", (1, n))
    breaking(2, "positions_not_ascending", (2, 37), (3, 3), (5, 116), (6, 99))
    breaking(3, "positions_not_ascending", (3, 200), (4, 37), (6, 255), (7, 116))
    breaking(3, "positions_not_ascending", (2, 200), (4, 3), (5, 255), (7, 99))
    breaking(2, "positions_not_ascending", (3, 3))
    breaking(3, "positions_not_ascending", (4, 37))
    breaking(3, "positions_not_ascending", (4, 0))
    for n in range(3):
        for slot in range(n, 3):
            breaking(n, "unused_slot_not_zero", (2 + slot, 255))
            breaking(n, "unused_slot_not_zero", (5 + slot, 1))
    breaking(3, "unused_slot_not_zero", (1, 2))
    breaking(3, "unused_slot_not_zero", (1, 2), (7, 0))
    breaking(3, "unused_slot_not_zero", (1, 2), (4, 0))
    for slot, place in enumerate((3, 37, 200)):
        for value in (1, 8, 15):
            block = valid(slot + 1)
            code(block, place, value)
            assert p12_result(bytes(block)) == "listed_code_not_zero"
            broken.append(bytes(block))
    for exponent in (100, 107, 115):
        breaking(1, "listed_exponent_in_range", (5, exponent))
        breaking(3, "listed_exponent_in_range", (7, exponent))
    block = pack([weight(127) for _ in range(256)])
    for lower in (1, 7, 15):  # the same weights under a smaller base
        moved = bytes([127 - lower]) + block[1:8] + bytes([lower * 0x11] * 128) + block[136:]
        assert unpack(moved) == unpack(block) and p12_result(moved) == "base_not_canonical"
        broken.append(moved)
    values = [weight(i % 2 + 100) for i in range(256)]
    block = bytearray(pack(values))
    block[0:8] = bytes([101, 1, 0, 0, 0, 100, 0, 0])  # lists one weight of many that its base does not reach
    broken.append(bytes(block))
    values = [weight(240 + i % 16) for i in range(256)]
    block = bytearray(pack(values))
    for place in range(256):
        code(block, place, 10)
    broken.append(bytes(block))  # all exponents 250 under base 240: valid
    values = [weight(116) for _ in range(256)]
    values[9] = weight(100)
    block = bytearray(pack(values))  # base 116 lists place 9; base 85 .. 100 would list the other 255
    assert block[0] == 116 and block[1] == 1
    broken.append(bytes(block))
    block[0] = 115
    for place in range(256):
        code(block, place, 0 if place == 9 else 1)
    assert p12_result(bytes(block)) == "base_not_canonical" and unpack(block) == values  # a tie to the smaller base
    broken.append(bytes(block))
    results = [p12_result(b) for b in broken]
    assert set(results) == {"ok", "base_out_of_range", "listed_count_out_of_range", "positions_not_ascending",
                            "unused_slot_not_zero", "listed_code_not_zero", "listed_exponent_in_range",
                            "base_not_canonical"}
    path = kit.file("p12-validate-blocks", "p12_block", broken)
    one = lambda r: {"result": r} if r == "ok" else {"result": r, "block": 0}
    kit.test("bf16_p12.validate.blocks", "Each rule of validity, broken in each way; valid blocks among them.",
             "bf16_p12",
             "validate", {"blocks": path}, {"rows": [one(r) for r in results]}, 256)
    kit.test("bf16_p12.unpack.invalid",
             "What the blocks of bf16_p12.validate.blocks unpack to all the same: n as min(n, 3), "
             "exponents modulo 256, the later slot wins.", "bf16_p12", "unpack", {"blocks": path},
             {"weights": kit.file("p12-validate-unpacked", "bf16", (w for b in broken for w in unpack(b)))}, 256)

    several = []
    for changes in ({0: 241, 1: 4}, {0: 255, 1: 9, 2: 9, 3: 9}, {1: 4, 3: 3}, {1: 3, 2: 3, 3: 3, 4: 3},
                    {1: 1, 2: 3, 4: 7, 5: 100},
                    {1: 2, 2: 3, 3: 4, 5: 100, 6: 101}, {0: 99, 1: 1, 2: 3, 5: 99}, {1: 2, 2: 9, 3: 9, 7: 1}):
        block = valid(0)
        for at, value in changes.items():
            block[at] = value
        several.append(bytes(block))
    kit.test("bf16_p12.validate.several",
             "A block that breaks several rules is reported for the first in the order of the "
             "results' list.", "bf16_p12", "validate", {"blocks": kit.file("p12-several-blocks", "p12_block", several)},
             {"rows": [one(p12_result(b)) for b in several]}, 256)
    good, bad, worse = bytes(valid(2)), broken[4], broken[7]
    rows = [[good] * 3, [good, bad, worse], [worse, good, bad], [good, good, bad]]
    kit.test("bf16_p12.validate.rows", "The first bad block of a row is reported.", "bf16_p12", "validate",
             {"blocks": kit.file("p12-validate-rows-blocks", "p12_block", (b for r in rows for b in r))},
             {"rows": [first_bad([p12_result(b) for b in r]) for r in rows]}, 768)

    hostile = []
    for i in range(40):
        block = bytearray(random.bits(8) for _ in range(392))
        block[1] = (i % 7, 3, 4, 255)[i % 4]
        if i % 3 == 0:
            block[3] = block[2]  # one place twice
        if i % 6 == 0:
            block[4] = block[2]  # or thrice
        if i % 5 == 0:
            block[0] = 241 + random.below(15)
        hostile.append(bytes(block))
    block = bytearray(392)
    block[0:8] = bytes([250, 255, 9, 9, 9, 1, 2, 3])
    block[8:136] = b"\xff" * 128
    assert unpack(block)[9] == 3 << 7 and unpack(block)[8] == 9 << 7
    hostile.append(bytes(block))
    kit.test("bf16_p12.unpack.hostile",
             "Any bytes: n is read as min(n, 3), exponents modulo 256, of a place that occurs twice "
             "the later slot wins.", "bf16_p12", "unpack",
             {"blocks": kit.file("p12-hostile-blocks", "p12_block", hostile)},
             {"weights": kit.file("p12-hostile-weights", "bf16", (w for b in hostile for w in unpack(b)))}, 256)


# Numbers ------------------------------------------------------------------------------------------------------------

def add_numbers(kit):
    def test(label, proves, operation, inputs, convert):
        source, target = operation.split("_to_")
        wide = lambda dtype: dtype + "_bits" if dtype in ("fp32", "fp64") else dtype
        kit.test("numbers.%s.%s" % (operation, label), proves, "numbers", operation,
                 {"values": kit.file("numbers-%s-%s-in" % (operation.replace("_", "-"), label), wide(source), inputs)},
                 {"values": kit.file("numbers-%s-%s-out" % (operation.replace("_", "-"), label), wide(target),
                                     map(convert, inputs))})

    word = lambda v: struct.unpack("<I", struct.pack("<f", v))[0]
    long = lambda v: struct.unpack("<Q", struct.pack("<d", v))[0]
    halves = [s | e << 10 | m for e in (0, 1, 15, 30, 31) for s in (0, 0x8000) for m in range(1024)]
    test("exponents", "Exact; all subnormals, infinities and NaN (made quiet), and three other exponents.",
         "fp16_to_fp32",
         halves, half_to_fp32_bits)

    listed = {0x40001000: 0x4000, 0x34200000: 0x0002, 0x34600000: 0x0004, 0x387FE000: 0x0400, 0x33000000: 0x0000,
              0x33000001: 0x0001, word(65519.996): 0x7BFF, word(65520.0): 0x7C00}
    for bits, half in listed.items():
        assert fp32_bits_to_half(bits) == half
    more = [0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000,
            0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F801FFF, 0x7F802000, 0x7FBFE000, 0xFF812345]
    both = lambda values: [v for x in values for v in (x, x | 0x80000000)]
    test("listed", "One rounding, ties to even; overflow, subnormals, NaN.", "fp32_to_fp16", both(listed) + more,
         fp32_bits_to_half)
    middles, values = [], []
    for e in range(31):
        for m in (0, 1, 2, 0x1FF, 0x200, 0x3FD, 0x3FE, 0x3FF):
            low = e << 10 | m
            value = float(half_value(low))
            above = float(half_value(low + 1)) if low < 0x7BFF else 65536.0
            values.append(value)
            middles.append((value + above) / 2)
    test("midpoints", "At midpoints of fp16 neighbours, at fp16 values, and one fp32 step either side.", "fp32_to_fp16",
         both(word(v) + step for v in middles + values[1:] for step in (-1, 0, 1)), fp32_bits_to_half)
    wide = [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 2.0**-26, 65519.99999999999, 65520.0,
            1.7976931348623157e308, 5e-324, 0.0]
    assert [fp64_bits_to_half(long(v)) for v in wide[:2]] == [0x3C01, 0x3C00]
    inputs = [long(v) for v in wide] + [long(2.0**-25) + 1, 0x7FF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000,
                                        0x7FFFFFFFFFFFFFFF, 0x7FF003FFFFFFFFFF, 0x7FF0040000000000]
    both = lambda values: [v for x in values for v in (x, x | 2**63)]
    test("listed", "One rounding, not two: 1 + 2^-11 + 2^-40 becomes 3C01. Overflow, NaN.", "fp64_to_fp16",
         both(inputs),
         fp64_bits_to_half)
    test("midpoints", "At midpoints of fp16 neighbours, one and two double steps either side, and around fp16 values.",
         "fp64_to_fp16", both([long(v) + step for v in middles for step in (-2, -1, 0, 1, 2)]
                              + [long(v) + step for v in values[1:] for step in (-1, 0, 1)]), fp64_bits_to_half)
    inputs = []
    for b in (0, 1, 2, 0x7F, 0x80, 0x3F80, 0x3F81, 0x4049, 0x7F7E, 0x7F7F):
        inputs += [b << 16 | rest for rest in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    inputs += [0x7F800000, 0x7F800001, 0x7F80FFFF, 0x7F8000FF, 0x7FBFFFFF, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF]
    test("table", "One rounding on the upper half, ties to even; overflow; a NaN stays one and becomes quiet.",
         "fp32_to_bf16",
         [v for x in inputs for v in (x, x | 0x80000000)], fp32_bits_to_bf16)
    test("table", "Exact: the bits become the upper half; nothing happens to a NaN.", "bf16_to_fp32",
         [s | b for b in (0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF) for s in (0, 0x8000)],
         lambda b: b << 16)


# ----------------------------------------------------------------------------------------------------------------------

def add_v1(kit, files):
    """What the files of v1/ prove."""
    def known(name, dtype):
        return kit.known("v1/" + name, dtype, files[name])

    for name, (bits, per_word) in TYPES.items():
        size = 8 * per_word
        weights, blocks = known(name + "-weights.bin", "fp32"), known(name + "-blocks.bin", "pn_block")
        kit.test(name + ".quantize.kinds",
                 "The reference search over blocks of many kinds: bell curves, outliers, constants, "
                 "subnormals, edges, ties.", name, "quantize", {"weights": weights}, {"blocks": blocks}, size)
        kit.test(name + ".decode.kinds", "What these blocks decode to.", name, "decode", {"blocks": blocks},
                 {"weights": known(name + "-decoded.bin", "fp32")}, size)
        kit.test(name + ".validate.kinds", "A row of what the quantizer writes is valid.", name, "validate",
                 {"blocks": blocks},
                 {"rows": [{"result": "ok"}]}, size * (len(files[name + "-blocks.bin"]) // 34))
        kit.test(name + ".quantize_weighted.kinds", "The weighted search, with importances of many kinds.", name,
                 "quantize_weighted", {"weights": known(name + "-weighted-weights.bin", "fp32"),
                                       "importance": known(name + "-weighted-importance.bin", "fp64")},
                 {"blocks": known(name + "-weighted-blocks.bin", "pn_block")}, size)
        kit.test(name + ".decode.raw", "Blocks that no quantizer writes: any finite scale, any codes"
                 + (", reserved bits set." if bits == 3 else "."), name, "decode",
                 {"blocks": known(name + "-raw-blocks.bin", "pn_block")},
                 {"weights": known(name + "-raw-decoded.bin", "fp32")}, size)
    weights, blocks = known("p12-weights.bin", "bf16"), known("p12-blocks.bin", "p12_block")
    proves = "All 65,536 patterns, and blocks of many kinds: listed weights, ties, both ends of the exponents."
    kit.test("bf16_p12.pack.kinds", proves, "bf16_p12", "pack", {"weights": weights}, {"blocks": blocks}, 256)
    kit.test("bf16_p12.unpack.kinds", proves, "bf16_p12", "unpack", {"blocks": blocks}, {"weights": weights}, 256)
    count = len(files["p12-blocks.bin"]) // 392
    kit.test("bf16_p12.validate.kinds", "A row of what the packer writes is valid.", "bf16_p12", "validate",
             {"blocks": blocks},
             {"rows": [{"result": "ok"}]}, 256 * count)
    refused = known("p12-unpackable-weights.bin", "bf16")
    kit.test("bf16_p12.pack.refused", "Blocks that need more than 3 listed weights.", "bf16_p12", "pack",
             {"weights": refused},
             {"rows": [{"result": "too_many_listed", "block": 0}] * (len(files["p12-unpackable-weights.bin"]) // 512)},
             256)


def kit(v1_files):
    result = Kit()
    add_v1(result, v1_files)
    for name in TYPES:
        PnCases(result, name).add()
    add_q8_0(result)
    add_p12(result)
    add_numbers(result)
    return result
