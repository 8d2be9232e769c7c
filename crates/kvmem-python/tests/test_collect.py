"""The garbage collector frees every cycle that leads through an object of kvmem."""

from __future__ import annotations

import gc
import inspect
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import kvmem
import pytest
from conftest import LIMIT, MIB, lockable
from kvmem import _kvmem
from kvmem.mooncake import ClusterTier
from node_server import Server


class Exporter(bytearray):
    """A buffer that can refer to objects made from it."""

    other: object = None


class Tier:
    """A lower tier that stores nothing, and can refer to its cache."""

    other: object = None

    def __lower_tier__(self, pool: kvmem.Pool) -> Tier:
        return self

    def store(self, values: list[kvmem.Pinned]) -> None: ...

    def ask(self, keys: list[int | bytes | str]) -> list[int | None]:
        return [None for _ in keys]

    def fetch_into(
        self, keys: list[int | bytes | str], buffers: list[memoryview]
    ) -> list[int | None]:
        return [None for _ in keys]

    def remove(self, keys: list[int | bytes | str]) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Listens to a pool that is initialized in the background, cancels that, and gets no last
    report.
    """

    other: object = None

    def __init__(self) -> None:
        self.known = threading.Event()
        self.pool: kvmem.Pool | None = None

    def __call__(self, done: int, total: int) -> None:
        assert self.known.wait(LIMIT) and self.pool is not None
        self.pool.cancel()


class Admission:
    """Chooses the values that are written, and can refer to the tier."""

    other: object = None

    def __call__(self, key: int | bytes | str, value: memoryview) -> bool:
        return True


Node = Exporter | Tier | Progress | Admission


def over_a_buffer(make: Callable[[kvmem.Region], object]) -> Node:
    owner = Exporter(1 << 16)
    owner.other = make(kvmem.Region.from_buffer(owner))
    return owner


def over_a_tier(make: Callable[[kvmem.KvCache], object]) -> Node:
    tier = Tier()
    tier.other = make(kvmem.KvCache(kvmem.Pool(MIB, pages="4k"), lower_tier=tier))
    return tier


def over_a_chain(make: Callable[[kvmem.KvCache], object]) -> Node:
    """The cache has the tier twice, below a queue, whose thread calls it."""
    tier = Tier()
    pool = kvmem.Pool(MIB, pages="4k")
    cache = kvmem.KvCache(pool, lower_tier=kvmem.Chain(tier, tier), write_behind=10_000)
    cache.insert("evicted", b"value")
    cache.evict_to(0)
    tier.other = make(cache)
    return tier


def chained(cache: kvmem.KvCache) -> object:
    return cache.lower_tier


def awaited(cache: kvmem.KvCache) -> kvmem.Fetching:
    fetching = cache.start_fetch(["k"])
    # The object has the callback, which refers to it, until the fetch ends.
    callback = lambda: fetching.done()  # noqa: E731
    known = weakref.ref(callback)
    fetching._poll(callback)
    del callback
    deadline = time.monotonic() + 30
    while known() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return fetching


def over_an_admission(several: bool) -> Node:
    """A cache above the tier has called it."""
    admission = Admission()
    with tempfile.NamedTemporaryFile() as file, kvmem.Pool(MIB, pages="4k") as pool:
        tier = (
            kvmem.TierSet([file.name], bytes="1MiB", admission=admission)
            if several
            else kvmem.DiskTier(file.name, bytes="1MiB", admission=admission)
        )
        with kvmem.KvCache(pool, lower_tier=tier) as cache:
            cache.insert("evicted", b"value")
            cache.evict_to(0)
        assert len(tier) == 1
    admission.other = tier
    return admission


def over_a_callback(make: Callable[[kvmem.Pool], object]) -> Node:
    progress = Progress()
    progress.pool = pool = kvmem.Pool(64 * MIB, pages="4k", in_background=True, progress=progress)
    progress.known.set()
    assert pool.wait_ready() < 64 * MIB and not pool.initializing
    progress.other = make(pool)
    return progress


CYCLES: dict[type, Callable[[], Node]] = {
    kvmem.Region: lambda: over_a_buffer(lambda region: region),
    kvmem.BumpArena: lambda: over_a_buffer(kvmem.BumpArena),
    kvmem.Piece: lambda: over_a_buffer(lambda region: kvmem.BumpArena(region).allocate(10)),
    kvmem.Registration: lambda: over_a_buffer(lambda region: kvmem.Registration(region, "mlock")),
    kvmem.Pool: lambda: over_a_callback(lambda pool: pool),
    kvmem.Hold: lambda: over_a_callback(kvmem.Pool.hold),
    kvmem.KvCache: lambda: over_a_tier(lambda cache: cache),
    kvmem.Reservation: lambda: over_a_tier(lambda cache: cache.reserve("k", 100)),
    kvmem.Chain: lambda: over_a_chain(chained),
    kvmem.Fetching: lambda: over_a_chain(awaited),
    kvmem.DiskTier: lambda: over_an_admission(several=False),
    kvmem.TierSet: lambda: over_an_admission(several=True),
}


def attached() -> kvmem.AttachedPool:
    with kvmem.Pool(MIB, pages="4k", shared=True) as pool:
        return kvmem.AttachedPool(pool.fileno())


def attached_block() -> kvmem.AttachedBlock:
    with (
        kvmem.Pool(MIB, pages="4k", shared=True) as pool,
        kvmem.AttachedPool(pool.fileno()) as other,
    ):
        return other.block(pool.allocate(10).reference())


def on_a_node(make: Callable[[kvmem.NodeCache], object]) -> Callable[[], object]:
    def made() -> object:
        with Server(MIB) as server, kvmem.connect(server.path) as cache:
            cache.insert("k", b"value")
            return make(cache)

    return made


def pinned() -> kvmem.Pinned:
    cache = kvmem.KvCache(kvmem.Pool(MIB, pages="4k"), lower_tier=Tier())
    return cache.reserve("k", 10).commit()


PLAIN: dict[type, Callable[[], object]] = {
    ClusterTier: lambda: ClusterTier(python="/no/such/python"),
    kvmem.NodeCache: on_a_node(lambda cache: cache),
    kvmem.NodeOperator: on_a_node(lambda cache: cache.as_operator()),
    kvmem.NodeReservation: on_a_node(lambda cache: cache.reserve("r", 10)),
    kvmem.PinBatch: on_a_node(lambda cache: cache.acquire(["k"])),
    kvmem.PinnedValue: on_a_node(lambda cache: cache.get("k")),
    kvmem.OffsetAllocator: lambda: kvmem.OffsetAllocator(MIB),
    kvmem.Allocation: lambda: kvmem.OffsetAllocator(MIB).allocate(10),
    kvmem.AllocationBatch: lambda: kvmem.OffsetAllocator(MIB).allocate_batch(10, 10),
    kvmem.Block: lambda: kvmem.Pool(MIB, pages="4k").allocate(10),
    kvmem.BlockBatch: lambda: kvmem.Pool(MIB, pages="4k").allocate_batch(10, 10),
    kvmem.AttachedPool: attached,
    kvmem.AttachedBlock: attached_block,
    kvmem.Pinned: pinned,
    _kvmem.AddressManager: lambda: _kvmem.AddressManager(MIB),
    _kvmem.History: lambda: _kvmem.History(),
}


def test_every_class_is_accounted_for() -> None:
    classes = {each for _, each in inspect.getmembers(_kvmem, inspect.isclass)}
    assert classes == set(CYCLES) | set(PLAIN)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_other_classes_refer_only_to_their_type(kind: type) -> None:
    """The compiler checks that their fields own no Python object."""
    instance = PLAIN[kind]()
    assert type(instance) is kind
    referents = [each for each in gc.get_referents(instance) if each is not kind]
    # The calls of an operator belong to a cache, which refers to its type alone.
    assert kind is kvmem.NodeOperator or not referents
    assert {type(each) for each in referents} <= {kvmem.NodeCache}
    with pytest.raises(AttributeError):
        instance.other = instance  # type: ignore[attr-defined]


WITH_BYTES = {kvmem.Region, kvmem.Piece, kvmem.Reservation}
WAYS = [(kind, False) for kind in CYCLES] + [(kind, True) for kind in CYCLES if kind in WITH_BYTES]


@pytest.mark.parametrize(
    ("kind", "viewed"),
    WAYS,
    ids=lambda each: getattr(each, "__name__", "viewed" if each else "bare"),
)
def test_cycles_are_freed(kind: type, viewed: bool) -> None:
    if kind is kvmem.Registration and not lockable():
        pytest.skip("memory cannot be locked here (RLIMIT_MEMLOCK)")
    gc.collect()
    gc.disable()
    try:
        node = CYCLES[kind]()
        inner: Any = node.other
        assert type(inner) is kind
        if viewed:
            node.other = memoryview(cast(Any, inner))
        watched = [weakref.ref(inner)] + ([] if isinstance(node, Exporter) else [weakref.ref(node)])
        del node, inner
        assert all(each() is not None for each in watched), "there is no cycle to be freed"
        gc.collect()
        # The collector may clear the object before its view: then the next pass frees it.
        gc.collect()
        assert all(each() is None for each in watched)
    finally:
        gc.enable()


def test_a_cache_over_a_chain_is_freed() -> None:
    gc.collect()
    node = over_a_chain(lambda cache: cache)
    cache: Any = node.other
    watched: list[weakref.ref[Any]] = [weakref.ref(node), weakref.ref(cache)]
    del cache
    del node
    gc.collect()
    assert all(each() is None for each in watched)


def test_collected_pools_give_their_memory_back() -> None:
    pools: list[weakref.ref[kvmem.Pool]] = []
    for _ in range(5):
        pool, tier = kvmem.Pool(4 * MIB, pages="4k"), Tier()
        tier.other = kvmem.KvCache(pool, lower_tier=tier)
        pools.append(weakref.ref(pool))
        del pool, tier
    gc.collect()
    assert all(pool() is None for pool in pools)


def test_foreign_bytes_are_kept_by_every_part_of_their_region() -> None:
    owner = bytearray(1 << 16)
    region = kvmem.Region.from_buffer(owner)
    arena = kvmem.BumpArena(region)
    piece = arena.allocate(5)
    memoryview(piece)[:] = b"piece"
    region.close()
    del region, arena
    gc.collect()
    with pytest.raises(BufferError):
        owner.append(1)
    assert bytes(piece) == b"piece" == owner[piece.offset : piece.offset + 5]
    del piece
    owner.append(1)


def test_reachable_objects_are_never_cleared() -> None:
    """One thread collects while another holds locks and runs without the GIL."""
    # The collector looks at the objects of this test alone: those of others would take a minute.
    gc.collect()
    gc.freeze()
    tier = Tier()
    cache = kvmem.KvCache(kvmem.Pool(4 * MIB, pages="4k"), max_bytes=20_000, lower_tier=tier)
    tier.other = cache
    ended = threading.Event()

    def work() -> None:
        for key in range(2000):
            cache.insert(key, bytes(1000))
            with cache.reserve(key, 100) as room:
                room.write(b"x")
            cache.evict_to(10_000)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not ended.is_set():
        gc.collect()
    thread.join()
    gc.unfreeze()
    assert cache.lower_tier is tier and cache.stats().sink_failures == 0


def test_views_in_a_cycle_stay_valid_until_they_are_freed() -> None:
    """In whatever order the collector clears objects, no finalizer sees freed bytes."""
    seen: list[bytes] = []

    class Late:
        def __init__(self, view: memoryview) -> None:
            self.view, self.cycle = view, self

        def __del__(self) -> None:
            seen.append(bytes(self.view[:3]))

    for _ in range(20):
        owner = Exporter(b"abc" * 100)
        owner.other = Late(memoryview(kvmem.Region.from_buffer(owner)))
        del owner
    gc.collect()
    gc.collect()
    assert seen == [b"abc"] * 20


def test_small_objects_can_be_referred_to_weakly(pool: kvmem.Pool) -> None:
    space = kvmem.OffsetAllocator(1 << 20)
    for make in (lambda: pool.allocate(10), lambda: space.allocate(10)):
        for _ in range(600):  # more than the free list of the type has
            one = make()
            gone: list[object] = []
            reference = weakref.ref(one, gone.append)
            assert reference() is one
            del one
            assert reference() is None and gone == [reference]
    table: weakref.WeakKeyDictionary[kvmem.Block, str] = weakref.WeakKeyDictionary()
    block = pool.allocate(10)
    table[block] = "here"
    del block
    assert not table
