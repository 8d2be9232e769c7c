"""*Errors*: the engine's error codes as exceptions with messages."""

from typing import Any

from ..errors import KvmemError


class EngineMissingError(KvmemError, ImportError):
    """The engine cannot be imported. The message has the command that installs it."""


class StoreError(KvmemError):
    """A call of the engine failed."""

    code: int | None
    """Error code of the engine."""
    key: str | None
    """Key of the object."""


class ObjectMissingError(StoreError, KeyError):
    """The object does not exist, or no longer exists."""


class ClusterFullError(StoreError, MemoryError):
    """The cluster has no space: its segments are full, or there is no segment."""


class UnreachableError(StoreError, ConnectionError):
    """The master does not answer, or the segment that has the bytes does not answer."""


class DeadlineError(UnreachableError, TimeoutError):
    """A call took longer than its deadline. The engine's call goes on and its result is dropped.
    Until it ends, the blocks that it reads or writes cannot be freed."""

    seconds: float | None
    """Deadline in seconds."""
    call: Any
    """The call, which goes on."""

    def __reduce__(self) -> tuple[Any, ...]:
        self.details.pop("call", None)
        return super().__reduce__()


class CircuitOpenError(UnreachableError):
    """The call was not made: the master or the segment has failed, and is skipped for a while."""


class ExposedError(StoreError):
    """The engine's ports would answer on more addresses than ``host``."""

    port: int | None
    """Number of the port."""


class BatchError(StoreError):
    """Some objects of a batch failed. The others succeeded."""

    failed: dict[str, StoreError]
    """The errors, by key."""


MISSING = (-703, -704, -710, -712)
"""Codes of objects that do not exist, or cannot be read."""
MASTER_GONE = -900
"""Code of a master that does not answer."""
TIMED_OUT = -901
"""Code of a master that does not answer in time."""
TRANSFER_FAILED = -800
"""Code of a transfer that failed."""

# Exception class and message of each code.
_MEANINGS: dict[int, tuple[type[StoreError], str]] = {
    -1: (StoreError, "the engine failed internally; see its log on standard error"),
    -10: (ClusterFullError, "a buffer is too small"),
    -101: (ClusterFullError, "no segment is mounted"),
    -102: (StoreError, "the segment is already mounted"),
    -103: (
        UnreachableError,
        "the master no longer knows this client; try again after the next heartbeat",
    ),
    -200: (
        ClusterFullError,
        "no segment has enough free space: mount more, or lower the master's "
        "eviction_high_watermark_ratio",
    ),
    -400: (StoreError, "the key is invalid"),
    -500: (UnreachableError, "writing to the segment failed"),
    -600: (StoreError, "an argument is invalid, or the buffer is shorter than the object"),
    -601: (StoreError, "the object belongs to another client"),
    -700: (StoreError, "the object cannot be written now"),
    -701: (StoreError, "the object cannot be read now"),
    -702: (StoreError, "the replica cannot be used now"),
    -703: (ObjectMissingError, "the object is still being written, or its writer died"),
    -704: (ObjectMissingError, "the object does not exist"),
    -705: (StoreError, "the object exists already"),
    -706: (
        StoreError,
        "the object was read recently and stays for its readers; force=True removes it anyway",
    ),
    -707: (UnreachableError, "the transfer took longer than the lease on the object"),
    -708: (StoreError, "the object is being copied to another segment"),
    -710: (ObjectMissingError, "the object has no replica"),
    -712: (ObjectMissingError, "the replica is gone"),
    TRANSFER_FAILED: (
        UnreachableError,
        "the transfer failed: the segment that has the bytes does not answer",
    ),
    MASTER_GONE: (UnreachableError, "the master does not answer"),
    TIMED_OUT: (UnreachableError, "the master does not answer in time"),
    -1010: (UnreachableError, "the master cannot do this now"),
}

# The engine numbers its errors by kind. Unknown codes in these ranges are failures of a transfer,
# of a call to the master, and of the master's service.
_TRANSFERS, _CALLS, _SERVICES = range(-899, -799), range(-999, -899), range(-1099, -999)


def is_transfer(code: int | None) -> bool:
    """Returns whether the code means that a transfer with a segment failed."""
    return code in _TRANSFERS or code == -500


def is_master(code: int | None) -> bool:
    """Returns whether the code means that the master cannot be reached."""
    return code in _CALLS or code in _SERVICES


def _meaning(code: int) -> tuple[type[StoreError], str]:
    known = _MEANINGS.get(code)
    if known is not None:
        return known
    if is_transfer(code):
        return UnreachableError, "the transfer failed"
    if is_master(code):
        return UnreachableError, "the master cannot be reached"
    return StoreError, "unknown error code; see the engine's documentation"


def error(code: int, doing: str, key: str | None = None, **details: Any) -> StoreError:
    """Returns the exception for a code."""
    kind, text = _meaning(code)
    what = doing if key is None else f"{doing} {key!r}"
    return kind(f"cannot {what}: {text} (code {code})", code=code, key=key, **details)


def check(code: int, doing: str, key: str | None = None) -> int:
    """Returns the code, or raises if it is an error."""
    if code < 0:
        raise error(code, doing, key)
    return code


def check_all(
    codes: list[int], doing: str, keys: list[str], *, but: tuple[int, ...] = ()
) -> list[int]:
    """Returns the codes, or raises if some of them are errors other than those in ``but``."""
    failed = {
        key: error(code, doing, key)
        for key, code in zip(keys, codes)
        if code < 0 and code not in but
    }
    if failed:
        first = next(iter(failed.values()))
        message = f"{len(failed)} of {len(codes)} objects failed; the first error: {first}"
        raise BatchError(message, code=first.code, key=first.key, failed=failed)
    return codes
