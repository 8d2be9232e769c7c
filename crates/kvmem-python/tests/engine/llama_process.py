"""A process that restores a prompt from a node and generates.

``python llama_process.py SOCKET MODEL SEED TOKENS`` prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kvmem
from engine_node import prompt
from kvmem.llama_cpp import PrefixCache
from llama_model import VOCABULARY, Llama

if __name__ == "__main__":
    socket, model, seed, count = sys.argv[1:]
    tokens = [token % VOCABULARY for token in prompt(int(seed), int(count))]
    llama = Llama(Path(model))
    with kvmem.connect(socket, verify=True) as cache:
        prefixes = PrefixCache(cache, llama.context, model)
        restored = prefixes.load(tokens)
        out, logits = llama.generate(tokens[restored:])
    print(json.dumps({"restored": restored, "tokens": out, "logits": logits}))
