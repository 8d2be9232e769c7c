"""Memory of kvmem in a cluster of Mooncake Store, and values in it.

- :func:`serve` mounts a shared :class:`~kvmem.Pool` as a segment of the cluster, with no copy: ``kvmem serve-mooncake`` is this.
- :class:`Store` puts blocks of a pool into the cluster and gets them back, with no copy on this side either.
- ``KvCache(pool, lower_tier=Store(pool))`` has the cluster for a lower tier: see :class:`ClusterTier`.

The engine is the wheel ``mooncake-transfer-engine-non-cuda`` (``pip install 'kvmem[mooncake]'``) and three libraries of the system. It is imported when it is
first needed; what is missing is then told by name.
"""

from .cluster_tier import ClusterTier, ClusterTierStats
from .errors import (
    BatchError,
    CircuitOpenError,
    ClusterFullError,
    DeadlineError,
    EngineMissingError,
    ExposedError,
    ObjectMissingError,
    StoreError,
    UnreachableError,
)
from .segment import Segment, serve
from .store import Store, StoreStats

__all__ = [
    "BatchError",
    "CircuitOpenError",
    "ClusterFullError",
    "ClusterTier",
    "ClusterTierStats",
    "DeadlineError",
    "EngineMissingError",
    "ExposedError",
    "ObjectMissingError",
    "Segment",
    "Store",
    "StoreError",
    "StoreStats",
    "UnreachableError",
    "serve",
]
