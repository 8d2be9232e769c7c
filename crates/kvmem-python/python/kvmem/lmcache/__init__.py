"""*LMCache*: host memory and addresses for LMCache, written against 0.5.6.

- A device backend (:mod:`kvmem.lmcache.device`). LMCache finds it through the entry point group
  ``lmcache.device_plugins``, and ``LMCACHE_DEVICE_BACKEND=kvmem`` chooses it. LMCache's pinned,
  NUMA, huge-page and shared memory are then regions of kvmem (:class:`HostMemory`).
- :class:`AddressManager` does what LMCache's class of this name does, in constant or nearly
  constant time. :func:`replace_address_manager` replaces that class; the backend does so by itself.

Importing this module does not import LMCache; calling its functions does."""

from .._kvmem import AddressManager
from .device import BackendUnusedError, check_backend, replace_address_manager
from .memory import HostMemory

__all__ = [
    "AddressManager",
    "BackendUnusedError",
    "HostMemory",
    "check_backend",
    "replace_address_manager",
]
