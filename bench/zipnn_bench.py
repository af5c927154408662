"""Times zipnn's lossless compression of bf16 weights on one thread; prints JSON. Run by the Python in $PN_PEERS/zipnn.

The weights are normally distributed, as in the C++ benchmarks. Compressing bytes needs no PyTorch, though zipnn imports
it; a stand-in saves some gigabytes.
"""

import json
import sys
import time
from unittest import mock

for module in ("torch", "safetensors", "safetensors.torch"):
    sys.modules[module] = mock.MagicMock()

import numpy  # noqa: E402
import zipnn  # noqa: E402


def main():
    repetitions = int(sys.argv[1])
    weights = numpy.random.default_rng(1).normal(0, 0.02, 1 << 25).astype(numpy.float32)
    data = bytes((weights.view(numpy.uint32) >> 16).astype(numpy.uint16))
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1)
    rates = {"pack": [], "unpack": []}
    for _ in range(repetitions):
        copy = bytearray(data)  # compressing overwrites its input
        start = time.perf_counter()
        packed = codec.compress(copy)
        middle = time.perf_counter()
        unpacked = codec.decompress(packed)
        end = time.perf_counter()
        if bytes(unpacked) != data:
            sys.exit("zipnn: the result differs from the input")
        rates["pack"].append(len(data) / (middle - start))
        rates["unpack"].append(len(data) / (end - middle))
    print(json.dumps({
        "bytes": len(data),
        "packed_bytes": len(packed),
        "pack": rates["pack"],
        "unpack": rates["unpack"],
    }))


if __name__ == "__main__":
    main()
