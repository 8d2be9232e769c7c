"""*Library*: the functions of ``llama.h`` that concern the state of a sequence.

Only functions with plain arguments are used. ``llama.h`` changes its structures between releases,
and these functions have been the same since the middle of 2025."""

import contextlib
import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from ctypes import c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, KvmemError, NotInstalledError

_REMEDY = "pip install xllamacpp, or pass the path of libllama.so"

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_get_model": (c_void_p, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_model_n_swa": (c_int32, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_meta_count": (c_int32, (c_void_p,)),
    "llama_model_meta_key_by_index": (c_int32, (c_void_p, c_int32, c_char_p, c_size_t)),
    "llama_model_meta_val_str_by_index": (c_int32, (c_void_p, c_int32, c_char_p, c_size_t)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
}
"""The functions that are needed: results and arguments."""

_OPTIONAL: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_n_ctx_seq": (c_uint32, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
}
"""Functions that older releases lack."""


class StateError(KvmemError, RuntimeError):
    """``libllama`` has no state of a sequence, or has not written the ``limit`` bytes that it has
    announced, but ``value``."""


class LlamaLibrary:
    """``libllama``, with the functions that :class:`PrefixCache` calls.

    ``library``: a loaded library of :mod:`ctypes`, or the path of a file. A process that has loaded
    the file already gets the same library. Raises :class:`~kvmem.NotInstalledError` if it cannot be
    loaded, or lacks a function."""

    def __init__(self, library: ctypes.CDLL | str | Path) -> None:
        if not isinstance(library, ctypes.CDLL):
            try:
                library = ctypes.CDLL(str(library))
            except OSError as error:
                raise NotInstalledError(
                    f"libllama cannot be loaded ({error}): {_REMEDY}", remedy=_REMEDY
                ) from error
        self.path = Path(library._name) if library._name else None
        """The file of the library, if it is known."""
        # Prototypes of its own: another user of the loaded library may have set others.
        for name, (result, arguments) in {**_FUNCTIONS, **_OPTIONAL}.items():
            prototype = ctypes.CFUNCTYPE(result, *arguments)
            try:
                function = prototype((name, library))
            except AttributeError as error:
                if name in _OPTIONAL:
                    continue
                raise NotInstalledError(
                    f"{library._name} has no function {name}: it is no libllama, or is older than "
                    f"the middle of 2025: {_REMEDY}",
                    remedy=_REMEDY,
                ) from error
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        # Only for names that the constructor has not set.
        raise AttributeError(f"this libllama has no function {name}")

    def tokens_in_sequence(self, context: int) -> int:
        """Returns how many tokens a sequence of a context can have."""
        function = getattr(self, "llama_n_ctx_seq", None) or self.llama_n_ctx
        return int(function(context))

    def keeps_all_positions(self, model: int) -> bool:
        """Returns whether a context of the model has the keys and values of each token of a
        sequence, for as long as the sequence lasts. A recurrent model has one state for all
        tokens, and one with sliding windows forgets the tokens behind them."""
        is_hybrid = getattr(self, "llama_model_is_hybrid", None)
        return not (
            self.llama_model_is_recurrent(model)
            or (is_hybrid is not None and is_hybrid(model))
            or self.llama_model_n_swa(model) > 0
        )

    def metadata(self, model: int) -> dict[str, str]:
        """Returns the metadata of a model, with the changes that its user has made."""
        count = self.llama_model_meta_count(model)
        return {
            _text(self.llama_model_meta_key_by_index, model, at): _text(
                self.llama_model_meta_val_str_by_index, model, at
            )
            for at in range(count)
        }


def _text(function: Any, model: int, at: int) -> str:
    """Returns a text that a function writes like ``snprintf``."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = int(function(model, at, buffer, size))
        if needed < size:
            return buffer.value.decode("utf-8", "replace")
        size = needed + 1


def find_library() -> LlamaLibrary:
    """Returns the ``libllama`` of this process: that of ``llama_cpp`` (llama-cpp-python) if it is
    imported, and otherwise that of ``xllamacpp``, whose extension exports the same functions.
    Raises :class:`~kvmem.NotInstalledError` if there is none."""
    for path in _candidates():
        return LlamaLibrary(path)
    raise NotInstalledError(f"no libllama is found: {_REMEDY}", remedy=_REMEDY)


def _candidates() -> Iterator[ctypes.CDLL | Path]:
    bindings = sys.modules.get("llama_cpp.llama_cpp")
    loaded = getattr(bindings, "_lib", None)
    if isinstance(loaded, ctypes.CDLL):
        yield loaded
    for package in ("xllamacpp", "llama_cpp"):
        with contextlib.suppress(ImportError, ValueError):
            found = importlib.util.find_spec(package)
            for folder in (found.submodule_search_locations or ()) if found else ():
                yield from sorted(Path(folder).glob("xllamacpp*.so"))
                yield from sorted(Path(folder, "lib").glob("libllama.so"))


def address_of(context: Any) -> int:
    """Returns the address of a context: an ``int``, or a pointer of :mod:`ctypes`."""
    if isinstance(context, int) and not isinstance(context, bool):
        address = context
    elif isinstance(context, (c_void_p, ctypes._Pointer)):
        address = ctypes.cast(context, c_void_p).value or 0
    else:
        # `cast` would take a text, too.
        raise InvalidArgumentError(
            f"context is of {type(context).__name__}: pass the address of a llama_context, or a "
            "pointer of ctypes to it",
            value=type(context).__name__,
        )
    if address <= 0:
        raise InvalidArgumentError(
            f"context is {address:#x}: pass the address of a llama_context", value=address, limit=1
        )
    return address
