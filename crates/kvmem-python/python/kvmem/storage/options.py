"""*Options*: where the values of an engine are, as the engine's configuration says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._options import checked, flag, is_text, option, parse, path, seconds, size, users
from ..errors import InvalidArgumentError
from .disk import DiskStore
from .node import NodeStore
from .store import ValueStore

MAX_NAMESPACE = 56
"""Maximum number of bytes of a namespace."""


def _paths(value: Any, name: str) -> tuple[Path, ...]:
    return tuple(path(each, name) for each in (value if isinstance(value, list) else [value]))


_namespace = checked(
    lambda value: is_text(value) and len(value.encode()) <= MAX_NAMESPACE,
    f"a name of 1 to {MAX_NAMESPACE} bytes",
)
_weights = checked(
    lambda value: (
        is_text(value) or (isinstance(value, dict) and value and all(map(is_text, value.values())))
    ),
    'a text that changes with the weights, or {"MODEL": "TEXT"}',
)
_codec = checked(lambda value: value in ("none", "auto"), '"auto" or "none"')
_cluster = checked(
    lambda value: isinstance(value, dict) and isinstance(value.get("master"), str),
    '{"master": "HOST:PORT"}',
)


@dataclass(frozen=True)
class StorageOptions:
    """Where values are. One of ``node``, ``disk`` and ``mooncake`` is set, or the last two."""

    node: Path | None = option(path)
    """Path of the socket of ``kvmem serve``."""
    disk: tuple[Path, ...] = option(_paths, ())
    """Paths of files or block devices. ``{rank}`` stands for the engine process."""
    disk_bytes: int | None = option(size)
    """Length of each file; None leaves the length of existing ones."""
    codec: str = option(_codec, "none")
    """How values are compressed in the files and the cluster: "auto" or "none"."""
    key_file: Path | None = option(path)
    """Path of a file with the keys that encrypt the values in the files and the cluster."""
    mooncake: Mapping[str, Any] | None = option(_cluster)
    """``master`` and the other arguments of :class:`kvmem.mooncake.Store`."""
    memory: int = option(size, 256 << 20)
    """Bytes of the pool that values of a cluster pass through."""
    namespace: str = option(_namespace, "kvmem")
    """Namespace of all keys. Engines with the same one share values."""
    deadline: float = option(seconds, 1.0)
    """Seconds that a call may take."""
    retry: float = option(seconds, 1.0)
    """Seconds without calls after a failure."""
    staging: int = option(size, 64 << 20)
    """Bytes of memory through which values of a disk are copied; 0: none, and no deadline."""
    rings: bool = option(flag, False)
    """Whether calls of a node go through shared memory."""
    server_users: tuple[int, ...] = option(users, ())
    """Users whose nodes the engine trusts. Empty: its own user and root."""
    weights: str | Mapping[str, str] | None = option(_weights)
    """Text that changes with the weights, for the keys: for all models, or by the model's name.
    None: by the files, see :mod:`kvmem.storage.weights`."""

    def weights_of(self, model: str) -> str | None:
        """Returns the text that is set for the weights of a model, if one is."""
        return self.weights.get(model) if isinstance(self.weights, Mapping) else self.weights

    @classmethod
    def parse(cls, options: Mapping[str, Any], where: str) -> "StorageOptions":
        """Returns the options that a mapping from JSON has. ``where`` names it in errors. Raises
        :class:`~kvmem.InvalidArgumentError` with the value, its limit and the remedy."""
        parsed = parse(cls, options, where, f"{where}: ")
        stores = [name for name in ("node", "disk", "mooncake") if options.get(name)]
        if stores not in (["node"], ["disk"], ["mooncake"], ["disk", "mooncake"]):
            raise InvalidArgumentError(
                f"{where} names {' and '.join(stores) or 'no store'}: give one of "
                '"node": "/run/kvmem.sock", "disk": "/mnt/nvme/kvmem" and '
                '"mooncake": {"master": "HOST:PORT"}, or the last two',
                value=stores,
            )
        unused = [name for name in ("codec", "key_file") if options.get(name) and parsed.node]
        if unused:
            raise InvalidArgumentError(
                f'{where}: {" and ".join(unused)} with "node": the values of a node are encoded '
                "by its server, with kvmem serve --tier or --mooncake",
                value=unused,
            )
        if len(parsed.disk) > 1 and parsed.mooncake:
            raise InvalidArgumentError(
                f"{where}: {len(parsed.disk)} disks above a cluster: give 1",
                value=len(parsed.disk),
                limit=1,
            )
        return parsed


def open_store(options: StorageOptions, rank: str = "", *, direct: bool = False) -> ValueStore:
    """Opens the store that options name. ``rank`` names the engine process in paths of files.
    ``direct``: the engine waits for the end of each call, so values of a disk are not copied.
    Raises what the stores raise."""
    shared: Any = {"deadline": options.deadline, "retry": options.retry}
    encoding: Any = {"codec": options.codec, "key_file": options.key_file}
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
        return DiskStore(paths, nbytes=options.disk_bytes, staging=staging, **encoding, **shared)
    from .cluster import ClusterStore

    engine = dict(options.mooncake)
    return ClusterStore(
        engine.pop("master"),
        namespace=options.namespace,
        memory=options.memory,
        engine=engine,
        disk=paths[0] if paths else None,
        disk_bytes=options.disk_bytes,
        **encoding,
        **shared,
    )
