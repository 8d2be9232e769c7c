"""Host memory for LLM inference servers: mapped, pinned, divided into blocks, and cached.

The layers, from the bottom up: :class:`Region` (memory) and :class:`BumpArena` (pieces of it),
:class:`Registration` (keys for devices), :class:`OffsetAllocator` (ranges of an abstract space),
:class:`Pool` (all of them combined) and :class:`KvCache` (values by key). :func:`connect` is for
values by key that all processes of a machine share.

Conventions:

- Sizes are in bytes: an ``int``, or a text such as ``"64GiB"``.
- Objects with memory (:class:`Region`, :class:`Piece`, :class:`Block`, …) support the buffer
  protocol and DLPack, which ``memoryview``, ``numpy.frombuffer``, ``numpy.from_dlpack`` and
  ``torch.from_dlpack`` read without a copy. Such a view holds the memory, and the memory cannot be
  freed while a view exists. ``torch.frombuffer`` makes no such view: use :func:`tensor`.
- Running out of space raises :class:`MemoryError`; invalid input raises :class:`ValueError`. Every
  exception is also a :class:`KvmemError` and has the numbers as attributes.
- Long calls release the GIL, can be interrupted with Ctrl-C, and report their progress by
  ``progress(done, total)``.
- The logger is ``logging.getLogger("kvmem")``."""

import logging as _logging

from . import _interpreter, data, errors  # noqa: F401 (_interpreter)
from ._async_node import AsyncNodeCache, connect_async
from ._kvmem import (
    Allocation,
    AllocationBatch,
    AttachedBlock,
    AttachedPool,
    Block,
    BlockBatch,
    BumpArena,
    Chain,
    DiskTier,
    Fetching,
    Hold,
    KvCache,
    NodeCache,
    NodeOperator,
    NodeReservation,
    OffsetAllocator,
    Piece,
    PinBatch,
    Pinned,
    PinnedValue,
    Pool,
    Region,
    Registration,
    Reservation,
    TierSet,
    __version__,
    connect,
    doctor,
    mount_report,
    parse_size,
    prefix_keys,
)
from ._tensor import tensor
from .c_library import get_include, get_library_dir
from .data import *  # noqa: F403
from .errors import *  # noqa: F403

_logging.getLogger("kvmem").addHandler(_logging.NullHandler())

__all__ = [
    "Allocation",
    "AllocationBatch",
    "AsyncNodeCache",
    "AttachedBlock",
    "AttachedPool",
    "Block",
    "BlockBatch",
    "BumpArena",
    "Chain",
    "DiskTier",
    "Fetching",
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
    "connect_async",
    "data",
    "doctor",
    "errors",
    "get_include",
    "get_library_dir",
    "mount_report",
    "parse_size",
    "prefix_keys",
    "tensor",
]
__all__ += data.__all__
__all__ += errors.__all__
