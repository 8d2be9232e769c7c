"""Several disk tiers: in a set, in a chain, what a full one evicts first, and registered memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import MIB, until


def value(key: int) -> bytes:
    return key.to_bytes(8, "little") * (600 + key % 7)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"nvme{n}" for n in range(3)]


@pytest.fixture
def tiers(paths: list[Path]) -> Iterator[kvmem.TierSet]:
    with kvmem.TierSet(paths, bytes="8MiB") as tiers:
        yield tiers


def test_a_set_spreads_keys_and_finds_them_in_any_order(
    paths: list[Path], tiers: kvmem.TierSet
) -> None:
    values: dict[int | str, bytes] = {key: value(key) for key in range(300)}
    values["text"] = b"of a key of another type"
    tiers.store(values)
    assert tiers.fetch(values) == list(values.values()) and tiers.fetch([b"none"]) == [None]
    assert len(tiers) == 301 and 5 in tiers and b"5" not in tiers and bool(tiers)
    assert tiers.len_of(5) == len(value(5)) and tiers.remove([5, 5, 1000]) == 1
    into = bytearray(10_000)
    assert tiers.fetch_into([6, 5], [into, bytearray()]) == [len(value(6)), None]
    assert into[: len(value(6))] == value(6)
    stats = tiers.stats()
    assert stats.entries == 300 and stats.stored == 301 and stats.capacity > 16 * MIB
    tiers.sync()
    tiers.checkpoint()
    assert tiers.paths == paths and [one and one.created for one in tiers.reports] == [True] * 3
    assert "3 tiers, 300 values" in repr(tiers)
    tiers.close()
    tiers.close()
    assert tiers.closed and "closed" in repr(tiers)
    with pytest.raises(kvmem.ClosedError, match="disk tier has been closed"):
        tiers.fetch([1])
    with kvmem.TierSet(reversed(paths)) as turned:
        reports = [one for one in turned.reports if one is not None]
        assert sum(one.entries for one in reports) == 300
        assert all(one.entries > 50 and not one.created for one in reports)
        assert turned.fetch([7, "text"]) == [value(7), values["text"]]
        turned.clear()
        assert len(turned) == 0 and turned


def test_a_set_goes_on_without_a_device(
    paths: list[Path], tiers: kvmem.TierSet, caplog: pytest.LogCaptureFixture
) -> None:
    tiers.store({key: value(key) for key in range(300)})
    tiers.close()
    lost = paths[1].rename(paths[1].with_suffix(".lost"))
    with pytest.raises(kvmem.DiskTierError) as caught:
        kvmem.TierSet(paths)
    assert caught.value.path == paths[1] and caught.value.errno == errno.ENOENT
    with kvmem.TierSet(paths, available=True) as rest:
        assert rest.reports[1] is None
        found = rest.fetch(range(300))
        entries = [one.entries for one in rest.reports if one is not None]
        assert len(entries) == 2 and sum(entries) == sum(one is not None for one in found)
        assert all(one in (None, value(key)) for key, one in enumerate(found))
        assert any(
            "without a tier" in line.message and "nvme1" in line.message for line in caplog.records
        )
    lost.rename(paths[1])
    with kvmem.TierSet(paths, available=True) as again:
        assert None not in again.reports and None not in again.fetch(range(300))


def test_wrong_options_of_a_set(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(kvmem.InvalidArgumentError, match="has at least one: name a file"):
        kvmem.TierSet([])
    with pytest.raises(kvmem.InvalidArgumentError, match="has at least one: name a file"):
        kvmem.TierSet([tmp_path / "none"], available=True)
    with pytest.raises(kvmem.InvalidArgumentError, match="max_entries is 0") as caught:
        kvmem.TierSet(paths, bytes=MIB, max_entries=0)
    assert (caught.value.value, caught.value.limit) == (0, 1)
    for wrong in (str(paths[0]), paths[0], 7, [7], [None]):
        with pytest.raises(TypeError):
            kvmem.TierSet(wrong, bytes=MIB)  # type: ignore[arg-type]
    assert not any(path.exists() for path in paths)
    with kvmem.TierSet(paths[:1], bytes=MIB):
        pass
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(kvmem.InvalidArgumentError, match="copies of one file"):
        kvmem.TierSet(paths[:2])
    with kvmem.TierSet(paths[:1]), pytest.raises(kvmem.DiskTierError, match="open already"):
        kvmem.TierSet(paths[:1])


def test_a_value_is_a_miss_after_its_time(tmp_path: Path) -> None:
    with kvmem.DiskTier(tmp_path / "tier", bytes="1MiB") as tier:
        tier.store({"draft": b"1"}, ttl=0.5)
        tier.store({"kept": b"2"}, ttl=1e9)
        assert tier.fetch(["draft", "kept"]) == [b"1", b"2"]
        until(lambda: tier.fetch(["draft"]) == [None])
        assert tier.fetch(["kept"]) == [b"2"] and tier.stats().expired <= 1
        cases: list[tuple[dict[str, Any], object, object]] = [
            ({"priority": 4}, 4, 3),
            ({"priority": -1}, -1, 0),
            ({"priority": 2**70}, 2**70, 3),
            ({"ttl": -1.0}, -1.0, 0),
        ]
        for options, wrong, limit in cases:
            with pytest.raises(kvmem.InvalidArgumentError) as caught:
                tier.store({"key": b"value"}, **options)
            assert (caught.value.value, caught.value.limit) == (wrong, limit), caught.value
        for options in ({"priority": 1.5}, {"ttl": "1s"}):
            with pytest.raises(TypeError):
                tier.store({"key": b"value"}, **options)
        assert "key" not in tier


def test_memory_of_a_pool_is_registered(
    paths: list[Path], tiers: kvmem.TierSet, pool: kvmem.Pool
) -> None:
    with kvmem.DiskTier(paths[0].with_suffix(".one"), bytes=MIB) as tier:
        for each, files in ((tier, 1), (tiers, 3)):
            assert each.stats().fixed_buffer_bytes == 0
            try:
                each.register_memory(pool)
            except kvmem.RegistrationError as error:
                # Without rings, before Linux 6.12, or beyond RLIMIT_MEMLOCK.
                print(f"no fixed buffers here: {error}")
                assert str(error) and each.stats().fixed_buffer_bytes == 0
                registered = False
            else:
                assert each.stats().fixed_buffer_bytes == files * pool.capacity
                registered = True
            block = pool.allocate(65536, align=4096)
            block.write(b"block" * 10_000)
            each.store({"block": block})
            assert each.fetch_into(["block"], [block]) == [65536]
            assert bytes(block)[:50_000] == b"block" * 10_000
            assert (each.stats().fixed_buffer_transfers > 0) == registered
            block.free()
            each.deregister_memory(pool)
            each.deregister_memory(pool)
            assert each.stats().fixed_buffer_bytes == 0
            with pytest.raises(TypeError):
                each.register_memory(7)  # type: ignore[arg-type]


def test_a_forked_child_cannot_use_a_set(paths: list[Path], script: Callable[..., str]) -> None:
    output = script(
        f"""
        import kvmem, os
        paths = {[str(path) for path in paths]!r}
        pool = kvmem.Pool("1MiB", pages="4k")
        tiers = kvmem.TierSet(paths, bytes="1MiB")
        chain = kvmem.Chain(tiers, tiers)
        cache = kvmem.KvCache(pool, lower_tier=chain, write_behind=10_000)
        tiers.store({{"key": b"value"}})
        fetching = cache.start_fetch(["key"])
        child = os.fork()
        if child == 0:
            for use in (
                lambda: tiers.fetch(["key"]),
                lambda: tiers.store({{"key": b"another"}}),
                lambda: tiers.register_memory(pool),
                lambda: kvmem.KvCache(pool, lower_tier=chain),
                lambda: cache.start_fetch(["key"]),
                lambda: cache.flush(),
                lambda: cache.write_behind_stats(),
                lambda: fetching.done(),
                lambda: fetching.result(),
                lambda: fetching.take(),
            ):
                try:
                    use()
                except kvmem.ForkedError as error:
                    print(str(error).split(" was made")[0], flush=True)
            fetching.cancel()
            cache.close()
            tiers.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert bytes(fetching.result()[0]) == b"value"
        print("parent")
        """
    )
    assert output.count("the disk tier") == 3 and output.count("the pool") == 1, output
    assert output.count("the cache") == 3 and output.count("the fetch") == 3, output
    assert output.endswith("parent\n"), output
