"""Memory of kvmem in a cluster of Mooncake Store, and values in such a cluster.

- :func:`serve` mounts a shared :class:`~kvmem.Pool` as a segment of the cluster, without a copy.
  ``kvmem serve-mooncake`` does the same.
- :class:`Store` puts blocks of a pool into the cluster and gets them back, without a copy on this
  side.
- :class:`ClusterTier` is a lower tier for a :class:`~kvmem.KvCache`, whose client runs in a process
  of its own.

The engine is the wheel ``mooncake-transfer-engine-non-cuda`` (the extra ``mooncake``) and three
system libraries. It is imported when it is first needed. If something is missing, the error names
it."""

from .._kvmem import ClusterTier
from ..data import ClusterTierStats
from .engine import EngineOptions
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
    "EngineOptions",
    "ExposedError",
    "ObjectMissingError",
    "Segment",
    "Store",
    "StoreError",
    "StoreStats",
    "UnreachableError",
    "serve",
]
