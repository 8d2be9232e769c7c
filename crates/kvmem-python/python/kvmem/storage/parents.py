"""*Parents*: which key comes before another one in the prompts that an engine has looked up.

A node evicts the end of a prefix before its start if each value names its parent, the value before
it. An engine looks keys up in the order of a prompt, and stores them later, in parts and in other
orders. A key is a hash of everything before it, so it has one parent, whatever call shows it."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)

MAX_KNOWN = 1 << 16
"""Number of keys whose parents are known at most: the latest ones."""


class KnownParents(Generic[_K]):
    """The parents of keys. Any thread may call any method."""

    def __init__(self, limit: int = MAX_KNOWN) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._known: OrderedDict[_K, _K] = OrderedDict()

    def note(self, keys: Sequence[_K], before: _K | None = None) -> None:
        """Notes that keys follow each other in a prompt, behind ``before``."""
        with self._lock:
            for key in keys:
                if before is not None and before != key:
                    self._known[key] = before
                    self._known.move_to_end(key)
                before = key
            while len(self._known) > self._limit:
                self._known.popitem(last=False)

    def of(self, keys: Sequence[_K]) -> list[_K | None]:
        """Returns the parent of each key; None where it is not known, or there is none."""
        with self._lock:
            return [self._known.get(key) for key in keys]
