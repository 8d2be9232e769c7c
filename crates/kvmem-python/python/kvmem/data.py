"""*Data*: figures and reports, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Metrics(NamedTuple):
    """Figures of a space or pool. Sizes are bytes."""

    capacity: int
    """Its length."""
    allocated: int
    """In use: exactly what was asked for."""
    free: int
    """Not in use."""
    largest_free: int
    """The longest range that would be granted now."""
    live: int
    """Ranges in use."""
    free_ranges: int
    """Free ranges."""
    metadata_bytes: int
    """Memory of the books."""

    @property
    def utilization(self) -> float:
        """Share of the space in use."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that the longest free range leaves out."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


class BumpStats(NamedTuple):
    """What an arena has handed out. ``used + remaining == capacity``."""

    capacity: int
    """Bytes of the memory."""
    used: int
    """Bytes handed out, with the padding before them."""
    remaining: int
    """Bytes not handed out."""


class Residency(NamedTuple):
    """How much of a range is resident."""

    len_bytes: int
    """Bytes of the range."""
    resident_bytes: int
    """Bytes of it that are resident."""
    error_bytes: int
    """Greatest error of the former, in 99 cases of 100; 0 where every page was asked."""
    huge_bytes: int | None
    """Bytes that are mapped by hugepages, where the kernel says."""


class KvCacheStats(NamedTuple):
    """Figures of a cache."""

    blocks: int
    """Blocks held, those being written included."""
    bytes: int
    """Bytes of those."""
    hits: int
    """Calls of ``get`` that found their key."""
    misses: int
    """Calls of ``get`` that did not."""
    insertions: int
    """Values committed."""
    replacements: int
    """Of those, values that took the place of another under the same key."""
    evictions: int
    """Blocks evicted."""
    removals: int
    """Blocks removed by their key."""
    refusals: int
    """Values refused because there was nothing to evict."""
    sink_failures: int
    """Evicted values that the lower tier failed to take."""
    superseded: int
    """Values fetched and not put in, because their lease was broken."""

    @property
    def hit_rate(self) -> float:
        """Hits over calls of ``get``."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0


class Key(NamedTuple):
    """The right of a device to reach a range of bytes. The names are those of verbs."""

    handle: int
    """By what the device knows it."""
    lkey: int
    """What local work requests say; the index of a ring's buffer."""
    rkey: int | None
    """What a remote peer says, where there is one."""


class BlockReference(NamedTuple):
    """A block by plain data: what a process that has attached the pool needs to find it."""

    pool: int
    """The number of the pool."""
    offset: int
    """Where the block begins in the pool, in bytes."""
    nbytes: int
    """Its length in bytes."""


class Report(Mapping[str, Any]):
    """What was found or done: a mapping with the names that the ``kvmem`` command writes as JSON, which prints as the command does."""

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
    """What stands in the way of some memory here, and with whom it can be registered."""

    __slots__ = ("failed", "requirements")

    def __init__(
        self, data: dict[str, Any], text: str, requirements: str, failed: list[str]
    ) -> None:
        super().__init__(data, text)
        self.requirements = requirements
        """What was wanted, in words."""
        self.failed = failed
        """The checks that stand in the way, by name."""

    @property
    def passes(self) -> bool:
        """Whether nothing is known to stand in the way."""
        return not self.failed
