#!/usr/bin/env python3
"""Makes models, lets the engine run them and prints one table: is what packed weights say what it should be?

usage: checks.py --source DIR --engine BUILD --pnpack PROGRAM --work DIR [--small] [--threads N] [--json FILE]

--small: a generated model of 28 million weights; no download and no speeds. Otherwise SmolLM2-135M-Instruct for texts
and perplexity, and a generated model of 1.5 billion weights for speed. What is in DIR is used again. Exit status 1 when
a check fails; speeds below the targets are shown and do not fail, since machines differ. README.md has the commands.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
QUESTIONS = ["What is the capital of France?", "Explain photosynthesis in two sentences.",
             "How many legs does a spider have?", "Write a short story about a lighthouse keeper and a storm.",
             "Give me three names for a cat, and say why each of them is good."]
# For a model that knows letters only, and for one conversation.
LINES = ["The quick brown fox jumps over the lazy dog.", "It was a bright cold day in April,",
         "abcabcabcabcabcabcabcabcabcabc", "0, 1, 1, 2, 3, 5, 8, 13, 21, 34, ", "Call me"]
LONG = [" ".join(QUESTIONS + LINES)]  # a hundred tokens
LOGITS_TOLERANCE = {"i16": 1e-3, "f32": 1e-3, "q8_0": 5e-2}


class Failure(Exception):
    """What cannot be done, in words."""


class Checks:
    """Runs programs, keeps what they said, and the rows of the table."""

    def __init__(self, options):
        self.engine, self.pnpack, self.work = options.engine, options.pnpack, options.work
        self.threads, self.small = options.threads, options.small
        self.rows = []
        self.failed = 0

    def row(self, what, expected, found, good=None):
        """good: True, False, or None for what is only told."""
        verdict = {True: "ok", False: "FAILED", None: ""}[good]
        self.rows.append((what, expected, found, verdict))
        self.failed += good is False
        print(f"{verdict:6} {what}: {found}", flush=True)

    def call(self, *command, env=None, fails=False, errors=False):
        command = [str(part) for part in command]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              env={**os.environ, **(env or {})})
        if (done.returncode != 0) != fails:
            raise Failure(f"exit status {done.returncode}: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stderr if fails else done.stdout + (done.stderr if errors else "")

    def made(self, name, *command):
        """A file of the work folder, made by a command that is given its path, unless it is there."""
        path = self.work / name
        if not path.is_file():
            print(f"       making {name}", flush=True)
            part = self.work / f".part-{name}"
            self.call(*[part if word is OUT else word for word in command])
            os.replace(part, path)
        return path

    def lines(self, name, lines):
        path = self.work / name
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def compare(self, model, prompts, *options, env=None, threads=None):
        out = self.call(self.engine / "compare", model, "--prompt", prompts, "--threads", threads or self.threads,
                        *options, env=env)
        return [json.loads(line) for line in out.splitlines()]

    def logits(self, model, prompts, *options, env=None):
        path = self.work / "logits.bin"
        try:
            self.compare(model, prompts, "--logits", path, *options, env=env)
            return np.fromfile(path, dtype="<f4").astype(np.float64)
        finally:
            path.unlink(missing_ok=True)

    def tensors(self, model):
        return json.loads(self.call(self.pnpack, "inspect", "--json", model))["tensors"]


OUT = object()
PROOF = {"GGML_PN_PROOF": "1"}
TWIN = {"GGML_PN_BF16": "1"}


def same(a, b, key):
    return [x[key] == y[key] for x, y in zip(a, b)]


def count(flags):
    return f"{sum(flags)} of {len(flags)}"


def matrices(tensors):
    return [t for t in tensors if len(t["shape"]) > 1]


def weights_of(tensors):
    return sum(int(np.prod(t["shape"])) for t in tensors)


def bits_per_weight(tensors):
    return 8 * sum(t["bytes"] for t in tensors) / weights_of(tensors)


def types_of(tensors):
    """Tensors of each type and kind, such as `30 ffn_down bf16_p12`."""
    kinds = collections.Counter((re.sub(r"^blk\.\d+\.|\.weight$", "", t["name"]), t["type"]) for t in matrices(tensors))
    groups = collections.defaultdict(list)
    for (kind, type_name), number in kinds.items():
        groups[type_name].append(f"{number} {kind}" if number > 1 else kind)
    return "; ".join(f"{type_name}: {', '.join(members)}" for type_name, members in sorted(groups.items()))


# CHECKS ---------------------------------------------------------------------------------------------------------------

def check_texts(c, name, bf16, p12, prompts, options):
    """BF16 and BF16_P12: the same tokens, and the same bits where sums have the same order."""
    plain = c.compare(bf16, prompts, *options)
    if "--template" in options:
        for answer in plain:
            print(f"       | {answer['text'][:100]!r}")
    proof = c.compare(p12, prompts, *options, env=PROOF)
    good = same(plain, proof, "tokens"), same(plain, proof, "logits")
    c.row(f"{name}: P12 in proof mode", "tokens and all bits of logits as BF16",
          f"tokens {count(good[0])}, logits {count(good[1])}", all(good[0] + good[1]))
    packed = c.compare(p12, prompts, *options)
    good = same(plain, packed, "tokens")
    c.row(f"{name}: P12", "tokens as BF16", count(good), all(good))
    twin = c.compare(bf16, prompts, *options, env=TWIN)
    good = same(twin, packed, "logits")
    c.row(f"{name}: P12 and BF16, both through pn::cpu", "all bits of logits", count(good), all(good))
    alone = c.compare(p12, prompts, *options, threads=1)
    good = same(alone, packed, "logits")
    c.row(f"{name}: P12 with 1 and {c.threads} threads", "all bits of logits", count(good), all(good))
    for size in 1, 7, 16, 40:
        steps = ["--evaluate", size]
        good = same(c.compare(bf16, prompts, *steps, env=TWIN), c.compare(p12, prompts, *steps), "logits")
        proof = same(c.compare(bf16, prompts, *steps), c.compare(p12, prompts, *steps, env=PROOF), "logits")
        c.row(f"{name}: a prompt, {size} tokens at a time", "P12 and BF16: all bits of logits, and in proof mode",
              f"{count(good)}, {count(proof)}", all(good + proof))
    return packed


def check_speculation(c, name, model, prompts, options, plain, seen=False):
    """seen: n-grams of the right answer are known, for a model that never says the same twice."""
    if seen:
        options = options + ["--seen", c.lines("seen.txt", map(json.dumps, plain))]
    drafted = c.compare(model, prompts, *options, "--draft", 8)
    good = same(plain, drafted, "tokens")
    total, right = sum(a["drafted"] for a in drafted), sum(a["accepted"] for a in drafted)
    found = f"{count(good)}; {right} of {total} guesses right"
    expected = "the tokens of plain decoding"
    if seen:
        # The engine's attention rounds otherwise for several tokens, and such a model has near ties.
        expected += ", or a first difference where two tokens tie"
        ties = [lead_at_difference(a, b) for a, b in zip(plain, drafted) if a["tokens"] != b["tokens"]]
        found += "".join(f"; a lead of {tie:.0e} is lost" for tie in ties)
        good = [tie <= LOGITS_TOLERANCE["i16"] for tie in ties]
    c.row(f"{name}: speculative decoding (n-grams, 8 tokens)", expected, found, all(good) and right > 0)


def lead_at_difference(plain, other):
    for a, b, lead in zip(plain["tokens"], other["tokens"], plain["leads"]):
        if a != b:
            return lead
    return float("inf")


def check_lora(c, name, bf16, p12, lora, prompts, options, plain):
    before = hashlib.sha256(p12.read_bytes()).digest()
    with_it = c.compare(p12, prompts, *options, "--lora", lora)
    off = c.compare(p12, prompts, *options, "--lora", lora, "--lora-off")
    differs = [not flag for flag in same(plain, with_it, "logits")]
    good = same(plain, off, "logits")
    c.row(f"{name}: LoRA on, then off", "on: other logits; off: all bits as without", f"{count(differs)}; {count(good)}",
          all(differs + good))
    good = same(c.compare(bf16, prompts, *options, "--lora", lora), c.compare(p12, prompts, *options, "--lora", lora,
                                                                              env=PROOF), "logits")
    c.row(f"{name}: LoRA on P12 in proof mode", "all bits of logits as on BF16", count(good), all(good))
    untouched = hashlib.sha256(p12.read_bytes()).digest() == before
    c.row(f"{name}: packed file after LoRA", "untouched", "untouched" if untouched else "changed", untouched)


def check_state(c, name, model, lines, options):
    """A conversation that is saved before its last turn goes on in the same way elsewhere."""
    state = c.work / "state.bin"
    whole = c.compare(model, c.lines("chat.txt", lines), *options, "--chat", "--save", state)
    rest = c.compare(model, c.lines("chat-last.txt", lines[-1:]), *options, "--chat", "--restore", state)
    good = [whole[-1][key] == rest[-1][key] for key in ("tokens", "logits")]
    c.row(f"{name}: saved and restored conversation", "the same reply, all bits of logits", count(good), all(good))
    state.unlink()


def check_pn(c, name, model, decoded, prompts, options):
    """Against the same weights decoded to F32: a shift by the element's index, the known fault, would be far off. Seven
    tokens go through pn::cpu::multiply, 64 through multiply_batch."""
    long = c.lines("long.txt", LONG)
    for size in 1, 7, 64:
        wanted = c.logits(decoded, long, "--evaluate", size)
        for kind, tolerance in LOGITS_TOLERANCE.items():
            found = c.logits(model, long, "--evaluate", size, env={"GGML_PN_ACTIVATIONS": kind})
            error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
            c.row(f"{name}: logits, {size} tokens at a time, activations {kind}",
                  f"within {tolerance} of the weights in F32", f"{error:.1e}", error <= tolerance)
    good = same(*[c.compare(model, long, "--evaluate", 64, threads=threads) for threads in (1, c.threads)], "logits")
    one = c.compare(model, prompts, *options, threads=1)
    plain = c.compare(model, prompts, *options)
    good += same(one, plain, "logits")
    c.row(f"{name}: 1 and {c.threads} threads, a prompt and answers", "all bits of logits", count(good), all(good))
    return plain


def check_rows(c, name, model):
    rows = json.loads(c.call(c.engine / "compare", model, "--rows"))
    c.row(f"{name}: vec_dot against to_float", "within 1e-6, for every matrix",
          f"{rows['difference']:.1e}, {rows['rows']} matrices",
          rows["difference"] <= 1e-6 and rows["rows"] == len(matrices(c.tensors(model))))


def check_refused(c, name, model, prompts):
    """Files with a rotation that cannot be are refused, and nothing crashes."""
    data = bytearray(model.read_bytes())
    at = data.index(b"pn.hadamard.block_size") + len("pn.hadamard.block_size") + 4
    broken = c.work / "broken.gguf"
    for value in 100, 1024 * 1024:
        data[at:at + 4] = value.to_bytes(4, "little")
        broken.write_bytes(data)
        said = c.call(c.engine / "compare", broken, "--prompt", prompts, fails=True)
        c.row(f"{name}: pn.hadamard.block_size = {value}", "refused, and told why",
              "refused" if "pn.hadamard.block_size" in said else said[-200:],
              "pn.hadamard.block_size" in said and "does not load it" in said)
    broken.unlink()


def check_cuda(c, source):
    """Our file and the engine's dispatch that calls it, for Hopper. Whether they run is for a machine with a GPU."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        c.row("CUDA backend", "compiles for sm_90", "not compiled: there is no nvcc")
        return
    includes = [HERE, HERE.parents[1] / "include"] + [source / "ggml" / part for part in
                                                     ("include", "src", "src/ggml-cuda")]
    for file in HERE / "ggml-pn-cuda.cu", source / "ggml/src/ggml-cuda/ggml-cuda.cu":
        c.call(nvcc, "-std=c++17", "-arch=sm_90", "-O1", "--extended-lambda", "-DGGML_CUDA_USE_GRAPHS",
               *[f"-I{folder}" for folder in includes], "-c", file, "-o", os.devnull)
        c.row(f"CUDA backend: {file.name}", "compiles for sm_90", "compiles", True)


# MODELS ---------------------------------------------------------------------------------------------------------------

def models(c):
    return sys.executable, "-B", HERE / "models.py"


def quantized(c, bf16, name, type_name, *options):
    return c.made(f"{name}-{type_name}.gguf", c.pnpack, "quantize", "--quiet", "--type", type_name, *options, bf16, OUT)


def run_small(c):
    bf16 = c.made("small.gguf", *models(c), "generate", OUT, "--small")
    p12 = c.made("small-p12.gguf", c.pnpack, "pack", "--quiet", bf16, OUT)
    lora = c.made("small-lora.gguf", *models(c), "lora", bf16, OUT, "--rank", 8)
    prompts = c.lines("lines.txt", LINES)
    options = ["--tokens", 40]
    packed = [t["type"] for t in matrices(c.tensors(p12))]
    c.row("small: packed matrices", "all", f"{packed.count('BF16_P12')} of {len(packed)}",
          packed.count("BF16_P12") == len(packed))
    plain = check_texts(c, "small", bf16, p12, prompts, options)
    check_speculation(c, "small P12", p12, prompts, options, plain, seen=True)
    check_lora(c, "small", bf16, p12, lora, prompts, options, plain)
    check_state(c, "small P12", p12, LINES, options)
    check_rows(c, "small P12", p12)
    for type_name in "pn3t", "pn4t":
        for rotation in 0, 256:
            rotate = ["--rotate", rotation] if rotation else []
            model = quantized(c, bf16, "small-rotated" if rotation else "small", type_name, *rotate)
            decoded = c.made(f"{model.stem}-f32.gguf", c.pnpack, "unpack", "--quiet", model, OUT)
            plain = check_pn(c, f"small {type_name}{', rotated' if rotation else ''}", model, decoded, prompts, options)
        check_rows(c, f"small {type_name}", model)
        check_speculation(c, f"small {type_name}, rotated", model, prompts, options, plain, seen=True)
    check_refused(c, f"small {type_name}", model, prompts)


def run_smollm2(c):
    cache = c.work / "cache"
    cache.mkdir(exist_ok=True)
    source = c.call(*models(c), "fetch-smollm2", "--cache", cache).strip()
    bf16 = c.made("smollm2.gguf", *models(c), "smollm2", source, OUT)
    p12 = c.made("smollm2-p12.gguf", c.pnpack, "pack", "--quiet", bf16, OUT)
    lora = c.made("smollm2-lora.gguf", *models(c), "lora", bf16, OUT, "--rank", 8)
    prompts = c.lines("questions.txt", QUESTIONS)
    options = ["--template", "--tokens", 64]
    packed = [t for t in c.tensors(p12) if t["type"] == "BF16_P12"]
    c.row("SmolLM2: packed matrices", "the 30 ffn_down", types_of(packed),
          len(packed) == 30 and all("ffn_down" in t["name"] for t in packed))
    plain = check_texts(c, "SmolLM2", bf16, p12, prompts, options)
    check_speculation(c, "SmolLM2 P12", p12, prompts, options, plain)
    check_lora(c, "SmolLM2", bf16, p12, lora, prompts, options, plain)
    check_state(c, "SmolLM2 P12", p12, QUESTIONS, options)
    pn4t = quantized(c, bf16, "smollm2", "pn4t")
    decoded = c.made("smollm2-pn4t-f32.gguf", c.pnpack, "unpack", "--quiet", pn4t, OUT)
    check_pn(c, "SmolLM2 pn4t", pn4t, decoded, prompts, options)
    check_rows(c, "SmolLM2 pn4t", pn4t)

    # As llama-quantize has it, which keeps embeddings, here the output matrix too, in more bits.
    mix = c.lines("mix.txt", ["token_embd.weight q8_0", "* pn4t"])
    mixed = {"pn4t, embeddings in Q8_0": [], "pn4t, rotated, embeddings in Q8_0": ["--rotate", 64]}
    mixed = {name: c.made(f"smollm2-mixed{len(options)}.gguf", c.pnpack, "quantize", "--quiet", "--mix", mix, *options,
                          bf16, OUT) for name, options in mixed.items()}
    text = c.made("text.txt", *models(c), "text", OUT, "--cache", cache)
    others = {name: c.made(f"smollm2-{name.lower()}.gguf", c.engine / "bin/llama-quantize", bf16, OUT, name)
              for name in ("Q4_0", "Q4_1", "Q4_K_S")}
    for name, model in {"BF16": bf16, "P12": p12, "pn4t": pn4t, **mixed, **others}.items():
        said = c.call(c.engine / "bin/llama-perplexity", "-m", model, "-f", text, "-c", 512, "--chunks", 24, "-t",
                      c.threads, "-b", 512, errors=True)
        found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", said)
        if found is None:
            raise Failure(f"{model}: llama-perplexity says no perplexity\n{said[-1000:]}")
        tensors = c.tensors(model)
        c.row(f"SmolLM2 {name}: perplexity, 24 chunks of 512", f"({types_of(tensors)})",
              f"{found.group(1)} +/- {found.group(2)} at {bits_per_weight(tensors):.2f} bits per weight")


def speeds(c, model, threads, prompt, generated):
    said = json.loads(c.call(c.engine / "bin/llama-bench", "-m", model, "-t", threads, "-p", prompt, "-n", generated,
                             "-r", 1, "-o", "json"))
    return {("prompt" if run["n_prompt"] else "generation"): run["avg_ts"] for run in said}


def run_big(c):
    cache = c.work / "cache"
    tokenizer = c.call(*models(c), "fetch-smollm2", "--cache", cache).strip()
    bf16 = c.made("big.gguf", *models(c), "generate", OUT, "--tokenizer", tokenizer)
    p12 = c.made("big-p12.gguf", c.pnpack, "pack", "--quiet", bf16, OUT)
    both = {"BF16": bf16, "P12": p12, "pn3t": quantized(c, bf16, "big", "pn3t", "--rotate", 256),
            "pn4t": quantized(c, bf16, "big", "pn4t", "--rotate", 256)}
    for name in "Q3_K", "Q4_K":
        both[name] = c.made(f"big-{name.lower()}.gguf", c.engine / "bin/llama-quantize", "--pure", bf16, OUT, f"{name}_S")
    sizes = {name: sum(t["bytes"] for t in matrices(c.tensors(model))) for name, model in both.items()}
    ratio = sizes["P12"] / sizes["BF16"]
    c.row("1.5 B: bytes of P12 matrices", "0.766 of BF16", f"{ratio:.4f}", abs(ratio - 0.765625) < 1e-6)
    good = same(c.compare(bf16, c.lines("big.txt", QUESTIONS[:2]), "--tokens", 8),
                c.compare(p12, c.work / "big.txt", "--tokens", 8, env=PROOF), "logits")
    c.row("1.5 B: P12 in proof mode", "all bits of logits as BF16", count(good), all(good))

    for threads in sorted({1, c.threads}):
        found = {name: collections.defaultdict(list) for name in both}
        for _ in range(5):  # interleaved, so that a slow minute meets all
            for name, model in both.items():
                for what, value in speeds(c, model, threads, 128, 24).items():
                    found[name][what].append(value)
        for name in both:
            middle = {what: statistics.median(values) for what, values in found[name].items()}
            c.row(f"1.5 B {name}, threads: {threads}", f"({types_of(c.tensors(both[name]))})",
                  "tokens per second: generation %.2f, prompt of 128 %.1f; matrices %.0f MiB"
                  % (middle["generation"], middle["prompt"], sizes[name] / 2**20))
        for one, other, target in ("P12", "BF16", 1.2), ("pn4t", "Q4_K", 1.0), ("pn3t", "Q3_K", 1.0):
            for what in "generation", "prompt":
                ratios = sorted(a / b for a, b in zip(found[one][what], found[other][what]))
                middle = statistics.median(ratios)
                wanted = f"at least {target}" if what == "generation" or target == 1 else ""
                c.row(f"1.5 B {one} over {other}, {what}, threads: {threads}", wanted,
                      f"{middle:.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})"
                      + (" below the target" if wanted and middle < target else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--engine", type=pathlib.Path, required=True)
    parser.add_argument("--pnpack", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    c = Checks(options)
    try:
        check_cuda(c, options.source)
        if options.small:
            run_small(c)
        else:
            run_smollm2(c)
            run_big(c)
    except Failure as error:
        sys.exit(f"checks.py: {error}")
    width = [max(len(row[i]) for row in c.rows) for i in (0, 2)]
    print()
    for what, expected, found, verdict in c.rows:
        print(f"{what:{width[0]}}  {found:{width[1]}}  {verdict:6}  {expected}")
    if options.json:
        keys = "what", "expected", "found", "verdict"
        options.json.write_text(json.dumps([dict(zip(keys, row)) for row in c.rows], indent=1) + "\n")
    print(f"\n{c.failed} of {sum(row[3] != '' for row in c.rows)} checks failed")
    return 1 if c.failed else 0


if __name__ == "__main__":
    sys.exit(main())
