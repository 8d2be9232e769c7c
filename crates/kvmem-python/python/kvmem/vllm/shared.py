"""*Shared*: vLLM's CPU tier in the memory of ``kvmem serve``, for all engines of a node. Importing
this module imports vLLM.

The scheduler asks the server of the node where vLLM's own manager would look into its tables: a
look-up pins a value, a store reserves one. The first look-up of a request in a step asks for all
keys of its prompt in one call, and the others take their answers from it. The scheduler passes
numbers of chunks to vLLM's workers, which copy as always: :class:`~kvmem.vllm.region.NodeRegion`
says which bytes a number names. Replicas therefore have one copy of a prefix, and an engine that
restarts finds what it has stored.

*Pins.* Other engines store and evict meanwhile, so a chunk that a look-up has found is pinned until
the end of the next step, and one that is loaded until the load ends. A server that takes a living
engine for ended ends its pins. A look-up then pins the chunk again. If the pin of a load has ended,
:class:`~kvmem.vllm.PinLostError` ends the engine: vLLM's connector asserts that every load
succeeds, so there is no other way to keep a request from using the bytes.

*Verification.* The scheduler calculates the checksum of each chunk when its store ends, unless the
option ``checksums`` is false. With the option ``verify``, it compares the checksum in each look-up
that pins the chunk. A damaged chunk is a miss, and the server removes it. A chunk without a
checksum is a miss, too, and the next store of the chunk replaces it. Without ``verify`` nothing is
compared: pins alone keep bytes right.

*A server that is gone or hangs* makes every look-up a miss and every store fail. One call waits for
it, for a fraction of a second, or for ``answer_timeout`` if it is there and does not answer. From
then on a thread waits, and no step of the scheduler does, until the server answers again. A server
with other memory than before ends the sharing of this engine: its workers have mapped the old
memory.

*The same memory.* Each worker keeps a value of its own pinned. The scheduler looks for them before
its first store: a worker whose value is missing has mapped other memory.

*Hints.* A request's priority and time to live become those of the values that it stores (see
:mod:`~kvmem.vllm._hints`). With the option ``tenants``, the chunks of each tenant are in a
namespace of its own: it finds nothing of the others, and the server's limits of the namespace
bound it.

*Events.* What the node holds goes to vLLM's stream of events: see :mod:`~kvmem.vllm._node_events`.

*Reset.* vLLM resets its cache when the weights may have changed. The engine's keys get a random
prefix then: it finds nothing of before, and other engines with the old weights find nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec, CPUOffloadingMetrics
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .._kvmem import NodeCache, NodeReservation, PinnedValue, connect
from ..errors import (
    InvalidArgumentError,
    KvmemError,
    NodeDisconnectedError,
    NodeReplacedError,
    OutOfSpaceError,
)
from ._events import NoEvents, make_events
from ._hints import hints_of
from ._host_worker import CpuPlatform, make_worker
from ._identity import identity
from ._options import NodeOptions, read
from .errors import NodeLayoutError, PinLostError
from .region import GRANULE, NodeRegion

_log = logging.getLogger("vllm.kvmem")
_T = TypeVar("_T")

_BATCH = 1024
"""Values that one call to the server takes."""
_AT_ONCE = 256 << 20
"""Bytes of the values that one call asks for: a tier below the node reads them in that call."""
_QUIET = 1.0
"""Seconds without calls after one that the server has refused."""
_PAUSE = 0.5
"""Seconds between two calls that look for a server that is away."""
_GROUP = 4
"""Bytes at the end of a key of vLLM that are the number of its group of layers."""
_WINDOW = 16
"""Keys that are asked for at a time where vLLM looks up backwards."""
_ALIVE = 10.0
"""Seconds between two signs of life while stores are open."""
_EVENTS_ANSWER = 30.0
"""Seconds that the thread of the events waits for an answer."""
_FLUSHED = 30.0
"""Seconds after which copies from before a reset have ended, where vLLM does not say so (0.32)."""


def worker_key(engine_id: str, rank: int) -> bytes:
    """Returns the key of the value that a worker keeps pinned."""
    return b"worker" + blake2b(f"{engine_id}/{rank}".encode(), digest_size=16).digest()


def tenant_namespace(namespace: str, tenant: str) -> str:
    """Returns the namespace of a tenant. Names with unusual characters are hashed."""
    plain = re.fullmatch(r"[\w.-]{1,32}", tenant, re.ASCII) is not None
    name = tenant if plain else blake2b(tenant.encode(), digest_size=8).hexdigest()
    return f"{namespace}@{name}"


def _commit(cache: NodeCache, reservations: list[NodeReservation]) -> bool:
    cache.commit(reservations)
    return True


def _connect(options: NodeOptions, namespace: str, *, populate: bool) -> NodeCache:
    """Connects to the server, which may start later than the engine."""
    end = time.monotonic() + options.connect_timeout
    while True:
        try:
            return connect(
                options.socket,
                namespace=namespace,
                retry_for=options.call_timeout,
                answer_within=options.answer_timeout,
                populate=populate,
                checksums=options.checksums,
                verify=options.verify,
                rings=options.rings,
                server_users=options.server_users,
            )
        except NodeDisconnectedError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


@dataclasses.dataclass
class _Pin:
    """A pinned chunk."""

    value: PinnedValue
    loads: int = 0
    looked_up: int = 0


_Name = tuple[str | None, Any]
"""A tenant, or None, and a key of vLLM."""


@dataclasses.dataclass
class _Answers:
    """What is known about the keys of a request, until the next step or the end of a store. vLLM
    keeps it with the request.
    """

    step: int
    """The number of steps and of ended stores until then."""
    found: set[Any] = dataclasses.field(default_factory=set)
    """Keys with pinned values."""
    missing: set[Any] = dataclasses.field(default_factory=set)
    """Keys that the server has no value for."""


def _next_keys(key: Any, req_context: Any, answers: _Answers) -> tuple[list[Any], bool]:
    """Returns the keys that vLLM is about to look up for a request, ``key`` first, and whether it
    stops at the first one that is missing.

    vLLM looks a group of layers up from the start of the prompt on, until a key is missing. Only a
    group with a sliding window is looked up from the end backwards, until a window is complete.
    """
    # The keys of the whole prompt, by the number of tokens at their ends: the scheduler notes them
    # before it looks any up.
    positions = getattr(req_context, "_offload_key_positions", None) or {}
    start = positions.get(key)
    if start is None:
        return [key], True
    group = key[-_GROUP:]
    keys = [it for it, at in positions.items() if at >= start and it[-_GROUP:] == group]
    backwards = len(keys) == 1 or keys[1] in answers.found or keys[1] in answers.missing
    if not backwards:
        return keys, True
    before = [it for it, at in positions.items() if at < start and it[-_GROUP:] == group]
    return [key, *reversed(before[1 - _WINDOW :])], False


class NodeOffloadingManager(OffloadingManager):  # type: ignore[misc]
    """vLLM's manager over the index of a node. ``open_tenant`` connects to the namespace of a
    tenant; without it, tenants are not told apart.
    """

    def __init__(
        self,
        cache: NodeCache,
        row_bytes: int,
        workers: Iterable[bytes],
        info: Any,
        open_tenant: Callable[[str], NodeCache] | None = None,
        max_tenants: int = 32,
        events: NoEvents | None = None,
    ) -> None:
        self._cache = cache
        self._events = NoEvents() if events is None else events
        self._open_tenant = open_tenant
        self._max_tenants = max_tenants
        # The one that was used last comes last.
        self._tenants: OrderedDict[str, NodeCache] = OrderedDict()
        self._crowded = 0
        self._row_bytes = row_bytes
        self._workers: list[bytes] | None = list(workers)
        self._info = info
        self._prefix = b""
        self._step = 0
        self._pins: dict[_Name, _Pin] = {}
        # Keys that were looked up in this step and in the one before.
        self._looked_up: list[set[_Name]] = [set(), set()]
        self._writing: dict[_Name, NodeReservation] = {}
        self._stale: list[tuple[float, list[Any]]] = []
        # Set by the scheduler, and cleared by the thread that waits for the server.
        self._away = False
        self._quiet_until = 0.0
        self._ended = False
        self._closed = threading.Event()
        self._alive = time.monotonic()
        self._allocations: list[int] = []

    def lookup(self, key: Any, req_context: Any) -> Any:
        """Returns HIT for a chunk of any engine, HIT_PENDING for one that this engine stores now,
        or MISS.
        """
        answers = self._answers(req_context)
        if key in answers.found:
            return LookupResult.HIT
        tenant = self._tenant_of(req_context)
        name = (tenant, key)
        if name in self._writing:
            return LookupResult.HIT_PENDING
        if not self._usable():
            return LookupResult.MISS
        pin = self._pins.get(name)
        if pin is not None and not pin.loads and not pin.value.is_valid:
            del self._pins[name]
            self._drop([pin.value])
            pin = None
        if pin is None:
            if key not in answers.missing:
                self._pin(key, req_context, tenant, answers)
            if key not in answers.found:
                return LookupResult.MISS
        answers.found.add(key)
        self._looked_up[0].add(name)
        return LookupResult.HIT

    def _answers(self, req_context: Any) -> _Answers:
        """Returns what is known about the keys of a request in this step."""
        answers: _Answers | None = req_context.get_state(_Answers)
        if answers is None or answers.step != self._step:
            answers = _Answers(self._step)
            req_context.set_state(answers)
        return answers

    def _pin(self, key: Any, req_context: Any, tenant: str | None, answers: _Answers) -> None:
        """Asks the server for a key and for those that vLLM will look up next, in one call, and
        pins their values.
        """
        cache = self._cache_of(tenant)
        if cache is None:
            return
        keys, is_prefix = _next_keys(key, req_context, answers)
        # Other requests, and earlier steps, have pinned some.
        keys = [it for it in keys if (tenant, it) not in self._pins]
        keys = keys[: max(_AT_ONCE // self._row_bytes, 1)]
        names = [self._prefix + it for it in keys]
        ask = cache.acquire_prefix if is_prefix else cache.acquire
        batch = self._ask(lambda: ask(names), None)
        if batch is None:
            return
        for it, value in zip(keys, batch):
            if value is not None and (value.nbytes != self._row_bytes or value.offset % GRANULE):
                value.release()
                value = None
            if value is None:
                answers.missing.add(it)
                if is_prefix:
                    break
                continue
            self._pins[tenant, it] = _Pin(value)
            answers.found.add(it)
        self._looked_up[0].update((tenant, it) for it in answers.found)

    def get_load_source(self, key: Any, req_context: Any) -> Any:
        """Returns that hits come from host memory."""
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Any:
        """Returns the numbers of chunks that were hits in this step, pinned until the load ends."""
        chunks = []
        tenant = self._tenant_of(req_context)
        for key in keys:
            pin = self._pins[tenant, key]
            pin.loads += 1
            chunks.append(pin.value.offset // GRANULE)
        return CPULoadStoreSpec(chunks)

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        """Ends the pins of loaded chunks.

        Raises :class:`PinLostError` if one of them has ended before.
        """
        lost = 0
        tenant = self._tenant_of(req_context)
        for key in keys:
            pin = self._pins[tenant, key]
            pin.loads -= 1
            lost += not pin.value.is_valid
            self._release((tenant, key))
        if lost:
            raise PinLostError(
                f"the server of the node at {self._cache.path} ended the pins of {lost} chunks "
                "while they were loaded, so their bytes may be other chunks': the engine must "
                "start again",
                chunks=lost,
            )

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Marks chunks as used."""
        names = [self._prefix + key for key in keys]
        cache = self._cache_of(self._tenant_of(req_context))
        if cache is not None:
            self._ask(lambda: cache.touch(names), 0)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        """Reserves rows for chunks that no engine has stored. Returns None if there is no space, or
        no server.
        """
        if not self._usable():
            return None
        tenant = self._tenant_of(req_context)
        cache = self._cache_of(tenant)
        if cache is None:
            return None
        wanted = [
            key
            for key in dict.fromkeys(keys)
            if (tenant, key) not in self._pins and (tenant, key) not in self._writing
        ]
        missing = self._ask(lambda: self._missing(cache, wanted), None)
        if missing is None:
            return None
        if missing:
            self._allocations.append(len(missing))
            reserved = self._ask(lambda: self._reserve(cache, missing, req_context), None)
            if reserved is None:
                return None
            self._writing.update(zip([(tenant, key) for key in missing], reserved))
        chunks = [self._writing[tenant, key].offset // GRANULE for key in missing]
        return PrepareStoreOutput(missing, CPULoadStoreSpec(chunks), [])

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        """Makes stored chunks known to all engines, or frees their rows."""
        tenant = self._tenant_of(req_context)
        names = [(tenant, key) for key in keys]
        ended = [self._writing.pop(name) for name in names if name in self._writing]
        described = self._events.described(keys) if tenant is None else {}
        if not success:
            return self._discard(ended)
        # What was missing may be there now.
        self._step += 1
        # The namespace stays open while it has reservations.
        cache = self._cache if tenant is None else self._tenants.get(tenant)
        if cache is None:
            return None
        for start in range(0, len(ended), _BATCH // 2):
            batch = ended[start : start + _BATCH // 2]
            batch = [*self._describe(cache, batch, described, req_context), *batch]
            if not self._ask(lambda: _commit(cache, batch), False):
                _log.warning("kvmem: %d chunks are not stored", len(batch))
                self._discard(batch)
        return None

    def _describe(
        self,
        cache: NodeCache,
        chunks: list[NodeReservation],
        described: dict[bytes, bytes],
        req_context: Any,
    ) -> list[NodeReservation]:
        """Returns the descriptions of chunks, to be stored with them."""
        priority = hints_of(req_context).priority if described else 0
        return self._ask(lambda: self._events.reserve(cache, chunks, described, priority), [])

    def on_new_request(self, req_context: Any) -> Any:
        """Wants new chunks only."""
        return RequestOffloadingContext()

    def on_schedule_end(self, context: Any) -> None:
        """Ends the pins of look-ups that led to no load, and gives a sign of life."""
        self._step += 1
        now = time.monotonic()
        before = self._looked_up.pop()
        self._looked_up.insert(0, set())
        for name in before:
            self._release(name)
        while self._stale and self._stale[0][0] <= now:
            self._drop(self._stale.pop(0)[1])
        if self._writing and now - self._alive > _ALIVE:
            self._alive = now
            for tenant in {tenant for tenant, _ in self._writing}:
                cache = self._cache if tenant is None else self._tenants[tenant]
                self._ask(cache.keep_alive, None)

    def take_events(self) -> Any:
        """Returns what the node holds and holds no more, since the last call, as vLLM's events."""
        return self._events.take()

    def has_pending_work(self) -> bool:
        """Returns whether events wait: vLLM makes steps without requests until none does."""
        return self._events.has_queued

    def reset_cache(self) -> None:
        """Leaves everything behind: see the head of the module."""
        self._step += 1
        held = [pin.value for pin in self._pins.values()] + list(self._writing.values())
        self._stale.append((time.monotonic() + _FLUSHED, held))
        self._pins.clear()
        self._writing.clear()
        self._looked_up = [set(), set()]
        self._prefix = os.urandom(8)
        self._events.reset(self._prefix)
        _log.warning(
            "kvmem: vLLM has reset its cache, so this engine shares no chunks with others until it "
            "restarts: its weights may have changed"
        )

    def on_reset_flushed(self) -> None:
        """Ends the pins of before the reset: the workers have ended their copies."""
        for _, held in self._stale:
            self._drop(held)
        self._stale.clear()

    def get_stats(self) -> Any:
        """Returns vLLM's figures of the CPU tier, for this engine."""
        stats = OffloadingConnectorStats()
        total = max(self._cache.memory_len, 1)
        write, held = len(self._writing) * self._row_bytes, len(self._pins) * self._row_bytes
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_USAGE_PERC, (write + held) / total)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_WRITE_USAGE_PERC, write / total)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_READ_USAGE_PERC, held / total)
        for size in self._allocations:
            stats.observe_histogram(CPUOffloadingMetrics.CPU_ALLOCATION_SIZE, size)
        self._allocations.clear()
        return stats

    def config_info(self) -> Any:
        """Returns vLLM's facts about the CPU tier."""
        return [self._info.as_config_info() if self._info is not None else {}]

    def shutdown(self) -> None:
        """Ends all pins and reservations, and the connection."""
        self._closed.set()
        self._events.close()
        self.on_reset_flushed()
        self._drop([pin.value for pin in self._pins.values()])
        self._drop(list(self._writing.values()))
        self._pins.clear()
        self._writing.clear()
        for cache in self._tenants.values():
            cache.close()
        self._tenants.clear()
        self._cache.close()

    def _tenant_of(self, req_context: Any) -> str | None:
        """Returns the tenant of a request, if tenants are told apart."""
        return None if self._open_tenant is None else hints_of(req_context).tenant

    def _cache_of(self, tenant: str | None) -> NodeCache | None:
        """Returns the connection to the namespace of a tenant; None if there cannot be one now."""
        if tenant is None:
            return self._cache
        cache = self._tenants.get(tenant)
        if cache is not None:
            self._tenants.move_to_end(tenant)
            return cache
        if len(self._tenants) >= self._max_tenants and not self._close_idle():
            self._crowded += 1
            if self._crowded & (self._crowded - 1) == 0:
                _log.warning(
                    "kvmem: %d look-ups and stores left out: %d tenants have chunks in use, and "
                    "max_tenants is %d",
                    self._crowded,
                    len(self._tenants),
                    self._max_tenants,
                )
            return None
        connect_to = self._open_tenant
        assert connect_to is not None
        made = self._ask(lambda: connect_to(tenant), None)
        if made is not None:
            self._tenants[tenant] = made
        return made

    def _close_idle(self) -> bool:
        """Closes the namespace that was used least recently of those without pins and stores."""
        busy = {tenant for tenant, _ in (*self._pins, *self._writing)}
        idle = next((it for it in self._tenants if it not in busy), None)
        if idle is None or self._stale:
            return False
        self._tenants.pop(idle).close()
        return True

    def _missing(self, cache: NodeCache, keys: list[Any]) -> list[Any]:
        """Returns the keys that have no value. Those that have one count as used."""
        missing = []
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            with cache.acquire([self._prefix + key for key in part]) as found:
                missing += [key for key, value in zip(part, found) if value is None]
        return missing

    def _reserve(
        self, cache: NodeCache, keys: list[Any], req_context: Any
    ) -> list[NodeReservation] | None:
        """Reserves a row for each key, with the hints of the request, or none at all."""
        hints = hints_of(req_context)
        reserved: list[NodeReservation] = []
        try:
            for start in range(0, len(keys), _BATCH):
                sizes = [(self._prefix + key, self._row_bytes) for key in keys[start:][:_BATCH]]
                reserved += cache.reserve_batch(sizes, priority=hints.priority, ttl=hints.ttl)
        except OutOfSpaceError:
            self._discard(reserved)
            return None
        except BaseException:
            self._discard(reserved)
            raise
        wrong = next((it.offset for it in reserved if it.offset % GRANULE), None)
        if wrong is not None:
            self._discard(reserved)
            self._ended = True
            error = NodeLayoutError(
                f"the node has reserved a row at offset {wrong}, which is no multiple of "
                f"{GRANULE}: run kvmem serve with an alignment of {GRANULE} bytes or more",
                requested=wrong,
                limit=GRANULE,
            )
            _log.error("kvmem: this engine stores nothing: %s", error)
            return None
        return reserved

    def _usable(self) -> bool:
        """Whether the server is worth a call. Looks for the workers before the first one."""
        if self._ended or self._away or time.monotonic() < self._quiet_until:
            return False
        if self._workers is not None:
            keys = self._workers
            found = self._ask(lambda: self._cache.lookup(keys), None)
            if found is None:
                return False
            if found < len(keys):
                self._ended = True
                self._events.leave()
                _log.error(
                    "kvmem: worker %d has mapped other memory than the node has now, so this "
                    "engine shares nothing: restart it",
                    found,
                )
                return False
            self._workers = None
        return True

    def _ask(self, call: Callable[[], _T], otherwise: _T) -> _T:
        """Calls the server. If it is away, later calls are left out until it answers."""
        if self._ended or self._away or time.monotonic() < self._quiet_until:
            return otherwise
        try:
            return call()
        except NodeReplacedError as error:
            self._end(error)
        except NodeDisconnectedError as error:
            self._away = True
            _log.warning("kvmem: no chunks until the server answers: %s", error)
            threading.Thread(target=self._wait, name="kvmem-wait", daemon=True).start()
        except KvmemError as error:
            self._quiet_until = time.monotonic() + _QUIET
            _log.warning("kvmem: no chunks for %s s: %s", _QUIET, error)
        return otherwise

    def _wait(self) -> None:
        """Waits until the server answers, in a thread of its own."""
        while not self._closed.wait(_PAUSE):
            try:
                self._cache.lookup([b"kvmem"])
            except NodeReplacedError as error:
                self._end(error)
            except KvmemError:
                continue
            else:
                _log.warning("kvmem: the server of the node answers again")
            break
        self._away = False

    def _end(self, error: KvmemError) -> None:
        """Ends the sharing of this engine."""
        self._ended = True
        self._events.leave()
        _log.error("kvmem: this engine shares nothing until it restarts: %s", error)

    def _release(self, name: _Name) -> None:
        """Ends a pin that nothing needs."""
        pin = self._pins.get(name)
        if pin is not None and pin.loads == 0 and all(name not in it for it in self._looked_up):
            del self._pins[name]
            self._drop([pin.value])

    def _discard(self, reserved: Iterable[NodeReservation]) -> None:
        self._drop(list(reserved))

    @staticmethod
    def _drop(held: list[Any]) -> None:
        for it in held:
            # A server that is gone ends them by itself.
            with contextlib.suppress(KvmemError):
                it.discard() if isinstance(it, NodeReservation) else it.release()


class KvmemSharedSpec(CpuPlatform, CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU tier in the memory of a node. Options: ``kvmem`` with ``socket``, the path of the
    server's socket, and those of :class:`~kvmem.vllm._options.NodeOptions`. ``cpu_bytes_to_use``
    is not needed: the server has the memory.
    """

    _manager: Any

    def __init__(self, config: Any) -> None:
        options = read(NodeOptions, config.extra_config)
        if not options.socket:
            raise InvalidArgumentError(
                'kvmem.socket is not given: give the path of the socket of "kvmem serve"'
            )
        if options.max_tenants < 1:
            raise InvalidArgumentError(
                f"kvmem.max_tenants is {options.max_tenants}: give 1 or more"
            )
        if options.verify and not options.checksums:
            raise InvalidArgumentError(
                "kvmem.verify is true and kvmem.checksums is false, so the engine would not find "
                "its own chunks: leave kvmem.checksums out"
            )
        if int(config.extra_config.get("store_threshold", 0)) >= 2:
            raise InvalidArgumentError(
                "store_threshold is not supported with memory of a node: leave it out"
            )
        # vLLM's spec divides this by the length of a row. One byte is no row.
        extra = {**config.extra_config, "cpu_bytes_to_use": 1}
        super().__init__(dataclasses.replace(config, extra_config=extra))
        self._options = options

    def _namespace(self) -> str:
        given = self._options.namespace
        return f"vllm-{identity(self).hex()}" if given is None else str(given)

    def _open_tenant(self, tenant: str) -> NodeCache:
        """Connects to the namespace of a tenant, within the time of a call."""
        options = dataclasses.replace(self._options, connect_timeout=0.0)
        return _connect(options, tenant_namespace(self._namespace(), tenant), populate=False)

    def _open_events(self) -> NodeCache:
        """Connects for the thread that reads events, which may wait longer than the scheduler."""
        options = dataclasses.replace(
            self._options, connect_timeout=0.0, answer_timeout=_EVENTS_ANSWER, rings=False
        )
        return _connect(options, self._namespace(), populate=False)

    def get_manager(self) -> Any:
        """Returns the manager over the node's index."""
        if self._manager is None:
            cache = _connect(self._options, self._namespace(), populate=False)
            info = None
            if hasattr(self, "cpu_info"):
                rows = cache.memory_len // self.kv_bytes_per_chunk
                info = type(self.cpu_info).from_config(self.config, rows, self.kv_bytes_per_chunk)
            keys = [
                worker_key(self.config.engine_id, rank)
                for rank in range(self.config.parallel.world_size)
            ]
            self._manager = NodeOffloadingManager(
                cache,
                self.kv_bytes_per_chunk,
                keys,
                info,
                self._open_tenant if self._options.tenants else None,
                self._options.max_tenants,
                make_events(self, self._options.announce, self._open_events),
            )
            _log.info(
                "kvmem: %d rows of %d bytes fit into the node at %s, namespace %s",
                cache.memory_len // self.kv_bytes_per_chunk,
                self.kv_bytes_per_chunk,
                cache.path,
                cache.namespace,
            )
        return self._manager

    def create_worker(self, kv_caches: Any) -> Any:
        """Returns a worker of vLLM whose host memory is that of the node."""
        if not self._uses_shared_region():
            raise InvalidArgumentError(
                "vLLM shares no host memory between the workers of this platform, so they cannot "
                "use a node's: use another spec"
            )
        rank = self.config.parallel.rank
        with contextlib.ExitStack() as undo:
            cache = _connect(self._options, self._namespace(), populate=self._options.populate)
            undo.callback(cache.close)
            region = NodeRegion(
                cache,
                0 if self.replicated_layout else rank,
                self.kv_bytes_per_chunk,
                self.cpu_page_size_per_worker,
            )
            undo.callback(region.cleanup)
            if self._options.registrar is not None:
                region.register(self._options.registrar, kv_caches.tensors[0].tensor)
            key = worker_key(self.config.engine_id, rank)
            cache.insert(key, str(os.getpid()).encode(), priority=3)
            # Not evicted while this process runs.
            region.presence = cache.get(key)
            worker = make_worker(kv_caches, self.blocks_per_chunk, region.num_chunks, region)
            undo.pop_all()
        return worker
