"""*Region*: the memory of an engine, or of a node, as the rows of vLLM. Importing this module
imports vLLM and PyTorch."""

import ctypes
import logging
import mmap
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .._kvmem import NodeCache, PinnedValue, Region, doctor
from ..errors import ExportedError, KvmemError
from . import _handover, _placement
from ._options import RegionOptions
from ._rows import Rows
from .errors import NodeLayoutError

_log = logging.getLogger("vllm.kvmem")

GRANULE = 4096
"""Alignment of the values of a node, in bytes. The number of a chunk counts these."""


class OffloadRegion(Rows):
    """The rows of one engine in a region that its processes share. It takes the place of vLLM's
    ``SharedOffloadRegion``. The first process of the engine maps the memory and makes it resident;
    the others receive its descriptor."""

    def __init__(
        self,
        engine_id: str,
        num_chunks: int,
        rank: int | None,
        kv_bytes_per_chunk: int,
        cpu_page_size: int,
        *,
        member: str | None = None,
        options: RegionOptions | None = None,
        workers: int = 1,
        tensor: Any = None,
        barrier: Callable[[], None] | None = None,
    ) -> None:
        options = options or RegionOptions()
        by_slot = isinstance(options.numa, list) or options.numa == "auto"
        pages = options.pages
        if by_slot:
            if isinstance(options.numa, list):
                _placement.check(options.numa, workers)
            pages = _placement.pages_for(pages, kv_bytes_per_chunk, cpu_page_size)
        layout = {
            "bytes": num_chunks * kv_bytes_per_chunk,
            "rows": num_chunks,
            "row_bytes": kv_bytes_per_chunk,
        }
        member = member or ("scheduler" if rank is None else f"worker {rank}")

        def make() -> Region:
            _tell_limits(layout["bytes"], options)
            return Region(
                layout["bytes"],
                pages=pages,
                strict=options.strict,
                numa=None if by_slot else str(options.numa) if options.numa else None,
                # Each worker binds its slots to its node before it makes them resident.
                populate=None if by_slot else options.threads,
                shared=True,
            )

        start = time.monotonic()
        self._region, self._creator = _handover.join(
            engine_id, member, layout, make, timeout=options.join_timeout
        )
        try:
            if by_slot and rank is not None:
                nodes = options.numa
                node = nodes[rank] if isinstance(nodes, list) else _placement.near_node(tensor)
                page = _placement.HUGEPAGE if pages != "4k" else mmap.PAGESIZE
                ranges = [
                    *_placement.slots(num_chunks, kv_bytes_per_chunk, cpu_page_size, rank, page)
                ]
                _placement.place(
                    self._region,
                    ranges,
                    node,
                    member,
                    lambda start, stop: self._region.populate(start, stop, threads=1),
                )
                if barrier is not None:
                    # A worker that pins the memory touches the slots of the others.
                    barrier()
            elif self._creator is None and not by_slot:
                # The pages are there: this fills the page table of this process.
                self._region.populate(threads=options.threads)
            super().__init__(
                self._region,
                rows=num_chunks,
                stride=kv_bytes_per_chunk,
                rank=rank,
                slot=cpu_page_size,
            )
            if options.registrar is not None and rank is not None:
                self.register(options.registrar, tensor, options.registrar_chunk)
        except BaseException:
            self.cleanup()
            raise
        if self._creator is not None:
            _log.info("kvmem: %s of engine %s made %s", member, engine_id, self._region.receipt)
        _log.info(
            "kvmem: %s of engine %s has %.2f GiB after %.2f s",
            member,
            engine_id,
            layout["bytes"] / 2**30,
            time.monotonic() - start,
        )

    @property
    def region(self) -> Region:
        """The memory."""
        return self._region

    def _whole(self) -> Region:
        return self._region

    def cleanup(self) -> None:
        """Releases the memory, and the engine's name if this process has made the memory. Memory
        that something else still views stays mapped, with a warning."""
        self._release()
        if self._creator is not None:
            self._creator.close()
            self._creator = None
        try:
            self._region.close()
        except ExportedError as error:
            _log.warning("kvmem: the memory of this process stays mapped: %s", error)


def _tell_limits(nbytes: int, options: RegionOptions) -> None:
    """Writes every check of this machine that fails into the log."""
    try:
        pinned = options.registrar is not None
        found = doctor(nbytes, pages=options.pages, shared=True, pinned=pinned)
    except KvmemError as error:
        _log.warning("kvmem doctor: %s", error)
        return
    for check in found["checks"]:
        if check["verdict"] in ("warn", "fail"):
            fix = f" (fix: {check['fix']})" if check["fix"] else ""
            _log.warning("kvmem doctor: %s: %s%s", check["name"], check["why"], fix)


class NodeRegion(Rows):
    """All memory of a node, of which an engine uses some ranges as its rows. A chunk may begin at
    every multiple of :data:`GRANULE`, its number is the quotient, and rows overlap: only those that
    the scheduler has reserved or pinned are used. vLLM computes the address of a chunk as base +
    number * stride of the view, which is right for such rows."""

    def __init__(self, cache: NodeCache, rank: int | None, row_bytes: int, slot: int) -> None:
        length = cache.memory_len
        if row_bytes > length:
            raise NodeLayoutError(
                f"a row of {row_bytes} bytes is longer than the memory of the node "
                f"({length} bytes): give kvmem serve more memory",
                requested=row_bytes,
                limit=length,
            )
        if cache.boundary is not None and row_bytes > cache.boundary:
            raise NodeLayoutError(
                f"a row of {row_bytes} bytes is longer than the boundary of the node "
                f"({cache.boundary} bytes), which no value crosses: give kvmem serve a longer "
                "--boundary and --fresh, or the engine shorter chunks",
                requested=row_bytes,
                limit=cache.boundary,
            )
        chunks = (length - row_bytes) // GRANULE + 1
        if chunks > 2**31:
            raise NodeLayoutError(
                f"the memory of the node has {chunks} places for chunks, and vLLM numbers at most "
                f"{2**31}: give kvmem serve at most 8 TiB",
                requested=chunks,
                limit=2**31,
            )
        self._cache: NodeCache | None = cache
        self._memory: Any = (ctypes.c_char * length).from_address(cache.memory_address)
        # The memory stays mapped until the cache is closed. Tensors keep the array.
        self._unmap = weakref.finalize(self._memory, cache.close)
        # When the process ends, tensors may still read it.
        self._unmap.atexit = False
        super().__init__(self._memory, rows=1, stride=length, rank=rank, slot=slot)
        self.num_chunks = chunks
        self._view_stride = GRANULE
        self._bytes_of_a_row = row_bytes
        self.presence: PinnedValue | None = None
        """A value that says that this process has mapped the memory."""

    def iter_worker_slot_ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the whole memory: any part of it may become a row of this engine."""
        yield 0, self.total_size_bytes

    def _row_bytes(self) -> int:
        return self._bytes_of_a_row

    def _whole(self) -> Region:
        return Region.from_buffer(memoryview(self._memory).cast("B"))

    def _uncut(self) -> int:
        # A row is a value of the node, and may begin anywhere between two multiples.
        boundary = self._cache.boundary if self._cache is not None else None
        return boundary or self._nbytes

    def cleanup(self) -> None:
        """Releases the memory. Memory that a tensor still views stays mapped, with a warning."""
        self._release()
        self._memory = None
        if self.presence is not None:
            self.presence.release()
            self.presence = None
        if self._cache is not None and self._unmap.alive:
            _log.warning(
                "kvmem: the memory of the node at %s stays mapped in this process: something "
                "still views it",
                self._cache.path,
            )
        self._cache = None
