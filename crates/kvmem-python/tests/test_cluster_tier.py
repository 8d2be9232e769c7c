"""``ClusterTier`` without a cluster: every way in which an old value could come back after a newer
one was stored, first one by one, then at random.

The store here is a dictionary with hooks. ``distributed/`` tests a real cluster.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import kvmem
import pytest
from conftest import LIMIT
from kvmem.mooncake import ClusterTier, DeadlineError, Store, StoreStats, errors
from kvmem.mooncake.calls import CallQueue
from kvmem.mooncake.circuit import Circuit

MIB = 1 << 20
KEY = "k"
V1, V2, V3 = b"the first value", b"the second one, put later", b"and a third"


class DictionaryStore:
    """A store that is a dictionary. It calls ``during`` with the name of the operation, between the
    operation and the return."""

    master = "a store"
    deadline = 1.0

    def __init__(self, pool: kvmem.Pool) -> None:
        self.pool = pool
        self.circuit = Circuit(lambda: None)
        self.objects: dict[str, bytes] = {}
        self.during: Callable[[str], object] = lambda what: None

    def exists(self, key: str) -> bool:
        return key in self.objects

    def size(self, key: str) -> int:
        found = self._find(key)
        self.during("size")
        return len(found)

    available_size = size

    def stats(self) -> StoreStats:
        return StoreStats("open" if self.circuit.is_open else "closed", 0, 0, 0, 0, 0, 0)

    def get_parts(self, key: str, parts: Iterable[Any], *, keep: object = None) -> None:
        found = self._find(key)
        parts = list(parts)
        if len(found) != sum(part.nbytes for part in parts):
            raise errors.error(-600, "get", key)
        for part in parts:
            with memoryview(part) as view:
                view[:] = found[: view.nbytes]
                found = found[view.nbytes :]
        self.during("get")

    def put_parts(self, key: str, parts: Iterable[Any], *, keep: object = None) -> None:
        self.during("put")
        # An existing object stays, as in a cluster.
        self.objects.setdefault(key, b"".join(bytes(part) for part in parts))

    def remove(self, key: str, *, force: bool = False) -> bool:
        return self.objects.pop(key, None) is not None

    def remove_batch(self, keys: Iterable[str], *, force: bool = False) -> None:
        for key in keys:
            self.remove(key)

    def remove_matching(self, pattern: str, *, force: bool = False) -> None:
        for key in [key for key in list(self.objects) if re.match(pattern, key)]:
            self.remove(key)

    def _find(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise errors.error(-704, "get", key) from None


class Hooked(ClusterTier):
    """A tier that can be delayed where the cache calls it."""

    def __init__(self, store: Store, **settings: Any) -> None:
        super().__init__(store, **settings)
        self.before_put: Callable[[bytes], object] = lambda value: None
        self.before_remove: Callable[[], object] = lambda: None

    def store(self, values: list[kvmem.Pinned]) -> None:
        for pinned in values:
            self.before_put(bytes(pinned))
        super().store(values)

    def remove(self, keys: list[int | bytes | str]) -> None:
        self.before_remove()
        super().remove(keys)

    def clear(self) -> None:
        self.before_remove()
        super().clear()


class Tiers:
    """A cache, its tier, and the store below. The cluster has the first value under the key, and
    the cache has none.
    """

    def __init__(self, pool: kvmem.Pool, **settings: Any) -> None:
        self.store = DictionaryStore(pool)
        self.tier = Hooked(cast(Store, self.store), retry=0.01, **settings)
        self.cache = kvmem.KvCache(pool, lower_tier=self.tier)
        self.put(V1)
        self.evict()

    def put(self, value: bytes) -> None:
        self.cache.insert(KEY, value)

    def evict(self) -> None:
        """Moves the cache's values to the cluster, or has stale ones removed from it."""
        self.cache.evict_to(0)
        assert self.tier.flush(LIMIT)

    def get(self) -> bytes | None:
        found = self.cache.get(KEY)
        if found is None:
            return None
        with found:
            return bytes(found)

    def once(self, what: str, do: Callable[[], object]) -> None:
        """Runs a function once after an operation of the store, before the tier continues."""

        def during(now: str) -> None:
            if now == what:
                self.store.during = lambda what: None
                do()

        self.store.during = during

    @contextlib.contextmanager
    def passing_on(self, value: bytes) -> Iterator[Callable[[], None]]:
        """Puts a value and evicts it. The tier does not receive it during the ``with`` block, or
        until the yielded function is called.
        """
        reached, go = threading.Event(), threading.Event()

        def before(given: bytes) -> None:
            if given == value:
                reached.set()
                assert go.wait(LIMIT)

        self.tier.before_put = before
        self.put(value)
        thread = threading.Thread(target=self.cache.evict_to, args=(0,))
        thread.start()
        assert reached.wait(LIMIT)

        def end() -> None:
            go.set()
            thread.join(LIMIT)
            assert not thread.is_alive()

        try:
            yield end
        finally:
            end()

    def close(self) -> None:
        self.cache.close()
        stats = self.tier.stats()
        assert stats.evicted == stats.stored + stats.dropped + stats.failed + stats.invalidated
        assert (stats.queued, stats.queued_bytes, stats.corrupt) == (0, 0, 0)


@pytest.fixture
def pool() -> Iterator[kvmem.Pool]:
    with kvmem.Pool(4 * MIB, pages="4k") as pool:
        yield pool
        assert pool.metrics().allocated == 0
        pool.check()


@pytest.fixture
def tiers(pool: kvmem.Pool) -> Iterator[Tiers]:
    tiers = Tiers(pool)
    yield tiers
    tiers.close()


# A fetch has read the first value, and then …

Change = Callable[[Tiers], object]


def dropped(tiers: Tiers) -> None:
    """The second value is put, evicted, and dropped."""
    max_bytes, tiers.tier._worker.max_bytes = tiers.tier._worker.max_bytes, 1
    tiers.put(V2)
    tiers.evict()
    tiers.tier._worker.max_bytes = max_bytes


def steps(*all: Change) -> Change:
    """Runs several changes one after the other."""

    def change(tiers: Tiers) -> None:
        for each in all:
            each(tiers)

    return change


def put(tiers: Tiers) -> None:
    tiers.put(V2)


def remove(tiers: Tiers) -> None:
    tiers.cache.remove(KEY)
    assert tiers.tier.flush(LIMIT)


def clear(tiers: Tiers) -> None:
    tiers.cache.clear()
    assert tiers.tier.flush(LIMIT)


CHANGES: dict[str, tuple[Change, bytes | None]] = {
    "inserted": (put, V2),
    "inserted and removed": (steps(put, remove), None),
    "inserted and cleared": (steps(put, clear), None),
    "inserted and evicted": (steps(put, lambda tiers: tiers.cache.evict_to(0)), V2),
    "inserted and stored": (steps(put, Tiers.evict), V2),
    "inserted and dropped": (dropped, None),
    "removed": (remove, None),
    "cleared": (clear, None),
}


@pytest.mark.parametrize("what", ["size", "get"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_fetch_from_the_cluster_is_overtaken(tiers: Tiers, change: str, what: str) -> None:
    do, then = CHANGES[change]
    tiers.once(what, lambda: do(tiers))
    assert tiers.get() in (None, then)
    assert tiers.get() == then
    # The tier does not hear of values that stay in the cache.
    assert tiers.tier.stats().fetched == (then is not None)


@pytest.mark.parametrize("what", ["size", "get"])
def test_a_fetch_is_overtaken_by_a_value_on_its_way(tiers: Tiers, what: str) -> None:
    with contextlib.ExitStack() as stack:
        tiers.once(what, lambda: stack.enter_context(tiers.passing_on(V2)))
        assert tiers.get() is None
        assert tiers.get() is None, "the cluster still has the first one"
    assert tiers.get() == V2


# Look-ups while a value is on its way to the tier.


def test_a_value_on_its_way_is_not_looked_up_in_the_cluster(tiers: Tiers) -> None:
    with tiers.passing_on(V2) as end:
        assert tiers.get() is None
        end()
        assert tiers.get() == V2


def test_a_value_that_arrives_late_is_not_the_latest(tiers: Tiers) -> None:
    with tiers.passing_on(V2):
        tiers.put(V3)
        tiers.evict()
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() == V3
    tiers.evict()
    assert tiers.get() == V3


@pytest.mark.parametrize("out", ["remove", "clear"])
def test_a_value_that_arrives_after_its_removal(tiers: Tiers, out: str) -> None:
    with tiers.passing_on(V2):
        tiers.cache.remove(KEY) if out == "remove" else tiers.cache.clear()
    assert tiers.get() is None
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() is None


@pytest.mark.parametrize("out", ["remove", "clear"])
def test_a_fetch_in_the_middle_of_a_removal(tiers: Tiers, out: str) -> None:
    assert tiers.get() == V1
    seen: list[bytes | None] = []
    tiers.tier.before_remove = lambda: seen.append(tiers.get())
    tiers.cache.remove(KEY) if out == "remove" else tiers.cache.clear()
    assert len(seen) == 1
    assert tiers.get() is None
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() is None


@pytest.mark.parametrize("out", ["remove", "clear"])
def test_an_eviction_in_the_middle_of_a_removal(tiers: Tiers, out: str) -> None:
    """Another thread's insertion happens after the removal, or is removed with it. The value that
    was there before never comes back.
    """
    assert tiers.get() == V1

    def meanwhile() -> None:
        tiers.put(V2)
        tiers.cache.evict_to(0)

    tiers.tier.before_remove = meanwhile
    tiers.cache.remove(KEY) if out == "remove" else tiers.cache.clear()
    assert tiers.get() in (None, V2)
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() in (None, V2)


def test_a_failed_store_leaves_no_older_value_behind(tiers: Tiers) -> None:
    def interrupted(_: bytes) -> None:
        tiers.tier.before_put = lambda value: None
        raise KeyboardInterrupt

    tiers.tier.before_put = interrupted
    tiers.put(V2)
    with pytest.raises(KeyboardInterrupt):
        tiers.cache.evict_to(0)
    assert tiers.get() is None
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() is None
    assert tiers.cache.stats().sink_failures == 1
    # And if the removal fails too.
    tiers.put(V1)
    tiers.evict()
    tiers.tier.before_remove = interrupted_always = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    tiers.tier.before_put = interrupted
    tiers.put(V2)
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda unraisable: None)
        tiers.cache.evict_to(0)
    assert tiers.get() is None and tiers.cache.stats().sink_failures == 2
    with pytest.raises(KeyboardInterrupt):
        tiers.cache.remove(KEY)
    assert tiers.tier.before_remove is interrupted_always
    assert tiers.get() is None


# Puts that miss their deadline, and end later.


@pytest.mark.parametrize("out", ["remove", "clear", "replace"])
def test_an_abandoned_put_brings_no_old_value_back(tiers: Tiers, out: str) -> None:
    calls, go, began = CallQueue("store"), threading.Event(), threading.Event()
    at_once = tiers.store.put_parts

    def late(key: str, parts: Iterable[Any], *, keep: object = None) -> None:
        value = b"".join(bytes(part) for part in parts)

        def put() -> None:
            began.set()
            assert go.wait(LIMIT)
            tiers.store.objects.setdefault(key, value)

        tiers.store.put_parts = at_once  # type: ignore[method-assign]
        call = calls.submit(put)
        assert began.wait(LIMIT)
        with pytest.raises(TimeoutError):
            call.wait(0.01)
        raise DeadlineError("late", code=errors.TIMED_OUT, key=key, call=call)

    tiers.store.put_parts = late  # type: ignore[method-assign]
    tiers.put(V2)
    tiers.cache.evict_to(0)
    assert began.wait(LIMIT)
    if out == "remove":
        tiers.cache.remove(KEY)
    elif out == "clear":
        tiers.cache.clear()
    else:
        tiers.put(V3)
        tiers.cache.evict_to(0)
    # Any operation under this key before the put has ended would come too early.
    assert not tiers.tier.flush(0.05)
    go.set()
    assert tiers.tier.flush(LIMIT)
    assert tiers.get() == (V3 if out == "replace" else None)
    tiers.evict()
    assert tiers.get() == (V3 if out == "replace" else None)
    assert calls.close(lambda: None).wait_ended(LIMIT)


# Transfers.


def test_a_transfer_that_goes_on_keeps_its_block(pool: kvmem.Pool) -> None:
    """The memory of the cache is free at once: the transfer has a block of the tier."""
    tiers = Tiers(pool)
    held: list[memoryview] = []
    at_once = tiers.store.get_parts

    def late(key: str, parts: Iterable[Any], *, keep: object = None) -> None:
        held.extend(memoryview(part) for part in parts)
        raise DeadlineError("late", code=errors.TIMED_OUT, key=key)

    tiers.store.get_parts = late  # type: ignore[method-assign]
    before = pool.metrics().allocated
    assert tiers.get() is None and len(held) == 2
    assert tiers.tier.stats().fetch_failures == 1
    assert pool.metrics().allocated > before
    tiers.store.get_parts = at_once  # type: ignore[method-assign]
    assert tiers.get() == V1
    # The transfer ends, and writes to nobody's memory.
    held[0][:] = b"-" * len(held[0])
    held.clear()
    assert tiers.get() == V1
    tiers.cache.evict_to(0)
    assert tiers.tier.flush(LIMIT)
    tiers.close()


def test_other_bytes_of_the_cluster_are_no_value(pool: kvmem.Pool) -> None:
    tiers = Tiers(pool)
    (name,) = tiers.store.objects
    for wrong in (b"short", V1 + b"x" * 32, tiers.store.objects[name][:-40] + bytes(40)):
        tiers.store.objects[name] = wrong
        assert tiers.get() is None
        assert tiers.tier.flush(LIMIT) and not tiers.store.objects, "it is removed"
        assert tiers.get() is None
        tiers.put(V1)
        tiers.evict()
        assert tiers.get() == V1
        tiers.cache.evict_to(0)
        assert tiers.tier.flush(LIMIT)
    assert tiers.tier.stats().corrupt == 3
    tiers.cache.close()


def test_a_chain_without_a_master_has_its_upper_tier(pool: kvmem.Pool, tmp_path: Path) -> None:
    """The cluster cannot be reached: the disk serves on, evicted values wait, and removals are
    made later.
    """
    store = DictionaryStore(pool)
    tier = ClusterTier(cast(Store, store), retry=0.01, max_queued_bytes=MIB)
    with (
        kvmem.DiskTier(tmp_path / "tier", bytes="16MiB") as disk,
        kvmem.KvCache(
            pool, max_bytes=100_000, lower_tier=kvmem.Chain(disk, tier), write_behind=50_000
        ) as cache,
    ):
        for key in range(20):
            cache.insert(key, bytes([key]) * 1000)
        cache.evict_to(0)
        assert cache.flush(LIMIT) and tier.flush(LIMIT) and len(store.objects) == 20
        # What is not on the disk is in the cluster.
        disk.remove(range(10))
        found = cache.get_or_fetch(range(20))
        assert [one and bytes(one)[0] for one in found] == list(range(20))
        del found
        assert tier.stats().fetched == 10
        cache.evict_to(0)
        assert cache.flush(LIMIT) and tier.flush(LIMIT)

        with tier._worker.lock:
            tier._worker.down = True
        began = time.monotonic()
        cache.insert(30, b"new" * 1000)
        cache.evict_to(0)
        assert cache.flush(LIMIT)
        cache.remove(3)
        assert cache.get(3) is None
        found = cache.get_or_fetch([4, 30, 50])
        assert [one and bytes(one)[:3] for one in found] == [b"\x04" * 3, b"new", None]
        del found
        assert tier.stats().queued >= 1 and tier.stats().stale >= 1 and len(store.objects) == 20
        assert time.monotonic() - began < LIMIT
        with tier._worker.lock:
            tier._worker.down = False
            tier._worker.changed.notify_all()
        assert tier.flush(LIMIT) and len(store.objects) == 20
        assert tier._worker.name(3) not in store.objects


# Random operations.


@pytest.mark.parametrize(("max_queued_bytes", "max_wait"), [(MIB, 1.0), (4_000, 0.0)])
def test_no_look_up_finds_an_older_version(
    pool: kvmem.Pool, max_queued_bytes: int, max_wait: float
) -> None:
    """Each key has one writer, which records its last put or removal. No look-up finds a value
    older than the record at its beginning.
    """
    store = DictionaryStore(pool)
    store.during = lambda what: time.sleep(random.random() * 0.0005)
    tier = ClusterTier(
        cast(Store, store), max_queued_bytes=max_queued_bytes, max_wait=max_wait, retry=0.01
    )
    cache = kvmem.KvCache(pool, max_bytes=12_000, lower_tier=tier)
    writers, keys = 3, 24
    latest = [0] * keys
    """The version put last, or the one after which the key was removed."""
    began = time.monotonic()
    wrong: list[str] = []

    def enough() -> bool:
        stats = tier.stats()
        return stats.fetched > 1000 and stats.stored > 1000

    def going() -> bool:
        """Until enough values were put and fetched, however long a busy machine takes."""
        # The threads of the tier get their turns as well.
        time.sleep(0.0001)
        return not wrong and not enough() and time.monotonic() - began < LIMIT

    def look(key: int, sure: bool) -> None:
        known = latest[key]
        found = cache.get(key)
        if found is None:
            return
        with found:
            version = int(bytes(found)[:20])
        if version < known or (sure and version != known):
            wrong.append(f"key {key}: version {version}, after {known}")

    def write(me: int) -> None:
        dice, version = random.Random(me), 0
        while going():
            key = dice.randrange(keys // writers) * writers + me
            version += 1
            if dice.random() < 0.15:
                cache.remove(key)
                # Values found from now on are later.
                latest[key] = version
                if cache.get(key) is not None:
                    wrong.append(f"key {key} was removed at {version}")
            elif dice.random() < 0.5:
                cache.insert(key, b"%20d" % version + bytes(dice.randrange(1000, 1500)))
                latest[key] = version
            look(key, sure=True)

    def read(me: int) -> None:
        dice = random.Random(100 + me)
        while going():
            look(dice.randrange(keys), sure=False)

    def guarded(work: Callable[[int], None], me: int) -> None:
        try:
            work(me)
        except BaseException as error:
            wrong.append(repr(error))
            raise

    threads = [threading.Thread(target=guarded, args=(write, me)) for me in range(writers)]
    threads += [threading.Thread(target=guarded, args=(read, me)) for me in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong
    stats = tier.stats()
    assert enough(), stats
    cache.close()
