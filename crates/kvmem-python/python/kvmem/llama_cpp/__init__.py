"""*llama.cpp*: the states of sequences in a node, which other processes and later ones restore.

:class:`PrefixCache` writes the state of a sequence straight into a reservation of a node, and
restores it straight from a pin: ``libllama`` copies between its KV cache and the shared memory, and
nothing else does. A prompt that begins as an earlier one did then skips the common part.

The functions are those of ``llama.h``, called through :mod:`ctypes`: the library is that of the
process, such as the one that ``llama-cpp-python`` or ``xllamacpp`` brings. Importing this module
loads no library."""

from .library import LlamaLibrary, StateError, find_library
from .prefix_cache import PrefixCache, PrefixCacheStats

__all__ = ["LlamaLibrary", "PrefixCache", "PrefixCacheStats", "StateError", "find_library"]
