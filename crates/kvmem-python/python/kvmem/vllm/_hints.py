"""*Hints*: what a request says about its chunks, to the eviction policy and to a node.

vLLM's connector passes two things of a request to its offloading, ``kv_transfer_params`` and
``kv_hints``. Hints of kvmem are the key ``kvmem`` of the first one, or the payload of an action of
type ``kvmem`` in the second. Actions come later, so their values replace the others. Any client of
the engine can send hints. Wrong ones are ignored, with a warning: a request must not end an engine.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("vllm.kvmem")

NAME = "kvmem"
"""Key in ``kv_transfer_params``, and type of an action in ``kv_hints``."""
PRIORITIES = 4
"""Chunks have priorities from 0, which is the default and is evicted first, to 3."""
MAX_TTL = 30 * 86400.0
"""Longest time to live, in seconds."""
_LONGEST = 64
"""Characters of the name of a tenant or a session."""


@dataclass(frozen=True)
class Hints:
    """The hints of a request."""

    tenant: str | None = None
    """Whose chunks these are."""
    session: str | None = None
    """The conversation that the request belongs to."""
    priority: int = 0
    """0 to 3: chunks of a lower priority are evicted first."""
    ttl: float | None = None
    """Seconds after which the chunks are not needed any more."""
    session_ends: bool = False
    """Whether no request of this session follows."""


NONE = Hints()
"""The hints of a request that has none."""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST


def _is_priority(value: Any) -> bool:
    return type(value) is int and 0 <= value < PRIORITIES


def _is_ttl(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= MAX_TTL


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tenant": (_is_name, f"a text of 1 to {_LONGEST} characters"),
    "session": (_is_name, f"a text of 1 to {_LONGEST} characters"),
    "priority": (_is_priority, f"a whole number from 0 to {PRIORITIES - 1}"),
    "ttl": (_is_ttl, f"seconds, above 0 and at most {MAX_TTL:.0f}"),
    "session_ends": (lambda value: isinstance(value, bool), "true or false"),
}

_ignored = 0


def _ignore(why: str) -> None:
    """Warns of the first, second, fourth, ... wrong hint: clients send them, and often."""
    global _ignored
    _ignored += 1
    if _ignored & (_ignored - 1) == 0:
        _log.warning("kvmem: a request has a wrong hint (%d so far): %s", _ignored, why)


def _mappings(req_context: Any) -> list[Any]:
    """Returns the mappings of hints that a request has, in order."""
    found = []
    params = getattr(req_context, "kv_transfer_params", None)
    if isinstance(params, Mapping) and params.get(NAME) is not None:
        found.append(params[NAME])
    envelope = getattr(req_context, "kv_hints", None)
    for action in getattr(envelope, "actions", None) or ():
        if action.action_type == NAME:
            found.append(action.payload)
    return found


def parse(req_context: Any) -> Hints:
    """Returns the hints of a request, without those that are wrong."""
    good: dict[str, Any] = {}
    for hints in _mappings(req_context):
        if not isinstance(hints, Mapping):
            _ignore(f"the hints are {hints!r}: give a mapping")
            continue
        for name, value in hints.items():
            check = _CHECKS.get(name)
            if check is None:
                _ignore(f"there is no hint {name!r:.80}: the names are {', '.join(_CHECKS)}")
            elif not check[0](value):
                _ignore(f"{name} is {value!r:.80}: give {check[1]}")
            else:
                good[name] = value
    return Hints(**good) if good else NONE


def hints_of(req_context: Any) -> Hints:
    """Returns the hints of a request. They are parsed once: vLLM's context keeps them."""
    if req_context is None:
        return NONE
    found: Hints | None = req_context.get_state(Hints)
    if found is None:
        found = parse(req_context)
        req_context.set_state(found)
    return found
