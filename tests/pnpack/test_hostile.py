"""Files made to break a reader: each must be refused with status 3 and words that name the file and the tensor or key,
at once, without an output, without a temporary file left behind, the input untouched.

Named cases for every verb; then a small file cut at every byte, and every byte of its header set to 0, 0xFF and one more.
"""

import os
import shutil
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import ARRAY, BF16, F32, P12, PN3T, PN4T, STRING, U32, U64, U8, Key, Tensor  # noqa: E402
from tool import BAD_INPUT, EVERY, ToolTest, each, main, part_of, run  # noqa: E402

VERBS = {"pack": (), "unpack": (), "quantize": ("--type", "pn4t"), "check": (), "inspect": ()}
FINE = Tensor("fine.weight", (256, 1), BF16, oracle.gaussian_bf16(256, 1))
P12_KEYS = [Key("p12.version", U32, 1), Key("p12.type_id", U32, 126)]


def evil(dims, tensor_type=BF16, data=b"", **fields):
    return Tensor("evil.weight", tuple(dims), tensor_type, data, **fields)


def with_tensor(tensor, keys=(), **layout):
    return gguf.build([FINE, tensor], keys, **layout)


def with_key(key, **layout):
    return gguf.build([FINE], [Key("before", U8, 1), key, Key("after", U8, 1)], alignment=32, **layout)


def nested(depth):
    return Key("evil.key", ARRAY, raw=struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0))


# label -> (file, words that the message must have)
TENSOR, KEY = ("evil.weight",), ("evil.key",)
CASES = {
    "larger than the file": (with_tensor(evil((1152, 2**42 + 1))), TENSOR),
    "larger by one byte": (with_tensor(evil((256, 1), data=b"\1" * 511), final_padding=False), TENSOR),
    "bytes wrap to 1152 weights": (with_tensor(evil((1152, 2**57 + 1), data=b"\1" * 2304)), TENSOR),
    "BF16 bytes wrap to 512": (with_tensor(evil((256, 2**55 + 1), data=b"\1" * 512)), TENSOR),
    "F32 bytes wrap to 16": (with_tensor(evil((4, 2**60 + 1), F32, data=b"\1" * 16)), TENSOR),
    "elements wrap to 0": (with_tensor(evil((2**32, 2**32))), TENSOR),
    "bytes wrap to 0": (with_tensor(evil((2**62, 4))), TENSOR),
    "padding wraps": (with_tensor(evil((4, 1073741823, 1073741825, 1), F32)), TENSOR),
    "padding wraps, first": (gguf.build([evil((4, 1073741823, 1073741825, 1), F32, offset=0),
                                         Tensor("fine.weight", (256, 1), BF16, FINE.data, offset=0)]), TENSOR),
    "offset past the end": (with_tensor(evil((4,), F32, offset=4096)), TENSOR),
    "offset near 2^64": (with_tensor(evil((8,), F32, offset=2**64 - 32)), TENSOR),
    "offset 2^63": (with_tensor(evil((8,), F32, offset=2**63)), TENSOR),
    "unknown type past the end": (with_tensor(evil((8,), 42, offset=1 << 40)), TENSOR),
    "5 dimensions": (with_tensor(evil((1, 1, 1, 1, 1), F32, b"abcd")), TENSOR),
    "9 dimensions": (with_tensor(evil((1,) * 9, F32, b"abcd")), TENSOR),
    "2^32 - 1 dimensions": (with_tensor(evil((4,), F32, b"x" * 16, n_dims=0xFFFFFFFF)), TENSOR),
    "half a Q8_0 block": (with_tensor(evil((33, 2), gguf.Q8_0, b"q" * 68)), TENSOR),
    "pn3t with K = 64": (with_tensor(evil((64, 5), PN3T, b"\0" * 136)), TENSOR),
    "pn4t with K = 80": (with_tensor(evil((80, 4), PN4T, b"\0" * 170)), TENSOR),
    "duplicate tensor": (gguf.build([FINE, evil((4,), F32, b"a" * 16), evil((4,), F32, b"b" * 16)]), TENSOR),
    "overlap, the same bytes": (with_tensor(evil((256, 1), offset=0)), TENSOR),
    "overlap by half": (with_tensor(evil((256, 1), data=FINE.data, offset=256)), TENSOR),
    "overlap with an earlier one": (gguf.build([Tensor("fine.weight", (256, 1), BF16, FINE.data, offset=480),
                                                evil((256, 1), data=FINE.data, offset=0)]), TENSOR),
    "duplicate key": (gguf.build([FINE], [Key("evil.key", U8, 1), Key("b", U8, 1), Key("evil.key", U32, 1)]), KEY),
    "key type 13": (with_key(Key("evil.key", 13, raw=b"\0" * 8)), KEY),
    "key type 2^32 - 1": (with_key(Key("evil.key", 0xFFFFFFFF, raw=b"\0" * 8)), KEY),
    "array of type 13": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", 13, 1) + b"\0" * 8)), KEY),
    "empty array of type 13": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", 13, 0))), KEY),
    "array of 2^64 - 1 bytes": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", U8, 2**64 - 1))), KEY),
    "array of u64 wraps to 8 bytes": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQQ", U64, 2**61 + 1, 0))), KEY),
    "array of 2^60 strings": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", STRING, 2**60))), KEY),
    "array of 2^60 arrays": (with_key(Key("evil.key", ARRAY, raw=struct.pack("<IQ", ARRAY, 2**60))), KEY),
    "string of 2^63 bytes": (with_key(Key("evil.key", STRING, raw=struct.pack("<Q", 2**63))), KEY),
    "string of 2^64 - 1 bytes": (with_key(Key("evil.key", STRING, raw=struct.pack("<Q", 2**64 - 1))), KEY),
    "3000 nested arrays": (with_key(nested(3000)), KEY),
    "100000 nested arrays": (with_key(nested(100000)), KEY),
    "key length in a 32-byte file": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0xFFFFFFFFFFFF), ()),
    "2^63 tensors": (gguf.build([FINE], tensor_count=2**63), ()),
    "2^64 - 1 tensors": (gguf.build([FINE], tensor_count=2**64 - 1), ()),
    "one tensor too many": (gguf.build([], tensor_count=1), ()),
    "2^63 keys": (gguf.build([FINE], key_count=2**63), ()),
    "2^64 - 1 keys": (gguf.build([FINE], key_count=2**64 - 1), ()),
    "version 0": (gguf.build([FINE], version=0), ("0",)),
    "version 1": (gguf.build([FINE], version=1), ("1",)),
    "version 4": (gguf.build([FINE], version=4), ("4",)),
    "byte-swapped version": (gguf.build([FINE], version=0x03000000), ()),
    "another magic": (gguf.build([FINE], magic=b"GGUG"), ()),
    "empty file": (b"", ()),
    "magic only": (b"GGUF", ()),
    "text": (b"hello world, this is no model at all\n" * 10, ()),
}
for value in (0, 1, 3, 4, 48, 2**17, 2**31):
    CASES["alignment %d" % value] = (with_key(Key("general.alignment", U32, value)), ("general.alignment",))
for value_type, value in ((U64, 32), (gguf.I32, 32), (STRING, "32"), (ARRAY, (U32, [32])), (gguf.BOOL, 1)):
    CASES["alignment of type %d" % value_type] = (with_key(Key("general.alignment", value_type, value)), ("general.alignment",))

# for the verbs that must understand packed tensors
PACKED_CASES = {
    "P12 with K = 384": (gguf.build([FINE, evil((384, 2), P12, b"\0" * 784)], P12_KEYS), TENSOR),
    "P12 elements wrap": (gguf.build([FINE, evil((256, 2**61 + 1), P12, b"\0" * 392)], P12_KEYS), TENSOR),
    "P12 bytes wrap": (gguf.build([FINE, evil((256, 2**64 // 392 + 1), P12, b"\0" * 392)], P12_KEYS), TENSOR),
    "P12 cut": (gguf.build([FINE, evil((256, 2), P12, b"\0" * 783)], P12_KEYS, final_padding=False), TENSOR),
    "type_id is a string": (gguf.build([FINE], [P12_KEYS[0], Key("p12.type_id", STRING, "126")]), ("p12.type_id",)),
    "type_id is BF16's": (gguf.build([FINE], [P12_KEYS[0], Key("p12.type_id", U32, BF16)]), ("p12.type_id",)),
    "type_id is pn4t's": (gguf.build([FINE], [P12_KEYS[0], Key("p12.type_id", U32, PN4T)]), ("p12.type_id",)),
    "p12.version 2": (gguf.build([FINE], [Key("p12.version", U32, 2), P12_KEYS[1]]), ("p12.version",)),
    "pn.version 1": (gguf.build([evil((64, 1), PN4T, b"\0" * 34)], [Key("pn.version", U32, 1)]), ("pn.version",)),
}


class NamedCases(ToolTest):
    def refused_by_all(self, cases, verbs):
        for i, (label, (blob, names)) in enumerate(cases.items()):
            source = self.write("hostile-%d.gguf" % i, blob)
            for verb in part_of(list(verbs), i):
                with self.subTest(label, verb=verb):
                    begin = time.monotonic()
                    error = self.rejected(source, verb, *VERBS[verb], names=names)
                    self.assertNotIn("bad_alloc", error["message"])
                    self.assertLess(time.monotonic() - begin, 10)
            source.unlink()

    def test_every_case(self):
        self.refused_by_all(CASES, VERBS)

    def test_packed_cases(self):
        self.refused_by_all(PACKED_CASES, ("unpack", "check"))

    def test_the_untouched_file_is_accepted(self):
        # the cases above fail for the reason that they name, not for what they have in common
        fine = [with_tensor(evil((4,), F32, b"x" * 16)), with_key(Key("evil.key", ARRAY, (U8, []))), with_key(nested(2)),
                with_key(Key("general.alignment", U32, 32)), gguf.build([FINE], P12_KEYS), gguf.build([], version=2),
                with_tensor(evil((256, 1), offset=512, data=FINE.data)), with_tensor(evil((32, 2), gguf.Q8_0, b"q" * 68)),
                gguf.build([FINE, evil((256, 1), P12, oracle.p12_pack(FINE.data))], P12_KEYS)]
        for i, blob in enumerate(fine):
            source = self.write("fine.gguf", blob)
            self.assertEqual(len(self.done_json("inspect", source)["tensors"]), len(gguf.parse(blob).tensors))
            self.done_json("check", source)

    def test_versions_have_distinct_messages(self):
        messages = set()
        for version in (0, 1, 4, 0x03000000):
            source = self.write("v.gguf", gguf.build([FINE], version=version))
            messages.add(self.fails(BAD_INPUT, "inspect", source)["message"])
        self.assertEqual(len(messages), 4, messages)

    def test_verify_and_second_file(self):
        good = self.write("good.gguf", gguf.build([FINE]))
        for label in ("larger than the file", "3000 nested arrays", "overlap by half", "empty file"):
            blob, names = CASES[label]
            bad = self.write("hostile.gguf", blob)
            self.fails(BAD_INPUT, "verify", bad, good, names=("hostile.gguf",) + names)
            self.fails(BAD_INPUT, "verify", good, bad, names=("hostile.gguf",) + names)

    def test_an_output_that_exists_stays(self):
        out = self.write("out.gguf", b"precious")
        for label in ("larger than the file", "overlap by half", "text"):
            source = self.write("hostile.gguf", CASES[label][0])
            self.fails(BAD_INPUT, "pack", source, out, "--force")
            self.assertEqual(out.read_bytes(), b"precious")

    def test_a_misaligned_offset(self):
        # ours to accept or to refuse; never a wrong file
        source = self.write("in.gguf", with_tensor(evil((256, 1), offset=516, data=FINE.data)))
        result = run("pack", source, self.path("out.gguf"), "--json")
        if result.code:
            self.assertEqual(result.code, BAD_INPUT)
            self.assertIn("evil.weight", result.json["error"]["message"] + result.json["error"].get("tensor", ""))
        else:
            self.done_json("verify", self.path("out.gguf"), source)


SMALL = [Key("general.alignment", U32, 8), Key("s", STRING, "ab"), Key("a", ARRAY, (STRING, ["", "c"])), Key("b", gguf.BOOL, 1)]


def small_file(packed):
    weight = Tensor("w", (256, 1), BF16, FINE.data)
    if packed:
        weight = Tensor("w", (256, 1), P12, oracle.p12_pack(FINE.data))
    pn = Tensor("q", (64, 1), PN4T, oracle.pn_block_bytes(oracle.PN4T, 0x3C00, [i % 16 for i in range(64)]))
    norm = Tensor("n", (3,), F32, b"\0\0\x80\x3f" * 3)
    return gguf.build([weight, pn, norm], SMALL + (P12_KEYS if packed else []), final_padding=False)


class Damage(ToolTest):
    def folder_for(self, i):
        folder = self.path("case-%d" % i)
        folder.mkdir()
        return folder

    def refused(self, blob, i, verb):
        """One damaged file in a folder of its own; a string when something is wrong."""
        folder = self.folder_for(i)
        source, out = folder / "in.gguf", folder / "out.gguf"
        source.write_bytes(blob)
        words = (verb, source) + ((out,) if verb in ("pack", "unpack", "quantize") else ()) + VERBS[verb]
        result = run(*words)
        problem = None
        if result.code != BAD_INPUT:
            problem = "status %d" % result.code
        elif os.listdir(folder) != ["in.gguf"]:
            problem = "left %s" % os.listdir(folder)
        elif b"in.gguf" not in result.err:
            problem = "does not name the file: %r" % result.err
        shutil.rmtree(folder)
        return problem

    def test_cut_at_every_byte(self):
        jobs = []
        for packed, verbs in ((False, ("pack", "quantize", "inspect")), (True, ("unpack", "check", "inspect"))):
            blob = small_file(packed)
            for verb in verbs:
                # the first verb meets every cut, the others every fifth: they share the reader
                jobs += [(blob[:n], "%s: %d of %d bytes" % (verb, n, len(blob)), verb)
                         for n in range(0, len(blob), 1 if verb == verbs[0] else 5)]
        jobs = jobs[::EVERY]
        problems = each(lambda job: self.refused(job[1][0], job[0], job[1][2]), list(enumerate(jobs)))
        self.assertEqual([(job[1], problem) for job, problem in zip(jobs, problems) if problem], [])

    def survives(self, blob, i, verbs):
        """A damaged file may be good or bad, but: a status, no output when it fails, one JSON document, and a file that
        was packed comes back when pack said so."""
        folder = self.folder_for(i)
        source, out, back = folder / "in.gguf", folder / "out.gguf", folder / "back.gguf"
        source.write_bytes(blob)
        problem = None
        for verb in verbs:
            writes = verb in ("pack", "unpack", "quantize")
            result = run(verb, source, *((out,) if writes else ()), *VERBS[verb], "--json")
            document = result.json
            if document["ok"] != (result.code == 0) or (result.code not in (0, 1)) != ("error" in document):
                problem = "%s: JSON and status %d disagree: %s" % (verb, result.code, document)
            files = sorted(os.listdir(folder))
            wanted = ["in.gguf"] + (["out.gguf"] if writes and result.code == 0 else [])
            if files != wanted:
                problem = "%s: status %d leaves %s" % (verb, result.code, files)
            if verb == "pack" and result.code == 0 and document["totals"]["converted"]:
                restored = run("unpack", out, back)
                if restored.code or (back.read_bytes() == blob) != document["restores_identical"]:
                    problem = "restores_identical lies: %s %s" % (document["restores_identical"], restored)
            for path in (out, back):
                if path.exists():
                    path.unlink()
        shutil.rmtree(folder)
        return problem

    def test_every_header_byte_changed(self):
        jobs = []
        for packed, verbs in ((False, ("pack",)), (True, ("unpack",))):
            blob = small_file(packed)
            for at in range(gguf.parse(blob).data_start):
                for value in {0, 0xFF, blob[at] + 1 & 0xFF} - {blob[at]}:
                    changed = blob[:at] + bytes([value]) + blob[at + 1:]
                    jobs.append((changed, "byte %d of the %s file = %d" % (at, "packed" if packed else "plain", value),
                                 verbs + (("inspect", "check") if at % 4 == value % 4 else ())))
        jobs = jobs[::EVERY]
        problems = each(lambda job: self.survives(job[1][0], job[0], job[1][2]), list(enumerate(jobs)))
        self.assertEqual([(job[1], problem) for job, problem in zip(jobs, problems) if problem], [])


if __name__ == "__main__":
    main()
