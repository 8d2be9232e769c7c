#!/usr/bin/env python3
"""SGLang's file backend, HiCacheFile, in experiments with faults. `SGLANG_DIR` names the wheel.

The options are the defaults and a size. SGLang's threads of transfers call `get` and `set` for one
page at a time, as here."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))

from experiment import VALUE, Call, Peer, Verdict, main, serve, value_of, version_of
from files import Files
from hicache_file import Array, hicache_storage


class Backend:
    def __init__(self, dir: str, bytes: int) -> None:
        self.storage = make(dir, bytes)

    def set(self, keys: list[int], version: int) -> dict[str, Any]:
        def one(key: int) -> object:
            return self.storage.set(str(key), Array(value_of(key, version))) and version

        return Call().each(keys, one)

    def get(self, keys: list[int]) -> dict[str, Any]:
        def one(key: int) -> object:
            room = Array(np.zeros(VALUE, dtype=np.uint8))
            if self.storage.get(str(key), room) is None:
                return None
            version = version_of(key, room.array)
            return -1 if version is None else version

        return Call().each(keys, one)

    def exists(self, keys: list[int]) -> dict[str, Any]:
        return Call().each(keys, lambda key: self.storage.exists(str(key)) or None)

    def settle(self) -> dict[str, Any]:
        return {}


def make(dir: str, bytes: int, model: str = "model") -> Any:
    storage = hicache_storage()
    config = storage.HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name=model,
        extra_config={"max_size": bytes},
    )
    return storage.HiCacheFile(config, dir)


def start(log: Path, wrap: Any = ()) -> Peer:
    return Peer([sys.executable, __file__, "serve"], log, wrap)


def other_weights(folder: Path) -> Verdict:
    """Another process has other weights under the same name of the model."""
    with start(folder / "0.log") as peer:
        peer("open", dir=str(folder / "data"), bytes=64 << 20)
        peer("set", keys=[1], version=1)
    # The weights are not among what the backend is made with.
    with start(folder / "1.log") as peer:
        peer("open", dir=str(folder / "data"), bytes=64 << 20)
        answer = peer("get", keys=[1])
    if answer["done"]:
        return "no", "the page is a hit: its file is named by tokens, model's name and rank alone"
    return "yes", "a miss"


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(Backend)
    else:
        found = importlib.metadata.distributions(path=[os.environ["SGLANG_DIR"]])
        version = {one.name: one.version for one in found}.get("sglang")
        experiments = Files(start).experiments(other_weights)
        main(f"SGLang {version}, HiCacheFile", experiments)
