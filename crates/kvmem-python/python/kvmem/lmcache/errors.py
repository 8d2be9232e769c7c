"""*Errors*: why LMCache does not use kvmem."""

from __future__ import annotations

from typing import ClassVar

from ..errors import KvmemError


class BackendUnusedError(KvmemError, ImportError):
    """LMCache's host memory is not kvmem's, though it was asked for."""

    _numbers: ClassVar[tuple[str, ...]] = ("remedy",)

    remedy: str | None
    """What to do about it."""
