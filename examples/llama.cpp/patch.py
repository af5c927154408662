#!/usr/bin/env python3
"""Inserts into llama.cpp's source tree the lines that call ggml-pn*.

usage: patch.py SOURCE                 a tree of your own
       patch.py SOURCE --fetch CACHE   makes the tree first, from the source package of llama-cpp-python on PyPI (kept
                                       in CACHE); nothing is done when this version of patch.py made it already

Places are found by patterns of the engine's own lines, each of which must match exactly once; nothing is written unless
all do. A tree that is patched already is refused. The number of lines is printed.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile

from download import Failure, download

ENGINE = ("llama-cpp-python==0.3.36", "llama_cpp_python-0.3.36.tar.gz",
          "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
INSIDE = "llama_cpp_python-0.3.36/vendor/llama.cpp/"

# File, what to find (a regular expression of whole lines), what becomes of it, our lines.
AFTER, REPLACE = "after", "replace"
INSERTIONS = [
    # The types themselves: their ids, and that there may be ids up to them.
    ("ggml/include/ggml.h", r" *GGML_TYPE_COUNT += +\d+,", REPLACE,
     ["        GGML_TYPE_PN3T     = 124,",
      "        GGML_TYPE_PN4T     = 125,",
      "        GGML_TYPE_BF16_P12 = 126,",
      "        GGML_TYPE_COUNT    = 127,"]),
    # Names, sizes and to_float, in ggml-base.
    ("ggml/src/ggml.c", r'#include "ggml-threading\.h"', AFTER, ['#include "ggml-pn.h"']),
    ("ggml/src/ggml.c", r"static const struct ggml_type_traits type_traits\[GGML_TYPE_COUNT\] = \{", AFTER,
     ['    [GGML_TYPE_PN3T]     = GGML_PN_TRAITS("pn3t", 80, 34, ggml_pn3t_to_float),',
      '    [GGML_TYPE_PN4T]     = GGML_PN_TRAITS("pn4t", 64, 34, ggml_pn4t_to_float),',
      '    [GGML_TYPE_BF16_P12] = GGML_PN_TRAITS("bf16_p12", 256, 392, ggml_p12_to_float),']),
    # --check-tensors.
    ("ggml/src/ggml-quants.c", r'#include "ggml-quants\.h"', AFTER, ['#include "ggml-pn.h"']),
    ("ggml/src/ggml-quants.c", r"    const size_t nb = nbytes/ggml_type_size\(type\);", AFTER,
     ["    if (ggml_pn_is_type(type)) return ggml_pn_validate(type, data, nbytes);"]),
    # The CPU backend: vec_dot, and the operations that are ours.
    ("ggml/src/ggml-cpu/ggml-cpu.c", r'#include "ggml-cpu-impl\.h"', AFTER, ['#include "ggml-pn.h"']),
    ("ggml/src/ggml-cpu/ggml-cpu.c", r"static const struct ggml_type_traits_cpu type_traits_cpu\[GGML_TYPE_COUNT\] = \{",
     AFTER,
     ["    [GGML_TYPE_PN3T]     = GGML_PN_CPU_TRAITS(ggml_pn3t_vec_dot),",
      "    [GGML_TYPE_PN4T]     = GGML_PN_CPU_TRAITS(ggml_pn4t_vec_dot),",
      "    [GGML_TYPE_BF16_P12] = GGML_PN_CPU_TRAITS(ggml_p12_vec_dot),"]),
    ("ggml/src/ggml-cpu/ggml-cpu.cpp", r'#include "traits\.h"', AFTER, ['#include "ggml-pn.h"']),
    ("ggml/src/ggml-cpu/ggml-cpu.cpp",
     r" *static std::vector<ggml_backend_buffer_type_t> bufts = \[\]\(\) \{\n *std::vector<ggml_backend_buffer_type_t> bufts;",
     AFTER, ["        bufts.push_back(ggml_pn_cpu_buffer_type());"]),
    # The loader: which weights are rotated.
    ("src/llama-model-loader.cpp", r'#include "llama-model-loader\.h"', AFTER, ['#include "ggml-pn.h"']),
    ("src/llama-model-loader.cpp", r"    ggml_set_name\(tensor, ggml_get_name\(&t_meta\)\);", AFTER,
     ["    ggml_pn_bind(tensor, metadata);"]),
    # The CUDA backend.
    ("ggml/src/ggml-cuda/ggml-cuda.cu", r'#include "ggml-cuda/common\.cuh"', AFTER, ['#include "ggml-pn-cuda.h"']),
    ("ggml/src/ggml-cuda/ggml-cuda.cu",
     r"static void ggml_cuda_mul_mat\(ggml_backend_cuda_context & ctx, .*\) \{", AFTER,
     ["    if (ggml_pn_cuda_mul_mat(ctx, src0, src1, dst)) return;"]),
    ("ggml/src/ggml-cuda/ggml-cuda.cu",
     r"static bool ggml_backend_cuda_device_supports_op\(ggml_backend_dev_t dev, const ggml_tensor \* op\) \{", AFTER,
     ["    if (ggml_pn_cuda_concerns(op)) {",
      "        return ggml_pn_cuda_supports(((ggml_backend_cuda_device_context *) dev->context)->device, op);",
      "    }"]),
    ("ggml/src/ggml-cuda/ggml-cuda.cu",
     r"static bool ggml_backend_cuda_device_offload_op\(ggml_backend_dev_t dev, const ggml_tensor \* op\) \{", AFTER,
     ["    if (ggml_pn_cuda_concerns(op)) return false; // a copy of a weight has lost its rotation"]),
    ("ggml/src/ggml-cuda/ggml-cuda.cu",
     r"static bool ggml_cuda_should_fuse_mul_mat_vec_q\(const ggml_tensor \* tensor\) \{", AFTER,
     ["    if (ggml_pn_cuda_concerns(tensor)) return false;"]),
    # The build.
    ("ggml/src/CMakeLists.txt", r"ggml_add_backend\(OPENVINO\)", AFTER, ["include(${GGML_PN_DIR}/ggml-pn.cmake)"]),
]


def patched(text, name, pattern, where, lines):
    found = list(re.finditer(r"^(?:%s)$" % pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise Failure(f"{name}: {len(found)} places match {pattern!r}, one expected: another version of the engine?")
    start, end = found[0].span()
    block = "\n".join(lines)
    return text[:end] + "\n" + block + text[end:] if where == AFTER else text[:start] + block + text[end:]


def patch(source, name=None):
    texts = {}
    inserted = changed = 0
    for file, pattern, where, lines in INSERTIONS:
        path = source / file
        if path not in texts:
            texts[path] = path.read_text()
            if "ggml-pn" in texts[path] or "GGML_TYPE_PN3T" in texts[path]:
                raise Failure(f"{path}: is patched already")
        texts[path] = patched(texts[path], path, pattern, where, lines)
        changed += where == REPLACE
        inserted += len(lines) - (where == REPLACE)
    for path, text in texts.items():
        path.write_text(text)
    print(f"{name or source}: {inserted} lines inserted and {changed} changed in {len(texts)} files")


def fetch_and_patch(source, cache):
    stamp = source / ".patched-by"
    version = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == version:
        return
    if source.exists() and not stamp.is_file():
        raise Failure(f"{source}: is there already and was not made by patch.py")
    cache.mkdir(parents=True, exist_ok=True)
    source.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder, tarfile.open(download(ENGINE, cache)) as archive:
        archive.extractall(folder, [m for m in archive.getmembers() if m.name.startswith(INSIDE)])
        new = pathlib.Path(folder) / INSIDE
        patch(new, source)
        (new / stamp.name).write_text(version)
        if source.exists():
            shutil.rmtree(source)
        os.replace(new, source)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("source", type=pathlib.Path, metavar="SOURCE", help="llama.cpp's source tree")
    parser.add_argument("--fetch", type=pathlib.Path, metavar="CACHE", help="make SOURCE; folder for the package")
    options = parser.parse_args()
    try:
        if options.fetch is None:
            patch(options.source)
        else:
            fetch_and_patch(options.source, options.fetch)
    except Failure as error:
        sys.exit(f"patch.py: {error}")
    except OSError as error:
        sys.exit(f"patch.py: {error.filename}: {error.strerror or error}")


if __name__ == "__main__":
    main()
