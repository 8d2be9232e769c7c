"""*Spill*: what a cache needs of a lower tier.

A :class:`~kvmem.KvCache` with a spill gives it what is evicted and asks it for what is not there. :mod:`kvmem.mooncake` has one over a cluster; any
object with these methods will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._kvmem import KvCache, Pinned, Pool


class Spill(Protocol):
    """A lower tier. Any thread may call any method."""

    def evicted(self, pinned: Pinned, /) -> None:
        """Takes an evicted value. Called by whoever inserts: the bytes are free when the pin is released, and the insertion waits meanwhile."""

    def fetch(self, cache: KvCache, key: int | bytes | str, /) -> Pinned | None:
        """Puts what it has under ``key`` back into the cache, and returns it."""

    def forget(self, key: int | bytes | str, /) -> None:
        """The value was taken out of the cache: it is not to be fetched again."""

    def forget_all(self) -> None:
        """All values were."""

    def close(self) -> None:
        """The cache is closed."""


class Spills(Protocol):
    """What can become the spill of a cache on a pool."""

    def __spill__(self, pool: Pool, /) -> Spill:
        """The spill."""
