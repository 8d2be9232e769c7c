"""The depth of a value in its prefix: the end of a prefix is evicted before its start."""

from __future__ import annotations

from typing import Any, cast

import kvmem
import pytest

BLOCKS = 8
HALF = BLOCKS // 2


def insert(cache: kvmem.KvCache, block: int, depth: int) -> None:
    cache.insert(block, bytes(1000), depth=depth)


def reserve(cache: kvmem.KvCache, block: int, depth: int) -> None:
    with cache.reserve(block, 1000, depth=depth) as reservation:
        reservation.write(bytes(1000))


def present(cache: kvmem.KvCache) -> list[int]:
    return [block for block in range(BLOCKS) if block in cache]


@pytest.mark.parametrize("store", [insert, reserve])
@pytest.mark.parametrize("eviction", ["lru", "scan-resistant"])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("used", [True, False])
def test_the_end_of_a_prefix_is_evicted_first(
    pool: kvmem.Pool, store: Any, eviction: str, forward: bool, used: bool
) -> None:
    cache = kvmem.KvCache(pool, max_blocks=100, eviction=eviction)
    blocks = range(BLOCKS) if forward else range(BLOCKS)[::-1]
    for block in blocks:
        store(cache, block, block)
    for block in blocks:
        assert not used or cache.get(block)
    assert cache.evict_to(HALF * 1000) == HALF * 1000
    assert present(cache) == list(range(HALF))


def test_without_depths_the_start_is_evicted_first(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool, max_blocks=100)
    for block in range(BLOCKS):
        cache.insert(block, bytes(1000))
    cache.evict_to(HALF * 1000)
    assert present(cache) == list(range(HALF, BLOCKS))


def test_a_depth_is_a_number_of_32_bits(pool: kvmem.Pool) -> None:
    cache = kvmem.KvCache(pool)
    cache.insert("k", b"value", depth=2**32 - 1)
    for depth in (-1, 2**32):
        for store in (insert, reserve):
            with pytest.raises(kvmem.InvalidArgumentError, match="depth"):
                store(cache, 1, depth)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError, match="depth"):
            cache.insert(1, b"value", depth=cast(Any, wrong))
    with pytest.raises(TypeError):
        cache.insert(1, b"value", 1)  # type: ignore[misc, unused-ignore]
    assert len(cache) == 1
