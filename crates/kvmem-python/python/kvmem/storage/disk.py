"""*Disk store*: values in files of this process, which finds them again after a restart.

**Staged.** The engine's pages are copied to and from blocks of a small pool, whose memory is
registered with the rings of the files. A transfer that misses its deadline holds its blocks, and
the engine's memory is free at once.

**Direct.** The files are read into and written from the engine's memory, if each value is one
part of it. This is for engines that wait for the end of each call before they reuse memory."""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .._kvmem import Block, DiskTier, Pool, Region, TierSet, parse_size
from ..errors import DiskTierError, InvalidBufferError, KvmemError, OutOfSpaceError
from .data_type import common
from .store import Budget, StoreUnavailableError, Value, ValueStore

_log = logging.getLogger("kvmem.storage")

_ALIGN = 4096
_T = TypeVar("_T")
_Buffers = Sequence[Block | memoryview]
_Transfer = Callable[[list[bytes], _Buffers], _T]


def view(value: Value) -> memoryview:
    """Returns the only part of a value as writable memory."""
    [part] = value.parts
    return memory_at(*part)


def memory_at(address: int, nbytes: int) -> memoryview:
    """Returns memory that the caller holds."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


class DiskStore(ValueStore):
    """Values in one or more files.

    - ``paths``: files or block devices.
    - ``nbytes``: length of each; None leaves the length of existing ones.
    - ``codec``, ``key_file``: as for :class:`~kvmem.DiskTier`.
    - ``staging``: bytes of memory for the copies, half of them for loads; 0: direct transfers,
      without a deadline.
    - ``deadline``, ``retry``: as for :class:`ValueStore`.

    Raises :class:`~kvmem.DiskTierError` if a file cannot be used."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        nbytes: int | str | None = None,
        codec: str = "none",
        key_file: str | Path | None = None,
        staging: int | str = 64 << 20,
        deadline: float = 1.0,
        retry: float = 1.0,
    ) -> None:
        options: Any = {"bytes": nbytes, "codec": codec, "key_file": key_file}
        self._tier: DiskTier | TierSet = (
            DiskTier(paths[0], **options) if len(paths) == 1 else TierSet(paths, **options)
        )
        super().__init__(f"the disk tier at {', '.join(map(str, paths))}", deadline, retry)
        self._closed = False
        self._closing = threading.Lock()
        nbytes_staged = parse_size(staging) if isinstance(staging, str) else staging
        self._direct = nbytes_staged == 0
        self._region: Region | None = None
        self._pools: dict[str, tuple[Pool, threading.Lock]] = {}
        for direction in () if self._direct else ("get", "put"):
            pool = Pool(nbytes_staged // 2, pages="2M,thp,4k")
            self._pools[direction] = pool, threading.Lock()
            try:
                self._tier.register_memory(pool)
            except KvmemError as error:
                _log.info("transfers without fixed buffers: %s", error)

    @property
    def tier(self) -> DiskTier | TierSet:
        """The tier that holds the values."""
        return self._tier

    def register(self, address: int, nbytes: int) -> bool:
        """Registers the memory of an engine with the rings of the files, for direct transfers.
        Returns whether that was possible; otherwise transfers work as before. The memory must stay
        mapped until :meth:`close`."""
        if not (self._direct and address and nbytes):
            return False
        region = Region.from_buffer(memory_at(address, nbytes))
        try:
            self._tier.register_region(region)
        except KvmemError as error:
            _log.info("transfers without fixed buffers: %s", error)
            region.close()
            return False
        self._region = region
        return True

    def _transfers(
        self, direction: str, values: Sequence[Value], budget: Budget, transfer: _Transfer[_T]
    ) -> Iterator[tuple[slice, list[Block], _T]]:
        """Transfers values, staged ones as many at a time as memory is free for. Yields each part
        with its blocks, none for a direct transfer, and the result. Raises
        :class:`StoreUnavailableError` if another call uses the memory until the deadline."""
        if self._direct:
            result = transfer([value.key for value in values], [view(value) for value in values])
            yield slice(0, len(values)), [], result
            return
        pool, lock = self._pools[direction]
        if not lock.acquire(timeout=budget.left()):
            raise StoreUnavailableError(
                f"{self.backend.name}: another call used the staging memory until the deadline",
                limit=budget.seconds,
            )
        try:
            for part, blocks in self._rounds(pool, values):
                keys = [value.key for value in values[part]]
                if direction == "put":
                    for value, block in zip(values[part], blocks, strict=True):
                        value.copy_to(block.ptr)
                yield part, blocks, self.backend.call(partial(transfer, keys, blocks), budget)
                for block in blocks:
                    block.free()
        finally:
            lock.release()

    def _rounds(self, pool: Pool, values: Sequence[Value]) -> Iterator[tuple[slice, list[Block]]]:
        """Yields as many values as staging memory is free for, and a block for each."""
        start = 0
        while start < len(values):
            blocks: list[Block] = []
            try:
                for value in values[start:]:
                    blocks.append(pool.allocate(value.nbytes, align=_ALIGN))
            except OutOfSpaceError as error:
                if not blocks:
                    nbytes = values[start].nbytes
                    if nbytes > pool.capacity:
                        _log.error(
                            "a page of %d bytes cannot be staged, because %d bytes are for each "
                            'direction: set "staging" to at least %d',
                            nbytes,
                            pool.capacity,
                            4 * nbytes,
                        )
                    else:
                        _log.debug("a page is a miss: %s", error)
                    start += 1
                    continue
            yield slice(start, start + len(blocks)), blocks
            start += len(blocks)

    def _get(self, values: Sequence[Value], found: list[bool], budget: Budget) -> None:
        for part, blocks, lengths in self._transfers("get", values, budget, self._read):
            for at, (value, length) in enumerate(zip(values[part], lengths, strict=True)):
                if length == value.nbytes:
                    if blocks:
                        value.copy_from(blocks[at].ptr)
                    found[part.start + at] = True

    def _read(self, keys: list[bytes], buffers: _Buffers) -> list[int | None]:
        try:
            return self._tier.fetch_into(keys, buffers)
        except InvalidBufferError:
            # A value is longer than it should be: it was stored by another engine.
            lengths: list[int | None] = [None] * len(keys)
            fits = [
                index
                for index, (key, buffer) in enumerate(zip(keys, buffers, strict=True))
                if self._tier.len_of(key) == len(buffer)
            ]
            read = self._tier.fetch_into([keys[i] for i in fits], [buffers[i] for i in fits])
            for index, length in zip(fits, read, strict=True):
                lengths[index] = length
            return lengths

    def _put(self, values: Sequence[Value], done: list[int | None], budget: Budget) -> None:
        todo = []
        for index, value in enumerate(values):
            if self._tier.len_of(value.key) == value.nbytes:
                done[index] = 0
            else:
                todo.append(index)
        chosen = [values[index] for index in todo]
        write = partial(self._write, common(value.data_type for value in chosen))
        for part, _, failed in self._transfers("put", chosen, budget, write):
            for index in todo[part]:
                done[index] = None if values[index].key in failed else values[index].nbytes

    def _write(
        self, data_type: str, keys: list[bytes], buffers: _Buffers
    ) -> set[int | bytes | str]:
        """Stores values, and returns the keys of those that were not stored."""
        try:
            self._tier.store(zip(keys, buffers, strict=True), data_type=data_type)
        except (OutOfSpaceError, DiskTierError) as error:
            _log.warning("values were not stored: %s", error)
            return set(keys if error.failed is None else error.failed)
        return set()

    def _lengths(self, keys: Sequence[bytes], found: list[int | None], budget: Budget) -> None:
        # The index is in memory.
        found[:] = [self._tier.len_of(key) for key in keys]

    def _remove(self, keys: list[bytes]) -> None:
        self._tier.remove(keys)

    def _clear(self) -> None:
        self._tier.clear()

    @property
    def capacity(self) -> int:
        """Number of bytes of the files for values."""
        return self._tier.stats().capacity

    @property
    def used(self) -> int:
        """Number of bytes of the files that values use, padding included."""
        return self._tier.stats().used

    def close(self) -> None:
        """Writes the index, so that the next process opens the files fast, and closes them."""
        with self._closing:
            if self._closed:
                return
            self._closed = True

        def last() -> None:
            with ExitStack() as stack:
                for pool, _ in self._pools.values():
                    stack.callback(pool.close)
                if self._region is not None:
                    stack.callback(self._region.close)
                stack.callback(self._tier.close)
                if self._region is not None:
                    stack.callback(self._tier.deregister_region, self._region)
                self._tier.checkpoint()

        # A process that ends earlier leaves a journal, from which the next one reads the same.
        self.backend.close(last, max(self.deadline, 10.0))
