"""A process that generates from a prompt with a cache in a node.

``python transformers_process.py SOCKET MODEL SEED TOKENS`` prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import kvmem
import torch
from engine_node import prompt
from kvmem.transformers import KvmemCache


def load(folder: str) -> Any:
    """Returns a model."""
    from transformers import AutoModelForCausalLM

    # Threads of PyTorch wait awake for each other, which is slow beside other tests.
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generate(model: Any, tokens: list[int], cache: Any = None, count: int = 12) -> Any:
    """Returns the output of a prompt, with scores."""
    ids = torch.tensor([tokens])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )


def best(output: Any, prompt_length: int) -> tuple[list[int], list[float]]:
    """Returns the generated tokens, and the scores of each."""
    tokens = output.sequences[0, prompt_length:].tolist()
    return tokens, [float(score[0].max()) for score in output.scores]


if __name__ == "__main__":
    socket, folder, seed, length = sys.argv[1:]
    small = load(folder)
    tokens = prompt(int(seed), int(length))
    with kvmem.connect(socket, verify=True) as node:
        cache = KvmemCache(node, small, tokens)
        restored = cache.restored
        out, scores = best(generate(small, tokens, cache), len(tokens))
    print(json.dumps({"restored": restored, "tokens": out, "scores": scores}))
