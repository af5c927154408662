"""A small GGUF writer and reader for tests: every field of a header can be set, also to values that are wrong.

build() lays a file out like the usual writers do: header, padding, each tensor at the next multiple of the alignment,
zero bytes between. A test that wants something else sets Tensor.offset, passes its own data section, or overrides a
count. parse() reads a valid file back into plain values and knows nothing of how it was written.
"""

import struct
from dataclasses import dataclass, field
from typing import Optional

U8, I8, U16, I16, U32, I32, F32_VALUE, BOOL, STRING, ARRAY, U64, I64, F64_VALUE = range(13)
VALUE_FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32_VALUE: "<f", BOOL: "<B",
                 U64: "<Q", I64: "<q", F64_VALUE: "<d"}

F32, F16, Q4_0, Q8_0, BF16 = 0, 1, 2, 8, 30
I8_TENSOR, I32_TENSOR, F64 = 24, 26, 28
PN3T, PN4T, P12 = 124, 125, 126

# type id -> (weights per block, bytes per block)
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), BF16: (1, 2), I8_TENSOR: (1, 1),
          I32_TENSOR: (1, 4), F64: (1, 8), PN3T: (80, 34), PN4T: (64, 34), P12: (256, 392)}


def to_bytes(text):
    return text if isinstance(text, bytes) else text.encode("utf-8")


def string(text):
    data = to_bytes(text)
    return struct.pack("<Q", len(data)) + data


def encode_value(value_type, value):
    """Bytes of a value, without its type. An array is a pair (element type, list)."""
    if value_type == STRING:
        return string(value)
    if value_type == ARRAY:
        element_type, items = value
        head = struct.pack("<IQ", element_type, len(items))
        return head + b"".join(encode_value(element_type, item) for item in items)
    return struct.pack(VALUE_FORMATS[value_type], value)


@dataclass
class Key:
    name: object
    value_type: int
    value: object = None
    raw: Optional[bytes] = None  # bytes after the type field, in place of the encoded value

    def encode(self):
        body = self.raw if self.raw is not None else encode_value(self.value_type, self.value)
        return string(self.name) + struct.pack("<I", self.value_type) + body


@dataclass
class Tensor:
    """dims as in the file: dims[0] is K, the contiguous dimension."""
    name: object
    dims: tuple
    type: int
    data: bytes = b""
    offset: Optional[int] = None  # None: the next multiple of the alignment
    n_dims: Optional[int] = None  # None: len(dims)

    @property
    def rows(self):
        rows = 1
        for dim in self.dims[1:]:
            rows *= dim
        return rows

    @property
    def elements(self):
        return self.rows * (self.dims[0] if self.dims else 1)

    @property
    def shape(self):
        return list(reversed(self.dims))


def padding(size, alignment):
    return -size % alignment


def alignment_of(keys):
    for key in keys:
        if to_bytes(key.name) == b"general.alignment" and key.value_type == U32 and key.raw is None:
            return key.value
    return 32


def header(tensors, offsets, keys=(), version=3, magic=b"GGUF", tensor_count=None, key_count=None):
    out = [magic, struct.pack("<I", version),
           struct.pack("<QQ", len(tensors) if tensor_count is None else tensor_count,
                       len(keys) if key_count is None else key_count)]
    out += [key.encode() for key in keys]
    for tensor, offset in zip(tensors, offsets):
        n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
        out.append(string(tensor.name) + struct.pack("<I", n_dims))
        out.append(struct.pack("<%dQ" % len(tensor.dims), *tensor.dims))
        out.append(struct.pack("<IQ", tensor.type, offset))
    return b"".join(out)


def build(tensors, keys=(), version=3, final_padding=True, alignment=None, fill=b"\0", data=None, **overrides):
    """The whole file. fill is the padding byte; data replaces the data section; overrides go to header()."""
    if alignment is None:
        alignment = alignment_of(keys)
    offsets, section = [], bytearray()
    for tensor in tensors:
        if tensor.offset is None:
            section += fill * padding(len(section), alignment)
            offsets.append(len(section))
            section += tensor.data
        else:
            offsets.append(tensor.offset)
            end = tensor.offset + len(tensor.data)
            if tensor.data:
                if len(section) < end:
                    section += fill * (end - len(section))
                section[tensor.offset:end] = tensor.data
    if final_padding:
        section += fill * padding(len(section), alignment)
    if data is not None:
        section = data
    head = header(tensors, offsets, keys, version, **overrides)
    if section:
        head += fill * padding(len(head), alignment)
    return head + bytes(section)


@dataclass
class File:
    version: int
    keys: list  # of (name bytes, type, bytes of the value)
    tensors: list  # of Tensor, data filled in when the size of the type is known
    alignment: int
    data_start: int
    size: int
    offsets: list = field(default_factory=list)  # absolute

    def key(self, name):
        found = [(value_type, raw) for key, value_type, raw in self.keys if key == to_bytes(name)]
        return found[0] if found else None

    def names(self):
        return [key.decode("utf-8", "replace") for key, _, _ in self.keys]

    def tensor(self, name):
        return next(tensor for tensor in self.tensors if tensor.name == to_bytes(name))

    def start(self, name):
        return self.offsets[[tensor.name for tensor in self.tensors].index(to_bytes(name))]


def tensor_bytes(tensor):
    """Bytes of a tensor's data, None when its type is not in BLOCKS."""
    if tensor.type not in BLOCKS:
        return None
    weights, size = BLOCKS[tensor.type]
    return tensor.elements // weights * size


def parse(blob):
    at = 0

    def take(fmt):
        nonlocal at
        (value,) = struct.unpack_from("<" + fmt, blob, at)
        at += struct.calcsize("<" + fmt)
        return value

    def take_string():
        nonlocal at
        size = take("Q")
        if at + size > len(blob):
            raise ValueError("string runs past the end")
        at += size
        return blob[at - size:at]

    def skip_value(value_type):
        nonlocal at
        if value_type == STRING:
            take_string()
        elif value_type == ARRAY:
            element_type, count = take("I"), take("Q")
            for _ in range(count):
                skip_value(element_type)
        else:
            at += struct.calcsize(VALUE_FORMATS[value_type])

    if blob[:4] != b"GGUF":
        raise ValueError("not GGUF")
    at = 4
    version, tensor_count, key_count = take("I"), take("Q"), take("Q")
    keys, alignment = [], 32
    for _ in range(key_count):
        name, value_type = take_string(), take("I")
        start = at
        skip_value(value_type)
        keys.append((name, value_type, blob[start:at]))
        if name == b"general.alignment":
            (alignment,) = struct.unpack("<I", blob[start:at])
    tensors = []
    for _ in range(tensor_count):
        name = take_string()
        dims = tuple(take("Q") for _ in range(take("I")))
        tensors.append(Tensor(name, dims, take("I"), offset=take("Q")))
    data_start = at + padding(at, alignment)
    parsed = File(version, keys, tensors, alignment, data_start, len(blob))
    for tensor in tensors:
        start = data_start + tensor.offset
        parsed.offsets.append(start)
        size = tensor_bytes(tensor)
        if size is not None:
            tensor.data = blob[start:start + size]
            if len(tensor.data) != size:
                raise ValueError("tensor runs past the end")
    return parsed
