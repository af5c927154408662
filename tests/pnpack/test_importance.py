"""quantize --imatrix: importances of llama.cpp decide which scale errs least, and by how much is told.

Proves blocks of the weighted search against the tests' own (include/pn/FORMAT.md, "Weighted search"), from the GGUF form
and the older form, with experts, columns and whole blocks without importance; the errors that are reported; pn.search;
what verify needs to say yes; and that bad importances are refused.
"""

import itertools
import math
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import gguf_files as gguf  # noqa: E402
import gguf_testing as testing  # noqa: E402
import imatrix_files as imatrix  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import Key, Tensor  # noqa: E402
from gguf_testing import P12_KEYS, bf16, f16, f32, p12  # noqa: E402
from imatrix_files import Entry  # noqa: E402
from tool import BAD_INPUT, USAGE, ToolTest, contents, main  # noqa: E402


def sums(count, seed=1):
    """Sums of squares as they are met: a few columns matter a thousand times more than others."""
    return [abs(x) ** 4 * 100 for x in oracle.gaussian(count, seed)]


def entry(tensor, seed=1, count=512, experts=1):
    """An entry for a tensor; experts: how many matrices it has, all with the same count."""
    k = tensor.dims[0]
    return Entry(tensor.name, k, sums(k * experts, seed), [count] * experts)


class ImportanceTest(ToolTest):
    def model(self, tensors, keys=(), name="in.gguf"):
        return self.write(name, gguf.build(tensors, keys))

    def imatrix(self, entries, name="imatrix", older=False, **how):
        return self.write(name, (imatrix.older_form if older else imatrix.gguf_form)(entries, **how))

    def weighted(self, tensors, entries, to, search="weighted"):
        """The tensors after a search: by importance where there is one."""
        by_name = {e.name: e for e in entries}
        after = []
        for tensor in tensors:
            fits = len(tensor.dims) >= 2 and tensor.dims[0] % testing.TARGETS[to][1] == 0 and tensor.elements
            if not fits or expected.weights_of(tensor) is None:
                after.append(tensor)
                continue
            found = by_name.get(tensor.name) if search == "weighted" else None
            after.append(testing.quantized(tensor, to, found and found.for_weights(tensor.elements)))
        return after

    def near(self, value, wanted, what):
        self.assertLessEqual(abs(value - wanted), 1e-12 * wanted, what)

    def tells_errors(self, document, tensors, after, entries):
        by_name = {e.name: e for e in entries}
        for shown, tensor, result in zip(document["tensors"], tensors, after):
            if result is tensor:
                self.assertFalse({"nrmse", "nrmse_weighted"} & shown.keys(), tensor.name)
                continue
            before, now = expected.weights_of(tensor), testing.decoded(result)
            self.near(shown["nrmse"], oracle.nrmse(before, now), tensor.name)
            if tensor.name in by_name:
                g = by_name[tensor.name].for_weights(tensor.elements)
                self.near(shown["nrmse_weighted"], oracle.nrmse(before, now, g), tensor.name)
                self.assertNotIn("reason", shown)
            else:
                self.assertNotIn("nrmse_weighted", shown)
                self.assertIn("no importances", shown["reason"])

    def searches(self, tensors, entries, to, keys=(), older=False, search=None, **how):
        """Everything that quantize --imatrix must do with these tensors. Returns the document."""
        source, out, given = self.model(tensors, keys), self.path("out.gguf"), self.imatrix(entries, older=older, **how)
        words = ["--imatrix", given] + (["--search", search] if search else [])
        document = self.done_json("quantize", source, out, "--type", to, "--force", *words)
        used = search or "weighted"
        after = self.weighted(tensors, entries, to, used)
        self.same_bytes(out, testing.rewritten(tensors, after, keys, used))
        self.tells_errors(document, tensors, after, entries)
        self.assertNotIn("warnings", document)
        self.done("check", out)
        verified = self.done_json("verify", out, source, "--imatrix", given)
        for shown, said in zip(verified["tensors"], document["tensors"]):
            self.assertIs(shown["equal"], True)
            for key in ("nrmse", "nrmse_weighted"):
                self.assertEqual(shown.get(key), said.get(key))
        return document

    def differs_from_the_reference(self, tensors, entries, to):
        after, plain = self.weighted(tensors, entries, to), self.weighted(tensors, [], to)
        return [a.data != b.data for a, b in zip(after, plain)]


class Search(ImportanceTest):
    def test_every_source_type_and_both_forms(self):
        for to, k in (("pn3t", 320), ("pn4t", 320)):
            tensors = [f32("f32", (k, 3), 1), f16("f16", (k, 2), 2), bf16("bf16", (k, 1, 2), 3), p12("p12", (1280, 1), 4),
                       f32("norm", (k,), 5), f32("odd", (k + 1, 2), 6), Tensor("q8", (32, 2), gguf.Q8_0, b"q" * 68),
                       bf16("none", (k, 2), 7)]
            # a 3-D tensor has as many matrices as it says, and the older form one count for all
            entries = [entry(t, i, experts=2 if t.name == "bf16" else 1) for i, t in enumerate(tensors[:5])]
            self.assertTrue(all(self.differs_from_the_reference(tensors[:4], entries, to)), "these importances prove nothing")
            self.searches(tensors, entries, to, P12_KEYS)
            for e in entries:
                e.counts = e.counts[:1]
            self.searches(tensors, entries, to, P12_KEYS, older=True)
            names = gguf.parse(self.path("out.gguf").read_bytes())
            self.assertEqual(names.key("pn.search"), (gguf.STRING, gguf.string("weighted")))

    def test_forms_of_other_ages(self):
        tensors = [bf16("w", (320, 2), 1)]
        entries = [entry(tensors[0])]
        self.searches(tensors, entries, "pn4t", squares=False)
        blocks = self.path("out.gguf").read_bytes()
        for how in (dict(), dict(data_set=None), dict(chunks=None, data_set=None)):
            self.searches(tensors, entries, "pn4t", older=True, **how)
            self.same_bytes(self.path("out.gguf"), blocks)

    def test_the_counts_scale_the_importances(self):
        # the scale of g moves no choice except by rounding; a count of 3 gives quotients that are not exact
        tensors = [f32("w", (640, 3), 1)]
        for count, older in itertools.product((1, 3, 262144), (False, True)):
            self.searches(tensors, [entry(tensors[0], 2, count)], "pn3t", older=older)

    def test_columns_and_blocks_without_importance(self):
        for to, block in (("pn3t", 80), ("pn4t", 64)):
            tensors = [f32("w", (4 * block, 3), 1)]
            some = entry(tensors[0])
            some.sums[:block] = [0.0] * block  # searched without weights
            some.sums[block:2 * block - 1] = [0.0] * (block - 1)  # one column decides alone
            some.sums[2 * block + 7] = 0.0
            some.sums[3 * block] = -0.0
            self.searches(tensors, [some], to)
            plain = testing.quantized(tensors[0], to).data
            found = gguf.parse(self.path("out.gguf").read_bytes()).start("w")
            blob = self.path("out.gguf").read_bytes()[found:]
            self.assertEqual(blob[:34], plain[:34])
            self.assertNotEqual(blob[34:68], plain[34:68])

    def test_a_count_of_0_is_no_importance(self):
        for older in (False, True):
            tensors = [f32("w", (320, 2), 1), f32("v", (320, 1), 2)]
            nothing = entry(tensors[0], 1, 0)
            document = self.searches(tensors, [nothing, entry(tensors[1], 2)], "pn4t", older=older)
            self.assertEqual(document["tensors"][0]["nrmse_weighted"], 0)
            after = self.weighted(tensors, [], "pn4t")
            blob = gguf.parse(self.path("out.gguf").read_bytes())
            start = blob.start("w")
            self.same_bytes(self.path("out.gguf").read_bytes()[start:start + len(after[0].data)], after[0].data)

    def test_experts(self):
        tensors = [bf16("experts", (320, 2, 3), 1), f32("four", (64, 2, 2, 2), 2)]
        one = Entry("experts", 320, sums(3 * 320, 1), [100, 0, 7])  # nobody asked the second expert
        two = Entry("four", 64, sums(4 * 64, 2), [5, 6, 7, 8])
        self.searches(tensors, [one, two], "pn4t")
        # each matrix by its own columns
        blob, plain = gguf.parse(self.path("out.gguf").read_bytes()), testing.quantized(tensors[0], "pn4t").data
        start, size = blob.start("experts"), 2 * 5 * 34
        data = self.path("out.gguf").read_bytes()[start:start + 3 * size]
        self.assertEqual([data[i * size:][:size] == plain[i * size:][:size] for i in range(3)], [False, True, False])
        # the older form has one count for all
        self.searches(tensors, [Entry("experts", 320, one.sums, [9]), Entry("four", 64, two.sums, [9])], "pn4t", older=True)

    def test_ties_go_to_the_larger_scale(self):
        # only columns count whose weight is hit exactly by many scales: all errors are 0
        weights = [0.0] * 64
        weights[0], weights[1] = -8.0, 0.5
        for column in (2, 63):
            only = Entry("w", 64, [0.0] * 64, [1])
            only.sums[column] = 1.0
            self.searches([f32("w", (64, 2), weights=weights * 2)], [only], "pn4t")
            only.sums[column], only.sums[0] = 0.0, 1e-30
            self.searches([f32("w", (64, 2), weights=weights * 2)], [only], "pn4t")

    def test_the_order_of_roundings(self):
        """Two scales, 1 and 0.5, that err the same but for the last bits: which one wins depends on how g*(r*r) is rounded,
        on the order of the sum, and on that no product is fused into it."""
        rng = random.Random(1)
        k, weights, g = 64 * 64, [], []
        for _ in range(k // 64):
            p, c = rng.randrange(1, 2**20) / 2**21, rng.randrange(1, 2**18) / 2**20
            # 8.0 makes the scales -m, 3.0 leaves only the two; then residuals p, c, q of one and q, c, p of the other
            weights += [8.0, 3.0, p, c, -4.0 + (0.5 - p)] + [0.0] * 59
            g += [0.0, 1e30] + [rng.random()] * 3 + [1.0] * 59
        only = Entry("w", k, g, [3])
        tensor = f32("w", (k, 1), weights=weights)
        blocks = testing.quantized(tensor, "pn4t", only.for_weights(k)).data
        scales = {blocks[at:at + 2] for at in range(0, len(blocks), 34)}
        self.assertEqual(scales, {struct.pack("<H", oracle.fp16_bits(s)) for s in (-1.0, -0.5)})
        self.searches([tensor], [only], "pn4t")

    def test_importances_of_every_size(self):
        weights = oracle.gaussian(640, 3)
        for low, high in ((1e-45, 1e-38), (1e-20, 1e20), (1e30, 3e38)):
            span = math.log(high / low)
            values = [oracle.f32(low * math.exp(span * (i * 37 % 100) / 100)) for i in range(320)]
            self.searches([f32("w", (320, 2), weights=weights)], [Entry("w", 320, values, [1])], "pn3t")
            self.searches([f32("w", (320, 2), weights=weights)], [Entry("w", 320, values, [0.37])], "pn4t")

    def test_a_zero_block(self):
        weights = [0.0, -0.0] * 32 + oracle.gaussian(64, 1)
        tensor = f32("w", (128, 1), weights=weights)
        self.searches([tensor], [entry(tensor)], "pn4t")
        zeros = f32("w", (128, 1), weights=[0.0] * 128)
        document = self.searches([zeros], [entry(zeros)], "pn4t")
        self.assertEqual((document["tensors"][0]["nrmse"], document["tensors"][0]["nrmse_weighted"]), (0, 0))

    def test_entries_that_no_tensor_has(self):
        tensor = f32("w", (64, 2))
        self.searches([tensor], [Entry("other", 100, sums(100), [1]), entry(tensor), Entry("", 1, [1.0], [1])], "pn4t")

    def test_the_number_of_threads_changes_nothing(self):
        part = bf16("w", (320, 20), 1)
        tensor = Tensor("w", (320, 20 * 64, 2), part.type, part.data * 128)
        given = self.imatrix([Entry("w", 320, sums(640, 1), [3, 4])])
        source = self.model([tensor])
        documents = []
        for threads in (1, 2, 7, 64):
            out = self.path("out-%d" % threads)
            documents.append(self.done_json("quantize", source, out, "--type", "pn4t", "--imatrix", given, "--threads", threads))
            documents[-1].pop("output")
            self.same_bytes(out, self.path("out-1").read_bytes())
            self.assertEqual(documents[-1], documents[0])
            self.done("verify", out, source, "--imatrix", given, "--threads", threads)

    def test_a_mix(self):
        tensors = [bf16("a", (320, 2), 1), bf16("b", (320, 2), 2), bf16("c", (320, 2), 3), bf16("d", (320, 2), 4)]
        entries = [entry(t, i) for i, t in enumerate(tensors[:3])]
        source, given = self.model(tensors), self.imatrix(entries)
        words = ("--mix", self.write("rules.txt", b"a pn3t\nb q8_0\nc keep\nd pn4t"), "--imatrix", given)
        document = self.done_json("quantize", source, self.path("out"), *words)
        # Q8_0 is written by its reference, but judged by importance as well
        after = [testing.quantized(tensors[0], "pn3t", entries[0].for_weights(640)), testing.quantized(tensors[1], "q8_0"),
                 tensors[2], testing.quantized(tensors[3], "pn4t")]
        self.same_bytes(self.path("out"), testing.rewritten(tensors, after, search="weighted"))
        self.tells_errors(document, tensors, after, entries)
        self.done("verify", self.path("out"), source, *words)

    def test_no_keys_where_nothing_became_pn(self):
        tensor = bf16("w", (320, 1))
        words = ("--mix", self.write("rules.txt", b"* q8_0"), "--imatrix", self.imatrix([entry(tensor)]))
        self.done("quantize", self.model([tensor]), self.path("out"), *words)
        self.same_bytes(self.path("out"), gguf.build([testing.quantized(tensor, "q8_0")]))
        self.done("verify", self.path("out"), self.path("in.gguf"))

    def test_safetensors(self):
        data = oracle.gaussian_bf16(640, 1)
        source = self.write("in.safetensors", st.build([st.Tensor("w", "BF16", (2, 320), data)]))
        some = Entry("w", 320, sums(320), [3])
        given = self.imatrix([some])
        self.done("quantize", source, self.path("out"), "--type", "pn4t", "--imatrix", given)
        parsed = st.parse(self.path("out").read_bytes())
        wanted = testing.quantized(Tensor("w", (320, 2), gguf.BF16, data), "pn4t", some.for_weights(640))
        self.same_bytes(parsed.tensor("w").data, wanted.data)
        self.assertEqual(parsed.value("pn.search"), "weighted")
        self.done("verify", self.path("out"), source, "--imatrix", given)
        self.fails(USAGE, "verify", self.path("out"), source, names=("--imatrix",))

    def test_a_split_model(self):
        shards = [[f32("a", (320, 1), 1)], [f32("norm", (5,), 2)], [f32("b", (320, 2), 3)]]
        entries = [entry(shards[2][0])]
        folder = st.write_model(self.path("model"), st.split_gguf(shards))
        words = ("--imatrix", self.imatrix(entries))
        self.done("quantize", folder, self.path("out"), "--type", "pn3t", *words)
        after = [self.weighted(tensors, entries, "pn3t") for tensors in shards]
        ours = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "weighted")]
        wanted = st.split_gguf(after, wrap=lambda tensors, own, i: gguf.build(tensors, own + ours))
        for name, data in wanted.items():
            self.same_bytes(self.path("out") / name, data, name)
        self.done("verify", self.path("out"), folder, *words)


class Reference(ImportanceTest):
    def test_the_reference_search_judged_by_importance(self):
        for to in ("pn3t", "pn4t"):
            tensors = [bf16("w", (320, 3), 1), f32("none", (320, 2), 2)]
            self.searches(tensors, [entry(tensors[0])], to, search="reference")
            blob = self.path("out.gguf").read_bytes()
            self.assertEqual(gguf.parse(blob).key("pn.search"), (gguf.STRING, gguf.string("reference")))
            self.done("quantize", self.path("in.gguf"), self.path("plain"), "--type", to, "--force")
            self.same_bytes(self.path("plain"), blob)
            verified = self.done_json("verify", self.path("out.gguf"), self.path("in.gguf"))
            self.assertNotIn("nrmse_weighted", verified["tensors"][0])

    def test_the_weighted_search_errs_less_by_importance_and_more_without(self):
        tensor = bf16("w", (320, 8), 1)
        shown = {}
        for search in ("weighted", "reference"):
            shown[search] = self.searches([tensor], [entry(tensor)], "pn3t", search=search)["tensors"][0]
        self.assertLess(shown["weighted"]["nrmse_weighted"], shown["reference"]["nrmse_weighted"])
        self.assertGreater(shown["weighted"]["nrmse"], shown["reference"]["nrmse"])

    def test_the_table_tells_both_errors(self):
        tensors = [bf16("w", (320, 3), 1), f32("none", (320, 2), 2)]
        given = self.imatrix([entry(tensors[0])])
        text = self.done("quantize", self.model(tensors), self.path("out"), "--type", "pn4t", "--imatrix", given).out.decode()
        self.assertRegex(text, r"(?m)^w .*NRMSE 0\.\d+.*importance 0\.\d+")
        self.assertRegex(text, r"(?m)^none .*no importances.*NRMSE 0\.\d+")


class Verify(ImportanceTest):
    def setUp(self):
        super().setUp()
        self.tensors = [f32("a", (320, 1), 1), f32("b", (320, 4), 2)]
        self.entries = [entry(self.tensors[0], 1), entry(self.tensors[1], 2)]
        self.searches(self.tensors, self.entries, "pn4t")
        self.out, self.source = self.path("out.gguf"), self.path("in.gguf")

    def test_importances_are_needed(self):
        error = self.fails(USAGE, "verify", self.out, self.source, names=("out.gguf", "--imatrix", "pn.search"))
        self.assertEqual(error["file"], str(self.out))

    def test_other_importances_say_no(self):
        other = [self.entries[0], entry(self.tensors[1], 9)]
        document = self.says_no("verify", self.out, self.source, "--imatrix", self.imatrix(other, "other"))
        self.assertEqual([t["equal"] for t in document["tensors"]], [True, False])
        before, after = (self.weighted(self.tensors, e, "pn4t")[1].data for e in (self.entries, other))
        first = next(i for i in range(0, len(before), 34) if before[i:i + 34] != after[i:i + 34])
        self.assertEqual((document["first"]["tensor"], document["first"]["block"]), ("b", first // 34))
        # and importances of one tensor only
        document = self.says_no("verify", self.out, self.source, "--imatrix", self.imatrix(self.entries[:1], "other"))
        self.assertEqual([t["equal"] for t in document["tensors"]], [True, False])

    def test_the_same_importances_in_another_form(self):
        self.done("verify", self.out, self.source, "--imatrix", self.imatrix(self.entries, "other", older=True))

    def test_a_flipped_byte(self):
        blob = bytearray(self.out.read_bytes())
        start = gguf.parse(bytes(blob)).start("b") + 34 * 11
        blob[start + 9] ^= 2
        document = self.says_no("verify", self.write("flipped.gguf", bytes(blob)), self.source, "--imatrix", self.path("imatrix"))
        self.assertEqual((document["first"]["tensor"], document["first"]["block"]), ("b", 11))

    def test_another_original(self):
        weights = oracle.f32s(self.tensors[1].data)
        weights[2 * 320 + 70] = 3.0
        other = self.model([self.tensors[0], f32("b", (320, 4), weights=weights)], name="other.gguf")
        document = self.says_no("verify", self.out, other, "--imatrix", self.path("imatrix"))
        self.assertEqual((document["first"]["tensor"], document["first"]["block"]), ("b", 11))


class Warnings(ImportanceTest):
    def test_importances_that_match_nothing(self):
        tensors = [f32("w", (320, 1), 1), f32("norm", (320,), 2), f32("odd", (321, 1), 3)]
        # names of tensors that are not quantized do not count
        given = self.imatrix([Entry("other", 320, sums(320), [1]), Entry("norm", 320, sums(320), [1]), Entry("odd", 321, sums(321), [1])])
        source = self.model(tensors)
        for words in ((self.path("out"), "--force"), ("--dry-run",)):
            words = words + ("--type", "pn4t", "--imatrix", given)
            document = self.done_json("quantize", source, *words)
            self.assertEqual(len(document["warnings"]), 1)
            self.assertIn("importances", document["warnings"][0])
            self.assertIn("pnpack: warning: " + document["warnings"][0], self.done("quantize", source, *words).text)
        # no tensor was searched by importance (include/pn/FORMAT.md, pn.search), so verify needs none
        self.assertEqual(gguf.parse(self.path("out").read_bytes()).key("pn.search"), (gguf.STRING, gguf.string("reference")))
        self.done("verify", self.path("out"), source)
        document = self.done_json("quantize", source, self.path("new"), "--type", "pn4t", "--imatrix", given)
        self.assertIn("no importances", document["tensors"][0]["reason"])

    def test_what_stays_as_the_reference_writes_it(self):
        tensor = f32("w", (320, 1), 1)
        given = self.imatrix([Entry("other", 320, sums(320), [1])])
        self.done("quantize", self.model([tensor]), self.path("out"), "--type", "pn4t", "--imatrix", given)
        blob = self.path("out").read_bytes()
        start = gguf.parse(blob).start("w")
        self.same_bytes(blob[start:start + 5 * 34], testing.quantized(tensor, "pn4t").data)


class Refused(ImportanceTest):
    def setUp(self):
        super().setUp()
        self.tensor = f32("blk.0.evil", (320, 2), 1)
        self.fine = f32("fine", (320, 1), 2)
        self.source = self.model([self.fine, self.tensor])

    def refuses(self, given, names=(), code=BAD_INPUT, source=None, words=("--type", "pn4t")):
        before = contents(self.folder)
        error = self.fails(code, "quantize", source or self.source, self.path("out"), *words, "--imatrix", given, names=names)
        self.assertEqual(contents(self.folder), before, "something was written")
        return error

    def test_options_that_contradict_each_other(self):
        given = self.imatrix([entry(self.tensor)])
        self.refuses(given, ("--imatrix", "--rotate"), USAGE, words=("--type", "pn4t", "--rotate", 64))
        self.refuses(given, ("--imatrix", "--rotate"), USAGE, words=("--type", "pn4t", "--rotate", 64, "--search", "reference"))
        self.fails(USAGE, "quantize", self.source, self.path("out"), "--type", "pn4t", "--search", "weighted", names=("--imatrix",))
        self.fails(USAGE, "quantize", self.source, self.path("out"), "--type", "pn4t", "--search", "best")
        self.fails(USAGE, "verify", self.source, self.source, "--imatrix", given, "--rotate", 64, names=("--imatrix", "--rotate"))
        self.done("quantize", self.source, self.path("out"), "--type", "pn4t", "--search", "reference")

    def test_out_is_the_imatrix(self):
        given = self.imatrix([entry(self.tensor)])
        os.symlink(given, self.path("link"))
        for out in (given, self.path("link")):
            before = contents(self.folder)
            self.fails(USAGE, "quantize", self.source, out, "--type", "pn4t", "--imatrix", given, "--force", names=(out.name,))
            self.assertEqual(contents(self.folder), before)

    def test_importances_that_are_no_numbers_to_weigh_by(self):
        for older in (False, True):
            for value, column in itertools.product((-1.0, -1e-45, math.nan, math.inf, -math.inf), (0, 319)):
                bad = entry(self.tensor)
                bad.sums[column] = value
                error = self.refuses(self.imatrix([entry(self.fine), bad], older=older), ("blk.0.evil", "imatrix", "column %d" % column))
                self.assertEqual((error["tensor"], error["file"]), ("blk.0.evil", str(self.path("imatrix"))))
                blob = self.path("imatrix").read_bytes()
                self.assertEqual(blob[error["offset"]:error["offset"] + 4], struct.pack("<f", value))

    def test_they_are_refused_for_q8_0_and_for_the_reference_search_too(self):
        bad = entry(self.tensor)
        bad.sums[7] = math.nan
        given = self.imatrix([bad])
        self.refuses(given, ("blk.0.evil",), words=("--type", "pn4t", "--search", "reference"))
        self.refuses(given, ("blk.0.evil",), words=("--mix", self.write("rules.txt", b"* q8_0")))
        # but not for a tensor that stays as it is
        self.done("quantize", self.source, self.path("out"), "--mix", self.write("rules.txt", b"fine pn4t\n* keep"), "--imatrix", given)

    def test_experts_are_named(self):
        experts = f32("experts", (64, 2, 3), 1)
        bad = Entry("experts", 64, sums(192), [1, 2, 3])
        bad.sums[64 + 5] = -2.0
        error = self.refuses(self.imatrix([bad]), ("experts", "column 5"), source=self.model([experts], name="experts.gguf"))
        self.assertIn("1", error["message"])

    def test_counts(self):
        for count in (-1.0, math.nan, math.inf):
            self.refuses(self.imatrix([entry(self.tensor, 1, count)]), ("blk.0.evil",))
        self.refuses(self.imatrix([entry(self.tensor, 1, -1)], older=True), ("blk.0.evil",))
        # a quotient may be larger than any fp32
        self.done("quantize", self.source, self.path("out"), "--type", "pn4t", "--imatrix", self.imatrix([entry(self.tensor, 1, 1e-38)]))

    def test_another_shape(self):
        for older, k in itertools.product((False, True), (1, 319, 321, 640)):
            bad = Entry("blk.0.evil", k, sums(k), [1])
            self.refuses(self.imatrix([bad], older=older), ("blk.0.evil", str(k)))
        # experts where there are none, and as many values in another shape
        self.refuses(self.imatrix([Entry("blk.0.evil", 320, sums(640), [1, 2])]), ("blk.0.evil",))
        self.refuses(self.imatrix([Entry("blk.0.evil", 160, sums(320), [1, 2])]), ("blk.0.evil",))
        experts = self.model([f32("experts", (64, 2, 3), 1)], name="experts.gguf")
        self.refuses(self.imatrix([Entry("experts", 64, sums(128), [1, 2])]), ("experts",), source=experts)
        self.refuses(self.imatrix([Entry("experts", 64, sums(64), [1])]), ("experts",), source=experts)

    def test_files_that_are_none(self):
        good = imatrix.gguf_form([entry(self.tensor)])
        old = imatrix.older_form([entry(self.tensor)])
        keys = [Key("general.type", gguf.STRING, "imatrix")]
        for blob in (b"", b"GGU", b"garbage " * 9, good[:-1], good[:100], good + b"x" * 40, old[:-1], old[:40], old + b"x",
                     imatrix.gguf_form([entry(self.tensor)], general_type="model"), imatrix.gguf_form([]),
                     struct.pack("<i", -1) + old[4:], struct.pack("<i", 2**31 - 1) + old[4:],
                     imatrix.older_form([entry(self.tensor), entry(self.tensor)]), gguf.build([self.tensor]),
                     gguf.build([self.tensor], keys)):
            self.refuses(self.write("imatrix", blob), ("imatrix",))
        parsed = gguf.parse(good)
        for part in ("in_sum2", "counts"):
            tensors = [Tensor(t.name, t.dims, t.type, t.data) for t in parsed.tensors if not t.name.endswith(part.encode())]
            self.refuses(self.write("imatrix", gguf.build(tensors, keys)), ("blk.0.evil", part))
        self.path("imatrix").unlink()
        self.refuses(self.path("imatrix"), ("imatrix",))
        os.mkfifo(self.path("pipe"))
        self.fails(BAD_INPUT, "quantize", self.source, self.path("out"), "--type", "pn4t", "--imatrix", self.path("pipe"), names=("pipe",))
        self.fails(BAD_INPUT, "quantize", self.source, self.path("out"), "--type", "pn4t", "--imatrix", self.folder)


if __name__ == "__main__":
    main()
