"""A node: processes share values, pins protect them, and clients and servers may die."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kvmem
import numpy as np
import pytest
from conftest import LIMIT, MIB, until
from node_server import Server

Script = Callable[..., str]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["socket", "rings"])
def cache(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[kvmem.NodeCache]:
    """An empty node, whose server other tests use, too."""
    with kvmem.connect(shared_server.path, rings=request.param) as cache:
        assert cache.has_rings == request.param
        yield cache
        gc.collect()
        cache.as_operator().clear()
        stats = cache.stats()
        assert (stats.pinned, stats.reservations, stats.used) == (0, 0, 0), stats


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that the test may kill."""
    with Server() as server:
        yield server


def bytes_of(seed: int, nbytes: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


def test_the_ends_of_chains_are_evicted_first(cache: kvmem.NodeCache) -> None:
    cache.insert("c", b"3", parent=b"b")
    assert cache.stats().dead_bytes == 1
    cache.insert_batch([(b"b", b"22"), (1, b"1")], parents=(key for key in [1, None]))
    with cache.reserve("d", 4, parent="c") as reservation:
        reservation.write(b"4444")
    other, more = cache.reserve_batch({"e": 5, "f": 6}, parents=["d", "e"])
    cache.commit([more, other])
    assert cache.stats().dead_bytes == 0
    assert cache.acquire([1]).hits == 1
    for left in (5, 4, 3, 2, 1):
        cache.evict(1)
        here = [key in cache for key in (1, b"b", "c", "d", "e", "f")]
        assert here == [True] * left + [False] * (6 - left)


def test_bad_parents_are_errors(cache: kvmem.NodeCache) -> None:
    with pytest.raises(kvmem.InvalidArgumentError, match="1 parents for 2 values"):
        cache.insert_batch({1: b"1", 2: b"2"}, parents=[None])
    with pytest.raises(kvmem.InvalidArgumentError, match="64"):
        cache.insert(1, b"1", parent=b"x" * 65)
    with pytest.raises(TypeError):
        cache.reserve(1, 1, parent=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.reserve_batch({1: 1}, parents=[[]])  # type: ignore[list-item]
    assert cache.stats().reservations == 0 and len(cache) == 0


def found(value: kvmem.PinnedValue | None) -> kvmem.PinnedValue:
    assert value is not None
    return value


def test_devices_have_keys_to_the_memory(shared_server: Server) -> None:
    with kvmem.connect(shared_server.path) as plain:
        assert plain.devices == []
        with pytest.raises(kvmem.InvalidArgumentError, match="no device"):
            plain.key_for("mlock")
    try:
        cache = kvmem.connect(shared_server.path, devices="mlock")
    except kvmem.RegistrationError as error:
        pytest.skip(str(error))
    with cache:
        assert cache.devices == ["mlock"]
        cache.insert("key", b"value")
        with found(cache.get("key")) as value:
            key = cache.key_for("mlock", value.offset, value.offset + len(value))
        assert cache.key_for("mlock") == key
        with pytest.raises(kvmem.InvalidArgumentError, match="not a range"):
            cache.key_for("mlock", 1, cache.memory_len + 1)
        cache.clear()
    with pytest.raises(kvmem.InvalidArgumentError, match="read_only"):
        kvmem.connect(shared_server.path, devices="mlock", read_only=True)


def test_it_is_used_like_a_cache(cache: kvmem.NodeCache) -> None:
    cache.insert("prefix 1", b"keys and values")
    with cache.reserve(0x5EED, 1000, priority=1) as reservation:
        assert (reservation.nbytes, reservation.cache_key) == (1000, 0x5EED)
        assert reservation.write(b"more of them") == 12
        assert 0x5EED not in cache
    assert cache.get("prefix 2") is None
    with found(cache.get(0x5EED)) as pinned:
        assert bytes(pinned)[:12] == b"more of them" and pinned.cache_key == 0x5EED
        assert pinned.ptr == cache.memory_address + pinned.offset
        assert pinned.offset + pinned.nbytes <= cache.memory_len == 16 * MIB
        assert "1000 bytes" in repr(pinned)
    with pytest.raises(kvmem.ClosedError):
        bytes(pinned)
    assert "prefix 1" in cache and len(cache) == 2 and cache
    assert cache.remove("prefix 1") and not cache.remove("prefix 1")
    assert cache.clear() == 1 and len(cache) == 0 and cache
    assert (cache.namespace, cache.read_only, cache.path.name) == ("", False, "kvmem.sock")
    with pytest.raises(RuntimeError), cache.reserve("k", 10) as reservation:
        raise RuntimeError
    assert "k" not in cache and "ended" in repr(reservation)


def test_keys_of_all_types_are_apart_and_come_back(cache: kvmem.NodeCache) -> None:
    marked = b"\0kvmem key:i" + bytes(16)
    keys: list[int | bytes | str] = [0, -1, 2**126, b"0", "0", "é", b"\xff" * 64, marked]
    for place, key in enumerate(keys):
        cache.insert(key, bytes([place]))
    with cache.acquire(keys) as pins:
        assert [bytes(found(pin)) for pin in pins] == [bytes([n]) for n in range(len(keys))]
        assert [found(pin).cache_key for pin in pins] == keys
    listed = cache.as_operator().list()
    assert {each.key for each in listed} == set(keys) and len(listed) == len(keys)
    assert {each.key for each in cache.events(cache.events(2**63).next - len(keys))} == set(keys)
    for wrong, value, limit in ((b"", 0, 1), (b"k" * 65, 65, 64), ("k" * 53, 65, 64)):
        with pytest.raises(kvmem.InvalidArgumentError, match="keys have 1 to 64") as caught:
            cache.get(wrong)
        assert (caught.value.value, caught.value.limit) == (value, limit)
    assert "k" * 52 not in cache


def test_batches(cache: kvmem.NodeCache) -> None:
    count = 2500  # more than a message has
    for first in range(0, 3000, 1000):
        cache.insert_batch({n: n.to_bytes(2, "little") for n in range(first, first + 1000)})
    assert cache.remove_batch(range(count, 4000)) == 500
    wanted = list(range(-1, count))
    pins = cache.acquire(wanted)
    assert len(pins) == count + 1 and pins.hits == count and pins[0] is None
    assert all(bytes(found(pins[n + 1])) == n.to_bytes(2, "little") for n in range(count))
    assert found(pins[-1]).cache_key == count - 1 and pins[-1] is pins[count]
    assert [each and each.cache_key for each in pins[:3]] == [None, 0, 1]
    with pytest.raises(IndexError, match="index 2501 of 2501"):
        pins[count + 1]
    with pytest.raises(IndexError):
        pins[-(2**64)]
    with pytest.raises(TypeError, match="an index is an int or a slice, not str"):
        pins["0"]  # type: ignore[call-overload]
    assert f"{count} values for {count + 1} keys" in repr(pins)
    assert cache.stats().pinned == count
    kept = pins[1]
    del pins
    assert cache.stats().pinned == 1, "an object of the batch keeps its own pin"
    found(kept).release()
    assert cache.stats().pinned == 0

    assert cache.lookup(range(3000)) == count and cache.lookup([-1, 0]) == 0
    with cache.acquire_prefix([0, 1, -1, 2]) as prefix:
        assert prefix.hits == 2 and prefix.pending == [] and prefix.is_valid
        offsets = prefix.offsets
        assert len(prefix) == 4 and offsets[2:] == [None, None] == prefix.lengths[2:]
        # The objects of the values are made when one of them is wanted.
        assert [each is not None for each in prefix] == [True, True, False, False]
        assert [found(each).offset for each in prefix[:2]] == offsets[:2] == prefix.offsets[:2]
        assert [found(each).nbytes for each in prefix[:2]] == prefix.lengths[:2]
    with cache.acquire([-1, 2, 2], wait=False) as pinned:
        assert pinned.hits == 2 and pinned.pending == [] and pinned.offsets[0] is None
        assert cache.stats().pinned == 1
    until(lambda: cache.stats().pinned == 0)
    assert cache.acquire_prefix([0, -1], wait=False).hits == 1
    for reserved in cache.reserve_batch({"x": 8, "y": 8}, wait=False):
        reserved.discard()
    with pytest.raises(kvmem.ClosedError):
        len(prefix)
    assert cache.touch([-1, 5, 6]) == 2
    assert cache.lookup([]) == 0 and len(cache.acquire([])) == 0
    with pytest.raises(TypeError, match="an iterable of keys"):
        cache.acquire("prefix")
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        cache.insert_batch(dict.fromkeys(range(1025), b"x"))
    assert (caught.value.value, caught.value.limit) == (1025, 1024)


def test_several_reservations_are_committed_as_one(
    cache: kvmem.NodeCache, shared_server: Server
) -> None:
    first, second = cache.reserve_batch([("a", 100), ("b", "1KiB")])
    assert second.nbytes == 1024
    assert first.is_valid and second.is_valid
    for each in (first, second):
        np.from_dlpack(each)[:] = each.nbytes % 256
    assert cache.lookup(["a"]) == 0
    view = memoryview(second)
    with pytest.raises(kvmem.ExportedError):
        cache.commit([first, second])
    view.release()
    cache.commit([first, second])
    assert cache.lookup(["a", "b"]) == 2
    with pytest.raises(kvmem.ClosedError, match="committed"):
        first.commit()

    # One key twice: neither is stored, and both have ended.
    twice = cache.reserve_batch([("c", 1), ("c", 2)])
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        cache.commit(twice)
    assert caught.value.value == 1
    with pytest.raises(kvmem.ClosedError):
        twice[0].discard()
    # A batch that has no space reserves nothing.
    with pytest.raises(kvmem.OutOfSpaceError):
        cache.reserve_batch([(n, 6 * MIB) for n in range(3)])
    assert "c" not in cache and cache.stats().reservations == 0
    with kvmem.connect(shared_server.path) as other:
        foreign = other.reserve("d", 1)
        with pytest.raises(kvmem.InvalidArgumentError, match="another connection"):
            cache.commit([foreign])
        foreign.discard()
    with pytest.raises(TypeError):
        cache.commit([object()])  # type: ignore[list-item]


def test_addresses_are_those_of_the_memory(cache: kvmem.NodeCache) -> None:
    """Code that takes addresses, such as an engine's, writes and reads values in place."""
    base = cache.memory_address
    with cache.reserve("k", 1000) as room:
        assert room.address == room.ptr == base + room.offset
        ctypes.memset(room.address, 7, 1000)
    with pytest.raises(kvmem.ClosedError):
        _ = room.address
    with found(cache.get("k")) as pinned:
        assert pinned.address == pinned.ptr == base + pinned.offset
        assert ctypes.string_at(pinned.address, 1000) == bytes(pinned) == bytes([7]) * 1000
    with pytest.raises(kvmem.ClosedError):
        _ = pinned.address


def test_views_keep_pins(cache: kvmem.NodeCache) -> None:
    value = bytes_of(3, 6 * MIB)
    cache.insert("pinned", value)
    pinned = found(cache.get("pinned"))
    array = np.from_dlpack(pinned)
    assert not array.flags.writeable and memoryview(pinned).readonly
    with pytest.raises(kvmem.ExportedError, match="1 view"):
        pinned.release()
    assert cache.remove("pinned")
    del pinned
    gc.collect()
    for n in range(10):
        cache.insert(n, bytes_of(n, 2 * MIB))
    assert array.tobytes() == value, "the array keeps the pin"
    with pytest.raises(kvmem.OutOfSpaceError) as caught:
        cache.reserve("more", 12 * MIB)
    error = caught.value
    assert error.requested == 12 * MIB and error.free is not None and error.largest_free is not None
    del array
    cache.insert("more", bytes(12 * MIB))
    # Views are counted by the batch, too.
    with pytest.raises(kvmem.ExportedError), cache.acquire(["more"]) as pins:
        view = memoryview(found(pins[0]))
    view.release()
    pins.release()
    pins.release()


def test_views_outlive_the_cache(shared_server: Server) -> None:
    with kvmem.connect(shared_server.path) as cache:
        cache.insert("k", b"value")
        pinned, room = found(cache.get("k")), cache.reserve("l", 3)
        array = np.from_dlpack(pinned)
    for use in (cache.stats, lambda: cache.get("k"), lambda: cache.memory_address):
        with pytest.raises(kvmem.ClosedError, match="node cache"):
            use()
    assert cache.closed and "closed" in repr(cache)
    cache.close()
    room.write(b"new")
    room.commit()
    assert array.tobytes() == b"value"
    del array
    pinned.release()
    with kvmem.connect(shared_server.path) as cache:
        assert bytes(found(cache.get("l"))) == b"new"
        cache.clear()


def test_a_server_with_other_memory(server: Server) -> None:
    with kvmem.connect(server.path) as cache:
        cache.insert("k", b"value")
        pinned, room = found(cache.get("k")), cache.reserve("l", 1)
        server.stop()
        server.start()
        with pytest.raises(kvmem.NodeReplacedError, match="connect again") as caught:
            cache.get("k")
        assert isinstance(caught.value, ConnectionError)
        assert bytes(pinned) == b"value", "the mapping keeps the old memory"
        with pytest.raises(kvmem.NodeReplacedError):
            room.commit()
    with kvmem.connect(server.path) as again:
        assert "k" not in again


def test_errors(shared_server: Server, cache: kvmem.NodeCache) -> None:
    path = shared_server.path.with_name("none")
    started = time.monotonic()
    with pytest.raises(kvmem.NodeDisconnectedError, match="no server answers") as caught:
        kvmem.connect(path, retry_for=0.3)
    error = caught.value
    assert 0.3 <= time.monotonic() - started < LIMIT
    assert isinstance(error, ConnectionError) and isinstance(error, kvmem.NodeError)
    assert error.path == str(path) and error.seconds is not None and error.seconds >= 0.3
    assert error.errno == 2 and "server" in str(error.remedy)
    assert pickle.loads(pickle.dumps(error)).path == str(path)
    own = os.geteuid()
    with pytest.raises(kvmem.NodePermissionError, match="`server_users`") as foreign:
        kvmem.connect(shared_server.path, server_users=[own + 1])
    assert isinstance(foreign.value, PermissionError)
    assert (foreign.value.value, foreign.value.path) == (own, str(shared_server.path))
    kvmem.connect(shared_server.path, server_users=(own + 1, own)).close()
    with pytest.raises(kvmem.InvalidArgumentError, match="server_users"):
        kvmem.connect(shared_server.path, server_users=[-1])
    with pytest.raises(kvmem.InvalidArgumentError, match="at most 107 bytes"):
        kvmem.connect("x" * 108)
    cache.insert("k", b"value")
    with kvmem.connect(shared_server.path, read_only=True) as reader:
        assert bytes(found(reader.get("k"))) == b"value"
        writing: list[Callable[[], object]] = [
            lambda: reader.insert("k", b"x"),
            lambda: reader.reserve("k", 1),
            lambda: reader.remove("k"),
        ]
        for write in writing:
            with pytest.raises(kvmem.InvalidArgumentError, match="read_only=True"):
                write()
    with pytest.raises(kvmem.InvalidArgumentError) as wrong:
        cache.insert("empty", b"")
    assert (wrong.value.value, wrong.value.limit) == (0, 1)
    with pytest.raises(kvmem.OutOfSpaceError) as large:
        cache.insert("large", bytes(17 * MIB))
    assert (large.value.requested, large.value.limit) == (17 * MIB, 16 * MIB)
    room = cache.reserve("r", 10)
    with pytest.raises(kvmem.InvalidArgumentError, match="do not fit"):
        room.write(b"x", 10)
    with pytest.raises(kvmem.InvalidArgumentError, match="priority is 4"):
        cache.insert("k", b"x", priority=4)
    with pytest.raises(kvmem.InvalidArgumentError, match="give unknown or bfloat16"):
        cache.reserve_batch({"k": 1}, data_type="float")


def test_values_have_priorities_and_a_time(cache: kvmem.NodeCache) -> None:
    cache.insert("high", bytes(MIB), priority=3)
    for n in range(40):
        cache.insert(n, bytes(MIB))
    assert "high" in cache and 0 not in cache
    cache.insert("short", b"x", ttl=0.05)
    until(lambda: "short" not in cache)
    cache.insert_batch({"long": b"x"}, priority=2, ttl=3600, data_type="bfloat16")
    (long,) = [each for each in cache.as_operator().list() if each.key == "long"]
    assert (long.priority, long.nbytes, long.pins, long.namespace) == (2, 1, 0, "")


def test_values_without_checksums_are_misses_if_values_are_verified(
    shared_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        kvmem.connect(shared_server.path) as other,
        kvmem.connect(shared_server.path, verify=True) as careful,
    ):
        other.insert_batch({"a": b"value", "b": b"value"})
        assert careful.unverified == 0
        assert careful.get("a") is None and careful.acquire(["a", "b"]).hits == 0
        assert (careful.unverified, other.unverified) == (3, 0)
        (warning,) = [each for each in caplog.records if each.name == "kvmem.node"]
        assert "set checksums on the writers" in warning.getMessage()
        pinned = found(other.get("a"))
        with pytest.raises(kvmem.UnverifiedValueError, match="no checksum") as caught:
            pinned.verify()
        assert caught.value.remedy == "connect the writers with checksums=True"
        pinned.release()
        # A cache that verifies writes checksums.
        careful.insert("a", b"again")
        assert bytes(found(careful.get("a"))) == b"again" and careful.unverified == 3


def test_checksums_tell_damage(shared_server: Server) -> None:
    with kvmem.connect(shared_server.path, checksums=True) as cache:
        cache.insert("k", b"value")
        pinned = found(cache.get("k"))
        pinned.verify()
        ctypes.memset(pinned.ptr, 0x21, 1)
        with pytest.raises(kvmem.DamagedValueError, match="damaged") as caught:
            pinned.verify()
        assert caught.value.value != caught.value.expected is not None
        pinned.release()
        with kvmem.connect(shared_server.path, verify=True) as careful:
            start = careful.events(2**63).next
            assert careful.get("k") is None, "a damaged value is a miss"
            until(lambda: "k" not in careful)
            assert [event.kind for event in careful.events(start)] == ["damaged"]
        cache.clear()


def test_namespaces_are_apart(shared_server: Server, cache: kvmem.NodeCache) -> None:
    with kvmem.connect(shared_server.path, namespace="model") as model:
        model.insert("k", b"model")
        cache.insert("k", b"default")
        assert bytes(found(model.get("k"))) == b"model" and model.namespace == "model"
        stats = {each.name: each for each in cache.stats().namespaces}
        assert stats["model"].bytes == 4096 and stats["model"].max_bytes is None
        operator = cache.as_operator()
        assert operator.evict(1, "model") == 4096 and operator.evict(1, "unknown") == 0
        assert "k" not in model and "k" in cache
        model.insert("k", b"model")
        assert cache.clear() == 1 and "k" in model
        assert operator.clear("model") == 1 and operator.evict("1KiB") == 0


def test_misses_have_reasons(shared_server: Server) -> None:
    with kvmem.connect(shared_server.path, namespace="missing") as cache:
        before = cache.stats().misses
        cache.insert("k", b"value")
        cache.remove("k")
        assert cache.acquire(["none"]).hits == 0 and cache.acquire_prefix(["k", "x"]).hits == 0
        removed, never = cache.misses(2)
        assert (removed.key, removed.reason, removed.namespace) == ("k", "removed", "missing")
        assert (removed.gone_seconds, removed.evicted_for, removed.priority) == (0, None, 0)
        assert (never.key, never.reason, never.gone_seconds) == ("none", "never-stored", None)
        assert 0 <= removed.ago_seconds < 60
        assert [each.key for each in cache.misses(1)] == ["k"]
        listed = cache.as_operator().misses(max=1)
        assert [each.key for each in listed] == ["k"]
        stats = cache.stats()
        of_namespace = next(each for each in stats.namespaces if each.name == "missing")
        assert stats.misses == before + 2
        assert of_namespace.removed_misses == of_namespace.never_stored_misses >= 1
        assert of_namespace.keys == 3 * of_namespace.removed_misses and of_namespace.hits_at_8 == 0
        assert 0 < of_namespace.memory <= stats.capacity
        cache.clear()


def test_events(cache: kvmem.NodeCache) -> None:
    start = cache.events(2**63).next
    cache.insert("k", b"1")
    cache.insert("k", b"2")
    cache.remove("k")
    events = cache.events(start)
    kinds = [event.kind for event in events]
    assert kinds == ["stored", "replaced", "stored", "removed"]
    assert [event.key for event in events] == ["k"] * 4 and not events.lost
    assert events.next == start + 4 and events[-1].number == start + 3 and len(events[1:]) == 3
    assert len(cache.events(start, max=2)) == 2
    began = time.monotonic()
    assert not cache.events(events.next, wait=0.1) and time.monotonic() - began >= 0.1
    # Several threads wait, and the GIL is free meanwhile.
    seen: list[kvmem.EventBatch] = []
    threads = [
        threading.Thread(target=lambda: seen.append(cache.events(events.next, wait=LIMIT)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    cache.insert("late", b"1")
    for thread in threads:
        thread.join()
    assert [[event.key for event in each] for each in seen] == [["late"]] * 3


def test_operators_change_the_size(cache: kvmem.NodeCache) -> None:
    whole = cache.stats().max_capacity
    resized = cache.as_operator().resize(whole)
    assert resized == kvmem.Resized(whole, whole, 0, 0)
    with pytest.raises(kvmem.InvalidArgumentError, match="--max") as caught:
        cache.as_operator().resize(1 << 50)
    assert (caught.value.value, caught.value.limit) == (1 << 50, whole)


def test_operators_end_pins(cache: kvmem.NodeCache) -> None:
    cache.insert("k", b"value")
    pinned = found(cache.get("k"))
    assert pinned.is_valid and cache.stats().pinned_bytes == 4096
    assert cache.as_operator().reclaim_pins(os.getpid()) == 1
    assert not pinned.is_valid, "the word tells it, without a call"
    with pytest.raises(kvmem.PinRevokedError, match="acquire the values again") as caught:
        _ = pinned.address
    assert caught.value.remedy == "acquire the value again" and pinned.ptr
    stats = cache.stats()
    assert (stats.pinned, stats.pinned_bytes, stats.tier_state) == (0, 0, "none")
    pinned.release()
    cache.keep_alive()


def test_a_silent_server(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(4)

        async def connect() -> None:
            await kvmem.connect_async(path, retry_for=0, answer_within=0.2)

        for call in (
            lambda: kvmem.connect(path, retry_for=0, answer_within=0.2),
            lambda: asyncio.run(connect()),
        ):
            started = time.monotonic()
            with pytest.raises(kvmem.NodeDisconnectedError, match="does not answer"):
                call()
            assert 0.2 <= time.monotonic() - started < LIMIT
    with pytest.raises(kvmem.InvalidArgumentError, match="answer_within"):
        kvmem.connect(path, answer_within=-1)


INTERRUPTED = {
    "an event": "cache.events(2**63, wait=600)",
    "a server that is gone": "os.kill(server, signal.SIGSTOP); cache.stats()",
    "a server that never was": "kvmem.connect('/nonexistent/kvmem.sock', retry_for=600)",
    "a commit": "room = cache.reserve('k', 1); os.kill(server, signal.SIGSTOP); room.commit()",
}


@pytest.mark.parametrize("rings", [False, True])
@pytest.mark.parametrize("what", INTERRUPTED)
def test_ctrl_c_ends_a_wait_for(what: str, rings: bool, server: Server, script: Script) -> None:
    out = script(f"""
        import os, signal, threading, time, kvmem
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server = {server.pid}
        cache = kvmem.connect({str(server.path)!r}, retry_for=600, rings={rings})
        entered = threading.Event()
        def interrupt():
            entered.wait()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        # Another thread reads the socket, so the main thread waits for it.
        reader = threading.Thread(target=lambda: cache.events(2**63, wait=0.5), daemon=True)
        reader.start()
        time.sleep(0.05)
        started = time.monotonic()
        try:
            entered.set()
            {INTERRUPTED[what]}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started < 60)
        os.kill(server, signal.SIGCONT)
        cache.keep_alive()
        reader.join()
        stats = cache.stats()
        print(stats.reservations, stats.pinned)
    """)
    assert "interrupted True" in out and "0 0" in out


def test_a_signal_handler_may_raise_anything(server: Server, script: Script) -> None:
    out = script(f"""
        import signal, kvmem
        class Alarm(Exception): pass
        def ring(*_): raise Alarm("rings")
        signal.signal(signal.SIGALRM, ring)
        cache = kvmem.connect({str(server.path)!r})
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            cache.events(2**63, wait=600)
        except Alarm as error:
            print("it", error)
        assert len(cache) == 0
    """)
    assert "it rings" in out


def test_a_forked_child_cannot_use_them(cache: kvmem.NodeCache, script: Script) -> None:
    cache.insert("k", b"value")
    out = script(f"""
        import gc, os, kvmem
        cache = kvmem.connect({str(cache.path)!r})
        pinned, pins, room = cache.get("k"), cache.acquire(["k"]), cache.reserve("l", 1)
        child = os.fork()
        if child == 0:
            failing = 0
            for use in (cache.stats, lambda: cache.get("k"), lambda: bytes(pinned),
                        lambda: bytes(pins[0]), room.commit, lambda: cache.memory_address):
                try:
                    use()
                except kvmem.ForkedError:
                    failing += 1
            with kvmem.connect({str(cache.path)!r}) as mine:
                assert bytes(mine.get("k")) == b"value"
            cache.close()
            del cache, pinned, pins, room
            gc.collect()
            print("failing", failing, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(pinned) == b"value" and pinned.is_valid
        room.commit()
        assert "l" in cache
    """)
    assert "failing 6" in out


EXITS = {
    "pins and a view": "pins = cache.acquire(['k'])\nkeep = memoryview(pins[0])",
    "a reservation": "room = cache.reserve('l', 10)",
    "a thread that waits": """
        import threading
        threading.Thread(
            target=lambda: cache.events(2**63, wait=600), daemon=True
        ).start()
    """,
    "a thread that calls": """
        import threading
        def work():
            while True:
                cache.acquire(['k', 'l'])
        threading.Thread(target=work, daemon=True).start()
    """,
}


@pytest.mark.parametrize("what", EXITS)
def test_the_interpreter_exits_cleanly_with(
    what: str, cache: kvmem.NodeCache, script: Script
) -> None:
    cache.insert("k", b"value")
    code = f"import kvmem\ncache = kvmem.connect({str(cache.path)!r})\n"
    assert script(code + textwrap.dedent(EXITS[what])) == ""
    until(lambda: len(cache.as_operator().sessions()) == 1)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_leaks(cache: kvmem.NodeCache) -> None:
    cache.insert_batch({n: bytes(100) for n in range(64)})

    def use() -> None:
        for _ in range(60):
            cache.acquire(range(64))
            with cache.acquire(range(64)) as pins:
                memoryview(found(pins[5])).release()
            np.from_dlpack(found(cache.get(3)))
            cache.reserve("r", 100)
            cache.reserve("r", 100).commit()
            cache.stats()

    use()
    before = resident()
    use()
    use()
    use()
    assert resident() - before < 2 * MIB
    stats = cache.stats()
    assert (stats.pinned, stats.reservations) == (0, 0)


def test_tasks_of_an_event_loop(cache: kvmem.NodeCache) -> None:
    async def work(nodes: kvmem.AsyncNodeCache, seed: int) -> None:
        await nodes.insert(f"k{seed}", bytes([seed]) * 10_000)
        with await nodes.acquire([f"k{seed}", "none"]) as pins:
            assert bytes(found(pins[0])) == bytes([seed]) * 10_000 and pins[1] is None

    async def main() -> None:
        async with kvmem.connect_async(cache.path) as nodes:
            await asyncio.gather(*(work(nodes, seed) for seed in range(50)))
            rooms = await nodes.reserve_batch({"a": 1, "b": 2})
            rooms[0].write(b"1")
            await nodes.commit(rooms)
            assert await nodes.lookup(["a", "b", "c"]) == 2 and await nodes.contains("a")
            assert found(await nodes.get("a")).nbytes == 1
            await nodes.insert_batch({"c": b"c"})
            with await nodes.acquire_prefix(["a", "z"]) as pins:
                assert pins.hits == 1
            assert await nodes.touch(["a"]) == 1 and await nodes.remove("a")
            assert await nodes.remove_batch(["a", "b"]) == 1
            await nodes.keep_alive()
            assert len(await nodes.list_namespace()) == 51
            (await nodes.reserve("r", 1)).discard()
            assert await nodes.evict(1) > 0 and await nodes.clear() > 0
            assert (await nodes.stats()).values == 0 and not nodes.closed
        assert nodes.closed
        with pytest.raises(kvmem.ClosedError):
            await nodes.stats()
        with pytest.raises(kvmem.InvalidArgumentError, match="threads is 0"):
            kvmem.connect_async(cache.path, threads=0)

    asyncio.run(main())


def test_events_of_an_event_loop(cache: kvmem.NodeCache) -> None:
    async def main() -> None:
        nodes = await kvmem.connect_async(cache.path)
        start = (await nodes.events(2**63)).next
        waiting = [asyncio.create_task(nodes.events(start, wait=LIMIT)) for _ in range(3)]
        cancelled = asyncio.create_task(nodes.events(start, wait=LIMIT))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await nodes.insert("k", b"value")
        for events in await asyncio.gather(*waiting):
            assert [event.kind for event in events] == ["stored"]
        assert not await nodes.events(start + 1, wait=0.01)
        async for event in nodes.follow_events(start):
            assert event.key == "k"
            break
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await nodes.close()
        await nodes.close()

    asyncio.run(main())


def test_the_loop_runs_while_the_server_is_away(server: Server) -> None:
    async def main() -> int:
        async with kvmem.connect_async(server.path, retry_for=LIMIT) as nodes:
            await nodes.insert("k", b"value")
            os.kill(server.pid, signal.SIGSTOP)
            call = asyncio.create_task(nodes.get("k"))
            ticks = 0
            while ticks < 20:
                await asyncio.sleep(0.01)
                ticks += 1
            assert not call.done()
            server.kill()
            assert bytes(found(await call)) == b"value"
            # A task that is cancelled leaves no pin behind.
            os.kill(server.pid, signal.SIGSTOP)
            call = asyncio.create_task(nodes.get("k"))
            await asyncio.sleep(0.05)
            call.cancel()
            os.kill(server.pid, signal.SIGCONT)
            with pytest.raises(asyncio.CancelledError):
                await call
            del call
            while True:
                gc.collect()
                if (await nodes.stats()).pinned == 0:
                    return ticks
                await asyncio.sleep(0.01)

    assert asyncio.run(asyncio.wait_for(main(), LIMIT)) == 20
