"""*Events of a node*: what it holds, in vLLM's own stream of events. Importing this module imports
vLLM.

A thread of each announcing engine reads the node's log and asks the server where the values of the
named keys are now. What has changed since it was announced goes to a queue, from which the
scheduler takes it: no step waits for the server. The answer of the server decides, not the kind of
an event, so it does not matter in which order events are read or whether one is read twice.

====================================  ==============================================================
a chunk is                            is announced as
====================================  ==============================================================
stored by any engine of the node      ``BlockStored``, medium ``CPU``
evicted, and in the tier below        ``BlockRemoved`` of ``CPU``, ``BlockStored`` of ``STORAGE``
fetched from there                    ``BlockRemoved`` of ``STORAGE``, ``BlockStored`` of ``CPU``
gone                                  ``BlockRemoved`` of its medium
====================================  ==============================================================

A removal comes before what is stored in its place, and a chunk after the one that it continues.
Descriptions of chunks are values of the node: see :mod:`~kvmem.vllm._description`.

*Completeness.* An engine that attaches announces what the node holds: the values in memory, and
those of the disk that a description in memory names. After lost events it does the same, and
announces the difference. Nothing is ever cleared, because vLLM's ``AllBlocksCleared`` concerns the
blocks of the GPU as well. The tier does not name what it evicts, so the thread asks for all chunks
there when the log says so, and for every announced chunk once a minute: a chunk whose time to live
is over has no event. In the same round it uses the descriptions of these chunks. Those of chunks
that are gone are removed, or are evicted before long if no engine announces.

*Who announces.* By default every engine. With ``announce: "node"`` one engine of the node does: the
one that has a value with a short time to live under :data:`LEASE`, which it renews. After the
engine has ended, another one finds no value there, stores its own, and announces.

*Back-pressure.* A thread whose queue is full waits. The log is then ahead of it, and at worst it
announces the difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .._kvmem import NodeCache, NodeReservation
from ..errors import KvmemError, NodeReplacedError, OutOfSpaceError
from ._description import SUFFIX, Description, decode, parents_first
from ._events import NoEvents

_log = logging.getLogger("vllm.kvmem")

LEASE = b"announcer"
"""Key of the value that names the engine which announces, with ``announce: "node"``."""

_LEASE_TTL = 10.0
"""Seconds after which another engine announces in the place of one that has ended."""
_STANDBY = 2.0
"""Seconds between two looks at the lease of another engine."""
_SETTLE = 0.25
"""Seconds after which an engine that has taken the lease looks whether another has, too."""
_WAIT = 0.5
"""Seconds that one call waits for events."""
_PAUSE = 0.5
"""Seconds between two calls that look for a server that is away."""
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
_GROUP = 4
"""Bytes behind a hash: the number of its group of layers."""
_LEASE_PRIORITY = 3
"""The lease is evicted after everything else."""


@dataclasses.dataclass(frozen=True)
class _Held:
    """A chunk that is announced."""

    medium: str
    about: bytes | None
    """Its description, encoded."""
    hash_at: int
    """Where the hash begins in its key."""


class NodeEvents(NoEvents):
    """The events of a node, for one engine. ``connect`` opens a connection for its thread."""

    def __init__(
        self, connect: Callable[[], NodeCache], *, one_of_node: bool, describes: bool
    ) -> None:
        self._connect = connect
        self._one_of_node = one_of_node
        self._describes = describes
        self._descriptions: dict[bytes, Callable[[], Description]] = {}
        self._prefix = b""
        # The thread alone uses these. It follows a reset with its next call.
        self._following = b""
        self._held: dict[bytes, _Held] = {}
        self._to_check: list[bytes] = []
        self._tier_changed = False
        self._check_began = self._next_check = 0.0
        self._next_round = 0.0
        self._refreshes = False
        self._id = os.urandom(16)
        self._leads_until = 0.0
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

    def note(self, key: bytes, describe: Callable[[], Description]) -> None:
        """Keeps what describes a chunk until its store ends."""
        if self._describes:
            self._descriptions[key] = describe

    def described(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        found = {}
        for key in keys:
            describe = self._descriptions.pop(key, None)
            if describe is not None:
                with contextlib.suppress(ValueError, TypeError):
                    found[self._prefix + key] = describe().encode()
        return found

    def reserve(
        self,
        cache: NodeCache,
        chunks: Sequence[NodeReservation],
        described: dict[bytes, bytes],
        priority: int = 0,
    ) -> list[NodeReservation]:
        abouts = [
            (_name(it) + SUFFIX, about)
            for it in chunks
            if (about := described.get(_name(it))) is not None
        ]
        sizes = [(key, len(about)) for key, about in abouts]
        if not sizes:
            return []
        try:
            reserved = cache.reserve_batch(sizes, priority=priority)
        except OutOfSpaceError:
            # The chunks themselves are of more use.
            return []
        for it, (_, about) in zip(reserved, abouts):
            it.write(about)
        return reserved

    def reset(self, prefix: bytes) -> None:
        self._descriptions.clear()
        with self._lock:
            self._prefix = prefix
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
                return self._connect()
            except KvmemError as error:
                _log.warning("kvmem: no events until the server answers: %s", error)
                self._pause(_PAUSE)
        return None

    def _serve(self, cache: NodeCache) -> None:
        """Follows the log until the engine ends, over failures of the server."""
        away = False
        at: int | None = None
        resets = -1
        while not self._ends():
            try:
                if not self._leads(cache):
                    self._withdraw()
                    at = None
                    self._pause(_STANDBY)
                    continue
                if at is None or resets != self._resets:
                    resets = self._resets
                    at = self._resynchronise(cache)
                at = self._follow(cache, at)
                away = False
            except NodeReplacedError:
                # The workers of this engine have mapped the old memory.
                return
            except KvmemError as error:
                # The position of before tells whether events were lost meanwhile. What was being
                # examined is not known: all of it is examined again.
                at = None
                if not away:
                    away = True
                    _log.warning("kvmem: no events until the server answers: %s", error)
                self._pause(_PAUSE)
        with contextlib.suppress(KvmemError):
            if self._one_of_node and self._leads_until > time.monotonic():
                cache.remove(LEASE)

    def _follow(self, cache: NodeCache, at: int) -> int | None:
        """Announces what the next events say. Returns the position to go on at; None: events were
        lost.
        """
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
        position in the log from which later changes are read.
        """
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
        is_chunk = len(name) - len(prefix) - _GROUP in _HASHES and not name.endswith(SUFFIX)
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
        descriptions are in memory, wherever they are.
        """
        gone: list[bytes] = []
        there: dict[bytes, str] = {}
        # What another engine's commit or a reset adds meanwhile has an event of its own.
        for start in range(0, len(keys), 2 * _BATCH):
            part = keys[start : start + 2 * _BATCH]
            for key, place in zip(part, cache.locate(part)):
                held = self._held.get(key)
                wanted = self._chunk_of(key) is not None
                if wanted and (place.in_memory or place.in_tier):
                    medium = MEDIUM_CPU if place.in_memory else MEDIUM_STORAGE
                    if held is None or held.medium != medium:
                        there[key] = medium
                elif held is not None or key in orphans:
                    gone.append(key)
        abouts = {key: it.about for key in (*gone, *there) if (it := self._held.get(key))}
        unknown = [key for key in there if key not in abouts]
        unknown += [key for key in gone if key in orphans and key not in abouts]
        abouts |= self._read(cache, unknown)
        left = [key for key in (*gone, *there) if key in self._held]
        removed = list(_removed((key, self._held[key]) for key in left))
        for key in left:
            del self._held[key]
        self._publish(removed)
        self._remove_abouts(cache, {key: it for key in gone if (it := abouts.get(key))})
        descriptions = {
            key: it
            for key in there
            if (about := abouts.get(key)) is not None and (it := decode(about)) is not None
        }
        ordered = parents_first(list(there), descriptions)
        for start in range(0, len(ordered), _BATCH):
            part = ordered[start : start + _BATCH]
            events = [self._stored(key, there[key], descriptions.get(key)) for key in part]
            hash_at = len(self._following)
            self._held.update((key, _Held(there[key], abouts.get(key), hash_at)) for key in part)
            self._publish(events)

    def _refresh(self, cache: NodeCache, keys: list[bytes]) -> None:
        """Uses the descriptions of announced chunks, so that they are not evicted before them, and
        puts those back that have been.
        """
        held = {
            key + SUFFIX: it.about
            for key in keys
            if (it := self._held.get(key)) is not None and it.about is not None
        }
        names = list(held)
        for start in range(0, len(names), _BATCH):
            part = names[start : start + _BATCH]
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
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            with cache.acquire([key + SUFFIX for key in part]) as values:
                for key, value in zip(part, values):
                    if value is not None:
                        found[key] = bytes(value)
        return found

    def _remove_abouts(self, cache: NodeCache, abouts: dict[bytes, bytes]) -> None:
        """Removes the descriptions of chunks that are gone. Another engine may store one of them
        again at this moment: its description is put back.
        """
        keys = list(abouts)
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
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
            removed = list(_removed(self._held.items()))
            self._held.clear()
            self._publish(removed)

    def _publish(self, events: list[Any]) -> None:
        """Queues events, when the queue has room."""
        if not events:
            return
        with self._lock:
            self._lock.wait_for(lambda: self._closed or len(self._queue) < _MAX_QUEUED)
            self._queue.extend(events)

    def _stored(self, key: bytes, medium: str, it: Description | None) -> Any:
        """Returns vLLM's event of a chunk. One without a description has its hash alone, as
        vLLM's own events have then.
        """
        if it is None:
            plain = key[len(self._following) :]
            return BlockStored(
                block_hashes=[_external(plain[:-_GROUP])],
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=medium,
                lora_name=None,
                group_idx=int.from_bytes(plain[-_GROUP:], "big"),
                locality="LOCAL",
            )
        return BlockStored(
            block_hashes=[_external(one) for one in it.block_hashes],
            parent_block_hash=None if it.parent is None else _external(it.parent),
            token_ids=list(it.token_ids),
            block_size=it.block_size,
            lora_id=it.lora_id,
            medium=medium,
            lora_name=it.lora_name,
            extra_keys=it.extra_keys,
            group_idx=it.group,
            kv_cache_spec_kind=it.kind,
            kv_cache_spec_sliding_window=it.sliding_window,
            locality="LOCAL",
        )

    def _leads(self, cache: NodeCache) -> bool:
        """Returns whether this engine announces, and takes the lease if nobody has it."""
        if not self._one_of_node:
            return True
        now = time.monotonic()
        if now < self._leads_until - _LEASE_TTL / 2:
            return True
        holder = self._holder(cache)
        if holder is None:
            cache.insert(LEASE, self._id, priority=_LEASE_PRIORITY, ttl=_LEASE_TTL)
            # Of several engines that find no lease, the last one to store has it.
            self._pause(_SETTLE)
            holder = self._holder(cache)
        elif holder == self._id:
            cache.insert(LEASE, self._id, priority=_LEASE_PRIORITY, ttl=_LEASE_TTL)
        self._leads_until = now + _LEASE_TTL if holder == self._id else 0.0
        return holder == self._id

    @staticmethod
    def _holder(cache: NodeCache) -> bytes | None:
        value = cache.get(LEASE)
        if value is None:
            return None
        with value:
            return bytes(value)

    def _ends(self) -> bool:
        return self._closed or self._left

    def _pause(self, seconds: float) -> None:
        with self._lock:
            self._lock.wait_for(self._ends, timeout=seconds)


def _name(reservation: NodeReservation) -> bytes:
    name = reservation.cache_key
    assert isinstance(name, bytes)
    return name


def _external(block_hash: bytes) -> Any:
    return maybe_convert_block_hash(block_hash)


def _removed(held: Iterable[tuple[bytes, _Held]]) -> Iterable[Any]:
    """Returns the events of chunks that are no longer where they were announced."""
    hashes: dict[tuple[str, int], list[Any]] = {}
    for key, it in held:
        about = None if it.about is None else decode(it.about)
        blocks = (key[it.hash_at : -_GROUP],) if about is None else about.block_hashes
        group = int.from_bytes(key[-_GROUP:], "big") if about is None else about.group
        hashes.setdefault((it.medium, group), []).extend(_external(one) for one in blocks)
    for (medium, group), blocks in hashes.items():
        yield BlockRemoved(block_hashes=blocks, medium=medium, group_idx=group, locality="LOCAL")
