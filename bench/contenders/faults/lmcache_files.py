#!/usr/bin/env python3
"""LMCache's second level in files (adapter `fs`) in experiments with faults, with its defaults.

`LMCACHE_DIR`, `TORCH_DIR` and `LMCACHE_SERVER_DIR` name the folders of the wheels. The adapter runs
as the server's controllers drive it: a store, a look-up or a load is a task of one object."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from experiment import LIMIT, VALUE, Call, Peer, Verdict, main, serve, value_of, version_of
from files import Files

FOLDERS = [os.environ.get(name, "") for name in ("LMCACHE_DIR", "TORCH_DIR", "LMCACHE_SERVER_DIR")]


class Object:
    """An object in the first level's memory."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_ubyte * VALUE)()

    @property
    def byte_array(self) -> memoryview:
        return memoryview(self.memory).cast("B")


class Level:
    def __init__(self, dir: str, bytes: int) -> None:
        sys.path[1:1] = FOLDERS
        os.environ["LMCACHE_TRACK_USAGE"] = "false"
        from lmcache.v1.distributed.api import ObjectKey
        from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig

        self.object, self.key = Object(), ObjectKey
        self.level = FSL2Adapter(FSL2AdapterConfig.from_dict({"base_path": dir}))

    def name(self, key: int) -> Any:
        return self.key(key.to_bytes(32, "big"), "a/model", 7)

    def wait(self, what: str, poll: Any) -> Any:
        end = time.monotonic() + LIMIT
        while (result := poll()) is None:
            if time.monotonic() > end:
                raise RuntimeError(f"the {what} does not end")
            time.sleep(0.0002)
        return result

    def set(self, keys: list[int], version: int) -> dict[str, Any]:
        def one(key: int) -> int | None:
            self.object.byte_array[:] = value_of(key, version)
            task = self.level.submit_store_task([self.name(key)], [self.object])
            poll = self.level.pop_completed_store_tasks
            result = self.wait("store", lambda: poll().get(task))
            return version if result.is_successful() else None

        return Call().each(keys, one)

    def found(self, key: int) -> bool:
        task = self.level.submit_lookup_and_lock_task([self.name(key)], {})
        bits = self.wait("look-up", lambda: self.level.query_lookup_and_lock_result(task))
        return bool(bits.test(0))

    def get(self, keys: list[int]) -> dict[str, Any]:
        def one(key: int) -> int | None:
            if not self.found(key):
                return None
            self.object.byte_array[:] = bytes(VALUE)
            task = self.level.submit_load_task([self.name(key)], [self.object])
            bits = self.wait("load", lambda: self.level.query_load_result(task))
            if not bits.test(0):
                raise RuntimeError("the load failed")
            version = version_of(key, np.frombuffer(self.object.memory, np.uint8))
            return -1 if version is None else version

        return Call().each(keys, one)

    def exists(self, keys: list[int]) -> dict[str, Any]:
        return Call().each(keys, lambda key: self.found(key) or None)

    def settle(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.level.close()


def start(log: Path, wrap: Any = ()) -> Peer:
    return Peer([sys.executable, __file__, "serve"], log, wrap)


def version() -> str:
    """Returns the version of LMCache."""
    found = importlib.metadata.distributions(path=[os.environ["LMCACHE_DIR"]])
    return next(one.version for one in found if one.name == "lmcache")


def other_weights(folder: Path) -> Verdict:
    """Another process has other weights under the same name of the model."""
    for number in (1, 2):
        # The weights are not among what a key is made of.
        with start(folder / f"{number}.log") as peer:
            peer("open", dir=str(folder / "data"), bytes=64 << 20)
            answer = peer("get", keys=[1])
            peer("set", keys=[1], version=number)
    if answer["done"]:
        return "no", "the object is a hit: its key is tokens, model's name, rank and group alone"
    return "yes", "a miss"


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(Level)
    else:
        # It declares no limit of bytes, and evicts nothing.
        without = ("smaller_restart", "prefix_order")
        experiments = Files(start).experiments(other_weights, without=without)
        main(f"LMCache {version()}, L2 adapter fs", experiments)
