"""*Descriptors*: the positions of blocks as plain numbers, and as bytes for a peer.

NIXL sends descriptors as a pickle, which can run any code of its sender. These consist of numbers
and a name::

    "kvmem-nixl-1"  12 bytes
    n  m            length of the agent's name in bytes, number of blocks: 32 bits each
    name            UTF-8
    address nbytes  for each block: 64 bits each

All numbers are little-endian."""

import importlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from .._kvmem import Block, BlockBatch
from ..errors import InvalidArgumentError
from .errors import NotInPoolError

_MAGIC = b"kvmem-nixl-1"
_FAMILY = _MAGIC[:-1]
"""All versions of the format begin like this."""
_HEAD = struct.Struct("<12sII")

Blocks: TypeAlias = Any
"""A block, a batch, another object of the pool with a buffer, or an iterable of those."""


class TransferViews(NamedTuple):
    """Address ranges, with the views that hold them."""

    spans: list[tuple[int, int]]
    """Address and length of each range."""
    releases: list[Callable[[], None]]
    """Functions that release the views."""

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.spans)

    def release(self) -> None:
        for release in self.releases:
            release()
        self.releases.clear()


def transfer_views(
    blocks: Blocks, start: int, stop: int, *, writable: bool = False
) -> TransferViews:
    """Views blocks, each of which must lie between two addresses."""
    views = TransferViews([], [])
    try:
        _add(blocks, views, writable, nested=False)
        if not views.spans:
            raise InvalidArgumentError("there are no blocks to transfer: pass at least one")
        for address, nbytes in views.spans:
            if not nbytes:
                raise InvalidArgumentError("a block is empty: pass blocks of at least one byte")
            if not (start <= address and address + nbytes <= stop):
                raise NotInPoolError(
                    f"{nbytes} bytes at {address:#x} lie outside the {stop - start} registered "
                    f"bytes of the pool, {start:#x}..{stop:#x}: pass blocks of the agent's own "
                    "pool, in the part that it had when the agent was made",
                    address=address,
                    nbytes=nbytes,
                    start=start,
                    stop=stop,
                )
    except BaseException:
        views.release()
        raise
    return views


def _add(blocks: Blocks, views: TransferViews, writable: bool, *, nested: bool) -> None:
    if isinstance(blocks, BlockBatch):
        hold = blocks.hold()
        views.releases.append(hold.release)
        nbytes = blocks.nbytes
        views.spans.extend((address, nbytes) for address in blocks.ptrs)
        return
    try:
        view = memoryview(blocks)
    except TypeError:
        if nested or not isinstance(blocks, Iterable):
            raise InvalidArgumentError(
                f"{type(blocks).__name__} is no block: pass blocks of the agent's pool, or views "
                "of them"
            ) from None
        for block in blocks:
            _add(block, views, writable, nested=True)
        return
    views.releases.append(view.release)
    if writable and view.readonly:
        raise InvalidArgumentError(
            "the bytes are read-only, and the transfer would write to them: pass a writable block"
        )
    if not view.c_contiguous:
        raise InvalidArgumentError(
            "the bytes are not contiguous: pass each contiguous range as a view of its own"
        )
    views.spans.append((_address(blocks, view), view.nbytes))


def _address(block: Any, view: memoryview) -> int:
    if isinstance(block, Block):
        return block.ptr
    if not view.nbytes:
        return 0
    # NIXL requires NumPy.
    flat = importlib.import_module("numpy").frombuffer(view, "u1")
    return int(flat.ctypes.data)


def pack(agent: str, spans: list[tuple[int, int]]) -> bytes:
    """Packs address ranges into bytes for a peer."""
    name = agent.encode()
    numbers = [number for span in spans for number in span]
    return (
        _HEAD.pack(_MAGIC, len(name), len(spans))
        + name
        + struct.pack(f"<{len(numbers)}Q", *numbers)
    )


def unpack(data: bytes) -> tuple[str, list[tuple[int, int]]]:
    """Returns the name of the agent, and address and length of each block."""
    if len(data) >= _HEAD.size:
        magic, name_bytes, count = _HEAD.unpack_from(data)
        body = _HEAD.size + name_bytes
        if magic == _MAGIC and len(data) == body + 16 * count:
            numbers = struct.unpack_from(f"<{2 * count}Q", data, body)
            name = data[_HEAD.size : body].decode(errors="replace")
            return name, list(zip(numbers[::2], numbers[1::2], strict=True))
    magic = data[: len(_MAGIC)]
    if magic.startswith(_FAMILY) and magic != _MAGIC:
        raise InvalidArgumentError(
            f"the descriptors begin with {magic!r}, and this kvmem reads {_MAGIC!r}: use one "
            "release of kvmem on both sides"
        )
    raise InvalidArgumentError(
        f"{len(data)} bytes are no descriptors: pass what Agent.descriptors() of the peer has "
        "returned, unchanged"
    )
