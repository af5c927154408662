"""A second implementation of both formats, written from the format's text and sharing nothing with the library.

Slow and plain on purpose. P12 packing counts the weights outside every one of the 241 windows. The PN quantizer sums in
Python floats (IEEE doubles, never fused), and rounds with integers: double -> fp16 and rint(w / s) are exact rationals.
Weights of P12 are 16-bit patterns; weights of PN are Python floats that hold fp32 values.
"""

import math
import random
import struct

# ---------------------------------------------------------------- numbers


def f32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f32_from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def round_half_even(numerator, denominator):
    """numerator / denominator to the nearest integer, ties to even. Integers, denominator > 0."""
    quotient, rest = divmod(numerator, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and quotient & 1):
        quotient += 1
    return quotient


def fp16_bits(value):
    """The fp16 pattern nearest to a finite double, ties to even; infinity where it rounds past 65504."""
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    numerator, denominator = abs(value).as_integer_ratio()
    if numerator == 0:
        return sign
    exponent = max(math.frexp(value)[1] - 1, -14)  # of the result's binade, before rounding
    shift = 10 - exponent  # the unit in the last place is 2**-shift
    if shift >= 0:
        units = round_half_even(numerator << shift, denominator)
    else:
        units = round_half_even(numerator, denominator << -shift)
    # units = 1.mmmmmmmmmm * 1024, or a subnormal; adding lets a carry run into the exponent
    bits = ((exponent + 15 - 1) << 10) + units
    return sign | min(bits, 0x7C00)


def fp16_value(bits):
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, -24)
    return sign * math.ldexp(1024 + mantissa, exponent - 25)


def bf16_bits(value):
    """The bf16 pattern nearest to a float that is exactly an fp32, ties to even; finite values only."""
    bits = f32_bits(value)
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def bf16_value(bits):
    return f32_from_bits(bits << 16)


def bf16_from_f32_bits(bits):
    """The bf16 pattern of an fp32 pattern: NaN keeps its sign and top payload bits and becomes quiet; a finite value may
    become infinity."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16 if bits & 0x7F800000 != 0x7F800000 else bits >> 16


def bf16_from_f16_bits(bits):
    if bits & 0x7C00 == 0x7C00:
        mantissa = bits & 0x3FF
        return (bits & 0x8000) | 0x7F80 | (mantissa >> 3 | 0x40 if mantissa else 0)
    return bf16_from_f32_bits(f32_bits(fp16_value(bits)))


def bf16_bits_once(value):
    """The bf16 pattern nearest to a finite double, ties to even: one rounding."""
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    numerator, denominator = abs(value).as_integer_ratio()
    if numerator == 0:
        return sign
    exponent = max(math.frexp(value)[1] - 1, -126)
    shift = 7 - exponent  # the unit in the last place is 2**-shift
    if shift >= 0:
        units = round_half_even(numerator << shift, denominator)
    else:
        units = round_half_even(numerator, denominator << -shift)
    return sign | min(((exponent + 127 - 1) << 7) + units, 0x7F80)


def u16s(data):
    return list(struct.unpack("<%dH" % (len(data) // 2), data))


def u16_bytes(values):
    return struct.pack("<%dH" % len(values), *values)


def f32_bytes(values):
    return struct.pack("<%df" % len(values), *values)


def f32s(data):
    return list(struct.unpack("<%df" % (len(data) // 4), data))


# ---------------------------------------------------------------- BF16_P12


def code_shift(element, codes_per_word, bits):
    t = element % codes_per_word
    return bits * (t >> 1) + 16 * (t & 1)


def p12_best_base(exponents):
    """(base, number outside): the fewest outside [base, base + 15], the larger base on a tie."""
    histogram = [0] * 256
    for exponent in exponents:
        histogram[exponent] += 1
    best = None
    for base in range(241):
        outside = len(exponents) - sum(histogram[base:base + 16])
        if best is None or outside <= best[1]:
            best = (base, outside)
    return best


def p12_pack_block(weights):
    """392 bytes, or None when the block would list more than 3 weights."""
    if len(weights) != 256:
        raise ValueError("a block has 256 weights")
    exponents = [w >> 7 & 255 for w in weights]
    base, outside = p12_best_base(exponents)
    if outside > 3:
        return None
    places = [i for i, e in enumerate(exponents) if not base <= e <= base + 15]
    words = [0] * 32
    for i, exponent in enumerate(exponents):
        if i not in places:
            words[i // 8] |= exponent - base << code_shift(i, 8, 4)
    free = [0] * (3 - len(places))
    head = [base, len(places)] + places + free + [exponents[i] for i in places] + free
    return bytes(head) + struct.pack("<32I", *words) + bytes((w >> 8 & 0x80) | (w & 0x7F) for w in weights)


def p12_unpack_block(block):
    words = struct.unpack("<32I", block[8:136])
    base, listed = block[0], min(block[1], 3)
    exponents = [(base + (words[i // 8] >> code_shift(i, 8, 4) & 15)) % 256 for i in range(256)]
    for k in range(listed):
        exponents[block[2 + k]] = block[5 + k]
    return [(b & 0x80) << 8 | exponents[i] << 7 | b & 0x7F for i, b in enumerate(block[136:])]


def p12_valid(block):
    return p12_pack_block(p12_unpack_block(block)) == block


def p12_listed_needed(weights):
    return p12_best_base([w >> 7 & 255 for w in weights])[1]


def p12_pack(data):
    """Packed bytes of BF16 data whose rows are multiples of 256 weights, None when a block does not fit."""
    weights, out = u16s(data), []
    for at in range(0, len(weights), 256):
        block = p12_pack_block(weights[at:at + 256])
        if block is None:
            return None
        out.append(block)
    return b"".join(out)


def p12_unpack(data):
    return b"".join(u16_bytes(p12_unpack_block(data[at:at + 392])) for at in range(0, len(data), 392))


def p12_histogram(packed):
    """Blocks listing 0, 1, 2 and 3 weights."""
    counts = [0, 0, 0, 0]
    for at in range(0, len(packed), 392):
        counts[packed[at + 1]] += 1
    return counts


# ---------------------------------------------------------------- PN


class Kind:
    def __init__(self, name, type_id, bits, block, codes_per_word):
        self.name, self.type_id, self.bits, self.block = name, type_id, bits, block
        self.codes_per_word, self.zero = codes_per_word, 1 << (bits - 1)


PN3T = Kind("pn3t", 124, 3, 80, 10)
PN4T = Kind("pn4t", 125, 4, 64, 8)
KINDS = {"pn3t": PN3T, "pn4t": PN4T}
MULTIPLIERS = [(50 + 2 * i) / 100 for i in range(36)]


class Overflow(ValueError):
    """Every candidate scale of a block overflows fp16."""


def pn_block_bytes(kind, scale_bits, codes):
    words = [0] * 8
    for e, code in enumerate(codes):
        words[e // kind.codes_per_word] |= code << code_shift(e, kind.codes_per_word, kind.bits)
    return struct.pack("<H8I", scale_bits, *words)


def pn_codes(kind, block):
    words = struct.unpack("<8I", block[2:])
    mask = (1 << kind.bits) - 1
    return [words[e // kind.codes_per_word] >> code_shift(e, kind.codes_per_word, kind.bits) & mask
            for e in range(kind.block)]


def pn_decode_block(kind, block):
    d = fp16_value(struct.unpack("<H", block[:2])[0])
    # n - z as a float: 0.0 is +0.0, so the product keeps IEEE's sign of zero
    return [d * float(code - kind.zero) for code in pn_codes(kind, block)]


def pn_decode(kind, data):
    return [w for at in range(0, len(data), 34) for w in pn_decode_block(kind, data[at:at + 34])]


def pn_candidates(kind, amax, sigma):
    """fp16 patterns of the 36 scales, in order of rising m; None where the candidate is skipped."""
    out = []
    for m in MULTIPLIERS:
        bits = fp16_bits(sigma * m * amax / kind.zero)
        out.append(None if bits & 0x7FFF in (0, 0x7C00) else bits)
    return out


def pn_choose_codes(kind, ratios, scale):
    """clamp(rint(w / s) + z, 0, 2z - 1) from exact rationals; ratios are w.as_integer_ratio()."""
    s_num, s_den = scale.as_integer_ratio()
    if s_num < 0:
        s_num, s_den = -s_num, -s_den
    codes = []
    for w_num, w_den in ratios:
        numerator, denominator = w_num * s_den, w_den * s_num
        n = round_half_even(numerator, denominator) + kind.zero
        codes.append(min(max(n, 0), 2 * kind.zero - 1))
    return codes


def pn_quantize_block(kind, weights, importance=None):
    """importance: one g for each weight; a block whose g are all 0 is searched without."""
    if importance is not None and not any(importance):
        importance = None
    amax, low, high = max(map(abs, weights)), min(weights), max(weights)
    zero_block = pn_block_bytes(kind, 0, [kind.zero] * kind.block)
    if amax == 0:
        return zero_block
    candidates = pn_candidates(kind, amax, 1.0 if abs(low) > high else -1.0)
    ratios = [w.as_integer_ratio() for w in weights]
    best = None
    for bits in candidates:
        if bits is None:
            continue
        scale = fp16_value(bits)
        codes = pn_choose_codes(kind, ratios, scale)
        error = 0.0
        for i, (w, code) in enumerate(zip(weights, codes)):
            r = w - scale * (code - kind.zero)
            square = r * r
            error = error + (square if importance is None else importance[i] * square)
        if best is None or error <= best[0]:
            best = (error, bits, codes)
    if best is None:
        # the largest candidate is the last to vanish and the first to overflow
        if fp16_bits(MULTIPLIERS[0] * amax / kind.zero) == 0x7C00:
            raise Overflow()
        return zero_block
    return pn_block_bytes(kind, best[1], best[2])


def pn_quantize(kind, weights, importance=None):
    if len(weights) % kind.block:
        raise ValueError("not whole blocks")
    return b"".join(pn_quantize_block(kind, weights[at:at + kind.block],
                                      None if importance is None else importance[at:at + kind.block])
                    for at in range(0, len(weights), kind.block))


def pn_valid(kind, block):
    if block[1] & 0x7C == 0x7C:
        return False
    return kind is not PN3T or not any(word & 0x80008000 for word in struct.unpack("<8I", block[2:]))


def nrmse(weights, decoded, importance=None):
    """With importance, one g for each weight, every square counts g times. 0 where there is nothing to err about."""
    g = [1.0] * len(weights) if importance is None else importance
    error = math.fsum(c * (w - d) ** 2 for w, d, c in zip(weights, decoded, g))
    total = math.fsum(c * w * w for w, c in zip(weights, g))
    return math.sqrt(error / total) if total else 0.0


def rotate_exactly(values, block):
    """Segments of `block` values times Sylvester's Hadamard matrix / sqrt(block), in doubles: butterflies, then the
    constant."""
    constant = {64: 0.125, 128: float.fromhex("0x1.6a09e667f3bcdp-4"), 256: 0.0625,
                512: float.fromhex("0x1.6a09e667f3bcdp-5"), 1024: 0.03125}[block]
    out = []
    for at in range(0, len(values), block):
        x, h = list(values[at:at + block]), 1
        while h < block:
            for i in range(0, block, 2 * h):
                for j in range(i, i + h):
                    x[j], x[j + h] = x[j] + x[j + h], x[j] - x[j + h]
            h *= 2
        out += [v * constant for v in x]
    return out


def rotate(values, block):
    """Rotated and rounded once to fp32; the rotation is its own inverse."""
    return [f32_from_bits(f32_bits(v)) for v in rotate_exactly(values, block)]


unrotate = rotate


# ---------------------------------------------------------------- Q8_0


def f32(value):
    """The fp32 nearest to a double. A quotient of two fp32 or their product, rounded to double first, needs no more bits
    than a double has to be rounded right."""
    try:
        return f32_from_bits(f32_bits(value))
    except OverflowError:
        return math.copysign(math.inf, value)


def q8_0_quantize_block(weights):
    """ggml's reference quantizer; every code 0 where 1 / d overflows."""
    d = f32(max(map(abs, weights)) / 127)
    inverse = f32(1 / d) if d else 0.0
    if inverse == math.inf:
        inverse = 0.0
    codes = [int(math.copysign(math.floor(abs(f32(w * inverse)) + 0.5), w)) for w in weights]  # halves away from zero
    if d >= 65520:
        raise Overflow()
    return struct.pack("<H32b", fp16_bits(d), *codes)


def q8_0_quantize(weights):
    return b"".join(q8_0_quantize_block(weights[at:at + 32]) for at in range(0, len(weights), 32))


def q8_0_decode(data):
    out = []
    for at in range(0, len(data), 34):
        d, *codes = struct.unpack("<H32b", data[at:at + 34])
        out += [fp16_value(d) * code for code in codes]
    return out


# ---------------------------------------------------------------- statistics of bf16 patterns


def entropy(counts):
    """Shannon's, in bits."""
    total = sum(counts)
    return -math.fsum(n / total * math.log2(n / total) for n in counts if n)


def byte_entropies(patterns):
    """(of the low byte, of the high byte)."""
    low, high = [0] * 256, [0] * 256
    for bits in patterns:
        low[bits & 255] += 1
        high[bits >> 8] += 1
    return entropy(low), entropy(high)


# ---------------------------------------------------------------- weights to test with


def gaussian(count, seed, sigma=1.0):
    """fp32 values as floats."""
    rng = random.Random(seed)
    return f32s(f32_bytes([rng.gauss(0.0, sigma) for _ in range(count)]))


def gaussian_bf16(count, seed, sigma=1.0):
    """BF16 data in bytes; any 256 in a row list at most 3 weights (checked here)."""
    patterns = [bf16_bits(w) for w in gaussian(count, seed, sigma)]
    for at in range(0, count - 255, 256):
        if p12_listed_needed(patterns[at:at + 256]) > 3:
            raise AssertionError("choose another seed")
    return u16_bytes(patterns)
