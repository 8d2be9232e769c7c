"""*Errors*: the engine's numbers as exceptions with words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import KvmemError

if TYPE_CHECKING:
    from .calls import Call


class EngineMissingError(KvmemError, ImportError):
    """The engine cannot be imported; the message has the command that gets it."""


class StoreError(KvmemError):
    """The engine, or the cluster, refuses."""

    _numbers: ClassVar[tuple[str, ...]] = ("code", "key")

    code: int | None
    """The engine's number."""
    key: str | None
    """The object's key."""


class ObjectMissingError(StoreError, KeyError):
    """There is no such object, or not any more."""


class ClusterFullError(StoreError, MemoryError):
    """The cluster has no room for it: its segments are full, or there is none."""


class UnreachableError(StoreError, ConnectionError):
    """The master does not answer, or the segment that has the bytes does not."""


class DeadlineError(UnreachableError, TimeoutError):
    """A call took longer than its deadline.

    The engine's call goes on, and its result is dropped. Until it ends, blocks that it reads or
    writes cannot be freed.
    """

    _numbers: ClassVar[tuple[str, ...]] = ("code", "key", "seconds", "call")

    seconds: float | None
    """The deadline."""
    call: Call | None
    """The call that goes on."""

    def __reduce__(self) -> tuple[Any, ...]:
        self.details.pop("call", None)
        return super().__reduce__()


class CircuitOpenError(UnreachableError):
    """The call was not made: the master, or the segment that has the bytes, did not answer before
    and is left alone for a while.
    """


class ExposedError(StoreError):
    """The engine's ports would answer on more addresses than the one that was named."""

    _numbers: ClassVar[tuple[str, ...]] = ("code", "key", "port")

    port: int | None
    """The port."""


class BatchError(StoreError):
    """Some objects of a batch failed; the others are done."""

    _numbers: ClassVar[tuple[str, ...]] = ("code", "key", "failed")

    failed: dict[str, StoreError]
    """What failed, by key."""


MASTER_GONE = -900
"""The code of a master that does not answer."""
TIMED_OUT = -901
"""The code of one that does not answer in time."""
TRANSFER_FAILED = -800
"""The code of a transfer that failed."""

# What the engine's numbers mean: the kind of exception, and words.
_MEANINGS: dict[int, tuple[type[StoreError], str]] = {
    -1: (StoreError, "it failed inside; its log on standard error may say why"),
    -10: (ClusterFullError, "a buffer is too small"),
    -101: (ClusterFullError, "no segment is mounted"),
    -102: (StoreError, "this segment is mounted already"),
    -103: (
        UnreachableError,
        "the master does not know this client any more; it will once they have spoken again",
    ),
    -200: (
        ClusterFullError,
        "no segment has room for it: mount more, or lower the master's eviction_high_watermark_ratio",
    ),
    -400: (StoreError, "this is no key"),
    -500: (UnreachableError, "writing to the segment failed"),
    -600: (StoreError, "an argument makes no sense, or the buffer is shorter than the object"),
    -601: (StoreError, "the object is another client's"),
    -700: (StoreError, "it cannot be written now"),
    -701: (StoreError, "it cannot be read now"),
    -702: (StoreError, "the copy cannot be used now"),
    -703: (ObjectMissingError, "it is still being written, or its writer died"),
    -704: (ObjectMissingError, "there is no such object"),
    -705: (StoreError, "there is such an object already"),
    -706: (
        StoreError,
        "it was read just now and is kept for its readers: force=True removes it nevertheless",
    ),
    -707: (UnreachableError, "the transfer took longer than the object was kept for it"),
    -708: (StoreError, "it is being copied to another segment"),
    -710: (ObjectMissingError, "there is no copy of it"),
    -712: (ObjectMissingError, "its copy is gone"),
    TRANSFER_FAILED: (
        UnreachableError,
        "the transfer failed: the segment that has the bytes does not answer",
    ),
    MASTER_GONE: (UnreachableError, "the master does not answer"),
    TIMED_OUT: (UnreachableError, "the master does not answer in time"),
    -1010: (UnreachableError, "the master cannot do this now"),
}

# The engine numbers its errors by kind: these kinds are transports, whether a number is known here
# or not.
_TRANSFERS, _CALLS, _SERVICES = range(-899, -799), range(-999, -899), range(-1099, -999)


def is_transfer(code: int | None) -> bool:
    """Whether it means that bytes did not get to a segment or from it."""
    return code in _TRANSFERS or code == -500


def is_master(code: int | None) -> bool:
    """Whether it means that the master cannot be talked to."""
    return code in _CALLS or code in _SERVICES


def _meaning(code: int) -> tuple[type[StoreError], str]:
    known = _MEANINGS.get(code)
    if known is not None:
        return known
    if is_transfer(code):
        return UnreachableError, "the transfer failed"
    if is_master(code):
        return UnreachableError, "the master cannot be talked to"
    return StoreError, "the engine gives no reason that is known here"


def error(code: int, doing: str, key: str | None = None, **details: Any) -> StoreError:
    """The exception for a code."""
    kind, words = _meaning(code)
    what = doing if key is None else f"{doing} {key!r}"
    return kind(f"cannot {what}: {words} (code {code})", code=code, key=key, **details)


def check(code: int, doing: str, key: str | None = None) -> int:
    """The number itself unless it is a failure."""
    if code < 0:
        raise error(code, doing, key)
    return code


def check_all(
    codes: list[int], doing: str, keys: list[str], *, but: tuple[int, ...] = ()
) -> list[int]:
    """The numbers unless some of them are failures other than ``but``."""
    failed = {
        key: error(code, doing, key)
        for key, code in zip(keys, codes)
        if code < 0 and code not in but
    }
    if failed:
        first = next(iter(failed.values()))
        message = f"{len(failed)} of {len(codes)} failed, the first: {first}"
        raise BatchError(message, code=first.code, key=first.key, failed=failed)
    return codes
