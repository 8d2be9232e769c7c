"""*Errors*: why LMCache does not use kvmem."""

from __future__ import annotations

from ..errors import KvmemError


class BackendUnusedError(KvmemError, ImportError):
    """LMCache's host memory is not kvmem's, although kvmem's was requested."""

    remedy: str | None
    """How to make LMCache use kvmem."""
