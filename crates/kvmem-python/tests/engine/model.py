"""A small model with random weights, whose outputs depend on all of the KV cache.

``python model.py FOLDER [SEED]`` writes a Qwen3 with a tokenizer whose words are
``t0``, ``t1`` and so on, so that a text and its tokens are one. The weights are spread as those of
trained models: with smaller ones, attention would be the same for all tokens, and a wrong KV cache
would not be seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 8192
HIDDEN = 512
HEADS = 8
HEAD = 64
FEED = 1536
LENGTH = 17_408


def write(folder: Path, seed: int = 1, layers: int = 6, dtype: str = "bfloat16") -> Path:
    """Writes the model and its tokenizer into a new folder, and returns it."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": dtype,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)

    def spread(*shape: int, scale: float = 1.0) -> torch.Tensor:
        weights = torch.randn(*shape, generator=generator) * scale / shape[-1] ** 0.5
        return weights.to(getattr(torch, dtype))

    def ones(n: int) -> torch.Tensor:
        return torch.ones(n, dtype=getattr(torch, dtype))

    tensors = {
        "model.embed_tokens.weight": spread(VOCABULARY, HIDDEN, scale=0.3 * HIDDEN**0.5),
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": spread(VOCABULARY, HIDDEN, scale=2.0),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part in "qkv":
            scale = 4.0 if part == "v" else 1.0
            tensors[f"{name}.self_attn.{part}_proj.weight"] = spread(
                HEADS * HEAD, HIDDEN, scale=scale
            )
        tensors[f"{name}.self_attn.o_proj.weight"] = spread(HIDDEN, HEADS * HEAD, scale=2.0)
        tensors[f"{name}.self_attn.q_norm.weight"] = ones(HEAD) * 3
        tensors[f"{name}.self_attn.k_norm.weight"] = ones(HEAD)
        tensors[f"{name}.mlp.gate_proj.weight"] = spread(FEED, HIDDEN)
        tensors[f"{name}.mlp.up_proj.weight"] = spread(FEED, HIDDEN)
        tensors[f"{name}.mlp.down_proj.weight"] = spread(HIDDEN, FEED, scale=4.0)
        tensors[f"{name}.input_layernorm.weight"] = ones(HIDDEN)
        tensors[f"{name}.post_attention_layernorm.weight"] = ones(HIDDEN)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    words = Tokenizer(models.WordLevel({f"t{at}": at for at in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "t0",
                "eos_token": "t1",
                "unk_token": "t0",
                "model_max_length": LENGTH,
            }
        ),
        encoding="utf-8",
    )
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
