"""*Answers*: what a scheduler knows about the keys of a request."""

import dataclasses
from typing import Any

from .._kvmem import NodeReservation, PinBatch
from ._calls import Question

GROUP = 4
"""Bytes at the end of a key of vLLM that are the number of its group of layers."""
_WINDOW = 16
"""Keys that are looked up at a time where vLLM looks up backwards."""


@dataclasses.dataclass(eq=False)
class Pins:
    """What one call has pinned."""

    batch: PinBatch
    chunks: dict[Any, int]
    """The number of the chunk of each key."""
    loads: int = 0
    """Loads that use some of the chunks."""


@dataclasses.dataclass(eq=False)
class Answers:
    """What is known about the keys of a request. vLLM keeps it with the request."""

    tenant: str | None
    step: int
    """The number of steps and of ended stores until then: what was missing may be there later."""
    used: int
    """The number of steps until the last look-up."""
    found: dict[Any, Pins] = dataclasses.field(default_factory=dict)
    """Keys with pinned values."""
    pins: list[Pins] = dataclasses.field(default_factory=list)
    """Those of ``found``, and those of loads."""
    missing: set[Any] = dataclasses.field(default_factory=set)
    """Keys that the server has no value for, in this step."""
    pending: set[Any] = dataclasses.field(default_factory=set)
    """Keys whose values the server fetches from its tier."""
    ask_at: float = 0.0
    """When to ask for those again."""
    deferred_at: int = -1
    """The number of steps until the last look-up that has deferred the request."""
    deferred_key: Any = None
    """The first key of that step that has."""
    pause: float = 0.0
    """Seconds until the next such question."""
    give_up_at: float = 0.0
    """When those that are still pending count as missing, unless others have come."""
    question: Question[list[PinBatch]] | None = None
    """A question for values that has no answer yet."""
    requested: list[Any] = dataclasses.field(default_factory=list)
    """Its keys."""
    is_prefix: bool = True
    """Whether it ends at the first key without a value."""
    storing: Question[dict[Any, NodeReservation | None] | None] | None = None
    """A question for rows that has no answer yet."""
    stored: int = 0
    """The number of steps until the last store."""
    rows: dict[Any, NodeReservation | None] = dataclasses.field(default_factory=dict)
    """The rows of keys that are about to be stored; None for keys that have values."""
    has_ended: bool = False
    """Whether the request has."""


def next_keys(
    key: Any, req_context: Any, answers: Answers, has_groups: bool
) -> tuple[list[Any], bool]:
    """Returns the keys that vLLM is about to look up for a request, ``key`` first, and whether it
    stops at the first one that is missing. vLLM looks a group of layers up from the start of the
    prompt on, until a key is missing. Only a group with a sliding window is looked up from the end
    backwards, until a window is complete."""
    # The keys of the whole prompt, by the number of tokens at their ends: the scheduler notes them
    # before it looks any up.
    positions = getattr(req_context, "_offload_key_positions", None) or {}
    start = positions.get(key)
    if start is None:
        return [key], True
    if has_groups:
        group = key[-GROUP:]
        of_group = [it for it in positions if it[-GROUP:] == group]
    else:
        of_group = list(positions)
    at = of_group.index(key)
    keys = of_group[at:]
    backwards = len(keys) == 1 or keys[1] in answers.found or keys[1] in answers.missing
    if not backwards:
        return keys, True
    return [key, *reversed(of_group[max(at + 1 - _WINDOW, 0) : at])], False
