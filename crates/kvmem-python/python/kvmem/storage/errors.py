"""*Errors*: why a store makes no call, or a plug-in does not start."""

from __future__ import annotations

from ..errors import KvmemError


class StoreUnavailableError(KvmemError, ConnectionError):
    """The store makes no call now, or the call missed its deadline."""

    value: float | None
    """Seconds that the call took."""
    limit: float | None
    """Seconds that it may take."""
    remedy: str | None
    """What to do about it."""


class UnsupportedVersionError(KvmemError, ImportError):
    """The installed version of an engine is not one that the plug-in supports."""

    value: str
    """The installed version."""
    limit: str
    """The supported versions."""
    remedy: str
    """How to install one of them."""
