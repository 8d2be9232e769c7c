"""Memory of kvmem in a cluster of Mooncake Store, and values in it.

- :func:`serve` mounts a shared :class:`~kvmem.Pool` as a segment of the cluster, with no copy: ``kvmem serve-mooncake`` is this.
- :class:`Store` puts blocks of a pool into the cluster and gets them back, with no copy on this side either.
- ``KvCache(pool, spill=Store(pool))`` has the cluster for a lower tier: see :class:`ClusterSpill`.

The engine is the wheel ``mooncake-transfer-engine-non-cuda`` (``pip install 'kvmem[mooncake]'``) and three libraries of the system. It is imported when it is
first needed; what is missing is then told by name.
"""

from .errors import (
    BatchError,
    DeadlineError,
    EngineMissingError,
    ExposedError,
    NoRoomError,
    NotAskedError,
    ObjectMissingError,
    StoreError,
    UnreachableError,
)
from .segment import Segment, serve
from .spill import ClusterSpill, SpillStats
from .store import Store, StoreStats

__all__ = [
    "BatchError",
    "ClusterSpill",
    "DeadlineError",
    "EngineMissingError",
    "ExposedError",
    "NoRoomError",
    "NotAskedError",
    "ObjectMissingError",
    "Segment",
    "SpillStats",
    "Store",
    "StoreError",
    "StoreStats",
    "UnreachableError",
    "serve",
]
