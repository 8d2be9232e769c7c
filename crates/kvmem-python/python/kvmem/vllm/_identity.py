"""*Identity*: what decides the bytes of a chunk, beside its key.

vLLM's keys are hashes of tokens. Two engines may share a stored chunk only if they would have
written the same bytes under its key: the same model and weights, type, groups of layers, sizes and
places of workers, and the same release of vLLM, because layouts change between releases. The
identity is a digest of all that. It stands before every key on a disk, and names the namespace in a
node.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ._version import check_version

NBYTES = 12
"""Length of an identity. A key of vLLM has at most 36 bytes, and a node takes 64."""


def weights(model: str, extra_config: Mapping[str, Any]) -> Any:
    """Returns what tells the weights of a model apart, without reading them: the option
    ``weights`` of ``kvmem`` if it is given; names, lengths and times of change of the files if the
    model is a folder or a file; the commit of ``main`` in the hub's cache if it is a name. None:
    nothing is known.
    """
    options = extra_config.get("kvmem")
    given = options.get("weights") if isinstance(options, Mapping) else None
    if given is not None:
        return given
    path = Path(model)
    try:
        if path.exists():
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            stats = [(file.name, file.stat()) for file in files if file.is_file()]
            return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model, re.ASCII):
            name = "models--" + model.replace("/", "--")
            return (_hub() / name / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        pass
    return None


def _hub() -> Path:
    """Returns the folder of the hub's cache, by the hub's own variables."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def identity(spec: Any) -> bytes:
    """Returns the identity of the chunks of an engine, from its offloading spec."""
    config = spec.config
    parallel = config.parallel
    fields = {
        "vllm": ".".join(check_version().split(".")[:2]),
        "model": config.model.name,
        "weights": weights(config.model.name, config.extra_config),
        "dtype": str(config.model.dtype),
        "groups": [[group.tokens_per_block, *group.layer_names] for group in config.groups],
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "row_bytes": spec.kv_bytes_per_chunk,
        "slot_bytes": spec.cpu_page_size_per_worker,
        "replicated": spec.replicated_layout,
        "canonical": config.canonical_layout,
        "layout": config.kv_cache_layout,
        "workers": [
            parallel.world_size,
            parallel.tp_size,
            parallel.pp_size,
            parallel.pcp_size,
            parallel.dcp_size,
        ],
    }
    text = json.dumps(fields, sort_keys=True)
    return blake2b(text.encode(), digest_size=NBYTES).digest()
