"""What routers know of a node by vLLM's own events: its publisher, its sockets, its decoder."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import event_writer
import kvmem
import pytest
from engine_node import BLOCK, MIB, Node, prompt, shared, within
from engine_process import Engines
from event_writer import key_of, prompts
from kvmem.vllm._description import SUFFIX

Nodes = Callable[..., Node]
NAMESPACE = "events"
WHOLE_HASHES = ("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets vLLM announce hashes as they are. By default it announces 64 bits of each."""
    monkeypatch.setenv(*WHOLE_HASHES)


def endpoint(tmp_path: Path) -> str:
    """Returns an address that no other publisher has."""
    return f"ipc://{tmp_path}/events-{next(_numbers)}"


class Announcer:
    """An engine's manager whose events go to vLLM's publisher, as its scheduler sends them."""

    def __init__(self, node: Node, address: str, **options: Any) -> None:
        from event_index import Index
        from kvmem.vllm._manager import NodeOffloadingManager
        from kvmem.vllm._node_events import NodeEvents
        from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

        def connect() -> kvmem.NodeCache:
            return kvmem.connect(node.path, namespace=NAMESPACE, checksums=True)

        options = {"one_of_node": False, "describes": True, **options}
        self.events = NodeEvents(connect, str(node.path), **options)
        self.manager = NodeOffloadingManager(
            connect(), event_writer.ROW, [], None, events=self.events
        )
        self.publisher = ZmqEventPublisher(0, endpoint=address)
        self.index = Index(address)
        self.publishes = threading.Event()
        self._batch = KVEventBatch
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._steps, daemon=True)
        self._thread.start()
        # A subscription begins some time after the call.
        within(
            60, lambda: self.publisher.publish(self._batch(ts=0.0, events=[])) or self.index.batches
        )
        self.publishes.set()

    def _steps(self) -> None:
        while not self._closed.wait(0.001):
            if self.publishes.is_set() and self.manager.has_pending_work():
                events = list(self.manager.take_events())
                self.publisher.publish(self._batch(ts=time.time(), events=events))

    def close(self) -> None:
        self.manager.shutdown()
        self._closed.set()
        self._thread.join()
        self.publisher.shutdown()
        self.index.close()


@contextmanager
def announcer(node: Node, tmp_path: Path, **options: Any) -> Iterator[Announcer]:
    it = Announcer(node, endpoint(tmp_path), **options)
    try:
        yield it
    finally:
        it.close()


def start_writer(node: Node, seed: int, chunks: int) -> subprocess.Popen[bytes]:
    arguments = [str(node.path), NAMESPACE, str(seed), str(chunks)]
    return subprocess.Popen([sys.executable, event_writer.__file__, *arguments])


def held(client: kvmem.NodeCache, keys: list[bytes]) -> dict[bytes, str]:
    """Returns the hashes of chunks that the node holds, with their media."""
    found = {}
    for key, place in zip(keys, client.locate(keys)):
        if place.in_memory or place.in_tier:
            found[key[:-4]] = "CPU" if place.in_memory else "STORAGE"
    return found


def agrees(index: Any, client: kvmem.NodeCache, keys: list[bytes]) -> bool:
    """Whether a subscriber knows what the node holds. Prints the number of differences."""
    known, there = index.contents("CPU", "STORAGE"), held(client, keys)
    differences = [it for it in known.keys() | there.keys() if known.get(it) != there.get(it)]
    print(f"{len(known)} chunks announced, {len(there)} held, {len(differences)} differences")
    return not differences


def test_a_subscriber_knows_what_the_node_holds_after_100000_events(
    node: Nodes, tmp_path: Path
) -> None:
    chunks = 12_000
    tier = f"disk:{tmp_path / 'tier'},40MiB"
    shared_node = node(24 * MIB, "--max-blocks", "16384", "--tier", tier)
    tokens = {
        key_of(it): it.token_ids for seed in range(4) for one in prompts(seed, chunks) for it in one
    }
    keys = list(tokens)
    client = kvmem.connect(shared_node.path, namespace=NAMESPACE, retry_for=60)
    numbers: list[int] = []

    def events_so_far() -> int:
        return int(client.events(1 << 63, max=0).next) - numbers[-1]

    with announcer(shared_node, tmp_path) as first:
        numbers.append(client.events(1 << 63, max=0).next)
        writers = [start_writer(shared_node, seed, chunks) for seed in (0, 1)]
        within(120, lambda: first.index.contents("STORAGE"))
        # A writer is killed in the middle of a store, as likely as not.
        writers[0].kill()
        writers.append(start_writer(shared_node, 2, chunks))
        within(120, lambda: events_so_far() > 30_000)
        total = events_so_far()
        # The server is killed. The keeper has the memory, and the next one has another log.
        shared_node.kill()
        shared_node.start()
        numbers.append(client.events(0, max=0).next)
        # The engine makes no steps for so long that the log passes by.
        first.publishes.clear()
        for writer in writers[1:]:
            writer.wait()
        start_writer(shared_node, 3, chunks).wait()
        client.remove_batch(keys[-500:])
        client.evict(4 * MIB)
        within(120, lambda: first.events.has_queued)
        total += events_so_far()
        assert total > 100_000
        print(f"{total} events")
        first.publishes.set()
        within(120, lambda: agrees(first.index, client, keys))
        # An engine that attaches now announces the same.
        with announcer(shared_node, tmp_path) as second:
            within(120, lambda: agrees(second.index, client, keys))
            described = [it for it in second.index.stored if it.token_ids]
            assert len(described) > 0.9 * len(second.index.stored)
            # Each chunk comes after the one that it continues.
            seen: set[bytes] = set()
            hashes = {it.block_hashes[0] for it in described}
            for event in described:
                parent = event.parent_block_hash
                assert parent is None or parent in seen or parent not in hashes
                seen.add(event.block_hashes[0])
        for event in first.index.stored:
            (block,) = event.block_hashes
            if event.token_ids:
                assert tuple(event.token_ids) == tokens[block + bytes(4)]
                assert (
                    event_writer.hash_of(event.parent_block_hash, tuple(event.token_ids)) == block
                )
                assert (event.block_size, event.group_idx, event.locality) == (4, 0, "LOCAL")
        assert first.index.gaps == 0
        # Descriptions go with their chunks.
        names = [it.key for it in client.list_namespace() if isinstance(it.key, bytes)]
        left = [it.removesuffix(SUFFIX)[:-4] for it in names if it.endswith(SUFFIX)]
        assert left and not set(left) - held(client, keys).keys()
        # An operator removes everything.
        client.as_operator().clear()
        within(120, lambda: not first.index.contents("CPU", "STORAGE"))
    client.close()


def test_one_engine_of_a_node_announces_and_another_one_after_it(
    node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvmem.vllm import _lease

    monkeypatch.setattr(_lease, "TTL", 3.0)
    monkeypatch.setattr(_lease, "STANDBY", 0.2)
    shared_node = node(24 * MIB)
    start_writer(shared_node, 0, 400).wait()
    keys = [key_of(it) for one in prompts(0, 400) for it in one]
    with kvmem.connect(shared_node.path, namespace=NAMESPACE) as client:
        with announcer(shared_node, tmp_path, one_of_node=True) as first:
            within(60, lambda: agrees(first.index, client, keys))
            with announcer(shared_node, tmp_path, one_of_node=True) as second:
                time.sleep(4)
                assert not second.index.stored
                # The first one ends as after a kill: it neither renews nor removes its lease.
                monkeypatch.setattr(first.events._lease, "has", lambda cache: time.sleep(0.1))
                within(60, lambda: agrees(second.index, client, keys))
                within(60, lambda: not first.index.contents("CPU"))


def test_a_reset_engine_announces_its_own_chunks_alone(node: Nodes, tmp_path: Path) -> None:
    shared_node = node(24 * MIB)
    start_writer(shared_node, 0, 80).wait()
    keys = [key_of(it) for one in prompts(0, 80) for it in one]
    with (
        kvmem.connect(shared_node.path, namespace=NAMESPACE) as client,
        announcer(shared_node, tmp_path) as it,
    ):
        within(60, lambda: agrees(it.index, client, keys))
        it.manager.reset_cache()
        within(60, lambda: not it.index.contents("CPU"))
        client.insert(it.manager._prefix + keys[0], bytes(event_writer.ROW))
        within(60, lambda: it.index.contents("CPU") == {keys[0][:-4]: "CPU"})
        # Nobody has described it, so the event has the hash alone, as vLLM's own has then.
        assert (it.index.stored[-1].token_ids, it.index.stored[-1].block_size) == ([], 0)


def test_events_of_real_engines_describe_the_chunks_of_all(
    engines: Engines, small_model: Path, node: Nodes, tmp_path: Path
) -> None:
    from event_index import Index
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils.init_none_hash(sha256)
    shared_node = node(60 * MIB, "--tier", f"disk:{tmp_path / 'tier'},512MiB")

    def blocks_of(tokens: list[int]) -> list[bytes]:
        """Returns vLLM's hashes of the whole blocks of a prompt."""
        hashes: list[Any] = []
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = hashes[-1] if hashes else None
            block = tuple(tokens[at : at + BLOCK])
            hashes.append(kv_cache_utils.hash_block_tokens(sha256, parent, block))
        return hashes

    def check(events: list[Any]) -> None:
        """Checks that announced tokens have the announced hashes."""
        for event in events:
            assert len(event.token_ids) == event.block_size * len(event.block_hashes) > 0
            parent = event.parent_block_hash
            for at, announced in enumerate(event.block_hashes):
                block = tuple(event.token_ids[at * BLOCK : (at + 1) * BLOCK])
                assert kv_cache_utils.hash_block_tokens(sha256, parent, block) == announced
                parent = announced

    def start() -> tuple[Any, Index]:
        address = endpoint(tmp_path)
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": address}
        engine = engines.start(
            small_model,
            shared(shared_node),
            environment=dict([WHOLE_HASHES]),
            kv_events_config=config,
            prefix_caching_hash_algo="sha256",
        )
        return engine, Index(address)

    def knows(engine: Any, index: Index, tokens: list[int], *media: str) -> bool:
        """Lets an engine make some steps, and returns whether it has announced a prompt."""
        engine.generate(prompt(99, 16))
        return all(index.media(it) & set(media) for it in blocks_of(tokens))

    one, of_one = start()
    two, of_two = start()
    for seed, engine in ((0, one), (1, two)):
        engine.generate(prompt(seed, 600))
    for engine, index in ((one, of_one), (two, of_two)):
        for seed in (0, 1):
            within(60, lambda: knows(engine, index, prompt(seed, 600), "CPU"))
        check(index.stored)
    # Enough for some to go to the disk.
    for seed in range(2, 8):
        one.generate(prompt(seed, 1000))
    within(120, lambda: knows(two, of_two, prompt(0, 600), "STORAGE"))
    check(of_two.stored)
    assert "CPU" not in of_two.media(blocks_of(prompt(0, 600))[0])
    for engine in (one, two):
        engine.kill()
    for index in (of_one, of_two):
        index.close()
    assert os.path.exists(shared_node.path)


def test_the_server_announces_what_engines_describe(
    engines: Engines, small_model: Path, node: Nodes, tmp_path: Path
) -> None:
    """``kvmem serve --kv-events``, and vLLM's own decoder."""
    from event_index import Index
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils.init_none_hash(sha256)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    options = ["--kv-events", address, "--kv-events-whole-hashes"]
    shared_node = node(60 * MIB, "--tier", f"disk:{tmp_path / 'tier'},512MiB", *options)
    index = Index(address)
    # The events of vLLM are not enabled.
    engine = engines.start(
        small_model,
        shared(shared_node, announce="server"),
        environment=dict([WHOLE_HASHES]),
        prefix_caching_hash_algo="sha256",
    )
    tokens = prompt(0, 600)
    engine.generate(tokens)
    parent, hashes = None, []
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = tuple(tokens[at : at + BLOCK])
        parent = kv_cache_utils.hash_block_tokens(sha256, parent, block)
        hashes.append(parent)
    within(60, lambda: all(index.media(it) == {"CPU"} for it in hashes))
    described = {it.block_hashes[-1]: it for it in index.stored if it.token_ids}
    for at, block_hash in enumerate(hashes):
        event = described[block_hash]
        assert event.token_ids == tokens[at * BLOCK : (at + 1) * BLOCK]
        assert event.parent_block_hash == (hashes[at - 1] if at else None)
        assert (event.block_size, event.group_idx, event.locality) == (BLOCK, 0, "LOCAL")
    engine.kill()
    # The node has them still, and the next server says so.
    shared_node.kill()
    index.blocks.clear()
    shared_node.start()
    within(60, lambda: all(index.media(it) == {"CPU"} for it in hashes))
    with kvmem.connect(shared_node.path) as client:
        client.as_operator().evict(60 * MIB)
    within(60, lambda: all(index.media(it) == {"STORAGE"} for it in hashes))
    index.close()
