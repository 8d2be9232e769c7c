"""*SGLang*: the host pools of HiCache in regions of kvmem, written against SGLang 0.5.23.

SGLang finds :func:`register` through the entry point group ``sglang.srt.plugins``, in every process
that it starts. The memory of host pools then comes from a :class:`kvmem.Region` in place of
SGLang's default allocator, and shared host pools (``shm``) from shared regions, which may have huge
pages. Allocators that bring their own memory keep it. SGLang registers the memory with the GPU
afterwards, as it does with its own. :class:`KvmemStorage` is the storage backend.

Environment variables:

- ``KVMEM_SGLANG=0`` and ``KVMEM_SGLANG_SHARED=0`` keep SGLang's allocators, of all host pools or of
  shared ones.
- ``KVMEM_SGLANG_PAGES`` and ``KVMEM_SGLANG_NUMA``: ``pages`` and ``numa`` of :class:`kvmem.Region`.

If SGLang keeps its own memory, the log says so: as a warning if ``SGLANG_PLUGINS``, its list of
plugins to load, names kvmem. Importing this module imports neither SGLang nor PyTorch."""

import importlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._kvmem import Region
from .._tensor import tensor
from ..errors import InvalidArgumentError, KvmemError
from ..storage.versions import UnsupportedVersionError, check_version

if TYPE_CHECKING:
    from .storage import KvmemStorage

__all__ = ["TARGET", "HookUnusedError", "KvmemStorage", "check_hook", "region_tensor", "register"]

_log = logging.getLogger("kvmem")

SUPPORTED = ("0.5.23", "0.6")
"""First supported version of SGLang, and the first one that is not."""

TARGET = "sglang.srt.mem_cache.pool_host.common.get_allocator_from_storage"
"""The hooked function, which chooses the allocator of a host pool."""


class HookUnusedError(KvmemError, RuntimeError):
    """SGLang's host pools are not kvmem's."""


def __getattr__(name: str) -> Any:
    if name != "KvmemStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module(".storage", __name__).KvmemStorage
    globals()[name] = found
    return found


def region_tensor(
    dims: Sequence[int],
    dtype: Any,
    *,
    pages: str | None = None,
    numa: str | None = None,
    shared: bool = False,
) -> Any:
    """Returns a tensor of zeros in a region of its own, which other processes can map if it is
    ``shared``. The region is unmapped with the last view. Needs PyTorch. Raises
    :class:`~kvmem.MappingError`, which is a ``MemoryError``, and
    :class:`~kvmem.InvalidArgumentError`."""
    return tensor_and_region(dims, dtype, pages, numa, shared)[0]


def tensor_and_region(
    dims: Sequence[int], dtype: Any, pages: str | None, numa: str | None, shared: bool
) -> tuple[Any, Region | None]:
    """Does what :func:`region_tensor` does, and returns the region, too; None for no bytes."""
    import torch

    count = math.prod(dims)
    if count < 0 or any(length < 0 for length in dims):
        raise InvalidArgumentError(f"{tuple(dims)} is no shape: give lengths of 0 or more")
    if count == 0:
        return torch.empty(tuple(dims), dtype=dtype), None
    nbytes = count * dtype.itemsize
    region = Region(nbytes, pages=pages, numa=numa, populate="auto", shared=shared)
    about = tuple(dims), dtype, region.nbytes, region.receipt
    _log.info("SGLang: %s of %s in a region of %d bytes: %s", *about)
    # The tensor holds the region.
    return tensor(region, dtype, tuple(dims)), region


def _choose(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The hook: replaces the default allocator."""
    from sglang.srt.mem_cache.pool_host import common

    chosen = original(*arguments, **named)
    if type(chosen) is common.ShmHostTensorAllocator and _shares():
        from .allocator import SharedRegionHostTensorAllocator

        return SharedRegionHostTensorAllocator()
    if type(chosen) is not common.HostTensorAllocator:
        _unused(
            f"SGLang has chosen the allocator {type(chosen).__name__} for a host pool, which "
            "brings its own memory"
        )
        return chosen
    if getattr(common, "_is_hip", False) and os.environ.get("HSA_USERPTR_FOR_PAGED_MEM") == "0":
        # SGLang takes these from HIP itself, if the allocator is its own.
        _unused("HSA_USERPTR_FOR_PAGED_MEM=0: HIP must own host pools")
        return chosen
    from .allocator import RegionHostTensorAllocator

    return RegionHostTensorAllocator()


def _shares() -> bool:
    """Returns whether shared host pools are to be kvmem's."""
    return os.environ.get("KVMEM_SGLANG_SHARED", "1") != "0"


_logged: set[str] = set()


def _unused(reason: str) -> None:
    """Logs once that memory is not kvmem's: as a warning if ``SGLANG_PLUGINS`` names kvmem."""
    if reason not in _logged:
        _logged.add(reason)
        by_name = "kvmem" in [
            name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")
        ]
        _log.log(
            logging.WARNING if by_name else logging.INFO, "%s: the memory is not kvmem's", reason
        )


def register() -> None:
    """Registers the hook, unless ``KVMEM_SGLANG`` is 0 or SGLang's version is not supported, which
    the log says: an installed plugin must not keep an engine from starting. SGLang calls this, and
    applies registered hooks before its engine starts. Needs SGLang."""
    if os.environ.get("KVMEM_SGLANG") == "0":
        _unused("KVMEM_SGLANG=0 keeps SGLang's allocator")
        return
    try:
        check_version("sglang", *SUPPORTED)
    except UnsupportedVersionError as error:
        _unused(str(error))
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, _choose, HookType.AROUND)


def check_hook() -> None:
    """Raises :class:`HookUnusedError` unless SGLang's default host pools here are kvmem's."""
    if os.environ.get("KVMEM_SGLANG") == "0":
        raise HookUnusedError(
            "KVMEM_SGLANG=0 keeps SGLang's allocator", remedy="unset KVMEM_SGLANG"
        )
    try:
        check_version("sglang", *SUPPORTED)
    except UnsupportedVersionError as error:
        raise HookUnusedError(str(error), remedy=error.remedy) from error
    try:
        common = importlib.import_module("sglang.srt.mem_cache.pool_host.common")
    except ImportError as error:
        raise HookUnusedError(
            f"SGLang cannot be imported ({error})", remedy="pip install 'sglang>=0.5.23,<0.6'"
        ) from error
    choose = getattr(common, TARGET.rpartition(".")[2], None)
    if choose is None:
        raise HookUnusedError(
            f"this SGLang has no function {TARGET}", remedy="kvmem is written against SGLang 0.5.23"
        )
    chosen = choose("default")
    if type(chosen).__module__ != f"{__name__}.allocator":
        plugins = os.environ.get("SGLANG_PLUGINS")
        raise HookUnusedError(
            f"SGLang's default allocator is {type(chosen).__name__}, its own: its plugins have not "
            f"been loaded in this process, or SGLANG_PLUGINS={plugins!r} leaves kvmem out",
            remedy="call sglang.srt.plugins.load_plugins(), and let SGLANG_PLUGINS be unset or "
            "name kvmem",
        )
