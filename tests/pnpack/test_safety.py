"""What must never happen to a user's files and weights, whatever is asked: found by reviews, kept as tests.

Proves that no other kind of file hides that a tensor is packed, that an output never takes the place of an input also
through links, that a replaced folder keeps its permissions, that rotations and importances are part of what diff
compares, and that texts of ours inside a file are checked before they are written anywhere.
"""

import json
import os
import resource
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import ARRAY, PN3T, STRING, U32, Key  # noqa: E402
from safetensors_testing import SafetensorsTest, bf16, f32  # noqa: E402
from tool import BAD_INPUT, DONE, OUTPUT, USAGE, contents, main, run  # noqa: E402

INDEX = "model.safetensors.index.json"


def gguf_bf16(name, dims, seed=1):
    return gguf.Tensor(name, dims, gguf.BF16, oracle.gaussian_bf16(dims[0] * dims[1], seed))


class NothingIsHidden(SafetensorsTest):
    def test_pn_without_keys_does_not_become_anonymous_bytes(self):
        pn = gguf.Tensor("old.weight", (80, 2), PN3T, oracle.pn_quantize(oracle.PN3T, oracle.gaussian(160, 4)))
        for tensors in ([gguf_bf16("a.weight", (256, 2)), pn], [pn]):
            source = self.write("old.gguf", gguf.build(tensors))
            self.rejected(source, "pack", "--format", "safetensors", names=("old.weight",))

    def test_p12_that_is_kept_stays_p12_in_the_other_kind(self):
        rules = self.write("rules.txt", b"* keep\n")
        source = self.write("in.gguf", gguf.build([gguf_bf16("a.weight", (256, 2))]))
        packed, other, again, back = (self.path(name) for name in ("p.gguf", "p.st", "p2.gguf", "back.st"))
        self.done("pack", source, packed)
        self.done("quantize", packed, other, "--mix", rules, "--format", "safetensors")
        self.assertEqual(json.loads(st.parse(other.read_bytes()).value("p12.tensors")), ["a.weight"])
        self.done("verify", other, source)
        self.done("quantize", other, again, "--mix", rules, "--format", "gguf")
        self.done("verify", again, source)
        self.done("check", again)
        self.done("unpack", other, back)
        self.assertEqual(st.parse(back.read_bytes()).tensor("a.weight").data, gguf_bf16("a.weight", (256, 2)).data)

    def test_split_keys_are_not_made_from_metadata(self):
        source = self.write("in.st", st.build([bf16("a.weight", (1, 256))], {"split.count": "2"}))
        self.rejected(source, "pack", "--format", "gguf", names=("split.count",))

    def test_donors_for_all_that_was_packed(self):
        source = self.write("in.st", st.build([bf16("a.weight", (1, 256)), f32("n", (3,))]))
        donor = self.write("donor.gguf", gguf.build([gguf.Tensor("a.weight", (256, 1), gguf.F32, bytes(1024))]))
        rules = self.write("rules.txt", b"a.* donor\n")
        packed, out = self.path("packed"), self.path("out")
        self.done("pack", source, packed)
        self.done("quantize", packed, out, "--mix", rules, "--donor", donor)
        self.assertEqual(st.parse(out.read_bytes()).tensor("a.weight").data, bytes(1024))
        self.done("check", out)


class InputsSurvive(SafetensorsTest):
    def sharded(self, name="real"):
        files = st.sharded([[bf16("a.weight", (4, 256))], [bf16("b.weight", (4, 256), 2), f32("n", (3,))]])
        return st.write_model(self.path(name), files), files

    def test_links_to_shards(self):
        real, files = self.sharded()
        link = self.path("link")
        link.mkdir()
        for name in files:
            (link / name).symlink_to(real / name)
        for out in (real, self.path("real/../real")):
            self.fails(USAGE, "pack", link, out, "--force", names=("output",))
        self.assertEqual(contents(real), files)

    def test_a_donor_in_the_folder_that_is_replaced(self):
        real, files = self.sharded()
        out = self.path("out")
        split = st.split_gguf([[gguf_bf16("a.weight", (256, 4))], [gguf_bf16("b.weight", (256, 4))]])
        st.write_model(out, split)
        rules = self.write("rules.txt", b"a.* donor\n* pn4t\n")
        self.fails(USAGE, "quantize", real, out, "--force", "--mix", rules, "--donor", out)
        self.assertEqual(contents(out), split)

    def test_a_folder_beside_the_shards_is_no_input(self):
        real, _ = self.sharded()
        for force in ((), ("--force",)):
            self.done("pack", real, real / "packed", *force)

    def test_permissions_of_a_replaced_folder(self):
        real, _ = self.sharded()
        out = self.path("out")
        self.done("pack", real, out)
        out.chmod(0o700)
        self.done("pack", real, out, "--force")
        self.assertEqual(stat.S_IMODE(out.stat().st_mode), 0o700)

    def test_other_files_in_the_folder_that_would_be_replaced(self):
        real, _ = self.sharded()
        out = self.path("out")
        self.done("pack", real, out)
        (out / "notes.txt").write_text("mine")
        before = contents(out)
        self.fails(OUTPUT, "pack", real, out, "--force")
        self.assertEqual(contents(out), before)

    def test_more_shards_than_open_files(self):
        count = 150
        folder, files = self.path("many"), {}
        shards = [[bf16("w%d.weight" % i, (1, 256), i)] for i in range(count)]
        files = st.sharded(shards)
        st.write_model(folder, files)
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
        for words in (("pack", folder, self.path("p")), ("verify", self.path("p"), folder),
                      ("unpack", self.path("p"), self.path("u")), ("diff", self.path("u"), folder)):
            result = run(*words, "--quiet", preexec_fn=limit)
            self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(contents(self.path("u")), files)


class MeaningsDiffer(SafetensorsTest):
    def test_rotation(self):
        data = oracle.pn_quantize(oracle.PN4T, oracle.gaussian(256, 4))
        tensor = gguf.Tensor("w.weight", (256, 1), gguf.PN4T, data)

        def keys(block):
            return [Key("pn.version", U32, 0), Key("pn.search", STRING, "reference"),
                    Key("pn.hadamard.block_size", U32, block), Key("pn.hadamard.exclude", ARRAY, (STRING, []))]
        plain = self.write("plain.gguf", gguf.build([tensor], keys(0)))
        rotated = self.write("rotated.gguf", gguf.build([tensor], keys(64)))
        self.done("diff", plain, self.write("same.gguf", gguf.build([tensor], keys(0)[:2])))
        document = self.says_no("diff", plain, rotated)
        self.assertIn("rotated", document["tensors"][0]["reason"])

    def test_search(self):
        tensor = gguf.Tensor("w.weight", (64, 1), gguf.PN4T, bytes(34))
        paths = [self.write(search + ".gguf", gguf.build([tensor], [Key("pn.version", U32, 0), Key("pn.search", STRING, search)]))
                 for search in ("reference", "weighted")]
        self.assertIn("pn.search", self.says_no("diff", *paths)["warnings"][0])


class TextsAreChecked(SafetensorsTest):
    def packed_entries(self, **changes):
        source = self.write("in.st", st.build([bf16("a.weight", (1, 256))], {"format": "pt"}))
        packed = self.path("packed.st")
        self.done("pack", source, packed, "--force")
        file = st.parse(packed.read_bytes())
        header = json.loads(file.header)
        header["__metadata__"].update(changes)
        return self.write("changed.st", st.build(file.tensors, header=json.dumps(header)))

    def test_total_size_is_a_number(self):
        for text in ('7}, "evil": {"x": "y"', "", "1 2", "0x10", "1e400", "NaN", "-"):
            self.rejected(self.packed_entries(**{"p12.total_size": text}), "unpack", names=("p12.total_size",))

    def test_the_original_header_begins_as_one(self):
        header = st.parse(self.write("x.st", st.build([bf16("a.weight", (1, 256))], {"format": "pt"})).read_bytes()).header
        text = header.decode() if isinstance(header, bytes) else header
        for start in (" ", "\n", "\ufeff"):
            changed = self.packed_entries(**{"p12.header": start + text})
            self.rejected(changed, "unpack", names=("p12.header",))
            self.fails(BAD_INPUT, "check", changed, names=("p12.header",))


if __name__ == "__main__":
    main()
