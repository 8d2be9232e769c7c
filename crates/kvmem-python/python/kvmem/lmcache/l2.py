"""*L2*: LMCache's second level in kvmem's stores. Importing this module imports LMCache.

LMCache's server loads the class by its type ``plugin``, with ``adapter_params``: the options of
:class:`kvmem.storage.StorageOptions`, and ``threads``, the number of threads for each of stores,
look-ups and loads. docs/distributed/lmcache.md describes keys, locks and weights.

**Completion.** LMCache submits a task and waits for a descriptor of its kind to become readable. A
thread of the adapter makes the call, notes the result, and then writes to the descriptor. The
descriptors of the library's rings cannot stand for tasks: a result needs checksums afterwards.

**Memory.** LMCache holds the memory of a task until it has the result. Values of a disk are
therefore transferred from and to that memory directly, by fixed buffers."""

import ctypes
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from ..errors import ClosedError, InvalidArgumentError
from ..storage import StorageOptions, Value, ValueStore, check_version, open_store
from ..storage.data_type import common, data_type_of
from ..storage.disk import DiskStore
from ..storage.parents import KnownParents
from ..storage.weights import digest_of, weights_of
from .device import SUPPORTED

_log = logging.getLogger("kvmem")
_T = TypeVar("_T")

MAX_THREADS = 64
"""Maximum number of threads of each kind of task."""


_FRESH = 1.0
"""Seconds after which the files of a model are looked at again."""


class WeightsByModel:
    """The weights of the models that keys name."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def of(self, model: str) -> str:
        """Returns a digest of the weights of a model, as its files are now."""
        now = time.monotonic()
        with self._lock:
            since, known = self._known.get(model, (0.0, ""))
        if known and now - since < _FRESH:
            return known
        remedy = (
            'set "weights" of "adapter_params" to a text that changes with them, or to '
            '{"MODEL": "TEXT"}'
        )
        known = digest_of(weights_of(model, self._options.weights_of(model), remedy), 16).hex()
        with self._lock:
            self._known[model] = (now, known)
        return known


def digest(key: Any, weights: str) -> bytes:
    """Returns the store's key of an object, of a model with these weights."""
    fields = (
        key.model_name,
        weights,
        f"{key.kv_rank:x}",
        f"{key.object_group_id:x}",
        key.cache_salt,
    )
    # Neither the model nor the salt may contain the separator.
    name = "@".join(fields).encode() + b"@" + bytes(key.chunk_hash)
    return hashlib.blake2b(name, digest_size=32).digest()


def value_of(key: bytes, memory: Any, parent: bytes | None = None) -> Value:
    """Returns the store's keys and the bytes of an object, which are contiguous."""
    view = memoryview(memory.byte_array).cast("B")
    if view.readonly:
        raise InvalidArgumentError(
            f"an object of {view.nbytes} bytes is read-only: LMCache lends writable memory",
            value=view.nbytes,
        )
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) if view.nbytes else 0
    # Memory of LMCache says the types of its parts; of bytes that are no tensors, it says none.
    types: list[Any] = getattr(memory, "get_dtypes", list)()
    data_type = common(map(data_type_of, types))
    return Value(key, ((address, view.nbytes),), parent, data_type)


class Tasks:
    """The tasks of one kind: threads that make them, results, and the descriptor."""

    def __init__(self, kind: str, threads: int) -> None:
        self.notifier: Any = create_event_notifier()
        self._threads = ThreadPoolExecutor(threads, f"kvmem-{kind}")
        self._lock = threading.Lock()
        self._results: dict[int, Any] = {}
        self._closed = False

    def submit(self, task: int, work: Callable[[], _T], failed: Callable[[], _T]) -> None:
        """Has a thread make the task. ``failed`` makes the result if it raises."""

        def run() -> None:
            try:
                result = work()
            except BaseException:
                _log.exception("LMCache: a task failed")
                result = failed()
            with self._lock:
                self._results[task] = result
                # Under the lock: the descriptor must not be closed, and opened by another, before.
                if not self._closed:
                    self.notifier.notify()

        self._threads.submit(run)

    def take(self, task: int) -> Any:
        """Returns the result of a task, once; None before it has ended."""
        with self._lock:
            return self._results.pop(task, None)

    def take_all(self) -> dict[int, Any]:
        """Returns the results of all tasks that have ended, once each."""
        with self._lock:
            results, self._results = self._results, {}
        return results

    def end(self) -> None:
        """Waits until all tasks have ended."""
        self._threads.shutdown(wait=True)

    def close(self) -> None:
        """Closes the descriptor."""
        with self._lock:
            self._closed = True
            self.notifier.close()


class KvmemL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """LMCache's adapter over a :class:`~kvmem.storage.ValueStore`. Raises
    :class:`~kvmem.InvalidArgumentError`, :class:`~kvmem.DiskTierError` and
    :class:`~kvmem.storage.UnsupportedVersionError` when LMCache starts."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        check_version("lmcache", *SUPPORTED)
        options = dict(params)
        threads = options.pop("threads", 4)
        if (
            isinstance(threads, bool)
            or not isinstance(threads, int)
            or not (1 <= threads <= MAX_THREADS)
        ):
            raise InvalidArgumentError(
                f'"adapter_params": threads is {threads!r}: give 1 to {MAX_THREADS}',
                value=threads,
                limit=MAX_THREADS,
            )
        parsed = StorageOptions.parse(options, '"adapter_params"')
        self._weights = WeightsByModel(parsed)
        # Digests that a look-up has locked: the files may change before they are unlocked.
        self._locked: dict[Any, list[bytes]] = {}
        self._parents: KnownParents[bytes] = KnownParents()
        self.store: ValueStore = open_store(parsed, direct=True)
        super().__init__(max_capacity_bytes=self.store.capacity)
        self._kind = (
            "node" if parsed.node is not None else "mooncake" if parsed.mooncake else "disk"
        )
        self.registered = self._register(l1_memory_desc)
        self._stores = Tasks("store", threads)
        self._lookups = Tasks("lookup", threads)
        self._loads = Tasks("load", threads)
        self._lock = threading.Lock()
        self._next = 0
        self._closed = False

    def _register(self, memory: Any) -> int:
        """Registers LMCache's memory with a disk. Returns the number of bytes."""
        if memory is None or not isinstance(self.store, DiskStore):
            return 0
        # LMCache names no stable length for shared memory, because it takes that for a file's. Its
        # whole length is stable, since shared memory is never allocated lazily. Of memory that is,
        # the stable length is what is allocated now.
        nbytes = memory.stable_registration_size or memory.size
        registered = self.store.register(int(memory.ptr), int(nbytes))
        _log.info(
            "LMCache: %d bytes of memory are %s",
            nbytes,
            "fixed buffers" if registered else "transferred without fixed buffers",
        )
        return int(nbytes) if registered else 0

    def _digests(self, keys: list[Any]) -> list[bytes]:
        """Returns the store's keys of objects."""
        weights = {model: self._weights.of(model) for model in {key.model_name for key in keys}}
        return [digest(key, weights[key.model_name]) for key in keys]

    def _note(self, keys: list[Any], digests: list[bytes]) -> None:
        """Notes the order of the objects of a prompt, for each rank and group of layers."""
        chains: dict[Any, list[bytes]] = {}
        for key, each in zip(keys, digests, strict=True):
            of = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
            chains.setdefault(of, []).append(each)
        for chain in chains.values():
            self._parents.note(chain)

    def _number(self) -> int:
        with self._lock:
            if self._closed:
                raise ClosedError("the adapter is closed: make another one")
            self._next += 1
            return self._next

    # Descriptors.

    def get_store_event_fd(self) -> int:
        return int(self._stores.notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookups.notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loads.notifier.fileno())

    # Tasks.

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        digests = self._digests(keys)
        unknown = [at for at, it in enumerate(self._parents.of(digests)) if it is None]
        if len(unknown) > 1:
            # No look-up has shown them: LMCache stores the objects of a prompt in its order.
            self._note([keys[at] for at in unknown], [digests[at] for at in unknown])
        parents = self._parents.of(digests)
        values = list(map(value_of, digests, objects, parents))

        def store() -> Any:
            # An object counts once, when it is stored first: the store knows which call that was.
            done = self.store.put_sizes(values)
            stored = {key: size for key, size in zip(keys, done, strict=True) if size is not None}
            if stored:
                self._notify_keys_stored(list(stored), list(stored.values()))
            return L2StoreResult(None not in done, sum(stored.values()))

        return self._submit(self._stores, store, lambda: L2StoreResult(False, 0), objects)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.take_all()

    def submit_lookup_and_lock_task(
        self, keys: list[Any], group_layout_descs: dict[int, Any]
    ) -> int:
        digests = self._digests(keys)
        self._note(keys, digests)

        def lock() -> Any:
            locked = self.store.lock(digests)
            with self._lock:
                for key, each, hit in zip(keys, digests, locked, strict=True):
                    if hit:
                        self._locked.setdefault(key, []).append(each)
            return bitmap(locked)

        return self._submit(self._lookups, lock, lambda: bitmap([False] * len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        locked = []
        with self._lock:
            for key in keys:
                if digests := self._locked.get(key):
                    locked.append(digests.pop())
                    if not digests:
                        del self._locked[key]
        self.store.unlock(locked)

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        values = list(map(value_of, self._digests(keys), objects))

        def load() -> Any:
            found = self.store.get(values)
            loaded = [key for key, hit in zip(keys, found, strict=True) if hit]
            if loaded:
                self._notify_keys_accessed(loaded)
            return bitmap(found)

        return self._submit(self._loads, load, lambda: bitmap([False] * len(keys)), objects)

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    def _submit(
        self, tasks: Tasks, work: Callable[[], _T], failed: Callable[[], _T], memory: object = None
    ) -> int:
        """Submits a task, whose memory is held until it has ended."""

        def run(held: object = memory) -> _T:
            return work()

        task = self._number()
        tasks.submit(task, run, failed)
        return task

    # Eviction and figures.

    def delete(self, keys: list[Any]) -> None:
        digests = self._digests(keys)
        lengths = self.store.lengths(digests)
        self.store.remove(digests)
        gone = [
            (key, length) for key, length in zip(keys, lengths, strict=True) if length is not None
        ]
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [length for _, length in gone])

    def get_usage(self) -> Any:
        usage = super().get_usage()
        if not self.store.used:
            return usage
        # What a tier has evicted itself, or has from before, is not in LMCache's counts.
        return AdapterUsage(
            total_bytes_used=self.store.used,
            total_capacity_bytes=self.store.capacity,
            bytes_by_cache_salt=usage.bytes_by_cache_salt,
        )

    def report_status(self) -> dict[str, Any]:
        stats = self.store.stats()
        return {
            "is_healthy": not self._closed and stats.reachable,
            "type": type(self).__name__,
            "store": self._kind,
            "fixed_buffer_bytes": self.registered,
            **stats._asdict(),
        }

    def close(self) -> None:
        """Ends the tasks, then the store. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        kinds = (self._stores, self._lookups, self._loads)
        for tasks in kinds:
            tasks.end()
        # Before LMCache unmaps the memory.
        self.store.close()
        for tasks in kinds:
            tasks.close()


def bitmap(bits: list[bool]) -> Any:
    """Returns LMCache's bitmap of these bits."""
    made = Bitmap(len(bits))
    for index, bit in enumerate(bits):
        if bit:
            made.set(index)
    return made
