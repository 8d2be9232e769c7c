"""*Errors*: why the KV cache of a model cannot be cut into blocks."""

from __future__ import annotations

from ..errors import KvmemError


class UnsupportedModelError(KvmemError, ValueError):
    """The keys and values of a token are not kept, or depend on later tokens."""

    value: str | None
    """What the model has."""
    limit: str | None
    """What it may have."""
    remedy: str | None
    """What to do about it."""
