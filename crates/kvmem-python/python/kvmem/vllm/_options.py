"""*Options*: the key ``kvmem`` of ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidArgumentError


@dataclass(frozen=True)
class RegionOptions:
    """How the memory of an engine is mapped."""

    pages: str | None = None
    """Page sizes to try, in order of preference, as for :class:`kvmem.Region`."""
    strict: bool = False
    """Fail unless the first page size backs the whole region."""
    numa: str | None = None
    """``bind:0`` or ``interleave:0-1``, for the whole region."""
    threads: int | str = "auto"
    """Threads that make pages resident."""
    weights: str | None = None
    """Text that changes with the weights, for the identity of stored chunks. None: by the files."""
    join_timeout: float = 300.0
    """Seconds that a process waits for the region of its engine."""


@dataclass(frozen=True)
class NodeOptions:
    """How an engine uses the memory of a node."""

    socket: str = ""
    """Path of the socket of ``kvmem serve``."""
    namespace: str | None = None
    """Namespace of the keys. None: made of the model and of all that decides the bytes of a row."""
    weights: str | None = None
    """Text that changes with the weights, for the namespace. None: by the files."""
    populate: bool = False
    """Enter all pages into the page tables of each worker at the start."""
    verify: bool = False
    """Calculate a checksum of each chunk that is stored, and verify it in each look-up. The
    scheduler reads all bytes of a chunk for each."""
    rings: bool = True
    """Call the server through shared memory."""
    connect_timeout: float = 60.0
    """Seconds that a process waits for the server at its start."""
    call_timeout: float = 0.25
    """Seconds that a call of the scheduler waits for a server that is gone."""
    tenants: bool = False
    """Store the chunks of each tenant, which requests name in their hints, in a namespace of its
    own: the engine's name of a namespace, ``@``, and the tenant.
    """
    max_tenants: int = 32
    """Tenants whose namespaces are open at a time. Others find and store nothing meanwhile."""


def read(kind: type[Any], extra_config: Mapping[str, Any]) -> Any:
    """Returns the options of a kind from vLLM's extra config.

    Raises :class:`InvalidArgumentError` for unknown names and wrong types.
    """
    given = extra_config.get("kvmem") or {}
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"the option kvmem is {given!r}: give a mapping")
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"the option kvmem has no {', '.join(unknown)}: its names are {', '.join(known)}"
        )
    for name, value in given.items():
        default = known[name].default
        accepts: tuple[type[Any], ...] = (str, type(None)) if default is None else (type(default),)
        if name in ("join_timeout", "connect_timeout", "call_timeout", "threads"):
            accepts = (int, float) if name != "threads" else (int, str)
        if not isinstance(value, accepts) or (isinstance(value, bool) and bool not in accepts):
            raise InvalidArgumentError(f"kvmem.{name} is {value!r}: give a {accepts[0].__name__}")
    return kind(**given)
