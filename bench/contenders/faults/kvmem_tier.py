#!/usr/bin/env python3
"""kvmem's disk tier in the experiments that the peers meet, with its default options."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

import kvmem
import numpy as np
from experiment import Call, Peer, main, serve, value_of, version_of
from files import Files


class Tier:
    def __init__(self, dir: str, bytes: int) -> None:
        os.makedirs(dir, exist_ok=True)
        self.tier = kvmem.DiskTier(Path(dir, "tier"), bytes=bytes)

    def set(self, keys: list[int], version: int) -> dict[str, Any]:
        def one(key: int) -> int:
            self.tier.store({key: value_of(key, version)})
            return version

        return Call().each(keys, one)

    def get(self, keys: list[int]) -> dict[str, Any]:
        def one(key: int) -> int | None:
            (value,) = self.tier.fetch([key])
            if value is None:
                return None
            version = version_of(key, np.frombuffer(value, np.uint8))
            return -1 if version is None else version

        return Call().each(keys, one)

    def exists(self, keys: list[int]) -> dict[str, Any]:
        return Call().each(keys, lambda key: key in self.tier or None)

    def settle(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.tier.close()


def without_rings() -> None:
    """Lets io_uring_setup fail, as the default profile of container runtimes does."""
    allow, eperm = 0x7FFF0000, 0x00050000 | 1
    number = {"x86_64": 425, "aarch64": 425}[os.uname().machine]
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, eperm), (0x06, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    filter = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter):
        raise OSError(ctypes.get_errno(), "prctl")


def start(log: Path, wrap: Any = ()) -> Peer:
    return Peer([sys.executable, __file__, "serve"], log, wrap)


def traced(log: Path, wrap: Any = ()) -> Peer:
    return Peer([sys.executable, __file__, "serve", "without rings"], log, wrap)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        if sys.argv[2:]:
            without_rings()
        serve(Tier)
    else:
        # Keys of a tier alone name no parents, as those of a node do, which engines call.
        experiments = Files(start, traced, fixed=True).experiments(without=("prefix_order",))
        main(f"kvmem {kvmem.__version__}, DiskTier", experiments)
