"""Files of about 100 KB that are built to blow up memory or time: whatever the tool thinks of them, it says so within
5 s and 64 MiB. Mostly they are valid: many small things, long names, deep texts, numbers that promise much, patterns
that match in too many ways. With PN_TEST_EVERY=5 each file meets two of the ten runs that it is for, others from file to
file.
"""

import json
import os
import resource
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pnpack"))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import ARRAY, BF16, BOOL, F32, P12, STRING, U32, U64, U8, Key  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from tool import BAD_INPUT, DONE, EVERY, NO, ToolTest, main, run_measured, some, under_asan  # noqa: E402

SIZE = 100000
SECONDS, MEBIBYTES = 5, 64
WRITERS = {"pack": (), "unpack": (), "quantize": ("--type", "pn4t")}
VERBS = ("inspect", "check", "pack", "unpack", "quantize")
FINE = Tensor("fine.weight", "BF16", (1, 256), oracle.gaussian_bf16(256, 1))
G_FINE = gguf.Tensor("fine.weight", (256, 1), BF16, FINE.data)
P12_KEYS = [Key("p12.version", U32, 1), Key("p12.type_id", U32, 126)]


def member(text, name="evil"):
    return st.build([FINE, Tensor(name, "", (), raw=text)])


def with_shape(text, dtype="U8"):
    return member('{"dtype":"%s","shape":%s,"data_offsets":[512,512]}' % (dtype, text))


def entries(count, name, text):
    """A header of many entries without data."""
    return st.build([], header="{" + ",".join('"%s":%s' % (name % i, text) for i in range(count)) + "}")


def packed_with(**texts):
    values = {"p12.version": "1", "p12.tensors": '["fine.weight"]',
              "p12.header": st.parse(st.build([FINE])).header.decode()}
    values.update({key.replace("_", ".", 1): text for key, text in texts.items()})
    return st.build([Tensor("fine.weight", "U8", (1, 392), oracle.p12_pack(FINE.data))], values)


EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
SAFETENSORS = {
    "many empty tensors": entries(1800, "%d", EMPTY),
    "many empty tensors of BF16": entries(1700, "%d", EMPTY.replace("U8", "BF16").replace("[0]", "[0,256]")),
    "many tensors of a byte": st.build([Tensor("t%d" % i, "U8", (1,), b"x") for i in range(1500)]),
    "many rows to quantize": st.build([Tensor("t%d" % i, "F32", (1, 64), struct.pack("<64f", *([0.5] * 64)))
                                       for i in range(280)]),
    "many with one long beginning": entries(800, "a" * 80 + "%d", EMPTY),
    "deep lists": st.build([], header="[" * SIZE),
    "deep lists that close": st.build([], header="[" * (SIZE // 2) + "]" * (SIZE // 2)),
    "deep objects": st.build([], header='{"a":' * (SIZE // 5)),
    "deep lists in a shape": with_shape("[" * (SIZE // 2) + "]" * (SIZE // 2)),
    "deep metadata": st.build([FINE], '{"a":' * (SIZE // 5)),
    "50000 dimensions of 1": with_shape("[%s]" % ",".join(["1"] * (SIZE // 2))),
    "50000 dimensions of 0": with_shape("[%s]" % ",".join(["0"] * (SIZE // 2)), "F32"),
    "dimensions of 2^63": with_shape("[%s]" % ",".join(["9223372036854775808"] * (SIZE // 20))),
    "100000 digits": with_shape("[%s]" % ("9" * SIZE)),
    "a fraction of 100000 digits": with_shape("[0.%s]" % ("9" * SIZE)),
    "a name of 100000 letters": entries(1, "n" * SIZE + "%d", EMPTY),
    "a name of escapes": entries(1, "\\u0001" * (SIZE // 6) + "%d", EMPTY),
    "a dtype of 100000 letters": member('{"dtype":"%s","shape":[],"data_offsets":[512,512]}' % ("Q" * SIZE)),
    "much metadata": st.build([FINE], {"k%d" % i: "" for i in range(SIZE // 10)}),
    "one long text in the metadata": st.build([FINE], {"k": "\0" * (SIZE // 6)}),
    "100000 spaces": st.build([FINE], header=st.parse(st.build([FINE])).header + b" " * SIZE),
    "spaces in the object": st.build([FINE],
                                     header=st.parse(st.build([FINE])).header.replace(b'"shape"',
                                                                                      b" " * SIZE + b'"shape"')),
    "many offsets": member('{"dtype":"U8","shape":[0],"data_offsets":[%s]}' % ",".join(["512"] * (SIZE // 4))),
    "zeros": b"\0" * SIZE, "braces": b"{" * SIZE, "a header of 2^62 bytes": struct.pack("<Q", 2**62) + b"{" * SIZE,
    "p12.tensors: many names": packed_with(p12_tensors=st.compact(["n%d" % i for i in range(SIZE // 10)])),
    "p12.tensors: one name many times": packed_with(p12_tensors=st.compact(["fine.weight"] * (SIZE // 14))),
    "p12.tensors: deep": packed_with(p12_tensors="[" * SIZE),
    "p12.header: deep": packed_with(p12_header="{\"a\":" * (SIZE // 6)),
    "p12.header: many tensors": packed_with(p12_header="{" + ",".join('"%d":%s' % (i, EMPTY)
                                                                      for i in range(1600)) + "}"),
    "p12.header: a header in a header": packed_with(
        p12_header=st.compact({"__metadata__": {"p12.header": st.compact({"a": "\\" * 20000})}})),
}
for tensors in ({"n%d" % i: ["pn4t", [1, 64], "F32"] for i in range(SIZE // 40)},
                {"fine.weight": ["pn4t", [1] * (SIZE // 2), "F32"]}):
    SAFETENSORS["pn.tensors: %d entries" % len(tensors)] = st.build([FINE],
                                                                    {"pn.version": "0",
                                                                     "pn.tensors": st.compact(tensors),
                                                                     "p12.header": "{}"})


def with_key(raw, value_type=ARRAY):
    return gguf.build([G_FINE], [Key("evil.key", value_type, raw=raw)])


def array(element_type, count, data=b""):
    return struct.pack("<IQ", element_type, count) + data


GGUF = {
    "many tensors without elements": gguf.build([gguf.Tensor("t%d" % i, (0, 1), BF16) for i in range(2200)]),
    "many tensors of a block": gguf.build([gguf.Tensor("t%d" % i, (256, 1), P12, oracle.p12_pack_block([0] * 256))
                                           for i in range(180)], P12_KEYS),
    "many unknown types": gguf.build([gguf.Tensor("t%d" % i, (0,), 1000 + i) for i in range(2500)]),
    "many tensors at one place": gguf.build([gguf.Tensor("t%d" % i, (1,), 42, offset=0)
                                             for i in range(2500)]) + bytes(32),
    "many keys": gguf.build([G_FINE], [Key("k%d" % i, U8, 1) for i in range(SIZE // 18)]),
    "many empty strings": with_key(array(STRING, SIZE // 8, bytes(SIZE))),
    "many empty arrays": with_key(array(ARRAY, SIZE // 12, array(U8, 0) * (SIZE // 12))),
    "nested arrays": with_key(array(ARRAY, 1) * (SIZE // 12)),
    "nested arrays that end": with_key(array(ARRAY, 1) * (SIZE // 12) + array(U8, 0)),
    "arrays of 2^40 arrays": with_key(array(ARRAY, 2**40) * (SIZE // 12)),
    "2^60 booleans": with_key(array(BOOL, 2**60, bytes(SIZE))),
    "2^61 numbers": with_key(array(U64, 2**61, bytes(SIZE))),
    "a string of 2^62 bytes": with_key(struct.pack("<Q", 2**62) + bytes(SIZE), STRING),
    "2^62 tensors": gguf.build([G_FINE], tensor_count=2**62) + bytes(SIZE),
    "2^62 keys": gguf.build([G_FINE], key_count=2**62) + bytes(SIZE),
    "a name of 100000 letters": gguf.build([gguf.Tensor("n" * SIZE, (4,), F32, bytes(16))]),
    "2^60 rows": gguf.build([G_FINE, gguf.Tensor("evil", (256, 2**55), BF16)]), "alignment of 65536": gguf.build(
        [G_FINE, gguf.Tensor("n", (1,), F32, b"1234")], [Key("general.alignment", U32, 65536)]),
    "an exclude list of many names": gguf.build([gguf.Tensor("w", (64, 1), gguf.PN4T, bytes(34))], [
        Key("pn.version", U32, 0), Key("pn.search", STRING, "reference"), Key("pn.hadamard.block_size", U32, 64),
        Key("pn.hadamard.exclude", ARRAY, (STRING, ["n%d" % i for i in range(SIZE // 14)]))]),
}


class Bounds(ToolTest):
    def bounded(self, *words, codes=(DONE, NO, BAD_INPUT), **options):
        result, seconds, mebibytes = run_measured(*words, limit=60, **options)
        self.assertIn(result.code, codes, str(result))
        if not under_asan():
            self.assertLess(seconds, SECONDS, str(result))
            self.assertLess(mebibytes, MEBIBYTES, str(result))
        self.assertNotIn(b"bad_alloc", result.err)
        return result

    def all_verbs(self, source, number):
        before = sorted(os.listdir(self.folder))
        runs = [(verb, json_) for json_ in ((), ("--json",)) for verb in VERBS]
        for i, (verb, json_) in enumerate(runs):
            if (i + i // len(VERBS) + number) % EVERY != 0:
                continue
            out = self.path("out")
            result = self.bounded(verb, source, *([out] if verb in WRITERS else []), *WRITERS.get(verb, ()), *json_)
            if out.exists():
                self.assertEqual(result.code, DONE)
                out.unlink()
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            if json_:
                self.assertIs(result.json["ok"], result.code == DONE)

    def test_the_measure_itself(self):
        _, seconds, mebibytes = run_measured("--version")
        if not under_asan():
            self.assertLess(seconds, 2)
            self.assertLess(mebibytes, MEBIBYTES / 2)

    def test_safetensors(self):
        for i, (label, blob) in enumerate(SAFETENSORS.items()):
            self.assertLess(len(blob), 3 * SIZE, label)
            with self.subTest(label):
                self.all_verbs(self.write("bomb-%d.safetensors" % i, blob), i)

    def test_gguf(self):
        for i, (label, blob) in enumerate(GGUF.items()):
            self.assertLess(len(blob), 3 * SIZE, label)
            with self.subTest(label):
                self.all_verbs(self.write("bomb-%d.gguf" % i, blob), i)

    def model(self, name, files):
        return st.write_model(self.path(name), files)

    def test_indexes(self):
        shard = "model-00001-of-00001.safetensors"
        text = lambda value: json.dumps(value).encode()  # noqa: E731
        cases = {"many files that are not there": text({"weight_map": {"t%d" % i: "f%d.safetensors" % i
                                                                       for i in range(3000)}}),
                 "many names that are not there": text({"weight_map": {"t%d" % i: shard for i in range(2000)}}),
                 "many tensors in one file": text({"weight_map": {str(i): shard for i in range(1800)}}),
                 "deep": b'{"weight_map":' * (SIZE // 15), "deep lists": b"[" * SIZE, "spaces": b" " * SIZE,
                 "a long size": b'{"metadata":{"total_size":%s},"weight_map":{"0":"%s"}}' % (b"9" * SIZE,
                                                                                             shard.encode()),
                 "much metadata": text({"metadata": {"k%d" % i: i for i in range(6000)}, "weight_map": {"0": shard}}),
                 "a path of 100000 dots": text({"weight_map": {"0": "../" * (SIZE // 3) + "x"}}),
                 "a long name": text({"weight_map": {"0": "x" * SIZE}})}
        for i, (label, index) in enumerate(cases.items()):
            with self.subTest(label):
                folder = self.model("m%d" % i,
                                    {shard: SAFETENSORS["many empty tensors"], "model.safetensors.index.json": index})
                for verb in ("inspect", "pack", "check") if EVERY == 1 else (("inspect", "pack", "check")[i % 3],):
                    out = [self.path("out%d" % i)] if verb == "pack" else []
                    self.bounded(verb, folder, *out)

    def test_folders(self):
        many = {"model-%05d-of-02000.gguf" % (i + 1): b"" for i in range(2000)}
        first = gguf.build([G_FINE], st.split_keys(0, 2000, 1))
        cases = {"2000 empty shards": many, "2000 empty shards but one": {**many, "model-00001-of-02000.gguf": first},
                 "65535 promised": {"model-00001-of-65535.gguf": gguf.build([G_FINE], st.split_keys(0, 65535, 1))},
                 "2000 indexes": {"m%d.safetensors.index.json" % i: b"{}" for i in range(2000)},
                 "2000 files": {"f%d.safetensors" % i: b"" for i in range(2000)},
                 "1000 small sets": {"m%d-00001-of-00002.gguf" % i: first for i in range(1000)}}
        for i, (label, files) in enumerate(cases.items()):
            with self.subTest(label):
                self.bounded("inspect", self.model("f%d" % i, files), codes=(BAD_INPUT,))
        # as many shards as a large model has, one tensor each
        shards = [[Tensor("t%d" % i, "BF16", (1, 256), FINE.data)] for i in range(300)]
        folder = self.model("shards", st.sharded(shards))
        self.bounded("pack", folder, self.path("shards.out"), codes=(DONE,))
        self.assertEqual(len(os.listdir(self.path("shards.out"))), 301)
        self.bounded("pack", folder, self.path("few.out"), codes=(DONE,),
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)))

    def test_patterns(self):
        names = ["a" * 250 + str(i) for i in range(300)]
        model = self.write("model.gguf", gguf.build([gguf.Tensor(name, (64, 1), F32, struct.pack("<64f", *([0.5] * 64)))
                                                     for name in names]))
        long = self.write("long.gguf", gguf.build([gguf.Tensor("a" * (SIZE // 2), (64, 1), F32, bytes(256))]))
        rules = {"stars": "*a" * 100 + "*b keep\n* pn4t\n", "many stars": "*" * SIZE + "b keep\n* pn4t\n",
                 "question marks": "*?" * 100 + "b keep\n* pn4t\n",
                 "stars to the end": "*a" * (SIZE // 2) + "*b keep\n* pn4t\n",
                 "many rules": "*a*a*a*a*a*b keep\n" * (SIZE // 36) + "* pn4t\n",
                 "many lengths": "* K=%s keep\n* pn4t\n" % ",".join(["64"] * 25000),
                 "many comments": "#\n" * (SIZE // 2) + "* pn4t\n",
                 "one long comment": "#" + "x" * SIZE + "\n* pn4t\n", "no rule": "\n" * SIZE,
                 "no end of line": "x" * SIZE, "spaces": "* " + " " * SIZE + "pn4t"}
        for label, source in some([(label, source) for label in rules for source in (model, long)]):
            with self.subTest(label, source=source.name):
                path = self.write("rules.txt", rules[label].encode())
                self.bounded("quantize", source, self.path("out"), "--mix", path, "--force",
                             codes=(DONE, 2, BAD_INPUT))
        promoted = self.write("promoted.txt", "".join("blk.%d.weight\n" % i for i in range(6000)).encode())
        path = self.write("rules.txt", b"@promoted keep\n" * 100 + b"* pn4t\n")
        self.bounded("quantize", model, self.path("out"), "--mix", path, "--promote", promoted, "--force",
                     codes=(DONE, 2, BAD_INPUT))

    def test_importance(self):
        model = self.write("model.gguf", gguf.build([gguf.Tensor("w", (64, 1), F32,
                                                                 struct.pack("<64f", *([0.5] * 64)))]))
        entry = struct.pack("<i1siif", 1, b"x", 1, 1, 1.0)
        cases = {"many entries": struct.pack("<i",
                                             5000) + b"".join(struct.pack("<i5siif", 5, b"%05d" % i, 1, 1, 1.0)
                                                              for i in range(5000)),
                 "2^31 - 1 entries": struct.pack("<i", 2**31 - 1) + entry * (SIZE // 17),
                 "2^31 - 1 values": struct.pack("<ii1sii", 1, 1, b"w", 1, 2**31 - 1) + bytes(SIZE),
                 "a name of 2^31 - 1": struct.pack("<ii", 1, 2**31 - 1) + bytes(SIZE), "zeros": bytes(SIZE),
                 "ones": b"\xff" * SIZE,
                 "gguf": GGUF["many tensors without elements"], "nested gguf": GGUF["nested arrays"]}
        for label, data in cases.items():
            with self.subTest(label):
                path = self.write("imatrix", data)
                self.bounded("quantize", model, self.path("out"), "--type", "pn4t", "--imatrix", path, "--force",
                             codes=(DONE, BAD_INPUT))


if __name__ == "__main__":
    main()
