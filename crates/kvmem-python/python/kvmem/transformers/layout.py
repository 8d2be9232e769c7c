"""*Layout*: the bytes of a block: a head, and the keys and values of each layer.

The head says what follows, so a reader needs no model to know the shapes, and two blocks fit
together if their heads are equal. It is padded to a multiple of 64 bytes, as is each part, which
aligns the elements of every type. Keys of a layer have the shape (heads, tokens, width); so have
its values, whose width may be another."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEAD = struct.Struct("<8sI")
_MAGIC = b"kvmem hf"
_ALIGN = 64


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class Part:
    """The keys or the values of a layer in a block."""

    dtype: str
    shape: tuple[int, int, int]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """Where the keys and values of each layer are in a block."""

    head: bytes
    parts: tuple[Part, ...]
    """Keys and values by turns, layer by layer."""
    nbytes: int

    @staticmethod
    def of(torch: Any, shapes: Sequence[tuple[str, int, int, int]]) -> "Layout":
        """Returns the layout of blocks: of each part the type, heads, tokens and width."""
        text = json.dumps([list(shape) for shape in shapes], separators=(",", ":")).encode()
        head = _HEAD.pack(_MAGIC, len(text)) + text
        head = head.ljust(_padded(len(head)), b"\0")
        parts, offset = [], len(head)
        for dtype, heads, tokens, width in shapes:
            nbytes = heads * tokens * width * int(getattr(torch, dtype).itemsize)
            parts.append(Part(dtype, (heads, tokens, width), offset, nbytes))
            offset += _padded(nbytes)
        return Layout(head, tuple(parts), offset)

    @staticmethod
    def read(torch: Any, value: memoryview) -> "Layout | None":
        """Returns the layout of a stored block; None if its head is not one."""
        if len(value) < _HEAD.size:
            return None
        magic, length = _HEAD.unpack(value[: _HEAD.size])
        if magic != _MAGIC or length > len(value) - _HEAD.size:
            return None
        try:
            shapes = json.loads(bytes(value[_HEAD.size : _HEAD.size + length]))
            found = Layout.of(
                torch, [(str(dtype), int(a), int(b), int(c)) for dtype, a, b, c in shapes]
            )
        except (ValueError, TypeError, AttributeError):
            return None
        return found if found.nbytes == len(value) else None

    def is_of(self, value: memoryview) -> bool:
        """Returns whether a stored block has this layout."""
        return len(value) == self.nbytes and value[: len(self.head)] == self.head
