"""quantize --mix: the first rule that matches decides, and each tensor becomes what it says, byte for byte.

Proves the choice of rules against a second matcher, whole output files against the tests' own quantizers (pn3t, pn4t and
ggml's Q8_0), tensors of a donor, what stays and why, warnings, that a dry run tells what the real run does, that verify
judges by the same rules, and that the mix in examples/ means what its comments say.
"""

import itertools
import json
import math
import os
import random
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import expected_models as models  # noqa: E402
import gguf_files as gguf  # noqa: E402
import gguf_testing as testing  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import BF16, F16, F32, P12, PN3T, PN4T, Q8_0, Key, Tensor  # noqa: E402
from gguf_testing import P12_KEYS, bf16, f16, f32, p12  # noqa: E402
from tool import BAD_INPUT, DONE, NO, OUTPUT, SOURCE_DIR, USAGE, ToolTest, contents, each, main, run, some  # noqa: E402

Q3_K, Q4_K = 11, 12
K_QUANTS = {Q3_K: ("Q3_K", 110), Q4_K: ("Q4_K", 144)}  # bytes per 256 weights
TYPE_NAMES = {**testing.TYPE_NAMES, **{type_id: name for type_id, (name, _) in K_QUANTS.items()}}
SOURCES = (F32, F16, BF16, P12)


def k_quant(name, dims, type_id, seed=1):
    """Blocks that nobody here understands."""
    size = math.prod(dims) // 256 * K_QUANTS[type_id][1]
    return Tensor(name, tuple(dims), type_id, random.Random(seed).randbytes(size))


def q8_0(name, dims, seed=1):
    return testing.quantized(f32(name, dims, seed), "q8_0")


# ---------------------------------------------------------------- a second reader of rules


def read_rules(text):
    """[(line, glob, lengths or None, type)]"""
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split("#")[0].split()
        if words:
            lengths = {int(n) for n in words[1][2:].split(",")} if len(words) == 3 else None
            rules.append((number, words[0], lengths, words[-1]))
    return rules


def matches(glob, name):
    parts = {"*": ".*", "?": "."}
    return re.fullmatch("".join(parts.get(c) or re.escape(c) for c in glob), name, re.DOTALL) is not None


def rule_for(rules, name, k, promoted=()):
    for rule in rules:
        _, glob, lengths, _ = rule
        if (lengths is None or k in lengths) and (name in promoted if glob == "@promoted" else matches(glob, name)):
            return rule
    return None


def result_of(tensor, rule, donor=()):
    """(the tensor afterwards, whether it is a fallback)"""
    quantizable = len(tensor.dims) >= 2 and tensor.type in SOURCES and tensor.elements > 0
    if rule is None:
        return tensor, quantizable
    if rule[3] == "donor":
        return next(other for other in donor if other.name == tensor.name), False
    if rule[3] == "keep" or not quantizable:
        return tensor, False
    if tensor.dims[0] % testing.TARGETS[rule[3]][1]:
        return tensor, True
    return testing.quantized(tensor, rule[3]), False


class MixTest(ToolTest):
    def rules(self, text, name="rules.txt"):
        return self.write(name, text.encode("utf-8"))

    def model(self, tensors, keys=(), name="in.gguf"):
        return self.write(name, gguf.build(tensors, keys))

    def dry_run(self, source, *words):
        before = sorted(os.listdir(self.folder))
        document = self.done_json("quantize", source, *words, "--dry-run")
        self.assertIs(document["dry_run"], True)
        self.assertEqual(sorted(os.listdir(self.folder)), before, "a dry run wrote something")
        return document

    def plans_as_it_runs(self, plan, document):
        """A dry run and a real run tell the same, but for errors, which nobody knows before."""
        for shown in document["tensors"]:
            shown.pop("nrmse", None)
        for report in (plan, document):
            report.pop("dry_run", None)
            report.pop("output", None)
        self.assertEqual(plan, document)

    def tells(self, document, tensors, after, rules, chosen):
        """The document tells types, sizes, totals and rules as they are."""
        for shown, tensor, result, rule in zip(document["tensors"], tensors, after, chosen):
            self.assertEqual((shown["name"], shown["shape"]), (tensor.name, tensor.shape))
            self.assertEqual((shown["bytes_in"], shown["bytes_out"]), (len(tensor.data), len(result.data)), tensor.name)
            if result.type in TYPE_NAMES:
                self.assertEqual(shown["type_out"], TYPE_NAMES[result.type], tensor.name)
            self.assertEqual(shown.get("rule", "").partition(":")[0], "" if rule is None else "line %d" % rule[0], tensor.name)
            if result is tensor and (rule is None or rule[3] != "donor"):
                self.assertTrue(shown["reason"], tensor.name)
        changed = sum(a is not b for a, b in zip(after, tensors))
        totals = document["totals"]
        self.assertEqual((totals["tensors"], totals["converted"]), (len(tensors), changed))
        self.assertEqual((totals["bytes_in"], totals["bytes_out"]), tuple(sum(len(t.data) for t in ts) for ts in (tensors, after)))
        unused = [rule[0] for rule in rules if rule not in chosen]
        told = [int(re.search(r"rule in line (\d+) ", text)[1]) for text in document.get("warnings", []) if "rule in line" in text]
        self.assertEqual(told, unused)

    def mixes(self, tensors, text, keys=(), promoted=None, donor=None):
        """Everything that quantize --mix must do with these tensors. Returns the document and the tensors afterwards."""
        rules = read_rules(text)
        chosen = [rule_for(rules, t.name, t.dims[0] if t.dims else 1, promoted or ()) for t in tensors]
        results = [result_of(t, rule, donor or ()) for t, rule in zip(tensors, chosen)]
        after = [tensor for tensor, _ in results]
        source, out = self.model(tensors, keys), self.path("out.gguf")
        words = ["--mix", self.rules(text)]
        if promoted is not None:
            words += ["--promote", self.write("promoted.txt", "".join(name + "\n" for name in promoted).encode("utf-8"))]
        if donor is not None:
            words += ["--donor", self.model(donor, name="donor.gguf")]

        plan = self.dry_run(source, *words)
        document = self.done_json("quantize", source, out, *words, "--force")
        self.same_bytes(out, testing.rewritten(tensors, after, keys))
        self.tells(document, tensors, after, rules, chosen)
        for shown, tensor, result in zip(document["tensors"], tensors, after):
            if result is not tensor and result.type in (PN3T, PN4T, Q8_0) and result not in (donor or ()):
                wanted = oracle.nrmse(expected.weights_of(tensor), testing.decoded(result))
                self.assertLessEqual(abs(shown["nrmse"] - wanted), 1e-12 * wanted, tensor.name)
            else:
                self.assertNotIn("nrmse", shown)
        self.plans_as_it_runs(plan, json.loads(json.dumps(document)))
        self.done("check", out)
        self.done("verify", out, source, *words)
        strict = self.path("strict.gguf")
        converted = any(a is not b for a, b in zip(after, tensors))
        code = DONE if converted and not any(fallback for _, fallback in results) else NO
        self.expect(code, "quantize", source, strict, *words, "--strict")
        self.assertEqual(strict.exists(), code == DONE)
        if strict.exists():
            self.same_bytes(strict, out.read_bytes())
            strict.unlink()
        return document, after


class Rules(MixTest):
    def test_the_first_match_wins(self):
        tensors = [f32(name, (320, 1), i) for i, name in enumerate(("blk.0.a.weight", "blk.1.a.weight", "blk.10.a.weight", "other"))]
        _, after = self.mixes(tensors, "blk.1.a.weight pn3t\nblk.?.a.weight pn4t\nblk.*  q8_0\n*  keep\n")
        self.assertEqual([t.type for t in after], [PN4T, PN3T, Q8_0, F32])
        _, after = self.mixes(tensors, "*  keep\nblk.1.a.weight pn3t\n")
        self.assertEqual([t.type for t in after], [F32] * 4)

    def test_row_lengths(self):
        tensors = [f32("k%d" % k, (k, 2), k) for k in (64, 80, 320, 640, 96)]
        _, after = self.mixes(tensors, "* K=80 pn3t\n* K=640,64 pn4t\n* K=320 q8_0\n")
        self.assertEqual([t.type for t in after], [PN4T, PN3T, Q8_0, PN4T, F32])

    def test_promoted(self):
        tensors = [f32("%s.weight" % c, (320, 1), i) for i, c in enumerate("abcd")]
        _, after = self.mixes(tensors, "@promoted pn4t\n*.weight pn3t\n", promoted=["c.weight", "a.weight"])
        self.assertEqual([t.type for t in after], [PN4T, PN3T, PN4T, PN3T])
        _, after = self.mixes(tensors, "@promoted K=64 keep\nb.* keep\n@promoted K=80,320 q8_0\n* pn3t\n", promoted=["a.weight"])
        self.assertEqual([t.type for t in after], [Q8_0, F32, PN3T, PN3T])

    def test_how_a_rule_may_be_written(self):
        tensors = [f32("w#1", (320, 1), 1), f32("@promoted", (320, 1), 2), f32("a.b", (320, 1), 3), f32("axb", (320, 1), 4),
                   f32("ein.größe", (320, 1), 5)]
        # a name that begins with @ cannot be written, but ? stands for it
        text = ("# a comment\r\n\r\n   \t\n\ta.b \t K=320\tpn3t   # why\r\n"
                "?promot?? q8_0 #\n*gr?ße pn4t#\n#* pn3t\n* keep")
        source = self.model(tensors)
        self.done("quantize", source, self.path("out.gguf"), "--mix", self.rules(text))
        types = [t.type for t in gguf.parse(self.path("out.gguf").read_bytes()).tensors]
        self.assertEqual(types, [F32, Q8_0, PN3T, F32, PN4T])
        marked = self.write("bom.txt", b"\xef\xbb\xbf" + text.encode("utf-8"))
        self.done("quantize", source, self.path("marked.gguf"), "--mix", marked)
        self.same_bytes(self.path("marked.gguf"), self.path("out.gguf").read_bytes())

    def test_against_a_second_matcher(self):
        names = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("ab.", repeat=n)]
        names = random.Random(1).sample(names, 60)
        tensors = [f32(name, ((64, 80, 320, 96)[i % 4], 1), i) for i, name in enumerate(names)]
        source = self.model(tensors)
        promoted = names[::5]
        listed = self.write("promoted.txt", "\n".join(promoted).encode())

        def random_rules(seed):
            rng = random.Random(seed)
            lines = []
            for _ in range(rng.randint(1, 8)):
                glob = "@promoted" if rng.random() < 0.1 else "".join(rng.choice("ab.*?**") for _ in range(rng.randint(1, 6)))
                lengths = rng.sample(["64", "80", "320", "96", "5120"], rng.randint(0, 3))
                lines.append(" ".join([glob] + (["K=" + ",".join(lengths)] if lengths else []) +
                                      [rng.choice(("pn3t", "pn4t", "q8_0", "keep"))]))
            return "\n".join(lines)

        def agrees(seed):
            text = random_rules(seed)
            rules, path = read_rules(text), self.rules(text, "rules-%d.txt" % seed)
            document = run("quantize", source, "--mix", path, "--promote", listed, "--dry-run", "--json").json
            chosen = [rule_for(rules, t.name, t.dims[0], promoted) for t in tensors]
            after = [result_of(t, rule)[0] for t, rule in zip(tensors, chosen)]
            self.tells(document, tensors, after, rules, chosen)

        each(agrees, some(range(200)))

    def test_a_long_rule_is_told_in_short(self):
        source = self.model([f32("w", (64, 1))])
        document = self.dry_run(source, "--mix", self.rules("# 1\n*%s  pn4t\n" % ("*" * 500)))
        shown = document["tensors"][0]
        self.assertEqual(shown["type_out"], "pn4t")
        self.assertTrue(shown["rule"].startswith("line 2: ***"))
        self.assertLess(len(shown["rule"]), 200)

    def test_what_no_rule_may_be(self):
        source = self.model([f32("w", (320, 1))])
        for text, line, word in (("", None, ""), ("# nothing\n", None, ""), ("*", 1, ""), ("* pn5t", 1, "pn5t"), ("* keep\n*\n", 2, ""),
                                 ("pn3t", 1, ""), ("* pn3t extra", 1, "extra"), ("* K= pn3t", 1, "K="), ("* K=1, pn3t", 1, "K=1,"),
                                 ("* K=x pn3t", 1, "K=x"), ("* K=0 pn3t", 1, "K=0"), ("* K=99999999999999999999 pn3t", 1, "K="),
                                 ("@others pn3t", 1, "@others"), ("* pn3t K=320", 1, "K=320"), ("\n* pn3t\0", 2, ""),
                                 ("* PN3T", 1, "PN3T")):
            with self.subTest(text=text):
                rules = self.rules(text)
                error = self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", rules, names=("rules.txt", word))
                self.assertEqual((error["file"], error.get("line")), (str(rules), line and str(line)))
        self.rules("* keep")
        self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", self.path("none.txt"), names=("none.txt",))
        listed = self.write("promoted.txt", b"a\nb c\n")
        error = self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", self.path("rules.txt"), "--promote", listed,
                           names=("promoted.txt",))
        self.assertEqual(error["line"], "2")
        self.assertFalse(self.path("out").exists())


class Bytes(MixTest):
    def test_every_source_type_to_every_type(self):
        for to in ("pn3t", "pn4t", "q8_0"):
            tensors = [f32("f32", (1280, 2), 1), f16("f16", (1280, 1), 2), bf16("bf16", (1280, 1, 2), 3), p12("p12", (1280, 1), 4),
                       p12("kept", (256, 2), 5), f32("four", (320, 1, 2, 1), 6)]
            self.mixes(tensors, "kept keep\n* %s\n" % to, P12_KEYS)

    def test_different_types_in_one_file(self):
        tensors = [bf16("a", (320, 3), 1), f32("norm", (320,), 2), f16("b", (320, 2), 3), f32("c", (320, 2), 4),
                   Tensor("mystery", (320, 1), 42, b"m" * 64), Tensor("q8", (32, 2), Q8_0, b"q" * 68),
                   Tensor("empty", (320, 0), F32), f32("scalar", (), weights=[1.0]), bf16("d", (320, 1), 7)]
        keys = [Key("general.alignment", gguf.U32, 64), Key("general.file_type", gguf.U32, 32)]
        document, after = self.mixes(tensors, "a pn3t\nb pn4t\nc q8_0\n* q8_0\n", keys)
        self.assertEqual([t.type for t in after], [PN3T, F32, PN4T, Q8_0, 42, Q8_0, F32, F32, Q8_0])
        self.assertEqual(document["totals"]["converted"], 4)

    def test_p12_keys_leave_with_the_last_p12_tensor(self):
        tensors = [p12("a", (256, 2), 1), p12("b", (256, 1), 2)]
        for text, names in (("* q8_0", []), ("a q8_0\nb keep", ["p12.version", "p12.type_id"]),
                            ("a pn4t\nb q8_0", ["pn.version", "pn.search"]),
                            ("a pn4t\n* keep", ["p12.version", "p12.type_id", "pn.version", "pn.search"])):
            self.mixes(tensors, text, P12_KEYS)
            self.assertEqual(gguf.parse(self.path("out.gguf").read_bytes()).names(), names)

    def test_no_keys_of_ours_where_nothing_became_pn(self):
        tensors = [bf16("a", (320, 1)), bf16("b", (256, 1))]
        for text, donor in (("* q8_0", None), ("* keep", None), ("a donor", [q8_0("a", (320, 1))]),
                            ("b donor\na q8_0", [k_quant("b", (256, 1), Q4_K)])):
            self.mixes(tensors, text, [Key("x", gguf.U8, 1)], donor=donor)
            self.assertEqual(gguf.parse(self.path("out.gguf").read_bytes()).names(), ["x"])
        self.mixes(tensors, "a pn3t\n* q8_0", [Key("x", gguf.U8, 1)])
        self.assertEqual(gguf.parse(self.path("out.gguf").read_bytes()).names(), ["x", "pn.version", "pn.search"])

    def test_hard_blocks_of_q8_0(self):
        noise = oracle.gaussian(32, 7, 0.01)
        rows = [[0.0] * 32, [-0.0] * 32, [127.0] + [i + 0.5 for i in range(31)], [-127.0] + [-i - 0.5 for i in range(31)],
                [127.0] + [(i - 15) / 2 for i in range(31)], [1000.0] + noise[1:], noise[1:] + [-1000.0], [1.0] * 32, [-1.0] * 32]
        # where d is subnormal in fp16, vanishes in it, is subnormal in fp32; where 1 / d overflows
        for amax in (1e-3, 7.7e-3, 7.75e-3, 3.8e-6, 3.7e-6, 1e-7, 1e-30,
                     3.8e-37, 3.74e-37, 3.73e-37, 3.7e-37, 1e-37, 1.2e-38, 1e-40, 2.0**-149):
            rows.append([amax * (i - 16) / 16 for i in range(32)])
            rows.append([amax * (16 - i) / 16 for i in range(32)])
        # d at a tie of two fp16, and the largest that is finite
        rows += [[127 * math.ldexp(2048 + odd, -15)] + noise[1:] for odd in (1, 3, 5, 2047)]
        rows += [[127 * scale] + [scale * (i % 127) for i in range(31)] for scale in (65504.0, 65519.0)]
        # every ratio near a half
        rows += [[127.0] + [math.ldexp(round(math.ldexp(i + 0.5, 17)) + step, -17) for i in range(31)] for step in (-1, 1)]
        rows += [oracle.gaussian(32, seed, 10.0**(seed % 9 - 5)) for seed in range(40)]
        weights = oracle.f32s(oracle.f32_bytes([w for row in rows for w in row]))
        self.mixes([f32("w", (32, len(rows)), weights=weights)], "* q8_0")

    def test_fp16_of_every_size_to_q8_0(self):
        patterns = [sign << 15 | bits for bits in range(0, 0x7C00, 62) for sign in (0, 1)]
        patterns = patterns[:len(patterns) // 32 * 32]
        self.mixes([Tensor("w", (32, len(patterns) // 32), F16, oracle.u16_bytes(patterns))], "* q8_0")

    def test_what_q8_0_cannot_hold(self):
        for row, weight in ((0, math.nan), (2, math.inf), (1, -math.inf), (2, 127 * 65520.0), (1, -1e30)):
            weights = oracle.gaussian(96, 1)
            weights[32 * row + 5] = weight
            source = self.write("bad.gguf", gguf.build([f32("fine", (32, 1)), f32("evil", (32, 3), weights=weights)]))
            error = self.rejected(source, "quantize", "--mix", self.rules("* q8_0"), names=("evil",))
            numbers = {int(n) for n in re.findall(r"\d+", error["message"])}
            self.assertIn(row, numbers)
            source.unlink()

    def test_a_split_model(self):
        shards = [[bf16("a", (320, 1), 1), f32("norm", (320,), 2)], [bf16("b", (320, 2), 3), bf16("c", (256, 1), 4)]]
        donor = [k_quant("c", (256, 1), Q4_K)]
        after = [[testing.quantized(shards[0][0], "pn3t"), shards[0][1]], [testing.quantized(shards[1][0], "q8_0"), donor[0]]]
        folder = st.write_model(self.path("model"), st.split_gguf(shards, [Key("x", gguf.U8, 1)]))
        words = ("--mix", self.rules("a pn3t\nb q8_0\nc donor"), "--donor", self.model(donor, name="donor.gguf"))
        plan = self.dry_run(folder, *words)
        document = self.done_json("quantize", folder, self.path("out"), *words)
        ours = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference")]
        wanted = st.split_gguf(after, [Key("x", gguf.U8, 1)], wrap=lambda tensors, own, i: gguf.build(tensors, own + ours))
        self.assertEqual(st.read_model(self.path("out")).keys(), wanted.keys())
        for name, data in wanted.items():
            self.same_bytes(self.path("out") / name, data, name)
        self.plans_as_it_runs(plan, document)
        self.done("verify", self.path("out"), folder, *words)

    def test_only_pn_tensors_are_rotated(self):
        tensors = [f32("a", (128, 2), 1), f32("token_embd.weight", (128, 1), 2), f32("b", (96, 2), 3),
                   f32("c", (128, 1), 4), bf16("d", (256, 1), 5)]
        donor = [k_quant("d", (256, 1), Q4_K)]
        rules, out = self.rules("a pn4t\ntoken_* pn4t\nb q8_0\nc q8_0\nd donor"), self.path("out")
        words = ("--mix", rules, "--donor", self.model(donor, name="donor.gguf"))
        source = self.model(tensors)
        self.done("quantize", source, out, *words, "--rotate", 64)
        rotated = f32("a", (128, 2), weights=oracle.rotate(oracle.f32s(tensors[0].data), 64))
        after = [testing.quantized(rotated, "pn4t"), testing.quantized(tensors[1], "pn4t"), testing.quantized(tensors[2], "q8_0"),
                 testing.quantized(tensors[3], "q8_0"), donor[0]]
        keys = [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, "reference"), Key("pn.hadamard.block_size", gguf.U32, 64),
                Key("pn.hadamard.exclude", gguf.ARRAY, (gguf.STRING, ["token_embd.weight"]))]
        self.same_bytes(out, gguf.build(after, keys))
        self.done("verify", out, source, *words)
        self.fails(USAGE, "quantize", source, self.path("new"), *words, "--rotate", 256, names=("a", "256"))

    def test_the_number_of_threads_changes_nothing(self):
        tensors = [bf16("a", (64, 700), 1), bf16("b", (320, 140), 2), bf16("c", (32, 1400), 3)]
        tensors = [Tensor(t.name, (t.dims[0], t.dims[1] * 16), t.type, t.data * 16) for t in tensors]
        source, rules = self.model(tensors), self.rules("a pn4t\nb pn3t\nc q8_0")
        documents = []
        for threads in (1, 2, 7, 64):
            out = self.path("out-%d" % threads)
            documents.append(self.done_json("quantize", source, out, "--mix", rules, "--threads", threads))
            documents[-1].pop("output")
            self.same_bytes(out, self.path("out-1").read_bytes())
            self.assertEqual(documents[-1], documents[0])


class Fallbacks(MixTest):
    def test_k_that_does_not_fit_stays_and_is_a_fallback(self):
        for to, fits, other in (("pn3t", 80, 64), ("pn4t", 64, 80), ("q8_0", 32, 80)):
            document, after = self.mixes([f32("fits", (fits, 2)), f32("other", (other, 2))], "* " + to)
            self.assertEqual([t.type == F32 for t in after], [False, True])
            self.assertIn(str(testing.TARGETS[to][1]), document["tensors"][1]["reason"])

    def test_what_no_rule_matches_is_a_fallback(self):
        self.mixes([f32("a", (64, 1)), f32("b", (64, 1))], "a pn4t")

    def test_1d_and_kept_tensors_are_none(self):
        tensors = [f32("a", (64, 1)), f32("norm", (64,)), f32("odd", (65,)), f32("scalar", (), weights=[2.0]), f32("kept", (65, 3)),
                   Tensor("q8", (32, 2), Q8_0, b"q" * 68), Tensor("empty", (65, 0), F32)]
        document, _ = self.mixes(tensors, "kept keep\n* pn4t\n")  # mixes() expects --strict to say yes
        self.assertEqual(document["tensors"][1]["reason"], "1-D")

    def test_a_column_is_2d(self):
        self.mixes([f32("column", (64, 1)), f32("row", (1, 64))], "* pn4t")


class Donor(MixTest):
    def test_tensors_are_taken_byte_for_byte(self):
        tensors = [bf16("token_embd.weight", (512, 3), 1), bf16("w", (320, 2), 2), f32("norm", (320,), 3),
                   bf16("output.weight", (256, 2), 4), Tensor("odd", (256, 1), 42, b"o" * 128)]
        donor = [k_quant("output.weight", (256, 2), Q4_K, 1), f16("norm", (320,), 9), k_quant("unused", (256, 1), Q4_K, 3),
                 k_quant("token_embd.weight", (512, 3), Q3_K, 2), k_quant("odd", (256, 1), Q4_K, 5)]
        document, after = self.mixes(tensors, "w pn3t\n* donor", [Key("x", gguf.U8, 1)], donor=donor)
        self.assertEqual([t.type for t in after], [Q3_K, PN3T, F16, Q4_K, Q4_K])
        self.assertEqual([t["type_out"] for t in document["tensors"]], ["Q3_K", "pn3t", "F16", "Q4_K", "Q4_K"])

    def test_the_same_type_is_taken_too(self):
        tensors, donor = [bf16("w", (256, 2), 1)], [bf16("w", (256, 2), 2)]
        _, after = self.mixes(tensors, "* donor", donor=donor)
        self.assertNotEqual(after[0].data, tensors[0].data)
        # the original's bytes are not the donor's
        words = ("--mix", self.path("rules.txt"), "--donor", self.path("donor.gguf"))
        self.says_no("verify", self.path("in.gguf"), self.path("in.gguf"), *words)

    def test_a_tensor_without_elements(self):
        self.mixes([Tensor("e", (256, 0), BF16), bf16("w", (64, 1))], "e donor\nw pn4t", donor=[Tensor("e", (256, 0), Q4_K)])

    def test_a_donor_in_several_files(self):
        tensors = [bf16("a", (256, 2), 1), bf16("b", (256, 3), 2), bf16("c", (64, 3), 2)]
        parts = [k_quant("a", (256, 2), Q4_K), k_quant("b", (256, 3), Q3_K)]
        source, rules = self.model(tensors), self.rules("c pn4t\n* donor")
        folder = st.write_model(self.path("donor"), st.split_gguf([[parts[0]], [parts[1]]]))
        after = parts + [testing.quantized(tensors[2], "pn4t")]
        for donor in (folder, folder / st.shard_name("model", 1, 2, "gguf")):
            words = ("--mix", rules, "--donor", donor)
            self.done("quantize", source, self.path("out"), *words, "--force")
            self.same_bytes(self.path("out"), testing.rewritten(tensors, after))
            self.done("verify", self.path("out"), source, *words)

    def refuses(self, donor, names=(), code=BAD_INPUT, model=None):
        """donor: tensors or a whole file."""
        source = self.model(model or [bf16("w", (256, 2), 1)])
        path = self.write("donor.gguf", donor if isinstance(donor, bytes) else gguf.build(donor))
        words = ("--mix", self.rules("w donor\n* keep"), "--donor", path)
        error = self.fails(code, "quantize", source, self.path("out"), *words, names=("donor.gguf",) + names)
        self.assertFalse(self.path("out").exists())
        self.fails(code, "quantize", source, *words, "--dry-run", names=names)
        return error

    def test_donors_that_will_not_do(self):
        self.refuses([k_quant("v", (256, 2), Q4_K)], names=("w", "donor"))
        for dims in ((256, 1), (512, 1), (2, 256), (512,), (256, 2, 1)):
            self.refuses([q8_0("w", dims)] if dims[0] % 32 == 0 else [f32("w", dims)], names=("w", "shape"))
        self.refuses([Tensor("w", (256, 2), 42, b"m" * 64)], names=("w", "unknown(42)"))
        self.refuses([Tensor("w", (256, 2), PN4T, bytes(34 * 8))], names=("w", "pn4t"))
        self.refuses(gguf.build([p12("w", (256, 2))], P12_KEYS), names=("w", "BF16_P12"))
        self.refuses(st.build([st.Tensor("w", "F16", (2, 256), bytes(1024))]), names=("GGUF",))
        self.refuses(b"GARBAGE" * 9)
        self.refuses(b"")
        self.refuses(gguf.build([k_quant("w", (256, 2), Q4_K)], final_padding=False)[:-1])
        self.refuses(gguf.build([k_quant("v", (256, 2), Q4_K), f32("v", (256, 2))]))

    def test_donors_in_other_places(self):
        source, rules = self.model([bf16("w", (256, 2), 1)]), self.rules("w donor")
        self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", rules, "--donor", self.path("none.gguf"),
                   names=("none.gguf",))
        self.path("empty").mkdir()
        self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", rules, "--donor", self.path("empty"), names=("empty",))
        os.mkfifo(self.path("pipe"))
        self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", rules, "--donor", self.path("pipe"), names=("pipe",))
        self.fails(USAGE, "quantize", source, self.path("out"), "--mix", rules, names=("--donor",))
        # a donor that no rule asks for is read all the same
        self.fails(BAD_INPUT, "quantize", source, self.path("out"), "--mix", self.rules("* q8_0"), "--donor", self.path("none.gguf"))

    def test_inputs_stay_as_they_are(self):
        tensors, donor = [bf16("w", (256, 2), 1)], [k_quant("w", (256, 2), Q4_K)]
        self.mixes(tensors, "w donor", donor=donor)
        self.same_bytes(self.path("in.gguf"), gguf.build(tensors))
        self.same_bytes(self.path("donor.gguf"), gguf.build(donor))
        self.same_bytes(self.path("rules.txt"), b"w donor")


class Safetensors(MixTest):
    def test_mix(self):
        tensors = [st.Tensor("a", "BF16", (2, 320), oracle.gaussian_bf16(640, 1)),
                   st.Tensor("b", "F32", (1, 320), oracle.f32_bytes(oracle.gaussian(320, 2))),
                   st.Tensor("c", "BF16", (3, 256), oracle.gaussian_bf16(768, 3)), st.Tensor("n", "F32", (64,), bytes(256))]
        original = st.build(tensors, {"format": "pt"})
        source, out = self.write("in.safetensors", original), self.path("out.safetensors")
        words = ("--mix", self.rules("a pn3t\nb pn4t\nc donor\n* keep"), "--donor", self.model([f16("c", (256, 3))], name="donor.gguf"))
        plan = self.dry_run(source, *words)
        document = self.done_json("quantize", source, out, *words)
        after = [models.quantized_tensor(tensors[0], oracle.PN3T), models.quantized_tensor(tensors[1], oracle.PN4T),
                 st.Tensor("c", "F16", (3, 256), f16("c", (256, 3)).data), tensors[3]]
        keys = [("pn.version", "0"), ("pn.tensors", {"a": ["pn3t", [2, 320], "BF16"], "b": ["pn4t", [1, 320], "F32"]}),
                ("pn.search", "reference"), ("p12.header", st.parse(original).header.decode())]
        models.is_made_from(self, out.read_bytes(), original, after, keys)
        self.plans_as_it_runs(plan, document)
        self.done("check", out)
        self.done("verify", out, source, *words)

    def test_there_is_no_q8_0(self):
        weights = oracle.f32_bytes(oracle.gaussian(320, 2))
        source = self.write("in.safetensors", st.build([st.Tensor("w", "F32", (1, 320), weights)]))
        rules = self.rules("w q8_0")
        for words in ((self.path("out"),), ("--dry-run",)):
            self.fails(USAGE, "quantize", source, *words, "--mix", rules, names=("w", "Q8_0", "safetensors"))
        donor = self.model([q8_0("w", (320, 1))], name="donor.gguf")
        self.fails(USAGE, "quantize", source, self.path("out"), "--mix", self.rules("w donor"), "--donor", donor, names=("w", "Q8_0"))
        self.assertFalse(self.path("out").exists())
        # what does not become Q8_0 does no harm
        for text in ("w pn3t\n* q8_0", "* K=321 q8_0\n* pn4t"):
            self.done("quantize", source, self.path("out"), "--mix", self.rules(text), "--force")

    def test_as_gguf_it_can_be_q8_0(self):
        weights = oracle.f32_bytes(oracle.gaussian(640, 2))
        source = self.write("in.safetensors", st.build([st.Tensor("w", "F32", (2, 320), weights)]))
        self.done("quantize", source, self.path("out"), "--format", "gguf", "--mix", self.rules("w q8_0"))
        tensor = gguf.parse(self.path("out").read_bytes()).tensor("w")
        self.assertEqual((tensor.type, tensor.dims), (Q8_0, (320, 2)))
        self.same_bytes(tensor.data, oracle.q8_0_quantize(oracle.f32s(weights)))
        self.done("verify", self.path("out"), source, "--mix", self.path("rules.txt"))


class Warnings(MixTest):
    def warned(self, source, *words):
        """The warnings of a run, the same on stderr and as JSON, of a dry run and of a real one."""
        listed = []
        for how in ("--dry-run", "--force"):
            out = [] if how == "--dry-run" else [self.path("out")]
            listed.append(self.done_json("quantize", source, *out, *words, how).get("warnings", []))
            text = self.done("quantize", source, *out, *words, how).text
            self.assertEqual(text.splitlines(), ["pnpack: warning: " + warning for warning in listed[-1]])
            quiet = self.done("quantize", source, *out, *words, how, "--quiet")
            self.assertEqual((quiet.out, quiet.text), (b"", text))
        self.assertEqual(listed[0], listed[1])
        return listed[0]

    def test_a_rule_that_decides_about_nothing(self):
        source = self.model([f32("a", (64, 1)), f32("b", (64, 1))])
        text = "# first\na  pn4t # x\na K=64 keep  # hidden by the one above\n* K=80 pn3t\n* keep\n"
        warnings = self.warned(source, "--mix", self.rules(text))
        self.assertEqual(len(warnings), 2)
        self.assertIn("line 3", warnings[0])
        self.assertIn("a K=64 keep", warnings[0])
        self.assertNotIn("hidden", warnings[0])
        self.assertIn("line 4", warnings[1])
        self.assertEqual(self.warned(source, "--mix", self.rules("* pn4t")), [])
        self.assertEqual(self.warned(source, "--type", "pn4t"), [])

    def test_promoted_names_that_are_no_tensors(self):
        source = self.model([f32("a", (64, 1)), f32("b", (64, 1))])
        listed = self.write("promoted.txt", b"# two\na\nnobody.weight # gone\nb\nA\n")
        warnings = self.warned(source, "--mix", self.rules("@promoted pn4t"), "--promote", listed)
        self.assertEqual(len(warnings), 2)
        self.assertIn("line 3", warnings[0])
        self.assertIn("nobody.weight", warnings[0])
        self.assertIn("line 5", warnings[1])
        # a name that another rule takes first is still a tensor
        self.assertEqual(len(self.warned(source, "--mix", self.rules("a keep\n@promoted pn4t"), "--promote", listed)), 2)

    def test_promoted_names_that_no_rule_asks_for(self):
        source, listed = self.model([f32("a", (64, 1))]), self.write("promoted.txt", b"a\n")
        warnings = self.warned(source, "--mix", self.rules("* pn4t"), "--promote", listed)
        self.assertEqual(len(warnings), 1)
        self.assertIn("@promoted", warnings[0])

    def test_verify_warns_too(self):
        source, rules = self.model([f32("a", (64, 1))]), self.rules("a pn4t\nb pn3t")
        self.done("quantize", source, self.path("out"), "--mix", rules)
        self.done("verify", self.path("out"), source, "--mix", rules)


class DryRun(MixTest):
    def test_weights_are_not_read(self):
        # NaN everywhere, and a file that ends before its data would be read
        tensors = [f32("w", (64, 1), weights=[math.nan] * 64)]
        source = self.model(tensors)
        document = self.dry_run(source, "--mix", self.rules("* pn4t"))
        self.assertEqual(document["tensors"][0]["bytes_out"], 34)

    def test_out_may_be_named(self):
        source, rules = self.model([f32("w", (64, 1))]), self.rules("* pn4t")
        document = self.dry_run(source, self.path("out"), "--mix", rules)
        self.assertEqual(document["output"], str(self.path("out")))
        old = self.write("old", b"old")
        self.fails(OUTPUT, "quantize", source, old, "--mix", rules, "--dry-run", names=("old",))
        self.dry_run(source, old, "--mix", rules, "--force")
        self.same_bytes(old, b"old")

    def test_the_table_names_rules(self):
        source = self.model([f32("a", (64, 1)), f32("b", (65, 1))])
        text = self.done("quantize", source, "--dry-run", "--mix", self.rules("\na pn4t\n*  K=65   pn3t\n")).out.decode()
        self.assertRegex(text, r"(?m)^a .*pn4t.*line 2: a pn4t")
        self.assertRegex(text, r"(?m)^b .*F32.*line 3: \*  K=65   pn3t")
        self.assertIn("dry run", text)

    def test_strict(self):
        source = self.model([f32("a", (64, 1)), f32("b", (65, 1))])
        self.says_no("quantize", source, "--dry-run", "--strict", "--mix", self.rules("* pn4t"))
        self.done("quantize", source, "--dry-run", "--strict", "--mix", self.rules("a pn4t\n* keep"))
        self.says_no("quantize", source, "--dry-run", "--strict", "--mix", self.rules("* keep"))


class Verify(MixTest):
    def setUp(self):
        super().setUp()
        self.tensors = [bf16("a", (320, 2), 1), bf16("b", (256, 2), 2), bf16("c", (320, 1), 3), bf16("d", (256, 1), 4)]
        self.donor = [k_quant("b", (256, 2), Q4_K, 1), k_quant("d", (256, 1), Q4_K, 1)]
        self.mixes(self.tensors, "a pn3t\nb donor\nc q8_0\n* keep", donor=self.donor)
        self.out, self.source, self.given = self.path("out.gguf"), self.path("in.gguf"), ("--donor", self.path("donor.gguf"))

    def equal(self, document):
        return {t["name"]: t["equal"] for t in document["tensors"]}

    def test_other_rules(self):
        for text, wrong in (("a pn4t\nb donor\nc q8_0", "a"), ("a pn3t\nb q8_0\nc q8_0", "b"), ("a pn3t\nb donor\nc pn4t", "c"),
                            ("a pn3t\nb donor\nc q8_0\nd pn4t", "d"), ("a keep\nb donor\nc q8_0", "a"),
                            ("a pn3t\nb donor\nd donor\nc q8_0", "d")):
            document = self.says_no("verify", self.out, self.source, "--mix", self.rules(text, "other.txt"), *self.given)
            self.assertEqual(self.equal(document), {name: name != wrong for name in "abcd"}, text)
            self.assertEqual(document["first"]["tensor"], wrong)

    def test_another_donor(self):
        rules = ("--mix", self.path("rules.txt"))
        changed = bytearray(self.donor[0].data)
        changed[144 + 9] ^= 4
        other = [Tensor("b", (256, 2), Q4_K, bytes(changed))]
        document = self.says_no("verify", self.out, self.source, *rules, "--donor", self.model(other, name="other.gguf"))
        self.assertEqual(self.equal(document), {"a": True, "b": False, "c": True, "d": True})
        self.assertEqual((document["first"]["tensor"], document["first"].get("block")), ("b", 1))
        other = self.model([k_quant("b", (256, 2), Q3_K)], name="other.gguf")
        self.says_no("verify", self.out, self.source, *rules, "--donor", other)
        other = self.model([self.donor[1]], name="other.gguf")
        self.fails(BAD_INPUT, "verify", self.out, self.source, *rules, "--donor", other, names=("b", "other.gguf"))
        self.fails(USAGE, "verify", self.out, self.source, *rules, names=("--donor",))

    def test_without_rules(self):
        # types tell what was done, but only the donor knows its tensors
        self.done("verify", self.out, self.source, *self.given)
        document = self.says_no("verify", self.out, self.source)
        self.assertEqual(self.equal(document), {"a": True, "b": False, "c": True, "d": True})

    def test_a_flipped_byte_in_every_tensor(self):
        blob = self.out.read_bytes()
        starts = {tensor.name.decode(): start for tensor, start in zip(gguf.parse(blob).tensors, gguf.parse(blob).offsets)}
        for name, at, block in (("a", 34 * 5 + 3, 5), ("b", 144 + 3, 1), ("c", 34 * 7 + 12, 7), ("d", 300, None)):
            flipped = bytearray(blob)
            flipped[starts[name] + at] ^= 1
            other = self.write("flipped.gguf", bytes(flipped))
            document = self.says_no("verify", other, self.source, "--mix", self.path("rules.txt"), *self.given)
            self.assertEqual(self.equal(document), {other: other != name for other in "abcd"})
            self.assertEqual(document["first"].get("block"), block)

    def test_errors_are_told_again(self):
        document = self.done_json("verify", self.out, self.source, "--mix", self.path("rules.txt"), *self.given)
        for tensor, to in zip(self.tensors, ("pn3t", None, "q8_0", None)):
            shown = next(t for t in document["tensors"] if t["name"] == tensor.name)
            if to:
                wanted = oracle.nrmse(expected.weights_of(tensor), testing.decoded(testing.quantized(tensor, to)))
                self.assertLessEqual(abs(shown["nrmse"] - wanted), 1e-12 * wanted)


class Options(MixTest):
    def setUp(self):
        super().setUp()
        self.source = self.model([f32("w", (256, 1))])
        self.mix = ("--mix", self.rules("* pn4t"))
        self.donor = self.model([k_quant("w", (256, 1), Q4_K)], name="donor.gguf")
        self.listed = self.write("promoted.txt", b"w\n")

    def refused(self, *words, names=()):
        before = contents(self.folder)
        self.fails(USAGE, "quantize", self.source, *words, names=names)
        self.assertEqual(contents(self.folder), before)

    def test_options_that_contradict_each_other(self):
        out = self.path("out")
        self.refused(out, *self.mix, "--type", "pn4t", names=("--type", "--mix"))
        self.refused(out, "--type", "pn4t", "--promote", self.listed, names=("--promote", "--mix"))
        self.refused(out, "--type", "pn4t", "--donor", self.donor, names=("--donor", "--mix"))
        self.refused(out, "--promote", self.listed)
        self.refused(out, names=("--type",))
        self.refused(*self.mix, names=("OUT",))
        self.refused(out, "--mix", self.rules("@promoted pn4t", "other.txt"), names=("--promote",))
        self.fails(USAGE, "verify", self.source, self.source, "--promote", self.listed, names=("--promote",))

    def test_out_is_one_of_the_files_that_are_read(self):
        files = {"--promote": self.listed, "--donor": self.donor}
        words = list(self.mix) + [word for pair in files.items() for word in pair]
        os.link(self.donor, self.path("hard.gguf"))
        os.symlink("rules.txt", self.path("soft.txt"))
        for out in (self.mix[1], self.listed, self.donor, self.source, self.path("hard.gguf"), self.path("soft.txt")):
            for force in ((), ("--force",)):
                self.refused(out, *words, *force, names=(out.name,))

    def test_out_is_a_file_of_the_donor(self):
        parts = [[k_quant("w", (256, 1), Q4_K)], [k_quant("v", (256, 1), Q4_K)]]
        folder = st.write_model(self.path("donor"), st.split_gguf(parts))
        first, second = (folder / st.shard_name("model", i, 2, "gguf") for i in (1, 2))
        for donor in (folder, first):
            for out in (first, second, folder):
                self.refused(out, *self.mix, "--donor", donor, "--force")


class Example(MixTest):
    """examples/mixes/p0k19.txt on a model that has its names and row lengths, but few rows."""

    RESULTS = {  # name: (K, rows; 0: 1-D), type afterwards
        "token_embd.weight": (5120, 2, Q3_K), "output_norm.weight": (5120, 0, F32), "output.weight": (5120, 2, Q4_K),
        "blk.0.attn_norm.weight": (5120, 0, F32), "blk.0.post_attention_norm.weight": (5120, 0, F32),
        "blk.0.attn_qkv.weight": (5120, 2, PN3T), "blk.0.attn_gate.weight": (5120, 1, PN3T), "blk.0.ssm_a": (48, 0, F32),
        "blk.0.ssm_conv1d.weight": (4, 10, F32), "blk.0.ssm_dt.bias": (48, 0, F32), "blk.0.ssm_norm.weight": (128, 0, F32),
        "blk.0.ssm_alpha.weight": (5120, 1, Q8_0), "blk.0.ssm_beta.weight": (5120, 1, Q8_0), "blk.0.ssm_out.weight": (6144, 1, PN4T),
        "blk.0.ffn_gate.weight": (5120, 1, PN3T), "blk.0.ffn_up.weight": (5120, 1, PN4T), "blk.0.ffn_down.weight": (17408, 1, PN4T),
        "blk.3.attn_q.weight": (5120, 1, PN4T), "blk.3.attn_k.weight": (5120, 1, PN4T), "blk.3.attn_v.weight": (5120, 1, PN4T),
        "blk.3.attn_q_norm.weight": (256, 0, F32), "blk.3.attn_k_norm.weight": (256, 0, F32), "blk.3.attn_output.weight": (6144, 1, PN4T),
        "blk.3.ffn_up.weight": (5120, 1, PN3T), "blk.11.ffn_down.weight": (17408, 1, PN4T)}
    PROMOTED = ["blk.3.attn_q.weight", "blk.0.ffn_up.weight"]

    def test_p0k19(self):
        pattern = oracle.u16s(oracle.gaussian_bf16(2560, 5, 0.02))  # few different blocks: the tests' quantizer is slow
        tensors = []
        for name, (k, rows, _) in self.RESULTS.items():
            count = k * max(rows, 1)
            weights = (pattern * (count // len(pattern) + 1))[:count]
            if rows and "conv1d" not in name:
                tensors.append(Tensor(name, (k, rows), BF16, oracle.u16_bytes(weights)))
            else:
                values = [oracle.bf16_value(bits) for bits in weights]
                tensors.append(f32(name, (k, rows) if rows else (k,), weights=values))
        donor = [k_quant("token_embd.weight", (5120, 2), Q3_K), k_quant("output.weight", (5120, 2), Q4_K)]
        text = (SOURCE_DIR / "examples" / "mixes" / "p0k19.txt").read_text()
        document, after = self.mixes(tensors, text, [Key("general.architecture", gguf.STRING, "qwen3next")], self.PROMOTED, donor)
        self.assertEqual({t.name: t.type for t in after}, {name: result for name, (_, _, result) in self.RESULTS.items()})
        self.assertNotIn("warnings", document)


if __name__ == "__main__":
    main()
