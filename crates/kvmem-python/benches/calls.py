"""How long calls take from Python, loop included: nanoseconds for allocate and free together.

    python crates/kvmem-python/benches/calls.py [REPETITIONS]

The figure of each line is the least of the repetitions, since what slows one down is somebody else; the worst is beside it. Measure an
installed wheel of the release profile (`pip install ./crates/kvmem-python`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns

import kvmem

PAIRS = 100_000
BATCH = 1000


def empty(n: int) -> None:
    for _ in range(n):
        pass


def one_by_one(allocate: Callable[[int], kvmem.Block | kvmem.Allocation], size: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            allocate(size).free()

    return run


def forgotten(allocate: Callable[[int], kvmem.Block | kvmem.Allocation], size: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            allocate(size)

    return run


def in_batches(home: kvmem.Pool | kvmem.OffsetAllocator, size: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n // BATCH):
            home.free_batch(home.allocate_batch(size, BATCH))  # type: ignore[arg-type]

    return run


def ns_for_each(run: Callable[[int], None], repetitions: int) -> tuple[float, float]:
    run(PAIRS // 10)
    took = []
    for _ in range(repetitions):
        start = perf_counter_ns()
        run(PAIRS)
        took.append((perf_counter_ns() - start) / PAIRS)
    return min(took), max(took)


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    pool, space = kvmem.Pool("16MiB", pages="4k"), kvmem.OffsetAllocator("1TiB")
    rows = {
        "an empty loop": empty,
        "Pool.allocate, Block.free": one_by_one(pool.allocate, 4096),
        "Pool.allocate, forgotten": forgotten(pool.allocate, 4096),
        "OffsetAllocator.allocate, Allocation.free": one_by_one(space.allocate, 4096),
        f"Pool.allocate_batch and free_batch of {BATCH}, each": in_batches(pool, 4096),
        "OffsetAllocator, the same": in_batches(space, 4096),
    }
    width = max(map(len, rows))
    print(f"{'ns':{width}}  {'least':>7}  {'worst':>7}")
    for name, run in rows.items():
        least, worst = ns_for_each(run, repetitions)
        print(f"{name:{width}}  {least:7.1f}  {worst:7.1f}")


if __name__ == "__main__":
    main()
