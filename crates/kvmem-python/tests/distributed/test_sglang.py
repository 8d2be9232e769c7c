"""SGLang's own hook registry and host allocators, out of its wheel, take their memory from kvmem."""

from __future__ import annotations

import re

import pytest
from engines import DOCS, run_with, unpacked

PRELUDE = "import standins; standins.sglang(sys.path[1])"

LOADED = """
import torch
from sglang.srt.mem_cache.pool_host import common
importer = type(sys)("importer")
importer.choose = common.get_allocator_from_storage  # as `from common import …` has it
sys.modules["importer"] = importer
from sglang.srt.plugins import load_plugins
load_plugins()
"""


def sglang(program: str, **environment: str) -> str:
    return run_with("sglang", PRELUDE, program, **environment)


def test_the_entry_point_puts_host_pools_into_regions() -> None:
    out = sglang(
        LOADED
        + """
for choose in (common.get_allocator_from_storage, importer.choose):
    allocator = choose("default")
    assert isinstance(allocator, common.HostTensorAllocator)
    print(type(allocator).__name__)
tensor = common.alloc_with_host_register((4, 1000), torch.float16, "cpu", False, allocator)
assert tuple(tensor.shape) == (4, 1000) and tensor.dtype == torch.float16
assert not tensor.any()
tensor[3, 999] = 7
assert (allocator.dims, allocator.dtype) == ((4, 1000), torch.float16)
assert tensor.data_ptr() % 4096 == 0

def mapped():
    starts = [line.split("-")[0] for line in open("/proc/self/maps")]
    return any(int(start, 16) <= address for start in starts) and any(
        int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16) for line in open("/proc/self/maps")
    )

# The tensor, or what looks at it, keeps the memory, and nothing else does.
address = tensor.data_ptr()
view = tensor[1:]
del tensor
assert mapped() and float(view[2, 999]) == 7
del view
assert not mapped()
"""
    )
    assert out.count("RegionHostTensorAllocator") == 2, out


def test_whoever_brings_his_own_memory_keeps_it() -> None:
    sglang(
        LOADED
        + """
assert type(common.get_allocator_from_storage("shm")) is common.ShmHostTensorAllocator
class Theirs(common.HostTensorAllocator):
    pass
from kvmem.sglang import _choose
assert type(_choose(lambda kind: Theirs(), "mori")) is Theirs
import os
common._is_hip, os.environ["HSA_USERPTR_FOR_PAGED_MEM"] = True, "0"
assert type(common.get_allocator_from_storage("default")) is common.HostTensorAllocator
"""
    )


@pytest.mark.parametrize("environment", [{"KVMEM_SGLANG": "0"}, {"SGLANG_PLUGINS": "another"}])
def test_it_can_be_switched_off(environment: dict[str, str]) -> None:
    program = LOADED + "assert type(common.get_allocator_from_storage('default')) is common.HostTensorAllocator"
    sglang(program, **environment)


def test_pages_are_those_that_were_asked_for() -> None:
    out = sglang(
        """
        import logging
        logging.basicConfig(level=logging.INFO)
        import torch
        from kvmem.sglang.allocator import RegionHostTensorAllocator
        allocator = RegionHostTensorAllocator()
        small = allocator.allocate((1 << 16,), torch.uint8)
        try:
            allocator.allocate((1,), torch.uint8, device="cuda")
        except ValueError as error:
            print(error)
        try:
            allocator.allocate((-1, -2), torch.uint8)
        except ValueError as error:
            print(error)
        assert tuple(allocator.allocate((0, 3), torch.float32).shape) == (0, 3)
        """,
        KVMEM_SGLANG_PAGES="4k",
    )
    assert "asked 4k, got 4k" in out and "(65536,) of" in out, out
    assert "not 'cuda'" in out and "is no shape" in out


def test_bad_pages_are_told() -> None:
    sglang(
        """
        import torch, kvmem
        from kvmem.sglang.allocator import RegionHostTensorAllocator
        try:
            RegionHostTensorAllocator().allocate((1,), torch.uint8)
        except kvmem.BadValueError as error:
            assert "3M" in str(error), error
        else:
            raise AssertionError
        """,
        KVMEM_SGLANG_PAGES="3M",
    )


def test_the_page_of_documentation_runs() -> None:
    unpacked("sglang")
    examples = re.findall(r"^```python\n(.*?)^```$", (DOCS / "sglang.md").read_text(encoding="utf-8"), re.M | re.S)
    assert examples
    sglang("\n".join(examples))
