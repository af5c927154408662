#!/usr/bin/env python3
"""Writes the golden files and their manifest, or with --check compares them with what it would write.

Layouts and operations: README.md. arithmetic.py holds the formats in exact arithmetic, cases_v1.py to cases_v3.py the
cases of the three folders. Needs nothing but Python 3.
"""
import argparse
import hashlib
import json
import pathlib
import sys

import cases_v1
import cases_v2
import cases_v3

FOLDER = pathlib.Path(__file__).resolve().parent
ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "pn_block": 34, "q8_0_block": 34, "p12_block": 392}

# What an operation may say of a row. Where several apply, the first in this order.
RESULTS = {
    "ok": "ok",
    "bad_length": "the number of weights is not a multiple of the block",
    "not_finite": "the value is a NaN or an infinity",
    "scale_overflow": "the weights are too large: every candidate scale overflows fp16",
    "bad_importance": "the importance is negative, a NaN or an infinity",
    "scale_not_finite": "the scale d is a NaN or an infinity",
    "reserved_bits_set": "a reserved bit (15 or 31 of a word) is set",
    "too_many_listed": "more than 3 weights lie outside the best 16 exponents",
    "base_out_of_range": "the base exponent is larger than 240",
    "listed_count_out_of_range": "the number of listed weights is larger than 3",
    "positions_not_ascending": "the places of listed weights are not strictly ascending",
    "unused_slot_not_zero": "an unused slot of the list is not 0",
    "listed_code_not_zero": "the code of a listed weight is not 0",
    "listed_exponent_in_range": "a listed exponent lies in [base, base + 15]",
    "base_not_canonical": "the base exponent is not the canonical one",
}


def manifest(kit):
    entries = {}
    for path, (dtype, data) in sorted(kit.files.items()):
        assert len(data) % ITEM_BYTES[dtype] == 0
        entries[path] = {"dtype": dtype, "count": len(data) // ITEM_BYTES[dtype],
                         "sha256": hashlib.sha256(data).hexdigest()}
    used = {p for t in kit.tests for part in ("inputs", "expected") for p in t[part].values() if isinstance(p, str)}
    assert used == set(entries)
    assert all(row["result"] in RESULTS for t in kit.tests for row in t["expected"].get("rows", ()))
    content = {"kit": "golden files of pn", "formats": {"pn": 0, "bf16_p12": 1}, "results": RESULTS, "files": entries,
               "tests": kit.tests}
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (written(content, "") + "\n").encode()


def written(value, indent):
    """JSON, with everything that is short on one line."""
    line = json.dumps(value)
    if len(line) + len(indent) <= 100 or not isinstance(value, (dict, list)):
        return line
    deeper = indent + " "
    if isinstance(value, dict):
        parts = ["%s: %s" % (json.dumps(k), written(v, deeper)) for k, v in value.items()]
    else:
        parts = [written(v, deeper) for v in value]
    brackets = "{}" if isinstance(value, dict) else "[]"
    return brackets[0] + "\n" + ",\n".join(deeper + p for p in parts) + "\n" + indent + brackets[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    kit = cases_v2.kit(cases_v1.files())
    cases_v3.add(kit)
    files = {path: data for path, (_, data) in kit.files.items()}
    different = 0
    for name, data in [*sorted(files.items()), ("manifest.json", manifest(kit))]:
        path = FOLDER / name
        if check:
            if not path.is_file() or path.read_bytes() != data:
                print("%s: not what this program writes" % name)
                different += 1
        elif name.endswith(".bin") and path.exists():
            if path.read_bytes() != data:
                sys.exit("%s exists with other content; golden files are never changed" % name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    for path in FOLDER.rglob("*.bin"):
        if path.relative_to(FOLDER).as_posix() not in files:
            print("%s: not written by this program" % path.relative_to(FOLDER))
            different += 1
    print("%d tests, %d files, %d bytes, %d different" % (len(kit.tests), len(files), sum(map(len, files.values())),
                                                          different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
