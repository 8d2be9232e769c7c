"""*Node store*: values in the pool of ``kvmem serve``, shared by all engines of a machine.

The connection is made again when it is needed. Values carry checksums: their writer computes one,
and each reader of a value verifies it. A reader copies a value while it is pinned, and looks
afterwards whether the pin was valid all the time."""

import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .._kvmem import NodeCache, NodeReservation, PinBatch, PinnedValue, connect
from ..errors import (
    ClosedError,
    NodeDisconnectedError,
    NodeReplacedError,
    OutOfSpaceError,
    ReservationLostError,
)
from .data_type import common
from .store import Budget, StoreUnavailableError, Value, ValueStore

_log = logging.getLogger("kvmem.storage")
_T = TypeVar("_T")

MAX_BATCH = 1024
"""Maximum number of values in one call of a node."""


def batches(length: int) -> Iterator[slice]:
    """Yields the parts of a sequence, each as long as a call may be."""
    for start in range(0, length, MAX_BATCH):
        yield slice(start, min(start + MAX_BATCH, length))


class NodeStore(ValueStore):
    """Values in the memory of a node.

    - ``socket``: path of the server's socket. The server need not run yet.
    - ``namespace``: namespace of all keys.
    - ``deadline``, ``retry``: as for :class:`ValueStore`.
    - ``rings``, ``server_users``: as for :func:`kvmem.connect`.

    Raises :class:`~kvmem.NodeError` if the server rejects this process."""

    def __init__(
        self,
        socket: str | Path,
        *,
        namespace: str = "",
        deadline: float = 1.0,
        retry: float = 1.0,
        rings: bool = False,
        server_users: Sequence[int] = (),
    ) -> None:
        super().__init__(f"the node at {socket}", deadline, retry)
        self._socket, self._namespace, self._rings = Path(socket), namespace, rings
        self._server_users = server_users
        self._cache: NodeCache | None = None
        self._connecting = threading.Lock()
        self._closed = False
        self._pins: dict[bytes, list[PinnedValue]] = defaultdict(list)
        self._pinning = threading.Lock()
        try:
            self._call(lambda cache: cache.keep_alive(), Budget(deadline))
        except (NodeDisconnectedError, StoreUnavailableError) as error:
            if getattr(error, "errno", None) in _DENIED:
                raise
            # An engine may start before its node.
            self.backend.fail(f"{self.backend.name} does not answer yet: {error}")

    def _connected(self) -> NodeCache:
        """Returns the connection, which is made if there is none. Runs in a thread of calls."""
        with self._connecting:
            if self._closed:
                raise ClosedError("the store is closed: make another one")
            if self._cache is None:
                self._cache = connect(
                    self._socket,
                    namespace=self._namespace,
                    retry_for=min(_RESTART, self.deadline),
                    checksums=True,
                    verify=True,
                    rings=self._rings,
                    server_users=self._server_users,
                )
            return self._cache

    def _call(self, work: Callable[[NodeCache], _T], budget: Budget) -> _T:
        """Makes a call of the node, again if the node has other memory than before."""

        def run() -> _T:
            cache = self._connected()
            try:
                return work(cache)
            except NodeReplacedError:
                self._forget(cache)
                return work(self._connected())

        return self.backend.call(run, budget)

    def _forget(self, cache: NodeCache) -> None:
        """Drops a connection whose values are gone. Memory that is pinned stays mapped."""
        with self._connecting:
            if self._cache is cache:
                self._cache = None
        with contextlib.suppress(Exception):
            cache.close()

    def _get(self, values: Sequence[Value], found: list[bool], budget: Budget) -> None:
        for part in batches(len(values)):
            keys = [value.key for value in values[part]]
            with self._acquire(keys, budget) as pins:
                for index, pinned in enumerate(pins, part.start):
                    if pinned is None or pinned.nbytes != values[index].nbytes:
                        continue
                    values[index].copy_from(pinned.ptr)
                    # The memory is mapped still, but another value may have been written there.
                    found[index] = pinned.is_valid

    def _acquire(self, keys: list[bytes], budget: Budget) -> PinBatch:
        return self._call(lambda cache: cache.acquire(keys), budget)

    def _look_up(self, keys: list[bytes], budget: Budget) -> int:
        return self._call(lambda cache: cache.lookup(keys), budget)

    def _put(self, values: Sequence[Value], done: list[int | None], budget: Budget) -> None:
        for part in batches(len(values)):
            with self._acquire([value.key for value in values[part]], budget) as pins:
                missing = []
                for index, pinned in enumerate(pins, part.start):
                    if pinned is not None and pinned.nbytes == values[index].nbytes:
                        done[index] = 0
                    else:
                        missing.append(index)
            # Half of them at a time if the node has no space for all.
            todo = [missing]
            while todo:
                indices = todo.pop()
                if not indices:
                    continue
                try:
                    self._insert([values[index] for index in indices], budget)
                except (OutOfSpaceError, ReservationLostError) as error:
                    _log.debug("%d values were not stored: %s", len(indices), error)
                    if len(indices) > 1:
                        half = len(indices) // 2
                        todo += [indices[half:], indices[:half]]
                else:
                    for index in indices:
                        done[index] = values[index].nbytes

    def _insert(self, values: list[Value], budget: Budget) -> None:
        sizes = [(value.key, value.nbytes) for value in values]
        parents = [value.parent for value in values]
        data_type = common(value.data_type for value in values)
        reserved: list[NodeReservation] = self._call(
            lambda cache: cache.reserve_batch(sizes, parents=parents, data_type=data_type), budget
        )
        # This thread copies: an abandoned call has nothing of the engine's memory.
        for reservation, value in zip(reserved, values, strict=True):
            value.copy_to(reservation.ptr)
        self._call(lambda cache: cache.commit(reserved), budget)

    def _lengths(self, keys: Sequence[bytes], found: list[int | None], budget: Budget) -> None:
        for part in batches(len(keys)):
            with self._acquire(list(keys[part]), budget) as pins:
                found[part] = [None if pinned is None else pinned.nbytes for pinned in pins]

    def prefix(self, keys: Sequence[bytes]) -> int:
        """Returns the number of keys before the first one that has no value."""
        length = 0
        with self._guarded():
            budget = Budget(self.deadline)
            for part in batches(len(keys)):
                length += self._look_up(list(keys[part]), budget)
                if length < part.stop:
                    break
        return length

    def lock(self, keys: Sequence[bytes]) -> list[bool]:
        """Returns which keys have values, and pins these until :meth:`unlock`."""
        locked = [False] * len(keys)
        with self._guarded():
            budget = Budget(self.deadline)
            for part in batches(len(keys)):
                pins = self._acquire(list(keys[part]), budget)
                with self._pinning:
                    for index, pinned in enumerate(pins, part.start):
                        if pinned is not None:
                            self._pins[keys[index]].append(pinned)
                            locked[index] = True
        return locked

    def unlock(self, keys: Sequence[bytes]) -> None:
        """Releases one pin of each key."""
        released = []
        with self._pinning:
            for key in keys:
                if pins := self._pins.get(key):
                    released.append(pins.pop())
                    if not pins:
                        del self._pins[key]
        for pinned in released:
            pinned.release()

    @property
    def locked(self) -> int:
        """Number of pins that :meth:`unlock` has not released."""
        with self._pinning:
            return sum(map(len, self._pins.values()))

    def _remove(self, keys: list[bytes]) -> None:
        cache = self._connected()
        for part in batches(len(keys)):
            cache.remove_batch(keys[part])

    def _clear(self) -> None:
        self._connected().clear()

    @property
    def used(self) -> int:
        """Number of bytes that values and reservations of all engines use."""
        used = 0
        with self._guarded():
            used = self._call(lambda cache: cache.stats(), Budget(self.deadline)).used
        return used

    @property
    def capacity(self) -> int:
        """Number of bytes of the node's pool; 0 before the first connection."""
        cache = self._cache
        return 0 if cache is None else cache.memory_len

    def close(self) -> None:
        """Ends the connection, and releases all pins."""
        with self._pinning:
            pins = [pinned for each in self._pins.values() for pinned in each]
            self._pins.clear()
        for pinned in pins:
            pinned.release()

        def last() -> None:
            with self._connecting:
                self._closed = True
                if self._cache is not None:
                    self._cache.close()
                    self._cache = None

        self.backend.close(last, self.deadline)


_RESTART = 0.05
"""Seconds for which a call waits for a server that its memory holder starts again."""
_DENIED = (1, 13)
"""``EPERM`` and ``EACCES``: waiting for the server does not help."""
