"""Writes importance matrices as llama.cpp does: the GGUF form and the older form. Every field can be set, also to values
that are wrong.

An entry is Entry(name, k, sums, counts): sums are `k` numbers for each matrix (expert), one matrix after another; counts
has one number for each, in the older form one for all.
"""

import struct
from dataclasses import dataclass

import gguf_files as gguf
from gguf_files import Key


@dataclass
class Entry:
    name: str
    k: int
    sums: list
    counts: list

    @property
    def matrices(self):
        return len(self.sums) // self.k

    def importance(self, matrix=0):
        """What the columns of a matrix weigh, as doubles: sum / count, 0 where nothing was counted. The file holds fp32."""
        count = float(self.counts[matrix if len(self.counts) > 1 else 0])
        sums = fp32(self.sums[matrix * self.k:(matrix + 1) * self.k])
        return [s / count if count else 0.0 for s in sums]

    def for_weights(self, elements):
        """One importance for each weight of a tensor, rows in order."""
        rows = elements // self.k // self.matrices
        return [g for m in range(self.matrices) for g in self.importance(m) * rows]


def fp32(values):
    return list(struct.unpack("<%df" % len(values), floats(values)))


def floats(values):
    return struct.pack("<%df" % len(values), *values)


def gguf_form(entries, general_type="imatrix", squares=True):
    """squares=False leaves the in_sum tensors out, which newer programs write too."""
    tensors = []
    for entry in entries:
        dims = (entry.k, entry.matrices)
        if squares:
            tensors.append(gguf.Tensor(entry.name + ".in_sum", dims, gguf.F32, floats([1.5] * len(entry.sums))))
        tensors.append(gguf.Tensor(entry.name + ".in_sum2", dims, gguf.F32, floats(entry.sums)))
        tensors.append(gguf.Tensor(entry.name + ".counts", (1, len(entry.counts)), gguf.F32, floats(entry.counts)))
    keys = [Key("general.type", gguf.STRING, general_type), Key("imatrix.chunk_count", gguf.U32, 7),
            Key("imatrix.chunk_size", gguf.U32, 512), Key("imatrix.datasets", gguf.ARRAY, (gguf.STRING, ["wiki.txt"]))]
    return gguf.build(tensors, keys)


def older_form(entries, chunks=7, data_set="wiki.txt"):
    """chunks=None and data_set=None leave these off, as older programs did."""
    out = [struct.pack("<i", len(entries))]
    for entry in entries:
        name = gguf.to_bytes(entry.name)
        (calls,) = entry.counts
        out.append(struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(entry.sums)) + floats(entry.sums))
    if chunks is not None:
        out.append(struct.pack("<i", chunks))
    if data_set is not None:
        out.append(struct.pack("<i", len(data_set)) + data_set.encode())
    return b"".join(out)
