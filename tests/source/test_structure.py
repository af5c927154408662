"""Proves that the rooms of the project depend on each other in one direction only, and that each folder says what may
go there.

Data flows from file bytes through io and a codec to io again, and nothing points back: the cores know only the standard
library, io and the kernels know the cores, the tool knows io and the kernels. Every #include below include/, src/ and
cuda/ is held against the table below; a room that is not in the table is an error.
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Room -> rooms that it may include, itself always among them.
ALLOWED = {
    "include/pn": {"include/pn"},
    "include/p12": {"include/p12", "include/pn"},
    "include/pncuda": {"include/pncuda", "include/pn", "include/p12"},
    "src/cpu": {"src/cpu", "include/pn", "include/p12"},
    "src/io": {"src/io", "include/pn", "include/p12"},
    "src/pnpack": {"src/pnpack", "src/io", "include/pn", "include/p12"},
    "cuda": {"cuda", "include/pncuda", "include/pn", "include/p12"},
}

# Third parties, by the room that may use them.
THIRD_PARTY = {
    "src/io": re.compile(r"nlohmann/"),
    "src/pnpack": re.compile(r"(fmt/|CLI/|nlohmann/)"),
    "include/pncuda": re.compile(r"(cuda_fp16\.h|stddef\.h|stdint\.h)$"),
    "cuda": re.compile(r"(cuda|cublas|host_cuda/device\.hpp)"),
}

# Headers of the C++17 standard library and of C, as far as a core may want them.
STANDARD = re.compile(r"^[a-z_0-9]+$")
COMPILER = {"cpuid.h", "xmmintrin.h", "immintrin.h", "arm_neon.h"}
SYSTEM = {"dirent.h", "fcntl.h", "pthread.h", "unistd.h", "sys/mman.h", "sys/stat.h", "sys/statvfs.h"}

SOURCES = (".h", ".hpp", ".cpp", ".cu", ".cuh")
TOP_LEVEL = {
    "include", "src", "cuda", "tests", "bench", "examples", "cmake", "CMakeLists.txt", "LICENSE", "README.md",
    "CMakePresets.json", "conanfile.py", ".ci", ".gitignore", ".gitattributes", ".clang-format", ".clang-tidy",
}


def tracked(*options):
    """The files of the project, by git; without it all but those of builds."""
    try:
        names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", *options], text=True, capture_output=True,
                               check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
        names = [name for name in names if not re.match(r"build|.*__pycache__", name)]
    return [name for name in names if (ROOT / name).is_file()]


def sources():
    for top in ("include", "src", "cuda"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SOURCES:
                yield path


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] == "cuda" else "/".join(parts[:2])


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1), match.group(2)


def target_room(path, quote, name):
    """The room of a project header, or None for one from outside."""
    for candidate in ([path.parent / name] if quote == '"' else []) + [ROOT / "include" / name, ROOT / "src" / name]:
        if candidate.is_file():
            return room_of(candidate.resolve())
    return None


class Structure(unittest.TestCase):
    def test_there_is_something_to_check(self):
        self.assertGreater(len(list(sources())), 20)
        self.assertEqual({room_of(p) for p in sources()} - set(ALLOWED), set(), "rooms without a rule")

    def test_arrows_point_one_way(self):
        for path in sources():
            room = room_of(path)
            for number, quote, name in includes(path):
                where = f"{path.relative_to(ROOT)}:{number}: {name}"
                target = target_room(path, quote, name)
                if target is not None:
                    self.assertIn(target, ALLOWED[room], f"{where}: {room} must not know {target}")
                    continue
                self.assertEqual(quote, "<", f"{where}: no such header in the project")
                if STANDARD.match(name) or name in COMPILER:
                    continue
                if name in SYSTEM:
                    self.assertIn(room, ("src/io", "src/pnpack"), f"{where}: a system header")
                    continue
                third = THIRD_PARTY.get(room)
                self.assertTrue(third is not None and third.match(name), f"{where}: a stranger in {room}")

    def test_public_headers_use_angle_brackets(self):
        for path in sources():
            if room_of(path).startswith("include/"):
                for number, quote, name in includes(path):
                    self.assertEqual(quote, "<", f"{path.relative_to(ROOT)}:{number}: {name}")

    def test_top_level(self):
        self.assertEqual({name.split("/")[0] for name in tracked()} - TOP_LEVEL, set())

    def test_each_folder_says_what_may_go_there(self):
        """In its README.md, in the first line of its CMakeLists.txt or Makefile, or in the nearest README.md above it:
        at the start of a table's row, or as `folder/`."""
        folders = {pathlib.PurePath(name).parent for name in tracked() if "/" in name}
        self.assertGreater(len(folders), 30)
        self.assertEqual([str(f) for f in sorted(folders) if not self.says_what_may_go_there(ROOT / f)], [])

    def test_a_folder_that_says_nothing_is_noticed(self):
        self.assertFalse(self.says_what_may_go_there(ROOT / "tests/golden/v0"))
        self.assertFalse(self.says_what_may_go_there(ROOT / "src/gpu"))

    @staticmethod
    def says_what_may_go_there(folder):
        for name, first in (("README.md", r"# .*\n\n\w"), ("CMakeLists.txt", "# "), ("Makefile", "# ")):
            if (folder / name).is_file() and re.match(first, (folder / name).read_text()):
                return True
        above = next(p for p in folder.parents if (p / "README.md").is_file())
        text = (above / "README.md").read_text()
        cells = " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.M))
        named = re.findall(r"`([^`\s]+?)/?`", cells) + re.findall(r"`([^`\s]+)/`", text)
        return str(folder.relative_to(above)) in named

    def test_core_allocates_nothing_and_throws_nothing(self):
        banned = re.compile(r"\b(new|delete|throw|try|catch|malloc|free|dynamic_cast|typeid|static_cast<void\*>)\b(?!;)")
        for path in sources():
            if room_of(path) not in ("include/pn", "include/p12"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = re.sub(r'"[^"]*"', '""', line.split("//")[0]).replace("= delete;", "")
                self.assertIsNone(banned.search(code), f"{path.relative_to(ROOT)}:{number}: {line.strip()}")


if __name__ == "__main__":
    unittest.main()
