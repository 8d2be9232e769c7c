"""Lower tiers in Python: in chains, below queues, alone, and with every fault they can have."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import LIMIT, MIB, until

Key = int | bytes | str


def value(key: int, version: int = 0) -> bytes:
    return (key << 32 | version).to_bytes(8, "little") * (300 + key % 7)


class Dictionary:
    """A tier that is a dictionary. ``fault`` is called with the name of each method."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[Key, bytes] = {}
        self.fault: Callable[[str], object] = lambda method: None
        self.stores = 0
        self.removed: list[Key] = []
        self.closed = False

    def __lower_tier__(self, pool: kvmem.Pool) -> Dictionary:
        return self

    def store(self, values: list[kvmem.Pinned]) -> None:
        self.fault("store")
        self.stores += 1
        with self.lock:
            for pinned in values:
                if not pinned.superseded:
                    self.values[pinned.cache_key] = bytes(pinned)

    def ask(self, keys: list[Key]) -> Sequence[int | None]:
        self.fault("ask")
        with self.lock:
            return [len(self.values[key]) if key in self.values else None for key in keys]

    def fetch_into(self, keys: list[Key], buffers: list[memoryview]) -> Sequence[int | None]:
        self.fault("fetch_into")
        lengths: list[int | None] = []
        for key, buffer in zip(keys, buffers, strict=True):
            with self.lock:
                found = self.values.get(key)
            if found is not None and len(found) == len(buffer):
                buffer[:] = found
            lengths.append(None if found is None else len(found))
        return lengths

    def remove(self, keys: list[Key]) -> None:
        self.fault("remove")
        self.removed += keys
        with self.lock:
            for key in keys:
                self.values.pop(key, None)

    def clear(self) -> None:
        self.fault("clear")
        with self.lock:
            self.values.clear()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def below() -> Dictionary:
    return Dictionary()


@pytest.fixture
def cache(pool: kvmem.Pool, below: Dictionary) -> Iterator[kvmem.KvCache]:
    with kvmem.KvCache(pool, max_bytes=MIB, lower_tier=below) as cache:
        yield cache


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: seen.append(info.exc_value))
    return seen


def raising(error: BaseException, *methods: str) -> Callable[[str], None]:
    def fault(method: str) -> None:
        if method in methods:
            raise error

    return fault


def test_evicted_values_come_back_under_keys_of_each_type(
    cache: kvmem.KvCache, below: Dictionary
) -> None:
    values: dict[Key, bytes] = {
        1: b"an int",
        b"1": b"bytes",
        "1": b"a str",
        2: b"",
        "ü": b"x" * 999,
    }
    for key, each in values.items():
        if each:
            cache.insert(key, each)
    cache.evict_to(0)
    del values[2]
    assert below.values == values and cache.lower_tier is below
    found = cache.get_batch([*values, 7])
    assert [one and bytes(one) for one in found] == [*values.values(), None]
    del found
    assert cache.remove(b"1") is not None and b"1" not in below.values
    assert cache.get(b"1") is None
    cache.clear()
    assert not below.values and len(cache) == 0
    cache.close()
    assert below.closed


class Counted(Dictionary):
    """A tier that counts its values and records its calls, as the tier of the other languages."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fault = lambda method: self.calls.append("fetch" if method == "fetch_into" else method)

    def __len__(self) -> int:
        self.fault("values")
        return len(self.values)

    def __bool__(self) -> bool:
        return True


VERBS: dict[str, Callable[[kvmem.KvCache], object]] = {
    "get": lambda cache: cache.get(7) is not None,
    "get_in_memory": lambda cache: cache.get_in_memory(7) is not None,
    "get_batch": lambda cache: cache.get_batch([7]) != [None],
    "get_batch_until": lambda cache: cache.get_batch([7], timeout=LIMIT) != [None],
    "start_fetch": lambda cache: cache.start_fetch([7]).result(LIMIT) != [None],
    "contains": lambda cache: 7 in cache,
    "contains_in_memory": lambda cache: cache.contains_in_memory(7),
    "len": len,
    "len_in_memory": lambda cache: cache.len_in_memory(),
    "remove": lambda cache: cache.remove(7) is not None,
    "remove_in_memory": lambda cache: cache.remove_in_memory(7) is not None,
    "clear": lambda cache: cache.clear(),
    "clear_in_memory": lambda cache: cache.clear_in_memory(),
    "insert": lambda cache: cache.insert(7, b"another"),
    "evict_to": lambda cache: None if cache.evict_to(0) == 0 else -1,
    "prefetch": lambda cache: cache.prefetch([7]),
}
TABLE = Path(__file__).parents[2] / "kvmem/tests/data/cache_verbs.txt"


def test_verbs_return_and_call_what_the_table_says(pool: kvmem.Pool) -> None:
    rows = [line.split() for line in TABLE.read_text().splitlines() if line[0] != "#"]
    assert [row[0] for row in rows] == list(VERBS)
    for verb, *cells in rows:
        places = zip(("memory", "tier", "both", "missing"), cells[::2], cells[1::2], strict=True)
        for place, answer, calls in places:
            below = Counted()
            with kvmem.KvCache(pool, lower_tier=below) as cache:
                if place != "missing":
                    cache.insert(7, b"value")
                if place in ("tier", "both"):
                    cache.evict_to(0)
                assert place != "both" or cache.get(7) is not None
                below.calls.clear()
                returned = VERBS[verb](cache)
                made = "+".join(below.calls) or "-"
                got = len(cache) if returned is None else returned
                assert (got, made) == (int(answer), calls), f"{verb} of {place}"


def test_hints_of_values(pool: kvmem.Pool, tmp_path: Path) -> None:
    """Values expire in memory, and their priority and time reach the tier."""
    with (
        kvmem.DiskTier(tmp_path / "tier", bytes="1MiB") as tier,
        kvmem.KvCache(pool, lower_tier=tier) as cache,
    ):
        cache.insert_batch({"little": b"1", "short": b"2"}, ttl=0.2)
        cache.insert_batch([("deep", b"3"), ("hour", b"4")], depths=[7, 8], priority=3, ttl=3600)
        with cache.reserve(
            "room", 1, depth=9, priority=3, ttl=3600, data_type="float8_e5m2"
        ) as room:
            room.write(b"5")
        cache.insert("plain", b"6", priority=0)
        until(lambda: cache.get("short") is None)
        assert "little" not in cache and "hour" in cache
        cache.evict_to(0)
        assert "short" not in tier and "little" not in tier
        for key in range(300):
            tier.store({key: value(key) * 4})
        assert tier.stats().evictions > 50 and "plain" not in tier
        assert all(key in tier for key in ("deep", "hour", "room"))
        found = cache.get("hour")
        assert found is not None and bytes(found) == b"4"
        found.release()
        for call in (tier.store, cache.insert_batch):
            with pytest.raises(kvmem.InvalidArgumentError, match="float32") as unknown:
                call({1: b"1"}, data_type="float32")
            assert "give unknown or bfloat16 or float16" in str(unknown.value)
        with pytest.raises(kvmem.InvalidArgumentError, match="1 depths for 2 values"):
            cache.insert_batch({1: b"1", 2: b"2"}, depths=[1])
        with pytest.raises(kvmem.OutOfSpaceError):
            cache.insert_batch({1: b"1", 2: bytes(9 * MIB)})
        assert 1 not in cache


def test_errors_name_the_argument_and_the_element(cache: kvmem.KvCache) -> None:
    bad: Any = cache
    for words, call in (
        ("keys is an iterable of keys, such as a list, not one of type int", bad.get_batch),
        ("keys is an iterable of keys, such as a list, not one of type int", bad.prefetch),
        ("values is an iterable of pairs", bad.insert_batch),
    ):
        with pytest.raises(TypeError, match=words):
            call(5)
    for call in (bad.get_batch, bad.start_fetch, bad.prefetch):
        with pytest.raises(TypeError, match=r"keys\[1\]: a key is an int, bytes or a str, not"):
            call([1, 1.5])
    with pytest.raises(TypeError, match="a key of values: a key is an int"):
        bad.insert_batch({1.5: b"1"})
    with pytest.raises(TypeError, match=r"values\['a'\]: a bytes-like object is required"):
        bad.insert_batch({"a": 5})
    with pytest.raises(TypeError, match="depths: 'str' object"):
        bad.insert_batch({"a": b"1"}, depths=["x"])


def test_a_chain_of_memory_disk_and_python(
    tmp_path: Path, pool: kvmem.Pool, below: Dictionary
) -> None:
    with (
        kvmem.DiskTier(tmp_path / "tier", bytes="1MiB", max_entries=1000) as tier,
        kvmem.KvCache(
            pool,
            max_bytes=MIB // 2,
            lower_tier=kvmem.Chain(tier, below),
            write_behind="128KiB",
        ) as cache,
    ):
        for key in range(800):
            cache.insert(key, value(key))
        cache.evict_to(0)
        assert cache.flush(LIMIT) and len(below.values) == 800 and tier.stats().evictions > 0
        # A writer gives many values at once.
        assert below.stores < 400
        for begin in reversed(range(0, 800, 50)):
            some = range(begin, begin + 50)
            assert [bytes(one or b"") for one in cache.get_batch(some)] == list(map(value, some))
        assert tier.stats().hits > 0
        cache.remove(5)
        assert 5 not in below.values and 5 not in tier and cache.get(5) is None
        fetching = cache.start_fetch(range(10, 20))
        assert [bytes(one or b"") for one in fetching.result(LIMIT)] == list(
            map(value, range(10, 20))
        )
        cache.clear()
        assert not below.values and len(tier) == 0
    assert below.closed


def test_an_exception_costs_the_value(
    cache: kvmem.KvCache, below: Dictionary, unraisable: list[BaseException | None]
) -> None:
    error = ValueError("no")
    cache.insert(1, b"older")
    cache.evict_to(0)
    below.fault = raising(error, "store")
    cache.insert(1, b"newer")
    cache.evict_to(0)
    # Neither the newer value nor the older one.
    assert unraisable == [error] and not below.values and cache.stats().sink_failures == 1
    below.fault = raising(error, "store", "remove")
    cache.insert(2, b"value")
    cache.evict_to(0)
    assert unraisable == [error] * 3 and cache.stats().sink_failures == 2
    below.fault = lambda method: None
    below.values[2] = b"value"
    # The cache does not trust the tier for this key.
    assert cache.get(2) is None
    cache.clear()
    below.values[2] = b"value"
    with cache.get(2) or pytest.fail() as found:
        assert bytes(found) == b"value"


def test_an_exception_of_a_read_is_a_miss(
    cache: kvmem.KvCache, below: Dictionary, unraisable: list[BaseException | None]
) -> None:
    cache.insert(1, b"value")
    cache.evict_to(0)
    error = OSError("the network is down")
    for method in ("ask", "fetch_into"):
        below.fault = raising(error, method)
        assert cache.get(1) is None and cache.get_batch([1, 2]) == [None, None]
        # A thread of the cache reads.
        assert cache.start_fetch([1]).result(LIMIT) == [None]
    assert set(unraisable) == {error} and len(unraisable) == 6
    below.fault = lambda method: None
    with cache.get(1) or pytest.fail() as found:
        assert bytes(found) == b"value"


def test_what_a_removal_raises_is_raised(cache: kvmem.KvCache, below: Dictionary) -> None:
    cache.insert(1, b"value")
    cache.evict_to(0)
    below.fault = raising(OSError("down"), "remove", "clear")
    with pytest.raises(OSError, match="down"):
        cache.remove(1)
    below.fault = lambda method: None
    # It may have the value still.
    assert 1 in below.values and cache.get(1) is None
    below.fault = raising(OSError("down"), "clear")
    with pytest.raises(OSError, match="down"):
        cache.clear()
    below.fault = lambda method: None
    cache.clear()
    assert not below.values


Evicting = Callable[[kvmem.KvCache], object]


EVICTING: dict[str, Evicting] = {
    "insert": lambda cache: cache.insert("last", bytes(2000)),
    "reserve": lambda cache: cache.reserve("last", 2000),
    "evict_to": lambda cache: cache.evict_to(0),
}


@pytest.mark.parametrize("evict", EVICTING)
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_store_reaches_the_caller(
    pool: kvmem.Pool,
    below: Dictionary,
    unraisable: list[BaseException | None],
    evict: str,
    raised: type[BaseException],
) -> None:
    calls: list[str] = []

    def fault(method: str) -> None:
        calls.append(method)
        if method == "store":
            raise raised

    with kvmem.KvCache(pool, max_bytes=4000, max_blocks=100, lower_tier=below) as cache:
        for key in range(3):
            cache.insert(key, bytes(1000))
        below.fault = fault
        with pytest.raises(raised):
            EVICTING[evict](cache)
        # After the interrupt no further value was given to it; each was dropped, removed and
        # counted.
        assert calls.count("store") == 1 and below.removed and not below.values
        assert cache.stats().sink_failures == cache.stats().evictions == len(below.removed)
        assert cache.evict_to(4000) == cache.nbytes, "it is raised once"
        if evict == "insert":
            assert "last" not in cache, "an insertion that raises puts nothing in"
        below.fault = lambda method: None
    assert not unraisable


def test_an_interrupt_in_a_read_or_a_removal_reaches_the_caller(
    cache: kvmem.KvCache, below: Dictionary, unraisable: list[BaseException | None]
) -> None:
    cache.insert(1, b"value")
    cache.evict_to(0)
    for method in ("ask", "fetch_into"):
        below.fault = raising(KeyboardInterrupt(), method)
        with pytest.raises(KeyboardInterrupt):
            cache.get(1)
        with pytest.raises(KeyboardInterrupt):
            cache.get_batch([1])
    assert not unraisable
    # In a thread of the cache there is no caller.
    assert cache.start_fetch([1]).result(LIMIT) == [None]
    assert [type(each) for each in unraisable] == [KeyboardInterrupt]

    def fault(method: str) -> None:
        raise {"store": ValueError, "remove": KeyboardInterrupt}.get(method, OSError)

    cache.insert(1, b"other")
    below.fault = fault
    with pytest.raises(KeyboardInterrupt):
        cache.evict_to(0)
    assert type(unraisable[-1]) is ValueError
    below.fault = lambda method: None
    assert cache.stats().sink_failures == 1 and cache.get(1) is None
    assert cache.get_batch([1]) == [None]


def test_a_signal_in_a_tier_interrupts_the_insertion(script: Callable[..., str]) -> None:
    script(
        """
        import signal, time
        import kvmem
        # It may be ignored here, as in the background of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Slow:
            def __lower_tier__(self, pool): return self
            def store(self, values):
                signal.raise_signal(signal.SIGINT)
                time.sleep(100)
            def ask(self, keys): return [None for _ in keys]
            def fetch_into(self, keys, buffers): return [None for _ in keys]
            def remove(self, keys): ...
            def clear(self): ...
            def close(self): ...
        cache = kvmem.KvCache(kvmem.Pool("1MiB", pages="4k"), max_blocks=1, lower_tier=Slow())
        cache.insert(1, b"one")
        try:
            cache.insert(2, b"two")
        except KeyboardInterrupt:
            assert cache.stats().sink_failures == 1 and 2 not in cache
        else:
            raise AssertionError("the interrupt is lost")
        """
    )


@pytest.mark.parametrize("out", ["replace", "remove", "clear"])
def test_a_value_that_arrives_late_is_superseded(
    pool: kvmem.Pool, below: Dictionary, out: str
) -> None:
    """It reports so under the lock of the tier, and no look-up finds it or an older one."""
    reached, go = threading.Event(), threading.Event()

    def fault(method: str) -> None:
        if method == "store" and not reached.is_set():
            reached.set()
            assert go.wait(LIMIT)

    with kvmem.KvCache(pool, lower_tier=below) as cache:
        cache.insert(1, b"the first")
        below.fault = fault
        thread = threading.Thread(target=cache.evict_to, args=(0,))
        thread.start()
        assert reached.wait(LIMIT)
        assert cache.get(1) is None, "it is on its way"
        if out == "replace":
            cache.insert(1, b"the second")
            cache.evict_to(0)
        elif out == "remove":
            cache.remove(1)
        else:
            cache.clear()
        go.set()
        thread.join(LIMIT)
        expected = {1: b"the second"} if out == "replace" else {}
        assert below.values == expected and cache.stats().sink_failures == 0
        found = cache.get(1)
        assert (found and bytes(found)) == expected.get(1)
        del found


def test_wrong_results_are_misses(
    cache: kvmem.KvCache, below: Dictionary, unraisable: list[BaseException | None]
) -> None:
    cache.insert(1, b"value")
    cache.evict_to(0)
    ask, fetch_into = below.ask, below.fetch_into
    wrong: tuple[Any, ...] = ([], [1, 2], None, 7, ["5"], [-1])

    def answering(answer: Any) -> Callable[..., Any]:
        return lambda *arguments: answer

    for answer in wrong:
        below.ask = answering(answer)  # type: ignore[method-assign]
        assert cache.get(1) is None, answer
    assert len(unraisable) == len(wrong)
    below.ask = ask  # type: ignore[method-assign]
    for answer in (*wrong, [4], [None], [6], [True]):
        below.fetch_into = answering(answer)  # type: ignore[method-assign]
        assert cache.get(1) is None, answer
    below.fetch_into = fetch_into  # type: ignore[method-assign]
    # A length for which there is no space.
    below.ask = lambda keys: [2**40 for _ in keys]  # type: ignore[method-assign]
    assert cache.get(1) is None
    below.ask = ask  # type: ignore[method-assign]
    with cache.get(1) or pytest.fail() as found:
        assert bytes(found) == b"value"


def test_the_cache_waits_for_memory_that_is_in_use(
    cache: kvmem.KvCache, below: Dictionary, unraisable: list[BaseException | None]
) -> None:
    """A buffer is dead after the call, and views that were made of it are waited for."""
    cache.insert(1, b"value" * 100)
    cache.evict_to(0)
    kept: list[memoryview] = []
    fetch_into = below.fetch_into

    def keep_buffers(keys: list[Key], buffers: list[memoryview]) -> Sequence[int | None]:
        kept.extend(buffers)
        return fetch_into(keys, buffers)

    below.fetch_into = keep_buffers  # type: ignore[method-assign]
    with cache.get(1) or pytest.fail() as found:
        assert bytes(found) == b"value" * 100
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(kept[0])
    kept.clear()
    cache.evict_to(0)

    def keep_views(keys: list[Key], buffers: list[memoryview]) -> Sequence[int | None]:
        kept.extend(memoryview(buffer) for buffer in buffers)
        return fetch_into(keys, buffers)

    below.fetch_into = keep_views  # type: ignore[method-assign]
    done: list[bytes] = []

    def get() -> None:
        with cache.get(1) or pytest.fail() as found:
            done.append(bytes(found))

    thread = threading.Thread(target=get)
    thread.start()
    # A slice of the buffer is an export of its own.
    until(lambda: kept)
    time.sleep(0.05)
    waits = bool(unraisable)
    kept.clear()
    thread.join(LIMIT)
    assert not thread.is_alive() and done == [b"value" * 100]
    assert not waits or isinstance(unraisable[0], BufferError)


def test_objects_that_are_no_such_tier(pool: kvmem.Pool, below: Dictionary) -> None:
    class Lacking:
        def __init__(self, method: str) -> None:
            self.method = method

        def __lower_tier__(self, pool: kvmem.Pool) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            if name == self.method or name.startswith("__"):
                raise AttributeError(name)
            return getattr(below, name)

    for method in ("store", "ask", "fetch_into", "remove", "clear", "close"):
        for tier in (Lacking(method), kvmem.Chain(below, Lacking(method))):
            with pytest.raises(TypeError, match=f"Lacking.* has no method {method}"):
                kvmem.KvCache(pool, lower_tier=tier)

    class Raises:
        def __lower_tier__(self, pool: kvmem.Pool) -> Any:
            raise OSError("not today")

    with pytest.raises(OSError, match="not today"):
        kvmem.KvCache(pool, lower_tier=kvmem.Chain(below, Raises()))

    class OneByOne:
        """A tier of the form that caches once called for one key after the other."""

        def __lower_tier__(self, pool: kvmem.Pool) -> Any:
            return self

        def put(self, pinned: kvmem.Pinned) -> None: ...
        def fetch(self, cache: kvmem.KvCache, key: Key) -> None: ...
        def invalidate(self, key: Key) -> None: ...
        def clear(self) -> None: ...
        def close(self) -> None: ...

    for old in (OneByOne(), kvmem.Chain(below, OneByOne())):
        words = r"OneByOne.* has no method store: kvmem\.tier has .* docs/how-to/lower-tier\.md"
        with pytest.raises(TypeError, match=words):
            kvmem.KvCache(pool, lower_tier=old, write_behind=MIB)
    with pytest.raises(TypeError, match=r"object has no method __lower_tier__\(pool\)"):
        kvmem.KvCache(pool, lower_tier=object())  # type: ignore[arg-type]
