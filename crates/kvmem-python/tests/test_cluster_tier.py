"""``ClusterTier`` with a helper whose cluster is a folder: keys, buffers, threads, fork, the end.

``distributed/`` has a real cluster; the crate kvmem-cluster tests helpers that die, hang and lie.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import cluster_helper
import kvmem
import pytest
from conftest import LIMIT, MIB, until
from kvmem.mooncake import ClusterTier, engine
from kvmem.vllm._cluster import ClusterRows

Key = int | bytes | str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def python(folder: Path) -> str:
    """A program that runs the helper of this test in place of Mooncake's."""
    return cluster_helper.program(folder)


@pytest.fixture
def make(folder: Path, python: str) -> Iterator[Callable[..., ClusterTier]]:
    made: list[ClusterTier] = []

    def make(**options: Any) -> ClusterTier:
        options = {"python": python, "staging_bytes": 4 * MIB, **options}
        made.append(ClusterTier("127.0.0.1:1", **options))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


@pytest.fixture
def tier(make: Callable[..., ClusterTier]) -> ClusterTier:
    tier = make()
    assert tier.wait(LIMIT)
    return tier


def test_encoded_values_are_read_with_their_key(
    make: Callable[..., ClusterTier], folder: Path, tmp_path: Path
) -> None:
    files = []
    for key in "12":
        files.append(tmp_path / f"key-{key}")
        files[-1].write_text(key * 64)
        files[-1].chmod(0o400)
    value = b"\x80\x3f" * 32_768
    own, other, plain = (
        make(codec="auto", key_file=files[0]),
        make(codec="none", key_file=files[1]),
        make(),
    )
    assert own.wait(LIMIT) and other.wait(LIMIT) and plain.wait(LIMIT)
    assert own.store({"key": value}) == [] and own.ask(["key"]) == [len(value)]
    (path,) = folder.iterdir()
    assert path.stat().st_size < len(value) // 2
    buffer = bytearray(len(value))
    assert own.fetch_into(["key"], [buffer]) == [len(value)] and buffer == value
    for tier in (other, plain):
        (nbytes,) = tier.ask(["key"])
        assert nbytes and tier.fetch_into(["key"], [bytearray(nbytes)]) == [None]
        assert (tier.stats().key_misses, tier.stats().corrupt) == (1, 0)
    assert own.stats().encoded_after_bytes < own.stats().encoded_before_bytes
    # As elements of another type they become less short.
    assert own.store({"hinted": value}, data_type="float8_e4m3fn") == []
    assert max(path.stat().st_size for path in folder.iterdir()) > len(value) // 2
    with pytest.raises(kvmem.InvalidArgumentError, match=r"data_type is .float32"):
        own.store({"key": value}, data_type="float32")
    with pytest.raises(kvmem.InvalidArgumentError, match=r"codec is .zip.: give none or auto"):
        make(codec="zip")


def test_rows_of_vllm_are_compressed_and_encrypted(
    folder: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no master that answers.
    monkeypatch.setattr(engine, "check", lambda *_: None)
    key_file = tmp_path / "key"
    key_file.write_text("1" * 64)
    key_file.chmod(0o400)
    value = memoryview(b"\x80\x3f" * 32_768)
    mooncake = {"master": "127.0.0.1:1", "namespace": "chat"}
    make = partial(ClusterRows, len(value), mooncake, python=python)
    encoding = {"codec": "auto", "key_file": str(key_file)}
    with closing(make(**encoding)) as rows:
        assert rows.store([(b"row", value)], data_type="bfloat16") == []
    (path,) = folder.iterdir()
    assert path.stat().st_size < len(value) // 2
    for options, found in ((encoding, len(value)), ({}, None)):
        with closing(make(**options)) as rows:
            into = memoryview(bytearray(len(value)))
            assert rows.missing([b"row"]) == []
            assert rows.fetch_into([b"row"], [into]) == [found]
            assert found is None or into == value


def test_values_are_stored_and_read(tier: ClusterTier, folder: Path) -> None:
    values: dict[Key, bytes] = {1: b"an int", b"1": b"bytes", "1": b"a str", "ü": b"x" * 9999}
    assert tier.store(values) == [] and tier.store([("pair", bytearray(3))]) == []
    assert tier.ask([*values, 2]) == [6, 5, 5, 9999, None]
    buffers = [bytearray(len(each)) for each in values.values()]
    assert tier.fetch_into(values, buffers) == [6, 5, 5, 9999]
    assert buffers == list(values.values())
    # A value of another length, and none.
    assert tier.fetch_into([1, 2], [bytearray(5), bytearray(6)]) == [None, None]
    assert tier.store({1: b"another"}) == [] and tier.ask([1]) == [7]
    tier.remove(["1", "never"])
    assert tier.ask(["1", b"1"]) == [None, 5]
    assert tier.flush(LIMIT) and len(list(folder.iterdir())) == 4
    too_long: dict[Key, bytes] = {"long": bytes(3 * MIB), "empty": b""}
    assert tier.store(too_long) == ["long", "empty"]
    stats = tier.stats()
    assert (stats.state, stats.stored, stats.dropped, stats.corrupt) == ("working", 6, 2, 0)
    assert stats.fetched == 4 and stats.fetched_bytes == 10_015 and stats.starts == 1
    assert stats.last_report == "the cluster works"
    tier.clear()
    assert not list(folder.iterdir()) and tier.ask(values) == [None] * 4
    assert "6 stored, 4 fetched" in repr(tier)
    with tier:
        assert not tier.closed
    assert tier.closed and "closed" in repr(tier)
    for use in (tier.stats, tier.wait, tier.flush, tier.clear, lambda: tier.ask([1])):
        with pytest.raises(kvmem.ClosedError, match="the cluster tier has been closed"):
            use()
    tier.close()


def test_wrong_arguments(tier: ClusterTier) -> None:
    for options, words in (
        ({"staging_bytes": 5}, "staging_bytes is 5: give"),
        ({"call_timeout": -1}, "call_timeout is -1"),
        ({"engine": {"speed": 1}}, 'engine has the option "speed": give some of host'),
        ({"python": ""}, "python is empty"),
    ):
        with pytest.raises(kvmem.InvalidArgumentError, match=words):
            ClusterTier(**options)
    with pytest.raises(kvmem.InvalidArgumentError, match="1 buffers for 2 keys"):
        tier.fetch_into([1, 2], [bytearray(1)])
    with pytest.raises(kvmem.InvalidBufferError):
        tier.fetch_into([1], [b"read-only"])
    with pytest.raises(TypeError):
        tier.store({1.5: b""})  # type: ignore[type-var]


def test_the_engine_gets_its_options(make: Callable[..., ClusterTier], tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "tells"
    program.write_text(f'#!/bin/sh\necho "$@" >> "{told}"\n')
    program.chmod(0o755)
    options = {"deadline": 2.5, "peers": ["10.0.0.0/8", "127.0.0.1"], "host": "-h", "expose": True}
    tier = make(python=str(program), prefix="p/", engine=options)
    until(told.exists)
    expected = "-m kvmem.mooncake.node_tier --master 127.0.0.1:1 --prefix p/ --deadline=2.5 "
    expected += "--peers=10.0.0.0/8,127.0.0.1 --host=-h --expose"
    until(lambda: told.read_text().splitlines()[:1] == [expected])
    until(lambda: "has ended" in str(tier.stats().last_report))
    assert tier.stats().state != "working" and not tier.wait(0.01)


def test_existing_objects_stay_without_replacement(
    make: Callable[..., ClusterTier], pool: kvmem.Pool
) -> None:
    tier = make(replace=False)
    assert tier.wait(LIMIT)
    for each in (b"first", b"other"):
        assert tier.store({"hash": each}) == []
    into = bytearray(5)
    assert tier.fetch_into(["hash"], [into]) == [5] and into == b"first"


def helpers(folder: Path) -> list[int]:
    """Returns the processes of helpers of a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"KVMEM_TEST_CLUSTER={folder}".encode() in environment and b"node_tier" in command:
            found.append(int(process.name))
    return found


def test_a_tier_that_is_dropped_ends_its_helper(
    folder: Path, python: str, pool: kvmem.Pool
) -> None:
    tier = ClusterTier(python=python)
    assert tier.wait(LIMIT) and len(helpers(folder)) == 1
    cache = kvmem.KvCache(pool, lower_tier=tier)
    cache.insert(1, b"value")
    watched = weakref.ref(cache)
    del tier
    gc.collect()
    cache.evict_to(0)
    with cache.get(1) or pytest.fail() as found:
        assert bytes(found) == b"value"
    del cache
    gc.collect()
    assert watched() is None
    until(lambda: not helpers(folder))


def test_a_forked_child_cannot_use_it(tier: ClusterTier) -> None:
    assert tier.store({1: b"value"}) == []
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (tier.stats, lambda: tier.ask([1]), tier.flush):
                try:
                    use()
                except kvmem.ForkedError:
                    continue
                os._exit(2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert tier.ask([1]) == [5]


def test_a_process_ends_without_closing_it(
    folder: Path, python: str, script: Callable[..., str]
) -> None:
    script(
        f"""
        import kvmem
        from kvmem.mooncake import ClusterTier
        pool = kvmem.Pool("1MiB", pages="4k")
        tier = ClusterTier(python={python!r})
        assert tier.wait(60)
        cache = kvmem.KvCache(pool, max_bytes=50_000, lower_tier=tier, write_behind=100_000)
        for key in range(20):
            cache.insert(key, bytes(10_000))
        """
    )
    until(lambda: not helpers(folder))
