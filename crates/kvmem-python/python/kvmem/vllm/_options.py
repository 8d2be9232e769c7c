"""*Options*: the key ``kvmem`` of ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    numa: str | list[int] | None = None
    """``bind:0`` or ``interleave:0-1`` for the whole region. ``auto``, or a list of nodes: a node
    for the slots of each worker.
    """
    registrar: str | None = None
    """``cuda``: kvmem pins the memory, for the worker's GPU. None: vLLM does."""
    registrar_chunk: int | str | None = None
    """Bytes that one call pins at most. None: as many as the registrar prefers."""
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
    checksums: bool = True
    """Calculate a checksum of each chunk that is stored: engines with ``verify`` find no others.
    The scheduler reads all bytes of a chunk when its store ends."""
    verify: bool = False
    """Verify the checksum of each chunk in each look-up that pins it: the scheduler reads all bytes
    of the chunk. A damaged chunk is a miss, and so is one without a checksum."""
    rings: bool = True
    """Call the server through shared memory."""
    connect_timeout: float = 60.0
    """Seconds that a process waits for the server at its start."""
    call_timeout: float = 0.25
    """Seconds after which a server that is gone counts as away. No step of the scheduler waits."""
    answer_timeout: float = 2.0
    """Seconds after which a server that is there and does not answer counts as away."""
    fetch_timeout: float = 2.0
    """Seconds that a request waits for values of a tier below the node without getting any: then
    the engine computes them."""
    registrar: str | None = None
    """``cuda``: kvmem pins the memory, for the worker's GPU. None: vLLM does."""
    server_users: Sequence[int] = ()
    """Users whose servers the engine trusts. Empty: its own user and root."""
    announce: str = "engine"
    """Which engines announce what the node holds in vLLM's events: ``engine``, every one;
    ``node``, one engine of the node at a time; ``off``, this engine does not."""
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
        if name.endswith("_timeout") or name == "threads":
            accepts = (int, float) if name != "threads" else (int, str)
        if name == "numa":
            accepts = (str, type(None), list)
        if name == "server_users":
            accepts = (list, tuple)
        if name == "registrar_chunk":
            accepts = (int, str, type(None))
        if not isinstance(value, accepts) or (isinstance(value, bool) and bool not in accepts):
            raise InvalidArgumentError(f"kvmem.{name} is {value!r}: give a {accepts[0].__name__}")
    nodes = given.get("numa")
    if isinstance(nodes, list) and not all(type(it) is int and it >= 0 for it in nodes):
        raise InvalidArgumentError(
            f"kvmem.numa is {nodes!r}: give numbers of nodes, one for each worker"
        )
    users = given.get("server_users", ())
    if not all(type(it) is int and 0 <= it < 2**32 for it in users):
        raise InvalidArgumentError(
            f"kvmem.server_users is {users!r}: give numbers of users, such as [1000]"
        )
    if given.get("registrar") not in (None, "cuda"):
        raise InvalidArgumentError(
            f'kvmem.registrar is {given["registrar"]!r}: give "cuda", or leave it out, and vLLM '
            "pins the memory"
        )
    return kind(**given)
