"""The cases of v1/. Never changed: what is missing goes into a folder of its own."""
import struct

from arithmetic import (TYPES, Random, decoded, f32, f32_bits, half_value, pack, pn_block, quantize, step, to_half)


def pn_inputs(random, size, zero):
    """Blocks of weights, each with an edge of its own or of a common kind."""
    blocks = []
    add = lambda values: blocks.append([f32(v) for v in values])
    every = range(size)
    for _ in range(24):
        scale = 2.0 ** random.between(-12, 4) * (1 + random.uniform())
        add(scale * random.bell() for _ in every)
    for _ in range(16):
        add(0.01 * random.bell() * random.bell() * random.bell() for _ in every)
    for _ in range(12):
        add(max(-1e4, min(1e4, random.bell() / (random.uniform() + 2.0**-40))) for _ in every)
    for outlier in (1000.0, -1000.0, 1.0, -1.0):
        for place in (0, 1, size // 2, size - 1):
            values = [0.01 * random.bell() for _ in every]
            values[place] = outlier
            add(values)
    for value in (1.0, -1.0, 0.1, -0.1, 3.0, 65504.0, -65504.0, 2.0**-14, 2.0**-24, -(2.0**-24)):
        add(value for _ in every)
        add(value if e % 2 else -value for e in every)
        add(value if e % 3 else 0.0 for e in every)
    add(0.0 for _ in every)
    add(-0.0 for _ in every)
    add(random.sign() * 0.0 for _ in every)
    for _ in range(8):  # fp32 subnormals, too small for any scale
        blocks.append([f32_bits(random.bits(23) | random.bits(1) << 31) for _ in every])
    for _ in range(4):  # subnormals beside ordinary weights
        blocks.append([f32_bits(random.bits(23)) if e % 3 else f32(random.bell()) for e in every])
    edges = [2.0**-25 * zero / 1.2, 2.0**-25 * zero / 0.5, 2.0**-25 * zero, 65520.0 * zero / 1.2, 65520.0 * zero / 0.5,
             65504.0 * zero, 1e-6, 6e-8, 2.9e-8]
    for edge in edges:
        for n in (-2, -1, 0, 1, 2):
            for sign in (1.0, -1.0):
                amax = step(f32(edge), n)
                values = [amax * (2 * random.uniform() - 1) for _ in every]
                values[random.below(size)] = sign * amax
                if quantize([f32(v) for v in values], 3 if zero == 4 else 4) is not None:
                    add(values)
    for i in range(36):  # halfway between two levels of candidate i
        scale = float(abs(half_value(to_half((50 + 2 * i) / 100 / zero))))
        values = [scale * (random.between(-zero, zero - 1) + 0.5) for _ in every]
        values = [v if abs(v) <= 1 else 0.5 * scale for v in values]
        values[random.below(size)] = -1.0
        add(values)
    for _ in range(40):  # small multiples of the smallest scale: ties of two scales
        span = random.between(2, 6 * zero)
        values = [0.0] * size
        for _ in range(random.between(1, 4)):
            values[random.below(size)] = random.between(-span, span) * 2.0**-24
        add(values)
    for _ in range(24):  # the same with noise: equal errors differ only by the order in which they are summed
        span = random.between(2, 6 * zero)
        values = [2.0**-27 * (2 * random.uniform() - 1) for _ in every]
        for _ in range(random.between(1, size // 4)):
            values[random.below(size)] = random.between(-span, span) * 2.0**-24
        add(values)
    for _ in range(8):  # |min| == max
        amax = 1 + random.uniform()
        values = [amax * (2 * random.uniform() - 1) for _ in every]
        values[random.below(size // 2)] = amax
        values[size - 1 - random.below(size // 2)] = -amax
        add(values)
    for sign in (1.0, -1.0):
        for _ in range(6):
            add(sign * (0.25 + random.uniform()) for _ in every)
    for _ in range(12):  # weights that were bf16
        add(f32_bits(struct.unpack("<I", struct.pack("<f", 0.02 * random.bell()))[0] & 0xFFFF0000) for _ in every)
    for _ in range(8):
        blocks.append([f32_bits(random.bits(23) | random.bits(1) << 31 | random.between(90, 140) << 23) for _ in every])
    return blocks


def importances(random, size, kind):
    if kind == 0:
        return [random.uniform() for _ in range(size)]
    if kind == 1:
        return [random.uniform() if random.below(4) == 0 else 0.0 for _ in range(size)]
    if kind == 2:
        return [random.uniform() * 2.0 ** random.between(-200, 200) for _ in range(size)]
    if kind == 3:
        return [random.between(0, 3) * 5e-324 for _ in range(size)]
    if kind == 4:
        return [0.0] * size
    return [1.0] * size


def pn_files(name):
    bits, per_word = TYPES[name]
    size, zero = 8 * per_word, 2 ** (bits - 1)
    random = Random(0x9E3779B97F4A7C15 + bits)
    files = {}

    weights, blocks, values = [], [], []
    for block in pn_inputs(random, size, zero):
        scale, codes = quantize(block, bits)
        weights.append(struct.pack("<%df" % size, *block))
        blocks.append(pn_block(scale, codes, bits, per_word))
        values.append(decoded(scale, codes, zero))
    files["%s-weights.bin" % name] = b"".join(weights)
    files["%s-blocks.bin" % name] = b"".join(blocks)
    files["%s-decoded.bin" % name] = b"".join(values)

    weights, importance, blocks = [], [], []
    for i in range(60):
        block = [f32(0.02 * random.bell() * (random.bell() if i % 2 else 1.0)) for _ in range(size)]
        g = importances(random, size, i % 6)
        scale, codes = quantize(block, bits, g)
        weights.append(struct.pack("<%df" % size, *block))
        importance.append(struct.pack("<%dd" % size, *g))
        blocks.append(pn_block(scale, codes, bits, per_word))
    files["%s-weighted-weights.bin" % name] = b"".join(weights)
    files["%s-weighted-importance.bin" % name] = b"".join(importance)
    files["%s-weighted-blocks.bin" % name] = b"".join(blocks)

    scales = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]
    scales += [s for s in (random.bits(16) for _ in range(80)) if s & 0x7C00 != 0x7C00]
    blocks, values = [], []
    for i, scale in enumerate(scales):
        codes = [(e + i) % (2 * zero) for e in range(size)] if i % 3 == 0 else [random.bits(bits) for _ in range(size)]
        blocks.append(pn_block(scale, codes, bits, per_word, random.bits(16) if bits == 3 and i % 2 else 0))
        values.append(decoded(scale, codes, zero))
    files["%s-raw-blocks.bin" % name] = b"".join(blocks)
    files["%s-raw-decoded.bin" % name] = b"".join(values)
    return files


def p12_inputs(random):
    blocks = []
    weight = lambda exponent: random.bits(1) << 15 | exponent << 7 | random.bits(7)
    every = range(256)
    for block in range(256):  # all 65,536 patterns
        exponents = [block // 16 * 16 + i % 16 for i in every]
        sign_mantissas = [block % 16 << 4 | i // 16 for i in every]
        blocks.append([sm // 128 << 15 | e << 7 | sm % 128 for e, sm in zip(exponents, sign_mantissas)])
    blocks.append([0x3F80] * 256)
    blocks.append([0x3F00 if i % 2 else 0x3F80 for i in every])
    blocks.append([1 + i % 0x7F | i % 2 << 15 for i in every])
    blocks.append([0x0000 if i % 2 else 0x8000 for i in every])
    blocks.append([0x7F80 if i == 77 else weight(120) for i in every])
    blocks.append([0xFF80 + i % 128 for i in every])
    for _ in range(24):  # like trained weights
        blocks.append([struct.unpack("<I", struct.pack("<f", 0.02 * random.bell()))[0] >> 16 for _ in every])
    for n in (1, 2, 3):  # listed weights at every class of places
        for _ in range(24):
            low = random.between(16, 224)
            values = [weight(low + random.below(16)) for _ in every]
            values[100], values[101] = weight(low), weight(low + 15)
            edges = [0, 1, 7, 8, 15, 16, 127, 128, 247, 248, 254, 255]
            for i in range(n):
                place = edges.pop(random.below(len(edges)))
                values[place] = weight(random.below(low) if random.bits(1) else random.between(low + 16, 255))
            blocks.append(values)
    ties = [(100, 116), (100, 84), (100, 84, 116), (100, 92, 115), (100, 92, 93, 115), (100, 92, 114, 115), (5, 200),
            (0, 200), (0,), (255,), (250, 5), (250, 239), (255, 239), (240, 255), (239, 255), (241, 255),
            (247, 232, 255), (240, 0, 255), (15, 0, 255), (16, 0, 255), (100, 90, 95, 110, 112)]
    for most, *others in ties:
        values = [weight(most) for _ in every]
        for i, exponent in enumerate(others):
            values[20 * i + 9] = weight(exponent)
        blocks.append(values)
    for _ in range(16):
        low = random.between(0, 240)
        blocks.append([weight(low + random.below(16)) for _ in every])
    return blocks


def p12_unpackable(random):
    blocks = [[i << 7 for i in range(256)], [random.bits(16) for _ in range(256)]]
    for apart in (16, 17, 100):
        for others in (4, 5, 128):
            blocks.append([(120 + (apart if i % (256 // others) == 1 else 0)) << 7 | i % 128 for i in range(256)])
    assert all(pack(b) is None for b in blocks)
    return blocks


def p12_files():
    random = Random(0xD1B54A32D192ED03)
    weights = p12_inputs(random)
    refused = p12_unpackable(random)
    return {
        "p12-weights.bin": b"".join(struct.pack("<256H", *b) for b in weights),
        "p12-blocks.bin": b"".join(pack(b) for b in weights),
        "p12-unpackable-weights.bin": b"".join(struct.pack("<256H", *b) for b in refused),
    }


def files():
    return {**pn_files("pn3t"), **pn_files("pn4t"), **p12_files()}
