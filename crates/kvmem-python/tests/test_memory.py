"""Memory: regions, pieces, blocks as buffers and tensors."""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib.util
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

import kvmem
import numpy as np
import numpy.typing as npt
import pytest

PAGE = mmap.PAGESIZE
Bytes = npt.NDArray[np.uint8]


def make_region() -> kvmem.Region:
    return kvmem.Region(1 << 20, pages="4k")


def make_piece() -> kvmem.Piece:
    return kvmem.BumpArena(make_region()).allocate(5000)


def make_block() -> kvmem.Block:
    return kvmem.Pool(1 << 20, pages="4k").allocate(5000)


def make_reservation() -> kvmem.Reservation:
    return kvmem.KvCache(kvmem.Pool(1 << 20, pages="4k")).reserve(1, 5000)


WRITABLE = [make_region, make_piece, make_block, make_reservation]
Memory = kvmem.Region | kvmem.Piece | kvmem.Block | kvmem.Reservation


@pytest.mark.parametrize("make", WRITABLE)
def test_every_interface_shares_the_bytes(make: Callable[[], Memory]) -> None:
    memory = make()
    assert len(memory) == memory.nbytes and memory.ptr > 0
    view = memoryview(memory)
    assert (view.format, view.ndim, view.readonly, view.nbytes) == ("B", 1, False, memory.nbytes)
    array: Bytes = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload, unused-ignore]
    tensor = np.from_dlpack(memory)
    assert array.ctypes.data == tensor.ctypes.data == memory.ptr
    assert array.flags.writeable and tensor.flags.writeable and tensor.dtype == np.uint8
    array[:] = 0
    view[0], array[1], tensor[2] = 1, 2, 3
    assert bytes(memory)[:4] == b"\x01\x02\x03\x00"
    assert ctypes.string_at(memory.ptr, 3) == b"\x01\x02\x03"


@pytest.mark.parametrize("make", WRITABLE)
def test_views_keep_their_memory(make: Callable[[], Memory]) -> None:
    memory = make()
    array: Bytes = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload, unused-ignore]
    tensor = np.from_dlpack(memory)
    array[:] = 42
    del memory
    gc.collect()
    assert (tensor == 42).all() and (array == 42).all()
    del array
    assert (tensor == 42).all()


def test_nothing_is_freed_while_views_exist() -> None:
    pool = kvmem.Pool(1 << 20, pages="4k")
    block = pool.allocate(100)
    view = memoryview(block)
    tensor = np.from_dlpack(block)
    capsule = block.__dlpack__()
    for change in (
        block.free,
        lambda: block.shrink(10),
        lambda: block.extend(200),
        lambda: pool.free_batch([block]),
    ):
        with pytest.raises(BufferError) as caught:
            change()
        assert isinstance(caught.value, kvmem.ExportedError) and caught.value.views == 3
    with pytest.raises(kvmem.ExportedError), block:
        pass
    view.release()
    del tensor, capsule
    block.free()
    assert block.freed and pool.metrics().live == 0


def test_freed_objects_raise() -> None:
    block = make_block()
    block.free()
    uses: list[Callable[[], object]] = [
        block.free,
        lambda: block.ptr,
        lambda: block.nbytes,
        lambda: block.offset,
        lambda: len(block),
        lambda: memoryview(block),
        lambda: block.__dlpack__(),
        lambda: block.key("mlock"),
        block.keys,
        block.reference,
        lambda: block.write(b"x"),
        lambda: block.shrink(1),
        block.__enter__,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="the block has been freed"):
            use()
    assert "freed" in repr(block)


def capsule_name(capsule: object) -> str:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return str(name(capsule).decode())


def test_dlpack_capsules() -> None:
    block = make_block()
    assert block.__dlpack_device__() == (1, 0)
    assert capsule_name(block.__dlpack__()) == "dltensor"
    assert capsule_name(block.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert capsule_name(block.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    assert (
        capsule_name(block.__dlpack__(max_version=(2, 3), dl_device=(1, 0))) == "dltensor_versioned"
    )
    with pytest.raises(BufferError):
        block.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        block.__dlpack__(stream=1)  # type: ignore[arg-type]
    # Capsules whose tensor was not taken release their view.
    block.free()


def test_a_dlpack_copy_is_independent() -> None:
    block = make_block()
    block.write(b"before")
    for version in (None, (1, 0)):
        copy = np.from_dlpack(Once(block.__dlpack__(max_version=version, copy=True)))
        memoryview(block)[:6] = b"after!"
        assert bytes(copy[:6]) == b"before" and copy.ctypes.data != block.ptr
        block.write(b"before")
    block.free()
    assert bytes(copy[:6]) == b"before"


class Once:
    """An object with a capsule of its own."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: object) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_the_fields_of_a_versioned_tensor() -> None:
    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    class Managed(ctypes.Structure):
        _fields_ = [
            ("major", ctypes.c_uint32),
            ("minor", ctypes.c_uint32),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
            ("flags", ctypes.c_uint64),
            ("tensor", Tensor),
        ]

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def managed(capsule: object) -> Managed:
        return Managed.from_address(pointer(capsule, b"dltensor_versioned"))

    block = make_block()
    capsule = block.__dlpack__(max_version=(1, 1))
    got = managed(capsule)
    assert (got.major, got.flags) == (1, 0) and got.deleter
    tensor = got.tensor
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim) == (block.ptr, 1, 0, 1)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
    assert (tensor.shape[0], tensor.strides[0]) == (5000, 1)
    copied = block.__dlpack__(max_version=(1, 0), copy=True)
    assert managed(copied).flags == 2
    cache = kvmem.KvCache(kvmem.Pool(1 << 20, pages="4k"))
    cache.insert("k", b"value")
    pinned = cache.get("k")
    assert pinned is not None
    read_only = pinned.__dlpack__(max_version=(1, 0))
    assert managed(read_only).flags == 1


def test_torch_shares_memory(script: Callable[..., str]) -> None:
    folder = os.environ.get("TORCH_DIR")
    if not folder and importlib.util.find_spec("torch") is None:
        pytest.skip(
            "torch is not installed: KVMEM_WITH_TORCH=1 cargo xtask test python, or pip install "
            "torch"
        )
    # In a process of its own, because other modules behave differently once it is imported.
    script(
        f"""
        import gc, sys
        sys.path[:0] = {[folder] if folder else []!r}
        import torch
        import kvmem
        pool = kvmem.Pool("1MiB", pages="4k")
        block = pool.allocate(5000)
        tensor = torch.from_dlpack(block)
        tensor.fill_(7)
        assert tensor.data_ptr() == block.ptr and bytes(block) == b"\\x07" * 5000
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int64):
            typed = tensor[:1024].view(dtype)
            assert typed.shape == (1024 // dtype.itemsize,) and typed.data_ptr() == block.ptr
        try:
            block.free()
        except BufferError:
            pass
        else:
            raise AssertionError("a block that a tensor looks at was freed")
        storage = typed.untyped_storage()
        del tensor, typed
        assert not block.freed
        del storage
        gc.collect()
        block.free()
        """
    )


def test_writing() -> None:
    block = make_block()
    assert block.write(b"abc") == 3 and block.write(bytearray(b"def"), 3) == 3
    assert block.write(np.array([1, 2], np.uint16), start=6) == 4
    assert bytes(block)[:10] == b"abcdef\x01\x00\x02\x00"
    for bad in (
        lambda: block.write(bytes(5001)),
        lambda: block.write(b"x", 5000),
        lambda: block.write(b"xx", sys.maxsize),
    ):
        with pytest.raises(kvmem.InvalidArgumentError, match="do not fit into 5000 bytes"):
            bad()
    with pytest.raises(BufferError, match="not contiguous"):
        block.write(np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(TypeError):
        block.write("text")  # type: ignore[arg-type, unused-ignore]
    large = np.arange(1 << 20, dtype=np.uint8)
    with kvmem.Pool("4MiB", pages="4k") as pool:
        target = pool.allocate(large.nbytes)
        assert target.write(large) == large.nbytes and bytes(target) == large.tobytes()


def test_regions() -> None:
    seen: list[tuple[int, int]] = []
    with kvmem.Region(
        "3MiB", pages="4k", populate=2, guard_pages=True, progress=lambda *at: seen.append(at)
    ) as region:
        assert region.nbytes == 3 << 20 and region.ptr % PAGE == 0
        assert seen[-1] == (3 << 20, 3 << 20) and seen == sorted(seen)
        assert region.residency().resident_bytes == 3 << 20
        memoryview(region)[:5] = b"bytes"
        region.discard(0, PAGE)
        assert bytes(region)[:5] == bytes(5)
        region.discard()
        assert region.residency(PAGE, 3 * PAGE)[:2] == (2 * PAGE, 0)
        assert region.populate(0, PAGE) >= 0
        assert region.residency().resident_bytes == PAGE
        receipt = region.receipt
        assert receipt["usable_bytes"] == 3 << 20 and receipt["ranges"][0]["obtained"] == "4k"
        assert str(receipt).startswith("requested 3 MiB, mapped")
        with pytest.raises(kvmem.InvalidArgumentError):
            region.populate(0, 4 << 20)
        with pytest.raises(kvmem.InvalidArgumentError, match="private"):
            region.fileno()
        view = memoryview(region)
        with pytest.raises(kvmem.ExportedError):
            region.close()
        view.release()
    assert region.closed
    region.close()
    with pytest.raises(kvmem.ClosedError, match="the region has been closed"):
        memoryview(region)


def test_failed_mappings_have_the_reason() -> None:
    for bad in (
        {"size": 0},
        {"size": 1, "pages": "3M"},
        {"size": 1, "numa": "bind:x"},
        {"size": 1, "populate": "many"},
    ):
        with pytest.raises(kvmem.InvalidArgumentError):
            kvmem.Region(**bad)  # type: ignore[arg-type, unused-ignore]
    with pytest.raises(kvmem.InvalidArgumentError, match="seconds"):
        kvmem.Region(1, time_budget=-1)
    with pytest.raises(MemoryError) as caught:
        kvmem.Region("512TiB", pages="4k")
    assert isinstance(caught.value, kvmem.MappingError) and caught.value.requested is not None
    with pytest.raises(kvmem.MappingError) as mapping:
        kvmem.Region("64TiB", pages=["1G"], strict=True)
    assert "1G" in str(mapping.value)
    with pytest.raises(TimeoutError) as late:
        kvmem.Region("256MiB", pages="4k", populate=1, time_budget=0)
    assert isinstance(late.value, kvmem.TimeBudgetError) and late.value.seconds == 0


def test_shared_regions_are_attached_by_descriptor() -> None:
    region = kvmem.Region(1 << 20, pages="4k", shared=True)
    memoryview(region)[:5] = b"hello"
    other = kvmem.Region.attach(region.fileno(), size="1MiB")
    region.populate()
    assert other.residency().resident_bytes == 0
    assert (
        region.populate_aliases()
        == region.populate_aliases(threads=1)
        == other.nbytes
        == other.residency().resident_bytes
    )
    assert kvmem.Region("1MiB", pages="4k").populate_aliases() == 0
    region.close()
    assert bytes(other)[:5] == b"hello"
    with pytest.raises(kvmem.InvalidArgumentError):
        kvmem.Region.attach(other.fileno(), size=5)
    with open("/proc/self/status") as file, pytest.raises(kvmem.InvalidArgumentError):
        kvmem.Region.attach(file.fileno())
    for bad in (-1, 100_000):
        with pytest.raises(OSError):
            kvmem.Region.attach(bad)


def test_foreign_memory_is_kept_and_exported() -> None:
    array = np.zeros(1 << 16, np.uint8)
    with kvmem.Region.from_buffer(array) as region:
        assert (region.ptr, region.nbytes) == (array.ctypes.data, array.nbytes)
        memoryview(region)[0] = 9
        assert array[0] == 9
        with pytest.raises(kvmem.InvalidArgumentError):
            region.discard()  # it is its owner's, and lies anywhere
        with pytest.raises(ValueError):
            array.resize(10)
    owner = bytearray(100)
    region = kvmem.Region.from_buffer(owner)
    with pytest.raises(BufferError):
        owner.append(1)
    region.close()
    owner.append(1)
    with pytest.raises(BufferError):
        kvmem.Region.from_buffer(b"constant")


def test_arenas() -> None:
    arena = kvmem.BumpArena(make_region())
    piece = arena.allocate(100, align=4096)
    assert (
        piece.ptr % 4096 == 0
        and piece.nbytes == 100
        and piece.offset == piece.ptr - arena.region.ptr
    )
    assert arena.owns(piece.ptr) and not arena.owns(1)
    stats = arena.stats
    assert stats.used + stats.remaining == stats.capacity == arena.capacity == 1 << 20
    with pytest.raises(kvmem.OutOfSpaceError) as caught:
        arena.allocate(2 << 20)
    assert caught.value.requested == 2 << 20
    for bad in ({"nbytes": 0}, {"nbytes": 1, "align": 3}):
        with pytest.raises(kvmem.InvalidArgumentError):
            arena.allocate(**bad)
    with pytest.raises(BufferError):
        arena.reset()
    array = np.from_dlpack(piece)
    del piece
    with pytest.raises(BufferError):
        arena.reset()
    del array
    arena.reset()
    assert arena.stats.used == 0
    kept = arena.allocate(10)
    arena.region.close()
    del arena
    gc.collect()
    memoryview(kept)[:] = b"still here"
    assert bytes(kept) == b"still here"


def test_no_other_mapping_writes_to_a_region_for_readers_only() -> None:
    try:
        region = kvmem.Region(1 << 20, pages="4k", shared=True, readers_only=True, populate="auto")
    except kvmem.MappingError as error:  # before Linux 5.1
        pytest.skip(str(error))
    with region:
        with pytest.raises(kvmem.MappingError) as caught:
            kvmem.Region.attach(region.fileno())
        assert caught.value.errno == errno.EPERM
        with pytest.raises(kvmem.MappingError):
            region.discard(0, 4096)
        with memoryview(region) as view:
            view[:5] = b"hello"
        with mmap.mmap(region.fileno(), 1 << 20, prot=mmap.PROT_READ) as seen:
            assert seen[:5] == b"hello"


@pytest.mark.parametrize("make", [kvmem.Region, kvmem.Pool])
def test_readers_only_needs_shared_memory(make: Callable[..., object]) -> None:
    with pytest.raises(kvmem.InvalidArgumentError, match="shared=True"):
        make(1 << 20, pages="4k", readers_only=True)
