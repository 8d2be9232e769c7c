"""*Shared*: vLLM's CPU tier in the memory of ``kvmem serve``, for all engines of a node. Importing
this module imports vLLM."""

import contextlib
import dataclasses
import logging
import os
import re
import time
from hashlib import blake2b
from typing import Any

from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from .._kvmem import NodeCache, connect
from ..errors import InvalidArgumentError, NodeDisconnectedError
from ..storage.data_type import data_type_of
from ._events import make_events
from ._host_worker import CpuPlatform, make_worker
from ._identity import identity
from ._manager import NodeOffloadingManager
from ._options import NodeOptions, read
from .region import NodeRegion

_log = logging.getLogger("vllm.kvmem")

_EVENTS_ANSWER = 30.0
"""Seconds that the thread of the events waits for an answer."""


def worker_key(engine_id: str, rank: int) -> bytes:
    """Returns the key of the value that a worker keeps pinned."""
    return b"worker" + blake2b(f"{engine_id}/{rank}".encode(), digest_size=16).digest()


def tenant_namespace(namespace: str, tenant: str) -> str:
    """Returns the namespace of a tenant. Names with unusual characters are hashed."""
    plain = re.fullmatch(r"[\w.-]{1,32}", tenant, re.ASCII) is not None
    name = tenant if plain else blake2b(tenant.encode(), digest_size=8).hexdigest()
    return f"{namespace}@{name}"


def _connect(options: NodeOptions, namespace: str, *, populate: bool) -> NodeCache:
    """Connects to the server, which may start later than the engine."""
    end = time.monotonic() + options.connect_timeout
    while True:
        try:
            return connect(
                options.socket,
                namespace=namespace,
                retry_for=options.call_timeout,
                answer_within=options.answer_timeout,
                populate=populate,
                checksums=options.checksums,
                verify=options.verify,
                rings=options.rings,
                server_users=options.server_users,
            )
        except NodeDisconnectedError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


class KvmemSharedSpec(CpuPlatform, CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU tier in the memory of a node. Options: ``kvmem`` with ``socket``, the path of the
    server's socket, and those of :class:`~kvmem.vllm._options.NodeOptions`. ``cpu_bytes_to_use``
    is not needed: the server has the memory."""

    _manager: Any

    def __init__(self, config: Any) -> None:
        options = read(NodeOptions, config.extra_config)
        if not options.socket:
            raise InvalidArgumentError(
                'kvmem.socket is missing: give the path of the socket of "kvmem serve"'
            )
        if options.verify and not options.checksums:
            raise InvalidArgumentError(
                "kvmem.verify is true and kvmem.checksums is false, so the engine would not find "
                "its own chunks: leave kvmem.checksums out"
            )
        if int(config.extra_config.get("store_threshold", 0)) >= 2:
            raise InvalidArgumentError(
                "store_threshold is not supported with memory of a node: leave it out"
            )
        # vLLM's spec divides this by the length of a row. One byte is no row.
        extra = {**config.extra_config, "cpu_bytes_to_use": 1}
        super().__init__(dataclasses.replace(config, extra_config=extra))
        self._options = options

    def _namespace(self) -> str:
        named = self._options.namespace
        return f"vllm-{identity(self).hex()}" if named is None else str(named)

    def _open_tenant(self, tenant: str) -> NodeCache:
        """Connects to the namespace of a tenant, within the time of a call."""
        options = dataclasses.replace(self._options, connect_timeout=0.0)
        return _connect(options, tenant_namespace(self._namespace(), tenant), populate=False)

    def _open_events(self) -> NodeCache:
        """Connects for the thread that reads events, which may wait longer than the scheduler."""
        options = dataclasses.replace(
            self._options, connect_timeout=0.0, answer_timeout=_EVENTS_ANSWER, rings=False
        )
        return _connect(options, self._namespace(), populate=False)

    def get_manager(self) -> Any:
        """Returns the manager over the node's index."""
        if self._manager is None:
            cache = _connect(self._options, self._namespace(), populate=False)
            info = None
            if hasattr(self, "cpu_info"):
                rows = cache.memory_len // self.kv_bytes_per_chunk
                info = type(self.cpu_info).from_config(self.config, rows, self.kv_bytes_per_chunk)
            keys = [
                worker_key(self.config.engine_id, rank)
                for rank in range(self.config.parallel.world_size)
            ]
            self._manager = NodeOffloadingManager(
                cache,
                self.kv_bytes_per_chunk,
                keys,
                info,
                self._open_tenant if self._options.tenants else None,
                self._options.max_tenants,
                len(self.config.groups),
                self._options.fetch_timeout,
                self._options.verify,
                make_events(self, self._options.announce, self._open_events, str(cache.path)),
                # vLLM names the cache's own type here.
                data_type_of(self.config.model.dtype),
            )
            _log.info(
                "kvmem: %d rows of %d bytes fit into the node at %s, namespace %s",
                cache.memory_len // self.kv_bytes_per_chunk,
                self.kv_bytes_per_chunk,
                cache.path,
                cache.namespace,
            )
        return self._manager

    def create_worker(self, kv_caches: Any) -> Any:
        """Returns a worker of vLLM whose host memory is that of the node."""
        if not self._uses_shared_region():
            raise InvalidArgumentError(
                "vLLM shares no host memory between the workers of this platform, so they cannot "
                "use a node's: use another spec"
            )
        rank = self.config.parallel.rank
        with contextlib.ExitStack() as undo:
            cache = _connect(self._options, self._namespace(), populate=self._options.populate)
            undo.callback(cache.close)
            region = NodeRegion(
                cache,
                0 if self.replicated_layout else rank,
                self.kv_bytes_per_chunk,
                self.cpu_page_size_per_worker,
            )
            undo.callback(region.cleanup)
            if self._options.registrar is not None:
                region.register(self._options.registrar, kv_caches.tensors[0].tensor)
            key = worker_key(self.config.engine_id, rank)
            cache.insert(key, str(os.getpid()).encode(), priority=3)
            # Not evicted while this process runs.
            region.presence = cache.get(key)
            worker = make_worker(kv_caches, self.blocks_per_chunk, region.num_chunks, region)
            undo.pop_all()
        return worker
