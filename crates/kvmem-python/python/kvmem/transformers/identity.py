"""*Identity*: what decides the bytes of a block, apart from the tokens.

Samples of the tensors themselves distinguish weights: a model may have been trained, merged with an
adapter or quantized since its files were read. A change that spares all samples is not
seen; the option ``weights`` replaces them."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ..errors import InvalidArgumentError, KvmemError
from ..storage.weights import digest_of

SAMPLES = 64
"""Elements of a tensor that are read."""

_CHANGING = ("dynamic", "longrope")
"""Types of RoPE whose angles depend on the length of the whole prompt."""


class UnsupportedModelError(KvmemError, ValueError):
    """The KV cache of the model cannot be cut into blocks: it does not keep the keys and values of
    each token, or they depend on later tokens."""


def identity(model: Any, weights: str | None, settings: Mapping[str, Any]) -> bytes:
    """Returns a digest of all that the KV cache of a model depends on."""
    import torch
    import transformers

    config = model.config
    fields = {
        "kvmem.transformers": 1,
        "transformers": transformers.__version__,
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "config": json.loads(config.to_json_string(use_diff=False)),
        "attention": str(getattr(config, "_attn_implementation", None)),
        "weights": _samples(torch, model) if weights is None else weights,
        "settings": {str(name): repr(value) for name, value in settings.items()},
    }
    # Paths, and the release that has written the files.
    for name in ("_name_or_path", "transformers_version"):
        fields["config"].pop(name, None)
    return digest_of(fields, 32)


def _samples(torch: Any, model: Any) -> str:
    """Returns a digest of samples of all parameters and buffers."""
    digest = blake2b(digest_size=32)
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for name, tensor in _tensors(model):
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"the tensor {name} has no elements in this process, so its weights look like "
                "others: pass weights=, a text that changes with them",
                value=name,
            )
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLES)
        groups.setdefault((tensor.dtype, tensor.device), []).append(flat[::step][:SAMPLES])
    for samples in groups.values():
        # One copy from each device.
        digest.update(torch.cat(samples).cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def check_rope(config: Any) -> None:
    """Raises :class:`UnsupportedModelError` if keys depend on the length of the whole prompt."""
    for name in ("rope_parameters", "rope_scaling"):
        for kind in _kinds(getattr(config, name, None)):
            if kind in _CHANGING:
                raise UnsupportedModelError(
                    f"the model has RoPE of type {kind!r}, whose angles depend on the length of "
                    "the whole prompt, so prompts cannot share keys: use a DynamicCache",
                    value=kind,
                    limit="RoPE whose angles depend on the position alone",
                    remedy="use a DynamicCache",
                )


def _kinds(parameters: Any) -> Iterator[str]:
    """Yields the types of RoPE in a configuration, which may have one for each type of layer."""
    if not isinstance(parameters, Mapping):
        return
    for name, value in parameters.items():
        if name in ("rope_type", "type") and isinstance(value, str):
            yield value
        else:
            yield from _kinds(value)
