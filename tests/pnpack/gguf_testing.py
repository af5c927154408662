"""What the tests of quantizing by rules and by importance share: tensors to test with, and what must become of them."""

import dataclasses
import functools
import math

import expected
import gguf_files as gguf
import oracle
from gguf_files import BF16, F16, F32, P12, PN3T, PN4T, Key, Tensor

P12_KEYS = [Key("p12.version", gguf.U32, 1), Key("p12.type_id", gguf.U32, P12)]
# type of a rule -> (type id, weights per block)
TARGETS = {"pn3t": (PN3T, 80), "pn4t": (PN4T, 64), "q8_0": (gguf.Q8_0, 32)}
TYPE_NAMES = {F32: "F32", F16: "F16", BF16: "BF16", P12: "BF16_P12", PN3T: "pn3t", PN4T: "pn4t", gguf.Q8_0: "Q8_0"}


def f32(name, dims, seed=1, weights=None):
    if weights is None:
        weights = oracle.gaussian(math.prod(dims), seed, 0.05)
    return Tensor(name, tuple(dims), F32, oracle.f32_bytes(weights))


def f16(name, dims, seed=1):
    weights = oracle.gaussian(math.prod(dims), seed, 0.05)
    return Tensor(name, tuple(dims), F16, oracle.u16_bytes([oracle.fp16_bits(w) for w in weights]))


def bf16(name, dims, seed=1):
    return Tensor(name, tuple(dims), BF16, oracle.gaussian_bf16(math.prod(dims), seed, 0.05))


def p12(name, dims, seed=1):
    return Tensor(name, tuple(dims), P12, oracle.p12_pack(bf16(name, dims, seed).data))


@functools.lru_cache(maxsize=None)
def pn_block(kind_name, weights, importance):
    return oracle.pn_quantize_block(oracle.KINDS[kind_name], weights, importance)


def quantized(tensor, to, importance=None):
    """A tensor that fits, after it became pn3t, pn4t or q8_0; importance: one g for each weight, for PN's search."""
    type_id, block = TARGETS[to]
    weights = expected.weights_of(tensor)
    if to == "q8_0":
        return dataclasses.replace(tensor, type=type_id, data=oracle.q8_0_quantize(weights))
    blocks = []
    for at in range(0, len(weights), block):
        g = None if importance is None else tuple(importance[at:at + block])
        blocks.append(pn_block(to, tuple(weights[at:at + block]), g))
    return dataclasses.replace(tensor, type=type_id, data=b"".join(blocks))


def decoded(tensor):
    """The weights of a tensor that became pn3t, pn4t or Q8_0."""
    if tensor.type == gguf.Q8_0:
        return oracle.q8_0_decode(tensor.data)
    return oracle.pn_decode(oracle.PN3T if tensor.type == PN3T else oracle.PN4T, tensor.data)


def keys_after(after, keys=(), search="reference"):
    """Keys of a quantized file with the tensors `after`."""
    keys = list(keys)
    if not any(tensor.type == P12 for tensor in after):
        keys = [key for key in keys if not expected.key_named([key], b"p12.")]
    if any(tensor.type in (PN3T, PN4T) for tensor in after):
        keys += [Key("pn.version", gguf.U32, 0), Key("pn.search", gguf.STRING, search)]
    return keys


def rewritten(tensors, after, keys=(), search="reference"):
    """The file that quantizing gguf.build(tensors, keys) must give."""
    if all(a is b for a, b in zip(after, tensors)):
        return gguf.build(tensors, keys)
    return gguf.build(after, keys_after(after, keys, search), final_padding=expected.padded_at_the_end(tensors, keys, True))
