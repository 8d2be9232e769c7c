"""*Errors*: why vLLM's host memory is not kvmem's, or cannot be."""

from ..errors import KvmemError


class SpecUnusedError(KvmemError, RuntimeError):
    """vLLM would not use kvmem's memory, although kvmem is installed."""


class HandoverError(KvmemError, RuntimeError):
    """The processes of an engine could not agree on one region."""

    engine_id: str | None
    """The engine whose memory was requested."""
    member: str | None
    """The process that requested it, such as ``worker 2``."""
    pid: int | None
    """The process at the other end, if it is known."""


class LayoutMismatchError(HandoverError):
    """Two processes of an engine disagree on the length of a row or the number of rows."""

    wanted: dict[str, int] | None
    """Layout that this process needs."""
    found: dict[str, int] | None
    """Layout of the existing region."""


class PlacementError(KvmemError, RuntimeError):
    """The memory of a worker cannot be on the NUMA node that it should be on."""

    node: int | None
    """The node."""
    requested: int | None
    """Bytes that the worker's slots need. ``limit`` has those of the node."""


class PinLostError(KvmemError, RuntimeError):
    """The server of a node ended a pin while a worker copied the chunk to its GPU. The bytes there
    may be another chunk's. vLLM cannot fail a single load, so this error ends the engine before a
    request uses them."""

    chunks: int | None
    """Number of chunks of the load without their pins."""


class NodeLayoutError(KvmemError, ValueError):
    """The memory of a node cannot hold the rows of an engine."""

    requested: int | None
    """The number that does not fit: bytes, or an offset."""
