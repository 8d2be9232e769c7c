"""*Errors*: why the state of a sequence cannot be stored."""

from __future__ import annotations

from ..errors import KvmemError


class StateError(KvmemError, RuntimeError):
    """``libllama`` has no state of a sequence, or writes none."""

    value: int | None
    """Bytes that ``libllama`` has written."""
    limit: int | None
    """Bytes that it has announced."""
    remedy: str | None
    """What to do about it."""
