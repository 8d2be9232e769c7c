"""*Cluster store*: values in a Mooncake cluster, for engines on several machines.

The values pass through a cache in a pool of this process, whose tier is a
:class:`~kvmem.mooncake.ClusterTier`, after a :class:`~kvmem.DiskTier` if one is named. A stored
value is evicted at once into a queue, so a store never waits for the cluster."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .._kvmem import Chain, DiskTier, KvCache, Pool
from ..errors import OutOfSpaceError
from ..mooncake import ClusterTier, ClusterTierStats, UnreachableError, errors
from ..mooncake import engine as engines
from .store import Budget, Value, ValueStore


def connected_tier(
    master: str, namespace: str, engine: Mapping[str, Any], **options: Any
) -> ClusterTier:
    """Returns a tier in a cluster that answers. Keys name their contents. Raises
    :class:`kvmem.mooncake.UnreachableError`, :class:`kvmem.mooncake.EngineMissingError` and
    :class:`InvalidArgumentError`."""
    tier = ClusterTier(
        master, prefix=f"{namespace}/", replace=False, engine=dict(engine), **options
    )
    try:
        engines.check(master, float(engine.get("timeout", engines.TIMEOUT)))
        if not tier.wait(engines.START):
            raise UnreachableError(
                f"no client of the cluster of {master} is ready after {engines.START} s: "
                f"{tier.stats().last_report}",
                code=errors.MASTER_GONE,
            )
    except BaseException:
        tier.close()
        raise
    return tier


class ClusterStore(ValueStore):
    """Values in a cluster.

    - ``master``: address of the cluster's master; ``engine``:
      :class:`kvmem.mooncake.EngineOptions`.
    - ``namespace``: prefix of the objects' keys.
    - ``memory``: bytes of the pool that values pass through.
    - ``disk``: a file above the cluster, of ``disk_bytes`` bytes.
    - ``codec``, ``key_file``: of the values in the file and in the cluster, as for
      :class:`~kvmem.DiskTier`.
    - ``deadline``, ``retry``: as for :class:`ValueStore`.

    Raises :class:`kvmem.mooncake.StoreError` if the cluster cannot be reached, and
    :class:`kvmem.mooncake.EngineMissingError`."""

    def __init__(
        self,
        master: str,
        *,
        namespace: str = "kvmem",
        memory: int | str = 256 << 20,
        engine: Mapping[str, Any] | None = None,
        disk: str | Path | None = None,
        disk_bytes: int | str | None = None,
        codec: str = "none",
        key_file: str | Path | None = None,
        deadline: float = 1.0,
        retry: float = 1.0,
    ) -> None:
        super().__init__(f"the cluster of {master}", deadline, retry)
        with ExitStack() as stack:
            encoding: Any = {"codec": codec, "key_file": key_file}
            self._disk: DiskTier | None = None
            if disk is not None:
                self._disk = DiskTier(disk, bytes=disk_bytes, **encoding)
                stack.callback(self._disk.close)
            pool = Pool(memory)
            stack.callback(pool.close)
            options = {"deadline": deadline, **(engine or {})}
            self._tier = connected_tier(master, namespace, options, **encoding)
            stack.callback(self._tier.close)
            self._cache = KvCache(
                pool,
                max_bytes=pool.capacity // 2,
                lower_tier=self._tier if self._disk is None else Chain(self._disk, self._tier),
                write_behind=pool.capacity // 4,
                write_behind_when_full="drop",
            )
            stack.callback(self._cache.close)
            self._resources = stack.pop_all()
        self._closing = threading.Lock()

    def _get(self, values: Sequence[Value], found: list[bool], budget: Budget) -> None:
        pins = self._cache.get_batch(
            [value.key for value in values], timeout=max(budget.left(), 0.001)
        )
        for index, pinned in enumerate(pins):
            if pinned is not None and pinned.nbytes == values[index].nbytes:
                values[index].copy_from(pinned.ptr)
                found[index] = True

    def _put(self, values: Sequence[Value], done: list[int | None], budget: Budget) -> None:
        for index, value in enumerate(values):
            if value.key in self._cache:
                done[index] = 0
                continue
            try:
                reserved = self._cache.reserve(value.key, value.nbytes, data_type=value.data_type)
            except OutOfSpaceError:
                continue
            value.copy_to(reserved.ptr)
            reserved.commit()
            done[index] = value.nbytes
        # To the queue, from which other machines get them.
        self._cache.evict_to(0)

    def _lengths(self, keys: Sequence[bytes], found: list[int | None], budget: Budget) -> None:
        for index, key in enumerate(keys):
            here = self._cache.get(key)
            if here is not None:
                found[index] = here.nbytes
            elif self._disk is not None:
                found[index] = self._disk.len_of(key)
        missing = [index for index, nbytes in enumerate(found) if nbytes is None]
        if missing:
            lengths = self.backend.call(
                lambda: self._tier.ask([keys[index] for index in missing]), budget
            )
            for index, nbytes in zip(missing, lengths, strict=True):
                found[index] = nbytes

    def _remove(self, keys: list[bytes]) -> None:
        for key in keys:
            self._cache.remove(key)

    def _clear(self) -> None:
        self._cache.clear()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all values are in the cluster or dropped; False after ``timeout`` seconds."""
        return self._cache.flush(timeout) and self._tier.flush(timeout)

    def tier_stats(self) -> ClusterTierStats:
        """Returns the figures of the tier in the cluster."""
        return self._tier.stats()

    def close(self) -> None:
        """Writes what is queued for at most a second, and disconnects."""
        with self._closing:
            resources = self._resources.pop_all()
        self.backend.close(resources.close, max(self.deadline, 10.0))
