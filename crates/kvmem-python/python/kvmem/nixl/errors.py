"""*Errors*: what NIXL refuses, in words."""

from __future__ import annotations

from typing import ClassVar

from ..errors import InvalidArgumentError, KvmemError


class TransferError(KvmemError):
    """NIXL refused a call, or a transfer has failed."""

    _numbers: ClassVar[tuple[str, ...]] = ("code", "remedy")

    code: str | None
    """By what NIXL calls it, such as ``nixlBackendError``."""
    remedy: str | None
    """What to do about it."""


class UnregisteredError(TransferError):
    """Memory that a transfer names is not registered, here or with the peer. NIXL calls it ``nixlNotFoundError``."""


class PeerLostError(TransferError):
    """The peer has gone in the middle. What its and our blocks hold is not determined."""


class NotInPoolError(InvalidArgumentError):
    """A block is not one of the agent's pool."""

    _numbers: ClassVar[tuple[str, ...]] = ("address", "nbytes", "start", "stop")

    address: int | None
    """Where the block begins."""
    nbytes: int | None
    """Its length in bytes."""
    start: int | None
    """Where the registered memory begins."""
    stop: int | None
    """Where it ends."""


_CLASSES: dict[str, type[TransferError]] = {
    "nixlNotFoundError": UnregisteredError,
    "nixlRemoteDisconnectError": PeerLostError,
}

_WORDS: dict[str, tuple[str, str]] = {
    "nixlNotFoundError": (
        "memory that it names is not registered, or NIXL does not know the peer any more",
        "send descriptors of blocks that the peer's agent has made, and connect anew where that has changed",
    ),
    "nixlRemoteDisconnectError": (
        "the peer has gone",
        "close it, and connect to the one that takes its place",
    ),
    "nixlInvalidParamError": (
        "NIXL does not take these values",
        "compare the versions of NIXL here and at the peer",
    ),
    "nixlMismatchError": (
        "the two sides do not match",
        "compare the versions of NIXL here and at the peer",
    ),
    "nixlNotSupportedError": ("the backend cannot do this", "try another backend"),
    "nixlNotAllowedError": ("NIXL does not allow this", "give each agent a name of its own"),
    "nixlBackendError": (
        "the backend has failed",
        "see what it wrote to standard error; UCX_LOG_LEVEL=info says more",
    ),
    "nixlCancelledError": ("it was cancelled", "see what the backend wrote to standard error"),
}


def raised(doing: str, error: Exception) -> TransferError:
    """What NIXL raised, as an exception of ours. Anything else is raised as it is."""
    code = type(error).__name__
    if not code.startswith("nixl"):
        raise error
    words, remedy = _WORDS.get(code, (str(error), "see what NIXL wrote to standard error"))
    kind = _CLASSES.get(code, TransferError)
    return kind(f"{doing}: {words} ({code}); {remedy}", code=code, remedy=remedy)
