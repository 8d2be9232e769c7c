"""*LowerTier*: what a cache needs of a lower tier.

A :class:`~kvmem.KvCache` with a spill gives it what is evicted and asks it for what is not there. :mod:`kvmem.mooncake` has one over a cluster; any
object with these methods will do.

A lower tier must never give an older value than the latest. The cache sees to its half of that: while ``evicted``, ``forget`` or ``forget_all`` is under way, the keys concerned get no
:class:`~kvmem.Lease`; an ``evicted`` that raises is followed by ``forget``; and a value says whether it is ``superseded``. The other half is the tier's:

- ``fetch`` takes ``cache.lease(key)`` before it looks at anything, and puts in what it finds by ``reservation.commit(lease=…)``.
- ``evicted`` asks ``pinned.superseded`` under the lock under which it takes values and forgets them, and does not take what is: threads may bring several values of one key in
  any order.
- What it does not take, though not superseded, must leave nothing older under the key that is fetched.

An exception of ``evicted`` does not fail the insertion that evicts. The value is dropped and
counted in ``KvCacheStats.sink_failures``, and the exception goes to ``sys.unraisablehook``. An exception
that is no ``Exception``, such as ``KeyboardInterrupt``, is raised to the caller of the cache instead.
Further values that the same call evicts are then dropped, counted and forgotten, without a call of
``evicted``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._kvmem import KvCache, Pinned, Pool


class LowerTier(Protocol):
    """A lower tier. Any thread may call any method."""

    def evicted(self, pinned: Pinned, /) -> None:
        """Takes an evicted value, unless it is superseded. Called by whoever inserts: the bytes are free when the pin is released, and the insertion waits meanwhile."""

    def fetch(self, cache: KvCache, key: int | bytes | str, /) -> Pinned | None:
        """Puts what it has under ``key`` back into the cache, under a lease that it took first, and returns it."""

    def forget(self, key: int | bytes | str, /) -> None:
        """The value was taken out of the cache: it is not to be fetched again."""

    def forget_all(self) -> None:
        """All values were."""

    def close(self) -> None:
        """The cache is closed."""


class LowerTierFactory(Protocol):
    """What can become the spill of a cache on a pool."""

    def __lower_tier__(self, pool: Pool, /) -> LowerTier:
        """The spill."""
