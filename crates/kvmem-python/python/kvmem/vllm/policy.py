"""*Policy*: evicts the chunk of the least worth, by the history of others like it. Importing this
module imports vLLM.

Chunks of one *kind* have been used about as often. Each kind is a ring in the order of last uses.
kvmem's scan-resistant policy (``kvmem::cache::History``, in Rust) chooses among the first chunks of
the rings. An evicted chunk that is stored again returns with its kind.

*Pins.* A chunk that is being copied stays in its ring. The first eviction that meets it moves it
aside, and it returns to the front of its ring when the copy ends, so a transfer does not change the
order. The chunks of a request are used tail first, so a prefix is evicted from its end.

*Hints* of requests (:mod:`~kvmem.vllm._hints`) go before worths, in this order: chunks whose time
to live or session is over and that no other request has used since; chunks of tenants above their
equal share (a tenant without a use for four times the capacity has none); chunks of a lower
priority. Each priority of each tenant has rings of its own, and all of them share one history.

Time: every call takes O(1) for each key, amortised, and O(log n) if it has a time to live;
``evict`` takes O(n * tenants + protected keys). Memory: about 300 bytes for each chunk."""

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys

from .._kvmem import History
from ._hints import NONE, Hints, hints_of

REMEMBERED = 4
"""Tenants without a use, and hints of stores, are remembered for this number of capacities."""
MAX_TENANTS = 64
"""Tenants with shares of their own. All others have one share together."""
OTHERS = "others"
"""Name of the tenants beyond that number."""

_Ring = OrderedDict[Any, "_Entry"]


class _Entry:
    """A chunk."""

    __slots__ = ("chunk", "expires", "priority", "session", "slot", "spent", "tenant", "used")

    def __init__(self, chunk: Any, slot: int, used: int, hints: Hints, tenant: str | None) -> None:
        self.chunk = chunk
        self.slot = slot
        """Its slot in the history."""
        self.used = used
        self.tenant = tenant
        self.priority = 0
        self.session = hints.session
        """The only session that has used it."""
        self.expires: float | None = None
        self.spent = False
        """Whether its time to live is over, or its session has ended."""


class _Tenant:
    """The chunks of a tenant: rings by priority, and by kind in each."""

    __slots__ = ("chunks", "rings", "used")

    def __init__(self) -> None:
        self.chunks = 0
        self.used = 0
        self.rings: dict[int, list[_Ring]] = {}


class KvmemPolicy(CachePolicy):  # type: ignore[misc]
    """A scan-resistant eviction policy for vLLM's CPU tier: ``"eviction_policy": "KvmemPolicy"``,
    ``"cache_policy_module_path": "kvmem.vllm"``."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.clear()

    clock: Callable[[], float] = staticmethod(time.monotonic)
    """Clock of times to live, in seconds."""

    def clear(self) -> None:
        """Forgets all chunks and their history."""
        self._chunks: dict[Any, _Entry] = {}
        self._tenants: dict[str | None, _Tenant] = {}
        self._spent: _Ring = OrderedDict()
        # Times at which chunks expire. One that was used since then has another time by now.
        self._expiries: list[tuple[float, int, Any]] = []
        self._serial = 0
        self._missed: dict[Any, Hints] = {}
        self._aside: set[Any] = set()
        self._now = 0
        self._history = History()

    def get(self, key: Any) -> Any:
        """Returns the chunk of a key, or None. It does not count as a use."""
        entry = self._chunks.get(key)
        return None if entry is None else entry.chunk

    @property
    def _rings(self) -> list[_Ring]:
        """All rings."""
        groups = [rings for it in self._tenants.values() for rings in it.rings.values()]
        return [self._spent, *(ring for rings in groups for ring in rings)]

    def insert(self, key: Any, chunk: Any, req_context: Any = None) -> None:
        """Adds a chunk, with its history if it was evicted lately."""
        missed = self._missed.pop(key, NONE)
        hints = missed if req_context is None else hints_of(req_context)
        self._now += 1
        tenant = self._tenant_of(hints)
        entry = _Entry(chunk, self._history.insert(key), self._now, hints, tenant)
        self._apply(hints, key, entry)
        self._chunks[key] = entry
        self._tenants[tenant].chunks += 1
        self._ring_of(entry)[key] = entry

    def remove(self, key: Any) -> None:
        """Removes a chunk whose store has failed, and forgets it."""
        entry = self._chunks.pop(key)
        self._ring_of(entry).pop(key, None)
        self._history.remove(entry.slot)
        self._aside.discard(key)
        self._leave(entry)

    def touch(self, keys: Iterable[Any], req_context: Any = None) -> None:
        """Counts a use of each key, the last one first."""
        hints = hints_of(req_context)
        for key in reversed(list(keys)):
            self._use(key, hints)

    def on_store_miss(self, keys: Iterable[Any], req_context: Any) -> None:
        """Keeps the hints: :meth:`insert` follows, and vLLM 0.32 passes it no request."""
        hints = hints_of(req_context)
        if hints is not NONE:
            self._missed.update(dict.fromkeys(keys, hints))
            # A store that found no space leaves its keys.
            while len(self._missed) > REMEMBERED * self.cache_capacity:
                del self._missed[next(iter(self._missed))]

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[Any]],
        insertion_only_keys: set[Any],
        reused_keys: set[Any],
        req_context: Any,
    ) -> None:
        """Counts one use of each chunk that the request has reused, and puts all its chunks into
        the order of its prefix. If its session ends, the chunks that only that session has used
        are evicted first."""
        hints = hints_of(req_context)
        for key in reversed(order_request_keys(key_groups, req_context)):
            self._use(key, hints if key in reused_keys else None)
            entry = self._chunks.get(key)
            ends = hints.session_ends and hints.session is not None
            if entry is not None and ends and entry.session == hints.session:
                self._spend(key, entry)

    def evict(self, n: int, protected: set[Any]) -> list[tuple[Any, Any]] | None:
        """Evicts ``n`` chunks that are neither protected nor pinned; None if there are fewer."""
        self._expire()
        taken: list[tuple[Any, _Ring, _Entry]] = []
        skipped: list[tuple[Any, _Ring, _Entry]] = []
        while len(taken) < n:
            ring = self._victim()
            if ring is None:
                break
            key, entry = ring.popitem(last=False)
            if entry.chunk.ref_cnt != 0:
                self._aside.add(key)
            elif key in protected:
                skipped.append((key, ring, entry))
            else:
                taken.append((key, ring, entry))
                # The next victim may be another tenant's.
                self._tenants[entry.tenant].chunks -= 1
        missing = len(taken) < n
        back = _by_age(skipped + taken) if missing else skipped
        for key, ring, entry in reversed(back):
            ring[key] = entry
            ring.move_to_end(key, last=False)
        if missing:
            for _, _, entry in taken:
                self._tenants[entry.tenant].chunks += 1
            return None
        evicted = []
        for key, _, entry in taken:
            del self._chunks[key]
            self._history.evict(entry.slot)
            evicted.append((key, entry.chunk))
        for tenant in {entry.tenant for _, _, entry in taken}:
            if not self._tenants[tenant].chunks:
                del self._tenants[tenant]
        return evicted

    def mark_evictable(self, key: Any) -> None:
        """Puts a chunk that was moved aside back to the front of its ring."""
        if key in self._aside:
            self._aside.discard(key)
            entry = self._chunks[key]
            ring = self._ring_of(entry)
            ring[key] = entry
            ring.move_to_end(key, last=False)

    def _tenant_of(self, hints: Hints) -> str | None:
        """Returns the name under which a tenant has its share, and notes a use."""
        name = hints.tenant
        if name not in self._tenants and name is not None and len(self._tenants) >= MAX_TENANTS:
            name = OTHERS
        self._tenants.setdefault(name, _Tenant()).used = self._now
        return name

    def _leave(self, entry: _Entry) -> None:
        tenant = self._tenants[entry.tenant]
        tenant.chunks -= 1
        if not tenant.chunks:
            del self._tenants[entry.tenant]

    def _ring_of(self, entry: _Entry) -> _Ring:
        if entry.spent:
            return self._spent
        groups = self._tenants[entry.tenant].rings
        if entry.priority not in groups:
            groups[entry.priority] = [OrderedDict() for _ in range(History.KINDS)]
        return groups[entry.priority][self._history.kind(entry.slot)]

    def _apply(self, hints: Hints, key: Any, entry: _Entry) -> None:
        """Gives a chunk, which is in no ring, the hints of a request that uses it."""
        entry.spent = False
        entry.priority = max(entry.priority, hints.priority)
        entry.expires = None if hints.ttl is None else self.clock() + hints.ttl
        if entry.expires is not None:
            self._serial += 1
            heapq.heappush(self._expiries, (entry.expires, self._serial, key))
            # Times of chunks that were used since, or have gone, are dropped now and then.
            if len(self._expiries) > 4 * self.cache_capacity + 64:
                self._drop_expiries()

    def _drop_expiries(self) -> None:
        latest: dict[Any, tuple[float, int, Any]] = {}
        for expires, serial, key in self._expiries:
            entry = self._chunks.get(key)
            if entry is not None and entry.expires == expires:
                latest[key] = (expires, serial, key)
        self._expiries = list(latest.values())
        heapq.heapify(self._expiries)

    def _expire(self) -> None:
        """Finds the chunks whose time to live is over."""
        if not self._expiries:
            return
        now = self.clock()
        while self._expiries and self._expiries[0][0] <= now:
            expires, _, key = heapq.heappop(self._expiries)
            entry = self._chunks.get(key)
            if entry is not None and entry.expires == expires:
                self._spend(key, entry)

    def _spend(self, key: Any, entry: _Entry) -> None:
        """Makes a chunk one that is evicted first."""
        if not entry.spent:
            self._ring_of(entry).pop(key, None)
            entry.spent = True
            if key not in self._aside:
                self._spent[key] = entry

    def _use(self, key: Any, hints: Hints | None) -> None:
        """Puts a chunk at the end of its ring. With hints it is a use by a request."""
        entry = self._chunks.get(key)
        if entry is None:
            return
        self._ring_of(entry).pop(key, None)
        if hints is not None:
            self._history.touch(entry.slot)
            if hints.session != entry.session:
                entry.session = None
            self._apply(hints, key, entry)
            self._tenants[entry.tenant].used = self._now
        entry.used = self._now
        # A pinned chunk may return to its ring, too: the next eviction moves it aside again.
        self._aside.discard(key)
        self._ring_of(entry)[key] = entry

    def _victim(self) -> _Ring | None:
        """Returns the ring whose first chunk is evicted next; None: all rings are empty."""
        if self._spent:
            return self._spent
        firsts: list[tuple[_Entry, _Ring] | None] = [None] * History.KINDS
        for rings in self._candidates():
            for kind, ring in enumerate(rings):
                if not ring:
                    continue
                entry, first = next(iter(ring.values())), firsts[kind]
                if first is None or entry.used < first[0].used:
                    firsts[kind] = entry, ring
        chosen = self._history.choose([first and first[0].slot for first in firsts])
        found = None if chosen is None else firsts[chosen]
        return found and found[1]

    def _candidates(self) -> Iterable[list[_Ring]]:
        """Returns the rings of the tenants and the priority that chunks are evicted from."""
        tenants = list(self._tenants.values())
        if len(tenants) > 1:
            tenants = [it for it in tenants if any(map(any, it.rings.values()))]
            idle = self._now - REMEMBERED * self.cache_capacity
            active = sum(it.used > idle for it in self._tenants.values())
            share = self.cache_capacity / max(active, 1)
            over = [it for it in tenants if it.used <= idle or it.chunks > share]
            tenants = over or tenants
        if len(tenants) == 1 and len(tenants[0].rings) == 1:
            return tenants[0].rings.values()
        groups = [
            (priority, rings)
            for it in tenants
            for priority, rings in it.rings.items()
            if any(rings)
        ]
        lowest = min((priority for priority, _ in groups), default=0)
        return [rings for priority, rings in groups if priority == lowest]


def _by_age(entries: list[tuple[Any, _Ring, _Entry]]) -> list[tuple[Any, _Ring, _Entry]]:
    return sorted(entries, key=lambda it: it[2].used)
