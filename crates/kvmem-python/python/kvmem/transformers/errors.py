"""*Errors*: why the KV cache of a model cannot be cut into blocks."""

from __future__ import annotations

from typing import ClassVar

from ..errors import KvmemError


class UnsupportedModelError(KvmemError, ValueError):
    """The keys and values of a token are not kept, or depend on later tokens."""

    _numbers: ClassVar[tuple[str, ...]] = ("value", "limit", "remedy")

    value: str | None
    """What the model has."""
    limit: str | None
    """What it may have."""
    remedy: str | None
    """What to do about it."""
