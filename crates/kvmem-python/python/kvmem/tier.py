"""*Tier*: the interface between a cache and its lower tier, for tiers that are written in Python.

A :class:`~kvmem.KvCache` with a lower tier gives it evicted values and asks it for missing ones.
Any object with the methods of :class:`Tier` works, alone, with ``write_behind``, and as a part of a
:class:`~kvmem.Chain`.

A lower tier must never return a value older than the latest. The cache does its half: while
``store``, ``remove`` or ``clear`` runs, it fetches none of the keys concerned; it stores what it
fetched only if the key has neither received a value nor been removed meanwhile; and a value reports
whether it is ``superseded``. The tier does the other half:

- Values and removals of one key take effect one after the other. ``store`` reads
  ``pinned.superseded`` under the lock that orders them, and drops a superseded value: threads may
  bring several values of one key in any order.
- If ``store`` drops a value that is not superseded, it removes any older one under the key.

Exceptions of ``store``, ``ask`` and ``fetch_into`` do not fail the call of the cache: they go to
``sys.unraisablehook``, the values are dropped and counted in ``KvCacheStats.sink_failures``, and
the keys count as missing. An exception that is no ``Exception``, such as ``KeyboardInterrupt``, is
raised to the caller of the cache, and ``store`` is not called for further values of that call.
Exceptions of ``remove`` and ``clear`` are raised by the call that removes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ._kvmem import Pinned, Pool


class Tier(Protocol):
    """A lower tier. Any thread may call any method: threads of the cache do. A tier may also have
    ``__len__``, the number of its values: ``len`` of a cache above it counts them then."""

    def store(self, values: list[Pinned], /) -> None:
        """Stores evicted values of different keys, unless they are superseded. Without
        ``write_behind`` the thread that inserts into the cache calls this and waits. If it raises,
        ``remove`` is called for the keys. The bytes become free when the pins are released."""

    def ask(self, keys: list[int | bytes | str], /) -> Sequence[int | None]:
        """Returns the length of the value under each key in bytes; None where there is none."""

    def fetch_into(
        self, keys: list[int | bytes | str], buffers: list[memoryview], /
    ) -> Sequence[int | None]:
        """Reads the value under each key into a buffer of its length. Returns the length of each
        value that was read; None where there is none, or one of another length, or where its bytes
        are not right.

        The buffers are the cache's memory, which waits until nobody uses them any more: neither a
        view of one nor a transfer may outlive the call."""

    def remove(self, keys: list[int | bytes | str], /) -> None:
        """Forgets the values under keys. They must not be fetched again. If it raises, the cache
        does not fetch the keys any more until it is cleared."""

    def clear(self) -> None:
        """Forgets all values. They must not be fetched again."""

    def close(self) -> None:
        """Ends the tier, because its cache is closed."""


class TierFactory(Protocol):
    """An object that can become the lower tier of a cache on a pool, or a part of it."""

    def __lower_tier__(self, pool: Pool, /) -> Tier:
        """Returns the lower tier for a cache on ``pool``."""
