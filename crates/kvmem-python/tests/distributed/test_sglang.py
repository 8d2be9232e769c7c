"""SGLang's own hook registry and host allocators, from its wheel, take their memory from kvmem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cuda_driver
import pytest
from engines import examples, run_with, unpacked, with_all_imports, with_torch

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
        int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        for line in open("/proc/self/maps")
    )

# Only the tensor, or a view of it, keeps the memory.
address = tensor.data_ptr()
view = tensor[1:]
del tensor
assert mapped() and float(view[2, 999]) == 7
del view
assert not mapped()
"""
    )
    assert out.count("RegionHostTensorAllocator") == 2, out


@pytest.mark.parametrize("by_page", [False, True])
def test_sglang_registers_a_region_where_no_page_is_cut(by_page: bool, tmp_path: Path) -> None:
    # More than one gibibyte, which SGLang takes for the longest call here.
    sglang(
        LOADED
        + f"""
sys.path.append({str(cuda_driver.TESTS)!r})
from cuda_driver import Driver
from kvmem.sglang.allocator import RegionHostTensorAllocator
driver, page, pages = Driver({cuda_driver.compiled(tmp_path)!r}), 3_274_752, 340
torch.cuda.cudart = lambda: driver
granularity = page if {by_page} else None
tensor = common.alloc_with_host_register(
    (pages, page), torch.uint8, "cpu", True, RegionHostTensorAllocator(), granularity
)
assert driver.number("live_ranges") == (2 if granularity else 1)
for number in range(pages):
    assert driver.copy(tensor.data_ptr() + number * page, page) == 0, number
assert driver.number("crossed") == 0
""",
        SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB="1",
    )


def test_allocators_with_their_own_memory_keep_it() -> None:
    sglang(
        LOADED
        + """
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
    program = (
        LOADED
        + "assert type(common.get_allocator_from_storage('default')) is common.HostTensorAllocator"
    )
    sglang(program, **environment)


def test_an_unused_hook_is_reported() -> None:
    out = sglang(
        """
import logging, os
logging.basicConfig(level=logging.WARNING)
import kvmem.sglang
from kvmem.sglang import HookUnusedError, check_hook
def failing():
    try:
        check_hook()
    except HookUnusedError as error:
        print("unused:", error, "|", error.remedy)
        assert isinstance(error, RuntimeError)
failing()
os.environ["KVMEM_SGLANG"] = "0"
failing()
kvmem.sglang.register()
del os.environ["KVMEM_SGLANG"]
"""
        + LOADED
        + """
check_hook()
os.environ["KVMEM_SGLANG_SHARED"] = "0"
for _ in range(2):
    common.get_allocator_from_storage("shm")
del common.get_allocator_from_storage
failing()
""",
        SGLANG_PLUGINS="kvmem",
    )
    assert (
        "plugins have not been loaded in this process" in out
        and "unset KVMEM_SGLANG" in out
        and "has no function" in out
    )
    assert (
        out.count("WARNING:kvmem:") == 2
        and "KVMEM_SGLANG=0 keeps SGLang's allocator: the memory is not kvmem's" in out
    )
    assert (
        "ShmHostTensorAllocator for a host pool, which brings its own memory: the memory is not "
        "kvmem's" in out
    )


@pytest.mark.parametrize(
    "first",
    [
        "kvmem.sglang",
        "kvmem.sglang.allocator",
        "sglang.srt.plugins",
        "sglang.srt.mem_cache.pool_host.common",
    ],
)
def test_it_can_be_imported_in_any_order(first: str) -> None:
    sglang(f"import {first}\n" + LOADED + "from kvmem.sglang import check_hook\ncheck_hook()")


def test_without_sglang_the_error_says_so(script: Callable[..., str]) -> None:
    out = script(
        """
        import sys
        sys.modules["sglang"] = None
        import kvmem.sglang
        try:
            kvmem.sglang.check_hook()
        except kvmem.sglang.HookUnusedError as error:
            print(error, error.remedy)
        """
    )
    assert "SGLang cannot be imported" in out and "pip install 'sglang" in out


def test_pages_are_the_requested_ones() -> None:
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
    assert "requested 4k, got 4k" in out and "(65536,) of" in out, out
    assert "not 'cuda'" in out and "is no shape" in out


MAPPED = """
def mapped(address):
    ranges = (line.split()[0].split("-") for line in open("/proc/self/maps"))
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)
"""


@with_torch
def test_tensors_of_every_type_keep_their_memory_and_nothing_else_does() -> None:
    out = sglang(
        LOADED
        + MAPPED
        + """
import gc
allocator = common.get_allocator_from_storage("default")
take = lambda *arguments: common.alloc_with_host_register(*arguments, allocator)
for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint8, torch.int64, torch.bool):
    tensor = take((3, 5, 7), dtype, "cpu", False)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((3, 5, 7), dtype, "cpu")
    assert tensor.is_contiguous()
    assert tensor.untyped_storage().nbytes() == 105 * dtype.itemsize
    assert not tensor.view(torch.uint8).any()
    values = (torch.arange(105) % 2).to(dtype).reshape(3, 5, 7)
    tensor.copy_(values)
    assert torch.equal(tensor.view(torch.uint8), values.view(torch.uint8))

# Views, other types of the same bytes, NumPy's arrays and the storage alone: each keeps the region.
for look in (lambda t: t[1:, 2], lambda t: t.view(torch.int32), lambda t: t.untyped_storage(),
    lambda t: t.detach().numpy(), lambda t: torch.from_dlpack(t)):
    tensor = take((8, 4096), torch.float32, "cpu", False)
    address = tensor.data_ptr()
    seen = look(tensor)
    del tensor
    assert mapped(address)
    del seen
    gc.collect()
    assert not mapped(address)

def maps():
    return sum(1 for _ in open("/proc/self/maps"))

take((64, 16384), torch.bfloat16, "cpu", False).fill_(1)  # which starts threads
before = maps()
for _ in range(100):
    take((64, 16384), torch.bfloat16, "cpu", False).fill_(1)
assert maps() <= before + 2, "regions are left"

# Without a GPU SGLang cannot register and raises; its allocation is released with the exception.
if not torch.cuda.is_available():
    requested = []
    allocate = allocator.allocate

    def recorded(*arguments, **options):
        tensor = allocate(*arguments, **options)
        requested.append(tensor.data_ptr())
        return tensor

    allocator.allocate = recorded
    try:
        take((64, 16384), torch.bfloat16, "cpu", True)
    except RuntimeError as error:
        print("failing:", error)
    gc.collect()
    assert len(requested) == 1 and not mapped(requested[0])
for device in ("cuda", torch.device("cuda"), torch.device("meta")):
    try:
        allocator.allocate((1,), torch.uint8, device)
    except ValueError:
        print("not there:", device)
assert allocator.allocate((1,), torch.uint8, torch.device("cpu")).device.type == "cpu"
kept_until_the_end = take((8,), torch.bfloat16, "cpu", False)
""",
        KVMEM_SGLANG_PAGES="4k",
    )
    assert out.count("not there:") == 3, out


@with_all_imports
def test_a_host_pool_of_sglang_keeps_pages_in_a_region() -> None:
    """HiCache's own pool of a model with several heads, on a machine whose device is the CPU."""
    sglang(
        LOADED
        + MAPPED
        + """
import gc, logging
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
layers, tokens, page, heads, width = 3, 256, 16, 4, 64
for dtype in (torch.bfloat16, torch.float8_e4m3fn):
    for layout in ("layer_first", "page_first", "page_first_direct"):
        k, v = (tuple(torch.zeros(tokens, heads, width, dtype=dtype) for _ in range(layers))
            for _ in range(2))
        table = lambda buffers: torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
        buffers = KVBuffers(k=k, v=v, k_data_ptrs=table(k), v_data_ptrs=table(v),
            layout=KVBufferLayout.NHD)
        info = MHABufferInfo(
            buffers=buffers, page_size=page, head_num=heads, head_dim=width, v_head_dim=width,
            dtype=dtype, device=torch.device("cpu")
        )
        with host_memory_budget_scope(1 << 30):
            pool = MHATokenToKVPoolHost(
                info, 2.0, 0, page, layout, pin_memory=False, device_capacity_tokens=tokens,
                start_layer=0, end_layer=layers - 1
            )
        assert type(pool.allocator).__name__ == "RegionHostTensorAllocator"
        address = pool.kv_buffer.data_ptr()
        assert pool.kv_buffer.dtype == dtype and address % 4096 == 0
        slots = pool.alloc(4 * page)
        wanted = {}
        for at in slots[::page].tolist():
            blank = pool.get_dummy_flat_data_page()
            filled = torch.randint(0, 64, (blank.numel() * dtype.itemsize,),
                dtype=torch.uint8).view(dtype)
            pool.set_from_flat_data_page(at, filled)
            wanted[at] = filled
        for at, filled in wanted.items():
            assert torch.equal(pool.get_data_page(at).flatten().view(torch.uint8),
                filled.view(torch.uint8)), (dtype, layout, at)
        assert pool.free(slots) == len(slots)
        pool.destroy()
        del pool
        gc.collect()
        assert not mapped(address)
""",
        KVMEM_SGLANG_PAGES="4k",
    )


def test_invalid_pages_raise() -> None:
    sglang(
        """
        import torch, kvmem
        from kvmem.sglang.allocator import RegionHostTensorAllocator
        try:
            RegionHostTensorAllocator().allocate((1,), torch.uint8)
        except kvmem.InvalidArgumentError as error:
            assert "3M" in str(error), error
        else:
            raise AssertionError
        """,
        KVMEM_SGLANG_PAGES="3M",
    )


def test_the_page_of_documentation_runs() -> None:
    unpacked("sglang")
    sglang(examples("sglang.md"))
