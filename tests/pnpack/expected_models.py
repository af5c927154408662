"""What the verbs must make of safetensors files and of models in several files, from the tests' own builders and
formats.

Headers are compared as parsed: order and texts of their entries are fixed, JSON's spelling outside strings is not.
"""

import dataclasses
import struct

import expected
import gguf_files as gguf
import oracle
import safetensors_files as st

PN_BYTES = 34


def bytes_per_row(tensor, block, size):
    return tensor.k // block * size


def has_rows(tensor, block):
    return len(tensor.shape) >= 2 and tensor.elements > 0 and tensor.k % block == 0


def packed_tensor(tensor):
    """The tensor after pack: the same object when it stays."""
    if tensor.dtype != "BF16" or not has_rows(tensor, 256):
        return tensor
    data = oracle.p12_pack(tensor.data)
    if data is None:
        return tensor
    shape = tensor.shape[:-1] + (bytes_per_row(tensor, 256, 392),)
    return dataclasses.replace(tensor, dtype="U8", shape=shape, data=data)


def rounded_tensor(tensor):
    """The tensor as --as bf16 reads it."""
    if tensor.dtype not in ("F32", "F16") or len(tensor.shape) < 2:
        return tensor
    return dataclasses.replace(tensor, dtype="BF16", data=rounded_data(tensor.dtype, tensor.data))


def rounded_data(dtype, data):
    if dtype == "F32":
        patterns = struct.unpack("<%dI" % (len(data) // 4), data)
        return oracle.u16_bytes([oracle.bf16_from_f32_bits(bits) for bits in patterns])
    return oracle.u16_bytes([oracle.bf16_from_f16_bits(bits) for bits in oracle.u16s(data)])


def weights_of(tensor):
    type_id = {"F32": gguf.F32, "F16": gguf.F16, "BF16": gguf.BF16}.get(tensor.dtype)
    return None if type_id is None else expected.weights_of(gguf.Tensor(tensor.name, (), type_id, tensor.data))


def quantized_tensor(tensor, kind, rotation=0):
    """The tensor after quantize; token embeddings are never rotated."""
    weights = weights_of(tensor)
    if weights is None or not has_rows(tensor, kind.block):
        return tensor
    if rotation and not tensor.name.endswith("embed_tokens.weight"):
        weights = oracle.rotate(weights, rotation)
    shape = tensor.shape[:-1] + (bytes_per_row(tensor, kind.block, PN_BYTES),)
    return dataclasses.replace(tensor, dtype="U8", shape=shape, data=oracle.pn_quantize(kind, weights))


def decoded_data(kind, data, to, rotation=0):
    """PN data unpacked to f32, f16 or bf16, rounded once."""
    values = oracle.pn_decode(kind, data)
    if not rotation:
        return expected.decoded_bytes(kind, data, to)
    values = oracle.rotate_exactly(values, rotation)
    if to == "f32":
        return oracle.f32_bytes(values)
    return oracle.u16_bytes([(oracle.fp16_bits if to == "f16" else oracle.bf16_bits_once)(value) for value in values])


# ---------------------------------------------------------------- keys: pairs; JSON values as Python values


def packed_keys(before, after, header, rounded_from=None, total_size=None):
    keys = [("p12.version", "1"), ("p12.tensors", [a.name for a, b in zip(after, before) if a.dtype != b.dtype])]
    if rounded_from:
        keys.append(("p12.rounded_from", rounded_from))
    keys.append(("p12.header", header.decode("utf-8")))
    if total_size is not None:
        keys.append(("p12.total_size", total_size))
    return keys


def quantized_keys(before, after, kind, header, rotation=0, total_size=None):
    changed = [(a.name, b) for a, b in zip(after, before) if a.dtype != b.dtype]
    keys = [("pn.version", "0"), ("pn.tensors", {name: [kind.name, list(b.shape), b.dtype] for name, b in changed}),
            ("pn.search", "reference")]
    if rotation:
        keys += [("pn.hadamard.block_size", str(rotation)),
                 ("pn.hadamard.exclude", [name for name, _ in changed if name.endswith("embed_tokens.weight")])]
    keys.append(("p12.header", header.decode("utf-8")))
    if total_size is not None:
        keys.append(("p12.total_size", total_size))
    return keys


def same_text(test, got, wanted):
    """A metadata value: a text, or the compact JSON of a value, with or without escapes for what is not ASCII."""
    if isinstance(wanted, str):
        test.assertEqual(got, wanted)
    else:
        test.assertIn(got, (st.compact(wanted), st.compact(wanted, ascii_only=True)))


def is_made_from(test, blob, original, after, keys):
    """blob is the safetensors file that a verb must write for `original`: these tensors, in the order of the input's
    header and data; the input's metadata, then `keys`; a header that ends on a multiple of 8."""
    got, before = st.parse(blob), st.parse(original)
    names = before.names if st.METADATA in before.names else [st.METADATA] + before.names
    test.assertEqual(got.names, names)
    metadata = before.metadata or []
    test.assertEqual([key for key, _ in got.metadata], [key for key, _ in metadata] + [key for key, _ in keys])
    test.assertEqual(got.metadata[:len(metadata)], metadata)
    for (key, text), (_, wanted) in zip(got.metadata[len(metadata):], keys):
        with test.subTest(key=key):
            same_text(test, text, wanted)
    has_data(test, got, before, after)
    test.assertEqual(got.data_start % 8, 0, "the data does not begin at a multiple of 8")


def has_data(test, got, before, after):
    """Types, shapes and bytes of `after`, the data in the order of `before`."""
    order = sorted(range(len(after)), key=lambda i: before.tensors[i].offsets)
    at, offsets = 0, {}
    for i in order:
        offsets[i] = (at, at + len(after[i].data))
        at = offsets[i][1]
    for i, (tensor, wanted) in enumerate(zip(got.tensors, after)):
        test.assertEqual((tensor.name, tensor.dtype, tensor.shape), (wanted.name, wanted.dtype, tuple(wanted.shape)))
        test.same_bytes(tensor.data, wanted.data, wanted.name)
        test.assertEqual(tensor.offsets, offsets[i], wanted.name)


# ---------------------------------------------------------------- models in several files


def packed_split(shards, keys=(), type_id=gguf.P12, **layout):
    """What pack makes of split_gguf(shards, keys): every file gets the keys, packed tensors or not."""
    ours = [gguf.Key("p12.version", gguf.U32, 1), gguf.Key("p12.type_id", gguf.U32, type_id)]
    return st.split_gguf([[expected.packed_tensor(t, type_id) for t in tensors] for tensors in shards], keys,
                         wrap=lambda tensors, own, i: gguf.build(
                             tensors, own + ours,
                             final_padding=expected.padded_at_the_end(shards[i], own,
                                                                      layout.get("final_padding", True))))


def quantized_split(shards, kind, keys=()):
    ours = [gguf.Key("pn.version", gguf.U32, 0), gguf.Key("pn.search", gguf.STRING, "reference")]
    return st.split_gguf([[expected.quantized_tensor(t, kind) for t in tensors] for tensors in shards], keys,
                         wrap=lambda tensors, own, i: gguf.build(tensors, own + ours))
