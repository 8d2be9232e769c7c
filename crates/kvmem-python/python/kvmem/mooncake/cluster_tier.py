"""*ClusterTier*: a cluster as the lower tier of a cache.

Evicted values wait in a queue, pinned, until a thread has put them into the cluster; what a look-up misses is fetched into fresh room of the cache and becomes a
value of it again. With each value goes a *seal* of 32 bytes: a mark, the length, and checksums of the bytes and of the key. What does not match is
not given to anybody.

The queue is bounded in bytes. When it is full an insertion waits, ``wait`` seconds at most and not while the cluster fails, and then the value is dropped. That a
value was dropped or could not be put is counted and logged, and what the cluster has under its key is *stale* from then on: it is not fetched, and it is
removed as soon as the cluster can be talked to.

A master that does not answer costs each call its deadline. So after the first such failure the store's circuit is open
(:mod:`.circuit`): look-ups do not ask, which is counted too, insertions do not wait, and the queue keeps what it has, until a probe
in the background is answered and the segments are back. A segment that fails is left alone likewise, on its own.

A transfer that missed its deadline goes on in the engine. What it writes to is not used for anything else until it has ended: the
room in the cache and the seal are held by the call. A *put* that goes on could end after a later put or removal under its key, and
bring the older value back; so the thread waits for its end before it puts or removes anything else.

**No older value comes back.** Say that a key's *latest* value is what was put last under it, or none if it was removed since. What this has under a key is, in this
order: what waits; nothing, if it is stale; what the cluster has. That is the latest value or nothing whenever the cache gives a lease (:meth:`kvmem.KvCache.lease`), and as long
as the lease is unbroken it stays so. Hence a look-up takes a lease *first*, then looks, and puts in what it found only under the lease. While it fetches, a value under the key may be

- *inserted*: that breaks the lease. While it is in the cache no lease is given, whatever is older here.
- *inserted and removed*: the lease is broken, and none is given until :meth:`ClusterTier.forget` has returned; from then on what is here is stale. What was on its way here when it
  was removed says that it is ``superseded``, if it comes after that, and is not taken; if it comes before, it is forgotten. Cleared: the same for all keys.
- *inserted and evicted*: the lease is broken, and none is given until :meth:`ClusterTier.evicted` has returned. Then it waits, before all that is older.
- *inserted, evicted and evicted once more with another value*, by two threads of which the second comes first: the first says that it is ``superseded``, asked under the lock under
  which the second was taken, and is not taken.
- *inserted, evicted and stored*: the lease is broken, though nothing here shows it any more.
- *inserted, evicted and dropped*, or refused by the cluster: the lease is broken. What the cluster has is stale from before the value is let go of until it has been removed.
- *inserted, evicted, and this fails to take it*: the cache calls ``forget``, and if that fails too, it gives no lease on the key any more.

And what waits is put by one thread, which marks as stored and no longer stale only what is the latest still.
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

from .._kvmem import Block, KvCache, Lease, Pinned, Pool, Reservation
from ..errors import ClosedError, ExportedError, InvalidArgumentError, KvmemError, OutOfSpaceError
from . import errors
from .store import Store

_log = logging.getLogger("kvmem.mooncake")

_Name = int | bytes | str

_SEAL = struct.Struct("<8sQII8x")
_MARK = b"kvmem-s1"
_SLOTS = 16
"""Seals, one for each value on its way: one is put and fifteen are fetched at once, others wait."""
_MOST_STALE = 1 << 16
"""Stale keys that are remembered one by one. Beyond that all is taken for stale, and removed."""
_TRIES = 3
"""How often a value is put that a segment does not take."""
_PATIENCE = 10.0
"""Seconds after a master came back for which segments may be missing: servers mount theirs again when they find out."""


class ClusterTierStats(NamedTuple):
    """Figures of a spill. Every value that was evicted is ``stored``, ``dropped``, ``failed``, ``forgotten`` or still ``queued``."""

    evicted: int
    """Values that the cache gave."""
    queued: int
    """Of those, values that are not yet in the cluster."""
    queued_bytes: int
    """Bytes of those, which are in use in the pool."""
    stored: int
    """Values that the cluster took."""
    stored_bytes: int
    """Bytes of those."""
    dropped: int
    """Values for which the queue had no place."""
    failed: int
    """Values that the cluster refused, or that were left when this was closed."""
    forgotten: int
    """Values that were removed from the cache, or put in anew, before they were put, or before they came here."""
    fetched: int
    """Values that came back, from the cluster or from the queue."""
    fetched_bytes: int
    """Bytes of those."""
    absent: int
    """Look-ups of what the cluster does not have."""
    skipped: int
    """Look-ups that were not asked, for the master or the segment did not answer before."""
    refused: int
    """Values that could not come back: no room in the cache, or a transfer that failed."""
    corrupt: int
    """Values that came back other than they went."""
    superseded: int
    """Look-ups that another thread was ahead of: another value was put in or removed meanwhile, or was just being handed over. They found what the cache had then, if anything."""
    stale: int
    """Keys that must not be fetched, and are still to be removed from the cluster."""
    errors: int
    """Calls that the engine failed, tried again or not."""
    reachable: bool
    """Whether the master answered when it was last asked."""
    last_error: str | None
    """The latest failure, in words."""
    circuit: str
    """``closed``, or ``open``: the master did not answer and is probed in the background."""
    probes: int
    """How often the store's master was probed."""
    timeouts: int
    """Calls of the store that took longer than their deadline."""
    late: int
    """Of those, calls that have not ended yet. Memory that they use is not free."""
    segments_down: int
    """Segments that failed and are not asked for a while; look-ups of what lies there are
    ``skipped``.
    """


class _Counts:
    """What is counted, under the lock of the work."""

    def __init__(self) -> None:
        self.evicted = self.stored = self.stored_bytes = self.dropped = self.failed = (
            self.forgotten
        ) = 0
        self.fetched = self.fetched_bytes = self.absent = self.skipped = self.refused = (
            self.corrupt
        ) = self.superseded = self.errors = 0


class _Seal:
    """Room for a seal. It is free for another value when nobody refers to it: neither who uses it
    nor a late call of the engine.
    """

    __slots__ = ("block", "work")

    def __init__(self, work: _Work, block: Block) -> None:
        self.work = work
        self.block = block

    def __del__(self) -> None:
        self.work.put_back(self.block)


class _Entry:
    """A value that waits to be put."""

    __slots__ = ("name", "nbytes", "pinned", "wanted")

    def __init__(self, pinned: Pinned, name: str) -> None:
        self.pinned = pinned
        self.name = name
        self.nbytes = pinned.nbytes
        self.wanted = True
        """Not any more if the key was removed, or evicted once more with another value."""

    def let_go(self) -> None:
        """Its bytes are free, or will be when nobody copies them any more."""
        with contextlib.suppress(ExportedError):
            self.pinned.release()


class ClusterTier:
    """A lower tier over a :class:`Store`: ``KvCache(pool, lower_tier=ClusterTier(store, …))``, or the store itself for the usual settings.

    ``prefix``: what the objects' keys begin with; caches with the same prefix share what they spill, so a key must mean the same value in all. ``queue``: bytes that
    may wait to be put; they are in use in the pool, so leave it that much more than the cache's limit (default: a sixteenth of the pool). ``wait``: seconds for which
    an insertion waits when the queue is full, before the value is dropped; 0: insertions never wait. ``replace``: a value takes the place of what the cluster has under its key; without, what
    is there already is not put again, which is right where keys are hashes of what they stand for. ``retry``: seconds between two attempts to put a value, and
    between two probes of a master that does not answer (the store's circuit is set to it).
    """

    def __init__(
        self,
        store: Store,
        *,
        prefix: str = "kvmem/",
        queue: int | None = None,
        wait: float = 1.0,
        replace: bool = True,
        retry: float | None = None,
    ) -> None:
        most = store.pool.capacity // 16 if queue is None else queue
        if not 0 < most <= store.pool.capacity // 2:
            raise InvalidArgumentError(
                f"a queue of {most} bytes makes no sense on a pool of {store.pool.capacity}: up to half of it may wait"
            )
        if retry is not None:
            store.circuit.retry = retry
        self._work = _Work(store, prefix, most, wait, replace, store.circuit.retry)
        self._thread = threading.Thread(target=self._work.run, name="kvmem-spill", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _stop, self._work, self._thread)

    def __lower_tier__(self, pool: Pool) -> ClusterTier:
        if pool is not self._work.store.pool:
            raise InvalidArgumentError("the cache is on another pool than the store")
        return self

    def evicted(self, pinned: Pinned) -> None:
        """Takes an evicted value: for the cache."""
        self._work.take(pinned)

    def fetch(self, cache: KvCache, key: _Name) -> Pinned | None:
        """What the cluster has under ``key``, put back into the cache; what the cache has, if it has something by now; None if there is nothing or one cannot say."""
        return self._work.fetch(cache, key)

    def forget(self, key: _Name) -> None:
        """What the cluster has under ``key`` is not fetched any more, and removed."""
        self._work.forget(key)

    def forget_all(self) -> None:
        """The same for all with this prefix."""
        self._work.forget_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until nothing is queued and nothing stale; False if that took too long."""
        return self._work.flush(timeout)

    def stats(self) -> ClusterTierStats:
        """Figures."""
        return self._work.stats()

    def close(self, timeout: float = 10.0) -> None:
        """Puts what is queued as far as that goes in so many seconds, and ends. The store stays open. A second time does nothing."""
        if self._end.alive:
            if self.stats().reachable:
                self._work.flush(timeout)
            self._end()

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<kvmem.mooncake.ClusterTier: {stats.stored} stored, {stats.fetched} fetched, {stats.queued} queued>"


def _stop(work: _Work, thread: threading.Thread) -> None:
    work.stop()
    if thread is not threading.current_thread():
        # A call has a deadline, and so have several.
        thread.join(15)


class _Work:
    """What the thread has: not the spill itself, so that this can end."""

    def __init__(
        self, store: Store, prefix: str, most: int, wait: float, replace: bool, retry: float
    ) -> None:
        self.store = store
        self.prefix = prefix
        self.most = most
        self.wait = wait
        self.replace = replace
        self.retry = retry
        # Reentrant: the collector may end a spill in the middle of anything.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.queue: deque[_Entry] = deque()
        self.waiting: dict[str, _Entry] = {}
        """The latest of each name."""
        self.bytes = 0
        self.stale: set[str] = set()
        self.all_stale = False
        self.down = False
        self.failing = False
        """The latest call failed: who inserts does not wait."""
        self.patient_until = 0.0
        self.stopping = False
        self.last_error: str | None = None
        self.counts = _Counts()
        self.ended = False
        # The seals lie in the pool too, as what is put must.
        self.free = deque(store.pool.allocate_batch(_SEAL.size, _SLOTS).split())
        store.circuit.listen(self.heard)
        self.down = store.circuit.is_open

    # Seals.

    def take_seal(self, seconds: float) -> _Seal | None:
        """A seal, as soon as one is free; None if that takes too long."""
        with self.lock:
            self.changed.wait_for(lambda: self.free or self.stopping, seconds)
            return _Seal(self, self.free.popleft()) if self.free and not self.ended else None

    def put_back(self, seal: Block) -> None:
        with self.lock:
            if self.ended:
                seal.free()
            else:
                self.free.append(seal)
                self.changed.notify_all()

    # Evicted values come in.

    def name(self, key: _Name) -> str:
        """The object's key: what kind it is of goes with it, so that 1 and "1" differ."""
        if isinstance(key, bytes):
            return f"{self.prefix}b:{key.hex()}"
        return f"{self.prefix}i:{key}" if isinstance(key, int) else f"{self.prefix}s:{key}"

    def take(self, pinned: Pinned) -> None:
        nbytes = pinned.nbytes
        entry = _Entry(pinned, self.name(pinned.cache_key))
        with self.lock:

            def fits() -> bool:
                return self.stopping or self.bytes + nbytes <= self.most or pinned.superseded

            if not fits() and self.wait > 0 and nbytes <= self.most:
                self.changed.wait_for(lambda: fits() or self.failing, self.wait)
            self.counts.evicted += 1
            # Asked under the lock under which all are taken and forgotten: a later one has been, or will be.
            if pinned.superseded:
                self.counts.forgotten += 1
                entry.let_go()
                return
            self._unwanted(entry.name)
            if fits() and not self.stopping:
                self.queue.append(entry)
                self.waiting[entry.name] = entry
                self.bytes += nbytes
                self.changed.notify_all()
                return
            self.counts.dropped += 1
            first = self.counts.dropped == 1
            self._mark_stale(entry.name)
        entry.let_go()
        if first:
            _log.warning(
                "the queue of %d bytes is full: an evicted value is not put into the cluster (more are counted, not told)",
                self.most,
            )

    def _mark_stale(self, name: str) -> None:
        """What the cluster has under a key is no longer what the cache had. Called under the lock."""
        if len(self.stale) >= _MOST_STALE:
            self.stale.clear()
            self.all_stale = True
        if not self.all_stale:
            self.stale.add(name)
        self.changed.notify_all()

    def _unwanted(self, name: str) -> None:
        """What waits under a name is not what the cache had last. Called under the lock."""
        before = self.waiting.pop(name, None)
        if before is not None:
            before.wanted = False

    def forget(self, key: _Name) -> None:
        with self.lock:
            name = self.name(key)
            self._unwanted(name)
            self._mark_stale(name)

    def forget_all(self) -> None:
        with self.lock:
            for name in list(self.waiting):
                self._unwanted(name)
            self.stale.clear()
            self.all_stale = True
            self.changed.notify_all()

    # The thread puts them.

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
                    self._clean()
                elif next_one is not None:
                    self._put(next_one)
                    self._done(next_one, None)
                    tries = 0
                else:
                    self._clean()
            except errors.CircuitOpenError:
                # The circuit was opened meanwhile: all waits until it is closed.
                with self.lock:
                    self.changed.wait_for(lambda: self.stopping or self.down, 0.1)
            except Exception as error:  # Whatever it is, the thread goes on: it is counted.
                tries += 1
                gone = self._failed(error)
                self._await_end(error)
                if next_one is not None and not gone and not self._worth_another(error, tries):
                    self._done(next_one, error)
                    tries = 0
                else:
                    with self.lock:
                        self.changed.wait_for(lambda: self.stopping, self.retry)
        self._give_up()

    def _await_end(self, error: Exception) -> None:
        """A call that missed its deadline goes on: nothing else is done under its key until it has
        ended.
        """
        call = error.call if isinstance(error, errors.DeadlineError) else None
        while call is not None and not call.wait_over(0.05) and not self.stopping:
            pass

    def _worth_another(self, error: Exception, tries: int) -> bool:
        if isinstance(error, errors.ClusterFullError):
            return time.monotonic() < self.patient_until
        return isinstance(error, errors.UnreachableError) and tries < _TRIES

    def _put(self, entry: _Entry) -> None:
        pinned, name = entry.pinned, entry.name
        if not entry.wanted:
            return
        if not self.replace and name not in self.stale and self.store.exists(name):
            return
        # Not in one step: who looks it up meanwhile finds nothing, which is what a cache may say.
        if self.replace or name in self.stale:
            self.store.remove(name, force=True)
        seal = self.take_seal(self.store.deadline)
        if seal is None:
            raise errors.error(errors.TIMED_OUT, "put", name)
        with memoryview(pinned) as view:
            seal.block.write(
                _SEAL.pack(_MARK, pinned.nbytes, zlib.crc32(view), zlib.crc32(name.encode()))
            )
        self.store.put_parts(name, [pinned, seal.block], keep=seal)

    def _done(self, entry: _Entry, error: Exception | None) -> None:
        """It has been put, or never will be."""
        with self.lock:
            self.queue.popleft()
            self.bytes -= entry.nbytes
            if not entry.wanted:
                # It may have been put just before: what is stale stays so.
                self.counts.forgotten += 1
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
        entry.let_go()

    def _clean(self) -> None:
        """Removes what is stale."""
        with self.lock:
            everything, names = self.all_stale, list(self.stale)
        if everything:
            self.store.remove_matching("^" + re.escape(self.prefix), force=True)
        elif names:
            self.store.remove_batch(names, force=True)
        with self.lock:
            self.all_stale = self.all_stale and not everything
            self.stale.difference_update(names)
            self.changed.notify_all()

    def heard(self) -> None:
        """The store's circuit was opened or closed."""
        circuit = self.store.circuit
        with self.lock:
            news = self.down != circuit.is_open
            self.down = circuit.is_open
            if self.down:
                self.failing = True
                self.last_error = circuit.last_error
            elif news:
                self.failing = False
                self.patient_until = time.monotonic() + _PATIENCE
            waiting = len(self.queue)
            self.changed.notify_all()
        if news and self.down:
            _log.warning(
                "%s: what is evicted waits, and nothing is fetched until it does",
                circuit.last_error,
            )
        elif news:
            _log.warning(
                "the master at %s answers again: %d values waited", self.store.master, waiting
            )

    def _failed(self, error: Exception) -> bool:
        """Counts a failure; returns whether the master is gone."""
        gone = (
            isinstance(error, errors.StoreError)
            and errors.is_master(error.code)
            and self.store.circuit.is_open
        )
        with self.lock:
            self.counts.errors += 1
            self.last_error = str(error)
            self.failing = True
            self.changed.notify_all()
        if not gone:
            _log.info("%s", error)
        return gone

    # Look-ups come back.

    def fetch(self, cache: KvCache, key: _Name) -> Pinned | None:
        # Before anything is looked at: see the head of the file.
        lease = cache.lease(key)
        if not isinstance(lease, Lease):
            return self._superseded(lease)
        with lease:
            return self._look(cache, key, lease)

    def _look(self, cache: KvCache, key: _Name, lease: Lease) -> Pinned | None:
        name = self.name(key)
        with self.lock:
            entry = self.waiting.get(name)
            view = None if entry is None else memoryview(entry.pinned)
        if view is not None:
            return self._copy(cache, key, lease, view)
        with self.lock:
            if self.down or self.stopping:
                self.counts.skipped += 1
                return None
            if self.all_stale or name in self.stale:
                self.counts.absent += 1
                return None
        try:
            return self._get(cache, key, lease, name)
        except errors.ObjectMissingError:
            with self.lock:
                self.counts.absent += 1
        except errors.CircuitOpenError as error:
            with self.lock:
                self.counts.skipped += 1
                self.last_error = str(error)
        except OutOfSpaceError as error:
            with self.lock:
                self.counts.refused += 1
                self.last_error = str(error)
        except KvmemError as error:
            # Of a value that was replaced meanwhile the length may be another.
            reached = isinstance(error, errors.StoreError) and not isinstance(
                error, errors.UnreachableError
            )
            if reached and not lease.is_valid:
                return self._superseded(None)
            self._failed(error)
            with self.lock:
                self.counts.refused += 1
        return None

    def _copy(self, cache: KvCache, key: _Name, lease: Lease, view: memoryview) -> Pinned | None:
        """What still waits comes back by a copy."""
        try:
            with view:
                room = cache.reserve(key, view.nbytes)
                room.write(view)
        except OutOfSpaceError as error:
            with self.lock:
                self.counts.refused += 1
                self.last_error = str(error)
            return None
        return self._commit(cache, key, lease, room)

    def _get(self, cache: KvCache, key: _Name, lease: Lease, name: str) -> Pinned | None:
        nbytes = self.store.look(name) - _SEAL.size
        if nbytes <= 0:
            if not lease.is_valid:
                return self._superseded(None)
            self._corrupt(name)
            return None
        # All of them may be with calls that have not ended.
        seal = self.take_seal(self.store.deadline)
        if seal is None:
            with self.lock:
                self.counts.skipped += 1
            return None
        room = cache.reserve(key, nbytes)
        try:
            self.store.get_parts(name, [room, seal.block], keep=seal)
            with memoryview(room) as view, memoryview(seal.block) as sealed:
                good = sealed == _SEAL.pack(
                    _MARK, nbytes, zlib.crc32(view), zlib.crc32(name.encode())
                )
            with self.lock:
                # Another cache that shares this may have removed it.
                stale = self.all_stale or name in self.stale
                self.counts.absent += stale
            # Asked after the bytes have come: if it is broken, what came may be half of one and half of another.
            if not stale and (good or not lease.is_valid):
                return self._commit(cache, key, lease, room)
        except BaseException:
            # A late call still writes to it: then it goes when that call lets go.
            with contextlib.suppress(ClosedError, ExportedError):
                room.discard()
            raise
        room.discard()
        if not stale:
            self._corrupt(name)
        return None

    def _commit(self, cache: KvCache, key: _Name, lease: Lease, room: Reservation) -> Pinned | None:
        """Puts in what was fetched, if it is the latest value still."""
        nbytes = room.nbytes
        found = room.commit(lease=lease)
        if found is None:
            now = cache.lease(key)
            if isinstance(now, Lease):
                now.release()
                now = None
            return self._superseded(now)
        with self.lock:
            self.counts.fetched += 1
            self.counts.fetched_bytes += nbytes
        return found

    def _superseded(self, now: Pinned | None) -> Pinned | None:
        """Another thread was ahead. What the cache has now is the answer."""
        with self.lock:
            self.counts.superseded += 1
        return now

    def _corrupt(self, name: str) -> None:
        with self.lock:
            self.counts.corrupt += 1
            self.last_error = f"what came back under {name!r} is not what was put"
            self._mark_stale(name)
        _log.warning("%s: it is removed", self.last_error)

    # Figures, ends.

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
                forgotten=counts.forgotten,
                fetched=counts.fetched,
                fetched_bytes=counts.fetched_bytes,
                absent=counts.absent,
                skipped=counts.skipped,
                refused=counts.refused,
                corrupt=counts.corrupt,
                superseded=counts.superseded,
                stale=_MOST_STALE if self.all_stale else len(self.stale),
                errors=counts.errors,
                reachable=not self.down,
                last_error=self.last_error,
                circuit=reach.circuit,
                probes=reach.probes,
                timeouts=reach.timeouts,
                late=reach.late,
                segments_down=reach.segments_down,
            )

    def flush(self, timeout: float | None) -> bool:
        with self.lock:
            return self.changed.wait_for(
                lambda: self.stopping or not (self.queue or self.stale or self.all_stale), timeout
            )

    def stop(self) -> None:
        self.store.circuit.unlisten(self.heard)
        with self.lock:
            self.stopping = True
            self.changed.notify_all()

    def _give_up(self) -> None:
        """What is left is let go of, and counted."""
        with self.lock:
            left = list(self.queue)
            self.queue.clear()
            self.waiting.clear()
            self.ended = True
            while self.free:
                self.free.popleft().free()
            self.bytes = 0
            self.counts.failed += len(left)
            self.changed.notify_all()
        for entry in left:
            entry.let_go()
        if left:
            _log.warning(
                "%d evicted values were not put into the cluster before the end", len(left)
            )
