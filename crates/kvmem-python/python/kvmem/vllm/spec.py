"""*Specs*: vLLM's CPU tier and its further tiers, in memory of kvmem. Importing this module imports
vLLM.

Only the memory differs: managers, workers, copies and registrations with the device are vLLM's. On
the CPU, where vLLM has no such tier, the worker is kvmem's, too (:mod:`~kvmem.vllm._host_worker`).
"""

import logging
from contextlib import ExitStack
from typing import Any

from vllm.v1.kv_offload.cpu import spec as cpu_spec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from ..errors import InvalidArgumentError
from ._host_worker import CpuPlatform, make_worker
from ._options import RegionOptions, read
from .region import OffloadRegion

_log = logging.getLogger("vllm.kvmem")


class _RegionOfKvmem(CpuPlatform):
    """Makes the region of an engine and its workers, for both specs."""

    config: Any
    extra_config: Any
    num_chunks: int
    kv_bytes_per_chunk: int
    cpu_page_size_per_worker: int
    replicated_layout: bool
    blocks_per_chunk: int
    _manager: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        read(RegionOptions, self.extra_config)

    def _make_worker(self, kv_caches: Any, canonical_layout: bool = False) -> Any:
        """Returns a worker whose host memory is the engine's region."""
        with ExitStack() as undo:
            region = self._region(self.config.parallel.rank, kv_caches)
            undo.callback(region.cleanup)
            worker = make_worker(
                kv_caches, self.blocks_per_chunk, self.num_chunks, region, canonical_layout
            )
            undo.pop_all()
        return worker

    def _region(self, rank: int | None, kv_caches: Any = None) -> OffloadRegion:
        """Returns the engine's region for the scheduler (None) or for a worker of this rank."""
        if self.num_chunks == 0:
            raise InvalidArgumentError(
                f"cpu_bytes_to_use is {self.extra_config.get('cpu_bytes_to_use')}, less than one "
                f"chunk of {self.kv_bytes_per_chunk} bytes: give more"
            )
        slot = rank
        if rank is not None and self.replicated_layout:
            # One copy, which all workers have.
            slot = 0
        options = read(RegionOptions, self.extra_config)
        shared = self.replicated_layout or self.config.canonical_layout
        if shared and (options.numa == "auto" or isinstance(options.numa, list)):
            raise InvalidArgumentError(
                f"kvmem.numa is {options.numa!r}, and the workers of this layout have no slots of "
                'their own: give one policy for the whole region, such as "interleave:0-1"'
            )
        return OffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=slot,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
            member="scheduler" if rank is None else f"worker {rank}",
            options=options,
            workers=self.config.parallel.world_size,
            tensor=kv_caches.tensors[0].tensor if kv_caches is not None else None,
            barrier=lambda: cpu_spec._all_workers_barrier(),
        )


class KvmemOffloadingSpec(_RegionOfKvmem, CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU tier in memory of kvmem. Options: those of ``CPUOffloadingSpec``, and ``kvmem``
    (see :class:`~kvmem.vllm._options.RegionOptions`). On a platform where vLLM shares no memory
    between workers (ROCm), the memory is vLLM's, with a warning."""

    def create_worker(self, kv_caches: Any) -> Any:
        """Returns a worker of vLLM whose host memory is the engine's region."""
        if not self._uses_shared_region() or self.num_chunks == 0:
            _log.warning(
                "kvmem: vLLM shares no host memory between the workers of this platform, or has "
                "no chunk: its memory is not kvmem's"
            )
            return super().create_worker(kv_caches)
        return self._make_worker(kv_caches)


class KvmemTieringOffloadingSpec(_RegionOfKvmem, TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU tier with further tiers, in memory of kvmem. The scheduler and all workers have
    the same region. Options: those of ``TieringOffloadingSpec``, and ``kvmem``."""

    def get_manager(self) -> Any:
        """Returns vLLM's manager of tiers, over the engine's region."""
        if self._manager is None:
            if int(self.extra_config.get("store_threshold", 0)) >= 2:
                raise ValueError("store_threshold is not supported for tiers below the CPU tier")
            with ExitStack() as undo:
                self._manager = self._make_manager(undo)
                undo.pop_all()
        return self._manager

    def _make_manager(self, undo: ExitStack) -> Any:
        region = self._region(None)
        undo.callback(region.cleanup)
        # vLLM 0.32 has no facts to publish, and polls no tier between steps.
        facts = {"info": self.cpu_info} if hasattr(self, "cpu_info") else {}
        polling = (
            {"tier_poll_interval_s": self.tier_poll_interval_s}
            if hasattr(self, "tier_poll_interval_s")
            else {}
        )
        primary = CPUPrimaryTierOffloadingManager(
            num_chunks=self.num_chunks,
            cache_policy=self.eviction_policy,
            cache_policy_module_path=self.cache_policy_module_path,
            enable_events=self.kv_events_config.enable_kv_cache_events,
            mmap_region=region,
            **facts,
        )
        undo.callback(primary.shutdown)
        tiers = []
        for options in self.secondary_tier_configs:
            tier = SecondaryTierFactory.create_secondary_tier(
                options, primary.get_kv_memoryview(), self
            )
            undo.callback(tier.shutdown)
            tiers.append(tier)
        self._scheduler_mmap: Any = region
        _log.info("kvmem: %d chunks, %d tiers below", self.num_chunks, len(tiers))
        return TieringOffloadingManager(primary_tier=primary, secondary_tiers=tiers, **polling)

    def create_worker(self, kv_caches: Any) -> Any:
        """Returns a worker of vLLM whose host memory is the engine's region."""
        if self.config.canonical_layout:
            self._validate_canonical_refs(kv_caches)
        return self._make_worker(kv_caches, self.config.canonical_layout)
