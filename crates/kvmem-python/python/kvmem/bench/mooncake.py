"""*Mooncake*: compares a segment that is a populated pool with a segment of the engine's own
memory.

Each kind of segment is served by one process, in a cluster of its own with its own master, so that
objects go to the intended segment. One client has a connection to each cluster. The memory of the
engine's segment is untouched: the first put to a position waits for its pages. Therefore *first
put* writes each position once after both servers have started, *put* overwrites it, and *get* reads
it. Each runs one object at a time, where a small object waits for the master twice and hardly for
its bytes, and by the engine's calls for many objects at once, as caches of pages use it.

The kinds take turns, call by call. The speed of a server differs by a few percent from one start to
the next, whichever kind it is. Therefore there are several *rounds*, each with new servers. The
result is the median of the rounds' ratios, and each ratio is one of medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from .. import Block, KvmemError, Pool
from ..mooncake import Store, StoreError, engine
from ..size import size
from ._processes import LOCAL, free_port, master_command

KINDS = ("kvmem", "engine")
GOALS = {"first put": 1.3, "get": 1.0}
NOISE = 0.03
"""Share by which a median may miss a goal of 1, where no gain is expected, such as at a get."""
ONE_BY_ONE = 8
"""Number of objects between two turns."""
AT_ONCE = 4 << 20
"""Bytes of the objects of one call, which has at least eight objects."""
TURNS = 40
"""Maximum number of turns of a round."""
TRIES = 3
"""Attempts at a round: a client fails if a new server has the port of one that has ended."""

_ENGINE_SERVER = """
import sys
from kvmem.mooncake.ports import Ports
from mooncake.store import MooncakeDistributedStore
store, ports = MooncakeDistributedStore(), Ports("127.0.0.1")
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 0, "tcp", "", sys.argv[2])
ports.check()
print(code, flush=True)
sys.stdin.read()
store.close()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints a table; the exit status is 1 if a goal is missed."""
    options = argparse.ArgumentParser(prog="python -m kvmem.bench mooncake", description=__doc__)
    options.add_argument(
        "--size", type=size, default="256MiB", help="size of each segment (default: %(default)s)"
    )
    options.add_argument(
        "--objects",
        type=size,
        nargs="+",
        default=[64 << 10, 1 << 20, 4 << 20],
        help="sizes of objects",
    )
    options.add_argument(
        "--rounds",
        type=int,
        default=11,
        help="rounds, each with fresh servers (default: %(default)s)",
    )
    options.add_argument(
        "--pages", default="2M,thp,4k", help="page sizes of the served pool (default: %(default)s)"
    )
    given = options.parse_args(arguments)
    try:
        engine.module()
        rates = _measure(given.size, given.objects, given.rounds, given.pages)
    except (KvmemError, OSError) as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 2
    return _print(rates)


Row = tuple[int, int, str]
"""Size of an object, number of objects of a call, and operation."""
Rates = dict[Row, dict[str, list[float]]]
"""GB/s of each turn, by kind."""


def _measure(
    nbytes: int, objects: Sequence[int], rounds: int, pages: str
) -> dict[Row, list[dict[str, float]]]:
    """Returns the median of each round, by kind."""
    found: dict[Row, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(folder / "log", "w", encoding="utf-8"))
        masters = {kind: stack.enter_context(_master(log)) for kind in KINDS}
        # Three times: the objects put, those that a call gets, and as much again for
        # fragmentation.
        pool = stack.enter_context(Pool(3 * ONE_BY_ONE * max(*objects, AT_ONCE), pages="thp,4k"))
        stores = {
            kind: stack.enter_context(Store(pool, master=masters[kind], deadline=30.0))
            for kind in KINDS
        }
        for turn in range(rounds):
            for length in objects:
                for many in (1, max(AT_ONCE // length, ONE_BY_ONE)):
                    for row, rates in _round(
                        stores, masters, nbytes, length, many, pages, turn, log
                    ).items():
                        found.setdefault(row, []).append(
                            {kind: statistics.median(rates[kind]) for kind in KINDS}
                        )
                print(
                    f"\rround {turn + 1} of {rounds}, {_size_text(length)}    ",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
    print(file=sys.stderr)
    return found


def _round(
    stores: dict[str, Store],
    masters: dict[str, str],
    nbytes: int,
    length: int,
    many: int,
    pages: str,
    turn: int,
    log: IO[str],
) -> Rates:
    """Runs one round with each kind, and repeats a failed one."""
    for attempt in range(TRIES):
        try:
            return _attempt(stores, masters, nbytes, length, many, pages, f"{turn}-{attempt}", log)
        except StoreError as error:
            if attempt == TRIES - 1:
                raise
            print(f"\n{error}: repeating the round", file=sys.stderr)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _attempt(
    stores: dict[str, Store],
    masters: dict[str, str],
    nbytes: int,
    length: int,
    many: int,
    pages: str,
    name: str,
    log: IO[str],
) -> Rates:
    """Runs one round with new servers."""
    rates: Rates = {}
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(_server(kind, masters[kind], nbytes, pages, log))
        pool = stores["kvmem"].pool
        each = max(many, ONE_BY_ONE)
        blocks = pool.allocate_batch(length, each).split()
        stack.callback(pool.free_batch, blocks)
        for block in blocks:
            memoryview(block)[:] = os.urandom(4096) * (length // 4096) + bytes(length % 4096)
        # Below the level at which the master evicts.
        turns = min(max(1, int(nbytes * 0.6) // (length * each)), TURNS)
        # Short turns: other load on the machine affects both kinds alike.
        for doing in ("first put", "put", "get"):
            for turn in range(turns):
                for kind in KINDS if turn % 2 == 0 else reversed(KINDS):
                    keys = [f"{name}-{length}-{turn}-{n}" for n in range(each)]
                    seconds = _once(stores[kind], doing, keys, blocks, length, many > 1)
                    rates.setdefault((length, many, doing), {}).setdefault(kind, []).append(
                        each * length / seconds / 1e9
                    )
        for store in stores.values():
            store.remove_matching(".*", force=True)
    return rates


def _once(
    store: Store, doing: str, keys: list[str], blocks: list[Block], length: int, at_once: bool
) -> float:
    if doing == "put":
        store.remove_batch(keys, force=True)
    got: list[Block | None] = []
    start = time.perf_counter()
    if doing == "get" and at_once:
        got = store.get_batch(keys)
    elif doing == "get":
        for key, block in zip(keys, blocks):
            store.get_into(key, block.offset, length)
    elif at_once:
        store.put_batch(keys, blocks)
    else:
        for key, block in zip(keys, blocks):
            store.put(key, block)
    seconds = time.perf_counter() - start
    for block in filter(None, got):
        block.free()
    return seconds


def _print(found: dict[Row, list[dict[str, float]]]) -> int:
    missed = 0
    print(f"{'objects':>12}  {'':9}  {'kvmem':>10}  {'engine':>10}  {'ratio':>6}  goal")
    for (length, many, doing), rounds in found.items():
        rate, other = (statistics.median(one[kind] for one in rounds) for kind in KINDS)
        ratio = statistics.median(one["kvmem"] / one["engine"] for one in rounds)
        goal = GOALS.get(doing)
        met = goal is None or ratio >= goal * (1 - NOISE if goal == 1 else 1)
        missed += not met
        noise = f", less {NOISE:.0%} of noise" if goal == 1 else ""
        verdict = "" if goal is None else f"≥ {goal}{noise}: {'met' if met else 'MISSED'}"
        objects = _size_text(length) + (f" × {many}" if many > 1 else "")
        print(
            f"{objects:>12}  {doing:9}  {rate:5.2f} GB/s  {other:5.2f} GB/s  {ratio:5.2f}×  "
            f"{verdict}"
        )
    return 1 if missed else 0


def _size_text(length: int) -> str:
    return f"{length >> 20} MiB" if length % (1 << 20) == 0 else f"{length >> 10} KiB"


@contextlib.contextmanager
def _process(command: Sequence[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "MC_TCP_BIND_ADDRESS": LOCAL}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _master(log: IO[str]) -> Iterator[str]:
    port = free_port()
    address = f"{LOCAL}:{port}"
    with _process(master_command(port), log):
        _wait(lambda: engine.answers(address), f"the master at {address}")
        yield address


@contextlib.contextmanager
def _server(kind: str, master: str, nbytes: int, pages: str, log: IO[str]) -> Iterator[None]:
    if kind == "kvmem":
        command = [
            "-m",
            "kvmem",
            "serve-mooncake",
            "--size",
            str(nbytes),
            "--master",
            master,
            "--pages",
            pages,
        ]
    else:
        command = ["-c", _ENGINE_SERVER, str(nbytes), master]
    # Without the modules of the current folder.
    with _process([sys.executable, "-P", *command], log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not (line.startswith("kvmem:") or line.strip() == "0"):
            raise OSError(f"the server of {kind} did not start: {line.strip()}")
        try:
            yield
        finally:
            if kind == "engine" and process.stdin is not None:
                # The server unmounts its segment, so the master puts nothing there any more.
                process.stdin.close()
                process.wait(20)


def _wait(true: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not start within {seconds:.0f} s")
        time.sleep(0.05)
