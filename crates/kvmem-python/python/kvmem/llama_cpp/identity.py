"""*Identity*: all that decides the bytes of a state, apart from the tokens."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..storage.weights import digest, digest_of, fingerprint, warn_unseen
from .library import LlamaLibrary

_SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


def files(model: Path) -> list[Path]:
    """Returns the files of a model: one, or all parts of one that is split."""
    found = _SPLIT.fullmatch(model.name)
    if found is None:
        return [model]
    name, count = found[1], found[2]
    return [model.with_name(f"{name}-{at:05}-of-{count}.gguf") for at in range(1, int(count) + 1)]


def identity(
    library: LlamaLibrary,
    loaded: int,
    model: str | Path,
    weights: str | None,
    settings: Mapping[str, Any],
) -> bytes:
    """Returns a digest of all that the states of a context depend on: the library, the metadata of
    the loaded model, its weights and the settings."""
    if weights is None:
        parts = [fingerprint(str(file)) for file in files(Path(model))]
        if not all(parts):
            warn_unseen(str(model), "pass `weights`, a text that changes with them")
    else:
        parts = [weights]
    fields = {
        "kvmem.llama_cpp": 1,
        # The format of a state is that of a build.
        "library": digest(library.path) if library.path and library.path.is_file() else None,
        "metadata": library.metadata(loaded),
        "weights": parts,
        "settings": {str(name): repr(value) for name, value in settings.items()},
    }
    return digest_of(fields, 32)
