"""The command line: exit statuses, outputs that are refused or cannot be written, options, JSON, what stdout carries.

Proves that OUT is never IN, never replaces what it should not, is complete or absent whatever happens (full disk, a file
size limit, kill -9), and that errors of every kind are also one JSON document.
"""

import json
import os
import pathlib
import pty
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expected  # noqa: E402
import gguf_files as gguf  # noqa: E402
import oracle  # noqa: E402
from gguf_files import BF16, F32, Key, Tensor  # noqa: E402
from tool import (BAD_INPUT, DONE, ENVIRONMENT, NO, OUTPUT, PNPACK, SAMPLE, USAGE, ToolTest, each, main,  # noqa: E402
                  run)

WRITERS = {"pack": (), "unpack": (), "quantize": ("--type", "pn4t")}


class CommandLineTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.tensors = [Tensor("w", (256, 4), BF16, oracle.gaussian_bf16(1024, 1)), Tensor("n", (3,), F32, b"\0" * 12)]
        self.source = self.write("in.gguf", gguf.build(self.tensors))
        self.packed_bytes = expected.packed_file(self.tensors)
        self.packed = self.write("packed.gguf", self.packed_bytes)

    def each_writer(self):
        for verb, options in WRITERS.items():
            yield verb, self.packed if verb == "unpack" else self.source, options


class OutputIsInput(CommandLineTest):
    def test_by_any_name(self):
        for verb, source, options in self.each_writer():
            before = source.read_bytes()
            symlink, hard, folder_link = self.path("symlink"), self.path("hard"), self.path("folder")
            symlink.symlink_to(source)
            os.link(source, hard)
            folder_link.symlink_to(self.folder)
            self.path("sub").mkdir()
            for out in (str(source), "./" + source.name, str(symlink), str(hard), str(folder_link / source.name),
                        str(self.path("sub")) + "/../" + source.name):
                for force in ((), ("--force",)):
                    with self.subTest(verb=verb, out=out, force=force):
                        self.fails(USAGE, verb, source, out, *options, *force, cwd=self.folder)
                        self.assertEqual(source.read_bytes(), before)
            # and IN by another name
            self.fails(USAGE, verb, symlink, source, *options, "--force")
            self.fails(USAGE, verb, hard, source, *options, "--force")
            self.assertEqual(source.read_bytes(), before)
            self.assertTrue(symlink.is_symlink())
            for path in (symlink, hard, folder_link):
                path.unlink()
            self.path("sub").rmdir()
            self.assertEqual(sorted(os.listdir(self.folder)), ["in.gguf", "packed.gguf"])


class OutputRefused(CommandLineTest):
    def refused(self, out, *more, cwd=None, names=()):
        for verb, source, options in self.each_writer():
            self.fails(OUTPUT, verb, source, out, *options, *more, cwd=cwd, names=names)

    def test_existing_output(self):
        out = self.write("out.gguf", b"precious")
        self.refused(out, names=("out.gguf",))
        self.assertEqual(out.read_bytes(), b"precious")
        self.done("pack", self.source, out, "--force")
        self.same_bytes(out, self.packed_bytes)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.gguf", "out.gguf", "packed.gguf"])

    def test_a_folder(self):
        self.path("folder").mkdir()
        for force in ((), ("--force",)):
            self.refused(self.path("folder"), *force)
        self.assertTrue(self.path("folder").is_dir())

    def test_a_missing_folder(self):
        self.refused(self.path("missing") / "out.gguf")
        self.refused(self.path("in.gguf") / "out.gguf")
        self.assertFalse(self.path("missing").exists())

    def test_the_longest_name(self):
        self.done("pack", self.source, self.path("n" * 255))
        self.same_bytes(self.path("n" * 255), self.packed_bytes)
        self.refused(self.path("n" * 256))

    def test_a_fifo(self):
        os.mkfifo(self.path("fifo"))
        for force in ((), ("--force",)):
            self.refused(self.path("fifo"), *force)
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("fifo")).st_mode))

    def test_devices(self):
        self.path("link").symlink_to("/dev/full")
        outputs = [self.path("link"), "/dev/full", "/dev/null"]
        if os.geteuid() == 0:
            # a device of our own first: a tool that replaces devices fails there and never gets at those in /dev
            os.mknod(self.path("full"), stat.S_IFCHR | 0o666, os.makedev(1, 7))
            outputs.insert(0, self.path("full"))
        for out in outputs:
            for force in ((), ("--force",)):
                self.refused(out, *force)
                self.assertTrue(stat.S_ISCHR(os.stat(out).st_mode), "%s was replaced" % out)
        self.assertTrue(self.path("link").is_symlink())

    def test_an_unwritable_folder(self):
        folder = self.path("readonly")
        folder.mkdir()
        if os.geteuid() != 0:
            folder.chmod(0o555)
            self.addCleanup(folder.chmod, 0o755)
        elif subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", folder], stderr=subprocess.DEVNULL).returncode == 0:
            self.addCleanup(subprocess.run, ["umount", folder], check=True)
        elif subprocess.run(["chattr", "+i", folder], stderr=subprocess.DEVNULL).returncode == 0:
            self.addCleanup(subprocess.run, ["chattr", "-i", folder], check=True)
        else:
            self.skipTest("root here may neither mount nor chattr")
        self.refused(folder / "out.gguf")
        self.assertEqual(os.listdir(folder), [])


class Interrupted(CommandLineTest):
    def large_source(self, rows=1 << 20):
        """BF16 zeros that take no room: 512 bytes a row."""
        head = gguf.build([Tensor("w", (256, rows), BF16)], final_padding=False)
        head += b"\0" * gguf.padding(len(head), 32)
        path = self.path("large.gguf")
        path.write_bytes(head)
        os.truncate(path, len(head) + rows * 512)
        return path

    def test_disk_full(self):
        disk = self.path("disk")
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk],
                                               stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no mount here: test_a_file_size_limit stands for a full disk")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        self.fails(OUTPUT, "pack", SAMPLE, disk / "out.gguf", names=("out.gguf",))
        self.assertEqual(os.listdir(disk), [])
        kept = disk / "kept.gguf"
        kept.write_bytes(b"precious")
        self.fails(OUTPUT, "pack", SAMPLE, kept, "--force")
        self.assertEqual(kept.read_bytes(), b"precious")
        self.assertEqual(os.listdir(disk), ["kept.gguf"])

    def test_a_file_size_limit(self):
        for limit in (0, 1, 100, 500, 1500, 1 << 16, 1 << 19):
            self.file_size_limit(limit)

    def file_size_limit(self, limit):
        def limited():  # runs after restore_signals; stdout and stderr are pipes, which have no such limit
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        before = sorted(os.listdir(self.folder))
        for verb, options in (("pack", ()), ("quantize", ("--type", "pn4t"))):
            self.fails(OUTPUT, verb, SAMPLE, self.path("limited.gguf"), *options, preexec_fn=limited)
            self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_the_signal_of_a_file_size_limit(self):
        def limited():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which would end the tool without a word
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

        before = sorted(os.listdir(self.folder))
        self.fails(OUTPUT, "pack", SAMPLE, self.path("limited.gguf"), preexec_fn=limited, names=("limited.gguf",))
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_kill_9_in_mid_write(self):
        source, folder = self.large_source(), self.path("out")
        size, modified = source.stat().st_size, source.stat().st_mtime_ns
        out = folder / "out.gguf"
        for delay in (0, 0.002, 0.01):
            folder.mkdir()
            process = subprocess.Popen([PNPACK, "pack", source, out, "--threads", "1"], env=ENVIRONMENT,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 30
            while not os.listdir(folder):
                self.assertIsNone(process.poll(), "ended before it wrote anything")
                self.assertLess(time.monotonic(), deadline, "no temporary file beside the target")
                time.sleep(0.0005)
            time.sleep(delay)
            process.kill()
            self.assertEqual(process.wait(), -signal.SIGKILL, "too fast to be killed: enlarge the file")
            self.assertFalse(out.exists(), "a file under the final name: %s" % os.listdir(folder))
            # what the killed run left does not stop the next one
            self.done("pack", self.source, out)
            self.same_bytes(out, self.packed_bytes)
            shutil.rmtree(folder)
        self.assertEqual((source.stat().st_size, source.stat().st_mtime_ns), (size, modified))

    def started(self, source, out, *options):
        """`pack` at work: it has begun to write. Signals are as a shell would leave them."""
        ordinary = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
        process = subprocess.Popen([PNPACK, "pack", source, out, "--threads", "1", *options], env=ENVIRONMENT,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in ordinary])
        while not os.listdir(out.parent):
            self.assertIsNone(process.poll(), "ended before it wrote anything")
            time.sleep(0.0005)
        return process

    def test_an_input_that_changes_is_refused(self):
        folder = self.path("out")
        folder.mkdir()
        # touched while it is read, as by a write in place; and shortened, which a mapping meets as a signal
        for change in (lambda path: os.utime(path), lambda path: os.truncate(path, 4096)):
            source = self.large_source()
            process = self.started(source, folder / "out.gguf", "--json")
            change(source)
            out, _ = process.communicate()
            self.assertEqual(process.returncode, BAD_INPUT)
            document = json.loads(out)
            self.assertIs(document["ok"], False)
            self.assertEqual(document["error"]["file"], str(source))
            self.assertEqual(os.listdir(folder), [])

    def test_many_threads_within_a_limit_of_memory(self):
        if b"__asan_init" in pathlib.Path(PNPACK).read_bytes():
            self.skipTest("sanitizers need memory of their own")
        source = self.large_source(1 << 17)
        limit = 400000 * 1024
        for threads in (2, 64, 256):
            self.done("pack", source, self.path("out.gguf"), "--force", "--threads", threads, "--quiet",
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))

    def test_a_gentle_signal_leaves_nothing(self):
        source, folder = self.large_source(), self.path("out")
        folder.mkdir()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM,
                       signal.SIGUSR1, signal.SIGUSR2, signal.SIGABRT):
            process = self.started(source, folder / "out.gguf")
            process.send_signal(number)
            process.communicate()
            self.assertEqual(process.returncode, -number)
            self.assertEqual(os.listdir(folder), [])

    def test_a_signal_that_was_ignored_stays_ignored(self):
        source, folder = self.large_source(1 << 18), self.path("out")
        folder.mkdir()
        out = folder / "out.gguf"
        process = subprocess.Popen([PNPACK, "pack", source, out, "--threads", "1"], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        while not os.listdir(folder):
            self.assertIsNone(process.poll(), "ended before it wrote anything")
            time.sleep(0.0005)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(), DONE)
        self.assertEqual(os.listdir(folder), ["out.gguf"])

    def test_an_existing_output_survives_kill_9(self):
        source, folder = self.large_source(), self.path("out")
        folder.mkdir()
        out = folder / "out.gguf"
        out.write_bytes(b"precious")
        process = subprocess.Popen([PNPACK, "pack", source, out, "--force", "--threads", "1"], env=ENVIRONMENT,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(os.listdir(folder)) < 2:
            self.assertIsNone(process.poll(), "ended before it wrote anything")
            time.sleep(0.0005)
        process.kill()
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertEqual(out.read_bytes(), b"precious")


    def test_an_output_that_appears_meanwhile_stays(self):
        source, folder = self.large_source(1 << 16), self.path("out")
        folder.mkdir()
        out = folder / "out.gguf"
        process = subprocess.Popen([PNPACK, "pack", source, out, "--threads", "1"], env=ENVIRONMENT,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.listdir(folder):
            self.assertIsNone(process.poll(), "ended before it wrote anything")
            time.sleep(0.0005)
        process.send_signal(signal.SIGSTOP)
        self.assertFalse(out.exists(), "too fast to be stopped: enlarge the file")
        out.write_bytes(b"precious")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(), OUTPUT)
        self.assertEqual(out.read_bytes(), b"precious")
        self.assertEqual(os.listdir(folder), ["out.gguf"])

    def test_runs_at_the_same_time(self):
        # four runs to one output: each is whole or refused, and no temporary file stays
        out = self.path("out.gguf")
        codes = each(lambda _: run("pack", self.source, out, "--force").code, range(4))
        self.assertEqual(codes, [DONE] * 4)
        self.same_bytes(out, self.packed_bytes)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.gguf", "out.gguf", "packed.gguf"])


class Streams(CommandLineTest):
    def test_stdout_full(self):
        with open("/dev/full", "wb") as full:
            for words in (("inspect", self.source), ("check", self.packed), ("verify", self.packed, self.source),
                          ("inspect", self.source, "--json"), ("check", self.packed, "--json")):
                self.expect(OUTPUT, *words, stdout=full)
            for verb, source, options in self.each_writer():
                for json in ((), ("--json",)):
                    self.expect(OUTPUT, verb, source, self.path("out.gguf"), *options, *json, "--force", stdout=full)
            self.expect(OUTPUT, "--help", stdout=full)
            self.expect(OUTPUT, "--version", stdout=full)

    def test_closed_streams_never_hit_the_output(self):
        # a file opened while 1 or 2 is closed could get that number and then receive the table
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            out = self.path("out.gguf")
            subprocess.run(["sh", "-c", 'exec "$0" "$@" ' + closed, PNPACK, "pack", self.source, out, "--force"],
                           env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if out.exists():
                self.same_bytes(out, self.packed_bytes, closed)
                out.unlink()
            else:
                self.assertIn(">", closed)
            self.same_bytes(self.source, gguf.build(self.tensors), closed)

    def test_progress_stays_off_stdout(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        result = self.done("pack", SAMPLE, self.path("out.gguf"), "--json", stderr=slave)
        os.close(slave)
        self.assertIs(result.json["ok"], True)
        result = self.done("pack", SAMPLE, self.path("out.gguf"), "--force")
        self.assertNotIn(b"\r", result.out + result.err)
        self.assertNotIn(b"\x1b", result.out + result.err)

    def test_quiet(self):
        for verb, source, options in self.each_writer():
            self.assertEqual(self.done(verb, source, self.path("q-" + verb), *options, "--quiet").out, b"")
        for words in (("inspect", self.source), ("check", self.packed), ("verify", self.packed, self.source)):
            self.assertEqual(self.done(*words, "--quiet").out, b"")
        self.expect(OUTPUT, "pack", self.source, self.path("q-pack"), "--quiet")

    def test_escapes_in_names_do_not_reach_the_terminal(self):
        evil = "w\x1b]0;owned\x07\x1b[2J\r\n\x9b31m"
        tensors = [Tensor(evil, (256, 4), BF16, self.tensors[0].data), Tensor(evil + "2", (255, 4), BF16, b"\0" * 2040)]
        source, packed = self.write("evil.gguf", gguf.build(tensors)), self.path("evil.packed")
        for words in (("inspect", source), ("pack", source, packed), ("check", packed), ("verify", packed, source),
                      ("quantize", source, self.path("evil.pn"), "--type", "pn4t"), ("unpack", packed, self.path("evil.back"))):
            result = self.done(*words)
            for code in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b"):
                self.assertNotIn(code, result.out + result.err, words[0])
            result = self.done(*words, "--json", *(("--force",) if words[0] in WRITERS else ()))
            self.assertEqual(result.json["tensors"][0]["name"], evil)
            self.assertNotIn(b"\x1b", result.out)
        bad = Tensor(evil, (256, 2**50), BF16)
        result = self.expect(BAD_INPUT, "inspect", self.write("bad.gguf", gguf.build([bad])))
        self.assertNotIn(b"\x1b", result.err)

    def test_a_name_that_is_not_utf8(self):
        for name in (b"\xff\xfe", b"w\xc3", b"\xed\xa0\x80", b"a\0b"):
            source = self.write("odd.gguf", gguf.build([Tensor(name, (256, 4), BF16, self.tensors[0].data)]))
            for words in (("inspect", source), ("pack", source, self.path("odd.out"), "--force"), ("check", source)):
                result = run(*words, "--json")
                self.assertIn(result.code, (DONE, BAD_INPUT), str(result))
                self.assertIs(result.json["ok"], result.code == DONE)
                if words[0] == "pack" and result.code == DONE:
                    self.done("unpack", self.path("odd.out"), self.path("odd.back"), "--force")
                    self.same_bytes(self.path("odd.back"), source.read_bytes())

    def test_a_file_name_that_is_not_utf8(self):
        name = os.fsencode(self.folder) + b"/\xff.gguf"
        with open(name, "wb") as file:
            file.write(self.source.read_bytes())
        self.done_json("inspect", name)
        self.done_json("pack", name, os.fsencode(self.folder) + b"/\xfe.gguf")
        self.fails(OUTPUT, "pack", name, os.fsencode(self.folder) + b"/\xfe.gguf")


class Inputs(CommandLineTest):
    def test_what_is_no_file(self):
        os.mkfifo(self.path("fifo"))
        self.path("folder").mkdir()
        self.path("dangling").symlink_to("nowhere")
        for source in (self.path("fifo"), self.path("folder"), self.path("dangling"), self.path("missing"), "/dev/zero", "/dev/null"):
            for verb in ("pack", "unpack", "quantize", "check", "inspect"):
                out = [self.path("out")] if verb in WRITERS else []
                with self.subTest(verb=verb, source=source):
                    error = self.fails(BAD_INPUT, verb, source, *out, *WRITERS.get(verb, ()), timeout=5, names=(str(source),))
                    self.assertEqual(error["file"], str(source))
            self.fails(BAD_INPUT, "verify", self.packed, source, timeout=5, names=(str(source),))
            self.fails(BAD_INPUT, "verify", source, self.source, timeout=5, names=(str(source),))
        self.assertFalse(self.path("out").exists())

    def test_the_input_may_be_read_only_or_a_link(self):
        link = self.path("link")
        link.symlink_to(self.source)
        self.source.chmod(0o444)
        self.done("pack", link, self.path("out"))
        self.same_bytes(self.path("out"), self.packed_bytes)

    def test_contents_decide_not_names(self):
        source = self.path("model.safetensors")
        shutil.copy(self.source, source)
        self.done("pack", source, self.path("out.txt"))
        self.same_bytes(self.path("out.txt"), self.packed_bytes)


class Options(CommandLineTest):
    def test_usage_errors(self):
        s, o = self.source, self.path("out")
        for words in ((), ("frobnicate",), ("pack",), ("pack", s), ("pack", s, o, "extra"), ("pack", s, o, "--frobnicate"),
                      ("inspect",), ("inspect", s, s), ("verify", s), ("quantize", s, o), ("quantize", s, o, "--type", "pn5t"),
                      ("unpack", s, o, "--to", "f64"), ("unpack", s, o, "--to"), ("pack", s, o, "--threads", "x"),
                      ("pack", s, o, "--threads", "-1"), ("pack", s, o, "--threads"), ("pack", s, o, "--type-id", "30"),
                      ("pack", s, o, "--to", "f16"), ("pack", s, o, "--type", "pn4t"), ("pack", s, o, "-x")):
            with self.subTest(words=words):
                error = self.fails(USAGE, *words)
                self.assertIn("file", error)
        self.assertFalse(o.exists())

    def test_help_and_version(self):
        for words in (("--help",), ("--version",), ("pack", "--help"), ("quantize", "--help")):
            self.assertTrue(self.done(*words).out.strip(), words)
        self.assertIn(b"pack", self.done("--help").out)
        self.assertRegex(self.done("--version").out, rb"\d+\.\d+")

    def test_double_dash_ends_the_options(self):
        shutil.copy(self.source, self.path("-in.gguf"))
        shutil.copy(self.source, self.path("--json"))
        self.done("inspect", "--", "-in.gguf", cwd=self.folder)
        self.assertNotEqual(self.done("inspect", "--", "--json", cwd=self.folder).out[:1], b"{")
        self.done("pack", "--", "-in.gguf", "--force", cwd=self.folder)
        self.same_bytes(self.path("--force"), self.packed_bytes)
        self.done("verify", "--quiet", "--", "--force", "-in.gguf", cwd=self.folder)
        self.done("unpack", "--force", "--", "--force", "-out", cwd=self.folder)
        self.same_bytes(self.path("-out"), self.source.read_bytes())

    def test_dry_run(self):
        for verb, source, options in self.each_writer():
            before = sorted(os.listdir(self.folder))
            dry = self.done_json(verb, source, self.path("out-" + verb), *options, "--dry-run")
            self.assertTrue(self.done(verb, source, self.path("out-" + verb), *options, "--dry-run").out)
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            wet = self.done_json(verb, source, self.path("out-" + verb), *options)
            self.assertEqual(dry["totals"], wet["totals"])
            for tensor in wet["tensors"] if verb == "quantize" else ():  # only the plan: the weights are not read
                tensor.pop("nrmse", None)
            self.assertEqual(dry["tensors"], wet["tensors"])

    def test_json_documents(self):
        out = self.path("out.gguf")
        document = self.done_json("pack", self.source, out)
        self.assertEqual((document["verb"], document["input"], document["output"]), ("pack", str(self.source), str(out)))
        self.assertEqual(document["totals"], dict(document["totals"], tensors=2, converted=1, bytes_in=2060,
                                                  bytes_out=4 * 392 + 12))
        self.assertAlmostEqual(document["totals"]["bits_per_weight"], (4 * 392 + 12) * 8 / 1027, places=3)
        for verb, words in (("check", (out,)), ("verify", (out, self.source)), ("inspect", (out,)),
                            ("unpack", (out, self.path("back"))), ("quantize", (out, self.path("pn"), "--type", "pn4t"))):
            self.assertEqual(self.done_json(verb, *words)["verb"], verb)
        for words in (("inspect", "--json", self.source), ("inspect", "--json", "--", self.source)):
            self.assertEqual(self.done(*words).json["verb"], "inspect")
        error = self.fails(OUTPUT, "pack", self.source, out)
        self.assertEqual(error["file"], str(out))

    def test_strict_answers_no(self):
        source = self.write("odd.gguf", gguf.build(self.tensors + [Tensor("odd", (3, 2), BF16, b"\0" * 12)]))
        kept = self.write("kept.gguf", b"precious")
        self.says_no("pack", source, self.path("out"), "--strict")
        self.expect(NO, "pack", source, kept, "--strict", "--force")
        self.assertEqual(kept.read_bytes(), b"precious")
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.gguf", "kept.gguf", "odd.gguf", "packed.gguf"])

    def test_unpack_to_does_not_touch_p12(self):
        for to in ("f32", "f16", "bf16"):
            self.done("unpack", self.packed, self.path("out"), "--to", to, "--force")
            self.same_bytes(self.path("out"), self.source.read_bytes(), to)

    def test_keys_do_not_change_in_quantize(self):
        keys = [Key("general.file_type", gguf.U32, 32), Key("x", gguf.STRING, "y")]
        source = self.write("keys.gguf", gguf.build(self.tensors, keys))
        self.done("quantize", source, self.path("out"), "--type", "pn4t")
        self.assertEqual(gguf.parse(self.path("out").read_bytes()).keys[:2], gguf.parse(source.read_bytes()).keys)


if __name__ == "__main__":
    main()
