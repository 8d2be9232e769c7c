"""*Descriptors*: where blocks are, as plain numbers, and as bytes for a peer.

NIXL's own way to send descriptors is a pickle, which runs whatever its sender likes. These are numbers and a name::

    "kvmem-nixl-1"  12 bytes
    n  m            length of the agent's name in bytes, number of pieces: 32 bits each
    name            UTF-8
    address nbytes  for each piece: 64 bits each

All of them little-endian.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from .._kvmem import Block, BlockBatch
from ..errors import InvalidArgumentError
from .errors import NotInPoolError

_MAGIC = b"kvmem-nixl-1"
_HEAD = struct.Struct("<12sII")

Blocks: TypeAlias = Any
"""A block, a batch, anything else with the buffer protocol that lies in the pool, or an iterable of those."""


class Pieces(NamedTuple):
    """Bytes in memory, and what keeps them there."""

    spans: list[tuple[int, int]]
    """Address and length of each."""
    release: list[Callable[[], None]]
    """Lets go of them."""

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.spans)

    def let_go(self) -> None:
        for release in self.release:
            release()
        self.release.clear()


def pieces(blocks: Blocks, start: int, stop: int, *, writable: bool = False) -> Pieces:
    """Views of blocks, each of which must lie between two addresses."""
    taken = Pieces([], [])
    try:
        _take(blocks, taken, writable, nested=False)
        if not taken.spans:
            raise InvalidArgumentError("there are no blocks: name one at least")
        for address, nbytes in taken.spans:
            if not nbytes:
                raise InvalidArgumentError(
                    "a block has no bytes: a transfer takes one at least of each"
                )
            if not (start <= address and address + nbytes <= stop):
                raise NotInPoolError(
                    f"{nbytes} bytes at {address:#x} do not lie in the {stop - start} bytes of the pool that are registered, "
                    f"{start:#x}..{stop:#x}: take blocks of the agent's own pool, of a size that it had when the agent was made",
                    address=address,
                    nbytes=nbytes,
                    start=start,
                    stop=stop,
                )
    except BaseException:
        taken.let_go()
        raise
    return taken


def _take(blocks: Blocks, taken: Pieces, writable: bool, *, nested: bool) -> None:
    if isinstance(blocks, BlockBatch):
        hold = blocks.hold()
        taken.release.append(hold.release)
        nbytes = blocks.nbytes
        taken.spans.extend((address, nbytes) for address in blocks.ptrs)
        return
    try:
        view = memoryview(blocks)
    except TypeError:
        if nested or not isinstance(blocks, Iterable):
            raise InvalidArgumentError(
                f"{type(blocks).__name__} is no block: pass blocks of the agent's pool, or views of them"
            ) from None
        for block in blocks:
            _take(block, taken, writable, nested=True)
        return
    taken.release.append(view.release)
    if writable and view.readonly:
        raise InvalidArgumentError(
            "the bytes are read-only, and a transfer was to write to them: pass a block of your own"
        )
    if not view.c_contiguous:
        raise InvalidArgumentError(
            "the bytes do not lie in one piece: pass each piece as a view of its own"
        )
    taken.spans.append((_address(blocks, view), view.nbytes))


def _address(block: Any, view: memoryview) -> int:
    if isinstance(block, Block):
        return block.ptr
    if not view.nbytes:
        return 0
    # NIXL has NumPy with it.
    flat = importlib.import_module("numpy").frombuffer(view, "u1")
    return int(flat.ctypes.data)


def pack(agent: str, spans: list[tuple[int, int]]) -> bytes:
    """Bytes for a peer."""
    name = agent.encode()
    numbers = [number for span in spans for number in span]
    return (
        _HEAD.pack(_MAGIC, len(name), len(spans))
        + name
        + struct.pack(f"<{len(numbers)}Q", *numbers)
    )


def unpack(data: bytes) -> tuple[str, list[tuple[int, int]]]:
    """The name of the agent, and address and length of each piece."""
    if len(data) >= _HEAD.size:
        magic, name_bytes, count = _HEAD.unpack_from(data)
        body = _HEAD.size + name_bytes
        if magic == _MAGIC and len(data) == body + 16 * count:
            numbers = struct.unpack_from(f"<{2 * count}Q", data, body)
            name = data[_HEAD.size : body].decode(errors="replace")
            return name, list(zip(numbers[::2], numbers[1::2], strict=True))
    raise InvalidArgumentError(
        f"{len(data)} bytes are no descriptors: pass what Agent.descriptors() of the peer has given, unchanged"
    )
