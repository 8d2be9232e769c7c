"""Traces with garbage, inputs that are no files, names that control terminals, and outputs that are
closed, full, inputs, or cannot be written."""

from __future__ import annotations

import os

import pytest
from attack import FAILS, TRACE, Chaos

FORMATS = ("azure", "kv-cache-tester", "mooncake")
LITTLE = "ulimit -v 4000000"
# The shortest of the benchmarks.
BENCH = "bench cache --quick --table=block-pair --contender=null --reps 1".split()
MOUNT = "mount --size 1MiB --pages 4k".split()


def line(hash_ids: str, length: str = "512", output: str = "1") -> str:
    return (
        f'{{"timestamp": 1, "input_length": {length}, "output_length": {output}, '
        f'"hash_ids": [{hash_ids}]}}\n'
    )


def test_traces_with_garbage(chaos: Chaos) -> None:
    good = TRACE.read_bytes()
    first = good.partition(b"\n")[0]
    bad: dict[str, bytes] = {
        "zeros": bytes(100_000),
        "zeros-behind": good + bytes(10),
        "escapes": b"\x1b[2J\x1b]0;title\x07\n",
        "half": first[: len(first) // 2],
        "nested": b"[" * 200_000,
        "no-utf8": b'{"timestamp": \xff\xfe}\n',
        "negative": line("-1").encode(),
        "overflow": line("99999999999999999999999").encode(),
        "text": line('"1"').encode(),
        "float": line("1.5").encode(),
        "backwards": line("").replace('"timestamp": 1', '"timestamp": 9e999').encode(),
        "long-line": b'{"timestamp": "' + b"x" * (32 << 20) + b'"}\n',
    }
    for n in range(4 if chaos.quick else 16):
        bad[f"random-{n}"] = chaos.random.randbytes(chaos.random.randrange(1, 10_000))
        # A valid trace with a few changed bytes may still be valid.
        changed = chaos.file("changed.jsonl", chaos.damage(good, len(good), 1, 5))
        for words in (["replay"], ["trace", "info"]):
            chaos.run(*words, changed)
    for name, content in bad.items():
        file = chaos.file(name, content)
        for words in (["replay"], ["trace", "info"]):
            chaos.run(*words, file, ends=FAILS, says=[name])
        for format in FORMATS:
            chaos.run("replay", file, f"--format={format}", ends=FAILS)
        chaos.run("replay", "-", redirect=f"<{file}", ends=FAILS)
        file.unlink()
    # Large numbers in valid syntax: accepted or an error, not allocated blindly.
    most = "18446744073709551615"
    large = [line(f"{most}, {most}"), line("1", most), line("1", "512", most), "", "\n\n \n"]
    for content in large:
        file = chaos.file("large", content)
        chaos.run("replay", file, under=LITTLE)
        chaos.run("trace", "curve", file, under=LITTLE)


def test_inputs_that_are_no_files(chaos: Chaos) -> None:
    (chaos.folder / "folder").mkdir()
    (chaos.folder / "loop").symlink_to("loop")
    os.mkfifo(chaos.folder / "fifo")
    paths = ["folder", "loop", "no-such-file", "/dev/null/x", "/proc/self/mem", "", "/dev/shm"]
    for path in paths:
        for words in (["replay"], ["trace", "info"]):
            chaos.run(*words, path, ends=FAILS)
    # Without an end and without a line: the memory must stay bounded.
    for path in ("/dev/zero", "/dev/urandom"):
        chaos.run("replay", path, under=LITTLE, ends=FAILS)
        for format in FORMATS:
            curve = ["trace", "curve", path, "--format", format]
            chaos.run(*curve, under=LITTLE, ends=FAILS)
    # A pipe whose writer closes it in the middle of a line, and one that writes all.
    for write, ends in (("head -c 50", FAILS), ("cat", (0,))):
        by = ["sh", "-c", f'{write} "$0" > fifo & exec "$@"', str(chaos.trace)]
        chaos.run("replay", "fifo", by=by, ends=ends)


@pytest.mark.parametrize(
    "name",
    [
        b"\x1b[31mred\x1b[0m",
        b"\x1b]0;title\x07",
        b"two\nlines\rone",
        b"no\xff\xfeutf8",
        b"\xc2\x9b31m",
        b"\xe2\x80\xaetxt.exe",
    ],
)
def test_names_that_control_terminals(chaos: Chaos, name: bytes) -> None:
    for words in (
        # Missing.
        ["replay", name],
        ["replay", name, "--json", name],
        # Invalid.
        [name],
        ["mount", name],
        ["mount", "--size", name],
        ["mount", "--size=1MiB", "--devices", name],
        ["replay", "trace", "--model", name],
    ):
        chaos.run(*words, ends=FAILS)
    # Present, with garbage in it.
    chaos.file(name, "garbage\n")
    chaos.run("replay", name, ends=FAILS)
    # Written, and named in the output.
    chaos.run("replay", chaos.trace, "--json", name)


def test_streams_that_are_closed_or_full(chaos: Chaos) -> None:
    work = [
        ["--help"],
        ["--version"],
        ["mount", "--help"],
        ["doctor"],
        ["doctor", "--json"],
        ["doctor", "--fix"],
        MOUNT,
        [*MOUNT, "--json", "-"],
        ["replay", chaos.trace],
        BENCH,
    ]
    for words in work:
        for redirect in (">/dev/full", ">/dev/full 2>/dev/full"):
            # What could not be written is a failure.
            chaos.run(*words, redirect=redirect, ends=FAILS)
        for redirect in (">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"):
            chaos.run(*words, redirect=redirect)
        # Notes and progress are no result: without a reader the work is done all the same.
        chaos.run(*words, redirect="2>/dev/full", ends=(0,))
    for words in (work[5], work[7]):
        chaos.run(*words, "-vv", redirect="2>/dev/full", ends=(0,))
        chaos.run(*words, "-vv", redirect=">/dev/full 2>/dev/full", ends=FAILS)
    # An error that no process reads still sets the status.
    for words in (["mount", "--size", "1PiB"], ["replay", "/no/such/file"], ["no-such-command"]):
        for redirect in ("2>/dev/full", "2>&-", ">/dev/full 2>/dev/full"):
            chaos.run(*words, redirect=redirect, ends=FAILS)
    # A reader that goes away: `kvmem … 2>&1 | true`. The status is that of the command, and the
    # error goes the same way, so there is none to be read.
    script = '{ "$@" 2>&1; echo $? > status; } | true; sleep 0.02; exit $(cat status)'
    for words in work:
        for verbose in ([], ["-v"]):
            if not verbose or words[-1] not in ("--help", "--version"):
                chaos.run(*words, *verbose, by=["sh", "-c", script, "sh"], signal=13)


def test_outputs_that_are_inputs(chaos: Chaos) -> None:
    trace, text = chaos.trace, chaos.trace.read_bytes()
    linked, hard = chaos.folder / "linked.jsonl", chaos.folder / "hard.jsonl"
    linked.symlink_to(trace)
    hard.hardlink_to(trace)
    for option in ("--json",):
        named = {trace: FAILS, f"{chaos.folder}/./trace.jsonl": FAILS, "trace.jsonl": FAILS}
        # A link may be replaced by the output, or be an error.
        for output, ends in {**named, linked: (0, 1, 2), hard: (0, 1, 2)}.items():
            says = ["trace.jsonl"] if ends == FAILS else []
            ran = chaos.run("replay", trace, option, output, ends=ends, says=says)
            if trace.read_bytes() != text:
                ran.complain("has destroyed its input")
                trace.write_bytes(text)
    # What is there stays when a run fails.
    bad = chaos.file("bad.jsonl", '{"timestamp": 1}\n')
    for option in ("--json",):
        good = chaos.file("good", "earlier output")
        ran = chaos.run("replay", bad, option, "good", ends=FAILS)
        if good.read_text() != "earlier output":
            ran.complain("has destroyed an earlier output")
        good.unlink()
        ran = chaos.run("replay", bad, option, "good", ends=FAILS)
        if good.exists():
            ran.complain("has left an output without a result")


def test_outputs_that_cannot_be_written(chaos: Chaos) -> None:
    (chaos.folder / "folder").mkdir()
    (chaos.folder / "dangling").symlink_to("nowhere/at/all")
    (chaos.folder / "loop").symlink_to("loop")
    writers = [["replay", chaos.trace], MOUNT, BENCH, ["doctor"]]
    writers = [[*words, "--json"] for words in writers]
    outputs = ["folder", "no/such/folder/file", "dangling", "loop", "/dev/full", "/proc/version"]
    for writer in writers:
        for output in [*outputs, "", "x\x1b[2Jy/z"]:
            ran = chaos.run(*writer, output)
            if ran.status == 0:
                ran.complain("ends well without having written")
        # A device that takes everything is no file to be renamed over.
        chaos.run(*writer, "/dev/null", ends=(0,))
    if chaos.trace.read_bytes() != TRACE.read_bytes():
        chaos.complain("an output in another folder has destroyed its input")
