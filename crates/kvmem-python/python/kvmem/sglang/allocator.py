"""*Allocators*: SGLang's host tensors in regions. Importing this module imports SGLang."""

import os
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.pool_host.common import HostTensorAllocator, ShmHostTensorAllocator

from .._kvmem import Region
from ..errors import InvalidArgumentError
from . import tensor_and_region


def _allocate(
    dims: Sequence[int], dtype: Any, device: str, shared: bool
) -> tuple[Any, Region | None]:
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f'host pools need host memory: pass device="cpu", not {device!r}', value=str(device)
        )
    return tensor_and_region(
        dims,
        dtype,
        pages=os.environ.get("KVMEM_SGLANG_PAGES") or None,
        numa=os.environ.get("KVMEM_SGLANG_NUMA") or None,
        shared=shared,
    )


class RegionHostTensorAllocator(HostTensorAllocator):  # type: ignore[misc]
    """Allocates each tensor in a region of its own."""

    def allocate(self, dims: Sequence[int], dtype: Any, device: str = "cpu") -> Any:
        """Returns a tensor of zeros: see :func:`kvmem.sglang.region_tensor`."""
        tensor, _ = _allocate(dims, dtype, device, shared=False)
        self.dtype = dtype
        self.dims = dims
        return tensor


class SharedRegionHostTensorAllocator(ShmHostTensorAllocator):  # type: ignore[misc]
    """Allocates each tensor in a shared region of its own, on huge pages if there are any. SGLang's
    own allocator of shared memory has no huge pages. ``fds`` has a descriptor of each region, which
    the allocator owns; ``mms`` the regions."""

    def allocate(self, dims: Sequence[int], dtype: Any, device: str = "cpu") -> Any:
        """Returns a tensor of zeros that other processes can map by its descriptor."""
        tensor, region = _allocate(dims, dtype, device, shared=True)
        self.dtype = dtype
        self.dims = dims
        if region is not None:
            self.fds.append(os.dup(region.fileno()))
            self.mms.append(region)
        return tensor
