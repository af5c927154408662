"""What pack and quantize must write, built with the tests' own GGUF writer and formats (gguf_files.py, oracle.py)."""

import dataclasses

import gguf_files as gguf
import oracle
from gguf_files import BF16, F16, F32, P12, STRING, U32, Key


def key_named(keys, prefix):
    return any(gguf.to_bytes(key.name).startswith(prefix) for key in keys)


def padded_at_the_end(tensors, keys, final_padding):
    """Whether the output gets final padding: data that ends on a multiple of the alignment counts as padded."""
    return final_padding or gguf.build(tensors, keys) == gguf.build(tensors, keys, final_padding=False)


def packed_tensor(tensor, type_id=P12):
    """The tensor after pack: the same object when it stays."""
    if tensor.type != BF16 or len(tensor.dims) < 2 or tensor.dims[0] % 256 or tensor.elements == 0:
        return tensor
    data = oracle.p12_pack(tensor.data)
    return tensor if data is None else dataclasses.replace(tensor, type=type_id, data=data)


def packed_file(tensors, keys=(), type_id=P12, version=3, final_padding=True):
    """The whole output of pack for the file that gguf.build(tensors, keys, version, final_padding) gives."""
    if all(packed_tensor(tensor) is tensor for tensor in tensors):
        return gguf.build(tensors, keys, version, final_padding)
    final_padding = padded_at_the_end(tensors, keys, final_padding)
    after = [packed_tensor(tensor, type_id) for tensor in tensors]
    keys = list(keys) + [Key("p12.version", U32, 1), Key("p12.type_id", U32, type_id)]
    return gguf.build(after, keys, version, final_padding)


def weights_of(tensor):
    """fp32 values, as floats, of a tensor that quantize takes; None for other types."""
    if tensor.type == F32:
        return oracle.f32s(tensor.data)
    if tensor.type == F16:
        return [oracle.fp16_value(bits) for bits in oracle.u16s(tensor.data)]
    if tensor.type == BF16:
        return [oracle.bf16_value(bits) for bits in oracle.u16s(tensor.data)]
    if tensor.type == P12:
        return [oracle.bf16_value(bits) for bits in oracle.u16s(oracle.p12_unpack(tensor.data))]
    return None


def quantized_tensor(tensor, kind):
    if len(tensor.dims) < 2 or tensor.dims[0] % kind.block or tensor.elements == 0:
        return tensor
    weights = weights_of(tensor)
    if weights is None:
        return tensor
    return dataclasses.replace(tensor, type=kind.type_id, data=oracle.pn_quantize(kind, weights))


def quantized_file(tensors, kind, keys=(), version=3, final_padding=True):
    """The whole output of quantize --type, p12.* keys kept only while a P12 tensor is left."""
    after = [quantized_tensor(tensor, kind) for tensor in tensors]
    if all(a is b for a, b in zip(after, tensors)):
        return gguf.build(tensors, keys, version, final_padding)
    final_padding, keys = padded_at_the_end(tensors, keys, final_padding), list(keys)
    if not any(tensor.type == P12 for tensor in after):
        keys = [key for key in keys if not key_named([key], b"p12.")]
    keys += [Key("pn.version", U32, 0), Key("pn.search", STRING, "reference")]
    return gguf.build(after, keys, version, final_padding)


def decoded_bytes(kind, data, to):
    """Bytes of PN data unpacked to f32, f16 or bf16."""
    values = oracle.pn_decode(kind, data)
    if to == "f32":
        return oracle.f32_bytes(values)
    convert = oracle.fp16_bits if to == "f16" else oracle.bf16_bits
    return oracle.u16_bytes([convert(value) for value in values])
