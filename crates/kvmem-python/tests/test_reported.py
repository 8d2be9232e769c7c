"""Faults of other systems that their users reported: what kvmem does instead.

``docs/faults.md`` lists the reports.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kvmem
import pytest
from conftest import until
from node_server import Server

DEADLINE = 1.0
"""Seconds that a call waits for a server that hangs."""
SLACK = 5.0
"""Seconds more that a call may take on a busy machine. A fault makes it wait for ever."""

Call = Callable[[kvmem.NodeCache], object]
CALLS: dict[str, Call] = {
    "insert": lambda cache: cache.insert("new", b"value"),
    "insert_batch": lambda cache: cache.insert_batch([("new", b"value")]),
    "reserve": lambda cache: cache.reserve("new", 100),
    "reserve_batch": lambda cache: cache.reserve_batch([("new", 100)]),
    "get": lambda cache: cache.get("key"),
    "acquire": lambda cache: cache.acquire(["key"]),
    "acquire without waiting": lambda cache: cache.acquire(["key"], wait=False),
    "acquire_prefix": lambda cache: cache.acquire_prefix(["key"]),
    "acquire_prefix without waiting": lambda cache: cache.acquire_prefix(["key"], wait=False),
    "lookup": lambda cache: cache.lookup(["key"]),
    "locate": lambda cache: cache.locate(["key"]),
    "touch": lambda cache: cache.touch(["key"]),
    "remove": lambda cache: cache.remove("key"),
    "remove_batch": lambda cache: cache.remove_batch(["key"]),
    "keep_alive": lambda cache: cache.keep_alive(),
    "stats": lambda cache: cache.stats(),
    "events": lambda cache: cache.events(wait=0.1),
    "list_namespace": lambda cache: cache.list_namespace(),
    "misses": lambda cache: cache.misses(),
    "evict": lambda cache: cache.evict(1),
    "clear": lambda cache: cache.clear(),
    "in": lambda cache: "key" in cache,
    "len": len,
    "operator list": lambda cache: cache.as_operator().list(),
    "operator sessions": lambda cache: cache.as_operator().sessions(),
    "operator misses": lambda cache: cache.as_operator().misses(),
    "operator evict": lambda cache: cache.as_operator().evict(1),
    "operator clear": lambda cache: cache.as_operator().clear(),
    "operator resize": lambda cache: cache.as_operator().resize("1MiB"),
    "operator reclaim_pins": lambda cache: cache.as_operator().reclaim_pins(1),
}
ASK_NOBODY = {
    *("as_operator", "boundary", "closed", "devices", "fileno", "has_rings", "key_for"),
    *("memory_address", "memory_len", "namespace", "path", "populate_aliases", "read_only"),
    "unverified",
}
"""Calls of a client that need no answer of the server."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def timed(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.mark.parametrize("rings", [False, True], ids=["socket", "rings"])
def test_every_call_ends_at_a_server_that_hangs(server: Server, rings: bool) -> None:
    """No call of a client waits for a stopped server longer than its deadline, nor do the calls
    that release something, and the client goes on when the server does."""
    ended_otherwise = {"close", "commit"}
    assert public(kvmem.NodeCache) == ASK_NOBODY | ended_otherwise | CALLS.keys() & public(
        kvmem.NodeCache
    )
    assert {f"operator {name}" for name in public(kvmem.NodeOperator)} <= CALLS.keys()
    options: dict[str, Any] = {"retry_for": 0, "answer_within": DEADLINE, "rings": rings}
    kvmem.connect(server.path).close()
    cache = kvmem.connect(server.path, **options)
    cache.insert("key", b"value")
    pins = cache.acquire(["key"])
    room, other = cache.reserve("other", 5), cache.reserve("another", 5)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # Each of them in a thread: none waits for the deadlines of others, either.
        with ThreadPoolExecutor(len(CALLS)) as threads:

            def ends(call: Call) -> float:
                def raises() -> None:
                    with pytest.raises(kvmem.NodeDisconnectedError):
                        call(cache)

                return timed(raises)

            for name, took in zip(CALLS, threads.map(ends, CALLS.values())):
                assert took < DEADLINE + SLACK, (name, took)

        def commit() -> None:
            with pytest.raises(kvmem.NodeDisconnectedError):
                room.commit()

        def connect() -> None:
            with pytest.raises(kvmem.NodeDisconnectedError):
                kvmem.connect(server.path, **options)

        for end in (commit, connect, pins.release, other.discard):
            took = timed(end)
            assert took < DEADLINE + SLACK, (end, took)
    finally:
        os.kill(server.pid, signal.SIGCONT)

    def goes_on() -> bool:
        try:
            return cache.lookup(["key"]) >= 0
        except kvmem.NodeDisconnectedError:
            return False

    until(goes_on)
    until(lambda: cache.stats().pinned == 0)
    assert timed(cache.close) < SLACK
