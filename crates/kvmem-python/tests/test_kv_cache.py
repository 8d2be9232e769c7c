"""The cache: pins, reservations, eviction, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import kvmem
import numpy as np
import pytest


def test_fetching_ahead_changes_nothing(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool, max_blocks=100)
    for key in range(100):
        cache.insert(key, bytes(1000))
    before = cache.stats()
    cache.prefetch(range(200))
    cache.prefetch([])
    cache.prefetch(key for key in (7, b"7", "7", -(2**100)))
    assert cache.stats() == before
    # The order of eviction is as before.
    assert cache.evict_to(50_000) == 50_000
    assert [key for key in range(100) if key in cache] == list(range(50, 100))
    with pytest.raises(TypeError):
        cache.prefetch([1, 1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        cache.prefetch(7)  # type: ignore[arg-type]

    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        cache.prefetch(failing())
    cache.close()
    with pytest.raises(kvmem.ClosedError):
        cache.prefetch([1])


def test_pinned_values_are_not_evicted(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool, max_blocks=2)
    cache.insert(1, b"one")
    cache.insert(2, b"two")
    first, second = cache.get(1), cache.get(2)
    assert first is not None and second is not None
    with pytest.raises(MemoryError) as caught:
        cache.insert(3, b"three")
    assert isinstance(caught.value, kvmem.OutOfSpaceError) and caught.value.blocks == 2
    array = np.frombuffer(first, np.uint8)  # type: ignore[call-overload, unused-ignore]
    assert not array.flags.writeable and memoryview(first).readonly
    with pytest.raises(kvmem.ExportedError):
        first.release()
    del array
    with first:
        assert first.offset >= 0
    with pytest.raises(kvmem.ClosedError, match="released"):
        bytes(first)
    cache.insert(3, b"three")
    assert 1 not in cache
    cache.close()
    assert bytes(second) == b"two" and cache.closed
    with pytest.raises(kvmem.ClosedError):
        cache.get(2)


def test_a_reservation_is_committed_by_its_with(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool)
    with cache.reserve("k", 1000) as room:
        np.from_dlpack(room)[:] = 5
    assert bytes(cache.get("k") or b"") == b"\x05" * 1000
    with pytest.raises(ZeroDivisionError), cache.reserve("k", 10) as room:
        raise ZeroDivisionError
    assert len(cache.get("k") or b"") == 1000
    room = cache.reserve("k", 10)
    view = memoryview(room)
    with pytest.raises(kvmem.ExportedError):
        room.commit()
    view.release()
    pinned = room.commit()
    with pytest.raises(kvmem.ClosedError, match="committed or discarded"):
        room.commit()
    assert pinned.nbytes == 10


def test_keys_and_settings_are_checked(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool)
    assert cache.pool is pool
    for wrong in (1.5, None, (1,)):
        with pytest.raises(TypeError):
            cache.insert(wrong, b"x")  # type: ignore[arg-type, unused-ignore]
    for bad in (2**127, -(2**128)):
        with pytest.raises(kvmem.InvalidArgumentError, match="127 bits"):
            cache.insert(bad, b"x")
    with pytest.raises(kvmem.InvalidArgumentError):
        cache.insert(1, b"")
    for settings_ in (
        {"eviction": "random"},
        {"max_bytes": 0},
        {"max_blocks": 0},
    ):
        with pytest.raises(kvmem.InvalidArgumentError):
            kvmem.KvCache(pool, **settings_)  # type: ignore[arg-type, unused-ignore]
    cache.insert(1, b"int")
    cache.insert("1", b"str")
    cache.insert(b"1", b"bytes")
    assert [bytes(cache.get(key) or b"") for key in (1, "1", b"1")] == [b"int", b"str", b"bytes"]


def test_a_cache_is_true(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool)
    assert len(cache) == 0 and bool(cache) and (cache or None) is cache
    cache.close()
    assert bool(cache)


def test_equal_keys_of_several_types_are_one_key(pool: kvmem.Pool) -> None:
    class Text(str): ...

    class Data(bytes): ...

    class Number(int): ...

    cache = kvmem.KvCache(pool)
    same: list[list[Any]] = [
        [7, Number(7), np.int64(7), np.uint8(7)],
        [2**63, np.uint64(2**63)],
        [-(2**63) - 1],
        [2**127 - 1],
        [-(2**127)],
        [1, True],
        [b"", Data()],
        ["", Text()],
        [b"7", Data(b"7")],
        ["7", Text("7")],
        ["\xff", "\u00ff"],
        [b"\xff"],
        [b"7\xff"],
        ["\U0001f600" * 50],
    ]
    for index, keys in enumerate(same):
        cache.insert(keys[0], b"%d" % index)
    for index, keys in enumerate(same):
        for key in keys:
            found = cache.get(key)
            assert key in cache and found is not None and bytes(found) == b"%d" % index, repr(key)
            assert found.cache_key == keys[0] and type(found.cache_key) is type(keys[0])
    assert len(cache) == len(same)
    with pytest.raises(kvmem.InvalidArgumentError, match="UTF-8"):
        cache.get("\ud800")
    for wrong in (bytearray(b"7"), 7.0, None):
        with pytest.raises(TypeError, match="a key is an int, bytes or a str, not"):
            cache.get(cast(Any, wrong))


def insert(cache: kvmem.KvCache, block: int, depth: int) -> None:
    cache.insert(block, bytes(1000), depth=depth)


def reserve(cache: kvmem.KvCache, block: int, depth: int) -> None:
    with cache.reserve(block, 1000, depth=depth) as reservation:
        reservation.write(bytes(1000))


@pytest.mark.parametrize("store", [insert, reserve])
@pytest.mark.parametrize("eviction", ["lru", "scan-resistant"])
def test_the_end_of_a_prefix_is_evicted_first(pool: kvmem.Pool, store: Any, eviction: str) -> None:
    cache = kvmem.KvCache(pool, max_blocks=100, eviction=eviction)
    for block in range(8):
        store(cache, block, block)
    assert cache.evict_to(4000) == 4000
    assert [block for block in range(8) if block in cache] == [0, 1, 2, 3]
    store(cache, 0, 2**32 - 1)
    for depth in (-1, 2**32):
        with pytest.raises(kvmem.InvalidArgumentError, match="depth"):
            store(cache, 1, depth)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError, match="depth"):
            store(cache, 1, cast(Any, wrong))
    with pytest.raises(TypeError):
        cache.insert(1, b"value", 1)  # type: ignore[misc, unused-ignore]
