#!/usr/bin/env python3
"""vLLM's file-system tier in experiments with faults. `VLLM_DIR` names the unpacked wheel.

The modules of vLLM's offloading are the wheel's, with its compiled reader and writer if that is
there; what they import around them stands in, as in kvmem's tests, because it needs a GPU. The
options are the defaults. Each value is a job of one chunk, and each `get` a request of its own:
looked up in one step, and loaded into the CPU tier's memory if the tier has it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
import types
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
sys.path += [str(ROOT / "crates/kvmem-python/tests" / part) for part in (".", "distributed")]

from experiment import LIMIT, VALUE, Call, Peer, Verdict
from experiment import main, serve, value_of, version_of
from files import Files


class Tier:
    def __init__(self, dir: str, bytes: int, model: str = "a/model") -> None:
        import vllm_standins

        vllm_standins.vllm(os.environ["VLLM_DIR"])
        import vllm_engine
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.tiering import base as tiering
        from vllm.v1.kv_offload.tiering.fs import io
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        print(f"compiled reader and writer: {io._HAS_FSIO_C}", file=sys.stderr)
        options = {
            "workers": 1,
            "page": VALUE // 4,
            "blocks_per_chunk": 2,
            "engine_id": "engine",
            "extra": {},
            "model": model,
        }
        spec = types.SimpleNamespace(config=vllm_engine.config(options, 0), blocks_per_chunk=2)
        # Direct transfers need memory on the borders of pages.
        import mmap

        self.memory = np.frombuffer(mmap.mmap(-1, VALUE), np.uint8).reshape(1, VALUE)
        view = memoryview(self.memory)
        self.tier = FileSystemTierManager(spec, view, "fs", root_dir=dir)
        self.base, self.tiering, self.jobs = base, tiering, 0

    def job(self, kind: str, key: int) -> bool:
        """Runs a job of one chunk. Returns whether it succeeded."""
        self.jobs += 1
        job = self.tiering.TransferJob(
            job_id=self.jobs,
            keys=[name(key)],
            chunk_ids=np.array([0]),
            is_promotion=kind == "load",
            req_context=self.base.ReqContext(req_id="job"),
        )
        getattr(self.tier, f"submit_{kind}")(job)
        end = time.monotonic() + LIMIT
        while not (results := list(self.tier.get_finished_jobs())):
            if time.monotonic() > end:
                raise RuntimeError(f"the {kind} does not end")
            time.sleep(0.0002)
        return bool(results[0].success)

    def found(self, key: int) -> bool:
        """Looks a key up for a request, step after step."""
        self.jobs += 1
        request = self.base.ReqContext(req_id=f"request {self.jobs}")
        end = time.monotonic() + LIMIT
        while (result := self.tier.lookup(name(key), request)) == self.base.LookupResult.RETRY:
            if time.monotonic() > end:
                raise RuntimeError("the look-up does not end")
            self.tier.on_schedule_end(None)
            time.sleep(0.0002)
        self.tier.on_request_finished(request)
        return bool(result == self.base.LookupResult.HIT)

    def set(self, keys: list[int], version: int) -> dict[str, Any]:
        def one(key: int) -> int | None:
            self.memory[0] = value_of(key, version)
            return version if self.job("store", key) else None

        return Call().each(keys, one)

    def get(self, keys: list[int]) -> dict[str, Any]:
        def one(key: int) -> int | None:
            if not self.found(key):
                return None
            self.memory[0] = 0
            if not self.job("load", key):
                raise RuntimeError("the load failed")
            version = version_of(key, self.memory[0])
            return -1 if version is None else version

        return Call().each(keys, one)

    def exists(self, keys: list[int]) -> dict[str, Any]:
        return Call().each(keys, lambda key: self.found(key) or None)

    def settle(self) -> dict[str, Any]:
        self.tier.drain_jobs()
        return {}

    def close(self) -> None:
        self.tier.shutdown()


def name(key: int) -> Any:
    return sha256(str(key).encode()).digest() + bytes(4)


def start(log: Path, wrap: Any = ()) -> Peer:
    return Peer([sys.executable, __file__, "serve"], log, wrap)


def other_weights(folder: Path) -> Verdict:
    """Another process has other weights under the same name of the model."""
    for version in (1, 2):
        # The weights are not among what the tier is made with.
        with start(folder / f"{version}.log") as peer:
            peer("open", dir=str(folder / "data"), bytes=64 << 20)
            answer = peer("get", keys=[1])
            peer("set", keys=[1], version=version)
    if answer["done"]:
        return "no", "the chunk is a hit: its folder is named by model's name, dtype and layout"
    return "yes", "a miss"


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(Tier)
    else:
        found = importlib.metadata.distributions(path=[os.environ["VLLM_DIR"]])
        version = {one.name: one.version for one in found}.get("vllm")
        # It has no limit of bytes, and evicts nothing.
        without = ("smaller_restart", "prefix_order")
        experiments = Files(start).experiments(other_weights, without=without)
        main(f"vLLM {version}, its tier fs", experiments)
