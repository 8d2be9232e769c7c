"""*Identity*: what decides the bytes of a chunk, apart from its key.

vLLM's keys are hashes of tokens. Two engines may share a stored chunk only if they would have
written the same bytes under its key: the same model and weights, type, groups of layers, sizes and
places of workers, and the same release of vLLM, because layouts change between releases. The
identity is a digest of all that. It stands before every key on a disk, and names the namespace in a
node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from ..storage.weights import fingerprint, warn_unseen
from ._version import check_version

NBYTES = 12
"""Length of an identity. A key of vLLM has at most 36 bytes, and a node takes 64."""


def weights(model: str, extra_config: Mapping[str, Any]) -> Any:
    """Returns what distinguishes the weights of a model: the option ``weights`` of ``kvmem``, or
    the :func:`~kvmem.storage.weights.fingerprint` of the files. None: nothing is known, with a
    warning in the log.
    """
    options = extra_config.get("kvmem")
    given = options.get("weights") if isinstance(options, Mapping) else None
    if given is not None:
        return given
    found = fingerprint(model)
    if found is None:
        warn_unseen(model, 'set "weights" of the option "kvmem" to a text that changes with them')
    return found


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
