"""*Transformers*: a cache of Hugging Face Transformers that finds and stores prefixes in a node,
written against Transformers 5.19.

:class:`KvmemCache` is a ``DynamicCache`` for one prompt. It begins with the blocks that the node
has of the prompt, and ``store`` writes the others.

Importing this module imports neither Transformers nor PyTorch. The first access to the class
imports both, and raises :class:`~kvmem.storage.UnsupportedVersionError` for another release
of Transformers."""

import importlib
from typing import TYPE_CHECKING, Any

from ..storage.versions import UnsupportedVersionError, check_version
from .identity import UnsupportedModelError

if TYPE_CHECKING:
    from .cache import KvmemCache

__all__ = ["KvmemCache", "UnsupportedModelError", "UnsupportedVersionError"]

SUPPORTED = ("5.19", "6")
"""First supported version of Transformers, and the first one that is not."""


def __getattr__(name: str) -> Any:
    if name != "KvmemCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_version("transformers", *SUPPORTED)
    found = importlib.import_module(".cache", __name__).KvmemCache
    globals()[name] = found
    return found
