"""*Weights*: distinguishes the weights of a model, without reading all of them.

The bytes of a stored page depend on the weights, and an engine's key names the model alone, which
may be the name of several. Integrations add :func:`fingerprint` to their keys (decision 0137):

- A folder or a file: the name and the length of each file, the time of its last change, and a
  digest of samples of its bytes. Fine-tuning changes nearly every weight and no length.
- Files of the hub's cache are links, and a link names the digest of its contents: this takes the
  place of time and samples, and is the same on all machines.
- A name such as ``org/model``: the commit of the revision in the hub's cache.

A small change between the samples that leaves the length and the time of a file is not seen: set
the option ``weights`` then, which every integration has."""

import json
import logging
import os
import re
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Any

_log = logging.getLogger("kvmem.storage")

SAMPLES = 16
"""Number of samples of a long file."""
SAMPLE_BYTES = 4096
"""Length of a sample."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)

_lock = threading.Lock()
_samples: dict[tuple[str, int, int], str] = {}
_warned: set[tuple[str, str]] = set()


def fingerprint(model: str, revision: str | None = None) -> Any:
    """Returns a description of a model's weights, for JSON; None if this process cannot see them.
    ``model``: path of a folder or a file, or a name of the hub. ``revision``: branch, tag or commit
    of a name; None means ``main``."""
    path = Path(model)
    try:
        if path.exists():
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            return [_described(file) for file in files if file.is_file()] or None
        if _NAME.fullmatch(model):
            return _commit(model, revision or "main")
    except (OSError, ValueError):
        pass
    return None


def weights_of(model: str, text: Any, remedy: str, revision: str | None = None) -> Any:
    """Returns ``text``, which an option has for the weights of a model, or else the fingerprint of
    the files. None: this process cannot see them, which the log says once, with the ``remedy``."""
    found = fingerprint(model, revision) if text is None else text
    if found is None:
        warn_unseen(model, remedy)
    return found


def digest_of(fields: Any, nbytes: int) -> bytes:
    """Returns a digest of values that have a form in JSON."""
    text = json.dumps(fields, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=nbytes).digest()


def warn_unseen(model: str, remedy: str) -> None:
    """Logs once that this process cannot see the weights of a model."""
    with _lock:
        if (model, remedy) in _warned:
            return
        _warned.add((model, remedy))
    _log.warning(
        "the weights of %r are not visible to this process, so keys have the name alone: KV of "
        "other weights under this name would be found; %s",
        model,
        remedy,
    )


def digest(file: Path) -> str:
    """Returns a digest of a short file, and of samples of a long one."""
    return _sample(file, file.stat().st_size)


def _described(file: Path) -> list[Any]:
    if file.is_symlink():
        target = Path(os.readlink(file))
        if target.parent.name == "blobs":
            return [file.name, target.name]
    stat = file.stat()
    key = (str(file.resolve()), stat.st_size, stat.st_mtime_ns)
    with _lock:
        sample = _samples.get(key)
    if sample is None:
        sample = _sample(file, stat.st_size)
        with _lock:
            _samples[key] = sample
    return [file.name, stat.st_size, stat.st_mtime_ns, sample]


def _sample(file: Path, nbytes: int) -> str:
    """Returns a digest of all bytes of a short file, and of samples of a long one."""
    digest = blake2b(digest_size=16)
    with file.open("rb", buffering=0) as opened:
        if nbytes <= SAMPLES * SAMPLE_BYTES:
            digest.update(opened.read(SAMPLES * SAMPLE_BYTES))
        else:
            for number in range(SAMPLES):
                opened.seek(number * (nbytes - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _commit(model: str, revision: str) -> str | None:
    """Returns the commit of a revision in the hub's cache."""
    if _COMMIT.fullmatch(revision):
        return revision
    folder = _hub() / ("models--" + model.replace("/", "--")) / "refs"
    text = (folder / revision).read_text(encoding="ascii").strip()
    return text or None


def _hub() -> Path:
    """Returns the folder of the hub's cache, by the hub's own variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if cache := os.environ.get(variable):
            return Path(cache)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"
