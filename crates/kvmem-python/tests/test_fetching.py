"""Fetches in the background, in threads and in event loops; fetches with a deadline; and the queue
of evicted values.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import LIMIT, MIB, until


def value(key: int) -> bytes:
    return key.to_bytes(8, "little") * (600 + key % 7)


class Gate:
    """A lower tier whose reads wait until they may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reading = threading.Event()
        self.putting = threading.Event()
        self.threads: set[str] = set()
        self.values: dict[int | bytes | str, bytes] = {}

    def __lower_tier__(self, pool: kvmem.Pool) -> Gate:
        return self

    def store(self, values: list[kvmem.Pinned]) -> None:
        self.putting.set()
        assert self.open.wait(LIMIT)
        for pinned in values:
            if not pinned.superseded:
                self.values[pinned.cache_key] = bytes(pinned)

    def ask(self, keys: list[int | bytes | str]) -> list[int | None]:
        return [len(self.values[key]) if key in self.values else None for key in keys]

    def fetch_into(
        self, keys: list[int | bytes | str], buffers: list[memoryview]
    ) -> list[int | None]:
        self.threads.add(threading.current_thread().name)
        self.reading.set()
        assert self.open.wait(LIMIT)
        for key, buffer in zip(keys, buffers, strict=True):
            buffer[:] = self.values[key]
        return [len(buffer) for buffer in buffers]

    def remove(self, keys: list[int | bytes | str]) -> None:
        for key in keys:
            self.values.pop(key, None)

    def clear(self) -> None:
        self.values.clear()

    def close(self) -> None:
        self.open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def gated(pool: kvmem.Pool, gate: Gate) -> Iterator[kvmem.KvCache]:
    """A cache whose values are all below."""
    with kvmem.KvCache(pool, max_bytes=MIB, lower_tier=gate) as cache:
        for key in range(100):
            cache.insert(key, value(key))
        cache.evict_to(0)
        yield cache
        gate.open.set()


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[kvmem.DiskTier]:
    with kvmem.DiskTier(tmp_path / "tier", bytes="16MiB") as tier:
        yield tier


@pytest.fixture
def cache(pool: kvmem.Pool, tier: kvmem.DiskTier) -> Iterator[kvmem.KvCache]:
    with kvmem.KvCache(pool, max_bytes=MIB, lower_tier=tier) as cache:
        for key in range(300):
            cache.insert(key, value(key))
        cache.evict_to(0)
        yield cache


def check(found: list[kvmem.Pinned | None], keys: range) -> None:
    """Checks all values, and releases them."""
    assert [one and bytes(one) for one in found] == [value(key) for key in keys]
    for one in found:
        assert one is not None
        one.release()


def test_values_are_fetched_in_the_background(cache: kvmem.KvCache) -> None:
    fetching = cache.start_fetch(range(50))
    check(fetching.result(), range(50))
    assert fetching.done() and "ended" in repr(fetching)
    for use in (fetching.result, fetching.take):
        with pytest.raises(kvmem.ClosedError, match="cancelled, or its result taken"):
            use()
    fetching.cancel()
    # What is in memory needs no fetch.
    fetching = cache.start_fetch(range(50))
    assert fetching.done() and "done" in repr(fetching)
    check(fetching.take(), range(50))
    fetching = cache.start_fetch([1000, "text", b"bytes"])
    assert fetching.result(timeout=LIMIT) == [None] * 3
    assert cache.start_fetch([]).result() == []
    cache.start_fetch(range(50, 80)).detach()
    until(lambda: all(cache.contains_in_memory(key) for key in range(50, 80)))
    with cache.start_fetch(range(80, 100)) as fetching:
        check(fetching.result(LIMIT), range(80, 100))
    with pytest.raises(TypeError, match="a key is an int, bytes or a str"):
        cache.start_fetch([1.5])  # type: ignore[list-item]
    # Without a tier there is nothing to fetch.
    with kvmem.KvCache(cache.pool) as alone:
        alone.insert("key", b"value")
        one, none = alone.start_fetch(["key", "none"]).result()
        assert one is not None and bytes(one) == b"value" and none is None
        one.release()


def test_a_wait_ends_in_time_and_can_be_repeated(gate: Gate, gated: kvmem.KvCache) -> None:
    gate.open.clear()
    fetching = gated.start_fetch(range(3))
    assert gate.reading.wait(LIMIT) and not fetching.done() and repr(fetching) == "<kvmem.Fetching>"
    for timeout in (0, 0.01, 0.2):
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="not all fetched within"):
            fetching.result(timeout=timeout)
        assert time.monotonic() - begin >= timeout
    # Two callers share the reads.
    other = gated.start_fetch(range(3))
    gate.open.set()
    check(fetching.result(), range(3))
    check(other.result(), range(3))
    assert gate.threads == {"kvmem-fetch"} or len(gate.threads) == 1
    for wrong, value_, limit in (
        (-1, -1.0, 0),
        (float("nan"), None, None),
        (2**70, None, 2**64 - 1),
    ):
        with pytest.raises(kvmem.InvalidArgumentError, match="timeout is") as caught:
            gated.start_fetch([1]).result(wrong)
        assert limit is None or caught.value.limit == limit
        assert value_ is None or caught.value.value == value_


def test_cancelled_fetches_end(gate: Gate, gated: kvmem.KvCache) -> None:
    gate.open.clear()
    first = gated.start_fetch([1])
    assert gate.reading.wait(LIMIT)
    # As many batches as there are threads that could read.
    waiting = [gated.start_fetch([key]) for key in range(2, 60)]
    for each in waiting[20:]:
        each.cancel()
        each.cancel()
        assert each.done()
    taken = [each.take() for each in waiting[:20]]
    assert taken == [[None]] * 20
    gate.open.set()
    check(first.result(), range(1, 2))
    # What had begun is in the cache.
    assert gated.contains_in_memory(1)
    assert sum(gated.contains_in_memory(key) for key in range(2, 60)) < 58


def test_a_fetch_keeps_its_cache(gate: Gate, pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool, lower_tier=gate)
    cache.insert(1, value(1))
    cache.evict_to(0)
    gate.open.clear()
    fetching = cache.start_fetch([1])
    assert gate.reading.wait(LIMIT)
    watched = weakref.ref(cache)
    del cache
    gc.collect()
    assert watched() is not None
    gate.open.set()
    check(fetching.result(), range(1, 2))
    del fetching
    gc.collect()
    assert watched() is None


def test_a_closed_cache_starts_nothing(gate: Gate, gated: kvmem.KvCache) -> None:
    fetching = gated.start_fetch([1, 2])
    gated.close()
    for use in (
        lambda: gated.start_fetch([1]),
        lambda: gated.flush(),
        lambda: gated.write_behind_stats(),
        lambda: gated.get_batch([1], timeout=1),
    ):
        with pytest.raises(kvmem.ClosedError):
            use()
    # It keeps the values, and its part of the library's cache.
    for one in fetching.result(LIMIT):
        if one is not None:
            one.release()


def test_fetches_are_awaited_without_a_thread_for_each(gate: Gate, gated: kvmem.KvCache) -> None:
    async def get(keys: range) -> None:
        check(await gated.start_fetch(keys), keys)

    async def all_at_once() -> int:
        gate.open.clear()
        tasks = [asyncio.create_task(get(range(n, n + 5))) for n in range(0, 100, 5)]
        while not gate.reading.is_set():
            await asyncio.sleep(0.001)
        threads = threading.active_count()
        # The loop runs while the reads wait.
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        gate.open.set()
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        return threads

    before = threading.active_count()
    # Threads of the library that call Python are counted, too.
    assert asyncio.run(all_at_once()) <= before + 4


def test_a_cancelled_task_cancels_its_fetches(gate: Gate, gated: kvmem.KvCache) -> None:
    async def cancelled() -> None:
        gate.open.clear()
        fetching = gated.start_fetch(range(5))

        async def get() -> list[kvmem.Pinned | None]:
            return await fetching

        task = asyncio.create_task(get())
        await asyncio.sleep(0)
        while not gate.reading.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fetching.done()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await gated.start_fetch(range(50, 55))
        gate.open.set()
        # A result that is there at once, and one that is awaited twice.
        check(await gated.start_fetch(range(10, 12)), range(10, 12))
        done = gated.start_fetch(range(10, 12))
        check(await done, range(10, 12))
        with pytest.raises(kvmem.ClosedError):
            await done

    asyncio.run(cancelled())


def test_a_fetch_is_awaited_once_at_a_time(gate: Gate, gated: kvmem.KvCache) -> None:
    async def twice() -> None:
        gate.open.clear()
        fetching = gated.start_fetch([1])

        async def get() -> list[kvmem.Pinned | None]:
            return await fetching

        first = asyncio.create_task(get())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="awaited already"):
            await fetching
        gate.open.set()
        check(await first, range(1, 2))

    asyncio.run(twice())


def test_a_loop_may_end_before_its_fetches(gate: Gate, gated: kvmem.KvCache) -> None:
    gate.open.clear()
    fetching = gated.start_fetch([1])
    loop = asyncio.new_event_loop()

    async def get() -> list[kvmem.Pinned | None]:
        return await fetching

    task = loop.create_task(get())
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    loop.close()
    gate.open.set()
    until(fetching.done)
    check(fetching.result(), range(1, 2))
    # Otherwise asyncio reports a task that was never ended.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_other_threads_run_while_a_fetch_is_awaited(gate: Gate, gated: kvmem.KvCache) -> None:
    """A thread that waits has released the GIL: the one that ends the wait needs it."""
    gate.open.clear()
    fetching = gated.start_fetch(range(10))
    timer = threading.Timer(0.05, gate.open.set)
    timer.start()
    check(fetching.result(), range(10))
    timer.join()


def test_a_process_ends_while_it_fetches(tmp_path: Path, script: Callable[..., str]) -> None:
    script(
        f"""
        import kvmem, threading
        class Slow:
            def __lower_tier__(self, pool): return self
            def store(self, values): pass
            def ask(self, keys): return [5 for _ in keys]
            def fetch_into(self, keys, buffers):
                threading.Event().wait(0.3)
                return [None for _ in keys]
            def remove(self, keys): pass
            def clear(self): pass
            def close(self): pass
        pool = kvmem.Pool("1MiB", pages="4k")
        tier = kvmem.DiskTier({str(tmp_path / "tier")!r}, bytes="1MiB")
        cache = kvmem.KvCache(pool, lower_tier=kvmem.Chain(tier, Slow()), write_behind=10_000)
        cache.insert("key", b"value")
        cache.evict_to(0)
        fetching = cache.start_fetch(range(100))
        """
    )


# The queue.


def test_the_queue_drops_or_waits(gate: Gate, pool: kvmem.Pool) -> None:
    with kvmem.KvCache(
        pool,
        max_bytes=MIB,
        lower_tier=gate,
        write_behind="64KiB",
        write_behind_when_full="drop",
        write_behind_writers=2,
    ) as cache:
        gate.open.clear()
        for key in range(100):
            cache.insert(key, value(key))
        cache.evict_to(0)
        stats = cache.write_behind_stats()
        assert stats.dropped > 50 and 0 < stats.bytes <= stats.max_bytes <= 65536 + 5000
        assert not cache.flush(0.01)
        gate.open.set()
        assert cache.flush() and cache.flush(0)
        stats = cache.write_behind_stats()
        assert stats.values == stats.bytes == 0 and stats.evicted == 100, stats
        assert stats.written + stats.dropped == 100 and stats.last_error is None
        assert len(gate.values) == stats.written
        found = cache.get_batch(range(100))
        assert sum(one is not None for one in found) == stats.written
        del found


def test_wrong_settings_of_the_queue(tier: kvmem.DiskTier, pool: kvmem.Pool) -> None:
    cases: list[tuple[dict[str, Any], object, object, str]] = [
        ({"write_behind_writers": 0}, 0, 1, "write_behind_writers is 0: give a number from 1"),
        ({"write_behind_writers": 65}, 65, 64, "write_behind_writers is 65"),
        ({"write_behind_when_full": "fail"}, None, None, 'when_full is "fail": give wait or drop'),
        ({"write_behind_on_drop": "keep"}, None, None, 'on_drop is "keep": give write or discard'),
        ({"write_behind": 0}, 0, pool.capacity, "write_behind is 0"),
    ]
    for options, wrong, limit, text in cases:
        with pytest.raises(kvmem.InvalidArgumentError) as caught:
            kvmem.KvCache(pool, lower_tier=tier, **options)
        assert text in str(caught.value) and caught.value.value == wrong
        assert limit is None or caught.value.limit == limit
