"""*Announced*: a chunk of a node in vLLM's events. Importing this module imports vLLM."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as _external

from ._answers import GROUP
from ._description import Description, decode

_LOCALITY = "LOCAL"


@dataclass(frozen=True)
class Announced:
    """A chunk that is announced."""

    medium: str
    about: bytes | None
    """Its description, encoded."""
    hash_at: int
    """Where the hash begins in its key: behind the prefix of a reset."""


def _of_key(key: bytes, hash_at: int) -> tuple[list[bytes], int]:
    """Returns what a key alone says: the hash of the last block, and the group."""
    return [key[hash_at:-GROUP]], int.from_bytes(key[-GROUP:], "big")


def stored_event(key: bytes, chunk: Announced, it: Description | None) -> Any:
    """Returns vLLM's event of a chunk. One without a description has its hash alone."""
    if it is None:
        hashes, group = _of_key(key, chunk.hash_at)
        return BlockStored(
            block_hashes=[_external(one) for one in hashes],
            parent_block_hash=None,
            token_ids=[],
            block_size=0,
            lora_id=None,
            medium=chunk.medium,
            lora_name=None,
            group_idx=group,
            locality=_LOCALITY,
        )
    return BlockStored(
        block_hashes=[_external(one) for one in it.block_hashes],
        parent_block_hash=None if it.parent is None else _external(it.parent),
        token_ids=list(it.token_ids),
        block_size=it.block_size,
        lora_id=it.lora_id,
        medium=chunk.medium,
        lora_name=it.lora_name,
        extra_keys=it.extra_keys,
        group_idx=it.group,
        kv_cache_spec_kind=it.kind,
        kv_cache_spec_sliding_window=it.sliding_window,
        locality=_LOCALITY,
    )


def removed_events(chunks: Iterable[tuple[bytes, Announced]]) -> Iterable[Any]:
    """Returns vLLM's events of chunks that are no longer where they were announced."""
    of: dict[tuple[str, int], list[Any]] = {}
    for key, chunk in chunks:
        hashes, group = _of_key(key, chunk.hash_at)
        if chunk.about is not None and (about := decode(chunk.about)) is not None:
            hashes, group = list(about.block_hashes), about.group
        of.setdefault((chunk.medium, group), []).extend(_external(one) for one in hashes)
    for (medium, group), blocks in of.items():
        yield BlockRemoved(block_hashes=blocks, medium=medium, group_idx=group, locality=_LOCALITY)
