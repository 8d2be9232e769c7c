"""*Replacement*: kvmem's AddressManager where LMCache has its own."""

from __future__ import annotations

import importlib
import logging
import sys

from .._kvmem import AddressManager

_log = logging.getLogger("kvmem")

HOME = "lmcache.v1.memory_management"


def replace_address_manager() -> int:
    """Puts :class:`AddressManager` in the place of LMCache's class, in its module and in those that have it from there already.

    Returns in how many modules: 0 if that was done before. Heaps that exist stay what they are. Raises ``ImportError`` without LMCache.
    """
    theirs = importlib.import_module(HOME).AddressManager
    if theirs is AddressManager:
        return 0
    replaced = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "lmcache" and vars(module).get("AddressManager") is theirs:
            module.AddressManager = AddressManager
            replaced += 1
    _log.info("LMCache's AddressManager replaced in %d modules", replaced)
    return replaced
