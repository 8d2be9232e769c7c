"""*LMCache*: host memory and addresses for LMCache, written against 0.5.6.

Two things, which can be had one without the other:

- A device backend (:mod:`kvmem.lmcache.device`), found through the entry point group ``lmcache.device_plugins`` and chosen with
  ``LMCACHE_DEVICE_BACKEND=kvmem``: LMCache's pinned, NUMA, hugepage and shared memory are then regions of kvmem (:class:`HostMemory`).
- :class:`AddressManager`, which does what LMCache's class of this name does, in constant time or nearly so.
  :func:`replace_address_manager` puts it in that one's place; the backend does so by itself.

This module does not import LMCache; its functions do when they are called. :func:`check_backend` raises
:class:`BackendUnusedError` where LMCache's host memory is not kvmem's, and says why.
"""

from __future__ import annotations

from .._kvmem import AddressManager
from ._replace import replace_address_manager
from .device import check_backend
from .errors import BackendUnusedError
from .memory import HostMemory

__all__ = [
    "AddressManager",
    "BackendUnusedError",
    "HostMemory",
    "check_backend",
    "replace_address_manager",
]
