"""*Events of a node*: its values, in vLLM's stream of events. Importing this module imports vLLM.

A thread of each announcing engine reads the node's log and asks the server where the values of the
named keys are now. It queues the difference to what was announced, and the scheduler takes it from
there. The answer of the server decides, not the kind of an event, so neither the order of events
nor reading one twice matters. A removal comes before a store in its place, and a chunk after the
one that it continues. docs/distributed/vllm.md has the table of events, decision 0150 the reasons.

*Completeness.* An engine that attaches, or has missed events, examines everything that the node
lists. Nothing is ever cleared: vLLM's ``AllBlocksCleared`` concerns the blocks of the GPU as well.
The tier does not name evicted keys, so the thread then asks for all chunks there. Once a minute it
asks for every announced chunk, because expiry has no event, and uses the descriptions of these
chunks, so they are evicted later.

*Back-pressure.* A thread whose queue is full waits. At worst it announces the difference later."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE

from .._kvmem import NodeCache
from ..errors import KvmemError, NodeReplacedError, OutOfSpaceError
from ._announced import Announced, removed_events, stored_event
from ._answers import GROUP
from ._calls import parts
from ._describing import Descriptions
from ._description import SUFFIX, decode, parents_first
from ._lease import Lease
from ._outage import Outage

_log = logging.getLogger("vllm.kvmem")

_WAIT = 0.5
"""Seconds that one call waits for events."""
_BATCH = 512
"""Keys of one call, and events."""
_AT_ONCE = 8192
"""Keys that are put in order together: at least those of one commit."""
_MAX_QUEUED = 8192
"""Events that wait for the scheduler."""
_MAX_TAKEN = 1024
"""Events that one step of the scheduler publishes. The engine makes steps until none is left."""
_ROUND = 60.0
"""Seconds between two rounds through all chunks that are announced."""
_PART = 20
"""A look for evictions of the tier takes at most this part of the time."""
_HASHES = (16, 32)
"""Lengths of vLLM's hashes."""


class NodeEvents(Descriptions):
    """The events of a node, for one engine. ``path`` is the socket of the server."""

    def __init__(
        self, connect: Callable[[], NodeCache], path: str, *, one_of_node: bool, describes: bool
    ) -> None:
        super().__init__(describes=describes)
        self._connect = connect
        self._outage = Outage(path, "events")
        self._lease = Lease(self._pause) if one_of_node else None
        # The thread alone uses these. It follows a reset with its next call.
        self._following = b""
        self._held: dict[bytes, Announced] = {}
        self._to_check: list[bytes] = []
        self._tier_changed = False
        self._check_began = self._next_check = 0.0
        self._next_round = 0.0
        self._refreshes = False
        # The lock protects the queue and what the scheduler's thread says.
        self._lock = threading.Condition()
        self._queue: deque[Any] = deque()
        self._resets = 0
        self._closed = False
        self._left = False
        self._thread = threading.Thread(target=self._run, name="kvmem-events", daemon=True)
        self._thread.start()

    # Calls of the scheduler's thread.

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    def take(self) -> list[Any]:
        with self._lock:
            taken = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_TAKEN))]
            if taken:
                self._lock.notify_all()
        return taken

    def reset(self, prefix: bytes) -> None:
        with self._lock:
            super().reset(prefix)
            self._resets += 1
            self._lock.notify_all()

    def leave(self) -> None:
        with self._lock:
            self._left = True
            self._lock.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * _WAIT + 1)

    # The thread.

    def _run(self) -> None:
        try:
            cache = self._open()
            if cache is not None:
                with cache:
                    self._serve(cache)
        except Exception:
            _log.exception("kvmem: this engine announces no chunks of the node until it restarts")
        self._withdraw()

    def _open(self) -> NodeCache | None:
        while not self._ends():
            try:
                cache = self._connect()
            except KvmemError as error:
                self._outage.begin(error)
                self._outage.wait(self._pause, self._ends)
            else:
                self._outage.end()
                return cache
        return None

    def _serve(self, cache: NodeCache) -> None:
        """Follows the log until the engine ends, over failures of the server."""
        at: int | None = None
        resets = -1
        while not self._ends():
            try:
                if self._lease is not None and not self._lease.has(cache):
                    self._withdraw()
                    at = None
                    continue
                if at is None or resets != self._resets:
                    resets = self._resets
                    at = self._resynchronise(cache)
                at = self._follow(cache, at)
                self._outage.end()
            except NodeReplacedError:
                # The workers of this engine have mapped the old memory.
                return
            except KvmemError as error:
                # The position of before tells whether events were missed meanwhile. What was being
                # examined is not known: all of it is examined again.
                at = None
                self._outage.begin(error)
                self._outage.wait(self._pause, self._ends)
        if self._lease is not None:
            self._lease.end(cache)

    def _follow(self, cache: NodeCache, at: int) -> int | None:
        """Announces the next events. Returns the next position; None: events were missed."""
        wait = 0.01 if self._to_check else _WAIT
        keys: dict[bytes, None] = {}
        while True:
            batch = cache.events(at, max=_BATCH, wait=wait)
            if batch.lost:
                return None
            at = batch.next
            for event in batch:
                if event.kind == "tier_evicted":
                    self._tier_changed = True
                elif (key := self._chunk_of(event.key)) is not None:
                    keys[key] = None
            # A commit logs the end of a prefix before its start.
            if len(batch) < _BATCH or len(keys) >= _AT_ONCE:
                break
            wait = 0.0
        if keys:
            self._examine(cache, list(keys))
        self._check(cache)
        return at

    def _resynchronise(self, cache: NodeCache) -> int:
        """Announces the difference between what is announced and what the node holds. Returns the
        position in the log from which later changes are read."""
        self._following = self._prefix
        at = cache.events(1 << 63, max=0).next
        names = [it.key for it in cache.list_namespace()]
        chunks = {key for name in names if (key := self._chunk_of(name)) is not None}
        abouts = {
            key
            for name in names
            if isinstance(name, bytes)
            and name.endswith(SUFFIX)
            and (key := self._chunk_of(name[: -len(SUFFIX)])) is not None
        }
        self._examine(cache, list(chunks | abouts | self._held.keys()), orphans=abouts)
        self._tier_changed = False
        self._to_check = []
        self._refreshes = False
        self._next_round = time.monotonic() + _ROUND
        return at

    def _chunk_of(self, name: Any) -> bytes | None:
        """Returns the key of a value if it is a chunk that this engine finds."""
        prefix = self._following
        if not isinstance(name, bytes) or not name.startswith(prefix):
            return None
        is_chunk = len(name) - len(prefix) - GROUP in _HASHES and not name.endswith(SUFFIX)
        return name if is_chunk else None

    def _check(self, cache: NodeCache) -> None:
        """Asks for some of the chunks that may have gone without an event that names them."""
        now = time.monotonic()
        if not self._to_check:
            if self._tier_changed and now >= self._next_check:
                self._tier_changed = False
                held = self._held.items()
                self._to_check = [key for key, it in held if it.medium == MEDIUM_STORAGE]
            elif now >= self._next_round:
                self._next_round = now + _ROUND
                self._to_check = list(self._held)
                self._refreshes = True
            self._check_began = now
        if self._to_check:
            part = self._to_check[-2 * _BATCH :]
            del self._to_check[-2 * _BATCH :]
            self._examine(cache, part)
            if self._refreshes:
                self._refresh(cache, part)
                self._refreshes = bool(self._to_check)
            now = time.monotonic()
            self._next_check = now + max(1.0, _PART * (now - self._check_began))

    def _examine(
        self, cache: NodeCache, keys: list[bytes], orphans: Collection[bytes] = ()
    ) -> None:
        """Asks where chunks are, and announces what has changed. ``orphans`` are chunks whose
        descriptions are in memory, wherever they are."""
        gone: list[bytes] = []
        there: dict[bytes, str] = {}
        # What another engine's commit or a reset adds meanwhile has an event of its own.
        for part in parts(keys, 2 * _BATCH):
            for key, place in zip(part, cache.locate(part)):
                held = self._held.get(key)
                wanted = self._chunk_of(key) is not None
                if wanted and (place.in_memory or place.in_tier):
                    medium = MEDIUM_CPU if place.in_memory else MEDIUM_STORAGE
                    if held is None or held.medium != medium:
                        there[key] = medium
                elif held is not None or key in orphans:
                    gone.append(key)
        left = [key for key in (*gone, *there) if key in self._held]
        abouts = {key: self._held[key].about for key in left}
        unknown = [key for key in there if key not in abouts]
        unknown += [key for key in gone if key in orphans and key not in abouts]
        abouts |= self._read(cache, unknown)
        removed = [(key, self._held.pop(key)) for key in left]
        self._publish(list(removed_events(removed)))
        self._remove_abouts(
            cache, {key: about for key in gone if (about := abouts.get(key)) is not None}
        )
        descriptions = {
            key: description
            for key in there
            if (about := abouts.get(key)) is not None and (description := decode(about)) is not None
        }
        ordered = parents_first(list(there), descriptions)
        for part in parts(ordered, _BATCH):
            hash_at = len(self._following)
            events = []
            for key in part:
                held = Announced(there[key], abouts.get(key), hash_at)
                events.append(stored_event(key, held, descriptions.get(key)))
                self._held[key] = held
            self._publish(events)

    def _refresh(self, cache: NodeCache, keys: list[bytes]) -> None:
        """Uses the descriptions of announced chunks, and restores evicted ones."""
        held = {
            key + SUFFIX: it.about
            for key in keys
            if (it := self._held.get(key)) is not None and it.about is not None
        }
        for part in parts(list(held), _BATCH):
            if cache.touch(part) < len(part):
                places = zip(part, cache.locate(part))
                back = [(name, held[name]) for name, place in places if not place.in_memory]
                with contextlib.suppress(OutOfSpaceError):
                    cache.insert_batch(back)

    def _read(self, cache: NodeCache, keys: list[bytes]) -> dict[bytes, bytes | None]:
        """Returns the descriptions that the node has."""
        found: dict[bytes, bytes | None] = {}
        if not self._describes:
            return found
        for part in parts(keys, _BATCH):
            with cache.acquire([key + SUFFIX for key in part]) as values:
                for key, value in zip(part, values):
                    if value is not None:
                        found[key] = bytes(value)
        return found

    def _remove_abouts(self, cache: NodeCache, abouts: dict[bytes, bytes]) -> None:
        """Removes the descriptions of chunks that are gone. Another engine may store one of them
        again at this moment: its description is put back."""
        for part in parts(list(abouts), _BATCH):
            cache.remove_batch([key + SUFFIX for key in part])
            back = [
                (key + SUFFIX, abouts[key])
                for key, place in zip(part, cache.locate(part))
                if place.in_memory or place.in_tier
            ]
            if back:
                with contextlib.suppress(OutOfSpaceError):
                    cache.insert_batch(back)

    def _withdraw(self) -> None:
        """Announces that the engine finds no chunk any more."""
        self._to_check = []
        if self._held:
            removed = list(removed_events(self._held.items()))
            self._held.clear()
            self._publish(removed)

    def _publish(self, events: list[Any]) -> None:
        """Queues events, when the queue has room."""
        if not events:
            return
        with self._lock:
            self._lock.wait_for(lambda: self._closed or len(self._queue) < _MAX_QUEUED)
            self._queue.extend(events)

    def _ends(self) -> bool:
        return self._closed or self._left

    def _pause(self, seconds: float) -> None:
        with self._lock:
            self._lock.wait_for(self._ends, timeout=seconds)
