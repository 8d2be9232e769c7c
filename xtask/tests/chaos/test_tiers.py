"""The files of disk tiers that are damaged, cut off, unreadable or no files, and ``kvmem-lab tier``
without space, output or time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from attack import FAILS, Chaos

pytestmark = pytest.mark.slow
# Length of the small tiers.
BYTES = "32MiB"
# Little memory, whatever a file holds.
LITTLE = "ulimit -v 1000000"
DOCTOR = "doctor --size 4096 --no-pin --tier".split()
LOOK = (["tier", "inspect"], ["tier", "verify"])


def replay(chaos: Chaos, file: str, size: str = BYTES) -> list[object]:
    """A replay that stores what a small pool evicts in a tier."""
    words = "--backed --pool=1MiB --object-bytes 4KiB --page-tokens 512".split()
    return ["replay", chaos.trace, *words, "--tier-size", size, "--tier", file]


def remove(chaos: Chaos, name: str) -> None:
    (chaos.folder / name).unlink(missing_ok=True)


@pytest.fixture
def good(chaos: Chaos) -> Path:
    """A file with a tier."""
    chaos.run(*replay(chaos, "good.tier"), within=180, ends=(0,))
    return chaos.folder / "good.tier"


def test_values_that_make_no_sense(chaos: Chaos) -> None:
    for size in ["0", "1", "4095", "9223372036854775808", "9EiB", "-1", "much", "", "1e9"]:
        chaos.run(*replay(chaos, "new.tier", size), within=180)
        remove(chaos, "new.tier")
        chaos.run("doctor", "--size", "4096", "--tier", "new.tier", "--tier-size", size)
    for words in (["tier", "inspect"], ["tier", "no-such-command"]):
        chaos.run(*words, ends=FAILS)


def test_streams_that_are_closed_or_full(chaos: Chaos, good: Path) -> None:
    for words in LOOK:
        chaos.run(*words, good.name, ends=(0,))
        chaos.run(*words, good.name, under=LITTLE, ends=(0,))
    for words in (
        ["tier", "inspect", "good.tier"],
        ["tier", "inspect", "good.tier", "--json", "-"],
        ["tier", "verify", "good.tier"],
        [*DOCTOR, "good.tier", "--tier-size", "4096"],
    ):
        chaos.run(*words, redirect=">/dev/full", ends=FAILS)
        for redirect in (">&-", "2>&-", ">&- 2>&-", "<&-"):
            chaos.run(*words, redirect=redirect)
        chaos.run(*words, redirect="2>/dev/full", ends=(0,))
    # The input is not destroyed by an output of its name.
    before = good.read_bytes()
    ran = chaos.run("tier", "inspect", "good.tier", "--json", "good.tier")
    if good.read_bytes() != before:
        ran.complain("has destroyed its input")


def test_damaged_files(chaos: Chaos, good: Path) -> None:
    whole = good.read_bytes()
    cases = [b"", bytes(1 << 20), b"\xff" * (1 << 20), b"KvmemDsk" * 1000, whole[:8192]]
    for turn in range(40):
        # Most of it in the metadata, at the begin of the file.
        cases.append(chaos.damage(whole, (8192, 1 << 20, len(whole))[turn % 3], 13, 5))
        cases.append(whole[: chaos.random.randrange(len(whole))])
    for content in cases:
        chaos.file("damaged", content)
        for words in LOOK:
            chaos.run(*words, "damaged", under=LITTLE)


def test_paths_that_are_no_files(chaos: Chaos, good: Path) -> None:
    (chaos.folder / "tier-folder").mkdir()
    (chaos.folder / "tier-loop").symlink_to("tier-loop")
    os.mkfifo(chaos.folder / "tier-fifo")
    others = ["tier-folder", "tier-loop", "/dev/null", "/dev/zero", "/dev/null/x", "", "tier-fifo"]
    for path in [*others, "/proc/self/mem", "no-such-file", "no\x1b[2Jsuch\x07file"]:
        for words in LOOK:
            chaos.run(*words, path, ends=FAILS)
        chaos.run(*DOCTOR, path)
        if "no" not in path:
            chaos.run(*replay(chaos, path), ends=FAILS)
    good.chmod(0)
    for words in [*LOOK, DOCTOR]:
        chaos.run(*words, "good.tier", nobody=True, ends=FAILS)


def test_no_space_and_small_limits(chaos: Chaos, good: Path) -> None:
    for blocks in (0, 1, 1000):
        # More than that is SIGXFSZ for a program that does not ignore it. Its message goes to a
        # file, too: of that, not even the first byte may be written.
        signal = {"signal": 25} if blocks == 0 else {}
        limit = f"ulimit -f {blocks}"
        chaos.run(*replay(chaos, "new.tier"), under=limit, ends=FAILS, **signal)
        remove(chaos, "new.tier")
    for limit in ("ulimit -n 4", "ulimit -n 8", "ulimit -v 100000", "ulimit -l 0"):
        for words in LOOK:
            chaos.run(*words, "good.tier", under=limit)
        chaos.run(*replay(chaos, "new.tier"), under=limit, within=180)
        remove(chaos, "new.tier")


def test_runs_that_end_in_the_middle(chaos: Chaos, good: Path) -> None:
    for turn in range(24):
        # One that holds values, or a new one.
        signal, file = chaos.signal(), ("good.tier", "new.tier")[turn % 2]
        running = chaos.start(*replay(chaos, file), within=180, signal=signal)
        time.sleep(0.05 + chaos.random.random() * 0.5)
        if chaos.random.randrange(2):
            # The file is in use, or the other has just ended.
            chaos.run("tier", "inspect", "good.tier")
        running.send(signal)
        running.wait()
        # A tier, or the error that says why not.
        chaos.run("tier", "verify", file)
        remove(chaos, "new.tier")
