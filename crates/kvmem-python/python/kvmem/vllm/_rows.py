"""*Rows*: memory as vLLM sees it, a row for each chunk and a slot for each worker in it.

vLLM has no abstract class for its region. :class:`Rows` has every member that vLLM 0.32 and 0.33
touch, and the same arithmetic: the tests compare both. vLLM pins the ranges of
``total_size_bytes`` or ``iter_worker_slot_ranges``. After :meth:`Rows.register` the first is 0 and
the second yields nothing: vLLM then makes no call to the driver, and finds the memory pinned."""

import logging
import math
import mmap
import time
from collections.abc import Iterator
from typing import Any

import torch

from .._kvmem import Region, Registration, parse_size
from .._tensor import tensor as tensor_of
from ..errors import InvalidArgumentError

_log = logging.getLogger("vllm.kvmem")

_HUGEPAGE = 2 << 20
_PIECE = 1 << 30
"""Bytes that one call pins, about: neighbours on the driver's locks wait for one call."""
_MAX_PIECE = 64 << 30
"""vLLM's own limit of a call."""


class Rows:
    """Rows over memory that a subclass owns. A row begins every ``stride`` bytes."""

    BLOCK_SIZE_ALIGNMENT: int = mmap.PAGESIZE

    # Of a region that fails before it has rows.
    is_pinned: bool = False
    _registration: Registration | None = None
    _base: Any = None
    _views: tuple[()] | list[Any] = ()

    def __init__(
        self, memory: Any, *, rows: int, stride: int, rank: int | None, slot: int, offset: int = 0
    ) -> None:
        self.page_size = mmap.PAGESIZE
        self.num_chunks = rows
        self.rank = rank
        self.cpu_page_size = slot
        self.is_pinned = False
        self.pinned_addresses: list[int] = []
        self._row_stride = stride
        self._view_stride = stride
        self._worker_offset = (rank or 0) * slot
        self._worker_area_end = self._worker_offset + slot
        self._canonical_offset = 0
        self._views = []
        self._nbytes = rows * stride
        # Views of it hold the memory.
        self._base = tensor_of(memory, torch.int8, self._nbytes, offset=offset)

    @property
    def total_size_bytes(self) -> int:
        """Length of the memory, of which vLLM pins all. 0: kvmem has pinned it."""
        return 0 if self._registration is not None else self._nbytes

    def register(self, registrar: str, tensor: Any, chunk: int | str | None = None) -> None:
        """Pins the memory for the GPU of a tensor, in place of vLLM. No chunk lies in two pieces.
        Raises :class:`kvmem.NotAvailableError` without a driver, and
        :class:`kvmem.RegistrationError`; nothing is pinned then. That is also so where the driver
        pins less with one call than a piece has: leave ``kvmem.registrar`` out, and vLLM pins the
        memory."""
        index = getattr(getattr(tensor, "device", None), "index", None)
        device = registrar if index is None else f"{registrar}:{index}"
        start = time.monotonic()
        piece = self._piece(parse_size(chunk) if isinstance(chunk, str) else chunk)
        registration = Registration(self._whole(), device, populate=None, chunk=piece)
        boundary = registration.boundary
        if boundary is not None and boundary % self._uncut():
            # A piece ends at the end of a page. No row is cut where there is one piece.
            registration.close()
            registration = Registration(self._whole(), device, populate=None, chunk=self._nbytes)
            boundary = registration.boundary
        if boundary is not None:
            assert boundary % self._uncut() == 0, f"pieces of {boundary} bytes cut rows"
        self._registration = registration
        _log.info(
            "kvmem: %.2f GiB pinned for %s in pieces of %s bytes, in %.2f s",
            self._nbytes / 2**30,
            device,
            "all" if boundary is None else boundary,
            time.monotonic() - start,
        )

    def cleanup(self) -> None:
        """Releases the memory."""
        raise NotImplementedError

    def _whole(self) -> Region:
        """Returns the memory as a region."""
        raise NotImplementedError

    def _piece(self, wanted: int | None) -> int:
        """Returns the length of the pieces that are pinned: whole rows and whole hugepages."""
        unit = math.lcm(self._uncut(), _HUGEPAGE)
        if unit > _MAX_PIECE or unit >= self._nbytes:
            return max(self._nbytes, 1)
        return max((wanted or _PIECE) // unit, 1) * unit

    def _uncut(self) -> int:
        """Returns a length of which no row crosses a multiple."""
        return self._row_stride

    @property
    def base_tensor(self) -> Any:
        """All bytes, as one tensor of int8."""
        if self._base is None:
            raise RuntimeError("the region has been released")
        return self._base

    def iter_worker_slot_ranges(self) -> Iterator[tuple[int, int]]:
        """Yields offset and length of the worker's slot in each row, rounded out to pages."""
        assert self.rank is not None
        if self._registration is not None:
            return
        page = self.page_size
        for row in range(self.num_chunks):
            start = row * self._row_stride + self.rank * self.cpu_page_size
            end = -(-(start + self.cpu_page_size) // page) * page
            start -= start % page
            yield start, end - start

    def create_next_worker_view(self, tensor_page_size: int) -> Any:
        """Returns the rows of the worker's next tensor: ``tensor_page_size`` bytes of its slot in
        each row. The slot is used from its start on. Raises :class:`InvalidArgumentError` if the
        slot is full."""
        if self.rank is None:
            raise InvalidArgumentError("the scheduler has no slot: only workers make views of one")
        offset = self._worker_offset
        if offset + tensor_page_size > self._worker_area_end:
            raise InvalidArgumentError(
                f"a tensor of {tensor_page_size} bytes does not fit into the slot of worker "
                f"{self.rank}, of which {self._worker_area_end - offset} of {self.cpu_page_size} "
                "bytes are free"
            )
        self._worker_offset += tensor_page_size
        return self._view(offset, tensor_page_size)

    def create_next_canonical_view(self, tensor_page_size: int) -> Any:
        """Returns the rows of the next tensor that all workers share: ``tensor_page_size`` bytes of
        each row, from the start of the row on. Raises :class:`InvalidArgumentError` if the row is
        full."""
        offset = self._canonical_offset
        if offset + tensor_page_size > self._row_bytes():
            raise InvalidArgumentError(
                f"a tensor of {tensor_page_size} bytes does not fit into a row of "
                f"{self._row_bytes()} bytes, of which {self._row_bytes() - offset} are free"
            )
        self._canonical_offset += tensor_page_size
        return self._view(offset, tensor_page_size)

    def create_kv_memoryview(self) -> memoryview:
        """Returns all rows as a view of two dimensions: tiers below address a chunk by its row."""
        array = self.base_tensor.view(self.num_chunks, self._row_stride).numpy()
        assert array.ctypes.data == self.base_tensor.data_ptr(), "the view is a copy"
        return memoryview(array)

    def _row_bytes(self) -> int:
        return self._row_stride

    def _view(self, offset: int, nbytes: int) -> Any:
        view = torch.as_strided(
            self.base_tensor,
            size=(self.num_chunks, nbytes),
            stride=(self._view_stride, 1),
            storage_offset=offset,
        )
        self._views = [*self._views, view]
        return view

    def _release(self) -> None:
        """Undoes the registrations, and lets go of all views."""
        if self._registration is not None:
            self._registration.close()
            self._registration = None
            self.is_pinned = False
        if self.is_pinned and self._base is not None:
            from vllm.v1.kv_offload.cpu.host_register import host_unregister

            for address in reversed(self.pinned_addresses or [self._base.data_ptr()]):
                host_unregister(address)
            self.pinned_addresses.clear()
            self.is_pinned = False
        self._views = ()
        self._base = None
