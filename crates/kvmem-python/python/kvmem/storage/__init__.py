"""*Storage*: values of engines by key, in a node's pool, on disks, or in a cluster.

The plug-ins of engines (:mod:`kvmem.sglang.storage`, :mod:`kvmem.lmcache.l2`) store and load pages
of KV cache through a :class:`ValueStore`: the pool of ``kvmem serve`` (:class:`NodeStore`), files
of this process alone (``DiskStore``), or a Mooncake cluster (``ClusterStore``), below a disk if one
is named. :class:`StorageOptions` chooses it.

A store may always lose a value and never returns a wrong one: damaged bytes, a value of another
length, a server that has ended, and a call that misses its deadline are misses. After a failure it
tries again by itself."""

from .node import NodeStore
from .options import StorageOptions, open_store
from .store import StoreUnavailableError, Value, ValueStore, ValueStoreStats
from .versions import UnsupportedVersionError, check_version

__all__ = [
    "NodeStore",
    "StorageOptions",
    "StoreUnavailableError",
    "UnsupportedVersionError",
    "Value",
    "ValueStore",
    "ValueStoreStats",
    "check_version",
    "open_store",
]
