"""LMCache: compares AddressManager with LMCache's own class from its wheel, and tests host memory
through LMCache's own modules.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import importlib
import logging
import os
import subprocess
import sys
import textwrap
import threading
import typing
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import kvmem
import pytest
from conftest import LIMIT
from engines import HAS_TORCH, examples, run_with, unpacked, with_torch
from kvmem.lmcache import AddressManager, HostMemory

KIB, MIB = 1 << 10, 1 << 20

PRELUDE = "import standins; standins.lmcache()"


@pytest.fixture(scope="module")
def theirs() -> type[Any]:
    """Returns LMCache's own class."""
    pytest.importorskip("sortedcontainers")
    return extracted_class(unpacked("lmcache") / "lmcache" / "v1" / "memory_management.py")


def extracted_class(source: Path) -> type[Any]:
    """Returns the class alone, because the rest of its module needs PyTorch."""
    quiet = logging.getLogger("lmcache.extracted")
    quiet.disabled = True
    names: dict[str, Any] = {
        "dataclass": dataclasses.dataclass,
        "wraps": functools.wraps,
        "threading": threading,
        "Optional": typing.Optional,
        "SortedList": importlib.import_module("sortedcontainers").SortedList,
        "logger": quiet,
        "_lmcache_nvtx_annotate": lambda function: function,
    }
    wanted = ("synchronized", "FreeBlock", "AddressManager")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in wanted]
    exec(compile(tree, str(source), "exec"), names)
    theirs: type[Any] = names["AddressManager"]
    return theirs


def lmcache(program: str, **environment: str) -> str:
    return run_with("lmcache", PRELUDE, program, **environment)


# ---- addresses: what LMCache's class does ----


class Heap:
    """One of the two classes, and its allocations, by their number in the order of allocation."""

    def __init__(self, kind: type[Any], size: int, align: int) -> None:
        self.manager = kind(size, align)
        self.live: dict[int, list[tuple[int, int]]] = {}

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Returns the result of a call, or the kind of its exception."""
        try:
            return call(self.manager)
        except ValueError:
            return ValueError
        except RuntimeError:
            return RuntimeError

    def holes(self) -> list[tuple[int, int]]:
        """Returns the maximal free ranges, computed from the live ones."""
        found, reached = [], 0
        for address, length in sorted(piece for pieces in self.live.values() for piece in pieces):
            assert address >= reached, "two of them overlap"
            if address > reached:
                found.append((reached, address - reached))
            reached = address + length
        end = self.manager.get_heap_size()
        assert reached <= end
        return [*found, (reached, end - reached)] if reached < end else found

    def fits(self, size: int, n: int = 1) -> bool:
        return sum(length // size for _, length in self.holes()) >= n

    def free(self, names: list[int]) -> None:
        """Frees these allocations; adjacent ones in one call."""
        pieces = sorted(piece for name in names for piece in self.live.pop(name))
        start, length = pieces[0]
        for address, more in pieces[1:]:
            if address == start + length:
                length += more
            else:
                self.manager.free(start, length)
                start, length = address, more
        self.manager.free(start, length)

    def cut(self, name: int, skip: int, length: int) -> None:
        """Frees a contiguous part of one allocation."""
        [(address, size)] = self.live.pop(name)
        self.manager.free(address + skip, length)
        rest = [(address, skip), (address + skip + length, size - skip - length)]
        self.live[name] = [piece for piece in rest if piece[1]]


def same(heaps: list[Heap], call: Callable[[Any], Any]) -> Any:
    """Makes the same call with both, and compares the results."""
    first, second = (heap.ask(call) for heap in heaps)
    assert first == second
    return first


def differ(
    theirs: type[Any], seed: int, align: int, sizes: list[int], heap: int, exact: bool
) -> int:
    """Makes a few hundred calls with both classes and compares them. Returns the number of
    failures.
    """
    random = Random(seed)
    both = [Heap(AddressManager, heap, align), Heap(theirs, heap, align)]
    failing = 0
    for name in range(300):
        live = sorted(both[0].live)
        [what] = random.choices(["allocate", "batch", "free", "cut", "sbrk"], [40, 10, 17, 8, 1])
        size = random.choice(sizes)
        aligned = same(both, lambda manager: manager.compute_aligned_size(size))
        if what in ("allocate", "batch"):
            n = 1 if what == "allocate" else random.randrange(0, 7)
            single = what == "allocate"
            got = [
                heap.ask(lambda m: [m.allocate(size)] if single else m.batched_allocate(size, n))
                for heap in both
            ]
            for heap_, granted in zip(both, got, strict=True):
                assert (granted is not RuntimeError) == heap_.fits(
                    aligned, n
                ) and granted is not ValueError
            failing += RuntimeError in got
            if RuntimeError in got:
                assert not exact or got == [RuntimeError, RuntimeError]
                for heap_, granted in zip(both, got, strict=True):
                    if granted is not RuntimeError:
                        for address, length in granted:
                            heap_.manager.free(address, length)
            else:
                for heap_, granted in zip(both, got, strict=True):
                    assert len(granted) == n and all(length == aligned for _, length in granted)
                    assert all(address % align == 0 for address, _ in granted)
                    assert granted == sorted(granted)
                    if granted:
                        heap_.live[name] = granted
        elif what == "free" and live:
            names = random.sample(live, min(len(live), random.randrange(1, 5)))
            for heap_ in both:
                heap_.free(names)
        elif what == "cut" and live and not exact:
            name = random.choice(live)
            if len(both[0].live[name]) == len(both[1].live[name]) == 1:
                units = both[0].live[name][0][1] // align
                skip = random.randrange(units)
                length = random.randrange(1, units - skip + 1)
                for heap_ in both:
                    heap_.cut(name, skip * align, length * align)
                    if not heap_.live[name]:
                        del heap_.live[name]
        elif what == "sbrk":
            more = random.choice(sizes) if not exact else random.choice([0, aligned])
            for heap_ in both:
                heap_.manager.sbrk(more)
        for question in ("get_heap_size", "get_free_size", "check_consistency"):
            same(both, lambda manager: getattr(manager, question)())
        same(both, lambda manager: manager.total_allocated_size)
        in_use = sum(length for pieces in both[0].live.values() for _, length in pieces)
        assert both[0].manager.total_allocated_size == in_use
        if name % 10 == 0:
            for heap_ in both:
                heap_.holes()
    names = sorted(both[0].live)
    for heap_ in both:
        if names:
            heap_.free(names)
        assert heap_.manager.total_allocated_size == 0 and heap_.manager.check_consistency()
        assert heap_.fits(heap_.manager.get_heap_size() // align * align), (
            "all of it is one piece again"
        )
    return failing


@pytest.mark.parametrize("align", [1, 64, 4096])
def test_uniform_sizes_succeed_and_fail_alike(theirs: type[Any], align: int) -> None:
    failing = 0
    for seed in range(8):
        size = Random(seed).randrange(1, 5) * max(align, 16)
        failing += differ(theirs, seed, align, [size], 40 * size, exact=True)
    assert failing > 20


@pytest.mark.parametrize("align", [1, 512, 4096])
def test_mixed_sizes_are_counted_alike_and_fail_only_if_no_hole_fits(
    theirs: type[Any], align: int
) -> None:
    failing = 0
    for seed in range(8):
        random = Random(seed)
        sizes = [random.randrange(1, 12 * align + 50) for _ in range(12)]
        failing += differ(
            theirs,
            seed,
            align,
            sizes,
            random.randrange(100 * align, 140 * align + 1000),
            exact=False,
        )
    assert failing > 20


@pytest.mark.parametrize("size", [0, -1, -(2**70), 2**62, 2**64, 2**70, 1.5, "1"])
def test_bad_sizes_get_the_same_kind_of_exception(theirs: type[Any], size: Any) -> None:
    for call in (
        lambda m: m.allocate(size),
        lambda m: m.batched_allocate(size, 1),
        lambda m: m.batched_allocate(1, size),
    ):
        kinds = []
        for kind in (AddressManager, theirs):
            manager = kind(MIB)
            try:
                kinds.append(call(manager))
            except (ValueError, RuntimeError, TypeError) as error:
                kinds.append(
                    next(
                        one
                        for one in (RuntimeError, ValueError, TypeError)
                        if isinstance(error, one)
                    )
                )
            assert manager.total_allocated_size == 0 and manager.check_consistency()
        assert kinds[0] == kinds[1]


def test_a_heap_may_start_empty_and_end_within_a_unit(theirs: type[Any]) -> None:
    for first in (0, 1, 4095, 4096, 5000, 8191):
        both = [Heap(AddressManager, first, 4096), Heap(theirs, first, 4096)]
        for more in (0, 1, 4096, 5000):
            same(both, lambda manager: manager.sbrk(more))
            same(both, lambda manager: manager.get_heap_size())
            same(both, lambda manager: manager.get_free_size())
            granted = same(both, lambda manager: len(manager.batched_allocate(1, 1)))
            assert granted in (1, RuntimeError)
            same(both, lambda manager: manager.check_consistency())


# ---- addresses: what kvmem's class does besides ----


def test_unallocated_ranges_are_not_freed() -> None:
    manager = AddressManager(MIB)
    (a, _), (b, _), (c, _) = manager.batched_allocate(8192, 3)
    assert (a, b, c) == tuple(sorted((a, b, c)))
    manager.free(b, 8192)
    wrong = [
        (b, 8192),
        (b, 4096),
        (b + 4096, 4096),
        (MIB, 4096),
        (MIB - 4096, 8192),
        (0, 0),
        (0, -1),
        (-4096, 4096),
        (1, 4096),
        (0, 1),
        (2**62, 2**62),
    ]
    if b == a + 8192 and c == b + 8192:
        wrong += [(a, 3 * 8192), (a + 4096, 8192), (a, 8192 + 4096)]
    for address, size in wrong:
        with pytest.raises(kvmem.InvalidArgumentError):
            manager.free(address, size)
        assert manager.total_allocated_size == 2 * 8192 and manager.check_consistency()
    manager.free(a, 8192)
    manager.free(c, 8192)
    assert manager.map() == [(0, MIB, False)]


def test_errors_have_the_free_bytes() -> None:
    manager = AddressManager(4 * 4096)
    manager.free(4096, 4096) if manager.batched_allocate(4096, 4) else None
    with pytest.raises(kvmem.HeapFullError, match=r"8192 bytes.*4096 bytes are free") as full:
        manager.allocate(8192)
    assert isinstance(full.value, RuntimeError) and isinstance(full.value, kvmem.OutOfSpaceError)
    assert (full.value.requested, full.value.free, full.value.largest_free) == (8192, 4096, 4096)
    with pytest.raises(kvmem.InvalidBatchError):
        manager.batched_allocate(1, -1)
    for arguments in ((-1,), (4096, 0), (4096, 3), (4096, -4096)):
        with pytest.raises(kvmem.InvalidArgumentError):
            AddressManager(*arguments)
    with pytest.raises(kvmem.InvalidArgumentError):
        manager.sbrk(-1)
    with pytest.raises(kvmem.InvalidArgumentError):
        manager.sbrk(2**63 - 1)
    with pytest.raises(kvmem.InvalidArgumentError):
        manager.compute_aligned_size(2**63 - 1)
    assert manager.get_heap_size() == 4 * 4096 and "3 ranges" in repr(manager)


def uniform(n: int, chunk: int = 8192) -> tuple[AddressManager, list[int]]:
    """A heap full of chunks of one size."""
    manager = AddressManager(n * chunk)
    starts = [manager.allocate(chunk)[0] for _ in range(n)]
    assert sorted(starts) == list(range(0, n * chunk, chunk))
    return manager, starts


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 65, 100])
def test_chunks_of_one_size_are_free_for_everything_else(n: int) -> None:
    """For any number of chunks that are kept for the next request of their size."""
    end = n * 8192
    whole = [(0, end, False)]

    def emptied() -> AddressManager:
        manager, starts = uniform(n)
        for start in sorted(starts):
            manager.free(start, 8192)
            with pytest.raises(kvmem.InvalidArgumentError):
                manager.free(start, 8192)
            manager.free(*manager.allocate(8192))
        assert manager.get_free_size() == end and "0 allocated in 0 ranges" in repr(manager)
        return manager

    assert emptied().allocate(end) == (0, end)
    assert emptied().map() == whole and emptied().check_consistency()
    assert [start for start, _ in emptied().batched_allocate(8192, n)] == list(range(0, end, 8192))
    assert [start for start, _ in emptied().batched_allocate(4096, 2 * n)] == list(
        range(0, end, 4096)
    )
    with pytest.raises(kvmem.HeapFullError) as full:
        emptied().allocate(end + 1)
    assert (full.value.free, full.value.largest_free) == (end, end)
    manager = emptied()
    manager.sbrk(8192)
    assert manager.allocate(end + 8192) == (0, end + 8192)
    for wrong in [(0, end), (4096, 4096), (0, 4096)]:
        with pytest.raises(kvmem.InvalidArgumentError):
            emptied().free(*wrong)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if emptied().map() == whole else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_change_of_sizes_finds_all_free_space(seed: int) -> None:
    """Sizes change now and then. A request succeeds exactly if a hole fits; the live ranges
    determine the holes."""
    random = Random(seed)
    heap = Heap(AddressManager, 60 * 4096, 4096)
    size, failing = 4096, 0
    for name in range(600):
        if random.random() < 0.06:
            size = 4096 * random.choice([1, 1, 2, 3, 5])
        if heap.live and random.random() < 0.42:
            several = random.random() < 0.1
            heap.free(
                random.sample(
                    sorted(heap.live),
                    random.randrange(1, min(len(heap.live), 4) + 1) if several else 1,
                )
            )
        else:
            fits = heap.fits(size)
            granted = heap.ask(lambda manager: manager.allocate(size - random.randrange(4096)))
            assert (granted is not RuntimeError) == fits
            failing += not fits
            if fits:
                heap.live[name] = [granted]
        in_use = sum(length for pieces in heap.live.values() for _, length in pieces)
        assert (
            heap.manager.total_allocated_size
            == in_use
            == heap.manager.get_heap_size() - heap.manager.get_free_size()
        )
        heap.holes()  # none overlap
        if random.random() < 0.02:
            assert heap.manager.check_consistency()
            used = sorted((address, length) for address, length, used in heap.manager.map() if used)
            assert used == sorted(piece for pieces in heap.live.values() for piece in pieces)
    assert failing


def test_the_length_is_an_integer_of_its_own_kind() -> None:
    """Also if the requested length is returned unchanged."""

    class Size(int):
        pass

    manager = AddressManager(MIB)
    for size in (Size(4096), True, 4096, 4095):
        _, length = manager.allocate(size)
        assert type(length) is int and length == 4096


def test_threads_never_get_the_same_range() -> None:
    manager = AddressManager(64 * MIB)
    held: dict[int, list[tuple[int, int]]] = {}

    def work(seed: int) -> None:
        random = Random(seed)
        mine: list[tuple[int, int]] = []
        for _ in range(3000):
            if mine and random.random() < 0.5:
                manager.free(*mine.pop(random.randrange(len(mine))))
            else:
                mine.append(manager.allocate(random.randrange(1, 64 * KIB)))
        held[seed] = mine

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reached = 0
    for address, length in sorted(piece for mine in held.values() for piece in mine):
        assert address >= reached
        reached = address + length
    assert manager.check_consistency()
    assert manager.total_allocated_size == sum(
        length for mine in held.values() for _, length in mine
    )


def test_a_forked_child_continues_with_its_copy() -> None:
    manager = AddressManager(MIB)
    range_ = manager.allocate(4096)
    child = os.fork()
    if child == 0:
        try:
            manager.free(*range_)
            os._exit(0 if manager.get_free_size() == MIB else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert manager.total_allocated_size == 4096


# ---- host memory ----


def at(pointer: int, size: int) -> memoryview:
    import ctypes

    return memoryview((ctypes.c_uint8 * size).from_address(pointer)).cast("B")


@pytest.mark.parametrize("arguments", [{}, {"numa": 0}, {"pinned": False}])
def test_memory_by_pointer(arguments: dict[str, Any]) -> None:
    memory = HostMemory(pages="4k")
    pointer = memory.allocate(100_000, **arguments)
    assert pointer % 4096 == 0 and len(memory) == 1 and memory.nbytes >= 100_000
    seen = at(pointer, 100_000)
    assert not any(seen)
    seen[99_999] = 1
    assert memory.region(pointer).residency().resident_bytes >= 100_000
    memory.free(pointer)
    assert len(memory) == 0
    with pytest.raises(kvmem.InvalidArgumentError, match="freed before"):
        memory.free(pointer)


@pytest.mark.usefixtures("hugepages")
def test_hugepages_or_an_error() -> None:
    memory = HostMemory()
    try:
        pointer = memory.allocate(3 * MIB, hugepages=True)
    except kvmem.MappingError as error:
        assert "2M" in str(error) or "2 MiB" in str(error)
        assert len(memory) == 0
    else:
        assert pointer % (2 * MIB) == 0
        memory.close()


def test_shared_memory_has_a_name() -> None:
    memory = HostMemory()
    name = f"kvmem-test-{os.getpid()}"
    path = Path("/dev/shm", name)
    path.write_bytes(b"of someone who died")
    try:
        pointer = memory.allocate_shared(10_000, f"/{name}")
        assert path.stat().st_size == 10_000 and path.stat().st_mode & 0o777 == 0o600
        at(pointer, 10_000)[9_999] = 77
        assert path.read_bytes() == bytes(9_999) + b"M"
        with path.open("r+b") as other:
            other.write(b"hello")
        assert bytes(at(pointer, 5)) == b"hello"
        memory.free(pointer)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_failed_allocation_leaves_nothing() -> None:
    memory = HostMemory()
    for name in ("", "/", "a/b", ".."):
        with pytest.raises(kvmem.InvalidArgumentError):
            memory.allocate_shared(4096, name)
    name = f"kvmem-test-{os.getpid()}"
    with pytest.raises((OSError, MemoryError)):
        memory.allocate_shared(1 << 50, name)
    assert not Path("/dev/shm", name).exists()
    for call in (memory.allocate, lambda size: memory.allocate_shared(size, name)):
        with pytest.raises(kvmem.InvalidArgumentError):
            call(0)
    with pytest.raises(kvmem.KvmemError):
        HostMemory(devices="verbs:nowhere").allocate(4096)
    assert len(memory) == 0


def test_memory_that_is_viewed_is_kept() -> None:
    memory = HostMemory(pages="4k")
    pointer = memory.allocate(4096)
    view = memoryview(memory.region(pointer))
    with pytest.raises(BufferError):
        memory.free(pointer)
    view.release()
    gc.collect()
    memory.free(pointer)


# ---- the backend, through LMCache's own modules ----

CHOSEN = {"LMCACHE_DEVICE_BACKEND": "kvmem", "KVMEM_LMCACHE_PAGES": "4k"}

# LMCache's own functions, extracted from a module that needs all of PyTorch.
CUT = """
import ast, ctypes, dataclasses, os, types, typing
import lmcache, torch
source = os.path.join(sys.path[1], "lmcache", "v1", "memory_management.py")
tree = ast.parse(open(source).read())
wanted = ("PinnedAllocFree", "_resolve_pinned_alloc_free", "_allocate_cpu_memory",
    "_free_cpu_memory", "_read_hugepage_info")
tree.body = [node for node in tree.body if getattr(node, "name", "") in wanted]
said = []
logger = types.SimpleNamespace(error=lambda *words: said.append(words), debug=print, warning=print,
    info=print)
cut = dict(
    dataclass=dataclasses.dataclass, Any=typing.Any, Optional=typing.Optional, Tuple=tuple,
    NUMAMapping=object, ctypes=ctypes, os=os,
    torch=torch, torch_dev=lmcache.torch_dev, device_ops=lmcache.device_ops, logger=logger,
)
exec(compile(tree, source, "exec"), cut)
"""

WHOLE = """
import os, types
import lmcache
from lmcache.v1 import memory_management
cut, said = vars(memory_management), []
memory_management.logger.error = lambda *words: said.append(words)
"""


@pytest.mark.usefixtures("hugepages")
def test_the_entry_point_gives_lmcache_its_memory() -> None:
    out = lmcache(
        (WHOLE if HAS_TORCH else CUT)
        + """
from lmcache.v1.platform._device_detect import current_device_spec
assert current_device_spec().backend_name == "kvmem"
ops = lmcache.device_ops
memory = ops.host_memory
mapping = types.SimpleNamespace(gpu_to_numa_mapping={cut["torch_dev"].current_device(): 0})
shm = f"/kvmem-test-{os.getpid()}"
for how in (dict(), dict(numa_mapping=mapping), dict(shm_name=shm)):
    tensor = cut["_allocate_cpu_memory"](100_000, **how)
    assert len(memory) == 1 and len(tensor) == 100_000 and tensor.data_ptr() in memory._held
    tensor[99_999] = 5
    cut["_free_cpu_memory"](tensor, 100_000, **how)
    assert len(memory) == 0
assert not os.path.exists("/dev/shm" + shm)
for how in (dict(), dict(numa_mapping=mapping)):
    try:
        tensor = cut["_allocate_cpu_memory"](2 << 20, use_hugepages=True, **how)
    except RuntimeError as error:
        assert "mmap failed" in str(error) and said, "LMCache says how many hugepages are missing"
    else:
        cut["_free_cpu_memory"](tensor, 2 << 20, use_hugepages=True, **how)
pointer = ops.alloc_numa_ptr(4096, 0)
ops.free_numa_ptr(pointer, 4096)
assert len(memory) == 0
print("all of them")
""",
        **CHOSEN,
    )
    assert "all of them" in out


@with_torch
def test_tensors_of_lmcaches_allocators_lie_in_our_memory() -> None:
    """Every allocator of LMCache that takes host memory, and its own objects in them."""
    lmcache(
        """
        import os, types
        import torch, lmcache
        from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
        from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
        from lmcache.v1.memory_allocators.pin_memory_allocator import PinMemoryAllocator
        from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
        from lmcache.v1.memory_management import MemoryFormat, TensorMemoryObj
        from kvmem.lmcache import AddressManager, replace_address_manager

        memory, size, shape = lmcache.device_ops.host_memory, 8 << 20, torch.Size([2, 4, 16, 128])
        shm = f"/kvmem-test-{os.getpid()}"
        mapping = types.SimpleNamespace(gpu_to_numa_mapping={lmcache.torch_dev.current_device(): 0})

        def inside(allocator, address):
            start = allocator.buffer.data_ptr()
            return start in memory._held and start <= address < start + size

        for make in (
            lambda: MixedMemoryAllocator(size),
            lambda: MixedMemoryAllocator(size, align_bytes=64),
            lambda: MixedMemoryAllocator(size, numa_mapping=mapping),
            lambda: MixedMemoryAllocator(size, shm_name=shm),
            lambda: PinMemoryAllocator(size),
        ):
            allocator = make()
            inner = getattr(allocator, "pin_allocator", None) or allocator.allocator
            assert type(inner) is TensorMemoryAllocator
            assert type(inner.address_manager) is AddressManager
            for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8,
                torch.float32):
                objects = [allocator.allocate(shape, dtype), *allocator.batched_allocate(shape,
                    dtype, 5)]
                values = [torch.randint(0, 64, (shape.numel() * dtype.itemsize,),
                    dtype=torch.uint8) for _ in objects]
                for obj, value in zip(objects, values):
                    assert type(obj) is TensorMemoryObj and inside(allocator, obj.data_ptr)
                    assert (obj.tensor.shape, obj.tensor.dtype) == (shape, dtype)
                    obj.tensor.copy_(value.view(dtype).reshape(shape))
                for obj, value in zip(objects, values):
                    assert torch.equal(obj.tensor.view(torch.uint8).flatten(), value)
                    assert bytes(obj.byte_array) == value.numpy().tobytes()
                used = sum(obj.get_physical_size() for obj in objects)
                assert inner.total_allocated_size == used > 0
                assert allocator.memcheck()
                objects[0].ref_count_down()
                allocator.batched_free(objects[1:])
                assert inner.total_allocated_size == 0 and allocator.memcheck()
            # As many as fit, and then None: LMCache then knows that it must evict.
            full = []
            while (obj := allocator.allocate(torch.Size([1 << 20]), torch.uint8)) is not None:
                full.append(obj)
            assert len(full) == 8 and allocator.batched_allocate(shape, torch.uint8, 1) is None
            for obj in full[::2] + full[1::2]:
                obj.ref_count_down()
            assert inner.total_allocated_size == 0
            assert len(memory) == 1
            if getattr(allocator, "shm_name", None):
                assert os.path.getsize("/dev/shm" + shm) == size
            allocator.close()
            assert len(memory) == 0
        assert not os.path.exists("/dev/shm" + shm)

        # Pages of one size, which LMCache manages without addresses.
        allocator = MixedMemoryAllocator(size, True, shapes=[shape], dtypes=[torch.bfloat16],
            fmt=MemoryFormat.KV_2LTD)
        obj = allocator.allocate([shape], [torch.bfloat16])
        obj.tensor.fill_(3)
        assert inside(allocator, obj.data_ptr) and float(obj.tensor.sum()) == 3 * shape.numel()
        obj.ref_count_down()
        allocator.close()
        assert len(memory) == 0

        # PyTorch's own memory with kvmem's addresses, and a heap that grows.
        allocator = HostMemoryAllocator(size)
        assert replace_address_manager() == 0
        assert type(allocator.allocator.address_manager) is AddressManager
        obj = allocator.allocate(shape, torch.bfloat16)
        obj.tensor.fill_(2)
        assert float(obj.tensor.sum()) == 2 * shape.numel()
        lazy = TensorMemoryAllocator(torch.empty(size, dtype=torch.uint8),
            init_address_space=size // 2)
        large = torch.Size([size // 2])
        first = lazy.allocate(large, torch.uint8)
        assert first is not None and lazy.allocate(large, torch.uint8) is None
        lazy.address_manager.sbrk(size // 2)
        second = lazy.allocate(large, torch.uint8)
        assert second is not None and lazy.memcheck()
        """,
        **CHOSEN,
    )


@with_torch
def test_lmcaches_backend_keeps_chunks_in_our_memory() -> None:
    """LMCache's tier in host memory, made as its engine makes it: put, looked up, got, evicted,
    removed."""
    lmcache(
        """
        import torch, lmcache
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from kvmem.lmcache import AddressManager

        chunk = (2, 4, 256, 1024)
        config = LMCacheEngineConfig.from_defaults(chunk_size=256, local_cpu=True,
            max_local_cpu_size=0.03)
        metadata = LMCacheMetadata(
            model_name="model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(4, 2, 256, 8, 128),
        )
        backend = LocalCPUBackend(config, metadata)
        memory, allocator = lmcache.device_ops.host_memory, backend.memory_allocator
        assert len(memory) == 1 and memory.nbytes >= int(0.03 * (1 << 30))
        assert type(allocator.pin_allocator.address_manager) is AddressManager

        def key(number):
            return CacheEngineKey("model", 1, 0, number, torch.bfloat16)

        def value(number):
            return torch.randn(chunk,
                generator=torch.Generator().manual_seed(number)).to(torch.bfloat16)

        # 4 MiB each: seven fit, so later ones evict the first.
        for number in range(20):
            obj = backend.allocate(torch.Size(chunk), torch.bfloat16)
            obj.tensor.copy_(value(number))
            backend.submit_put_task(key(number), obj)
            obj.ref_count_down()
        kept = [number for number in range(20) if backend.contains(key(number))]
        assert kept == list(range(13, 20)), kept
        for number in kept:
            obj = backend.get_blocking(key(number))
            assert torch.equal(obj.tensor, value(number)), number
            obj.ref_count_down()
        assert backend.remove(key(19)) and backend.get_blocking(key(19)) is None
        assert allocator.memcheck() and backend.clear() >= 0
        assert allocator.pin_allocator.total_allocated_size == 0
        backend.close()
        assert len(memory) == 0
        """,
        **CHOSEN,
    )


def test_native_functions_do_not_hide_ours() -> None:
    lmcache(
        """
        import types
        import lmcache
        from kvmem.lmcache.device import OPERATIONS
        assert len(OPERATIONS) == 12
        ops = lmcache.device_ops
        native = {name: (lambda *_: 1 / 0) for name in [*OPERATIONS, "batched_memcpy"]}
        ops.bind_native(types.SimpleNamespace(**native))
        ops.free_pinned_ptr(ops.alloc_pinned_ptr(4096))
        assert ops.batched_memcpy is native["batched_memcpy"]
        """,
        **CHOSEN,
    )


def test_it_does_nothing_unless_it_is_chosen() -> None:
    lmcache(
        """
        import lmcache
        from lmcache.v1.platform import _device_detect, get_device_spec
        assert "kvmem" in _device_detect._build_backend_registry()
        spec = get_device_spec("cpu")
        assert spec.backend_name == "cpu", spec.backend_name
        assert not hasattr(lmcache.device_ops, "host_memory")
        """,
        LMCACHE_DEVICE_BACKEND="",
    )


FIRST = [
    "kvmem.lmcache",
    "kvmem.lmcache.device",
    "lmcache",
    "lmcache.v1.platform",
    "lmcache.v1.platform._device_detect",
]


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("first", FIRST)
def test_it_can_be_imported_in_any_order(first: str, load: bool) -> None:
    """The entry point can also be loaded before LMCache has been imported."""
    point = (
        """
        from importlib.metadata import entry_points
        [point] = entry_points(group="lmcache.device_plugins", name="kvmem")
        kind = point.load()
        """
        if load
        else "kind = None"
    )
    out = lmcache(
        textwrap.dedent(f"import {first}\n")
        + textwrap.dedent(point)
        + textwrap.dedent(
            """
        import lmcache, kvmem.lmcache
        from kvmem.lmcache.device import KvmemDeviceSpec
        from lmcache.v1.platform import get_device_spec
        kvmem.lmcache.check_backend()
        spec = get_device_spec("cpu")
        assert type(spec) is KvmemDeviceSpec and kind in (None, KvmemDeviceSpec), (spec, kind)
        ops = lmcache.device_ops
        ops.free_pinned_ptr(ops.alloc_pinned_ptr(4096))
        """
        ),
        **CHOSEN,
    )
    assert "Failed to load" not in out, out


def test_importing_it_imports_nothing_of_lmcache(script: Callable[..., str]) -> None:
    out = script(
        """
        import sys
        import kvmem.lmcache, kvmem.lmcache.device
        assert not [name for name in sys.modules if name.partition(".")[0] in ("lmcache", "torch")]
        sys.modules["lmcache"] = None
        for ask in (lambda: kvmem.lmcache.device.KvmemDeviceSpec, kvmem.lmcache.check_backend):
            try:
                ask()
            except kvmem.lmcache.BackendUnusedError as error:
                assert isinstance(error, ImportError) and error.remedy
                print(error)
        try:
            kvmem.lmcache.device.nothing
        except AttributeError as error:
            print(error)
        """
    )
    assert (
        "LMCache cannot be imported" in out
        and "LMCACHE_DEVICE_BACKEND is None" in out
        and "no attribute 'nothing'" in out
    )


def test_without_pytorch_lmcache_warns_that_its_memory_is_not_ours() -> None:
    """LMCache then continues as a command and uses no backend."""
    folder = str(unpacked("lmcache"))
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        sys.modules["torch"] = None
        import lmcache
        import kvmem.lmcache
        for ask in (kvmem.lmcache.check_backend, lambda: kvmem.lmcache.device.KvmemDeviceSpec):
            try:
                ask()
            except kvmem.lmcache.BackendUnusedError as error:
                print("failing:", error.remedy)
        """

    def run(**environment: str) -> str:
        inherited = {
            name: value for name, value in os.environ.items() if name != "LMCACHE_DEVICE_BACKEND"
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), folder],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**inherited, "LMCACHE_TRACK_USAGE": "false", **environment},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    told = run(**CHOSEN)
    assert told.count("failing: pip install torch") == 2, told
    assert "WARNING" in told and "its host memory is NOT kvmem's" in told
    # Without a request for kvmem there is no warning.
    assert "NOT kvmem's" not in run()


@pytest.mark.parametrize("version", ["0.5.5", "0.6.0"])
def test_other_releases_of_lmcache_are_reported(version: str) -> None:
    out = lmcache(
        f"""
        import importlib.metadata
        real = importlib.metadata.version
        importlib.metadata.version = lambda name: {version!r} if name == "lmcache" else real(name)
        import kvmem.lmcache
        try:
            from kvmem.lmcache.device import KvmemDeviceSpec
        except ImportError as error:
            print(type(error).__name__, error, error.remedy)
        # LMCache itself logs the reason, and does not start with a backend that was refused.
        try:
            import lmcache
        except RuntimeError as error:
            print("LMCache:", error)
        """,
        **CHOSEN,
    )
    assert f"BackendUnusedError lmcache {version} is installed" in out
    assert "LMCache: LMCACHE_DEVICE_BACKEND='kvmem' is not registered" in out
    assert "Failed to load LMCache device plugin 'kvmem'" in out
    assert "is not kvmem's pip install 'lmcache>=0.5.6,<0.6'" in out


def test_a_server_killed_with_shared_memory_starts_again_under_its_name() -> None:
    name = f"kvmem-test-killed-{os.getpid()}"
    path = Path("/dev/shm", name)
    program = """
import ctypes, os, sys
import lmcache
ops = lmcache.device_ops
pointer = ops.alloc_shm_pinned_ptr(1 << 20, sys.argv[1])
content = (ctypes.c_ubyte * (1 << 20)).from_address(pointer)
print("stale" if any(content) else "zeros", flush=True)
ctypes.memset(pointer, 7, 1 << 20)
if sys.argv[2] == "kill":
    del content
    os.kill(os.getpid(), 9)
del content
ops.free_shm_pinned_ptr(pointer, 1 << 20, sys.argv[1])
"""
    try:
        for how in ("kill", "kill", "end"):
            given = f"import sys\nsys.argv = ['-c', '/{name}', {how!r}]\n{program}"
            if how == "kill":
                with pytest.raises(AssertionError, match=r"-9\nzeros"):
                    lmcache(given, **CHOSEN)
                assert path.exists()
            else:
                assert "zeros" in lmcache(given, **CHOSEN)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_backend_that_is_chosen_too_late_is_reported() -> None:
    out = lmcache(
        """
        import os
        os.environ.pop("LMCACHE_DEVICE_BACKEND", None)
        import lmcache
        os.environ["LMCACHE_DEVICE_BACKEND"] = "kvmem"
        import kvmem.lmcache
        try:
            kvmem.lmcache.check_backend()
        except kvmem.lmcache.BackendUnusedError as error:
            print(error)
        """
    )
    assert "was imported before LMCACHE_DEVICE_BACKEND=kvmem was set" in out


def test_a_missing_base_is_reported() -> None:
    out = lmcache(
        """
        try:
            from kvmem.lmcache.device import KvmemDeviceSpec
        except ImportError as error:
            print(type(error).__name__, error)
        """,
        KVMEM_LMCACHE_BASE="nowhere",
    )
    assert "BackendUnusedError LMCache has no backend 'nowhere'" in out


def test_its_address_manager_is_replaced_with_the_first_memory() -> None:
    program = """
        home, importer = type(sys)("lmcache.v1.memory_management"), type(sys)("lmcache.v1.importer")
        class AddressManager: pass
        home.AddressManager = importer.AddressManager = AddressManager
        import lmcache
        sys.modules.update({home.__name__: home, importer.__name__: importer})
        ops = lmcache.device_ops
        ops.free_pinned_ptr(ops.alloc_pinned_ptr(4096))
        from kvmem.lmcache import AddressManager as ours, replace_address_manager
        replaced = [module.AddressManager is ours for module in (home, importer)]
        print(replaced, replace_address_manager())
        """
    assert "[True, True] 0" in lmcache(program, **CHOSEN)
    assert "[False, False] 2" in lmcache(program, KVMEM_LMCACHE_ADDRESS_MANAGER="0", **CHOSEN)


def test_the_page_of_documentation_runs() -> None:
    unpacked("lmcache")
    lmcache(examples("lmcache.md"), KVMEM_LMCACHE_PAGES="4k")
