"""*Index*: what a router knows of an engine, by vLLM's own events over its own sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec  # type: ignore[import-not-found,unused-ignore]
import zmq  # type: ignore[import-not-found,unused-ignore]
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch


class Index:
    """The blocks that a publisher has announced, by medium."""

    def __init__(self, endpoint: str) -> None:
        self.blocks: dict[tuple[Any, int | None], set[str | None]] = {}
        """The media of each hash and group."""
        self.stored: list[BlockStored] = []
        """All events of stored blocks, but those of the GPU."""
        self.batches = self.events = self.gaps = 0
        self._closed = threading.Event()
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def media(self, block_hash: Any, group: int = 0) -> set[str | None]:
        """Returns where a block is."""
        return self.blocks.get((block_hash, group), set())

    def contents(self, *media: str) -> dict[Any, str]:
        """Returns the blocks that are in one of these media, with it. A block that is in two of
        them is a fault.
        """
        found: dict[Any, str] = {}
        for (block_hash, _), them in list(self.blocks.items()):
            here = them & set(media)
            if here:
                (medium,) = here
                found[block_hash] = str(medium)
        return found

    def close(self) -> None:
        """Ends the subscription."""
        self._closed.set()
        self._thread.join()
        self._socket.close(linger=0)

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        expected = None
        while not self._closed.is_set():
            if not self._socket.poll(50):
                continue
            _, number, payload = self._socket.recv_multipart()
            at = int.from_bytes(number, "big")
            self.gaps += expected is not None and at != expected
            expected = at + 1
            for event in decoder.decode(payload).events:
                self._take(event)
            self.batches += 1

    def _take(self, event: Any) -> None:
        self.events += 1
        if isinstance(event, AllBlocksCleared):
            self.blocks.clear()
            return
        change: Callable[[set[str | None], str | None], None] = set.discard
        if isinstance(event, BlockStored):
            change = set.add
            if event.medium != "GPU":
                self.stored.append(event)
        for block_hash in event.block_hashes:
            change(self.blocks.setdefault((block_hash, event.group_idx), set()), event.medium)
