"""safetensors files that break a rule: each must be refused with status 3 and words that name the file and the tensor
or key, at once, without an output, without a temporary file left behind, the input untouched.

Named cases for every verb; then a small file cut at every byte, and every byte of its header changed, where the
tests' own parser says what is still valid.
"""

import os
import shutil
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected_models as models  # noqa: E402
import safetensors_files as st  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from safetensors_testing import bf16, f32  # noqa: E402
from tool import BAD_INPUT, EVERY, ToolTest, each, main, part_of, run  # noqa: E402

FINE = bf16("fine.weight", (1, 256))
VERBS = {"pack": (), "unpack": (), "quantize": ("--type", "pn4t"), "check": (), "inspect": ()}
EVIL = ("evil.weight",)


def evil(shape=(4,), offsets=None, dtype="F32", data=b"", **fields):
    return Tensor("evil.weight", dtype, tuple(shape), data, offsets, **fields)


def placed(shape, begin, end, dtype="U8", size=None):
    """A tensor at any offsets, and a data section of `size` bytes behind the first 512."""
    return st.build([FINE, evil(shape, (512 + begin, 512 + end), dtype)],
                    data=FINE.data + b"d" * (end if size is None else size))


def entry(text):
    return st.build([FINE, evil(raw=text)], data=FINE.data + b"d" * 16)


def member(**changes):
    """The entry of 16 bytes of F32 with texts replaced; None leaves a member out."""
    texts = {"dtype": '"F32"', "shape": "[4]", "data_offsets": "[512,528]"}
    texts.update(changes)
    return entry(st.joined([(key, text) for key, text in texts.items() if text is not None], (",", ":")))


def respelled(tensors, old, new):
    return st.build(tensors, header=st.parse(st.build(tensors)).header.decode().replace(old, new))


def text_header(text, data=b""):
    return st.build([], header=text, data=data)


USUAL = st.parse(st.build([FINE])).header.rstrip()
DEEP = 100000
CASES = {
    "header length 8xFF": (st.build([FINE], length=2**64 - 1), ()),
    "header length 2^63": (st.build([FINE], length=2**63), ()),
    "header length 0": (st.build([FINE], length=0), ()),
    "header length 0 and nothing else": (b"\0" * 8, ()),
    "header length filesize - 7": (st.build([FINE], length=len(st.build([FINE])) - 7), ()),
    "a 7-byte file": (b"\2" + b"\0" * 6, ()),
    "a 9-byte file": (struct.pack("<Q", 1) + b"{", ()),
    "no object": (text_header("[]"), ()), "a string": (text_header('"{}"'), ()), "a number": (text_header("12"), ()),
    "null": (text_header("null"), ()), "spaces only": (text_header("        "), ()),
    "an entry that is no object": (st.build([FINE, evil(raw="[1]")]), EVIL),
    "an entry that is null": (st.build([FINE, evil(raw="null")]), EVIL),
    "unclosed": (text_header(USUAL[:-1], FINE.data), ()),
    "trailing comma": (text_header(USUAL[:-1] + b",}", FINE.data), ()),
    "text behind the object": (text_header(USUAL + b" x", FINE.data), ()),
    "two objects": (text_header(USUAL + b"{}", FINE.data), ()),
    "zeros as padding": (text_header(USUAL + b"\0" * 8, FINE.data), ()),
    "a comment": (text_header(USUAL + b"/**/", FINE.data), ()),
    "byte order mark": (text_header(b"\xef\xbb\xbf" + USUAL, FINE.data), ()),
    "single quotes": (text_header(USUAL.replace(b'"', b"'"), FINE.data), ()),
    "a raw newline in a name": (text_header(USUAL.replace(b"fine", b"fi\nne"), FINE.data), ()),
    "UTF-16": (text_header(USUAL.decode().encode("utf-16"), FINE.data), ()),
    "UTF-8 broken in a name": (text_header(USUAL.replace(b"fine", b"fi\xff"), FINE.data), ()),
    "UTF-8 overlong": (text_header(USUAL.replace(b"fine", b"fi\xc0\xaf"), FINE.data), ()),
    "UTF-8 surrogate": (text_header(USUAL.replace(b"fine", b"fi\xed\xa0\x80"), FINE.data), ()),
    "UTF-8 cut in the padding": (text_header(USUAL + b" \xe2\x82", FINE.data), ()),
    "lone surrogate": (text_header(USUAL.replace(b"fine", b"\\ud800"), FINE.data), ()),
    "half an escape": (text_header(USUAL.replace(b"fine", b"\\u00"), FINE.data), ()),
    "duplicate name": (st.build([FINE, evil(data=b"a" * 16), evil(data=b"b" * 16)]), EVIL),
    "duplicate name by escapes": (respelled([FINE, evil(data=b"a" * 16), Tensor("@", "F32", (4,), b"b" * 16)],
                                            '"@"', '"evil\\u002eweight"'), EVIL),
    "duplicate dtype": (entry('{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[512,528]}'), EVIL),
    "duplicate shape": (entry('{"dtype":"F32","shape":[4],"data_offsets":[512,528],"shape":[2,2]}'), EVIL),
    "no dtype": (member(dtype=None), EVIL), "no shape": (member(shape=None), EVIL),
    "no data_offsets": (member(data_offsets=None), EVIL),
    "an empty entry": (entry("{}"), EVIL),
    "dtype is a number": (member(dtype="4"), EVIL), "dtype is null": (member(dtype="null"), EVIL),
    "shape is a number": (member(shape="4"), EVIL), "shape is an object": (member(shape="{}"), EVIL),
    "shape of strings": (member(shape='["4"]'), EVIL),
    "shape of lists": (member(shape="[[4]]"), EVIL), "shape of null": (member(shape="[null]"), EVIL),
    "shape of true": (member(shape="[true]"), EVIL),
    "negative shape": (member(shape="[-4]"), EVIL), "negative twice": (member(shape="[-2,-2]"), EVIL),
    "float shape": (member(shape="[4.0]"), EVIL),
    "float shape by exponent": (member(shape="[4e0]"), EVIL),
    "shape of 2^64 + 4": (member(shape="[18446744073709551620]"), EVIL),
    "shape of 400 digits": (member(shape="[%s]" % ("9" * 400)), ()), "shape of 1e400": (member(shape="[1e400]"), ()),
    "shape of NaN": (member(shape="[NaN]"), ()), "leading zero": (member(shape="[04]"), ()),
    "plus sign": (member(shape="[+4]"), ()),
    "negative offset": (member(data_offsets="[-16,0]"), EVIL),
    "float offsets": (member(data_offsets="[512.0,528.0]"), EVIL),
    "offset of 2^64 + 512": (member(data_offsets="[512,18446744073709552144]"), EVIL),
    "one offset": (member(data_offsets="[512]"), EVIL),
    "three offsets": (member(data_offsets="[512,528,528]"), EVIL), "no offsets": (member(data_offsets="[]"), EVIL),
    "offsets in an object": (member(data_offsets='{"0":512,"1":528}'), EVIL),
    "begin > end": (placed((4,), 4, 0, size=4), EVIL),
    "begin > end by 2^63": (member(data_offsets="[9223372036854775808,528]"), EVIL),
    "past the end": (placed((4,), 0, 4, size=3), EVIL),
    "far past the end": (member(shape="[1099511627776]", data_offsets="[512,4398046511616]"), EVIL),
    "end near 2^64": (member(shape="[4611686018427387776]", data_offsets="[512,18446744073709551616]"), EVIL),
    "end of 2^64 - 1": (member(dtype='"U8"', shape="[18446744073709551103]", data_offsets="[512,18446744073709551615]"),
                        EVIL),
    "overlap of one byte": (st.build([FINE, evil((5,), (511, 516), "U8")], data=FINE.data + b"dddd"),
                            (("evil.weight", "fine.weight"),)),
    "overlap, the same bytes": (st.build([FINE, evil((512,), (0, 512), "U8")], data=FINE.data),
                                (("evil.weight", "fine.weight"),)),
    "overlap inside": (st.build([FINE, evil((2,), (100, 102), "U8")], data=FINE.data),
                       (("evil.weight", "fine.weight"),)),
    "an empty tensor inside another": (st.build([FINE, evil((0,), (100, 100), "U8")], data=FINE.data),
                                       (("evil.weight", "fine.weight"),)),
    "an empty tensor past the end": (st.build([FINE, evil((0,), (516, 516), "U8")], data=FINE.data), EVIL),
    "a hole of one byte": (placed((4,), 1, 5), ()),
    "a hole at the beginning": (st.build([evil((4,), (1, 5), "U8")], data=b"ddddd"), ()),
    "a byte trails": (placed((4,), 0, 4, size=5), ()), "data without tensors": (st.build([], data=b"x"), ()),
    "a byte missing": (st.build([FINE])[:-1], ("fine.weight",)),
    "no data at all": (st.build([FINE], data=b""), ("fine.weight",)),
    "shape and offsets disagree": (member(shape="[3]"), EVIL), "a scalar of 16 bytes": (member(shape="[]"), EVIL),
    "dtype and offsets disagree": (member(dtype='"F64"'), EVIL),
    "elements but no bytes": (member(data_offsets="[528,528]", shape="[4]"), ()),
    "bytes but no elements": (member(shape="[4,0]"), EVIL),
    "product wraps to 4": (member(shape="[4611686018427387905,4]"), EVIL),
    "product wraps to 0": (placed((2**32, 2**32), 0, 0), EVIL),
    "product wraps in bytes": (member(shape="[2305843009213693956,2]"), EVIL),
    "bits wrap": (member(shape="[4,576460752303423488]"), EVIL),
    "product wraps through three": (member(shape="[4294967296,4294967296,4]"), EVIL),
    "metadata is no object": (st.build([FINE], "[]"), ()),
    "metadata is a string": (st.build([FINE], '"x"'), ()),
    "metadata of numbers": (st.build([FINE], '{"evil.key":1}'), ("evil.key",)),
    "metadata of null": (st.build([FINE], '{"evil.key":null}'), ("evil.key",)),
    "metadata of objects": (st.build([FINE], '{"a":"b","evil.key":{}}'), ("evil.key",)),
    "metadata of lists": (st.build([FINE], '{"evil.key":["x"]}'), ("evil.key",)),
    "metadata key twice": (st.build([FINE], '{"evil.key":"1","evil.key":"1"}'), ("evil.key",)),
    "metadata twice": (st.build([FINE, Tensor(st.METADATA, "", (), raw="{}")], {}), ()),
    "deep lists": (text_header("[" * DEEP), ()), "deep lists that close": (text_header("[" * DEEP + "]" * DEEP), ()),
    "deep objects": (text_header('{"a":' * DEEP), ()),
    "deep objects that close": (text_header('{"a":' * DEEP + "1" + "}" * DEEP), ()),
    "deep lists in a shape": (member(shape="[" * DEEP + "]" * DEEP), ()),
    "deep lists in metadata": (st.build([FINE], '{"evil.key":%s}' % ("[" * DEEP)), ()),
}


FILE = [FINE, f32("norm", (3,))]
PACKED = [models.packed_tensor(tensor) for tensor in FILE]
HEADER = st.parse(st.build(FILE)).header.decode()


def packed_with(weight=PACKED[0], version="1", tensors='["fine.weight"]', header=HEADER):
    """The packed form of FILE with another tensor or other texts; None leaves an entry out."""
    texts = {"p12.version": version, "p12.tensors": tensors, "p12.header": header}
    return st.build([weight, FILE[1]], {key: text for key, text in texts.items() if text is not None})


def header_with(old, new):
    if old not in HEADER:
        raise AssertionError(old)
    return packed_with(header=HEADER.replace(old, new))


def weight(shape, data, dtype="U8"):
    return packed_with(Tensor("fine.weight", dtype, shape, data))


# the file is a good safetensors file; what our entries say of it is not true
BLOCK = PACKED[0].data
LIST, TEXT = (("p12.tensors", "fine.weight", "norm", "gone"),), (("p12.header", "fine.weight", "norm"),)
PACKED_CASES = {
    "p12.version 2": (packed_with(version="2"), ("p12.version",)),
    "p12.version of words": (packed_with(version="one"), ("p12.version",)),
    "p12.version is empty": (packed_with(version=""), ("p12.version",)),
    "p12.header is no JSON": (packed_with(header="hello"), ("p12.header",)),
    "p12.header is a list": (packed_with(header="[]"), ("p12.header",)),
    "p12.header is empty": (packed_with(header=""), ("p12.header",)),
    "p12.header is deep": (packed_with(header="[" * DEEP), ("p12.header",)),
    "p12.header of another file": (packed_with(header=st.parse(st.build([bf16("z", (1, 256))])).header.decode()),
                                   ("p12.header",)),
    "p12.header with another shape": (header_with("[1,256]", "[2,128]"), TEXT),
    "p12.header with another dtype": (header_with('"BF16"', '"F16"'), TEXT),
    "p12.header with other offsets": (packed_with(header=HEADER.replace("[0,512]", "[12,524]").replace("[512,524]",
        "[0,12]")), TEXT),
    "p12.header with a hole": (header_with("[512,524]", "[513,525]"), TEXT),
    "p12.header with one tensor more": (
        packed_with(header=HEADER.rstrip()[:-1] + ',"gone":{"dtype":"U8","shape":[0],"data_offsets":[524,524]}}'),
        (("p12.header", "gone"),)),
    "p12.header with another norm": (header_with('"F32"', '"I32"'), TEXT),
    "a packed tensor of another dtype": (weight((1, 392), BLOCK, "I8"), ("fine.weight",)),
    "a row of 391 bytes": (weight((1, 391), BLOCK[:391]), ("fine.weight",)),
    "a packed tensor of one dimension": (weight((392,), BLOCK), ("fine.weight",)),
    "one packed row more": (weight((2, 392), BLOCK * 2), (("p12.header", "fine.weight"),)),
    "no p12.tensors": (packed_with(tensors=None), ("p12.tensors",)),
}
for label, text in {"no JSON": "fine.weight", "an object": '{"fine.weight":1}', "numbers": "[1]",
                    "cut": '["fine.weight"',
                    "a name too many": '["fine.weight","gone"]', "a name twice": '["fine.weight","fine.weight"]',
                    "another tensor": '["norm"]', "deep": "[" * DEEP, "lists": '[["fine.weight"]]',
                    "text behind it": '["fine.weight"] x', "empty": ""}.items():
    PACKED_CASES["p12.tensors: " + label] = (packed_with(tensors=text), LIST)


class Rejects(ToolTest):
    def refused_by_all(self, cases, verbs):
        for i, (label, (blob, names)) in enumerate(cases.items()):
            source = self.write("hostile-%d.safetensors" % i, blob)
            for verb in part_of(list(verbs), i):
                with self.subTest(label, verb=verb):
                    begin = time.monotonic()
                    error = self.rejected(source, verb, *VERBS[verb], names=names)
                    self.assertNotIn("bad_alloc", error["message"])
                    self.assertNotIn("json.exception", error["message"], "words for programmers")
                    self.assertLess(time.monotonic() - begin, 10)
            source.unlink()

    def test_every_case(self):
        self.refused_by_all(CASES, VERBS)

    def test_packed_cases(self):
        self.refused_by_all(PACKED_CASES, ("unpack", "check"))

    def test_the_tests_own_parser_agrees(self):
        for label, (blob, _) in CASES.items():
            with self.subTest(label), self.assertRaises(ValueError):
                st.parse(blob)
        for label, (blob, _) in PACKED_CASES.items():
            st.parse(blob)

    def test_the_untouched_files_are_accepted(self):
        # the cases above fail for the reason that they name, not for what they have in common
        for blob in (st.build([FINE]), entry('{"dtype":"F32","shape":[4],"data_offsets":[512,528]}'), member(),
                     placed((4,), 0, 4),
                     text_header(USUAL, FINE.data), text_header(USUAL + b" " * 9, FINE.data),
                     st.build([FINE], '{"evil.key":"1"}'),
                     placed((0,), 0, 0), placed((2, 0), 0, 0), placed((), 0, 1),
                     member(dtype='"X"', shape="[18446744073709551615,0]"), st.build([]),
                     placed((0, 2**40), 0, 0), packed_with()):
            source = self.write("fine.safetensors", blob)
            self.assertEqual(len(self.done_json("inspect", source)["tensors"]), len(st.parse(blob).tensors))
            self.done_json("check", source)
            self.done_json("unpack", source, self.path("fine.out"), "--force")

    def test_a_packed_file_without_the_input_s_header(self):
        """Another program may have packed it: refused, or unpacked under a header of its own."""
        source, out = self.write("in.safetensors", packed_with(header=None)), self.path("out")
        if run("unpack", source, out).code:
            self.rejected(source, "unpack", names=("p12.header",))
            return
        self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in st.parse(out.read_bytes()).tensors],
                         [(t.name, t.dtype, t.shape, t.data) for t in FILE])

    def test_verify_and_second_file(self):
        good = self.write("good.safetensors", st.build([FINE]))
        for label in ("header length 8xFF", "overlap inside", "a byte trails", "deep objects", "product wraps to 0"):
            blob, names = CASES[label]
            bad = self.write("hostile.safetensors", blob)
            self.fails(BAD_INPUT, "verify", bad, good, names=("hostile.safetensors",) + names)
            self.fails(BAD_INPUT, "verify", good, bad, names=("hostile.safetensors",) + names)

    def test_an_output_that_exists_stays(self):
        out = self.write("out", b"precious")
        for label in ("header length 0", "overlap inside", "duplicate name"):
            source = self.write("hostile.safetensors", CASES[label][0])
            self.fails(BAD_INPUT, "pack", source, out, "--force")
            self.assertEqual(out.read_bytes(), b"precious")


class Damage(ToolTest):
    """A small file cut at every byte, and every byte of its header changed; the tests' own parser says what is still
    valid."""

    def small_file(self):
        return st.build([Tensor("n", "F32", (3,), b"\0\0\x80\x3f" * 3), FINE, Tensor("e", "U8", (0,))], {"a": "b"})

    def packed_file(self):
        original = self.small_file()
        before = st.parse(original)
        after = [models.packed_tensor(t) for t in before.tensors]
        keys = [(key, value if isinstance(value, str) else st.compact(value))
                for key, value in models.packed_keys(before.tensors, after, before.header)]
        return st.build([Tensor(t.name, t.dtype, t.shape, t.data) for t in after], before.metadata + keys)

    def one(self, i, blob, verb, valid):
        """valid: True, False, or None when either may be right. A string when something is wrong."""
        folder = self.path("case-%d" % i)
        folder.mkdir()
        source, out, back = folder / "in.st", folder / "out.st", folder / "back.st"
        source.write_bytes(blob)
        writes = verb in ("pack", "unpack")
        result = run(verb, source, *((out,) if writes else ()), "--json")
        document, problem = result.json, None
        wanted = ["in.st"] + (["out.st"] if writes and result.code == 0 else [])
        if document["ok"] != (result.code == 0) or (result.code not in (0, 1)) != ("error" in document):
            problem = "JSON and status %d disagree: %s" % (result.code, document)
        elif sorted(os.listdir(folder)) != sorted(wanted):
            problem = "status %d leaves %s" % (result.code, os.listdir(folder))
        elif valid is not None and (result.code == 0) != valid:
            problem = "status %d, but the file is %s" % (result.code, "valid" if valid else "not")
        elif result.code not in (0, 1, BAD_INPUT):
            problem = "status %d" % result.code
        elif result.code == BAD_INPUT and "in.st" not in document["error"]["file"]:
            problem = "does not name the file: %s" % document
        elif verb == "pack" and result.code == 0:
            restored = run("unpack", out, back)
            if restored.code or back.read_bytes() != blob:
                problem = "does not come back: %s" % restored
        elif verb == "unpack" and result.code == 0:
            st.parse(out.read_bytes())
        shutil.rmtree(folder)
        return problem

    def survive(self, jobs):
        jobs = jobs[::EVERY]
        problems = each(lambda job: self.one(job[0], *job[1][1:]), list(enumerate(jobs)))
        self.assertEqual([(job[0], problem) for job, problem in zip(jobs, problems) if problem], [])

    def test_cut_at_every_byte(self):
        jobs = []
        for blob, verbs in ((self.small_file(), ("pack", "inspect")), (self.packed_file(), ("unpack", "check"))):
            for verb in verbs:
                jobs += [("%s: %d of %d bytes" % (verb, n, len(blob)), blob[:n], verb, False)
                         for n in range(0, len(blob), 1 if verb == verbs[0] else 5)]
        self.survive(jobs)

    def test_every_header_byte_changed(self):
        jobs = []
        for blob, verb in ((self.small_file(), "pack"), (self.packed_file(), "unpack")):
            for at in range(st.parse(blob).data_start):
                for value in {0, 0xFF, blob[at] + 1 & 0xFF} - {blob[at]}:
                    changed = blob[:at] + bytes([value]) + blob[at + 1:]
                    jobs.append(("%s: byte %d = %d" % (verb, at, value), changed, verb, self.verdict(changed, verb)))
        self.survive(jobs)

    @staticmethod
    def verdict(blob, verb):
        try:
            st.parse(blob)
        except ValueError:
            return False
        return None if verb == "unpack" else True


if __name__ == "__main__":
    main()
