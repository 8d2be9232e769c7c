"""Measures calls from Python, loop included, in nanoseconds.

A row is allocate and free together, or one call of a cache.

    python crates/kvmem-python/benches/calls.py [REPETITIONS]
    valgrind --tool=callgrind python crates/kvmem-python/benches/calls.py --count ROW CALLS

All rows take turns, REPETITIONS times. The figure of a row is the minimum of its turns, because
other programs can only slow it down; the median and the maximum are printed as well. Measure an
installed wheel of the release profile (`pip install ./crates/kvmem-python`).

The second form makes CALLS calls of one row, for a tool that counts instructions. Two runs with
different numbers of calls differ by what the calls cost."""

import hashlib
import itertools
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from time import perf_counter_ns

import kvmem

PAIRS = 100_000
BATCH = 1000
KEYS = 1000
"""Keys of each kind, all of them in the cache."""


def empty(n: int) -> None:
    for _ in range(n):
        pass


def one_by_one(
    allocate: Callable[[int], kvmem.Block | kvmem.Allocation], size: int
) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            allocate(size).free()

    return run


def dropped(
    allocate: Callable[[int], kvmem.Block | kvmem.Allocation], size: int
) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            allocate(size)

    return run


def in_batches(home: kvmem.Pool | kvmem.OffsetAllocator, size: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n // BATCH):
            home.free_batch(home.allocate_batch(size, BATCH))  # type: ignore[arg-type]

    return run


Name = int | bytes | str


def digests() -> list[bytes]:
    return [hashlib.sha256(b"%d" % key).digest() for key in range(KEYS)]


def keys() -> dict[str, Sequence[Name]]:
    """Returns the kinds of keys that callers use: small and 64-bit numbers, digests, and texts."""
    return {
        "int": range(KEYS),
        "int of 64 bits": [int.from_bytes(each[:8], "little") | 1 << 63 for each in digests()],
        "bytes of 32": digests(),
        "str of 64": [each.hex() for each in digests()],
    }


def look_up(get: Callable[[Name], object], names: Sequence[Name]) -> Callable[[int], None]:
    def run(n: int) -> None:
        for name in itertools.islice(itertools.cycle(names), n):
            get(name)

    return run


def put(insert: Callable[[Name, bytes], object], names: Sequence[Name]) -> Callable[[int], None]:
    def run(n: int) -> None:
        for name in itertools.islice(itertools.cycle(names), n):
            insert(name, b"value")

    return run


class Dictionary:
    """What a cache is otherwise made of: an ``OrderedDict`` with a lock."""

    def __init__(self) -> None:
        self.lock, self.values = Lock(), OrderedDict[Name, bytes]()

    def insert(self, name: Name, value: bytes) -> None:
        with self.lock:
            self.values[name] = value
            self.values.move_to_end(name)

    def get(self, name: Name) -> bytes | None:
        with self.lock:
            value = self.values.get(name)
            if value is not None:
                self.values.move_to_end(name)
            return value


def caches(pool: kvmem.Pool) -> dict[str, Callable[[int], None]]:
    rows: dict[str, Callable[[int], None]] = {}
    for kind, names in keys().items():
        cache, dictionary = kvmem.KvCache(pool), Dictionary()
        for name in names:
            cache.insert(name, b"value")
            dictionary.insert(name, b"value")
        rows[f"KvCache.get, {kind}"] = look_up(cache.get, names)
        rows[f"key in KvCache, {kind}"] = look_up(cache.__contains__, names)
        rows[f"KvCache.insert, {kind}"] = put(cache.insert, names)
        rows[f"OrderedDict and lock, get, {kind}"] = look_up(dictionary.get, names)
        rows[f"OrderedDict and lock, insert, {kind}"] = put(dictionary.insert, names)
    return rows


def all_rows() -> dict[str, Callable[[int], None]]:
    pool, space = kvmem.Pool("16MiB", pages="4k"), kvmem.OffsetAllocator("1TiB")
    return {
        "an empty loop": empty,
        "Pool.allocate, Block.free": one_by_one(pool.allocate, 4096),
        "Pool.allocate, forgotten": dropped(pool.allocate, 4096),
        "OffsetAllocator.allocate, Allocation.free": one_by_one(space.allocate, 4096),
        f"Pool.allocate_batch and free_batch of {BATCH}, each": in_batches(pool, 4096),
        "OffsetAllocator, the same": in_batches(space, 4096),
        **caches(pool),
    }


def ns_for_each(run: Callable[[int], None]) -> float:
    start = perf_counter_ns()
    run(PAIRS)
    return (perf_counter_ns() - start) / PAIRS


def main() -> None:
    rows = all_rows()
    if sys.argv[1:2] == ["--count"]:
        rows[sys.argv[2]](int(sys.argv[3]))
        return
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    took: dict[str, list[float]] = {name: [] for name in rows}
    for run in rows.values():
        run(PAIRS // 10)
    for _ in range(repetitions):
        for name, run in rows.items():
            took[name].append(ns_for_each(run))
    width = max(map(len, rows))
    print(f"{'ns':{width}}  {'least':>7}  {'median':>7}  {'worst':>7}")
    for name, each in took.items():
        print(f"{name:{width}}  {min(each):7.1f}  {statistics.median(each):7.1f}  {max(each):7.1f}")


if __name__ == "__main__":
    main()
