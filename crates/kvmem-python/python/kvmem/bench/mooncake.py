"""*Mooncake*: put and get into a segment that is a populated pool, against a segment of the engine's own memory.

Each kind is a process that serves, in a cluster of its own with a master of its own, so that objects go where they are meant to; one client has a
connection to each. The kinds take turns, batch by batch, and each figure is the median of the batches of all rounds. A segment of the engine's is memory
that nobody has touched: the first put to a place waits for its pages. So *first put* writes each place of the segment once, after a fresh start of both servers;
*put* writes again where something was before, and *get* reads.
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
from ..mooncake import Store, engine
from ..size import size
from ._processes import LOCAL, free_port, master_command

KINDS = ("kvmem", "engine")
GOALS = {"first put": 1.3, "get": 1.0}
BATCH = 8

_ENGINES_OWN = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 0, "tcp", "", sys.argv[2])
print(code, flush=True)
sys.stdin.read()
store.close()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints a table; the exit status is 1 if a goal is missed."""
    options = argparse.ArgumentParser(prog="python -m kvmem.bench mooncake", description=__doc__)
    options.add_argument("--size", type=size, default="256MiB", help="of each segment (default: %(default)s)")
    options.add_argument("--objects", type=size, nargs="+", default=[64 << 10, 1 << 20, 4 << 20], help="sizes of objects")
    options.add_argument("--rounds", type=int, default=5, help="rounds, each with fresh servers (default: %(default)s)")
    options.add_argument("--pages", default="2M,thp,4k", help="of the pool that is served (default: %(default)s)")
    given = options.parse_args(arguments)
    try:
        engine.module()
        rates = _measure(given.size, given.objects, given.rounds, given.pages)
    except (KvmemError, OSError) as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 2
    return _print(rates)


def _measure(nbytes: int, objects: Sequence[int], rounds: int, pages: str) -> dict[tuple[int, str, str], list[float]]:
    """GB/s of each batch, by size of object, what is done, and kind."""
    rates: dict[tuple[int, str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(folder / "log", "w", encoding="utf-8"))
        masters = {kind: stack.enter_context(_master(log)) for kind in KINDS}
        pool = stack.enter_context(Pool(max(objects) * BATCH + (1 << 20), pages="thp,4k"))
        stores = {kind: stack.enter_context(Store(pool, master=masters[kind])) for kind in KINDS}
        for turn in range(rounds):
            for length in objects:
                _round(rates, stores, masters, nbytes, length, pages, turn, log)
                print(f"\rround {turn + 1} of {rounds}, {_words(length)}    ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rates


def _round(
    rates: dict[tuple[int, str, str], list[float]],
    stores: dict[str, Store],
    masters: dict[str, str],
    nbytes: int,
    length: int,
    pages: str,
    turn: int,
    log: IO[str],
) -> None:
    """Fresh servers, and everything once with each kind."""
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(_server(kind, masters[kind], nbytes, pages, log))
        pool = stores["kvmem"].pool
        blocks = pool.allocate_batch(length, BATCH).split()
        for block in blocks:
            memoryview(block)[:] = os.urandom(4096) * (length // 4096) + bytes(length % 4096)
        # Below what the master evicts at.
        batches = max(1, int(nbytes * 0.6) // (length * BATCH))
        # Small pieces in turn: what else the machine does meets both alike.
        for doing in ("first put", "put", "get"):
            for batch in range(batches):
                for kind in KINDS if (batch + turn) % 2 == 0 else reversed(KINDS):
                    keys = [f"{turn}-{length}-{batch}-{n}" for n in range(BATCH)]
                    seconds = _once(stores[kind], doing, keys, blocks, length)
                    rates.setdefault((length, doing, kind), []).append(BATCH * length / seconds / 1e9)
        for store in stores.values():
            store.remove_matching(".*", force=True)
        pool.free_batch(blocks)


def _once(store: Store, doing: str, keys: list[str], blocks: list[Block], length: int) -> float:
    if doing == "put":
        store.remove_batch(keys, force=True)
    start = time.perf_counter()
    if doing == "get":
        for key, block in zip(keys, blocks):
            store.get_into(key, block.offset, length)
    else:
        for key, block in zip(keys, blocks):
            store.put(key, block)
    return time.perf_counter() - start


def _print(rates: dict[tuple[int, str, str], list[float]]) -> int:
    missed = 0
    print(f"{'object':>8}  {'':9}  {'kvmem':>10}  {'engine':>10}  {'ratio':>6}  goal")
    for length, doing in dict.fromkeys((length, doing) for length, doing, _ in rates):
        rate, other = (statistics.median(rates[length, doing, kind]) for kind in KINDS)
        ratio = rate / other
        goal = GOALS.get(doing)
        met = goal is None or ratio >= goal
        missed += not met
        words = "" if goal is None else f"≥ {goal}: {'met' if met else 'MISSED'}"
        print(f"{_words(length):>8}  {doing:9}  {rate:5.2f} GB/s  {other:5.2f} GB/s  {ratio:5.2f}×  {words}")
    return 1 if missed else 0


def _words(length: int) -> str:
    return f"{length >> 20} MiB" if length % (1 << 20) == 0 else f"{length >> 10} KiB"


@contextlib.contextmanager
def _process(command: Sequence[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "MC_TCP_BIND_ADDRESS": LOCAL}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
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
        command = ["-m", "kvmem", "serve-mooncake", "--size", str(nbytes), "--master", master, "--pages", pages]
    else:
        command = ["-c", _ENGINES_OWN, str(nbytes), master]
    with _process([sys.executable, *command], log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not (line.startswith("kvmem:") or line.strip() == "0"):
            raise OSError(f"the server of {kind} did not start: {line.strip()}")
        yield
        if kind == "engine" and process.stdin is not None:
            # It says goodbye, so that the master puts nothing there any more.
            process.stdin.close()
            process.wait(20)


def _wait(true: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come up within {seconds:.0f} s")
        time.sleep(0.05)
