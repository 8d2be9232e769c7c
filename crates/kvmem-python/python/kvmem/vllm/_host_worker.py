"""*Host worker*: copies between the KV cache of vLLM on the CPU and rows of kvmem. Importing this
module imports vLLM and PyTorch.

vLLM's own worker copies with the streams and events of a device. On the CPU platform the KV cache
and the rows are both host memory: a transfer is a row of ``memmove``, and it ends within the call
that submits it, in the thread that runs the model, so no event is needed.

The arithmetic is that of vLLM's worker: blocks of the KV cache and chunks of rows, of which the
first and the last may be used in part, for each group of layers. In the canonical layout a page
of the KV cache lies in fragments in a row that all workers share, and the workers with the same
bytes write them in rotation."""

import ctypes
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

from ._rows import Rows

_log = logging.getLogger("vllm.kvmem")


def on_host(kv_caches: Any) -> bool:
    """Whether the KV cache is in host memory: vLLM runs on the CPU."""
    return all(it.tensor.device.type == "cpu" for it in kv_caches.tensors)


class CpuPlatform:
    """Lets a spec run on the CPU platform, which vLLM's own specs refuse."""

    _worker: Any

    def _uses_shared_region(self) -> bool:
        shares: bool = super()._uses_shared_region()  # type: ignore[misc]
        return shares or current_platform.is_cpu()

    def get_worker(self, kv_caches: Any) -> Any:
        """Returns the worker of this process."""
        if self._worker is None and on_host(kv_caches):
            self._worker = self.create_worker(kv_caches)  # type: ignore[attr-defined]
        return super().get_worker(kv_caches)  # type: ignore[misc]


def make_worker(
    kv_caches: Any,
    blocks_per_chunk: int,
    num_cpu_chunks: int,
    region: Rows,
    canonical_layout: bool = False,
) -> Any:
    """Returns the worker for the device of the KV cache. It owns the region from then on."""
    if on_host(kv_caches):
        return HostOffloadingWorker(kv_caches, blocks_per_chunk, region, canonical_layout)
    return CPUOffloadingWorker(
        kv_caches=kv_caches,
        blocks_per_chunk=blocks_per_chunk,
        num_cpu_chunks=num_cpu_chunks,
        mmap_region=region,
        canonical_layout=canonical_layout,
    )


@dataclass(frozen=True)
class _Pages:
    """Memory in pages: ``blocks`` of them begin at every ``stride`` bytes."""

    base: int
    stride: int
    blocks: int
    page: int

    def addresses(self, numbers: np.ndarray, skip: int, count: int) -> np.ndarray:
        """Returns addresses of ``count`` pages of numbered strides, from page ``skip`` on."""
        starts = self.base + numbers.astype(np.int64) * self.stride
        within = np.arange(self.blocks, dtype=np.int64) * self.page
        return (starts[:, None] + within).ravel()[skip : skip + count]


@dataclass(frozen=True)
class _Layer:
    """A layer of a group: where its pages are, and how a page lies in a row."""

    cache: _Pages
    rows: _Pages
    fragments: tuple[tuple[int, int, int], ...]
    """Offset in a page of the KV cache, offset in a page of a row, and length of each fragment."""
    writers: int
    """Workers that have the same bytes."""
    writer: int
    """The position of this worker among them."""


class HostOffloadingWorker(OffloadingWorker):  # type: ignore[misc]
    """vLLM's worker on the CPU platform."""

    def __init__(
        self, kv_caches: Any, blocks_per_chunk: int, region: Rows, canonical_layout: bool = False
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._finished: deque[Any] = deque()
        # Holds the memory that the addresses are of.
        self._tensors: list[Any] = []
        pages: list[tuple[_Pages, _Pages]] = []
        mappings = {
            ref.tensor_idx: ref.mapping for refs in kv_caches.group_data_refs for ref in refs
        }
        for at, it in enumerate(kv_caches.tensors):
            size = it.page_size_bytes
            cache = it.tensor.view(torch.int8).view((-1, size))
            if canonical_layout:
                size = mappings[at].canonical_page_size_bytes
                view = region.create_next_canonical_view(size * blocks_per_chunk)
            else:
                view = region.create_next_worker_view(size * blocks_per_chunk)
            self._tensors += [cache, view]
            pages.append(
                (
                    _Pages(cache.data_ptr(), cache.stride(0), 1, it.page_size_bytes),
                    _Pages(view.data_ptr(), view.stride(0), blocks_per_chunk, size),
                )
            )
        self._groups = [
            [_layer(ref, pages[ref.tensor_idx], canonical_layout) for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        # Last: a caller whose worker was not made still owns the region.
        self._region: Rows | None = region
        _log.info(
            "kvmem: the KV cache is in host memory: %d tensors, %d blocks per chunk",
            len(pages),
            blocks_per_chunk,
        )

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copies blocks of the KV cache into rows."""
        return self._transfer(job_id, src_spec, dst_spec, store=True)

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        """Copies rows into blocks of the KV cache."""
        return self._transfer(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[Any]:
        """Returns the results of the transfers since the last call."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Does nothing: every transfer has ended."""

    def shutdown(self) -> None:
        """Releases the memory."""
        self._groups = []
        self._tensors = []
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _transfer(self, job_id: int, cache_spec: Any, row_spec: Any, *, store: bool) -> bool:
        start = time.monotonic()
        blocks, chunks = cache_spec.block_ids, row_spec.block_ids
        sizes: Sequence[int] = cache_spec.group_sizes
        assert len(sizes) == len(self._groups) == len(cache_spec.block_indices)
        nbytes = block = chunk = 0
        for layers, count, first in zip(self._groups, sizes, cache_spec.block_indices):
            if count == 0:
                continue
            # Blocks of the first chunk before the first that is copied.
            skip = first % self._blocks_per_chunk
            needed = -(-(count + skip) // self._blocks_per_chunk)
            of_group = blocks[block : block + count]
            rows = chunks[chunk : chunk + needed]
            assert (len(of_group), len(rows)) == (count, needed), "blocks and chunks differ"
            block, chunk = block + count, chunk + needed
            for layer in layers:
                nbytes += self._copy(layer, of_group, rows, skip, store=store)
        assert (block, chunk) == (len(blocks), len(chunks)), "blocks and chunks differ"
        self._finished.append(
            TransferResult(
                job_id=job_id,
                success=True,
                transfer_size=nbytes,
                transfer_time=time.monotonic() - start,
            )
        )
        return True

    def _copy(
        self, layer: _Layer, blocks: np.ndarray, rows: np.ndarray, skip: int, *, store: bool
    ) -> int:
        """Copies the pages of one layer, and returns the number of bytes."""
        count = len(blocks)
        cache = layer.cache.addresses(blocks, 0, count)
        row = layer.rows.addresses(rows, skip, count)
        if store and layer.writers > 1:
            # By the numbers of pages in rows, which all workers know.
            per_chunk = self._blocks_per_chunk
            pages = (rows[:, None] * per_chunk + np.arange(per_chunk)).ravel()[skip:][:count]
            mine = pages % layer.writers == layer.writer
            cache, row = cache[mine], row[mine]
        move, nbytes = ctypes.memmove, 0
        for in_cache, in_row, size in layer.fragments:
            to, of = (row + in_row, cache + in_cache) if store else (cache + in_cache, row + in_row)
            for target, source in zip(to.tolist(), of.tolist()):
                move(target, source, size)
            nbytes += len(to) * size
        return nbytes


def _layer(ref: Any, pages: tuple[_Pages, _Pages], canonical_layout: bool) -> _Layer:
    cache, rows = pages
    if not canonical_layout:
        return _Layer(cache, rows, ((0, 0, ref.page_size_bytes),), 1, 0)
    mapping = ref.mapping
    fragments = tuple(
        (
            run.local_offset + at * run.local_stride,
            run.canonical_offset + at * run.canonical_stride,
            run.fragment_size,
        )
        for run in mapping.runs
        for at in range(run.num_fragments)
    )
    return _Layer(cache, rows, fragments, mapping.num_writers, mapping.writer_index)
