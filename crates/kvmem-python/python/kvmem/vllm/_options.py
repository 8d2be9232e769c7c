"""*Options*: the key ``kvmem`` of ``kv_connector_extra_config``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .._options import checked, flag, is_whole, option, parse, users, wait
from ..errors import InvalidArgumentError

_T = TypeVar("_T")

_text = checked(lambda value: isinstance(value, str), "a text", optional=True)
_count = checked(lambda value: isinstance(value, str) or is_whole(value), "a number", optional=True)
_threads = checked(lambda value: isinstance(value, str) or is_whole(value), 'a number, or "auto"')
_numa = checked(
    lambda value: isinstance(value, str) or (isinstance(value, list) and all(map(is_whole, value))),
    'a policy such as "bind:0", "auto", or give numbers of nodes, one for each worker',
    optional=True,
)
_registrar = checked(
    lambda value: value == "cuda",
    '"cuda", or leave it out, and vLLM pins the memory',
    optional=True,
)
_announcers = checked(
    lambda value: value in ("engine", "node", "server", "off"),
    '"engine", "node", "server" or "off"',
)
_one_or_more = checked(lambda value: is_whole(value, 1), "1 or more")


@dataclass(frozen=True)
class RegionOptions:
    """How the memory of an engine is mapped."""

    pages: str | None = option(_text)
    """Page sizes to try, in order of preference, as for :class:`kvmem.Region`."""
    strict: bool = option(flag, False)
    """Fail unless the first page size backs the whole region."""
    numa: str | list[int] | None = option(_numa)
    """``bind:0`` or ``interleave:0-1`` for the whole region. ``auto``, or a list of nodes: a node
    for the slots of each worker."""
    registrar: str | None = option(_registrar)
    """``cuda``: kvmem pins the memory, for the worker's GPU. None: vLLM does."""
    registrar_chunk: int | str | None = option(_count)
    """Bytes that one call pins at most. None: as many as the registrar prefers."""
    threads: int | str = option(_threads, "auto")
    """Threads that make pages resident."""
    weights: str | None = option(_text)
    """Text that changes with the weights, for the identity of stored chunks. None: by the files."""
    join_timeout: float = option(wait, 300.0)
    """Seconds that a process waits for the region of its engine."""


@dataclass(frozen=True)
class NodeOptions:
    """How an engine uses the memory of a node."""

    socket: str = option(_text, "")
    """Path of the socket of ``kvmem serve``."""
    namespace: str | None = option(_text)
    """Namespace of the keys. None: made of the model and of all that decides the bytes of a row."""
    weights: str | None = option(_text)
    """Text that changes with the weights, for the namespace. None: by the files."""
    populate: bool = option(flag, False)
    """Enter all pages into the page tables of each worker at the start."""
    checksums: bool = option(flag, True)
    """Calculate a checksum of each chunk that is stored: engines with ``verify`` find no others.
    The scheduler reads all bytes of a chunk when its store ends."""
    verify: bool = option(flag, False)
    """Verify the checksum of each chunk in each look-up that pins it: the scheduler reads all bytes
    of the chunk. A damaged chunk is a miss, and so is one without a checksum."""
    rings: bool = option(flag, True)
    """Call the server through shared memory."""
    connect_timeout: float = option(wait, 60.0)
    """Seconds that a process waits for the server at its start."""
    call_timeout: float = option(wait, 0.25)
    """Seconds after which a server that is gone counts as away. No step of the scheduler waits."""
    answer_timeout: float = option(wait, 2.0)
    """Seconds after which a server that is there and does not answer counts as away."""
    fetch_timeout: float = option(wait, 2.0)
    """Seconds that a request waits for values of a tier without getting any."""
    registrar: str | None = option(_registrar)
    """``cuda``: kvmem pins the memory, for the worker's GPU. None: vLLM does."""
    server_users: Sequence[int] = option(users, ())
    """Users whose servers the engine trusts. Empty: its own user and root."""
    announce: str = option(_announcers, "engine")
    """Which engines announce what the node holds in vLLM's events: ``engine``, every one;
    ``node``, one engine of the node at a time; ``server``, this engine describes its chunks, and
    the server announces them with ``--kv-events``; ``off``, this engine does neither."""
    tenants: bool = option(flag, False)
    """Store the chunks of each tenant, which requests name in their hints, in a namespace of its
    own: the engine's name of a namespace, ``@``, and the tenant."""
    max_tenants: int = option(_one_or_more, 32)
    """Tenants whose namespaces are open at a time. Others find and store nothing meanwhile."""


def read(kind: type[_T], extra_config: Mapping[str, Any]) -> _T:
    """Returns the options of a kind from vLLM's extra config. Raises :class:`InvalidArgumentError`
    for unknown names and wrong values."""
    options = extra_config.get("kvmem") or {}
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"the option kvmem is {options!r}: give a mapping")
    return parse(kind, options, "the option kvmem", "kvmem.")
