"""Whole models larger than memory: 8 GiB in shards, and one tensor of more than 2^32 elements.

Proves that pack, verify, check, scan, unpack and diff stay below 256 MiB, whatever the size of files and tensors, and
give the identical files back. Inputs are sparse files with weights at some places. Needs 20 GB of free disk, and says so
when it has less.
"""

import filecmp
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tool import DONE, ToolTest, main, run_measured, under_asan  # noqa: E402

NEEDED = 20 * 10**9
MEBIBYTES = 256
GIB = 1 << 30
INDEX = "model.safetensors.index.json"
SPOT = struct.pack("<256H", *(0x3F80 + i % 64 for i in range(256)))


def write_sparse(path, tensors, every=64 << 20):
    """A safetensors file of BF16 zeros, with a block of other weights at every 64 MiB. tensors: [(name, rows, K)]."""
    header, at = {}, 0
    for name, rows, k in tensors:
        header[name] = {"dtype": "BF16", "shape": [rows, k], "data_offsets": [at, at + 2 * rows * k]}
        at += 2 * rows * k
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for place in range(0, at, every):
            file.seek(8 + len(text) + place)
            file.write(SPOT)
        file.truncate(8 + len(text) + at)
    return at


class LargeModels(ToolTest):
    def setUp(self):
        super().setUp()
        free = shutil.disk_usage(self.folder).free
        if free < NEEDED:
            print("SKIPPED: %d GB of free disk, %d needed" % (free // 10**9, NEEDED // 10**9), file=sys.stderr)
            self.skipTest("too little free disk")

    def bounded(self, *words):
        """Runs the tool and holds its peak memory against the bound."""
        result, _, mebibytes = run_measured(*words, "--quiet", limit=1800)
        self.assertEqual(result.code, DONE, str(result))
        if not under_asan():
            self.assertLess(mebibytes, MEBIBYTES, str(result))

    def all_verbs(self, source):
        packed, back = self.path("packed"), self.path("back")
        self.bounded("pack", source, packed)
        self.bounded("verify", packed, source)
        self.bounded("check", packed)
        self.bounded("unpack", packed, back)
        self.bounded("diff", back, source)
        return packed, back

    def test_shards_of_8_gib(self):
        source = self.path("in")
        source.mkdir()
        weight_map, total = {}, 0
        for shard in range(1, 5):
            name = "model-%05d-of-00004.safetensors" % shard
            tensors = [("layers.%d.%d.weight" % (shard, i), 1 << 14, 1 << 14) for i in range(4)]
            total += write_sparse(source / name, tensors)
            weight_map.update({tensor: name for tensor, _, _ in tensors})
        self.assertGreaterEqual(total, 8 * GIB)
        (source / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2))
        _, back = self.all_verbs(source)
        self.assertEqual(sorted(os.listdir(back)), sorted(os.listdir(source)))
        for name in os.listdir(source):
            self.assertTrue(filecmp.cmp(source / name, back / name, shallow=False), name)

    def test_a_tensor_of_more_than_2_to_the_32_elements(self):
        source = self.path("in.safetensors")
        write_sparse(source, [("small.weight", 1, 256), ("large.weight", (1 << 24) + 1, 256)], every=1 << 30)
        packed, back = self.all_verbs(source)
        self.assertTrue(filecmp.cmp(source, back, shallow=False))
        self.bounded("scan", source)
        # The last block of the last row lies beyond element 2^32.
        with open(packed, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\1")  # it is 0
        document = self.says_no("verify", packed, source)
        self.assertEqual(document["first"]["tensor"], "large.weight")
        self.assertEqual(document["first"]["element"], (1 << 32) + 255)


if __name__ == "__main__":
    main()
