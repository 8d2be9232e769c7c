"""*Errors*: the exceptions of kvmem, with the numbers as attributes.

Every exception is a :class:`KvmemError` and a standard exception of its kind. An attribute that
does not apply is ``None``."""

import inspect
import re
from pathlib import Path
from typing import Any, ClassVar


class KvmemError(Exception):
    """Base class of all exceptions. ``details`` has the attributes that apply, by name. A subclass
    declares the attributes that it has more than its bases."""

    value: Any
    """The value at fault, if there is one."""
    limit: Any
    """The bound that it exceeds, or the limit that was reached."""
    remedy: str | None
    """What to do about it."""

    _numbers: ClassVar[tuple[str, ...]] = ("value", "limit", "remedy")

    def __init_subclass__(cls) -> None:
        cls._numbers = (*cls._numbers, *inspect.get_annotations(cls))

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.details = details
        for name in self._numbers:
            setattr(self, name, details.get(name))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.details)


def _rebuild(kind: type[KvmemError], message: str, details: dict[str, Any]) -> KvmemError:
    return kind(message, **details)


class _OfArgument(Exception):
    def add_note(self, note: str) -> None:
        """Puts the name of the argument into the message; PyO3 adds it as a note."""
        match = re.fullmatch(r"while processing '(\w+)'", note)
        if match is None:
            super().add_note(note)
        elif not str(self).startswith(f"{match[1]} "):
            self.args = (f"{match[1]}: {self}",)


class OutOfSpaceError(KvmemError, MemoryError):
    """No free range is long enough for the request."""

    requested: int | None
    """Bytes requested."""
    free: int | None
    """Bytes that were free when the request failed."""
    largest_free: int | None
    """Upper bound of the longest free range at that time."""
    limit: int | None
    """Maximum number of bytes that can ever be allocated."""
    ranges: int | None
    """Number of ranges in the metadata, if their limit was reached."""
    blocks: int | None
    """Number of blocks in the cache, all of them pinned or being written."""
    held: int | None
    """Bytes of those blocks."""
    failed: list[int | bytes | str] | None
    """Keys of the values that a disk tier did not store."""


class HeapFullError(OutOfSpaceError, RuntimeError):
    """:class:`kvmem.lmcache.AddressManager` is full. LMCache expects a ``RuntimeError``."""


class NotReadyError(OutOfSpaceError):
    """The initialized part of the pool is full, and more is being initialized. ``Pool.wait_ready``
    waits for it."""

    ready: int | None
    """Initialized bytes, used or free."""
    capacity: int | None
    """Bytes of the pool once all of it is initialized."""


class MappingError(KvmemError, MemoryError):
    """Memory could not be mapped, placed or made resident."""

    requested: int | None
    """Bytes requested."""
    start: int | None
    """Start of the range that failed."""
    stop: int | None
    """End of the range that failed."""
    errno: int | None
    """Error number of the kernel."""


class ArgumentTypeError(_OfArgument, KvmemError, TypeError):
    """An argument has the wrong type."""


class InvalidArgumentError(_OfArgument, KvmemError, ValueError):
    """An argument is invalid."""


class InvalidBufferError(InvalidArgumentError, BufferError):
    """A buffer cannot be used: it is read-only, or not contiguous."""


class InvalidDescriptorError(InvalidArgumentError, OSError):
    """A file descriptor is not open, or cannot be used."""

    errno: int | None
    """Error number of the kernel, if the descriptor got that far."""


class InvalidBatchError(InvalidArgumentError, RuntimeError):
    """The size of a batch for :class:`kvmem.lmcache.AddressManager` is negative. LMCache expects a
    ``RuntimeError``."""


class ClosedError(KvmemError, ValueError):
    """The object has been freed or closed."""


class ExportedError(KvmemError, BufferError):
    """The object cannot be freed, closed or moved: memoryviews, arrays or tensors still view it."""

    views: int | None
    """Number of views."""


class InUseError(KvmemError):
    """The memory or range cannot be returned or changed, because it is in use."""

    requested: int | None
    """Bytes requested."""
    end_of_last: int | None
    """End of the last range in use, in bytes."""


class ForkedError(KvmemError, RuntimeError):
    """The object was made before this process was forked. Its memory stays with the parent."""


class CancelledError(KvmemError):
    """The work was cancelled, and its effects are undone."""

    done: int | None
    """Bytes completed."""
    total: int | None
    """Bytes of the whole work."""


class TimeBudgetError(KvmemError, TimeoutError):
    """The work took longer than its time budget, and its effects are undone."""

    done: int | None
    """Bytes completed."""
    total: int | None
    """Bytes of the whole work."""
    seconds: float | None
    """The budget in seconds."""


class RegistrationError(KvmemError):
    """Memory could not be registered or deregistered, or no key covers the range."""

    device: str | None
    """Name of the device."""
    start: int | None
    """Start of the chunk that failed."""
    stop: int | None
    """End of the chunk that failed."""
    call: str | None
    """Call that failed."""
    errno: int | None
    """Error number of the call."""
    boundary: int | None
    """Boundary between two keys that the range crosses."""
    still_registered: int | None
    """Number of keys that could not be deregistered."""


class NotAvailableError(RegistrationError):
    """The device does not exist, or cannot be used on this machine."""


class DiskTierError(KvmemError, OSError):
    """The file of a disk tier cannot be used, or its drive failed."""

    path: Path | None
    """Path of the file, if it could not be opened."""
    requested: int | None
    """Bytes requested of the file."""
    errno: int | None
    """Error number of the kernel."""
    failed: list[int | bytes | str] | None
    """Keys of the values that were not stored."""


class NodeError(KvmemError):
    """A call of a node failed."""


class NodeDisconnectedError(NodeError, ConnectionError):
    """No server answers, and none did for as long as the call was to wait."""

    path: str | None
    """Path of the socket."""
    seconds: float | None
    """How long the call has waited."""
    errno: int | None
    """Error number of the kernel."""


class NodePermissionError(NodeError, PermissionError):
    """The server does not serve this user so, or belongs to a user that this process does not
    trust, or this user may not reach its socket. ``value`` is the number of that user."""

    path: str | None
    """Path of the socket, unless the server has answered."""
    errno: int | None
    """Error number of the kernel, if it denies the socket to the user."""


class NodeReplacedError(NodeError, ConnectionError):
    """The server has other memory than the one before: all values are gone. Connect again."""


class ReservationLostError(NodeError):
    """The server has taken a reservation back, because the process was silent for too long."""


class PinRevokedError(NodeError):
    """The server has revoked the pin of a value: its bytes may be those of another value."""


class DamagedValueError(NodeError, ValueError):
    """The bytes of a value differ from what its writer has stored."""

    expected: int | None
    """The checksum that the writer has calculated; ``value`` is that of the bytes."""


class UnverifiedValueError(NodeError, ValueError):
    """A value cannot be verified: its writer has calculated no checksum."""


class NotInstalledError(KvmemError, FileNotFoundError):
    """This installation lacks a part of the package, such as the C library."""

    remedy: str
