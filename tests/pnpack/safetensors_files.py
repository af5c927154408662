"""A small safetensors writer and reader for tests, with the index of a model in several files and split GGUF sets:
every field can be set, also to values that are wrong.

build() writes what the usual writers write: a compact header, padded with spaces to a multiple of 8, data without
gaps. A test that wants something else sets Tensor.offsets or Tensor.raw, or passes its own header, length or data.
parse() reads a file back, accepts valid files only, and knows nothing of how they were written.
"""

import json
import math
import struct
from dataclasses import dataclass
from typing import Optional

import gguf_files as gguf

# bits per element
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32,
        "C64": 64, "I64": 64, "U64": 64, "F64": 64}
METADATA = "__metadata__"


@dataclass
class Tensor:
    """shape as in the file, outermost first: shape[-1] is K."""
    name: str
    dtype: str
    shape: tuple
    data: bytes = b""
    offsets: Optional[tuple] = None  # as written; None: right after the tensor before it in the data
    rank: Optional[float] = None  # place among the data; None: the place in the header
    raw: Optional[str] = None  # JSON text in place of the entry

    @property
    def elements(self):
        return math.prod(self.shape)

    @property
    def k(self):
        return self.shape[-1]


# ---------------------------------------------------------------- writing


def compact(value, ascii_only=False):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)


def data_order(tensors):
    """Indices of the tensors in the order of their data."""
    return sorted(range(len(tensors)), key=lambda i: i if tensors[i].rank is None else tensors[i].rank)


def pairs_of(metadata):
    return list(metadata.items()) if isinstance(metadata, dict) else list(metadata)


def joined(members, separators):
    """A JSON object of (key, text of the value)."""
    return "{" + separators[0].join(compact(key) + separators[1] + text for key, text in members) + "}"


def header_text(tensors, offsets, metadata=None, metadata_at=0, separators=(",", ":")):
    """metadata: a dict or pairs, None for none, or a str that is its JSON text; metadata_at: its place in the header."""
    members = []
    for tensor, (begin, end) in zip(tensors, offsets):
        text = tensor.raw
        if text is None:
            text = joined([("dtype", compact(tensor.dtype)), ("shape", compact(list(tensor.shape))),
                           ("data_offsets", compact([begin, end]))], separators)
        members.append((tensor.name, text))
    if metadata is not None:
        text = metadata
        if not isinstance(metadata, str):
            text = joined([(key, compact(value)) for key, value in pairs_of(metadata)], separators)
        members.insert(metadata_at, (METADATA, text))
    return joined(members, separators)


def layout(tensors):
    """(offsets in header order, data)."""
    offsets, data = [None] * len(tensors), bytearray()
    for i in data_order(tensors):
        offsets[i] = (len(data), len(data) + len(tensors[i].data))
        data += tensors[i].data
    return [tensor.offsets or usual for tensor, usual in zip(tensors, offsets)], bytes(data)


def build(tensors, metadata=None, pad=8, header=None, length=None, data=None, **style):
    """The whole file. pad: the header's length becomes a multiple of it; header: the text in place of the usual one, not
    padded; length: what the first 8 bytes say; data replaces the data; style goes to header_text()."""
    offsets, section = layout(tensors)
    if header is None:
        header = header_text(tensors, offsets, metadata, **style).encode("utf-8")
        header += b" " * (-len(header) % pad)
    elif isinstance(header, str):
        header = header.encode("utf-8")
    return struct.pack("<Q", len(header) if length is None else length) + header + (section if data is None else data)


# ---------------------------------------------------------------- reading


class Object(list):
    """A JSON object as pairs, keys unique."""

    def __init__(self, pairs):
        super().__init__(pairs)
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key twice in %s" % [key for key, _ in pairs])

    def get(self, name):
        found = [value for key, value in self if key == name]
        if not found:
            raise ValueError("no " + name)
        return found[0]


def no_constants(text):
    raise ValueError("not JSON: " + text)


def decode_json(text):
    """(value with objects as Object, what follows it)."""
    value, end = json.JSONDecoder(object_pairs_hook=Object, parse_constant=no_constants).raw_decode(text)
    return value, text[end:]


def is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


@dataclass
class File:
    header: bytes  # the text, trailing spaces included
    names: list  # of the header's entries in order, METADATA among them
    metadata: Optional[list]  # pairs
    tensors: list  # of Tensor with data and offsets, in header order
    data_start: int

    def tensor(self, name):
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def value(self, key):
        return dict(self.metadata or [])[key]

    def start(self, name):
        return self.data_start + self.tensor(name).offsets[0]

    def data_order(self):
        """Names in the order of the data."""
        return [tensor.name for tensor in sorted(self.tensors, key=lambda tensor: tensor.offsets)]


def parse(blob):
    if len(blob) < 8:
        raise ValueError("no header")
    (length,) = struct.unpack_from("<Q", blob)
    if length > len(blob) - 8:
        raise ValueError("the header runs past the end")
    header = blob[8:8 + length]
    text = header.decode("utf-8")
    if text[:1] != "{":
        raise ValueError("the header is no object")
    try:
        top, rest = decode_json(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if rest.strip(" "):
        raise ValueError("more than an object in the header")
    parsed = File(header, [], None, [], 8 + length)
    for name, value in top:
        parsed.names.append(name)
        if name == METADATA and value is None:
            continue  # as the reference library takes it
        if not isinstance(value, Object):
            raise ValueError("%r is no object" % name)
        if name == METADATA:
            if not all(isinstance(text, str) for _, text in value):
                raise ValueError("metadata that is no string")
            parsed.metadata = list(value)
            continue
        dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if not isinstance(dtype, str):
            raise ValueError("a dtype that is no string")
        name.encode("utf-8")  # a lone surrogate is a ValueError
        for numbers in (shape, offsets):
            if isinstance(numbers, Object) or not isinstance(numbers, list) or not all(map(is_size, numbers)):
                raise ValueError("no list of sizes: %r" % (numbers,))
        begin, end = offsets
        if not begin <= end <= len(blob) - parsed.data_start:
            raise ValueError("%r has no place" % name)
        data = blob[parsed.data_start + begin:parsed.data_start + end]
        if dtype in BITS and math.prod(shape) * BITS[dtype] != 8 * len(data):
            raise ValueError("%r: the shape does not give %d bytes" % (name, len(data)))
        parsed.tensors.append(Tensor(name, dtype, tuple(shape), data, (begin, end)))
    at = 0
    for begin, end in sorted(tensor.offsets for tensor in parsed.tensors):
        if begin != at:
            raise ValueError("a hole or an overlap at %d" % at)
        at = end
    if parsed.data_start + at != len(blob):
        raise ValueError("data that belongs to no tensor")
    return parsed


# ---------------------------------------------------------------- models in several files: {file name: bytes}


def shard_name(stem, number, count, suffix):
    """number from 1."""
    return "%s-%05d-of-%05d.%s" % (stem, number, count, suffix)


def index(weight_map, total_size=None, indent=2, **others):
    """The text of an index. total_size: a number or its text, None for none; others: more members at the top."""
    metadata = {} if total_size is None else {"total_size": "@total_size@"}
    text = json.dumps({"metadata": metadata, "weight_map": weight_map, **others}, indent=indent) + "\n"
    return text.replace('"@total_size@"', str(total_size))


def data_bytes(shards):
    return sum(len(tensor.data) for tensors in shards for tensor in tensors)


def sharded(shards, total_size=True, metadata=None, stem="model", **style):
    """A sharded safetensors model. shards: a list of tensors for each file; total_size: True for the true one; metadata:
    for all files, or a list of one for each; style goes to build()."""
    names = [shard_name(stem, i + 1, len(shards), "safetensors") for i in range(len(shards))]
    each = metadata if isinstance(metadata, list) else [metadata] * len(shards)
    files = {name: build(tensors, own, **style) for name, tensors, own in zip(names, shards, each)}
    weight_map = {tensor.name: name for name, tensors in zip(names, shards) for tensor in tensors}
    if total_size is True:
        total_size = data_bytes(shards)
    files[stem + ".safetensors.index.json"] = index(weight_map, total_size).encode("utf-8")
    return files


def split_keys(number, count, tensors, key_types=(gguf.U16, gguf.U16, gguf.I32)):
    """number from 0, as in the file."""
    return [gguf.Key("split.no", key_types[0], number), gguf.Key("split.count", key_types[1], count),
            gguf.Key("split.tensors.count", key_types[2], tensors)]


def split_gguf(shards, keys=(), stem="model", wrap=None, **layout_):
    """A split GGUF set. shards: a list of tensors for each file; keys: those of the first file, before its split.* keys;
    wrap(tensors, keys, number from 0) builds a file in place of gguf.build."""
    total, files = sum(map(len, shards)), {}
    for i, tensors in enumerate(shards):
        own = (list(keys) if i == 0 else []) + split_keys(i, len(shards), total)
        blob = wrap(tensors, own, i) if wrap else gguf.build(tensors, own, **layout_)
        files[shard_name(stem, i + 1, len(shards), "gguf")] = blob
    return files


def write_model(folder, files):
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def read_model(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
