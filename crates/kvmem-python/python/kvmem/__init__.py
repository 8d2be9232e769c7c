"""Host memory for LLM inference servers: mapped, pinned, divided into blocks, and cached.

The layers, from the bottom up: :class:`Region` (memory) and :class:`BumpArena` (pieces of it),
:class:`Registration` (keys for devices), :class:`OffsetAllocator` (ranges of an abstract space),
:class:`Pool` (all of them combined) and :class:`KvCache` (values by key).

Conventions:

- Sizes are in bytes: an ``int``, or a text such as ``"64GiB"``.
- Objects with memory (:class:`Region`, :class:`Piece`, :class:`Block`, …) support the buffer
  protocol and DLPack, which ``memoryview``, ``numpy.frombuffer``, ``numpy.from_dlpack`` and
  ``torch.from_dlpack`` read without a copy. Such a view keeps the memory, and the memory cannot be
  freed while a view exists.
- Running out of space raises :class:`MemoryError`; invalid input raises :class:`ValueError`. Every
  exception is also a :class:`KvmemError` and has the numbers as attributes.
- Long calls release the GIL, can be interrupted with Ctrl-C, and report their progress by
  ``progress(done, total)``.
- The logger is ``logging.getLogger("kvmem")``.
"""

import logging as _logging

from . import data, errors
from ._kvmem import (
    Allocation,
    AllocationBatch,
    AttachedBlock,
    AttachedPool,
    Block,
    BlockBatch,
    BumpArena,
    DiskTier,
    Hold,
    KvCache,
    Lease,
    OffsetAllocator,
    Piece,
    Pinned,
    Pool,
    Region,
    Registration,
    Reservation,
    __version__,
    doctor,
    mount_report,
    parse_size,
)
from .c_library import get_include, get_library_dir
from .data import (
    BlockReference,
    BumpStats,
    Diagnosis,
    DiskTierStats,
    Key,
    KvCacheStats,
    Metrics,
    OpenReport,
    Report,
    Residency,
)
from .errors import (
    CancelledError,
    ClosedError,
    DiskTierError,
    ExportedError,
    ForkedError,
    HeapFullError,
    InUseError,
    InvalidArgumentError,
    InvalidBatchError,
    InvalidBufferError,
    InvalidDescriptorError,
    KvmemError,
    MappingError,
    NotAvailableError,
    NotInstalledError,
    NotReadyError,
    OutOfSpaceError,
    RegistrationError,
    TimeBudgetError,
)

_logging.getLogger("kvmem").addHandler(_logging.NullHandler())

__all__ = [
    "Allocation",
    "AllocationBatch",
    "AttachedBlock",
    "AttachedPool",
    "Block",
    "BlockBatch",
    "BlockReference",
    "BumpArena",
    "BumpStats",
    "CancelledError",
    "ClosedError",
    "Diagnosis",
    "DiskTier",
    "DiskTierError",
    "DiskTierStats",
    "ExportedError",
    "ForkedError",
    "HeapFullError",
    "Hold",
    "InUseError",
    "InvalidArgumentError",
    "InvalidBatchError",
    "InvalidBufferError",
    "InvalidDescriptorError",
    "Key",
    "KvCache",
    "KvCacheStats",
    "KvmemError",
    "Lease",
    "MappingError",
    "Metrics",
    "NotAvailableError",
    "NotInstalledError",
    "NotReadyError",
    "OffsetAllocator",
    "OpenReport",
    "OutOfSpaceError",
    "Piece",
    "Pinned",
    "Pool",
    "Region",
    "Registration",
    "RegistrationError",
    "Report",
    "Reservation",
    "Residency",
    "TimeBudgetError",
    "__version__",
    "data",
    "doctor",
    "errors",
    "get_include",
    "get_library_dir",
    "mount_report",
    "parse_size",
]
