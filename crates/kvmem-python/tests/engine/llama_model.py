"""A small model for llama.cpp with random weights, and the functions of ``llama.h`` that run it.

``python llama_model.py FOLDER`` writes it. The weights are spread as in :mod:`model`, so that
outputs depend on all of the KV cache. It has no tokenizer: prompts are numbers.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import sys
from collections.abc import Sequence
from ctypes import c_char_p, c_float, c_int32, c_uint32, c_void_p
from pathlib import Path
from typing import Any

VOCABULARY = 1024
F32, F16 = 0, 1
"""Types of the KV cache, by their numbers."""


def write(
    file: Path,
    seed: int = 1,
    *,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head: int = 64,
    feed: int = 512,
    length: int = 16_384,
    window: int | None = None,
) -> Path:
    """Writes a model, and returns its file. ``window``: tokens of a sliding window. The model is
    then a Gemma 3, and otherwise a Llama.
    """
    import gguf
    import numpy as np

    hidden = heads * head
    draw = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(file), "llama" if window is None else "gemma3")
    writer.add_name("small")
    writer.add_context_length(length)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    if window is not None:
        writer.add_sliding_window(window)
        writer.add_key_length(head)
        writer.add_value_length(head)

    def spread(name: str, *shape: int, scale: float = 1.0) -> None:
        weights = draw.standard_normal(shape, dtype=np.float32) * scale / shape[-1] ** 0.5
        writer.add_tensor(name, weights)

    def ones(name: str, width: int = hidden) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    spread("token_embd.weight", VOCABULARY, hidden, scale=0.3 * hidden**0.5)
    spread("output.weight", VOCABULARY, hidden, scale=2.0)
    ones("output_norm.weight")
    for layer in range(layers):
        name = f"blk.{layer}"
        ones(f"{name}.attn_norm.weight")
        ones(f"{name}.ffn_norm.weight")
        spread(f"{name}.attn_q.weight", hidden, hidden, scale=3.0)
        spread(f"{name}.attn_k.weight", kv_heads * head, hidden)
        spread(f"{name}.attn_v.weight", kv_heads * head, hidden, scale=4.0)
        spread(f"{name}.attn_output.weight", hidden, hidden, scale=2.0)
        spread(f"{name}.ffn_gate.weight", feed, hidden)
        spread(f"{name}.ffn_up.weight", feed, hidden)
        if window is not None:
            ones(f"{name}.attn_q_norm.weight", head)
            ones(f"{name}.attn_k_norm.weight", head)
            ones(f"{name}.post_attention_norm.weight")
            ones(f"{name}.post_ffw_norm.weight")
        spread(f"{name}.ffn_down.weight", hidden, feed, scale=4.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


class _Parameters(ctypes.Structure):
    """Parameters of a model or a context. More than those of any release: a function reads its
    own part of what it gets.
    """

    _fields_ = [("words", c_uint32 * 128)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", ctypes.POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    ]


CONTEXT, SEQUENCES, TYPE_K = 0, 3, 26
"""Words of a context's parameters: tokens, sequences, the type of K, behind which is that of V."""

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (c_void_p, c_void_p)),
    "llama_model_default_params": (_Parameters, ()),
    "llama_context_default_params": (_Parameters, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, _Parameters)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, _Parameters)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_free": (None, (c_void_p,)),
    "llama_batch_get_one": (_Batch, (ctypes.POINTER(c_int32), c_int32)),
    "llama_decode": (c_int32, (c_void_p, _Batch)),
    "llama_get_logits_ith": (ctypes.POINTER(c_float), (c_void_p, c_int32)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_seq_rm": (ctypes.c_bool, (c_void_p, c_int32, c_int32, c_int32)),
}


def _log(level: int, text: bytes, user: int) -> None:
    """Writes errors of the library, and nothing else."""
    if level == 4:
        sys.stderr.write(text.decode("utf-8", "replace"))


_LOG = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(_log)
"""Kept, because the library calls it."""


@functools.cache
def library() -> Any:
    """Returns ``libllama``, as the extension of ``xllamacpp`` exports it."""
    found = importlib.util.find_spec("xllamacpp")
    assert found is not None and found.submodule_search_locations
    (file,) = glob.glob(f"{found.submodule_search_locations[0]}/xllamacpp*.so")
    loaded = ctypes.CDLL(file)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    loaded.llama_log_set(ctypes.cast(_LOG, c_void_p), None)
    loaded.llama_backend_init()
    return loaded


class Llama:
    """A model and a context."""

    BATCH = 512

    def __init__(self, file: Path, length: int = 4096, kv: int = F16, threads: int = 1) -> None:
        self.file, self.decoded = file, 0
        self._lib = library()
        self._model = self._lib.llama_model_load_from_file(
            str(file).encode(), self._lib.llama_model_default_params()
        )
        assert self._model, f"{file} cannot be loaded"
        parameters = self._lib.llama_context_default_params()
        assert [*parameters.words[TYPE_K : TYPE_K + 2]] == [F16, F16], "another release's layout"
        assert parameters.words[SEQUENCES] == 1
        parameters.words[CONTEXT] = length
        parameters.words[TYPE_K] = parameters.words[TYPE_K + 1] = kv
        self.context = self._lib.llama_init_from_model(self._model, parameters)
        assert self.context, "there is no context"
        # Threads of llama.cpp wait awake for each other, which is slow beside other tests.
        self._lib.llama_set_n_threads(self.context, threads, threads)
        self.memory = self._lib.llama_get_memory(self.context)

    def decode(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the sequence 0."""
        self.decoded += len(tokens)
        for first in range(0, len(tokens), self.BATCH):
            some = tokens[first : first + self.BATCH]
            array = (c_int32 * len(some))(*some)
            batch = self._lib.llama_batch_get_one(array, len(some))
            assert self._lib.llama_decode(self.context, batch) == 0

    def best(self) -> tuple[int, float]:
        """Returns the most probable next token, and its logit."""
        logits = self._lib.llama_get_logits_ith(self.context, -1)
        values = logits[:VOCABULARY]
        token = max(range(VOCABULARY), key=values.__getitem__)
        return token, float(values[token])

    def generate(self, tokens: Sequence[int], count: int = 12) -> tuple[list[int], list[float]]:
        """Decodes tokens and generates more, greedily. Returns them and their logits."""
        self.decode(tokens)
        out, logits = [], []
        for at in range(count):
            token, logit = self.best()
            out.append(token)
            logits.append(logit)
            if at < count - 1:
                self.decode([token])
        return out, logits

    def clear(self) -> None:
        """Empties the sequence 0."""
        assert self._lib.llama_memory_seq_rm(self.memory, 0, -1, -1)
        self.decoded = 0

    def close(self) -> None:
        self._lib.llama_free(self.context)
        self._lib.llama_model_free(self._model)


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) / "small.gguf"))
