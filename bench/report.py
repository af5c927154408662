"""Makes a table, and a JSON document, of what pn_bench has measured. bench/README.md explains every name.

usage: report.py MEASURED.json [--zipnn FILE] [--json FILE] [--save FOLDER]
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import sys

GIGA = 1e9
NOISY = 0.05


class Measurement:
    """Medians over the repetitions of one benchmark; rates per second."""

    def __init__(self, runs):
        self.weights, self.read, self.written = (
            statistics.median(run[key] for run in runs) for key in ("weights", "read", "written"))
        times = sorted(run["real_time"] for run in runs)
        # Half of the repetitions lie within the median +- this.
        middle = statistics.median(times)
        self.spread = statistics.median(abs(t - middle) for t in times) / middle

    @property
    def traffic(self):
        return self.read + self.written


def load(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    runs = {}
    # Random interleaving shuffles the document too; family_index is the order in which they were registered.
    for run in sorted(document["benchmarks"], key=lambda run: run["family_index"]):
        if run["run_type"] != "iteration":
            continue
        if run.get("error_occurred"):
            sys.exit(f"report.py: {run['name']}: {run['error_message']}")
        runs.setdefault(run["run_name"].replace("/real_time", ""), []).append(run)
    return document["context"], {name: Measurement(r) for name, r in runs.items()}


def split(name):
    """'p12_gemv@K6144@all' -> ('p12_gemv', '@K6144@all')"""
    base, at, suffix = name.partition("@")
    return base, at + suffix


class Report:
    def __init__(self, context, measured):
        self.context = context
        self.measured = measured
        self.isas = context["isas"].split()
        self.figures = []
        self.suffixes = sorted({split(name)[1] for name in measured}, key=self.order)

    @staticmethod
    def order(suffix):
        parts = suffix.split("@")[1:]
        k = next((int(p[1:]) for p in parts if p[0] == "K"), 0)
        m = next((int(p[1:]) for p in parts if p[0] == "M" and p[1:].isdigit()), 0)
        isa = any(p != "all" and p[0] not in "KM" for p in parts)
        return (isa, m, k, "all" in parts, suffix)

    def get(self, name):
        return self.measured.get(name)

    def best(self, names, key):
        """The fastest of several ways to do the same: (name, measurement), or None when one was not measured."""
        found = [(name, self.get(name)) for name in names if self.get(name)]
        return max(found, key=lambda pair: getattr(pair[1], key)) if found else None

    def read_limit(self, suffix):
        everywhere = "@all" if suffix.endswith("@all") else ""
        return self.best([f"read/{how}{everywhere}" for how in ("plain", "prefetch", "streams")], "read")

    def copy_limit(self, suffix):
        everywhere = "@all" if suffix.endswith("@all") else ""
        return self.best([f"copy/{how}{everywhere}" for how in ("memcpy", "streaming_16", "streaming_64")], "read")

    def of_limit(self, m, suffix):
        """(bandwidth of the memory for such traffic, the part of it that is used)"""
        limit = self.copy_limit(suffix) if m.written else self.read_limit(suffix)
        return (limit[1].traffic, m.traffic / limit[1].traffic) if limit else (None, None)

    def add(self, name, value, unit, *, m=None, suffix="", spread=None, target=None, limit=None, note=""):
        figure = {"name": name, "value": value, "unit": unit}
        if target is not None:
            figure.update(limit=target, target=target, met=value >= target)
        elif limit is not None:
            figure["limit"] = limit
        if note:
            figure["note"] = note
        if m is not None:
            limit, part = self.of_limit(m, suffix)
            if limit:
                figure.update(memory_limit_GB_per_s=limit / GIGA, of_memory_limit=part)
            if m.weights:
                figure["weights_per_s"] = m.weights
        figure["spread"] = m.spread if spread is None else spread
        self.figures.append(figure)

    def ratio(self, name, above, below, target=None, note="", all_threads=False, shapes=True, target_all=None):
        """`name`, and the same with each suffix that both sides have. above, below: (names, key); of several names the
        fastest counts, above and below. `all_threads`: is there a NAME@all?"""
        for suffix in self.suffixes:
            parts = suffix.split("@")[1:]
            if any(p != "all" and p[0] != "K" for p in parts) or ("all" in parts and not all_threads):
                continue
            if "all" in parts and len(parts) > 1 or (parts and parts != ["all"] and not shapes):
                continue
            (above_names, above_key), (below_names, below_key) = above, below
            over = self.best([n + suffix for n in above_names], above_key)
            # What memory allows does not depend on the length of rows.
            memory = below_names[0].startswith(("read/", "copy/"))
            everywhere = "@all" if "all" in parts else ""
            under = self.best([n + (everywhere if memory else suffix) for n in below_names], below_key)
            if not over or not under:
                continue
            words = [split(over[0])[0]] if len(above_names) > 1 else []
            if len(below_names) > 1:
                words.append("over " + split(under[0])[0])
            words += [note] if note else []
            wanted = target_all if "all" in parts and target_all is not None else target
            self.add(name + suffix, getattr(over[1], above_key) / getattr(under[1], below_key), "x", m=over[1],
                     suffix=suffix, spread=over[1].spread + under[1].spread, target=wanted, note=", ".join(words))

    def ratios(self):
        reads = [f"read/{how}" for how in ("plain", "prefetch", "streams")]
        copies = [f"copy/{how}" for how in ("memcpy", "streaming_16", "streaming_64")]
        unpacks = ["p12_unpack_cached", "p12_unpack_streaming"]
        gemvs = {t: [f"{t}_gemv_{x}" for x in ("f32", "i16", "q8_0")] for t in ("pn3t", "pn4t")}
        self.ratio("p12_unpack_vs_memcpy", (unpacks, "written"), (copies, "written"), 1.0)
        self.ratio("p12_pack_vs_memcpy", (["p12_pack"], "read"), (copies, "read"), 0.6)
        self.ratio("bf16_gemv_vs_read", (["bf16_gemv"], "read"), (reads, "read"), 0.9)
        self.ratio("p12_gemv_vs_bf16_gemv", (["p12_gemv"], "weights"), (["bf16_gemv"], "weights"), 1.25,
                   "at most 1.306", all_threads=True)
        self.ratio("pn4t_gemv_vs_ggml_q4_K", (gemvs["pn4t"], "weights"), (["ggml_q4_K_gemv"], "weights"), 1.05,
                   "aim 1.2", all_threads=True)
        self.ratio("pn4t_gemv_vs_ggml_q4_K_repacked", (gemvs["pn4t"], "weights"),
                   (["ggml_q4_K_gemv_repack", "ggml_q4_K_gemv_amx"], "weights"), all_threads=True)
        self.ratio("pn3t_gemv_vs_ggml_q3_K", (gemvs["pn3t"], "weights"), (["ggml_q3_K_gemv"], "weights"), 1.7,
                   all_threads=True, target_all=1.5)
        fast = {"avx512_icl": 10, "avx512": 10, "avx2": 4}.get(self.isas[0])
        for t in ("pn3t", "pn4t"):
            ours, core = self.get(f"{t}_quantize_f32"), self.get(f"{t}_quantize_f32@core")
            if ours and core:
                self.add(f"pn_quantize_{t}_vs_reference", ours.weights / core.weights, "x", m=ours,
                         spread=ours.spread + core.spread, target=fast)
        self.ratio("pn_quantize_pn4t_vs_ggml_q4_K", (["pn4t_quantize_f32"], "weights"),
                   (["ggml_q4_K_quantize"], "weights"), 5)
        self.ratio("validate_p12_vs_read", (["p12_validate"], "read"), (reads, "read"), 0.5)
        slower = min((t for t in ("pn3t", "pn4t") if self.get(f"{t}_validate")),
                     key=lambda t: self.get(f"{t}_validate").read, default=None)
        if slower:
            self.ratio("validate_pn_vs_read", ([f"{slower}_validate"], "read"), (reads, "read"), 0.5,
                       f"{slower}, the slower type", shapes=False)

    def absolutes(self):
        for suffix in ("", "@all"):
            for kind, limit in (("read", self.read_limit(suffix)), ("copy", self.copy_limit(suffix))):
                if limit:
                    self.add(f"{kind}_bandwidth{suffix}", limit[1].traffic / GIGA, "GB/s", m=limit[1], suffix=suffix,
                             note=split(limit[0])[0].split("/")[1])
        bases = list(dict.fromkeys(split(name)[0] for name in self.measured))
        for name in sorted(self.measured, key=lambda n: (bases.index(split(n)[0]), self.order(split(n)[1]))):
            m = self.measured[name]
            base, suffix = split(name)
            if "/" in base:
                continue
            limit, _ = self.of_limit(m, suffix)
            limit = limit / GIGA if limit else None
            if suffix.startswith("@M"):
                one = self.get(base.replace("_batch_", "_gemv_") + "".join("@" + p for p in suffix.split("@")[2:]))
                if one:
                    self.add(name, m.weights / one.weights, "x M=1", m=m, suffix=suffix, spread=m.spread + one.spread)
                continue
            self.add(name, m.traffic / GIGA, "GB/s", m=m, suffix=suffix, limit=limit)

    def zipnn(self, path):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        limit = self.copy_limit("")
        note = (f"bf16 bytes, one thread, not interleaved; "
                f"{16 * document['packed_bytes'] / document['bytes']:.2f} bits per weight")
        for verb in ("pack", "unpack"):
            rates = document[verb]
            middle = statistics.median(rates)
            spread = statistics.median(abs(r - middle) for r in rates) / middle
            self.add(f"zipnn_{verb}", middle / GIGA, "GB/s", spread=spread,
                     limit=limit[1].read / GIGA if limit else None, note=note)
            self.figures[-1]["weights_per_s"] = middle / 2


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(("model name", "Model", "Hardware")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def machine(context):
    return {
        "processor": processor(),
        "architecture": platform.machine(),
        "cores": int(context["threads"]),
        "last_level_cache": int(context["last_level_cache"]),
        "isas": context["isas"].split(),
        "compiler": context["compiler"],
        "date": context["date"],
        "memory": memory(),
        "working_set": int(context["working_set"]),
        "working_set_capped": context["working_set_capped"] == "yes",
    }


def number(value, digits=3):
    return "" if value is None else f"{value:.{digits}g}" if value < 100 else f"{value:.0f}"


def cells(figure):
    limit = figure.get("memory_limit_GB_per_s")
    target = figure.get("target")
    weights = figure.get("weights_per_s")
    of_limit = figure.get("of_memory_limit")
    return [
        figure["name"],
        number(figure["value"]),
        figure["unit"],
        "" if target is None else f"{target:g}",
        "" if target is None else "met" if figure["met"] else "missed",
        "" if weights is None else number(weights / GIGA),
        number(limit if limit else figure.get("limit") if target is None else None),
        "" if of_limit is None else f"{100 * of_limit:.0f}%",
        f"{100 * figure['spread']:.1f}%",
        figure.get("note", ""),
    ]


HEADER = ["name", "value", "unit", "target", "", "Gweights/s", "limit GB/s", "of limit", "spread", "note"]
LEFT = {0, 2, 4, 9}


def table(info, figures):
    mib = 1 << 20
    lines = [
        f"{info['processor']}, {info['cores']} threads, {info['date'][:10]}, {info['compiler']}",
        f"instruction sets: {' '.join(info['isas'])}; last-level cache {info['last_level_cache'] // mib} MiB, "
        f"memory {(info['memory'] or 0) // mib} MiB",
        f"working set {info['working_set'] // mib} MiB" +
        (": CAPPED by free memory, part of it may stay in the cache" if info["working_set_capped"] else ""),
        "",
    ]
    rows = [HEADER] + [cells(f) for f in figures]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    for row in rows:
        line = "  ".join(c.ljust(w) if i in LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths)))
        lines.append(line.rstrip())
    lines.insert(5, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    noisy = sum(f["spread"] > NOISY for f in figures)
    if noisy:
        lines += ["", f"spread above {NOISY:.0%} in {noisy} of {len(figures)} figures: the machine was not quiet"]
    judged = [f for f in figures if "met" in f]
    missed = [f["name"] for f in judged if not f["met"]]
    lines += ["", f"{len(judged) - len(missed)} of {len(judged)} targets met"]
    return "\n".join(lines + [f"  missed: {name}" for name in missed]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured")
    parser.add_argument("--zipnn")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--save", type=pathlib.Path)
    arguments = parser.parse_args()
    context, measured = load(arguments.measured)
    report = Report(context, measured)
    report.ratios()
    report.absolutes()
    if arguments.zipnn:
        report.zipnn(arguments.zipnn)
    info = machine(context)
    text = table(info, report.figures)
    document = json.dumps({"machine": info, "figures": report.figures}, indent=1) + "\n"
    print(text, end="")
    if arguments.json:
        arguments.json.write_text(document, encoding="utf-8")
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        name = info["date"][:10] + "-" + re.sub(r"[^a-z0-9]+", "-", info["processor"].lower()).strip("-")
        (arguments.save / f"{name}.txt").write_text(text, encoding="utf-8")
        (arguments.save / f"{name}.json").write_text(document, encoding="utf-8")


if __name__ == "__main__":
    main()
