"""*Lower tier*: the interface between a cache and the storage below it.

A :class:`~kvmem.KvCache` with a lower tier gives it evicted values and asks it for missing ones.
:mod:`kvmem.mooncake` implements one over a cluster; any object with these methods works. There are
two forms. A :class:`LowerTier` fetches one key, and stores the value in the cache itself. A
:class:`BatchLowerTier` reads many values into memory of the cache; only such a tier can be a part
of a :class:`~kvmem.Chain`. An object may have the methods of both.

A lower tier must never return a value older than the latest. The cache does its half: while
``put``, ``invalidate`` or ``clear`` runs, no :class:`~kvmem.Lease` is given on the keys concerned;
a ``put`` that raises is followed by ``invalidate``; and a value reports whether it is
``superseded``. The tier does the other half:

- ``fetch`` takes ``cache.lease(key)`` before it looks anything up, and stores what it finds by
  ``reservation.commit(lease=…)``.
- ``put`` reads ``pinned.superseded`` under the lock under which the tier stores and invalidates
  values, and drops a superseded value: threads may bring several values of one key in any order.
- If ``put`` drops a value that is not superseded, it removes any older copy under the key.

An exception of ``put`` does not fail the insertion that evicts. The value is dropped and counted
in ``KvCacheStats.sink_failures``, and the exception goes to ``sys.unraisablehook``. An exception
that is no ``Exception``, such as ``KeyboardInterrupt``, is raised to the caller of the cache
instead. Further values that the same call evicts are then dropped, counted and invalidated, and
``put`` is not called for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._kvmem import KvCache, Pinned, Pool


class LowerTier(Protocol):
    """A lower tier. Any thread may call any method."""

    def put(self, pinned: Pinned, /) -> None:
        """Stores an evicted value, unless it is superseded.

        The thread that inserts into the cache calls this and waits meanwhile. The bytes become
        free when the pin is released.
        """

    def fetch(self, cache: KvCache, key: int | bytes | str, /) -> Pinned | None:
        """Looks up ``key``, stores the value in the cache under a lease taken before the look-up,
        and returns it pinned. Returns None if the tier has no value.
        """

    def invalidate(self, key: int | bytes | str, /) -> None:
        """Forgets the value under ``key``, which was removed from the cache. It must not be fetched
        again.
        """

    def clear(self) -> None:
        """Forgets all values, which were removed from the cache. They must not be fetched again."""

    def close(self) -> None:
        """Ends the tier, because its cache is closed."""


class LowerTierFactory(Protocol):
    """An object that can become the lower tier of a cache on a pool."""

    def __lower_tier__(self, pool: Pool, /) -> LowerTier:
        """Returns the lower tier for a cache on ``pool``."""


class BatchLowerTier(Protocol):
    """A lower tier that is called for many keys at once, and reads into memory that it is given.

    Such a tier can be a part of a :class:`~kvmem.Chain`, and be below ``write_behind``. A cache
    uses one on its own in the same way if it has no ``fetch``. Any thread may call any method:
    threads of the cache do.

    Values and invalidations of one key take effect one after the other. The cache takes the leases
    itself; it gives none on a key while one of the first or the last three methods runs for it.
    """

    def put_all(self, values: list[Pinned], /) -> None:
        """Stores evicted values of different keys, unless they are superseded.

        If it raises, ``invalidate`` is called for each of the keys, and the values are lost. The
        bytes become free when the pins are released.
        """

    def lengths(self, keys: list[int | bytes | str], /) -> Sequence[int | None]:
        """Returns the length of the value under each key in bytes; None where there is none."""

    def fetch_into(
        self, keys: list[int | bytes | str], buffers: list[memoryview], /
    ) -> Sequence[int | None]:
        """Reads the value under each key into a buffer of its length. Returns the length of each
        value that was read; None where there is none, or one of another length, or where its bytes
        are not right.

        The buffers are the cache's memory, which waits until nobody uses them any more: neither a
        view of one nor a transfer may outlive the call.
        """

    def invalidate(self, key: int | bytes | str, /) -> None:
        """Forgets the value under ``key``. It must not be fetched again. If it raises, the cache
        does not fetch the key any more until it is cleared.
        """

    def clear(self) -> None:
        """Forgets all values. They must not be fetched again."""

    def close(self) -> None:
        """Ends the tier, because its cache is closed."""


class BatchLowerTierFactory(Protocol):
    """An object that can become a part of what is below a cache on a pool."""

    def __lower_tier__(self, pool: Pool, /) -> BatchLowerTier:
        """Returns the lower tier for a cache on ``pool``."""
