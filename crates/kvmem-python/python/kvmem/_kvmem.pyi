"""The compiled half of the package. Every size is in bytes: an ``int``, or a text like ``"64GiB"``.

The package's own docstring lists the conventions.
"""

import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeAlias, TypeVar, final, overload, type_check_only

from .data import (
    BlockReference,
    BumpStats,
    ClusterTierStats,
    Diagnosis,
    DiskTierInspection,
    DiskTierStats,
    DiskTierVerification,
    EventBatch,
    Key,
    KvCacheStats,
    Listed,
    Located,
    Metrics,
    Miss,
    NodeStats,
    OpenReport,
    Report,
    Residency,
    Resized,
    SessionListed,
    WriteBehindStats,
)
from .tier import Tier, TierFactory

if sys.version_info >= (3, 12):
    from collections.abc import Buffer as _Buffer
else:
    # Before 3.12 arrays cannot tell a type checker that they are buffers.
    _Buffer: TypeAlias = Any

_Size: TypeAlias = SupportsIndex | str
_Words: TypeAlias = str | Sequence[str]
_Threads: TypeAlias = int | str | None
_Progress: TypeAlias = Callable[[int, int], object]
_CacheKey: TypeAlias = int | bytes | str
# A mapping of keys of one type is one of keys.
_Key = TypeVar("_Key", bound=_CacheKey)
# An option of a class below has the name of the type.
_bytes: TypeAlias = bytes
# A method of a class below has the name of the type.
_list: TypeAlias = list

__all__ = [
    "AddressManager",
    "Allocation",
    "AllocationBatch",
    "AttachedBlock",
    "AttachedPool",
    "Block",
    "BlockBatch",
    "BumpArena",
    "Chain",
    "ClusterTier",
    "DiskTier",
    "Fetching",
    "History",
    "Hold",
    "KvCache",
    "NodeCache",
    "NodeOperator",
    "NodeReservation",
    "OffsetAllocator",
    "Piece",
    "PinBatch",
    "Pinned",
    "PinnedValue",
    "Pool",
    "Region",
    "Registration",
    "Reservation",
    "TierSet",
    "__version__",
    "connect",
    "doctor",
    "mount_report",
    "parse_size",
    "prefix_keys",
]

__version__: str

@type_check_only
class _Memory:
    """An object with memory. It supports the buffer protocol and DLPack. Every view keeps the
    memory alive, and the memory cannot be freed while a view exists. :func:`tensor` makes views;
    ``torch.frombuffer`` and ``ptr`` do not.
    """

    @property
    def ptr(self) -> int:
        """First address of the memory. Code that uses the address is no view: it ends first."""

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
        """Shares the bytes as a one-dimensional tensor of uint8.

        The capsule is versioned if ``max_version`` is ``(1, 0)`` or later. The unversioned form
        cannot express read-only memory, so read-only memory then raises :class:`BufferError`.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the device of the bytes: ``(1, 0)``, host memory."""

@type_check_only
class _Manager:
    """A context manager: leaving the ``with`` block closes, frees or releases the object."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        raised: BaseException | None = None,
        trace: TracebackType | None = None,
        /,
    ) -> None: ...

@type_check_only
class _TierValues(_Manager):
    """A disk tier, or a set of them."""

    def store(
        self,
        values: Mapping[_Key, _Buffer] | Iterable[tuple[_CacheKey, _Buffer]],
        *,
        ttl: float | None = None,
        priority: SupportsIndex = 0,
        data_type: str = "unknown",
        namespace: str | bytes = "",
    ) -> None:
        """Stores values under their keys, all of them together, and replaces the values
        that the keys had. ``values`` is a mapping, or pairs of a key and its bytes.

        The values are of use for ``ttl`` seconds at least, rounded up to whole seconds of
        the wall clock; None: forever. Afterwards they are misses, and are evicted before
        all others. Values of a lower ``priority``, 0 to 3, are evicted first. A tier with a
        ``codec`` tries the ``data_type`` of the values' elements first: "bfloat16",
        "float16", "float8_e4m3fn" or "float8_e5m2". A tier with a ``key_file`` encrypts them
        with keys of the ``namespace``, such as the name of a tenant.

        A stored value is found again after the process was killed, and after a power cut
        once :meth:`sync` has returned. Values that begin at a multiple of 4096 bytes in
        memory are written from there; others are copied.

        Raises :class:`OutOfSpaceError` or :class:`DiskTierError` if a value could not be
        stored; its key has no value then. ``failed`` of the exception has the keys of all
        such values; the others are stored.
        """

    def forget_namespace(self, namespace: str | bytes) -> int:
        """Forgets the keys of a namespace, durably, and removes its values: no copy of their
        bytes can be decrypted any more, except with an older copy of the first two blocks of
        the file. Values that are stored in it later have new keys. Returns how many values
        there were; without a ``key_file``, 0.

        Raises :class:`DiskTierError`: the keys may still be there.
        """

    def fetch(self, keys: Iterable[_CacheKey]) -> list[_bytes | None]:
        """Returns the values of keys in the same order; None where there is no value, or
        where its bytes are damaged. All are read at once.
        """

    def fetch_into(self, keys: Iterable[_CacheKey], buffers: Iterable[_Buffer]) -> list[int | None]:
        """Reads the values of keys into writable buffers, one for each key, all at once.
        Returns the length of each value, or None where there is no value, or where its
        bytes are damaged. The bytes of a buffer mean something only up to that length.

        A buffer may be longer than the value. Memory that begins at a multiple of 4096
        bytes is read into directly, such as a block of ``Pool.allocate(n, align=4096)``.

        Raises :class:`InvalidBufferError` if a buffer is read-only, shorter than the value,
        or shares bytes with another.
        """

    def len_of(self, key: _CacheKey) -> int | None:
        """Returns the length of a value in bytes, or None if there is none. It does not
        count as used.
        """

    def __contains__(self, key: _CacheKey, /) -> bool: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int:
        """Returns the number of values held."""

    def remove(self, keys: Iterable[_CacheKey]) -> int:
        """Removes the values of keys and returns how many there were. They do not come back
        after the process was killed; after a power cut they do unless :meth:`sync` has
        returned since.

        Raises :class:`DiskTierError` if the removal could not be recorded: the values are
        not found in this process, but may be after a restart.
        """

    def clear(self) -> None:
        """Removes all values, durably. Raises as :meth:`remove`."""

    def sync(self) -> None:
        """Makes all that was stored and removed before durable: a power cut does not undo
        it. Raises :class:`DiskTierError`; the tier stores nothing then until it can begin
        its journal anew.
        """

    def checkpoint(self) -> None:
        """Writes the index, so that opening the file is fast, and syncs. The tier does so
        by itself when its journal is full. Raises as :meth:`sync`.
        """

    def register_memory(self, pool: Pool) -> None:
        """Registers the memory of a pool with the rings of the file: the kernel looks its
        pages up and pins them once, and not for each transfer. The memory stays pinned
        until the tier is gone or :meth:`deregister_memory` is called; the pool gives no
        pages back meanwhile.

        Raises :class:`NotAvailableError` without io_uring, or before Linux 6.12, and
        :class:`RegistrationError`, for example by ``RLIMIT_MEMLOCK``. Transfers then work
        as before.
        """

    def deregister_memory(self, pool: Pool) -> None:
        """Deregisters the memory of a pool. Does nothing if it is not registered."""

    def register_region(self, region: Region) -> None:
        """Registers the memory of a region, as :meth:`register_memory` does for a pool.
        Memory that another allocator divides is a region: that of an engine is
        ``Region.from_buffer(…)``, and stays exported until it is deregistered.

        Raises as :meth:`register_memory`.
        """

    def deregister_region(self, region: Region) -> None:
        """Deregisters the memory of a region. Does nothing if it is not registered."""

    def stats(self) -> DiskTierStats:
        """Returns the figures of the tier; of a set, the sums of all its tiers."""

    def close(self) -> None:
        """Closes the tier. Its files stay open and locked while a cache above uses them. The
        end writes a checkpoint if anything has changed, for at most ten seconds.
        """

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""

@final
class Region(_Memory, _Manager):
    """A contiguous range of mapped memory.

    ``close`` unmaps it, and raises :class:`ExportedError` while views exist, such as tensors of
    :func:`tensor`. A tensor of ``torch.frombuffer`` is no view: reading it after ``close`` ends the
    process.

    Options:

    - ``size``: length in bytes, rounded up to whole pages.
    - ``pages``: page sizes to try, in order of preference, of ``1G``, ``2M``, ``thp`` and ``4k``.
      None means ``2M,thp,4k``.
    - ``strict``: fail if the first page size cannot back the whole region, instead of falling
      back to the next one.
    - ``numa``: ``bind:0,2-3`` or ``interleave:0-3``. None leaves the placement to the kernel.
    - ``populate``: make all pages resident before the constructor returns: ``"auto"`` or a number
      of threads. None leaves each page to be faulted in by its first access.
    - ``shared``: back the region with a memory file of fixed size that other processes can
      attach. Otherwise only this process has the memory.
    - ``readers_only``: seal the memory file of a shared region against every later mapping for
      writing, in any process (``F_SEAL_FUTURE_WRITE``, Linux 5.1). ``discard`` then fails.
    - ``guard_pages``: place an inaccessible page before and after the region.
    - ``dont_fork``: leave the region out of forked children.
    - ``dont_dump``: leave the region out of core dumps.
    - ``progress``: called with ``(done, total)`` in bytes while pages are populated.
    - ``time_budget``: seconds that populating may take.

    Raises :class:`MappingError`, :class:`InvalidArgumentError`, :class:`CancelledError` and
    :class:`TimeBudgetError`. After an error nothing is left mapped.
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
        readers_only: bool = False,
        guard_pages: bool = False,
        dont_fork: bool = True,
        dont_dump: bool = True,
        progress: _Progress | None = None,
        time_budget: float | None = None,
    ) -> Self: ...
    @staticmethod
    def attach(fd: int, *, size: _Size | None = None) -> Region:
        """Maps the memory of another process by its descriptor. The caller keeps the descriptor.

        With ``size``, raises :class:`InvalidArgumentError` if the memory has another length.
        """

    @staticmethod
    def from_buffer(buffer: _Buffer) -> Region:
        """Makes a region over the bytes of another object. The region keeps the object and exports
        its buffer until it is closed.
        """

    @property
    def receipt(self) -> Report:
        """Pages, placement and residency of the region at the time it was mapped."""

    def populate(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        threads: _Threads = None,
        progress: _Progress | None = None,
        time_budget: float | None = None,
    ) -> float:
        """Makes a range resident and returns the seconds that this took.

        Unless ``threads`` is a number, the library chooses how many threads to use.
        """

    def populate_aliases(self, *, threads: _Threads = None) -> int:
        """Makes the pages resident in every other mapping of this memory file in this process, such
        as the mapping of an engine that received the descriptor. Otherwise the first access to
        each page there faults. Returns the total length of those mappings in bytes.
        """

    def residency(self, start: int = 0, stop: int | None = None) -> Residency:
        """Returns how much of a range is resident now."""

    def discard(self, start: int = 0, stop: int | None = None) -> None:
        """Returns the pages of a range to the system. The range reads as zeros afterwards. Raises
        :class:`InUseError` if the region is registered.
        """

    def fileno(self) -> int:
        """Returns the descriptor of shared memory. The region owns the descriptor."""

    def close(self) -> None:
        """Gives up the memory, which is unmapped when its last user lets go of it. Raises
        :class:`ExportedError` while views exist.
        """

    @property
    def closed(self) -> bool:
        """Whether the region has been closed."""

@final
class BumpArena:
    """A lock-free allocator that advances a cursor through a region. Pieces are not freed one by
    one; ``reset`` frees all of them.
    """

    def __new__(cls, region: Region) -> Self: ...
    def allocate(self, nbytes: _Size, *, align: int = 64) -> Piece:
        """Allocates the next ``nbytes`` bytes at an address that is a multiple of ``align``. Raises
        :class:`OutOfSpaceError`.
        """

    def reset(self) -> None:
        """Makes the whole arena free again. Raises :class:`ExportedError` while pieces exist."""

    def owns(self, address: int) -> bool:
        """Returns whether an address lies in the arena's memory."""

    @property
    def stats(self) -> BumpStats:
        """Bytes used and remaining."""

    @property
    def region(self) -> Region:
        """Region that the arena allocates from."""

    @property
    def capacity(self) -> int:
        """Length of the arena's memory in bytes."""

@final
class Piece(_Memory):
    """A piece of an arena's memory. It keeps the memory alive, and so do its views and everything
    that keeps the object. The arena reuses no piece while its object exists.
    """

    @property
    def offset(self) -> int:
        """Offset of the piece in the arena's memory, in bytes."""

@final
class Registration(_Manager):
    """The registration of a region with devices. Registering either succeeds for the whole region
    and all devices, or raises and leaves nothing registered.

    Options:

    - ``region``: the memory. The registration keeps it alive.
    - ``devices``: one or more of ``io_uring``, ``io_uring:N``, ``mlock``, ``verbs``,
      ``verbs:NIC``, ``cuda``, ``cuda:N``, ``nixl`` and ``nixl:BACKEND``.
    - ``policy``: ``auto``, ``sequential``, ``parallel`` or ``parallel:N``. None takes the policy
      from the environment, and ``auto`` if it names none.
    - ``populate``: make pages resident before they are registered: ``"auto"`` or a number of
      threads. With None the first device faults them in, on one thread.
    - ``chunk``: maximum number of bytes that one key covers. None chooses by the devices' limits;
      a GPU, which copies by address, gets one key for the whole region then. Copies must not cross
      an edge between two keys.
    - ``progress``: called with ``(done, total)`` in bytes. Each byte counts once when it is
      resident and once for every device that it is registered with.
    - ``time_budget``: seconds that the whole operation may take.

    Raises :class:`NotAvailableError`, :class:`RegistrationError`, :class:`MappingError`,
    :class:`InvalidArgumentError`, :class:`CancelledError` and :class:`TimeBudgetError`.
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
        time_budget: float | None = None,
    ) -> Self: ...
    @property
    def region(self) -> Region:
        """Registered region."""

    @property
    def devices(self) -> list[str]:
        """Names of the devices, in order."""

    @property
    def outcome(self) -> Report:
        """Result of registering: keys, times, and the choices made with the measurements behind
        them.
        """

    @property
    def boundary(self) -> int | None:
        """Length of the chunks in bytes. A range that crosses no multiple of it has one key with
        each device. None: one key covers the whole region.
        """

    def key_for(self, device: str, start: int = 0, stop: int | None = None) -> Key:
        """Returns the key with which a device reaches a whole range. Raises
        :class:`RegistrationError` if the range crosses a boundary between two keys.
        """

    def close(self) -> int:
        """Deregisters all keys and returns their number. A second call does nothing."""

    @property
    def closed(self) -> bool:
        """Whether the keys have been deregistered."""

@final
class OffsetAllocator:
    """An allocator of ranges in an abstract space. It never touches bytes. After a fork the child
    has an independent copy.

    Options:

    - ``capacity``: length of the space in bytes, from 1 to 2**63.
    - ``boundary``: no range crosses a multiple of this number of bytes, or is longer than it.
    - ``max_ranges``: maximum number of ranges, used and free: 16 or more. Metadata takes about 50
      bytes per range. None means about 2**32.
    - ``placement``: ``renewal`` or ``best-fit``.

    Raises :class:`InvalidArgumentError`.
    """

    def __new__(
        cls,
        capacity: _Size,
        *,
        boundary: _Size | None = None,
        max_ranges: int | None = None,
        placement: str = "renewal",
    ) -> Self: ...
    def allocate(self, nbytes: _Size, *, align: int | None = None) -> Allocation:
        """Allocates a range of exactly ``nbytes`` bytes. With ``align``, a power of two, the offset
        is a multiple of it. Raises :class:`OutOfSpaceError`.
        """

    def allocate_batch(self, nbytes: _Size, n: int) -> AllocationBatch:
        """Allocates ``n`` ranges of ``nbytes`` bytes each. It allocates all of them or none."""

    def allocate_scattered(self, total: _Size, max_ranges: int) -> list[Allocation]:
        """Allocates ``total`` bytes in at most ``max_ranges`` ranges, with as few and as long
        ranges as are available.
        """

    def free_batch(self, allocations: AllocationBatch | Iterable[Allocation]) -> None:
        """Frees many ranges in one call, and joins neighbours first. If one of them cannot be
        freed, none is.
        """

    def grow_to(self, capacity: _Size) -> None:
        """Moves the end of the space up to ``capacity``."""

    def shrink_to(self, capacity: _Size) -> None:
        """Moves the end of the space down to ``capacity``. Raises :class:`InUseError` if a range
        beyond it is in use.
        """

    @property
    def capacity(self) -> int:
        """Length of the space in bytes."""

    @property
    def boundary(self) -> int | None:
        """No range crosses a multiple of this number of bytes. None: there is no boundary."""

    @property
    def largest_free_hint(self) -> int:
        """Upper bound of the longest free range. Reading it takes no lock."""

    def metrics(self) -> Metrics:
        """Returns the figures of the space."""

    def map(self) -> list[tuple[int, int, bool]]:
        """Returns the whole space in order of offsets: offset, length, and whether it is used."""

    def bins(self) -> list[tuple[int, int, int, int]]:
        """Returns the free ranges by size: minimum and maximum size of the bin, number of ranges,
        and bytes.
        """

    def check(self) -> None:
        """Checks the invariants of the metadata. For tests."""

@final
class Allocation(_Manager):
    """An allocated range. Dropping the object frees the range."""

    @property
    def offset(self) -> int:
        """Offset of the range in the space, in bytes."""

    @property
    def nbytes(self) -> int:
        """Length in bytes: exactly the requested length."""

    def free(self) -> None:
        """Frees the range. A second call raises :class:`ClosedError`."""

    @property
    def freed(self) -> bool:
        """Whether the range has been freed."""

    def shrink(self, nbytes: _Size) -> None:
        """Shortens the range to ``nbytes`` bytes and frees the tail."""

    def extend(self, nbytes: _Size) -> None:
        """Lengthens the range to ``nbytes`` bytes, if the bytes after it are free."""

@final
class AllocationBatch(_Manager):
    """Many allocated ranges of one length."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Length of each range in bytes."""

    @property
    def offsets(self) -> memoryview[int]:
        """Offset of each range: read-only, format ``Q``, as ``array('Q')``. It stays valid after
        the batch has been freed.
        """

    def free(self) -> None:
        """Frees all ranges."""

    @property
    def freed(self) -> bool:
        """Whether the batch has been freed or split."""

    def split(self) -> list[Allocation]:
        """Returns the ranges as separate allocations. The batch is empty afterwards."""

@final
class History:
    """How often and when values were used, those held and those evicted lately, and which value is
    evicted next. Its owner orders its values by their last uses, for each kind separately.
    """

    KINDS: int

    def __new__(cls) -> Self: ...
    def insert(self, key: Hashable) -> int:
        """Adds a value as used now, and returns its slot. The value returns with its kind if it was
        evicted lately. ``key`` is hashed.
        """

    def touch(self, slot: SupportsIndex) -> None:
        """Records a use of the value at ``slot``. Its kind may rise."""

    def evict(self, slot: SupportsIndex) -> None:
        """Removes the value at ``slot``, which was evicted and is remembered for a while."""

    def remove(self, slot: SupportsIndex) -> None:
        """Removes the value at ``slot``, and forgets it."""

    def kind(self, slot: SupportsIndex) -> int:
        """Returns the kind of the value at ``slot``, which is less than ``KINDS``."""

    def choose(self, firsts: Iterable[SupportsIndex | None]) -> int | None:
        """Returns the kind whose first value is evicted next; None if there is none. ``firsts`` has
        the slot of the value of each kind that was not used for the longest time, or None.
        """

@final
class AddressManager:
    """A heap of addresses from 0 on, with the interface of LMCache's class of this name: see
    :mod:`kvmem.lmcache`.

    Addresses and sizes are multiples of ``align_bytes``, a power of two. After a fork the child
    has an independent copy.
    """

    ALIGN_BYTES: int

    def __new__(cls, size: int, align_bytes: int = 4096) -> Self: ...
    def compute_aligned_size(self, raw_size: int) -> int:
        """Returns ``raw_size``, rounded up to a multiple of the alignment."""

    def allocate(self, size: int) -> tuple[int, int]:
        """Allocates a range of at least ``size`` bytes in O(1). Returns its address and length.

        Raises :class:`InvalidArgumentError` if ``size`` is below 1, and :class:`HeapFullError`,
        which is a ``RuntimeError``.
        """

    def batched_allocate(self, size: int, batch_size: int) -> list[tuple[int, int]]:
        """Allocates ``batch_size`` ranges of at least ``size`` bytes each, all of them or none.
        Returns address and length of each, in order of addresses.

        Raises :class:`InvalidArgumentError` if ``size`` is below 1, :class:`HeapFullError`, and
        :class:`InvalidBatchError`, which is a ``RuntimeError``, if ``batch_size`` is below 0.
        """

    def free(self, address: int, size: int) -> None:
        """Frees ``size`` bytes from ``address`` on: one range, several adjacent ranges, or a part
        of one.

        Takes O(1) for each range, and O(ranges) if ``address`` lies inside a range. Raises
        :class:`InvalidArgumentError`, and frees nothing, if a byte of it is not allocated or the
        arguments are not aligned.
        """

    def sbrk(self, size: int) -> None:
        """Moves the end of the heap up by ``size`` bytes, rounded up to a multiple of the
        alignment.
        """

    def get_heap_size(self) -> int:
        """Returns the length of the heap in bytes."""

    def get_free_size(self) -> int:
        """Returns the number of bytes that are not allocated."""

    @property
    def total_allocated_size(self) -> int:
        """Number of bytes that are allocated."""

    def check_consistency(self) -> bool:
        """Returns whether the metadata is consistent. For tests. Takes O(ranges)."""

    def map(self) -> list[tuple[int, int, bool]]:
        """Returns the whole heap in order of addresses: address, length, and whether it is used."""

@final
class Pool(_Manager):
    """Mapped, populated and registered memory that is allocated in blocks.

    Options:

    - ``size``: length in bytes, rounded up to whole pages, or to whole parts if the pool can
      grow.
    - ``max_size``: length in bytes that the pool can grow to. The addresses are reserved at once.
      None means ``size``.
    - ``pages``: page sizes to try, in order of preference, of ``1G``, ``2M``, ``thp`` and ``4k``.
      None means ``2M,thp,4k``.
    - ``strict``: fail if the first page size cannot back the whole pool, instead of falling back
      to the next one.
    - ``numa``: ``bind:0,2-3`` or ``interleave:0-3``. None leaves the placement to the kernel.
    - ``shared``: back the pool with a memory file of fixed size that other processes can attach.
    - ``readers_only``: seal the memory file of a shared pool against every later mapping for
      writing, in any process (``F_SEAL_FUTURE_WRITE``, Linux 5.1). The pool then cannot shrink.
    - ``guard_pages``: place an inaccessible page before and after the pool.
    - ``populate``: make pages resident before blocks are allocated: ``"auto"`` or a number of
      threads. With None the first access to a page may find no memory, which kills the process.
    - ``devices``: devices to register the whole pool with: ``io_uring``, ``io_uring:N``,
      ``mlock``, ``verbs``, ``verbs:NIC``, ``cuda``, ``cuda:N``, ``nixl`` and ``nixl:BACKEND``.
      None registers it with none.
    - ``policy``: how devices are called: ``auto``, ``sequential``, ``parallel`` or
      ``parallel:N``. None takes the policy from the environment, and ``auto`` if it names none.
    - ``boundary``: no block crosses a multiple of this number of bytes, or is longer than it.
      None chooses by the devices' limits, and 1 GiB if the pool can grow or is initialized in the
      background.
    - ``hot_sizes``: block sizes that are cached per thread from the beginning.
    - ``auto_hot_sizes``: cache sizes per thread that are requested often.
    - ``max_cached_bytes``: maximum number of bytes in the caches of all threads together. None
      means 1/32 of the pool.
    - ``in_background``: return once the memory is mapped, and initialize it part by part.
    - ``quarantine``: keep parts that cannot be populated or registered out of use, instead of
      failing. Initialization in the background always does so.
    - ``init_on``: set the bytes of blocks to zero: ``"alloc"``, before a block is handed out, or
      ``"free"``, before its bytes become free. With None a new block holds the bytes of an earlier
      one, or zeros.
    - ``progress``: called with ``(done, total)`` in bytes. Each byte counts once when it is
      resident and once for every device that it is registered with.

    Raises :class:`MappingError`, :class:`RegistrationError`, :class:`InvalidArgumentError` and
    :class:`CancelledError`. After an error nothing is left mapped.
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
        readers_only: bool = False,
        guard_pages: bool = False,
        populate: _Threads = "auto",
        devices: _Words | None = None,
        policy: str | None = None,
        boundary: _Size | None = None,
        hot_sizes: Sequence[_Size] | None = None,
        auto_hot_sizes: bool = True,
        max_cached_bytes: _Size | None = None,
        in_background: bool = False,
        quarantine: bool = False,
        init_on: str | None = None,
        progress: _Progress | None = None,
    ) -> Self: ...
    def allocate(self, nbytes: _Size, *, align: int | None = None) -> Block:
        """Allocates a block of exactly ``nbytes`` bytes. With ``align``, a power of two, its
        address is a multiple of it.

        The block contains zeros, or the bytes of an earlier block; see ``init_on``. Raises
        :class:`OutOfSpaceError`, :class:`NotReadyError` while parts of the pool are still being
        initialized, and :class:`InvalidArgumentError`.
        """

    def allocate_batch(self, nbytes: _Size, n: int) -> BlockBatch:
        """Allocates ``n`` blocks of ``nbytes`` bytes each, as one object. It allocates all of them
        or none.
        """

    def allocate_scattered(self, total: _Size, max_blocks: int) -> list[Block]:
        """Allocates ``total`` bytes in at most ``max_blocks`` blocks, with as few and as long
        blocks as are available.
        """

    def free_batch(self, blocks: BlockBatch | Iterable[Block]) -> None:
        """Frees many blocks in one call, and joins neighbours first. If one of them cannot be
        freed, none is.
        """

    @property
    def ptr(self) -> int:
        """First address of the pool. A block at offset n begins n bytes after it."""

    @property
    def nbytes(self) -> int:
        """Length of the address range from ``ptr`` on, in bytes: the length that the pool can grow
        to. Without ``max_size`` it equals the capacity.
        """

    @property
    def capacity(self) -> int:
        """Number of bytes that blocks can use once the whole pool is initialized."""

    @property
    def ready_bytes(self) -> int:
        """Number of bytes that are initialized, used or free."""

    @property
    def initializing(self) -> bool:
        """Whether parts of the pool are still being initialized."""

    def wait_ready(self, nbytes: _Size | None = None, timeout: float | None = None) -> int:
        """Waits until ``nbytes`` bytes are initialized (None: all of them), initialization has
        ended, or ``timeout`` seconds have passed. Returns the number of initialized bytes.
        """

    def cancel(self) -> None:
        """Stops the initialization in the background: no further part is initialized. The pool
        cannot grow afterwards.
        """

    def grow_to(self, size: _Size) -> None:
        """Grows the pool to at least ``size`` bytes, in whole parts. Each part is populated and
        registered first.
        """

    def shrink_to(self, size: _Size) -> int:
        """Shrinks the pool by whole parts to not less than ``size`` bytes. Returns by how many
        bytes it shrank. Raises :class:`InUseError` if a block beyond ``size`` is in use.
        """

    def shrink(self) -> int:
        """Shrinks the pool by all whole parts at its end that are not in use. Returns by how many
        bytes it shrank.
        """

    def trim(self) -> None:
        """Returns the ranges that threads have cached to the pool, where free neighbours join."""

    def quarantine_block(self, block: Block, why: str) -> None:
        """Takes the block and keeps its bytes out of use until the pool is gone. For blocks whose
        memory has turned out to be bad.
        """

    def report(self) -> Report:
        """Returns the current composition of the pool and how it was initialized."""

    def metrics(self) -> Metrics:
        """Returns the figures of the initialized part of the pool."""

    def stats(self) -> dict[str, Any]:
        """Returns the figures of the per-thread caches."""

    def map(self) -> list[tuple[int, int, str]]:
        """Returns the whole pool in order of offsets: offset, length, and ``used``, ``cached`` or
        ``free``.
        """

    @property
    def devices(self) -> list[str]:
        """Names of the devices, in order."""

    @property
    def boundary(self) -> int | None:
        """No block crosses a multiple of this number of bytes. None: there is no boundary."""

    @property
    def share_id(self) -> int | None:
        """Number by which references name this pool. None: the pool's memory is private."""

    def fileno(self) -> int:
        """Returns a descriptor of a shared pool's memory, open for reading and writing. The pool
        owns it. Other processes can open it as ``/proc/PID/fd/N``.
        """

    def share(self, *, writable: bool = False) -> int:
        """Returns a new descriptor of a shared pool's memory, to be sent to another process. The
        caller owns it.

        Unless it is ``writable``, a process of another user can only read through it. A process
        of the same user, or of root, can still open it for writing by ``/proc``, unless the pool
        is for ``readers_only``.
        """

    def populate_aliases(self, *, threads: _Threads = None) -> int:
        """Makes the pages resident in every other mapping of this memory file in this process, such
        as the mapping of an engine that received the descriptor. Otherwise the first access to
        each page there faults. Returns the total length of those mappings in bytes.
        """

    def hold(self) -> Hold:
        """Prevents the pool from being closed or shortened until the hold is released: both raise
        :class:`ExportedError`. For engines that have registered its memory.
        """

    def check(self) -> None:
        """Checks the invariants of the metadata. For tests."""

    def close(self) -> None:
        """Gives up the pool. Existing blocks stay valid. The memory and its registration are
        released with the last of them.
        """

    @property
    def closed(self) -> bool:
        """Whether the pool has been closed."""

@final
class Block(_Memory, _Manager):
    """A block of a pool, exactly as long as requested. Dropping the object frees the block. A block
    may outlive its pool.

    ``free`` raises :class:`ExportedError` while views exist, such as tensors of :func:`tensor`. A
    tensor of ``torch.frombuffer`` is no view: after ``free`` it reads the bytes of another block.
    """

    @property
    def offset(self) -> int:
        """Offset of the block in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """Returns the key with which a device reaches the whole block."""

    def keys(self) -> dict[str, Key]:
        """Returns the key of each device, by the device's name."""

    def reference(self) -> BlockReference:
        """Returns the block's position as plain data, for a process that has attached the pool. The
        reference does not keep the block.
        """

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of ``source`` into the block from ``start`` on. Returns their number.

        Long copies release the GIL.
        """

    def shrink(self, nbytes: _Size) -> None:
        """Shortens the block to ``nbytes`` bytes and frees the tail. Raises
        :class:`ExportedError` while views exist.
        """

    def extend(self, nbytes: _Size) -> None:
        """Lengthens the block to ``nbytes`` bytes, if the bytes after it are free. Raises
        :class:`ExportedError` while views exist.
        """

    def free(self) -> None:
        """Frees the block. Raises :class:`ExportedError` while views exist, and
        :class:`ClosedError` on a second call.
        """

    @property
    def freed(self) -> bool:
        """Whether the block has been freed."""

@final
class BlockBatch(_Manager):
    """Many blocks of one length."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Length of each block in bytes."""

    @property
    def offsets(self) -> memoryview[int]:
        """Offset of each block in the pool: read-only, format ``Q``, as ``array('Q')``."""

    @property
    def ptrs(self) -> memoryview[int]:
        """First address of each block: read-only, format ``Q``, as ``array('Q')``."""

    def free(self) -> None:
        """Frees all blocks."""

    @property
    def freed(self) -> bool:
        """Whether the batch has been freed or split."""

    def hold(self) -> Hold:
        """Prevents the blocks from being freed or split until the hold is released: both raise
        :class:`ExportedError`.
        """

    def split(self) -> list[Block]:
        """Returns the blocks as separate objects. The batch is empty afterwards."""

@final
class Hold(_Manager):
    """Keeps a pool or a batch unchanged until the hold is released or dropped."""

    def release(self) -> None:
        """Releases the hold. A second call does nothing."""

    @property
    def released(self) -> bool:
        """Whether the hold has been released."""

@final
class AttachedPool(_Manager):
    """The memory of another process's pool, attached by its descriptor. The caller keeps the
    descriptor.
    """

    def __new__(cls, fd: int, *, writable: bool = False) -> Self: ...
    def block(self, reference: tuple[int, int, int]) -> AttachedBlock:
        """Returns the block that a reference names. The process that owns the block must keep it
        until this process has reported that it is done.
        """

    @property
    def share_id(self) -> int:
        """Number by which references name the pool."""

    @property
    def nbytes(self) -> int:
        """Length of the memory in bytes, unused bytes included."""

    @property
    def writable(self) -> bool:
        """Whether this process can write to the memory."""

    def close(self) -> None:
        """Gives up the memory. Blocks of it stay valid."""

    @property
    def closed(self) -> bool:
        """Whether the attached pool has been closed."""

@final
class AttachedBlock(_Memory):
    """The bytes of another process's block. The object keeps the memory mapped; it does not keep
    the block allocated. The same holds for its views: see :func:`tensor`.
    """

    @property
    def offset(self) -> int:
        """Offset of the block in its pool, in bytes."""

    @property
    def writable(self) -> bool:
        """Whether this process can write to the block."""

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of ``source`` into the block from ``start`` on. Returns their number."""

@final
class DiskTier(_TierValues):
    """Values on a local disk, found again by their keys after a restart. The bytes of a value are
    verified whenever it is fetched: a damaged value is a miss, and never the wrong bytes. A full
    tier evicts expired values first, then those of the lowest priority.

    Below a cache it receives what the cache evicts: ``KvCache(pool, lower_tier=tier)``. Keys are
    those of :class:`KvCache`. A ``bytes`` key is the same key in Rust and C. Any thread may call
    any method; calls release the GIL.

    One process uses a file at a time, and a forked child cannot use the tier of its parent.

    Options:

    - ``path``: file or block device. A new file is made if ``bytes`` is given.
    - ``bytes``: length of the file; its space is allocated. A shorter file is lengthened. A longer
      one is cut off, and values that have no room any more are evicted. None keeps the length.
    - ``max_entries``: maximum number of values, fixed when the file is made. The file keeps 260
      bytes for each. None means one for each 32 KiB of the file.
    - ``dsync``: open the file with ``O_DSYNC``. A value survives a power cut as soon as it is
      stored, and storing takes longer. Otherwise :meth:`sync` makes values durable.
    - ``format``: make a new tier of a file that holds something else or is damaged, and lose what
      is in it.
    - ``verify``: ``lazy``, or ``all`` to read every value now and drop the damaged ones.
    - ``admission``: which values that a cache evicts are written: ``all``, ``second_eviction`` for
      those whose key is evicted a second time, or a callable that is called with ``(key, value)``
      and returns whether the value is written. ``value`` is a ``memoryview``, which is released
      after the call. The callable must be short, and must not use the cache or the tier. If it
      raises, the value is not written, and the exception goes to ``sys.unraisablehook``. Values
      given to :meth:`store` are always written.
    - ``eviction``: which values a full tier evicts first, of those with the same priority:
      ``lru`` for those used least recently, or ``fifo`` for those stored first.
    - ``max_write_bytes_per_s``: maximum number of bytes that are written per second, those of the
      index too: an evicted value that comes when they are used up is dropped. Values given to
      :meth:`store` are always written, and count. None: no limit.
    - ``take_over``: open a tier that a process of another host had open, which has ended without
      closing it. Otherwise that is an error. A process of this host needs no such word.
    - ``codec``: ``auto`` to compress values without loss before they are written, those that become
      shorter by it, or ``none``. Values are read whatever this says.
    - ``key_file``: file with keys that encrypt values, one of 64 hexadecimal digits a line. The
      first one writes, all of them read. Only its owner may change it, and no others read it;
      ``/dev/fd/3`` is a descriptor. None: values are not encrypted, and those that are encrypted
      are misses. With a codec or keys, older versions do not open the file.

    Raises :class:`DiskTierError` if the file cannot be used, and :class:`InvalidArgumentError`.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tier")
    >>> with kvmem.DiskTier(path, bytes="16MiB") as tier:
    ...     tier.store({"prefix 1": b"keys and values", 7: bytes(5000)})
    >>> with kvmem.DiskTier(path) as tier:  # after a restart
    ...     tier.report.entries, tier.fetch(["prefix 1", "prefix 2"])
    (2, [b'keys and values', None])
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        bytes: _Size | None = None,
        max_entries: SupportsIndex | None = None,
        dsync: bool = False,
        format: bool = False,
        verify: str = "lazy",
        admission: str | Callable[[int | bytes | str, memoryview], bool] = "all",
        eviction: str = "lru",
        max_write_bytes_per_s: _Size | None = None,
        take_over: bool = False,
        codec: str = "none",
        key_file: str | PathLike[str] | None = None,
    ) -> Self: ...
    @staticmethod
    def inspect(path: str | PathLike[str]) -> DiskTierInspection:
        """Reads what a file or block device holds, and writes nothing. A program that has it open
        as a tier must close it first; meanwhile no program can open it as one.

        Raises :class:`DiskTierError` if the file is no tier, its index is damaged, or it is open.
        """

    @staticmethod
    def verify(
        path: str | PathLike[str],
        *,
        max_damaged_values: SupportsIndex = 1000,
        progress: _Progress | None = None,
        key_file: str | PathLike[str] | None = None,
    ) -> DiskTierVerification:
        """Reads every value in a file or block device, compares it with its checksum, and writes
        nothing. With the ``key_file`` of a tier, each value is decrypted and decompressed, too.
        Damaged values are a part of the result; the first ``max_damaged_values`` of them are
        named. ``progress`` is called with ``(done, total)`` in bytes; if it raises, the
        verification ends with the exception.

        Raises as :meth:`inspect`.
        """

    @property
    def report(self) -> OpenReport:
        """What opening the file found."""

    @property
    def path(self) -> Path:
        """Path of the file or block device."""

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache. False on a file system without direct I/O."""

    @property
    def engine(self) -> str:
        """How bytes are transferred: ``io_uring``, or ``threads`` where it is not allowed."""

@final
class TierSet(_TierValues):
    """Disk tiers on several devices, which hold values together. Each key belongs to one of them,
    by a hash of the key and of the file's identity: files may be named in any order, and a device
    that is gone loses only its own keys. Transfers on different devices run side by side.

    Below a cache it is used as a :class:`DiskTier`. Each file has the options of :class:`DiskTier`,
    and the set has two of its own:

    - ``paths``: files or block devices. New files are made if ``bytes`` is given.
    - ``available``: go on without those that cannot be opened. Their keys belong to the others
      meanwhile. A device that comes back has the values of the time before: a value that was
      replaced meanwhile is found in its older form, unless keys are hashes of their values.

    Raises as :class:`DiskTier`.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> paths = [os.path.join(folder, name) for name in ("nvme0", "nvme1")]
    >>> with kvmem.TierSet(paths, bytes="16MiB") as tiers:
    ...     tiers.store({n: bytes([n]) * 5000 for n in range(100)}, priority=1)
    ...     len(tiers), all(report.created for report in tiers.reports)
    (100, True)
    """

    def __new__(
        cls,
        paths: Iterable[str | PathLike[str]],
        *,
        bytes: _Size | None = None,
        max_entries: SupportsIndex | None = None,
        dsync: bool = False,
        format: bool = False,
        verify: str = "lazy",
        admission: str | Callable[[int | bytes | str, memoryview], bool] = "all",
        eviction: str = "lru",
        max_write_bytes_per_s: _Size | None = None,
        take_over: bool = False,
        codec: str = "none",
        key_file: str | PathLike[str] | None = None,
        available: bool = False,
    ) -> Self: ...
    @property
    def reports(self) -> list[OpenReport | None]:
        """What opening each file found; None for those that could not be opened."""

    @property
    def paths(self) -> list[Path]:
        """Paths of the files or block devices."""

@final
class ClusterTier(_Manager):
    """A Mooncake cluster as a lower tier: ``KvCache(pool, lower_tier=ClusterTier(master))``.

    Mooncake's client runs in a child process, which is killed when it hangs and started again.
    While there is none that works, look-ups find nothing and values are dropped, and nothing waits.
    Each value has a checksum: other bytes are a miss. Tiers with one ``prefix`` share their values,
    so a key must mean the same in all of them. Options:

    - ``master``: address of the cluster's master.
    - ``prefix``: prefix of the objects' keys.
    - ``replace``: a value replaces the one that its key has. Otherwise an object that exists stays,
      which is faster and right if keys are hashes of their values.
    - ``staging_bytes``: memory through which values go, half of it for those that are stored. A
      value has at most a half of it.
    - ``call_timeout``: seconds after which a client that does not answer is killed.
    - ``start_timeout``: seconds that a client has to start.
    - ``engine``: how the client connects: :class:`kvmem.mooncake.EngineOptions`.
    - ``python``: program that runs the client. None: the one that runs this process.
    - ``codec``: ``"auto"`` compresses the values, as for :class:`DiskTier`. Some values whose
      lengths are no multiples of 16 are not stored then.
    - ``key_file``: encrypts the values, as for :class:`DiskTier`. Tiers with one ``prefix`` need
      the same keys, and a codec or keys all of them or none: other values are misses.

    Returns at once: :meth:`wait` waits for the cluster. Raises :class:`InvalidArgumentError`.
    """

    def __new__(
        cls,
        master: str = "127.0.0.1:50051",
        *,
        prefix: str = "kvmem/",
        replace: bool = True,
        staging_bytes: _Size | None = None,
        call_timeout: float | None = None,
        start_timeout: float | None = None,
        engine: Mapping[str, Any] | None = None,
        python: str | None = None,
        codec: str = "none",
        key_file: str | PathLike[str] | None = None,
    ) -> Self: ...
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the cluster works. Returns False after ``timeout`` seconds."""

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all values that were given to it are in the cluster or dropped, and all keys
        that were removed are removed there. Returns False after ``timeout`` seconds.
        """

    def store(
        self,
        values: Mapping[_Key, _Buffer] | Iterable[tuple[_Key, _Buffer]],
        *,
        data_type: str = "unknown",
    ) -> list[_Key]:
        """Stores values under their keys. ``values`` is a mapping, or pairs of a key and its bytes.
        ``data_type`` is that of :meth:`DiskTier.store`. Returns the keys of those that were not
        stored, because the cluster is full or away; they have no value then.
        """

    def ask(self, keys: Iterable[_CacheKey]) -> list[int | None]:
        """Returns the lengths of the values under keys, in the same order; None where there is
        none, or the cluster is away.
        """

    def fetch_into(self, keys: Iterable[_CacheKey], buffers: Iterable[_Buffer]) -> list[int | None]:
        """Reads the values of keys into writable buffers of their lengths, one for each key.
        Returns the length of each value that was read; None for the others, whose buffers may hold
        any bytes.
        """

    def remove(self, keys: Iterable[_CacheKey]) -> None:
        """Removes the values of keys. They are not found any more, and the cluster removes them as
        soon as it can.
        """

    def clear(self) -> None:
        """Removes all values of the prefix, those of other tiers, too. Raises ``RuntimeError``
        while the cluster is away.
        """

    def stats(self) -> ClusterTierStats:
        """Returns the figures of the tier."""

    def close(self) -> None:
        """Waits for values that are being stored and keys that are being removed, for
        ``call_timeout`` at most, and ends the client. Caches above find and store nothing there any
        more.
        """

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""

@final
class Chain:
    """Two lower tiers, one below the other, such as a disk above a cluster. Either may be a chain
    again.

    Both get each value that a cache above evicts, and both are told of removals. A fetch asks
    ``upper``, and ``lower`` for the rest. Each is a :class:`DiskTier`, a :class:`TierSet`, a
    :class:`kvmem.mooncake.ClusterTier`, a :class:`Chain`, or an object of Python that makes a
    :class:`kvmem.tier.Tier`.
    """

    def __new__(
        cls,
        upper: DiskTier | TierSet | ClusterTier | Chain | TierFactory,
        lower: DiskTier | TierSet | ClusterTier | Chain | TierFactory,
    ) -> Self: ...
    @property
    def upper(self) -> Any:
        """The tier that is asked first."""

    @property
    def lower(self) -> Any:
        """The tier that is asked for the rest."""

@final
class Fetching(_Manager):
    """Values of several keys, some of which a thread of the cache is fetching from its lower tier:
    see :meth:`KvCache.start_fetch`.

    Dropping it cancels what no thread has begun to fetch. It keeps the cache. Awaiting it takes no
    thread, and returns what :meth:`result` returns. A task that is cancelled cancels the fetches.
    """

    def done(self) -> bool:
        """Whether all values are there, or the fetches have ended."""

    def result(self, timeout: float | None = None) -> list[Pinned | None]:
        """Waits until all values are there, and returns them, pinned, in the order of the keys;
        None where neither the cache nor its lower tier has a value. They belong to the caller: a
        second call raises :class:`ClosedError`.

        Raises ``TimeoutError`` if that takes longer than ``timeout`` seconds. The fetches go on
        then.
        """

    def take(self) -> list[Pinned | None]:
        """Returns the values that are there, without waiting; None for the others, which are
        cancelled or end in the background.
        """

    def cancel(self) -> None:
        """Cancels what no thread has begun to fetch, unless other calls want the same values. What
        has begun ends in the background, and is in the cache then. A second call does nothing.
        """

    def detach(self) -> None:
        """Lets all fetches go on without this object. Their values are in the cache when they end,
        and are not pinned.
        """

    def __await__(self) -> Generator[Any, Any, list[Pinned | None]]: ...
    def _poll(self, callback: Callable[[], object]) -> bool:
        """Returns whether all are done. Otherwise ``callback`` is called when that may be so, by
        any thread.
        """

    def _forget(self) -> None:
        """Forgets the callback of ``_poll``."""

@final
class KvCache(_Manager):
    """A cache of values by key, stored in blocks of a pool. Any thread can look values up; values
    are pinned while they are used, and evicted when space is needed.

    Keys are ``int`` (127 bits and a sign), ``bytes`` or ``str``; keys of different types are never
    equal. A cache is true in a boolean context, even if it is empty.

    Options:

    - ``pool``: pool that the blocks are allocated from. Other users may share it.
    - ``max_bytes``: maximum number of bytes held. None: limited by the pool.
    - ``max_blocks``: maximum number of values held. None means about 2**32.
    - ``eviction``: ``lru`` or ``scan-resistant``.
    - ``lower_tier``: receives evicted values and is asked for missing ones: a :class:`DiskTier`,
      a :class:`TierSet`, a :class:`kvmem.mooncake.ClusterTier`, a :class:`Chain`, or an object of
      Python: see :mod:`kvmem.tier`.
    - ``write_behind``: evicted values wait in a queue of as many bytes, where they are still found,
      and a thread writes them to the lower tier, many at once. They stay in use in the pool
      meanwhile. Closing the cache writes what is left. None: the thread that evicts a value writes
      it.
    - ``write_behind_when_full``: what happens when the queue is full: ``wait``, or ``drop`` the
      value together with an older one of the lower tier.
    - ``write_behind_writers``: number of threads that write the values of the queue.
    - ``write_behind_on_drop``: what happens to the values in the queue at the end of the cache:
      ``write``, or ``discard`` them together with older ones of the lower tier.

    Raises :class:`InvalidArgumentError`.
    """

    def __new__(
        cls,
        pool: Pool,
        *,
        max_bytes: _Size | None = None,
        max_blocks: int | None = None,
        eviction: str = "lru",
        lower_tier: TierFactory | DiskTier | TierSet | ClusterTier | Chain | None = None,
        write_behind: _Size | None = None,
        write_behind_when_full: str = "wait",
        write_behind_writers: SupportsIndex = 1,
        write_behind_on_drop: str = "write",
    ) -> Self: ...
    def insert(
        self,
        key: _CacheKey,
        value: _Buffer,
        *,
        depth: SupportsIndex = 0,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> None:
        """Copies a value into a block and stores it under ``key``. Evicts until the value fits.

        - ``depth``: number of blocks of the prefix that come before the value. Blocks at the end of
          a prefix are evicted before those at its start, in whatever order they are inserted and
          looked up.
        - ``priority``: 0 to 3; the lower tier evicts values of a lower priority first.
        - ``ttl``: the value is a miss after this number of seconds, also in the lower tier. None:
          it stays until it is evicted.
        - ``data_type``: the type of the value's elements by PyTorch's name, "bfloat16", "float16",
          "float8_e4m3fn" or "float8_e5m2"; "unknown". A tier that compresses values tries
          it first.

        Raises :class:`OutOfSpaceError` if the value cannot fit. Passes on what a lower tier raises
        that is no ``Exception``, such as ``KeyboardInterrupt``. The value is not stored then.
        """

    def insert_batch(
        self,
        values: Mapping[_Key, _Buffer] | Iterable[tuple[_CacheKey, _Buffer]],
        *,
        depths: Iterable[SupportsIndex] | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> None:
        """Copies several values into blocks and stores them under their keys, all of them or none.
        ``values`` is a mapping, or pairs of a key and its bytes. ``depths`` has a number for each
        of them; None: 0. The other hints are as for :meth:`insert`, which it raises as.
        """

    def reserve(
        self,
        key: _CacheKey,
        nbytes: _Size,
        *,
        depth: SupportsIndex = 0,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> Reservation:
        """Reserves space for a value of ``nbytes`` bytes, to be written in place and then
        committed. Evicts until the value fits. The hints are as for :meth:`insert`; the time to
        live begins now.

        Raises as ``insert``.
        """

    def get(self, key: _CacheKey) -> Pinned | None:
        """Returns the value under ``key``, pinned, and counts it as used: from memory, or else from
        the lower tier, which is fetched and stored in memory. None if neither has a value.
        """

    def get_in_memory(self, key: _CacheKey) -> Pinned | None:
        """Returns the value that memory has under ``key``, pinned, and counts it as used. Calls no
        lower tier.
        """

    def get_batch(
        self, keys: Iterable[_CacheKey], *, timeout: float | None = None
    ) -> list[Pinned | None]:
        """Returns the values of keys, pinned, in the same order; None where neither the cache nor
        its lower tier has a value. A :class:`DiskTier` reads all missing values at once, which is
        much faster than one :meth:`get` after the other.

        After ``timeout`` seconds it returns the values that are there. Reads that have begun end in
        the background, and their values are in the cache afterwards; the others are cancelled.

        A value that was stored or removed meanwhile is never replaced by an older one of the tier.

        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "tier")
        >>> with (
        ...     kvmem.Pool("1MiB", pages="4k") as pool,
        ...     kvmem.DiskTier(path, bytes="16MiB") as tier,
        ...     kvmem.KvCache(pool, lower_tier=tier) as cache,
        ... ):
        ...     for key in range(100):  # more than fits into memory
        ...         cache.insert(key, bytes([key]) * 30_000)
        ...     sum(bytes(found)[0] for found in cache.get_batch([0, 1, 99]))
        100
        """

    def start_fetch(self, keys: Iterable[_CacheKey]) -> Fetching:
        """Begins to fetch from the lower tier what the cache lacks of ``keys``, and returns at
        once. A thread of the cache reads. Other calls for the same keys share the reads.

        >>> import asyncio, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "tier")
        >>> async def total(cache):
        ...     fetching = cache.start_fetch(range(10))
        ...     ...  # the rest of the request is prepared
        ...     return sum(len(found) for found in await fetching)
        >>> with (
        ...     kvmem.Pool("1MiB", pages="4k") as pool,
        ...     kvmem.DiskTier(path, bytes="16MiB") as tier,
        ...     kvmem.KvCache(pool, lower_tier=tier) as cache,
        ... ):
        ...     for key in range(100):
        ...         cache.insert(key, bytes([key]) * 30_000)
        ...     asyncio.run(total(cache))
        300000
        """

    def prefetch(self, keys: Iterable[_CacheKey]) -> None:
        """Starts to fetch into the processor's caches what :meth:`get` and :meth:`reserve` of these
        keys read first. The cache misses of calls that follow for these keys then overlap. A hint:
        changes nothing, counts no use, and asks no lower tier.
        """

    def remove(self, key: _CacheKey) -> Pinned | None:
        """Removes the value under ``key`` from memory and from the lower tier. Returns the value
        that memory had.
        """

    def remove_in_memory(self, key: _CacheKey) -> Pinned | None:
        """Removes the value under ``key`` from memory alone, and returns it. A value that the lower
        tier has under the key stays there.
        """

    def __contains__(self, key: _CacheKey, /) -> bool: ...
    def contains_in_memory(self, key: _CacheKey) -> bool:
        """Returns whether memory has a value under ``key``. Calls no lower tier."""

    def __bool__(self) -> bool: ...
    def __len__(self) -> int:
        """Returns the number of values in memory, those being written included, and in the lower
        tier, each value once. Values of a tier that does not know how many it has, such as a
        cluster, are not counted. With a tier O(values in memory).
        """

    def len_in_memory(self) -> int:
        """Returns the number of values in memory, those being written included."""

    def clear(self) -> None:
        """Removes all values from memory and from the lower tier. Pinned values stay valid."""

    def clear_in_memory(self) -> None:
        """Removes all values from memory alone. Pinned values stay valid."""

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until every value that the cache evicted before has been given to the lower tier.
        Returns False after ``timeout`` seconds. Without ``write_behind`` there is nothing to wait
        for.
        """

    def write_behind_stats(self) -> WriteBehindStats:
        """Returns the figures of the queue above the lower tier; zeros without one."""

    def evict_to(self, nbytes: _Size) -> int:
        """Evicts until at most ``nbytes`` bytes are held, or nothing is left that can be evicted.
        With a :class:`DiskTier`, ``evict_to(0)`` before the end of a process writes all values to
        the disk, where the next process finds them.

        Returns the number of bytes held. Raises what the lower tier raises that is no
        ``Exception``, such as ``KeyboardInterrupt``. Further values are then dropped, and not
        given to the tier.
        """

    @property
    def nbytes(self) -> int:
        """Number of bytes held, values being written included."""

    @property
    def pool(self) -> Pool:
        """Pool that the blocks are allocated from."""

    @property
    def lower_tier(self) -> Tier | DiskTier | TierSet | ClusterTier | Chain | None:
        """Lower tier of the cache."""

    def stats(self) -> KvCacheStats:
        """Returns the figures of the cache."""

    def close(self) -> None:
        """Gives up the cache and all values that it holds, and closes its lower tier, unless that
        is a :class:`DiskTier`. Pinned values stay valid.
        """

    @property
    def closed(self) -> bool:
        """Whether the cache has been closed."""

@final
class Pinned(_Memory, _Manager):
    """A value of a cache. It is not evicted while this object exists. Its bytes are read-only.

    ``release`` raises :class:`ExportedError` while views exist, such as tensors of :func:`tensor`
    with ``read_only=True``. A tensor of ``torch.frombuffer`` is no view: after ``release`` it may
    read the bytes of another value.
    """

    @property
    def cache_key(self) -> _CacheKey:
        """Key that the value was stored under."""

    @property
    def offset(self) -> int:
        """Offset of the value in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """Returns the key with which a device reaches the whole value."""

    def keys(self) -> dict[str, Key]:
        """Returns the key of each device, by the device's name."""

    def reference(self) -> BlockReference:
        """Returns the value's position as plain data, for a process that has attached the pool."""

    @property
    def superseded(self) -> bool:
        """Whether the cache key has received another value since, or was removed. An eviction does
        not count: see :mod:`kvmem.tier`.
        """

    def release(self) -> None:
        """Releases the pin. Raises :class:`ExportedError` while views exist."""

@final
class Reservation(_Memory, _Manager):
    """Space for one value of a cache, to be written in place. Leaving the ``with`` block commits
    the value, or discards it after an exception.

    Both raise :class:`ExportedError` while views exist, such as tensors of :func:`tensor`. A tensor
    of ``torch.frombuffer`` is no view: it can write to the bytes of another value afterwards.
    """

    @property
    def cache_key(self) -> _CacheKey:
        """Key that the value will be stored under."""

    @property
    def offset(self) -> int:
        """Offset of the value in its pool, in bytes."""

    def key(self, device: str) -> Key:
        """Returns the key with which a device reaches the whole value."""

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of ``source`` into the value from ``start`` on. Returns their number."""

    def commit(self) -> Pinned:
        """Stores the value under its key and returns it pinned. Raises :class:`ExportedError` while
        views exist.
        """

    def discard(self) -> None:
        """Frees the space. The value that the key has, if any, does not change."""

def doctor(
    size: _Size = "1GiB",
    *,
    pages: _Words | None = None,
    nodes: Sequence[int] | None = None,
    shared: bool = False,
    pinned: bool = True,
    tier: str | PathLike[str] | None = None,
    tier_size: _Size = "1GiB",
) -> Diagnosis:
    """Checks every limit of this machine against the requested memory, and detects devices. Maps
    nothing; takes milliseconds.

    With a path ``tier``, also checks whether a :class:`DiskTier` of ``tier_size`` bytes could be
    made there.
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
    time_budget: float | None = None,
    progress: _Progress | None = None,
) -> Report:
    """Does what ``kvmem mount`` does: maps memory, makes it resident, registers it with the named
    devices, and releases everything. Returns what the command prints.

    Without devices the report is the receipt. With devices it has ``receipt``, ``outcome``,
    ``chosen``, ``deregistered`` and ``seconds``.
    """

def parse_size(text: str) -> int:
    """Parses a number of bytes: ``4096``, ``64GiB`` and ``64G`` (powers of 1024), ``64GB`` (powers
    of 1000).

    Raises :class:`InvalidArgumentError` with the text, the fault and the remedy.
    """

def prefix_keys(tokens: Iterable[int] | _Buffer, block: int, salt: _Buffer) -> list[bytes]:
    """Returns the keys of the complete blocks of a prompt, the first one first: ``bytes`` of length
    32, for a node, a cache or a disk tier. Tokens behind the last complete block have no key.

    The key of a block is a hash of the key before it and of the block's tokens. Therefore two
    prompts share a key only if they have the same tokens up to the block's end, and a look-up of
    the list finds the longest stored prefix. Rust, C and C++ have the same keys under the same
    name, on all machines.

    - ``tokens``: numbers of tokens. A buffer of int32 or int64, such as an array of NumPy, takes a
      tenth of the time of a list.
    - ``block``: tokens in a block.
    - ``salt``: all else that the values depend on, such as the weights, the type of the KV cache
      and the release of the engine. Prompts with different salts share no key.

    .. code-block:: python

        keys = kvmem.prefix_keys(tokens, 256, b"model, weights, dtype")
        with cache.acquire_prefix(keys) as pins:
            print(pins.hits * 256, "tokens are stored")
    """

def connect(
    path: str | PathLike[str],
    *,
    namespace: str = "",
    read_only: bool = False,
    retry_for: float = 10.0,
    answer_within: float = 30.0,
    populate: bool = False,
    checksums: bool = False,
    verify: bool = False,
    rings: bool = False,
    devices: _Words | None = None,
    server_users: Sequence[int] = (),
) -> NodeCache:
    """Connects to the server of a node, such as ``kvmem serve``, and maps the node's memory.

    - ``path``: path of the server's Unix socket.
    - ``namespace``: namespace of all keys, such as a model or a tenant.
    - ``read_only``: map the memory for reading only. Calls that write raise
      :class:`InvalidArgumentError`.
    - ``retry_for``: number of seconds that this and all later calls wait for a server.
    - ``answer_within``: number of seconds that a call waits for the answer of a server that is
      there. It then raises :class:`NodeDisconnectedError`, and the server may do it yet.
    - ``populate``: enter all pages into the page table now, instead of at the first touch of each.
    - ``checksums``: calculate a checksum of each value that is committed. Processes with ``verify``
      find only values with a checksum.
    - ``verify``: verify each value that is acquired. A damaged one is a miss, and the server
      removes it. A value without a checksum is a miss, too: :attr:`NodeCache.unverified` counts
      these, and the log has one warning. The cache writes checksums, also without ``checksums``.
    - ``rings``: send calls through shared memory instead of the socket, if the server has rings
      left. A call is then faster, and its thread waits awake for some microseconds.
    - ``devices``: devices to register the whole memory with, as for :class:`Pool`: GPUs, NICs and
      rings then transfer into and out of values in place, by :meth:`NodeCache.key_for`. The keys
      stay valid until the cache is closed and its pins and reservations are gone, also when the
      server starts again. Not with ``read_only``. Raises :class:`RegistrationError` if the memory
      cannot be registered with all of them.
    - ``server_users``: numbers of the users whose servers this process trusts with its values.
      Empty: its own user and root. A server that systemd gives the socket counts as root's.

    Processes that write to a node trust each other with the values: each must write to its own
    reservations, and to nothing else of the memory.

    Raises :class:`NodeDisconnectedError` if no server answers, and :class:`NodePermissionError` if
    it does not serve this user so, or is the server of a user that is not trusted.
    """

@final
class NodeCache(_Manager):
    """Values by key in the memory of a node: a server keeps them, and the processes of a machine
    share them. Made by :func:`connect`.

    Keys are as those of :class:`KvCache`: ``int``, ``bytes`` or ``str``. A node takes keys of at
    most 64 bytes, which are 52 bytes of UTF-8 for a ``str``. Any thread may use the object. Its
    calls release the GIL, and Ctrl-C ends one that waits.

    A call that finds the server gone waits until it runs again, for at most ``retry_for`` seconds.
    The values, pins and reservations of this process stay.
    """

    def insert(
        self,
        key: _CacheKey,
        value: _Buffer,
        *,
        parent: _CacheKey | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> None:
        """Copies a value into the node's memory and stores it under ``key``. Evicts until it fits.

        - ``parent``: key of the value before it in a chain, such as that of the block before it in
          a prompt. The node evicts a value only when it has no more values with it as their parent,
          and a use of a value is one of its parent. The parent may be stored later.
        - ``priority``: 0 to 3; values of a lower priority are evicted first.
        - ``ttl``: the value is gone after this number of seconds. None: it stays until it is
          evicted.
        - ``data_type``: the type of the value's elements by PyTorch's name, "bfloat16", "float16",
          "float8_e4m3fn" or "float8_e5m2"; "unknown". A tier of the node that
          compresses values tries it first.

        Raises :class:`OutOfSpaceError` if the value cannot fit, because the rest of the memory is
        pinned or reserved, or because the namespace has a limit.
        """

    def insert_batch(
        self,
        values: Mapping[_Key, _Buffer] | Iterable[tuple[_CacheKey, _Buffer]],
        *,
        parents: Iterable[_CacheKey | None] | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> None:
        """Copies several values into the node's memory and stores them under their keys, all of
        them or none. ``values`` is a mapping, or pairs of a key and its bytes, of which a call
        takes at most 1024. ``parents`` has a key or None for each of them. The other hints are as
        for :meth:`insert`, which it raises as.
        """

    def reserve(
        self,
        key: _CacheKey,
        nbytes: _Size,
        *,
        parent: _CacheKey | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
    ) -> NodeReservation:
        """Reserves space for a value of ``nbytes`` bytes, to be written in place and then
        committed. Evicts until the value fits. The hints are as for :meth:`insert`, which it raises
        as.

        A process that makes no call for longer than the server's lease, usually a minute, loses its
        reservations: :meth:`keep_alive`.
        """

    def reserve_batch(
        self,
        sizes: Mapping[_Key, _Size] | Iterable[tuple[_CacheKey, _Size]],
        *,
        parents: Iterable[_CacheKey | None] | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        data_type: str = "unknown",
        wait: bool = True,
    ) -> _list[NodeReservation]:
        """Reserves space for several values, all of them or none. ``sizes`` is a mapping, or pairs
        of a key and its number of bytes, of which a call takes at most 1024. ``parents`` has a key
        or None for each of them. See :meth:`reserve`.

        With ``wait=False``, the call does not wait for the tier below the node: while the tier is
        about to free space, the call raises :class:`OutOfSpaceError`, and a later one may succeed.
        """

    def commit(self, reservations: Iterable[NodeReservation]) -> None:
        """Stores the values of several reservations under their keys, all of them or none, whatever
        ends meanwhile. A call takes at most 1024. They have ended afterwards, also if it fails.

        Raises :class:`ExportedError` while one is viewed, and then none has ended. Raises
        :class:`ReservationLostError` if the server has taken one back.
        """

    def get(self, key: _CacheKey) -> PinnedValue | None:
        """Returns the value under ``key``, pinned, and counts it as used."""

    def acquire(self, keys: Iterable[_CacheKey], *, wait: bool = True) -> PinBatch:
        """Returns the values of keys, pinned, in the same order; None where there is no value.
        Counts them as used.

        With ``wait=False``, a value that only the tier below the node has is None, too: the call
        does not wait for the tier, which reads some of them meanwhile. :attr:`PinBatch.pending`
        says which. A later call finds them.
        """

    def acquire_prefix(self, keys: Iterable[_CacheKey], *, wait: bool = True) -> PinBatch:
        """Does what :meth:`acquire` does for the keys before the first one that has no value, or
        that only the tier has if ``wait`` is false. The others are None.
        """

    def lookup(self, keys: Iterable[_CacheKey]) -> int:
        """Returns the number of keys before the first one that has no value. Pins nothing, so the
        values may be evicted at once.
        """

    def locate(self, keys: Iterable[_CacheKey]) -> _list[Located]:
        """Returns where the value of each key is, in the order of the keys. Nothing is pinned,
        fetched or counted as used, so the values may go at once.
        """

    def touch(self, keys: Iterable[_CacheKey]) -> int:
        """Marks values as used now. Returns how many of the keys have one."""

    def remove(self, key: _CacheKey) -> bool:
        """Removes the value under ``key``, and returns whether there was one. Pinned values stay
        valid.
        """

    def remove_batch(self, keys: Iterable[_CacheKey]) -> int:
        """Removes the values of keys, and returns how many there were."""

    def __contains__(self, key: _CacheKey, /) -> bool: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int:
        """Returns the number of values of the node, in all namespaces."""

    def keep_alive(self) -> None:
        """Tells the server that this process lives. A process that has reservations makes this or
        any other call more often than the server's lease.
        """

    def stats(self) -> NodeStats:
        """Returns the figures of the node."""

    def events(
        self, start: SupportsIndex = 0, *, max: SupportsIndex = 512, wait: float = 0.0
    ) -> EventBatch:
        """Returns what was stored, replaced, removed and evicted, from number ``start`` on: at most
        ``max`` events, and at most 512. Waits for the first one for at most ``wait`` seconds. 0 is
        the number of the oldest event, and 2**63 that of the next one. ``lost`` of the result tells
        that events after ``start`` were dropped, or that the server has restarted.

        The next call goes on at ``next`` of the result:

        .. code-block:: python

            at = 0
            while True:
                events = cache.events(at, wait=60)
                for event in events:
                    print(event.kind, event.key)
                at = events.next
        """

    def list_namespace(self) -> _list[Listed]:
        """Lists the values of the cache's own namespace: those in memory, and those in the tier
        that the server has stored there or fetched, which have no pins, priority and idle time.
        Values that come and go meanwhile may be missing; :meth:`events` tells of them.
        """

    def misses(self, max: SupportsIndex = 256) -> _list[Miss]:
        """Lists at most ``max`` of the last misses of the cache's own namespace, and why they were
        misses; the last one comes first. Of each call the server remembers the first key without a
        value, and of all calls the last 256.
        """

    def evict(self, nbytes: _Size) -> int:
        """Evicts values of at least ``nbytes`` bytes from the cache's own namespace. Returns the
        number of bytes evicted.
        """

    def clear(self) -> int:
        """Removes all values of the cache's own namespace. Returns their number. Pinned values stay
        valid. Raises :class:`NodeError` if the node has a tier, which does not know the namespace
        of a value: an operator can remove all values, by ``as_operator().clear()``.
        """

    def as_operator(self) -> NodeOperator:
        """Returns the calls of operators, which concern all namespaces and other clients."""

    @property
    def memory_address(self) -> int:
        """First address of the node's memory in this process, for registering it with devices. It
        stays mapped until the cache is closed and its pins and reservations are gone.
        """

    @property
    def memory_len(self) -> int:
        """Length of the node's memory in bytes."""

    @property
    def boundary(self) -> int | None:
        """No value crosses a multiple of this number of bytes, nor is longer. None: a value may be
        as long as the memory. A program that registers the memory by itself, in pieces, ends them
        at multiples: a GPU cannot copy a value that lies in two pieces.
        """

    def fileno(self) -> int:
        """Returns the descriptor of the node's memory, open for reading and writing. The cache owns
        it; it stays open as long as the memory is mapped. Raises :class:`InvalidArgumentError` if
        the cache only reads.
        """

    def populate_aliases(self, *, threads: _Threads = None) -> int:
        """Makes the pages resident in every other mapping of the node's memory in this process,
        such as the mapping of an engine that received the descriptor. Otherwise the first access to
        each page there faults. Returns the total length of those mappings in bytes.
        """

    @property
    def devices(self) -> _list[str]:
        """Names of the devices with which the memory is registered, in order."""

    def key_for(self, device: str, start: int = 0, stop: int | None = None) -> Key:
        """Returns the key with which a device reaches ``[start, stop)`` of the node's memory, such
        as the bytes of a value from its ``offset`` on. Raises :class:`RegistrationError` if the
        range crosses a boundary between two keys.
        """

    @property
    def namespace(self) -> str:
        """Namespace of all keys."""

    @property
    def path(self) -> Path:
        """Path of the server's socket."""

    @property
    def read_only(self) -> bool:
        """Whether the memory is mapped for reading only."""

    @property
    def has_rings(self) -> bool:
        """Whether calls go through rings in shared memory."""

    @property
    def unverified(self) -> int:
        """Number of values that were misses because the cache verifies values and these have no
        checksum: their writers have connected without ``checksums``. A value counts once for each
        acquisition.
        """

    def close(self) -> None:
        """Ends the connection. Pinned values and reservations stay, and keep the memory mapped."""

    @property
    def closed(self) -> bool:
        """Whether the cache has been closed."""

@final
class NodeOperator:
    """The calls of operators on a node: see :meth:`NodeCache.as_operator`. The server answers them
    to its own user, to root and to those that ``kvmem serve --operator`` names; others get
    :class:`NodeError`.
    """

    def list(self, *, max: SupportsIndex | None = None) -> _list[Listed]:
        """Lists the values of all namespaces, at most ``max`` of them. Values that come and go
        meanwhile may be missing.
        """

    def misses(self, max: SupportsIndex = 256) -> _list[Miss]:
        """Lists at most ``max`` of the last misses of all namespaces, as
        :meth:`NodeCache.misses` those of one.
        """

    def sessions(self) -> _list[SessionListed]:
        """Lists the clients of the server."""

    def evict(self, nbytes: _Size, namespace: str | None = None) -> int:
        """Evicts values of at least ``nbytes`` bytes: of a namespace, or None for all. Returns the
        number of bytes evicted.
        """

    def clear(self, namespace: str | None = None) -> int:
        """Removes all values: of a namespace, or None for all. Returns their number. Pinned values
        stay valid. Raises :class:`NodeError` for a namespace if the node has a tier, which only
        removes all.
        """

    def resize(self, nbytes: _Size) -> Resized:
        """Changes the bytes of the memory that are used, up to the server's ``--max``. A smaller
        memory evicts values in the usual order, moves others to its front, and gives its pages back
        to the kernel. Blocks that are pinned or reserved stay, and the server goes on when they are
        free.
        """

    def reclaim_pins(self, pid: SupportsIndex) -> int:
        """Ends the pins of a process that is known to read no more. Returns the number of values
        that were pinned.
        """

@final
class PinBatch(_Manager):
    """The values that one call has found, pinned: a sequence with an element for each key, None for
    keys without a value.

    Leaving the ``with`` block releases all of them. Without one, each value is released when its
    own object is gone.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> PinnedValue | None: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[PinnedValue | None, ...]: ...
    def __iter__(self) -> Iterator[PinnedValue | None]: ...
    @property
    def hits(self) -> int:
        """Number of keys that have values."""

    @property
    def pending(self) -> list[int]:
        """Positions, in order, of the keys whose values only the tier below the node has: it reads
        them now. Empty if the call has waited for them.
        """

    @property
    def offsets(self) -> list[int | None]:
        """Offset of each value in the node's memory, in bytes; None for keys without a value."""

    @property
    def lengths(self) -> list[int | None]:
        """Length of each value in bytes; None for keys without a value."""

    @property
    def is_valid(self) -> bool:
        """Whether all values are still pinned, as for :attr:`PinnedValue.is_valid`. Makes no
        call.
        """

    def release(self) -> None:
        """Releases all values. Raises :class:`ExportedError`, and releases none, while one is
        viewed.
        """

@final
class PinnedValue(_Memory, _Manager):
    """A value of a node. It is not evicted while this object exists. Its bytes are read-only.

    ``release`` raises :class:`ExportedError` while views exist, such as tensors of :func:`tensor`
    with ``read_only=True``. A tensor of ``torch.frombuffer`` is no view: after ``release`` it may
    read the bytes of another value.
    """

    @property
    def cache_key(self) -> _CacheKey:
        """Key that the value was found under."""

    @property
    def offset(self) -> int:
        """Offset of the value in the node's memory, in bytes."""

    @property
    def is_valid(self) -> bool:
        """Whether the value is still pinned. If it is, the bytes that this thread has read before
        are those of the value. It is not if the server has reclaimed it, or if one that has
        restarted took this process for ended: look after reading, if that can happen. Makes no
        call.
        """

    @property
    def address(self) -> int:
        """First address of the bytes in this process, for reading by code that takes addresses. It
        stays mapped until ``release``; code that uses it is no view, and ends first.

        Raises :class:`PinRevokedError` if the pin is not valid, where ``ptr`` returns the address
        nevertheless.
        """

    def verify(self) -> None:
        """Compares the bytes with the checksum of their writer, which has connected with
        ``checksums=True``.

        Raises :class:`DamagedValueError` if they differ, and :class:`UnverifiedValueError` if the
        writer has calculated no checksum.
        """

    def release(self) -> None:
        """Releases the pin. Raises :class:`ExportedError` while views exist."""

@final
class NodeReservation(_Memory, _Manager):
    """Space for one value of a node, to be written in place. Leaving the ``with`` block commits the
    value, or discards it after an exception.

    Both raise :class:`ExportedError` while views exist, such as tensors of :func:`tensor`. A tensor
    of ``torch.frombuffer`` is no view: it can write to the bytes of another value afterwards.
    """

    @property
    def cache_key(self) -> _CacheKey:
        """Key that the value will be stored under."""

    @property
    def offset(self) -> int:
        """Offset of the value in the node's memory, in bytes."""

    @property
    def is_valid(self) -> bool:
        """Whether the server still has the reservation. It gives the space to no other client
        before this process has unmapped the memory, or has ended, so this is false only after an
        operator or a fault has ended the client's session. Makes no call.
        """

    @property
    def address(self) -> int:
        """First address of the bytes in this process, for writing by code that takes addresses. It
        stays mapped until the value is committed or discarded; code that uses it is no view, and
        ends first.

        Raises :class:`ReservationLostError` if the reservation is not valid, where ``ptr`` returns
        the address nevertheless.
        """

    def write(self, source: _Buffer, start: int = 0) -> int:
        """Copies the bytes of ``source`` into the value from ``start`` on. Returns their number.

        Raises :class:`ReservationLostError` if the reservation is not valid.
        """

    def commit(self) -> None:
        """Returns what a commit takes."""

    def discard(self) -> None:
        """Frees the space. The value that the key has, if any, does not change."""
