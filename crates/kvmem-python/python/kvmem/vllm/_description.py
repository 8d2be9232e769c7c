"""*Descriptions*: the tokens behind a stored chunk, as another value of the node.

A key of vLLM is a hash, and a router needs its input. The engine that stores a chunk commits the
description with it, under the chunk's key and :data:`SUFFIX`. A key names its input, so all
descriptions of a key are equal, whichever engine has written one.

=========  ========================================================================================
bytes      content
=========  ========================================================================================
0          the version of this format, 1
1 to 4     number of the group of layers
5 to 8     tokens of a block
9 to 16    tokens of the sliding window; -1: there is none
17 to 24   number of the adapter; -1: there is none
others     fields, each behind its length in four bytes, and 0xFFFFFFFF for one that is missing:
           tokens in four bytes each, the hash of the block before the chunk, the hashes of its
           blocks one by one behind their number, the name of the adapter, the kind of the group,
           and further keys of the hashes, as JSON
=========  ========================================================================================

All numbers are little-endian."""

import json
import struct
from dataclasses import dataclass
from typing import Any

SUFFIX = b"\0about"
"""Follows the key of a chunk in the key of its description. A key of vLLM ends with the number of a
group of layers, in four bytes, and never like this."""

_VERSION = 1
_HEAD = struct.Struct("<BIIqq")
_LEN = struct.Struct("<I")
_MISSING = 0xFFFF_FFFF


@dataclass(frozen=True)
class Description:
    """What vLLM's event of a stored chunk says of it."""

    block_hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    extra_keys: list[Any] | None
    group: int
    kind: str | None
    sliding_window: int | None

    def encode(self) -> bytes:
        """Returns the value in the node. Raises :class:`ValueError` if the format has no place."""
        extra = None if self.extra_keys is None else json.dumps(self.extra_keys).encode()
        window = -1 if self.sliding_window is None else self.sliding_window
        lora = -1 if self.lora_id is None else self.lora_id
        try:
            head = _HEAD.pack(_VERSION, self.group, self.block_size, window, lora)
            tokens = struct.pack(f"<{len(self.token_ids)}I", *self.token_ids)
        except struct.error as error:
            raise ValueError(f"a chunk cannot be described: {error}") from error
        fields = [
            tokens,
            self.parent,
            _LEN.pack(len(self.block_hashes)),
            *self.block_hashes,
            None if self.lora_name is None else self.lora_name.encode(),
            None if self.kind is None else self.kind.encode(),
            extra,
        ]
        return head + b"".join(_field(it) for it in fields)


def _field(value: bytes | None) -> bytes:
    return _LEN.pack(_MISSING) if value is None else _LEN.pack(len(value)) + value


def _tuples(value: Any) -> Any:
    """JSON has lists where vLLM has tuples."""
    return tuple(_tuples(it) for it in value) if isinstance(value, list) else value


def decode(data: bytes) -> Description | None:
    """Returns the description that bytes are; None if they are none of this version."""
    try:
        return _decode(data)
    except (TypeError, ValueError, struct.error):
        return None


def _decode(data: bytes) -> Description | None:
    version, group, block_size, window, lora = _HEAD.unpack_from(data)
    fields: list[bytes | None] = []
    at = _HEAD.size
    while at < len(data):
        (length,) = _LEN.unpack_from(data, at)
        at += _LEN.size
        if length == _MISSING:
            fields.append(None)
        else:
            fields.append(data[at : at + length])
            at += length
    tokens, parent, number, *others = fields
    *hashes, lora_name, kind, extra = others
    is_whole = version == _VERSION and at == len(data) and len(tokens or b"") % 4 == 0
    if not (is_whole and hashes and all(hashes) and _LEN.pack(len(hashes)) == number):
        return None
    return Description(
        block_hashes=tuple(it for it in hashes if it is not None),
        parent=parent,
        token_ids=struct.unpack(f"<{len(tokens or b'') // 4}I", tokens or b""),
        block_size=block_size,
        lora_id=None if lora < 0 else lora,
        lora_name=None if lora_name is None else lora_name.decode(),
        extra_keys=None if extra is None else [_tuples(it) for it in json.loads(extra)],
        group=group,
        kind=None if kind is None else kind.decode(),
        sliding_window=None if window < 0 else window,
    )


def parents_first(keys: list[bytes], described: dict[bytes, Description]) -> list[bytes]:
    """Returns keys in an order in which no chunk comes before the one that it continues."""
    ends = {
        (it.group, it.block_hashes[-1]): key
        for key in keys
        if (it := described.get(key)) is not None
    }
    ordered: list[bytes] = []
    seen: set[bytes] = set()
    for key in keys:
        chain: list[bytes] = []
        at: bytes | None = key
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(at)
            it = described.get(at)
            at = None if it is None or it.parent is None else ends.get((it.group, it.parent))
        ordered += reversed(chain)
    return ordered
