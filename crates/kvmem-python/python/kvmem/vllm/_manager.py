"""*Manager*: vLLM's manager over the index of a node. Importing this module imports vLLM.

The scheduler asks the server of the node where vLLM's own manager would look into its tables: a
look-up pins values, a store reserves rows. It passes numbers of chunks to vLLM's workers, which
copy as always: :class:`~kvmem.vllm.region.NodeRegion` says which bytes a number names.

*No step waits.* Threads make the calls (:mod:`~kvmem.vllm._calls`). A step waits for an answer for
half a millisecond, and not at all for the rows of many chunks. Without an answer a look-up is
RETRY, and a store fails for this step; vLLM repeats both.

*Pins.* A chunk that a look-up has found is pinned until the end of the next step, and a chunk that
is loaded until the load ends, or the request. If the server has revoked the pin of a load,
:class:`~kvmem.vllm.PinLostError` ends the engine: vLLM's connector asserts that every load
succeeds, so there is no other way to keep a request from using the bytes.

*Outages* make look-ups misses, and no store is tried. Chunks that a request computes meanwhile are
not stored later: vLLM would ask for all of them again in each step, and log a line each time.

*The same memory.* Each worker holds a pin of a value of its own. The scheduler looks for these
values before its first call: a worker whose value is missing has mapped other memory.

*Reset.* vLLM resets its cache when the weights may have changed. The keys of the engine get a
random prefix then: the engine no longer sees older values, and other engines do not see its values.
"""

import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec, CPUOffloadingMetrics
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .._kvmem import NodeCache, NodeReservation, PinBatch
from ..errors import KvmemError, OutOfSpaceError
from ._answers import Answers, Pins, next_keys
from ._calls import MAX_LATER, NodeCalls, Question, parts
from ._events import NoEvents
from ._hints import hints_of
from ._order import order_of, parents_of
from .errors import NodeLayoutError, PinLostError
from .region import GRANULE

_log = logging.getLogger("vllm.kvmem")

_BATCH = 256
"""Values of one call that looks them up, so that no call keeps the interpreter for long."""
_STORED = 64
"""The same of one that stores values, which makes an object for each."""
_PATIENCE = 0.0005
"""Seconds that a step waits for an answer of the server. Usually it takes a tenth of that."""
_FEW = 32
"""Chunks whose store waits for its rows. Those of more come later than a step waits."""
_FETCH_PAUSE = 0.002
"""Seconds until the first further question for values that the server fetches from its tier."""
_LONGEST_FETCH_PAUSE = 0.02
"""Longest time between two such questions. Each pause is twice as long as the one before."""
_ALIVE = 10.0
"""Seconds between two signs of life while stores are open."""
_FLUSHED = 30.0
"""Seconds after which copies from before a reset have ended, where vLLM does not say so (0.32)."""

_Name = tuple[str | None, Any]
"""A tenant, or None, and a key of vLLM."""


class NodeOffloadingManager(OffloadingManager):  # type: ignore[misc]
    """vLLM's manager over the index of a node. ``open_tenant`` connects to the namespace of a
    tenant; without it, tenants are not distinguished. ``groups`` is the number of groups of layers,
    ``fetch_timeout`` the number of seconds that a request waits for values of a tier without
    getting any, ``verify`` says that the connection verifies the values that it acquires, and
    ``data_type`` is the hint about the elements of a row."""

    def __init__(
        self,
        cache: NodeCache,
        row_bytes: int,
        workers: Iterable[bytes],
        info: Any,
        open_tenant: Callable[[str], NodeCache] | None = None,
        max_tenants: int = 32,
        groups: int = 2,
        fetch_timeout: float = 2.0,
        verify: bool = False,
        events: NoEvents | None = None,
        data_type: str = "unknown",
    ) -> None:
        self._cache = cache
        self._events = NoEvents() if events is None else events
        self._open_tenant = open_tenant
        self._max_tenants = max_tenants
        # The one that was used last comes last.
        self._tenants: OrderedDict[str, NodeCache] = OrderedDict()
        self._connecting: dict[str, Question[NodeCache]] = {}
        self._crowded = 0
        self._row_bytes = row_bytes
        self._workers = list(workers)
        self._info = info
        self._has_groups = groups != 1
        self._fetch_timeout = fetch_timeout
        self._verify = verify
        self._data_type = data_type
        self._calls = NodeCalls(cache, self._missing_worker, self._events.leave)
        # Seconds that a step waits for an answer.
        self._patience = _PATIENCE
        # The same for the rows of more than a few chunks.
        self._patience_with_many = 0.0
        self._prefix = b""
        # Counts steps and ended stores, and steps alone.
        self._step = 0
        self._steps = 0
        # Requests with pins, rows or questions.
        self._active: dict[int, Answers] = {}
        self._writing: dict[_Name, NodeReservation] = {}
        self._committing: list[tuple[list[_Name], Question[bool]]] = []
        self._stale: list[tuple[float, list[Any]]] = []
        self._alive = time.monotonic()
        self._allocations: list[int] = []

    def lookup(self, key: Any, req_context: Any) -> Any:
        """Returns HIT for a chunk of any engine, HIT_PENDING for one that this engine stores now,
        RETRY for one that the server has not answered for or fetches from its tier, or MISS."""
        answers = req_context.get_state(Answers)
        if answers is None or answers.step != self._step:
            answers = self._begin_step(answers, req_context)
        if key in answers.found:
            return LookupResult.HIT
        return self._look_up(key, req_context, answers)

    def _begin_step(self, answers: Answers | None, req_context: Any) -> Answers:
        """Returns what is known about the keys of a request, without what was missing before."""
        if answers is None:
            answers = Answers(self._tenant_of(req_context), self._step, self._steps)
            req_context.set_state(answers)
            return answers
        answers.step, answers.used = self._step, self._steps
        answers.missing.clear()
        if not all(pins.batch.is_valid for pins in answers.pins):
            # The server took this engine for ended. Loads find out at their ends.
            self._release(answers, lambda pins: not pins.batch.is_valid)
        return answers

    def _look_up(self, key: Any, req_context: Any, answers: Answers) -> Any:
        """Returns what is known about a key that is not pinned. Asks the server at most once."""
        name = (answers.tenant, key)
        if name in self._writing:
            self._take_commits()
            if name in self._writing:
                return LookupResult.HIT_PENDING
            self._begin_step(answers, req_context)
        if answers.question is not None:
            if not answers.question.is_done:
                return self._defer(key, answers)
            self._take(answers)
        # One question decides. A key that is unknown after it counts as missing.
        for _ in range(2):
            if key in answers.found:
                return LookupResult.HIT
            if key in answers.missing:
                break
            # Also for another key than these: what was fetched may have been evicted since, and
            # the first such key ends the scan before any that is pending.
            if answers.pending and time.monotonic() >= answers.ask_at:
                answers.pending.clear()
            if answers.pending:
                return self._defer(key, answers)
            has_answer = self._ask(key, req_context, answers)
            if has_answer is None:
                break
            if not has_answer:
                return self._defer(key, answers)
        return LookupResult.HIT if key in answers.found else LookupResult.MISS

    def _defer(self, key: Any, answers: Answers) -> Any:
        """Returns RETRY, which defers the request to a later step, for the first such key of a
        step. Another key then gets a result that ends the scan of the prompt soon: with one group
        of layers, MISS does. Keys that are being fetched get RETRY."""
        if answers.deferred_at != self._steps:
            answers.deferred_at, answers.deferred_key = self._steps, key
        if self._has_groups or key == answers.deferred_key or key in answers.pending:
            return LookupResult.RETRY
        return LookupResult.MISS

    def _ask(self, key: Any, req_context: Any, answers: Answers) -> bool | None:
        """Asks the server for a key and for those that vLLM will look up next, in one call that
        pins their values. Returns whether the answer has come; None: the server is not worth a
        call, or there is no connection for the tenant."""
        if not self._calls.is_usable():
            return None
        cache = self._cache_of(answers.tenant)
        if cache is None:
            return False if answers.tenant in self._connecting else None
        keys, is_prefix = next_keys(key, req_context, answers, self._has_groups)
        if answers.found:
            keys = [it for it in keys if it not in answers.found]
        names = [self._prefix + it for it in keys] if self._prefix else keys
        answers.question = self._calls.ask(lambda: _acquire(cache, names, is_prefix), _drop)
        answers.requested, answers.is_prefix = keys, is_prefix
        self._active[id(answers)] = answers
        if not answers.question.wait(self._patience):
            return False
        self._take(answers)
        return True

    def _take(self, answers: Answers) -> None:
        """Takes the answer to the question of a request."""
        question, keys = answers.question, answers.requested
        answers.question, answers.requested = None, []
        batches = question.answer if question is not None else None
        if batches is None:
            # Nothing is known, and no further question is put in this step.
            answers.missing.update(keys)
            return
        found: dict[Any, Pins] = {}
        pending: list[Any] = []
        for part, batch in zip(parts(keys, _BATCH), batches):
            chunks = self._chunks_of(batch, part)
            if chunks:
                pins = Pins(batch, chunks)
                answers.pins.append(pins)
                found.update(dict.fromkeys(chunks, pins))
            else:
                batch.release()
            pending += [part[at] for at in batch.pending]
        if found:
            answers.found.update(found)
            answers.pause = 0.0
        now = time.monotonic()
        if pending and not answers.pause:
            answers.pause, answers.give_up_at = _FETCH_PAUSE, now + self._fetch_timeout
        if pending and now < answers.give_up_at:
            answers.pending.update(pending)
            answers.ask_at = now + answers.pause
            answers.pause = min(answers.pause * 2, _LONGEST_FETCH_PAUSE)
        elif answers.is_prefix:
            answers.missing.update(keys[len(found) : len(found) + 1])
        if not answers.is_prefix:
            known = answers.pending
            answers.missing.update(it for it in keys if it not in found and it not in known)

    def _chunks_of(self, batch: PinBatch, keys: Sequence[Any]) -> dict[Any, int]:
        """Returns the number of the chunk of each key that has a value. A value of another
        length or alignment than this engine's rows counts as missing."""
        hits = batch.hits
        if not hits:
            return {}
        offsets, lengths = batch.offsets, batch.lengths
        if hits < len(offsets):
            found = [at for at, offset in enumerate(offsets) if offset is not None]
            keys = [keys[at] for at in found]
            offsets = [offsets[at] for at in found]
            lengths = [lengths[at] for at in found]
        chunks = {}
        for key, offset, length in zip(keys, offsets, lengths):
            if offset is None or length != self._row_bytes or offset % GRANULE:
                continue
            chunks[key] = offset // GRANULE
        return chunks

    def get_load_source(self, key: Any, req_context: Any) -> Any:
        """Returns that hits come from host memory."""
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Any:
        """Returns the numbers of chunks that were hits in this step, pinned until the load ends."""
        found = req_context.get_state(Answers).found
        chunks = [found[key].chunks[key] for key in keys]
        for pins in {found[key] for key in keys}:
            pins.loads += 1
        return CPULoadStoreSpec(chunks)

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        """Ends the pins of loaded chunks. Raises :class:`PinLostError` if one of them has ended
        before."""
        answers = req_context.get_state(Answers)
        loaded = [it for it in answers.pins if it.loads and any(key in it.chunks for key in keys)]
        revoked = 0
        for pins in loaded:
            pins.loads -= 1
            if not pins.batch.is_valid:
                revoked += sum(key in pins.chunks for key in keys)
        self._release_unused(answers)
        if revoked:
            raise PinLostError(
                f"the server of the node at {self._cache.path} ended the pins of {revoked} chunks "
                "while they were loaded, so their bytes may be other chunks': the engine must "
                "start again",
                chunks=revoked,
            )

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Marks chunks as used."""
        if not self._calls.is_usable() or self._calls.waiting_later > MAX_LATER:
            return
        names = [self._prefix + key for key in keys]
        cache = self._cache_of(self._tenant_of(req_context))
        if cache is not None:
            self._calls.ask(lambda: cache.touch(names), later=True)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        """Reserves rows for chunks that no engine has stored. Returns None if there is no space, or
        no answer yet: vLLM asks again in the next step. Returns no rows while there is no server:
        vLLM does not ask for these chunks again."""
        if not self._calls.is_usable():
            return PrepareStoreOutput([], CPULoadStoreSpec([]), [])
        answers = req_context.get_state(Answers)
        if answers is None:
            answers = self._begin_step(None, req_context)
        answers.stored = self._steps
        if answers.storing is not None and not self._take_rows(answers):
            return None
        order_of(req_context).stored.update(keys)
        wanted = [
            key
            for key in dict.fromkeys(keys)
            if key not in answers.found and (answers.tenant, key) not in self._writing
        ]
        unknown = [key for key in wanted if key not in answers.rows]
        if unknown and not self._ask_for_rows(unknown, req_context, answers):
            return None
        rows = {key: row for key in wanted if (row := answers.rows.pop(key)) is not None}
        _drop(answers.rows.values())
        answers.rows.clear()
        if rows:
            self._allocations.append(len(rows))
            self._writing.update({(answers.tenant, key): row for key, row in rows.items()})
        chunks = [row.offset // GRANULE for row in rows.values()]
        return PrepareStoreOutput(list(rows), CPULoadStoreSpec(chunks), [])

    def _ask_for_rows(self, keys: list[Any], req_context: Any, answers: Answers) -> bool:
        """Asks the server for rows for the keys without values. Returns whether they are there."""
        cache = self._cache_of(answers.tenant)
        if cache is None:
            return False
        names = [self._prefix + key for key in keys]
        parents = [
            None if parent is None else self._prefix + parent
            for parent in parents_of(keys, req_context)
        ]
        hints = hints_of(req_context)
        answers.storing = self._calls.ask(
            lambda: self._reserve(cache, keys, names, parents, hints),
            lambda rows: _drop((rows or {}).values()),
        )
        self._active[id(answers)] = answers
        patience = self._patience if len(keys) <= _FEW else self._patience_with_many
        return answers.storing.wait(patience) and self._take_rows(answers)

    def _take_rows(self, answers: Answers) -> bool:
        """Takes the rows that a request has asked for. Returns whether there are any."""
        question = answers.storing
        if question is None or not question.is_done:
            return False
        answers.storing = None
        if question.answer is not None:
            answers.rows.update(question.answer)
        return question.answer is not None

    def _reserve(
        self, cache: NodeCache, keys: list[Any], names: list[Any], parents: list[Any], hints: Any
    ) -> dict[Any, NodeReservation | None] | None:
        """Reserves a row for each key without a value, with the hints of the request, or none at
        all. The keys that have values count as used.

        More keys than half of the memory has room for may never find it all free. The first of
        them get rows then, as many as there is room for, and the others none: of a prefix that does
        not fit, the start is of use."""
        has_value = self._have_values(cache, names)
        missing = [at for at, has in enumerate(has_value) if not has]
        may_never_fit = len(missing) * self._row_bytes > cache.memory_len // 2
        reserved: list[NodeReservation] = []
        count = _STORED
        try:
            while part := missing[len(reserved) : len(reserved) + count]:
                try:
                    reserved += cache.reserve_batch(
                        [(names[at], self._row_bytes) for at in part],
                        parents=[parents[at] for at in part],
                        priority=hints.priority,
                        ttl=hints.ttl,
                        data_type=self._data_type,
                        wait=False,
                    )
                except OutOfSpaceError:
                    if not may_never_fit:
                        _drop(reserved)
                        return None
                    if len(part) == 1:
                        break
                    count = len(part) // 2
        except BaseException:
            _drop(reserved)
            raise
        if missing and not reserved:
            return None
        wrong = next((it.offset for it in reserved if it.offset % GRANULE), None)
        if wrong is not None:
            _drop(reserved)
            error = NodeLayoutError(
                f"the node has reserved a row at offset {wrong}, which is no multiple of "
                f"{GRANULE}: run kvmem serve with an alignment of {GRANULE} bytes or more",
                requested=wrong,
                limit=GRANULE,
            )
            self._calls.end(str(error))
            return None
        rows = iter(reserved)
        return {key: None if has else next(rows, None) for key, has in zip(keys, has_value)}

    def _have_values(self, cache: NodeCache, names: list[Any]) -> list[bool]:
        """Returns for each name whether a look-up would find a value, and counts that as a use."""
        if self._verify:
            # Only what is verified is found.
            with cache.acquire(names, wait=False) as batch:
                pending = set(batch.pending)
                offsets = batch.offsets
            return [it is not None or at in pending for at, it in enumerate(offsets)]
        has_value = [it.in_memory or it.in_tier for it in cache.locate(names)]
        known = [name for name, has in zip(names, has_value) if has]
        if known:
            cache.touch(known)
        return has_value

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        """Makes stored chunks known to all engines, or frees their rows. Until the server has
        answered, look-ups of this engine find them pending."""
        tenant = self._tenant_of(req_context)
        names = [(tenant, key) for key in keys]
        if not success:
            self._events.described(keys)
            _drop([self._writing.pop(name, None) for name in names])
            return
        # The namespace stays open while it has reservations.
        cache = self._cache if tenant is None else self._tenants.get(tenant)
        names = [name for name in names if name in self._writing]
        if cache is None or not names:
            return
        rows = [self._writing[name] for name in names]
        described = self._events.described(keys) if tenant is None else {}
        priority = hints_of(req_context).priority if described else 0
        question = self._calls.ask(
            lambda: self._commit(cache, rows, described, priority), later=True
        )
        self._committing.append((names, question))

    def _commit(
        self,
        cache: NodeCache,
        rows: list[NodeReservation],
        described: dict[bytes, bytes],
        priority: int,
    ) -> bool:
        """Stores rows with their descriptions, as many in one call as it takes."""
        for part in parts(rows, _STORED):
            cache.commit([*self._events.reserve(cache, part, described, priority), *part])
        return True

    def _take_commits(self) -> None:
        """Ends the stores that the server has answered for."""
        while self._committing and self._committing[0][1].is_done:
            names, question = self._committing.pop(0)
            rows = [self._writing.pop(name) for name in names if name in self._writing]
            # What was missing may be there now.
            self._step += 1
            if question.answer is None:
                # The warning of the outage says so.
                level = logging.WARNING if self._calls.is_usable() else logging.DEBUG
                _log.log(level, "kvmem: %d chunks are not stored", len(rows))
                _drop(rows)

    def on_new_request(self, req_context: Any) -> Any:
        """Wants new chunks only."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Ends the questions of a request, and its pins except those of loads."""
        answers = req_context.get_state(Answers)
        if answers is not None:
            answers.has_ended = True
            self._release_unused(answers)

    def on_schedule_end(self, context: Any) -> None:
        """Ends the pins of look-ups that led to no load, and gives a sign of life."""
        self._take_commits()
        self._step += 1
        self._steps += 1
        now = time.monotonic()
        for answers in list(self._active.values()):
            self._release_unused(answers)
        while self._stale and self._stale[0][0] <= now:
            _drop(self._stale.pop(0)[1])
        if self._writing and now - self._alive > _ALIVE and self._calls.is_usable():
            self._alive = now
            for tenant in {tenant for tenant, _ in self._writing}:
                cache = self._cache if tenant is None else self._tenants[tenant]
                self._calls.ask(cache.keep_alive, later=True)

    def take_events(self) -> Any:
        """Returns what the node holds and holds no more, since the last call, as vLLM's events."""
        return self._events.take()

    def has_pending_work(self) -> bool:
        """Returns whether events wait: vLLM makes steps without requests until none does."""
        return self._events.has_queued

    def reset_cache(self) -> None:
        """Leaves everything behind: see the head of the module."""
        self._step += 1
        held: list[Any] = list(self._writing.values())
        for answers in self._active.values():
            self._end_question(answers)
            self._end_storing(answers)
            held += [pins.batch for pins in answers.pins]
            answers.pins.clear()
            answers.found.clear()
        self._active.clear()
        self._writing.clear()
        self._committing.clear()
        self._stale.append((time.monotonic() + _FLUSHED, held))
        self._prefix = os.urandom(8)
        self._events.reset(self._prefix)
        _log.warning(
            "kvmem: vLLM has reset its cache, so this engine shares no chunks with others until it "
            "restarts: its weights may have changed"
        )

    def on_reset_flushed(self) -> None:
        """Ends the pins of before the reset: the workers have ended their copies."""
        for _, held in self._stale:
            _drop(held)
        self._stale.clear()

    def get_stats(self) -> Any:
        """Returns vLLM's figures of the CPU tier, for this engine."""
        stats = OffloadingConnectorStats()
        total = max(self._cache.memory_len, 1)
        pinned = sum(len(pins.chunks) for it in self._active.values() for pins in it.pins)
        write, held = len(self._writing) * self._row_bytes, pinned * self._row_bytes
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
        self._events.close()
        for answers in self._active.values():
            self._end_question(answers)
            self._end_storing(answers)
            _drop(pins.batch for pins in answers.pins)
        self._active.clear()
        self.on_reset_flushed()
        self._calls.close()
        self._take_commits()
        _drop(self._writing.values())
        self._writing.clear()
        for question in self._connecting.values():
            question.abandon()
        for cache in self._tenants.values():
            cache.close()
        self._tenants.clear()
        self._cache.close()

    def _tenant_of(self, req_context: Any) -> str | None:
        """Returns the tenant of a request, if tenants are distinguished."""
        return None if self._open_tenant is None else hints_of(req_context).tenant

    def _cache_of(self, tenant: str | None) -> NodeCache | None:
        """Returns the connection to the namespace of a tenant; None if there is none yet."""
        if tenant is None:
            return self._cache
        cache = self._tenants.get(tenant)
        if cache is not None:
            self._tenants.move_to_end(tenant)
            return cache
        question = self._connecting.get(tenant)
        if question is None:
            if not self._has_place_for_tenant():
                return None
            connect_to = self._open_tenant
            assert connect_to is not None
            question = self._calls.ask(lambda: connect_to(tenant), NodeCache.close)
            self._connecting[tenant] = question
            question.wait(self._patience)
        if not question.is_done:
            return None
        del self._connecting[tenant]
        if question.answer is not None:
            self._tenants[tenant] = question.answer
        return question.answer

    def _has_place_for_tenant(self) -> bool:
        """Returns whether one more namespace may be open. Closes an idle one if need be."""
        open_ones = len(self._tenants) + len(self._connecting)
        if open_ones < self._max_tenants or self._close_idle():
            return True
        self._crowded += 1
        if self._crowded & (self._crowded - 1) == 0:
            _log.warning(
                "kvmem: %d look-ups and stores left out: %d tenants have chunks in use, and "
                "max_tenants is %d",
                self._crowded,
                open_ones,
                self._max_tenants,
            )
        return False

    def _close_idle(self) -> bool:
        """Closes the namespace that was used least recently of those without pins and stores."""
        busy = {tenant for tenant, _ in self._writing}
        busy |= {answers.tenant for answers in self._active.values()}
        idle = next((it for it in self._tenants if it not in busy), None)
        if idle is None or self._stale:
            return False
        self._tenants.pop(idle).close()
        return True

    def _missing_worker(self) -> str | None:
        """Looks for the values that the workers keep pinned. Returns what is wrong with them."""
        found = self._cache.lookup(self._workers)
        if found < len(self._workers):
            return f"worker {found} has mapped other memory than the node has now"
        return None

    def _release(self, answers: Answers, may_end: Callable[[Pins], bool]) -> None:
        """Ends pins that no load needs."""
        ended = [pins for pins in answers.pins if not pins.loads and may_end(pins)]
        if ended:
            answers.pins = [pins for pins in answers.pins if pins not in ended]
            found = ((key, pins) for pins in answers.pins for key in pins.chunks)
            answers.found = dict(found)
            _drop(pins.batch for pins in ended)
        if not (answers.pins or answers.question or answers.storing or answers.rows):
            self._active.pop(id(answers), None)

    def _release_unused(self, answers: Answers) -> None:
        """Ends what a request has if it has ended, or has not used it in this step or the one
        before: pins and questions for values by look-ups, rows and questions for them by stores."""
        if answers.has_ended or self._steps - answers.stored > 1:
            self._end_storing(answers)
        if answers.has_ended or self._steps - answers.used > 1:
            self._end_question(answers)
            self._release(answers, lambda pins: True)

    @staticmethod
    def _end_question(answers: Answers) -> None:
        """Abandons the question for values of a request."""
        if answers.question is not None:
            answers.question.abandon()
        answers.question = None
        answers.pending.clear()

    def _end_storing(self, answers: Answers) -> None:
        """Abandons the question for rows of a request, and frees the rows that it has got."""
        if answers.storing is not None:
            answers.storing.abandon()
        answers.storing = None
        _drop(answers.rows.values())
        answers.rows.clear()


def _drop(held: Iterable[Any]) -> None:
    """Ends pins and reservations. None stands for nothing."""
    for it in held:
        # A server that is gone ends them by itself.
        with contextlib.suppress(KvmemError):
            if it is not None:
                it.discard() if isinstance(it, NodeReservation) else it.release()


def _acquire(cache: NodeCache, names: list[Any], is_prefix: bool) -> list[PinBatch]:
    """Pins values, up to the first one that memory does not have if the names are a prefix."""
    acquire = cache.acquire_prefix if is_prefix else cache.acquire
    batches = []
    for part in parts(names, _BATCH):
        batches.append(acquire(part, wait=False))
        if is_prefix and batches[-1].hits < len(part):
            break
    return batches
