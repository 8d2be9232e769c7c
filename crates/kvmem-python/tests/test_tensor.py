"""Tensors of PyTorch over kvmem's memory hold it; ``torch.frombuffer`` does not.

:func:`borrowed.frombuffer` stands in for ``torch.frombuffer``: it takes the address of a buffer,
releases the buffer, and keeps a reference to the object. With ``KVMEM_WITH_TORCH=1`` the same tests
run with PyTorch as well, in a process of their own: other modules behave differently once it is
imported.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import borrowed
import kvmem
import numpy as np
import pytest
from conftest import LIMIT, MIB
from node_server import Server

REAL = os.environ.get("KVMEM_WITH_TORCH") == "1"
INSIDE = hasattr(sys.modules.get("torch"), "nn")
"""Whether this is the process with PyTorch."""


class Tensor(np.ndarray[Any, Any]):
    """An array with the names of a tensor."""

    def data_ptr(self) -> int:
        return int(self.ctypes.data)


def stand_in() -> types.ModuleType:
    """Returns what :func:`kvmem.tensor` uses of PyTorch, over NumPy."""
    module = types.ModuleType("torch")

    def as_strided(tensor: Any, lengths: Any, steps: Any) -> Any:
        nbytes = tuple(step * tensor.itemsize for step in steps)
        return np.lib.stride_tricks.as_strided(tensor, lengths, nbytes, subok=True)

    made: dict[str, Any] = {
        "dtype": np.dtype,
        "frombuffer": lambda buffer, dtype: borrowed.frombuffer(buffer, dtype).view(Tensor),
        "as_strided": as_strided,
        "empty": lambda lengths, dtype: np.empty(lengths, dtype).view(Tensor),
    }
    kinds = ("uint8", "int8", "float16", "float32", "int64")
    vars(module).update(made, **{kind: np.dtype(kind) for kind in kinds})
    return module


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not INSIDE:
        monkeypatch.setitem(sys.modules, "torch", stand_in())
    return importlib.import_module("torch")


WITH_PYTORCH = """
import sys
import numpy
# Behind the packages of the environment, which has a NumPy of its own.
sys.path += sys.argv[2:]
import pytest, torch
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]]))
"""


@pytest.mark.skipif(INSIDE, reason="this is that process")
def test_all_of_this_with_pytorch() -> None:
    if not REAL:
        pytest.skip("PyTorch has 2.5 GB: KVMEM_WITH_TORCH=1 cargo xtask test python")
    done = subprocess.run(
        [sys.executable, "-c", WITH_PYTORCH, __file__, os.environ.get("TORCH_DIR", ".")],
        capture_output=True,
        text=True,
        timeout=5 * LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


class Memory(NamedTuple):
    """An object with bytes, and how to end them."""

    object: Any
    end: Callable[[], object]


def allocated(name: str, path: Path) -> Iterator[Memory]:
    """Yields memory of a class of kvmem, with at least 4096 bytes."""
    if name == "Region":
        region = kvmem.Region(MIB, pages="4k")
        yield Memory(region, region.close)
    elif name == "Piece":
        # It has no end of its own: the arena has.
        arena = kvmem.BumpArena(kvmem.Region(MIB, pages="4k"))
        yield Memory(arena.allocate(4096), arena.reset)
    elif name == "Block":
        with kvmem.Pool(MIB, pages="4k") as pool:
            block = pool.allocate(4096)
            yield Memory(block, block.free)
    elif name == "AttachedBlock":
        with kvmem.Pool(MIB, pages="4k", shared=True) as pool:
            block = pool.allocate(4096)
            with kvmem.AttachedPool(pool.fileno(), writable=True) as attached:
                here = attached.block(block.reference())
                # The object keeps the memory mapped, and has no end of its own.
                yield Memory(here, lambda: None)
            del here
            block.free()
    elif name in ("Reservation", "Pinned"):
        with kvmem.KvCache(kvmem.Pool(MIB, pages="4k")) as cache:
            reserved = cache.reserve(1, 4096)
            if name == "Reservation":
                yield Memory(reserved, reserved.discard)
            else:
                reserved.commit()
                pinned = cache.get(1)
                assert pinned is not None
                yield Memory(pinned, pinned.release)
    else:
        with Server(MIB, path) as server, kvmem.connect(server.path) as node:
            room = node.reserve(1, 4096)
            if name == "NodeReservation":
                yield Memory(room, room.discard)
            else:
                room.commit()
                value = node.get(1)
                assert value is not None
                yield Memory(value, value.release)


ENDED = ["Region", "Block", "Reservation", "Pinned", "NodeReservation", "PinnedValue"]
READ_ONLY = {"Pinned", "PinnedValue"}


@pytest.fixture
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    yield from allocated(request.param, tmp_path)


def make(memory: Any, torch: Any, *arguments: Any, **named: Any) -> Any:
    read_only = type(memory).__name__ in READ_ONLY
    return kvmem.tensor(memory, *arguments, read_only=read_only, **named)


@pytest.mark.parametrize("memory", ENDED, indirect=True)
def test_memory_cannot_end_while_a_tensor_reads_it(memory: Memory, torch: Any) -> None:
    tensor = make(memory.object, torch, torch.float16)
    assert tensor.data_ptr() == memory.object.ptr
    with pytest.raises(kvmem.ExportedError, match="view"):
        memory.end()
    part = tensor[100:200]
    del tensor
    gc.collect()
    with pytest.raises(kvmem.ExportedError, match="view"):
        memory.end()
    assert int(part.sum()) == 0, "new memory is zero, and it is still mapped"
    del part
    gc.collect()
    memory.end()


@pytest.mark.parametrize("memory", ["Block", "PinnedValue"], indirect=True)
def test_frombuffer_does_not_hold_memory(memory: Memory, torch: Any) -> None:
    """If this fails, PyTorch holds buffers, and the warnings in the documentation can go."""
    taken = torch.frombuffer(memory.object, dtype=torch.uint8)
    memory.end()
    assert taken.shape[0] == 4096


@pytest.mark.parametrize("memory", ["AttachedBlock", "Piece"], indirect=True)
def test_a_tensor_keeps_memory_without_an_end_mapped(memory: Memory, torch: Any) -> None:
    tensor = make(memory.object, torch, "int64", (16, 32))
    tensor[3, 4] = 77
    assert memoryview(memory.object)[(3 * 32 + 4) * 8] == 77
    del memory
    gc.collect()
    assert int(tensor[3, 4]) == 77


def test_shapes_offsets_and_strides(torch: Any) -> None:
    with kvmem.Pool(MIB, pages="4k") as pool, pool.allocate(4096) as block:
        block.write(np.arange(1024, dtype=np.float32))
        assert kvmem.tensor(block, torch.float32).shape == (1024,)
        page = kvmem.tensor(block, "float32", (2, 3, 4), offset=16)
        assert page.shape == (2, 3, 4) and float(page[1, 2, 3]) == 4 + 23
        assert page.data_ptr() == block.ptr + 16
        assert kvmem.tensor(block, torch.uint8, 10, offset=4086).shape == (10,)
        rows = kvmem.tensor(block, torch.float32, (4, 2), strides=(256, 1))
        assert float(rows[3, 1]) == 3 * 256 + 1
        nothing = kvmem.tensor(block, torch.float32, (0, 5))
        assert nothing.shape == (0, 5)
        part = kvmem.tensor(memoryview(block)[1024:2048], torch.float32)
        assert part.shape == (256,) and float(part[0]) == 256
        with pytest.raises(kvmem.ExportedError):
            block.free()
        del page, rows, part
        gc.collect()
    plain = bytearray(16)
    numbers = kvmem.tensor(plain, torch.int64)
    with pytest.raises(BufferError):
        plain.append(1)
    assert numbers.shape == (2,)


def invalid(memory: Any, *arguments: Any, **named: Any) -> kvmem.InvalidArgumentError:
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        kvmem.tensor(memory, *arguments, **named)
    return caught.value


def test_arguments_that_do_not_fit_raise(torch: Any) -> None:
    with kvmem.Pool(MIB, pages="4k") as pool, pool.allocate(1000) as block:
        error = invalid(block, torch.float32, (251,))
        assert (error.value, error.limit) == (1004, 1000) and "smaller shape" in str(error)
        error = invalid(block, torch.float32, (4, 2), strides=(256, 1))
        assert error.value == (3 * 256 + 2) * 4
        assert invalid(block, torch.uint8, 10, offset=991).limit == 9
        for offset in (-1, 1001):
            assert invalid(block, torch.uint8, offset=offset).value == offset
        assert invalid(block, torch.float16, 4, offset=3).limit == 2
        assert invalid(block, torch.int64, offset=4).value == 996
        invalid(block, torch.uint8, (-1,))
        invalid(block, torch.uint8, (2, 2), strides=(1,))
        invalid(block, torch.uint8, (2, 2), strides=(-1, 1))
        invalid(block, torch.uint8, 2**70)
        for dtype in ("no such type", "frombuffer", 3, None, np.float32):
            assert invalid(block, dtype).value == dtype
        assert invalid(7, torch.uint8).value == "int"
        with memoryview(block) as view, view[::2] as every_other:
            invalid(every_other, torch.uint8)
        invalid(b"bytes", torch.uint8, read_only=True)
        gc.collect()
    with pytest.raises(kvmem.ClosedError):
        kvmem.tensor(block, torch.uint8)


def test_read_only_memory_needs_a_promise(torch: Any) -> None:
    with kvmem.KvCache(kvmem.Pool(MIB, pages="4k")) as cache:
        cache.insert(1, bytes(range(256)))
        pinned = cache.get(1)
        assert pinned is not None
        with pytest.raises(kvmem.InvalidBufferError, match="read_only=True"):
            kvmem.tensor(pinned, torch.uint8)
        tensor = kvmem.tensor(pinned, torch.uint8, (16, 16), read_only=True)
        assert int(tensor[3, 5]) == 53
        del tensor
        gc.collect()
        pinned.release()


def test_without_pytorch_the_error_says_so(script: Callable[..., str]) -> None:
    script(
        """
        import sys
        import kvmem
        assert "torch" not in sys.modules
        sys.modules["torch"] = None
        try:
            kvmem.tensor(bytearray(8), "uint8")
        except kvmem.NotInstalledError as error:
            assert error.remedy == "pip install torch" and "pip install torch" in str(error)
        else:
            raise AssertionError
        """
    )


def test_an_address_is_that_of_the_memory() -> None:
    """The stand-in keeps its object and nothing else, as PyTorch does."""
    block = bytearray(16)
    array: Any = (ctypes.c_ubyte * 16).from_buffer(block)
    taken = borrowed.frombuffer(array, np.uint8)
    count = sys.getrefcount(array)
    del taken
    assert sys.getrefcount(array) == count - 1
