"""safetensors files through every verb: packed files against the tests' own packer, entry for entry and byte for
byte, and the files that come back.

Proves the facts of the sample, our metadata and its order, and that unpack gives every file back byte for byte
whatever its header looks like. Quantizing is in test_safetensors_pn.py, --as and --format in test_convert.py, files
that break a rule in test_safetensors_hostile.py, models in several files in test_shards.py.
"""

import json
import os
import resource
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from safetensors_testing import SAMPLE, THREADS, SafetensorsTest, bf16, f32  # noqa: E402
from tool import OUTPUT, USAGE, main, run  # noqa: E402


class Sample(SafetensorsTest):
    def test_facts(self):
        document = self.judge_pack(SAMPLE.read_bytes())
        facts = {tensor["name"]: tensor for tensor in document["tensors"]}
        for layer, listed in ((0, [2273, 31, 0, 0]), (5, [2262, 42, 0, 0])):
            tensor = facts.pop("encoder.layer.%d.output.dense.weight" % layer)
            self.assertEqual((tensor["shape"], tensor["type_in"], tensor["type_out"]),
                             ([384, 1536], "BF16", "BF16_P12"))
            self.assertEqual(tensor["p12"], {"blocks": 2304, "listed": listed})
        stays = facts.pop("encoder.layer.0.attention.self.query.weight")
        self.assertEqual((stays["type_in"], stays["type_out"]), ("BF16", "BF16"))
        self.assertIn("256", stays["reason"])
        norm = facts.pop("encoder.layer.0.output.LayerNorm.weight")
        self.assertEqual((norm["type_in"], norm["type_out"], norm["shape"]), ("F32", "F32", [384]))
        self.assertEqual(facts, {})
        self.assertEqual((document["totals"]["bytes_in"], document["totals"]["bytes_out"]),
                         (2 * 1179648 + 294912 + 1536, 2 * 903168 + 294912 + 1536))

    def test_threads_do_not_change_the_bytes(self):
        for threads in THREADS:
            packed, back = self.path("p%d" % threads), self.path("b%d" % threads)
            self.done("pack", SAMPLE, packed, "--threads", threads)
            self.same_bytes(packed, self.path("p1").read_bytes(), "%d threads" % threads)
            self.done("unpack", packed, back, "--threads", threads)
            self.same_bytes(back, SAMPLE.read_bytes(), "%d threads" % threads)


class Shapes(SafetensorsTest):
    def test_dimensions(self):
        shapes = [(256,), (3, 512), (3, 2, 256), (2, 1, 2, 256), (1, 256), (256, 1), (2, 255), (2, 257), (1, 511),
                  (1, 512),
                  (1, 1), (), (1, 2, 1, 1, 1, 256), (2, 1, 1, 1, 1, 1, 1, 1, 256)]
        tensors = [bf16("t%d" % i, shape, seed=i) for i, shape in enumerate(shapes)]
        document = self.round_trip(tensors + [f32("scalar", ()), f32("f32", (2, 256))])
        self.assertEqual([t["name"] for t in document["tensors"] if t["type_out"] == "BF16_P12"],
                         ["t1", "t2", "t3", "t4", "t9", "t12", "t13"])
        for shown in document["tensors"]:
            if shown["type_out"] == "BF16" and len(shown["shape"]) > 1:
                self.assertTrue(shown["reason"], "a fallback without a reason: " + shown["name"])

    def test_shapes_without_elements(self):
        empty = [Tensor("e0", "BF16", (0,)), Tensor("e1", "BF16", (2, 0)), Tensor("e2", "BF16", (0, 256)),
                 Tensor("e3", "F32", (2, 0)),
                 Tensor("e4", "BF16", (0, 0, 0))]
        tensors = [empty[0], bf16("a", (2, 256)), empty[1], empty[2], f32("b", (5,)), empty[3], bf16("c", (1, 512)),
                   empty[4]]
        self.round_trip(tensors)
        self.done("pack", self.path("in.safetensors"), self.path("strict"), "--strict")  # nothing is a fallback

    def test_every_dtype_passes_through(self):
        tensors = [Tensor(dtype, dtype, (2, 256), b"\x5a" * (2 * 256 * bits // 8)) for dtype,
                   bits in st.BITS.items() if dtype != "BF16"]
        document = self.round_trip(tensors + [bf16("w", (2, 256))])
        usual = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "I64", "U64", "F64", "F8_E4M3",
                 "F8_E5M2"}
        for shown in document["tensors"]:
            if shown["name"] in usual:
                self.assertEqual(shown["type_in"], shown["name"])

    def test_unknown_dtypes_pass_through(self):
        for dtype in ("NEW", "bf16", "F128", "", "BF16 ", "UNKNOWN_8"):
            for shape, size in (((2, 256), 96), ((0,), 0), ((), 0), ((2**20, 2**20), 3)):
                odd = Tensor("odd", dtype, shape, b"\xee" * size)
                document = self.round_trip([bf16("a", (1, 256)), odd, bf16("b", (1, 512))])
                shown = document["tensors"][1]
                self.assertEqual((shown["type_in"], shown["type_out"]), ("unknown(%s)" % dtype,) * 2)
                inspected = self.done_json("inspect", self.path("in.safetensors"))["tensors"][1]
                self.assertEqual((inspected["type"], inspected["bytes"]), ("unknown(%s)" % dtype, size))

    def nothing_to_pack(self, blob):
        source, out = self.write("in.safetensors", blob), self.path("out")
        result = self.done("pack", source, out, "--force")
        self.assertIn(b"nothing to pack: 0 of ", result.out + result.err)
        self.same_bytes(out, blob)
        self.assertEqual(self.done_json("pack", source, out, "--force")["totals"]["converted"], 0)
        self.same_bytes(out, blob)
        self.says_no("pack", source, self.path("strict"), "--strict")
        self.assertFalse(self.path("strict").exists())

    def test_nothing_fits_is_a_byte_copy(self):
        self.nothing_to_pack(st.build([]))
        self.nothing_to_pack(st.build([], {"a": "b"}))
        tensors = [f32("a", (2, 256)), bf16("b", (256,)), bf16("c", (2, 255))]
        self.nothing_to_pack(st.build(tensors))
        self.nothing_to_pack(st.build(tensors, {"x": "y"}, pad=1, separators=(" , ", " :\n")))

    def test_large_rows_and_many_tensors(self):
        self.round_trip([bf16("w", (1, 5120), 4), bf16("v", (20, 256), 5)])
        self.round_trip([Tensor("t%d" % i, "I8", (1,), b"x") for i in range(3000)] + [bf16("w", (1, 256))])

    def test_unaligned_tensors(self):
        odd = [Tensor("o%d" % i, "U8", (i,), b"o" * i) for i in range(1, 8)]
        tensors = [part for i, byte in enumerate(odd) for part in (byte, bf16("w%d" % i, (2, 256), i))]
        for pad in (1, 8):
            self.round_trip(tensors, {"k": "v" * pad}, pad=pad)


class Headers(SafetensorsTest):
    def tensors(self):
        return [f32("n", (3,)), bf16("w", (2, 256)), bf16("v", (1, 512), 3), f32("m", (7,))]

    def test_metadata(self):
        for metadata in (None, {}, {"format": "pt"}, {"": ""},
                         {"a": "\u00fc\U0001f600\0\x7f\"\\/\n", "\u6771": "x" * 70000},
                         [("z", "1"), ("a", "2"), ("m", "3")]):
            for place in (0, 2, 4) if metadata is not None else (0,):
                self.round_trip(self.tensors(), metadata, metadata_at=place)

    def test_our_entries_are_last_and_in_order(self):
        header = self.judge_metadata(self.tensors(), {"z": "1", "p12": "x", "a.p12.version": "y"})
        names = [key for key, _ in header.metadata]
        self.assertEqual(names, ["z", "p12", "a.p12.version", "p12.version", "p12.tensors", "p12.header"])
        self.assertEqual(header.value("p12.version"), "1")
        self.assertEqual(header.value("p12.tensors"), '["w","v"]')
        self.assertEqual(header.value("p12.header").encode(), st.parse(self.path("in.safetensors").read_bytes()).header)

    def judge_metadata(self, tensors, metadata):
        self.round_trip(tensors, metadata)
        return st.parse(self.path("packed").read_bytes())

    def test_data_in_another_order(self):
        for ranks in ((3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)):
            tensors = self.tensors() + [Tensor("e", "F32", (0,), rank=1.5)]
            for tensor, rank in zip(tensors, ranks):
                tensor.rank = rank
            self.round_trip(tensors, {"format": "pt"}, metadata_at=2)

    def test_spelling_of_the_header(self):
        usual = st.build(self.tensors(), {"a": "b"})
        text = st.parse(usual).header.rstrip().decode()
        value = json.loads(text)
        spellings = {"no padding": text, "much padding": text + " " * 4000, "indented": json.dumps(value, indent=4),
                     "spaces": json.dumps(value), "inner newlines": text.replace(",", "\n,\r\n\t"),
                     "escaped name": text.replace('"w"', '"\\u0077"'),
                     "escaped slash": text.replace('"a":"b"', '"a":"\\/"'),
                     "escaped keys": text.replace('"shape"', '"sh\\u0061pe"'),
                     "another order in the entries": json.dumps({n: dict(reversed(list(e.items()))) for n,
                                                                 e in value.items()})}
        for label, header in spellings.items():
            with self.subTest(label):
                self.judge_pack(st.build(self.tensors(), header=header))

    def test_metadata_that_is_null(self):
        """As the reference library takes it."""
        original = st.build(self.tensors(), "null")
        source, packed, back = self.write("null.safetensors", original), self.path("packed"), self.path("back")
        self.assertIs(self.done_json("pack", source, packed)["restores_identical"], True)
        self.done("verify", packed, source)
        self.done("unpack", packed, back)
        self.same_bytes(back, original)

    def test_spelling_that_is_ours_to_accept(self):
        """Refused, or packed and given back; never something between."""
        text = st.parse(st.build(self.tensors())).header.rstrip().decode()
        for header in (" " + text, "\n" + text, text + "\n", text + "\t\r\n ",
                       text.replace('"dtype"', '"more":{"x":[1,null]},"dtype"', 1)):
            original = st.build(self.tensors(), header=header)
            source, packed, back = self.write("odd.safetensors",
                                              original), self.path("odd.packed"), self.path("odd.back")
            result = run("pack", source, packed, "--json", "--force")
            if result.code:
                self.rejected(source, "pack")
                continue
            self.done("unpack", packed, back, "--force")
            self.assertIs(back.read_bytes() == original, result.json["restores_identical"])
            self.done("verify", packed, source)

    def test_names(self):
        names = ["b" * 70000, "\u91cd\u307f.\U0001f600", " spaces and\ttab ", "quote\"back\\slash", "%s%n{}{0}", "",
                 "__metadata", "a\0b",
                 "\x7f\x1b[2J", "p12.header", "shape"]
        document = self.round_trip([bf16(name, (1, 256), seed=i) for i, name in enumerate(names)])
        self.assertEqual([tensor["name"] for tensor in document["tensors"]], names)
        for verb, source in (("inspect", self.path("in.safetensors")), ("check", self.path("packed"))):
            self.assertNotIn(b"\x1b", self.done(verb, source).out)

    def test_packed_input_is_refused(self):
        for key in ("p12.version", "p12.anything", "pn.version", "pn.search"):
            self.rejected(self.write("in.safetensors", st.build(self.tensors(), {key: "1"})), "pack",
                          names=(key.split(".")[0] + ".",))
        source, packed = self.write("plain.safetensors", st.build(self.tensors())), self.path("packed")
        self.done("pack", source, packed)
        self.rejected(packed, "pack")

    def test_keys_that_only_look_like_ours(self):
        names = ["p12", "pn", "x.p12.version", "pnx.version", "p12version", "PN.version", "P12.version"]
        self.round_trip(self.tensors(), {name: "7" for name in names})

    def test_unpack_without_our_tensors(self):
        blob = st.build(self.tensors(), {"a": "b"})
        source, out = self.write("plain.safetensors", blob), self.path("out")
        self.done("unpack", source, out)
        self.same_bytes(out, blob)
        self.says_no("unpack", source, self.path("strict"), "--strict")
        self.assertFalse(self.path("strict").exists())


class OtherVerbs(SafetensorsTest):
    def setUp(self):
        super().setUp()
        self.tensors = [f32("n", (3,)), bf16("w", (3, 512)), Tensor("odd", "NEW", (1,), b"123"),
                        bf16("v", (2, 2, 256), 3)]
        self.original = st.build(self.tensors, {"format": "pt"})
        self.source, self.packed = self.write("in.safetensors", self.original), self.path("packed")
        self.done("pack", self.source, self.packed)

    def test_inspect(self):
        for path, types in ((self.source, ["F32", "BF16", "unknown(NEW)", "BF16"]),
                            (self.packed, ["F32", "BF16_P12", "unknown(NEW)", "BF16_P12"])):
            parsed = st.parse(path.read_bytes())
            document = self.done_json("inspect", path)
            self.assertEqual((document["verb"], document["input"]), ("inspect", str(path)))
            self.assertEqual([(t["name"], t["type"], t["shape"], t["offset"], t["bytes"]) for t in document["tensors"]],
                             [(t.name, kind, list(b.shape), parsed.start(t.name), len(t.data))
                              for t, b, kind in zip(parsed.tensors, self.tensors, types)])
            table = self.done("inspect", path).out.decode()
            for name, kind in zip(("n", "w", "odd", "v"), types):
                self.assertIn(name, table)
                self.assertIn(kind, table)

    def test_unpack_document(self):
        document = self.done_json("unpack", self.packed, self.path("back"))
        self.assertEqual([(t["name"], t["type_in"], t["type_out"], t["shape"]) for t in document["tensors"]],
                         [("n", "F32", "F32", [3]), ("w", "BF16_P12", "BF16", [3, 512]),
                          ("odd", "unknown(NEW)", "unknown(NEW)", [1]),
                          ("v", "BF16_P12", "BF16", [2, 2, 256])])
        self.assertEqual((document["totals"]["converted"], document["totals"]["bytes_out"]), (2, 12 + 3072 + 3 + 2048))

    def test_dry_run(self):
        for verb, source in (("pack", self.source), ("unpack", self.packed)):
            before = sorted(os.listdir(self.folder))
            dry = self.done_json(verb, source, self.path("out-" + verb), "--dry-run")
            self.done_json(verb, source, "--dry-run")
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            wet = self.done_json(verb, source, self.path("out-" + verb))
            self.assertEqual((dry["totals"], dry["tensors"]), (wet["totals"], wet["tensors"]))

    def test_names_and_suffixes_do_not_matter(self):
        for name in ("x.gguf", "x", "x.index.json"):
            source = self.write(name, self.original)
            self.done("pack", source, self.path("out.gguf"), "--force")
            self.same_bytes(self.path("out.gguf"), self.packed.read_bytes())

    def test_output_is_input(self):
        link = self.path("link")
        link.symlink_to(self.source)
        for out in (self.source, link, self.path(".") / "in.safetensors"):
            for force in ((), ("--force",)):
                self.fails(USAGE, "pack", self.source, out, *force)
        self.same_bytes(self.source, self.original)

    def test_a_flipped_block(self):
        parsed = st.parse(self.packed.read_bytes())
        start = parsed.start("w") + 3 * 392
        for at, value in ((start, 241), (start + 1, 4), (start + 4, 1)):
            blob = bytearray(self.packed.read_bytes())
            blob[at] = value
            self.assertFalse(oracle.p12_valid(bytes(blob[start:start + 392])))
            damaged = self.write("damaged", bytes(blob))
            document = self.says_no("check", damaged)
            self.assertEqual([t.get("valid") for t in document["tensors"]][1], False)
            self.assertEqual([document["first"][key] for key in ("tensor", "block", "offset")], ["w", 3, start])
            self.rejected(damaged, "unpack", names=("w", "block 3"))
            self.assertEqual(self.says_no("verify", damaged, self.source)["first"]["tensor"], "w")

    def test_verify_finds_one_weight(self):
        for name, element in (("w", 700), ("v", 0), ("n", 2), ("odd", 1)):
            tensors = [Tensor(t.name, t.dtype, t.shape, t.data) for t in self.tensors]
            tensor = next(t for t in tensors if t.name == name)
            data = bytearray(tensor.data)
            data[element * max(1, st.BITS.get(tensor.dtype, 8) // 8)] ^= 1
            tensor.data = bytes(data)
            document = self.says_no("verify", self.packed, self.write("other", st.build(tensors, {"format": "pt"})))
            self.assertEqual([t["name"] for t in document["tensors"] if not t["equal"]], [name])
            self.assertEqual(document["first"]["tensor"], name)
            if name != "odd":
                self.assertEqual(document["first"]["element"], element)

    def test_verify_finds_other_tensors(self):
        renamed = [Tensor(t.name + "x" if t.name == "w" else t.name, t.dtype, t.shape, t.data) for t in self.tensors]
        reshaped = [Tensor(t.name, t.dtype, (2, 768) if t.name == "w" else t.shape, t.data) for t in self.tensors]
        retyped = [Tensor(t.name, "I16" if t.name == "w" else t.dtype, t.shape, t.data) for t in self.tensors]
        for tensors in (renamed, reshaped, retyped, self.tensors[:1] + self.tensors[2:],
                        self.tensors + [f32("extra", (2,))]):
            self.says_no("verify", self.packed, self.write("other", st.build(tensors, {"format": "pt"})))

    def test_a_file_size_limit_leaves_nothing(self):
        def limited():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        before = sorted(os.listdir(self.folder))
        for limit in (0, 1, 7, 100, 1000, 4000):
            self.fails(OUTPUT, "pack", self.source, self.path("limited"), preexec_fn=limited)
            self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == "__main__":
    main()
