#!/usr/bin/env python3
"""Reads the packed tensors of a safetensors file that pnpack wrote, with nothing but Python: the layouts of its three
types of blocks, and how such a file names them.

usage: read_safetensors.py FILE [TENSOR]     (TENSOR: print its first row, too)

In the file a packed tensor is U8, with rows of bytes as its last dimension. The metadata tell what they are:
  p12.tensors   JSON array of the names that are BF16_P12; each was BF16, with bytes / 392 * 256 weights a row
  pn.tensors    JSON object: name -> [type ("pn3t", "pn4t"), shape, dtype before]
"""
import json
import struct
import sys

PN = {"pn3t": (3, 10), "pn4t": (4, 8)}  # bits of a code, codes of each of the eight words


def unpack_p12(block):
    """256 BF16 bit patterns of a block of 392 bytes (p12/FORMAT.md)."""
    base, listed = block[0], block[1]
    words = struct.unpack("<32I", block[8:136])
    weights = []
    for place, byte in enumerate(block[136:392]):
        t = place % 8
        code = words[place // 8] >> 4 * (t >> 1) + 16 * (t & 1) & 15
        weights.append((byte & 0x80) << 8 | (base + code & 0xFF) << 7 | byte & 0x7F)
    for place, exponent in zip(block[2:2 + listed], block[5:5 + listed]):
        weights[place] = weights[place] & 0x807F | exponent << 7
    return weights


def decode_pn(block, form):
    """The weights of a block of 34 bytes (pn/FORMAT.md)."""
    bits, per_word = PN[form]
    d, *words = struct.unpack("<e8I", block)
    shifts = [bits * (t >> 1) + 16 * (t & 1) for t in range(per_word)]
    return [d * ((word >> shift & 2**bits - 1) - 2**(bits - 1)) for word in words for shift in shifts]


def bf16_to_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class Tensor:
    """name, kind ("BF16_P12", "pn3t", "pn4t"), shape of the weights, rows() of floats."""

    def __init__(self, name, kind, shape, data):
        self.name, self.kind, self.shape, self.data = name, kind, shape, data

    def rows(self):
        weights, size = (256, 392) if self.kind == "BF16_P12" else ({"pn3t": 80, "pn4t": 64}[self.kind], 34)
        row = self.shape[-1] // weights * size
        for start in range(0, len(self.data), row):
            values = []
            for at in range(start, start + row, size):
                block = self.data[at:at + size]
                if self.kind == "BF16_P12":
                    values += map(bf16_to_float, unpack_p12(block))
                else:
                    values += decode_pn(block, self.kind)
            yield values


def read(path):
    """The packed tensors of a file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    p12 = set(json.loads(metadata.get("p12.tensors", "[]")))
    pn = json.loads(metadata.get("pn.tensors", "{}"))
    for name, entry in header.items():
        if name not in p12 and name not in pn:
            continue
        begin, end = entry["data_offsets"]
        *outer, bytes_of_row = entry["shape"]
        if name in p12:
            kind, shape = "BF16_P12", [*outer, bytes_of_row // 392 * 256]
        else:
            kind, shape, _ = pn[name]
        yield Tensor(name, kind, shape, data[begin:end])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    for tensor in read(sys.argv[1]):
        first = next(tensor.rows())
        print("%-40s %-8s %-14s first row: mean %+.2e, largest %.3f" % (
            tensor.name, tensor.kind, " x ".join(map(str, tensor.shape)), sum(first) / len(first), max(map(abs, first))))
        if sys.argv[2:] == [tensor.name]:
            print(*first)


if __name__ == "__main__":
    main()
