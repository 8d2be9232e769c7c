"""*Replacement*: replaces LMCache's AddressManager by kvmem's."""

from __future__ import annotations

import importlib
import logging
import sys

from .._kvmem import AddressManager

_log = logging.getLogger("kvmem")

HOME = "lmcache.v1.memory_management"


def replace_address_manager() -> int:
    """Replaces LMCache's class by :class:`AddressManager`, in its module and in every module that
    has imported it from there.

    Returns the number of modules: 0 if the class was replaced before. Existing heaps do not change.
    Raises ``ImportError`` without LMCache.
    """
    theirs = importlib.import_module(HOME).AddressManager
    if theirs is AddressManager:
        return 0
    replaced = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "lmcache" and vars(module).get("AddressManager") is theirs:
            vars(module)["AddressManager"] = AddressManager
            replaced += 1
    _log.info("LMCache's AddressManager replaced in %d modules", replaced)
    return replaced
