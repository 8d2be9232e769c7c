"""The compiled half. Every size is bytes, as ``int`` or as a text such as ``"64GiB"``.

See the package for the conventions.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeAlias, final, overload, type_check_only

from .data import (
    BlockReference,
    BumpStats,
    Diagnosis,
    Key,
    KvCacheStats,
    Metrics,
    Report,
    Residency,
)
from .spill import Spill, Spills

if sys.version_info >= (3, 12):
    from collections.abc import Buffer as _Buffer
else:
    # Before 3.12 arrays cannot say to a type checker that they are buffers.
    _Buffer: TypeAlias = Any

_Size: TypeAlias = SupportsIndex | str
_Words: TypeAlias = str | Sequence[str]
_Threads: TypeAlias = int | str | None
_Progress: TypeAlias = Callable[[int, int], object]
_Name: TypeAlias = int | bytes | str

__all__ = [
    "AddressManager",
    "Allocation",
    "AllocationBatch",
    "AttachedBlock",
    "AttachedPool",
    "Block",
    "BlockBatch",
    "BumpArena",
    "Hold",
    "KvCache",
    "Lease",
    "OffsetAllocator",
    "Piece",
    "Pinned",
    "Pool",
    "Region",
    "Registration",
    "Reservation",
    "__version__",
    "doctor",
    "mount_report",
    "parse_size",
]

__version__: str

@type_check_only
class _Memory:
    """What has memory: the buffer protocol and DLPack share it. Each view keeps it, and while
    there are any it cannot be freed.
    """

    @property
    def ptr(self) -> int:
        """The first address."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Shares the bytes, as one dimension of uint8. Versioned from ``max_version=(1, 0)`` on;
        before, what is read-only is refused.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the bytes are: (1, 0), the processor's memory."""

@type_check_only
class _Manager:
    """A ``with`` ends it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        raised: BaseException | None = None,
        trace: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Region(_Memory, _Manager):
    """One contiguous range of memory: mapped, placed, and as resident as it was made.

    Options:

    - ``size``: bytes, rounded up to whole pages.
    - ``pages``: kinds of pages to try, first choice first: ``1G``, ``2M``, ``thp``, ``4k``.
      None: ``2M,thp,4k``.
    - ``strict``: fail if the first kind cannot take all of it, instead of stepping down.
    - ``numa``: ``bind:0,2-3`` or ``interleave:0-3``. None: wherever the kernel puts the pages.
    - ``populate``: make all pages resident now: ``"auto"`` or a number of threads.
      None: each page becomes resident when it is first touched.
    - ``shared``: a sealed memory file that other processes can attach. Otherwise the memory
      belongs to this process alone.
    - ``guard_pages``: a page without access before and behind the region.
    - ``dont_fork``: a forked child has nothing at these addresses.
    - ``dont_dump``: core dumps leave the region out.
    - ``progress``: called with ``(done, total)`` in bytes while pages are populated.
    - ``time_limit``: seconds that populating may take.

    Raises :class:`MappingError`, :class:`BadValueError`, :class:`CancelledError` and
    :class:`TimeLimitError`. Then nothing is left mapped.
    """

    def __new__(
        cls,
        size: _Size,
        *,
        pages: _Words | None = None,
        strict: bool = False,
        numa: str | None = None,
        populate: _Threads = None,
        shared: bool = False,
        guard_pages: bool = False,
        dont_fork: bool = True,
        dont_dump: bool = True,
        progress: _Progress | None = None,
        time_limit: float | None = None,
    ) -> Self: ...
    @staticmethod
    def attach(fd: int, *, size: _Size | None = None) -> Region:
        """Maps the memory of another process by a descriptor, which stays the caller's."""

    @staticmethod
    def from_buffer(buffer: _Buffer) -> Region:
        """A region over the bytes of another object, which is kept and exported as long as the
        region is.
        """

    @property
    def receipt(self) -> Report:
        """What it is made of, as it was when it was mapped."""

    def populate(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        threads: _Threads = None,
        progress: _Progress | None = None,
        time_limit: float | None = None,
    ) -> float:
        """Makes a range resident, by as many threads as turn out fastest unless a number is given;
        returns the seconds.
        """

    def populate_elsewhere(self, *, threads: _Threads = None) -> int:
        """Makes its pages resident in the other mappings that this process has of its memory file,
        such as those of an engine that was given the descriptor: else each page is a fault when it
        is first touched there. Returns how many bytes those mappings have.
        """

    def residency(self, start: int = 0, stop: int | None = None) -> Residency:
        """How much of a range is resident now."""

    def discard(self, start: int = 0, stop: int | None = None) -> None:
        """Gives the pages of a range back; what is read there afterwards is zero. Not of what is
        registered (:class:`InUseError`).
        """

    def fileno(self) -> int:
        """The descriptor of shared memory, which belongs to the region."""

    def close(self) -> None:
        """Gives the memory up: it is unmapped when nobody else has it. Raises
        :class:`ExportedError` while there are views.
        """

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""


@final
class BumpArena:
    """Hands out pieces of a region, by moving a cursor. Lock-free; nothing is freed alone."""

    def __new__(cls, region: Region) -> Self: ...
    def allocate(self, nbytes: _Size, *, align: int = 64) -> Piece:
        """The next ``nbytes`` bytes whose address is a multiple of ``align``."""

    def reset(self) -> None:
        """Makes all of it free again. Raises :class:`ExportedError` while there are pieces."""

    def owns(self, address: int) -> bool:
        """Whether an address is one of this memory."""

    @property
    def stats(self) -> BumpStats:
        """What is used and left."""

    @property
    def region(self) -> Region:
        """The memory."""

    @property
    def capacity(self) -> int:
        """Bytes of the memory."""


@final
class Piece(_Memory):
    """A piece of an arena's memory, which it keeps."""

    @property
    def offset(self) -> int:
        """Where it begins in the arena's memory, in bytes."""

@final
class Registration(_Manager):
    """A region, registered with devices: all of it with all of them, or an exception and nothing.

    Options:

    - ``region``: the memory. The registration keeps it.
    - ``devices``: one or several of ``io_uring``, ``io_uring:N``, ``mlock``, ``verbs``,
      ``verbs:NIC``, ``cuda``, ``cuda:N``, ``nixl`` and ``nixl:BACKEND``.
    - ``policy``: ``auto``, ``sequential``, ``parallel`` or ``parallel:N``. None: as the
      environment says, otherwise ``auto``.
    - ``populate``: makes pages resident before they are registered: ``"auto"`` or a number of
      threads. None: the first device does it, alone.
    - ``chunk``: the most bytes that one key covers. None: as the devices take it best.
    - ``progress``: called with ``(done, total)`` in bytes; a byte counts once when it is
      resident, and once for each device that has it.
    - ``time_limit``: seconds that all of it may take.

    Raises :class:`NotAvailableError`, :class:`RegistrationError`, :class:`MappingError`,
    :class:`BadValueError`, :class:`CancelledError` and :class:`TimeLimitError`.
    """

    def __new__(
        cls,
        region: Region,
        devices: _Words,
        *,
        policy: str | None = None,
        populate: _Threads = "auto",
        chunk: _Size | None = None,
        progress: _Progress | None = None,
        time_limit: float | None = None,
    ) -> Self: ...
    @property
    def region(self) -> Region:
        """The memory."""

    @property
    def devices(self) -> list[str]:
        """The devices' names, in order."""

    @property
    def outcome(self) -> Report:
        """What registering did, and what was chosen on what grounds."""

    @property
    def boundary(self) -> int | None:
        """What does not straddle a multiple of it has one key with each device; None: one key
        covers all.
        """

    def key_for(self, device: str, start: int = 0, stop: int | None = None) -> Key:
        """The key with which a device reaches all of a range."""

    def close(self) -> int:
        """Gives all keys back; returns how many there were. A second time does nothing."""

    @property
    def closed(self) -> bool:
        """Whether the keys have been given back."""


@final
class OffsetAllocator:
    """Hands out ranges of an abstract space; never touches bytes. Goes on in a forked child, as
    a copy.

    Options:

    - ``capacity``: bytes of the space, from 1 to 2**63.
    - ``boundary``: no range straddles a multiple of this number of bytes, or is longer.
    - ``max_ranges``: the most ranges, used and free, that the allocator keeps: 16 or more. They
      take about 50 bytes each. None: about 2**32.
    - ``placement``: ``renewal`` or ``best-fit``.

    Raises :class:`BadValueError`.
    """

    def __new__(
        cls,
        capacity: _Size,
        *,
        boundary: _Size | None = None,
        max_ranges: int | None = None,
        placement: str = "renewal",
    ) -> Self: ...
    def allocate(self, size: _Size, *, align: int | None = None) -> Allocation:
        """A range of exactly ``size`` bytes. Raises :class:`OutOfSpaceError`."""

    def allocate_batch(self, size: _Size, n: int) -> AllocationBatch:
        """``n`` ranges of ``size`` bytes each, all of them or none."""

    def allocate_scattered(self, total: _Size, max_ranges: int) -> list[Allocation]:
        """``total`` bytes in at most ``max_ranges`` ranges, as few and as long as can be had."""

    def free_batch(self, allocations: AllocationBatch | Iterable[Allocation]) -> None:
        """Frees many at once, neighbours joined first; all of them, or none if one cannot be."""

    def grow(self, capacity: _Size) -> None:
        """Moves the end of the space up."""

    def shrink_to(self, capacity: _Size) -> None:
        """Moves the end of the space down. Raises :class:`InUseError` if something in use lies
        behind it.
        """

    @property
    def capacity(self) -> int:
        """Length of the space in bytes."""

    @property
    def boundary(self) -> int | None:
        """No range straddles a multiple of this number of bytes. None: there is no boundary."""

    @property
    def largest_free_hint(self) -> int:
        """An upper bound of the longest free range, without the lock."""

    def metrics(self) -> Metrics:
        """Figures of the space."""

    def map(self) -> list[tuple[int, int, bool]]:
        """The whole space in order of addresses: offset, size, whether it is used."""

    def bins(self) -> list[tuple[int, int, int, int]]:
        """The free ranges by size: least and greatest size of the bin, ranges, bytes."""

    def check(self) -> None:
        """Checks the books against their invariants: for tests."""

@final
class Allocation(_Manager):
    """A range that somebody has, until it is freed or forgotten."""

    @property
    def offset(self) -> int:
        """Where it begins, in bytes."""

    @property
    def size(self) -> int:
        """Its length in bytes: exactly what was asked for."""

    def free(self) -> None:
        """Frees it. A second time raises :class:`ClosedError`."""

    @property
    def freed(self) -> bool:
        """Whether it has been freed."""

    def shrink(self, size: _Size) -> None:
        """Gives back the tail."""

    def extend(self, size: _Size) -> None:
        """Takes in free bytes that lie behind."""

@final
class AllocationBatch(_Manager):
    """Many ranges of one size."""

    def __len__(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of each."""

    @property
    def offsets(self) -> memoryview[int]:
        """Where each begins: read-only, format ``Q``, as ``array('Q')``. It stays good when the
        batch has been freed.
        """

    def free(self) -> None:
        """Frees all of them."""

    @property
    def freed(self) -> bool:
        """Whether they have been freed, or taken apart."""

    def split(self) -> list[Allocation]:
        """The allocations one by one; the batch has none of them afterwards."""

@final
class AddressManager:
    """A heap of addresses from 0 on, with the face of LMCache's class of this name: see
    :mod:`kvmem.lmcache`.

    ``align_bytes``, a power of two: what addresses and sizes are multiples of. Goes on in a
    forked child, as a copy.
    """

    ALIGN_BYTES: int

    def __new__(cls, size: int, align_bytes: int = 4096) -> Self: ...
    def compute_aligned_size(self, raw_size: int) -> int:
        """``raw_size``, rounded up to a multiple of the alignment."""

    def allocate(self, size: int) -> tuple[int, int]:
        """A range of at least ``size`` bytes: where it begins, and how long it is. O(1).

        Raises :class:`BadValueError` below 1, and :class:`HeapFullError`, which is a
        ``RuntimeError``.
        """

    def batched_allocate(self, size: int, batch_size: int) -> list[tuple[int, int]]:
        """``batch_size`` ranges of at least ``size`` bytes each, all of them or none, in order of
        addresses.

        Raises as ``allocate``, and :class:`BadBatchError`, which is a ``RuntimeError``, below 0 of
        them.
        """

    def free(self, address: int, size: int) -> None:
        """Gives ``size`` bytes from ``address`` on back: one range, several that follow each other,
        or a part.

        O(1) for each; O(ranges) if ``address`` is within a range. Raises :class:`BadValueError` if
        not all of it is allocated, or not aligned; nothing is freed then.
        """

    def sbrk(self, size: int) -> None:
        """Moves the end of the heap up by ``size`` bytes, rounded up to a multiple of the
        alignment.
        """

    def get_heap_size(self) -> int:
        """Length of the heap in bytes."""

    def get_free_size(self) -> int:
        """Bytes that are not allocated."""

    @property
    def total_allocated_size(self) -> int:
        """Bytes that are allocated."""

    def check_consistency(self) -> bool:
        """Whether the books agree with each other: for tests. O(ranges)."""

    def map(self) -> list[tuple[int, int, bool]]:
        """The whole heap in order of addresses: address, size, whether it is used."""

@final
class Pool(_Manager):
    """Memory that is mapped, populated and registered, and handed out in blocks.

    Options:

    - ``size``: bytes, rounded up to whole pages; to whole parts, if the pool can grow.
    - ``max_size``: the most bytes that the pool can grow to. None: its size. The addresses are
      reserved at once.
    - ``pages``: kinds of pages to try, first choice first: ``1G``, ``2M``, ``thp``, ``4k``.
      None: ``2M,thp,4k``.
    - ``strict``: fail if the first kind cannot take all of it, instead of stepping down.
    - ``numa``: ``bind:0,2-3`` or ``interleave:0-3``. None: wherever the kernel puts the pages.
    - ``shared``: a sealed memory file that other processes can attach.
    - ``guard_pages``: a page without access before and behind the pool.
    - ``populate``: makes pages resident before blocks are handed out: ``"auto"`` or a number of
      threads. None: a first touch may find no memory, which ends the process.
    - ``devices``: all of the pool is registered with each of them: ``io_uring``,
      ``io_uring:N``, ``mlock``, ``verbs``, ``verbs:NIC``, ``cuda``, ``cuda:N``, ``nixl`` and
      ``nixl:BACKEND``. None: with no device.
    - ``policy``: how devices are called: ``auto``, ``sequential``, ``parallel`` or
      ``parallel:N``. None: as the environment says, otherwise ``auto``.
    - ``boundary``: no block straddles a multiple of this number of bytes, or is longer. None: as
      the devices take it best; 1 GiB, if the pool can grow or is made ready in the background.
    - ``hot_sizes``: blocks of these sizes come from caches of the calling thread from the
      beginning.
    - ``learn``: sizes that are requested often become hot.
    - ``stranded``: the most bytes in the caches of all threads together. None: 1/32 of the pool.
    - ``in_background``: return once the memory is mapped, and make it ready part by part.
    - ``quarantine``: keep parts that cannot be populated or registered from use, instead of
      failing. In the background this is always so.
    - ``progress``: called with ``(done, total)`` in bytes; a byte counts once when it is
      resident, and once for each device that has it.

    Raises :class:`MappingError`, :class:`RegistrationError`, :class:`BadValueError` and
    :class:`CancelledError`. Then nothing is left mapped.
    """

    def __new__(
        cls,
        size: _Size,
        *,
        max_size: _Size | None = None,
        pages: _Words | None = None,
        strict: bool = False,
        numa: str | None = None,
        shared: bool = False,
        guard_pages: bool = False,
        populate: _Threads = "auto",
        devices: _Words | None = None,
        policy: str | None = None,
        boundary: _Size | None = None,
        hot_sizes: Sequence[_Size] | None = None,
        learn: bool = True,
        stranded: _Size | None = None,
        in_background: bool = False,
        quarantine: bool = False,
        progress: _Progress | None = None,
    ) -> Self: ...
    def allocate(self, nbytes: _Size, *, align: int | None = None) -> Block:
        """A block of exactly ``nbytes`` bytes; its address is a multiple of ``align``, a power of
        two.

        What stands in it is what the last user left, or zeros. Raises :class:`OutOfSpaceError`,
        :class:`NotReadyError` while more is being made ready, and :class:`BadValueError`.
        """

    def allocate_batch(self, nbytes: _Size, n: int) -> BlockBatch:
        """``n`` blocks of ``nbytes`` bytes each, all of them or none, in one object."""

    def allocate_scattered(self, total: _Size, max_blocks: int) -> list[Block]:
        """``total`` bytes in at most ``max_blocks`` blocks, as few and as long as can be had."""

    def free_batch(self, blocks: BlockBatch | Iterable[Block]) -> None:
        """Frees many at once, neighbours joined first; all of them, or none if one cannot be."""

    @property
    def ptr(self) -> int:
        """The first address: a block at offset n begins n bytes further on."""

    @property
    def nbytes(self) -> int:
        """Bytes of addresses from ``ptr`` on: what the pool can grow to. Without ``max_size`` that
        is its capacity.
        """

    @property
    def capacity(self) -> int:
        """Bytes that blocks can have, when all of it is ready."""

    @property
    def ready_bytes(self) -> int:
        """Bytes that can be used, whether or not they are in use."""

    @property
    def under_way(self) -> bool:
        """Whether parts are still being made ready."""

    def wait_ready(self, nbytes: _Size | None = None, timeout: float | None = None) -> int:
        """Waits until so many bytes (None: all) are ready, no more will be, or the seconds are
        over; returns how many are.
        """

    def cancel(self) -> None:
        """Ends what goes on in the background: no further part is made ready. The pool cannot grow
        then.
        """

    def grow_to(self, size: _Size) -> None:
        """The pool is at least so long afterwards, in whole parts, which are populated and
        registered first.
        """

    def shrink_to(self, size: _Size) -> int:
        """As short as whole parts allow, but not shorter than this; returns by how many bytes.
        Raises :class:`InUseError`.
        """

    def shrink(self) -> int:
        """As ``shrink_to``, as far as what is in use allows."""

    def trim(self) -> None:
        """Takes back what threads have cached, so that neighbours join."""

    def condemn(self, block: Block, why: str) -> None:
        """Keeps the bytes of a block from use for as long as the pool: for blocks that have turned
        out to be bad.
        """

    def report(self) -> Report:
        """What the pool is made of and how it came to be, as it is now."""

    def metrics(self) -> Metrics:
        """Figures of what is ready."""

    def stats(self) -> dict[str, Any]:
        """What is cached, and what has been done."""

    def map(self) -> list[tuple[int, int, str]]:
        """All of the pool in order of addresses: offset, size, and ``used``, ``cached`` or
        ``free``.
        """

    @property
    def devices(self) -> list[str]:
        """The devices' names, in order."""

    @property
    def boundary(self) -> int | None:
        """No block straddles a multiple of this number of bytes. None: there is no boundary."""

    @property
    def number(self) -> int | None:
        """By what references name this pool; None: its memory is private."""

    def fileno(self) -> int:
        """A descriptor of a shared pool's memory, to read and write, which belongs to the pool.
        Also ``/proc/PID/fd/N``.
        """

    def share(self, *, writable: bool = False) -> int:
        """A new descriptor of a shared pool's memory, which belongs to the caller: to be sent to
        another process. Unless it is ``writable``, a process of another user can only read by it;
        one of the same user, or of root, can still open it for writing by ``/proc``.
        """

    def populate_elsewhere(self, *, threads: _Threads = None) -> int:
        """Makes its pages resident in the other mappings that this process has of its memory file,
        such as those of an engine that was given the descriptor: else each page is a fault when it
        is first touched there. Returns how many bytes those mappings have.
        """

    def hold(self) -> Hold:
        """Keeps it from being closed or made shorter, for engines that have registered its memory:
        :class:`ExportedError` meanwhile.
        """

    def check(self) -> None:
        """Checks the books against their invariants: for tests."""

    def close(self) -> None:
        """Gives the pool up. Blocks stay good; the memory, and its registration, go with the last
        of them.
        """

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""


@final
class Block(_Memory, _Manager):
    """Bytes of a pool, as many as were asked for, until it is freed or forgotten. It may
    outlive its pool.
    """

    @property
    def offset(self) -> int:
        """Where it begins in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """The key with which a device reaches all of it."""

    def keys(self) -> dict[str, Key]:
        """The key of each device, by its name."""

    def reference(self) -> BlockReference:
        """It by plain data, for a process that has attached the pool. It says where the bytes are,
        and does not keep them.
        """

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of another object in; returns how many.

        Releases the GIL for large ones.
        """

    def shrink(self, nbytes: _Size) -> None:
        """Gives back the tail. Not while there are views."""

    def extend(self, nbytes: _Size) -> None:
        """Takes in free bytes that lie behind. Not while there are views."""

    def free(self) -> None:
        """Frees it. Raises :class:`ExportedError` while there are views, and :class:`ClosedError` a
        second time.
        """

    @property
    def freed(self) -> bool:
        """Whether it has been freed."""


@final
class BlockBatch(_Manager):
    """Many blocks of one size."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of each."""

    @property
    def offsets(self) -> memoryview[int]:
        """Where each begins in the pool: read-only, format ``Q``, as ``array('Q')``."""

    @property
    def ptrs(self) -> memoryview[int]:
        """The first address of each, likewise."""

    def free(self) -> None:
        """Frees all of them."""

    @property
    def freed(self) -> bool:
        """Whether they have been freed, or taken apart."""

    def hold(self) -> Hold:
        """Keeps them from being freed or taken apart: :class:`ExportedError` meanwhile."""

    def split(self) -> list[Block]:
        """The blocks one by one; the batch has none of them afterwards."""

@final
class Hold(_Manager):
    """Keeps a pool or a batch as it is, until it is released or forgotten."""

    def release(self) -> None:
        """Lets go of it. A second time does nothing."""

    @property
    def released(self) -> bool:
        """Whether it has been released."""


@final
class AttachedPool(_Manager):
    """The memory of a pool of another process, by its descriptor, which stays the caller's."""

    def __new__(cls, fd: int, *, writable: bool = False) -> Self: ...
    def block(self, reference: tuple[int, int, int]) -> AttachedBlock:
        """The block that a reference names. The process that has it keeps it, until this one has
        said that it is done.
        """

    @property
    def number(self) -> int:
        """By what references name the pool."""

    @property
    def nbytes(self) -> int:
        """Its length in bytes, what is not in use included."""

    @property
    def writable(self) -> bool:
        """Whether it can be written."""

    def close(self) -> None:
        """Gives the memory up; blocks of it stay good."""

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""


@final
class AttachedBlock(_Memory):
    """A block of another process, by its bytes here. It keeps the memory, not the block."""

    @property
    def offset(self) -> int:
        """Where it begins in its pool, in bytes."""

    @property
    def writable(self) -> bool:
        """Whether it can be written."""

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of another object in; returns how many."""

@final
class KvCache(_Manager):
    """Values under keys, in blocks of a pool: found by any thread, pinned while they are used,
    evicted when room is needed.

    Keys are ``int`` (127 bits and a sign), ``bytes`` or ``str``; keys of different types never
    equal each other. A cache is true, also when it is empty.

    Options:

    - ``pool``: the blocks come from it. It may have other users.
    - ``max_bytes``: the most bytes held. None: what finds room in the pool.
    - ``max_blocks``: the most values held. None: about 2**32.
    - ``watermarks``: ``(low, high)`` in bytes: an insertion that leaves more than ``high`` bytes
      evicts down to ``low``. None: evict only for the value to be inserted.
    - ``eviction``: ``lru`` or ``scan-resistant``.
    - ``shards``: the parts that keys are divided into, rounded up to a power of two. None: four
      for each processor, at least 16; fewer if ``max_blocks`` is small.
    - ``spill``: a lower tier for what is evicted, such as :class:`kvmem.mooncake.Store`: see
      :mod:`kvmem.spill`.

    Raises :class:`BadValueError`.
    """

    def __new__(
        cls,
        pool: Pool,
        *,
        max_bytes: _Size | None = None,
        max_blocks: int | None = None,
        watermarks: tuple[_Size, _Size] | None = None,
        eviction: str = "lru",
        shards: int | None = None,
        spill: Spills | None = None,
    ) -> Self: ...
    def insert(self, key: _Name, value: _Buffer, *, depth: SupportsIndex = 0) -> None:
        """Copies a value into a block and puts it under ``key``. Evicts until it fits.

        Raises :class:`OutOfSpaceError` if it cannot fit, and what a lower tier raises that is no
        ``Exception``, such as ``KeyboardInterrupt``. Nothing is put in then, unless the tier was
        called to evict down to the low watermark, which comes after.

        ``depth`` is how many blocks of the prefix come before the value: blocks at the end of a
        prefix are evicted before those at its start.
        """

    def reserve(self, key: _Name, nbytes: _Size, *, depth: SupportsIndex = 0) -> Reservation:
        """Makes room for a value of ``nbytes`` bytes, to be written in place and then committed.

        Raises as ``insert``.
        """

    def get(self, key: _Name) -> Pinned | None:
        """The value under ``key``, pinned; it counts as used. With a spill, what is not here is
        fetched from there.
        """

    def lease(self, key: _Name) -> Lease | Pinned | None:
        """The right to put in what is fetched from a lower tier. The value, if there is one; None
        if what the lower tier has may be old, so take it for a miss.

        Take it before the lower tier is asked, and put in by ``reservation.commit(lease=…)``.
        """

    def remove(self, key: _Name) -> Pinned | None:
        """Takes the value under ``key`` out, and returns it."""

    def __contains__(self, key: _Name, /) -> bool: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int:
        """Values held, those being written included."""

    def clear(self) -> None:
        """Takes every value out. Pins stay good."""

    def evict_to(self, nbytes: _Size) -> int:
        """Evicts until at most ``nbytes`` bytes are held, or nothing is left that can go.

        Returns how many bytes are held. Raises what a lower tier raises that is no ``Exception``,
        such as ``KeyboardInterrupt``; further values are dropped then instead of given to it.
        """

    @property
    def nbytes(self) -> int:
        """Bytes held, those being written included."""

    @property
    def pool(self) -> Pool:
        """The pool that the blocks are of."""

    @property
    def spill(self) -> Spill | None:
        """The lower tier."""

    def stats(self) -> KvCacheStats:
        """Figures."""

    def close(self) -> None:
        """Gives the cache up, and all that it holds; closes its spill. Pins stay good."""

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""


@final
class Pinned(_Memory, _Manager):
    """A value of a cache that is not evicted while this exists. Its bytes are read-only."""

    @property
    def cache_key(self) -> _Name:
        """The key it was put in under."""

    @property
    def offset(self) -> int:
        """Where it begins in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """The key with which a device reaches all of it."""

    def keys(self) -> dict[str, Key]:
        """The key of each device, by its name."""

    def reference(self) -> BlockReference:
        """It by plain data, for a process that has attached the pool."""

    @property
    def superseded(self) -> bool:
        """Whether the key has been given another value since, or was removed. Being evicted does
        not count: see :class:`kvmem.spill.Spill`.
        """

    def release(self) -> None:
        """Lets go of it. Raises :class:`ExportedError` while there are views."""

@final
class Lease(_Manager):
    """The right to put in what is fetched from a lower tier, if nothing is put or removed under
    the key meanwhile: that breaks it.
    """

    @property
    def broken(self) -> bool:
        """Whether something was put or removed, so that nothing can be committed under it."""

    def release(self) -> None:
        """Gives it up."""

@final
class Reservation(_Memory, _Manager):
    """Room for one value of a cache, to be written in place. A ``with`` commits it, or gives it
    back if something is raised.
    """

    @property
    def cache_key(self) -> _Name:
        """The key it will be put in under."""

    @property
    def offset(self) -> int:
        """Where it begins in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """The key with which a device reaches all of it."""

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of another object in; returns how many."""

    @overload
    def commit(self, *, lease: None = None) -> Pinned:
        """Makes it the value of its key. Raises :class:`ExportedError` while there are views.

        Under a lease: unless that is broken; then the room is given back, and the answer is None.
        The lease ends. The value is in the cache also if this raises ``KeyboardInterrupt``, which
        comes from a lower tier that was given what is above the high watermark.
        """

    @overload
    def commit(self, *, lease: Lease) -> Pinned | None: ...

    def discard(self) -> None:
        """Gives the room back; what the key had is untouched."""

def doctor(
    size: _Size = "1GiB",
    *,
    pages: _Words | None = None,
    nodes: Sequence[int] | None = None,
    shared: bool = False,
    pinned: bool = True,
) -> Diagnosis:
    """Holds every limit of this machine against some memory, and looks for devices. Maps
    nothing; takes milliseconds.
    """

def mount_report(
    size: _Size,
    *,
    pages: _Words | None = None,
    strict: bool = False,
    numa: str | None = None,
    populate: _Threads = "auto",
    devices: _Words | None = None,
    policy: str | None = None,
    chunk: _Size | None = None,
    time_limit: float | None = None,
    progress: _Progress | None = None,
) -> Report:
    """What ``kvmem mount`` does and prints: maps memory, makes it resident, registers it with
    devices if any are named, gives it back.

    The report is the receipt; with devices, ``receipt``, ``outcome``, ``chosen``,
    ``deregistered`` and ``seconds``.
    """

def parse_size(text: str) -> int:
    """Reads a number of bytes: ``4096``, ``64GiB`` and ``64G`` (powers of 1024), ``64GB`` (a power
    of 1000).

    Raises :class:`BadValueError` with the text, what is wrong with it and the remedy.
    """
