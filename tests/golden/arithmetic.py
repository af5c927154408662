"""The two formats in exact arithmetic, for generate.py. Shares nothing with the C++ code.

Scales are rounded with fractions, codes with integer ratios. The only floating-point arithmetic is the double
additions, multiplications and divisions that the format itself fixes; Python carries them out in IEEE double, one at a
time, in the order written. No mathematical library function is used, so the results are the same from every Python 3.

Some functions take a `fault`: they then make one common mistake, by which generate.py proves that a case can tell.
"""
import struct
from fractions import Fraction

TYPES = {"pn3t": (3, 10), "pn4t": (4, 8)}  # bits per code, codes per word


class Random:
    """xorshift64*."""

    def __init__(self, seed):
        self.state = seed

    def bits(self, n):
        x = self.state
        x ^= x >> 12
        x ^= (x << 25) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF) >> (64 - n)

    def below(self, n):
        return self.bits(53) * n >> 53

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def uniform(self):
        return self.bits(53) / 2.0**53

    def bell(self):
        """Near enough to a Gaussian. Added one by one: sum() of floats differs between versions of Python."""
        total = -6.0
        for _ in range(12):
            total += self.uniform()
        return total

    def sign(self):
        return 1.0 if self.bits(1) else -1.0


def f32(x):
    """The nearest fp32, as a double."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f32_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def step(x, n):
    """The n-th fp32 after a positive x, in either direction."""
    return f32_bits(struct.unpack("<I", struct.pack("<f", x))[0] + n)


# fp16 ---------------------------------------------------------------------------------------------------------------

def half_value(bits):
    """Exact value of a finite fp16."""
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    value = Fraction(mantissa, 2**24) if exponent == 0 else (1024 + mantissa) * Fraction(2) ** (exponent - 25)
    return -value if bits & 0x8000 else value


def to_half(x):
    """The nearest fp16 of a double, ties to even, as bits; 0x7C00 or 0xFC00 when it overflows."""
    sign = 0x8000 if x < 0 else 0
    exact = abs(Fraction(x))
    unit, doublings = Fraction(1, 2**24), 0
    while exact >= 2048 * unit:  # 11 digits at most
        unit, doublings = unit * 2, doublings + 1
        if doublings > 29:
            return sign | 0x7C00
    count = round(exact / unit)  # Python rounds fractions to nearest, ties to even
    half = (doublings << 10) + count  # the bits are in the order of the values
    if half >= 0x7C00:
        return sign | 0x7C00
    assert half_value(half) == count * unit
    return sign | half


# PN -----------------------------------------------------------------------------------------------------------------

def nearest_quotient(a, b):
    """a / b to the nearest integer, ties to even; b > 0."""
    below, rest = divmod(a, b)
    if 2 * rest > b or (2 * rest == b and below % 2):
        below += 1
    return below


def codes_of(ratios, scale, zero, fault=None):
    """One code per weight; weights and scale as integer ratios."""
    numerator, denominator = scale
    codes = []
    for a, b in ratios:
        top, bottom = a * denominator, b * numerator
        if bottom < 0:
            top, bottom = -top, -bottom
        level = nearest_quotient(top, bottom)
        if fault == "half away from zero" and 2 * top % bottom == 0:
            level = (2 * abs(top) + bottom) // (2 * bottom) * (1 if top > 0 else -1)
        if fault == "half up":
            level = (2 * top + bottom) // (2 * bottom)
        codes.append(min(max(level + zero, 0), 2 * zero - (2 if fault == "clamp one short" else 1)))
    return codes


def error_of(weights, codes, s, zero, importance):
    """The sum of squared errors, in doubles."""
    error = 0.0
    for e, (w, n) in enumerate(zip(weights, codes)):
        r = w - s * (n - zero)
        square = r * r
        error += square if importance is None else importance[e] * square
    return error


def wrong_error_of(weights, codes, s, zero, importance, fault):
    g = importance or [1.0] * len(weights)
    terms = list(zip(weights, codes, g))
    error = 0.0
    for w, n, g in reversed(terms) if fault == "reversed sum" else terms:
        r = w - s * (n - zero)
        if fault == "fused":  # fma(g, r*r, error): one rounding
            error = float(Fraction(g) * Fraction(r * r) + Fraction(error))
            continue
        term = g * r * r if fault == "(g*r)*r" else g * (r * r)
        if fault == "subnormals flushed" and abs(term) < 2.0**-1022:
            term = 0.0
        error = f32(error + term) if fault == "fp32 sum" else error + term
    return error


def quantize(weights, bits, importance=None, fault=None):
    """(scale's bits, codes) of one block, or None when every scale overflows."""
    zero = 2 ** (bits - 1)
    low, high = min(weights), max(weights)
    amax = max(abs(low), abs(high))
    if importance is not None and not any(importance):
        importance = None
    sigma = 1.0 if abs(low) > high or (fault == "sigma of equal ends" and abs(low) == high) else -1.0
    ratios = [w.as_integer_ratio() for w in weights]
    best, overflow, tried = None, False, {}
    for i in range(36) if amax else ():
        m = 0.50 + 0.02 * i if fault == "m = 0.50 + 0.02*i" else (50 + 2 * i) / 100
        ideal = sigma * m * amax / zero
        scale = to_half(f32(ideal) if fault == "scale by way of fp32" else ideal)
        if scale & 0x7FFF == 0:
            continue
        if scale & 0x7C00 == 0x7C00:
            overflow = True
            continue
        if scale not in tried:
            value = half_value(scale)
            codes = codes_of(ratios, (value.numerator, value.denominator), zero, fault)
            sum_of = (weights, codes, float(value), zero, importance)
            tried[scale] = (wrong_error_of(*sum_of, fault) if fault else error_of(*sum_of), codes)
        if best is None or tried[scale][0] < tried[best][0] or (
                tried[scale][0] == tried[best][0] and fault != "smaller m"):
            best = scale
    if best is None:
        return None if overflow else (0, [zero] * len(weights))
    return best, tried[best][1]


def pn_block(scale, codes, bits, per_word, reserved=0):
    words = []
    for w in range(8):
        halves = [0, 0]
        for t, n in enumerate(codes[w * per_word:(w + 1) * per_word]):
            halves[t % 2] |= n << (bits * (t // 2))
        word = halves[0] | halves[1] << 16
        words.append(word | (reserved >> (2 * w) & 1) << 15 | (reserved >> (2 * w + 1) & 1) << 31)
    return struct.pack("<H8I", scale, *words)


def signed_half(bits):
    """A finite fp16 as a double, -0.0 included."""
    return float(half_value(bits)) if bits & 0x7FFF else (-0.0 if bits & 0x8000 else 0.0)


def decoded(scale, codes, zero):
    d = signed_half(scale)
    return struct.pack("<%df" % len(codes), *(d * float(n - zero) for n in codes))


def decoded_anyhow(scale, codes, zero):
    """As bits; any scale. A NaN is 7FC00000, which stands for all of them."""
    if scale & 0x7C00 != 0x7C00:
        return list(struct.unpack("<%dI" % len(codes), decoded(scale, codes, zero)))
    nan = scale & 0x3FF
    return [0x7FC00000 if nan or n == zero else 0x7F800000 | ((scale >> 15) ^ (n < zero)) << 31 for n in codes]


# P12 ----------------------------------------------------------------------------------------------------------------

def pack(weights, fault=None):
    """The 392 bytes of 256 bf16 patterns, or None."""
    exponents = [w >> 7 & 255 for w in weights]
    count = [exponents.count(e) for e in range(256)]
    bases = range(256 if fault == "bases to 255" else 241)
    tie = 1 if fault == "tie to the smaller base" else -1
    listed, base = min((256 - sum(count[base:base + 16]), tie * base) for base in bases)
    base = tie * base
    if listed > 3:
        return None
    places = [i for i in range(256) if not base <= exponents[i] <= base + 15]
    codes = [0 if i in places else exponents[i] - base for i in range(256)]
    head = [base, len(places)] + (places + [0, 0, 0])[:3] + ([exponents[i] for i in places] + [0, 0, 0])[:3]
    shifts = [4 * (t // 2) + 16 * (t % 2) for t in range(8)]
    words = [sum(code << shift for code, shift in zip(codes[8 * w:8 * w + 8], shifts)) for w in range(32)]
    return bytes(head) + struct.pack("<32I", *words) + bytes(w >> 8 & 0x80 | w & 0x7F for w in weights)


def unpack(block):
    """256 bf16 patterns of any 392 bytes."""
    words = struct.unpack("<32I", block[8:136])
    weights = []
    for i in range(256):
        code = words[i // 8] >> (4 * (i % 8 // 2) + 16 * (i % 2)) & 15
        exponent = (block[0] + code) % 256
        for slot in range(min(block[1], 3)):
            if block[2 + slot] == i:
                exponent = block[5 + slot]
        weights.append((block[136 + i] & 0x80) << 8 | exponent << 7 | block[136 + i] & 0x7F)
    return weights


# Validity -----------------------------------------------------------------------------------------------------------

def pn_result(block, bits):
    if block[1] & 0x7C == 0x7C:
        return "scale_not_finite"
    if bits == 3 and any(block[i] & 0x80 for i in range(3, 34, 2)):
        return "reserved_bits_set"
    return "ok"


def p12_result(block):
    """The first rule, in the order of the manifest, that a block breaks."""
    base, n, places, exponents = block[0], block[1], list(block[2:5]), list(block[5:8])
    if base > 240:
        return "base_out_of_range"
    if n > 3:
        return "listed_count_out_of_range"
    if any(places[i] >= places[i + 1] for i in range(n - 1)):
        return "positions_not_ascending"
    if any(places[n:]) or any(exponents[n:]):
        return "unused_slot_not_zero"
    if any(block[8 + p // 8 * 4 + p % 2 * 2 + p % 8 // 4] >> (p // 2 % 2 * 4) & 15 for p in places[:n]):
        return "listed_code_not_zero"
    if any(base <= e <= base + 15 for e in exponents[:n]):
        return "listed_exponent_in_range"
    again = pack(unpack(block))
    assert again is None or again[0] != base or again == block  # the rules above are all that there are
    return "ok" if again == block else "base_not_canonical"


# Numbers ------------------------------------------------------------------------------------------------------------

def fp32_of(exact):
    """The nearest fp32 of a fraction, ties to even, as bits without a sign for zero."""
    if exact == 0:
        return 0
    sign, exact = (0x80000000 if exact < 0 else 0), abs(exact)
    power = max(exact.numerator.bit_length() - exact.denominator.bit_length() - 25, -149)
    while exact >= 2**24 * Fraction(2)**power:
        power += 1
    count = round(exact / Fraction(2)**power)
    bits = (power + 149 << 23) + count  # subnormals and 2^-126 .. 2^-125 have the same unit; 2^24 carries
    return sign | min(bits, 0x7F800000)


def half_to_fp32_bits(half):
    sign, magnitude = (half & 0x8000) << 16, half & 0x7FFF
    if magnitude >= 0x7C00:
        return sign | 0x7F800000 | (0x400000 if magnitude & 0x3FF else 0) | (half & 0x3FF) << 13
    return sign | fp32_of(half_value(magnitude))


def fp64_bits_to_half(bits):
    sign, magnitude = bits >> 48 & 0x8000, bits & 2**63 - 1
    if magnitude > 2047 << 52:
        return sign | 0x7E00 | magnitude >> 42 & 0x3FF
    if magnitude == 2047 << 52:
        return sign | 0x7C00
    return sign | to_half(struct.unpack("<d", struct.pack("<Q", magnitude))[0])


def fp32_bits_to_half(bits):
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return sign | 0x7E00 | magnitude >> 13 & 0x3FF
    return sign | (0x7C00 if magnitude == 0x7F800000 else to_half(f32_bits(magnitude)))


def fp32_bits_to_bf16(bits):
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return sign | 0x7FC0 | magnitude >> 16
    if magnitude == 0x7F800000:
        return sign | 0x7F80
    below = magnitude >> 16
    value = lambda b: Fraction(2**128) if b == 0x7F80 else Fraction(f32_bits(b << 16))
    twice, middle = 2 * Fraction(f32_bits(magnitude)), value(below) + value(below + 1)
    return sign | below + (twice > middle or (twice == middle and below % 2))


# Dot products and Q8_0 ------------------------------------------------------------------------------------------------

def dot(weights, x, fault=None):
    """fp32 bits; weights and x are doubles whose products are exact."""
    total = 0.0
    pairs = list(zip(weights, x))
    for w, v in reversed(pairs) if fault == "reversed sum" else pairs:
        assert Fraction(w) * Fraction(v) == Fraction(w * v)
        total += w * v
        if fault == "fp32 sum":
            total = f32(total)
    if total == 0:
        return 0  # +0.0 + -0.0 is +0.0
    return fp32_of(Fraction(total))


def q8_0(x, fault=None):
    """34 bytes of 32 fp32, all steps in fp32."""
    amax = max(abs(v) for v in x)
    d = fp32_of(Fraction(amax) / 127)
    inverse = 0
    if d:
        inverse = fp32_of(1 / Fraction(f32_bits(fp16_back(d) if fault == "inverse of the rounded d" else d)))
    codes = []
    for v in x:
        exact = Fraction(v) * Fraction(f32_bits(inverse)) if inverse != 0x7F800000 else Fraction(0)
        scaled = exact if fault == "exact product" else Fraction(f32_bits(fp32_of(exact)))
        q = (2 * abs(scaled) + 1) // 2 * (1 if scaled > 0 else -1)
        codes.append(round(scaled) if fault == "ties to even" else q)
    return struct.pack("<H32b", fp32_bits_to_half(d), *codes)


def fp16_back(bits):
    """fp32 bits rounded to fp16 and widened again; the smallest fp16 instead of zero."""
    return half_to_fp32_bits(fp32_bits_to_half(bits) or 1)


def q8_0_values(block):
    d, *codes = struct.unpack("<H32b", block)
    return [signed_half(d) * q for q in codes]


# Hadamard rotation ----------------------------------------------------------------------------------------------------

HADAMARD = {64: 0.125, 128: float.fromhex("0x1.6a09e667f3bcdp-4"), 256: 0.0625,
            512: float.fromhex("0x1.6a09e667f3bcdp-5"), 1024: 0.03125}


def butterflies(x, rounded, last_first=False):
    """Sylvester's matrix times x, from its definition [[H, H], [H, -H]]; every sum is `rounded`."""
    if len(x) == 1:
        return x
    if last_first:  # the pairs at the largest distance before the others: the same matrix, other sums
        half = len(x) // 2
        left = [rounded(a + b) for a, b in zip(x[:half], x[half:])]
        right = [rounded(a - b) for a, b in zip(x[:half], x[half:])]
        return butterflies(left, rounded, True) + butterflies(right, rounded, True)
    left = butterflies(x[:len(x) // 2], rounded)
    right = butterflies(x[len(x) // 2:], rounded)
    return [rounded(a + b) for a, b in zip(left, right)] + [rounded(a - b) for a, b in zip(left, right)]


def rotated(x, b, fault=None):
    """The segments of a row, rotated in double."""
    rounded = f32 if fault == "fp32 butterflies" else float
    c = f32(HADAMARD[b]) if fault == "c in fp32" else HADAMARD[b]
    if fault == "sums from +0.0":
        x = [v + 0.0 for v in x]
    return [v * c for start in range(0, len(x), b)
            for v in butterflies(x[start:start + b], rounded, fault == "largest h first")]


def rotated_activations(x, b, fault=None):
    """The same with every step in fp32: a double sum or product of two fp32, rounded to fp32, is the fp32 operation."""
    rounded = float if fault == "double butterflies" else f32
    c = HADAMARD[b] if fault == "c in double" else f32(HADAMARD[b])
    return [f32(v * c) for start in range(0, len(x), b)
            for v in butterflies(x[start:start + b], rounded, fault == "largest h first")]


def nearest_bits(x, digits, lowest, infinity):
    """The bits, without the sign, of the value nearest to a double, ties to even, in a type with so many digits and
    with subnormals in units of 2^lowest."""
    exact = abs(Fraction(x))
    if exact == 0:
        return 0
    power = max(exact.numerator.bit_length() - exact.denominator.bit_length() - digits - 1, lowest)
    while exact >= 2**digits * Fraction(2)**power:
        power += 1
    count = round(exact / Fraction(2)**power)
    return min((power - lowest << digits - 1) + count, infinity)


def fp64_bits_to_bf16(bits):
    sign, magnitude = bits >> 48 & 0x8000, bits & 2**63 - 1
    if magnitude > 2047 << 52:
        return sign | 0x7FC0 | magnitude >> 45 & 0x7F
    if magnitude == 2047 << 52:
        return sign | 0x7F80
    return sign | nearest_bits(struct.unpack("<d", struct.pack("<Q", magnitude))[0], 8, -133, 0x7F80)


ROUNDED = {"fp32": (24, -149, 0x7F800000), "fp16": (11, -24, 0x7C00), "bf16": (8, -133, 0x7F80)}


def rounded_to(dtype, x):
    """A double as the bits of the dtype, with one rounding."""
    digits, lowest, infinity = ROUNDED[dtype]
    negative = struct.pack("<d", x)[7] & 0x80
    return nearest_bits(x, digits, lowest, infinity) | (2**(32 if dtype == "fp32" else 16) // 2 if negative else 0)
