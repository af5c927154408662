"""Counts what the main loops of libpncuda's kernels issue for each weight, in the machine code of cubins.

usage: sass.py --folder FOLDER [--all] [--check] [--save] COMPILER...

A COMPILER is NVCC=NVDISASM=ARCH,ARCH.. (bench/sass.sh gives them). Prints a table; --save writes bench/results/sass.md
and .json, --check holds the figures against them and against the budgets below; --all shows every kernel that has a
declaration. Without any compiler that works: one line that says why, and 77.

Declarations. Above the template of a kernel with a main loop stand comments

    // sass: rows = 4 if tokens <= 2 else 2
    // sass: loop = LDG.128 + FFMA
    // sass: weights = LDG.128 * 4 * T.per_word
    // sass: math = FFMA / tokens

Each is NAME = EXPRESSION in Python. An opcode stands for how often it is on the main path of the loop, with all its
modifiers, in any order: LDG.128 counts LDG.E.CG.128, too. Template parameters have their values; a format T has T.bits,
T.block (weights), T.per_word (weights in 32 bits). Names that were defined above may be used; four have a meaning:

    loop     what tells the main loop: the loop, and the path through it, for which this linear expression is largest;
             of equal paths the shortest, which leaves out what is rare. Nothing found is an error.
    weights  weights that a lane takes in one turn of that path, from what it loads
    math     the same from what it calculates. It may be up to 15% more (scales, zero points), never less: a wrong
             path, a wrong loop or a wrong declaration does not pass both.
    shared   bytes of dynamic shared memory of a block of threads for rows of K = 5120 weights (optional)

Unrolled and pipelined loops need nothing special: loads and arithmetic of all their stages are counted alike. A call or
a loop on the main path is an error.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "cmake"))
import cubin  # noqa: E402

RESULTS = ROOT / "bench" / "results"
TYPICAL_K = 5120
HOST_ONLY = ("api.cu", "blas.cu", "tuning.cu")
WORSE = 1.10   # how much more than recorded is a failure
MORE_MATH = 1.15


class SassError(Exception):
    pass


# ---- Machine code ----

class Instruction:
    def __init__(self, address, text):
        self.address = address
        self.targets = re.findall(r"`\((\.L[\w$]+)\)", text) or re.findall(r"\.L_x_\d+", text)
        text = re.sub(r"\(\*.*?\*\)", "", text)
        guard = re.match(r"@(!?U?P\w+)\s+", text)
        self.guard = guard.group(1) if guard else None
        text = text[guard.end():] if guard else text
        self.lost = False
        self.opcode, _, self.operands = text.strip(" ;{}\t").partition(" ")
        self.parts = self.opcode.split(".")

    def is_a(self, pattern):
        base, *modifiers = pattern.split(".")
        if self.parts[0] != base or not set(modifiers) <= set(self.parts[1:]):
            return False
        # Constants are also made by multiplying zero by zero.
        return not (base in ("HFMA2", "FFMA", "IMAD") and re.search(r"\bRZ(\.\w+)?\b, -?\bRZ\b", self.operands))

    @property
    def is_memory(self):
        return re.match(r"(LD|ST|ATOM|RED|SULD|TEX|TLD|CCTL|UBLKCP|UTMA)", self.parts[0]) is not None and \
            self.parts[0] not in ("LDC", "LDGDEPBAR", "LDTRAM")

    @property
    def is_conditional(self):
        return (self.guard is not None and self.guard not in ("PT", "UPT")) or \
            re.match(r"!?U?P\d", self.operands.strip()) is not None or \
            bool({"DIV", "CONV", "ANY"} & set(self.parts[1:]))

    @property
    def jumps(self):
        # ptxas also leaves loops by calls to a label of the same function, which never return.
        return self.parts[0] in ("BRA", "BRX", "JMP", "JMX", "SYNC", "BRK", "CONT", "BRXU") or \
            self.parts[0] == "CALL" and bool(self.targets)

    @property
    def ends(self):
        return self.parts[0] in ("EXIT", "RET", "KILL")


def parse_listing(text):
    """{mangled name: (instructions, {label: index})} from `nvdisasm -c`"""
    kernels = {}
    for section in re.split(r"^\s*//-+ \.text\.", text, flags=re.M)[1:]:
        name = section.split(None, 1)[0]
        instructions, labels = [], {}
        for line in section.splitlines():
            if label := re.match(r"(\.L[\w$]+):", line):
                labels[label.group(1)] = len(instructions)
            elif code := re.match(r"\s*/\*([0-9a-f]+)\*/\s*\{?\s*(\S.*)", line):
                instructions.append(Instruction(int(code.group(1), 16), code.group(2)))
        kernels[name] = (instructions, labels)
    return kernels


class Graph:
    """Instructions as nodes; edges to what may come next."""

    def __init__(self, instructions, labels):
        self.code = instructions
        self.next = [self.successors(i, labels) for i in range(len(instructions))]
        self.previous = [[] for _ in instructions]
        for i, following in enumerate(self.next):
            for j in following:
                self.previous[j].append(i)

    def successors(self, i, labels):
        code = self.code[i]
        after = [i + 1] if i + 1 < len(self.code) else []
        if code.ends:
            return after if code.is_conditional else []
        if code.jumps:
            # nvdisasm 11.8 leaves a few labels out, of branches out of slow paths; see `main_path`.
            code.lost = not code.targets or any(label not in labels for label in code.targets)
            targets = [labels[label] for label in code.targets if labels.get(label, len(self.code)) < len(self.code)]
            return targets + [a for a in after if code.is_conditional and a not in targets]
        return after

    def order(self):
        """Nodes that can be reached, in reverse postorder."""
        seen, out = {0}, []
        stack = [(0, iter(self.next[0]))] if self.code else []
        while stack:
            node, rest = stack[-1]
            for j in rest:
                if j not in seen:
                    seen.add(j)
                    stack.append((j, iter(self.next[j])))
                    break
            else:
                out.append(node)
                stack.pop()
        return out[::-1]

    def dominators(self):
        """Immediate dominators (Cooper, Harvey, Kennedy)."""
        order = self.order()
        place = {node: n for n, node in enumerate(order)}
        above = {order[0]: order[0]}
        changed = True
        while changed:
            changed = False
            for node in order[1:]:
                best = None
                for p in self.previous[node]:
                    if p not in above:
                        continue
                    if best is None:
                        best = p
                        continue
                    a, b = p, best
                    while a != b:
                        while place[a] > place[b]:
                            a = above[a]
                        while place[b] > place[a]:
                            b = above[b]
                    best = a
                if above.get(node) != best:
                    above[node] = best
                    changed = True
        return above, place

    def loops(self):
        """[(head, nodes)], one for each head, natural loops."""
        if not self.code:
            return []
        above, place = self.dominators()
        bodies = {}
        for tail in place:
            for head in self.next[tail]:
                # Does the head dominate the tail?
                node = tail
                while place[node] > place[head]:
                    node = above[node]
                if node != head:
                    continue
                body = bodies.setdefault(head, {head})
                stack = [tail]
                while stack:
                    node = stack.pop()
                    if node not in body:
                        body.add(node)
                        stack.extend(p for p in self.previous[node] if p in place)
        return list(bodies.items())

    def best_path(self, head, body, value):
        """(value, instructions) of the path from the head back to it, with the largest sum of `value`, then shortest.
        Edges back to heads of loops inside are not taken, so those are walked through once; see `main_path`."""
        _, place = self.dominators_cached()
        # From the end: best[node] = (value, -length, next node) from the node on.
        best = {}
        for node in sorted(body, key=place.get, reverse=True):
            options = [(0, 0, None)] if head in self.next[node] else []
            for j in self.next[node]:
                if j in body and j != head and place[j] > place[node] and j in best:
                    options.append((best[j][0], best[j][1], j))
            if options:
                worth, length, follow = max(options, key=lambda o: o[:2])
                best[node] = (worth + value[node], length - 1, follow)
        if head not in best:
            return None
        path, node = [], head
        while node is not None:
            path.append(node)
            node = best[node][2]
        return best[head][0], path

    def dominators_cached(self):
        if not hasattr(self, "_dominators"):
            self._dominators = self.dominators()
        return self._dominators


def main_path(instructions, labels, value_of):
    """Instructions on the main path of the loop that `value_of(instruction)` is largest for. A loop with half as much
    in a loop inside is not the one: it is around it, and what it has itself is the rest of an unrolled loop."""
    graph = Graph(instructions, labels)
    value = [value_of(i) for i in instructions]
    loops = graph.loops()
    candidates = []
    for head, body in loops:
        # What belongs to loops inside does not count for this one.
        inside = set().union(*(b for h, b in loops if h != head and h in body and b < body), set())
        path = graph.best_path(head, body, [0 if n in inside else v for n, v in enumerate(value)])
        if path and path[0] > 0:
            candidates.append((*path, head, body, inside))
    candidates = [c for c in candidates
                  if not any(d[3] < c[3] and d[2] in c[3] and 2 * d[0] >= c[0] for d in candidates)]
    if not candidates:
        raise SassError("no loop has what its declaration names")
    _, path, _, _, inside = max(candidates, key=lambda c: c[0])
    if inside & set(path):
        raise SassError(f"there is a loop on the main path, at {instructions[min(inside & set(path))].address:#x}")
    path = [instructions[n] for n in path]
    for i in path:
        if i.parts[0] in ("CALL", "JCAL") and not i.jumps:
            raise SassError(f"there is a call on the main path, at {i.address:#x}")
        if i.lost:
            raise SassError(f"{i.opcode} at {i.address:#x} goes to a label that is not in the listing")
    return path


# ---- Declarations and expressions ----

class Format:
    def __init__(self, name, bits, block, block_bytes):
        self.name, self.bits, self.block, self.block_bytes = name, bits, block, block_bytes
        self.per_word = block // 8

    def __eq__(self, other):
        return self.name == (other.name if isinstance(other, Format) else other)

    __hash__ = None


FORMATS = {"pn::pn3t": Format("pn3t", 3, 80, 34), "pn::pn4t": Format("pn4t", 4, 64, 34),
           "pncuda::P12Weights": Format("p12", 12, 256, 392), "pncuda::PlainWeights": Format("bf16", 16, 256, 512)}
OPCODE = re.compile(r"(?<![\w.])[A-Z][A-Z0-9]{2,}(?:\.[A-Z0-9]+)*(?![\w(])")


class Declaration:
    def __init__(self, where):
        self.where = where
        self.parameters = []
        self.lines = []  # (name, code)

    def evaluate(self, arguments, count, last=None):
        """The names with their values, as far as `last`; count(opcode) says how often there is one."""
        values = dict(arguments, K=TYPICAL_K, count=count)
        for name, text in self.lines:
            try:
                code = OPCODE.sub(lambda m: m[0] if m[0] in self.parameters else f'count("{m[0]}")', text)
                values[name] = eval(code, {"__builtins__": {}, "max": max, "min": min}, values)  # our own source's
            except Exception as error:
                raise SassError(f"{self.where}: {name} = {text}: {error!r}") from error
            if name == last:
                break
        return values


def split_list(text):
    """'a, b<c, d>' -> ['a', 'b<c, d>']"""
    out, depth, start = [], 0, 0
    for n, c in enumerate(text):
        depth += (c in "<({") - (c in ">)}")
        if c == "," and depth == 0:
            out.append(text[start:n])
            start = n + 1
    return [part.strip() for part in out + [text[start:]] if part.strip()]


def declarations(folder):
    """{kernel: Declaration} of the sources in `folder`"""
    found = {}
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".cu", ".cuh")):
        text = path.read_text()
        for block in re.finditer(r"(?:^// sass:.*\n)+", text, flags=re.M):
            line = text.count("\n", 0, block.start()) + 1
            declaration = Declaration(f"{path.name}:{line}")
            for entry in block.group(0).splitlines():
                name, equals, value = entry.removeprefix("// sass:").partition("=")
                if not equals or not name.strip().isidentifier():
                    raise SassError(f"{declaration.where}: not NAME = EXPRESSION: {entry}")
                declaration.lines.append((name.strip(), value.strip()))
            rest = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", text[block.end():], count=1)
            head = re.match(r"template\s*<(.*?)>\s*(?:static\s+)?__global__[^;{]*?\b(?!__)(\w+)\s*\(", rest, flags=re.S)
            if head is None:
                raise SassError(f"{declaration.where}: no template of a kernel follows")
            declaration.parameters = [re.split(r"\s*=", p)[0].split()[-1] for p in split_list(head.group(1))]
            missing = {"loop", "weights", "math"} - {name for name, _ in declaration.lines}
            if missing:
                raise SassError(f"{declaration.where}: no {', '.join(sorted(missing))}")
            found[head.group(2)] = declaration
    return found


def split_name(demangled):
    """'void pncuda::k<pn::pn3t, true, 1>(..)' -> ('k', ['pn::pn3t', True, 1])"""
    match = re.match(r"(?:void )?(?:[\w]+::|\(anonymous namespace\)::)*(\w+)(<)?", demangled)
    if match is None or match.group(2) is None:
        return (match.group(1) if match else demangled), []
    depth = 0
    for n in range(match.end() - 1, len(demangled)):
        depth += (demangled[n] == "<") - (demangled[n] == ">")
        if depth == 0:
            break
    arguments = []
    for text in split_list(demangled[match.end():n]):
        plain = re.sub(r"^\([\w: ]+\)", "", text)
        if plain in ("true", "false"):
            arguments.append(plain == "true")
        elif re.fullmatch(r"-?\d+[uUlL]*", plain):
            arguments.append(bool(int(plain)) if text.startswith("(bool)") else int(plain.rstrip("uUlL")))
        else:
            arguments.append(FORMATS.get(plain, plain))
    return match.group(1), arguments


# ---- Devices ----

# Of a multiprocessor: registers 65536 everywhere; warps, blocks, bytes of shared memory, bytes of it that a block costs
# beside its own, and by how many warps registers are given out. CUDA's programming guide, "Technical Specifications".
LIMITS = {
    "sm_60": (64, 32, 64 << 10, 0, 2), "sm_61": (64, 32, 96 << 10, 0, 4), "sm_70": (64, 32, 96 << 10, 0, 4),
    "sm_75": (32, 16, 64 << 10, 0, 4), "sm_80": (64, 32, 164 << 10, 1 << 10, 4),
    "sm_86": (48, 16, 100 << 10, 1 << 10, 4), "sm_89": (48, 24, 100 << 10, 1 << 10, 4),
    "sm_90": (64, 32, 228 << 10, 1 << 10, 4), "sm_100": (64, 32, 228 << 10, 1 << 10, 4),
    "sm_120": (48, 24, 100 << 10, 1 << 10, 4),
}

# arch: (card, multiprocessors, lanes that get an instruction each cycle, GHz, GB/s, what is said of those). Clocks are
# the boost clocks with which the maker's fp32 rates are computed.
CARDS = {
    "sm_60": ("Tesla P100", 56, 64, 1.328, 550, "of 732 at the peak"),
    "sm_75": ("Tesla T4", 40, 128, 1.590, 320, "the peak"),
    "sm_80": ("A100 40 GB", 108, 128, 1.410, 1555, "the peak"),
    "sm_90": ("H200", 132, 128, 1.980, 4300, "of 4800 at the peak"),
}


def occupancy(arch, registers, threads, shared):
    """Resident warps as a part of those that a multiprocessor can have."""
    warps_max, blocks_max, shared_max, reserved, step = LIMITS[arch]
    warps = -(-threads // 32)
    by_registers = 65536 // (-(-registers * 32 // 256) * 256) // step * step // warps
    used = -(-(shared + reserved) // 256) * 256
    blocks = min(blocks_max, warps_max // warps, by_registers, shared_max // used if used else blocks_max)
    return blocks * warps / warps_max


def card_limit(arch, fmt):
    """Instructions for a weight that the card issues while memory delivers it, or None."""
    if arch not in CARDS:
        return None
    _, processors, lanes, clock, bandwidth, _ = CARDS[arch]
    return processors * lanes * clock / (bandwidth * fmt.block / fmt.block_bytes)


# ---- What is listed ----

class Listed:
    """A kernel that must be there. arguments: template arguments by name; budgets: instructions for a weight by
    architecture (None: recorded without a budget)."""

    def __init__(self, name, kernel, budgets, **arguments):
        self.name, self.kernel, self.budgets, self.arguments = name, kernel, budgets, arguments

    def matches(self, figure):
        return figure.kernel == self.kernel and all(figure.arguments.get(k) == v for k, v in self.arguments.items())


def listed():
    out = []
    ffma = {  # format, repacked, fast_half2: budget on sm_60
        ("pn3t", True, False): 2.5, ("pn3t", False, False): 4.5, ("pn3t", True, True): 2.3, ("pn3t", False, True): 4.0,
        ("pn4t", True, False): 2.7, ("pn4t", False, False): 5.3, ("pn4t", True, True): None,
        ("pn4t", False, True): None,
    }
    for (fmt, repacked, half2), budget in ffma.items():
        name = f"{fmt} {'repacked' if repacked else 'native'} {'fast_half2' if half2 else 'accurate'}"
        out.append(Listed(name, "gemv_ffma", {"sm_60": budget, "sm_75": None}, T=fmt, repacked=repacked, tokens=1,
                          half2=half2))
    tensor = {("pn3t", True): 1.5, ("pn4t", True): 1.5, ("pn3t", False): 4.0, ("pn4t", False): 4.5}
    for (fmt, repacked), budget in tensor.items():
        name = f"{fmt} {'repacked' if repacked else 'native'} tensor, up to 8 tokens"
        out.append(Listed(name, "gemv_tensor", {"sm_80": budget, "sm_90": budget}, T=fmt, repacked=repacked,
                          two_parts=False))
    # BF16_P12. On sm_60 and 75 the limit is what the card allows.
    archs = {"sm_60": None, "sm_75": None, "sm_90": None}
    for tokens, budgets in {1: {**archs, "sm_60": 13.2, "sm_90": 5.75}, 2: archs, 4: archs}.items():
        out.append(Listed(f"p12 multiply-adds, {tokens} token{'s' if tokens > 1 else ''}", "p12_ffma", budgets, W="p12",
                          tokens=tokens))
    for tiles, budget in {1: 3.3, 2: None, 4: None}.items():
        out.append(Listed(f"p12 tensor, up to {8 * tiles} tokens", "p12_tensor", {"sm_80": budget, "sm_90": budget},
                          W="p12", tiles=tiles))
    return out


# ---- Figures ----

class Figure:
    def __init__(self, arch, compiler, kernel, arguments, text, ptxas):
        self.arch, self.compiler, self.kernel, self.arguments, self.text = arch, compiler, kernel, arguments, text
        self.ptxas = ptxas
        self.name = self.budget = None

    def measure(self, declaration, instructions, labels):
        def value_of(instruction):
            return declaration.evaluate(self.arguments, lambda op: instruction.is_a(op), last="loop")["loop"]

        # Few instructions differ in what a declaration sees of them.
        cache = {}
        path = main_path(instructions, labels, lambda i: cache[k] if (k := (i.opcode, i.is_a(i.parts[0]))) in cache
                         else cache.setdefault(k, value_of(i)))
        values = declaration.evaluate(self.arguments, lambda op: sum(i.is_a(op) for i in path))
        self.weights, math = values["weights"], values["math"]
        opcodes = collections.Counter(i.parts[0] for i in path)
        self.opcodes = " ".join(f"{op}:{n}" for op, n in opcodes.most_common(8))
        if self.weights <= 0 or not self.weights * 0.999 <= math <= self.weights * MORE_MATH:
            raise SassError(f"weights of a turn by loads {self.weights:g}, by arithmetic {math:g} "
                            f"({len(path)} instructions: {self.opcodes})")
        self.instructions = len(path) / self.weights
        self.memory = sum(i.is_memory for i in path) / self.weights
        self.shared = self.ptxas["shared"] + int(values.get("shared", 0))
        self.shared_known = "shared" in values
        threads = self.ptxas.get("threads")
        self.occupancy = occupancy(self.arch, self.ptxas["registers"], threads, self.shared) if threads else None
        fmt = next((a for a in self.arguments.values() if isinstance(a, Format)), None)
        self.limit = card_limit(self.arch, fmt) if fmt else None

    @property
    def short(self):
        """The name without its namespaces and parameters."""
        text = re.sub(r"\(pncuda::\w+\)$", "", self.text).removeprefix("void ")
        return text.replace("(anonymous namespace)::", "").replace("pncuda::", "")

    def record(self):
        return {"weights_per_turn": round(self.weights), "instructions_per_weight": round(self.instructions, 3),
                "memory_per_weight": round(self.memory, 3), "registers": self.ptxas["registers"],
                "occupancy": round(self.occupancy or 0, 3)}


def figures_of(compiler, nvdisasm, arch, folder, declared):
    """Figures of all declared kernels, what is wrong with any kernel, and which could not be measured (those that are
    listed must be)."""
    figures, wrong, unmeasured = [], [], []
    for source in sorted((ROOT / "cuda").glob("*.cu")):
        if source.name in HOST_ONLY:
            continue
        built = cubin.build(compiler, arch, source, folder)
        wrong += cubin.complaints(built)
        names = {m: d for m, d in cubin.demangle(built["kernels"]).items() if split_name(d)[0] in declared}
        if not names:
            continue
        listing = subprocess.run([nvdisasm, "-c", built["cubin"]], capture_output=True, text=True)
        if listing.returncode != 0:
            raise SassError(f"nvdisasm: {listing.stderr.strip()}")
        code = parse_listing(listing.stdout)
        for mangled, demangled in names.items():
            kernel, arguments = split_name(demangled)
            declaration = declared[kernel]
            arguments = dict(zip(declaration.parameters, arguments))
            figure = Figure(arch, compiler.name, kernel, arguments, demangled, built["kernels"][mangled])
            try:
                figure.measure(declaration, *code[mangled])
                figures.append(figure)
            except SassError as error:
                is_listed = any(entry.matches(figure) and arch in entry.budgets for entry in listed())
                (wrong if is_listed else unmeasured).append(f"{arch}, {compiler.name}: {demangled}: {error}")
    return figures, wrong, unmeasured


def collect(compilers, folder, declared):
    """(figures, what is wrong, what was left out, which kernels that are not listed could not be measured)"""
    figures, wrong, skipped, unmeasured = [], [], [], []
    for text in compilers:
        nvcc, nvdisasm, archs = text.split("=")
        try:
            compiler = cubin.Compiler(nvcc)
        except cubin.Skip as reason:
            skipped.append(str(reason))
            continue
        for arch in archs.split(","):
            if not compiler.knows(arch):
                skipped.append(f"{compiler.name} does not compile for {arch}")
                continue
            try:
                more, bad, out = figures_of(compiler, nvdisasm, arch, folder, declared)
            except cubin.Failure as error:
                more, bad, out = [], [str(error)], []
            figures += more
            wrong += bad
            unmeasured += out
            for entry in listed():
                if arch not in entry.budgets:
                    continue
                matching = [f for f in more if entry.matches(f)]
                if len(matching) != 1 and not bad:
                    wrong.append(f"{arch}, {compiler.name}: {len(matching)} kernels are '{entry.name}' "
                                 f"({entry.kernel})")
                for figure in matching:
                    figure.name, figure.budget = entry.name, entry.budgets[arch]
    return figures, wrong, skipped, unmeasured


def check(figures, recorded):
    """Sentences about listed figures that are over a budget or worse than recorded, and about those not recorded."""
    wrong, notes = [], []
    compilers = {r["compiler"] for r in recorded}
    known = {(r["name"], r["arch"], r["compiler"]): r for r in recorded}
    for f in figures:
        if f.name is None:
            continue
        where = f"{f.name}, {f.arch}, {f.compiler}"
        if f.budget is not None and f.instructions > f.budget:
            wrong.append(f"{where}: {f.instructions:.2f} instructions for a weight, {f.budget} allowed")
        before = known.get((f.name, f.arch, f.compiler))
        if before is None:
            # Another version of the compiler has its own figures; then budgets have to do.
            (wrong if f.compiler in compilers else notes).append(f"{where}: nothing is recorded (bench/sass.sh --save)")
            continue
        now = f.record()
        for key in ("instructions_per_weight", "memory_per_weight", "registers"):
            if now[key] > before[key] * WORSE:
                wrong.append(f"{where}: {key.replace('_', ' ')} {now[key]}, recorded {before[key]}")
    return wrong, notes


def table(figures):
    rows = [("kernel", "arch", "compiler", "instr/weight", "budget", "card allows", "memory instr/weight", "registers",
             "spills", "static shared", "occupancy", "main path")]
    for f in figures:
        rows.append((
            f.name or f"`{f.short}`", f.arch, f.compiler,
            f"{f.instructions:.2f}", f"{f.budget:g}" if f.budget else "-", f"{f.limit:.2f}" if f.limit else "-",
            f"{f.memory:.3f}", str(f.ptxas["registers"]), str(f.ptxas["spills"]), str(f.ptxas["shared"]),
            (f"{f.occupancy:.0%}" if f.occupancy else "-") + ("" if f.shared_known else " (registers)"),
            f.opcodes))
    return "\n".join(["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])] +
                     ["| " + " | ".join(row) + " |" for row in rows[1:]]) + "\n"


def document(figures):
    cards = "\n".join(
        f"| {arch} | {card} | {n} x {lanes} x {clock} GHz | {bandwidth} GB/s, {note} | " +
        " | ".join(f"{card_limit(arch, f):.2f}" for f in FORMATS.values()) + " |"
        for arch, (card, n, lanes, clock, bandwidth, note) in CARDS.items())
    return f"""# Machine code of libpncuda's kernels

Made by `bench/sass.sh --save`; `bench/sass.sh --check` (a test in ctest) fails when a kernel spills, is over its budget
or more than {WORSE - 1:.0%} worse than `sass.json`. Nothing here was measured on a device.

*instr/weight*: instructions that a lane issues on the main path of the main loop, over the weights that it takes there;
one token, unless the name says otherwise: then for all of them. *memory instr/weight*: those of them that load or
store, shared memory too. *occupancy*: of registers, threads and shared memory (rows of K = {TYPICAL_K}) of a block of
threads; of registers and threads alone where it says so. How loops are found and weights counted: `bench/sass.py`.

*card allows*: what the card issues while its memory delivers a weight,

    multiprocessors * lanes * clock / (bandwidth * weights of a block / bytes of a block)

with what can be used of the bandwidth, where that is known. Lanes are those that the schedulers of a multiprocessor
give an instruction each cycle, 32 each.

| arch | card | issue | bandwidth | {' | '.join(f.name for f in FORMATS.values())} |
|---|---|---|---|---|---|---|---|
{cards}

A kernel with more than that is bound by its instructions, not by memory.

{table(figures)}"""


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("compilers", nargs="*")
    arguments = parser.parse_args()
    try:
        declared = declarations(ROOT / "cuda")
        missing = {entry.kernel for entry in listed()} - set(declared)
        if missing:
            raise SassError(f"no declaration (// sass: ...) of {', '.join(sorted(missing))} in cuda/")
        figures, wrong, skipped, unmeasured = collect(arguments.compilers, arguments.folder, declared)
    except SassError as error:
        print(f"sass.py: {error}", file=sys.stderr)
        return 1
    named = sorted((f for f in figures if f.name), key=lambda f: (f.arch, f.compiler))
    print(table(figures if arguments.all else named))
    for text in skipped + (unmeasured if arguments.all else []):
        print(f"left out: {text}")
    if arguments.check:
        try:
            recorded = json.loads((RESULTS / "sass.json").read_text())["kernels"]
        except OSError as error:
            print(f"sass.py: nothing is recorded, bench/sass.sh --save does it: {error}", file=sys.stderr)
            return 1
        bad, notes = check(figures, recorded)
        wrong += bad
        for text in notes:
            print(f"note: {text}")
    for text in wrong:
        print(f"sass.py: {text}", file=sys.stderr)
    if arguments.save and named:
        (RESULTS / "sass.md").write_text(document(named))
        kernels = [{"name": f.name, "kernel": f.short, "arch": f.arch, "compiler": f.compiler, "budget": f.budget,
                    **f.record()} for f in named]
        lines = ",\n".join(json.dumps(k) for k in kernels)
        (RESULTS / "sass.json").write_text(f'{{"kernels": [\n{lines}\n]}}\n')
    if wrong:
        return 1
    return 0 if figures else cubin.SKIPPED


if __name__ == "__main__":
    sys.exit(main())
