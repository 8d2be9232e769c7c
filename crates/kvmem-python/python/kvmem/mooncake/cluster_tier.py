"""*ClusterTier*: a cluster as the lower tier of a cache.

Evicted values wait in a queue, pinned, until a thread has put them into the cluster. A value that
the cache misses is read back. Each object ends with a *trailer* of 32 bytes: a magic number, the
length, and checksums of the bytes and of the key. A value whose trailer does not match is never
returned.

The queue is bounded in bytes. When it is full, an insertion waits at max_bytes ``max_wait``
seconds, and not at all while the cluster fails; then the value is dropped. A value that was
dropped, or that could not be put, is counted and logged. The cluster's object under its key is then
*stale*: it is not fetched, and it is removed as soon as the cluster can be reached.

A master that does not answer costs each call its deadline. The first such failure therefore opens
the store's circuit (:mod:`.circuit`). Until a probe in the background is answered and the segments
are back, look-ups do not call the cluster, which is counted, insertions do not wait, and the queue
keeps its values. A segment that fails is skipped on its own in the same way.

A transfer that missed its deadline goes on in the engine. Its memory is not reused until it has
ended: the call holds its block and the trailer. A *put* that goes on could end after a
later put or removal under its key and bring the older value back. Therefore the thread waits for
its end before it puts or removes anything else.

**No older value comes back.** The *latest* value of a key is the one stored last under it, or none
if the key was removed since. The tier's value under a key is, in this order: the value that waits;
nothing, if the key is stale; the cluster's object. This is the latest value, or nothing, whenever
the cache fetches a key, and :mod:`kvmem.tier` says what the cache does with it. While a look-up
reads, a value under the key may be

- *removed*: the tier's value is stale from then on. A value that was on its way to the tier when
  the key was removed reports ``superseded`` if it arrives later, and is not stored; if it arrives
  earlier, it is removed.
- *evicted*: the value waits in the queue and comes before everything older.
- *evicted twice*, by two threads of which the second arrives first: the first value reports
  ``superseded`` and is not stored. The tier reads this under the lock under which it stored the
  second value.
- *dropped, or rejected by the cluster*: the cluster's object is stale from before the value is
  released until the object has been removed.

Each of these marks the look-up as overtaken, and it finds nothing.

One thread puts the waiting values. It marks a value as stored, and its key as no longer stale, only
if the value is still the latest.

The memory that a value is read into is lent for the call alone, so a transfer that may outlive the
call cannot use it: the value is read into a block of the pool, which the transfer holds, and
copied.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import threading
import time
import weakref
import zlib
from collections import deque
from typing import NamedTuple

from .._kvmem import Block, Pinned, Pool
from ..errors import ExportedError, InvalidArgumentError, KvmemError, OutOfSpaceError
from . import errors
from .store import Store

_log = logging.getLogger("kvmem.mooncake")

_CacheKey = int | bytes | str

_TRAILER = struct.Struct("<8sQII8x")
_MAGIC = b"kvmem-s1"
_TRAILERS = 16
"""Number of trailers, one for each transfer: one put and fifteen fetches run at once."""
_MAX_STALE = 1 << 16
"""Maximum number of stale keys. Beyond it all keys count as stale, and all objects are removed."""
_MAX_TRIES = 3
"""Maximum number of attempts to put a value when a segment fails."""
_REMOUNT_SECONDS = 10.0
"""Seconds after a master is back during which segments may be missing: servers mount their segments
again only when they notice.
"""


class ClusterTierStats(NamedTuple):
    """Figures of a :class:`ClusterTier`.

    Every evicted value is ``stored``, ``dropped``, ``failed``, ``invalidated`` or still ``queued``.
    """

    evicted: int
    """Values that the cache evicted to the tier."""
    queued: int
    """Evicted values that are not yet in the cluster."""
    queued_bytes: int
    """Bytes of the queued values, which are in use in the pool."""
    stored: int
    """Values that the cluster stored."""
    stored_bytes: int
    """Bytes of the stored values."""
    dropped: int
    """Values that were dropped because the queue was full."""
    failed: int
    """Values that the cluster rejected, or that were still queued when the tier was closed."""
    invalidated: int
    """Values whose key was removed, or received another value, before they reached the cluster."""
    fetched: int
    """Values that were read, from the cluster or from the queue."""
    fetched_bytes: int
    """Bytes of the fetched values."""
    absent: int
    """Look-ups of keys that the cluster does not have."""
    skipped: int
    """Look-ups that were not made, because the master or the segment had failed earlier."""
    fetch_failures: int
    """Fetches that failed: the cache had no space, or the transfer failed."""
    corrupt: int
    """Fetched values that differ from the value that was put."""
    superseded: int
    """Look-ups that another thread overtook: it stored or removed a value meanwhile."""
    stale: int
    """Keys that must not be fetched and whose objects still have to be removed."""
    errors: int
    """Calls of the engine that failed, whether or not they were retried."""
    reachable: bool
    """Whether the master answered its last call."""
    last_error: str | None
    """Message of the latest failure."""
    circuit: str
    """``closed``, or ``open``: the master did not answer and is probed in the background."""
    probes: int
    """Number of probes of the master."""
    timeouts: int
    """Number of calls of the store that took longer than their deadline."""
    abandoned: int
    """Number of those calls that have not ended. The memory that they use is not free."""
    segments_down: int
    """Number of segments that failed and are skipped for a while. Look-ups of their objects count
    as ``skipped``.
    """


class _Counters:
    """Counters of a worker, under its lock."""

    def __init__(self) -> None:
        self.evicted = self.stored = self.stored_bytes = self.dropped = self.failed = (
            self.invalidated
        ) = 0
        self.fetched = self.fetched_bytes = self.absent = self.skipped = self.fetch_failures = (
            self.corrupt
        ) = self.superseded = self.errors = 0


class _Trailer:
    """Space for a trailer. It can be reused when the last reference is dropped, which an abandoned
    call of the engine may hold.
    """

    __slots__ = ("block", "worker")

    def __init__(self, worker: _Worker, block: Block) -> None:
        self.worker = worker
        self.block = block

    def __del__(self) -> None:
        self.worker.return_trailer(self.block)


class _Entry:
    """A value that waits to be put."""

    __slots__ = ("is_latest", "name", "nbytes", "pinned")

    def __init__(self, pinned: Pinned, name: str) -> None:
        self.pinned = pinned
        self.name = name
        self.nbytes = pinned.nbytes
        self.is_latest = True
        """False once the key was removed, or evicted again with another value."""

    def release(self) -> None:
        """Releases the pin. A thread that still copies the bytes keeps them by its view."""
        with contextlib.suppress(ExportedError):
            self.pinned.release()


class _Read:
    """A look-up, from before it looks until its bytes are in place."""

    __slots__ = ("is_overtaken",)

    def __init__(self) -> None:
        self.is_overtaken = False
        """Whether the key was removed, or evicted with another value, meanwhile."""


class ClusterTier:
    """A lower tier over a :class:`Store`: ``KvCache(pool, lower_tier=ClusterTier(store, …))``. For
    the default settings pass the store itself as ``lower_tier``.

    - ``prefix``: prefix of the objects' keys. Caches with the same prefix share their objects, so a
      key must mean the same value in all of them.
    - ``max_queued_bytes``: maximum number of bytes that wait to be put. They are in use in the
      pool, so make the pool that much larger than the cache's limit. Default: 1/16 of the pool.
    - ``max_wait``: seconds that an insertion waits when the queue is full, before the value is
      dropped. 0: insertions never wait.
    - ``replace``: a value replaces the cluster's object under its key. Otherwise an existing object
      stays, which is right if keys are hashes of their values.
    - ``retry``: seconds between two attempts to put a value, and between two probes of a master
      that does not answer (the store's circuit gets this setting).
    """

    def __init__(
        self,
        store: Store,
        *,
        prefix: str = "kvmem/",
        max_queued_bytes: int | None = None,
        max_wait: float = 1.0,
        replace: bool = True,
        retry: float | None = None,
    ) -> None:
        max_bytes = store.pool.capacity // 16 if max_queued_bytes is None else max_queued_bytes
        if not 0 < max_bytes <= store.pool.capacity // 2:
            raise InvalidArgumentError(
                f"max_queued_bytes is {max_bytes}, and the pool has {store.pool.capacity} bytes: "
                "give "
                "more than 0 and at most half of the pool"
            )
        if retry is not None:
            store.circuit.retry = retry
        self._worker = _Worker(store, prefix, max_bytes, max_wait, replace, store.circuit.retry)
        self._thread = threading.Thread(target=self._worker.run, name="kvmem-tier", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _stop, self._worker, self._thread)

    def __lower_tier__(self, pool: Pool) -> ClusterTier:
        if pool is not self._worker.store.pool:
            raise InvalidArgumentError(
                "the cache and the store have different pools: use one pool for both"
            )
        return self

    def store(self, values: list[Pinned]) -> None:
        """Queues evicted values, unless they are superseded. The cache calls this."""
        for pinned in values:
            self._worker.enqueue(pinned)

    def ask(self, keys: list[_CacheKey]) -> list[int | None]:
        """Returns the length of each value in bytes; None if there is none, or if the cluster
        cannot be reached.
        """
        return [self._worker.length(key) for key in keys]

    def fetch_into(self, keys: list[_CacheKey], buffers: list[memoryview]) -> list[int | None]:
        """Reads values into buffers of their lengths, and returns the lengths; None for values
        that were not read. Each value needs as many free bytes in the pool while it is read.
        """
        return [self._worker.read(key, buffer) for key, buffer in zip(keys, buffers, strict=True)]

    def remove(self, keys: list[_CacheKey]) -> None:
        """Stops fetching the cluster's objects under keys, and has them removed."""
        for key in keys:
            self._worker.remove(key)

    def clear(self) -> None:
        """Stops fetching all objects with this prefix, and has them removed."""
        self._worker.clear()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until nothing is queued or stale. Returns False after ``timeout`` seconds."""
        return self._worker.flush(timeout)

    def stats(self) -> ClusterTierStats:
        """Returns the figures of the tier."""
        return self._worker.stats()

    def close(self, timeout: float = 10.0) -> None:
        """Puts the queued values for at most ``timeout`` seconds, and ends. The store stays open. A
        second call does nothing.
        """
        if self._end.alive:
            if self.stats().reachable:
                self._worker.flush(timeout)
            self._end()

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"<kvmem.mooncake.ClusterTier: {stats.stored} stored, {stats.fetched} fetched, "
            f"{stats.queued} queued>"
        )


def _stop(worker: _Worker, thread: threading.Thread) -> None:
    worker.stop()
    if thread is not threading.current_thread():
        # Every call has a deadline, so the thread ends soon.
        thread.join(15)


class _Worker:
    """State of the thread. It does not refer to the tier, so the tier can be collected."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        max_bytes: int,
        max_wait: float,
        replace: bool,
        retry: float,
    ) -> None:
        self.store = store
        self.prefix = prefix
        self.max_bytes = max_bytes
        self.max_wait = max_wait
        self.replace = replace
        self.retry = retry
        # Reentrant: the garbage collector may close a tier inside any of these methods.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.queue: deque[_Entry] = deque()
        self.waiting: dict[str, _Entry] = {}
        """The latest queued value of each name."""
        self.bytes = 0
        self.reads: dict[str, list[_Read]] = {}
        """Look-ups, by name."""
        self.stale: set[str] = set()
        self.all_stale = False
        self.down = False
        self.failing = False
        """Whether the latest call failed: insertions then do not wait."""
        self.remount_until = 0.0
        self.stopping = False
        self.last_error: str | None = None
        self.counts = _Counters()
        self.ended = False
        # The trailers lie in the pool too, as everything that is put must.
        self.free = deque(store.pool.allocate_batch(_TRAILER.size, _TRAILERS).split())
        store.circuit.listen(self.circuit_changed)
        self.down = store.circuit.is_open

    # Trailers.

    def take_trailer(self, seconds: float) -> _Trailer | None:
        """Waits for a free trailer. Returns None after ``seconds``."""
        with self.lock:
            self.changed.wait_for(lambda: self.free or self.stopping, seconds)
            return _Trailer(self, self.free.popleft()) if self.free and not self.ended else None

    def return_trailer(self, trailer: Block) -> None:
        with self.lock:
            if self.ended:
                trailer.free()
            else:
                self.free.append(trailer)
                self.changed.notify_all()

    # Evicted values.

    def name(self, key: _CacheKey) -> str:
        """Returns the object's key, with the type of the cache's key: 1 and "1" differ."""
        if isinstance(key, bytes):
            return f"{self.prefix}b:{key.hex()}"
        return f"{self.prefix}i:{key}" if isinstance(key, int) else f"{self.prefix}s:{key}"

    def enqueue(self, pinned: Pinned) -> None:
        nbytes = pinned.nbytes
        entry = _Entry(pinned, self.name(pinned.cache_key))
        with self.lock:

            def fits() -> bool:
                return self.stopping or self.bytes + nbytes <= self.max_bytes or pinned.superseded

            if not fits() and self.max_wait > 0 and nbytes <= self.max_bytes:
                self.changed.wait_for(lambda: fits() or self.failing, self.max_wait)
            self.counts.evicted += 1
            # Read under the lock under which values are queued and removed: a later value of
            # the key has been queued before, or will be.
            if pinned.superseded:
                self.counts.invalidated += 1
                entry.release()
                return
            self._drop_waiting(entry.name)
            if fits() and not self.stopping:
                self.queue.append(entry)
                self.waiting[entry.name] = entry
                self.bytes += nbytes
                self.changed.notify_all()
                return
            self.counts.dropped += 1
            first = self.counts.dropped == 1
            self._mark_stale(entry.name)
        entry.release()
        if first:
            _log.warning(
                "the queue of %d bytes is full: an evicted value was dropped (further ones are "
                "only "
                "counted)",
                self.max_bytes,
            )

    def _mark_stale(self, name: str) -> None:
        """Records that the cluster's object is not the latest value. The caller holds the lock."""
        if len(self.stale) >= _MAX_STALE:
            self.stale.clear()
            self.all_stale = True
        if not self.all_stale:
            self.stale.add(name)
        self.changed.notify_all()

    def _drop_waiting(self, name: str) -> None:
        """Records that a queued value, and one being read, is not the latest. The caller holds the
        lock.
        """
        before = self.waiting.pop(name, None)
        if before is not None:
            before.is_latest = False
        for read in self.reads.get(name, ()):
            read.is_overtaken = True

    def remove(self, key: _CacheKey) -> None:
        with self.lock:
            name = self.name(key)
            self._drop_waiting(name)
            self._mark_stale(name)

    def clear(self) -> None:
        with self.lock:
            for name in {*self.waiting, *self.reads}:
                self._drop_waiting(name)
            self.stale.clear()
            self.all_stale = True
            self.changed.notify_all()

    # The thread that puts them.

    def run(self) -> None:
        tries = 0
        while True:
            with self.lock:
                self.changed.wait_for(
                    lambda: (
                        self.stopping
                        or (not self.down and (self.queue or self.stale or self.all_stale))
                    )
                )
                if self.stopping:
                    break
                next_one = self.queue[0] if self.queue else None
            try:
                if self.all_stale:
                    self._remove_stale()
                elif next_one is not None:
                    self._put(next_one)
                    self._finish(next_one, None)
                    tries = 0
                else:
                    self._remove_stale()
            except errors.CircuitOpenError:
                # The circuit opened meanwhile: everything waits until it is closed.
                with self.lock:
                    self.changed.wait_for(lambda: self.stopping or self.down, 0.1)
            except Exception as error:  # The thread survives every failure and counts it.
                tries += 1
                master_failed = self._count_failure(error)
                self._wait_for_end(error)
                if (
                    next_one is not None
                    and not master_failed
                    and not self._should_retry(error, tries)
                ):
                    self._finish(next_one, error)
                    tries = 0
                else:
                    with self.lock:
                        self.changed.wait_for(lambda: self.stopping, self.retry)
        self._drop_queue()

    def _wait_for_end(self, error: Exception) -> None:
        """Waits until a call that missed its deadline has ended: until then nothing else may be
        done under its key.
        """
        call = error.call if isinstance(error, errors.DeadlineError) else None
        while call is not None and not call.wait_ended(0.05) and not self.stopping:
            pass

    def _should_retry(self, error: Exception, tries: int) -> bool:
        if isinstance(error, errors.ClusterFullError):
            return time.monotonic() < self.remount_until
        return isinstance(error, errors.UnreachableError) and tries < _MAX_TRIES

    def _put(self, entry: _Entry) -> None:
        pinned, name = entry.pinned, entry.name
        if not entry.is_latest:
            return
        if not self.replace and name not in self.stale and self.store.exists(name):
            return
        # Two steps: a look-up in between finds nothing, which a cache may always answer.
        if self.replace or name in self.stale:
            self.store.remove(name, force=True)
        trailer = self.take_trailer(self.store.deadline)
        if trailer is None:
            raise errors.error(errors.TIMED_OUT, "put", name)
        with memoryview(pinned) as view:
            trailer.block.write(
                _TRAILER.pack(_MAGIC, pinned.nbytes, zlib.crc32(view), zlib.crc32(name.encode()))
            )
        self.store.put_parts(name, [pinned, trailer.block], keep=trailer)

    def _finish(self, entry: _Entry, error: Exception | None) -> None:
        """Removes a value from the queue that has been put, or never will be."""
        with self.lock:
            self.queue.popleft()
            self.bytes -= entry.nbytes
            if not entry.is_latest:
                # It may just have been put: a stale key stays stale.
                self.counts.invalidated += 1
            elif error is None:
                self.failing = False
                self.counts.stored += 1
                self.counts.stored_bytes += entry.nbytes
                self.stale.discard(entry.name)
            else:
                self.counts.failed += 1
                self._mark_stale(entry.name)
            if self.waiting.get(entry.name) is entry:
                del self.waiting[entry.name]
            self.changed.notify_all()
        entry.release()

    def _remove_stale(self) -> None:
        """Removes stale objects from the cluster."""
        with self.lock:
            remove_all, names = self.all_stale, list(self.stale)
        if remove_all:
            self.store.remove_matching("^" + re.escape(self.prefix), force=True)
        elif names:
            self.store.remove_batch(names, force=True)
        with self.lock:
            self.all_stale = self.all_stale and not remove_all
            self.stale.difference_update(names)
            self.changed.notify_all()

    def circuit_changed(self) -> None:
        """Reacts to the store's circuit being opened or closed."""
        circuit = self.store.circuit
        with self.lock:
            changed = self.down != circuit.is_open
            self.down = circuit.is_open
            if self.down:
                self.failing = True
                self.last_error = circuit.last_error
            elif changed:
                self.failing = False
                self.remount_until = time.monotonic() + _REMOUNT_SECONDS
            waiting = len(self.queue)
            self.changed.notify_all()
        if changed and self.down:
            _log.warning(
                "%s: evicted values wait, and nothing is fetched, until the master answers",
                circuit.last_error,
            )
        elif changed:
            _log.warning(
                "the master at %s answers again: %d values waited", self.store.master, waiting
            )

    def _count_failure(self, error: Exception) -> bool:
        """Counts a failure. Returns whether the master failed."""
        master_failed = (
            isinstance(error, errors.StoreError)
            and errors.is_master(error.code)
            and self.store.circuit.is_open
        )
        with self.lock:
            self.counts.errors += 1
            self.last_error = str(error)
            self.failing = True
            self.changed.notify_all()
        if not master_failed:
            _log.info("%s", error)
        return master_failed

    # Look-ups.

    def _count_miss(self, error: KvmemError, *, overtaken: bool) -> None:
        """Counts a look-up that failed."""
        if isinstance(error, errors.ObjectMissingError):
            with self.lock:
                self.counts.absent += 1
        elif isinstance(error, errors.CircuitOpenError):
            with self.lock:
                self.counts.skipped += 1
                self.last_error = str(error)
        elif isinstance(error, OutOfSpaceError):
            with self.lock:
                self.counts.fetch_failures += 1
                self.last_error = str(error)
        else:
            # A value that was replaced meanwhile may have another length.
            reached = isinstance(error, errors.StoreError) and not isinstance(
                error, errors.UnreachableError
            )
            if reached and overtaken:
                self._count_superseded()
                return
            self._count_failure(error)
            with self.lock:
                self.counts.fetch_failures += 1

    def _count_superseded(self) -> None:
        with self.lock:
            self.counts.superseded += 1

    def _corrupt(self, name: str) -> None:
        with self.lock:
            self.counts.corrupt += 1
            self.last_error = f"the cluster returned other bytes under {name!r} than were put"
            self._mark_stale(name)
        _log.warning("%s: the object is removed", self.last_error)

    def length(self, key: _CacheKey) -> int | None:
        """Returns the length of the value under a key; None if there is none to be read."""
        name = self.name(key)
        with self.lock:
            entry = self.waiting.get(name)
            if entry is not None:
                return entry.nbytes
            if not self._can_ask(name):
                return None
        try:
            nbytes = self.store.available_size(name) - _TRAILER.size
        except KvmemError as error:
            self._count_miss(error, overtaken=False)
            return None
        if nbytes <= 0:
            self._corrupt(name)
            return None
        return nbytes

    def _can_ask(self, name: str) -> bool:
        """Returns whether the cluster's object may be read. The caller holds the lock."""
        if self.down or self.stopping:
            self.counts.skipped += 1
            return False
        if self.all_stale or name in self.stale:
            self.counts.absent += 1
            return False
        return True

    def read(self, key: _CacheKey, buffer: memoryview) -> int | None:
        """Reads the value under a key into a buffer of its length. Returns the length; None if
        there is no such value.
        """
        name, this = self.name(key), _Read()
        with self.lock:
            entry = self.waiting.get(name)
            view = None if entry is None else memoryview(entry.pinned)
            if view is None and not self._can_ask(name):
                return None
            self.reads.setdefault(name, []).append(this)
        try:
            if view is None:
                found = self._read_object(name, buffer, this)
            else:
                with view:
                    found = view.nbytes == buffer.nbytes
                    if found:
                        buffer[:] = view
        except KvmemError as error:
            self._count_miss(error, overtaken=this.is_overtaken)
            return None
        finally:
            with self.lock:
                self.reads[name].remove(this)
                if not self.reads[name]:
                    del self.reads[name]
        if not found:
            return None
        with self.lock:
            self.counts.fetched += 1
            self.counts.fetched_bytes += buffer.nbytes
        return buffer.nbytes

    def _read_object(self, name: str, buffer: memoryview, this: _Read) -> bool:
        """Reads the cluster's object into a buffer. Returns whether its bytes are right."""
        # Abandoned calls may hold all trailers.
        trailer = self.take_trailer(self.store.deadline)
        if trailer is None:
            with self.lock:
                self.counts.skipped += 1
            return False
        # A transfer that is abandoned holds the block, which is freed when the transfer ends.
        block = self.store.pool.allocate(buffer.nbytes)
        try:
            self.store.get_parts(name, [block, trailer.block], keep=trailer)
            with memoryview(block) as view, memoryview(trailer.block) as found:
                good = found == _TRAILER.pack(
                    _MAGIC, buffer.nbytes, zlib.crc32(view), zlib.crc32(name.encode())
                )
                with self.lock:
                    # Another cache that shares the tier may have removed it.
                    stale = self.all_stale or name in self.stale
                    self.counts.absent += stale
                if good and not stale and not this.is_overtaken:
                    buffer[:] = view
                    return True
        finally:
            with contextlib.suppress(ExportedError):
                block.free()
        if this.is_overtaken:
            self._count_superseded()
        elif not stale:
            self._corrupt(name)
        return False

    # Figures and end.

    def stats(self) -> ClusterTierStats:
        reach = self.store.stats()
        with self.lock:
            counts = self.counts
            return ClusterTierStats(
                evicted=counts.evicted,
                queued=len(self.queue),
                queued_bytes=self.bytes,
                stored=counts.stored,
                stored_bytes=counts.stored_bytes,
                dropped=counts.dropped,
                failed=counts.failed,
                invalidated=counts.invalidated,
                fetched=counts.fetched,
                fetched_bytes=counts.fetched_bytes,
                absent=counts.absent,
                skipped=counts.skipped,
                fetch_failures=counts.fetch_failures,
                corrupt=counts.corrupt,
                superseded=counts.superseded,
                stale=_MAX_STALE if self.all_stale else len(self.stale),
                errors=counts.errors,
                reachable=not self.down,
                last_error=self.last_error,
                circuit=reach.circuit,
                probes=reach.probes,
                timeouts=reach.timeouts,
                abandoned=reach.abandoned,
                segments_down=reach.segments_down,
            )

    def flush(self, timeout: float | None) -> bool:
        with self.lock:
            return self.changed.wait_for(
                lambda: self.stopping or not (self.queue or self.stale or self.all_stale), timeout
            )

    def stop(self) -> None:
        self.store.circuit.unlisten(self.circuit_changed)
        with self.lock:
            self.stopping = True
            self.changed.notify_all()

    def _drop_queue(self) -> None:
        """Releases the values that are still queued, and counts them as failed."""
        with self.lock:
            remaining = list(self.queue)
            self.queue.clear()
            self.waiting.clear()
            self.ended = True
            while self.free:
                self.free.popleft().free()
            self.bytes = 0
            self.counts.failed += len(remaining)
            self.changed.notify_all()
        for entry in remaining:
            entry.release()
        if remaining:
            _log.warning(
                "%d evicted values were not put into the cluster before the tier was closed",
                len(remaining),
            )
