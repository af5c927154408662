"""scan: which tensors would fit BF16_P12, why others do not, and what their weights look like.

Proves the facts of the sample files (examples/data/README.md), numbers of blocks, entropies, worst blocks and histograms of
exponents against the tests' own computation, the JSON document, and the page of --html: its numbers are those of --json,
it loads nothing, no text from a file becomes markup, and it appears whole or not at all.
"""

import collections
import html.parser
import json
import math
import os
import re
import struct
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
import safetensors_files as st  # noqa: E402
from gguf_files import BF16, F16, F32, Tensor  # noqa: E402
from gguf_testing import P12_KEYS, TYPE_NAMES, bf16, f16, f32, p12  # noqa: E402
from tool import BAD_INPUT, DONE, NO, OUTPUT, SAMPLE, USAGE, ToolTest, contents, main  # noqa: E402

ST_SAMPLE = SAMPLE.with_suffix(".safetensors")
ENTROPY_ERROR = 1e-9


def patterns_of(tensor, as_bf16=False):
    """bf16 patterns of a tensor that scan looks at, None for others."""
    if tensor.type == BF16:
        return oracle.u16s(tensor.data)
    if as_bf16 and tensor.type == F32:
        return [oracle.bf16_from_f32_bits(bits) for bits in struct.unpack("<%dI" % (len(tensor.data) // 4), tensor.data)]
    if as_bf16 and tensor.type == F16:
        return [oracle.bf16_from_f16_bits(bits) for bits in oracle.u16s(tensor.data)]
    return None


def best_window(exponents):
    """(base, weights outside) of the 16 exponents that hold the most weights; the larger base on a tie."""
    total = sum(exponents.values())
    inside = [sum(exponents[e] for e in range(base, base + 16)) for base in range(241)]
    base = max(range(241), key=lambda b: (inside[b], b))
    return base, total - inside[base]


def statistics(patterns):
    exponents = collections.Counter(bits >> 7 & 255 for bits in patterns)
    low, high = oracle.byte_entropies(patterns)
    base, outside = best_window(exponents)
    first, last = min(exponents), max(exponents)
    return {"count": len(patterns), "entropy_low": low, "entropy_high": high, "window": {"base": base, "outside": outside},
            "exponents": {"first": first, "counts": [exponents[e] for e in range(first, last + 1)]}}


def blocks(patterns):
    """(blocks listing 0..3, the first block that lists most, how many that lists)"""
    listed = [oracle.p12_listed_needed(patterns[at:at + 256]) for at in range(0, len(patterns), 256)]
    most = max(listed)
    return [listed.count(n) for n in range(4)], listed.index(most), most


def spread(exponents):
    """256 weights with these exponents, the rest at 120."""
    return [e << 7 | i & 127 for i, e in enumerate(exponents)] + [120 << 7 | i & 127 for i in range(len(exponents), 256)]


def patterns(name, dims, values):
    return Tensor(name, dims, BF16, oracle.u16_bytes(values))


class ScanTest(ToolTest):
    def same_statistics(self, shown, wanted, name):
        shown, wanted = dict(shown), dict(wanted)
        for key in ("entropy_low", "entropy_high"):
            self.assertLessEqual(abs(shown.pop(key) - wanted.pop(key)), ENTROPY_ERROR, "%s: %s" % (name, key))
        self.assertEqual(shown, wanted, name)

    def scans(self, tensors, keys=(), as_bf16=False, name="in.gguf"):
        """Everything that scan must tell of a GGUF file with these tensors. Returns the document."""
        source = self.write(name, gguf.build(tensors, keys))
        words = ["--as", "bf16"] if as_bf16 else []
        document = self.done_json("scan", source, *words)
        starts = gguf.parse(source.read_bytes()).offsets
        self.judge(document, tensors, starts, as_bf16)
        fits = [shown["fits"] for shown in document["tensors"]]
        candidates = [t for t in tensors if len(t.dims) >= 2 and t.elements and patterns_of(t, as_bf16) is not None]
        code = DONE if any(fits) and sum(fits) == len(candidates) else NO
        self.expect(code, "scan", source, "--strict", *words)
        return document

    def judge(self, document, tensors, starts, as_bf16=False):
        everything, bytes_out = [], 0
        self.assertEqual([shown["name"] for shown in document["tensors"]], [t.name for t in tensors])
        for shown, tensor, start in zip(document["tensors"], tensors, starts):
            found = patterns_of(tensor, as_bf16)
            found = found if tensor.elements else None
            two_d = len(tensor.dims) >= 2
            wanted_keys = {"name", "shape", "type_in", "type_out", "bytes_in", "bytes_out", "fits"} | ({"file"} & shown.keys())
            fits = False
            if found is not None:
                everything += found
                self.same_statistics(shown["statistics"], statistics(found), tensor.name)
                wanted_keys |= {"statistics"}
                if two_d and tensor.dims[0] % 256 == 0:
                    listed, worst, most = blocks(found)
                    fits = most <= 3
                    self.assertEqual(shown["p12"], {"blocks": len(found) // 256, "listed": listed}, tensor.name)
                    place = {key: shown["worst"].get(key) for key in ("tensor", "block", "offset", "listed")}
                    size = gguf.BLOCKS[tensor.type][1]
                    self.assertEqual(place, {"tensor": tensor.name, "block": worst, "offset": start + worst * 256 * size, "listed": most})
                    self.assertEqual(shown["worst"].get("file"), shown.get("file"))
                    wanted_keys |= {"p12", "worst"}
            if not fits:
                wanted_keys |= {"reason"}
            self.assertEqual(set(shown), wanted_keys, tensor.name)
            self.assertEqual((shown["shape"], shown["bytes_in"], shown["fits"]), (tensor.shape, len(tensor.data), fits), tensor.name)
            self.assertEqual(shown["type_out"], "BF16_P12" if fits else shown["type_in"])
            self.assertEqual(shown["bytes_out"], tensor.elements // 256 * 392 if fits else len(tensor.data))
            bytes_out += shown["bytes_out"]
        totals = document["totals"]
        self.assertEqual((totals["tensors"], totals["converted"]), (len(tensors), sum(t["fits"] for t in document["tensors"])))
        self.assertEqual((totals["bytes_in"], totals["bytes_out"]), (sum(len(t.data) for t in tensors), bytes_out))
        if everything:
            self.same_statistics(document["statistics"], statistics(everything), "all")
        else:
            self.assertNotIn("statistics", document)

    def reasons(self, document):
        return [t.get("reason") for t in document["tensors"]]


class Sample(ScanTest):
    WANTED = [([2273, 31, 0, 0], 2304), ([2262, 42, 0, 0], 2304)]
    NAMES = {"encoder.layer.0.output.dense.weight": "blk.0.ffn_down.weight",
             "encoder.layer.5.output.dense.weight": "blk.5.ffn_down.weight",
             "encoder.layer.0.attention.self.query.weight": "blk.0.attn_q.weight",
             "encoder.layer.0.output.LayerNorm.weight": "blk.0.layer_output_norm.weight"}

    def test_facts(self):
        tensors = gguf.parse(SAMPLE.read_bytes()).tensors
        for path in (SAMPLE, ST_SAMPLE):
            document = self.done_json("scan", path)
            by_name = {self.NAMES.get(t["name"], t["name"]): t for t in document["tensors"]}
            shown = [by_name.pop(name) for name in self.NAMES.values()]
            self.assertEqual(by_name, {})
            self.assertEqual([(t["p12"]["listed"], t["p12"]["blocks"]) for t in shown[:2]], self.WANTED)
            self.assertEqual([t["fits"] for t in shown], [True, True, False, False])
            self.assertIn("256", shown[2]["reason"])
            self.assertIn("1-D", shown[3]["reason"])
            self.assertEqual([t["bytes_out"] for t in shown], [903168, 903168, 294912, 1536])
            self.assertEqual(document["totals"]["bytes_out"], 2102784)
            everything = []
            for entry, name in zip(shown, self.NAMES.values()):
                found = patterns_of(next(t for t in tensors if t.name == name.encode()))
                if found is None:
                    self.assertNotIn("statistics", entry)
                    continue
                everything += found
                self.same_statistics(entry["statistics"], statistics(found), entry["name"])
            self.same_statistics(document["statistics"], statistics(everything), "all")
            self.assertAlmostEqual(document["statistics"]["entropy_low"], 7.97, delta=0.005)

    def test_the_table(self):
        text = self.done("scan", SAMPLE).out.decode()
        self.assertRegex(text, r"blk\.0\.ffn_down\.weight +384 x 1536 +BF16 +yes +2273/31/0/0/0 +1 ")
        self.assertRegex(text, r"blk\.0\.attn_q\.weight +384 x 384 +BF16 +NO .*K is not a multiple of 256")
        self.assertRegex(text, r"blk\.0\.layer_output_norm\.weight +384 +F32 +- .*1-D")
        self.assertIn("2 of 4 tensors would be packed: 2,655,744 -> 2,102,784 bytes", text)
        self.assertRegex(text, r"entropy of the low byte 7\.97 bits, of the high byte 2\.\d\d bits")
        self.assertEqual(self.done("scan", SAMPLE, "--quiet").out, b"")

    def test_it_says_what_pack_does(self):
        scanned = self.done_json("scan", SAMPLE)
        packed = self.done_json("pack", SAMPLE, self.path("out"))
        for a, b in zip(scanned["tensors"], packed["tensors"]):
            self.assertEqual([a.get(key) for key in ("name", "type_out", "bytes_out", "p12", "reason")],
                             [b.get(key) for key in ("name", "type_out", "bytes_out", "p12", "reason")])
        self.assertEqual(scanned["totals"], packed["totals"])
        self.says_no("scan", SAMPLE, "--strict")


class Numbers(ScanTest):
    def test_every_kind_of_tensor(self):
        wild = spread([1, 250, 3, 200])
        tensors = [bf16("fits", (512, 3), 1), patterns("wild", (256, 2), spread([]) + wild), bf16("norm", (256,), 2),
                   bf16("odd", (255, 3), 3),
                   bf16("three", (256, 2, 2), 4), f32("f32", (256, 2), 5), f16("f16", (256, 1), 6), Tensor("empty", (256, 0), BF16),
                   patterns("scalar", (), [0x3F80]), Tensor("q8", (32, 2), gguf.Q8_0, b"q" * 68), Tensor("mystery", (64, 1), 42, b"m" * 64),
                   bf16("column", (256, 1), 7)]
        document = self.scans(tensors)
        self.assertEqual([t["fits"] for t in document["tensors"]], [True, False, False, False, True] + [False] * 6 + [True])
        reasons = self.reasons(document)
        self.assertIn("1 of 2 blocks", reasons[1])
        self.assertIn("1-D", reasons[2])
        self.assertIn("256", reasons[3])
        for i in (5, 6, 9, 10):
            self.assertIn("not BF16", reasons[i])
        self.assertIn("elements", reasons[7])

    def test_as_bf16(self):
        tensors = [f32("f32", (512, 3), 1), f16("f16", (256, 2), 2), bf16("bf16", (256, 1), 3), f32("norm", (256,), 4),
                   f32("odd", (100, 2), 5), Tensor("q8", (32, 2), gguf.Q8_0, b"q" * 68)]
        document = self.scans(tensors, as_bf16=True)
        self.assertEqual([t["fits"] for t in document["tensors"]], [True, True, True, False, False, False])
        document = self.scans(tensors)
        self.assertEqual([t["fits"] for t in document["tensors"]], [False, False, True, False, False, False])

    def test_the_worst_block_of_other_types(self):
        wild = [1.0, -1e-4, 1e-5, 2e4, 3e-7] + [1.0] * 251
        values = [1.0] * 512 + wild + [1.0] * 256
        f16_values = oracle.u16_bytes([oracle.fp16_bits(w) for w in values])
        self.scans([f32("a", (512, 2), weights=values), Tensor("b", (512, 2), F16, f16_values)], as_bf16=True)

    def test_rounding_can_change_an_exponent(self):
        # 0x3FFFFFFF is just below 2.0 and rounds up to it; a half rounds to even; fp16 subnormals have normal exponents in bf16
        f32_bits = [0x3FFFFFFF, 0x3FFF7FFF, 0x3FFF8000, 0x3FFE8000, 0x80000001, 0x007FFFFF, 0x7F800000, 0xFFC00001] * 32
        f16_bits = [0x0001, 0x8001, 0x03FF, 0x0400, 0x7C00, 0x7E01, 0x7BFF, 0x0000] * 32
        self.scans([Tensor("a", (256, 1), F32, struct.pack("<256I", *f32_bits)), Tensor("b", (256, 1), F16, oracle.u16_bytes(f16_bits))],
                   as_bf16=True)

    def test_a_weight_too_large_for_bf16(self):
        for size, place in (((256, 2), 300), ((100, 2), 101)):
            values = [1.0] * math.prod(size)
            data = bytearray(oracle.f32_bytes(values))
            data[4 * place:4 * place + 4] = struct.pack("<I", 0xFF7FFFFF)
            source = self.write("in.gguf", gguf.build([f32("fine", (256, 1)), Tensor("evil", size, F32, bytes(data))]))
            error = self.fails(BAD_INPUT, "scan", source, "--as", "bf16", "--html", self.path("page.html"), names=("evil", str(place)))
            self.assertEqual(error["offset"], gguf.parse(source.read_bytes()).start("evil") + 4 * place)
            self.assertFalse(self.path("page.html").exists())
            self.done("scan", source)

    def test_blocks_that_list_each_number(self):
        rows = [spread([])]
        for n in (1, 2, 3, 4, 5, 100, 240):
            rows.append(spread([255 - i % 4 * 40 for i in range(n)]))
        for count in range(1, len(rows) + 1):
            self.scans([patterns("w", (256, count), [w for row in rows[:count] for w in row])])
        # the first of several that are equally bad
        mixed = [rows[i] for i in (1, 3, 2, 3, 0, 3)]
        document = self.scans([patterns("w", (512, 3), [w for row in mixed for w in row])])
        self.assertEqual(document["tensors"][0]["worst"]["block"], 1)
        document = self.scans([patterns("w", (256, 2), rows[0] * 2)])
        self.assertEqual((document["tensors"][0]["worst"]["block"], document["tensors"][0]["worst"]["listed"]), (0, 0))

    def test_windows(self):
        full = [e << 7 for e in range(256)]
        cases = [full, [0] * 256, [0x7F80] * 256, [0x8000] * 256, [255 << 7 | 3] * 256, [240 << 7] * 256, [241 << 7] * 256,
                 [(e % 16) << 7 for e in range(256)], [(240 + e % 16) << 7 for e in range(256)], [(e % 17 + 100) << 7 for e in range(256)],
                 ([10 << 7] * 128 + [30 << 7] * 128), ([10 << 7, 25 << 7] * 128), ([10 << 7, 26 << 7] * 128), list(range(0, 65536, 256))]
        for i, values in enumerate(cases):
            with self.subTest(case=i):
                self.scans([patterns("w", (256, 1), values)])
        self.scans([patterns("w%d" % i, (256, 1), values) for i, values in enumerate(cases)])

    def test_entropies_at_their_edges(self):
        for values in (list(range(65536)), [0x3F80] * 256, [0x3F80, 0xBF80] * 128, [0x3F80] * 255 + [0x3F81], [0x1234]):
            self.scans([patterns("w", (len(values), 1), values)])

    def test_a_model_without_bf16(self):
        document = self.scans([f32("w", (256, 1))])
        self.assertEqual(document["totals"]["converted"], 0)
        self.scans([])

    def test_packed_and_quantized_models(self):
        source = self.write("in.gguf", gguf.build([p12("p12", (256, 2)), bf16("bf16", (256, 1))], P12_KEYS))
        document = self.done_json("scan", source)
        self.assertEqual([t["fits"] for t in document["tensors"]], [False, True])
        self.assertIn("not BF16", document["tensors"][0]["reason"])

    def test_a_large_tensor_and_threads(self):
        # longer than what is read at a time; the worst block is the last but one of 60,000
        part = oracle.u16s(oracle.gaussian_bf16(256 * 100, 5, 0.02))
        rows, times = 100, 600
        data = bytearray(oracle.u16_bytes(part) * times)
        worst = rows * times - 2
        wild = spread([1, 250, 3, 200, 77])
        old = oracle.u16s(bytes(data[512 * worst:512 * worst + 512]))
        data[512 * worst:512 * worst + 512] = oracle.u16_bytes(wild)
        counts = collections.Counter()
        for bits, n in collections.Counter(part).items():
            counts[bits] = n * times
        counts.update(wild)
        counts.subtract(old)
        listed, _, _ = blocks(part)
        listed = [n * times for n in listed]
        listed[oracle.p12_listed_needed(old)] -= 1
        low, high, exponents = collections.Counter(), collections.Counter(), collections.Counter()
        for bits, n in counts.items():
            low[bits & 255] += n
            high[bits >> 8] += n
            exponents[bits >> 7 & 255] += n
        source = self.write("in.gguf", gguf.build([Tensor("w", (256, rows * times), BF16, bytes(data))]))
        start = gguf.parse(source.read_bytes()).start("w")
        for threads in (1, 2, 7, 64):
            shown = self.done_json("scan", source, "--threads", threads)["tensors"][0]
            self.assertEqual(shown["p12"], {"blocks": rows * times, "listed": listed})
            self.assertEqual(shown["worst"], {"tensor": "w", "block": worst, "offset": start + 512 * worst, "listed": 5})
            found = shown["statistics"]
            self.assertLessEqual(abs(found["entropy_low"] - oracle.entropy(low.values())), ENTROPY_ERROR)
            self.assertLessEqual(abs(found["entropy_high"] - oracle.entropy(high.values())), ENTROPY_ERROR)
            base, outside = best_window(exponents)
            self.assertEqual(found["window"], {"base": base, "outside": outside})
            first = min(e for e, n in exponents.items() if n)
            self.assertEqual(found["exponents"], {"first": first, "counts": [exponents[e] for e in range(first, 251)]})


class SeveralFiles(ScanTest):
    def models(self):
        shards = [[bf16("a", (256, 2), 1), f32("n", (5,), 2)], [bf16("b", (300, 1), 3)],
                  [patterns("c", (256, 3), spread([]) * 2 + spread([1, 250]))]]
        yield st.write_model(self.path("split"), st.split_gguf(shards)), shards
        as_st = [[st.Tensor(t.name, TYPE_NAMES[t.type], tuple(t.shape), t.data) for t in tensors] for tensors in shards]
        yield st.write_model(self.path("sharded"), st.sharded(as_st)), shards

    def test_all_files_are_scanned(self):
        for folder, shards in self.models():
            document = self.done_json("scan", folder)
            tensors, starts, files = [], [], []
            for name, own in zip(sorted(n for n in os.listdir(folder) if not n.endswith(".json")), shards):
                blob = (folder / name).read_bytes()
                parsed = gguf.parse(blob) if name.endswith(".gguf") else st.parse(blob)
                tensors += own
                starts += [parsed.start(t.name) for t in own]
                files += [name] * len(own)
            self.judge(document, tensors, starts)
            self.assertEqual([t["file"] for t in document["tensors"]], files)

    def test_output_is_none_of_the_files(self):
        for folder, _ in self.models():
            before = contents(folder)
            # the index, or the first file of a split model
            whole = next((name for name in before if name.endswith(".json")), min(before))
            for name in before:
                for model in (folder, folder / whole):
                    self.fails(USAGE, "scan", model, "--html", folder / name, "--force", names=(name,))
            self.fails(USAGE, "scan", folder, "--html", folder, "--force")
            self.assertEqual(contents(folder), before)
            # but it may lie beside them
            self.done("scan", folder, "--html", folder / "page.html")
            self.assertEqual(set(contents(folder)) - set(before), {"page.html"})

    def test_the_page_names_files(self):
        for folder, shards in self.models():
            document = self.done_json("scan", folder, "--html", self.path(folder.name + ".html"))
            page = Page(self.path(folder.name + ".html").read_bytes())
            self.assertEqual([t["file"] for t in page.scan["tensors"]], [t["file"] for t in document["tensors"]])


# ---------------------------------------------------------------- the page


class Page(html.parser.HTMLParser):
    """A page as a browser's parser sees it."""

    def __init__(self, blob):
        super().__init__(convert_charrefs=True)
        self.text = blob.decode("utf-8")
        self.elements = []  # (tag, {attribute: value})
        self.scripts, self.styles, self.words = [], [], []
        self.names = []  # of the tensors, as they are shown
        self.title = ""
        self.open = []
        self.feed(self.text)
        self.close()
        (data,) = [text for attributes, text in self.scripts if attributes.get("id") == "scan"]
        self.data = data
        self.scan = json.loads(data, object_pairs_hook=unique)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("meta", "link", "wbr", "input", "br", "path", "img"):
            return
        self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes), ""))
        if tag == "style":
            self.styles.append("")
        if tag == "bdi" and "tbody" in self.open and "small" not in self.open:
            self.names.append("")

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif inside == "style":
            self.styles[-1] += data
        elif inside == "title":
            self.title += data
        else:
            self.words.append(data)
            if inside == "bdi" and "tbody" in self.open and "small" not in self.open:
                self.names[-1] += data

    def structure(self):
        """Tags and names of attributes, without the breaks that long names may get."""
        return [(tag, sorted(attributes)) for tag, attributes in self.elements if tag != "wbr"]

    def rows(self):
        return sum(tag == "tr" for tag, _ in self.elements)


def unique(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


class Html(ScanTest):
    def page_of(self, source, *words):
        out = self.path("page.html")
        document = self.done_json("scan", source, "--html", out, "--force", *words)
        self.assertEqual(document["output"], str(out))
        return Page(out.read_bytes()), document

    def tensors(self):
        return [bf16("blk.0.fits.weight", (512, 3), 1), patterns("wild", (256, 2), spread([]) + spread([1, 250, 3, 200])),
                bf16("norm", (256,), 2), bf16("odd", (255, 3), 3), f32("f32", (256, 2), 5), Tensor("empty", (256, 0), BF16),
                Tensor("mystery", (64, 1), 42, b"m" * 64)]

    def same_numbers(self, page, document, tensors):
        scan = page.scan
        self.assertEqual(scan["model"], document["input"])
        self.assertEqual(scan.get("warnings"), document.get("warnings"))
        totals = {key: document["totals"][key] for key in ("tensors", "bytes_in", "bytes_out")}
        self.assertEqual({key: scan["totals"][key] for key in totals}, totals)
        self.assertEqual(scan["totals"]["fit"], document["totals"]["converted"])
        self.assertLessEqual(abs(scan["totals"]["bits_per_weight"] - document["totals"]["bits_per_weight"]), 1e-4)
        self.assertEqual(scan["totals"]["elements"], sum(t.elements for t in tensors))
        candidates = [t for t in document["tensors"] if "statistics" in t and len(t["shape"]) >= 2]
        self.assertEqual(scan["totals"]["candidates"], len(candidates))
        p12s = [t["p12"] for t in document["tensors"] if "p12" in t]
        listed = [sum(p["listed"][i] for p in p12s) for i in range(4)]
        self.assertEqual(scan["totals"]["p12"], {"blocks": sum(p["blocks"] for p in p12s), "listed": listed})
        self.assertEqual("statistics" in scan, "statistics" in document)
        if "statistics" in document:
            self.same_figures(scan["statistics"], document["statistics"])
        self.assertEqual(len(scan["tensors"]), len(document["tensors"]))
        for ours, told, tensor in zip(scan["tensors"], document["tensors"], tensors):
            self.assertEqual([ours.get(key) for key in ("name", "file", "shape", "bytes_in", "bytes_out", "fits", "reason")],
                             [told.get(key) for key in ("name", "file", "shape", "bytes_in", "bytes_out", "fits", "reason")])
            self.assertEqual((ours["type"], ours["elements"]), (told["type_in"], tensor.elements))
            self.assertEqual(ours["candidate"], "statistics" in told and len(told["shape"]) >= 2)
            self.assertEqual("p12" in ours, "p12" in told)
            if "p12" in told:
                self.assertEqual({key: ours["p12"][key] for key in told["p12"]}, told["p12"])
                self.assertEqual(ours["p12"]["worst_block"], told["worst"]["block"])
                self.assertEqual(ours["p12"]["worst_listed"], told["worst"]["listed"])
                self.assertIn("block %d" % told["worst"]["block"], ours["worst"])
            self.assertEqual("statistics" in ours, "statistics" in told)
            if "statistics" in told:
                self.same_figures(ours["statistics"], told["statistics"])

    def same_figures(self, ours, told):
        for key in ("entropy_low", "entropy_high"):
            self.assertLessEqual(abs(ours[key] - told[key]), 1e-4)
        self.assertEqual((ours["count"], ours["window"], ours["outside"], ours["first"], ours["exponents"]),
                         (told["count"], told["window"]["base"], told["window"]["outside"], *told["exponents"].values()))

    def test_the_page_says_what_json_says(self):
        tensors = self.tensors()
        source = self.write("in.gguf", gguf.build(tensors))
        for words in ((), ("--as", "bf16")):
            page, document = self.page_of(source, *words)
            self.same_numbers(page, document, tensors)
            self.assertEqual(page.names, [t.name for t in tensors])
            self.assertEqual(page.open, [], "elements that are not closed")
            self.assertIn(source.name, page.title)
            # what the page has does not depend on what stdout got
            self.done("scan", source, "--html", self.path("quiet.html"), "--quiet", "--force", *words)
            self.same_bytes(self.path("quiet.html"), self.path("page.html").read_bytes())
            self.done("scan", source, "--html", self.path("quiet.html"), "--force", "--threads", 1, *words)
            self.same_bytes(self.path("quiet.html"), self.path("page.html").read_bytes())

    def test_the_sample(self):
        for path, read in ((SAMPLE, gguf), (ST_SAMPLE, st)):
            page, document = self.page_of(path)
            self.same_numbers(page, document, read.parse(path.read_bytes()).tensors)
            self.assertIn("2,273", page.words)

    def test_models_with_little_in_them(self):
        for tensors in ([], [f32("w", (5,))], [Tensor("empty", (0, 3), BF16)], [patterns("scalar", (), [0x7FC1])]):
            page, document = self.page_of(self.write("in.gguf", gguf.build(tensors)))
            self.same_numbers(page, document, tensors)

    def test_a_thousand_tensors(self):
        data = oracle.gaussian_bf16(256, 1)
        tensors = [Tensor("blk.%d.w" % i, (256, 1), BF16, data) for i in range(1000)]
        page, document = self.page_of(self.write("in.gguf", gguf.build(tensors)))
        self.same_numbers(page, document, tensors)
        self.assertEqual(page.names, [t.name for t in tensors])

    def test_nothing_is_loaded(self):
        page, _ = self.page_of(self.write("in.gguf", gguf.build(self.tensors())))
        for tag, attributes in page.elements:
            self.assertNotIn(tag, ("iframe", "object", "embed", "base", "form", "img", "audio", "video", "image", "use"))
            for name in ("src", "href", "xlink:href", "srcset", "poster", "data", "action", "formaction", "background", "ping", "manifest"):
                self.assertRegex(attributes.get(name) or "#", r"^(#|data:)", (tag, attributes))
            self.assertNotIn("url(", attributes.get("style") or "")
        policies = [a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        self.assertEqual(len(policies), 1)
        self.assertIn("default-src 'none'", policies[0])
        for style in page.styles:
            self.assertNotIn("@import", style)
            self.assertIsNone(re.search(r"url\((?!['\"]?(#|data:))", style))
        scripts = "".join(text for _, text in page.scripts)
        for word in ("fetch(", "XMLHttpRequest", "import(", "WebSocket", "EventSource", "sendBeacon", "importScripts", ".src",
                     "location", "eval("):
            self.assertNotIn(word, scripts)
        # the name of SVG's elements is an address that nobody loads
        self.assertEqual(set(re.findall(r"https?://[^\s\"'<]*", page.text)), {"http://www.w3.org/2000/svg"})

    HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><b onmouseover=alert(1)>", "' onclick='alert(1)",
               "&lt;&#60;&amp;", "<!--", "<!--<script>", "-->", "]]>", "</bdi></th></tr></table><h1>", "@@data@@",
               "@@rows@@", "${alert(1)}", "`", "\\", "\\u003c", "\\x3c", "\u2028\u2029", "\u202eright to left", "\u200b", "javascript:alert(1)",
               "https://evil.example/x.png", "</style><style>*{display:none}", "</title>",
               "a.b/c.d", "größe", "\U0001f600", "<svg/onload=alert(1)>", "x" * 3000, " ", "%3Cscript%3E", "\x85", "\xa0"]
    CONTROL = ["a\nb", "a\0b", "a\rb", "\x1b[31mred", "\x7f", "\t"]

    def test_no_text_becomes_markup(self):
        data = oracle.gaussian_bf16(256, 1)

        def file_of(names):
            return gguf.build([Tensor(name, (256, 1), BF16, data) for name in names])

        names = self.HOSTILE + self.CONTROL
        tame, _ = self.page_of(self.write("in.gguf", file_of(["n%d" % i for i in range(len(names))])))
        tensors = [Tensor(name, (256, 1), BF16, data) for name in names]
        page, document = self.page_of(self.write("in.gguf", file_of(names)))
        self.same_numbers(page, document, tensors)
        self.assertEqual([t["name"] for t in page.scan["tensors"]], names)
        self.assertEqual(page.structure(), tame.structure())
        self.assertEqual(page.names[:len(self.HOSTILE) - 2], self.HOSTILE[:-2])
        for shown in page.names:
            self.assertIsNone(re.search(r"[\x00-\x1f\x7f-\x9f]", shown), "a control character is shown")
        self.assertNotRegex(page.data, r"[<>&\u2028\u2029]")
        self.assertEqual(page.scripts[-1], tame.scripts[-1], "the program changed")
        self.assertEqual(page.styles, tame.styles)

    def test_names_that_are_no_text(self):
        data = oracle.gaussian_bf16(256, 1)
        raw = [b"\xff<b>", b"\xc3", b"\xed\xa0\x80<", b"\xf4\x90\x80\x80", b"\xc0\xbc", b"<\x80script>"]
        tame, _ = self.page_of(self.write("in.gguf", gguf.build([Tensor("n%d" % i, (256, 1), BF16, data) for i in range(len(raw))])))
        page, _ = self.page_of(self.write("in.gguf", gguf.build([Tensor(name, (256, 1), BF16, data) for name in raw])))
        self.assertEqual(page.structure(), tame.structure())
        self.assertEqual(len(set(page.names)), len(raw))

    def test_names_of_files_and_dtypes(self):
        data = oracle.gaussian_bf16(256, 1)
        odd = "<b>&\"'</script>"
        tensors = [st.Tensor("w", "BF16", (1, 256), data), st.Tensor("d", "<i>x</i></script>", (1, 4), b"abcd"),
                   st.Tensor("<u>", "U8", (2, 2), b"abcd")]
        tame, _ = self.page_of(self.write("in.safetensors", st.build([tensors[0], st.Tensor("d", "ODD", (1, 4), b"abcd"), tensors[2]])))
        folder = self.path(odd.split("/")[0])
        folder.mkdir()
        source = folder / "x<s>.safetensors"
        source.write_bytes(st.build(tensors))
        page, document = self.page_of(source)
        self.assertEqual(page.structure(), tame.structure())
        self.assertEqual(page.scan["model"], str(source))
        self.assertIn("<s>", page.title)
        self.assertEqual(page.scan["tensors"][1]["type"], document["tensors"][1]["type_in"])

    def test_a_page_that_exists_is_replaced_only_by_force(self):
        source = self.write("in.gguf", gguf.build(self.tensors()))
        out = self.write("page.html", b"old")
        before = sorted(os.listdir(self.folder))
        self.fails(OUTPUT, "scan", source, "--html", out, names=("page.html", "--force"))
        self.same_bytes(out, b"old")
        with open(out, "rb") as old:
            self.done("scan", source, "--html", out, "--force")
            # not written over: what somebody has open stays whole
            self.assertEqual(old.read(), b"old")
        self.assertTrue(out.read_bytes().endswith(b"</html>\n"))
        self.assertEqual(sorted(os.listdir(self.folder)), before, "something was left behind")

    def test_a_scan_that_fails_writes_nothing(self):
        good = gguf.build([bf16("w", (256, 2))])
        for blob in (good[:-1], b"garbage", gguf.build([Tensor("w", (256, 1), F32, struct.pack("<I", 0x7F7FFFFF) * 256)])):
            source = self.write("in.gguf", blob)
            for old in (None, b"old"):
                out = self.path("page.html")
                if old is not None:
                    out.write_bytes(old)
                before = contents(self.folder)
                self.fails(BAD_INPUT, "scan", source, "--as", "bf16", "--html", out, "--force", names=("in.gguf",))
                self.assertEqual(contents(self.folder), before)
            out.unlink()

    def test_the_output_is_the_input(self):
        blob = gguf.build(self.tensors())
        source = self.write("in.gguf", blob)
        os.link(source, self.path("hard.html"))
        os.symlink("in.gguf", self.path("soft.html"))
        for out in (source, self.path("hard.html"), self.path("soft.html"), self.folder / "." / "in.gguf"):
            for force in ((), ("--force",)):
                self.fails(USAGE, "scan", source, "--html", out, *force, names=(out.name,))
        self.same_bytes(source, blob)

    def test_where_no_page_can_be(self):
        source = self.write("in.gguf", gguf.build(self.tensors()))
        self.path("folder").mkdir()
        for out in (self.path("folder"), self.path("none") / "page.html", Path("/dev/null"), Path("/dev/full"),
                    str(self.path("new")) + "/"):
            self.fails(OUTPUT, "scan", source, "--html", out, "--force", names=(os.path.basename(out),))
        os.symlink("nowhere", self.path("dangling"))
        self.fails(OUTPUT, "scan", source, "--html", self.path("dangling"), "--force", names=("dangling",))
        self.assertEqual(sorted(os.listdir(self.folder)), ["dangling", "folder", "in.gguf"])
        self.assertTrue(Path("/dev/full").is_char_device())

    def test_strict_says_no_with_the_page(self):
        source = self.write("in.gguf", gguf.build(self.tensors()))
        self.expect(NO, "scan", source, "--html", self.path("page.html"), "--strict")


class Usage(ScanTest):
    def test_usage(self):
        self.fails(USAGE, "scan")
        self.fails(USAGE, "scan", SAMPLE, "--as", "f16")
        self.expect(USAGE, "scan", SAMPLE, "--html")
        self.fails(USAGE, "scan", SAMPLE, "extra")
        self.fails(BAD_INPUT, "scan", self.path("none.gguf"), names=("none.gguf",))

    def test_keys_of_the_document(self):
        document = self.scans(self.some())
        self.assertEqual(list(document), ["verb", "input", "tensors", "totals", "statistics", "ok"])
        self.assertEqual((document["verb"], document["input"]), ("scan", str(self.path("in.gguf"))))
        self.assertEqual(set(document["totals"]), {"tensors", "converted", "bytes_in", "bytes_out", "bits_per_weight"})
        document = self.says_no("scan", self.path("in.gguf"), "--strict")
        self.assertEqual(document["totals"]["converted"], 1)

    @staticmethod
    def some():
        return [bf16("a", (256, 1)), bf16("b", (100, 1))]


if __name__ == "__main__":
    main()
