"""A server of LMCache for tests, in a process of its own: LMCache's configuration, plug-in loader
and store controller, over memory that stands in for its first level.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import select
import types
from typing import Any

import lmcache.v1.distributed.l2_adapters.plugin_l2_adapter  # noqa: F401  the others import more
from conftest import LIMIT, until
from lmcache.v1.distributed import internal_api
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.error import L1Error
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.storage_controllers import store_policy
from lmcache.v1.distributed.storage_controllers.store_controller import StoreController
from lmcache.v1.distributed.storage_controllers.utils import L2AdapterDescriptor
from lmcache.v1.platform import consume_fd

CHUNK = 300_000
"""Bytes of an object."""
SLOT = 303_104
"""Bytes of an object's place in memory, as LMCache aligns it."""


class Object:
    """An object in memory, with the members that adapters use."""

    def __init__(self, address: int, nbytes: int = CHUNK) -> None:
        self.data_ptr = address
        self.nbytes = nbytes

    @property
    def byte_array(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.data_ptr)).cast("B")

    def get_size(self) -> int:
        return self.nbytes


class Memory:
    """The first level: memory in slots, objects by key, and what controllers ask of it."""

    def __init__(self, region: Any, first: int = 0) -> None:
        self.region = region
        self.next = region.ptr + first
        self.objects: dict[Any, Object] = {}
        self.reading: list[Any] = []
        self.read: list[Any] = []
        self.listener: Any = None
        self.config = types.SimpleNamespace(tag="_default")

    @property
    def description(self) -> Any:
        """What LMCache tells an adapter about shared memory."""
        return internal_api.L1MemoryDesc(self.region.ptr, self.region.nbytes, 4096, None)

    def allocate(self, count: int, nbytes: int = CHUNK) -> list[Object]:
        found = [Object(self.next + n * SLOT, nbytes) for n in range(count)]
        self.next += count * SLOT
        return found

    def write(self, keys: list[Any], fill: int) -> None:
        """Writes objects, and tells the controller."""
        for n, (key, each) in enumerate(zip(keys, self.allocate(len(keys)), strict=True)):
            each.byte_array[:] = content(fill + n)
            self.objects[key] = each
        self.listener.on_l1_keys_write_finished(keys)

    def register_listener(self, listener: Any) -> None:
        self.listener = listener

    def reserve_read(self, keys: list[Any], read_locks: int = 1) -> dict[Any, Any]:
        self.reading += keys
        return {key: (L1Error.SUCCESS, self.objects[key]) for key in keys}

    def finish_read(self, keys: list[Any], *_: Any, **__: Any) -> dict[Any, Any]:
        for key in keys:
            self.reading.remove(key)
        self.read += keys
        return dict.fromkeys(keys, L1Error.SUCCESS)

    def delete(self, keys: list[Any], *_: Any, **__: Any) -> dict[Any, Any]:
        return dict.fromkeys(keys, L1Error.SUCCESS)


def content(fill: int) -> bytes:
    """Returns the bytes of an object."""
    return hashlib.shake_128(str(fill).encode()).digest(CHUNK)


def keys(count: int, first: int = 0, model: str = "org/model", **more: Any) -> list[Any]:
    return [ObjectKey((first + n).to_bytes(32, "big"), model, 7, **more) for n in range(count)]


def config_of(**params: Any) -> Any:
    """Returns LMCache's configuration of the plug-in, as from its command line."""
    line = {
        "type": "plugin",
        "module_path": "kvmem.lmcache.l2",
        "class_name": "KvmemL2Adapter",
        "adapter_params": params,
    }
    return get_l2_adapter_config_class("plugin").from_dict(json.loads(json.dumps(line)))


class Listener(internal_api.L2AdapterListener):  # type: ignore[misc]
    """What the adapter has told LMCache."""

    def __init__(self) -> None:
        self.stored: dict[Any, int] = {}
        self.accessed: list[Any] = []
        self.deleted: list[Any] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.stored.update(zip(keys, sizes, strict=True))

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.deleted += keys


class Server:
    """An adapter made by LMCache's loader, and a controller that stores into it."""

    def __init__(self, memory: Memory, **params: Any) -> None:
        self.memory = memory
        self.config = config_of(**params)
        self.adapter = create_l2_adapter(self.config, memory.description)
        self.adapter.set_backend_identity("plugin")
        self.listener = Listener()
        self.adapter.register_listener(self.listener)

    def store(self, keys: list[Any], fill: int) -> None:
        """Writes objects, which LMCache's controller stores."""
        descriptor = L2AdapterDescriptor(0, self.config)
        policy = store_policy.DefaultStorePolicy()
        controller = StoreController(self.memory, [self.adapter], [descriptor], policy)
        controller.start()
        self.memory.read.clear()
        self.memory.write(keys, fill)
        until(lambda: sorted(self.memory.read, key=repr) == sorted(keys, key=repr))
        controller.stop()

    def wait(self, fd: int, query: Any) -> Any:
        """Waits for a result by the descriptor, as LMCache's controllers do."""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while (result := query()) is None:
            assert poller.poll(LIMIT * 1000), "the descriptor was not written"
            consume_fd(fd)
        return result

    def look_up(self, keys: list[Any]) -> list[int]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        fd = self.adapter.get_lookup_and_lock_event_fd()
        found = self.wait(fd, lambda: self.adapter.query_lookup_and_lock_result(task))
        assert self.adapter.query_lookup_and_lock_result(task) is None, "a result is given once"
        assert len(found) == len(keys)
        return list(found.get_indices_list())

    def load(self, keys: list[Any], objects: list[Object]) -> list[int]:
        task = self.adapter.submit_load_task(keys, objects)
        fd = self.adapter.get_load_event_fd()
        found = self.wait(fd, lambda: self.adapter.query_load_result(task))
        return list(found.get_indices_list())

    def store_result(self, keys: list[Any], objects: list[Object]) -> Any:
        task = self.adapter.submit_store_task(keys, objects)
        fd = self.adapter.get_store_event_fd()
        return self.wait(fd, lambda: self.adapter.pop_completed_store_tasks().get(task))
