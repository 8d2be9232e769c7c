"""*Identity*: all that decides the bytes of a chunk, apart from its key.

vLLM's keys are hashes of tokens. Two engines may share a stored chunk only if they would have
written the same bytes under its key. The identity stands before every key on a disk, and names the
namespace in a node."""

from collections.abc import Mapping
from typing import Any

from ..storage.weights import digest_of, weights_of
from ._version import check_version

NBYTES = 12
"""Length of an identity. A key of vLLM has at most 36 bytes, and a node takes 64."""


def weights(model: str, extra_config: Mapping[str, Any]) -> Any:
    """Returns what distinguishes the weights of a model, by the option ``weights``."""
    options = extra_config.get("kvmem")
    text = options.get("weights") if isinstance(options, Mapping) else None
    remedy = 'set "weights" of the option "kvmem" to a text that changes with them'
    return weights_of(model, text, remedy)


def identity(spec: Any) -> bytes:
    """Returns the identity of the chunks of an engine, from its offloading spec."""
    config = spec.config
    parallel = config.parallel
    fields = {
        # Layouts change between releases.
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
            getattr(parallel, name)
            for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
        ],
    }
    return digest_of(fields, NBYTES)
