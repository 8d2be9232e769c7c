"""Values on a disk: alone and below a cache, after a restart, in damaged files, with wrong options,
in threads and in forked children.
"""

from __future__ import annotations

import doctest
import errno
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import LIMIT, MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def tier(path: Path) -> Iterator[kvmem.DiskTier]:
    with kvmem.DiskTier(path, bytes="16MiB") as tier:
        yield tier


def test_values_come_back_under_keys_of_each_type(tier: kvmem.DiskTier) -> None:
    values: dict[int | bytes | str, bytes] = {
        1: b"an int",
        b"1": b"bytes",
        "1": b"a str",
        -(2**127): b"",
        "ü" * 1000: bytes(range(256)) * 100,
        b"\0kvmem key:i" + (1).to_bytes(16, "little"): b"bytes that look like the form of an int",
    }
    tier.store(values)
    assert tier.fetch(values) == list(values.values())
    assert tier.fetch([2, "2", b"2"]) == [None] * 3
    assert len(tier) == len(values) and bool(tier) and 1 in tier and 2 not in tier
    assert tier.len_of("ü" * 1000) == 25_600 and tier.len_of(2) is None
    assert tier.remove([1, 2, "1"]) == 2 and tier.fetch([1, b"1"]) == [None, b"bytes"]
    tier.clear()
    assert len(tier) == 0 and tier and tier.fetch([b"1"]) == [None]


def test_any_buffer_is_stored(tier: kvmem.DiskTier, pool: kvmem.Pool) -> None:
    block = pool.allocate(8192, align=4096)
    block.write(b"block" * 1000)
    array = bytearray(b"array" * 500)
    tier.store([("array", array), ("block", block), ("slice", memoryview(array)[5:10])])
    # Of two values with one key the later one counts.
    tier.store([("twice", b"1"), ("twice", b"22")])
    found = tier.fetch(["array", "block", "slice", "twice"])
    assert found == [bytes(array), bytes(block), b"array", b"22"]
    with pytest.raises(kvmem.InvalidBufferError, match="not contiguous"):
        tier.store({"strided": memoryview(array)[::2]})
    for wrong in (["xy"], [("key",)], 7, [("key", 7)], [(1.5, b"x")]):
        with pytest.raises(TypeError):
            tier.store(wrong)  # type: ignore[arg-type]


def test_values_are_read_into_memory_of_the_caller(tier: kvmem.DiskTier, pool: kvmem.Pool) -> None:
    tier.store({"long": b"x" * 10_000, "short": b"y" * 10, "empty": b""})
    block = pool.allocate(12_288, align=4096)
    rest = bytearray(b"-" * 20)
    keys = ["long", "short", "none", "empty"]
    lengths = tier.fetch_into(keys, [block, rest, bytearray(9), bytearray()])
    assert lengths == [10_000, 10, None, 0]
    assert bytes(block)[:10_000] == b"x" * 10_000 and rest == b"y" * 10 + b"-" * 10
    # Parts of one buffer.
    view = memoryview(block)
    assert tier.fetch_into(["short", "short"], [view[:10], view[10:20]]) == [10, 10]
    del view
    for buffers, text in (
        ([bytearray(9_999)], "buffer 0 has 9999 bytes, and the value 10000"),
        ([b"read-only"], "read-only"),
        ([memoryview(bytearray(40_000))[::4]], "not contiguous"),
    ):
        with pytest.raises(kvmem.InvalidBufferError, match=text):
            tier.fetch_into(["long"], buffers)
    both = memoryview(bytearray(20_000))
    with pytest.raises(kvmem.InvalidBufferError, match="share bytes"):
        tier.fetch_into(["long", "short"], [both[:10_000], both[9_999:]])
    with pytest.raises(kvmem.InvalidArgumentError, match="1 buffers for 2 keys") as caught:
        tier.fetch_into(["long", "short"], [bytearray(10_000)])
    assert (caught.value.value, caught.value.limit) == (1, 2)


def store_and_die(script: Callable[..., str], path: Path, values: str) -> None:
    """Stores values in a process that is killed before it closes the tier."""
    script(
        f"""
        import kvmem, os
        tier = kvmem.DiskTier({str(path)!r})
        tier.store({values})
        os.kill(os.getpid(), 9)
        """,
        status=-9,
    )


def damage(path: Path, value: bytes) -> None:
    """Changes a byte of a value in the file."""
    content = bytearray(path.read_bytes())
    at = content.index(value)
    content[at + len(value) // 2] ^= 1
    path.write_bytes(content)


def test_wrong_options_name_value_limit_and_remedy(path: Path) -> None:
    cases: list[tuple[dict[str, Any], object, object, str]] = [
        ({"bytes": 5000}, 5000, None, "5000 bytes, which leaves no block for values: enlarge it"),
        ({"bytes": 0}, 0, 1, "bytes is 0: give at least 1, or None"),
        ({"bytes": "16MiB", "max_entries": 2**63}, 16 * MIB, 2**64 - 1, "allow fewer entries"),
        ({"bytes": "16MiB", "max_entries": 0}, 0, 1, "max_entries is 0: give a number from 1"),
        ({"bytes": MIB, "max_write_bytes_per_s": 0}, 0, 1, "max_write_bytes_per_s is 0"),
        ({"verify": "some"}, None, None, 'verify is "some": give lazy or all'),
        (
            {"admission": "none"},
            None,
            None,
            'admission is "none": give all or second_eviction, or a callable',
        ),
        ({"eviction": "random"}, None, None, 'eviction is "random": give lru or fifo'),
    ]
    for options, value, limit, text in cases:
        with pytest.raises(kvmem.InvalidArgumentError) as caught:
            kvmem.DiskTier(path, **options)
        error = caught.value
        assert text in str(error), error
        assert error.value == value and (limit is None or error.limit == limit), error.details
    assert not path.exists()
    # The limit is what would do.
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        kvmem.DiskTier(path, bytes=5000)
    with kvmem.DiskTier(path, bytes=caught.value.limit) as tier:
        tier.store({"key": b"value"})


def test_paths_that_cannot_be_a_tier(path: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    cases: list[tuple[Path, dict[str, Any], int | None, str]] = [
        (path, {}, errno.ENOENT, "give `bytes`, the length of a new file"),
        (tmp_path / "none" / "tier", {"bytes": MIB}, errno.ENOENT, "make its folder"),
        (tmp_path, {"bytes": MIB}, errno.EISDIR, "the path of a file or block device"),
        (fifo, {"bytes": MIB}, errno.ESPIPE, "the path of a file or block device"),
        (path, {"bytes": 2**62}, None, "`bytes`"),
        (path, {"bytes": 2**63}, None, "`bytes`"),
    ]
    for where, options, number, remedy in cases:
        with pytest.raises(kvmem.DiskTierError) as caught:
            kvmem.DiskTier(where, **options)
        error = caught.value
        assert isinstance(error, OSError) and error.path == where
        assert remedy in (error.remedy or "") and remedy in str(error), error
        assert error.requested == options.get("bytes")
        assert error.errno == number if number else error.errno, error
    for wrong in (7, None, b"bytes", 1.5):
        with pytest.raises(TypeError):
            kvmem.DiskTier(wrong)  # type: ignore[arg-type]


def test_a_file_becomes_as_long_as_it_is_opened(path: Path) -> None:
    with kvmem.DiskTier(path, bytes=16 * MIB) as tier:
        for key in range(14):
            tier.store({key: bytes([key]) * MIB})
    for size, least in ((4 * MIB, 2), (8 * MIB, 2)):
        with kvmem.DiskTier(path, bytes=size) as tier:
            assert path.stat().st_size == size and least <= len(tier) < 4
            assert tier.fetch([0, 13]) == [None, bytes([13]) * MIB]
    with pytest.raises(kvmem.DiskTierError, match=r"cannot become 5000 bytes.*bytes or more"):
        kvmem.DiskTier(path, bytes=5000)
    with kvmem.DiskTier(path) as tier:
        assert path.stat().st_size == 8 * MIB and 13 in tier


def test_a_value_that_is_too_long(tier: kvmem.DiskTier) -> None:
    tier.store({"key": b"old"})
    with pytest.raises(kvmem.OutOfSpaceError, match="holds values of at most") as caught:
        tier.store({"key": bytes(17 * MIB), "other": b"stored all the same"})
    assert caught.value.requested == 17 * MIB and 0 < (caught.value.limit or 0) < 16 * MIB
    assert caught.value.failed == ["key"]
    # Not the old value either.
    assert tier.fetch(["key", "other"]) == [None, b"stored all the same"]


def test_one_process_uses_a_file_at_a_time(path: Path, tier: kvmem.DiskTier) -> None:
    begin = time.monotonic()
    with pytest.raises(kvmem.DiskTierError, match=r"open already.*close it there") as caught:
        kvmem.DiskTier(path)
    assert time.monotonic() - begin < LIMIT and caught.value.remedy
    tier.close()
    tier.close()
    assert tier.closed and "closed" in repr(tier)
    for use in (
        lambda: tier.fetch(["key"]),
        lambda: tier.store({}),
        lambda: tier.stats(),
        lambda: len(tier),
        lambda: tier.sync(),
    ):
        with pytest.raises(kvmem.ClosedError, match="disk tier has been closed"):
            use()
    with kvmem.DiskTier(path) as again:
        assert "0 values" in repr(again) and again.path == path


def test_figures(tier: kvmem.DiskTier) -> None:
    tier.store({n: bytes(5000) for n in range(10)})
    stats = tier.stats()
    assert (stats.entries, stats.bytes, stats.stored) == (10, 50_000, 10)
    assert stats.used == stats.written_bytes == 10 * 8192 and stats.metadata_bytes > 0
    assert stats.write_amplification > 1 and not stats.read_only
    assert 0 < stats.capacity < 16 * MIB and stats.index_bytes > 0
    assert tier.engine in ("io_uring", "threads") and isinstance(tier.direct, bool)
    # Without a value there is no amplification.
    assert stats._replace(written_bytes=0).write_amplification == 0.0


# Below a cache.


def value(key: int, version: int = 0) -> bytes:
    return (key << 32 | version).to_bytes(8, "little") * (1000 + key % 7 * 100)


def test_a_queue_needs_a_tier_and_some_bytes(tier: kvmem.DiskTier, pool: kvmem.Pool) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"write_behind": MIB}, "needs a lower_tier"),
        ({"lower_tier": tier, "write_behind": 0}, "write_behind is 0"),
    ]
    for options, words in cases:
        with pytest.raises(kvmem.InvalidArgumentError, match=words):
            kvmem.KvCache(pool, **options)


def test_other_threads_run_while_the_disk_works(tier: kvmem.DiskTier) -> None:
    """The GIL is released: a thread counts while another one stores and fetches."""
    stop, counted = threading.Event(), 0

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        end = time.monotonic() + LIMIT
        before = -1
        while counted < 100 or before < 0:
            before = counted
            tier.store({n: bytes(100_000) for n in range(20)})
            assert None not in tier.fetch(range(20))
            assert time.monotonic() < end
    finally:
        stop.set()
        thread.join()


Key = int | bytes | str


def made(path: Path, several: bool, admission: Any) -> kvmem.DiskTier | kvmem.TierSet:
    if several:
        paths = [path.with_name("a"), path.with_name("b")]
        return kvmem.TierSet(paths, bytes="16MiB", admission=admission)
    return kvmem.DiskTier(path, bytes="16MiB", admission=admission)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("write_behind", [None, "1MiB"])
def test_a_callable_chooses_the_values_that_are_written(
    path: Path, pool: kvmem.Pool, several: bool, write_behind: str | None
) -> None:
    views: list[memoryview] = []
    seen: dict[Key, bytes] = {}

    def is_even(key: Key, bytes_of_it: memoryview) -> bool:
        assert bytes_of_it.readonly
        views.append(bytes_of_it)
        seen[key] = bytes(bytes_of_it)
        return isinstance(key, int) and key % 2 == 0

    with made(path, several, is_even) as tier:
        with kvmem.KvCache(pool, lower_tier=tier, write_behind=write_behind) as cache:
            for key in range(20):
                cache.insert(key, value(key))
            cache.insert("text", b"text")
            cache.insert(b"bytes", b"bytes")
            cache.evict_to(0)
        assert seen == {key: value(key) for key in range(20)} | {
            "text": b"text",
            b"bytes": b"bytes",
        }
        assert [key for key in seen if key in tier] == [n for n in seen if n in range(0, 20, 2)]
        assert len(tier) == 10 and tier.stats().not_admitted == 12
        for view in views:
            with pytest.raises(ValueError, match="released"):
                len(view)
        # The program's own values are written without a question.
        tier.store({1: b"odd"})
        assert tier.fetch([1]) == [b"odd"] and len(views) == 22


def test_a_callable_that_raises_admits_nothing(
    path: Path, pool: kvmem.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: raised.append(info.exc_value))
    error = LookupError("no such prefix")
    stop = KeyboardInterrupt()

    def admission(key: Key, _: memoryview) -> bool:
        raise stop if key == "stop" else error

    with (
        kvmem.DiskTier(path, bytes="16MiB", admission=admission) as tier,
        kvmem.KvCache(pool, lower_tier=tier) as cache,
    ):
        tier.store({"key": b"older"})
        cache.insert("key", b"newer")
        cache.evict_to(0)
        assert raised == [error] and tier.stats().not_admitted == 1
        assert tier.fetch(["key"]) == [None], "the older value is not taken for the newer one"
        cache.insert("stop", b"value")
        with pytest.raises(KeyboardInterrupt):
            cache.evict_to(0)
        assert raised == [error] and len(tier) == 0


def test_threads_that_evict_call_the_callable(path: Path) -> None:
    """None waits for another one: each gets the GIL, and the order of its key."""

    def admission(key: Key, _: memoryview) -> bool:
        time.sleep(0)
        return isinstance(key, int) and key % 2 == 0

    with (
        kvmem.Pool("4MiB", pages="4k") as pool,
        kvmem.DiskTier(path, bytes="16MiB", admission=admission) as tier,
        kvmem.KvCache(pool, max_bytes=20_000, lower_tier=tier) as cache,
    ):

        def work() -> None:
            for n in range(200):
                cache.insert(n % 16, bytes(2000))
                tier.remove([n % 16])
                cache.get_batch([(n + 5) % 16])

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "the threads wait for each other"
        assert tier.stats().not_admitted > 0 and cache.stats().sink_failures == 0


@pytest.mark.parametrize("wrong", [7, None, b"all", ["all"]])
def test_admission_is_a_word_or_a_callable(path: Path, wrong: Any) -> None:
    for several in (False, True):
        with pytest.raises(TypeError, match='"all", "second_eviction", or a callable') as caught:
            made(path, several, wrong)
        assert f"not {type(wrong).__name__}" in str(caught.value)
    assert not path.exists()


def test_a_tier_in_use_is_not_collected(path: Path, pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool, lower_tier=kvmem.DiskTier(path, bytes="16MiB"))
    gc.collect()
    cache.insert("key", b"value")
    cache.evict_to(0)
    assert isinstance(cache.lower_tier, kvmem.DiskTier) and len(cache.lower_tier) == 1
    found = cache.get("key")
    assert found is not None and bytes(found) == b"value"
    del found, cache
    gc.collect()
    # The file is free again.
    kvmem.DiskTier(path).close()


def test_the_doctor_examines_a_path(path: Path, tier: kvmem.DiskTier) -> None:
    def verdict(where: Path, name: str) -> str:
        found = kvmem.doctor(4096, pinned=False, tier=where, tier_size="1MiB")
        return str(next(each["verdict"] for each in found["checks"] if each["name"] == name))

    assert verdict(path, "tier.lock") == "fail"
    tier.close()
    assert verdict(path, "tier.lock") == "ok"
    assert verdict(path.parent, "tier.path") == "fail"
    assert verdict(path.parent / "new", "tier.path") == "ok"


def test_the_examples_of_the_docstrings() -> None:
    """They print what they show."""
    finder = doctest.DocTestFinder(recurse=False)
    ran = 0
    for name, item in (
        ("DiskTier", kvmem.DiskTier),
        ("get_batch", kvmem.KvCache.get_batch),
        ("start_fetch", kvmem.KvCache.start_fetch),
        ("TierSet", kvmem.TierSet),
    ):
        for each in finder.find(item, name, module=False, globs={"kvmem": kvmem}):
            result = doctest.DocTestRunner().run(each)
            assert result.failed == 0 and result.attempted >= 3
            ran += 1
    assert ran == 4


@pytest.mark.parametrize("several", [False, True])
def test_regions_are_registered(tmp_path: Path, several: bool) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    tier = (
        kvmem.TierSet(paths, bytes="16MiB") if several else kvmem.DiskTier(paths[0], bytes="16MiB")
    )
    region = kvmem.Region("4MiB", pages="4k", shared=True, populate=1)
    try:
        tier.register_region(region)
    except kvmem.NotAvailableError as error:
        pytest.skip(str(error))
    tier.register_region(region)
    files = 2 if several else 1
    assert tier.stats().fixed_buffer_bytes == files * region.nbytes, "each file has it once"
    memory = memoryview(region)
    memory[:65536] = bytes(range(256)) * 256
    tier.store({1: memory[:65536]})
    assert tier.fetch_into([1], [memory[1 << 20 : (1 << 20) + 65536]]) == [65536]
    assert memory[1 << 20 : (1 << 20) + 65536] == memory[:65536]
    assert tier.stats().fixed_buffer_transfers == 2
    with pytest.raises(kvmem.InUseError):
        region.discard()
    tier.deregister_region(region)
    tier.deregister_region(region)
    assert tier.stats().fixed_buffer_bytes == 0
    # The bytes of another object stay exported while they are registered.
    other = bytearray(1 << 20)
    over = kvmem.Region.from_buffer(other)
    tier.register_region(over)
    with pytest.raises(BufferError):
        other.append(1)
    over.close()
    with pytest.raises(BufferError):
        other.append(1)
    with pytest.raises(kvmem.ClosedError):
        tier.register_region(over)
    tier.close()
    with pytest.raises(kvmem.ClosedError):
        tier.register_region(region)


def test_a_file_that_is_not_open_is_inspected(
    path: Path, tier: kvmem.DiskTier, script: Callable[..., str]
) -> None:
    values = "{n: bytes([n]) * (1000 * (n + 1)) for n in range(5)}"
    tier.store(eval(values))
    with pytest.raises(kvmem.DiskTierError, match="is open as a tier") as caught:
        kvmem.DiskTier.inspect(path)
    assert caught.value.path == path and caught.value.remedy is not None
    engine, direct, stats = tier.engine, tier.direct, tier.stats()
    tier.clear()
    tier.close()
    store_and_die(script, path, values)
    before = path.read_bytes()
    found = kvmem.DiskTier.inspect(path)
    assert isinstance(found, kvmem.DiskTierInspection)
    assert (found.entries, found.value_bytes, found.used_bytes) == (5, 15_000, stats.used)
    assert found.unverified_values == 5
    assert (found.min_bytes, found.median_bytes, found.max_bytes) == (1000, 3000, 5000)
    assert found.file_bytes == found.tier_bytes == 16 * MIB and found.superblocks == 2
    assert found.capacity == stats.capacity == found.used_bytes + found.free_bytes
    assert found.longest_free_bytes == found.free_bytes and found.scattered == 0
    assert (found.quarantined, found.quarantined_bytes, found.dropped) == (0, 0, 0)
    assert found.journal_changes == 5 and 0 < found.journal_blocks <= found.max_journal_blocks
    assert (found.has_io_uring, found.direct) == (engine == "io_uring", direct)
    assert found.format_version == 2 and abs(found.modified_ns / 1e9 - time.time()) < LIMIT
    assert len(found.identity) == 32 and int(found.identity, 16) > 0 and found.max_entries >= 512
    assert 0 < found.since <= time.time() and found.lifetime_bytes > stats.lifetime_bytes
    assert stats.bytes_per_day == stats.lifetime_bytes > 15_000
    assert found.utilization == 15_000 / found.capacity
    assert path.read_bytes() == before
    with kvmem.DiskTier(path) as tier:
        tier.clear()
    found = kvmem.DiskTier.inspect(str(path))
    assert found.entries == found.min_bytes == found.median_bytes == found.max_bytes == 0
    assert found.generation > 1 and found.epoch > 1 and found.checkpoint_changes <= 5


def test_damaged_values_are_named_by_a_verification(path: Path, tier: kvmem.DiskTier) -> None:
    values = {n: bytes([65 + n]) * 10_000 for n in range(4)}
    tier.store(values)
    tier.close()
    reports: list[tuple[int, int]] = []
    progress = lambda done, total: reports.append((done, total))  # noqa: E731
    result = kvmem.DiskTier.verify(path, progress=progress)
    assert isinstance(result, kvmem.DiskTierVerification)
    assert (result.entries, result.nbytes, result.damaged, result.dropped) == (4, 49_152, 0, 0)
    assert result.damaged_values == () and result.seconds > 0
    assert reports == [(0, 49_152), (49_152, 49_152)]
    damage(path, values[1])
    damage(path, values[3])
    before = path.read_bytes()
    result = kvmem.DiskTier.verify(path)
    assert result.damaged == 2 and path.read_bytes() == before
    for value, n in zip(result.damaged_values, (1, 3), strict=True):
        assert (value.nbytes, value.ranges, value.damage, value.errno) == (
            10_000,
            1,
            "checksum",
            None,
        )
        assert not value.unverified
        assert before[value.offset :][:4096].count(65 + n) >= 4095 and len(value.digest) == 32
    result = kvmem.DiskTier.verify(path, max_damaged_values=1)
    assert result.damaged == 2 and len(result.damaged_values) == 1


def test_a_verification_ends_with_the_exception_of_its_callable(
    path: Path, tier: kvmem.DiskTier
) -> None:
    tier.store({"key": b"value" * 1000})
    tier.close()

    def progress(done: int, total: int) -> None:
        raise LookupError(f"{done} of {total}")

    with pytest.raises(LookupError, match="0 of 8192"):
        kvmem.DiskTier.verify(path, progress=progress)
    # The file is closed.
    kvmem.DiskTier(path).close()


def test_files_that_cannot_be_inspected(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else" * 10_000)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for look in (kvmem.DiskTier.inspect, kvmem.DiskTier.verify):
        for path, words, number in (
            (other, "it is no disk tier", None),
            (tmp_path / "none", "No such file", errno.ENOENT),
            (tmp_path, "neither a file nor a block device", None),
            (fifo, "neither a file nor a block device", None),
        ):
            with pytest.raises(kvmem.DiskTierError, match=words) as caught:
                look(path)
            assert (caught.value.path, caught.value.errno) == (path, number)
            assert caught.value.remedy is not None
    with pytest.raises(kvmem.InvalidArgumentError, match="max_damaged_values"):
        kvmem.DiskTier.verify(other, max_damaged_values=-1)
    with pytest.raises(TypeError):
        kvmem.DiskTier.verify(other, progress=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("several", [False, True])
def test_a_tier_with_dsync_is_durable_at_once(path: Path, several: bool) -> None:
    options: dict[str, Any] = {"bytes": "16MiB", "dsync": True}
    if several:
        tier: Any = kvmem.TierSet([path], **options)
    else:
        tier = kvmem.DiskTier(path, **options)
    with tier:
        tier.store({"key": b"value"})
    found = kvmem.DiskTier.inspect(path)
    assert (found.entries, found.unverified_values) == (1, 0)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'journal_bytes'"):
        kvmem.DiskTier(path, journal_bytes="64KiB")  # type: ignore[call-arg]


READER = """
import sys, kvmem
with kvmem.DiskTier(sys.argv[1], key_file=sys.argv[2]) as tier:
    found = tier.fetch(range(40))
    stats = tier.stats()
print(sum(value is not None for value in found), stats.key_misses, stats.tag_misses)
"""


def test_values_are_read_by_processes_with_their_key_alone(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digits = {name: name * 64 for name in "ab"}

    def keys(*names: str) -> Path:
        file = tmp_path / f"keys-{'-'.join(names)}"
        file.write_text("# a comment\n" + "\n".join(digits[name] for name in names))
        file.chmod(0o400)
        return file

    def read(file: Path) -> str:
        run = [sys.executable, "-c", READER, str(path), str(file)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=LIMIT)
        assert not any(key in done.stdout + done.stderr for key in digits.values())
        return done.stdout.strip()

    numbers = random.Random(1)
    # Numbers of few exponents, as those of keys and values of a model are.
    values = [
        b"".join(numbers.randrange(0x3F00, 0x4000).to_bytes(2, "little") for _ in range(10_000))
        for _ in range(40)
    ]
    total = sum(map(len, values))
    with kvmem.DiskTier(path, bytes="16MiB", codec="auto", key_file=keys("a")) as tier:
        for number, value in enumerate(values):
            name = "tenant" if number < 10 else b"other"
            tier.store({number: value}, data_type="bfloat16", namespace=name)
        stats = tier.stats()
        assert stats.encoded_before_bytes == total == stats.bytes
        assert stats.encoded_after_bytes < 0.75 * total and stats.encode_ns > 0
        assert tier.fetch([0]) == [values[0]] and tier.stats().decode_ns > 0
    assert read(keys("a")) == "40 0 0"
    assert read(keys("b")) == "0 40 0"
    assert read(keys("b", "a")) == "40 0 0"
    found = kvmem.DiskTier.inspect(path)
    assert (found.encrypted, found.namespaces, found.format_version) == (40, 2, 3)
    assert found.stored_bytes < 0.75 * found.value_bytes
    verified = kvmem.DiskTier.verify(path, key_file=keys("b"))
    assert verified.damaged == 40 and verified.damaged_values[0].damage == "encoding"
    assert kvmem.DiskTier.verify(path, key_file=keys("a")).damaged == 0
    with kvmem.TierSet([path], key_file=keys("b", "a")) as tiers:
        assert (tiers.forget_namespace("tenant"), tiers.forget_namespace("nobody")) == (10, 0)
        assert tiers.fetch([9]) == [None] and tiers.fetch([10]) == [values[10]]
    assert read(keys("a")) == "30 0 0"
    with pytest.raises(kvmem.InvalidArgumentError, match=r"codec is .zip.: give none or auto"):
        kvmem.DiskTier(path, codec="zip")
    open_to_all = tmp_path / "open"
    open_to_all.write_text(digits["a"])
    open_to_all.chmod(0o640 | 0o004)
    with pytest.raises(kvmem.InvalidArgumentError, match=r"mode 0644.*chmod 0400") as mode:
        kvmem.DiskTier(path, key_file=open_to_all)
    assert str(open_to_all) in str(mode.value)
    with pytest.raises(kvmem.DiskTierError, match="cannot read the key file") as missing:
        kvmem.DiskTier(path, key_file=tmp_path / "none")
    assert missing.value.errno == errno.ENOENT
    assert not any(key in caplog.text for key in digits.values())
