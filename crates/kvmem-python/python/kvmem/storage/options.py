"""*Options*: where the values of an engine are, as the engine's configuration says it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._kvmem import parse_size
from ..errors import InvalidArgumentError
from .disk import DiskStore
from .node import NodeStore
from .store import ValueStore

MAX_NAMESPACE = 56
"""Maximum number of bytes of a namespace."""


@dataclass(frozen=True)
class StorageOptions:
    """Where values are. One of ``node``, ``disk`` and ``mooncake`` is given, or the last two."""

    node: Path | None = None
    """Path of the socket of ``kvmem serve``."""
    disk: tuple[Path, ...] = ()
    """Paths of files or block devices. ``{rank}`` stands for the engine process."""
    disk_bytes: int | None = None
    """Length of each file; None keeps the length of existing ones."""
    mooncake: Mapping[str, Any] = field(default_factory=dict)
    """``master`` and the other arguments of :class:`kvmem.mooncake.Store`."""
    memory: int = 256 << 20
    """Bytes of the pool that values of a cluster pass through."""
    namespace: str = "kvmem"
    """Namespace of all keys. Engines with the same one share values."""
    deadline: float = 1.0
    """Seconds that a call may take."""
    retry: float = 1.0
    """Seconds without calls after a failure."""
    staging: int = 64 << 20
    """Bytes of memory through which values of a disk are copied; 0: none, and no deadline."""
    rings: bool = False
    """Whether calls of a node go through shared memory."""
    server_users: tuple[int, ...] = ()
    """Users whose nodes the engine trusts. Empty: its own user and root."""
    weights: str | Mapping[str, str] | None = None
    """Text that changes with the weights, for the keys: for all models, or by the model's name.
    None: by the files, see :mod:`kvmem.storage.weights`.
    """

    def weights_of(self, model: str) -> str | None:
        """Returns the text that is given for the weights of a model, if one is."""
        return self.weights.get(model) if isinstance(self.weights, Mapping) else self.weights

    @classmethod
    def parse(cls, options: Mapping[str, Any], where: str) -> StorageOptions:
        """Returns the options that a mapping from JSON has. ``where`` names it in errors.

        Raises :class:`~kvmem.InvalidArgumentError` with the value, its limit and the remedy.
        """
        known = list(cls.__dataclass_fields__)
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise InvalidArgumentError(f"{where} has no option {name!r}: {hint}", value=name)
        given = [name for name in ("node", "disk", "mooncake") if options.get(name)]
        if given not in (["node"], ["disk"], ["mooncake"], ["disk", "mooncake"]):
            raise InvalidArgumentError(
                f"{where} names {' and '.join(given) or 'no store'}: give one of "
                '"node": "/run/kvmem.sock", "disk": "/mnt/nvme/kvmem" and '
                '"mooncake": {"master": "HOST:PORT"}, or the last two',
                value=given,
            )
        parsed: dict[str, Any] = {}
        for name, value in options.items():
            parsed[name] = _READERS[name](value, f"{where}: {name}")
        if len(parsed.get("disk", ())) > 1 and "mooncake" in parsed:
            raise InvalidArgumentError(
                f"{where}: {len(parsed['disk'])} disks above a cluster: give 1",
                value=len(parsed["disk"]),
                limit=1,
            )
        return cls(**parsed)


def open_store(options: StorageOptions, rank: str = "", *, direct: bool = False) -> ValueStore:
    """Opens the store that options name. ``rank`` names the engine process in paths of files.
    ``direct``: the engine waits for the end of each call, so values of a disk are not copied.

    Raises what the stores raise.
    """
    shared = {"deadline": options.deadline, "retry": options.retry}
    paths = [Path(str(path).replace("{rank}", rank)) for path in options.disk]
    if options.node is not None:
        return NodeStore(
            options.node,
            namespace=options.namespace,
            rings=options.rings,
            server_users=options.server_users,
            **shared,
        )
    if not options.mooncake:
        staging = 0 if direct else options.staging
        return DiskStore(paths, nbytes=options.disk_bytes, staging=staging, **shared)
    from .cluster import ClusterStore

    engine = dict(options.mooncake)
    return ClusterStore(
        engine.pop("master"),
        namespace=options.namespace,
        memory=options.memory,
        engine=engine,
        disk=paths[0] if paths else None,
        disk_bytes=options.disk_bytes,
        **shared,
    )


def _path(value: Any, where: str) -> Path:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{where} is {value!r}: give a path", value=value)
    return Path(value)


def _paths(value: Any, where: str) -> tuple[Path, ...]:
    return tuple(_path(each, where) for each in (value if isinstance(value, list) else [value]))


def _size(value: Any, where: str) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgumentError(
            f'{where} is {value!r}: give a number of bytes, such as "64GiB"', value=value, limit=0
        )
    return value


def _seconds(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise InvalidArgumentError(
            f"{where} is {value!r}: give a number of seconds above 0", value=value, limit=0
        )
    return float(value)


def _namespace(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_NAMESPACE:
        raise InvalidArgumentError(
            f"{where} is {value!r}: give a name of 1 to {MAX_NAMESPACE} bytes",
            value=value,
            limit=MAX_NAMESPACE,
        )
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{where} is {value!r}: give true or false", value=value)
    return value


def _users(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(it) is int and 0 <= it < 2**32 for it in value):
        raise InvalidArgumentError(
            f"{where} is {value!r}: give a list of numbers of users, such as [1000]", value=value
        )
    return tuple(value)


def _weights(value: Any, where: str) -> str | Mapping[str, str]:
    texts = list(value.values()) if isinstance(value, dict) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidArgumentError(
            f'{where} is {value!r}: give a text that changes with the weights, or {{"MODEL": '
            '"TEXT"}',
            value=value,
        )
    return value  # type: ignore[no-any-return]


def _cluster(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("master"), str):
        raise InvalidArgumentError(
            f'{where} is {value!r}: give {{"master": "HOST:PORT"}}', value=value
        )
    return value


_READERS = {
    "node": _path,
    "disk": _paths,
    "disk_bytes": _size,
    "mooncake": _cluster,
    "memory": _size,
    "namespace": _namespace,
    "deadline": _seconds,
    "retry": _seconds,
    "staging": _size,
    "rings": _flag,
    "server_users": _users,
    "weights": _weights,
}
