"""*Store*: values by key, for engines whose memory must not be touched late.

An engine lends the memory of its pages for one call. A call that misses its deadline returns, but
the transfer behind it may go on. Therefore a store with a deadline transfers from and to memory of
its own, which the abandoned transfer holds, and the calling thread copies (decision 0102).

While an abandoned call has not ended, and for ``retry`` seconds after a failure, further calls
miss at once: a backend that hangs costs one deadline, and not one for each page."""

import contextlib
import ctypes
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from .._calls import CallQueue
from ..errors import KvmemError

_log = logging.getLogger("kvmem.storage")
_T = TypeVar("_T")


class StoreUnavailableError(KvmemError, ConnectionError):
    """The store makes no call now, or the call missed its deadline: ``limit`` seconds."""


@dataclass(frozen=True, slots=True)
class Value:
    """A key, and the memory of an engine that its bytes are read from or written to."""

    key: bytes
    """Key, of at most 64 bytes."""
    parts: tuple[tuple[int, int], ...]
    """Addresses and lengths in bytes of its parts, in order. The caller holds the memory."""
    parent: bytes | None = None
    """Key of the value before it in a prompt. A node evicts that one later."""
    data_type: str = "unknown"
    """Type of its elements, which a tier that compresses values tries first."""

    @property
    def nbytes(self) -> int:
        """Length of the value in bytes."""
        return sum(nbytes for _, nbytes in self.parts)

    def copy_to(self, address: int) -> None:
        """Copies the parts to contiguous memory, without the GIL."""
        for start, nbytes in self.parts:
            ctypes.memmove(address, start, nbytes)
            address += nbytes

    def copy_from(self, address: int) -> None:
        """Copies contiguous memory to the parts, without the GIL."""
        for start, nbytes in self.parts:
            ctypes.memmove(start, address, nbytes)
            address += nbytes


class ValueStoreStats(NamedTuple):
    """Figures of a store since it was opened."""

    hits: int
    """Values loaded."""
    misses: int
    """Values that were not loaded, for whatever reason."""
    stored: int
    """Values stored."""
    existing: int
    """Values that were not stored again, because the store had them."""
    failed: int
    """Values that could not be stored."""
    timeouts: int
    """Calls that missed their deadline."""
    failures: int
    """Times that the backend failed: its server has ended, or its drive does not answer."""
    loaded_bytes: int
    """Bytes of the values loaded."""
    stored_bytes: int
    """Bytes of the values stored."""
    reachable: bool
    """Whether the next call is made. Otherwise calls miss at once for a while."""
    last_error: str | None
    """Message of the latest failure."""


class Budget:
    """The time that one call of an engine has left."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds left, and not less than 0."""
        return max(0.0, self._end - time.monotonic())


class Backend:
    """The calls to a backend: each has a deadline, and failures pause them."""

    def __init__(self, name: str, retry: float) -> None:
        self.name = name
        self.retry = retry
        self.timeouts = self.failures = 0
        self.last_error: str | None = None
        self._calls = CallQueue(name, limit=4)
        self._lock = threading.Lock()
        self._paused_until = 0.0
        self._warned = False

    @property
    def reachable(self) -> bool:
        """Whether a call is made now."""
        return not self._calls.abandoned and time.monotonic() >= self._paused_until

    def call(self, work: Callable[[], _T], budget: Budget) -> _T:
        """Makes a call in another thread, and waits for it as long as the budget lasts. Raises what
        ``work`` raises, and :class:`StoreUnavailableError`."""
        if not self.reachable:
            raise StoreUnavailableError(f"{self.name} failed before: {self.last_error}")
        call = self._calls.submit(work)
        try:
            result: _T = call.wait(budget.left())
        except TimeoutError:
            with self._lock:
                self.timeouts += 1
            raise self.fail(
                f"{self.name} did not answer within {budget.seconds:g} s", budget.seconds
            ) from None
        with self._lock:
            recovered, self._warned = self._warned, False
        if recovered:
            _log.info("%s answers again", self.name)
        return result

    def fail(self, why: str, limit: float | None = None) -> StoreUnavailableError:
        """Pauses calls for a while, and returns the error that says why."""
        with self._lock:
            self.failures += 1
            self.last_error = why
            self._paused_until = time.monotonic() + self.retry
            warned, self._warned = self._warned, True
        _log.log(
            logging.DEBUG if warned else logging.WARNING,
            "%s: the values it has are misses, and the next call is made in %g s",
            why,
            self.retry,
        )
        return StoreUnavailableError(
            why, limit=limit, remedy=f"nothing: it is tried again in {self.retry:g} s"
        )

    def close(self, last: Callable[[], object], seconds: float) -> None:
        """Makes ``last`` the last call, when all others have ended, and waits for it a while."""
        with contextlib.suppress(TimeoutError):
            self._calls.close(last).wait(seconds)


class ValueStore(ABC):
    """Values by key. Any thread may call any method; none raises because of its backend.
    ``deadline``: seconds that a call may take. ``retry``: seconds without calls after a failure."""

    def __init__(self, name: str, deadline: float, retry: float) -> None:
        self.deadline = deadline
        self.backend = Backend(name, retry)
        self._counts = dict.fromkeys(
            ("hits", "misses", "stored", "existing", "failed", "loaded_bytes", "stored_bytes"), 0
        )
        self._counting = threading.Lock()

    def get(self, values: Sequence[Value]) -> list[bool]:
        """Loads values into the memory of an engine, all in one call of the backend. Returns which
        were loaded. The memory of the others is as before, or has bytes that mean nothing."""
        found = [False] * len(values)
        with self._guarded():
            self._get(values, found, Budget(self.deadline))
        loaded = sum(value.nbytes for value, hit in zip(values, found, strict=True) if hit)
        hits = sum(found)
        self._count(hits=hits, misses=len(values) - hits, loaded_bytes=loaded)
        return found

    def put(self, values: Sequence[Value]) -> list[bool]:
        """Stores values from the memory of an engine, all in one call of the backend. Values that
        the store has are left alone: a key means one value. Returns which the store has now."""
        return [nbytes is not None for nbytes in self.put_sizes(values)]

    def put_sizes(self, values: Sequence[Value]) -> list[int | None]:
        """Does what :meth:`put` does. Returns the bytes that were stored for each value: 0 for one
        that the store had already, None for one that it has not now."""
        # Equal keys in one call are one value, which the first of them stores.
        first = {value.key: at for at, value in reversed(list(enumerate(values)))}
        chosen = [values[at] for at in sorted(first.values())]
        put: list[int | None] = [None] * len(chosen)
        with self._guarded():
            self._put(chosen, put, Budget(self.deadline))
        of_key = {value.key: nbytes for value, nbytes in zip(chosen, put, strict=True)}
        done = [
            of_key[value.key] and (of_key[value.key] if first[value.key] == at else 0)
            for at, value in enumerate(values)
        ]
        stored = [nbytes for nbytes in done if nbytes]
        self._count(
            stored=len(stored),
            stored_bytes=sum(stored),
            existing=done.count(0),
            failed=done.count(None),
        )
        return done

    def lengths(self, keys: Sequence[bytes]) -> list[int | None]:
        """Returns the length of the value of each key in bytes; None where there is none."""
        found: list[int | None] = [None] * len(keys)
        with self._guarded():
            self._lengths(keys, found, Budget(self.deadline))
        return found

    def prefix(self, keys: Sequence[bytes]) -> int:
        """Returns the number of keys before the first one that has no value."""
        found = self.lengths(keys)
        return found.index(None) if None in found else len(found)

    def lock(self, keys: Sequence[bytes]) -> list[bool]:
        """Returns which keys have values, and holds them until :meth:`unlock`, if it can."""
        return [nbytes is not None for nbytes in self.lengths(keys)]

    def unlock(self, keys: Sequence[bytes]) -> None:  # noqa: B027
        """Releases the values that :meth:`lock` holds. Most backends hold none."""

    def remove(self, keys: Sequence[bytes]) -> None:
        """Removes the values of keys."""
        with self._guarded():
            self.backend.call(lambda: self._remove(list(keys)), Budget(self.deadline))

    def clear(self) -> bool:
        """Removes all values of this engine's namespace. Returns whether that was done."""
        with self._guarded():
            self.backend.call(self._clear, Budget(self.deadline))
            return True
        return False

    @property
    def capacity(self) -> int:
        """Number of bytes that the store can hold; 0 if that is not known."""
        return 0

    @property
    def used(self) -> int:
        """Number of bytes in use, of :attr:`capacity`."""
        return 0

    def stats(self) -> ValueStoreStats:
        """Returns the figures of the store."""
        backend = self.backend
        with self._counting:
            counts = dict(self._counts)
        return ValueStoreStats(
            timeouts=backend.timeouts,
            failures=backend.failures,
            reachable=backend.reachable,
            last_error=backend.last_error,
            **counts,
        )

    @abstractmethod
    def close(self) -> None:
        """Ends the store. A second call does nothing."""

    @abstractmethod
    def _get(self, values: Sequence[Value], found: list[bool], budget: Budget) -> None: ...

    @abstractmethod
    def _put(self, values: Sequence[Value], done: list[int | None], budget: Budget) -> None:
        """Stores values of different keys, and notes the bytes of each; 0 for those that exist."""

    @abstractmethod
    def _lengths(self, keys: Sequence[bytes], found: list[int | None], budget: Budget) -> None: ...

    @abstractmethod
    def _remove(self, keys: list[bytes]) -> None: ...

    @abstractmethod
    def _clear(self) -> None: ...

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                self._counts[name] += number

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turns a failure of the backend into misses."""
        try:
            yield
        except StoreUnavailableError as error:
            _log.debug("%s", error)
        except (KvmemError, OSError, MemoryError) as error:
            self.backend.fail(f"{self.backend.name} failed: {error}")
