"""The store and the lower tier, in one process with a real cluster."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from cluster import ENVIRONMENT, Cluster, cluster
from conftest import LIMIT
from engines import examples
from kvmem.mooncake import (
    BatchError,
    ClusterFullError,
    ClusterTier,
    EngineMissingError,
    ObjectMissingError,
    Segment,
    Store,
    StoreError,
    UnreachableError,
    errors,
    serve,
)
from kvmem.mooncake.engine import Engine

__all__ = ["cluster"]

MIB = 1 << 20


@pytest.fixture(scope="module")
def segment(cluster: Cluster) -> Iterator[Segment]:
    with (
        kvmem.Pool("32MiB", pages="4k", shared=True) as pool,
        serve(pool, cluster.address, nbytes="24MiB") as segment,
    ):
        assert pool.metrics().allocated == 24 * MIB == segment.nbytes
        yield segment


@pytest.fixture(scope="module")
def connected(cluster: Cluster, segment: Segment) -> Iterator[Store]:
    with (
        kvmem.Pool("4MiB", pages="4k") as pool,
        Store(pool, master=cluster.address, deadline=LIMIT) as store,
    ):
        yield store


@pytest.fixture
def pool(connected: Store) -> Iterator[kvmem.Pool]:
    yield connected.pool
    gc.collect()
    assert connected.pool.metrics().allocated == 0
    connected.pool.check()


@pytest.fixture
def store(connected: Store, pool: kvmem.Pool) -> Iterator[Store]:
    yield connected
    connected.remove_matching(".*", force=True)


def data(seed: int, nbytes: int = 50_000) -> bytes:
    return random.Random(seed).randbytes(nbytes)


# Without the engine.


def test_a_missing_engine_is_reported_with_its_remedy() -> None:
    code = """
        import sys
        sys.modules["mooncake.store"] = None
        import kvmem.mooncake
        try:
            kvmem.mooncake.Store(kvmem.Pool("1MiB", pages="4k"))
        except ImportError as error:
            assert isinstance(error, kvmem.mooncake.EngineMissingError), error
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=LIMIT
    )
    assert "pip install 'mooncake-transfer-engine-non-cuda" in done.stdout, done.stderr
    assert issubclass(EngineMissingError, ImportError)


@pytest.mark.parametrize("version", ["0.3.12.post1", "0.4.0", "nightly"])
@pytest.mark.parametrize("wheel", ["-non-cuda", ""])
def test_other_releases_of_mooncake_raise(
    version: str, wheel: str, script: Callable[..., str]
) -> None:
    out = script(
        f"""
        import importlib.metadata, sys, types
        sys.modules["mooncake"] = types.ModuleType("mooncake")
        sys.modules["mooncake.store"] = types.ModuleType("mooncake.store")
        def installed(name):
            if name == "mooncake-transfer-engine{wheel}":
                return {version!r}
            raise importlib.metadata.PackageNotFoundError(name)
        importlib.metadata.version = installed
        import kvmem.mooncake, kvmem.storage
        pool = kvmem.Pool("1MiB", pages="4k", shared=True)
        for use in (kvmem.mooncake.Store, lambda pool: kvmem.mooncake.serve(pool, "127.0.0.1:9")):
            try:
                use(pool)
            except kvmem.storage.UnsupportedVersionError as error:
                print(error, error.remedy)
        # Nothing of the pool is kept.
        assert pool.metrics().allocated == 0
        pool.close()
        """
    )
    name = f"mooncake-transfer-engine{wheel}"
    assert out.count(f"{name} {version} is installed") == 2, out
    assert f"pip install '{name}>=0.3.13,<0.4'" in out


def test_codes_become_exceptions_with_messages() -> None:
    assert errors.check(7, "get", "k") == 7
    missing = errors.error(-704, "get", "k")
    assert isinstance(missing, ObjectMissingError) and isinstance(missing, KeyError)
    assert (missing.code, missing.key, str(missing)) == (
        -704,
        "k",
        "cannot get 'k': the object does not exist (code -704)",
    )
    assert isinstance(errors.error(-200, "put"), MemoryError)
    assert isinstance(errors.error(-900, "put"), ConnectionError)
    assert type(errors.error(-12345, "put")) is StoreError
    with pytest.raises(
        BatchError, match="2 of 3 objects failed; the first error: cannot put 'b'"
    ) as raised:
        errors.check_all([0, -800, -200], "put", ["a", "b", "c"])
    assert list(raised.value.failed) == ["b", "c"] and raised.value.code == -800
    assert errors.check_all([0, -704], "remove", ["a", "b"], but=(-704,)) == [0, -704]


# A segment.


def test_a_segment_is_the_memory_of_the_pool(cluster: Cluster, store: Store) -> None:
    """Objects are found in the pool's own memory, read through its file."""
    with kvmem.Pool("2MiB", pages="4k", shared=True) as pool:
        assert os.pread(pool.fileno(), 4096, 0) == bytes(4096)
        mark = data(99, 4096)
        with serve(pool, cluster.address, nbytes=MIB) as segment:
            assert pool.metrics().allocated == MIB
            with store.pool.allocate(4096) as block:
                block.write(mark)
                # The cluster chooses the segment: the smaller one gets some of many objects.
                for n in range(200):
                    store.put(f"mark{n}", block)
            found = os.pread(pool.fileno(), MIB, segment.offset)
            assert mark in found
        assert segment.closed and pool.metrics().allocated == 0
        segment.close()


@pytest.mark.parametrize("pages", ["4k", "thp,4k"])
def test_no_put_to_a_segment_waits_for_a_page(cluster: Cluster, pages: str) -> None:
    """The engine's own mapping of the file is as resident as the pool's."""
    with kvmem.Pool("6MiB", pages=pages, shared=True) as pool, serve(pool, cluster.address):
        # Files of other file systems may have the same number.
        status = os.fstat(pool.fileno())
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        resident: list[int] = []
        with open("/proc/self/smaps", encoding="ascii") as smaps:
            ours = False
            for line in smaps:
                words = line.split()
                if not words[0].endswith(":"):
                    ours = words[3:5] == [device, str(status.st_ino)]
                elif ours and words[0] == "Rss:":
                    resident.append(int(words[1]) << 10)
        assert resident == [pool.nbytes] * 2


def test_invalid_segments_raise(cluster: Cluster) -> None:
    with kvmem.Pool("1MiB", pages="4k") as private, pytest.raises(kvmem.KvmemError):
        serve(private, cluster.address)
    with kvmem.Pool("1MiB", pages="4k", shared=True) as pool:
        with pytest.raises(UnreachableError, match="the master does not answer"):
            serve(pool, "127.0.0.1:1", timeout=0)
        for address in ("nowhere", "host:", ":1", "host:99999"):
            with pytest.raises(ValueError, match="no HOST:PORT"):
                serve(pool, address)
        with pool.allocate(4096), pytest.raises(kvmem.OutOfSpaceError):
            serve(pool, cluster.address)
        assert pool.metrics().allocated == 0


def test_all_of_a_pool_with_boundaries_is_served(cluster: Cluster, store: Store) -> None:
    """The parts between boundaries are several segments for the cluster, and one object here."""
    with kvmem.Pool("3MiB", pages="4k", shared=True, boundary="512KiB") as pool:
        with pytest.raises(kvmem.OutOfSpaceError):
            pool.allocate(pool.capacity)
        with serve(pool, cluster.address) as segment:
            assert segment.ranges == [(start, MIB // 2) for start in range(0, 3 * MIB, MIB // 2)]
            assert (segment.offset, segment.nbytes) == (
                0,
                3 * MIB,
            ) and pool.metrics().allocated == 3 * MIB
            mark = data(98, 4096)
            with store.pool.allocate(4096) as block:
                block.write(mark)
                for n in range(600):
                    store.put(f"mark{n}", block)
            # The cluster puts objects into each of them.
            found = [
                mark in os.pread(pool.fileno(), nbytes, offset) for offset, nbytes in segment.ranges
            ]
            assert all(found), found
        assert segment.closed and pool.metrics().allocated == 0
        with serve(pool, cluster.address, nbytes="1280KiB") as segment:
            assert sorted(nbytes for _, nbytes in segment.ranges) == [MIB // 4, MIB // 2, MIB // 2]
            assert segment.nbytes == pool.metrics().allocated == 5 * MIB // 4
        with pytest.raises(kvmem.InvalidArgumentError, match="size"):
            serve(pool, cluster.address, nbytes="some")
        # If a part of the pool is in use, nothing is allocated.
        with pool.allocate(4096), pytest.raises(kvmem.OutOfSpaceError):
            serve(pool, cluster.address)
        assert pool.metrics().allocated == 0


def test_if_one_part_cannot_be_mounted_none_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted: list[str] = []
    unmounted: list[str] = []

    class Refuses:
        """The engine, whose third segment fails."""

        def __init__(self, client: object) -> None:
            self.client = client

        def __getattr__(self, name: str) -> object:
            return getattr(self.client, name)

        def mount_segment(self, *arguments: object) -> dict[str, object]:
            if len(mounted) == 2:
                return {"ret": -102, "segment_ids": []}
            client: Any = self.client
            found: dict[str, list[str]] = client.mount_segment(*arguments)
            mounted.extend(found["segment_ids"])
            return dict(found)

        def unmount_segment(self, ids: list[str], *arguments: object) -> object:
            unmounted.extend(ids)
            return self.client.unmount_segment(ids, *arguments)  # type: ignore[attr-defined]

    real = Engine.client.fget  # type: ignore[attr-defined]
    with (
        monkeypatch.context() as patch,
        kvmem.Pool("2MiB", pages="4k", shared=True, boundary="512KiB") as pool,
    ):
        patch.setattr(Engine, "client", property(lambda self: Refuses(real(self))))
        with pytest.raises(
            StoreError, match=r"cannot mount 524288 bytes of the memory from .* already mounted"
        ):
            serve(pool, cluster.address)
        assert len(mounted) == 2 and unmounted == mounted
        assert pool.metrics().allocated == 0
        patch.undo()
        with serve(pool, cluster.address) as segment:
            assert segment.nbytes == 2 * MIB


@pytest.mark.usefixtures("hugepages")
def test_a_segment_of_huge_pages(cluster: Cluster, store: Store) -> None:
    try:
        pool = kvmem.Pool("4MiB", pages="2M", strict=True, shared=True)
    except kvmem.MappingError as error:
        pytest.skip(f"no huge pages here: {error}")
    with pool, serve(pool, cluster.address) as segment:
        assert segment.nbytes == 4 * MIB
        with store.pool.allocate(MIB) as block:
            block.write(data(1, MIB))
            for n in range(6):
                store.put(f"huge{n}", block)
        assert all(bytes(store.get(f"huge{n}")) == data(1, MIB) for n in range(6))
        assert any(os.pread(pool.fileno(), 4 * MIB, 0))


# A store.


def test_blocks_go_there_and_back(store: Store, pool: kvmem.Pool) -> None:
    with pool.allocate(50_000) as block:
        block.write(data(1))
        store.put("k", block)
        with store.get("k") as found:
            assert bytes(found) == data(1) and found.offset != block.offset
        # Objects do not change without ``replace``.
        block.write(data(2))
        store.put("k", block)
        assert bytes(store.get("k")) == data(1)
        store.put("k", block, replace=True)
        assert bytes(store.get("k")) == data(2)
        store.put_from("part", block.offset + 100, 900)
        assert store.size("part") == 900
        assert store.get_into("part", block.offset, 50_000) == 900
        assert bytes(block)[:900] == data(2)[100:1000]
        assert (
            store.exists("part") and store.remove("part", force=True) and not store.exists("part")
        )
        assert store.exists_batch(["k", "part"]) == [True, False]
        assert store.remove_matching("^k$", force=True) == 1
    cache = kvmem.KvCache(pool)
    cache.insert("v", data(3))
    pinned = cache.get("v")
    assert pinned is not None
    store.put("pinned", pinned)
    with cache.reserve("w", 50_000) as room:
        store.get_parts("pinned", [room])
    assert bytes(cache.get("w") or b"") == data(3)


def test_memory_outside_the_pool_raises(store: Store) -> None:
    with kvmem.Pool("1MiB", pages="4k") as other, other.allocate(4096) as foreign:
        for failing in (
            store.put,
            lambda key, block: store.put_parts(key, [block]),
            lambda key, block: store.put_batch([key], [block]),
        ):
            with pytest.raises(kvmem.InvalidArgumentError, match="lies outside"):
                failing("foreign", foreign)
    with pytest.raises(TypeError):
        store.put("bytes", bytearray(100))  # type: ignore[arg-type]
    for offset, nbytes in ((-1, 10), (4 * MIB - 5, 10), (0, -1), (1 << 63, 10)):
        with pytest.raises(kvmem.InvalidArgumentError, match="lie outside"):
            store.put_from("range", offset, nbytes)
        with pytest.raises(kvmem.InvalidArgumentError, match="lie outside"):
            store.get_into("range", offset, nbytes)
    assert not store.exists("foreign") and not store.exists("bytes") and not store.exists("range")


def test_failures_leave_no_block_behind(store: Store, pool: kvmem.Pool) -> None:
    with pytest.raises(ObjectMissingError):
        store.get("none")
    with pool.allocate(3 * MIB) as block:
        store.put("large", block)
        with pytest.raises(kvmem.OutOfSpaceError):
            store.get("large")
        with pytest.raises(StoreError, match="shorter than the object"):
            store.get_into("large", block.offset, 100)
        with pytest.raises(ClusterFullError, match="no segment has enough free space"):
            for n in range(100):
                store.put(f"more{n}", block)
                # Recently read objects are not evicted. One may be before it is read, on a busy
                # machine: then there is room for another one.
                for earlier in range(n + 1):
                    store.exists(f"more{earlier}")
    assert pool.metrics().allocated == 0
    with pytest.raises(kvmem.InvalidArgumentError, match="2 keys and 0 blocks"):
        store.put_batch(["a", "b"], [])
    assert store.get_batch([]) == [] and store.get_batch(["none"]) == [None]
    assert store.remove("none") is False
    store.remove_batch(["none", "large"], force=True)


def test_a_block_cannot_be_freed_during_its_transfer(store: Store, pool: kvmem.Pool) -> None:
    block = pool.allocate(100)
    with store._places([block]), pytest.raises(kvmem.ExportedError):
        block.free()
    block.free()


def test_the_registration_ends_before_the_memory(cluster: Cluster) -> None:
    pool = kvmem.Pool("1MiB", pages="4k")
    store = Store(pool, master=cluster.address, deadline=LIMIT)
    at = pool.ptr
    pool.close()

    def mapped() -> bool:
        ranges = [
            line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()
        ]
        return any(int(start, 16) <= at < int(end, 16) for start, end in ranges)

    # The pool is closed, and the registered memory still exists.
    assert mapped()
    ends: list[object] = []
    weakref.finalize(store, ends.append, "gone")
    del store, pool
    gc.collect()
    assert ends == ["gone"] and not mapped()


def test_a_closed_store_and_a_forked_one_raise(store: Store, cluster: Cluster) -> None:
    with kvmem.Pool("1MiB", pages="4k") as pool:
        other = Store(pool, master=cluster.address, deadline=LIMIT)
        with pool.allocate(10) as block:
            other.close()
            other.close()
            with pytest.raises(kvmem.ClosedError):
                other.put("k", block)
    child = os.fork()
    if child == 0:
        try:
            store.exists("k")
        except kvmem.ForkedError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# The lower tier.


@pytest.fixture
def tier(cluster: Cluster, store: Store) -> Iterator[ClusterTier]:
    with ClusterTier(
        cluster.address, prefix="t/", staging_bytes="4MiB", engine={"deadline": LIMIT}
    ) as tier:
        assert tier.wait(LIMIT), tier.stats()
        yield tier


def test_memory_above_a_disk_above_a_cluster(
    tier: ClusterTier, pool: kvmem.Pool, tmp_path: Path
) -> None:
    with (
        kvmem.DiskTier(tmp_path / "tier", bytes="1MiB") as disk,
        kvmem.KvCache(
            pool,
            max_bytes=300_000,
            lower_tier=kvmem.Chain(disk, tier),
            write_behind="256KiB",
        ) as cache,
    ):
        for n in range(40):
            cache.insert(n, data(n))
        cache.evict_to(0)
        assert cache.flush(LIMIT) and tier.flush(LIMIT)
        assert tier.stats().stored == 40 and disk.stats().evictions > 10
        for first in reversed(range(0, 40, 4)):
            found = cache.get_batch(range(first, first + 4))
            assert [one and bytes(one) for one in found] == [data(first + n) for n in range(4)]
            del found
        assert disk.stats().hits > 5 and tier.stats().fetched > 10
        cache.evict_to(0)
        found = cache.start_fetch(range(4)).result(LIMIT)
        assert [one and bytes(one) for one in found] == [data(n) for n in range(4)]
        del found
        cache.remove(3)
        assert cache.get(3) is None and cache.flush(LIMIT) and tier.flush(LIMIT)
        disk.clear()
        assert cache.get(3) is None
        cache.clear()
        assert cache.get_batch(range(40)) == [None] * 40
        stats = tier.stats()
        assert (stats.corrupt, stats.failed, stats.hangs) == (0, 0, 0), stats


def test_corrupt_values_are_never_returned(
    tier: ClusterTier, store: Store, pool: kvmem.Pool
) -> None:
    with kvmem.KvCache(pool, lower_tier=tier) as cache:
        for key in (b"k", b"short", b"swapped"):
            cache.insert(key, data(1))
        cache.evict_to(0)
        names = {key: f"t/{key.hex()}" for key in (b"k", b"short", b"swapped")}
        with store.get(names[b"k"]) as whole, pool.allocate(8) as tiny:
            assert bytes(whole)[:50_000] == data(1) and whole.nbytes > 50_000
            # Another key's value with its trailer.
            store.put(names[b"swapped"], whole, replace=True)
            memoryview(whole)[20_000] ^= 1
            store.put(names[b"k"], whole, replace=True)
            store.put(names[b"short"], tiny, replace=True)
        assert cache.get_batch(names) == [None] * 3
        assert tier.stats().corrupt == 2 and tier.flush(LIMIT)
        assert store.exists_batch([names[b"k"], names[b"swapped"]]) == [False, False]


# Ends.


def test_nothing_need_be_closed_at_exit(cluster: Cluster, segment: Segment) -> None:
    """A segment, a store and a cache with values on their way are not closed: they end in order,
    without an error."""
    code = f"""
        import kvmem
        from kvmem.mooncake import ClusterTier, Store, serve
        lent = kvmem.Pool("4MiB", pages="4k", shared=True)
        segment = serve(lent, "{cluster.address}")
        pool = kvmem.Pool("4MiB", pages="4k")
        store = Store(pool, master="{cluster.address}")
        tier = ClusterTier("{cluster.address}")
        cache = kvmem.KvCache(pool, max_bytes="1MiB", lower_tier=tier, write_behind="1MiB")
        for n in range(60):
            cache.insert(n, bytes([n]) * 50_000)
        print(segment.name)
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    # The master would have the segment of a process that ended without unmounting it.
    assert segment.name in cluster.segments() and name not in cluster.segments()


def test_the_example_of_the_page_runs(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(examples("../distributed.md", "Mooncake Store"), encoding="utf-8")
    environment = {**ENVIRONMENT, "MASTER": cluster.address}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "cannot look for 'never put': the object does not exist" in done.stdout
    assert "ClusterTierStats(" in done.stdout


# The command.


def serve_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvmem", "serve-mooncake", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=ENVIRONMENT)


def test_the_command_reports_errors(cluster: Cluster) -> None:
    assert "HOST:PORT" in serve_command("--help").stdout
    assert serve_command("--size", "nonsense").returncode == 2
    wrong = serve_command("--size", "1MiB", "--master", "nowhere")
    assert wrong.returncode == 2 and "no HOST:PORT" in wrong.stderr
    for option, value, words in (
        ("--deadline", "0", "is no deadline"),
        ("--host", "192.0.2.77", "no address of this machine"),
        ("--peers", "everybody", "give networks such as"),
    ):
        wrong = serve_command(
            "--size", "1MiB", "--master", cluster.address, "--pages", "4k", option, value
        )
        assert wrong.returncode == 2 and words in wrong.stderr, wrong.stderr
    alone = serve_command(
        "--size", "1MiB", "--master", "127.0.0.1:1", "--timeout", "0", "--pages", "4k"
    )
    assert alone.returncode == 1 and "the master does not answer" in alone.stderr
    large = serve_command("--size", "1000TiB", "--master", cluster.address)
    assert large.returncode == 1 and "cannot give" in large.stderr
