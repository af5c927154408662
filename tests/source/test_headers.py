"""Proves that each public header stands alone: it compiles by itself and twice, as C++17, 20 and 23, with and without
exceptions and RTTI, under every compiler that is there, warnings as errors; and that it defines no macros but its own.
With PN_TEST_EVERY=6 each header alone in one of these ways, another one for each, and all together in every way.

With nvcc on the PATH each C++ header is also compiled for host and device.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = sorted(str(p.relative_to(INCLUDE)) for p in INCLUDE.rglob("*.hpp"))
COMPILERS = [c for c in ("g++", "clang++") if shutil.which(c)]
EVERY = int(os.environ.get("PN_TEST_EVERY", "1"))
WARNINGS = ("-Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wpedantic -Wundef -Werror").split()


def run(command, source):
    return subprocess.run(command, input=source, text=True, capture_output=True)


class Headers(unittest.TestCase):
    def test_there_are_compilers_and_headers(self):
        self.assertTrue(COMPILERS)
        self.assertGreater(len(HEADERS), 12)

    def test_each_compiles_alone_and_twice(self):
        ways = [(compiler, standard) for standard in ("c++17", "c++20", "c++2b") for compiler in COMPILERS]
        jobs = []
        for i, headers in enumerate([HEADERS] + [[header] for header in HEADERS]):
            source = "".join(f"#include <{h}>\n#include <{h}>\n" for h in headers) + "int main() { return 0; }\n"
            for way, (compiler, standard) in enumerate(ways):
                # all together in every way, each alone in as many as there is time for
                if headers == HEADERS or (way + i) % min(EVERY, len(ways)) == 0:
                    flags = ["-fno-exceptions", "-fno-rtti"] if standard == "c++20" else []
                    command = [compiler, f"-std={standard}", "-fsyntax-only", *WARNINGS, *flags, "-I", str(INCLUDE),
                               "-x", "c++", "-"]
                    jobs.append((command, source))
        self.assertGreaterEqual(len(jobs), len(HEADERS) + len(ways))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (command, source), result in zip(jobs, pool.map(lambda job: run(*job), jobs)):
                self.assertEqual(result.returncode, 0, " ".join(command) + "\n" + source + result.stderr[:2000])

    def test_only_own_macros_are_defined(self):
        for compiler in COMPILERS:
            for header in HEADERS:
                text = (INCLUDE / header).read_text()
                outside = "".join(f"#include <{name}>\n" for name in set(self.standard_headers(header)))
                command = [compiler, "-std=c++17", "-dM", "-E", "-I", str(INCLUDE), "-x", "c++", "-"]
                before = self.macros(run(command, outside).stdout)
                after = self.macros(run(command, outside + f"#include <{header}>\n").stdout)
                self.assertNotEqual(after - before, set(), f"{header}: not even a guard?")
                for macro in after - before:
                    self.assertRegex(macro, r"^(PN|P12)_", f"{header} leaks {macro}")
                self.assertIn("#ifndef " + re.sub(r"[/.]", "_", header).upper(), text, "the guard has the file's name")

    @staticmethod
    def macros(text):
        return {line.split()[1].split("(")[0] for line in text.splitlines() if line.startswith("#define")}

    @classmethod
    def standard_headers(cls, header, seen=None):
        """Headers from outside that `header` includes, also through others of the project."""
        seen = set() if seen is None else seen
        if header in seen:
            return
        seen.add(header)
        for name in re.findall(r"#\s*include\s*<([^>]+)>", (INCLUDE / header).read_text()):
            if (INCLUDE / name).is_file():
                yield from cls.standard_headers(name, seen)
            else:
                yield name

    @unittest.skipUnless(shutil.which("nvcc"), "no nvcc")
    def test_each_compiles_for_host_and_device(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "all.cu"
            source.write_text("".join(f"#include <{h}>\n" for h in HEADERS) + DEVICE_CODE)
            code = "sm_80" if EVERY == 1 else "compute_80"  # PTX, which is what the headers can get wrong
            result = subprocess.run(["nvcc", "-std=c++17", "-gencode", f"arch=compute_80,code={code}", "-Werror", "all-warnings", "-I", str(INCLUDE), "-c",
                                     str(source), "-o", str(source) + ".o"], text=True, capture_output=True)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


# Every function of the core, called from device code.
DEVICE_CODE = """
__global__ void all(pn::Block34* pn_row, p12::Block392* p12_row, float* x, double* g, std::uint16_t* w, pn::BlockQ8_0* q) {
  std::size_t bad = 0;
  bool ok = pn::quantize_row<pn::pn3t>(x, g, 80, pn_row, &bad) == pn::Status::ok;
  ok = ok && pn::quantize_block<pn::pn4t>(x, *pn_row) == pn::Status::ok;
  ok = ok && pn::validate_row<pn::pn3t>(pn_row, 80, &bad) == pn::Status::ok;
  ok = ok && pn::decode_row<pn::pn4t>(pn_row, 64, x) == pn::Status::ok;
  ok = ok && pn::quantize_row_q8_0(x, 64, q, &bad) == pn::Status::ok;
  ok = ok && pn::dot_f32<pn::pn3t>(pn_row, x, 80, x) == pn::Status::ok;
  ok = ok && pn::dot_q8_0<pn::pn4t>(pn_row, q, 64, x) == pn::Status::ok;
  ok = ok && pn::hadamard_weights(x, x, 128, 64, &bad) == pn::Status::ok;
  ok = ok && pn::hadamard_weights(x, g, 128, 128, &bad) == pn::Status::ok;
  ok = ok && pn::hadamard_weights_to_half(x, w, 256, 256) == pn::Status::ok;
  ok = ok && pn::hadamard_weights_to_bf16(x, w, 512, 512) == pn::Status::ok;
  ok = ok && pn::is_hadamard_block(1024) && pn::hadamard_activations(x, 1024, 1024) == pn::Status::ok;
  ok = ok && p12::pack_row(w, 256, p12_row, &bad) == pn::Status::ok;
  ok = ok && p12::validate_row(p12_row, 256, &bad) == pn::Status::ok;
  ok = ok && p12::unpack_row(p12_row, 256, w) == pn::Status::ok;
  p12::RowScan scan;
  ok = ok && p12::scan_row(w, 256, scan) == pn::Status::ok;
  x[1] = pn::decode_element<pn::pn4t>(pn_row, bad) + pn::bf16_to_float(p12::unpack_element(p12_row, 3));
  w[0] = pn::float_to_half(x[0]) + pn::float_to_bf16(x[0]) + pn::double_to_half(g[0]) + pn::double_to_bf16(g[1]);
  x[0] = ok ? 1 : 0;
}
"""

if __name__ == "__main__":
    unittest.main()
