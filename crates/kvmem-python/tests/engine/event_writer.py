"""*Writer*: a process that stores chunks as engines do, with descriptions, as fast as it can.

``python event_writer.py SOCKET NAMESPACE SEED CHUNKS`` stores them in prompts of eight chunks. The
keys of chunks and their tokens follow from the seed: :func:`prompts` says which they are.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from hashlib import sha256

import kvmem
from kvmem.vllm._description import SUFFIX, Description

ROW = 4096
"""Bytes of a chunk."""
PER_PROMPT = 8
TOKENS = 4
"""Tokens of a chunk, which is one block."""


def hash_of(parent: bytes | None, tokens: tuple[int, ...]) -> bytes:
    """Returns the hash of a block, in the manner of vLLM's."""
    return sha256(repr((parent, tokens)).encode()).digest()


def prompts(seed: int, chunks: int) -> Iterator[list[Description]]:
    """Yields the chunks of each prompt."""
    draw = random.Random(seed)
    for _ in range(chunks // PER_PROMPT):
        parent, prompt = None, []
        for _ in range(PER_PROMPT):
            tokens = tuple(draw.randrange(1 << 32) for _ in range(TOKENS))
            block = hash_of(parent, tokens)
            prompt.append(
                Description((block,), parent, tokens, TOKENS, None, None, None, 0, "full", None)
            )
            parent = block
        yield prompt


def key_of(chunk: Description) -> bytes:
    """Returns vLLM's key of a chunk."""
    return chunk.block_hashes[-1] + chunk.group.to_bytes(4, "big")


def _store(cache: kvmem.NodeCache, prompt: list[Description]) -> None:
    rows = cache.reserve_batch([(key_of(it), ROW) for it in prompt])
    encoded = [(key_of(it) + SUFFIX, it.encode()) for it in prompt]
    abouts = cache.reserve_batch([(key, len(it)) for key, it in encoded])
    for reservation, (_, about) in zip(abouts, encoded):
        reservation.write(about)
    cache.commit([*abouts, *rows])


def _main(path: str, namespace: str, seed: str, chunks: str) -> None:
    with kvmem.connect(path, namespace=namespace, retry_for=60) as cache:
        for prompt in prompts(int(seed), int(chunks)):
            try:
                _store(cache, prompt)
            except kvmem.OutOfSpaceError:
                # Everything that could be evicted is being written to the disk.
                continue


if __name__ == "__main__":
    _main(*sys.argv[1:])
