"""An engine of SGLang for tests, in a process of its own: SGLang's cache controller, its threads
and its factory of backends, over a host pool that stands in for SGLang's.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
from conftest import LIMIT
from sglang.srt.managers import cache_controller
from standins import tensor

PAGE = 16
"""Tokens of a page."""
MODULE = {
    "backend_name": "kvmem",
    "module_path": "kvmem.sglang",
    "class_name": "KvmemStorage",
    "interface_v1": 1,
}


class HostPool:
    """A host pool in SGLang's layout ``page_first``, for keys and values of 3 layers, with the
    calls that storage backends make.
    """

    layout = "page_first"
    page_size = PAGE
    dtype = np.dtype("float16")
    layer_num, head_num, head_dim = 3, 4, 32
    storage_format_tag = None

    def __init__(self, tokens: int, seed: int | None = None) -> None:
        shape = (2, tokens, self.layer_num, self.head_num, self.head_dim)
        content = (
            np.zeros(shape, np.int16)
            if seed is None
            else np.random.default_rng(seed).integers(-(1 << 15), 1 << 15, shape, np.int16)
        )
        self.kv_buffer = tensor(content)
        self.size = self.logical_size = tokens

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        stride = self.layer_num * self.head_num * self.head_dim * self.dtype.itemsize
        half = stride * self.size
        addresses = []
        for index in range(0, len(indices), self.page_size):
            key = self.kv_buffer.data_ptr() + int(indices[index]) * stride
            addresses += [key, key + half]
        return addresses, [stride * self.page_size] * len(addresses)

    def get_data_page(self, index: Any, flat: bool = True) -> Any:
        page = self.kv_buffer[:, int(index) : int(index) + self.page_size]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> Any:
        page = np.asarray(self.kv_buffer[:, : self.page_size])
        return tensor(np.zeros(page.size, np.int16))

    def set_from_flat_data_page(self, index: Any, page: Any) -> None:
        at = int(index)
        shape = self.kv_buffer[:, at : at + self.page_size].shape
        self.kv_buffer[:, at : at + self.page_size] = page.reshape(shape)

    def tokens(self, first: int, count: int) -> bytes:
        """Returns the bytes of some tokens."""
        return np.asarray(self.kv_buffer[:, first : first + count]).tobytes()


class Engine(cache_controller.HiCacheController):  # type: ignore[misc]
    """SGLang's controller, without a GPU: pages are in the host pool already."""

    def __init__(self, pool: HostPool, model: str = "org/model", **extra: Any) -> None:
        self.enable_storage = False
        self.enable_storage_metrics = False
        self.host_memory_mode = "cache"
        self.mem_pool_host = self.storage_host_pool = pool
        self.mem_pool_device = None
        self.page_size = PAGE
        self.tp_group = self.pp_group = self.attn_cp_group = self.attn_tp_group = None
        self.prefetch_hits_sync_groups: list[Any] = []
        self.prefetch_completion_sync_groups: list[Any] = []
        self.storage_stop_event = threading.Event()
        self.attach_storage_backend("dynamic", 256, model, json.loads(json.dumps(extra)))

    def _create_sync_groups(self) -> list[Any]:
        """There is one rank."""
        return []

    def back_up(self, tokens: list[int], first: int = 0) -> int:
        """Writes the pages of a prompt, which lie in the pool from ``first`` on. Returns the number
        of tokens written.
        """
        hashes = cache_controller.get_storage_hash_str(tokens, None, page_size=PAGE)
        indices = tensor(np.arange(first, first + len(tokens)))
        self.write_storage(indices, tokens, hash_value=hashes, prefix_keys=[])
        return int(self.ack_backup_queue.get(timeout=LIMIT).completed_tokens)

    def prefetch_tokens(self, tokens: list[int], first: int = 0) -> int:
        """Reads the pages of a prompt into the pool, from ``first`` on. Returns the number of
        tokens read.
        """
        operation = cache_controller.PrefetchOperation("request", tokens, prefix_keys=[])
        self.prefetch_queue.put(operation)
        operation = self.prefetch_hit_queue.get(timeout=LIMIT)
        hit = operation.storage_hit_count
        if hit == 0:
            return 0
        operation.host_indices = tensor(np.arange(first, first + hit))
        self.prefetch_buffer.put(operation)
        read = 0
        while not (ack := self.ack_prefetch_queue.get(timeout=LIMIT)).completed_req:
            read = int(ack.completed_tokens)
        return read
