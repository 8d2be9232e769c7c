"""Stand-ins for modules that engines import and that are not installed: the smallest that let the
engines' own modules run.

An installed package has no stand-in. Where PyTorch is installed, the modules that need a GPU have
stand-ins. With ``KVMEM_WITH_TORCH=1`` the tests of memory use none of this: see engines.py.
"""

from __future__ import annotations

import hashlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

# Programs of these tests have the folder of this file on their path.
sys.path.append(str(Path(__file__).parents[1]))
import borrowed


class Anything(types.ModuleType):
    """A module with every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Tensor(np.ndarray):
    """An array with an address, like a tensor."""

    def data_ptr(self) -> int:
        return int(self.ctypes.data)

    def numel(self) -> int:
        return int(self.size)

    def element_size(self) -> int:
        return int(self.itemsize)

    def contiguous(self) -> Tensor:
        return np.ascontiguousarray(self).view(Tensor)

    def numpy(self) -> Any:
        return self.view(np.ndarray)


class Finder:
    """Finds modules that no other finder has found."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] not in self.names:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = Anything(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "torch":
            made = {
                "Tensor": Tensor,
                "dtype": np.dtype,
                "device": str,
                "Size": tuple,
                "frombuffer": frombuffer,
                "empty": empty,
            }
            types_ = {name: np.dtype(name) for name in ("uint8", "float16", "float32", "int64")}
            vars(module).update(made, **types_)
            for name in ("cuda", "xpu", "hpu", "musa", "npu", "mlu"):
                setattr(module, name, MagicMock(is_available=lambda: False))
            cpu = MagicMock(is_available=lambda: True, current_device=lambda: "cpu")
            module.cpu = cpu  # type: ignore[attr-defined]


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0) -> Any:
    return borrowed.frombuffer(buffer, dtype, count, offset).view(Tensor)


def empty(shape: Any, dtype: Any = None, **_: object) -> Any:
    return np.empty(shape, dtype=dtype).view(Tensor)


def stand_in(*names: str) -> bool:
    """Installs stand-ins for missing modules. Returns whether PyTorch is one of them."""
    # After all other finders: installed modules come first.
    sys.meta_path.append(Finder(names))
    import torch

    return isinstance(torch, Anything)


def tensor(array: Any) -> Any:
    """Returns a tensor over an array."""
    import torch

    return array.view(Tensor) if isinstance(torch, Anything) else torch.from_numpy(array)


def put(name: str, **attributes: object) -> None:
    """Makes a module with these names and no others."""
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def folder_only(name: str, path: str) -> None:
    """Makes a package from its folder, without the imports of its ``__init__``."""
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module


def sglang(folder: str) -> None:
    """SGLang with its own plugin framework, environment and host allocators."""
    stand_in("torch")
    for name in (
        "sglang",
        "sglang.srt",
        "sglang.srt.mem_cache",
        "sglang.srt.mem_cache.pool_host",
        "sglang.srt.mem_cache.storage",
    ):
        folder_only(name, f"{folder}/{name.replace('.', '/')}")
    put("sglang.srt.runtime_context", get_memory=lambda: None)
    put("sglang.srt.utils", is_hip=lambda: False)


def page_hashes(tokens: list[int], prior: bytes | None, page_size: int | None) -> Any:
    """Returns a hash of each page and all before it, as SGLang's compiled half does."""
    digest, found = prior or b"", []
    for at in range(0, len(tokens), page_size or len(tokens)):
        page = tokens[at : at + (page_size or len(tokens))]
        digest = hashlib.sha256(digest + np.array(page, np.int64).tobytes()).digest()
        found.append(digest.hex())
    return found if page_size else found[0]


def sglang_storage(folder: str) -> None:
    """SGLang with its own storage interface, backends' factory and cache controller."""
    sglang(folder)
    import torch

    if isinstance(torch, Anything):
        vars(torch)["tensor"] = lambda value, dtype=None: np.array(value).view(Tensor)
    for name in ("sglang.srt.managers", "sglang.srt.plugins"):
        folder_only(name, f"{folder}/{name.replace('.', '/')}")
    # SGLang's own package makes the factory known.
    del sys.modules["sglang.srt.mem_cache.storage"]
    one = types.SimpleNamespace(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_size=1, attn_dcp_rank=0
    )
    put("sglang.srt.runtime_context", get_memory=lambda: None, get_parallel=lambda: one)
    put("sglang.srt.utils", is_hip=lambda: False, get_device_module=MagicMock)
    put("sglang.srt.utils.common", human_readable_int=int)
    put("sglang.srt.layers")
    put("sglang.srt.layers.dp_attention", is_dp_attention_enabled=lambda: False)
    put("sglang.srt.mem_cache.l2_transfer", L2Transfer=object, L2TransferEngine=object)
    put("sglang.srt.mem_cache.memory_pool", MLATokenToKVPool=type("MLA", (), {}))
    native = "sglang.srt.mem_cache.cpp_utils.native_hash"
    put(native, get_native_hash=page_hashes)
    kernels = "sglang.kernels.ops.kvcache.mla_buffer"
    sys.modules[kernels] = Anything(kernels)
    v4 = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
    put(v4, DeepSeekV4TokenToKVPool=type("V4", (), {}))


def lmcache() -> bool:
    """LMCache, whose compiled half needs PyTorch's libraries. Returns whether that stands in."""
    is_missing = stand_in(
        "torch",
        "numba",
        "nvtx",
        "cachetools",
        "prometheus_client",
        "msgspec",
        "zmq",
        "psutil",
        "yaml",
        "cpuinfo",
        "requests",
        "aiofiles",
    )
    if is_missing:
        sys.modules["lmcache.lmcache_native"] = Anything("lmcache.lmcache_native")
    return is_missing


class Bitmap:
    """LMCache's bitmap, of its compiled half."""

    def __init__(self, size: int, prefix_bits: int = 0) -> None:
        self.bits = [index < prefix_bits for index in range(size)]

    def set(self, index: int) -> None:
        self.bits[index] = True

    def clear(self, index: int) -> None:
        self.bits[index] = False

    def test(self, index: int) -> bool:
        return self.bits[index]

    def size(self) -> int:
        return len(self.bits)

    __len__ = size

    def popcount(self) -> int:
        return sum(self.bits)

    def get_indices_list(self) -> list[int]:
        return [index for index, bit in enumerate(self.bits) if bit]

    def gather(self, items: Any) -> list[Any]:
        return [items[index] for index in self.get_indices_list()]


def lmcache_l2() -> None:
    """LMCache with its own adapters of the second level, and their factory and controllers."""
    is_missing = lmcache()
    stand_in("cryptography", "fastapi", "sortedcontainers", "transformers")
    if is_missing:
        native = sys.modules["lmcache.lmcache_native"]
        native.Bitmap = Bitmap  # type: ignore[attr-defined]
