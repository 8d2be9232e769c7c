"""*Errors*: what can go wrong, with the numbers as attributes.

Every exception of kvmem is a :class:`KvmemError`, and what the standard library has for its kind as well. An attribute that does not
apply is ``None``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KvmemError(Exception):
    """Anything that kvmem refuses. ``details`` has the numbers that there are, by name."""

    _numbers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.details = details
        for name in self._numbers:
            setattr(self, name, details.get(name))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), str(self), self.details)


def _again(kind: type[KvmemError], message: str, details: dict[str, Any]) -> KvmemError:
    return kind(message, **details)


class OutOfSpaceError(KvmemError, MemoryError):
    """There is no room for what was asked for."""

    _numbers: ClassVar[tuple[str, ...]] = (
        "requested",
        "free",
        "largest_free",
        "limit",
        "ranges",
        "blocks",
        "held",
    )

    requested: int | None
    """Bytes asked for."""
    free: int | None
    """Bytes free when it was refused."""
    largest_free: int | None
    """Upper bound of the longest free range then."""
    limit: int | None
    """The most that can ever be had, in bytes."""
    ranges: int | None
    """Ranges on the books, where these are full."""
    blocks: int | None
    """Blocks that a cache holds, all of them pinned or being written."""
    held: int | None
    """Bytes of those."""


class HeapFullError(OutOfSpaceError, RuntimeError):
    """:class:`kvmem.lmcache.AddressManager` has no room; LMCache takes it as a ``RuntimeError``."""


class NotReadyError(OutOfSpaceError):
    """There is no room in what is ready, and more is being made ready: ``Pool.wait_ready``."""

    _numbers: ClassVar[tuple[str, ...]] = (*OutOfSpaceError._numbers, "ready", "capacity")

    ready: int | None
    """Bytes that are ready, used or free."""
    capacity: int | None
    """Bytes that are to be."""


class MappingError(KvmemError, MemoryError):
    """Memory could not be mapped, placed or made resident."""

    _numbers: ClassVar[tuple[str, ...]] = ("requested", "start", "stop", "errno", "limit", "remedy")

    requested: int | None
    """Bytes asked for."""
    start: int | None
    """Where that which failed begins."""
    stop: int | None
    """Where it ends."""
    errno: int | None
    """Why the kernel refused."""
    limit: str | None
    """The limit that stood in the way."""
    remedy: str | None
    """What to do about it."""


class InvalidArgumentError(KvmemError, ValueError):
    """What was asked for makes no sense."""

    _numbers: ClassVar[tuple[str, ...]] = ("value", "limit")

    value: Any
    """What was given, where that is one value."""
    limit: int | None
    """The bound that a number is beyond."""


class InvalidBufferError(InvalidArgumentError, BufferError):
    """A buffer cannot be used as it is: it is read-only, or lies in several pieces."""


class InvalidDescriptorError(InvalidArgumentError, OSError):
    """A file descriptor is no open one. ``errno`` is what the kernel said, if it was asked."""

    _numbers: ClassVar[tuple[str, ...]] = ("value", "limit", "errno")

    errno: int | None


class InvalidBatchError(InvalidArgumentError, RuntimeError):
    """A batch of less than nothing was asked of :class:`kvmem.lmcache.AddressManager`; LMCache takes it as a ``RuntimeError``."""


class ClosedError(KvmemError, ValueError):
    """What was used has been freed or closed."""


class ExportedError(KvmemError, BufferError):
    """What was to be freed, closed or moved is looked at by others: memoryviews, arrays, tensors."""

    _numbers: ClassVar[tuple[str, ...]] = ("views",)

    views: int | None
    """How many there are."""


class InUseError(KvmemError):
    """What was to be given back, or changed, is in use."""

    _numbers: ClassVar[tuple[str, ...]] = ("requested", "end_of_last")

    requested: int | None
    """Bytes asked for."""
    end_of_last: int | None
    """Where the last range in use ends, in bytes."""


class ForkedError(KvmemError, RuntimeError):
    """It was made before this process was forked, and its memory stays with the parent."""


class CancelledError(KvmemError):
    """The work was cancelled. Nothing of it is left."""

    _numbers: ClassVar[tuple[str, ...]] = ("done", "total")

    done: int | None
    """Bytes that had been done."""
    total: int | None
    """Bytes that were to be."""


class TimeBudgetError(KvmemError, TimeoutError):
    """The work took longer than it may. Nothing of it is left."""

    _numbers: ClassVar[tuple[str, ...]] = ("done", "total", "seconds")

    done: int | None
    """Bytes that had been done."""
    total: int | None
    """Bytes that were to be."""
    seconds: float | None
    """The limit."""


class RegistrationError(KvmemError):
    """Memory could not be registered or deregistered, or there is no such key."""

    _numbers: ClassVar[tuple[str, ...]] = (
        "device",
        "start",
        "stop",
        "call",
        "errno",
        "limit",
        "remedy",
        "boundary",
        "still_registered",
    )

    device: str | None
    """The device."""
    start: int | None
    """Where the chunk that was refused begins."""
    stop: int | None
    """Where it ends."""
    call: str | None
    """The call that was refused."""
    errno: int | None
    """Why."""
    limit: str | None
    """The limit that stood in the way."""
    remedy: str | None
    """What to do about it."""
    boundary: int | None
    """The edge between two keys that a range straddles."""
    still_registered: int | None
    """Keys that were not taken back."""


class NotAvailableError(RegistrationError):
    """The device is not there, or cannot be used here."""
