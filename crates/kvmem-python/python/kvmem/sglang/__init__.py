"""*SGLang*: the host pools of HiCache in regions of kvmem, written against SGLang 0.5.23.

SGLang finds :func:`register` through the entry point group ``sglang.srt.plugins``, in every process that it starts. From then on a host pool whose
memory would come from SGLang's own default allocator comes from a :class:`kvmem.Region`: on the best pages there are, made resident by
several threads. Allocators that bring their memory along (``mooncake``, ``mori``, ``shm``, ``tensorcast``) keep it, and so do pools that HIP
must own. SGLang registers the memory with the GPU afterwards, as it does with its own.

What is set in the environment: ``SGLANG_PLUGINS``, SGLang's own list of plugins to load (``kvmem`` is this one's name);
``KVMEM_SGLANG=0``, which leaves SGLang's allocator in place; ``KVMEM_SGLANG_PAGES``, kinds of pages to try, first choice first (``1G,2M,thp,4k``); ``KVMEM_SGLANG_NUMA``, as ``numa`` of :class:`kvmem.Region`.

This module imports neither SGLang nor PyTorch; its functions do when they are called.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from .._kvmem import Region
from ..errors import BadValueError

__all__ = ["TARGET", "region_tensor", "register"]

_log = logging.getLogger("kvmem")

TARGET = "sglang.srt.mem_cache.pool_host.common.get_allocator_from_storage"
"""What is hooked: the function that chooses the allocator of a host pool."""


def region_tensor(dims: Sequence[int], dtype: Any, *, pages: str | None = None, numa: str | None = None) -> Any:
    """A tensor of zeros in a region of its own, which goes when nothing looks at it any more. It needs PyTorch.

    Raises :class:`~kvmem.MappingError`, which is a ``MemoryError``, and :class:`~kvmem.BadValueError`.
    """
    import torch

    count = math.prod(dims)
    if count < 0 or any(length < 0 for length in dims):
        raise BadValueError(f"{tuple(dims)} is no shape: lengths are 0 or more")
    if count == 0:
        return torch.empty(tuple(dims), dtype=dtype)
    nbytes = count * dtype.itemsize
    region = Region(nbytes, pages=pages, numa=numa, populate="auto")
    _log.info("SGLang: %s of %s in a region of %d bytes", tuple(dims), dtype, region.nbytes)
    # By way of bytes, since not every type can be read from a buffer. The tensor keeps the region.
    return torch.frombuffer(region, dtype=torch.uint8, count=nbytes).view(dtype).reshape(tuple(dims))


def _choose(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The hook: another allocator in the place of the default one."""
    from sglang.srt.mem_cache.pool_host import common

    chosen = original(*arguments, **named)
    if type(chosen) is not common.HostTensorAllocator:
        return chosen
    if getattr(common, "_is_hip", False) and os.environ.get("HSA_USERPTR_FOR_PAGED_MEM") == "0":
        # SGLang takes these from HIP itself, if the allocator is its own.
        return chosen
    from .allocator import RegionHostTensorAllocator

    return RegionHostTensorAllocator()


def register() -> None:
    """Registers the hook, unless ``KVMEM_SGLANG`` is 0. SGLang calls it, and applies what is registered before its engine starts. It needs SGLang."""
    if os.environ.get("KVMEM_SGLANG") == "0":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, _choose, HookType.AROUND)
