"""*Data*: figures and reports as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Metrics(NamedTuple):
    """Figures of a space or pool. Sizes are in bytes."""

    capacity: int
    """Length of the space."""
    allocated: int
    """Bytes in use: exactly the requested bytes."""
    free: int
    """Bytes not in use."""
    largest_free: int
    """Longest range that could be allocated now."""
    live: int
    """Number of ranges in use."""
    free_ranges: int
    """Number of free ranges."""
    metadata_bytes: int
    """Memory that the metadata takes."""

    @property
    def utilization(self) -> float:
        """Share of the space that is in use."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lie outside the longest free range."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


class BumpStats(NamedTuple):
    """Bytes that an arena has allocated. ``used + remaining == capacity``."""

    capacity: int
    """Length of the arena's memory in bytes."""
    used: int
    """Bytes allocated, including the padding before them."""
    remaining: int
    """Bytes not allocated."""


class Residency(NamedTuple):
    """How much of a range is resident."""

    len_bytes: int
    """Length of the range in bytes."""
    resident_bytes: int
    """Resident bytes of it."""
    error_bytes: int
    """Maximum error of ``resident_bytes``, in 99 cases of 100; 0 if every page was checked."""
    huge_bytes: int | None
    """Bytes that are mapped by huge pages, if the kernel reports them."""


class KvCacheStats(NamedTuple):
    """Figures of a cache."""

    blocks: int
    """Blocks held, those being written included."""
    bytes: int
    """Bytes of those blocks."""
    hits: int
    """Calls of ``get`` that found their key."""
    misses: int
    """Calls of ``get`` that did not find their key."""
    insertions: int
    """Values committed."""
    replacements: int
    """Committed values that replaced another value under the same key."""
    evictions: int
    """Blocks evicted."""
    removals: int
    """Blocks removed by their key."""
    insertion_failures: int
    """Insertions that failed because nothing could be evicted."""
    sink_failures: int
    """Evicted values that the lower tier failed to store."""
    superseded: int
    """Fetched values that were not stored because their lease was no longer valid."""

    @property
    def hit_rate(self) -> float:
        """Hits per call of ``get``; 0 before the first call."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0


class OpenReport(NamedTuple):
    """What opening a disk tier found."""

    created: bool
    """Whether the tier was made just now."""
    entries: int
    """Values found."""
    replayed: int
    """Changes that the journal had since the last checkpoint."""
    dropped: int
    """Entries that contradict others, and were dropped."""
    damaged: int
    """Values that ``verify="all"`` found damaged, and removed."""


class DiskTierStats(NamedTuple):
    """What a disk tier holds, and what it has done since it was opened."""

    entries: int
    """Values held."""
    nbytes: int
    """Their bytes, without padding."""
    capacity: int
    """Bytes of the file for values."""
    used: int
    """Bytes of the file that values use, padding included."""
    quarantined: int
    """Bytes of the file that are not used any more, because what was written there was lost."""
    stored: int
    """Values stored."""
    written_bytes: int
    """Bytes of values written, padding included."""
    metadata_bytes: int
    """Bytes of journal, checkpoints and superblocks written."""
    hits: int
    """Values fetched."""
    misses: int
    """Fetches of keys without a value."""
    checksum_misses: int
    """Fetches of values whose bytes were damaged."""
    io_misses: int
    """Fetches that the drive failed."""
    not_admitted: int
    """Values that a cache evicted and that were not written, by ``admission`` or the rate."""
    evictions: int
    """Values evicted."""
    checkpoints: int
    """Checkpoints written."""
    index_bytes: int
    """Memory that the index takes."""
    read_only: bool
    """Whether the journal failed: nothing is stored until the tier is opened again."""

    @property
    def hit_rate(self) -> float:
        """Hits per fetch; 0 before the first one."""
        calls = self.hits + self.misses + self.checksum_misses + self.io_misses
        return self.hits / calls if calls else 0.0

    @property
    def write_amplification(self) -> float:
        """Bytes written per byte of values written; 0 before the first one."""
        written = self.written_bytes + self.metadata_bytes
        return written / self.written_bytes if self.written_bytes else 0.0


class Key(NamedTuple):
    """The right of a device to reach a range of bytes. The names are those of verbs."""

    handle: int
    """Number by which the device knows the registration."""
    lkey: int
    """Key for local work requests; the buffer index of a ring."""
    rkey: int | None
    """Key for a remote peer, if there is one."""


class BlockReference(NamedTuple):
    """The position of a block as plain data, for a process that has attached the pool."""

    pool: int
    """Number of the pool: its ``share_id``."""
    offset: int
    """Offset of the block in the pool, in bytes."""
    nbytes: int
    """Length of the block in bytes."""


class Report(Mapping[str, Any]):
    """The result of an operation or examination.

    It is a mapping with the names that the ``kvmem`` command writes as JSON, and prints like that
    command.
    """

    __slots__ = ("data", "text")

    def __init__(self, data: dict[str, Any], text: str) -> None:
        self.data = data
        self.text = text

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {', '.join(self.data)}>"


class Diagnosis(Report):
    """The limits of this machine checked against requested memory, and the available devices."""

    __slots__ = ("failed", "requirements")

    def __init__(
        self, data: dict[str, Any], text: str, requirements: str, failed: list[str]
    ) -> None:
        super().__init__(data, text)
        self.requirements = requirements
        """The requested memory, in words."""
        self.failed = failed
        """Names of the checks that failed."""

    @property
    def passes(self) -> bool:
        """Whether no check failed."""
        return not self.failed
