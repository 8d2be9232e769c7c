"""*Lease*: which engine of a node announces, with ``announce: "node"``.

The engine has a value with a short time to live in the node, and renews it. Another engine that
finds no such value stores its own. Of several that do so at once, the last one to store has the
lease; each looks again after a moment, and with every renewal."""

import contextlib
import os
import time
from collections.abc import Callable

from .._kvmem import NodeCache
from ..errors import KvmemError

KEY = b"announcer"
"""Key of the value that names the engine."""
TTL = 10.0
"""Seconds after which another engine announces in the place of one that has ended."""
STANDBY = 2.0
"""Seconds between two looks at the lease of another engine."""
_SETTLE = 0.25
"""Seconds after which an engine that has taken the lease looks whether another has, too."""
_PRIORITY = 3
"""The lease is evicted after everything else."""


class Lease:
    """The lease, as one engine sees it. ``pause`` waits for seconds, unless the engine ends."""

    def __init__(self, pause: Callable[[float], None]) -> None:
        self._pause = pause
        self._id = os.urandom(16)
        self._until = 0.0

    def has(self, cache: NodeCache) -> bool:
        """Returns whether this engine announces. Takes a free lease; waits if another has it."""
        now = time.monotonic()
        if now < self._until - TTL / 2:
            return True
        holder = self._holder(cache)
        if holder is None:
            cache.insert(KEY, self._id, priority=_PRIORITY, ttl=TTL)
            self._pause(_SETTLE)
            holder = self._holder(cache)
        elif holder == self._id:
            cache.insert(KEY, self._id, priority=_PRIORITY, ttl=TTL)
        if holder != self._id:
            self._until = 0.0
            self._pause(STANDBY)
            return False
        self._until = now + TTL
        return True

    def end(self, cache: NodeCache) -> None:
        """Gives the lease up, if this engine has it."""
        if time.monotonic() < self._until:
            with contextlib.suppress(KvmemError):
                cache.remove(KEY)

    @staticmethod
    def _holder(cache: NodeCache) -> bytes | None:
        value = cache.get(KEY)
        if value is None:
            return None
        with value:
            return bytes(value)
