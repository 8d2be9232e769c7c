"""Stand-ins for modules that engines import and that are not installed: the smallest that let the
engines' own modules run.

What is installed is not stood in for. With ``KVMEM_WITH_TORCH=1`` none of this is used: see
engines.py.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import numpy as np


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


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1) -> Any:
    return np.frombuffer(buffer, dtype=dtype, count=count).view(Tensor)


def empty(shape: Any, dtype: Any = None, **_: object) -> Any:
    return np.empty(shape, dtype=dtype).view(Tensor)


def stand_in(*names: str) -> bool:
    """Installs stand-ins for missing modules. Returns whether PyTorch is one of them."""
    # After all other finders: installed modules come first.
    sys.meta_path.append(Finder(names))
    import torch

    return isinstance(torch, Anything)


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


def lmcache() -> None:
    """LMCache, whose compiled half needs PyTorch's libraries."""
    if stand_in(
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
    ):
        sys.modules["lmcache.lmcache_native"] = Anything("lmcache.lmcache_native")
