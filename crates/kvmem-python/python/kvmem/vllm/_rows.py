"""*Rows*: memory as vLLM sees it, a row for each chunk and a slot for each worker in it.

vLLM has no abstract class for its region. :class:`Rows` has every member that vLLM 0.32 and 0.33
touch, and the same arithmetic: the tests compare both. Memory comes from a subclass.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import InvalidArgumentError


class Rows:
    """Rows over memory that a subclass owns. A row begins every ``stride`` bytes."""

    BLOCK_SIZE_ALIGNMENT: int = mmap.PAGESIZE

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
        self._views: list[Any] = []
        self.total_size_bytes = rows * stride
        self._base = torch.frombuffer(
            memory, dtype=torch.int8, count=self.total_size_bytes, offset=offset
        )

    @property
    def base_tensor(self) -> Any:
        """All bytes, as one tensor of int8."""
        if self._base is None:
            raise RuntimeError("the region has been released")
        return self._base

    def iter_worker_slot_ranges(self) -> Iterator[tuple[int, int]]:
        """Yields offset and length of the worker's slot in each row, rounded out to pages."""
        assert self.rank is not None
        page = self.page_size
        for row in range(self.num_chunks):
            start = row * self._row_stride + self.rank * self.cpu_page_size
            end = -(-(start + self.cpu_page_size) // page) * page
            start -= start % page
            yield start, end - start

    def create_next_worker_view(self, tensor_page_size: int) -> Any:
        """Returns the rows of the worker's next tensor: ``tensor_page_size`` bytes of its slot in
        each row. The slot is used from its start on.

        Raises :class:`InvalidArgumentError` if the slot is full.
        """
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
        each row, from the start of the row on.

        Raises :class:`InvalidArgumentError` if the row is full.
        """
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
        self._views.append(view)
        return view

    def _release(self) -> None:
        """Undoes vLLM's registrations, and lets go of all views."""
        if self.is_pinned and self._base is not None:
            from vllm.v1.kv_offload.cpu.host_register import host_unregister

            for address in reversed(self.pinned_addresses or [self._base.data_ptr()]):
                host_unregister(address)
            self.pinned_addresses.clear()
            self.is_pinned = False
        self._views.clear()
        self._base = None
