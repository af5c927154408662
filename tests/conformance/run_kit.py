"""Runs every test of the golden files' manifest with a program (core.cpp: pn's core; its protocol is told there) and
compares what it writes with what is expected, bit for bit.

usage: run_kit.py PROGRAM FOLDER
"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile


def canonical(data, dtype):
    """Any NaN of an fp32 file becomes the same one."""
    if dtype != "fp32":
        return data
    words = struct.unpack("<%dI" % (len(data) // 4), data)
    return struct.pack("<%dI" % len(words), *(0x7FC00000 if w & 0x7FFFFFFF > 0x7F800000 else w for w in words))


def rows_of(text, manifest):
    """The program's lines as the manifest has them; its sentences must be the manifest's."""
    rows = []
    for line in text.splitlines():
        result, sentence, place = line.split("\t")
        if manifest["results"].get(result) != sentence:
            raise ValueError("%s is said to mean: %s" % (result, sentence))
        row = {"result": result}
        if place != "-":
            named_by_element = result in ("not_finite", "scale_overflow", "bad_importance")
            row["element" if named_by_element else "block"] = int(place)
        rows.append(row)
    return rows


def main(program, folder):
    folder = pathlib.Path(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    failed = 0
    with tempfile.TemporaryDirectory() as out:
        outputs = [str(pathlib.Path(out) / str(i)) for i in range(len(manifest["tests"]))]
        plan = "".join("\t".join([t["operation"], t["format"], str(t.get("k", 1)), str(t.get("b", 0)), output]
                                 + [str(folder / p) for p in t["inputs"].values()]) + "\n"
                       for t, output in zip(manifest["tests"], outputs))
        subprocess.run([program], input=plan, text=True, check=True)
        for test, output in zip(manifest["tests"], outputs):
            got = pathlib.Path(output).read_bytes()
            (name, want), = test["expected"].items()
            try:
                if name == "rows":
                    good = rows_of(got.decode(), manifest) == want
                else:
                    dtype = manifest["files"][want]["dtype"]
                    free = test["operation"] == "decode"  # which NaN comes out is up to the machine
                    good = (canonical(got, dtype) == canonical((folder / want).read_bytes(), dtype) if free
                            else got == (folder / want).read_bytes())
            except (ValueError, UnicodeDecodeError) as problem:
                good = False
                print(problem)
            failed += not good
            print("%s  %s: %s" % ("ok    " if good else "FAILED", test["id"], test["proves"]))
    # The core has a name for everything that the manifest can say, and no other; 5 to 15 are for the compiled kernels.
    header = pathlib.Path(__file__).resolve().parents[2] / "include/pn/status.hpp"
    named = [name for name, number in re.findall(r"^  ([a-z_]+) = (\d+),", header.read_text(), re.MULTILINE)
             if not 5 <= int(number) <= 15]
    if named != list(manifest["results"]):
        print("FAILED  the results of the manifest are not those of pn::Status, in their order")
        failed += 1
    print("%d tests, %d failed" % (len(manifest["tests"]), failed))
    return 1 if failed or not manifest["tests"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
