"""Writes a folder of hostile inputs and a manifest: every file is made to break a reader, and the manifest says what
a good tool answers.

    python3 make.py FOLDER

Each case has a folder of its own below FOLDER, named like its id. FOLDER/manifest.json lists the cases: `id`, `what`
it is, the `command` to run in that folder (OUT stands for a name that does not exist), the `exit` statuses that are
right, and `words` that the message must have, each a list of alternatives. Cases whose id begins with `fine-` are
files of the same make without the fault, which must be accepted. The files are the same on every machine. Nothing but
Python is needed.
"""

import json
import os
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pnpack"))
import gguf_files as gguf  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import ARRAY, BF16, F16, F32, I32, PN4T, STRING, U16, U32, U64, U8, Key  # noqa: E402

DONE, USAGE, BAD_INPUT = 0, 2, 3
LINK, FIFO, FOLDER = "link to ", "fifo", "folder"  # in place of a file's bytes
P12 = 126
P12_KEYS = [Key("p12.version", U32, 1), Key("p12.type_id", U32, P12)]
PN_KEYS = [Key("pn.version", U32, 0), Key("pn.search", STRING, "reference")]

CASES = []


def case(name, what, files, command, words=(), exits=BAD_INPUT):
    """files: {name: bytes, or one of LINK + target, FIFO, FOLDER}; words: a str, or a tuple of alternatives."""
    if any(name == other["id"] for other in CASES):
        raise ValueError("two cases " + name)
    words = [list(word) if isinstance(word, tuple) else [word] for word in words]
    CASES.append({"id": name, "what": what, "files": files, "command": command.split(),
                  "exit": list(exits) if isinstance(exits, tuple) else [exits], "words": words})


# ---------------------------------------------------------------- numbers that are harmless


def weights(count, seed=1):
    """fp32 values between 0.5 and 1 or -1 and -0.5: whatever is done with them works."""
    rng = random.Random(seed)
    return [(rng.getrandbits(20) / 2**21 + 0.5) * (1 if rng.getrandbits(1) else -1) for _ in range(count)]


def f32_data(count, seed=1):
    return struct.pack("<%df" % count, *weights(count, seed))


def bf16_data(count, seed=1):
    return b"".join(struct.pack("<f", w)[2:] for w in weights(count, seed))


# base 126, nothing listed: 256 weights of 0.5 * (1 + mantissa / 128)
P12_BLOCK = bytes([126]) + bytes(7) + bytes(128) + bytes(i & 0x7F for i in range(256))
PN_BLOCK = struct.pack("<H8I", 0x3C00, *([0x88888888] * 8))


# ---------------------------------------------------------------- safetensors

FINE = st.Tensor("fine.weight", "BF16", (1, 256), bf16_data(256))
NORM = st.Tensor("norm.weight", "F32", (3,), f32_data(3))
DEEP = 50000


def evil(shape=(4,), offsets=None, dtype="F32", data=b"", **fields):
    return st.Tensor("evil.weight", dtype, tuple(shape), data, offsets, **fields)


def entry(text, size=16):
    return st.build([FINE, evil(raw=text)], data=FINE.data + b"d" * size)


def member(size=16, **changes):
    texts = {"dtype": '"F32"', "shape": "[4]", "data_offsets": "[512,528]"}
    texts.update(changes)
    return entry(st.joined([(key, text) for key, text in texts.items() if text is not None], (",", ":")), size)


def safetensors():
    usual = st.parse(st.build([FINE])).header.rstrip()

    def one(name, what, blob, words=(), command="inspect evil.safetensors"):
        case("st-" + name, what, {"evil.safetensors": blob}, command, ("evil.safetensors",) + tuple(words))

    case("fine-st", "a usual file", {"fine.safetensors": st.build([FINE, NORM], {"format": "pt"})},
         "pack fine.safetensors OUT", (), DONE)
    case("fine-st-shapes", "shapes [0], [2,0] and []", {"fine.safetensors": st.build(
        [st.Tensor("a", "F32", (0,)), st.Tensor("b", "F32", (2, 0)), st.Tensor("c", "F32", (), b"1234")])},
        "pack fine.safetensors OUT", (), DONE)
    case("fine-st-dtype", "a dtype that nobody knows",
         {"fine.safetensors": st.build([FINE, st.Tensor("x", "Q7", (9,), b"123")])},
         "pack fine.safetensors OUT", (), DONE)
    case("fine-st-entry", "the entry that others break", {"fine.safetensors": member()}, "unpack fine.safetensors OUT",
         (), DONE)
    pack = "pack evil.safetensors OUT"
    one("length-8xff", "a header length of 2^64 - 1", st.build([FINE], length=2**64 - 1), (), pack)
    one("length-0", "a header length of 0", st.build([FINE], length=0), (), pack)
    one("length-past", "a header that ends a byte past the file", st.build([FINE], length=len(st.build([FINE])) - 7),
        (),
        pack)
    one("7-bytes", "a file of 7 bytes", b"\2" + bytes(6), (), pack)
    one("empty", "an empty file", b"", (), pack)
    one("array", "a header that is an array", st.build([], header="[]"), (), "check evil.safetensors")
    one("unclosed", "a header without its last brace", st.build([], header=usual[:-1], data=FINE.data))
    one("behind", "text behind the header's object", st.build([], header=usual + b"{}", data=FINE.data), (),
        "unpack evil.safetensors OUT")
    one("nul-padding", "a header padded with zero bytes", st.build([], header=usual + bytes(8), data=FINE.data), (),
        pack)
    one("utf8", "a name that is not UTF-8", st.build([], header=usual.replace(b"fine", b"fi\xff\xfe"), data=FINE.data),
        (), pack)
    one("surrogate", "half a surrogate pair in a name",
        st.build([], header=usual.replace(b"fine", b"fi\\ud83d"), data=FINE.data))
    one("deep-lists", "nested lists", st.build([], header="[" * DEEP + "]" * DEEP), (), pack)
    one("deep-objects", "nested objects", st.build([], header='{"a":' * DEEP + "1" + "}" * DEEP), (),
        "check evil.safetensors")
    one("deep-metadata", "nested lists in __metadata__",
        st.build([FINE], '{"evil.key":%s}' % ("[" * DEEP + "]" * DEEP)),
        (), pack)
    one("twice", "a name twice", st.build([FINE, evil(data=b"a" * 16), evil(data=b"b" * 16)]), ("evil.weight",), pack)
    one("twice-escaped", "a name twice, once with an escape", st.build(
        [FINE, NORM], header=st.parse(st.build([FINE, NORM])).header.decode().replace("norm", "\\u0066ine")),
        ("fine.weight",), pack)
    one("member-twice", "a shape twice", entry('{"dtype":"F32","shape":[1],"shape":[4],"data_offsets":[512,528]}'),
        ("evil.weight",))
    one("no-dtype", "no dtype", member(dtype=None), ("evil.weight",))
    one("no-shape", "no shape", member(shape=None), ("evil.weight",), pack)
    one("no-offsets", "no data_offsets", member(data_offsets=None), ("evil.weight",), "unpack evil.safetensors OUT")
    one("negative", "a negative dimension", member(shape="[-4]"), ("evil.weight",), pack)
    one("float", "a dimension of 4.0", member(shape="[4.0]"), ("evil.weight",))
    one("exponent", "a dimension of 4e0", member(shape="[4e0]"), ("evil.weight",))
    one("huge", "a dimension of 2^64 + 4", member(shape="[%d]" % (2**64 + 4)), ("evil.weight",), pack)
    one("digits", "a dimension of 5000 digits", member(shape="[%s]" % ("7" * 5000)), (), pack)
    one("dimension-text", "a dimension that is a string", member(shape='["4"]'), ("evil.weight",))
    one("metadata-number", "__metadata__ with a number", st.build([FINE], '{"evil.key":1}'), ("evil.key",), pack)
    one("metadata-null", "__metadata__ with null", st.build([FINE], '{"evil.key":null}'), ("evil.key",))
    one("metadata-list", "__metadata__ that is a list", st.build([FINE], '["x"]'), (), pack)
    overlap = (("evil.weight", "fine.weight"),)
    one("overlap", "two tensors that share a byte",
        st.build([FINE, evil((5,), (511, 516), "U8")], data=FINE.data + b"dddd"), overlap, pack)
    one("overlap-same", "two tensors with the same bytes",
        st.build([FINE, evil((512,), (0, 512), "U8")], data=FINE.data), overlap)
    one("hole", "a byte that belongs to no tensor",
        st.build([FINE, evil((3,), (513, 516), "U8")], data=FINE.data + b"dddd"), (), pack)
    one("trailing", "a byte behind the last tensor", st.build([FINE]) + b"x", (), pack)
    one("cut", "the last byte is missing", st.build([FINE])[:-1], ("fine.weight",), pack)
    one("begin-end", "data that ends before it begins", member(data_offsets="[528,512]"), ("evil.weight",), pack)
    one("past", "data past the end of the file", member(size=15), ("evil.weight",))
    one("far-past", "4 TiB of data in a small file",
        member(shape="[%d]" % 2**40, data_offsets="[512,%d]" % (512 + 2**42)), ("evil.weight",), pack)
    one("disagree", "3 elements in 16 bytes", member(shape="[3]"), ("evil.weight",), pack)
    one("scalar", "a scalar of 16 bytes", member(shape="[]"), ("evil.weight",))
    one("product-wraps", "a shape whose product wraps to 4", member(shape="[%d,4]" % (2**62 + 1)), ("evil.weight",),
        pack)
    one("product-zero", "a shape whose product wraps to 0",
        member(size=0, shape="[4294967296,4294967296]", data_offsets="[512,512]"),
        ("evil.weight",), pack)
    one("bytes-wrap", "a shape whose bytes wrap to 16", member(shape="[%d]" % (2**62 + 4)), ("evil.weight",), pack)


# ---------------------------------------------------------------- safetensors files whose own entries lie

HEADER = st.parse(st.build([FINE, NORM])).header.decode()
PACKED = st.Tensor("fine.weight", "U8", (1, 392), P12_BLOCK)
QUANTIZED = st.Tensor("fine.weight", "U8", (1, 136), PN_BLOCK * 4)


def packed(tensor=PACKED, version="1", tensors='["fine.weight"]', header=HEADER):
    texts = {"p12.version": version, "p12.tensors": tensors, "p12.header": header}
    return st.build([tensor, NORM], {key: text for key, text in texts.items() if text is not None})


def quantized(tensor=QUANTIZED, version="0", tensors='{"fine.weight":["pn4t",[1,256],"BF16"]}', header=HEADER, **more):
    texts = {"pn.version": version, "pn.tensors": tensors, "pn.search": "reference", "p12.header": header}
    texts.update({"pn." + key.replace("__", "."): text for key, text in more.items()})
    return st.build([tensor, NORM], {key: text for key, text in texts.items() if text is not None})


def lies():
    def one(name, what, blob, words, command="unpack evil.safetensors OUT"):
        case("lie-" + name, what, {"evil.safetensors": blob}, command, ("evil.safetensors",) + tuple(words))

    check = "check evil.safetensors"
    case("fine-packed", "a packed file", {"fine.safetensors": packed()}, "unpack fine.safetensors OUT", (), DONE)
    case("fine-quantized", "a quantized file", {"fine.safetensors": quantized()},
         "unpack fine.safetensors OUT --to bf16", (), DONE)
    case("fine-rotated", "a rotated file",
         {"fine.safetensors": quantized(hadamard__block_size="64", hadamard__exclude="[]")},
         "unpack fine.safetensors OUT", (), DONE)
    one("p12-version", "p12.version 2", packed(version="2"), ("p12.version",))
    one("p12-again", "a packed file is packed again", packed(), ("p12.",), "pack evil.safetensors OUT")
    one("list-none", "no p12.tensors", packed(tensors=None), ("p12.tensors",), check)
    one("list-text", "p12.tensors is no JSON", packed(tensors="fine.weight"), ("p12.tensors",))
    one("list-object", "p12.tensors is an object", packed(tensors='{"fine.weight":1}'), ("p12.tensors",), check)
    one("list-gone", "p12.tensors names a tensor that is not there", packed(tensors='["fine.weight","gone"]'),
        (("gone", "p12.tensors"),))
    one("list-twice", "p12.tensors names a tensor twice", packed(tensors='["fine.weight","fine.weight"]'),
        (("fine.weight", "p12.tensors"),))
    one("list-other", "p12.tensors names an F32 tensor", packed(tensors='["fine.weight","norm.weight"]'),
        (("norm.weight", "p12.tensors"),), check)
    one("list-deep", "p12.tensors is nested", packed(tensors="[" * DEEP + "]" * DEEP), ("p12.tensors",), check)
    one("row-391", "a packed row of 391 bytes", packed(st.Tensor("fine.weight", "U8", (1, 391), P12_BLOCK[1:])),
        ("fine.weight",), check)
    one("one-dimension", "a packed tensor of one dimension", packed(st.Tensor("fine.weight", "U8", (392,), P12_BLOCK)),
        ("fine.weight",), check)
    one("dtype-i8", "a packed tensor of dtype I8", packed(st.Tensor("fine.weight", "I8", (1, 392), P12_BLOCK)),
        ("fine.weight",), check)
    both = (("p12.header", "fine.weight", "norm.weight"),)
    one("header-text", "p12.header is no JSON", packed(header="hello"), ("p12.header",))
    one("header-deep", "p12.header is nested", packed(header='{"a":' * DEEP), ("p12.header",))
    one("header-empty", "p12.header without tensors", packed(header="{}"), both)
    one("header-shape", "p12.header with twice the rows", packed(header=HEADER.replace("[1,256]", "[2,256]")), both)
    one("header-huge", "p12.header of 2^62 bytes", packed(header=HEADER.replace("[1,256]", "[%d,256]" % 2**53).replace(
        "[0,512]", "[0,%d]" % 2**62).replace("[512,524]", "[%d,%d]" % (2**62, 2**62 + 12))), both)
    one("header-hole", "p12.header with a hole", packed(header=HEADER.replace("[512,524]", "[516,528]")), both)
    one("header-swap", "p12.header with the data in another order",
        packed(header=HEADER.replace("[0,512]", "[12,524]").replace(
        "[512,524]", "[0,12]")), both)
    one("header-path", "p12.header of another model", packed(header=HEADER.replace("fine", "file")),
        (("p12.header", "file.weight", "fine.weight"),))
    one("pn-version", "pn.version 1", quantized(version="1"), ("pn.version",), check)
    listed = (("pn.tensors", "fine.weight", "gone"),)
    for name, what, text in (("pn-text", "no JSON", "x"), ("pn-list", "a list", '["fine.weight"]'),
                             ("pn-gone", "a tensor that is not there",
                             '{"fine.weight":["pn4t",[1,256],"BF16"],"gone":["pn4t",[1,64],"F32"]}'),
                             ("pn-type", "a type that is none", '{"fine.weight":["pn5t",[1,256],"BF16"]}'),
                             ("pn-rows", "another number of rows", '{"fine.weight":["pn4t",[2,256],"BF16"]}'),
                             ("pn-k", "K that is no multiple of 64", '{"fine.weight":["pn4t",[1,255],"BF16"]}'),
                             ("pn-3t", "pn3t in rows of 136 bytes and K = 256",
                              '{"fine.weight":["pn3t",[1,256],"BF16"]}'),
                             ("pn-negative", "a negative row length", '{"fine.weight":["pn4t",[1,-256],"BF16"]}'),
                             ("pn-huge", "2^63 rows", '{"fine.weight":["pn4t",[%d,256],"BF16"]}' % 2**63),
                             ("pn-short", "no dtype", '{"fine.weight":["pn4t",[1,256]]}'),
                             ("pn-flat", "a number", '{"fine.weight":4}'),
                             ("pn-deep", "nested lists", '{"fine.weight":%s}' % ("[" * DEEP + "]" * DEEP))):
        one(name, "pn.tensors: " + what, quantized(tensors=text), listed,
            check if len(name) % 2 else "unpack evil.safetensors OUT")
    for name, what, size in (("rotation-63", "of 63", "63"), ("rotation-2048", "of 2048", "2048"),
                             ("rotation-negative", "of -64", "-64"),
                             ("rotation-text", "that is no number", "many"),
                             ("rotation-512", "of 512 where K is 256", "512")):
        one(name, "rotated in segments " + what, quantized(hadamard__block_size=size, hadamard__exclude="[]"),
            (("pn.hadamard.block_size", "fine.weight"),))
    for name, what, text in (("exclude-text", "no JSON", "x"), ("exclude-object", "an object", "{}"),
                             ("exclude-numbers", "numbers", "[1]"),
                             ("exclude-deep", "nested", "[" * DEEP)):
        one(name, "pn.hadamard.exclude: " + what, quantized(hadamard__block_size="64", hadamard__exclude=text),
            ("pn.hadamard.exclude",))


# ---------------------------------------------------------------- GGUF

G_FINE = gguf.Tensor("fine.weight", (256, 1), BF16, FINE.data)


def g_evil(dims, kind=BF16, data=b"", **fields):
    return gguf.Tensor("evil.weight", tuple(dims), kind, data, **fields)


def with_tensor(tensor, keys=(), **layout):
    return gguf.build([G_FINE, tensor], keys, **layout)


def with_key(key):
    return gguf.build([G_FINE], [Key("before", U8, 1), key, Key("after", U8, 1)], alignment=32)


def ggufs():
    def one(name, what, blob, words=(), command="inspect evil.gguf"):
        case("gguf-" + name, what, {"evil.gguf": blob}, command, ("evil.gguf",) + tuple(words))

    pack, w, k = "pack evil.gguf OUT", ("evil.weight",), ("evil.key",)
    case("fine-gguf", "a usual file", {"fine.gguf": with_tensor(g_evil((4,), F32, f32_data(4)))}, "pack fine.gguf OUT",
         (), DONE)
    for type_id in (36, 42, 0xFFFFFFFF):
        case("fine-gguf-type-%d" % type_id, "a type that nobody knows",
             {"fine.gguf": with_tensor(g_evil((4,), type_id, b"x" * 32))},
             "pack fine.gguf OUT", (), DONE)
    one("larger", "BF16 [1152, 2^42 + 1] in a small file", with_tensor(g_evil((1152, 2**42 + 1))), w, pack)
    one("wraps", "BF16 [1152, 2^57 + 1], which comes out as 1152",
        with_tensor(g_evil((1152, 2**57 + 1), data=b"\1" * 2304)), w, pack)
    one("padding-wraps", "F32 [4, 1073741823, 1073741825, 1]", with_tensor(g_evil((4, 1073741823, 1073741825, 1), F32)),
        w, pack)
    one("elements-wrap", "2^32 x 2^32 elements", with_tensor(g_evil((2**32, 2**32))), w)
    one("offset-wraps", "an offset near 2^64", with_tensor(g_evil((8,), F32, offset=2**64 - 32)), w, pack)
    one("key-length", "a key of 2^48 - 1 bytes in a file of 32",
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0xFFFFFFFFFFFF),
        (), pack)
    one("nested", "3000 nested arrays", with_key(Key("evil.key", ARRAY,
                                                     raw=struct.pack("<IQ", ARRAY, 1) * 3000 + struct.pack("<IQ", U8,
                                                                                                           0))),
        k, pack)
    one("nested-more", "60000 nested arrays",
        with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", ARRAY, 1) * 60000)),
        k)
    for count in (5, 9, 0xFFFFFFFF):
        dims = (1,) * min(count, 9)
        one("dims-%d" % count, "%d dimensions" % count, with_tensor(g_evil(dims, F32, f32_data(1), n_dims=count)), w,
            pack)
    for value in (0, 3, 2**31):
        one("alignment-%d" % value, "general.alignment %d" % value, with_key(Key("general.alignment", U32, value)),
            ("general.alignment",), pack)
    one("alignment-u64", "general.alignment of type u64", with_key(Key("general.alignment", U64, 32)),
        ("general.alignment",), pack)
    one("tensor-twice", "a tensor twice",
        gguf.build([G_FINE, g_evil((4,), F32, b"a" * 16), g_evil((4,), F32, b"b" * 16)]), w, pack)
    one("key-twice", "a key twice", gguf.build([G_FINE], [Key("evil.key", U8, 1), Key("evil.key", U8, 1)]), k, pack)
    whole = gguf.build([G_FINE], [Key("a", STRING, "b")], final_padding=False)
    start = gguf.parse(whole).data_start
    one("cut-end", "the last byte is missing", whole[:-1], ("fine.weight",), pack)
    one("cut-data", "the file ends where the data begins", whole[:start], (), pack)
    one("cut-header", "the file ends in the header", whole[:start // 2], (), pack)
    one("overlap", "two tensors that share bytes", with_tensor(g_evil((256, 1), data=FINE.data, offset=256)), w, pack)
    for version in (0, 1, 4, 0x03000000):
        one("version-%d" % version, "version %d" % version, gguf.build([G_FINE], version=version), (), pack)
    one("string-2-63", "a string of 2^63 bytes", with_key(Key("evil.key", STRING, raw=struct.pack("<Q", 2**63))), k)
    one("array-2-60", "an array of 2^60 strings",
        with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", STRING, 2**60))), k, pack)
    one("array-2-64", "an array of 2^64 - 1 bytes",
        with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", U8, 2**64 - 1))), k)
    one("tensors-2-64", "2^64 - 1 tensors", gguf.build([G_FINE], tensor_count=2**64 - 1), (), pack)
    one("keys-2-63", "2^63 keys", gguf.build([G_FINE], key_count=2**63), (), pack)
    unpack = "unpack evil.gguf OUT"
    block = gguf.Tensor("evil.weight", (256, 1), P12, P12_BLOCK)
    case("fine-gguf-packed", "a packed file", {"fine.gguf": gguf.build([block], P12_KEYS)}, "unpack fine.gguf OUT", (),
         DONE)
    one("p12-k", "BF16_P12 with K = 384", gguf.build([g_evil((384, 2), P12, bytes(784))], P12_KEYS), w, unpack)
    one("p12-wraps", "BF16_P12 with 2^61 + 1 rows", gguf.build([g_evil((256, 2**61 + 1), P12, P12_BLOCK)], P12_KEYS), w,
        unpack)
    one("p12-base", "a block with base 255", gguf.build([g_evil((256, 1), P12, b"\xff" + P12_BLOCK[1:])], P12_KEYS), w,
        unpack)
    one("p12-type", "p12.type_id is BF16's", gguf.build([block], [P12_KEYS[0], Key("p12.type_id", U32, BF16)]),
        ("p12.type_id",), unpack)
    one("p12-version", "p12.version 2", gguf.build([block], [Key("p12.version", U32, 2), P12_KEYS[1]]),
        ("p12.version",),
        unpack)
    pn = gguf.Tensor("evil.weight", (256, 1), PN4T, PN_BLOCK * 4)

    def rotated(size_key, exclude_key=Key("pn.hadamard.exclude", ARRAY, (STRING, []))):
        return gguf.build([pn], PN_KEYS + [size_key, exclude_key])

    size = "pn.hadamard.block_size"
    case("fine-gguf-rotated", "a rotated file", {"fine.gguf": rotated(Key(size, U32, 64))}, "unpack fine.gguf OUT", (),
         DONE)
    for value in (3, 63, 512, 2048, 2**31):
        one("rotation-%d" % value, "rotated in segments of %d, K is 256" % value, rotated(Key(size, U32, value)),
            ((size, "evil.weight"),), unpack)
    one("rotation-text", "a segment length that is a string", rotated(Key(size, STRING, "64")), (size,), unpack)
    one("exclude-text", "pn.hadamard.exclude is a string",
        rotated(Key(size, U32, 64), Key("pn.hadamard.exclude", STRING, "evil.weight")),
        ("pn.hadamard.exclude",), unpack)
    one("exclude-numbers", "pn.hadamard.exclude is a list of numbers",
        rotated(Key(size, U32, 64), Key("pn.hadamard.exclude", ARRAY, (U32, [1]))),
        ("pn.hadamard.exclude",), unpack)
    one("nan", "a NaN is quantized", gguf.build([g_evil((64, 2), F32,
                                                        f32_data(100) + struct.pack("<f",
                                                                                    float("nan")) + f32_data(27))]), w,
        "quantize evil.gguf OUT --type pn4t")
    one("as-bf16-overflow", "the largest FP32 is rounded to BF16",
        gguf.build([g_evil((256, 1), F32, f32_data(255) + b"\xff\xff\x7f\x7f")]), w,
        "pack evil.gguf OUT --as bf16")


# ---------------------------------------------------------------- models in several files

SHARDS = [[FINE, NORM], [st.Tensor("second.weight", "F32", (5,), f32_data(5, 2))]]
ONE, TWO = (st.shard_name("model", i, 2, "safetensors") for i in (1, 2))
INDEX = "model.safetensors.index.json"
G_SHARDS = [[G_FINE], [gguf.Tensor("second.weight", (4,), F32, f32_data(4, 2))],
            [gguf.Tensor("third.weight", (256, 1), BF16, bf16_data(256, 3))]]
G_ONE, G_TWO, G_THREE = (st.shard_name("model", i, 3, "gguf") for i in (1, 2, 3))


def several_files():
    def sharded(index=None, without=(), **more):
        files = st.sharded(SHARDS)
        if index:
            files[INDEX] = index(files[INDEX].decode()).encode()
        files.update(more)
        return {"model/" + name: data for name, data in files.items() if name not in without}

    def one(name, what, files, words, command="pack model OUT", exits=BAD_INPUT):
        case("index-" + name, what, files, command, words, exits)

    def moved(name, to):
        return lambda text: text.replace('"%s"' % name, '"%s"' % to)

    case("fine-sharded", "a usual model", sharded(), "pack model OUT", (), DONE)
    one("parent", "a shard ../x.safetensors",
        {**sharded(moved(TWO, "../x.safetensors")), "x.safetensors": st.build(SHARDS[1])}, ("x.safetensors",))
    one("absolute", "a shard /abs", sharded(moved(TWO, "/abs")), ("/abs",))
    one("passwd", "a shard /etc/passwd", sharded(moved(TWO, "/etc/passwd")), ("/etc/passwd",), "inspect model")
    one("dots", "a shard a/../../x.safetensors", {**sharded(moved(TWO, "a/../../x.safetensors")), "model/a": FOLDER,
                                                "x.safetensors": st.build(SHARDS[1])}, ("x.safetensors",))
    one("nothing", "a shard without a name", sharded(moved(TWO, "")), (INDEX,))
    one("itself", "a shard named ..", sharded(moved(TWO, "..")), ((INDEX, "model"),), "inspect model")
    one("nul", "a shard with a NUL in its name", sharded(moved(TWO, TWO + "\\u0000x")), (("model", INDEX),))
    one("index-as-shard", "the index is a shard of itself", sharded(moved(TWO, INDEX)), (INDEX,))
    one("missing", "a shard is missing", sharded(without=(TWO,)), (TWO,), "pack model OUT")
    one("missing-by-index", "a shard is missing, and the index is named", sharded(without=(ONE,)), (ONE,),
        "inspect model/" + INDEX)
    one("no-index", "shards without an index", sharded(without=(INDEX,)), ("model",), "inspect model")
    one("two-indexes", "two indexes", sharded(**{"other.safetensors.index.json": st.sharded(SHARDS)[INDEX]}),
        ("model",))
    one("wrong-file", "a tensor is in another file than the index says", sharded(lambda text: text.replace(
        '"norm.weight": "%s"' % ONE, '"norm.weight": "%s"' % TWO)), ("norm.weight",))
    one("gone", "a tensor is in no file", sharded(lambda text: text.replace('"norm.weight"', '"gone.weight"')),
        (("gone.weight", "norm.weight"),))
    one("twice", "a tensor is in two files", sharded(**{TWO: st.build(SHARDS[1] + [NORM])}), ("norm.weight",),
        "check model")
    one("cut-shard", "a shard is cut", sharded(**{TWO: st.build(SHARDS[1])[:-1]}), (TWO,))
    one("gguf-shard", "a shard is a GGUF file", sharded(**{TWO: gguf.build(G_SHARDS[1])}), (TWO,))
    one("folder-shard", "a shard is a folder", sharded(**{TWO: FOLDER}), (TWO,), "inspect model")
    one("fifo-shard", "a shard is a FIFO", sharded(**{TWO: FIFO}), (TWO,))
    one("dangling", "a shard is a dangling link", sharded(**{TWO: LINK + "nowhere"}), (TWO,), "inspect model")
    one("device", "a shard is a link to /dev/zero", sharded(**{TWO: LINK + "/dev/zero"}), (TWO,))
    one("no-map", "no weight_map", sharded(lambda _: "{}"), (INDEX,))
    one("list-map", "weight_map is a list", sharded(lambda _: '{"weight_map":["%s"]}' % ONE), (INDEX,))
    one("number-map", "weight_map has a number",
        sharded(moved('fine.weight": "' + ONE, 'fine.weight": 1, "x": "' + ONE)), (INDEX,), "inspect model")
    one("empty-map", "weight_map is empty", sharded(lambda _: '{"metadata":{},"weight_map":{}}'), ((INDEX, "model"),))
    one("text", "the index is no JSON", sharded(lambda _: "hello"), (INDEX,))
    one("empty", "the index is empty", sharded(lambda _: ""), (INDEX,), "inspect model")
    one("deep", "the index is nested", sharded(lambda _: '{"weight_map":' * DEEP), (INDEX,))
    one("utf8", "the index is not UTF-8", sharded(**{INDEX: b'{"weight_map":{"\xff":"%s"}}' % ONE.encode()}), (INDEX,),
        "inspect model")
    one("format", "several files are converted to GGUF", sharded(), ("model",), "pack model OUT --format gguf")
    case("folder-empty", "an empty folder", {"model": FOLDER}, "pack model OUT", ("model",))
    case("folder-single", "a folder with one safetensors file",
         {"model/model.safetensors": st.build(SHARDS[0]), "model/config.json": b"{}"},
         "pack model OUT", ("model",))
    case("folder-input", "the output is the input", sharded(), "pack model model", (), USAGE)
    case("folder-input-force", "the output is the input, with --force", sharded(), "pack model ./model/ --force", (),
         USAGE)
    case("folder-kept", "an output that holds something else", {**sharded(), "kept/precious": b"1"},
         "pack model kept --force", ("kept",), 4)

    def split(*changes):
        files = {**st.split_gguf(G_SHARDS, [Key("k", U8, 1)]), **dict(changes)}
        return {"model/" + name: data for name, data in files.items() if data is not None}

    def shard(i, number=None, count=3, tensors=None, **types):
        return gguf.build(G_SHARDS[i] if tensors is None else tensors,
                          st.split_keys(i if number is None else number, count, 3, **types))

    def two(name, what, files, words=(), command="pack model/%s OUT" % G_ONE):
        case("split-" + name, what, files, command, words or (".gguf",))

    case("fine-split", "a usual split set", split(), "pack model OUT", (), DONE)
    two("second", "the second shard is named", split(), (G_TWO,), "pack model/%s OUT" % G_TWO)
    two("missing", "the second shard is missing", split((G_TWO, None)), (G_TWO,))
    two("missing-last", "the last shard is missing", split((G_THREE, None)), (G_THREE,), "inspect model/" + G_ONE)
    two("missing-first", "the first shard is missing, the folder is named", split((G_ONE, None)), ("model",),
        "inspect model")
    two("count", "split.count is 2 in one of three", split((G_TWO, shard(1, count=2))))
    two("count-65535", "split.count is 65535", split((G_ONE, shard(0, count=65535))))
    two("number", "two shards with the same split.no", split((G_THREE, shard(2, number=1))))
    two("number-past", "split.no past split.count", split((G_THREE, shard(2, number=3))))
    two("no-keys", "a shard without split.* keys", split((G_TWO, gguf.build(G_SHARDS[1]))))
    two("key-type", "split.count is a string",
        split((G_TWO, gguf.build(G_SHARDS[1], [Key("split.no", U16, 1), Key("split.count", STRING, "3"),
                                                                                    Key("split.tensors.count", I32,
                                                                                        3)]))))
    twice = st.split_gguf(G_SHARDS[:2] + [G_SHARDS[2] + G_SHARDS[1]])
    two("twice", "a tensor in two shards", {"model/" + name: data for name, data in twice.items()}, ("second.weight",))
    two("cut", "a shard is cut", split((G_THREE, shard(2)[:-100])), (G_THREE,))
    two("safetensors", "a shard is a safetensors file", split((G_TWO, st.build(SHARDS[1]))), (G_TWO,))
    two("fifo", "a shard is a FIFO", split((G_TWO, FIFO)), (G_TWO,))


# ---------------------------------------------------------------- mix rules and importance

MODEL = [gguf.Tensor("blk.0.attn.weight", (320, 2), F32, f32_data(640)),
         gguf.Tensor("blk.0.norm.weight", (320,), F32, f32_data(320, 2))]
NAME = "blk.0.attn.weight"


def mixes():
    def one(name, what, text, words, exits=BAD_INPUT, command="quantize model.gguf OUT --mix rules.txt", **more):
        data = text if isinstance(text, bytes) else text.encode()
        case("mix-" + name, what, {"model.gguf": gguf.build(MODEL), "rules.txt": data, **more}, command, words, exits)

    case("fine-mix", "usual rules", {"model.gguf": gguf.build(MODEL),
                                     "rules.txt": b"# rules\n\n*norm.weight  keep\nblk.*  K=320,640  pn3t\n* pn4t\n"},
         "quantize model.gguf OUT --mix rules.txt", (), DONE)
    either = (USAGE, BAD_INPUT)
    one("type", "a type that is none, in line 3", "# a\n*norm.weight keep\n* pn5t\n", ("rules.txt", "3", "pn5t"),
        either)
    one("no-type", "a line without a type", "*norm.weight keep\nblk.0.attn.weight\n", ("rules.txt", "2"), either)
    one("words", "too many words", "* K=320 pn4t pn3t\n", ("rules.txt", "1"), either)
    one("k-text", "K=many", "\n\n\n* K=many pn4t\n", ("rules.txt", "4"), either)
    one("k-empty", "K= without a number", "* K= pn4t\n", ("rules.txt", "1"), either)
    one("k-negative", "K=-320", "* K=-320 pn4t\n", ("rules.txt", "1"), either)
    one("k-huge", "K=2^64 + 320", "* K=%d pn4t\n" % (2**64 + 320), ("rules.txt", "1"), either)
    one("k-comma", "K=320,,640", "* K=320,,640 pn4t\n", ("rules.txt", "1"), either)
    one("promoted", "@promoted without --promote", "@promoted pn4t\n* keep\n", ("promote",), either)
    one("list", "a list of names that is none", "@others pn4t\n", ("rules.txt", "1"), either)
    one("donor", "a donor without --donor", "*attn* donor\n* keep\n", ("donor",), either)
    one("nul", "a NUL in the rules", b"*attn*\0 pn4t\n", ("rules.txt",), either)
    one("utf8", "rules that are not UTF-8", b"\xff\xfe* pn4t\n", ("rules.txt",), either)
    one("binary", "a model in place of rules", gguf.build(MODEL), ("rules.txt",), either)
    one("both", "--mix and --type", "* pn4t\n", (), USAGE, "quantize model.gguf OUT --mix rules.txt --type pn4t")
    one("missing", "rules that are not there", "", ("gone.txt",), either, "quantize model.gguf OUT --mix gone.txt")
    one("folder", "rules that are a folder", "", ("folder",), either, "quantize model.gguf OUT --mix folder",
        folder=FOLDER)
    one("fifo", "rules that are a FIFO", "", ("fifo",), either, "quantize model.gguf OUT --mix fifo", fifo=FIFO)
    one("donor-cut", "a donor that is cut", "*attn* donor\n", ("donor.gguf",), BAD_INPUT,
        "quantize model.gguf OUT --mix rules.txt --donor donor.gguf", **{"donor.gguf": gguf.build(MODEL)[:-700]})
    one("donor-none", "a donor without the tensor", "*attn* donor\n", (NAME,), BAD_INPUT,
        "quantize model.gguf OUT --mix rules.txt --donor donor.gguf", **{"donor.gguf": gguf.build([])})
    one("donor-shape", "a donor with a tensor of another shape", "*attn* donor\n", (NAME,), BAD_INPUT,
        "quantize model.gguf OUT --mix rules.txt --donor donor.gguf",
        **{"donor.gguf": gguf.build([gguf.Tensor(NAME, (640, 1), F32, f32_data(640))])})


def legacy(entries, count=None, tail=struct.pack("<ii", 5, 8) + b"text.raw"):
    """llama.cpp's first form: entries of (name, calls, values, overrides)."""
    out = struct.pack("<i", len(entries) if count is None else count)
    for name, calls, values, *over in entries:
        over = over[0] if over else {}
        out += struct.pack("<i", over.get("length", len(name))) + name.encode()
        out += struct.pack("<ii", calls, over.get("values", len(values))) + struct.pack("<%df" % len(values), *values)
    return out + tail


def in_gguf(sums=None, counts=None, kind="imatrix", sums_dims=(320, 1), counts_dims=(1, 1), sums_type=F32, more=()):
    """llama.cpp's second form."""
    keys = [Key("general.type", STRING, kind), Key("imatrix.datasets", ARRAY, (STRING, ["text.raw"])),
            Key("imatrix.chunk_count", U32, 5), Key("imatrix.chunk_size", U32, 512)]
    tensors = list(more)
    if sums is not None:
        data = sums if isinstance(sums, bytes) else struct.pack("<%df" % len(sums), *sums)
        tensors.append(gguf.Tensor(NAME + ".in_sum2", sums_dims, sums_type, data))
    if counts is not None:
        tensors.append(gguf.Tensor(NAME + ".counts", counts_dims, F32, struct.pack("<%df" % len(counts), *counts)))
    return gguf.build(tensors, keys)


def imatrices():
    command = "quantize model.gguf OUT --type pn4t --imatrix imatrix"
    good = [abs(w) for w in weights(320, 9)]

    def with_value(value, at=100):
        return good[:at] + [value] + good[at + 1:]

    def one(name, what, data, words=(), exits=BAD_INPUT, line=command, **more):
        files = {"model.gguf": gguf.build(MODEL), "imatrix": data, **more}
        case("imatrix-" + name, what, files, line, ("imatrix",) + tuple(words), exits)

    named, nan, inf = (NAME,), float("nan"), float("inf")
    case("fine-imatrix-legacy", "the first form",
         {"model.gguf": gguf.build(MODEL), "imatrix": legacy([(NAME, 5, good)])}, command, (), DONE)
    case("fine-imatrix-gguf", "the second form", {"model.gguf": gguf.build(MODEL), "imatrix": in_gguf(good, [40.0])},
         command, (), DONE)
    one("empty", "an empty file", b"")
    one("3-bytes", "a file of 3 bytes", b"\1\0\0")
    one("text", "a text", b"hello world, this is no importance matrix\n" * 20)
    one("count-negative", "-1 entries", legacy([(NAME, 5, good)], count=-1))
    one("count-huge", "2^31 - 1 entries", legacy([(NAME, 5, good)], count=2**31 - 1))
    one("count-one-more", "one entry too few", legacy([(NAME, 5, good)], count=2, tail=b""))
    one("name-negative", "a name of -1 bytes", legacy([(NAME, 5, good, {"length": -1})]))
    one("name-huge", "a name of 2^31 - 1 bytes", legacy([(NAME, 5, good, {"length": 2**31 - 1})]))
    one("values-negative", "-1 values", legacy([(NAME, 5, good, {"values": -1})]), named)
    one("values-huge", "2^31 - 1 values", legacy([(NAME, 5, good, {"values": 2**31 - 1})]), named)
    one("cut", "the values are cut", legacy([(NAME, 5, good)], tail=b"")[:-6], named)
    one("legacy-nan", "a NaN", legacy([(NAME, 5, with_value(nan))]), named)
    one("legacy-inf", "an infinity", legacy([(NAME, 5, with_value(inf))]), named)
    one("legacy-minus", "a negative value", legacy([(NAME, 5, with_value(-0.5))]), named)
    one("legacy-columns", "values for another row length", legacy([(NAME, 5, good[:319])]), named)
    one("gguf-cut", "the file is cut", in_gguf(good, [40.0])[:-200])
    one("gguf-nan", "a NaN in the sums", in_gguf(with_value(nan), [40.0]), named)
    one("gguf-minus", "a negative sum", in_gguf(with_value(-1.0), [40.0]), named)
    one("gguf-count-nan", "a count that is a NaN", in_gguf(good, [nan]), named)
    one("gguf-count-minus", "a negative count", in_gguf(good, [-40.0]), named)
    one("gguf-no-counts", "sums without counts", in_gguf(good), named)
    one("gguf-no-sums", "counts without sums", in_gguf(None, [40.0]), named)
    one("gguf-columns", "sums for another row length", in_gguf(good[:160], [40.0], sums_dims=(160, 1)), named)
    one("gguf-f16", "sums in F16", in_gguf(bytes(640), [40.0], sums_type=F16), named)
    one("gguf-counts", "more counts than sums", in_gguf(good, [1.0, 2.0, 3.0], counts_dims=(1, 3)), named)
    one("gguf-model", "a model in place of importance", gguf.build(MODEL))
    one("gguf-twice", "sums twice", in_gguf(good, [40.0],
                                            more=[gguf.Tensor(NAME + ".in_sum2", (320, 1), F32, f32_data(320))]), named)
    one("safetensors", "a safetensors file", st.build([NORM]))
    one("missing", "a file that is not there", b"", ("gone",), (USAGE, BAD_INPUT),
        command.replace("--imatrix imatrix", "--imatrix imatrix.gone"))
    one("folder", "a folder", FOLDER)
    one("fifo", "a FIFO", FIFO)
    one("rotated", "importance and rotation", legacy([(NAME, 5, good)]), (), USAGE, command + " --rotate 64")


def inputs():
    """Inputs that are no files at all."""
    case("input-fifo", "a FIFO", {"fifo": FIFO}, "pack fifo OUT", ("fifo",))
    case("input-dangling", "a dangling link", {"link": LINK + "nowhere"}, "inspect link", ("link",))
    case("input-loop", "a link to itself", {"loop": LINK + "loop"}, "pack loop OUT", ("loop",))
    case("input-zero", "a link to /dev/zero", {"zero": LINK + "/dev/zero"}, "check zero", ("zero",))
    case("input-missing", "nothing", {}, "pack gone OUT", ("gone",))


def write(folder):
    """Writes everything below `folder`, which must not exist or be empty; gives the manifest."""
    CASES.clear()
    for part in (safetensors, lies, ggufs, several_files, mixes, imatrices, inputs):
        part()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit("error: %s is not empty" % folder)
    manifest = []
    for entry_ in CASES:
        home = folder / entry_["id"]
        home.mkdir()
        for name, data in entry_["files"].items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, bytes):
                path.write_bytes(data)
            elif data == FIFO:
                os.mkfifo(path)
            elif data == FOLDER:
                path.mkdir()
            else:
                path.symlink_to(data[len(LINK):])
        manifest.append({key: value for key, value in entry_.items() if key != "files"})
    (folder / "manifest.json").write_text(json.dumps({"cases": manifest}, indent=1) + "\n")
    return manifest


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make.py FOLDER")
    print("%d cases" % len(write(Path(sys.argv[1]))))
