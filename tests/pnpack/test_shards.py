"""Models in several files: sharded safetensors models and split GGUF sets, as a folder, an index or a first shard.

Proves every file of the folders that are written, that the index changes in its total_size only, that whole models
come back byte for byte, which inputs and outputs are refused, and that a folder appears complete or not at all
whatever happens.
"""

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import expected_models as models  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from oracle import KINDS  # noqa: E402
from safetensors_files import Tensor  # noqa: E402
from safetensors_testing import SAMPLE, THREADS, bf16, f32  # noqa: E402
from tool import (BAD_INPUT, DONE, ENVIRONMENT, NO, OUTPUT, PNPACK, USAGE, ToolTest, contents, each, main,  # noqa: E402
                  mentions_element, run)

INDEX = "model.safetensors.index.json"
FIRST, SECOND, THIRD = (st.shard_name("model", i, 3, "safetensors") for i in (1, 2, 3))
KEYS = [gguf.Key("general.architecture", gguf.STRING, "llama"), gguf.Key("general.file_type", gguf.U32, 32)]


def shards():
    """Three files: packed tensors in two, none in the one between."""
    return [[bf16("a", (2, 256), 1), f32("n.1", (5,))], [f32("n.2", (3,)), bf16("odd", (3, 10), 7)],
            [bf16("b", (1, 2, 512), 3), Tensor("x", "NEW", (2,), b"xyz"), bf16("c", (1, 256), 4)]]


def gguf_tensor(name, dims, seed, data=None):
    count = 1
    for dim in dims:
        count *= dim
    return gguf.Tensor(name, dims, gguf.BF16, oracle.gaussian_bf16(count, seed) if data is None else data)


def gguf_shards():
    return [[gguf.Tensor("n.1", (5,), gguf.F32, b"n" * 20), gguf_tensor("a", (256, 2), 1)],
            [gguf.Tensor("n.2", (3,), gguf.F32, b"m" * 12)],
            [gguf_tensor("b", (512, 2, 1), 3), gguf_tensor("odd", (255, 1), 4)]]


def sizes(before, after):
    """The place of an index that changes, before and after."""
    return '"total_size": %s' % before, '"total_size": %s' % after


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


class ModelTest(ToolTest):
    def model(self, files, name="in"):
        folder = self.path(name)
        remove(folder)
        return st.write_model(folder, files)

    def same_model(self, folder, wanted, message=""):
        self.assertTrue(folder.is_dir(), "%s is no folder" % folder)
        got = contents(folder)
        self.assertEqual(sorted(got), sorted(wanted), message)
        for name, data in wanted.items():
            self.same_bytes(got[name], data, "%s %s" % (name, message))

    def refused(self, source, *words, verbs=("pack", "inspect"), names=(), file=None):
        """Exit 3 for a model that is in self.folder: nothing is left, the error names the file."""
        options = {"quantize": ("--type", "pn4t")}
        out = self.path("refused.out")
        for verb in verbs:
            before = contents(self.folder)
            target = [out] if verb in ("pack", "unpack", "quantize") else []
            try:
                error = self.fails(BAD_INPUT, verb, source, *target, *options.get(verb, ()), *words, names=names,
                                   timeout=20)
                self.assertTrue(error["file"], error)
                if file:
                    self.assertIn(file, error["file"])
                self.assertEqual(contents(self.folder), before)
                self.assertFalse(out.exists())
            finally:
                remove(out)
        return error


class Sharded(ModelTest):
    def judge(self, files, packed_bytes, total_size_after, total_size_text=None, source=None):
        """pack of a sharded model, and unpack. packed_bytes: the true sum; total_size_after: (old, new) texts of the
        index."""
        folder = self.model(files)
        out, back = self.path("out"), self.path("back")
        remove(out)
        remove(back)
        document = self.done_json("pack", source(folder) if source else folder, out)
        got = contents(out)
        self.assertEqual(sorted(got), sorted(files))
        index_name = next(name for name in files if name.endswith(".index.json"))
        names = sorted(name for name in files if name != index_name)
        for name in names:
            before = st.parse(files[name])
            after = [models.packed_tensor(t) for t in before.tensors]
            keys = models.packed_keys(before.tensors, after, before.header,
                                      total_size=total_size_text if name == names[0] else None)
            models.is_made_from(self, got[name], files[name], after, keys)
        self.assertEqual(sum(len(t.data) for name in names for t in st.parse(got[name]).tensors), packed_bytes)
        old, new = total_size_after
        text = files[index_name]
        if old:
            self.assertEqual(text.count(old.encode()), 1)
            text = text.replace(old.encode(), new.encode())
        self.same_bytes(got[index_name], text, "index")
        self.assertIs(document["restores_identical"], True)
        self.done("check", out)
        self.done("verify", out, folder)
        self.done("unpack", out, back)
        self.same_model(back, files, "restored")
        self.same_model(folder, files, "input")
        return document

    def bytes_after(self, tensors=None):
        return st.data_bytes([[models.packed_tensor(t) for t in each_] for each_ in tensors or shards()])

    def test_a_usual_model(self):
        files, before, after = st.sharded(shards(),
                                          metadata={"format": "pt"}), st.data_bytes(shards()), self.bytes_after()
        change = sizes(before, after)
        sources = {"folder": None, "index": lambda folder: folder / INDEX, "slash": lambda folder: str(folder) + "/"}
        for label, source in sources.items():
            with self.subTest(label):
                document = self.judge(files, after, change, source=source)
        shown = {t["name"]: t for t in document["tensors"]}
        self.assertEqual(sorted(shown), sorted(t.name for tensors in shards() for t in tensors))
        for name, tensors in zip((FIRST, SECOND, THIRD), shards()):
            for tensor in tensors:
                self.assertEqual(os.path.basename(shown[tensor.name]["file"]), name)
                self.assertEqual(shown[tensor.name]["bytes_in"], len(tensor.data))
        self.assertEqual((document["totals"]["bytes_in"], document["totals"]["bytes_out"],
                          document["totals"]["converted"],
                          document["totals"]["tensors"]), (before, after, 3, 7))

    def test_relative_names(self):
        files = st.sharded(shards())
        self.model(files)
        for i, (source, folder) in enumerate((("in", self.folder), (".", self.path("in")), (INDEX, self.path("in")),
                                              ("./in/", self.folder),
                                              ("in/" + INDEX, self.folder))):
            out = os.path.relpath(self.path("out%d" % i), folder)
            self.done("pack", source, out, cwd=folder)
            self.done("unpack", out + "/", self.path("back%d" % i), cwd=folder)
            self.same_model(self.path("back%d" % i), files)

    def test_other_names(self):
        for stem in ("weights.of.mine", "-model", "model safe", "\u6a21"):
            files = st.sharded(shards(), stem=stem)
            before, after = st.data_bytes(shards()), self.bytes_after()
            self.judge(files, after, sizes(before, after))
        # file names need no numbers
        files = st.sharded(shards())
        renamed = {INDEX: files[INDEX]}
        for name, other in ((FIRST, "text.safetensors"), (SECOND, "image.safetensors"), (THIRD, "audio.bin")):
            renamed[other] = files[name]
            renamed[INDEX] = renamed[INDEX].replace(name.encode(), other.encode())
        before, after = st.data_bytes(shards()), self.bytes_after()
        self.judge(renamed, after, sizes(before, after))

    def test_other_files_beside_are_not_copied(self):
        files = st.sharded(shards())
        beside = {"config.json": b"{}", "tokenizer.json": b"[]", "README.md": b"# x",
                  "model.safetensors.index.json.bak": b"{",
                  "vision.safetensors": st.build([f32("v", (2,))])}
        self.model({**files, **beside})
        self.path("in/sub").mkdir()
        self.done("pack", self.path("in"), self.path("out"))
        self.assertEqual(sorted(os.listdir(self.path("out"))), sorted(files))

    def test_links_into_a_cache(self):
        # a hub's cache: a folder of links to blobs that have hashes for names
        files, blobs, snapshot = st.sharded(shards()), self.path("blobs"), self.path("snapshot")
        blobs.mkdir()
        snapshot.mkdir()
        for i, (name, data) in enumerate(files.items()):
            (blobs / ("%064x" % i)).write_bytes(data)
            (snapshot / name).symlink_to("../blobs/%064x" % i)
        for i, source in enumerate((snapshot, snapshot / INDEX)):
            self.done("pack", source, self.path("out%d" % i))
            self.done("unpack", self.path("out%d" % i), self.path("back%d" % i))
            self.same_model(self.path("back%d" % i), files)
        self.path("link").symlink_to(snapshot)
        self.done("pack", self.path("link"), self.path("out-link"))
        self.same_model(self.path("out-link"), contents(self.path("out0")))

    def test_spellings_of_the_index(self):
        files, before, after = st.sharded(shards()), st.data_bytes(shards()), self.bytes_after()
        value = json.loads(files[INDEX])
        plain = json.dumps(value)
        spellings = {
            "one line": plain, "tabs": json.dumps(value, indent="\t"), "no end of line": files[INDEX].decode().rstrip(),
            "another order": json.dumps({"weight_map": value["weight_map"], "metadata": value["metadata"]}, indent=1),
            "more members": plain.replace('{"metadata"',
                                          '{"total_size": 5, "total_sizes": {"total_size": "7"}, "metadata"'),
            "more metadata": plain.replace('{"total_size"',
                                           '{"mine": {"total_size": 17}, "note": "\\"total_size\\": 9", "total_size"'),
            "shuffled map": json.dumps({**value, "weight_map": dict(reversed(list(value["weight_map"].items())))}),
            "escapes": plain.replace('"weight_map"', '"weight\\u005fmap"'), "windows": plain.replace(", ", ",\r\n")}
        for label, text in spellings.items():
            with self.subTest(label):
                self.judge({**files, INDEX: text.encode()}, after, sizes(before, after))
        spaced = plain.replace('"total_size": %d' % before, '"total_size"\n :\t%d\r\n' % before)
        self.judge({**files, INDEX: spaced.encode()}, after, (':\t%d' % before, ':\t%d' % after))

    def test_a_tensor_named_like_the_size(self):
        tensors = shards() + [[f32("total_size", (2,)), f32("metadata", (1,))]]
        files = st.sharded(tensors)
        before, after = st.data_bytes(tensors), self.bytes_after(tensors)
        self.judge(files, after, sizes(before, after))

    def test_a_total_size_that_is_not_the_true_sum(self):
        true, after = st.data_bytes(shards()), self.bytes_after()
        for text in ("1", "0", str(true - 1), str(true + 1), str(true * 2), str(after), "%d.0" % true, "1.5e3",
                     "%de0" % true, "-5",
                     "18446744073709551615", "1" + "0" * 40):
            with self.subTest(text):
                files = st.sharded(shards(), total_size=text)
                self.judge(files, after, sizes(text, after), text)
                self.assertEqual(st.parse(contents(self.path("out"))[FIRST]).value("p12.total_size"), text)

    def test_a_total_size_that_is_no_number(self):
        # refused, or given back as it was
        for text in ('"1234"', "null", "[1]", "{}", "true"):
            files = st.sharded(shards(), total_size=text)
            self.model(files)
            result = run("pack", self.path("in"), self.path("o"), "--force")
            if result.code:
                self.refused(self.path("in"), file="in/")
                continue
            self.done("unpack", self.path("o"), self.path("b"), "--force")
            self.same_model(self.path("b"), files, text)

    def test_no_total_size(self):
        files = st.sharded(shards(), total_size=None)
        self.judge(files, self.bytes_after(), ("", ""))
        no_metadata = json.dumps({"weight_map": json.loads(files[INDEX])["weight_map"]}).encode()
        self.judge({**files, INDEX: no_metadata}, self.bytes_after(), ("", ""))

    def test_the_first_in_name_order_keeps_the_size(self):
        # the index names the last file first
        files = st.sharded(shards(), total_size=7)
        value = json.loads(files[INDEX])
        value["weight_map"] = dict(reversed(list(value["weight_map"].items())))
        self.judge({**files, INDEX: json.dumps(value, indent=3).encode()}, self.bytes_after(),
                   sizes(7, self.bytes_after()), "7")

    def test_nothing_fits_is_a_byte_copy(self):
        for total_size in (True, 5, None):
            tensors = [[f32("a", (2, 256))], [bf16("b", (2, 255)), bf16("c", (256,))]]
            files = st.sharded(tensors, total_size=total_size, metadata={"k": "v"}, pad=1)
            self.model({**files, "config.json": b"{}"})
            document = self.done_json("pack", self.path("in"), self.path("out"), "--force")
            self.assertEqual(document["totals"]["converted"], 0)
            self.same_model(self.path("out"), files)
            self.says_no("pack", self.path("in"), self.path("strict"), "--strict")
            self.assertFalse(self.path("strict").exists())

    def test_one_file_of_a_model(self):
        # named by itself it is one safetensors file
        self.model(st.sharded(shards()))
        self.done("pack", self.path("in") / FIRST, self.path("out"))
        self.assertTrue(self.path("out").is_file())
        self.done("unpack", self.path("out"), self.path("back"))
        self.same_bytes(self.path("back"), (self.path("in") / FIRST).read_bytes())

    def test_a_model_of_one_shard(self):
        tensors = [shards()[0] + shards()[2]]
        files = st.sharded(tensors)
        self.judge(files, self.bytes_after(tensors), sizes(st.data_bytes(tensors), self.bytes_after(tensors)))
        self.assertTrue(self.path("out").is_dir())

    def test_odd_headers(self):
        tensors = shards()
        tensors[0][0].rank, tensors[0][1].rank = 2, 1
        files = st.sharded(tensors, metadata=[None, {}, {"format": "pt"}], metadata_at=1, pad=1,
                           separators=(", ", ": "))
        self.judge(files, self.bytes_after(), sizes(st.data_bytes(shards()), self.bytes_after()))

    def test_sample_in_two(self):
        tensors = st.parse(SAMPLE.read_bytes()).tensors
        parts = [[dataclasses.replace(t, offsets=None) for t in part] for part in (tensors[:2], tensors[2:])]
        files = st.sharded(parts)
        self.model(files)
        self.done("pack", SAMPLE, self.path("whole"))
        for threads in THREADS:
            out = self.path("out%d" % threads)
            self.done("pack", self.path("in"), out, "--threads", threads)
            self.same_model(out, contents(self.path("out1")), "%d threads" % threads)
            self.done("unpack", out, self.path("back%d" % threads), "--threads", threads)
            self.same_model(self.path("back%d" % threads), files)
        packed = [t for name in sorted(files)[:2] for t in st.parse(contents(self.path("out1"))[name]).tensors]
        whole = st.parse(self.path("whole").read_bytes()).tensors
        self.assertEqual([(t.name, t.dtype, t.shape, t.data) for t in packed],
                         [(t.name, t.dtype, t.shape, t.data) for t in whole])

    def test_quantize(self):
        tensors = [[bf16("a", (2, 320)), f32("n", (3,))], [f32("n.2", (9,))],
                   [bf16("b", (1, 640), 3), bf16("odd", (1, 100), 7)]]
        files = st.sharded(tensors, metadata={"format": "pt"})
        self.model(files)
        for kind in KINDS:
            out, back = self.path("q-" + kind), self.path("b-" + kind)
            self.done("quantize", self.path("in"), out, "--type", kind)
            got, total = contents(out), 0
            for name, part in zip(sorted(files), tensors):
                after = [models.quantized_tensor(t, KINDS[kind]) for t in part]
                total += st.data_bytes([after])
                keys = models.quantized_keys(part, after, KINDS[kind], st.parse(files[name]).header)
                models.is_made_from(self, got[name], files[name], after, keys)
            self.same_bytes(got[INDEX], st.index(json.loads(files[INDEX])["weight_map"], total).encode())
            self.done("check", out)
            self.done("verify", out, self.path("in"))
            self.done("unpack", out, back, "--to", "bf16")
            restored = contents(back)
            self.assertEqual(sorted(restored), sorted(files))
            self.same_bytes(restored[INDEX], files[INDEX])
            for name, part in zip(sorted(files), tensors):
                self.same_bytes(st.parse(restored[name]).header, st.parse(files[name]).header)
            self.done("unpack", out, self.path("f-" + kind), "--to", "f32")
            wide = contents(self.path("f-" + kind))
            total = sum(len(t.data) for name in sorted(files)[:3] for t in st.parse(wide[name]).tensors)
            self.assertEqual(json.loads(wide[INDEX])["metadata"]["total_size"], total)

    def test_rotated_and_rounded(self):
        tensors = [[bf16("model.embed_tokens.weight", (1, 256), 2)], [f32("a", (2, 256)), f32("n", (3,))]]
        self.model(st.sharded(tensors))
        self.done("quantize", self.path("in"), self.path("q"), "--type", "pn4t", "--rotate", 128)
        self.done("verify", self.path("q"), self.path("in"))
        self.done("unpack", self.path("q"), self.path("u"), "--to", "f32")
        decoded = [models.decoded_data(oracle.PN4T, models.quantized_tensor(t, oracle.PN4T, 128).data, "f32", rotation)
                   for t, rotation in ((tensors[0][0], 0), (tensors[1][0], 128))]
        restored = [st.parse(data).tensors[0].data for name,
                    data in sorted(contents(self.path("u")).items()) if name != INDEX]
        self.assertEqual(restored, decoded)
        self.done("pack", self.path("in"), self.path("p"), "--as", "bf16")
        self.says_no("verify", self.path("p"), self.path("in"))
        self.done("verify", self.path("p"), self.path("in"), "--as", "bf16")
        self.done("unpack", self.path("p"), self.path("r"))
        rounded = st.parse(contents(self.path("r"))[st.shard_name("model", 2, 2, "safetensors")]).tensor("a")
        self.assertEqual((rounded.dtype, rounded.data), ("BF16", models.rounded_tensor(tensors[1][0]).data))
        self.refused(self.path("in"), "--format", "gguf", verbs=("pack",))

    def test_verify_and_check_name_the_file(self):
        files = st.sharded(shards())
        self.model(files)
        self.done("pack", self.path("in"), self.path("out"))
        path = self.path("out") / THIRD
        blob = bytearray(path.read_bytes())
        start = st.parse(bytes(blob)).start("b")
        blob[start + 392 + 1] = 4
        path.write_bytes(bytes(blob))
        for document in (self.says_no("check", self.path("out")),
                         self.says_no("verify", self.path("out"), self.path("in"))):
            self.assertEqual(document["first"]["tensor"], "b")
            shown = next(t for t in document["tensors"] if t["name"] == "b")
            self.assertEqual(os.path.basename(shown["file"]), THIRD)
        self.assertEqual(self.says_no("check", self.path("out"))["first"]["offset"], start + 392)
        error = self.fails(BAD_INPUT, "unpack", self.path("out"), self.path("back"), names=("b", THIRD))
        self.assertEqual(os.path.basename(error["file"]), THIRD)
        self.assertEqual(error["offset"], start + 392)
        self.assertFalse(self.path("back").exists())
        evil = bytearray(files[THIRD])
        at = st.parse(files[THIRD]).start("b") + 2 * 600
        evil[at:at + 2] = b"\xc0\x7f"
        self.model({**files, THIRD: bytes(evil)}, "nan")
        error = self.fails(BAD_INPUT, "quantize", self.path("nan"), self.path("q"), "--type", "pn4t",
                           names=("b", THIRD))
        self.assertTrue(mentions_element(error["message"], 600, 1, 88), error)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in", "nan", "out"])

    def test_inspect(self):
        self.model(st.sharded(shards()))
        document = self.done_json("inspect", self.path("in"))
        shown = {t["name"]: t for t in document["tensors"]}
        for name, tensors in zip((FIRST, SECOND, THIRD), shards()):
            parsed = st.parse((self.path("in") / name).read_bytes())
            for tensor in tensors:
                self.assertEqual(os.path.basename(shown[tensor.name]["file"]), name)
                self.assertEqual((shown[tensor.name]["offset"], shown[tensor.name]["bytes"]),
                                 (parsed.start(tensor.name), len(tensor.data)))
        self.assertEqual(len(shown), 7)

    def test_packed_model_is_refused(self):
        self.model(st.sharded(shards()))
        self.done("pack", self.path("in"), self.path("out"))
        self.refused(self.path("out"), verbs=("pack",), names=("p12.",), file="out/")


class Split(ModelTest):
    def judge(self, parts, keys=(), first="model-00001-of-%05d.gguf", stem="model", **layout):
        files = st.split_gguf(parts, keys, stem=stem, **layout)
        folder, out, back = self.model(files), self.path("out"), self.path("back")
        for source in (folder, folder / st.shard_name(stem, 1, len(parts), "gguf")):
            remove(out)
            remove(back)
            document = self.done_json("pack", source, out)
            wanted = models.packed_split(parts, keys, **layout)
            self.same_model(out, {name.replace("model", stem, 1): data for name, data in wanted.items()}, "packed")
            self.assertIs(document["restores_identical"], True)
            self.done("check", out)
            self.done("verify", out, folder)
            self.done("unpack", out, back)
            self.same_model(back, files, "restored")
        return document

    def test_a_usual_set(self):
        document = self.judge(gguf_shards(), KEYS)
        shown = {t["name"]: t for t in document["tensors"]}
        for i, tensors in enumerate(gguf_shards()):
            for tensor in tensors:
                self.assertEqual(os.path.basename(shown[tensor.name]["file"]), st.shard_name("model", i + 1, 3, "gguf"))
        self.assertEqual((document["totals"]["tensors"], document["totals"]["converted"]), (5, 2))
        first = gguf.parse(contents(self.path("out"))["model-00001-of-00003.gguf"])
        self.assertEqual(first.names(), ["general.architecture", "general.file_type", "split.no", "split.count",
                                         "split.tensors.count",
                                         "p12.version", "p12.type_id"])
        for name in sorted(os.listdir(self.path("out"))):
            self.assertIn("p12.version", gguf.parse((self.path("out") / name).read_bytes()).names())

    def test_layouts(self):
        for layout in (dict(final_padding=False), dict(final_padding=True)):
            self.judge(gguf_shards(), **layout)
        self.judge(gguf_shards(), KEYS + [gguf.Key("general.alignment", gguf.U32, 64)])
        self.judge(gguf_shards(), stem="a-00002-of-00009")
        self.judge([[gguf_tensor("t%d" % i, (256, 1), i)] for i in range(12)])

    def test_a_first_shard_without_tensors(self):
        # as llama-gguf-split writes with --no-tensor-first-split; its header may be padded or not
        for pad in (b"", b"\0"):
            files = st.split_gguf([[]] + gguf_shards(), KEYS, wrap=lambda tensors, own, i: (
                lambda blob: blob + pad * gguf.padding(len(blob), 32))(gguf.build(tensors, own)))
            self.model(files)
            remove(self.path("out"))
            remove(self.path("back"))
            self.done("pack", self.path("in") / "model-00001-of-00004.gguf", self.path("out"))
            first = gguf.parse(contents(self.path("out"))["model-00001-of-00004.gguf"])
            self.assertEqual((first.names()[-3:], first.tensors),
                             (["split.tensors.count", "p12.version", "p12.type_id"], []))
            self.done("check", self.path("out"))
            self.done("unpack", self.path("out"), self.path("back"))
            self.same_model(self.path("back"), files, "padded" if pad else "not padded")

    def test_keys_between(self):
        parts = gguf_shards()

        def wrap(tensors, own, i):
            return gguf.build(tensors, own + [gguf.Key("last", gguf.U8, i)], version=2 + i % 2)

        files = st.split_gguf(parts, KEYS, wrap=wrap)
        self.model(files)
        self.done("pack", self.path("in"), self.path("out"))
        self.done("unpack", self.path("out"), self.path("back"))
        self.same_model(self.path("back"), files)
        parsed = gguf.parse(contents(self.path("out"))["model-00002-of-00003.gguf"])
        self.assertEqual((parsed.version, parsed.names()[-3:]), (3, ["last", "p12.version", "p12.type_id"]))

    def test_nothing_fits_is_a_byte_copy(self):
        parts = [[gguf.Tensor("n", (5,), gguf.F32, b"n" * 20)], [gguf_tensor("odd", (255, 1), 4)]]
        files = st.split_gguf(parts, KEYS)
        self.model({**files, "config.json": b"{}"})
        self.done("pack", self.path("in"), self.path("out"))
        self.same_model(self.path("out"), files)

    def test_type_id(self):
        files = st.split_gguf(gguf_shards())
        self.model(files)
        self.done("pack", self.path("in"), self.path("out"), "--type-id", 200)
        self.same_model(self.path("out"), models.packed_split(gguf_shards(), type_id=200))
        self.done("unpack", self.path("out"), self.path("back"))
        self.same_model(self.path("back"), files)

    def test_quantize(self):
        parts = gguf_shards()
        self.model(st.split_gguf(parts, KEYS))
        self.done("quantize", self.path("in"), self.path("q"), "--type", "pn4t")
        self.same_model(self.path("q"), models.quantized_split(parts, oracle.PN4T, KEYS))
        self.done("verify", self.path("q"), self.path("in"))
        self.done("unpack", self.path("q"), self.path("u"), "--to", "bf16")
        wanted = [[t if expected.quantized_tensor(t, oracle.PN4T) is t else dataclasses.replace(
            t, data=expected.decoded_bytes(oracle.PN4T, expected.quantized_tensor(t, oracle.PN4T).data, "bf16"))
                   for t in part]
            for part in parts]
        self.same_model(self.path("u"), st.split_gguf(wanted, KEYS))

    def test_other_files_beside(self):
        files = st.split_gguf(gguf_shards(), KEYS)
        self.model({**files, "mmproj.gguf": gguf.build([gguf_tensor("v", (256, 1), 9)]), "config.json": b"{}",
                    "notes.txt": b"x"})
        self.done("pack", self.path("in"), self.path("out"))
        self.same_model(self.path("out"), models.packed_split(gguf_shards(), KEYS))

    def test_threads(self):
        self.model(st.split_gguf(gguf_shards(), KEYS))
        for threads in THREADS:
            self.done("pack", self.path("in"), self.path("o%d" % threads), "--threads", threads)
            self.same_model(self.path("o%d" % threads), models.packed_split(gguf_shards(), KEYS),
                            "%d threads" % threads)

    def test_one_file_without_split_keys(self):
        # told by content, not by name
        blob = gguf.build(gguf_shards()[0])
        source = self.write("x-00002-of-00003.gguf", blob)
        self.done("pack", source, self.path("out"))
        self.same_bytes(self.path("out"), expected.packed_file(gguf_shards()[0]))


class Refused(ModelTest):
    def sharded(self, change=None, index=None, **more):
        """A sharded model with files replaced (None: removed) or another index."""
        files = st.sharded(shards())
        if index:
            files[INDEX] = index(files[INDEX].decode()).encode()
        files.update(change or {})
        return self.model({name: data for name, data in {**files, **more}.items() if data is not None})

    def test_the_untouched_model_is_accepted(self):
        self.done("inspect", self.sharded())
        self.done("inspect", self.model(st.split_gguf(gguf_shards(), KEYS)))

    def test_folders(self):
        self.path("empty").mkdir()
        self.refused(self.path("empty"), names=("empty",))
        one = self.model({"model.safetensors": st.build([f32("a", (2,))]), "config.json": b"{}"}, "one")
        self.refused(one, names=("one",))
        self.refused(self.model({"model.gguf": gguf.build(gguf_shards()[0])}, "gguf"), names=("gguf",))
        files = st.sharded(shards())
        self.refused(self.model({**files, "other.safetensors.index.json": files[INDEX]}, "two"), names=("two",))
        split = st.split_gguf(gguf_shards())
        self.refused(self.model({**split, **st.split_gguf(gguf_shards(), stem="other")}, "sets"), names=("sets",))

    def test_names_that_leave_the_folder(self):
        outside = self.write("outside.safetensors", st.build([f32("n.2", (3,)), bf16("odd", (3, 10), 7)]))
        self.path("in").mkdir()
        for name in ("../outside.safetensors", str(outside), "../in/" + SECOND, "./../outside.safetensors",
                     "sub/../../outside.safetensors",
                     "..", ".", "", "/", "/etc/passwd", SECOND + "/", SECOND + "\\u0000", "../" * 50 + "etc/passwd"):
            with self.subTest(name):
                self.refused(self.sharded(index=lambda text, name=name: text.replace(SECOND, name)), file="in")
        self.assertTrue(outside.exists())

    def test_missing_files(self):
        for name in (FIRST, SECOND, THIRD):
            for source in (self.sharded({name: None}), self.sharded({name: None}) / INDEX):
                self.refused(source, names=(name,), verbs=("pack", "inspect", "check", "quantize", "unpack"))
        self.refused(self.sharded({INDEX: None}), names=("in",))

    def test_shards_that_are_no_files(self):
        folder = self.sharded({SECOND: None})
        (folder / SECOND).mkdir()
        self.refused(folder, names=(SECOND,))
        (folder / SECOND).rmdir()
        (folder / SECOND).symlink_to("nowhere")
        result = run("inspect", folder)
        self.assertEqual(result.code, BAD_INPUT, str(result))
        self.assertIn(SECOND, result.text)
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to("/dev/zero")
        self.assertEqual(run("inspect", folder, timeout=10).code, BAD_INPUT)
        (folder / SECOND).unlink()
        os.mkfifo(folder / SECOND)
        self.assertEqual(run("inspect", folder, timeout=10).code, BAD_INPUT)

    def test_shards_of_another_kind(self):
        for blob in (b"", b"{}", gguf.build(gguf_shards()[1]), st.build(shards()[1])[:-1],
                     st.build(shards()[1]) + b"x"):
            self.refused(self.sharded({SECOND: blob}), file=SECOND)

    def test_tensors_in_the_wrong_place(self):
        self.refused(self.sharded(index=lambda text: text.replace('"n.2": "%s"' % SECOND, '"n.2": "%s"' % FIRST)),
                     names=("n.2",))
        self.refused(self.sharded(index=lambda text: text.replace('"n.2"', '"gone"')), names=(("gone", "n.2"),))
        self.refused(self.sharded(index=lambda text: text.replace('"weight_map": {',
                                                                  '"weight_map": {"gone": "%s",' % FIRST)),
                     names=("gone",))
        # the same tensor in two files
        twice = shards()
        twice[2].append(f32("n.1", (5,)))
        for place in (FIRST, THIRD):
            files = st.sharded(twice)
            files[INDEX] = files[INDEX].replace(b'"n.1": "%s"' % THIRD.encode(), b'"n.1": "%s"' % place.encode())
            self.refused(self.model(files), names=("n.1",))

    def test_an_index_that_is_none(self):
        for text in ("", "x", "[]", "{}", "null", '"x"', "{", '{"weight_map": {}} x', '{"weight_map": []}',
                     '{"weight_map": null}', '{"weight_map": {}}',
                     '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null}}', '{"weight_map": {"a": ["%s"]}}' % FIRST,
                     '{"metadata": {"total_size": 1}}',
                     '{"weight_map": {"a": "%s"}, "weight_map": {}}' % FIRST, "[" * 100000, '{"a":' * 100000,
                     '{"weight_map": {"a": "%s",}}' % FIRST, "\ufeff{}"):
            with self.subTest(text[:60]):
                self.refused(self.sharded(index=lambda _, text=text: text), file="in")
        self.refused(self.sharded({INDEX: b'{"weight_map": {"\xff": "%s"}}' % FIRST.encode()}), file="in")

    def split(self, *changes, keys=(), **layout):
        """A split set with files replaced; None removes one."""
        files = st.split_gguf(gguf_shards(), keys, **layout)
        for name, data in changes:
            files[name] = data
        return self.model({name: data for name, data in files.items() if data is not None})

    def test_split_sets(self):
        one, two, three = (st.shard_name("model", i, 3, "gguf") for i in (1, 2, 3))
        parts = gguf_shards()

        def shard(i, number=None, count=3, total=5, tensors=None, keys=None):
            own = st.split_keys(i if number is None else number, count, total) if keys is None else keys
            return gguf.build(parts[i] if tensors is None else tensors, own)

        folder = self.split()
        self.refused(folder / two, names=(two,), verbs=("pack", "inspect", "check"))
        self.refused(folder / three, names=(three,))
        for missing in (two, three):
            folder = self.split((missing, None))
            self.refused(folder / one, names=(missing,))
            self.refused(folder)
        self.refused(self.split((one, None)))
        for label, name, blob in (("count 2 in the second", two, shard(1, count=2)),
                                  ("count 4 in the third", three, shard(2, count=4)),
                                  ("count 65535 in the first", one, shard(0, count=65535)),
                                  ("number 0 twice", two, shard(1, number=0)),
                                  ("number 2 twice", two, shard(1, number=2)),
                                  ("number past the count", three, shard(2, number=3)),
                                  ("no keys", two, shard(1, keys=[])),
                                  ("the first has number 1", one, shard(0, number=1)),
                                  ("cut", three, shard(2)[:-600]), ("no GGUF", two, b"GGUX" + shard(1)[4:]),
                                  ("empty", two, b""),
                                  ("safetensors", two, st.build([f32("n.2", (3,))]))):
            with self.subTest(label):
                folder = self.split((name, blob))
                self.refused(folder / one)
                self.refused(folder)
        folder = self.model(st.split_gguf([parts[0], parts[1],
                                           parts[2] + [gguf.Tensor("n.1", (5,), gguf.F32, b"n" * 20)]]))
        self.refused(folder / one, names=("n.1",))
        for label, keys in (("number is a string",
                             [gguf.Key("split.no", gguf.STRING, "1")] + st.split_keys(1, 3, 5)[1:]),
                            ("count is a list",
                             [st.split_keys(1, 3, 5)[0], gguf.Key("split.count", gguf.ARRAY, (gguf.U16, [3]))])):
            with self.subTest(label):
                self.refused(self.split((two, shard(1, keys=keys))) / one, names=("split.",))
        for total in (4, 6, -1):
            files = st.split_gguf(parts, wrap=lambda tensors, _, i,
                                  total=total: gguf.build(tensors, st.split_keys(i, 3, total)))
            self.refused(self.model(files), names=("split.tensors.count",))
        # the first shard under another name says that it is one of three
        alone = self.write("alone.gguf", shard(0))
        self.refused(alone, names=("alone.gguf",))

    def test_verify_and_second_model(self):
        good = self.sharded()
        bad = self.model({name: data for name, data in st.sharded(shards()).items() if name != SECOND}, "bad")
        self.fails(BAD_INPUT, "verify", bad, good, names=(SECOND,))
        self.fails(BAD_INPUT, "verify", good, bad, names=(SECOND,))
        self.says_no("verify", good, self.model(st.sharded(shards()[:2]), "less"))


class Outputs(ModelTest):
    WRITERS = {"pack": (), "unpack": (), "quantize": ("--type", "pn4t")}

    def setUp(self):
        super().setUp()
        self.files = st.sharded(shards())
        self.source = self.model(self.files)
        self.split_files = st.split_gguf(gguf_shards(), KEYS)
        self.split = self.model(self.split_files, "split")

    def refused(self, source, out, *words, code=OUTPUT, names=()):
        before = contents(self.folder)
        for verb, options in self.WRITERS.items():
            self.fails(code, verb, source, out, *options, *words, names=names)
        self.assertEqual(contents(self.folder), before)

    def test_output_is_input(self):
        self.path("link").symlink_to(self.source)
        self.path("sub").mkdir()
        for source in (self.source, self.source / INDEX):
            for out in (self.source, "in", "./in", "in/", "link", "sub/../in", str(self.source) + "/."):
                for force in ((), ("--force",)):
                    with self.subTest(source=source, out=out, force=force):
                        before = contents(self.folder)
                        for verb, options in self.WRITERS.items():
                            self.fails(USAGE, verb, source, out, *options, *force, cwd=self.folder)
                        self.assertEqual(contents(self.folder), before)
        self.assertTrue(self.path("link").is_symlink())
        for source in (self.split, self.split / "model-00001-of-00003.gguf"):
            self.fails(USAGE, "pack", source, self.split, "--force")
        self.assertEqual(contents(self.split), self.split_files)

    def test_a_file_of_the_input_is_no_output(self):
        for out in (self.source / FIRST, self.source / INDEX):
            for force in ((), ("--force",)):
                result = run("pack", self.source, out, *force)
                self.assertIn(result.code, (USAGE, OUTPUT), str(result))
        self.same_model(self.source, self.files)

    def test_an_existing_folder_is_kept(self):
        self.path("out").mkdir()
        self.refused(self.source, self.path("out"), names=("out",))
        self.assertTrue(self.path("out").is_dir())
        self.model({"precious": b"1"}, "full")
        self.refused(self.source, self.path("full"), names=("full",))
        self.write("file", b"precious")
        self.refused(self.source, self.path("file"), names=("file",))

    def test_force_replaces_models_only(self):
        wanted = None
        for label, old in (("empty", {}), ("the same model", self.files),
                           ("another model", st.sharded(shards()[:2], stem="other")),
                           ("a split set", self.split_files)):
            with self.subTest(label):
                out = self.model(old, "out")
                self.done("pack", self.source, out, "--force")
                if wanted is None:
                    wanted = contents(out)
                self.same_model(out, wanted, label)
                self.assertEqual(sorted(os.listdir(self.folder)), ["in", "out", "split"])
        for name in ("config.json", "precious", ".hidden", "model.gguf.bak", "README.md",
                     "model.safetensors.index.json~"):
            with self.subTest(name):
                self.model({**self.files, name: b"precious"}, "out")
                self.refused(self.source, self.path("out"), "--force", names=("out",))
        self.model(self.files, "out")
        (self.path("out") / "sub").mkdir()
        self.refused(self.source, self.path("out"), "--force", names=("out",))
        self.assertTrue((self.path("out") / "sub").is_dir())

    def test_one_file_never_replaces_a_folder(self):
        source = self.write("in.safetensors", st.build(shards()[0]))
        self.model(self.files, "out")
        for force in ((), ("--force",)):
            self.fails(OUTPUT, "pack", source, self.path("out"), *force)
        self.same_model(self.path("out"), self.files)

    def test_an_output_that_is_no_folder(self):
        os.mkfifo(self.path("fifo"))
        self.path("link").symlink_to("/dev/null")
        for out in (self.path("fifo"), self.path("link"), "/dev/full", "/dev/null"):
            for force in ((), ("--force",)):
                self.fails(OUTPUT, "pack", self.source, out, *force, timeout=10)
        self.fails(OUTPUT, "pack", self.source, self.path("missing") / "out")
        self.fails(OUTPUT, "pack", self.source, self.path("in") / FIRST / "out")
        self.assertFalse(self.path("missing").exists())

    def test_hard_links_to_the_input(self):
        # a copy of the input made of links: replacing it leaves the input alone
        out = self.path("out")
        out.mkdir()
        for name in self.files:
            os.link(self.source / name, out / name)
        result = run("pack", self.source, out, "--force")
        self.assertIn(result.code, (DONE, USAGE, OUTPUT), str(result))
        self.same_model(self.source, self.files)

    def test_the_longest_name_and_a_trailing_slash(self):
        self.done("pack", self.source, self.path("n" * 255))
        self.done("pack", self.source, str(self.path("slash")) + "/")
        self.same_model(self.path("slash"), contents(self.path("n" * 255)))
        self.fails(OUTPUT, "pack", self.source, self.path("n" * 256))

    def test_dry_run(self):
        packed = self.path("packed")
        self.done("pack", self.source, packed)
        for verb, source, options in (("pack", self.source, ()), ("unpack", packed, ()),
                                      ("quantize", self.source, ("--type", "pn4t")),
                                      ("pack", self.split, ())):
            before = contents(self.folder)
            dry = self.done_json(verb, source, self.path("out"), *options, "--dry-run")
            self.done_json(verb, source, *options, "--dry-run")
            self.assertEqual(contents(self.folder), before)
            wet = self.done_json(verb, source, self.path("out"), *options)
            for tensor in wet["tensors"]:
                tensor.pop("nrmse", None)  # a dry run may leave out the search for scales
            for tensor in dry["tensors"]:
                tensor.pop("nrmse", None)
            self.assertEqual((dry["totals"], dry["tensors"]), (wet["totals"], wet["tensors"]))
            shutil.rmtree(self.path("out"))

    def test_strict_answers_no(self):
        self.says_no("pack", self.source, self.path("out"), "--strict")
        kept = self.model(self.files, "kept")
        self.expect(NO, "pack", self.source, kept, "--strict", "--force")
        self.same_model(kept, self.files)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in", "kept", "split"])

    def test_permissions(self):
        self.done("pack", self.source, self.path("out"))
        (self.path("by-hand")).mkdir()
        self.assertEqual(self.path("out").stat().st_mode, self.path("by-hand").stat().st_mode)
        by_hand = self.write("file", b"")
        for name in os.listdir(self.path("out")):
            self.assertEqual((self.path("out") / name).stat().st_mode, by_hand.stat().st_mode)

    def test_runs_at_the_same_time(self):
        self.done("pack", self.source, self.path("wanted"))
        codes = each(lambda _: run("pack", self.source, self.path("out"), "--force").code, range(4))
        self.assertLessEqual(set(codes), {DONE, OUTPUT}, codes)
        self.assertIn(DONE, codes)
        self.same_model(self.path("out"), contents(self.path("wanted")))
        self.assertEqual(sorted(os.listdir(self.folder)), ["in", "out", "split", "wanted"])

    def test_stdout_full(self):
        with open("/dev/full", "wb") as full:
            for json_ in ((), ("--json",)):
                self.expect(OUTPUT, "pack", self.source, self.path("out"), "--force", *json_, stdout=full)


class Interrupted(ModelTest):
    def large(self, rows=1 << 20):
        """Two shards of BF16 zeros that take no room, 512 bytes a row each; and a small one first."""
        folder = self.model({})
        parts = [[bf16("small", (1, 256))], [Tensor("w1", "BF16", (rows, 256))], [Tensor("w2", "BF16", (rows, 256))]]
        for i, tensors in enumerate(parts):
            size = rows * 512 if i else 512
            tensors[0].offsets = (0, size)
            head = st.build(tensors, data=b"")
            path = folder / st.shard_name("model", i + 1, 3, "safetensors")
            path.write_bytes(head + tensors[0].data)
            os.truncate(path, len(head) + size)
        weight_map = {tensors[0].name: st.shard_name("model", i + 1, 3, "safetensors") for i,
                      tensors in enumerate(parts)}
        (folder / INDEX).write_text(st.index(weight_map, 2 * rows * 512 + 512))
        return folder

    def started(self, source, out, *options):
        """`pack` at work: it has begun to write. Signals are as a shell would leave them."""
        ordinary = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
        known = set(os.listdir(out.parent))
        process = subprocess.Popen([PNPACK, "pack", source, out, "--threads", "1", *options], env=ENVIRONMENT,
                                   stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in ordinary])
        deadline = time.monotonic() + 30
        while set(os.listdir(out.parent)) == known:
            self.assertIsNone(process.poll(), "ended before it wrote anything")
            self.assertLess(time.monotonic(), deadline, "nothing temporary beside the target")
            time.sleep(0.0005)
        return process

    def test_kill_9_in_mid_write(self):
        source = self.large()
        files = st.sharded(shards())
        small = self.model(files, "small")
        for delay in (0, 0.002, 0.05):
            folder = self.path("out")
            folder.mkdir()
            process = self.started(source, folder / "model")
            time.sleep(delay)
            process.kill()
            process.communicate()
            self.assertEqual(process.returncode, -signal.SIGKILL, "too fast to be killed: enlarge the files")
            self.assertFalse((folder / "model").exists(), "something under the final name: %s" % os.listdir(folder))
            # what the killed run left does not stop the next one
            self.done("pack", small, folder / "model")
            self.done("unpack", folder / "model", folder / "back")
            self.same_model(folder / "back", files)
            shutil.rmtree(folder)

    def test_a_gentle_signal_leaves_nothing(self):
        source, folder = self.large(), self.path("out")
        folder.mkdir()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU):
            for delay in (0, 0.1):
                process = self.started(source, folder / "model")
                time.sleep(delay)
                process.send_signal(number)
                process.communicate()
                self.assertEqual(process.returncode, -number)
                self.assertEqual(os.listdir(folder), [])

    def test_an_existing_model_survives(self):
        source, folder, files = self.large(), self.path("out"), st.sharded(shards())
        for number in (signal.SIGKILL, signal.SIGTERM):
            st.write_model(folder, {})
            st.write_model(folder / "model", files)
            process = self.started(source, folder / "model", "--force")
            time.sleep(0.05)
            process.send_signal(number)
            process.communicate()
            self.assertEqual(process.returncode, -number)
            self.same_model(folder / "model", files)
            shutil.rmtree(folder)

    def test_an_output_that_appears_meanwhile_stays(self):
        source, folder = self.large(1 << 17), self.path("out")
        folder.mkdir()
        process = self.started(source, folder / "model")
        process.send_signal(signal.SIGSTOP)
        self.assertFalse((folder / "model").exists(), "too fast to be stopped: enlarge the files")
        st.write_model(folder / "model", {"precious": b"1"})
        process.send_signal(signal.SIGCONT)
        process.communicate()
        self.assertEqual(process.returncode, OUTPUT)
        self.assertEqual(contents(folder), {"model/precious": b"1"})

    def test_an_input_that_changes_is_refused(self):
        folder = self.path("out")
        folder.mkdir()
        second, third = (st.shard_name("model", i, 3, "safetensors") for i in (2, 3))
        for name, change in ((second, os.utime), (second, lambda path: os.truncate(path, 4096)),
                             (third, lambda path: os.truncate(path, 4096))):
            source = self.large()
            process = self.started(source, folder / "model", "--json")
            change(source / name)
            out, _ = process.communicate()
            self.assertEqual(process.returncode, BAD_INPUT)
            self.assertIs(json.loads(out)["ok"], False)
            self.assertEqual(os.listdir(folder), [])

    def test_disk_full(self):
        disk = self.path("disk")
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk],
                                               stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no mount here: test_a_file_size_limit stands for a full disk")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        source = self.large(1 << 12)
        self.fails(OUTPUT, "pack", source, disk / "model", names=("model",))
        self.assertEqual(os.listdir(disk), [])
        files = st.sharded(shards())
        st.write_model(disk / "kept", files)
        self.fails(OUTPUT, "pack", source, disk / "kept", "--force")
        self.same_model(disk / "kept", files)
        self.assertEqual(os.listdir(disk), ["kept"])

    def test_a_file_size_limit(self):
        def limited():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        source = self.model(st.sharded(shards()))
        split = self.model(st.split_gguf(gguf_shards(), KEYS), "split")
        for limit in (0, 1, 100, 500, 1000):
            before = contents(self.folder)
            for model in (source, split):
                self.fails(OUTPUT, "pack", model, self.path("limited"), preexec_fn=limited)
                self.assertEqual(contents(self.folder), before)

    def test_an_unwritable_folder(self):
        source, folder = self.model(st.sharded(shards())), self.path("readonly")
        folder.mkdir()
        if os.geteuid() != 0:
            folder.chmod(0o555)
            self.addCleanup(folder.chmod, 0o755)
        elif subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", folder],
                            stderr=subprocess.DEVNULL).returncode == 0:
            self.addCleanup(subprocess.run, ["umount", folder], check=True)
        else:
            self.skipTest("root here may not mount")
        self.fails(OUTPUT, "pack", source, folder / "model")
        self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    main()
