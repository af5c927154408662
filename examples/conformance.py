#!/usr/bin/env python3
"""Holds a small decoder of PN and BF16_P12, written from their two FORMAT.md, against the golden files.

usage: conformance.py [FOLDER]     (FOLDER: where manifest.json lies)

To check an implementation of yours, replace the functions from DECODER on by calls of it. This program runs decode,
validate, unpack, pack and the rotation of activations and of decoded weights; the other operations of the manifest are
for implementations that quantize, multiply or write fp16 and bf16.
"""
import hashlib
import json
import pathlib
import struct
import sys

RUN = ("decode", "decode_rotated", "rotate_activations", "validate", "unpack", "pack")
TYPES = {"pn3t": (3, 10), "pn4t": (4, 8)}  # bits per code, codes per word
ITEMS = {"bf16": "H", "fp32": "f", "pn_block": "34s", "p12_block": "392s"}  # how struct reads what is needed here

HADAMARD = {64: "0x1p-3", 128: "0x1.6a09e667f3bcdp-4", 256: "0x1p-4", 512: "0x1.6a09e667f3bcdp-5", 1024: "0x1p-5"}

# DECODER --------------------------------------------------------------------------------------------------------------

def decode(block, form):
    """The weights of one PN block."""
    bits, per_word = TYPES[form]
    d, *words = struct.unpack("<e8I", block)
    shifts = [bits * (t >> 1) + 16 * (t & 1) for t in range(per_word)]
    return [d * float((w >> shift & 2**bits - 1) - 2**(bits - 1)) for w in words for shift in shifts]

def fp32(x):
    """The nearest fp32 of a double."""
    return struct.unpack("<f", struct.pack("<f", x))[0]

def rotate(x, b, rounded):
    """A row times the Hadamard matrix of each segment: butterflies, then the constant; each step is rounded."""
    distance, c = 1, rounded(float.fromhex(HADAMARD[b]))
    while distance < b:
        x = [rounded(x[j ^ distance] - v if j & distance else v + x[j ^ distance]) for j, v in enumerate(x)]
        distance *= 2
    return [rounded(v * c) for v in x]

def validate_pn(block, form):
    if block[1] & 0x7C == 0x7C:
        return "scale_not_finite"
    return "reserved_bits_set" if form == "pn3t" and any(b & 0x80 for b in block[3::2]) else "ok"

def codes_of(block):
    return [w >> 4 * (t >> 1) + 16 * (t & 1) & 15 for w in struct.unpack("<32I", block[8:136]) for t in range(8)]

def unpack(block):
    """The bf16 patterns of one BF16_P12 block, valid or not."""
    exponents = [(block[0] + code) % 256 for code in codes_of(block)]
    for slot in range(min(block[1], 3)):
        exponents[block[2 + slot]] = block[5 + slot]
    return [(sm & 0x80) << 8 | e << 7 | sm & 0x7F for e, sm in zip(exponents, block[136:])]

def pack(weights):
    """One BF16_P12 block, or None when 256 bf16 patterns do not fit."""
    exponents = [w >> 7 & 255 for w in weights]
    count = [exponents.count(e) for e in range(256)]
    base = max(range(241), key=lambda b: (sum(count[b:b + 16]), b))
    listed = [i for i, e in enumerate(exponents) if not base <= e <= base + 15]
    if len(listed) > 3:
        return None
    unused, words = [0] * (3 - len(listed)), [0] * 32
    for i, e in enumerate(exponents):
        words[i // 8] |= (0 if i in listed else e - base) << 4 * (i % 8 >> 1) + 16 * (i & 1)
    return struct.pack("<8B32I", base, len(listed), *listed, *unused, *(exponents[i] for i in listed), *unused,
                       *words) + bytes(w >> 8 & 0x80 | w & 0x7F for w in weights)

def validate_p12(block, _):
    base, n, places, exponents, codes = block[0], block[1], block[2:5], block[5:8], codes_of(block)
    rules = [("base_out_of_range", base > 240), ("listed_count_out_of_range", n > 3),
             ("positions_not_ascending", any(a >= b for a, b in zip(places[:n], places[1:n]))),
             ("unused_slot_not_zero", any(places[n:] + exponents[n:])),
             ("listed_code_not_zero", any(codes[p] for p in places[:n])),
             ("listed_exponent_in_range", any(base <= e <= base + 15 for e in exponents[:n])),
             ("base_not_canonical", pack(unpack(block)) != block)]
    return next((reason for reason, broken in rules if broken), "ok")

def rows(results, per_row):
    """What is said of each row: the first of its blocks that is not ok."""
    bad = [[{"result": r, "block": b} for b, r in enumerate(results[i:i + per_row]) if r != "ok"]
           for i in range(0, len(results), per_row)]
    return [row[0] if row else {"result": "ok"} for row in bad]

def run(operation, form, k, b, inputs):
    """What the decoder makes of the inputs of a test."""
    if operation in ("decode", "decode_rotated"):
        weights = [w for block in inputs["blocks"] for w in decode(block, form)]
        return weights if operation == "decode" else [fp32(w) for w in rotate(weights, b, float)]
    if operation == "rotate_activations":
        return rotate(inputs["x"], b, fp32) if b in HADAMARD and k % b == 0 else [{"result": "bad_length"}]
    if operation == "unpack":
        return [w for block in inputs["blocks"] for w in unpack(block)]
    if operation == "validate":
        size, valid = (256, validate_p12) if form == "bf16_p12" else (8 * TYPES[form][1], validate_pn)
        return rows([valid(block, form) for block in inputs["blocks"]], k // size)
    if operation == "pack":
        if k % 256:
            return [{"result": "bad_length"}]
        blocks = [pack(inputs["weights"][i:i + 256]) for i in range(0, len(inputs["weights"]), 256)]
        return rows(["ok" if b else "too_many_listed" for b in blocks], k // 256) if None in blocks else blocks

def bits(value):
    """What is compared: +0.0 is not -0.0, but any NaN will do for a NaN."""
    return "NaN" if value != value else struct.pack("<f", value) if isinstance(value, float) else value

def main():
    here = pathlib.Path(__file__).resolve().parent
    folders = [pathlib.Path(a) for a in sys.argv[1:2]] or [here / "../tests/golden", here / "golden"]
    folder = next((f for f in folders if (f / "manifest.json").is_file()), folders[0])
    manifest = json.loads((folder / "manifest.json").read_text())
    stated, listed = manifest.pop("sha256"), manifest["files"]
    data = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.bin")}
    problems = ["%s: missing, or not listed" % name for name in sorted(data.keys() ^ listed.keys())]
    problems += ["%s: damaged" % name for name in sorted(data.keys() & listed.keys())
                 if hashlib.sha256(data[name]).hexdigest() != listed[name]["sha256"]]
    if hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() != stated:
        problems.append("manifest.json: damaged")
    if problems:
        sys.exit("\n".join(problems + ["These are not the golden files that were published; nothing was run."]))
    load = lambda name: [v for v, in struct.iter_unpack("<" + ITEMS[listed[name]["dtype"]], data[name])]
    ran, failed, left = 0, 0, {}
    for test in manifest["tests"]:
        if test["operation"] not in RUN:
            left[test["operation"]] = True
            continue
        inputs = {name: load(path) for name, path in test["inputs"].items()}
        got = run(test["operation"], test["format"], test["k"], test.get("b"), inputs)
        want, = test["expected"].values()
        good = list(map(bits, got)) == list(map(bits, load(want) if isinstance(want, str) else want))
        ran, failed = ran + 1, failed + (not good)
        print("%s  %s: %s" % ("ok    " if good else "FAILED", test["id"], test["proves"]))
    print("%d of %d tests: %d failed. Not run here: %s." % (ran, len(manifest["tests"]), failed, ", ".join(left)))
    sys.exit(1 if failed or not ran else 0)

if __name__ == "__main__":
    main()
