#!/usr/bin/env python3
"""SGLang's disk path (HiCacheFile) as a contender of `kvmem-lab bench tier`.

The head of lab/src/bench/tier/mod.rs says how the two talk. The class is that of the wheel,
unchanged; SGLANG_DIR names the folder with the unpacked wheel. It is loaded without the packages
around it, which need PyTorch and a GPU, and gets numpy arrays in place of tensors: it only asks
them for their bytes. As the other contenders: what is written counts when it is on the device, and
files leave the page cache before they are read."""

import ctypes
import importlib
import os
import sys
import time
import types

import numpy as np

from lines import serve, spent


class Array:
    """The methods of a tensor of bytes on the CPU that HiCacheFile calls."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def contiguous(self) -> "Array":
        return self

    def view(self, dtype: object = None) -> "Array":
        return self

    def numpy(self) -> np.ndarray:
        return self.array


def hicache_storage() -> types.ModuleType:
    """Loads the module of the wheel without running the packages that contain it."""
    root = os.environ["SGLANG_DIR"]
    package = ""
    for part in ("sglang", "srt", "mem_cache", "storage", "file"):
        package = f"{package}.{part}".lstrip(".")
        module = types.ModuleType(package)
        module.__path__ = [os.path.join(root, *package.split("."))]
        sys.modules[package] = module
    utils = types.ModuleType("sglang.srt.utils")
    utils.__path__ = []
    common = types.ModuleType("sglang.srt.utils.common")
    common.human_readable_int = int
    torch = types.ModuleType("torch")
    torch.uint8, torch.Tensor = "uint8", Array
    sys.modules |= {"sglang.srt.utils": utils, "sglang.srt.utils.common": common, "torch": torch}
    return importlib.import_module("sglang.srt.mem_cache.hicache_storage")


class Contender:
    """A directory with values of one length."""

    def __init__(self, dir: str, bytes: int, value_bytes: int, depth: int) -> None:
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
            model_name="model",
            extra_config={"max_size": bytes},
        )
        self.dir = dir
        self.storage = storage.HiCacheFile(config, dir)
        self.value = np.random.default_rng(1).integers(0, 256, value_bytes, dtype=np.uint8)
        self.libc = ctypes.CDLL(None, use_errno=True)

    def path(self, number: int) -> str:
        suffixed = self.storage._get_suffixed_key(str(number))
        return os.path.join(self.dir, f"{suffixed}.bin")

    def store(self, first: int, count: int) -> dict[str, float]:
        values = []
        for number in range(first, first + count):
            value = self.value.copy()
            value[:8] = np.frombuffer(number.to_bytes(8, "little"), dtype=np.uint8)
            values.append(Array(value))
        keys = [str(number) for number in range(first, first + count)]
        start, cpu = time.perf_counter(), time.process_time()
        if not self.storage.batch_set(keys, values):
            raise RuntimeError("batch_set failed")
        descriptor = os.open(self.dir, os.O_RDONLY)
        if self.libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
        os.close(descriptor)
        return spent(start, cpu)

    def fetch(self, numbers: list[int]) -> dict[str, float]:
        for number in numbers:
            descriptor = os.open(self.path(number), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        rooms = [Array(np.zeros_like(self.value)) for _ in numbers]
        keys = [str(number) for number in numbers]
        start, cpu = time.perf_counter(), time.process_time()
        found = self.storage.batch_get(keys, rooms)
        figures = spent(start, cpu)
        for number, room, one in zip(numbers, rooms, found):
            if one is None or int.from_bytes(room.array[:8].tobytes(), "little") != number:
                raise RuntimeError(f"value {number} is missing, or has other bytes")
            if not np.array_equal(room.array[8:], self.value[8:]):
                raise RuntimeError(f"value {number} came back with other bytes")
        return figures


if __name__ == "__main__":
    serve(Contender)
