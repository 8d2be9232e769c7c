"""*Allocator*: SGLang's host tensors in regions. Importing this module imports SGLang."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.pool_host.common import HostTensorAllocator

from ..errors import InvalidArgumentError
from . import region_tensor


class RegionHostTensorAllocator(HostTensorAllocator):  # type: ignore[misc]
    """Allocates each tensor in a region of its own."""

    def allocate(self, dims: Sequence[int], dtype: Any, device: str = "cpu") -> Any:
        """Returns a tensor of zeros: see :func:`kvmem.sglang.region_tensor`."""
        if str(device) != "cpu":
            raise InvalidArgumentError(
                f'host pools need host memory: pass device="cpu", not {device!r}'
            )
        self.dtype = dtype
        self.dims = dims
        pages = os.environ.get("KVMEM_SGLANG_PAGES") or None
        return region_tensor(
            dims, dtype, pages=pages, numa=os.environ.get("KVMEM_SGLANG_NUMA") or None
        )
