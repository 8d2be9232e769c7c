"""Offsets: sizes, errors, batches, leaks."""

from __future__ import annotations

import gc
import resource
from array import array

import kvmem
import numpy as np
import pytest


def test_sizes_are_numbers_or_texts() -> None:
    space = kvmem.OffsetAllocator("1TiB")
    assert space.capacity == 1 << 40
    assert space.allocate("1.5 MiB").nbytes == 3 << 19
    assert space.allocate(np.int64(5)).nbytes == 5
    for bad in (0, -1, 1 << 70, "much", "1 parsec", ""):
        with pytest.raises(ValueError) as caught:
            space.allocate(bad)
        assert isinstance(caught.value, kvmem.KvmemError)
    for wrong in (1.5, None, b"1"):
        with pytest.raises(TypeError):
            space.allocate(wrong)  # type: ignore[arg-type, unused-ignore]


def test_out_of_space_has_the_free_bytes() -> None:
    space = kvmem.OffsetAllocator(100)
    kept = space.allocate(60)
    with pytest.raises(MemoryError) as caught:
        space.allocate(50)
    error = caught.value
    assert isinstance(error, kvmem.OutOfSpaceError)
    assert (error.requested, error.free, error.largest_free) == (50, 40, 40)
    with pytest.raises(kvmem.OutOfSpaceError) as caught:
        space.allocate(101)
    assert caught.value.limit == 100
    with pytest.raises(kvmem.InUseError) as in_use:
        space.shrink_to(10)
    assert in_use.value.end_of_last == 60
    kept.free()
    space.shrink_to(10)
    space.grow_to(1 << 20)
    assert space.capacity == 1 << 20


def test_settings() -> None:
    space = kvmem.OffsetAllocator(64 << 20, boundary="1MiB", max_ranges=100, placement="best-fit")
    first, second = space.allocate(600 << 10), space.allocate(600 << 10)
    assert first.offset >> 20 != second.offset >> 20 and space.boundary == 1 << 20
    assert space.allocate(100, align=4096).offset % 4096 == 0
    first.shrink("500KiB")
    assert first.nbytes == 500 << 10
    scattered = space.allocate_scattered(3 << 20, 4)
    assert sum(part.nbytes for part in scattered) == 3 << 20
    assert first.nbytes < space.largest_free_hint <= space.capacity
    assert sum(bytes_ for _, _, _, bytes_ in space.bins()) == space.metrics().free
    for bad in ({"boundary": 0}, {"max_ranges": 1}, {"placement": "anywhere"}):
        with pytest.raises(kvmem.InvalidArgumentError):
            kvmem.OffsetAllocator(1 << 20, **bad)  # type: ignore[arg-type, unused-ignore]


def test_a_with_frees() -> None:
    space = kvmem.OffsetAllocator(1000)
    with space.allocate(10) as a, space.allocate_batch(10, 3) as batch:
        a.free()  # early is fine
        assert space.metrics().live == 3 and len(batch) == 3
    assert a.freed and batch.freed and space.metrics().live == 0
    with pytest.raises(kvmem.ClosedError):
        with batch:
            pass
    space.allocate(10)  # and so does forgetting
    assert space.metrics().live == 0


def test_batches_are_arrays() -> None:
    space = kvmem.OffsetAllocator("1GiB")
    batch = space.allocate_batch(4096, 5000)
    offsets = batch.offsets
    assert (
        offsets.format == "Q"
        and offsets.readonly
        and offsets.itemsize == 8
        and offsets.nbytes == 40_000
    )
    assert array("Q", offsets.tobytes()).tolist() == offsets.tolist()
    numbers = np.asarray(offsets)
    assert (
        numbers.dtype == np.uint64
        and len(np.unique(numbers)) == 5000
        and (numbers % 4096 == 0).all()
    )
    space.free_batch(batch)
    assert batch.freed and space.metrics().live == 0
    assert numbers[1] == 4096, "what was looked at stays"
    with pytest.raises(kvmem.ClosedError):
        space.free_batch(batch)


def test_a_list_is_freed_completely_or_not_at_all() -> None:
    space = kvmem.OffsetAllocator(1000)
    a, b, gone = (space.allocate(10) for _ in range(3))
    gone.free()
    for wrong in ([a, b, gone], [a, b, a]):
        with pytest.raises(kvmem.ClosedError):
            space.free_batch(wrong)
    with pytest.raises(TypeError):
        space.free_batch([a, b, 5])  # type: ignore[list-item, unused-ignore]
    assert not a.freed and not b.freed and space.metrics().live == 2
    space.free_batch(one for one in (a, b))
    assert space.metrics().live == 0


def test_it_outlives_its_allocator() -> None:
    allocation = kvmem.OffsetAllocator(1000).allocate(10)
    gc.collect()
    assert allocation.offset == 0 and allocation.nbytes == 10
    allocation.extend(20)
    with pytest.raises(kvmem.OutOfSpaceError):
        allocation.extend(2000)
    allocation.free()


def test_many_allocations_leak_nothing() -> None:
    space = kvmem.OffsetAllocator("1TiB")

    def rounds(n: int) -> None:
        for _ in range(n):
            allocation = space.allocate(4096)
            allocation.free()
        for _ in range(n // 100):
            space.allocate_batch(4096, 50)  # forgotten

    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    rounds(20_000)
    before = resident()
    rounds(200_000)  # and as many again, in batches
    assert resident() - before < 2 << 20
    assert space.metrics().live == 0
    space.check()
