"""Memory that is registered with a GPU: a copy meets no edge between two registered pieces."""

from __future__ import annotations

from collections.abc import Callable

import cuda_driver
import pytest
from node_server import Server

Script = Callable[..., str]


@pytest.fixture(scope="module")
def prelude(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Makes a GPU known to a script. The driver is loaded into a process of its own: the one of
    the tests has no GPU.
    """
    library = cuda_driver.compiled(tmp_path_factory.mktemp("cuda"))
    return f"""
import sys
sys.path.insert(0, {str(cuda_driver.TESTS)!r})
import kvmem
from cuda_driver import Driver
driver = Driver({library!r})
GIB, MIB, SIZES = 1 << 30, 1 << 20, [3_274_752, 1_000_003, 7_654_321, 4097]

def copy_everywhere(address, nbytes):
    # Copies ranges of odd lengths, one behind the other, through all of the memory.
    offset = number = 0
    while offset < nbytes:
        length = min(SIZES[number % len(SIZES)], nbytes - offset)
        assert driver.copy(address + offset, length) == 0, (offset, length)
        offset += length
        number += 1
    assert (driver.number("copied"), driver.number("crossed")) == (2 * number, 0)
"""


def test_a_region_is_registered_in_one_piece(script: Script, prelude: str) -> None:
    script(
        prelude
        + """
with kvmem.Region(GIB + 64 * MIB, pages="4k") as region:
    with kvmem.Registration(region, "cuda:0") as registration:
        assert registration.boundary is None and driver.number("live_ranges") == 1
        copy_everywhere(region.ptr, region.nbytes)
        registration.key_for("cuda:0", GIB - 1, GIB + 1)
"""
    )


def test_a_range_of_two_pieces_is_an_error_before_it_is_copied(
    script: Script, prelude: str
) -> None:
    out = script(
        prelude
        + """
with kvmem.Region(16 * MIB, pages="4k") as region:
    with kvmem.Registration(region, "cuda:0", chunk="4MiB") as registration:
        assert registration.boundary == 4 * MIB
        registration.key_for("cuda:0", 4 * MIB, 8 * MIB)
        assert driver.copy(region.ptr + 4 * MIB, 4 * MIB) == 0
        try:
            registration.key_for("cuda:0", 4 * MIB - 1, 4 * MIB + 1)
        except kvmem.RegistrationError as error:
            assert (error.device, error.boundary) == ("cuda:0", 4 * MIB)
            print(error)
        # The driver's error for such a copy: cudaErrorInvalidValue.
        assert driver.copy(region.ptr + 4 * MIB - 1, 2) == 1
"""
    )
    assert "4194303..4194305 straddle" in out and "cuda:0 at 4194304: split" in out, out


def test_blocks_of_a_pool_are_copied(script: Script, prelude: str) -> None:
    script(
        prelude
        + """
with kvmem.Pool(GIB + 64 * MIB, pages="4k", devices="cuda:0") as pool:
    assert pool.boundary == GIB and driver.number("live_ranges") == 2
    blocks = []
    try:
        while True:
            blocks.append(pool.allocate(SIZES[len(blocks) % len(SIZES)]))
    except kvmem.OutOfSpaceError:
        assert len(blocks) > 270
    for block in blocks:
        assert driver.copy(block.ptr, block.nbytes) == 0
    assert driver.number("crossed") == 0
    for block in blocks:
        block.free()
"""
    )


def test_values_of_a_node_are_copied(script: Script, prelude: str) -> None:
    with Server((1 << 30) + (64 << 20)) as server:
        script(
            prelude
            + f"""
with kvmem.connect({str(server.path)!r}, devices="cuda:0") as cache:
    assert cache.boundary == GIB and driver.number("live_ranges") == 2
    made = []
    try:
        while True:
            made.append(cache.reserve(len(made), SIZES[len(made) % len(SIZES)]))
    except kvmem.OutOfSpaceError:
        assert len(made) > 270
    for value in made:
        assert driver.copy(cache.memory_address + value.offset, value.nbytes) == 0
        cache.key_for("cuda:0", value.offset, value.offset + value.nbytes)
    assert driver.number("crossed") == 0
    try:
        cache.key_for("cuda:0", GIB - 1, GIB + 1)
    except kvmem.RegistrationError as error:
        assert (error.device, error.boundary) == ("cuda:0", GIB)
    else:
        raise AssertionError
    for value in made:
        value.discard()
    try:
        cache.reserve("long", GIB + 1)
    except kvmem.OutOfSpaceError as error:
        assert error.limit == GIB and "boundary" in str(error), error
    else:
        raise AssertionError
"""
        )


def test_memory_of_lmcache_is_registered_in_one_piece(script: Script, prelude: str) -> None:
    script(
        prelude
        + """
from kvmem.lmcache import HostMemory
memory = HostMemory(pages="4k", devices="cuda:0")
pointer = memory.allocate(GIB + 64 * MIB)
assert driver.number("live_ranges") == 1
copy_everywhere(pointer, GIB + 64 * MIB)
memory.free(pointer)
assert driver.number("live_ranges") == 0
"""
    )
