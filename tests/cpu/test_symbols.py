"""Proves that libpn_cpu.a can be linked into any program: no inline function compiled for one instruction set can take
the place of the same function elsewhere, no name lies outside of pn:: and p12::, and nothing runs before main.

PN_CPU_ARCHIVE names the archive, CXX the compiler of the self-check; PN_CPU_SANITIZED=1 tells of a sanitizer build.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ARCHIVE = os.environ.get("PN_CPU_ARCHIVE", "")
COMPILER = os.environ.get("CXX", "c++")
SANITIZED = os.environ.get("PN_CPU_SANITIZED") == "1"

# Objects compiled for one instruction set.
ISA_OBJECT = re.compile(r"^(avx2|avx512|avx512_icl|neon)\.cpp\.(o|obj)$")
# As in src/cpu/CMakeLists.txt, together: any of these objects may take them all.
X86_FLAGS = "-mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vnni".split()
SOURCES = pathlib.Path(__file__).resolve().parents[2]
WEAK = set("WVu")  # and w, v where they have a value
OURS = re.compile(r"^(non-virtual thunk to |guard variable for |typeinfo (name )?for |vtable for )*"
                  r"([^(<]*[ *&])?(pn|p12)::")
# What compilers add of their own accord. In ordinary objects (not those for one instruction set) inline functions of
# the standard library may stand outside of their callers at low optimisation levels.
# DW.ref: no code but the address of the runtime's own function, the same in every object.
OF_COMPILERS = re.compile(r"^(__odr_asan\.|__asan_|__ubsan_|\.L|DW\.ref\.__gxx_personality_)")
STANDARD = re.compile(r"^([^(<]*[ *&])?(std|__gnu_cxx|__cxxabiv1)::|^__clang_call_terminate$")


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


class Symbol:
    def __init__(self, member, name, kind, value):
        self.member, self.name, self.kind = member, name, kind
        self.defined = kind not in "Uwv" or (kind in "wv" and value is not None)
        self.weak = self.defined and (kind in WEAK or kind in "wv")
        self.is_global = self.defined and (kind.isupper() or self.weak) and kind not in "N"


def symbols(archive):
    """All symbols of an archive, with demangled names."""
    found = []
    member = ""
    for line in run("nm", "--format=posix", "-C", archive).splitlines():
        heading = re.match(r"^.*\[(.*)\]:$", line) or re.match(r"^(\S+\.o):$", line)
        if heading:
            member = heading.group(1)
            continue
        match = re.match(r"^(.*?) ([A-Za-z?])(?: ([0-9a-f]+))?(?: ([0-9a-f]+))?\s*$", line)
        if match:
            found.append(Symbol(member, match.group(1), match.group(2), match.group(3)))
    return found


def complaints(archive, sanitized=False):
    """What is wrong with an archive, as lines of text."""
    wrong = []
    for symbol in symbols(archive):
        where = f"{symbol.member}: {symbol.kind} {symbol.name}"
        if OF_COMPILERS.match(symbol.name):
            continue
        if symbol.weak and ISA_OBJECT.match(symbol.member):
            wrong.append(f"weak, in an object for one instruction set: {where}")
        if not symbol.is_global or OURS.match(symbol.name):
            continue
        if symbol.weak and STANDARD.match(symbol.name) and not ISA_OBJECT.match(symbol.member):
            continue
        wrong.append(f"outside of pn:: and p12::: {where}")
    if not sanitized:  # sanitizers register their globals
        member = ""
        for line in run("readelf", "-SW", archive).splitlines():
            heading = re.match(r"^File: .*\((.*)\)$", line)
            member = heading.group(1) if heading else member
            section = re.search(r"\s(\.(init_array|preinit_array|ctors)\S*)\s", line)
            if section:
                wrong.append(f"runs before main: {member}: {section.group(1)}")
    return wrong


@unittest.skipUnless(shutil.which("nm") and shutil.which("readelf"), "no nm and readelf")
class Symbols(unittest.TestCase):
    def test_the_archive(self):
        self.assertTrue(ARCHIVE, "PN_CPU_ARCHIVE is not set")
        self.assertGreater(sum(s.is_global for s in symbols(ARCHIVE)), 30)
        self.assertEqual(complaints(ARCHIVE, SANITIZED), [])

    @unittest.skipIf(SANITIZED, "the same sources as without sanitizers")
    def test_without_optimisation(self):
        """The archive tells of one level; some users build with -O0, which leaves out of line what it can."""
        for member in sorted({s.member for s in symbols(ARCHIVE) if ISA_OBJECT.match(s.member)}):
            with self.subTest(member):
                source = SOURCES / "src/cpu" / member.rsplit(".", 1)[0]
                isa = [] if member.startswith("neon") else X86_FLAGS
                archive = self.archive_of(source, "-w", "-O0", *isa, f"-I{SOURCES}/include", f"-I{SOURCES}/src")
                self.assertGreater(sum(s.defined for s in symbols(archive)), 10)
                self.assertEqual(complaints(archive), [])

    def test_public_functions_are_there(self):
        names = " ".join(s.name for s in symbols(ARCHIVE) if s.is_global)
        for name in ("pn::cpu::isas(", "pn::cpu::quantize_rows<pn::", "p12::cpu::pack_rows(", "p12::cpu::multiply("):
            self.assertIn(name, names)

    def test_every_fault_would_be_noticed(self):
        cases = {
            "avx2": ("namespace pn { inline int twice(int x) { return 2 * x; } int f(int x) { return twice(x); } }",
                     "weak, in an object for one instruction set: avx2.cpp.o: W pn::twice(int)"),
            "neon": ("#include <algorithm>\nnamespace pn { int f(int x) { return std::max(x, 1); } }", "weak, in an object"),
            "avx512": ("namespace pn { template <class T> T same(T x) { return x; } int f(int x) { return same(x); } }",
                       "weak, in an object"),
            "avx512_icl": ("namespace pn { inline int table[4] = {1, 2}; int f(int x) { return table[x]; } }",
                           "weak, in an object"),
            "dispatch": ("int helper(int x) { return x; } namespace pn { int f(int x) { return helper(x); } }",
                         "outside of pn:: and p12::: dispatch.cpp.o: T helper(int)"),
            "pn": ("extern \"C\" int pn_f(int x) { return x; }", "outside of pn:: and p12::"),
            "baseline": ("namespace other { int f(pn_int x) { return x; } }".replace("pn_int", "int"),
                         "outside of pn:: and p12::"),
            "prepare": ("int g(); namespace pn { extern int at_start; int at_start = g(); }", "runs before main: prepare"),
        }
        for name, (source, complaint) in cases.items():
            with self.subTest(name):
                self.assertTrue(any(complaint in line for line in complaints(self.archive(name, source))), complaint)

    def test_what_is_allowed_is_not_complained_about(self):
        fine = ("namespace pn { namespace { int local(int x) { return x; } } extern const int table[2];"
                "const int table[2] = {1, 2}; int f(int x) { static const int y = 3; return local(x) + y; }"
                "template <class T> T g(T x) { return x; } template int* g<int*>(int*); }"
                "namespace p12::cpu { bool f() { return true; } }")
        self.assertEqual(complaints(self.archive("dispatch", fine)), [])
        strong = "namespace pn { namespace { int local(int x) { return x; } } int f(int x) { return local(x); } }"
        self.assertEqual(complaints(self.archive("avx2", strong)), [])

    def archive(self, name, text):
        """An archive with one object, compiled from this text without optimisation."""
        path = self.folder() / f"{name}.cpp"
        path.write_text(text + "\n")
        return self.archive_of(path, "-O0")

    def archive_of(self, source, *flags):
        folder = self.folder()
        run(COMPILER, "-std=c++17", *flags, "-c", str(source), "-o", f"{folder}/{source.name}.o")
        run("ar", "rcs", f"{folder}/libx.a", f"{folder}/{source.name}.o")
        return f"{folder}/libx.a"

    def folder(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return pathlib.Path(folder)


if __name__ == "__main__":
    unittest.main()
