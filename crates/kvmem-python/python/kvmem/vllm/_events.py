"""*Events*: what an engine announces of the chunks that it shares with others."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from .._kvmem import NodeCache, NodeReservation


class NoEvents:
    """Announces nothing."""

    @property
    def has_queued(self) -> bool:
        """Whether events wait for a step of the scheduler."""
        return False

    def take(self) -> list[Any]:
        """Returns the events since the last call, the first ones of them if there are many."""
        return []

    def described(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Removes and returns the descriptions of chunks whose stores end, by their names."""
        return {}

    def reserve(
        self,
        cache: NodeCache,
        chunks: Sequence[NodeReservation],
        described: dict[bytes, bytes],
        priority: int = 0,
    ) -> list[NodeReservation]:
        """Returns reservations with the descriptions of chunks, for the same batch."""
        return []

    def reset(self, prefix: bytes) -> None:
        """The engine finds only chunks with a prefix before their keys from now on."""

    def leave(self) -> None:
        """The engine finds no chunks from now on."""

    def close(self) -> None:
        """Ends the thread."""


def make_events(spec: Any, announce: str, connect: Callable[[], NodeCache], path: str) -> NoEvents:
    """Returns the events of a node for an engine, from its spec. The scheduler that asks the spec
    for its manager makes its tracker afterwards, and it is the one for them. ``connect`` opens a
    connection for a thread, to the server whose socket ``path`` is."""
    by_server = announce == "server"
    if announce == "off" or not (by_server or spec.kv_events_config.enable_kv_cache_events):
        return NoEvents()
    # They import the scheduler of vLLM's connector.
    from ._describing import Descriptions
    from ._node_events import NodeEvents
    from ._tracker import use_tracker

    if by_server:
        described = Descriptions()
        use_tracker(spec, described, describes=True)
        return described
    describes = bool(spec.extra_config.get("self_describing_kv_events", True))
    events = NodeEvents(connect, path, one_of_node=announce == "node", describes=describes)
    use_tracker(spec, events, describes=describes)
    return events
