"""*Version*: the releases of LMCache that the plug-ins are written against."""

from __future__ import annotations

SUPPORTED = ("0.5.6", "0.6")
"""First supported version of LMCache, and the first one that is not."""
