"""Runs every pnpack command that README.md shows, on files named as there, and looks for the output that it shows.

Proves that each command exits with 0, that the lines below it are lines of its output in their order, that what is
shown of examples/quickstart.sh is what the tool prints, that verbs and options in the text exist, and that the manual
page names every option of every verb.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import safetensors_files as st  # noqa: E402
from tool import SAMPLE, SOURCE_DIR, ToolTest, main, run  # noqa: E402

README = (SOURCE_DIR / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```[a-z]*\n(.*?)^```$", README, re.M | re.S)
OMITTED = " ..."
Q3_K, Q4_K = 11, 12
BLOCKS = {gguf.F32: (1, 4), gguf.BF16: (1, 2), Q3_K: (256, 110), Q4_K: (256, 144)}


def commands():
    """(command, lines shown below it) for each command in the fences."""
    for fence in FENCES:
        found = None
        for line in fence.splitlines():
            if line.startswith("$ "):
                if found:
                    yield found
                found = (line[2:], [])
            elif found and line and line != OMITTED:
                found[1].append(line)
        if found:
            yield found


def help_of(verb):
    return run(verb, "--help").out.decode()


def verbs():
    listing = run("--help").out.decode()
    return re.findall(r"^  ([a-z]+) ", listing, re.M)


def options_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def write_sparse(path, tensors):
    """A GGUF file of its full size whose data takes no room on the disk: all zeros."""
    offsets, at = [], 0
    for tensor in tensors:
        block, size = BLOCKS[tensor.type]
        offsets.append(at)
        at += tensor.elements // block * size
        at += gguf.padding(at, 32)
    head = gguf.header(tensors, offsets, [gguf.Key("general.architecture", gguf.STRING, "stand-in")])
    head += bytes(gguf.padding(len(head), 32))
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + at)


def matrix(name, rows, k, type_id=gguf.BF16):
    return gguf.Tensor(name, (k, rows), type_id)


def vector(name, k):
    return gguf.Tensor(name, (k,), gguf.F32)


# One layer of each kind of the model that examples/mixes/p0k19.txt is for.
VOCABULARY, HIDDEN, INNER, WIDE = 248320, 5120, 6144, 17408
LAYERS = [
    matrix("token_embd.weight", VOCABULARY, HIDDEN), matrix("output.weight", VOCABULARY, HIDDEN),
    vector("output_norm.weight", HIDDEN),
    vector("blk.0.attn_norm.weight", HIDDEN), matrix("blk.0.attn_qkv.weight", 10240, HIDDEN),
    matrix("blk.0.attn_gate.weight", INNER, HIDDEN), vector("blk.0.ssm_a", 48),
    matrix("blk.0.ssm_alpha.weight", 48, HIDDEN), matrix("blk.0.ssm_beta.weight", 48, HIDDEN),
    matrix("blk.0.ssm_out.weight", HIDDEN, INNER), matrix("blk.0.ffn_gate.weight", WIDE, HIDDEN),
    matrix("blk.0.ffn_up.weight", WIDE, HIDDEN), matrix("blk.0.ffn_down.weight", HIDDEN, WIDE),
    matrix("blk.3.attn_q.weight", 12288, HIDDEN), matrix("blk.3.attn_k.weight", 1024, HIDDEN),
    matrix("blk.3.attn_v.weight", 1024, HIDDEN), matrix("blk.3.attn_output.weight", HIDDEN, INNER)]
DONOR = [matrix("token_embd.weight", VOCABULARY, HIDDEN, Q3_K), matrix("output.weight", VOCABULARY, HIDDEN, Q4_K)]


class Readme(ToolTest):
    def in_order(self, shown, output, what):
        """Every line of `shown` is one of `output`, after the one before it."""
        lines = iter(output)
        for line in shown:
            self.assertTrue(any(line == other for other in lines), "%s: not printed, or earlier: %s" % (what, line))

    def write_stand_ins(self):
        sample = st.parse(SAMPLE.with_suffix(".safetensors").read_bytes())
        tensors = [st.Tensor(t.name, t.dtype, t.shape, t.data) for t in sample.tensors]
        st.write_model(self.path("model"), st.sharded([tensors[:-1], tensors[-1:]], metadata=dict(sample.metadata)))
        write_sparse(self.path("model-bf16.gguf"), LAYERS)
        write_sparse(self.path("model-q3_k.gguf"), DONOR)
        self.path("promoted.txt").write_text("blk.3.attn_q.weight\n")
        self.path("examples").symlink_to(SOURCE_DIR / "examples")

    def test_commands(self):
        self.write_stand_ins()
        found = list(commands())
        self.assertGreaterEqual(len(found), 5)
        for command, shown in found:
            with self.subTest(command):
                result = self.done(*shlex.split(command)[1:], cwd=self.folder)
                self.in_order(shown, [line.rstrip() for line in result.out.decode().splitlines()], command)
                self.assertEqual(result.err, b"", "a warning")
        restored, model = self.path("restored"), self.path("model")
        for file in model.iterdir():
            self.same_bytes(restored / file.name, file.read_bytes(), file.name)
        self.assertIn("<html", self.path("scan.html").read_text(encoding="utf-8"))

    def test_what_the_quick_start_shows(self):
        (shown,) = [fence for fence in FENCES if fence.startswith("[")]
        script = (SOURCE_DIR / "examples" / "quickstart.sh").read_text(encoding="utf-8")
        for heading in re.findall(r"^\[\d+\] (.*)", shown, re.M):
            self.assertIn(heading, script)
        packed, restored, pn4t = self.path("packed"), self.path("restored"), self.path("pn4t")
        runs = (("pack", SAMPLE, packed), ("unpack", packed, restored), ("quantize", SAMPLE, pn4t, "--type", "pn4t"))
        printed = [line for words in runs for line in self.done(*words).out.decode().splitlines()]
        self.same_bytes(restored, SAMPLE.read_bytes())
        # the script's own: headings, cmp, and the sizes of files
        own = re.compile(r"\[\d+\] |cmp: |  ")
        lines = [line for line in shown.splitlines() if line and line != OMITTED and not own.match(line)]
        self.in_order(lines, [line.rstrip() for line in printed], "quickstart.sh")
        sizes = re.findall(r"^  (original|BF16_P12|pn4t)[a-z, ]* (\d+) +([\d.]+) +([\d.]+)%$", shown, re.M)
        files = (("original", SAMPLE), ("BF16_P12", packed), ("pn4t", pn4t))
        self.assertEqual([size[0] for size in sizes], [name for name, _ in files])
        for (name, size, bits, percent), (_, path) in zip(sizes, files):
            bytes_, real = path.stat().st_size, self.done_json("inspect", path)["totals"]["bits_per_weight"]
            self.assertEqual((size, bits, percent),
                             (str(bytes_), "%.2f" % real, "%.1f" % (100 * bytes_ / SAMPLE.stat().st_size)), name)

    def test_verbs_and_options_exist(self):
        section = README[README.index("\n## The tool\n"):README.index("\n## Limits\n")]
        self.assertEqual(sorted(re.findall(r"^\| `([a-z]+) [A-Z]", section, re.M)), sorted(verbs()))
        known = options_of(run("--help").out.decode()).union(*(options_of(help_of(verb)) for verb in verbs()))
        self.assertEqual(options_of(section) - known, set(), "options that no verb has")


class Manual(ToolTest):
    def test_it_names_everything(self):
        page = self.done("--man").out.decode().replace("\\-", "-")
        for verb in verbs():
            self.assertRegex(page, r"(?m)^\.S[HS] .*\b%s\b" % verb)
        for option in set.union(*(options_of(help_of(verb)) for verb in verbs())):
            self.assertIn(option, page)

    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_groff_has_no_complaint(self):
        page = self.done("--man").out
        result = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, capture_output=True, check=True)
        self.assertEqual(result.stderr, b"")


if __name__ == "__main__":
    main()
