"""*LMCache*: kvmem's AddressManager and LMCache's own, measured in one run.

    LMCACHE_DIR=FOLDER python -m kvmem.bench.lmcache [--rounds N] [--pairs N]

``FOLDER`` is an unpacked wheel (``pip download --no-deps lmcache``, then ``unzip``). The class is
extracted from it and runs without LMCache's other modules. It needs ``sortedcontainers``. If
LMCache is installed, ``LMCACHE_DIR`` is not needed.

A *pair* is a free and an allocation in a heap that is 90 % full: the freed range is drawn at
random, and the allocated one has the size that the row names. Both classes make the same requests
in turns, one round each. The figure is the median of the rounds, loop included, in CPU time of the
thread, so other load on the machine matters as little as possible. A *hole* is a maximal free
range.

Live ranges are stored in arrays of numbers. A list of tuples would be megabytes of objects in
random order, and the loop would wait for them longer than for kvmem's class. The drawn numbers are
in an array for the same reason.

The exit status is 1 if a goal is missed, and 2 if LMCache's class is not available.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import importlib.util
import logging
import math
import os
import statistics
import sys
import threading
import typing
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import Any

from .._kvmem import AddressManager

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FULL = 0.9
"""Share of the heap that is in use."""

HOW_TO_GET = (
    "pip download --no-deps lmcache && unzip -d FOLDER lmcache-*.whl && export "
    "LMCACHE_DIR=FOLDER; pip install sortedcontainers"
)
"""Commands that make LMCache's class available."""


class ClassMissingError(Exception):
    """LMCache's class is not available. The message has the reason and the remedy."""


def their_class() -> type[Any]:
    """Returns LMCache's AddressManager, from ``LMCACHE_DIR`` or from the installed LMCache. Raises
    :class:`ClassMissingError`.
    """
    folder = os.environ.get("LMCACHE_DIR")
    if folder is None:
        try:
            found: type[Any] = importlib.import_module(
                "lmcache.v1.memory_management"
            ).AddressManager
        except ImportError as error:
            raise ClassMissingError(
                f"LMCache is not installed ({error}), and LMCACHE_DIR is not set: {HOW_TO_GET}"
            ) from error
        if found is not AddressManager:
            return found
        raise ClassMissingError("LMCache's class has been replaced in this process")
    source = Path(folder, "lmcache", "v1", "memory_management.py")
    if not source.exists():
        raise ClassMissingError(f"{source} does not exist: {HOW_TO_GET}")
    if importlib.util.find_spec("sortedcontainers") is None:
        raise ClassMissingError(
            "LMCache's class needs sortedcontainers: pip install sortedcontainers"
        )
    return extracted_class(source)


def extracted_class(source: Path) -> type[Any]:
    """Returns the class alone, because the rest of its module needs PyTorch. It omits tracing and
    warnings, which is to the class's advantage.
    """
    quiet = logging.getLogger("kvmem.bench.lmcache.theirs")
    quiet.disabled = True
    names: dict[str, Any] = {
        "dataclass": dataclasses.dataclass,
        "wraps": functools.wraps,
        "threading": threading,
        "Optional": typing.Optional,
        "SortedList": importlib.import_module("sortedcontainers").SortedList,
        "logger": quiet,
        "_lmcache_nvtx_annotate": lambda function: function,
    }
    wanted = ("synchronized", "FreeBlock", "AddressManager")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in wanted]
    exec(compile(tree, str(source), "exec"), names)
    theirs: type[Any] = names["AddressManager"]
    return theirs


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of requests, and by how much kvmem is to be faster."""

    name: str
    heap: int
    size: Callable[[Random], int]
    goal: float


def log_uniform(least: int, most: int) -> Callable[[Random], int]:
    """Sizes of which each octave has as many."""
    return lambda random: int(math.exp(random.uniform(math.log(least), math.log(most))))


ROWS = [
    Row("uniform, 64 KiB in 1 GiB", GIB, lambda _: 64 * KIB, 5),
    Row("uniform, 2 MiB in 64 GiB", 64 * GIB, lambda _: 2 * MIB, 5),
    Row("random, 4 KiB to 4 MiB in 16 GiB", 16 * GIB, log_uniform(4 * KIB, 4 * MIB), 20),
    Row("random, 4 KiB to 8 MiB in 64 GiB", 64 * GIB, log_uniform(4 * KIB, 8 * MIB), 20),
]


class Side:
    """One of the two classes, with a heap that is kept 90 % full."""

    def __init__(self, kind: type[Any], row: Row) -> None:
        random = Random(1)
        self.manager = kind(row.heap)
        self.starts, self.lengths = array("q"), array("q")
        self.failures = 0
        self.took: list[float] = []
        while self.manager.total_allocated_size < FULL * row.heap:
            try:
                start, length = self.manager.allocate(row.size(random))
            except RuntimeError:
                break
            self.starts.append(start)
            self.lengths.append(length)

    def run(self, plan: Sequence[tuple[float, int]], timed: bool = True) -> None:
        """Makes the requests: index of the freed range, as a share of the live ones, and size of
        the allocated one.
        """
        starts, lengths, allocate, free = (
            self.starts,
            self.lengths,
            self.manager.allocate,
            self.manager.free,
        )
        drawn = array("q", [int(share * len(starts)) for share, _ in plan])
        sizes = array("q", [size for _, size in plan])
        began = thread_time_ns()
        for index, size in zip(drawn, sizes):
            length = lengths[index]
            free(starts[index], length)
            try:
                starts[index], lengths[index] = allocate(size)
            except RuntimeError:
                # A range of the freed length fits.
                starts[index], lengths[index] = allocate(length)
                self.failures += 1
        if timed:
            self.took.append((thread_time_ns() - began) / len(drawn))

    def holes(self) -> int:
        """Returns the number of holes."""
        ends = 0
        reached = 0
        for address, length in sorted(zip(self.starts, self.lengths)):
            ends += address > reached
            reached = address + length
        return ends + int(reached < self.manager.get_heap_size())


def measure(row: Row, theirs: type[Any], rounds: int, pairs: int) -> tuple[Side, Side]:
    """Runs both classes in turns."""
    ours, other = Side(AddressManager, row), Side(theirs, row)
    random = Random(2)

    def plan() -> list[tuple[float, int]]:
        return [(random.random(), row.size(random)) for _ in range(pairs)]

    # The heap starts without holes; they appear with time.
    for _ in range(3):
        requests = plan()
        ours.run(requests, timed=False)
        other.run(requests, timed=False)
    for turn in range(rounds):
        requests = plan()
        for side in (ours, other) if turn % 2 else (other, ours):
            side.run(requests)
    return ours, other


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns its exit status."""
    options = argparse.ArgumentParser(
        prog="python -m kvmem.bench.lmcache",
        description="Compares kvmem's AddressManager with LMCache's own",
    )
    options.add_argument(
        "--rounds", type=int, default=9, help="rounds of each class (default: %(default)s)"
    )
    options.add_argument(
        "--pairs",
        type=int,
        default=4000,
        help="frees and allocations a round (default: %(default)s)",
    )
    given = options.parse_args(arguments)
    try:
        theirs = their_class()
    except ClassMissingError as missing:
        print(f"kvmem: {missing}", file=sys.stderr)
        return 2
    width = max(len(row.name) for row in ROWS)
    print(
        f"{'ns for a free and an allocation':{width}}  {'kvmem':>7}  {'LMCache':>8}  {'holes':>13} "
        f" {'failures':>11}  times  goal"
    )
    missed = 0
    for row in ROWS:
        ours, other = measure(row, theirs, max(given.rounds, 1), max(given.pairs, 1))
        kvmem_ns, lmcache_ns = statistics.median(ours.took), statistics.median(other.took)
        times = lmcache_ns / kvmem_ns
        missed += times < row.goal
        print(
            f"{row.name:{width}}  {kvmem_ns:7.0f}  {lmcache_ns:8.0f}  "
            f"{ours.holes():6}/{other.holes():6}  "
            f"{ours.failures:5}/{other.failures:5}"
            f"  {times:5.1f}  {row.goal:.0f}: {'met' if times >= row.goal else 'MISSED'}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
