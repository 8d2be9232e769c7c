"""What routers know of a node by ``kvmem serve --kv-events``: libzmq, and vLLM's structures."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import until
from kvmem.vllm._description import SUFFIX, Description

msgspec: Any = pytest.importorskip("msgspec")
zmq: Any = pytest.importorskip("zmq")

try:
    from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch
except ImportError:
    # The same structures.
    _event = {"omit_defaults": True, "gc": False, "tag": True}
    _hash = int | bytes
    _optional = [("locality", str | None, None)]
    BlockStored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[_hash]),
            ("parent_block_hash", _hash | None),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", int | None),
            ("medium", str | None),
            ("lora_name", str | None),
            ("extra_keys", list[tuple[Any, ...] | None] | None, None),
            ("group_idx", int | None, None),
            ("kv_cache_spec_kind", str | None, None),
            ("kv_cache_spec_sliding_window", int | None, None),
            *_optional,
        ],
        **_event,
    )
    BlockRemoved: Any = msgspec.defstruct(
        "BlockRemoved",
        [
            ("block_hashes", list[_hash]),
            ("medium", str | None),
            ("group_idx", int | None, None),
            *_optional,
        ],
        **_event,
    )
    AllBlocksCleared = msgspec.defstruct("AllBlocksCleared", [], **_event)
    KVEventBatch = msgspec.defstruct(
        "KVEventBatch",
        [
            ("ts", float),
            ("events", list[BlockStored | BlockRemoved | AllBlocksCleared]),
            ("data_parallel_rank", int | None, None),
        ],
        array_like=True,
        omit_defaults=True,
        gc=False,
    )

ROUNDS = int(os.environ.get("KVMEM_TEST_ROUNDS", "0"))
"""Kills in a long test."""
KILLS = max(ROUNDS, 6)
VALUE = 4096
TOKENS = 4
END = (1 << 64) - 1
NAMESPACE = "router"


def hash_of(parent: bytes | None, tokens: tuple[int, ...]) -> bytes:
    """Returns the hash of a block, in the manner of vLLM's."""
    return sha256(repr((parent, tokens)).encode()).digest()


def chain(seed: int, blocks: int) -> list[Description]:
    """Returns the chunks of a prompt, each of one block."""
    draw = random.Random(seed)
    parent, found = None, []
    for _ in range(blocks):
        tokens = tuple(draw.randrange(1 << 32) for _ in range(TOKENS))
        block = hash_of(parent, tokens)
        found.append(
            Description((block,), parent, tokens, TOKENS, None, None, None, 0, "full", None)
        )
        parent = block
    return found


def key_of(chunk: Description) -> bytes:
    return chunk.block_hashes[0] + bytes(4)


def store(cache: kvmem.NodeCache, chunks: list[Description]) -> None:
    """Stores chunks as engines do, with their descriptions."""
    with contextlib.suppress(kvmem.OutOfSpaceError):
        rows = cache.reserve_batch([(key_of(it), VALUE) for it in chunks])
        encoded = [(key_of(it) + SUFFIX, it.encode()) for it in chunks]
        abouts = cache.reserve_batch([(key, len(it)) for key, it in encoded])
        for reservation, (_, about) in zip(abouts, encoded):
            reservation.write(about)
        cache.commit([*abouts, *rows])


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


class Node:
    """``kvmem serve`` with a memory holder, so that its values survive a kill."""

    def __init__(self, folder: Path, *options: str, size: str = "8MiB") -> None:
        program = os.environ.get("KVMEM_COMMAND")
        if not program:
            pytest.skip("KVMEM_COMMAND does not name the built command")
        self.path, self.folder = folder / "k.sock", folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._program = program
        self._command = [program, "serve", "--size", size, "--pages", "4k", "--json", "-"]
        self._command += ["--socket", str(self.path), "--kv-events", self.address]
        self._command += ["--kv-events-whole-hashes", *options]
        self.start()

    def start(self) -> None:
        with open(self.folder / "log", "a") as log:
            self._server = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._server.stdout is not None
        text = ""
        for line in self._server.stdout:
            text += line
            with contextlib.suppress(ValueError):
                assert json.loads(text)["kv_events"] == self.address.removeprefix("tcp://")
                return
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()

    def stop(self) -> None:
        self.kill()
        subprocess.run([self._program, "holder", "--stop", "--socket", f"{self.path}.holder"])

    def client(self) -> kvmem.NodeCache:
        return kvmem.connect(self.path, namespace=NAMESPACE, retry_for=60)


class Router:
    """A subscriber: the media of each block, by the events that it has read."""

    def __init__(self, address: str, topic: bytes = b"", buffer: int = 0) -> None:
        self.blocks: dict[Any, set[str]] = {}
        self.events = self.gaps = self.clears = self.described = 0
        self.lag: list[float] = []
        self.last: int | None = None
        self.reads = threading.Event()
        self.reads.set()
        self._ends = threading.Event()
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 1 if buffer else 0)
        if buffer:
            self._socket.setsockopt(zmq.RCVBUF, buffer)
        self._socket.connect(address)
        self._socket.subscribe(topic)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        while not self._ends.is_set():
            if not (self.reads.wait(0.05) and self._socket.poll(50)):
                continue
            _, number, payload = self._socket.recv_multipart()
            at = int.from_bytes(number, "big")
            self.gaps += self.last is not None and at != self.last + 1
            self.last = at
            batch = decoder.decode(payload)
            if batch.events:
                self.lag.append(time.time() - batch.ts)
            self.take(batch)

    def take(self, batch: Any) -> None:
        for event in batch.events:
            self.events += 1
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                self.clears += 1
            elif isinstance(event, BlockStored):
                assert event.locality == "LOCAL"
                if event.token_ids:
                    (block,) = event.block_hashes
                    assert hash_of(event.parent_block_hash, tuple(event.token_ids)) == block
                    assert (event.block_size, event.group_idx) == (TOKENS, 0)
                    self.described += 1
                for block in event.block_hashes:
                    self.blocks.setdefault(block, set()).add(event.medium)
            else:
                for block in event.block_hashes:
                    self.blocks.get(block, set()).discard(event.medium)

    def knows(self) -> dict[bytes, str]:
        found = {}
        for block, media in list(self.blocks.items()):
            if media:
                (found[block],) = media
        return found

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close(linger=0)


def held(client: kvmem.NodeCache) -> dict[bytes, str]:
    """Returns the blocks that the node names, with their media."""
    names = [it.key for it in client.list_namespace()]
    keys = [it for it in names if isinstance(it, bytes) and not it.endswith(SUFFIX)]
    return {
        key[:-4]: "CPU" if place.in_memory else "STORAGE"
        for at in range(0, len(keys), 1000)
        for key, place in zip(keys[at : at + 1000], client.locate(keys[at : at + 1000]))
        if place.in_memory or place.in_tier
    }


def agrees(router: Router, client: kvmem.NodeCache) -> bool:
    """Returns whether a router knows what the node holds. Prints the number of differences."""
    knows, there = router.knows(), held(client)
    different = [it for it in knows.keys() | there.keys() if knows.get(it) != there.get(it)]
    print(f"{len(knows)} blocks known, {len(there)} held, {len(different)} differences")
    return not different and bool(there)


@contextlib.contextmanager
def routers(address: str, count: int) -> Iterator[list[Router]]:
    made = [Router(address) for _ in range(count)]
    try:
        yield made
    finally:
        for it in made:
            it.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    it = Node(tmp_path, "--tier", f"disk:{tmp_path / 'tier'},24MiB", "--max-blocks", "2000")
    yield it
    it.stop()


WRITER = """
import sys
from test_kv_events import chain, store
import kvmem
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with kvmem.connect(path, namespace="router", retry_for=60) as cache:
    for at in range(first, last):
        store(cache, chain(at, 8))
        if at % 3 == 0:
            store(cache, chain(at - 64, 8))
        if at % 7 == 0:
            cache.remove_batch([it.block_hashes[0] + bytes(4) for it in chain(at - 5, 8)])
"""


def start_writer(node: Node, first: int, last: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", WRITER, str(node.path), str(first), str(last)]
    return subprocess.Popen(arguments, env=environment)


def test_routers_know_what_the_node_holds_after_kills_of_server_and_clients(node: Node) -> None:
    """With ``KVMEM_TEST_ROUNDS=100`` it is the test of 100 kills and 10^6 events."""
    step = 1100 if ROUNDS else 300
    draw = random.Random(5)
    client = node.client()
    with routers(node.address, 2) as (first, second):
        for kill in range(KILLS):
            at = kill * step
            writers = [
                start_writer(node, at, at + step // 2),
                start_writer(node, at + step // 2, at + step),
            ]
            if kill % 2 == 0:
                # In the middle of a store, as likely as not.
                time.sleep(0.3 + draw.random() / 2)
                node.kill()
                node.start()
            else:
                time.sleep(0.5 + draw.random() / 2)
                writers[0].kill()
            assert writers[1].wait() == 0
            writers[0].wait()
        until(lambda: agrees(first, client) and agrees(second, client))
        with routers(node.address, 1) as (late,):
            until(lambda: agrees(late, client))
            assert late.described > 0
        print(f"{first.events} events, {first.clears} announcements, {KILLS} kills")
        lag = sorted(first.lag)
        print(f"lag: median {lag[len(lag) // 2]:.4f} s, p99 {lag[len(lag) * 99 // 100]:.4f} s")
        # One at the start, and one after each kill of the server.
        assert first.clears >= 1 + KILLS // 2
        assert first.gaps <= first.clears
        assert first.events > (1_000_000 if ROUNDS >= 100 else 10_000)
        client.as_operator().clear()
        until(lambda: not first.knows())
    client.close()


def test_an_evicted_chunk_changes_its_medium(node: Node) -> None:
    chunks = chain(1, 32)
    with node.client() as client, routers(node.address, 1) as (router,):
        store(client, chunks)
        until(lambda: router.knows() == {it.block_hashes[0]: "CPU" for it in chunks})
        client.evict(8 << 20)
        until(lambda: router.knows() == {it.block_hashes[0]: "STORAGE" for it in chunks})
        with client.acquire([key_of(it) for it in chunks]) as values:
            assert all(value is not None for value in values)
        until(lambda: router.knows() == {it.block_hashes[0]: "CPU" for it in chunks})
        assert (router.clears, router.gaps) == (1, 0)


def test_a_gap_is_replayed_and_what_is_too_old_is_everything(node: Node) -> None:
    chunks = [it for at in range(40) for it in chain(at, 4)]
    with node.client() as client, routers(node.address, 1) as (router,):
        for at in range(0, len(chunks), 4):
            store(client, chunks[at : at + 4])
            time.sleep(0.003)
        until(lambda: agrees(router, client))
        assert router.last is not None
        asking = zmq.Context.instance().socket(zmq.DEALER)
        asking.connect(node.address)
        decoder = msgspec.msgpack.Decoder(KVEventBatch)

        def replay(first: int) -> tuple[list[int], list[Any]]:
            """Asks for batches from a number on."""
            asking.send_multipart([b"", first.to_bytes(8, "big")])
            numbers: list[int] = []
            batches: list[Any] = []
            while True:
                assert asking.poll(10_000)
                _, topic, number, payload = asking.recv_multipart()
                assert topic == b""
                if not payload:
                    assert int.from_bytes(number, "big") == END
                    return numbers, batches
                numbers.append(int.from_bytes(number, "big"))
                batches.append(decoder.decode(payload))

        numbers, batches = replay(router.last - 3)
        assert numbers == list(range(router.last - 3, router.last + 1))
        numbers, batches = replay(0)
        assert numbers[-1] == router.last
        everything = Router.__new__(Router)
        everything.blocks, everything.events, everything.clears = {}, 0, 0
        everything.described = 0
        for batch in batches:
            everything.take(batch)
        assert everything.knows() == router.knows()
        assert isinstance(batches[0].events[0], AllBlocksCleared)
        asking.close(linger=0)
        # As vLLM's own example asks: one request, one answer.
        asking = zmq.Context.instance().socket(zmq.REQ)
        asking.connect(node.address)
        asking.send(router.last.to_bytes(8, "big"))
        assert asking.poll(10_000)
        _, number, payload = asking.recv_multipart()
        assert int.from_bytes(number, "big") == router.last and decoder.decode(payload)
        asking.close(linger=0)


def test_a_slow_router_learns_everything_again(node: Node) -> None:
    chunks = [it for at in range(2000) for it in chain(at, 8)]
    with node.client() as client, routers(node.address, 1) as (quick,):
        slow = Router(node.address, buffer=4096)
        until(lambda: slow.clears)
        slow.reads.clear()
        for at in range(0, len(chunks), 128):
            store(client, chunks[at : at + 128])
        until(lambda: agrees(quick, client))
        slow.reads.set()
        until(lambda: agrees(slow, client))
        assert quick.gaps == 0
        slow.close()


def test_a_malformed_peer_hurts_itself_alone(node: Node) -> None:
    draw = random.Random(3)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    with node.client() as client, routers(node.address, 1) as (router,):
        host, port = node.address.removeprefix("tcp://").split(":")
        peers = []
        for at in range(200):
            peer = socket.create_connection((host, int(port)))
            noise = draw.randbytes(draw.randrange(300))
            with contextlib.suppress(OSError):
                peer.sendall([b"", greeting, greeting + ready][at % 3] + noise)
            peers.append(peer)
        chunks = chain(1, 16)
        store(client, chunks)
        until(lambda: agrees(router, client))
        with routers(node.address, 1) as (late,):
            until(lambda: agrees(late, client))
        for peer in peers:
            peer.close()
        assert (router.clears, router.gaps) == (1, 0)


def test_routers_know_what_the_node_holds_while_its_memory_changes_its_size(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, size="16MiB")
    try:
        with node.client() as client, routers(node.address, 1) as (router,):
            operator = client.as_operator()
            writers = [start_writer(node, at, at + 300) for at in (0, 1000)]
            sizes = []
            while any(writer.poll() is None for writer in writers):
                for size in (4 << 20, 16 << 20):
                    sizes.append(operator.resize(size).size)
            assert all(writer.wait() == 0 for writer in writers)
            until(lambda: agrees(router, client))
            # Values that move stay where they are for a router: nothing is announced again.
            assert (router.clears, router.gaps) == (1, 0)
            assert 16 << 20 in sizes and min(sizes) < 16 << 20
            stats = client.stats()
            assert stats.given_back_bytes_total > 0 and stats.kv_event_subscribers == 1
            assert stats.kv_events_total > 0 and stats.calls >= stats.calls_within_1ms > 0
    finally:
        node.stop()


def test_100000_blocks_are_announced_within_a_second(tmp_path: Path) -> None:
    node = Node(tmp_path, "--align", "64", "--max-blocks", "120000", size="64MiB")
    try:
        with node.client() as client:
            for at in range(0, 100_000, 1000):
                keys = range(at, at + 1000)
                client.insert_batch([(key.to_bytes(4, "big"), b"value") for key in keys])
            node.kill()
            node.start()
            began = time.monotonic()
            with routers(node.address, 1) as (router,):
                until(lambda: len(router.blocks) == 100_000)
                seconds = time.monotonic() - began
                print(f"{seconds:.2f} s")
                assert seconds < (1.0 if ROUNDS else 10.0)
                assert client.lookup([(5).to_bytes(4, "big")]) == 1
    finally:
        node.stop()
