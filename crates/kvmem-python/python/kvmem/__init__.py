"""Host memory under LLM inference servers: mapped, populated, registered, and handed out in blocks.

The layers, from below: :class:`Region` (memory) and :class:`BumpArena` (pieces of it), :class:`Registration` (keys for devices),
:class:`OffsetAllocator` (ranges of an abstract space), :class:`Pool` (all of them as one) and :class:`KvCache` (values under keys).

Conventions:

- Sizes are bytes, as ``int`` or as a text such as ``"64GiB"``.
- What has memory (:class:`Region`, :class:`Piece`, :class:`Block`, …) has the buffer protocol and DLPack, so that ``memoryview``,
  ``numpy.frombuffer``, ``numpy.from_dlpack`` and ``torch.from_dlpack`` share it. Such views keep it; while there are any, it cannot be
  freed.
- What is out of space is a :class:`MemoryError`, bad input a :class:`ValueError`; all are :class:`KvmemError`, with the numbers as attributes.
- What takes long releases the GIL, can be ended by Ctrl-C, and tells ``progress(done, total)`` how far it has come.
- The log is ``logging.getLogger("kvmem")``.
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
from .errors import (
    CancelledError,
    ClosedError,
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
    "NotReadyError",
    "OffsetAllocator",
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
    "mount_report",
    "parse_size",
]
