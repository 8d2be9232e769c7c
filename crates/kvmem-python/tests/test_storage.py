"""Stores of engines: values in a node's pool and on disks, and what happens when those fail."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import LIMIT, MIB, until
from kvmem.storage import (
    NodeStore,
    StorageOptions,
    UnsupportedVersionError,
    Value,
    ValueStore,
    check_version,
    open_store,
)
from kvmem.storage.data_type import common, data_type_of
from kvmem.storage.disk import DiskStore
from kvmem.storage.store import Budget
from node_server import Server

PAGE = 70_000
"""Bytes of a page in two parts, of which none is a multiple of a disk's blocks."""


lent: list[object] = []
"""Memory that values have addresses of, until the end of the test."""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    lent.clear()


class Memory:
    """The memory of an engine: pages of two parts each."""

    def __init__(self, count: int, fill: int | None = None) -> None:
        def pages(nbytes: int, modulus: int) -> list[Any]:
            fills = [0 if fill is None else (fill + n) % modulus for n in range(count)]
            kind = ctypes.c_ubyte * nbytes
            return [kind.from_buffer_copy(bytes([each]) * nbytes) for each in fills]

        self.bytes, self.more = pages(30_000, 251), pages(40_000, 239)

    def values(self, first: int = 0) -> list[Value]:
        lent.append(self)
        return [
            Value(
                (first + n).to_bytes(32, "little"),
                ((ctypes.addressof(a), 30_000), (ctypes.addressof(b), 40_000)),
            )
            for n, (a, b) in enumerate(zip(self.bytes, self.more, strict=True))
        ]

    def content(self) -> list[bytes]:
        return [bytes(a) + bytes(b) for a, b in zip(self.bytes, self.more, strict=True)]


def keys(count: int, first: int = 0) -> list[bytes]:
    return [(first + n).to_bytes(32, "little") for n in range(count)]


def round_trip(store: ValueStore, count: int, fill: int) -> None:
    """Stores values and loads them into other memory."""
    source, target = Memory(count, fill), Memory(count)
    assert store.put(source.values(fill * 1000)) == [True] * count
    assert store.get(target.values(fill * 1000)) == [True] * count
    assert target.content() == source.content()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(64 * MIB) as server:
        yield server


@pytest.fixture(params=["node", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ValueStore]:
    if request.param == "node":
        store: ValueStore = NodeStore(request.getfixturevalue("server").path, deadline=LIMIT)
    else:
        store = DiskStore([tmp_path / "tier"], nbytes="64MiB", staging="8MiB", deadline=LIMIT)
    yield store
    store.close()


def test_values_come_back_byte_by_byte(store: ValueStore) -> None:
    round_trip(store, 40, 7)
    target = Memory(2, 9)
    before = target.content()
    assert store.get(target.values(5)) == [False, False]
    assert target.content() == before, "a miss leaves the memory alone"
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.stored, stats.existing) == (40, 2, 40, 0)
    assert stats.loaded_bytes == stats.stored_bytes == 40 * PAGE
    assert stats.reachable and stats.last_error is None


def test_a_key_means_one_value(store: ValueStore) -> None:
    first, second, target = Memory(3, 1), Memory(3, 2), Memory(3)
    assert store.put(first.values()) == [True] * 3
    assert store.put(second.values()) == [True] * 3
    assert store.stats().existing == 3
    # Twice in one call.
    assert store.put([*first.values(50), *first.values(50)]) == [True] * 6
    assert store.get(target.values()) == [True] * 3 and target.content() == first.content()


def test_keys_are_looked_up_in_one_call(store: ValueStore) -> None:
    store.put(Memory(10).values())
    store.remove(keys(1, first=6))
    assert store.lengths(keys(8, first=4)) == [PAGE, PAGE, None, PAGE, PAGE, PAGE, None, None]
    assert (store.prefix(keys(10)), store.prefix(keys(3, first=6)), store.prefix([])) == (6, 0, 0)
    locked = store.lock(keys(2, first=5))
    assert locked == [True, False]
    store.unlock(keys(2, first=5))
    assert store.clear() and store.lengths(keys(10)) == [None] * 10


def test_values_of_another_length_are_misses(store: ValueStore) -> None:
    store.put(Memory(3).values())
    short = (ctypes.c_ubyte * 100)()
    long = (ctypes.c_ubyte * 100_000)()
    good = Memory(1).values(1)
    wrong = [
        Value(keys(1)[0], ((ctypes.addressof(short), 100),)),
        *good,
        Value(keys(1, first=2)[0], ((ctypes.addressof(long), 100_000),)),
    ]
    assert store.get(wrong) == [False, True, False]
    assert not any(short) and not any(long)


def test_threads_share_a_store(store: ValueStore) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for turn in range(5):
                round_trip(store, 20, number * 10 + turn)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not failed


def test_a_full_node_keeps_what_fits(server: Server) -> None:
    store = NodeStore(server.path, deadline=LIMIT)
    huge = (ctypes.c_ubyte * (80 * MIB))()
    small = Memory(2, 3)
    values = [small.values()[0], Value(b"huge", ((ctypes.addressof(huge), 80 * MIB),))]
    assert store.put([*values, small.values()[1]]) == [True, False, True]
    assert store.stats().reachable, "a full node is no failure"
    target = Memory(2)
    assert store.get(target.values()) == [True, True] and target.content() == small.content()
    # It evicts for new ones.
    for first in range(0, 2000, 200):
        assert store.put(Memory(200, first).values(first + 10)) == [True] * 200
    store.close()


def test_a_full_disk_keeps_what_fits(tmp_path: Path) -> None:
    store = DiskStore([tmp_path / "tier"], nbytes="8MiB", staging="64MiB", deadline=LIMIT)
    huge = (ctypes.c_ubyte * (12 * MIB))()
    small = Memory(2, 3)
    values = [small.values()[0], Value(b"huge", ((ctypes.addressof(huge), 12 * MIB),))]
    assert store.put([*values, small.values()[1]]) == [True, False, True]
    target = Memory(2)
    assert store.get(target.values()) == [True, True] and target.content() == small.content()
    for first in range(0, 1000, 100):
        assert store.put(Memory(100, first).values(first + 10)) == [True] * 100
    assert 0 < store.used <= store.capacity
    store.close()


def test_a_page_that_cannot_be_staged_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore([tmp_path / "tier"], nbytes="64MiB", staging="2MiB", deadline=LIMIT)
    large = (ctypes.c_ubyte * (4 * MIB))()
    value = Value(b"large", ((ctypes.addressof(large), 4 * MIB),))
    small = Memory(1, 5)
    assert store.put([value, *small.values()]) == [False, True]
    assert '"staging" to at least 16777216' in caplog.text
    store.close()


def test_a_killed_server_costs_misses_and_comes_back(server: Server) -> None:
    store = NodeStore(server.path, deadline=20.0, retry=0.05)
    source, target = Memory(5, 1), Memory(5)
    assert all(store.put(source.values()))
    server.kill()
    # The keeper has the memory: the next server has the values.
    until(lambda: store.get(target.values()) == [True] * 5)
    assert target.content() == source.content()
    store.close()


def test_a_node_that_lost_its_memory_is_connected_again(server: Server) -> None:
    store = NodeStore(server.path, deadline=20.0, retry=0.05)
    source, target = Memory(5, 1), Memory(5)
    assert all(store.put(source.values())) and store.lock(keys(5)) == [True] * 5
    server.stop()
    start = time.monotonic()
    assert store.get(target.values()) == [False] * 5
    assert store.prefix(keys(5)) == 0 and store.put(source.values(90)) == [False] * 5
    assert time.monotonic() - start < 20.0 and not any(any(page) for page in target.content())
    server.start()
    until(lambda: all(store.put(source.values())))
    assert store.get(target.values()) == [True] * 5 and target.content() == source.content()
    store.unlock(keys(5))
    assert isinstance(store, NodeStore) and store.locked == 0
    store.close()


def test_a_server_that_hangs_costs_one_deadline(server: Server) -> None:
    store = NodeStore(server.path, deadline=1.0, retry=0.05)
    source, target = Memory(5, 1), Memory(5)
    until(lambda: all(store.put(source.values())))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        found = [store.get(target.values()) for _ in range(20)]
        took = time.monotonic() - start
        assert found == [[False] * 5] * 20 and 0.9 < took < 15.0, took
        assert store.stats().timeouts == 1 and not store.stats().reachable
        assert not any(any(page) for page in target.content())
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: store.get(target.values()) == [True] * 5)
    assert target.content() == source.content()
    store.close()


def test_damaged_values_of_a_node_are_misses(server: Server) -> None:
    store = NodeStore(server.path, deadline=LIMIT)
    source, target = Memory(2, 1), Memory(2)
    assert all(store.put(source.values()))
    with kvmem.connect(server.path) as other:
        pinned = other.get(keys(1)[0])
        assert pinned is not None
        # The memory is shared: a process with a fault writes to a value of another one.
        at = other.memory_address + pinned.offset + 100
        ctypes.memset(at, 0xEE, 1)
        pinned.release()
    assert store.get(target.values()) == [False, True]
    assert not any(target.content()[0])
    assert store.put(source.values()) == [True, True]
    assert store.get(target.values()) == [True, True] and target.content() == source.content()
    store.close()


def test_damaged_values_of_a_disk_are_misses(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    store = DiskStore([path], nbytes="16MiB", deadline=LIMIT)
    source = Memory(3, 100)
    assert all(store.put(source.values()))
    store.close()
    content = bytearray(path.read_bytes())
    at = content.index(source.content()[1][:8192])
    content[at + 77] ^= 1
    path.write_bytes(content)
    store = DiskStore([path], deadline=LIMIT)
    target = Memory(3)
    assert store.get(target.values()) == [True, False, True]
    assert target.content()[::2] == source.content()[::2] and not any(target.content()[1])
    store.close()


def test_a_disk_that_hangs_costs_one_deadline_and_writes_nothing_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore([tmp_path / "tier"], nbytes="16MiB", deadline=LIMIT, retry=0.05)
    source, target = Memory(3, 1), Memory(3)
    assert all(store.put(source.values()))
    store.deadline = 1.0
    go, ended = threading.Event(), threading.Event()
    read = store._read

    def hang(*arguments: Any) -> list[int | None]:
        go.wait(LIMIT)
        try:
            return read(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(store, "_read", hang)
    start = time.monotonic()
    assert [store.get(target.values()) for _ in range(10)] == [[False] * 3] * 10
    assert 0.9 < time.monotonic() - start < 8.0
    # Nor is anything written while the call hangs.
    assert store.put(source.values(40)) == [False] * 3
    go.set()
    assert ended.wait(LIMIT)
    until(lambda: store.stats().reachable)
    assert not any(any(page) for page in target.content()), "an abandoned call touched the memory"
    monkeypatch.undo()
    store.deadline = LIMIT
    assert store.get(target.values()) == [True] * 3 and target.content() == source.content()
    store.close()


def test_a_store_says_which_values_are_new(store: ValueStore) -> None:
    """Only the store knows it: a look-up before the call may be outdated when the call begins."""
    values = Memory(6, 1).values()
    assert store.put_sizes(values[:4]) == [PAGE] * 4
    assert store.put_sizes(values) == [0] * 4 + [PAGE] * 2


def test_a_failed_call_gives_its_staging_memory_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its exception, and with it the frames of the call, are kept."""
    store = DiskStore([tmp_path / "tier"], nbytes="16MiB", deadline=LIMIT, retry=0.001)
    kept: list[BaseException] = []
    real = store.backend.call

    def failing(*arguments: Any) -> Any:
        raise kvmem.DiskTierError("the drive does not answer")

    def put() -> list[int | None]:
        done: list[int | None] = [None] * 4
        try:
            store._put(Memory(4, 1).values(), done, Budget(LIMIT))
        except kvmem.KvmemError as error:
            kept.append(error)
        return done

    monkeypatch.setattr(store.backend, "call", failing)
    put()
    assert len(kept) == 1
    monkeypatch.setattr(store.backend, "call", real)
    done: list[list[int | None]] = []
    thread = threading.Thread(target=lambda: done.append(put()), daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert done == [[PAGE] * 4]
    store.close()


def test_a_call_that_waits_for_staging_memory_has_a_deadline(tmp_path: Path) -> None:
    store = DiskStore([tmp_path / "tier"], nbytes="16MiB", deadline=0.05)
    with store._pools["put"][1]:
        assert store.put(Memory(2, 1).values()) == [False, False]
    store.deadline = LIMIT
    assert store.put(Memory(2, 1).values()) == [True, True]
    store.close()


def test_a_restart_finds_the_values_of_a_killed_process(
    tmp_path: Path, script: Callable[..., str]
) -> None:
    script(
        f"""
        import ctypes, os, signal
        from kvmem.storage import Value
        from kvmem.storage.disk import DiskStore
        store = DiskStore([{str(tmp_path / "tier")!r}], nbytes="16MiB", deadline=60)
        page = (ctypes.c_ubyte * 70_000)(*([9] * 70_000))
        assert store.put([Value(b"page", ((ctypes.addressof(page), 70_000),))]) == [True]
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        status=-signal.SIGKILL,
    )
    store = DiskStore([tmp_path / "tier"], deadline=LIMIT)
    page = (ctypes.c_ubyte * PAGE)()
    assert store.get([Value(b"page", ((ctypes.addressof(page), PAGE),))]) == [True]
    assert bytes(page) == bytes([9]) * PAGE
    store.close()


def test_direct_transfers_use_registered_memory_of_an_engine(tmp_path: Path) -> None:
    store = DiskStore([tmp_path / "tier"], nbytes="64MiB", staging=0)
    # Shared memory, which another allocator divides.
    region = kvmem.Region("8MiB", pages="4k", shared=True, populate=1)
    registered = store.register(region.ptr, region.nbytes)
    ctypes.memset(region.ptr, 5, MIB)
    assert store.put([Value(b"key", ((region.ptr, MIB),))]) == [True]
    assert store.get([Value(b"key", ((region.ptr + 4 * MIB, MIB),))]) == [True]
    assert ctypes.string_at(region.ptr + 4 * MIB, MIB) == bytes([5]) * MIB
    stats = store.tier.stats()
    if registered:
        assert stats.fixed_buffer_bytes == region.nbytes and stats.fixed_buffer_transfers >= 2
    store.close()
    region.close()


def test_two_processes_share_a_node(server: Server, script: Callable[..., str]) -> None:
    store = NodeStore(server.path, namespace="engines", deadline=LIMIT)
    source = Memory(4, 11)
    assert all(store.put(source.values()))
    out = script(
        f"""
        import ctypes, hashlib
        from kvmem.storage import NodeStore, Value
        store = NodeStore({str(server.path)!r}, namespace="engines", deadline=60)
        for n in range(4):
            page = (ctypes.c_ubyte * {PAGE})()
            value = Value(n.to_bytes(32, "little"), ((ctypes.addressof(page), {PAGE}),))
            assert store.get([value]) == [True]
            print(hashlib.sha256(page).hexdigest())
        other = NodeStore({str(server.path)!r}, namespace="others", deadline=60)
        assert other.get([value]) == [False]
        """
    )
    import hashlib

    assert out.split() == [hashlib.sha256(page).hexdigest() for page in source.content()]
    store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["names no store", '"node"']),
        ({"node": "/a", "disk": "/b"}, ["names node and disk", "give one of"]),
        ({"nod": "/a"}, ["no option 'nod'", "did you mean 'node'"]),
        ({"node": 7}, ["node is 7", "give a path"]),
        ({"node": "/a", "deadline": 0}, ["deadline is 0", "seconds above 0"]),
        ({"node": "/a", "deadline": True}, ["deadline is True"]),
        ({"node": "/a", "namespace": "n" * 57}, ["1 to 56 bytes"]),
        ({"disk": "/a", "disk_bytes": -1}, ["disk_bytes is -1", "64GiB"]),
        ({"disk": "/a", "disk_bytes": "many"}, ["many"]),
        ({"node": "/a", "rings": 1}, ["rings is 1", "true or false"]),
        ({"node": "/a", "server_users": [-1]}, ["server_users is [-1]", "such as [1000]"]),
        ({"node": "/a", "server_users": 1000}, ["server_users is 1000"]),
        ({"disk": "/a", "codec": "zip"}, ["codec is 'zip'", '"auto" or "none"']),
        ({"node": "/a", "codec": "auto"}, ['codec with "node"', "kvmem serve --tier"]),
        ({"mooncake": {"host": "a"}}, ["mooncake is", "master"]),
        ({"disk": ["/a", "/b"], "mooncake": {"master": "a:1"}}, ["2 disks above a cluster"]),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        StorageOptions.parse(options, '"kvmem"')
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_options_choose_the_store(tmp_path: Path, server: Server) -> None:
    parsed = StorageOptions.parse({"node": str(server.path), "rings": True, "retry": 2}, "")
    store = open_store(parsed)
    assert isinstance(store, NodeStore) and store.backend.retry == 2.0
    store.close()
    folder = str(tmp_path)
    own = os.geteuid()
    trusting = {"node": str(server.path), "server_users": [own + 1]}
    with pytest.raises(kvmem.NodePermissionError, match=f"user {own} listens"):
        open_store(StorageOptions.parse(trusting, ""))
    open_store(StorageOptions.parse({**trusting, "server_users": [own]}, "")).close()
    disks = {"disk": [f"{folder}/{{rank}}-a", f"{folder}/{{rank}}-b"], "disk_bytes": "16MiB"}
    store = open_store(StorageOptions.parse(disks, ""), "tp3")
    round_trip(store, 20, 1)
    store.close()
    assert {path.name for path in tmp_path.iterdir()} >= {"tp3-a", "tp3-b"}


def test_a_node_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    # The next try of this one, which would have another message, is far.
    with closing(NodeStore(tmp_path / "no.sock", deadline=0.5, retry=600.0)) as first:
        assert first.get(Memory(1).values()) == [False]
        assert "does not answer yet" in str(first.stats().last_error)
    store = NodeStore(tmp_path / "no.sock", deadline=0.5, retry=0.05)
    assert store.get(Memory(1).values()) == [False]
    with Server(16 * MIB, folder=tmp_path) as server:
        os.symlink(server.path, tmp_path / "no.sock")
        until(lambda: all(store.put(Memory(1).values())))
        store.close()


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else" * 1_000_000)
    with pytest.raises(kvmem.DiskTierError) as caught:
        DiskStore([path])
    assert caught.value.remedy or str(caught.value)


def test_the_hook_of_sglang_is_not_registered_with_another_version(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import importlib.metadata

    import kvmem.sglang

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.6.1")
    monkeypatch.setenv("SGLANG_PLUGINS", "kvmem")
    kvmem.sglang.register()  # imports no SGLang
    assert "sglang 0.6.1 is installed" in caplog.text
    with pytest.raises(kvmem.sglang.HookUnusedError, match=r"0\.6\.1 is installed") as caught:
        kvmem.sglang.check_hook()
    assert caught.value.remedy == "pip install 'sglang>=0.5.23,<0.6'"


def test_versions_are_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import importlib.metadata

    check_version("an-engine-that-is-not-installed", "1.0", "2")
    assert "its version is not checked" in caplog.text
    for version, good in [
        ("0.5.22", False),
        ("0.5.23", True),
        ("0.5.23.post1", True),
        ("0.5.99", True),
        ("0.6", False),
        ("0.6.0rc1", False),
    ]:
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        if good:
            check_version("sglang", "0.5.23", "0.6")
            continue
        with pytest.raises(UnsupportedVersionError) as caught:
            check_version("sglang", "0.5.23", "0.6")
        assert caught.value.remedy == "pip install 'sglang>=0.5.23,<0.6'"


def test_a_budget_ends() -> None:
    budget = Budget(0.01)
    assert 0 < budget.left() <= 0.01
    until(lambda: budget.left() == 0.0)


def test_a_disk_is_compressed_and_encrypted_on_request(tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("5" * 64)
    key_file.chmod(0o400)
    where = {"disk": str(tmp_path / "tier"), "disk_bytes": "16MiB", "deadline": LIMIT}
    options = {**where, "codec": "auto", "key_file": str(key_file)}
    with closing(open_store(StorageOptions.parse(options, ""))) as store:
        round_trip(store, 20, 7)
        assert isinstance(store, DiskStore)
        stats = store.tier.stats()
        assert stats.encoded_after_bytes < stats.encoded_before_bytes == 20 * PAGE
    # The next process, and one without the key.
    with closing(open_store(StorageOptions.parse(options, ""))) as store:
        target = Memory(20)
        assert store.get(target.values(7000)) == [True] * 20
        assert target.content() == Memory(20, 7).content()
    with closing(open_store(StorageOptions.parse(where, ""))) as store:
        assert store.get(Memory(20).values(7000)) == [False] * 20
    assert kvmem.DiskTier.inspect(tmp_path / "tier").encrypted == 20


def test_types_of_engines_are_hints() -> None:
    for name, hint in {
        "torch.bfloat16": "bfloat16",
        "half": "float16",
        "fp8": "float8_e4m3fn",
        "torch.float8_e5m2fnuz": "float8_e5m2",
        "auto": "unknown",
        "torch.float32": "unknown",
    }.items():
        assert data_type_of(name) == hint
        kvmem.KvCache(kvmem.Pool("4KiB")).insert("key", b"x", data_type=hint)
    assert common(["float16", "float16"]) == "float16"
    assert common(["float16", "bfloat16"]) == common([]) == "unknown"
