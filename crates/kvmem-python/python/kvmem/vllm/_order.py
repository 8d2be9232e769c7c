"""*Order*: which chunk comes before which in the prompt of a request. The node evicts the end of a
prefix before its start."""

import bisect
import dataclasses
import itertools
from typing import Any

from ._answers import GROUP, Answers

_FIRST = bytes(GROUP)
"""The end of the keys of the first group of layers."""


@dataclasses.dataclass
class _Order:
    """The order of the keys of a request. vLLM keeps it with the request."""

    seen: int = 0
    """Number of keys that are in it already."""
    groups: dict[bytes, list[tuple[int, Any]]] = dataclasses.field(default_factory=dict)
    """Keys with the number of tokens at their ends, in the order of the prompt."""
    first: dict[int, Any] = dataclasses.field(default_factory=dict)
    """Keys of the first group of layers, by the number of tokens at their ends."""
    before: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """The key before each key, of the same group."""
    stored: set[Any] = dataclasses.field(default_factory=set)
    """Keys that were found or are stored."""

    def see(self, keys: list[Any], positions: dict[Any, int]) -> None:
        """Takes in further keys of the prompt, until these are among them. A prompt may have
        thousands more, which are taken in when they are stored."""
        unseen = {key for key in keys if key not in self.before and key in positions}
        if not unseen:
            return
        for key, at in itertools.islice(positions.items(), self.seen, None):
            group = key[-GROUP:]
            chain = self.groups.setdefault(group, [])
            if not chain or chain[-1][0] < at:
                # The usual order.
                self.before[key] = chain[-1][1] if chain else None
                chain.append((at, key))
            else:
                index = bisect.bisect(chain, (at, key))
                self.before[key] = chain[index - 1][1] if index else None
                chain.insert(index, (at, key))
            if group == _FIRST:
                self.first[at] = key
            self.seen += 1
            unseen.discard(key)
            if not unseen:
                return


def order_of(req_context: Any) -> _Order:
    order: _Order | None = req_context.get_state(_Order)
    if order is None:
        order = _Order()
        req_context.set_state(order)
    return order


def parents_of(keys: list[Any], req_context: Any) -> list[Any]:
    """Returns the parent of each key: the one before it in the prompt, of the same group of layers.
    Of a group that stores the last chunks of a window alone, the first one goes with the chunk of
    the first group for the same tokens. None: there is none, or it is not known."""
    positions = getattr(req_context, "_offload_key_positions", None) or {}
    order = order_of(req_context)
    order.see(keys, positions)
    before = order.before
    if order.groups.keys() <= {_FIRST}:
        return [before.get(key) for key in keys]
    answers: Answers | None = req_context.get_state(Answers)
    order.stored.update(() if answers is None else answers.found)
    parents = []
    for key in keys:
        parent = before.get(key)
        if key[-GROUP:] != _FIRST and parent not in order.stored:
            parent = order.first.get(positions.get(key, 0), parent)
        parents.append(parent)
    return parents
