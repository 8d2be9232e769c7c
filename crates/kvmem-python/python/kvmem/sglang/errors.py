"""*Errors*: why SGLang does not use kvmem."""

from __future__ import annotations

from ..errors import KvmemError


class HookUnusedError(KvmemError, RuntimeError):
    """SGLang's host pools are not kvmem's."""

    remedy: str | None
    """How to make SGLang use kvmem."""
