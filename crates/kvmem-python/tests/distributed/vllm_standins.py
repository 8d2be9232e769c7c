"""Stand-ins around vLLM's own modules: the smallest that let these run without a GPU.

In both modes these stand in: vLLM's package ``__init__`` (which imports the whole engine), its
compiled half, its platform (a GPU whose memory is the host's), Triton, and the CUDA runtime. The
copies between the GPU and the host are ``memmove``. Without PyTorch, tensors are arrays of NumPy
with the members that vLLM uses. Everything else is vLLM's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import standins

DEVICE = types.SimpleNamespace(type="cpu")


class Tensor(np.ndarray):
    """An array with the members of a tensor that vLLM's offloading uses."""

    is_cuda = False
    is_xpu = False
    device = DEVICE  # type: ignore[assignment]

    def data_ptr(self) -> int:
        return int(self.ctypes.data)

    def stride(self, axis: int | None = None) -> Any:
        strides = tuple(step // self.itemsize for step in self.strides)
        return strides if axis is None else strides[axis]

    def storage_offset(self) -> int:
        return 0

    def element_size(self) -> int:
        return self.itemsize

    def numel(self) -> int:
        return self.size

    def numpy(self) -> Any:
        return np.asarray(self)

    def view(self, *arguments: Any) -> Any:  # type: ignore[override]
        if len(arguments) == 1 and isinstance(arguments[0], tuple):
            arguments = arguments[0]
        if all(isinstance(it, int) for it in arguments):
            shaped = self.reshape(arguments)
            assert shaped.ctypes.data == self.ctypes.data
            return shaped
        return super().view(*arguments)


class GpuTensor(Tensor):
    """Memory of the stand-in for a GPU."""

    is_cuda = True
    device = types.SimpleNamespace(type="cuda", index=None)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0) -> Any:
    return standins.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(Tensor)


def as_strided(tensor: Any, size: Any, stride: Any, storage_offset: int = 0) -> Any:
    last = storage_offset + sum((n - 1) * step for n, step in zip(size, stride))
    assert 0 <= storage_offset and last < tensor.size, "out of the tensor's bounds"
    flat = tensor.reshape(-1)[storage_offset:]
    steps = tuple(step * tensor.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(flat, size, steps, subok=True)


def empty(*shape: Any, dtype: Any = None, **_: object) -> Any:
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    return np.empty(shape, dtype=dtype).view(Tensor)


def zeros(*shape: Any, dtype: Any = None, **_: object) -> Any:
    made = empty(*shape, dtype=dtype)
    made[...] = 0
    return made


class Event:
    """An event of a stream that runs nothing later."""

    def __init__(self, **_: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: object) -> float:
        return 0.0


class Stream:
    """A stream whose work is done when it is submitted."""

    def wait_stream(self, other: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass


class Platform:
    """A GPU whose memory is that of the host."""

    device_name = "stand-in"
    Stream = Stream

    def is_cuda_alike(self) -> bool:
        return True

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def register_custom_kv_cache_specs(self, config: object) -> None:
        pass

    def current_stream(self) -> Any:
        return Stream()

    def stream(self, stream: object) -> Any:
        return contextlib.nullcontext()


def swap_blocks_batch(src: Any, dst: Any, sizes: Any, **_: object) -> None:
    """Copies ranges of bytes by address. The driver copies if kvmem has registered memory."""
    for source, target, nbytes in zip(src.tolist(), dst.tolist(), sizes.tolist()):
        if _driver is None or driver_number("live_ranges") == 0:
            ctypes.memmove(target, source, nbytes)
        else:
            error = _driver.run("cuMemcpyAsync", target, source, nbytes)
            assert error == 0, f"cudaErrorInvalidValue: {nbytes} bytes, {source:#x} to {target:#x}"


def gpu(rows: int, nbytes: int) -> Any:
    """Returns a cache of ``rows`` blocks in the memory of the stand-in for a GPU."""
    import torch

    if isinstance(torch, standins.Anything):
        return np.zeros((rows, nbytes), np.int8).view(GpuTensor)

    class Gpu(torch.Tensor):  # type: ignore[misc]
        is_cuda = True

    return torch.zeros((rows, nbytes), dtype=torch.int8).as_subclass(Gpu)


_driver: Any = None


class _Runtime:
    """The CUDA runtime that vLLM pins memory with. Counts the calls."""

    registered = 0

    def cudaHostRegister(self, address: int, nbytes: int) -> int:
        type(self).registered += 1
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        type(self).registered -= 1
        return 0


def use_driver(library: str, tensors: Any, ordinal: int) -> None:
    """Loads a stand-in for the driver, whose name the registrar of kvmem then finds, makes vLLM pin
    memory, and puts the caches of a worker on a GPU.
    """
    global _driver
    sys.path.append(str(Path(__file__).parents[1]))
    import cuda_driver

    _driver = cuda_driver.Driver(library)
    from vllm.v1.kv_offload.cpu import gpu_worker, host_register

    gpu_worker.PIN_MEMORY = True
    host_register.CudaRTLibrary = _Runtime
    for tensor in tensors:
        tensor.device = types.SimpleNamespace(type="cuda", index=ordinal)


def driver_number(name: str) -> int:
    return _Runtime.registered if name == "vllm" else int(_driver.number(name))


class Around(standins.Finder):
    """Finds modules of vLLM that stand in, before those of its wheel."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in self.names):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]


AROUND = (
    "vllm.config",
    "vllm.multimodal",
    "vllm.model_executor",
    "vllm.sampling_params",
    "vllm.pooling_params",
    "vllm.lora",
    "vllm.forward_context",
    "vllm.inputs",
    "vllm.transformers_utils",
    "vllm.compilation",
    "vllm.distributed.parallel_state",
    "vllm.platforms",
    "vllm.utils.network_utils",
    "vllm.utils.system_utils",
    "vllm.v1.metrics.perf",
    "vllm.v1.hisparse",
    "vllm.outputs",
    "vllm.usage",
    "vllm.engine",
    "vllm.v1.executor",
    "vllm.v1.structured_output",
    "vllm.v1.serial_utils",
    "vllm.v1.attention",
    "vllm.v1.outputs",
)


def anything(name: str, **attributes: object) -> None:
    """Makes a module with these names; every other one is a mock."""
    module = standins.Anything(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def _torch() -> None:
    """PyTorch, if it is not installed."""
    standins.stand_in(
        "torch",
        "msgspec",
        "prometheus_client",
        "regex",
        "zmq",
        "cloudpickle",
        "psutil",
        "cachetools",
        "cbor2",
        "xxhash",
        "uvloop",
    )
    import torch

    # Without a device PyTorch has no events.
    torch.Event = Event
    if not isinstance(torch, standins.Anything):
        return
    made = {
        "Tensor": Tensor,
        "frombuffer": frombuffer,
        "as_strided": as_strided,
        "empty": empty,
        "zeros": zeros,
    }
    kinds = {name: np.dtype(name) for name in ("int8", "int32", "uint64")}
    vars(torch).update(made, **kinds)
    msgspec: Any = importlib.import_module("msgspec")

    if isinstance(msgspec, standins.Anything):

        class Struct:
            def __init_subclass__(cls, **_: object) -> None:
                pass

            def __init__(self, *values: object, **named: object) -> None:
                vars(self).update(zip(type(self).__annotations__, values), **named)

        vars(msgspec)["Struct"] = Struct


def vllm(folder: str) -> None:
    """vLLM with its own offloading: factories, managers, specs, workers, tiers."""
    _torch()
    version = (Path(folder) / "vllm" / "_version.py").exists()
    assert version, f"{folder} has no vLLM"
    for name in (
        "vllm",
        "vllm.distributed",
        "vllm.distributed.device_communicators",
        "vllm.v1",
    ):
        standins.folder_only(name, f"{folder}/{name.replace('.', '/')}")
    sys.modules["vllm.distributed"].get_tp_group = MagicMock()  # type: ignore[attr-defined]
    standins.put("vllm._custom_ops", swap_blocks_batch=swap_blocks_batch)
    sys.modules["vllm"]._custom_ops = sys.modules["vllm._custom_ops"]  # type: ignore[attr-defined]
    standins.put("vllm.triton_utils", HAS_TRITON=False, triton=MagicMock(), tl=MagicMock())
    anything("vllm.utils.torch_utils", PIN_MEMORY=False, get_dtype_size=lambda kind: kind.itemsize)
    standins.put(
        "vllm.distributed.device_communicators.shm_broadcast",
        check_shm_free_space=lambda *_, **__: None,
    )
    standins.put(
        "vllm.distributed.device_communicators.cuda_wrapper",
        CudaRTLibrary=MagicMock(side_effect=OSError("no CUDA here")),
    )
    sys.meta_path.insert(0, Around(AROUND))
    import vllm.platforms

    vllm.platforms.current_platform = Platform()
