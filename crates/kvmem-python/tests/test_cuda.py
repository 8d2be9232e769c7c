"""Memory of LMCache that is registered with a GPU: a copy meets no edge between two pieces."""

from __future__ import annotations

from collections.abc import Callable

import cuda_driver
import pytest

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
