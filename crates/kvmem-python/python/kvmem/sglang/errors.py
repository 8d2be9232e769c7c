"""*Errors*: why SGLang does not use kvmem."""

from __future__ import annotations

from typing import ClassVar

from ..errors import KvmemError


class HookUnusedError(KvmemError, RuntimeError):
    """SGLang's host pools are not kvmem's."""

    _numbers: ClassVar[tuple[str, ...]] = ("remedy",)

    remedy: str | None
    """How to make SGLang use kvmem."""
