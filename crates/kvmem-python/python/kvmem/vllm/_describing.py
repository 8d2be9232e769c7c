"""*Describing*: the descriptions of the chunks that an engine stores, until their stores end."""

import contextlib
from collections.abc import Callable, Collection, Sequence

from .._kvmem import NodeCache, NodeReservation
from ..errors import OutOfSpaceError
from ._description import SUFFIX, Description
from ._events import NoEvents


class Descriptions(NoEvents):
    """Stores descriptions beside chunks, and announces nothing: the server does, with
    ``--kv-events``."""

    def __init__(self, *, describes: bool = True) -> None:
        self._describes = describes
        self._descriptions: dict[bytes, Callable[[], Description]] = {}
        self._prefix = b""

    def note(self, key: bytes, describe: Callable[[], Description]) -> None:
        """Keeps what describes a chunk until its store ends."""
        if self._describes:
            self._descriptions[key] = describe

    def described(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        found = {}
        for key in keys:
            describe = self._descriptions.pop(key, None)
            if describe is not None:
                with contextlib.suppress(ValueError, TypeError):
                    found[self._prefix + key] = describe().encode()
        return found

    def reserve(
        self,
        cache: NodeCache,
        chunks: Sequence[NodeReservation],
        described: dict[bytes, bytes],
        priority: int = 0,
    ) -> list[NodeReservation]:
        abouts = [
            (_name(it) + SUFFIX, about)
            for it in chunks
            if (about := described.get(_name(it))) is not None
        ]
        sizes = [(key, len(about)) for key, about in abouts]
        if not sizes:
            return []
        try:
            reserved = cache.reserve_batch(sizes, priority=priority)
        except OutOfSpaceError:
            # The chunks themselves are of more use.
            return []
        for it, (_, about) in zip(reserved, abouts):
            it.write(about)
        return reserved

    def reset(self, prefix: bytes) -> None:
        self._descriptions.clear()
        self._prefix = prefix


def _name(reservation: NodeReservation) -> bytes:
    name = reservation.cache_key
    assert isinstance(name, bytes)
    return name
