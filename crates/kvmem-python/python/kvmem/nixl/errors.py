"""*Errors*: NIXL's errors as exceptions with messages."""

from ..errors import InvalidArgumentError, KvmemError


class TransferError(KvmemError):
    """A call of NIXL or a transfer failed."""

    code: str | None
    """NIXL's name of the error, such as ``nixlBackendError``."""


class UnregisteredError(TransferError):
    """Memory of a transfer is not registered, in this process or with the peer. NIXL calls the
    error ``nixlNotFoundError``."""


class PeerLostError(TransferError):
    """The peer has gone during the transfer. The content of its blocks and ours is undefined."""


class NotInPoolError(InvalidArgumentError):
    """A block does not belong to the agent's pool."""

    address: int | None
    """Address of the block."""
    nbytes: int | None
    """Length of the block in bytes."""
    start: int | None
    """Start of the registered memory."""
    stop: int | None
    """End of the registered memory."""


_CLASSES: dict[str, type[TransferError]] = {
    "nixlNotFoundError": UnregisteredError,
    "nixlRemoteDisconnectError": PeerLostError,
}

_MESSAGES: dict[str, tuple[str, str]] = {
    "nixlNotFoundError": (
        "the memory is not registered, or NIXL no longer knows the peer",
        "send descriptors made by the peer's agent, and connect again if that agent has changed",
    ),
    "nixlRemoteDisconnectError": ("the peer has gone", "close it, and connect to its replacement"),
    "nixlInvalidParamError": (
        "NIXL rejects these values",
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
        "see its output on standard error; UCX_LOG_LEVEL=info adds details",
    ),
    "nixlCancelledError": ("it was cancelled", "see the backend's output on standard error"),
}


def raised(doing: str, error: Exception) -> TransferError:
    """Converts an exception of NIXL. Raises any other exception unchanged."""
    code = type(error).__name__
    if not code.startswith("nixl"):
        raise error
    message, remedy = _MESSAGES.get(code, (str(error), "see NIXL's output on standard error"))
    kind = _CLASSES.get(code, TransferError)
    return kind(f"{doing}: {message} ({code}); {remedy}", code=code, remedy=remedy)
